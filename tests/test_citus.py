"""`threadkeep setup --citus`: each table is distributed by the column that its statements name.

Citus itself cannot be had here. These tests use a database of an ordinary server with stand-ins for its functions.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import postgres_servers
import threadkeep
from checkpoint_chains import Chain, config
from threadkeep import errors
from threadkeep.cli.app import run
from threadkeep.transports.postgres_citus import PLACES

STAND_IN = Path(__file__).with_name("citus_stand_in.sql").read_text("utf-8")


class Database:
    """A database of its own on the shared server."""

    def __init__(self, *, citus: bool) -> None:
        self.name = f"citus_{uuid.uuid4().hex}"
        self.server = postgres_servers.shared()
        self.server.execute(f"CREATE DATABASE {self.name}")
        self.url = self.server.url(self.name, schema="agents", group="thread")
        if citus:
            self.execute(STAND_IN)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.url(self.name), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def places(self) -> dict[str, tuple[str | None, str]]:
        """Return the column of each distributed table, and the table that it is beside."""
        query = (
            "SELECT logicalrelid::text, partkey, coalesce(colocationid::oid::regclass::text, '') FROM pg_dist_partition"
        )
        return {
            table.removeprefix("agents."): (column, beside.removeprefix("agents."))
            for table, column, beside in self.execute(query)
        }

    def tables(self) -> list[str]:
        return [table for (table,) in self.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'tk\\_%'")]

    def drop(self) -> None:
        self.server.execute(f"DROP DATABASE {self.name} WITH (FORCE)")


@pytest.fixture
def citus() -> Iterator[Database]:
    database = Database(citus=True)
    yield database
    database.drop()


@pytest.fixture
def plain() -> Iterator[Database]:
    database = Database(citus=False)
    yield database
    database.drop()


def setup(*words: str) -> int:
    return run(["setup", "--citus", *words])


# --- which table goes where


def test_every_table_has_a_place_by_a_column_of_its_key(citus: Database) -> None:
    with threadkeep.open(citus.url) as keep:
        keep.distribute()
    found = citus.places()
    assert found.keys() == set(citus.tables()) == PLACES.keys()
    assert {table: column for table, (column, _) in found.items()} == {
        table: place.column for table, place in PLACES.items()
    }
    beside = {table: at for table, (_, at) in found.items()}
    assert {beside[table] for table in PLACES if PLACES[table].column == "thread"} == {"tk_threads"}
    assert {beside[table] for table in PLACES if PLACES[table].column == "part"} == {"tk_memories"}


def test_tables_with_rows_are_distributed_and_used_as_before(citus: Database) -> None:
    with threadkeep.open(citus.url) as keep:
        chain = Chain(keep.checkpointer)
        chain.put({"log": ["a"]})
        keep.store.put(("users", "u1"), "food", {"likes": "pizza"})
        assert keep.distribute().distributed == tuple(PLACES)
        chain.put({"log": ["a", "b"]})
        assert keep.store.get(("users", "u1"), "food").value == {"likes": "pizza"}
        assert len(keep.log("t")) == 2


async def test_it_may_be_awaited_and_repeated(citus: Database) -> None:
    async with threadkeep.open(citus.url) as keep:
        assert len((await keep.adistribute()).distributed) == len(PLACES)
        again = await keep.adistribute()
        assert (again.distributed, again.tables["tk_keys"], again.tables["tk_schema"]) == ((), "tenant", "reference")


def test_it_continues_after_an_interruption(citus: Database) -> None:
    citus.execute("ALTER TABLE pg_dist_partition ADD CHECK (partkey <> 'part')")
    with threadkeep.open(citus.url) as keep:
        with pytest.raises(errors.Unavailable, match="check constraint"):
            keep.distribute()
        assert 0 < len(citus.places()) < len(PLACES)
        citus.execute("ALTER TABLE pg_dist_partition DROP CONSTRAINT pg_dist_partition_partkey_check")
        done = keep.distribute()
    assert set(done.distributed) >= {"tk_memories", "tk_vectors", "tk_parts"}
    assert citus.places().keys() == PLACES.keys()


def test_a_dry_run_changes_nothing(citus: Database) -> None:
    with threadkeep.open(citus.url) as keep:
        keep.setup()
        assert keep.distribute(dry_run=True).distributed == tuple(PLACES)
        assert citus.places() == {}


# --- the command


def test_the_command_creates_and_distributes_and_may_be_repeated(
    citus: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup("--url", citus.url) == 0
    shown = capsys.readouterr().out
    assert "distributed tk_threads by thread" in shown
    assert "distributed tk_schema to each machine" in shown
    assert setup("--url", citus.url) == 0
    assert capsys.readouterr().out == "all tables are distributed\n"
    assert setup("--url", citus.url, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "tables": {table: place.shown for table, place in PLACES.items()}, "distributed": [], "dry_run": False,
    }  # fmt: skip


def test_without_the_option_it_only_creates_the_tables(citus: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["setup", "--url", citus.url]) == 0
    assert "created the tables" in capsys.readouterr().out
    assert citus.places() == {}
    assert len(citus.tables()) == len(PLACES)


def test_other_storages_cannot_be_distributed(url: str) -> None:
    with threadkeep.open(url) as keep, pytest.raises(ValueError, match=r"only a PostgreSQL|group=\"thread\""):
        keep.distribute()


def test_without_citus_it_says_so(plain: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert setup("--url", plain.url) != 0
    assert "has no Citus: run CREATE EXTENSION citus" in capsys.readouterr().err


def test_without_group_thread_it_says_so(citus: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert setup("--url", citus.url.replace("group=thread", "group=all")) != 0
    assert "?group=thread" in capsys.readouterr().err
    assert citus.places() == {}


def test_a_worker_creates_no_tables_of_its_own(citus: Database, capsys: pytest.CaptureFixture[str]) -> None:
    citus.execute("UPDATE pg_dist_local_group SET groupid = 3")
    assert setup("--url", citus.url) != 0
    assert "is a worker of Citus; connect to the coordinator" in capsys.readouterr().err
    with threadkeep.open(citus.url) as keep, pytest.raises(errors.Unavailable, match="connect to the coordinator"):
        Chain(keep.checkpointer).put({})
    assert citus.tables() == []


def test_a_worker_that_has_the_tables_serves_threads(citus: Database) -> None:
    with threadkeep.open(citus.url) as keep:
        keep.distribute()
    citus.execute("UPDATE pg_dist_local_group SET groupid = 3")
    with threadkeep.open(citus.url) as keep:
        Chain(keep.checkpointer).put({"log": ["a"]})
        assert keep.checkpointer.get_tuple(config("t")) is not None
        with pytest.raises(errors.Unavailable, match="worker"):
            keep.distribute()


def test_a_table_that_is_distributed_in_another_way_is_named(citus: Database) -> None:
    with threadkeep.open(citus.url) as keep:
        keep.setup()
        citus.execute("SELECT create_distributed_table('agents.tk_memories', 'memory')")
        with pytest.raises(errors.Unavailable, match="tk_memories is distributed by memory, not as part"):
            keep.distribute()


def test_a_search_index_and_distributed_tables_exclude_each_other(plain: Database) -> None:
    with threadkeep.open(plain.url) as keep:
        Chain(keep.checkpointer).put({"log": ["hello"]})
        keep.build_search_index()
    plain.execute(STAND_IN)
    with threadkeep.open(plain.url) as keep:
        with pytest.raises(errors.Unavailable, match="drop_search_index"):
            keep.distribute()
        keep.drop_search_index()
        keep.distribute()
        with pytest.raises(errors.Unavailable, match="search with scan=True"):
            keep.search("hello")
        assert [hit.thread for hit in keep.search("hello", scan=True).hits] == ["t"]


def test_sizes_are_those_on_all_nodes(citus: Database) -> None:
    with threadkeep.open(citus.url) as keep:
        keep.distribute()
        Chain(keep.checkpointer).put({"log": ["a"]})
        assert keep.stats().storage.bytes == 1_000_000_007 * len(PLACES)
