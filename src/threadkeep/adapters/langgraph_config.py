"""Read thread, namespace, checkpoint, run and metadata from LangGraph's configs, and write configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, get_checkpoint_metadata

from threadkeep.engine.identity import as_id


class ConfigTarget(NamedTuple):
    """The thread and checkpoint that a config names. `ns` is None if it names no namespace."""

    thread: str
    ns: str | None
    id: str | None


def target_of(config: Any) -> ConfigTarget:
    """Return what a config names. ValueError if it has no thread_id."""
    inner = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(inner, Mapping):
        raise ValueError("the config needs {'configurable': {'thread_id': ...}}")  # noqa: TRY004 - the value is wrong
    if "thread_id" not in inner:
        raise ValueError("config['configurable'] needs a 'thread_id'")
    ns, id = inner.get("checkpoint_ns"), inner.get("checkpoint_id")
    return ConfigTarget(
        as_id(inner["thread_id"], "thread_id"),
        as_id(ns, "checkpoint_ns") if ns is not None else None,
        as_id(id, "checkpoint_id") if id is not None and id != "" else None,
    )


def before_id(before: Any) -> str | None:
    """Return the checkpoint id of `before`, which is a config or a checkpoint."""
    if before is None:
        return None
    if not isinstance(before, Mapping):
        raise TypeError(f"before must be a config or a checkpoint, not {type(before).__name__}")
    inner = before["configurable"] if isinstance(before.get("configurable"), Mapping) else before
    id = inner.get("checkpoint_id") or inner.get("id")
    return as_id(id, "before's checkpoint_id") if id else None


def config_of(thread: str, ns: str, id: str) -> RunnableConfig:
    """Return the config that names a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def stored_metadata(config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
    """Return the metadata to store: LangGraph merges the given metadata with the config; credentials are removed."""
    merged: Mapping[str, Any] = get_checkpoint_metadata(config, metadata)
    return {
        key: value
        for key, value in merged.items()
        if not key.startswith("langgraph_auth_") and key != "langgraph_request_id"
    }


def run_of(config: RunnableConfig) -> str | None:
    """Return the run id in a config, or None."""
    for part in (config.get("metadata"), config.get("configurable")):
        run = (part or {}).get("run_id")
        if run is not None:
            return str(run)
    return None
