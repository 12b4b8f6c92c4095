"""Measures contenders in turn and prints the result as a table.

Each does a small piece of work, then the next one does, and the first one changes, so that a busy machine slows all of
them equally.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from contenders import THREADKEEP

T = TypeVar("T")
Names = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: a figure per contender. Smaller is better unless it is a rate."""

    what: str
    unit: str
    figures: Names
    rate: bool = False
    compared: bool = True

    def ratio(self) -> str:
        """Return how much faster threadkeep is than the first peer."""
        peers = [figure for name, figure in self.figures.items() if name != THREADKEEP.name]
        if not peers or THREADKEEP.name not in self.figures or not self.compared:
            return ""
        factor = peers[0] / self.figures[THREADKEEP.name]
        return f"{1 / factor if self.rate else factor:.1f}x"

    def cells(self, names: Iterable[str]) -> list[str]:
        figures = [f"{self.figures[name]:,.2f}" if name in self.figures else "" for name in names]
        return [self.what, self.unit, *figures, self.ratio()]


def rotate(things: Sequence[T], number: int) -> Sequence[T]:
    """Return the same things, with a different one first each time."""
    first = number % len(things)
    return [*things[first:], *things[:first]]


def rotations(things: Sequence[T], rounds: int) -> Iterator[T]:
    return chain.from_iterable(rotate(things, number) for number in range(rounds))


@dataclass(frozen=True, slots=True)
class Times:
    """The measured seconds of each contender."""

    taken: dict[str, list[float]] = field(default_factory=dict)

    def since(self, start: float, name: str) -> None:
        self.taken.setdefault(name, []).append(perf_counter() - start)

    def medians(self) -> dict[str, float]:
        """Return the median of each contender in milliseconds."""
        return {name: statistics.median(times) * 1e3 for name, times in self.taken.items()}


def medians(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each action."""
    times = Times()
    for name in rotations(list(actions), rounds):
        start = perf_counter()
        actions[name]()
        times.since(start, name)
    return times.medians()


async def amedians(actions: Mapping[str, Callable[[], Awaitable[object]]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each async action."""
    times = Times()
    for name in rotations(list(actions), rounds):
        start = perf_counter()
        await actions[name]()
        times.since(start, name)
    return times.medians()


def report(console: Console, names: Sequence[str], rows: Iterable[Row]) -> None:
    table = Table("what", "unit")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("faster", justify="right")
    for row in rows:
        table.add_row(*row.cells(names))
    console.print(table)
