"""Records the saver calls of the conversation and replays them, to time savers without the graph.

A turn is recorded, replayed on every contender and dropped: all turns together would be gigabytes of messages. Each
turn starts from freshly decoded values, as after a real read, so no saver profits from seeing the same objects over
many turns. A replay cannot show the advantage of a saver that recognizes objects which its own read returned.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    copy_checkpoint,
)

import workload
from workload import Saver

Method = Literal["get_tuple", "put", "put_writes"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call. Its first argument is the config, whose thread a replay may change."""

    method: Method
    config: RunnableConfig
    rest: tuple[Any, ...] = ()

    def arguments(self, thread: str) -> tuple[Any, ...]:
        return {**self.config, "configurable": {**self.config["configurable"], "thread_id": thread}}, *self.rest


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """The seconds of each call, by method, and those of CPU."""

    taken: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, method: str, wall: float, cpu: float) -> None:
        self.taken[method].append(wall)
        self.cpu[method].append(cpu)

    def total(self, *methods: str) -> float:
        return sum(sum(self.taken[method]) for method in methods or self.taken)

    def total_cpu(self, *methods: str) -> float:
        return sum(sum(self.cpu[method]) for method in methods or self.cpu)

    def median(self, method: Method) -> float:
        return statistics.median(self.taken[method])


class LatestCheckpoint(BaseCheckpointSaver[int]):
    """Keeps the objects of the last put, enough for one conversation, and stores nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: CheckpointTuple | None = None

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:  # noqa: ARG002 - there is only one
        return self.latest

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 - all values are kept
    ) -> RunnableConfig:
        configurable = {
            "thread_id": config["configurable"]["thread_id"],
            "checkpoint_ns": "",
            "checkpoint_id": checkpoint["id"],
        }
        stored: RunnableConfig = {"configurable": configurable}
        self.latest = CheckpointTuple(stored, copy_checkpoint(checkpoint), metadata, None, [])
        return stored

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store nothing."""


class Recorder(LatestCheckpoint):
    """Records all calls since the last `taken`."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Call] = []

    def taken(self) -> list[Call]:
        calls, self._calls = self._calls, []
        return calls

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        self._calls.append(Call("get_tuple", config))
        if self.latest is None:
            return None
        return self.latest._replace(checkpoint=self.serde.loads_typed(self.serde.dumps_typed(self.latest.checkpoint)))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        stored = super().put(config, checkpoint, metadata, new_versions)
        assert self.latest is not None
        self._calls.append(Call("put", config, (self.latest.checkpoint, metadata, new_versions)))
        return stored

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._calls.append(Call("put_writes", config, (writes, task_id, task_path)))


def record(turns: int, *, seed: int = 1, history: int = 0) -> Iterator[list[Call]]:
    """Yield the calls of each turn. The first turn also gets the messages of `history` earlier turns."""
    recorder = Recorder()
    for _ in workload.steps(recorder, turns, seed=seed, history=history):
        yield recorder.taken()


def replay(saver: Saver, calls: Sequence[Call], *, thread: str, watch: Stopwatch) -> None:
    for call in calls:
        arguments = call.arguments(thread)
        verb: Callable[..., object] = getattr(saver, call.method)
        cpu, start = process_time(), perf_counter()
        verb(*arguments)
        wall = perf_counter() - start
        watch.add(call.method, wall, process_time() - cpu)


async def areplay(saver: Saver, calls: Sequence[Call], *, thread: str) -> None:
    for call in calls:
        verb: Callable[..., Awaitable[object]] = getattr(saver, "a" + call.method)
        await verb(*call.arguments(thread))
