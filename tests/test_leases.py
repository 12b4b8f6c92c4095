"""Leases: one context at a time writes a thread, whatever freezes, dies, forks or jumps."""

from __future__ import annotations

import asyncio
import contextvars
import json
import operator
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, TypedDict

import apsw
import pytest
from langgraph.graph import START, StateGraph

import postgres_servers
import processes
import threadkeep
import valkey_servers
from checkpoint_chains import Chain, config, values_of
from encrypted_keeps import KEYS
from outages import Proxy
from threadkeep.conformance.cube.samples import user
from threadkeep.engine.lease import StoredLease, pack_lease, unpack_lease
from threadkeep.engine.requests import NAMELESS_START, StorageClock
from threadkeep.errors import Conflict, Corrupt, Leased, LeaseLost, Unavailable, WrongKey

LONG_TTL = 60.0
SHORT_TTL = 0.3
FOREVER = 60.0


def in_new_context(work: Callable[[], Any]) -> Any:
    """Do some work in another thread whose context holds no lease, and return what it returns or raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.Context().run, work).result()


def is_refused(work: Callable[[], Any], error: type[Conflict] = Leased) -> bool:
    """Return whether some work, in another context, raises this kind of Conflict and no other."""
    try:
        in_new_context(work)
    except Conflict as found:
        return type(found) is error
    return False


def put_one(keep: threadkeep.Keep, thread: str = "t", id: str = "00000000", **entries: Any) -> None:
    parent, checkpoint, metadata, new = Chain(keep.checkpointer, thread).next({"x": id}, id=id)
    keep.checkpointer.put({"configurable": {**parent["configurable"], **entries}}, checkpoint, metadata, new)


class Log(TypedDict):
    log: Annotated[list[str], operator.add]
    name: str


def logging_graph(saver: Any) -> Any:
    """Build a graph of three steps, each of which appends the run's name to the log."""
    builder = StateGraph(Log)
    for name in ("a", "b", "c"):
        builder.add_node(name, lambda state: {"log": [state["name"]]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    return builder.compile(checkpointer=saver)


def is_grouped(names: list[str]) -> bool:
    """Return whether equal names stand together."""
    groups = [name for name, _ in groupby(names)]
    return len(groups) == len(set(groups))


# --- one at a time


def test_no_two_threads_hold_a_lease_at_once(keep: threadkeep.Keep) -> None:
    holders: list[int] = []

    def run(n: int) -> None:
        with keep.lease("t"):
            holders.append(n)
            assert holders == [n]
            put_one(keep, id=f"{n:08}")
            assert holders == [n]
            holders.clear()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(8)))
    assert len(list(keep.checkpointer.list(config("t")))) == 8


async def test_no_two_tasks_hold_a_lease_at_once(keep: threadkeep.Keep) -> None:
    holders: list[int] = []

    async def run(n: int) -> None:
        async with keep.lease("t"):
            holders.append(n)
            await Chain(keep.checkpointer).aput({"x": n}, id=f"{n:08}")
            assert holders == [n]
            holders.clear()

    await asyncio.gather(*map(run, range(8)))
    assert [found async for found in keep.checkpointer.alist(config("t"), limit=9)][7:] != []


def test_two_runs_of_a_graph_in_one_process_follow_each_other(keep: threadkeep.Keep) -> None:
    graph = logging_graph(keep.checkpointer)

    def run(name: str) -> None:
        with keep.lease("t"):
            graph.invoke({"log": [name], "name": name}, config("t"))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, "xyz"))
    log = values_of(keep.checkpointer)["log"]
    assert sorted(log) == sorted("xyz" * 4)
    assert is_grouped(log)


async def test_two_async_runs_of_a_graph_follow_each_other(keep: threadkeep.Keep) -> None:
    graph = logging_graph(keep.checkpointer)

    async def run(name: str) -> None:
        async with keep.lease("t"):
            await graph.ainvoke({"log": [name], "name": name}, config("t"))

    await asyncio.gather(*map(run, "xyz"))
    log = (await graph.aget_state(config("t"))).values["log"]
    assert sorted(log) == sorted("xyz" * 4)
    assert is_grouped(log)


