"""A whole thread without its state: every checkpoint and write, what nodes wrote them, and finding a checkpoint by name.

What looks at a thread, judges it or branches it starts here. One round trip; no value is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from threadkeep.engine.commit import Seen
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import MSGPACK, Parts
from threadkeep.engine.log.itemlog import ItemRange, union
from threadkeep.engine.log.msgpack import SNAPSHOT, WHOLE, extension, split_parts
from threadkeep.engine.log.plain import plain_parts
from threadkeep.engine.log.records import CheckpointRecord, Slot, TaskWrites
from threadkeep.engine.requests import LoadedRows, LoadItems, LoadThreadRows
from threadkeep.engine.threads.checkpoints import metadata_of
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.errors import Conflict, Missing

CheckpointPlace = tuple[str, str]
"""Namespace and id of a checkpoint."""
LATEST = "latest"
TAG = "tag"
"""The metadata by which somebody tagged a checkpoint."""
FORKED_FROM = "forked_from"
"""The metadata of a branch that a rollback or a fork made: which checkpoint it began at."""
BACK = re.compile(r"(?P<ref>.*)~(?P<steps>\d+)")
"""So many checkpoints before the one that is named."""
_PULL, _PUSH = "~__pregel_pull, ", "~__pregel_push, "


class ThreadRows(NamedTuple):
    """A thread: checkpoints by (ns, id), and the writes on each place. `stored` are the items that there are."""

    head: Head
    records: dict[CheckpointPlace, CheckpointRecord]
    tasks: dict[CheckpointPlace, list[TaskWrites]]
    stored: tuple[ItemRange, ...]

    @property
    def key(self) -> ThreadKey:
        """Which thread."""
        return self.head.key

    def metadata(self, record: CheckpointRecord) -> dict[str, Any]:
        """A checkpoint's metadata."""
        return metadata_of(self.head, record)

    def visible(self, ns: str | None = None) -> list[CheckpointRecord]:
        """The checkpoints that are not hidden, of a namespace or of all, oldest first."""
        found = [r for r in self.records.values() if not r.row.hidden and ns in (None, r.row.ns)]
        return sorted(found, key=lambda record: (record.row.id, record.row.ns))


def thread_rows(heads: Heads, key: ThreadKey, loaded: LoadedRows) -> ThreadRows | None:
    """What a Survey told; None if there is no such thread. Corrupt if a row cannot be read."""
    if loaded.thread is None:
        return None
    head = heads.seen(key, loaded, None)
    records: dict[CheckpointPlace, CheckpointRecord] = {}
    tasks: dict[CheckpointPlace, list[TaskWrites]] = {}
    for found in loaded.checkpoints:
        if found.row is not None:
            records[(found.row.ns, found.row.id)] = head.checkpoint(found.row)
        for row in found.writes:
            tasks.setdefault((row.ns, row.checkpoint), []).append(head.task(row))
    return ThreadRows(head, records, tasks, loaded.stored)


async def load_thread_rows(heads: Heads, key: ThreadKey) -> ThreadRows:
    """A thread as a whole; Missing if there is none. One round trip."""
    found = thread_rows(heads, key, await LoadThreadRows(key))
    if found is None:
        raise Missing(f"there is no thread {key.id!r}")
    return found


async def survey_to_change(heads: Heads, key: ThreadKey) -> Seen[ThreadRows]:
    """The same, for a verb that changes the thread."""
    found = await load_thread_rows(heads, key)
    return Seen(found, found.head.row, found.records)


def find(thread: ThreadRows, ref: str | None, ns: str = "") -> CheckpointRecord:
    """The checkpoint that somebody means: an id, the only one that begins or ends so, `latest` (or None), each with `~2`: two before.

    Missing if there is none, ValueError if there are several. An id that is spelled out wins.
    """
    ref = ref or LATEST
    exact = thread.records.get((ns, ref))
    if exact is not None:
        return exact
    if (back := BACK.fullmatch(ref)) is not None:
        return _before(thread, find(thread, back["ref"], ns), int(back["steps"]))
    where = f"thread {thread.key.id!r}" + (f", namespace {ns!r}" if ns else "")
    return thread.records[(ns, match_id([record.row.id for record in thread.visible(ns)], ref, where))]


def match_id(ids: list[str], ref: str, where: str) -> str:
    """The last of these ids if the reference is `latest`, else the only one that begins or ends so.

    Missing if there is none, ValueError if there are several.
    """
    named = ids[-1:] if ref == LATEST else [id for id in ids if matches_short_id(ref, id)]
    if not named:
        raise Missing(f"there is no checkpoint {ref!r} in {where}")
    if len(named) > 1:
        raise ValueError(f"{len(named)} checkpoints of {where} begin or end with {ref!r}: say more of the id")
    return named[0]


