"""Plans for cube threads: write, load, snapshot and fork them.

    write    Commit                                             one round trip if the head is cached or the thread new
             Commit, LoadCheckpoints, LoadItems, Commit         four if it is neither: the first Commit would create it
    load     LoadCheckpoints                                    one
    fork     LoadCheckpoints, LoadItems, LoadItems, ForkThread  four

Appending and forking decode no messages: they only need the run log, which is cached. Repeating an append is harmless
if the messages have ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from threadkeep.engine.commit import (
    Decision,
    Seen,
    commit,
    commit_ops,
    fill_cache,
    new_row,
    read_consistently,
    with_top,
)
from threadkeep.engine.cube.channels import (
    ANSWERS,
    EVENTS,
    EXTRA,
    FOLDED_EVENTS,
    MESSAGES,
    PARENT_THREAD,
    PENDING,
    count_elements,
    encode_parts,
    is_cleared,
    new_checkpoint_row,
    next_checkpoint_id,
    pack_cube_checkpoint,
    read_channel,
    read_events,
    read_messages,
)
from threadkeep.engine.cube.events import RunEvent, RunLog, events_until, pack_events
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
from threadkeep.engine.log.records import CheckpointRecord, Slot
from threadkeep.engine.requests import Batch, CheckpointRef, ForkThread, LoadItems, NewLabels
from threadkeep.engine.threads import description, metadata
from threadkeep.engine.threads.checkpoints import load_checkpoints, metadata_of, with_recent_checkpoints
from threadkeep.engine.threads.draft import Draft
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.engine.threads.origins import Origin
from threadkeep.plan import Outcome

T = TypeVar("T")
_STATUS = (EVENTS, PENDING)
"""The channels that determine a thread's status."""
_CHANNELS_READ: dict[type, tuple[str, ...]] = {
    AppendMessages: _STATUS,
    ClaimRun: _STATUS,
    CompleteRun: _STATUS,
    SetPendingRequest: _STATUS,
    ClearPendingRequest: _STATUS,
    SetParent: _STATUS,
    MergeExtra: (EXTRA,),
    SaveAnswer: (ANSWERS,),
    ClearAnswers: (ANSWERS,),
}
"""The channels that each op reads."""


async def write(heads: Heads, key: ThreadKey, ops: Sequence[AnyOp]) -> list[Outcome]:
    """Apply ops in one commit and return one outcome for each. One round trip if the head is cached, else three."""
    return await commit_ops(heads, key, ops, partial(_load_staging, heads, key, ops))


async def _load_staging(heads: Heads, key: ThreadKey, ops: Sequence[AnyOp], head: Head | None) -> CubeStaging:
    head, record = await _newest_checkpoint(heads, key, head)
    if record is None:
        return CubeStaging(head, None, RunLog())
    names = {name for op in ops for name in _CHANNELS_READ[type(op)]}
    if EVENTS not in names:
        return CubeStaging(await _load_items(heads, head, record, names), record, None)
    run_log = _cached_run_log(head, record)
    if run_log is not None:
        return CubeStaging(await _load_items(heads, head, record, names - {EVENTS}), record, run_log)
    head = await _load_items(heads, head, record, names)
    return CubeStaging(head, record, RunLog(read_events(head, record)))


def _cached_run_log(head: Head, record: CheckpointRecord) -> RunLog | None:
    """Return the run log of a checkpoint without reading anything; None if it is not cached."""
    events = record.slots.get(EVENTS)
    if events is None:
        return RunLog()
    cached = head.cache.run_log
    return cached[1] if cached is not None and cached[0] == events.ranges else None


def unseen_head(heads: Heads, key: ThreadKey) -> Head:
    """Return a head for a thread that is new to this process, as if the thread did not exist.

    A commit that creates a thread raises Conflict if it exists. So the first change of a new thread needs no read.
    """
    return Head(key, None, cache=heads.new_cache())


