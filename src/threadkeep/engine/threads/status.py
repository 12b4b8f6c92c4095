"""The status of a thread, computed from its newest root checkpoint and the writes on it.

    error         a task failed
    interrupted   a task waits for an answer
    pending       something is left to run: a node was triggered, or only some tasks of the step are done
    idle          none of these

The graph is not needed. So a static interrupt (`interrupt_before`) counts as pending.
"""

from __future__ import annotations

from collections.abc import Iterable

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS

from threadkeep.engine.log.records import STATUSES, CheckpointRecord

_BRANCH = "branch:to:"
_START = "__start__"
_TRIGGERS = (_BRANCH, _START, TASKS)
_EMPTY_LIST = b"\x90"
_INTERNAL = ("__", "branch:", "join:")
_APPLICATION = ("__root__", "__end__", "__previous__")
"""Channels that hold application data despite their names: a state that is not a dict, and what the functional API
returned and saved."""


def is_internal(channel: str) -> bool:
    """Whether a channel is one of LangGraph's own, not part of the application's state."""
    return channel.startswith(_INTERNAL) and channel not in _APPLICATION


def worse_status(one: str, other: str) -> str:
    """Return the status that matters more."""
    return max(one, other, key=STATUSES.index)


def status_of_writes(channels: Iterable[str]) -> str:
    """Return the status of a thread with writes on these channels."""
    names = set(channels)
    if ERROR in names:
        return "error"
    if INTERRUPT in names:
        return "interrupted"
    return "pending" if names else "idle"


def status_of_checkpoint(record: CheckpointRecord) -> str:
    """Return the status of a thread whose newest checkpoint is this one, before any write on it."""
    return "pending" if triggered_channels(record) else "idle"


def triggered_channels(record: CheckpointRecord) -> list[str]:
    """Return the channels that trigger a node or a pending send."""
    found = []
    for channel in record.slots:
        if channel.startswith(_TRIGGERS) and _is_unseen(record, channel):
            found.append(channel)
    return found


def triggered_node(channel: str) -> str:
    """Return the node that such a channel triggers; for the pending sends, the channel's name."""
    return channel.removeprefix(_BRANCH)


def _is_unseen(record: CheckpointRecord, channel: str) -> bool:
    """Whether a triggering channel has a value that its node has not seen."""
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
