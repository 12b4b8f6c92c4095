"""`threadkeep.convert`: threads and memories from one Keep into another, as they are stored, byte for byte.

The target drives the transfer. The source is only read, and threads that change meanwhile are read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from threadkeep import keep as keeping
from threadkeep.clock import now_us
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.log.itemlog import SHARED, ItemId
from threadkeep.engine.log.records import ThreadRow, unpack_labels
from threadkeep.engine.memories.namespaces import memory_number
from threadkeep.engine.memories.requests import LoadVectorChanges
from threadkeep.engine.requests import Batch, LoadedRows, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.errors import Conflict
from threadkeep.keep import Keep
from threadkeep.session import Session
from threadkeep.transfer.compare import (
    Digest,
    checkpoint_rows,
    digest_items,
    read_rows,
    read_thread_row,
    same_rows,
    same_thread,
    write_rows,
)
from threadkeep.transfer.memories import IncomingMemory, put_memories
from threadkeep.transfer.pipeline import Transfer, transfer_thread
from threadkeep.transfer.result import OWN_DATABASE, TransferResult
from threadkeep.transfer.selection import MemoryPage, MemoryPages, Selection, ThreadPages, count_threads, select
from threadkeep.transfer.thread_builder import ItemSlices, is_unfinished, is_untouched_copy
from threadkeep.transfer.thread_copy import PutItems, ThreadCopy, message_count
from threadkeep.verb import blocking_verb
from threadkeep.work import Blocking, OnProgress, Progress, Work, retry

T = TypeVar("T")


def _convert(
    source: str | Keep,
    target: str | Keep,
    *,
    thread_id: Any = None,
    prefix: str = "",
    kind: str | None = None,
    memories: bool | None = None,
    verify: bool = True,
    dry_run: bool = False,
    tenant: str = "",
    on_progress: OnProgress | None = None,
) -> TransferResult:
    """Copy threads and memories of one Keep into another: all, or some by id (or ids), by prefix, by kind.

    Both may be URLs, which are opened for `tenant`, the source read-only. Each thread is read again on both sides and
    compared, unless `verify` is False. `dry_run` only counts. Repeating a conversion is harmless: it continues where it
    was interrupted, and copies what is new in the source. For async callers it runs in a thread, where `on_progress` is
    called too.
    """
    selection = select(thread_id, prefix, kind, memories=memories)
    with opened(source, tenant, read_only=True) as one, opened(target, tenant, read_only=dry_run) as other:
        if one is other:
            raise ValueError("source and target are the same Keep")
        session, index = other._session, other._indexing  # noqa: SLF001 - the same package
        into = Transfer(session, index, verify=verify, dry_run=dry_run)
        return session.work(_Conversion(one._session, into, selection).work(), on_progress)  # noqa: SLF001


convert, aconvert = blocking_verb(_convert)


@contextmanager
def opened(where: str | Keep, tenant: str, *, read_only: bool) -> Iterator[Keep]:
    """Open a URL for as long as the block runs. A Keep stays open."""
    if isinstance(where, Keep):
        yield where
        return
    with keeping.open(where, tenant=tenant, read_only=read_only) as keep:
        yield keep


def _from(source: Session, work: Work[T]) -> Work[T]:
    """Do work on the source, as one step of the work on the target."""
    done: T = yield Blocking(lambda: source.work(work))
    return done


@dataclass(slots=True)
class _Conversion:
    source: Session
    into: Transfer
    selection: Selection
    _vectors: tuple[str, dict[int, tuple[bytes, ...]]] = ("", {})

    def work(self) -> Work[TransferResult]:
        """Transfer the selected threads, then the memories. Missing if a selected thread does not exist."""
        total = yield from _from(self.source, count_threads(self.source.tenant, self.selection))
        done, pages = 0, ThreadPages(self.source.tenant, self.selection)
        while pages:
            for key in (yield from _from(self.source, pages.next())):
                yield Progress(done, max(total, done + 1), key.id)
                changed = f"thread {key.id!r} was changed by others"
                yield from retry(partial(self._thread, key), changed)
                done += 1
        if self.selection.memories:
            yield Progress(total, total, "memories")
            yield from self._memories()
        yield Progress(total, total, "")
        return self.into.result(OWN_DATABASE)

    def _thread(self, key: ThreadKey) -> Work[None]:
        """Transfer one thread. Conflict if it changes meanwhile."""
        target = self.into.session.key(key.kind, key.id)
        if (yield from self._is_known_to_be_same(key, target)):
            return
        loaded = yield from _from(self.source, read_rows(key))
        if loaded.thread is not None and not is_unfinished(loaded):
            thread = ThreadCopy(self.into, _SourceThread(self.source, loaded, loaded.thread), target)
            yield from transfer_thread(self.into, thread)

    def _is_known_to_be_same(self, key: ThreadKey, target: ThreadKey) -> Work[bool]:
        """Whether both thread rows describe the same state, which is enough unless `verify`. Two round trips."""
        if self.into.verify and not self.into.dry_run:
            return False
        row = yield from _from(self.source, read_thread_row(key))
        if row is None or not same_thread(row, (yield from read_thread_row(target))):
            return False
        self.into.tally.add("threads")
        self.into.tally.add("unchanged")
        self.into.tally.add("already_there", row.checkpoints if key.kind != CUBE else 0)
        return True

    def _memories(self) -> Work[None]:
        pages = MemoryPages(self.source.tenant, now_us())
        while pages:
            page = yield from _from(self.source, pages.next())
            yield from put_memories(self.into, (yield from self._with_vectors(page)))

    def _with_vectors(self, page: MemoryPage) -> Work[list[IncomingMemory]]:
        """Memories with the vectors of the source; without them if the target has a model to embed with."""
        if not page.rows or self.into.index().dims is not None:
            return [IncomingMemory(row) for row in page.rows]
        if self._vectors[0] != page.partition:
            plan = partial(_read_vectors, self.source.tenant, page.partition)
            self._vectors = (page.partition, (yield Blocking(lambda: self.source.runner.run(plan()))))
        numbers = [memory_number(self.source.tenant, row.memory_key) for row in page.rows]
        return [IncomingMemory(row, self._vectors[1].get(n)) for row, n in zip(page.rows, numbers, strict=True)]


class _SourceThread:
    """A thread of the source whose rows were read."""

    def __init__(self, session: Session, loaded: LoadedRows, row: ThreadRow) -> None:
        self.created = row.created
        self.updated = row.updated
        self.family = row.family
        self._session = session
        self._loaded = loaded
        self._row = row
        self._digest: Digest | None = None

    @property
    def messages(self) -> int:
        """Its messages, if it is a CubeLoop thread."""
        return message_count(self._session.heads, self._loaded)

    def is_same_as(self, row: ThreadRow) -> bool:
        """Whether the target's thread, by its row, is in the same state."""
        return same_thread(self._row, row)

    def replaces(self, row: ThreadRow) -> bool:
        """Whether the target's thread was copied from this one and nobody changed it since."""
        return is_untouched_copy(row, self.created)

    def read(self, key: ThreadKey, put: PutItems | None) -> Work[Batch | None]:
        """Pass all items to `put`, and return the rows."""
        if put is not None:
            digest, slices = Digest(), ItemSlices(self._row, self._loaded.stored)
            while slices:
                items = yield from _from(self._session, slices.next())
                digest.add(items)
                yield from put(items, self._row.nexts)
            self._digest = digest
        return _batch(self._session, self._loaded, key)

    def difference(self, found: LoadedRows) -> Work[str | None]:
        """Compare rows and items. Conflict if either side changes meanwhile."""
        digest = self._digest
        if digest is None:
            digest = yield from _from(self._session, digest_items(self._loaded))
        if same_rows(self._loaded, found) and digest == (yield from digest_items(found)):
            return None
        row = yield from _from(self._session, read_thread_row(self._row.key))
        if not same_thread(self._row, row):
            raise Conflict("the source changed while it was compared")
        return "the target does not hold the same as the source"


