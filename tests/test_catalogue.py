"""The catalogue tells what the rows tell: counts, bytes, status, and whose metadata fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

import threadkeep
from model import place_config
from soundness import loose_ends


def put(keep: threadkeep.Keep, thread: str, id: str, parent: str = "", about: Any = None, **values: Any) -> None:
    versions = dict.fromkeys(values, 1)
    checkpoint: Any = {"v": 4, "id": id, "channel_values": values, "channel_versions": versions, "versions_seen": {}}
    config: Any = place_config(thread, "", parent)
    keep.checkpointer.put(config, checkpoint, {"source": "loop", "step": 1, **(about or {})}, versions)


def write(keep: threadkeep.Keep, id: str, channel: str, task: str = "task") -> None:
    config: Any = place_config("t", "", id)
    keep.checkpointer.put_writes(config, [(channel, "value")], task)


def status(keep: threadkeep.Keep) -> str:
    return keep.threads()[0].status


def test_the_status_counts_writes_that_came_before_their_checkpoint_however_many_came(keep: threadkeep.Keep) -> None:
    put(keep, "t", "1")
    write(keep, "2", INTERRUPT)
    write(keep, "3", "messages")
    put(keep, "t", "2", "1")
    assert status(keep) == "interrupted"
    put(keep, "t", "3", "2")
    assert status(keep) == "pending"
    put(keep, "t", "4", "3")
    assert status(keep) == "idle"


def test_the_status_counts_writes_that_waited_while_a_later_checkpoint_went(keep: threadkeep.Keep) -> None:
    put(keep, "t", "1", about={"run_id": "stays"})
    put(keep, "t", "5", "1", about={"run_id": "goes"})
    write(keep, "2", "messages")
    write(keep, "3", INTERRUPT)
    keep.checkpointer.delete_for_runs(["goes"])
    put(keep, "t", "2", "1")
    assert status(keep) == "pending"
    put(keep, "t", "3", "2")
    assert status(keep) == "interrupted"


def test_the_status_follows_a_checkpoint_that_is_put_again(keep: threadkeep.Keep) -> None:
    put(keep, "t", "1", **{"branch:to:node": None})
    assert status(keep) == "pending"
    put(keep, "t", "1")
    assert status(keep) == "idle"
    write(keep, "1", ERROR)
    put(keep, "t", "1", **{"branch:to:node": None})
    assert status(keep) == "error"


@pytest.mark.parametrize(
    "chosen",
    [{"user": "u"}, {"step": 4.0}, {"run_id": "run"}, {"parents": {"": "0"}}, {"gone": None}, {"source": "loop"}],
    ids=str,
)
def test_threads_are_chosen_by_any_metadata_of_their_newest_checkpoint(keep: threadkeep.Keep, chosen: Any) -> None:
    put(keep, "t", "1", about={"gone": 1})
    put(keep, "t", "2", about={"run_id": "run", "parents": {"": "0"}, "step": 4, "user": "u"})
    put(keep, "u", "1", about={"run_id": "other", "source": "input", "gone": 1})
    assert [info.id for info in keep.threads(metadata=chosen)] == ["t"]


@pytest.mark.parametrize("chosen", [{"run_id": None}, {"parents": None}, {"step": True}, {"user": "w"}], ids=str)
def test_threads_with_other_metadata_are_left_out(keep: threadkeep.Keep, chosen: Any) -> None:
    put(keep, "t", "1", about={"run_id": "run", "parents": {"": "0"}, "step": 1, "user": "u"})
    assert keep.threads(metadata=chosen) == []


def test_a_copy_counts_the_bytes_that_it_holds(tmp_path: Path) -> None:
    with threadkeep.open(f"sqlite:///{tmp_path / 'keep.db'}") as keep:
        put(keep, "t", "1", about={"thread_id": "t"})
        keep.checkpointer.copy_thread("t", "a longer name")
        keep.checkpointer.copy_thread("a longer name", "u")
    assert loose_ends(tmp_path / "keep.db") == []
