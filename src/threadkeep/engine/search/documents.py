"""What a thread says: every message and every string value of its state, each with the oldest checkpoint that has it.

A message is the same in two checkpoints if its channel, its id and its text are. Any other text is the same if its
channel, its path without list positions, and the text are: so an element that moves in a list is found once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from threadkeep.engine.cube import plain_values
from threadkeep.engine.history.checkpoint_info import ThreadReader, read_thread
from threadkeep.engine.history.paths import Path, format_path
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.msgpack import LIST
from threadkeep.engine.log.plain import TYPE, is_message, jsonable, message_id, plain, role_of
from threadkeep.engine.log.records import CheckpointRecord, Slot
from threadkeep.engine.memories.words import limit_bytes, words
from threadkeep.engine.search.query import join_words
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.status import is_internal
from threadkeep.errors import Corrupt

CONTENT = "content"
_ROLES = {"user": "human", "assistant": "ai", "tool_result": "tool", "function": "tool", "developer": "system"}
"""Roles by LangChain's names."""


class Document(NamedTuple):
    """A message or a string value: its number in the thread, and where it is first.

    `words` are those of `text` as `query.join_words` joins them, and `length` is their number. `current` says whether
    the latest checkpoint of its namespace has it.
    """

    n: int
    ns: str
    checkpoint: str
    time: int
    place: str
    role: str | None
    message_id: str | None
    text: str
    words: str
    length: int
    current: bool


class ThreadDocuments(NamedTuple):
    """What a thread says at a version. `damaged` says that something in it could not be read."""

    key: ThreadKey
    epoch: int
    rev: int
    documents: tuple[Document, ...]
    damaged: bool


def unsaid(key: ThreadKey) -> ThreadDocuments:
    """Return what a thread says that is gone, or cannot be read. No thread has this epoch."""
    return ThreadDocuments(key, -1, -1, (), damaged=False)


class _Said(NamedTuple):
    """A text in a value: its path in it, and, if it is that of a message, the role and the id."""

    path: Path
    text: str
    role: str | None = None
    message_id: str | None = None


_Identity: TypeAlias = tuple[str, str, str | None, str | tuple[str, ...], str]
"""What makes a text the same in two checkpoints: namespace, channel, role, the message's id or the path, text."""


def as_role(role: Any) -> str:
    """Return a role by LangChain's name, as plain data has it: `user` is `human`, `assistant` is `ai`."""
    if not isinstance(role, str):
        raise TypeError(f"role must be a str, not {type(role).__name__}")
    return _ROLES.get(role, str(jsonable(role)))


def texts(value: Any, path: Path = ()) -> Iterator[_Said]:
    """Yield the texts in a plain value: one for each message, and every other string."""
    if isinstance(value, str):
        yield _Said(path, value)
    elif is_message(value):
        text = _message_text(value.get(CONTENT))
        yield _Said((*path, CONTENT), text, as_role(role_of(value)), message_id(value))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not (key.startswith("$") and key in _MARKS):
                yield from texts(inner, (*path, key))
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            yield from texts(inner, (*path, n))


_MARKS = frozenset({TYPE, "$bytes", "$opaque", "$float"})
"""Keys by which plain data says what something is; see `engine.log.plain`."""


def _message_text(content: Any) -> str:
    """Return the text of a message: its content, or the texts of the content's blocks, one a line."""
    blocks = content if isinstance(content, list) else [content]
    found = (block.get("text") if isinstance(block, Mapping) else block for block in blocks)
    return "\n".join(text for text in found if isinstance(text, str))


async def thread_documents(heads: Heads, key: ThreadKey) -> ThreadDocuments:
    """Read what a thread says. Missing if it does not exist. Two round trips."""

    async def read(reader: ThreadReader) -> ThreadDocuments:
        visible = reader.rows.visible()
        named = [(record, name) for record in visible for name in _channels(reader, record)]
        await reader.fetch(slot for record, name in named for slot in reader.slots(record, name))
        return _Collector(reader).collect(visible)

    return await read_thread(heads, key, read)


