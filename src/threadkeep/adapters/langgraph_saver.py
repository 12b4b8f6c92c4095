"""LangGraph's checkpointer (BaseCheckpointSaver), sync and async on one object."""

from __future__ import annotations

import builtins
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from random import random
from typing import TYPE_CHECKING, Any, Self, Unpack

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import maybe_add_typed_methods
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep import keep
from threadkeep.adapters.langgraph_config import (
    LEASE_TOKEN,
    ConfigTarget,
    before_id,
    config_of,
    run_of,
    stored_metadata,
    target_of,
)
from threadkeep.clock import nonce, now_ms
from threadkeep.engine import threads
from threadkeep.engine.identity import GRAPH, ThreadKey, as_count, as_id, as_ids
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.itemlog import new_tuple
from threadkeep.engine.log.type_gate import Name, with_type_gate
from threadkeep.engine.threads import checkpoints, listing
from threadkeep.engine.threads.checkpoints import CheckpointState
from threadkeep.engine.threads.delta_history import ChannelHistory, delta_history
from threadkeep.engine.threads.listing import ListQuery
from threadkeep.engine.threads.ops import Put, PutWrites
from threadkeep.keep import OpenOptions
from threadkeep.session import Session
from threadkeep.urls import StorageUrl

if TYPE_CHECKING:
    from threadkeep.adapters.from_conn_string import KeepContext
    from threadkeep.engine.log.upcasters import Upcaster

_value = itemgetter(1)
_STR = {str}
_damage_logger = logging.getLogger("threadkeep.damage")


