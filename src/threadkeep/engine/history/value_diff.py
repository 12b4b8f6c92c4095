"""Compare two plain values in depth: what was added, removed, changed or moved.

List elements are paired before they are compared. A message is paired by its id, wherever it is. Other elements are
paired by equal values in the same order, as `diff` does for lines; those left between the pairs, by position.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, TypeAlias

from threadkeep.engine.history.paths import Path, format_path
from threadkeep.engine.log.plain import TYPE, message_id
from threadkeep.short_repr import short_repr

ADDED, REMOVED, CHANGED, MOVED = "added", "removed", "changed", "moved"
_MAX_PAIRS = 4_000_000
"""Lists with more pairs of equal elements than this are compared by position: anything better takes too long."""
_MAX_DEPTH = 200
"""Values nested deeper than this are compared as a whole."""
_ElementKey: TypeAlias = tuple[str, str]
"""What an element is paired by: its id or its value."""


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A difference. `path` is where it is now, or where it was if it was removed; `was` is the old path if it moved."""

    path: str
    change: str
    before: Any = None
    after: Any = None
    was: str | None = None

    __repr__ = short_repr


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal and of the same types: 1 is not True."""
    return one is other or (one == other and _text(one) == _text(other))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def changes(path: Path, before: Any, after: Any, depth: int = 0) -> Iterator[ValueChange]:
    """Yield all differences between two values at a path."""
    if same(before, after):
        return
    if depth < _MAX_DEPTH and _have_same_form(before, after):
        if isinstance(before, list):
            yield from _list_changes(path, before, after, depth)
        else:
            yield from _dict_changes(path, before, after, depth)
        return
    yield ValueChange(format_path(path), CHANGED, before, after)


def _have_same_form(before: Any, after: Any) -> bool:
    """Whether both are lists, dicts, or objects of one type."""
    if isinstance(before, list) and isinstance(after, list):
        return True
    return isinstance(before, Mapping) and isinstance(after, Mapping) and before.get(TYPE) == after.get(TYPE)


def _dict_changes(path: Path, before: Mapping[str, Any], after: Mapping[str, Any], depth: int) -> Iterator[ValueChange]:
    for key in {**before, **after}:
        if key not in after:
            yield ValueChange(format_path((*path, key)), REMOVED, before=before[key])
        elif key not in before:
            yield ValueChange(format_path((*path, key)), ADDED, after=after[key])
        else:
            yield from changes((*path, key), before[key], after[key], depth + 1)


def _list_changes(path: Path, before: list[Any], after: list[Any], depth: int) -> Iterator[ValueChange]:
    pairs = pair_elements(before, after)
    in_order = _longest_in_order(pairs)
    for old in sorted(set(range(len(before))) - set(pairs.values())):
        yield ValueChange(format_path((*path, old)), REMOVED, before=before[old])
    for new, element in enumerate(after):
        if new not in pairs:
            yield ValueChange(format_path((*path, new)), ADDED, after=element)
            continue
        old_element = before[pairs[new]]
        if new not in in_order:
            yield ValueChange(
                format_path((*path, new)), MOVED, old_element, element, was=format_path((*path, pairs[new]))
            )
        yield from changes((*path, new), old_element, element, depth + 1)


def _longest_in_order(pairs: Mapping[int, int]) -> set[int]:
    """Of pairs new -> old, the new indexes of the most pairs that are in the same order in both lists.

    This is the longest increasing subsequence, by patience sorting. The other elements have moved.
    """
    old_ends: list[int] = []
    new_ends: list[int] = []
    previous: dict[int, int | None] = {}
    for new in sorted(pairs):
        length = bisect_left(old_ends, pairs[new])
        previous[new] = new_ends[length - 1] if length else None
        old_ends[length : length + 1] = [pairs[new]]
        new_ends[length : length + 1] = [new]
    found: set[int] = set()
    last = new_ends[-1] if new_ends else None
    while last is not None:
        found.add(last)
        last = previous[last]
    return found


def pair_elements(before: Sequence[Any], after: Sequence[Any]) -> dict[int, int]:
    """Pair the elements of two lists: the index in `before` by the index in `after`."""
    start = 0
    shorter = min(len(before), len(after))
    while start < shorter and same(before[start], after[start]):
        start += 1
    pairs = {n: n for n in range(start)}
    old, new = _element_keys(before[start:]), _element_keys(after[start:])
    for tag, i, i_end, j, j_end in _opcodes(old, new):
        if tag == "equal":
            pairs |= {start + j + n: start + i + n for n in range(i_end - i)}
        elif tag == "replace":
            pairs |= {start + n: start + o for o, n in _pair_by_position(old, new, range(i, i_end), range(j, j_end))}
    return pairs | _pair_by_id(old, new, start)


def _element_keys(elements: Sequence[Any]) -> list[_ElementKey]:
    """What elements are paired by. An id that occurs twice does not count."""
    ids = list(map(message_id, elements))
    counts = Counter(ids)
    return [
        ("id", id) if id is not None and counts[id] == 1 else ("value", _text(element))
        for id, element in zip(ids, elements, strict=True)
    ]


def _opcodes(old: list[_ElementKey], new: list[_ElementKey]) -> Iterator[tuple[str, int, int, int, int]]:
    counts, new_counts = Counter(old), Counter(new)
    if sum(count * new_counts[key] for key, count in counts.items()) > _MAX_PAIRS:
        yield "replace", 0, len(old), 0, len(new)
        return
    yield from SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def _pair_by_position(
    old: list[_ElementKey], new: list[_ElementKey], olds: range, news: range
) -> Iterator[tuple[int, int]]:
    """Pair elements without an id, in order."""
    return zip((o for o in olds if old[o][0] == "value"), (n for n in news if new[n][0] == "value"), strict=False)


def _pair_by_id(old: list[_ElementKey], new: list[_ElementKey], start: int) -> dict[int, int]:
    """Pair messages with the same id, wherever they are."""
    indexes = {key: start + n for n, key in enumerate(old) if key[0] == "id"}
    return {start + n: indexes[key] for n, key in enumerate(new) if key in indexes}
