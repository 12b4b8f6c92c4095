"""Filters on memories in SQLite: JSON functions on a column of type TEXT."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from json import dumps
from typing import Any, ClassVar

from threadkeep.backends.sql.filters import Condition, JsonColumn, condition_for
from threadkeep.backends.sql.json_sql import FALSE, TRUE, UNDECIDED, Check, JsonPath, Sql, fill
from threadkeep.engine.memories.filters import Compare, Equal, FilterNode
from threadkeep.engine.memories.json_text import escape


def condition(node: FilterNode, column: str) -> Condition:
    """Return the condition for a filter, with `?`. The column needs its table's name: json_each has a `value` too."""
    return condition_for(node, JsonColumn(column, SqliteJsonPath.of, f"instr({column}, ?) > 0"))


@dataclass(frozen=True, slots=True)
class SqliteJsonPath(JsonPath):
    """A path such as `$.a[0]` into a JSON text."""

    base: Sql
    path: str

    PLACEHOLDER = "?"
    TYPES: ClassVar[Mapping[str, str]] = {
        "bool": "IN ('true', 'false')",
        "number": "IN ('integer', 'real')",
        "str": "= 'text'",
        "list": "= 'array'",
        "dict": "= 'object'",
    }
    IS_TRUE = "{} = 1"
    TEXT_IN = "{} IN (SELECT value FROM json_each({}))"
    CONTAINS = "instr({}, {}) > 0"

    @classmethod
    def of(cls, json: Sql) -> SqliteJsonPath:
        """Return the path to the whole of a JSON text."""
        return cls._below(json, "$")

    @classmethod
    def _below(cls, base: Sql, path: str) -> SqliteJsonPath:
        parameter = Sql("?", (path,))
        type, scalar = fill("json_type({}, {})", base, parameter), fill("json_extract({}, {})", base, parameter)
        return cls(type, scalar, fill("({} -> {})", base, parameter), base, path)

    def key(self, key: str) -> SqliteJsonPath:
        """Return the value of a key. Quotes inside it are escaped: older versions take them for the end of the key."""
        quoted = dumps(escape(key)).replace(r"\\", r"\u005c").replace(r"\"", r"\u0022")
        return self._below(self.base, f"{self.path}.{quoted}")

    def index(self, index: int) -> SqliteJsonPath:
        """Return an element of a list."""
        return self._below(self.base, f"{self.path}[{index}]")

    def element(self) -> SqliteJsonPath:
        """Return the row of json_each that `has_element` tests."""
        return SqliteJsonPath(Sql("tk_element.type"), Sql("tk_element.atom"), FALSE, FALSE, "")

    def has_element(self, test: Sql) -> Sql:
        """For a list: the test is true for one of its elements."""
        return fill("EXISTS (SELECT 1 FROM json_each({}) AS tk_element WHERE {})", self.json, test)

    def compare_number(self, operator: str, node: Equal | Compare) -> Check:
        """Compare int and float exactly. SQLite may read the last digit of a float wrong, and ints beyond 64 bits."""
        operand: Any = node.operand
        if abs(operand) > sys.float_info.max:
            return UNDECIDED
        doubt = fill("{} BETWEEN {} AND {}", self.scalar, self.operand(node, _low), self.operand(node, _high))
        if _fits(operand) or operand == float(operand):
            doubt = fill("typeof({}) = 'real' AND {}", self.scalar, doubt)
        return Check(fill(f"{{}} {operator} {{}}", self.scalar, self.operand(node, _number)), doubt)

    def may_compare(self, operator: str, node: Equal | Compare) -> Sql:
        """Extract the value once, not three times. This is also true for text, and for true and false as 1 and 0."""
        operand: Any = node.operand
        if abs(operand) > sys.float_info.max:
            return TRUE
        limit, operator = (_low, ">=") if operator in (">", ">=") else (_high, "<=")
        return fill(f"coalesce({{}} {operator} {{}}, FALSE)", self.scalar, self.operand(node, limit))

    def number_in(self, operands: list[int]) -> Check:
        """For a number: it is one of these. Any float is in doubt."""
        return Check(self.text_in(operands), fill("typeof({}) = 'real'", self.scalar))


def _number(operand: float) -> float:
    """Return a number as it is bound: an int of 64 bits, or a float."""
    return operand if _fits(operand) else float(operand)


def _fits(operand: float) -> bool:
    return isinstance(operand, int) and -(1 << 63) <= operand < 1 << 63


def _low(operand: float) -> float:
    """Return the least of the numbers that SQLite may confuse with this one."""
    return float(operand) - (abs(float(operand)) * 1e-12 + 1e-300)


def _high(operand: float) -> float:
    """Return the greatest of the numbers that SQLite may confuse with this one."""
    return float(operand) + (abs(float(operand)) * 1e-12 + 1e-300)
