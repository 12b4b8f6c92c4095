"""Threads that grow as a run makes them grow, and reading them back."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from threadkeep.conformance.colours import Colour


def at(thread: str = "t", id: str | None = None, ns: str = "", **more: Any) -> dict[str, Any]:
    """The config of a thread, or of a checkpoint."""
    named = {"checkpoint_id": id} if id is not None else {}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns} | named} | more


def put(saver: Colour, id: str, parent: str | None = None, values: dict[str, Any] | None = None, /, **how: Any) -> Any:
    """Put a checkpoint whose channels all have the version `version`; `thread`, `ns`, `run` and metadata may be named."""
    thread, ns, version = how.pop("thread", "t"), how.pop("ns", ""), how.pop("version", 1)
    run = {"metadata": {"run_id": how.pop("run")}} if "run" in how else {}
    versions = dict.fromkeys(values or {}, version)
    checkpoint = {**empty_checkpoint(), "id": id, "channel_values": values or {}, "channel_versions": versions}
    about = {"source": "loop", "step": 0, "parents": {}} | how
    return saver.put(at(thread, parent, ns) | run, checkpoint, about, versions)


def chain(saver: Colour, *ids: str, **how: Any) -> None:
    """Put one checkpoint after the other, each the child of the one before; the channel `n` holds their number."""
    for number, id in enumerate(ids):
        put(saver, id, ids[number - 1] if number else None, {"n": number}, version=number + 1, step=number, **how)


def got(saver: Colour, config: dict[str, Any]) -> Any:
    """The checkpoint tuple that must be there."""
    found = saver.get_tuple(config)
    assert found is not None, f"nothing at {config}"
    return found


def values(saver: Colour, thread: str = "t", id: str | None = None, ns: str = "") -> Any:
    """The channel values of a checkpoint that must be there."""
    return got(saver, at(thread, id, ns)).checkpoint["channel_values"]


def writes(saver: Colour, thread: str = "t", id: str | None = None, ns: str = "") -> list[tuple[str, str, Any]]:
    """The pending writes of a checkpoint that must be there."""
    return [tuple(write) for write in got(saver, at(thread, id, ns)).pending_writes or ()]


def ids(saver: Colour, thread: str | None = "t", **asked: Any) -> list[str]:
    """The ids that `list` gives, in its order: of all namespaces of a thread, or of all threads."""
    config = {"configurable": {"thread_id": thread}} if thread is not None else None
    return [found.checkpoint["id"] for found in saver.list(config, **asked)]


def places(saver: Colour, config: Any, **asked: Any) -> list[tuple[str, str, str]]:
    """Thread, namespace and id of what `list` gives."""
    found = (each.config["configurable"] for each in saver.list(config, **asked))
    return [(each["thread_id"], each["checkpoint_ns"], each["checkpoint_id"]) for each in found]
