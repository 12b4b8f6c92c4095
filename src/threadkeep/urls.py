"""URLs: which backend, on which transport. Drivers are imported when a URL asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from threadkeep.transports.runner import Transport

DURABILITIES = ("strict", "relaxed")
ACCEPTED = "accepted are sqlite:///relative.db, sqlite:////absolute/path.db and memory://"


def transport_for(url: Any, *, durability: str, timeout: float) -> Transport:
    """The transport of a URL. Nothing is opened yet."""
    if not isinstance(url, str):
        raise TypeError(f"a URL must be a str, not {type(url).__name__}; {ACCEPTED}")
    if durability not in DURABILITIES:
        raise ValueError(f"durability must be one of {', '.join(DURABILITIES)}, not {durability!r}")
    if type(timeout) not in (int, float) or not 0 < timeout < 1e6:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "memory":
        return _memory(rest)
    if separator and scheme == "sqlite":
        return _sqlite(rest, durability=durability, timeout=timeout)
    raise ValueError(f"cannot open {url!r}: {ACCEPTED}")


def _memory(rest: str) -> Transport:
    from threadkeep.backends.memory import Memory  # noqa: PLC0415
    from threadkeep.transports.direct import Direct  # noqa: PLC0415

    if rest:
        raise ValueError(f"memory:// takes nothing after it, not {rest!r}: each one is private and empty")
    return Direct(Memory())


def _sqlite(rest: str, *, durability: str, timeout: float) -> Transport:
    from threadkeep.backends.sqlite import Sqlite  # noqa: PLC0415
    from threadkeep.transports.sqlite import SqliteFile  # noqa: PLC0415

    path = rest.removeprefix("/")
    if not rest.startswith("/") or not path or path.endswith("/"):
        raise ValueError(f"sqlite://{rest} names no file: {ACCEPTED}")
    if path == ":memory:":
        raise ValueError("sqlite:///:memory: would be another database in every thread; use memory://")
    if "?" in path or "\0" in path:
        raise ValueError(f"sqlite://{rest}: a query is not accepted, options are arguments of threadkeep.open()")
    return SqliteFile(Path(path), Sqlite(), durability=durability, timeout=timeout)
