"""The operator's verbs of a Keep: look into threads, go back, let go, check, move. Sync and async, one plan for both.

Here arguments are read and plans are named; what the verbs do is in `engine/` and, where files and other databases are
involved, in `moving/`. The command line (`cli/`) says the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from threadkeep import branching, sweeping
from threadkeep.desk import Desk, as_count, draw, now
from threadkeep.engine import catalogue, copy, prune
from threadkeep.engine.branch import Branch
from threadkeep.engine.catalogue import ThreadInfo
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey, as_id
from threadkeep.engine.retention import Policy, Pruned, Swept
from threadkeep.plan import Plan
from threadkeep.policies import Retention, policies
from threadkeep.work import Tell, Work

_Change: TypeAlias = tuple[ThreadKey, Callable[[], Plan[None]]]
"""A thread, and the plan that changes it."""


class Operator:
    """What a person, or a program in their place, does with all threads of a Keep. Its subclass is the Keep."""

    def __init__(self, desk: Desk, retention: Sequence[Policy] = ()) -> None:
        self._desk = desk
        self._retention = tuple(retention)

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

    def _deleting(self, key: ThreadKey) -> _Change:
        return key, lambda: prune.delete(self._desk.heads, key)

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

    def _key_of(self, thread_id: str, kind: str | None) -> Plan[ThreadKey | None]:
        return catalogue.key_of(self._desk.tenant, as_id(thread_id, "thread_id"), _checked_kind(kind))

    # -- Time --

    def rollback(
        self, thread_id: str, checkpoint_id: str, *, ns: str = "", kind: str | None = None, dry_run: bool = False
    ) -> Branch:
        """Go back to a checkpoint: a new branch with its state, which is the latest from now on. Nothing is removed.

        `checkpoint_id` may be a unique beginning of an id, or `latest~2`; of a CubeLoop thread also a run that was
        completed. Done again before something went on from there, it is the same branch. Missing if there is no such
        thread or checkpoint. Four round trips.
        """
        return self._desk.work(self._rolling_back(thread_id, checkpoint_id, ns, kind, dry_run=dry_run))

    async def arollback(
        self, thread_id: str, checkpoint_id: str, *, ns: str = "", kind: str | None = None, dry_run: bool = False
    ) -> Branch:
        """The same for async callers."""
        return await self._desk.awork(self._rolling_back(thread_id, checkpoint_id, ns, kind, dry_run=dry_run))

    def fork(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        to: str | None = None,
        ns: str = "",
        kind: str | None = None,
    ) -> Branch:
        """Go on from a checkpoint (the latest, if none is said) in one more branch, or `to` a new thread.

        A new thread begins with that checkpoint, its ancestors and their writes. ValueError if there is a thread `to`.
        """
        return self._desk.work(self._forking(thread_id, checkpoint_id, to, ns, kind))

    async def afork(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        to: str | None = None,
        ns: str = "",
        kind: str | None = None,
    ) -> Branch:
        """The same for async callers."""
        return await self._desk.awork(self._forking(thread_id, checkpoint_id, to, ns, kind))

    def _rolling_back(self, thread_id: Any, ref: Any, ns: Any, kind: str | None, *, dry_run: bool) -> Work[Branch]:
        place = (as_id(thread_id, "thread_id"), as_id(ref, "checkpoint_id"), as_id(ns, "ns"), _checked_kind(kind))
        return branching.rolling_back(self._desk, *place, dry_run=dry_run)

    def _forking(self, thread_id: Any, ref: Any, to: Any, ns: Any, kind: str | None) -> Work[Branch]:
        wanted = as_id(ref, "checkpoint_id") if ref is not None else None
        target = as_id(to, "to") if to is not None else None
        place = (as_id(thread_id, "thread_id"), wanted, as_id(ns, "ns"), _checked_kind(kind))
        return branching.forking(self._desk, *place, to=target)

    # -- Retention --

    def tag(
        self, thread_id: str, checkpoint_id: str, name: str | None, *, ns: str = "", kind: str | None = None
    ) -> str:
        """Give a checkpoint a tag (metadata `tag`), so that policies keep it; None takes it away. The checkpoint's id."""
        return self._desk.work(self._tagging(thread_id, checkpoint_id, name, ns, kind))

    async def atag(
        self, thread_id: str, checkpoint_id: str, name: str | None, *, ns: str = "", kind: str | None = None
    ) -> str:
        """The same for async callers."""
        return await self._desk.awork(self._tagging(thread_id, checkpoint_id, name, ns, kind))

    def _tagging(self, thread_id: Any, ref: Any, name: Any, ns: Any, kind: str | None) -> Work[str]:
        if name is not None and not (isinstance(name, str) and name):
            raise TypeError(f"name must be a str that is not empty, or None, not {name!r}")
        place = (as_id(thread_id, "thread_id"), as_id(ref, "checkpoint_id"), as_id(ns, "ns"), _checked_kind(kind))
        return branching.tagging(self._desk, *place, name=name)

    def prune(
        self,
        thread_id: str | None = None,
        *,
        policy: Retention = None,
        dry_run: bool = False,
        kind: str | None = None,
        on_progress: Tell | None = None,
    ) -> Pruned:
        """Let go of checkpoints that a policy does not keep, in one thread or in all; without one, of all but the latest.

        `dry_run` says exactly what would go, and how many bytes come back. `kind` is needed where both kinds have this
        id. Missing if there is no such thread; ValueError with neither a thread nor a policy. Each thread is a commit.
        """
        return self._desk.work(self._pruning(thread_id, policy, kind, dry_run=dry_run), on_progress)

    async def aprune(
        self,
        thread_id: str | None = None,
        *,
        policy: Retention = None,
        dry_run: bool = False,
        kind: str | None = None,
        on_progress: Tell | None = None,
    ) -> Pruned:
        """The same for async callers."""
        return await self._desk.awork(self._pruning(thread_id, policy, kind, dry_run=dry_run), on_progress)

    def _pruning(self, thread_id: Any, policy: Retention, kind: str | None, *, dry_run: bool) -> Work[Pruned]:
        given = policies(policy, "policy") if policy is not None else None
        if thread_id is None and given is None:
            raise ValueError("say which thread, or by which policy: prune without either would be for every thread")
        if thread_id is None:
            return sweeping.pruning(self._desk, given or (), kind=_checked_kind(kind), dry_run=dry_run)
        id = as_id(thread_id, "thread_id")
        return sweeping.pruning_one(self._desk, id, given, kind=_checked_kind(kind), dry_run=dry_run)

    def sweep(self, *, dry_run: bool = False, on_progress: Tell | None = None) -> Swept:
        """Remove memories that have expired, of all tenants, and what the policies of this Keep do not keep."""
        return self._desk.work(sweeping.sweeping(self._desk, self._retention, dry_run=dry_run), on_progress)

    async def asweep(self, *, dry_run: bool = False, on_progress: Tell | None = None) -> Swept:
        """The same for async callers."""
        return await self._desk.awork(sweeping.sweeping(self._desk, self._retention, dry_run=dry_run), on_progress)

    def start_sweeping(self, minutes: float = 5.0) -> Any:
        """Sweep every so many minutes, in a thread, until this Keep is closed or the future that this gives is cancelled."""
        if type(minutes) not in (int, float) or not minutes > 0:
            raise ValueError(f"minutes must be a number above 0, not {minutes!r}")
        self._desk.upkeep = partial(sweeping.sweep_once, policies=self._retention)
        return self._desk.start_upkeep(minutes)

    def stop_sweeping(self, timeout: float | None = None) -> Any:
        """Stop that; whether it has stopped. Inside an event loop it gives something to await."""
        return self._desk.stop_upkeep(timeout)


def _checked_kind(kind: str | None) -> str | None:
    if kind not in (None, GRAPH, CUBE):
        raise ValueError(f"kind must be {GRAPH} or {CUBE}, not {kind!r}")
    return kind
