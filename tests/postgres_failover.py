"""A primary with two standbys, one of which has each commit, and how a standby takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import postgres_servers


@contextmanager
def quorum_cluster() -> Iterator[list[postgres_servers.Server]]:
    """Start the primary, then its standbys."""
    with postgres_servers.fresh_server(postgres_servers.DURABLE) as primary:
        standbys = [
            primary.standby(postgres_servers.fresh_folder(), postgres_servers.free_port(), name)
            for name in ("s1", "s2")
        ]
        for standby in standbys:
            standby.start()
        primary.settings["synchronous_standby_names"] = "ANY 1 (s1, s2)"
        primary.restart()
        following = "select count(*) from pg_stat_replication where sync_state = 'quorum'"
        assert postgres_servers.wait_until(lambda: primary.execute(following) == [(2,)], 30)
        yield [primary, *standbys]
        for standby in standbys:
            standby.remove()


def url_of(cluster: list[postgres_servers.Server], schema: str) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in cluster)
    return f"postgresql://postgres@{hosts}/postgres?schema={schema}&target_session_attrs=read-write"


def fail_over(cluster: list[postgres_servers.Server]) -> postgres_servers.Server:
    """Crash the primary, and promote the standby that has received most."""
    cluster[0].kill()
    return promote_standby(cluster[1:])


def promote_standby(standbys: list[postgres_servers.Server]) -> postgres_servers.Server:
    streaming = "select count(*) from pg_stat_wal_receiver where status = 'streaming'"
    for standby in standbys:  # what was under way has arrived
        assert postgres_servers.wait_until(lambda: standby.execute(streaming) == [(0,)], 30)
    received = "select pg_last_wal_receive_lsn() - '0/0'"
    ahead = max(standbys, key=lambda standby: standby.execute(received)[0][0])
    ahead.promote()
    return ahead
