"""The exceptions that threadkeep raises when something is wrong with the storage.

    ThreadkeepError
    ├── Closed          the Keep was closed: open a new one
    ├── Conflict        others changed the thread at every try: call again
    ├── Corrupt         stored data is damaged or missing: see `threadkeep verify` and `threadkeep repair`
    ├── Missing         the thread or checkpoint does not exist (also a LookupError)
    ├── ReadOnly        the Keep was opened with read_only=True, and the call would change something
    ├── SchemaTooNew    a newer threadkeep wrote this storage: upgrade threadkeep
    └── Unavailable     the storage could not be reached, locked or written in time: try again later
        └── SchemaTooOld    an older threadkeep wrote this storage, and it may not be migrated now

`except ThreadkeepError` catches all of them. Errors of the database drivers never reach the caller: each is translated
into one of these, with the original as its `__cause__`. A wrong argument raises TypeError or ValueError.

After Unavailable, a change may or may not have been made. Every call may be repeated.
"""

from __future__ import annotations


class ThreadkeepError(Exception):
    """Something is wrong with the storage. Base class of all errors of threadkeep."""

    # A class's docstring is the default message.
    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class Closed(ThreadkeepError):
    """This Keep is closed; open a new one with threadkeep.open(url)."""


class Conflict(ThreadkeepError):
    """Another writer changed the thread first."""


class Corrupt(ThreadkeepError):
    """Stored data does not match its checksum, or something that it refers to is missing."""


class Missing(ThreadkeepError, LookupError):
    """The thread or checkpoint does not exist."""


class ReadOnly(ThreadkeepError):
    """This Keep was opened with read_only=True; it cannot change anything."""


class SchemaTooNew(ThreadkeepError):
    """A newer version of threadkeep wrote this storage; upgrade threadkeep to open it."""


class Unavailable(ThreadkeepError):
    """The storage could not be reached, locked or written in time."""


class SchemaTooOld(Unavailable):
    """An older version of threadkeep wrote this storage; run `threadkeep migrate` to use it with this one."""