def stage_cached(head: Head, *ops: AnyOp) -> CubeStaging | None:
    """Stage ops on the cached head; None if something must be read first, or if an op fails or has a result.

    Does what `_load_staging` does if nothing is to be read. For an append to a long thread, staging, batch and next
    head make about 65 calls together; `tests/test_cube_appends.py` counts them.
    """
    row, run_log = head.row, None
    record = head.recent.get(("", row.top or "")) if row is not None else None
    names = _CHANNELS_READ[type(ops[0])] if len(ops) == 1 else {each for op in ops for each in _CHANNELS_READ[type(op)]}
    if record is None:
        if row is not None:
            return None
        run_log = RunLog()
    elif EVENTS in names:
        run_log = _cached_run_log(head, record)
        if run_log is None:
            return None
    staging = CubeStaging(head, record, run_log)
    try:
        for op in ops:
            if staging.apply(op) is not None:
                return None
        if record is not None and PENDING in record.slots:
            staging.new_status()  # the batch needs it
    except Exception:  # noqa: BLE001 - the head may lack items or be out of date: the plan does it again and reports it
        return None
    return staging


async def _newest_checkpoint(heads: Heads, key: ThreadKey, head: Head | None) -> tuple[Head, CheckpointRecord | None]:
    """Return the head and its newest checkpoint, without items. No round trip if they are cached."""
    if head is not None and head.row is None:
        return head, None
    record = head.recent.get(("", head.row.top or "")) if head is not None and head.row is not None else None
    if head is not None and record is not None:
        return head, record
    return await _load_newest(heads, key, head)


async def _load_newest(heads: Heads, key: ThreadKey, head: Head | None) -> tuple[Head, CheckpointRecord | None]:
    """Read the thread's current head and newest checkpoint, without items. One round trip."""
    head, loaded = await load_checkpoints(heads, key, (CheckpointRef("", None, items=False),), head)
    row = loaded.checkpoints[0].row if loaded.checkpoints else None
    return head, head.checkpoint(row) if row is not None else None


async def _load_items(heads: Heads, head: Head, record: CheckpointRecord, names: Iterable[str]) -> Head:
    """Return the head with the items of these channels in its cache. One round trip if some were missing."""
    ranges = [each for name in names if name in record.slots for each in record.slots[name].ranges]
    await fill_cache(heads, head, ranges)
    return head


class CubeState(NamedTuple):
    """The state of a cube thread; its messages are the caller's objects."""

    messages: list[Any]
    extra: dict[str, Any]
    parent: str | None


async def load(heads: Heads, key: ThreadKey, build: Callable[[list[Any]], list[T]]) -> CubeState | None:
    """Return a cube thread's state, or None if it does not exist. One round trip.

    `build` turns a slice of plain messages into the caller's objects.
    """
    head, record = await _load_newest_with_items(heads, key)
    if record is None:
        return None
    messages = read_messages(head, record.slots[MESSAGES].ranges, build) if MESSAGES in record.slots else []
    return CubeState(messages, read_channel(head, record, EXTRA) or {}, metadata_of(head, record).get(PARENT_THREAD))


async def _load_newest_with_items(heads: Heads, key: ThreadKey) -> tuple[Head, CheckpointRecord | None]:
    """Read a cube thread's newest checkpoint and all its items. One round trip."""
    head, loaded = await load_checkpoints(heads, key, (CheckpointRef("", None),), heads.get(key))
    row = loaded.checkpoints[0].row if loaded.checkpoints else None
    if row is None:
        return head, None
    cached = head.recent.get((row.ns, row.id))
    if cached is not None and cached.row == row:  # byte for byte what was checked and decoded before
        heads.store(head)
        return head, cached
    record = head.checkpoint(row)
    heads.store(with_recent_checkpoints(head, [record]))
    return head, record


class CubeOverview(NamedTuple):
    """A cube thread without its messages: `messages` is their number, `runs` the run log, the rest as stored."""

    messages: int
    runs: RunLog
    extra: dict[str, Any] | None
    pending: tuple[dict[str, Any], str | None] | None
    answers: dict[str, dict[str, Any]]
    parent: str | None


