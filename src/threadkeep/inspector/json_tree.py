"""Plain data as a tree of nodes for a page: folded, cut to a size that a browser can hold, each with its path."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from threadkeep.engine.history.paths import Path, format_path

CHILDREN = 100
"""How many elements of a value are shown at a time."""
_NODES = 400
"""How many nodes of a value are sent at once; others are loaded when they are opened."""
_DEEPEST = 40
"""What is nested deeper is loaded when it is opened: a page is rendered recursively, and paths get long."""
_OPEN_LEVELS, _SHORT = 1, 8
"""A value is open down to this level, and further if it is short."""
_TEXT, _SUMMARY = 2_000, 80


class JsonNode(NamedTuple):
    """A value in a tree. `children` is None if it has some that are not here yet; `after` is the number of the next."""

    label: str
    path: str
    kind: str
    text: str
    length: int = 0
    children: tuple[JsonNode, ...] | None = ()
    after: int = 0
    is_open: bool = False


def nodes(value: Any, path: Path, *, start: int = 0, whole: bool = False) -> JsonNode:
    """Return the tree of a value. `start` skips elements at the top; `whole` does not cut its text if it is one."""
    budget = iter(range(_NODES))
    return _node(value, path, budget, level=0, start=start, longest=10**6 if whole else _TEXT)


def _node(
    value: Any, path: Path, budget: Iterator[int], *, level: int, start: int = 0, longest: int = _TEXT
) -> JsonNode:
    label, place = (str(path[-1]) if path else "", format_path(path))
    if isinstance(value, (Mapping, list)) and value:
        keys = list(value) if isinstance(value, Mapping) else range(len(value))
        chosen = list(islice(keys, start, start + CHILDREN))
        kind = "object" if isinstance(value, Mapping) else "array"
        count = len(keys)
        after = start + len(chosen) if start + len(chosen) < count else 0
        if level >= _DEEPEST or (level and next(budget, None) is None):
            return JsonNode(label, place, kind, summary(value), count, None)
        children = tuple(_node(value[key], (*path, key), budget, level=level + 1) for key in chosen)
        is_open = level < _OPEN_LEVELS or (count <= _SHORT and level < _OPEN_LEVELS + 1)
        return JsonNode(label, place, kind, summary(value), count, children, after, is_open)
    if isinstance(value, str):
        cut = value if len(value) <= longest else value[:longest]
        return JsonNode(label, place, "string", cut, len(value), (), len(cut) if len(cut) < len(value) else 0)
    kind = "number" if type(value) in (int, float) else "constant"
    return JsonNode(label, place, kind, json.dumps(value, default=str))


def summary(value: Any) -> str:
    """Return the beginning of a value on one line."""
    text = json.dumps(_beginning(value), ensure_ascii=False, default=str)
    return text if len(text) <= _SUMMARY else text[: _SUMMARY - 1] + "…"


def _beginning(value: Any, level: int = 0) -> Any:
    """A part of a large value that is enough for a summary."""
    if isinstance(value, str):
        return value[:_SUMMARY]
    if isinstance(value, Mapping):
        return {key: _beginning(inner, level + 1) for key, inner in islice(value.items(), _SHORT)} if level < 3 else "…"
    if isinstance(value, list):
        return [_beginning(inner, level + 1) for inner in value[:_SHORT]] if level < 3 else "…"
    return value
