"""Tests of put and get: checkpoints come back as put, the latest is the greatest id, threads do not mix."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

from threadkeep.conformance.declarations import needs
from threadkeep.conformance.saver.chains import config_for, list_ids, load, put, put_chain, values_of
from threadkeep.conformance.sync_async import Caller

ODD_NAMES = [
    "t",
    "T",
    "t ",
    "t%",
    "t_",
    "t*",
    "t/1",
    "t:1",
    "t|1",
    "t.1",
    "t'1",
    't"1',
    "\u00e9",
    "e\u0301",
    "\U0001f99c",
    "t" * 300,
]


def test_an_unknown_thread_or_checkpoint_gives_none(my_saver: Caller) -> None:
    assert my_saver.get_tuple(config_for()) is None
    assert my_saver.get(config_for()) is None
    put(my_saver, "1")
    assert my_saver.get_tuple(config_for("t", "2")) is None
    assert my_saver.get_tuple(config_for("t", None, "child")) is None


def test_a_put_gives_the_config_of_the_checkpoint(my_saver: Caller) -> None:
    given = put(my_saver, "1", ns="child:1")
    named = {"thread_id": "t", "checkpoint_ns": "child:1", "checkpoint_id": "1"}
    assert {key: given["configurable"][key] for key in named} == named
    assert load(my_saver, given).checkpoint["id"] == "1"


def test_a_checkpoint_comes_back_as_it_was_put(my_saver: Caller) -> None:
    checkpoint = {
        **empty_checkpoint(),
        "id": "1",
        "channel_values": {"a": [1, {"b": None}], "c": "text"},
        "channel_versions": {"a": 2, "c": 1, "gone": 3},
        "versions_seen": {"node": {"a": 1}, "__input__": {}},
        "updated_channels": ["a"],
    }
    my_saver.put(config_for(), checkpoint, {"source": "loop", "step": 1}, {"a": 2, "c": 1, "gone": 3})
    found = load(my_saver, config_for())
    assert {key: found.checkpoint[key] for key in checkpoint} == checkpoint
    assert my_saver.get(config_for()) == found.checkpoint
    named = {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}
    assert {key: found.config["configurable"][key] for key in named} == named


def test_the_latest_is_the_greatest_id_and_not_the_last_put(my_saver: Caller) -> None:
    for id in ("2", "9", "10", "5"):
        put(my_saver, id)
    assert load(my_saver, config_for()).checkpoint["id"] == "9"
    assert load(my_saver, config_for("t", "10")).checkpoint["id"] == "10"


def test_parent_config_names_the_parent(my_saver: Caller) -> None:
    put_chain(my_saver, "1", "2")
    assert load(my_saver, config_for("t", "1")).parent_config is None
    parent = load(my_saver, config_for("t", "2")).parent_config["configurable"]
    assert (parent["thread_id"], parent["checkpoint_ns"], parent["checkpoint_id"]) == ("t", "", "1")


def test_a_put_on_an_id_that_is_there_replaces_it(my_saver: Caller) -> None:
    put(my_saver, "1", None, {"a": "old", "b": "old"}, user="ada")
    my_saver.put_writes(config_for("t", "1"), [("a", "waiting")], "task")
    put(my_saver, "1", None, {"a": "new"}, user="bob", version=2)
    found = load(my_saver, config_for())
    assert found.checkpoint["channel_values"] == {"a": "new"}
    assert found.metadata["user"] == "bob"
    assert [write[2] for write in found.pending_writes] == ["waiting"]
    assert list_ids(my_saver) == ["1"]


def test_channels_that_did_not_change_keep_their_values(my_saver: Caller) -> None:
    put(my_saver, "1", None, {"a": "first", "b": "stays"})
    second = {**empty_checkpoint(), "id": "2", "channel_values": {"a": "second", "b": "stays"}}
    my_saver.put(config_for("t", "1"), second | {"channel_versions": {"a": 2, "b": 1}}, {"step": 1}, {"a": 2})
    assert values_of(my_saver, "t", "1") == {"a": "first", "b": "stays"}
    assert values_of(my_saver, "t", "2") == {"a": "second", "b": "stays"}


def test_a_removed_channel_is_gone(my_saver: Caller) -> None:
    put(my_saver, "1", None, {"a": 1, "b": 1})
    put(my_saver, "2", "1", {"a": 2}, version=2)
    assert values_of(my_saver) == {"a": 2}
    assert values_of(my_saver, "t", "1") == {"a": 1, "b": 1}


# --- channels that are left out of channel_values, at the version that the parent holds


LONG = [f"element {n} " * 20 for n in range(20)]
HELD: dict[str, Any] = {"small": "stays", "large": LONG}


def put_without(saver: Caller, id: str, parent: str | None, versions: dict[str, Any], /, **how: Any) -> None:
    """Put a checkpoint with these versions whose only value is that of `a`, if it is among them."""
    given = {"a": f"a of {id}"} if "a" in versions else {}
    new = how.pop("new_versions", {name: versions[name] for name in given})
    checkpoint = {**empty_checkpoint(), "id": id, "channel_values": given, "channel_versions": versions}
    saver.put(config_for("t", parent, how.pop("ns", "")), checkpoint, {"source": "loop", "step": 1} | how, new)


def test_a_channel_that_is_left_out_at_its_parents_version_has_the_parents_value(my_saver: Caller) -> None:
    put(my_saver, "1", None, HELD)
    put_without(my_saver, "2", "1", {"small": 1, "large": 1, "a": 2})
    put_without(my_saver, "3", "2", {"small": 1, "large": 1})
    assert values_of(my_saver, "t", "2") == HELD | {"a": "a of 2"}
    assert values_of(my_saver, "t", "3") == HELD


@needs("prune")
def test_a_value_that_was_taken_from_the_parent_survives_pruning_it(my_saver: Caller) -> None:
    put(my_saver, "1", None, HELD)
    put_without(my_saver, "2", "1", {"small": 1, "large": 1})
    my_saver.prune(["t"])
    assert list_ids(my_saver) == ["2"]
    assert values_of(my_saver, "t", "2") == HELD


def test_a_channel_that_is_left_out_and_new_has_no_value(my_saver: Caller) -> None:
    put(my_saver, "1", None, HELD)
    put_without(my_saver, "2", "1", {"small": 2, "large": 1}, new_versions={"small": 2})
    assert values_of(my_saver, "t", "2") == {"large": LONG}
    put(my_saver, "3", None, HELD, version=3)
    put_without(my_saver, "4", "3", {"small": 3, "large": 3}, new_versions={"small": 3})
    assert values_of(my_saver, "t", "4") == {"large": LONG}


def test_a_channel_that_is_left_out_has_the_value_of_its_own_branch(my_saver: Caller) -> None:
    """Two branches may have equal integer versions."""
    put(my_saver, "1", None, {"held": "root"})
    for id, side in (("2", "left"), ("3", "right")):
        put(my_saver, id, "1", {"held": side}, version=2)
    for id, parent in (("4", "2"), ("5", "3")):
        put_without(my_saver, id, parent, {"held": 2})
    assert [values_of(my_saver, "t", id) for id in "45"] == [{"held": "left"}, {"held": "right"}]


def test_a_channel_that_is_left_out_is_taken_from_the_parent_only(my_saver: Caller) -> None:
    put(my_saver, "1", None, {"held": "first"})
    put(my_saver, "2", "1", {"held": "second"}, version=2)
    for id, parent in (("3", "1"), ("4", "not there"), ("5", None)):
        put_without(my_saver, id, parent, {"held": 2})
    put_without(my_saver, "6", "2", {"held": 2}, ns="child")
    found = [values_of(my_saver, "t", id) for id in "345"] + [values_of(my_saver, ns="child")]
    assert found == [{}, {}, {}, {}]


def test_a_put_on_an_id_that_is_there_takes_left_out_channels_from_its_parent_again(my_saver: Caller) -> None:
    put(my_saver, "1", None, HELD | {"a": "a of 1"})
    for _ in range(2):
        put_without(my_saver, "2", "1", {"small": 1, "large": 1, "a": 2})
        assert values_of(my_saver, "t", "2") == HELD | {"a": "a of 2"}
    put_without(my_saver, "2", "1", {"large": 1})
    assert values_of(my_saver, "t", "2") == {"large": LONG}


def test_branches_keep_their_own_values(my_saver: Caller) -> None:
    """A fork counts versions from its parent's, as its sibling does, so theirs may be equal."""
    first = my_saver.target.get_next_version(None, None)
    put(my_saver, "1", None, {"a": "root"}, version=first)
    for id, side in (("2", "left"), ("3", "right")):
        put(my_saver, id, "1", {"a": side}, version=my_saver.target.get_next_version(first, None))
    assert [values_of(my_saver, "t", id) for id in "123"] == [{"a": "root"}, {"a": "left"}, {"a": "right"}]


