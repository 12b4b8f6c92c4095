"""Read thread, namespace, checkpoint, run and metadata from LangGraph's configs, and write configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, get_checkpoint_metadata

from threadkeep.engine.identity import as_id
from threadkeep.engine.log.itemlog import new_tuple
from threadkeep.engine.threads.metadata import CREDENTIALS, REQUEST_ID

LEASE_TOKEN = "__lease_token"  # noqa: S105 - the name of one
"""The key in `configurable` of the token of a lease. LangGraph and LangChain copy keys that start with __ nowhere."""


class ConfigTarget(NamedTuple):
    """The thread and checkpoint that a config names. `ns` is None if it names no namespace."""

    thread: str
    ns: str | None
    id: str | None


def target_of(config: Any) -> ConfigTarget:
    """Return what a config names. ValueError if it has no thread_id."""
    inner = config.get("configurable") if type(config) is dict or isinstance(config, Mapping) else None
    if type(inner) is not dict and not isinstance(inner, Mapping):
        raise ValueError("the config needs {'configurable': {'thread_id': ...}}")
    if "thread_id" not in inner:
        raise ValueError("config['configurable'] needs a 'thread_id'")
    thread, ns, id = inner["thread_id"], inner.get("checkpoint_ns"), inner.get("checkpoint_id")
    if type(thread) is not str:
        thread = as_id(thread, "thread_id")
    if ns is not None and type(ns) is not str:
        ns = as_id(ns, "checkpoint_ns")
    if id is not None and type(id) is not str:
        id = as_id(id, "checkpoint_id")
    return new_tuple(ConfigTarget, (thread, ns, id or None))


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
    if type(metadata) is not dict and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a dict, not {type(metadata).__name__}")
    merged: Any = get_checkpoint_metadata(config, metadata)  # a new dict
    for key in tuple(merged):
        if key.startswith(CREDENTIALS) or key == REQUEST_ID:
            del merged[key]
    return merged  # type: ignore[no-any-return]


def run_of(config: RunnableConfig) -> str | None:
    """Return the run id in a config, or None."""
    for part in (config.get("metadata"), config.get("configurable")):
        run = (part or {}).get("run_id")
        if run is not None:
            return str(run)
    return None
