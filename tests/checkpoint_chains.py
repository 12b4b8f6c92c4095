"""Puts chains of checkpoints, as a graph run does: each is the child of the one before."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import empty_checkpoint


def config(
    thread: Any, id: str | None = None, ns: str = "", *, run: str | None = None, **entries: Any
) -> dict[str, Any]:
    """Return the config of a thread or a checkpoint. `entries` go into `configurable`."""
    checkpoint = {"checkpoint_id": id} if id is not None else {}
    configurable = {"thread_id": thread, "checkpoint_ns": ns} | checkpoint | entries
    return {"configurable": configurable} | ({"metadata": {"run_id": run}} if run else {})


class Chain:
    """Puts one checkpoint after the other into a thread. `saver` may be replaced between puts."""

    def __init__(self, saver: Any, thread: str = "t", *, ns: str = "", run: str | None = None) -> None:
        self.saver, self.thread, self.ns, self.run = saver, thread, ns, run
        self.number = 0
        self.last: str | None = None
        self._values: dict[str, Any] = {}
        self._versions: dict[str, int] = {}

    def next(self, values: dict[str, Any], *, id: str | None = None, **metadata: Any) -> tuple[Any, Any, Any, Any]:
        """Return the arguments of the next put."""
        changed = [name for name, value in values.items() if name not in self._values or self._values[name] != value]
        new = {name: self._versions.get(name, 0) + 1 for name in changed}
        parent = config(self.thread, self.last, self.ns, run=self.run)
        self._versions = {name: version for name, version in (self._versions | new).items() if name in values}
        self._values = dict(values)
        self.last = id if id is not None else f"{self.number:08}"
        checkpoint = empty_checkpoint() | {
            "id": self.last,
            "channel_values": dict(values),
            "channel_versions": dict(self._versions),
        }
        metadata = {"source": "loop", "step": self.number, "parents": {}} | metadata
        self.number += 1
        return parent, checkpoint, metadata, new

    def put(self, values: dict[str, Any], *, id: str | None = None, **metadata: Any) -> dict[str, Any]:
        stored: dict[str, Any] = self.saver.put(*self.next(values, id=id, **metadata))
        return stored

    async def aput(self, values: dict[str, Any], *, id: str | None = None, **metadata: Any) -> dict[str, Any]:
        stored: dict[str, Any] = await self.saver.aput(*self.next(values, id=id, **metadata))
        return stored


def values_of(saver: Any, thread: str = "t", id: str | None = None, ns: str = "") -> dict[str, Any]:
    """Return the channel values of a checkpoint that must exist."""
    found = saver.get_tuple(config(thread, id, ns))
    assert found is not None
    channels: dict[str, Any] = found.checkpoint["channel_values"]
    return channels


def list_ids(saver: Any, thread: str | None = "t", **options: Any) -> list[str]:
    """Return the checkpoint ids that `list` yields, in its order: of one thread, or of all."""
    listed = {"configurable": {"thread_id": thread}} if thread is not None else None
    return [found.checkpoint["id"] for found in saver.list(listed, **options)]
