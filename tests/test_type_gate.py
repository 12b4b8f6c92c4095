"""Forged payloads: whoever can write a row can name any callable, and reading must neither import nor call it.

Each payload is encoded as LangGraph's serializer would read it. Forged ones are stored through serializers and objects
that lie about themselves.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableSerializable
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send
from pydantic import BaseModel

import threadkeep
from checkpoint_chains import config
from forged_values import Forged, Forger, ext, packed, store, store_forged
from sync_async import Caller

HERE = __name__
CALLED: list[Any] = []


@dataclass
class Carrier:
    """Allowed: a dataclass of an imported module."""

    n: int
    inner: Any = None


class Model(BaseModel):
    n: int
    inner: Any = None


class Suit(Enum):
    HEARTS = "hearts"


class Named(NamedTuple):
    n: int
    inner: Any = None


class Plain:
    """Not allowed: any class may do anything when it is called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        CALLED.append((args, kwargs))

    def run(self) -> None:
        CALLED.append("run")


class Step(RunnableSerializable[Any, Any]):
    """Not allowed: a pydantic model that is a Runnable."""

    n: int = 0

    def __init__(self, **kwargs: Any) -> None:
        CALLED.append(kwargs)
        super().__init__(**kwargs)

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return input


@dataclass
class Callable_:
    n: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        CALLED.append((args, kwargs))


class NamedCallable(NamedTuple):
    n: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        CALLED.append((args, kwargs))


def function(*args: Any, **kwargs: Any) -> None:
    CALLED.append((args, kwargs))


dataclass_instance = Callable_()
named_instance = NamedCallable()
enum_member_method = Suit.HEARTS.__reduce_ex__


class Amount:
    """What `allowed_types` is for: not a data carrier, stored by a method that LangGraph looks for."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_secret_value(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amount) and other.text == self.text

    __hash__ = None  # type: ignore[assignment]


class Price(Amount):
    """In the same module, with another name."""


@pytest.fixture(autouse=True)
def _nothing_was_called() -> Iterator[None]:
    CALLED.clear()
    yield
    assert CALLED == []


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """A file that every payload tries to create."""
    path = tmp_path / "touched"
    yield path
    assert not path.exists()


@pytest.fixture
def trap(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported, is not, and creates the mark when it is."""
    folder = tmp_path / "importable"
    folder.mkdir()
    (folder / "trap_of_the_gate.py").write_text(
        f"import dataclasses, pathlib\npathlib.Path({str(mark)!r}).touch()\n"
        "@dataclasses.dataclass\nclass Trap:\n    n: int = 0\n"
    )
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    yield "trap_of_the_gate"
    assert sys.modules.pop("trap_of_the_gate", None) is None


SINGLE, POSITIONAL, KEYWORDS, METHOD, PYDANTIC_1, PYDANTIC_2, NUMPY, SNAPSHOT = range(8)

