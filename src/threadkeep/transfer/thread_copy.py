"""Copying a thread as it is stored, out of another Keep or a portable file.

A thread that the target lacks is built there. One that was copied before and not changed since is replaced if the
source has a later state: the new state is built under a hidden key first, and the old one stays until it is complete.
Any other thread stays: a LangGraph thread gets the checkpoints and writes that it lacks, a CubeLoop thread that differs
is reported and left alone. So a transfer may be repeated, which also is how it continues after an interruption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from threadkeep.clock import nonce, now_ms
from threadkeep.engine.cube.channels import MESSAGES, count_elements
from threadkeep.engine.health.salvage import load_intact
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log.itemlog import ItemId
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.requests import Batch, LoadedRows
from threadkeep.engine.threads import copy
from threadkeep.engine.threads.heads import Heads
from threadkeep.errors import Conflict, ThreadkeepError
from threadkeep.transfer.compare import checkpoint_rows, read_rows, write_rows
from threadkeep.transfer.pipeline import Transfer
from threadkeep.transfer.result import Outcome
from threadkeep.transfer.thread_builder import (
    ThreadBuilder,
    describe_thread,
    hidden,
    is_unfinished,
    is_untouched_copy,
    remove_thread,
    replace_thread,
)
from threadkeep.work import Change, Work, read

PutItems: TypeAlias = Callable[[Iterable[tuple[ItemId, bytes]], Sequence[int]], Work[None]]
"""Takes stored items, and the number of the next item of each lane."""


class StoredThread(Protocol):
    """A thread of threadkeep's own in a source, to be read once from its first item to its last row."""

    created: int
    updated: int
    family: int
    description: str | None

    @property
    def messages(self) -> int:
        """Its messages, if it is a CubeLoop thread that was read."""

    def is_same_as(self, row: ThreadRow) -> bool:
        """Whether the target's thread, by its row, is in the same state."""

    def replaces(self, row: ThreadRow) -> bool:
        """Whether the target's thread is an earlier state of this one and nobody changed it."""

    def read(self, key: ThreadKey, put: PutItems | None) -> Work[Batch | None]:
        """Pass all items to `put`, some at a time, and return the rows, for a thread of this key.

        None if the source has no complete thread after all. Conflict if it changed meanwhile.
        """

    def difference(self, found: LoadedRows) -> Work[str | None]:
        """Return how the target's thread differs from what was read; None if it is the same."""


