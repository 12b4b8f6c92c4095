"""The rows of threads, checkpoints and writes, and how their bodies are packed.

The columns of a row are plain: ids, times, counters, and the ranges of items that it refers to. Its body is sealed
bytes (format byte, checksum). In bodies, names of channels and nodes are numbers (see `itemlog`), and integer versions
are stored as the difference to the greatest, so a checkpoint of ten channels takes about a hundred bytes.

A `Slot` says how a value is stored: inline, or as ranges of items in the lane of its channel. Successive checkpoints
mostly have the same names and kinds of slots. These are their shape, an item that they share and refer to first.

The checksum of a body covers the columns of its row and the family of its thread. A thread's row has no body; its
checksum is a column, which backends set with `thread_checksum` and compare with `checked_thread`.
"""

from __future__ import annotations

import builtins
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from types import MappingProxyType, NoneType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.codec import pack, unpack, unpack_plain
from threadkeep.engine.log.itemlog import RANGE_LISTS, SHARED, ItemId, ItemRange, new_tuple
from threadkeep.engine.log.msgpack import WHOLE
from threadkeep.errors import Corrupt, WrongKey, reason

Status: TypeAlias = Literal["idle", "pending", "interrupted", "error"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""The statuses of a thread, the one that matters most last; see `engine.threads.status`."""
_TAGS = ("msgpack", "null", "bytes", "bytearray", "pickle", "json")
_TAG_CODES = {tag: code for code, tag in enumerate(_TAGS)}
_FIRST_NAMED_TAG = 16
"""A tag code from here on is a name of the thread: 16 plus its number. A smaller one is an index of _TAGS."""
_SNAPSHOT, _INLINE, _SPILLED = 4, 8, 16
_LARGE = 1 << 62
"""Integer versions from here on are not stored as differences."""
_FAR = 128
"""Differences from here on take more than one byte: these versions are listed instead, each once per row."""
_INT = frozenset((int,))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND, _SECOND = timedelta(microseconds=1), timedelta(seconds=1)


class ThreadRow(NamedTuple):
    """A thread: the precondition of its next commit, its item counters, and what a list of threads shows.

    The precondition is (epoch, rev). `rev` grows with every commit, by a random number. `epoch` is a random number that
    is set when the thread is created, and again whenever items are freed. So (epoch, rev) never repeats, not even in a
    storage that lost its last commits. `nexts` is the number of the next item of each lane.

    `top` is the id of the greatest visible checkpoint of the root namespace; `run`, `step`, `source` and `labels` are
    those of this checkpoint. `early` is the greatest id after it that has writes but no checkpoint yet, and
    `early_status` the status that the thread will have when that checkpoint is put. `top_writes` and `early_writes` are
    the number of rows of writes on these two; None if they are not known.

    `family` is a random number of 32 bits, set when the thread is created and kept by copies and forks. The checksums
    of all its rows and items include it, so those of other threads do not pass. It is 0 in threads that were created
    before there were families. `bytes_check` is `bytes` once more, where a database adds to it. `checksum` covers all
    other columns. Both are None in rows that were written before there were checksums: such a row is not checked.

    `sealed` is the thread's data key and hidden columns, encrypted; None in a thread that is not encrypted. `lease`
    says who may write the thread for now (`engine.threads.lease`); None if everybody may. `description` is what people
    say about the thread (`engine.threads.description`), as JSON text; None if nothing was said.
    """

    key: ThreadKey
    epoch: int
    rev: int
    nexts: tuple[int, ...]
    created: int
    updated: int
    checkpoints: int = 0
    writes: int = 0
    bytes: int = 0
    top: str | None = None
    run: str | None = None
    step: int | None = None
    source: str | None = None
    status: str = "idle"
    labels: int | None = None
    early: str | None = None
    early_status: str | None = None
    lease: builtins.bytes | None = None
    family: int = 0
    top_writes: int | None = None
    early_writes: int | None = None
    bytes_check: int | None = None
    checksum: int | None = None
    sealed: builtins.bytes | None = None
    description: str | None = None


class CheckpointRow(NamedTuple):
    """A checkpoint. `labels` is the number of its labels in the shared lane.

    A hidden checkpoint was pruned, but the delta channels of later checkpoints still need it.
    """

    ns: str
    id: str
    parent: str | None
    run: str | None
    step: int | None
    source: str | None
    labels: int
    time: int
    hidden: bool
    refs: tuple[ItemRange, ...]
    body: bytes

    @property
    def size(self) -> int:
        """Stored bytes of the row's own."""
        id = self.id.encode("utf-8", "surrogatepass")
        return len(self.body) + len(itemlog.pack_ranges(self.refs)) + len(id)


class WriteRow(NamedTuple):
    """All writes of one task on one checkpoint. `index` has (idx, number of the channel's name, size) of each write."""

    ns: str
    checkpoint: str
    task: str
    path: str
    run: str | None
    time: int
    index: tuple[int, ...]  # type: ignore[assignment]  # not tuple's method
    refs: tuple[ItemRange, ...]
    body: bytes

    @property
    def size(self) -> int:
        """Stored bytes of the row's own."""
        task = self.task.encode("utf-8", "surrogatepass")
        return len(self.body) + len(itemlog.pack_ranges(self.refs)) + len(task)


class Slot(NamedTuple):
    """How a value is stored: inline, or in the items of `ranges`.

    If there are too many ranges for a row, the first `covered` of them are stored in the range lists `spill`.
    """

    kind: int
    tag: str
    elements: int
    snapshot: bool
    inline: bytes | None
    ranges: tuple[ItemRange, ...] = ()
    spill: tuple[ItemRange, ...] = ()
    covered: int = 0

    def refs(self) -> tuple[ItemRange, ...]:
        """Return the ranges that the row refers to: the range lists, if any, and the ranges that are not in them."""
        return (*self.spill, *self.ranges[self.covered :])


class NameTable(NamedTuple):
    """The interned names of a thread: name by number, and number by name; and the thread's family.

    `number` may add a name; `known` has the numbers of most of them, without a call. `shapes` caches the numbers of
    shapes among the first `shared` items of the shared lane, which are stored. `compress`: whether rows are compressed.
    """

    of: Sequence[str] | Mapping[int, str]
    number: Callable[[str], int]
    family: int = 0
    known: Mapping[str, int] = MappingProxyType({})
    shapes: dict[Any, int] | None = None
    shared: int = 0
    compress: bool = True


class SharedParts(NamedTuple):
    """What rows refer to besides values: range lists by their number in lane 1, shapes by their number in lane 2."""

    range_lists: Mapping[int, tuple[ItemRange, ...]]
    shape: Callable[[int], Sequence[Any]]


def pack_slots(slots: Iterable[Slot], names: NameTable) -> tuple[list[int], list[Any], list[ItemRange]]:
    """Return slots as codes, which rarely change between checkpoints, details, and the ranges that they refer to."""
    codes: list[int] = []
    details: list[Any] = []
    refs: list[ItemRange] = []
    for kind, tag, elements, snapshot, inline, ranges, spill, covered in slots:
        tag_code = _TAG_CODES.get(tag)
        if tag_code is None:
            tag_code = _FIRST_NAMED_TAG + names.number(tag)
        code = kind | _SNAPSHOT if snapshot else kind
        if inline is not None:
            codes += (code | _INLINE, tag_code)
            details.append(inline)
            continue
        codes += (code | _SPILLED if spill else code, tag_code)
        if kind != WHOLE:
            details.append(elements)
        details.append(len(spill) + len(ranges) - covered)
        refs += (*spill, *ranges[covered:]) if spill else ranges
    return codes, details, refs


def unpack_slots(
    codes: Sequence[int], details: Sequence[Any], refs: Iterator[ItemRange], names: NameTable, shared: SharedParts
) -> Iterator[Slot]:
    """Reverse `pack_slots`."""
    detail = iter(details)
    for code, tag_code in _pairs(codes):
        kind, snapshot, tag = code & 3, bool(code & _SNAPSHOT), _unpack_tag(tag_code, names)
        if code & _INLINE:
            yield Slot(kind, tag, 1, snapshot, next(detail))
            continue
        count = 1 if kind == WHOLE else next(detail)
        own = tuple(next(refs) for _ in range(next(detail)))
        spill = tuple(ref for ref in own if ref.lane == RANGE_LISTS) if code & _SPILLED else ()
        covered = tuple(each for ref in spill for at in ref.ids() for each in shared.range_lists[at.n])
        yield Slot(kind, tag, count, snapshot, None, covered + own[len(spill) :], spill, len(covered))


def _unpack_tag(code: int, names: NameTable) -> str:
    return _TAGS[code] if code < _FIRST_NAMED_TAG else names.of[code - _FIRST_NAMED_TAG]


class CheckpointRecord(NamedTuple):
    """A checkpoint, decoded except for its values.

    `fields` are the keys of LangGraph's checkpoint dict that have no field here, `own_metadata` is the metadata that is
    not in the labels, `rest` are the keys that threadkeep does not know, as the serializer encoded them.
    """

    row: CheckpointRow
    fields: dict[str, Any]
    versions: dict[str, Any]
    seen: dict[str, dict[str, Any]]
    slots: dict[str, Slot]
    own_metadata: dict[str, Any]
    rest: tuple[str, bytes] | None


class WriteEntry(NamedTuple):
    """One write of a task. `origin` is (path, run, time) of the put_writes call that made it."""

    channel: str
    slot: Slot
    size: int
    origin: tuple[str, str | None, int]


class TaskWrites(NamedTuple):
    """The writes of one task on one checkpoint, by idx."""

    row: WriteRow
    entries: dict[int, WriteEntry]


def pack_checkpoint(
    row: CheckpointRow, record: CheckpointRecord, names: NameTable, share: Callable[[bytes], int]
) -> CheckpointRow:
    """Return the row with the body and refs of a record. `share` stores a shape and returns its number.

    This runs for every put. It makes about 7 calls if the shape is a known one.
    """
    codes, details, ranges = pack_slots(record.slots.values(), names)
    versions, seen = record.versions, record.seen
    every = [*versions.values(), *chain.from_iterable(map(dict.values, seen.values()))]
    odd: list[Any] = []
    if set(map(type, every)) <= _INT and (not every or (min(every) >= 0 and max(every) < _LARGE)):
        base = max(every, default=0)
        packed = list(map(base.__sub__, every))
        if packed and max(packed) >= _FAR:
            packed, odd = _pack_far_versions(base, packed)
    else:
        base, packed, odd = _pack_odd_versions(every)
    key = (tuple(versions), tuple(seen), tuple(map(tuple, seen.values())), tuple(record.slots), tuple(codes))
    shape = names.shapes.get(key) if names.shapes is not None else None
    if shape is None:
        shape = share(_packed_shape(names, key))
        if names.shapes is not None and shape < names.shared:
            names.shapes[key] = shape
    body = [
        _pack_fields(record.fields, row.time, names), base, packed[: len(versions)], packed[len(versions) :], details,
        odd or 0, record.own_metadata or 0, record.rest or 0,
    ]  # fmt: skip
    refs = (new_tuple(ItemRange, (SHARED, shape, 1)), *ranges)
    sealed = itemlog.seal(pack(body), _checkpoint_seed(row, names.family, refs), compress=names.compress)
    return new_tuple(CheckpointRow, (*row[:9], refs, sealed))


_ShapeKey: TypeAlias = tuple[
    tuple[str, ...], tuple[str, ...], tuple[tuple[str, ...], ...], tuple[str, ...], tuple[int, ...]
]
"""The names of the versions, of the nodes that have seen some, of these versions, of the slots, and their codes."""


def _packed_shape(names: NameTable, key: _ShapeKey) -> bytes:
    """Return a packed shape. Names that are new are added in the order in which they appear."""
    versions, nodes, inner, slots, _ = key
    if not names.known.keys() >= {*versions, *nodes, *chain.from_iterable(inner), *slots}:
        for name in (
            *versions,
            *chain(*(chain((node,), seen) for node, seen in zip(nodes, inner, strict=True))),
            *slots,
        ):
            names.number(name)
        return _pack_shape(key, names.number)
    return _pack_known_shape(tuple(names.of), key) if type(names.of) is tuple else _pack_shape(key, names.number)


@lru_cache(maxsize=1024)
def _pack_known_shape(names: tuple[str, ...], key: _ShapeKey) -> bytes:
    """Threads of one graph mostly have the same names and shapes."""
    return _pack_shape(key, {name: n for n, name in enumerate(names)}.__getitem__)


def _pack_shape(key: _ShapeKey, number: Callable[[str], int]) -> bytes:
    versions, nodes, inner, slots, codes = key
    shape: list[list[int]] = [list(map(number, versions)), [], [], list(codes)]
    for node, names in zip(nodes, inner, strict=True):
        shape[1] += (number(node), len(names), *map(number, names))
    shape[2] += map(number, slots)
    return pack(shape)


_USUAL_FIELDS = ("v", "ts", "updated_channels")
_DETAILS, _OWN_METADATA = 4, 6
"""The positions of `details` and `own` in a packed body."""


def unpack_checkpoint(row: CheckpointRow, names: NameTable, shared: SharedParts, where: str) -> CheckpointRecord:
    """Return the record of a row. Corrupt if it cannot be decoded; `where` names the thread.

    Five calls for an ordinary row. If anything is wrong with it, or unusual, it is decoded again step by step.
    """
    try:
        return _read_checkpoint(row, names, shared)
    except Exception:  # noqa: BLE001 - the careful decoder raises what is wrong, if anything is
        return _unpack_checkpoint_carefully(row, names, shared, where)


def _read_checkpoint(row: CheckpointRow, names: NameTable, shared: SharedParts) -> CheckpointRecord:
    """Return the record of an ordinary row. Any exception if it is damaged or unusual."""
    name_of, family, time = names.of, names.family, row.time
    fields, base, versions, seen, details, odd, own, rest = unpack_plain(
        _read_body(row[:9], row.refs, row.body, family)
    )
    version_names, seen_names, channels, codes = shared.shape(row.refs[0][1])
    v, ts, updated = fields  # a dict has other keys: then `v` is a str
    if type(fields) is not list or type(ts) not in (int, str) or (updated is not None and type(updated) is not list):
        raise TypeError("unusual fields")
    text = ts if type(ts) is str else _time_text(time * 1000 - ts)
    listed = None
    if updated is not None:
        listed = [name_of[n] for n in updated]
    known: dict[str, Any] = {}
    for n, code in zip(version_names, versions, strict=True):
        known[name_of[n]] = base - code if code >= 0 else odd[-1 - code]
    nodes: dict[str, dict[str, Any]] = {}
    flat, codes_of_seen = iter(seen_names), iter(seen)
    for node in flat:
        nodes[name_of[node]] = channel_versions = {}
        for _ in range(next(flat)):
            code = next(codes_of_seen)
            channel_versions[name_of[next(flat)]] = base - code if code >= 0 else odd[-1 - code]
    slots = _read_slots(codes, details, row.refs, 1, names, shared)
    return new_tuple(
        CheckpointRecord,
        (
            row,
            {"v": v, "ts": text, "updated_channels": listed},
            known,
            nodes,
            dict(zip(map(name_of.__getitem__, channels), slots, strict=True)),
            own or {},
            tuple(rest) if rest else None,
        ),
    )


def _read_body(columns: tuple[Any, ...], refs: tuple[ItemRange, ...], stored: bytes, family: int) -> bytes:
    """Return the packed body of a row, if it matches the checksum of the columns and refs; any exception if not."""
    try:
        packed = bytes(chain.from_iterable(refs))
    except ValueError:
        packed = _NOT_ASCII
    if not packed.isascii():  # a number from 128 on takes several bytes
        packed = itemlog.pack_ranges(refs)
    seed = zlib.crc32(packed, zlib.crc32(ascii(columns).encode(), family))
    return itemlog.unseal_usual(stored, seed)


_NOT_ASCII = b"\x80"


def _read_slots(
    codes: Sequence[int],
    details: Sequence[Any],
    refs: Sequence[ItemRange],
    at: int,
    names: NameTable,
    shared: SharedParts,
) -> list[Slot]:
    """Reverse `pack_slots` in one call; any exception if something is missing. The refs of the slots start at `at`."""
    slots: list[Slot] = []
    code, detail = iter(codes), iter(details)
    for bits in code:
        tag_code = next(code)
        tag = _TAGS[tag_code] if tag_code < _FIRST_NAMED_TAG else names.of[tag_code - _FIRST_NAMED_TAG]
        kind, snapshot = bits & 3, bits & _SNAPSHOT != 0
        if bits & _INLINE:
            slots.append(new_tuple(Slot, (kind, tag, 1, snapshot, next(detail), (), (), 0)))
            continue
        elements = 1 if kind == WHOLE else next(detail)
        count = next(detail)
        own = refs[at : at + count]
        if len(own) != count:
            raise IndexError("refs are missing")
        at += count
        spill: tuple[ItemRange, ...] = ()
        covered = 0
        if bits & _SPILLED:
            spill = tuple([ref for ref in own if ref[0] == RANGE_LISTS])
            listed = [each for _, n, length in spill for k in range(length) for each in shared.range_lists[n + k]]
            own, covered = (*listed, *own[len(spill) :]), len(listed)
        slots.append(new_tuple(Slot, (kind, tag, elements, snapshot, None, own, spill, covered)))
    return slots


def unpack_channels(
    row: CheckpointRow, names: NameTable, shared: SharedParts, where: str, wanted: Mapping[int, str]
) -> dict[str, Slot]:
    """Return the slots of some channels, `wanted` by the number of their name. Corrupt as for `unpack_checkpoint`.

    Three calls for an ordinary row that has none of them: its checksum is compared, and nothing is decoded.
    """
    try:
        packed = _read_body(row[:9], row.refs, row.body, names.family)
        _, _, channels, codes = shared.shape(row.refs[0][1])
        if wanted.keys().isdisjoint(channels):
            return {}
        slots = _read_slots(codes, unpack_plain(packed)[_DETAILS], row.refs, 1, names, shared)
        return {names.of[n]: slot for n, slot in zip(channels, slots, strict=True) if n in wanted}
    except Exception:  # noqa: BLE001 - the careful decoder raises what is wrong, if anything is
        every = _unpack_checkpoint_carefully(row, names, shared, where).slots
        return {name: every[name] for name in wanted.values() if name in every}


def _unpack_checkpoint_carefully(
    row: CheckpointRow, names: NameTable, shared: SharedParts, where: str
) -> CheckpointRecord:
    what = _checkpoint_name(row, where)
    try:
        body = unpack(_unseal(row, names.family, what), what)
        fields, base, versions, seen, details, odd, own, rest = body
        version_names, seen_names, channels, codes = shared.shape(row.refs[0].start)
        slots = unpack_slots(codes, details, iter(row.refs[1:]), names, shared)
        return CheckpointRecord(
            row=row,
            fields=_unpack_fields(fields, row.time, names),
            versions={names.of[n]: _unpack_version(v, base, odd) for n, v in zip(version_names, versions, strict=True)},
            seen=dict(_unpack_seen(iter(seen_names), (_unpack_version(v, base, odd) for v in seen), names)),
            slots={names.of[n]: slot for n, slot in zip(channels, slots, strict=True)},
            own_metadata=own or {},
            rest=tuple(rest) if rest else None,
        )
    except Corrupt:
        raise
    except Exception as error:
        raise Corrupt(f"{what} cannot be decoded: {reason(error)}") from error


def unpack_labels(n: int, stored: bytes | None, where: str, family: int) -> dict[str, Any]:
    """Return the labels that are stored in this item. Corrupt if it is missing or damaged."""
    if stored is None:
        raise Corrupt(f"labels {n} of {where} are referenced but missing")
    item = itemlog.unseal_item(ItemId(SHARED, n), stored, where, family)
    return as_labels(item.data, f"labels {n} of {where}")


def known_labels(n: int, stored: bytes | None, family: int) -> dict[str, Any] | None:
    """Return what `unpack_labels` returned for the same bytes before, which is not to be changed. None if damaged."""
    try:
        return _known_labels(n, stored, family) if stored is not None and len(stored) <= _SMALL_LABELS else None
    except (Corrupt, TypeError):
        return None


_SMALL_LABELS = 1024


@lru_cache(maxsize=1024)
def _known_labels(n: int, stored: bytes, family: int) -> dict[str, Any]:
    return unpack_labels(n, stored, "", family)


def as_labels(packed: bytes, what: str) -> dict[str, Any]:
    """Return packed labels. Corrupt if they cannot be decoded."""
    labels = unpack(packed, what) or {}
    if not isinstance(labels, dict):
        raise Corrupt(f"{what} cannot be decoded: they are no dict")
    return labels


def check_checkpoint(row: CheckpointRow, where: str, family: int) -> None:
    """Raise Corrupt if a row does not match its checksum. Nothing of it is decoded."""
    try:
        _read_body(row[:9], row.refs, row.body, family)
    except Exception:  # noqa: BLE001 - this raises what is wrong, if anything is
        _unseal(row, family, _checkpoint_name(row, where))


def unpack_own_metadata(row: CheckpointRow, where: str, family: int) -> dict[str, Any]:
    """Return the metadata of a checkpoint that is not in its labels. No names are needed for it."""
    try:
        return unpack_plain(_read_body(row[:9], row.refs, row.body, family))[_OWN_METADATA] or {}
    except Exception:  # noqa: BLE001, S110 - what follows raises what is wrong, if anything is
        pass
    what = _checkpoint_name(row, where)
    try:
        return dict(unpack(_unseal(row, family, what), what)[_OWN_METADATA] or {})
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{what} cannot be decoded: {reason(error)}") from error


def _checkpoint_name(row: CheckpointRow, where: str) -> str:
    """The checkpoint, for error messages."""
    return f"checkpoint {row.id!r} of namespace {row.ns!r} in {where}"


def _pack_fields(fields: Mapping[str, Any], time: int, names: NameTable) -> Any:
    packed = dict(fields)
    if "ts" in packed:
        packed["ts"] = _pack_time(packed["ts"], time)
    if isinstance(packed.get("updated_channels"), list):
        numbers: list[int | None] = list(map(names.known.get, packed["updated_channels"]))
        packed["updated_channels"] = list(map(names.number, packed["updated_channels"])) if None in numbers else numbers
    return list(packed.values()) if tuple(packed) == _USUAL_FIELDS else packed


def _unpack_fields(fields: Any, time: int, names: NameTable) -> dict[str, Any]:
    unpacked = dict(zip(_USUAL_FIELDS, fields, strict=True)) if isinstance(fields, list) else dict(fields)
    if "ts" in unpacked:
        unpacked["ts"] = _unpack_time(unpacked["ts"], time)
    if isinstance(unpacked.get("updated_channels"), list):
        unpacked["updated_channels"] = [names.of[n] for n in unpacked["updated_channels"]]
    return unpacked


def _pack_time(text: Any, time: int) -> Any:
    """Return an ISO time in UTC as microseconds before the row's time; unchanged if it could not be restored exactly.

    A value that is not a str is wrapped in a list.
    """
    if not isinstance(text, str):
        return [text]
    fraction = text[20:26]
    if len(text) == 32 and text.endswith("+00:00") and fraction.isdecimal() and fraction.isascii():
        start = _start_of_second(text[:20])
        if start is not None and fraction != "000000":
            return time * 1000 - start - int(fraction)
    try:
        micros = time * 1000 - (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND
        return micros if _unpack_time(micros, time) == text else text
    except (TypeError, ValueError, OverflowError):
        return text


def _unpack_time(value: Any, time: int) -> Any:
    if isinstance(value, list):
        return value[0]
    return _time_text(time * 1000 - value) if isinstance(value, int) else value


def _time_text(micros: int) -> str:
    """Return microseconds since 1970 as an ISO time in UTC. As `isoformat`, in a third of the time."""
    second, fraction = divmod(micros, 1_000_000)
    text = _text_of_second(second)
    return f"{text}.{fraction:06d}+00:00" if fraction else f"{text}+00:00"


@lru_cache(maxsize=256)
def _text_of_second(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).isoformat()[:19]


@lru_cache(maxsize=256)
def _start_of_second(text: str) -> int | None:
    """Return the microseconds since 1970 of "2026-01-31T12:00:00."; None if a time is not written like this."""
    try:
        second = (datetime.fromisoformat(f"{text[:19]}+00:00") - _EPOCH) // _SECOND
        return second * 1_000_000 if f"{_text_of_second(second)}." == text else None
    except (ValueError, OverflowError):
        return None


def _pack_odd_versions(every: Iterable[Any]) -> tuple[int, list[int], list[Any]]:
    """Return versions as small numbers: an integer as the difference to the greatest, others by their place in a list.

    Returns the greatest, the numbers, and that list.
    """
    every = list(every)
    usual = [version for version in every if type(version) is int and 0 <= version < _LARGE]
    base, places, odd = max(usual, default=0), dict[tuple[type, Any], int](), list[Any]()
    packed = []
    for version in every:
        if type(version) is int and 0 <= version < _LARGE:
            packed.append(base - version)
            continue
        place = places.setdefault((type(version), version), len(odd))
        if place == len(odd):
            odd.append(version)
        packed.append(-1 - place)
    return base, packed, odd


def _pack_far_versions(base: int, differences: Iterable[int]) -> tuple[list[int], list[int]]:
    """Return differences with those from _FAR on replaced by places in a list, and the list of these versions.

    They belong to channels that did not change for long. Mostly several channels share one version, a small one.
    """
    far: dict[int, int] = {}
    place = far.setdefault
    packed = [each if each < _FAR else -1 - place(each, len(far)) for each in differences]
    return packed, list(map(base.__sub__, far))


def _unpack_version(code: int, base: int, odd: list[Any]) -> Any:
    return base - code if code >= 0 else odd[-1 - code]


def _unpack_seen(
    flat: Iterator[int], versions: Iterator[Any], names: NameTable
) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in flat:
        channels = [next(flat) for _ in range(next(flat))]
        yield names.of[node], {names.of[n]: next(versions) for n in channels}


def _pairs(flat: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(flat[::2], flat[1::2], strict=True)


def pack_writes(row: WriteRow, entries: dict[int, WriteEntry], names: NameTable) -> WriteRow:
    """Return the row with the index, body and refs of these entries. Its path, run and time are the first entry's.

    This runs for every put_writes. It makes about 4 calls, and one per write.
    """
    index: list[int] = []
    slots: list[Slot] = []
    origins: list[tuple[str, str | None, int]] = []
    for idx in sorted(entries):
        channel, slot, size, origin = entries[idx]
        number = names.known.get(channel)
        index += (idx, names.number(channel) if number is None else number, size)
        slots.append(slot)
        origins.append(origin)
    first = origins[0]
    others: Any = 0
    if any(map(first.__ne__, origins)):
        different = list(dict.fromkeys(origins))
        others = [*different[1:], list(map(different.index, origins))]
    codes, details, refs = pack_slots(slots, names)
    packed = new_tuple(WriteRow, (*row[:3], *first, tuple(index), tuple(refs), b""))
    body = itemlog.seal(pack([codes, details, others]), _write_seed(packed, names.family), compress=names.compress)
    return new_tuple(WriteRow, (*packed[:8], body))


def unpack_writes(row: WriteRow, names: NameTable, shared: SharedParts, where: str) -> TaskWrites:
    """Return the entries of a row. Corrupt if it cannot be decoded; `where` names the thread.

    Four calls for an ordinary row. If anything is wrong with it, or unusual, it is decoded again step by step.
    """
    try:
        codes, details, others = unpack_plain(_read_body(row[:7], row.refs, row.body, names.family))
        if others:
            return _unpack_writes_carefully(row, names, shared, where)
        slots = iter(_read_slots(codes, details, row.refs, 0, names, shared))
        origin, name_of, index = row[3:6], names.of, iter(row.index)
        entries: dict[int, WriteEntry] = {}
        for idx, n, size in zip(index, index, index, strict=True):
            entries[idx] = new_tuple(WriteEntry, (name_of[n], next(slots), size, origin))
        if next(slots, None) is None:
            return new_tuple(TaskWrites, (row, entries))
    except Exception:  # noqa: BLE001, S110 - the careful decoder raises what is wrong, if anything is
        pass
    return _unpack_writes_carefully(row, names, shared, where)


def unpack_writes_to(
    row: WriteRow, names: NameTable, shared: SharedParts, where: str, wanted: Mapping[int, str]
) -> TaskWrites:
    """Return only the entries that write to some channels, `wanted` as above. Corrupt as for `unpack_writes`."""
    try:
        if wanted.keys().isdisjoint(row.index[1::3]):
            _read_body(row[:7], row.refs, row.body, names.family)
            return TaskWrites(row, {})
    except Exception:  # noqa: BLE001, S110 - as above
        pass
    row, entries = unpack_writes(row, names, shared, where)
    channels = wanted.values()
    return TaskWrites(row, {idx: entry for idx, entry in entries.items() if entry.channel in channels})


def _unpack_writes_carefully(row: WriteRow, names: NameTable, shared: SharedParts, where: str) -> TaskWrites:
    what = f"writes of task {row.task!r} on checkpoint {row.checkpoint!r} in {where}"
    try:
        codes, details, others = unpack(_unseal(row, names.family, what), what)
        slots = list(unpack_slots(codes, details, iter(row.refs), names, shared))
        origins: list[Any] = [(row.path, row.run, row.time)] * len(slots)
        if others:
            listed = [origins[0], *map(tuple, others[:-1])]
            origins = [listed[at] for at in others[-1]]
        entries = zip(row.index[::3], row.index[1::3], row.index[2::3], slots, origins, strict=True)
        return TaskWrites(row, {idx: WriteEntry(names.of[n], slot, size, o) for idx, n, size, slot, o in entries})
    except Corrupt:
        raise
    except Exception as error:
        raise Corrupt(f"{what} cannot be decoded: {reason(error)}") from error


# --- checksums


def is_sealed(row: CheckpointRow | WriteRow, family: int) -> bool:
    """Whether the checksum matches the body and all columns."""
    try:
        _unseal(row, family, "it")
    except Corrupt:
        return False
    return True


def reseal(row: CheckpointRow, changed: CheckpointRow, where: str, family: int) -> CheckpointRow:
    """Return a changed row with the body of `row`. The checksum covers the columns, so it is computed again."""
    _unseal(row, family, _checkpoint_name(row, where))
    return changed._replace(body=itemlog.reseed(row.body, _checkpoint_seed(changed, family)))


_Row = TypeVar("_Row", bound=CheckpointRow | WriteRow)


def expand(row: _Row, family: int) -> _Row:
    """Return a row whose body is not compressed. Corrupt if it does not match its checksum."""
    data, compute = _unseal(row, family, "the row"), _seed_of(row)
    expanded: Any = row._replace(body=itemlog.seal(data, compute(row, family), compress=False))
    return cast("_Row", expanded)


def _unseal(row: CheckpointRow | WriteRow, family: int, what: str) -> bytes:
    """Return the body of a row. Corrupt if it does not match its checksum."""
    try:
        compute = _seed_of(row)
        try:
            return itemlog.unseal(row.body, compute(row, family), what).data
        except Corrupt:
            if family:
                raise
            return itemlog.unseal(row.body, compute(row, 0, form=repr), what).data
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Corrupt(f"{what} cannot be decoded: {reason(error)}") from error


def _seed_of(row: CheckpointRow | WriteRow) -> Any:
    """Return the function that computes the seed of a row's checksum."""
    return _checkpoint_seed if isinstance(row, CheckpointRow) else _write_seed


def _checkpoint_seed(
    row: CheckpointRow,
    family: int,
    refs: tuple[ItemRange, ...] | None = None,
    form: Callable[[Any], str] = ascii,
) -> int:
    """Return the checksum seed of all columns. `refs` are those that the row will have, if it has others now.

    `ascii` gives the same text in every version of Python. Rows of older threadkeeps have `repr`, which leaves
    printable characters as they are; which ones are printable depends on the version.
    """
    columns = form(tuple(row[:9])).encode("utf-8", "surrogatepass")
    return zlib.crc32(itemlog.pack_ranges(row.refs if refs is None else refs), zlib.crc32(columns, family))


def _write_seed(row: WriteRow, family: int, *, form: Callable[[Any], str] = ascii) -> int:
    columns = form(tuple(row[:7])).encode("utf-8", "surrogatepass")
    return zlib.crc32(itemlog.pack_ranges(row.refs), zlib.crc32(columns, family))


def thread_checksum(row: ThreadRow) -> int:
    """Return the checksum of a thread's row, and before it the revision that it was made for.

    A threadkeep without checksums changes the revision and leaves the checksum: then that does not count any more.
    """
    (
        key, epoch, rev, nexts, created, updated, checkpoints, writes, _, top, run, step, source, status, labels, early,
        early_status, _, family, top_writes, early_writes, *_,
    ) = row  # fmt: skip
    columns: tuple[Any, ...] = (
        *key, epoch, rev, nexts, created, updated, checkpoints, writes, top, run, step, source, status, labels, early,
        early_status, family, top_writes, early_writes,
    )  # fmt: skip
    if row.sealed is not None:  # the checksums of all other rows stay as they were before there was this column
        columns += (zlib.crc32(row.sealed),)
    if row.lease is not None:
        columns += ("lease", zlib.crc32(row.lease))
    if row.description is not None:
        columns += ("description", row.description)
    return (rev & _REV) << 32 | zlib.crc32(ascii(columns).encode())


_REV = 0x7FFFFFFF
_MAX_TIME = 1 << 47
"""Times in milliseconds below this are before the year 6429."""


def checked_thread(row: ThreadRow, key: ThreadKey) -> ThreadRow:
    """Return the row that was found for a thread. Corrupt if it is damaged or the row of another thread."""
    try:
        if row.checksum == thread_checksum(row) and row.key == key and row.bytes_check in (None, row.bytes):
            return row
    except TypeError:
        pass
    if (problem := thread_problem(row, key)) is not None:
        raise Corrupt(f"the row of thread {key.id!r} {problem}")
    return current_facts(row)


def refuse_encrypted(row: ThreadRow) -> None:
    """Raise WrongKey if a thread's row is encrypted: a Keep without keys may have been open since before that."""
    if row.sealed is not None and row.status not in STATUSES:  # the row of an opened thread has a real status
        raise WrongKey(f"thread {row.key.id!r} is encrypted: open the storage with keys=")


def thread_problem(row: ThreadRow, key: ThreadKey) -> str | None:
    """Return what is wrong with the row that was found for a thread, as the rest of a sentence; None if nothing is."""
    if row.key != key:
        return f"is missing: that of {row.key.kind} thread {row.key.id!r} is in its place"
    try:
        if current_facts(row).checksum is None:
            return None if is_plausible(row) else "cannot be read: a column has a value of another type"
        if row.checksum != thread_checksum(row):
            return "does not match its checksum"
    except TypeError as error:
        return f"cannot be read: {error}"
    if row.bytes_check not in (None, row.bytes):
        return f"has {row.bytes} bytes in one column and {row.bytes_check} in another"
    return None


def is_plausible(row: ThreadRow) -> bool:
    """Whether a row can be used if its checksum does not count. SQLite does not check the types of what it reads."""
    numbers = (row.epoch, row.rev, row.created, row.updated, row.checkpoints, row.writes, row.bytes, row.family)
    optional = (row.step, row.labels, row.top_writes, row.early_writes, row.bytes_check, row.checksum)
    return (
        all(type(each) is int for each in numbers)
        and all(type(each) in (int, NoneType) for each in optional)
        and type(row.sealed) in (bytes, NoneType)
        and type(row.lease) in (bytes, NoneType)
        and type(row.description) in (str, NoneType)
        and max(abs(row.created), abs(row.updated)) < _MAX_TIME
        and row.status in STATUSES
        and row.early_status in (None, *STATUSES)
    )


def current_facts(row: ThreadRow) -> ThreadRow:
    """Return the row without its checksums and numbers of writes, if an older threadkeep changed it without them."""
    if row.checksum is None or row.checksum >> 32 == row.rev & _REV:
        return row
    return row._replace(checksum=None, bytes_check=None, top_writes=None, early_writes=None)
