"""Outages of Valkey with 1, 8 and 200 callers, sync and async: every call succeeds soon after the server's return."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import threadkeep
import valkey_servers
from checkpoint_chains import Chain, values_of
from threadkeep import errors
from valkey_outages import (
    FREEZE,
    KILL,
    MODES,
    RESTART,
    SOON,
    Outage,
    busy,
    cluster_without_replicas,
    durable_server,
    outlive,
    outlive_dead_primary,
    threads_of,
)

OUTAGE_SECONDS = 6.0
ANSWERED_SECONDS = 4.0
"""Longer than a caller waits for the first contact."""


@pytest.fixture
def server() -> Iterator[valkey_servers.Server]:
    made = durable_server()
    yield made
    made.stop()


def go_away(outage: Outage) -> Callable[[valkey_servers.Server], None]:
    def run(server: valkey_servers.Server) -> None:
        outage.leave(server)
        time.sleep(OUTAGE_SECONDS)
        outage.come_back(server)

    return run


def kill_connections(server: valkey_servers.Server) -> None:
    end = time.monotonic() + OUTAGE_SECONDS
    while time.monotonic() < end:
        server.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.1)


def fail_to_resolve(server: valkey_servers.Server) -> None:
    """Names cannot be resolved, and the connections that exist break."""
    resolve, administrator = socket.getaddrinfo, server.client
    administrator.ping()

    def refuse(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    socket.getaddrinfo = refuse
    try:
        administrator.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(OUTAGE_SECONDS)
    finally:
        socket.getaddrinfo = resolve


OUTAGES = {
    "restart": go_away(RESTART),
    "kill -9": go_away(KILL),
    "frozen": go_away(FREEZE),
    "connections killed": kill_connections,
    "no name resolution": fail_to_resolve,
}


@pytest.mark.parametrize("count", [1, 8, 200])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("outage", OUTAGES)
def test_every_caller_outlives_an_outage(server: valkey_servers.Server, outage: str, mode: str, count: int) -> None:
    with threadkeep.open(f"valkey://localhost:{server.port}/?prefix=p") as keep:
        after = outlive(keep, (mode,), count, lambda: OUTAGES[outage](server))
    print(f"{outage}, {count} {mode} callers: {after:.2f} s")
    assert after < SOON


@pytest.mark.parametrize("count", [1, 8, 200])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("outage", [KILL, FREEZE], ids=["killed", "frozen"])
def test_every_caller_outlives_a_failover(outage: Outage, mode: str, count: int) -> None:
    cluster = valkey_servers.fresh_cluster(primaries=3, replicas=2)
    try:
        with threadkeep.open(cluster.url()) as keep:

            def fail_over() -> None:
                outage.leave(cluster.servers[0])
                alive = cluster.servers[1:]
                valkey_servers.wait_for(lambda: has_new_primary(cluster.servers[0], alive), "a new primary")

            after = outlive(keep, (mode,), count, fail_over)
        print(f"failover, {count} {mode} callers: {after:.2f} s")
        assert after < SOON
    finally:
        cluster.stop()


def has_new_primary(old: valkey_servers.Server, others: list[valkey_servers.Server]) -> bool:
    slots: Any = [each.client.execute_command("CLUSTER", "SLOTS") for each in others]
    healthy = all(
        b"cluster_state:ok" in each.client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True) for each in others
    )
    return healthy and not any(primary[1] == old.port for seen in slots for _, _, primary, *_ in seen)


@pytest.mark.parametrize("count", [1, 8, 100])
@pytest.mark.parametrize("outage", [KILL, FREEZE], ids=["killed", "frozen"])
def test_threads_on_other_primaries_do_not_wait_for_a_dead_one(outage: Outage, count: int) -> None:
    cluster = cluster_without_replicas()
    try:
        pause, after = outlive_dead_primary(cluster, outage, count=count, seconds=8)
        print(f"{count} callers: longest pause {pause:.2f} s, {after:.2f} s")
        assert pause < 5
        assert after < SOON
    finally:
        cluster.stop()


def test_changes_on_other_primaries_do_not_wait_for_a_replica_that_does_not_answer() -> None:
    cluster = valkey_servers.fresh_cluster(primaries=3, replicas=1)
    try:
        url = cluster.url(replicas=1)
        lagging = threads_of(cluster, url, cluster.servers[0])
        others = threads_of(cluster, url, cluster.servers[1])
        with threadkeep.open(url) as keep:
            chains = [Chain(keep.checkpointer, next(lagging)) for _ in range(8)]
            changes = [partial(chain.put, {"n": 0}) for chain in chains]
            changes += [partial(keep.store.put, (f"n{n}",), "k", {}) for n in range(24)]
            told: list[str] = []
            with busy(keep, {mode: [next(others) for _ in range(4)] for mode in MODES}) as healthy:
                cluster.servers[3].freeze()
                began = time.monotonic()
                changing = [threading.Thread(target=note_refusal, args=[change, told]) for change in changes]
                for each in changing:
                    each.start()
                for each in changing:
                    each.join()
                pause = max(each.longest_pause(began) for each in healthy)
            print(f"longest pause {pause:.2f} s in {time.monotonic() - began:.2f} s")
            assert pause < 2
            assert len(told) >= len(chains)
            assert all(f"0 of 1 replicas of 127.0.0.1:{cluster.servers[0].port}" in each for each in told)
    finally:
        cluster.stop()


def note_refusal(change: Callable[[], object], told: list[str]) -> None:
    try:
        change()
    except errors.Unavailable as error:
        told.append(str(error))


def test_a_first_contact_waits_for_a_server_that_does_not_answer_yet(server: valkey_servers.Server) -> None:
    server.freeze()
    timer = threading.Timer(ANSWERED_SECONDS, server.thaw)
    timer.start()
    with threadkeep.open(f"valkey://127.0.0.1:{server.port}/?prefix=p") as keep:
        Chain(keep.checkpointer).put({"x": 1})
        assert values_of(keep.checkpointer) == {"x": 1}
    timer.join()
