"""Which branches a namespace of a thread has: one for each checkpoint from which nothing continues.

A branch is the path from such a checkpoint, its head, back to the first one. A checkpoint continues from its parent,
and from the checkpoint that its metadata `forked_from` names: with delta channels that is not its parent. Hidden
checkpoints are part of a path but not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from threadkeep.engine.threads.thread_rows import (
    BRANCH_NAME,
    ThreadRows,
    forked_from,
    means_latest,
    resolve_ref,
)
from threadkeep.errors import Missing


class BranchPath(NamedTuple):
    """A branch: its head, its visible checkpoints, and those of them that no other branch has, oldest first.

    `fork_point` is the last checkpoint that it shares with another branch; None if it shares none. `name` is the newest
    name among its own checkpoints, and `named` the checkpoint that has it.
    """

    ns: str
    head: str
    path: tuple[str, ...]
    own: tuple[str, ...]
    fork_point: str | None
    name: str | None
    named: str | None


def find_branches(thread: ThreadRows, ns: str) -> list[BranchPath]:
    """Return the branches of a namespace, that with the newest head first."""
    links = {id: tuple(_links(thread, ns, id)) for id in _stored(thread, ns)}
    visible = [id for _, id in thread.visible_keys(ns)]
    ancestors = _ancestors(links, {before for id in visible for before in links[id]})
    heads = [id for id in visible if id not in ancestors]
    reached = {head: _ancestors(links, [head]) for head in heads}
    uses = Counter(id for each in reached.values() for id in each)
    shown = set(visible)
    return [_branch(thread, ns, head, links, uses, shown) for head in reversed(heads)]


def _stored(thread: ThreadRows, ns: str) -> list[str]:
    return [id for space, id in (*thread.records, *thread.damaged) if space == ns]


def _links(thread: ThreadRows, ns: str, id: str) -> Iterator[str]:
    """Yield the stored checkpoints that this one continues from: where it was forked, then its parent."""
    record, damaged = thread.records.get((ns, id)), thread.damaged.get((ns, id))
    named = forked_from(thread, record) if record is not None else None
    row = record.row if record is not None else damaged.row if damaged is not None else None
    for each in dict.fromkeys((named, row.parent if row is not None else None)):
        if each is not None and each != id and ((ns, each) in thread.records or (ns, each) in thread.damaged):
            yield each


def _ancestors(links: dict[str, tuple[str, ...]], starts: Iterable[str]) -> set[str]:
    """These checkpoints and all that they continue from."""
    found = set(starts)
    left = list(found)
    while left:
        new = [each for each in links[left.pop()] if each not in found]
        found.update(new)
        left += new
    return found


def _branch(
    thread: ThreadRows, ns: str, head: str, links: dict[str, tuple[str, ...]], uses: Counter[str], visible: set[str]
) -> BranchPath:
    line: dict[str, None] = {}
    id: str | None = head
    while id is not None and id not in line:
        line[id] = None
        id = next(iter(links[id]), None)
    path = tuple(each for each in reversed(line) if each in visible)
    own = tuple(each for each in path if uses[each] == 1)
    shared = [each for each in path if uses[each] > 1]
    named = next((each for each in reversed(own) if name_of(thread, ns, each)), None)
    name = name_of(thread, ns, named) if named is not None else None
    return BranchPath(ns, head, path, own, shared[-1] if shared else None, name, named)


def name_of(thread: ThreadRows, ns: str, id: str) -> str | None:
    """Return the name that a checkpoint gives to its branch; None if it gives none."""
    record = thread.records.get((ns, id))
    name = thread.metadata(record).get(BRANCH_NAME) if record is not None else None
    return name if isinstance(name, str) and name else None


def find_branch(thread: ThreadRows, branches: Sequence[BranchPath], ref: str, ns: str) -> BranchPath:
    """Return the branch that a text names: by its name, or by one of its checkpoints, as `resolve_ref` finds it.

    `latest` and a complete id are never names, even if an agent stored them as such. Missing if there is none.
    ValueError if several branches have this name or this checkpoint.
    """
    is_checkpoint = means_latest(ref) or (ns, ref) in thread.records or (ns, ref) in thread.damaged
    of_name = [each for each in branches if each.name == ref and not is_checkpoint]
    if len(of_name) > 1:
        raise ValueError(f"{len(of_name)} branches are named {ref!r}: give the head of one, {_heads(of_name)}")
    if of_name:
        return of_name[0]
    try:
        id = resolve_ref(thread, ref, ns)[1]
    except Missing as error:
        if branches and not is_checkpoint:
            raise Missing(f"branch or {error}") from None
        raise
    found = [each for each in branches if id in each.path]
    if not found:
        raise Missing(f"checkpoint {id!r} of thread {thread.key.id!r} was pruned")
    if len(found) > 1:
        raise ValueError(f"{len(found)} branches have checkpoint {id!r}: give the head of one, {_heads(found)}")
    return found[0]


def _heads(branches: Iterable[BranchPath]) -> str:
    return " or ".join(each.head for each in branches)
