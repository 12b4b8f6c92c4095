"""Rows about CubeLoop threads: `keep.cube` and CubeLoop's checkpointer of the same database.

All have the same durability: synchronous=FULL on SQLite, synchronous_commit=on on PostgreSQL. SQLiteCheckpointer uses a
rollback journal, which costs more syncs than the write-ahead log that threadkeep turns on; here it gets that log too.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
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
from sqlalchemy import create_engine, inspect

from benchmark import Benchmark
from contenders import POSTGRES_SAVER, SQLITE_SAVER, THREADKEEP, Contender
from measuring import Figures, Spent, rotate, rotations
from storages import SqliteFiles
from workload import corpus

T = TypeVar("T")
Savers = Mapping[str, Checkpointer]

ROUNDS, FEW_ROUNDS, COLD_ROUNDS = 40, 8, 3
HISTORY, SHORT_HISTORY = 1_000, 50
LONG_FACTOR = 10
"""A long thread has so many messages for each turn of the conversation's history."""
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
SQLITE = CubeContender("SQLiteCheckpointer, WAL", SQLITE_SAVER, open_sqlite_wal)
POSTGRES = CubeContender("PostgresCheckpointer", POSTGRES_SAVER, open_postgres)


@dataclass(frozen=True, slots=True)
class Installation:
    """A contender with its own database."""

    contender: CubeContender
    url: str

    def open(self) -> AbstractAsyncContextManager[Checkpointer]:
        return self.contender.open(self.url)


Installations = Mapping[str, Installation]
Timed = tuple[Figures, Figures]


@contextmanager
def installations(benchmark: Benchmark, label: str) -> Iterator[Installations]:
    official = SQLITE if isinstance(benchmark.storage, SqliteFiles) else POSTGRES
    with benchmark.databases(f"cube-{label}", 2) as urls:
        yield {one.name: Installation(one, url) for one, url in zip((official, KEEP), urls, strict=True)}


async def open_all(stack: AsyncExitStack, installed: Installations) -> dict[str, Checkpointer]:
    return {name: await stack.enter_async_context(one.open()) for name, one in installed.items()}


async def measure(
    savers: Savers, make: Callable[[], T], action: Callable[[Checkpointer, T], Awaitable[object]], rounds: int = ROUNDS
) -> Timed:
    """Return the median milliseconds of an action, and those of CPU. Its argument is made before, the same for all."""
    spent = Spent(list(savers))
    for number in range(rounds):
        given = make()
        for name in rotate(list(savers), number):
            with spent.by(name):
                await action(savers[name], given)
    return spent.per_call()


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


async def check_equal(savers: Savers, thread: str = "talk") -> None:
    """Fail unless all checkpointers load the same messages."""
    first, *others = [await saver.load(thread) for saver in savers.values()]
    assert first is not None
    for other in others:
        assert other is not None
        assert [each.model_dump() for each in other.messages] == [each.model_dump() for each in first.messages]


# --- rows of the table


