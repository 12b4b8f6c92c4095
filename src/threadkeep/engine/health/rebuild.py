"""Rebuild the state of a damaged checkpoint from its intact channels, its ancestors and stored writes.

The writes on a checkpoint are what its child applied. So the value of a damaged channel is the nearest intact value of
an ancestor with the writes on each checkpoint since. The graph applies them if it is at hand, else `apply_writes` does.
If writes are damaged too, the elements of the list or dict that can be read are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol

from langgraph.checkpoint.serde.types import TASKS

from threadkeep.engine.health.apply_writes import (
    NO_CHANNELS,
    StoredWrite,
    channel_after,
    is_known_by_name,
    lasts_one_step,
    touches,
    versions_after,
)
from threadkeep.engine.health.thread_scan import ThreadScan
from threadkeep.engine.health.verify import decodes
from threadkeep.engine.history.checkpoint_info import ordered_writes
from threadkeep.engine.log.codec import MSGPACK, Parts
from threadkeep.engine.log.msgpack import LIST, WHOLE
from threadkeep.engine.log.plain import plain
from threadkeep.engine.log.records import Slot, TaskWrites, WriteEntry
from threadkeep.engine.threads.default_merge import merged
from threadkeep.engine.threads.survivors import delta_channels
from threadkeep.engine.threads.thread_rows import CheckpointPlace, is_send_path, node_of, parts_of

INTACT, LOST = "intact", "lost"
Value = Slot | Parts
_Stored = tuple[TaskWrites, int, WriteEntry]
_Steps = list[tuple[CheckpointPlace, list[StoredWrite]]]
_TASK = "~__pregel_pu"
"""How the path of a task begins: pull or push."""
_SEVERAL, _FEW = 2, 3
_DEFAULT_RULE = (
    "values were merged by the default rule: lists are concatenated (messages by id), dicts merged by key, "
    "anything else replaced"
)
_VERSIONS = (
    "versions, and what nodes have seen, were made from those of the checkpoint before: "
    "nodes that wrote have seen what triggers them"
)


class WrongGraphError(ValueError):
    """A graph that lacks a channel or node of the thread."""


class Replay(Protocol):
    """A graph that applies writes. WrongGraphError if it cannot; what its reducers raise is theirs."""

    def channel(self, name: str, base: Parts | None, steps: Sequence[Sequence[Parts]]) -> Parts | None:
        """The value of a channel after the writes of some steps; None if it has none."""

    def step(self, state: RebuiltState, writes: Sequence[StoredWrite]) -> RebuiltState:
        """The state after a step; all values are in parts."""


@dataclass(frozen=True, slots=True)
class RebuiltState:
    """A checkpoint's state, and how each of its values was obtained. `fields` are LangGraph's other keys."""

    versions: dict[str, Any]
    seen: dict[str, dict[str, Any]]
    values: dict[str, Value]
    how: dict[str, str]
    fields: dict[str, Any]


class _Way(NamedTuple):
    """What a channel is rebuilt from: `base` holds it intact, if any does; `line` leads from it to the checkpoint."""

    base: CheckpointPlace | None
    line: list[CheckpointPlace]
    is_whole: bool


class Rebuilder:
    """Rebuilds checkpoints of a thread. It reads items when they are needed and collects what it has to assume.

    `damaged` are the checkpoints that cannot be read as they were.
    """

    def __init__(self, scan: ThreadScan, replay: Replay | None) -> None:
        self.scan = scan
        self.head = scan.head()
        self.assumptions: dict[str, None] = {}
        self._replay = replay
        self._rows = {(row.ns, row.id): row for row in scan.found.checkpoints}
        self._known = scan.records.keys() | scan.broken
        self._deltas = delta_channels(scan.records)
        self._written: dict[tuple[CheckpointPlace, CheckpointPlace], list[StoredWrite]] = {}
        self._lost_writes = {(ns, id) for ns, id, _ in scan.broken_writes}
        self.damaged = self._find_damaged()

    def assume(self, said: str) -> None:
        """Note something that is not certain."""
        self.assumptions[said] = None

    # --- what is damaged

    def _find_damaged(self) -> set[CheckpointPlace]:
        """Damage to a row, to what it needs, to writes on it, or to what its delta channels are rebuilt from."""
        needing = {place for places in self.scan.needing.values() for place, _ in places}
        deltas = {place for place in self.scan.records if self._has_hurt_delta(place)}
        return self.scan.broken | deltas | ((needing | self._lost_writes) & self._known)

    def _rebuilt_deltas(self, place: CheckpointPlace) -> set[str]:
        """The delta channels that a checkpoint does not hold itself."""
        record = self.scan.records[place]
        return {name for name in self._deltas[place] if name in record.versions and name not in record.slots}

    def _has_hurt_delta(self, place: CheckpointPlace) -> bool:
        """Whether something is damaged between a checkpoint and the stored value of one of its delta channels."""
        records = self.scan.records
        for name in self._rebuilt_deltas(place):
            way = self._way(place, name)
            for passed in way.line[:-1]:
                if passed not in records or (passed != way.base and name in records[passed].slots):
                    return True
            if not way.is_whole or self._lost(name, way.line[:-1]):
                return True
        return False

    def _lost(self, name: str | None, places: Sequence[CheckpointPlace]) -> list[CheckpointPlace]:
        """Of some checkpoints, those with damaged writes that may have been to a channel, or to any."""
        return [place for place in places if place in self._lost_writes or not self._can_read(place, name)]

    def _can_read(self, place: CheckpointPlace, name: str | None) -> bool:
        entries = (entry for task in self.scan.tasks.get(place, ()) for entry in task.entries.values())
        return all(self.scan.is_intact(entry.slot) for entry in entries if name in (None, entry.channel))

    # --- the checkpoints before

    def ancestors(self, place: CheckpointPlace) -> Iterator[CheckpointPlace]:
        """The checkpoints before one, nearest first; a cycle ends it."""
        met = {place}
        at, _ = self._parent(place)
        while at is not None and at not in met:
            yield at
            met.add(at)
            at, _ = self._parent(at)

    def _parent(self, place: CheckpointPlace) -> tuple[CheckpointPlace | None, str | None]:
        """The parent that a row names, else the greatest readable id below; and what has to be assumed for that."""
        row, is_readable = self._rows.get(place), place in self.scan.records
        if row is not None and row.parent is not None and (place[0], row.parent) in self._known:
            said = f"the row of {place[1]} is damaged; its parent is taken to be {row.parent}, as it says"
            return (place[0], row.parent), None if is_readable else said
        if is_readable:
            return None, None
        below = max((each for each in self.scan.records if each[0] == place[0] and each < place), default=None)
        if below is None:
            return None, None
        said = f"the parent of {place[1]} is not known: the greatest readable checkpoint below it is taken, {below[1]}"
        return below, said

    def _way(self, place: CheckpointPlace, name: str) -> _Way:
        """Back to the nearest ancestor that holds a channel intact, or to the beginning."""
        line = [place]
        for at in self.ancestors(place):
            line.append(at)
            if lasts_one_step(name):
                return _Way(None, line[::-1], is_whole=True)
            slot = self._slot(at, name)
            if slot is not None and self.scan.is_intact(slot):
                return _Way(at, line[::-1], is_whole=True)
        first = self.scan.records.get(line[-1]) if len(line) > 1 else None
        begins = first is not None and first.row.parent is None and (first.row.step or 0) < 0
        return _Way(None, line[::-1], is_whole=begins and self._slot(line[-1], name) is None)

    def _slot(self, place: CheckpointPlace, name: str) -> Slot | None:
        record = self.scan.records.get(place)
        return record.slots.get(name) if record is not None else None

    # --- writes

    async def _writes(self, place: CheckpointPlace, child: CheckpointPlace) -> list[StoredWrite]:
        """The intact writes on a checkpoint that a child applied, in LangGraph's order."""
        if (place, child) not in self._written:
            known = [
                each for each in ordered_writes(self.scan.tasks.get(place, ())) if each[2].channel not in NO_CHANNELS
            ]
            known = self._of_child(known, place, child)
            known = [each for each in known if self.scan.is_intact(each[2].slot)]
            await self.scan.fetch(entry.slot for *_, entry in known)
            sends = await self._sends(place) if any(is_send_path(entry.origin[0]) for *_, entry in known) else []
            self._written[(place, child)] = [
                StoredWrite(path, task.row.task, node_of(path, sends), channel, parts_of(self.head, slot))
                for task, _, (channel, slot, _, (path, _, _)) in known
            ]
        return self._written[(place, child)]

    def _of_child(self, known: list[_Stored], place: CheckpointPlace, child: CheckpointPlace) -> list[_Stored]:
        """Of the writes on a checkpoint with several children, those that were there when this one was made.

        What update_state writes is stored for delta channels only, and has no task's path.
        """
        row = self._rows.get(child)
        siblings = [each for each in self._rows.values() if (each.ns, each.parent) == place]
        by_hand = row is not None and row.source == "update"
        if by_hand:
            self.assume(f"{child[1]} was made by update_state, whose values are not stored as writes: they are missing")
        if row is None or len(siblings) < _SEVERAL:
            return known
        self.assume(
            f"{place[1]} has {len(siblings)} children: writes on it that came after {row.id} are not counted as its own"
        )
        early = [each for each in known if each[2].origin[2] <= row.time]
        return [each for each in early if not (by_hand and each[2].origin[0].startswith(_TASK))]

    async def _sends(self, place: CheckpointPlace) -> list[Any]:
        """The pending sends of a checkpoint; of one that cannot be read, as they were written on its parent."""
        slot, parent = self._slot(place, TASKS), next(self.ancestors(place), None)
        slots = [slot] if slot is not None else []
        if place not in self.scan.records and parent is not None:
            slots = [
                entry.slot for _, _, entry in ordered_writes(self.scan.tasks.get(parent, ())) if entry.channel == TASKS
            ]
        slots = list(filter(self.scan.is_intact, slots))
        await self.scan.fetch(slots)
        held = merged(Parts(LIST, MSGPACK, []), (parts_of(self.head, each) for each in slots))
        return list(plain(held.tag, held.data)) if held is not None else []

    async def _parts(self, value: Value) -> Parts:
        if isinstance(value, Parts):
            return value
        await self.scan.fetch([value])
        return parts_of(self.head, value)

    # --- rebuilding

    async def state(self, target: CheckpointPlace) -> tuple[RebuiltState, CheckpointPlace] | None:
        """The state of a checkpoint, and what it is built from: itself, if it can be read. None if nothing is left."""
        line: list[CheckpointPlace] = []
        for at in chain([target], self.ancestors(target)):
            line.insert(0, at)
            if at in self.scan.records:
                break
            assumed = self._parent(at)[1]
            if assumed is not None:
                self.assume(assumed)
        base, steps, last = line[0], list[Any](), line[0]
        if base not in self.scan.records:
            return None
        for place, child in pairwise(line):
            writes = await self._step_writes(place, child)
            if writes:
                steps.append((place, writes))
                last = child
        state = await self._by_graph(base, steps) if self._replay is not None and steps else None
        if state is None:
            state = await self._by_names(base, last, steps, deltas=base != target or self._needs_deltas(base))
        if base == target:
            return state, base
        taken = f"taken from ancestor {base[1]}"
        return replace(state, how={name: taken if how == INTACT else how for name, how in state.how.items()}), base

    async def _step_writes(self, place: CheckpointPlace, child: CheckpointPlace) -> list[StoredWrite]:
        writes = await self._writes(place, child)
        if self._lost(None, [place]):
            self.assume(f"some writes on {place[1]} are damaged: what they brought is missing")
        if not writes:
            lost = f"input that {child[1]} brought is lost"
            self.assume(f"no writes are stored on {place[1]}: its state is taken as it was; {lost}")
        return writes

    def _needs_deltas(self, place: CheckpointPlace) -> bool:
        """Whether delta channels cannot be left to the ancestors: one of them, or the parent, is damaged."""
        return self._has_hurt_delta(place) or next(self.ancestors(place), None) in {None, *self.damaged}

    async def _by_graph(self, base: CheckpointPlace, steps: _Steps) -> RebuiltState | None:
        """The state after some steps, applied by the graph; None if its reducers refuse."""
        assert self._replay is not None
        state = await self._by_names(base, base, [], deltas=True)
        state = replace(state, values={name: await self._parts(value) for name, value in state.values.items()})
        try:
            for _, writes in steps:
                state = self._replay.step(state, writes)
        except WrongGraphError:
            raise
        except Exception as error:  # noqa: BLE001 - a reducer of the application's, which may miss what is lost
            self.assume(f"the graph's channels refused the writes ({error!r})")
            return None
        how = {name: how for name, how in state.how.items() if name in state.values or how == LOST}
        for name in state.values:
            writers = [place[1] for place, writes in steps if touches(name, writes)]
            if writers:
                how[name] = f"rebuilt from ancestor {base[1]} and the writes on {_few(writers)}"
        return replace(state, how=how)

    async def _by_names(
        self, base: CheckpointPlace, last: CheckpointPlace, steps: _Steps, *, deltas: bool
    ) -> RebuiltState:
        """The state of `last`, these steps after `base`, without the graph; with all delta channels if asked."""
        record = self.scan.records[base]
        versions, seen, fields = record.versions, record.seen, record.fields
        names = {*record.slots, *(self._rebuilt_deltas(base) if deltas else ())}
        for _, writes in steps:
            self.assume(_DEFAULT_RULE)
            self.assume(_VERSIONS)
            versions, seen = versions_after(versions, seen, names, writes)
            names = {name for name in names if not lasts_one_step(name)} | {write.channel for write in writes}
            fields = {"v": record.fields.get("v", 4)}
        values, how = dict[str, Value](), dict[str, str]()
        for name in names:
            value, how[name] = await self._channel(last, name, delta=name in self._deltas[base])
            if value is not None:
                values[name] = value
        return RebuiltState(
            dict(versions), {node: dict(held) for node, held in seen.items()}, values, how, dict(fields)
        )

    async def _channel(self, place: CheckpointPlace, name: str, *, delta: bool) -> tuple[Value | None, str]:
        """A channel's value, and how it was obtained."""
        own = self._slot(place, name)
        if own is not None and self.scan.is_intact(own):
            return own, INTACT
        base, line, is_whole = self._way(place, name)
        value: Value | None = self._slot(base, name) if base is not None else None
        source, how = "rebuilt from", LOST
        if base is not None:
            source, how = f"rebuilt from ancestor {base[1]} and", f"taken from ancestor {base[1]}"
        lost = self._lost(name, line[:-1])
        holder = next((at for at in reversed(line) if at != base and self._slot(at, name) is not None), None)
        if holder is not None and (not is_whole or set(lost) & set(line[: line.index(holder)])):
            left = await self._salvaged(holder, name)
            if left is not None:
                value, source, how = left[0], f"{left[1]}, and", left[1]
                line = line[line.index(holder) :]
                lost = [at for at in lost if at in line]
        if lost:
            self.assume(f"channel {name}: writes on {', '.join(at[1] for at in lost)} are damaged and missing in it")
        steps = [(at, await self._writes(at, child)) for at, child in pairwise(line)]
        writers = [at[1] for at, writes in steps if touches(name, writes)]
        if writers:
            parts = await self._parts(value) if value is not None else None
            value = self._applied(name, parts, [writes for _, writes in steps], delta=delta)
            how = f"{source} the writes on {_few(writers)}"
        if value is None:
            return None, LOST
        return (await self._parts(value))._replace(snapshot=True) if delta else value, how

    def _applied(
        self, name: str, base: Parts | None, steps: Sequence[Sequence[StoredWrite]], *, delta: bool
    ) -> Parts | None:
        if is_known_by_name(name):
            return channel_after(name, base, steps)
        if self._replay is not None:
            given = [[write.value for write in step if write.channel == name] for step in steps]
            try:
                return self._replay.channel(name, base, given)
            except WrongGraphError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                self.assume(f"the graph's channel {name} refused the writes ({error!r})")
        self.assume(_DEFAULT_RULE)
        return channel_after(name, base, steps, delta=delta)

    async def _salvaged(self, place: CheckpointPlace, name: str) -> tuple[Parts, str] | None:
        """The elements that are left of a list or dict, and how many; None if there are none, or if it is neither."""
        slot = self._slot(place, name)
        if slot is None or slot.kind == WHOLE or slot.inline is not None:
            return None
        await self.scan.fetch([slot])
        left: list[bytes] = []
        for group in self.scan.cache.groups(slot.ranges):
            left += group if decodes(slot.kind, slot.tag, len(group), b"".join(group)) else []
        if not left:
            return None
        gone = slot.elements - len(left)
        self.assume(f"channel {name}: {gone} of {slot.elements} elements cannot be read and are left out")
        parts = Parts(slot.kind, slot.tag, left, slot.snapshot)
        return parts, f"what can be read of it: {len(left)} of {slot.elements} elements"


def _few(places: Sequence[str]) -> str:
    shown = [places[0], f"{len(places) - 2} more", places[-1]] if len(places) > _FEW else places
    return ", ".join(shown)
