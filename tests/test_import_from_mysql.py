"""Imports from langgraph-checkpoint-mysql: what its savers and stores wrote to a real MariaDB, in each of its schemas."""

from __future__ import annotations

import asyncio
import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest
from langgraph.checkpoint.mysql.asyncmy import AsyncMySaver
from langgraph.checkpoint.mysql.base import MIGRATIONS
from langgraph.checkpoint.mysql.pymysql import PyMySQLSaver, ShallowPyMySQLSaver
from langgraph.store.mysql.pymysql import PyMySQLStore

import mysql_servers
import threadkeep
from checkpoint_chains import Chain, list_ids
from foreign_savers import Database, afill_saver, assert_same, config_of, fill_saver, finish_thread, read_thread
from mysql_servers import Server
from processes import run as run_script
from test_import_from_cube import assert_same_memories, remembered
from threadkeep.cli.app import run
from threadkeep.cli.foreign import is_foreign
from threadkeep.errors import Unavailable
from threadkeep.transfer.sources.detect import detect
from tls_servers import certificates

THREADS = ["chat", "asked", "answered"]
TABLES = ["checkpoints", "checkpoint_blobs", "checkpoint_writes"]
FIRST, WIDE, WITHOUT_NS, HASHED, WITH_PATH = 9, 12, 15, 18, 19
"""Numbers of migrations after which a release's tables were as they were."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with mysql_servers.server() as running:
        yield running


@pytest.fixture(scope="module")
def written(server: Server) -> str:
    """A database that a PyMySQLSaver wrote."""
    name = server.fresh_database()
    with saver_of(server, name) as saver:
        fill_saver(saver)
    return name


@pytest.fixture
def empty() -> Iterator[threadkeep.Keep]:
    with threadkeep.open("memory://") as keep:
        yield keep


@contextmanager
def connected(server: Server, database: str) -> Iterator[Any]:
    with pymysql.connect(
        host="127.0.0.1", port=server.port, user="tester", password="a/b", database=database, autocommit=True
    ) as connection:
        yield connection


class InOrder:
    """A saver whose pending writes are in the order of the MySQL savers, which is that of their tasks' ids."""

    def __init__(self, saver: Any) -> None:
        self._saver = saver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)

    def list(self, config: Any) -> list[Any]:
        return [_in_order(each) for each in self._saver.list(config)]

    def get_tuple(self, config: Any) -> Any:
        return _in_order(self._saver.get_tuple(config))


def _in_order(found: Any) -> Any:
    return found._replace(pending_writes=sorted(found.pending_writes, key=lambda write: write[0]))


@contextmanager
def saver_of(server: Server, database: str, kind: Any = PyMySQLSaver) -> Iterator[Any]:
    with connected(server, database) as connection, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        saver = kind(connection)
        saver.setup()
        yield saver


def assert_imported(server: Server, database: str, keep: threadkeep.Keep, theirs: Any) -> None:
    """Import a database and compare what both savers return."""
    found = keep.import_from(server.url(database))
    assert (found.threads, found.differences, found.kinds) == (3, (), ("langgraph-mysql",))
    assert found.writes > 20
    assert_same(InOrder(keep.checkpointer), InOrder(theirs), THREADS)


def test_threads_of_a_mysql_saver_are_imported_and_continue(url: str, server: Server) -> None:
    name = server.fresh_database()
    with threadkeep.open(url) as keep, saver_of(server, name) as theirs:
        fill_saver(theirs)
        rows = [server.execute(f"CHECKSUM TABLE {table}", name) for table in TABLES]
        assert_imported(server, name, keep, theirs)
        assert [server.execute(f"CHECKSUM TABLE {table}", name) for table in TABLES] == rows
        again = keep.import_from(server.url(name), kind="langgraph-mysql")
        assert (again.checkpoints, again.differences) == (0, ())
        assert again.already_there > 0
        for thread in ("chat", "asked"):
            assert finish_thread(keep.checkpointer, thread) == finish_thread(theirs, thread)


def test_an_async_import_through_a_socket_selects_threads(server: Server, written: str, empty: threadkeep.Keep) -> None:
    url = f"mariadb://root@localhost/{written}?unix_socket={server.socket}"
    assert asyncio.run(empty.aimport_from(url, prefix="a")).threads == 2
    assert {each.id for each in empty.threads()} == {"asked", "answered"}


async def test_threads_of_an_async_mysql_saver_are_imported(server: Server, empty: threadkeep.Keep) -> None:
    name = server.fresh_database()
    async with AsyncMySaver.from_conn_string(f"mysql://root@localhost/{name}?unix_socket={server.socket}") as theirs:
        await theirs.setup()
        await afill_saver(theirs)
    assert (await empty.aimport_from(server.url(name))).is_equal
    with saver_of(server, name) as theirs:
        assert_same(InOrder(empty.checkpointer), InOrder(theirs), ["achat", "aasked"])