async def changes(benchmark: Benchmark) -> None:
    for number in benchmark.repetitions(f"a CubeLoop thread of {HISTORY:,} messages"):
        source = MessageSource(10 + number)
        with installations(benchmark, "changes") as installed:
            async with AsyncExitStack() as stack:
                savers = await open_all(stack, installed)
                await fill(savers, "talk", HISTORY, seed=2)
                waiting = source.messages_of_runs(ROUNDS)
                numbers = iter(range(ROUNDS))
                new = lambda: (source.id(), source.run(source.id())[:1])  # noqa: B023, E731
                one = lambda: ("talk", [waiting.pop(0)])  # noqa: B023, E731
                four = lambda: ("talk", source.run(source.id()))  # noqa: B023, E731
                step = lambda: ("talk", next(numbers))  # noqa: B023, E731
                timed = {
                    "append, the first message of a thread": await measure(savers, new, append),
                    f"append, to {HISTORY:,} messages": await measure(savers, one, append),
                    f"append of 4, to {HISTORY:,} messages": await measure(savers, four, append),
                    "save_extra": await measure(savers, step, save_extra),
                    "a run: claim, 4 appends, complete": await measure(savers, four, run, ROUNDS // 4),
                }
                await check_equal(savers)
        for what, each in timed.items():
            benchmark.rows.add_timed(f"cube {what}", what, each)


async def loads(benchmark: Benchmark) -> None:
    """Measure loading a short thread, alone and among others.

    Before a load with a new connection, the database is opened and read once, unmeasured, so that what another
    contender left in the machine's caches, such as a scan of its whole file, does not count.
    """
    for others in (0, benchmark.scale.others):
        benchmark.say(f"CubeLoop threads with {others:,} messages in other threads")
        with installations(benchmark, "loads") as installed:
            async with AsyncExitStack() as stack:
                savers = await open_all(stack, installed)
                await fill(savers, "talk", SHORT_HISTORY, seed=3)
                await fill_others(savers, others)
                for one in installed.values():
                    benchmark.storage.vacuum(one.url)
                for _ in range(benchmark.scale.repetitions):
                    load = await measure(savers, lambda: None, lambda saver, _: check_load(saver, SHORT_HISTORY))
                    what = f"load of {SHORT_HISTORY}, {others:,} in other threads"
                    benchmark.rows.add_timed(f"cube load, {others}", what, load)
            for number in range(benchmark.scale.repetitions):
                anew = await cold(installed, SHORT_HISTORY, number, tries=2)
                what = f"load of {SHORT_HISTORY}, opened anew, {others:,} in other threads"
                benchmark.rows.add_timed(f"cube cold load, {others}", what, anew)


async def check_load(saver: Checkpointer, messages: int) -> None:
    found = await saver.load("talk")
    assert found is not None
    assert len(found.messages) == messages


async def cold(installed: Installations, messages: int, number: int, *, tries: int = 1) -> Timed:
    """Return the milliseconds of the first load after opening, without the opening; of several tries, the last."""
    spent = Spent(list(installed))
    for name in rotations(rotate(list(installed), number), COLD_ROUNDS):
        for attempt in range(tries):
            async with installed[name].open() as saver:
                if attempt < tries - 1:
                    await check_load(saver, messages)
                else:
                    with spent.by(name):
                        await check_load(saver, messages)
    return spent.per_call()


async def long(benchmark: Benchmark) -> None:
    messages = LONG_FACTOR * benchmark.scale.history
    benchmark.say(f"a CubeLoop thread of {messages:,} messages")
    with installations(benchmark, "long") as installed:
        async with AsyncExitStack() as stack:
            savers = await open_all(stack, installed)
            last = await fill(savers, "talk", messages, seed=4)
            await check_equal(savers)
        usage = benchmark.storage.disk_usage
        size = {name: sum(usage(one.contender.saver, one.url).values()) / 1e6 for name, one in installed.items()}
        benchmark.rows.add("cube bytes", f"bytes on disk, {messages:,} messages", "MB", size)
        for one in installed.values():
            benchmark.storage.vacuum(one.url)
        ids = MessageSource(6)
        fork = lambda saver, new: saver.fork("talk", new, after_run_id=last)  # noqa: E731
        for number in range(benchmark.scale.repetitions):
            anew = await cold(installed, messages, number)
            benchmark.rows.add_timed("cube cold load, long", f"load of {messages:,}, opened anew", anew)
            async with AsyncExitStack() as stack:
                savers = await open_all(stack, installed)
                load = await measure(savers, lambda: None, lambda saver, _: check_load(saver, messages), COLD_ROUNDS)
                benchmark.rows.add_timed("cube load, long", f"load of {messages:,}, warm", load)
                forked = await measure(savers, ids.id, fork, COLD_ROUNDS)
                benchmark.rows.add_timed("cube fork", f"fork of {messages:,}", forked)


async def crowd(benchmark: Benchmark) -> None:
    """Measure one run on each of many threads, concurrently in one event loop."""
    what = f"{CROWD} threads at once, a run each"
    for number in benchmark.repetitions(what):
        source = MessageSource(20 + number)
        with installations(benchmark, "crowd") as installed:
            async with AsyncExitStack() as stack:
                savers = await open_all(stack, installed)
                make = lambda: [(f"crowd-{n}", source.run(source.id())) for n in range(CROWD)]  # noqa: B023, E731
                together = lambda saver, batches: asyncio.gather(*(run(saver, each) for each in batches))  # noqa: E731
                timed = await measure(savers, make, together, FEW_ROUNDS)
        benchmark.rows.add_timed("cube crowd", what, timed)


PARTS: Sequence[Callable[[Benchmark], Coroutine[Any, Any, None]]] = (changes, loads, long, crowd)


def cube(benchmark: Benchmark) -> None:
    for part in PARTS:
        asyncio.run(part(benchmark))
