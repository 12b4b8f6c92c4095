"""Threads and tasks that write while something happens to the server, and what must be true of what they were told."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Self

import postgres_servers
import threadkeep
from checkpoint_chains import Chain, config

PATIENCE = 60


class Writers:
    """Each caller has a thread of its own: a checkpoint with a list that grows, then a write on it, again and again.

    Inside `with` they write; at its end they have stopped.
    """

    def __init__(self, keep: threadkeep.Keep, *, threads: int, tasks: int, name: str = "w") -> None:
        self.keep = keep
        self.failed: list[BaseException] = []
        self.told: dict[str, list[str]] = {f"{name}{n}": [] for n in range(threads + tasks)}
        self._written: dict[str, list[str]] = {name: [] for name in self.told}
        self._stop = threading.Event()
        names = list(self.told)
        self._threads = [threading.Thread(target=self._write, args=[each], daemon=True) for each in names[:threads]]
        self._threads.append(
            threading.Thread(target=lambda: asyncio.run(self._write_all(names[threads:])), daemon=True)
        )

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads), "they hang"

    def count(self) -> int:
        """How many checkpoints were acknowledged until now."""
        return sum(map(len, self.told.values()))

    def wait_for(self, more: int) -> None:
        """Until so many more were acknowledged, by all of them together."""
        wanted = self.count() + more
        assert postgres_servers._until(lambda: self.count() >= wanted or bool(self.failed), PATIENCE), "nothing goes on"

    def _write(self, name: str) -> None:
        chain = Chain(self.keep.checkpointer, name)
        try:
            while not self._stop.is_set():
                at = chain.put({"log": _log(chain.number)})
                self.told[name].append(at["configurable"]["checkpoint_id"])
                self.keep.checkpointer.put_writes(at, [("log", chain.number)], "task")
                self._written[name].append(at["configurable"]["checkpoint_id"])
        except BaseException as error:
            self.failed.append(error)

    async def _write_all(self, names: list[str]) -> None:
        await asyncio.gather(*map(self._awrite, names))

    async def _awrite(self, name: str) -> None:
        chain = Chain(self.keep.checkpointer, name)
        try:
            while not self._stop.is_set():
                at = await chain.aput({"log": _log(chain.number)})
                self.told[name].append(at["configurable"]["checkpoint_id"])
                await self.keep.checkpointer.aput_writes(at, [("log", chain.number)], "task")
                self._written[name].append(at["configurable"]["checkpoint_id"])
        except BaseException as error:
            self.failed.append(error)

    def check(self, url: str) -> None:
        """All went well, and another Keep finds what was acknowledged: all of it, once, in whole chains."""
        if self.failed:
            raise self.failed[0]
        assert all(self.told.values()), "some wrote nothing"
        with threadkeep.open(url) as keep:
            infos = {info.id: info for info in keep.threads(limit=10_000)}
            for name, told in self.told.items():
                found = list(keep.checkpointer.list(config(name)))[::-1]
                assert [each.checkpoint["id"] for each in found] == told
                assert [_parent(each) for each in found] == [None, *told[:-1]]
                assert [each.checkpoint["channel_values"]["log"] for each in found] == list(map(_log, range(len(told))))
                writes = [("task", "log", n + 1) for n in range(len(told))]
                assert [each.pending_writes for each in found] == [[write] for write in writes]
                assert self._written[name] == told
                assert (infos[name].checkpoints, infos[name].writes) == (len(told), len(told))

    def check_nothing_is_lost(self, url: str) -> None:
        """What was acknowledged is there and whole. After it, one that was not may be there too: nobody was told otherwise."""
        with threadkeep.open(url) as keep:
            for name, told in self.told.items():
                found = list(keep.checkpointer.list(config(name)))[::-1]
                assert [each.checkpoint["id"] for each in found][: len(told)] == told
                assert len(found) <= len(told) + 1
                assert [each.checkpoint["channel_values"]["log"] for each in found] == list(
                    map(_log, range(len(found)))
                )
                written = {each.checkpoint["id"] for each in found if each.pending_writes}
                assert written >= set(self._written[name])


def _log(number: int) -> list[str]:
    """The last twenty of a list that grows by one each time; some entries are long."""
    return [f"{n} " * (200 if n % 10 == 0 else 5) for n in range(max(0, number - 20), number + 1)]


def _parent(found: Any) -> str | None:
    return found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
