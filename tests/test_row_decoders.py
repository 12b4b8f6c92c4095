"""The straight decoders of rows return and raise exactly what the careful ones do, on ordinary and on damaged rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threadkeep.backends.sql import backend as sql_backend
from threadkeep.backends.sql.rows import pack_index, unpack_index
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.engine.identity import pack_id, pack_path, to_bytes, unpack_id, unpack_path
from threadkeep.engine.log import itemlog, records
from threadkeep.engine.log.codec import unpack
from threadkeep.engine.log.itemlog import ItemId, ItemRange
from threadkeep.engine.log.msgpack import LIST, WHOLE
from threadkeep.engine.log.records import (
    CheckpointRecord,
    CheckpointRow,
    NameTable,
    SharedParts,
    Slot,
    WriteEntry,
    WriteRow,
)
from threadkeep.errors import Corrupt

NAMES = ["messages", "status", "agent", "tools", "é", "\ud800", "branch:to:agent"]
FAMILY = 0x1234ABCD
RANGE_LISTS = {0: (ItemRange(3, 0, 2),), 1: (ItemRange(4, 5, 1), ItemRange(4, 9, 300))}

texts = st.text(max_size=6)
names = st.sampled_from(NAMES)
ranges = st.builds(ItemRange, st.integers(3, 200), st.integers(0, 40_000), st.integers(1, 300))
versions = st.one_of(st.integers(0, 300), st.integers(), st.floats(allow_nan=False), texts)
spilled = st.builds(
    lambda own, n, elements: Slot(
        LIST,
        "msgpack",
        elements,
        snapshot=False,
        inline=None,
        ranges=(*RANGE_LISTS[n], *own),
        spill=(ItemRange(itemlog.RANGE_LISTS, n, 1),),
        covered=len(RANGE_LISTS[n]),
    ),
    st.lists(ranges, max_size=2),
    st.sampled_from([0, 1]),
    st.integers(1, 500),
)
slots = st.one_of(
    st.builds(
        lambda tag, snapshot, data: Slot(WHOLE, tag, 1, snapshot, data),
        st.sampled_from(["msgpack", "null", "é"]),
        st.booleans(),
        st.binary(),
    ),
    st.builds(
        lambda elements, snapshot, own: Slot(LIST, "msgpack", elements, snapshot, None, tuple(own)),
        st.integers(0, 500),
        st.booleans(),
        st.lists(ranges, max_size=3),
    ),
    spilled,
)
times = st.integers(0, 1 << 41)
UNUSUAL_TIMES = (
    "2026-01-02T03:04:05+00:00", "2026-01-02T03:04:05.000000+00:00", "2026-01-02 03:04:05.678901+00:00",
    "2026-01-02T03:04:05,678901+00:00", "2026-01-02T24:00:00.678901+00:00", "2026-01-02T03:04:60.678901+00:00",
    "2026-02-30T03:04:05.678901+00:00", "2026-W01-2T03:04:05.678901+00:00", "2026-01-02T03:04:05.67890\u00b2+00:00",
    "2026-01-02T03:04:05.67890\u0663+00:00", "2026-01-02T03:04:05.678901+01:00", "2026-01-02T03:04:05.678901-00:00",
)  # fmt: skip
moments = st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)
stamps = st.one_of(moments, moments, st.sampled_from(UNUSUAL_TIMES), texts, st.none(), st.integers())
updated = st.one_of(st.none(), st.lists(names, max_size=3))
usual_fields = st.fixed_dictionaries({"v": st.integers(1, 9), "ts": stamps, "updated_channels": updated})
fields = st.one_of(
    usual_fields, usual_fields, st.dictionaries(st.sampled_from(["v", "ts", "updated_channels"]), stamps)
)


def _table() -> NameTable:
    """Return a table that knows all names; tags that are not known are names too."""
    return NameTable(NAMES, NAMES.index, FAMILY)


class _Shapes:
    """The shapes that packed checkpoints share."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []

    def share(self, packed: bytes) -> int:
        self.stored.append(packed)
        return len(self.stored) - 1

    def parts(self) -> SharedParts:
        return SharedParts(RANGE_LISTS, lambda n: unpack(self.stored[n], "a shape"))


