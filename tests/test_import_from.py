"""Imports of LangGraph threads: everything arrives as the official savers read it, and graphs continue."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver, ShallowPostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.base import InvalidNamespaceError, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

import foreign_savers
import threadkeep
import valkey_servers
from data import make_old_databases
from foreign_savers import (
    Database,
    afill_saver,
    assert_same,
    config_of,
    fill_saver,
    finish_thread,
    old_file,
    read_thread,
)
from row_invariants import find_problems
from sealed_storages import KEYS
from threadkeep.cli.app import run
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.splitter import Splitter
from threadkeep.engine.log.type_gate import KeepSerializer
from threadkeep.errors import Corrupt, Missing, ReadOnly, Unavailable, WrongKey

THREADS = ["chat", "asked", "answered"]
ALL = [*THREADS, "achat", "aasked"]
OLD = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def saver_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that SqliteSaver and AsyncSqliteSaver wrote."""
    path = tmp_path_factory.mktemp("saver") / "saver.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        fill_saver(saver)

    async def write() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
            await afill_saver(saver)

    asyncio.run(write())
    return path


@pytest.fixture
def source(saver_file: Path, tmp_path: Path) -> Path:
    """A copy of that file, to change."""
    return Path(shutil.copy(saver_file, tmp_path / "source.db"))


@pytest.fixture
def empty() -> Any:
    with threadkeep.open("memory://") as keep:
        yield keep


def check_import(keep: threadkeep.Keep, path: Path) -> None:
    """Import a file, compare what both savers return, and continue its threads."""
    before = path.read_bytes()
    found = keep.import_from(path)
    assert (found.threads, found.differences, found.kinds) == (5, (), ("langgraph-sqlite",))
    assert path.read_bytes() == before
    with SqliteSaver.from_conn_string(str(path)) as theirs:
        assert_same(keep.checkpointer, theirs, ALL)
        assert {each.id: each.status for each in keep.threads()} == {
            "chat": "pending", "achat": "pending", "asked": "interrupted", "aasked": "interrupted", "answered": "idle",
        }  # fmt: skip
        for thread in ALL:
            if thread != "answered":
                assert finish_thread(keep.checkpointer, thread) == finish_thread(theirs, thread)


def test_threads_of_a_sqlite_saver_are_imported_and_continue(url: str, source: Path) -> None:
    with threadkeep.open(url) as keep:
        check_import(keep, source)
    if not url.startswith(("memory", "valkey")):
        assert find_problems(Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else url) == []


def test_threads_of_a_sqlite_saver_are_imported_into_a_cluster(source: Path) -> None:
    with threadkeep.open(valkey_servers.shared().url()) as keep:
        check_import(keep, source)


def test_threads_of_a_postgres_saver_are_imported_and_continue(empty: threadkeep.Keep) -> None:
    database = Database()
    with PostgresSaver.from_conn_string(database.libpq) as theirs:
        theirs.setup()
        fill_saver(theirs)

        async def write() -> None:
            async with AsyncPostgresSaver.from_conn_string(database.libpq) as saver:
                await afill_saver(saver)

        asyncio.run(write())
        rows = database.execute("SELECT * FROM checkpoint_blobs ORDER BY 1, 2, 3, 4")
        found = empty.import_from(database.url)
        assert (found.threads, found.differences, found.kinds) == (5, (), ("langgraph-postgres",))
        assert database.execute("SELECT * FROM checkpoint_blobs ORDER BY 1, 2, 3, 4") == rows
        assert empty.import_from(database.libpq, kind="langgraph-postgres").already_there == found.checkpoints
        assert_same(empty.checkpointer, theirs, ALL)
        for thread in ("chat", "asked"):
            assert finish_thread(empty.checkpointer, thread) == finish_thread(theirs, thread)


