"""The exceptions that threadkeep raises when something is wrong with the storage.

    ThreadkeepError
    ├── Closed          the Keep was closed: open a new one
    ├── Conflict        others changed the thread at every try: call again
    │   ├── Leased          somebody else holds a lease on the thread, or a lease is needed to write it
    │   └── LeaseLost       the lease that the call was made under has ended: stop, and take a new one
    ├── Corrupt         stored data is damaged or missing: see `threadkeep verify` and `threadkeep repair`
    ├── Missing         the thread or checkpoint does not exist (also a LookupError)
    ├── QuotaExceeded   the tenant's quota is used up: delete or prune something, or raise the quota
    ├── ReadOnly        the Keep was opened with read_only=True, and the call would change something
    ├── SchemaTooNew    a newer threadkeep wrote this storage: upgrade threadkeep
    ├── Unavailable     the storage could not be reached, locked or written in time: try again later
    │   └── SchemaTooOld    an older threadkeep wrote this storage, and it may not be migrated now
    ├── UpcastFailed    an upcaster (`upcasters=`) raised: correct it; what is stored is intact
    └── WrongKey        the storage is encrypted and the keys that were given, if any, do not open it

`except ThreadkeepError` catches all of them. Errors of the database drivers never reach the caller: each is translated
into one of these, with the original as its `__cause__`. A wrong argument raises TypeError or ValueError.

After Unavailable, a change may or may not have been made. Every call may be repeated.
"""

from __future__ import annotations

import re


class ThreadkeepError(Exception):
    """Something is wrong with the storage. Base class of all errors of threadkeep."""

    # A class's docstring is the default message.
    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class Closed(ThreadkeepError):
    """This Keep is closed; open a new one with threadkeep.open(url)."""


class Conflict(ThreadkeepError):
    """Another writer changed the thread first."""


class Leased(Conflict):
    """Somebody else holds a lease on the thread."""


class LeaseLost(Conflict):
    """The lease on the thread was lost."""


class Corrupt(ThreadkeepError):
    """Stored data does not match its checksum, or something that it refers to is missing."""


class Missing(ThreadkeepError, LookupError):
    """The thread or checkpoint does not exist."""


class QuotaExceeded(ThreadkeepError):
    """The quota of this tenant is used up; delete or prune something, or raise the quota."""


class ReadOnly(ThreadkeepError):
    """This Keep was opened with read_only=True; it cannot change anything."""


class SchemaTooNew(ThreadkeepError):
    """A newer version of threadkeep wrote this storage; upgrade threadkeep to open it."""


class Unavailable(ThreadkeepError):
    """The storage could not be reached, locked or written in time."""


class SchemaTooOld(Unavailable):
    """An older version of threadkeep wrote this storage; run `threadkeep migrate` to use it with this one."""


class UpcastFailed(ThreadkeepError):
    """An upcaster raised. What is stored is intact."""


class WrongKey(ThreadkeepError):
    """The storage is encrypted, and the keys that were given, if any, do not open it."""


def reason(error: BaseException) -> str:
    """Return what another library says about stored bytes, without the bytes: messages and logs are read by others."""
    if isinstance(error, UnicodeError) or type(error).__module__.startswith("pydantic"):
        return type(error).__name__
    return repr(error)[:200]


def without_passwords(text: str) -> str:
    """Return a URL, or a message that quotes one, without its passwords."""
    text = re.sub(r"(//[^:/?#\s]*:)\S*@", r"\1…@", text)
    return re.sub(r"(password=)('[^']*'|[^&\s'\"]+)", r"\1…", text, flags=re.IGNORECASE)
