"""Changing a talk, reading it, and forking it.

    write       Commit                  one round trip when warm; three when cold: Load, Items, Commit
    load        Load                    one
    fork        Load, Items, Items, Fork

Nothing is decoded to append or to fork: both need the ledger only, which is remembered. Appending again is harmless
where messages have ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from threadkeep.engine.commit import Decision, Seen, commit, commit_ops, new_row, read_consistently, with_top
from threadkeep.engine.cube.channels import (
    ANSWERS,
    EVENTS,
    EXTRA,
    FOLDED_EVENTS,
    MESSAGES,
    PARENT_THREAD,
    PENDING,
    after,
    checkpoint,
    count,
    read_messages,
    events,
    is_cleared,
    encode_parts,
    value,
)
from threadkeep.engine.cube.events import RunEvent, RunLog, pack_events, events_until
from threadkeep.engine.cube.ops import (
    NO_THREAD,
    NOT_COMPLETED,
    THREAD_EXISTS,
    AnyOp,
    AppendMessages,
    ClaimRun,
    ClearAnswers,
    ClearPendingRequest,
    CompleteRun,
    MergeExtra,
    Refused,
    SaveAnswer,
    SetParent,
    SetPendingRequest,
)
from threadkeep.engine.cube.staging import CubeStaging
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import MSGPACK, pack
from threadkeep.engine.log.itemlog import NAMES, SHARED, ItemRange
from threadkeep.engine.log.msgpack import LIST
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, Slot
from threadkeep.engine.requests import Batch, CheckpointRef, ForkThread, LoadItems, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.checkpoints import load_some, metadata_of, with_recent_checkpoints
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.errors import Conflict
from threadkeep.plan import Outcome

T = TypeVar("T")
_CHANNELS_READ: dict[type, tuple[str, ...]] = {
    AppendMessages: (EVENTS, PENDING), ClaimRun: (EVENTS, PENDING), CompleteRun: (EVENTS, PENDING), SetPendingRequest: (EVENTS, PENDING),
    ClearPendingRequest: (EVENTS, PENDING), SetParent: (EVENTS, PENDING), MergeExtra: (EXTRA,), SaveAnswer: (ANSWERS,), ClearAnswers: (ANSWERS,),
}  # fmt: skip
"""The channels that an op reads; the ledger and the question make the thread's status."""


async def write(heads: Heads, key: ThreadKey, ops: Sequence[AnyOp]) -> list[Outcome]:
    """Make all these changes in one commit; one outcome each, in order. One round trip when warm, three when cold."""
    return await commit_ops(heads, key, ops, partial(_load_staging, heads, key, ops))


async def _load_staging(heads: Heads, key: ThreadKey, ops: Sequence[AnyOp], head: Head | None) -> CubeStaging:
    head, record = await _newest_checkpoint(heads, key, head)
    if record is None:
        return CubeStaging(head, None, RunLog())
    needs = {name for op in ops for name in _CHANNELS_READ[type(op)]}
    if EVENTS not in needs:
        return CubeStaging(await _load_items(heads, head, record, needs), record, None)
    remembered, head.cache.ledger = head.cache.ledger, None  # it comes back when what is added to it is committed
    if remembered is not None and EVENTS in record.slots and remembered[0] == record.slots[EVENTS].ranges:
        return CubeStaging(await _load_items(heads, head, record, needs - {EVENTS}), record, remembered[1])
    head = await _load_items(heads, head, record, needs)
    return CubeStaging(head, record, RunLog(events(head, record)))


async def _newest_checkpoint(heads: Heads, key: ThreadKey, head: Head | None) -> tuple[Head, CheckpointRecord | None]:
    """The head, and its newest checkpoint, without items."""
    if head is not None and head.row is None:
        return head, None
    record = head.recent.get(("", head.row.top or "")) if head is not None and head.row is not None else None
    if head is not None and record is not None:
        return head, record
    return await _load_newest(heads, key, head)


async def _load_newest(heads: Heads, key: ThreadKey, head: Head | None) -> tuple[Head, CheckpointRecord | None]:
    """The same as they are now, whatever is remembered."""
    head, loaded = await load_some(heads, key, (CheckpointRef("", None, items=False),), head)
    row = loaded.checkpoints[0].row if loaded.checkpoints else None
    return head, head.checkpoint(row) if row is not None else None


