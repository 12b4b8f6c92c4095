"""prune, delete_for_runs and copy_thread keep the delta channel values of every remaining checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

import threadkeep
from checkpoint_chains import config, list_ids
from checkpoint_trees import Put, PutWrites, Step, base_walk, exact_history, put_steps, random_trees
from hypothesis_profiles import examples
from sync_async import Caller

# `a` is a delta channel with a snapshot at c3, `plain` is not one.
DELTA: list[Step] = [
    Put("c1", values={"plain": 1}, delta=("a",), run="r1"),
    PutWrites("c1", "t1", (("a", "a1"),), run="r1"),
    Put("c2", "c1", values={"plain": 2}, delta=("a",), run="r1"),
    PutWrites("c2", "t2", (("a", "a2"),), run="r1"),
    Put("c3", "c2", values={"plain": 3, "a": _DeltaSnapshot(["a1", "a2"])}, delta=("a",), run="r1"),
    PutWrites("c3", "t3", (("a", "a3"),), run="r2"),
    Put("c4", "c3", values={"plain": 4}, delta=("a",), run="r2"),
    PutWrites("c4", "t4", (("a", "a4"),), run="r2"),
    Put("c5", "c4", values={"plain": 5}, delta=("a",), run="r2"),
    PutWrites("c5", "t5", (("a", "a5"),), run="r3"),
    Put("c6", "c5", values={"plain": 6}, delta=("a",), run="r3"),
]


def rebuilt(saver: BaseCheckpointSaver[Any], thread: str, id: str | None = None, *, ns: str = "") -> list[Any]:
    """Return the value of `a` as LangGraph rebuilds it: the stored one, or the seed and the replayed writes."""
    at = config(thread, id, ns=ns)
    found = saver.get_tuple(at)
    assert found is not None
    if (stored := found.checkpoint["channel_values"].get("a")) is not None:
        return list(stored.value)
    entry = saver.get_delta_channel_history(config=at, channels=["a"])["a"]
    assert exact_history({"a": entry}) == base_walk(saver, at, ["a"])
    seed = entry.get("seed", _DeltaSnapshot([]))
    return [*seed.value, *(value for _, _, value in entry["writes"])]


async def test_prune_keeps_the_value_of_a_delta_channel(saver: threadkeep.KeepSaver, call: Caller) -> None:
    await asyncio.to_thread(put_steps, saver, "t", DELTA)
    await call(saver, "prune", ["t"], strategy="keep_latest")
    assert await asyncio.to_thread(rebuilt, saver, "t") == ["a1", "a2", "a3", "a4", "a5"]
    latest = await call(saver, "get_tuple", config("t"))
    assert latest.checkpoint["channel_values"] == {"plain": 6}


def test_prune_hides_the_ancestors_that_a_delta_channel_needs(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", DELTA)
    before = {id: saver.get_tuple(config("t", id)) for id in ("c3", "c4", "c5")}
    saver.prune(["t"])
    assert list_ids(saver, "t") == list_ids(saver, None) == ["c6"]
    assert list_ids(saver, "t", before=config("t", "c6")) == []
    assert list_ids(saver, "t", filter={"run_id": "r2"}) == []
    assert list_ids(saver, "t", limit=5) == ["c6"]
    for id, seen in before.items():
        found = saver.get_tuple(config("t", id))
        assert found is not None and seen is not None
        assert found.pending_writes == seen.pending_writes
        assert found.checkpoint["channel_values"].get("a") == seen.checkpoint["channel_values"].get("a")


def test_prune_removes_the_ancestors_behind_the_nearest_snapshot(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", DELTA)
    saver.prune(["t"])
    assert saver.get_tuple(config("t", "c1")) is None
    assert saver.get_tuple(config("t", "c2")) is None


def test_prune_removes_every_ancestor_of_a_checkpoint_that_holds_its_own_snapshot(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", DELTA[:5])
    saver.prune(["t"])
    assert rebuilt(saver, "t") == ["a1", "a2"]
    assert [saver.get_tuple(config("t", id)) for id in ("c1", "c2")] == [None, None]


def test_a_kept_checkpoint_whose_parent_was_pruned_reports_no_parent(saver: threadkeep.KeepSaver) -> None:
    put_steps(
        saver,
        "t",
        [Put("c1", values={"plain": 1}), Put("c2", "c1", values={"plain": 2}), Put("c3", "c2", values={"plain": 3})],
    )
    saver.prune(["t"])
    kept = saver.get_tuple(config("t"))
    assert kept is not None
    assert (kept.checkpoint["id"], kept.parent_config) == ("c3", None)
    assert saver.get_tuple(config("t", "c2")) is None


def test_pruning_twice_is_pruning_once(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", DELTA)
    saver.prune(["t"])
    saver.prune(["t"])
    assert rebuilt(saver, "t") == ["a1", "a2", "a3", "a4", "a5"]
    assert list_ids(saver, "t") == ["c6"]


def test_a_hidden_ancestor_is_never_the_latest_even_with_the_greatest_id(saver: threadkeep.KeepSaver) -> None:
    put_steps(
        saver,
        "t",
        [
            Put("c1", delta=("a",), run="r1"),
            PutWrites("c1", "t1", (("a", 1),), run="r2"),
            Put("c9", "c1", delta=("a",), run="r2"),
        ],
    )
    put_steps(saver, "t", [PutWrites("c9", "t9", (("a", 9),), run="r3"), Put("c5", "c9", delta=("a",), run="r3")])
    saver.delete_for_runs(["r2"])
    latest = saver.get_tuple(config("t"))
    assert latest is not None
    assert latest.checkpoint["id"] == "c5"
    assert rebuilt(saver, "t") == [1, 9]
    assert list_ids(saver, "t") == ["c5", "c1"]


def test_prune_finds_a_delta_channel_by_the_snapshot_on_its_walk(saver: threadkeep.KeepSaver) -> None:
    put_steps(
        saver,
        "t",
        [
            Put("c1", values={"a": _DeltaSnapshot([0])}),
            PutWrites("c1", "t1", (("a", 1),)),
            Put("c2", "c1"),
            PutWrites("c2", "t2", (("a", 2),)),
            Put("c3", "c2"),
        ],
    )
    saver.prune(["t"])
    assert rebuilt(saver, "t") == [0, 1, 2]
    assert list_ids(saver, "t") == ["c3"]


def test_a_pruned_delta_thread_continues_and_is_pruned_again(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", DELTA)
    saver.prune(["t"])
    put_steps(
        saver,
        "t",
        [
            PutWrites("c6", "t6", (("a", "a6"),)),
            Put("c7", "c6", delta=("a",)),
            PutWrites("c7", "t7", (("a", "a7"),)),
            Put("c8", "c7", delta=("a",)),
        ],
    )
    assert list_ids(saver, "t") == ["c8", "c7", "c6"]
    saver.prune(["t"])
    assert rebuilt(saver, "t") == [f"a{n}" for n in range(1, 8)]
    put_steps(saver, "t", [Put("c9", "c8", values={"a": _DeltaSnapshot(["whole"])}, delta=("a",))])
    saver.prune(["t"])
    assert rebuilt(saver, "t") == ["whole"]
    assert [id for id in (f"c{n}" for n in range(1, 10)) if saver.get_tuple(config("t", id))] == ["c9"]


def test_prune_keeps_a_delta_channel_that_has_no_snapshot_at_all(saver: threadkeep.KeepSaver) -> None:
    line = [
        step
        for n in range(1, 6)
        for step in (
            Put(f"c{n}", f"c{n - 1}" if n > 1 else None, delta=("a",)),
            PutWrites(f"c{n}", f"t{n}", (("a", n),)),
        )
    ]
    put_steps(saver, "t", line)
    saver.prune(["t"])
    assert rebuilt(saver, "t") == [1, 2, 3, 4]
    assert list_ids(saver, "t") == ["c5"]


def test_prune_keeps_the_delta_values_of_every_namespace(saver: threadkeep.KeepSaver) -> None:
    for ns in ("", "child", "child|grandchild"):
        put_steps(saver, "t", DELTA, ns=ns)
    saver.prune(["t"])
    for ns in ("", "child", "child|grandchild"):
        assert rebuilt(saver, "t", ns=ns) == ["a1", "a2", "a3", "a4", "a5"]
    assert list_ids(saver, "t") == ["c6", "c6", "c6"]


def test_prune_keeps_a_plain_seed_of_a_channel_that_became_a_delta_channel(saver: threadkeep.KeepSaver) -> None:
    put_steps(
        saver,
        "t",
        [
            Put("c1", values={"a": ["old"]}),
            PutWrites("c1", "t1", (("a", "new"),)),
            Put("c2", "c1", delta=("a",)),
            Put("c3", "c2", delta=("a",)),
        ],
    )
    before = saver.get_delta_channel_history(config=config("t"), channels=["a"])
    saver.prune(["t"])
    assert (
        saver.get_delta_channel_history(config=config("t"), channels=["a"])
        == before
        == {"a": {"seed": ["old"], "writes": [("t1", "a", "new")]}}
    )


@pytest.mark.parametrize("strategy", ["delete", "delete_all"])
def test_prune_by_deletion_leaves_no_hidden_ancestor(saver: threadkeep.KeepSaver, strategy: str) -> None:
    put_steps(saver, "t", DELTA)
    saver.prune(["t"])
    saver.prune(["t"], strategy=strategy)
    assert list_ids(saver, "t") == []
    assert [saver.get_tuple(config("t", f"c{n}")) for n in range(1, 7)] == [None] * 6
    assert saver.get_delta_channel_history(config=config("t", "c6"), channels=["a"]) == {"a": {"writes": []}}


@pytest.mark.parametrize(
    ("threads", "strategy", "error"),
    [("t", "keep_latest", TypeError), (["t"], "keep_some", ValueError), (["t", None], "keep_latest", TypeError)],
)
def test_a_refused_prune_changes_nothing(
    saver: threadkeep.KeepSaver, threads: Any, strategy: str, error: type[Exception]
) -> None:
    put_steps(saver, "t", DELTA)
    with pytest.raises(error):
        saver.prune(threads, strategy=strategy)
    assert list_ids(saver, "t") == ["c6", "c5", "c4", "c3", "c2", "c1"]


def test_hidden_ancestors_are_not_counted(keep: threadkeep.Keep) -> None:
    put_steps(keep.checkpointer, "t", DELTA)
    keep.checkpointer.prune(["t"])
    assert [(thread.id, thread.checkpoints) for thread in keep.threads()] == [("t", 1)]
    keep.checkpointer.copy_thread("t", "copy")
    assert {(thread.id, thread.checkpoints) for thread in keep.threads()} == {("t", 1), ("copy", 1)}


async def test_deleting_a_run_in_the_middle_keeps_the_values_after_it(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    await asyncio.to_thread(put_steps, saver, "t", DELTA)
    await call(saver, "delete_for_runs", ["r2"])
    assert await asyncio.to_thread(list_ids, saver, "t") == ["c6", "c3", "c2", "c1"]
    assert await asyncio.to_thread(rebuilt, saver, "t") == ["a1", "a2", "a3", "a4", "a5"]
    assert await asyncio.to_thread(rebuilt, saver, "t", "c2") == ["a1"]


def test_deleting_the_run_that_held_the_snapshot_keeps_the_values_after_it(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", DELTA)
    saver.delete_for_runs(["r1"])
    assert list_ids(saver, "t") == ["c6", "c5", "c4"]
    assert [rebuilt(saver, "t", id) for id in ("c4", "c5", "c6")] == [
        ["a1", "a2", "a3"],
        ["a1", "a2", "a3", "a4"],
        ["a1", "a2", "a3", "a4", "a5"],
    ]


def test_the_index_knows_a_deleted_run_as_long_as_something_of_it_is_hidden(url: str) -> None:
    with threadkeep.open(url, durability="relaxed") as keep:
        saver = keep.checkpointer
        put_steps(saver, "t", DELTA)
        saver.delete_for_runs(["r1"])
        assert keep.verify("t").problems == [], "c3 is hidden, and the index of runs knows of it"
        saver.delete_for_runs(["r1"])
        assert (list_ids(saver, "t"), rebuilt(saver, "t", "c4")) == (["c6", "c5", "c4"], ["a1", "a2", "a3"])


def test_hidden_ancestors_go_with_their_writes_when_the_last_that_needs_them_is_deleted(url: str) -> None:
    with threadkeep.open(url, durability="relaxed") as keep:
        put_steps(keep.checkpointer, "t", DELTA)
        keep.checkpointer.prune(["t"])
        keep.checkpointer.delete_for_runs(["r3"])
        assert keep.thread("t") is None, "writes of r2 on hidden checkpoints served c6 alone"


def test_deleting_the_last_run_takes_its_writes_off_the_checkpoint_before_it(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", DELTA)
    saver.delete_for_runs(["r3"])
    latest = saver.get_tuple(config("t"))
    assert latest is not None
    assert (latest.checkpoint["id"], latest.pending_writes) == ("c5", [])
    assert rebuilt(saver, "t") == ["a1", "a2", "a3", "a4"]


def test_deleting_one_of_two_branches_keeps_the_value_of_the_other(saver: threadkeep.KeepSaver) -> None:
    forks: list[Step] = [
        *DELTA[:9],
        Put("c7", "c4", values={"plain": 7}, delta=("a",), run="r4"),
        PutWrites("c7", "t7", (("a", "a7"),), run="r4"),
        Put("c8", "c7", delta=("a",), run="r4"),
    ]
    put_steps(saver, "t", forks)
    saver.delete_for_runs(["r2"])
    assert list_ids(saver, "t") == ["c8", "c7", "c3", "c2", "c1"]
    assert rebuilt(saver, "t") == ["a1", "a2", "a3", "a4", "a7"]


async def test_a_copy_of_a_delta_thread_has_its_values_and_survives_its_source(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    await asyncio.to_thread(put_steps, saver, "t", DELTA)
    await call(saver, "copy_thread", "t", "copy")
    await call(saver, "delete_thread", "t")
    assert await asyncio.to_thread(list_ids, saver, "copy") == ["c6", "c5", "c4", "c3", "c2", "c1"]
    assert await asyncio.to_thread(rebuilt, saver, "copy") == ["a1", "a2", "a3", "a4", "a5"]
    assert await asyncio.to_thread(rebuilt, saver, "copy", "c2") == ["a1"]


def test_a_copy_of_a_pruned_delta_thread_has_its_values_and_hides_the_same_ancestors(
    saver: threadkeep.KeepSaver,
) -> None:
    put_steps(saver, "t", DELTA)
    saver.prune(["t"])
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    assert rebuilt(saver, "copy") == ["a1", "a2", "a3", "a4", "a5"]
    assert list_ids(saver, "copy") == list_ids(saver, None) == ["c6"]
    put_steps(saver, "copy", [PutWrites("c6", "t6", (("a", "a6"),)), Put("c7", "c6", delta=("a",))])
    assert rebuilt(saver, "copy") == [f"a{n}" for n in range(1, 7)]


def needed_histories(saver: BaseCheckpointSaver[Any], thread: str) -> dict[str, Any]:
    """Return, for every listed checkpoint, the history of the delta channels that it does not hold itself."""
    found: dict[str, Any] = {}
    for each in saver.list({"configurable": {"thread_id": thread}}):
        channels = [name for name in ("a", "b") if name not in each.checkpoint["channel_values"]]
        found[each.checkpoint["id"]] = exact_history(
            saver.get_delta_channel_history(config=each.config, channels=channels)
        )
        assert found[each.checkpoint["id"]] == base_walk(saver, each.config, channels)
    return found


UPKEEP: dict[str, Callable[[Any, str], Any]] = {
    "prune": lambda saver, thread: saver.prune([thread]),
    "delete r1": lambda saver, thread: saver.delete_for_runs(["r1"]),
    "delete r1, then r3": lambda saver, thread: [saver.delete_for_runs([run]) for run in ("r1", "r3")],
    "delete r2, then prune": lambda saver, thread: [saver.delete_for_runs(["r2"]), saver.prune([thread])],
    "prune, then delete r2": lambda saver, thread: [saver.prune([thread]), saver.delete_for_runs(["r2"])],
}


@pytest.mark.parametrize("upkeep", UPKEEP.values(), ids=UPKEEP.keys())
@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=random_trees())
def test_no_upkeep_of_any_tree_changes_the_history_of_a_survivor(
    saver: threadkeep.KeepSaver, upkeep: Callable[[Any, str], Any], tree: list[Step]
) -> None:
    thread = str(uuid4())
    put_steps(saver, thread, tree)
    before = needed_histories(saver, thread)
    saver.copy_thread(thread, f"copy of {thread}")
    upkeep(saver, thread)
    after = needed_histories(saver, thread)
    assert after == {id: before[id] for id in after}
    saver.delete_thread(thread)
    saver.delete_thread(f"copy of {thread}")


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=random_trees())
def test_a_copy_of_any_tree_has_the_history_of_its_source(saver: threadkeep.KeepSaver, tree: list[Step]) -> None:
    thread = str(uuid4())
    put_steps(saver, thread, tree)
    before = needed_histories(saver, thread)
    saver.copy_thread(thread, f"copy of {thread}")
    saver.delete_thread(thread)
    assert needed_histories(saver, f"copy of {thread}") == before
    saver.delete_thread(f"copy of {thread}")
