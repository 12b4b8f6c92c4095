"""Outages of Valkey servers while callers are busy: a single server, or one primary of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from redis.crc import key_slot

import threadkeep
import valkey_servers
from busy_callers import BusyCallers
from threadkeep.backends.valkey.backend import ValkeyBackend
from threadkeep.engine.identity import ThreadKey

SOON = 10.0
"""Seconds. Calls continue within 2 s of a server's return; a busy machine gets more."""
MODES = ("sync", "async")


class Outage(NamedTuple):
    """How a server goes away and comes back."""

    leave: Callable[[valkey_servers.Server], Any]
    come_back: Callable[[valkey_servers.Server], Any]


RESTART = Outage(valkey_servers.Server.shut_down, valkey_servers.Server.start_again)
KILL = Outage(valkey_servers.Server.kill, valkey_servers.Server.start_again)
FREEZE = Outage(valkey_servers.Server.freeze, valkey_servers.Server.thaw)


def durable_server() -> valkey_servers.Server:
    """Start a server that has its data after a restart."""
    return valkey_servers.start(appendonly="yes")


def cluster_without_replicas() -> valkey_servers.Cluster:
    """Start three primaries. If one is down, the others serve their slots, and nobody takes its place."""
    settings = {"cluster-require-full-coverage": "no", "appendonly": "yes", "cluster-node-timeout": "1000"}
    return valkey_servers.fresh_cluster(primaries=3, replicas=0, **settings)


def slot_of(url: str, thread: str) -> int:
    prefix = parse_qs(urlsplit(url).query)["prefix"][0]
    return key_slot(ValkeyBackend(prefix).thread_keys(ThreadKey("", "graph", thread)).keys[0])


def threads_of(cluster: valkey_servers.Cluster, url: str, server: valkey_servers.Server) -> Iterator[str]:
    """Yield ids of threads that a server has."""
    last = {low: high for low, high, (_, port, *_), *_ in _slots(cluster) if port == server.port}
    n = 0
    while True:
        if any(low <= slot_of(url, f"t{n}") <= high for low, high in last.items()):
            yield f"t{n}"
        n += 1


def _slots(cluster: valkey_servers.Cluster) -> Any:
    return cluster.servers[0].client.execute_command("CLUSTER", "SLOTS")


@contextmanager
def busy(keep: threadkeep.Keep, threads: dict[str, list[str]]) -> Iterator[list[BusyCallers]]:
    """Start sync and async callers on their threads. At the end, nobody may have seen an error."""
    with ExitStack() as stack:
        callers = [stack.enter_context(BusyCallers(keep, own, mode)) for mode, own in threads.items()]
        for each in callers:
            each.wait_for_calls(2)
        yield callers
    for each in callers:
        if each.errors:
            raise each.errors[0]


def outlive(keep: threadkeep.Keep, modes: tuple[str, ...], count: int, outage: Callable[[], Any]) -> float:
    """Run callers through an outage. Return how long after its end the last of them ended a call."""
    with busy(keep, {mode: [f"{mode} {n}" for n in range(count)] for mode in modes}) as callers:
        outage()
        back = time.monotonic()
        for each in callers:
            each.wait_for_calls(3)
        return max(each.slowest_after(back) for each in callers)


def outlive_dead_primary(
    cluster: valkey_servers.Cluster, outage: Outage, *, count: int, seconds: float
) -> tuple[float, float]:
    """Let one primary be away while callers use it and others do not, sync and async.

    Return the longest pause of a caller that did not need it, and how long after its return the others went on.
    """
    url, dead = cluster.url(), cluster.servers[0]
    own = threads_of(cluster, url, dead)
    others = threads_of(cluster, url, cluster.servers[1])
    with threadkeep.open(url) as keep:
        needing = {mode: [next(own) for _ in range(count)] for mode in MODES}
        with (
            busy(keep, needing) as waiting,
            busy(keep, {m: [next(others) for _ in range(count)] for m in MODES}) as healthy,
        ):
            began = time.monotonic()
            outage.leave(dead)
            time.sleep(seconds)
            pause = max(each.longest_pause(began) for each in healthy)
            during = [n for each in waiting for n in each.count_since(began + seconds / 2)]
            outage.come_back(dead)
            valkey_servers.wait_for(cluster.is_healthy, "a healthy cluster")
            back = time.monotonic()
            for each in waiting:
                each.wait_for_calls(3)
            assert not any(during), "the primary was not away"
            return pause, max(each.slowest_after(back) for each in waiting)
