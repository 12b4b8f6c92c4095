"""Match threads with a metadata filter: by any of their checkpoints, or by the newest root checkpoint only.

The index of labels finds the candidates (`ListThreads`); here they are compared, because the index does not cover all
metadata. Hidden checkpoints count, because they hold data too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from threadkeep.engine.identity import CUBE, Kind, ThreadKey
from threadkeep.engine.log.records import refuse_encrypted, thread_problem, unpack_labels, unpack_own_metadata
from threadkeep.engine.requests import CheckpointRef, ListedThread, LoadCheckpoints, ScanCheckpoints
from threadkeep.engine.threads import listing, metadata
from threadkeep.engine.threads.metadata import ANY, OWN, OWN_OF_CUBE
from threadkeep.errors import Corrupt
from threadkeep.short_repr import short_repr

_SLICE = 1024
"""The most checkpoints per round trip."""


@dataclass(frozen=True, slots=True)
class MatchedThread:
    """A thread that matches. `matching` of its `checkpoints` have the wanted metadata; None if none was wanted.

    With metadata, `checkpoints` includes hidden ones.
    """

    id: str
    kind: Kind
    checkpoints: int
    matching: int | None
    bytes: int

    __repr__ = short_repr


async def match_thread(listed: ListedThread, wanted: Mapping[str, Any], match: str) -> MatchedThread | None:
    """Compare a thread with a filter and count its checkpoints that match; None if the thread does not match.

    Corrupt if that is not known because a row is damaged. One round trip for each 1,024 checkpoints, none without a
    filter.
    """
    row = listed.row
    if match != ANY or not wanted:
        check_row(listed)
    if not wanted:
        return MatchedThread(row.key.id, row.key.kind, row.checkpoints, None, row.bytes)
    if match != ANY and not await matches_latest(listed, wanted):
        return None
    key = row.key
    count = await _count(key, wanted, ScanCheckpoints(key.tenant, key.kind, _SLICE, thread=key.id))
    return MatchedThread(key.id, key.kind, count.checkpoints, count.matching, row.bytes) if count.matching else None


def row_problem(listed: ListedThread) -> str | None:
    """Return what is wrong with the row of a listed thread, as the rest of a sentence; None if nothing is.

    WrongKey if it is encrypted.
    """
    if listed.unreadable is not None:
        return listed.unreadable
    refuse_encrypted(listed.row)
    return thread_problem(listed.row, listed.row.key)


def check_row(listed: ListedThread) -> None:
    """Raise Corrupt if the row of a listed thread is damaged."""
    if (problem := row_problem(listed)) is not None:
        raise Corrupt(f"the row of thread {listed.row.key.id!r} {problem}")


async def matches_any(listed: ListedThread, wanted: Mapping[str, Any]) -> bool:
    """Return whether any checkpoint of a thread matches. Corrupt as above. One round trip, rarely more."""
    key = listed.row.key
    indexed = {name: value for name, value in wanted.items() if key.kind != CUBE or name not in OWN_OF_CUBE}
    query = listing.query(
        key.tenant, key.kind, thread=key.id, ns=None, id=None, before=None, filter=indexed, limit=None
    )
    return (await _count(key, wanted, query.scan, stops_at_match=True)).matching > 0


class _Count(NamedTuple):
    """How many checkpoints match, and how many there are."""

    matching: int
    checkpoints: int


async def _count(
    key: ThreadKey, wanted: Mapping[str, Any], scan: ScanCheckpoints, *, stops_at_match: bool = False
) -> _Count:
    """Count the checkpoints of a scan, in slices that grow. A damaged row does not match; Corrupt if no other does."""
    scan = scan._replace(limit=min(scan.limit, _SLICE), hidden=True)
    matching = checkpoints = 0
    filter = listing.ScanFilter(wanted)
    damage: Corrupt | None = None
    while True:
        found = await scan
        for each in found:
            try:
                matching += filter.matches(each)
            except Corrupt as error:
                damage = error
        checkpoints += len(found)
        if len(found) < scan.limit or (stops_at_match and matching):
            break
        last = found[-1].row
        scan = scan._replace(after=(last.id, key.id, last.ns), limit=min(4 * scan.limit, _SLICE))
    if damage is not None and not matching:
        raise damage
    return _Count(matching, checkpoints)


async def matches_latest(listed: ListedThread, wanted: Mapping[str, Any]) -> bool:
    """Return whether the newest root checkpoint of a thread matches. One round trip if its row must be read for it."""
    row = listed.row
    where = f"thread {row.key.id!r}"
    labels = unpack_labels(row.labels, listed.labels, where, row.family) if row.labels is not None else {}
    return metadata.matches(metadata.of_row(row, labels, await _load_own(listed, wanted)), wanted)


async def _load_own(listed: ListedThread, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Load the metadata that is stored in the newest checkpoint itself, if the filter needs it."""
    row = listed.row
    stored = OWN + OWN_OF_CUBE if row.key.kind == CUBE else OWN
    if row.top is None or not any(key in wanted for key in stored):
        return {}
    loaded = await LoadCheckpoints(row.key, (CheckpointRef("", row.top, items=False),))
    top = loaded.checkpoints[0].row if loaded.checkpoints else None
    return unpack_own_metadata(top, f"thread {row.key.id!r}", row.family) if top else {}
