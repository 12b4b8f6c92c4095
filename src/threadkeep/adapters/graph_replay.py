"""A compiled graph's own channels, to take stored writes in again: its reducers, versions and what nodes have seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from langgraph.checkpoint.serde.base import maybe_add_typed_methods

from threadkeep.engine.codec import Codec, Parts
from threadkeep.engine.rebuild import NotTheGraphError, State, Value, Written, next_version

_INPUT, _INTERRUPT, _PUSH = "__input__", "__interrupt__", "__pregel_push"


class GraphReplay:
    """Takes writes in as a graph does. Values go through a serializer: its checkpointer's, or the Keep's."""

    def __init__(self, graph: Any, serde: Any) -> None:
        self._graph = graph
        self._codec = Codec(maybe_add_typed_methods(serde), given=serde)
        missing = [name for name in ("channels", "nodes", "trigger_to_nodes") if not hasattr(graph, name)]
        if missing:
            raise TypeError(f"graph must be a compiled LangGraph graph, not {type(graph).__name__}")

    def channel(self, name: str, base: Parts | None, writes: Sequence[Parts]) -> Parts | None:
        """The value of a channel after some writes, one call of its reducer; None if it has none."""
        from langgraph._internal._typing import MISSING  # noqa: PLC0415 - LangGraph's engine is only needed here

        spec = self._graph.channels.get(name)
        if spec is None:
            raise NotTheGraphError(f"the graph has no channel {name!r}: it is not the graph of this thread")
        held = MISSING if base is None else self._decoded(name, base)
        channel = spec.from_checkpoint(held)
        channel.update([self._decoded(name, write) for write in writes])
        value = channel.get() if _is_delta(spec) and channel.is_available() else channel.checkpoint()
        return None if value is MISSING else self._codec.encode(value)

    def step(self, state: State, held: Mapping[str, Parts], writes: Sequence[Written]) -> State:
        """The state after a step, by LangGraph's own `apply_writes`."""
        from langgraph.pregel._algo import apply_writes  # noqa: PLC0415 - as above
        from langgraph.pregel._checkpoint import channels_from_checkpoint, create_checkpoint  # noqa: PLC0415

        checkpoint: Any = {
            "v": 4, "id": "", "ts": "",
            "channel_values": {name: self._decoded(name, value) for name, value in held.items()},
            "channel_versions": dict(state.versions),
            "versions_seen": {node: dict(seen) for node, seen in state.seen.items()},
        }  # fmt: skip
        specs = {name: spec for name, spec in self._graph.channels.items() if name in held or not _is_delta(spec)}
        channels, _ = channels_from_checkpoint(specs, checkpoint)
        deltas = {name for name in channels if _is_delta(self._graph.channels[name])}
        updated = apply_writes(checkpoint, channels, self._tasks(writes), _next, self._graph.trigger_to_nodes)
        made = create_checkpoint(checkpoint, channels, 0, updated_channels=updated, channels_to_snapshot=deltas)
        return self._state(state, made)

    def _state(self, before: State, made: Any) -> State:
        """Values that did not change stay as they are held."""
        versions = made["channel_versions"]
        values: dict[str, Value] = {}
        for name, value in made["channel_values"].items():
            same = name in before.values and versions.get(name) == before.versions.get(name)
            values[name] = before.values[name] if same else self._codec.encode(value)
        fields = {"v": made["v"], "updated_channels": made.get("updated_channels")}
        return replace(
            before, versions=dict(versions), seen=made["versions_seen"], values=values, fields=fields, rest=None
        )

    def _tasks(self, writes: Sequence[Written]) -> list[Any]:
        """Writes by task, with what triggered each."""
        from langgraph.pregel._algo import PregelTaskWrites  # noqa: PLC0415 - as above

        by_task: dict[tuple[str, str, str | None], list[tuple[str, Any]]] = {}
        for each in writes:
            assert each.value is not None
            by_task.setdefault((each.path, each.task, each.node), []).append(
                (each.channel, self._decoded(each.channel, each.value))
            )
        return [
            PregelTaskWrites((path, task), node or _INPUT, given, self._triggers(path, node))
            for (path, task, node), given in by_task.items()
        ]

    def _triggers(self, path: str, node: str | None) -> list[str]:
        if node is None:
            return [_INTERRUPT]
        if path.removeprefix("~").startswith(_PUSH):
            return [_PUSH]
        found = self._graph.nodes.get(node)
        if found is None:
            raise NotTheGraphError(f"the graph has no node {node!r}: it is not the graph of this thread")
        return sorted(found.triggers)

    def _decoded(self, name: str, value: Parts) -> Any:
        data = b"".join(value.parts)
        return self._codec.decode(
            value.kind, value.tag, len(value.parts), data, snapshot=value.snapshot, what=f"channel {name!r}"
        )


def _is_delta(spec: Any) -> bool:
    return type(spec).__name__ == "DeltaChannel"


def _next(current: Any, _: None) -> Any:
    return next_version([] if current is None else [current])