# (code, parts after `module, name`): how an argument is encoded under each extension code
Payload = tuple[int, tuple[Any, ...]]
FORGED: dict[str, Callable[[str, str], Payload]] = {
    "os.system, one argument": lambda mark, trap: (SINGLE, ("os", "system", f"touch {mark}")),
    "os.system, positional": lambda mark, trap: (POSITIONAL, ("os", "system", [f"touch {mark}"])),
    "os.system, keywords": lambda mark, trap: (KEYWORDS, ("os", "system", {"command": f"touch {mark}"})),
    "os.system, method": lambda mark, trap: (METHOD, ("os", "system", f"touch {mark}", "__call__")),
    "posix.system": lambda mark, trap: (SINGLE, ("posix", "system", f"touch {mark}")),
    "Popen, one argument": lambda mark, trap: (SINGLE, ("subprocess", "Popen", ["touch", mark])),
    "Popen, positional": lambda mark, trap: (POSITIONAL, ("subprocess", "Popen", [["touch", mark]])),
    "Popen, keywords": lambda mark, trap: (KEYWORDS, ("subprocess", "Popen", {"args": ["touch", mark]})),
    "Popen, pydantic 1": lambda mark, trap: (PYDANTIC_1, ("subprocess", "Popen", {"args": ["touch", mark]})),
    "Popen, pydantic 2": lambda mark, trap: (
        PYDANTIC_2,
        ("subprocess", "Popen", {"args": ["touch", mark]}, "model_validate_json"),
    ),
    "run, positional": lambda mark, trap: (POSITIONAL, ("subprocess", "run", [["touch", mark]])),
    "eval": lambda mark, trap: (SINGLE, ("builtins", "eval", f"open({mark!r}, 'w')")),
    "exec": lambda mark, trap: (POSITIONAL, ("builtins", "exec", [f"open({mark!r}, 'w')"])),
    "open": lambda mark, trap: (POSITIONAL, ("builtins", "open", [mark, "w"])),
    "type": lambda mark, trap: (POSITIONAL, ("builtins", "type", ["Made", [], {}])),
    "__import__": lambda mark, trap: (SINGLE, ("builtins", "__import__", trap)),
    "import_module": lambda mark, trap: (SINGLE, ("importlib", "import_module", trap)),
    "pickle.loads": lambda mark, trap: (SINGLE, ("pickle", "loads", pickle.dumps(Bomb(mark)))),
    "a method of a safe type": lambda mark, trap: (METHOD, ("pathlib", "PosixPath", mark, "touch")),
    "another method of datetime": lambda mark, trap: (METHOD, ("datetime", "datetime", 0, "fromtimestamp")),
    "a method of a carrier": lambda mark, trap: (METHOD, (HERE, "Carrier", 1, "__init__")),
    "a method of a class": lambda mark, trap: (METHOD, (HERE, "Plain", None, "run")),
    "a function of an imported module": lambda mark, trap: (SINGLE, (HERE, "function", 1)),
    "a plain class": lambda mark, trap: (SINGLE, (HERE, "Plain", 1)),
    "a plain class, keywords": lambda mark, trap: (KEYWORDS, (HERE, "Plain", {"n": 1})),
    "a plain class as a model": lambda mark, trap: (PYDANTIC_2, (HERE, "Plain", {"n": 1}, "model_validate_json")),
    "a runnable model": lambda mark, trap: (PYDANTIC_2, (HERE, "Step", {"n": 1}, "model_validate_json")),
    "a runnable model, keywords": lambda mark, trap: (KEYWORDS, (HERE, "Step", {"n": 1})),
    "a runnable model of pydantic 1": lambda mark, trap: (PYDANTIC_1, (HERE, "Step", {"n": 1})),
    "a callable dataclass instance": lambda mark, trap: (KEYWORDS, (HERE, "dataclass_instance", {"n": 1})),
    "a callable dataclass instance, one argument": lambda mark, trap: (SINGLE, (HERE, "dataclass_instance", 1)),
    "a callable named tuple instance": lambda mark, trap: (KEYWORDS, (HERE, "named_instance", {"n": 1})),
    "a bound method": lambda mark, trap: (SINGLE, (HERE, "enum_member_method", 2)),
    "a module in a module": lambda mark, trap: (SINGLE, (HERE, "sys", 1)),
    "a dotted name": lambda mark, trap: (SINGLE, (HERE, "os.system", f"touch {mark}")),
    "a nested name": lambda mark, trap: (METHOD, (HERE, "os", f"touch {mark}", "system")),
    "no such name": lambda mark, trap: (KEYWORDS, (HERE, "NoSuchName", {"n": 1})),
    "no such module": lambda mark, trap: (KEYWORDS, ("no.such.module", "Name", {"n": 1})),
    "empty names": lambda mark, trap: (KEYWORDS, ("", "", {"n": 1})),
    **{
        f"a module that is not imported, code {code}": lambda mark, trap, code=code: (
            code,
            (trap, "Trap", {"n": 1}, "__call__"),
        )
        for code in (SINGLE, POSITIONAL, KEYWORDS, METHOD, PYDANTIC_1, PYDANTIC_2)
    },
}
each_forged = pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())


