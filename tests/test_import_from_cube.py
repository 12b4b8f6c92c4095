"""Imports of CubeLoop threads and of LangGraph memories: everything arrives, and agents continue."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import sqlite3
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cubeloop.checkpointer.exceptions import RunAlreadyClaimedError, RunAlreadyCompletedError
from cubeloop.checkpointer.postgres import PostgresCheckpointer
from cubeloop.checkpointer.postgres.alembic_helpers import (
    create_message_partitions_op,
    create_runs_partitions_op,
    write_schema_version_op,
)
from cubeloop.checkpointer.postgres.models import cubeloop_metadata
from cubeloop.checkpointer.sqlite import SQLiteCheckpointer
from cubeloop.hitl import ConfirmRequest, HitlRequest
from cubeloop.providers.base import AssistantMessage, TextContent, ToolResultMessage, UserMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.base import VECTOR_MIGRATIONS
from sqlite_vec import serialize_float32

import threadkeep
from foreign_savers import DATA, Database, old_file
from threadkeep.adapters.cubeloop import KeepCube

THREADS = ["talk", "fork", "extra only", "no runs", "claimed"]


def make_message(role: str, text: str, **fields: Any) -> Any:
    content = [TextContent(text=text)]
    if role == "user":
        return UserMessage(content=content, **fields)
    if role == "tool":
        return ToolResultMessage(tool_call_id="c1", tool_name="look", content=content, **fields)
    return AssistantMessage(content=content, **fields)


async def write_threads(saver: Any) -> None:
    """Write threads with runs completed out of order, aborted, forked; a question, answers, the same id twice."""
    for run in ("one", "two", "three"):
        await saver.claim_run("talk", run)
        await saver.append("talk", [make_message("user", f"question {run}", id=f"u-{run}", run_id=run)])
    for run in ("two", "one", "three"):
        await saver.append(
            "talk",
            [make_message("assistant", f"answer {run} " * 50, run_id=run), make_message("tool", "42", run_id=run)],
        )
        if run != "three":
            await saver.mark_run_complete("talk", run)
    await saver.append("talk", [make_message("user", "again", id="u-one"), make_message("user", "no id")])
    await saver.save_extra("talk", {"mood": "good", "nested": {"list": [1, 2.5, None]}, "long": "x" * 3000})
    request = HitlRequest(question_id="q1", thread_id="talk", created_at=1.5e9, payload=ConfirmRequest(prompt="sure?"))
    await saver.save_pending_request("talk", request, run_id="three")
    await saver.save_hitl_answer("talk", "q0", {"decision": "approve"}, run_id="three")
    await saver.save_hitl_answer("talk", "q0", "yes")
    await saver.fork("talk", "fork", after_run_id="two", metadata={"why": "test"})
    await saver.save_extra("extra only", {})
    for n in range(3):
        await saver.append("no runs", [make_message("user", f"turn {n}"), make_message("assistant", f"reply {n}")])
    await saver.claim_run("claimed", "alone")


async def assert_same(ours: KeepCube, theirs: Any, threads: list[str] = THREADS) -> None:
    for thread in threads:
        expected, found = await theirs.load(thread), await ours.load(thread)
        if expected is None:  # a thread with runs only
            assert found is not None and found.messages == []
            continue
        assert found == expected, thread
        assert await ours.load_pending(thread) == await theirs.load_pending(thread)
        for run in ("three", None):
            assert await ours.load_hitl_answer(thread, "q0", run_id=run) == await theirs.load_hitl_answer(
                thread, "q0", run_id=run
            )
    for thread, run in (("talk", "one"), ("talk", "two"), ("fork", "two")):
        assert await ours.snapshot(thread, after_run_id=run) == await theirs.snapshot(thread, after_run_id=run)


async def goes_on(ours: KeepCube) -> None:
    """Completed runs stay completed, open runs can be completed."""
    with pytest.raises(RunAlreadyCompletedError):
        await ours.claim_run("talk", "one")
    with pytest.raises(RunAlreadyClaimedError):
        await ours.claim_run("talk", "three")
    assert await ours.clear_pending_request_if_matches("talk", question_id="q1", run_id="three")
    await ours.append("talk", [make_message("assistant", "the end", run_id="three")])
    await ours.mark_run_complete("talk", "three")
    await ours.fork("talk", "another", after_run_id="three")
    found = await ours.load("another")
    assert found is not None
    assert (len(found.messages), found.parent_thread_id) == (12, "talk")


@pytest.fixture(scope="module")
def source_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("talks") / "talks.db"

    async def write() -> None:
        async with SQLiteCheckpointer(str(path)) as saver:
            await write_threads(saver)

    asyncio.run(write())
    return path


async def test_cubeloop_threads_in_sqlite_are_imported_and_continue(
    url: str, source_file: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(source_file, tmp_path / "talks.db"))
    before = path.read_bytes()
    async with threadkeep.open(url) as keep, SQLiteCheckpointer(str(path)) as theirs:
        found = await keep.aimport_from(path)
        assert (found.kinds, found.threads, found.differences) == (("cubeloop-sqlite",), 5, ())
        assert path.read_bytes() == before
        await assert_same(keep.cube, theirs)
        statuses = {each.id: each.status for each in await keep.athreads()}
        assert statuses == {
            "talk": "interrupted", "fork": "idle", "extra only": "idle", "no runs": "idle", "claimed": "pending",
        }  # fmt: skip
        again = await keep.aimport_from(path)
        assert (again.messages, again.already_there, again.differences) == (0, found.messages, ())
        await theirs.append("no runs", [make_message("user", "more")])
        await theirs.save_pending_request("talk", None)
        await theirs.clear_hitl_answers("talk", run_id="three")
        await theirs.mark_run_complete("talk", "three")
        grown = await keep.aimport_from(path)
        assert (grown.messages, grown.differences) == (1, ())
        await assert_same(keep.cube, theirs)
        await keep.cube.append("no runs", [make_message("user", "only here")])
        assert (await keep.aimport_from(path)).differences == ()


def test_messages_are_counted_alike_by_all_kinds_of_import(source_file: Path, tmp_path: Path) -> None:
    with (
        threadkeep.open("memory://") as keep,
        threadkeep.open("memory://") as by_file,
        threadkeep.open("memory://") as by_url,
    ):
        for name in ("created", "unchanged"):
            done = [keep.import_from(source_file)]
            keep.export(tmp_path / "all.tk")
            done += [by_file.import_portable(tmp_path / "all.tk"), threadkeep.convert(keep, by_url)]
            counts = {(each.messages, each.already_there, each.checkpoints, getattr(each, name)) for each in done}
            messages = sum(len(asyncio.run(keep.cube.load(info.id)).messages) for info in keep.threads())
            assert counts == {(messages, 0, 0, 5) if name == "created" else (0, messages, 0, 5)}


async def test_agents_continue_imported_threads(source_file: Path) -> None:
    async with threadkeep.open("memory://") as keep:
        await keep.aimport_from(source_file)
        await goes_on(keep.cube)


async def test_cubeloop_threads_in_postgres_are_imported_and_continue() -> None:
    database = Database()
    await asyncio.to_thread(_cubeloop_schema, database)
    async with PostgresCheckpointer(_for_asyncpg(database)) as theirs, threadkeep.open("memory://") as keep:
        await write_threads(theirs)
        found = await keep.aimport_from(database.url)
        assert (found.kinds, found.threads, found.differences) == (("cubeloop-postgres",), 5, ())
        await assert_same(keep.cube, theirs)
        assert (await keep.aimport_from(database.url)).messages == 0
        await goes_on(keep.cube)


def _for_asyncpg(database: Database) -> str:
    return database.url.partition("?")[0] + f"?search_path={database.schema}"


def _cubeloop_schema(database: Database) -> None:
    engine = sa.create_engine(database.libpq.replace("postgresql://", "postgresql+psycopg://"))
    cubeloop_metadata.create_all(engine)
    engine.dispose()
    for sql in (create_message_partitions_op(), create_runs_partitions_op(), write_schema_version_op()):
        database.execute(sql)


async def test_the_first_tables_of_cubepi_in_postgres_have_less_and_are_read() -> None:
    database = Database()
    await asyncio.to_thread(_cubeloop_schema, database)
    async with PostgresCheckpointer(_for_asyncpg(database)) as theirs, threadkeep.open("memory://") as keep:
        await theirs.append("talk", [make_message("user", "hello", metadata={"a": 1}), make_message("assistant", "hi")])
        expected = await theirs.load("talk")
        for table, column in (
            ("cubepi_threads", "pending_request"),
            ("cubepi_threads", "run_id"),
            ("cubepi_messages", "run_id"),
        ):
            await asyncio.to_thread(database.execute, f"ALTER TABLE {table} DROP COLUMN {column}")
        await asyncio.to_thread(database.execute, "DROP TABLE cubepi_runs, cubepi_hitl_answers")
        assert (await keep.aimport_from(database.url)).differences == ()
        assert await keep.cube.load("talk") == expected


@pytest.mark.parametrize("release", ["p5", "p13"])
async def test_files_of_old_cubepi_are_read(release: str, tmp_path: Path) -> None:
    path = old_file(release, tmp_path)
    async with threadkeep.open("memory://") as keep:
        assert (await keep.aimport_from(path)).differences == ()
        async with SQLiteCheckpointer(str(path)) as theirs:  # adds what the tables lack
            for thread in ("talk", "empty") if release == "p5" else ("talk", "empty", "fork"):
                assert await keep.cube.load(thread) == await theirs.load(thread)
            if release == "p13":
                assert await keep.cube.load_hitl_answer("talk", "q1", run_id="run-2") == {"ok": True}
                assert await keep.cube.snapshot("talk", after_run_id="run-1") == await theirs.snapshot(
                    "talk", after_run_id="run-1"
                )


async def test_an_interrupted_import_of_a_long_cube_thread_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.transfer.cube_threads._OPS", 5)
    async with SQLiteCheckpointer(str(tmp_path / "long.db")) as theirs, threadkeep.open("memory://") as keep:
        for n in range(20):
            await theirs.claim_run("talk", f"run {n}")
            await theirs.append("talk", [make_message("user", f"question {n}", run_id=f"run {n}")])
            await theirs.append(
                "talk", [make_message("assistant", f"answer {n}", run_id=f"run {n}"), make_message("user", "meanwhile")]
            )
            await theirs.mark_run_complete("talk", f"run {n}")
        for steps in (2, 4):

            def stop(*_: Any) -> None:
                nonlocal steps
                steps -= 1
                if steps == 0:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                await keep.aimport_from(tmp_path / "long.db", on_progress=stop)
            loaded = await keep.cube.load("talk")
            assert loaded is not None and 0 < len(loaded.messages) < 60
        assert (await keep.aimport_from(tmp_path / "long.db")).differences == ()
        assert await keep.cube.load("talk") == await theirs.load("talk")
        for run in ("run 0", "run 11"):
            assert await keep.cube.snapshot("talk", after_run_id=run) == await theirs.snapshot("talk", after_run_id=run)


async def test_an_unreadable_message_is_reported(source_file: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(source_file, tmp_path / "talks.db"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE messages SET message_json = '{' WHERE thread_id = 'no runs' AND id % 2 = 1")
    connection.close()
    async with threadkeep.open("memory://") as keep:
        found = await keep.aimport_from(path)
        assert len(found.differences) == 1
        assert "thread 'no runs': left out: message" in found.differences[0]
        assert found.threads == 5


# --- memories


def embed(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), float(text.count("a")), 1.0] for text in texts]


INDEX: Any = {"dims": 3, "embed": embed, "fields": ["text"]}


def remembered(store: Any, *, ttl: bool = True) -> None:
    for n in range(5):
        store.put(("users", f"u{n}"), "likes", {"text": "a" * n, "n": n, "deep": {"list": [1, 2.5, None, "é"]}})
    store.put(("users", "u0"), "hidden", {"text": "not found"}, index=False)
    if ttl:
        store.put(("short",), "gone", {"text": "x"}, ttl=0.0001)
        store.put(("short",), "stays", {"text": "y"}, ttl=600)
        time.sleep(0.05)  # the other one has expired by now


def assert_same_memories(ours: Any, theirs: Any) -> None:
    expected = {(item.namespace, item.key): item for item in theirs.search((), limit=100) if item.key != "gone"}
    found = {(item.namespace, item.key): item for item in ours.search((), limit=100)}
    assert found.keys() == expected.keys()
    for memory_key, item in expected.items():
        assert found[memory_key].value == item.value
        assert found[memory_key].updated_at == _in_utc(item.updated_at)
        assert found[memory_key].created_at == _in_utc(item.created_at)


def _in_utc(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def assert_same_ranking(ours: Any, theirs: Any) -> None:
    ranked = [
        [
            (item.namespace, item.key, pytest.approx(item.score, abs=1e-6))
            for item in store.search(("users",), query="aaa", limit=4)
        ]
        for store in (ours, theirs)
    ]
    assert ranked[0] == ranked[1]


def with_vectors(store: SqliteStore) -> None:
    """Write what an index would have stored, because some Pythons cannot load SQLite extensions."""
    store.conn.executescript(VECTOR_MIGRATIONS[0])
    for item in store.search((), limit=100):
        if item.key == "likes":
            row = (".".join(item.namespace), item.key, "text", serialize_float32(embed([item.value["text"]])[0]))
            store.conn.execute(
                "INSERT INTO store_vectors (prefix, key, field_name, embedding) VALUES (?, ?, ?, ?)", row
            )


def test_memories_in_sqlite_come_with_their_times_and_vectors(url: str, tmp_path: Path) -> None:
    path = tmp_path / "both.db"
    with SqliteStore.from_conn_string(str(path), ttl={"refresh_on_read": False}) as theirs:
        theirs.setup()
        remembered(theirs)
        with_vectors(theirs)
        like = InMemoryStore(index=INDEX)
        remembered(like, ttl=False)
        with SqliteSaver.from_conn_string(str(path)) as saver:
            saver.setup()
        asked: list[str] = []
        ours: Any = {**INDEX, "embed": lambda texts: asked.extend(texts) or embed(texts)}
        with threadkeep.open(url, index=ours) as keep:
            found = keep.import_from(path)
            assert (found.memories, found.expired, found.differences) == (7, 1, ())
            assert asked == []
            assert_same_memories(keep.store, theirs)
            assert_same_ranking(keep.store, like)
            assert keep.import_from(path).memories == 0
            theirs.put(("users", "u1"), "likes", {"text": "changed"})
            keep.store.put(("users", "u2"), "likes", {"text": "newer here"})
            assert keep.import_from(path).memories == 1
            assert keep.store.get(("users", "u1"), "likes").value == {"text": "changed"}
            assert keep.store.get(("users", "u2"), "likes").value == {"text": "newer here"}


def test_memories_without_vectors_are_embedded_here(tmp_path: Path) -> None:
    with SqliteStore.from_conn_string(str(tmp_path / "plain.db")) as theirs:
        theirs.setup()
        remembered(theirs, ttl=False)
    with threadkeep.open("memory://", index=INDEX) as keep:
        assert keep.import_from(tmp_path / "plain.db").memories == 6
        assert [item.key for item in keep.store.search(("users",), query="aaa", limit=2)] == ["likes", "likes"]
        assert keep.store.search(("users",), query="aaa", limit=1)[0].score is not None


def test_memories_in_postgres_come_with_their_times_and_vectors() -> None:
    database = Database()
    with PostgresStore.from_conn_string(database.libpq, index=INDEX) as theirs:
        theirs.setup()
        remembered(theirs)
        with threadkeep.open("memory://", index=INDEX) as keep:
            found = keep.import_from(database.url)
            assert (found.memories, found.differences) == (7, ())
            assert_same_memories(keep.store, theirs)
            assert_same_ranking(keep.store, theirs)


def test_memories_of_an_in_memory_store_are_imported() -> None:
    theirs = InMemoryStore(index=INDEX)
    remembered(theirs, ttl=False)
    with threadkeep.open("memory://", index=INDEX) as keep:
        found = keep.import_from(theirs)
        assert (found.kinds, found.memories, found.differences) == (("memory",), 6, ())
        assert_same_memories(keep.store, theirs)
        assert_same_ranking(keep.store, theirs)


@pytest.mark.parametrize("release", ["c", "d"])
def test_memories_of_old_releases_are_read(release: str, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress((DATA / f"{release}-store.sqlite.gz").read_bytes()))
    with threadkeep.open("memory://") as keep:
        assert keep.import_from(path).memories == 2
        assert keep.store.get(("users", "u2"), "likes").value == {"food": "ramen", "deep": {"list": [1, 2.5, None]}}
        assert keep.store.get(("users", "u1"), "likes").updated_at.tzinfo is not None


def test_the_first_tables_of_the_store_have_no_ttl_and_are_read(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE store (prefix text NOT NULL, key text NOT NULL, value text NOT NULL, created_at TIMESTAMP"
            " DEFAULT CURRENT_TIMESTAMP, updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (prefix, key))"
        )
        connection.execute("INSERT INTO store (prefix, key, value) VALUES ('a.b', 'k', '{\"n\": 1}')")
        connection.execute("INSERT INTO store (prefix, key, value) VALUES ('a.b', 'l', '[1]')")
        connection.execute("INSERT INTO store (prefix, key, value) VALUES ('a..b', 'm', '{}')")
    connection.close()
    with threadkeep.open("memory://") as keep:
        found = keep.import_from(path)
        assert (found.memories, len(found.differences)) == (1, 2)
        item = keep.store.get(("a", "b"), "k")
        assert item is not None and item.value == {"n": 1}
        assert datetime.now(UTC) - item.created_at < timedelta(minutes=1)