@st.composite
def checkpoints(draw: st.DrawFn) -> tuple[CheckpointRow, _Shapes, CheckpointRecord]:
    """Return a packed row, the shapes that it needs, and the record that it was packed from."""
    row = CheckpointRow(
        draw(texts), draw(texts), draw(st.none() | texts), draw(st.none() | texts), draw(st.none() | st.integers(-9, 99)),
        draw(st.none() | texts), draw(st.integers(0, 300)), draw(times), hidden=draw(st.booleans()), refs=(), body=b"",
    )  # fmt: skip
    record = CheckpointRecord(
        row,
        draw(fields),
        draw(st.dictionaries(names, versions, max_size=4)),
        draw(st.dictionaries(names, st.dictionaries(names, versions, max_size=2), max_size=3)),
        draw(st.dictionaries(names, slots, max_size=4)),
        draw(st.dictionaries(texts, st.integers(0, 5), max_size=2)),
        draw(st.none() | st.tuples(st.just("msgpack"), st.binary(max_size=4))),
    )
    shapes = _Shapes()
    packed = records.pack_checkpoint(row, record, _table(), shapes.share)
    return packed, shapes, record._replace(row=packed)


@st.composite
def tasks(draw: st.DrawFn) -> tuple[WriteRow, dict[int, WriteEntry]]:
    """Return a packed row of writes, and the entries that it was packed from."""
    origins = draw(st.lists(st.tuples(texts, st.none() | texts, times), min_size=1, max_size=2))
    entry = st.builds(WriteEntry, names, slots, st.integers(0, 9999), st.sampled_from(origins))
    entries = draw(st.dictionaries(st.integers(-4, 5), entry, min_size=1, max_size=3))
    row = WriteRow(draw(texts), draw(texts), draw(texts), "", None, 0, (), (), b"")
    return records.pack_writes(row, entries, _table()), dict(sorted(entries.items()))


def _outcome(decode: Callable[[], Any]) -> Any:
    try:
        return decode()
    except Exception as error:  # noqa: BLE001 - compared with that of the other decoder
        return f"{type(error).__name__}: {error}"


@st.composite
def changes(draw: st.DrawFn, width: int) -> Callable[[Any], Any]:
    """Return a function that changes one column of a row, as damage could."""
    column = draw(st.integers(0, width - 1))
    value = draw(
        st.one_of(
            st.none(), st.integers(-3, 3), texts, st.binary(max_size=30), st.lists(ranges, max_size=2).map(tuple),
            st.lists(st.integers(0, 7), max_size=6).map(tuple), st.just("flip"),
        )
    )  # fmt: skip
    at, bit = draw(st.integers(0, 200)), draw(st.integers(0, 7))

    def change(row: Any) -> Any:
        if value != "flip":
            return type(row)(*(value if n == column else each for n, each in enumerate(row)))
        body = bytearray(row.body)
        body[at % len(body)] ^= 1 << bit
        return row._replace(body=bytes(body))

    return change


def test_channels_that_have_not_changed_for_long_take_a_byte_each() -> None:
    row = CheckpointRow("", "id", None, None, 1, "loop", 0, 0, hidden=False, refs=(), body=b"")
    sizes = []
    for latest in (100, 1000):
        channels = {name: latest if n == 0 else 2 for n, name in enumerate(NAMES[:4])}
        record = CheckpointRecord(row, {}, channels, {NAMES[0]: channels}, {}, {}, None)
        shapes = _Shapes()
        packed = records.pack_checkpoint(row, record, _table(), shapes.share)
        found = records.unpack_checkpoint(packed, _table(), shapes.parts(), "thread 't'")
        assert (found.versions, found.seen) == (channels, {NAMES[0]: channels})
        sizes.append(len(packed.body))
    assert sizes[1] == sizes[0] + 2 + 1, "the latest version, and the one that the others share"


@given(st.datetimes(timezones=st.just(UTC)), times)
@settings(deadline=None, max_examples=300)
def test_a_time_is_packed_as_microseconds_before_that_of_the_row(moment: datetime, time: int) -> None:
    exact = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert records._pack_time(moment.isoformat(), time) == time * 1000 - exact
    assert records._unpack_time(time * 1000 - exact, time) == moment.isoformat()


@pytest.mark.parametrize("text", UNUSUAL_TIMES[1:])
def test_a_time_that_is_written_in_another_way_is_packed_as_it_is(text: str) -> None:
    assert records._pack_time(text, 0) == text


