"""A put that is committed at once, in the calling thread: what interrupts it, and what comes meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

import pytest

import threadkeep
from checkpoint_chains import Chain, config
from threadkeep.errors import Closed

SOURCE = os.path.dirname(threadkeep.__file__)


@contextmanager
def at_line(k: int, action: Callable[[], None]) -> Iterator[list[int]]:
    """Call `action` before the k-th line of threadkeep that this thread executes. Yield a list with the lines left."""
    left = [k]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                action()
        return trace

    sys.settrace(trace)
    try:
        yield left
    finally:
        sys.settrace(None)


def interrupt() -> None:
    raise KeyboardInterrupt


def step_of(url: str) -> int:
    return 1 if url.startswith("sqlite") else 4


def ids(saver: threadkeep.KeepSaver, thread: str = "t") -> list[str]:
    return [found.checkpoint["id"] for found in saver.list(config(thread))]


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Fail if the body hangs. It must be in the main thread."""

    def fail(*_: Any) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def beside() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Yield a function that starts some work in another thread, and gives it a moment. At the end it must be done."""
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def start(work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        threads[-1].join(0.05)  # not longer: it may have to wait for this thread

    yield start
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it hangs"
    assert not errors


@pytest.mark.parametrize("verb", ["put", "put_writes"])
def test_ctrl_c_at_any_line_leaves_the_thread_as_before_or_as_after(lasting_url: str, verb: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        saver = keep.checkpointer
        for n, k in enumerate(count(1, step_of(lasting_url))):
            chain, interrupted = Chain(saver, f"t{n}"), False
            chain.put({"n": 0}, id="0")
            chain.put({"n": 1, "log": ["a"]}, id="1")
            with at_line(k, interrupt) as left:
                try:
                    if verb == "put":
                        chain.put({"n": 2, "log": ["a", "b"]}, id="2")
                    else:
                        saver.put_writes(config(f"t{n}", "1"), [("n", n), ("log", ["x"])], "task")
                except KeyboardInterrupt:
                    interrupted = True
            found = saver.get_tuple(config(f"t{n}"))
            assert found is not None
            if verb == "put":
                expected = {"1": {"n": 1, "log": ["a"]}, "2": {"n": 2, "log": ["a", "b"]}}
                assert found.checkpoint["channel_values"] == expected[found.checkpoint["id"]]
                Chain(saver, f"t{n}").put({"n": 3}, id="3")
            else:
                assert found.pending_writes in ([], [("task", "n", n), ("task", "log", ["x"])])
                saver.put_writes(config(f"t{n}", "1"), [("n", n)], "another task")
            if left[0] > 0:
                break
            assert interrupted
        assert n > 20
        assert not keep.verify().problems


def test_a_put_inside_a_put_does_not_wait_for_it(lasting_url: str) -> None:
    """As a signal handler or a finalizer may do it, at any line."""
    with threadkeep.open(lasting_url) as keep:
        saver = keep.checkpointer
        for n, k in enumerate(count(1, 2 * step_of(lasting_url))):
            chain = Chain(saver, f"t{n}")
            chain.put({"n": 0}, id="0")

            def again(n: int = n) -> None:
                Chain(saver, f"t{n}").put({"n": 1}, id="inner")
                Chain(saver, "other").put({"n": n}, id=f"{n:06}")

            with alarm(30), at_line(k, again) as left:
                chain.put({"n": 2}, id="outer")
            if left[0] > 0:
                break
            assert ids(saver, f"t{n}") == ["outer", "inner", "0"]
            assert ids(saver, "other")[0] == f"{n:06}"
        assert n > 10
        assert not keep.verify().problems


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_of_another_thread_at_any_line_disturbs_nothing(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        saver = keep.checkpointer
        chain = Chain(saver)
        chain.put({"n": 0}, id="000000")

        def fork() -> None:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)

        for n, k in enumerate(count(1, 8 * step_of(lasting_url)), start=1):
            with beside() as start, at_line(k, lambda start=start: start(fork)) as left:
                chain.put({"n": n}, id=f"{n:06}")
            found = saver.get_tuple(config("t"))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"n": n}
            if left[0] > 0:
                break
        assert n > 5
        assert not keep.verify().problems


def test_closing_in_another_thread_at_any_line_makes_the_put_or_says_closed(lasting_url: str) -> None:
    for n, k in enumerate(count(1, 12 * step_of(lasting_url)), start=1):
        with threadkeep.open(lasting_url) as keep:
            chain = Chain(keep.checkpointer, f"t{n}")
            chain.put({"n": 0}, id="000000")
            made = True
            with beside() as start, at_line(k, lambda keep=keep, start=start: start(keep.close)) as left:
                try:
                    chain.put({"n": n}, id="000001")
                except Closed:
                    made = False
        with threadkeep.open(lasting_url) as keep:
            assert ids(keep.checkpointer, f"t{n}") == (["000001", "000000"] if made else ["000000"])
        if left[0] > 0:
            break
    assert n > 3


def test_a_warm_put_in_the_main_thread_needs_no_worker(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        chain = Chain(keep.checkpointer)
        chain.put({"n": 0}, id="000000")
        chain.put({"n": 1}, id="000001")
        transport: Any = keep._session.transport

        def refuse(requests: Any) -> Any:
            raise AssertionError(requests)

        transport.write = refuse
        for n in range(2, 6):
            chain.put({"n": n}, id=f"{n:06}")
            keep.checkpointer.put_writes(config("t", f"{n:06}"), [("n", n)], "task")
        del transport.write
        assert len(ids(keep.checkpointer)) == 6


def test_changes_of_one_thread_from_many_threads_are_all_made(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        saver = keep.checkpointer
        Chain(saver).put({"n": 0}, id="000000")
        start = threading.Barrier(8)

        def write(who: int) -> None:
            start.wait()
            for n in range(25):
                saver.put_writes(config("t", "000000"), [("n", n)], f"task {who} {n}")

        writers = [threading.Thread(target=write, args=[who]) for who in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        found = saver.get_tuple(config("t"))
        assert found is not None
        assert len(found.pending_writes or ()) == 200
        assert not keep.verify().problems
