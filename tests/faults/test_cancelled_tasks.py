"""Async verbs that are cancelled at each of their awaits: done as a whole or not at all, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Coroutine, Generator
from pathlib import Path
from types import coroutine
from typing import Any

import pytest
from fault_log import Findings
from fault_matrix import Matrix, size
from fault_storages import BACKENDS, shared_url
from fault_verbs import CHANGES, READS, Verb, fill, stored

import postgres_servers
import threadkeep

MOMENTS = ("while it waits", "when the reply is there")


@coroutine
def cancelled_at(work: Coroutine[Any, Any, Any], k: int, moment: str) -> Generator[Any, Any, bool]:
    """Run a coroutine and cancel its task at the k-th await that does not return at once. False if it had fewer."""
    task = asyncio.current_task()
    assert task is not None
    for n in itertools.count():
        try:
            waits_for = work.send(None)
        except StopIteration:
            return False
        if n == k:
            if waits_for is None or moment == MOMENTS[0]:
                task.cancel()
            else:
                waits_for.add_done_callback(lambda _: task.cancel())
        try:
            yield waits_for
        except BaseException as error:
            cancelled: BaseException = error
            break
    try:
        while True:
            yield work.throw(cancelled)
    except StopIteration:
        raise AssertionError("the verb ignored that it was cancelled") from None


async def run(verb: Verb, keep: threadkeep.Keep, k: int, moment: str) -> bool:
    """Run a verb that is cancelled at its k-th await. Return whether it was."""
    task = asyncio.ensure_future(_run(verb, keep, k, moment))
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(outcome, asyncio.CancelledError):
        return True
    if isinstance(outcome, BaseException):
        raise outcome
    return bool(outcome)


async def _run(verb: Verb, keep: threadkeep.Keep, k: int, moment: str) -> Any:
    return await cancelled_at(verb.acall(keep), k, moment)


def open_storage(backend: str, folder: Path) -> threadkeep.Keep:
    return threadkeep.open("memory://" if backend == "memory" else shared_url(backend, folder))


@pytest.mark.fault("task cancelled at each await of a change")
@pytest.mark.parametrize("backend", ["memory", *BACKENDS])
def test_a_change_is_made_as_a_whole_or_not_at_all(
    backend: str, tmp_path: Path, matrix: Matrix, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = 0
    with open_storage(backend, tmp_path) as keep:
        for (name, verb), moment in list(itertools.product(CHANGES.items(), MOMENTS))[:: size(5, 1)]:
            with keep.tenant(f"{name} {moment}") as own:
                fill(own)
                before = stored(own)
                verb.call(own)
                after = stored(own)
            for k in itertools.count():
                with keep.tenant(f"{name} {moment} {k}") as own:
                    fill(own)
                    was_cancelled = asyncio.run(run(verb, own, k, moment))
                    found = stored(own)
                    assert all(found[part] in (before[part], after[part]) for part in before), (name, moment, k)
                    verb.call(own)
                    assert stored(own) == after, (name, moment, k)
                    assert own.verify().problems == []
                rounds += was_cancelled
                if not was_cancelled:
                    assert found == after
                    break
            assert 0 < k < 30, (name, moment, k)
        check_nothing_is_left(keep, caplog)
    matrix.add(rounds, Findings(rounds))


@pytest.mark.fault("task cancelled at each await of a read")
@pytest.mark.parametrize("backend", ["memory", *BACKENDS])
def test_a_read_leaves_everything_usable(
    backend: str, tmp_path: Path, matrix: Matrix, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = 0
    with open_storage(backend, tmp_path) as keep:
        fill(keep)
        for (name, verb), moment in list(itertools.product(READS.items(), MOMENTS))[:: size(4, 1)]:
            expected = verb.call(keep)
            for k in itertools.count():
                was_cancelled = asyncio.run(run(verb, keep, k, moment))
                assert verb.call(keep) == expected, (name, moment, k)
                rounds += was_cancelled
                if not was_cancelled:
                    break
            assert 0 < k < 30, (name, moment, k)
        check_nothing_is_left(keep, caplog)
    matrix.add(rounds, Findings(rounds))


def check_nothing_is_left(keep: threadkeep.Keep, caplog: pytest.LogCaptureFixture) -> None:
    """Check that no reply was left to nobody, no connection is lent, and the number of threads is bounded."""
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    transport: Any = keep._session.transport.inner
    if pool := getattr(getattr(transport, "_connections", None), "pool", None):
        assert postgres_servers.wait_until(lambda: len(pool._idle) == len(pool._made), 30)
    assert sum(thread.name.startswith("threadkeep") for thread in threading.enumerate()) < 20
