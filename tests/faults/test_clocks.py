"""A clock that jumps back and forth while writers write: nothing is lost, and what is newest stays newest."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_log import FaultLog, audit
from fault_matrix import Matrix, size
from fault_storages import BACKENDS, shared_url
from fault_writers import FaultWriters

import threadkeep
from checkpoint_chains import Chain, list_ids, values_of

HOUR = 3600 * 10**9


class Clock:
    """The clock of this process, which a test sets.

    LangGraph makes checkpoint ids that never go back within a process: it must forget those of a time that was not.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.offset = 0
        real = time.time_ns
        patch.setattr(time, "time_ns", lambda: real() + self.offset)
        patch.setattr("langgraph.checkpoint.base.id._last_v6_timestamp", None)

    @contextmanager
    def jumping(self, jumps: list[int]) -> Iterator[None]:
        """Set the clock to another hour again and again. Count how often."""
        stop, chance = threading.Event(), random.Random(3)

        def jump() -> None:
            while not stop.wait(0.002):
                self.offset = chance.randint(-48, 48) * HOUR
                jumps.append(self.offset)

        jumper = threading.Thread(target=jump)
        jumper.start()
        try:
            yield
        finally:
            stop.set()
            jumper.join()
            self.offset = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.fault("clock that jumps")
@pytest.mark.parametrize("backend", BACKENDS)
def test_writers_lose_nothing(backend: str, tmp_path: Path, clock: Clock, log: FaultLog, matrix: Matrix) -> None:
    url, jumps = shared_url(backend, tmp_path), list[int]()
    with threadkeep.open(url) as keep, clock.jumping(jumps), FaultWriters(keep, log) as writers:
        writers.wait_for(size(10, 500))
    matrix.add(len(jumps), audit(url, log))


@pytest.mark.parametrize("backend", ["memory", *BACKENDS])
def test_what_is_newest_stays_newest_when_the_clock_goes_back(backend: str, tmp_path: Path, clock: Clock) -> None:
    index = {"dims": 2, "embed": lambda texts: [[float(len(text)), 1.0] for text in texts]}
    url = "memory://" if backend == "memory" else shared_url(backend, tmp_path)
    with threadkeep.open(url, index=index) as keep:
        chain = Chain(keep.checkpointer)
        chain.put({"n": 0})
        chain.put({"n": 1})
        keep.store.put(("m",), "k", {"text": "short"})
        keep.store.put(("m",), "other", {"text": "x" * 30})
        assert [item.key for item in keep.store.search(("m",), query="short")] == ["k", "other"]
        before = keep.threads()[0].updated
        clock.offset = -HOUR
        chain.put({"n": 2})
        assert keep.threads()[0].updated >= before
        back = keep.rollback("t", "00000000")
        assert list_ids(keep.checkpointer)[0] == back.id
        assert values_of(keep.checkpointer) == {"n": 0}
        keep.store.put(("m",), "k", {"text": "y" * 60})
        assert keep.store.get(("m",), "k").value == {"text": "y" * 60}
        assert [item.key for item in keep.store.search(("m",), query="x" * 60)] == ["k", "other"]
        keep.store.put(("m",), "passing", {"n": 1}, ttl=30)
        clock.offset = -2 * HOUR
        assert keep.store.get(("m",), "passing") is not None
        clock.offset = 0
        assert keep.store.get(("m",), "passing") is None


@pytest.mark.parametrize("backend", ["memory", *BACKENDS])
def test_a_lease_lasts_whatever_the_clock_of_the_process_says(backend: str, tmp_path: Path, clock: Clock) -> None:
    url = "memory://" if backend == "memory" else shared_url(backend, tmp_path)
    with threadkeep.open(url) as keep, keep.lease("t", ttl=60):
        for offset in (-HOUR, HOUR):
            clock.offset = offset
            Chain(keep.checkpointer).put({"n": offset}, id=f"{offset}")
            assert keep.lease_info("t") is not None
            with ThreadPoolExecutor(1) as other, pytest.raises(threadkeep.errors.Leased):
                other.submit(take, keep).result()


def take(keep: threadkeep.Keep) -> None:
    with keep.lease("t", ttl=60, wait=0):
        raise AssertionError("somebody else has it")
