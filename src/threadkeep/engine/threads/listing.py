"""List checkpoints, newest first, in slices that grow.

Nothing stays open between two slices, so the caller may do anything with the saver while it iterates. A checkpoint that
is removed after the scan of its slice is left out, as if it had been removed before. A damaged one is left out too, and
named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any, NamedTuple, TypeAlias, cast

from threadkeep.engine.identity import Kind, ThreadKey
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.itemlog import NAMES, RANGE_LISTS, SHARED, ItemRange, new_tuple
from threadkeep.engine.log.records import check_checkpoint, known_labels, unpack_labels, unpack_own_metadata
from threadkeep.engine.requests import CheckpointRef, ScanCheckpoints, ScannedCheckpoint
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.checkpoints import CheckpointState, decode_state, get_many, get_several
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.engine.threads.metadata import LARGE_METADATA, MetadataFilter
from threadkeep.errors import Corrupt

_FIRST_SLICE, _MAX_SLICE = 16, 1024
_CheckpointAt: TypeAlias = tuple[ThreadKey, str, str]
"""The thread, namespace and id of a checkpoint."""


class ListQuery(NamedTuple):
    """Which checkpoints to list, and how many more of them; all if `limit` is None.

    `is_answered` says that the scan answers all of the filter, so that it need not return more than is wanted.
    """

    scan: ScanCheckpoints
    filter: Mapping[str, Any]
    limit: int | None
    is_answered: bool


_Chosen: TypeAlias = tuple[ScannedCheckpoint, CheckpointState | None]
"""A checkpoint that matches, with its state if that is complete."""


class ScanResult(NamedTuple):
    """What a scan found, which of it matches, and a message for each damaged checkpoint."""

    scanned: Sequence[ScannedCheckpoint]
    chosen: list[_Chosen]
    damaged: dict[_CheckpointAt, str]


class ListPage(NamedTuple):
    """Some checkpoints, and the query for those after them; `rest` is None at the end.

    `damaged` has a message for each damaged checkpoint that was left out. These do not count for the limit.
    """

    states: list[CheckpointState]
    rest: ListQuery | None
    damaged: list[str]


def query(
    tenant: str,
    kind: Kind,
    *,
    thread: str | None,
    ns: str | None,
    id: str | None,
    before: str | None,
    filter: Mapping[str, Any],
    limit: int | None,
) -> ListQuery:
    """Return a query. The scan uses as much of the filter as columns and the index can answer."""
    parts = metadata.split(filter)
    tags = metadata.tags(parts.labels) if parts.labels else ()
    is_answered = not parts.own and len(tags) == len(parts.labels)
    first = min(_FIRST_SLICE, limit) if is_answered and limit is not None else _FIRST_SLICE
    scan = ScanCheckpoints(  # by position, which takes a third of the time
        tenant, kind, first, thread, ns, id, before, None, parts.source, parts.step, parts.run, tags
    )
    return new_tuple(ListQuery, (scan, filter, limit, is_answered))


async def page(heads: Heads, codec: Codec, query: ListQuery) -> ListPage:
    """Return the next checkpoints of a query. One round trip for the scan, and one for what is not cached of them.

    More if a checkpoint is damaged: the others are read without it.
    """
    if query.limit == 0:
        return ListPage([], None, [])
    era = heads.era
    selection = select(heads, codec, query, era, await query.scan)
    return page_of(query, selection) or await load_page(heads, codec, query, selection)


def page_of(query: ListQuery, selection: ScanResult, loaded: list[CheckpointState] | None = None) -> ListPage | None:
    """Return a page of what was selected. None if something has to be loaded, and was not."""
    scanned, chosen, damaged = selection
    states = loaded if loaded is not None else [state for _, state in chosen if state is not None]
    if loaded is None and len(states) < len(chosen):
        return None
    left, size = query.limit, query.scan.limit
    if left is not None:
        left -= len(chosen) if not damaged else sum(_place(found) not in damaged for found, _ in chosen)
    if len(scanned) < size or left == 0:
        return new_tuple(ListPage, (states, None, list(damaged.values())))
    last = scanned[-1]
    is_exact = query.is_answered and len(chosen) == len(scanned)  # a backend may return more than matches
    size = min(size * 2, _MAX_SLICE, left if left is not None and is_exact else _MAX_SLICE)
    scan = query.scan._replace(after=(last.row.id, last.key.id, last.row.ns), limit=size)
    return ListPage(states, query._replace(scan=scan, limit=left), list(damaged.values()))


async def load_page(heads: Heads, codec: Codec, query: ListQuery, selection: ScanResult) -> ListPage:
    """Return a page of what was selected. One round trip, more if a checkpoint is damaged."""
    states = await _load_states(heads, codec, selection.chosen, selection.damaged)
    return cast("ListPage", page_of(query, selection, states))


def _place(found: ScannedCheckpoint) -> _CheckpointAt:
    return found.key, found.row.ns, found.row.id


class ScanFilter:
    """A metadata filter for what scans find. Checkpoints of a thread share their labels: these are unpacked once."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self._is_empty = not wanted
        self._filter = MetadataFilter(wanted)
        self._labels: dict[tuple[ThreadKey, int, bytes | None], dict[str, Any]] = {}

    def matches(self, found: ScannedCheckpoint) -> bool:
        """Return whether a checkpoint's metadata has all that the filter wants. Corrupt if its row is damaged."""
        if found.damaged is not None:
            raise Corrupt(found.damaged)
        if self._is_empty:
            return True
        row, family = found.row, found.family
        where = f"thread {found.key.id!r}"
        labels = self.labels(found)
        own: dict[str, Any] = {}
        if self._filter.needs_own(labels):
            own = unpack_own_metadata(row, where, family)
        else:
            check_checkpoint(row, where, family)
        return self._filter.matches(metadata.of_row(row, labels, own))

    def wants(self, values: Mapping[str, Any]) -> bool:
        """Return whether metadata has all that the filter wants."""
        return self._is_empty or self._filter.matches(values)

    def labels(self, found: ScannedCheckpoint) -> dict[str, Any]:
        """Return the labels of a checkpoint, which are not to be changed. Corrupt if they are damaged."""
        place = (found.key, found.row.labels, found.labels)
        labels = self._labels.get(place)
        if labels is None:
            labels = self._labels[place] = known_labels(found.row.labels, found.labels, found.family) or unpack_labels(
                found.row.labels, found.labels, f"thread {found.key.id!r}", found.family
            )
        return labels