def test_those_who_wait_in_one_process_get_the_lease_in_the_order_of_their_calls(keep: threadkeep.Keep) -> None:
    order: list[int] = []

    def run(n: int) -> None:
        with keep.lease("t", wait=FOREVER):
            order.append(n)

    waiting = []
    with keep.lease("t"):
        for n in range(4):
            thread = threading.Thread(target=contextvars.Context().run, args=(run, n))
            thread.start()
            waiting.append(thread)
            while len(keep._session.leases._turns.get(keep._session.key("graph", "t"), ())) <= n:
                time.sleep(0.001)
    for thread in waiting:
        thread.join()
    assert order == [0, 1, 2, 3]


def test_a_lease_that_is_not_free_in_time_is_a_conflict_that_names_the_holder(keep: threadkeep.Keep) -> None:
    with keep.lease("t", ttl=LONG_TTL) as lease:
        for wait in (0, 0.05):
            with pytest.raises(Leased, match=f":{os.getpid()}, for ") as caught:
                in_new_context(lambda wait=wait: keep.lease("t", wait=wait).__enter__())
            assert lease.token not in str(caught.value)
    with keep.lease("t", wait=0):
        pass


async def test_an_async_lease_that_is_not_free_in_time_is_a_conflict(keep: threadkeep.Keep) -> None:
    async def try_to_take(wait: float) -> None:
        async with keep.lease("t", wait=wait):
            raise AssertionError("it was taken")

    async with keep.lease("t"):
        for wait in (0, 0.05):
            with pytest.raises(Leased):
                await asyncio.create_task(try_to_take(wait), context=contextvars.Context())
    async with keep.lease("t", wait=0):
        pass


async def test_a_cancelled_caller_leaves_no_lease_behind(keep: threadkeep.Keep) -> None:
    async def hold() -> None:
        async with keep.lease("t", ttl=LONG_TTL):
            await asyncio.sleep(FOREVER)

    for n in range(6):
        task = asyncio.create_task(hold(), context=contextvars.Context())
        for _ in range(n):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with keep.lease("t", wait=FOREVER):  # none of them has it for its ttl
        pass
    assert await keep.alease_info("t") is None


# --- who may write


def test_an_outsider_cannot_write_a_leased_thread_but_read_it(keep: threadkeep.Keep) -> None:
    chain, saver = Chain(keep.checkpointer), keep.checkpointer
    graph = logging_graph(saver)
    graph.invoke({"log": ["x"], "name": "x"}, config("g"))
    chain.put({"x": 1})
    with keep.lease("t", ttl=LONG_TTL), keep.lease("g", ttl=LONG_TTL):
        chain.put({"x": 2})
        assert is_refused(lambda: put_one(keep))
        assert is_refused(lambda: saver.put_writes(config("t", "00000000"), [("x", 1)], "task"))
        assert is_refused(lambda: graph.update_state(config("g"), {"log": ["no"]}))
        assert is_refused(lambda: keep.rollback("t", "latest~1"))
        assert is_refused(lambda: keep.tag("t", "latest", "name"))
        assert is_refused(lambda: saver.delete_thread("t"))
        assert is_refused(lambda: saver.prune(["t"]))
        assert in_new_context(lambda: values_of(saver)) == {"x": 2}
        keep.tag("t", "latest", "name")
        graph.update_state(config("g"), {"log": ["y"]})
        saver.put_writes(config("t", "00000001"), [("x", 1)], "task")
    put_one(keep, id="00000009")
    assert values_of(keep.checkpointer) == {"x": "00000009"}


async def test_an_async_outsider_cannot_write_a_leased_thread(keep: threadkeep.Keep) -> None:
    chain, rival = Chain(keep.checkpointer), Chain(keep.checkpointer)

    async def write() -> None:
        with pytest.raises(Leased):
            await rival.aput({"x": 3})
        with pytest.raises(Leased):
            await keep.checkpointer.aput_writes(config("t", "00000000"), [("x", 1)], "task")
        with pytest.raises(Leased):
            await keep.checkpointer.adelete_thread("t")

    async with keep.lease("t", ttl=LONG_TTL):
        await chain.aput({"x": 1})
        await asyncio.create_task(write(), context=contextvars.Context())
        await chain.aput({"x": 2})
    await keep.checkpointer.adelete_thread("t")


