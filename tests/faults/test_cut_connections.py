"""Connections that are cut within requests and replies: every call succeeds, and nothing is lost or done twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cutting_proxy import PLACES, CuttingProxy, cutting_proxy
from fault_log import FaultLog, Findings, audit
from fault_matrix import Matrix, size
from fault_verbs import CHANGES, fill, stored
from fault_writers import FaultWriters

import postgres_servers
import threadkeep
import valkey_servers


@contextmanager
def proxied_postgres() -> Iterator[tuple[CuttingProxy, Callable[[], str]]]:
    server = postgres_servers.shared()
    with cutting_proxy(server.port) as proxy:
        yield proxy, lambda: postgres_servers.fresh_schema(server).replace(f":{server.port}/", f":{proxy.port}/")


@contextmanager
def proxied_valkey() -> Iterator[tuple[CuttingProxy, Callable[[], str]]]:
    with cutting_proxy(valkey_servers.shared_one().port) as proxy:
        yield proxy, lambda: f"valkey://127.0.0.1:{proxy.port}/?prefix={valkey_servers.fresh_prefix()}"


PROXIED: dict[str, Any] = {"postgres": proxied_postgres, "valkey": proxied_valkey}


@pytest.mark.fault("connections cut under load")
@pytest.mark.parametrize("place", size(PLACES[2:3], PLACES))
@pytest.mark.parametrize("backend", PROXIED)
def test_writers_lose_and_repeat_nothing(backend: str, place: str, log: FaultLog, matrix: Matrix) -> None:
    """A new connection needs up to five requests, which are cut, too: so not every fifth or fewer."""
    with PROXIED[backend]() as (proxy, fresh_url):
        url = fresh_url()
        with threadkeep.open(url) as keep, FaultWriters(keep, log) as writers:
            writers.wait_for(2)
            for every in size([17], [11, 17, 29, 53]):
                proxy.cut_at(every, place, repeatedly=True)
                writers.wait_for(size(5, 40))
                proxy.stop_cutting()
                writers.wait_for(1)
        assert writers.failed == []
        matrix.add(proxy.cuts, audit(url, log))


def open_with_few_connections(url: str) -> threadkeep.Keep:
    """Open a Keep that sends nothing in the background."""
    return threadkeep.open(url, **({"min_size": 1, "max_size": 1} if url.startswith("postgres") else {}))


def cases() -> list[tuple[str, str]]:
    """Return verbs and places: all of them, or some for `make test`."""
    return list(itertools.product(CHANGES, PLACES))[:: size(11, 1)]


@pytest.mark.fault("connection cut at each request of each verb")
@pytest.mark.parametrize("backend", PROXIED)
def test_each_verb_is_done_once_whichever_request_is_cut(backend: str, matrix: Matrix) -> None:
    with PROXIED[backend]() as (proxy, fresh_url), open_with_few_connections(fresh_url()) as keep:
        for verb, place in cases():
            expected = None
            for k in itertools.count():
                with keep.tenant(f"{verb} {place} {k}") as own:
                    fill(own)
                    before = proxy.cuts
                    proxy.cut_at(k, place)
                    CHANGES[verb].call(own)
                    proxy.stop_cutting()
                    expected = expected or stored(own)
                    assert stored(own) == expected, (verb, place, k)
                    assert own.verify().problems == []
                if k and proxy.cuts == before:
                    break
            assert 1 < k < 100, (verb, place, k)
        matrix.add(proxy.cuts, Findings(proxy.cuts))
