"""Filters as SQL over the column that has `values.dump` text, so that the database leaves out what does not match.

A condition is true for every row that matches. It may be true for others: whoever asks checks again with `matches`. It
is never NULL, and no filter makes it fail. Keys and operands are parameters.

Negations are carried down to the tests: `_sql(node, place, wanted=False)` is true wherever the node does not hold. A test
that the database cannot decide for some values comes with a doubt, which is a yes in both directions.

    exact       None, bool, str, lists of them; $in, $exists, $contains of them; PostgreSQL: numbers up to 2**53, and ints
    doubtful    SQLite: floats, of which it may read the last digit wrong. PostgreSQL: int with float beyond 2**53.
                Both: order and parts of strings that were escaped
    not asked   keys with more than three dots; what is in lists and dicts inside an operand; $ne and the like of such
                an operand; what would need more than 500 parameters
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from json import dumps
from typing import Any, ClassVar, NamedTuple, TypeAlias

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

_MOST = 500
"""Parameters of a condition; they bound the depth of its expression, of which SQLite allows a thousand."""
_MOST_OF_A_PLACE = 40
_MOST_DOTS = 3
_MOST_SAID = 8
_EXACT = 1 << 53
_HUGE = 10**390
_LONGEST = 400
"""Characters of a number that PostgreSQL's numeric is given: no float has as many, and as many always fit."""
_MARK = "\x01"
"""What begins each escape in a stored string."""
_SIGNS: Mapping[str, str] = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}


class Sql(NamedTuple):
    """A piece of SQL, and its parameters in the order of their places."""

    text: str
    params: tuple[Any, ...] = ()


TRUE, FALSE = Sql("TRUE"), Sql("FALSE")


class Test(NamedTuple):
    """What is asked of a value of the right type. Where `doubt` is true, the answer may be wrong."""

    yes: Sql
    doubt: Sql = FALSE


_UNDECIDED = Test(TRUE, TRUE)


def sqlite(node: FilterNode, column: str) -> Condition:
    """For a column of type TEXT, with `?`. The column needs its table's name: json_each has a `value` of its own."""
    text, params = _condition(node, SqliteJsonPlace.of(Sql(column)))
    return _after(_said(node), f"instr({column}, ?) > 0", text, params)


def postgres(node: FilterNode, column: str) -> Condition:
    """For a column of type json, with `%s`. The database must be in UTF-8: in others `->` fails on what they lack."""
    text, params = _condition(node, PostgresJsonPlace.of(Sql(column)))
    return _after(_said(node), f"strpos({column}::text, %s) > 0", text, params)


def _said(node: FilterNode) -> list[str]:
    """What the stored text must contain: keys that are equal to something, as `values.dump` writes them. It is found quickly."""
    if isinstance(node, AllOf):
        return [said for each in node.nodes for said in _said(each)][:_MOST_SAID]
    if not isinstance(node, Field) or "." in node.key or not isinstance(node.node, Equal):
        return []
    operand = node.node.operand
    if isinstance(operand, float) and operand.is_integer():
        operand = int(operand)
    is_plain = isinstance(operand, (str, bool)) or (isinstance(operand, int) and 0 < abs(operand) < _EXACT)
    return (
        [f"{dumps(escape(node.key))}:{dumps(escape(operand) if isinstance(operand, str) else operand)}"]
        if is_plain
        else []
    )


def _after(said: list[str], test: str, text: str, params: list[Any]) -> Condition:
    """A condition that is only asked where the text contains all that."""
    return " AND ".join([*[test] * len(said), text]), [*said, *params]


def _condition(node: FilterNode, place: JsonPlace) -> Condition:
    text, params = _all([_sql(node, place, wanted=True)])  # TRUE if it is too much
    return text, list(params)


# Building SQL


def _fill(template: str, *pieces: Sql) -> Sql:
    """The template with the pieces in it, in this order."""
    return Sql(template.format(*(each.text for each in pieces)), _params(pieces))


