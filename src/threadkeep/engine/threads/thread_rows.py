"""Load all rows of a thread, without its state, and find a checkpoint by id, short id, `latest` or `id~2`.

Verbs that look at a thread, prune it or branch it start here. Loading the rows is one round trip, loading the values
that a verb needs is another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from threadkeep.engine.commit import Seen, fill_cache
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import MSGPACK, Parts
from threadkeep.engine.log.itemlog import ItemRange
from threadkeep.engine.log.msgpack import SNAPSHOT, WHOLE, read_extension, split_parts
from threadkeep.engine.log.plain import plain_parts
from threadkeep.engine.log.records import CheckpointRecord, Slot, TaskWrites
from threadkeep.engine.requests import LoadedRows, LoadThreadRows
from threadkeep.engine.threads.checkpoints import metadata_of
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.errors import Missing

CheckpointKey = tuple[str, str]
"""Namespace and id of a checkpoint."""
LATEST = "latest"
TAG = "tag"
"""The metadata key of a checkpoint's tag."""
FORKED_FROM = "forked_from"
"""The metadata key of a branch that a rollback or a fork made: the id of the checkpoint where it starts."""
ANCESTOR_REF = re.compile(r"(?P<ref>.*)~(?P<steps>\d+)")
"""A reference to an ancestor: `~2` is the parent's parent."""
_PULL, _PUSH = "~__pregel_pull, ", "~__pregel_push, "


class ThreadRows(NamedTuple):
    """A thread: its checkpoints and the writes on each, both by (ns, id), and which items it stores.

    `tasks` also has the writes on checkpoints that do not exist.
    """

    head: Head
    records: dict[CheckpointKey, CheckpointRecord]
    tasks: dict[CheckpointKey, list[TaskWrites]]
    stored: tuple[ItemRange, ...]

    @property
    def key(self) -> ThreadKey:
        """The key of the thread."""
        return self.head.key

    def metadata(self, record: CheckpointRecord) -> dict[str, Any]:
        """Return a checkpoint's metadata."""
        return metadata_of(self.head, record)

    def visible(self, ns: str | None = None) -> list[CheckpointRecord]:
        """Return the checkpoints that are not hidden, of one namespace or of all, oldest first."""
        found = [r for r in self.records.values() if not r.row.hidden and ns in (None, r.row.ns)]
        return sorted(found, key=lambda record: (record.row.id, record.row.ns))


def thread_rows(heads: Heads, key: ThreadKey, loaded: LoadedRows) -> ThreadRows | None:
    """Decode the reply of `LoadThreadRows`. None if the thread does not exist; Corrupt if a row cannot be decoded."""
    if loaded.thread is None:
        return None
    head = heads.head_from(key, loaded, None)
    records: dict[CheckpointKey, CheckpointRecord] = {}
    tasks: dict[CheckpointKey, list[TaskWrites]] = {}
    for found in loaded.checkpoints:
        if found.row is not None:
            records[(found.row.ns, found.row.id)] = head.checkpoint(found.row)
        for row in found.writes:
            tasks.setdefault((row.ns, row.checkpoint), []).append(head.task(row))
    return ThreadRows(head, records, tasks, loaded.stored)


async def load_thread_rows(heads: Heads, key: ThreadKey) -> ThreadRows:
    """Return all rows of a thread. Missing if it does not exist. One round trip."""
    found = thread_rows(heads, key, await LoadThreadRows(key))
    if found is None:
        raise Missing(f"thread {key.id!r} not found")
    return found


async def load_to_change(heads: Heads, key: ThreadKey) -> Seen[ThreadRows]:
    """Return all rows of a thread, for a verb that changes it. Missing if it does not exist. One round trip."""
    found = await load_thread_rows(heads, key)
    return Seen(found, found.head.row, found.records)


def find_checkpoint(thread: ThreadRows, ref: str | None, ns: str = "") -> CheckpointRecord:
    """Return the checkpoint that a reference names.

    A reference is an id, a unique beginning or end of one, or `latest` (or None); `~2` after it means two before. A
    complete id wins. Missing if no checkpoint matches, ValueError if several do.
    """
    ref = ref or LATEST
    exact = thread.records.get((ns, ref))
    if exact is not None:
        return exact
    if (back := ANCESTOR_REF.fullmatch(ref)) is not None:
        return _ancestor(thread, find_checkpoint(thread, back["ref"], ns), int(back["steps"]))
    where = f"thread {thread.key.id!r}" + (f", namespace {ns!r}" if ns else "")
    return thread.records[(ns, match_id([record.row.id for record in thread.visible(ns)], ref, where))]


