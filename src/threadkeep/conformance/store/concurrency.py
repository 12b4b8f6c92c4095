"""Tests of concurrent calls, from 16 threads or 50 tasks: nothing is lost, nothing is half done."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from langgraph.store.base import GetOp, PutOp

from threadkeep.conformance.declarations import needs
from threadkeep.conformance.store.contents import HOME, keys, value
from threadkeep.conformance.sync_async import Caller

MANY = 50


def test_many_puts_at_once_lose_nothing(my_store: Caller) -> None:
    my_store.call_concurrently("put", [((*HOME, f"room {n % 5}"), f"key {n}", {"n": n}) for n in range(MANY)])
    found = my_store.search(HOME, limit=1000)
    assert {item.key: item.value["n"] for item in found} == {f"key {n}": n for n in range(MANY)}


def test_many_puts_of_one_key_leave_one_of_them(my_store: Caller) -> None:
    my_store.call_concurrently("put", [(HOME, "k", {"n": n, "same": [n] * 50}) for n in range(MANY)])
    assert keys(my_store.search(HOME)) == ["k"]
    last = value(my_store, "k")
    assert last["same"] == [last["n"]] * 50


def test_many_batches_at_once_lose_nothing(my_store: Caller) -> None:
    batches = [([PutOp((*HOME, f"room {n}"), f"key {k}", {"n": n}) for k in range(5)],) for n in range(MANY)]
    my_store.call_concurrently("batch", batches)
    assert len(my_store.search(HOME, limit=1000)) == 5 * MANY
    assert len(my_store.list_namespaces(prefix=HOME, limit=1000)) == MANY


@needs("atomic_batches")
def test_batches_on_the_same_keys_are_not_mixed(my_store: Caller) -> None:
    my_store.call_concurrently(
        "batch", [([PutOp(HOME, key, {"n": n}) for key in ("a", "b", "c")],) for n in range(MANY)]
    )
    got = my_store.batch([GetOp(HOME, key) for key in ("a", "b", "c")])
    assert len({item.value["n"] for item in got}) == 1


def test_reads_and_writes_at_once_do_not_disturb_each_other(my_store: Caller) -> None:
    my_store.put(HOME, "k", {"n": -1, "same": [-1] * 50})
    ops = [[PutOp(HOME, "k", {"n": n, "same": [n] * 50})] if n % 2 else [GetOp(HOME, "k")] for n in range(MANY)]
    answers = my_store.call_concurrently("batch", [(each,) for each in ops])
    for (item,) in answers[::2]:
        assert item.value["same"] == [item.value["n"]] * 50


def test_deletes_at_once_remove_what_they_name(my_store: Caller) -> None:
    my_store.batch([PutOp(HOME, f"key {n}", {}) for n in range(MANY)])
    my_store.call_concurrently("delete", [(HOME, f"key {n}") for n in range(0, MANY, 2)])
    assert sorted(keys(my_store.search(HOME, limit=100))) == sorted(f"key {n}" for n in range(1, MANY, 2))