def test_versions_come_back_in_their_type(my_saver: Caller) -> None:
    versions = {"int": 1, "float": 1.5, "text": "00000000000000000000000000000002.0.5"}
    checkpoint = {**empty_checkpoint(), "id": "1", "channel_values": dict.fromkeys(versions, "x")}
    my_saver.put(config_for(), checkpoint | {"channel_versions": versions}, {}, versions)
    assert load(my_saver, config_for()).checkpoint["channel_versions"] == versions
    assert values_of(my_saver) == dict.fromkeys(versions, "x")


def test_the_next_version_is_greater(my_saver: Caller) -> None:
    counted = [my_saver.target.get_next_version(None, None)]
    for _ in range(12):
        counted.append(my_saver.target.get_next_version(counted[-1], None))
    assert counted == sorted(counted)
    assert len(set(counted)) == 13


VALUES: dict[str, Any] = {
    "plain": [None, True, 0, -1, 1.5, "", "text", [], {}, [[{"a": []}]], 2**62],
    "texts": ["a\0b", "\U0001f99c", "e\u0301", "'\"\\", "\n"],
    "bytes": b"\0\xff",
    "datetime": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
    "uuid": UUID(int=5),
    "set": {1, 2, 3},
    "messages": [
        HumanMessage("hello", id="1"),
        AIMessage("hi", id="2", tool_calls=[{"name": "f", "args": {}, "id": "c"}]),
    ],
    "large": "0123456789abcdef" * 65_536,
    "many": [{"n": n} for n in range(3000)],
}


