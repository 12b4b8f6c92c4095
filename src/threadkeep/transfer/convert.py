"""`threadkeep.convert`: threads and memories from one Keep into another, as they are stored, byte for byte.

The target drives the transfer. The source is only read, and threads that change meanwhile are read again. Every row and
item of the source is checked when it is read: a damaged thread is left out, or only its intact part is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep import keep as keeping
from threadkeep.clock import now_us
from threadkeep.engine.health.salvage import IntactThread, load_intact, salvage
from threadkeep.engine.identity import CUBE, Kind, ThreadKey
from threadkeep.engine.log.itemlog import SHARED, ItemId, unseal_item
from threadkeep.engine.log.records import ThreadRow, unpack_labels
from threadkeep.engine.memories.requests import LoadVectorChanges
from threadkeep.engine.requests import Batch, LoadedRows, NewLabels
from threadkeep.engine.threads import metadata
from threadkeep.engine.threads.copy import batch_of_rows
from threadkeep.errors import Conflict, Corrupt
from threadkeep.keep import Keep
from threadkeep.session import Session
from threadkeep.transfer.compare import (
    Digest,
    checkpoint_rows,
    digest_items,
    read_thread_row,
    same_rows,
    same_thread,
)
from threadkeep.transfer.memories import IncomingMemory, put_memories
from threadkeep.transfer.pipeline import Transfer, transfer_thread
from threadkeep.transfer.result import OWN_DATABASE, TransferResult
from threadkeep.transfer.selection import MemoryPage, MemoryPages, Selection, ThreadPages, count_threads, select
from threadkeep.transfer.thread_builder import ItemSlices, is_unfinished, is_untouched_copy
from threadkeep.transfer.thread_copy import PutItems, ThreadCopy, message_count
from threadkeep.urls import StorageUrl
from threadkeep.verb import blocking_verb
from threadkeep.work import Blocking, OnProgress, Progress, Work, read, retry

if TYPE_CHECKING:
    from threadkeep.encryption.keys import Keys

T = TypeVar("T")


class SourceDamagedError(Corrupt):
    """Something in the source is damaged."""


def _convert(
    source: StorageUrl | Keep,
    target: StorageUrl | Keep,
    *,
    thread_id: Any = None,
    prefix: str = "",
    kind: Kind | None = None,
    memories: bool | None = None,
    salvage: bool = False,
    verify: bool = True,
    dry_run: bool = False,
    tenant: str = "",
    source_keys: Keys | None = None,
    target_keys: Keys | None = None,
    on_progress: OnProgress | None = None,
) -> TransferResult:
    """Copy threads and memories of one Keep into another: all, or some by id (or ids), by prefix, by kind.

    Both may be URLs, which are opened for `tenant`, the source read-only, with `source_keys` and `target_keys` if they
    are encrypted. The target has its own data keys, so everything is encrypted anew. A thread that is damaged in the
    source is left out and listed in `skipped`; with `salvage`, its intact part is copied. A damaged memory is left
    out. `damage` names all of it.

    Each thread is read again on both sides and compared, unless `verify` is False. `dry_run` only counts. Repeating a
    conversion is harmless: it continues where it was interrupted, and copies what is new in the source. For async
    callers it runs in a thread, where `on_progress` is called too.
    """
    selection = select(thread_id, prefix, kind, memories=memories)
    with (
        opened(source, tenant, source_keys, read_only=True) as one,
        opened(target, tenant, target_keys, read_only=dry_run) as other,
    ):
        if one is other:
            raise ValueError("source and target are the same Keep")
        session, index = other._session, other._indexing  # noqa: SLF001 - the same package
        into = Transfer(session, index, verify=verify, dry_run=dry_run)
        conversion = _Conversion(one._session, into, selection, bool(salvage))  # noqa: SLF001
        return session.work(conversion.work(), on_progress)


convert, aconvert = blocking_verb(_convert)


@contextmanager
def opened(where: StorageUrl | Keep, tenant: str, keys: Keys | None, *, read_only: bool) -> Iterator[Keep]:
    """Open a URL for as long as the block runs. A Keep stays open."""
    if isinstance(where, Keep):
        if keys is not None:
            raise ValueError("keys are for a URL: a Keep has those that it was opened with")
        yield where
        return
    with keeping.open(where, tenant=tenant, keys=keys, read_only=read_only) as keep:
        yield keep


def _from(source: Session, work: Work[T]) -> Work[T]:
    """Do work on the source, as one step of the work on the target. SourceDamagedError if that is Corrupt."""
    try:
        done: T = yield Blocking(lambda: source.work(work))
    except Corrupt as error:
        raise SourceDamagedError(str(error)) from error
    return done


@dataclass(slots=True)
class _Conversion:
    source: Session
    into: Transfer
    selection: Selection
    salvages: bool = False
    _vectors: tuple[str, dict[int, tuple[bytes, ...]]] = ("", {})

    def work(self) -> Work[TransferResult]:
        """Transfer the selected threads, then the memories. Missing if a selected thread does not exist."""
        total = yield from _from(self.source, count_threads(self.source.tenant, self.selection))
        done, pages = 0, ThreadPages(self.source.tenant, self.selection)
        while pages:
            for key, unreadable in (yield from _from(self.source, pages.next())):
                yield Progress(done, max(total, done + 1), key.id)
                if unreadable is None:
                    yield from self._thread(key)
                else:
                    self.into.tally.damage.of_thread(key, [unreadable], skip=True)
                done += 1
        if self.selection.memories:
            yield Progress(total, total, "memories")
            yield from self._memories()
        yield Progress(total, total, "")
        return self.into.result(OWN_DATABASE)

    def _thread(self, key: ThreadKey) -> Work[None]:
        """Transfer one thread, or what is intact of it. Report it if it is damaged, on either side."""
        changed, damage = f"thread {key.id!r} was changed by others", self.into.tally.damage
        try:
            try:
                yield from retry(partial(self._whole_thread, key), changed)
            except SourceDamagedError as error:
                if not self.salvages:
                    damage.of_thread(key, [str(error)], skip=True)
                    return
                left_out = yield from retry(partial(self._intact_part, key), changed)
                damage.of_thread(key, left_out, skip=False)
        except SourceDamagedError as error:
            damage.of_thread(key, [str(error)], skip=True)
        except Corrupt as error:
            self.into.differs(key, f"the target's thread is damaged: {error}")

    def _whole_thread(self, key: ThreadKey) -> Work[None]:
        """Transfer one thread. SourceDamagedError if it is damaged, Conflict if it changes meanwhile."""
        target = self.into.session.key(key.kind, key.id)
        if not (yield from self._is_known_to_be_same(key, target)):
            loaded = yield from _from(self.source, read(lambda: load_intact(key, items=False)))
            yield from self._copy(IntactThread(loaded), target)

    def _intact_part(self, key: ThreadKey) -> Work[tuple[str, ...]]:
        """Transfer what is intact of a thread, and return what is left out."""
        part = yield from _from(self.source, read(lambda: salvage(key)))
        yield from self._copy(part, self.into.session.key(key.kind, key.id))
        return part.left_out

    def _copy(self, part: IntactThread, target: ThreadKey) -> Work[None]:
        if part.loaded.thread is not None and not is_unfinished(part.loaded):
            source = _SourceThread(self.source, part, part.loaded.thread)
            yield from transfer_thread(self.into, ThreadCopy(self.into, source, target))

    def _is_known_to_be_same(self, key: ThreadKey, target: ThreadKey) -> Work[bool]:
        """Whether both thread rows describe the same state, which is enough unless `verify`. Two round trips."""
        if self.into.verify and not self.into.dry_run:
            return False
        row = yield from _from(self.source, read_thread_row(key))
        here = yield from read_thread_row(target)
        if row is None or here is None or not same_thread(row, here) or row.description != here.description:
            return False
        self.into.tally.add("threads")
        self.into.tally.add("unchanged")
        self.into.tally.add("already_there", row.checkpoints if key.kind != CUBE else 0)
        return True

    def _memories(self) -> Work[None]:
        pages = MemoryPages(self.source.tenant, now_us())
        while pages:
            page = yield from _from(self.source, pages.next())
            self.into.tally.damage.add(*page.damage)
            yield from put_memories(self.into, (yield from self._with_vectors(page)))

    def _with_vectors(self, page: MemoryPage) -> Work[list[IncomingMemory]]:
        """Memories with the vectors of the source; without them if the target has a model to embed with.

        If a vector is damaged, all of its partition are left out, and named once.
        """
        if not page.rows or self.into.index().dims is not None:
            return [IncomingMemory(row) for row in page.rows]
        if self._vectors[0] != page.partition:
            plan = partial(_read_vectors, self.source.tenant, page.partition)
            try:
                self._vectors = (page.partition, (yield Blocking(lambda: self.source.runner.run(plan()))))
            except Corrupt as error:
                self.into.tally.damage.add(f"the vectors of {page.partition!r} were left out: {error}")
                self._vectors = (page.partition, {})
        numbers = [row.number(self.source.tenant) for row in page.rows]
        return [IncomingMemory(row, self._vectors[1].get(n)) for row, n in zip(page.rows, numbers, strict=True)]


class _SourceThread:
    """A thread of the source, or a part of it, whose rows were read and are intact."""

    def __init__(self, session: Session, part: IntactThread, row: ThreadRow) -> None:
        self.created = row.created
        self.updated = row.updated
        self.family = row.family
        self.description = row.description
        self._session = session
        self._part = part
        self._loaded = part.loaded
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
        """Whether the target's thread was copied from this one and nobody changed it since.

        A part never replaces what may have been copied before the damage.
        """
        return is_untouched_copy(row, self.created) and not self._part.left_out

    def read(self, key: ThreadKey, put: PutItems | None) -> Work[Batch | None]:
        """Check all items, pass them to `put`, and return the rows. SourceDamagedError if an item is damaged."""
        digest, slices = Digest(), ItemSlices(self._row, self._loaded.stored, self._part.replaced)
        while slices:
            items = yield from _from(self._session, _next_checked(slices, self._row))
            digest.add(items)
            if put is not None:
                yield from put(items, self._row.nexts)
        self._digest = digest
        return _batch(self._session, self._loaded, key)

    def difference(self, found: LoadedRows) -> Work[str | None]:
        """Compare rows and items. Conflict if either side changes meanwhile."""
        if same_rows(self._loaded, found) and self._digest == (yield from digest_items(found)):
            return None
        row = yield from _from(self._session, read_thread_row(self._row.key))
        if not self._part.left_out and not same_thread(self._row, row):
            raise Conflict("the source changed while it was compared")
        return "the target does not hold the same as the source"


def _next_checked(slices: ItemSlices, row: ThreadRow) -> Work[list[tuple[ItemId, bytes]]]:
    """The next items of the thread with this row. Corrupt if one is damaged."""
    items = yield from slices.next()
    for at, stored in items:
        unseal_item(at, stored, f"thread {row.key.id!r}", row.family)
    return items


def _batch(session: Session, loaded: LoadedRows, target: ThreadKey) -> Batch:
    """All rows of a thread, as a batch that adds them to another."""
    assert loaded.thread is not None
    head = session.heads.head_from(loaded.thread.key, loaded, None)
    numbers = sorted({row.labels for row in checkpoint_rows(loaded)})
    labels = {n: unpack_labels(n, loaded.items.get(ItemId(SHARED, n)), head.where, head.family) for n in numbers}
    batch = batch_of_rows(head, loaded, (NewLabels(n, metadata.tags(named)) for n, named in labels.items()))
    return batch._replace(thread=batch.thread._replace(key=target, sealed=None))


async def _read_vectors(tenant: str, partition: str) -> dict[int, tuple[bytes, ...]]:
    """Read the vectors of a partition as they are stored, by the numbers of memories."""
    found: dict[int, dict[int, bytes]] = {}
    for change in await LoadVectorChanges(tenant, partition):
        for row in change.changed:
            found.setdefault(row.memory, {})[row.field] = row.vector
    return {number: tuple(fields[n] for n in sorted(fields)) for number, fields in found.items()}
