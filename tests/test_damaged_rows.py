"""One damaged row does not make its thread unreadable: verbs go on without it, and lose nothing that it may need."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from langchain_core.messages import HumanMessage

import rich_threads
import threadkeep
import valkey_servers
from checkpoint_chains import Chain, config, list_ids, values_of
from damage import MemoryRows, SqlRows, StoredRows, flip_byte, rows_opener
from sync_async import Caller
from test_cli_input import Terminal
from test_delta_graphs import build as delta_graph
from threadkeep.cli.app import run
from threadkeep.engine.log.itemlog import NAMES, SHARED, ItemId, unseal_item
from threadkeep.errors import Corrupt, Missing

OLDEST, BEFORE, TARGET, AFTER, NEWEST = (f"{n:08}" for n in range(5))
ALL = [NEWEST, AFTER, TARGET, BEFORE, OLDEST]


def text_of(id: str) -> str:
    return f"{id} " * 40


def put_chain(saver: Any, special: str = TARGET) -> Chain:
    """Put five checkpoints, each of its own run. The special one has labels and a shape of its own."""
    chain = Chain(saver)
    for id in reversed(ALL):
        chain.run = f"run {id}"
        log = [text_of(each) for each in reversed(ALL) if each <= id]
        extra = {"extra": 1} if id == special else {}
        chain.put({"text": text_of(id), "log": log, **extra}, **({"mark": "special"} if id == special else {}))
        saver.put_writes(config("t", id, run=chain.run), [("log", text_of(id) + "written")], "task")
    return chain


def row_of(rows: StoredRows, id: str) -> Any:
    return next(row for row in rows.root() if row.id == id)


def change_row(**columns: Any) -> Callable[[StoredRows, str], None]:
    def change(rows: StoredRows, id: str) -> None:
        row = row_of(rows, id)
        rows.set_checkpoint(row, row._replace(**columns))

    return change


def spoil_body(rows: StoredRows, id: str) -> None:
    row = row_of(rows, id)
    rows.set_checkpoint(row, row._replace(body=flip_byte(row.body)))


def spoil_labels(rows: StoredRows, id: str) -> None:
    at = ItemId(SHARED, row_of(rows, id).labels)
    rows.set_item(at, flip_byte(rows.items()[at]))


def lose_labels(rows: StoredRows, id: str) -> None:
    rows.set_item(ItemId(SHARED, row_of(rows, id).labels), None)


def spoil_shape(rows: StoredRows, id: str) -> None:
    at = ItemId(SHARED, row_of(rows, id).refs[0].start)
    rows.set_item(at, flip_byte(rows.items()[at]))


WAYS: dict[str, Callable[[StoredRows, str], None]] = {
    "its body": spoil_body,
    "its parent": change_row(parent="elsewhere"),
    "its time": change_row(time=1 << 60),
    "its references": change_row(refs=()),
    "its labels": spoil_labels,
    "its labels are gone": lose_labels,
    "its shape": spoil_shape,
}
damages = pytest.mark.parametrize("way", WAYS)


def put_damaged(keep: threadkeep.Keep, url: str, way: str, id: str) -> StoredRows:
    """Put five checkpoints and damage one of them."""
    put_chain(keep.checkpointer, special=id)
    rows = rows_opener(url)(keep, "t")
    WAYS[way](rows, id)
    keep._session.heads.clear()
    return rows


@contextmanager
def damaged(keep: threadkeep.Keep, rows: StoredRows, way: str, id: str = TARGET) -> Iterator[None]:
    """Damage a checkpoint, and undo that at the end."""
    row, items = row_of(rows, id), rows.items()
    WAYS[way](rows, id)
    keep._session.heads.clear()
    yield
    for at, stored in items.items():
        if at.lane == SHARED and rows.items().get(at) != stored:
            restore_item(rows, at, stored)
    changed = next((each for each in rows.root() if each.id == id), None)
    assert changed is not None, "the damaged row is gone"
    rows.set_checkpoint(changed, row)
    keep._session.heads.clear()


def restore_item(rows: StoredRows, at: ItemId, stored: bytes) -> None:
    if at not in rows.items() and isinstance(rows, MemoryRows):
        rows._held.items[at] = stored
    elif at not in rows.items() and isinstance(rows, SqlRows):
        values = {"number": rows.number, "lane": at.lane, "n": at.n, "payload": stored}
        rows.execute("INSERT INTO tk_items (thread, lane, n, payload) VALUES (:number, :lane, :n, :payload)", values)
    else:
        rows.set_item(at, stored)


@pytest.fixture
def rows(keep: threadkeep.Keep, url: str) -> StoredRows:
    put_chain(keep.checkpointer)
    return rows_opener(url)(keep, "t")


# --- looking at a damaged thread


@damages
@pytest.mark.sampled(6)
async def test_verbs_show_a_damaged_checkpoint_as_damaged_and_go_on(
    keep: threadkeep.Keep, url: str, rows: StoredRows, way: str, call: Caller
) -> None:
    await asyncio.to_thread(WAYS[way], rows, TARGET)
    keep._session.heads.clear()
    log = await call(keep, "log", "t")
    tree = await call(keep, "tree", "t")
    assert [(each.id, bool(each.damaged)) for each in log] == [(id, id == TARGET) for id in ALL]
    assert list(tree.checkpoints) == log
    assert [each.writes for each in log] == [1] * 5
    shown = await call(keep, "show", "t", TARGET)
    assert (shown.status, shown.values, shown.checkpoint) == ("damaged", {}, log[2])
    assert [each.value for each in shown.writes] == [text_of(TARGET) + "written"]
    assert (await call(keep, "show", "t", AFTER)).values["text"] == text_of(AFTER)
    assert (await call(keep, "find", f"t@{TARGET}")).damaged == log[2].damaged
    with pytest.raises(Corrupt, match="damaged"):
        await call(keep, "show", "t", "latest~3")  # the damaged row may name a wrong parent
    compared = await call(keep, "diff", "t", BEFORE, AFTER)
    assert ({each.channel for each in compared.channels}, compared.is_complete) == ({"text", "log"}, True)
    compared = await call(keep, "diff", "t", TARGET, AFTER)
    assert (bool(compared.a.damaged), compared.channels, compared.is_complete) == (True, (), False)
    blamed = await call(keep, "blame", "t", "log[0]")
    assert (blamed.introduced_in.id, blamed.oldest) == (AFTER, False)
    assert blamed.damaged == log[2].damaged
    with pytest.raises(Corrupt, match=TARGET):
        await call(keep, "blame", "t", "text", checkpoint_id=TARGET)
    assert [each.channel for each in await call(keep, "trace", "t", TARGET)] == ["log"]
    activity = await call(keep, "activity")
    assert (activity.writes, activity.damaged, activity.skipped) == (5, ("t",), ())
    sizes = await call(keep, "sizes", thread_id="t")
    assert (sizes.damaged, sizes.skipped) == (("t",), ())
    assert sizes.by_thread[0].damaged == 1
    if way == "its body":
        assert sizes.stored == (await call(keep, "thread", "t")).bytes
    assert (await call(keep, "stats")).checkpoints == 5


def spoil_writes(rows: StoredRows, id: str) -> None:
    row = next(row for row in rows.writes() if (row.checkpoint, row.task) == (id, "task"))
    rows.set_writes(row, row._replace(body=flip_byte(row.body)))


async def test_damaged_writes_are_shown_as_damaged(
    keep: threadkeep.Keep, url: str, rows: StoredRows, call: Caller
) -> None:
    await call(keep.checkpointer, "put_writes", config("t", TARGET), [("log", "another")], "other")
    await asyncio.to_thread(spoil_writes, rows, TARGET)
    assert [each.id for each in await call(keep, "log", "t") if each.damaged] == [TARGET]
    shown = await call(keep, "show", "t", TARGET)
    assert shown.values["text"] == text_of(TARGET)
    assert [(each.task, each.value, bool(each.damaged)) for each in shown.writes] == [
        ("other", "another", False),
        ("task", None, True),
    ]
    traced = await call(keep, "trace", "t", TARGET)
    assert sorted((each.task, bool(each.damaged)) for each in traced) == [("other", False), ("task", True)]
    with pytest.raises(Corrupt, match="task"):
        await call(keep.checkpointer, "get_tuple", config("t", TARGET))
    assert [found.checkpoint["id"] for found in await call.every(keep.checkpointer, "list", config("t"))] == [
        id for id in ALL if id != TARGET
    ]


async def test_a_channel_with_a_damaged_item_is_shown_as_damaged_and_the_others_as_they_are(
    keep: threadkeep.Keep, url: str, rows: StoredRows, call: Caller
) -> None:
    await asyncio.to_thread(spoil_text, rows, TARGET)
    keep._session.heads.clear()
    shown = await call(keep, "show", "t", TARGET)
    assert list(shown.damaged) == ["text"]
    assert "checksum" in shown.damaged["text"]
    assert (shown.values["extra"], len(shown.values["log"])) == (1, 3)
    compared = await call(keep, "diff", "t", TARGET, NEWEST)
    assert list(compared.damaged) == ["text"]
    assert {each.channel for each in compared.channels} == {"extra", "log"}
    assert not compared.is_complete
    with pytest.raises(Corrupt, match="checksum"):
        await call(keep, "blame", "t", "text", checkpoint_id=TARGET)
    assert (await call(keep, "blame", "t", "log[0]", checkpoint_id=TARGET)).introduced_in.id == OLDEST
    assert [each.damaged for each in await call(keep, "log", "t")] == [None] * 5  # no state is read
    with pytest.raises(Corrupt):
        await call(keep.checkpointer, "get_tuple", config("t", TARGET))
    listed = await call.every(keep.checkpointer, "list", config("t"))
    assert [found.checkpoint["id"] for found in listed] == [id for id in ALL if id != TARGET]


def spoil_text(rows: StoredRows, id: str) -> None:
    """Damage the item of a checkpoint's text, which no other checkpoint has."""
    others = {ref for row in rows.root() if row.id != id for ref in row.refs}
    own = [ref for ref in row_of(rows, id).refs if ref not in others and ref.lane > SHARED]
    lane = min(ref.lane for ref in own)
    at = ItemId(lane, next(ref.start for ref in own if ref.lane == lane))
    rows.set_item(at, flip_byte(rows.items()[at]))


