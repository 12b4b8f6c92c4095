"""Connections that are used up, and locks that others hold: callers wait, then get a clear error, and never hang."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw
import psycopg
import pytest
from fault_log import FaultLog, audit
from fault_matrix import Matrix, size
from fault_writers import FaultWriters
from psycopg_pool import ConnectionPool

import postgres_servers
import threadkeep
import valkey_servers


class Scarce(NamedTuple):
    """A storage whose connections somebody can take, all at once, and how."""

    url: str
    keep: threadkeep.Keep
    use_up: Callable[[ExitStack], object]
    says: str
    """What an error says."""


@contextmanager
def locked_sqlite(folder: Path) -> Iterator[Scarce]:
    url = f"sqlite:///{folder}/keep.db"

    def lock(stack: ExitStack) -> None:
        other = apsw.Connection(f"{folder}/keep.db")
        other.set_busy_timeout(60_000)
        stack.callback(other.close)
        other.execute("BEGIN EXCLUSIVE")

    with threadkeep.open(url, timeout=1) as keep:
        yield Scarce(url, keep, lock, "locked by others")


@contextmanager
def own_pool(_: Path) -> Iterator[Scarce]:
    """One connection for everybody, which waits for a lock that somebody else holds."""
    url = postgres_servers.fresh_schema(postgres_servers.shared())
    schema = url.rpartition("schema=")[2]

    def lock(stack: ExitStack) -> None:
        other = stack.enter_context(psycopg.connect(postgres_servers.shared().url()))
        other.execute(f"lock table {schema}.tk_threads, {schema}.tk_memories in access exclusive mode")

    with threadkeep.open(url, timeout=1, max_size=1) as keep:
        yield Scarce(url, keep, lock, "connection")


@contextmanager
def lent_pool(_: Path) -> Iterator[Scarce]:
    """The user's own pool, of which the user takes every connection."""
    url = postgres_servers.fresh_schema(postgres_servers.shared())
    schema = url.rpartition("schema=")[2]
    with ConnectionPool(postgres_servers.shared().url(), min_size=1, max_size=2) as pool:

        def take_all(stack: ExitStack) -> None:
            for _ in range(2):
                stack.callback(pool.putconn, pool.getconn(60))

        with threadkeep.open(pool, schema=schema, timeout=1) as keep:
            yield Scarce(url, keep, take_all, "connection")


@contextmanager
def full_postgres(_: Path) -> Iterator[Scarce]:
    """A server that accepts no connection more, after the existing ones were ended."""
    server, role = postgres_servers.shared(), f"r_{uuid.uuid4().hex}"
    server.execute(f"create role {role} login; grant create on database postgres to {role}")
    url = postgres_servers.fresh_schema(server)

    def refuse(stack: ExitStack) -> None:
        stack.callback(server.execute, f"alter role {role} connection limit -1")
        server.execute(f"alter role {role} connection limit 0")
        server.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'")

    with threadkeep.open(url.replace("postgres@", f"{role}@"), timeout=1) as keep:
        yield Scarce(url, keep, refuse, "too many connections")


@contextmanager
def full_valkey(_: Path) -> Iterator[Scarce]:
    """A server that accepts no connection more, after the existing ones were ended."""
    server = valkey_servers.start()
    url = f"valkey://127.0.0.1:{server.port}"

    def take_all(stack: ExitStack) -> None:
        stack.callback(lambda: administrator.config_set("maxclients", 1000))
        administrator.config_set("maxclients", 1)
        administrator.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    with server.client as administrator, threadkeep.open(url, timeout=1) as keep:
        administrator.ping()
        try:
            yield Scarce(url, keep, take_all, "clients")
        finally:
            server.stop()


SCARCE = {
    "sqlite, file locked": locked_sqlite,
    "postgres, one connection": own_pool,
    "postgres, lent pool": lent_pool,
    "postgres, server full": full_postgres,
    "valkey, server full": full_valkey,
}


@pytest.mark.fault("connections used up")
@pytest.mark.parametrize("backend", SCARCE)
def test_callers_wait_then_get_an_error_and_go_on(backend: str, tmp_path: Path, log: FaultLog, matrix: Matrix) -> None:
    rounds = size(1, 20)
    with SCARCE[backend](tmp_path) as scarce:
        with FaultWriters(scarce.keep, log) as writers:
            for _ in range(rounds):
                writers.wait_for(3)
                with ExitStack() as stack:
                    scarce.use_up(stack)
                    writers.wait_for_errors(8)
                writers.wait_for(3)
        assert any(scarce.says in error for error in writers.failed), set(writers.failed)
        matrix.add(rounds, audit(scarce.url, log))
