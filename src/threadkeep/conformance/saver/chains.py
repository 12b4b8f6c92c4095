"""Puts chains of checkpoints, as a graph run does, and reads them back."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from threadkeep.conformance.sync_async import Caller


def config_for(thread: str = "t", id: str | None = None, ns: str = "", **entries: Any) -> dict[str, Any]:
    """Return the config of a thread, or of one checkpoint."""
    checkpoint = {"checkpoint_id": id} if id is not None else {}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns} | checkpoint} | entries


def put(saver: Caller, id: str, parent: str | None = None, values: dict[str, Any] | None = None, /, **how: Any) -> Any:
    """Put a checkpoint. All its channels get the version `version`.

    Other keywords: `thread`, `ns` and `run` (a run id); everything else is metadata.
    """
    thread, ns, version = how.pop("thread", "t"), how.pop("ns", ""), how.pop("version", 1)
    run = {"metadata": {"run_id": how.pop("run")}} if "run" in how else {}
    versions = dict.fromkeys(values or {}, version)
    checkpoint = {**empty_checkpoint(), "id": id, "channel_values": values or {}, "channel_versions": versions}
    metadata = {"source": "loop", "step": 0, "parents": {}} | how
    return saver.put(config_for(thread, parent, ns) | run, checkpoint, metadata, versions)


def put_chain(saver: Caller, *ids: str, **how: Any) -> None:
    """Put checkpoints, each the child of the one before. The channel `n` holds their number."""
    for number, id in enumerate(ids):
        put(saver, id, ids[number - 1] if number else None, {"n": number}, version=number + 1, step=number, **how)


def load(saver: Caller, config: dict[str, Any]) -> Any:
    """Return the tuple of a checkpoint that must exist."""
    found = saver.get_tuple(config)
    assert found is not None, f"no checkpoint at {config}"
    return found


def values_of(saver: Caller, thread: str = "t", id: str | None = None, ns: str = "") -> Any:
    """Return the channel values of a checkpoint that must exist."""
    return load(saver, config_for(thread, id, ns)).checkpoint["channel_values"]


def writes_of(saver: Caller, thread: str = "t", id: str | None = None, ns: str = "") -> list[tuple[str, str, Any]]:
    """Return the pending writes of a checkpoint that must exist."""
    return [tuple(write) for write in load(saver, config_for(thread, id, ns)).pending_writes or ()]


def list_ids(saver: Caller, thread: str | None = "t", **options: Any) -> list[str]:
    """List checkpoint ids: of one thread in all its namespaces, or of all threads."""
    config = {"configurable": {"thread_id": thread}} if thread is not None else None
    return [found.checkpoint["id"] for found in saver.list(config, **options)]


def list_keys(saver: Caller, config: Any, **options: Any) -> list[tuple[str, str, str]]:
    """List checkpoints as (thread, namespace, id)."""
    found = (each.config["configurable"] for each in saver.list(config, **options))
    return [(each["thread_id"], each["checkpoint_ns"], each["checkpoint_id"]) for each in found]
