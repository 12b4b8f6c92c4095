"""All rows of a thread, without its state; find a checkpoint among them by id, short id, `latest` or `id~2`.

Verbs that look at a thread, prune it or branch it work on these rows. `damaged_rows` loads them. Loading the rows is
one round trip, loading the values that a verb needs is another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from threadkeep.engine.commit import fill_cache
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import MSGPACK, Parts
from threadkeep.engine.log.itemlog import SHARED, ItemId, ItemRange
from threadkeep.engine.log.msgpack import SNAPSHOT, WHOLE, read_extension, split_parts
from threadkeep.engine.log.plain import plain_parts
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, Slot, TaskWrites, WriteRow
from threadkeep.engine.requests import LoadedRows
from threadkeep.engine.threads.checkpoints import metadata_of
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.errors import Corrupt, Missing

CheckpointKey = tuple[str, str]
"""Namespace and id of a checkpoint."""
TaskKey = tuple[str, str, str]
"""Namespace, checkpoint id and task id of some writes."""
LATEST = "latest"
TAG = "tag"
"""The metadata key of a checkpoint's tag."""
BRANCH_NAME = "branch_name"
"""The metadata key of the name that a checkpoint gives to its branch."""
FORK, FORKED_FROM = "fork", "forked_from"
"""The source of a branch that a rollback or a fork made; the metadata key of the checkpoint where it starts."""
ANCESTOR_REF = re.compile(r"(?P<ref>.*)~(?P<steps>\d+)")
"""A reference to an ancestor: `~2` is the parent's parent."""
_MOST_CANDIDATES = 5
_PULL, _PUSH = "~__pregel_pull, ", "~__pregel_push, "


class DamagedCheckpoint(NamedTuple):
    """A checkpoint that cannot be read, and why. `row` has its columns, which may be wrong; None if they are malformed.

    The checksum does not say which column is wrong, so only the key is sure: the row was found under it.
    """

    reason: str
    row: CheckpointRow | None

    @property
    def is_visible(self) -> bool:
        """Whether it counts as visible: it does, unless its row says that it is hidden."""
        return self.row is None or not self.row.hidden


class DamagedWrites(NamedTuple):
    """The writes of a task that cannot be read, and why. `row` is as for a damaged checkpoint."""

    reason: str
    row: WriteRow | None

    @property
    def writes(self) -> int:
        """The number of writes, as far as the row says."""
        return len(self.row.index) // 3 if self.row is not None else 0


class ThreadRows(NamedTuple):
    """A thread: its checkpoints and the writes on each, both by (ns, id), and which items it stores.

    `tasks` also has the writes on checkpoints that do not exist. `damaged` and `damaged_writes` have the rows that
    cannot be read; they are in neither `records` nor `tasks`. With `names_damaged`, nothing can be added to the thread.
    `incomplete` says which rows are missing, by the counters of the thread's own row; None if none are.
    """

    head: Head
    records: dict[CheckpointKey, CheckpointRecord]
    tasks: dict[CheckpointKey, list[TaskWrites]]
    stored: tuple[ItemRange, ...]
    damaged: Mapping[CheckpointKey, DamagedCheckpoint] = {}
    damaged_writes: Mapping[TaskKey, DamagedWrites] = {}
    names_damaged: bool = False
    incomplete: str | None = None

    @property
    def key(self) -> ThreadKey:
        """The key of the thread."""
        return self.head.key

    @property
    def is_damaged(self) -> bool:
        """Whether a row, or something that rows refer to, cannot be read. The items of values were not read."""
        return bool(self.damaged or self.damaged_writes or self.names_damaged)

    def metadata(self, record: CheckpointRecord) -> dict[str, Any]:
        """Return a checkpoint's metadata."""
        return metadata_of(self.head, record)

    def visible(self, ns: str | None = None) -> list[CheckpointRecord]:
        """Return the intact checkpoints that are not hidden, of one namespace or of all, oldest first."""
        found = [r for r in self.records.values() if not r.row.hidden and ns in (None, r.row.ns)]
        return sorted(found, key=lambda record: (record.row.id, record.row.ns))

    def visible_keys(self, ns: str | None = None) -> list[CheckpointKey]:
        """Return the keys of all checkpoints that are not hidden, damaged ones included, oldest first."""
        found = [key for key, record in self.records.items() if not record.row.hidden]
        found += [key for key, damaged in self.damaged.items() if damaged.is_visible]
        return sorted((key for key in found if ns in (None, key[0])), key=lambda key: (key[1], key[0]))

    def damaged_keys(self) -> set[CheckpointKey]:
        """Return the checkpoints whose row, or the row of writes on which, cannot be read."""
        return {*self.damaged, *((ns, id) for ns, id, _ in self.damaged_writes)}

    def record(self, key: CheckpointKey) -> CheckpointRecord:
        """Return a checkpoint that exists. Corrupt if it is damaged."""
        if key in self.damaged:
            raise Corrupt(f"checkpoint {key[1]!r} of {self.head.where} is damaged: {self.damaged[key].reason}")
        return self.records[key]


