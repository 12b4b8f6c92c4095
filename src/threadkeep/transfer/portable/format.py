"""The lines of a portable file: records to JSON objects and back. `docs/reference/portable-file.md` describes them.

Nothing here knows a storage. A file may be hostile, so everything in a line is checked, and an error is a ValueError
that names the line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from threadkeep.engine.log.codec import pack, unpack
from threadkeep.engine.log.itemlog import CHUNK, FIRST_CHANNEL, RANGE_LISTS, Item, ItemRange
from threadkeep.engine.log.msgpack import LIST, MAP, WHOLE
from threadkeep.engine.log.records import CheckpointRecord, CheckpointRow, Slot, TaskWrites, WriteEntry, WriteRow
from threadkeep.engine.memories.json_text import dump, load
from threadkeep.engine.memories.requests import MemoryRow
from threadkeep.engine.threads.origins import Origin
from threadkeep.errors import ThreadkeepError

FORMAT, VERSION = "threadkeep", 1
HEADER, THREAD, ITEM, RUNS, CHECKPOINT, WRITES, THREAD_END, THREAD_VOID, MEMORY, END = (
    "header", "thread", "item", "runs", "checkpoint", "writes", "thread-end", "thread-void", "memory", "end",
)  # fmt: skip
_MOST = 1 << 62
_GREATEST = 1 << 31
_MSGPACK = "$msgpack"
_KINDS = {WHOLE: "whole", LIST: "list", MAP: "dict"}
_OF = {name: kind for kind, name in _KINDS.items()}


class Line(NamedTuple):
    """A line, or an object in a line, whose fields are checked as they are read."""

    number: int
    fields: Mapping[str, Any]

    def error(self, why: str) -> ValueError:
        """Return the error that names this line."""
        return ValueError(f"line {self.number} of the file: {why}")

    @property
    def line_type(self) -> str:
        """The type of the line."""
        return self.text("type")

    def get(self, name: str, *kinds: type) -> Any:
        """Return a field that has one of these types. A missing field is None."""
        value = self.fields.get(name)
        if type(value) not in kinds:
            raise self.error(f"{name} must be {' or '.join(kind.__name__ for kind in kinds)}, not {brief(value)}")
        return value

    def text(self, name: str) -> str:
        """Return a string."""
        return str(self.get(name, str))

    def maybe_text(self, name: str) -> str | None:
        """Return a string or None."""
        value: str | None = self.get(name, str, type(None))
        return value

    def count(self, name: str, least: int = 0, below: int = _MOST) -> int:
        """Return an integer in a range."""
        value = int(self.get(name, int))
        if not least <= value < below:
            raise self.error(f"{name} is {brief(value)}")
        return value

    def maybe_count(self, name: str, least: int = 0) -> int | None:
        """Return an integer or None."""
        return None if self.fields.get(name) is None else self.count(name, least)

    def flag(self, name: str) -> bool:
        """Return a bool; False if the field is missing."""
        return bool(self.get(name, bool, type(None)))

    def listed(self, name: str) -> list[Any]:
        """Return a list; an empty one if the field is missing."""
        return self.get(name, list, type(None)) or []

    def table(self, name: str) -> dict[str, Any]:
        """Return an object; an empty one if the field is missing."""
        return self.get(name, dict, type(None)) or {}

    def inner(self, value: Any) -> Line:
        """Return an object of this line as a line of its own."""
        if type(value) is not dict:
            raise self.error(f"expected an object, not {brief(value)}")
        return Line(self.number, value)

    def data(self, name: str) -> bytes:
        """Return bytes, which are written as one character each."""
        try:
            return self.text(name).encode("latin-1")
        except UnicodeEncodeError as error:
            raise self.error(f"{name} has a character that is not a byte") from error

    def exact(self, value: Any) -> Any:
        """Return a value that may be written as msgpack because JSON cannot express it."""
        if type(value) is not dict or _MSGPACK not in value:
            return value
        try:
            (found,) = unpack(self.inner(value).data(_MSGPACK), "it")
        except (ThreadkeepError, RecursionError, TypeError, ValueError) as error:
            raise self.error(f"a value cannot be decoded: {error}") from error
        return found


def brief(value: Any) -> str:
    """Return a value for an error message."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:59] + "…"


def exact(value: Any) -> Any:
    """Return a value as JSON, or as the msgpack of a list of one where JSON would lose something."""
    return value if _is_json(value) else {_MSGPACK: chars(pack([value]))}


def _is_json(value: Any, deepest: int = 100) -> bool:
    if value is None or type(value) in (bool, int, str):
        return True
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is list:
        return deepest > 0 and all(_is_json(each, deepest - 1) for each in value)
    if type(value) is dict and _MSGPACK not in value:
        return deepest > 0 and all(type(key) is str and _is_json(each, deepest - 1) for key, each in value.items())
    return False


def chars(data: bytes) -> str:
    """Return bytes as a string, one character each."""
    return data.decode("latin-1")


