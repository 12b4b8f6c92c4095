"""What a test adds to the matrix of `make prove`, and how large its rounds are.

`make test` runs the same tests with few rounds, `make prove` with many.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

import pytest
from fault_log import Findings

PROVES = os.environ.get("THREADKEEP_PROVE") == "1"


T = TypeVar("T")


def size(short: T, full: T) -> T:
    """Return the size of something: that for `make test`, or that for `make prove`."""
    return full if PROVES else short


class Matrix:
    """Collects what happened in one test: one line of the matrix."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node

    def add(self, rounds: int, findings: Findings) -> None:
        """Add the line, and fail if something was lost, doubled or damaged."""
        counts: dict[str, Any] = {
            name: len(part) for name, part in findings._asdict().items() if name != "acknowledged"
        }
        self._node.user_properties.append(
            ("fault", {"rounds": rounds, "acknowledged": findings.acknowledged, **counts})
        )
        findings.check()


@pytest.fixture
def matrix(request: pytest.FixtureRequest) -> Matrix:
    return Matrix(request.node)
