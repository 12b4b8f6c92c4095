"""The operator's verbs of a Keep: look into threads, go back, let go, check, move. Sync and async, one plan for both.

Here arguments are read and plans are named; what the verbs do is in `engine/` and, where files and other databases are
involved, in `moving/`. The command line (`cli/`) says the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from threadkeep import desk as clock
from threadkeep import doctor, upkeep
from threadkeep.desk import Desk, as_count, draw, now
from threadkeep.doctor import Finding
from threadkeep.engine import catalogue, copy, prune, remembering, repair, verify
from threadkeep.engine.catalogue import ThreadInfo
from threadkeep.engine.health import Facts
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey, as_id
from threadkeep.engine.rebuilding import Replay
from threadkeep.engine.repair import Repaired, Wish
from threadkeep.engine.verify import Verified
from threadkeep.plan import Plan
from threadkeep.upkeep import Compacted
from threadkeep.work import Read, Tell, Work

_Change: TypeAlias = tuple[ThreadKey, Callable[[], Plan[None]]]
"""A thread, and the plan that changes it."""


class Operator:
    """What a person, or a program in their place, does with all threads of a Keep. Its subclass is the Keep."""

    _serde: Any
    """The Keep's serializer."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def sweep(self) -> int:
        """Remove what has expired; how many memories it were."""
        return self._desk.apart(lambda: remembering.sweep(clock.now_exactly()))

    async def asweep(self) -> int:
        """The same for async callers."""
        return await self._desk.aapart(lambda: remembering.sweep(clock.now_exactly()))

    def threads(
        self,
        *,
        limit: int = 50,
        after: str | ThreadInfo | None = None,
        prefix: str = "",
        metadata: Mapping[str, Any] | None = None,
        status: str | None = None,
        order: str = "updated",
        kind: str | None = None,
    ) -> list[ThreadInfo]:
        """A page of the thread catalogue, both kinds, read from the thread rows alone.

        `order` is updated, created or bytes (greatest first) or id; `after` is the last thread of the page before,
        best as its ThreadInfo. `metadata` compares with that of each thread's newest root checkpoint. One round trip.
        """
        query, wanted, last = self._query(limit, after, prefix, metadata, status, order, kind)
        return self._desk.runner.run(catalogue.threads(query, wanted, last))

    async def athreads(
        self,
        *,
        limit: int = 50,
        after: str | ThreadInfo | None = None,
        prefix: str = "",
        metadata: Mapping[str, Any] | None = None,
        status: str | None = None,
        order: str = "updated",
        kind: str | None = None,
    ) -> list[ThreadInfo]:
        """The same for async callers."""
        query, wanted, last = self._query(limit, after, prefix, metadata, status, order, kind)
        return await self._desk.runner.arun(lambda: catalogue.threads(query, wanted, last))

    def thread(self, thread_id: str, *, kind: str | None = None) -> ThreadInfo | None:
        """One thread of the catalogue, or None. `kind` is needed where both kinds have this id."""
        return self._desk.runner.run(self._info_of(thread_id, kind))

    async def athread(self, thread_id: str, *, kind: str | None = None) -> ThreadInfo | None:
        """The same for async callers."""
        return await self._desk.runner.arun(lambda: self._info_of(thread_id, kind))

    def _info_of(self, thread_id: str, kind: str | None) -> Plan[ThreadInfo | None]:
        return catalogue.thread(self._desk.tenant, as_id(thread_id, "thread_id"), _checked_kind(kind))

    def _query(
        self, limit: int, after: Any, prefix: str, metadata: Any, status: str | None, order: str, kind: str | None
    ) -> tuple[Any, Mapping[str, Any], str | None]:
        if metadata is not None and not (
            isinstance(metadata, Mapping) and all(isinstance(key, str) for key in metadata)
        ):
            raise TypeError(f"metadata must be a dict with str keys, not {metadata!r}")
        query = catalogue.query(
            self._desk.tenant, limit=as_count(limit, "limit"), after=after, prefix=as_id(prefix, "prefix"),
            metadata=metadata, status=status, order=order, kind=_checked_kind(kind),
        )  # fmt: skip
        last = None if after is None or isinstance(after, ThreadInfo) else as_id(after, "after")
        return query, dict(metadata or {}), last

    def delete(self, thread_id: str, *, kind: str | None = None) -> bool:
        """Remove a thread and all that it holds; whether it was there. `kind` is needed where both kinds have this id."""
        return self._change(thread_id, kind, self._deleting)

    async def adelete(self, thread_id: str, *, kind: str | None = None) -> bool:
        """The same for async callers."""
        return await self._achange(thread_id, kind, self._deleting)

    def copy(self, source_thread_id: str, target_thread_id: str, *, kind: str | None = None) -> bool:
        """Copy a thread with all its checkpoints; whether it was there. The copy survives it.

        Of a LangGraph thread, checkpoints that the target has stay; onto a CubeLoop thread that exists it is a
        ValueError.
        """
        return self._change(source_thread_id, kind, self._copying(target_thread_id))

    async def acopy(self, source_thread_id: str, target_thread_id: str, *, kind: str | None = None) -> bool:
        """The same for async callers."""
        return await self._achange(source_thread_id, kind, self._copying(target_thread_id))

    def prune(self, thread_id: str, *, kind: str | None = None) -> bool:
        """Keep only the latest checkpoint of each namespace, and what it needs; whether the thread was there."""
        return self._change(thread_id, kind, self._pruning)

    async def aprune(self, thread_id: str, *, kind: str | None = None) -> bool:
        """The same for async callers."""
        return await self._achange(thread_id, kind, self._pruning)

    def _deleting(self, key: ThreadKey) -> _Change:
        return key, lambda: prune.delete(self._desk.heads, key)

    def _pruning(self, key: ThreadKey) -> _Change:
        return key, lambda: prune.prune(self._desk.heads, key, prune.KEEP_LATEST, draw())

    def _copying(self, target_thread_id: str) -> Callable[[ThreadKey], _Change]:
        id = as_id(target_thread_id, "target_thread_id")

        def of(source: ThreadKey) -> _Change:
            target = self._desk.key(source.kind, id)
            return target, lambda: copy.copy(self._desk.heads, source, target, now(), draw())

        return of

    def _change(self, thread_id: str, kind: str | None, change: Callable[[ThreadKey], _Change]) -> bool:
        """Change a thread, if it is there."""
        key = self._desk.runner.run(self._key_of(thread_id, kind))
        if key is not None:
            self._desk.exclusive(*change(key))
        return key is not None

    async def _achange(self, thread_id: str, kind: str | None, change: Callable[[ThreadKey], _Change]) -> bool:
        key = await self._desk.runner.arun(lambda: self._key_of(thread_id, kind))
        if key is not None:
            await self._desk.aexclusive(*change(key))
        return key is not None

    # -- Health --

    def verify(
        self,
        thread_id: str | None = None,
        *,
        prefix: str = "",
        kind: str | None = None,
        on_progress: Tell | None = None,
    ) -> Verified:
        """Check what is stored: every checksum, reference, parent, value and count; of one thread, some, or all there is.

        Problems are collected, never raised; nothing is changed. Without any argument the memories and the storage
        itself are checked too. `on_progress` is called with (done, total, what) before each thread.
        """
        return self._desk.work(self._verifying(thread_id, prefix, kind), on_progress)

    async def averify(
        self,
        thread_id: str | None = None,
        *,
        prefix: str = "",
        kind: str | None = None,
        on_progress: Tell | None = None,
    ) -> Verified:
        """The same for async callers."""
        return await self._desk.awork(self._verifying(thread_id, prefix, kind), on_progress)

    def _verifying(self, thread_id: str | None, prefix: str, kind: str | None) -> Work[Verified]:
        prefix, kind = as_id(prefix, "prefix"), _checked_kind(kind)
        if thread_id is None:
            vectors = self._desk.vectors
            return upkeep.verifying(self._desk.tenant, prefix, kind, vectors.dims if vectors is not None else None)
        if prefix:
            raise ValueError("say a thread or a prefix, not both")
        return self._verifying_one(as_id(thread_id, "thread_id"), kind)

    def _verifying_one(self, id: str, kind: str | None) -> Work[Verified]:
        key = yield Read(lambda: self._known(id, kind))
        return (yield from upkeep.verifying_thread(key))

    def repair(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        ns: str = "",
        graph: Any = None,
        dry_run: bool = False,
        kind: str | None = None,
    ) -> Repaired:
        """Rebuild a damaged checkpoint as a new branch, from what is left of it, its ancestors and the stored writes.

        Without `checkpoint_id` the newest one, if it does not verify; an older one must be named, since the branch becomes
        the latest. With a compiled LangGraph `graph` its own channels
        take the writes in, else the default merge does (lists are added up, dicts merged, else the last value counts).
        Nothing is overwritten or removed; what it had to assume stands in the answer. `Corrupt` if nothing is left.
        """
        key = self._desk.runner.run(self._known(thread_id, kind))
        return self._desk.exclusive(key, self._repairing(key, checkpoint_id, ns, graph, dry_run=dry_run))

    async def arepair(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        ns: str = "",
        graph: Any = None,
        dry_run: bool = False,
        kind: str | None = None,
    ) -> Repaired:
        """The same for async callers."""
        key = await self._desk.runner.arun(lambda: self._known(thread_id, kind))
        return await self._desk.aexclusive(key, self._repairing(key, checkpoint_id, ns, graph, dry_run=dry_run))

    def _known(self, thread_id: str, kind: str | None) -> Plan[ThreadKey]:
        return verify.known(self._desk.tenant, as_id(thread_id, "thread_id"), _checked_kind(kind))

    def _repairing(
        self, key: ThreadKey, checkpoint_id: str | None, ns: str, graph: Any, *, dry_run: bool
    ) -> Callable[[], Plan[Repaired]]:
        from langgraph.checkpoint.base.id import uuid6  # noqa: PLC0415 - it imports LangChain

        ref = as_id(checkpoint_id, "checkpoint_id") if checkpoint_id is not None else None
        if key.kind == CUBE and (ns or graph is not None):
            raise ValueError(f"thread {key.id!r} is CubeLoop's: it has neither namespaces nor a graph")
        replay = self._replaying(graph) if graph is not None else None
        wish = Wish(ref, as_id(ns, "ns"), str(uuid6()), now(), datetime.now(UTC).isoformat(), draw(), dry_run)
        return lambda: repair.repair(self._desk.heads, key, wish, replay)

    def _replaying(self, graph: Any) -> Callable[[], Replay]:
        from threadkeep.adapters.replaying import GraphReplay  # noqa: PLC0415 - it imports LangGraph

        saver = getattr(graph, "checkpointer", None)
        replay = GraphReplay(graph, getattr(saver, "serde", None) or self._serde)
        return lambda: replay

    def doctor(self) -> list[Finding]:
        """What is to know of the storage and how it is used, with a verdict and advice on each fact. Nothing is changed."""
        return doctor.findings(self._desk.runner.run(verify.asked(Facts())), tenant=self._desk.tenant)

    async def adoctor(self) -> list[Finding]:
        """The same for async callers."""
        facts = await self._desk.runner.arun(lambda: verify.asked(Facts()))
        return doctor.findings(facts, tenant=self._desk.tenant)

    def compact(self, *, on_progress: Tell | None = None) -> Compacted:
        """Free items that nothing refers to, then have the storage give space back that it does not need.

        Harmless beside others; SQLite is `Unavailable`, with nothing changed, while others read or write it for longer
        than `timeout`.
        """
        return self._desk.work(upkeep.compacting(self._desk.heads, self._desk.tenant, draw), on_progress)

    async def acompact(self, *, on_progress: Tell | None = None) -> Compacted:
        """The same for async callers."""
        return await self._desk.awork(upkeep.compacting(self._desk.heads, self._desk.tenant, draw), on_progress)

    def _key_of(self, thread_id: str, kind: str | None) -> Plan[ThreadKey | None]:
        return catalogue.key_of(self._desk.tenant, as_id(thread_id, "thread_id"), _checked_kind(kind))


def _checked_kind(kind: str | None) -> str | None:
    if kind not in (None, GRAPH, CUBE):
        raise ValueError(f"kind must be {GRAPH} or {CUBE}, not {kind!r}")
    return kind
