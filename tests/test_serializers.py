"""A user's serializer is used: passed to `open`, assigned later, or derived by `with_allowlist`."""

from __future__ import annotations

import json
import operator
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import uuid4

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Send

import threadkeep
from checkpoint_chains import config
from checkpoint_trees import put, values_at
from sync_async import Caller
from threadkeep.engine.log.encoder import encode


class Typed:
    """A user's serializer with LangGraph's typed methods; it counts its calls."""

    def __init__(self) -> None:
        self.dumped = 0

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        self.dumped += 1
        return "turned", pickle.dumps(value)[::-1]

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        assert data[0] == "turned"
        return pickle.loads(data[1][::-1])  # the test's own bytes


class Untyped:
    """The old protocol: only dumps and loads."""

    def dumps(self, value: Any) -> bytes:
        return b"old" + pickle.dumps(value)

    def loads(self, data: bytes) -> Any:
        assert data[:3] == b"old"
        return pickle.loads(data[3:])  # the test's own bytes


class JsonTyped:
    """Bytes that our codec cannot split."""

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        return "json", json.dumps(value).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return json.loads(data[1])


class Mirror:
    """A user's cipher, which LangGraph's CipherProtocol describes. Not a good one."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "mirror", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "mirror"
        return ciphertext[::-1]


def _encrypted_by_the_environment() -> EncryptedSerializer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANGGRAPH_AES_KEY", "0" * 32)
        return EncryptedSerializer.from_pycryptodome_aes()


SERDES: dict[str, Any] = {
    "LANGGRAPH_AES_KEY": _encrypted_by_the_environment,
    "a user's cipher": lambda: EncryptedSerializer(Mirror()),
    "official": JsonPlusSerializer,
    "pickle fallback": lambda: JsonPlusSerializer(pickle_fallback=True),
    "encrypted": lambda: EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 32),
    "encrypted typed": lambda: EncryptedSerializer.from_pycryptodome_aes(serde=Typed(), key=b"0" * 32),
    "typed": Typed,
    "untyped": Untyped,
    "json": JsonTyped,
}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    last: dict[str, Any]


def logging_graph(saver: Any) -> Any:
    builder = StateGraph(Log)
    builder.add_node(
        "node", lambda state: {"log": [f"after {len(state['log'])}"], "last": {"n": len(state["log"]), "none": None}}
    )
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", SERDES.values(), ids=SERDES.keys())
async def test_a_graph_has_the_history_of_in_memory_saver_under_any_serializer(
    url: str, call: Caller, make: Any
) -> None:
    histories = []
    async with threadkeep.open(url, serde=make()) as keep:
        for saver in (keep.checkpointer, InMemorySaver(serde=make())):
            graph = logging_graph(saver)
            for n in range(4):
                await call(graph, "invoke", {"log": [n, "x" * 500]}, config("t"))
            histories.append(
                [
                    (state.values, state.next, state.metadata)
                    for state in await call.every(graph, "get_state_history", config("t"))
                ]
            )
    assert histories[0] == histories[1]


@pytest.mark.parametrize("make", SERDES.values(), ids=SERDES.keys())
def test_another_keep_with_the_same_serializer_reads_the_thread_and_continues(lasting_url: str, make: Any) -> None:
    for n in range(3):
        with threadkeep.open(lasting_url, serde=make()) as keep:
            logging_graph(keep.checkpointer).invoke({"log": [n]}, config("t"))
            at = keep.checkpointer.get_tuple(config("t"))
            assert at is not None
            keep.checkpointer.put_writes(at.config, [("w", [n]), ("none", None)], f"task {n}")
    with threadkeep.open(lasting_url, serde=make()) as keep:
        assert logging_graph(keep.checkpointer).get_state(config("t")).values["log"] == [
            0,
            "after 1",
            1,
            "after 3",
            2,
            "after 5",
        ]
        found = keep.checkpointer.get_tuple(config("t"))
        assert found is not None
        assert found.pending_writes == [("task 2", "w", [2]), ("task 2", "none", None)]


def test_a_users_serializer_is_called_for_every_value(url: str) -> None:
    serde = Typed()
    with threadkeep.open(url, serde=serde) as keep:
        at = put(keep.checkpointer, {"a": {1: {2}}, "b": (1, 2)})
        assert serde.dumped >= 2
        keep.checkpointer.put_writes(at, [("c", complex(1, 2))], "task")
        found = keep.checkpointer.get_tuple(at)
        assert found is not None
        assert (found.checkpoint["channel_values"], found.pending_writes) == (
            {"a": {1: {2}}, "b": (1, 2)},
            [("task", "c", complex(1, 2))],
        )


def test_pickle_fallback_keeps_what_msgpack_cannot(url: str) -> None:
    with threadkeep.open(url, serde=JsonPlusSerializer(pickle_fallback=True)) as keep:
        values = {"alone": complex(1, 2), "in a list": ["x", complex(3, 4)], "in a dict": {"k": range(3)}}
        at = put(keep.checkpointer, values)
        keep.checkpointer.put_writes(at, [("w", complex(5, 6))], "task")
        found = keep.checkpointer.get_tuple(at)
        assert found is not None
        assert (found.checkpoint["channel_values"], found.pending_writes) == (values, [("task", "w", complex(5, 6))])


def test_pickled_values_are_refused_where_pickle_was_not_asked_for(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, serde=JsonPlusSerializer(pickle_fallback=True)) as keep:
        at = put(keep.checkpointer, {"a": complex(1, 2)})
    with threadkeep.open(lasting_url) as keep, pytest.raises(NotImplementedError):
        keep.checkpointer.get_tuple(at)


def stored_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


def test_encrypted_values_are_unreadable_without_their_key(tmp_path: Path) -> None:
    url, secret = f"sqlite:///{tmp_path / 'keep.db'}", uuid4().hex
    with threadkeep.open(url, serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 32)) as keep:
        at = put(keep.checkpointer, {"a": secret, "b": [secret, "x"], "c": {"k": secret}})
        keep.checkpointer.put_writes(at, [("w", secret)], "task")
        assert values_at(keep.checkpointer, at)["b"] == [secret, "x"]
    assert secret.encode() not in stored_bytes(tmp_path)
    with (
        threadkeep.open(url, serde=EncryptedSerializer.from_pycryptodome_aes(key=b"1" * 32)) as keep,
        pytest.raises(threadkeep.errors.Corrupt, match="MAC"),
    ):
        keep.checkpointer.get_tuple(at)
    with threadkeep.open(url) as keep, pytest.raises(NotImplementedError):
        keep.checkpointer.get_tuple(at)


class Colours(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int


@dataclass
class Line:
    ends: list[Point]
    colour: Colours


@pytest.fixture
def typed(saver: threadkeep.KeepSaver) -> Iterator[Typed]:
    """The saver's serializer, replaced after the Keep was opened."""
    serde, before = Typed(), saver.serde
    saver.serde = serde
    yield serde
    saver.serde = before