def test_a_damaged_name_hides_only_the_checkpoints_that_use_it(keep: threadkeep.Keep, url: str) -> None:
    put_chain(keep.checkpointer)
    rows = rows_opener(url)(keep, "t")
    family = rows.thread().family
    at = next(
        at
        for at, stored in rows.items().items()
        if at.lane == NAMES and unseal_item(at, stored, "", family).data == b"extra"
    )
    rows.set_item(at, flip_byte(rows.items()[at]))
    keep._session.heads.clear()
    assert [each.id for each in keep.log("t") if each.damaged] == [TARGET]
    assert keep.show("t").values["text"] == text_of(NEWEST)
    assert keep.prune("t").damaged == ("t",)
    assert keep.prune("t").threads == ()
    for change in (lambda: keep.rollback("t", AFTER), lambda: keep.repair("t", discard=True)):
        with pytest.raises(Corrupt, match="names of channels or nodes"):
            change()


def test_a_delta_channel_that_is_rebuilt_through_damage_is_damaged(keep: threadkeep.Keep, url: str) -> None:
    graph = delta_graph(keep.checkpointer)
    thread: Any = {"configurable": {"thread_id": "t"}}
    for n in range(3):
        graph.invoke({"messages": [f"input {n}"]}, thread)
    rows = rows_opener(url)(keep, "t")
    ids = [each.id for each in keep.log("t")]
    through = keep.show("t").delta
    assert through
    spoil_body(rows, ids[2])
    shown = keep.show("t", ids[0])
    assert set(through) <= shown.damaged.keys()
    assert ids[2] in str(shown.damaged)