class Bomb:
    """Creates the mark when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self.path}",))


def read(saver: threadkeep.KeepSaver, at: dict[str, Any]) -> list[Any]:
    """Read a stored value in every way."""
    found = [saver.get_tuple(at), *saver.list(config("t"))]
    assert len(found) == 2
    pending = [value for each in found if each is not None for _, _, value in each.pending_writes or ()]
    return [each.checkpoint["channel_values"]["a"] for each in found if each is not None] + pending


@each_forged
def test_a_forged_object_comes_back_as_its_plain_data(
    saver: threadkeep.KeepSaver, mark: Path, trap: str, forge: Callable[[str, str], Payload]
) -> None:
    code, parts = forge(str(mark), trap)
    forged = ext(code, *parts)
    assert saver.serde.loads_typed(("msgpack", packed(forged))) == parts[2]
    assert saver.serde.loads_typed(("msgpack", packed([1, {"k": forged}]))) == [1, {"k": parts[2]}]


@each_forged
def test_a_forged_object_in_the_store_comes_back_as_its_plain_data(
    saver: threadkeep.KeepSaver, mark: Path, trap: str, forge: Callable[[str, str], Payload]
) -> None:
    code, parts = forge(str(mark), trap)
    at = store_forged(saver, Forged("msgpack", packed([ext(code, *parts), {"k": ext(code, *parts)}, "x" * 300])))
    assert read(saver, at) == [[parts[2], {"k": parts[2]}, "x" * 300]] * 4


@each_forged
def test_a_forged_object_is_harmless_to_another_keep(
    lasting_url: str, mark: Path, trap: str, forge: Callable[[str, str], Payload]
) -> None:
    code, parts = forge(str(mark), trap)
    with threadkeep.open(lasting_url, serde=Forger()) as keep:
        at = store(keep.checkpointer, Forged("msgpack", packed(ext(code, *parts))))
    with threadkeep.open(lasting_url) as keep:
        assert read(keep.checkpointer, at) == [parts[2]] * 4
    with threadkeep.open(lasting_url, serde=JsonPlusSerializer()) as keep:
        assert read(keep.checkpointer, at) == [parts[2]] * 4


def test_encryption_around_the_serializer_does_not_open_the_gate(lasting_url: str, mark: Path) -> None:
    """EncryptedSerializer passes rows that are not encrypted to the serializer inside it."""
    with threadkeep.open(lasting_url, serde=Forger()) as keep:
        at = store(keep.checkpointer, Forged("msgpack", packed(ext(SINGLE, "os", "system", f"touch {mark}"))))
    with threadkeep.open(lasting_url, serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 32)) as keep:
        assert read(keep.checkpointer, at) == [f"touch {mark}"] * 4


def test_assigning_the_official_serializer_does_not_open_the_gate(saver: threadkeep.KeepSaver, mark: Path) -> None:
    at = store_forged(saver, Forged("msgpack", packed(ext(SINGLE, "os", "system", f"touch {mark}"))))
    saver.serde = JsonPlusSerializer()
    assert read(saver, at) == [f"touch {mark}"] * 4


WRAPPED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a dataclass": (lambda it: ext(KEYWORDS, HERE, "Carrier", {"n": 1, "inner": it}), lambda plain: Carrier(1, plain)),
    "a model": (
        lambda it: ext(PYDANTIC_2, HERE, "Model", {"n": 1, "inner": it}, "model_validate_json"),
        lambda plain: Model(n=1, inner=plain),
    ),
    "a named tuple": (lambda it: ext(KEYWORDS, HERE, "Named", {"n": 1, "inner": it}), lambda plain: Named(1, plain)),
    "a delta snapshot": (lambda it: ormsgpack.Ext(SNAPSHOT, packed([it])), lambda plain: _DeltaSnapshot([plain])),
    "a Send": (lambda it: ext(POSITIONAL, "langgraph.types", "Send", ["node", it]), lambda plain: Send("node", plain)),
    "a message": (
        lambda it: ext(
            PYDANTIC_2,
            "langchain_core.messages.human",
            "HumanMessage",
            {"content": "x", "additional_kwargs": {"k": it}},
            "model_validate_json",
        ),
        lambda plain: HumanMessage("x", additional_kwargs={"k": plain}),
    ),
    "a refused object": (lambda it: ext(KEYWORDS, "subprocess", "Popen", {"args": it}), lambda plain: {"args": plain}),
    "a key's value": (lambda it: {1: {"": it}}, lambda plain: {1: {"": plain}}),
}


@pytest.mark.parametrize(("wrap", "expected"), WRAPPED.values(), ids=WRAPPED.keys())
def test_a_forged_object_inside_an_honest_one_stays_plain(
    saver: threadkeep.KeepSaver, mark: Path, wrap: Callable[[Any], Any], expected: Callable[[Any], Any]
) -> None:
    found = saver.serde.loads_typed(("msgpack", packed(wrap(ext(SINGLE, "os", "system", f"touch {mark}")))))
    assert found == expected(f"touch {mark}")
    assert type(found) is type(expected(None))


def test_an_object_that_lies_about_its_class_is_not_believed(saver: threadkeep.KeepSaver, mark: Path) -> None:
    """With the saver's own serializer, so that lists and dicts are split into items as usual."""
    popen = make_dataclass("Popen", [("args", list[str])], namespace={"__module__": "subprocess"})(["touch", str(mark)])
    system = type("system", (), {"__module__": "os", "get_secret_value": lambda self: f"touch {mark}"})()
    evaluate = type("eval", (), {"__module__": "builtins", "model_dump": lambda self: f"open({str(mark)!r}, 'w')"})()
    plain = [{"args": ["touch", str(mark)]}, f"touch {mark}", f"open({str(mark)!r}, 'w')"]
    lies = [popen, system, evaluate]
    for value, expected in [
        *zip(lies, plain, strict=True),
        (lies * 50, plain * 50),
        (dict(enumerate(lies * 50)), dict(enumerate(plain * 50))),
    ]:
        assert read(saver, store(saver, value)) == [expected] * 4
        saver.delete_thread("t")


