"""Retention: which checkpoints stay, and which threads. A policy is data; judging it is pure.

A checkpoint goes only if a policy limits its namespace and nothing keeps it. What keeps it:

    the rules               the last so many of its namespace; those younger than so long
    always                  the latest of its namespace; what the delta channels of those that stay are rebuilt from
    unless switched off     a tag; a question that waits for its answer; branch points, the beginning and the end of every branch

What a subgraph call left goes with the root checkpoint that it belongs to. A whole thread goes when nothing changed in it
for so long, unless something in it is tagged or it waits for something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import INTERRUPT

from threadkeep.engine.identity import as_kind
from threadkeep.engine.log.records import CheckpointRecord, ThreadRow
from threadkeep.engine.threads import metadata as about
from threadkeep.engine.threads.prune import belongs, selection_of
from threadkeep.engine.threads.survivors import PruneSelection
from threadkeep.engine.threads.thread_rows import CheckpointPlace, ThreadRows, children
from threadkeep.engine.when import as_duration

TAGS = ("keep", "tag", "tags")
"""Metadata that keeps a checkpoint, if it is something other than empty, 0 or False."""
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which threads it is for, and what of them stays. Durations are timedeltas, or text as in `engine/when.py`.

    Of several policies the first that fits a thread and a namespace counts. One without a rule keeps everything.
    """

    prefix: str = ""
    ns: str | None = None
    metadata: Mapping[str, Any] | None = None
    kind: str | None = None
    tenant: str | None = None
    keep_last: int | None = None
    keep_for: timedelta | str | None = None
    drop_idle: timedelta | str | None = None
    keep_tagged: bool = True
    keep_interrupted: bool = True
    keep_branches: bool = True

    def __post_init__(self) -> None:
        """Say what is wrong with it."""
        for name in ("prefix", "ns", "tenant"):
            _check(name, getattr(self, name), str, "a str", needed=name == "prefix")
        for name in ("keep_tagged", "keep_interrupted", "keep_branches"):
            _check(name, getattr(self, name), bool, "a bool", needed=True)
        about.as_filter(self.metadata)
        as_kind(self.kind)
        _check("keep_last", self.keep_last, int, "an int")
        if self.keep_last is not None and (isinstance(self.keep_last, bool) or self.keep_last < 1):
            raise ValueError(f"keep_last must be an int of at least 1, not {self.keep_last!r}")
        for name in ("keep_for", "drop_idle"):
            object.__setattr__(self, name, as_duration(getattr(self, name), name))
        if self.drop_idle is not None and self.ns is not None:
            raise ValueError("drop_idle drops whole threads: it cannot be limited to a namespace")


def _check(name: str, value: Any, kind: type, what: str, *, needed: bool = False) -> None:
    if not (isinstance(value, kind) or (value is None and not needed)):
        raise TypeError(f"{name} must be {what}, not {value!r}")