def test_changes_that_are_committed_together_are_judged_by_their_own_callers(keep: threadkeep.Keep) -> None:
    put_one(keep)
    saver = keep.checkpointer
    refused: list[int] = []

    def write(n: int) -> None:
        try:
            saver.put_writes(config("t", "00000000"), [("x", n)], f"task {n:02}")
        except Leased:
            refused.append(n)

    with keep.lease("t", ttl=LONG_TTL):
        holder = contextvars.copy_context()
        with ThreadPoolExecutor(8) as pool:
            contexts = [holder.copy() if n % 2 else contextvars.Context() for n in range(40)]
            list(pool.map(lambda each: each[1].run(write, each[0]), enumerate(contexts)))
    found = saver.get_tuple(config("t", "00000000"))
    assert found is not None
    assert sorted(refused) == list(range(0, 40, 2))
    assert [value for _, _, value in found.pending_writes or []] == list(range(1, 40, 2))


async def test_async_changes_that_are_committed_together_are_judged_by_their_own_callers(keep: threadkeep.Keep) -> None:
    async def write(n: int) -> bool:
        try:
            await keep.checkpointer.aput_writes(config("t", "00000000"), [("x", n)], f"task {n:02}")
        except Leased:
            return False
        return True

    async with keep.lease("t", ttl=LONG_TTL):
        tasks = [
            asyncio.create_task(write(n), context=contextvars.copy_context() if n % 2 else contextvars.Context())
            for n in range(40)
        ]
        assert await asyncio.gather(*tasks) == [bool(n % 2) for n in range(40)]


def test_a_write_may_come_before_the_first_checkpoint(keep: threadkeep.Keep) -> None:
    saver = keep.checkpointer
    with keep.lease("t", ttl=LONG_TTL):
        assert keep.threads() == []
        saver.put_writes(config("t", "00000000"), [("x", 1)], "task")
        assert is_refused(lambda: saver.put_writes(config("t", "00000000"), [("x", 2)], "other"))
        put_one(keep)
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.pending_writes == [("task", "x", 1)]
    assert keep.verify().ok


def test_a_thread_that_has_only_a_lease_is_not_listed_and_goes_with_it(keep: threadkeep.Keep) -> None:
    with keep.lease("t"):
        assert keep.threads() == []
        assert keep.checkpointer.get_tuple(config("t")) is None
        assert keep.verify().ok
    assert keep.thread("t") is None


def test_a_cube_thread_is_leased_apart_from_the_graph_thread_of_the_same_id(keep: threadkeep.Keep) -> None:
    def append(text: str) -> None:
        asyncio.run(keep.cube.append("t", [user(text)]))

    with keep.lease("t", kind="cube", ttl=LONG_TTL):
        append("one")
        assert is_refused(lambda: append("no"))
        assert is_refused(lambda: asyncio.run(keep.cube.save_extra("t", {"a": 1})))
        in_new_context(lambda: put_one(keep))
        append("two")
    append("three")
    data = asyncio.run(keep.cube.load("t"))
    assert data is not None
    assert [each.content[0].text for each in data.messages] == ["one", "two", "three"]


def test_a_context_cannot_take_the_lease_that_it_holds_but_others(keep: threadkeep.Keep) -> None:
    with keep.lease("t"):
        with pytest.raises(Leased, match="holds the lease"):
            keep.lease("t").__enter__()
        with keep.lease("u"):
            put_one(keep, "u")
        put_one(keep, "t")


def test_a_lease_can_be_entered_again_and_is_another_one_then(keep: threadkeep.Keep) -> None:
    lease, tokens = keep.lease("t"), set()
    for n in range(3):
        with lease:
            tokens.add(lease.token)
            put_one(keep, id=f"{n:08}")
            with pytest.raises(RuntimeError, match="entered already"):
                lease.__enter__()
    assert len(tokens) == 3
    with pytest.raises(RuntimeError, match="not held"):
        _ = lease.token


def test_what_a_run_left_behind_cannot_write_after_its_lease(keep: threadkeep.Keep) -> None:
    with keep.lease("t"):
        left_behind = contextvars.copy_context()
        put_one(keep)
    put_one(keep, id="00000001")
    with pytest.raises(LeaseLost):
        left_behind.run(put_one, keep, id="00000002")
    with pytest.raises(LeaseLost):
        left_behind.run(keep.checkpointer.delete_thread, "t")
    left_behind.run(put_one, keep, "u")
    assert values_of(keep.checkpointer) == {"x": "00000001"}


