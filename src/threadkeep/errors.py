"""Every exception that threadkeep raises about storage; nothing of a driver's own leaks out.

    ThreadkeepError
    ├── Closed          the Keep was closed; open a new one
    ├── Conflict        another writer changed the thread first (retried inside; seen only when retries end)
    ├── Corrupt         stored bytes do not fit their checksum, or a reference has no target
    ├── Missing         there is no such thread or checkpoint; a LookupError too
    ├── ReadOnly        the Keep was opened with read_only=True and cannot change anything
    ├── SchemaTooNew    the database was written by a newer threadkeep
    └── Unavailable     the storage could not be reached, locked or written in time

Wrong arguments are `TypeError` and `ValueError`, as everywhere in Python.
"""

from __future__ import annotations


class ThreadkeepError(Exception):
    """Something is wrong with the storage."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class Closed(ThreadkeepError):
    """This Keep is closed; open a new one with threadkeep.open(url)."""


class Conflict(ThreadkeepError):
    """Another writer changed the thread first."""


class Corrupt(ThreadkeepError):
    """Stored bytes do not fit their checksum, or a reference has no target."""


class Missing(ThreadkeepError, LookupError):
    """There is no such thread or checkpoint."""


class ReadOnly(ThreadkeepError):
    """This Keep was opened with read_only=True; it cannot change anything."""


class SchemaTooNew(ThreadkeepError):
    """The database was written by a newer threadkeep; upgrade threadkeep to read it."""


class Unavailable(ThreadkeepError):
    """The storage could not be reached, locked or written in time."""
