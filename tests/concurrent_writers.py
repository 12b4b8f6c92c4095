"""Threads and tasks that write while something happens to the server, and checks of what was acknowledged."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Self

import postgres_servers
import threadkeep
from checkpoint_chains import Chain, config

TIMEOUT = 60


class Writers:
    """Writers that each put checkpoints with a growing list, and a write on each, into their own thread.

    They write inside `with` and have stopped at its end.
    """

    def __init__(self, keep: threadkeep.Keep, *, threads: int, tasks: int, name: str = "w") -> None:
        self.keep = keep
        self.failed: list[BaseException] = []
        self.acknowledged: dict[str, list[str]] = {f"{name}{n}": [] for n in range(threads + tasks)}
        self._written: dict[str, list[str]] = {name: [] for name in self.acknowledged}
        self._stop = threading.Event()
        names = list(self.acknowledged)
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
            thread.join(TIMEOUT)
        assert not any(thread.is_alive() for thread in self._threads), "a writer hangs"

    def count(self) -> int:
        """Return how many checkpoints were acknowledged so far."""
        return sum(map(len, self.acknowledged.values()))

    def wait_for(self, more: int) -> None:
        """Wait until this many more checkpoints were acknowledged, by all writers together."""
        wanted = self.count() + more
        assert postgres_servers.wait_until(lambda: self.count() >= wanted or bool(self.failed), TIMEOUT), (
            "the writers make no progress"
        )

    def _write(self, name: str) -> None:
        chain = Chain(self.keep.checkpointer, name)
        try:
            while not self._stop.is_set():
                at = chain.put({"log": _log(chain.number)})
                self.acknowledged[name].append(at["configurable"]["checkpoint_id"])
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
                self.acknowledged[name].append(at["configurable"]["checkpoint_id"])
                await self.keep.checkpointer.aput_writes(at, [("log", chain.number)], "task")
                self._written[name].append(at["configurable"]["checkpoint_id"])
        except BaseException as error:
            self.failed.append(error)

    def check(self, url: str) -> None:
        """Check that nothing failed, and that another Keep finds all acknowledged checkpoints once, in whole chains."""
        if self.failed:
            raise self.failed[0]
        assert all(self.acknowledged.values()), "a writer wrote nothing"
        with threadkeep.open(url) as keep:
            infos = {info.id: info for info in keep.threads(limit=10_000)}
            for name, told in self.acknowledged.items():
                found = list(keep.checkpointer.list(config(name)))[::-1]
                assert [each.checkpoint["id"] for each in found] == told
                assert [_parent(each) for each in found] == [None, *told[:-1]]
                assert [each.checkpoint["channel_values"]["log"] for each in found] == list(map(_log, range(len(told))))
                writes = [("task", "log", n + 1) for n in range(len(told))]
                assert [each.pending_writes for each in found] == [[write] for write in writes]
                assert self._written[name] == told
                assert (infos[name].checkpoints, infos[name].writes) == (len(told), len(told))

    def check_nothing_is_lost(self, url: str) -> None:
        """Check that acknowledged checkpoints exist and are whole. One that was not acknowledged may follow them."""
        with threadkeep.open(url) as keep:
            for name, told in self.acknowledged.items():
                found = list(keep.checkpointer.list(config(name)))[::-1]
                assert [each.checkpoint["id"] for each in found][: len(told)] == told
                assert len(found) <= len(told) + 1
                assert [each.checkpoint["channel_values"]["log"] for each in found] == list(
                    map(_log, range(len(found)))
                )
                written = {each.checkpoint["id"] for each in found if each.pending_writes}
                assert written >= set(self._written[name])


def prune_at_read(keep: threadkeep.Keep, thread: str, *, number: int) -> list[Any]:
    """Prune a thread just before this read of the storage. Return the list of reads up to then."""
    transport: Any = keep._session.transport
    read, reads = transport.read, list[Any]()

    def count(request: Any) -> Any:
        reads.append(request)
        if len(reads) == number:
            transport.read = read
            keep.checkpointer.prune([thread])
        return read(request)

    transport.read = count
    return reads


def _log(number: int) -> list[str]:
    """Return the last twenty entries of a list that grows by one each time. Some entries are long."""
    return [f"{n} " * (200 if n % 10 == 0 else 5) for n in range(max(0, number - 20), number + 1)]


def _parent(found: Any) -> str | None:
    return found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
