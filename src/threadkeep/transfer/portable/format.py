"""The portable file: JSON lines, compressed. What stands in a line, and how files are read and written.

`docs/reference/portable-file.md` describes it. Nothing here knows a storage: records become lines, and lines become
records. A line that is read is taken for hostile: it is not longer than a limit, all that it says is checked, and what is
wrong with it is a ValueError that names it.
"""

from __future__ import annotations

import io
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import zstandard

from threadkeep.engine.codec import pack, unpack
from threadkeep.engine.itemlog import CHUNK, FIRST_CHANNEL, RUN_LISTS, Item, Run
from threadkeep.engine.memories import MemoryRow
from threadkeep.engine.records import CheckpointRow, Entry, Record, Slot, TaskWrites, WriteRow
from threadkeep.engine.values import dump, load
from threadkeep.engine.wire import LIST, MAP, WHOLE
from threadkeep.errors import ThreadkeepError

FORMAT, VERSION = "threadkeep", 1
HEADER, THREAD, ITEM, RUNS, CHECKPOINT, WRITES, THREAD_END, THREAD_VOID, MEMORY, END = (
    "header", "thread", "item", "runs", "checkpoint", "writes", "thread-end", "thread-void", "memory", "end",
)  # fmt: skip
LONGEST = 64 * 1024 * 1024
"""No line is longer, in bytes."""
_WINDOW = 1 << 27
_MAGIC = b"\x28\xb5\x2f\xfd"
_LEVEL = 6
_MOST = 1 << 62
_GREATEST = 1 << 31
_CRC = b',"crc":"'
_ODD = "$msgpack"
_KINDS = {WHOLE: "whole", LIST: "list", MAP: "dict"}
_OF = {name: kind for kind, name in _KINDS.items()}
Where: TypeAlias = str | os.PathLike[str] | BinaryIO
"""A path, or a binary file that is open."""


class Line(NamedTuple):
    """One line, or an object in one: what it says, by name, checked."""

    number: int
    said: Mapping[str, Any]

    def wrong(self, why: str) -> ValueError:
        """The error that names this line."""
        return ValueError(f"line {self.number} of the file: {why}")

    @property
    def what(self) -> str:
        """What the line tells of."""
        return self.text("type")

    def get(self, name: str, *kinds: type) -> Any:
        """What it says, of one of these types; None, if that is among them, where it says nothing."""
        value = self.said.get(name)
        if type(value) not in kinds:
            raise self.wrong(f"{name} must be {' or '.join(kind.__name__ for kind in kinds)}, not {brief(value)}")
        return value

    def text(self, name: str) -> str:
        """A text."""
        return str(self.get(name, str))

    def maybe_text(self, name: str) -> str | None:
        """A text, or nothing."""
        value: str | None = self.get(name, str, type(None))
        return value

    def count(self, name: str, least: int = 0, below: int = _MOST) -> int:
        """A number that is not too small and not too great."""
        value = int(self.get(name, int))
        if not least <= value < below:
            raise self.wrong(f"{name} is {brief(value)}")
        return value

    def maybe_count(self, name: str, least: int = 0) -> int | None:
        """A number, or nothing."""
        return None if self.said.get(name) is None else self.count(name, least)

    def flag(self, name: str) -> bool:
        """True or false; false where it says nothing."""
        return bool(self.get(name, bool, type(None)))

    def listed(self, name: str) -> list[Any]:
        """A list; an empty one where it says nothing."""
        return self.get(name, list, type(None)) or []

    def table(self, name: str) -> dict[str, Any]:
        """An object; an empty one where it says nothing."""
        return self.get(name, dict, type(None)) or {}

    def inner(self, value: Any) -> Line:
        """An object that stands in the line."""
        if type(value) is not dict:
            raise self.wrong(f"an object was expected, not {brief(value)}")
        return Line(self.number, value)

    def data(self, name: str) -> bytes:
        """Bytes: a character each."""
        try:
            return self.text(name).encode("latin-1")
        except UnicodeEncodeError as error:
            raise self.wrong(f"{name} has a character that is no byte") from error

    def exact(self, value: Any) -> Any:
        """A value that may be msgpack, where JSON has no word for it."""
        if type(value) is not dict or _ODD not in value:
            return value
        try:
            (found,) = unpack(self.inner(value).data(_ODD), "it")
        except (ThreadkeepError, RecursionError, TypeError, ValueError) as error:
            raise self.wrong(f"a value cannot be decoded: {error}") from error
        return found


