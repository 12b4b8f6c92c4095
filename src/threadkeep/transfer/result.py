"""What an import has done so far, and what it tells in the end."""

from __future__ import annotations

from dataclasses import dataclass, field

_TOLD = 1000
"""So many differences are told one by one."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import brought in: threads that were looked at, what was new of them, and where both sides differ.

    `skipped` counts the checkpoints, messages and memories that were here already, and memories that have expired;
    `bytes` are those of new values, as the source has them. After `differences` the import counts as failed, though
    everything else is here; there are none if nothing was compared and everything could be read.
    """

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    messages: int = 0
    memories: int = 0
    skipped: int = 0
    bytes: int = 0
    differences: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether no difference was found."""
        return not self.differences


@dataclass(slots=True)
class Tally:
    """The same while it is being counted. `done` counts what was looked at, for the progress."""

    total: int = 0
    done: int = 0
    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    messages: int = 0
    memories: int = 0
    skipped: int = 0
    bytes: int = 0
    differences: list[str] = field(default_factory=list)
    untold: int = 0

    def differs(self, what: str) -> None:
        """One more difference."""
        if len(self.differences) < _TOLD:
            self.differences.append(what)
        else:
            self.untold += 1

    def imported(self, kinds: tuple[str, ...]) -> Imported:
        """What it comes to."""
        more = [f"and {self.untold} more"] if self.untold else []
        return Imported(
            self.threads, self.checkpoints, self.writes, self.messages, self.memories, self.skipped, self.bytes,
            (*self.differences, *more), kinds,
        )  # fmt: skip
