"""The SQL views: the queries of their documentation run, and agree with the verbs, in SQLite and in PostgreSQL."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

import postgres_servers
import threadkeep
from checkpoint_chains import Chain
from conftest import BACKENDS
from memory_batches import location
from old_schemas import todays_columns, use_version
from rich_threads import config, write_cube_thread, write_thread
from test_postgres import schema_of
from test_store_opening import version
from threadkeep.backends.sql.blocks import read_blocks
from threadkeep.engine.identity import to_bytes
from threadkeep.engine.schema_versions import SCHEMA_VERSION
from threadkeep.errors import SchemaTooOld

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/sql-views.md"
WHO, NODES, CHANNELS, AGAINST, LARGEST, BRANCHES = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
VIEWS = ["tk_v_activity", "tk_v_checkpoints", "tk_v_sizes", "tk_v_threads", "tk_v_writes"]
SINCE = datetime(2026, 4, 1, tzinfo=UTC)
ODD = [
    "nul \0 in it",
    "\ud800 alone",
    "\udfff",
    "한국어 íí",
    "real \ufffd \ufffe \uffff 한",
    "^Ú\\x00 'q' %s {x}",
    "\U0001f99c",
    "\xed\xa0",
]
"""Ids that a database may handle wrongly; the last three only look like the encoding of invalid text."""
Query = Callable[[str], list[tuple[Any, ...]]]


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Query as a user would: with Python's sqlite3, which is strict about text, or with psycopg."""
    if url.startswith("sqlite"):
        with sqlite3.connect(location(url)) as connection:
            return connection.execute(sql).fetchall()
    with psycopg.connect(postgres_servers.shared().url(), options=f"-csearch_path={schema_of(url)}") as connection:
        return connection.execute(sql.encode()).fetchall()


def at(time: Any) -> datetime:
    return time if isinstance(time, datetime) else datetime.fromisoformat(time).replace(tzinfo=UTC)


def text(id: str) -> str:
    """Return how a view shows an id."""
    lone = any("\ud800" <= letter <= "\udfff" for letter in id)
    return "\\x" + to_bytes(id).hex() if lone or "\0" in id else id


@pytest.fixture(scope="module", params=[backend for backend in BACKENDS if backend.tables], ids=lambda each: each.name)
def used(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, threadkeep.Keep]]:
    url = request.param.fresh(tmp_path_factory.mktemp("views"), 0)
    with threadkeep.open(url) as keep:
        write_thread(keep, "thread_001").invoke({"log": ["again"]}, config("thread_001"))
        write_thread(keep, "thread_002")
        write_cube_thread(keep, "talk")
        yield url, keep


@pytest.fixture
def url(used: tuple[str, threadkeep.Keep]) -> str:
    return used[0]


@pytest.fixture
def keep(used: tuple[str, threadkeep.Keep]) -> threadkeep.Keep:
    return used[1]


def test_who_wrote_what_is_what_trace_says(url: str, keep: threadkeep.Keep) -> None:
    reported = keep.trace("thread_001", "latest~1")
    rows = query(url, WHO)
    assert [row[:1] + row[2:6] for row in rows] == [(e.task, e.idx, e.channel, e.path, e.size) for e in reported] != []
    assert [row[1] for row in rows] == [each.node if "pull" in each.path else None for each in reported]
    assert [at(row[6]) for row in rows] == [each.time for each in reported]


def test_every_write_of_the_view_is_one_that_trace_reports(url: str, keep: threadkeep.Keep) -> None:
    rows = query(url, "SELECT thread, ns, checkpoint, task, idx, channel, bytes, path, kind FROM tk_v_writes")
    reported = [
        (thread, ns, id, each.task, each.idx, each.channel, each.size, each.path, "graph")
        for thread in ("thread_001", "thread_002")
        for found in keep.checkpointer.list(config(thread))
        for ns, id in [(found.config["configurable"]["checkpoint_ns"], found.config["configurable"]["checkpoint_id"])]
        for each in keep.trace(thread, id, ns=ns)
    ]
    assert sorted(rows) == sorted(reported)
    assert len(rows) == sum(info.writes for info in keep.threads())


def test_activity_by_node_and_by_channel_is_what_activity_says(url: str, keep: threadkeep.Keep) -> None:
    reported = keep.activity(prefix="thread_", ns="", since=SINCE)
    nodes: Counter[str | None] = Counter()
    size: Counter[str | None] = Counter()
    for share in reported.by_node:
        node = None if share.node in ("one", "two, too") else share.node  # those were sent
        nodes[node] += share.writes
        size[node] += share.bytes
    rows = query(url, NODES)
    assert {row[0]: (row[1], row[2]) for row in rows} == {node: (nodes[node], size[node]) for node in nodes}
    assert [float(row[3]) for row in rows] == [pytest.approx(float(row[2]) / row[1]) for row in rows]
    everywhere = keep.activity(prefix="thread_", since=SINCE)
    assert {row[0]: (row[1], row[2]) for row in query(url, CHANNELS)} == {
        share.channel: (share.writes, share.bytes) for share in everywhere.by_channel
    }


