"""kill -9 of writers, of servers and of primaries: what was acknowledged is there, once and whole."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from fault_log import FaultLog, audit
from fault_matrix import Matrix, size
from fault_storages import BACKENDS, KILLED, own_cluster, shared_url
from fault_writers import SCRIPT, TIMEOUT, FaultWriters

import postgres_servers
import processes
import threadkeep
from postgres_failover import fail_over, quorum_cluster, url_of
from valkey_servers import Cluster, Server


@pytest.mark.fault("kill -9 of a writer")
@pytest.mark.parametrize("backend", BACKENDS)
def test_writers_that_are_killed_lose_nothing(backend: str, tmp_path: Path, log: FaultLog, matrix: Matrix) -> None:
    url, chance, rounds = shared_url(backend, tmp_path), random.Random(1), size(3, 120)
    for _ in range(rounds):
        before = log.count()
        writer = processes.fork(SCRIPT, url, log.path, "p")
        try:
            assert postgres_servers.wait_until(lambda: log.count() > before or writer.poll() is not None, TIMEOUT)
            time.sleep(chance.uniform(0, size(2, 10) / 10))
            assert writer.poll() is None, processes.finish(writer)
        finally:
            writer.kill()
            writer.communicate()
    matrix.add(rounds, audit(url, log))


@pytest.mark.fault("kill -9 of the server")
@pytest.mark.parametrize("backend", KILLED)
def test_a_server_that_is_killed_loses_nothing(backend: str, log: FaultLog, matrix: Matrix) -> None:
    rounds = size(2, 30)
    with KILLED[backend]() as (url, kill):
        with threadkeep.open(url) as keep, FaultWriters(keep, log) as writers:
            for _ in range(rounds):
                writers.wait_for(5)
                kill()
            writers.wait_for(5)
        assert writers.failed == []
        matrix.add(rounds, audit(url, log))


@pytest.mark.fault("kill -9 of the primary")
@pytest.mark.parametrize("backend", ["valkey"])
def test_a_cluster_continues_without_each_primary(backend: str, log: FaultLog, matrix: Matrix) -> None:
    """Each round kills a primary; a replica is elected, and the dead server comes back as an empty replica."""
    rounds = size(1, 24)
    with own_cluster() as cluster:
        url = cluster.url("p", replicas=1)
        with threadkeep.open(url) as keep, FaultWriters(keep, log) as writers:
            for number in range(rounds):
                writers.wait_for(5)
                victim = cluster.primary_of(number * 16384 // 3 % 16384)
                victim.kill()
                writers.wait_for(5)
                rejoin(cluster, victim)
            writers.wait_for(5)
        matrix.add(rounds, audit(url, log))


def rejoin(cluster: Cluster, server: Server) -> None:
    """Start a server again, whose slots another has by now, and wait until it has everything."""
    server.start_again()
    postgres_servers.wait_until(lambda: is_replica(server) and cluster.is_healthy(), TIMEOUT)


def is_replica(server: Server) -> bool:
    role = server.client.execute_command("ROLE")
    return bool(role[0] == b"slave" and role[3] == b"connected")


@pytest.mark.fault("kill -9 of the primary")
@pytest.mark.parametrize(("backend", "run"), [("postgres", run) for run in range(size(1, 6))])
def test_writers_continue_with_a_promoted_standby(backend: str, run: int, log: FaultLog, matrix: Matrix) -> None:
    with quorum_cluster() as servers:
        url = url_of(servers, "k")
        with threadkeep.open(url) as keep, FaultWriters(keep, log) as writers:
            writers.wait_for(5 * (run + 1))
            fail_over(servers)
            writers.wait_for(10)
        assert writers.failed == []
        matrix.add(1, audit(url, log))
