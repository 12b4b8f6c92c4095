"""Bugs that were found and not fixed yet; each of these fails. They move to where they belong once they pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import ERROR

import threadkeep
from model import place_config
from soundness import loose_ends, unused_items


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keep.db"


@pytest.fixture
def saver(path: Path) -> Any:
    with threadkeep.open(f"sqlite:///{path}", durability="relaxed") as keep:
        yield keep.checkpointer


def put(saver: Any, thread: str, id: str, parent: str | None = None, about: Any = None, **values: Any) -> None:
    versions = dict.fromkeys(values, 1)
    checkpoint = {"v": 4, "id": id, "channel_values": values, "channel_versions": versions, "versions_seen": {}}
    config = place_config(thread, "", parent or "")
    saver.put(config, checkpoint, {"source": "loop", "step": 1, **(about or {})}, versions)


def test_a_copy_leaves_the_special_writes_that_the_target_has(saver: Any) -> None:
    for thread in ("source", "target"):
        put(saver, thread, "1")
        saver.put_writes(place_config(thread, "", "1"), [(ERROR, f"of {thread}"), ("m", f"of {thread}")], "task")
    saver.copy_thread("source", "target")
    found = saver.get_tuple(place_config("target", "", "1"))
    assert found.pending_writes == [("task", ERROR, "of target"), ("task", "m", "of target")]


def test_a_prune_that_removes_no_checkpoint_frees_replaced_writes(saver: Any, path: Path) -> None:
    put(saver, "t", "1")
    for n in (1, 2):
        saver.put_writes(place_config("t", "", "1"), [(ERROR, f"error {n} " * 50)], "task")
    saver.prune(["t"])
    assert unused_items(path, "t") == set()


def test_a_copy_counts_the_bytes_that_it_holds(saver: Any, path: Path) -> None:
    put(saver, "t", "1", about={"thread_id": "t"})
    saver.copy_thread("t", "a longer name")
    assert loose_ends(path) == []


def test_a_prune_while_a_delta_history_is_read_is_no_corruption() -> None:
    """Plans by hand: between the ancestors and their items another process prunes."""
    from test_plans import CODEC, KEY, Bench, put as put_op, writes
    from threadkeep.engine import history, prune
    from threadkeep.engine.backend import Items

    bench = Bench()
    bench.write(put_op("1", None, {"messages": ["seed " * 20]}))
    bench.write(*(put_op(str(n), str(n - 1), {}, counters_since_delta_snapshot={"messages": [n, n]}) for n in (2, 3, 4)))
    bench.write(*(writes(str(n), "task", f"value {n} " * 20) for n in (1, 2, 3)))
    bench.forget()
    pruned: list[Any] = []

    def interfere(request: Any) -> None:
        if isinstance(request, Items) and not pruned:
            other = Bench(bench.backend)
            pruned.append(other.drive(prune.prune(other.heads, KEY, "keep_latest", 99)))

    found = bench.drive(history.delta_history(bench.heads, CODEC, KEY, "", "4", ["messages"]), before=interfere)
    assert pruned
    assert len(found["messages"].writes) == 3


@pytest.mark.parametrize(
    "bad",
    [
        {"ts": "0001-01-01T00:00:00+01:00"},
        {"ts": "9999-12-31T23:59:59-01:00"},
        {"versions_seen": {"node": {1: 1}}},
        {"channel_versions": {"messages": [1]}},
        {"channel_versions": {"messages": {"a": 1}}},
        {"updated_channels": ["messages", "\ud800"]},
        {"v": 2**70},
        {"id": "\0\ud800"},
    ],
    ids=str,
)
def test_a_checkpoint_that_cannot_be_stored_does_not_fail_its_neighbours(bad: Any) -> None:
    from threadkeep.engine import checkpoints
    from threadkeep.engine.ops import Put
    from threadkeep.plan import Reply
    from test_plans import CODEC, KEY, Bench, put as put_op

    bench = Bench()
    bench.write(put_op("1"))
    checkpoint = {"v": 4, "id": "2", "channel_values": {}, "channel_versions": {}, "versions_seen": {}} | bad
    try:
        op = Put(CODEC, "", "1", checkpoint, {}, {}, 1000, 77)
    except Exception:
        return  # refused before it met any neighbour
    outcomes = bench.drive(checkpoints.write(bench.heads, KEY, [put_op("3", "1"), op, put_op("4", "3")]))
    assert [type(outcomes[n]) for n in (0, 2)] == [Reply, Reply]
    assert bench.get("3") is not None
    assert bench.get("4") is not None


def status(keep: threadkeep.Keep) -> str:
    return keep.threads()[0].status


def test_the_status_counts_writes_that_came_before_their_checkpoint_however_many_came() -> None:
    """Two checkpoints' writes come early; a Keep that read them first says interrupted, one that is warm says idle."""
    from langgraph.checkpoint.serde.types import INTERRUPT

    keep = threadkeep.open("memory://")
    put(keep.checkpointer, "t", "1")
    keep.checkpointer.put_writes(place_config("t", "", "2"), [(INTERRUPT, "?")], "a")
    keep.checkpointer.put_writes(place_config("t", "", "3"), [("m", "!")], "a")
    put(keep.checkpointer, "t", "2", "1")
    assert status(keep) == "interrupted"


def test_the_status_follows_a_checkpoint_that_is_put_again() -> None:
    keep = threadkeep.open("memory://")
    put(keep.checkpointer, "t", "1", None, None, **{"branch:to:node": None})
    assert status(keep) == "pending"
    put(keep.checkpointer, "t", "1")
    assert status(keep) == "idle"


def test_threads_can_be_chosen_by_any_metadata_of_their_newest_checkpoint(saver: Any) -> None:
    keep = threadkeep.open("memory://")
    put(keep.checkpointer, "t", "1", about={"run_id": "run", "parents": {"": "0"}, "step": 4, "user": "u"})
    for chosen in ({"user": "u"}, {"step": 4}, {"run_id": "run"}, {"parents": {"": "0"}}):
        assert [info.id for info in keep.threads(metadata=chosen)] == ["t"], chosen
    assert keep.threads(metadata={"run_id": None}) == []