def brief(value: Any) -> str:
    """A value in an error message."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:59] + "…"


def exact(value: Any) -> Any:
    """A value as JSON, or as the msgpack of a list with only that in it, where JSON would lose something."""
    return value if _is_json(value) else {_ODD: chars(pack([value]))}


def _is_json(value: Any, deepest: int = 100) -> bool:
    if value is None or type(value) in (bool, int, str):
        return True
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is list:
        return deepest > 0 and all(_is_json(each, deepest - 1) for each in value)
    if type(value) is dict and _ODD not in value:
        return deepest > 0 and all(type(key) is str and _is_json(each, deepest - 1) for key, each in value.items())
    return False


def chars(data: bytes) -> str:
    """Bytes as a text, a character each."""
    return data.decode("latin-1")


# -- lines of records


class Lanes(NamedTuple):
    """How lanes are called in a file: by the names of their channels."""

    names: tuple[str, ...] | list[str]

    def name(self, lane: int) -> str:
        """Of a lane."""
        return self.names[lane - FIRST_CHANNEL]


def item_line(lane: str, n: int, item: Item) -> dict[str, Any]:
    """An item."""
    return {"type": ITEM, "lane": lane, "n": n, "elements": item.elements, "data": chars(item.data)}


def read_item(line: Line) -> tuple[str, int, Item]:
    """Lane, number and content of an item."""
    data, elements = line.data("data"), line.count("elements", below=_GREATEST)
    if len(data) > CHUNK or elements > max(1, len(data)):
        raise line.wrong(f"an item of {len(data)} bytes and {elements} elements")
    return line.text("lane"), line.count("n", below=_GREATEST), Item(data, elements)


def runs_line(n: int, runs: Iterable[Run], lanes: Lanes) -> dict[str, Any]:
    """A list of runs that several values share."""
    return {"type": RUNS, "n": n, "runs": flat(runs, lanes)}


def flat(runs: Iterable[Run], lanes: Lanes) -> list[Any]:
    """Runs as lane, first number and length, one after the other."""
    return [each for run in runs for each in (lanes.name(run.lane), run.start, run.length)]


def read_runs(line: Line, lane_of: Any) -> tuple[Run, ...]:
    """Runs; `lane_of` knows the number of a lane, or raises KeyError."""
    told = line.listed("runs")
    if len(told) % 3:
        raise line.wrong("runs are cut short")
    runs = []
    for lane, start, length in zip(told[::3], told[1::3], told[2::3], strict=True):
        if type(lane) is not str or type(start) is not int or type(length) is not int:
            raise line.wrong(f"runs are lane, start and length, not {brief([lane, start, length])}")
        if not (0 <= start < _GREATEST and 0 < length < _GREATEST):
            raise line.wrong(f"there cannot be a run {brief([lane, start, length])}")
        try:
            runs.append(Run(lane_of(lane), start, length))
        except KeyError:
            raise line.wrong(f"there are no items of {brief(lane)}") from None
    return tuple(runs)


def value_of(slot: Slot, lanes: Lanes, lists: Mapping[int, int]) -> dict[str, Any]:
    """How a value is held. `lists` has the numbers of run lists in the file."""
    said: dict[str, Any] = {"tag": slot.tag}
    if slot.snapshot:
        said["snapshot"] = True
    if slot.inline is not None:
        return said | {"data": chars(slot.inline)}
    said["of"] = _KINDS[slot.kind]
    if slot.kind != WHOLE:
        said["elements"] = slot.elements
    if slot.spill:
        said["lists"] = [lists[at.n] for run in slot.spill for at in run.ids()]
    return said | {"runs": flat(slot.runs[slot.covered :], lanes)}


def read_value(line: Line, lane_of: Any, lists: Mapping[int, tuple[Run, ...]]) -> Slot:
    """The slot of a value."""
    tag, snapshot = line.text("tag"), line.flag("snapshot")
    if "data" in line.said:
        return Slot(WHOLE, tag, 1, snapshot, line.data("data"))
    kind = _OF.get(line.text("of"))
    if kind is None:
        raise line.wrong(f"a value is of {', '.join(_OF)}, not {brief(line.text('of'))}")
    elements = 1 if kind == WHOLE else line.count("elements", below=_GREATEST)
    numbers = line.listed("lists")
    if any(type(n) is not int or n not in lists for n in numbers):
        raise line.wrong("there is no such list of runs")
    covered = tuple(run for n in numbers for run in lists[n])
    spill = tuple(Run(RUN_LISTS, n, 1) for n in numbers)
    return Slot(kind, tag, elements, snapshot, None, covered + read_runs(line, lane_of), spill, len(covered))


def checkpoint_line(
    record: Record, labels: Mapping[str, Any], lanes: Lanes, lists: Mapping[int, int]
) -> dict[str, Any]:
    """A checkpoint."""
    row = record.row
    said = {
        "type": CHECKPOINT, "ns": row.ns, "id": row.id, "parent": row.parent, "time": row.time, "hidden": row.hidden,
        "source": row.source, "step": row.step, "run": row.run,
        "metadata": _exact_all({**record.own, **labels}), "fields": _exact_all(record.fields),
        "versions": _exact_all(record.versions), "seen": {node: _exact_all(seen) for node, seen in record.seen.items()},
        "values": {name: value_of(slot, lanes, lists) for name, slot in record.slots.items()},
    }  # fmt: skip
    return said | ({"rest": {"tag": record.rest[0], "data": chars(record.rest[1])}} if record.rest else {})


def _exact_all(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: exact(value) for name, value in values.items()}


def read_checkpoint(line: Line, lane_of: Any, lists: Mapping[int, tuple[Run, ...]]) -> tuple[Record, dict[str, Any]]:
    """A checkpoint, without body and refs, and its metadata but for what are columns."""
    step = line.get("step", int, type(None))
    if step is not None and not -_MOST < step < _MOST:
        raise line.wrong(f"step is {brief(step)}")
    row = CheckpointRow(
        ns=line.text("ns"), id=line.text("id"), parent=line.maybe_text("parent"), run=line.maybe_text("run"), step=step,
        source=line.maybe_text("source"), labels=0, time=line.count("time"), hidden=line.flag("hidden"), refs=(), body=b"",
    )  # fmt: skip
    rest = line.inner(line.said["rest"]) if line.said.get("rest") is not None else None
    record = Record(
        row=row,
        fields=_read_all(line, "fields"),
        versions=_read_all(line, "versions"),
        seen={node: _read_all(line.inner({"seen": seen}), "seen") for node, seen in line.table("seen").items()},
        slots={name: read_value(line.inner(value), lane_of, lists) for name, value in line.table("values").items()},
        own={},
        rest=(rest.text("tag"), rest.data("data")) if rest is not None else None,
    )
    return record, _read_all(line, "metadata")


def _read_all(line: Line, name: str) -> dict[str, Any]:
    return {key: line.exact(value) for key, value in line.table(name).items()}


def writes_line(task: TaskWrites, lanes: Lanes, lists: Mapping[int, int]) -> dict[str, Any]:
    """The writes of a task on a checkpoint."""
    entries = [
        {
            "idx": idx, "channel": entry.channel, "path": entry.origin[0], "run": entry.origin[1],
            "time": entry.origin[2], "size": entry.size, "value": value_of(entry.slot, lanes, lists),
        }
        for idx, entry in sorted(task.entries.items())
    ]  # fmt: skip
    row = task.row
    return {"type": WRITES, "ns": row.ns, "checkpoint": row.checkpoint, "task": row.task, "entries": entries}


def read_writes(line: Line, lane_of: Any, lists: Mapping[int, tuple[Run, ...]]) -> TaskWrites:
    """The writes of a task; the row is without index, body and refs."""
    entries: dict[int, Entry] = {}
    for each in map(line.inner, line.listed("entries")):
        idx = each.count("idx", least=-_GREATEST, below=_GREATEST)
        if idx in entries:
            raise line.wrong(f"there are two writes of idx {idx}")
        slot = read_value(each.inner(each.said.get("value")), lane_of, lists)
        origin = (each.text("path"), each.maybe_text("run"), each.count("time"))
        entries[idx] = Entry(each.text("channel"), slot, each.count("size"), origin)
    if not entries:
        raise line.wrong("there are no writes in it")
    path, run, time = next(iter(entries.values())).origin
    row = WriteRow(line.text("ns"), line.text("checkpoint"), line.text("task"), path, run, time, (), (), b"")
    return TaskWrites(row, entries)


def memory_line(row: MemoryRow) -> dict[str, Any]:
    """A memory."""
    return {
        "type": MEMORY, "namespace": list(row.space), "key": row.key, "value": load(row.value), "created": row.created,
        "updated": row.updated, "expires": row.expires, "ttl": row.ttl,
    }  # fmt: skip


def read_memory(line: Line) -> MemoryRow:
    """A memory; only what a store could have put there."""
    space = tuple(line.listed("namespace"))
    if not space or any(type(each) is not str or not each or "." in each or "\0" in each for each in space):
        raise line.wrong(f"there cannot be a namespace {brief(list(space))}")
    ttl = line.get("ttl", int, float, type(None))
    if ttl is not None and not 0 <= ttl < 10**9:
        raise line.wrong(f"ttl is {brief(ttl)}")
    try:
        value = dump(line.get("value", dict))
    except (TypeError, ValueError, RecursionError) as error:
        raise line.wrong(f"the value of a memory: {error}") from error
    return MemoryRow(
        space, line.text("key"), value, line.count("created"), line.count("updated"), line.maybe_count("expires"),
        float(ttl) if ttl is not None else None,
    )  # fmt: skip


# -- files


class Writer:
    """Writes lines into a file."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.bytes = 0

    def write(self, said: Mapping[str, Any]) -> None:
        """One line, with its checksum."""
        text = encoded(said)[:-1]
        line = text + _CRC + b'%08x"}\n' % zlib.crc32(text)
        if len(line) > LONGEST:
            raise ValueError(f"{said.get('type')} {brief(said.get('id') or said.get('key'))} is too large for a line")
        self._out.write(line)
        self.bytes += len(line)