@given(checkpoints())
@settings(deadline=None, max_examples=200)
def test_a_checkpoint_is_decoded_to_what_was_packed(packed: tuple[CheckpointRow, _Shapes, CheckpointRecord]) -> None:
    row, shapes, record = packed
    found = records.unpack_checkpoint(row, _table(), shapes.parts(), "thread 't'")
    assert repr(found) == repr(records._unpack_checkpoint_carefully(row, _table(), shapes.parts(), "thread 't'"))
    assert found == record
    assert type(found) is CheckpointRecord
    assert all(type(slot) is Slot for slot in found.slots.values())


@given(checkpoints(), changes(11))
@settings(deadline=None, max_examples=400)
def test_a_damaged_checkpoint_gives_the_same_error(
    packed: tuple[CheckpointRow, _Shapes, CheckpointRecord], change: Callable[[Any], Any]
) -> None:
    row, shapes = change(packed[0]), packed[1]
    args = (row, _table(), shapes.parts(), "thread 't'")
    expected = _outcome(lambda: records._unpack_checkpoint_carefully(*args))
    assert repr(_outcome(lambda: records.unpack_checkpoint(*args))) == repr(expected)
    wanted = {0: NAMES[0], 4: NAMES[4]}
    found = _outcome(lambda: records.unpack_channels(*args, wanted))
    if isinstance(expected, str):
        assert found == expected
    else:
        assert found == {name: slot for name, slot in expected.slots.items() if name in wanted.values()}


@given(tasks())
@settings(deadline=None, max_examples=200)
def test_writes_are_decoded_to_what_was_packed(packed: tuple[WriteRow, dict[int, WriteEntry]]) -> None:
    row, entries = packed
    args = (row, _table(), SharedParts(RANGE_LISTS, lambda n: n), "thread 't'")
    found = records.unpack_writes(*args)
    assert repr(found) == repr(records._unpack_writes_carefully(*args))
    assert found.entries == entries
    some = records.unpack_writes_to(*args, {1: NAMES[1]})
    assert some.entries == {idx: entry for idx, entry in entries.items() if entry.channel == NAMES[1]}


@given(tasks(), changes(9))
@settings(deadline=None, max_examples=400)
def test_damaged_writes_give_the_same_error(
    packed: tuple[WriteRow, dict[int, WriteEntry]], change: Callable[[Any], Any]
) -> None:
    args = (change(packed[0]), _table(), SharedParts(RANGE_LISTS, lambda n: n), "thread 't'")
    expected = _outcome(lambda: records._unpack_writes_carefully(*args))
    assert repr(_outcome(lambda: records.unpack_writes(*args))) == repr(expected)
    some = _outcome(lambda: records.unpack_writes_to(*args, {1: NAMES[1]}))
    assert isinstance(some, str) == isinstance(expected, str)
    if isinstance(expected, str):
        assert some == expected


@given(st.lists(st.integers(0, 1 << 70)))
def test_numbers_are_read_back(numbers: list[int]) -> None:
    assert itemlog.read_varints(b"".join(map(itemlog.varint, numbers))) == numbers


@given(st.lists(ranges))
def test_ranges_are_read_back(listed: list[ItemRange]) -> None:
    found = itemlog.unpack_ranges(itemlog.pack_ranges(tuple(listed)))
    assert found == tuple(listed)
    assert all(type(each) is ItemRange for each in found)


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"\x01\x02", ValueError), (b"\x01\x02\x83", IndexError), ("abc", TypeError), (None, TypeError), (7, TypeError)],
)
def test_damaged_ranges_are_refused(data: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        itemlog.unpack_ranges(data)


@given(st.one_of(st.uuids().map(str), st.uuids().map(lambda id: id.hex), texts))
def test_ids_are_read_back(id: str) -> None:
    assert unpack_id(pack_id(id)) == id


@given(
    st.one_of(texts, texts.map(lambda node: f"~__pregel_pull, {node}"), st.sampled_from(["", "\0", "\1", "\1a", "~"]))
)
def test_paths_are_read_back(path: str) -> None:
    packed = pack_path(path)
    assert unpack_path(packed) == path
    assert len(packed) <= len(to_bytes(path)) + 1
    if path.startswith("~__pregel_pull, "):
        assert packed == b"\1" + to_bytes(path[16:])


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 1 << 40), st.integers(0, 1 << 40))), st.booleans())
def test_the_index_of_writes_is_read_back(entries: list[tuple[int, int, int]], counted: bool) -> None:  # noqa: FBT001
    listed = [(n, *each[1:]) for n, each in enumerate(entries)] if counted else entries
    index = tuple(number for each in listed for number in each)
    packed = pack_index(index)
    assert unpack_index(packed) == index
    assert len(packed) <= len(json.dumps(index))


