"""Random bytes for every decoder of stored bytes: a value, or the error that is documented; never another, nor much memory.

Checksums are computed anew, so that the bytes behind them are reached. `make prove-long` tries many more examples.
"""

from __future__ import annotations

import io
import json
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ormsgpack
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import threadkeep
from forged_values import ext_bytes
from hypothesis_profiles import examples
from threadkeep.backends.sql.rows import unpack_index
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.backends.valkey import rows as valkey_rows
from threadkeep.engine.cube.events import unpack_events
from threadkeep.engine.identity import GRAPH, ThreadKey, unpack_id, unpack_path
from threadkeep.engine.log import codec, itemlog, plain, records
from threadkeep.engine.log.itemlog import ItemId, ItemRange
from threadkeep.engine.log.msgpack import LIST, MAP, nesting
from threadkeep.engine.log.records import CheckpointRow, NameTable, SharedParts, WriteRow
from threadkeep.engine.log.splitter import Splitter
from threadkeep.engine.memories import json_text, namespaces, words
from threadkeep.errors import Corrupt, WrongKey
from threadkeep.transfer.portable import files
from threadkeep.transfer.sources import checkpoint_bytes
from threadkeep.transfer.sources.source import UnreadableError

FAMILY = 7
MANY_BYTES = 64 * 1024 * 1024
"""What a decoder may allocate for a few kilobytes. zstd's window is the largest part of it."""

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(max_size=8), st.binary(max_size=8)
)  # fmt: skip
plain_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.integers(-3, 300), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip
msgpack_bytes = plain_values.map(lambda value: ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS))
objects = st.builds(
    lambda code, payload: ext_bytes(code, payload),
    st.sampled_from([*range(9), 100, 101, 102, 103, 127]),
    st.one_of(
        st.binary(max_size=20),
        msgpack_bytes,
        st.builds(
            lambda name, value: ormsgpack.packb([*name, value, "fromisoformat"], option=ormsgpack.OPT_NON_STR_KEYS),
            st.sampled_from([("datetime", "datetime"), ("builtins", "set"), ("re", "compile"), ("os", "system"), ("uuid", "UUID")]),
            plain_values,
        ),
    ),
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> bytes:
    """Return bytes that are cut off, have others behind them, or have some changed."""
    found = bytearray(draw(data))
    for _ in range(draw(st.integers(0, 3))):
        if found:
            found[draw(st.integers(0, len(found) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, len(found)) | st.none())
    return bytes(found[:cut]) + draw(st.binary(max_size=4))


payloads = st.one_of(st.binary(max_size=60), msgpack_bytes, objects, damaged(msgpack_bytes), damaged(objects))
packed_bodies = st.one_of(
    payloads,
    st.lists(plain_values, min_size=8, max_size=8).map(lambda value: ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)),
    st.lists(plain_values, min_size=3, max_size=3).map(lambda value: ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)),
)  # fmt: skip
HOSTILE = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\x91" * 5000,
    b"\xc9\xff\xff\xff\xff\x01",
    b"\xff" * 100,
    b"",
]


def fuzz(data: st.SearchStrategy[Any], *, few: int = 100) -> Callable[[Any], Any]:
    """Give a test some random bytes, and those that are known to be hostile."""

    def decorate(test: Any) -> Any:
        tried = given(data)(test)
        for each in HOSTILE:
            tried = example(each)(tried)
        return settings(
            deadline=None, max_examples=examples(few), suppress_health_check=[HealthCheck.function_scoped_fixture]
        )(tried)

    return decorate


def decoded(decode: Callable[[], Any], *documented: type[Exception]) -> Any:
    """Return what is decoded, or the documented error. Any other error, or much memory, fails the test."""
    tracemalloc.start()
    try:
        return decode()
    except documented as error:
        return error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MANY_BYTES


def table() -> NameTable:
    known = ["messages", "a", "b"]
    return NameTable(known, known.index, FAMILY)


SHARED = SharedParts({0: (ItemRange(3, 0, 2),)}, lambda n: [n, [1], [2]])


def sealed_for(columns: tuple[Any, ...], refs: tuple[ItemRange, ...], body: bytes) -> bytes:
    seed = zlib.crc32(itemlog.pack_ranges(refs), zlib.crc32(ascii(columns).encode(), FAMILY))
    return itemlog.seal(body, seed)


# --- values


