"""Storages that older versions wrote are migrated, and hold the same afterwards; `migrate=False` migrates nothing."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from redis import Redis

import postgres_servers
import threadkeep
import valkey_servers
from old_schemas import set_version, todays_columns, use_version
from sample_keep import contents
from threadkeep.cli.app import run
from threadkeep.engine import schema_versions
from threadkeep.engine.schema_versions import (
    NO_SCHEMA,
    OLDEST_USABLE,
    RELEASED,
    SCHEMA_VERSION,
    SchemaUse,
    SchemaVersions,
    needs_migration,
)
from threadkeep.errors import Corrupt, SchemaTooNew, SchemaTooOld

DATA = Path(__file__).parent / "data"
OLD_VERSIONS = {"own4": 4}
"""The schema versions of the old storages, by the name of their files."""
LAST_RELEASE = "own8"
"""The storages that the last release writes, or will write. Make new ones for each release."""


def unpacked(name: str) -> bytes:
    return gzip.decompress((DATA / f"{name}.gz").read_bytes())


def old_sqlite(name: str, folder: Path) -> str:
    file = folder / "old.db"
    file.write_bytes(unpacked(f"{name}.sqlite"))
    return f"sqlite:///{file}"


def old_postgres(name: str, _folder: Path) -> str:
    server = postgres_servers.shared()
    database = f"old_{postgres_servers.fresh_schema(server).rpartition('=')[2]}"
    server.execute(f'CREATE DATABASE "{database}"')
    psql = [postgres_servers.binaries() / "psql", "--quiet", "--set=ON_ERROR_STOP=1", server.url(database)]
    subprocess.run(psql, input=unpacked(f"{name}.postgres.sql"), check=True, capture_output=True)
    return server.url(database, schema="own")


def old_valkey(name: str, _folder: Path) -> str:
    server = valkey_servers.start()
    for key, dump in json.loads(unpacked(f"{name}.valkey.json")).items():
        server.client.restore(base64.b64decode(key), 0, base64.b64decode(dump))
    return f"valkey://127.0.0.1:{server.port}/?prefix=own:"


SQL_STORAGES = {"sqlite": old_sqlite, "postgres": old_postgres}
OLD_STORAGES = {**SQL_STORAGES, "valkey": old_valkey}


@pytest.fixture(params=OLD_VERSIONS, scope="module")
def old_name(request: pytest.FixtureRequest) -> str:
    """Return the name of the files of an older version."""
    name: str = request.param
    return name


@pytest.fixture
def old_version(old_name: str) -> int:
    """Return the older version."""
    return OLD_VERSIONS[old_name]


@pytest.fixture(params=OLD_STORAGES)
def old_url(request: pytest.FixtureRequest, old_name: str, tmp_path: Path) -> str:
    """Return the URL of a storage of an older version."""
    return OLD_STORAGES[request.param](old_name, tmp_path)


@pytest.fixture(params=SQL_STORAGES)
def old_tables(request: pytest.FixtureRequest, old_name: str, tmp_path: Path) -> str:
    """Return the URL of an older database with tables."""
    return SQL_STORAGES[request.param](old_name, tmp_path)


@pytest.fixture(scope="module")
def expected(old_name: str) -> dict[str, Any]:
    """Return what the old storages hold, from a portable file that the same old version wrote."""
    with threadkeep.open("memory://") as keep:
        keep.import_portable(DATA / f"{old_name}.jsonl.zst")
        return contents(keep)


def test_a_migrated_storage_holds_the_same(old_url: str, expected: dict[str, Any]) -> None:
    with threadkeep.open(old_url) as keep:
        assert contents(keep) == expected
        assert keep.verify().problems == []
        assert keep.migrate().found == SCHEMA_VERSION


def test_a_migrated_storage_can_be_written(old_url: str) -> None:
    with threadkeep.open(old_url) as keep:
        keep.store.put(("users",), "short", {"text": "new"})
        keep.rollback("chat", "latest~2")
        keep.prune(policy=threadkeep.Policy(keep_last=1))
        assert keep.verify().problems == []


def test_a_migration_is_logged_once(old_tables: str, old_version: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "threadkeep.schema")
    for _ in range(2):
        with threadkeep.open(old_tables) as keep:
            keep.threads()
    lines = [record.getMessage() for record in caplog.records if record.name == "threadkeep.schema"]
    assert len(lines) == 1
    assert f"from schema version {old_version} to {SCHEMA_VERSION}" in lines[0]


def test_a_new_storage_is_not_a_migration(fresh_url: Callable[[], str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "threadkeep.schema")
    with threadkeep.open(fresh_url()) as keep:
        keep.threads()
    assert [record.getMessage() for record in caplog.records if record.name == "threadkeep.schema"] == []


@pytest.mark.parametrize("options", [{"migrate": False}, {"read_only": True}], ids=["migrate=False", "read_only"])
def test_an_old_storage_is_refused_and_left_alone(old_tables: str, old_version: int, options: Any) -> None:
    with threadkeep.open(old_tables, **options) as keep:
        with pytest.raises(SchemaTooOld, match=f"schema version {old_version}.*threadkeep migrate"):
            keep.threads()
        assert keep.migrate(dry_run=True).found == old_version


def test_the_command_migrates(
    old_tables: str, old_version: int, expected: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["migrate", "--dry-run", "--url", old_tables]) == 0
    assert f"would migrate from schema version {old_version} to {SCHEMA_VERSION}" in capsys.readouterr().out
    assert run(["migrate", "--url", old_tables]) == 0
    assert f"migrated from schema version {old_version} to {SCHEMA_VERSION}" in capsys.readouterr().out
    assert run(["migrate", "--url", old_tables, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["needed"] is False
    with threadkeep.open(old_tables, migrate=False) as keep:
        assert contents(keep) == expected


def test_old_keys_of_valkey_are_used_as_they_are(old_name: str, tmp_path: Path, expected: dict[str, Any]) -> None:
    url = old_valkey(old_name, tmp_path)
    for options in ({"migrate": False}, {"read_only": True}):
        with threadkeep.open(url, **options) as keep:
            assert contents(keep) == expected
            assert keep.migrate(dry_run=True).found == 0  # version 4 did not state it
    with threadkeep.open(url) as keep:
        keep.threads()
        assert keep.migrate(dry_run=True).found == SCHEMA_VERSION


def test_later_keys_of_valkey_are_refused(tmp_path: Path) -> None:
    url = old_valkey(LAST_RELEASE, tmp_path)
    server = Redis(port=urlsplit(url).port or 0)
    server.hset("own:{000}:schema:", mapping={"version": 9, "readable": SCHEMA_VERSION, "writable": 9})
    with threadkeep.open(url) as keep, pytest.raises(SchemaTooNew, match="read_only=True"):
        keep.threads()
    with threadkeep.open(url, read_only=True) as keep:
        assert keep.threads()


@pytest.mark.parametrize("damaged", [{"version": b"\xff"}, {"readable": "", "writable": 4}])
def test_a_schema_version_of_valkey_that_cannot_be_read_is_reported(tmp_path: Path, damaged: Any) -> None:
    url = old_valkey(LAST_RELEASE, tmp_path)
    Redis(port=urlsplit(url).port or 0).hset("own:{000}:schema:", mapping=damaged)
    with threadkeep.open(url) as keep:
        for use in (keep.threads, lambda: keep.delete("by hand"), lambda: keep.migrate(dry_run=True)):
            with pytest.raises(Corrupt, match="schema version cannot be read"):
                use()


def test_a_storage_without_tables_is_not_created_with_migrate_false(tables_url: str) -> None:
    with threadkeep.open(tables_url, migrate=False) as keep:
        with pytest.raises(SchemaTooOld, match="no threadkeep tables"):
            keep.threads()
        assert keep.migrate().found == 0
        assert keep.threads() == []


def test_an_old_file_can_be_backed_up_before_it_is_migrated(
    old_name: str, old_version: int, tmp_path: Path, expected: dict[str, Any]
) -> None:
    url = old_sqlite(old_name, tmp_path)
    assert run(["backup", url, str(tmp_path / "copy.db")]) == 0
    with threadkeep.open(url, migrate=False) as keep:
        assert keep.migrate(dry_run=True).found == old_version
    with threadkeep.open(f"sqlite:///{tmp_path}/copy.db") as keep:
        assert contents(keep) == expected


def test_refs_that_an_older_version_adds_after_the_migration_are_read(tmp_path: Path) -> None:
    url = old_postgres("own4", tmp_path)
    with threadkeep.open(url) as keep:
        before = contents(keep)
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        for table in ("tk_checkpoints", "tk_writes"):
            connection.execute(f"UPDATE own.{table} SET refs = string_to_array(refs, ',')::integer[]")
        assert connection.execute("SELECT refs FROM own.tk_checkpoints").fetchall()[0][0].startswith("{")
    with threadkeep.open(url) as keep:
        assert contents(keep) == before
        assert keep.verify().problems == []


def test_paths_that_look_short_by_chance_are_read_as_they_were(
    tables_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 8 stores the path of a usual task as byte 1 and the node's name."""
    paths = ["", "\0", "\0a", "\1", "\1agent", "~__pregel_pull, agent", "~__pregel_push, 0", "other"]
    at: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    with monkeypatch.context() as patch:
        use_version(patch, 4)
        with threadkeep.open(tables_url) as keep:
            keep.setup()
            with todays_columns(tables_url, 4):
                for path in paths:
                    keep.checkpointer.put_writes(at, [("notes", path)], path or "none", path)
    with threadkeep.open(tables_url) as keep:
        for path in paths:
            keep.checkpointer.put_writes(at, [("notes", path)], f"new {path}", path)
        keep.checkpointer.put({"configurable": {"thread_id": "t"}}, empty_checkpoint() | {"id": "1"}, {}, {})
        found = keep.checkpointer.get_tuple(at)
        assert found is not None
        order = sorted((path, task) for path in paths for task in (path or "none", f"new {path}"))
        assert found.pending_writes == [(task, "notes", path) for path, task in order]
        assert keep.verify().problems == []


