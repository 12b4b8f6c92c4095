"""Filters on memories as SQL conditions, so that the database leaves out rows that do not match.

A condition is true for every row that matches. It may be true for other rows too: the engine checks each row again with
`matches`. It is never NULL, no filter makes it fail, and keys and operands are always parameters.

Negations are carried down to the tests: `_compile(node, path, wanted=False)` is true wherever the node does not hold. A
test that the database cannot decide for some values has a doubt, which counts as true in both directions.

    exact       None, bool, str, lists of them; $in, $exists, $contains of them.
                PostgreSQL: numbers up to 2**53, and all ints
    doubtful    SQLite: floats, since it may read the last digit wrong. PostgreSQL: int with float beyond 2**53.
                Both: order and substrings of strings that were escaped
    left out    keys with more than three dots; lists and dicts inside an operand; $ne and the like of such an operand;
                what would need more than 500 parameters
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from json import dumps
from typing import Any, TypeAlias

from threadkeep.backends.sql.json_sql import (
    MAX_EXACT,
    TRUE,
    UNDECIDED,
    Check,
    JsonPath,
    Sql,
    all_of,
    any_of,
    guarded,
    negate,
)
from threadkeep.engine.memories.filters import (
    AllOf,
    AnyOf,
    Compare,
    Contains,
    Elements,
    Equal,
    Exists,
    Field,
    FilterNode,
    IsDict,
    IsIn,
    NotNode,
)
from threadkeep.engine.memories.json_text import escape

Condition: TypeAlias = tuple[str, list[Any]]
"""SQL with placeholders, and the parameters."""

_MAX_PATH_PARAMETERS = 40
_MAX_DOTS = 3
_MAX_SUBSTRINGS = 8
_ESCAPE = "\x01"
"""The first character of each escape in a stored string."""
_OPERATORS: Mapping[str, str] = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


def compile_filter(node: FilterNode, root: JsonPath, substring_test: str) -> Condition:
    """Return the condition for a filter on the JSON at `root`.

    `substring_test` tests whether the stored text contains its parameter. It is fast, so it comes first.
    """
    text, params = all_of([_compile(node, root, wanted=True)])  # TRUE if it needs too many parameters
    substrings = _required_substrings(node)
    return " AND ".join([*[substring_test] * len(substrings), text]), [*substrings, *params]


def name_parameters(condition: str, placeholder: str, operands: Iterable[Any]) -> tuple[str, dict[str, Any]]:
    """Return a condition with named parameters in place of placeholders, and the values by name."""
    values = {f"filter{n}": value for n, value in enumerate(operands)}
    pieces = condition.split(placeholder)
    return "".join(piece + f":{name}" for piece, name in zip(pieces, values, strict=False)) + pieces[-1], values


def _required_substrings(node: FilterNode) -> list[str]:
    """Return texts that a matching value must contain: equal keys, as `json_text.dump` writes them."""
    if isinstance(node, AllOf):
        return [text for each in node.nodes for text in _required_substrings(each)][:_MAX_SUBSTRINGS]
    if not isinstance(node, Field) or "." in node.key or not isinstance(node.node, Equal):
        return []
    operand = node.node.operand
    if isinstance(operand, float) and operand.is_integer():
        operand = int(operand)
    has_one_spelling = isinstance(operand, (str, bool)) or (isinstance(operand, int) and 0 < abs(operand) < MAX_EXACT)
    if not has_one_spelling:
        return []
    return [f"{dumps(escape(node.key))}:{dumps(escape(operand) if isinstance(operand, str) else operand)}"]


def _compile(node: FilterNode, path: JsonPath, *, wanted: bool) -> Sql:
    """Return SQL that is true wherever the node holds at this path (or does not, if wanted is False)."""
    return _RULES[type(node)](node, path, wanted=wanted)


def _all_or_any(node: AllOf | AnyOf, path: JsonPath, *, wanted: bool) -> Sql:
    join = all_of if isinstance(node, AllOf) is wanted else any_of
    return join(_compile(each, path, wanted=wanted) for each in node.nodes)


def _not(node: NotNode, path: JsonPath, *, wanted: bool) -> Sql:
    return _compile(node.node, path, wanted=not wanted)


def _field(node: Field, path: JsonPath, *, wanted: bool) -> Sql:
    if node.key.count(".") > _MAX_DOTS and not node.literal:
        return TRUE
    field = path.key(node.key) if node.literal else _find_field(path, node.key)
    if len(field.json.params) > _MAX_PATH_PARAMETERS:
        return TRUE
    if isinstance(node.node, Equal) and isinstance(node.node.operand, str):
        return _compile(node.node, field, wanted=wanted)
    return field.evaluate_once(lambda value: _compile(node.node, value, wanted=wanted))


def _find_field(path: JsonPath, key: str) -> JsonPath:
    """Return the path that `engine.memories.filters.find` follows: the longest prefix of the key that exists."""
    dots = [n for n, character in enumerate(key) if character == "."]
    heads = [(path.key(key[:dot]), key[dot + 1 :]) for dot in dots]
    whole = path.key(key)
    if not heads:
        return whole
    found = _find_field(*heads[0])
    for head, rest in heads[1:]:
        found = head.if_exists(_find_field(head, rest), found)
    return whole.if_exists(whole, found)


def _elements(node: Elements, path: JsonPath, *, wanted: bool) -> Sql:
    length = guarded(path.has_type("list"), Check(path.has_length(len(node.nodes))), wanted=wanted)
    inner = (_compile(each, path.index(n), wanted=wanted) for n, each in enumerate(node.nodes))
    return (all_of if wanted else any_of)([length, *inner])


def _is_dict(_: IsDict, path: JsonPath, *, wanted: bool) -> Sql:
    return guarded(path.has_type("dict"), Check(TRUE), wanted=wanted)


def _exists(_: Exists, path: JsonPath, *, wanted: bool) -> Sql:
    return guarded(path.exists(), Check(TRUE), wanted=wanted)


def _equal(node: Equal, path: JsonPath, *, wanted: bool) -> Sql:
    return _EQUALS[type(node.operand)](node.operand, path, wanted=wanted)


def _equals_none(_: None, path: JsonPath, *, wanted: bool) -> Sql:
    return guarded(path.is_null(), Check(TRUE), wanted=wanted)


def _equals_bool(operand: bool, path: JsonPath, *, wanted: bool) -> Sql:  # noqa: FBT001 - the value itself
    test = path.is_true() if operand else negate(path.is_true())
    return guarded(path.has_type("bool"), Check(test), wanted=wanted)


def _equals_text(operand: str, path: JsonPath, *, wanted: bool) -> Sql:
    return path.equals_text(escape(operand), wanted=wanted)


def _equals_number(operand: float, path: JsonPath, *, wanted: bool) -> Sql:
    return guarded(path.has_type("number"), path.compare_number("=", operand), wanted=wanted)


def _equals_list(operand: list[Any], path: JsonPath, *, wanted: bool) -> Sql:
    if all(map(_is_scalar, operand)):
        return _elements(Elements(tuple(map(Equal, operand))), path, wanted=wanted)
    return guarded(path.has_type("list"), Check(path.has_length(len(operand))), wanted=True) if wanted else TRUE


def _equals_dict(operand: dict[str, Any], path: JsonPath, *, wanted: bool) -> Sql:
    """Test the scalars of a dict. The condition does not test that there are no other keys."""
    if not wanted:
        return TRUE
    scalars = ((key, inner) for key, inner in operand.items() if _is_scalar(inner))
    inside = (_equal(Equal(inner), path.key(key), wanted=True) for key, inner in scalars)
    return all_of([_is_dict(IsDict(), path, wanted=True), *inside])


def _is_scalar(operand: Any) -> bool:
    return not isinstance(operand, (list, dict))


def _is_in(node: IsIn, path: JsonPath, *, wanted: bool) -> Sql:
    """Pass all strings in one parameter, and all ints that compare exactly in another; test the others one by one."""
    ints = [each for each in node.others if type(each) is int and abs(each) < MAX_EXACT]
    others = [each for each in node.others if type(each) is not int or abs(each) >= MAX_EXACT]
    tests = [_equal(Equal(each), path, wanted=wanted) for each in others]
    if node.texts:
        texts = path.text_in(map(escape, sorted(node.texts)))
        tests.append(guarded(path.has_type("str"), Check(texts), wanted=wanted))
    if ints:
        tests.append(guarded(path.has_type("number"), path.number_in(ints), wanted=wanted))
    return (any_of if wanted else all_of)(tests)


def _compare(node: Compare, path: JsonPath, *, wanted: bool) -> Sql:
    operator, operand = _OPERATORS[node.name], node.operand
    if not isinstance(operand, str):
        exact = guarded(path.has_type("number"), path.compare_number(operator, operand), wanted=wanted)
        return all_of([path.may_compare(operator, operand), exact]) if wanted else exact
    if escape(operand) != operand:
        return guarded(path.has_type("str"), UNDECIDED, wanted=wanted)
    check = Check(path.compare_text(operator, operand), path.contains_text(_ESCAPE))
    return guarded(path.has_type("str"), check, wanted=wanted)


def _contains(node: Contains, path: JsonPath, *, wanted: bool) -> Sql:
    tests = [_has_element(node.operand, path, wanted=wanted)]
    if isinstance(node.operand, str):
        check = Check(path.contains_text(escape(node.operand)), path.contains_text(_ESCAPE))
        tests.append(guarded(path.has_type("str"), check, wanted=wanted))
    return (any_of if wanted else all_of)(tests)


def _has_element(operand: Any, path: JsonPath, *, wanted: bool) -> Sql:
    if not _is_scalar(operand):
        return guarded(path.has_type("list"), UNDECIDED, wanted=wanted)
    equal = _equal(Equal(operand), path.element(), wanted=wanted)
    test = equal if wanted else negate(equal)
    return guarded(path.has_type("list"), Check(path.has_element(test)), wanted=wanted)


_RULES: Mapping[type, Callable[..., Sql]] = {
    AllOf: _all_or_any,
    AnyOf: _all_or_any,
    NotNode: _not,
    Field: _field,
    Elements: _elements,
    IsDict: _is_dict,
    Exists: _exists,
    Equal: _equal,
    IsIn: _is_in,
    Compare: _compare,
    Contains: _contains,
}
_EQUALS: Mapping[type, Callable[..., Sql]] = {
    type(None): _equals_none,
    bool: _equals_bool,
    str: _equals_text,
    int: _equals_number,
    float: _equals_number,
    list: _equals_list,
    dict: _equals_dict,
}
