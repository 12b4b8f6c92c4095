"""How contenders take turns, and the table that comes of it.

Each does a small piece of work, then the next one, and who goes first changes: a busy machine hurts all alike.
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
    """One measured thing: a figure for each contender that does it, smaller is better unless it is a rate."""

    what: str
    unit: str
    figures: Names
    rate: bool = False
    compared: bool = True

    def ratio(self) -> str:
        """Of the first peer and threadkeep."""
        peers = [figure for name, figure in self.figures.items() if name != THREADKEEP.name]
        if not peers or THREADKEEP.name not in self.figures or not self.compared:
            return ""
        factor = peers[0] / self.figures[THREADKEEP.name]
        return f"{1 / factor if self.rate else factor:.1f}x"

    def cells(self, names: Iterable[str]) -> list[str]:
        figures = [f"{self.figures[name]:,.2f}" if name in self.figures else "" for name in names]
        return [self.what, self.unit, *figures, self.ratio()]


def in_turn(things: Sequence[T], number: int) -> Sequence[T]:
    """The same things, a different one first each time."""
    first = number % len(things)
    return [*things[first:], *things[:first]]


def rounds_of(things: Sequence[T], rounds: int) -> Iterator[T]:
    return chain.from_iterable(in_turn(things, number) for number in range(rounds))


@dataclass(frozen=True, slots=True)
class Times:
    """The seconds that each name took."""

    taken: dict[str, list[float]] = field(default_factory=dict)

    def since(self, start: float, name: str) -> None:
        self.taken.setdefault(name, []).append(perf_counter() - start)

    def medians(self) -> dict[str, float]:
        """In milliseconds."""
        return {name: statistics.median(times) * 1e3 for name, times in self.taken.items()}


def medians(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each action."""
    times = Times()
    for name in rounds_of(list(actions), rounds):
        start = perf_counter()
        actions[name]()
        times.since(start, name)
    return times.medians()


async def amedians(actions: Mapping[str, Callable[[], Awaitable[object]]], rounds: int) -> dict[str, float]:
    """As `medians`, inside a running loop."""
    times = Times()
    for name in rounds_of(list(actions), rounds):
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