def test_a_new_file_has_small_pages_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    old, new = old_sqlite("own4", tmp_path), f"sqlite:///{tmp_path}/new.db"
    for url, size in ((old, 4096), (new, 2048)):
        with threadkeep.open(url) as keep:
            keep.store.put(("users",), "name", {"text": "Ada"})
            keep.compact()
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as file:
            assert file.pragma("page_size") == size


def test_current_versions_are_used_as_they_are() -> None:
    for use in (SchemaUse(), SchemaUse(read_only=True), SchemaUse(migrate=False)):
        assert not needs_migration(SchemaVersions.of_row(SCHEMA_VERSION), use, database="x.db")


@pytest.mark.parametrize("use", [SchemaUse(read_only=True), SchemaUse(migrate=False)], ids=str)
def test_an_older_version_is_used_as_it_is_if_its_rows_can_be(use: SchemaUse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_versions, "SCHEMA_VERSION", OLDEST_USABLE + 2)
    monkeypatch.setattr(schema_versions, "STEPS", (*schema_versions.STEPS, OLDEST_USABLE + 1, OLDEST_USABLE + 2))
    for version in range(OLDEST_USABLE, OLDEST_USABLE + 3):
        assert not needs_migration(SchemaVersions.of_row(version), use, database="x.db")
    with pytest.raises(SchemaTooOld, match="x.db has the old schema version"):
        needs_migration(SchemaVersions.of_row(RELEASED["0.1.0"]), use, database="x.db")
    with pytest.raises(SchemaTooOld, match="x.db has no threadkeep tables"):
        needs_migration(NO_SCHEMA, use, database="x.db")


