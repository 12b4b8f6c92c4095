"""Tests of delta channels: a value that is spread over the writes of ancestors is found in full."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.conformance.declarations import needs
from threadkeep.conformance.saver.chains import config_for, list_ids, put, values_of
from threadkeep.conformance.sync_async import Caller

DELTA: dict[str, Any] = {"counters_since_delta_snapshot": {"log": (1, 1)}}


def put_js_thread(saver: Caller, steps: int, *, delta: tuple[str, ...] = (), versions: type = int) -> None:
    """Put checkpoints 000, 001, … as LangGraph.js writes them: agent and tools run in turn and write messages.

    `delta` names delta channels, which have writes and versions and no values. The metadata does not name them.
    """
    written: dict[str, Any] = {"__start__": versions(1)}
    parent: str | None = None
    for step in range(steps):
        node, id, version = ("agent", "tools")[step % 2], f"{step:03}", versions(step + 2)
        written |= dict.fromkeys(("messages", "branch:to:agent", "branch:to:tools", "once", *delta), version)
        once = {"once": step} if step % 4 == 0 else {}  # an ephemeral channel: consumed in the step after the write
        values: dict[str, Any] = {"messages": [f"m{n}" for n in range(step)], f"branch:to:{node}": None, **once}
        values |= {"__start__": {"messages": []}} if step == 0 else {}
        checkpoint = {**empty_checkpoint(), "v": 4, "id": id, "channel_values": values}
        metadata = {"source": "loop", "step": step - 1, "parents": {}, "delta_writes_versioned": True}
        saver.put(config_for("t", parent), {**checkpoint, "channel_versions": dict(written)}, metadata, dict(written))
        next_once = [("once", step + 1)] if step % 4 == 3 else []
        writes = [("messages", f"m{step}"), (f"branch:to:{node}", None), *next_once, *((name, step) for name in delta)]
        if step < steps - 1:
            saver.put_writes(config_for("t", id), writes, f"task {step}")
        parent = id


@needs("prune")
@pytest.mark.parametrize("versions", [int, str])
def test_prune_leaves_one_checkpoint_of_a_thread_of_langgraph_js(my_saver: Caller, versions: type) -> None:
    put_js_thread(my_saver, 30, versions=versions)
    my_saver.prune(["t"])
    assert list_ids(my_saver) == ["029"]
    assert [my_saver.get_tuple(config_for("t", f"{step:03}")) for step in range(29)] == [None] * 29
    assert values_of(my_saver)["messages"] == [f"m{n}" for n in range(29)]


@needs("delta_channels", "prune")
def test_prune_leaves_the_delta_channels_of_a_thread_of_langgraph_js(my_saver: Caller) -> None:
    """Its metadata says that there are some, but not which."""
    put_js_thread(my_saver, 10, delta=("log",))
    before = delta_history(my_saver, "009", "log")
    assert before == {"log": (None, list(range(9)))}
    my_saver.prune(["t"])
    assert delta_history(my_saver, "009", "log") == before
    assert list_ids(my_saver) == ["009"]


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
