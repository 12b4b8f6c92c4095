"""Rebuilding the state of a damaged checkpoint from what is left: its own intact channels, ancestors, and stored writes.

The writes on a checkpoint are what its child took in. So a channel that cannot be read any more is what the nearest
ancestor that can be read holds, and after it the writes on each checkpoint from there on; how they are merged is told by
the graph, if there is one, or by `default_merge`. Where writes are lost too, what is left of the list or dict itself is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, TASKS

from threadkeep.engine import itemlog
from threadkeep.engine.backend import Have, Items
from threadkeep.engine.codec import MSGPACK, Parts, pack
from threadkeep.engine.default_merge import merged
from threadkeep.engine.heads import Head
from threadkeep.engine.itemlog import FIRST_CHANNEL, Item, ItemId
from threadkeep.engine.plain import plain_parts
from threadkeep.engine.pool import Pool
from threadkeep.engine.records import CheckpointRow, Entry, Slot
from threadkeep.engine.remains import delta_channels
from threadkeep.engine.survey import Place, node_of, parts_of
from threadkeep.engine.thread_scan import Among, ThreadScan
from threadkeep.engine.wire import LIST, WHOLE, split_parts
from threadkeep.errors import Conflict, Corrupt

_Known = tuple[str, str, int, Entry]
_TASK = "~__pregel_pu"
"""How the path of a task begins: pull or push."""
_SEVERAL = 2
_BRANCH, _START, _JOIN = "branch:to:", "__start__", "join:"
_NO_CHANNELS = frozenset(
    {INTERRUPT, ERROR, RESUME, "__no_writes__", "__pregel_push", "__return__", "__error_source_node__"}
)
"""What tasks write that no channel takes in."""
Value = Slot | Parts
INTACT, LOST = "intact", "lost"


class Written(NamedTuple):
    """One write: who made it, and what. `value` is None if it is damaged."""

    path: str
    task: str
    node: str | None
    channel: str
    value: Parts | None


class NotTheGraphError(ValueError):
    """A graph that lacks a channel or node of the thread."""


class Replay(Protocol):
    """How a graph takes writes in. NotTheGraphError if it cannot; what its reducers raise is theirs."""

    def channel(self, name: str, base: Parts | None, writes: Sequence[Parts]) -> Parts | None:
        """The value of a channel after some writes; None if it has none."""

    def step(self, state: State, held: Mapping[str, Parts], writes: Sequence[Written]) -> State:
        """The state after a step."""


@dataclass(frozen=True, slots=True)
class State:
    """A checkpoint's state, and how each value of it was obtained."""

    versions: dict[str, Any]
    seen: dict[str, dict[str, Any]]
    values: dict[str, Value]
    how: dict[str, str]
    fields: dict[str, Any] = field(default_factory=dict)
    rest: tuple[str, bytes] | None = None


class _Way(NamedTuple):
    """From a checkpoint back to what its channel is rebuilt from: `base` (None: nothing), through these places."""

    base: Place | None
    through: list[Place]
    is_whole: bool


