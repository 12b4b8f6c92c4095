"""A disk for SQLite on which one operation fails: a write, a sync, or the change of a file's size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

ERRORS = {"full": apsw.FullError, "broken": apsw.IOError}


class FailingDisk(apsw.VFS):
    """SQLite's own file system, except that the k-th operation fails that would change a file."""

    def __init__(self) -> None:
        self._left = 0
        self._error: type[Exception] = apsw.FullError
        self.failures = 0
        super().__init__("failing", "unix", makedefault=True)

    def fail_at(self, k: int, error: str) -> None:
        """Let the k-th operation from now on fail; 0 for none."""
        self._left, self._error = k, ERRORS[error]

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.failures += 1
            raise self._error("as the test wants it")

    def xOpen(self, name: Any, flags: list[int]) -> FailingFile:
        return FailingFile(self, name, flags)


class FailingFile(apsw.VFSFile):
    """A file on a `FailingDisk`."""

    def __init__(self, disk: FailingDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.count()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.count()
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:
        self._disk.count()
        super().xTruncate(size)


@contextmanager
def failing_disk() -> Iterator[FailingDisk]:
    """Let all SQLite files of this process that are opened meanwhile be on such a disk."""
    disk = FailingDisk()
    try:
        yield disk
    finally:
        disk.unregister()
