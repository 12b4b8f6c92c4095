"""Backup and restore: a backup holds everything, can be made under load, and comes back on every backend."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import threadkeep
from checkpoint_chains import Chain, config
from sample_keep import contents, fill
from threadkeep.cli.app import run


def test_a_backup_holds_everything(fresh_url: Callable[[], str], tmp_path: Path) -> None:
    url, file = fresh_url(), tmp_path / "backup"
    with threadkeep.open(url) as keep:
        fill(keep)
        before = contents(keep)
        result = threadkeep.backup(keep, file)
    assert result.is_complete
    assert result.bytes == file.stat().st_size
    with threadkeep.open(fresh_url()) as target:
        assert threadkeep.restore(file, target).is_equal
        assert contents(target) == before
        assert target.verify().problems == []


def test_a_backup_of_a_sqlite_file_has_all_tenants(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    for tenant in ("", "other"):
        with threadkeep.open(url, tenant=tenant) as keep:
            Chain(keep.checkpointer).put({"x": tenant})
    assert run(["backup", url, str(tmp_path / "copy.db")]) == 0
    assert run(["restore", str(tmp_path / "copy.db"), f"sqlite:///{tmp_path}/back.db"]) == 0
    for tenant in ("", "other"):
        with threadkeep.open(f"sqlite:///{tmp_path}/back.db", tenant=tenant) as keep:
            assert len(keep.threads()) == 1
    assert sorted(path.name for path in tmp_path.glob("copy.db*")) == ["copy.db"]


def test_a_backup_under_load_has_what_was_acknowledged_before_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with threadkeep.open(url) as keep, threadkeep.open(url) as writer:
        acknowledged: list[str] = []
        stop = threading.Event()

        def write() -> None:
            chain = Chain(writer.checkpointer)
            while not stop.is_set():
                acknowledged.append(chain.put({"x": "y" * 500})["configurable"]["checkpoint_id"])

        thread = threading.Thread(target=write)
        thread.start()
        try:
            while len(acknowledged) < 50:
                stop.wait(0.01)
            for n in range(3):
                before = list(acknowledged)
                assert threadkeep.backup(keep, tmp_path / f"copy{n}.db").is_complete
                with threadkeep.open(f"sqlite:///{tmp_path}/copy{n}.db") as copy:
                    found = {
                        each.config["configurable"]["checkpoint_id"] for each in copy.checkpointer.list(config("t"))
                    }
                assert found.issuperset(before)
        finally:
            stop.set()
            thread.join()


def test_a_plain_copy_of_a_live_file_lacks_what_is_in_its_log(tmp_path: Path) -> None:
    with threadkeep.open(f"sqlite:///{tmp_path}/a.db") as keep:
        chain = Chain(keep.checkpointer)
        for _ in range(100):
            chain.put({"x": "y" * 500})
        shutil.copy(tmp_path / "a.db", tmp_path / "copy.db")
        threadkeep.backup(keep, tmp_path / "backup.db")
    counts = {}
    for name in ("copy", "backup"):
        with threadkeep.open(f"sqlite:///{tmp_path}/{name}.db") as keep:
            counts[name] = len(list(keep.checkpointer.list(config("t"))))
    assert counts["copy"] < counts["backup"] == 100


def test_a_backup_replaces_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with threadkeep.open(f"sqlite:///{tmp_path}/a.db") as keep:
        Chain(keep.checkpointer).put({"x": 1})
    (tmp_path / "copy.db").write_text("precious")
    assert run(["backup", str(tmp_path / "a.db"), str(tmp_path / "copy.db")]) != 0
    assert "exists" in capsys.readouterr().err
    assert (tmp_path / "copy.db").read_text() == "precious"


def test_a_backup_into_a_directory_that_does_not_exist_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with threadkeep.open(f"sqlite:///{tmp_path}/a.db") as keep:
        Chain(keep.checkpointer).put({"x": 1})
    assert run(["backup", str(tmp_path / "a.db"), str(tmp_path / "none" / "copy.db")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_a_repeated_restore_says_what_it_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with threadkeep.open(f"sqlite:///{tmp_path}/a.db") as keep:
        Chain(keep.checkpointer).put({"x": 1})
    assert run(["restore", str(tmp_path / "a.db"), str(tmp_path / "b.db")]) == 0
    assert run(["restore", str(tmp_path / "a.db"), str(tmp_path / "b.db")]) == 0
    assert "restored 1 thread from threadkeep: 1 unchanged" in capsys.readouterr().out


def test_a_file_that_is_no_backup_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "note.txt").write_text("hello")
    assert run(["restore", str(tmp_path / "note.txt"), f"sqlite:///{tmp_path}/new.db"]) == 2
    assert "not a backup" in capsys.readouterr().err
    assert run(["restore", str(tmp_path / "nothing"), f"sqlite:///{tmp_path}/new.db"]) == 2


def test_a_damaged_file_is_copied_and_the_damage_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import apsw

    path = tmp_path / "a.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        Chain(keep.checkpointer).put({"x": "y" * 500})
    apsw.Connection(str(path)).execute("UPDATE tk_items SET payload = zeroblob(10) WHERE lane > 2")
    assert run(["backup", str(path), str(tmp_path / "copy.db")]) == 1
    assert "damaged" in capsys.readouterr().out
