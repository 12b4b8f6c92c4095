"""Listing: which checkpoints, in which order, by which filters."""
# ruff: noqa: D103 - the name of a test says what it demands

from __future__ import annotations

from typing import Any

from threadkeep.conformance.colours import Colour
from threadkeep.conformance.declared import needs
from threadkeep.conformance.saver.chains import at, chain, got, ids, places, put

SPACES = ("", "child:1", "child:1|deep:2")


def forest(saver: Colour) -> None:
    """Two threads of three namespaces of three checkpoints; ids are unique and mixed."""
    for number in range(18):
        thread, ns = "ab"[number % 2], SPACES[number % 3]
        put(saver, f"{(number * 7) % 18:02}", thread=thread, ns=ns, step=number % 4, odd=bool(number % 2))


def test_a_thread_is_listed_by_id_newest_first(my_saver: Colour) -> None:
    for id in ("3", "1", "2"):
        put(my_saver, id)
    assert ids(my_saver) == ["3", "2", "1"]
    assert ids(my_saver, "nobody") == []


def test_what_is_listed_is_what_get_tuple_gives(my_saver: Colour) -> None:
    chain(my_saver, "1", "2", "3")
    my_saver.put_writes(at("t", "2"), [("n", 5), ("m", None)], "task")
    for found in my_saver.list(at()):
        same = got(my_saver, found.config)
        assert (found.checkpoint, found.metadata, found.parent_config) == (
            same.checkpoint,
            same.metadata,
            same.parent_config,
        )
        assert list(found.pending_writes) == list(same.pending_writes)


def test_all_namespaces_are_listed_unless_one_is_named(my_saver: Colour) -> None:
    forest(my_saver)
    everything = set(places(my_saver, None))
    assert len(everything) == 18
    of_a = {"configurable": {"thread_id": "a"}}
    assert set(places(my_saver, of_a)) == {place for place in everything if place[0] == "a"}
    for ns in (*SPACES, "child", "nothing"):
        assert set(places(my_saver, at("a", None, ns))) == {place for place in everything if place[:2] == ("a", ns)}


def test_a_config_with_a_checkpoint_id_lists_that_one(my_saver: Colour) -> None:
    forest(my_saver)
    for thread, ns, id in places(my_saver, None):
        assert places(my_saver, at(thread, id, ns)) == [(thread, ns, id)]


@needs("list_in_order")
def test_everything_is_listed_by_id_newest_first(my_saver: Colour) -> None:
    forest(my_saver)
    assert ids(my_saver, None) == [f"{number:02}" for number in reversed(range(18))]
    assert ids(my_saver, "a") == sorted(ids(my_saver, "a"), reverse=True)


@needs("list_in_order")
def test_a_limit_over_all_threads_gives_the_newest(my_saver: Colour) -> None:
    forest(my_saver)
    assert ids(my_saver, None, limit=4) == ["17", "16", "15", "14"]


def test_before_leaves_out_its_checkpoint_and_later_ones(my_saver: Colour) -> None:
    chain(my_saver, "1", "2", "3", "4")
    assert ids(my_saver, before=at("t", "3")) == ["2", "1"]
    assert ids(my_saver, before=at("t", "1")) == []
    assert ids(my_saver, before=at("t", "35")) == ["3", "2", "1"]


def test_a_limit_gives_the_first_so_many(my_saver: Colour) -> None:
    chain(my_saver, "1", "2", "3", "4")
    answers = {limit: ids(my_saver, limit=limit) for limit in (0, 1, 3, 4, 9, None)}
    assert answers == {limit: ["4", "3", "2", "1"][:limit] for limit in answers}


def test_a_filter_compares_metadata(my_saver: Colour) -> None:
    put(my_saver, "1", source="input", step=-1, user="ada")
    put(my_saver, "2", source="loop", step=0, user="ada")
    put(my_saver, "3", source="loop", step=1, user="bob")
    asked: list[dict[str, Any]] = [
        {"source": "loop"},
        {"step": -1},
        {"user": "ada", "source": "loop"},
        {"user": "eve"},
        {},
    ]
    assert [ids(my_saver, filter=each) for each in asked] == [["3", "2"], ["1"], ["2"], [], ["3", "2", "1"]]
    assert ids(my_saver, None, filter={"user": "ada"}, limit=1) == ["2"]


def test_the_key_of_a_filter_is_literal(my_saver: Colour) -> None:
    odd = ["a.b", "$.a", "a'b", 'a"b', "a%b", "a[0]", "a b", "\U0001f99c", "A", "e\u0301"]
    for number, key in enumerate(odd):
        put(my_saver, f"{number}", **{key: "here", "a": {"b": "here"}})
    assert {key: ids(my_saver, filter={key: "here"}) for key in odd} == {key: [f"{n}"] for n, key in enumerate(odd)}


def test_a_filter_tells_json_types_apart(my_saver: Colour) -> None:
    held = {"1": 1, "2": True, "3": "1", "4": None, "5": [1], "6": {"a": 1}}
    for id, value in held.items():
        put(my_saver, id, key=value)
    assert {id: ids(my_saver, filter={"key": value}) for id, value in held.items()} == {id: [id] for id in held}


def test_filter_before_and_limit_work_together(my_saver: Colour) -> None:
    for number in range(9):
        put(my_saver, f"{number}", step=number % 2)
    assert ids(my_saver, filter={"step": 1}, before=at("t", "7"), limit=2) == ["5", "3"]


def _read(saver: Any) -> list[Any]:
    return [saver.get_tuple(found.config).checkpoint["id"] for found in saver.list(at())]


async def _aread(saver: Any) -> list[Any]:
    return [(await saver.aget_tuple(found.config)).checkpoint["id"] async for found in saver.alist(at())]


def test_the_saver_may_be_used_while_its_list_is_read(my_saver: Colour) -> None:
    """A lock that is held between two elements would wait for itself."""
    chain(my_saver, "1", "2", "3")
    assert my_saver.play(_read, _aread) == ["3", "2", "1"]
