"""What differs between two plain values: deep, with list elements that stand for each other matched.

A message is matched by its id, wherever it stands; other elements by equal values in the same order, as `diff` does for
lines, and what is left between those by position.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, TypeAlias

from threadkeep.engine.history.paths import Path, message_id, written
from threadkeep.engine.log.plain import TYPE

ADDED, REMOVED, CHANGED, MOVED = "added", "removed", "changed", "moved"
_MOST_PAIRS = 4_000_000
"""Lists with more pairs of equal elements than this are compared by position: anything better takes too long."""
_DEEPEST = 200
"""What is nested deeper is compared as a whole."""
Key: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ValueChange:
    """Something that differs: `path` says where it is (was, if it was removed), `was` where it was if it moved."""

    path: str
    change: str
    before: Any = None
    after: Any = None
    was: str | None = None


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal, in type too: 1 is not True."""
    return one is other or (one == other and _text(one) == _text(other))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def changes(path: Path, before: Any, after: Any, depth: int = 0) -> Iterator[ValueChange]:
    """All that differs between two values at a path."""
    if same(before, after):
        return
    if depth < _DEEPEST and _are_alike(before, after):
        if isinstance(before, list):
            yield from _of_lists(path, before, after, depth)
        else:
            yield from _of_dicts(path, before, after, depth)
        return
    yield ValueChange(written(path), CHANGED, before, after)


def _are_alike(before: Any, after: Any) -> bool:
    if isinstance(before, list) and isinstance(after, list):
        return True
    both = isinstance(before, Mapping) and isinstance(after, Mapping)
    return both and before.get(TYPE) == after.get(TYPE)


def _of_dicts(path: Path, before: Mapping[str, Any], after: Mapping[str, Any], depth: int) -> Iterator[ValueChange]:
    for key in {**before, **after}:
        if key not in after:
            yield ValueChange(written((*path, key)), REMOVED, before=before[key])
        elif key not in before:
            yield ValueChange(written((*path, key)), ADDED, after=after[key])
        else:
            yield from changes((*path, key), before[key], after[key], depth + 1)


def _of_lists(path: Path, before: list[Any], after: list[Any], depth: int) -> Iterator[ValueChange]:
    pairs = aligned(before, after)
    staying = _in_order(pairs)
    for old in sorted(set(range(len(before))) - set(pairs.values())):
        yield ValueChange(written((*path, old)), REMOVED, before=before[old])
    for new, element in enumerate(after):
        if new not in pairs:
            yield ValueChange(written((*path, new)), ADDED, after=element)
            continue
        held = before[pairs[new]]
        if new not in staying:
            yield ValueChange(written((*path, new)), MOVED, held, element, was=written((*path, pairs[new])))
        yield from changes((*path, new), held, element, depth + 1)


def _in_order(pairs: Mapping[int, int]) -> set[int]:
    """Of pairs new -> old, those that stand in the same order in both lists: the most that can."""
    best: list[int] = []
    ends: list[int] = []
    before: dict[int, int | None] = {}
    for new in sorted(pairs):
        at = _place(best, pairs[new])
        before[new] = ends[at - 1] if at else None
        best[at : at + 1] = [pairs[new]]
        ends[at : at + 1] = [new]
    staying: set[int] = set()
    last = ends[-1] if ends else None
    while last is not None:
        staying.add(last)
        last = before[last]
    return staying


def _place(best: Sequence[int], old: int) -> int:
    low, high = 0, len(best)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if best[middle] < old else (low, middle)
    return low


def aligned(before: Sequence[Any], after: Sequence[Any]) -> dict[int, int]:
    """For each element of `after` that stands for one of `before`: its number there."""
    start = 0
    shorter = min(len(before), len(after))
    while start < shorter and same(before[start], after[start]):
        start += 1
    pairs = {n: n for n in range(start)}
    old, new = _keys(before[start:]), _keys(after[start:])
    for tag, i, i_end, j, j_end in _blocks(old, new):
        if tag == "equal":
            pairs |= {start + j + n: start + i + n for n in range(i_end - i)}
        elif tag == "replace":
            pairs |= {start + n: start + o for o, n in _between(old, new, range(i, i_end), range(j, j_end))}
    return pairs | _by_id(old, new, start)


def _keys(elements: Sequence[Any]) -> list[Key]:
    """What elements are matched by; an id that comes twice is none."""
    ids = Counter(map(message_id, elements))
    named = ((message_id(element), element) for element in elements)
    return [("id", id) if id is not None and ids[id] == 1 else ("value", _text(element)) for id, element in named]


def _blocks(old: list[Key], new: list[Key]) -> Iterator[tuple[str, int, int, int, int]]:
    count, other = Counter(old), Counter(new)
    if sum(number * other[key] for key, number in count.items()) > _MOST_PAIRS:
        yield "replace", 0, len(old), 0, len(new)
        return
    yield from SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def _between(old: list[Key], new: list[Key], olds: range, news: range) -> Iterator[tuple[int, int]]:
    """Elements without an id that another took the place of, in order."""
    return zip((o for o in olds if old[o][0] == "value"), (n for n in news if new[n][0] == "value"), strict=False)


def _by_id(old: list[Key], new: list[Key], start: int) -> dict[int, int]:
    """Messages, wherever they stand."""
    places = {key: start + n for n, key in enumerate(old) if key[0] == "id"}
    return {start + n: places[key] for n, key in enumerate(new) if key in places}