def _params(pieces: Iterable[Sql]) -> tuple[Any, ...]:
    return tuple(param for each in pieces for param in each.params)


def _all(pieces: Iterable[Sql]) -> Sql:
    """All are true; one that would be too much is left out."""
    kept, room = [], _MOST
    for each in pieces:
        if each == FALSE:
            return FALSE
        if each != TRUE and len(each.params) <= room:
            kept.append(each)
            room -= len(each.params)
    return _joined(" AND ", kept) if kept else TRUE


def _any(pieces: Iterable[Sql]) -> Sql:
    """One is true."""
    kept = [each for each in pieces if each != FALSE]
    if TRUE in kept:
        return TRUE
    return _joined(" OR ", kept) if kept else FALSE


def _joined(word: str, pieces: list[Sql]) -> Sql:
    return pieces[0] if len(pieces) == 1 else _fill(f"({word.join(['{}'] * len(pieces))})", *pieces)


def _asked(guard: Sql, test: Test, *, wanted: bool) -> Sql:
    """Whether a value of the type that the guard tells passes the test, or fails; any other value fails."""
    said = test.yes if wanted else _fill("NOT ({})", test.yes)
    said = said if test.doubt == FALSE else _fill("(({}) OR ({}))", said, test.doubt)
    return _fill("CASE WHEN {} THEN {} ELSE {} END", guard, said, FALSE if wanted else TRUE)


# Places in a value: what each database says in its own way


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """Somewhere in the value of a row: the type of what is there, its text or number, its JSON; NULL if nothing is.

    What tells the type is a guard, which may be NULL. The other tests are of a value of their type only.
    """

    kind: Sql
    value: Sql
    json: Sql

    MARK: ClassVar[str]
    KINDS: ClassVar[Mapping[str, str]]
    TRUTH: ClassVar[str]
    ONE_OF: ClassVar[str]
    INSIDE: ClassVar[str]

    @classmethod
    def of(cls, json: Sql) -> JsonPlace:
        """The place that has this JSON."""
        raise NotImplementedError

    def key(self, key: str) -> JsonPlace:
        """What a dict has under exactly this key."""
        raise NotImplementedError

    def index(self, index: int) -> JsonPlace:
        """An element of a list."""
        raise NotImplementedError

    def each(self) -> JsonPlace:
        """The element that `has_element` looks at; of what is inside it nothing can be asked."""
        raise NotImplementedError

    def has_element(self, test: Sql) -> Sql:
        """Of a list: the test is true for one of its elements."""
        raise NotImplementedError

    def number(self, sign: str, operand: float) -> Test:
        """Of a number: it compares so with this one."""
        raise NotImplementedError

    def numbers(self, operands: list[int]) -> Test:
        """Of a number: it is one of these, which are below 2**53."""
        raise NotImplementedError

    def may_be(self, sign: str, operand: float) -> Sql:  # noqa: ARG002
        """True wherever a number compares so, and quicker than to ask for certain."""
        return TRUE

    def once(self, test: Callable[[JsonPlace], Sql]) -> Sql:
        """A test that names what is here more than once."""
        return test(self)

    def leads_to(self, inside: JsonPlace, other: JsonPlace) -> JsonPlace:
        """`inside` if something is here, else the other."""
        return self.of(_fill("CASE WHEN {} THEN {} ELSE {} END", self.is_there(), inside.json, other.json))

    def is_there(self) -> Sql:
        """A guard: something is there."""
        return _fill("{} IS NOT NULL", self.kind)

    def is_none(self) -> Sql:
        """A guard: null is there, or nothing."""
        return _fill("coalesce({}, 'null') = 'null'", self.kind)

    def is_a(self, kind: str) -> Sql:
        """A guard: it is of this kind."""
        return _fill(f"{{}} {self.KINDS[kind]}", self.kind)

    def is_true(self) -> Sql:
        """Of a bool."""
        return _fill(self.TRUTH, self.value)

    def is_text(self, operand: str, *, wanted: bool) -> Sql:
        """It is this str, as it is stored; or it is not, if that is wanted."""
        return _asked(self.is_a("str"), Test(self.text("=", operand)), wanted=wanted)

    def text(self, sign: str, operand: str) -> Sql:
        """Of a str: it compares so with this one, both as they are stored."""
        return _fill(f"{{}} {sign} {{}}", self.value, self.given(operand))

    def one_of(self, operands: Iterable[str | int]) -> Sql:
        """Of a str: it is one of these."""
        return _fill(self.ONE_OF, self.value, self.given(dumps(list(operands))))

    def has(self, operand: str) -> Sql:
        """Of a str: this is in it."""
        return _fill(self.INSIDE, self.value, self.given(operand))

    def has_length(self, length: int) -> Sql:
        """Of a list."""
        return _fill("json_array_length({}) = {}", self.json, self.given(length))

    def given(self, operand: Any) -> Sql:
        """A parameter."""
        return Sql(self.MARK, (operand,))