# --- get, list, put


@damages
@pytest.mark.sampled(6)
async def test_a_damaged_checkpoint_is_never_replaced_by_another(
    keep: threadkeep.Keep,
    url: str,
    way: str,
    call: Caller,
    caplog: pytest.LogCaptureFixture,
) -> None:
    saver = keep.checkpointer
    await asyncio.to_thread(put_damaged, keep, url, way, NEWEST)
    for ref in (None, NEWEST):
        with pytest.raises(Corrupt):
            await call(saver, "get_tuple", config("t", ref))
    found = await call(saver, "get_tuple", config("t", AFTER))
    assert found.checkpoint["channel_values"]["text"] == text_of(AFTER)
    with caplog.at_level(logging.WARNING, "threadkeep.damage"):
        listed = await call.every(saver, "list", config("t"))
    assert [each.checkpoint["id"] for each in listed] == ALL[1:]
    assert [(each.name, NEWEST in each.message, "'t'" in each.message) for each in caplog.records] == [
        ("threadkeep.damage", True, True)
    ]
    for options in ({"filter": {"source": "loop"}}, {"limit": 2}, {"before": config("t", "00000009"), "limit": 2}):
        caplog.clear()
        listed = await call.every(saver, "list", config("t"), **options)
        assert [each.checkpoint["id"] for each in listed] == ALL[1:][: options.get("limit")]
        assert len(caplog.records) == 1
    assert [each.checkpoint["id"] for each in await call.every(saver, "list", None)] == ALL[1:]
    await call(saver, "put_writes", config("t", AFTER), [("log", "more")], "later")
    branch = Chain(saver)
    branch.last, branch.number = AFTER, 9
    await call(saver, "put", *branch.next({"text": "on top"}))
    assert (await call(saver, "get_tuple", config("t"))).checkpoint["channel_values"] == {"text": "on top"}
    if way == "its labels are gone":
        return  # the state can be read, and nothing else is needed of a parent
    lost = Chain(saver)
    lost.last, lost.number = NEWEST, 10
    keep._session.heads.clear()
    with pytest.raises(Corrupt):
        await call(saver, "put", *lost.next({"text": "on damage"}))
    assert (await call(saver, "get_tuple", config("t"))).checkpoint["id"] == "00000009"


