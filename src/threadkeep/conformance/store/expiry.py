"""Time to live, in minutes: what is over never comes back, and what starts the time again."""
# ruff: noqa: D103 - the name of a test says what it demands

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph.store.base import PutOp

from threadkeep.conformance.colours import Colour
from threadkeep.conformance.store.contents import HOME, keys, within_a_second

TERMS = (0.4, 3.0)
"""Seconds to live: first short, then, if an item was gone too early, so long that no slow machine is to blame."""


@dataclass(frozen=True, slots=True)
class Term:
    """A time to live, and waiting for a part of it."""

    seconds: float

    @property
    def ttl(self) -> float:
        """In minutes, as stores want it."""
        return self.seconds / 60

    def wait(self, part: float) -> None:
        """Let this part of the time go by."""
        time.sleep(self.seconds * part)


class Early(AssertionError):
    """An item was gone before its time."""


def still(found: Any) -> None:
    """What was found must be something."""
    if not found:
        raise Early("the item is gone before its time")


def patiently(story: Callable[[Term], None]) -> None:
    """Tell a story of a short time; if an item was gone early, once more with a longer one."""
    try:
        story(Term(TERMS[0]))
    except Early:
        story(Term(TERMS[1]))


def put_brief(store: Colour, *names: str) -> None:
    """Put items that are over when this returns."""
    store.batch([PutOp(HOME, name, {"brief": True}, ttl=0.001) for name in names])
    time.sleep(0.1)


def test_what_is_over_is_not_got(my_ttl_store: Colour) -> None:
    put_brief(my_ttl_store, "k")
    assert my_ttl_store.get(HOME, "k") is None
    assert my_ttl_store.get(HOME, "k", refresh_ttl=True) is None


def test_what_is_over_is_not_found(my_ttl_store: Colour) -> None:
    put_brief(my_ttl_store, "a", "b", "c")
    my_ttl_store.put(HOME, "stays", {"brief": False})
    assert keys(my_ttl_store.search(HOME)) == ["stays"]
    assert my_ttl_store.search(HOME, filter={"brief": True}) == []
    assert keys(my_ttl_store.search(HOME, limit=1)) == ["stays"]
    assert my_ttl_store.search(HOME, offset=1) == []


def test_a_namespace_whose_items_are_over_is_not_listed(my_ttl_store: Colour) -> None:
    put_brief(my_ttl_store, "k")
    my_ttl_store.put(("other",), "k", {})
    assert my_ttl_store.list_namespaces() == [("other",)]
    assert my_ttl_store.list_namespaces(prefix=HOME) == []
    assert my_ttl_store.list_namespaces(max_depth=1) == [("other",)]


def test_what_is_over_and_put_again_is_new(my_ttl_store: Colour) -> None:
    within_a_second()
    my_ttl_store.put(HOME, "k", {})
    first = my_ttl_store.get(HOME, "k")
    put_brief(my_ttl_store, "k")
    my_ttl_store.put(HOME, "k", {"again": True})
    again = my_ttl_store.get(HOME, "k")
    assert again.value == {"again": True}
    assert again.created_at > first.created_at


def test_an_item_is_there_until_its_time_is_over(my_ttl_store: Colour) -> None:
    def story(term: Term) -> None:
        my_ttl_store.put(HOME, "k", {"n": 1}, ttl=term.ttl)
        still(my_ttl_store.search(HOME, refresh_ttl=False))
        term.wait(1.2)
        assert my_ttl_store.search(HOME) == []

    patiently(story)


def test_an_item_without_a_time_to_live_stays(my_ttl_store: Colour) -> None:
    my_ttl_store.put(HOME, "none", {}, ttl=None)
    my_ttl_store.put(HOME, "not given", {})
    put_brief(my_ttl_store, "brief")
    assert sorted(keys(my_ttl_store.search(HOME))) == ["none", "not given"]


READS: dict[str, Callable[..., Any]] = {
    "get": lambda store, **how: store.get(HOME, "k", **how),
    "search": lambda store, **how: store.search(HOME, **how),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
@pytest.mark.parametrize("how", [{"refresh_ttl": True}, {}], ids=["asked for", "by default"])
def test_a_read_starts_the_time_again(my_ttl_store: Colour, read: Callable[..., Any], how: dict[str, bool]) -> None:
    def story(term: Term) -> None:
        my_ttl_store.put(HOME, "k", {}, ttl=term.ttl)
        for _ in range(2):
            term.wait(0.6)
            still(read(my_ttl_store, **how))
        term.wait(1.2)
        assert not read(my_ttl_store, **how)

    patiently(story)


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_a_read_without_refresh_leaves_the_time_alone(my_ttl_store: Colour, read: Callable[..., Any]) -> None:
    def story(term: Term) -> None:
        my_ttl_store.put(HOME, "k", {}, ttl=term.ttl)
        term.wait(0.6)
        still(read(my_ttl_store, refresh_ttl=False))
        term.wait(0.6)
        assert not read(my_ttl_store, refresh_ttl=False)

    patiently(story)


def test_an_overwrite_starts_the_time_again(my_ttl_store: Colour) -> None:
    def story(term: Term) -> None:
        for n in range(3):
            my_ttl_store.put(HOME, "k", {"n": n}, ttl=term.ttl)
            term.wait(0.6)
        still(my_ttl_store.get(HOME, "k", refresh_ttl=False))
        term.wait(0.6)
        assert my_ttl_store.get(HOME, "k") is None

    patiently(story)


def test_an_overwrite_without_a_time_to_live_stays(my_ttl_store: Colour) -> None:
    def story(term: Term) -> None:
        for name in ("none", "not given"):
            my_ttl_store.put(HOME, name, {"n": 1}, ttl=term.ttl)
        my_ttl_store.put(HOME, "none", {"n": 2}, ttl=None)
        my_ttl_store.put(HOME, "not given", {"n": 2})
        term.wait(1.2)
        assert sorted(keys(my_ttl_store.search(HOME))) == ["none", "not given"]

    patiently(story)


def test_a_store_without_time_to_live_refuses_it(my_store: Colour, capabilities: Any) -> None:
    """An item that was to be forgotten must not be kept for ever in silence."""
    if capabilities.ttl:
        pytest.skip("the capability 'ttl' is there: this is for stores without it")
    with pytest.raises(NotImplementedError):
        my_store.put(HOME, "k", {}, ttl=1)
    assert my_store.get(HOME, "k") is None
