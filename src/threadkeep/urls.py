"""Storage URLs: make a URL of a path, parse it, check the options, and make the transport with its backend.

Drivers are imported here, when a URL needs one; a missing one raises ImportError with the `pip install` line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import unquote

from threadkeep.drivers.runner import Transport
from threadkeep.errors import without_passwords
from threadkeep.value import Value

Durability: TypeAlias = Literal["strict", "relaxed"]
Group: TypeAlias = Literal["all", "thread"]
DURABILITIES: tuple[Durability, ...] = get_args(Durability)
GROUPS: tuple[Group, ...] = get_args(Group)
StorageUrl: TypeAlias = str | os.PathLike[str]
"""A URL, or the path of an SQLite file."""
SQLITE = "sqlite:///"
ACCEPTED = (
    "accepted are the path of a file, sqlite:///relative.db, sqlite:////absolute/path.db,"
    " postgresql://user@host/database,"
    " valkey://host:port,host:port/, memory:// and a psycopg_pool.ConnectionPool"
)
_POSTGRES = ("postgresql", "postgres")
_NEEDS_PSYCOPG = 'postgresql:// needs psycopg and psycopg_pool: pip install "threadkeep[postgres]"'
_VALKEY = ("valkey", "valkeys", "redis", "rediss")
_SECURE = ("valkeys:", "rediss:")
_SCHEMES = ("memory", "sqlite", *_POSTGRES, *_VALKEY)
_START_OF_A_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # a single letter is a drive of Windows
_LIBPQ = re.compile(r"\s*(host|hostaddr|port|dbname|user|password|service)\s*=")
_MAX_TTL_SECONDS = 100 * 366 * 24 * 3600


class ServerOptions(Value):
    """Options for PostgreSQL; None means the default."""

    schema: str | None = None
    min_size: int | None = None
    max_size: int | None = None
    prepare: bool | None = None
    group: Group | None = None
    application_name: str | None = None

    def given(self) -> list[str]:
        """Return the names of the options that were given."""
        return [name for name in self._fields if getattr(self, name) is not None]


def _ignore_loss() -> None:
    """The default for `Settings.on_loss`."""


class Settings(Value):
    """Options for every backend. `wants_vectors` says that vectors will be stored.

    The transport calls `on_loss` when the storage may have lost what it acknowledged: caches are no longer valid.
    """

    durability: Durability = "strict"
    timeout: float = 30.0
    read_only: bool = False
    migrate: bool = True
    wants_vectors: bool = False
    on_loss: Callable[[], None] = _ignore_loss


def as_url(storage: Any) -> Any:
    """Return the URL of an SQLite file for its path; a URL, or what is neither, unchanged.

    A path that starts with `~/` is in the home folder. ValueError for a text that looks like something else than a
    path: a URL without `//`, the name of a scheme, or a connection string of libpq.
    """
    is_path = isinstance(storage, os.PathLike)
    text = os.fspath(storage) if is_path else storage
    if not isinstance(text, str) or ("://" in text and not is_path):
        return text
    if not text or _looks_like_a_url(text, is_path=is_path):
        shown = re.sub(r"([:=]).*", r"\1…", text, count=1, flags=re.DOTALL)  # there may be a password in the rest
        raise ValueError(f"cannot open {shown!r}: {ACCEPTED}")
    return SQLITE + (os.path.expanduser(text) if text.startswith("~/") else text)  # noqa: PTH111 - of a str


def _looks_like_a_url(text: str, *, is_path: bool) -> bool:
    """Whether a text names a scheme; if it is no Path, also whether it begins as other URLs and libpq's options do."""
    is_known = text.partition(":")[0] in (*_SCHEMES, "file")
    return is_known or (not is_path and bool(_START_OF_A_URL.match(text) or _LIBPQ.match(text)))


