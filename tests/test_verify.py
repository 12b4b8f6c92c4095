"""verify finds every kind of damage, on every backend, never stops at it, and reports nothing if nothing is wrong."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import apsw
import pytest
from cubeloop.providers.base import TextContent, UserMessage
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint

import graph_scenarios
import threadkeep
import valkey_servers
from damage import SqlRows, StoredRows, ValkeyRows, flip_byte, rows_opener
from sync_async import Caller, SyncCaller
from test_delta_graphs import build as delta_graph
from threadkeep.backends.valkey import rows as valkey_rows
from threadkeep.backends.valkey.memories import NUMBER_OFFSET, ValkeyMemories
from threadkeep.conformance.store.embedder import embed
from threadkeep.engine.health import verify_items
from threadkeep.engine.log.itemlog import NAMES, RANGE_LISTS, SHARED, ItemId, ItemRange
from threadkeep.engine.memories.namespaces import MemoryKey, memory_number
from threadkeep.engine.memories.words import mark
from threadkeep.errors import Corrupt, Missing

SEED = "seed"
THREAD = {
    "configurable": {"thread_id": SEED},
    "run_id": "00000000-0000-0000-0000-000000000007",
    "metadata": {"user": "u1"},
}


def seeded(keep: threadkeep.Keep) -> None:
    """Write a thread with messages, range lists, labels, runs and writes."""
    graph = graph_scenarios.chat(graph_scenarios.replies)(keep.checkpointer)
    for n in range(2):
        graph.invoke({"messages": [HumanMessage(f"question {n} " * 60, id=f"h{n}")]}, THREAD)
    for word, step in (("said", 1), ("edited", 2)):  # every second one differs, so the list gets many ranges
        edited = [AIMessage(f"{word} {n} " * 40, id=f"e{n}") for n in range(0, 40, step)]
        graph.update_state(THREAD, {"messages": edited}, as_node="answer")
    graph.invoke({"messages": [HumanMessage("the end", id="end")]}, THREAD)


def state_item(rows: StoredRows) -> ItemId:
    """Return an item of the newest checkpoint's messages."""
    used = [run for run in rows.root()[-1].refs if run.lane > SHARED]
    return ItemId(used[0].lane, used[0].start)


def shape_of(rows: StoredRows) -> ItemId:
    return ItemId(SHARED, rows.root()[-1].refs[0].start)


def labels_of(rows: StoredRows) -> ItemId:
    return ItemId(SHARED, rows.root()[-1].labels)


def run_list(rows: StoredRows) -> ItemId:
    return min(at for at in rows.items() if at.lane == RANGE_LISTS)


def flip_item(find: Callable[[StoredRows], ItemId]) -> Callable[[StoredRows], None]:
    def damage(rows: StoredRows) -> None:
        at = find(rows)
        rows.set_item(at, flip_byte(rows.items()[at]))

    return damage


def lose_item(find: Callable[[StoredRows], ItemId]) -> Callable[[StoredRows], None]:
    return lambda rows: rows.set_item(find(rows), None)


def swap_items(rows: StoredRows) -> None:
    items = rows.items()
    lane = state_item(rows).lane
    one, other = sorted(at for at in items if at.lane == lane)[:2]
    rows.set_item(one, items[other])
    rows.set_item(other, items[one])


def change_checkpoint(n: int, change: Callable[[Any], Any]) -> Callable[[StoredRows], None]:
    def damage(rows: StoredRows) -> None:
        row = rows.root()[n]
        rows.set_checkpoint(row, change(row))

    return damage


def change_writes(change: Callable[[Any], Any]) -> Callable[[StoredRows], None]:
    def damage(rows: StoredRows) -> None:
        row = max(rows.writes(), key=lambda each: each.checkpoint)
        rows.set_writes(row, change(row))

    return damage


def change_thread(change: Callable[[Any], Any]) -> Callable[[StoredRows], None]:
    return lambda rows: rows.set_thread(change(rows.thread()))


