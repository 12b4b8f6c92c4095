"""Conditions on JSON in SQL: pieces of SQL with parameters, and `JsonPath`, which each dialect implements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from json import dumps
from typing import Any, ClassVar, NamedTuple

from threadkeep.engine.memories.filters import Compare, Equal
from threadkeep.engine.memories.json_text import escape

MAX_EXACT = 1 << 53
"""Below this, an int and a float compare exactly."""
_MAX_PARAMETERS = 500
"""Parameters of a condition. They bound the depth of its expression, which SQLite limits to 1,000."""


class Operand(NamedTuple):
    """A parameter that is computed from the operand of a node of a filter: of this node, or of another in its place."""

    node: Any
    compute: Callable[[Any], Any]


class Sql(NamedTuple):
    """A piece of SQL, and its parameters in the order of their placeholders: values, or `Operand`."""

    text: str
    params: tuple[Any, ...] = ()


TRUE, FALSE = Sql("TRUE"), Sql("FALSE")


class Check(NamedTuple):
    """A test of a value of the right type. Where `doubt` is true, the result may be wrong."""

    holds: Sql
    doubt: Sql = FALSE


UNDECIDED = Check(TRUE, TRUE)


def fill(template: str, *pieces: Sql) -> Sql:
    """Return the template with the pieces in place of its `{}`, in this order."""
    params: tuple[Any, ...] = ()
    for each in pieces:
        params += each.params
    return Sql(template.format(*[each.text for each in pieces]), params)


def negate(piece: Sql) -> Sql:
    """Return NOT of a piece."""
    return fill("NOT ({})", piece)


def all_of(pieces: Iterable[Sql]) -> Sql:
    """Join pieces by AND. A piece that would exceed the number of parameters is left out."""
    kept, room = [], _MAX_PARAMETERS
    for each in pieces:
        if each == FALSE:
            return FALSE
        if each != TRUE and len(each.params) <= room:
            kept.append(each)
            room -= len(each.params)
    return _join(" AND ", kept) if kept else TRUE


def any_of(pieces: Iterable[Sql]) -> Sql:
    """Join pieces by OR."""
    kept = [each for each in pieces if each != FALSE]
    if TRUE in kept:
        return TRUE
    return _join(" OR ", kept) if kept else FALSE


def _join(operator: str, pieces: list[Sql]) -> Sql:
    return pieces[0] if len(pieces) == 1 else fill(f"({operator.join(['{}'] * len(pieces))})", *pieces)


def guarded(guard: Sql, check: Check, *, wanted: bool) -> Sql:
    """Return whether a value that the guard accepts passes the check, or fails it if that is wanted.

    A value that the guard does not accept fails. A doubtful result is true in both directions.
    """
    result = check.holds if wanted else negate(check.holds)
    result = result if check.doubt == FALSE else fill("(({}) OR ({}))", result, check.doubt)
    return fill("CASE WHEN {} THEN {} ELSE {} END", guard, result, FALSE if wanted else TRUE)


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A value inside the JSON of a row, as SQL: its type, its text or number, and its JSON. NULL if it is missing.

    The methods that test the type are guards, which may be NULL. The others apply only to a value of their type.
    """

    type: Sql
    scalar: Sql
    json: Sql

    PLACEHOLDER: ClassVar[str]
    TYPES: ClassVar[Mapping[str, str]]
    IS_TRUE: ClassVar[str]
    TEXT_IN: ClassVar[str]
    CONTAINS: ClassVar[str]

    @classmethod
    def of(cls, json: Sql) -> JsonPath:
        """Return the path to the whole of some JSON."""
        raise NotImplementedError

    def key(self, key: str) -> JsonPath:
        """Return the value of exactly this key of a dict."""
        raise NotImplementedError

    def index(self, index: int) -> JsonPath:
        """Return an element of a list."""
        raise NotImplementedError

    def element(self) -> JsonPath:
        """Return the element that `has_element` tests. It has no paths below it."""
        raise NotImplementedError

    def has_element(self, test: Sql) -> Sql:
        """For a list: the test is true for one of its elements."""
        raise NotImplementedError

    def compare_number(self, operator: str, node: Equal | Compare) -> Check:
        """For a number: compare it with the operand of a node."""
        raise NotImplementedError

    def number_in(self, operands: list[int]) -> Check:
        """For a number: it is one of these ints, which are below MAX_EXACT."""
        raise NotImplementedError

    def may_compare(self, operator: str, node: Equal | Compare) -> Sql:  # noqa: ARG002 - the signature of the override
        """Return a test that is true wherever `compare_number` is, and cheaper."""
        return TRUE

    def evaluate_once(self, test: Callable[[JsonPath], Sql]) -> Sql:
        """Return a test that uses this value several times."""
        return test(self)

    def if_exists(self, then: JsonPath, otherwise: JsonPath) -> JsonPath:
        """Return `then` if this value exists, or else `otherwise`."""
        return self.of(fill("CASE WHEN {} THEN {} ELSE {} END", self.exists(), then.json, otherwise.json))

    def exists(self) -> Sql:
        """Guard: the value exists."""
        return fill("{} IS NOT NULL", self.type)

    def is_null(self) -> Sql:
        """Guard: the value is null or missing."""
        return fill("coalesce({}, 'null') = 'null'", self.type)

    def has_type(self, name: str) -> Sql:
        """Guard: the value has this type, a key of TYPES."""
        return fill(f"{{}} {self.TYPES[name]}", self.type)

    def is_true(self) -> Sql:
        """For a bool: it is true."""
        return fill(self.IS_TRUE, self.scalar)

    def equals_text(self, node: Equal | Compare, *, wanted: bool) -> Sql:
        """Return whether the value is the string of a node, or is not if that is wanted."""
        return guarded(self.has_type("str"), Check(self.compare_text("=", node)), wanted=wanted)

    def compare_text(self, operator: str, node: Equal | Compare) -> Sql:
        """For a string: compare it with the string of a node, both in their stored form."""
        return fill(f"{{}} {operator} {{}}", self.scalar, self.operand(node, escape))

    def text_in(self, operands: Iterable[str | int]) -> Sql:
        """For a string: it is one of these."""
        return fill(self.TEXT_IN, self.scalar, self.parameter(dumps(list(operands))))

    def contains_text(self, operand: str) -> Sql:
        """For a string: the operand is in it."""
        return fill(self.CONTAINS, self.scalar, self.parameter(operand))

    def has_length(self, length: int) -> Sql:
        """For a list: it has this length."""
        return fill("json_array_length({}) = {}", self.json, self.parameter(length))

    def parameter(self, operand: Any) -> Sql:
        """Return a placeholder for an operand."""
        return Sql(self.PLACEHOLDER, (operand,))

    def operand(self, node: Any, compute: Callable[[Any], Any]) -> Sql:
        """Return a placeholder for what is computed from the operand of a node."""
        return Sql(self.PLACEHOLDER, (Operand(node, compute),))