def test_large_values_come_a_few_at_a_time(
    server: Server, written: str, empty: threadkeep.Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.transfer.sources.langgraph_blobs._BYTES_AT_ONCE", 3000)
    monkeypatch.setattr("threadkeep.transfer.sources.langgraph_blobs._AT_ONCE", 3)
    with saver_of(server, written) as theirs:
        assert_imported(server, written, empty, theirs)


def test_threads_of_a_shallow_mysql_saver_are_imported(server: Server, empty: threadkeep.Keep) -> None:
    name = server.fresh_database()
    with saver_of(server, name, ShallowPyMySQLSaver) as theirs:
        fill_saver(theirs, turns=1)
        assert empty.import_from(server.url(name)).is_equal
        assert_same(InOrder(empty.checkpointer), InOrder(theirs), THREADS)
    assert finish_thread(empty.checkpointer, "asked")[1] == ()


# --- older schemas, and that of others


def copied(server: Server, source: str, migrations: int) -> str:
    """Return a database with the tables of an older release, and the rows of another database."""
    name = server.fresh_database()
    with connected(server, name) as connection, connection.cursor() as cursor:
        for migration in MIGRATIONS[:migrations]:
            cursor.execute(migration)
        for table in TABLES:
            cursor.execute(f"SHOW COLUMNS FROM {table}")
            columns = ", ".join(f"`{row[0]}`" for row in cursor.fetchall())
            cursor.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {source}.{table}")
    return name


@pytest.mark.parametrize("migrations", [FIRST, WIDE, WITHOUT_NS, HASHED, WITH_PATH])
def test_older_schemas_are_read(server: Server, written: str, empty: threadkeep.Keep, migrations: int) -> None:
    name = copied(server, written, migrations)
    has = [row[0] for row in server.execute("SHOW COLUMNS FROM checkpoint_writes", name)]
    assert ("checkpoint_ns_hash" in has, "task_path" in has) == (migrations >= HASHED, migrations >= WITH_PATH)
    with saver_of(server, written) as theirs:
        assert_imported(server, name, empty, theirs)


def test_tables_with_the_namespace_only_as_a_hash_in_text_are_read(
    server: Server, written: str, empty: threadkeep.Keep
) -> None:
    name = copied(server, written, len(MIGRATIONS))
    for table in TABLES:
        server.execute(f"ALTER TABLE {table} MODIFY checkpoint_ns_hash BINARY(32), ADD gmt_create DATETIME", name)
        server.execute(f"UPDATE {table} SET checkpoint_ns_hash = md5(checkpoint_ns)", name)
        server.execute(f"ALTER TABLE {table} MODIFY checkpoint_ns_hash CHAR(32) NOT NULL", name)
    for table in TABLES[1:]:
        server.execute(f"ALTER TABLE {table} DROP checkpoint_ns, CHANGE `blob` blob_data LONGBLOB", name)
    root = hashlib.md5(b"", usedforsecurity=False).hexdigest()
    assert (root,) in server.execute("SELECT checkpoint_ns_hash FROM checkpoint_blobs", name)
    with saver_of(server, written) as theirs:
        assert_imported(server, name, empty, theirs)


@pytest.mark.parametrize("release", ["a", "b", "c", "d"])
def test_checkpoints_of_old_releases_are_read_as_from_postgres(server: Server, release: str) -> None:
    """The formats of checkpoints, values and sends are those of langgraph-checkpoint-postgres at the time."""
    theirs, name = Database().restored(release), server.fresh_database()
    with connected(server, name) as connection, connection.cursor() as cursor:
        for migration in MIGRATIONS[:FIRST]:
            cursor.execute(migration)
        for table in TABLES:
            cursor.execute(f"SHOW COLUMNS FROM {table}")
            has = {
                name
                for (name,) in theirs.execute("SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass", [table])
            }
            columns = [row[0] for row in cursor.fetchall() if row[0] in has]
            selected = ", ".join(
                f"{each}::text" if each in ("checkpoint", "metadata") else f'"{each}"' for each in columns
            )
            names, places = ", ".join(f"`{each}`" for each in columns), ", ".join(["%s"] * len(columns))
            cursor.executemany(
                f"INSERT INTO {table} ({names}) VALUES ({places})", theirs.execute(f"SELECT {selected} FROM {table}")
            )
    with threadkeep.open("memory://") as ours, threadkeep.open("memory://") as other:
        assert ours.import_from(server.url(name)).differences == ()
        assert other.import_from(theirs.url).differences == ()
        for thread in ("talk", "sends", "nested"):
            expected = read_thread(InOrder(other.checkpointer), thread)
            assert expected
            assert read_thread(InOrder(ours.checkpointer), thread) == expected


def test_threads_whose_ids_differ_only_in_case_stay_apart(server: Server, empty: threadkeep.Keep) -> None:
    name = server.fresh_database()
    with saver_of(server, name) as theirs:
        for thread, turns in (("User", 1), ("user", 2), ("user ", 3)):
            chain = Chain(theirs, thread)
            for n in range(turns):
                chain.number = 10 * turns + n
                chain.put({"log": [thread, str(n)]})
    assert empty.import_from(server.url(name)).threads == 3
    assert [len(list_ids(empty.checkpointer, thread)) for thread in ("User", "user", "user ")] == [1, 2, 3]
    found = empty.checkpointer.get_tuple(config_of("User"))
    assert found.checkpoint["channel_values"] == {"log": ["User", "0"]}


def test_one_snapshot_is_read(server: Server, written: str) -> None:
    name = copied(server, written, len(MIGRATIONS))
    (source,) = detect(server.url(name), None)
    before = source.graph.threads(), source.graph.count("chat")
    server.execute("DELETE FROM checkpoints", name)
    assert (source.graph.threads(), source.graph.count("chat")) == before == (sorted(THREADS), before[1])
    source.close()


# --- memories


def test_memories_of_a_mysql_store_come_with_their_times(
    server: Server, empty: threadkeep.Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.transfer.sources.langgraph_mysql._PAGE", 2)
    name = server.fresh_database()
    with connected(server, name) as connection:
        theirs = PyMySQLStore(connection)
        theirs.setup()
        remembered(theirs, ttl=False)
        server.execute("UPDATE store SET created_at = '2024-02-29 12:00:00' WHERE `key` = 'hidden'", name)
        connection.cursor().execute("SET time_zone = '+00:00'")
        found = empty.import_from(server.url(name))
        assert (found.memories, found.threads, found.differences) == (6, 0, ())
        assert_same_memories(empty.store, theirs)


# --- errors, commands


def test_an_invalid_mysql_url_is_refused(server: Server, empty: threadkeep.Keep) -> None:
    with pytest.raises(ValueError, match="names no database"):
        empty.import_from("mysql://user:secret@localhost")
    with pytest.raises(ValueError, match="unknown option schema"):
        empty.import_from("mysql://localhost/db?schema=a")
    with pytest.raises(ValueError, match=r"no known tables, of .* -mysql"):
        empty.import_from(server.url(server.fresh_database()))
    with pytest.raises(Unavailable, match="Unknown database"):
        empty.import_from(server.url("missing"))
    for url in (server.url("mysql", user="tester:secret"), "mysql://user:secret@127.0.0.1:1/db"):
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1") as caught:
            empty.import_from(url)
        assert "secret" not in str(caught.value)


def test_tls_is_used_and_the_certificate_checked(
    server: Server, written: str, empty: threadkeep.Keep, tmp_path: Path
) -> None:
    server.execute("CREATE USER IF NOT EXISTS secured@'%' IDENTIFIED BY 'a' REQUIRE SSL")
    server.execute("GRANT ALL ON *.* TO secured@'%'")
    url, others = server.url(written, user="secured:a"), certificates(tmp_path / "others")
    assert empty.import_from(f"{url}?ssl_ca={server.certificates.authority}&ssl_verify_identity=true").threads == 3
    assert empty.import_from(f"{url}?ssl_ca={others.authority}&ssl_verify_cert=false").already_there > 0
    for unverified in (f"ssl_ca={others.authority}", "ssl_verify_cert=true", "ssl_verify_identity=true"):
        with pytest.raises(Unavailable, match="certificate verify failed"):
            empty.import_from(f"{url}?{unverified}")
    with pytest.raises(Unavailable, match="certificate verify failed.*localhost"):
        empty.import_from(
            f"{url.replace('127.0.0.1', 'localhost')}?ssl_ca={server.certificates.authority}&ssl_verify_identity=true"
        )
    with pytest.raises(ValueError, match="ssl_ca in the URL: there is no file /missing/ca.pem"):
        empty.import_from(f"{url}?ssl_ca=/missing/ca.pem")


def test_without_the_driver_an_import_says_what_to_install() -> None:
    script = """
import sys, threadkeep
sys.modules["pymysql"] = None
try:
    threadkeep.open("memory://").import_from("mysql://localhost/db")
except ImportError as error:
    print(error)
"""
    assert run_script(script).strip() == 'mysql:// needs PyMySQL: pip install "threadkeep[mysql]"'


def test_the_command_imports_from_mysql(
    server: Server, written: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", server.url(written), "--url", str(tmp_path / "ours.db")]) == 0
    assert "imported 3 threads from langgraph-mysql: 3 created" in capsys.readouterr().out


def test_the_inspector_opens_a_mysql_database_as_one_of_another_saver(server: Server, written: str) -> None:
    assert is_foreign(server.url(written))
    with pytest.raises(ValueError, match="no known tables"):
        is_foreign(server.url(server.fresh_database()))