DAMAGES: dict[str, tuple[Callable[[StoredRows], None], str]] = {
    "an item is flipped": (flip_item(state_item), "checksum"),
    "an item is cut short": (lambda rows: rows.set_item(state_item(rows), b"\x00"), "checksum"),
    "an item is gone": (lose_item(state_item), "missing item"),
    "two items are swapped": (swap_items, "checksum"),
    "a name is flipped": (flip_item(lambda rows: ItemId(NAMES, 1)), "checksum"),
    "a name is gone": (lose_item(lambda rows: ItemId(NAMES, 1)), "missing item"),
    "labels are flipped": (flip_item(labels_of), "checksum"),
    "labels are gone": (lose_item(labels_of), "missing item"),
    "a shape is flipped": (flip_item(shape_of), "checksum"),
    "a shape is gone": (lose_item(shape_of), "undecodable"),
    "a run list is flipped": (flip_item(run_list), "checksum"),
    "a run list is gone": (lose_item(run_list), "undecodable"),
    "a body is flipped": (change_checkpoint(-1, lambda row: row._replace(body=flip_byte(row.body))), "checksum"),
    "a body is empty": (change_checkpoint(-1, lambda row: row._replace(body=b"")), "checksum"),
    "refs are others": (
        change_checkpoint(-1, lambda row: row._replace(refs=(*row.refs, ItemRange(3, 0, 1)))),
        "checksum",
    ),
    "a parent is another": (change_checkpoint(-1, lambda row: row._replace(parent="nobody")), "checksum"),
    "a step is another": (change_checkpoint(2, lambda row: row._replace(step=99)), "checksum"),
    "a visible one is hidden": (change_checkpoint(2, lambda row: row._replace(hidden=True)), "checksum"),
    "a middle checkpoint is gone": (change_checkpoint(2, lambda row: None), "missing parent"),
    "the newest checkpoint is gone": (change_checkpoint(-1, lambda row: None), "catalogue"),
    "writes are flipped": (change_writes(lambda row: row._replace(body=flip_byte(row.body))), "checksum"),
    "writes have other refs": (change_writes(lambda row: row._replace(refs=(ItemRange(3, 0, 1),))), "checksum"),
    "writes have another index": (change_writes(lambda row: row._replace(index=(*row.index, 7, 0, 1))), "checksum"),
    "writes have another path": (change_writes(lambda row: row._replace(path="elsewhere")), "checksum"),
    "writes are gone": (change_writes(lambda row: None), "counter"),
    "checkpoints are miscounted": (change_thread(lambda row: row._replace(checkpoints=row.checkpoints + 1)), "counter"),
    "writes are miscounted": (change_thread(lambda row: row._replace(writes=0)), "counter"),
    "bytes are miscounted": (change_thread(lambda row: row._replace(bytes=row.bytes - 1)), "counter"),
    "items are not counted": (change_thread(lambda row: row._replace(nexts=(*row.nexts[:-1], 0))), "counter"),
    "another one is the newest": (change_thread(lambda row: row._replace(top="0")), "catalogue"),
    "a status is another": (change_thread(lambda row: row._replace(status="error")), "catalogue"),
    "labels of the row are others": (change_thread(lambda row: row._replace(labels=99)), "catalogue"),
    "indexes forgot it": (lambda rows: rows.delete_index_entries(), "index"),
}


@pytest.fixture
def seeded_keep(url: str) -> Any:
    with threadkeep.open(url, durability="relaxed") as keep:
        seeded(keep)
        yield keep


def test_every_damage_is_found_and_none_hides_another(seeded_keep: threadkeep.Keep, url: str) -> None:
    keep, rows_of = seeded_keep, rows_opener(url)
    for n in range(len(DAMAGES)):
        assert keep.copy(SEED, f"damaged {n:02}")
    assert keep.verify().problems == []
    for n, (damage, _) in enumerate(DAMAGES.values()):
        damage(rows_of(keep, f"damaged {n:02}"))
    verified = keep.verify()
    found = {f"damaged {n:02}": set() for n in range(len(DAMAGES))}
    for problem in verified.problems:
        assert problem.thread is not None, problem
        found[problem.thread].add(problem.problem)
    missed = [name for n, (name, (_, kind)) in enumerate(DAMAGES.items()) if kind not in found[f"damaged {n:02}"]]
    assert missed == []
    assert verified.threads == len(DAMAGES) + 1
    assert keep.verify(SEED).problems == []
    alone = keep.verify("damaged 02")
    assert {problem.problem for problem in alone.problems} == found["damaged 02"]
    assert {problem.thread for problem in keep.verify(prefix="damaged 1").problems} == {
        f"damaged 1{n}" for n in range(10)
    }


