"""Memories: stored where they are not, or where the source's are younger; then compared.

Vectors are taken over where they have the dimensions of the index here; otherwise texts are embedded again, if there is
an index. Memories that have expired stay where they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from threadkeep.desk import now_exactly
from threadkeep.engine.memories import Memory, MemoryRow, Recall
from threadkeep.engine.remembering import remember
from threadkeep.engine.values import load
from threadkeep.transfer.sources.source import Memories, Remembered, UnreadableError
from threadkeep.transfer.result import Tally
from threadkeep.work import Aside, Change, Progress, Read, Work

_AT_ONCE = 200


class Indexing(Protocol):
    """How values are found by queries, here."""

    @property
    def dims(self) -> int | None:
        """The dimensions of vectors, if there are any."""

    def texts(self, value: Mapping[str, Any], fields: Sequence[str] | None) -> tuple[str, ...]:
        """What of a value is embedded."""

    def words(self, value: Mapping[str, Any], fields: Sequence[str] | None) -> str:
        """The words of a value."""

    def embed(self, texts: Any, queries: Any) -> Any:
        """Texts as vectors."""


@dataclass(slots=True)
class Shelf:
    """All memories of a source on their way to here."""

    source: Memories
    tenant: str
    index: Indexing
    tally: Tally

    def moved(self, *, verify: bool) -> Work[None]:
        """Bring in what is missing or younger, and compare."""
        takes_over: bool = yield Aside(self.source.has_vectors)
        reading = self.source.rows()
        while some := (yield Aside(lambda: list(islice(reading, _AT_ONCE)))):
            living = self._living(some)
            wanted = yield from self._wanted(living)
            yield from self._stored(wanted, takes_over=takes_over)
            if verify:
                yield from self._compared([each.row for each in wanted])
            self.tally.done += len(some)
            self.tally.skipped += len(living) - len(wanted)
            yield Progress(self.tally.done, self.tally.total, "memories")

    def counted(self) -> Work[None]:
        """Count what `moved` would bring in."""
        reading = self.source.rows()
        while some := (yield Aside(lambda: list(islice(reading, _AT_ONCE)))):
            living = self._living(some)
            wanted = yield from self._wanted(living)
            self.tally.memories += len(wanted)
            self.tally.skipped += len(living) - len(wanted)

    def _living(self, some: Sequence[Remembered | UnreadableError]) -> list[Remembered]:
        """Those that can be read and have not expired."""
        living = []
        for each in some:
            if isinstance(each, UnreadableError):
                self.tally.differs(f"{each}, left out")
            elif each.row.expires is not None and each.row.expires <= now_exactly():
                self.tally.skipped += 1
            else:
                living.append(each)
        return living

    def _wanted(self, some: Sequence[Remembered]) -> Work[list[Remembered]]:
        """Those that are not here, or older."""
        here = yield Read(lambda: _recalled(self.tenant, [each.row for each in some]))
        return [
            each
            for each, held in zip(some, here, strict=True)
            if held is None or (held.updated <= each.row.updated and not _is_same(held, each.row))
        ]

    def _stored(self, wanted: Sequence[Remembered], *, takes_over: bool) -> Work[None]:
        if wanted:
            memories = yield Aside(lambda: list(self._indexed(wanted, takes_over=takes_over)))
            yield Change(None, lambda: remember(self.tenant, memories, (), now_exactly()))
            self.tally.memories += len(wanted)
            self.tally.bytes += sum(len(each.row.value) for each in wanted)

    def _indexed(self, wanted: Sequence[Remembered], *, takes_over: bool) -> Iterator[Memory]:
        """Memories with their vectors and words."""
        values = [load(each.row.value) for each in wanted]
        fits = [takes_over and self._fits(each) for each in wanted]
        texts = [() if fit else self.index.texts(value, None) for fit, value in zip(fits, values, strict=True)]
        vectors = self.index.embed([text for some in texts for text in some], []).texts
        for each, value, fit, some in zip(wanted, values, fits, texts, strict=True):
            own = each.vectors if fit and self.index.dims is not None else tuple(vectors[text] for text in some)
            yield Memory(each.row, own, self.index.words(value, None))

    def _fits(self, each: Remembered) -> bool:
        """Whether the vectors of a memory are of the length that they have here; none at all is what it was stored with."""
        dims = self.index.dims
        return dims is None or all(len(vector) == 4 * dims for vector in each.vectors)

    def _compared(self, rows: Sequence[MemoryRow]) -> Work[None]:
        here = yield Read(lambda: _recalled(self.tenant, rows))
        for row, held in zip(rows, here, strict=True):
            if held is None or not _is_same(held, row):
                what = "is not here" if held is None else "differs"
                self.tally.differs(f"memory {row.key!r} of {'.'.join(row.space)!r}: {what}")


def _is_same(held: MemoryRow, row: MemoryRow) -> bool:
    """Whether a memory is as it was in the source; the order of its keys does not count, databases change it."""
    values = [json.dumps(load(each.value), sort_keys=True) for each in (held, row)]
    return values[0] == values[1] and (held.updated, held.ttl) == (row.updated, row.ttl)


async def _recalled(tenant: str, rows: Sequence[MemoryRow]) -> tuple[MemoryRow | None, ...]:
    return await Recall(tenant, tuple(row.place for row in rows), now_exactly()) if rows else ()