@dataclass(frozen=True, slots=True)
class PrunedThread:
    """What one thread lost, or would lose: checkpoints and newly hidden ones as (namespace, id), writes, and bytes."""

    id: str
    kind: str
    dropped: bool
    checkpoints: tuple[CheckpointPlace, ...]
    hidden: tuple[CheckpointPlace, ...]
    writes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a prune removed, or would remove in a dry run: the threads that change, and their totals.

    `examined` counts all threads that were examined; it is 0 if the thread does not exist. `skipped` lists damaged
    threads, which a prune of all threads leaves unchanged.
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


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep removed, or would remove: expired memories, and by policy whole threads, checkpoints and bytes.

    `memories` is None in a dry run, which does not count them. `pruned` has the details.
    """

    memories: int | None
    threads: int
    checkpoints: int
    bytes: int
    pruned: PruneResult


def pruned(
    threads: Iterable[PrunedThread], *, looked_at: int, dry_run: bool, skipped: Iterable[str] = ()
) -> PruneResult:
    """The result for these threads, with its totals."""
    threads = tuple(threads)
    return PruneResult(
        dry_run=dry_run,
        examined=looked_at,
        threads=threads,
        dropped=sum(each.dropped for each in threads),
        checkpoints=sum(len(each.checkpoints) for each in threads),
        hidden=sum(len(each.hidden) for each in threads),
        writes=sum(each.writes for each in threads),
        bytes=sum(each.bytes for each in threads),
        skipped=tuple(skipped),
    )


def judged(policies: Sequence[Policy], now: int) -> Callable[[ThreadRows], PruneSelection]:
    """What these policies leave of a thread; `now` is milliseconds."""
    return lambda thread: _verdict(policies, thread, now)


def may_lose(policies: Sequence[Policy], row: ThreadRow, now: int) -> bool:
    """Whether a thread row is one of which something may go: what surely stays whole need not be surveyed."""
    return any(_names(policy, row) and _may_lose(policy, row, now) for policy in policies)


def _may_lose(policy: Policy, row: ThreadRow, now: int) -> bool:
    if _is_idle(policy, row, now):
        return True
    if not _limits(policy) or row.checkpoints <= max(policy.keep_last or 1, 1):
        return False
    return policy.keep_for is None or row.created < _since(policy.keep_for, now)


def _names(policy: Policy, row: ThreadRow) -> bool:
    """Whether a policy is for a thread, by what its key tells."""
    key = row.key
    return key.id.startswith(policy.prefix) and policy.kind in (None, key.kind) and policy.tenant in (None, key.tenant)


def _limits(policy: Policy) -> bool:
    return policy.keep_last is not None or policy.keep_for is not None


def _since(length: Any, now: int) -> int:
    return now - int(length / _MILLISECOND)


def _is_idle(policy: Policy, row: ThreadRow, now: int) -> bool:
    waits = policy.keep_interrupted and row.status != "idle"
    return policy.drop_idle is not None and not waits and row.updated < _since(policy.drop_idle, now)


class _ThreadView(NamedTuple):
    """A thread, and what judging asks of it again and again."""

    thread: ThreadRows
    children: dict[CheckpointPlace, set[str]]
    tagged: set[CheckpointPlace]


def _verdict(policies: Sequence[Policy], thread: ThreadRows, now: int) -> PruneSelection:
    row = thread.head.row
    assert row is not None
    roots = thread.visible("")
    newest = thread.metadata(roots[-1]) if roots else {}
    fitting = [p for p in policies if _names(p, row) and about.matches(newest, p.metadata or {})]
    tree = _ThreadView(
        thread, children(thread), {place for place, r in thread.records.items() if _is_tagged(thread, r)}
    )
    whole = next((policy for policy in fitting if policy.ns is None), None)
    if whole is not None and _is_idle(whole, row, now) and not (whole.keep_tagged and tree.tagged):
        return PruneSelection(set(), lambda *_: False)
    kept = _kept(tree, roots, fitting, now, set())
    staying = {id for _, id in kept}
    spaces: dict[str, list[CheckpointRecord]] = {}
    for record in thread.visible():
        spaces.setdefault(record.row.ns, []).append(record)
    for ns in spaces.keys() - {""}:
        kept |= _kept(tree, spaces[ns], fitting, now, staying)
    return selection_of(thread, kept)


def _is_tagged(thread: ThreadRows, record: CheckpointRecord) -> bool:
    known = thread.metadata(record)
    return not record.row.hidden and any(known.get(name) for name in TAGS)


def _covers(policy: Policy, ns: str) -> bool:
    """Whether a policy is for a namespace: itself, or the calls of a subgraph, whose namespaces have their task's id."""
    return policy.ns in (None, ns, "|".join(part.partition(":")[0] for part in ns.split("|")))


def _kept(
    tree: _ThreadView, records: Sequence[CheckpointRecord], fitting: Sequence[Policy], now: int, roots: set[str]
) -> set[CheckpointPlace]:
    """What stays of a namespace, whose visible checkpoints these are, oldest first."""
    places = [(record.row.ns, record.row.id) for record in records]
    policy = next((policy for policy in fitting if records and _covers(policy, records[0].row.ns)), None)
    if policy is None or not _limits(policy):
        return set(places)
    kept = set(places[-max(policy.keep_last or 1, 1) :])
    if policy.keep_for is not None:
        since = _since(policy.keep_for, now)
        kept |= {place for place, record in zip(places, records, strict=True) if record.row.time >= since}
    if policy.keep_interrupted:
        kept |= {place for place in places if _waits(tree, place)}
    if policy.keep_branches:
        kept |= set(_of_branches(tree, places))
    newest = max(roots, default="")
    kept = {place for place in kept if belongs(tree.thread.records[place], roots, newest)}
    return kept | (tree.tagged.intersection(places) if policy.keep_tagged else set())


def _of_branches(tree: _ThreadView, places: Sequence[CheckpointPlace]) -> Iterator[CheckpointPlace]:
    """Branch points with the first checkpoint of each branch, without which they would be none next time; and all ends."""
    for place in places:
        after = tree.children.get(place, set())
        if len(after) != 1:
            yield place
            yield from ((place[0], id) for id in after if not tree.thread.records[(place[0], id)].row.hidden)


def _waits(tree: _ThreadView, place: CheckpointPlace) -> bool:
    """Whether a question was asked here and nothing came after it."""
    tasks = tree.thread.tasks.get(place, ())
    asked = any(entry.channel == INTERRUPT for task in tasks for entry in task.entries.values())
    return asked and place not in tree.children