_FIXED = frozenset((str, int, bool, float, NoneType))
"""Types of values that cannot be changed in place, so that several metadata may share them."""
_MANY_ITEMS = 256
"""States with more items are loaded, which pauses the garbage collector meanwhile."""


def select(heads: Heads, codec: Codec, query: ListQuery, era: int, scanned: Sequence[ScannedCheckpoint]) -> ScanResult:
    """Choose the checkpoints that match a filter. One that cannot be read does not, and is named in `damaged`.

    Those whose thread is cached and that have no writes are complete with what a scan returns: see `_is_complete`.
    `era` is that of the heads before the scan. About 25 calls for each of these; `tests/test_budgets.py` counts them.
    """
    damaged: dict[_CheckpointAt, str] = {}
    filter, chosen = ScanFilter(query.filter), list[_Chosen]()
    for found in scanned:
        try:
            head, state = heads.get(found.key), None
            if head is not None and heads.era == era == head.cache.era and _is_complete(head, found):
                record = head.checkpoint(found.row)
                values = metadata.of_row(record.row, filter.labels(found), record.own_metadata)
                if filter.wants(values) and len(chosen) != query.limit:
                    is_own = LARGE_METADATA not in record.slots and set(map(type, values.values())) <= _FIXED
                    state = decode_state(head, codec, record, (), values if is_own else None)
                    chosen.append((found, state))
            elif filter.matches(found) and len(chosen) != query.limit:
                chosen.append((found, None))
        except Corrupt as error:
            damaged[_place(found)] = _message(_place(found), str(error))
    return new_tuple(ScanResult, (scanned, chosen, damaged))


def _is_complete(head: Head, found: ScannedCheckpoint) -> bool:
    """Return whether a state can be decoded from what a scan found and what is cached.

    That is so if there are no writes, none is missing (see `check_newest`), and all items are cached. Items of one
    epoch do not change, and `head` is of the same era, so they are those that the scan would have read.
    """
    thread, row, cache = found.thread, found.row, head.cache
    if thread is None or head.row is None or head.row.epoch != thread.epoch or found.has_writes:
        return False
    if (row.ns == "" and row.id == thread.top and thread.top_writes) or len(head.names) < thread.nexts[NAMES]:
        return False
    items = 0
    for lane, start, length in row.refs:
        items += length
        low, high = cache.spans.get(lane, (0, 0))
        if lane == RANGE_LISTS or (
            (start < low or start + length > high) and cache.lacking((ItemRange(lane, start, length),))
        ):
            return False
    return items <= _MANY_ITEMS and row.labels in cache.lanes.get(SHARED, ())


def _message(at: _CheckpointAt, reason: str) -> str:
    key, ns, id = at
    return f"checkpoint {id!r} of namespace {ns!r} in thread {key.id!r} is damaged and left out: {reason}"


async def _load_states(
    heads: Heads, codec: Codec, chosen: Sequence[_Chosen], damaged: dict[_CheckpointAt, str]
) -> list[CheckpointState]:
    """Return the states of chosen checkpoints. What is not complete is loaded, in one round trip.

    Thread by thread if something is damaged.
    """
    by_thread: dict[ThreadKey, list[CheckpointRef]] = {}
    for found, complete in chosen:
        if complete is None:
            by_thread.setdefault(found.key, []).append(CheckpointRef(found.row.ns, found.row.id))
    states: dict[_CheckpointAt, CheckpointState] = {}
    left = dict(by_thread)
    if len(by_thread) > 1:
        with suppress(Corrupt):
            for key, found_states in (await get_several(heads, codec, by_thread)).items():
                del left[key]
                for state in found_states:
                    states[key, state.ns, state.id] = state
    for key, refs in left.items():
        for state in await _get_intact(heads, codec, key, refs, damaged):
            states[(key, state.ns, state.id)] = state
    every = [complete or states.get(_place(found)) for found, complete in chosen]
    return [state for state in every if state is not None]


async def _get_intact(
    heads: Heads, codec: Codec, key: ThreadKey, refs: list[CheckpointRef], damaged: dict[_CheckpointAt, str]
) -> list[CheckpointState]:
    """Return those of these checkpoints that can be read; add the others to `damaged`.

    If one is damaged, each half is read by itself, and so on.
    """
    try:
        return await get_many(heads, codec, key, tuple(refs))
    except Corrupt as error:
        if len(refs) == 1:
            at = (key, refs[0].ns, refs[0].id or "")
            damaged[at] = _message(at, str(error))
            return []
    half = len(refs) // 2
    first = await _get_intact(heads, codec, key, refs[:half], damaged)
    return first + await _get_intact(heads, codec, key, refs[half:], damaged)
