"""Tests of batch: results in the order of the ops, reads before puts, the last put wins, all or nothing."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from typing import Any

import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp

from threadkeep.conformance.declarations import needs
from threadkeep.conformance.store.contents import HOME, keys, put_all, put_one_in_each, value
from threadkeep.conformance.sync_async import Caller

FULL = {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}


def test_an_empty_batch_gives_an_empty_list(my_store: Caller) -> None:
    assert my_store.batch([]) == []


def test_results_are_in_the_order_of_the_ops(my_store: Caller) -> None:
    put_all(my_store, FULL)
    got = my_store.batch([GetOp(HOME, "c"), GetOp(HOME, "nobody"), GetOp(HOME, "a"), GetOp(HOME, "c")])
    assert [item and item.key for item in got] == ["c", None, "a", "c"]


def test_a_batch_may_mix_all_ops(my_store: Caller) -> None:
    put_all(my_store, FULL)
    put_one_in_each(my_store, [("z", "y")])
    answers = my_store.batch(
        [
            SearchOp(HOME, {"n": {"$gt": 1}}),
            PutOp(HOME, "d", {"n": 4}),
            GetOp(HOME, "a"),
            ListNamespacesOp((MatchCondition("prefix", ("z",)),)),
            PutOp(HOME, "b", None),
            SearchOp(("z",)),
        ]
    )
    assert sorted(keys(answers[0])) == ["b", "c"]
    assert (answers[1], answers[2].value, answers[3], answers[4]) == (None, {"n": 1}, [("z", "y")], None)
    assert keys(answers[5]) == ["key"]
    assert sorted(keys(my_store.search(HOME))) == ["a", "c", "d"]


def test_the_ops_of_a_batch_may_come_from_a_generator(my_store: Caller) -> None:
    assert my_store.batch(PutOp(HOME, key, {}) for key in "abc") == [None] * 3
    assert sorted(keys(my_store.search(HOME))) == ["a", "b", "c"]


def test_reads_see_what_was_there_before_the_batch(my_store: Caller) -> None:
    my_store.put(HOME, "old", {"n": 1})
    reads: list[Any] = [GetOp(HOME, "new"), GetOp(HOME, "old"), SearchOp(HOME), ListNamespacesOp()]
    answers = my_store.batch([PutOp(HOME, "old", {"n": 2}), PutOp(("new",), "new", {}), PutOp(HOME, "new", {}), *reads])
    assert (answers[3], answers[4].value) == (None, {"n": 1})
    assert [item.value for item in answers[5]] == [{"n": 1}]
    assert answers[6] == [HOME]


def test_the_last_put_of_a_key_wins(my_store: Caller) -> None:
    my_store.put(HOME, "deleted", {})
    my_store.batch([PutOp(HOME, "k", {"n": n}) for n in range(5)])
    my_store.batch([PutOp(HOME, "deleted", {"n": 1}), PutOp(HOME, "deleted", None)])
    my_store.batch([PutOp(HOME, "put", None), PutOp(HOME, "put", {"n": 1})])
    assert value(my_store, "k") == {"n": 4}
    assert sorted(keys(my_store.search(HOME))) == ["k", "put"]


def test_a_large_batch_is_stored_whole(my_store: Caller) -> None:
    my_store.batch([PutOp((*HOME, f"room {n % 7}"), f"key {n}", {"n": n}) for n in range(1000)])
    got = my_store.batch([GetOp((*HOME, f"room {n % 7}"), f"key {n}") for n in range(1000)])
    assert [item.value["n"] for item in got] == list(range(1000))


WRONG: dict[str, Any] = {
    "value": PutOp(HOME, "wrong", {"x": object()}),
    "namespace": PutOp((*HOME, ""), "wrong", {}),
    "filter": SearchOp(HOME, {"n": {"$near": 1}}),
    "op": "no op at all",
}


@needs("atomic_batches")
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_batch_with_a_wrong_op_changes_nothing(my_store: Caller, wrong: Any) -> None:
    put_all(my_store, FULL)
    with pytest.raises((TypeError, ValueError)):
        my_store.batch([PutOp(HOME, "a", {"n": 9}), PutOp(HOME, "b", None), wrong, PutOp(HOME, "d", {"n": 9})])
    assert {key: value(my_store, key) for key in keys(my_store.search(HOME))} == FULL
