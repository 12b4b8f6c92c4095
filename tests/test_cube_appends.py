"""An append to a cached CubeLoop thread is staged without a plan: what it makes, and how many calls that takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import threadkeep
from threadkeep.engine.cube import ops, plans
from threadkeep.engine.cube.channels import EVENTS
from threadkeep.engine.identity import CUBE, ThreadKey
from threadkeep.engine.requests import Batch, Commit
from threadkeep.engine.threads.heads import Head, Heads
from threadkeep.plan import drive

KEY = ThreadKey("", CUBE, "t")
CALLS = {"stage": 26, "batch": 31, "head": 12}
"""The most Python calls of an append of one message to a run: stage it, make its batch, and the next head."""


@pytest.fixture
def keep() -> Iterator[threadkeep.Keep]:
    with threadkeep.open("memory://") as keep:
        yield keep


def message(n: int, run: str | None, role: str = "assistant") -> ops.EncodedMessage:
    return ops.encode_message({"id": f"m{n}", "run_id": run, "role": role, "content": [{"text": f"text {n}" * 20}]})


def append(*messages: ops.EncodedMessage, nonce: int = 7) -> ops.AppendMessages:
    return ops.AppendMessages(messages, time=1000 + nonce, nonce=nonce)


def write(keep: threadkeep.Keep, *changes: ops.AnyOp) -> None:
    session = keep._session
    session.exclusive(KEY, lambda: plans.write(session.heads, KEY, changes))


def filled(keep: threadkeep.Keep, messages: int = 10) -> Head:
    write(keep, *(append(message(n, "r", "user" if not n else "assistant"), nonce=n) for n in range(1, messages + 1)))
    head = keep._session.heads.get(KEY)
    assert head is not None
    return head


def batch_of_plan(heads: Heads, op: ops.AnyOp) -> list[Batch]:
    """Return the batches that the plan would commit on the same cached head."""
    sent: list[Batch] = []

    def execute(request: Any) -> None:
        assert isinstance(request, Commit)
        sent.append(request.batch)

    drive(plans.write(heads, KEY, [op]), execute)
    return sent


CHANGES: list[Callable[[], ops.AnyOp]] = [
    lambda: append(message(90, "r")),
    lambda: append(message(90, "r"), message(91, "r"), message(1, "r")),
    lambda: append(message(90, "another run")),
    lambda: append(message(90, None, "user")),
    lambda: append(message(90, "r"), message(91, "q"), message(92, "r")),
    lambda: append(ops.encode_message({"role": "user", "content": []})),
    lambda: append(message(90, "r")._replace(data=b"\xa1x" * 600_000)),
    lambda: ops.ClaimRun("q", time=2000, nonce=5),
    lambda: ops.MergeExtra({"a": 1}, time=2000, nonce=5),
    lambda: ops.SetPendingRequest(({"question_id": "q"}, "r"), time=2000, nonce=5),
    lambda: ops.SaveAnswer("r", "q", "yes", time=2000, nonce=5),
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_op_on_a_cached_thread_makes_the_same_batch_with_and_without_a_plan(
    keep: threadkeep.Keep, change: Callable[[], ops.AnyOp]
) -> None:
    head = filled(keep)
    staging = plans.stage_cached(head, change())
    assert staging is not None
    assert [staging.batch()] == batch_of_plan(keep._session.heads, change())


def test_the_first_append_of_a_thread_is_staged_if_it_is_known_not_to_exist(keep: threadkeep.Keep) -> None:
    heads = keep._session.heads
    heads.store(Head(KEY, None))
    staging = plans.stage_cached(Head(KEY, None), append(message(1, None, "user")))
    assert staging is not None
    assert [staging.batch()] == batch_of_plan(heads, append(message(1, None, "user")))


def test_what_is_cached_does_not_change_before_the_commit(keep: threadkeep.Keep) -> None:
    head = filled(keep)
    run_log = head.cache.run_log
    assert run_log is not None
    ids, runs = set(run_log[1].ids), dict(run_log[1].runs)
    staging = plans.stage_cached(head, append(message(90, "q")), ops.ClaimRun("p", time=2000, nonce=5))
    assert staging is not None
    batch = staging.batch()
    assert batch is not None
    assert (head.cache.run_log, run_log[1].ids, run_log[1].runs) == (run_log, ids, runs)
    after = staging.next_head(batch)
    assert run_log[1].ids == ids | {"m90"}
    assert set(run_log[1].runs) == {"r", "q", "p"}
    assert run_log[1].open == {"p"}
    assert after.cache.run_log is not None
    assert after.cache.run_log[0] == after.recent["", after.row.top].slots[EVENTS].ranges  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change",
    [
        lambda: ops.ClaimRun("done", time=2000, nonce=5),
        lambda: append(message(90, "done")),
        lambda: ops.ClearPendingRequest("q", "r", time=2000, nonce=5),
    ],
)
def test_an_op_that_is_refused_or_has_a_result_is_left_to_the_plan(
    keep: threadkeep.Keep, change: Callable[[], ops.AnyOp]
) -> None:
    filled(keep)
    write(keep, ops.ClaimRun("done", time=1500, nonce=3), ops.CompleteRun("done", time=1501, nonce=4))
    head = keep._session.heads.get(KEY)
    assert head is not None
    assert plans.stage_cached(head, change()) is None


def test_a_thread_whose_run_log_or_checkpoint_is_not_cached_is_left_to_the_plan(keep: threadkeep.Keep) -> None:
    head = filled(keep)
    head.cache.run_log = None
    assert plans.stage_cached(head, append(message(90, "r"))) is None
    assert plans.stage_cached(Head(head.key, head.row, head.names, {}, head.cache), append(message(90, "r"))) is None


def test_a_duplicate_changes_nothing(keep: threadkeep.Keep) -> None:
    staging = plans.stage_cached(filled(keep), append(message(3, "r")))
    assert staging is not None
    assert staging.batch() is None


def count_calls(work: Callable[[], Any]) -> tuple[Any, int]:
    count = 0

    def profile(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        result = work()
    finally:
        sys.setprofile(None)
    return result, count - 1  # without `work`


@pytest.mark.parametrize("length", [10, 1000])
def test_an_append_takes_as_few_calls_to_a_long_thread_as_to_a_short_one(keep: threadkeep.Keep, length: int) -> None:
    head = filled(keep, length)
    for n in range(3):  # the first one interns names and shapes
        op = append(message(length + n + 1, "r"), nonce=length + n + 1)
        staging, stage = count_calls(lambda head=head, op=op: plans.stage_cached(head, op))
        batch, made = count_calls(staging.batch)
        head, next_head = count_calls(lambda staging=staging, batch=batch: staging.next_head(batch))
    counted = {"stage": stage, "batch": made, "head": next_head}
    assert not {name: calls for name, calls in counted.items() if calls > CALLS[name]}