@fuzz(payloads, few=300)
def test_a_value_is_decoded_or_corrupt(data: bytes) -> None:
    one = codec.Codec(threadkeep.open("memory://").checkpointer.serde) if not _CODEC else _CODEC[0]
    _CODEC[:] = [one]
    for tag in ("msgpack", "json", "null", "bytes"):
        decoded(lambda tag=tag: one.loads(tag, data, "a value"), Corrupt)  # type: ignore[misc]
        decoded(lambda tag=tag: plain.plain(tag, data), Corrupt)  # type: ignore[misc]
    for kind in (LIST, MAP):
        for count in (1, 3, 1 << 31):
            decoded(
                lambda kind=kind, count=count: one.decode(kind, "msgpack", count, data, snapshot=True, what="it"),  # type: ignore[misc]
                Corrupt,
            )
    decoded(lambda: codec.unpack(data, "labels"), Corrupt)
    decoded(lambda: records.as_labels(data, "labels"), Corrupt)


_CODEC: list[codec.Codec] = []


@fuzz(payloads)
def test_a_value_is_split_or_refused(data: bytes) -> None:
    for tag in ("msgpack", "json", "pickle"):
        found = decoded(lambda tag=tag: Splitter().split("key", tag, data), ValueError)  # type: ignore[misc]
        if not isinstance(found, ValueError) and tag == "msgpack" and found.kind == LIST and not found.snapshot:
            assert found.data == data
    if data:
        decoded(lambda: nesting(data), IndexError)


@fuzz(payloads)
def test_a_checkpoint_of_another_saver_is_split_or_unreadable(data: bytes) -> None:
    for tag in ("msgpack", "json", "pickle", "msgpack+aes", None):
        decoded(lambda tag=tag: checkpoint_bytes.split_checkpoint(Splitter(), "", tag, data), UnreadableError)  # type: ignore[misc]
    keys = {"v": 1, "id": "c", "channel_values": {"a": 1}, "channel_versions": {"a": 1}}
    whole = ormsgpack.packb(keys)
    for at in range(0, len(whole), 5):
        changed = whole[:at] + data + whole[at:]
        decoded(lambda: checkpoint_bytes.split_checkpoint(Splitter(), "", "msgpack", changed), UnreadableError)  # noqa: B023
    decoded(lambda: checkpoint_bytes.metadata(data), UnreadableError)
    decoded(lambda: checkpoint_bytes.metadata(b"{" + data), UnreadableError)


# --- rows and items of threads


@fuzz(packed_bodies, few=300)
def test_the_body_of_a_checkpoint_is_decoded_or_corrupt(body: bytes) -> None:
    row = CheckpointRow("", "id", None, None, 1, "loop", 0, 5, hidden=False, refs=(ItemRange(3, 0, 2),), body=b"")
    row = row._replace(body=sealed_for(row[:9], row.refs, body))
    decoded(lambda: records.unpack_checkpoint(row, table(), SHARED, "thread 't'"), Corrupt)
    decoded(lambda: records.unpack_channels(row, table(), SHARED, "thread 't'", {0: "messages"}), Corrupt)
    decoded(lambda: records.unpack_own_metadata(row, "thread 't'", FAMILY), Corrupt)


@fuzz(packed_bodies, few=300)
def test_the_body_of_writes_is_decoded_or_corrupt(body: bytes) -> None:
    row = WriteRow("", "c", "task", "", None, 0, (0, 5, 9), (ItemRange(3, 0, 2),), b"")
    row = row._replace(body=sealed_for(row[:7], row.refs, body))
    decoded(lambda: records.unpack_writes(row, table(), SHARED, "thread 't'"), Corrupt)
    decoded(lambda: records.unpack_writes_to(row, table(), SHARED, "thread 't'", {0: "messages"}), Corrupt)


@fuzz(st.binary(max_size=80), few=200)
def test_an_item_is_decoded_or_corrupt(data: bytes) -> None:
    at = ItemId(3, 1)
    seed = itemlog._item_seed(at, FAMILY)
    intact = itemlog.seal_item(at, itemlog.Item(b"a" * 500, 2), FAMILY)
    forged = [data]
    for cut in (0, 4, 5, 6, 9):
        changed = intact[:cut] + data
        forged.append(changed)
        with suppress(IndexError):  # too short for a checksum
            forged.append(itemlog.reseed(changed, seed))
    for stored in forged:
        decoded(lambda: itemlog.unseal_item(at, stored, "thread 't'", FAMILY), Corrupt, WrongKey)  # noqa: B023
        decoded(lambda: itemlog.unseal_items({at: stored}, {}, "thread 't'", FAMILY), Corrupt, WrongKey)  # noqa: B023
        decoded(lambda: itemlog.unseal(stored, seed, "it"), Corrupt, WrongKey)  # noqa: B023


@fuzz(st.binary(max_size=40), few=200)
def test_numbers_and_ids_are_decoded_or_refused(data: bytes) -> None:
    """These are called by decoders of rows, which make Corrupt of what they raise."""
    decoded(lambda: itemlog.read_varints(data), IndexError, ValueError)
    decoded(lambda: itemlog.unpack_ranges(data), IndexError, ValueError)
    decoded(lambda: unpack_id(data), ValueError, IndexError)
    decoded(lambda: unpack_path(data), ValueError, IndexError)
    decoded(lambda: namespaces.decode(data), ValueError)
    decoded(lambda: unpack_index(data.decode("latin-1")), ValueError)


