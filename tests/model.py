"""The model of a saver, as simple as possible: LangGraph's InMemorySaver, with the verbs that it lacks.

InMemorySaver finds values by version, and integer versions repeat on other branches; so the model stores the values of
each checkpoint separately. Prune, copy_thread, delete_for_runs and the order of `list` follow LangGraph's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple, get_checkpoint_id
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, _DeltaSnapshot

CheckpointKey = tuple[str, str, str]


def checkpoint_config(thread: str, ns: str, id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def run_of(config: Any) -> str | None:
    return next(
        (part["run_id"] for part in (config.get("metadata"), config["configurable"]) if part and "run_id" in part), None
    )


def equal_as_json(stored: Any, wanted: Any) -> bool:
    """Return whether two values are equal as JSON: 1 is 1.0, True is not 1."""
    if isinstance(stored, bool) or isinstance(wanted, bool):
        return stored is wanted
    if isinstance(stored, dict) and isinstance(wanted, dict):
        return stored.keys() == wanted.keys() and all(equal_as_json(stored[key], wanted[key]) for key in wanted)
    if isinstance(stored, list) and isinstance(wanted, list):
        return len(stored) == len(wanted) and all(map(equal_as_json, stored, wanted))
    return bool(stored == wanted)


class Model(InMemorySaver):
    """The saver that all others are compared with."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[CheckpointKey, dict[str, tuple[str, bytes]]] = {}
        self.runs: dict[tuple[CheckpointKey, tuple[str, int]], str | None] = {}
        self.thread_ids: set[str] = set()

    # --- checkpoints

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        thread, ns = config["configurable"]["thread_id"], config["configurable"]["checkpoint_ns"]
        parent = (thread, ns, config["configurable"].get("checkpoint_id") or "")
        versions = self._versions(parent)
        kept = self.values.get(parent, {})
        held = {}
        for channel, value in checkpoint["channel_values"].items():
            known = channel in kept and versions.get(channel) == checkpoint["channel_versions"].get(channel)
            held[channel] = kept[channel] if known and channel not in new_versions else self.serde.dumps_typed(value)
        for channel in kept.keys() - held.keys() - new_versions.keys():
            one, other = versions.get(channel), checkpoint["channel_versions"].get(channel)
            same = one is not None and type(one) is type(other) and one == other
            if same and channel not in self._delta(parent, metadata):
                held[channel] = kept[channel]
        self.thread_ids.add(thread)
        self.values[(thread, ns, checkpoint["id"])] = held
        return super().put(config, checkpoint, metadata, new_versions)

    def _delta(self, parent: CheckpointKey, metadata: Any) -> set[str]:
        """Return the delta channels: those that metadata counts, or of which the parent holds a snapshot."""
        counts = [about.get("counters_since_delta_snapshot") or {} for about in (metadata, self.metadata_of(parent))]
        held = {name: self.serde.loads_typed(data) for name, data in self.values[parent].items()}
        return {*counts[0], *counts[1], *(name for name in held if isinstance(held[name], _DeltaSnapshot))}

    def _versions(self, place: CheckpointKey) -> dict[str, Any]:
        saved = self.storage[place[0]][place[1]].get(place[2])
        return self.serde.loads_typed(saved[0])["channel_versions"] if saved else {}

    def checkpoint_keys(self) -> list[CheckpointKey]:
        """Return the keys of all checkpoints, in the order of `list`."""
        found = [(t, ns, id) for t, spaces in self.storage.items() for ns, ids in spaces.items() for id in ids]
        return sorted(sorted(found), key=lambda place: place[2], reverse=True)

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        found = super().get_tuple(config)
        if found is None:
            return None
        thread, ns, id = config["configurable"]["thread_id"], config["configurable"].get("checkpoint_ns", ""), None
        id = found.checkpoint["id"]
        values = {channel: self.serde.loads_typed(data) for channel, data in self.values[(thread, ns, id)].items()}
        return found._replace(
            config=checkpoint_config(thread, ns, id),  # type: ignore[arg-type]
            checkpoint={**found.checkpoint, "channel_values": values},
        )

    def list(
        self, config: Any, *, filter: Any = None, before: Any = None, limit: int | None = None
    ) -> Iterator[CheckpointTuple]:
        asked = config["configurable"] if config else {}
        earlier = get_checkpoint_id(before) if before else None
        chosen = [
            place
            for place in self.checkpoint_keys()
            if asked.get("thread_id") in (None, place[0])
            and asked.get("checkpoint_ns") in (None, place[1])
            and asked.get("checkpoint_id") in (None, "", place[2])
            and (not earlier or place[2] < earlier)
            and all(equal_as_json(self.metadata_of(place).get(key), value) for key, value in (filter or {}).items())
        ]
        for place in chosen[:limit]:
            found = self.get_tuple(checkpoint_config(*place))
            assert found is not None
            yield found

    def metadata_of(self, place: CheckpointKey) -> dict[str, Any]:
        thread, ns, id = place
        return self.serde.loads_typed(self.storage[thread][ns][id][1])

    def get_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> dict[str, Any]:
        """Return the writes of each channel on the way to a checkpoint, since the nearest ancestor with a value."""
        thread, ns = config["configurable"]["thread_id"], config["configurable"].get("checkpoint_ns", "")
        ids = self.storage[thread][ns]
        line = [get_checkpoint_id(config) or max(ids, default="")]
        while line[-1] in ids and (parent := ids[line[-1]][2]) in ids and parent not in line:
            line.append(parent)
        told: dict[str, Any] = {}
        for channel in channels:
            told[channel] = {"writes": []}
            for id in line[1:]:
                ordered = [held for held in self._ordered_writes(thread, ns, id) if held[1] == channel]
                told[channel]["writes"][:0] = [(task, name, self.serde.loads_typed(v)) for task, name, v, _ in ordered]
                if channel in self.values[(thread, ns, id)]:
                    told[channel]["seed"] = self.serde.loads_typed(self.values[(thread, ns, id)][channel])
                    break
        return told

    # --- writes

    def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        inner = config["configurable"]
        place = (inner["thread_id"], inner.get("checkpoint_ns", ""), inner["checkpoint_id"])
        there = set(self.writes.get(place, {}))
        super().put_writes(config, writes, task_id, task_path)
        for idx, (channel, _) in enumerate(writes):
            key = (task_id, WRITES_IDX_MAP.get(channel, idx))
            if key[1] < 0 or key not in there:
                self.runs[(place, key)] = run_of(config)
        if writes:
            self.thread_ids.add(inner["thread_id"])

    # --- what InMemorySaver lacks

    def delete_thread(self, thread_id: str) -> None:
        super().delete_thread(thread_id)
        self.values = {place: held for place, held in self.values.items() if place[0] != thread_id}
        self.thread_ids.discard(thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        for thread in thread_ids:
            if strategy != "keep_latest":
                self.delete_thread(thread)
                continue
            latest = {ns: max(ids) for ns, ids in self.storage[thread].items() if ids}
            kept = {(thread, ns, id) for ns, id in latest.items() if self._belongs((thread, ns, id), latest.get(""))}
            self._remove([place for place in self.checkpoint_keys() if place[0] == thread and place not in kept])

    def _belongs(self, place: CheckpointKey, root: str | None) -> bool:
        """Return whether a subgraph's checkpoint is kept: it is unless its root checkpoint is older than the kept one."""
        named = (self.metadata_of(place).get("parents") or {}).get("")
        return ":" not in place[1] or named is None or root is None or named >= root

    def _remove(self, places: list[CheckpointKey]) -> None:
        """Remove checkpoints with their writes. Their children then have no parent."""
        for place in places:
            thread, ns, id = place
            del self.storage[thread][ns][id], self.values[place]
            self.writes.pop(place, None)
        for thread, ns, id in self.checkpoint_keys():
            checkpoint, metadata, parent = self.storage[thread][ns][id]
            if (thread, ns, parent) in places:
                self.storage[thread][ns][id] = (checkpoint, metadata, None)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._remove([place for place in self.checkpoint_keys() if self.metadata_of(place).get("run_id") in run_ids])
        for place, held in list(self.writes.items()):
            for key in [key for key in held if self.runs[(place, key)] in run_ids]:
                del held[key]
        self.thread_ids &= {
            place[0] for place in [*self.checkpoint_keys(), *(place for place, held in self.writes.items() if held)]
        }

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        if source_thread_id == target_thread_id or source_thread_id not in self.thread_ids:
            return
        self.thread_ids.add(target_thread_id)
        for place in self.checkpoint_keys():
            copied = (target_thread_id, place[1], place[2])
            if place[0] == source_thread_id and copied not in self.values:
                self.values[copied] = dict(self.values[place])
                self.storage[copied[0]][copied[1]][copied[2]] = self._repointed(place, target_thread_id)
        for place, held in list(self.writes.items()):
            copied = (target_thread_id, place[1], place[2])
            for key in [key for key in held if place[0] == source_thread_id and key not in self.writes[copied]]:
                self.writes[copied][key] = held[key]
                self.runs[(copied, key)] = self.runs[(place, key)]

    def _copy_row(self, place: CheckpointKey, target: str) -> Any:
        checkpoint, _, parent = self.storage[place[0]][place[1]][place[2]]
        about = self.metadata_of(place)
        if about.get("thread_id") == place[0]:
            about["thread_id"] = target
        return (checkpoint, self.serde.dumps_typed(about), parent)

    # --- the catalogue

    def threads(self) -> dict[str, tuple[Any, ...]]:
        """Return checkpoints, writes, step, source and status of each thread."""
        return {thread: self._thread(thread) for thread in self.thread_ids}

    def _thread(self, thread: str) -> tuple[Any, ...]:
        checkpoints = [place for place in self.checkpoint_keys() if place[0] == thread]
        writes = sum(len(held) for place, held in self.writes.items() if place[0] == thread)
        tops = [place for place in checkpoints if place[1] == ""]
        if not tops:
            return len(checkpoints), writes, None, None, "idle"
        about = self.metadata_of(tops[0])
        channels = {held[1] for held in self.writes.get(tops[0], {}).values()}
        waiting = "interrupted" if INTERRUPT in channels else "pending" if channels else "idle"
        status = "error" if ERROR in channels else waiting
        return len(checkpoints), writes, about.get("step"), about.get("source"), status