def transport_for(url: Any, settings: Settings, server: ServerOptions) -> Transport:
    """Return the transport for a URL from `as_url` or a psycopg pool. It connects at first use, not here.

    Raise ValueError or TypeError for a URL or an option that is not valid, ImportError if the driver is missing.
    """
    _check_settings(settings)
    if not isinstance(url, str):
        if _is_pool(url):
            return _postgres(url, settings, server)
        raise TypeError(f"a storage must be a str or a path, not {type(url).__name__}; {ACCEPTED}")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ValueError(f"cannot open {without_passwords(url)!r}: {ACCEPTED}")
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
    for name, flag in (("read_only", read_only), ("migrate", settings.migrate)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be True or False, not {flag!r}")


def _is_sync_pool(value: Any) -> bool:
    from psycopg_pool import ConnectionPool  # noqa: PLC0415

    return isinstance(value, ConnectionPool)


def _is_pool(value: Any) -> bool:
    return any(kind.__module__.startswith("psycopg_pool") for kind in type(value).__mro__)


# --- memory and SQLite


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
        raise ValueError("sqlite:///:memory: would be a different database in every thread; use memory://")
    if "?" in path or "\0" in path:
        raise ValueError(f"sqlite://{rest}: a query is not accepted; options are arguments of threadkeep.open()")
    return SqliteFile(
        Path(path),
        SqliteDialect(),
        durability=settings.durability,
        timeout=settings.timeout,
        read_only=settings.read_only,
        migrate=settings.migrate,
    )


# --- PostgreSQL


def _postgres(target: Any, settings: Settings, server: ServerOptions) -> Transport:
    try:
        from psycopg import Connection  # noqa: F401, PLC0415
    except ImportError as error:
        raise ImportError(_NEEDS_PSYCOPG) from error
    if find_spec("psycopg_pool") is None:  # it is imported only for a pool that is passed: it takes 4 ms
        raise ImportError(_NEEDS_PSYCOPG)
    from threadkeep.backends.postgres.dialect import PostgresDialect  # noqa: PLC0415
    from threadkeep.transports.postgres import PostgresOptions, PostgresServer  # noqa: PLC0415

    if isinstance(target, str):
        _check_text("the URL", target)
        target, server = _take_postgres_options(target, server)
    elif not _is_sync_pool(target):
        raise TypeError(
            f"a pool must be a psycopg_pool.ConnectionPool, not {type(target).__name__}: it serves async callers too"
        )
    elif set(server.given()) & {"min_size", "max_size", "application_name"}:
        raise ValueError("min_size, max_size and application_name: set them on the pool that you pass")
    _check_server_options(server)
    min_size, max_size = _pool_sizes(server)
    options = PostgresOptions(
        min_size=min_size,
        max_size=max_size,
        prepare=server.prepare is not False,
        by_thread=server.group == "thread",
        timeout=settings.timeout,
        read_only=settings.read_only,
        durability=settings.durability,
        wants_vectors=settings.wants_vectors,
        application_name=server.application_name,
        migrate=settings.migrate,
    )
    backend = PostgresDialect(server.schema, by_partition=options.by_thread)
    return PostgresServer(target, backend, options, on_loss=settings.on_loss)


def _take_postgres_options(url: str, server: ServerOptions) -> tuple[str, ServerOptions]:
    """Split a URL into the one for libpq and our own options, which may also be given as arguments."""
    base, _, query = url.partition("?")
    ours, rest = _split_query(query, _POSTGRES_OPTIONS)
    for name, value in ours.items():
        argument = getattr(server, name)
        if argument not in (None, value):
            raise ValueError(f"{name} is {value!r} in the URL and {argument!r} as an argument")
    return base + ("?" + rest if rest else ""), server._replace(**ours)


def _check_server_options(server: ServerOptions) -> None:
    _check_text("application_name", server.application_name)
    _check_text("schema", server.schema)
    if server.schema is not None and not 0 < len(server.schema.encode()) < 64:
        raise ValueError(f"schema must be a name of 1 to 63 bytes, not {server.schema!r}")
    if server.prepare is not None and not isinstance(server.prepare, bool):
        raise TypeError(f"prepare must be True or False, not {server.prepare!r}")
    if server.group not in (None, *GROUPS):
        raise ValueError(f"group must be one of {', '.join(GROUPS)}, not {server.group!r}")


def _check_text(what: str, text: Any) -> None:
    """Refuse text that a server would cut short or that cannot be sent to it."""
    if text is None:
        return
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{what} contains a character that PostgreSQL does not accept (NUL or a surrogate)")


def _pool_sizes(server: ServerOptions) -> tuple[int, int]:
    """Return the smallest and the greatest number of connections in the pool."""
    for name, size in (("min_size", server.min_size), ("max_size", server.max_size)):
        if size is not None and (type(size) is not int or size < (name == "max_size")):
            raise ValueError(f"{name} must be a number of connections, not {size!r}")
    max_size = server.max_size if server.max_size is not None else max(8, server.min_size or 0)
    min_size = server.min_size if server.min_size is not None else min(1, max_size)
    if min_size > max_size:
        raise ValueError(f"min_size={min_size} is greater than max_size={max_size}")
    return min_size, max_size


# --- Valkey


def _valkey(url: str, settings: Settings) -> Transport:
    try:
        from redis.connection import parse_url  # noqa: PLC0415
    except ImportError as error:
        raise ImportError('valkey:// and redis:// need redis-py: pip install "threadkeep[valkey]"') from error
    from threadkeep.backends.valkey.backend import ValkeyBackend  # noqa: PLC0415
    from threadkeep.transports.valkey import ValkeyOptions, ValkeyServer  # noqa: PLC0415

    base, _, query = url.partition("://")[2].partition("?")
    authority, _, path = base.partition("/")
    if path not in ("", "0"):
        raise ValueError(
            f"{without_passwords(url)}: a cluster has no database but 0; to keep several Keeps apart, use prefix="
        )
    ours, driver_query = _split_query(query, _VALKEY_OPTIONS)
    _check_driver_options(driver_query)
    prefix, ttl = ours.get("prefix", "tk"), ours.get("thread_ttl")
    if not prefix or {"{", "}"} & set(prefix):
        raise ValueError(f"prefix must be a name without braces, not {prefix!r}")
    hosts, driver_settings = _parse_hosts(authority, driver_query, parse_url, secure=url.startswith(_SECURE))
    replicas = ours.get("replicas", 0 if settings.durability == "relaxed" else None)
    backend = ValkeyBackend(prefix, ttl * 1000 if ttl is not None else None, tidies=not settings.read_only)
    options = ValkeyOptions(hosts, driver_settings, replicas, settings.timeout, settings.read_only, settings.migrate)
    return ValkeyServer(backend, options, on_loss=settings.on_loss)


def _parse_hosts(
    authority: str, query: str, parse: Callable[[str], dict[str, Any]], *, secure: bool
) -> tuple[tuple[tuple[str, int], ...], dict[str, Any]]:
    """Return the (host, port) pairs of a URL, and the driver settings that redis-py reads from the rest of it."""
    user, at, hosts = authority.rpartition("@")
    scheme = "rediss" if secure else "redis"
    parsed = [parse(f"{scheme}://{user}{at}{host}/?{query}") for host in hosts.split(",")]
    addresses = tuple((each.get("host", "localhost"), each.get("port", 6379)) for each in parsed)
    ours = ("host", "port", "db", "connection_class")
    settings = {name: value for name, value in parsed[0].items() if name not in ours}
    return addresses, settings | ({"ssl": True} if secure else {})


def _check_driver_options(query: str) -> None:
    """Refuse options that redis-py would ignore, or reject only at first use."""
    from redis import Redis  # noqa: PLC0415

    known = signature(Redis.__init__).parameters.keys() - {"self", "host", "port", "db"}
    for name in (piece.partition("=")[0] for piece in query.split("&") if piece):
        if name not in known:
            raise ValueError(
                f"unknown option {name} in the URL: use {', '.join(_VALKEY_OPTIONS)}, or an option of redis-py"
            )


# --- options in a URL's query


def _parse_bool(text: str) -> bool:
    return {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}[text.lower()]


def _parse_count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _parse_ttl(text: str) -> int:
    number = int(text)
    if not 0 < number < _MAX_TTL_SECONDS:
        raise ValueError(text)
    return number


_POSTGRES_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "schema": str,
    "min_size": int,
    "max_size": int,
    "prepare": _parse_bool,
    "group": str,
}
_VALKEY_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "prefix": str,
    "replicas": _parse_count,
    "thread_ttl": _parse_ttl,
}


def _split_query(query: str, parsers: Mapping[str, Callable[[str], Any]]) -> tuple[dict[str, Any], str]:
    """Return our own options out of a URL's query, parsed, and the rest of the query, which is the driver's."""
    ours: dict[str, Any] = {}
    rest = []
    for piece in query.split("&") if query else []:
        name, _, text = piece.partition("=")
        if name not in parsers:
            rest.append(piece)
            continue
        try:
            value = parsers[name](unquote(text))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{name}={text} in the URL is not valid") from error
        if ours.setdefault(name, value) != value:
            raise ValueError(f"{name} is given twice in the URL: {ours[name]!r} and {value!r}")
    return ours, "&".join(rest)