@pytest.mark.parametrize("ttl", [0, 0.01, float("inf"), float("nan"), "1", True])
def test_a_ttl_must_be_a_number_of_seconds(ttl: Any) -> None:
    with threadkeep.open("memory://") as keep, pytest.raises(ValueError, match="ttl"):
        keep.lease("t", ttl=ttl)


# --- tokens


def test_a_token_in_the_config_stands_for_the_lease_and_is_not_stored(keep: threadkeep.Keep) -> None:
    graph = logging_graph(keep.checkpointer)
    with keep.lease("t", ttl=LONG_TTL) as lease:
        place = {"configurable": {"thread_id": "t", "__lease_token": lease.token}}
        in_new_context(lambda: graph.invoke({"log": ["x"], "name": "x"}, place))
        in_new_context(lambda: graph.update_state(place, {"log": ["y"]}))
        wrong = {"configurable": {"thread_id": "t", "__lease_token": "wrong"}}
        assert is_refused(lambda: graph.update_state(wrong, {"log": ["no"]}), LeaseLost)
        assert lease.token not in repr(lease)
        shown = repr([each.metadata for each in keep.checkpointer.list(config("t"))])
        assert "lease" not in shown
        assert lease.token not in shown
    assert values_of(keep.checkpointer)["log"] == ["x", "x", "x", "x", "y"]


def test_a_token_must_be_a_str(keep: threadkeep.Keep) -> None:
    with pytest.raises(TypeError, match="lease token"):
        put_one(keep, __lease_token=b"token")


def test_a_file_has_no_token(tmp_path: Path) -> None:
    path = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{path}") as keep, keep.lease("t") as lease:
        put_one(keep)
        files = [path, path.with_name("keep.db-wal")]
        assert not any(lease.token.encode() in file.read_bytes() for file in files if file.exists())


# --- fenced


def test_a_fenced_keep_refuses_what_is_written_outside_of_a_lease(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, fenced=True) as keep:
        saver, graph = keep.checkpointer, logging_graph(keep.checkpointer)
        with pytest.raises(Leased, match="fenced=True"):
            put_one(keep)
        with pytest.raises(Leased, match="fenced=True"):
            saver.put_writes(config("t", "00000000"), [("x", 1)], "task")
        with pytest.raises(Leased, match="fenced=True"):
            asyncio.run(saver.aput_writes(config("t", "00000000"), [("x", 1)], "task"))
        with pytest.raises(Leased, match="fenced=True"):
            asyncio.run(keep.cube.append("t", [user("no")]))
        with pytest.raises(Leased, match="fenced=True"):
            put_one(keep.tenant("other"))
        with keep.lease("t") as lease:
            with pytest.raises(Leased, match="fenced=True"):
                put_one(keep, "u")
            graph.invoke({"log": ["x"], "name": "x"}, config("t"))
            in_new_context(lambda: put_one(keep, id="9", __lease_token=lease.token))
        assert keep.prune("t").checkpoints > 0
        assert keep.delete("t") is True


# --- maintenance


def test_prune_sweep_delete_and_erase_skip_a_leased_thread_unless_forced(url: str) -> None:
    policy = threadkeep.Policy(keep_last=1, keep_branches=False)
    with threadkeep.open(url, retention=policy) as keep:
        for thread in ("t1", "t2"):
            chain = Chain(keep.checkpointer, thread)
            for n in range(3):
                chain.put({"x": n})

        def maintain() -> None:
            for dry_run in (True, False):
                pruned = keep.prune(policy=policy, dry_run=dry_run)
                assert (pruned.leased, [each.id for each in pruned.threads]) == (("t1",), ["t2"])
                assert keep.prune("t1", dry_run=dry_run).leased == ("t1",)
                assert keep.sweep(dry_run=dry_run).pruned.leased == ("t1",)
                deleted = keep.delete(prefix="t", dry_run=dry_run)
                assert (deleted.leased, [each.id for each in deleted.threads]) == (("t1",), ["t2"])
                with pytest.raises(Leased):
                    keep.delete("t1", dry_run=dry_run)
                receipt = keep.erase(thread_id="t1", dry_run=dry_run)
                assert (receipt.leased, receipt.threads, receipt.ok) == (("t1",), (), False)
            assert keep.prune("t1", force=True, dry_run=True).checkpoints == 2
            assert keep.prune("t1", force=True).checkpoints == 2

        with keep.lease("t1", ttl=LONG_TTL):
            in_new_context(maintain)
            put_one(keep, "t1", "00000009")
            assert keep.prune("t1").checkpoints == 1
            assert in_new_context(lambda: keep.delete(prefix="t1", force=True)).leased == ()
            with pytest.raises(LeaseLost):
                put_one(keep, "t1")
        assert keep.threads() == []


