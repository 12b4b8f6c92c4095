"""Compares speed and size of CubeLoop threads: `keep.cube` and CubeLoop's checkpointer of the same database.

    python bench/cube.py                        # SQLite, compared with SQLiteCheckpointer; some minutes
    python bench/cube.py --postgres             # PostgreSQL, compared with PostgresCheckpointer
    python bench/cube.py --others 20000         # fewer messages in other threads: a short look
    python bench/cube.py --parts changes long   # some rows only: changes, loads, long, crowd

All have the same durability: synchronous=FULL on SQLite, synchronous_commit=on on PostgreSQL. SQLiteCheckpointer uses a
rollback journal, which costs more syncs than the write-ahead log that threadkeep turns on. So it runs twice, once with
the write-ahead log turned on for it; ratios are with that one.

Contenders take turns call by call, and the first one changes, so that a busy machine slows all equally. Read the
ratios: times of two runs cannot be compared, and no time makes a run fail.
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

from comparison import Row, Times, report, rotate
from contenders import POSTGRES_SAVER, SQLITE_SAVER, THREADKEEP, Contender
from storages import Storage, open_storage
from workload import corpus

T = TypeVar("T")
Savers = Mapping[str, Checkpointer]

ROUNDS = 200
FEW_ROUNDS = 20
COLD_ROUNDS = 7
HISTORY, LONG_HISTORY, SHORT_HISTORY = 1_000, 10_000, 50
CROWD = 50


# --- messages


class MessageSource:
    """Generates the messages of runs, four each, determined by the seed alone."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._at = self._random.randrange(len(corpus().prose) // 2)
        self._clock = 1.7e9

    def id(self) -> str:
        return UUID(int=self._random.getrandbits(128), version=4).hex

    def run(self, run_id: str) -> list[Message]:
        """Return a question, a tool call, its result and an answer."""
        call = ToolCall(
            id=f"call_{self.id()[:24]}",
            name=self._random.choice(("find_symbol", "open_file", "run_snippet")),
            arguments={"query": self._text(40, 120), "limit": self._random.randint(1, 50)},
        )
        result = ToolResultMessage(
            tool_call_id=call.id, tool_name=call.name, content=[self._content(300, 900)], id=self.id(),
            timestamp=self._now(), run_id=run_id,
        )  # fmt: skip
        return [
            UserMessage(content=[self._content(50, 250)], id=self.id(), timestamp=self._now(), run_id=run_id),
            self._reply([self._content(50, 150), call], "tool_use", run_id),
            result,
            self._reply([self._content(200, 600)], "stop", run_id),
        ]

    def messages_of_runs(self, messages: int) -> list[Message]:
        """Return this many messages of consecutive runs."""
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

    def _content(self, least: int, most: int) -> TextContent:
        return TextContent(text=self._text(least, most))

    def _text(self, least: int, most: int) -> str:
        size = self._random.randint(least, most)
        start = self._at if self._at + size <= len(corpus().prose) else 0
        self._at = start + size
        return corpus().prose[start : start + size]

    def _now(self) -> float:
        self._clock += self._random.random() * 5
        return self._clock


# --- contenders


@dataclass(frozen=True, slots=True)
class CubeContender:
    """A checkpointer to measure, and how to open it at a URL. `saver` is a saver on the same driver."""

    name: str
    saver: Contender
    open: Callable[[str], AbstractAsyncContextManager[Checkpointer]]


@asynccontextmanager
async def open_threadkeep(url: str) -> AsyncIterator[Checkpointer]:
    import threadkeep

    async with threadkeep.open(url, durability="strict") as keep:
        await keep.setup()
        yield keep.cube


@asynccontextmanager
async def open_sqlite(url: str) -> AsyncIterator[Checkpointer]:
    async with SQLiteCheckpointer(url.removeprefix("sqlite:///")) as checkpointer:
        yield checkpointer


@asynccontextmanager
async def open_sqlite_wal(url: str) -> AsyncIterator[Checkpointer]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    async with open_sqlite(url) as checkpointer:
        yield checkpointer


@asynccontextmanager
async def open_postgres(url: str) -> AsyncIterator[Checkpointer]:
    make_tables(url)
    async with PostgresCheckpointer(url) as checkpointer:
        yield checkpointer


