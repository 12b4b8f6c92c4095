"""The contract of delta channels: a value that is spread over ancestors' writes is rebuilt in full after any upkeep.

The base class's walk over `get_tuple` is the definition; InMemorySaver, with the same puts, is the second reference.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from langgraph.checkpoint.base import writes_sort_key
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

import threadkeep
from checkpoint_chains import Chain, config
from checkpoint_trees import Put, PutWrites, Step, base_walk, exact_history, put_steps, random_trees
from hypothesis_profiles import examples
from sync_async import Caller

LINE: list[Step] = [
    Put("c1"),
    PutWrites("c1", "t1", (("a", "a1"), ("b", "b1"))),
    Put("c2", "c1"),
    PutWrites("c2", "t2", (("a", "a2"), ("other", 1), ("a", "a3"))),
    Put("c3", "c2"),
    PutWrites("c3", "t3", (("b", "b2"),)),
    Put("c4", "c3"),
    PutWrites("c4", "t4", (("a", "pending on the target itself"),)),
]
FORK: list[Step] = [
    Put("c1"),
    PutWrites("c1", "t1", (("a", "root"),)),
    Put("c2", "c1"),
    PutWrites("c2", "t2", (("a", "shared"),)),
    Put("c3", "c2"),
    PutWrites("c3", "t3", (("a", "left"),)),
    Put("c4", "c2"),
    PutWrites("c4", "t4", (("a", "right"),)),
    Put("c5", "c3"),
    Put("c6", "c4"),
    PutWrites("c6", "t6", (("b", "right only"),)),
    Put("c7", "c6"),
]
PARALLEL: list[Step] = [
    Put("c1"),
    PutWrites("c1", "0-last-by-path", (("a", 5), ("a", 6)), "~__pregel_pull, z"),
    PutWrites("c1", "f-first-by-path", (("a", 3), ("b", 0), ("a", 4)), "~__pregel_pull, m"),
    PutWrites("c1", "b-input", (("a", 2),)),
    PutWrites("c1", "a-input", (("a", 1),)),
    PutWrites("c1", "0-last-by-path", (("__error__", "kept out of the channel"),), "~__pregel_pull, z"),
    Put("c2", "c1"),
]
SEEDS: list[Step] = [
    Put("c1", values={"a": ["too old"], "b": ["plain"]}),
    PutWrites("c1", "t1", (("a", "too old"), ("b", "b1"))),
    Put("c2", "c1", values={"a": _DeltaSnapshot(["snapshot"])}),
    PutWrites("c2", "t2", (("a", "on the seed itself"), ("b", "b2"))),
    Put("c3", "c2"),
    PutWrites("c3", "t3", (("a", "after the seed"),)),
    Put("c4", "c3"),
]
EMPTY_SEEDS: list[Step] = [
    Put("c1", values={"a": None, "b": _DeltaSnapshot(None)}),
    PutWrites("c1", "t1", (("a", None), ("b", []))),
    Put("c2", "c1", values={"b": _DeltaSnapshot([])}),
    Put("c3", "c2"),
]
ORPHAN: list[Step] = [
    PutWrites("lost", "t0", (("a", "on a checkpoint that never came"),)),
    Put("c1", "lost"),
    PutWrites("c1", "t1", (("a", "a1"),)),
    Put("c2", "c1"),
]
TREES = {"line": LINE, "fork": FORK, "parallel": PARALLEL, "seeds": SEEDS, "empty_seeds": EMPTY_SEEDS, "orphan": ORPHAN}
ASKED: list[list[str]] = [["a"], ["b", "a"], ["a", "b", "never written"]]


async def history(call: Caller, saver: Any, at: dict[str, Any], channels: list[str]) -> dict[str, Any]:
    return exact_history(await call(saver, "get_delta_channel_history", config=at, channels=channels))


def values(found: Mapping[str, Any], channel: str) -> list[Any]:
    return [value for _, _, value in found[channel]["writes"]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
async def test_history_is_the_base_walk_and_what_in_memory_saver_says(
    saver: threadkeep.KeepSaver, call: Caller, tree: list[Step]
) -> None:
    peer = InMemorySaver()
    put_steps(peer, "t", tree)
    await asyncio.to_thread(put_steps, saver, "t", tree)
    for id in [step.id for step in tree if isinstance(step, Put)]:
        for channels in ASKED:
            found = await history(call, saver, config("t", id), channels)
            assert found == await asyncio.to_thread(base_walk, saver, config("t", id), channels)
            assert found == exact_history(peer.get_delta_channel_history(config=config("t", id), channels=channels))


def test_writes_come_from_the_ancestors_only_and_oldest_first(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", LINE)
    assert saver.get_delta_channel_history(config=config("t", "c4"), channels=["a", "b"]) == {
        "a": {"writes": [("t1", "a", "a1"), ("t2", "a", "a2"), ("t2", "a", "a3")]},
        "b": {"writes": [("t1", "b", "b1"), ("t3", "b", "b2")]},
    }


def test_a_branch_never_sees_the_writes_of_its_sibling(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", FORK)
    left = saver.get_delta_channel_history(config=config("t", "c5"), channels=["a", "b"])
    right = saver.get_delta_channel_history(config=config("t", "c7"), channels=["a", "b"])
    assert (values(left, "a"), values(left, "b")) == (["root", "shared", "left"], [])
    assert (values(right, "a"), values(right, "b")) == (["root", "shared", "right"], ["right only"])


def test_branches_that_repeat_a_version_keep_their_own_seeds(saver: threadkeep.KeepSaver) -> None:
    forks: list[Step] = [
        Put("c1", version=1),
        Put("c2", "c1", values={"a": _DeltaSnapshot(["left"])}, version=2),
        Put("c3", "c1", values={"a": _DeltaSnapshot(["right"])}, version=2),
        Put("c4", "c2", version=3),
        Put("c5", "c3", version=3),
        Put("c6", "c1", version=2),
        Put("c7", "c6", version=3),
    ]
    put_steps(saver, "t", forks)
    seeds = {
        id: saver.get_delta_channel_history(config=config("t", id), channels=["a"])["a"].get("seed")
        for id in ("c4", "c5", "c7")
    }
    assert seeds == {"c4": _DeltaSnapshot(["left"]), "c5": _DeltaSnapshot(["right"]), "c7": None}


def test_parallel_tasks_replay_by_path_then_task_then_index(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", PARALLEL)
    found = saver.get_delta_channel_history(config=config("t", "c2"), channels=["a"])
    assert values(found, "a") == [1, 2, 3, 4, 5, 6]


def test_pending_writes_of_a_checkpoint_are_in_writes_sort_key_order(saver: threadkeep.KeepSaver) -> None:
    tasks = [(f"~__pregel_push, {n % 7}", f"task{n:02}", n) for n in range(40)]
    random.Random(3).shuffle(tasks)
    put_steps(
        saver,
        "t",
        [Put("c1"), *(PutWrites("c1", task, (("a", (n, 0)), ("a", (n, 1))), path) for path, task, n in tasks)],
    )
    found = saver.get_tuple(config("t"))
    assert found is not None
    ordered = sorted((writes_sort_key(path, task, idx), n) for path, task, n in tasks for idx in (0, 1))
    assert found.pending_writes == [(task, "a", [n, idx]) for (_, task, idx), n in ordered]


def test_the_seed_is_the_nearest_stored_value_and_its_own_writes_count(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", SEEDS)
    found = saver.get_delta_channel_history(config=config("t", "c4"), channels=["a", "b"])
    assert found["a"]["seed"] == _DeltaSnapshot(["snapshot"])
    assert isinstance(found["a"]["seed"], _DeltaSnapshot)
    assert values(found, "a") == ["on the seed itself", "after the seed"]
    assert found["b"]["seed"] == ["plain"]
    assert values(found, "b") == ["b1", "b2"]


async def test_without_a_checkpoint_id_the_history_is_that_of_the_latest(
    saver: threadkeep.KeepSaver, call: Caller
) -> None:
    await asyncio.to_thread(put_steps, saver, "t", FORK)
    assert await history(call, saver, config("t"), ["a"]) == await history(call, saver, config("t", "c7"), ["a"])


@pytest.mark.parametrize(
    "at",
    [
        config("t", "no such checkpoint"),
        config("no such thread"),
        config("no such thread", "c1"),
        config("t", "c2", ns="other"),
    ],
)
async def test_a_missing_target_has_an_empty_history(
    saver: threadkeep.KeepSaver, call: Caller, at: dict[str, Any]
) -> None:
    await asyncio.to_thread(put_steps, saver, "t", LINE)
    assert await call(saver, "get_delta_channel_history", config=at, channels=["a", "b"]) == {
        "a": {"writes": []},
        "b": {"writes": []},
    }


async def test_no_channels_have_no_history(saver: threadkeep.KeepSaver, call: Caller) -> None:
    await asyncio.to_thread(put_steps, saver, "t", LINE)
    assert await call(saver, "get_delta_channel_history", config=config("t"), channels=[]) == {}


@pytest.mark.parametrize(
    "parents",
    [{"c1": "c2", "c2": "c1"}, {"c1": "c1", "c2": "c1"}, {"c1": "c2", "c2": "c3", "c3": "c1"}],
    ids=["two", "self", "three"],
)
async def test_a_cycle_of_parents_ends_the_walk(
    saver: threadkeep.KeepSaver, call: Caller, parents: dict[str, str]
) -> None:
    steps = [
        step
        for id, parent in parents.items()
        for step in (Put(id, parent), PutWrites(id, f"task of {id}", (("a", id),)))
    ]
    await asyncio.to_thread(put_steps, saver, "t", steps)
    found = await asyncio.wait_for(
        call(saver, "get_delta_channel_history", config=config("t", "c2"), channels=["a"]), timeout=20
    )
    assert "seed" not in found["a"]
    assert values(found, "a").count(parents["c2"]) == 1


def test_each_namespace_has_its_own_history(saver: threadkeep.KeepSaver) -> None:
    put_steps(saver, "t", LINE)
    put_steps(saver, "t", [Put("c1"), PutWrites("c1", "t1", (("a", "inner"),)), Put("c2", "c1")], ns="child:1")
    assert values(saver.get_delta_channel_history(config=config("t", "c2", ns="child:1"), channels=["a"]), "a") == [
        "inner"
    ]
    assert values(saver.get_delta_channel_history(config=config("t", "c2"), channels=["a"]), "a") == ["a1"]


def test_a_long_chain_is_walked_to_its_root(saver: threadkeep.KeepSaver) -> None:
    steps: list[Step] = [Put("00000")]
    for n in range(1, 400):
        steps += [PutWrites(f"{n - 1:05}", f"task{n}", (("a", n),)), Put(f"{n:05}", f"{n - 1:05}")]
    put_steps(saver, "t", steps)
    assert values(saver.get_delta_channel_history(config=config("t"), channels=["a"]), "a") == list(range(1, 400))


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=random_trees())
def test_any_tree_has_the_history_of_the_base_walk_and_of_in_memory_saver(
    saver: threadkeep.KeepSaver, tree: list[Step]
) -> None:
    peer, thread = InMemorySaver(), str(uuid4())
    put_steps(peer, thread, tree)
    put_steps(saver, thread, tree)
    for id in [step.id for step in tree if isinstance(step, Put)]:
        at, channels = config(thread, id), ["a", "b"]
        found = exact_history(saver.get_delta_channel_history(config=at, channels=channels))
        assert (
            found
            == base_walk(saver, at, channels)
            == exact_history(peer.get_delta_channel_history(config=at, channels=channels))
        )


def test_a_history_that_was_read_before_shows_what_others_changed_since(lasting_url: str) -> None:
    """Ancestors stay decoded between two reads; a write that another process adds or replaces must still be seen."""
    with threadkeep.open(lasting_url) as one, threadkeep.open(lasting_url) as other:
        put_steps(one.checkpointer, "t", LINE)
        target = config("t", "c4")
        for _ in range(2):
            assert values(one.checkpointer.get_delta_channel_history(config=target, channels=["a"]), "a") == [
                "a1",
                "a2",
                "a3",
            ]
        other.checkpointer.put_writes(config("t", "c2"), [("a", "later")], "t9")
        assert values(one.checkpointer.get_delta_channel_history(config=target, channels=["a"]), "a") == [
            "a1",
            "a2",
            "a3",
            "later",
        ]
        put_steps(other.checkpointer, "t", [Put("c2", "c1", values={"a": _DeltaSnapshot(["seed"])})])
        found = one.checkpointer.get_delta_channel_history(config=target, channels=["a"])
        assert found["a"]["seed"] == _DeltaSnapshot(["seed"])
        assert values(found, "a") == ["a2", "a3", "later"]


@pytest.mark.parametrize("counted", [[1, 1], [500, 500], [0, -3], "other", {"a": 1}, [1], [1, 2.5], None])
def test_counters_that_are_wrong_do_not_change_the_history(saver: threadkeep.KeepSaver, counted: Any) -> None:
    chain = Chain(saver)
    for n in range(80):
        saver.put_writes(chain.put({}, counters_since_delta_snapshot={"a": counted}), [("a", n)], "task")
    last = chain.put({}, counters_since_delta_snapshot={"a": counted})
    saver.get_tuple(last)
    assert values(saver.get_delta_channel_history(config=last, channels=["a"]), "a") == list(range(80))
