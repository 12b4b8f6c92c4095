"""Every group of benchmarks runs, at a tiny size, and finds both contenders in the same state."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
run: Any = importlib.import_module("run")
benchmark: Any = importlib.import_module("benchmark")
storages: Any = importlib.import_module("storages")
measuring: Any = importlib.import_module("measuring")
results: Any = importlib.import_module("results")

TINY = benchmark.Scale(
    repetitions=2, turns=4, history=10, growth=32, checkpoints=600, crowd=5, notes=400, others=100
)  # fmt: skip


@contextmanager
def any_folder() -> Iterator[None]:
    """Let databases be in memory: nothing is timed here."""
    refuse = storages._refuse_memory
    storages._refuse_memory = lambda folder: None
    try:
        yield
    finally:
        storages._refuse_memory = refuse


@pytest.mark.parametrize("group", run.GROUPS)
@pytest.mark.parametrize("storage", ["sqlite", "postgres"])
def test_a_group_runs_and_its_rows_can_be_shown(storage: str, group: str) -> None:
    rows = measuring.Rows()
    with any_folder(), run.STORAGES[storage].open() as opened:
        run.GROUPS[group](benchmark.Benchmark(opened, TINY, rows, lambda what: None))
    found = list(rows)
    assert found
    for row in found:
        assert all(figure >= 0 for figures in row.figures for figure in figures.values()), row
        assert len(results.cells(storage, row)) == len(results.headings(storage))


def test_valkey_is_compared_with_postgres() -> None:
    rows = measuring.Rows()
    with any_folder(), run.STORAGES["valkey"].open() as opened:
        run.STORAGES["valkey"].groups["valkey"](benchmark.Benchmark(opened, TINY, rows, lambda what: None))
    assert [row.names for row in rows] == [["on PostgreSQL", "on Valkey"]]


def test_every_goal_is_the_goal_of_a_row() -> None:
    keys: set[str] = set()
    with any_folder(), run.STORAGES["sqlite"].open() as opened:
        for group in run.GROUPS.values():
            rows = measuring.Rows()
            group(benchmark.Benchmark(opened, TINY._replace(repetitions=1), rows, lambda what: None))
            keys |= {row.key for row in rows}
    goals: Any = importlib.import_module("goals")
    assert goals.GOALS.keys() <= keys
