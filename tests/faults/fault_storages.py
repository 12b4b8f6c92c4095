"""Storages of the tests of faults: real servers of their own, which tests kill, or shared ones, which they do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import postgres_servers
import valkey_servers

BACKENDS = ("sqlite", "postgres", "valkey")


def shared_url(backend: str, folder: Path) -> str:
    """Return the URL of a new storage. Its server, if there is one, is shared with other tests."""
    if backend == "postgres":
        return postgres_servers.fresh_schema(postgres_servers.shared())
    return valkey_servers.shared().url() if backend == "valkey" else f"sqlite:///{folder}/keep.db"


@contextmanager
def own_postgres() -> Iterator[Any]:
    """Start a server that syncs its files."""
    with postgres_servers.fresh_server(postgres_servers.DURABLE) as server:
        yield server


@contextmanager
def own_valkey() -> Iterator[Any]:
    """Start a server that has its data after a restart."""
    server = valkey_servers.start(appendonly="yes", appendfsync="always")
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def own_cluster(**settings: str) -> Iterator[valkey_servers.Cluster]:
    """Start three primaries with two replicas each."""
    cluster = valkey_servers.fresh_cluster(**{"min-replicas-to-write": "1"} | settings)
    try:
        yield cluster
    finally:
        cluster.stop()
