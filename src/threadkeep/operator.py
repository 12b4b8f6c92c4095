"""The operator's verbs of a Keep: look into threads, go back, let go, check, move. Sync and async, one plan for both.

Here arguments are read and plans are named; what the verbs do is in `engine/` and, where files and other databases are
involved, in `transfer/`. The command line (`cli/`) says the same words.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias, TypeVar

from threadkeep import desk as clock
from threadkeep.desk import Desk, as_count, aside, draw, now
from threadkeep.engine import audit, blame, catalogue, copy, diffs, looking, paths, prune, repair, verify
from threadkeep.engine.audit import Activity, TracedWrite
from threadkeep.engine.blame import Blame
from threadkeep.engine.branch import Branch
from threadkeep.engine.catalogue import ThreadInfo
from threadkeep.engine.diffs import Diff
from threadkeep.engine.health import Facts
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey, as_id
from threadkeep.engine.looking import Shown, Tree
from threadkeep.engine.rebuilding import Replay
from threadkeep.engine.repair import Repaired
from threadkeep.engine.retention import Policy, Pruned, Swept
from threadkeep.engine.sizes import Sizes, Stats
from threadkeep.engine.steps import Step
from threadkeep.engine.verify import Verified
from threadkeep.operating import branching, doctor, rounds, sweeping, upkeep
from threadkeep.operating.doctor import Finding
from threadkeep.operating.moments import Moment, as_moment
from threadkeep.operating.policies import Retention, policies
from threadkeep.operating.upkeep import Compacted
from threadkeep.plan import Plan
from threadkeep.transfer.import_from import import_from
from threadkeep.transfer.pipeline import Transfer
from threadkeep.transfer.portable.export import Export, ExportResult
from threadkeep.transfer.portable.files import PortableFile, open_for_reading, open_for_writing
from threadkeep.transfer.portable.import_portable import PortableImport
from threadkeep.transfer.portable.redact import Redaction
from threadkeep.transfer.result import TransferResult
from threadkeep.transfer.selection import select
from threadkeep.work import Read, Tell, Work

T = TypeVar("T")
_Change: TypeAlias = tuple[ThreadKey, Callable[[], Plan[None]]]
"""A thread, and the plan that changes it."""


class Operator:
    """What a person, or a program in their place, does with all threads of a Keep. Its subclass is the Keep."""

    _serde: Any
    """The Keep's serializer."""

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
        metadata = _checked_metadata(metadata)
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

    # -- Audit --

    def trace(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        ns: str = "",
        kind: str | None = None,
        values: bool = False,
    ) -> list[TracedWrite]:
        """Who wrote what on a checkpoint: what ran from it and became its child. By time, path, task and idx.

        `checkpoint_id` is an id, the beginning of one, `latest` (which None means too) or `latest~2`; Missing if there is
        none. With `values`, each write has its value as plain data. Writes do not exist in a CubeLoop thread: there, it
        is the messages that this checkpoint has and its parent has not, `task` is their run, `idx` their place in
        the talk.
        """
        return self._desk.runner.run(self._tracing(thread_id, checkpoint_id, ns, kind, values=values))

    async def atrace(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        ns: str = "",
        kind: str | None = None,
        values: bool = False,
    ) -> list[TracedWrite]:
        """The same for async callers."""
        return await self._desk.runner.arun(lambda: self._tracing(thread_id, checkpoint_id, ns, kind, values=values))

    def activity(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        prefix: str = "",
        ns: str | None = None,
        kind: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_progress: Tell | None = None,
    ) -> Activity:
        """Writes and bytes by node and channel, over all threads that match: at or after `since`, before `until`.

        Both are aware datetimes, timedeltas before now, or text: `7d`, `2026-04-01`. Threads that did not change since
        are not read. `ns` None is all namespaces, "" the root's, a subgraph's name all calls of it. In CubeLoop threads
        each message counts as a write of no node to the channel `messages`. One thread is read at a time; one that is
        changed meanwhile is counted as it is when its turn comes.
        """
        return self._desk.work(self._acting(since, until, prefix, ns, kind, metadata), on_progress)

    async def aactivity(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        prefix: str = "",
        ns: str | None = None,
        kind: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_progress: Tell | None = None,
    ) -> Activity:
        """The same for async callers."""
        return await self._desk.awork(self._acting(since, until, prefix, ns, kind, metadata), on_progress)

    def sizes(
        self,
        *,
        thread_id: str | None = None,
        prefix: str = "",
        kind: str | None = None,
        limit: int = 20,
        on_progress: Tell | None = None,
    ) -> Sizes:
        """What threads take: by thread (the `limit` largest), channel and kind, and against what they hold.

        One thread, or all whose ids begin with `prefix`. Rows are read and items measured, one thread at a time.
        """
        return self._desk.work(self._weighing(thread_id, prefix, kind, limit), on_progress)

    async def asizes(
        self,
        *,
        thread_id: str | None = None,
        prefix: str = "",
        kind: str | None = None,
        limit: int = 20,
        on_progress: Tell | None = None,
    ) -> Sizes:
        """The same for async callers."""
        return await self._desk.awork(self._weighing(thread_id, prefix, kind, limit), on_progress)

    def stats(self, *, on_progress: Tell | None = None) -> Stats:
        """Threads and memories of this tenant in numbers, from their rows; and what the storage takes."""
        return self._desk.work(rounds.stats(self._desk.tenant, clock.now_exactly()), on_progress)

    async def astats(self, *, on_progress: Tell | None = None) -> Stats:
        """The same for async callers."""
        return await self._desk.awork(rounds.stats(self._desk.tenant, clock.now_exactly()), on_progress)

    async def _tracing(
        self, thread_id: str, checkpoint_id: str | None, ns: str, kind: str | None, *, values: bool
    ) -> list[TracedWrite]:
        id, space = as_id(thread_id, "thread_id"), as_id(ns, "ns")
        ref = None if checkpoint_id is None else as_id(checkpoint_id, "checkpoint_id")
        key = await catalogue.known(self._desk.tenant, id, _checked_kind(kind))
        return await audit.trace(self._desk.heads, key, ref, space, values=values)

    def _acting(
        self, since: Moment | None, until: Moment | None, prefix: str, ns: str | None, kind: str | None, metadata: Any
    ) -> Work[Activity]:
        time = now()
        space = None if ns is None else as_id(ns, "ns")
        asked = audit.Asked(as_moment(since, "since", time), as_moment(until, "until", time), space)
        begin = as_id(prefix, "prefix")
        return rounds.activity(
            self._desk.heads, self._desk.tenant, begin, _checked_kind(kind), _checked_metadata(metadata), asked
        )

    def _weighing(self, thread_id: str | None, prefix: str, kind: str | None, limit: int) -> Work[Sizes]:
        heads, tenant, most = self._desk.heads, self._desk.tenant, as_count(limit, "limit")
        begin, one_kind = as_id(prefix, "prefix"), _checked_kind(kind)
        if thread_id is None:
            return rounds.sizes_of_all(heads, tenant, begin, one_kind, most)
        if begin:
            raise ValueError("say thread_id or prefix, not both")
        return rounds.sizes_of_one(heads, tenant, as_id(thread_id, "thread_id"), one_kind, most)

    # -- Import from other savers --

    def import_from(
        self,
        source: Any,
        *,
        kind: str | None = None,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        verify: bool = True,
        dry_run: bool = False,
        on_progress: Tell | None = None,
    ) -> TransferResult:
        """Import what another saver, store or checkpointer holds: a file, a postgresql:// URL, or an object in memory.

        Its kind is detected, unless `kind` names it. `thread_id` or `prefix` select threads; memories are imported only
        without them. The source is only read, and nothing that is here is overwritten. `verify` reads both sides again
        and compares them; `dry_run` only counts. Repeating an import continues it where it was interrupted. ValueError
        if the source is not known, FileNotFoundError if there is no such file, Unavailable if a server cannot be
        reached, Missing if a selected thread does not exist.
        """
        return self._desk.work(self._importing(source, kind, thread_id, prefix, verify, dry_run), on_progress)

    async def aimport_from(
        self,
        source: Any,
        *,
        kind: str | None = None,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        verify: bool = True,
        dry_run: bool = False,
        on_progress: Tell | None = None,
    ) -> TransferResult:
        """The same for async callers. The source is read in another thread."""
        return await self._desk.awork(self._importing(source, kind, thread_id, prefix, verify, dry_run), on_progress)

    def _importing(
        self, source: Any, kind: Any, thread_id: Any, prefix: Any, verify: Any, dry_run: Any
    ) -> Work[TransferResult]:
        selection = select(thread_id, prefix, None, memories=None)
        into = Transfer(self._desk, self._indexing, verify=bool(verify), dry_run=bool(dry_run))
        return import_from(into, source, kind, selection)

    def _indexing(self) -> Any:
        """How memories are indexed."""
        raise NotImplementedError

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
        id. If there is no such thread, the answer is false; ValueError with neither a thread nor a policy. Each thread is a commit.
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

    # -- Portable files --

    def export(
        self,
        file: PortableFile,
        *,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        kind: str | None = None,
        memories: bool | None = None,
        redact: bool = False,
        on_progress: Tell | None = None,
    ) -> ExportResult:
        """Write threads and memories into a portable file: a path, or a binary file that is open for writing.

        All threads, or some by id, or those whose id starts with `prefix`; of one kind or both. Memories belong to no
        thread: by default they are exported only with all threads. `redact` replaces what people wrote. A path is
        written completely or not at all, and compressed unless its name ends in .jsonl. Each thread is as of one moment.
        """
        selection = select(thread_id, prefix, kind, memories=memories)
        about = {"made": _moment(), "by": "threadkeep", "tenant": "" if redact else self._desk.tenant}
        redaction = Redaction(secrets.token_bytes(32)) if redact else None
        with open_for_writing(file) as out:
            return self._desk.work(Export(self._desk, selection, out, redaction).work(about), on_progress)

    async def aexport(
        self,
        file: PortableFile,
        *,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        kind: str | None = None,
        memories: bool | None = None,
        redact: bool = False,
        on_progress: Tell | None = None,
    ) -> ExportResult:
        """The same for async callers. It runs in a thread, where `on_progress` is called too."""
        return await aside(
            lambda: self.export(
                file, thread_id=thread_id, prefix=prefix, kind=kind, memories=memories, redact=redact,
                on_progress=on_progress,
            )
        )  # fmt: skip

    def import_portable(
        self,
        file: PortableFile,
        *,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        kind: str | None = None,
        memories: bool | None = None,
        partial: bool = False,
        verify: bool = True,
        dry_run: bool = False,
        on_progress: Tell | None = None,
    ) -> TransferResult:
        """Import threads and memories from a portable file: a path, or a binary file that is open for reading.

        What is here stays: a LangGraph thread gets the checkpoints that it lacks, a CubeLoop thread that differs is
        reported in `differences`. Repeating an import is harmless, and continues it where it was interrupted. `verify`
        reads each thread again and compares it with the file; `dry_run` only counts. ValueError if the file is cut off
        or damaged; the threads before that are imported. `partial` accepts a file that is cut off. Missing if a selected
        thread is not in the file.
        """
        selection = select(thread_id, prefix, kind, memories=memories)
        into = Transfer(self._desk, self._indexing, verify=bool(verify), dry_run=bool(dry_run))
        with open_for_reading(file) as lines:
            return self._desk.work(PortableImport(into, lines, selection, partial).work(), on_progress)

    async def aimport_portable(
        self,
        file: PortableFile,
        *,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        kind: str | None = None,
        memories: bool | None = None,
        partial: bool = False,
        verify: bool = True,
        dry_run: bool = False,
        on_progress: Tell | None = None,
    ) -> TransferResult:
        """The same for async callers. It runs in a thread, where `on_progress` is called too."""
        return await aside(
            lambda: self.import_portable(
                file, thread_id=thread_id, prefix=prefix, kind=kind, memories=memories, partial=partial,
                verify=verify, dry_run=dry_run, on_progress=on_progress,
            )
        )  # fmt: skip

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
        wish = repair.Wish(ref, as_id(ns, "ns"), str(uuid6()), now(), datetime.now(UTC).isoformat(), draw(), dry_run)
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


async def _in_thread(tenant: str, id: str, kind: str | None, make: Callable[[ThreadKey], Plan[T]]) -> T:
    return await make(await catalogue.known(tenant, id, kind))


def _reference(ref: str | None, what: str) -> str | None:
    return None if ref is None else as_id(ref, what)


def _checked_metadata(metadata: Any) -> Mapping[str, Any] | None:
    if metadata is not None and not (isinstance(metadata, Mapping) and all(isinstance(key, str) for key in metadata)):
        raise TypeError(f"metadata must be a dict with str keys, not {metadata!r}")
    return metadata


def _checked_kind(kind: str | None) -> str | None:
    if kind not in (None, GRAPH, CUBE):
        raise ValueError(f"kind must be {GRAPH} or {CUBE}, not {kind!r}")
    return kind


def _moment() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
