"""List, name, compare, switch and delete the branches of a thread; for LangGraph and CubeLoop threads."""

from __future__ import annotations

from functools import partial

from threadkeep.clock import nonce
from threadkeep.engine.history import branches as engine_branches
from threadkeep.engine.history.branches import BranchComparison, BranchInfo
from threadkeep.engine.identity import Kind, as_id
from threadkeep.engine.threads import tags
from threadkeep.engine.threads.branch_removal import DeletedBranch
from threadkeep.engine.threads.branch_removal import delete_branch as remove_branch
from threadkeep.engine.threads.description import MAX_LABEL, as_line
from threadkeep.engine.threads.rollback import Branch
from threadkeep.engine.threads.thread_rows import BRANCH_NAME, means_latest
from threadkeep.jobs.leases import check_lease
from threadkeep.jobs.rollback import find_thread, rollback
from threadkeep.session import Session
from threadkeep.work import Work, change, read


def branches(session: Session, thread_id: str, *, ns: str = "", kind: Kind | None = None) -> Work[list[BranchInfo]]:
    """Return the branches of a thread, that with the newest head first: one for each checkpoint without a child.

    They come from rollbacks, forks, replays and `update_state` on earlier checkpoints. `ns` is the namespace of a
    subgraph. In a CubeLoop thread they come from `rollback` and `fork` of a Keep; what CubeLoop forks is a thread of
    its own. A damaged checkpoint is part of a branch as far as its row tells. Raise Missing if the thread does not
    exist. Up to four round trips; no state is read.
    """
    namespace = as_id(ns, "ns")
    key = yield from find_thread(session, thread_id, namespace, kind)
    return (yield from read(lambda: engine_branches.list_branches(session.heads, key, namespace)))


def name_branch(
    session: Session, thread_id: str, branch: str, name: str | None, *, ns: str = "", kind: Kind | None = None
) -> Work[BranchInfo]:
    """Name a branch, or remove its name with None. Return the branch.

    `branch` is its name, its head, or another checkpoint that only this branch has, given as for `show`. The name is
    metadata (`branch_name`) of its head and stays with the branch when that grows. If another branch starts after that
    checkpoint, both have it, and it names neither. A name protects nothing: tag what prune must keep. It is one line of
    at most 100 characters. Raise ValueError if another branch has this name or it is a checkpoint's, such as `latest`;
    Missing if the thread or branch does not exist. Up to eight round trips.
    """
    if name is not None and not (name and isinstance(name, str)):
        raise TypeError(f"name must be a non-empty str or None, not {name!r}")
    if name is not None:
        as_line(name, "branch name", MAX_LABEL)
    ref, namespace = as_id(branch, "branch"), as_id(ns, "ns")
    key = yield from find_thread(session, thread_id, namespace, kind)
    find = partial(engine_branches.branch_of, session.heads, key)
    found, info, every = yield from read(lambda: find(ref, namespace))
    if name is not None and (means_latest(name) or any(name in each.path for each in every)):
        raise ValueError(f"{name!r} already names a checkpoint: give the branch another name")
    taken = [each for each in every if name is not None and each.name == name and each.head != found.head]
    if taken:
        raise ValueError(f"another branch of thread {key.id!r} is named {name!r}: that of {taken[0].head}")
    at = found.named if name is None else found.head
    if at is None or (name is not None and found.name == name):
        return info
    set_name = partial(tags.tag, session.heads, key, at, namespace, name, nonce(), under=BRANCH_NAME)
    yield from change(key, set_name)
    return (yield from read(lambda: find(found.head, namespace)))[1]


def compare_branches(
    session: Session, thread_id: str, a: str, b: str, *, ns: str = "", kind: Kind | None = None
) -> Work[BranchComparison]:
    """Return where two branches part, the checkpoints that only one of them has, and the difference of their states.

    `a` and `b` are given as for `name_branch`. Raise Missing if the thread or a branch does not exist, ValueError if a
    checkpoint is given that several branches have. Up to six round trips; values that both share are not read.
    """
    refs, namespace = (as_id(a, "a"), as_id(b, "b")), as_id(ns, "ns")
    key = yield from find_thread(session, thread_id, namespace, kind)
    return (yield from read(lambda: engine_branches.compare(session.heads, key, refs, namespace)))


def switch_branch(
    session: Session, thread_id: str, branch: str, *, ns: str = "", kind: Kind | None = None, dry_run: bool = False
) -> Work[Branch]:
    """Make a branch the latest: add one checkpoint with the state of its head, as `rollback` does. Nothing is removed.

    `branch` is given as for `name_branch`. If it is the latest already, nothing changes, and its head is returned.
    Writes on the head, such as an open question, are not taken along: the graph runs these tasks again. `dry_run`
    changes nothing. Raise Missing if the thread or branch does not exist. Up to seven round trips.
    """
    ref, namespace = as_id(branch, "branch"), as_id(ns, "ns")
    key = yield from find_thread(session, thread_id, namespace, kind)
    found, info, _ = yield from read(lambda: engine_branches.branch_of(session.heads, key, ref, namespace))
    if info.is_latest:
        parent = found.path[-2] if len(found.path) > 1 else None
        return Branch(key.id, key.kind, namespace, found.head, parent, found.head)
    return (yield from rollback(session, key.id, found.head, ns=namespace, kind=key.kind, dry_run=dry_run))


def delete_branch(
    session: Session,
    thread_id: str,
    branch: str,
    *,
    ns: str = "",
    kind: Kind | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> Work[DeletedBranch]:
    """Delete a branch: the checkpoints that only it has, with what subgraphs left in them. Return what was removed.

    `branch` is given as for `name_branch`. What other branches read does not change: checkpoints that their delta
    channels need become hidden. Tagged checkpoints stay. `dry_run` changes nothing and returns what would be removed.

    Raise ValueError for the latest branch: make another one the latest first, with `switch_branch`. Raise Missing if
    the thread or branch does not exist, Corrupt if a checkpoint of the namespace is damaged, Leased if somebody else
    holds a lease of the thread, unless `force` is given. Up to five round trips.
    """
    ref, namespace = as_id(branch, "branch"), as_id(ns, "ns")
    key = yield from find_thread(session, thread_id, namespace, kind)
    remove = partial(remove_branch, session.heads, key, ref, namespace, nonce(), dry_run=dry_run)
    deleted = yield from read(remove) if dry_run else change(key, remove, force=force)
    if dry_run and not force:
        yield from check_lease(session, key)
    return deleted
