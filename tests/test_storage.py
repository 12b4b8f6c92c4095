"""The contents of the SQLite file: only what is new, only what is needed; and damage to it is detected."""

from __future__ import annotations

import asyncio
import io
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, TypedDict

import apsw
import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from threadkeep import errors
from threadkeep.engine.log.itemlog import FIRST_CHANNEL

ROW = 290
"""Bytes that a test allows for a checkpoint's row and everything that is not state."""


def line(n: int, size: int = 300) -> str:
    """Return text that compresses badly."""
    return random.Random(n).randbytes(size // 2).hex()


LINE = 220
"""More bytes than a stored line of 300 hexadecimal digits takes."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def keep(path: Path) -> Iterator[threadkeep.Keep]:
    with threadkeep.open(f"sqlite:///{path}", durability="relaxed") as opened:
        yield opened


def stored(keep: threadkeep.Keep, thread: str = "t") -> int:
    (info,) = [info for info in keep.threads() if info.id == thread]
    return info.bytes


def ask(path: Path, sql: str, *values_of: Any) -> list[tuple[Any, ...]]:
    database = apsw.Connection(str(path))
    try:
        return database.execute(sql, values_of).fetchall()
    finally:
        database.close()


def items(path: Path) -> int:
    """Return the number of state items."""
    return int(ask(path, "SELECT count(*) FROM tk_items WHERE lane >= ?", FIRST_CHANNEL)[0][0])


def cost(keep: threadkeep.Keep, chain: Chain, given: dict[str, Any], **metadata: Any) -> int:
    before = stored(keep)
    chain.put(given, **metadata)
    assert values_of(keep.checkpointer) == given
    return stored(keep) - before


# --- only what is new


def test_a_growing_list_costs_only_its_new_items(keep: threadkeep.Keep) -> None:
    chain, log = Chain(keep.checkpointer), [line(0)]
    chain.put({"log": list(log)})
    costs = []
    for n in range(1, 300):
        log.append(line(n))
        costs.append(cost(keep, chain, {"log": list(log)}))
    assert max(costs[5:]) < LINE + ROW
    assert mean(costs[-50:]) < mean(costs[5:55]) * 1.1


def test_a_growing_list_of_small_items_costs_only_its_new_items(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    chain.put({"log": [0]})
    costs = [cost(keep, chain, {"log": list(range(n))}) for n in range(10, 310)]
    assert max(costs[5:]) < ROW
    assert mean(costs[-50:]) < mean(costs[5:55]) * 1.1 + 10


def test_a_list_that_grows_by_many_costs_what_they_hold(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    chain.put({"log": [line(n) for n in range(100)]})
    assert cost(keep, chain, {"log": [line(n) for n in range(150)]}) < 50 * LINE + ROW


@pytest.fixture
def long(keep: threadkeep.Keep) -> Chain:
    chain = Chain(keep.checkpointer)
    chain.put({"log": [line(n) for n in range(300)]})
    return chain


LOG = [line(n) for n in range(300)]
EDITS: dict[str, tuple[list[str], int]] = {
    "one line in the middle is edited": ([*LOG[:150], line(900), *LOG[151:]], 1),
    "three lines are edited": ([*LOG[:50], line(901), *LOG[51:150], line(902), *LOG[151:298], line(903), LOG[299]], 3),
    "a line in the middle is removed": ([*LOG[:150], *LOG[151:]], 0),
    "the first line is removed": (LOG[1:], 0),
    "the last line is removed": (LOG[:-1], 0),
    "the front is trimmed": (LOG[200:], 0),
    "only the last line stays": (LOG[-1:], 0),
    "a line is inserted in the middle": ([*LOG[:150], line(904), *LOG[150:]], 1),
    "a line is put in front": ([line(905), *LOG], 1),
    "the halves change places": ([*LOG[150:], *LOG[:150]], 0),
    "everything is there twice": ([*LOG, *LOG], 0),
    "a line is moved": ([*LOG[:10], *LOG[11:200], LOG[10], *LOG[200:]], 0),
    "nothing changes": (LOG, 0),
}


@pytest.mark.parametrize("edit", list(EDITS))
def test_an_edited_list_costs_what_the_edit_brings(keep: threadkeep.Keep, long: Chain, edit: str) -> None:
    after, new = EDITS[edit]
    assert cost(keep, long, {"log": after}) < new * LINE + ROW


@pytest.mark.parametrize("edit", list(EDITS))
def test_an_edited_list_costs_no_more_without_a_cache(path: Path, long: Chain, edit: str) -> None:
    after, new = EDITS[edit]
    with threadkeep.open(f"sqlite:///{path}") as cold:
        long.saver = cold.checkpointer
        assert cost(cold, long, {"log": after}) < new * LINE + ROW


def test_a_sliding_window_costs_the_same_at_every_step(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    chain.put({"log": [line(n) for n in range(50)]})
    costs = [cost(keep, chain, {"log": [line(n) for n in range(k, k + 50)]}) for k in range(1, 200)]
    assert max(costs[5:]) < LINE + ROW
    assert mean(costs[-50:]) < mean(costs[5:55]) * 1.1


def test_many_scattered_removals_do_not_make_the_row_grow_without_end(keep: threadkeep.Keep, long: Chain) -> None:
    log, chance = list(LOG), random.Random(1)
    costs = []
    for _ in range(200):
        log.pop(chance.randrange(len(log)))
        costs.append(cost(keep, long, {"log": list(log)}))
    assert mean(costs) < 2 * ROW
    assert mean(costs[-50:]) < 2 * ROW


def test_many_scattered_edits_cost_what_they_bring(keep: threadkeep.Keep, long: Chain) -> None:
    log, chance = list(LOG), random.Random(2)
    costs = []
    for n in range(200):
        log[chance.randrange(len(log))] = line(1000 + n)
        costs.append(cost(keep, long, {"log": list(log)}))
    assert mean(costs) < LINE + 2 * ROW
    assert mean(costs[-50:]) < LINE + 2 * ROW


def test_an_unchanged_channel_costs_nothing(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    static = {
        "rules": line(1, 20_000),
        "tools": [line(n) for n in range(50)],
        "table": {line(n, 20): n for n in range(50)},
    }
    chain.put({**static, "n": 0})
    costs = [cost(keep, chain, {**static, "n": n}) for n in range(1, 50)]
    assert max(costs[2:]) < ROW


def test_a_channel_with_a_new_version_and_the_same_value_costs_nothing(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    given = {
        "rules": line(1, 20_000),
        "log": [line(n) for n in range(50)],
        "table": {line(n, 20): line(n) for n in range(50)},
    }
    chain.put(given)
    before, count = stored(keep), 0
    for n in range(2, 30):
        versions = dict.fromkeys(given, n)
        chain.number += 1
        at, checkpoint, metadata, _ = chain.next(given)
        checkpoint["channel_versions"] = versions
        keep.checkpointer.put(at, checkpoint, metadata, versions)
        count += 1
    assert stored(keep) - before < count * ROW


def test_a_large_dict_shares_its_unchanged_entries(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    table = {f"file{n}.py": line(n) for n in range(200)}
    chain.put({"table": dict(table)})
    table["file100.py"] = line(900)
    assert cost(keep, chain, {"table": dict(table)}) < LINE + ROW
    table["new.py"] = line(901)
    assert cost(keep, chain, {"table": dict(table)}) < LINE + ROW
    del table["file50.py"]
    assert cost(keep, chain, {"table": dict(table)}) < ROW
    costs = []
    for n in range(100):
        table[f"file{n}.py"] = line(1000 + n)
        costs.append(cost(keep, chain, {"table": dict(table)}))
    assert max(costs) < LINE + 2 * ROW


def test_a_copied_thread_costs_what_it_holds_and_no_more(keep: threadkeep.Keep, long: Chain) -> None:
    keep.checkpointer.copy_thread("t", "u")
    assert abs(stored(keep, "u") - stored(keep)) < 50


def test_an_item_is_compressed(keep: threadkeep.Keep) -> None:
    Chain(keep.checkpointer).put({"text": "The same sentence again and again. " * 1000})
    assert stored(keep) < 1000


# --- a message is stored once


def test_a_message_is_stored_once_for_its_write_and_its_channel(keep: threadkeep.Keep, path: Path) -> None:
    messages = [HumanMessage(line(n, 600), id=f"m{n}") for n in range(20)]
    chain = Chain(keep.checkpointer)
    at = chain.put({"messages": messages[:1]})
    for n in range(1, 20):
        before = items(path)
        written = [messages[n]] if n % 2 else messages[n]
        keep.checkpointer.put_writes(at, [("messages", written)], f"task {n}")
        assert items(path) == before + 1
        at = chain.put({"messages": messages[: n + 1]})
        assert items(path) == before + 1
    assert values_of(keep.checkpointer) == {"messages": messages}
    found = keep.checkpointer.get_tuple(config("t", "00000004"))
    assert found is not None
    assert found.pending_writes == [("task 5", "messages", [messages[5]])]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def conversation(keep: threadkeep.Keep) -> None:
    """Write ten turns of a chat in which every message has an id from the start."""

    def answer(state: Chat) -> dict[str, Any]:
        return {"messages": [AIMessage(line(1000 + len(state["messages"]), 600), id=f"a{len(state['messages'])}")]}

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    graph = builder.compile(checkpointer=keep.checkpointer)
    for n in range(10):
        graph.invoke({"messages": [HumanMessage(line(n, 600), id=f"h{n}")]}, config("t"))
    assert len(graph.get_state(config("t")).values["messages"]) == 20


def test_a_graph_stores_every_message_once(keep: threadkeep.Keep, path: Path) -> None:
    """The input channel, too, refers to the messages from outside; its own lane has only what is before them."""
    conversation(keep)
    large = ask(path, "SELECT count(*) FROM tk_items WHERE length(payload) > 300 GROUP BY lane")
    assert sorted(large) == [(20,)]
    assert ask(path, "SELECT count(*) FROM tk_items WHERE lane = ?", FIRST_CHANNEL) == [(1,)]
    found = [saved for saved in keep.checkpointer.list(config("t")) if saved.metadata["source"] == "input"]
    assert [saved.checkpoint["channel_values"]["__start__"]["messages"][0].id for saved in found] == [
        f"h{n}" for n in reversed(range(10))
    ]
    assert all(type(saved.checkpoint["channel_values"]["__start__"]["messages"][0]) is HumanMessage for saved in found)


INPUTS = {
    "one message": {"messages": [HumanMessage(line(1, 600), id="a")]},
    "a name of 31 bytes": {"m" * 31: [HumanMessage(line(1, 600), id="a")]},
    "two messages": {"messages": [HumanMessage(line(1, 600), id="a"), HumanMessage(line(2, 600), id="b")]},
    "a message without an id": {"messages": [HumanMessage(line(1, 600))]},
    "a message that is not in a list": {"messages": HumanMessage(line(1, 600), id="a")},
    "two channels": {"messages": [HumanMessage(line(1, 600), id="a")], "draft": line(2, 600)},
    "a long name": {"m" * 32: [HumanMessage(line(1, 600), id="a")]},
    "a name that is not ASCII": {"mé": [HumanMessage(line(1, 600), id="a")]},
    "another list": {"messages": [line(1, 600)]},
    "a text": line(1, 600),
    "a message": HumanMessage(line(1, 600), id="a"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_any_input_is_read_as_it_was_put(keep: threadkeep.Keep, path: Path, name: str) -> None:
    """One message for one channel is shared with its write; another input is stored by itself."""
    given = INPUTS[name]
    chain = Chain(keep.checkpointer)
    at = chain.put({"__start__": given})
    shared = name in ("one message", "a name of 31 bytes")
    lanes = {lane for (lane,) in ask(path, "SELECT lane FROM tk_items WHERE lane >= ?", FIRST_CHANNEL)}
    assert lanes == ({FIRST_CHANNEL, FIRST_CHANNEL + 1} if shared else {FIRST_CHANNEL})
    if shared:
        before = items(path)
        ((channel, messages),) = given.items()
        keep.checkpointer.put_writes(at, [(channel, messages)], "task")
        chain.put({channel: messages})
        assert items(path) == before
    id = at["configurable"]["checkpoint_id"]
    with threadkeep.open(f"sqlite:///{path}") as other:
        for reader in (keep, other):
            assert values_of(reader.checkpointer, id=id) == {"__start__": given}
    report = keep.verify()
    assert report.ok, report
    out = io.BytesIO()
    keep.export(out, redact=True)
    with threadkeep.open("memory://") as copy:
        copy.import_portable(io.BytesIO(out.getvalue()))
        found = list(copy.checkpointer.list(None))[-1]
        redacted = found.checkpoint["channel_values"]["__start__"]
        assert type(redacted) is type(given)
        if shared:
            ((channel, messages),) = redacted.items()
            assert (type(messages[0]), len(messages[0].content)) == (HumanMessage, 600)


def test_a_checkpoint_row_of_a_conversation_is_small(keep: threadkeep.Keep, path: Path) -> None:
    conversation(keep)
    assert row_size(path) < 130


def row_size(path: Path) -> float:
    """Return the mean bytes of a checkpoint's columns; integers count as four."""
    columns = " + ".join(f"coalesce(length({column}), 0)" for column in ("id", "parent", "run", "refs", "body"))
    ((size,),) = ask(path, f"SELECT avg({columns} + 16) FROM tk_checkpoints")
    return float(size)


def test_a_checkpoint_row_of_ten_channels_is_small(keep: threadkeep.Keep, path: Path) -> None:
    names = [f"channel_{n}" for n in range(8)]
    log: list[str] = []
    for n in range(200):
        log.append(line(n))
        checkpoint = empty_checkpoint()
        versions = {**dict.fromkeys(names, 3), "log": n + 2, "branch:to:agent": n + 2}
        checkpoint |= {
            "channel_values": {**{name: line(1, 100) for name in names}, "log": list(log), "branch:to:agent": None},
            "channel_versions": versions,
            "versions_seen": {"__input__": {}, "agent": {"branch:to:agent": n + 1, "log": n + 1}, "tools": {"log": n}},
            "updated_channels": ["branch:to:agent", "log"],
        }
        parent = list_ids(keep.checkpointer, limit=1)
        keep.checkpointer.put(
            config("t", parent[0] if parent else None) | {"metadata": {"run_id": f"run {n // 4}"}},
            checkpoint,
            {"source": "loop", "step": n, "parents": {}},
            {"log": n + 2, "branch:to:agent": n + 2},
        )
    assert row_size(path) < 190


# --- space is freed


def fresh_size(given: dict[str, Any]) -> int:
    """Return the bytes of a thread with only this checkpoint."""
    with threadkeep.open("memory://") as other:
        Chain(other.checkpointer).put(given)
        return stored(other)


def assert_only_what_is_needed(keep: threadkeep.Keep, given: dict[str, Any]) -> None:
    """Names are kept forever, everything else only while something refers to it."""
    assert values_of(keep.checkpointer) == given
    assert stored(keep) < fresh_size(given) * 1.1 + ROW


def busy_thread(keep: threadkeep.Keep) -> dict[str, Any]:
    chain, chance = Chain(keep.checkpointer), random.Random(3)
    log: list[str] = []
    given: dict[str, Any] = {}
    for n in range(80):
        chain.run = "early" if n < 79 else "last"
        log.append(line(n))
        if n % 5 == 4:
            log.pop(chance.randrange(len(log)))
        given = {"log": list(log), "table": {f"k{k}": line(k + n // 10) for k in range(10)}, "n": n}
        at = chain.put(given, user=f"user {n}")
        keep.checkpointer.put_writes(
            at | {"metadata": {"run_id": chain.run}},
            [("log", line(500 + n)), ("note", line(n))] if n < 79 else [],
            "task",
        )
    return given


def test_prune_frees_what_nothing_refers_to(keep: threadkeep.Keep) -> None:
    given = busy_thread(keep)
    keep.checkpointer.prune(["t"])
    assert_only_what_is_needed(keep, given)


def test_delete_for_runs_frees_what_nothing_refers_to(keep: threadkeep.Keep) -> None:
    given = busy_thread(keep)
    keep.checkpointer.delete_for_runs(["early"])
    assert_only_what_is_needed(keep, given)


def test_a_replaced_checkpoint_is_freed_by_the_next_prune(keep: threadkeep.Keep) -> None:
    for n in range(30):
        Chain(keep.checkpointer).put({"x": line(n, 2000)}, id="same")
    keep.checkpointer.prune(["t"])
    assert values_of(keep.checkpointer) == {"x": line(29, 2000)}
    assert stored(keep) < 31 * fresh_size({"x": line(29, 2000)})


TABLES = ("tk_threads", "tk_items", "tk_checkpoints", "tk_writes", "tk_tags", "tk_runs")


@pytest.mark.parametrize("act", ["delete_thread", "prune delete", "prune delete_all"])
def test_a_deleted_thread_leaves_no_row_in_any_table(keep: threadkeep.Keep, path: Path, act: str) -> None:
    busy_thread(keep)
    assert all(ask(path, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES)
    if act == "delete_thread":
        keep.checkpointer.delete_thread("t")
    else:
        keep.checkpointer.prune(["t"], strategy=act.removeprefix("prune "))
    assert [ask(path, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES] == [0] * 6


def test_deleting_a_thread_leaves_the_others_whole(keep: threadkeep.Keep) -> None:
    given = busy_thread(keep)
    keep.checkpointer.copy_thread("t", "copy")
    keep.checkpointer.delete_thread("t")
    assert values_of(keep.checkpointer, "copy") == given
    assert len(list_ids(keep.checkpointer, "copy")) == 80


def size_after_checkpoint(path: Path) -> int:
    ask(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size


def test_freed_space_is_given_back_or_used_again(keep: threadkeep.Keep, path: Path) -> None:
    sizes = []
    for turn in range(6):
        chain = Chain(keep.checkpointer, f"t{turn}")
        for n in range(100):
            chain.put({"text": line(turn * 1000 + n, 10_000)})
        full = size_after_checkpoint(path)
        keep.checkpointer.prune([f"t{turn}"])
        sizes.append(full)
    assert max(sizes) < sizes[0] * 1.5
    assert size_after_checkpoint(path) < sizes[0] * 0.6


# --- damage is detected


def damaged(path: Path, sql: str, *given: Any) -> None:
    assert ask(path, sql + " RETURNING 1", *given), "nothing was damaged"


THREADS = ("first thread", "second thread")


@pytest.fixture
def stored_file(path: Path) -> Path:
    """A closed file with two threads, writes, and values that are stored in items."""
    with threadkeep.open(f"sqlite:///{path}") as keep:
        for thread in THREADS:
            chain = Chain(keep.checkpointer, thread)
            for n in range(4):
                at = chain.put({"log": [line(k) for k in range(n + 1)], "text": line(50 + n), "n": n}, user="ada")
                keep.checkpointer.put_writes(at, [("log", line(60 + n)), ("n", n)], f"task {n}")
    return path


def readings(saver: threadkeep.KeepSaver, thread: str) -> dict[str, Callable[[], Any]]:
    return {
        "get_tuple": lambda: saver.get_tuple(config(thread)),
        "aget_tuple": lambda: asyncio.run(saver.aget_tuple(config(thread))),  # type: ignore[arg-type]
    }


def listed(caplog: pytest.LogCaptureFixture, read: Callable[[], Iterable[Any]]) -> tuple[list[Any], list[str]]:
    """Return what a listing contains, and its warnings of damage."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "threadkeep.damage"):
        found = list(read())
    return found, [record.getMessage() for record in caplog.records if record.name == "threadkeep.damage"]


def assert_all_damaged(warnings: list[str]) -> None:
    """Each checkpoint of the first thread is named once."""
    assert len(warnings) == 4
    for n in range(4):
        assert sum(f"'{n:08}' of namespace '' in thread '{THREADS[0]}'" in warning for warning in warnings) == 1


DAMAGE = {
    "a payload": "UPDATE tk_items SET payload = CAST(substr(payload, 1, 40) || x'00' || substr(payload, 42) AS BLOB)"
    " WHERE length(payload) > 100 AND thread = 1",
    "a payload cut short": (
        "UPDATE tk_items SET payload = substr(payload, 1, 30) WHERE length(payload) > 100 AND thread = 1"
    ),
    "an empty payload": "UPDATE tk_items SET payload = x'' WHERE length(payload) > 100 AND thread = 1",
    "the body of a checkpoint": (
        "UPDATE tk_checkpoints SET body = CAST(substr(body, 1, 9) || x'ff00' "
        "|| substr(body, 12) AS BLOB) WHERE thread = 1"
    ),
    "the body of a checkpoint cut short": "UPDATE tk_checkpoints SET body = substr(body, 1, 7) WHERE thread = 1",
    "an empty body": "UPDATE tk_checkpoints SET body = x'' WHERE thread = 1",
    "the body of writes": (
        "UPDATE tk_writes SET body = CAST(substr(body, 1, 6) || x'ff' || substr(body, 8) AS BLOB) WHERE thread = 1"
    ),
    "an unknown format": (
        "UPDATE tk_items SET payload = CAST(x'07' || substr(payload, 2) AS "
        "BLOB) WHERE length(payload) > 100 AND thread = 1"
    ),
    "items that are gone": "DELETE FROM tk_items WHERE length(payload) > 100 AND thread = 1",
    "labels that are gone": "DELETE FROM tk_items WHERE lane = 2 AND thread = 1",
    "names that are gone": "DELETE FROM tk_items WHERE lane = 0 AND thread = 1",
    "references cut short": "UPDATE tk_checkpoints SET refs = substr(refs, 1, length(refs) - 1) WHERE thread = 1",
    "no references": "UPDATE tk_checkpoints SET refs = x'' WHERE thread = 1",
    "references of writes cut short": "UPDATE tk_writes SET refs = substr(refs, 1, length(refs) - 1) WHERE thread = 1",
    "entries of writes that are no list": "UPDATE tk_writes SET entries = '[1,2' WHERE thread = 1",
    "entries of writes that are gone": "UPDATE tk_writes SET entries = '[]' WHERE thread = 1",
    "labels of another number": "UPDATE tk_checkpoints SET labels = 4711 WHERE thread = 1",
}


@pytest.mark.parametrize("what", list(DAMAGE))
def test_damage_is_reported_with_the_thread(stored_file: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    damaged(stored_file, DAMAGE[what])
    with threadkeep.open(f"sqlite:///{stored_file}") as keep:
        for read in readings(keep.checkpointer, THREADS[0]).values():
            with pytest.raises(errors.Corrupt, match=THREADS[0]):
                read()
        found, warnings = listed(caplog, lambda: keep.checkpointer.list(config(THREADS[0])))
        assert found == []
        assert_all_damaged(warnings)
        for read in readings(keep.checkpointer, THREADS[1]).values():
            assert read()
        found, warnings = listed(caplog, lambda: keep.checkpointer.list(config(THREADS[1])))
        assert (len(found), warnings) == (4, [])


@pytest.mark.parametrize("what", ["labels that are gone", "a payload", "the body of a checkpoint"])
def test_damage_is_reported_by_listings_of_all_threads_and_by_filters(
    stored_file: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    damaged(stored_file, DAMAGE[what])
    with threadkeep.open(f"sqlite:///{stored_file}") as keep:
        for filter in (None, {"user": "ada"}):
            found, warnings = listed(caplog, partial(keep.checkpointer.list, None, filter=filter))
            assert [each.config["configurable"]["thread_id"] for each in found] == [THREADS[1]] * 4
            assert_all_damaged(warnings)


@pytest.mark.parametrize("match", ["latest", "any"])
def test_missing_labels_are_reported_by_the_catalogue(
    stored_file: Path, match: str, caplog: pytest.LogCaptureFixture
) -> None:
    damaged(stored_file, DAMAGE["labels that are gone"])
    with threadkeep.open(f"sqlite:///{stored_file}") as keep:
        assert len(keep.threads()) == 2
        found, warnings = listed(caplog, lambda: keep.threads(metadata={"user": "ada"}, match=match))
        assert [each.id for each in found] == [THREADS[1]]
        assert len(warnings) == 1 and THREADS[0] in warnings[0]
        assert not keep.verify(THREADS[0]).ok


def test_two_swapped_items_are_detected(stored_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = ask(
        stored_file,
        "SELECT rowid, payload FROM tk_items WHERE length(payload) > 100 AND thread = 1 ORDER BY rowid LIMIT 2",
    )
    damaged(stored_file, "UPDATE tk_items SET payload = ? WHERE rowid = ?", rows[0][1], rows[1][0])
    damaged(stored_file, "UPDATE tk_items SET payload = ? WHERE rowid = ?", rows[1][1], rows[0][0])
    with threadkeep.open(f"sqlite:///{stored_file}") as keep:
        found, warnings = listed(caplog, lambda: keep.checkpointer.list(config(THREADS[0])))
        assert found == []
        assert_all_damaged(warnings)


def test_two_swapped_bodies_are_detected(stored_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    bodies = [row[0] for row in ask(stored_file, "SELECT body FROM tk_checkpoints WHERE thread = 1 ORDER BY id")]
    damaged(
        stored_file, "UPDATE tk_checkpoints SET body = ? WHERE thread = 1 AND id = CAST('00000002' AS BLOB)", bodies[3]
    )
    with threadkeep.open(f"sqlite:///{stored_file}") as keep:
        found, warnings = listed(caplog, lambda: keep.checkpointer.list(config(THREADS[0])))
        assert [each.checkpoint["id"] for each in found] == ["00000003", "00000001", "00000000"]
        assert len(warnings) == 1 and f"'00000002' of namespace '' in thread '{THREADS[0]}'" in warnings[0]


COLUMNS = [
    ("tk_items", "payload", "rowid"),
    ("tk_checkpoints", "body", "id"),
    ("tk_checkpoints", "refs", "id"),
    ("tk_writes", "body", "checkpoint"),
    ("tk_writes", "refs", "checkpoint"),
    ("tk_writes", "entries", "checkpoint"),
    ("tk_threads", "nexts", "thread"),
]


def read_all(saver: threadkeep.KeepSaver) -> dict[str, Any]:
    """Return everything that a listing says of each checkpoint, by its id."""
    return {
        found.checkpoint["id"]: (
            found.config,
            found.parent_config,
            found.checkpoint["channel_values"],
            found.checkpoint["channel_versions"],
            found.checkpoint["versions_seen"],
            found.metadata,
            found.pending_writes,
        )
        for found in saver.list(config("t"))
    }


@pytest.mark.parametrize(("table", "column", "key"), COLUMNS, ids=lambda part: str(part))
def test_any_flipped_bit_is_harmless_or_reported(
    path: Path, table: str, column: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Never a wrong value, never one missing without a warning that names it, and never an error that is not ours."""
    with threadkeep.open(f"sqlite:///{path}") as keep:
        chain = Chain(keep.checkpointer)
        for n in range(3):
            at = chain.put({"log": [line(k, 60) for k in range(n + 2)], "text": line(50 + n, 60), "n": n}, user="ada")
            keep.checkpointer.put_writes(at, [("log", line(60 + n, 60)), ("n", n)], "task")
        right = read_all(keep.checkpointer)
    rows = ask(path, f"SELECT {key}, CAST({column} AS BLOB) FROM {table}")
    kind = ask(path, f"SELECT typeof({column}) FROM {table} LIMIT 1")[0][0]
    chance, database = random.Random(4), apsw.Connection(str(path))
    wrong = []
    for at, data in rows:
        for position in range(len(data)):
            flipped = bytearray(data)
            flipped[position] ^= 1 << chance.randrange(8)
            database.execute(f"UPDATE {table} SET {column} = CAST(? AS {kind}) WHERE {key} = ?", (bytes(flipped), at))
            with threadkeep.open(f"sqlite:///{path}") as cold:
                caplog.clear()
                try:
                    found = read_all(cold.checkpointer)
                except Exception as error:
                    wrong.append((at, position, repr(error)))
                    continue
            named = {id for id in right if f"'{id}' of namespace '' in thread 't'" in caplog.text}
            if found != {id: each for id, each in right.items() if id not in named}:
                wrong.append((at, position, "another value"))
        database.execute(f"UPDATE {table} SET {column} = CAST(? AS {kind}) WHERE {key} = ?", (bytes(data), at))
    database.close()
    assert wrong == []


def test_a_damaged_thread_may_still_be_deleted(stored_file: Path) -> None:
    for what in ("a payload", "the body of a checkpoint", "the body of writes", "names that are gone"):
        damaged(stored_file, DAMAGE[what])
    with threadkeep.open(f"sqlite:///{stored_file}") as keep:
        keep.checkpointer.delete_thread(THREADS[0])
        assert [info.id for info in keep.threads()] == [THREADS[1]]
        assert keep.checkpointer.get_tuple(config(THREADS[1])) is not None
