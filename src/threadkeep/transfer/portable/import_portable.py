"""`Keep.import_portable`: the threads and memories of a portable file, line by line, in bounded memory.

The pipeline is the same as a conversion's: see `thread_copy`. A file may be imported again, which also is how an
interrupted import continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from threadkeep.clock import nonce
from threadkeep.engine.commit import new_family
from threadkeep.engine.identity import KINDS, ThreadKey
from threadkeep.engine.log.records import ThreadRow
from threadkeep.engine.memories.requests import MemoryRow
from threadkeep.engine.requests import Batch, LoadedRows
from threadkeep.errors import Conflict, Corrupt, Missing
from threadkeep.session import Session
from threadkeep.transfer.memories import IncomingMemory, put_memories
from threadkeep.transfer.pipeline import Transfer, transfer_thread
from threadkeep.transfer.portable.export import write_thread
from threadkeep.transfer.portable.format import (
    END,
    HEADER,
    MEMORY,
    THREAD,
    THREAD_END,
    THREAD_VOID,
    Line,
    brief,
    read_memory,
)
from threadkeep.transfer.portable.thread_rows import LineSum, PortableThreadRows, description_of
from threadkeep.transfer.result import OWN_EXPORT, TransferResult
from threadkeep.transfer.selection import Selection
from threadkeep.transfer.thread_builder import is_untouched_copy
from threadkeep.transfer.thread_copy import PutItems, ThreadCopy
from threadkeep.work import Progress, Work

_MEMORIES = 64
"""Memories that are put at a time."""


@dataclass(slots=True)
class PortableImport:
    """A portable file on its way into a Keep. `partial` accepts a file that is cut off."""

    into: Transfer
    lines: Iterator[Line]
    selection: Selection
    partial: bool = False
    _threads: int = 0
    _memories: int = 0
    _waiting: list[MemoryRow] = field(default_factory=list)
    _found: set[str] = field(default_factory=set)

    def work(self) -> Work[TransferResult]:
        """Import the file. Each thread is visible completely or not at all.

        ValueError if the file is cut off, unless `partial`; Missing, at the end, if a selected thread is not in it.
        """
        end = None
        for line in self.lines:
            kind = line.line_type
            if end is not None:
                raise line.error("there is something after the end")
            if kind == THREAD:
                if not (yield from self._thread(line)):
                    break
            elif kind == MEMORY:
                yield from self._memory(line)
            elif kind == END:
                end = line
            elif kind != HEADER:
                raise line.error(f"{brief(kind)} is not expected here")
        yield from self._put_waiting()
        self._check_end(end)
        for id in self.selection.ids or ():
            if id not in self._found:
                raise Missing(f"there is no thread {id!r} in the file")
        return self.into.result(OWN_EXPORT, complete=end is not None)

    def _check_end(self, end: Line | None) -> None:
        if end is None:
            if self.partial:
                return
            raise ValueError(
                f"the file is cut off: its first {self._threads} threads are complete and were imported; "
                "partial=True (--partial) accepts such a file"
            )
        for name, count in (("threads", self._threads), ("memories", self._memories)):
            if end.count(name) != count:
                raise end.error(f"it announces {end.count(name)} {name}, but there are {count}")

    def _thread(self, first: Line) -> Work[bool]:
        """Import a thread; return whether the file goes on after it."""
        id, named = first.text("id"), first.text("kind")
        kind = next((each for each in KINDS if each == named), None)
        if kind is None:
            raise first.error(f"there are no threads of kind {brief(named)}")
        yield Progress(self._threads, None, id)
        thread = _PortableThread(self.into.session, first, self.lines)
        if self.selection.includes(kind, id):
            self._found.add(id)
            key = self.into.session.key(kind, id)
            try:
                yield from transfer_thread(self.into, ThreadCopy(self.into, thread, key))
            except Conflict:
                self.into.differs(key, "it was changed by others meanwhile; import it again")
            except Corrupt as error:
                self.into.differs(key, f"the target's thread is damaged: {error}")
        thread.skip()
        self._threads += thread.is_complete
        return thread.end is not None

    def _memory(self, line: Line) -> Work[None]:
        self._memories += 1
        if self.selection.memories:
            self._waiting.append(read_memory(line))
            if len(self._waiting) >= _MEMORIES:
                yield from self._put_waiting()

    def _put_waiting(self) -> Work[None]:
        if self._waiting:
            yield from put_memories(self.into, [IncomingMemory(row) for row in self._waiting])
            self._waiting = []


class _PortableThread:
    """A thread of the file. `end` is its last line, once that was read."""

    def __init__(self, session: Session, first: Line, lines: Iterator[Line]) -> None:
        self.created = first.count("created")
        self.updated = first.count("updated")
        self.family = new_family(nonce())
        self.description = description_of(first)
        self.end: Line | None = None
        self._session = session
        self._first = first
        self._lines = lines
        self._rows: PortableThreadRows | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the last line was read and says that the thread is complete."""
        return self.end is not None and self.end.line_type == THREAD_END

    @property
    def messages(self) -> int:
        """Its messages, if it is a CubeLoop thread that was read."""
        return self._rows.messages if self._rows is not None else 0

    def is_same_as(self, row: ThreadRow) -> bool:
        """Whether the target's thread, by its row, is in the same state."""
        first = self._first.fields
        described = (first.get("checkpoints"), first.get("writes"), first.get("top"), first.get("status"))
        held = (row.checkpoints, row.writes, row.top, row.status)
        return (self.created, self.updated, *described) == (row.created, row.updated, *held)

    def replaces(self, row: ThreadRow) -> bool:
        """Whether the target's thread is an earlier state of this one and nobody changed it. A file may be old."""
        return is_untouched_copy(row, self.created) and self.updated > row.updated

    def read(self, key: ThreadKey, put: PutItems | None) -> Work[Batch | None]:
        """Pass all items to `put`, and return the rows; None if the thread is cut off or void."""
        rows = self._rows = PortableThreadRows(self._first, key, self.family)
        for line in self._rest():
            rows.take(line)
            items = rows.new_items()
            if put is not None:
                yield from put(items, rows.nexts)
        if self.end is None or not self.is_complete:
            return None
        _check_counts(self.end, rows)
        if not (rows.checkpoints or rows.writes or self.description):
            raise self._first.error(f"thread {brief(key.id)} has neither checkpoints nor writes nor a description")
        return rows.batch()

    def skip(self) -> None:
        """Read to the end of the thread, without looking at what is left."""
        for _ in self._rest():
            pass

    def _rest(self) -> Iterator[Line]:
        """The lines before the end that were not read yet."""
        while self.end is None and (line := next(self._lines, None)) is not None:
            if line.line_type in (THREAD_END, THREAD_VOID):
                self.end = line
            else:
                yield line

    def difference(self, found: LoadedRows) -> Work[str | None]:
        """Compare the lines that the target's thread would give with those of the file."""
        assert self._rows is not None
        here = LineSum()
        yield from write_thread(self._session, found, here.add)
        return None if here.total == self._rows.sum.total else "the target does not hold the same as the file"


def _check_counts(end: Line, rows: PortableThreadRows) -> None:
    found = {"checkpoints": len(rows.checkpoints), "writes": rows.entries, "items": rows.items}
    for name, count in found.items():
        if end.count(name) != count:
            raise end.error(f"{end.count(name)} {name} were announced, but {count} are there")