@pytest.mark.parametrize("storage", OLD_STORAGES)
def test_a_release_works_with_the_schema_of_the_one_before_without_a_migration(storage: str, tmp_path: Path) -> None:
    """From 0.2.0 on. If it fails: keep the old tables readable and writable, and OLDEST_USABLE at their version."""
    last = list(RELEASED.values())[-1]
    assert last >= OLDEST_USABLE, f"this code needs a migration from version {last}, that of the last release"
    with threadkeep.open("memory://") as keep:
        keep.import_portable(DATA / f"{LAST_RELEASE}.jsonl.zst")
        expected = contents(keep)
    url = OLD_STORAGES[storage](LAST_RELEASE, tmp_path)
    with threadkeep.open(url, migrate=False) as keep:
        assert keep.migrate(dry_run=True).found == last
        assert contents(keep) == expected
        keep.store.put(("users",), "short", {"text": "new"})
        keep.rollback("chat", "latest~2")
        keep.describe("chat", title="A title")
        keep.prune(policy=threadkeep.Policy(keep_last=1))
        assert keep.verify().problems == []
        assert keep.migrate(dry_run=True).found == last


@pytest.mark.parametrize("version", [5, 6, 7])
def test_a_database_of_a_version_that_was_never_released_is_refused_and_left_alone(
    tables_url: str, version: int
) -> None:
    with threadkeep.open(tables_url) as keep:
        keep.store.put(("users",), "name", {"text": "Ada"})
    set_version(tables_url, version)
    with threadkeep.open(tables_url) as keep:
        for use in (lambda: keep.store.get(("users",), "name"), keep.migrate):
            with pytest.raises(SchemaTooOld, match=f"schema version {version}, which no released threadkeep had"):
                use()
    set_version(tables_url, SCHEMA_VERSION)
    with threadkeep.open(tables_url) as keep:
        assert keep.store.get(("users",), "name") is not None


LATER = SCHEMA_VERSION + 2


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("readable", "writable"), [(LATER, LATER), (SCHEMA_VERSION, LATER), (SCHEMA_VERSION, SCHEMA_VERSION)]
)
def test_a_later_version_is_used_if_it_says_so(readable: int, writable: int, read_only: bool) -> None:
    found, use = SchemaVersions(LATER, readable, writable), SchemaUse(read_only)
    if (readable if read_only else writable) <= SCHEMA_VERSION:
        assert not needs_migration(found, use, database="x.db")
        return
    with pytest.raises(SchemaTooNew, match=f"x.db has schema version {LATER}") as caught:
        needs_migration(found, use, database="x.db")
    assert ("read_only=True" in str(caught.value)) == (readable <= SCHEMA_VERSION)
