"""Compares the speed of savers: threadkeep and the official saver of the same database, in one run.

    python bench/speed.py                       # SQLite; about 3 GB of temporary space, some minutes
    python bench/speed.py --postgres            # PostgreSQL; about 2 GB
    python bench/speed.py --turns 40            # a short look
    python bench/speed.py --parts crowd         # some rows only: talk, long, many, crowd

Contenders take turns in small pieces, and the first one changes, so that a busy machine slows both equally.
Read the ratios: times of two runs cannot be compared, and no time makes a run fail.
For the peer, strict is synchronous=FULL on SQLite and synchronous_commit=on on PostgreSQL; relaxed is NORMAL and off.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from itertools import chain, count
from time import perf_counter

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from rich.console import Console

import workload
from comparison import Row, Times, amedians, medians, report, rotate, rotations
from contenders import Contender, Durability
from recording import Call, Stopwatch, areplay, record, replay
from storages import ROLES, Storage, open_storage
from workload import Saver

DURABILITIES: tuple[Durability, ...] = ("strict", "relaxed")
ROUNDS = 15
COLD_ROUNDS = 7
REMOVALS = 5
LONG_HISTORY, LONG_TURNS = 1_000, 4
ASYNC_THREADS, ASYNC_TURNS, ASYNC_ROUNDS = 200, 2, 3
PARALLEL_WRITES = 100
FILTERED_THREADS, FILTERED_USERS = 500, 50


@dataclass(slots=True)
class Installation:
    """A contender at one durability, with its own database."""

    contender: Contender
    durability: Durability
    url: str
    watch: Stopwatch = field(default_factory=Stopwatch)

    def open(self, stack: ExitStack) -> Saver:
        return stack.enter_context(self.contender.open(self.url, self.durability))

    async def aopen(self, stack: AsyncExitStack) -> Saver:
        return await stack.enter_async_context(self.contender.aopen(self.url, self.durability))


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The contenders and the storage of a run."""

    storage: Storage
    contenders: Sequence[Contender]

    def installations(self, label: str, durabilities: Iterable[Durability] = ("strict",)) -> list[Installation]:
        return [
            Installation(contender, durability, self.storage.new_url(f"{label}-{durability}-{contender.name}"))
            for durability in durabilities
            for contender in self.contenders
        ]


# --- one long conversation


def conversation(benchmark: Benchmark, turns: int) -> Iterator[Row]:
    """Measure all writes of a conversation, then reads of the finished thread, then its removal."""
    installations = benchmark.installations("talk", DURABILITIES)
    with ExitStack() as stack:
        savers = [(one, one.open(stack)) for one in installations]
        replay_stream(savers, record(turns))
        for durability in DURABILITIES:
            yield Row(f"put and put_writes, {turns} turns, {durability}", "s in all", busy(installations, durability))
        strict = {one.contender.name: saver for one, saver in savers if one.durability == "strict"}
        yield from reads(strict, f"{turns} turns")
    yield cold_read(installations, f"{turns} turns")
    yield from removals(benchmark.storage, installations, f"{turns} turns")


def replay_stream(savers: Sequence[tuple[Installation, Saver]], stream: Iterable[list[Call]]) -> None:
    for number, calls in enumerate(stream):
        for one, saver in rotate(savers, number):
            replay(saver, calls, thread="w1", watch=one.watch)


def busy(installations: Sequence[Installation], durability: Durability) -> dict[str, float]:
    chosen = (one for one in installations if one.durability == durability)
    return {one.contender.name: one.watch.total("put", "put_writes") for one in chosen}


def reads(savers: Mapping[str, Saver], label: str) -> Iterator[Row]:
    latest = {name: lambda saver=saver: saver.get_tuple(config_of()) for name, saver in savers.items()}
    yield Row(f"get_tuple, latest, warm, {label}", "ms", medians(latest, ROUNDS))
    for scope, config in (
        ("of the thread", {"configurable": {"thread_id": "w1"}}),
        ("of its root namespace", config_of()),
    ):
        page = {name: lambda s=saver, c=config: list(s.list(c, limit=10)) for name, saver in savers.items()}
        yield Row(f"list(limit=10) {scope}, {label}", "ms", medians(page, COLD_ROUNDS))


def cold_read(installations: Sequence[Installation], label: str) -> Row:
    """Measure from opening the database to the first result. Caches of server and operating system stay warm."""

    def read(one: Installation) -> None:
        with ExitStack() as stack:
            assert one.open(stack).get_tuple(config_of()) is not None

    actions = {one.contender.name: lambda one=one: read(one) for one in installations if one.durability == "strict"}
    return Row(f"open and get_tuple, latest, {label}", "ms", medians(actions, COLD_ROUNDS))


def removals(storage: Storage, installations: Sequence[Installation], label: str) -> Iterator[Row]:
    """Measure deleting a thread, and deleting all but its latest checkpoint."""
    strict = [one for one in installations if one.durability == "strict"]
    yield Row(f"delete_thread, {label}", "ms", removal(storage, strict, lambda saver: saver.delete_thread("w1")))
    with ExitStack() as stack:
        can_prune = all(type(one.open(stack)).prune is not BaseCheckpointSaver.prune for one in strict)
    if can_prune:
        yield Row(f"prune(keep_latest), {label}", "ms", removal(storage, strict, lambda saver: saver.prune(["w1"])))


