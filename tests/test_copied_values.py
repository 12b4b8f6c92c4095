"""blame and trace of what came with a copy or a fork, diff between threads, and sizes of one checkpoint: all backends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shared_pool
import threadkeep
from checkpoint_chains import Chain, values_of
from encrypted_keeps import KEYS
from rich_threads import config, graph, user_message, write_cube_thread, write_thread
from sync_async import Ask, Caller
from threadkeep import errors
from threadkeep.cli.app import run
from threadkeep.engine.threads.origins import MAX_THREADS, Origin, read_origins

pytestmark = pytest.mark.sampled(3)
MODES: dict[str, dict[str, Any]] = {"plain": {}, "keys": {"keys": KEYS}, "hidden": {"keys": KEYS, "hide_ids": True}}


@pytest.fixture(params=MODES)
def stored(request: pytest.FixtureRequest, fresh_url: Callable[[], str]) -> Iterator[threadkeep.Keep]:
    """A Keep with a LangGraph thread and a CubeLoop thread, with keys and without."""
    options = MODES[request.param]
    with shared_pool.open_keep(fresh_url(), **options) as keep:
        write_thread(keep, "source")
        write_cube_thread(keep, "talk")
        yield keep


async def writers(call: Caller, keep: threadkeep.Keep, thread: str, path: str = "log[1]") -> tuple[Any, ...]:
    """Return where a value was introduced, by which node, and what is missing."""
    found = await call(keep, "blame", thread, path)
    assert (found.thread, found.path) == (thread, path)
    return found.introduced_in.thread, found.write.node if found.write else None, found.source_missing


async def traced(call: Caller, keep: threadkeep.Keep, thread: str, checkpoint: str) -> set[tuple[str, str | None]]:
    return {(write.thread, write.source_missing) for write in await call(keep, "trace", thread, checkpoint)}


async def second(call: Caller, keep: threadkeep.Keep, thread: str) -> Any:
    """Return the id of the checkpoint that the first two nodes ran from."""
    return (await call(keep, "log", thread, ns=""))[-2].id


# --- LangGraph threads


async def test_a_value_is_blamed_on_the_thread_that_it_was_copied_from(stored: threadkeep.Keep, call: Caller) -> None:
    await call(stored, "copy", "source", "copy")
    await call(stored, "copy", "copy", "copy of it")
    await call(stored, "fork", "copy of it", to="fork")
    checkpoint = await second(call, stored, "source")
    first = await call(stored, "blame", "source", "log[1]")
    for thread in ("source", "copy", "copy of it", "fork"):
        assert await writers(call, stored, thread) == ("source", "left", None)
        found = await call(stored, "blame", thread, "log[1]")
        assert (found.introduced_in, found.write, found.oldest) == (first.introduced_in, first.write, False)
        assert await traced(call, stored, thread, checkpoint) == {("source", None)}
    world = graph(stored.checkpointer)
    await asyncio.to_thread(world.update_state, config("fork"), {"log": ["mine"]}, "right")
    assert (await call(stored, "blame", "fork", "log[-1]")).introduced_in.thread == "fork"
    assert await traced(call, stored, "fork", "latest~1") == {("fork", None)}


async def test_a_source_that_was_deleted_is_named(stored: threadkeep.Keep, call: Caller) -> None:
    await call(stored, "copy", "source", "copy")
    await call(stored, "copy", "copy", "copy of it")
    checkpoint = await second(call, stored, "source")
    await call(stored, "delete", "copy")
    assert await writers(call, stored, "copy of it") == ("source", "left", None), "its own source is still known"
    assert await traced(call, stored, "copy of it", checkpoint) == {("source", None)}
    await call(stored, "delete", "source")
    assert await writers(call, stored, "copy of it") == ("copy of it", "left", "copy")
    assert await traced(call, stored, "copy of it", checkpoint) == {("copy of it", "copy")}
    await Chain(stored.checkpointer, "copy").aput({"log": ["another thread of this id"]})
    assert await writers(call, stored, "copy of it") == ("copy of it", "left", "copy")
    assert await traced(call, stored, "copy of it", checkpoint) == {("copy of it", "copy")}


async def test_a_copy_onto_an_existing_thread_tells_what_is_whose(stored: threadkeep.Keep, call: Caller) -> None:
    await asyncio.to_thread(write_thread, stored, "target")
    own, theirs = await second(call, stored, "target"), await second(call, stored, "source")
    for _ in range(2):
        await call(stored, "copy", "source", "target")
    assert await traced(call, stored, "target", own) == {("target", None)}
    assert await traced(call, stored, "target", theirs) == {("source", None)}
    found = await call(
        stored, "blame", "target", "log[1]", checkpoint_id=(await call(stored, "log", "source", ns=""))[0].id
    )
    assert found.introduced_in.thread == "source"
    found = await call(stored, "blame", "target", "log[1]", checkpoint_id="latest")
    assert found.introduced_in.thread == "target", "it was written later, so its newest checkpoint is the latest"


async def test_threads_that_were_copied_in_a_circle_end_the_search(stored: threadkeep.Keep, call: Caller) -> None:
    await call(stored, "copy", "source", "copy")
    await call(stored, "delete", "source")
    await call(stored, "copy", "copy", "source")
    assert await writers(call, stored, "source") == ("copy", "left", "source")
    assert await traced(call, stored, "source", await second(call, stored, "source")) == {("copy", "source")}


def test_a_long_chain_of_copies_is_followed_so_far() -> None:
    with threadkeep.open("memory://") as keep:
        Chain(keep.checkpointer, "0").put({"x": "y" * 100})
        for n in range(MAX_THREADS + 3):
            keep.copy(f"{n}", f"{n + 1}")
        for n in (MAX_THREADS - 1, MAX_THREADS + 3):
            oldest, found = n - MAX_THREADS + 1, keep.blame(f"{n}", "x")
            assert found.introduced_in.thread == f"{oldest}"
            assert found.source_missing == (f"{oldest - 1}" if oldest else None)


async def test_a_branch_is_blamed_on_the_checkpoint_where_it_starts(keep: threadkeep.Keep, call: Caller) -> None:
    await asyncio.to_thread(write_thread, keep, "t")
    before = await call(keep, "blame", "t", "log[1]")
    await call(keep, "rollback", "t", "latest~2")
    assert (await call(keep, "blame", "t", "log[1]")).introduced_in == before.introduced_in


def test_notes_of_origins_are_read_as_they_were_written() -> None:
    origins = [Origin('a\0"\ud800', "1"), Origin("b", None), Origin("c", "1", "5")]
    names = ["x", "\0copied from ", "\0copied from [1]", "\0copied from " + "[" * 100_000, *(o.note() for o in origins)]
    assert read_origins([*names[:6], "y"]) == origins[1::-1]
    assert read_origins([*names, Origin("d", "9").note()]) == [Origin("d", "9"), origins[2]], "a fork counts anew"


# --- CubeLoop threads


async def test_messages_are_blamed_on_the_thread_where_they_were_said(stored: threadkeep.Keep, call: Caller) -> None:
    await call(stored, "copy", "talk", "copy")
    await call(stored, "fork", "copy", to="fork")
    await asyncio.to_thread(asyncio.run, stored.cube.fork("fork", "short", after_run_id="r1"))
    await asyncio.to_thread(asyncio.run, stored.cube.append("short", [user_message("its own")]))
    for thread in ("talk", "copy", "fork", "short"):
        found = await call(stored, "blame", thread, "messages[0]")
        place = found.introduced_in
        assert (place.thread, place.id, found.source_missing, found.oldest) == ("talk", "0000000001", None, False)
    assert (await call(stored, "blame", "short", "messages[2]")).introduced_in.thread == "short"
    assert await traced(call, stored, "short", "latest") == {("short", None)}
    assert await traced(call, stored, "short", "0000000001") == {("talk", None)}
    assert await traced(call, stored, "fork", "latest") == {("talk", None)}
    for thread in ("talk", "copy"):
        await call(stored, "delete", thread)
    assert await traced(call, stored, "short", "0000000001") == {("fork", "copy")}
    assert (await call(stored, "blame", "short", "messages[0]")).source_missing == "copy"


# --- elsewhere


def test_copies_in_another_storage_know_their_source(tmp_path: Path) -> None:
    first, other = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    with threadkeep.open(first) as keep:
        write_thread(keep, "source")
        write_cube_thread(keep, "talk")
        for thread in ("source", "talk"):
            keep.copy(thread, f"copy of {thread}")
    threadkeep.convert(first, other)
    with threadkeep.open(other) as keep:
        assert keep.blame("copy of source", "log[1]").introduced_in.thread == "source"
        assert keep.blame("copy of talk", "messages[0]").introduced_in.thread == "talk"
        assert keep.verify().problems == []


@pytest.mark.parametrize("mode", MODES)
def test_origins_survive_a_portable_file(mode: str, fresh_url: Callable[[], str], ask: Ask, tmp_path: Path) -> None:
    with threadkeep.open(fresh_url(), **MODES[mode]) as keep:
        fill(keep)
        ask(keep, "export", tmp_path / "all.jsonl")
        ask(keep, "export", tmp_path / "copies.jsonl", thread_id=["copy of source", "copy of talk"])
        expected = wrote(keep, ask)
    assert {introduced for introduced, *_ in expected} == {"source", "talk"}
    with threadkeep.open(fresh_url(), **MODES[mode]) as other:
        ask(other, "import_portable", tmp_path / "all.jsonl")
        assert wrote(other, ask) == expected
        assert ask(other, "verify").problems == []
        assert ask(other, "import_portable", tmp_path / "all.jsonl").unchanged == 6
        ask(other, "export", tmp_path / "again.jsonl")
    if mode == "plain":
        assert origins_in(tmp_path / "all.jsonl") == origins_in(tmp_path / "again.jsonl") != {}
    with threadkeep.open(fresh_url(), **MODES[mode]) as other:
        ask(other, "import_portable", tmp_path / "copies.jsonl")
        assert ask(other, "blame", "copy of source", "log[1]").source_missing == "source"


def fill(keep: threadkeep.Keep) -> None:
    """Write a thread of each kind, a copy of each, and a fork of each copy."""
    write_thread(keep, "source")
    write_cube_thread(keep, "talk")
    for source in ("source", "talk"):
        keep.copy(source, f"copy of {source}")
        keep.fork(f"copy of {source}", to=f"fork of {source}")


def wrote(keep: threadkeep.Keep, ask: Ask) -> list[tuple[Any, ...]]:
    """Return where values of copies and forks come from, and where their writes were made."""
    found = list[tuple[Any, ...]]()
    for source, path in (("source", "log[1]"), ("talk", "messages[0]")):
        for thread in (f"copy of {source}", f"fork of {source}"):
            blame = ask(keep, "blame", thread, path)
            traced = {(write.thread, write.source_missing) for write in ask(keep, "trace", thread, "latest")}
            found.append((blame.introduced_in.thread, blame.source_missing, blame.write, traced))
    return found


def lines_of(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text("utf-8", "surrogatepass").strip().split("\n")]


def origins_in(file: Path) -> dict[str, Any]:
    """Return the origins of the threads in a portable file."""
    return {line["id"]: line["origins"] for line in lines_of(file) if "origins" in line}


def test_origins_survive_an_import_into_a_thread_that_is_there(
    fresh_url: Callable[[], str], ask: Ask, tmp_path: Path
) -> None:
    with threadkeep.open(fresh_url()) as keep:
        fill(keep)
        ask(keep, "export", tmp_path / "copy.tk", thread_id=["source", "copy of source"])
        checkpoint = ask(keep, "log", "copy of source", ns="")[-2].id
    with threadkeep.open(fresh_url()) as other:
        Chain(other.checkpointer, "copy of source").put({"x": "own"})
        assert ask(other, "import_portable", tmp_path / "copy.tk").merged == 1
        assert {write.thread for write in ask(other, "trace", "copy of source", checkpoint)} == {"source"}


def test_origins_survive_a_backup(lasting_url: str, tmp_path: Path) -> None:
    with threadkeep.open(lasting_url) as keep:
        fill(keep)
    threadkeep.backup(lasting_url, tmp_path / "backup")
    threadkeep.restore(tmp_path / "backup", f"sqlite:///{tmp_path / 'restored.db'}")
    with threadkeep.open(f"sqlite:///{tmp_path / 'restored.db'}") as keep:
        assert keep.blame("fork of source", "log[1]").introduced_in.thread == "source"
        assert keep.blame("copy of talk", "messages[0]").introduced_in.thread == "talk"


def test_a_file_without_origins_and_one_with_wrong_ones(tmp_path: Path) -> None:
    with threadkeep.open("memory://") as keep:
        write_thread(keep, "source")
        keep.copy("source", "copy")
        keep.export(tmp_path / "new.jsonl")
        keep.export(tmp_path / "redacted.jsonl", redact=True)
    lines, [(origin,)] = lines_of(tmp_path / "new.jsonl"), origins_in(tmp_path / "redacted.jsonl").values()
    assert origin["thread"] in {line.get("id") for line in lines_of(tmp_path / "redacted.jsonl")} - {"source"}
    for origins, error in [
        (None, None),
        ("x", "origins must be list"),
        ([["x"]], "expected an object"),
        ([{"thread": 1}], "thread must be str"),
        ([{"thread": "x", "until": 1}], "until must be"),
    ]:
        changed = [{name: value for name, value in line.items() if name not in ("crc", "origins")} for line in lines]
        for line in changed if origins is not None else ():
            line.update({"origins": origins} if line["type"] == "thread" else {})
        file = tmp_path / "changed.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in changed))
        with threadkeep.open("memory://") as keep, pytest.raises(ValueError, match=error) if error else nullcontext():
            keep.import_portable(file)
            assert keep.blame("copy", "log[1]").introduced_in.thread == "copy", "as in a file of an older version"


def test_a_read_only_keep_follows_copies_and_an_intact_storage_stays_intact(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        write_thread(keep, "source")
        keep.copy("source", "copy")
        keep.fork("copy", "latest~3", to="fork")
        assert keep.verify().problems == []
        assert keep.prune(policy=threadkeep.Policy(keep_last=1))
        assert keep.blame("copy", "log[1]").source_missing is None
        info = keep.thread("copy")
        assert info is not None
        assert keep.sizes(thread_id="copy").stored == info.bytes
    with threadkeep.open(lasting_url, read_only=True) as keep:
        assert keep.blame("copy", "log[-1]").introduced_in.thread == "source"
        assert keep.flow("fork").checkpoints == 1
        assert keep.sizes(thread_id="fork", checkpoint_id="latest").checkpoint is not None


def test_another_tenant_is_never_read(fresh_url: Callable[[], str]) -> None:
    with threadkeep.open(fresh_url()) as keep:
        mine, other = keep.tenant("mine"), keep.tenant("other")
        for each in (mine, other):
            Chain(each.checkpointer, "source").put({"x": "y" * 100})
        mine.copy("source", "copy")
        mine.delete("source")
        found = mine.blame("copy", "x")
        assert (found.introduced_in.thread, found.source_missing) == ("copy", "source")


# --- diff


async def test_threads_of_both_kinds_are_compared(stored: threadkeep.Keep, call: Caller) -> None:
    found = await call(stored, "diff", "source", None, other_thread="talk")
    assert (found.a.kind, found.b.kind) == ("graph", "cube")
    assert {each.channel: each.change for each in found.channels}["messages"] == "added"
    await Chain(stored.checkpointer, "talk").aput({"messages": []})
    with pytest.raises(ValueError, match="kind"):
        await call(stored, "diff", "talk", None, other_thread="talk")
    found = await call(stored, "diff", "talk", None, kind="graph", other_thread="talk", other_kind="cube")
    assert (found.a.kind, found.b.kind) == ("graph", "cube")
    sub = next(step.ns for step in await call(stored, "log", "source") if step.ns)
    found = await call(stored, "diff", "source", None, ns=sub, other_thread="source", other_ns="")
    assert (found.a.ns, found.b.ns) == (sub, "")
    for wrong in ({"other_kind": "cube"}, {"other_ns": ""}):
        with pytest.raises(ValueError, match="other_thread"):
            await call(stored, "diff", "source", None, **wrong)


# --- sizes of a checkpoint


async def test_the_size_of_a_checkpoint_compares_writes_with_state(stored: threadkeep.Keep, call: Caller) -> None:
    sizes = await call(stored, "sizes", thread_id="source", checkpoint_id="latest~5")
    assert replace(sizes, checkpoint=None) == await call(stored, "sizes", thread_id="source")
    size, traced = sizes.checkpoint, await call(stored, "trace", "source", "latest~5")
    assert size.writes == sum(each.size for each in traced) == sum(each.bytes for each in size.by_write)
    assert {(each.task, each.node, each.channel) for each in size.by_write} == {
        (each.task, each.node, each.channel) for each in traced
    }
    assert sum(each.writes for each in size.by_write) == len(traced)
    values = await asyncio.to_thread(values_of, stored.checkpointer, "source", size.id)
    assert {each.channel for each in size.by_channel} == values.keys()
    assert size.state == sum(each.bytes for each in size.by_channel)
    assert (size.shared + size.own, size.thread, size.ns) == (size.state, "source", "")
    latest = (await call(stored, "sizes", thread_id="source", checkpoint_id="latest")).checkpoint
    big = {each.channel: each for each in latest.by_channel}["big"]
    assert (big.own, big.shared > 5000, big.stored) == (0, True, 0), "big was stored by an earlier checkpoint"
    cube = (await call(stored, "sizes", thread_id="talk", checkpoint_id="latest")).checkpoint
    assert cube.by_write == ()
    assert {each.channel: each.own > 0 and each.shared > 0 for each in cube.by_channel}["messages"]


async def test_a_checkpoint_that_cannot_be_measured_is_refused(keep: threadkeep.Keep, call: Caller) -> None:
    await Chain(keep.checkpointer).aput({"x": 1})
    with pytest.raises(ValueError, match="thread_id"):
        await call(keep, "sizes", checkpoint_id="latest")
    with pytest.raises(errors.Missing):
        await call(keep, "sizes", thread_id="t", checkpoint_id="latest~9")


# --- commands


def test_the_commands_name_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url) as keep:
        write_thread(keep, "source")
        write_cube_thread(keep, "talk")
        keep.copy("source", "copy")
        checkpoint = keep.log("source", ns="")[-2].id

    def shown(*command: str) -> str:
        assert run([*command, "--url", url]) == 0
        return capsys.readouterr().out

    assert "source" in shown("blame", "copy", "log[1]")
    assert "thread" in shown("trace", "copy", checkpoint).splitlines()[2]
    assert "thread" not in shown("trace", "source", checkpoint).splitlines()[2]
    assert "shared with earlier checkpoints" in shown("sizes", "source", "--checkpoint", checkpoint)
    assert "messages  added" in shown("diff", "source", "talk")
    with threadkeep.open(url) as keep:
        keep.delete("source")
    assert "copied from" in shown("blame", "copy", "log[1]")
    assert "copied from thread source" in shown("trace", "copy", checkpoint)
