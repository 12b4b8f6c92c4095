"""Tests of time to live (TTL, in seconds): an entry that has expired never comes back."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from threadkeep.conformance.clock import Clock
from threadkeep.conformance.sync_async import Caller

KEY = (("a",), "k")
OTHER = (("a",), "other")


def test_an_expired_entry_is_not_returned(my_cache: Caller, clock: Clock) -> None:
    my_cache.set({KEY: ("short", 1), OTHER: ("long", 600)})
    clock.sleep(1.1)
    assert my_cache.get([KEY, OTHER]) == {OTHER: "long"}


def test_an_entry_without_a_ttl_stays(my_cache: Caller, clock: Clock) -> None:
    my_cache.set({KEY: ("short", 1)})
    my_cache.set({KEY: ("stays", None)})
    clock.sleep(1.1)
    assert my_cache.get([KEY]) == {KEY: "stays"}


def test_an_entry_that_expired_can_be_set_again(my_cache: Caller, clock: Clock) -> None:
    my_cache.set({KEY: ("old", 1)})
    clock.sleep(1.1)
    my_cache.set({KEY: ("new", 600)})
    assert my_cache.get([KEY]) == {KEY: "new"}