async def test_a_put_on_a_damaged_checkpoint_fails_alone(keep: threadkeep.Keep, url: str, rows: StoredRows) -> None:
    await asyncio.to_thread(spoil_body, rows, TARGET)
    saver = keep.checkpointer

    async def put(parent: str, id: str) -> str:
        chain = Chain(saver)
        chain.last = parent
        try:
            await chain.aput({"text": id}, id=id)
        except Corrupt:
            return "corrupt"
        return "stored"

    keep._session.heads.clear()
    parents = [NEWEST, TARGET, AFTER, TARGET, NEWEST, BEFORE] * 2
    outcomes = await asyncio.gather(*(put(parent, f"{n:08}") for n, parent in enumerate(parents, 20)))
    assert outcomes == ["corrupt" if parent == TARGET else "stored" for parent in parents]
    stored = [f"{n:08}" for n, parent in enumerate(parents, 20) if parent != TARGET]
    assert [each.id for each in await keep.alog("t") if each.id >= "00000020"] == stored[::-1]


# --- prune, compact and branches


@damages
@pytest.mark.sampled(6)
@pytest.mark.parametrize("verb", ["prune", "policy", "drop_idle", "delete_for_runs", "compact"])
def test_what_removes_checkpoints_keeps_a_damaged_one_and_all_that_it_needs(
    keep: threadkeep.Keep, url: str, rows: StoredRows, verb: str, way: str
) -> None:
    saver, before = keep.checkpointer, set(rows.items())
    with damaged(keep, rows, way):
        lost = {at for at in before if at not in rows.items()}
        if verb == "prune":
            saver.prune(["t"])
        elif verb == "delete_for_runs":
            saver.delete_for_runs([f"run {id}" for id in ALL])
        elif verb == "compact":
            assert (keep.compact().damaged, keep.compact().items) == (["t"], 0)
        else:
            time.sleep(0.002)  # the thread has to be idle
            policy = threadkeep.Policy(
                **{"keep_last": 1} if verb == "policy" else {"drop_idle": "0s", "keep_interrupted": False}
            )
            rehearsed = keep.prune(policy=policy, dry_run=True)
            assert keep.prune(policy=policy).threads == rehearsed.threads
            assert rehearsed.damaged == keep.prune(policy=policy).damaged == ("t",)
        assert {at for at in before if at not in rows.items()} == lost
        left = [each.id for each in keep.log("t")]
        expected = {"prune": [NEWEST, TARGET], "policy": [NEWEST, TARGET, BEFORE], "compact": ALL}.get(verb, [TARGET])
        assert left == expected  # a policy keeps the ends of branches, and nothing intact follows that one
        assert keep.thread("t") is not None
        assert list_ids(saver) == [id for id in left if id != TARGET]
    assert values_of(saver, id=TARGET)["text"] == text_of(TARGET)
    assert values_of(saver, id=TARGET)["log"] == [text_of(id) for id in (OLDEST, BEFORE, TARGET)]


def test_a_pruned_thread_can_still_be_repaired(keep: threadkeep.Keep, url: str, rows: StoredRows) -> None:
    saver = keep.checkpointer
    spoil_body(rows, TARGET)
    saver.prune(["t"])
    assert keep.repair("t", TARGET).channels["log"] == f"rebuilt from ancestor {BEFORE} and the writes on {BEFORE}"
    assert keep.repair("t", discard=True).discarded == [("", TARGET)]
    saver.prune(["t"])
    assert keep.compact().damaged == []
    assert len(rows.root()) == 1
    assert keep.verify().ok


