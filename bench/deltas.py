"""Rows about graphs whose messages are in a DeltaChannel: theirs with one against ours with one, and ours without.

Here real graphs run, and a wrapper times all calls of the saver, reads too: a delta channel is rebuilt from the writes of
earlier checkpoints at the start of each turn, which costs the saver what its puts save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter, process_time
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

import workload
from benchmark import Benchmark, Installation
from measuring import rotate
from recording import Stopwatch
from workload import Conversation, DeltaState, Saver, State

OURS_WITHOUT = "threadkeep without a DeltaChannel"


class TimedSaver(BaseCheckpointSaver[Any]):
    """Passes all calls that a graph makes on to another saver, and times them."""

    def __init__(self, saver: Saver, watch: Stopwatch) -> None:
        super().__init__(serde=saver.serde)
        self._saver, self._watch = saver, watch

    @contextmanager
    def _timed(self, method: str) -> Iterator[None]:
        cpu, start = process_time(), perf_counter()
        yield
        wall = perf_counter() - start
        self._watch.add(method, wall, process_time() - cpu)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        with self._timed("get_tuple"):
            return self._saver.get_tuple(config)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        with self._timed("get_delta_channel_history"):
            return self._saver.get_delta_channel_history(config=config, channels=channels)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        with self._timed("put"):
            return self._saver.put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        with self._timed("put_writes"):
            self._saver.put_writes(config, writes, task_id, task_path)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)


def deltas(benchmark: Benchmark) -> None:
    turns = benchmark.scale.turns
    official, ours = benchmark.storage.contenders
    kinds: dict[str, tuple[Any, type[State]]] = {
        official.name: (official, DeltaState),
        OURS_WITHOUT: (ours, State),
        ours.name: (ours, DeltaState),
    }
    for _ in benchmark.repetitions(f"DeltaChannel, {turns} turns"):
        with benchmark.databases("delta", len(kinds)) as urls:
            installed = {
                name: Installation(contender, "strict", url)
                for (name, (contender, _)), url in zip(kinds.items(), urls, strict=True)
            }
            run(installed, kinds, turns)
            add(benchmark, installed, f"DeltaChannel in both, {turns} turns", "delta, both", ours.name)
            add(benchmark, installed, f"DeltaChannel in theirs only, {turns} turns", "delta", OURS_WITHOUT)


def run(installed: Mapping[str, Installation], kinds: Mapping[str, tuple[Any, type[State]]], turns: int) -> None:
    """Run the conversation on each, turn by turn, and check that all end with the same messages."""
    with ExitStack() as stack:
        graphs, given = {}, {}
        for name, one in installed.items():
            conversation = Conversation(1)
            saver = TimedSaver(stack.enter_context(one.opened()), one.watch)
            graphs[name] = workload.chat(conversation, saver, kinds[name][1])
            given[name] = workload.inputs(conversation, turns)
        for turn in range(turns):
            for name in rotate(list(graphs), turn):
                graphs[name].invoke(next(given[name]), workload.config("w1"), durability="sync")
        states = [graph.get_state(workload.config("w1")).values for graph in graphs.values()]
        assert all(state == states[0] for state in states[1:])
        assert len(states[0]["messages"]) == 4 * turns


def add(benchmark: Benchmark, installed: Mapping[str, Installation], label: str, key: str, ours: str) -> None:
    official = next(iter(installed))
    pair = {official: installed[official], installed[ours].name: installed[ours]}
    wall = {name: one.watch.total() for name, one in pair.items()}
    cpu = {name: one.watch.total_cpu() for name, one in pair.items()}
    benchmark.rows.add(f"{key}, time", f"saver time, {label}", "s", wall, cpu)
    benchmark.rows.add(f"{key}, bytes", f"bytes on disk, {label}", "MB", benchmark.megabytes(list(pair.values())))
