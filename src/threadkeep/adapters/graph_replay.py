"""Replay stored writes through a compiled graph, with its own reducers, versions and `versions_seen`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from langgraph.checkpoint.serde.base import maybe_add_typed_methods
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.engine.health.apply_writes import StoredWrite, next_version
from threadkeep.engine.health.rebuild import RebuiltState, Value, WrongGraphError
from threadkeep.engine.log.codec import Codec, Parts
from threadkeep.engine.log.msgpack import WHOLE

_INPUT, _INTERRUPT, _PUSH = "__input__", "__interrupt__", "__pregel_push"


class GraphReplay:
    """Applies writes as the graph does. Values go through a serializer: the graph's checkpointer's, or the Keep's."""

    def __init__(self, graph: Any, serde: Any) -> None:
        self._graph = graph
        self._codec = Codec(maybe_add_typed_methods(serde), given=serde)
        missing = [name for name in ("channels", "nodes", "trigger_to_nodes") if not hasattr(graph, name)]
        if missing:
            raise TypeError(f"graph must be a compiled LangGraph graph, not {type(graph).__name__}")

    def channel(self, name: str, base: Parts | None, steps: Sequence[Sequence[Parts]]) -> Parts | None:
        """Return the value of a channel after the writes of some steps; None if it has none."""
        from langgraph._internal._typing import MISSING  # noqa: PLC0415 - only a replay needs LangGraph's engine

        spec = self._graph.channels.get(name)
        if spec is None:
            raise WrongGraphError(f"the graph has no channel {name!r}: this is not the thread's graph")
        channel = spec.from_checkpoint(MISSING if base is None else self._decode(name, base))
        values_by_step = [[self._decode(name, write) for write in step] for step in steps]
        if _is_delta(spec):  # all steps at once, as LangGraph does when it reads such a channel
            channel.replay_writes([("", name, value) for values in values_by_step for value in values])
            return self._codec.encode(channel.get()) if channel.is_available() else None
        for values in filter(None, values_by_step):
            channel.update(values)
        value = channel.checkpoint()
        return None if value is MISSING else self._codec.encode(value)

    def step(self, state: RebuiltState, writes: Sequence[StoredWrite]) -> RebuiltState:
        """Return the state after a step, by LangGraph's own `apply_writes`. Unchanged values keep their bytes."""
        from langgraph.pregel._algo import apply_writes  # noqa: PLC0415 - as above
        from langgraph.pregel._checkpoint import channels_from_checkpoint, create_checkpoint  # noqa: PLC0415

        checkpoint: Any = {
            "v": 4,
            "id": "",
            "ts": "",
            "channel_values": {name: self._decode(name, value) for name, value in state.values.items()},
            "channel_versions": dict(state.versions),
            "versions_seen": {node: dict(seen) for node, seen in state.seen.items()},
        }
        specs = {n: spec for n, spec in self._graph.channels.items() if n in state.values or not _is_delta(spec)}
        channels, _ = channels_from_checkpoint(specs, checkpoint)
        deltas = {name for name in channels if _is_delta(self._graph.channels[name])}
        updated = apply_writes(checkpoint, channels, self._tasks(writes), _next_version, self._graph.trigger_to_nodes)
        new = create_checkpoint(checkpoint, channels, 0, updated_channels=updated, channels_to_snapshot=deltas)
        versions, values = new["channel_versions"], dict[str, Value]()
        for name, value in new["channel_values"].items():
            is_unchanged = name in state.values and versions.get(name) == state.versions.get(name)
            values[name] = state.values[name] if is_unchanged else self._encode(value)
        fields = {"v": new["v"], "updated_channels": new.get("updated_channels")}
        return replace(state, versions=dict(versions), seen=new["versions_seen"], values=values, fields=fields)

    def _tasks(self, writes: Sequence[StoredWrite]) -> list[Any]:
        """Group writes by task, with the channels that triggered each."""
        from langgraph.pregel._algo import PregelTaskWrites  # noqa: PLC0415 - as above

        by_task: dict[tuple[str, str, str | None], list[tuple[str, Any]]] = {}
        for path, task, node, channel, value in writes:
            by_task.setdefault((path, task, node), []).append((channel, self._decode(channel, value)))
        return [
            PregelTaskWrites((path, task), node or _INPUT, task_writes, self._triggers(path, node))
            for (path, task, node), task_writes in by_task.items()
        ]

    def _triggers(self, path: str, node: str | None) -> list[str]:
        if node is None:
            return [_INTERRUPT]
        if path.removeprefix("~").startswith(_PUSH):
            return [_PUSH]
        graph_node = self._graph.nodes.get(node)
        if graph_node is None:
            raise WrongGraphError(f"the graph has no node {node!r}: this is not the thread's graph")
        return sorted(graph_node.triggers)

    def _decode(self, name: str, value: Any) -> Any:
        return self._codec.decode(WHOLE, value.tag, 1, value.data, snapshot=value.snapshot, what=f"channel {name!r}")

    def _encode(self, value: Any) -> Parts:
        is_snapshot = isinstance(value, _DeltaSnapshot)
        return self._codec.encode(value.value if is_snapshot else value)._replace(snapshot=is_snapshot)


def _is_delta(spec: Any) -> bool:
    return type(spec).__name__ == "DeltaChannel"


def _next_version(current: Any, _: None) -> Any:
    return next_version([] if current is None else [current])
