"""The operator's verbs of a Keep: look into threads, go back, let go, check, move. Sync and async, one plan for both.

Here arguments are read and plans are named; what the verbs do is in `engine/` and, where files and other databases are
involved, in `moving/`. The command line (`cli/`) says the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from threadkeep import desk as clock
from threadkeep.desk import Desk, as_count, draw, now
from threadkeep.engine import blame, catalogue, copy, diffs, looking, paths, prune, remembering
from threadkeep.engine.blame import Blame
from threadkeep.engine.catalogue import ThreadInfo
from threadkeep.engine.diffs import Diff
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey, as_id
from threadkeep.engine.looking import Shown, Tree
from threadkeep.engine.steps import Step
from threadkeep.plan import Plan

T = TypeVar("T")
_Change: TypeAlias = tuple[ThreadKey, Callable[[], Plan[None]]]
"""A thread, and the plan that changes it."""


class Operator:
    """What a person, or a program in their place, does with all threads of a Keep. Its subclass is the Keep."""

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
        contains: str = "",
    ) -> list[ThreadInfo]:
        """A page of the thread catalogue, both kinds, read from the thread rows alone.

        `order` is updated, created or bytes (greatest first) or id; `after` is the last thread of the page before,
        best as its ThreadInfo. `metadata` compares with that of each thread's newest root checkpoint. One round trip.
        `contains` is text that ids have anywhere, in capitals or not: all threads are looked through for it.
        """
        query, wanted, last = self._query(limit, after, prefix, metadata, status, order, kind)
        return self._desk.runner.run(catalogue.threads(query, wanted, last, as_id(contains, "contains")))

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
        contains: str = "",
    ) -> list[ThreadInfo]:
        """The same for async callers."""
        query, wanted, last = self._query(limit, after, prefix, metadata, status, order, kind)
        text = as_id(contains, "contains")
        return await self._desk.runner.arun(lambda: catalogue.threads(query, wanted, last, text))

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

    def _key_of(self, thread_id: str, kind: str | None) -> Plan[ThreadKey | None]:
        return catalogue.key_of(self._desk.tenant, as_id(thread_id, "thread_id"), _checked_kind(kind))

    # -- Look --

    def log(
        self, thread_id: str, *, ns: str | None = None, limit: int | None = None, kind: str | None = None
    ) -> list[Step]:
        """The checkpoints of a thread, newest first: of one namespace, or of all. Hidden ones are left out.

        Missing if there is no such thread. Up to four round trips; no state is read.
        """
        return self._desk.runner.run(self._logged(thread_id, ns, limit, kind))

    async def alog(
        self, thread_id: str, *, ns: str | None = None, limit: int | None = None, kind: str | None = None
    ) -> list[Step]:
        """The same for async callers."""
        return await self._desk.runner.arun(lambda: self._logged(thread_id, ns, limit, kind))

    def _logged(self, thread_id: str, ns: str | None, limit: int | None, kind: str | None) -> Plan[list[Step]]:
        space = None if ns is None else as_id(ns, "ns")
        count = None if limit is None else as_count(limit, "limit")
        return self._in(thread_id, kind, lambda key: looking.log(self._desk.heads, key, space, count))

    def show(self, thread_id: str, checkpoint_id: str | None = None, *, ns: str = "", kind: str | None = None) -> Shown:
        """A checkpoint (the latest) with all that it holds, as plain data: no class of the application is needed.

        `checkpoint_id` is an id, the only one that begins or ends so, or `latest`, each also with `~2`: two before.
        Missing if there is no such thread or checkpoint, ValueError if there are several.
        """
        return self._desk.runner.run(self._shown(thread_id, checkpoint_id, ns, kind))

    async def ashow(
        self, thread_id: str, checkpoint_id: str | None = None, *, ns: str = "", kind: str | None = None
    ) -> Shown:
        """The same for async callers."""
        return await self._desk.runner.arun(lambda: self._shown(thread_id, checkpoint_id, ns, kind))

    def _shown(self, thread_id: str, checkpoint_id: str | None, ns: str, kind: str | None) -> Plan[Shown]:
        ref, space = _reference(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
        return self._in(thread_id, kind, lambda key: looking.show(self._desk.heads, key, ref, space))

    def tree(self, thread_id: str, *, kind: str | None = None) -> Tree:
        """The checkpoints of a thread, newest first, and how they hang together. Missing if there is no such thread."""
        return self._desk.runner.run(self._tree(thread_id, kind))

    async def atree(self, thread_id: str, *, kind: str | None = None) -> Tree:
        """The same for async callers."""
        return await self._desk.runner.arun(lambda: self._tree(thread_id, kind))

    def _tree(self, thread_id: str, kind: str | None) -> Plan[Tree]:
        return self._in(thread_id, kind, lambda key: looking.tree(self._desk.heads, key))

    def find(self, ref: str, *, kind: str | None = None) -> Step:
        """The checkpoint that a text names: THREAD (its latest), THREAD@CHECKPOINT, or the whole id of one in any thread.

        CHECKPOINT is as for `show`: of the root namespace, or of the only other that has such. Missing if nothing is
        named so, ValueError if several are.
        """
        return self._desk.runner.run(self._found(ref, kind))

    async def afind(self, ref: str, *, kind: str | None = None) -> Step:
        """The same for async callers."""
        return await self._desk.runner.arun(lambda: self._found(ref, kind))

    def _found(self, ref: str, kind: str | None) -> Plan[Step]:
        return looking.locate(self._desk.heads, self._desk.tenant, as_id(ref, "ref"), _checked_kind(kind))

    def diff(
        self,
        thread_id: str,
        a: str | None,
        b: str | None = None,
        *,
        ns: str = "",
        other_thread: str | None = None,
        kind: str | None = None,
    ) -> Diff:
        """What differs in checkpoint `b` (the latest), of this or another thread, from checkpoint `a`; both as for `show`.

        Missing if there is no such thread or checkpoint. What both hold in the same items is not read.
        """
        return self._desk.runner.run(self._compared(thread_id, a, b, ns, other_thread, kind))

    async def adiff(
        self,
        thread_id: str,
        a: str | None,
        b: str | None = None,
        *,
        ns: str = "",
        other_thread: str | None = None,
        kind: str | None = None,
    ) -> Diff:
        """The same for async callers."""
        return await self._desk.runner.arun(lambda: self._compared(thread_id, a, b, ns, other_thread, kind))

    def _compared(
        self, thread_id: str, a: str | None, b: str | None, ns: str, other_thread: str | None, kind: str | None
    ) -> Plan[Diff]:
        refs, space = (_reference(a, "a"), _reference(b, "b")), as_id(ns, "ns")
        other = thread_id if other_thread is None else other_thread
        return self._in(
            thread_id, kind,
            lambda one: self._in(other, kind, lambda key: diffs.diff(self._desk.heads, (one, refs[0]), (key, refs[1]), space)),
        )  # fmt: skip

    def blame(
        self, thread_id: str, path: str, *, checkpoint_id: str | None = None, ns: str = "", kind: str | None = None
    ) -> Blame:
        """Which checkpoint, task and write first set the value that stands at `path` in a checkpoint (the latest).

        A path looks like `messages[3].content`, `messages[-1]`, `messages[id=abc]` or `user.age`. ValueError if it
        does not, Missing if nothing stands there. Up to five round trips.
        """
        return self._desk.runner.run(self._blamed(thread_id, path, checkpoint_id, ns, kind))

    async def ablame(
        self, thread_id: str, path: str, *, checkpoint_id: str | None = None, ns: str = "", kind: str | None = None
    ) -> Blame:
        """The same for async callers."""
        return await self._desk.runner.arun(lambda: self._blamed(thread_id, path, checkpoint_id, ns, kind))

    def _blamed(self, thread_id: str, path: str, checkpoint_id: str | None, ns: str, kind: str | None) -> Plan[Blame]:
        at, ref, space = paths.parse(path), _reference(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
        return self._in(thread_id, kind, lambda key: blame.blame(self._desk.heads, key, at, ref, space))

    def _in(self, thread_id: str, kind: str | None, make: Callable[[ThreadKey], Plan[T]]) -> Plan[T]:
        """A plan about a thread that must be there."""
        return _in_thread(self._desk.tenant, as_id(thread_id, "thread_id"), _checked_kind(kind), make)


async def _in_thread(tenant: str, id: str, kind: str | None, make: Callable[[ThreadKey], Plan[T]]) -> T:
    return await make(await catalogue.known(tenant, id, kind))


def _reference(ref: str | None, what: str) -> str | None:
    return None if ref is None else as_id(ref, what)


def _checked_kind(kind: str | None) -> str | None:
    if kind not in (None, GRAPH, CUBE):
        raise ValueError(f"kind must be {GRAPH} or {CUBE}, not {kind!r}")
    return kind