def test_metadata_that_lies_about_its_class_is_not_believed(saver: threadkeep.KeepSaver, mark: Path) -> None:
    system = type("system", (), {"__module__": "os", "get_secret_value": lambda self: f"touch {mark}"})()
    at = saver.put(
        config("t"),
        empty_checkpoint(),
        {"source": "loop", "lie": {"in": [system]}, "parents": {}, "writes": {"node": system}},
        {},
    )
    found = [saver.get_tuple(at), *saver.list(config("t"))]
    assert [(each.metadata["lie"], each.metadata["writes"]) for each in found if each is not None] == [
        ({"in": [f"touch {mark}"]}, {"node": f"touch {mark}"})
    ] * 2


async def test_reading_a_forged_row_sync_or_async_calls_nothing(
    saver: threadkeep.KeepSaver, call: Caller, mark: Path, trap: str
) -> None:
    honest, before = saver.serde, set(sys.modules)
    forged = [
        Forged("msgpack", packed(ext(code, *parts)))
        for code, parts in (forge(str(mark), trap) for forge in FORGED.values())
    ]
    saver.serde = Forger()
    names = [f"channel {n}" for n in range(len(forged))]
    checkpoint = empty_checkpoint() | {
        "channel_values": dict(zip(names, forged, strict=True)),
        "channel_versions": dict.fromkeys(names, 1),
    }
    at = await call(saver, "put", config("t"), checkpoint, {}, checkpoint["channel_versions"])
    await call(saver, "put_writes", at, list(zip(names, forged, strict=True)), "task")
    child = await call(saver, "put", at, empty_checkpoint(), {}, {})
    saver.serde = honest
    await call(saver, "get_tuple", at)
    await call.every(saver, "list", None)
    await call(saver, "get_delta_channel_history", config=child, channels=names)
    await call(saver, "copy_thread", "t", "copy")
    await call(saver, "prune", ["t", "copy"])
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] in {trap, "no"}}