def test_assigning_another_serializer_takes_effect_at_once(saver: threadkeep.KeepSaver, typed: Typed) -> None:
    at = put(saver, {"a": complex(1, 2)})
    assert saver.serde is typed
    assert typed.dumped > 0
    assert values_at(saver, at) == {"a": complex(1, 2)}


def test_with_allowlist_gives_a_clone_that_shares_the_data(saver: threadkeep.KeepSaver) -> None:
    clone = saver.with_allowlist(
        [(Line.__module__, Line.__name__), (Point.__module__, Point.__name__), (Colours.__module__, Colours.__name__)]
    )
    assert isinstance(clone, threadkeep.KeepSaver)
    line = Line([Point(1)], Colours.RED)
    at = put(clone, {"line": line})
    assert values_at(saver, at) == values_at(clone, at) == {"line": line}
    put(saver, {"line": "from the first"}, id="~")
    assert values_at(clone, config("t")) == {"line": "from the first"}
    clone.delete_thread("t")
    assert saver.get_tuple(config("t")) is None


def test_a_clone_has_its_own_serializer(saver: threadkeep.KeepSaver) -> None:
    clone = saver.with_allowlist([("some.module", "Name")])
    before = saver.serde
    clone.serde = Typed()
    assert saver.serde is before
    at = put(clone, {"a": complex(1, 2)})
    assert values_at(clone, at) == {"a": complex(1, 2)}


def test_a_graph_compiled_with_a_clone_continues_after_the_first_saver_is_gone(url: str) -> None:
    keep = threadkeep.open(url)
    clone = keep.checkpointer.with_allowlist([("some.module", "Name")])
    logging_graph(keep.checkpointer).invoke({"log": [1]}, config("t"))
    assert logging_graph(clone).invoke({"log": [2]}, config("t"))["log"] == [1, "after 1", 2, "after 3"]
    keep.close()


@pytest.mark.parametrize(
    "value",
    [Send("n", {"x": [1]}), [Send("n", None)], Send("n", {"inner": Send("m", 2)}), Send("n", 1, timeout=3.0)],
    ids=["alone", "in a list", "in another", "with a timeout"],
)
def test_sends_are_packed_as_langgraph_packs_them(value: Any) -> None:
    assert encode(value) == JsonPlusSerializer().dumps_typed(value)[1]
