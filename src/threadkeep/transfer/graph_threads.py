"""LangGraph threads of another saver: put the checkpoints that are missing in the order of their ids, then compare.

Nothing that the target has is changed, except special writes (interrupts, errors, resumes), of which the last counts:
they follow the source as long as nobody continued the thread here. So an interrupted import continues where it stopped,
and repeating the import of a source that has grown adds what is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from threadkeep.clock import nonce, now_ms
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import Codec, Parts, pack, unpack
from threadkeep.engine.log.msgpack import WHOLE, header
from threadkeep.engine.log.records import CheckpointRecord, Slot, TaskWrites
from threadkeep.engine.log.type_gate import KeepSerializer
from threadkeep.engine.requests import CheckpointRef, ScanCheckpoints
from threadkeep.engine.threads.checkpoints import load_checkpoints, metadata_of
from threadkeep.engine.threads.checkpoints import write as commit_ops
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.engine.threads.metadata import LARGE_METADATA
from threadkeep.engine.threads.ops import CHECKPOINT_FIELDS, Op, Put, PutWrites
from threadkeep.errors import Conflict
from threadkeep.plan import Failure
from threadkeep.plan import Outcome as OpOutcome
from threadkeep.transfer.pipeline import Transfer
from threadkeep.transfer.result import Outcome
from threadkeep.transfer.sources.source import (
    CheckpointPlace,
    EncodedCheckpoint,
    EncodedWrite,
    ForeignCheckpoint,
    ForeignGraphThreads,
    WriteCount,
    time_of,
)
from threadkeep.transfer.sources.value_cipher import ValueCipher, is_encrypted
from threadkeep.work import Blocking, Change, Progress, Read, Work

_BYTES, _OPS, _LOOKUPS = 4 * 1024 * 1024, 500, 200
"""How much goes into one commit, and how many checkpoints are looked up at once."""
_LARGEST_POOL = 24 * 1024 * 1024
"""Bytes of stored items that are held in memory while both sides are compared."""
_PLAIN = Codec(KeepSerializer())


@dataclass(slots=True)
class GraphThread:
    """A LangGraph thread of another saver on its way into a Keep. `key` is its key there."""

    into: Transfer
    source: ForeignGraphThreads
    key: ThreadKey
    _places: list[CheckpointPlace] = field(default_factory=list)
    _here: set[CheckpointPlace] = field(default_factory=set)
    _is_continued: bool = False
    """Whether the thread has checkpoints here that the source does not have."""
    _ops_per_commit: int = _OPS

    def put(self) -> Work[Outcome | None]:
        """Put what is missing. A dry run only counts it, and does not notice special writes that changed."""
        written: dict[CheckpointPlace, WriteCount] = yield Blocking(lambda: self.source.write_counts(self.key.id))
        checkpoints: list[CheckpointPlace] = yield Blocking(lambda: self.source.checkpoints(self.key.id))
        self._places = _parents_first({*checkpoints, *written})
        self._here = yield from self._read_places()
        self._is_continued = not self._here.issubset(self._places)
        missing = _parents_first(set(checkpoints) - self._here)
        here = yield from self._count_writes(sorted(written.keys() - set(missing)))
        tally, known = self.into.tally, len(self._here.intersection(self._places))
        tally.add("already_there", known)
        tally.done += known
        before = tally["checkpoints"] + tally["writes"]
        if self.into.dry_run:
            tally.add("checkpoints", len(missing))
            tally.add("writes", sum(max(each.writes - here.get(place, 0), 0) for place, each in written.items()))
        else:
            yield from self._put_checkpoints(missing)
            changed = [place for place, n in here.items() if written[place].special or written[place].writes > n]
            yield from self._put_writes(changed, only_new=self._is_continued)
            self._heads.drop(self.key)
        return self._outcome(tally["checkpoints"] + tally["writes"] - before)

    def compare(self) -> Work[None]:
        """Read both sides again and report where they differ."""
        reading, head = self.source.read(self.key.id, self._places), None
        while some := (yield Blocking(lambda: _next_slice(reading))):
            places = [each.place for each in some]
            head, here = yield Read(partial(_read, self._heads, self.key, places, head))
            yield Blocking(partial(self._compare_slice, head, here, some))
            if head.cache.size > _LARGEST_POOL:
                head = None
            yield Progress(self.into.tally.done, self.into.tally.total, f"{self.key.id}: comparing")
        self._heads.drop(self.key)

    @property
    def _heads(self) -> Heads:
        return self.into.session.heads

    def _outcome(self, added: int) -> Outcome:
        if not added:
            return "unchanged"
        return "merged" if self._is_continued else "updated" if self._here else "created"

    def _read_places(self) -> Work[set[CheckpointPlace]]:
        """The checkpoints that the thread has here."""
        here: set[CheckpointPlace] = set()
        scan = ScanCheckpoints(self.key.tenant, self.key.kind, _OPS, thread=self.key.id)
        while True:
            hits = yield Read(partial(_scanned, scan))
            here.update(CheckpointPlace(hit.row.ns, hit.row.id) for hit in hits)
            if len(hits) < _OPS:
                return here
            last = hits[-1]
            after = (last.row.id, last.key.id, last.row.ns)
            scan = ScanCheckpoints(self.key.tenant, self.key.kind, _OPS, thread=self.key.id, after=after)

    def _count_writes(self, places: Sequence[CheckpointPlace]) -> Work[dict[CheckpointPlace, int]]:
        """Count the writes that are here at these places."""
        counts: dict[CheckpointPlace, int] = {}
        for start in range(0, len(places), _LOOKUPS):
            some = places[start : start + _LOOKUPS]
            found = yield Read(partial(_write_counts, self._heads, self.key, some))
            counts.update(zip(some, found, strict=True))
        return counts

    def _put_checkpoints(self, places: Sequence[CheckpointPlace]) -> Work[None]:
        """Put checkpoints together with their writes, several in each commit."""
        reading, tally = self.source.read(self.key.id, places), self.into.tally
        while some := (yield Blocking(lambda: _next_slice(reading))):
            ops = yield Blocking(partial(self._ops, some, only_new=True))
            yield from self._commit(ops)
            tally.add("checkpoints", sum(each.checkpoint is not None for each in some))
            tally.add("bytes", sum(each.fresh for each in some))
            tally.done += sum(each.checkpoint is not None or each.problem is not None for each in some)
            yield Progress(tally.done, tally.total, self.key.id)

    def _put_writes(self, places: Sequence[CheckpointPlace], *, only_new: bool) -> Work[None]:
        """Put writes that are missing on checkpoints that are here, or on none."""
        reading = self.source.read(self.key.id, places)
        while some := (yield Blocking(lambda: _next_slice(reading))):
            at = [each.place for each in some]
            head, here = yield Read(partial(_read, self._heads, self.key, at, None))
            missing = [_missing_writes(head, each, tasks) for each, (_, tasks) in zip(some, here, strict=True)]
            yield from self._commit(self._ops(missing, only_new=only_new))

    def _commit(self, ops: Sequence[tuple[CheckpointPlace, Op]]) -> Work[None]:
        """Commit these ops. If others keep writing to the thread, the commits become smaller."""
        while ops:
            some = ops[: self._ops_per_commit]
            try:
                outcomes = yield Change(self.key, partial(commit_ops, self._heads, self.key, [op for _, op in some]))
            except Conflict:
                if len(some) == 1:
                    raise
                self._ops_per_commit = len(some) // 2
                continue
            for (place, op), outcome in zip(some, outcomes, strict=True):
                self._count_op(place, op, outcome)
            ops = ops[len(some) :]

    def _count_op(self, place: CheckpointPlace, op: Op, outcome: OpOutcome) -> None:
        """Count what was written. A value that cannot be stored is a difference."""
        if isinstance(outcome, Failure):
            if not isinstance(outcome.error, (TypeError, ValueError)):
                raise outcome.error
            self._differs(place, f"left out: {outcome.error}")
        elif isinstance(op, PutWrites):
            self.into.tally.add("writes", len(op.writes))

    def _ops(self, some: Sequence[ForeignCheckpoint], *, only_new: bool) -> list[tuple[CheckpointPlace, Op]]:
        ops: list[tuple[CheckpointPlace, Op]] = []
        for each in some:
            if each.problem is not None:
                self._differs(each.place, f"left out: {each.problem}")
            try:
                if self.into.cipher is None:
                    _refuse_encrypted(each)
                ops += [(each.place, op) for op in _ops_of(each, only_new=only_new)]
            except (TypeError, ValueError) as error:
                self._differs(each.place, f"left out: {error}")
        return ops

    def _differs(self, place: CheckpointPlace, what: str) -> None:
        self.into.differs(self.key, f"{place}: {what}")

    def _compare_slice(self, head: Head, here: Sequence[_Here], some: Sequence[ForeignCheckpoint]) -> None:
        for each, (record, tasks) in zip(some, here, strict=True):
            if each.problem is None and each.checkpoint is not None:
                for what in _differences(head, record, each.checkpoint, self.into.cipher):
                    self._differs(each.place, what)
            for write in each.writes:
                may_differ = self._is_continued and write.idx < 0
                if not (may_differ or _has(head, tasks, write)):
                    what = f"write {write.idx} of task {write.task!r} to {write.channel!r} differs"
                    self._differs(each.place, what)


_Here = tuple[CheckpointRecord | None, dict[str, TaskWrites]]
"""A checkpoint of the target, and its writes by task."""


def _parents_first(places: Iterable[CheckpointPlace]) -> list[CheckpointPlace]:
    return sorted(places, key=lambda place: (place.id, place.ns))


async def _scanned(scan: ScanCheckpoints) -> Any:
    return await scan


def _next_slice(reading: Iterator[ForeignCheckpoint]) -> list[ForeignCheckpoint]:
    """The next checkpoints, as many as one commit takes."""
    some: list[ForeignCheckpoint] = []
    size = ops = 0
    for found in reading:
        some.append(found)
        size += found.fresh
        ops += 1 + len(found.writes)
        if size >= _BYTES or ops >= _OPS:
            break
    return some


def _ops_of(found: ForeignCheckpoint, *, only_new: bool) -> list[Op]:
    time = time_of(found.place, found.checkpoint)
    time = now_ms() if time is None else time
    ops: list[Op] = []
    if found.checkpoint is not None:
        ops.append(_put(found.place, found.checkpoint, time))
    by_task: dict[tuple[str, str], list[tuple[int, str, Parts]]] = {}
    for each in found.writes:
        by_task.setdefault((each.task, each.path), []).append((each.idx, each.channel, each.value))
    for (task, path), writes in by_task.items():
        ns, id = found.place
        ops.append(PutWrites(ns, id, task, path, None, writes, time, nonce(), only_new=only_new))
    return ops


def _refuse_encrypted(found: ForeignCheckpoint) -> None:
    """Raise ValueError if a value is encrypted: it could not be decrypted, and could not be read here."""
    values = found.checkpoint.values if found.checkpoint is not None else {}
    for name, parts in (*values.items(), *((each.channel, each.value) for each in found.writes)):
        if is_encrypted(parts.tag):
            raise ValueError(f"its value of {name!r} cannot be decrypted")


def _put(place: CheckpointPlace, given: EncodedCheckpoint, time: int) -> Put:
    """A put of values that are already encoded."""
    checkpoint = {
        **{name: given.fields[name] for name in CHECKPOINT_FIELDS if name in given.fields},
        "id": place.id, "channel_versions": given.versions, "versions_seen": given.seen,
    }  # fmt: skip
    op = Put(
        codec=_PLAIN, ns=place.ns, parent=given.parent, checkpoint=checkpoint, given_metadata=given.metadata,
        new_versions={}, time=time, nonce=nonce(), only_new=True,
    )  # fmt: skip
    op.values = dict.fromkeys(given.values)
    op.encoded = dict(given.values)
    op.rest = given.rest if op.rest is None else op.rest
    return op


def _missing_writes(head: Head, found: ForeignCheckpoint, tasks: Mapping[str, TaskWrites]) -> ForeignCheckpoint:
    """The writes that are not here yet."""
    writes = [each for each in found.writes if not _has(head, tasks, each)]
    return found._replace(checkpoint=None, problem=None, writes=writes)


async def _write_counts(heads: Heads, key: ThreadKey, places: Sequence[CheckpointPlace]) -> list[int]:
    """Count the writes that are here at each place. One round trip."""
    _, here = await _read(heads, key, places, None, items=False)
    return [sum(len(task.entries) for task in tasks.values()) for _, tasks in here]


async def _read(
    heads: Heads, key: ThreadKey, places: Sequence[CheckpointPlace], head: Head | None, *, items: bool = True
) -> tuple[Head, list[_Here]]:
    """Read what is here at these places. One round trip."""
    head, loaded = await load_checkpoints(
        heads, key, tuple(CheckpointRef(*place, items=items) for place in places), head
    )
    if loaded.thread is None:
        return head, [(None, {})] * len(places)
    return head, [
        (head.checkpoint(found.row) if found.row else None, {row.task: head.task(row) for row in found.writes})
        for found in loaded.checkpoints
    ]


def _differences(
    head: Head, here: CheckpointRecord | None, there: EncodedCheckpoint, cipher: ValueCipher | None
) -> Iterator[str]:
    """How a checkpoint differs from the source's."""
    if here is None:
        yield "it is missing"
        return
    if here.row.parent != there.parent:
        yield f"its parent is {here.row.parent!r}, not {there.parent!r}"
    if _comparable(metadata_of(head, here)) != _comparable(unpack(pack(there.metadata), "metadata") or {}):
        yield "its metadata differs"
    if _comparable(here.versions) != _comparable(there.versions) or _comparable(here.seen) != _comparable(there.seen):
        yield "its versions differ"
    fields_differ = any(here.fields.get(name) != there.fields.get(name) for name in CHECKPOINT_FIELDS)
    if fields_differ or _opened(here.rest, cipher) != _opened(there.rest, cipher):
        yield "its other fields differ"
    for name in sorted((here.slots.keys() - {LARGE_METADATA}) ^ there.values.keys()):
        yield f"channel {name!r} is " + ("missing" if name in there.values else "not in the source")
    for name, parts in there.values.items():
        if name in here.slots and not _is_same(head, here.slots[name], parts, cipher):
            yield f"channel {name!r} differs"


