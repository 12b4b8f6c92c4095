"""Callers that use a Keep all the time, each on a thread of its own, while the storage fails and comes back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Self

import threadkeep
from checkpoint_chains import Chain, config


class BusyCallers:
    """Put a checkpoint and read it back, again and again, without retries of their own.

    Sync callers are threads; async callers are tasks of one event loop. `ended[n]` has the times at which the calls of
    caller n ended, `errors` what any of them raised.
    """

    def __init__(self, keep: threadkeep.Keep, threads: Sequence[str], mode: str) -> None:
        self.errors: list[BaseException] = []
        self.ended: list[list[float]] = [[time.monotonic()] for _ in threads]
        self._stop = threading.Event()
        chains = [Chain(keep.checkpointer, thread) for thread in threads]
        if mode == "sync":
            self._runners = [threading.Thread(target=self._run, args=[n, chain]) for n, chain in enumerate(chains)]
        else:
            self._runners = [threading.Thread(target=lambda: asyncio.run(self._run_tasks(chains)))]

    def _run(self, n: int, chain: Chain) -> None:
        while not self._stop.is_set():
            try:
                chain.put({"n": chain.number})
                self.ended[n].append(time.monotonic())
                assert chain.saver.get_tuple(config(chain.thread)) is not None
                self.ended[n].append(time.monotonic())
            except BaseException as error:
                self.errors.append(error)
                return

    async def _run_tasks(self, chains: Sequence[Chain]) -> None:
        await asyncio.gather(*(self._arun(n, chain) for n, chain in enumerate(chains)))

    async def _arun(self, n: int, chain: Chain) -> None:
        while not self._stop.is_set():
            try:
                await chain.aput({"n": chain.number})
                self.ended[n].append(time.monotonic())
                assert await chain.saver.aget_tuple(config(chain.thread)) is not None
                self.ended[n].append(time.monotonic())
            except BaseException as error:
                self.errors.append(error)
                return

    def __enter__(self) -> Self:
        for runner in self._runners:
            runner.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for runner in self._runners:
            runner.join(120)
            assert not runner.is_alive(), "a caller hangs"

    def wait_for_calls(self, more: int, seconds: float = 60) -> None:
        """Wait until every caller has ended so many more calls."""
        wanted = [len(ended) + more for ended in self.ended]
        deadline = time.monotonic() + seconds
        while any(len(ended) < count for ended, count in zip(self.ended, wanted, strict=True)):
            if self.errors:
                raise self.errors[0]
            assert time.monotonic() < deadline, "callers do not continue"
            time.sleep(0.01)

    def count_since(self, moment: float) -> list[int]:
        """Return how many calls each caller has ended after a moment."""
        return [sum(end > moment for end in ended) for ended in self.ended]

    def slowest_after(self, moment: float) -> float:
        """Return how long after a moment the last caller ended its first call."""
        return max(next(end for end in ended if end > moment) for ended in self.ended) - moment

    def longest_pause(self, since: float) -> float:
        """Return the longest time that any caller spent in one call that ended after a moment, or is still under way."""
        now = time.monotonic()
        pauses = [
            later - end
            for ended in map(list, self.ended)
            for end, later in zip(ended, [*ended[1:], now], strict=True)
            if later > since
        ]
        return max(pauses)
