"""A put that is committed at once, in the calling thread: what interrupts it, and what comes meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from linecache import getline
from types import FrameType
from typing import Any

import pytest

import threadkeep
from checkpoint_chains import Chain, config
from processes import run_forked
from threadkeep.errors import Closed, Conflict, Unavailable

SOURCE = os.path.dirname(threadkeep.__file__)


@contextmanager
def at_line(k: int, action: Callable[[], None]) -> Iterator[list[int]]:
    """Call `action` before the k-th line of threadkeep that this thread executes. Yield a list with the lines left.

    Lines that start with `with` do not count: Python calls no signal handler between a body and `__exit__`, but a trace
    function that raises there would leave a lock locked.
    """
    left = [k]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if event == "line" and not getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
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
        threads[-1].join(0.02)  # not longer: it may have to wait for this thread

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


def test_ctrl_c_while_a_change_is_handed_to_a_worker_delays_nobody(url: str) -> None:
    """At any line, also before the first worker starts: other threads must not wait for a worker that never comes."""
    for n in count(1):
        with threadkeep.open(url) as keep, beside() as start:
            saver = keep.checkpointer
            Chain(saver, f"t{n}").put({"n": 0}, id="0")
            with at_line(n, interrupt) as left:
                with suppress(KeyboardInterrupt):
                    saver.copy_thread(f"t{n}", f"copy{n}")
            start(lambda n=n, saver=saver: saver.copy_thread(f"t{n}", f"other{n}"))  # type: ignore[misc]
        if left[0] > 0:
            break
    assert n > 20


@pytest.mark.parametrize("commits_fail", [False, True])
def test_ctrl_c_in_a_caller_who_has_claimed_a_thread_leaves_no_other_caller_waiting(
    lasting_url: str, *, commits_fail: bool
) -> None:
    """At any line: another caller, whose put waits for the claimed thread, goes on."""
    for n, k in enumerate(count(1, step_of(lasting_url)), start=1):
        with threadkeep.open(lasting_url) as keep, beside() as start:
            saver = keep.checkpointer
            transport: Any = keep._session.transport
            Chain(saver, f"t{n}").put({"n": 0}, id="0")
            try_commit = transport.try_commit

            def commit(batch: Any, n: int = n, saver: Any = saver, start: Any = start, keep: Any = keep) -> bool:
                transport.try_commit = try_commit
                start(lambda: saver.put_writes(config(f"t{n}", "0"), [("n", n)], "other"))
                return not commits_fail and try_commit(batch)

            transport.try_commit = commit
            with at_line(k, interrupt) as left:
                with suppress(KeyboardInterrupt):
                    saver.put_writes(config(f"t{n}", "0"), [("n", n)], "task")
        if left[0] > 0:
            break
    assert n > 20


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
    """In a small process: a fork of one that ran many tests takes a second."""
    run_forked("import sys, test_at_once; test_at_once.fork_at_any_line(sys.argv[1])", lasting_url)


def fork_at_any_line(url: str) -> None:
    with threadkeep.open(url) as keep:
        saver = keep.checkpointer
        chain = Chain(saver)
        chain.put({"n": 0}, id="000000")

        def fork() -> None:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)

        for n, k in enumerate(count(1, 8 * step_of(url)), start=1):
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


# --- several callers of one thread


@contextmanager
def waiting_writers(keep: threadkeep.Keep, count: int) -> Iterator[list[int]]:
    """While a commit of the thread is under way, let `count` other threads wait with put_writes. Then all continue.

    Yield a list that gets the number of write rows of each commit at once, that of the first one included. The body
    runs before the first commit continues; what the waiting threads raise is raised at the end.
    """
    transport: Any = keep._session.transport
    saver, try_commit, go, sizes = keep.checkpointer, transport.try_commit, threading.Event(), list[int]()
    is_inside = threading.Event()
    errors: list[BaseException] = []

    def counted(batch: Any) -> bool:
        if not is_inside.is_set():
            is_inside.set()
            go.wait(60)
        sizes.append(len(batch.new_writes))
        made: bool = try_commit(batch)
        return made

    def write(n: int) -> None:
        try:
            saver.put_writes(config("t", "000001"), [("n", n)], f"task {n}")
        except BaseException as error:
            errors.append(error)

    transport.try_commit = counted
    threads = [threading.Thread(target=write, args=[n], daemon=True) for n in range(count + 1)]
    threads[0].start()
    assert is_inside.wait(60)
    for thread in threads[1:]:
        thread.start()
    key = keep._session.key("graph", "t")
    for _ in range(6000):
        if len(keep._session.runner._state.queues[key]) == count:
            break
        time.sleep(0.01)
    yield sizes
    go.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]


@pytest.fixture
def warm_keep(lasting_url: str) -> Iterator[threadkeep.Keep]:
    """A Keep whose transport commits at once, with a cached thread."""
    with threadkeep.open(lasting_url) as keep:
        if not keep._session.transport.commits_at_once:
            pytest.skip("nothing is committed at once")
        chain = Chain(keep.checkpointer)
        chain.put({"n": 0}, id="000000")
        chain.put({"n": 1}, id="000001")
        yield keep


def writes_of(keep: threadkeep.Keep) -> set[Any]:
    found = keep.checkpointer.get_tuple(config("t"))
    assert found is not None
    return {value for _, _, value in found.pending_writes or ()}


def test_one_of_the_callers_who_wait_commits_for_all_at_once(warm_keep: threadkeep.Keep) -> None:
    transport: Any = warm_keep._session.transport

    def refuse(requests: Any) -> Any:
        raise AssertionError(requests)

    transport.write = refuse
    with waiting_writers(warm_keep, 5) as sizes:
        pass
    del transport.write
    assert sizes == [1, 5]
    assert writes_of(warm_keep) == set(range(6))
    assert not warm_keep.verify().problems


@pytest.mark.parametrize("failure", [Conflict(), Unavailable("no disk"), None], ids=["conflict", "error", "no"])
def test_what_cannot_be_committed_for_all_at_once_is_committed_anyway(
    warm_keep: threadkeep.Keep, failure: Exception | None
) -> None:
    transport: Any = warm_keep._session.transport
    try_commit = transport.try_commit

    def one_only(batch: Any) -> bool:
        if len(batch.new_writes) == 1:
            made: bool = try_commit(batch)
            return made
        if failure is not None:
            raise failure
        return False

    transport.try_commit = one_only
    with waiting_writers(warm_keep, 5) as sizes:
        pass
    assert sizes[:2] == [1, 5]
    assert writes_of(warm_keep) == set(range(6))
    assert not warm_keep.verify().problems


def test_a_lost_reply_to_a_commit_for_all_stores_nothing_twice(warm_keep: threadkeep.Keep) -> None:
    transport: Any = warm_keep._session.transport
    try_commit = transport.try_commit
    transport.try_commit = lambda batch: try_commit(batch) and len(batch.new_writes) == 1
    with waiting_writers(warm_keep, 5) as sizes:
        pass
    assert sizes[:2] == [1, 5]
    assert writes_of(warm_keep) == set(range(6))
    assert not warm_keep.verify().problems


def test_errors_of_a_commit_for_all_reach_every_caller(warm_keep: threadkeep.Keep) -> None:
    transport: Any = warm_keep._session.transport
    try_commit, write = transport.try_commit, transport.write
    outcomes: list[int] = []

    def fails(requests: Any) -> Any:
        outcomes.extend(len(request.batch.new_writes) for request in requests)
        raise Unavailable("no disk")

    transport.try_commit = lambda batch: len(batch.new_writes) == 1 and try_commit(batch)
    transport.write = fails
    with pytest.raises(Unavailable), waiting_writers(warm_keep, 5):
        pass
    transport.try_commit, transport.write = try_commit, write
    assert outcomes == [5]
    assert writes_of(warm_keep) == {0}
    warm_keep.checkpointer.put_writes(config("t", "000001"), [("n", "later")], "task")
    assert writes_of(warm_keep) == {0, "later"}


def test_a_put_inside_a_commit_for_all_does_not_wait_for_it(warm_keep: threadkeep.Keep) -> None:
    transport: Any = warm_keep._session.transport
    try_commit, saver = transport.try_commit, warm_keep.checkpointer

    def puts_too(batch: Any) -> bool:
        if len(batch.new_writes) > 1:
            transport.try_commit = try_commit
            saver.put_writes(config("t", "000001"), [("n", "inside")], "another task")
        made: bool = try_commit(batch)
        return made

    transport.try_commit = puts_too
    with waiting_writers(warm_keep, 5):
        pass
    assert writes_of(warm_keep) == {*range(6), "inside"}


def test_closing_waits_for_a_commit_for_all(warm_keep: threadkeep.Keep, lasting_url: str) -> None:
    with waiting_writers(warm_keep, 5) as sizes:
        closing = threading.Thread(target=warm_keep.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
    closing.join(60)
    assert not closing.is_alive()
    assert sizes[0] == 1
    with threadkeep.open(lasting_url) as keep:
        assert writes_of(keep) == set(range(6))


def test_callers_who_shared_a_commit_share_the_next_one(warm_keep: threadkeep.Keep) -> None:
    """A lone caller afterwards waits for nobody, whichever thread it is in."""
    saver, runner = warm_keep.checkpointer, warm_keep._session.runner
    with waiting_writers(warm_keep, 5):
        pass
    key = warm_keep._session.key("graph", "t")
    assert runner.shared_key == key
    assert not runner.is_shared(key), "this is the main thread"
    saver.put_writes(config("t", "000001"), [("n", "main")], "main")
    assert runner.shared_key == key
    lone = threading.Thread(target=saver.put_writes, args=[config("t", "000001"), [("n", "lone")], "lone"])
    lone.start()
    lone.join(60)
    assert not lone.is_alive()
    assert runner.shared_key is None
    assert writes_of(warm_keep) == {*range(6), "main", "lone"}
