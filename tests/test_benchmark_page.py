"""The page docs/benchmarks.md shows what bench/results.json says: tables, plots and losses."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))
results: Any = importlib.import_module("results")
measuring: Any = importlib.import_module("measuring")
charts: Any = importlib.import_module("charts")

MEASURED = {
    "date": "2026-11-18", "run": "full", "repetitions": 3, "machine": "2 cores, 24 GB of memory, Linux", "load": 0.5,
    "python": "3.11.7", "versions": {"threadkeep": "0.1.0"},
}  # fmt: skip


def row(key: str, *pairs: tuple[float, float], **more: Any) -> dict[str, Any]:
    figures = [{"SqliteSaver": theirs, "threadkeep": ours} for theirs, ours in pairs]
    return {
        "key": key,
        "what": key,
        "unit": "ms",
        "figures": figures,
        "cpu": [],
        "compared": True,
        "points": {},
        **more,
    }


WIN = row("get", (12.0, 2.0), (10.0, 2.0), (30.0, 3.0))
LOSS = row("put", (1.0, 2.0), (1.0, 4.0), (1.0, 2.0))
GROWTH = [
    row("growth, 1", (2.0, 1.0), compared=False, points={
        "SqliteSaver": [(100, 1.0, 1e6), (200, 4.0, 4e6)], "threadkeep": [(100, 1.0, 1e5), (400, 4.0, 4e5)],
    }),
    row("growth, 2", (2.0, 1.0), compared=False),
]  # fmt: skip
RECORDED = {"sqlite": {"conversation": {"measured": MEASURED, "rows": [WIN, LOSS, *GROWTH]}}}


@pytest.mark.parametrize("path", results.SHORT_TABLES, ids=lambda path: path.name)
def test_the_tables_of_other_pages_are_what_the_recorded_results_say(path: Path) -> None:
    assert path.read_text("utf-8") == results.short_tables(path, results.load()), "run: python bench/results.py"


def test_the_page_and_its_plots_are_what_the_recorded_results_say() -> None:
    page = results.render(results.load())
    assert results.PAGE.read_text("utf-8") == results.whole_page(results.PAGE, {"results": page.text}), (
        "run: python bench/results.py"
    )
    assert {name: (results.IMAGES / name).read_text("utf-8") for name in page.plots} == page.plots


def test_a_row_shows_the_median_of_the_ratios_and_their_range() -> None:
    assert "| get | 12.0 ms | 2.00 ms | 6.0x | 5.0x to 10x |  | 6.0x |" in results.render(RECORDED).text


def test_a_loss_is_bold() -> None:
    assert "| **0.50x** | 0.25x to 0.50x |" in results.render(RECORDED).text


def test_encryption_is_compared_with_no_encryption_and_what_takes_too_much_is_bold() -> None:
    figures = [{"with hidden ids": 1.2, "with keys": 1.1, "without keys": 1.0}]
    recorded = {"sqlite": {"encryption": {"measured": MEASURED, "rows": [row("keys, bytes") | {"figures": figures}]}}}
    text = results.render(recorded).text
    assert "| keys, bytes | 1.00 ms | 1.10 ms | 1.10x | 1.20 ms | **1.20x** | 1.15x |" in text


def test_losses_and_goals_that_are_not_reached_are_named() -> None:
    text = results.render(RECORDED).text
    assert "Wins: 1 of 2 rows. Goals reached: 1 of 1.\n\n- Losses: put (0.50x)\n" in text
    assert "not reached" not in text


def test_the_page_says_when_and_on_what_it_was_measured() -> None:
    text = results.render(RECORDED).text
    assert "2026-11-18" in text
    assert "2 cores, 24 GB of memory" in text


def test_plots_are_well_formed_and_name_every_compared_row() -> None:
    plots = results.render(RECORDED).plots
    assert plots.keys() == {"sqlite-checkpoints.svg", "sqlite-growth.svg"}
    words = {name: "".join(ET.fromstring(plot).itertext()) for name, plot in plots.items()}
    assert "6.0x" in words["sqlite-checkpoints.svg"]
    assert "0.50x" in words["sqlite-checkpoints.svg"]
    assert "threadkeep" in words["sqlite-growth.svg"]


@pytest.mark.parametrize(("power", "sizes"), [(1, (10, 20, 40)), (2, (5, 50, 500)), (1.5, (1, 2, 4, 8))])
def test_growth_is_fitted(power: float, sizes: tuple[float, ...]) -> None:
    assert measuring.exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def test_contenders_take_turns_and_the_first_one_changes() -> None:
    done: list[tuple[str, int]] = []
    measuring.measure({"a": "a", "b": "b"}, lambda name, number: done.append((name, number)), 2)
    assert done == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]
