"""JSON values for tests: those that must come back exactly, those that may be refused, and an exact comparison."""

from __future__ import annotations

import math
from typing import Any


def nested(depth: int) -> Any:
    """Return a dict in a list in a dict, and so on."""
    value: Any = "bottom"
    for _ in range(depth):
        value = {"down": [value]}
    return value


def exact(value: Any) -> Any:
    """Return a form that compares exactly: 1, 1.0 and True differ, 0.0 and -0.0 differ, NaN equals NaN.

    The order of dict entries does not matter.
    """
    if isinstance(value, dict):
        return {exact(key): exact(entry) for key, entry in value.items()}
    return [exact(element) for element in value] if isinstance(value, list) else (type(value).__name__, repr(value))


EXACT: dict[str, Any] = {
    "texts": ["", " ", "a\nb\t\r", "quote ' and \" and \\", "%_*", "\\u0041", "null"],
    "unicode": ["\u00e9", "e\u0301", "\u4e2d\u6587", "\u05d0", "\u202e", "\ufeff", "\uffff", "\x7f", "\x1b"],
    "emoji": ["\U0001f99c", "\U0001f469\u200d\U0001f4bb", {"\U0001f99c": "\U0001f99c"}],
    "numbers": [0, -1, 1.5, 1e300, 5e-324, 0.1, 1e16, 2**31, 2**53 + 1, 2**63 - 1],
    "ints and floats": [1, 1.0, 100.0, 10**15],
    "minus zero": [0.0, -0.0],
    "ints of 64 bits and more": [2**63, 2**64 + 1, -(2**70)],
    "ints of a hundred digits": [10**99 + 7, -(10**99) - 7],
    "constants": [None, True, False],
    "empty": [{}, [], "", [[]], {"": ""}, [{}]],
    "deep": nested(40),
    "200 levels": nested(100),
    "large": "0123456789abcdef" * 65_536,
    "many": {f"field {n}": n for n in range(2000)},
    "odd names": {"": 1, " ": 2, "a.b": 3, "$": 4, "$eq": 5, "a'b": 6, "__proto__": 7, "key": 8, "value": 9},
}
"""Values that must come back exactly."""

EXACT_OR_REFUSED: dict[str, Any] = {
    "NUL": ["a\0b", "\0"],
    "NUL in a name": {"a\0b": 1},
    "lone surrogate": ["a\ud800b", "\udfff"],
    "infinity": [math.inf, -math.inf],
    "NaN": [math.nan],
}
"""Values that may come back exactly or be refused: JSON or some database does not allow them."""
