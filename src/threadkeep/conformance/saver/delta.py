"""Tests of delta channels: a value that is spread over the writes of ancestors is found in full."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.conformance.declarations import needs
from threadkeep.conformance.saver.chains import config_for, put, values_of
from threadkeep.conformance.sync_async import Caller

DELTA: dict[str, Any] = {"counters_since_delta_snapshot": {"log": (1, 1)}}


def delta_history(saver: Caller, id: str, *channels: str) -> dict[str, tuple[Any, list[Any]]]:
    """Return the seed and the written values of delta channels, as a checkpoint sees them."""
    found = saver.get_delta_channel_history(config=config_for("t", id), channels=list(channels))
    return {name: (entry.get("seed"), [write[2] for write in entry["writes"]]) for name, entry in found.items()}


def put_branches(saver: Caller) -> None:
    """Put 1 with a value; 2 as its child; 3 and 4 as children of 2; 5 as child of 4. Each has a write."""
    put(saver, "1", None, {"log": ["seed"]})
    for id, parent in (("2", "1"), ("3", "2"), ("4", "2"), ("5", "4")):
        put(saver, id, parent, **DELTA)
    for id in "12345":
        saver.put_writes(config_for("t", id), [("log", f"on {id}"), ("other", id)], f"task {id}")


@needs("delta_channels")
def test_the_history_of_a_channel_is_its_seed_and_the_writes_since(my_saver: Caller) -> None:
    put_branches(my_saver)
    assert delta_history(my_saver, "3", "log") == {"log": (["seed"], ["on 1", "on 2"])}
    assert delta_history(my_saver, "1", "log") == {"log": (None, [])}
    assert delta_history(my_saver, "2", "other", "never") == {"other": (None, ["1"]), "never": (None, [])}


@needs("delta_channels")
def test_a_branch_does_not_see_its_sibling(my_saver: Caller) -> None:
    put_branches(my_saver)
    assert delta_history(my_saver, "5", "log") == {"log": (["seed"], ["on 1", "on 2", "on 4"])}


@needs("delta_channels")
@pytest.mark.parametrize("held", [["seed"], _DeltaSnapshot(["seed"])], ids=["plain", "snapshot"])
def test_a_delta_channel_is_not_taken_from_the_parent(my_saver: Caller, held: Any) -> None:
    """It is rebuilt from its ancestors, whatever its version is."""
    put(my_saver, "1", None, {"log": held})
    my_saver.put_writes(config_for("t", "1"), [("log", "on 1")], "task")
    checkpoint = {**empty_checkpoint(), "id": "2", "channel_versions": {"log": 1}}
    my_saver.put(config_for("t", "1"), checkpoint, {"source": "loop", "step": 1, **DELTA}, {})
    put(my_saver, "3", "2", **DELTA)
    assert values_of(my_saver, "t", "2") == {}
    assert delta_history(my_saver, "3", "log") == {"log": (held, ["on 1"])}


@needs("delta_channels")
def test_no_channels_have_no_history(my_saver: Caller) -> None:
    put_branches(my_saver)
    assert my_saver.get_delta_channel_history(config=config_for("t", "3"), channels=[]) == {}


@needs("delta_channels", "prune")
def test_prune_leaves_what_delta_channels_are_rebuilt_from(my_saver: Caller) -> None:
    put_branches(my_saver)
    my_saver.prune(["t"])
    assert delta_history(my_saver, "5", "log") == {"log": (["seed"], ["on 1", "on 2", "on 4"])}


@needs("delta_channels", "copy_thread")
def test_a_copy_has_what_delta_channels_are_rebuilt_from(my_saver: Caller) -> None:
    put_branches(my_saver)
    my_saver.copy_thread("t", "copy")
    my_saver.delete_thread("t")
    found = my_saver.get_delta_channel_history(config=config_for("copy", "5"), channels=["log"])
    assert [write[2] for write in found["log"]["writes"]] == ["on 1", "on 2", "on 4"]