def match_id(ids: list[str], ref: str, where: str) -> str:
    """Return the last of these ids if the reference is `latest`, else the only one that begins or ends with it.

    Missing if no id matches, ValueError if several do.
    """
    named = ids[-1:] if ref == LATEST else [id for id in ids if matches_short_id(ref, id)]
    if not named:
        raise Missing(f"checkpoint {ref!r} not found in {where}")
    if len(named) > 1:
        raise ValueError(f"{len(named)} checkpoints of {where} begin or end with {ref!r}: give more of the id")
    return named[0]


def matches_short_id(ref: str, id: str) -> bool:
    """Return whether an id begins or ends with a reference. Ids made at about the same time begin alike."""
    return id.startswith(ref) or id.endswith(ref)


def _ancestor(thread: ThreadRows, record: CheckpointRecord, steps: int) -> CheckpointRecord:
    for _ in range(steps):
        parent = thread.records.get((record.row.ns, record.row.parent or ""))
        if parent is None:
            raise Missing(f"checkpoint {record.row.id!r} of thread {thread.key.id!r} does not have {steps} ancestors")
        record = parent
    return record


def lineage(thread: ThreadRows, record: CheckpointRecord) -> Iterator[CheckpointRecord]:
    """Yield a checkpoint and its ancestors, nearest first. A cycle ends it."""
    visited: set[str] = set()
    found: CheckpointRecord | None = record
    while found is not None and found.row.id not in visited:
        visited.add(found.row.id)
        yield found
        found = thread.records.get((record.row.ns, found.row.parent or ""))


def forked_from(thread: ThreadRows, record: CheckpointRecord) -> str | None:
    """Return the id of the checkpoint where a branch starts, if a rollback or a fork made the branch."""
    named = thread.metadata(record).get(FORKED_FROM)
    return named if isinstance(named, str) else None


def children(thread: ThreadRows) -> dict[CheckpointKey, set[str]]:
    """Return the ids of each checkpoint's children, hidden ones included. A branch is a child of where it starts."""
    found: dict[CheckpointKey, set[str]] = {}
    for (ns, id), record in thread.records.items():
        for parent in {record.row.parent, forked_from(thread, record)} - {None, id}:
            found.setdefault((ns, parent or ""), set()).add(id)
    return found


async def load_slots(heads: Heads, thread: ThreadRows, slots: Iterable[Slot]) -> ThreadRows:
    """Load the items of these slots into the thread's cache. One round trip; none if all of them are cached.

    Conflict if the thread was pruned since its rows were loaded: load them again.
    """
    await fill_cache(heads, thread.head, (each for slot in slots for each in slot.ranges))
    return thread


def slot_value(head: Head, slot: Slot, what: str) -> Any:
    """Return the value of a slot as plain data; its items must be cached. `what` names it in errors."""
    if slot.inline is not None:
        return plain_parts(0, slot.tag, 1, slot.inline, what=what)
    return plain_parts(slot.kind, slot.tag, slot.elements, head.bytes_of(slot.ranges), what=what)


def stored_parts(head: Head, slot: Slot) -> Parts:
    """Return the parts of a slot's value as they are stored; its items must be cached."""
    data = slot.inline if slot.inline is not None else head.bytes_of(slot.ranges)
    if slot.kind == WHOLE:
        return Parts(WHOLE, slot.tag, [data], slot.snapshot)
    elements = list(split_parts(data, slot.elements)) if slot.elements else []
    return Parts(slot.kind, slot.tag, elements, slot.snapshot)


def slot_parts(head: Head, slot: Slot) -> Parts:
    """Return the parts of a slot's value; its items must be cached. A snapshot that is stored whole is unwrapped."""
    parts = stored_parts(head, slot)
    if parts.kind != WHOLE or parts.tag != MSGPACK or not parts.data:
        return parts
    wrapped = read_extension(parts.data, 0)
    if wrapped is None or wrapped[0] != SNAPSHOT:
        return parts
    return Parts(WHOLE, MSGPACK, [parts.data[wrapped[1] :]], snapshot=True)


def node_of_task(path: str, sends: Iterable[Any] = ()) -> str | None:
    """Return the node that a task ran, from its path; for a Send, from the pending send with its number.

    `sends` is the plain value of the checkpoint's pending sends. None if the path does not tell: writes of update_state
    before LangGraph 1.0, and tasks of the functional API.
    """
    if path.startswith(_PULL):
        return path.removeprefix(_PULL)
    number = path.removeprefix(_PUSH).partition(", ")[0]
    if is_send_path(path) and number.isdigit():
        pending = list(sends)
        send = pending[int(number)] if int(number) < len(pending) else None
        return str(send["node"]) if isinstance(send, dict) and "node" in send else None
    return None


def is_send_path(path: str) -> bool:
    """Return whether a task came from a pending send, or from a call of the functional API."""
    return path.startswith(_PUSH)
