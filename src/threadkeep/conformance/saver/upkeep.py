"""Tests of delete_thread, copy_thread, prune and delete_for_runs."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from threadkeep.conformance.declarations import needs
from threadkeep.conformance.saver.chains import config_for, list_ids, load, put, put_chain, values_of, writes_of
from threadkeep.conformance.sync_async import Caller


def put_family(saver: Caller, thread: str = "t") -> None:
    """Put a thread of three checkpoints, one checkpoint of a subgraph, and writes."""
    put_chain(saver, "1", "2", "3", thread=thread)
    put(saver, "15", None, {"inner": thread}, ns="child:1", thread=thread)
    saver.put_writes(config_for(thread, "1"), [("n", "old")], "task")
    saver.put_writes(config_for(thread, "3"), [("n", f"of {thread}")], "task", "path")


# --- delete_thread


def test_a_deleted_thread_is_gone_with_all_it_held(my_saver: Caller) -> None:
    put_family(my_saver)
    put_family(my_saver, "other")
    my_saver.delete_thread("t")
    assert (
        my_saver.get_tuple(config_for())
        is my_saver.get_tuple(config_for("t", "1"))
        is my_saver.get_tuple(config_for("t", None, "child:1"))
        is None
    )
    assert list_ids(my_saver) == []
    assert len(list_ids(my_saver, "other")) == 4
    assert writes_of(my_saver, "other") == [("task", "n", "of other")]


def test_a_deleted_thread_that_is_made_again_is_new(my_saver: Caller) -> None:
    put_family(my_saver)
    my_saver.delete_thread("t")
    put(my_saver, "3", None, {"n": "new"}, version=3)
    assert (values_of(my_saver), writes_of(my_saver), list_ids(my_saver)) == ({"n": "new"}, [], ["3"])


def test_a_delete_of_what_is_not_there_is_no_error(my_saver: Caller) -> None:
    my_saver.delete_thread("nobody")
    assert list_ids(my_saver, None) == []


# --- copy_thread


@needs("copy_thread")
def test_a_copy_has_everything(my_saver: Caller) -> None:
    put_family(my_saver)
    my_saver.copy_thread("t", "copy")
    assert sorted(list_ids(my_saver, "copy")) == ["1", "15", "2", "3"]
    assert [values_of(my_saver, "copy", id) for id in "123"] == [{"n": number} for number in range(3)]
    assert values_of(my_saver, "copy", ns="child:1") == {"inner": "t"}
    assert writes_of(my_saver, "copy") == [("task", "n", "of t")]
    parent = load(my_saver, config_for("copy", "3")).parent_config["configurable"]
    assert (parent["thread_id"], parent["checkpoint_id"]) == ("copy", "2")


@needs("copy_thread")
def test_a_copy_survives_its_source(my_saver: Caller) -> None:
    put_family(my_saver)
    my_saver.copy_thread("t", "copy")
    put(my_saver, "4", "3", {"n": "later"}, version=4)
    my_saver.delete_thread("t")
    assert list_ids(my_saver, "copy")[-1] == "1"
    assert values_of(my_saver, "copy") == {"n": 2}


@needs("copy_thread")
def test_source_and_copy_change_independently(my_saver: Caller) -> None:
    put_family(my_saver)
    my_saver.copy_thread("t", "copy")
    put(my_saver, "4", "3", {"n": "of the copy"}, thread="copy", version=4)
    put(my_saver, "5", "3", {"n": "of the source"}, version=4)
    assert (values_of(my_saver), values_of(my_saver, "copy")) == ({"n": "of the source"}, {"n": "of the copy"})


@needs("copy_thread")
def test_copying_an_unknown_thread_does_nothing(my_saver: Caller) -> None:
    my_saver.copy_thread("nobody", "copy")
    assert list_ids(my_saver, "copy") == []


# --- prune


@needs("prune")
def test_prune_keeps_the_latest_of_each_namespace(my_saver: Caller) -> None:
    put_family(my_saver)
    put(my_saver, "16", "15", {"inner": "later"}, ns="child:1", version=2)
    put_family(my_saver, "other")
    my_saver.prune(["t"])
    assert sorted(list_ids(my_saver)) == ["16", "3"]
    assert (values_of(my_saver), values_of(my_saver, ns="child:1")) == ({"n": 2}, {"inner": "later"})
    assert writes_of(my_saver) == [("task", "n", "of t")]
    assert len(list_ids(my_saver, "other")) == 4


@needs("prune")
def test_prune_keeps_values_that_older_checkpoints_stored(my_saver: Caller) -> None:
    put(my_saver, "1", None, {"a": "old and unchanged", "b": 1})
    second = {**empty_checkpoint(), "id": "2", "channel_values": {"a": "old and unchanged", "b": 2}}
    my_saver.put(config_for("t", "1"), second | {"channel_versions": {"a": 1, "b": 2}}, {"step": 1}, {"b": 2})
    my_saver.prune(["t"], strategy="keep_latest")
    assert values_of(my_saver) == {"a": "old and unchanged", "b": 2}


@needs("prune")
def test_prune_may_delete_threads(my_saver: Caller) -> None:
    for thread in ("t", "u", "stays"):
        put_family(my_saver, thread)
    my_saver.prune(["t", "u", "nobody"], strategy="delete")
    assert (list_ids(my_saver), list_ids(my_saver, "u"), len(list_ids(my_saver, "stays"))) == ([], [], 4)


@needs("prune")
def test_an_unknown_strategy_is_a_value_error_and_changes_nothing(my_saver: Caller) -> None:
    put_family(my_saver)
    with pytest.raises(ValueError):  # noqa: PT011 - each saver has its own words
        my_saver.prune(["t"], strategy="keep_some")
    assert len(list_ids(my_saver)) == 4


# --- delete_for_runs


@needs("delete_for_runs")
def test_delete_for_runs_removes_those_runs_and_nothing_else(my_saver: Caller) -> None:
    for thread in ("t", "u"):
        for number, run in enumerate(["r1", "r2", "r3"]):
            put(my_saver, f"{number}", None, {"n": number}, thread=thread, run=run, version=number + 1)
    my_saver.delete_for_runs(["r3", "no such run"])
    assert (list_ids(my_saver), list_ids(my_saver, "u")) == (["1", "0"], ["1", "0"])
    assert values_of(my_saver) == {"n": 1}
    my_saver.delete_for_runs([])
    assert list_ids(my_saver, "u") == ["1", "0"]