def make_tables(url: str) -> None:
    """Create the tables that a host's migrations would create, unless they exist."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
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
class Installation:
    """A contender with its own database."""

    contender: CubeContender
    url: str

    def open(self) -> AbstractAsyncContextManager[Checkpointer]:
        return self.contender.open(self.url)


Installations = Mapping[str, Installation]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The contenders, the storage, and the number of messages in other threads."""

    storage: Storage
    contenders: Sequence[CubeContender]
    others: int

    def installations(self, label: str) -> Installations:
        return {
            one.name: Installation(one, self.storage.new_url(f"{label}-{number}"))
            for number, one in enumerate(self.contenders)
        }

    def size(self, one: Installation) -> float:
        """Return the megabytes on disk of a database that nobody has open."""
        return sum(self.storage.disk_usage(one.contender.saver, one.url).values()) / 1e6


async def open_all(stack: AsyncExitStack, installations: Installations) -> dict[str, Checkpointer]:
    return {name: await stack.enter_async_context(one.open()) for name, one in installations.items()}


async def measure(
    savers: Savers,
    make: Callable[[], T],
    action: Callable[[Checkpointer, T], Awaitable[object]],
    rounds: int = ROUNDS,
    *,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, float]:
    """Return the median milliseconds of an action. Its argument is made before, and the same for all."""
    times = Times()
    for number in range(rounds):
        given = make()
        for name in rotate(list(savers), number):
            start = clock()
            await action(savers[name], given)
            times.taken.setdefault(name, []).append(clock() - start)
    return times.medians()


# --- actions


MessageBatch = tuple[str, list[Message]]


async def append(saver: Checkpointer, message_batch: MessageBatch) -> None:
    await saver.append(*message_batch)


