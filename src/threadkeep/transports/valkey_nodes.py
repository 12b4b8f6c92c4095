"""Valkey and Redis nodes: connect to one server or a cluster, and find the primary that has a key."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from inspect import signature
from itertools import starmap
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import redis
from redis import Redis
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, NodesManager
from redis.crc import key_slot
from redis.retry import Retry

from threadkeep.errors import Unavailable
from threadkeep.transports.valkey_health import Primary

try:
    from redis.driver_info import DriverInfo
except ImportError:  # older releases look their version up once, when they are imported
    _DRIVER_INFO: dict[str, Any] = {}
else:
    _DRIVER_INFO = {"driver_info": DriverInfo(lib_version=redis.__version__)}
    """What servers are told about the client. redis-py would read its own version from its files for every client."""

LOST = (errors.ConnectionError, errors.TimeoutError, errors.RedisClusterException, OSError)
"""The server did not answer. Another one may have taken its place."""
DENIED = (errors.AuthenticationError, errors.AuthorizationError, errors.NoPermissionError)
"""Retrying does not help."""
_REPLY_SECONDS = 3.0
"""How long a server may take to reply before the call is sent again, if need be to another one."""
_CONNECT_SECONDS = 1.8
"""How long connecting may take, for all hosts together: if none can be reached, callers know within three seconds."""
_FIRST_REPLY_SECONDS = 2.0
"""How long the first reply may take: callers want to know whether the address is right, not more."""
_NO_LIMIT = 2**20
"""redis-py refuses more than 100 connections by default; each caller that waits for a reply needs one."""
_slot_of: Callable[[bytes], int] = lru_cache(maxsize=8192)(key_slot)
_INITIALIZE_OPTIONS = signature(NodesManager.initialize).parameters


@dataclass(frozen=True, slots=True)
class ValkeyOptions:
    """How to reach the servers. `settings` are redis-py's. `replicas` None means: one, if the primary has any."""

    hosts: tuple[tuple[str, int], ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    replicas: int | None = None
    timeout: float = 30.0
    read_only: bool = False
    migrate: bool = True

    @property
    def reply_timeout(self) -> float:
        """Seconds that a server may take to reply."""
        return min(_REPLY_SECONDS, self.timeout)

    @property
    def addresses(self) -> str:
        """The hosts and ports, for messages."""
        return ", ".join(f"{host}:{port}" for host, port in self.hosts)


class IdleConnections:
    """Connections to one server that wait for their next use, to be lent in few steps. Each has one user at a time.

    redis-py's pool takes a lock and counts at each use. It would also lend a connection again whose greeting was
    interrupted by Ctrl-C; the reply to the greeting would then be taken for the reply to the first call.
    """

    def __init__(self, client: Redis) -> None:
        self._pool: Any = client.connection_pool
        self._idle: deque[Any] = deque()
        self._closed: deque[Any] = deque()
        self._all: set[Any] = set()

    def lend(self) -> Any:
        """Return a connection that is ready to send. A lost one is replaced."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._connect()
        try:
            if not connection.can_read():
                return connection
        except LOST:
            pass
        self.discard(connection)
        return self._connect()

    def _connect(self) -> Any:
        try:
            connection = self._closed.pop()
        except IndexError:
            connection = self._pool.make_connection()
        self._all.add(connection)
        try:
            connection.connect()
        except BaseException:
            self.discard(connection)
            raise
        return connection

    def take_back(self, connection: Any) -> None:
        """Keep a connection whose replies have all been read."""
        self._idle.append(connection)

    def discard(self, connection: Any) -> None:
        """Close a connection. It may be opened again."""
        connection.disconnect()
        self._closed.append(connection)

    def close(self) -> None:
        """Close all connections, also those that are in use."""
        for connection in list(self._all):
            connection.disconnect()


class Node(NamedTuple):
    """A primary. `lists_replicas` says whether the cluster lists replicas of it; it may have others."""

    client: Redis
    lists_replicas: bool
    name: str
    """Host and port."""
    connections: IdleConnections


class SingleServer:
    """One server that is not in a cluster."""

    patience: float | None = None
    """There is no other server whose calls might have to wait for this one."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._node = Node(client, lists_replicas=False, name=client_name(client), connections=IdleConnections(client))

    def primaries(self) -> list[Primary]:
        """Return the server."""
        return [Primary(self._node.name, self._client, 0)]

    def covered_slots(self) -> None:
        """Return None: there are no slots."""

    def node(self, key: bytes) -> Node:  # noqa: ARG002 - there is only one
        """Return the server."""
        return self._node

    def has(self, name: str, key: bytes) -> bool:  # noqa: ARG002 - there is only one
        """Return True: every key is on this server."""
        return True

    def refresh(self, unresponsive: str | None = None) -> None:
        """Do nothing: there is no other server."""

    def move_slot(self, error: errors.AskError) -> None:
        """Do nothing: a single server does not reply MOVED."""

    def importing_node(self, error: errors.AskError) -> Node:
        """Raise Unavailable: a single server does not reply ASK."""
        raise Unavailable(str(error)) from error

    def close(self) -> None:
        """Close all connections."""
        self._node.connections.close()
        self._client.close()


class Cluster:
    """A cluster, by redis-py's NodesManager.

    redis-py's own cluster client is not used: it asks a server for the list of all commands first, which takes longest.
    """

    patience = 1.0
    """Seconds that calls to other servers wait for one that does not reply."""

    def __init__(self, nodes: NodesManager) -> None:
        self._nodes = nodes
        self._by_slot: dict[int, Node] = {}
        """What `node` has returned. It is used as long as the slot table says the same."""
        self._connections: WeakKeyDictionary[Redis, IdleConnections] = WeakKeyDictionary()

    def primaries(self) -> list[Primary]:
        """Return the servers that have slots, and how many replicas the cluster lists for each."""
        by_name = {nodes[0].name: nodes for nodes in list(self._nodes.slots_cache.values()) if nodes}
        return [Primary(name, self._client(nodes[0]), len(nodes) - 1) for name, nodes in sorted(by_name.items())]

    def covered_slots(self) -> int:
        """Return how many slots have a server."""
        return sum(bool(nodes) for nodes in self._nodes.slots_cache.values())

    def node(self, key: bytes) -> Node:
        """Return the primary that has the slot of a key."""
        slot = _slot_of(key)
        nodes = self._nodes.slots_cache.get(slot)
        if not nodes:
            raise errors.SlotNotCoveredError(f"no server has slot {slot}")
        known, first, lists_replicas = self._by_slot.get(slot), nodes[0], len(nodes) > 1
        if known is None or known.client is not first.redis_connection or known.lists_replicas != lists_replicas:
            self._by_slot[slot] = known = self._node(self._client(first), lists_replicas=lists_replicas)
        return known

    def _node(self, client: Redis, *, lists_replicas: bool) -> Node:
        connections = self._connections.setdefault(client, IdleConnections(client))
        return Node(client, lists_replicas, client_name(client), connections)

    def has(self, name: str, key: bytes) -> bool:
        """Return whether the primary of that name has the slot of a key, as far as is known."""
        nodes = self._nodes.slots_cache.get(_slot_of(key))
        return not nodes or nodes[0].name == name

    def _client(self, node: Any) -> Redis:
        if node.redis_connection is None:
            connect: Callable[[list[Any]], None] = self._nodes.create_redis_connections
            connect([node])
        client: Redis = node.redis_connection
        return client

    def refresh(self, unresponsive: str | None = None) -> None:
        """Ask the servers which of them has which slots; ask the one that did not reply last."""
        # By default redis-py would also close the connections to the server that it asks, which others are using.
        wanted: dict[str, Any] = {"disconnect_startup_nodes_pools": False, "last_failed_node_name": unresponsive}
        self._nodes.initialize(**{name: value for name, value in wanted.items() if name in _INITIALIZE_OPTIONS})
        self._by_slot.clear()  # it may be the last to refer to servers that have left

    def move_slot(self, error: errors.AskError) -> None:
        """Record the new primary of a slot (MOVED)."""
        if error.slot_id in self._nodes.slots_cache:
            self._nodes.move_slot(error)
        else:
            self.refresh()

    def importing_node(self, error: errors.AskError) -> Node:
        """Return the server that is importing a slot (ASK)."""
        find: Callable[[], Any] = partial(self._nodes.get_node, error.host, error.port)
        node = find()
        if node is None:
            self.refresh()
            node = find()
        if node is None:
            raise errors.ConnectionError(f"unknown server {error.node_addr}")
        return self._node(self._client(node), lists_replicas=False)

    def close(self) -> None:
        """Close all connections."""
        for connections in list(self._connections.values()):
            connections.close()
        for node in list(self._nodes.nodes_cache.values()):
            if node.redis_connection is not None:
                node.redis_connection.close()


def client_name(client: Redis) -> str:
    """Return the host and port of a client."""
    arguments = client.connection_pool.connection_kwargs
    return f"{arguments.get('host')}:{arguments.get('port')}"


def connect(options: ValkeyOptions) -> SingleServer | Cluster:
    """Connect to the first host that answers, or to its cluster if it is in one."""
    limits = {
        "socket_timeout": options.reply_timeout,
        "socket_connect_timeout": min(options.reply_timeout, _CONNECT_SECONDS / len(options.hosts)),
        "max_connections": _NO_LIMIT,
    }
    settings: dict[str, Any] = {**limits, **_DRIVER_INFO, **options.settings, "protocol": 2}
    last: Exception | None = None
    for host, port in options.hosts:
        try:
            in_cluster = _is_in_cluster(host, port, settings)
        except DENIED:
            raise
        except LOST as error:
            last = error
            continue
        if not in_cluster:
            return SingleServer(Redis(host=host, port=port, retry=Retry(NoBackoff(), 0), **settings))
        nodes: list[Any] = list(starmap(ClusterNode, options.hosts))
        settings["redis_connect_func"] = _greet
        return Cluster(NodesManager(startup_nodes=nodes, require_full_coverage=False, **settings))
    raise last or errors.ConnectionError("no host")


def _greet(connection: Any) -> None:
    """Log in, on a new connection. Calls to other servers may be waiting."""
    connection._sock.settimeout(min(Cluster.patience, connection.socket_timeout))  # noqa: SLF001 - there is no other way
    connection.on_connect()
    connection._sock.settimeout(connection.socket_timeout)  # noqa: SLF001


def _is_in_cluster(host: str, port: int, settings: Mapping[str, Any]) -> bool:
    """Ask a server whether it is in a cluster."""
    limited = {**settings, "socket_timeout": min(settings["socket_timeout"], _FIRST_REPLY_SECONDS)}
    client = Redis(host=host, port=port, retry=Retry(NoBackoff(), 0), **limited)
    try:
        info: Any = client.info("cluster")
    finally:
        client.close()
    return bool(info.get("cluster_enabled"))
