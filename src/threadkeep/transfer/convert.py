"""Converting: from one Keep to another, on any backends. Rows and items are taken over as they are stored.

A thread that the target has not is made of the same items, under the same ids, with the same rows and times; only its
epoch is its own. One that was made so, of a thread that began at the same time, and that nobody has changed since is made
anew if the source's has changed. Any other thread that is there stays: checkpoints are added that it has not, and a talk
that differs is told of.

So what was interrupted is begun again by the same call: threads that are the same on both sides are left alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from threadkeep import keep as keeping
from threadkeep.desk import Desk, aside, draw, now_exactly
from threadkeep.engine import metadata
from threadkeep.engine.backend import Batch, Label, Loaded, Pause
from threadkeep.engine.checkpoints import TRIES
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.itemlog import SHARED, ItemId
from threadkeep.engine.memories import MemoryRow, VectorChanges
from threadkeep.engine.records import unpack_labels
from threadkeep.engine.spaces import memory_number
from threadkeep.errors import Conflict
from threadkeep.keep import Keep
from threadkeep.transfer import remembering
from threadkeep.transfer import selection as choosing
from threadkeep.transfer.selection import Chosen, chosen
from threadkeep.transfer.compare import Digest, digest_of, places, row_of, same_rows, same_thread, surveyed
from threadkeep.transfer.thread_builder import Making, Slices, bytes_of_rows, hidden, is_older, is_unfinished
from threadkeep.transfer.merging import merged, removed
from threadkeep.plan import Failure, Outcome, Reply, attempt, result, resume
from threadkeep.work import Progress, Read, Step, Tell, Work

T = TypeVar("T")
Both: TypeAlias = Generator[Any, Any, T]
"""Work on two Keeps: its steps are for the source, or `At` the target."""
COPIED, SAME, RENEWED, MERGED, LEFT, GONE = "copied", "same", "renewed", "merged", "left", "gone"


class At(NamedTuple):
    """A step on a certain Keep."""

    desk: Desk
    step: Step


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of the source's threads.

    `copied` were made; `same` were there already; `renewed` had been converted before and the source's had changed;
    `merged` had checkpoints of their own, which stayed. `differing` tells of those that are not as the source's now.
    """

    threads: int
    copied: int
    same: int
    renewed: int
    merged: int
    memories: int
    differing: tuple[str, ...]
    verified: bool
    dry_run: bool


def convert(
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
    on_progress: Tell | None = None,
) -> Converted:
    """Bring all threads and memories of one Keep into another, or some: by id (or ids), by prefix, by kind.

    Both may be URLs: the source is opened read-only, both for `tenant`. Each thread is verified by reading both sides,
    unless `verify` is False. Repeating it is harmless, goes on where it was interrupted, and brings what is new since.
    """
    of = chosen(thread_id, prefix, kind, memories=memories)
    with _opened(source, tenant, read_only=True) as one, _opened(target, tenant, read_only=dry_run) as other:
        if one is other:
            raise ValueError("source and target are the same Keep")
        house = _House(one, other, of, verify=verify and not dry_run, dry_run=dry_run)
        return _carried_out(house.work(), house.source, on_progress)


async def aconvert(
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
    on_progress: Tell | None = None,
) -> Converted:
    """The same for async callers; in a thread, where `on_progress` is called too."""
    return await aside(
        lambda: convert(
            source, target, thread_id=thread_id, prefix=prefix, kind=kind, memories=memories, verify=verify,
            dry_run=dry_run, tenant=tenant, on_progress=on_progress,
        )
    )  # fmt: skip


@contextmanager
def _opened(where: str | Keep, tenant: str, *, read_only: bool) -> Iterator[Keep]:
    if isinstance(where, Keep):
        yield where
        return
    with keeping.open(where, tenant=tenant, read_only=read_only) as keep:
        yield keep


def _carried_out(work: Both[T], source: Desk, tell: Tell | None) -> T:
    """Carry out the steps, each on its Keep."""
    step = resume(work, Reply())
    while not isinstance(step, (Reply, Failure)):
        desk, inner = step if isinstance(step, At) else (source, step)
        step = resume(work, attempt(partial(desk.work, _once(inner), tell)))
    done: T = result(step)
    return done


def _once(step: Step) -> Work[Any]:
    return (yield step)


def _at(desk: Desk, work: Work[T]) -> Both[T]:
    """Work on one certain Keep."""
    outcome: Outcome = Reply()
    while True:
        step = resume(work, outcome)
        if isinstance(step, (Reply, Failure)):
            done: T = result(step)
            return done
        try:
            outcome = Reply((yield At(desk, step)))
        except BaseException as error:  # noqa: BLE001 - the work decides
            outcome = Failure(error)