@pytest.mark.parametrize("given", VALUES.values(), ids=VALUES.keys())
def test_a_channel_value_comes_back(my_saver: Caller, given: Any) -> None:
    put(my_saver, "1", None, {"held": given})
    my_saver.put_writes(config_for("t", "1"), [("held", given)], "task")
    found = load(my_saver, config_for())
    assert found.checkpoint["channel_values"] == {"held": given}
    assert [write[2] for write in found.pending_writes] == [given]


def test_changing_a_value_after_its_put_changes_nothing(my_saver: Caller) -> None:
    given, about = {"list": [1]}, {"tags": ["a"]}
    put(my_saver, "1", None, {"held": given}, **about)
    given["list"].append(2)
    about["tags"].append("b")
    assert values_of(my_saver) == {"held": {"list": [1]}}
    values_of(my_saver)["held"]["list"].append(3)
    load(my_saver, config_for()).metadata["tags"].append("c")
    assert values_of(my_saver) == {"held": {"list": [1]}}
    assert load(my_saver, config_for()).metadata["tags"] == ["a"]


def test_any_text_may_name_a_thread_and_means_itself(my_saver: Caller) -> None:
    for number, name in enumerate(ODD_NAMES):
        put(my_saver, "1", None, {"n": number}, thread=name)
    assert [values_of(my_saver, name) for name in ODD_NAMES] == [{"n": number} for number in range(len(ODD_NAMES))]
    my_saver.delete_thread("t")
    assert [name for name in ODD_NAMES if my_saver.get_tuple(config_for(name)) is None] == ["t"]


def test_namespaces_of_a_thread_are_separate(my_saver: Caller) -> None:
    spaces = ["", "child", "child:1", "child:1|deep:2", "Child"]
    for number, ns in enumerate(spaces):
        put(my_saver, f"{9 - number}", None, {"n": number}, ns=ns)
    assert [values_of(my_saver, ns=ns) for ns in spaces] == [{"n": number} for number in range(len(spaces))]
    assert my_saver.get_tuple(config_for("t", "5", "")) is None


# --- metadata


def test_metadata_comes_back_with_the_scalars_of_the_config(my_saver: Caller) -> None:
    config = config_for(
        "t", None, "", metadata={"user": "ada", "step": 99, "list": [1], "__hidden": 1, "langgraph_step": 7}
    )
    config["configurable"] |= {"model": "m", "user": "bob", "flag": True}
    about = {"source": "loop", "step": 1, "parents": {"": "0"}, "deep": {"a": [1, None, {"b": 2.5}]}}
    my_saver.put(config, {**empty_checkpoint(), "id": "1"}, about, {})
    assert load(my_saver, config_for()).metadata == about | {"user": "ada", "model": "m", "flag": True}