def test_a_range_of_very_many_items_takes_no_memory() -> None:
    data = itemlog.pack_ranges((ItemRange(3, 0, 1 << 60),))
    decoded(lambda: itemlog.unpack_ranges(data), ValueError)
    row = WriteRow("", "c", "task", "", None, 0, (), (ItemRange(3, 0, 1 << 60),), b"")
    row = row._replace(body=sealed_for(row[:7], row.refs, ormsgpack.packb([[0], [], []])))
    decoded(lambda: records.unpack_writes(row, table(), SHARED, "thread 't'"), Corrupt)


@fuzz(st.lists(leaves, min_size=9, max_size=9), few=200)
def test_a_row_of_sql_is_decoded_or_corrupt(columns: Any) -> None:
    if isinstance(columns, bytes):
        columns = [columns] * 9
    decoded(lambda: SqliteDialect().write_row(tuple(columns)), Corrupt)


@fuzz(payloads, few=200)
def test_a_row_of_valkey_is_decoded_or_refused(data: bytes) -> None:
    """The backend makes Corrupt of what they raise, and names the thread."""
    key, refused = ThreadKey("", GRAPH, "t"), (ValueError, TypeError, IndexError, KeyError, OverflowError)
    decoded(lambda: valkey_rows.read_thread(data, b"1", key), Corrupt)
    for start in (b"", b"\0", b"\x01\x02"):
        decoded(lambda: valkey_rows.checkpoint_row(start + data), *refused, Corrupt)  # noqa: B023
        decoded(lambda: valkey_rows.write_row(start + data), *refused, Corrupt)  # noqa: B023
    decoded(lambda: valkey_rows.segments(data, 3), *refused)


@fuzz(plain_values)
def test_events_of_a_cube_thread_are_decoded_or_refused(value: Any) -> None:
    """`channels.py` makes Corrupt of what they raise."""
    refused = (ValueError, TypeError, IndexError, KeyError, AttributeError)
    for elements in (value, [value], [[value, value, value, value]], [[0, value, value, 1], [1, value]]):
        decoded(lambda: list(unpack_events(elements)), *refused)  # noqa: B023


# --- memories


@fuzz(st.one_of(st.text(max_size=60), plain_values.map(lambda value: json.dumps(value, default=repr))), few=200)
def test_the_value_of_a_memory_is_decoded_or_refused(text: Any) -> None:
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    for each in (text, "[" * 50_000 + text, '{"a":' * 50_000, "9" * 50_000):
        decoded(lambda: json_text.load(each), ValueError)  # noqa: B023
        decoded(lambda: json_text.load_all([each, "{}"]), ValueError)  # noqa: B023
    decoded(lambda: words.texts_in_json(text), ValueError)
    decoded(lambda: words.unmark(text), ValueError)
    words.words(text)
    words.words_check(text)


# --- portable files


@fuzz(st.one_of(payloads, plain_values.map(lambda value: json.dumps(value, default=repr).encode())), few=150)
def test_a_portable_file_is_read_or_refused(data: bytes) -> None:
    exported = _EXPORTED[0] if _EXPORTED else _export()
    lines = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(exported)).read().splitlines(keepends=True)
    for file in (
        data,
        zstandard.ZstdCompressor().compress(data),
        zstandard.ZstdCompressor().compress(lines[0] + data + b"\n"),
        zstandard.ZstdCompressor().compress(b"".join(lines[:3]) + data + b"\n" + b"".join(lines[3:])),
        exported[: len(exported) // 2] + data + exported[len(exported) // 2 :],
        b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little") + data,
    ):
        with threadkeep.open("memory://") as keep:
            decoded(lambda: keep.import_portable(io.BytesIO(file)), ValueError)  # noqa: B023


_EXPORTED: list[bytes] = []


def _export() -> bytes:
    with threadkeep.open("memory://") as keep:
        keep.store.put(("n",), "k", {"v": 1})
        file = io.BytesIO()
        keep.export(file)
    _EXPORTED[:] = [file.getvalue()]
    return file.getvalue()


@pytest.mark.parametrize("length", [1 << 20, 1 << 32, 1 << 62])
def test_a_line_that_never_ends_takes_no_memory(length: int) -> None:
    head = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(_export())).read().splitlines(keepends=True)[0]
    bomb = zstandard.ZstdCompressor().compress(head + b'"' + b"x" * min(length, files.LONGEST_LINE + 10))
    with threadkeep.open("memory://") as keep, pytest.raises(ValueError, match="line|cut off"):
        keep.import_portable(io.BytesIO(bomb))
