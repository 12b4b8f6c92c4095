"""Time that savers take, threadkeep beside the official savers of the same database, all in one run.

    python bench/speed.py                       # SQLite; about 3 GB of temporary space, some minutes
    python bench/speed.py --postgres            # PostgreSQL; about 2 GB
    python bench/speed.py --turns 40            # a short look
    python bench/speed.py --parts crowd         # some rows only: talk, long, many, crowd

Contenders take turns in small pieces and change who goes first, so that a busy machine hurts both alike.
Read the ratios: times of two runs cannot be compared, and nothing here fails because of a time.
Strict is PRAGMA synchronous=FULL for the peer on SQLite and synchronous_commit=on on PostgreSQL; relaxed is NORMAL, and off.
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
from contenders import Contender, Durability
from grounds import ROLES, Ground, ground
from recording import Call, Stopwatch, areplay, record, replay
from rounds import Row, Times, amedians, in_turn, medians, report, rounds_of
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
class Entrant:
    """A contender at one durability, at a place of its own."""

    contender: Contender
    durability: Durability
    place: str
    watch: Stopwatch = field(default_factory=Stopwatch)

    def open(self, stack: ExitStack) -> Saver:
        return stack.enter_context(self.contender.open(self.place, self.durability))

    async def aopen(self, stack: AsyncExitStack) -> Saver:
        return await stack.enter_async_context(self.contender.aopen(self.place, self.durability))


@dataclass(frozen=True, slots=True)
class Race:
    """Who is measured, and where."""

    ground: Ground
    contenders: Sequence[Contender]

    def entrants(self, label: str, durabilities: Iterable[Durability] = ("strict",)) -> list[Entrant]:
        return [
            Entrant(contender, durability, self.ground.place(f"{label}-{durability}-{contender.name}"))
            for durability in durabilities
            for contender in self.contenders
        ]


# --- one long conversation


def conversation(race: Race, turns: int) -> Iterator[Row]:
    """Busy time over the whole call stream, then reads at the end of the thread, then its end."""
    entrants = race.entrants("talk", DURABILITIES)
    with ExitStack() as stack:
        savers = [(one, one.open(stack)) for one in entrants]
        play(savers, record(turns))
        for durability in DURABILITIES:
            yield Row(f"put and put_writes, {turns} turns, {durability}", "s in all", busy(entrants, durability))
        strict = {one.contender.name: saver for one, saver in savers if one.durability == "strict"}
        yield from reads(strict, f"{turns} turns")
    yield cold_read(entrants, f"{turns} turns")
    yield from removals(race.ground, entrants, f"{turns} turns")


def play(savers: Sequence[tuple[Entrant, Saver]], stream: Iterable[list[Call]]) -> None:
    for number, calls in enumerate(stream):
        for one, saver in in_turn(savers, number):
            replay(saver, calls, thread="w1", watch=one.watch)


def busy(entrants: Sequence[Entrant], durability: Durability) -> dict[str, float]:
    chosen = (one for one in entrants if one.durability == durability)
    return {one.contender.name: one.watch.total("put", "put_writes") for one in chosen}


def reads(savers: Mapping[str, Saver], label: str) -> Iterator[Row]:
    latest = {name: lambda saver=saver: saver.get_tuple(at()) for name, saver in savers.items()}
    yield Row(f"get_tuple, latest, warm, {label}", "ms", medians(latest, ROUNDS))
    for where, config in (("of the thread", {"configurable": {"thread_id": "w1"}}), ("of its root namespace", at())):
        page = {name: lambda s=saver, c=config: list(s.list(c, limit=10)) for name, saver in savers.items()}
        yield Row(f"list(limit=10) {where}, {label}", "ms", medians(page, COLD_ROUNDS))


def cold_read(entrants: Sequence[Entrant], label: str) -> Row:
    """From opening the database to the first answer. The caches of the server and the operating system stay warm."""

    def read(one: Entrant) -> None:
        with ExitStack() as stack:
            assert one.open(stack).get_tuple(at()) is not None

    actions = {one.contender.name: lambda one=one: read(one) for one in entrants if one.durability == "strict"}
    return Row(f"open and get_tuple, latest, {label}", "ms", medians(actions, COLD_ROUNDS))


def removals(where: Ground, entrants: Sequence[Entrant], label: str) -> Iterator[Row]:
    """What it takes to let go of a thread, or of all but its latest checkpoint."""
    strict = [one for one in entrants if one.durability == "strict"]
    yield Row(f"delete_thread, {label}", "ms", removal(where, strict, lambda saver: saver.delete_thread("w1")))
    with ExitStack() as stack:
        can_prune = all(type(one.open(stack)).prune is not BaseCheckpointSaver.prune for one in strict)
    if can_prune:
        yield Row(f"prune(keep_latest), {label}", "ms", removal(where, strict, lambda saver: saver.prune(["w1"])))


def removal(where: Ground, entrants: Sequence[Entrant], remove: Callable[[Saver], None]) -> dict[str, float]:
    """Median milliseconds, each time on a fresh copy of the database, whose thread was read once."""
    times = Times()
    for one in rounds_of(entrants, REMOVALS):
        with where.copy(one.place) as place, one.contender.open(place, one.durability) as saver:
            assert saver.get_tuple(at()) is not None
            start = perf_counter()
            remove(saver)
            times.since(start, one.contender.name)
    return times.medians()


def at(thread: str = "w1") -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


# --- a thread of thousands of messages


def long_thread(race: Race) -> Iterator[Row]:
    """One put, and reads, when the list is long already."""
    entrants = race.entrants("long")
    label = f"{4 * LONG_HISTORY:,} messages"
    with ExitStack() as stack:
        savers = [(one, one.open(stack)) for one in entrants]
        play(savers, record(LONG_TURNS, history=LONG_HISTORY))
        yield Row(f"put, {label}", "ms", {one.contender.name: one.watch.median("put") * 1e3 for one in entrants})
        yield from reads({one.contender.name: saver for one, saver in savers}, label)
    yield cold_read(entrants, label)


# --- many threads


def filtered_list(race: Race, checkpoints: int) -> Iterator[Row]:
    """One user's newest checkpoints, found by metadata among all threads'."""
    entrants = race.entrants("many", ("relaxed",))
    with ExitStack() as stack:
        savers = {one.contender.name: one.open(stack) for one in entrants}
        for saver in savers.values():
            fill(saver, checkpoints)
        page = {name: lambda s=saver: newest_of(s, "user-7") for name, saver in savers.items()}
        yield Row(f"list(filter, limit=10) among {checkpoints:,} checkpoints", "ms", medians(page, COLD_ROUNDS))


def newest_of(saver: Saver, user: str) -> None:
    assert len(list(saver.list(None, filter={"user_id": user}, limit=10))) == 10


def fill(saver: Saver, checkpoints: int) -> None:
    """Small checkpoints of many threads, whose users take turns."""
    latest = [at(f"thread-{number}") for number in range(FILTERED_THREADS)]
    for number in range(checkpoints):
        step, thread = divmod(number, FILTERED_THREADS)
        checkpoint = empty_checkpoint() | {"channel_values": {"step": step}, "channel_versions": {"step": step + 1}}
        config: RunnableConfig = {**latest[thread], "metadata": {"user_id": f"user-{thread % FILTERED_USERS}"}}
        latest[thread] = saver.put(config, checkpoint, {"source": "loop", "step": step}, {"step": step + 1})


# --- many callers at once


async def concurrent(race: Race) -> list[Row]:
    async with AsyncExitStack() as stack:
        savers = {one.contender.name: await one.aopen(stack) for one in race.entrants("crowd")}
        return [*await crowd(savers), await superstep(savers)]


async def crowd(savers: Mapping[str, Saver]) -> list[Row]:
    """Many short conversations side by side, on new threads each round."""
    calls = list(chain.from_iterable(record(ASYNC_TURNS)))
    numbers = count()

    async def talk(saver: Saver) -> None:
        await asyncio.gather(*(areplay(saver, calls, thread=f"crowd-{next(numbers)}") for _ in range(ASYNC_THREADS)))

    actions = {name: lambda saver=saver: talk(saver) for name, saver in savers.items()}
    taken = await amedians(actions, ASYNC_ROUNDS)
    steps = ASYNC_THREADS * sum(call.method == "put" for call in calls)
    rates = {name: steps / (milliseconds / 1e3) for name, milliseconds in taken.items()}
    what = f"{ASYNC_THREADS} async threads, {ASYNC_TURNS} turns each"
    return [Row(what, "ms", taken), Row(what, "supersteps/s", rates, rate=True)]


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


PARTS: Mapping[str, Callable[[Race, int], Iterable[Row]]] = {
    "talk": conversation,
    "long": lambda race, _: long_thread(race),
    "many": lambda race, turns: filtered_list(race, FILTERED_THREADS * max(1, turns // 10)),
    "crowd": lambda race, _: asyncio.run(concurrent(race)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time that savers take, threadkeep beside the official ones.")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--only", choices=ROLES)
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    with ground(postgres=options.postgres) as where:
        race = Race(where, where.contenders(options.only))
        rows = chain.from_iterable(PARTS[part](race, options.turns) for part in options.parts)
        report(Console(), [one.name for one in race.contenders], rows)


if __name__ == "__main__":
    main()