def test_sizes_are_what_sizes_says(url: str, keep: threadkeep.Keep) -> None:
    reported = {
        each.channel: (each.channel, each.writes, each.written, each.items, each.stored)
        for each in keep.sizes(thread_id="thread_001").by_channel
    }
    held = [each for each in reported.values() if each[1] or each[3]]
    assert sorted(query(url, AGAINST)) == sorted(held) != []
    largest = [(each.kind, each.id, each.stored) for each in keep.sizes().by_thread]
    rows = query(url, LARGEST)
    assert [row[:3] for row in rows] == largest
    sizes_by_id = {each.id: each.by_kind for each in keep.sizes().by_thread}
    assert {row[1]: row[3] for row in rows} == {
        id: kinds["checkpoint_rows"] + kinds["write_rows"] for id, kinds in sizes_by_id.items()
    }
    shared = query(url, "SELECT thread, stored FROM tk_v_sizes WHERE part = 'shared'")
    assert dict(shared) == {id: kinds["shared"] for id, kinds in sizes_by_id.items()}


def test_the_views_have_all_threads_and_checkpoints(url: str, keep: threadkeep.Keep) -> None:
    columns = "kind, thread, status, checkpoints, writes, bytes, step, source, created, updated"
    infos = [
        (i.kind, i.id, i.status, i.checkpoints, i.writes, i.bytes, i.step, i.source, i.created, i.updated)
        for i in keep.threads()
    ]
    rows = query(url, f"SELECT {columns} FROM tk_v_threads WHERE tenant = ''")
    assert sorted((*row[:8], at(row[8]), at(row[9])) for row in rows) == sorted(infos)
    reported = [
        (found.config["configurable"]["checkpoint_ns"], found.config["configurable"]["checkpoint_id"],
         found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None,
         found.metadata["step"], found.metadata["source"])
        for found in keep.checkpointer.list(config("thread_001"))
    ]  # fmt: skip
    rows = query(
        url,
        (
            "SELECT ns, checkpoint, parent, step, source FROM tk_v_checkpoints "
            "WHERE thread = 'thread_001' AND NOT (hidden <> hidden)"
        ),
    )
    assert sorted(rows, key=repr) == sorted(reported, key=repr)
    assert query(url, BRANCHES) == []


def test_a_branch_is_found(tables_url: str) -> None:
    with threadkeep.open(tables_url) as keep:
        made = write_thread(keep, "thread_001")
        first = list(made.get_state_history(config("thread_001")))[3].config
        made.update_state(first, {"log": ["another way"]}, as_node="right")
    ((thread, ns, checkpoint, count),) = query(tables_url, BRANCHES)
    assert (thread, ns, checkpoint, count) == ("thread_001", "", first["configurable"]["checkpoint_id"], 2)


def test_no_id_makes_a_view_fail(tables_url: str) -> None:
    long = "long " * 60
    with threadkeep.open(tables_url, tenant=ODD[1]) as keep:
        saver = keep.checkpointer
        for id in ODD:
            chain = Chain(saver, id, run=id)
            at = chain.put({"log": [id]})
            saver.put_writes(at, [(id, 1), (long, id * 20)], id, f"~__pregel_pull, {id}")
    shown = sorted(map(text, ODD))
    for view in VIEWS:
        rows = query(tables_url, f"SELECT DISTINCT tenant, thread FROM {view}")
        assert sorted(rows) == sorted((text(ODD[1]), id) for id in shown)
    rows = query(tables_url, "SELECT thread, task, node, channel, path FROM tk_v_writes WHERE idx = 0")
    assert sorted(rows) == sorted((text(id), text(id), text(id), text(id), text(f"~__pregel_pull, {id}")) for id in ODD)
    assert {row[0][:1] for row in query(tables_url, "SELECT channel FROM tk_v_writes WHERE idx = 1")} == {"#"}
    runs = query(tables_url, "SELECT run FROM tk_v_checkpoints UNION SELECT run FROM tk_v_threads")
    assert sorted(row[0] for row in runs) == sorted(text(id.replace("\0", "")) for id in ODD)  # LangGraph strips NULs


def test_an_older_database_gets_the_views_when_it_is_opened_to_be_written(
    tables_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_views = 3
    with monkeypatch.context() as patch:
        use_version(patch, before_views)
        with threadkeep.open(tables_url) as keep:
            keep.setup()
            with todays_columns(tables_url, before_views):
                write_thread(keep, "thread_001")
                reported = keep.sizes(thread_id="thread_001")
    with threadkeep.open(tables_url, read_only=True) as keep, pytest.raises(SchemaTooOld, match="old schema version 3"):
        keep.stats()
    assert version(tables_url) == before_views
    with threadkeep.open(tables_url) as keep:
        keep.setup()
        assert keep.sizes(thread_id="thread_001") == reported
    assert version(tables_url) == SCHEMA_VERSION
    assert sum(row[4] for row in query(tables_url, AGAINST)) == sum(each.stored for each in reported.by_channel)


def test_the_views_of_postgresql_use_only_what_distributed_databases_have() -> None:
    own = read_blocks("postgres/views.sql")
    sql = own["schema-4"]
    assert re.findall(r"CREATE VIEW (\w+)", sql) == [
        f"tk_v_{name}" for name in ("threads", "checkpoints", "writes", "sizes", "activity")
    ]
    assert not re.search(r"\bjsonb?\b|->|\bLATERAL\b|\bFUNCTION\b|\bMATERIALIZED\b|\bCROSS JOIN\b", sql, re.IGNORECASE)
    joins = re.findall(r"\bJOIN (\w+) (\w+) ON (\w+)\.(\w+) = \w+\.(\w+)", sql)
    assert len(joins) == len(re.findall(r"\bJOIN\b", sql))
    assert all(
        alias == left and column in ("thread", "number") and other == "thread"
        for _, alias, left, column, other in joins
    )
