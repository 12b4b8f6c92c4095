"""LangGraph's configs: reading thread, namespace, checkpoint, run and metadata out of them, and writing them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, get_checkpoint_metadata

from threadkeep.engine.identity import as_id


class ConfigTarget(NamedTuple):
    """What a config points at; `ns` is None where it says nothing of a namespace."""

    thread: str
    ns: str | None
    id: str | None


def target_of(config: Any) -> ConfigTarget:
    """The place a config points at. A missing thread_id is a ValueError."""
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
    """The checkpoint id of `before`, which may be a config or a bare checkpoint."""
    if before is None:
        return None
    if not isinstance(before, Mapping):
        raise TypeError(f"before must be a config or a checkpoint, not {type(before).__name__}")
    inner = before["configurable"] if isinstance(before.get("configurable"), Mapping) else before
    id = inner.get("checkpoint_id") or inner.get("id")
    return as_id(id, "before's checkpoint_id") if id else None


def config_of(thread: str, ns: str, id: str) -> RunnableConfig:
    """The config that points at a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def stored_metadata(config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
    """The metadata to store: LangGraph's merge of what was given with the config's scalars, without credentials."""
    merged: Mapping[str, Any] = get_checkpoint_metadata(config, metadata)
    return {
        key: value
        for key, value in merged.items()
        if not key.startswith("langgraph_auth_") and key != "langgraph_request_id"
    }


def run_of(config: RunnableConfig) -> str | None:
    """The run that a config belongs to."""
    for part in (config.get("metadata"), config.get("configurable")):
        run = (part or {}).get("run_id")
        if run is not None:
            return str(run)
    return None
