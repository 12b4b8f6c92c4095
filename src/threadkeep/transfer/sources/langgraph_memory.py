"""LangGraph's InMemorySaver and InMemoryStore.

Their dicts are read directly, so that values stay the bytes that they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from threadkeep.engine.identity import as_id
from threadkeep.engine.log.codec import Parts
from threadkeep.engine.log.splitter import Splitter
from threadkeep.engine.memories import json_text
from threadkeep.engine.memories.requests import MemoryRow
from threadkeep.engine.memories.vectors import pack_vector
from threadkeep.transfer.sources.checkpoint_bytes import metadata, versions
from threadkeep.transfer.sources.langgraph_sqlite import encoded
from threadkeep.transfer.sources.source import (
    CheckpointPlace,
    EncodedCheckpoint,
    EncodedWrite,
    ForeignCheckpoint,
    ForeignMemory,
    Source,
    UnreadableError,
    WriteCount,
    microseconds,
)
from threadkeep.transfer.sources.value_cipher import ValueCipher, is_encrypted, split_whole, splitter_of

KIND = "memory"


def source_of(given: Any) -> Source | None:
    """Return the source for an object; None if it is neither."""
    if isinstance(given, InMemorySaver):
        return Source(KIND, graph=InMemorySaverThreads(given))
    if isinstance(given, InMemoryStore):
        return Source(KIND, memories=InMemoryStoreMemories(given))
    return None


class InMemorySaverThreads:
    """The threads of an InMemorySaver. A thread_id that is not a str becomes one."""

    def __init__(self, saver: InMemorySaver) -> None:
        self._saver = saver
        self.cipher: ValueCipher | None = None
        """Opens checkpoints that were encrypted as a whole."""
        self._ids: dict[str, Any] = {
            as_id(thread, "thread_id"): thread for thread in [*saver.storage, *(at[0] for at in saver.writes)]
        }

    def encrypted_values(self) -> Iterator[tuple[str, bytes]]:
        """Read encrypted values with their tags, in any order."""
        written = (value for writes in list(self._saver.writes.values()) for _, _, value, _ in writes.values())
        spaces = (space for thread in list(self._saver.storage.values()) for space in thread.values())
        checkpoints = (row[0] for space in spaces for row in space.values())
        yield from (each for each in (*checkpoints, *self._saver.blobs.values(), *written) if is_encrypted(each[0]))

    def count(self, thread: str | None) -> int:
        """Return the number of checkpoints, of one thread or of all."""
        threads: list[Any] = list(self._saver.storage) if thread is None else [self._ids.get(thread)]
        return sum(len(space) for each in threads for space in self._saver.storage.get(each, {}).values())

    def threads(self) -> list[str]:
        """Return the ids of all threads, in order; also of those that have only writes."""
        return sorted(self._ids)

    def checkpoints(self, thread: str) -> list[CheckpointPlace]:
        """Return where a thread has checkpoints."""
        spaces: dict[str, Any] = self._saver.storage.get(self._ids.get(thread, ""), {})
        return [CheckpointPlace(ns, id) for ns, space in spaces.items() for id in space]

    def write_counts(self, thread: str) -> dict[CheckpointPlace, WriteCount]:
        """Count the writes at each place that has any."""
        own = self._ids.get(thread)
        held = [(at, writes) for at, writes in list(self._saver.writes.items()) if at[0] == own and writes]
        return {
            CheckpointPlace(*at[1:]): WriteCount(len(writes), min(idx for _, idx in writes) < 0) for at, writes in held
        }

    def read(self, thread: str, places: Sequence[CheckpointPlace]) -> Iterator[ForeignCheckpoint]:
        """Read what is at these places, in this order."""
        splitter, cache = splitter_of(self.cipher), dict[Any, _InMemoryValue]()
        for place in places:
            before = splitter.fresh
            writes = [
                EncodedWrite(task, path, idx, channel, encoded(splitter, *value))
                for (_, idx), (task, channel, value, path) in sorted(self._writes(thread, place).items())
            ]
            try:
                found = ForeignCheckpoint(place, self._checkpoint(splitter, thread, place, cache), writes)
            except UnreadableError as error:
                found = ForeignCheckpoint(place, None, writes, str(error))
            yield found._replace(fresh=splitter.fresh - before)

    def _writes(self, thread: str, place: CheckpointPlace) -> dict[Any, Any]:
        return dict(self._saver.writes.get((self._ids[thread], *place), {}))

    def _checkpoint(
        self, splitter: Splitter, thread: str, place: CheckpointPlace, cache: dict[Any, _InMemoryValue]
    ) -> EncodedCheckpoint | None:
        own = self._ids[thread]
        row = self._saver.storage.get(own, {}).get(place.ns, {}).get(place.id)
        if row is None:
            return None
        (tag, data), about, parent = row
        found = split_whole(self.cipher, splitter, place.ns, tag, data)
        held, seen = versions(found.plain)
        kept = dict(found.values)
        for channel, version in held.items():
            stored = self._saver.blobs.get((own, place.ns, channel, version))
            if stored is not None and stored[0] != "empty":
                kept[channel] = _split_once(splitter, cache, (place.ns, channel), version, stored)
        return EncodedCheckpoint(
            parent or None, found.plain, held, seen, kept, found.rest, metadata(self._opened(*about))
        )

    def _opened(self, tag: str, data: bytes) -> bytes:
        return data if self.cipher is None else self.cipher.opened(tag, data)[1]


class _InMemoryValue(NamedTuple):
    version: Any
    data: bytes
    parts: Parts


def _split_once(splitter: Splitter, cache: dict[Any, _InMemoryValue], place: Any, version: Any, stored: Any) -> Parts:
    """A value as parts. The last one of each channel is cached, because most checkpoints repeat it."""
    held = cache.get(place)
    if held is None or held.version != version or held.data is not stored[1]:
        cache[place] = held = _InMemoryValue(version, stored[1], encoded(splitter, stored[0], stored[1], place))
    return held.parts


class InMemoryStoreMemories:
    """The memories of an InMemoryStore."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    def count(self) -> int:
        """Return the number of memories."""
        return sum(map(len, list(self._store._data.values())))  # noqa: SLF001 - there is no verb that gives all

    def has_vectors(self) -> bool:
        """Whether the source has vectors for any of them."""
        return any(list(self._store._vectors.values()))  # noqa: SLF001

    def rows(self) -> Iterator[ForeignMemory | UnreadableError]:
        """Read all memories. One that cannot be read comes as its error."""
        for space, items in sorted(self._store._data.items()):  # noqa: SLF001
            for key, item in sorted(items.items()):
                try:
                    text = json_text.dump(item.value)
                except (ValueError, TypeError) as error:
                    yield UnreadableError(f"memory {key!r} of {'.'.join(space)!r}: {error}")
                    continue
                made, changed = microseconds(item.created_at), microseconds(item.updated_at)
                yield ForeignMemory(MemoryRow(space, key, text, made, changed, None, None), self._embedded(space, key))

    def _embedded(self, space: tuple[str, ...], key: str) -> tuple[bytes, ...]:
        held = self._store._vectors.get(space, {}).get(key, {})  # noqa: SLF001
        return tuple(pack_vector(vector, len(vector)) for _, vector in sorted(held.items()))