def test_copies_forks_and_exports_have_no_lease(lasting_url: str, tmp_path: Path) -> None:
    with threadkeep.open(lasting_url) as keep, threadkeep.open("memory://") as other:
        with keep.lease("t", ttl=LONG_TTL):
            put_one(keep)
            keep.copy("t", "copy")
            keep.checkpointer.copy_thread("t", "saver's copy")
            keep.fork("t", to="fork")
            keep.export(tmp_path / "file")
            assert keep.lease_info("t") is not None
        other.import_portable(tmp_path / "file")
        assert [other.lease_info(each.id) for each in other.threads()] == [None] * 4
        assert [keep.lease_info(each.id) for each in keep.threads()] == [None] * 4
        put_one(keep, "copy", "00000001")


def test_a_copy_into_a_leased_thread_needs_its_lease(keep: threadkeep.Keep) -> None:
    put_one(keep, "u", "00000005")
    with keep.lease("t", ttl=LONG_TTL):
        put_one(keep)
        assert is_refused(lambda: keep.copy("u", "t"))
        keep.copy("u", "t")
        assert is_refused(lambda: put_one(keep, id="00000007"))
        put_one(keep, id="00000006")
    assert values_of(keep.checkpointer) == {"x": "00000006"}


def test_a_broken_lease_is_lost_and_stays_lost(keep: threadkeep.Keep) -> None:
    lease = keep.lease("t", ttl=LONG_TTL)
    with lease:
        put_one(keep)
        info = keep.lease_info("t")
        assert info is not None
        assert (info.thread, info.kind, info.seconds > 0) == ("t", "graph", True)
        assert keep.break_lease("t") is True
        assert keep.break_lease("t") is False
        assert keep.lease_info("t") is None
        for work in (
            lambda: put_one(keep, id="00000001"),
            lambda: keep.checkpointer.put_writes(config("t", "00000000"), [("x", 1)], "task"),
            lambda: keep.tag("t", "latest", "name"),
            lambda: keep.checkpointer.delete_thread("t"),
        ):
            with pytest.raises(LeaseLost):
                work()
        in_new_context(lambda: put_one(keep, id="00000002"))
        with pytest.raises(LeaseLost):
            put_one(keep, id="00000003")
    assert lease.lost
    assert values_of(keep.checkpointer) == {"x": "00000002"}


def test_a_lease_is_renewed_for_as_long_as_it_is_held(keep: threadkeep.Keep) -> None:
    deadline, renewals, before = time.monotonic() + FOREVER, 0, 0.0
    with keep.lease("t", ttl=SHORT_TTL) as lease:
        while renewals < 5:  # three for each ttl
            info = keep.lease_info("t")
            assert info is not None
            renewals += info.seconds > before
            before = info.seconds
            assert time.monotonic() < deadline
            time.sleep(SHORT_TTL / 10)
        put_one(keep)
        assert not lease.lost


def test_an_encrypted_row_vouches_for_its_lease(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url, keys=KEYS) as keep, keep.lease("t", ttl=LONG_TTL):
        put_one(keep)
        assert is_refused(lambda: put_one(keep))
        put_one(keep, id="00000001")
        with apsw.Connection(str(tmp_path / "keep.db")) as connection:
            connection.execute("UPDATE tk_threads SET lease = NULL")
        with threadkeep.open(url, keys=KEYS) as other, pytest.raises(Corrupt):
            other.checkpointer.get_tuple(config("t"))


