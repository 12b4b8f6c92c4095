"""Which channels of a checkpoint are delta channels: not stored with it, but rebuilt from its ancestors.

A channel that has a version but no stored value is one if the path of its ancestors has a snapshot of it, or a write to
it since its last stored value. A channel that was consumed has neither: it is stored while it has a value, and loses it
without a write. LangGraph's own channels never count. LangGraph for Python also names delta channels in metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from threadkeep.engine.log.records import CheckpointRecord, TaskWrites
from threadkeep.engine.threads.status import is_internal

_Key = tuple[str, str]
"""Namespace and id of a checkpoint."""
_NO_NAMES: frozenset[str] = frozenset()


class _Path(NamedTuple):
    """Channels on the path to a checkpoint.

    `named`: metadata counts them, or there is a snapshot. `written`: there is a write since their last stored value.
    """

    named: frozenset[str] = _NO_NAMES
    written: frozenset[str] = _NO_NAMES


def delta_channels(
    records: Mapping[_Key, CheckpointRecord], tasks: Mapping[_Key, Sequence[TaskWrites]]
) -> dict[_Key, frozenset[str]]:
    """Return the delta channels of each checkpoint. Those that metadata names are included even if they are stored."""
    paths: dict[_Key, _Path] = {}
    found: dict[_Key, frozenset[str]] = {}
    for start in records:
        line: dict[_Key, None] = {}
        key = start
        while key in records and key not in paths and key not in line:
            line[key] = None
            key = parent_key(records[key])
        path = paths.get(key, _Path())
        for passed in reversed(line):
            record = records[passed]
            path = _Path(path.named | _own_delta_channels(record), path.written)
            unstored = record.versions.keys() - record.slots.keys()
            found[passed] = path.named.union(name for name in path.written & unstored if not is_internal(name))
            written = {entry.channel for task in tasks.get(passed, ()) for entry in task.entries.values()}
            paths[passed] = path = _Path(path.named, (path.written - record.slots.keys()) | written)
    return found


def _own_delta_channels(record: CheckpointRecord) -> frozenset[str]:
    """The channels that a checkpoint's metadata counts, or that it has a snapshot of.

    With `delta_writes_versioned`, which LangGraph.js sets, a channel without a version was never written.
    """
    snapshots = [name for name, slot in record.slots.items() if slot.snapshot]
    counted = counted_channels(record.own_metadata)
    if record.own_metadata.get("delta_writes_versioned"):
        counted &= record.versions.keys()
    return counted.union(snapshots)


def counted_channels(own: Mapping[str, Any]) -> frozenset[str]:
    """Return the delta channels that a checkpoint's own metadata counts. Other programs may store anything there."""
    counters = own.get("counters_since_delta_snapshot")
    return frozenset(name for name in counters if isinstance(name, str)) if isinstance(counters, Mapping) else _NO_NAMES


def parent_key(record: CheckpointRecord) -> _Key:
    """Return the key of a checkpoint's parent, which may not exist."""
    return (record.row.ns, record.row.parent or "")