@dataclass(frozen=True, slots=True)
class SqliteJsonPlace(JsonPlace):
    """A path in a JSON text."""

    base: Sql
    path: str

    MARK = "?"
    KINDS: ClassVar[Mapping[str, str]] = {
        "bool": "IN ('true', 'false')",
        "number": "IN ('integer', 'real')",
        "str": "= 'text'",
        "list": "= 'array'",
        "dict": "= 'object'",
    }
    TRUTH = "{} = 1"
    ONE_OF = "{} IN (SELECT value FROM json_each({}))"
    INSIDE = "instr({}, {}) > 0"

    @classmethod
    def of(cls, json: Sql) -> SqliteJsonPlace:
        """The whole of a JSON text."""
        return cls._at(json, "$")

    @classmethod
    def _at(cls, base: Sql, path: str) -> SqliteJsonPlace:
        there = Sql("?", (path,))
        kind, value = _fill("json_type({}, {})", base, there), _fill("json_extract({}, {})", base, there)
        return cls(kind, value, _fill("({} -> {})", base, there), base, path)

    def key(self, key: str) -> SqliteJsonPlace:
        """Under a quoted key. Inside the quotes there is no other quote, which older versions take for the end."""
        quoted = dumps(escape(key)).replace(r"\\", r"\u005c").replace(r"\"", r"\u0022")
        return self._at(self.base, f"{self.path}.{quoted}")

    def index(self, index: int) -> SqliteJsonPlace:
        """An element of a list."""
        return self._at(self.base, f"{self.path}[{index}]")

    def each(self) -> SqliteJsonPlace:
        """A row of json_each."""
        return SqliteJsonPlace(Sql("tk_element.type"), Sql("tk_element.atom"), FALSE, FALSE, "")

    def has_element(self, test: Sql) -> Sql:
        """Of a list: the test is true for one of its elements."""
        return _fill("EXISTS (SELECT 1 FROM json_each({}) AS tk_element WHERE {})", self.json, test)

    def number(self, sign: str, operand: float) -> Test:
        """Int and float are compared exactly, but a stored float may be read a little wrong, and an int beyond 64 bits."""
        if abs(operand) > sys.float_info.max:
            return _UNDECIDED
        near, fits = float(operand), isinstance(operand, int) and -(1 << 63) <= operand < 1 << 63
        low, high = _around(near)
        doubt = _fill("{} BETWEEN {} AND {}", self.value, self.given(low), self.given(high))
        if fits or operand == near:
            doubt = _fill("typeof({}) = 'real' AND {}", self.value, doubt)
        return Test(_fill(f"{{}} {sign} {{}}", self.value, self.given(operand if fits else near)), doubt)

    def may_be(self, sign: str, operand: float) -> Sql:
        """One look at the value in place of three. Text, and JSON's true and false as 1 and 0, pass too."""
        if abs(operand) > sys.float_info.max:
            return TRUE
        low, high = _around(float(operand))
        limit, sign = (low, ">=") if sign in (">", ">=") else (high, "<=")
        return _fill(f"coalesce({{}} {sign} {{}}, FALSE)", self.value, self.given(limit))

    def numbers(self, operands: list[int]) -> Test:
        """Of a number: it is one of these; any float is in doubt."""
        return Test(self.one_of(operands), _fill("typeof({}) = 'real'", self.value))


