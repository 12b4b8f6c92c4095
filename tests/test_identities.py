"""Ids, names and metadata come back exactly, and no two different ones are confused."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
)
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver

import threadkeep
from checkpoint_chains import config, list_ids
from checkpoint_trees import put, values_at
from strict_equality import same
from sync_async import Caller

MOMENT = datetime(2024, 3, 31, 1, 30, 59, 123456)

ODD = [
    "",
    " ",
    "\0",
    "a\0b",
    "a\0",
    "a",
    "A",
    "🦜",
    "é",
    "e\u0301",
    "%",
    "_",
    "a%",
    "a/b",
    "a:b|c",
    "'; drop table items; --",
    '"',
    "\\",
    "\n",
    "NULL",
    "None",
    "0",
    "00",
    "\uffff",
    "x" * 10_000,
    "x" * 9_999,
]
SURROGATES = ["\ud800", "a\udfffb"]


def test_odd_thread_ids_are_all_different_threads(saver: threadkeep.KeepSaver) -> None:
    names = [*ODD, *SURROGATES]
    for n, name in enumerate(names):
        at = put(saver, {"n": n}, thread=name)
        assert at["configurable"]["thread_id"] == name
        saver.put_writes(at, [("w", n)], "task")
    for n, name in enumerate(names):
        found = saver.get_tuple(config(name))
        assert found is not None
        assert (
            found.config["configurable"]["thread_id"],
            found.checkpoint["channel_values"],
            found.pending_writes,
        ) == (name, {"n": n}, [("task", "w", n)])
        assert len(list_ids(saver, name)) == 1
    assert {found.config["configurable"]["thread_id"] for found in saver.list(None)} == set(names)
    for n, name in enumerate(names):
        saver.delete_thread(name)
        assert saver.get_tuple(config(name)) is None
        assert len(list_ids(saver, None)) == len(names) - n - 1


def test_odd_thread_ids_are_copied_and_pruned_separately(saver: threadkeep.KeepSaver) -> None:
    put(saver, {"n": "source"}, thread="source")
    for name in [*ODD, *SURROGATES]:
        saver.copy_thread("source", name)
    saver.prune(ODD, strategy="delete")
    assert {found.config["configurable"]["thread_id"] for found in saver.list(None)} == {"source", *SURROGATES}


def test_odd_namespaces_are_all_different_namespaces(saver: threadkeep.KeepSaver) -> None:
    names = [*ODD, *SURROGATES]
    for n, name in enumerate(names):
        put(saver, {"n": n}, ns=name)
    for n, name in enumerate(names):
        found = saver.get_tuple(config("t", ns=name))
        assert found is not None
        assert (found.config["configurable"]["checkpoint_ns"], found.checkpoint["channel_values"]) == (name, {"n": n})
        assert [other.config["configurable"]["checkpoint_ns"] for other in saver.list(config("t", ns=name))] == [name]


def test_odd_checkpoint_ids_come_back_in_the_order_of_python_strings(saver: threadkeep.KeepSaver) -> None:
    names = [name for name in [*ODD, *SURROGATES, "😀", "\ue000", "b"] if name]
    for n, name in enumerate(names):
        put(saver, {"n": n}, id=name)
        assert values_at(saver, config("t", name)) == {"n": n}
    assert list_ids(saver, "t") == sorted(names, reverse=True)
    assert values_at(saver, config("t")) == {"n": names.index(max(names))}
    for name in names:
        assert list_ids(saver, "t", before=config("t", name)) == [
            other for other in sorted(names, reverse=True) if other < name
        ]


def test_an_empty_checkpoint_id_in_a_config_means_the_latest(saver: threadkeep.KeepSaver) -> None:
    put(saver, {"n": 1}, id="1")
    put(saver, {"n": 2}, id="2")
    assert values_at(saver, config("t", "")) == {"n": 2}


def test_an_empty_checkpoint_id_of_a_checkpoint_is_kept_or_refused(saver: threadkeep.KeepSaver) -> None:
    put(saver, {"n": 1}, id="1")
    try:
        put(saver, {"n": 0}, id="")
    except ValueError:
        assert list_ids(saver, "t") == ["1"]
    else:
        assert list_ids(saver, "t") == ["1", ""]


def test_odd_task_ids_paths_and_channels_come_back(saver: threadkeep.KeepSaver) -> None:
    at = put(saver, dict.fromkeys(ODD, "value"))
    for name in [*ODD, *SURROGATES]:
        saver.put_writes(at, [(channel, [name, channel]) for channel in ODD], f"task {name}", f"path {name}")
    found = saver.get_tuple(at)
    assert found is not None and found.pending_writes is not None
    assert found.checkpoint["channel_values"] == dict.fromkeys(ODD, "value")
    assert found.checkpoint["channel_versions"] == dict.fromkeys(ODD, 1)
    in_order = sorted([*ODD, *SURROGATES], key=lambda name: f"path {name}")
    assert [(task, channel) for task, channel, _ in found.pending_writes] == [
        (f"task {name}", channel) for name in in_order for channel in ODD
    ]
    assert {
        (task, value[0]) for task, _, value in found.pending_writes if "\ud800" not in task and "\udfff" not in task
    } == {(f"task {name}", name) for name in ODD}


def test_an_empty_task_id_is_a_task(saver: threadkeep.KeepSaver) -> None:
    at = put(saver, {})
    saver.put_writes(at, [("a", 1)], "")
    saver.put_writes(at, [("a", 2)], "x")
    found = saver.get_tuple(at)
    assert found is not None
    assert found.pending_writes == [("", "a", 1), ("x", "a", 2)]


METADATA: dict[str, Any] = {
    "top-level nul\0 in a key": "a\0b",
    "nested": {"nul": "a\0b", "list": ["\0", {"": "🦜"}], "deep": {"a": {"b": {"c": None}}}},
    "🦜": "é",
    "": "empty key",
    "none": None,
    "numbers": [0, -1, 1.5, 2**63, True, False, float("inf")],
    "tuple": (1, 2),
    "zero": 0,
    "false": False,
    "odd $key.with 'quotes'": {"$gt": 1},
    "writes": {"node": {"messages": [HumanMessage("m", id="1")]}},
    "message": AIMessage("x", id="2"),
    "when": MOMENT,
    "uuid": UUID(int=3),
}


def test_metadata_comes_back_as_in_memory_saver_gives_it(saver: threadkeep.KeepSaver) -> None:
    given: dict[str, Any] = {
        "configurable": {
            "thread_id": "t",
            "checkpoint_ns": "",
            "user": "u\0ser",
            "n": 3,
            "obj": object(),
            "__private": 1,
            "langgraph_step": 9,
        },
        "metadata": {
            "run_id": "r1",
            "flag": True,
            "ratio": 0.5,
            "dict": {"not": "a scalar"},
            "none": None,
            "from config": "c",
        },
    }
    peer = InMemorySaver()
    checkpoint = empty_checkpoint()
    found = [
        each.get_tuple(each.put(given, checkpoint, {"source": "loop", "step": 1, "parents": {"": "p"}} | METADATA, {}))
        for each in (saver, peer)
    ]
    assert found[0] is not None and found[1] is not None
    assert same(dict(sorted(found[0].metadata.items())), dict(sorted(found[1].metadata.items())))


def test_auth_keys_of_a_config_are_not_persisted(saver: threadkeep.KeepSaver) -> None:
    given = {
        "configurable": {
            "thread_id": "t",
            "checkpoint_ns": "",
            "langgraph_auth_user_id": "x",
            "langgraph_request_id": "y",
            "user": "kept",
        }
    }
    at = saver.put(given, empty_checkpoint(), {"source": "loop"}, {})
    found = saver.get_tuple(at)
    assert found is not None
    assert found.metadata == {"source": "loop", "user": "kept"}


@pytest.mark.parametrize("key", [key for key in METADATA if key not in {"writes", "message", "when", "uuid", "tuple"}])
def test_odd_metadata_is_found_by_a_filter(saver: threadkeep.KeepSaver, key: str) -> None:
    at = put(saver, {}, id="1", **METADATA)
    put(saver, {}, id="2", **{key: "another"})
    found = saver.get_tuple(at)
    assert found is not None
    assert list_ids(saver, "t", filter={key: found.metadata[key]}) == ["1"]


@pytest.mark.parametrize(
    ("given", "stored"), [(7, "7"), (0, "0"), (-3, "-3"), (UUID(int=5), "00000000-0000-0000-0000-000000000005")]
)
async def test_int_and_uuid_thread_ids_become_str(
    saver: threadkeep.KeepSaver, call: Caller, given: Any, stored: str
) -> None:
    checkpoint = empty_checkpoint() | {"channel_values": {"a": 1}, "channel_versions": {"a": 1}}
    at = await call(saver, "put", config(given), checkpoint, {}, {"a": 1})
    assert at["configurable"]["thread_id"] == stored
    await call(saver, "put_writes", config(given, checkpoint["id"]), [("a", 2)], "task")
    for name in (given, stored):
        found = await call(saver, "get_tuple", config(name))
        assert found.config["configurable"]["thread_id"] == stored
        assert found.pending_writes == [("task", "a", 2)]
        assert len(await call.every(saver, "list", config(name))) == 1
    await call(saver, "copy_thread", given, 99)
    assert await call(saver, "get_tuple", config("99")) is not None
    await call(saver, "prune", [given])
    await call(saver, "delete_thread", given)
    assert await call(saver, "get_tuple", config(stored)) is None


REFUSED = [
    ("get_tuple", lambda bad: [config(bad)], {}),
    ("put", lambda bad: [config(bad), empty_checkpoint(), {}, {}], {}),
    ("put_writes", lambda bad: [config(bad, "c"), [("a", 1)], "task"], {}),
    ("delete_thread", lambda bad: [bad], {}),
    ("copy_thread", lambda bad: [bad, "target"], {}),
    ("copy_thread", lambda bad: ["kept", bad], {}),
    ("prune", lambda bad: [["kept", bad]], {"strategy": "delete"}),
]


@pytest.mark.parametrize("bad", [None, b"kept", ["kept"]], ids=["None", "bytes", "list"])
async def test_a_thread_id_of_another_type_is_a_type_error_and_changes_nothing(
    saver: threadkeep.KeepSaver, call: Caller, bad: Any
) -> None:
    await call(saver, "put", config("kept"), empty_checkpoint(), {}, {})
    for verb, arguments, options in REFUSED:
        with pytest.raises(TypeError):
            await call(saver, verb, *arguments(bad), **options)
    with pytest.raises(TypeError):
        await call.every(saver, "list", config(bad))
    with pytest.raises(TypeError):
        await call(saver, "get_delta_channel_history", config=config(bad), channels=["a"])
    assert [found.config["configurable"]["thread_id"] for found in await call.every(saver, "list", None)] == ["kept"]
