"""Roll back to a checkpoint, fork from one, or tag one; for LangGraph and CubeLoop threads."""

from __future__ import annotations

from threadkeep.clock import nonce, now_us
from threadkeep.engine.cube import rollback as cube_rollback
from threadkeep.engine.identity import CUBE, Kind, ThreadKey, as_id, as_optional_id
from threadkeep.engine.threads import rollback as engine_rollback
from threadkeep.engine.threads import tags
from threadkeep.engine.threads.rollback import Branch, BranchStamp
from threadkeep.jobs.catalogue import thread_key
from threadkeep.plan import Plan
from threadkeep.session import Session
from threadkeep.work import Work, change, read


def rollback(
    session: Session,
    thread_id: str,
    checkpoint_id: str,
    *,
    ns: str = "",
    kind: Kind | None = None,
    dry_run: bool = False,
) -> Work[Branch]:
    """Go back to a checkpoint: add a branch with its state, which becomes the latest. Nothing is removed.

    `checkpoint_id` is an id, a unique beginning of one, or `latest~2`; in a CubeLoop thread also a completed run.
    Repeating the call returns the same branch if nothing has continued from it yet. `dry_run` changes nothing.
    Raise Missing if the thread or checkpoint does not exist. Up to five round trips.
    """
    ref, namespace = as_id(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
    key = yield from find_thread(session, thread_id, namespace, kind)

    def plan() -> Plan[Branch]:
        if key.kind == CUBE:
            return cube_rollback.rollback(session.heads, key, ref, _stamp(), dry_run=dry_run)
        return engine_rollback.rollback(session.heads, key, ref, namespace, _stamp(), dry_run=dry_run)

    return (yield from read(plan) if dry_run else change(key, plan))


def fork(
    session: Session,
    thread_id: str,
    checkpoint_id: str | None = None,
    *,
    to: str | None = None,
    ns: str = "",
    kind: Kind | None = None,
) -> Work[Branch]:
    """Add a branch from a checkpoint (the latest by default), or start the new thread `to` from it.

    A new thread begins with that checkpoint, its ancestors and their writes. Raise ValueError if the thread `to`
    exists, or if both `to` and `ns` are given; Missing if the thread or checkpoint does not exist. Up to six round
    trips.
    """
    ref, target_id = as_optional_id(checkpoint_id, "checkpoint_id"), as_optional_id(to, "to")
    namespace = as_id(ns, "ns")
    if target_id is not None and namespace:
        raise ValueError("a new thread starts in the root namespace: give ns or to, not both")
    key = yield from find_thread(session, thread_id, namespace, kind)
    if target_id is None:
        return (yield from change(key, lambda: _fork_within(session, key, ref, namespace)))
    target = session.key(key.kind, target_id)
    fork_to = cube_rollback.fork_to if key.kind == CUBE else engine_rollback.fork_to
    return (yield from change(target, lambda: fork_to(session.heads, key, ref, target, _stamp())))


def tag(
    session: Session, thread_id: str, checkpoint_id: str, name: str | None, *, ns: str = "", kind: Kind | None = None
) -> Work[str]:
    """Tag a checkpoint (metadata `tag`) so that policies keep it; None removes the tag. Return the checkpoint's id.

    Raise Missing if the thread or checkpoint does not exist. Four round trips; three if nothing changes.
    """
    if name is not None and not (name and isinstance(name, str)):
        raise TypeError(f"name must be a non-empty str or None, not {name!r}")
    ref, namespace = as_id(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
    key = yield from find_thread(session, thread_id, namespace, kind)
    return (yield from change(key, lambda: tags.tag(session.heads, key, ref, namespace, name, nonce())))


def find_thread(session: Session, thread_id: str, ns: str, kind: Kind | None) -> Work[ThreadKey]:
    """Return the key of a thread. Raise ValueError for a namespace in a CubeLoop thread."""
    key = yield from read(lambda: thread_key(session, thread_id, kind))
    if key.kind == CUBE and ns:
        raise ValueError(f"thread {key.id!r} is a CubeLoop thread: it has no namespaces")
    return key


def _fork_within(session: Session, key: ThreadKey, ref: str | None, ns: str) -> Plan[Branch]:
    if key.kind == CUBE:
        return cube_rollback.fork(session.heads, key, ref, _stamp())
    return engine_rollback.fork(session.heads, key, ref, ns, _stamp())


def _stamp() -> BranchStamp:
    return BranchStamp(now_us(), nonce())
