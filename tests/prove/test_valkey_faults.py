"""A cluster of three primaries with two replicas each, whose servers are killed and frozen, and whose slots move.

Writers of checkpoints, cube threads and memories run all the time, with `replicas=1`. Everything acknowledged must be
stored afterwards, once and whole, and every writer must make progress. `THREADKEEP_FAULT_RUNS` is how often each fault
happens; `THREADKEEP_FAULT_REPORT` names a file to which each run adds a line of JSON; `THREADKEEP_FAULT_REPLICAS=0` is
the control: no write waits for a replica, and runs are expected to fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from cubeloop.providers.base import TextContent, UserMessage
from redis.crc import key_slot

import threadkeep
import valkey_servers
from checkpoint_chains import Chain, config
from threadkeep.backends.valkey.backend import ValkeyBackend
from threadkeep.engine.identity import ThreadKey
from threadkeep.errors import Unavailable

RUNS = int(os.environ.get("THREADKEEP_FAULT_RUNS", "20"))
REPLICAS = os.environ.get("THREADKEEP_FAULT_REPLICAS", "1")
REPORT = os.environ.get("THREADKEEP_FAULT_REPORT")
TIMEOUT = 90
SAVERS, TALKS, SHELVES = 6, 3, 3


def text(n: int) -> str:
    return f"{n} " * (300 if n % 10 == 0 else 5)


def log(n: int) -> list[str]:
    return [text(each) for each in range(max(0, n - 9), n + 1)]


class Writer(threading.Thread):
    """Writes continuously, without retries. Records what was tried, and when it was acknowledged."""

    def __init__(self, name: str, write: Callable[[int], None]) -> None:
        super().__init__(daemon=True, name=name)
        self.tried = 0
        self.acknowledged_at: dict[int, float] = {}
        self.failed: list[str] = []
        self.broke: BaseException | None = None
        self._write = write
        self._stop_it = threading.Event()

    def run(self) -> None:
        while not self._stop_it.is_set():
            n, self.tried = self.tried, self.tried + 1
            try:
                self._write(n)
                self.acknowledged_at[n] = time.monotonic()
            except Unavailable as error:
                self.failed.append(str(error))
            except BaseException as error:
                self.broke = error
                return

    def stop(self) -> None:
        self._stop_it.set()
        self.join(TIMEOUT)
        assert not self.is_alive(), f"{self.name} hangs"

    def outage(self) -> float:
        """Return the longest time between two acknowledgements."""
        times = list(self.acknowledged_at.values())
        return max((later - time for time, later in zip(times, times[1:], strict=False)), default=0.0)


class Writers:
    """All writers on one Keep."""

    def __init__(self, keep: threadkeep.Keep) -> None:
        self.savers = [Writer(f"s{n}", self._saver(keep, f"s{n}")) for n in range(SAVERS)]
        self.talks = [Writer(f"c{n}", self._talk(keep, f"c{n}")) for n in range(TALKS)]
        self.memory_writers = [Writer(f"m{n}", self._memory_writer(keep, f"m{n}")) for n in range(SHELVES)]
        self.all = [*self.savers, *self.talks, *self.memory_writers]

    def _saver(self, keep: threadkeep.Keep, name: str) -> Callable[[int], None]:
        chain = Chain(keep.checkpointer, name)
        return lambda n: None if chain.put({"log": log(n)}, id=f"{n:08}") else None

    def _talk(self, keep: threadkeep.Keep, name: str) -> Callable[[int], None]:
        loop = asyncio.new_event_loop()
        stored = lambda n: UserMessage(content=[TextContent(text=text(n))], id=f"{n}")
        return lambda n: loop.run_until_complete(keep.cube.append(name, [stored(n)]))

    def _memory_writer(self, keep: threadkeep.Keep, name: str) -> Callable[[int], None]:
        return lambda n: keep.store.put((name,), f"{n}", {"text": text(n)})

    def __enter__(self) -> Self:
        for writer in self.all:
            writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.all:
            writer.stop()

    def go_on(self, more: int) -> None:
        """Wait until each of them got this many more acknowledged."""
        wanted = {writer: len(writer.acknowledged_at) + more for writer in self.all}
        deadline = time.monotonic() + TIMEOUT
        while behind := [
            each.name for each in self.all if len(each.acknowledged_at) < wanted[each] and each.broke is None
        ]:
            assert time.monotonic() < deadline, f"{behind} do not get on"
            time.sleep(0.02)

    def check(self, url: str) -> None:
        """Check that nothing acknowledged is lost, nothing is duplicated, and everything is whole."""
        for writer in self.all:
            if writer.broke is not None:
                raise writer.broke
        with threadkeep.open(url) as keep:
            for writer in self.savers:
                found = [
                    (each.checkpoint["id"], each.checkpoint["channel_values"]["log"])
                    for each in keep.checkpointer.list(config(writer.name))
                ]
                self._compare(writer, {int(id): held == log(int(id)) for id, held in found}, len(found))
            for writer in self.talks:
                thread: Any = asyncio.run(keep.cube.load(writer.name))
                stored = {int(each.id): each.content[0].text == text(int(each.id)) for each in thread.messages}
                self._compare(writer, stored, len(thread.messages))
                assert list(stored) == sorted(stored)
            for writer in self.memory_writers:
                items = keep.store.search((writer.name,), limit=1_000_000)
                kept = {int(each.key): each.value == {"text": text(int(each.key))} for each in items}
                self._compare(writer, kept, len(items))

    def _compare(self, writer: Writer, found: dict[int, bool], count: int) -> None:
        lost = sorted(writer.acknowledged_at.keys() - found.keys())
        assert not lost, f"{writer.name} lost {len(lost)} of {len(writer.acknowledged_at)}: {lost[:10]}"
        assert count == len(found), f"{writer.name} has something twice"
        assert all(found.values()), f"{writer.name} has something that was never written"
        assert found.keys() <= set(range(writer.tried))


@pytest.fixture
def cluster() -> Iterator[valkey_servers.Cluster]:
    made = valkey_servers.fresh_cluster(**{"min-replicas-to-write": REPLICAS, "cluster-node-timeout": "1000"})
    yield made
    made.stop()


def slot_of(prefix: str, thread: str) -> int:
    return key_slot(ValkeyBackend(prefix).thread_keys(ThreadKey("", "graph", thread)).keys[0])


def kill(cluster: valkey_servers.Cluster, victim: valkey_servers.Server, writers: Writers, run: int) -> None:
    victim.kill()


def freeze(cluster: valkey_servers.Cluster, victim: valkey_servers.Server, writers: Writers, run: int) -> None:
    """Its replicas take over; later it wakes up, and still believes that it is a primary."""
    victim.freeze()
    writers.go_on(5)
    victim.thaw()


def lag(cluster: valkey_servers.Cluster, victim: valkey_servers.Server, writers: Writers, run: int) -> None:
    """One replica lags when the primary dies, and wakes up in time for the election, or a little later."""
    behind = next(each for each in cluster.servers if each is not victim and primary_port(each) == victim.port)
    behind.freeze()
    time.sleep(1)
    victim.kill()
    time.sleep(run % 5 * 0.5)
    behind.thaw()


def cut_off(cluster: valkey_servers.Cluster, victim: valkey_servers.Server, writers: Writers, run: int) -> None:
    """Both replicas lose the primary, which lives for another second and dies: what it stored then is lost.

    In every second run, only `WAIT` tells the writers.
    """
    if run % 2:
        victim.client.config_set("min-replicas-to-write", 0)
    replicas = [each for each in cluster.servers if each is not victim and primary_port(each) == victim.port]
    for replica in replicas:
        replica.freeze()
    victim.client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    time.sleep(1)
    victim.kill()
    for replica in replicas:
        replica.thaw()


def primary_port(server: valkey_servers.Server) -> int | None:
    role: Any = server.client.execute_command("ROLE")
    return role[2] if role[0] == b"slave" else None


def reshard(cluster: valkey_servers.Cluster, victim: valkey_servers.Server, writers: Writers, run: int) -> None:
    """Move the slots of all checkpoint writers to another primary, key by key."""
    for writer in writers.savers:
        cluster.migrate(slot_of("p", writer.name), pause=0.01)


FAULTS = {
    "kill -9 of a primary": kill,
    "a frozen primary": freeze,
    "a lagging replica": lag,
    "replicas that are cut off": cut_off,
    "slots that move": reshard,
}


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_acknowledged_is_lost_and_all_writers_continue(
    cluster: valkey_servers.Cluster, fault: str, run: int
) -> None:
    url = cluster.url("p", replicas=REPLICAS)
    victim = cluster.primary_of(slot_of("p", f"s{run % SAVERS}"))
    with threadkeep.open(url) as keep, Writers(keep) as writers:
        writers.go_on(10)
        before = {writer: len(writer.acknowledged_at) for writer in writers.all}
        FAULTS[fault](cluster, victim, writers, run)
        writers.go_on(10)
        time.sleep(0.5)
        writers.go_on(5)
    for server in cluster.servers:
        server.thaw()
    report(fault, run, writers)
    assert all(len(writer.acknowledged_at) > before[writer] for writer in writers.all)
    writers.check(url)


def test_nothing_is_acknowledged_while_no_replica_has_it(cluster: valkey_servers.Cluster) -> None:
    victim = cluster.primary_of(slot_of("p", "t"))
    behind = [each for each in cluster.servers if each is not victim and primary_port(each) == victim.port]
    with threadkeep.open(cluster.url("p", replicas=1), timeout=2) as keep:
        Chain(keep.checkpointer).put({"x": 1}, id="1")
        for replica in behind:
            replica.freeze()
        for _ in range(2):
            with pytest.raises(Unavailable, match="0 of 1 replicas"):
                Chain(keep.checkpointer).put({"x": 2}, id="2")
        for replica in behind:
            replica.thaw()
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                Chain(keep.checkpointer).put({"x": 2}, id="2")
                break
            except Unavailable:
                assert time.monotonic() < deadline
        found = [each.checkpoint["channel_values"] for each in keep.checkpointer.list(config("t"))]
        assert found == [{"x": 2}, {"x": 1}]


def report(fault: str, run: int, writers: Writers) -> None:
    failed = [error for writer in writers.all for error in writer.failed]
    acknowledged_at = {
        "fault": fault,
        "run": run,
        "acknowledged": sum(len(writer.acknowledged_at) for writer in writers.all),
        "failed": len(failed),
        "outage": round(max(writer.outage() for writer in writers.all), 2),
        "errors": sorted(set(failed))[:3],
    }
    print(acknowledged_at)
    if REPORT:
        with Path(REPORT).open("a") as file:
            file.write(json.dumps(acknowledged_at) + "\n")