class Rebuilder:
    """What is left of a thread, put together. It reads items as they are needed, and notes what it has to assume."""

    def __init__(self, scan: ThreadScan, replay: Replay | None) -> None:
        self.scan = scan
        self.pool = Pool()
        self.assumed: dict[str, None] = {}
        self._replay = replay
        self._bad = Among(scan.bad)
        self._deltas = delta_channels(scan.records)
        self._rows = {(row.ns, row.id): row for row in scan.found.checkpoints}

    # --- what is damaged

    def damage(self) -> dict[Place, str]:
        """Every checkpoint that cannot be read as it was, and why."""
        found, lost = dict(self.scan.broken), self._places_of_lost_writes()
        for place, record in self.scan.records.items():
            hurt = [name for name, slot in record.slots.items() if not self.usable(slot)]
            hurt += self.hurt_deltas(place)
            if hurt:
                found[place] = f"channels that cannot be read: {', '.join(sorted(hurt))}"
            elif self.scan.labels(record.row.labels) is None:
                found[place] = "its labels cannot be read"
            elif place in lost:
                found[place] = "writes on it cannot be read"
        return found

    def _places_of_lost_writes(self) -> set[Place]:
        """Where writes are damaged: whoever reads the checkpoint reads them, too."""
        lost = {at[:2] for at in self.scan.broken_writes}
        for place, tasks in self.scan.tasks.items():
            if not all(self.usable(entry.slot) for task in tasks for entry in task.entries.values()):
                lost.add(place)
        return lost

    def usable(self, slot: Slot) -> bool:
        """Whether all items of a value are intact."""
        return not self._bad.met((*slot.runs, *slot.spill))

    def hurt_deltas(self, place: Place) -> list[str]:
        """Delta channels of a checkpoint of which an ancestor's row, its writes, or the value before them cannot be read."""
        slots = self.scan.records[place].slots
        return [name for name in self._deltas[place] - slots.keys() if name in self.scan.records[place].versions and not self._is_whole_delta(place, name)]  # fmt: skip

    def _is_whole_delta(self, place: Place, name: str) -> bool:
        """Whether whoever reads it meets nothing that is damaged on the way back to the value that is stored."""
        way = self._way(place, name)
        return way.is_whole and not any(
            passed not in self.scan.records
            or (passed != way.base and name in self.scan.records[passed].slots)
            or self._lost_on(passed, name)
            for passed in way.through
        )

    # --- where things are

    def parent_of(self, place: Place, *, say: bool = True) -> Place | None:
        """The parent that a row names; of a row that is gone or unreadable, the greatest intact id below it."""
        row: CheckpointRow | None = self._rows.get(place)
        known = self.scan.records.keys() | self.scan.broken.keys()
        if row is not None and place in self.scan.records:
            return (place[0], row.parent) if row.parent is not None and (place[0], row.parent) in known else None
        if row is not None and row.parent is not None and (place[0], row.parent) in known:
            if say:
                self.assume(f"the row of {place[1]} is damaged; its parent is taken to be {row.parent}, as it says")
            return (place[0], row.parent)
        below = [each for each in self.scan.records if each[0] == place[0] and each[1] < place[1]]
        found = max(below, default=None)
        if say and found is not None:
            self.assume(
                f"who the parent of {place[1]} was is not known any more: the greatest checkpoint below it that can be read is taken, {found[1]}"
            )
        return found

    def assume(self, said: str) -> None:
        """Note something that nobody can be sure of."""
        self.assumed[said] = None

    def _way(self, place: Place, name: str) -> _Way:
        """Back to the nearest ancestor that holds a channel intact, or to the beginning."""
        through: list[Place] = []
        met = {place}
        at = self.parent_of(place, say=False)
        while at is not None and at not in met:
            met.add(at)
            through.append(at)
            record = self.scan.records.get(at)
            if record is not None and name in record.slots and self.usable(record.slots[name]):
                return _Way(at, through[::-1], is_whole=True)
            if name in _STEP_ONLY:
                return _Way(None, through, is_whole=True)
            last, at = at, self.parent_of(at, say=False)
            if at is None:
                first = self.scan.records.get(last)
                begins = first is not None and first.row.parent is None and (first.row.step or 0) < 0
                return _Way(None, through[::-1], is_whole=begins and name not in (first.slots if first else {}))
        return _Way(None, through[::-1], is_whole=False)

    def _lost_on(self, place: Place, name: str) -> bool:
        """Whether writes on a checkpoint are lost that may have been to this channel."""
        if any(at[:2] == place for at in self.scan.broken_writes):
            return True
        entries = (entry for task in self.scan.tasks.get(place, ()) for entry in task.entries.values())
        return any(entry.channel == name and not self.usable(entry.slot) for entry in entries)

    # --- reading

    async def parts(self, value: Value) -> Parts:
        """A value by its parts."""
        if isinstance(value, Parts):
            return value
        await self.fetch([value])
        return parts_of(Head(self.scan.key, self.scan.row, pool=self.pool), value)

    async def fetch(self, slots: Iterable[Slot]) -> None:
        """Have the intact items of these values at hand."""
        lacking = self.pool.lacking(itemlog.union(run for slot in slots for run in slot.runs))
        ids = [at for run in lacking for at in run.ids() if at not in self.scan.bad]
        row = self.scan.row
        if not ids or row is None:
            return
        loaded = await Items(self.scan.key, itemlog.join_runs(ids), Have(row.epoch, len(self.scan.names), Pool()))
        if loaded.thread is None or loaded.thread.epoch != row.epoch:
            raise Conflict(f"{self.scan.where} was pruned while it was read")
        self.pool.fill(
            {at: held for at, held in loaded.items.items() if at.lane >= FIRST_CHANNEL and at not in self.scan.bad},
            self.scan.where,
        )

    async def written(self, place: Place, child: Place, sends: Iterable[Any] = ()) -> list[Written]:
        """The writes on a checkpoint that a child took in, in LangGraph's order."""
        known = [
            (entry.origin[0], task.row.task, idx, entry)
            for task in self.scan.tasks.get(place, ())
            for idx, entry in task.entries.items()
            if entry.channel not in _NO_CHANNELS
        ]
        known = sorted(self._of_child(known, place, child), key=lambda each: each[:3])
        await self.fetch(entry.slot for *_, entry in known)
        named = list(sends)
        found = []
        for path, task, _, entry in known:
            value = await self.parts(entry.slot) if self.usable(entry.slot) else None
            found.append(Written(path, task, node_of(path, named), entry.channel, value))
        return found

    def _of_child(self, known: list[_Known], place: Place, child: Place) -> list[_Known]:
        """Of the writes on a checkpoint with several children, those that were there when this one was made.

        What update_state writes is stored for delta channels only, and has no task's path.
        """
        row = self._rows.get(child)
        siblings = [each for each in self._rows.values() if (each.ns, each.parent) == place]
        if row is not None and row.source == "update":
            self.assume(f"{child[1]} was made by update_state, whose values are not stored as writes: they are missing")
        if row is None or len(siblings) < _SEVERAL:
            return known
        self.assume(
            f"{place[1]} has {len(siblings)} children: writes on it that came after {row.id} are not counted as its own"
        )
        early = [each for each in known if each[3].origin[2] <= row.time]
        return [each for each in early if not each[0].startswith(_TASK)] if row.source == "update" else early

    # --- rebuilding

    async def state(self, place: Place) -> tuple[State, Place] | None:
        """The state of a checkpoint, and which one it starts from: itself, if its row can be read. None if nothing is left."""
        steps: list[Place] = []
        at: Place | None = place
        while at is not None and at not in self.scan.records:
            if at in steps:
                return None
            steps.append(at)
            at = self.parent_of(at)
        if at is None:
            return None
        state = await self._own_state(at, anew=bool(steps), whole=bool(steps) or self._has_broken_line(at))
        for passed, child in zip([at, *steps[:0:-1]], steps[::-1], strict=False):
            state = await self._advanced(state, passed, child, at)
        return state, at

    def _has_broken_line(self, place: Place) -> bool:
        """Whether delta channels can not be left to the ancestors: one of them, or the parent, is damaged."""
        parent = self.parent_of(place, say=False)
        return bool(self.hurt_deltas(place)) or parent is None or parent in self.damage()

    async def _own_state(self, place: Place, *, anew: bool, whole: bool) -> State:
        """What a readable row holds, with its damaged channels rebuilt; if it must be `whole`, all delta channels too."""
        record = self.scan.records[place]
        values: dict[str, Value] = {name: slot for name, slot in record.slots.items() if self.usable(slot)}
        how = dict.fromkeys(values, INTACT if not anew else f"taken from ancestor {place[1]}")
        hurt = [name for name in record.slots if name not in values] + self.hurt_deltas(place)
        if whole:
            hurt += [
                name
                for name in self._deltas[place]
                if name not in record.slots and name in record.versions and name not in hurt
            ]
        for name in hurt:
            value, how[name] = await self._channel(place, name)
            if value is not None:
                values[name] = value
        return State(
            dict(record.versions),
            {node: dict(held) for node, held in record.seen.items()},
            values,
            how,
            dict(record.fields),
            record.rest,
        )

    async def _channel(self, place: Place, name: str) -> tuple[Value | None, str]:
        """A channel that its checkpoint does not hold intact, and how it was obtained."""
        way = self._way(place, name)
        lost = [passed for passed in way.through if self._lost_on(passed, name)]
        children = dict(zip(way.through, [*way.through[1:], place], strict=False))
        slot = self.scan.records[place].slots.get(name)
        left = await self._salvaged(slot) if slot is not None and (lost or not way.is_whole) else None
        if left is not None and slot is not None:
            gone = slot.elements - len(left.parts)
            self.assume(f"channel {name}: {gone} of {slot.elements} elements cannot be read and are left out")
            return left, f"what can be read of it: {len(left.parts)} of {slot.elements} elements"
        value, how = await self._replayed(way, name, children)
        if lost:
            self.assume(
                f"channel {name}: writes on {', '.join(passed[1] for passed in lost)} are damaged and missing in it"
            )
        if value is None:
            return None, LOST
        is_delta = name in self._deltas[place] or (slot is not None and slot.snapshot)
        return (value._replace(snapshot=True) if is_delta else value), how

    async def _replayed(self, way: _Way, name: str, children: Mapping[Place, Place]) -> tuple[Parts | None, str]:
        base = await self.parts(self.scan.records[way.base].slots[name]) if way.base is not None else None
        writes: list[Parts] = []
        writers: list[str] = []
        for passed in way.through:
            told = await self.written(passed, children[passed])
            more = [each.value for each in told if each.channel == name and each.value is not None]
            writes += more
            writers += [passed[1]] * bool(more)
        value = self._merged(name, base, writes)
        source = f"ancestor {way.base[1]}" if way.base is not None else "nothing"
        if not writers:
            return value, f"taken from {source}" if way.base is not None else LOST
        return value, f"rebuilt from {source} and the writes on {', '.join(_few(writers))}"

    def _merged(self, name: str, base: Parts | None, writes: Sequence[Parts]) -> Parts | None:
        if not writes:
            return base
        if name == TASKS:
            return merged(Parts(LIST, MSGPACK, []), writes)
        if self._replay is not None:
            try:
                return self._replay.channel(name, base, writes)
            except NotTheGraphError:
                raise
            except Exception as error:  # noqa: BLE001 - a reducer of the application's, which may miss what is lost
                self.assume(f"the graph's channel {name} refused the writes ({error!r})")
        self.assume(_DEFAULT_RULE)
        return merged(base, writes)

    async def _salvaged(self, slot: Slot) -> Parts | None:
        """The elements of a list or dict that are left; None if there are none, or if it is neither."""
        if slot.kind == WHOLE or slot.inline is not None:
            return None
        await self.fetch([slot])
        elements = [element for data in self._pieces(slot) for element in _readable(slot, *data)]
        return Parts(slot.kind, slot.tag, elements, slot.snapshot) if elements else None

    def _pieces(self, slot: Slot) -> Iterator[tuple[int, bytes]]:
        """The intact items of a value, those of one element joined: how many elements, and their bytes."""
        held: Item | None = None
        for at in (at for run in slot.runs for at in run.ids()):
            item = self.pool.get(ItemId(*at))
            if item is None:
                if held is not None:
                    yield held.elements, held.data  # if the lost item was its end, it will not decode
                held = None
            elif item.elements == 0:
                held = Item(held.data + item.data, held.elements) if held is not None else None
            else:
                if held is not None:
                    yield held.elements, held.data
                held = item
        if held is not None:
            yield held.elements, held.data

    async def _advanced(self, state: State, place: Place, child: Place, base: Place) -> State:
        """The state after the step that took in the writes on a checkpoint."""
        sends = await self._sends(state)
        writes = await self.written(place, child, sends)
        if any(each.value is None for each in writes) or any(at[:2] == place for at in self.scan.broken_writes):
            self.assume(f"some writes on {place[1]} are damaged: what they brought is missing")
        writes = [each for each in writes if each.value is not None]
        if not writes:
            self.assume(
                f"no writes are stored on {place[1]}: its state is taken as it was; input that {child[1]} brought is lost"
            )
            return state
        touched = {each.channel for each in writes}
        held = {
            name: await self.parts(value)
            for name, value in state.values.items()
            if self._replay is not None or name in touched
        }
        after = self._stepped(state, held, writes)
        deltas = self._deltas.get(base, frozenset())
        values = {
            name: value._replace(snapshot=True) if name in deltas else value for name, value in after.values.items()
        }
        how = dict(state.how)
        for name in values:
            if name in touched:
                how[name] = _rebuilt(how.get(name), base, place)
        return replace(
            after, values=values, how={name: told for name, told in how.items() if name in values or told == LOST}
        )

    def _stepped(self, state: State, held: Mapping[str, Parts], writes: Sequence[Written]) -> State:
        """A step by the graph; by names and the default merge, if there is none or its reducers refuse."""
        if self._replay is not None:
            try:
                return self._replay.step(state, held, writes)
            except NotTheGraphError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                self.assume(f"the graph's channels refused the writes ({error!r})")
        self.assume(_DEFAULT_RULE)
        self.assume(
            "versions, and what nodes have seen, were made from those of the checkpoint before: nodes that wrote have seen what triggers them"
        )
        return _stepped(state, held, writes)

    async def _sends(self, state: State) -> list[Any]:
        value = state.values.get(TASKS)
        if value is None:
            return []
        held = await self.parts(value)
        found = plain_parts(held.kind, held.tag, len(held.parts), b"".join(held.parts))
        return found if isinstance(found, list) else []


