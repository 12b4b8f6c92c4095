"""A foreign MySQL or MariaDB database, read in one read-only transaction that sees one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from ssl import CERT_NONE, VERIFY_X509_STRICT, SSLContext, create_default_context
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from threadkeep.errors import Unavailable, without_passwords

_PORT = 3306
_OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity")
"""Options that a URL may have, named as PyMySQL names them."""
_FLAGS = {"ssl_verify_cert", "ssl_verify_identity"}
_FILES = {"ssl_ca", "ssl_cert", "ssl_key"}
_MARIADB, _MYSQL = "SET SESSION max_statement_time = 0", "SET SESSION max_execution_time = 0"
"""Switch off the time limit of a query."""


class MySqlRows:
    """A connection in a REPEATABLE READ, READ ONLY transaction. `types` has the types of columns by table and name."""

    def __init__(self, url: str, *, timeout: float = 30.0) -> None:
        try:
            import pymysql  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ImportError('mysql:// needs PyMySQL: pip install "threadkeep[mysql]"') from error
        self._errors: Any = pymysql.Error
        self.named = without_passwords(url)
        options = _connection_options(url)
        with self._translated():
            self._connection: Any = pymysql.connect(**options, connect_timeout=max(int(timeout), 2), charset="utf8mb4")
            is_mariadb = "MariaDB" in self._connection.get_server_info()
            for statement in (
                _MARIADB if is_mariadb else _MYSQL,
                "SET SESSION wait_timeout = 86400",
                "SET SESSION net_write_timeout = 3600",
                "SET SESSION time_zone = '+00:00'",
                "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
                "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
            ):
                self.all(statement)
            columns = self._columns()
        self.types = {(table, column): kind for table, column, kind in columns}
        self.tables: dict[str, set[str]] = {}
        for table, column, _ in columns:
            self.tables.setdefault(table, set()).add(column)

    def _columns(self) -> list[Any]:
        query = (
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = database()"
        )
        return self.all(query)

    def all(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """Return all rows of a query."""
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return list(cursor.fetchall())

    def close(self) -> None:
        """Close the connection."""
        if self._connection.open:
            self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            reason = error.args[1] if len(error.args) > 1 else error
            raise Unavailable(f"{self.named} cannot be read: {without_passwords(str(reason))}") from error


def _connection_options(url: str) -> dict[str, Any]:
    """Return what PyMySQL needs of a URL. ValueError if it names no database or no file, or has an unknown option."""
    parts = urlsplit(url)
    database = unquote(parts.path.removeprefix("/"))
    if not database:
        raise ValueError(f"{without_passwords(url)} names no database: mysql://user:password@host/database")
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    for name in options.keys() - set(_OPTIONS):
        raise ValueError(f"unknown option {name} in the URL: use {', '.join(_OPTIONS)}")
    for name in sorted(options.keys() & _FILES):
        if not Path(options[name]).is_file():
            raise ValueError(f"{name} in the URL: there is no file {options[name]}")
    options |= {name: options[name].lower() in ("true", "1") for name in options.keys() & _FLAGS}
    tls = {name.removeprefix("ssl_"): options.pop(name) for name in options.keys() & {*_FILES, *_FLAGS}}
    return options | {
        "ssl": _tls(**tls) if tls else None,
        "host": parts.hostname or "localhost",
        "port": parts.port or _PORT,
        "user": unquote(parts.username) if parts.username is not None else None,
        "password": unquote(parts.password or ""),
        "database": database,
    }


def _tls(
    *,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    verify_cert: bool | None = None,
    verify_identity: bool = False,
) -> SSLContext:
    """Return what TLS must check. PyMySQL checks no certificate with `ssl_ca` alone, and no name without it."""
    context = create_default_context(cafile=ca)
    context.verify_flags &= ~VERIFY_X509_STRICT  # certificates that MySQL generates would not pass
    context.check_hostname = verify_identity
    if not (verify_identity or (ca is not None if verify_cert is None else verify_cert)):
        context.verify_mode = CERT_NONE
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context
