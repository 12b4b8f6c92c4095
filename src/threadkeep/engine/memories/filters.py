"""Filters over the values of memories, for all backends: `parse` builds a tree, `matches` evaluates it.

    {"key": condition, ...}        all must match; {} and None match every value
    {"$and": [filter, ...]}        also $or; {"$not": filter}

A condition applies to the value under the key:

    {"$op": operand, ...}          all must match
    {"key": condition, ...}        the value is a dict, and all match inside it; {} matches any dict
    [condition, ...]               the value is a list of this length, and each condition matches its element
    anything else                  the same as {"$eq": it}

    $eq $ne            equal, or not        $in $nin           equal to one of a list or set, or to none
    $gt $gte $lt $lte  number with number, str with str by code points; any other pair does not match
    $exists            True or False: whether the key is present; a None value counts as present
    $contains          a list with an equal element, or a str that contains this str
    $and $or $not      of conditions

A key of `$` and letters is an operator, known or not; any other key is an ordinary key.

Equal means equal JSON type and value, at all levels: True is not 1, 1 equals 1.0, ints and floats compare exactly. A
dict under $eq is the whole dict. A missing value equals None. A value that is not JSON, such as NaN, equals nothing.
Negation is plain: $ne, $nin and $not match exactly where their opposite does not.

A key with dots can be a path. At each level, the longest prefix that is a key is taken, without backtracking: "a.b.c"
is the key "a.b.c", else "c" in the key "a.b", else "b.c" in the key "a". Paths go through dicts, not into lists.
If a memory below the prefix of a search has the whole key, it is no path for the others either: `with_literal_keys`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from threadkeep.engine.memories.json_text import to_plain_json

KeyPath: TypeAlias = tuple[str, ...]
_OPERATOR = re.compile(r"\$\w*")
MAX_DEPTH = 50
"""The number of levels that a filter may have."""

MISSING: Any = type("Missing", (), {"__slots__": (), "__repr__": lambda _: "MISSING"})()
"""The value under a key that does not exist."""

COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


class FilterNode(Protocol):
    """A condition on a part of a value: JSON as `json_text.load` returns it, or MISSING."""

    def holds(self, value: Any) -> bool:
        """Whether it matches."""


@dataclass(frozen=True, slots=True)
class AllOf:
    """All match. True if there are none."""

    nodes: tuple[FilterNode, ...]

    def holds(self, value: Any) -> bool:
        """Whether it matches."""
        return all(node.holds(value) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one matches. False if there are none."""

    nodes: tuple[FilterNode, ...]

    def holds(self, value: Any) -> bool:
        """Whether it matches."""
        return any(node.holds(value) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class NotNode:
    """The node does not match."""

    node: FilterNode

    def holds(self, value: Any) -> bool:
        """Whether it matches."""
        return not self.node.holds(value)


@dataclass(frozen=True, slots=True)
class Field:
    """The node matches the value under the key. The key is missing if the value is not a dict.

    A `literal` key is no path, whatever dots it has.
    """

    key: str
    node: FilterNode
    literal: bool = False

    def holds(self, value: Any) -> bool:
        """Whether it matches."""
        found = value.get(self.key, MISSING) if isinstance(value, dict) else MISSING
        if found is MISSING and not self.literal and "." in self.key:
            found = find(value, self.key)
        return self.node.holds(found)


@dataclass(frozen=True, slots=True)
class Elements:
    """A list of this length, and each node matches its element."""

    nodes: tuple[FilterNode, ...]

    def holds(self, value: Any) -> bool:
        """Whether it matches."""
        if not isinstance(value, (list, tuple)) or len(value) != len(self.nodes):
            return False
        return all(node.holds(element) for node, element in zip(self.nodes, value, strict=True))


@dataclass(frozen=True, slots=True)
class IsDict:
    """The value is a dict."""

    def holds(self, value: Any) -> bool:
        """Whether it matches."""
        return isinstance(value, dict)


@dataclass(frozen=True, slots=True)
class Exists:
    """The key is present."""

    def holds(self, value: Any) -> bool:
        """Whether it matches."""
        return value is not MISSING


@dataclass(frozen=True, slots=True)
class Equal:
    """The value equals this plain value."""

    operand: Any

    def holds(self, value: Any) -> bool:
        """Whether it matches."""
        return equals(value, self.operand)


@dataclass(frozen=True, slots=True)
class IsIn:
    """The value equals one of these plain values; strings are kept apart from the others."""

    texts: frozenset[str]
    others: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        """Whether it matches."""
        if isinstance(value, str):
            return value in self.texts
        return any(equals(value, other) for other in self.others)


@dataclass(frozen=True, slots=True)
class Compare:
    """The value compares with this number or str as the operator `name` says."""

    name: str
    operand: int | float | str

    def holds(self, value: Any) -> bool:
        """Whether it matches."""
        kind, operand = type(value), self.operand
        comparable = kind is str if isinstance(operand, str) else kind is int or kind is float
        return comparable and COMPARISONS[self.name](value, operand)


@dataclass(frozen=True, slots=True)
class Contains:
    """The value is a list with an element equal to this plain value, or a str that contains it."""

    operand: Any

    def holds(self, value: Any) -> bool:
        """Whether it matches."""
        if isinstance(value, str):
            return isinstance(self.operand, str) and self.operand in value
        return isinstance(value, (list, tuple)) and any(equals(element, self.operand) for element in value)


EVERYTHING, NOTHING = AllOf(()), AnyOf(())
_LEAVES = frozenset({Equal, Compare})
_SCALARS = frozenset({str, int, bool, type(None)})


def matches(node: FilterNode, value: Mapping[str, Any]) -> bool:
    """Whether a value, as `json_text.load` returns it, matches the filter."""
    return node.holds(value)


def find(value: Any, key: str) -> Any:
    """Return the value under a key, or MISSING. The module docstring says how keys with dots are read."""
    if not isinstance(value, dict):
        return MISSING
    if key in value:
        return value[key]
    dot = key.rfind(".")
    while dot >= 0:
        if key[:dot] in value:
            return find(value[key[:dot]], key[dot + 1 :])
        dot = key.rfind(".", 0, dot)
    return MISSING


def is_everything(node: FilterNode) -> bool:
    """Whether a filter has no conditions, so that it matches every value."""
    return type(node) is AllOf and not node.nodes


def dotted_keys(node: FilterNode, path: KeyPath = ()) -> list[KeyPath]:
    """Return the keys with dots that may be paths, each with the keys that lead to it."""
    keys: list[KeyPath] = []
    if isinstance(node, Field):
        if "." in node.key and not node.literal:
            keys.append((*path, node.key))
        if type(node.node) not in _LEAVES:
            keys += dotted_keys(node.node, (*path, node.key))
    elif isinstance(node, NotNode):
        keys += dotted_keys(node.node, path)
    elif isinstance(node, AllOf | AnyOf):
        for each in node.nodes:
            keys += dotted_keys(each, path)
    return keys


def has_literal_key(path: KeyPath) -> FilterNode:
    """Return a filter that finds the values with the last key of a path."""
    node: FilterNode = Field(path[-1], Exists(), literal=True)
    for key in reversed(path[:-1]):
        node = Field(key, node)
    return node


def with_literal_keys(node: FilterNode, literal: set[KeyPath], path: KeyPath = ()) -> FilterNode:
    """Return a filter in which these keys are no paths."""
    if isinstance(node, Field):
        key = (*path, node.key)
        return Field(node.key, with_literal_keys(node.node, literal, key), literal=key in literal)
    if isinstance(node, NotNode):
        return NotNode(with_literal_keys(node.node, literal, path))
    if isinstance(node, AllOf | AnyOf):
        return type(node)(tuple(with_literal_keys(each, literal, path) for each in node.nodes))
    return node


def equals(value: Any, operand: Any) -> bool:
    """Whether a part of a value, or MISSING, equals a plain operand."""
    if operand is None:
        return value is None or value is MISSING
    if isinstance(operand, bool) or isinstance(value, bool):
        return value is operand
    if isinstance(operand, list):
        return isinstance(value, (list, tuple)) and len(value) == len(operand) and all(map(equals, value, operand))
    if isinstance(operand, dict):
        return isinstance(value, dict) and value.keys() == operand.keys() and _equal_entries(value, operand)
    return bool(value == operand)


def _equal_entries(value: Mapping[str, Any], operand: Mapping[str, Any]) -> bool:
    return all(equals(value[key], inner) for key, inner in operand.items())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# Parsing


def parse(filter: Mapping[str, Any] | None) -> FilterNode:
    """Return the tree of a filter.

    ValueError for an unknown operator, for an operand that an operator does not take, and for a filter with more than
    `MAX_DEPTH` levels. TypeError for a filter that is not a mapping and for a key that is not a str.
    """
    if filter is None:
        return EVERYTHING
    simple = _parse_simple(filter) if type(filter) is dict else None
    return _parse_filter(filter, MAX_DEPTH) if simple is None else simple


def _parse_simple(filter: dict[Any, Any]) -> FilterNode | None:
    """Return the tree of a filter that only compares keys with scalars, as most do. None for any other filter.

    Two calls for each key. `_parse_filter` returns the same, after fifteen.
    """
    nodes: list[FilterNode] = []
    for key, condition in filter.items():
        if type(key) is not str or key[:1] == "$":
            return None
        if type(condition) in _SCALARS:
            nodes.append(Field(key, Equal(condition)))
            continue
        if type(condition) is not dict or len(condition) != 1:
            return None
        ((name, operand),) = condition.items()
        if name not in COMPARISONS or type(operand) not in (str, int):
            return None
        nodes.append(Field(key, Compare(name, operand)))
    return nodes[0] if len(nodes) == 1 else AllOf(tuple(nodes))


def _parse_filter(filter: Any, levels: int) -> FilterNode:
    if not isinstance(filter, Mapping):
        raise TypeError(f"a filter must be a mapping, not {type(filter).__name__}")
    return _all_of(_parse_entry(_check_key(key), condition, levels) for key, condition in filter.items())


def _parse_entry(key: str, condition: Any, levels: int) -> FilterNode:
    if not _is_operator(key):
        return Field(key, _parse_condition(condition, _descend(levels)))
    if key not in _LOGIC:
        raise ValueError(f"unknown operator {key!r}: next to keys use {', '.join(_LOGIC)}")
    return _LOGIC[key](key, condition, _parse_filter, _descend(levels))


def _parse_condition(condition: Any, levels: int) -> FilterNode:
    if isinstance(condition, Mapping):
        return _parse_mapping(condition, levels)
    if isinstance(condition, (list, tuple)):
        return Elements(tuple(_parse_condition(each, _descend(levels)) for each in condition))
    return _parse_equal(condition)


def _parse_mapping(condition: Mapping[Any, Any], levels: int) -> FilterNode:
    """Parse a dict of operators, or a dict of conditions on the keys of a dict."""
    operators = [_is_operator(_check_key(key)) for key in condition]
    if not any(operators):
        return _all_of([IsDict(), *(_parse_entry(key, inner, levels) for key, inner in condition.items())])
    if not all(operators):
        raise ValueError(f"a condition cannot mix operators and keys: {', '.join(map(repr, condition))}")
    return _all_of(_parse_operator(name, operand, levels) for name, operand in condition.items())


def _parse_operator(name: str, operand: Any, levels: int) -> FilterNode:
    if name in _LOGIC:
        return _LOGIC[name](name, operand, _parse_condition, _descend(levels))
    if name not in _OPERATORS:
        raise ValueError(f"unknown operator {name!r}: use {', '.join([*_OPERATORS, *_LOGIC])}")
    return _OPERATORS[name](name, operand)


def _descend(levels: int) -> int:
    """Return the number of levels allowed below the next one."""
    if levels == 0:
        raise ValueError(f"a filter may have at most {MAX_DEPTH} levels")
    return levels - 1


def _is_operator(key: str) -> bool:
    return _OPERATOR.fullmatch(key) is not None


def _check_key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the keys of a filter must be str, not {type(key).__name__}")
    return str.__str__(key)


def _all_of(nodes: Iterable[FilterNode]) -> FilterNode:
    parts = tuple(nodes)
    return parts[0] if len(parts) == 1 else AllOf(parts)


def _parse_and_or(name: str, parts: Any, read: Callable[[Any, int], FilterNode], levels: int) -> FilterNode:
    if not isinstance(parts, (list, tuple)) or not parts:
        raise ValueError(f"{name} takes a non-empty list, not {type(parts).__name__}")
    nodes = tuple(read(each, levels) for each in parts)
    return AllOf(nodes) if name == "$and" else AnyOf(nodes)


def _parse_not(_: str, part: Any, read: Callable[[Any, int], FilterNode], levels: int) -> FilterNode:
    return NotNode(read(part, levels))


def _parse_equal(operand: Any) -> FilterNode:
    known = _plain_operand(operand)
    return NOTHING if known is MISSING else Equal(known)


def _parse_in(name: str, operand: Any) -> FilterNode:
    if not isinstance(operand, (list, tuple, set, frozenset)):
        raise ValueError(f"{name} takes a list or a set, not {type(operand).__name__}")  # noqa: TRY004  one error for all operands
    known = [each for each in map(_plain_operand, operand) if each is not MISSING]
    others = tuple(each for each in known if not isinstance(each, str))
    return IsIn(frozenset(each for each in known if isinstance(each, str)), others)


def _parse_exists(name: str, operand: Any) -> FilterNode:
    if not isinstance(operand, bool):
        raise ValueError(f"{name} takes True or False, not {type(operand).__name__}")  # noqa: TRY004  one error for all operands
    return Exists() if operand else NotNode(Exists())


def _parse_comparison(name: str, operand: Any) -> FilterNode:
    if isinstance(operand, float) and math.isinf(operand):
        return Compare(name, float.__float__(operand))
    known = _plain_operand(operand)
    return Compare(name, known) if isinstance(known, str) or _is_number(known) else NOTHING


def _parse_contains(_: str, operand: Any) -> FilterNode:
    known = _plain_operand(operand)
    return NOTHING if known is MISSING else Contains(known)


def _plain_operand(operand: Any) -> Any:
    """Return the operand in plain JSON types; MISSING if it could not be stored and therefore equals nothing."""
    try:
        return to_plain_json(operand)
    except (TypeError, ValueError):
        return MISSING


_OPERATORS: Mapping[str, Callable[[str, Any], FilterNode]] = {
    "$eq": lambda _, operand: _parse_equal(operand),
    "$ne": lambda _, operand: NotNode(_parse_equal(operand)),
    **dict.fromkeys(COMPARISONS, _parse_comparison),
    "$in": _parse_in,
    "$nin": lambda name, operand: NotNode(_parse_in(name, operand)),
    "$exists": _parse_exists,
    "$contains": _parse_contains,
}
_LOGIC: Mapping[str, Callable[[str, Any, Callable[[Any, int], FilterNode], int], FilterNode]] = {
    "$and": _parse_and_or,
    "$or": _parse_and_or,
    "$not": _parse_not,
}