_STEP_ONLY = frozenset({TASKS, _START})
"""Channels that are empty again after one step; and those that begin with `branch:to:`."""
_FEW = 3
_DEFAULT_RULE = "values were merged by the default rule: lists are concatenated (messages by id), dicts merged by key, anything else replaced"


def _few(places: Sequence[str]) -> list[str]:
    return [*places[:1], f"{len(places) - 2} more", places[-1]] if len(places) > _FEW else list(places)


def _rebuilt(before: str | None, base: Place, place: Place) -> str:
    begun = "rebuilt from ancestor"
    if before is not None and before.startswith(begun):
        return f"{before}, {place[1]}"
    return f"{begun} {base[1]} and the writes on {place[1]}"


def _readable(slot: Slot, count: int, data: bytes) -> list[bytes]:
    """The elements in some bytes; none if they are not whole."""
    try:
        plain_parts(slot.kind, slot.tag, count, data)
        return list(split_parts(data, count))
    except (Corrupt, ValueError, IndexError, KeyError, TypeError):
        return []


# --- a step without the graph


def _stepped(state: State, held: Mapping[str, Parts], writes: Sequence[Written]) -> State:
    """What LangGraph's `apply_writes` does, as far as names tell: branches, joins, pending sends; and the default merge."""
    version = next_version(state.versions.values())
    versions, seen, values = dict(state.versions), {n: dict(v) for n, v in state.seen.items()}, dict(state.values)
    nodes = {each.node for each in writes if each.node is not None}
    for node in nodes:
        known = seen.setdefault(node, {})
        known.update({name: versions[name] for name in _triggers(node, known, versions) if name in versions})
    for name in [name for name in values if _is_for_one_step(name)]:
        del values[name]
        versions[name] = version
    for name in [name for name in values if name.startswith(_JOIN) and name.rpartition(":")[2] in nodes]:
        values[name], versions[name] = Parts(WHOLE, MSGPACK, [pack(set())]), version
    by_channel: dict[str, list[Parts]] = {}
    for each in writes:
        if each.value is not None:
            by_channel.setdefault(each.channel, []).append(each.value)
    for name, given in by_channel.items():
        values[name] = _taken_in(name, values, held, given)
        versions[name] = version
    return replace(
        state, versions=versions, seen=seen, values=values, fields={"v": state.fields.get("v", 4)}, rest=None
    )