def encoded(said: Mapping[str, Any]) -> bytes:
    """A line without its checksum. A lone surrogate has no UTF-8: then everything is ASCII."""
    try:
        return json.dumps(said, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(said, separators=(",", ":"), allow_nan=False).encode()


@contextmanager
def writing(where: Where) -> Iterator[Writer]:
    """A file to be written: whole or not there. Compressed, unless its name ends in .jsonl.

    An older export is replaced; any other file, such as the database itself, is FileExistsError.
    """
    if hasattr(where, "write"):
        with _compressed(where) as out:
            yield Writer(out)
        return
    path = Path(where).resolve()
    if path.exists() and not path.is_file():  # a device or a pipe is written to, never replaced
        with path.open("wb") as file, _compressed(file) as out:
            yield Writer(out)
        return
    if path.exists() and path.stat().st_size and not is_portable(path):
        raise FileExistsError(f"{path} is there already and is no export: it is not replaced")
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            if path.suffix == ".jsonl":
                yield Writer(file)
            else:
                with _compressed(file) as out:
                    yield Writer(out)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise


@contextmanager
def _compressed(file: Any) -> Iterator[Any]:
    params = zstandard.ZstdCompressionParameters.from_level(_LEVEL, write_checksum=True)
    out = zstandard.ZstdCompressor(compression_params=params).stream_writer(file, closefd=False)
    yield out
    out.flush(zstandard.FLUSH_FRAME)


@contextmanager
def reading(where: Where) -> Iterator[Iterator[Line]]:
    """The lines of a file. ValueError if it is none of ours, or of a newer version."""
    if hasattr(where, "read"):
        yield _lines(where)
        return
    with Path(where).open("rb") as file:
        yield _lines(file)


def is_portable(where: str | os.PathLike[str]) -> bool:
    """Whether a path is a file of this format, of whatever version."""
    try:
        with Path(where).open("rb") as file:
            first = _first_line(file)
    except (OSError, ValueError, zstandard.ZstdError):
        return False
    return first is not None and first.said.get("format") == FORMAT and first.said.get("type") == HEADER


def _first_line(file: Any) -> Line | None:
    raw = _plain(file).readline(4096)
    return _parsed(1, raw) if raw.endswith(b"\n") else None


def _plain(file: Any) -> io.BufferedReader:
    """The decompressed file."""
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(_Raw(file))
    if buffered.peek(4)[:4] != _MAGIC:
        return buffered
    stream: Any = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(buffered, read_across_frames=True)
    return io.BufferedReader(stream)


class _Raw(io.RawIOBase):
    """Something with a read(), as Python's buffers want it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _lines(file: Any) -> Iterator[Line]:
    source, number, has_sums = _plain(file), 0, False
    while True:
        number += 1
        try:
            raw = source.readline(LONGEST + 1)
        except zstandard.ZstdError as error:
            raise ValueError(f"line {number} of the file cannot be decompressed: {error}") from error
        if not raw:
            return
        if len(raw) > LONGEST:
            raise ValueError(f"line {number} of the file is longer than {LONGEST} bytes")
        if not raw.endswith(b"\n"):
            return  # cut off: what is missing is noticed by whoever expects more
        line = _parsed(number, raw)
        if number == 1:
            _check_header(line)
            has_sums = "crc" in line.said
        if has_sums and "crc" not in line.said:
            raise line.wrong("it has no checksum, although the first line has one")
        yield line


def _parsed(number: int, raw: bytes) -> Line:
    body, found, crc = raw.rpartition(_CRC)
    if found and crc != b'%08x"}\n' % zlib.crc32(body):
        raise ValueError(f"line {number} of the file: its checksum does not fit")
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} of the file is no JSON: {error}") from error
    if type(said) is not dict:
        raise ValueError(f"line {number} of the file is no object")
    return Line(number, said)


def _check_header(line: Line) -> None:
    if line.said.get("type") != HEADER or line.said.get("format") != FORMAT:
        raise line.wrong("this is no file that threadkeep exported")
    if line.count("version") > VERSION:
        raise line.wrong(f"the file has version {line.said['version']}; upgrade threadkeep to read it")
