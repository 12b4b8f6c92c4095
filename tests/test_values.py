"""Values come back as LangGraph's own serializer would return them, in channels and in writes."""

from __future__ import annotations

from collections import deque, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel, ConfigDict, SecretStr

import threadkeep
from checkpoint_chains import config
from checkpoint_trees import put, values_at
from strict_equality import same
from sync_async import Caller
from threadkeep.engine.log.type_gate import KeepSerializer


class Colours(Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    YES = "yes"


class Point(NamedTuple):
    x: int
    y: float = 0.5


Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - the untyped kind has to work too


@dataclass
class Line:
    ends: list[Point]
    colour: Colours = Colours.RED
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slotted:
    at: datetime
    path: Path


class Inner(BaseModel):
    n: int
    when: datetime | None = None


class Outer(BaseModel):
    model_config = ConfigDict(extra="allow")
    inner: Inner
    many: list[Inner] = []
    level: Level = Level.HIGH


MOMENT = datetime(2024, 3, 31, 1, 30, 59, 123456)
TOOL_CALL = {"name": "search", "args": {"q": "naïve 🦜", "n": 3}, "id": "call_1", "type": "tool_call"}
VALUES: dict[str, Any] = {
    "none": None,
    "booleans": [True, False],
    "zero and its kin": [0, 0.0, -0.0, False, "", b"", [], {}, None],
    "one and its kin": [1, 1.0, True, "1"],
    "integers": [0, -1, 127, 128, 255, 256, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)],
    "floats": [1.5, 1e300, 5e-324, float("inf"), float("-inf"), float("nan")],
    "strings": ["", "a\0b", "\0", "🦜", "é", "e\u0301", "line\nfeed", "\u2028", "𝔘"],
    "long string": "abc🦜\0" * 100_000,
    "bytes": b"\x00\xff" * 10,
    "long bytes": bytes(range(256)) * 4_000,
    "bytearray": bytearray(b"\x00\xff"),
    "bytearray in a list": [bytearray(b"\x00\xff")],
    "tuple": (1, (2, 3)),
    "sets": [{1, 2, 3}, frozenset({"a"}), set()],
    "deque": deque([1, 2], maxlen=5),
    "dict of odd keys": {
        1: "int",
        -1: "negative",
        1.5: "float",
        None: "none",
        "": "empty",
        "a\0b": "nul",
        b"k": "bytes",
        (1, 2): "tuple",
    },
    "dict in its order": {"z": 1, "a": 2, "m": {"y": 1, "b": 2}},
    "deep": [[[[[[[[{"a": [{"b": (1,)}]}]]]]]]]],
    "long list": list(range(50_000)),
    "list of equal strings": ["same"] * 1_000,
    "large dict": {f"/file/{n}": {"text": f"line {n}\n" * 50, "n": n} for n in range(300)},
    "human": HumanMessage("hi\0🦜", id="h1", name="user"),
    "ai": AIMessage(
        [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
        id="a1",
        tool_calls=[TOOL_CALL],
        invalid_tool_calls=[{"name": "f", "args": "{", "id": "x", "error": "bad", "type": "invalid_tool_call"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        response_metadata={"model": "m", "logprobs": None, "score": 0.25},
        additional_kwargs={"refusal": None},
    ),
    "tool": ToolMessage("x", tool_call_id="call_1", artifact={"rows": [(1, 2)]}, status="error", id="t1"),
    "other messages": [
        SystemMessage("s", id="s1"),
        ChatMessage("c", role="critic", id="c1"),
        AIMessageChunk("chunk", id="k1"),
        RemoveMessage("h1"),
    ],
    "message with extras": HumanMessage("x", id="h2", example=True, unheard_of={"a": 1}),
    "many messages": [HumanMessage(f"message {n}", id=f"h{n}") for n in range(500)],
    "document": Document("text", metadata={"page": 1}),
    "pydantic": Outer(inner=Inner(n=1, when=MOMENT), many=[Inner(n=2), Inner(n=3)], extra="kept"),
    "dataclass": Line([Point(1), Point(2, 3.5)], Colours.PAIR, {"a": [1]}),
    "slotted dataclass": Slotted(MOMENT, Path("/a b/c")),
    "enums": [Colours.RED, Colours.PAIR, Level.HIGH, Word.YES],
    "named tuples": [Point(1, 2.0), Pair("a", None)],
    "secret": SecretStr("hush"),
    "send": [Send("node", {"n": Point(1)}), Send("other", None)],
    "interrupt": (Interrupt(value={"ask": ["name?"]}, id="0" * 32),),
    "command": Command(goto=[Send("a", 1), "b"], update={"x": HumanMessage("u", id="u1")}, resume={"id": 1}),
    "overwrite": Overwrite(["all", "new"]),
    "delta snapshot": _DeltaSnapshot([HumanMessage("in it", id="d1"), {"a": (1,)}]),
    "array": np.arange(12, dtype="<i4").reshape(3, 4),
    "fortran array": np.asfortranarray(np.arange(12, dtype="float64").reshape(3, 4)),
    "strided array": np.arange(20, dtype="int16").reshape(4, 5)[::2, 1:4],
    "odd arrays": [
        np.array(3.5),
        np.zeros((0, 3)),
        np.array([True, False]),
        np.array(["ab", "c"]),
        np.array([1 + 2j]),
        np.array([np.nan, np.inf], dtype="f2"),
    ],
    "datetimes": [
        MOMENT,
        MOMENT.replace(tzinfo=UTC),
        MOMENT.replace(tzinfo=timezone(timedelta(hours=-9, minutes=-30), "odd")),
        datetime.min,
        datetime.max,
    ],
    "zoned datetime": MOMENT.replace(tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    "dates and times": [
        date(2024, 2, 29),
        time(1, 2, 3, 4, tzinfo=UTC),
        time(23, 59, fold=1),
        timedelta(days=-1, microseconds=7),
        UTC,
        ZoneInfo("Asia/Tokyo"),
    ],
    "decimals": [Decimal("0.10"), Decimal("-0"), Decimal("1E+400"), Decimal("NaN"), Decimal("Infinity")],
    "uuid": UUID(int=7),
    "paths": [Path("a/b"), Path("/"), Path()],
    "addresses": [IPv4Address("127.0.0.1"), IPv6Network("2001:db8::/32")],
    "exception": ValueError("as its repr"),
}
each_value = pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())


def as_official(value: Any) -> Any:
    """Return what LangGraph's serializer makes of a value."""
    serde = JsonPlusSerializer()
    return serde.loads_typed(serde.dumps_typed(value))


@each_value
def test_a_channel_comes_back_as_the_official_serializer_gives_it(saver: threadkeep.KeepSaver, value: Any) -> None:
    channels = {
        "alone": value,
        "in a list": [1, value, "x", value],
        "in a dict": {"k": value, "n": 1},
        "list of one": [value],
        "beside": "unharmed",
    }
    at = put(saver, channels)
    found = values_at(saver, at)
    assert list(found) == list(channels)
    for name, given in channels.items():
        assert same(found[name], as_official(given)), name


@each_value
def test_a_write_comes_back_as_the_official_serializer_gives_it(saver: threadkeep.KeepSaver, value: Any) -> None:
    at = put(saver, {})
    writes = [("a", value), ("b", [value]), ("c", {"k": value})]
    saver.put_writes(at, writes, "task")
    found = saver.get_tuple(at)
    assert found is not None and found.pending_writes is not None
    assert [(task, name) for task, name, _ in found.pending_writes] == [("task", name) for name, _ in writes]
    for (_, name, back), (_, given) in zip(found.pending_writes, writes, strict=True):
        assert same(back, as_official(given)), name


async def test_every_value_comes_back_sync_and_async_and_from_list(saver: threadkeep.KeepSaver, call: Caller) -> None:
    checkpoint = empty_checkpoint() | {"channel_values": VALUES, "channel_versions": dict.fromkeys(VALUES, 1)}
    at = await call(saver, "put", config("t"), checkpoint, {"step": 1}, checkpoint["channel_versions"])
    await call(saver, "put_writes", at, list(VALUES.items()), "task")
    for found in [await call(saver, "get_tuple", at), *await call.every(saver, "list", config("t"))]:
        for name, value in VALUES.items():
            assert same(found.checkpoint["channel_values"][name], as_official(value)), name
        assert same([value for _, _, value in found.pending_writes], [as_official(value) for value in VALUES.values()])


def test_every_value_is_there_in_another_keep(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        at = put(keep.checkpointer, VALUES)
        keep.checkpointer.put_writes(at, list(VALUES.items()), "task")
    with threadkeep.open(lasting_url) as keep:
        found = keep.checkpointer.get_tuple(at)
        assert found is not None and found.pending_writes is not None
        for name, value in VALUES.items():
            assert same(found.checkpoint["channel_values"][name], as_official(value)), name
        assert same([value for _, _, value in found.pending_writes], [as_official(value) for value in VALUES.values()])


def test_every_key_of_a_checkpoint_comes_back(saver: threadkeep.KeepSaver) -> None:
    extras = {
        "pending_sends": [Send("n", 1)],
        "updated_channels": ["b", "a"],
        "a key of tomorrow": {"x": [1]},
        "v": 4,
        "ts": "any text",
    }
    checkpoint = (
        empty_checkpoint()
        | extras
        | {
            "versions_seen": {"node": {"a": 1, "🦜": 2.5}, "": {}},
            "channel_versions": {"a": 1, "s": "0001.5", "f": 2.5},
        }
    )
    at = saver.put(config("t"), checkpoint, {}, {})
    found = saver.get_tuple(at)
    assert found is not None
    assert found.checkpoint == checkpoint


def test_what_the_caller_changes_afterwards_is_not_stored(saver: threadkeep.KeepSaver) -> None:
    messages, write = [HumanMessage("first", id="1")], {"a": [1]}
    at = put(saver, {"messages": messages})
    saver.put_writes(at, [("w", write)], "task")
    messages[0].content = "changed"
    messages.append(HumanMessage("second", id="2"))
    write["a"].append(2)
    found = saver.get_tuple(at)
    assert found is not None
    assert [message.content for message in found.checkpoint["channel_values"]["messages"]] == ["first"]
    assert found.pending_writes == [("task", "w", {"a": [1]})]
    found.checkpoint["channel_values"]["messages"].clear()
    found.metadata["step"] = 99
    again = saver.get_tuple(at)
    assert again is not None
    assert [message.content for message in again.checkpoint["channel_values"]["messages"]] == ["first"]
    assert again.metadata["step"] == 1


@pytest.mark.parametrize(
    "value", [object(), 2**64, -(2**63) - 1, [1, object()], {"a": complex(1, 2)}, {"k": [lambda: None]}]
)
def test_a_value_that_cannot_be_encoded_raises_and_stores_nothing(saver: threadkeep.KeepSaver, value: Any) -> None:
    with pytest.raises(TypeError) as official:
        JsonPlusSerializer().dumps_typed(value)
    with pytest.raises(type(official.value)):
        put(saver, {"good": 1, "bad": value})
    assert saver.get_tuple(config("t")) is None
    at = put(saver, {"good": 1})
    with pytest.raises(type(official.value)):
        saver.put_writes(at, [("good", 1), ("bad", value)], "task")
    found = saver.get_tuple(at)
    assert found is not None
    assert (found.checkpoint["channel_values"], found.pending_writes) == ({"good": 1}, [])


# --- lone surrogates, which LangGraph's serializer replaces by `?`

ODD = "a\ud800b"
SURROGATES: dict[str, Any] = {
    "text": ODD,
    "both halves, in the wrong order": "\udc00\ud800",
    "in a list": ["x", ODD, ["\udfff"]],
    "in a tuple of a set": [{ODD, "x"}],
    "as a key": {ODD: 1, "other": ODD},
    "as a deep key": [{"a": {"b": {ODD: [ODD]}}}],
    "in a large list": [f"{n}\ud800" for n in range(2_000)],
    "in a large dict": {f"{n}\ud800": ODD for n in range(2_000)},
    "as one key of many": {**{str(n): n for n in range(2_000)}, ODD: "\udfff"},
    "in long entries": {"a": "x" * 5_000, "b": ODD * 500, "c": {ODD: "x" * 500}},
    "in a message": HumanMessage(ODD, id="h1", additional_kwargs={ODD: ODD}),
    "in messages": [HumanMessage(f"{n}{ODD}", id=ODD + str(n)) for n in range(40)],
    "in a dataclass": Line([Point(1)], notes={ODD: ODD}),
    "in a model": Outer(inner=Inner(n=1), surplus=ODD),
    "in a named tuple": Pair(ODD, {ODD: 1}),
    "in a send": Send(ODD, {ODD: ODD}),
    "in a snapshot": _DeltaSnapshot([ODD, {ODD: 1}]),
}


@pytest.mark.parametrize("value", SURROGATES.values(), ids=SURROGATES.keys())
def test_a_lone_surrogate_comes_back(saver: threadkeep.KeepSaver, value: Any) -> None:
    at = put(saver, {"alone": value, "in a list": [value, 1]})
    saver.put_writes(at, [("w", value)], "task")
    found = saver.get_tuple(at)
    assert found is not None and found.pending_writes is not None
    assert same(found.checkpoint["channel_values"], {"alone": value, "in a list": [value, 1]})
    assert same(found.pending_writes[0][2], value)


def test_a_lone_surrogate_comes_back_in_names_ids_and_metadata(keep: threadkeep.Keep, tmp_path: Path) -> None:
    saver, thread = keep.checkpointer, config(ODD, ns="\udfff|x")
    checkpoint = empty_checkpoint() | {
        "id": ODD,
        "channel_values": {ODD: "secret text \ud800"},
        "channel_versions": {ODD: 1},
        "versions_seen": {"\udfff": {ODD: 1}},
        "updated_channels": [ODD],
        ODD: ODD,
    }
    given = {"source": ODD, "run_id": "\udfff", ODD: {ODD: [ODD]}, "writes": {ODD: ODD}}
    at = saver.put(thread, checkpoint, given, {ODD: 1})
    saver.put_writes(at, [(ODD, ODD)], ODD, "\udfff")
    (found,) = saver.list(None, filter={ODD: {ODD: [ODD]}, "source": ODD})
    assert found.config["configurable"] | {"run_id": None} == at["configurable"] | {"run_id": None}
    assert found.checkpoint == checkpoint
    assert {key: found.metadata[key] for key in given} == given
    assert found.pending_writes == [(ODD, ODD, ODD)]
    assert [each.id for each in keep.threads(prefix="a\ud800")] == [ODD]
    keep.store.put((ODD, "\udfff"), ODD, {ODD: [ODD]})
    assert [each.key for each in keep.store.search((ODD,), filter={ODD: [ODD]})] == [ODD]
    assert keep.verify().ok
    keep.export(tmp_path / "file.jsonl")
    with threadkeep.open("memory://") as other:
        other.import_portable(tmp_path / "file.jsonl")
        assert list(other.checkpointer.list(None)) == [found]
        memory = other.store.get((ODD, "\udfff"), ODD)
        assert memory is not None and memory.value == {ODD: [ODD]}
    keep.export(tmp_path / "redacted.jsonl", redact=True)
    assert "secret" not in (tmp_path / "redacted.jsonl").read_text()
    saver.delete_thread(ODD)
    assert saver.get_tuple(at) is None


def test_the_bytes_of_a_value_are_those_of_the_official_serializer() -> None:
    for name, value in VALUES.items():
        assert KeepSerializer().dumps_typed(value) == JsonPlusSerializer().dumps_typed(value), name
