"""Tests of time to live (TTL, in minutes): expired items never come back, and what restarts the TTL."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph.store.base import GetOp, PutOp

from threadkeep.conformance.clock import Clock
from threadkeep.conformance.store.contents import HOME, keys
from threadkeep.conformance.sync_async import Caller

LIFETIMES = (0.4, 3.0)
"""Seconds: a short TTL first; if an item expired too early, one so long that a slow machine is no excuse."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A time to live, and a way to wait for a part of it."""

    seconds: float
    clock: Clock

    @property
    def ttl(self) -> float:
        """The TTL in minutes, as stores expect it."""
        return self.seconds / 60

    def wait(self, part: float) -> None:
        """Sleep for this fraction of the lifetime."""
        self.clock.sleep(self.seconds * part)


class ExpiredEarly(AssertionError):
    """An item expired before its time."""


def check_present(found: Any) -> None:
    """Raise ExpiredEarly if nothing was found."""
    if not found:
        raise ExpiredEarly("the item expired before its time")


def retry_slower(scenario: Callable[[Lifetime], None], clock: Clock) -> None:
    """Run a scenario with a short lifetime; if an item expired early, once more with a longer one."""
    try:
        scenario(Lifetime(LIFETIMES[0], clock))
    except ExpiredEarly:
        scenario(Lifetime(LIFETIMES[1], clock))


def put_expired(store: Caller, clock: Clock, *names: str) -> None:
    """Put items that have expired when this returns."""
    store.batch([PutOp(HOME, name, {"brief": True}, ttl=0.001) for name in names])
    clock.sleep(0.1)


def test_an_expired_item_is_not_returned_by_get(my_ttl_store: Caller, clock: Clock) -> None:
    put_expired(my_ttl_store, clock, "k")
    assert my_ttl_store.get(HOME, "k") is None
    assert my_ttl_store.get(HOME, "k", refresh_ttl=True) is None


def test_an_expired_item_is_not_found_by_search(my_ttl_store: Caller, clock: Clock) -> None:
    put_expired(my_ttl_store, clock, "a", "b", "c")
    my_ttl_store.put(HOME, "stays", {"brief": False})
    assert keys(my_ttl_store.search(HOME)) == ["stays"]
    assert my_ttl_store.search(HOME, filter={"brief": True}) == []
    assert keys(my_ttl_store.search(HOME, limit=1)) == ["stays"]
    assert my_ttl_store.search(HOME, offset=1) == []


def test_a_namespace_of_expired_items_is_not_listed(my_ttl_store: Caller, clock: Clock) -> None:
    put_expired(my_ttl_store, clock, "k")
    my_ttl_store.put(("other",), "k", {})
    assert my_ttl_store.list_namespaces() == [("other",)]
    assert my_ttl_store.list_namespaces(prefix=HOME) == []
    assert my_ttl_store.list_namespaces(max_depth=1) == [("other",)]


def test_an_expired_item_that_is_put_again_is_new(my_ttl_store: Caller, clock: Clock) -> None:
    clock.wait_for_start_of_second()
    my_ttl_store.put(HOME, "k", {})
    first = my_ttl_store.get(HOME, "k")
    put_expired(my_ttl_store, clock, "k")
    my_ttl_store.put(HOME, "k", {"again": True})
    again = my_ttl_store.get(HOME, "k")
    assert again.value == {"again": True}
    assert again.created_at > first.created_at


def test_an_item_exists_until_it_expires(my_ttl_store: Caller, clock: Clock) -> None:
    def scenario(lifetime: Lifetime) -> None:
        my_ttl_store.put(HOME, "k", {"n": 1}, ttl=lifetime.ttl)
        check_present(my_ttl_store.search(HOME, refresh_ttl=False))
        lifetime.wait(1.2)
        assert my_ttl_store.search(HOME) == []

    retry_slower(scenario, clock)


def test_an_item_without_ttl_does_not_expire(my_ttl_store: Caller, clock: Clock) -> None:
    my_ttl_store.put(HOME, "none", {}, ttl=None)
    my_ttl_store.put(HOME, "not given", {})
    put_expired(my_ttl_store, clock, "brief")
    assert sorted(keys(my_ttl_store.search(HOME))) == ["none", "not given"]


READS: dict[str, Callable[..., Any]] = {
    "get": lambda store, **how: store.get(HOME, "k", **how),
    "batch": lambda store, **how: [item for item in store.batch([GetOp(HOME, "k", **how)] * 2) if item],
    "search": lambda store, **how: store.search(HOME, **how),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
@pytest.mark.parametrize("how", [{"refresh_ttl": True}, {}], ids=["asked for", "by default"])
def test_a_read_restarts_the_ttl(
    my_ttl_store: Caller, read: Callable[..., Any], how: dict[str, bool], clock: Clock
) -> None:
    def scenario(lifetime: Lifetime) -> None:
        my_ttl_store.put(HOME, "k", {}, ttl=lifetime.ttl)
        for _ in range(2):
            lifetime.wait(0.6)
            check_present(read(my_ttl_store, **how))
        lifetime.wait(1.2)
        assert not read(my_ttl_store, **how)

    retry_slower(scenario, clock)


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_a_read_without_refresh_does_not_restart_the_ttl(
    my_ttl_store: Caller, read: Callable[..., Any], clock: Clock
) -> None:
    def scenario(lifetime: Lifetime) -> None:
        my_ttl_store.put(HOME, "k", {}, ttl=lifetime.ttl)
        lifetime.wait(0.6)
        check_present(read(my_ttl_store, refresh_ttl=False))
        lifetime.wait(0.6)
        assert not read(my_ttl_store, refresh_ttl=False)

    retry_slower(scenario, clock)


def test_an_overwrite_restarts_the_ttl(my_ttl_store: Caller, clock: Clock) -> None:
    def scenario(lifetime: Lifetime) -> None:
        for n in range(3):
            my_ttl_store.put(HOME, "k", {"n": n}, ttl=lifetime.ttl)
            lifetime.wait(0.6)
        check_present(my_ttl_store.get(HOME, "k", refresh_ttl=False))
        lifetime.wait(0.6)
        assert my_ttl_store.get(HOME, "k") is None

    retry_slower(scenario, clock)


def test_an_overwrite_without_ttl_does_not_expire(my_ttl_store: Caller, clock: Clock) -> None:
    def scenario(lifetime: Lifetime) -> None:
        for name in ("none", "not given"):
            my_ttl_store.put(HOME, name, {"n": 1}, ttl=lifetime.ttl)
        my_ttl_store.put(HOME, "none", {"n": 2}, ttl=None)
        my_ttl_store.put(HOME, "not given", {"n": 2})
        lifetime.wait(1.2)
        assert sorted(keys(my_ttl_store.search(HOME))) == ["none", "not given"]

    retry_slower(scenario, clock)


def test_a_store_without_ttl_refuses_it(my_store: Caller, capabilities: Any) -> None:
    """An item that should expire must not silently be kept forever."""
    if capabilities.ttl:
        pytest.skip("only for stores without the capability 'ttl'")
    with pytest.raises(NotImplementedError):
        my_store.put(HOME, "k", {}, ttl=1)
    assert my_store.get(HOME, "k") is None
