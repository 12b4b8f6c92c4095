"""Full disks, read-only file systems, and files that are removed: clear errors, and nothing acknowledged is lost."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from failing_disk import ERRORS, failing_disk
from fault_log import FaultLog, Findings, audit
from fault_matrix import Matrix, size
from fault_verbs import CHANGES, fill, stored
from fault_writers import FaultWriters
from small_disks import SmallDisk, small_disk

import postgres_servers
import threadkeep
import valkey_servers
from checkpoint_chains import Chain, values_of
from threadkeep.errors import ReadOnly, ThreadkeepError, Unavailable


@contextmanager
def sqlite_on(disk: SmallDisk) -> Iterator[tuple[str, Callable[[], object]]]:
    yield f"sqlite:///{disk.folder}/keep.db", lambda: None


@contextmanager
def postgres_on(disk: SmallDisk) -> Iterator[tuple[str, Callable[[], object]]]:
    settings = {**postgres_servers.DURABLE, "max_wal_size": "32MB", "min_wal_size": "32MB"}
    server = postgres_servers.Server(disk.folder, postgres_servers.binaries(), postgres_servers.free_port(), settings)
    server.create()
    server.start()
    try:
        yield server.url(schema="k"), lambda: None if server.running else server.start()
    finally:
        if server.running:
            server.stop("immediate")


@contextmanager
def valkey_on(disk: SmallDisk) -> Iterator[tuple[str, Callable[[], object]]]:
    server = valkey_servers.start(appendonly="yes", appendfsync="everysec", dir=str(disk.folder))
    try:
        yield f"valkey://127.0.0.1:{server.port}", lambda: None
    finally:
        server.stop()


STORAGES: dict[str, Any] = {"sqlite": (sqlite_on, 16), "postgres": (postgres_on, 160), "valkey": (valkey_on, 16)}


@pytest.mark.fault("full disk")
@pytest.mark.parametrize("backend", STORAGES)
def test_a_full_disk_is_unavailable_until_there_is_room(backend: str, log: FaultLog, matrix: Matrix) -> None:
    storage, megabytes = STORAGES[backend]
    rounds = size(1, 12)
    with small_disk(postgres_servers.fresh_folder(), megabytes=megabytes) as disk, storage(disk) as (url, revive):
        with threadkeep.open(url, timeout=3) as keep, FaultWriters(keep, log) as writers:
            for _ in range(rounds):
                writers.wait_for(5)
                disk.fill()
                writers.wait_for_errors(10)
                disk.make_room()
                revive()
                writers.wait_for(5)
        matrix.add(rounds, audit(url, log))
    assert any("disk" in error or "space" in error or "AOF" in error for error in writers.failed), set(writers.failed)


@pytest.mark.fault("read-only file system")
@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_read_only_file_system_can_be_read_and_nothing_is_lost(
    backend: str, tmp_path: Path, log: FaultLog, matrix: Matrix
) -> None:
    rounds = size(2, 40)
    with small_disk(tmp_path / "disk", megabytes=64) as disk:
        url = f"sqlite:///{disk.folder}/keep.db"
        for _ in range(rounds):
            with threadkeep.open(url) as keep, FaultWriters(keep, log) as writers:
                writers.wait_for(3)
            disk.protect()
            files = sorted(each.name for each in disk.folder.iterdir())
            audit(url, log).check()
            for options in ({}, {"read_only": True}):
                with threadkeep.open(url, timeout=0.2, **options) as keep:
                    for ask in changes(keep):
                        with pytest.raises((Unavailable, ReadOnly)):
                            ask()
            assert sorted(each.name for each in disk.folder.iterdir()) == files
            disk.unprotect()
        matrix.add(rounds, audit(url, log))


def changes(keep: threadkeep.Keep) -> list[Callable[[], Any]]:
    saver = keep.checkpointer
    return [
        lambda: Chain(saver, "new").put({"x": 1}),
        lambda: saver.delete_thread("sa0"),
        lambda: keep.store.put(("m0",), "new", {"x": 1}),
        lambda: keep.store.delete(("m0",), "0"),
        lambda: saver.copy_thread("s0", "new"),
        lambda: keep.prune(policy=threadkeep.Policy(keep_last=1, keep_branches=False)),
    ]


@pytest.mark.fault("server that takes no writes")
@pytest.mark.parametrize("backend", ["postgres", "valkey"])
def test_a_server_that_takes_no_writes_is_waited_for_or_unavailable(
    backend: str, log: FaultLog, matrix: Matrix
) -> None:
    rounds = size(1, 20)
    with READ_ONLY_SERVERS[backend]() as (url, protect, unprotect):
        with threadkeep.open(url, timeout=2) as keep, FaultWriters(keep, log) as writers:
            for _ in range(rounds):
                writers.wait_for(5)
                protect()
                writers.wait_for_errors(8)
                assert values_of(keep.checkpointer, "s0")
                unprotect()
                writers.wait_for(5)
        matrix.add(rounds, audit(url, log))


@contextmanager
def protected_postgres() -> Iterator[Any]:
    with postgres_servers.fresh_server() as server:

        def tell(change: str) -> None:
            server.execute(f"alter system {change}")
            server.execute("select pg_reload_conf()")

        setting = "default_transaction_read_only"
        yield server.url(schema="k"), lambda: tell(f"set {setting} = on"), lambda: tell(f"reset {setting}")


@contextmanager
def protected_valkey() -> Iterator[Any]:
    """A server that cannot save to its disk takes no writes (MISCONF)."""
    server = valkey_servers.start()

    def protect() -> None:
        server.client.config_set("save", "1 1")
        (server.folder / "dump.rdb").unlink(missing_ok=True)
        (server.folder / "dump.rdb").mkdir()
        server.client.execute_command("BGSAVE", "SCHEDULE")

    def unprotect() -> None:
        (server.folder / "dump.rdb").rmdir()
        server.client.config_set("save", "")
        valkey_servers.wait_for(lambda: saved(server), "a server that can save")

    try:
        yield f"valkey://127.0.0.1:{server.port}", protect, unprotect
    finally:
        server.stop()


def saved(server: valkey_servers.Server) -> bool:
    info: Any = server.client.info("persistence")
    if not info["rdb_bgsave_in_progress"] and info["rdb_last_bgsave_status"] != "ok":
        server.client.execute_command("BGSAVE")
    return bool(info["rdb_last_bgsave_status"] == "ok")


READ_ONLY_SERVERS: dict[str, Any] = {"postgres": protected_postgres, "valkey": protected_valkey}


def remove(file: Path) -> None:
    file.unlink()


def remove_all(file: Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()


def remove_folder(file: Path) -> None:
    shutil.rmtree(file.parent)


def move(file: Path) -> None:
    file.rename(file.with_name("moved.db"))


def replace_by_backup(file: Path) -> None:
    """As a careless restore does, while a process uses the file."""
    threadkeep.backup(f"sqlite:///{file}", file.with_name("backup.db"))
    file.with_name("backup.db").replace(file)


REMOVALS = {
    "removed": remove,
    "removed with its log": remove_all,
    "folder removed": remove_folder,
    "moved": move,
    "replaced by a backup": replace_by_backup,
}


@pytest.mark.parametrize("how", REMOVALS)
@pytest.mark.parametrize("options", [{}, {"read_only": True}], ids=["writer", "reader"])
def test_a_file_that_was_removed_or_replaced_is_unavailable_and_nothing_is_acknowledged(
    tmp_path: Path, how: str, options: dict[str, Any]
) -> None:
    file = tmp_path / "folder" / "keep.db"
    file.parent.mkdir()
    url = f"sqlite:///{file}"
    with threadkeep.open(url) as writer, threadkeep.open(url, **options) as keep:
        Chain(writer.checkpointer, "s0").put({"x": 1})
        writer.store.put(("m0",), "0", {"x": 1})
        assert values_of(keep.checkpointer, "s0") == {"x": 1}
        REMOVALS[how](file)
        before = sorted(each.name for each in tmp_path.rglob("*"))
        for ask in (*changes(keep), lambda: values_of(keep.checkpointer, "s0"), keep.threads, keep.verify):
            for _ in range(2):
                with pytest.raises(ThreadkeepError) as raised:
                    ask()
                assert isinstance(raised.value, ReadOnly) or "keep.db was" in str(raised.value)
        assert sorted(each.name for each in tmp_path.rglob("*")) == before


async def test_a_removed_file_is_unavailable_for_async_callers(tmp_path: Path) -> None:
    async with threadkeep.open(f"sqlite:///{tmp_path}/keep.db") as keep:
        await Chain(keep.checkpointer).aput({"x": 1})
        (tmp_path / "keep.db").rename(tmp_path / "moved.db")
        for ask in (
            lambda: Chain(keep.checkpointer, "u").aput({"x": 1}),
            lambda: keep.checkpointer.aget_tuple({"configurable": {"thread_id": "t"}}),
            lambda: keep.store.aput(("m",), "k", {"x": 1}),
            lambda: keep.cube.load("t"),
        ):
            with pytest.raises(Unavailable, match="removed while it was in use"):
                await ask()


@pytest.mark.fault("file removed")
@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_file_that_comes_back_is_used_again(backend: str, tmp_path: Path, log: FaultLog, matrix: Matrix) -> None:
    file, moved, rounds = tmp_path / "keep.db", tmp_path / "moved.db", size(2, 150)
    with threadkeep.open(f"sqlite:///{file}") as keep, FaultWriters(keep, log) as writers:
        for _ in range(rounds):
            writers.wait_for(3)
            file.rename(moved)
            writers.wait_for_errors(5)
            assert not file.exists()
            moved.rename(file)
            writers.wait_for(3)
    matrix.add(rounds, audit(f"sqlite:///{file}", log))


@pytest.mark.fault("disk fails at each write and sync of each verb")
@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_verb_whose_write_fails_is_made_as_a_whole_or_not_at_all(
    backend: str, tmp_path: Path, matrix: Matrix
) -> None:
    with failing_disk() as disk, threadkeep.open(f"sqlite:///{tmp_path}/keep.db", timeout=1) as keep:
        for (name, verb), error in list(itertools.product(CHANGES.items(), ERRORS))[:: size(5, 1)]:
            with keep.tenant(f"{name} {error}") as own:
                fill(own)
                before = stored(own)
                verb.call(own)
                after = stored(own)
            for k in itertools.count(1):
                failures = disk.failures
                with keep.tenant(f"{name} {error} {k}") as own:
                    fill(own)
                    disk.fail_at(k, error)
                    try:
                        verb.call(own)
                    except Unavailable:
                        assert disk.failures > failures, (name, error, k)
                    disk.fail_at(0, error)
                    found = stored(own)
                    assert all(found[part] in (before[part], after[part]) for part in before), (name, error, k)
                    verb.call(own)
                    assert stored(own) == after, (name, error, k)
                    assert own.verify().problems == []
                if disk.failures == failures:
                    break
            assert 1 < k < 200, (name, error, k)
        matrix.add(disk.failures, Findings(disk.failures))
