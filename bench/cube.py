"""Time and bytes that CubeLoop's threads take: `keep.cube` beside CubeLoop's own checkpointer of the same database.

    python bench/cube.py                        # SQLite, beside SQLiteCheckpointer; some minutes
    python bench/cube.py --postgres             # PostgreSQL, beside PostgresCheckpointer
    python bench/cube.py --others 20000         # fewer messages in other threads: a short look
    python bench/cube.py --parts changes long   # some rows only: changes, loads, long, crowd

All are as durable: synchronous=FULL on SQLite, synchronous_commit=on on PostgreSQL. SQLiteCheckpointer leaves its file
with a rollback journal, which costs more syncs than the write-ahead log that threadkeep turns on. So it runs twice, once
with the write-ahead log turned on for it; that one is compared.

Contenders take turns call by call and change who goes first, so that a busy machine hurts all alike. Read the ratios:
times of two runs cannot be compared, and nothing here fails because of a time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import TypeVar
from uuid import UUID

from cubeloop.checkpointer.base import Checkpointer
from cubeloop.checkpointer.postgres import PostgresCheckpointer
from cubeloop.checkpointer.postgres.alembic_helpers import (
    create_message_partitions_op,
    create_runs_partitions_op,
    write_schema_version_op,
)
from cubeloop.checkpointer.postgres.models import cubeloop_metadata
from cubeloop.checkpointer.sqlite import SQLiteCheckpointer
from cubeloop.providers.base import (
    AssistantMessage,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from rich.console import Console
from sqlalchemy import create_engine, inspect

from contenders import POSTGRES_SAVER, SQLITE_SAVER, THREADKEEP, Contender
from grounds import Ground, ground
from rounds import Row, Times, in_turn, report
from workload import corpus

T = TypeVar("T")
Savers = Mapping[str, Checkpointer]

ROUNDS = 200
FEW_ROUNDS = 20
COLD_ROUNDS = 7
HISTORY, LONG_HISTORY, SHORT_HISTORY = 1_000, 10_000, 50
CROWD = 50


# --- what is said


class Speech:
    """What users, models and tools say in a run: four messages, decided by the seed alone."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._at = self._random.randrange(len(corpus().prose) // 2)
        self._clock = 1.7e9

    def id(self) -> str:
        return UUID(int=self._random.getrandbits(128), version=4).hex

    def run(self, run_id: str) -> list[Message]:
        """A question, a tool call, its result, an answer."""
        call = ToolCall(
            id=f"call_{self.id()[:24]}",
            name=self._random.choice(("find_symbol", "open_file", "run_snippet")),
            arguments={"query": self._text(40, 120), "limit": self._random.randint(1, 50)},
        )
        result = ToolResultMessage(
            tool_call_id=call.id, tool_name=call.name, content=[self._said(300, 900)], id=self.id(),
            timestamp=self._now(), run_id=run_id,
        )  # fmt: skip
        return [
            UserMessage(content=[self._said(50, 250)], id=self.id(), timestamp=self._now(), run_id=run_id),
            self._reply([self._said(50, 150), call], "tool_use", run_id),
            result,
            self._reply([self._said(200, 600)], "stop", run_id),
        ]

    def talk(self, messages: int) -> list[Message]:
        """Runs up to so many messages."""
        runs = [self.run(self.id()) for _ in range(-(-messages // 4))]
        return [message for run in runs for message in run][:messages]

    def _reply(self, content: list[TextContent | ToolCall], reason: str, run_id: str) -> AssistantMessage:
        usage = Usage(
            input_tokens=self._random.randint(500, 60_000),
            output_tokens=self._random.randint(20, 400),
            cache_read_tokens=self._random.randint(0, 500),
        )
        return AssistantMessage(
            content=[*content], id=self.id(), stop_reason=reason, usage=usage, timestamp=self._now(),
            provider_id="anthropic", model_id="claude-sonnet-4-5", response_id=f"msg_{self.id()[:24]}", run_id=run_id,
        )  # fmt: skip

    def _said(self, least: int, most: int) -> TextContent:
        return TextContent(text=self._text(least, most))

    def _text(self, least: int, most: int) -> str:
        size = self._random.randint(least, most)
        start = self._at if self._at + size <= len(corpus().prose) else 0
        self._at = start + size
        return corpus().prose[start : start + size]

    def _now(self) -> float:
        self._clock += self._random.random() * 5
        return self._clock


# --- who is measured


@dataclass(frozen=True, slots=True)
class CubeContender:
    """A checkpointer to measure, and how to open it at a place. `saver` is a saver on the same driver."""

    name: str
    saver: Contender
    open: Callable[[str], AbstractAsyncContextManager[Checkpointer]]


@asynccontextmanager
async def open_threadkeep(place: str) -> AsyncIterator[Checkpointer]:
    import threadkeep

    async with threadkeep.open(place, durability="strict") as keep:
        await keep.setup()
        yield keep.cube


@asynccontextmanager
async def open_sqlite(place: str) -> AsyncIterator[Checkpointer]:
    async with SQLiteCheckpointer(place.removeprefix("sqlite:///")) as checkpointer:
        yield checkpointer


@asynccontextmanager
async def open_sqlite_wal(place: str) -> AsyncIterator[Checkpointer]:
    with closing(sqlite3.connect(place.removeprefix("sqlite:///"))) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    async with open_sqlite(place) as checkpointer:
        yield checkpointer


@asynccontextmanager
async def open_postgres(place: str) -> AsyncIterator[Checkpointer]:
    make_tables(place)
    async with PostgresCheckpointer(place) as checkpointer:
        yield checkpointer


def make_tables(place: str) -> None:
    """What a host's migrations would make, unless it is there."""
    engine = create_engine(place.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        if inspect(connection).has_table("cubepi_threads"):
            return
        cubeloop_metadata.create_all(connection)
        for made in (create_message_partitions_op, create_runs_partitions_op, write_schema_version_op):
            connection.exec_driver_sql(made())
    engine.dispose()


KEEP = CubeContender(THREADKEEP.name, THREADKEEP, open_threadkeep)
SQLITE = (
    CubeContender("SQLiteCheckpointer, WAL", SQLITE_SAVER, open_sqlite_wal),
    CubeContender("SQLiteCheckpointer", SQLITE_SAVER, open_sqlite),
    KEEP,
)
POSTGRES = (CubeContender("PostgresCheckpointer", POSTGRES_SAVER, open_postgres), KEEP)


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contender at a place of its own."""

    contender: CubeContender
    place: str

    def open(self) -> AbstractAsyncContextManager[Checkpointer]:
        return self.contender.open(self.place)


Entrants = Mapping[str, Entrant]


@dataclass(frozen=True, slots=True)
class Race:
    """Who is measured and where, and how many messages other threads hold."""

    where: Ground
    contenders: Sequence[CubeContender]
    others: int

    def entrants(self, label: str) -> Entrants:
        return {
            one.name: Entrant(one, self.where.place(f"{label}-{number}")) for number, one in enumerate(self.contenders)
        }

    def size(self, one: Entrant) -> float:
        """Megabytes on disk; nobody may have it open."""
        return sum(self.where.parts(one.contender.saver, one.place).values()) / 1e6


async def opened(stack: AsyncExitStack, entrants: Entrants) -> dict[str, Checkpointer]:
    return {name: await stack.enter_async_context(one.open()) for name, one in entrants.items()}


async def measured(
    savers: Savers,
    make: Callable[[], T],
    action: Callable[[Checkpointer, T], Awaitable[object]],
    rounds: int = ROUNDS,
    *,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, float]:
    """Median milliseconds of an action. What it is given is made before, and the same for all."""
    times = Times()
    for number in range(rounds):
        given = make()
        for name in in_turn(list(savers), number):
            start = clock()
            await action(savers[name], given)
            times.taken.setdefault(name, []).append(clock() - start)
    return times.medians()


# --- what is done


Said = tuple[str, list[Message]]


async def append(saver: Checkpointer, said: Said) -> None:
    await saver.append(*said)


async def run(saver: Checkpointer, said: Said) -> None:
    """As an agent does it: each message when it is finished."""
    thread, messages = said
    run_id = messages[0].run_id
    assert run_id is not None
    await saver.claim_run(thread, run_id)
    for message in messages:
        await saver.append(thread, [message])
    await saver.mark_run_complete(thread, run_id)


async def save_extra(saver: Checkpointer, about: tuple[str, int]) -> None:
    thread, number = about
    await saver.save_extra(thread, {"step": number, "todo": ["read", "write", "test"], "seen": {"files": number}})


async def fill(savers: Savers, thread: str, messages: int, seed: int) -> str:
    """A thread of so many messages, run by run; the last run's id."""
    speech, last = Speech(seed), ""
    for _ in range(messages // 4):
        last = speech.id()
        said = thread, speech.run(last)
        for saver in savers.values():
            await run(saver, said)
    rest = speech.talk(messages % 4)
    if rest:
        for saver in savers.values():
            await saver.append(thread, rest)
    return last


async def fill_others(savers: Savers, messages: int) -> None:
    """Threads of 50 messages, each appended at once: how they came does not matter here."""
    speech = Speech(5)
    for number in range(messages // SHORT_HISTORY):
        talk = speech.talk(SHORT_HISTORY)
        for saver in savers.values():
            await saver.append(f"other-{number}", talk)


# --- the rows


async def changes(race: Race) -> AsyncIterator[Row]:
    speech = Speech(1)
    async with AsyncExitStack() as stack:
        savers = await opened(stack, race.entrants("changes"))
        await fill(savers, "talk", HISTORY, seed=2)
        new = lambda: (speech.id(), speech.run(speech.id())[:1])  # noqa: E731
        yield Row("append, the first message of a thread", "ms", await measured(savers, new, append))
        waiting = speech.talk(2 * ROUNDS)
        one = lambda: ("talk", [waiting.pop(0)])  # noqa: E731
        yield Row(f"append, to {HISTORY:,} messages", "ms", await measured(savers, one, append))
        busy = await measured(savers, one, append, clock=process_time)
        yield Row(f"append, to {HISTORY:,} messages, CPU of this process", "ms", busy)
        four = lambda: ("talk", speech.run(speech.id()))  # noqa: E731
        yield Row(f"append of 4, to {HISTORY:,} messages", "ms", await measured(savers, four, append))
        numbers = iter(range(ROUNDS))
        yield Row("save_extra", "ms", await measured(savers, lambda: ("talk", next(numbers)), save_extra))
        yield Row("a run: claim, 4 appends, complete", "ms", await measured(savers, four, run, ROUNDS // 4))


async def loads(race: Race) -> AsyncIterator[Row]:
    """A short thread, alone and beside others. What is opened anew is opened and read once before, unmeasured.

    So what others left in the machine's caches, such as a scan of their whole file, does not count.
    """
    beside = {others: race.entrants(f"loads-{others}") for others in (0, race.others)}
    anew: dict[int, Mapping[str, float]] = {}
    for others, entrants in beside.items():
        async with AsyncExitStack() as stack:
            savers = await opened(stack, entrants)
            await fill(savers, "talk", SHORT_HISTORY, seed=3)
            await fill_others(savers, others)
            for one in entrants.values():
                race.where.vacuumed(one.place)
            load = await measured(savers, lambda: None, lambda saver, _: loaded(saver, SHORT_HISTORY))
        yield Row(f"load of {SHORT_HISTORY}, {others:,} in other threads", "ms", load)
    for others, entrants in beside.items():
        anew[others] = await cold(entrants, SHORT_HISTORY, ROUNDS // 10, tries=2)
        yield Row(f"load of {SHORT_HISTORY}, opened anew, {others:,} in other threads", "ms", anew[others])
    ratios = {name: anew[race.others][name] / figure for name, figure in anew[0].items()}
    yield Row("the last by the one before it", "times", ratios, compared=False)


async def loaded(saver: Checkpointer, messages: int) -> None:
    found = await saver.load("talk")
    assert found is not None
    assert len(found.messages) == messages


async def cold(entrants: Entrants, messages: int, rounds: int = COLD_ROUNDS, *, tries: int = 1) -> dict[str, float]:
    """Milliseconds of the first load after opening; the opening does not count. Of some tries, the last one."""
    times = Times()
    for number in range(rounds):
        for name in in_turn(list(entrants), number):
            taken = [await first_load(entrants[name], messages) for _ in range(tries)]
            times.taken.setdefault(name, []).append(taken[-1])
    return times.medians()


async def first_load(one: Entrant, messages: int) -> float:
    async with one.open() as saver:
        start = perf_counter()
        await loaded(saver, messages)
        return perf_counter() - start


async def long(race: Race) -> AsyncIterator[Row]:
    entrants = race.entrants("long")
    async with AsyncExitStack() as stack:
        last = await fill(await opened(stack, entrants), "talk", LONG_HISTORY, seed=4)
    yield Row(f"size of {LONG_HISTORY:,} messages", "MB", {name: race.size(one) for name, one in entrants.items()})
    for one in entrants.values():
        race.where.vacuumed(one.place)
    yield Row(f"load of {LONG_HISTORY:,}, opened anew", "ms", await cold(entrants, LONG_HISTORY))
    async with AsyncExitStack() as stack:
        savers = await opened(stack, entrants)
        load = await measured(savers, lambda: None, lambda saver, _: loaded(saver, LONG_HISTORY), COLD_ROUNDS)
        yield Row(f"load of {LONG_HISTORY:,}, warm", "ms", load)
        ids = Speech(6)
        fork = lambda saver, new: saver.fork("talk", new, after_run_id=last)  # noqa: E731
        yield Row(f"fork of {LONG_HISTORY:,}", "ms", await measured(savers, ids.id, fork, COLD_ROUNDS))


async def crowd(race: Race) -> AsyncIterator[Row]:
    """A run each on many threads, side by side in one event loop."""
    speech = Speech(7)
    async with AsyncExitStack() as stack:
        savers = await opened(stack, race.entrants("crowd"))
        make = lambda: [(f"crowd-{n}", speech.run(speech.id())) for n in range(CROWD)]  # noqa: E731
        together = lambda saver, said: asyncio.gather(*(run(saver, each) for each in said))  # noqa: E731
        yield Row(f"{CROWD} threads at once, a run each", "ms", await measured(savers, make, together, FEW_ROUNDS))


PARTS: Mapping[str, Callable[[Race], AsyncIterator[Row]]] = {
    "changes": changes,
    "loads": loads,
    "long": long,
    "crowd": crowd,
}


async def rows_of(race: Race, parts: Sequence[str]) -> list[Row]:
    return [row for part in parts async for row in PARTS[part](race)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time and bytes that CubeLoop's threads take, beside its own backends."
    )
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    parser.add_argument("--others", type=int, default=200_000, help="messages in other threads")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    contenders = POSTGRES if options.postgres else SQLITE
    console = Console()
    with ground(postgres=options.postgres) as where:
        rows = asyncio.run(rows_of(Race(where, contenders, options.others), options.parts))
    console.print(
        "synchronous_commit=on for all" if options.postgres else "synchronous=FULL for all; threadkeep in WAL"
    )
    report(console, [one.name for one in contenders], rows)


if __name__ == "__main__":
    main()
