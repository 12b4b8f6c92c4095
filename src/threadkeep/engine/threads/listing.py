"""List checkpoints, newest first, in slices that grow.

Nothing stays open between two slices, so the caller may do anything with the saver while it iterates. A checkpoint that
is removed after the scan of its slice is left out, as if it had been removed before. A damaged one is left out too, and
named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.records import check_checkpoint, unpack_labels, unpack_own_metadata
from threadkeep.engine.requests import CheckpointRef, ScanCheckpoints, ScannedCheckpoint
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.checkpoints import CheckpointState, get_many, get_several
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.metadata import MetadataFilter
from threadkeep.errors import Corrupt
from threadkeep.value import Value

_FIRST_SLICE, _MAX_SLICE = 16, 1024
_CheckpointAt: TypeAlias = tuple[ThreadKey, str, str]
"""The thread, namespace and id of a checkpoint."""


class ListQuery(Value):
    """Which checkpoints to list, and how many more of them; all if `limit` is None."""

    scan: ScanCheckpoints
    filter: Mapping[str, Any]
    limit: int | None


class ListPage(NamedTuple):
    """Some checkpoints, and the query for those after them; `rest` is None at the end.

    `damaged` has a message for each damaged checkpoint that was left out. These do not count for the limit.
    """

    states: list[CheckpointState]
    rest: ListQuery | None
    damaged: list[str]


def query(
    tenant: str,
    kind: str,
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
    scan = ScanCheckpoints(
        tenant,
        kind,
        limit=_FIRST_SLICE,
        thread=thread,
        ns=ns,
        id=id,
        before=before,
        source=parts.source,
        step=parts.step,
        run=parts.run,
        tags=metadata.tags(parts.labels),
    )
    return ListQuery(scan, filter, limit)


async def page(heads: Heads, codec: Codec, query: ListQuery) -> ListPage:
    """Return the next checkpoints of a query. One round trip for the scan, and one for what it finds.

    More if a checkpoint is damaged: the others are read without it.
    """
    if query.limit == 0:
        return ListPage([], None, [])
    size = query.scan.limit if query.limit is None or query.filter else min(query.scan.limit, query.limit)
    scanned = await query.scan._replace(limit=size)
    damaged: dict[_CheckpointAt, str] = {}
    chosen = _choose(scanned, query.filter, damaged)[: query.limit]
    states = await _load_states(heads, codec, chosen, damaged)
    left = None if query.limit is None else query.limit - sum(_place(found) not in damaged for found in chosen)
    reasons = list(damaged.values())
    if len(scanned) < size or left == 0:
        return ListPage(states, None, reasons)
    last = scanned[-1]
    scan = query.scan._replace(after=(last.row.id, last.key.id, last.row.ns), limit=min(size * 2, _MAX_SLICE))
    return ListPage(states, query._replace(scan=scan, limit=left), reasons)


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
        place = (found.key, row.labels, found.labels)
        labels = self._labels.get(place)
        where = f"thread {found.key.id!r}"
        if labels is None:
            labels = self._labels[place] = unpack_labels(row.labels, found.labels, where, family)
        own: dict[str, Any] = {}
        if self._filter.needs_own(labels):
            own = unpack_own_metadata(row, where, family)
        else:
            check_checkpoint(row, where, family)
        return self._filter.matches(metadata.of_row(row, labels, own))


def _choose(
    scanned: Iterable[ScannedCheckpoint], wanted: Mapping[str, Any], damaged: dict[_CheckpointAt, str]
) -> list[ScannedCheckpoint]:
    """Return the checkpoints that match a filter. One that cannot be read does not, and is added to `damaged`."""
    filter, chosen = ScanFilter(wanted), []
    for found in scanned:
        try:
            if filter.matches(found):
                chosen.append(found)
        except Corrupt as error:
            damaged[_place(found)] = _message(_place(found), str(error))
    return chosen


def _message(at: _CheckpointAt, reason: str) -> str:
    key, ns, id = at
    return f"checkpoint {id!r} of namespace {ns!r} in thread {key.id!r} is damaged and left out: {reason}"


async def _load_states(
    heads: Heads, codec: Codec, chosen: Sequence[ScannedCheckpoint], damaged: dict[_CheckpointAt, str]
) -> list[CheckpointState]:
    """Load what a scan chose, in one round trip; thread by thread if something is damaged."""
    by_thread: dict[ThreadKey, list[CheckpointRef]] = {}
    for found in chosen:
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
    return [states[at] for at in map(_place, chosen) if at in states]


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