def test_items_are_read_in_slices_and_the_slice_does_not_matter(
    seeded_keep: threadkeep.Keep, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = seeded_keep
    whole = keep.verify()
    monkeypatch.setattr(verify_items, "SLICE", 600)
    assert keep.verify() == whole
    rows = rows_opener(url)(keep, SEED)
    flip_item(state_item)(rows)
    assert [problem.problem for problem in keep.verify().problems] == ["checksum"]


def test_all_that_graphs_do_verifies(url: str) -> None:
    """Scenarios, forks, delta channels, prunes, deleted runs, copies, cube threads, memories: nothing is wrong."""
    with threadkeep.open(url, index={"dims": 8, "embed": embed, "fields": ["text"]}) as keep:
        played = list(graph_scenarios.SCENARIOS)[:: 1 if url.startswith(("memory", "sqlite")) else 4]
        asyncio.run(_all_that_graphs_do(keep, played))
        verified = keep.verify()
        assert verified.problems == []
        assert (verified.threads, verified.memories) == (len(played) + 6, 12)
        assert keep.compact().skipped == []
        assert asyncio.run(keep.averify()).problems == []


async def _all_that_graphs_do(keep: threadkeep.Keep, played: list[str]) -> None:
    for name in played:
        play = graph_scenarios.SCENARIOS[name]
        await play.run(SyncCaller(), play.build(Renamed(keep.checkpointer, name)))
    graph = delta_graph(keep.checkpointer)
    for thread in ("delta", "pruned", "runs"):
        for n in range(3):
            config = {"configurable": {"thread_id": thread}, "run_id": f"00000000-0000-0000-0000-00000000000{n}"}
            graph.invoke({"messages": [HumanMessage(f"q{n}" * 300)]}, config)
    keep.prune("pruned")
    keep.checkpointer.delete_for_runs(["00000000-0000-0000-0000-000000000001"])
    keep.copy("delta", "copied")
    for n in range(40):
        await keep.cube.append("talk", [UserMessage(content=[TextContent(text=f"{n} " * 200)])])
    keep.copy("talk", "talk copied")
    for n in range(12):
        keep.store.put(("notes", str(n % 3)), f"k{n}", {"text": f"word {n}", "n": n})
    keep.store.delete(("notes", "0"), "k0")
    keep.store.put(("notes", "0"), "k0", {"text": "back"})


class Renamed(BaseCheckpointSaver[Any]):
    """A saver whose thread has another id, so that many scenarios share a storage."""

    def __init__(self, saver: Any, name: str) -> None:
        super().__init__(serde=saver.serde)
        self._saver, self._name = saver, name

    def _there(self, config: Any) -> Any:
        return {**config, "configurable": {**config["configurable"], "thread_id": self._name}} if config else config

    def get_tuple(self, config: Any) -> Any:
        return self._saver.get_tuple(self._there(config))

    def list(self, config: Any, **options: Any) -> Any:
        return self._saver.list(self._there(config), **options)

    def put(self, config: Any, *given: Any) -> Any:
        return self._saver.put(self._there(config), *given)

    def put_writes(self, config: Any, *given: Any) -> None:
        self._saver.put_writes(self._there(config), *given)

    def get_next_version(self, current: Any, channel: Any) -> Any:
        return self._saver.get_next_version(current, channel)


def test_a_copy_is_found_by_every_run_that_left_something_in_its_source(url: str) -> None:
    """Also by a run that only added to another run's writes."""
    with threadkeep.open(url, durability="relaxed") as keep:
        saver = keep.checkpointer
        runs = [f"00000000-0000-0000-0000-00000000000{n}" for n in (1, 2)]
        where = saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
        for run, writes in zip(runs, ([("a", 1)], [("a", 1), ("b", 2)]), strict=True):
            saver.put_writes({**where, "metadata": {"run_id": run}}, writes, "task")
        assert keep.copy("t", "copied")
        assert keep.verify().problems == []
        saver.delete_for_runs(runs[1:])
        assert [info.writes for info in keep.threads(order="id")] == [1, 1]


RAW = {
    "refs": ("UPDATE tk_checkpoints SET refs = :bad WHERE thread = :number", "undecodable"),
    "a parent": ("UPDATE tk_checkpoints SET parent = :bad WHERE thread = :number", "undecodable"),
    "a checkpoint's id": (
        (
            "UPDATE tk_checkpoints SET id = :bad WHERE thread = :number AND id = "
            "(SELECT max(id) FROM tk_checkpoints WHERE thread = :number)"
        ),
        "undecodable",
    ),
    "entries": ("UPDATE tk_writes SET entries = 'no JSON' WHERE thread = :number", "undecodable"),
    "a task": ("UPDATE tk_writes SET path = :bad WHERE thread = :number", "undecodable"),
    "a thread's id": ("UPDATE tk_threads SET id = :bad WHERE thread = :number", "catalogue"),
    "a thread's kind": ("UPDATE tk_threads SET kind = 'grap' WHERE thread = :number", "catalogue"),
    "counters of lanes": ("UPDATE tk_threads SET nexts = :bad WHERE thread = :number", "catalogue"),
    "the thread's row": ("DELETE FROM tk_threads WHERE thread = :number", "catalogue"),
}


def test_invalid_columns_are_reported_and_stop_nothing(tables_url: str) -> None:
    url = tables_url
    with threadkeep.open(url, durability="relaxed") as keep:
        seeded(keep)
        for n, name in enumerate(RAW):
            keep.copy(SEED, f"damaged {n}")
            rows = rows_opener(url)(keep, f"damaged {n}")
            assert isinstance(rows, SqlRows)
            sql, _ = RAW[name]
            bad = b"\xff\xfe" if name != "counters of lanes" else b"\xff"
            if name == "refs" and url.startswith("postgres"):
                bad = "1,2"  # type: ignore[assignment]
            given = {name: value for name, value in (("number", rows.number), ("bad", bad)) if f":{name}" in sql}
            rows.execute(sql, given)
        verified = keep.verify()
        kinds = {problem.problem for problem in verified.problems}
        assert kinds <= {"undecodable", "catalogue", "missing parent", "counter"}
        for n, (name, (_, kind)) in enumerate(RAW.items()):
            read_all = [
                p
                for p in verified.problems
                if p.thread == f"damaged {n}" or (name in ("a thread's id", "the thread's row") and p.problem == kind)
            ]
            assert kind in {problem.problem for problem in read_all}, name
        assert not any(problem.thread == SEED for problem in verified.problems)


def test_a_wrong_entry_in_the_index_by_time_is_reported(tables_url: str) -> None:
    with threadkeep.open(tables_url, durability="relaxed") as keep:
        seeded(keep)
        keep.copy(SEED, "copied")
        rows = rows_opener(tables_url)(keep, SEED)
        assert isinstance(rows, SqlRows)
        assert keep.verify().problems == []
        rows.execute("UPDATE tk_threads SET tick = tick + 1 WHERE thread = :number", {"number": rows.number})
        assert [problem.thread for problem in keep.verify().problems] == [SEED]


def test_invalid_rows_of_valkey_are_reported_and_refused_as_corrupt() -> None:
    url = valkey_servers.shared().url()
    with threadkeep.open(url, durability="relaxed") as keep:
        seeded(keep)
        rows = rows_opener(url)(keep, SEED)
        assert isinstance(rows, ValkeyRows)
        newest = rows.root()[-1]
        for copied in ("row", "checkpoint", "place", "hash"):
            keep.copy(SEED, copied)
        at = {name: rows_opener(url)(keep, name) for name in ("row", "checkpoint", "place", "hash")}
        at["row"]._set(b"r", b"nonsense")  # type: ignore[attr-defined]
        at["checkpoint"]._set(valkey_rows.checkpoint_field("", newest.id), b"nonsense")  # type: ignore[attr-defined]
        at["place"].client.zrem(at["place"].order, valkey_rows.checkpoint_field("", newest.id))  # type: ignore[attr-defined]
        at["hash"].client.delete(at["hash"].hash)  # type: ignore[attr-defined]
        found = {(problem.thread, problem.problem) for problem in keep.verify().problems}
        assert {("row", "catalogue"), ("checkpoint", "undecodable"), ("place", "index"), ("hash", "index")} <= found
        assert not any(thread == SEED for thread, _ in found)
        with pytest.raises(Corrupt, match="'checkpoint'"):
            keep.checkpointer.get_tuple({"configurable": {"thread_id": "checkpoint"}})


def test_damaged_memories_are_reported(tables_url: str) -> None:
    with threadkeep.open(tables_url, index={"dims": 8, "embed": embed, "fields": ["text"]}) as keep:
        for n in range(6):
            keep.store.put(("notes",), f"k{n}", {"text": f"word {n}"})
        seeded(keep)
        assert keep.verify().problems == []
        execute: Any = rows_opener(tables_url)(keep, SEED).execute  # type: ignore[attr-defined]
        numbers = [row[0] for row in execute("SELECT memory FROM tk_memories ORDER BY memory", {})]
        execute("DELETE FROM tk_memories WHERE memory = :memory", {"memory": numbers[0]})
        execute(
            "UPDATE tk_memories SET space = :space WHERE memory = :memory", {"memory": numbers[1], "space": b"\xff"}
        )
        execute("UPDATE tk_memories SET key = :key WHERE memory = :memory", {"memory": numbers[2], "key": b"other"})
        execute("UPDATE tk_vectors SET field = 5 WHERE memory = :memory", {"memory": numbers[3]})
        problem_messages = [problem.message for problem in keep.verify().problems]
        assert all(problem.problem == "memory" for problem in keep.verify().problems)
        for words in ("which does not exist", "cannot be read", "of another memory", "vectors are missing"):
            assert any(words in each for each in problem_messages), (words, problem_messages)


def set_entry(url: str, keep: threadkeep.Keep, key: str, entry: bytes) -> None:
    """Change the entry of a memory of the namespace `notes` in the words of Valkey."""
    client: Any = rows_opener(url)(keep, SEED).client  # type: ignore[attr-defined]
    part = ValkeyMemories(parse_qs(urlsplit(url).query)["prefix"][0].encode())._part("", "notes")
    client.hset(part.keys[6], b"%016x" % (memory_number("", MemoryKey(("notes",), key)) + NUMBER_OFFSET), entry)


def set_words(url: str, keep: threadkeep.Keep, key: str, counts: dict[str, int]) -> None:
    """Change the words of a memory of the namespace `notes` in the index, behind the Keep."""
    number = memory_number("", MemoryKey(("notes",), key))
    if url.startswith("valkey"):
        set_entry(url, keep, key, b"%d:%s %s " % (len(key), key.encode(), mark(counts).encode()))
        return
    execute: Any = rows_opener(url)(keep, SEED).execute  # type: ignore[attr-defined]
    if url.startswith("sqlite"):
        execute(
            "INSERT OR REPLACE INTO tk_words (rowid, words) SELECT n, :words FROM tk_memories WHERE memory = :memory",
            {"words": mark(counts), "memory": number},
        )
        return
    words = " ".join(f"{word}:{','.join(map(str, range(1, count + 1)))}" for word, count in counts.items())
    execute(
        "UPDATE tk_memories SET words = CAST(:words AS tsvector) WHERE memory = :memory",
        {"words": words, "memory": number},
    )


@pytest.mark.parametrize("index", [None, {"search": "text"}], ids=["no index", "words"])
@pytest.mark.parametrize(
    ("counts", "is_served"),
    [({"green": 1, "tea": 3}, False), ({"green": 1, "milk": 1, "tea": 2}, False), ({"tea": 2}, True), ({}, True)],
    ids=["more often", "one more", "one less", "none"],
)
def test_damaged_words_are_reported_and_what_is_not_in_the_value_is_never_served(
    lasting_url: str, index: Any, counts: dict[str, int], is_served: bool
) -> None:
    with threadkeep.open(lasting_url, index=index) as keep:
        keep.store.put(("notes",), "good", {"text": "tea, green tea, milk"})
        keep.store.put(("notes",), "k", {"text": "tea and green tea"}, index=["text"])
        seeded(keep)
        assert keep.verify().problems == []
        set_words(lasting_url, keep, "k", counts)
        (problem,) = keep.verify().problems
        assert problem.problem == "memory"
        assert "'k' in notes: its words in the index" in problem.message
        if is_served:
            assert keep.store.search(("notes",), query="green milk tea")[0].key == "good"
            return
        with pytest.raises(Corrupt, match="memory 'k' in"):
            keep.store.search(("notes",), query="green milk tea")


def test_words_that_cannot_be_read_are_an_error() -> None:
    url = valkey_servers.shared().url()
    with threadkeep.open(url) as keep:
        keep.store.put(("notes",), "good", {"text": "tea"})
        for entry in (b"tea", b"9", b"1:k tea\xee", b"1:k tea\xee\x7f\x80 "):
            keep.store.put(("notes",), "k", {"text": "tea"})
            set_entry(url, keep, "k", entry)
            with pytest.raises(Corrupt, match="memory 'k' in"):
                keep.store.search(("notes",), query="tea")
            assert "'k' in notes" in keep.verify().problems[0].message


def test_words_of_no_memory_are_reported(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        keep.store.put(("notes",), "k", {"text": "tea"})
        keep.store.put(("notes",), "wordless", {"text": "tea"}, index=False)
        seeded(keep)
        set_words(lasting_url, keep, "wordless", {"tea": 1})
        (problem,) = keep.verify().problems
        assert "'wordless' in notes: its words in the index" in problem.message


def test_words_that_were_merged_since_the_last_check_are_not_called_damaged(lasting_url: str) -> None:
    """SQLite's check of a full-text index trusts what its connection knew of the index before others changed it."""
    with threadkeep.open(lasting_url) as keep:
        for n in range(40):
            keep.store.put(("notes",), f"k{n}", {"text": f"word{n}"})
            assert keep.verify().problems == []


def test_a_file_with_any_byte_changed_is_verified_and_what_verifies_can_be_read(tmp_path: Path) -> None:
    """Flip bytes of columns and of the file: verify never raises, and finds nothing only if all reads are as before."""
    original = tmp_path / "original.db"
    with threadkeep.open(f"sqlite:///{original}", durability="relaxed") as keep:
        seeded(keep)
        keep.store.put(("notes",), "k", {"text": "word"})
        before = read_all(keep)
    chance = random.Random(7)
    found = 0
    for n in range(40):
        damaged = tmp_path / f"damaged{n}.db"
        shutil.copy(original, damaged)
        (spoil_column if n % 2 else spoil_byte)(damaged, chance)
        with threadkeep.open(f"sqlite:///{damaged}", read_only=True) as keep:
            problems = keep.verify().problems
            found += bool(problems)
            if not problems:
                assert read_all(keep) == before
        damaged.unlink()
    assert found > 15


def read_all(keep: threadkeep.Keep) -> list[Any]:
    return [(found.checkpoint, found.pending_writes) for found in keep.checkpointer.list(None)]


def spoil_column(path: Path, chance: random.Random) -> None:
    columns = {
        "tk_items": ["payload"],
        "tk_checkpoints": ["body", "refs", "parent"],
        "tk_writes": ["body", "refs", "path"],
        "tk_threads": ["nexts", "top"],
    }
    table = chance.choice(list(columns))
    column = chance.choice(columns[table])
    connection = apsw.Connection(str(path))
    keys = (
        "rowid"
        if table in ("tk_items", "tk_threads")
        else "thread, ns, id"
        if table == "tk_checkpoints"
        else "thread, ns, checkpoint, task"
    )
    rows = connection.execute(f"SELECT {column}, {keys} FROM {table} WHERE length({column}) > 0").fetchall()
    data, *key = chance.choice(rows)
    where = " AND ".join(f"{name} = ?" for name in keys.split(", "))
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (flip_byte(data, chance.random()), *key))
    connection.close()


def spoil_byte(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(flip_byte(data, chance.random()))


def test_a_file_that_is_no_database_any_more_is_a_problem_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        seeded(keep)
    data = path.read_bytes()
    for spoiled in (b"\0" * 100 + data[100:], data[: len(data) // 2], data[:4096] + bytes(4096) + data[8192:]):
        path.write_bytes(spoiled)
        with threadkeep.open(f"sqlite:///{path}", read_only=True) as keep:
            assert "database" in {problem.problem for problem in keep.verify().problems}


async def test_wrong_arguments_and_progress(url: str, call: Caller) -> None:
    async with threadkeep.open(url, durability="relaxed") as keep:
        with pytest.raises(Missing, match="'nobody'"):
            await call(keep, "verify", "nobody")
        with pytest.raises(ValueError, match="not both"):
            await call(keep, "verify", "a", prefix="b")
        with pytest.raises(ValueError, match="kind"):
            await call(keep, "verify", kind="dog")
        with pytest.raises(TypeError):
            await call(keep, "verify", prefix=None)
        graph = graph_scenarios.letters(keep.checkpointer)
        for id in ("a", "b", "c"):
            await call(graph, "invoke", {"foo": ""}, {"configurable": {"thread_id": id}})
        progress: list[tuple[int, int | None, str]] = []
        verified = await call(keep, "verify", kind="graph", on_progress=lambda *read_all: progress.append(read_all))
        assert (verified.threads, verified.ok) == (3, True)
        assert [read_all for read_all in progress if read_all[1] is not None] == [(0, 3, "a"), (1, 3, "b"), (2, 3, "c")]
