"""Repair: rebuild a damaged checkpoint as a new branch, or remove what is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadkeep.clock import nonce, now_us
from threadkeep.engine.health.rebuild import Replay
from threadkeep.engine.health.repair import RepairOptions, RepairResult
from threadkeep.engine.health.repair import repair as rebuild_or_discard
from threadkeep.engine.health.verify import stored_thread_key
from threadkeep.engine.identity import CUBE, Kind, as_id, as_kind, as_optional_id
from threadkeep.engine.threads.rollback import BranchStamp
from threadkeep.work import Work, change, read

if TYPE_CHECKING:
    from threadkeep.keep import Keep


def repair(
    keep: Keep,
    thread_id: str,
    checkpoint_id: str | None = None,
    *,
    ns: str = "",
    graph: Any = None,
    discard: bool = False,
    dry_run: bool = False,
    kind: Kind | None = None,
) -> Work[RepairResult]:
    """Rebuild a damaged checkpoint as a new branch, from what is left of it, its ancestors and the stored writes.

    Without `checkpoint_id`, repair the newest checkpoint if it is damaged. Name an older one to repair that one:
    the branch becomes the latest checkpoint. With a compiled LangGraph `graph`, its channels apply the writes;
    otherwise lists are concatenated, dicts are merged, and for anything else the last value counts. No checkpoint
    is overwritten or removed. The result lists what had to be assumed.

    With `discard`, nothing is rebuilt: remove the damaged checkpoint instead, or all damaged checkpoints and writes
    of the thread if none is named. Checkpoints whose delta channels need a removed one are removed too.

    In both cases, rebuild the thread's own row if it is damaged or its counters are wrong. Raise Corrupt if nothing
    is left to build from, Missing if the thread or checkpoint does not exist, ValueError if `graph` and `discard`
    are given.
    """
    session = keep._session  # noqa: SLF001 - the same package
    ref, namespace = as_optional_id(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
    id, thread_kind = as_id(thread_id, "thread_id"), as_kind(kind)
    key = yield from read(lambda: stored_thread_key(session.tenant, id, thread_kind))
    if key.kind == CUBE and (namespace or graph is not None):
        raise ValueError(f"thread {key.id!r} is a CubeLoop thread: it has neither namespaces nor a graph")
    if discard and graph is not None:
        raise ValueError("discard rebuilds nothing: it needs no graph")
    replay = _graph_replay(keep, graph) if graph is not None else None
    options = RepairOptions(ref, namespace, BranchStamp(now_us(), nonce()), dry_run, discard)
    return (yield from change(key, lambda: rebuild_or_discard(session.heads, key, options, replay)))


def _graph_replay(keep: Keep, graph: Any) -> Replay:
    from threadkeep.adapters.graph_replay import GraphReplay  # noqa: PLC0415 - imports LangGraph

    saver = getattr(graph, "checkpointer", None)
    return GraphReplay(graph, getattr(saver, "serde", None) or keep._serde)  # noqa: SLF001 - the same package
