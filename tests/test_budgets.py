"""No verb makes more calls, statements, round trips, commits, rows or bytes than recorded. Nothing here is timed.

If a change makes a verb cheaper, or more expensive for a good reason, `make budgets` records the new costs; the
difference is then part of the change.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import budgets
from budgets import BACKENDS


class Goal(NamedTuple):
    """The most that a verb on SQLite may ever cost, whatever is recorded. Comprehensions are calls here."""

    calls: int
    kb: float | None = None


GOALS = {
    "put": Goal(100, 16),
    "put_writes": Goal(70, 14),
    "get_tuple": Goal(700),
    "get_tuple, second": Goal(700),
    "get_tuple, third": Goal(700),
    "list(10)": Goal(1_500),
    "store.put": Goal(80),
    "store.get": Goal(44),
    "store.search(filter)": Goal(120),
}
ASYNC_GOAL = 60
"""An async verb may make so many calls more than the sync one."""
ASYNC_VERBS = {
    "aput": "put",
    "aput_writes": "put_writes",
}


def calls(cost: budgets.Cost) -> float:
    return cost["python_calls"] + cost["comprehensions"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_verb_stays_within_its_recorded_budget(backend: str) -> None:
    recorded_with, recorded = budgets.load()
    assert budgets.measure(backend).keys() == recorded[backend].keys(), "run: make budgets"
    excesses = budgets.lasting(
        lambda costs: budgets.excesses(backend, costs, recorded[backend], recorded_with), backend
    )
    assert excesses == [], "above the budget; make it cheaper, or run: make budgets"
    savings = budgets.lasting(lambda costs: budgets.savings(backend, costs, recorded[backend], recorded_with), backend)
    assert savings == [], "far below the budget: run: make budgets"


@pytest.mark.parametrize("verb", GOALS)
def test_no_verb_on_sqlite_makes_more_calls_than_its_goal(verb: str) -> None:
    assert calls(budgets.measure("sqlite")[verb]) <= GOALS[verb].calls


@pytest.mark.parametrize("verb", [verb for verb, goal in GOALS.items() if goal.kb is not None])
def test_no_verb_on_sqlite_writes_more_than_its_goal(verb: str) -> None:
    assert budgets.measure("sqlite")[verb]["kb"] <= GOALS[verb].kb


@pytest.mark.parametrize("verb", ASYNC_VERBS)
def test_an_async_verb_on_sqlite_makes_few_calls_more_than_the_sync_one(verb: str) -> None:
    costs = budgets.measure("sqlite")
    assert calls(costs[verb]) - calls(costs[ASYNC_VERBS[verb]]) <= ASYNC_GOAL


def test_a_cost_is_compared_in_both_directions() -> None:
    costs = {"put": {"python_calls": 100.0, "kb": 16.0}}

    def compare(compared: Any, **budget: float) -> list[str]:
        return list(compared("sqlite", costs, {"put": budget}, budgets.PYTHON))

    assert compare(budgets.excesses, python_calls=100, kb=16.0) == []
    assert compare(budgets.excesses, python_calls=90, kb=16.0) == ["put: python_calls 100, budget 90"]
    assert compare(budgets.excesses, python_calls=100) == ["put: kb 16, budget 0"]
    assert compare(budgets.savings, python_calls=120, kb=16.0) == []
    assert compare(budgets.savings, python_calls=130, kb=16.0) == ["put: python_calls 100, budget 130"]
