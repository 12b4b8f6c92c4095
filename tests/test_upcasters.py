"""Classes that were renamed, moved or changed after their objects were stored: `upcasters=` and `Keep.types`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pydantic import BaseModel, Field

import processes
import threadkeep
from checkpoint_chains import config
from damage import flip_byte, rows_opener
from forged_values import Forged, Forger, ext, packed, store, store_forged
from sync_async import Caller
from test_delta_graphs import build as delta_graph
from threadkeep.engine.log.itemlog import FIRST_CHANNEL, unseal_item

V1 = """
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from pydantic import BaseModel

class Colour(Enum):
    CRIMSON = "crimson"

@dataclass
class Line:
    article: str
    colour: Colour

class Order(BaseModel):
    number: int
    note: str

class Point(NamedTuple):
    x: int
    y: int
"""
V2 = """
from dataclasses import dataclass
from enum import Enum
from pydantic import BaseModel

class Color(Enum):
    RED = "red"

@dataclass
class Item:
    sku: str
    color: Color
    amount: int = 1

class OrderV2(BaseModel):
    number: str
    notes: list[str]

@dataclass
class Place:
    x: int
    y: int
"""
STORE = """
import sys
sys.path.insert(0, sys.argv[2])
import threadkeep
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from shop_v1 import Colour, Line, Order, Point

line = Line("tea", Colour.CRIMSON)
values = {
    "line": line,
    "list": [line, {"deep": [Order(number=7, note="x" * 400)]}],
    "points": [Point(n, -n) for n in range(40)],
    "delta": _DeltaSnapshot([line]),
    "large": [Order(number=n, note=str(n) * 9000) for n in range(3)],
}
with threadkeep.open(sys.argv[1]) as keep:
    at = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    versions = dict.fromkeys(values, 1)
    checkpoint = empty_checkpoint() | {"channel_values": values, "channel_versions": versions}
    at = keep.checkpointer.put(at, checkpoint, {"source": "loop", "step": 1}, versions)
    keep.checkpointer.put_writes(at, [("line", line), ("list", [Order(number=8, note="w")])], "task")
"""
READ = """
import sys
sys.path.insert(0, sys.argv[2])
import threadkeep
from shop_v2 import Color, Item, OrderV2

assert "shop_v1" not in sys.modules
upcasters = {
    "shop_v1.Colour": lambda value: Color({"crimson": "red"}.get(value, value)),
    "shop_v1:Line": lambda fields: Item(fields["article"], fields["colour"]),
    ("shop_v1", "Order"): lambda fields: OrderV2(number=str(fields["number"]), notes=[fields["note"][:2]]),
    "shop_v1.Point": "shop_v2.Place",
}
with threadkeep.open(sys.argv[1], upcasters=upcasters) as keep:
    at = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    latest = keep.checkpointer.get_tuple(at)
    assert [each.checkpoint for each in keep.checkpointer.list(at)] == [latest.checkpoint]
    values = latest.checkpoint["channel_values"]
    for name in ("line", "list", "delta", "large"):
        print(name, values[name])
    print("points", values["points"][-1], len(values["points"]))
    print("writes", [value for _, _, value in latest.pending_writes])
    latest.checkpoint["id"] += "-next"
    versions = {name: 2 for name in values}
    latest.checkpoint["channel_versions"] = versions
    keep.checkpointer.put(latest.config, latest.checkpoint, {"source": "loop", "step": 2}, versions)
with threadkeep.open(sys.argv[1]) as keep:  # what is stored now needs no upcaster
    assert keep.checkpointer.get_tuple(at).checkpoint["channel_values"] == values
    print([(each.name, each.status) for each in keep.types().types])