def _comparable(given: Mapping[str, Any]) -> dict[str, bytes]:
    """A dict for comparing: types count, the order of keys does not."""
    return {key: pack(_sorted(value)) for key, value in given.items()}


def _sorted(value: Any) -> Any:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def _has(head: Head, tasks: Mapping[str, TaskWrites], given: EncodedWrite) -> bool:
    task = tasks.get(given.task)
    entry = task.entries.get(given.idx) if task is not None else None
    return (
        entry is not None
        and entry.channel == given.channel
        and entry.origin[0] == given.path
        and _is_same(head, entry.slot, given.value)
    )


def _opened(value: tuple[str, bytes] | None, cipher: ValueCipher | None) -> tuple[str, bytes] | None:
    return value if value is None or cipher is None else cipher.opened(*value)


def _is_same(head: Head, slot: Slot, parts: Parts, cipher: ValueCipher | None = None) -> bool:
    """Whether a stored value has the same bytes, before they were encrypted."""
    if slot.tag != parts.tag or slot.snapshot != parts.snapshot:
        return False
    data = slot.inline if slot.inline is not None else head.bytes_of(slot.ranges)
    data = data if slot.kind == WHOLE else header(slot.kind, slot.elements) + data
    return _opened((slot.tag, data), cipher) == _opened((parts.tag, parts.data), cipher)
