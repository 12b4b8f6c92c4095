"""Values of memories as JSON text: they come back exactly, and what is not JSON is reported with its path."""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypothesis_profiles import examples
from threadkeep.engine.memories import json_text
from threadkeep.engine.memories.json_text import dump, escape, load

STRANGE = st.text(st.sampled_from("ab01d8\\u\x00\x01\x02\ud800\ud83d\ude00\udfff\U0001f600é"), max_size=8)
TEXTS = st.one_of(STRANGE, st.text(st.characters(codec=None), max_size=5))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
VALUES = st.dictionaries(TEXTS, JSON, max_size=5)


def spelled(value: Any) -> Any:
    """With every type, the order of keys and the sign of zero."""
    if isinstance(value, dict):
        return ("dict", [(spelled(key), spelled(inner)) for key, inner in value.items()])
    if isinstance(value, list):
        return ("list", [spelled(inner) for inner in value])
    return (type(value).__name__, ascii(value))


@given(VALUES)
@settings(deadline=None, max_examples=examples(100))
def test_what_is_dumped_is_loaded_again(value: dict[str, Any]) -> None:
    text = dump(value)
    assert spelled(load(text)) == spelled(value)
    assert dump(load(text)) == text


@given(VALUES)
@settings(deadline=None, max_examples=examples(70))
def test_the_text_is_compact_ascii_without_what_databases_refuse(value: dict[str, Any]) -> None:
    text = dump(value)
    assert text.isascii() and text.isprintable()
    assert text == json.dumps(json.loads(text), separators=(",", ":"))
    json.dumps(json.loads(text), ensure_ascii=False).encode()  # no surrogate is left
    assert "\\u0000" not in text.replace("\\\\", "")


@given(TEXTS, TEXTS)
@settings(deadline=None, max_examples=examples(100))
def test_different_strings_are_escaped_differently(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)
    assert escape(one) + escape(other) == escape(one + other)


@given(st.text())
def test_strings_without_strange_characters_are_left_as_they_are(text: str) -> None:
    text = text.replace("\x00", "").replace("\x01", "")
    assert escape(text) == text
    assert json.loads(dump({text: text})) == {text: text}


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("\x00", "\x010"),
        ("\x01", "\x011"),
        ("a\ud83db", "a\x01d83db"),
        ("\ud83d\ude00", "\x01d83d\x01de00"),
        ("😀", "😀"),
    ],
)
def test_an_escape_is_the_first_control_character_and_a_code(text: str, stored: str) -> None:
    assert escape(text) == stored
    assert json.loads(dump({"k": text}))["k"] == stored


@pytest.mark.parametrize(
    "number", [1.0, -0.0, 0.0, 1e23, 1e16, 5e-324, 1.7976931348623157e308, 0, -1, 2**53 + 1, 10**400, -(2**63)]
)
def test_a_number_keeps_its_type_and_all_its_digits(number: float) -> None:
    assert spelled(load(dump({"n": number}))) == spelled({"n": number})


def test_a_float_without_a_fraction_stays_a_float_in_the_text() -> None:
    assert dump({"a": 1.0, "b": 1e23, "c": -0.0}) == '{"a":1.0,"b":1e+23,"c":-0.0}'


def test_a_subclass_counts_as_its_base() -> None:
    class Colour(str, Enum):  # noqa: UP042 - a StrEnum prints as its value
        RED = "red"

    class Level(IntEnum):
        HIGH = 3

    class Celsius(float):
        def __repr__(self) -> str:
            return "warm"

    class Point(NamedTuple):
        x: int
        y: int

    ordered = OrderedDict(b=1, a=2)
    ordered.move_to_end("b")
    given = {Colour.RED: Colour.RED, "n": Level.HIGH, "f": Celsius(20), "t": (1, (2,)), "p": Point(1, 2), "o": ordered}
    assert dump(given) == '{"red":"red","n":3,"f":20.0,"t":[1,[2]],"p":[1,2],"o":{"a":2,"b":1}}'


def test_what_was_dumped_is_not_changed() -> None:
    inner = ["\x00", ("a",)]
    value = {"\x01": inner}
    dump(value)
    assert value == {"\x01": ["\x00", ("a",)]} and value["\x01"] is inner


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        ({"a": [{"b": datetime(2020, 1, 1)}]}, TypeError, "value['a'][0]['b'] is a datetime, which is not JSON"),
        ({"a": b""}, TypeError, "value['a'] is a bytes, which is not JSON"),
        ({"a": {1, 2}}, TypeError, "value['a'] is a set, which is not JSON"),
        ({"\x01": Decimal(1)}, TypeError, r"value['\x01'] is a Decimal, which is not JSON"),
        ({"a": [0, float("nan")]}, ValueError, "value['a'][1] is nan, which is not JSON"),
        ({"a": {"b": float("-inf")}}, ValueError, "value['a']['b'] is -inf, which is not JSON"),
        ({"a": [{1: 2}]}, TypeError, "a key of value['a'][0] is of type int, not str"),
        ({None: 2}, TypeError, "a key of value is of type NoneType, not str"),
        ([1], TypeError, "value must be a dict, not list"),
        (None, TypeError, "value must be a dict, not NoneType"),
    ],
)
def test_what_is_not_json_says_where_it_is(value: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as raised:
        dump(value)
    assert str(raised.value) == says


def test_a_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {"a": [1, {}]}
    value["a"][1]["b"] = value["a"]
    with pytest.raises(ValueError, match=r"^value\['a'\]\[1\]\['b'\] contains itself$"):
        dump(value)


def test_a_value_may_contain_another_twice() -> None:
    inner = [1]
    assert dump({"a": inner, "b": [inner, inner]}) == '{"a":[1],"b":[[1],[1]]}'


def test_the_deepest_value_is_kept_and_a_deeper_one_refused() -> None:
    deepest: Any = []
    for _ in range(json_text.MAX_DEPTH - 2):
        deepest = [deepest]
    for leaf in ("\x00", "plain"):
        value = {"k": deepest, "l": leaf}
        assert load(dump(value)) == value
        with pytest.raises(ValueError, match=f"nested deeper than {json_text.MAX_DEPTH}"):
            dump({"k": [deepest], "l": leaf})


def test_an_int_that_python_does_not_print_is_refused() -> None:
    with pytest.raises(ValueError, match="4300 digits"):
        dump({"n": 10**5000})
