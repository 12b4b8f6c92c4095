"""A run of the benchmarks on one storage: its contenders, how much they do, and their databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from contenders import Contender, Durability
from measuring import Figures, Rows
from recording import Stopwatch
from storages import Storage
from workload import Saver


class Scale(NamedTuple):
    """How much is done."""

    repetitions: int
    turns: int
    """Of the conversation."""
    history: int
    """Turns that a long thread already has."""
    growth: int
    """Turns over which growth is fitted, for threadkeep alone."""
    checkpoints: int
    """Small ones, put one by one."""
    crowd: int
    """Threads at once."""
    notes: int
    """In a store."""
    others: int
    """Messages in other CubeLoop threads."""


SHORT = Scale(repetitions=3, turns=40, history=250, growth=120, checkpoints=2_000, crowd=200, notes=2_000, others=2_000)
FULL = Scale(
    repetitions=5, turns=200, history=1_000, growth=1_000, checkpoints=10_000, crowd=200, notes=10_000, others=50_000
)


@dataclass(slots=True)
class Installation:
    """A contender at one durability, with its own database, and what its calls took."""

    contender: Contender
    durability: Durability
    url: str
    watch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def name(self) -> str:
        return self.contender.name

    @contextmanager
    def opened(self) -> Iterator[Saver]:
        with self.contender.open(self.url, self.durability) as saver:
            yield saver


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What a group of rows needs to know, and where its rows go."""

    storage: Storage
    scale: Scale
    rows: Rows
    say: Callable[[str], None]
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def names(self) -> list[str]:
        return [contender.name for contender in self.storage.contenders]

    def repetitions(self, what: str) -> Iterator[int]:
        for number in range(self.scale.repetitions):
            self.say(f"{what}, repetition {number + 1} of {self.scale.repetitions}")
            yield number

    @contextmanager
    def databases(self, label: str, count: int) -> Iterator[list[str]]:
        """Create empty databases, and delete them at the end."""
        urls = [self.storage.new_url(f"{label}-{next(self._numbers)}") for _ in range(count)]
        try:
            yield urls
        finally:
            for url in urls:
                self.storage.drop(url)

    @contextmanager
    def installations(self, label: str, *durabilities: Durability) -> Iterator[list[Installation]]:
        """Install every contender once at each durability; delete the databases at the end."""
        wanted = [(one, durability) for durability in durabilities for one in self.storage.contenders]
        with self.databases(label, len(wanted)) as urls:
            yield [Installation(*each, url) for each, url in zip(wanted, urls, strict=True)]

    def megabytes(self, installations: list[Installation]) -> Figures:
        """Return what databases take on disk; nobody may have them open."""
        return {one.name: sum(self.storage.disk_usage(one.contender, one.url).values()) / 1e6 for one in installations}
