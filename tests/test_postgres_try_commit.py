"""PostgresServer.try_commit: one batch, at once, in the caller's thread, on an idle connection."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import psycopg_pool
import pytest

import postgres_servers
from threadkeep.backends.postgres.parameters import BIGINT, BYTEA, array_of, byteas, ints, pack_int
from threadkeep.engine.identity import ThreadKey
from threadkeep.engine.log.itemlog import ItemId, ItemRange
from threadkeep.engine.log.records import CheckpointRow, ThreadRow, WriteRow
from threadkeep.engine.requests import Batch, Commit, LoadedRows, LoadThreadRows, NewLabels
from threadkeep.errors import Conflict
from threadkeep.plan import Failure
from threadkeep.transports.postgres import PostgresServer
from threadkeep.urls import ServerOptions, Settings, transport_for

RUN = "0f8fad5b-d9cb-469f-a165-70867728950e"
MAX_CALLS = 22
"""Python calls of try_commit for a put with one item."""


def thread_row(id: str, rev: int, nexts: tuple[int, ...] = (1, 0, 1, 300)) -> ThreadRow:
    key = ThreadKey("", "graph", id)
    return ThreadRow(
        key, 7, rev, nexts, 1_700_000_000_000, 1_700_000_000_300, rev + 1, 2, 20, checkpoint_id(rev), RUN, None,
        "loop", "idle", 0, None, None, None, 5, 0, 0,
    )  # fmt: skip


def checkpoint_id(rev: int) -> str:
    return f"{rev:08}"


def batch(
    id: str,
    rev: int = 0,
    *,
    items: int = 1,
    checkpoint: bool = True,
    changes: bool = False,
    writes: int = 0,
    tags: bool = False,
) -> Batch:
    """Return the batch that brings a thread from `rev` - 1 to `rev`; at 0 it creates the thread."""
    refs = (ItemRange(3, rev * 10, items),) if items else ()
    id_of_row, body = checkpoint_id(0 if changes else rev), b"body %d" % rev
    row = CheckpointRow("", id_of_row, RUN, RUN, rev, "loop", 0, 1_700_000_000_000, False, refs, body)
    task = WriteRow("", checkpoint_id(rev), RUN, "~a, \udc80", None, 1_700_000_000_001, (0, 1, 7), refs, b"writes")
    return Batch(
        expect=(7, rev - 1) if rev else None,
        thread=thread_row(id, rev),
        items=tuple((ItemId(3, rev * 10 + n), bytes([n]) * 20) for n in range(items)),
        new_checkpoints=(row,) if checkpoint and not changes else (),
        changed_checkpoints=(row,) if changes else (),
        new_writes=tuple(task._replace(task=f"{RUN[:-1]}{n}") for n in range(writes)),
        labels=(NewLabels(0, (b"a", b"b")),) if tags else (),
        runs=(RUN, "another run") if tags else (),
    )


@pytest.fixture
def url() -> str:
    return postgres_servers.fresh_schema(postgres_servers.shared())


def server_at(target: Any, *, setup: bool = True, **options: Any) -> PostgresServer:
    settings = {name: options.pop(name) for name in ("read_only", "on_loss", "durability") if name in options}
    made = transport_for(target, Settings(timeout=20, **settings), ServerOptions(**options))
    assert isinstance(made, PostgresServer)
    if setup:
        made.setup()
    return made


@pytest.fixture
def server(url: str) -> Iterator[PostgresServer]:
    made = server_at(url)
    yield made
    made.close()


def load(server: PostgresServer, id: str) -> LoadedRows:
    loaded = server.read(LoadThreadRows(ThreadKey("", "graph", id)))
    assert isinstance(loaded, LoadedRows)
    return loaded


def rev_of(server: PostgresServer, id: str) -> int | None:
    thread = load(server, id).thread
    return thread.rev if thread else None


FORMS: list[dict[str, Any]] = [
    {},
    {"items": 0},
    {"items": 3},
    {"items": 4},
    {"items": 9},
    {"items": 0, "checkpoint": False},
    {"items": 2, "checkpoint": False, "writes": 1},
    {"writes": 1},
    {"tags": True},
    {"items": 5, "writes": 1, "tags": True},
    {"items": 6, "checkpoint": False, "writes": 6},
    {"items": 9, "writes": 40, "tags": True},
    {"changes": True},
    {"items": 5, "changes": True, "tags": True},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("durability", ["strict", "relaxed"])
def test_it_stores_what_a_group_of_commits_stores(url: str, form: dict[str, Any], durability: str) -> None:
    server = server_at(url, durability=durability)
    for rev in range(3):
        assert server.try_commit(batch("a", rev, **form))
    for rev in range(3):
        pair = [Commit(batch(id, rev, **form)) for id in ("b", "c")]
        assert not any(isinstance(outcome, Failure) for outcome in server.write(pair))
    a, b = load(server, "a"), load(server, "b")
    assert a.thread is not None
    assert b.thread is not None
    assert a.thread._replace(key=b.thread.key, checksum=None) == b.thread._replace(checksum=None)
    assert a == LoadedRows(a.thread, b.checkpoints, b.items, b.stored)
    server.close()


def test_conflict_if_the_thread_is_not_as_expected(server: PostgresServer) -> None:
    with pytest.raises(Conflict):
        server.try_commit(batch("t", 1))
    assert rev_of(server, "t") is None
    assert server.try_commit(batch("t", 0))
    for rev in (0, 2):
        with pytest.raises(Conflict):
            server.try_commit(batch("t", rev))
    assert rev_of(server, "t") == 0


def test_false_and_nothing_happens_if_the_checkpoint_exists(server: PostgresServer) -> None:
    assert server.try_commit(batch("t", 0))
    again = batch("t", 1)._replace(new_checkpoints=batch("t", 0).new_checkpoints)
    assert not server.try_commit(again)
    assert rev_of(server, "t") == 0
    outcome = server.write([Commit(again)])[0]
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, Conflict)


@pytest.mark.parametrize("source", ["with NUL \0", "a surrogate \udc80"], ids=["NUL", "surrogate"])
def test_false_for_a_value_that_cannot_be_stored(server: PostgresServer, source: str) -> None:
    bad = batch("t")
    assert not server.try_commit(bad._replace(thread=bad.thread._replace(source=source)))
    assert rev_of(server, "t") is None
    assert server.try_commit(bad)


def test_false_for_a_batch_that_removes_or_replaces_something(server: PostgresServer) -> None:
    assert server.try_commit(batch("t", 0))
    next = batch("t", 1)
    for more in (
        {"removed_items": (ItemRange(3, 0, 1),)},
        {"removed_checkpoints": (("", checkpoint_id(0)),)},
        {"drops_thread": True},
        {"changed_checkpoints": batch("t", 0).new_checkpoints},
    ):
        assert not server.try_commit(next._replace(**more))  # type: ignore[arg-type]
    assert rev_of(server, "t") == 0


def test_false_where_it_cannot_be_done_at_once(url: str) -> None:
    assert not server_at(url, setup=False).try_commit(batch("t"))
    server_at(url).close()
    for options in ({"read_only": True}, {"group": "thread"}):
        server = server_at(url, **options)
        assert not server.try_commit(batch("t"))
        server.close()
    server = server_at(url)
    server.close()
    assert not server.try_commit(batch("t"))


def test_false_if_a_pool_was_lent(url: str) -> None:
    with psycopg_pool.ConnectionPool(url.partition("?")[0], min_size=1) as pool:
        server = server_at(pool, schema=url.rpartition("=")[2])
        assert not server.try_commit(batch("t"))
        assert server.write([Commit(batch("t"))])
        server.close()


def test_false_if_no_connection_is_idle(url: str) -> None:
    server = server_at(url, max_size=1)
    inside: list[bool] = []
    server._run(lambda _: inside.append(server.try_commit(batch("t"))))  # noqa: SLF001
    assert inside == [False]
    assert server.try_commit(batch("t"))
    server.close()


def test_false_if_the_connection_is_dead_and_the_caches_are_dropped(url: str) -> None:
    losses: list[None] = []
    server = server_at(url, application_name="dead-connections", on_loss=lambda: losses.append(None))
    assert server.try_commit(batch("t", 0))
    end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'dead-connections'"
    assert postgres_servers.shared().execute(end)
    assert not server.try_commit(batch("t", 1))
    assert losses
    assert rev_of(server, "t") == 0
    assert server.try_commit(batch("t", 1))
    server.close()


# --- interrupts, forks, close


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line of our transport or of the values of a commit."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if "threadkeep/transports" not in path and "threadkeep/backends" not in path:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self


def interrupted(work: Callable[[], Any], at: int) -> bool:
    """Do some work and interrupt it at a line. Return whether it has that many lines."""
    tracer = Interrupt(at)
    sys.settrace(tracer)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_at_any_line_leaves_a_pool_that_works(url: str) -> None:
    server = server_at(url, max_size=2, application_name="interrupted")
    line, rev = 1, -1
    while True:
        here = rev
        more = interrupted(lambda: server.try_commit(batch("t", here + 1)), line)
        found = rev_of(server, "t")
        rev = -1 if found is None else found
        assert rev in (here, here + 1)
        if not more:
            break
        assert server.write([Commit(batch("t", rev + 1))])
        rev += 1
        assert rev_of(server, "t") == rev
        line += 1
    assert line > 50
    states = "select state from pg_stat_activity where application_name = 'interrupted'"
    assert postgres_servers.wait_until(
        lambda: all(state == "idle" for (state,) in postgres_servers.shared().execute(states)), 20
    )
    server.close()


def test_a_fork_meanwhile_leaves_both_sides_working(url: str) -> None:
    server = server_at(url, max_size=2)
    stop, revs = threading.Event(), [0]
    assert server.try_commit(batch("busy", 0))

    def commit_all_the_time() -> None:
        while not stop.is_set():
            next = batch("busy", revs[0] + 1)
            if server.try_commit(next) or server.write([Commit(next)]):
                revs[0] += 1

    busy = threading.Thread(target=commit_all_the_time)
    busy.start()
    for n in range(5):
        pid = os.fork()
        if not pid:
            failed = 1
            try:
                outcome = server.write([Commit(batch(f"child {n}"))])[0]
                failed = int(isinstance(outcome, Failure) or not server.try_commit(batch(f"child {n}", 1)))
            finally:
                os._exit(failed)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    busy.join()
    assert rev_of(server, "busy") == revs[0]
    assert [rev_of(server, f"child {n}") for n in range(5)] == [1] * 5
    server.close()


def test_closing_meanwhile_ends_with_false_and_no_connection(url: str) -> None:
    for n in range(10):
        name = f"closing-{n}"
        server = server_at(url, application_name=name)
        rev = 0

        def commit_until_false(server: PostgresServer = server, name: str = name) -> None:
            nonlocal rev
            while server.try_commit(batch(name, rev)):
                rev += 1

        busy = threading.Thread(target=commit_until_false)
        busy.start()
        while not rev:
            pass
        server.close()
        busy.join(20)
        assert not busy.is_alive()
        left = f"select 1 from pg_stat_activity where application_name = '{name}'"
        assert postgres_servers.wait_until(lambda left=left: not postgres_servers.shared().execute(left), 20)  # type: ignore[misc]


# --- counted


def test_it_makes_few_python_calls(server: PostgresServer) -> None:
    for rev in range(4):
        assert server.try_commit(batch("t", rev))
    next, calls, threads = batch("t", 4), [0], list[bool]()

    def count(_frame: FrameType, event: str, _: Any) -> None:
        calls[0] += event == "call"

    def commit() -> None:
        sys.setprofile(count)
        try:
            threads.append(server.try_commit(next))
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=commit)
    thread.start()
    thread.join()
    assert threads == [True]
    assert calls[0] <= MAX_CALLS


@pytest.mark.parametrize("numbers", [[], [7], [1, -2, 3], [None], [1, None, 3]])
def test_an_array_of_packed_values_is_the_array_of_the_values(numbers: list[int | None]) -> None:
    packed = [None if n is None else pack_int(n) for n in numbers]
    assert array_of(BIGINT, packed) == ints(numbers)
    assert array_of(BYTEA, packed) == byteas(packed)