class KeepSaver(BaseCheckpointSaver[Any]):
    """LangGraph's checkpointer on a Keep. Get one from `Keep.checkpointer` or `KeepSaver.from_conn_string(url)`."""

    def __init__(self, session: Session, *, serde: Any, upcasters: Mapping[Name, Upcaster] | None = None) -> None:
        super().__init__(serde=serde)
        self._session = session
        self._upcasters = upcasters
        self._cached_codec: Codec | None = None

    @classmethod
    def from_conn_string(cls, url: StorageUrl, **options: Unpack[OpenOptions]) -> KeepContext[KeepSaver]:
        """Return a saver for `with` or `async with`. Takes the options of `threadkeep.open`."""
        inspect.signature(keep.open).bind(url, **options)  # so that an unknown option is a TypeError here, not later
        from threadkeep.adapters.from_conn_string import KeepContext  # noqa: PLC0415 - few programs need it

        return KeepContext(partial(keep.open, url, **options), lambda opened: opened.checkpointer)

    def setup(self) -> Awaitable[None]:
        """Set up the storage now instead of at first use. The result may be awaited."""
        return self._session.setup()

    def _codec(self) -> Codec:
        """Return the codec of the current serializer; a caller may have replaced `serde`."""
        serde = self.serde
        if self._cached_codec is None or self._cached_codec.given is not serde:
            self._cached_codec = Codec(
                maybe_add_typed_methods(serde),
                given=serde,
                cache_bytes=self._session.cache_bytes,
                upcasters=self._upcasters,
            )
        return self._cached_codec

    def _key(self, thread: str) -> ThreadKey:
        return new_tuple(ThreadKey, (self._session.tenant, GRAPH, thread))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the latest of its namespace; None if there is none.

        One round trip.
        """
        target, codec = target_of(config), self._codec()
        plan = checkpoints.get(self._session.heads, codec, self._key(target.thread), target.ns or "", target.id)
        return _optional_tuple(self._session.runner.run(plan))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Async version of `get_tuple`."""
        target, codec = target_of(config), self._codec()
        key = self._key(target.thread)
        state = await self._session.runner.arun(
            lambda: checkpoints.get(self._session.heads, codec, key, target.ns or "", target.id)
        )
        return _optional_tuple(state)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a thread, or of all threads if config is None, newest id first.

        They are read in slices: one round trip each, and one more if a checkpoint has writes or is not cached. Nothing
        is held open between two checkpoints. A damaged checkpoint is left out, and a warning on the logger
        `threadkeep.damage` names it.
        """
        query, codec = self._query(config, filter, before, limit), self._codec()
        return self._pages(query, codec)

    def _pages(self, query: ListQuery | None, codec: Codec) -> Iterator[CheckpointTuple]:
        session, heads = self._session, self._session.heads
        while query is not None and query.limit != 0:
            era, scanned = heads.era, session.read(query.scan)
            selection = listing.select(heads, codec, query, era, scanned)
            page = listing.page_of(query, selection)
            if page is None:
                page = session.runner.run(listing.load_page(heads, codec, query, selection))
            states, query, damaged = page
            if damaged:
                _warn_of_damage(damaged)
            yield from map(_checkpoint_tuple, states)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Async version of `list`."""
        heads, codec = self._session.heads, self._codec()
        query: ListQuery | None = self._query(config, filter, before, limit)
        while query is not None:
            states, query, damaged = await self._session.runner.arun(partial(listing.page, heads, codec, query))
            _warn_of_damage(damaged)
            for state in states:
                yield _checkpoint_tuple(state)

    def _query(self, config: Any, filter: Any, before: Any, limit: Any) -> ListQuery:
        target = target_of(config) if config is not None else None
        if filter is not None and (
            not isinstance(filter, (dict, Mapping))
            or not (set(map(type, filter)) <= _STR or all(isinstance(key, str) for key in filter))
        ):
            raise TypeError(f"filter must be a dict with str keys, not {type(filter).__name__}")
        return listing.query(
            self._session.tenant,
            GRAPH,
            thread=target.thread if target else None,
            ns=target.ns if target else None,
            id=target.id if target else None,
            before=before_id(before),
            filter=dict(filter or {}),
            limit=as_count(limit, "limit") if limit is not None else None,
        )

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and return its config. One with the same id is replaced and keeps its writes.

        One round trip if the thread is cached.
        """
        target = target_of(config)
        op = self._put(target, config, checkpoint, metadata, new_versions)
        self._session.change(new_tuple(ThreadKey, (self._session.tenant, GRAPH, target.thread)), op)
        return config_of(target.thread, target.ns or "", checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Async version of `put`."""
        target = target_of(config)
        _check_checkpoint_id(checkpoint)
        make = partial(self._put, target, config, checkpoint, metadata, new_versions)
        await self._session.achange(self._key(target.thread), make)
        return config_of(target.thread, target.ns or "", checkpoint["id"])

    def _put(
        self,
        target: ConfigTarget,
        config: RunnableConfig,
        checkpoint: Any,
        metadata: CheckpointMetadata,
        versions: Any,
    ) -> Put:
        if type(checkpoint) is not dict or type(checkpoint.get("id")) is not str:
            _check_checkpoint_id(checkpoint)
        stored = stored_metadata(config, metadata)
        op = Put(
            self._codec(), target.ns or "", target.id, checkpoint, stored, versions or {}, now_ms(), nonce(),
            inherits=True,
        )  # fmt: skip
        if LEASE_TOKEN in config["configurable"]:
            op.lease = self._session.use_token(config["configurable"][LEASE_TOKEN])
        return op

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the pending writes of a task on the checkpoint that the config names.

        If a task puts writes twice, regular ones stay as first stored; special ones (errors, interrupts, …) are
        replaced. One round trip if the thread is cached.
        """
        target = target_of(config)
        op = self._put_writes(target, config, writes, task_id, task_path)
        self._session.change(new_tuple(ThreadKey, (self._session.tenant, GRAPH, target.thread)), op)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Async version of `put_writes`."""
        target = target_of(config)
        _check_writes(target, task_id, task_path)
        make = partial(self._put_writes, target, config, writes, task_id, task_path)
        await self._session.achange(self._key(target.thread), make)

    def _put_writes(
        self, target: ConfigTarget, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str, path: str
    ) -> PutWrites:
        if type(task) is not str or type(path) is not str or target.id is None:
            _check_writes(target, task, path)
        encoded = []
        try:
            values = self._codec().encode_all(map(_value, writes))
        except IndexError:
            raise TypeError("writes must be (channel, value) pairs") from None
        for idx, ((channel, _), value) in enumerate(zip(writes, values, strict=True)):
            encoded.append((WRITES_IDX_MAP.get(channel, idx), channel, value))
        op = PutWrites(
            target.ns or "", target.id or "", str(task), str(path), run_of(config), encoded, now_ms(), nonce()
        )
        if LEASE_TOKEN in config["configurable"]:
            op.lease = self._session.use_token(config["configurable"][LEASE_TOKEN])
        return op

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with everything in it. Does nothing if there is none. One round trip."""
        self._session.drop(self._key(as_id(thread_id, "thread_id")))

    async def adelete_thread(self, thread_id: str) -> None:
        """Async version of `delete_thread`."""
        key = self._key(as_id(thread_id, "thread_id"))
        await self._session.aexclusive(key, lambda: threads.prune.delete(self._session.heads, key))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs, and their writes on checkpoints of other runs.

        Checkpoints that delta channels of later ones need are hidden instead. One commit per thread.
        """
        runs = frozenset(as_ids(run_ids, "run_ids"))
        if not runs:
            return
        for key in self._session.runner.run(self._threads_of_runs(runs)):
            self._session.exclusive(key, self._delete_runs(key, runs))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Async version of `delete_for_runs`."""
        runs = frozenset(as_ids(run_ids, "run_ids"))
        if not runs:
            return
        for key in await self._session.runner.arun(lambda: self._threads_of_runs(runs)):
            await self._session.aexclusive(key, self._delete_runs(key, runs))

    async def _threads_of_runs(self, runs: frozenset[str]) -> tuple[ThreadKey, ...]:
        """Return the threads of these runs."""
        return await threads.prune.threads_of_runs(self._session.tenant, GRAPH, runs)

    def _delete_runs(self, key: ThreadKey, runs: frozenset[str]) -> Callable[[], Any]:
        return lambda: threads.prune.delete_runs(self._session.heads, key, runs, nonce())

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread into another.

        Checkpoints that the target already has stay as they are. The copy does not depend on its source. Raise Corrupt,
        and copy nothing, if anything in the source is damaged.
        """
        target, make = self._copy(source_thread_id, target_thread_id)
        self._session.exclusive(target, make)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Async version of `copy_thread`."""
        target, make = self._copy(source_thread_id, target_thread_id)
        await self._session.aexclusive(target, make)

    def _copy(self, source: str, target: str) -> tuple[ThreadKey, Callable[[], Any]]:
        source_key = self._key(as_id(source, "source_thread_id"))
        target_key = self._key(as_id(target, "target_thread_id"))
        return target_key, lambda: threads.copy.copy(self._session.heads, source_key, target_key, now_ms(), nonce())

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the latest checkpoint of each namespace (`keep_latest`), or nothing (`delete`, `delete_all`).

        Older checkpoints that delta channels need are hidden instead of deleted. One commit per thread.
        """
        for key in self._keys_to_prune(thread_ids, strategy):
            self._session.exclusive(key, self._prune(key, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Async version of `prune`."""
        for key in self._keys_to_prune(thread_ids, strategy):
            await self._session.aexclusive(key, self._prune(key, strategy))

    def _prune(self, key: ThreadKey, strategy: str) -> Callable[[], Any]:
        return lambda: threads.prune.prune(self._session.heads, key, strategy, nonce())

    def _keys_to_prune(self, thread_ids: Sequence[str], strategy: str) -> builtins.list[ThreadKey]:
        if strategy not in threads.prune.STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(threads.prune.STRATEGIES)}, not {strategy!r}")
        return [self._key(thread) for thread in as_ids(thread_ids, "thread_ids")]

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the nearest stored value of each delta channel and the writes since, along the chain of parents.

        Two or three round trips.
        """
        make = self._delta_history(config, channels)
        return _delta_histories(self._session.runner.run(make())) if channels else {}

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Async version of `get_delta_channel_history`."""
        make = self._delta_history(config, channels)
        return _delta_histories(await self._session.runner.arun(make)) if channels else {}

    def _delta_history(self, config: RunnableConfig, channels: Sequence[str]) -> Callable[[], Any]:
        target, codec, names = target_of(config), self._codec(), tuple(channels)
        key = self._key(target.thread)
        return lambda: delta_history(self._session.heads, codec, key, target.ns or "", target.id, names)

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ARG002 - LangGraph's signature
        """Return the next version: an int, or a str if the current one is (threads imported from other savers)."""
        if current is None:
            return 1
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.{random():016}"  # noqa: S311 - as LangGraph's savers do
        return current + 1

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return a saver on the same data that also rebuilds these types.

        It rebuilds LangGraph's safe types, those allowed before, and these; no others.
        """
        serde = _restrict_types(self.serde, extra_allowlist)
        if serde is self.serde:
            return self
        clone = type(self).__new__(type(self))
        clone.__dict__.update(self.__dict__)
        clone.serde = serde
        return clone


def _check_checkpoint_id(checkpoint: Any) -> None:
    if not isinstance(checkpoint, Mapping):
        raise TypeError(f"a checkpoint must be a dict, not {type(checkpoint).__name__}")
    id = checkpoint.get("id")
    if not isinstance(id, str):
        raise TypeError(f"checkpoint['id'] must be a str, not {type(id).__name__}")


def _check_writes(target: ConfigTarget, task: Any, path: Any) -> None:
    if target.id is None:
        raise ValueError("put_writes needs config['configurable']['checkpoint_id']")
    as_id(task, "task_id")
    as_id(path, "task_path")


def _restrict_types(serde: Any, extra: Collection[tuple[str, ...]]) -> Any:
    if isinstance(serde, EncryptedSerializer):
        return EncryptedSerializer(serde.cipher, _restrict_types(serde.serde, extra))
    if isinstance(serde, JsonPlusSerializer):
        return with_type_gate(serde).with_msgpack_allowlist(extra)
    return serde


def _warn_of_damage(damaged: Iterable[str]) -> None:
    for message in damaged:
        _damage_logger.warning("%s; see `threadkeep verify` and `threadkeep repair`", message)


def _optional_tuple(state: CheckpointState | None) -> CheckpointTuple | None:
    return _checkpoint_tuple(state) if state is not None else None


def _checkpoint_tuple(state: CheckpointState) -> CheckpointTuple:
    key, ns, id, parent, checkpoint, metadata, writes = state
    parent_config = config_of(key.id, ns, parent) if parent is not None else None
    return new_tuple(CheckpointTuple, (config_of(key.id, ns, id), checkpoint, metadata, parent_config, writes))


def _delta_histories(found: Mapping[str, ChannelHistory]) -> dict[str, DeltaChannelHistory]:
    histories: dict[str, DeltaChannelHistory] = {}
    for channel, (seeds, writes) in found.items():
        histories[channel] = {"writes": writes}
        if seeds:
            histories[channel]["seed"] = seeds[0]
    return histories
