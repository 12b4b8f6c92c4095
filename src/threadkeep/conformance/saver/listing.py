"""Tests of list: which checkpoints, in which order, with which filters."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from typing import Any

from threadkeep.conformance.declarations import needs
from threadkeep.conformance.saver.chains import config_for, list_ids, list_keys, load, put, put_chain
from threadkeep.conformance.sync_async import Caller

NAMESPACES = ("", "child:1", "child:1|deep:2")


def put_forest(saver: Caller) -> None:
    """Put two threads with three namespaces with three checkpoints each. Ids are unique and shuffled."""
    for number in range(18):
        thread, ns = "ab"[number % 2], NAMESPACES[number % 3]
        put(saver, f"{(number * 7) % 18:02}", thread=thread, ns=ns, step=number % 4, odd=bool(number % 2))


def test_a_thread_is_listed_by_id_newest_first(my_saver: Caller) -> None:
    for id in ("3", "1", "2"):
        put(my_saver, id)
    assert list_ids(my_saver) == ["3", "2", "1"]
    assert list_ids(my_saver, "nobody") == []


def test_what_is_listed_is_what_get_tuple_gives(my_saver: Caller) -> None:
    put_chain(my_saver, "1", "2", "3")
    my_saver.put_writes(config_for("t", "2"), [("n", 5), ("m", None)], "task")
    for found in my_saver.list(config_for()):
        same = load(my_saver, found.config)
        assert (found.checkpoint, found.metadata, found.parent_config) == (
            same.checkpoint,
            same.metadata,
            same.parent_config,
        )
        assert list(found.pending_writes) == list(same.pending_writes)


def test_all_namespaces_are_listed_unless_one_is_named(my_saver: Caller) -> None:
    put_forest(my_saver)
    everything = set(list_keys(my_saver, None))
    assert len(everything) == 18
    of_a = {"configurable": {"thread_id": "a"}}
    assert set(list_keys(my_saver, of_a)) == {key for key in everything if key[0] == "a"}
    for ns in (*NAMESPACES, "child", "nothing"):
        assert set(list_keys(my_saver, config_for("a", None, ns))) == {
            key for key in everything if key[:2] == ("a", ns)
        }


def test_a_config_with_a_checkpoint_id_lists_that_one(my_saver: Caller) -> None:
    put_forest(my_saver)
    for thread, ns, id in list_keys(my_saver, None):
        assert list_keys(my_saver, config_for(thread, id, ns)) == [(thread, ns, id)]


@needs("list_in_order")
def test_everything_is_listed_by_id_newest_first(my_saver: Caller) -> None:
    put_forest(my_saver)
    assert list_ids(my_saver, None) == [f"{number:02}" for number in reversed(range(18))]
    assert list_ids(my_saver, "a") == sorted(list_ids(my_saver, "a"), reverse=True)


@needs("list_in_order")
def test_a_limit_over_all_threads_gives_the_newest(my_saver: Caller) -> None:
    put_forest(my_saver)
    assert list_ids(my_saver, None, limit=4) == ["17", "16", "15", "14"]


def test_before_leaves_out_its_checkpoint_and_later_ones(my_saver: Caller) -> None:
    put_chain(my_saver, "1", "2", "3", "4")
    assert list_ids(my_saver, before=config_for("t", "3")) == ["2", "1"]
    assert list_ids(my_saver, before=config_for("t", "1")) == []
    assert list_ids(my_saver, before=config_for("t", "35")) == ["3", "2", "1"]


def test_a_limit_cuts_the_list(my_saver: Caller) -> None:
    put_chain(my_saver, "1", "2", "3", "4")
    answers = {limit: list_ids(my_saver, limit=limit) for limit in (0, 1, 3, 4, 9, None)}
    assert answers == {limit: ["4", "3", "2", "1"][:limit] for limit in answers}


def test_a_filter_compares_metadata(my_saver: Caller) -> None:
    put(my_saver, "1", source="input", step=-1, user="ada")
    put(my_saver, "2", source="loop", step=0, user="ada")
    put(my_saver, "3", source="loop", step=1, user="bob")
    filters: list[dict[str, Any]] = [
        {"source": "loop"},
        {"step": -1},
        {"user": "ada", "source": "loop"},
        {"user": "eve"},
        {},
    ]
    assert [list_ids(my_saver, filter=each) for each in filters] == [["3", "2"], ["1"], ["2"], [], ["3", "2", "1"]]
    assert list_ids(my_saver, None, filter={"user": "ada"}, limit=1) == ["2"]


def test_the_key_of_a_filter_is_literal(my_saver: Caller) -> None:
    odd = ["a.b", "$.a", "a'b", 'a"b', "a%b", "a[0]", "a b", "\U0001f99c", "A", "e\u0301"]
    for number, key in enumerate(odd):
        put(my_saver, f"{number}", **{key: "here", "a": {"b": "here"}})
    assert {key: list_ids(my_saver, filter={key: "here"}) for key in odd} == {
        key: [f"{n}"] for n, key in enumerate(odd)
    }


def test_a_filter_tells_json_types_apart(my_saver: Caller) -> None:
    held = {"1": 1, "2": True, "3": "1", "4": None, "5": [1], "6": {"a": 1}}
    for id, value in held.items():
        put(my_saver, id, key=value)
    assert {id: list_ids(my_saver, filter={"key": value}) for id, value in held.items()} == {id: [id] for id in held}


def test_filter_before_and_limit_work_together(my_saver: Caller) -> None:
    for number in range(9):
        put(my_saver, f"{number}", step=number % 2)
    assert list_ids(my_saver, filter={"step": 1}, before=config_for("t", "7"), limit=2) == ["5", "3"]


def _read(saver: Any) -> list[Any]:
    return [saver.get_tuple(found.config).checkpoint["id"] for found in saver.list(config_for())]


async def _aread(saver: Any) -> list[Any]:
    return [(await saver.aget_tuple(found.config)).checkpoint["id"] async for found in saver.alist(config_for())]


def test_the_saver_may_be_used_while_its_list_is_read(my_saver: Caller) -> None:
    """A saver that holds a lock while its list is read would deadlock."""
    put_chain(my_saver, "1", "2", "3")
    assert my_saver.run_on_target(_read, _aread) == ["3", "2", "1"]