def matches_short_id(ref: str, id: str) -> bool:
    """Whether somebody may mean this id: it begins so, or ends so, since ids made at about the same time begin alike."""
    return id.startswith(ref) or id.endswith(ref)


def _before(thread: ThreadRows, record: CheckpointRecord, steps: int) -> CheckpointRecord:
    for _ in range(steps):
        parent = thread.records.get((record.row.ns, record.row.parent or ""))
        if parent is None:
            raise Missing(f"checkpoint {record.row.id!r} has no {steps} before it in thread {thread.key.id!r}")
        record = parent
    return record


def lineage(thread: ThreadRows, record: CheckpointRecord) -> Iterator[CheckpointRecord]:
    """A checkpoint and its ancestors, nearest first; a cycle ends it."""
    met: set[str] = set()
    found: CheckpointRecord | None = record
    while found is not None and found.row.id not in met:
        met.add(found.row.id)
        yield found
        found = thread.records.get((record.row.ns, found.row.parent or ""))


def forked_from(thread: ThreadRows, record: CheckpointRecord) -> str | None:
    """The checkpoint that a branch began at, if a rollback or a fork made it."""
    named = thread.metadata(record).get(FORKED_FROM)
    return named if isinstance(named, str) else None


def children(thread: ThreadRows) -> dict[CheckpointPlace, set[str]]:
    """The checkpoints that came after each one, hidden ones too; a branch comes after the one that it began at."""
    found: dict[CheckpointPlace, set[str]] = {}
    for (ns, id), record in thread.records.items():
        for before in {record.row.parent, forked_from(thread, record)} - {None, id}:
            found.setdefault((ns, before or ""), set()).add(id)
    return found


async def with_items(heads: Heads, thread: ThreadRows, slots: Iterable[Slot]) -> ThreadRows:
    """The thread with what these slots refer to at hand. One round trip; none if all is there.

    Conflict if the thread was pruned since it was surveyed: survey it again.
    """
    head = thread.head
    lacking = head.cache.lacking(union(run for slot in slots for run in slot.ranges))
    if not lacking:
        return thread
    loaded = await LoadItems(thread.key, lacking)
    same = loaded.thread is not None and head.row is not None and loaded.thread.epoch == head.row.epoch
    if not (same and heads.is_current(head)):
        raise Conflict(f"thread {thread.key.id!r} was pruned while it was read")
    head.cache.fill(loaded.items, head.where)
    return thread


def value_of(head: Head, slot: Slot, what: str) -> Any:
    """What a slot holds, as plain data; its items must be at hand."""
    if slot.inline is not None:
        return plain_parts(0, slot.tag, 1, slot.inline, what=what)
    return plain_parts(slot.kind, slot.tag, slot.elements, head.bytes_of(slot.ranges), what=what)


def parts_of(head: Head, slot: Slot) -> Parts:
    """What a slot holds, as its parts; its items must be at hand. A snapshot that is stored whole is unwrapped."""
    data = slot.inline if slot.inline is not None else head.bytes_of(slot.ranges)
    if slot.kind != WHOLE:
        elements = list(split_parts(data, slot.elements)) if slot.elements else []
        return Parts(slot.kind, slot.tag, elements, slot.snapshot)
    wrapped = extension(data, 0) if slot.tag == MSGPACK and data else None
    if wrapped is not None and wrapped[0] == SNAPSHOT:
        return Parts(WHOLE, MSGPACK, [data[wrapped[1] :]], snapshot=True)
    return Parts(WHOLE, slot.tag, [data], slot.snapshot)


def node_of(path: str, sends: Iterable[Any] = ()) -> str | None:
    """The node that a task ran, told by its path; of a Send, the one that the pending send of its number names.

    `sends` is the plain value of the checkpoint's pending sends. None for what a path does not tell: writes of
    update_state before LangGraph 1.0, tasks of the functional API.
    """
    if path.startswith(_PULL):
        return path.removeprefix(_PULL)
    number = path.removeprefix(_PUSH).partition(", ")[0]
    if is_send_path(path) and number.isdigit():
        known = list(sends)
        send = known[int(number)] if int(number) < len(known) else None
        return str(send["node"]) if isinstance(send, dict) and "node" in send else None
    return None


def is_send_path(path: str) -> bool:
    """Whether a task came from a pending send, or from a call of the functional API."""
    return path.startswith(_PUSH)
