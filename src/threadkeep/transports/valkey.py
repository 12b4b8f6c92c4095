"""Valkey and Redis: connections, slots, retries, waiting for replicas; redis-py's errors.

Calls are routed by the slot of their first key and sent side by side, one connection a node. A script that the server
does not know yet is sent as text. Redirections, failovers and lost connections are tried again until the time is up: all
changes may be made twice, a commit that was made is then a Conflict. `WAIT` goes out on the connection of the changes,
where it means them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha1
from inspect import signature
from itertools import starmap
from typing import Any, NamedTuple

from redis import Redis
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, NodesManager
from redis.crc import key_slot
from redis.retry import Retry

from threadkeep.backends.valkey.backend import ValkeyBackend
from threadkeep.backends.valkey.calls import Call, script
from threadkeep.drivers import forks
from threadkeep.engine.health.requests import LoadStorageFacts
from threadkeep.engine.requests import Commit, MeasureStorage, StorageSize
from threadkeep.errors import Closed, Corrupt, ReadOnly, Unavailable
from threadkeep.plan import Outcome, Request, answer, attempt
from threadkeep.transports import valkey_health
from threadkeep.transports.valkey_health import Primary

_LOST = (errors.ConnectionError, errors.TimeoutError, errors.RedisClusterException, OSError)
_SOON = (errors.TryAgainError, errors.ClusterDownError, errors.BusyLoadingError, errors.ReadOnlyError)
_SOON_TOO = ("NOREPLICAS", "MASTERDOWN", "LOADING", "UNBLOCKED", "FAILOVER")
_HOPELESS = (errors.AuthenticationError, errors.AuthorizationError, errors.NoPermissionError)
_SHORTEST, _LONGEST = 0.01, 0.25
"""Seconds between tries."""
_ANSWER = 3.0
"""Seconds that a server has for an answer before it is given up, and another asked."""
_WAITED = 0.8
"""How much of that time is for its replicas."""
_CONNECTED = 2.0
"""Seconds for a connection."""
_CAN_BE_LAST = "last_failed_node_name" in signature(NodesManager.initialize).parameters


@dataclass(frozen=True, slots=True)
class ValkeyOptions:
    """How to reach the servers. `settings` are redis-py's; `replicas` None is 1 where there are any."""

    hosts: tuple[tuple[str, int], ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    replicas: int | None = None
    timeout: float = 30.0
    read_only: bool = False

    @property
    def answer(self) -> float:
        """Seconds that a server has for an answer."""
        return min(_ANSWER, self.timeout)


class _Script(NamedTuple):
    sha: str
    text: str


@cache
def _script(name: str) -> _Script:
    text = script(name)
    return _Script(sha1(text.encode()).hexdigest(), text)  # noqa: S324 - so servers name scripts


class _PrimaryNode(NamedTuple):
    """A primary, and how many replicas it has."""

    client: Redis
    replicas: int


class _SingleServer:
    """A single server."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        told: Any = client.info("replication")
        self._node = _PrimaryNode(client, int(told.get("connected_slaves", 0)))

    def primaries(self) -> list[Primary]:
        """The server."""
        return [Primary(_name(self._client), self._client, self._node.replicas)]

    def covered(self) -> None:
        """There are no slots."""

    def node(self, key: bytes) -> _PrimaryNode:  # noqa: ARG002 - there is one
        """Where a key is."""
        return self._node

    def refresh(self, silent: str | None = None) -> None:
        """Nothing moves."""

    def moved(self, error: errors.AskError) -> None:
        """Never."""

    def asked(self, error: errors.AskError) -> _PrimaryNode:
        """Never."""
        raise Unavailable(str(error)) from error

    def close(self) -> None:
        """Let go of all connections."""
        self._client.close()


class _Cluster:
    """A cluster, as far as redis-py knows it. Its own client asks a server for all commands first, which takes longest."""

    def __init__(self, nodes: NodesManager) -> None:
        self._nodes = nodes

    def primaries(self) -> list[Primary]:
        """The servers that have slots."""
        held = {nodes[0].name: nodes for nodes in list(self._nodes.slots_cache.values()) if nodes}
        return [Primary(name, self._client(nodes[0]), len(nodes) - 1) for name, nodes in sorted(held.items())]

    def covered(self) -> int:
        """How many slots some server has."""
        return sum(bool(nodes) for nodes in self._nodes.slots_cache.values())

    def node(self, key: bytes) -> _PrimaryNode:
        """Where a key is."""
        slot = key_slot(key)
        held = self._nodes.slots_cache.get(slot)
        if not held:
            raise errors.SlotNotCoveredError(f"no server has slot {slot}")
        return _PrimaryNode(self._client(held[0]), len(held) - 1)

    def _client(self, node: Any) -> Redis:
        if node.redis_connection is None:
            connect: Callable[[list[Any]], None] = self._nodes.create_redis_connections
            connect([node])
        client: Redis = node.redis_connection
        return client

    def refresh(self, silent: str | None = None) -> None:
        """Ask the servers who has what, last of all the one that gave no answer."""
        if silent is not None and _CAN_BE_LAST:
            self._nodes.initialize(last_failed_node_name=silent)
        else:
            self._nodes.initialize()

    def moved(self, error: errors.AskError) -> None:
        """Remember where a slot is now."""
        if error.slot_id in self._nodes.slots_cache:
            self._nodes.move_slot(error)
        else:
            self.refresh()

    def asked(self, error: errors.AskError) -> _PrimaryNode:
        """The server that is taking a slot over."""
        find: Callable[[], Any] = partial(self._nodes.get_node, error.host, error.port)
        node = find()
        if node is None:
            self.refresh()
            node = find()
        if node is None:
            raise errors.ConnectionError(f"unknown server {error.node_addr}")
        return _PrimaryNode(self._client(node), 0)

    def close(self) -> None:
        """Let go of all connections."""
        for node in list(self._nodes.nodes_cache.values()):
            if node.redis_connection is not None:
                node.redis_connection.close()


class ValkeyServer:
    """Executes requests on a server or a cluster."""

    writers = 2
    has_words = False

    def __init__(self, backend: ValkeyBackend, options: ValkeyOptions, *, on_loss: Callable[[], None]) -> None:
        self._backend = backend
        self._options = options
        self._on_loss = on_loss
        self.read_only = options.read_only
        self._lock = threading.Lock()
        self._at_rest = threading.Condition(self._lock)
        self._active = 0
        self._servers: _SingleServer | _Cluster | None = None
        self._closed = False
        forks.watch(self)

    def read(self, request: Request[Any]) -> Any:
        """Execute a request that changes nothing."""
        if isinstance(request, MeasureStorage):
            return self._footprint()
        if isinstance(request, LoadStorageFacts):
            return self._facts()
        return self._backend.answer(_ValkeyCallExecutor(self, durable=False), request)

    def _facts(self) -> Mapping[str, Any]:
        self.setup()
        with self._under_way():
            servers = self._reached()
            try:
                told = valkey_health.facts(
                    servers.primaries(), slots=servers.covered(), replicas_wanted=self._options.replicas
                )
            except (*_LOST, errors.RedisError) as error:
                raise Unavailable(f"the storage did not answer: {error}") from error
        return {**told, "read_only": self.read_only, "expires": self._backend.expires}

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        """Execute changes; commits side by side."""
        if self.read_only:
            raise ReadOnly
        executor = _ValkeyCallExecutor(self, durable=True)
        if not all(isinstance(request, Commit) for request in requests):
            return [answer(lambda each: self._backend.answer(executor, each), request) for request in requests]
        calls = [self._backend.commit_call(request.batch) for request in requests if isinstance(request, Commit)]
        return [attempt(lambda r=reply: self._backend.committed(_value(r))) for reply in self.send(calls, durable=True)]  # type: ignore[misc]

    def setup(self) -> None:
        """Reach the servers now."""
        _ValkeyCallExecutor(self, durable=False).call(self._backend.probe())

    def close(self) -> None:
        """Let what is under way finish, and let go of all connections."""
        with self._lock:
            self._closed = True
            self._at_rest.wait_for(lambda: not self._active, self._options.timeout)
            if self._servers is not None:
                self._servers.close()
            self._servers = None

    @contextmanager
    def _under_way(self) -> Iterator[None]:
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
        """No fork while connections are being made."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        """The child makes connections of its own; the parent's are the parent's."""
        if child:
            self._servers, self._active = None, 0
        self._lock.release()

    def send(self, calls: Sequence[Call], *, durable: bool) -> list[Any]:
        """What each call gives, or the error that it ends with. Tried again until the time is up, then Unavailable."""
        with self._under_way():
            return self._sent(calls, durable=durable)

    def _sent(self, calls: Sequence[Call], *, durable: bool) -> list[Any]:
        errands = waiting = [_PendingCall(call) for call in calls]
        deadline, pause = time.monotonic() + self._options.timeout, _SHORTEST
        while waiting:
            last: Exception | None = None
            try:
                servers = self._reached()
                self._exchange(servers, waiting, durable=durable)
                waiting = [errand for errand in waiting if _is_to_be_sent_again(servers, errand)]
                last = next((each.reply for each in waiting if isinstance(each.reply, (*_LOST, *_SOON))), None)
            except _HOPELESS as error:
                raise Unavailable(f"the storage refused: {error}") from error
            except _LOST as error:
                last = error
            if last is None:
                continue
            if time.monotonic() > deadline:
                raise Unavailable(f"the storage did not answer in time: {last}") from last
            if isinstance(last, _LOST):
                self._lost(next((each.silent for each in waiting if each.silent), None))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)
        return [errand.reply for errand in errands]

    def _footprint(self) -> StorageSize:
        """What the primaries have in memory, of others too. Tried again until the time is up, then Unavailable."""
        deadline = time.monotonic() + self._options.timeout
        with self._under_way():
            while True:
                try:
                    return _storage(self._reached().primaries())
                except _LOST as error:
                    if time.monotonic() > deadline:
                        raise Unavailable(f"the storage did not answer in time: {error}") from error
                except errors.RedisError as error:
                    raise Unavailable(f"the storage refused: {error}") from error
                self._lost(None)
                time.sleep(_LONGEST)

    def _lost(self, silent: str | None) -> None:
        """Another server may be there now, which never had what this one acknowledged."""
        self._on_loss()
        with suppress(*_LOST):
            self._reached().refresh(silent)

    def _reached(self) -> _SingleServer | _Cluster:
        """The servers; found at first use."""
        with self._lock:
            if self._servers is None:
                if self._closed:
                    raise Closed
                self._servers = _found(self._options)
            return self._servers

    def _exchange(self, servers: _SingleServer | _Cluster, errands: Iterable[_PendingCall], *, durable: bool) -> None:
        """Send errands to their servers, all at once, and collect the replies."""
        rounds: dict[int, _Pipeline] = {}
        for errand in errands:
            node = errand.node or servers.node(errand.call.keys[0])
            replicas = self._replicas(node) if durable else 0
            patience = int(self._options.answer * _WAITED * 1000)
            rounds.setdefault(id(node.client), _Pipeline(node.client, replicas, patience)).errands.append(errand)
        for each in rounds.values():
            each.send()
        for each in rounds.values():
            each.receive()

    def _replicas(self, node: _PrimaryNode) -> int:
        wanted = self._options.replicas
        return wanted if wanted is not None else min(node.replicas, 1)


class _ValkeyCallExecutor:
    """Executes calls for the backend."""

    def __init__(self, server: ValkeyServer, *, durable: bool) -> None:
        self._server = server
        self._durable = durable

    def call(self, call: Call) -> Any:
        """Execute one."""
        return self.calls([call])[0]

    def calls(self, calls: Sequence[Call]) -> list[Any]:
        """Execute several, side by side."""
        return [_value(reply) for reply in self._server.send(calls, durable=self._durable)]


@dataclass(slots=True, eq=False)
class _PendingCall:
    """A call, where to it is sent, and what came back: a value or an error."""

    call: Call
    node: _PrimaryNode | None = None
    as_text: bool = False
    reply: Any = None
    silent: str | None = None
    """The server that gave no answer."""

    def commands(self) -> list[tuple[Any, ...]]:
        """What is sent; only the last reply counts."""
        name, keys, args = self.call
        if name.islower():
            known = _script(name)
            told = ("EVAL", known.text) if self.as_text else ("EVALSHA", known.sha)
            command: tuple[Any, ...] = (*told, len(keys), *keys, *args)
        else:
            command = (name, *keys, *args)
        return [("ASKING",), command] if self.node is not None else [command]


class _Pipeline:
    """What goes to one server on one connection, and comes back."""

    def __init__(self, client: Redis, replicas: int, patience: int) -> None:
        self.errands: list[_PendingCall] = []
        self._patience = patience
        self._client = client
        self._replicas = replicas
        self._connection: Any = None

    def send(self) -> None:
        """Send all; a failure is the reply to each."""
        commands = [command for errand in self.errands for command in errand.commands()]
        if self._replicas:
            commands.append(("WAIT", self._replicas, self._patience))
        try:
            self._connection = self._client.connection_pool.get_connection()
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        except _LOST as error:
            self._fail(error, self.errands)

    def receive(self) -> None:
        """Collect all; after a failure nothing that comes is believed."""
        if self._connection is None:
            return
        left = list(self.errands)
        try:
            for errand in self.errands:
                for _ in range(1 if errand.node is None else 2):  # ASKING has a reply too
                    errand.reply = self._read()
                left.remove(errand)
            if self._replicas:
                self._check(self._read())
        except _LOST as error:
            self._fail(error, left or self.errands)
        finally:
            if self._connection is not None:
                self._client.connection_pool.release(self._connection)

    def _read(self) -> Any:
        try:
            return self._connection.read_response()
        except errors.ResponseError as error:
            return error

    def _check(self, acknowledged: Any) -> None:
        """Tell those who changed something if too few replicas have it."""
        if isinstance(acknowledged, int) and acknowledged >= self._replicas:
            return
        for errand in self.errands:
            if not isinstance(errand.reply, Exception):
                errand.reply = Unavailable(
                    f"written, but {acknowledged} of {self._replicas} replicas have acknowledged it: it may be lost"
                )

    def _fail(self, error: Exception, errands: Iterable[_PendingCall]) -> None:
        for errand in errands:
            errand.reply, errand.silent = error, _name(self._client)
        if self._connection is not None:
            self._connection.disconnect()


def _is_to_be_sent_again(servers: _SingleServer | _Cluster, errand: _PendingCall) -> bool:
    """Whether a reply says: elsewhere, in other words, or later."""
    reply = errand.reply
    errand.node = None
    if isinstance(reply, errors.NoScriptError):
        errand.as_text = True
    elif isinstance(reply, errors.MovedError):
        servers.moved(reply)
    elif isinstance(reply, errors.AskError):
        errand.node = servers.asked(reply)
    elif isinstance(reply, errors.ResponseError) and str(reply).startswith(_SOON_TOO):
        errand.reply = errors.TryAgainError(str(reply))
    elif isinstance(reply, _HOPELESS) or not isinstance(reply, (*_LOST, *_SOON)):
        return False
    return True


def _storage(primaries: Iterable[Primary]) -> StorageSize:
    """What servers say of themselves."""
    parts, keys = dict[str, int](), 0
    for name, client, _ in primaries:
        told: Any = client.info("memory")
        parts[name] = int(told["used_memory"])
        keys += int(client.dbsize())
    return StorageSize("valkey", sum(parts.values()), parts, keys=keys)


def _name(client: Redis) -> str:
    said = client.connection_pool.connection_kwargs
    return f"{said.get('host')}:{said.get('port')}"


def _value(reply: Any) -> Any:
    """A reply, or its error as ours. A script that stumbles has met a row that makes no sense."""
    if isinstance(reply, errors.ResponseError) and "attempt to " in str(reply):
        raise Corrupt(f"a stored row does not make sense: {reply}") from reply
    if isinstance(reply, errors.RedisError):
        raise Unavailable(f"the storage refused: {reply}") from reply
    if isinstance(reply, Exception):
        raise reply
    return reply


def _found(options: ValkeyOptions) -> _SingleServer | _Cluster:
    """Connect: to a cluster, if the first server that answers is in one."""
    limits = {"socket_timeout": options.answer, "socket_connect_timeout": min(options.answer, _CONNECTED)}
    settings: dict[str, Any] = {**limits, **options.settings, "protocol": 2}
    last: Exception | None = None
    for host, port in options.hosts:
        client = Redis(host=host, port=port, retry=Retry(NoBackoff(), 0), **settings)
        try:
            told: Any = client.info("cluster")
        except _HOPELESS:
            client.close()
            raise
        except _LOST as error:
            last = error
            client.close()
            continue
        if not told.get("cluster_enabled"):
            return _SingleServer(client)
        client.close()
        nodes: list[Any] = list(starmap(ClusterNode, options.hosts))
        return _Cluster(NodesManager(startup_nodes=nodes, require_full_coverage=False, **settings))
    raise last or errors.ConnectionError("no host")