async def overview(heads: Heads, key: ThreadKey) -> CubeOverview | None:
    """Return a cube thread without its messages, or None if it does not exist. Two round trips."""
    head, record = await _load_newest(heads, key, None)
    if record is None:
        return None
    head = await _load_items(heads, head, record, (EVENTS, EXTRA, PENDING, ANSWERS))
    return CubeOverview(
        count_elements(record.slots, MESSAGES),
        RunLog(read_events(head, record)),
        read_channel(head, record, EXTRA),
        _request_and_run(read_channel(head, record, PENDING)),
        read_channel(head, record, ANSWERS) or {},
        metadata_of(head, record).get(PARENT_THREAD),
    )


def _request_and_run(pending: Sequence[Any] | None) -> tuple[dict[str, Any], str | None] | None:
    return (pending[0], pending[1]) if pending is not None and not is_cleared(pending) else None


async def snapshot(heads: Heads, key: ThreadKey, run: str, build: Callable[[list[Any]], list[T]]) -> list[T]:
    """Return the messages without a run and those of the runs completed up to this one. One round trip.

    Refused if the thread does not exist or the run is not completed. `build` is as in `load`.
    """
    head, record = await _load_newest_with_items(heads, key)
    if record is None:
        raise _no_thread(key)
    return read_messages(head, _until_run(record, read_events(head, record), run, key)[1], build)


def _no_thread(key: ThreadKey) -> Refused:
    return Refused(NO_THREAD, f"thread {key.id!r} not found")


def _until_run(
    record: CheckpointRecord, all_events: Sequence[RunEvent], run: str, key: ThreadKey
) -> tuple[list[RunEvent], tuple[ItemRange, ...]]:
    """Return the events up to a run, and the ranges of the items that hold their messages."""
    kept = events_until(all_events, run)
    if kept is None:
        raise Refused(NOT_COMPLETED, f"thread {key.id!r}: run {run!r} is not completed")
    ranges = record.slots[MESSAGES].ranges if MESSAGES in record.slots else ()
    if len(kept) == len(all_events):
        return kept, ranges
    item_ids = (item_id for each in ranges for item_id in each.ids())
    kept_ids = set(map(id, kept))  # two events can be equal
    events_with_items = [(event, list(islice(item_ids, event.items))) for event in all_events]
    return kept, itemlog.join_ranges(
        item_id for event, items in events_with_items if id(event) in kept_ids for item_id in items
    )


async def pending(heads: Heads, key: ThreadKey) -> tuple[dict[str, Any], str | None] | None:
    """Return the pending request and its run, or None. One or two round trips."""
    return _request_and_run(await _read_current(heads, key, PENDING))


async def answer(heads: Heads, key: ThreadKey, run: str, question: str) -> Any:
    """Return the answer to a question of a run, or None. One or two round trips."""
    return ((await _read_current(heads, key, ANSWERS)) or {}).get(run, {}).get(question)


async def _read_current(heads: Heads, key: ThreadKey, name: str) -> Any:
    """Read the current value of a channel. One round trip; two if it is large and not cached."""

    async def once() -> Any:
        head, record = await _load_newest(heads, key, heads.get(key))
        if record is None:
            return None
        head = await _load_items(heads, head, record, (name,))
        heads.store(with_recent_checkpoints(head, [record]))
        return read_channel(head, record, name)

    return await read_consistently(key, once)