async def _load_items(heads: Heads, head: Head, record: CheckpointRecord, names: Iterable[str]) -> Head:
    """The head with the items of these channels at hand."""
    runs = [run for name in names if name in record.slots for run in record.slots[name].ranges]
    lacking = head.cache.lacking(runs)
    if not lacking:
        return head
    loaded = await LoadItems(head.key, lacking)
    row = head.row
    if row is None or loaded.thread is None or loaded.thread.epoch != row.epoch or not heads.is_current(head):
        raise Conflict(f"{head.where} was pruned while it was read")
    head.cache.fill(loaded.items, head.where)
    return head


class CubeState(NamedTuple):
    """A talk of one moment; its messages are built by whoever asked."""

    messages: list[Any]
    extra: dict[str, Any]
    parent: str | None


async def load(heads: Heads, key: ThreadKey, build: Callable[[list[Any]], list[T]]) -> CubeState | None:
    """A talk; `build` makes messages of their plain forms, some at a time. One round trip."""
    head, record = await _load_newest_with_items(heads, key)
    if record is None:
        return None
    messages = read_messages(head, record.slots[MESSAGES].ranges, build) if MESSAGES in record.slots else []
    return CubeState(messages, value(head, record, EXTRA) or {}, metadata_of(head, record).get(PARENT_THREAD))


async def _load_newest_with_items(heads: Heads, key: ThreadKey) -> tuple[Head, CheckpointRecord | None]:
    """The newest checkpoint of a talk and all its items."""
    head, loaded = await load_some(heads, key, (CheckpointRef("", None),), heads.get(key))
    row = loaded.checkpoints[0].row if loaded.checkpoints else None
    if row is None:
        return head, None
    record = head.checkpoint(row)
    heads.remember(with_recent_checkpoints(head, [record]))
    return head, record


class CubeOverview(NamedTuple):
    """A talk without its messages: how many there are, what the ledger tells, and the rest as it is held."""

    messages: int
    runs: RunLog
    extra: dict[str, Any] | None
    pending: tuple[dict[str, Any], str | None] | None
    answers: dict[str, dict[str, Any]]
    parent: str | None


async def overview(heads: Heads, key: ThreadKey) -> CubeOverview | None:
    """A talk without its messages; None if there is no such thread. Two round trips."""
    head, record = await _load_newest(heads, key, None)
    if record is None:
        return None
    head = await _load_items(heads, head, record, (EVENTS, EXTRA, PENDING, ANSWERS))
    asked = value(head, record, PENDING)
    return CubeOverview(
        count(record.slots, MESSAGES),
        RunLog(events(head, record)),
        value(head, record, EXTRA),
        (asked[0], asked[1]) if asked is not None and not is_cleared(asked) else None,
        value(head, record, ANSWERS) or {},
        metadata_of(head, record).get(PARENT_THREAD),
    )


async def snapshot(heads: Heads, key: ThreadKey, run: str, build: Callable[[list[Any]], list[T]]) -> list[T]:
    """The messages of no run and of the runs that were completed up to this one. One round trip."""
    head, record = await _load_newest_with_items(heads, key)
    if record is None:
        raise _no_thread(key)
    return read_messages(head, _until_run(record, events(head, record), run, key)[1], build)


def _no_thread(key: ThreadKey) -> Refused:
    return Refused(NO_THREAD, f"there is no thread {key.id!r}")


def _until_run(
    record: CheckpointRecord, told: Sequence[RunEvent], run: str, key: ThreadKey
) -> tuple[list[RunEvent], tuple[ItemRange, ...]]:
    """What is left up to a run: events, and the runs of items that hold their messages."""
    kept = events_until(told, run)
    if kept is None:
        raise Refused(NOT_COMPLETED, f"thread {key.id!r}: run {run!r} is not completed")
    held = record.slots[MESSAGES].ranges if MESSAGES in record.slots else ()
    if len(kept) == len(told):
        return kept, held
    ids = (at for each in held for at in each.ids())
    stay = set(map(id, kept))
    taken = [(event, list(islice(ids, event.items))) for event in told]
    return kept, itemlog.join_ranges(at for event, items in taken if id(event) in stay for at in items)


async def pending(heads: Heads, key: ThreadKey) -> tuple[dict[str, Any], str | None] | None:
    """The question that waits, and its run."""
    found = await _read_current(heads, key, PENDING)
    return (found[0], found[1]) if found is not None and not is_cleared(found) else None


async def answer(heads: Heads, key: ThreadKey, run: str, question: str) -> Any:
    """An answer, or None."""
    return ((await _read_current(heads, key, ANSWERS)) or {}).get(run, {}).get(question)


