"""Delete a branch: the checkpoints that only it has, unless they are tagged.

What delta channels of other checkpoints need becomes hidden, as when a thread is pruned. The checkpoints of subgraphs
that the branch called are removed with it. Every other branch reads what it read before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from threadkeep.engine.identity import Kind, ThreadKey
from threadkeep.engine.log.records import CheckpointRecord
from threadkeep.engine.threads.branch_paths import BranchPath, find_branch, find_branches
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.prune import prune_thread
from threadkeep.engine.threads.retention import is_tagged
from threadkeep.engine.threads.survivors import PruneSelection
from threadkeep.engine.threads.thread_rows import CheckpointKey, ThreadRows
from threadkeep.errors import Corrupt, Missing
from threadkeep.short_repr import short_repr


@dataclass(frozen=True, slots=True)
class DeletedBranch:
    """What was removed with a branch, or would be in a dry run: checkpoints as (namespace, id), writes, and bytes.

    `hidden` are checkpoints that delta channels of others still need, `kept` those that stay because they are tagged.
    """

    thread: str
    kind: Kind
    ns: str
    head: str
    name: str | None
    dry_run: bool
    checkpoints: tuple[CheckpointKey, ...]
    hidden: tuple[CheckpointKey, ...]
    kept: tuple[str, ...]
    writes: int
    bytes: int

    __repr__ = short_repr


async def delete_branch(heads: Heads, key: ThreadKey, ref: str, ns: str, nonce: int, *, dry_run: bool) -> DeletedBranch:
    """Remove a branch that is not the latest. Three round trips; two in a dry run.

    Missing if the thread or the branch does not exist, ValueError if it is the latest, Corrupt if a checkpoint of the
    namespace is damaged: which branches it belongs to is not known.
    """
    branch: BranchPath | None = None
    kept: tuple[str, ...] = ()

    def select(thread: ThreadRows) -> PruneSelection:
        nonlocal ref, branch, kept
        branch = _deletable(thread, ref, ns)
        ref = branch.head  # the next try must not choose another branch
        kept = tuple(id for id in branch.own if is_tagged(thread, thread.records[(ns, id)]))
        return _without(thread, ns, set(branch.own) - set(kept))

    loss = await prune_thread(heads, key, select, nonce, dry_run=dry_run)
    if branch is None:
        raise Missing(f"thread {key.id!r} not found")
    return DeletedBranch(
        key.id,
        key.kind,
        ns,
        branch.head,
        branch.name,
        dry_run,
        loss.checkpoints if loss is not None else (),
        loss.hidden if loss is not None else (),
        kept,
        loss.writes if loss is not None else 0,
        loss.bytes if loss is not None else 0,
    )


def _deletable(thread: ThreadRows, ref: str, ns: str) -> BranchPath:
    damaged = sorted(id for space, id in thread.damaged_keys() if space == ns)
    if damaged:
        raise Corrupt(
            f"checkpoint {damaged[0]!r} of {thread.head.where}, or a write on it, is damaged: repair it first"
        )
    branches = find_branches(thread, ns)
    branch = find_branch(thread, branches, ref, ns)
    if thread.visible_keys(ns)[-1][1] in branch.own:
        advice = "delete the thread" if len(branches) == 1 else "switch to another branch first"
        raise ValueError(f"branch {branch.name or branch.head!r} of thread {thread.key.id!r} is the latest: {advice}")
    return branch


def _without(thread: ThreadRows, ns: str, removed: set[str]) -> PruneSelection:
    """Keep everything except these checkpoints, and those of subgraphs that they called."""
    visible = {
        (record.row.ns, record.row.id)
        for record in thread.visible()
        if not (record.row.id in removed if record.row.ns == ns else _caller(record, ns) in removed)
    }
    hidden = {each for key in visible for each in _hidden_ancestors(thread, key)}
    gone = thread.records.keys() - visible - hidden
    return PruneSelection(visible, lambda key, _: key not in gone, hidden)


def _caller(record: CheckpointRecord, ns: str) -> str | None:
    """The checkpoint of a namespace from which the call of a subgraph started that made this checkpoint.

    None if it belongs to no call: a subgraph with a memory of its own has a namespace without a task's id.
    """
    parents = record.own_metadata.get("parents")
    caller = parents.get(ns) if isinstance(parents, dict) and ":" in record.row.ns else None
    return caller if isinstance(caller, str) else None


def _hidden_ancestors(thread: ThreadRows, key: CheckpointKey) -> Iterator[CheckpointKey]:
    """Yield the hidden checkpoints right before this one: it would lose its parent without them."""
    visited = {key}
    while True:
        key = (key[0], thread.records[key].row.parent or "")
        if key in visited or key not in thread.records or not thread.records[key].row.hidden:
            return
        visited.add(key)
        yield key
