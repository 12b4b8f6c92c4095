"""Two versions of the package use one storage at once, also while the newer one migrates it."""

from __future__ import annotations

from pathlib import Path

import older_versions
import pytest
from fault_log import FaultLog, Findings, audit
from fault_matrix import Matrix, size
from fault_storages import BACKENDS, shared_url
from fault_writers import SCRIPT, TIMEOUT, FaultWriters, write_shared

import postgres_servers
import threadkeep

OLDER = """
import sys
import threadkeep
from fault_log import FaultLog
from fault_writers import FaultWriters, write_shared
assert ".cache" in threadkeep.__file__, "not the older version"
url, path, count = sys.argv[1:4]
log = FaultLog(path)
with threadkeep.open(url) as keep:
    with FaultWriters(keep, log, name="old", each=1) as writers:
        sys.stdin.readline()
        write_shared(keep, log, range(0, 2 * int(count), 2))
    assert writers.failed == []
"""

LATE = """
import sys
import threadkeep
with threadkeep.open(sys.argv[1]) as keep:
    for use in (keep.threads, lambda: keep.store.put(("m",), "late", {"n": 1}), keep.setup):
        try:
            use()
        except threadkeep.errors.SchemaTooNew:
            continue
        raise SystemExit("an older version used a newer storage")
"""


@pytest.mark.fault("two versions at once")
@pytest.mark.parametrize("backend", BACKENDS)
def test_both_write_while_the_newer_one_migrates(backend: str, tmp_path: Path, matrix: Matrix) -> None:
    """The older one was there first. It goes on, but may raise errors on threads that the newer one has written.

    One that comes later is refused, except on Valkey, where 0.1.0 does not look at the schema: it goes on in the same way.
    """
    rounds, findings = size(1, 5), Findings()
    for each in range(rounds):
        folder = tmp_path / f"{each}"
        folder.mkdir()
        url, log = shared_url(backend, folder), FaultLog(folder / "acknowledged")
        run_both(url, log, size(20, 300))
        late = [SCRIPT, url, log.path, "late"] if backend == "valkey" else [LATE, url]
        older_versions.finish(older_versions.start(older_versions.RELEASED, *late))
        findings += audit(url, log)
    matrix.add(rounds, findings)


def run_both(url: str, log: FaultLog, count: int) -> None:
    older = older_versions.start(older_versions.RELEASED, OLDER, url, log.path, count)
    assert older.stdin is not None
    try:
        enough = postgres_servers.wait_until(lambda: log.count() > 20 or older.poll() is not None, TIMEOUT)
        assert enough and older.poll() is None, older.communicate()
        with threadkeep.open(url) as keep, FaultWriters(keep, log) as writers:
            writers.wait_for(2)
            older.stdin.write("both write\n")
            older.stdin.flush()
            assert write_shared(keep, log, range(1, 2 * count, 2)) == []
            older_versions.finish(older)
        assert writers.failed == []
    finally:
        older.kill()
        older.wait()
