"""Valkey servers that go away for a while: calls wait for them, and calls to other servers do not."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

import threadkeep
import valkey_servers
from checkpoint_chains import Chain, config
from threadkeep import errors
from valkey_outages import (
    FREEZE,
    MODES,
    SOON,
    cluster_without_replicas,
    durable_server,
    outlive,
    outlive_dead_primary,
)


@pytest.fixture
def server() -> Iterator[valkey_servers.Server]:
    made = durable_server()
    yield made
    made.stop()


def url_of(server: valkey_servers.Server, **options: Any) -> str:
    query = "".join(f"&{name}={value}" for name, value in options.items())
    return f"valkey://127.0.0.1:{server.port}/?prefix={valkey_servers.fresh_prefix()}{query}"


def test_callers_outlive_a_crash_of_the_server_and_each_logs_once(
    server: valkey_servers.Server, caplog: pytest.LogCaptureFixture
) -> None:
    def outage() -> None:
        server.kill()
        time.sleep(3)
        server.start_again()

    with caplog.at_level(logging.WARNING, "threadkeep.retry"), threadkeep.open(url_of(server)) as keep:
        assert outlive(keep, MODES, 8, outage) < SOON
    logged = [record.getMessage() for record in caplog.records if record.name == "threadkeep.retry"]
    assert len(logged) == 2 * 8
    assert all(f":{server.port}" in each for each in logged)


def test_threads_on_other_primaries_do_not_wait_for_a_dead_one() -> None:
    """Callers wait for the dead one all the time, and commits of many threads go out together."""
    cluster = cluster_without_replicas()
    try:
        pause, after = outlive_dead_primary(cluster, FREEZE, count=8, seconds=3)
        assert pause < 2.5
        assert after < SOON
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    ("mode", "address"),
    [("sync", "127.0.0.1:1,127.0.0.1:2"), ("async", "127.0.0.1:1"), ("sync", "no-such-host.invalid:6379")],
)
def test_a_first_contact_that_is_refused_is_one_clear_error_soon(mode: str, address: str) -> None:
    began = time.monotonic()
    with threadkeep.open(f"valkey://{address}/") as keep:
        with pytest.raises(errors.Unavailable) as told:
            if mode == "sync":
                keep.checkpointer.get_tuple(config("t"))
            else:
                asyncio.run(keep.checkpointer.aget_tuple(config("t")))
    assert time.monotonic() - began < SOON
    assert f"cannot connect to Valkey at {address.replace(',', ', ')}: " in str(told.value)
    assert "\n" not in str(told.value)


def test_strict_continues_when_the_last_replica_is_lost_and_when_it_is_back(
    server: valkey_servers.Server, caplog: pytest.LogCaptureFixture
) -> None:
    replica = valkey_servers.start(replicaof=f"127.0.0.1 {server.port}")
    try:
        valkey_servers.wait_for(lambda: has_replica(server), "a replica")
        with threadkeep.open(url_of(server), timeout=2) as keep:
            chain = Chain(keep.checkpointer)
            chain.put({"x": 1})
            replica.kill()
            with caplog.at_level(logging.WARNING):
                chain.put({"x": 2})
            assert "has lost its last replica" in caplog.text
            replica.start_again()
            valkey_servers.wait_for(lambda: has_replica(server), "a replica")
            time.sleep(1.1)
            with valkey_servers.record_commands([server]) as commands:
                chain.put({"x": 3})
            assert "WAIT" in {name for _, name, *_ in commands}
    finally:
        replica.stop()


def has_replica(server: valkey_servers.Server) -> bool:
    info: Any = server.client.info("replication")
    return "online" in str(info.get("slave0"))


def test_strict_in_a_cluster_continues_without_reopening_when_the_last_replica_is_lost() -> None:
    """As long as the cluster lists the replica, changes that it does not confirm are errors that say so."""
    cluster = valkey_servers.fresh_cluster(primaries=1, replicas=1)
    primary, replica = cluster.servers
    try:
        with threadkeep.open(cluster.url(), timeout=2) as keep:
            chain = Chain(keep.checkpointer)
            chain.put({"x": 1})
            replica.kill()
            deadline, said = time.monotonic() + 30, []
            while True:
                try:
                    chain.put({"x": 2}, id=f"{len(said):08}b")
                    break
                except errors.Unavailable as error:
                    said.append(str(error))
                    assert time.monotonic() < deadline
            assert all(f"0 of 1 replicas of 127.0.0.1:{primary.port}" in each for each in said)
            replica.start_again()
            valkey_servers.wait_for(lambda: has_replica(primary), "a replica")
            time.sleep(1.1)
            with valkey_servers.record_commands([primary]) as commands:
                chain.put({"x": 3}, id="c")
            assert "WAIT" in {name for _, name, *_ in commands}
    finally:
        cluster.stop()