def thread_rows(heads: Heads, key: ThreadKey, loaded: LoadedRows) -> ThreadRows | None:
    """Decode the reply of `LoadThreadRows`. None if the thread does not exist; Corrupt if a row cannot be decoded."""
    if loaded.thread is None:
        return None
    head = heads.head_from(key, loaded, None)
    records: dict[CheckpointKey, CheckpointRecord] = {}
    tasks: dict[CheckpointKey, list[TaskWrites]] = {}
    for found in loaded.checkpoints:
        if found.row is not None:
            if not head.cache.has(ItemId(SHARED, found.row.labels)):
                raise Corrupt(f"labels {found.row.labels} of {head.where} are missing")
            records[(found.row.ns, found.row.id)] = head.checkpoint(found.row)
        for row in found.writes:
            tasks.setdefault((row.ns, row.checkpoint), []).append(head.task(row))
    return ThreadRows(head, records, tasks, loaded.stored)


def find_checkpoint(thread: ThreadRows, ref: str | None, ns: str = "") -> CheckpointRecord:
    """Return the checkpoint that a reference names, as `resolve_ref` does. Corrupt if it is damaged."""
    return thread.record(resolve_ref(thread, ref, ns))


def resolve_ref(thread: ThreadRows, ref: str | None, ns: str = "") -> CheckpointKey:
    """Return the key of the checkpoint that a reference names, damaged or not.

    A reference is an id, a unique beginning or end of one, or `latest` (or None); `~2` after it means two before. A
    complete id wins. Missing if no checkpoint matches, ValueError if several do. Corrupt if the way back to an ancestor
    leads through a damaged checkpoint.
    """
    ref = ref or LATEST
    if (ns, ref) in thread.records or (ns, ref) in thread.damaged:
        return (ns, ref)
    if (back := ANCESTOR_REF.fullmatch(ref)) is not None:
        return _ancestor(thread, resolve_ref(thread, back["ref"], ns), int(back["steps"]))
    where = f"thread {thread.key.id!r}" + (f", namespace {ns!r}" if ns else "")
    return (ns, match_id([id for _, id in thread.visible_keys(ns)], ref, where))


def means_latest(ref: str) -> bool:
    """Return whether a reference is `latest`, or counts back from it."""
    back = ANCESTOR_REF.fullmatch(ref)
    return (back["ref"] if back is not None else ref) == LATEST


def match_id(ids: list[str], ref: str, where: str) -> str:
    """Return the last of these ids if the reference is `latest`, else the only one that begins or ends with it.

    Missing if no id matches, ValueError if several do.
    """
    named = ids[-1:] if ref == LATEST else [id for id in ids if matches_short_id(ref, id)]
    if not ids:
        raise Missing(f"{where} has no checkpoints")
    if not named:
        raise Missing(f"checkpoint {ref!r} not found in {where}")
    if len(named) > 1:
        raise ValueError(ambiguous(ref, named, where))
    return named[0]


def ambiguous(ref: str, candidates: Iterable[str], where: str) -> str:
    """Return the message for a reference that several checkpoints match: it lists them, newest first."""
    listed = list(candidates)[::-1]
    more = f" and {len(listed) - _MOST_CANDIDATES} more" if len(listed) > _MOST_CANDIDATES else ""
    some = ", ".join(listed[:_MOST_CANDIDATES])
    return f"{len(listed)} checkpoints of {where} begin or end with {ref!r}: give more of the id of {some}{more}"


def matches_short_id(ref: str, id: str) -> bool:
    """Return whether an id begins or ends with a reference. Ids made at about the same time begin alike."""
    return id.startswith(ref) or id.endswith(ref)


def _ancestor(thread: ThreadRows, key: CheckpointKey, steps: int) -> CheckpointKey:
    start = key[1]
    for _ in range(steps):
        key = (key[0], thread.record(key).row.parent or "")
        if key not in thread.records and key not in thread.damaged:
            raise Missing(f"checkpoint {start!r} of thread {thread.key.id!r} does not have {steps} ancestors")
    return key


def lineage(
    thread: ThreadRows, record: CheckpointRecord, *, through_branches: bool = False
) -> Iterator[CheckpointRecord]:
    """Yield a checkpoint and its ancestors, nearest first. A cycle ends it, and so does a damaged ancestor.

    With `through_branches`, what comes before a branch is the checkpoint where it starts, if that is stored, even if
    the branch has another parent.
    """
    visited: set[str] = set()
    found: CheckpointRecord | None = record
    while found is not None and found.row.id not in visited:
        visited.add(found.row.id)
        yield found
        start = forked_from(thread, found) if through_branches and found.row.source == FORK else None
        ns, parent = record.row.ns, found.row.parent
        found = thread.records.get((ns, start or "")) or thread.records.get((ns, parent or ""))


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