def removal(
    storage: Storage, installations: Sequence[Installation], remove: Callable[[Saver], None]
) -> dict[str, float]:
    """Return median milliseconds, each time on a fresh copy of the database after one read of the thread."""
    times = Times()
    for one in rotations(installations, REMOVALS):
        with storage.copy(one.url) as url, one.contender.open(url, one.durability) as saver:
            assert saver.get_tuple(config_of()) is not None
            start = perf_counter()
            remove(saver)
            times.since(start, one.contender.name)
    return times.medians()


def config_of(thread: str = "w1") -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


# --- a thread of thousands of messages


def long_thread(benchmark: Benchmark) -> Iterator[Row]:
    """Measure a put and reads when the list is already long."""
    installations = benchmark.installations("long")
    label = f"{4 * LONG_HISTORY:,} messages"
    with ExitStack() as stack:
        savers = [(one, one.open(stack)) for one in installations]
        replay_stream(savers, record(LONG_TURNS, history=LONG_HISTORY))
        yield Row(f"put, {label}", "ms", {one.contender.name: one.watch.median("put") * 1e3 for one in installations})
        yield from reads({one.contender.name: saver for one, saver in savers}, label)
    yield cold_read(installations, label)


# --- many threads


def filtered_list(benchmark: Benchmark, checkpoints: int) -> Iterator[Row]:
    """Measure finding one user's newest checkpoints by metadata among all threads."""
    installations = benchmark.installations("many", ("relaxed",))
    with ExitStack() as stack:
        savers = {one.contender.name: one.open(stack) for one in installations}
        for saver in savers.values():
            fill(saver, checkpoints)
        page = {name: lambda s=saver: newest_of(s, "user-7") for name, saver in savers.items()}
        yield Row(f"list(filter, limit=10) among {checkpoints:,} checkpoints", "ms", medians(page, COLD_ROUNDS))


def newest_of(saver: Saver, user: str) -> None:
    assert len(list(saver.list(None, filter={"user_id": user}, limit=10))) == 10


def fill(saver: Saver, checkpoints: int) -> None:
    """Put small checkpoints of many threads and users."""
    latest = [config_of(f"thread-{number}") for number in range(FILTERED_THREADS)]
    for number in range(checkpoints):
        step, thread = divmod(number, FILTERED_THREADS)
        checkpoint = empty_checkpoint() | {"channel_values": {"step": step}, "channel_versions": {"step": step + 1}}
        config: RunnableConfig = {**latest[thread], "metadata": {"user_id": f"user-{thread % FILTERED_USERS}"}}
        latest[thread] = saver.put(config, checkpoint, {"source": "loop", "step": step}, {"step": step + 1})


# --- many callers at once


async def concurrent(benchmark: Benchmark) -> list[Row]:
    async with AsyncExitStack() as stack:
        savers = {one.contender.name: await one.aopen(stack) for one in benchmark.installations("crowd")}
        return [*await crowd(savers), await superstep(savers)]


async def crowd(savers: Mapping[str, Saver]) -> list[Row]:
    """Measure many concurrent short conversations, on new threads each round."""
    calls = list(chain.from_iterable(record(ASYNC_TURNS)))
    numbers = count()

    async def replay_all(saver: Saver) -> None:
        await asyncio.gather(*(areplay(saver, calls, thread=f"crowd-{next(numbers)}") for _ in range(ASYNC_THREADS)))

    actions = {name: lambda saver=saver: replay_all(saver) for name, saver in savers.items()}
    taken = await amedians(actions, ASYNC_ROUNDS)
    steps = ASYNC_THREADS * sum(call.method == "put" for call in calls)
    rates = {name: steps / (milliseconds / 1e3) for name, milliseconds in taken.items()}
    what = f"{ASYNC_THREADS} async threads, {ASYNC_TURNS} turns each"
    return [Row(what, "ms", taken), Row(what, "supersteps/s", rates, rate=True)]


async def superstep(savers: Mapping[str, Saver]) -> Row:
    """Measure parallel tasks of one step, each writing one message to the same checkpoint."""
    calls = list(chain.from_iterable(record(1)))
    words = list(workload.messages(PARALLEL_WRITES // 4))
    numbers = count()
    for saver in savers.values():
        await areplay(saver, calls, thread="wide")
    checkpoint = config_of("wide")
    checkpoint["configurable"]["checkpoint_id"] = calls[-1].rest[0]["id"]

    async def write(saver: Saver, message: AnyMessage) -> None:
        await saver.aput_writes(checkpoint, [("messages", [message])], f"task-{next(numbers)}")

    async def step(saver: Saver) -> None:
        await asyncio.gather(*(write(saver, message) for message in words))

    actions = {name: lambda saver=saver: step(saver) for name, saver in savers.items()}
    return Row(f"{PARALLEL_WRITES} parallel put_writes", "ms", await amedians(actions, ROUNDS))


PARTS: Mapping[str, Callable[[Benchmark, int], Iterable[Row]]] = {
    "talk": conversation,
    "long": lambda benchmark, _: long_thread(benchmark),
    "many": lambda benchmark, turns: filtered_list(benchmark, FILTERED_THREADS * max(1, turns // 10)),
    "crowd": lambda benchmark, _: asyncio.run(concurrent(benchmark)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the speed of threadkeep and the official savers.")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--only", choices=ROLES)
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    with open_storage(postgres=options.postgres) as storage:
        benchmark = Benchmark(storage, storage.contenders(options.only))
        rows = chain.from_iterable(PARTS[part](benchmark, options.turns) for part in options.parts)
        report(Console(), [one.name for one in benchmark.contenders], rows)


if __name__ == "__main__":
    main()