def test_branches_start_at_intact_checkpoints_only(keep: threadkeep.Keep, url: str, rows: StoredRows) -> None:
    spoil_body(rows, TARGET)
    for change in (keep.rollback, keep.fork, lambda *args: keep.fork(*args, to="new"), lambda *a: keep.tag(*a, "x")):
        with pytest.raises(Corrupt, match=TARGET):
            change("t", TARGET)
    assert keep.rollback("t", BEFORE).forked_from == BEFORE
    assert values_of(keep.checkpointer)["text"] == text_of(BEFORE)
    assert keep.tag("t", BEFORE, "good") == BEFORE
    assert keep.fork("t", AFTER, to="new").id == AFTER
    assert values_of(keep.checkpointer, "new")["text"] == text_of(AFTER)
    assert keep.verify("new").ok
    spoil_body(rows, rows.root()[-1].id)
    with pytest.raises(Corrupt):
        keep.fork("t")
    assert keep.delete("t") is True
    assert keep.thread("t") is None
    assert list_ids(keep.checkpointer) == []


# --- repair


@damages
@pytest.mark.sampled(6)
@pytest.mark.parametrize("id", [TARGET, NEWEST])
async def test_after_a_discard_everything_works_again(
    keep: threadkeep.Keep, url: str, way: str, id: str, call: Caller
) -> None:
    saver = keep.checkpointer
    rows = await asyncio.to_thread(put_damaged, keep, url, way, id)
    assert not (await call(keep, "verify")).ok
    rehearsed = await call(keep, "repair", "t", discard=True, dry_run=True)
    assert rehearsed.discarded == [("", id)]
    assert len(await asyncio.to_thread(rows.root)) == 5
    assert await call(keep, "repair", "t", discard=True) == rehearsed
    checked = await call(keep, "verify")
    assert checked.problems == []
    left = [each for each in ALL if each != id]
    assert await asyncio.to_thread(list_ids, saver) == left
    assert (await call(saver, "get_tuple", config("t"))).checkpoint["id"] == left[0]
    assert [each.damaged for each in await call(keep, "log", "t")] == [None] * 4
    assert (await call(keep, "repair", "t", discard=True)).discarded == []
    chain = Chain(saver)
    chain.last = left[0]
    await call(saver, "put", *chain.next({"text": "on top"}, id="00000009"))
    await call(saver, "prune", ["t"])
    assert (await call(keep, "compact")).damaged == []
    assert (await call(saver, "get_tuple", config("t"))).checkpoint["channel_values"] == {"text": "on top"}
    assert len(await asyncio.to_thread(rows.root)) == 1
    assert (await call(keep, "verify")).ok


def test_only_the_named_checkpoint_is_discarded(keep: threadkeep.Keep, url: str, rows: StoredRows) -> None:
    before = len(rows.items())
    for id in (BEFORE, AFTER):
        spoil_body(rows, id)
    assert keep.repair("t", BEFORE, discard=True).discarded == [("", BEFORE)]
    assert [each.id for each in keep.log("t") if each.damaged] == [AFTER]
    assert len(rows.items()) == before  # the other may need them
    assert keep.repair("t", NEWEST, discard=True).discarded == []
    with pytest.raises(Missing):
        keep.repair("t", "nothing", discard=True)
    with pytest.raises(ValueError, match="graph"):
        keep.repair("t", discard=True, graph=object())
    assert keep.repair("t", discard=True).discarded == [("", AFTER)]
    assert len(rows.items()) < before
    assert keep.verify().ok


def test_damaged_writes_and_lost_items_are_discarded(keep: threadkeep.Keep, url: str, rows: StoredRows) -> None:
    row = next(row for row in rows.writes() if row.checkpoint == AFTER)
    rows.set_writes(row, row._replace(path="elsewhere"))
    spoil_text(rows, OLDEST)
    keep._session.heads.clear()
    found = keep.repair("t", discard=True)
    assert (found.discarded, found.discarded_writes) == ([("", OLDEST)], [("", AFTER, "task")])
    assert keep.verify().problems == []
    assert list_ids(keep.checkpointer) == ALL[:-1]
    assert keep.checkpointer.get_tuple(config("t", AFTER)).pending_writes == []  # type: ignore[union-attr]


def test_a_thread_of_which_nothing_is_left_is_deleted(keep: threadkeep.Keep, url: str, rows: StoredRows) -> None:
    for id in ALL:
        spoil_body(rows, id)
    found = keep.repair("t", discard=True)
    assert found.assumptions == ["nothing of the thread is left: it is deleted"]
    assert keep.thread("t") is None
    assert keep.verify().ok


