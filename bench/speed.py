"""Time that savers take, threadkeep beside the official SQLite savers, all in one run.

    python bench/speed.py                       # about 2 GB of temporary space, some minutes
    python bench/speed.py --turns 40            # a short look

Contenders take turns in small pieces and change who goes first, so that a busy machine hurts both alike.
Read the ratios: times of two runs cannot be compared, and nothing here fails because of a time.
Strict is PRAGMA synchronous=FULL for the peer, relaxed is NORMAL.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from time import perf_counter
from typing import TypeVar

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from rich.console import Console
from rich.table import Table

import workload
from contenders import CONTENDERS, OFFICIAL, THREADKEEP, Contender, Durability
from recording import Call, Stopwatch, areplay, record, replay
from workload import Saver

T = TypeVar("T")
Names = Mapping[str, float]

DURABILITIES: tuple[Durability, ...] = ("strict", "relaxed")
ROUNDS = 15
COLD_ROUNDS = 7
LONG_HISTORY, LONG_TURNS = 1_000, 4
ASYNC_THREADS, ASYNC_TURNS, ASYNC_ROUNDS = 200, 2, 3
PARALLEL_WRITES = 100


@dataclass(frozen=True, slots=True)
class Row:
    """One measured thing: a figure for each contender, smaller is better."""

    what: str
    unit: str
    figures: Names

    def ratio(self) -> str:
        if self.figures.keys() < {OFFICIAL.name, THREADKEEP.name}:
            return ""
        return f"{self.figures[OFFICIAL.name] / self.figures[THREADKEEP.name]:.1f}x"


@dataclass(slots=True)
class Entrant:
    """A contender at one durability, on a file of its own."""

    contender: Contender
    durability: Durability
    path: Path
    watch: Stopwatch = field(default_factory=Stopwatch)

    def open(self, stack: ExitStack) -> Saver:
        return stack.enter_context(self.contender.open(self.path, self.durability))

    async def aopen(self, stack: AsyncExitStack) -> Saver:
        return await stack.enter_async_context(self.contender.aopen(self.path, self.durability))


def entrants(
    contenders: Sequence[Contender], folder: str, label: str, durabilities: Iterable[Durability] = ("strict",)
) -> list[Entrant]:
    return [
        Entrant(contender, durability, Path(folder, f"{label}-{durability}-{contender.name}.db"))
        for durability in durabilities
        for contender in contenders
    ]


def in_turn(things: Sequence[T], number: int) -> Sequence[T]:
    """The same things, a different one first each time."""
    first = number % len(things)
    return [*things[first:], *things[:first]]


def medians(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each action."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds):
        for name in in_turn(list(actions), number):
            start = perf_counter()
            actions[name]()
            taken[name].append(perf_counter() - start)
    return {name: statistics.median(times) * 1e3 for name, times in taken.items()}


async def amedians(actions: Mapping[str, Callable[[], Awaitable[object]]], rounds: int) -> dict[str, float]:
    """As `medians`, inside a running loop."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds):
        for name in in_turn(list(actions), number):
            start = perf_counter()
            await actions[name]()
            taken[name].append(perf_counter() - start)
    return {name: statistics.median(times) * 1e3 for name, times in taken.items()}


# --- one long conversation


def conversation(contenders: Sequence[Contender], folder: str, turns: int) -> Iterator[Row]:
    """Busy time over the whole call stream, then reads at the end of the thread."""
    field_ = entrants(contenders, folder, "talk", DURABILITIES)
    with ExitStack() as stack:
        savers = [(one, one.open(stack)) for one in field_]
        play(savers, record(turns))
        for durability in DURABILITIES:
            yield Row(f"put and put_writes, {turns} turns, {durability}", "s in all", busy(field_, durability))
        strict = {one.contender.name: saver for one, saver in savers if one.durability == "strict"}
        yield from reads(strict, f"{turns} turns")
    yield cold_read(field_, f"{turns} turns")


def play(savers: Sequence[tuple[Entrant, Saver]], stream: Iterable[list[Call]]) -> None:
    for number, calls in enumerate(stream):
        for one, saver in in_turn(savers, number):
            replay(saver, calls, thread="w1", watch=one.watch)


def busy(field_: Sequence[Entrant], durability: Durability) -> dict[str, float]:
    chosen = (one for one in field_ if one.durability == durability)
    return {one.contender.name: one.watch.total("put", "put_writes") for one in chosen}


