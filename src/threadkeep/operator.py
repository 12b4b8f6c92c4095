"""The operator's verbs of a Keep: look into threads, go back, let go, check, move. Sync and async, one plan for both.

Here arguments are read and plans are named; what the verbs do is in `engine/` and, where files and other databases are
involved, in `moving/`. The command line (`cli/`) says the same words.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from threadkeep import desk as clock
from threadkeep.desk import Desk, as_count, aside, draw, now
from threadkeep.engine import catalogue, copy, prune, remembering
from threadkeep.engine.catalogue import ThreadInfo
from threadkeep.engine.identity import CUBE, GRAPH, ThreadKey, as_id
from threadkeep.engine.memories import Memory, MemoryRow
from threadkeep.moving import portable
from threadkeep.moving.bringing import Bringing, Brought
from threadkeep.moving.choosing import chosen
from threadkeep.moving.exporting import Export, Exported
from threadkeep.moving.redacting import Redaction
from threadkeep.plan import Plan
from threadkeep.work import Tell

_Change: TypeAlias = tuple[ThreadKey, Callable[[], Plan[None]]]
"""A thread, and the plan that changes it."""


class Operator:
    """What a person, or a program in their place, does with all threads of a Keep. Its subclass is the Keep."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def sweep(self) -> int:
        """Remove what has expired; how many memories it were."""
        return self._desk.apart(lambda: remembering.sweep(clock.now_exactly()))

    async def asweep(self) -> int:
        """The same for async callers."""
        return await self._desk.aapart(lambda: remembering.sweep(clock.now_exactly()))

    def threads(
        self,
        *,
        limit: int = 50,
        after: str | ThreadInfo | None = None,
        prefix: str = "",
        metadata: Mapping[str, Any] | None = None,
        status: str | None = None,
        order: str = "updated",
        kind: str | None = None,
    ) -> list[ThreadInfo]:
        """A page of the thread catalogue, both kinds, read from the thread rows alone.

        `order` is updated, created or bytes (greatest first) or id; `after` is the last thread of the page before,
        best as its ThreadInfo. `metadata` compares with that of each thread's newest root checkpoint. One round trip.
        """
        query, wanted, last = self._query(limit, after, prefix, metadata, status, order, kind)
        return self._desk.runner.run(catalogue.threads(query, wanted, last))

    async def athreads(
        self,
        *,
        limit: int = 50,
        after: str | ThreadInfo | None = None,
        prefix: str = "",
        metadata: Mapping[str, Any] | None = None,
        status: str | None = None,
        order: str = "updated",
        kind: str | None = None,
    ) -> list[ThreadInfo]:
        """The same for async callers."""
        query, wanted, last = self._query(limit, after, prefix, metadata, status, order, kind)
        return await self._desk.runner.arun(lambda: catalogue.threads(query, wanted, last))

    def thread(self, thread_id: str, *, kind: str | None = None) -> ThreadInfo | None:
        """One thread of the catalogue, or None. `kind` is needed where both kinds have this id."""
        return self._desk.runner.run(self._info_of(thread_id, kind))

    async def athread(self, thread_id: str, *, kind: str | None = None) -> ThreadInfo | None:
        """The same for async callers."""
        return await self._desk.runner.arun(lambda: self._info_of(thread_id, kind))

    def _info_of(self, thread_id: str, kind: str | None) -> Plan[ThreadInfo | None]:
        return catalogue.thread(self._desk.tenant, as_id(thread_id, "thread_id"), _checked_kind(kind))

    def _query(
        self, limit: int, after: Any, prefix: str, metadata: Any, status: str | None, order: str, kind: str | None
    ) -> tuple[Any, Mapping[str, Any], str | None]:
        if metadata is not None and not (
            isinstance(metadata, Mapping) and all(isinstance(key, str) for key in metadata)
        ):
            raise TypeError(f"metadata must be a dict with str keys, not {metadata!r}")
        query = catalogue.query(
            self._desk.tenant, limit=as_count(limit, "limit"), after=after, prefix=as_id(prefix, "prefix"),
            metadata=metadata, status=status, order=order, kind=_checked_kind(kind),
        )  # fmt: skip
        last = None if after is None or isinstance(after, ThreadInfo) else as_id(after, "after")
        return query, dict(metadata or {}), last

    def delete(self, thread_id: str, *, kind: str | None = None) -> bool:
        """Remove a thread and all that it holds; whether it was there. `kind` is needed where both kinds have this id."""
        return self._change(thread_id, kind, self._deleting)

    async def adelete(self, thread_id: str, *, kind: str | None = None) -> bool:
        """The same for async callers."""
        return await self._achange(thread_id, kind, self._deleting)

    def copy(self, source_thread_id: str, target_thread_id: str, *, kind: str | None = None) -> bool:
        """Copy a thread with all its checkpoints; whether it was there. The copy survives it.

        Of a LangGraph thread, checkpoints that the target has stay; onto a CubeLoop thread that exists it is a
        ValueError.
        """
        return self._change(source_thread_id, kind, self._copying(target_thread_id))

    async def acopy(self, source_thread_id: str, target_thread_id: str, *, kind: str | None = None) -> bool:
        """The same for async callers."""
        return await self._achange(source_thread_id, kind, self._copying(target_thread_id))

    def prune(self, thread_id: str, *, kind: str | None = None) -> bool:
        """Keep only the latest checkpoint of each namespace, and what it needs; whether the thread was there."""
        return self._change(thread_id, kind, self._pruning)

    async def aprune(self, thread_id: str, *, kind: str | None = None) -> bool:
        """The same for async callers."""
        return await self._achange(thread_id, kind, self._pruning)

    # -- Moving --

    def export(
        self,
        file: portable.Where,
        *,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        kind: str | None = None,
        memories: bool | None = None,
        redact: bool = False,
        on_progress: Tell | None = None,
    ) -> Exported:
        """Write threads and memories into a portable file: a path, or a binary file that is open for writing.

        All threads, or one or some by their ids, or those whose ids begin with `prefix`, of one kind or both. Memories
        belong to no thread: unless it is said, they go along with all threads only. `redact` replaces what people
        wrote. A path is written whole or not at all; it is compressed, unless its name ends in .jsonl. Each thread is
        as of one moment.
        """
        of = chosen(thread_id, prefix, kind, memories=memories)
        about = {"made": _moment(), "by": "threadkeep", "tenant": "" if redact else self._desk.tenant}
        redacting = Redaction(secrets.token_bytes(32)) if redact else None
        with portable.writing(file) as out:
            return self._desk.work(Export(self._desk, of, out, redacting).work(about), on_progress)

    async def aexport(
        self,
        file: portable.Where,
        *,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        kind: str | None = None,
        memories: bool | None = None,
        redact: bool = False,
        on_progress: Tell | None = None,
    ) -> Exported:
        """The same for async callers; in a thread, where `on_progress` is called too."""
        return await aside(
            lambda: self.export(
                file, thread_id=thread_id, prefix=prefix, kind=kind, memories=memories, redact=redact,
                on_progress=on_progress,
            )
        )  # fmt: skip

    def import_portable(
        self,
        file: portable.Where,
        *,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        kind: str | None = None,
        memories: bool | None = None,
        partial: bool = False,
        on_progress: Tell | None = None,
    ) -> Brought:
        """Bring threads and memories of a portable file here: a path, or a binary file that is open for reading.

        What is here stays: a thread gets the checkpoints that it has not, a talk that differs is told of in
        `differing`. Repeating it is harmless, and goes on where it was interrupted. Each thread is read again and
        compared with the file. A file that is cut off, or is not as it was written, is a ValueError; threads that were
        whole before that are here then. With `partial` a file may be cut off.
        """
        of = chosen(thread_id, prefix, kind, memories=memories)
        with portable.reading(file) as lines:
            work = Bringing(self._desk, lines, of, self._index_memories, partial).work()
            return self._desk.work(work, on_progress)

    async def aimport_portable(
        self,
        file: portable.Where,
        *,
        thread_id: str | Sequence[str] | None = None,
        prefix: str = "",
        kind: str | None = None,
        memories: bool | None = None,
        partial: bool = False,
        on_progress: Tell | None = None,
    ) -> Brought:
        """The same for async callers; in a thread, where `on_progress` is called too."""
        return await aside(
            lambda: self.import_portable(
                file, thread_id=thread_id, prefix=prefix, kind=kind, memories=memories, partial=partial,
                on_progress=on_progress,
            )
        )  # fmt: skip

    def _index_memories(self, rows: Sequence[MemoryRow]) -> list[Memory]:
        """Memories that come from elsewhere, with what this Keep's store finds them by."""
        raise NotImplementedError

    # -- Moving ends --

    def _deleting(self, key: ThreadKey) -> _Change:
        return key, lambda: prune.delete(self._desk.heads, key)

    def _pruning(self, key: ThreadKey) -> _Change:
        return key, lambda: prune.prune(self._desk.heads, key, prune.KEEP_LATEST, draw())

    def _copying(self, target_thread_id: str) -> Callable[[ThreadKey], _Change]:
        id = as_id(target_thread_id, "target_thread_id")

        def of(source: ThreadKey) -> _Change:
            target = self._desk.key(source.kind, id)
            return target, lambda: copy.copy(self._desk.heads, source, target, now(), draw())

        return of

    def _change(self, thread_id: str, kind: str | None, change: Callable[[ThreadKey], _Change]) -> bool:
        """Change a thread, if it is there."""
        key = self._desk.runner.run(self._key_of(thread_id, kind))
        if key is not None:
            self._desk.exclusive(*change(key))
        return key is not None

    async def _achange(self, thread_id: str, kind: str | None, change: Callable[[ThreadKey], _Change]) -> bool:
        key = await self._desk.runner.arun(lambda: self._key_of(thread_id, kind))
        if key is not None:
            await self._desk.aexclusive(*change(key))
        return key is not None

    def _key_of(self, thread_id: str, kind: str | None) -> Plan[ThreadKey | None]:
        return catalogue.key_of(self._desk.tenant, as_id(thread_id, "thread_id"), _checked_kind(kind))


def _checked_kind(kind: str | None) -> str | None:
    if kind not in (None, GRAPH, CUBE):
        raise ValueError(f"kind must be {GRAPH} or {CUBE}, not {kind!r}")
    return kind


def _moment() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
