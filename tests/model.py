"""The model of a saver, as simple as possible: LangGraph's InMemorySaver, with the verbs that it lacks.

InMemorySaver finds values by version, and integer versions repeat on other branches; so the model stores the values of
each checkpoint separately. Prune, copy_thread, delete_for_runs and the order of `list` follow LangGraph's
documentation.
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
        kept_values = {}
        for channel, value in checkpoint["channel_values"].items():
            known = channel in kept and versions.get(channel) == checkpoint["channel_versions"].get(channel)
            kept_values[channel] = (
                kept[channel] if known and channel not in new_versions else self.serde.dumps_typed(value)
            )
        for channel in kept.keys() - kept_values.keys() - new_versions.keys():
            one, other = versions.get(channel), checkpoint["channel_versions"].get(channel)
            same = one is not None and type(one) is type(other) and one == other
            if same and channel not in self._delta(parent, metadata):
                kept_values[channel] = kept[channel]
        self.thread_ids.add(thread)
        self.values[(thread, ns, checkpoint["id"])] = kept_values
        return super().put(config, checkpoint, metadata, new_versions)

    def _delta(self, parent: CheckpointKey, metadata: Any) -> set[str]:
        """Return the delta channels: those that metadata counts, or of which the parent holds a snapshot."""
        counts = [
            own_metadata.get("counters_since_delta_snapshot") or {}
            for own_metadata in (metadata, self.metadata_of(parent))
        ]
        kept_values = {name: self.serde.loads_typed(data) for name, data in self.values[parent].items()}
        return {
            *counts[0],
            *counts[1],
            *(name for name in kept_values if isinstance(kept_values[name], _DeltaSnapshot)),
        }

    def _versions(self, checkpoint_key: CheckpointKey) -> dict[str, Any]:
        saved = self.storage[checkpoint_key[0]][checkpoint_key[1]].get(checkpoint_key[2])
        return self.serde.loads_typed(saved[0])["channel_versions"] if saved else {}

    def checkpoint_keys(self) -> list[CheckpointKey]:
        """Return the keys of all checkpoints, in the order of `list`."""
        found = [(t, ns, id) for t, spaces in self.storage.items() for ns, ids in spaces.items() for id in ids]
        return sorted(sorted(found), key=lambda checkpoint_key: checkpoint_key[2], reverse=True)

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
        selected = config["configurable"] if config else {}
        earlier = get_checkpoint_id(before) if before else None
        chosen = [
            checkpoint_key
            for checkpoint_key in self.checkpoint_keys()
            if selected.get("thread_id") in (None, checkpoint_key[0])
            and selected.get("checkpoint_ns") in (None, checkpoint_key[1])
            and selected.get("checkpoint_id") in (None, "", checkpoint_key[2])
            and (not earlier or checkpoint_key[2] < earlier)
            and all(
                equal_as_json(self.metadata_of(checkpoint_key).get(key), value) for key, value in (filter or {}).items()
            )
        ]
        for checkpoint_key in chosen[:limit]:
            found = self.get_tuple(checkpoint_config(*checkpoint_key))
            assert found is not None
            yield found

    def metadata_of(self, checkpoint_key: CheckpointKey) -> dict[str, Any]:
        thread, ns, id = checkpoint_key
        return self.serde.loads_typed(self.storage[thread][ns][id][1])

    def get_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> dict[str, Any]:
        """Return the writes of each channel on the way to a checkpoint, since the nearest ancestor with a value."""
        thread, ns = config["configurable"]["thread_id"], config["configurable"].get("checkpoint_ns", "")
        ids = self.storage[thread][ns]
        line = [get_checkpoint_id(config) or max(ids, default="")]
        while line[-1] in ids and (parent := ids[line[-1]][2]) in ids and parent not in line:
            line.append(parent)
        history: dict[str, Any] = {}
        for channel in channels:
            history[channel] = {"writes": []}
            for id in line[1:]:
                ordered = [
                    kept_values for kept_values in self._ordered_writes(thread, ns, id) if kept_values[1] == channel
                ]
                history[channel]["writes"][:0] = [
                    (task, name, self.serde.loads_typed(v)) for task, name, v, _ in ordered
                ]
                if channel in self.values[(thread, ns, id)]:
                    history[channel]["seed"] = self.serde.loads_typed(self.values[(thread, ns, id)][channel])
                    break
        return history

    # --- writes

    def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        inner = config["configurable"]
        checkpoint_key = (inner["thread_id"], inner.get("checkpoint_ns", ""), inner["checkpoint_id"])
        there = set(self.writes.get(checkpoint_key, {}))
        super().put_writes(config, writes, task_id, task_path)
        for idx, (channel, _) in enumerate(writes):
            key = (task_id, WRITES_IDX_MAP.get(channel, idx))
            if key[1] < 0 or key not in there:
                self.runs[(checkpoint_key, key)] = run_of(config)
        if writes:
            self.thread_ids.add(inner["thread_id"])

    # --- what InMemorySaver lacks

    def delete_thread(self, thread_id: str) -> None:
        super().delete_thread(thread_id)
        self.values = {
            checkpoint_key: kept_values
            for checkpoint_key, kept_values in self.values.items()
            if checkpoint_key[0] != thread_id
        }
        self.thread_ids.discard(thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        for thread in thread_ids:
            if strategy != "keep_latest":
                self.delete_thread(thread)
                continue
            latest = {ns: max(ids) for ns, ids in self.storage[thread].items() if ids}
            kept = {(thread, ns, id) for ns, id in latest.items() if self._belongs((thread, ns, id), latest.get(""))}
            self._remove(
                [
                    checkpoint_key
                    for checkpoint_key in self.checkpoint_keys()
                    if checkpoint_key[0] == thread and checkpoint_key not in kept
                ]
            )

    def _belongs(self, checkpoint_key: CheckpointKey, root: str | None) -> bool:
        """Return whether a subgraph's checkpoint is kept: unless its root checkpoint is older than the kept one."""
        named = (self.metadata_of(checkpoint_key).get("parents") or {}).get("")
        return ":" not in checkpoint_key[1] or named is None or root is None or named >= root

    def _remove(self, places: list[CheckpointKey]) -> None:
        """Remove checkpoints with their writes. Their children then have no parent."""
        for checkpoint_key in places:
            thread, ns, id = checkpoint_key
            del self.storage[thread][ns][id], self.values[checkpoint_key]
            self.writes.pop(checkpoint_key, None)
        for thread, ns, id in self.checkpoint_keys():
            checkpoint, metadata, parent = self.storage[thread][ns][id]
            if (thread, ns, parent) in places:
                self.storage[thread][ns][id] = (checkpoint, metadata, None)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._remove(
            [
                checkpoint_key
                for checkpoint_key in self.checkpoint_keys()
                if self.metadata_of(checkpoint_key).get("run_id") in run_ids
            ]
        )
        for checkpoint_key, kept_values in list(self.writes.items()):
            for key in [key for key in kept_values if self.runs[(checkpoint_key, key)] in run_ids]:
                del kept_values[key]
        self.thread_ids &= {
            checkpoint_key[0]
            for checkpoint_key in [
                *self.checkpoint_keys(),
                *(checkpoint_key for checkpoint_key, kept_values in self.writes.items() if kept_values),
            ]
        }

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        if source_thread_id == target_thread_id or source_thread_id not in self.thread_ids:
            return
        self.thread_ids.add(target_thread_id)
        for checkpoint_key in self.checkpoint_keys():
            copied = (target_thread_id, checkpoint_key[1], checkpoint_key[2])
            if checkpoint_key[0] == source_thread_id and copied not in self.values:
                self.values[copied] = dict(self.values[checkpoint_key])
                self.storage[copied[0]][copied[1]][copied[2]] = self._copy_row(checkpoint_key, target_thread_id)
        for checkpoint_key, kept_values in list(self.writes.items()):
            copied = (target_thread_id, checkpoint_key[1], checkpoint_key[2])
            for key in [
                key for key in kept_values if checkpoint_key[0] == source_thread_id and key not in self.writes[copied]
            ]:
                self.writes[copied][key] = kept_values[key]
                self.runs[(copied, key)] = self.runs[(checkpoint_key, key)]

    def _copy_row(self, checkpoint_key: CheckpointKey, target: str) -> Any:
        checkpoint, _, parent = self.storage[checkpoint_key[0]][checkpoint_key[1]][checkpoint_key[2]]
        own_metadata = self.metadata_of(checkpoint_key)
        if own_metadata.get("thread_id") == checkpoint_key[0]:
            own_metadata["thread_id"] = target
        return (checkpoint, self.serde.dumps_typed(own_metadata), parent)

    # --- the catalogue

    def threads(self) -> dict[str, tuple[Any, ...]]:
        """Return checkpoints, writes, step, source and status of each thread."""
        return {thread: self._thread(thread) for thread in self.thread_ids}

    def _thread(self, thread: str) -> tuple[Any, ...]:
        checkpoints = [checkpoint_key for checkpoint_key in self.checkpoint_keys() if checkpoint_key[0] == thread]
        writes = sum(
            len(kept_values) for checkpoint_key, kept_values in self.writes.items() if checkpoint_key[0] == thread
        )
        tops = [checkpoint_key for checkpoint_key in checkpoints if checkpoint_key[1] == ""]
        if not tops:
            return len(checkpoints), writes, None, None, "idle"
        own_metadata = self.metadata_of(tops[0])
        channels = {kept_values[1] for kept_values in self.writes.get(tops[0], {}).values()}
        waiting = "interrupted" if INTERRUPT in channels else "pending" if channels else "idle"
        status = "error" if ERROR in channels else waiting
        return len(checkpoints), writes, own_metadata.get("step"), own_metadata.get("source"), status