def test_what_delta_channels_need_of_a_discarded_checkpoint_goes_with_it(keep: threadkeep.Keep, url: str) -> None:
    graph = delta_graph(keep.checkpointer)
    thread: Any = {"configurable": {"thread_id": "t"}}
    for n in range(3):
        graph.invoke({"messages": [f"input {n}"]}, thread)
    rows = rows_opener(url)(keep, "t")
    ids = [each.id for each in keep.log("t")]
    contents = {id: contents_of(graph, id) for id in ids}
    spoil_body(rows, ids[2])
    found = keep.repair("t", discard=True)
    assert {("", id) for id in ids[:3]} <= set(found.discarded)
    assert keep.verify().problems == []
    for each in keep.log("t"):
        assert contents_of(graph, each.id) == contents[each.id]


def contents_of(graph: Any, id: str) -> list[str]:
    return [message.content for message in graph.get_state(config("t", id)).values.get("messages", [])]


def test_a_parent_that_is_gone_is_forgotten(keep: threadkeep.Keep, url: str, rows: StoredRows) -> None:
    rows.set_checkpoint(row_of(rows, TARGET), None)
    assert {each.problem for each in keep.verify().problems} >= {"missing parent", "counter"}
    keep.repair("t", discard=True)
    assert [each.problem for each in keep.verify().problems] == []
    assert keep.checkpointer.get_tuple(config("t", AFTER)).parent_config is None  # type: ignore[union-attr]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "columns", [{"checkpoints": 77}, {"writes": 0, "status": "error"}, {"top": BEFORE}, {"bytes": 3}, {"nexts": (1,)}]
)
async def test_a_wrong_thread_row_is_rebuilt(
    keep: threadkeep.Keep, url: str, rows: StoredRows, columns: dict[str, Any], call: Caller
) -> None:
    before = await asyncio.to_thread(rows.thread)
    assert (await call(keep, "repair", "t")).thread_row == ()
    assert await asyncio.to_thread(rows.thread) == before
    await asyncio.to_thread(rows.set_thread, before._replace(**columns))
    wrong = await asyncio.to_thread(rows.thread)
    keep._session.heads.clear()
    rehearsed = await call(keep, "repair", "t", dry_run=True)
    assert set(columns) <= set(rehearsed.thread_row)
    assert await asyncio.to_thread(rows.thread) == wrong
    assert (await call(keep, "repair", "t")).thread_row == rehearsed.thread_row
    repaired = await asyncio.to_thread(rows.thread)
    assert repaired == before._replace(epoch=repaired.epoch, rev=repaired.rev, checksum=repaired.checksum)
    assert (await call(keep, "verify")).ok
    chain = Chain(keep.checkpointer)
    chain.last = NEWEST
    await call(keep.checkpointer, "put", *chain.next({"text": "on top"}, id="00000009"))
    found = await call(keep.checkpointer, "get_tuple", config("t"))
    assert found.checkpoint["channel_values"] == {"text": "on top"}
    assert (await call(keep, "verify")).ok


