"""JSON values that must come back exactly, and such that may be refused; and how two values are compared exactly."""

from __future__ import annotations

import math
from typing import Any


def nested(depth: int) -> Any:
    """A dict in a list in a dict, and so on."""
    held: Any = "bottom"
    for _ in range(depth):
        held = {"down": [held]}
    return held


def exact(given: Any) -> Any:
    """Something that tells 1 from 1.0 and True, 0.0 from -0.0, and is equal for NaN; the order of entries is free."""
    if isinstance(given, dict):
        return {exact(key): exact(held) for key, held in given.items()}
    return [exact(held) for held in given] if isinstance(given, list) else (type(given).__name__, repr(given))


KEPT: dict[str, Any] = {
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
    "large": "0123456789abcdef" * 65_536,
    "many": {f"field {n}": n for n in range(2000)},
    "odd names": {"": 1, " ": 2, "a.b": 3, "$": 4, "$eq": 5, "a'b": 6, "__proto__": 7, "key": 8, "value": 9},
}
"""What comes back exactly."""

UNSURE: dict[str, Any] = {
    "NUL": ["a\0b", "\0"],
    "NUL in a name": {"a\0b": 1},
    "lone surrogate": ["a\ud800b", "\udfff"],
    "infinity": [math.inf, -math.inf],
    "NaN": [math.nan],
}
"""What comes back exactly or is refused: JSON or a database dislikes it."""
