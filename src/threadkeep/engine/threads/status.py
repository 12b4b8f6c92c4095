"""The status of a thread, as its newest root checkpoint and the writes on it show it.

    error         a task failed
    interrupted   a task waits for an answer
    pending       there is something to run: a node was triggered, or some tasks of the step are done
    idle          none of these

It is told from what is stored alone, without the graph: a static interrupt (`interrupt_before`) counts as pending.
"""

from __future__ import annotations

from collections.abc import Iterable

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS

from threadkeep.engine.log.records import CheckpointRecord

STATUSES = ("idle", "pending", "interrupted", "error")
_BRANCH = "branch:to:"
_START = "__start__"
_EMPTY_LIST = b"\x90"


def worse(one: str, other: str) -> str:
    """The one that matters more."""
    return max(one, other, key=STATUSES.index)


def of_writes(channels: Iterable[str]) -> str:
    """What writes on these channels make of a thread."""
    names = set(channels)
    if ERROR in names:
        return "error"
    if INTERRUPT in names:
        return "interrupted"
    return "pending" if names else "idle"


def of_checkpoint(record: CheckpointRecord) -> str:
    """What a checkpoint makes of a thread before any write on it."""
    return "pending" if triggers(record) else "idle"


def triggers(record: CheckpointRecord) -> list[str]:
    """The channels that let something run next."""
    return [channel for channel in record.slots if _triggers(record, channel)]


def triggered(channel: str) -> str:
    """The node that such a channel lets run, if it is not that of the pending sends."""
    return channel.removeprefix(_BRANCH)


def _triggers(record: CheckpointRecord, channel: str) -> bool:
    """Whether a channel holds something that no node has seen."""
    if channel == TASKS:
        return record.slots[channel].inline != _EMPTY_LIST
    if channel == _START:
        return not any(_has_seen(record, node, channel) for node in record.seen)
    return channel.startswith(_BRANCH) and not _has_seen(record, channel.removeprefix(_BRANCH), channel)


def _has_seen(record: CheckpointRecord, node: str, channel: str) -> bool:
    seen, version = record.seen.get(node, {}).get(channel), record.versions.get(channel)
    if seen is None or version is None:
        return False
    return bool(seen >= version) if type(seen) is type(version) else False
