"""Fixtures of the tests of faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_log import FaultLog
from fault_matrix import matrix  # noqa: F401 - a fixture


@pytest.fixture
def log(tmp_path: Path) -> FaultLog:
    return FaultLog(tmp_path / "acknowledged")
