"""Look into one thread: its checkpoints, what they hold, how they differ, and where a value comes from."""

from __future__ import annotations

from threadkeep.engine.history import blame as engine_blame
from threadkeep.engine.history import diff as engine_diff
from threadkeep.engine.history import paths
from threadkeep.engine.history import show as engine_show
from threadkeep.engine.history.blame import Blame
from threadkeep.engine.history.checkpoint_info import CheckpointInfo
from threadkeep.engine.history.diff import Diff
from threadkeep.engine.history.show import CheckpointView, Tree
from threadkeep.engine.identity import ThreadKey, as_count, as_id, as_kind, as_optional_id
from threadkeep.engine.threads import catalogue
from threadkeep.session import Session


async def log(
    session: Session, thread_id: str, *, ns: str | None = None, limit: int | None = None, kind: str | None = None
) -> list[CheckpointInfo]:
    """Return the checkpoints of a thread, newest first: of one namespace, or of all. Hidden ones are left out.

    Raise Missing if there is no such thread. Up to four round trips; no state is read.
    """
    space = as_optional_id(ns, "ns")
    count = None if limit is None else as_count(limit, "limit")
    return await engine_show.log(session.heads, await thread_key(session, thread_id, kind), space, count)


async def show(
    session: Session, thread_id: str, checkpoint_id: str | None = None, *, ns: str = "", kind: str | None = None
) -> CheckpointView:
    """Return a checkpoint (the latest by default) with everything it holds, as plain data. No application class is needed.

    `checkpoint_id` is an id, a unique beginning or end of one, or `latest`; `~2` after it means two before. Raise
    Missing if there is no such thread or checkpoint, ValueError if several match. Up to four round trips.
    """
    ref, space = as_optional_id(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
    return await engine_show.show(session.heads, await thread_key(session, thread_id, kind), ref, space)


async def tree(session: Session, thread_id: str, *, kind: str | None = None) -> Tree:
    """Return the checkpoints of a thread, newest first, with the parent and the children of each.

    Raise Missing if there is no such thread. Up to four round trips; no state is read.
    """
    return await engine_show.tree(session.heads, await thread_key(session, thread_id, kind))


async def find(session: Session, ref: str, *, kind: str | None = None) -> CheckpointInfo:
    """Return the checkpoint that `ref` names: THREAD (its latest), THREAD@CHECKPOINT, or a whole id in any thread.

    CHECKPOINT is written as for `show`. It is looked up in the root namespace, or in the only other one that has it.
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
    kind: str | None = None,
) -> Diff:
    """Return what checkpoint `b` (the latest by default) changed compared with `a`. Both are written as for `show`.

    `b` is a checkpoint of `other_thread`, if that is given. Raise Missing if a thread or checkpoint does not exist.
    Values that both share in storage are not read. Up to four round trips for each thread.
    """
    first, second, space = as_optional_id(a, "a"), as_optional_id(b, "b"), as_id(ns, "ns")
    one = await thread_key(session, thread_id, kind)
    other = one if other_thread is None else await thread_key(session, other_thread, kind)
    return await engine_diff.diff(session.heads, (one, first), (other, second), space)


async def blame(
    session: Session,
    thread_id: str,
    path: str,
    *,
    checkpoint_id: str | None = None,
    ns: str = "",
    kind: str | None = None,
) -> Blame:
    """Return the checkpoint, task and write that first set the value at `path` in a checkpoint (the latest by default).

    A path looks like `messages[3].content`, `messages[-1]`, `messages[id=abc]` or `user.age`. Raise ValueError if it
    is not a path, Missing if there is nothing at it. Up to five round trips.
    """
    at, ref, space = paths.parse(path), as_optional_id(checkpoint_id, "checkpoint_id"), as_id(ns, "ns")
    return await engine_blame.blame(session.heads, await thread_key(session, thread_id, kind), at, ref, space)


async def thread_key(session: Session, thread_id: str, kind: str | None) -> ThreadKey:
    """Return the key of a thread. Missing if there is none; ValueError if both kinds have one and `kind` is None."""
    return await catalogue.known(session.tenant, as_id(thread_id, "thread_id"), as_kind(kind))
