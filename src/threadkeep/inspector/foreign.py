"""Databases of other savers: read into a Keep in the memory of this process, which is then shown as any other.

They are read by the sources that `Keep.import_from` uses, read-only, and nothing is written to disk. All of a database
is read in the background if it is not too large; a thread that somebody opens is read at once.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from threadkeep import Keep, errors

MOST_CHECKPOINTS = 50_000
"""A larger database is not read as a whole: only the threads that somebody opens."""
_FRESH_SECONDS = 2.0
"""For so long, a thread that was read is not read again."""


@dataclass(slots=True)
class ForeignStorage:
    """A database of another saver, by path or URL, and the Keep that it is read into. `problem` is why it cannot be."""

    source: str
    keep: Keep
    done: int = 0
    total: int | None = None
    problem: str | None = None
    is_complete: bool = False
    is_too_large: bool = False
    _reading: asyncio.Task[None] | None = None
    _read_at: dict[str, float] = field(default_factory=dict)

    async def start(self) -> None:
        """Begin to read everything, unless that was done. A database of ordinary size is read when this returns."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all())
        await asyncio.wait([self._reading], timeout=_FRESH_SECONDS)

    async def read(self, thread: str) -> None:
        """Read a thread, or what is new in it. Missing if it does not exist."""
        now = time.monotonic()
        if now - self._read_at.get(thread, -_FRESH_SECONDS) >= _FRESH_SECONDS:
            await self.keep.aimport_from(self.source, thread_id=thread, verify=False)
            self._read_at[thread] = now

    async def _read_all(self) -> None:
        try:
            result = await self.keep.aimport_from(self.source, verify=False, on_progress=self._note_progress)
        except (errors.ThreadkeepError, OSError, ValueError) as error:
            self.problem = str(error)
        except _TooLarge:
            self.is_too_large = True
        else:
            self.is_complete = True
            self.problem = "; ".join(result.differences[:3]) or None

    def _note_progress(self, done: int, total: int | None, what: str) -> None:
        self.done, self.total = done, total
        if total is not None and total > MOST_CHECKPOINTS:
            raise _TooLarge(what)


class _TooLarge(Exception):
    """The database has too many checkpoints to read them all."""