async def run(saver: Checkpointer, message_batch: MessageBatch) -> None:
    """Do a run as an agent does: append each message when it is finished."""
    thread, messages = message_batch
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
    """Write a thread of this many messages, run by run. Return the last run's id."""
    source, last = MessageSource(seed), ""
    for _ in range(messages // 4):
        last = source.id()
        message_batch = thread, source.run(last)
        for saver in savers.values():
            await run(saver, message_batch)
    rest = source.messages_of_runs(messages % 4)
    if rest:
        for saver in savers.values():
            await saver.append(thread, rest)
    return last


async def fill_others(savers: Savers, messages: int) -> None:
    """Write threads of 50 messages, each in one append."""
    source = MessageSource(5)
    for number in range(messages // SHORT_HISTORY):
        messages_of_runs = source.messages_of_runs(SHORT_HISTORY)
        for saver in savers.values():
            await saver.append(f"other-{number}", messages_of_runs)


# --- rows of the table


async def changes(benchmark: Benchmark) -> AsyncIterator[Row]:
    source = MessageSource(1)
    async with AsyncExitStack() as stack:
        savers = await open_all(stack, benchmark.installations("changes"))
        await fill(savers, "talk", HISTORY, seed=2)
        new = lambda: (source.id(), source.run(source.id())[:1])  # noqa: E731
        yield Row("append, the first message of a thread", "ms", await measure(savers, new, append))
        waiting = source.messages_of_runs(2 * ROUNDS)
        one = lambda: ("talk", [waiting.pop(0)])  # noqa: E731
        yield Row(f"append, to {HISTORY:,} messages", "ms", await measure(savers, one, append))
        busy = await measure(savers, one, append, clock=process_time)
        yield Row(f"append, to {HISTORY:,} messages, CPU of this process", "ms", busy)
        four = lambda: ("talk", source.run(source.id()))  # noqa: E731
        yield Row(f"append of 4, to {HISTORY:,} messages", "ms", await measure(savers, four, append))
        numbers = iter(range(ROUNDS))
        yield Row("save_extra", "ms", await measure(savers, lambda: ("talk", next(numbers)), save_extra))
        yield Row("a run: claim, 4 appends, complete", "ms", await measure(savers, four, run, ROUNDS // 4))


async def loads(benchmark: Benchmark) -> AsyncIterator[Row]:
    """Measure loading a short thread, alone and among others.

    Before a load with a new connection, the database is opened and read once, unmeasured, so that what another
    contender left in the machine's caches, such as a scan of its whole file, does not count.
    """
    beside = {others: benchmark.installations(f"loads-{others}") for others in (0, benchmark.others)}
    anew: dict[int, Mapping[str, float]] = {}
    for others, installations in beside.items():
        async with AsyncExitStack() as stack:
            savers = await open_all(stack, installations)
            await fill(savers, "talk", SHORT_HISTORY, seed=3)
            await fill_others(savers, others)
            for one in installations.values():
                benchmark.storage.vacuum(one.url)
            load = await measure(savers, lambda: None, lambda saver, _: check_load(saver, SHORT_HISTORY))
        yield Row(f"load of {SHORT_HISTORY}, {others:,} in other threads", "ms", load)
    for others, installations in beside.items():
        anew[others] = await cold(installations, SHORT_HISTORY, ROUNDS // 10, tries=2)
        yield Row(f"load of {SHORT_HISTORY}, opened anew, {others:,} in other threads", "ms", anew[others])
    ratios = {name: anew[benchmark.others][name] / figure for name, figure in anew[0].items()}
    yield Row("the last by the one before it", "times", ratios, compared=False)


async def check_load(saver: Checkpointer, messages: int) -> None:
    found = await saver.load("talk")
    assert found is not None
    assert len(found.messages) == messages


async def cold(
    installations: Installations, messages: int, rounds: int = COLD_ROUNDS, *, tries: int = 1
) -> dict[str, float]:
    """Return the milliseconds of the first load after opening, without the opening; of several tries, the last."""
    times = Times()
    for number in range(rounds):
        for name in rotate(list(installations), number):
            taken = [await first_load(installations[name], messages) for _ in range(tries)]
            times.taken.setdefault(name, []).append(taken[-1])
    return times.medians()


async def first_load(one: Installation, messages: int) -> float:
    async with one.open() as saver:
        start = perf_counter()
        await check_load(saver, messages)
        return perf_counter() - start


async def long(benchmark: Benchmark) -> AsyncIterator[Row]:
    installations = benchmark.installations("long")
    async with AsyncExitStack() as stack:
        last = await fill(await open_all(stack, installations), "talk", LONG_HISTORY, seed=4)
    yield Row(
        f"size of {LONG_HISTORY:,} messages", "MB", {name: benchmark.size(one) for name, one in installations.items()}
    )
    for one in installations.values():
        benchmark.storage.vacuum(one.url)
    yield Row(f"load of {LONG_HISTORY:,}, opened anew", "ms", await cold(installations, LONG_HISTORY))
    async with AsyncExitStack() as stack:
        savers = await open_all(stack, installations)
        load = await measure(savers, lambda: None, lambda saver, _: check_load(saver, LONG_HISTORY), COLD_ROUNDS)
        yield Row(f"load of {LONG_HISTORY:,}, warm", "ms", load)
        ids = MessageSource(6)
        fork = lambda saver, new: saver.fork("talk", new, after_run_id=last)  # noqa: E731
        yield Row(f"fork of {LONG_HISTORY:,}", "ms", await measure(savers, ids.id, fork, COLD_ROUNDS))


async def crowd(benchmark: Benchmark) -> AsyncIterator[Row]:
    """Measure one run on each of many threads, concurrently in one event loop."""
    source = MessageSource(7)
    async with AsyncExitStack() as stack:
        savers = await open_all(stack, benchmark.installations("crowd"))
        make = lambda: [(f"crowd-{n}", source.run(source.id())) for n in range(CROWD)]  # noqa: E731
        together = lambda saver, batches: asyncio.gather(*(run(saver, each) for each in batches))  # noqa: E731
        yield Row(f"{CROWD} threads at once, a run each", "ms", await measure(savers, make, together, FEW_ROUNDS))


PARTS: Mapping[str, Callable[[Benchmark], AsyncIterator[Row]]] = {
    "changes": changes,
    "loads": loads,
    "long": long,
    "crowd": crowd,
}


async def rows_of(benchmark: Benchmark, parts: Sequence[str]) -> list[Row]:
    return [row for part in parts async for row in PARTS[part](benchmark)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare speed and size of CubeLoop threads in threadkeep and in CubeLoop's backends."
    )
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    parser.add_argument("--others", type=int, default=200_000, help="messages in other threads")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS))
    options = parser.parse_args()
    contenders = POSTGRES if options.postgres else SQLITE
    console = Console()
    with open_storage(postgres=options.postgres) as storage:
        rows = asyncio.run(rows_of(Benchmark(storage, contenders, options.others), options.parts))
    console.print(
        "synchronous_commit=on for all" if options.postgres else "synchronous=FULL for all; threadkeep in WAL"
    )
    report(console, [one.name for one in contenders], rows)


if __name__ == "__main__":
    main()
