"""Applying stored writes to channels without the graph: what LangGraph's `apply_writes` does, as far as names tell.

Names tell of branches, joins, the input and pending sends. The values of all other channels are merged by the default
merge. Versions and what nodes have seen are made from those before: a node that wrote has seen what triggers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, TASKS

from threadkeep.engine.log.codec import MSGPACK, Parts, pack
from threadkeep.engine.log.msgpack import LIST, WHOLE
from threadkeep.engine.log.plain import plain
from threadkeep.engine.threads.default_merge import merged

NO_CHANNELS = frozenset(
    {INTERRUPT, ERROR, RESUME, "__no_writes__", "__pregel_push", "__return__", "__error_source_node__"}
)
"""What tasks write that is for no channel."""
_BRANCH, _START, _JOIN = "branch:to:", "__start__", "join:"


class StoredWrite(NamedTuple):
    """A write of a task. `node` is None if nothing tells it."""

    path: str
    task: str
    node: str | None
    channel: str
    value: Parts


def lasts_one_step(name: str) -> bool:
    """Whether a channel is empty again after the step that follows the write."""
    return name in (TASKS, _START) or name.startswith(_BRANCH)


def is_known_by_name(name: str) -> bool:
    """Whether the name alone tells how a channel takes writes."""
    return lasts_one_step(name) or name.startswith(_JOIN)


def touches(name: str, writes: Iterable[StoredWrite]) -> bool:
    """Whether a step changes a channel: it writes to it, or runs the node that a join waited for."""
    return any(write.channel == name or _is_joined(name, write) for write in writes)


def _is_joined(name: str, write: StoredWrite) -> bool:
    return name.startswith(_JOIN) and name.rpartition(":")[2] == write.node


def channel_after(
    name: str, base: Parts | None, steps: Iterable[Sequence[StoredWrite]], *, delta: bool = False
) -> Parts | None:
    """A channel's value after some steps; None if it has none. Of a channel that lasts one step, give the last step."""
    if name.startswith(_JOIN):
        return _join_after(name, base, steps)
    writes = [write.value for step in steps for write in step if write.channel == name]
    if lasts_one_step(name):
        base = Parts(LIST, MSGPACK, []) if name == TASKS and writes else None
    return merged(base, writes, delta=delta)


def _join_after(name: str, base: Parts | None, steps: Iterable[Sequence[StoredWrite]]) -> Parts:
    """The nodes that a join has heard of: a set of names."""
    heard = set(plain(base.tag, base.data) or ()) if base is not None else set()
    for step in steps:
        if any(_is_joined(name, write) for write in step):
            heard = set()
        heard |= {plain(write.value.tag, write.value.data) for write in step if write.channel == name}
    return Parts(WHOLE, MSGPACK, [pack(heard)])


def versions_after(
    versions: Mapping[str, Any], seen: Mapping[str, Mapping[str, Any]], held: Iterable[str], step: Sequence[StoredWrite]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Versions and what nodes have seen after a step; `held` are the channels that had a value before it."""
    after = {node: dict(known) for node, known in seen.items()}
    for node in {write.node for write in step if write.node is not None}:
        known = after.setdefault(node, {})
        known.update({name: versions[name] for name in _triggers(node, known, versions) if name in versions})
    changed = {name for name in held if lasts_one_step(name) or touches(name, step)} | {w.channel for w in step}
    return {**versions, **dict.fromkeys(changed, next_version(versions.values()))}, after


def _triggers(node: str, known: Mapping[str, Any], versions: Mapping[str, Any]) -> set[str]:
    joins = {name for name in versions if name.startswith(_JOIN) and name.rpartition(":")[2] == node}
    return {*known, _BRANCH + node, *joins, *([_START] if node == _START else [])}


def next_version(versions: Iterable[Any]) -> Any:
    """The version after all of these, as LangGraph's savers count: integers, or strings that begin with one."""
    held = list(versions)
    texts = [version for version in held if isinstance(version, str)]
    if texts:
        return f"{int(max(texts).split('.')[0]) + 1:032}.{0:016}"
    numbers = [version for version in held if isinstance(version, (int, float))]
    return max(numbers, default=0) + 1
