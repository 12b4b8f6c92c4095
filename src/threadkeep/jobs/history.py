"""Read one thread: list its checkpoints, show and compare their state, and trace a value to the write that set it."""

from __future__ import annotations

from threadkeep.engine.history import blame as engine_blame
from threadkeep.engine.history import diff as engine_diff
from threadkeep.engine.history import paths
from threadkeep.engine.history import show as engine_show
from threadkeep.engine.history.blame import Blame
from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.diff import CheckpointInThread, Diff
from threadkeep.engine.history.show import CheckpointView, Tree
from threadkeep.engine.identity import Kind, as_count, as_id, as_kind, as_optional_id
from threadkeep.jobs.catalogue import thread_key
from threadkeep.session import Session


async def log(
    session: Session, thread_id: str, *, ns: str | None = None, limit: int | None = None, kind: Kind | None = None
) -> list[CheckpointInfo]:
    """Return the checkpoints of a thread, newest first, in one namespace or in all. Hidden ones are left out.

    A damaged checkpoint is listed too: its field `damaged` says what is wrong. Raise Missing if the thread does not
    exist, Corrupt if the thread's own row is damaged. Up to five round trips; no state is read.
    """
    namespace = as_optional_id(ns, "ns")
    count = None if limit is None else as_count(limit, "limit")
    return await engine_show.log(session.heads, await thread_key(session, thread_id, kind), namespace, count)


async def show(
    session: Session, thread_id: str, checkpoint_id: str | None = None, *, ns: str = "", kind: Kind | None = None
) -> CheckpointView:
    """Return a checkpoint (the latest by default) and its state as plain data. No application class is needed.

    `checkpoint_id` is an id, a unique beginning or end of one, or `latest`; `~2` after it means two before. Channels
    that cannot be read are listed in `damaged`; a checkpoint whose row cannot be read has no values. Raise Missing if
    the thread or checkpoint does not exist, ValueError if several match. Up to five round trips.
    """
    ref, namespace = as_optional_id(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
    return await engine_show.show(session.heads, await thread_key(session, thread_id, kind), ref, namespace)


async def tree(session: Session, thread_id: str, *, kind: Kind | None = None) -> Tree:
    """Return the checkpoints of a thread, newest first, with the parent and the children of each.

    A damaged checkpoint is part of it, with the parent that its row names. Raise Missing if the thread does not exist.
    Up to five round trips; no state is read.
    """
    return await engine_show.tree(session.heads, await thread_key(session, thread_id, kind))


async def find(session: Session, ref: str, *, kind: Kind | None = None) -> CheckpointInfo:
    """Return the checkpoint that `ref` names: THREAD (its latest), THREAD@CHECKPOINT, or a whole id in any thread.

    CHECKPOINT is given as for `show`. It is looked up in the root namespace, or in the only other one that has it.
    Raise Missing if nothing matches, ValueError if several do.
    """
    return await engine_show.locate(session.heads, session.tenant, as_id(ref, "ref"), as_kind(kind))


async def diff(
    session: Session,
    thread_id: str,
    a: str | None,
    b: str | None = None,
    *,
    ns: str = "",
    other_thread: str | None = None,
    kind: Kind | None = None,
    other_ns: str | None = None,
    other_kind: Kind | None = None,
) -> Diff:
    """Return what checkpoint `b` (the latest by default) changed compared with `a`. Both are given as for `show`.

    With `other_thread`, `b` is a checkpoint of that thread, which may be of the other kind; `other_ns` and `other_kind`
    are as `ns` and `kind` unless they are given. Channels are compared by name. What is damaged cannot be compared: see
    `Diff.damaged`. Raise Missing if a thread or checkpoint does not exist, ValueError if `other_ns` or `other_kind` is
    given without `other_thread`. Values that both share in storage are not read. Up to five round trips for each
    thread.
    """
    first, second, namespace = as_optional_id(a, "a"), as_optional_id(b, "b"), as_id(ns, "ns")
    other_namespace = as_optional_id(other_ns, "other_ns")
    if other_thread is None and (other_ns, other_kind) != (None, None):
        raise ValueError("other_ns and other_kind are those of other_thread: give it too")
    one = other = await thread_key(session, thread_id, kind)
    if other_thread is not None:
        other = await thread_key(session, other_thread, kind if other_kind is None else other_kind)
    return await engine_diff.diff(
        session.heads,
        CheckpointInThread(one, first, namespace),
        CheckpointInThread(other, second, namespace if other_namespace is None else other_namespace),
    )


async def blame(
    session: Session,
    thread_id: str,
    path: str,
    *,
    checkpoint_id: str | None = None,
    ns: str = "",
    kind: Kind | None = None,
) -> Blame:
    """Return the checkpoint, task and write that first set the value at `path` in a checkpoint (the latest by default).

    A path looks like `messages[3].content`, `messages[-1]`, `messages[id=abc]` or `user.age`. If the search ends at a
    damaged checkpoint, `Blame.damaged` names it. Raise ValueError if it is not a path, Missing if nothing is there,
    Corrupt if the checkpoint itself or the channel is damaged. Up to six round trips.
    """
    value_path, ref, namespace = paths.parse(path), as_optional_id(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
    return await engine_blame.blame(
        session.heads, await thread_key(session, thread_id, kind), value_path, ref, namespace
    )
