"""The pipeline that every transfer goes through, whatever its source is.

A source gives threads and memories one at a time. For each thread the target decides what is missing, puts that, reads
both sides again to compare them, and counts. There are two kinds of threads on their way: `graph_threads` and
`cube_threads` put values that another library stored, `thread_copy` writes the rows and items of threadkeep's own
threads, from a Keep or a portable file. `memories` does the same for memories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from threadkeep.engine.identity import ThreadKey
from threadkeep.session import Session
from threadkeep.transfer.result import Outcome, Tally, TransferResult
from threadkeep.transfer.sources.value_cipher import ValueCipher
from threadkeep.work import Work


class MemoryIndex(Protocol):
    """What a query can find of memories in the target."""

    @property
    def dims(self) -> int | None:
        """The dimensions of vectors; None if there are no vectors."""

    def texts(self, value: Mapping[str, Any], fields: Sequence[str] | None) -> tuple[str, ...]:
        """The texts of a value that are embedded."""

    def words(self, value: Mapping[str, Any], fields: Sequence[str] | None) -> str:
        """The words of a value."""

    def embed(self, texts: Any, queries: Any) -> Any:
        """Texts as vectors."""


@dataclass(slots=True)
class Transfer:
    """One transfer: the Keep that it goes into, its options, and what it counted so far."""

    session: Session
    index: Callable[[], MemoryIndex]
    verify: bool = True
    dry_run: bool = False
    cipher: ValueCipher | None = None
    """That of the Keep's serializer, if this is LangGraph's EncryptedSerializer."""
    tally: Tally = field(default_factory=Tally)

    def differs(self, key: ThreadKey, what: str) -> None:
        """Report that something of a thread is not as the source has it."""
        self.tally.differs(f"{key.kind} thread {key.id!r}: {what}")

    def result(self, *kinds: str, complete: bool = True) -> TransferResult:
        """Return what was counted. `kinds` are those of the source."""
        verified = self.verify and not self.dry_run
        return self.tally.result(*kinds, verified=verified, dry_run=self.dry_run, complete=complete)


class IncomingThread(Protocol):
    """A thread on its way into a Keep."""

    def put(self) -> Work[Outcome | None]:
        """Write what is missing and count it; a dry run only counts. None if the source has no such thread."""

    def compare(self) -> Work[None]:
        """Read both sides again and report where they differ."""


def transfer_thread(into: Transfer, thread: IncomingThread) -> Work[None]:
    """Put what is missing of a thread, compare both sides, and count; a dry run only counts."""
    outcome = yield from thread.put()
    if outcome is None:
        return
    if into.verify and not into.dry_run and outcome != "conflicting":
        yield from thread.compare()
    into.tally.add("threads")
    into.tally.add(outcome)
