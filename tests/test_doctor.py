"""doctor reports facts about the storage and recommends changes; compact frees space and keeps everything readable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest
from langchain_core.messages import HumanMessage

import graph_scenarios
import postgres_servers
import threadkeep
import valkey_servers
from encrypted_keeps import NEXT
from sync_async import Caller
from threadkeep.cli.app import run
from threadkeep.errors import ReadOnly, Unavailable
from threadkeep.jobs import doctor


def by_name(findings: list[threadkeep.Finding]) -> dict[str, threadkeep.Finding]:
    return {finding.name: finding for finding in findings}


async def test_every_backend_reports_its_facts(url: str, call: Caller) -> None:
    async with threadkeep.open(url) as keep:
        await call(graph_scenarios.letters(keep.checkpointer), "invoke", {"foo": ""}, graph_scenarios.THREAD)
        findings = by_name(await call(keep, "doctor"))
    assert findings["threadkeep"].value == threadkeep.__version__
    assert findings["backend"].value == url.partition(":")[0].replace("postgresql", "postgres")
    assert {finding.verdict for finding in findings.values()} <= {"ok", "note", "warning", "problem"}
    assert all(finding.advice for finding in findings.values() if finding.verdict in ("warning", "problem"))
    assert "durability" in findings


def test_a_healthy_file_has_no_problem_and_a_bad_one_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{path}", durability="relaxed") as keep:
        graph_scenarios.letters(keep.checkpointer).invoke({"foo": ""}, graph_scenarios.THREAD)
        findings = by_name(keep.doctor())
        assert findings["durability"].value == "relaxed: synchronous = normal"
        assert findings["durability"].verdict == "note"
        assert findings["journal mode"] == threadkeep.Finding("journal mode", "wal")
        assert findings["contents"].value.startswith("1 threads")
    path.chmod(0o600)
    assert run(["doctor", "--url", str(path)]) == 0
    for name in ("keep.db-wal", "keep.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).mkdir()  # as in a read-only folder
    assert run(["doctor", "--url", str(path)]) == 0
    capsys.readouterr()
    for name in ("keep.db-wal", "keep.db-shm"):
        (tmp_path / name).rmdir()
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    connection.close()
    assert run(["doctor", "--url", str(path), "--json"]) == 1
    findings = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert findings["journal mode"]["verdict"] == "problem"
    assert findings["permissions"] == {"name": "permissions", "value": "600", "verdict": "ok", "advice": ""}


def test_bad_settings_of_a_postgresql_server_are_reported() -> None:
    """The tests' server runs without fsync, which doctor must report."""
    with threadkeep.open(postgres_servers.fresh_schema(postgres_servers.shared())) as keep:
        keep.setup()
        findings = by_name(keep.doctor())
    assert findings["fsync"].verdict == "problem"
    assert findings["full_page_writes"].verdict == "problem"
    assert findings["schema"].value.endswith("(current)")
    assert findings["pooler"].value.startswith("none detected")
    assert findings["privileges"].verdict == "ok"
    assert "the pool of a Keep has 1 to 8" in findings["connections"].value
    assert findings["server's clock"].verdict == "ok"


def test_a_server_that_evicts_and_has_no_replica_is_reported() -> None:
    server = valkey_servers.start(**{"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"})
    try:
        with threadkeep.open(f"valkey://127.0.0.1:{server.port}/") as keep:
            findings = by_name(keep.doctor())
        name = f"127.0.0.1:{server.port}"
        assert findings[f"{name} eviction"].verdict == "problem"
        assert findings["replicas"].verdict == "warning"
        assert findings["topology"].value == "one server"
        with threadkeep.open(f"valkey://127.0.0.1:{server.port}/?replicas=2") as keep:
            assert by_name(keep.doctor())["durability"].verdict == "problem"
    finally:
        server.stop()


def test_a_cluster_is_reported_with_its_slots_and_replicas() -> None:
    with threadkeep.open(valkey_servers.shared().url()) as keep:
        findings = by_name(keep.doctor())
    assert findings["slots"].value.startswith("16384 of 16384")
    assert findings["replicas"].value == "2 per primary"
    assert findings["durability"].value == "commits wait for 1 replicas (WAIT)"


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        ({"file_system": "nfs4"}, "file system", "problem"),
        ({"file_system": None}, "file system", "note"),
        ({"synchronous": "off"}, "durability", "problem"),
        ({"disk_free": 1_000_000}, "disk", "problem"),
        ({"disk_free": 500_000_000}, "disk", "warning"),
        ({"wal_bytes": 10**9}, "write-ahead log", "warning"),
        ({"pages": 10_000, "free_pages": 9_000}, "free pages", "note"),
        ({"writable": False}, "permissions", "warning"),
        ({"schema": 1}, "schema", "warning"),
    ],
    ids=str,
)
def test_facts_that_are_problems(change: dict[str, Any], name: str, verdict: str) -> None:
    good = {
        "backend": "sqlite",
        "driver": "apsw",
        "server": "SQLite",
        "schema": 2,
        "schema_known": 2,
        "durability": "strict",
        "path": "keep.db",
        "journal_mode": "wal",
        "synchronous": "full",
        "page_size": 4096,
        "pages": 10,
        "free_pages": 0,
        "auto_vacuum": 2,
        "wal_bytes": 0,
        "mode": 0o600,
        "writable": True,
        "disk_free": 10**12,
        "file_system": "ext4",
        "threads": 1,
        "memories": 0,
    }
    assert {finding.verdict for finding in doctor.findings(good, tenant="")} == {"ok"}
    assert by_name(doctor.findings({**good, **change}, tenant=""))[name].verdict == verdict