def encoded(fields: Mapping[str, Any]) -> bytes:
    """Return a line without its checksum. If it has a lone surrogate, which UTF-8 cannot encode, it is ASCII."""
    try:
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()


# -- lines and records


def origin_object(origin: Origin) -> dict[str, Any]:
    """Return an origin of a thread, as its first line has it."""
    return {"thread": origin.thread, "until": origin.until, "start": origin.start}


def read_origin(line: Line) -> Origin:
    """Return an origin of a thread."""
    return Origin(line.text("thread"), line.maybe_text("until"), line.maybe_text("start"))


class LaneNames(NamedTuple):
    """The names of lanes in a file: those of their channels."""

    names: tuple[str, ...] | list[str]

    def name(self, lane: int) -> str:
        """Return the name of a lane."""
        return self.names[lane - FIRST_CHANNEL]


def item_line(lane: str, n: int, item: Item) -> dict[str, Any]:
    """Return the line of an item."""
    return {"type": ITEM, "lane": lane, "n": n, "elements": item.elements, "data": chars(item.data)}


def read_item(line: Line) -> tuple[str, int, Item]:
    """Return the lane, number and content of an item."""
    data, elements = line.data("data"), line.count("elements", below=_GREATEST)
    if len(data) > CHUNK or (data and elements > len(data)):
        raise line.error(f"an item of {len(data)} bytes and {elements} elements")
    return line.text("lane"), line.count("n", below=_GREATEST), Item(data, elements)


def runs_line(n: int, runs: Iterable[ItemRange], lanes: LaneNames) -> dict[str, Any]:
    """Return the line of a list of runs that several values share."""
    return {"type": RUNS, "n": n, "runs": _flat_runs(runs, lanes)}


def _flat_runs(runs: Iterable[ItemRange], lanes: LaneNames) -> list[Any]:
    """Runs as lane, first number and length, one after the other."""
    return [each for run in runs for each in (lanes.name(run.lane), run.start, run.length)]


def read_runs(line: Line, lane_of: Any) -> tuple[ItemRange, ...]:
    """Return runs. `lane_of` returns the number of a lane, or raises KeyError."""
    flat = line.listed("runs")
    if len(flat) % 3:
        raise line.error("runs are cut short")
    runs = []
    for lane, start, length in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        if type(lane) is not str or type(start) is not int or type(length) is not int:
            raise line.error(f"runs are lane, start and length, not {brief([lane, start, length])}")
        if not (0 <= start < _GREATEST and 0 < length < _GREATEST):
            raise line.error(f"invalid run {brief([lane, start, length])}")
        try:
            runs.append(ItemRange(lane_of(lane), start, length))
        except KeyError:
            raise line.error(f"there are no items of {brief(lane)}") from None
    return tuple(runs)


def _value(slot: Slot, lanes: LaneNames, lists: Mapping[int, int]) -> dict[str, Any]:
    """How a value is stored. `lists` maps the numbers of run lists to those in the file."""
    fields: dict[str, Any] = {"tag": slot.tag}
    if slot.snapshot:
        fields["snapshot"] = True
    if slot.inline is not None:
        return fields | {"data": chars(slot.inline)}
    fields["of"] = _KINDS[slot.kind]
    if slot.kind != WHOLE:
        fields["elements"] = slot.elements
    if slot.spill:
        fields["lists"] = [lists[at.n] for run in slot.spill for at in run.ids()]
    return fields | {"runs": _flat_runs(slot.ranges[slot.covered :], lanes)}


def _read_value(line: Line, lane_of: Any, lists: Mapping[int, tuple[ItemRange, ...]]) -> Slot:
    """Return the slot of a value."""
    tag, snapshot = line.text("tag"), line.flag("snapshot")
    if "data" in line.fields:
        return Slot(WHOLE, tag, 1, snapshot, line.data("data"))
    kind = _OF.get(line.text("of"))
    if kind is None:
        raise line.error(f"of must be one of {', '.join(_OF)}, not {brief(line.text('of'))}")
    elements = 1 if kind == WHOLE else line.count("elements", below=_GREATEST)
    numbers = line.listed("lists")
    if any(type(n) is not int or n not in lists for n in numbers):
        raise line.error("it refers to a list of runs that does not exist")
    covered = tuple(run for n in numbers for run in lists[n])
    spill = tuple(ItemRange(RANGE_LISTS, n, 1) for n in numbers)
    return Slot(kind, tag, elements, snapshot, None, covered + read_runs(line, lane_of), spill, len(covered))