@dataclass(slots=True)
class _House:
    """A move: from where, to where, and what became of what."""

    of_source: Keep
    of_target: Keep
    of: Chosen
    verify: bool
    dry_run: bool
    counts: dict[str, int] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    memories: int = 0
    _vectors: tuple[str, dict[int, tuple[bytes, ...]]] | None = None

    @property
    def source(self) -> Desk:
        """Where it comes from."""
        return self.of_source._desk  # noqa: SLF001 - of the same package

    @property
    def target(self) -> Desk:
        """Where it goes."""
        return self.of_target._desk  # noqa: SLF001 - of the same package

    def work(self) -> Both[Converted]:
        """All of it."""
        total = yield from choosing.each_thread(self.source.tenant, self.of, self._thread)
        if self.of.memories:
            yield Progress(total, total, "memories")
            yield from choosing.each_memory(self.source.tenant, now_exactly(), self._take_memories)
        yield Progress(total, total, "")
        told = {name: self.counts.get(name, 0) for name in (COPIED, SAME, RENEWED, MERGED)}
        return Converted(
            threads=total, memories=self.memories, differing=tuple(self.differing), verified=self.verify,
            dry_run=self.dry_run, **told,
        )  # fmt: skip

    # -- threads

    def _thread(self, key: ThreadKey, done: int, total: int) -> Both[None]:
        """One thread; read again if it changes meanwhile."""
        yield Progress(done, total, key.id)
        for tried in range(TRIES):
            try:
                became = yield from self._moved(key, self.target.key(key.kind, key.id))
            except Conflict:
                yield Read(partial(_pause, tried))
                continue
            self.counts[became] = self.counts.get(became, 0) + 1
            return
        raise Conflict(f"thread {key.id!r} was changed by others at each of {TRIES} tries")

    def _moved(self, key: ThreadKey, target: ThreadKey) -> Both[str]:
        there = yield from _at(self.target, row_of(target))
        if there is not None and same_thread((yield from row_of(key)), there):
            return (yield from self._same(key, target))
        loaded: Loaded = yield from surveyed(key)
        if loaded.thread is None or is_unfinished(loaded):
            return GONE
        found: Loaded = yield from _at(self.target, surveyed(target))
        if found.thread is None:
            return (yield from self._copied(loaded, target, COPIED))
        if is_unfinished(found) or is_older(found.thread, loaded.thread.created):
            if not self.dry_run:
                yield from _at(self.target, removed(self.target, found))
            return (yield from self._copied(loaded, target, COPIED if is_unfinished(found) else RENEWED))
        if key.kind == CUBE:
            self.differing.append(f"{key.kind} {key.id}: the target has another talk of this id; it was left alone")
            return LEFT
        return (yield from self._merged(loaded, target))

    def _same(self, key: ThreadKey, target: ThreadKey) -> Both[str]:
        """Threads whose rows say the same: whether they hold the same is read if that is wanted."""
        if self.verify:
            one = yield from surveyed(key)
            if one.thread is None:
                return GONE
            yield from self._compared(one, (yield from digest_of(one)), target)
        return SAME

    def _copied(self, loaded: Loaded, target: ThreadKey, became: str) -> Both[str]:
        if not self.dry_run:
            digest = yield from self._made(loaded, target)
            if self.verify:
                yield from self._compared(loaded, digest, target)
        return became

    def _made(self, loaded: Loaded, target: ThreadKey) -> Both[Digest]:
        """Make the thread of a survey under another key; the digest of its items."""
        row = loaded.thread
        assert row is not None
        making = Making(self.target.heads, target, row.created, row.updated, draw())
        slices, digest = Slices(row, loaded.stored), Digest()
        while slices:
            items = yield from slices.next()
            digest.add(items)
            yield from _at(self.target, making.add(items, row.nexts))
        batch = _rows(self.source, loaded, target)
        yield from _at(self.target, making.finish(batch))
        return digest

    def _compared(self, loaded: Loaded, digest: Digest, target: ThreadKey) -> Both[None]:
        """Read the target, and tell if it is not as the source is. Conflict if it changes meanwhile."""
        found = yield from _at(self.target, surveyed(target))
        if found.thread is None:
            raise Conflict(f"thread {target.id!r} was removed while it was compared")
        same = same_rows(loaded, found) and digest == (yield from _at(self.target, digest_of(found)))
        if not same:
            self._check_is_still(loaded, (yield from row_of(_key(loaded))))
            self.differing.append(f"{target.kind} {target.id}: the target holds something else than the source")

    @staticmethod
    def _check_is_still(loaded: Loaded, row: Any) -> None:
        if not same_thread(loaded.thread, row):
            raise Conflict("the source changed while it was compared")

    def _merged(self, loaded: Loaded, target: ThreadKey) -> Both[str]:
        """Add what the target's thread has not, by way of a thread that nobody sees."""
        if self.dry_run:
            return MERGED
        beside = hidden(target)
        old = yield from _at(self.target, surveyed(beside))
        if old.thread is not None:
            yield from _at(self.target, removed(self.target, old))
        yield from self._made(loaded, beside)
        yield from _at(self.target, merged(self.target, beside, target))
        if self.verify:
            found = yield from _at(self.target, surveyed(target))
            if lost := places(loaded) - places(found):
                self.differing.append(f"{target.kind} {target.id}: {len(lost)} checkpoints or writes are not there")
        return MERGED

    # -- memories

    def _take_memories(self, first: str, rows: list[MemoryRow]) -> Both[None]:
        if self.dry_run:
            lacking = yield from _at(self.target, remembering.lacking(self.target.tenant, rows, now_exactly()))
            self.memories += len(lacking)
            return
        known = yield from self._vectors_of(first)
        numbers = {row: memory_number(self.source.tenant, row.place) for row in rows}
        vectors = {row: known[number] for row, number in numbers.items() if number in known}
        index = self.of_target._index_memories  # noqa: SLF001 - of the same package
        tenant, time = self.target.tenant, now_exactly()
        self.memories += yield from _at(self.target, remembering.take_in(tenant, rows, index, time, vectors))
        if self.verify:
            yield from self._compare_memories(rows)

    def _compare_memories(self, rows: list[MemoryRow]) -> Both[None]:
        time = now_exactly()
        lacking = yield from _at(self.target, remembering.lacking(self.target.tenant, rows, time))
        changed = set((yield from remembering.lacking(self.source.tenant, lacking, time)))
        self.differing += [
            f"memory {row.key!r} in {row.space!r}: the target holds something else"
            for row in lacking
            if row not in changed and (row.expires is None or row.expires > time)
        ]

    def _vectors_of(self, first: str) -> Both[dict[int, tuple[bytes, ...]]]:
        """The vectors of a partition, as they are stored; none where the target embeds by itself."""
        if self.of_target._embeds:  # noqa: SLF001 - of the same package
            return {}
        if self._vectors is None or self._vectors[0] != first:
            found = yield Read(partial(_vectors, self.source.tenant, first))
            self._vectors = (first, found)
        return self._vectors[1]