"""
READ_BACK = """line Item(sku='tea', color=<Color.RED: 'red'>, amount=1)
list [Item(sku='tea', color=<Color.RED: 'red'>, amount=1), {'deep': [OrderV2(number='7', notes=['xx'])]}]
delta _DeltaSnapshot(value=[Item(sku='tea', color=<Color.RED: 'red'>, amount=1)])
large [OrderV2(number='0', notes=['00']), OrderV2(number='1', notes=['11']), OrderV2(number='2', notes=['22'])]
points Place(x=39, y=-39) 40
writes [Item(sku='tea', color=<Color.RED: 'red'>, amount=1), [OrderV2(number='8', notes=['w'])]]
"""


def test_classes_that_were_renamed_and_changed_are_read_by_another_process(lasting_url: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    (old / "shop_v1.py").write_text(V1)
    (new / "shop_v2.py").write_text(V2)
    processes.run_forked(STORE, lasting_url, old)
    found = processes.run_forked(READ, lasting_url, new)
    types = found.splitlines()[-1]
    assert found == READ_BACK + types + "\n"
    assert "('shop_v1.Order', 'no such module')" in types
    assert "('shop_v2.OrderV2', 'imported')" in types


# --- in one process


@dataclass
class New:
    n: int
    inner: Any = None
    tags: list[str] = field(default_factory=list)


class Suit(Enum):
    HEARTS = "hearts"


class Pair(NamedTuple):
    a: int
    b: int


class Model(BaseModel):
    number: int = Field(alias="nr")


class Counts:
    """A class that is no data carrier; counts what is called."""

    called: list[Any] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args or tuple(kwargs.items())
        Counts.called.append(self.args)

    @classmethod
    def run(cls, *args: Any) -> None:
        cls.called.append(("run", args))


def old_class(*fields: str, name: str = "Old") -> Any:
    """Return a dataclass of a module that is gone."""
    return make_dataclass(name, fields, namespace={"__module__": "gone_module"})


def stored(value: Any, url: str = "memory://", **options: Any) -> tuple[threadkeep.Keep, Any]:
    keep = threadkeep.open(url, **options)
    return keep, store(keep.checkpointer, value)


def forged_keep(folder: Path, rows: dict[str, Forged], **options: Any) -> threadkeep.Keep:
    """Return a Keep on a file with threads of forged rows."""
    url = f"sqlite:///{folder / 'forged.db'}"
    with threadkeep.open(url) as keep:
        for thread, row in rows.items():
            store_forged(keep.checkpointer, row, thread=thread)
    return threadkeep.open(url, **options)


def read(keep: threadkeep.Keep, at: Any) -> Any:
    found = keep.checkpointer.get_tuple(at)
    assert found is not None
    assert found.pending_writes is not None
    value = found.checkpoint["channel_values"]["a"]
    assert found.pending_writes[0][2] == value
    return value


@pytest.mark.parametrize("serde", [None, JsonPlusSerializer(), JsonPlusSerializer(allowed_msgpack_modules=[Pair])])
def test_an_old_name_becomes_the_new_class(url: str, serde: Any) -> None:
    keep, at = stored(
        [old_class("n", "inner")(1, old_class("n")(2))], url, serde=serde, upcasters={"gone_module.Old": New}
    )
    with keep:
        assert read(keep, at) == [New(1, New(2))]


def test_upcasters_work_under_an_encrypted_serializer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
    serde = EncryptedSerializer.from_pycryptodome_aes()
    keep, at = stored(old_class("n")(1), serde=serde, upcasters={"gone_module.Old": New})
    with keep:
        assert read(keep, at) == New(1)


@pytest.mark.parametrize(
    ("old", "upcaster", "expected"),
    [
        (old_class("n")(1), lambda fields: fields, {"n": 1}),
        (old_class("n")(1), f"{__name__}.New", New(1)),
        (old_class("n")(1), (__name__, "New"), New(1)),
        (old_class("number")(5), Model, Model(nr=5)),
    ],
)
def test_an_upcaster_is_a_class_a_name_or_a_function(old: Any, upcaster: Any, expected: Any) -> None:
    keep, at = stored(old, upcasters={"gone_module.Old": upcaster})
    with keep:
        assert read(keep, at) == expected


@pytest.mark.parametrize(
    ("upcasters", "expected"),
    [
        ({"gone_module.Old": "gone_module.Mid", "gone_module.Mid": New}, New(1)),
        ({"gone_module.Old": "gone_module.Mid", "gone_module.Mid": lambda fields: New(fields["n"] + 1)}, New(2)),
        ({"gone_module.Old": New, New: lambda fields: New(fields["n"] + 1)}, New(2)),
        ({"gone_module.Old": New, New: New}, New(1)),
        ({"gone_module.Old": New, New: "gone_module.Old"}, New(1)),
    ],
)
def test_a_class_that_was_changed_again_becomes_the_last_one(upcasters: Any, expected: Any) -> None:
    keep, at = stored(old_class("n")(1), upcasters=upcasters)
    with keep:
        assert read(keep, at) == expected
        assert [each.status for each in keep.types().types] == ["upcast"]


@pytest.mark.parametrize(
    ("code", "data", "expected"),
    [(0, ["hearts"], "hearts"), (1, [[1, 2]], [1, 2]), (2, [{"a": 1}], {"a": 1}), (5, [{"a": 1}, "m"], {"a": 1})],
)
def test_a_function_gets_the_stored_data(tmp_path: Path, code: int, data: list[Any], expected: Any) -> None:
    got: list[Any] = []

    def upcaster(stored: Any) -> str:
        got.append(stored)
        return "done"

    row = Forged("msgpack", packed(ext(code, "gone", "Old", *data)))
    with forged_keep(tmp_path, {"t": row}, upcasters={"gone.Old": upcaster}) as keep:
        assert read(keep, config("t")) == "done"
    assert got == [expected] * 2


def test_a_renamed_field_of_a_class_that_kept_its_name_is_upcast() -> None:
    keep, at = stored(New(1), upcasters={New: lambda fields: New(fields["n"] + 1)})
    with keep:
        assert read(keep, at) == New(2)


def test_enums_and_named_tuples_are_upcast() -> None:
    upcasters = {Suit: lambda value: f"suit {value}", Pair: lambda fields: (fields["b"], fields["a"])}
    keep, at = stored([Suit.HEARTS, Pair(1, 2)], upcasters=upcasters)
    with keep:
        assert read(keep, at) == ["suit hearts", (2, 1)]


def test_objects_that_old_savers_stored_as_json_are_upcast(tmp_path: Path) -> None:
    row = json.dumps({"lc": 2, "type": "constructor", "id": ["gone", "Old"], "kwargs": {"n": 3}}).encode()
    with forged_keep(tmp_path, {"t": Forged("json", row)}, upcasters={"gone.Old": New}) as keep:
        assert read(keep, config("t")) == New(3)


def test_an_unknown_class_is_still_read_as_plain_data(url: str) -> None:
    keep, at = stored(old_class("n", name="Other")(1), url, upcasters={"gone_module.Old": New})
    with keep:
        assert read(keep, at) == {"n": 1}


def fill_delta_thread(saver: threadkeep.KeepSaver) -> Any:
    """Put a write, a stored value and another write of a delta channel. Return the config of the checkpoint after."""
    old = old_class("n")
    at = saver.put(config("t"), empty_checkpoint(), {}, {})
    saver.put_writes(at, [("delta", old(2))], "task")
    values = {"channel_values": {"delta": _DeltaSnapshot([old(1)])}, "channel_versions": {"delta": 1}}
    at = saver.put(at, empty_checkpoint() | values, {}, {"delta": 1})
    saver.put_writes(at, [("delta", old(3))], "task")
    return saver.put(at, empty_checkpoint(), {}, {})


async def test_history_and_delta_history_are_upcast(url: str, call: Caller) -> None:
    async with threadkeep.open(url, upcasters={"gone_module.Old": New}) as keep:
        saver = keep.checkpointer
        at = await asyncio.to_thread(fill_delta_thread, saver)
        values = [each.checkpoint["channel_values"] for each in await call.every(saver, "list", config("t"))]
        assert values == [{}, {"delta": _DeltaSnapshot([New(1)])}, {}]
        history = await call(saver, "get_delta_channel_history", config=at, channels=["delta"])
        assert history["delta"]["seed"] == _DeltaSnapshot([New(1)])
        assert [value for _, _, value in history["delta"]["writes"]] == [New(3)]


def test_a_clone_with_an_allowlist_upcasts_too(url: str) -> None:
    keep, at = stored([old_class("n")(1), Suit.HEARTS], url, upcasters={"gone_module.Old": New})
    with keep:
        found = keep.checkpointer.with_allowlist([]).get_tuple(at)
        assert found is not None
        assert found.checkpoint["channel_values"]["a"] == [New(1), "hearts"]


def test_a_serializer_that_is_assigned_later_upcasts_too() -> None:
    keep, at = stored(old_class("n")(1), upcasters={"gone_module.Old": New})
    with keep:
        keep.checkpointer.serde = JsonPlusSerializer()
        assert read(keep, at) == New(1)


def test_savers_with_different_upcasters_share_no_decoded_messages(lasting_url: str) -> None:
    messages = [HumanMessage(f"text {n}", id=f"m{n}") for n in range(100)]
    shout: dict[Any, Any] = {HumanMessage: lambda fields: AIMessage(fields["content"].upper(), id=fields["id"])}
    keep, at = stored(messages, lasting_url)
    with keep, threadkeep.open(lasting_url, upcasters=shout) as loud:
        for _ in range(4):
            assert read(keep, at) == messages
            assert read(loud, at) == [AIMessage(each.text.upper(), id=each.id) for each in messages]
        changed = read(loud, at)
        store(loud.checkpointer, changed, thread="copy")
        assert read(keep, config("copy")) == changed


def test_a_graph_with_a_delta_channel_goes_on_with_upcast_messages() -> None:
    with threadkeep.open(
        "memory://", upcasters={HumanMessage: lambda fields: AIMessage(**fields | {"type": "ai"})}
    ) as keep:
        graph = delta_graph(keep.checkpointer, frequency=3)
        for n in range(5):
            state = graph.invoke({"messages": [HumanMessage(f"text {n}", id=f"h{n}")]}, config("t"))
        assert {type(each) for each in state["messages"] if each.id != "h4"} == {AIMessage}


# --- what goes wrong


def raise_key_error(fields: Any) -> Any:
    raise KeyError("secret value")


async def test_an_upcaster_that_raises_names_the_class_and_the_value(url: str, call: Caller) -> None:
    value = {"deep": [old_class("n")(1)]}
    keep, at = await asyncio.to_thread(stored, value, url, upcasters={"gone_module.Old": raise_key_error})
    async with keep:
        for verb in ("get_tuple", "list"):
            with pytest.raises(threadkeep.errors.UpcastFailed) as failed:
                await (call.every(keep.checkpointer, verb, at) if verb == "list" else call(keep.checkpointer, verb, at))
            text = str(failed.value)
            assert "channel 'a'" in text
            assert "upcaster of gone_module.Old raised KeyError" in text
            assert "secret" not in text
            assert isinstance(failed.value.__cause__, KeyError)
        assert (await call(keep, "show", "t")).values["a"] == {"deep": [{"$type": "gone_module.Old", "n": 1}]}
        assert (await call(keep, "verify")).ok


@pytest.mark.parametrize("upcaster", [Pair, "no_such_module.New", f"{__name__}.NoSuchClass", Model])
def test_a_class_that_cannot_take_the_stored_data_is_an_error(upcaster: Any) -> None:
    keep, at = stored(old_class("n")(1), upcasters={"gone_module.Old": upcaster})
    with keep, pytest.raises(threadkeep.errors.UpcastFailed, match=r"gone_module\.Old"):
        keep.checkpointer.get_tuple(at)


def test_an_error_of_an_upcaster_is_not_taken_for_damage_of_another_value(tmp_path: Path) -> None:
    rows = {"fails": Forged("msgpack", packed(ext(0, "gone", "Old", 1))), "damaged": Forged("msgpack", b"\xc1")}
    with forged_keep(tmp_path, rows, upcasters={"gone.Old": raise_key_error}) as keep:
        for _ in range(2):
            with pytest.raises(threadkeep.errors.UpcastFailed):
                keep.checkpointer.get_tuple(config("fails"))
            with pytest.raises(threadkeep.errors.Corrupt):
                keep.checkpointer.get_tuple(config("damaged"))


@pytest.mark.parametrize(
    ("upcasters", "error"),
    [
        (["gone.Old"], TypeError),
        ({"gone.Old": 1}, TypeError),
        ({"Old": New}, ValueError),
        ({"gone.Old": "New"}, ValueError),
        ({("gone", "Old", "x"): New}, ValueError),
    ],
)
def test_upcasters_are_checked_when_the_keep_is_opened(upcasters: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        threadkeep.open("memory://", upcasters=upcasters)


def test_a_serializer_without_a_type_gate_takes_no_upcasters() -> None:
    class Own(JsonPlusSerializer):
        pass

    with pytest.raises(ValueError, match="upcasters need LangGraph's serializer"):
        threadkeep.open("memory://", serde=Own(), upcasters={"gone.Old": New})


# --- the gate


def test_a_forged_row_can_only_use_the_upcasters_that_were_given(tmp_path: Path) -> None:
    forged = [ext(3, "gone", "Old", [1], "run"), ext(0, "this", "s", "x"), ext(0, __name__, "Counts", "x")]
    rows = {str(n): Forged("msgpack", packed(each)) for n, each in enumerate(forged)}
    with forged_keep(tmp_path, rows, upcasters={"gone.Old": Counts}) as keep:
        assert [read(keep, config(thread)) for thread in rows] == [[1], "x", "x"]
    assert Counts.called == []
    assert "this" not in sys.modules


# --- Keep.types


def by_name(found: threadkeep.StoredTypes) -> dict[str, threadkeep.StoredType]:
    return {each.name: each for each in found.types}


def fill_with_classes(saver: threadkeep.KeepSaver) -> str:
    """Store objects of several classes in three threads. Return the id of the newest checkpoint of the first."""
    shared = [old_class("n")(n) for n in range(20)]
    values = {"channel_values": {"a": shared}, "channel_versions": {"a": 1}}
    at = saver.put(config("t"), empty_checkpoint() | values, {}, {"a": 1})
    missing = old_class("n", name="Missing")("x" * 500_000)
    versions = {"a": 2, "b": 1, "c": 1}
    values = {"channel_values": {"a": [*shared, New(1)], "b": missing, "c": Suit.HEARTS}, "channel_versions": versions}
    at = saver.put(at, empty_checkpoint() | values, {}, versions)
    saver.put_writes(at, [("d", [HumanMessage("hi")])], "task")
    saver.serde = Forger()
    store(saver, Forged("msgpack", packed(ext(2, "xml.dom.expatbuilder", "Gone", {"n": 1}))), thread="forged")
    store(saver, Forged("pickle", b"cos\nsystem\n"), thread="pickled")
    return str(at["configurable"]["checkpoint_id"])


async def test_types_lists_each_stored_class_with_what_would_happen_to_it(
    fresh_url: Callable[[], str], call: Caller
) -> None:
    async with threadkeep.open(fresh_url()) as keep:
        newest = await asyncio.to_thread(fill_with_classes, keep.checkpointer)
        found = await call(keep, "types")
        types = by_name(found)
        assert (found.threads, found.damaged, found.skipped) == (3, (), ())
        old, missing = types["gone_module.Old"], types["gone_module.Missing"]
        assert (old.objects, old.threads, old.channels, old.loads) == (20, 1, ("a",), False)
        assert (missing.status, missing.thread, missing.channel) == ("no such module", "t", "b")
        assert (missing.checkpoint, missing.task) == (newest, None)
        assert (types[f"{__name__}.New"].status, types[f"{__name__}.Suit"].status) == ("imported", "imported")
        message = types["langchain_core.messages.human.HumanMessage"]
        assert (message.status, message.loads, message.channel, message.task) == ("safe", True, "d", "task")
        assert types["xml.dom.expatbuilder.Gone"].status == "no such class"
        assert (types["pickle"].status, types["pickle"].objects, types["pickle"].threads) == ("not allowed", 2, 1)
        loads = [each.loads for each in found.types]
        assert loads == sorted(loads)
        assert {each.thread for each in (await call(keep, "types", "forged")).types} == {"forged"}
        assert (await call(keep, "types", prefix="p")).threads == 1
        with pytest.raises(threadkeep.errors.Missing):
            await call(keep, "types", "nobody")
    assert "xml.dom.expatbuilder" not in sys.modules


def test_types_knows_upcasters_and_allowed_types() -> None:
    allowed: Any = [("gone_module", "Gone"), ("xml.dom.expatbuilder", "Node")]
    values = [
        make_dataclass(name, ["n"], namespace={"__module__": module})(1) for module, name in [*allowed, ("a.b", "C")]
    ]
    values += [old_class("n")(1), old_class("n", name="Lost")(1)]
    upcasters: Any = {"gone_module.Old": New, "gone_module.Lost": "no.such.module.Thing", "a.b.C": f"{__name__}.New"}
    keep, _ = stored(values, upcasters=upcasters, allowed_types=allowed)
    with keep:
        assert {each.name: each.status for each in keep.types().types} == {
            "gone_module.Gone": "no such module",
            "xml.dom.expatbuilder.Node": "allowed",
            "a.b.C": "upcast",
            "gone_module.Old": "upcast",
            "gone_module.Lost": "no such module",
        }
    assert "xml.dom.expatbuilder" not in sys.modules


def test_types_leaves_the_verdict_to_another_serializer() -> None:
    class Own(JsonPlusSerializer):
        pass

    keep, _ = stored(New(1), serde=Own())
    with keep:
        assert [(each.status, each.loads) for each in keep.types().types] == [("decided by the serializer", None)]


def test_types_says_why_a_class_is_not_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("odd_module")
    module.Function = lambda: None  # type: ignore[attr-defined]
    module.Plain = type("Plain", (), {"__module__": "odd_module"})  # type: ignore[attr-defined]
    module.Data = old_class("n", name="Data")  # type: ignore[attr-defined]
    module.Data.__module__ = "odd_module"
    monkeypatch.setitem(sys.modules, "odd_module", module)
    expected = {
        "odd_module.Function": "no such class",
        "odd_module.Plain": "not a data class",
        "odd_module.Data": "stored in another form",
        "odd_module.Gone": "no such class",
        "xml.dom.pulldom.PullDOM": "not imported",
        "no.such.module.Thing": "no such module",
    }
    assert "xml.dom.pulldom" not in sys.modules
    with threadkeep.open("memory://") as keep:
        forged = [ext(5, *name.rsplit(".", 1), {"n": 1}, "m") for name in expected]
        at = store_forged(keep.checkpointer, Forged("msgpack", packed(forged)))
        found = by_name(keep.types())
        assert {name: each.status for name, each in found.items()} == expected
        assert not any(each.loads for each in found.values())
        plain = read(keep, at)
        assert plain == [{"n": 1}] * len(expected)
    assert "xml.dom.pulldom" not in sys.modules


def test_types_reads_what_is_left_of_a_damaged_thread(keep: threadkeep.Keep, url: str) -> None:
    for thread in ("damaged", "intact"):
        store(keep.checkpointer, [old_class("n")("x" * 300), Pair(1, 2)], thread=thread)
        store(keep.checkpointer, old_class("n", name="Other")("y" * 300), thread=thread)
    rows = rows_opener(url)(keep, "damaged")
    row = max(rows.checkpoints(), key=lambda each: each.id)
    rows.set_checkpoint(row, row._replace(body=flip_byte(row.body)))
    for at, data in rows.items().items():
        if at.lane >= FIRST_CHANNEL and b"Pair" in unseal_item(at, data, "", rows.thread().family).data:
            rows.set_item(at, flip_byte(data))
    progress: list[Any] = []
    found = keep.types(on_progress=lambda *step: progress.append(step))
    assert (found.damaged, found.skipped, found.threads) == (("damaged",), (), 2)
    types = by_name(found)
    assert (types["gone_module.Old"].threads, types["gone_module.Other"].threads) == (2, 2)  # writes have it too
    assert types[f"{__name__}.Pair"].threads == 1
    assert progress == [(0, 2, "damaged"), (1, 2, "intact")]
