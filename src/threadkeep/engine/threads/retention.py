"""Retention policies: which checkpoints and threads they keep. A policy is data; applying it is pure.

A checkpoint is removed only if a policy limits its namespace and nothing keeps it. What keeps it:

    by rule                 it is one of the last `keep_last` of its namespace, or younger than `keep_for`
    always                  it is the latest of its namespace, or a delta channel of one that stays needs it
    unless switched off     it has a tag, waits for an answer, is a branch point, or is the first or last of a branch

The checkpoints of a subgraph call are removed with the root checkpoint that they belong to. A whole thread is removed
when it did not change for `drop_idle`, unless a checkpoint in it is tagged or the thread waits for something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import INTERRUPT

from threadkeep.engine.identity import Kind, as_kind
from threadkeep.engine.log.records import CheckpointRecord, ThreadRow
from threadkeep.engine.threads import metadata as checkpoint_metadata
from threadkeep.engine.threads.metadata import ANY, Match
from threadkeep.engine.threads.prune import is_root_kept, selection_of
from threadkeep.engine.threads.survivors import PruneSelection
from threadkeep.engine.threads.thread_rows import CheckpointKey, ThreadRows, children
from threadkeep.engine.when import as_duration
from threadkeep.short_repr import short_repr

TAGS = ("keep", "tag", "tags")
"""Metadata keys that keep a checkpoint if their value is true (not empty, 0 or False)."""
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which threads a policy applies to, and what it keeps of them.

    `metadata` is compared with every checkpoint of a thread; one that matches is enough. With `match="latest"` it is
    compared with the newest root checkpoint only.

    Durations are timedeltas, or text such as "30d" (see `engine/when.py`). If several policies fit a thread and a
    namespace, the first one applies. A policy without a rule keeps everything.
    """

    prefix: str = ""
    ns: str | None = None
    metadata: Mapping[str, Any] | None = None
    match: Match = ANY
    kind: Kind | None = None
    tenant: str | None = None
    keep_last: int | None = None
    keep_for: timedelta | str | None = None
    drop_idle: timedelta | str | None = None
    keep_tagged: bool = True
    keep_interrupted: bool = True
    keep_branches: bool = True

    __repr__ = short_repr

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError if an option is wrong."""
        for name in ("prefix", "ns", "tenant"):
            _check_type(name, getattr(self, name), str, "a str", required=name == "prefix")
        for name in ("keep_tagged", "keep_interrupted", "keep_branches"):
            _check_type(name, getattr(self, name), bool, "a bool", required=True)
        checkpoint_metadata.as_filter(self.metadata)
        checkpoint_metadata.as_match(self.match)
        as_kind(self.kind)
        _check_type("keep_last", self.keep_last, int, "an int")
        if self.keep_last is not None and (isinstance(self.keep_last, bool) or self.keep_last < 1):
            raise ValueError(f"keep_last must be an int of at least 1, not {self.keep_last!r}")
        for name in ("keep_for", "drop_idle"):
            object.__setattr__(self, name, as_duration(getattr(self, name), name))
        if self.drop_idle is not None and self.ns is not None:
            raise ValueError("drop_idle removes whole threads: it cannot be limited to a namespace")


def _check_type(name: str, value: Any, kind: type, what: str, *, required: bool = False) -> None:
    if not (isinstance(value, kind) or (value is None and not required)):
        raise TypeError(f"{name} must be {what}, not {value!r}")


@dataclass(frozen=True, slots=True)
class PrunedThread:
    """What one thread loses: checkpoints and newly hidden ones as (namespace, id), writes, and bytes.

    `matching` of its `total` checkpoints, hidden ones included, had the metadata of the first policy that fits; it is
    None if that policy asks for none.
    `damaged` are its damaged checkpoints, which stay.
    """

    id: str
    kind: Kind
    dropped: bool
    checkpoints: tuple[CheckpointKey, ...]
    hidden: tuple[CheckpointKey, ...]
    writes: int
    bytes: int
    matching: int | None = None
    total: int = 0
    damaged: tuple[CheckpointKey, ...] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a prune removed, or would remove in a dry run: the threads that change, and their totals.

    `examined` counts all threads that were examined; it is 0 if the thread does not exist. `damaged` lists threads with
    damaged checkpoints: these stay, and nothing is freed before `repair` has run. `skipped` lists threads whose own row
    is damaged, which a prune of all threads leaves unchanged. `leased` lists threads that somebody else holds a lease
    of, which are left unchanged, too.
    """

    dry_run: bool
    examined: int
    threads: tuple[PrunedThread, ...]
    dropped: int
    checkpoints: int
    hidden: int
    writes: int
    bytes: int
    skipped: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    leased: tuple[str, ...] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep removed, or would remove: expired memories, and by policy whole threads, checkpoints and bytes.

    `memories` is None in a dry run, which does not count them. `prune_result` has the details.
    """

    memories: int | None
    threads: int
    checkpoints: int
    bytes: int
    pruned: PruneResult

    __repr__ = short_repr


def prune_result(
    threads: Iterable[PrunedThread],
    *,
    examined: int,
    dry_run: bool,
    skipped: Iterable[str] = (),
    damaged: Iterable[str] = (),
    leased: Iterable[str] = (),
) -> PruneResult:
    """Return the result for these threads, with totals."""
    threads = tuple(threads)
    return PruneResult(
        dry_run=dry_run,
        examined=examined,
        threads=threads,
        dropped=sum(each.dropped for each in threads),
        checkpoints=sum(len(each.checkpoints) for each in threads),
        hidden=sum(len(each.hidden) for each in threads),
        writes=sum(each.writes for each in threads),
        bytes=sum(each.bytes for each in threads),
        skipped=tuple(skipped),
        damaged=tuple(damaged),
        leased=tuple(leased),
    )


def selector(policies: Sequence[Policy], now: int) -> Callable[[ThreadRows], PruneSelection]:
    """Return a function that selects what these policies keep of a thread; `now` is in milliseconds."""
    return lambda thread: _select(policies, thread, now)


def may_prune(policies: Sequence[Policy], row: ThreadRow, now: int) -> bool:
    """Return whether something of a thread may be removed. If not, its checkpoints need not be loaded."""
    return any(_fits_key(policy, row) and _may_lose(policy, row, now) for policy in policies)


def _may_lose(policy: Policy, row: ThreadRow, now: int) -> bool:
    if _is_idle(policy, row, now):
        return True
    if not _has_limit(policy) or row.checkpoints <= max(policy.keep_last or 1, 1):
        return False
    return policy.keep_for is None or row.created < _before(policy.keep_for, now)


def _fits_key(policy: Policy, row: ThreadRow) -> bool:
    """Whether a policy applies to a thread by its key; its metadata filter is not checked."""
    key = row.key
    return key.id.startswith(policy.prefix) and policy.kind in (None, key.kind) and policy.tenant in (None, key.tenant)


def _has_limit(policy: Policy) -> bool:
    return policy.keep_last is not None or policy.keep_for is not None


def _before(duration: Any, now: int) -> int:
    """The time that was so long ago, in milliseconds."""
    return now - int(duration / _MILLISECOND)


def _is_idle(policy: Policy, row: ThreadRow, now: int) -> bool:
    waits = policy.keep_interrupted and row.status != "idle"
    return policy.drop_idle is not None and not waits and row.updated < _before(policy.drop_idle, now)


class _ThreadView(NamedTuple):
    """A thread, and what every rule needs of it, computed once."""

    thread: ThreadRows
    children: dict[CheckpointKey, set[str]]
    tagged: set[CheckpointKey]


def _select(policies: Sequence[Policy], thread: ThreadRows, now: int) -> PruneSelection:
    row = thread.head.row
    assert row is not None
    by_namespace: dict[str, list[CheckpointRecord]] = {"": []}
    for record in thread.visible():
        by_namespace.setdefault(record.row.ns, []).append(record)
    roots = by_namespace.pop("")
    newest = thread.metadata(roots[-1]) if roots else {}
    fitting = [p for p in policies if _fits_key(p, row) and _fits_metadata(p, thread, newest)]
    matching = _count_matching(fitting[0], thread) if fitting and fitting[0].metadata else None
    view = _ThreadView(thread, children(thread), {key for key, r in thread.records.items() if is_tagged(thread, r)})
    for_thread = next((policy for policy in fitting if policy.ns is None), None)
    if for_thread is not None and _is_idle(for_thread, row, now) and not (for_thread.keep_tagged and view.tagged):
        return PruneSelection(set(), lambda *_: False, matching=matching, drops_empty=True)
    kept = _select_in_namespace(view, roots, fitting, now, set())
    kept_roots = {id for _, id in kept}
    for records in by_namespace.values():
        kept |= _select_in_namespace(view, records, fitting, now, kept_roots)
    return selection_of(thread, kept)._replace(matching=matching)


def _fits_metadata(policy: Policy, thread: ThreadRows, newest: Mapping[str, Any]) -> bool:
    """Whether a policy's metadata filter matches any checkpoint of a thread, or its newest root checkpoint."""
    wanted = policy.metadata or {}
    return checkpoint_metadata.matches(newest, wanted) or (
        policy.match == ANY and any(_matches(thread, record, wanted) for record in thread.records.values())
    )