async def fork(
    heads: Heads, source: ThreadKey, target: ThreadKey, run: str, fork_extra: Any, *, time: int, nonce: int
) -> None:
    """Create a cube thread with the messages and runs of another, up to a run. Four round trips.

    The messages are copied inside the database and not read. `fork_extra`, unless it is None, becomes the entry `fork`
    of the new thread's extra. Refused if the source does not exist, the target does, or the run is not completed.
    """

    async def read() -> Seen[tuple[Head, CheckpointRecord]]:
        head, record = await _load_newest(heads, source, heads.get(source))
        if record is None:
            raise _no_thread(source)
        target_row = (await LoadItems(target, ())).thread
        if target_row is None:
            head = await _load_items(heads, head, record, (EVENTS, EXTRA))
        return Seen((head, record), target_row)

    def decide(seen: Seen[tuple[Head, CheckpointRecord]], attempt: int) -> Decision[None]:
        if seen.row is not None:
            raise Refused(THREAD_EXISTS, f"thread {target.id!r} already exists")
        head, record = seen.state
        assert head.row is not None
        draft = Draft(head)
        slots = slots_until_run(head, record, run, fork_extra, draft)
        ranges, batch = fork_batch(draft, slots, target, run, start=record.row.id, time=time, nonce=nonce + attempt)
        return Decision(None, ForkThread(source, (head.row.epoch, head.row.rev), ranges, batch))

    await commit(heads, target, read, decide, source=source)


def fork_batch(
    draft: Draft,
    slots: Mapping[str, Slot],
    target: ThreadKey,
    run: str | None,
    *,
    start: str,
    time: int,
    nonce: int,
    status: str = "idle",
    own: Mapping[str, Any] | None = None,
) -> tuple[tuple[ItemRange, ...], Batch]:
    """Return the ranges of the items that a fork copies from its source, and the batch with what is new.

    `start` is the checkpoint of the source that has all of the fork's messages.
    """
    head = draft.head
    draft.number(Origin(head.key.id, next_checkpoint_id(None), start).note())
    labels = {PARENT_THREAD: head.key.id}
    label = draft.share(pack(labels))
    row = new_checkpoint_row(next_checkpoint_id(None), None, run, source="fork", labels=label, time=time)
    row = pack_cube_checkpoint(row, slots, draft, own).row
    sealed = draft.sealed_items()
    size = row.size + sum(len(stored) for _, stored in sealed)
    thread = with_top(new_row(target, time, nonce), row, status)
    thread = thread._replace(rev=0, nexts=tuple(draft.nexts), checkpoints=1, bytes=size, family=draft.family)
    if head.row is not None:
        thread = thread._replace(description=description.of_fork(head.row.description, head.where))
    tagged = (NewLabels(label, metadata.tags(labels)),)
    batch = Batch(
        None, thread, items=sealed, new_checkpoints=(row,), labels=tagged, runs=(run,) if run is not None else ()
    )
    used = [ItemRange(NAMES, 0, len(head.names)), ItemRange(SHARED, label, 1), *row.refs]
    used += [each for slot in slots.values() for each in slot.ranges]
    new = (ItemRange(item_id.lane, item_id.n, 1) for item_id in draft.new_items)
    return itemlog.subtract(itemlog.union(used), new), batch


def slots_until_run(head: Head, record: CheckpointRecord, run: str, fork_extra: Any, draft: Draft) -> dict[str, Slot]:
    """Return the channels of a fork: messages and events up to a run, and the extra."""
    all_events = read_events(head, record)
    kept, ranges = _until_run(record, all_events, run, head.key)
    slots = {name: record.slots[name] for name in (MESSAGES, EVENTS, EXTRA) if name in record.slots}
    if len(kept) != len(all_events):
        messages = sum(len(event.ids) for event in kept)
        slots[MESSAGES] = draft.spill_ranges(Slot(LIST, MSGPACK, messages, False, None, ranges), None)
        items = draft.append(FOLDED_EVENTS, pack_events(kept))
        slots[EVENTS] = Slot(LIST, MSGPACK, len(kept), False, None, itemlog.join_ranges(items))
    if fork_extra is not None:
        extra = {**(read_channel(head, record, EXTRA) or {}), "fork": fork_extra}
        slots[EXTRA] = draft.store_value(EXTRA, encode_parts(extra), slots.get(EXTRA))
    return slots
