"""URLs: which backend, on which transport. Drivers are imported when a URL asks for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from threadkeep.drivers.runner import Transport

DURABILITIES = ("strict", "relaxed")
GROUPS = ("all", "thread")
ACCEPTED = (
    "accepted are sqlite:///relative.db, sqlite:////absolute/path.db, postgresql://user@host/database,"
    " valkey://host:port,host:port/, memory:// and a psycopg_pool.ConnectionPool"
)
_POSTGRES = ("postgresql", "postgres")
_VALKEY = ("valkey", "valkeys", "redis", "rediss")
_SECURE = ("valkeys:", "rediss:")
_SCHEMES = ("memory", "sqlite", *_POSTGRES, *_VALKEY)
_PIP = "pip install 'threadkeep[postgres]'"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What is said about a server; None is: as usual."""

    schema: str | None = None
    min_size: int | None = None
    max_size: int | None = None
    prepare: bool | None = None
    group: str | None = None
    application_name: str | None = None

    def given(self) -> list[str]:
        """The names of what was said."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]


def _nothing() -> None:
    """For a transport whose losses nobody has to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every backend is told. `wants_vectors` says that vectors will be stored.

    `on_loss` is called when the storage may have lost what it acknowledged: nothing that was remembered is certain.
    """

    durability: str = "strict"
    timeout: float = 30.0
    read_only: bool = False
    wants_vectors: bool = False
    on_loss: Callable[[], None] = _nothing


def transport_for(url: Any, settings: Settings, server: ServerOptions) -> Transport:
    """The transport of a URL. Nothing is opened yet."""
    _check_settings(settings)
    if not isinstance(url, str):
        if _is_pool(url):
            return _postgres(url, settings, server)
        raise TypeError(f"a URL must be a str, not {type(url).__name__}; {ACCEPTED}")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ValueError(f"cannot open {_without_password(url)!r}: {ACCEPTED}")
    if scheme in _POSTGRES:
        return _postgres(url, settings, server)
    if server.given():
        raise ValueError(f"{', '.join(server.given())}: only for postgresql://")
    if scheme in _VALKEY:
        return _valkey(url, settings)
    if scheme == "memory":
        return _memory(rest, settings)
    return _sqlite(rest, settings)


def _check_settings(settings: Settings) -> None:
    durability, timeout, read_only = settings.durability, settings.timeout, settings.read_only
    if durability not in DURABILITIES:
        raise ValueError(f"durability must be one of {', '.join(DURABILITIES)}, not {durability!r}")
    if type(timeout) not in (int, float) or not 0 < timeout < 1e6:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
    if not isinstance(read_only, bool):
        raise TypeError(f"read_only must be True or False, not {read_only!r}")


def _without_password(url: str) -> str:
    return re.sub(r"(//[^/?#]*?:)[^/?#]*@", r"\1…@", url)


def _is_pool(thing: Any) -> bool:
    return any(kind.__module__.startswith("psycopg_pool") for kind in type(thing).__mro__)


def _memory(rest: str, settings: Settings) -> Transport:
    from threadkeep.backends.in_memory.backend import InMemoryBackend  # noqa: PLC0415
    from threadkeep.transports.direct import Direct  # noqa: PLC0415

    if rest:
        raise ValueError(f"memory:// takes nothing after it, not {rest!r}: each one is private and empty")
    return Direct(InMemoryBackend(), read_only=settings.read_only)


def _sqlite(rest: str, settings: Settings) -> Transport:
    from threadkeep.backends.sqlite.dialect import SqliteDialect  # noqa: PLC0415
    from threadkeep.transports.sqlite import SqliteFile  # noqa: PLC0415

    path = rest.removeprefix("/")
    if not rest.startswith("/") or not path or path.endswith("/"):
        raise ValueError(f"sqlite://{rest} names no file: {ACCEPTED}")
    if path == ":memory:":
        raise ValueError("sqlite:///:memory: would be another database in every thread; use memory://")
    if "?" in path or "\0" in path:
        raise ValueError(f"sqlite://{rest}: a query is not accepted, options are arguments of threadkeep.open()")
    return SqliteFile(
        Path(path),
        SqliteDialect(),
        durability=settings.durability,
        timeout=settings.timeout,
        read_only=settings.read_only,
    )


def _postgres(where: Any, settings: Settings, server: ServerOptions) -> Transport:
    try:
        import psycopg_pool  # noqa: PLC0415
        from psycopg import Connection  # noqa: F401, PLC0415
    except ImportError as error:
        raise ImportError(f"postgresql:// needs psycopg and psycopg_pool: {_PIP}") from error
    from threadkeep.backends.postgres.dialect import PostgresDialect  # noqa: PLC0415
    from threadkeep.transports.postgres import PostgresOptions, PostgresServer  # noqa: PLC0415

    if isinstance(where, str):
        _check_text("the URL", where)
        where, said = _without_our_options(where)
        server = _said_once(server, said)
    elif not isinstance(where, psycopg_pool.ConnectionPool):
        raise TypeError(
            f"a pool must be a psycopg_pool.ConnectionPool, not {type(where).__name__}: it serves async callers too"
        )
    elif set(server.given()) & {"min_size", "max_size", "application_name"}:
        raise ValueError("min_size, max_size and application_name are the pool's own business")
    _check(server)
    low, high = _sizes(server)
    options = PostgresOptions(
        min_size=low,
        max_size=high,
        prepare=server.prepare is not False,
        by_thread=server.group == "thread",
        timeout=settings.timeout,
        read_only=settings.read_only,
        durability=settings.durability,
        wants_vectors=settings.wants_vectors,
        application_name=server.application_name,
    )
    return PostgresServer(where, PostgresDialect(server.schema), options, on_loss=settings.on_loss)


def _valkey(url: str, settings: Settings) -> Transport:
    try:
        from redis.connection import parse_url  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("valkey:// and redis:// need redis-py: pip install 'threadkeep[valkey]'") from error
    from threadkeep.backends.valkey.backend import ValkeyBackend  # noqa: PLC0415
    from threadkeep.transports.valkey import ValkeyOptions, ValkeyServer  # noqa: PLC0415

    base, _, query = url.partition("://")[2].partition("?")
    place, _, path = base.partition("/")
    if path not in ("", "0"):
        told = _without_password(url)
        raise ValueError(f"{told}: a cluster has no database but 0; prefix= keeps several Keeps apart")
    said, theirs = _said_to_us(query, _VALKEY_OPTIONS)
    _check_known(theirs)
    prefix, kept = said.get("prefix", "tk"), said.get("thread_ttl")
    if not prefix or {"{", "}"} & set(prefix):
        raise ValueError(f"prefix must be a name without braces, not {prefix!r}")
    hosts, driver_settings = _addressed(place, theirs, parse_url, secure=url.startswith(_SECURE))
    replicas = said.get("replicas", 0 if settings.durability == "relaxed" else None)
    backend = ValkeyBackend(prefix, kept * 1000 if kept is not None else None, tidies=not settings.read_only)
    options = ValkeyOptions(hosts, driver_settings, replicas, settings.timeout, settings.read_only)
    return ValkeyServer(backend, options, on_loss=settings.on_loss)


def _addressed(
    place: str, query: str, parse: Callable[[str], dict[str, Any]], *, secure: bool
) -> tuple[tuple[tuple[str, int], ...], dict[str, Any]]:
    """The hosts that a URL names, and what redis-py reads out of the rest of it."""
    who, at, hosts = place.rpartition("@")
    scheme = "rediss" if secure else "redis"
    each = [parse(f"{scheme}://{who}{at}{host}/?{query}") for host in hosts.split(",")]
    addresses = tuple((one.get("host", "localhost"), one.get("port", 6379)) for one in each)
    ours = ("host", "port", "db", "connection_class")
    settings = {name: value for name, value in each[0].items() if name not in ours}
    return addresses, settings | ({"ssl": True} if secure else {})


def _check(server: ServerOptions) -> None:
    _check_text("application_name", server.application_name)
    _check_text("schema", server.schema)
    if server.schema is not None and not 0 < len(server.schema.encode()) < 64:
        raise ValueError(f"schema must be a name of 1 to 63 bytes, not {server.schema!r}")
    if server.prepare is not None and not isinstance(server.prepare, bool):
        raise TypeError(f"prepare must be True or False, not {server.prepare!r}")
    if server.group not in (None, *GROUPS):
        raise ValueError(f"group must be one of {', '.join(GROUPS)}, not {server.group!r}")


def _check_text(what: str, text: Any) -> None:
    """Refuse what a server would cut short or could not be sent."""
    if text is None:
        return
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{what} has a character that no server takes")


def _sizes(server: ServerOptions) -> tuple[int, int]:
    """How many connections the pool holds, at least and at most."""
    for name, size in (("min_size", server.min_size), ("max_size", server.max_size)):
        if size is not None and (type(size) is not int or size < (name == "max_size")):
            raise ValueError(f"{name} must be a number of connections, not {size!r}")
    high = server.max_size if server.max_size is not None else max(8, server.min_size or 0)
    low = server.min_size if server.min_size is not None else min(1, high)
    if low > high:
        raise ValueError(f"min_size={low} is more than max_size={high}")
    return low, high


def _truth(text: str) -> bool:
    return {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}[text.lower()]


_OURS: Mapping[str, Callable[[str], Any]] = {
    "schema": str, "min_size": int, "max_size": int, "prepare": _truth, "group": str,
}  # fmt: skip


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _seconds(text: str) -> int:
    number = int(text)
    if not 0 < number < _MOST_SECONDS:
        raise ValueError(text)
    return number


_MOST_SECONDS = 100 * 366 * 24 * 3600
_VALKEY_OPTIONS: Mapping[str, Callable[[str], Any]] = {"prefix": str, "replicas": _count, "thread_ttl": _seconds}


def _check_known(query: str) -> None:
    """Refuse what redis-py would drop, or stumble over at first use."""
    from redis import Redis  # noqa: PLC0415

    known = signature(Redis.__init__).parameters.keys() - {"self", "host", "port", "db"}
    for name in (piece.partition("=")[0] for piece in query.split("&") if piece):
        if name not in known:
            raise ValueError(f"{name} in the URL is not known: {', '.join(_VALKEY_OPTIONS)}, or an option of redis-py")


def _without_our_options(url: str) -> tuple[str, dict[str, Any]]:
    """The URL for libpq, and what its query says to us."""
    base, _, query = url.partition("?")
    said, rest = _said_to_us(query, _OURS)
    return base + ("?" + rest if rest else ""), said


def _said_to_us(query: str, ours: Mapping[str, Callable[[str], Any]]) -> tuple[dict[str, Any], str]:
    """What a query says to us, and the rest of it."""
    said: dict[str, Any] = {}
    rest = []
    for piece in query.split("&") if query else []:
        name, _, text = piece.partition("=")
        if name not in ours:
            rest.append(piece)
            continue
        try:
            value = ours[name](unquote(text))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{name}={text} in the URL is not understood") from error
        if said.setdefault(name, value) != value:
            raise ValueError(f"{name} is said twice in the URL: {said[name]!r} and {value!r}")
    return said, "&".join(rest)


def _said_once(server: ServerOptions, said: Mapping[str, Any]) -> ServerOptions:
    for name, value in said.items():
        if getattr(server, name) not in (None, value):
            raise ValueError(f"{name} is {value!r} in the URL and {getattr(server, name)!r} beside it")
    return replace(server, **said)