def _triggers(node: str, known: Mapping[str, Any], versions: Mapping[str, Any]) -> set[str]:
    joins = {name for name in versions if name.startswith(_JOIN) and name.rpartition(":")[2] == node}
    return {*known, _BRANCH + node, *joins, *([_START] if node == _START else [])}


def _is_for_one_step(name: str) -> bool:
    return name in _STEP_ONLY or name.startswith(_BRANCH)


def _taken_in(name: str, values: Mapping[str, Value], held: Mapping[str, Parts], given: Sequence[Parts]) -> Parts:
    """A channel's value after writes."""
    if name == TASKS:
        return Parts(LIST, MSGPACK, [b"".join(write.parts) for write in given])
    if name.startswith(_JOIN):
        return _joined(values.get(name), held.get(name), given)
    base = None if _is_for_one_step(name) else held.get(name)
    value = merged(base, given)
    assert value is not None
    return value


def _joined(value: Value | None, held: Parts | None, given: Sequence[Parts]) -> Parts:
    """The nodes that a join has heard of: a set of names."""
    before = held if held is not None and (value is None or isinstance(value, Slot)) else value
    names: set[Any] = set()
    if isinstance(before, Parts):
        told = plain_parts(before.kind, before.tag, len(before.parts), b"".join(before.parts))
        names |= set(told if isinstance(told, list) else [])
    names |= {plain_parts(write.kind, write.tag, len(write.parts), b"".join(write.parts)) for write in given}
    return Parts(WHOLE, MSGPACK, [pack(names)])


def next_version(versions: Iterable[Any]) -> Any:
    """The version after all of these, as LangGraph's savers count: integers, or strings that begin with one."""
    held = list(versions)
    texts = [version for version in held if isinstance(version, str)]
    if texts:
        return f"{int(max(texts).split('.')[0]) + 1:032}.{0:016}"
    numbers = [version for version in held if isinstance(version, (int, float))]
    return max(numbers, default=0) + 1