def checkpoint_line(
    record: CheckpointRecord, labels: Mapping[str, Any], lanes: LaneNames, lists: Mapping[int, int]
) -> dict[str, Any]:
    """Return the line of a checkpoint."""
    row = record.row
    fields = {
        "type": CHECKPOINT, "ns": row.ns, "id": row.id, "parent": row.parent, "time": row.time, "hidden": row.hidden,
        "source": row.source, "step": row.step, "run": row.run,
        "metadata": _exact_all({**record.own_metadata, **labels}), "fields": _exact_all(record.fields),
        "versions": _exact_all(record.versions), "seen": {node: _exact_all(seen) for node, seen in record.seen.items()},
        "values": {name: _value(slot, lanes, lists) for name, slot in record.slots.items()},
    }  # fmt: skip
    return fields | ({"rest": {"tag": record.rest[0], "data": chars(record.rest[1])}} if record.rest else {})


def _exact_all(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: exact(value) for name, value in values.items()}


def read_checkpoint(
    line: Line, lane_of: Any, lists: Mapping[int, tuple[ItemRange, ...]]
) -> tuple[CheckpointRecord, dict[str, Any]]:
    """Return a checkpoint without body and refs, and its metadata except source, step and run_id."""
    step = line.get("step", int, type(None))
    if step is not None and not -_MOST < step < _MOST:
        raise line.error(f"step is {brief(step)}")
    row = CheckpointRow(
        ns=line.text("ns"), id=line.text("id"), parent=line.maybe_text("parent"), run=line.maybe_text("run"),
        step=step, source=line.maybe_text("source"), labels=0, time=line.count("time"), hidden=line.flag("hidden"),
        refs=(), body=b"",
    )  # fmt: skip
    rest = line.inner(line.fields["rest"]) if line.fields.get("rest") is not None else None
    record = CheckpointRecord(
        row=row,
        fields=_read_all(line, "fields"),
        versions=_read_all(line, "versions"),
        seen={node: _read_all(line.inner({"seen": seen}), "seen") for node, seen in line.table("seen").items()},
        slots={name: _read_value(line.inner(value), lane_of, lists) for name, value in line.table("values").items()},
        own_metadata={},
        rest=(rest.text("tag"), rest.data("data")) if rest is not None else None,
    )
    return record, _read_all(line, "metadata")


def _read_all(line: Line, name: str) -> dict[str, Any]:
    return {key: line.exact(value) for key, value in line.table(name).items()}


def writes_line(task: TaskWrites, lanes: LaneNames, lists: Mapping[int, int]) -> dict[str, Any]:
    """Return the line of the writes of a task on a checkpoint."""
    entries = [
        {
            "idx": idx, "channel": entry.channel, "path": entry.origin[0], "run": entry.origin[1],
            "time": entry.origin[2], "size": entry.size, "value": _value(entry.slot, lanes, lists),
        }
        for idx, entry in sorted(task.entries.items())
    ]  # fmt: skip
    row = task.row
    return {"type": WRITES, "ns": row.ns, "checkpoint": row.checkpoint, "task": row.task, "entries": entries}


def read_writes(line: Line, lane_of: Any, lists: Mapping[int, tuple[ItemRange, ...]]) -> TaskWrites:
    """Return the writes of a task. Their row has no index, body and refs."""
    entries: dict[int, WriteEntry] = {}
    for each in map(line.inner, line.listed("entries")):
        idx = each.count("idx", least=-_GREATEST, below=_GREATEST)
        if idx in entries:
            raise line.error(f"two writes have idx {idx}")
        slot = _read_value(each.inner(each.fields.get("value")), lane_of, lists)
        origin = (each.text("path"), each.maybe_text("run"), each.count("time"))
        entries[idx] = WriteEntry(each.text("channel"), slot, each.count("size"), origin)
    if not entries:
        raise line.error("it has no writes")
    path, run, time = next(iter(entries.values())).origin
    row = WriteRow(line.text("ns"), line.text("checkpoint"), line.text("task"), path, run, time, (), (), b"")
    return TaskWrites(row, entries)


def memory_line(row: MemoryRow) -> dict[str, Any]:
    """Return the line of a memory."""
    return {
        "type": MEMORY, "namespace": list(row.namespace), "key": row.key, "value": load(row.value),
        "created": row.created, "updated": row.updated, "expires": row.expires, "ttl": row.ttl,
    }  # fmt: skip


def read_memory(line: Line) -> MemoryRow:
    """Return a memory. Its namespace may have any labels: those that LangGraph refuses may come from an import."""
    space = tuple(line.listed("namespace"))
    if not space or any(type(each) is not str for each in space):
        raise line.error(f"invalid namespace {brief(list(space))}")
    ttl = line.get("ttl", int, float, type(None))
    if ttl is not None and not 0 <= ttl < 10**9:
        raise line.error(f"ttl is {brief(ttl)}")
    try:
        value = dump(line.get("value", dict))
    except (TypeError, ValueError, RecursionError) as error:
        raise line.error(f"the value of a memory: {error}") from error
    return MemoryRow(
        space, line.text("key"), value, line.count("created"), line.count("updated"), line.maybe_count("expires"),
        float(ttl) if ttl is not None else None,
    )  # fmt: skip