def _around(near: float) -> tuple[float, float]:
    """Between these are all numbers that SQLite may take for this one."""
    margin = abs(near) * 1e-12 + 1e-300
    return near - margin, near + margin


@dataclass(frozen=True, slots=True)
class PostgresJsonPlace(JsonPlace):
    """An expression of type json. It is never followed by `#>`, which takes keys as places in lists."""

    MARK = "%s"
    KINDS: ClassVar[Mapping[str, str]] = {
        "bool": "= 'boolean'",
        "number": "= 'number'",
        "str": "= 'string'",
        "list": "= 'array'",
        "dict": "= 'object'",
    }
    TRUTH = "{} = 'true'"
    ONE_OF = "{} IN (SELECT json_array_elements_text({}::json))"
    INSIDE = "strpos({}, {}::text) > 0"

    @classmethod
    def of(cls, json: Sql) -> PostgresJsonPlace:
        """What an expression gives."""
        text = _fill("({} #>> '{{}}') COLLATE \"C\"", json)
        return cls(_fill("json_typeof({})", json), text, json)

    def key(self, key: str) -> PostgresJsonPlace:
        """Under a key."""
        return self.of(_fill("({} -> {}::text)", self.json, self.given(escape(key))))

    def index(self, index: int) -> PostgresJsonPlace:
        """An element of a list."""
        return self.of(_fill("({} -> {}::int)", self.json, self.given(index)))

    def each(self) -> PostgresJsonPlace:
        """A row of json_array_elements."""
        return self.of(Sql("tk_element.value"))

    def has_element(self, test: Sql) -> Sql:
        """Of a list: the test is true for one of its elements. Anything else has none, in whatever order it is asked."""
        elements = _fill("CASE WHEN {} THEN {} END", self.is_a("list"), self.json)
        return _fill("EXISTS (SELECT 1 FROM json_array_elements({}) AS tk_element(value) WHERE {})", elements, test)

    def once(self, test: Callable[[JsonPlace], Sql]) -> Sql:
        """From a subquery: `->` parses the whole value each time that it is asked."""
        asked = test(self.of(Sql("tk_found.json")))
        if asked in (TRUE, FALSE):
            return asked
        return _fill("(SELECT {} FROM (SELECT {} AS json OFFSET 0) AS tk_found)", asked, self.json)

    def is_text(self, operand: str, *, wanted: bool) -> Sql:
        """`values.dump` writes each str in one way only, so what is written there tells all, type included."""
        said = _fill("coalesce(({})::text = {}, FALSE)", self.json, self.given(dumps(operand)))
        return said if wanted else _fill("NOT ({})", said)

    def number(self, sign: str, operand: float) -> Test:
        """Decimals are compared. Those of floats are in the order of the floats, but beyond 2**53 they differ from them."""
        if abs(operand) >= _HUGE:
            return _UNDECIDED
        yes = _fill(f"coalesce({{}} {sign} {{}}::numeric, FALSE)", self._numeric(), self.given(repr(operand)))
        doubt = _fill(f"length({{}}) >= {_LONGEST}", self.value)
        return Test(yes, doubt if abs(operand) < _EXACT else _any([doubt, self._near(operand)]))

    def numbers(self, operands: list[int]) -> Test:
        """Of a number: it is one of these."""
        return Test(_fill("coalesce({} = ANY({}::numeric[]), FALSE)", self._numeric(), self.given(operands)))

    def _numeric(self) -> Sql:
        return _fill(f"CASE WHEN length({{}}) < {_LONGEST} THEN ({{}})::numeric END", self.value, self.value)

    def _near(self, operand: float) -> Sql:
        """It is a float if the operand is an int, or the other way round, and they may be equal."""
        middle, sign = int(operand), "~" if isinstance(operand, int) else "!~"
        margin = (abs(middle) >> 50) + 1
        low, high = self.given(repr(middle - margin)), self.given(repr(middle + margin))
        near = _fill("{} BETWEEN {}::numeric AND {}::numeric", self._numeric(), low, high)
        return _fill(f"coalesce({{}} {sign} '[.e]' AND {{}}, FALSE)", self.value, near)


