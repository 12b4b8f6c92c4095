"""Titles, labels and the archive mark of threads: set, listed, carried along, and lost by nobody."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

import threadkeep
from checkpoint_chains import Chain, config
from damage import rows_opener
from encrypted_keeps import KEYS
from sync_async import Caller
from threadkeep.cli.app import run
from threadkeep.conformance.cube.samples import assistant, user
from threadkeep.engine.health.requests import InspectThread
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.requests import LoadSeveral, LoadSeveralItems
from threadkeep.engine.threads import description
from threadkeep.engine.threads.description import MAX_LABEL, MAX_LABELS, MAX_TITLE, Description
from threadkeep.errors import Corrupt, Leased, ReadOnly

KINDS = ["graph", "cube"]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keys": {"keys": KEYS},
    "hidden ids": {"keys": KEYS, "hide_ids": True},
}
SAID = ("Refunds", ("billing", "urgent"), True)
"""A title, labels and archived."""


async def say(keep: threadkeep.Keep, thread: str, *texts: str, kind: str = "graph") -> None:
    """Add a turn for each text to a thread: what a person says, and an answer."""
    for n, text in enumerate(texts):
        if kind == "cube":
            run_id = f"run {n} {text[:9]}"
            await keep.cube.claim_run(thread, run_id)
            await keep.cube.append(thread, [user(text, run_id), assistant("Of course.", run_id)])
            await keep.cube.mark_run_complete(thread, run_id)
        else:
            messages = [SystemMessage("Be kind."), *(HumanMessage(each) for each in texts[: n + 1]), AIMessage("Yes.")]
            await Chain(keep.checkpointer, thread).aput({"messages": messages}, id=f"{n:08}")


def said_of(info: Any) -> tuple[str | None, tuple[str, ...], bool]:
    assert isinstance(info, threadkeep.ThreadInfo)
    return info.title, info.labels, info.archived


async def describe_refunds(call: Caller, keep: threadkeep.Keep, thread: str = "t", kind: str = "graph") -> Any:
    title, labels, archived = SAID
    return await call(keep, "describe", thread, title=title, labels=labels, archived=archived, kind=kind)


# --- set and listed


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_said_about_a_thread_is_listed_and_found(
    url: str, call: Caller, kind: str, options: dict[str, Any]
) -> None:
    async with threadkeep.open(url, **options) as keep:
        await say(keep, "t", "Where is\n my money?", kind=kind)
        await say(keep, "u", "What else?", kind=kind)
        info = await describe_refunds(call, keep, kind=kind)
        assert said_of(info) == SAID
        assert info.titled
        listed = {each.id: each for each in await call(keep, "threads")}
        assert listed["t"] == info == await call(keep, "thread", "t")
        assert said_of(listed["u"]) == ("What else?", (), False)
        assert not listed["u"].titled

        async def ids(**options: Any) -> list[str]:
            return sorted(each.id for each in await call(keep, "threads", **options))

        assert await ids(labels=["billing"]) == await ids(labels=["urgent", "billing"]) == ["t"]
        assert await ids(labels=["billing", "other"]) == []
        assert await ids(archived=True) == await ids(contains="refUND") == await ids(contains="URGE") == ["t"]
        assert await ids(archived=False) == ["u"]
        assert await ids(labels=[]) == ["t", "u"]
        assert (await call(keep, "verify")).problems == []


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_it_outlives_the_process(lasting_url: str, call: Caller, options: dict[str, Any]) -> None:
    async with threadkeep.open(lasting_url, **options) as keep:
        await say(keep, "t", "Hello")
        await describe_refunds(call, keep)
    async with threadkeep.open(lasting_url, read_only=True, **options) as keep:
        assert said_of(await call(keep, "thread", "t")) == SAID


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_not_given_stays(keep: threadkeep.Keep, call: Caller, kind: str) -> None:
    await say(keep, "t", "Hello there", kind=kind)

    async def describe(**said: Any) -> Any:
        return said_of(await call(keep, "describe", "t", **said))

    assert await describe(title="A") == ("A", (), False)
    assert await describe(labels=["b", "a", "b"]) == ("A", ("a", "b"), False)
    assert await describe(archived=True) == ("A", ("a", "b"), True)
    assert await describe(labels=(each for each in ())) == ("A", (), True)
    assert await describe(title=None) == ("Hello there", (), True)
    assert await describe(archived=False, title="B") == ("B", (), False)
    assert await describe(title=None) == ("Hello there", (), False)
    [info] = await call(keep, "threads")
    assert info.checkpoints > 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_thread_may_be_described_before_its_first_run(keep: threadkeep.Keep, call: Caller, kind: str) -> None:
    await describe_refunds(call, keep, kind=kind)
    [info] = await call(keep, "threads")
    assert (info.id, info.kind, info.checkpoints, info.writes, info.status) == ("t", kind, 0, 0, "idle")
    assert said_of(info) == SAID
    if kind == "graph":
        assert await call(keep.checkpointer, "get_tuple", config("t")) is None
        assert await call.every(keep.checkpointer, "list", config("t")) == []
    else:
        assert await keep.cube.load("t") is None
    assert (await call(keep, "verify")).problems == []
    assert not (await call(keep, "prune", policy=threadkeep.Policy(keep_last=1))).threads
    await say(keep, "t", "one", "two", kind=kind)
    [info] = await call(keep, "threads")
    assert said_of(info) == SAID
    assert info.checkpoints == 2
    assert (await call(keep, "verify")).problems == []


async def test_a_described_thread_that_was_never_used_is_dropped_if_it_is_idle(
    keep: threadkeep.Keep, call: Caller
) -> None:
    await describe_refunds(call, keep)
    for policy in (threadkeep.Policy(keep_last=1, keep_for="0s"), threadkeep.Policy(drop_idle="1d")):
        assert not (await call(keep, "prune", policy=policy)).threads
    await asyncio.sleep(0.01)
    idle = threadkeep.Policy(drop_idle="0s")
    for dry_run in (True, False):
        [pruned] = (await call(keep, "prune", policy=idle, dry_run=dry_run)).threads
        assert pruned.dropped
    assert await call(keep, "threads") == []


async def test_the_kind_is_that_of_the_thread_if_there_is_one(keep: threadkeep.Keep, call: Caller) -> None:
    await say(keep, "c", "Hello", kind="cube")
    assert (await call(keep, "describe", "c", title="A")).kind == "cube"
    assert (await call(keep, "describe", "new", title="A")).kind == "graph"
    await say(keep, "c", "Hello")
    with pytest.raises(ValueError, match="two threads have the id 'c'"):
        await call(keep, "describe", "c", title="B")
    assert (await call(keep, "describe", "c", title="B", kind="graph")).kind == "graph"
    assert (await call(keep, "thread", "c", kind="cube")).title == "A"


async def test_a_thread_that_has_nothing_else_goes_with_its_description(keep: threadkeep.Keep, call: Caller) -> None:
    await call(keep, "describe", "t", labels=["a"], title="A")
    await call(keep, "describe", "t", title=None)
    assert [each.id for each in await call(keep, "threads")] == ["t"]
    await call(keep, "describe", "t", labels=[])
    assert await call(keep, "threads") == []
    await call(keep, "describe", "u", archived=False)
    assert await call(keep, "thread", "u") is None
    await Chain(keep.checkpointer).aput({"x": 1})
    found = await call(keep.checkpointer, "get_tuple", config("t"))
    assert found.checkpoint["channel_values"] == {"x": 1}


async def test_deleting_a_thread_deletes_what_was_said_about_it(keep: threadkeep.Keep, call: Caller) -> None:
    await say(keep, "t", "Hello")
    await describe_refunds(call, keep)
    await call(keep, "delete", "t")
    assert await call(keep, "threads") == []
    await say(keep, "t", "Hello")
    assert said_of(await call(keep, "thread", "t")) == ("Hello", (), False)


async def test_describing_does_not_count_as_an_update_and_drops_nothing(keep: threadkeep.Keep, call: Caller) -> None:
    chain = Chain(keep.checkpointer)
    await chain.aput({"x": 1})
    before = await call(keep, "thread", "t")
    info = await call(keep, "describe", "t", labels=["a"])
    assert info.updated == before.updated
    await chain.aput({"x": 2})
    assert (await call(keep, "thread", "t")).labels == ("a",)
    assert len(await call.every(keep.checkpointer, "list", config("t"))) == 2


async def test_a_page_after_a_described_thread_is_the_next_one(keep: threadkeep.Keep, call: Caller) -> None:
    for n in range(30):
        await call(keep, "describe", f"t{n:02}", title=f"Title {n}", labels=["even"] if n % 2 == 0 else ["odd"])
    found: list[Any] = []
    while page := await call(keep, "threads", order="id", limit=4, labels=["odd"], after=found[-1] if found else None):
        found += page
    assert [each.id for each in found] == [f"t{n:02}" for n in range(1, 30, 2)]


# --- derived titles


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("short", "short"),
        ("  two\n\tlines  ", "two lines"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 79 + "…"),
        ("word " * 40, "word " * 15 + "word…"),
        ("é" * 1_000_000, "é" * 79 + "…"),
        (" \n ", "and then"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_thread_without_a_title_has_the_first_thing_that_was_said(
    keep: threadkeep.Keep, kind: str, text: str, title: str
) -> None:
    await say(keep, "t", text, "and then", kind=kind)
    [info] = await keep.athreads()
    assert (info.title, info.titled) == (title, False)
    [info] = await keep.athreads(titles=False)
    assert info.title is None


@pytest.mark.parametrize(
    ("messages", "title"),
    [
        ([], None),
        ([AIMessage("no")], None),
        ([{"role": "user", "content": "as a dict"}], "as a dict"),
        ([HumanMessage([{"type": "image", "url": "x"}, {"type": "text", "text": "blocks"}])], "blocks"),
        ([HumanMessage([{"type": "image", "url": "x"}]), HumanMessage("later")], "later"),
        ([SystemMessage(f"{n}") for n in range(40)] + [HumanMessage("after many")], "after many"),
        ([SystemMessage(f"{n:03}" * 500) for n in range(99)] + [HumanMessage("after too many")], None),
        ("not a list", None),
        ({"user": "neither"}, None),
        (["only text", 7, None], None),
    ],
)
def test_only_what_a_person_said_first_is_a_title(keep: threadkeep.Keep, messages: Any, title: str | None) -> None:
    Chain(keep.checkpointer).put({"messages": messages})
    [info] = keep.threads()
    assert info.title == title


def test_titles_of_a_page_take_at_most_three_more_requests(tmp_path: Path) -> None:
    with threadkeep.open(f"sqlite:///{tmp_path / 'a.db'}") as keep:
        for n in range(40):
            first = [SystemMessage(f"{k}" * 3000) for k in range(n % 9)]
            Chain(keep.checkpointer, f"t{n}").put({"messages": [*first, HumanMessage(f"question {n}")]})
        transport: Any = keep._session.transport
        asked: list[type] = []

        def count(request: Any) -> Any:
            asked.append(type(request))
            return read(request)

        read, transport.read = transport.read, count
        assert {each.title for each in keep.threads()} == {f"question {n}" for n in range(40)}
        assert asked[1:] == [LoadSeveral, LoadSeveralItems, LoadSeveralItems]
        asked.clear()
        keep.threads(titles=False)
        assert len(asked) == 1


def test_a_damaged_message_costs_only_its_own_title(lasting_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with threadkeep.open(lasting_url) as keep:
        for name in ("a", "b"):
            Chain(keep.checkpointer, name).put({"messages": [HumanMessage(f"hello from {name} " * 9)]})
    rows = rows_opener(lasting_url)(None, "a")
    at, stored = max(rows.items().items())
    rows.set_item(at, stored[:-1] + bytes([stored[-1] ^ 1]))
    with threadkeep.open(lasting_url) as keep, caplog.at_level(logging.WARNING, "threadkeep.damage"):
        titles = {each.id: each.title for each in keep.threads()}
        assert titles["a"] is None
        assert titles["b"] is not None
        assert "'a'" in caplog.text


# --- what is refused


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({}, ValueError),
        ({"title": ""}, ValueError),
        ({"title": " \u00a0"}, ValueError),
        ({"title": "a\nb"}, ValueError),
        ({"title": "a\0b"}, ValueError),
        ({"title": "a\x1b[31m"}, ValueError),
        ({"title": "a\u2028b"}, ValueError),
        ({"title": "a\ud800"}, ValueError),
        ({"title": "x" * (MAX_TITLE + 1)}, ValueError),
        ({"title": b"a"}, TypeError),
        ({"title": 1}, TypeError),
        ({"labels": "a"}, TypeError),
        ({"labels": None}, TypeError),
        ({"labels": [1]}, TypeError),
        ({"labels": [""]}, ValueError),
        ({"labels": ["a\tb"]}, ValueError),
        ({"labels": ["x" * (MAX_LABEL + 1)]}, ValueError),
        ({"labels": map(str, range(MAX_LABELS + 1))}, ValueError),
        ({"add_labels": "a"}, TypeError),
        ({"add_labels": [""]}, ValueError),
        ({"remove_labels": "a"}, TypeError),
        ({"archived": None}, TypeError),
        ({"archived": 1}, TypeError),
        ({"title": "a", "kind": "other"}, ValueError),
    ],
)
def test_what_cannot_be_said_is_refused_and_changes_nothing(said: dict[str, Any], error: type[Exception]) -> None:
    with threadkeep.open("memory://") as keep:
        with pytest.raises(error):
            keep.describe("t", **said)
        assert keep.threads() == []


def test_filters_are_checked_too() -> None:
    with threadkeep.open("memory://") as keep:
        for wrong in ({"labels": "a"}, {"labels": [1]}, {"archived": "yes"}):
            with pytest.raises(TypeError):
                keep.threads(**wrong)


async def test_a_read_only_keep_refuses(lasting_url: str, call: Caller) -> None:
    async with threadkeep.open(lasting_url) as keep:
        await say(keep, "t", "Hello")
    async with threadkeep.open(lasting_url, read_only=True) as keep:
        for thread in ("t", "new"):
            with pytest.raises(ReadOnly):
                await call(keep, "describe", thread, title="A")
        assert [each.title for each in await call(keep, "threads")] == ["Hello"]


@given(st.builds(Description, st.none() | st.text(min_size=1), st.lists(st.text(min_size=1)).map(tuple), st.booleans()))
def test_what_is_accepted_is_read_back(said: Description) -> None:
    try:
        changes = description.as_changes(said.title, said.labels, said.archived)
    except ValueError:
        return
    stored = description.pack(Description(**changes))
    assert description.unpack(stored, "a thread") == Description(
        said.title, tuple(sorted(set(said.labels))), said.archived
    )
    assert stored is None or json.loads(stored)


@pytest.mark.parametrize(
    "stored", ["", "null", "[]", "{", '{"title":1}', '{"titel":"a"}', '{"labels":"a"}', "[" * 9999]
)
def test_a_description_that_is_none_is_corrupt(stored: str) -> None:
    with pytest.raises(Corrupt, match="the description of a thread"):
        description.unpack(stored, "a thread")


# --- others, at the same time


async def test_nobodys_lease_matters(keep: threadkeep.Keep, call: Caller) -> None:
    async with keep.lease("t"):
        await asyncio.to_thread(keep.describe, "t", title="From outside")
        assert [each.title for each in await call(keep, "threads")] == ["From outside"]
        await Chain(keep.checkpointer).aput({"x": 1})
        await call(keep, "describe", "t", labels=["a"])
    assert said_of(await call(keep, "thread", "t")) == ("From outside", ("a",), False)


async def test_a_fenced_keep_may_describe(url: str, call: Caller) -> None:
    async with threadkeep.open(url, fenced=True) as keep:
        await call(keep, "describe", "t", title="A")
        with pytest.raises(Leased):
            await Chain(keep.checkpointer).aput({"x": 1})
        assert (await call(keep, "thread", "t")).title == "A"


async def test_releasing_a_lease_keeps_a_described_thread(keep: threadkeep.Keep, call: Caller) -> None:
    async with keep.lease("t"):
        assert await call(keep, "threads") == []
        await call(keep, "describe", "t", title="A")
    assert [each.title for each in await call(keep, "threads")] == ["A"]


def test_describing_and_putting_at_once_lose_nothing(lasting_url: str) -> None:
    rounds = 12
    with threadkeep.open(lasting_url) as one, threadkeep.open(lasting_url) as other:

        def put(_: Any) -> None:
            chain = Chain(one.checkpointer)
            for n in range(rounds):
                chain.put({"messages": [HumanMessage("Hello")], "n": n})

        def label(keep: threadkeep.Keep) -> Callable[[Any], None]:
            return lambda names: [keep.describe("t", **{name: n}) for name, n in names]  # type: ignore[func-returns-value]

        titles = [("title", f"Title {n}") for n in range(rounds)]
        labels = [("labels", [f"label {k}" for k in range(n)]) for n in range(rounds)]
        with ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(put, None), pool.submit(label(other), titles), pool.submit(label(one), labels)]
            for job in jobs:
                job.result()
        info = other.thread("t")
        assert info is not None
        assert info.title == titles[-1][1]
        assert info.labels == tuple(sorted(labels[-1][1]))
        assert info.checkpoints == rounds
        assert other.verify().problems == []


def test_labels_that_several_add_and_remove_at_once_are_all_there(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as one, threadkeep.open(lasting_url) as other:
        one.describe("t", labels=["kept", *(f"old {n}" for n in range(12))])

        def change(keep: threadkeep.Keep, name: str, first: int) -> None:
            for n in range(12):
                removed = [f"old {n}"] if n % 2 == first else []
                keep.describe("t", add_labels=[f"{name} {n}"], remove_labels=removed)

        with ThreadPoolExecutor(2) as pool:
            for job in [pool.submit(change, one, "one", 0), pool.submit(change, other, "other", 1)]:
                job.result()
        info = other.thread("t")
        assert info is not None
        assert set(info.labels) == {"kept", *(f"{name} {n}" for name in ("one", "other") for n in range(12))}


async def test_labels_are_added_and_removed_beside_what_else_is_said(keep: threadkeep.Keep, call: Caller) -> None:
    async def labels(**said: Any) -> tuple[str, ...]:
        found: tuple[str, ...] = (await call(keep, "describe", "t", **said)).labels
        return found

    assert await labels(add_labels=["b", "a"], title="A") == ("a", "b")
    assert await labels(add_labels=["c"], remove_labels=["a", "unheard of"]) == ("b", "c")
    assert await labels(labels=["d"], add_labels=["e"], remove_labels=["d"]) == ("e",)
    assert await labels(add_labels=["e"]) == ("e",)
    with pytest.raises(ValueError, match="at most 100 labels"):
        await labels(add_labels=map(str, range(MAX_LABELS)))
    assert (await call(keep, "thread", "t")).labels == ("e",)
    for nothing in ({"add_labels": ()}, {"remove_labels": []}):
        with pytest.raises(ValueError, match="needs"):
            await labels(**nothing)
    await call(keep, "describe", "new", remove_labels=["a"])
    assert await call(keep, "thread", "new") is None


async def test_tenants_see_their_own(url: str, call: Caller) -> None:
    async with threadkeep.open(url) as keep:
        a, b = keep.tenant("a"), keep.tenant("b", keys=KEYS)
        for each, title in ((a, "Of A"), (b, "Of B")):
            await say(each, "t", "Hello")
            await call(each, "describe", "t", title=title)
        assert [each.title for each in await call(a, "threads")] == ["Of A"]
        assert [each.title for each in await call(b, "threads", contains="of")] == ["Of B"]
        assert await call(keep, "threads") == []


# --- carried along


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
async def test_copies_and_forks_have_it_too(url: str, call: Caller, kind: str, options: dict[str, Any]) -> None:
    async with threadkeep.open(url, **options) as keep:
        await say(keep, "t", "Hello", kind=kind)
        await describe_refunds(call, keep, kind=kind)
        await call(keep, "copy", "t", "copy")
        await call(keep, "fork", "t", to="fork")
        title, labels, _ = SAID
        assert said_of(await call(keep, "thread", "copy")) == SAID
        assert said_of(await call(keep, "thread", "fork")) == (title, labels, False)
        await call(keep, "describe", "copy", title="Another")
        assert said_of(await call(keep, "thread", "t")) == SAID
        assert (await call(keep, "verify")).problems == []


async def test_a_thread_without_checkpoints_is_copied_too(keep: threadkeep.Keep, call: Caller) -> None:
    await describe_refunds(call, keep)
    assert await call(keep, "copy", "t", "u")
    assert said_of(await call(keep, "thread", "u")) == SAID


async def test_a_copy_onto_a_thread_leaves_what_is_said_about_that(keep: threadkeep.Keep, call: Caller) -> None:
    for name in ("t", "described", "plain"):
        await say(keep, name, "Hello")
    await describe_refunds(call, keep)
    await call(keep, "describe", "described", title="Mine")
    for target in ("described", "plain"):
        await call(keep, "copy", "t", target)
    assert said_of(await call(keep, "thread", "described")) == ("Mine", (), False)
    assert said_of(await call(keep, "thread", "plain")) == SAID


async def fill(call: Caller, keep: threadkeep.Keep) -> None:
    for kind in KINDS:
        await say(keep, kind, "Hello", kind=kind)
        await describe_refunds(call, keep, kind, kind)
        await describe_refunds(call, keep, f"empty {kind}", kind)
    await say(keep, "plain", "Hello")


async def told(call: Caller, keep: threadkeep.Keep) -> dict[str, Any]:
    return {each.id: (each.kind, *said_of(each)) for each in await call(keep, "threads", titles=False)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_exports_and_conversions_have_it_too(
    fresh_url: Callable[[], str], call: Caller, tmp_path: Path, options: dict[str, Any]
) -> None:
    async with threadkeep.open(fresh_url(), **options) as source, threadkeep.open(fresh_url()) as target:
        await fill(call, source)
        expected = await told(call, source)
        assert len(expected) == 5
        converted = await asyncio.to_thread(threadkeep.convert, source, target)
        assert not converted.differences
        assert await told(call, target) == expected
        file = tmp_path / "all.tk"
        await call(source, "export", file)
        async with threadkeep.open(fresh_url(), **options) as imported:
            result = await call(imported, "import_portable", file)
            assert not result.differences
            assert await told(call, imported) == expected
            assert (await call(imported, "verify")).problems == []


async def test_a_repeated_transfer_follows_the_source_unless_a_thread_was_described_here(
    fresh_url: Callable[[], str], call: Caller
) -> None:
    async with threadkeep.open(fresh_url()) as source, threadkeep.open(fresh_url()) as target:
        await fill(call, source)
        await say(source, "other", "Hello")

        async def transfer(**options: Any) -> Any:
            file = io.BytesIO()
            await call(source, "export", file)
            result = await call(target, "import_portable", io.BytesIO(file.getvalue()), **options)
            assert not result.differences
            return result

        await transfer()
        assert (await transfer()).unchanged == len(await told(call, source))
        await call(target, "describe", "other", title="Mine")
        for name, kind in (("graph", "graph"), ("cube", "cube"), ("other", "graph"), ("empty cube", "cube")):
            await call(source, "describe", name, title="New", kind=kind)
        before = await told(call, target)
        assert (await transfer(dry_run=True)).updated == 3
        assert await told(call, target) == before
        assert (await transfer()).updated == 3
        assert await told(call, target) == {**await told(call, source), "other": ("graph", "Mine", (), False)}
        await call(source, "describe", "graph", title=None, labels=[], archived=False)
        converted = await asyncio.to_thread(threadkeep.convert, source, target)
        assert not converted.differences
        assert (await told(call, target))["graph"] == ("graph", None, (), False)


async def test_a_backup_has_it_too(fresh_url: Callable[[], str], call: Caller, tmp_path: Path) -> None:
    url = fresh_url()
    async with threadkeep.open(url) as keep:
        await fill(call, keep)
        expected = await told(call, keep)
        if url.startswith("sqlite"):
            await asyncio.to_thread(threadkeep.backup, url, tmp_path / "backup.db")
            async with threadkeep.open(f"sqlite:///{tmp_path / 'backup.db'}") as copy:
                assert await told(call, copy) == expected


async def test_a_redacted_export_does_not_tell(keep: threadkeep.Keep, call: Caller) -> None:
    await fill(call, keep)
    file = io.BytesIO()
    await call(keep, "export", file, redact=True)
    async with threadkeep.open("memory://") as other:
        assert not (await call(other, "import_portable", io.BytesIO(file.getvalue()))).differences
        for each in await call(other, "threads"):
            assert not {"Refunds", "billing", "urgent"} & {each.title, *each.labels}


async def test_encrypting_keeps_it_and_leaves_no_word_in_the_file(tmp_path: Path, call: Caller) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with threadkeep.open(url) as keep:
        await fill(call, keep)
        expected = await told(call, keep)
    assert "Refunds" in str(rows_of(tmp_path / "a.db"))
    both = threadkeep.Keys({"k1": bytes(range(32)), "k2": b"2" * 32}, primary="k2")
    async with threadkeep.open(url, keys=KEYS, hide_ids=True) as keep:
        await call(keep, "encrypt")
        assert await told(call, keep) == expected
    async with threadkeep.open(url, keys=both) as keep:
        await call(keep, "rotate")
        await call(keep, "reencrypt", wait=False)
        assert await told(call, keep) == expected
        await call(keep, "describe", "graph", title="Refunds again", kind="graph")
        await call(keep, "compact")
    stored = str(rows_of(tmp_path / "a.db"))
    assert not any(word in stored for word in ("Refunds", "billing", "urgent"))


def rows_of(path: Path) -> list[Any]:
    return list(apsw.Connection(str(path)).execute("SELECT id, description, sealed FROM tk_threads"))


# --- damage


def test_a_damaged_row_says_nothing_and_repair_keeps_what_can_be_read(
    lasting_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with threadkeep.open(lasting_url) as keep:
        Chain(keep.checkpointer).put({"x": 1})
        keep.describe("t", title="Refunds", labels=["billing"])
    rows_opener(lasting_url)(None, "t").spoil_thread(description='{"title":"Forged","labels":["billing"]}')
    with threadkeep.open(lasting_url) as keep:
        [info] = keep.threads()
        assert (info.status, info.title, info.labels) == ("damaged", None, ())
        with caplog.at_level(logging.WARNING, "threadkeep.damage"):
            assert keep.threads(labels=["billing"]) == []
        assert "'t'" in caplog.text
        assert keep.threads(contains="forged") == []
        with pytest.raises(Corrupt):
            keep.describe("t", title="B")
        keep.repair("t")
        [info] = keep.threads()
        assert (info.status, info.labels) == ("idle", ("billing",))
        assert keep.verify().problems == []


def test_a_row_with_a_description_that_is_none_is_repaired_without_it(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        Chain(keep.checkpointer).put({"x": 1})
        keep.describe("t", title="Refunds")
    rows_opener(lasting_url)(None, "t").spoil_thread(description="nonsense")
    with threadkeep.open(lasting_url) as keep:
        keep.repair("t")
        [info] = keep.threads()
        assert (info.status, info.title) == ("idle", None)


def test_a_thread_that_was_never_described_is_stored_as_before(url: str) -> None:
    with threadkeep.open(url) as keep:
        Chain(keep.checkpointer).put({"x": 1})
        found = keep._session.transport.execute(InspectThread(ThreadKey("", "graph", "t")))
        assert found.thread.description is None


# --- the command


def test_the_command_describes_and_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = str(tmp_path / "a.db")
    with threadkeep.open(f"sqlite:///{file}") as keep:
        Chain(keep.checkpointer, "t").put({"messages": [HumanMessage("Where is my money?")]})
        Chain(keep.checkpointer, "u").put({"messages": [HumanMessage("\x1b[31mred")]})

    def command(*args: str) -> str:
        assert run([*args, "--url", file]) == 0
        return capsys.readouterr().out

    assert "Refunds" in command("describe", "t", "--title", "Refunds", "--label", "a", "--label", "b", "--archive")
    info = json.loads(command("describe", "t", "--label", "c", "--no-label", "a", "--unarchive", "--json"))
    assert (info["title"], info["titled"], info["labels"], info["archived"]) == ("Refunds", True, ["b", "c"], False)
    assert "Refunds" in command("threads", "--label", "c")
    assert "Refunds" not in command("threads", "--archived")
    listed = command("threads")
    assert "\x1b[31m" not in listed
    assert "red" in listed
    assert json.loads(command("describe", "t", "--no-title", "--json"))["title"] == "Where is my money?"
    assert json.loads(command("describe", "t", "--no-labels", "--json"))["labels"] == []
    assert "Where is my money?" in command("threads")
    assert "“Where is my money?”" in command("describe", "t", "--archived")
    assert "t: Refunds, archived" in command("describe", "t", "--title", "Refunds")
    assert json.loads(command("describe", "t", "--not-archived", "--json"))["archived"] is False
    for wrong, message in (([], "nothing to change"), (["--title", " "], "--no-title"), (["--label", ""], "a label")):
        assert run(["describe", "t", *wrong, "--url", file]) == 2
        assert message in capsys.readouterr().err
    assert run(["describe", "", "--title", "a", "--url", file]) == 2
    assert "" not in command("threads", "--ids").split("\n")[:-1]
