"""Recorded budgets: what each verb may cost on each backend, and how a cost is compared with its budget.

`tests/budgets.toml` holds the budgets; `make budgets` records them anew. A cost is the median of several calls. On
memory, SQLite and PostgreSQL every count is the same in every run; on Valkey, calls differ a little.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import threadkeep

FILE = Path(__file__).with_name("budgets.toml")
BACKENDS = ("memory", "sqlite", "postgres", "valkey")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TIMEOUT = 300

SLACK = 0.02
"""The share by which a cost may exceed its budget: bytes differ a little with random numbers and library versions."""
SLACK_ON_ANOTHER_PYTHON = 0.06
"""The same if the budgets were recorded with another version of Python, whose standard library makes other calls."""
FREE = {"kb": 0.05, "python_calls": 3, "c_calls": 6}
"""What a cost may exceed its budget by, besides: a reply of a server that comes a moment later costs some calls."""
FREE_ON_VALKEY = {"kb": 0.05, "python_calls": 15, "c_calls": 15}
"""The same on Valkey, where redis-py makes more calls if a reply is not there yet."""
LEAST = 0.8
"""If a cost is below this share of its budget, the budget is recorded anew, so that it stays honest."""

Cost = Mapping[str, float]
"""What one call of a verb costs, by the names of tests/call_counts.py and tests/storage_counts.py."""
Costs = Mapping[str, Cost]
HEAD = """\
# What each verb may cost: `make budgets` records this file, tests/test_budgets.py compares with it.
# tests/budget_verbs.py says what the verbs do, tests/call_counts.py and tests/storage_counts.py what is counted.
"""


@cache
def measure(backend: str) -> Costs:
    """Return the cost of every verb on a backend, measured in a process of its own."""
    folders = (str(Path(__file__).parent), str(Path(threadkeep.__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-m", "budget_verbs", backend],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        verb: {name: _rounded(backend, name, [each[name] for each in calls]) for name in calls[0]}
        for verb, calls in json.loads(done.stdout).items()
    }


def _rounded(backend: str, name: str, values: Sequence[float]) -> float:
    """Return the median. Of bytes that SQLite writes, the mean: now and then a page is full, and two more are written."""
    if name == "kb":
        return round(statistics.fmean(values) if backend == "sqlite" else statistics.median_low(values), 2)
    return round(statistics.median_low(values))


def measure_all(backends: Iterable[str]) -> dict[str, Costs]:
    chosen = list(backends)
    with ThreadPoolExecutor() as pool:
        return dict(zip(chosen, pool.map(measure, chosen), strict=True))


def load() -> tuple[str, dict[str, Costs]]:
    """Return the version of Python that the budgets were recorded with, and the budgets of each backend."""
    content = tomllib.loads(FILE.read_text("utf-8"))
    return content.pop("python"), content


def save(budgets: Mapping[str, Costs]) -> None:
    lines = [HEAD, f'python = "{PYTHON}"\n']
    for backend in BACKENDS:
        lines.append(f"\n[{backend}]\n")
        for verb, cost in sorted(budgets[backend].items()):
            cells = ", ".join(f"{name} = {value}" for name, value in cost.items() if value)
            lines.append(f'"{verb}" = {{ {cells} }}\n')
    FILE.write_text("".join(lines), "utf-8")


def excesses(backend: str, costs: Costs, budgets: Costs, recorded_with: str) -> Iterator[str]:
    """Yield what is above its budget."""
    slack = SLACK if recorded_with == PYTHON else SLACK_ON_ANOTHER_PYTHON
    free = FREE_ON_VALKEY if backend == "valkey" else FREE
    for verb, name, cost, budget in _pairs(costs, budgets, recorded_with):
        if cost > budget * (1 + slack) + free.get(name, 0):
            yield f"{verb}: {name} {cost:g}, budget {budget:g}"


def savings(backend: str, costs: Costs, budgets: Costs, recorded_with: str) -> Iterator[str]:
    """Yield what is far below its budget."""
    free = FREE_ON_VALKEY if backend == "valkey" else FREE
    for verb, name, cost, budget in _pairs(costs, budgets, recorded_with):
        if cost < budget * LEAST - free.get(name, 0):
            yield f"{verb}: {name} {cost:g}, budget {budget:g}"


def lasting(find: Callable[[Costs], Iterable[str]], backend: str) -> list[str]:
    """Return what is found in two measurements. The second is made only if the first finds something.

    On a busy machine, a request may go out on another connection than usual, which prepares its statements first.
    """
    found = list(find(measure(backend)))
    return found and [each for each in find(_measure_again(backend)) if _subject(each) in set(map(_subject, found))]


@cache
def _measure_again(backend: str) -> Costs:
    return measure.__wrapped__(backend)


def _subject(finding: str) -> tuple[str, ...]:
    """Return verb and name of a finding, without its figures."""
    return tuple(word for word in finding.split() if not word[0].isdigit())


def _pairs(costs: Costs, budgets: Costs, recorded_with: str) -> Iterator[tuple[str, str, float, float]]:
    """Yield verb, name, cost and budget. What the file does not name is 0.

    Comprehensions are compared on the Python that recorded them only: from 3.12 on, there are none to count.
    """
    for verb, cost in costs.items():
        for name, value in cost.items():
            if name != "comprehensions" or recorded_with == PYTHON:
                yield verb, name, value, budgets.get(verb, {}).get(name, 0)