def _channels(reader: ThreadReader, record: CheckpointRecord) -> list[str]:
    """Return the names of the application's channels, in order. The log of CubeLoop's runs is not among them."""
    unsaid = (plain_values.RUNS,) if reader.is_cube else ()
    return sorted(name for name in reader.channels(record) if not is_internal(name) and name not in unsaid)


class _Collector:
    """Collects the documents of a thread. What several checkpoints store in the same items is decoded once."""

    def __init__(self, reader: ThreadReader) -> None:
        self._reader = reader
        self._found: dict[_Identity, Document] = {}
        self._current: set[_Identity] = set()
        self._texts_in: dict[tuple[str, bytes], list[_Said]] = {}
        self._done: set[tuple[Any, ...]] = set()
        self._damaged = reader.rows.is_damaged or reader.rows.incomplete is not None

    def collect(self, visible: list[CheckpointRecord]) -> ThreadDocuments:
        """Return what these checkpoints say, which are given oldest first."""
        latest = {record.row.ns: record for record in visible}
        for record in visible:
            for name in _channels(self._reader, record):
                try:
                    self._add_channel(record, name, is_latest=latest[record.row.ns] is record)
                except Corrupt:
                    self._damaged = True
        row = self._reader.rows.head.row
        assert row is not None
        found = (each._replace(n=n, current=at in self._current) for n, (at, each) in enumerate(self._found.items()))
        return ThreadDocuments(self._reader.key, row.epoch, row.rev, tuple(found), self._damaged)

    def _add_channel(self, record: CheckpointRecord, name: str, *, is_latest: bool) -> None:
        """Add the texts of a channel, unless an older checkpoint has the same. Corrupt if it cannot be read."""
        ns = record.row.ns
        slots = self._reader.slots(record, name)
        elements = self._elements(slots)
        if elements is None:
            done = (ns, name, *(slot[:6] for slot in slots))
            if is_latest or done not in self._done:
                self._done.add(done)
                self._add_texts(record, name, texts(self._reader.value(record, name)), is_latest=is_latest)
            return
        for n, element in enumerate(elements):
            if is_latest or (ns, name, element) not in self._done:
                self._done.add((ns, name, element))
                said = (each._replace(path=(n, *each.path)) for each in self._texts_of(name, slots[0].tag, element))
                self._add_texts(record, name, said, is_latest=is_latest)

    def _elements(self, slots: list[Slot]) -> list[bytes] | None:
        """Return the stored elements of a list; None if it is not stored by element, or damaged."""
        if len(slots) != 1 or slots[0].kind != LIST or slots[0].inline is not None:
            return None
        return self._reader.rows.head.cache.elements(slots[0].ranges)

    def _texts_of(self, name: str, tag: str, element: bytes) -> list[_Said]:
        found = self._texts_in.get((name, element))
        if found is None:
            value = plain(tag, element, what=f"an element of {name!r} in {self._reader.rows.head.where}")
            if self._reader.is_cube:
                value = plain_values.parse_json_text(value)
            found = self._texts_in[(name, element)] = list(texts(value))
        return found

    def _add_texts(self, record: CheckpointRecord, name: str, said: Iterable[_Said], *, is_latest: bool) -> None:
        ns, id, time = record.row.ns, record.row.id, record.row.time
        for path, text, role, message in said:
            keys = tuple(token for token in path if isinstance(token, str))
            identity = (ns, name, role, message if message is not None else keys, text)
            if is_latest:
                self._current.add(identity)
            if identity not in self._found:
                found = limit_bytes(words(text))
                if found:
                    place = format_path((name, *path))
                    self._found[identity] = Document(
                        0, ns, id, time, place, role, message, text, join_words(found), len(found), current=False
                    )