def test_a_lazy_attribute_of_a_module_is_not_accessed(
    saver: threadkeep.KeepSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy = ModuleType("lazy_of_the_gate")
    lazy.__getattr__ = lambda name: CALLED.append(name) or Carrier  # type: ignore[method-assign,func-returns-value]
    monkeypatch.setitem(sys.modules, "lazy_of_the_gate", lazy)
    assert saver.serde.loads_typed(("msgpack", packed(ext(KEYWORDS, "lazy_of_the_gate", "Carrier", {"n": 1})))) == {
        "n": 1
    }


def test_a_class_is_not_found_under_the_name_of_a_module_that_only_imports_it(
    saver: threadkeep.KeepSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    borrower = ModuleType("borrower_of_the_gate")
    borrower.Carrier = Carrier  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "borrower_of_the_gate", borrower)
    assert saver.serde.loads_typed(("msgpack", packed(ext(KEYWORDS, "borrower_of_the_gate", "Carrier", {"n": 1})))) == {
        "n": 1
    }


def test_a_blocked_module_is_not_imported(saver: threadkeep.KeepSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.modules[name] = None` is how Python marks a module that must not be imported."""
    monkeypatch.setitem(sys.modules, "blocked_of_the_gate", None)  # type: ignore[arg-type]
    assert saver.serde.loads_typed(("msgpack", packed(ext(KEYWORDS, "blocked_of_the_gate", "Name", {"n": 1})))) == {
        "n": 1
    }


@pytest.mark.parametrize(
    "stored",
    [
        ("msgpack", packed(ext(KEYWORDS, "nowhere_of_the_gate", "Name", {"n": 1}))),
        ("json", b'{"lc": 2, "type": "constructor", "id": ["nowhere_of_the_gate", "Name"], "kwargs": {"n": 1}}'),
    ],
    ids=["msgpack", "json"],
)
def test_a_type_that_is_not_rebuilt_is_reported_once_as_blocked(
    saver: threadkeep.KeepSaver, caplog: pytest.LogCaptureFixture, stored: tuple[str, bytes]
) -> None:
    """The warning contains the word of LangGraph's warning, which people search for in their logs."""
    for _ in range(2):
        saver.serde.loads_typed(stored)
    assert len(caplog.messages) == 1
    assert "Blocked deserialization of nowhere_of_the_gate.Name" in caplog.text
    assert "blocked" in caplog.text


@pytest.mark.parametrize("dtype", ["O", "|O8", [["f", "O"]]], ids=str)
def test_an_array_of_objects_is_not_made_from_bytes(saver: threadkeep.KeepSaver, dtype: Any) -> None:
    found = saver.serde.loads_typed(("msgpack", packed(ext(NUMPY, dtype, [1], "C", b"\x01" * 8))))
    assert not isinstance(found, np.ndarray)


# --- the "json" type of old checkpoints


def constructor(lc: int, path: list[str], **kwargs: Any) -> bytes:
    return json.dumps({"lc": lc, "type": "constructor", "id": path, "kwargs": kwargs}).encode()


JSON_FORGED: dict[str, Callable[[str, str], bytes]] = {
    "lc 2, Popen": lambda mark, trap: constructor(2, ["subprocess", "Popen"], args=["touch", mark]),
    "lc 1, Popen": lambda mark, trap: constructor(1, ["subprocess", "Popen"], args=["touch", mark]),
    "lc 2, os.system": lambda mark, trap: json.dumps(
        {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": [f"touch {mark}"]}
    ).encode(),
    "lc 2, with a method": lambda mark, trap: json.dumps(
        {"lc": 2, "type": "constructor", "id": ["pathlib", "PosixPath"], "method": "touch", "args": [mark]}
    ).encode(),
    "lc 2, not imported": lambda mark, trap: constructor(2, [trap, "Trap"], n=1),
    "lc 1, not imported": lambda mark, trap: constructor(1, [trap, "Trap"], n=1),
    "lc 2, plain class": lambda mark, trap: constructor(2, [HERE, "Plain"], n=1),
    "lc 2, runnable": lambda mark, trap: constructor(2, [HERE, "Step"], n=1),
    "lc 1, runnable": lambda mark, trap: constructor(1, [HERE, "Step"], n=1),
    "lc 1, runnable of langchain": lambda mark, trap: constructor(
        1, ["langchain", "schema", "runnable", "RunnableSequence"], first=None, last=None
    ),
    "lc 1, prompt of langchain": lambda mark, trap: constructor(
        1, ["langchain", "prompts", "prompt", "PromptTemplate"], template="{x}", input_variables=["x"]
    ),
    "lc 2, a function": lambda mark, trap: constructor(2, [HERE, "function"], n=1),
    "lc 3": lambda mark, trap: constructor(3, ["subprocess", "Popen"], args=["touch", mark]),
}


@pytest.mark.parametrize("forge", JSON_FORGED.values(), ids=JSON_FORGED.keys())
def test_forged_json_builds_nothing_that_it_names(
    saver: threadkeep.KeepSaver, mark: Path, trap: str, forge: Callable[[str, str], bytes]
) -> None:
    data = forge(str(mark), trap)
    found = saver.serde.loads_typed(("json", data))
    assert found == json.loads(data) or isinstance(found, Path)
    at = store_forged(saver, Forged("json", data))
    assert read(saver, at) == [found] * 4


def test_a_secret_named_in_json_is_not_read_from_the_environment(
    saver: threadkeep.KeepSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_GATE", "hush")
    data = json.dumps({"a": {"lc": 1, "type": "secret", "id": ["SECRET_OF_THE_GATE"]}}).encode()
    assert "hush" not in repr(saver.serde.loads_typed(("json", data)))


def test_messages_and_safe_types_of_old_json_checkpoints_are_rebuilt(saver: threadkeep.KeepSaver) -> None:
    loads = saver.serde.loads_typed
    assert loads(
        ("json", constructor(1, ["langchain", "schema", "messages", "HumanMessage"], content="x", id="1"))
    ) == HumanMessage("x", id="1")
    assert loads(
        ("json", constructor(1, ["langchain_core", "messages", "ai", "AIMessage"], content="x", id="1"))
    ) == AIMessage("x", id="1")
    assert loads(
        ("json", json.dumps({"lc": 2, "type": "constructor", "id": ["uuid", "UUID"], "args": ["0" * 32]}).encode())
    ) == UUID(int=0)
    assert loads(("json", b'{"plain": [1, {"lc": 1}]}')) == {"plain": [1, {"lc": 1}]}


def test_data_carriers_of_old_json_checkpoints_are_rebuilt(saver: threadkeep.KeepSaver) -> None:
    loads = saver.serde.loads_typed
    assert loads(("json", constructor(2, [HERE, "Carrier"], n=1, inner=[2]))) == Carrier(1, [2])
    assert loads(("json", constructor(2, [HERE, "Model"], n=1))) == Model(n=1)
    assert loads(("json", constructor(2, [HERE, "Named"], n=1))) == Named(1)
    assert (
        loads(("json", json.dumps({"lc": 2, "type": "constructor", "id": [HERE, "Suit"], "args": ["hearts"]}).encode()))
        is Suit.HEARTS
    )


# --- pickle


def test_a_pickle_is_refused_unread(saver: threadkeep.KeepSaver, mark: Path) -> None:
    data = pickle.dumps(Bomb(str(mark)))
    with pytest.raises(NotImplementedError):
        saver.serde.loads_typed(("pickle", data))
    at = store_forged(saver, Forged("pickle", data))
    with pytest.raises(NotImplementedError):
        saver.get_tuple(at)
    with pytest.raises(NotImplementedError):
        list(saver.list(config("t")))


@pytest.mark.parametrize("kind", ["", "no such type", "msgpack+aes", "eval", "Pickle"])
def test_an_unknown_type_of_bytes_is_an_error_and_not_an_empty_value(saver: threadkeep.KeepSaver, kind: str) -> None:
    at = store_forged(saver, Forged(kind, b"\x01"))
    with pytest.raises(NotImplementedError):
        saver.get_tuple(at)


# --- what the gate allows


def test_data_carriers_of_imported_modules_are_rebuilt(saver: threadkeep.KeepSaver) -> None:
    carriers = [
        Carrier(1, Carrier(2)),
        Model(n=1, inner={"k": 1}),
        Suit.HEARTS,
        Named(1, "x"),
        HumanMessage("x", id="1"),
        Send("n", Carrier(3)),
        UUID(int=1),
    ]
    for found in read(saver, store(saver, carriers)):
        assert found == carriers
        assert [type(each) for each in found] == [type(each) for each in carriers]


def test_a_carrier_whose_fields_changed_comes_back_as_its_plain_data(saver: threadkeep.KeepSaver) -> None:
    assert saver.serde.loads_typed(("msgpack", packed(ext(KEYWORDS, HERE, "Carrier", {"renamed": 1})))) == {
        "renamed": 1
    }
    assert saver.serde.loads_typed(("msgpack", packed(ext(SINGLE, HERE, "Suit", "no such suit")))) == "no such suit"


def test_a_type_that_is_not_allowed_comes_back_as_its_plain_data(saver: threadkeep.KeepSaver) -> None:
    assert read(saver, store(saver, [Amount("5"), {"k": Amount("6")}])) == [["5", {"k": "6"}]] * 4


@pytest.mark.parametrize("allowed", [Amount, (HERE, "Amount"), f"{HERE}.Amount"], ids=["class", "pair", "dotted"])
def test_allowed_types_lets_in_exactly_the_names_that_it_lists(url: str, allowed: Any) -> None:
    with threadkeep.open(url, allowed_types=[allowed]) as keep:
        value = [Amount("5"), Price("6"), Carrier(1, Amount("7"))]
        for found in read(keep.checkpointer, store(keep.checkpointer, value)):
            assert found == [Amount("5"), "6", Carrier(1, Amount("7"))]
            assert type(found[0]) is Amount


def test_allowed_types_does_not_open_the_methods_of_a_type(url: str) -> None:
    with threadkeep.open(url, allowed_types=[Amount, Plain]) as keep:
        assert keep.checkpointer.serde.loads_typed(("msgpack", packed(ext(METHOD, HERE, "Plain", "x", "run")))) == "x"


def test_an_allowed_type_is_rebuilt_in_a_keep_that_allows_it_and_plain_in_one_that_does_not(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, allowed_types=[Amount]) as keep:
        at = store(keep.checkpointer, Amount("5"))
        assert read(keep.checkpointer, at) == [Amount("5")] * 4
    with threadkeep.open(lasting_url) as keep:
        assert read(keep.checkpointer, at) == ["5"] * 4
    with threadkeep.open(lasting_url, serde=JsonPlusSerializer(allowed_msgpack_modules=[Amount])) as keep:
        assert read(keep.checkpointer, at) == [Amount("5")] * 4


@pytest.mark.parametrize("wrong", [5, None, "nodots", ("one",), ("a", "b", "c")], ids=str)
def test_an_allowed_type_that_is_no_name_is_refused_when_the_keep_is_opened(url: str, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        threadkeep.open(url, allowed_types=[wrong])


def test_with_allowlist_lets_in_the_names_that_it_lists(saver: threadkeep.KeepSaver) -> None:
    at = store(saver, Amount("5"))
    clone: Any = saver.with_allowlist([(HERE, "Amount")])
    assert read(clone, at) == [Amount("5")] * 4
    assert read(saver, at) == ["5"] * 4
