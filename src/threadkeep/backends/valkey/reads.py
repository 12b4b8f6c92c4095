"""Reads of one thread on Valkey: checkpoints, items, ancestors, and all rows of a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from threadkeep.backends.valkey.calls import AT_ONCE, Call, CallExecutor
from threadkeep.backends.valkey.keys import ThreadKeys, thread_keys
from threadkeep.backends.valkey.rows import (
    checkpoint_field,
    checkpoint_id,
    checkpoint_row,
    item_field,
    item_id,
    namespace_prefix,
    read_thread,
    rows_at,
    thread_row,
    write_row,
)
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import PREFIX_LENGTH, RANGE_LISTS, ItemId, ItemRange, new_tuple
from threadkeep.engine.log.records import WriteRow
from threadkeep.engine.requests import (
    SERVER_CLOCK,
    CachedItems,
    CheckpointRef,
    CheckpointRows,
    ItemSizes,
    LoadAncestors,
    LoadCheckpoints,
    LoadedRows,
    LoadItems,
    LoadSeveral,
    LoadSeveralItems,
    LoadThreadRows,
    MeasureItems,
    ReadClock,
    StorageClock,
    ranges_of,
)
from threadkeep.plan import Request


class ValkeyReads:
    """Reads of a thread below a prefix of keys. Commits use them to copy a thread."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self.handlers: dict[type[Request[Any]], Callable[[CallExecutor, Any], Any]] = {
            LoadCheckpoints: self._load_checkpoints,
            LoadSeveral: self._load_several,
            LoadItems: self._load_items,
            LoadSeveralItems: self._load_several_items,
            MeasureItems: self._measure_items,
            LoadAncestors: self._load_ancestors,
            LoadThreadRows: self._load_thread_rows,
            ReadClock: self._read_clock,
        }

    def _keys(self, key: ThreadKey) -> ThreadKeys:
        return thread_keys(self._prefix, key)

    def _read_clock(self, executor: CallExecutor, request: ReadClock) -> StorageClock:
        seconds, microseconds = executor.call(Call("read_clock", self._keys(request.key).keys[:1]))
        return StorageClock(int(seconds) * 1000 + int(microseconds) // 1000, SERVER_CLOCK)

    def _load_checkpoints(self, executor: CallExecutor, request: LoadCheckpoints) -> LoadedRows:
        return self.load(executor, request.key, request.wanted, (), request.cached)

    def _load_several(self, executor: CallExecutor, request: LoadSeveral) -> tuple[LoadedRows, ...]:
        """Load checkpoints of several threads. What most of them need comes with one round trip for all."""
        loads = request.loads
        replies = executor.calls([self._load_call(each.key, each.wanted, each.cached) for each in loads])
        return tuple(
            self.load(executor, each.key, each.wanted, (), each.cached, reply=reply)
            for each, reply in zip(loads, replies, strict=True)
        )

    def _load_items(self, executor: CallExecutor, request: LoadItems) -> LoadedRows:
        return self.load(executor, request.key, (), request.ranges, request.cached, unchecked=request.unchecked)

    def _load_several_items(self, executor: CallExecutor, request: LoadSeveralItems) -> tuple[dict[ItemId, bytes], ...]:
        """Load items of several threads in one round trip for all."""
        fields = [[item_field(id) for each in load.ranges for id in each.ids()] for load in request.loads]
        calls = zip(request.loads, fields, strict=True)
        replies = executor.calls([Call("load_items", self._keys(load.thread.key).hash, tuple(f)) for load, f in calls])
        return tuple(
            _read_items(each, values) if now is not None and _epoch(now) == b"%d" % load.thread.epoch else {}
            for load, each, (now, values) in zip(request.loads, fields, replies, strict=True)
        )

    def load(
        self,
        executor: CallExecutor,
        key: ThreadKey,
        wanted: Sequence[CheckpointRef] = (),
        ranges: Sequence[ItemRange] = (),
        cached: CachedItems | None = None,
        *,
        unchecked: bool = False,
        reply: Any = None,
    ) -> LoadedRows:
        """Return checkpoints in one snapshot, and their items. `reply` is that of the first call, if it was made.

        Many items take more calls. If the thread is pruned in between, everything is read again.
        """
        while True:
            if reply is None:
                reply = executor.call(self._load_call(key, wanted, cached))
            if not reply:
                return LoadedRows(None)
            version, row, size, rows, fields, values = reply
            thread = thread_row(row, size) if unchecked else read_thread(row, size, key)
            found, items = tuple(map(_read_checkpoint, wanted, rows)), _read_items(fields, values)
            needed = list(ranges)
            for want, each in zip(wanted, found, strict=True):
                if want.items:
                    needed += ranges_of(each, thread.nexts)
            valid = cached if cached is not None and cached.epoch == thread.epoch else None
            needed += _read_range_lists(needed, items, valid, thread.family)
            more = self.load_items(executor, key, version, _missing(needed, items, valid))
            if more is not None:
                return LoadedRows(thread, found, items | more)
            reply = None

    def _load_call(self, key: ThreadKey, wanted: Iterable[CheckpointRef], cached: CachedItems | None) -> Call:
        spans = cached.items.spans if cached is not None else {}
        args: list[Any] = [cached.epoch if cached else "", cached.names if cached else 0, len(spans)]
        for lane, (low, high) in spans.items():
            args += (lane, low, high)
        args.append(AT_ONCE)
        for want in wanted:
            args += (
                ("i", checkpoint_field(want.ns, want.id)) if want.id is not None else ("l", namespace_prefix(want.ns))
            )
            args.append(int(want.items))
        return Call("load_checkpoints", self._keys(key).rows, tuple(args))

    def load_items(
        self, executor: CallExecutor, key: ThreadKey, version: bytes, ids: Sequence[ItemId]
    ) -> dict[ItemId, bytes] | None:
        """Return items, some in each call, or None if the thread's epoch has changed since `version`."""
        found: dict[ItemId, bytes] = {}
        for start in range(0, len(ids), AT_ONCE):
            fields = [item_field(id) for id in ids[start : start + AT_ONCE]]
            now, values = executor.call(Call("load_items", self._keys(key).hash, tuple(fields)))
            if now is None or _epoch(now) != _epoch(version):
                return None
            found |= _read_items(fields, values)
        return found

    def _measure_items(self, executor: CallExecutor, request: MeasureItems) -> ItemSizes:
        """Measure some items in each call. If the thread is pruned in between, measure all of them again."""
        fields = [item_field(id) for each in request.ranges for id in each.ids()]
        hash = self._keys(request.key).hash
        calls = [
            Call("measure_items", hash, (PREFIX_LENGTH, *fields[start : start + AT_ONCE]))
            for start in range(0, max(len(fields), 1), AT_ONCE)
        ]
        while True:
            replies = [executor.call(call) for call in calls]
            if not all(replies):
                return ItemSizes(None)
            if len({_epoch(reply[0]) for reply in replies}) == 1:
                break
        items = (each for reply in replies for each in reply[3])
        _, row, size, _ = replies[0]
        sizes = tuple((*item_id(field), length, beginning) for field, length, beginning in items)
        return ItemSizes(read_thread(row, size, request.key), sizes)

    def _load_ancestors(self, executor: CallExecutor, request: LoadAncestors) -> LoadedRows:
        args = ("", 0, 0, 0, "a", checkpoint_field(request.ns, request.id), request.limit)
        reply = executor.call(Call("load_checkpoints", self._keys(request.key).rows, args))
        if not reply:
            return LoadedRows(None)
        _, row, size, rows, fields, values = reply
        thread = read_thread(row, size, request.key)
        return LoadedRows(thread, _read_ancestors(request, rows), _read_items(fields, values))

    def _load_thread_rows(self, executor: CallExecutor, request: LoadThreadRows) -> LoadedRows:
        return self.load_thread_rows(executor, request.key)[1]

    def load_thread_rows(self, executor: CallExecutor, key: ThreadKey) -> tuple[bytes, LoadedRows]:
        """Return the version of a thread and all its rows."""
        reply = executor.call(Call("load_thread_rows", self._keys(key).rows))
        if not reply:
            return b"", LoadedRows(None)
        version, row, size, checkpoints, writes, fields, values, stored = reply
        found = {(each.ns, each.id): each for each in map(checkpoint_row, checkpoints)}
        if len(found) < len(checkpoints):
            raise ValueError("two rows are those of one checkpoint")
        tasks: dict[tuple[str, str], list[WriteRow]] = {place: [] for place in found}
        for each in map(write_row, writes):
            tasks.setdefault((each.ns, each.checkpoint), []).append(each)
        rows = tuple(CheckpointRows(found.get(place), tuple(own)) for place, own in sorted(tasks.items()))
        ranges = itemlog.join_ranges(sorted(map(item_id, stored)))
        return version, LoadedRows(read_thread(row, size, key), rows, _read_items(fields, values), ranges)


def _epoch(version: bytes) -> bytes:
    return version.partition(b":")[0]


def _read_items(fields: Sequence[bytes], values: Sequence[bytes | None]) -> dict[ItemId, bytes]:
    """Return items by id, in one call. A field is `i`, the lane, a colon and the number in its lane."""
    items: dict[ItemId, bytes] = {}
    for field, value in zip(fields, values, strict=True):
        if value is not None:
            lane, _, n = field[1:].partition(b":")
            items[new_tuple(ItemId, (int(lane), int(n)))] = value
    return items


def _read_checkpoint(want: CheckpointRef, reply: tuple[bytes | None, Sequence[bytes], bytes]) -> CheckpointRows:
    """Read a checkpoint with its writes. The reply names the field of the latest one."""
    row, writes, *latest = reply
    if want.id is not None:
        return rows_at(want.ns, want.id, row, writes)
    return rows_at(want.ns, checkpoint_id(latest[0]), row, writes) if latest else CheckpointRows(None, ())


def _read_ancestors(
    request: LoadAncestors, rows: Iterable[tuple[bytes | None, Sequence[bytes]]]
) -> tuple[CheckpointRows, ...]:
    """Read a checkpoint and its ancestors: each row names the next one."""
    found: list[CheckpointRows] = []
    id: str | None = request.id
    for row, writes in rows:
        if id is None:
            raise ValueError("a row has no parent, and was followed to one")
        found.append(rows_at(request.ns, id, row, writes))
        id = found[-1].row.parent if found[-1].row is not None else None
    return tuple(found)


def _read_range_lists(
    ranges: Iterable[ItemRange], items: dict[ItemId, bytes], cached: CachedItems | None, family: int
) -> list[ItemRange]:
    """Return the ranges in the range lists among these: from the items that came along, or from the cache."""
    known = cached.items.range_lists if cached is not None else {}
    lists = [id for each in ranges if each.lane == RANGE_LISTS for id in each.ids()]
    return [
        each
        for id in lists
        for each in (itemlog.unpack_range_list(id, items[id], family) if id in items else known.get(id.n, ()))
    ]


def _missing(ranges: Iterable[ItemRange], items: dict[ItemId, bytes], cached: CachedItems | None) -> list[ItemId]:
    """Return the ids of some items, each once, except those that came along or are cached."""
    missing = cached.items.lacking(ranges) if cached is not None else ranges
    return [id for each in itemlog.union(missing) for id in each.ids() if id not in items]
