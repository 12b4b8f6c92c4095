"""kill -9 at each statement of a migration, and many processes that migrate at once: the storage is old or new."""

from __future__ import annotations

import itertools
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from fault_log import Findings
from fault_matrix import Matrix, size

import postgres_servers
import processes
import threadkeep
from sample_keep import contents
from test_upgrades import DATA, OLD_STORAGES, OLD_VERSIONS, SQL_STORAGES
from threadkeep.engine.schema_versions import SCHEMA_VERSION

((NAME, VERSION),) = OLD_VERSIONS.items()
KILLED = """
import os, signal, sys
import apsw
import threadkeep
from threadkeep.backends.postgres import setup
url, left = sys.argv[1], int(sys.argv[2])

def count(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return True

def watch(connection):
    connection.exec_trace = count

def counted(*args, of=setup.SetupStatement, **options):
    count()
    return of(*args, **options)

apsw.connection_hooks.append(watch)
setup.SetupStatement = counted
with threadkeep.open(url) as keep:
    keep.setup()
"""
"""Migrates a storage, but is killed at the n-th statement to the database: one of its set-up in PostgreSQL, any in SQLite."""

AT_ONCE = """
import threadkeep
wait_for_others()
with threadkeep.open(sys.argv[1]) as keep:
    keep.store.put(("at once",), sys.argv[2], {"by": sys.argv[2]})
"""


@pytest.mark.fault("kill -9 at each statement of a migration")
@pytest.mark.parametrize("backend", SQL_STORAGES)
def test_a_migration_that_is_killed_is_done_as_a_whole_or_not_at_all(
    backend: str, tmp_path: Path, matrix: Matrix
) -> None:
    step = {"sqlite": size(20, 1), "postgres": size(10, 1)}[backend]
    with threadkeep.open("memory://") as keep:
        keep.import_portable(DATA / f"{NAME}.jsonl.zst")
        expected = contents(keep)
    found = set[int]()
    for k in itertools.count(1, step):
        url = SQL_STORAGES[backend](NAME, tmp_path)
        process = processes.fork(KILLED, url, k)
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
        with threadkeep.open(url) as keep:
            found.add(keep.migrate(dry_run=True).found)
            assert contents(keep) == expected, k
            assert keep.verify().problems == []
        if process.returncode == 0:
            break
    assert found == {VERSION, SCHEMA_VERSION}
    matrix.add(k // step, Findings(k // step))


@pytest.mark.fault("many processes migrate at once")
@pytest.mark.parametrize("backend", OLD_STORAGES)
def test_processes_that_migrate_at_once_lose_nothing(backend: str, tmp_path: Path, matrix: Matrix) -> None:
    rounds, names = size(1, 10), [f"p{n}" for n in range(size(4, 12))]
    with threadkeep.open("memory://") as keep:
        keep.import_portable(DATA / f"{NAME}.jsonl.zst")
        expected = contents(keep)
    for _ in range(rounds):
        url = OLD_STORAGES[backend](NAME, tmp_path)
        processes.run_concurrently(AT_ONCE, [(url, name) for name in names])
        with threadkeep.open(url) as keep:
            assert keep.migrate(dry_run=True).found == SCHEMA_VERSION
            assert sorted(item.key for item in keep.store.search(("at once",), limit=100)) == sorted(names)
            keep.delete_memories(("at once",))
            assert contents(keep) == expected
            assert keep.verify().problems == []
    matrix.add(rounds, Findings(rounds * len(names)))


def test_processes_that_migrate_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """A lock lets all of them begin; those that have locks of the version's table would stop the first that goes on."""
    url = SQL_STORAGES["postgres"](NAME, tmp_path)
    with ThreadPoolExecutor(1) as pool, psycopg.connect(url.partition("?")[0]) as other:
        other.execute("LOCK TABLE own.tk_schema IN SHARE ROW EXCLUSIVE MODE")
        running = pool.submit(processes.run_concurrently, AT_ONCE, [(url, f"p{n}") for n in range(4)])
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'own.tk_schema'::regclass"
        assert postgres_servers.wait_until(lambda: other.execute(waiting).fetchone() == (4,), processes.TIMEOUT)
        other.rollback()
        running.result()
    assert deadlocks(url) == 0


def deadlocks(url: str) -> int:
    """Return how many deadlocks the server has broken in a database. Each costs all of its processes a second."""
    database = urlsplit(url).path.removeprefix("/")
    query = f"SELECT deadlocks FROM pg_stat_database WHERE datname = '{database}'"
    ((count,),) = postgres_servers.shared().execute(query)
    return int(count)