# What is asked: `wanted` says in which direction


def _sql(node: FilterNode, place: JsonPlace, *, wanted: bool) -> Sql:
    """True wherever the node, asked at this place, holds (or does not, if that is wanted); maybe elsewhere too."""
    return _RULES[type(node)](node, place, wanted=wanted)


def _every(node: AllOf | AnyOf, place: JsonPlace, *, wanted: bool) -> Sql:
    joined = _all if isinstance(node, AllOf) is wanted else _any
    return joined(_sql(each, place, wanted=wanted) for each in node.nodes)


def _not(node: NotNode, place: JsonPlace, *, wanted: bool) -> Sql:
    return _sql(node.node, place, wanted=not wanted)


def _field(node: Field, place: JsonPlace, *, wanted: bool) -> Sql:
    if node.key.count(".") > _MOST_DOTS:
        return TRUE
    found = _found(place, node.key)
    if len(found.json.params) > _MOST_OF_A_PLACE:
        return TRUE
    if isinstance(node.node, Equal) and isinstance(node.node.operand, str):
        return _sql(node.node, found, wanted=wanted)
    return found.once(lambda there: _sql(node.node, there, wanted=wanted))


def _found(place: JsonPlace, key: str) -> JsonPlace:
    """Where `filters.find` looks: the longest beginning of the key that is there leads on."""
    dots = [at for at, character in enumerate(key) if character == "."]
    heads = [(place.key(key[:dot]), key[dot + 1 :]) for dot in dots]
    whole = place.key(key)
    if not heads:
        return whole
    found = _found(*heads[0])
    for head, rest in heads[1:]:
        found = head.leads_to(_found(head, rest), found)
    return whole.leads_to(whole, found)


def _elements(node: Elements, place: JsonPlace, *, wanted: bool) -> Sql:
    length = _asked(place.is_a("list"), Test(place.has_length(len(node.nodes))), wanted=wanted)
    inner = (_sql(each, place.index(at), wanted=wanted) for at, each in enumerate(node.nodes))
    return (_all if wanted else _any)([length, *inner])


def _is_dict(_: IsDict, place: JsonPlace, *, wanted: bool) -> Sql:
    return _asked(place.is_a("dict"), Test(TRUE), wanted=wanted)


def _exists(_: Exists, place: JsonPlace, *, wanted: bool) -> Sql:
    return _asked(place.is_there(), Test(TRUE), wanted=wanted)


def _equal(node: Equal, place: JsonPlace, *, wanted: bool) -> Sql:
    return _EQUALS[type(node.operand)](node.operand, place, wanted=wanted)


def _is_none(_: None, place: JsonPlace, *, wanted: bool) -> Sql:
    return _asked(place.is_none(), Test(TRUE), wanted=wanted)


def _is_bool(operand: bool, place: JsonPlace, *, wanted: bool) -> Sql:  # noqa: FBT001 - the value itself
    test = place.is_true() if operand else _fill("NOT ({})", place.is_true())
    return _asked(place.is_a("bool"), Test(test), wanted=wanted)


def _is_text(operand: str, place: JsonPlace, *, wanted: bool) -> Sql:
    return place.is_text(escape(operand), wanted=wanted)


