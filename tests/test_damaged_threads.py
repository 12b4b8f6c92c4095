"""What is read of a damaged thread is right or raises Corrupt, and verify reports what is missing; on every backend."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import threadkeep
from checkpoint_chains import Chain, config, values_of
from damage import SqlRows, StoredRows, ValkeyRows, mislead_index, rows_opener
from data import make_schema_4
from threadkeep.engine.log.itemlog import SHARED, ItemId
from threadkeep.errors import Corrupt


def filled(keep: threadkeep.Keep, id: str, values: int = 3) -> Chain:
    """Put some checkpoints with writes into a thread."""
    chain = Chain(keep.checkpointer, id)
    for n in range(values):
        stored = chain.put({"log": [f"{id} {each} " * 30 for each in range(n + 1)]}, user=id)
        keep.checkpointer.put_writes(stored, [("log", f"{id} writes {n} " * 20)], "task")
    return chain


def interrupted(keep: threadkeep.Keep, id: str = "asks") -> None:
    """Run a graph until it waits for an answer."""
    builder = StateGraph(MessagesState)
    builder.add_node("ask", lambda state: {"messages": [interrupt("go on?")]})
    builder.add_edge(START, "ask")
    builder.compile(checkpointer=keep.checkpointer).invoke({"messages": [HumanMessage("hello")]}, config(id))


@pytest.fixture
def rows_of(keep: threadkeep.Keep, url: str) -> Callable[[str], StoredRows]:
    """Opens the stored rows of a thread; the Keep forgets what it has cached."""
    opener = rows_opener(url)

    def rows(id: str) -> StoredRows:
        keep._session.heads.clear()
        return opener(keep, id)

    return rows


def reads(keep: threadkeep.Keep, id: str) -> Iterator[Callable[[], object]]:
    """Everything that reads a thread by its id."""
    saver = keep.checkpointer
    yield lambda: saver.get_tuple(config(id))
    yield lambda: Chain(saver, id).put({"log": ["new"]}, id="99999999")
    yield lambda: saver.put_writes(config(id, "00000002"), [("log", "x")], "other")
    yield lambda: keep.thread(id)
    yield lambda: keep.log(id)
    yield lambda: keep.copy(id, "a copy")
    yield lambda: keep.fork(id)
    yield lambda: keep.prune(id)


def assert_refused(keep: threadkeep.Keep, id: str) -> None:
    for read in reads(keep, id):
        keep._session.heads.clear()
        with pytest.raises(Corrupt, match=repr(id)):
            read()


# --- rows of other threads


def test_the_row_of_another_thread_is_refused(
    keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows]
) -> None:
    for id in ("first", "aa", "bb"):
        filled(keep, id)
    expected = values_of(keep.checkpointer, "first")
    rows_of("aa").show_instead_of(rows_of("bb"))
    keep._session.heads.clear()
    assert_refused(keep, "bb")
    assert not keep.verify().ok
    assert values_of(keep.checkpointer, "first") == expected


def test_one_changed_byte_in_the_index_of_threads_of_a_file_serves_no_other_thread(tmp_path: Path) -> None:
    path = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        for id in ("first", "aaaa", "bbbb"):
            filled(keep, id)
        expected = values_of(keep.checkpointer, "aaaa")
    mislead_index(path, "bbbb", "aaaa")
    with threadkeep.open(f"sqlite:///{path}") as keep:
        assert_refused(keep, "bbbb")
        with pytest.raises(Corrupt, match="'bbbb'"):
            keep.checkpointer.delete_thread("bbbb")
        assert values_of(keep.checkpointer, "aaaa") == expected
        problems = keep.verify().problems
        assert any(problem.thread == "bbbb" for problem in problems), problems
        assert any(problem.problem == "database" for problem in problems), problems


def test_rows_and_items_of_another_thread_are_refused(
    keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows]
) -> None:
    damages: list[Callable[[StoredRows, StoredRows], None]] = [
        lambda mine, theirs: mine.set_checkpoint(mine.root()[-1], theirs.root()[-1]),
        lambda mine, theirs: mine.set_writes(last_writes(mine), last_writes(theirs)),
        *(_replace_item(find) for find in (_value_item, _shape_item, _labels_item)),
    ]
    for n, damage in enumerate(damages):
        filled(keep, f"mine {n}")
        filled(keep, f"theirs {n}")
        damage(rows_of(f"mine {n}"), rows_of(f"theirs {n}"))
        keep._session.heads.clear()
        with pytest.raises(Corrupt, match=f"mine {n}"):
            keep.checkpointer.get_tuple(config(f"mine {n}"))
        assert {problem.problem for problem in keep.verify(f"mine {n}").problems} & {"checksum", "undecodable"}
        assert keep.verify(f"theirs {n}").ok


def last_writes(rows: StoredRows) -> Any:
    return max(rows.writes(), key=lambda row: row.checkpoint)


def _replace_item(find: Callable[[StoredRows], ItemId]) -> Callable[[StoredRows, StoredRows], None]:
    return lambda mine, theirs: mine.set_item(find(mine), theirs.items()[find(mine)])


def _value_item(rows: StoredRows) -> ItemId:
    ref = next(ref for ref in rows.root()[-1].refs if ref.lane > SHARED)
    return ItemId(ref.lane, ref.start)


def _shape_item(rows: StoredRows) -> ItemId:
    return ItemId(SHARED, rows.root()[-1].refs[0].start)


def _labels_item(rows: StoredRows) -> ItemId:
    return ItemId(SHARED, rows.root()[-1].labels)


def test_copies_and_forks_can_be_read_and_written(keep: threadkeep.Keep, url: str) -> None:
    """They keep the family of their source, whose rows and items they have."""
    chain = filled(keep, "source")
    keep.copy("source", "copy")
    keep.fork("source", to="fork")
    keep.copy("source", "fork")
    for id in ("source", "copy", "fork"):
        keep._session.heads.clear()
        assert values_of(keep.checkpointer, id) == chain._values
        Chain(keep.checkpointer, id).put({"log": ["more"]}, id="99999999")
        assert values_of(keep.checkpointer, id) == {"log": ["more"]}
    keep.rollback("copy", "00000001")
    assert keep.verify().problems == []


# --- missing rows


def test_a_missing_row_of_the_newest_writes_is_no_lost_interrupt(
    keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows]
) -> None:
    interrupted(keep)
    rows = rows_of("asks")
    newest = last_writes(rows)
    assert newest.checkpoint == rows.thread().top
    rows.set_writes(newest, None)
    keep._session.heads.clear()
    assert keep.threads()[0].status == "interrupted"
    for id in (None, newest.checkpoint):
        with pytest.raises(Corrupt, match="writes on checkpoint .* of thread 'asks' are missing"):
            keep.checkpointer.get_tuple(config("asks", id))
    assert {"counter", "catalogue"} <= {problem.problem for problem in keep.verify().problems}


def test_early_writes_are_missed_once_their_checkpoint_is_put(
    keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows]
) -> None:
    chain = filled(keep, "t")
    for task in ("one", "two", "one"):
        keep.checkpointer.put_writes(config("t", "00000003"), [("log", "early")], task)
    rows = rows_of("t")
    assert (rows.thread().early_writes, rows.thread().top_writes) == (2, 1)
    rows.set_writes(last_writes(rows), None)
    chain.put({"log": ["next"]})
    assert rows_of("t").thread().top_writes == 2
    with pytest.raises(Corrupt, match="of 2 tasks 1 are there"):
        keep.checkpointer.get_tuple(config("t"))


def test_a_missing_newest_checkpoint_is_not_replaced_by_an_older_one(
    keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows]
) -> None:
    filled(keep, "t")
    rows = rows_of("t")
    rows.set_checkpoint(rows.root()[-1], None)
    keep._session.heads.clear()
    for id in (None, "00000002"):
        with pytest.raises(Corrupt, match="'00000002' of thread 't' is missing although"):
            keep.checkpointer.get_tuple(config("t", id))
        with pytest.raises(Corrupt, match="'00000002' of thread 't' is missing although"):
            keep.checkpointer.get_delta_channel_history(config=config("t", id), channels=["log"])
    assert values_of(keep.checkpointer, "t", "00000001")
    assert {"counter", "catalogue"} <= {problem.problem for problem in keep.verify().problems}


async def test_a_missing_checkpoint_of_a_cube_thread_is_not_replaced_by_an_older_one(
    keep: threadkeep.Keep, url: str
) -> None:
    for run in ("r1", "r2"):
        await keep.cube.claim_run("talk", run)
        await keep.cube.mark_run_complete("talk", run)
    rows = rows_opener(url)(keep, "talk", "cube")
    rows.set_checkpoint(rows.root()[-1], None)
    keep._session.heads.clear()
    with pytest.raises(Corrupt, match="'talk' is missing although"):
        await keep.cube.load("talk")
    with pytest.raises(Corrupt, match="'talk' is missing although"):
        await keep.cube.claim_run("talk", "r3")


def test_older_rows_and_those_of_subgraphs_that_are_missing_are_reported_and_not_copied(
    keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows]
) -> None:
    losses: dict[str, Callable[[StoredRows], None]] = {
        "a checkpoint": lambda rows: rows.set_checkpoint(rows.root()[0], None),
        "writes": lambda rows: rows.set_writes(min(rows.writes(), key=lambda row: (row.ns, row.checkpoint)), None),
        "the newest of a subgraph": lambda rows: rows.set_checkpoint(of_subgraph(rows.checkpoints()), None),
        "writes in a subgraph": lambda rows: rows.set_writes(of_subgraph(rows.writes()), None),
    }
    for name, lose in losses.items():
        filled(keep, name)
        child = Chain(keep.checkpointer, name, ns="child")
        for n in range(2):
            keep.checkpointer.put_writes(child.put({"log": [n]}), [("log", n)], "task")
        assert keep.verify(name).ok
        lose(rows_of(name))
        assert "counter" in {problem.problem for problem in keep.verify(name).problems}, name
        with pytest.raises(Corrupt, match=repr(name)):
            keep.copy(name, "a copy")
        with threadkeep.open("memory://") as other:
            assert threadkeep.convert(keep, other, thread_id=name).skipped == (name,)


def of_subgraph(rows: list[Any]) -> Any:
    return [row for row in rows if row.ns == "child"][-1]


def test_a_thread_whose_row_is_gone_is_reported(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        filled(keep, "t")
        rows_opener(lasting_url)(keep, "t").lose_thread()
        keep._session.heads.clear()
        assert not keep.verify().ok


def test_a_renamed_thread_is_reported_and_not_served(
    keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows]
) -> None:
    filled(keep, "t")
    rows_of("t").spoil_thread(id="x")
    keep._session.heads.clear()
    for id in ("t", "x"):
        with suppress(Corrupt):
            assert keep.checkpointer.get_tuple(config(id)) is None
    assert not keep.verify().ok


# --- damaged columns

COLUMNS: dict[str, Any] = {
    "epoch": 5, "nexts": (9, 9, 9, 9), "created": 7, "updated": 8, "checkpoints": 1, "writes": 0, "bytes": 1,
    "top": "00000001", "run": "r", "step": 7, "source": "x", "status": "error", "labels": 1, "early": "00000009",
    "early_status": "error", "family": 5, "top_writes": 0, "early_writes": 4,
}  # fmt: skip


def test_a_change_of_any_column_of_a_threads_row_is_refused_and_shown(
    keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows]
) -> None:
    intact = filled(keep, "intact")
    for column, value in COLUMNS.items():
        filled(keep, column)
        rows_of(column).spoil_thread(**{column: value})
        keep._session.heads.clear()
        with pytest.raises(Corrupt, match=f"the row of thread '{column}'"):
            keep.checkpointer.get_tuple(config(column))
        assert any("the row of" in problem.message for problem in keep.verify(column).problems), column
    for order in ("updated", "created", "bytes", "id"):
        listed = {thread.id: thread.status for thread in keep.threads(order=order, limit=100)}
        assert listed == {"intact": "pending", **dict.fromkeys(COLUMNS, "damaged")}
    assert [thread.id for thread in keep.threads(metadata={"user": "intact"})] == ["intact"]
    assert keep.stats().by_status["damaged"] == len(COLUMNS)
    assert values_of(keep.checkpointer, "intact") == intact._values
    for n, column in enumerate(COLUMNS):
        keep.delete(column) if n % 2 else keep.checkpointer.delete_thread(column)
    assert [thread.id for thread in keep.threads()] == ["intact"]
    assert keep.verify().ok


BAD_VALUES = (None, "text", b"\xff\xfe", 1.5, 1 << 60, -1)
TABLES = {
    "tk_threads": ("thread", "rowid"),
    "tk_checkpoints": ("body", "id"),
    "tk_writes": ("body", "checkpoint"),
    "tk_items": ("payload", "n"),
}
"""The columns by which a test finds a row: the first, or the second when the first is changed."""


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_values_of_any_type_in_a_file_are_right_or_corrupt(tmp_path: Path, every: int) -> None:
    """SQLite does not check the types of what it reads: a changed byte makes a text, or NULL, of a number."""
    path = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        filled(keep, "t")
    _allow_any_type(path)
    outcomes = {"right": 0, "raised": 0, "missing": 0}
    with threadkeep.open(f"sqlite:///{path}") as keep, closing(apsw.Connection(str(path))) as connection:
        ask = _questions(keep)
        expected = {name: answer() for name, answer in ask.items()}
        for place in _bad_values(connection, every):
            for name, answer in ask.items():
                keep._session.heads.clear()
                try:
                    found = answer()
                except Corrupt:
                    outcomes["raised"] += 1
                    continue
                if found == expected[name]:
                    outcomes["right"] += 1
                    continue
                assert all(each in expected[name] for each in found), (place, name, found)
                assert not keep.verify().ok, (place, name)
                outcomes["missing"] += 1
        assert {name: answer() for name, answer in ask.items()} == expected
    assert min(outcomes.values()) > 0, outcomes


def _allow_any_type(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for word in (", STRICT", " STRICT", " NOT NULL"):
            sql = "UPDATE sqlite_schema SET sql = replace(sql, ?, '') WHERE type = 'table' AND name = ?"
            connection.executemany(sql, [(word, table) for table in TABLES])


def _questions(keep: threadkeep.Keep) -> dict[str, Callable[[], list[Any]]]:
    saver = keep.checkpointer
    return {
        "latest": lambda: [each for each in [saver.get_tuple(config("t"))] if each],
        "by id": lambda: [each for each in [saver.get_tuple(config("t", "00000001"))] if each],
        "list": lambda: list(saver.list(config("t"))),
        "filtered": lambda: list(saver.list(None, filter={"user": "t"})),
        "threads": lambda: [thread for thread in keep.threads() if thread.status != "damaged"],
        "named": lambda: [thread for thread in keep.threads(prefix="t", order="id") if thread.status != "damaged"],
    }


def _bad_values(connection: apsw.Connection, every: int) -> Iterator[Any]:
    """Put bad values into the columns of a row of each table, or every n-th of them, and the right ones back."""
    number = count()
    for table, (marker, other) in TABLES.items():
        names = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]
        newest = "SELECT max(n) FROM tk_items WHERE lane = 3"
        condition = f"lane = 3 AND n = ({newest})" if table == "tk_items" else "true"
        last = connection.execute(
            f"SELECT * FROM {table} WHERE {condition} ORDER BY {names[2]} DESC LIMIT 1"
        ).fetchall()
        row = dict(zip(names, last[0], strict=True))
        for name in names:
            found_by = other if name == marker else marker
            for bad in (bad for bad in BAD_VALUES if next(number) % every == 0):
                where = f"WHERE {found_by} = ?" if found_by != "rowid" else "WHERE ? IS NOT NULL"
                if table == "tk_items" and found_by == "n":
                    where += " AND lane = 3"
                try:
                    connection.execute(f"UPDATE {table} SET {name} = ? {where}", (bad, row.get(found_by, 1)))
                except (apsw.ConstraintError, apsw.MismatchError):
                    continue
                yield table, name, bad
                connection.execute(f"UPDATE {table} SET {name} = ? {where}", (row[name], row.get(found_by, 1)))


# --- rows of older versions


def strip_facts(rows: StoredRows) -> None:
    """Make the row of a thread one of a threadkeep without checksums."""
    if isinstance(rows, SqlRows):
        rows.execute(
            "UPDATE tk_threads SET checksum = NULL, bytes_check = NULL, top_writes = NULL, early_writes = NULL "
            "WHERE thread = :number",
            {"number": rows.number},
        )
    elif isinstance(rows, ValkeyRows):
        fields = rows._fields()
        names, _, packed = fields[b"r"].partition(b"\n")
        rows._set(b"r", names.split(b",")[0] + b"\n" + packed)
        rows._set(b"b", fields[b"b"].partition(b":")[0])
    else:
        rows.spoil_thread(checksum=None, bytes_check=None, top_writes=None, early_writes=None)


def test_rows_of_older_versions_are_read_and_get_checksums_when_they_are_written(
    keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.engine.commit.new_family", lambda _: 0)
    chain = filled(keep, "t")
    strip_facts(rows_of("t"))
    keep._session.heads.clear()
    assert values_of(keep.checkpointer, "t") == chain._values
    assert keep.verify().problems == []
    keep.checkpointer.put_writes(config("t", "00000002"), [("log", "x")], "other")
    row = rows_of("t").thread()
    assert row.checksum is not None and (row.top_writes, row.family) == (None, 0)
    chain.put({"log": ["new"]})
    assert rows_of("t").thread().top_writes == 0
    assert values_of(keep.checkpointer, "t") == {"log": ["new"]}
    assert keep.verify().problems == []
    rows_of("t").spoil_thread(status="error")
    keep._session.heads.clear()
    with pytest.raises(Corrupt):
        keep.checkpointer.get_tuple(config("t"))


def test_a_row_that_an_older_version_changed_is_not_taken_for_damaged(
    keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows]
) -> None:
    """It changes revision, status and bytes, and knows nothing of the checksum and the numbers of writes."""
    chain = filled(keep, "t")
    rows = rows_of("t")
    rows.spoil_thread(rev=rows.thread().rev + 12345, status="idle", top_writes=7)
    if isinstance(rows, ValkeyRows):
        version = b"%d:%d" % rows.thread()[1:3]
        rows._set(b"v", version)
    keep._session.heads.clear()
    assert values_of(keep.checkpointer, "t") == chain._values
    chain.put({"log": ["new"]})
    assert values_of(keep.checkpointer, "t") == {"log": ["new"]}
    assert keep.verify().problems == []


def test_a_file_from_before_checksums_is_migrated_and_can_be_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    path.write_bytes(gzip.decompress((Path(make_schema_4.__file__).parent / "schema-4.sqlite.gz").read_bytes()))
    with threadkeep.open(f"sqlite:///{path}") as keep:
        graph = make_schema_4.graph(keep.checkpointer)
        for id in make_schema_4.THREADS:
            messages = graph.get_state(make_schema_4.config(id)).values["messages"]
            assert [message.id for message in messages][:4] == ["h0", "a1", "h1", "a3"]
            assert len(list(keep.checkpointer.list(config(id)))) == len(keep.log(id))
        assert graph.get_state(make_schema_4.config("waiting")).interrupts
        assert keep.verify().problems == []
        for id in make_schema_4.THREADS:
            graph.invoke({"messages": [HumanMessage("more", id="x")]}, make_schema_4.config(id))
        assert keep.verify().problems == []
    with closing(apsw.Connection(str(path))) as connection:
        facts = connection.execute("SELECT kind, checksum IS NULL, family FROM tk_threads").fetchall()
    assert sorted(facts) == [("cube", 1, 0), *[("graph", 0, 0)] * 3]


# --- repair


def test_repair_stores_a_damaged_row_of_a_thread_again(
    keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows]
) -> None:
    for column in (
        "checkpoints",
        "writes",
        "bytes",
        "top",
        "step",
        "status",
        "early",
        "top_writes",
    ):
        chain = filled(keep, column)
        rows_of(column).spoil_thread(**{column: COLUMNS[column]})
        keep._session.heads.clear()
        assert keep.repair(column, dry_run=True).thread_row
        assert not keep.verify(column).ok
        assert keep.repair(column).thread_row, column
        assert values_of(keep.checkpointer, column) == chain._values, column
        chain.put({"log": ["more"]})
        assert keep.repair(column).thread_row == ()
    assert keep.verify().problems == []


def test_after_repair_nothing_is_missing(keep: threadkeep.Keep, url: str, rows_of: Callable[[str], StoredRows]) -> None:
    losses: dict[str, Callable[[StoredRows], None]] = {
        "the newest checkpoint": lambda rows: rows.set_checkpoint(rows.root()[-1], None),
        "the newest writes": lambda rows: rows.set_writes(last_writes(rows), None),
        "the first writes": lambda rows: rows.set_writes(min(rows.writes(), key=lambda row: row.checkpoint), None),
    }
    for name, lose in losses.items():
        filled(keep, name)
        lose(rows_of(name))
        keep._session.heads.clear()
        assert not keep.verify(name).ok
        assert keep.repair(name).thread_row
        assert keep.checkpointer.get_tuple(config(name)) is not None
        assert keep.verify(name).problems == [], name
