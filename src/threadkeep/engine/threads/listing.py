"""List checkpoints, newest first, in slices that grow.

Nothing stays open between two slices, so the caller may do anything with the saver while it iterates. A checkpoint that
is removed after the scan of its slice is left out, as if it had been removed before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.records import unpack_labels, unpack_own_metadata
from threadkeep.engine.requests import CheckpointRef, ScanCheckpoints, ScannedCheckpoint
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.checkpoints import CheckpointState, get_many
from threadkeep.engine.threads.heads import Heads

_FIRST_SLICE, _MAX_SLICE = 16, 1024


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which checkpoints to list, and how many more of them; all if `limit` is None."""

    scan: ScanCheckpoints
    filter: Mapping[str, Any]
    limit: int | None


class ListPage(NamedTuple):
    """Some checkpoints, and the query for those after them; `rest` is None at the end."""

    states: list[CheckpointState]
    rest: ListQuery | None


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
    """Return the next checkpoints of a query. One round trip for the scan, and one for each thread that it finds."""
    if query.limit == 0:
        return ListPage([], None)
    size = query.scan.limit if query.limit is None or query.filter else min(query.scan.limit, query.limit)
    scanned = await replace(query.scan, limit=size)
    chosen = [found for found in scanned if _matches(found, query.filter)][: query.limit]
    states = await _load_states(heads, codec, chosen)
    left = None if query.limit is None else query.limit - len(chosen)
    if len(scanned) < size or left == 0:
        return ListPage(states, None)
    last = scanned[-1]
    scan = replace(query.scan, after=(last.row.id, last.key.id, last.row.ns), limit=min(size * 2, _MAX_SLICE))
    return ListPage(states, replace(query, scan=scan, limit=left))


def _matches(found: ScannedCheckpoint, wanted: Mapping[str, Any]) -> bool:
    if not wanted:
        return True
    row, where = found.row, f"thread {found.key.id!r}"
    labels = unpack_labels(row.labels, found.labels, where, found.family)
    return metadata.matches(metadata.of_row(row, labels, unpack_own_metadata(row, where, found.family)), wanted)


async def _load_states(heads: Heads, codec: Codec, chosen: Sequence[ScannedCheckpoint]) -> list[CheckpointState]:
    by_thread: dict[ThreadKey, list[CheckpointRef]] = {}
    for found in chosen:
        by_thread.setdefault(found.key, []).append(CheckpointRef(found.row.ns, found.row.id))
    states = {}
    for key, refs in by_thread.items():
        for state in await get_many(heads, codec, key, tuple(refs)):
            states[(key, state.ns, state.id)] = state
    keys = ((found.key, found.row.ns, found.row.id) for found in chosen)
    return [states[key] for key in keys if key in states]