@dataclass(slots=True)
class ThreadCopy:
    """A stored thread on its way into a Keep. `key` is its key there."""

    into: Transfer
    source: StoredThread
    key: ThreadKey
    _before: LoadedRows | None = None
    _rows: Batch | None = None
    _outcome: Outcome | None = None

    def put(self) -> Work[Outcome | None]:
        """Write what is missing; a dry run only counts. Conflict if either side changes meanwhile."""
        before = self._before = yield from read_rows(self.key)
        self._outcome = outcome_of(self.source, before, is_cube=self.key.kind == CUBE)
        if self._outcome == "conflicting":
            self.into.differs(self.key, "the target has another CubeLoop thread of this id; it was left alone")
            return self._outcome
        if self.into.dry_run or self._outcome == "unchanged":
            self._rows = yield from self.source.read(self.key, None)
            if self._rows is not None and self._outcome == "unchanged":
                yield from self._describe(before)
        else:
            self._rows = yield from self._write(before)
        if self._rows is None:
            return None
        self._count_rows(self._rows, before)
        return self._outcome

    def _write(self, before: LoadedRows) -> Work[Batch | None]:
        """Build the thread; under a hidden key if the target has one already."""
        is_new = self._outcome == "created"
        key = self.key if is_new else hidden(self.key)
        unfinished = before if is_new else (yield from read_rows(key))
        if unfinished.thread is not None:
            yield from remove_thread(self._heads, unfinished)
        source = self.source
        builder = ThreadBuilder(self._heads, key, source.created, source.updated, nonce(), source.family)
        try:
            rows = yield from self.source.read(key, builder.add)
            if rows is None:
                yield from _abandon(builder)
                return None
            yield from builder.finish(rows)
            if not is_new:
                yield from self._publish(key, before)
        except GeneratorExit:
            raise
        except BaseException:
            yield from _abandon(builder)
            raise
        self.into.tally.add("bytes", builder.written)
        return rows

    def _publish(self, built: ThreadKey, before: LoadedRows) -> Work[None]:
        """Replace the target's thread by the one that was built, or merge that into it; then remove what was built."""
        rows = yield from read_rows(built)
        if rows.thread is None or before.thread is None:
            raise Conflict(f"thread {self.key.id!r} was also transferred by others")
        if self._outcome == "updated":
            yield from replace_thread(self._heads, before.thread, rows.thread, nonce())
        else:
            plan = partial(copy.copy, self._heads, built, self.key, now_ms(), nonce(), keeps_times=True)
            yield Change(self.key, plan)
        yield from remove_thread(self._heads, rows)

    def _describe(self, before: LoadedRows) -> Work[None]:
        """Let the target have the description of the source, unless somebody described it here."""
        row, said = before.thread, self.source.description
        if row is None or not (row.description is None or is_untouched_copy(row, self.source.created)):
            return
        if row.description != said:
            self._outcome = "updated"
            if not self.into.dry_run:
                yield from describe_thread(self._heads, row, said, nonce())

    @property
    def _heads(self) -> Heads:
        return self.into.session.heads

    def _count_rows(self, rows: Batch, before: LoadedRows) -> None:
        """Count what is new, and what was there before."""
        tally = self.into.tally
        if self.key.kind == CUBE:
            old = message_count(self._heads, before)
            tally.add("messages", max(self.source.messages - old, 0))
            tally.add("already_there", min(self.source.messages, old))
            return
        had = {_place(row) for row in checkpoint_rows(before)}
        new = [row for row in rows.new_checkpoints if not row.hidden and _place(row) not in had]
        tally.add("checkpoints", len(new))
        tally.add("already_there", sum(not row.hidden for row in rows.new_checkpoints) - len(new))
        held = {_place(row): _entries(row) for row in write_rows(before)}
        tally.add("writes", sum(max(_entries(row) - held.get(_place(row), 0), 0) for row in rows.new_writes))

    def compare(self) -> Work[None]:
        """Read the target and report if it does not hold what the source had.

        Conflict if it was removed meanwhile, Corrupt if a thread that was merged into is damaged.
        """
        assert self._rows is not None
        assert self._before is not None
        found = self._before if self._outcome == "unchanged" else (yield from read_rows(self.key))
        if found.thread is None:
            raise Conflict(f"thread {self.key.id!r} was removed while it was compared")
        if self._outcome == "merged":
            yield from read(lambda: load_intact(self.key, items=True))
            missing = _places(self._rows.new_checkpoints, self._rows.new_writes)
            missing -= _places(checkpoint_rows(found), write_rows(found))
            difference = f"{len(missing)} checkpoints or writes are missing" if missing else None
        else:
            difference = yield from self.source.difference(found)
        if difference is not None:
            self.into.differs(self.key, difference)


def outcome_of(source: StoredThread, before: LoadedRows, *, is_cube: bool) -> Outcome:
    """Decide what becomes of a thread, given what the target has of that key."""
    if before.thread is None or is_unfinished(before):
        return "created"
    if source.is_same_as(before.thread):
        return "unchanged"
    if source.replaces(before.thread):
        return "updated"
    return "conflicting" if is_cube else "merged"


def message_count(heads: Heads, loaded: LoadedRows) -> int:
    """Return the number of messages of a CubeLoop thread whose rows were read; 0 if there is none."""
    row = loaded.thread
    newest = next((each for each in checkpoint_rows(loaded) if row and each.id == row.top), None)
    if row is None or newest is None:
        return 0
    return count_elements(heads.head_from(row.key, loaded, None).checkpoint(newest).slots, MESSAGES)


def _abandon(builder: ThreadBuilder) -> Work[None]:
    with suppress(ThreadkeepError):  # what is left has no rows: the next transfer removes it
        yield from builder.abandon()


def _place(row: CheckpointRow | WriteRow) -> tuple[Any, ...]:
    return (row.ns, row.id) if isinstance(row, CheckpointRow) else (row.ns, row.checkpoint, row.task)


def _places(checkpoints: Iterable[CheckpointRow], writes: Iterable[WriteRow]) -> set[tuple[Any, ...]]:
    return {*map(_place, checkpoints), *map(_place, writes)}


def _entries(row: WriteRow) -> int:
    """How many writes a row holds: three numbers each are in its index."""
    return len(row.index) // 3