def _count_matching(policy: Policy, thread: ThreadRows) -> int:
    return sum(_matches(thread, record, policy.metadata or {}) for record in thread.records.values())


def _matches(thread: ThreadRows, record: CheckpointRecord, wanted: Mapping[str, Any]) -> bool:
    return checkpoint_metadata.matches(thread.metadata(record), wanted)


def is_tagged(thread: ThreadRows, record: CheckpointRecord) -> bool:
    """Return whether a visible checkpoint has a tag that keeps it."""
    metadata = thread.metadata(record)
    return not record.row.hidden and any(metadata.get(name) for name in TAGS)


def _fits_namespace(policy: Policy, ns: str) -> bool:
    """Whether a policy applies to a namespace: to itself, or to all calls of a subgraph.

    The namespace of a call has the task's id after each name.
    """
    return policy.ns in (None, ns, "|".join(part.partition(":")[0] for part in ns.split("|")))


def _select_in_namespace(
    view: _ThreadView, records: Sequence[CheckpointRecord], fitting: Sequence[Policy], now: int, roots: set[str]
) -> set[CheckpointKey]:
    """The checkpoints to keep of a namespace; `records` are its visible ones, oldest first."""
    keys = [(record.row.ns, record.row.id) for record in records]
    policy = next((policy for policy in fitting if records and _fits_namespace(policy, records[0].row.ns)), None)
    if policy is None or not _has_limit(policy):
        return set(keys)
    kept = set(keys[-max(policy.keep_last or 1, 1) :])
    if policy.keep_for is not None:
        oldest = _before(policy.keep_for, now)
        kept |= {key for key, record in zip(keys, records, strict=True) if record.row.time >= oldest}
    if policy.keep_interrupted:
        kept |= {key for key in keys if _waits_for_answer(view, key)}
    if policy.keep_branches:
        kept |= set(_branch_points_and_ends(view, keys))
    newest = max(roots, default="")
    kept = {key for key in kept if is_root_kept(view.thread.records[key], roots, newest)}
    return kept | (view.tagged.intersection(keys) if policy.keep_tagged else set())


def _branch_points_and_ends(view: _ThreadView, keys: Sequence[CheckpointKey]) -> Iterator[CheckpointKey]:
    """Branch points, the first checkpoint of each branch, and the ends of all branches.

    Without the first checkpoints, the next prune would not see a branch point any more.
    """
    for key in keys:
        ids = view.children.get(key, set())
        if len(ids) != 1:
            yield key
            yield from ((key[0], id) for id in ids if not view.thread.records[(key[0], id)].row.hidden)


def _waits_for_answer(view: _ThreadView, key: CheckpointKey) -> bool:
    """Whether a checkpoint has an interrupt and no child."""
    tasks = view.thread.tasks.get(key, ())
    has_interrupt = any(entry.channel == INTERRUPT for task in tasks for entry in task.entries.values())
    return has_interrupt and key not in view.children