def test_large_values_of_a_postgres_saver_come_a_few_at_a_time(
    empty: threadkeep.Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadkeep.transfer.sources.langgraph_blobs._BYTES_AT_ONCE", 3000)
    monkeypatch.setattr("threadkeep.transfer.graph_threads._BYTES", 2000)
    database = Database()
    with PostgresSaver.from_conn_string(database.libpq) as theirs:
        theirs.setup()
        fill_saver(theirs)
        assert empty.import_from(database.url).is_equal
        assert_same(empty.checkpointer, theirs, THREADS)


def test_threads_of_a_shallow_saver_are_imported(empty: threadkeep.Keep) -> None:
    database = Database()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with ShallowPostgresSaver.from_conn_string(database.libpq) as theirs:
            theirs.setup()
            fill_saver(theirs, turns=1)
            assert empty.import_from(database.url).is_equal
            assert_same(empty.checkpointer, theirs, THREADS)
    assert finish_thread(empty.checkpointer, "asked")[1] == ()


def test_threads_of_an_in_memory_saver_are_imported_and_continue(empty: threadkeep.Keep) -> None:
    theirs = InMemorySaver()
    fill_saver(theirs)
    assert empty.import_from(theirs).differences == ()
    assert_same(empty.checkpointer, theirs, THREADS)
    for thread in ("chat", "asked"):
        assert finish_thread(empty.checkpointer, thread) == finish_thread(theirs, thread)


@pytest.mark.parametrize("release", OLD)
def test_files_of_old_releases_are_read_as_today(release: str, tmp_path: Path, empty: threadkeep.Keep) -> None:
    path = old_file(release, tmp_path)
    assert empty.import_from(path).differences == ()
    threads = ["talk", "sends", "nested", "atalk", "asends", "anested"]
    with SqliteSaver.from_conn_string(str(path)) as theirs:
        if release == "a":  # the current SqliteSaver can no longer read these datetimes and sends; ours can
            assert [each.metadata for each in read_thread(empty.checkpointer, "talk")] == [
                each.metadata for each in read_thread(theirs, "talk")
            ]
        else:
            assert_same(empty.checkpointer, theirs, threads)
    _go_on(empty.checkpointer, release)


@pytest.mark.parametrize("release", OLD)
def test_databases_of_old_releases_are_read_as_today(release: str, empty: threadkeep.Keep) -> None:
    database = Database().restored(release)
    assert empty.import_from(database.url).differences == ()
    if release != "a":
        database.execute("ALTER TABLE checkpoint_writes ADD COLUMN IF NOT EXISTS task_path TEXT NOT NULL DEFAULT ''")
        with PostgresSaver.from_conn_string(database.libpq) as theirs:
            assert_same(empty.checkpointer, theirs, ["talk", "sends", "nested"])
    _go_on(empty.checkpointer, release)


def _go_on(saver: Any, release: str) -> None:
    """Threads of old graphs continue in the same graphs today."""
    found = {}
    for thread, (builder, options, inputs) in make_old_databases.graphs().items():
        graph = builder.compile(checkpointer=saver, **options)
        found[thread] = graph.invoke(inputs[0] if thread == "talk" else None, config_of(thread))
    assert len(found["talk"]["messages"]) == 7
    assert found["talk"]["table"]["when"].year == 2024
    assert found["sends"]["done"] == [10, 20]
    if release in ("c", "d"):  # the channel that triggers a node had another name then
        assert len(found["nested"]["messages"]) == 3


def test_repeating_an_import_adds_only_what_is_new(source: Path, empty: threadkeep.Keep) -> None:
    first = empty.import_from(source)
    again = empty.import_from(source)
    assert (again.checkpoints, again.writes, again.already_there) == (0, 0, first.checkpoints)
    with SqliteSaver.from_conn_string(str(source)) as theirs:
        foreign_savers.asking(theirs).invoke(Command(resume="yes"), config_of("asked"))
        foreign_savers.chat(theirs).invoke(None, config_of("chat"))
        grown = empty.import_from(source)
        assert grown.differences == ()
        assert 0 < grown.checkpoints < first.checkpoints
        assert grown.writes > 0
        assert_same(empty.checkpointer, theirs, ALL)


def test_a_thread_that_was_continued_here_stays_as_it_is(source: Path, empty: threadkeep.Keep) -> None:
    empty.import_from(source)
    finish_thread(empty.checkpointer, "asked")
    before = read_thread(empty.checkpointer, "asked")
    found = empty.import_from(source)
    assert (found.checkpoints, found.writes, found.differences) == (0, 0, ())
    assert read_thread(empty.checkpointer, "asked") == before


def test_some_threads_may_be_chosen_and_counted_before(source: Path, empty: threadkeep.Keep) -> None:
    would = empty.import_from(source, prefix="a", dry_run=True)
    assert (would.threads, empty.threads()) == (4, [])
    found = empty.import_from(source, prefix="a")
    assert (found.threads, found.checkpoints) == (would.threads, would.checkpoints)
    assert sorted(each.id for each in empty.threads()) == ["aasked", "achat", "answered", "asked"]
    assert empty.import_from(source, thread_id="chat").threads == 1
    with pytest.raises(Missing, match="nobody"):
        empty.import_from(source, thread_id="nobody")
    with pytest.raises(ValueError, match="not both"):
        empty.import_from(source, thread_id="chat", prefix="a")


@dataclass(frozen=True)
class Ways:
    """Import the same threads in three ways into an empty Keep."""

    source: Path
    file: Path
    keep: threadkeep.Keep

    def results(self, targets: list[threadkeep.Keep], **options: Any) -> list[tuple[int, ...]]:
        done = [
            targets[0].import_from(self.source, **options),
            targets[1].import_portable(self.file, **options),
            threadkeep.convert(self.keep, targets[2], **options),
        ]
        names = (
            "threads created unchanged updated merged conflicting checkpoints writes already_there differences verified"
        )
        return [tuple(getattr(each, name) for name in names.split()) for each in done]


def test_all_kinds_of_import_count_alike(source: Path, tmp_path: Path, empty: threadkeep.Keep) -> None:
    empty.import_from(source)
    empty.export(tmp_path / "all.tk")
    ways = Ways(source, tmp_path / "all.tk", empty)
    targets = [threadkeep.open("memory://") for _ in range(3)]
    counts = [(each.checkpoints, each.writes) for each in empty.threads()]
    checkpoints, writes = (sum(each) for each in zip(*counts, strict=True))
    counted = (5, 5, 0, 0, 0, 0, checkpoints, writes, 0, ())
    assert ways.results(targets, dry_run=True) == [(*counted, False)] * 3
    assert [keep.threads() for keep in targets] == [[]] * 3
    assert ways.results(targets) == [(*counted, True)] * 3
    repeated = (5, 0, 5, 0, 0, 0, 0, 0, checkpoints, ())
    assert ways.results(targets, dry_run=True) == [(*repeated, False)] * 3
    assert ways.results(targets, verify=False) == [(*repeated, False)] * 3
    assert ways.results(targets) == [(*repeated, True)] * 3


def test_a_thread_that_grew_is_counted_alike_by_all_kinds_of_import(
    source: Path, tmp_path: Path, empty: threadkeep.Keep
) -> None:
    targets = [threadkeep.open("memory://") for _ in range(3)]
    ways = Ways(source, tmp_path / "all.tk", empty)
    for grows in (False, True):
        if grows:
            with SqliteSaver.from_conn_string(str(source)) as theirs:
                foreign_savers.asking(theirs).invoke(Command(resume="yes"), config_of("asked"))
        grown = empty.import_from(source)
        empty.export(tmp_path / "all.tk")
        would, done = ways.results(targets, dry_run=True), ways.results(targets)
        assert [each[:-1] for each in would[1:]] == [each[:-1] for each in done[1:]]
        assert done[0] == done[1] == done[2]
    assert (grown.unchanged, grown.updated) == (4, 1)


def test_progress_is_reported_and_ends_at_the_total(source: Path, empty: threadkeep.Keep) -> None:
    steps: list[tuple[int, int | None, str]] = []
    found = empty.import_from(source, on_progress=lambda *step: steps.append(step))
    assert steps[0][0] == 0
    assert steps[-1][:2] == (found.checkpoints, found.checkpoints)
    assert [step[0] for step in steps] == sorted(step[0] for step in steps)
    assert {step[1] for step in steps} == {found.checkpoints}


async def test_an_async_import_leaves_the_loop_free(source: Path) -> None:
    async with threadkeep.open("memory://") as keep:
        found = await keep.aimport_from(source)
        assert (found.threads, found.differences) == (5, ())
        assert (await keep.aimport_from(source, thread_id="chat")).checkpoints == 0


async def test_an_async_import_may_be_cancelled_and_continues(source: Path) -> None:
    async with threadkeep.open("memory://") as keep:
        steps = 0

        def stop(*_: Any) -> None:
            nonlocal steps
            steps += 1
            if steps == 4:
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await keep.aimport_from(source, on_progress=stop)
        assert 0 < len(await keep.athreads()) < 5
        assert (await keep.aimport_from(source)).differences == ()
        assert len(await keep.athreads()) == 5


def test_an_imported_thread_takes_no_more_bytes_than_one_written_by_the_graph(tmp_path: Path) -> None:
    sizes = {}
    for name in ("run", "imported"):
        with threadkeep.open(f"sqlite:///{tmp_path / name}.db") as keep:
            if name == "run":
                fill_saver(keep.checkpointer, turns=12)
            else:
                with SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
                    fill_saver(theirs, turns=12)
                keep.import_from(tmp_path / "theirs.db")
            sizes[name] = sum(each.bytes for each in keep.threads())
    assert sizes["imported"] <= 1.3 * sizes["run"]


@pytest.mark.parametrize(
    "value",
    [
        [], [1], [None, "a", {"b": [1.5]}], (1, 2), list(range(100)), {}, {"a": 1}, dict.fromkeys(range(40), "x" * 50),
        {"k": "x" * 3000, "l": [1]}, "text", b"bytes", 1, None, [{"deep": [{"er": {"x": n}}]} for n in range(70_000)],
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_bytes_are_split_as_values_are(value: Any) -> None:
    serde = KeepSerializer()
    tag, data = serde.dumps_typed(value)
    assert Splitter().split("place", tag, data) == Codec(serde).encode(value)


def test_a_list_that_changed_is_split_the_same_with_a_cache() -> None:
    splitter, serde = Splitter(), KeepSerializer()
    lists = [[1], [1, "two"], [1, "two", [3]], ["two", [3]], [1, "two", [4], 5], [1, "two"], [], [1]]
    for value in lists:
        assert splitter.split("place", *serde.dumps_typed(value)) == Codec(serde).encode(value)


# --- interrupted imports

_IMPORT = """
import sys, threadkeep
steps = int(sys.argv[3])

def in_step(*_):
    global steps
    steps -= 1
    if steps == 0:
        print("now", flush=True)
        sys.stdin.readline()

threadkeep.open(sys.argv[2]).import_from(sys.argv[1], on_progress=in_step)
print("done", flush=True)
"""


def write_long_file(path: Path, *, threads: int, each: int = 60) -> None:
    serde = JsonPlusSerializer()
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.setup()
        for n in range(threads):
            messages: list[Any] = []
            for k in range(each):
                messages = [*messages, {"id": k, "text": f"{n} {k} " * 5}]
                checkpoint = {
                    "v": 4, "id": f"{k:08}", "ts": "2026-01-01T00:00:00+00:00",
                    "channel_values": {"messages": messages}, "channel_versions": {"messages": f"{k}.5"},
                    "versions_seen": {}, "updated_channels": None,
                }  # fmt: skip
                row = (f"t{n}", "", f"{k:08}", f"{k - 1:08}" if k else None, *serde.dumps_typed(checkpoint), "{}")
                saver.conn.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                write = (f"t{n}", "", f"{k:08}", "task", "path", 0, "messages", *serde.dumps_typed(messages[-1]))
                saver.conn.execute("INSERT INTO writes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", write)
        saver.conn.commit()


@pytest.mark.parametrize(("backend", "kills"), [("sqlite", ("5", "12")), ("postgres", ("12",))])
def test_an_import_that_was_killed_continues(backend: str, kills: tuple[str, ...], tmp_path: Path) -> None:
    write_long_file(tmp_path / "theirs.db", threads=10)
    url = f"sqlite:///{tmp_path / 'ours.db'}" if backend == "sqlite" else Database().url
    for steps in kills:
        words = [sys.executable, "-c", _IMPORT, tmp_path / "theirs.db", url, steps]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == b"now\n"
        child.stdin.write(b"go\n")
        child.stdin.flush()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdin.close()
        child.stdout.close()
    with threadkeep.open(url) as keep, SqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        there = sum(each.checkpoints for each in keep.threads())
        assert 0 < there < 600
        found = keep.import_from(tmp_path / "theirs.db")
        assert (found.differences, found.already_there, found.checkpoints) == ((), there, 600 - there)
        assert_same(keep.checkpointer, theirs, ["t0", "t9"])
    assert find_problems(Path(url.removeprefix("sqlite:///")) if backend == "sqlite" else url) == []


def test_a_file_that_others_write_to_is_read_as_one_snapshot(source: Path, empty: threadkeep.Keep) -> None:
    writer = sqlite3.connect(source)
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    before = empty.import_from(source, dry_run=True).checkpoints

    def meanwhile(*_: Any) -> None:
        writer.execute("UPDATE checkpoints SET metadata = '{}', checkpoint_id = checkpoint_id || 'x'")
        writer.execute("DELETE FROM writes")
        writer.commit()

    found = empty.import_from(source, on_progress=meanwhile)
    assert (found.checkpoints, found.differences) == (before, ())
    writer.close()


# --- malformed rows


class Trap:
    """An object that does something when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_forged_rows_run_nothing(source: Path, tmp_path: Path, empty: threadkeep.Keep) -> None:
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    call = ormsgpack.packb(["os", "mkdir", str(sprung)])
    many = ormsgpack.packb(["os", "mkdir", [str(sprung)]])
    named = ormsgpack.packb(["os", "mkdir", {"path": str(sprung)}])
    forged = [ormsgpack.Ext(code, data) for code, data in enumerate([call, many, named, call, named, named])]
    lc = {"lc": 2, "type": "constructor", "id": ["os", "mkdir"], "args": [str(sprung)]}
    checkpoint = {
        "v": 4, "id": "1", "ts": "?", "channel_values": {"a": forged, "b": forged[0]}, "channel_versions": {},
        "versions_seen": {}, "strange": forged,
    }  # fmt: skip
    plain = {**checkpoint, "id": "2", "strange": lc, "channel_values": {"a": [lc]}}
    rows = {
        "1": ("msgpack", ormsgpack.packb(checkpoint)),
        "2": ("json", json.dumps(plain).encode()),
        "3": ("pickle", trap),
        "4": ("msgpack", b"\xdd\xff\xff\xff\xff"),
        "5": ("msgpack", b"\x91" * 100_000),
        "7": ("msgpack", ormsgpack.packb({"channel_versions": 1})),
        "8": ("json", b"{"),
    }
    with sqlite3.connect(source) as connection:
        connection.execute("DELETE FROM checkpoints")
        connection.execute("DELETE FROM writes")
        for id, (tag, data) in rows.items():
            connection.execute("INSERT INTO checkpoints VALUES ('t', '', ?, NULL, ?, ?, '{}')", (id, tag, data))
        for idx, (tag, data) in enumerate([("pickle", trap), ("msgpack", b"\xc1\xc1"), (None, None)]):
            connection.execute("INSERT INTO writes VALUES ('t', '', '1', 'task', '', ?, 'c', ?, ?)", (idx, tag, data))
    connection.close()
    found = empty.import_from(source)
    assert (found.checkpoints, found.writes) == (2, 3)
    assert len(found.differences) == 5
    message = " ".join(found.differences)
    assert all(word in message for word in ("pickle", "'3'", "'4'", "'5'", "'7'", "'8'", "left out"))
    read = empty.checkpointer.get_tuple({"configurable": {"thread_id": "t", "checkpoint_id": "2"}})
    assert read is not None
    assert read.checkpoint["channel_values"]["a"] == [lc]
    with pytest.raises(NotImplementedError):
        empty.checkpointer.get_tuple({"configurable": {"thread_id": "t", "checkpoint_id": "1"}})
    assert not sprung.exists()


def test_values_that_are_encrypted_one_by_one_are_carried_over_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
    serde = EncryptedSerializer.from_pycryptodome_aes()
    database = Database()
    with PostgresSaver.from_conn_string(database.libpq) as theirs, threadkeep.open("memory://", serde=serde) as keep:
        theirs.serde = serde
        theirs.setup()
        fill_saver(theirs, turns=1)
        assert keep.import_from(database.url).differences == ()
        assert_same(keep.checkpointer, theirs, THREADS)
        assert finish_thread(keep.checkpointer, "asked")[1] == ()


AES_KEY = b"0123456789abcdef"


class Mirror:
    """A user's cipher, which LangGraph's CipherProtocol describes. Not a good one."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "mirror", os.urandom(4) + plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "mirror"
        return ciphertext[4:][::-1]


@pytest.mark.parametrize("cipher", ["LANGGRAPH_AES_KEY", "a user's"])
def test_checkpoints_that_are_encrypted_as_a_whole_are_imported_with_the_same_serializer(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cipher: str
) -> None:
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
    serde = (
        EncryptedSerializer.from_pycryptodome_aes() if cipher == "LANGGRAPH_AES_KEY" else EncryptedSerializer(Mirror())
    )
    path = tmp_path / "encrypted.db"
    with SqliteSaver.from_conn_string(str(path)) as theirs:
        theirs.serde = serde
        theirs.setup()
        fill_saver(theirs, turns=1)
        with threadkeep.open(url, serde=serde) as keep:
            found = keep.import_from(path)
            assert (found.differences, found.checkpoints > 3) == ((), True)
            again = keep.import_from(path)
            assert (again.differences, again.checkpoints, again.unchanged) == ((), 0, found.threads)
            assert_same(keep.checkpointer, theirs, THREADS)
            assert finish_thread(keep.checkpointer, "asked")[1] == ()
    other = EncryptedSerializer.from_pycryptodome_aes(key=b"another key, yes")
    with threadkeep.open("memory://", serde=other) as keep:
        with pytest.raises(WrongKey, match="with another key"):
            keep.import_from(path)
        assert keep.threads() == []


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def encrypted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield an encrypted source, and the saver that wrote it."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=AES_KEY)
    with ExitStack() as stack:
        theirs: Any
        if request.param == "memory":
            source = theirs = InMemorySaver(serde=serde)
        elif request.param == "sqlite":
            source = tmp_path / "encrypted.db"
            theirs = stack.enter_context(SqliteSaver.from_conn_string(str(source)))
        else:
            database = Database()
            source, theirs = database.url, stack.enter_context(PostgresSaver.from_conn_string(database.libpq))
        theirs.serde = serde
        if request.param != "memory":
            theirs.setup()
        fill_saver(theirs, turns=1)
        yield source, theirs


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "with keys"])
@pytest.mark.parametrize("key_is", ["given", "in the environment"])
def test_an_encrypted_source_becomes_ordinary_state(
    encrypted: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, keys: Any, key_is: str
) -> None:
    source, theirs = encrypted
    if key_is == "in the environment":
        monkeypatch.setenv("LANGGRAPH_AES_KEY", AES_KEY.decode())
    serde = EncryptedSerializer.from_pycryptodome_aes(key=AES_KEY) if key_is == "given" else None
    with threadkeep.open("memory://", keys=keys) as keep:
        found = keep.import_from(source, serde=serde)
        assert (found.differences, found.checkpoints > 3) == ((), True)
        again = keep.import_from(source, serde=serde)
        assert (again.differences, again.checkpoints, again.unchanged) == ((), 0, found.threads)
        assert_same(keep.checkpointer, theirs, THREADS)
        assert keep.verify().problems == []
        monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
        assert finish_thread(keep.checkpointer, "asked")[1] == ()


def test_an_encrypted_source_needs_its_key(encrypted: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = encrypted
    if isinstance(source, InMemorySaver):
        source.serde = JsonPlusSerializer()  # whose key would be taken
    other = EncryptedSerializer.from_pycryptodome_aes(key=b"another key, yes")
    with threadkeep.open("memory://") as keep:
        with pytest.raises(WrongKey, match="with another key"):
            keep.import_from(source, serde=other)
        with pytest.raises(WrongKey, match="set LANGGRAPH_AES_KEY, or pass its serde="):
            keep.import_from(source)
        monkeypatch.setenv("LANGGRAPH_AES_KEY", "another key, yes")
        with pytest.raises(WrongKey, match="with another key"):
            keep.import_from(source)
        with pytest.raises(TypeError, match="EncryptedSerializer"):
            keep.import_from(source, serde=JsonPlusSerializer())
        assert keep.threads() == []
    with threadkeep.open("memory://", serde=other) as keep, pytest.raises(ValueError, match="leave out serde="):
        keep.import_from(source, serde=other)


def test_a_value_of_an_encrypted_source_that_is_damaged_is_left_out_and_named(tmp_path: Path) -> None:
    path, serde = tmp_path / "encrypted.db", EncryptedSerializer.from_pycryptodome_aes(key=AES_KEY)
    with SqliteSaver.from_conn_string(str(path)) as theirs:
        theirs.serde = serde
        theirs.setup()
        fill_saver(theirs, turns=1)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE writes SET value = x'00' WHERE rowid = (SELECT min(rowid) FROM writes)")
    connection.execute("UPDATE checkpoints SET checkpoint = x'00' WHERE rowid = (SELECT max(rowid) FROM checkpoints)")
    connection.commit()
    connection.close()
    with threadkeep.open("memory://") as keep:
        differences = keep.import_from(path, serde=serde).differences
        assert any("left out: it cannot be decrypted" in each for each in differences)
        assert any("cannot be decrypted" in each and "its value of" in each for each in differences)


def test_the_command_imports_an_encrypted_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, serde = tmp_path / "encrypted.db", EncryptedSerializer.from_pycryptodome_aes(key=AES_KEY)
    with SqliteSaver.from_conn_string(str(path)) as theirs:
        theirs.serde = serde
        theirs.setup()
        fill_saver(theirs, turns=1)
    (tmp_path / "key").write_bytes(AES_KEY + b"\n")
    (tmp_path / "short").write_bytes(b"short")
    given = ["import", str(path), "--url", str(tmp_path / "agent.db"), "--json"]
    assert run(given) != 0
    assert "set LANGGRAPH_AES_KEY" in capsys.readouterr().err
    assert run([*given, "--source-key", str(tmp_path / "short")]) != 0
    assert "16, 24 or 32 bytes" in capsys.readouterr().err
    assert run([*given, "--source-key", str(tmp_path / "missing")]) != 0
    assert "missing" in capsys.readouterr().err
    assert run([*given, "--source-key", str(tmp_path / "key")]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["differences"], done["checkpoints"] > 3) == ([], True)
    monkeypatch.setenv("LANGGRAPH_AES_KEY", AES_KEY.decode())
    assert run(given) == 0
    assert json.loads(capsys.readouterr().out)["checkpoints"] == 0


def test_a_difference_is_found_and_named(source: Path, empty: threadkeep.Keep) -> None:
    empty.import_from(source)
    serde = JsonPlusSerializer()
    with sqlite3.connect(source) as connection:
        ids = [
            id
            for (id,) in connection.execute("SELECT checkpoint_id FROM checkpoints WHERE thread_id = 'chat' ORDER BY 1")
        ]
        (data,) = connection.execute("SELECT checkpoint FROM checkpoints WHERE checkpoint_id = ?", ids[-1:]).fetchone()
        changed = serde.loads_typed(("msgpack", data))
        changed["channel_values"]["count"] = 77
        values = (serde.dumps_typed(changed)[1], ids[-1])
        connection.execute("UPDATE checkpoints SET checkpoint = ? WHERE checkpoint_id = ?", values)
        connection.execute("UPDATE checkpoints SET metadata = '{\"step\": 99}' WHERE checkpoint_id = ?", ids[:1])
        connection.execute("UPDATE checkpoints SET parent_checkpoint_id = 'x' WHERE checkpoint_id = ?", ids[1:2])
        connection.execute("UPDATE writes SET value = ?, type = 'bytes' WHERE checkpoint_id = ?", (b"other", ids[2]))
    connection.close()
    found = empty.import_from(source)
    message = "\n".join(found.differences)
    assert f"thread 'chat': checkpoint {ids[-1]!r}: channel 'count' differs" in message
    assert f"checkpoint {ids[0]!r}: its metadata differs" in message
    assert f"checkpoint {ids[1]!r}: its parent is {ids[0]!r}, not 'x'" in message
    assert f"checkpoint {ids[2]!r}: write 0 of task" in message
    assert not found.is_equal
    assert empty.import_from(source, verify=False).is_equal


# --- invalid sources


def test_an_invalid_source_is_refused(tmp_path: Path, source: Path, empty: threadkeep.Keep) -> None:
    text = tmp_path / "text.db"
    text.write_text("hello, this is text")
    nothing = tmp_path / "nothing.db"
    sqlite3.connect(nothing).execute("CREATE TABLE other (a)").connection.close()
    own = tmp_path / "own.db"
    with threadkeep.open(f"sqlite:///{own}") as keep:
        keep.setup()
    packed = tmp_path / "packed"
    packed.write_bytes(b"\x28\xb5\x2f\xfd and more")
    ancient = tmp_path / "ancient.db"
    sqlite3.connect(ancient).execute("CREATE TABLE checkpoints (thread_id, thread_ts, checkpoint)").connection.close()
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(source.read_bytes()[:4096] + b"\xff" * 8192)
    with pytest.raises(FileNotFoundError, match="missing"):
        empty.import_from(tmp_path / "missing.db")
    with pytest.raises(IsADirectoryError):
        empty.import_from(tmp_path)
    with pytest.raises(ValueError, match="neither an SQLite database"):
        empty.import_from(text)
    with pytest.raises(ValueError, match="no known tables"):
        empty.import_from(nothing)
    with pytest.raises(ValueError, match="not of kind cubeloop-sqlite: it has langgraph-sqlite"):
        empty.import_from(source, kind="cubeloop-sqlite")
    with pytest.raises(ValueError, match="kind must be one of"):
        empty.import_from(source, kind="csv")
    with pytest.raises(ValueError, match="cannot import from oracle://"):
        empty.import_from("oracle://localhost/db")
    with pytest.raises(ValueError, match=r"LangGraph 0\.1"):
        empty.import_from(ancient)
    with pytest.raises(ValueError, match="threadkeep's own"):
        empty.import_from(own)
    with pytest.raises(ValueError, match="compressed, but it is not an export"):
        empty.import_from(packed)
    with pytest.raises(Corrupt, match=r"damaged\.db"):
        empty.import_from(damaged)
    with pytest.raises(Unavailable, match=r"secret|127\.0\.0\.1"):
        empty.import_from("postgresql://user:secret@127.0.0.1:1/db")
    with pytest.raises(TypeError, match="InMemorySaver"):
        empty.import_from(object())
    with pytest.raises(ValueError, match="of kind memory"):
        empty.import_from(InMemorySaver(), kind="langgraph-sqlite")
    with threadkeep.open(f"sqlite:///{own}", read_only=True) as keep, pytest.raises(ReadOnly):
        keep.import_from(source)


def test_a_password_is_not_shown(empty: threadkeep.Keep) -> None:
    with pytest.raises(Unavailable) as caught:
        empty.import_from("postgresql://user:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)


# --- the command


def test_the_command_imports_and_says_what_it_did(source: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "threadkeep", "import", str(source), "--url", str(tmp_path / "ours.db")]
    ended_well = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended_well.returncode, ended_well.stderr) == (0, "")
    assert "langgraph-sqlite" in ended_well.stdout
    assert "both sides are equal" in ended_well.stdout


def test_the_command_counts_selects_and_prints_json(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--url", str(tmp_path / "ours.db")]
    assert run(["import", str(source), "--dry-run", "--json", *url]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "ours.db").exists()
    assert run(["import", str(source), "--thread", "chat", "--no-verify", "--json", *url]) == 0
    assert json.loads(capsys.readouterr().out)["threads"] == 1
    assert run(["import", str(source), "--prefix", "a", "--kind", "langgraph-sqlite", *url]) == 0
    capsys.readouterr()
    assert run(["import", str(source), "--json", *url]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["checkpoints"], again["already_there"]) == (0, counted["checkpoints"])
    with sqlite3.connect(source) as connection:
        connection.execute("UPDATE checkpoints SET metadata = '{}'")
    connection.close()
    assert run(["import", str(source), *url]) == 1
    assert "its metadata differs" in capsys.readouterr().out
    assert run(["import", str(tmp_path / "missing"), *url]) == 2
    assert run(["import", str(source), "--thread", "nobody", *url]) == 1
    assert run(["import", "postgresql://127.0.0.1:1/db", *url]) == 3


def test_the_command_imports_what_was_exported(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with threadkeep.open("memory://") as keep:
        keep.import_from(source)
        for name in ("all.tk", "all.jsonl"):
            keep.export(tmp_path / name)
    for name, expected in (("all.tk", "5 created"), ("all.jsonl", "5 unchanged")):
        assert run(["import", str(tmp_path / name), "--url", str(tmp_path / "ours.db")]) == 0
        assert expected in capsys.readouterr().out
    assert run(["import", str(tmp_path / "all.tk"), "--dry-run", "--url", str(tmp_path / "new.db")]) == 0
    assert "would import 5 threads from threadkeep-export: 5 created" in capsys.readouterr().out
    assert not (tmp_path / "new.db").exists()
    with threadkeep.open("memory://") as keep, pytest.raises(ValueError, match="import_portable"):
        keep.import_from(tmp_path / "all.jsonl")


def test_the_command_that_is_interrupted_continues(tmp_path: Path) -> None:
    write_long_file(tmp_path / "theirs.db", threads=100)
    ours = tmp_path / "ours.db"
    words = [sys.executable, "-m", "threadkeep", "import", str(tmp_path / "theirs.db"), "--url", str(ours)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while child.poll() is None and not _has_threads(ours):
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, message = child.communicate()
    assert child.returncode == 130, message
    assert "the same command continues" in message
    with threadkeep.open(f"sqlite:///{ours}") as keep:
        assert 0 < len(keep.threads(limit=200)) < 100
        assert keep.import_from(tmp_path / "theirs.db", prefix="t1").differences == ()
        assert len(keep.threads(prefix="t1")) == 11


def _has_threads(path: Path) -> bool:
    if not path.exists():
        return False
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return bool(connection.execute("SELECT 1 FROM tk_threads LIMIT 1").fetchall())
    except sqlite3.OperationalError:  # it is still being written
        return False
    finally:
        connection.close()


def test_memories_under_labels_that_langgraph_refuses_are_listed_and_exported(
    lasting_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """InMemoryStore does not check the ops of a batch, so an import may store such labels."""
    theirs, odd = InMemoryStore(), [("a.b",), ("a", ""), ("a", "b")]
    theirs.batch([PutOp(namespace, "key", {"in": list(namespace)}) for namespace in odd])
    with threadkeep.open(lasting_url) as keep:
        assert keep.import_from(theirs).memories == 3
        assert keep.store.list_namespaces() == sorted(odd)
        assert sorted(item.namespace for item in keep.store.search(())) == sorted(odd)
        with pytest.raises(InvalidNamespaceError):
            keep.store.search(("a.b",))
        assert keep.export(tmp_path / "all.jsonl").memories == 3
    capsys.readouterr()
    for args, found in (((), 3), (("a.b",), 1)):
        assert run(["memories", *args, "--url", lasting_url, "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)) == found
    with threadkeep.open("memory://") as other:
        assert other.import_portable(tmp_path / "all.jsonl").memories == 3
        assert other.store.list_namespaces() == sorted(odd)
