"""The transport for Valkey and Redis: send calls to the right servers, and translate redis-py's errors.

Calls are routed by the slot of their first key and sent side by side, on one connection per server. A script that a
server does not have yet is sent as text. Calls that were redirected are sent again at once. While a server is away,
or a failover is under way, calls to it raise TryLater, and the runner makes the request again. That is safe: a change
may be made twice, and a commit that was made already is a Conflict. Calls to other servers do not wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any

from redis import Redis
from redis import exceptions as errors

from threadkeep.backends.valkey.backend import ValkeyBackend
from threadkeep.backends.valkey.calls import Call
from threadkeep.backends.valkey.commits import REFUSED, check_committed
from threadkeep.drivers import forks
from threadkeep.drivers.retries import Retries, TryLater
from threadkeep.engine.health.requests import LoadStorageFacts, MeasureStorage, StorageSize
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.memories.requests import WriteMemories
from threadkeep.engine.requests import Batch
from threadkeep.engine.schema_versions import NO_SCHEMA, SCHEMA_VERSION, SchemaUse, SchemaVersions, needs_migration
from threadkeep.errors import Closed, Corrupt, ReadOnly, Unavailable, WrongKey
from threadkeep.plan import Failure, Outcome, Request, try_call, try_execute
from threadkeep.transports import valkey_health
from threadkeep.transports.migration_log import log_migration
from threadkeep.transports.valkey_contact import FirstContact
from threadkeep.transports.valkey_health import Primary
from threadkeep.transports.valkey_nodes import DENIED, LOST, Cluster, Node, SingleServer, ValkeyOptions, connect
from threadkeep.transports.valkey_outages import Outages, ServerDown, reason_of
from threadkeep.transports.valkey_pipeline import PendingCall, Pipeline
from threadkeep.transports.valkey_unfinished import UnfinishedChanges

__all__ = ["ValkeyOptions", "ValkeyServer"]
_log = logging.getLogger(__name__)
_NOT_READY = (errors.TryAgainError, errors.ClusterDownError, errors.BusyLoadingError, errors.ReadOnlyError)
_AWAY = (*LOST, *_NOT_READY, errors.AskError)
"""Replies after which a call is made again later."""
_NOT_READY_CODES = ("NOREPLICAS", "MASTERDOWN", "LOADING", "UNBLOCKED", "FAILOVER")
_AT_ONCE = 8
"""How often calls are sent again at once, for redirections. In a failover, servers may name each other for a while."""
_WAIT_SHARE = 0.8
"""How much of the time for a reply WAIT may take."""
_REPLICA_CHECK_SECONDS = 1.0
"""How often a primary without replicas is asked again whether it has one by now."""


class ValkeyServer:
    """Executes requests on a server or a cluster."""

    commits_at_once = True
    writers = 2

    def __init__(self, backend: ValkeyBackend, options: ValkeyOptions, *, on_loss: Callable[[], None]) -> None:
        self._backend = backend
        self._options = options
        self._on_loss = on_loss
        self.read_only = options.read_only
        self._closed = False
        self._was_reached = False
        self._schema_use = SchemaUse(options.read_only, options.migrate)
        self._is_schema_checked = False
        self._wait_ms = int(options.reply_timeout * _WAIT_SHARE * 1000)
        self._start()
        forks.watch(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._at_rest = threading.Condition(self._lock)
        self._active: list[int] = []
        """The threads that execute requests, once for each."""
        self._contact: FirstContact | None = None
        self._servers: SingleServer | Cluster | None = None
        self._outages = Outages(self._refresh)
        self._unfinished = UnfinishedChanges(self._options.timeout)
        self._replicas = _ReplicaChecks()

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
            servers = self._connected(time.monotonic())
            try:
                facts = valkey_health.facts(
                    servers.primaries(), slots=servers.covered_slots(), replicas_wanted=self._options.replicas
                )
            except (*LOST, errors.RedisError) as error:
                raise Unavailable(f"the storage did not answer: {error}") from error
        return {**facts, "read_only": self.read_only, "expires": self._backend.expires}

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes: side by side, then those that take several round trips, one after the other.

        Those that were sent before are not sent again: there may be replies to them by now.
        """
        if self.read_only:
            raise ReadOnly
        self._check_schema()
        started, sent = time.monotonic(), dict[int, list[PendingCall]]()
        new: list[PendingCall] = []
        for n, request in enumerate(requests):
            before = self._sent_before(request) if self._unfinished else None
            if before is not None:
                sent[n] = before
            elif (calls := self._backend.calls(request)) is not None:
                sent[n] = [PendingCall(call) for call in calls]
                new += sent[n]
        if new:
            self._begin()
            try:
                self._send(new, started, durable=True, may_leave=True)
            finally:
                self._end()
        executor = _ServerCalls(self, durable=True)
        return [
            self._outcome(request, sent[n], started)
            if n in sent
            else try_execute(lambda each: self._backend.answer(executor, each), request)
            for n, request in enumerate(requests)
        ]

    def _sent_before(self, request: Request[Any]) -> list[PendingCall] | None:
        """Return the calls of a change that was sent before; None if it has to be sent: also if a slot has moved."""
        calls, servers = self._unfinished.take(request), self._servers
        for call in calls or ():
            if servers and call.pipeline and not servers.has(call.pipeline.name, call.call.keys[0]):
                return None
        return calls

    def _outcome(self, request: Request[Any], calls: list[PendingCall], started: float) -> Outcome:
        left = next((call.pipeline for call in calls if call.pipeline is not None), None)
        if left is None:
            return try_call(lambda: self._backend.check(request, [_value(call.reply) for call in calls]))
        self._unfinished.keep(request, calls)
        self._outages.refresh_soon()  # a replica may take the place of a server that does not reply
        return Failure(self._try_later(left.reason(), started))

    def try_commit(self, batch: Batch) -> bool:
        """Commit a batch at once, in this thread and on one connection. Return whether that was done.

        One round trip: the script, and WAIT after it. Everything unusual is left to `write`: servers that are down or
        were not asked yet, scripts that a server does not have, slots that have moved.
        """
        reply = self._try_call(self._backend.commit_call(batch))
        if reply is None:
            return False
        check_committed(reply)
        return True

    def try_drop(self, key: ThreadKey, *, sealed: bool = False) -> bool:
        """Delete a thread at once, as `try_commit` commits. False if it is also in a search index."""
        reply = self._try_call(self._backend.drop_call(key, sealed=sealed))
        if reply == REFUSED:
            raise WrongKey
        return bool(reply == 1)

    def write_at_once(self, request: WriteMemories) -> bool:
        """Change memories at once, as `try_commit` commits, if they are all in one partition."""
        calls = self._backend.calls(request)
        reply = self._try_call(calls[0]) if calls is not None and len(calls) == 1 else None
        if reply is None:
            return False
        self._backend.check(request, [reply])
        return True

    def _try_call(self, call: Call) -> Any:
        """Make a change in this thread. None if it has to be sent as other changes are; it may have been made.

        If it is interrupted, its connection is closed.
        """
        servers = self._servers
        if servers is None or self.read_only or not self._is_schema_checked or self._outages or self._unfinished:
            return None
        try:
            pipeline = self._pipeline(servers.node(call.keys[0]), durable=True)
        except (*LOST, errors.RedisError):
            return None
        pending = PendingCall(call)
        pipeline.pending.append(pending)
        pipeline.send()
        pipeline.receive()
        self._record_replicas(pipeline.name, pipeline)
        if isinstance(pending.reply, LOST):
            self._handle_loss()
        return None if isinstance(pending.reply, errors.RedisError | OSError) else _value(pending.reply)

    def setup(self) -> None:
        """Connect now instead of at first use."""
        retries: Retries | None = None
        while True:
            try:
                _ServerCalls(self, durable=False).call(self._backend.probe())
            except TryLater as error:
                retries = retries or Retries(error)
                pause = retries.next_pause(error)
                if pause is None:
                    raise error.error from error
                time.sleep(pause)
            else:
                return

    def close(self) -> None:
        """Wait for what is under way, at most `timeout` seconds, then close all connections."""
        with self._lock:
            self._closed = True
            self._outages.close()
            if self._contact is not None:
                self._contact.cancel()
            self._at_rest.wait_for(self._is_idle, self._options.timeout)
            if self._servers is not None:
                self._servers.close()
            self._servers = None

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        self._begin()
        try:
            yield
        finally:
            self._end()

    def _begin(self) -> None:
        with self._lock:
            if self._closed:
                raise Closed
            self._active.append(get_ident())

    def _is_idle(self) -> bool:
        """Whether no other thread executes a request. This one does not, even if Ctrl-C kept it from counting one."""
        return self._active.count(get_ident()) == len(self._active)

    def _end(self) -> None:
        with self._lock:
            self._active.remove(get_ident())
            if self._closed:
                self._at_rest.notify_all()

    def before_fork(self) -> None:
        """Let no fork happen while the state changes."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        """In the child, make new connections at next use; it must not touch the parent's."""
        self._lock.release()
        if child:
            self._start()

    def send(self, calls: Sequence[Call], *, durable: bool) -> list[Any]:
        """Return the reply to each call, or the error it ended with. If a server is down, raise TryLater.

        With `durable`, a change succeeds only when as many replicas have it as the options ask for.
        """
        self._check_schema()
        return self._send_all(calls, durable=durable)

    def _check_schema(self) -> None:
        """At first use, check that this code can use what is stored, and state its version. One more round trip."""
        if self._is_schema_checked:
            return
        found = self.schema()
        if found.version > SCHEMA_VERSION:
            needs_migration(found, self._schema_use, database="the storage")
        if found.version < SCHEMA_VERSION and self._schema_use.migrate and not self.read_only:
            (reply,) = self._send_all([self._backend.set_versions()], durable=False)
            if isinstance(reply, errors.OutOfMemoryError):
                return  # the server is full: reads and deletes work, and the next use tries again
            _value(reply)
            log_migration("the storage", found.version)
        self._is_schema_checked = True

    def schema(self) -> SchemaVersions:
        """Return the schema versions that the storage states. Change nothing."""
        (reply,) = self._send_all([self._backend.get_versions()], durable=False)
        stored = _value(reply)
        try:
            return SchemaVersions(*map(int, stored)) if stored != [None] * 3 else NO_SCHEMA
        except (TypeError, ValueError) as error:
            raise Corrupt(f"the schema version cannot be read: {stored}") from error

    def migrate(self) -> None:
        """State the schema version of this code, even if the Keep was opened with migrate=False."""
        if self.read_only:
            raise ReadOnly
        self._schema_use, self._is_schema_checked = SchemaUse(), False
        self.setup()

    def copy_to_file(self, path: Path, on_progress: Callable[[int, int], object]) -> bool:  # noqa: ARG002
        """Return False: a portable file can hold what servers store."""
        return False

    def _send_all(self, calls: Sequence[Call], *, durable: bool) -> list[Any]:
        started = time.monotonic()
        pending = [PendingCall(call) for call in calls]
        self._begin()
        try:
            self._send(pending, started, durable=durable)
        finally:
            self._end()
        return [call.reply for call in pending]

    def _send(self, calls: Sequence[PendingCall], started: float, *, durable: bool, may_leave: bool = False) -> None:
        """Give each call a reply: a value, an error, or TryLater.

        With `may_leave`, calls whose replies take long are left to a thread that waits for them: they have none yet,
        and `pipeline` says where they are.
        """
        waiting = calls
        for _ in range(_AT_ONCE):
            servers = self._connected(started)
            try:
                self._exchange(servers, waiting, durable=durable, may_leave=may_leave)
                failed = [call for call in waiting if call.pipeline is None and isinstance(call.reply, Exception)]
                waiting = [call for call in failed if self._must_resend(servers, call)]
            except DENIED as error:
                raise Unavailable(f"the storage refused: {error}") from error
            except ServerDown as error:
                raise self._try_later(error, started) from error
            if not waiting:
                break
        for call in calls:
            if isinstance(call.reply, _AWAY) and call.pipeline is None and not isinstance(call.reply, DENIED):
                call.reply = self._try_later(call.reply, started, call.unresponsive)

    def _try_later(self, error: Exception, started: float, server: Redis | None = None) -> TryLater:
        reason = str(error) if server is None else reason_of(server, error)
        away = Unavailable(f"the storage did not answer: {reason}")
        away.__cause__ = error
        return TryLater(away, started=started, timeout=self._options.timeout)

    def _must_resend(self, servers: SingleServer | Cluster, call: PendingCall) -> bool:
        """Return whether to send a call again at once: to another server, with the script's text, or after a loss."""
        reply = call.reply
        call.importing_node = None
        if isinstance(reply, errors.NoScriptError):
            call.as_text = True
            return True
        if isinstance(reply, errors.AskError):
            return self._redirect(servers, call, reply)
        if isinstance(reply, errors.ResponseError) and str(reply).startswith(_NOT_READY_CODES):
            call.reply = errors.TryAgainError(str(reply))
        if not isinstance(reply, LOST) or isinstance(reply, (*DENIED, ServerDown)):
            return False
        self._handle_loss()
        if call.unresponsive is None:
            self._outages.refresh_soon()
            return False
        if isinstance(reply, errors.TimeoutError) or call.was_lost:
            self._outages.begin(call.unresponsive, reply)
            return False
        call.was_lost = True  # it may have been the connection, not the server
        return True

    def _redirect(self, servers: SingleServer | Cluster, call: PendingCall, reply: errors.AskError) -> bool:
        try:
            if isinstance(reply, errors.MovedError):
                servers.move_slot(reply)
            else:
                call.importing_node = servers.importing_node(reply)
        except LOST as error:  # it names a server that is not known yet
            call.reply = error
            self._outages.refresh_soon()
            return False
        return True

    def _measure(self) -> StorageSize:
        """Return the memory that all primaries use, for other applications too."""
        started = time.monotonic()
        with self._in_use():
            primaries = self._connected(started).primaries()
            down = next((error for each in primaries if (error := self._outages.error(each.name))), None)
            if down is not None:
                raise self._try_later(down, started)
            try:
                return _storage_size(primaries, self._outages.begin)
            except LOST as error:
                self._handle_loss()
                raise self._try_later(error, started) from error
            except errors.RedisError as error:
                raise Unavailable(f"the storage refused: {error}") from error

    def _handle_loss(self) -> None:
        """Drop caches: a new primary may lack what the old one acknowledged."""
        self._on_loss()
        self._replicas.clear()

    def _connected(self, started: float) -> SingleServer | Cluster:
        return self._servers or self._make_contact(started)

    def _make_contact(self, started: float) -> SingleServer | Cluster:
        """Wait for the first contact. Nobody who waits holds the lock."""
        with self._lock:
            if self._closed:
                raise Closed
            if self._contact is None or self._contact.has_failed:
                self._contact = FirstContact(self._options)
            contact = self._contact
        servers = contact.wait()
        if servers is not None:
            with self._lock:
                if self._closed:
                    raise Closed
                self._was_reached = True
                self._servers = self._servers or servers
                return self._servers
        error = contact.error or errors.TimeoutError("no answer")
        if isinstance(error, DENIED) or not isinstance(error, LOST):
            raise Unavailable(f"the storage at {self._options.addresses} refused: {error}") from error
        if self._was_reached or contact.was_answered:
            raise self._try_later(error, started) from error
        raise Unavailable(f"cannot connect to Valkey at {self._options.addresses}: {error}") from error

    def _refresh(self) -> None:
        """Look for the servers again; if none of them answers, start from the hosts of the options."""
        servers = self._servers
        if not isinstance(servers, Cluster):
            return
        try:
            silent = [*self._outages.names(), *self._unfinished.servers()]
            servers.refresh(silent[0] if silent else None)
        except LOST:
            found = connect(self._options)
            with self._lock:
                if not self._closed and self._servers is servers:
                    self._servers, found = found, servers
            found.close()

    def _exchange(
        self, servers: SingleServer | Cluster, calls: Iterable[PendingCall], *, durable: bool, may_leave: bool
    ) -> None:
        """Send calls to their servers, all at once, and read the replies. Those to a server that is down fail."""
        pipelines: dict[str, Pipeline] = {}
        for call in calls:
            try:
                node = call.importing_node or servers.node(call.call.keys[0])
            except errors.SlotNotCoveredError as error:
                call.reply, call.unresponsive = error, None
                continue
            pipeline = pipelines.get(node.name)
            if pipeline is None:
                pipelines[node.name] = pipeline = self._pipeline(node, durable=durable)
            pipeline.pending.append(call)
        if self._outages or self._unfinished:
            self._leave_out(pipelines, may_leave=may_leave)
        for pipeline in pipelines.values():
            pipeline.send()
        patience = servers.patience / 2 if servers.patience and may_leave else servers.patience
        deadline = time.monotonic() + patience if patience is not None else None
        for name, pipeline in pipelines.items():
            left = deadline if deadline is None else max(0.0, deadline - time.monotonic())
            if pipeline.receive(left):
                self._record_replicas(name, pipeline)
            else:
                self._handle_slow(name, pipeline, may_leave=may_leave)

    def _pipeline(self, node: Node, *, durable: bool) -> Pipeline:
        replicas = self._replicas_to_wait_for(node) if durable else 0
        if_any = self._options.replicas is None and not node.lists_replicas
        return Pipeline(node, replicas, self._wait_ms, if_any=if_any)

    def _leave_out(self, pipelines: dict[str, Pipeline], *, may_leave: bool) -> None:
        """Let calls to servers that are down fail. Unless they are changes of a group, that ends all of them."""
        for name in list(pipelines):
            error = self._outages.error(name)
            if error is None and may_leave and self._unfinished.are_too_many(name):
                error = ServerDown(f"{name} has not replied to earlier changes")
            if error is not None and not may_leave:
                raise error
            if error is not None:
                for call in pipelines.pop(name).pending:
                    call.reply = error

    def _handle_slow(self, name: str, pipeline: Pipeline, *, may_leave: bool) -> None:
        """Leave changes of a group to a thread. Other calls wait for replicas, and for a server that is just slow."""
        if may_leave:
            self._unfinished.wait_for(name, pipeline, lambda: self._end_slow(name, pipeline))
        elif pipeline.is_waiting or self._outages.is_slow(name):
            pipeline.receive()
            self._record_replicas(name, pipeline)
        else:
            pipeline.give_up()

    def _end_slow(self, name: str, pipeline: Pipeline) -> None:
        self._record_replicas(name, pipeline)
        lost = next((call for call in pipeline.pending if isinstance(call.reply, LOST)), None)
        if lost is not None and lost.unresponsive is not None:
            self._handle_loss()
            self._outages.begin(lost.unresponsive, lost.reply)

    def _record_replicas(self, name: str, pipeline: Pipeline) -> None:
        if pipeline.lacks_replicas:
            self._replicas.forget(name)
            self._outages.refresh_soon()  # the slot table may list a replica that is gone
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
        self._lost: set[str] = set()
        """Primaries whose replica did not confirm a change, and that were not asked since."""

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
            if name in self._lost:
                _log.warning("%s has lost its last replica: changes are on the primary alone until it has one", name)
            self._lost.discard(name)

    def forget(self, name: str) -> None:
        """Forget the replica of a primary: it has not confirmed a change, and may be gone."""
        self._replicated.discard(name)
        self._next_check.pop(name, None)
        self._lost.add(name)

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
        replies = self._server.send(calls, durable=self._durable)
        return [_value(reply) if isinstance(reply, Exception) else reply for reply in replies]


def _storage_size(primaries: Iterable[Primary], on_loss: Callable[[Redis, Exception], None]) -> StorageSize:
    parts, keys = dict[str, int](), 0
    for name, client, _ in primaries:
        try:
            info: Any = client.info("memory")
            parts[name] = int(info["used_memory"])
            keys += int(client.dbsize())
        except LOST as error:
            on_loss(client, error)
            raise
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
