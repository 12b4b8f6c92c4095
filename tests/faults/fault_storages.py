"""Storages of the tests of faults: real servers of their own, which tests kill, or shared ones, which they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import postgres_servers
import valkey_servers

BACKENDS = ("sqlite", "postgres", "valkey")


def shared_url(backend: str, folder: Path) -> str:
    """Return the URL of a new storage. Its server, if there is one, is shared with other tests."""
    if backend == "postgres":
        return postgres_servers.fresh_schema(postgres_servers.shared())
    return valkey_servers.shared().url() if backend == "valkey" else f"sqlite:///{folder}/keep.db"


@contextmanager
def killed_postgres() -> Iterator[tuple[str, Callable[[], None]]]:
    """Start a server that syncs its files. Yield its URL, and what kills and starts it."""
    with postgres_servers.fresh_server(postgres_servers.DURABLE) as server:

        def kill() -> None:
            server.kill()
            server.start()

        yield postgres_servers.fresh_schema(server), kill


@contextmanager
def killed_valkey() -> Iterator[tuple[str, Callable[[], None]]]:
    """Start a server that syncs its append-only file. Yield its URL, and what kills and starts it."""
    server = valkey_servers.start(appendonly="yes", appendfsync="always")

    def kill() -> None:
        server.kill()
        server.start_again()

    try:
        yield f"valkey://127.0.0.1:{server.port}", kill
    finally:
        server.stop()


KILLED = {"postgres": killed_postgres, "valkey": killed_valkey}


@contextmanager
def own_cluster(**settings: str) -> Iterator[valkey_servers.Cluster]:
    """Start three primaries with two replicas each."""
    cluster = valkey_servers.fresh_cluster(**{"min-replicas-to-write": "1"} | settings)
    try:
        yield cluster
    finally:
        cluster.stop()
