"""The transport for Valkey and Redis: send calls to the right servers, retry them, and translate redis-py's errors.

Calls are routed by the slot of their first key and sent side by side, on one connection per server. A script that a
server does not have yet is sent as text. After a redirection, a failover or a lost connection, calls are sent again
until `timeout` has passed. That is safe: a change may be made twice, and a commit that was made already is a Conflict.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from redis import exceptions as errors

from threadkeep.backends.valkey.backend import ValkeyBackend
from threadkeep.backends.valkey.calls import Call
from threadkeep.drivers import forks
from threadkeep.engine.health.requests import LoadStorageFacts
from threadkeep.engine.requests import Commit, MeasureStorage, StorageSize
from threadkeep.errors import Closed, Corrupt, ReadOnly, Unavailable
from threadkeep.plan import Outcome, Request, try_call, try_execute
from threadkeep.transports import valkey_health
from threadkeep.transports.valkey_health import Primary
from threadkeep.transports.valkey_nodes import DENIED, LOST, Cluster, Node, SingleServer, ValkeyOptions, connect
from threadkeep.transports.valkey_pipeline import PendingCall, Pipeline

__all__ = ["ValkeyOptions", "ValkeyServer"]
_NOT_READY = (errors.TryAgainError, errors.ClusterDownError, errors.BusyLoadingError, errors.ReadOnlyError)
_NOT_READY_CODES = ("NOREPLICAS", "MASTERDOWN", "LOADING", "UNBLOCKED", "FAILOVER")
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25
"""Seconds between tries."""
_WAIT_SHARE = 0.8
"""How much of the time for a reply WAIT may take."""
_REPLICA_CHECK_SECONDS = 1.0
"""How often a primary without replicas is asked again whether it has one by now."""


class ValkeyServer:
    """Executes requests on a server or a cluster."""

    writers = 2

    def __init__(self, backend: ValkeyBackend, options: ValkeyOptions, *, on_loss: Callable[[], None]) -> None:
        self._backend = backend
        self._options = options
        self._on_loss = on_loss
        self.read_only = options.read_only
        self._lock = threading.Lock()
        self._at_rest = threading.Condition(self._lock)
        self._active = 0
        self._servers: SingleServer | Cluster | None = None
        self._replicas = _ReplicaChecks()
        self._closed = False
        forks.watch(self)

    def read(self, request: Request[Any]) -> Any:
        """Execute a request that changes nothing."""
        if isinstance(request, MeasureStorage):
            return self._measure()
        if isinstance(request, LoadStorageFacts):
            return self._facts()
        return self._backend.answer(_ServerCalls(self, durable=False), request)

    def _facts(self) -> Mapping[str, Any]:
        self.setup()
        with self._in_use():
            servers = self._connected()
            try:
                facts = valkey_health.facts(
                    servers.primaries(), slots=servers.covered_slots(), replicas_wanted=self._options.replicas
                )
            except (*LOST, errors.RedisError) as error:
                raise Unavailable(f"the storage did not answer: {error}") from error
        return {**facts, "read_only": self.read_only, "expires": self._backend.expires}

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes: commits side by side, others one after the other."""
        if self.read_only:
            raise ReadOnly
        executor = _ServerCalls(self, durable=True)
        if not all(isinstance(request, Commit) for request in requests):
            return [try_execute(lambda each: self._backend.answer(executor, each), request) for request in requests]
        calls = [self._backend.commit_call(request.batch) for request in requests if isinstance(request, Commit)]
        replies = self.send(calls, durable=True)
        return [try_call(lambda r=reply: self._backend.check_committed(_value(r))) for reply in replies]  # type: ignore[misc]

    def setup(self) -> None:
        """Connect now instead of at first use."""
        _ServerCalls(self, durable=False).call(self._backend.probe())

    def close(self) -> None:
        """Wait for what is under way, at most `timeout` seconds, then close all connections."""
        with self._lock:
            self._closed = True
            self._at_rest.wait_for(lambda: not self._active, self._options.timeout)
            if self._servers is not None:
                self._servers.close()
            self._servers = None

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise Closed
            self._active += 1
        try:
            yield
        finally:
            with self._lock:
                self._active -= 1
                self._at_rest.notify_all()

    def before_fork(self) -> None:
        """Let no fork happen while a connection is being made."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        """In the child, make new connections at next use; it must not touch the parent's."""
        if child:
            self._servers, self._active = None, 0
        self._lock.release()

    def send(self, calls: Sequence[Call], *, durable: bool) -> list[Any]:
        """Return the reply to each call, or the error it ended with. Retry until `timeout`, then raise Unavailable.

        With `durable`, a change succeeds only when as many replicas have it as the options ask for.
        """
        with self._in_use():
            return self._send_until_done(calls, durable=durable)

    def _send_until_done(self, calls: Sequence[Call], *, durable: bool) -> list[Any]:
        pending = waiting = [PendingCall(call) for call in calls]
        deadline, pause = time.monotonic() + self._options.timeout, _SHORTEST_PAUSE
        while waiting:
            last: Exception | None = None
            try:
                servers = self._connected()
                self._exchange(servers, waiting, durable=durable)
                waiting = [call for call in waiting if _must_retry(servers, call)]
                last = next((call.reply for call in waiting if isinstance(call.reply, (*LOST, *_NOT_READY))), None)
            except DENIED as error:
                raise Unavailable(f"the storage refused: {error}") from error
            except LOST as error:
                last = error
            if last is None:
                continue
            if time.monotonic() > deadline:
                raise Unavailable(f"the storage did not answer in time: {last}") from last
            if isinstance(last, LOST):
                self._handle_loss(next((call.unresponsive for call in waiting if call.unresponsive), None))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return [call.reply for call in pending]

    def _measure(self) -> StorageSize:
        """Return the memory that all primaries use, for other applications too. Retry as `send` does."""
        deadline = time.monotonic() + self._options.timeout
        with self._in_use():
            while True:
                try:
                    return _storage_size(self._connected().primaries())
                except LOST as error:
                    if time.monotonic() > deadline:
                        raise Unavailable(f"the storage did not answer in time: {error}") from error
                except errors.RedisError as error:
                    raise Unavailable(f"the storage refused: {error}") from error
                self._handle_loss(None)
                time.sleep(_LONGEST_PAUSE)

    def _handle_loss(self, unresponsive: str | None) -> None:
        """Drop caches and look for the servers again: a new primary may lack what the old one acknowledged."""
        self._on_loss()
        self._replicas.clear()
        with suppress(*LOST):
            self._connected().refresh(unresponsive)

    def _connected(self) -> SingleServer | Cluster:
        with self._lock:
            if self._servers is None:
                if self._closed:
                    raise Closed
                self._servers = connect(self._options)
            return self._servers

    def _exchange(self, servers: SingleServer | Cluster, calls: Iterable[PendingCall], *, durable: bool) -> None:
        """Send calls to their servers, all at once, and read the replies."""
        pipelines: dict[str, Pipeline] = {}
        wait_ms = int(self._options.reply_timeout * _WAIT_SHARE * 1000)
        for call in calls:
            node = call.importing_node or servers.node(call.call.keys[0])
            name = node.name
            if name not in pipelines:
                replicas = self._replicas_to_wait_for(node) if durable else 0
                pipelines[name] = Pipeline(node.client, replicas, wait_ms)
            pipelines[name].pending.append(call)
        for pipeline in pipelines.values():
            pipeline.send()
        for name, pipeline in pipelines.items():
            pipeline.receive()
            self._replicas.record(name, has_replica=pipeline.has_replica)

    def _replicas_to_wait_for(self, node: Node) -> int | None:
        """Return how many replicas must have a change; None if the primary has to be asked whether it has any."""
        if self._options.replicas is not None:
            return self._options.replicas
        return 1 if node.lists_replicas else self._replicas.known(node.name)