@given(st.binary(min_size=1, max_size=300), st.integers(0, (1 << 32) - 1), st.integers(0, 400), st.integers(0, 7))
def test_unsealing_is_the_same_in_one_call(data: bytes, seed: int, at: int, bit: int) -> None:
    stored = itemlog.seal(data, seed)
    assert itemlog.unseal_usual(stored, seed) == itemlog.unseal(stored, seed, "it").data == data
    damaged = bytearray(stored)
    damaged[at % len(stored)] ^= 1 << bit
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it raises, the careful function is called next
        itemlog.unseal_usual(bytes(damaged), seed)


@given(
    st.one_of(
        st.lists(st.integers(-9, 99), max_size=6).map(json.dumps),
        st.lists(st.integers(-9, 99), max_size=6).map(lambda numbers: json.dumps(numbers)[1:-1]),
        st.lists(st.one_of(st.integers(), st.floats(), texts), max_size=3).map(json.dumps),
        st.sampled_from(
            [" [1,2,3] ", "[1,2,3]x", "[1,2,3", "", "7", "null", "[1.0,2,3]", "[true,1,2]", None, b"[1,2,3]"]
        ),
        texts,
    )
)
def test_the_index_of_writes_is_read_as_json(entries: Any) -> None:
    """A list has three numbers for each write. A text that starts with a number has two, and they count from 0 on."""
    row = (b"", b"c", b"st", b"", None, 1, entries, b"", b"body")
    try:
        is_short = isinstance(entries, str) and entries[:1] in tuple("0123456789")
        index = json.loads(f"[{entries}]" if is_short else entries)
        if is_short and len(index) % 2 == 0:
            index = [
                number for n, pair in enumerate(zip(index[::2], index[1::2], strict=True)) for number in (n, *pair)
            ]
        elif is_short:
            index = None
        if type(index) is not list or len(index) % 3 or not {type(each) for each in index} <= {int}:
            raise ValueError("the index of writes is damaged")  # noqa: TRY301 - as the decoder does
        expected: Any = tuple(index)
    except (TypeError, ValueError) as error:
        expected = f"Corrupt: writes of task 'st' on checkpoint 'c' cannot be read: {error!r}"
    found = _outcome(lambda: SqliteDialect().write_row(row).index)
    assert found == expected
    assert sql_backend.SqlBackend.write_row is SqliteDialect.write_row


@pytest.mark.parametrize("head", [b"\xe0" + (1 << 40).to_bytes(8, "little"), b"\xa0" + (1 << 31).to_bytes(4, "little")])
@pytest.mark.parametrize("as_group", [False, True])
def test_a_frame_that_states_more_bytes_than_an_item_may_hold_is_refused(head: bytes, *, as_group: bool) -> None:
    at, item = ItemId(3, 0), itemlog.Item(b"a" * 1000, 2 if as_group else 1)
    intact = itemlog.seal_item(at, item, 7)
    assert [data for _, data, _ in itemlog.unseal_items({at: intact}, {}, "thread 't'", 7)] == [item.data]
    forged = itemlog.reseed(intact[: 6 if as_group else 5] + head + b"\0" * 20, itemlog._item_seed(at, 7))
    with pytest.raises(Corrupt, match="more than an item may hold"):
        itemlog.unseal_items({at: forged}, {}, "thread 't'", 7)


def test_a_frame_that_states_no_size_is_refused() -> None:
    at = ItemId(3, 0)
    intact = itemlog.seal_item(at, itemlog.Item(b"a" * 1000), 7)
    forged = itemlog.reseed(intact[:5] + b"\0\x58" + b"\0" * 20, itemlog._item_seed(at, 7))
    with pytest.raises(Corrupt, match="content size"):
        itemlog.unseal_items({at: forged}, {}, "thread 't'", 7)