def reads(savers: Mapping[str, Saver], label: str) -> Iterator[Row]:
    latest = {name: lambda saver=saver: saver.get_tuple(at()) for name, saver in savers.items()}
    yield Row(f"get_tuple, latest, warm, {label}", "ms", medians(latest, ROUNDS))
    for where, config in (("of the thread", {"configurable": {"thread_id": "w1"}}), ("of its root namespace", at())):
        page = {name: lambda s=saver, c=config: list(s.list(c, limit=10)) for name, saver in savers.items()}
        yield Row(f"list(limit=10) {where}, {label}", "ms", medians(page, COLD_ROUNDS))


def cold_read(field_: Sequence[Entrant], label: str) -> Row:
    """From opening the file to the first answer. The operating system's cache stays warm."""

    def read(one: Entrant) -> None:
        with ExitStack() as stack:
            assert one.open(stack).get_tuple(at()) is not None

    actions = {one.contender.name: lambda one=one: read(one) for one in field_ if one.durability == "strict"}
    return Row(f"open and get_tuple, latest, {label}", "ms", medians(actions, COLD_ROUNDS))


def at(thread: str = "w1") -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


# --- a thread of thousands of messages


def long_thread(contenders: Sequence[Contender], folder: str) -> Iterator[Row]:
    """One put, and reads, when the list is long already."""
    field_ = entrants(contenders, folder, "long")
    label = f"{4 * LONG_HISTORY:,} messages"
    with ExitStack() as stack:
        savers = [(one, one.open(stack)) for one in field_]
        play(savers, record(LONG_TURNS, history=LONG_HISTORY))
        yield Row(f"put, {label}", "ms", {one.contender.name: one.watch.median("put") * 1e3 for one in field_})
        yield from reads({one.contender.name: saver for one, saver in savers}, label)
    yield cold_read(field_, label)


# --- many callers at once


async def concurrent(contenders: Sequence[Contender], folder: str) -> list[Row]:
    field_ = entrants(contenders, folder, "crowd")
    async with AsyncExitStack() as stack:
        savers = {one.contender.name: await one.aopen(stack) for one in field_}
        return [await crowd(savers), await superstep(savers)]


async def crowd(savers: Mapping[str, Saver]) -> Row:
    """Many short conversations side by side, on new threads each round."""
    calls = list(chain.from_iterable(record(ASYNC_TURNS)))
    numbers = count()

    async def talk(saver: Saver) -> None:
        await asyncio.gather(*(areplay(saver, calls, thread=f"crowd-{next(numbers)}") for _ in range(ASYNC_THREADS)))

    actions = {name: lambda saver=saver: talk(saver) for name, saver in savers.items()}
    return Row(f"{ASYNC_THREADS} async threads, {ASYNC_TURNS} turns each", "ms", await amedians(actions, ASYNC_ROUNDS))


async def superstep(savers: Mapping[str, Saver]) -> Row:
    """Parallel tasks of one step, each writing one message to the same checkpoint."""
    calls = list(chain.from_iterable(record(1)))
    words = list(workload.messages(PARALLEL_WRITES // 4))
    numbers = count()
    for saver in savers.values():
        await areplay(saver, calls, thread="wide")
    where = at("wide")
    where["configurable"]["checkpoint_id"] = calls[-1].rest[0]["id"]

    async def write(saver: Saver, message: AnyMessage) -> None:
        await saver.aput_writes(where, [("messages", [message])], f"task-{next(numbers)}")

    async def step(saver: Saver) -> None:
        await asyncio.gather(*(write(saver, message) for message in words))

    actions = {name: lambda saver=saver: step(saver) for name, saver in savers.items()}
    return Row(f"{PARALLEL_WRITES} parallel put_writes", "ms", await amedians(actions, ROUNDS))


def measure(contenders: Sequence[Contender], turns: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield from conversation(contenders, folder, turns)
        yield from long_thread(contenders, folder)
        yield from asyncio.run(concurrent(contenders, folder))


def report(console: Console, contenders: Sequence[Contender], rows: Iterable[Row]) -> None:
    table = Table("what", "unit")
    for contender in contenders:
        table.add_column(contender.name, justify="right")
    table.add_column("faster", justify="right")
    for row in rows:
        table.add_row(row.what, row.unit, *(f"{row.figures[one.name]:,.2f}" for one in contenders), row.ratio())
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time that savers take, threadkeep beside the official ones.")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--only", choices=CONTENDERS)
    options = parser.parse_args()
    chosen = [CONTENDERS[options.only]] if options.only else list(CONTENDERS.values())
    report(Console(), chosen, measure(chosen, options.turns))


if __name__ == "__main__":
    main()
