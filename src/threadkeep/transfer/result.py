"""The result of a transfer, and the counters that become it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from threadkeep.engine.identity import ThreadKey
from threadkeep.short_repr import short_repr

_MOST = 1000
"""Differences, and damaged things, that are listed one by one."""

Outcome: TypeAlias = Literal["created", "unchanged", "updated", "merged", "conflicting"]
"""What became of a thread."""
Count: TypeAlias = Literal[
    Outcome, "threads", "checkpoints", "writes", "messages", "memories", "already_there", "expired", "bytes"
]


OWN_DATABASE, OWN_EXPORT = "threadkeep", "threadkeep-export"
"""The kinds of sources that are threadkeep's own: a database, and a portable file."""


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What `import_from`, `import_portable` or `convert` did. All three count in the same way.

    Each of the `threads` that were found is one of these: `created`; `unchanged`, nothing was missing; `updated` from
    an older state that nobody had changed since; `merged` into a thread that has checkpoints of its own, which stay;
    `conflicting`, a CubeLoop thread that holds something else and was left alone.

    `checkpoints`, `writes`, `messages` (of CubeLoop threads) and `memories` were new and were written, `bytes` is their
    size. `already_there` counts the checkpoints, messages and memories that the target had, `expired` the memories that
    were left out because they have expired. A dry run counts what would be written.

    `differences` lists what the target does not hold as the source does, and what could not be read. `skipped` are the
    ids of damaged threads, which were left out and count nowhere else. `damage` names what is damaged in the source,
    and with `salvage` what was left out because of it. `kinds` are those of the source. `verified` is true if both
    sides were compared, `complete` is false if a portable file was cut off.
    """

    threads: int = 0
    created: int = 0
    unchanged: int = 0
    updated: int = 0
    merged: int = 0
    conflicting: int = 0
    checkpoints: int = 0
    writes: int = 0
    messages: int = 0
    memories: int = 0
    already_there: int = 0
    expired: int = 0
    bytes: int = 0
    differences: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    verified: bool = False
    dry_run: bool = False
    complete: bool = True

    __repr__ = short_repr

    @property
    def is_equal(self) -> bool:
        """Whether no difference was found, and nothing was left out because it is damaged."""
        return not (self.differences or self.skipped or self.damage)


@dataclass(slots=True)
class Damage:
    """What a transfer found damaged in its source. `skipped` are the ids of threads that are left out."""

    skipped: list[str] = field(default_factory=list)
    _named: list[str] = field(default_factory=list)
    _more: int = 0

    def add(self, *named: str) -> None:
        """Name what is damaged. Only the first thousand are kept."""
        kept = named[: max(_MOST - len(self._named), 0)]
        self._named += kept
        self._more += len(named) - len(kept)

    def of_thread(self, key: ThreadKey, named: Iterable[str], *, skip: bool) -> None:
        """Name what is damaged in a thread, and whether all of it is left out."""
        if skip:
            self.skipped.append(key.id)
        self.add(*(f"{key.kind} thread {key.id!r}: {each}" for each in named))

    @property
    def named(self) -> tuple[str, ...]:
        """What was named."""
        return (*self._named, *([f"and {self._more} more"] if self._more else []))


@dataclass(slots=True)
class Tally:
    """Counts what a transfer does. `done` of `total` is for the progress."""

    total: int = 0
    done: int = 0
    _counts: Counter[str] = field(default_factory=Counter)
    _differences: list[str] = field(default_factory=list)
    _more: int = 0
    damage: Damage = field(default_factory=Damage)

    def add(self, name: Count, count: int = 1) -> None:
        """Add to a counter."""
        self._counts[name] += count

    def __getitem__(self, name: Count) -> int:
        return self._counts[name]

    def differs(self, what: str) -> None:
        """Add a difference. Only the first thousand are kept."""
        if len(self._differences) < _MOST:
            self._differences.append(what)
        else:
            self._more += 1

    def result(self, *kinds: str, verified: bool, dry_run: bool, complete: bool = True) -> TransferResult:
        """Return what was counted."""
        more = [f"and {self._more} more"] if self._more else []
        return TransferResult(
            **self._counts, differences=(*self._differences, *more), skipped=tuple(self.damage.skipped),
            damage=self.damage.named, kinds=kinds, verified=verified, dry_run=dry_run, complete=complete,
        )  # fmt: skip
