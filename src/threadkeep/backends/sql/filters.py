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

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from json import dumps
from typing import Any, NamedTuple, TypeAlias

from threadkeep.backends.sql.json_sql import (
    MAX_EXACT,
    TRUE,
    UNDECIDED,
    Check,
    JsonPath,
    Operand,
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
from threadkeep.engine.memories.json_text import escape, is_clean

Condition: TypeAlias = tuple[str, list[Any]]
"""SQL with placeholders, and the parameters."""

_MAX_PATH_PARAMETERS = 40
_MAX_DOTS = 3
_MAX_SUBSTRINGS = 8
_MAX_SHAPE = 20
_ESCAPE = "\x01"
"""The first character of each escape in a stored string."""
_OPERATORS: Mapping[str, str] = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


class JsonColumn(NamedTuple):
    """A column with values as JSON: its name, the path to the values, and a test for what their text must contain.

    `contains` tests whether the stored text contains its parameter, which `encode` makes of the text to look for.
    """

    name: str
    make_path: Callable[[Sql], JsonPath]
    contains: str
    encode: Callable[[str], str | bytes] = str


class _Template(NamedTuple):
    """The condition for all filters of one shape: its SQL, and where each parameter comes from.

    A parameter is the index of an operand with a function of it, or -1 with a value.
    """

    text: str
    params: tuple[tuple[int, Any], ...]


_Shape: TypeAlias = tuple[tuple[str, str, str, bool], ...]
"""What the SQL of a filter depends on. For each key: the key, the test, the kind of operand, whether it is literal."""
_SAMPLES: Mapping[str, Any] = {
    "str": "a", "int": 1, "float": 0.5, "zero": 0, "true": True, "false": False, "null": None
}  # fmt: skip
"""The kinds of operands. The operands of one kind differ only in the parameters that are computed from them."""
_CONSTANTS = {True: "true", False: "false", None: "null"}
_EQUAL, _NOT_EQUAL = "$eq", "$ne"


def condition_for(node: FilterNode, column: JsonColumn) -> Condition:
    """Return the condition for a filter on the JSON in a column.

    The test for substrings is fast, so it comes first. The SQL for filters that only test keys for scalars is made once
    for each shape: making it takes 200 calls, and this one 10.
    """
    shaped = _shape(node)
    if shaped is None:
        text, params = _compile_filter(node, column)
        return text, [each.compute(each.node.operand) if type(each) is Operand else each for each in params]
    shape, operands = shaped
    template = _template(shape, column)
    return template.text, [source if n < 0 else source(operands[n]) for n, source in template.params]


def _shape(node: FilterNode) -> tuple[_Shape, list[Any]] | None:
    """Return the shape of a filter that tests some keys for scalars, and its operands. None for any other filter."""
    shape, operands = [], []
    for field in node.nodes if type(node) is AllOf else (node,):
        if type(field) is not Field or ("." in field.key and not field.literal):
            return None
        leaf = field.node
        test = leaf.name if type(leaf) is Compare else _EQUAL
        if type(leaf) is NotNode:
            leaf, test = leaf.node, _NOT_EQUAL
        if type(leaf) is not Equal and (type(leaf) is not Compare or test == _NOT_EQUAL):
            return None
        kind = _kind(leaf.operand, is_equal=type(leaf) is Equal)
        if kind is None:
            return None
        shape.append((field.key, test, kind, field.literal))
        operands.append(leaf.operand)
    return (tuple(shape), operands) if len(shape) <= _MAX_SHAPE else None


def _kind(operand: Any, *, is_equal: bool) -> str | None:
    """Return the kind of an operand, a key of `_SAMPLES`; None if its condition depends on the operand itself."""
    type_name = type(operand).__name__
    if type_name == "str":
        return "str" if is_clean(operand) else None
    if type_name == "int" or (type_name == "float" and not is_equal):
        is_exact = -MAX_EXACT < operand < MAX_EXACT
        return (type_name if operand or type_name == "float" else "zero") if is_exact else None
    return _CONSTANTS.get(operand) if type_name in ("bool", "NoneType") else None


@lru_cache(maxsize=512)
def _template(shape: _Shape, column: JsonColumn) -> _Template:
    """Return the condition for a shape. It is compiled with a sample of each kind of operand."""
    leaves: list[Equal | Compare] = []
    fields: list[FilterNode] = []
    for key, test, kind, literal in shape:
        leaf = Equal(_SAMPLES[kind]) if test in (_EQUAL, _NOT_EQUAL) else Compare(test, _SAMPLES[kind])
        leaves.append(leaf)
        fields.append(Field(key, NotNode(leaf) if test == _NOT_EQUAL else leaf, literal))
    node = fields[0] if len(fields) == 1 else AllOf(tuple(fields))
    text, params = _compile_filter(node, column)
    positions = {id(leaf): n for n, leaf in enumerate(leaves)}
    return _Template(
        text,
        tuple([(positions[id(each.node)], each.compute) if type(each) is Operand else (-1, each) for each in params]),
    )


def _compile_filter(node: FilterNode, column: JsonColumn) -> tuple[str, list[Any]]:
    root = column.make_path(Sql(column.name))
    text, params = all_of([_compile(node, root, wanted=True)])  # TRUE if it needs too many parameters
    substrings = _required_substrings(node, column.encode)
    return " AND ".join([*[column.contains] * len(substrings), text]), [*substrings, *params]


def name_parameters(condition: str, placeholder: str, operands: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """Return a condition with named parameters in place of placeholders, and the values by name."""
    text, names = _named(condition, placeholder)
    return text, dict(zip(names, operands, strict=True))


@lru_cache(maxsize=512)
def _named(condition: str, placeholder: str) -> tuple[str, tuple[str, ...]]:
    pieces = condition.split(placeholder)
    names = tuple([f"filter{n}" for n in range(len(pieces) - 1)])
    return "".join([piece + f":{name}" for piece, name in zip(pieces, names, strict=False)]) + pieces[-1], names


def _required_substrings(node: FilterNode, encode: Callable[[str], str | bytes]) -> list[Operand]:
    """Return texts that a matching value must contain: equal keys, as `json_text.dump` writes them."""
    if isinstance(node, AllOf):
        return [text for each in node.nodes for text in _required_substrings(each, encode)][:_MAX_SUBSTRINGS]
    if not isinstance(node, Field) or "." in node.key or not isinstance(node.node, Equal):
        return []
    operand = node.node.operand
    if isinstance(operand, float) and operand.is_integer():
        operand = int(operand)
    has_one_spelling = isinstance(operand, (str, bool)) or (isinstance(operand, int) and 0 < abs(operand) < MAX_EXACT)
    return [Operand(node.node, partial(_spelled, dumps(escape(node.key)), encode))] if has_one_spelling else []


def _spelled(key: str, encode: Callable[[str], str | bytes], operand: Any) -> str | bytes:
    """Return a key and its value as `json_text.dump` writes them."""
    if isinstance(operand, float):
        operand = int(operand)
    return encode(f"{key}:{dumps(escape(operand) if isinstance(operand, str) else operand)}")


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
    return _EQUALS[type(node.operand)](node, path, wanted=wanted)


def _equals_none(_: Equal, path: JsonPath, *, wanted: bool) -> Sql:
    return guarded(path.is_null(), Check(TRUE), wanted=wanted)


def _equals_bool(node: Equal, path: JsonPath, *, wanted: bool) -> Sql:
    test = path.is_true() if node.operand else negate(path.is_true())
    return guarded(path.has_type("bool"), Check(test), wanted=wanted)


def _equals_text(node: Equal, path: JsonPath, *, wanted: bool) -> Sql:
    return path.equals_text(node, wanted=wanted)


def _equals_number(node: Equal, path: JsonPath, *, wanted: bool) -> Sql:
    return guarded(path.has_type("number"), path.compare_number("=", node), wanted=wanted)


def _equals_list(node: Equal, path: JsonPath, *, wanted: bool) -> Sql:
    operand: list[Any] = node.operand
    if all(map(_is_scalar, operand)):
        return _elements(Elements(tuple(map(Equal, operand))), path, wanted=wanted)
    return guarded(path.has_type("list"), Check(path.has_length(len(operand))), wanted=True) if wanted else TRUE


def _equals_dict(node: Equal, path: JsonPath, *, wanted: bool) -> Sql:
    """Test the scalars of a dict. The condition does not test that there are no other keys."""
    if not wanted:
        return TRUE
    scalars = ((key, inner) for key, inner in node.operand.items() if _is_scalar(inner))
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
        exact = guarded(path.has_type("number"), path.compare_number(operator, node), wanted=wanted)
        return all_of([path.may_compare(operator, node), exact]) if wanted else exact
    if escape(operand) != operand:
        return guarded(path.has_type("str"), UNDECIDED, wanted=wanted)
    check = Check(path.compare_text(operator, node), path.contains_text(_ESCAPE))
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