# --- compact


async def test_compact_frees_what_nothing_needs_and_changes_nothing_that_is_read(url: str, call: Caller) -> None:
    async with threadkeep.open(url) as keep:
        graph = graph_scenarios.chat(graph_scenarios.replies)(keep.checkpointer)
        for n in range(3):
            config = {"configurable": {"thread_id": "t"}, "run_id": f"00000000-0000-0000-0000-00000000000{n}"}
            await call(graph, "invoke", {"messages": [HumanMessage(f"{n} " * 300, id=f"h{n}")]}, config)
        saver = keep.checkpointer
        latest = (await call(graph, "get_state", config)).config
        checkpoint = (await call(saver, "get_tuple", latest)).checkpoint
        for text in ("one " * 300, "two " * 300):  # put twice: nothing needs the items of the first any more
            again = {
                **checkpoint,
                "id": checkpoint["id"][:-1] + "f",
                "channel_values": {"messages": [HumanMessage(text, id="x")]},
            }
            await call(saver, "put", latest, again, {"source": "loop", "step": 99}, {"messages": 99})
        before = [(found.checkpoint, found.metadata) for found in await call.every(saver, "list", None)]
        progress: list[Any] = []
        compacted = await call(keep, "compact", on_progress=lambda *args: progress.append(args))
        assert compacted.threads == 1
        assert compacted.items >= 1
        assert compacted.skipped == []
        assert progress[0] == (0, 1, "t")
        assert [(found.checkpoint, found.metadata) for found in await call.every(saver, "list", None)] == before
        assert (await call(keep, "verify")).problems == []
        assert (await call(keep, "compact")).items == 0


def test_a_file_shrinks_and_one_that_others_hold_is_unavailable_and_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{path}", timeout=0.3) as keep:
        for n in range(400):
            keep.store.put(("notes",), f"k{n}", {"text": f"{n} " * 1000})
        for n in range(400):
            keep.store.delete(("notes",), f"k{n}")
        compacted = keep.compact()
        assert compacted.bytes_after < compacted.bytes_before / 2
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            keep.compact()
        other.execute("ROLLBACK")
        other.close()
        keep.store.put(("notes",), "k", {"text": "still here"})
        assert keep.verify().problems == []
    with threadkeep.open(f"sqlite:///{path}", read_only=True) as keep, pytest.raises(ReadOnly):
        keep.compact()


def test_expired_threads_are_removed_by_compact() -> None:
    url = valkey_servers.shared().url(thread_ttl=1)
    with threadkeep.open(url) as keep:
        graph_scenarios.letters(keep.checkpointer).invoke({"foo": ""}, graph_scenarios.THREAD)
        valkey_servers.wait_for(
            lambda: keep.checkpointer.get_tuple(graph_scenarios.THREAD) is None, "the end of a thread"
        )
        assert keep.verify().problems == []
        assert any(key[4:6] == b"n:" and members for key, members in valkey_servers.read_all(url).items())
        keep.compact()
        assert not any(key[4:6] == b"n:" and members for key, members in valkey_servers.read_all(url).items())


def test_the_exit_code_says_whether_there_are_problems(tmp_path: Path) -> None:
    path = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        graph_scenarios.letters(keep.checkpointer).invoke({"foo": ""}, graph_scenarios.THREAD)
    path.write_bytes(path.read_bytes()[:4096] + bytes(4096) * 3)
    command = [sys.executable, "-m", "threadkeep", "verify", "--url", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "database" in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr


def test_the_state_of_encryption_is_reported(lasting_url: str) -> None:
    keys = threadkeep.Keys({"k1": bytes(32)}, primary="k1")
    with threadkeep.open(lasting_url, keys=keys, hide_ids=True) as keep:
        keep.setup()
    for given, read_only in ((keys, False), (keys, True), (None, False), (NEXT, False)):
        with threadkeep.open(lasting_url, keys=given, read_only=read_only) as keep:  # nothing else was read
            found = by_name(keep.doctor())["encryption"]
            if given is keys:
                assert (found.value, found.verdict) == ("sealed, ids hidden", "ok")
            else:
                assert (found.value, found.verdict) == ("not opened", "problem")
                assert "encrypted" in found.advice
    with threadkeep.open("memory://") as keep:
        assert "encryption" not in by_name(keep.doctor())