def _batch(session: Session, loaded: LoadedRows, target: ThreadKey) -> Batch:
    """All rows of a thread, as a batch that adds them to another."""
    assert loaded.thread is not None
    head = session.heads.head_from(loaded.thread.key, loaded, None)
    checkpoints, writes = tuple(checkpoint_rows(loaded)), tuple(write_rows(loaded))
    runs = [row.run for row in checkpoints]
    runs += [entry.origin[1] for row in writes for entry in head.task(row).entries.values()]
    labels = {
        n: unpack_labels(n, loaded.items.get(ItemId(SHARED, n)), head.where, head.family)
        for n in sorted({row.labels for row in checkpoints})
    }
    size = sum(row.size for row in checkpoints) + sum(row.size for row in writes)
    return Batch(
        expect=None,
        thread=loaded.thread._replace(key=target, bytes=size, lease=None),
        new_checkpoints=checkpoints,
        new_writes=writes,
        labels=tuple(NewLabels(n, metadata.tags(named)) for n, named in labels.items()),
        runs=tuple(dict.fromkeys(run for run in runs if run is not None)),
    )


async def _read_vectors(tenant: str, partition: str) -> dict[int, tuple[bytes, ...]]:
    """Read the vectors of a partition as they are stored, by the numbers of memories."""
    found: dict[int, dict[int, bytes]] = {}
    for change in await LoadVectorChanges(tenant, partition):
        for row in change.changed:
            found.setdefault(row.memory, {})[row.field] = row.vector
    return {number: tuple(fields[n] for n in sorted(fields)) for number, fields in found.items()}
