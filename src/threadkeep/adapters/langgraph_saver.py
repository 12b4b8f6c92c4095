"""LangGraph's checkpointer: the complete base class, sync and async on one object."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from random import random
from typing import Any, Self, Unpack, cast

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
from threadkeep.adapters.from_conn_string import KeepContext
from threadkeep.adapters.langgraph_config import ConfigTarget, before_id, config_of, run_of, stored_metadata, target_of
from threadkeep.clock import nonce, now_ms
from threadkeep.engine.identity import GRAPH, ThreadKey, as_count, as_id, as_ids
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.type_gate import gated
from threadkeep.engine.threads import checkpoints, copy, listing, prune
from threadkeep.engine.threads.checkpoints import CheckpointState
from threadkeep.engine.threads.ops import Put, PutWrites
from threadkeep.keep import OpenOptions
from threadkeep.session import Session


class KeepSaver(BaseCheckpointSaver[Any]):
    """LangGraph's checkpointer on a Keep. Made by `Keep.checkpointer` or `KeepSaver.from_conn_string(url)`."""

    def __init__(self, session: Session, *, serde: Any) -> None:
        super().__init__(serde=serde)
        self._session = session
        self._codec_kept: Codec | None = None

    @classmethod
    def from_conn_string(cls, url: str, **options: Unpack[OpenOptions]) -> KeepContext[KeepSaver]:
        """A saver to use in `with` or `async with`; options as for `threadkeep.open`."""
        inspect.signature(keep.open).bind(url, **options)  # an option that there is not is a TypeError here, not later
        return KeepContext(partial(keep.open, url, **options), lambda opened: opened.checkpointer)

    def setup(self) -> Awaitable[None]:
        """Set the storage up now instead of at first use; may be awaited."""
        return self._session.setup()

    def _codec(self) -> Codec:
        """The codec of the serializer as it is now."""
        serde = self.serde
        if self._codec_kept is None or self._codec_kept.given is not serde:
            self._codec_kept = Codec(maybe_add_typed_methods(serde), given=serde)
        return self._codec_kept

    def _key(self, thread: str) -> ThreadKey:
        return self._session.key(GRAPH, thread)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the latest of its namespace. One round trip."""
        at, codec = target_of(config), self._codec()
        plan = checkpoints.get(self._session.heads, codec, self._key(at.thread), at.ns or "", at.id)
        return _optional_tuple(self._session.runner.run(plan))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The same for async callers."""
        at, codec = target_of(config), self._codec()
        key = self._key(at.thread)
        found = await self._session.runner.arun(
            lambda: checkpoints.get(self._session.heads, codec, key, at.ns or "", at.id)
        )
        return _optional_tuple(found)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints by id, newest first, of a thread or (config None) of all. Nothing is held between two of them."""
        query, codec = self._query(config, filter, before, limit), self._codec()
        return self._listed(query, codec)

    def _listed(self, query: listing.ListQuery | None, codec: Codec) -> Iterator[CheckpointTuple]:
        while query is not None:
            states, query = self._session.runner.run(listing.page(self._session.heads, codec, query))
            yield from map(_checkpoint_tuple, states)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """The same for async callers."""
        query: listing.ListQuery | None = self._query(config, filter, before, limit)
        codec = self._codec()
        while query is not None:
            states, query = await self._session.runner.arun(lambda q=query: listing.page(self._session.heads, codec, q))  # type: ignore[misc]
            for state in states:
                yield _checkpoint_tuple(state)

    def _query(self, config: Any, filter: Any, before: Any, limit: Any) -> listing.ListQuery:
        at = target_of(config) if config is not None else ConfigTarget(None, None, None)  # type: ignore[arg-type]
        if filter is not None and not (isinstance(filter, Mapping) and all(isinstance(key, str) for key in filter)):
            raise TypeError(f"filter must be a dict with str keys, not {filter!r}")
        return listing.query(
            self._session.tenant, GRAPH, thread=at.thread, ns=at.ns, id=at.id, before=before_id(before),
            filter=dict(filter or {}), limit=as_count(limit, "limit") if limit is not None else None,
        )  # fmt: skip

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; one of the same id is replaced and keeps its writes. One round trip when warm."""
        at = target_of(config)
        self._session.change(self._key(at.thread), self._put(at, config, checkpoint, metadata, new_versions))
        return config_of(at.thread, at.ns or "", checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """The same for async callers."""
        at = target_of(config)
        await self._session.achange(self._key(at.thread), self._put(at, config, checkpoint, metadata, new_versions))
        return config_of(at.thread, at.ns or "", checkpoint["id"])

    def _put(
        self,
        at: ConfigTarget,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        versions: Any,
    ) -> Callable[[], Put]:
        codec = self._codec()
        given = cast("Mapping[str, Any]", checkpoint)
        if not isinstance(given.get("id"), str):
            raise TypeError(f"checkpoint['id'] must be a str, not {type(given.get('id')).__name__}")
        ns, parent, new = at.ns or "", at.id, versions or {}
        return lambda: Put(
            codec, ns, parent, given, stored_metadata(config, metadata), new, now_ms(), nonce(), inherits=True
        )

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store writes of a task; of a regular one the first stays, of a special one the last. One round trip."""
        key, make = self._put_writes(config, writes, task_id, task_path)
        self._session.change(key, make)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """The same for async callers."""
        key, make = self._put_writes(config, writes, task_id, task_path)
        await self._session.achange(key, make)

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> tuple[ThreadKey, Callable[[], PutWrites]]:
        at, codec = target_of(config), self._codec()
        if at.id is None:
            raise ValueError("put_writes needs config['configurable']['checkpoint_id']")
        id, task, path = at.id, as_id(task_id, "task_id"), as_id(task_path, "task_path")

        def make() -> PutWrites:
            encoded = [
                (WRITES_IDX_MAP.get(channel, idx), channel, codec.encode(value))
                for idx, (channel, value) in enumerate(writes)
            ]
            return PutWrites(at.ns or "", id, task, path, run_of(config), encoded, now_ms(), nonce())

        return self._key(at.thread), make

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread and all that it holds. One round trip."""
        key = self._key(as_id(thread_id, "thread_id"))
        self._session.exclusive(key, lambda: prune.delete(self._session.heads, key))

    async def adelete_thread(self, thread_id: str) -> None:
        """The same for async callers."""
        key = self._key(as_id(thread_id, "thread_id"))
        await self._session.aexclusive(key, lambda: prune.delete(self._session.heads, key))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove what these runs left: their checkpoints, and their writes on others' checkpoints.

        Ancestors that later checkpoints' delta channels need are hidden instead. One commit a thread.
        """
        runs = frozenset(as_ids(run_ids, "run_ids"))
        for key in self._session.runner.run(prune.threads_of_runs(self._session.tenant, GRAPH, runs)) if runs else ():
            self._session.exclusive(key, self._without_runs(key, runs))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """The same for async callers."""
        runs = frozenset(as_ids(run_ids, "run_ids"))
        if not runs:
            return
        keys = await self._session.runner.arun(lambda: prune.threads_of_runs(self._session.tenant, GRAPH, runs))
        for key in keys:
            await self._session.aexclusive(key, self._without_runs(key, runs))

    def _without_runs(self, key: ThreadKey, runs: frozenset[str]) -> Callable[[], Any]:
        return lambda: prune.delete_runs(self._session.heads, key, runs, nonce())

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes; those that the target has stay. The copy survives its source."""
        target, make = self._copy(source_thread_id, target_thread_id)
        self._session.exclusive(target, make)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """The same for async callers."""
        target, make = self._copy(source_thread_id, target_thread_id)
        await self._session.aexclusive(target, make)

    def _copy(self, source: str, target: str) -> tuple[ThreadKey, Callable[[], Any]]:
        source_key = self._key(as_id(source, "source_thread_id"))
        target_key = self._key(as_id(target, "target_thread_id"))
        return target_key, lambda: copy.copy(self._session.heads, source_key, target_key, now_ms(), nonce())

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the latest checkpoint of each namespace (`keep_latest`), or nothing (`delete`, `delete_all`).

        What delta channels need of older ones is hidden instead of removed. One commit a thread.
        """
        for key in self._pruned(thread_ids, strategy):
            self._session.exclusive(key, lambda k=key: prune.prune(self._session.heads, k, strategy, nonce()))  # type: ignore[misc]

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """The same for async callers."""
        for key in self._pruned(thread_ids, strategy):
            await self._session.aexclusive(key, lambda k=key: prune.prune(self._session.heads, k, strategy, nonce()))  # type: ignore[misc]

    def _pruned(self, thread_ids: Sequence[str], strategy: str) -> builtins.list[ThreadKey]:
        if strategy not in prune.STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(prune.STRATEGIES)}, not {strategy!r}")
        return [self._key(thread) for thread in as_ids(thread_ids, "thread_ids")]

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Writes and nearest stored value of delta channels, following parents. Two or three round trips."""
        make = self._delta_history(config, channels)
        return _delta_histories(self._session.runner.run(make())) if channels else {}

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The same for async callers."""
        make = self._delta_history(config, channels)
        return _delta_histories(await self._session.runner.arun(make)) if channels else {}

    def _delta_history(self, config: RunnableConfig, channels: Sequence[str]) -> Callable[[], Any]:
        at, codec, names = target_of(config), self._codec(), tuple(channels)
        key = self._key(at.thread)
        return lambda: listing.delta_history(self._session.heads, codec, key, at.ns or "", at.id, names)

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ARG002 - LangGraph's signature
        """The version after this one: integers, unless the thread came with strings, which go on as strings."""
        if current is None:
            return 1
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}.{random():016}"  # noqa: S311 - as LangGraph's savers do
        return current + 1

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """A saver on the same data that rebuilds only LangGraph's safe types, those allowed before, and these."""
        serde = _restrict_types(self.serde, extra_allowlist)
        if serde is self.serde:
            return self
        clone = type(self).__new__(type(self))
        clone.__dict__.update(self.__dict__)
        clone.serde = serde
        return clone


def _restrict_types(serde: Any, extra: Collection[tuple[str, ...]]) -> Any:
    if isinstance(serde, EncryptedSerializer):
        return EncryptedSerializer(serde.cipher, _restrict_types(serde.serde, extra))
    if isinstance(serde, JsonPlusSerializer):
        return gated(serde).with_msgpack_allowlist(extra)
    return serde


def _optional_tuple(state: CheckpointState | None) -> CheckpointTuple | None:
    return _checkpoint_tuple(state) if state is not None else None


def _checkpoint_tuple(state: CheckpointState) -> CheckpointTuple:
    thread = state.key.id
    return CheckpointTuple(
        config=config_of(thread, state.ns, state.id),
        checkpoint=cast("Checkpoint", state.checkpoint),
        metadata=cast("CheckpointMetadata", state.metadata),
        parent_config=config_of(thread, state.ns, state.parent) if state.parent is not None else None,
        pending_writes=state.writes,
    )


def _delta_histories(found: Mapping[str, listing.ChannelHistory]) -> dict[str, DeltaChannelHistory]:
    told: dict[str, DeltaChannelHistory] = {}
    for channel, (seeds, writes) in found.items():
        told[channel] = {"writes": writes}
        if seeds:
            told[channel]["seed"] = seeds[0]
    return told
