"""LangGraph's threads: what is missing here is put, in the order of ids, then both sides are read and compared.

Nothing that is here is changed, but for special writes (interrupts, errors, answers to them), of which the last counts:
those follow the source as long as the thread was not continued here. So an import that broke off goes on where it was,
and one of a source that has grown brings what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from threadkeep.desk import draw, now
from threadkeep.engine.backend import Scan, Want
from threadkeep.engine.checkpoints import about, load_some, write
from threadkeep.engine.codec import Codec, Parts, pack, unpack
from threadkeep.engine.gate import KeepSerializer
from threadkeep.engine.heads import Head, Heads
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.ops import FIELDS, Op, Put, PutWrites
from threadkeep.engine.records import Record, Slot, TaskWrites
from threadkeep.engine.wire import WHOLE, header
from threadkeep.errors import Conflict
from threadkeep.transfer.sources.source import Checkpoint, Counted, Found, Graphs, Place, Write, time_of
from threadkeep.transfer.sources.checkpoint_bytes import joined
from threadkeep.transfer.result import Tally
from threadkeep.plan import Failure, Outcome
from threadkeep.work import Aside, Change, Progress, Read, Work

_BYTES, _OPS, _AT_ONCE = 4 * 1024 * 1024, 500, 200
"""How much goes into one commit, and how many checkpoints are looked up at once."""
_LEANEST = 24 * 1024 * 1024
"""So many bytes of what is stored here are at hand while it is compared."""
_PLAIN = Codec(KeepSerializer())


@dataclass(slots=True)
class GraphThread:
    """One thread on its way from a source to here."""

    source: Graphs
    id: str
    key: ThreadKey
    heads: Heads
    tally: Tally
    most: int = _OPS
    """So many changes go into one commit."""

    def moved(self, *, verify: bool) -> Work[None]:
        """Bring in what is missing, and compare."""
        places: dict[Place, bool] = yield Aside(lambda: self.source.places(self.id))
        counted: dict[Place, Counted] = yield Aside(lambda: self.source.counted(self.id))
        here = yield from self._here()
        known = places.keys() & here
        is_continued = bool(here - places.keys())
        self.tally.threads += 1
        self.tally.skipped += len(known)
        self.tally.done += len(known)
        missing = [place for place, has_checkpoint in places.items() if has_checkpoint and place not in here]
        yield from self._put(missing)
        late = yield from self._with_new_writes(sorted(places.keys() - set(missing)), counted)
        yield from self._put_writes(late, only_new=is_continued)
        if verify:
            yield from self._compared(list(places), is_continued=is_continued)
        self.heads.forget(self.key)

    def counted(self) -> Work[None]:
        """Count what `moved` would bring in."""
        places: dict[Place, bool] = yield Aside(lambda: self.source.places(self.id))
        here = yield from self._here()
        self.tally.threads += 1
        self.tally.skipped += len(places.keys() & here)
        self.tally.checkpoints += sum(has for place, has in places.items() if place not in here)

    def _here(self) -> Work[set[Place]]:
        """The checkpoints that are here."""
        here: set[Place] = set()
        scan = Scan(self.key.tenant, self.key.kind, _OPS, thread=self.id)
        while True:
            hits = yield Read(lambda s=scan: _scanned(s))  # type: ignore[misc]
            here.update(Place(hit.row.ns, hit.row.id) for hit in hits)
            if len(hits) < _OPS:
                return here
            last = hits[-1]
            scan = Scan(
                self.key.tenant, self.key.kind, _OPS, thread=self.id, after=(last.row.id, last.key.id, last.row.ns)
            )

    def _put(self, places: Sequence[Place]) -> Work[None]:
        """Put checkpoints with their writes, some in each commit: one that is here has its writes, too."""
        reading = self.source.read(self.id, places)
        while some := (yield Aside(lambda: _some(reading))):
            ops = yield Aside(lambda found=some: self._ops(found, only_new=True))  # type: ignore[misc]
            yield from self._commit(ops)
            self.tally.checkpoints += sum(found.checkpoint is not None for found in some)
            self.tally.done += sum(found.checkpoint is not None or found.trouble is not None for found in some)
            self.tally.bytes += sum(found.fresh for found in some)
            yield Progress(self.tally.done, self.tally.total, self.id)

    def _put_writes(self, places: Sequence[Place], *, only_new: bool) -> Work[None]:
        """Put the writes of checkpoints that are here, or of none; those that are here are left out."""
        reading = self.source.read(self.id, places)
        while some := (yield Aside(lambda: _some(reading))):
            at = [found.place for found in some]
            head, here = yield Read(lambda p=at: _read(self.heads, self.key, p, None))  # type: ignore[misc]
            lacking = [_lacking(head, found, tasks) for found, (_, tasks) in zip(some, here, strict=True)]
            yield from self._commit(self._ops(lacking, only_new=only_new))

    def _commit(self, ops: Sequence[tuple[Place, Op]]) -> Work[None]:
        """Make these changes; where others write to the thread all the time, in commits that are short enough."""
        while ops:
            some = ops[: self.most]
            try:
                outcomes = yield Change(self.key, lambda c=some: write(self.heads, self.key, [op for _, op in c]))  # type: ignore[misc]
            except Conflict:
                if len(some) == 1:
                    raise
                self.most = len(some) // 2
                continue
            for (place, op), outcome in zip(some, outcomes, strict=True):
                self._made(place, op, outcome)
            ops = ops[len(some) :]

    def _made(self, place: Place, op: Op, outcome: Outcome) -> None:
        """Count a change; one that cannot be is a difference."""
        if isinstance(outcome, Failure):
            if not isinstance(outcome.error, (TypeError, ValueError)):
                raise outcome.error
            self._differs(place, f"left out: {outcome.error}")
        elif isinstance(op, PutWrites):
            self.tally.writes += len(op.writes)

    def _ops(self, some: Sequence[Found], *, only_new: bool) -> list[tuple[Place, Op]]:
        ops: list[tuple[Place, Op]] = []
        for found in some:
            if found.trouble is not None:
                self._differs(found.place, f"left out: {found.trouble}")
            try:
                ops += [(found.place, op) for op in _ops_of(found, only_new=only_new)]
            except (TypeError, ValueError) as error:
                self._differs(found.place, f"left out: {error}")
        return ops

    def _differs(self, place: Place, what: str) -> None:
        self.tally.differs(f"thread {self.id!r}, {place}: {what}")

    def _with_new_writes(self, known: Sequence[Place], counted: Mapping[Place, Counted]) -> Work[list[Place]]:
        """The checkpoints that are here and have more writes in the source, or such that may have changed."""
        late: list[Place] = []
        asked = [place for place in known if place in counted]
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            writes = yield Read(lambda places=some: _counts(self.heads, self.key, places))  # type: ignore[misc]
            late += [
                place
                for place, here in zip(some, writes, strict=True)
                if counted[place].special or counted[place].writes > here
            ]
        return late

    def _compared(self, places: Sequence[Place], *, is_continued: bool) -> Work[None]:
        """Read both sides again and tell where they differ."""
        reading, head = self.source.read(self.id, places), None
        while some := (yield Aside(lambda: _some(reading))):
            at = tuple(found.place for found in some)
            head, here = yield Read(lambda h=head, p=at: _read(self.heads, self.key, p, h))  # type: ignore[misc]
            yield Aside(lambda h=head, r=here, s=some: self._compare(h, r, s, is_continued=is_continued))  # type: ignore[misc]
            if head.pool.size > _LEANEST:
                head = None
            yield Progress(self.tally.done, self.tally.total, f"{self.id}: comparing")

    def _compare(self, head: Head, here: Sequence[_Here], some: Sequence[Found], *, is_continued: bool) -> None:
        for found, (record, tasks) in zip(some, here, strict=True):
            if found.trouble is None and found.checkpoint is not None:
                for what in _differences(head, record, found.checkpoint):
                    self._differs(found.place, what)
            for each in found.writes:
                if not (_has(head, tasks, each) or (is_continued and each.idx < 0)):
                    self._differs(found.place, f"write {each.idx} of task {each.task!r} to {each.channel!r} differs")


_Here = tuple[Record | None, dict[str, TaskWrites]]
"""A checkpoint of ours, and its writes by task."""


async def _scanned(scan: Scan) -> Any:
    return await scan


def _some(reading: Iterator[Found]) -> list[Found]:
    """The next checkpoints, as many as one commit takes."""
    some: list[Found] = []
    size = ops = 0
    for found in reading:
        some.append(found)
        size += found.fresh
        ops += 1 + len(found.writes)
        if size >= _BYTES or ops >= _OPS:
            break
    return some


def _ops_of(found: Found, *, only_new: bool) -> list[Op]:
    time = time_of(found.place, found.checkpoint)
    time = now() if time is None else time
    ops: list[Op] = []
    if found.checkpoint is not None:
        ops.append(_put(found.place, found.checkpoint, time))
    by_task: dict[tuple[str, str], list[tuple[int, str, Parts]]] = {}
    for each in found.writes:
        by_task.setdefault((each.task, each.path), []).append((each.idx, each.channel, each.value))
    for (task, path), writes in by_task.items():
        ns, id = found.place
        ops.append(PutWrites(ns, id, task, path, None, writes, time, draw(), only_new=only_new))
    return ops


def _put(place: Place, given: Checkpoint, time: int) -> Put:
    """A put of values that are encoded already."""
    checkpoint = {
        **{name: given.fields[name] for name in FIELDS if name in given.fields},
        "id": place.id, "channel_versions": given.versions, "versions_seen": given.seen,
    }  # fmt: skip
    op = Put(
        codec=_PLAIN, ns=place.ns, parent=given.parent, checkpoint=checkpoint, given_metadata=given.metadata,
        new_versions={}, time=time, draw=draw(), only_new=True,
    )  # fmt: skip
    op.values = dict.fromkeys(given.values)
    op.encoded = dict(given.values)
    op.rest = given.rest if op.rest is None else op.rest
    return op


def _lacking(head: Head, found: Found, tasks: Mapping[str, TaskWrites]) -> Found:
    """The writes that are not here yet."""
    writes = [each for each in found.writes if not _has(head, tasks, each)]
    return found._replace(checkpoint=None, trouble=None, writes=writes)


async def _counts(heads: Heads, key: ThreadKey, places: Sequence[Place]) -> list[int]:
    """How many writes are here, at each place. One round trip."""
    _, here = await _read(heads, key, places, None, items=False)
    return [sum(len(task.entries) for task in tasks.values()) for _, tasks in here]


async def _read(
    heads: Heads, key: ThreadKey, places: Sequence[Place], head: Head | None, *, items: bool = True
) -> tuple[Head, list[_Here]]:
    """What is here at these places. One round trip."""
    head, loaded = await load_some(heads, key, tuple(Want(*place, items=items) for place in places), head)
    if loaded.thread is None:
        return head, [(None, {})] * len(places)
    return head, [
        (head.checkpoint(found.row) if found.row else None, {row.task: head.task(row) for row in found.writes})
        for found in loaded.found
    ]


def _differences(head: Head, here: Record | None, there: Checkpoint) -> Iterator[str]:
    """What of a checkpoint is not as it is in the source."""
    if here is None:
        yield "is not here"
        return
    if here.row.parent != there.parent:
        yield f"its parent is {here.row.parent!r}, not {there.parent!r}"
    if _told(about(head, here)) != _told(unpack(pack(there.metadata), "metadata") or {}):
        yield "its metadata differs"
    if _told(here.versions) != _told(there.versions) or _told(here.seen) != _told(there.seen):
        yield "its versions differ"
    if here.rest != there.rest or any(here.fields.get(name) != there.fields.get(name) for name in FIELDS):
        yield "its other fields differ"
    for name in sorted(here.slots.keys() ^ there.values.keys()):
        yield f"channel {name!r} is " + ("not here" if name in there.values else "only here")
    for name, parts in there.values.items():
        if name in here.slots and not _is_same(head, here.slots[name], parts):
            yield f"channel {name!r} differs"


def _told(given: Mapping[str, Any]) -> dict[str, bytes]:
    """A dict for comparing: types count, the order of keys does not."""
    return {key: pack(_sorted(value)) for key, value in given.items()}


def _sorted(value: Any) -> Any:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def _has(head: Head, tasks: Mapping[str, TaskWrites], given: Write) -> bool:
    task = tasks.get(given.task)
    entry = task.entries.get(given.idx) if task is not None else None
    return (
        entry is not None
        and entry.channel == given.channel
        and entry.origin[0] == given.path
        and _is_same(head, entry.slot, given.value)
    )


def _is_same(head: Head, slot: Slot, parts: Parts) -> bool:
    """Whether a value of ours has the same bytes."""
    if slot.tag != parts.tag or slot.snapshot != parts.snapshot:
        return False
    data = slot.inline if slot.inline is not None else head.bytes_of(slot.runs)
    return (data if slot.kind == WHOLE else header(slot.kind, slot.elements) + data) == joined(parts)