def _key(loaded: Loaded) -> ThreadKey:
    assert loaded.thread is not None
    return loaded.thread.key


async def _pause(tried: int) -> None:
    await Pause(tried)


async def _vectors(tenant: str, first: str) -> dict[int, tuple[bytes, ...]]:
    found: dict[int, dict[int, bytes]] = {}
    for change in await VectorChanges(tenant, first):
        for row in change.changed:
            found.setdefault(row.memory, {})[row.field] = row.vector
    return {number: tuple(fields[n] for n in sorted(fields)) for number, fields in found.items()}


def _rows(desk: Desk, loaded: Loaded, target: ThreadKey) -> Batch:
    """All rows of a surveyed thread, as a change that adds them to another."""
    assert loaded.thread is not None
    head = desk.heads.seen(loaded.thread.key, loaded, None)
    checkpoints = tuple(found.row for found in loaded.found if found.row is not None)
    writes = tuple(row for found in loaded.found for row in found.writes)
    runs = [row.run for row in checkpoints]
    runs += [entry.origin[1] for row in writes for entry in head.task(row).entries.values()]
    labels = {row.labels for row in checkpoints}
    return Batch(
        expect=None,
        thread=loaded.thread._replace(key=target, bytes=bytes_of_rows(loaded), lease=None),
        new_checkpoints=checkpoints,
        new_writes=writes,
        labels=tuple(Label(n, metadata.tags(_labels(loaded, n, head.where))) for n in sorted(labels)),
        runs=tuple(dict.fromkeys(run for run in runs if run is not None)),
    )


def _labels(loaded: Loaded, n: int, where: str) -> dict[str, Any]:
    return unpack_labels(n, loaded.items.get(ItemId(SHARED, n)), where)
