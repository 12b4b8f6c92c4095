"""What a test adds to the matrix of `make prove`, and how large its rounds are.

`make test` runs the same tests with few rounds, `make prove` with many.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fault_log import FaultLog, Findings

PROVES = os.environ.get("THREADKEEP_PROVE") == "1"


T = TypeVar("T")


def size(short: T, full: T) -> T:
    """Return the size of something: that for `make test`, or that for `make prove`."""
    return full if PROVES else short


class Matrix:
    """Collects what happened in one test: a part of a line of the matrix."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._found: dict[str, Any] = {
            "fault": self._fault(),
            "backend": node.callspec.params["backend"].partition(",")[0],
        }
        node.user_properties.append(("fault", self._found))

    def _fault(self) -> str:
        marker = self._node.get_closest_marker("fault")
        assert marker is not None, "a test of the matrix needs the marker `fault`"
        name: str = marker.args[0]
        return name

    def add(self, rounds: int, findings: Findings) -> None:
        """Say what happened, and fail if something was lost, doubled or damaged."""
        counts = {name: part if name == "acknowledged" else len(part) for name, part in findings._asdict().items()}
        self._found |= {"rounds": rounds, **counts}
        findings.check()


@pytest.fixture
def matrix(request: pytest.FixtureRequest) -> Matrix:
    return Matrix(request.node)


@pytest.fixture
def log(tmp_path: Path) -> FaultLog:
    """A new log of what writers tried and what was acknowledged to them."""
    return FaultLog(tmp_path / "acknowledged")