def test_a_process_without_keys_changes_no_lease_of_a_thread_that_was_encrypted(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as plain, threadkeep.open(lasting_url, keys=KEYS) as keep:
        put_one(plain)
        with plain.lease("t", ttl=LONG_TTL):
            keep.encrypt()
        with pytest.raises(WrongKey, match="keys="):
            plain.break_lease("t")
        assert keep.verify().problems == []
        assert keep.break_lease("t")
        with pytest.raises(WrongKey, match="keys="):
            plain.lease("t").__enter__()
        assert values_of(keep.checkpointer) == {"x": "00000000"}


def test_a_changed_lease_does_not_match_the_checksum_of_its_row(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url) as keep, keep.lease("t", ttl=LONG_TTL):
        put_one(keep)
        with apsw.Connection(str(tmp_path / "keep.db")) as connection:
            connection.execute("UPDATE tk_threads SET lease = substr(lease, 1, 20)")
        with threadkeep.open(url) as other:
            with pytest.raises(Corrupt, match="checksum"):
                other.checkpointer.get_tuple(config("t"))
            assert other.repair("t").thread_row == ("lease",)
            put_one(other, id="00000001")
        with pytest.raises(LeaseLost):
            put_one(keep, id="00000002")


# --- clocks


def test_a_lease_of_another_start_of_the_machine_has_expired() -> None:
    lease = StoredLease(b"d" * 16, 10_000, 5_000, "start 1", "host:1")
    assert unpack_lease(pack_lease(lease), "thread 't'") == lease
    assert lease.left(StorageClock(9_000, "start 1")) == 1_000
    assert lease.left(StorageClock(10_001, "start 1")) == 0
    assert lease.left(StorageClock(9_000, "start 2")) == 0
    nameless = lease._replace(clock=NAMELESS_START)
    assert nameless.left(StorageClock(9_000, NAMELESS_START)) == 1_000
    assert nameless.left(StorageClock(10, NAMELESS_START)) == 0  # longer than its ttl: the clock began anew


_OTHER_TIME = r"""
import sys, time
shift = float(sys.argv[2])
wall, wall_ns = time.time, time.time_ns
time.time = lambda: wall() + shift
time.time_ns = lambda: wall_ns() + int(shift * 1e9)
import threadkeep
keep = threadkeep.open(sys.argv[1])
try:
    with keep.lease("t", wait=0):
        print("taken")
except threadkeep.errors.Leased:
    print("refused")
"""


@pytest.mark.parametrize("shift", [-86400, 86400])
def test_a_wall_clock_that_jumps_gives_no_second_holder(lasting_url: str, shift: float) -> None:
    with threadkeep.open(lasting_url) as keep, keep.lease("t", ttl=LONG_TTL):
        assert processes.run_forked(_OTHER_TIME, lasting_url, shift) == "refused\n"


# --- frozen, killed, interrupted and forked holders

_HOLDER = r"""
import logging, sys
import threadkeep
from checkpoint_chains import Chain

logging.getLogger("threadkeep.leases").addHandler(logging.NullHandler())  # it warns of a lost lease
keep = threadkeep.open(sys.argv[1])
chain = Chain(keep.checkpointer)
lease = keep.lease("t", ttl=float(sys.argv[2]))
try:
    with lease:
        chain.put({"x": "first"})
        print("held", flush=True)
        sys.stdin.readline()
        chain.put({"x": "second"})
    print("written", flush=True)
except threadkeep.errors.LeaseLost:
    print("lost", lease.lost, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def start_holder(url: str, ttl: float) -> Any:
    holder = processes.fork(_HOLDER, url, ttl)
    assert holder.stdout is not None
    line = holder.stdout.readline()
    if line != "held\n":
        processes.finish(holder)
    return holder


def freeze(holder: Any, url: str) -> None:
    """Stop a holder, but not in the middle of a commit: nobody else could write to a SQLite file then."""
    while True:
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        with suppress(Unavailable), threadkeep.open(url, timeout=0.1) as keep:
            put_one(keep, "another")
            return
        holder.send_signal(signal.SIGCONT)
        time.sleep(0.01)


def go_on(holder: Any) -> str:
    """Let a holder that was stopped continue, and return what it prints."""
    holder.send_signal(signal.SIGCONT)
    holder.stdin.write("go\n")
    holder.stdin.flush()
    return processes.finish(holder)


def test_a_holder_that_was_frozen_has_lost_its_lease_to_the_next_one(lasting_url: str) -> None:
    holder = start_holder(lasting_url, SHORT_TTL)
    freeze(holder, lasting_url)
    with threadkeep.open(lasting_url) as keep:
        with keep.lease("t", wait=FOREVER):
            put_one(keep, id="00000001")
            assert go_on(holder).startswith("lost")
        assert values_of(keep.checkpointer) == {"x": "00000001"}


@pytest.fixture(params=["postgres", "valkey"])
def partition(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, Proxy]]:
    """A new URL of a server, another by way of a proxy, and the proxy: closed, it cuts the second one off."""
    if request.param == "postgres":
        server = postgres_servers.shared()
        url = postgres_servers.fresh_schema(server)
    else:
        server = valkey_servers.shared_one()
        url = f"valkey://127.0.0.1:{server.port}/?prefix={valkey_servers.fresh_prefix()}"
    proxy = Proxy(postgres_servers.free_port(), server.port)
    proxy.open()
    yield url, url.replace(f":{server.port}", f":{proxy.port}"), proxy
    proxy.close()


def test_a_holder_that_was_cut_off_has_lost_its_lease_to_the_next_one(partition: tuple[str, str, Proxy]) -> None:
    url, proxied, proxy = partition
    holder = start_holder(proxied, SHORT_TTL)
    proxy.close()
    with threadkeep.open(url) as keep:
        with keep.lease("t", wait=FOREVER):
            put_one(keep, id="00000001")
            proxy.open()
            assert go_on(holder).startswith("lost")
        assert values_of(keep.checkpointer) == {"x": "00000001"}


def test_a_holder_that_was_frozen_has_lost_its_lease_to_an_outsider_who_wrote(lasting_url: str) -> None:
    holder = start_holder(lasting_url, SHORT_TTL)
    freeze(holder, lasting_url)
    with threadkeep.open(lasting_url) as keep:
        while True:  # the outsider is refused until the lease has expired
            try:
                put_one(keep, id="00000001")
            except Leased:
                time.sleep(0.05)
            else:
                break
        assert keep.lease_info("t") is None
        assert go_on(holder).startswith("lost")
        assert values_of(keep.checkpointer) == {"x": "00000001"}


def test_a_holder_that_was_frozen_goes_on_if_nobody_has_written(lasting_url: str) -> None:
    holder = start_holder(lasting_url, SHORT_TTL)
    freeze(holder, lasting_url)
    with threadkeep.open(lasting_url) as keep:
        while (info := keep.lease_info("t")) is not None and info.seconds:
            time.sleep(0.05)
        assert info is not None
        assert go_on(holder) == "written\n"
        assert values_of(keep.checkpointer) == {"x": "second"}
        assert keep.lease_info("t") is None


def test_a_killed_holder_blocks_the_thread_for_no_longer_than_the_ttl(lasting_url: str) -> None:
    holder = start_holder(lasting_url, SHORT_TTL)
    holder.kill()
    holder.communicate()
    with threadkeep.open(lasting_url) as keep, keep.lease("t", wait=FOREVER):
        put_one(keep, id="00000001")


def test_ctrl_c_in_the_body_releases_the_lease(lasting_url: str) -> None:
    holder = start_holder(lasting_url, LONG_TTL)
    holder.send_signal(signal.SIGINT)
    assert processes.finish(holder) == "interrupted\n"
    with threadkeep.open(lasting_url) as keep, keep.lease("t", wait=0):
        put_one(keep, id="00000001")


_FORKING = r"""
import os, sys
import threadkeep
from checkpoint_chains import Chain

keep = threadkeep.open(sys.argv[1])
chain = Chain(keep.checkpointer)
with keep.lease("t", ttl=60):
    chain.put({"x": 1})
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        chain.put({"x": 3})
        info = keep.lease_info("t")
        assert info is not None and info.seconds
    else:
        try:
            chain.put({"x": 2})
        except threadkeep.errors.LeaseLost:
            print("refused", flush=True)
if child:
    assert keep.lease_info("t") is None
os._exit(0)
"""


def test_a_lease_stays_with_the_parent_when_its_process_forks(lasting_url: str) -> None:
    assert processes.run_forked(_FORKING, lasting_url) == "refused\n"
    with threadkeep.open(lasting_url) as keep:
        assert values_of(keep.checkpointer) == {"x": 3}


def test_a_keep_that_is_closed_in_the_body_ends_it_without_an_error(url: str) -> None:
    keep = threadkeep.open(url)
    with keep.lease("t"):
        put_one(keep)
        keep.close()


# --- an independent log

_APPENDER = r"""
import logging, os, sys, time
import threadkeep
from checkpoint_chains import config
from langgraph.checkpoint.base import empty_checkpoint

logging.getLogger("threadkeep.leases").addHandler(logging.NullHandler())  # it warns of a lost lease

url, name, path, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
saver = (keep := threadkeep.open(url)).checkpointer
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
end, sessions, lost = time.monotonic() + seconds, 0, 0
while time.monotonic() < end:
    sessions += 1
    session = f"{name}-{sessions}"
    try:
        with keep.lease("t", ttl=0.2, wait=60):
            for n in range(3):
                found = saver.get_tuple(config("t"))
                entries = found.checkpoint["channel_values"]["entries"] if found else []
                entries = [*entries, f"{session} {n}"]
                version = {"entries": len(entries)}
                checkpoint = {**empty_checkpoint(), "id": f"{len(entries):08}", "channel_values": {"entries": entries},
                              "channel_versions": version}
                place = config("t", found.config["configurable"]["checkpoint_id"] if found else None)
                saver.put(place, checkpoint, {"source": "loop", "step": len(entries)}, version)
                os.write(log, f"{session} {n}\n".encode())
    except threadkeep.errors.LeaseLost:
        lost += 1
print(sessions, lost)
"""


def write_and_freeze(url: str, path: Path, *, writers: int, seconds: float, seed: int) -> int:
    """Let processes append to a list under leases, each reading it first, and freeze them now and then.

    What a process was told is stored is written to a file of its own. Return how often a lease was lost.
    """
    chance = random.Random(seed)
    running = [processes.fork(_APPENDER, url, f"p{n}", path, seconds) for n in range(writers)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        frozen = chance.choice(running)
        time.sleep(chance.uniform(0, 0.1))
        if frozen.poll() is None:
            frozen.send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.1, 0.5))
            frozen.send_signal(signal.SIGCONT)
    lost = sum(int(processes.finish(each).split()[1]) for each in running)
    acknowledged = path.read_text().splitlines()
    with threadkeep.open(url) as keep:
        stored = values_of(keep.checkpointer)["entries"]
    assert sorted(acknowledged) == sorted(stored), "an entry was overwritten"
    sessions = [list(entries) for _, entries in groupby(stored, key=lambda entry: entry.split()[0])]
    assert is_grouped([entry.split()[0] for entry in stored]), "two holders wrote at once"
    assert all(entry.endswith(f" {n}") for entries in sessions for n, entry in enumerate(entries))
    return lost


def test_no_two_holders_write_at_once(lasting_url: str, tmp_path: Path) -> None:
    write_and_freeze(lasting_url, tmp_path / "log", writers=2, seconds=1.5, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_no_two_holders_ever_write_at_once(lasting_url: str, tmp_path: Path, seed: int) -> None:
    assert write_and_freeze(lasting_url, tmp_path / "log", writers=4, seconds=20, seed=seed) > 0


# --- the command


def test_the_command_shows_and_breaks_a_lease(tmp_path: Path) -> None:
    path = tmp_path / "keep.db"

    def run(*args: str) -> tuple[int, str]:
        command = "import sys\nfrom threadkeep.cli.app import run\nprint(run(sys.argv[1:]))"
        *lines, code = processes.run_forked(command, *args, "--url", str(path)).splitlines()
        return int(code), "\n".join(lines)

    with threadkeep.open(f"sqlite:///{path}") as keep, keep.lease("t", ttl=LONG_TTL):
        put_one(keep)
        code, shown = run("lease", "show", "t", "--json")
        assert code == 0
        assert json.loads(shown)["holder"].endswith(f":{os.getpid()}")
        assert run("lease", "show", "u")[0] == 1
        assert run("delete", "--prefix", "t", "--yes")[0] == 1
        assert run("lease", "break", "t", "--yes")[0] == 0
        with pytest.raises(LeaseLost):
            put_one(keep)
    assert run("delete", "t", "--yes")[0] == 0