def _is_number(operand: float, place: JsonPlace, *, wanted: bool) -> Sql:
    return _asked(place.is_a("number"), place.number("=", operand), wanted=wanted)


def _is_list(operand: list[Any], place: JsonPlace, *, wanted: bool) -> Sql:
    if all(map(_is_scalar, operand)):
        return _elements(Elements(tuple(map(Equal, operand))), place, wanted=wanted)
    return _asked(place.is_a("list"), Test(place.has_length(len(operand))), wanted=True) if wanted else TRUE


def _is_that_dict(operand: dict[str, Any], place: JsonPlace, *, wanted: bool) -> Sql:
    """That it has no other keys is not asked."""
    if not wanted:
        return TRUE
    scalars = ((key, inner) for key, inner in operand.items() if _is_scalar(inner))
    inside = (_equal(Equal(inner), place.key(key), wanted=True) for key, inner in scalars)
    return _all([_is_dict(IsDict(), place, wanted=True), *inside])


def _is_scalar(operand: Any) -> bool:
    return not isinstance(operand, (list, dict))


def _among(node: IsIn, place: JsonPlace, *, wanted: bool) -> Sql:
    """All str in one parameter, and all ints that any number can be compared with; the others one by one."""
    ints = [each for each in node.others if type(each) is int and abs(each) < _EXACT]
    others = [each for each in node.others if type(each) is not int or abs(each) >= _EXACT]
    asked = [_equal(Equal(each), place, wanted=wanted) for each in others]
    if node.texts:
        texts = place.one_of(map(escape, sorted(node.texts)))
        asked.append(_asked(place.is_a("str"), Test(texts), wanted=wanted))
    if ints:
        asked.append(_asked(place.is_a("number"), place.numbers(ints), wanted=wanted))
    return (_any if wanted else _all)(asked)


def _compare(node: Compare, place: JsonPlace, *, wanted: bool) -> Sql:
    sign, operand = _SIGNS[node.name], node.operand
    if not isinstance(operand, str):
        surely = _asked(place.is_a("number"), place.number(sign, operand), wanted=wanted)
        return _all([place.may_be(sign, operand), surely]) if wanted else surely
    if escape(operand) != operand:
        return _asked(place.is_a("str"), _UNDECIDED, wanted=wanted)
    return _asked(place.is_a("str"), Test(place.text(sign, operand), place.has(_MARK)), wanted=wanted)


def _contains(node: Contains, place: JsonPlace, *, wanted: bool) -> Sql:
    asked = [_has_element(node.operand, place, wanted=wanted)]
    if isinstance(node.operand, str):
        test = Test(place.has(escape(node.operand)), place.has(_MARK))
        asked.append(_asked(place.is_a("str"), test, wanted=wanted))
    return (_any if wanted else _all)(asked)


def _has_element(operand: Any, place: JsonPlace, *, wanted: bool) -> Sql:
    if not _is_scalar(operand):
        return _asked(place.is_a("list"), _UNDECIDED, wanted=wanted)
    equal = _equal(Equal(operand), place.each(), wanted=wanted)
    surely = equal if wanted else _fill("NOT ({})", equal)
    return _asked(place.is_a("list"), Test(place.has_element(surely)), wanted=wanted)


_RULES: Mapping[type, Callable[..., Sql]] = {
    AllOf: _every,
    AnyOf: _every,
    NotNode: _not,
    Field: _field,
    Elements: _elements,
    IsDict: _is_dict,
    Exists: _exists,
    Equal: _equal,
    IsIn: _among,
    Compare: _compare,
    Contains: _contains,
}
_EQUALS: Mapping[type, Callable[..., Sql]] = {
    type(None): _is_none,
    bool: _is_bool,
    str: _is_text,
    int: _is_number,
    float: _is_number,
    list: _is_list,
    dict: _is_that_dict,
}
