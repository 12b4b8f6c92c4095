"""Writers that go on through faults: checkpoints with writes, CubeLoop messages and memories, sync and async.

Each writes something of its own, numbered, and logs each number before and after. A call that fails is `Unavailable`,
is not repeated, and the writer goes on with the next number. In a new process, it goes on where its log ends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

from cubeloop.providers.base import TextContent, UserMessage
from fault_log import CUBE, SAVER, STORE, WRITES, FaultLog, state, text

import threadkeep
from checkpoint_chains import config
from threadkeep.errors import ThreadkeepError, Unavailable

TIMEOUT = 120
"""Seconds without progress after which writers count as hanging, on the busiest machine."""
Write = Callable[[int], Any]


class FaultWriters:
    """All writers on one Keep. They write inside `with`."""

    def __init__(self, keep: threadkeep.Keep, log: FaultLog, *, name: str = "", each: int = 2) -> None:
        self.keep, self.log = keep, log
        self.failed: list[str] = []
        self.broken: list[BaseException] = []
        self._stop = threading.Event()
        self._tried, self._acknowledged = log.read("?"), log.read("!")
        in_threads = [(f"{kind}{name}{n}", make) for kind, make in self._sync().items() for n in range(each)]
        in_loop = [(f"{kind}{name}a{n}", make) for kind, make in self._async().items() for n in range(each)]
        self.counts = {writer: 0 for writer, _ in (*in_threads, *in_loop)}
        """How many writes were acknowledged to each writer of this process."""
        self._threads = [threading.Thread(target=self._run, args=each, daemon=True) for each in in_threads]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._run_all(in_loop)), daemon=True))

    def _sync(self) -> dict[str, Callable[[str], Write]]:
        return {SAVER: self._saver, STORE: self._store}

    def _async(self) -> dict[str, Callable[[str], Write]]:
        return {SAVER: self._asaver, CUBE: self._acube, STORE: self._astore}

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT)
        assert not any(thread.is_alive() for thread in self._threads), "a writer hangs"
        if self.broken:
            raise self.broken[0]

    def wait_for(self, more: int) -> None:
        """Wait until each writer got so many more writes acknowledged. They may take long, but must make progress."""
        wanted = {writer: count + more for writer, count in self.counts.items()}
        done, deadline = -1, 0.0
        while behind := [writer for writer, count in wanted.items() if self.counts[writer] < count]:
            if self.broken:
                raise self.broken[0]
            if (now := sum(min(self.counts[writer], count) for writer, count in wanted.items())) != done:
                done, deadline = now, time.monotonic() + TIMEOUT
            assert time.monotonic() < deadline, f"{behind} do not get on: {self.failed[-3:]}"
            time.sleep(0.01)

    def wait_for_errors(self, more: int) -> None:
        """Wait until so many more calls have failed."""
        wanted, deadline = len(self.failed) + more, time.monotonic() + TIMEOUT
        while len(self.failed) < wanted:
            assert time.monotonic() < deadline, "no call fails"
            time.sleep(0.01)

    def _start_of(self, writer: str) -> int:
        return max(self._tried.get(writer, [-1]), default=-1) + 1

    def _run(self, writer: str, make: Callable[[str], Write]) -> None:
        try:
            n, write = self._start_of(writer), make(writer)
            while not self._stop.is_set():
                self.log.tried(writer, n)
                try:
                    write(n)
                except Unavailable as error:
                    self.failed.append(str(error))
                n += 1
        except BaseException as error:
            self.broken.append(error)

    async def _run_all(self, tasks: list[tuple[str, Callable[[str], Write]]]) -> None:
        await asyncio.gather(*(self._arun(writer, make) for writer, make in tasks))

    async def _arun(self, writer: str, make: Callable[[str], Write]) -> None:
        try:
            n, write = self._start_of(writer), make(writer)
            while not self._stop.is_set():
                self.log.tried(writer, n)
                try:
                    await write(n)
                except Unavailable as error:
                    self.failed.append(str(error))
                n += 1
                await asyncio.sleep(0)
        except BaseException as error:
            self.broken.append(error)

    def _note(self, writer: str, n: int) -> None:
        self.log.acknowledged(writer, n)
        self._acknowledged.setdefault(writer, []).append(n)
        self.counts[writer] += 1

    def _put(self, writer: str, n: int) -> tuple[Any, ...]:
        parent = max(self._acknowledged.get(writer, []), default=None)
        return put_arguments(writer, n, parent)

    def _saver(self, writer: str) -> Write:
        saver, other = self.keep.checkpointer, writer.replace(SAVER, WRITES, 1)

        def write(n: int) -> None:
            at = saver.put(*self._put(writer, n))
            self._note(writer, n)
            self.log.tried(other, n)
            saver.put_writes(at, [("log", text(n))], "task")
            self.log.acknowledged(other, n)

        return write

    def _asaver(self, writer: str) -> Write:
        saver, other = self.keep.checkpointer, writer.replace(SAVER, WRITES, 1)

        async def write(n: int) -> None:
            at = await saver.aput(*self._put(writer, n))
            self._note(writer, n)
            self.log.tried(other, n)
            await saver.aput_writes(at, [("log", text(n))], "task")
            self.log.acknowledged(other, n)

        return write

    def _acube(self, writer: str) -> Write:
        async def write(n: int) -> None:
            await self.keep.cube.append(writer, [UserMessage(content=[TextContent(text=text(n))], id=f"{n}")])
            self._note(writer, n)

        return write

    def _store(self, writer: str) -> Write:
        def write(n: int) -> None:
            self.keep.store.put((writer,), f"{n}", {"text": text(n)})
            self._note(writer, n)

        return write

    def _astore(self, writer: str) -> Write:
        async def write(n: int) -> None:
            await self.keep.store.aput((writer,), f"{n}", {"text": text(n)})
            self._note(writer, n)

        return write


def put_arguments(writer: str, n: int, parent: int | None) -> tuple[Any, ...]:
    """Return the arguments of the n-th `put` of a writer."""
    values = state(n)
    versions = dict.fromkeys(values, n + 1)
    checkpoint = {
        "v": 4,
        "id": f"{n:08}",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": None,
    }
    above = config(writer, None if parent is None else f"{parent:08}")
    return above, checkpoint, {"source": "loop", "step": n, "parents": {}}, versions


SCRIPT = """
import sys
import threadkeep
from fault_log import FaultLog
from fault_writers import FaultWriters
url, path, name = sys.argv[1:4]
with threadkeep.open(url) as keep, FaultWriters(keep, FaultLog(path), name=name, each=1) as writers:
    sys.stdin.read()
"""
"""Runs writers in a process until its standard input is closed, or until it is killed."""


def write_shared(keep: threadkeep.Keep, log: FaultLog, numbers: Iterable[int]) -> list[ThreadkeepError]:
    """Write checkpoints, messages and memories with these numbers to what others write too. Return the errors."""
    errors: list[ThreadkeepError] = []

    async def write(n: int) -> None:
        content = [TextContent(text=text(n))]
        for writer, make in (
            ("sshared", lambda: keep.checkpointer.aput(*put_arguments("sshared", n, None))),
            ("cshared", lambda: keep.cube.append("cshared", [UserMessage(content=content, id=f"{n}")])),
            ("mshared", lambda: keep.store.aput(("mshared",), f"{n}", {"text": text(n)})),
        ):
            log.tried(writer, n)
            try:
                await make()
            except ThreadkeepError as error:
                errors.append(error)
            else:
                log.acknowledged(writer, n)

    async def write_all() -> None:
        for n in numbers:
            await write(n)

    asyncio.run(write_all())
    return errors
