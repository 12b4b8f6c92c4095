"""Measures contenders in turn, and holds the figures.

Each contender does a small piece of work, then the next one does, and the first one changes, so that a busy machine
slows all of them equally. All is done several times. A ratio is computed within each repetition; the median of these
ratios counts, and their range is shown.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter, process_time
from typing import Any, TypeVar

T = TypeVar("T")
Figures = dict[str, float]
"""A figure for each contender: first the one that we compare with, last threadkeep."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured, in how many repetitions. Less is better, except in rows that are not compared."""

    key: str
    what: str
    unit: str
    figures: list[Figures] = field(default_factory=list)
    cpu: list[Figures] = field(default_factory=list)
    """CPU time of this process, in the same unit; empty if the row is not a time."""
    compared: bool = True
    points: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    """Of a row on growth, for each contender: messages, seconds and bytes so far."""

    @property
    def names(self) -> list[str]:
        return list(self.figures[0])

    def median(self, name: str) -> float:
        return statistics.median(each[name] for each in self.figures)

    def ratios(self) -> list[float]:
        """Return how many times less threadkeep takes, in each repetition."""
        return _ratios(self.figures) if self.compared else []

    def cpu_ratios(self) -> list[float]:
        return _ratios(self.cpu) if self.compared else []


def _ratios(repetitions: Sequence[Figures]) -> list[float]:
    pairs = [list(figures.values()) for figures in repetitions]
    return [each[0] / each[-1] for each in pairs if len(each) > 1 and each[-1] > 0]


class Rows:
    """The rows of a run. A repetition adds its figures to rows that exist already."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def add(
        self, key: str, what: str, unit: str, figures: Figures, cpu: Figures | None = None, *, compared: bool = True
    ) -> None:
        row = self._rows.setdefault(key, Row(key, what, unit, compared=compared))
        row.figures.append(dict(figures))
        if cpu is not None:
            row.cpu.append(dict(cpu))

    def add_timed(self, key: str, what: str, timed: tuple[Figures, Figures]) -> None:
        """Add the milliseconds that `measure` returned."""
        self.add(key, what, "ms", *timed)

    def add_points(self, key: str, points: Mapping[str, list[tuple[float, float, float]]]) -> None:
        self._rows[key].points.update(points)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())


def rotate(things: Sequence[T], number: int) -> Sequence[T]:
    """Return the same things, with a different one first each time."""
    first = number % len(things)
    return [*things[first:], *things[:first]]


def rotations(things: Sequence[T], rounds: int) -> Iterator[T]:
    return chain.from_iterable(rotate(things, number) for number in range(rounds))


@dataclass(frozen=True, slots=True)
class Spent:
    """What each contender has used: seconds, seconds of CPU, and bytes written."""

    names: Sequence[str]
    written_so_far: Callable[[], float] = lambda: 0.0
    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    written: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def by(self, name: str) -> Iterator[None]:
        before, cpu, start = self.written_so_far(), process_time(), perf_counter()
        yield
        wall, cpu = perf_counter() - start, process_time() - cpu
        self.wall.setdefault(name, []).append(wall)
        self.cpu.setdefault(name, []).append(cpu)
        self.written[name] = self.written.get(name, 0.0) + self.written_so_far() - before

    def totals(self) -> tuple[Figures, Figures]:
        """Return all seconds, and all seconds of CPU."""
        return {name: sum(self.wall[name]) for name in self.names}, {name: sum(self.cpu[name]) for name in self.names}

    def per_call(self, calls: int = 1) -> tuple[Figures, Figures]:
        """Return the median milliseconds of a call, and its mean milliseconds of CPU."""
        wall = {name: statistics.median(self.wall[name]) * 1e3 / calls for name in self.names}
        return wall, {name: statistics.fmean(self.cpu[name]) * 1e3 / calls for name in self.names}


Action = Callable[[Any, int], object]
AsyncAction = Callable[[Any, int], Awaitable[object]]


def measure(
    contenders: Mapping[str, Any], action: Action, rounds: int, *, calls: int = 1, first: int = 0
) -> tuple[Figures, Figures]:
    """Return the median milliseconds of a call, and those of CPU. Calls are numbered, the same for every contender."""
    spent = Spent(list(contenders))
    for number in range(first, first + rounds):
        for name in rotate(spent.names, number):
            contender = contenders[name]
            with spent.by(name):
                for call in range(number * calls, (number + 1) * calls):
                    action(contender, call)
    return spent.per_call(calls)


async def ameasure(
    contenders: Mapping[str, Any], action: AsyncAction, rounds: int, *, first: int = 0
) -> tuple[Figures, Figures]:
    """Async variant."""
    spent = Spent(list(contenders))
    for number in range(first, first + rounds):
        for name in rotate(spent.names, number):
            with spent.by(name):
                await action(contenders[name], number)
    return spent.per_call()


def medians(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each action."""
    return measure(actions, lambda action, _: action(), rounds)[0]


def exponent(sizes: Sequence[float], totals: Sequence[float]) -> float:
    """Return the power of the size with which totals grow: the slope of a line through their logarithms."""
    return statistics.linear_regression(list(map(math.log, sizes)), list(map(math.log, totals))).slope
