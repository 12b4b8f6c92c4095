"""Apply stored writes to channels without the graph, as LangGraph's `apply_writes` does, as far as names allow.

The names of channels identify branches, joins, the input and pending sends. All other channels are merged with the
default merge. New versions and versions_seen are derived from the old ones: a node that wrote has seen its triggers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, TASKS

from threadkeep.engine.log.codec import MSGPACK, Parts, pack
from threadkeep.engine.log.msgpack import LIST, WHOLE
from threadkeep.engine.log.plain import plain
from threadkeep.engine.threads.default_merge import merge_writes

SPECIAL_WRITES = frozenset(
    {INTERRUPT, ERROR, RESUME, "__no_writes__", "__pregel_push", "__return__", "__error_source_node__"}
)
"""Writes to these names do not go to a channel."""
_BRANCH, _START, _JOIN = "branch:to:", "__start__", "join:"


class StoredWrite(NamedTuple):
    """A write of a task. `node` is None if it is not known."""

    path: str
    task: str
    node: str | None
    channel: str
    value: Parts


def lasts_one_step(name: str) -> bool:
    """Whether a channel is empty again after the step that follows the write."""
    return name in (TASKS, _START) or name.startswith(_BRANCH)


def is_known_by_name(name: str) -> bool:
    """Whether the name alone says how a channel applies writes."""
    return lasts_one_step(name) or name.startswith(_JOIN)


def changes_channel(name: str, writes: Iterable[StoredWrite]) -> bool:
    """Whether the writes of a step change a channel: one is to it, or the node that a join triggers has run."""
    return any(write.channel == name or _is_target(name, write.node) for write in writes)


def _is_target(name: str, node: str | None) -> bool:
    """Whether a channel is a join that triggers a node: `join:one+other:node`."""
    return name.startswith(_JOIN) and name.rpartition(":")[2] == node


def channel_after(
    name: str, base: Parts | None, steps: Iterable[Sequence[StoredWrite]], *, delta: bool = False
) -> Parts | None:
    """Return a channel's value after the writes of some steps; None if it has none.

    For a channel that lasts one step, pass only the last step.
    """
    if name.startswith(_JOIN):
        return _join_after(name, base, steps)
    writes = [write.value for step in steps for write in step if write.channel == name]
    if lasts_one_step(name):
        base = Parts(LIST, MSGPACK, []) if name == TASKS and writes else None
    return merge_writes(base, writes, delta=delta)


def _join_after(name: str, base: Parts | None, steps: Iterable[Sequence[StoredWrite]]) -> Parts:
    """The value of a join: the set of the nodes that have arrived."""
    arrived = set(plain(base.tag, base.data) or ()) if base is not None else set()
    for step in steps:
        if any(_is_target(name, write.node) for write in step):
            arrived = set()
        arrived |= {plain(write.value.tag, write.value.data) for write in step if write.channel == name}
    return Parts(WHOLE, MSGPACK, [pack(arrived)])


def versions_after(
    versions: Mapping[str, Any],
    seen: Mapping[str, Mapping[str, Any]],
    channels: Iterable[str],
    step: Sequence[StoredWrite],
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return channel_versions and versions_seen after a step. `channels` are those with a value before it."""
    seen_after = {node: dict(known) for node, known in seen.items()}
    for node in {write.node for write in step if write.node is not None}:
        known = seen_after.setdefault(node, {})
        known.update({name: versions[name] for name in _triggers(node, known, versions) if name in versions})
    changed = {name for name in channels if lasts_one_step(name) or changes_channel(name, step)}
    changed |= {write.channel for write in step}
    return {**versions, **dict.fromkeys(changed, next_version(versions.values()))}, seen_after


def _triggers(node: str, known: Mapping[str, Any], versions: Mapping[str, Any]) -> set[str]:
    joins = {name for name in versions if _is_target(name, node)}
    return {*known, _BRANCH + node, *joins, *([_START] if node == _START else [])}


def next_version(versions: Iterable[Any]) -> Any:
    """Return a version greater than these, as LangGraph's savers count: integers, or strings that start with one."""
    known = list(versions)
    texts = [version for version in known if isinstance(version, str)]
    if texts:
        return f"{int(max(texts).split('.')[0]) + 1:032}.{0:016}"
    numbers = [version for version in known if isinstance(version, (int, float))]
    return max(numbers, default=0) + 1
