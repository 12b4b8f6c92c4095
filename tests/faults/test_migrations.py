"""kill -9 at each statement of a migration, and many processes that migrate at once: the storage is old or new."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest
from fault_log import Findings
from fault_matrix import Matrix, size

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