async def _read_current(heads: Heads, key: ThreadKey, name: str) -> Any:
    """A channel of the newest checkpoint as it is now. One round trip; two if it is large and not at hand."""

    async def once() -> Any:
        head, record = await _load_newest(heads, key, heads.get(key))
        if record is None:
            return None
        head = await _load_items(heads, head, record, (name,))
        heads.remember(with_recent_checkpoints(head, [record]))
        return value(head, record, name)

    return await read_consistently(key, once)


async def fork(
    heads: Heads, source: ThreadKey, target: ThreadKey, run: str, about: Any, *, time: int, nonce: int
) -> None:
    """A new talk with what is left of another up to a run. Its messages are copied inside the database, unread.

    Four round trips. `metadata_of` stands in its extra as `fork`, if it is given.
    """

    async def read() -> Seen[tuple[Head, CheckpointRecord]]:
        head, record = await _load_newest(heads, source, heads.get(source))
        if record is None:
            raise _no_thread(source)
        there = (await LoadItems(target, ())).thread
        if there is None:
            head = await _load_items(heads, head, record, (EVENTS, EXTRA))
        return Seen((head, record), there)

    def decide(seen: Seen[tuple[Head, CheckpointRecord]], attempt: int) -> Decision[None]:
        if seen.row is not None:
            raise Refused(THREAD_EXISTS, f"there is a thread {target.id!r} already")
        head, record = seen.state
        assert head.row is not None
        forked = _fork_until_run(head, record, target, run, about, time, nonce + attempt)
        return Decision(None, ForkThread(source, (head.row.epoch, head.row.rev), *forked))

    await commit(heads, target, read, decide, source=source)


def _fork_until_run(
    head: Head, record: CheckpointRecord, target: ThreadKey, run: str, about: Any, time: int, nonce: int
) -> tuple[tuple[ItemRange, ...], Batch]:
    draft = Draft(head)
    slots = slots_until_run(head, record, run, about, draft)
    return fork_batch(draft, slots, target, run, time=time, nonce=nonce)


def fork_batch(
    draft: Draft,
    slots: Mapping[str, Slot],
    target: ThreadKey,
    run: str | None,
    *,
    time: int,
    nonce: int,
    status: str = "idle",
    own: Mapping[str, Any] | None = None,
) -> tuple[tuple[ItemRange, ...], Batch]:
    """The items that a fork takes over, and what is new in it."""
    head = draft.head
    labels = {PARENT_THREAD: head.key.id}
    label = draft.share(pack(labels))
    row = CheckpointRow(
        ns="", id=after(None), parent=None, run=run, step=None, source="fork", labels=label, time=time, hidden=False,
        refs=(), body=b"",
    )  # fmt: skip
    row = checkpoint(row, slots, draft, own).row
    sealed = draft.sealed()
    size = row.size + sum(len(stored) for _, stored in sealed)
    thread = with_top(new_row(target, time, nonce), row, status)
    thread = thread._replace(rev=0, nexts=tuple(draft.nexts), checkpoints=1, bytes=size)
    tagged = (NewLabels(label, metadata.tags(labels)),)
    batch = Batch(
        None, thread, items=sealed, new_checkpoints=(row,), labels=tagged, runs=(run,) if run is not None else ()
    )
    used = [ItemRange(NAMES, 0, len(head.names)), ItemRange(SHARED, label, 1), *row.refs]
    used += [each for slot in slots.values() for each in slot.ranges]
    return itemlog.minus(itemlog.union(used), (ItemRange(at.lane, at.n, 1) for at in draft.new_items)), batch


def slots_until_run(head: Head, record: CheckpointRecord, run: str, about: Any, draft: Draft) -> dict[str, Slot]:
    """What a fork holds: the messages and events up to a run, and the extra."""
    told = events(head, record)
    kept, runs = _until_run(record, told, run, head.key)
    slots = {name: record.slots[name] for name in (MESSAGES, EVENTS, EXTRA) if name in record.slots}
    if len(kept) != len(told):
        messages = sum(len(event.ids) for event in kept)
        slots[MESSAGES] = draft.spilled(Slot(LIST, MSGPACK, messages, False, None, runs), None)
        items = draft.append(FOLDED_EVENTS, pack_events(kept))
        slots[EVENTS] = Slot(LIST, MSGPACK, len(kept), False, None, itemlog.join_ranges(items))
    if about is not None:
        extra = {**(value(head, record, EXTRA) or {}), "fork": about}
        slots[EXTRA] = draft.place(EXTRA, encode_parts(extra), slots.get(EXTRA))
    return slots
