"""Filters on memories in PostgreSQL: JSON operators on a column of type json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json import dumps
from typing import Any, ClassVar

from threadkeep.backends.sql.filters import Condition, JsonColumn, condition_for
from threadkeep.backends.sql.json_sql import (
    FALSE,
    MAX_EXACT,
    TRUE,
    UNDECIDED,
    Check,
    JsonPath,
    Sql,
    any_of,
    fill,
    negate,
)
from threadkeep.engine.memories.filters import Compare, Equal, FilterNode
from threadkeep.engine.memories.json_text import escape

_MAX_NUMBER = 10**390
_MAX_DIGITS = 400
"""Characters of a number that is cast to numeric: no float has as many, and numeric always holds as many."""


def condition(node: FilterNode, column: str) -> Condition:
    """Return the condition for a filter, with `%s`.

    The database must be in UTF-8: in another encoding `->` fails on characters that the encoding lacks. To look for a
    text, `json_send` copies the value once, a cast to text twice. `json_text.dump` writes ASCII, which is the same
    bytes in every encoding that a client can have.
    """
    contains = f"position(%s IN json_send({column})) > 0"
    return condition_for(node, JsonColumn(column, PostgresJsonPath.of, contains, str.encode))


@dataclass(frozen=True, slots=True)
class PostgresJsonPath(JsonPath):
    """An expression of type json. It never uses `#>`, which takes a key such as "0" for a list index."""

    PLACEHOLDER = "%s"
    TYPES: ClassVar[Mapping[str, str]] = {
        "bool": "= 'boolean'",
        "number": "= 'number'",
        "str": "= 'string'",
        "list": "= 'array'",
        "dict": "= 'object'",
    }
    IS_TRUE = "{} = 'true'"
    TEXT_IN = "{} IN (SELECT json_array_elements_text({}::json))"
    CONTAINS = "strpos({}, {}::text) > 0"

    @classmethod
    def of(cls, json: Sql) -> PostgresJsonPath:
        """Return the path to the value of an expression."""
        text = fill("({} #>> '{{}}') COLLATE \"C\"", json)
        return cls(fill("json_typeof({})", json), text, json)

    def key(self, key: str) -> PostgresJsonPath:
        """Return the value of a key."""
        return self.of(fill("({} -> {}::text)", self.json, self.parameter(escape(key))))

    def index(self, index: int) -> PostgresJsonPath:
        """Return an element of a list."""
        return self.of(fill("({} -> {}::int)", self.json, self.parameter(index)))

    def element(self) -> PostgresJsonPath:
        """Return the row of json_array_elements that `has_element` tests."""
        return self.of(Sql("tk_element.value"))

    def has_element(self, test: Sql) -> Sql:
        """For a list: the test is true for one of its elements.

        Other types have no elements; the CASE makes sure of it, since the planner may evaluate this before the guard.
        """
        elements = fill("CASE WHEN {} THEN {} END", self.has_type("list"), self.json)
        return fill("EXISTS (SELECT 1 FROM json_array_elements({}) AS tk_element(value) WHERE {})", elements, test)

    def evaluate_once(self, test: Callable[[JsonPath], Sql]) -> Sql:
        """Put the value into a subquery: `->` parses the whole JSON each time it is evaluated."""
        tested = test(self.of(Sql("tk_found.json")))
        if tested in (TRUE, FALSE):
            return tested
        return fill("(SELECT {} FROM (SELECT {} AS json OFFSET 0) AS tk_found)", tested, self.json)

    def equals_text(self, node: Equal | Compare, *, wanted: bool) -> Sql:
        """Compare the JSON text, type included: `json_text.dump` writes each string in one way only."""
        equal = fill("coalesce(({})::text = {}, FALSE)", self.json, self.operand(node, _json_string))
        return equal if wanted else negate(equal)

    def compare_number(self, operator: str, node: Equal | Compare) -> Check:
        """Compare decimals. They are in the order of the floats, but beyond 2**53 they differ from them."""
        operand: Any = node.operand
        if abs(operand) >= _MAX_NUMBER:
            return UNDECIDED
        text = self.operand(node, repr)
        holds = fill(f"coalesce({{}} {operator} {{}}::numeric, FALSE)", self._numeric(), text)
        doubt = fill(f"length({{}}) >= {_MAX_DIGITS}", self._digits())
        return Check(holds, doubt if abs(operand) < MAX_EXACT else any_of([doubt, self._may_equal(operand)]))

    def number_in(self, operands: list[int]) -> Check:
        """For a number: it is one of these."""
        return Check(fill("coalesce({} = ANY({}::numeric[]), FALSE)", self._numeric(), self.parameter(operands)))

    def _numeric(self) -> Sql:
        digits = self._digits()
        return fill(f"CASE WHEN length({{}}) < {_MAX_DIGITS} THEN ({{}})::numeric END", digits, digits)

    def _digits(self) -> Sql:
        """Return the text of a number: its JSON, which need not be parsed once more."""
        return fill("({})::text", self.json)

    def _may_equal(self, operand: float) -> Sql:
        """One of value and operand is an int and the other a float, and they may be equal."""
        middle, match = int(operand), "~" if isinstance(operand, int) else "!~"
        margin = (abs(middle) >> 50) + 1
        low, high = self.parameter(repr(middle - margin)), self.parameter(repr(middle + margin))
        near = fill("{} BETWEEN {}::numeric AND {}::numeric", self._numeric(), low, high)
        return fill(f"coalesce({{}} {match} '[.e]' AND {{}}, FALSE)", self._digits(), near)


def _json_string(operand: str) -> str:
    """Return a str as it is written in a stored value."""
    return dumps(escape(operand))
