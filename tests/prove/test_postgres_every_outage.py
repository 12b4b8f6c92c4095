"""Every outage of PostgreSQL that is shorter than the timeout: 1, 8 and 200 callers, sync and async, fail no call."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_failover import cluster, promote_standby, url_of  # noqa: F401 - a fixture

import postgres_servers
import threadkeep
from outages import SOON, Callers, Proxy
from test_postgres_faults import end_backends

AWAY = 5.0
Outage = tuple[str, Callable[[], Any], Callable[[], Any]]
"""The URL, and how the server leaves and comes back."""


@pytest.fixture(scope="module")
def server() -> Iterator[postgres_servers.Server]:
    with postgres_servers.fresh_server() as made:
        yield made


@contextmanager
def restart(server: postgres_servers.Server) -> Iterator[Outage]:
    yield server.url(), server.stop, server.start


@contextmanager
def crash(server: postgres_servers.Server) -> Iterator[Outage]:
    yield server.url(), server.kill, server.start


@contextmanager
def freeze(server: postgres_servers.Server) -> Iterator[Outage]:
    yield server.url(), server.pause, server.resume


@contextmanager
def refused_port(server: postgres_servers.Server) -> Iterator[Outage]:
    proxy = Proxy(postgres_servers.free_port(), server.port)
    proxy.open()
    yield f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres", proxy.close, proxy.open
    proxy.close()


@contextmanager
def name_that_does_not_resolve(server: postgres_servers.Server) -> Iterator[Outage]:
    """The folder of the server's socket, under a name that goes away, as a name in the DNS does."""
    name = Path(f"/tmp/tk-{uuid.uuid4().hex}")
    name.symlink_to(server.folder)

    def leave() -> None:
        name.unlink()
        server.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'threadkeep'")

    url = f"postgresql://postgres@:{server.port}/postgres?host={name}"
    yield url, leave, partial(name.symlink_to, server.folder)
    name.unlink()


@contextmanager
def killed_connections(server: postgres_servers.Server) -> Iterator[Outage]:
    """The server ends each connection soon after it was made."""
    stop = threading.Event()

    def end_all() -> None:
        while not stop.wait(0.002):
            end_backends(server, "threadkeep")

    ending = threading.Thread(target=end_all)

    def come_back() -> None:
        stop.set()
        ending.join()

    yield server.url(), ending.start, come_back


OUTAGES = [restart, crash, freeze, refused_port, name_that_does_not_resolve]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("count", [1, 8, 200])
@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.__name__)
def test_callers_go_on_soon_after_every_outage(
    server: postgres_servers.Server, outage: Any, count: int, is_async: bool
) -> None:
    with outage(server) as (url, leave, come_back), threadkeep.open(url, schema=f"t_{uuid.uuid4().hex}") as keep:
        callers = Callers(keep, count)
        after = callers.outlive(leave, come_back, seconds=AWAY, is_async=is_async)
        assert callers.errors == []
        print(f"{outage.__name__}, {count} callers: {after:.2f} s after the return")
        assert after < SOON


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("count", [1, 8, 200])
def test_callers_outlive_connections_that_are_killed_all_the_time(
    server: postgres_servers.Server, count: int, is_async: bool
) -> None:
    with (
        killed_connections(server) as (url, leave, come_back),
        threadkeep.open(url, schema=f"t_{uuid.uuid4().hex}") as keep,
    ):
        callers = Callers(keep, count)
        callers.call_all(is_async=is_async).join()
        leave()
        calling = callers.call_all(is_async=is_async)
        calling.join(AWAY)
        come_back()
        calling.join(SOON)
        assert not calling.is_alive()
        assert callers.errors == []


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("count", [1, 8, 200])
def test_callers_go_on_soon_with_a_new_primary(
    cluster: list[postgres_servers.Server],  # noqa: F811 - the fixture
    count: int,
    is_async: bool,
) -> None:
    with threadkeep.open(url_of(cluster, "k")) as keep:
        callers = Callers(keep, count)
        after = callers.outlive(cluster[0].kill, partial(promote_standby, cluster[1:]), seconds=AWAY, is_async=is_async)
        assert callers.errors == []
        print(f"failover, {count} callers: {after:.2f} s after the promotion")
        assert after < SOON


def test_many_callers_of_a_frozen_server_end_with_unavailable(server: postgres_servers.Server) -> None:
    with freeze(server) as (url, leave, come_back), threadkeep.open(url, timeout=2) as keep:
        callers = Callers(keep, 50)
        callers.call_all(is_async=True).join()
        leave()
        try:
            calling = callers.call_all(is_async=True)
            calling.join(60)
            assert not calling.is_alive()
        finally:
            come_back()
        assert len(callers.errors) == 50
        assert {type(error) for error in callers.errors} == {threadkeep.errors.Unavailable}


def test_a_host_that_drops_packets_fails_soon_at_the_first_contact() -> None:
    """A queue of connections that is full drops further ones, as a firewall does."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(5):
            filling = sockets.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listener.getsockname())
        port = listener.getsockname()[1]
        with threadkeep.open(f"postgresql://postgres@127.0.0.1:{port}/postgres") as keep:
            started = time.monotonic()
            with pytest.raises(threadkeep.errors.Unavailable, match=f"no answer from 127.0.0.1:{port}"):
                keep.setup()
            assert time.monotonic() - started < SOON