def test_a_damaged_count_of_names_is_not_counted_up_to(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with threadkeep.open(f"sqlite:///{file}") as keep:
        Chain(keep.checkpointer).put({"x": 1})
    huge = b"\xff" * 8 + b"\x7f"
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("UPDATE tk_threads SET nexts = ?", (huge,))
    with threadkeep.open(f"sqlite:///{file}") as keep:
        assert "checksum" in [each.problem for each in keep.verify().problems]
        keep.repair("t")
        assert keep.verify().problems == []
        assert values_of(keep.checkpointer, "t") == {"x": 1}


def test_lost_writes_of_the_newest_checkpoint_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with threadkeep.open(f"sqlite:///{file}") as keep:
        chain = Chain(keep.checkpointer)
        chain.put({"x": 1})
        newest = chain.put({"x": 2})
        keep.checkpointer.put_writes(newest, [("__interrupt__", "stop")], "task")
        assert [each.damaged for each in keep.log("t")] == [None, None]
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("DELETE FROM tk_writes")
    with threadkeep.open(f"sqlite:///{file}") as keep:
        damaged = [each.damaged for each in keep.log("t")]
        assert "of 1 tasks 0 are there" in str(damaged[0])
        assert damaged[1:] == [None]
        assert keep.show("t").checkpoint.damaged == damaged[0]


def test_a_thread_row_that_cannot_be_read_is_rebuilt(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url) as keep:
        put_chain(keep.checkpointer)
        rows = rows_opener(url)(keep, "t")
        before = rows.thread()
        apsw.Connection(str(tmp_path / "keep.db")).execute("UPDATE tk_threads SET nexts = x'80'")
        keep._session.heads.clear()
        for look in (lambda: keep.log("t"), lambda: keep.checkpointer.get_tuple(config("t"))):
            with pytest.raises(Corrupt):
                look()
        assert "nexts" in keep.repair("t", dry_run=True).thread_row
        assert keep.repair("t").damaged is None
        after = rows.thread()
        assert after == before._replace(epoch=after.epoch, rev=after.rev, checksum=after.checksum)
        assert keep.verify().ok
        assert values_of(keep.checkpointer)["text"] == text_of(NEWEST)
        apsw.Connection(str(tmp_path / "keep.db")).execute("UPDATE tk_threads SET nexts = x'80'")
        assert keep.delete("t") is True
        assert keep.verify().ok


def test_repair_leaves_the_row_of_every_kind_of_thread_alone(keep: threadkeep.Keep, url: str) -> None:
    """The rebuilt row of an intact thread is the row that it has."""
    saver = keep.checkpointer
    put_chain(saver)
    saver.put_writes(config("t", "00000009"), [("__interrupt__", "later")], "early")
    put_subgraph = Chain(saver, ns="sub:1")
    put_subgraph.put({"text": "x"}, parents={"": NEWEST})
    saver.copy_thread("t", "copy")
    saver.prune(["copy"])
    keep.fork("t", TARGET, to="fork")
    keep.rollback("t", TARGET)
    saver.put_writes(config("only writes", "1"), [("x", 1)], "task")
    graph = delta_graph(saver)
    graph.invoke({"messages": ["input"]}, config("delta"))
    saver.prune(["delta"])
    for info in keep.threads():
        assert keep.repair(info.id, dry_run=True).thread_row == (), info.id


# --- any damage


def spoil_anything(rows: StoredRows, chance: random.Random) -> None:
    """Flip a bit of an item, except a name, or of a row; or delete the item."""
    items, where = rows.items(), chance.random()
    if where < 0.4:
        at = chance.choice([at for at in items if at.lane != NAMES])
        rows.set_item(at, chance.choice([None, flip_byte(items[at], chance.random())]))
    elif where < 0.7:
        row = chance.choice(rows.checkpoints())
        rows.set_checkpoint(row, row._replace(body=flip_byte(row.body, chance.random())))
    else:
        task = chance.choice(rows.writes())
        rows.set_writes(task, task._replace(body=flip_byte(task.body, chance.random())))


@pytest.mark.parametrize("delta", [False, True])
def test_whatever_is_damaged_what_is_shown_is_right_and_what_is_left_after_a_discard_is_intact(delta: bool) -> None:
    rows_of, chance = rows_opener("memory://"), random.Random(7)
    with threadkeep.open("memory://") as keep:
        saver = keep.checkpointer
        if delta:
            graph = delta_graph(saver, frequency=3)
            for n in range(3):
                graph.invoke({"messages": [HumanMessage(f"question {n} " * 30, id=f"h{n}")]}, config("t"))
        else:
            rich_threads.write_thread(keep, "t")
        right = {(each.ns, each.id): keep.show("t", each.id, ns=each.ns).values for each in keep.log("t")}
        stored = {
            (each.config["configurable"]["checkpoint_ns"], each.checkpoint["id"]): each for each in every(saver, "t")
        }
        hidden = 0
        for n in range(12):
            thread = f"t{n}"
            keep.copy("t", thread)
            for _ in range(chance.choice([1, 1, 2, 4])):
                spoil_anything(rows_of(keep, thread), chance)
            keep._session.heads.clear()
            assert {(each.ns, each.id) for each in keep.tree(thread).checkpoints} == right.keys()
            for each in keep.log(thread):
                shown, expected = keep.show(thread, each.id, ns=each.ns), right[(each.ns, each.id)]
                if shown.status != "damaged":
                    assert shown.values == {name: v for name, v in expected.items() if name not in shown.damaged}
                    assert keep.diff(thread, each.id, None, ns=each.ns).b.thread == thread
                hidden += len(expected) - len(shown.values)
            for found in every(saver, thread):
                place = found.config["configurable"]
                whole = stored[(place["checkpoint_ns"], place["checkpoint_id"])]
                assert (found.checkpoint, found.pending_writes) == (whole.checkpoint, whole.pending_writes)
            assert keep.sizes(thread_id=thread).threads == 1
            before = rows_of(keep, thread).items().keys()
            damaged = keep.prune(thread, policy=threadkeep.Policy(keep_last=2)).damaged
            assert not damaged or rows_of(keep, thread).items().keys() == before
            keep.repair(thread, discard=True)
            assert keep.verify(thread if keep.thread(thread) else "t").problems == []
        assert hidden > 10


def every(saver: Any, thread: str) -> list[Any]:
    return list(saver.list({"configurable": {"thread_id": thread}}))


# --- rows that the storage itself cannot parse


@pytest.mark.parametrize("column", ["refs = x'80'", "id = x'ff30'"])
def test_malformed_columns_hide_no_other_row(tmp_path: Path, column: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url) as keep:
        put_chain(keep.checkpointer)
        database = apsw.Connection(str(tmp_path / "keep.db"))
        database.execute(f"UPDATE tk_checkpoints SET {column} WHERE id = ?", (TARGET.encode(),))
        keep._session.heads.clear()
        assert sum(each.damaged is not None for each in keep.log("t")) == 1
        with caplog.at_level(logging.WARNING, "threadkeep.damage"):
            assert list_ids(keep.checkpointer) == [id for id in ALL if id != TARGET]
        assert len(caplog.records) == 1
        assert keep.prune("t").damaged == ("t",)
        assert values_of(keep.checkpointer, id=NEWEST)["text"] == text_of(NEWEST)


def test_a_malformed_row_of_valkey_hides_no_other_row(caplog: pytest.LogCaptureFixture) -> None:
    url = valkey_servers.shared().url()
    with threadkeep.open(url) as keep:
        put_chain(keep.checkpointer)
        rows: Any = rows_opener(url)(keep, "t")
        field = next(name for name in rows._fields() if name[:1] == b"c" and name.endswith(TARGET.encode()))
        for value in (b"", b"no numbers", b"1,2,3\n:\xc1"):
            rows._set(field, value)
            keep._session.heads.clear()
            caplog.clear()
            assert [each.id for each in keep.log("t") if each.damaged] == [TARGET]
            assert list_ids(keep.checkpointer) == [id for id in ALL if id != TARGET]
            assert len(caplog.records) == 1
            assert keep.compact().damaged == ["t"]
        assert keep.repair("t", discard=True).discarded == [("", TARGET)]
        assert keep.verify().problems == []


# --- the command line


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keep.db"
    where = ["--url", str(path)]
    with threadkeep.open(f"sqlite:///{path}") as keep:
        put_chain(keep.checkpointer)
        rows = rows_opener(f"sqlite:///{path}")(keep, "t")
        spoil_body(rows, TARGET)
        spoil_text(rows, AFTER)

    def output(*command: str, code: int = 0) -> str:
        assert run([*command, *where]) == code, command
        captured = capsys.readouterr()
        return captured.out + captured.err

    for command in (["log", "t"], ["tree", "t"]):
        lines = output(*command).splitlines()
        assert [TARGET in line for line in lines if "damaged" in line] == [True]
        assert all(any(id in line for line in lines) for id in ALL)
    assert [each["damaged"] is not None for each in json.loads(output("log", "t", "--json"))] == [
        id == TARGET for id in ALL
    ]
    assert "damaged: the row of checkpoint" in output("show", "t", TARGET)
    assert "damaged: the row of checkpoint" in output("show", "t", TARGET, "--state")
    assert "text: damaged: item" in output("show", "t", AFTER)
    assert "text: damaged: item" in output("diff", "t", BEFORE, AFTER)
    assert "is damaged" in output("show", "t", AFTER, "--channel", "text", code=3)
    assert "not everything could be compared" in output("diff", "t", TARGET, NEWEST)
    output("diff", "t", TARGET, TARGET, "--exit-code", code=1)
    assert "the value may be older" in output("blame", "t", "log[0]")
    for command in (["sizes"], ["activity"], ["compact"], ["prune", "t", "--dry-run"]):
        assert "thread t is damaged in part" in output(*command)
    assert "Pass --yes to confirm" in output("repair", "t", "--discard", code=2)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert "nothing was changed" in output("repair", "t", "--discard", code=1)
    assert f"would remove 2 damaged checkpoints ({TARGET}, {AFTER})" in output("repair", "t", "--discard", "--dry-run")
    assert json.loads(output("repair", "t", "--discard", "--dry-run", "--json"))["discarded"] == [
        ["", TARGET],
        ["", AFTER],
    ]
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert f"removed 1 damaged checkpoint ({TARGET})" in output("repair", "t", TARGET, "--discard")
    assert "removed 1 damaged checkpoint" in output("repair", "t", "--discard", "--yes")
    assert "nothing to repair" in output("repair", "t", "--discard")
    output("verify")
