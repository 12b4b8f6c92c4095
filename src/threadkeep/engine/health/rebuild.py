"""Rebuild the state of a damaged checkpoint from its intact channels, its ancestors and stored writes.

The writes on a checkpoint are what its child applied. So the value of a damaged channel is the nearest intact value of
an ancestor plus the writes on each checkpoint since. The graph applies them if it is given; otherwise `apply_writes`
does. If writes are damaged too, the elements of the list or dict that can be read are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol

from langgraph.checkpoint.serde.types import TASKS

from threadkeep.engine.health.apply_writes import (
    SPECIAL_WRITES,
    StoredWrite,
    changes_channel,
    channel_after,
    is_known_by_name,
    lasts_one_step,
    versions_after,
)
from threadkeep.engine.health.thread_scan import ThreadScan
from threadkeep.engine.health.verify_items import decodes
from threadkeep.engine.history.checkpoint_info import TaskWrite, ordered_writes
from threadkeep.engine.log.codec import Parts
from threadkeep.engine.log.msgpack import WHOLE
from threadkeep.engine.log.plain import plain
from threadkeep.engine.log.records import Slot
from threadkeep.engine.threads.delta_channels import delta_channels
from threadkeep.engine.threads.thread_rows import CheckpointKey, is_send_path, node_of_task, slot_parts

INTACT, LOST = "intact", "lost"
Value = Slot | Parts
_Steps = list[tuple[CheckpointKey, list[StoredWrite]]]
"""Checkpoints, and the writes on each that its child applied."""
_TASK_PATH = "~__pregel_pu"
"""How the path of a task starts: pull or push."""
_DEFAULT_RULE = (
    "values were merged by the default rule: lists are concatenated (messages by id), dicts merged by key, "
    "anything else replaced"
)
_VERSIONS = (
    "channel versions and versions_seen were derived from the checkpoint before: "
    "nodes that wrote are taken to have seen their triggers"
)


class WrongGraphError(ValueError):
    """The graph lacks a channel or node of the thread."""


class Replay(Protocol):
    """A graph that applies writes. WrongGraphError if it is not the thread's; errors of its reducers are passed on."""

    def channel(self, name: str, base: Parts | None, steps: Sequence[Sequence[Parts]]) -> Parts | None:
        """Return the value of a channel after the writes of some steps; None if it has none."""

    def step(self, state: RebuiltState, writes: Sequence[StoredWrite]) -> RebuiltState:
        """Return the state after a step. All values are Parts."""


@dataclass(frozen=True, slots=True)
class RebuiltState:
    """The state of a checkpoint. `origins` says how each value was obtained; `fields` has LangGraph's other keys."""

    versions: dict[str, Any]
    seen: dict[str, dict[str, Any]]
    values: dict[str, Value]
    origins: dict[str, str]
    fields: dict[str, Any]


class _Route(NamedTuple):
    """What a channel is rebuilt from. `line` leads to the damaged checkpoint, from `base` on if there is one.

    `base` is the nearest ancestor with an intact value. `is_complete` is false if an older value may be lost.
    """

    base: CheckpointKey | None
    line: list[CheckpointKey]
    is_complete: bool


class _Start(NamedTuple):
    """The value that the writes on a line of checkpoints are applied to.

    `origin` describes it if there are no such writes; `source` begins the description if there are.
    """

    value: Value | None
    line: list[CheckpointKey]
    origin: str
    source: str