class _ReplicaChecks:
    """Which primaries have a replica, by their own account.

    The slot table of a cluster is not enough. On a new cluster it lacks replicas until gossip has spread (up to a
    second), and a slot that has moved lists its new primary only. Strict changes must not skip WAIT meanwhile.
    """

    def __init__(self) -> None:
        self._replicated: set[str] = set()
        self._next_check: dict[str, float] = {}

    def known(self, name: str) -> int | None:
        """Return 1 if a primary has a replica, 0 if it had none a moment ago, None if it has to be asked."""
        if name in self._replicated:
            return 1
        return 0 if time.monotonic() < self._next_check.get(name, 0.0) else None

    def record(self, name: str, *, has_replica: bool | None) -> None:
        """Record what a primary replied; None if it was not asked."""
        if has_replica:
            self._replicated.add(name)
        elif has_replica is not None:
            self._next_check[name] = time.monotonic() + _REPLICA_CHECK_SECONDS

    def clear(self) -> None:
        """Forget all replies: a failover may have changed them."""
        self._replicated.clear()
        self._next_check.clear()


class _ServerCalls:
    """Executes calls for the backend."""

    def __init__(self, server: ValkeyServer, *, durable: bool) -> None:
        self._server = server
        self._durable = durable

    def call(self, call: Call) -> Any:
        """Execute one call."""
        return self.calls([call])[0]

    def calls(self, calls: Sequence[Call]) -> list[Any]:
        """Execute several calls side by side."""
        return [_value(reply) for reply in self._server.send(calls, durable=self._durable)]


def _must_retry(servers: SingleServer | Cluster, call: PendingCall) -> bool:
    """Return whether to send a call again: to another server, with the script's text, or later."""
    reply = call.reply
    call.importing_node = None
    if isinstance(reply, errors.NoScriptError):
        call.as_text = True
    elif isinstance(reply, errors.MovedError):
        servers.move_slot(reply)
    elif isinstance(reply, errors.AskError):
        call.importing_node = servers.importing_node(reply)
    elif isinstance(reply, errors.ResponseError) and str(reply).startswith(_NOT_READY_CODES):
        call.reply = errors.TryAgainError(str(reply))
    elif isinstance(reply, DENIED) or not isinstance(reply, (*LOST, *_NOT_READY)):
        return False
    return True


def _storage_size(primaries: Iterable[Primary]) -> StorageSize:
    parts, keys = dict[str, int](), 0
    for name, client, _ in primaries:
        info: Any = client.info("memory")
        parts[name] = int(info["used_memory"])
        keys += int(client.dbsize())
    return StorageSize("valkey", sum(parts.values()), parts, keys=keys)


def _value(reply: Any) -> Any:
    """Return a reply, or raise its error as ours. A Lua error means that a stored row is not what it should be."""
    if isinstance(reply, errors.ResponseError) and "attempt to " in str(reply):
        raise Corrupt(f"a stored row is damaged: {reply}") from reply
    if isinstance(reply, errors.RedisError):
        raise Unavailable(f"the storage refused: {reply}") from reply
    if isinstance(reply, Exception):
        raise reply
    return reply
