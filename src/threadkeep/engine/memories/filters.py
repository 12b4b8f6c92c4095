"""What a filter over memories' values means: `parse` makes a tree of it, `matches` asks the tree. Once, for all backends.

    {"key": condition, ...}        all must hold; {} and None: every value
    {"$and": [filter, ...]}        also $or; {"$not": filter}

A condition is asked of what is found under the key:

    {"$op": operand, ...}          all must hold
    {"key": condition, ...}        it is a dict, and all hold inside it; {}: any dict
    [condition, ...]               it is a list of this length, and each holds for its element
    anything else                  {"$eq": it}

    $eq $ne            equal, or not        $in $nin           equal to one of a list or set, or to none
    $gt $gte $lt $lte  number with number, str with str by code points; any other pair does not match
    $exists            True or False: whether the key is there; None counts
    $contains          a list with an equal element, or a str with this str in it
    $and $or $not      of conditions

A key that is `$` and letters is an operator, known or not; any other key is a key.

Equal means of equal JSON type and value, all the way down: True is not 1, 1 is 1.0, ints and floats compare exactly. A
dict under $eq is the whole dict. What is missing equals None. What is not JSON, NaN too, equals nothing. Negations are
plain: $ne, $nin and $not match exactly where their opposite does not.

A key with dots may be a path. The longest beginning that is a key decides, at each level, and is not taken back: "a.b.c"
is the key "a.b.c", else "c" in the key "a.b", else "b.c" in the key "a". Paths lead through dicts, not into lists.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from threadkeep.engine.memories.json_text import to_plain_json

_OPERATOR = re.compile(r"\$\w*")
DEEPEST = 50
"""How many levels a filter may have."""

MISSING: Any = type("Missing", (), {"__slots__": (), "__repr__": lambda _: "MISSING"})()
"""What is found where nothing is."""

COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


class FilterNode(Protocol):
    """A question about what was found somewhere in a value: JSON as `values.load` gives it, or MISSING."""

    def holds(self, found: Any) -> bool:
        """The answer."""


@dataclass(frozen=True, slots=True)
class AllOf:
    """All hold; if there are none, that is so."""

    nodes: tuple[FilterNode, ...]

    def holds(self, found: Any) -> bool:
        """Whether they do."""
        return all(node.holds(found) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one holds; if there are none, that is not so."""

    nodes: tuple[FilterNode, ...]

    def holds(self, found: Any) -> bool:
        """Whether one does."""
        return any(node.holds(found) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class NotNode:
    """It does not hold."""

    node: FilterNode

    def holds(self, found: Any) -> bool:
        """Whether it does not."""
        return not self.node.holds(found)


@dataclass(frozen=True, slots=True)
class Field:
    """It holds for what is under the key; in anything but a dict the key is missing."""

    key: str
    node: FilterNode

    def holds(self, found: Any) -> bool:
        """Whether it does."""
        return self.node.holds(find(found, self.key))


@dataclass(frozen=True, slots=True)
class Elements:
    """A list of this length, and each node holds for its element."""

    nodes: tuple[FilterNode, ...]

    def holds(self, found: Any) -> bool:
        """Whether it is, and they do."""
        if not isinstance(found, (list, tuple)) or len(found) != len(self.nodes):
            return False
        return all(node.holds(element) for node, element in zip(self.nodes, found, strict=True))


@dataclass(frozen=True, slots=True)
class IsDict:
    """A dict."""

    def holds(self, found: Any) -> bool:
        """Whether it is."""
        return isinstance(found, dict)


@dataclass(frozen=True, slots=True)
class Exists:
    """Something is there."""

    def holds(self, found: Any) -> bool:
        """Whether there is."""
        return found is not MISSING


@dataclass(frozen=True, slots=True)
class Equal:
    """Equal to this plain value."""

    operand: Any

    def holds(self, found: Any) -> bool:
        """Whether it is."""
        return equals(found, self.operand)


@dataclass(frozen=True, slots=True)
class IsIn:
    """Equal to one of these plain values; str apart from the others."""

    texts: frozenset[str]
    others: tuple[Any, ...]

    def holds(self, found: Any) -> bool:
        """Whether it is."""
        if isinstance(found, str):
            return found in self.texts
        return any(equals(found, other) for other in self.others)


@dataclass(frozen=True, slots=True)
class Compare:
    """Before or after this number or str."""

    name: str
    operand: int | float | str

    def holds(self, found: Any) -> bool:
        """Whether it is."""
        comparable = isinstance(found, str) if isinstance(self.operand, str) else _is_number(found)
        return comparable and COMPARISONS[self.name](found, self.operand)


@dataclass(frozen=True, slots=True)
class Contains:
    """A list with an element that is equal to this plain value, or a str with it inside."""

    operand: Any

    def holds(self, found: Any) -> bool:
        """Whether it is."""
        if isinstance(found, str):
            return isinstance(self.operand, str) and self.operand in found
        return isinstance(found, (list, tuple)) and any(equals(element, self.operand) for element in found)


EVERYTHING, NOTHING = AllOf(()), AnyOf(())


def matches(node: FilterNode, value: Mapping[str, Any]) -> bool:
    """Whether a value, as `values.load` gives it, is one that the filter asks for."""
    return node.holds(value)


def find(found: Any, key: str) -> Any:
    """What is under a key, or MISSING; how keys with dots are read stands above."""
    if not isinstance(found, dict):
        return MISSING
    if key in found:
        return found[key]
    dot = key.rfind(".")
    while dot >= 0:
        if key[:dot] in found:
            return find(found[key[:dot]], key[dot + 1 :])
        dot = key.rfind(".", 0, dot)
    return MISSING


def equals(found: Any, operand: Any) -> bool:
    """Whether what was found equals a plain value."""
    if operand is None:
        return found is None or found is MISSING
    if isinstance(operand, bool) or isinstance(found, bool):
        return found is operand
    if isinstance(operand, list):
        return isinstance(found, (list, tuple)) and len(found) == len(operand) and all(map(equals, found, operand))
    if isinstance(operand, dict):
        return isinstance(found, dict) and found.keys() == operand.keys() and _equal_entries(found, operand)
    return bool(found == operand)


def _equal_entries(found: Mapping[str, Any], operand: Mapping[str, Any]) -> bool:
    return all(equals(found[key], inner) for key, inner in operand.items())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# Parsing


def parse(filter: Mapping[str, Any] | None) -> FilterNode:
    """The tree of a filter.

    ValueError for an operator that is not known or whose operand it cannot have, and for a filter of more than
    `DEEPEST` levels; TypeError for a filter that is no mapping and for a key that is no str.
    """
    return EVERYTHING if filter is None else _parse_filter(filter, DEEPEST)


def _parse_filter(filter: Any, deepest: int) -> FilterNode:
    if not isinstance(filter, Mapping):
        raise TypeError(f"a filter is a mapping, not {type(filter).__name__}")
    return _all_of(_parse_entry(_check_key(key), condition, deepest) for key, condition in filter.items())


def _parse_entry(key: str, condition: Any, deepest: int) -> FilterNode:
    if not _is_operator(key):
        return Field(key, _parse_condition(condition, _descend(deepest)))
    if key not in _LOGIC:
        raise ValueError(f"unknown operator {key!r}: beside keys there may be {', '.join(_LOGIC)}")
    return _LOGIC[key](key, condition, _parse_filter, _descend(deepest))


def _parse_condition(condition: Any, deepest: int) -> FilterNode:
    if isinstance(condition, Mapping):
        return _parse_mapping(condition, deepest)
    if isinstance(condition, (list, tuple)):
        return Elements(tuple(_parse_condition(each, _descend(deepest)) for each in condition))
    return _parse_equal(condition)


def _parse_mapping(condition: Mapping[Any, Any], deepest: int) -> FilterNode:
    """Operators, if it has one; else what a dict must have in it."""
    operators = [_is_operator(_check_key(key)) for key in condition]
    if not any(operators):
        return _all_of([IsDict(), *(_parse_entry(key, inner, deepest) for key, inner in condition.items())])
    if not all(operators):
        raise ValueError(f"operators and keys in one condition: {', '.join(map(repr, condition))}")
    return _all_of(_parse_operator(name, operand, deepest) for name, operand in condition.items())


def _parse_operator(name: str, operand: Any, deepest: int) -> FilterNode:
    if name in _LOGIC:
        return _LOGIC[name](name, operand, _parse_condition, _descend(deepest))
    if name not in _OPERATORS:
        raise ValueError(f"unknown operator {name!r}: there are {', '.join([*_OPERATORS, *_LOGIC])}")
    return _OPERATORS[name](name, operand)


def _descend(deepest: int) -> int:
    """How many levels may follow the next one."""
    if deepest == 0:
        raise ValueError(f"a filter has at most {DEEPEST} levels")
    return deepest - 1


def _is_operator(key: str) -> bool:
    return _OPERATOR.fullmatch(key) is not None


def _check_key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the keys of a filter are str, not {type(key).__name__}")
    return str.__str__(key)


def _all_of(nodes: Iterable[FilterNode]) -> FilterNode:
    parts = tuple(nodes)
    return parts[0] if len(parts) == 1 else AllOf(parts)


def _parse_and_or(name: str, parts: Any, read: Callable[[Any, int], FilterNode], deepest: int) -> FilterNode:
    if not isinstance(parts, (list, tuple)) or not parts:
        raise ValueError(f"{name} takes a list that is not empty, not {parts!r}")
    nodes = tuple(read(each, deepest) for each in parts)
    return AllOf(nodes) if name == "$and" else AnyOf(nodes)


def _parse_not(_: str, part: Any, read: Callable[[Any, int], FilterNode], deepest: int) -> FilterNode:
    return NotNode(read(part, deepest))


def _parse_equal(operand: Any) -> FilterNode:
    known = _plain_operand(operand)
    return NOTHING if known is MISSING else Equal(known)


def _parse_in(name: str, operand: Any) -> FilterNode:
    if not isinstance(operand, (list, tuple, set, frozenset)):
        raise ValueError(f"{name} takes a list or a set, not {operand!r}")  # noqa: TRY004  one error for all operands
    known = [each for each in map(_plain_operand, operand) if each is not MISSING]
    others = tuple(each for each in known if not isinstance(each, str))
    return IsIn(frozenset(each for each in known if isinstance(each, str)), others)


def _parse_exists(name: str, operand: Any) -> FilterNode:
    if not isinstance(operand, bool):
        raise ValueError(f"{name} takes True or False, not {operand!r}")  # noqa: TRY004  one error for all operands
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
    """The operand in JSON's own types; MISSING if it is nothing that could be stored, and equals nothing."""
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
