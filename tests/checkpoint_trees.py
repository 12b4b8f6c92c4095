"""Checkpoint trees, written by hand or at random: puts and writes as a graph makes them, into any saver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from checkpoint_chains import config


@dataclass(frozen=True, slots=True)
class Put:
    """One checkpoint. `delta` names the delta channels that its metadata counts, as between LangGraph's snapshots."""

    id: str
    parent: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    delta: tuple[str, ...] = ()
    run: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class PutWrites:
    """One call of put_writes: what one task wrote on a checkpoint."""

    checkpoint: str
    task: str
    writes: tuple[tuple[str, Any], ...]
    path: str = ""
    run: str | None = None


Step = Put | PutWrites


def put_steps(saver: BaseCheckpointSaver[Any], thread: str, steps: Iterable[Step], *, ns: str = "") -> None:
    """Apply steps to a thread.

    Each Put gives its channels a new version unless it names one, because InMemorySaver finds values by version.
    """
    for number, step in enumerate(steps, start=1):
        if isinstance(step, PutWrites):
            saver.put_writes(config(thread, step.checkpoint, ns=ns, run=step.run), step.writes, step.task, step.path)
        else:
            versions = dict.fromkeys({*step.values, *step.delta, "a", "b"}, step.version or number)
            counters = {name: [1, 1] for name in step.delta if name not in step.values}
            metadata = {"source": "loop", "step": number, "parents": {}} | (
                {"counters_since_delta_snapshot": counters} if counters else {}
            )
            checkpoint = empty_checkpoint() | {
                "id": step.id,
                "channel_values": dict(step.values),
                "channel_versions": versions,
            }
            saver.put(config(thread, step.parent, ns=ns, run=step.run), checkpoint, metadata, versions)


def put(
    saver: BaseCheckpointSaver[Any],
    values: dict[str, Any],
    *,
    thread: Any = "t",
    id: str | None = None,
    ns: str = "",
    **metadata: Any,
) -> dict[str, Any]:
    checkpoint = empty_checkpoint()
    versions = dict.fromkeys(values, 1)
    checkpoint |= {"channel_values": values, "channel_versions": versions} | ({"id": id} if id is not None else {})
    stored: dict[str, Any] = saver.put(
        config(thread, ns=ns), checkpoint, {"source": "loop", "step": 1, "parents": {}} | metadata, versions
    )
    return stored


def values_at(saver: BaseCheckpointSaver[Any], at: dict[str, Any]) -> dict[str, Any]:
    found = saver.get_tuple(at)
    assert found is not None
    return found.checkpoint["channel_values"]


def exact_history(history: Mapping[str, Any]) -> dict[str, Any]:
    """Return a history with the type of each seed, because a `_DeltaSnapshot` is a tuple and equals one."""
    return {
        name: (entry["writes"], "seed" in entry, type(entry.get("seed")), entry.get("seed"))
        for name, entry in history.items()
    }


def base_walk(saver: BaseCheckpointSaver[Any], at: dict[str, Any], channels: list[str]) -> dict[str, Any]:
    return exact_history(BaseCheckpointSaver.get_delta_channel_history(saver, config=at, channels=channels))


CHANNEL = st.sampled_from(["a", "b"])
VALUE = st.one_of(st.none(), st.integers(0, 9), st.text(max_size=3), st.lists(st.integers(0, 9), max_size=2))


@st.composite
def random_trees(draw: st.DrawFn) -> list[Step]:
    """Draw forests with forks, seeds of both kinds, parallel tasks and three runs."""
    run = st.sampled_from(["r1", "r2", "r3"])
    steps: list[Step] = []
    for n in range(draw(st.integers(1, 8))):
        seeds = {name: draw(VALUE) for name in draw(st.sets(CHANNEL, max_size=1))}
        values = {name: _DeltaSnapshot(value) if draw(st.booleans()) else value for name, value in seeds.items()}
        parent = draw(st.none() | st.sampled_from([f"c{m}" for m in range(n)])) if n else None
        steps.append(Put(f"c{n}", parent, values, delta=("a", "b"), run=draw(run)))
        for task in draw(st.permutations(range(draw(st.integers(0, 3))))):
            writes = draw(st.lists(st.tuples(CHANNEL, VALUE), max_size=3))
            path = draw(st.sampled_from(["", "~1", "~2"]))
            steps.append(PutWrites(f"c{n}", f"task{task}", tuple(writes), path, run=draw(run)))
    return steps
