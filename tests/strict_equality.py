"""Strict equality, for values that went through a serializer."""

from __future__ import annotations

from collections import deque
from decimal import Decimal
from typing import Any

import numpy as np
from pydantic import BaseModel


def same(found: Any, expected: Any) -> bool:
    """Return whether two values are equal in type, order and every part: 1 is not True, 0.0 is not -0.0, NaN is NaN."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, np.ndarray):
        alike = (found.dtype, found.shape, found.flags.f_contiguous) == (
            expected.dtype,
            expected.shape,
            expected.flags.f_contiguous,
        )
        return alike and found.tobytes() == expected.tobytes()
    if isinstance(expected, dict):
        return len(found) == len(expected) and all(
            same(a, b) for a, b in zip(found.items(), expected.items(), strict=True)
        )
    if isinstance(expected, list | tuple | deque):
        return len(found) == len(expected) and all(same(a, b) for a, b in zip(found, expected, strict=True))
    if isinstance(expected, float | Decimal):
        return repr(found) == repr(expected)
    if isinstance(expected, BaseModel):
        return same(found.__dict__, expected.__dict__) and same(found.__pydantic_extra__, expected.__pydantic_extra__)
    return bool(found == expected)
