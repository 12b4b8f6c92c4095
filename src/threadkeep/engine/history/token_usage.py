"""The messages of a thread that say how many tokens they took, each once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from threadkeep.engine.commit import read_consistently
from threadkeep.engine.cube.channels import MESSAGES
from threadkeep.engine.history.audit import has_send_paths, load_sends
from threadkeep.engine.history.checkpoint_info import ThreadReader
from threadkeep.engine.history.message_walk import MessageWalk
from threadkeep.engine.history.token_counts import CountedMessage, model_of, read_counts
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.plain import jsonable, type_of
from threadkeep.engine.log.records import CheckpointRecord, WriteEntry
from threadkeep.engine.threads.damaged_rows import load_thread_rows
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.metadata import LARGE_METADATA, root_checkpoint
from threadkeep.engine.threads.status import is_internal
from threadkeep.engine.threads.thread_rows import CheckpointKey, children, lineage, node_of_task

_COUNTED, _REMOVE = b"usage", b"RemoveMessage"
_ALL = "__remove_all__"
_START, _RETURN = "__start__", "__return__"
"""The task that takes the input, and the channel of what a task of the functional API returned."""
_CountedById = dict[Hashable, CountedMessage]


class UsageQuery(NamedTuple):
    """Which messages count: first stored at or after `since`, before `until` (milliseconds), and of which branches.

    `history`: whether it matters which node wrote a message, and when.
    """

    since: int | None
    until: int | None
    all_branches: bool
    history: bool

    def includes(self, message: CountedMessage) -> bool:
        """Whether a message was first stored in this time."""
        if self.since is None and self.until is None:
            return True
        time = message.time
        return time is not None and time >= (self.since or time) and (self.until is None or time < self.until)


class ThreadUsage(NamedTuple):
    """The messages of a thread that count, and the metadata of its newest root checkpoint."""

    messages: tuple[CountedMessage, ...]
    metadata: Mapping[str, Any]
    is_damaged: bool = False


async def thread_usage(heads: Heads, key: ThreadKey, query: UsageQuery) -> ThreadUsage:
    """Return the messages of a thread that count. One round trip, and one for each 256 items with values."""
    return await read_consistently(key, lambda: _thread_usage(heads, key, query))


async def _thread_usage(heads: Heads, key: ThreadKey, query: UsageQuery) -> ThreadUsage:
    reader = _UsageReader(ThreadReader(heads, await load_thread_rows(heads, key)))
    roots = reader.rows.visible("")
    past = await reader.history() if query.all_branches or query.history else {}
    found = past if query.all_branches else await reader.current(past)
    metadata = jsonable(reader.rows.metadata(roots[-1])) if roots else {}
    counted = tuple(message for message in found.values() if query.includes(message))
    return ThreadUsage(counted, metadata, reader.is_damaged or reader.rows.is_damaged)


class _UsageReader:
    """Finds messages in a thread's checkpoints and writes."""

    def __init__(self, reader: ThreadReader) -> None:
        self.rows = reader.rows
        self._reader = reader
        self._walks: list[MessageWalk] = []

    @property
    def is_damaged(self) -> bool:
        return any(walk.is_damaged for walk in self._walks)

    def _walk(self) -> MessageWalk:
        self._walks.append(MessageWalk(self.rows, (_COUNTED, _REMOVE)))
        return self._walks[-1]

    # --- what the latest branch still contains

    async def current(self, past: _CountedById) -> _CountedById:
        """Return the messages in the state of the newest checkpoint, and in those of the subgraphs that it called.

        A message that the root namespace had and removed does not count, though a subgraph may still have it.
        """
        roots = self.rows.visible("")
        branch = list(lineage(self.rows, roots[-1])) if roots else []
        called = list(self._newest_of_subgraphs({record.row.id for record in branch}))
        found = await self._in_states(branch[:1])
        if called:
            removed = await self._in_states(branch)
            inner = await self._in_states(called)
            found |= {id: each for id, each in inner.items() if id not in removed}
        return {
            id: each._replace(node=past[id].node, time=past[id].time) if id in past else each
            for id, each in found.items()
        }

    def _newest_of_subgraphs(self, branch: set[str]) -> Iterator[CheckpointRecord]:
        """The newest checkpoint of each other namespace among those that belong to a branch."""
        newest: dict[str, CheckpointRecord] = {}
        for record in self.rows.visible():
            root = root_checkpoint(record.own_metadata)
            if record.row.ns and (root is None or root in branch):
                newest[record.row.ns] = record
        return iter(newest.values())

    async def _in_states(self, records: Iterable[CheckpointRecord]) -> _CountedById:
        """Return the messages in the channels of checkpoints."""
        walk, channels = self._walk(), list[_CountedById]()
        for record in records:
            for name in self._channels(record):
                channels.append(_CountedById())
                for slot in self._reader.slots(record, name):
                    await walk.walk(slot, partial(self._apply, channels[-1]))
        await walk.flush()
        return {id: each for channel in channels for id, each in channel.items()}

    def _apply(self, channel: _CountedById, id: Hashable, message: Mapping[str, Any]) -> None:
        """Add a message to a channel, or remove one. A delta channel is a stored value and the writes since."""
        if type_of(message) == "RemoveMessage":
            if id == _ALL:
                channel.clear()
            channel.pop(id, None)
        else:
            self._take(channel, id, message)

    def _channels(self, record: CheckpointRecord) -> list[str]:
        if self._reader.is_cube:
            return [MESSAGES]
        return [name for name in self._reader.channels(record) if not is_internal(name)]

    def _take(self, found: _CountedById, id: Hashable, message: Mapping[str, Any], time: int | None = None) -> None:
        kind = self.rows.key.kind
        counts = read_counts(message, kind)
        if counts is not None:
            first = found[id].time if id in found else time
            found[id] = CountedMessage(counts, model_of(message, kind), None, first)

    # --- what there ever was

    async def history(self) -> _CountedById:
        """Return all messages of the thread, each with the node that first wrote it, and when it was first stored."""
        found, walk = _CountedById(), self._walk()
        for record in sorted(self.rows.records.values(), key=lambda each: (each.row.time, each.row.id)):
            slots = [MESSAGES] if self._reader.is_cube else [name for name in record.slots if not is_internal(name)]
            for name in slots:
                if name in record.slots and name != LARGE_METADATA:
                    await walk.walk(record.slots[name], partial(self._take, found, time=record.row.time))
        await walk.flush()
        await self._add_writes(found)
        return found

    async def _add_writes(self, found: _CountedById) -> None:
        """Add the nodes of messages, and the messages that are in no checkpoint: those of a delta channel or a failure.

        A message without an id may have got one when it was applied. So in a write it counts only if that was not.
        """
        sends = await load_sends(self.rows, [key for key, tasks in self.rows.tasks.items() if has_send_paths(tasks)])
        applied, deltas = children(self.rows), self._delta_names()
        writes = [
            (key, entry) for key, tasks in self.rows.tasks.items() for task in tasks for entry in task.entries.values()
        ]
        walk, written = self._walk(), set[Hashable]()
        named = [(key, entry, node_of_task(entry.origin[0], sends.get(key, ()))) for key, entry in writes]
        for key, entry, node in sorted(named, key=_by_origin):
            if is_internal(entry.channel) and entry.channel != _RETURN:
                continue
            is_applied = key in applied and entry.channel not in deltas

            def take(
                id: Hashable,
                message: Mapping[str, Any],
                entry: WriteEntry = entry,
                node: str | None = node,
                is_applied: bool = is_applied,  # noqa: FBT001 - bound for this write
            ) -> None:
                if id in written or (id not in found and is_applied and not isinstance(id, str)):
                    return
                time = entry.origin[2]
                if id not in found:
                    self._take(found, id, message, time)
                if id in found:
                    written.add(id)
                    first = found[id].time
                    found[id] = found[id]._replace(node=node, time=time if first is None else min(time, first))

            await walk.walk(entry.slot, take)
        await walk.flush()

    def _delta_names(self) -> set[str]:
        records = self.rows.records.values()
        return {name for record in records for name in self._reader.rebuilt_channels(record)}


def _by_origin(write: tuple[CheckpointKey, WriteEntry, str | None]) -> tuple[bool, int, int]:
    """Sort writes so that the first with a message made it: inputs come last, and subgraphs before their callers."""
    (ns, _), entry, node = write
    return node == _START, entry.origin[2], -len(ns)
