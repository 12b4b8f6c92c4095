"""Tests of values: large ones come back after every change, and metadata may be large, deep and full of digits."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep.conformance.saver.chains import config_for, list_ids, load, put
from threadkeep.conformance.sync_async import Caller

NUMBERS = [n * 7_919 % 1_000_003 for n in range(20_000)]
LISTS = [
    NUMBERS,
    [*NUMBERS, 1],
    [*NUMBERS[:10_000], "edited", *NUMBERS[10_001:], 1],
    [0, *NUMBERS[:10_000], *range(300), *NUMBERS[10_000:]],
    NUMBERS[5:-5],
    NUMBERS[:10],
    [str(n) for n in NUMBERS],
]
ENTRIES = {f"key {n}": n for n in NUMBERS}
DICTS: list[dict[Any, Any]] = [
    ENTRIES,
    ENTRIES | {"new": 1},
    ENTRIES | {"key 7919": "edited"},
    {key: n for key, n in ENTRIES.items() if n % 1_000},
    {1: "a", None: "b", **dict.fromkeys(range(2, 5_000), 1.5)},
]


def nested(levels: int, *, in_lists: bool) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value] if in_lists else {"down": value}
    return value


@pytest.mark.parametrize("states", [LISTS, DICTS], ids=["list", "dict"])
def test_a_large_value_comes_back_after_every_change(my_saver: Caller, states: list[Any]) -> None:
    for n, value in enumerate(states):
        at = put(my_saver, str(n), str(n - 1) if n else None, {"large": value}, version=n + 1)
        my_saver.put_writes(at, [("large", value)], "task")
    for n, value in enumerate(states):
        found = load(my_saver, config_for("t", str(n)))
        assert found.checkpoint["channel_values"]["large"] == value
        assert found.pending_writes[0][2] == value


@pytest.mark.parametrize(
    "value",
    [ValueError("x", 1), (1, (2, [3])), [(1, 2)], OrderedDict(b=1, a=(2,)), {"k": OrderedDict(b=1)}],
    ids=["exception", "tuple", "tuple in a list", "OrderedDict", "OrderedDict in a dict"],
)
def test_a_value_comes_back_as_the_serializer_gives_it(my_saver: Caller, value: Any) -> None:
    serde = JsonPlusSerializer()
    expected = serde.loads_typed(serde.dumps_typed(value))
    at = put(my_saver, "1", None, {"alone": value, "list": [1, value], "dict": {"a": value, "b": "x" * 2_000}})
    my_saver.put_writes(at, [("w", value)], "task")
    found = load(my_saver, at)
    values = found.checkpoint["channel_values"]
    assert values == {"alone": expected, "list": [1, expected], "dict": {"a": expected, "b": "x" * 2_000}}
    assert type(values["alone"]) is type(expected)
    assert found.pending_writes == [("task", "w", expected)]


def test_200_levels_of_nesting_come_back(my_saver: Caller) -> None:
    values = {"lists": nested(200, in_lists=True), "dicts": nested(200, in_lists=False)}
    at = put(my_saver, "1", None, values, deep=values["lists"], deeper=values["dicts"])
    my_saver.put_writes(at, list(values.items()), "task")
    found = load(my_saver, at)
    assert found.checkpoint["channel_values"] == values
    assert found.metadata["deep"] == values["lists"]
    assert found.metadata["deeper"] == values["dicts"]
    assert [write[2] for write in found.pending_writes] == list(values.values())


def test_an_integer_of_more_than_64_bits_in_metadata_comes_back_or_is_refused(my_saver: Caller) -> None:
    given = {"large": 2**64, "negative": [-(2**70)], "digits": {"many": 10**50 + 1}}
    try:
        at = put(my_saver, "1", None, {}, **given)
    except (TypeError, ValueError, OverflowError):
        assert my_saver.get_tuple(config_for()) is None
    else:
        assert {key: load(my_saver, at).metadata[key] for key in given} == given


@pytest.mark.parametrize(
    "given",
    [
        {"text": "0123456789abcdef" * 100_000},
        {"list": list(range(400_000))},
        {f"key {n}": "x" * 200 for n in range(8_000)},
        {"a": ["x" * 600_000], "b": {"c": "y" * 600_000}, "small": 1},
    ],
    ids=["text", "list", "many keys", "two values"],
)
def test_metadata_of_more_than_a_megabyte_comes_back(my_saver: Caller, given: dict[str, Any]) -> None:
    put(my_saver, "1", None, {"a": 1}, version=1, **given)
    put(my_saver, "2", "1", {"a": 2}, version=2, **given, other=1)
    for id, more in (("1", {}), ("2", {"other": 1})):
        found = load(my_saver, config_for("t", id))
        assert {key: value for key, value in found.metadata.items() if key in given or key == "other"} == given | more
        assert found.checkpoint["channel_values"] == {"a": int(id)}
    assert list_ids(my_saver, filter={"other": 1}) == ["2"]
    (listed, _) = my_saver.list(config_for())
    assert {key: listed.metadata[key] for key in given} == given


def test_a_dict_that_changes_while_it_is_put_does_not_make_the_put_fail(my_saver: Caller) -> None:
    entries = {f"key {n}": n for n in range(3_000)}
    done = threading.Event()

    def change() -> None:
        n = 0
        while not done.is_set():
            entries[f"new {n % 50}"] = n
            entries.pop(f"new {(n + 25) % 50}", None)
            n += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for n in range(15):
            checkpoint = {**empty_checkpoint(), "id": str(n), "channel_values": {"d": entries, "l": [entries, entries]}}
            checkpoint["channel_versions"] = {"d": n + 1, "l": n + 1}
            at = my_saver.put(config_for(), checkpoint, {}, checkpoint["channel_versions"])
            my_saver.put_writes(at, [("d", entries)], "task")
            assert load(my_saver, at).checkpoint["channel_values"]["d"]["key 2999"] == 2999
    finally:
        done.set()
        thread.join()
