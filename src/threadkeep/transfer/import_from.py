"""`Keep.import_from`: every thread and memory that another library's saver, store or checkpointer holds.

An import may be interrupted at any point and repeated. What the target has already is not put again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from threadkeep.engine.identity import CUBE, GRAPH
from threadkeep.errors import Missing
from threadkeep.transfer.cube_threads import CubeThread
from threadkeep.transfer.graph_threads import GraphThread
from threadkeep.transfer.memories import IncomingMemory, put_memories
from threadkeep.transfer.pipeline import IncomingThread, Transfer, transfer_thread
from threadkeep.transfer.result import TransferResult
from threadkeep.transfer.selection import Selection
from threadkeep.transfer.sources.detect import detect
from threadkeep.transfer.sources.source import ForeignMemories, ForeignMemory, Source, UnreadableError
from threadkeep.transfer.sources.value_cipher import ReadsEncrypted, cipher_for
from threadkeep.work import Blocking, Progress, Work

_MEMORIES = 200
"""Memories that are read at a time."""


class _SourceContents(NamedTuple):
    """The ids of the selected threads of a source."""

    source: Source
    graph: list[str]
    cube: list[str]


def import_from(
    into: Transfer, given: Any, kind: str | None, selection: Selection, *, serde: Any = None
) -> Work[TransferResult]:
    """Import. Missing if a selected thread does not exist; what `detect` raises if there is no such source.

    `serde` is the serializer that the source was written with, if that was an EncryptedSerializer.
    """
    sources: list[Source] = yield Blocking(lambda: detect(given, kind))
    with ExitStack() as stack:
        for source in sources:
            stack.callback(source.close)
            graph: Any = source.graph
            if isinstance(graph, ReadsEncrypted):
                own = getattr(given, "serde", None) if serde is None else serde
                graph.cipher = yield Blocking(partial(cipher_for, graph, into.cipher, own))
        found: list[_SourceContents] = yield Blocking(lambda: [_find(source, selection) for source in sources])
        for id in selection.ids or ():
            if not any(id in (*each.graph, *each.cube) for each in found):
                raise Missing(f"there is no thread {id!r} in the source")
        into.tally.total = yield Blocking(lambda: sum(_size(each, selection) for each in found))
        yield Progress(0, into.tally.total, "")
        for each in found:
            for thread in _threads(into, each):
                yield from transfer_thread(into, thread)
            if each.source.memories is not None and selection.memories:
                yield from _put_all_memories(into, each.source.memories)
        yield Progress(into.tally.total, into.tally.total, "")
        return into.result(*(source.kind for source in sources))


def _find(source: Source, selection: Selection) -> _SourceContents:
    graph = source.graph.threads() if source.graph is not None else ()
    cube = source.cube.threads() if source.cube is not None else ()
    return _SourceContents(
        source,
        [id for id in graph if selection.includes(GRAPH, id)],
        [id for id in cube if selection.includes(CUBE, id)],
    )


def _size(found: _SourceContents, selection: Selection) -> int:
    """How much is selected, for the progress. Memories are included only with all threads."""
    source, total = found.source, 0
    for each, ids in ((source.graph, found.graph), (source.cube, found.cube)):
        if each is not None:
            total += each.count(None) if selection.memories else sum(map(each.count, ids))
    return total + (source.memories.count() if source.memories is not None and selection.memories else 0)


def _threads(into: Transfer, found: _SourceContents) -> Iterator[IncomingThread]:
    for id in found.graph:
        assert found.source.graph is not None
        yield GraphThread(into, found.source.graph, into.session.key(GRAPH, id))
    for id in found.cube:
        assert found.source.cube is not None
        yield CubeThread(into, found.source.cube, into.session.key(CUBE, id))


def _put_all_memories(into: Transfer, memories: ForeignMemories) -> Work[None]:
    has_vectors: bool = yield Blocking(memories.has_vectors)
    reading = memories.rows()
    while some := (yield Blocking(lambda: list(islice(reading, _MEMORIES)))):
        readable = []
        for each in some:
            if isinstance(each, UnreadableError):
                into.tally.differs(f"{each}; it was left out")
            else:
                readable.append(_incoming(each, into.index().dims if has_vectors else None))
        yield from put_memories(into, readable)
        into.tally.done += len(some)
        yield Progress(into.tally.done, into.tally.total, "memories")


def _incoming(memory: ForeignMemory, dims: int | None) -> IncomingMemory:
    """A memory with its vectors, if they have the dimensions of the target's index. It may have none."""
    fits = dims is not None and all(len(vector) == 4 * dims for vector in memory.vectors)
    return IncomingMemory(memory.row, memory.vectors if fits else None)
