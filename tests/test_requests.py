"""What requests declare: whether they write, are one SQL statement, and may be repeated."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apsw
import pytest

import threadkeep
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.engine.health.requests import MeasureStorage
from threadkeep.engine.memories import filters
from threadkeep.engine.memories.namespaces import MemoryKey
from threadkeep.engine.memories.requests import (
    CountMemories,
    FindExpired,
    FindMatching,
    GetMemories,
    GetMemoriesByNumber,
    ListMemories,
    ListNamespaces,
    SearchFullText,
)
from threadkeep.engine.requests import ListThreads, ReadClock, ScanCheckpoints
from threadkeep.engine.schema_versions import steps_after
from threadkeep.engine.search.requests import FindChangedThreads, SearchIndex
from threadkeep.engine.tenants.requests import ListDataKeys, ListTenants, LoadTenant
from threadkeep.plan import Access, Request

PREFIX = ("users", "1")
FILTER = filters.parse({"a": {"$gt": 1}})
ONE_STATEMENT: Sequence[Request[Any]] = (
    ScanCheckpoints("", "graph", 10, thread="t", ns="", tags=(b"a", b"b")),
    ListThreads("", "updated", 10, prefix="t", tags=(b"a",)),
    GetMemories("", (MemoryKey(PREFIX, "a"), MemoryKey(PREFIX, "b")), 1),
    GetMemoriesByNumber("", PREFIX, (1, 2, 3), 1),
    ListMemories("", PREFIX, 1, 10, filter=FILTER),
    ListNamespaces("", PREFIX, 1, 10),
    CountMemories("", 1),
    FindMatching("", PREFIX, 1, FILTER),
    FindExpired("", PREFIX, 1),
    SearchFullText("", PREFIX, 1, ("a", "b"), 10),
    LoadTenant("a"),
    ListTenants(10, "a"),
    ListDataKeys("a", b"b", 10),
)


def kinds() -> set[type[Request[Any]]]:
    """Return every request class of threadkeep."""
    for module in pkgutil.walk_packages(threadkeep.__path__, "threadkeep."):
        if module.name.startswith(("threadkeep.engine", "threadkeep.backends")):
            importlib.import_module(module.name)
    return {kind for kind in _below(Request) if kind.__module__.startswith("threadkeep.")}


def _below(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


class Counting:
    """A connection that counts its statements."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.statements = 0
        self._connection = connection

    def rows(self, sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        self.statements += 1
        return self._connection.execute(sql, values).fetchall()

    def many(self, sql: str, values: Sequence[Mapping[str, Any]]) -> int:
        raise AssertionError(sql)


@pytest.fixture(scope="module")
def database() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(SqliteDialect().sql["schema-table"])
    for version in steps_after(0):
        connection.execute(SqliteDialect().sql[f"schema-{version}"])
    return connection


def test_every_kind_of_request_declares_its_access() -> None:
    assert len(kinds()) > 25
    assert [kind for kind in kinds() if not isinstance(vars(kind).get("access"), Access)] == []


def test_what_may_not_be_repeated_writes() -> None:
    assert [kind for kind in kinds() if not kind.access.repeatable and not kind.access.writes] == []


def test_every_kind_that_is_one_statement_has_an_example_here() -> None:
    ours = {type(request).__name__ for request in ONE_STATEMENT} | {
        MeasureStorage.__name__,
        ReadClock.__name__,
        FindChangedThreads.__name__,
        SearchIndex.__name__,
    }  # which no SQLite table knows, or which first look for the index
    assert {kind.__name__ for kind in kinds() if kind.access.one_statement} == ours


@pytest.mark.parametrize("request_", ONE_STATEMENT, ids=lambda request: type(request).__name__)
def test_one_statement_is_one_statement(database: apsw.Connection, request_: Request[Any]) -> None:
    cursor = Counting(database)
    SqliteDialect().answer(cursor, request_)
    assert cursor.statements == 1
