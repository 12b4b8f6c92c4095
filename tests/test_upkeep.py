"""copy_thread, prune and delete_for_runs: cases that the agreement with the model does not show directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph.checkpoint.serde.types import ERROR

import threadkeep
from model import checkpoint_config
from row_invariants import unused_items


def put(saver: Any, thread: str, id: str, parent: str = "", **values: Any) -> None:
    versions = dict.fromkeys(values, 1)
    checkpoint = {"v": 4, "id": id, "channel_values": values, "channel_versions": versions, "versions_seen": {}}
    saver.put(checkpoint_config(thread, "", parent), checkpoint, {"source": "loop", "step": 1}, versions)


def test_a_copy_leaves_the_special_writes_that_the_target_has(saver: threadkeep.KeepSaver) -> None:
    """Otherwise repeating a copy would put an answered interrupt back."""
    for thread in ("source", "target"):
        put(saver, thread, "1")
        saver.put_writes(checkpoint_config(thread, "", "1"), [(ERROR, f"of {thread}"), ("m", f"of {thread}")], "task")
    saver.copy_thread("source", "target")
    found = saver.get_tuple(checkpoint_config("target", "", "1"))
    assert found is not None
    assert found.pending_writes == [("task", ERROR, "of target"), ("task", "m", "of target")]


def test_a_prune_that_removes_no_checkpoint_frees_what_was_replaced(tmp_path: Path) -> None:
    with threadkeep.open(f"sqlite:///{tmp_path / 'keep.db'}") as keep:
        for n in (1, 2):
            put(keep.checkpointer, "t", "1", messages=[f"message {n} " * 50])
            keep.checkpointer.put_writes(checkpoint_config("t", "", "1"), [(ERROR, f"error {n} " * 50)], "task")
        assert unused_items(tmp_path / "keep.db", "t")
        keep.checkpointer.prune(["t"])
        assert not unused_items(tmp_path / "keep.db", "t")