class Rebuilder:
    """Rebuilds checkpoints of a thread, reads items when they are needed, and collects the assumptions it makes.

    Checkpoints are identified by (ns, id). `damaged` has those that cannot be read as they were.
    """

    def __init__(self, scan: ThreadScan, replay: Replay | None) -> None:
        self.scan = scan
        self.head = scan.head()
        self.assumptions: dict[str, None] = {}
        self._replay = replay
        self._rows = {(row.ns, row.id): row for row in scan.inspected.checkpoints}
        self._known = scan.records.keys() | scan.broken
        self._deltas = delta_channels(scan.records, scan.tasks)
        self._writes_cache: dict[tuple[CheckpointKey, CheckpointKey], list[StoredWrite]] = {}
        self._with_broken_writes = {(ns, id) for ns, id, _ in scan.broken_writes}
        self.damaged = self._find_damaged()

    def assume(self, assumption: str) -> None:
        """Record something that is not certain."""
        self.assumptions[assumption] = None

    # --- what is damaged

    def _find_damaged(self) -> set[CheckpointKey]:
        """Checkpoints with damage to the row, to items it needs, to writes on it, or to what its deltas need."""
        with_bad_items = {checkpoint for users in self.scan.needed_by.values() for checkpoint, _ in users}
        with_bad_deltas = {checkpoint for checkpoint in self.scan.records if self._has_damaged_delta(checkpoint)}
        return self.scan.broken | with_bad_deltas | ((with_bad_items | self._with_broken_writes) & self._known)

    def _unstored_deltas(self, checkpoint: CheckpointKey) -> set[str]:
        """The delta channels that a checkpoint does not store itself."""
        record = self.scan.records[checkpoint]
        return {name for name in self._deltas[checkpoint] if name in record.versions and name not in record.slots}

    def _has_damaged_delta(self, checkpoint: CheckpointKey) -> bool:
        """Whether there is damage between a checkpoint and the stored value of one of its delta channels."""
        for name in self._unstored_deltas(checkpoint):
            base, line, is_complete = self._route(checkpoint, name)
            unusable = (at not in self.scan.records or (at != base and self._slot(at, name)) for at in line[:-1])
            if not is_complete or any(unusable) or self._damaged_writes(line[:-1], name):
                return True
        return False

    def needs_for_deltas(self, checkpoint: CheckpointKey) -> set[CheckpointKey]:
        """The ancestors that a checkpoint's delta channels are rebuilt from; also one that is named but missing."""
        needed: set[CheckpointKey] = set()
        for name in self._unstored_deltas(checkpoint):
            base, line, is_complete = self._route(checkpoint, name)
            needed.update(line[:-1])
            first = self.scan.records.get(line[0])
            if base is None and not is_complete and first is not None and first.row.parent is not None:
                needed.add((first.row.ns, first.row.parent))
        return needed

    def _damaged_writes(self, checkpoints: Sequence[CheckpointKey], name: str | None) -> list[CheckpointKey]:
        """Of these checkpoints, those with damaged writes that may be to a channel, or to any if `name` is None."""
        return [at for at in checkpoints if at in self._with_broken_writes or not self._can_read_writes(at, name)]

    def _can_read_writes(self, checkpoint: CheckpointKey, name: str | None) -> bool:
        entries = (entry for task in self.scan.tasks.get(checkpoint, ()) for entry in task.entries.values())
        return all(self.scan.is_intact(entry.slot) for entry in entries if name in (None, entry.channel))

    # --- ancestors

    def ancestors(self, checkpoint: CheckpointKey) -> Iterator[CheckpointKey]:
        """The checkpoints before one, nearest first. A cycle ends it."""
        seen = {checkpoint}
        parent, _ = self._parent(checkpoint)
        while parent is not None and parent not in seen:
            yield parent
            seen.add(parent)
            parent, _ = self._parent(parent)

    def _parent(self, checkpoint: CheckpointKey) -> tuple[CheckpointKey | None, str]:
        """The parent that a row names, else the greatest readable id below; and what that assumes, if anything."""
        ns, id = checkpoint
        row, is_readable = self._rows.get(checkpoint), checkpoint in self.scan.records
        if row is not None and row.parent is not None and (ns, row.parent) in self._known:
            assumption = f"the row of checkpoint {id} is damaged; the parent that it names is used: {row.parent}"
            return (ns, row.parent), "" if is_readable else assumption
        if is_readable:
            return None, ""
        below = max((each for each in self.scan.records if each[0] == ns and each < checkpoint), default=None)
        if below is None:
            return None, ""
        return below, f"the parent of checkpoint {id} is not known; the readable one before it is used: {below[1]}"

    def _route(self, checkpoint: CheckpointKey, name: str) -> _Route:
        """The way back to the nearest ancestor that holds a channel intact, or to the first ancestor."""
        line = [checkpoint]
        for at in self.ancestors(checkpoint):
            line.append(at)
            if lasts_one_step(name):
                return _Route(None, line[::-1], is_complete=True)
            slot = self._slot(at, name)
            if slot is not None and self.scan.is_intact(slot):
                return _Route(at, line[::-1], is_complete=True)
        first = self.scan.records.get(line[-1]) if len(line) > 1 else None
        starts_thread = first is not None and first.row.parent is None and (first.row.step or 0) < 0
        return _Route(None, line[::-1], is_complete=starts_thread and self._slot(line[-1], name) is None)

    def _slot(self, checkpoint: CheckpointKey, name: str) -> Slot | None:
        record = self.scan.records.get(checkpoint)
        return record.slots.get(name) if record is not None else None

    # --- writes

    async def _writes(self, checkpoint: CheckpointKey, child: CheckpointKey) -> list[StoredWrite]:
        """The intact writes on a checkpoint that a child applied, in LangGraph's order."""
        if (checkpoint, child) not in self._writes_cache:
            writes = self._writes_of_child(ordered_writes(self.scan.tasks.get(checkpoint, ())), checkpoint, child)
            writes = [write for write in writes if self.scan.is_intact(write[2].slot)]
            await self.scan.fetch(entry.slot for *_, entry in writes)
            has_sends = any(is_send_path(entry.origin[0]) for *_, entry in writes)
            sends = await self._sends(checkpoint) if has_sends else []
            self._writes_cache[(checkpoint, child)] = [
                StoredWrite(path, task.row.task, node_of_task(path, sends), channel, slot_parts(self.head, slot))
                for task, _, (channel, slot, _, (path, _, _)) in writes
            ]
        return self._writes_cache[(checkpoint, child)]

    def _writes_of_child(
        self, stored: list[TaskWrite], checkpoint: CheckpointKey, child: CheckpointKey
    ) -> list[TaskWrite]:
        """The writes to channels that a child applied: if it has siblings, those that existed when it was made.

        The writes of update_state are stored for delta channels only, and do not have the path of a task.
        """
        writes = [write for write in stored if write[2].channel not in SPECIAL_WRITES]
        row = self._rows.get(child)
        if row is None:
            return writes
        by_hand = row.source == "update"
        if by_hand:
            self.assume(f"{row.id} was made by update_state, whose values are not stored as writes: they are missing")
        children = sum((each.ns, each.parent) == checkpoint for each in self._rows.values())
        if children <= 1:
            return writes
        self.assume(f"{checkpoint[1]} has {children} children: writes on it after {row.id} was made belong to others")
        writes = [write for write in writes if write[2].origin[2] <= row.time]
        return [write for write in writes if not (by_hand and write[2].origin[0].startswith(_TASK_PATH))]

    async def _sends(self, checkpoint: CheckpointKey) -> list[Any]:
        """The pending sends of a checkpoint; if they are damaged, as they were written on its parent."""
        if checkpoint in self.scan.records and self._slot(checkpoint, TASKS) is None:
            return []
        value, _ = await self._channel(checkpoint, TASKS, delta=False)
        parts = await self._parts(value) if value is not None else None
        return list(plain(parts.tag, parts.data)) if parts is not None else []

    async def _parts(self, value: Value) -> Parts:
        if isinstance(value, Parts):
            return value
        await self.scan.fetch([value])
        return slot_parts(self.head, value)

    # --- states

    async def state(self, target: CheckpointKey) -> tuple[RebuiltState, CheckpointKey] | None:
        """Rebuild the state of a checkpoint. Return it with the checkpoint that it is built from.

        That is the target itself, if its row can be read. None if no row before it can be read either.
        """
        line = self._line_from_readable(target)
        base = last = line[0]
        if base not in self.scan.records:
            return None
        steps: _Steps = []
        for checkpoint, child in pairwise(line):
            writes = await self._step_writes(checkpoint, child)
            if writes:
                steps.append((checkpoint, writes))
                last = child
        state = await self._state_by_graph(base, steps) if self._replay is not None and steps else None
        if state is None:
            with_deltas = base != target or self._needs_deltas(base)
            state = await self._state_by_names(base, last, steps, with_deltas=with_deltas)
        if base != target:
            taken = {name: f"taken from ancestor {base[1]}" for name, how in state.origins.items() if how == INTACT}
            state = replace(state, origins=state.origins | taken)
        return state, base

    def _line_from_readable(self, target: CheckpointKey) -> list[CheckpointKey]:
        """The checkpoints from the nearest one whose row can be read to the target."""
        line: list[CheckpointKey] = []
        for at in chain([target], self.ancestors(target)):
            line.insert(0, at)
            if at in self.scan.records:
                break
            _, assumption = self._parent(at)
            if assumption:
                self.assume(assumption)
        return line

    async def _step_writes(self, checkpoint: CheckpointKey, child: CheckpointKey) -> list[StoredWrite]:
        writes = await self._writes(checkpoint, child)
        if self._damaged_writes([checkpoint], None):
            self.assume(f"some writes on {checkpoint[1]} are damaged: their values are missing")
        if not writes:
            lost = f"input that {child[1]} added is lost"
            self.assume(f"no writes are stored on {checkpoint[1]}: its state is used unchanged; {lost}")
        return writes

    def _needs_deltas(self, checkpoint: CheckpointKey) -> bool:
        """Whether delta channels cannot be left to the ancestors: one of them, or the parent, is damaged."""
        return self._has_damaged_delta(checkpoint) or next(self.ancestors(checkpoint), None) in {None, *self.damaged}

    async def _state_by_graph(self, base: CheckpointKey, steps: _Steps) -> RebuiltState | None:
        """The state after some steps, applied by the graph; None if its reducers raise an error."""
        assert self._replay is not None
        state = await self._state_by_names(base, base, [], with_deltas=True)
        state = replace(state, values={name: await self._parts(value) for name, value in state.values.items()})
        try:
            for _, writes in steps:
                state = self._replay.step(state, writes)
        except WrongGraphError:
            raise
        except Exception as error:  # noqa: BLE001 - a reducer of the application may need values that are lost
            self.assume(f"the graph could not apply the writes ({error!r})")
            return None
        origins = {name: how for name, how in state.origins.items() if name in state.values or how == LOST}
        for name in state.values:
            writers = _writers(name, steps)
            if writers:
                origins[name] = f"rebuilt from ancestor {base[1]} and the writes on {writers}"
        return replace(state, origins=origins)

    async def _state_by_names(
        self, base: CheckpointKey, last: CheckpointKey, steps: _Steps, *, with_deltas: bool
    ) -> RebuiltState:
        """The state of `last`, which is these steps after `base`, without the graph."""
        record = self.scan.records[base]
        versions, seen, fields = record.versions, record.seen, record.fields
        names = {*record.slots, *(self._unstored_deltas(base) if with_deltas else ())}
        for _, writes in steps:
            self.assume(_DEFAULT_RULE)
            self.assume(_VERSIONS)
            versions, seen = versions_after(versions, seen, names, writes)
            names = {name for name in names if not lasts_one_step(name)} | {write.channel for write in writes}
            fields = {"v": record.fields.get("v", 4)}
        values, origins = dict[str, Value](), dict[str, str]()
        for name in names:
            value, origins[name] = await self._channel(last, name, delta=name in self._deltas[base])
            if value is not None:
                values[name] = value
        seen = {node: dict(versions) for node, versions in seen.items()}
        return RebuiltState(dict(versions), seen, values, origins, dict(fields))

    # --- channels

    async def _channel(self, target: CheckpointKey, name: str, *, delta: bool) -> tuple[Value | None, str]:
        """Return a channel's value, and how it was obtained."""
        own = self._slot(target, name)
        if own is not None and self.scan.is_intact(own):
            return own, INTACT
        value, line, origin, source = await self._start(target, name)
        damaged = self._damaged_writes(line[:-1], name)
        if damaged:
            self.assume(
                f"channel {name}: the writes on {', '.join(id for _, id in damaged)} are damaged, missing in it"
            )
        steps = [(at, await self._writes(at, child)) for at, child in pairwise(line)]
        writers = _writers(name, steps)
        if writers:
            base = await self._parts(value) if value is not None else None
            value = self._apply(name, base, [writes for _, writes in steps], delta=delta)
            origin = f"{source} the writes on {writers}"
        if value is None:
            return None, LOST
        return (await self._parts(value))._replace(snapshot=True) if delta else value, origin

    async def _start(self, target: CheckpointKey, name: str) -> _Start:
        """Where to rebuild a channel from: an ancestor's intact value, or what can be read of a later damaged one.

        The latter is better only if there is no intact value, or if writes in between are damaged.
        """
        base, line, is_complete = self._route(target, name)
        holder = next((at for at in reversed(line) if at != base and self._slot(at, name) is not None), None)
        if holder is not None:
            after = line.index(holder)
            if not is_complete or self._damaged_writes(line[:after], name):
                left = await self._salvage(holder, name)
                if left is not None:
                    return _Start(left[0], line[after:], left[1], f"{left[1]}, and")
        if base is None:
            return _Start(None, line, LOST, "rebuilt from")
        ancestor = f"from ancestor {base[1]}"
        return _Start(self._slot(base, name), line, f"taken {ancestor}", f"rebuilt {ancestor} and")

    async def _salvage(self, checkpoint: CheckpointKey, name: str) -> tuple[Parts, str] | None:
        """The elements of a list or dict that can be read, and a description; None if there are none."""
        slot = self._slot(checkpoint, name)
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

    def _apply(
        self, name: str, base: Parts | None, steps: Sequence[Sequence[StoredWrite]], *, delta: bool
    ) -> Parts | None:
        if is_known_by_name(name):
            return channel_after(name, base, steps)
        if self._replay is not None:
            values = [[write.value for write in step if write.channel == name] for step in steps]
            try:
                return self._replay.channel(name, base, values)
            except WrongGraphError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                self.assume(f"the graph could not apply the writes to channel {name} ({error!r})")
        self.assume(_DEFAULT_RULE)
        return channel_after(name, base, steps, delta=delta)


def _writers(name: str, steps: _Steps) -> str:
    """The checkpoints whose writes change a channel, as text: all if there are up to three, else the first and last."""
    ids = [id for (_, id), writes in steps if changes_channel(name, writes)]
    return ", ".join(ids if len(ids) <= 3 else [ids[0], f"{len(ids) - 2} more", ids[-1]])
