"""On a full disk a call fails as a whole, everything stays readable, and freed space can be used."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import threadkeep
from model import checkpoint_config
from row_invariants import find_problems
from threadkeep.errors import Unavailable

PAGES = 160


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Limit SQLite files to this many pages."""

    def limit(connection: apsw.Connection) -> None:
        connection.execute(f"PRAGMA max_page_count = {PAGES}")

    apsw.connection_hooks.append(limit)
    yield
    apsw.connection_hooks.remove(limit)


def put(saver: Any, thread: str, n: int) -> None:
    """Put a checkpoint with 20 KB of incompressible data."""
    values = {"noise": secrets.token_bytes(20_000), "n": n}
    versions = dict.fromkeys(values, n)
    checkpoint = {"v": 4, "id": f"{n:04}", "channel_values": values, "channel_versions": versions, "versions_seen": {}}
    saver.put(checkpoint_config(thread, "", ""), checkpoint, {"source": "loop", "step": n}, versions)


def ids(saver: Any) -> list[tuple[str, str]]:
    found = [each.config["configurable"] for each in saver.list(None) if len(each.checkpoint["channel_values"]) == 2]
    return [(inner["thread_id"], inner["checkpoint_id"]) for inner in found]


@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("verb", ["put", "put_writes", "copy_thread"])
def test_a_full_disk_fails_the_call_alone_and_room_can_be_made(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        saver: Any = keep.checkpointer
        for n in range(4):
            put(saver, "old", n)
        put(saver, "t", 0)

        def fill(n: int) -> None:
            if verb == "put":
                put(saver, "t", n)
            elif verb == "put_writes":
                saver.put_writes(
                    checkpoint_config("t", "", "0000"), [("noise", secrets.token_bytes(20_000))], f"task {n}"
                )
            else:
                saver.copy_thread("t", f"copy {n}")

        done = 0
        with pytest.raises(Unavailable):
            for n in range(1, 100):
                fill(n)
                done = n
        assert 0 < done < 50
        assert find_problems(path) == []
        before = ids(saver)
        assert len(before) == 5 + (done if verb != "put_writes" else 0)
        saver.delete_thread("old")
        fill(done + 1)
        assert find_problems(path) == []
    with threadkeep.open(f"sqlite:///{path}") as keep:
        assert len(ids(keep.checkpointer)) == len(before) - 4 + (verb != "put_writes")
        assert len(keep.checkpointer.get_tuple(checkpoint_config("t", "", "0000")).pending_writes) == (
            done + 1 if verb == "put_writes" else 0
        )
