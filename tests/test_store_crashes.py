"""Crashes at every request of every store verb, killed processes, terminated connections: no batch is half done.

Each verb is repeated, crashing one request later each time, before or after the request is executed (its reply got
lost), until it succeeds. After each crash everything is as it was before the verb or as it is after it: memories,
vectors and words. Repeating the verb ends in the same state as an undisturbed one. An embedding that fails changes
nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp

import postgres_servers
import stored_memories
import threadkeep
from killed_writers import kill, start
from memory_batches import HOME, INDEX, check_batch, replacing_batch
from test_crashes import NEVER, Crashing, location_of, new_transport
from test_postgres import blocked, execute, fresh_name
from test_postgres_faults import again_and_again, connections, end_backends
from threadkeep.backends.in_memory.backend import InMemoryBackend
from threadkeep.conformance.store.embedder import DIMS, embed
from threadkeep.drivers.runner import Transport
from threadkeep.engine.memories import plans as memory_plans
from threadkeep.engine.memories.namespaces import MemoryKey
from threadkeep.errors import Unavailable
from threadkeep.keep import Keep
from threadkeep.plan import Failure, Reply, try_call
from threadkeep.session import Caches, Session

MINUTE = 60_000_000
AWAY = ("away", "b")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock whose only number is the time."""
    now = [1_800_000_000_000_000]
    monkeypatch.setattr("threadkeep.clock.now_us", lambda: now[0])
    return now


class CrashingStorage:
    """A storage with some memories, and how to reopen it after a crash."""

    def __init__(self, path: Path | str | None, tenant: str, clock: list[int]) -> None:
        self.path, self.tenant, self.clock = path, tenant, clock
        self._memory = InMemoryBackend()
        self._keeps: list[Keep] = []
        self.start()
        clock[0] = 1_800_000_000_000_000
        self.keep.store.batch(PAST)
        clock[0] += 5 * MINUTE

    @property
    def is_on_valkey(self) -> bool:
        """Valkey is read less often: reading all namespaces queries all partitions."""
        return isinstance(self.path, str) and self.path.startswith("valkey:")

    def start(self) -> None:
        """Open a Keep without caches, as a new process would."""
        self.transport = Crashing(self.reach())
        self._keeps.append(self.opened(self.transport))

    def opened(self, transport: Any, index: Any = INDEX) -> Keep:
        return Keep(Session(transport, tenant=self.tenant, caches=Caches(1 << 26)), None, index=index)

    def reach(self) -> Transport:
        """Return a new transport to the same rows."""
        return new_transport(self.path, self._memory)

    @property
    def keep(self) -> Keep:
        return self._keeps[-1]

    def read_contents(self) -> Any:
        """Read everything: items, what queries find, expiry; and check for leftovers."""
        contents: list[Any] = []
        minutes = (0, 4, 6, 11) if not self.is_on_valkey else (4, 6)
        for kind in ("vector", "text"):
            with self.opened(self.reach(), {**INDEX, "search": kind}) as reader:
                contents += [_scored(reader.store, text, kind) for text in ("apple", "rain", "plum")[: len(minutes)]]
                contents += [_living(reader.store, self.clock, later) for later in minutes]
        return contents, self.rows()

    def rows(self) -> dict[MemoryKey, Any]:
        """Return for each memory, expired or not, its vectors, and whether it has words."""
        if self.path is None:
            return {}
        assert stored_memories.find_leftovers(self.path, self.tenant) == []
        there = stored_memories.read_memories(self.path, self.tenant)
        return {where: (there.of(where), number in there.words) for number, where in there.memory_keys.items()}

    def close(self) -> None:
        for keep in self._keeps:
            keep.close()


def _scored(store: threadkeep.KeepStore, text: str, kind: str) -> Any:
    """Return what a query finds. Memory numbers differ between tenants, and so does the order of equal hits."""
    found = store.search((), query=text, refresh_ttl=False)
    return {(item.namespace, item.key): round(item.score or 0, 6) if kind == "vector" else None for item in found}


def _living(store: threadkeep.KeepStore, clock: list[int], minutes: int) -> list[Any]:
    """Return what will exist at that time, unless somebody reads it."""
    clock[0] += minutes * MINUTE
    found = store.search((), limit=100, refresh_ttl=False)
    clock[0] -= minutes * MINUTE
    return [item.dict() for item in found]


PAST = [
    PutOp(HOME, "a", {"text": "apple", "more": "plum"}),
    PutOp(HOME, "b", {"text": "rain", "more": "snow"}, ttl=10),
    PutOp(AWAY, "c", {"text": "apple and rain"}, ttl=10),
    PutOp(AWAY, "d", {"text": "sea"}, index=False),
    PutOp(AWAY, "over", {"text": "apple"}, ttl=1),
    PutOp(HOME, "over", {"text": "apple", "more": "rain"}, ttl=2),
]


def batch(*ops: Any) -> Callable[[Keep], Any]:
    return lambda keep: keep.store.batch(ops)


VERBS: dict[str, Callable[[Keep], Any]] = {
    "put": batch(PutOp(HOME, "new", {"text": "apple", "more": "plum"}, ttl=7)),
    "put into a new partition": batch(PutOp(("new",), "new", {"text": "apple"})),
    "put with fewer vectors": batch(PutOp(HOME, "a", {"text": "rain"})),
    "put with more vectors": batch(PutOp(AWAY, "d", {"text": "rain", "more": "plum"})),
    "put without vectors": batch(PutOp(HOME, "a", {"text": "apple"}, index=False)),
    "put over what is over": batch(PutOp(HOME, "over", {"text": "plum"})),
    "delete": batch(PutOp(HOME, "a", None)),
    "delete of nothing": batch(PutOp(HOME, "nothing", None)),
    "many": batch(
        PutOp(HOME, "a", {"text": "plum"}), PutOp(AWAY, "c", None), PutOp(("new",), "n", {"text": "rain"}, ttl=7),
        PutOp(HOME, "b", None), PutOp(AWAY, "d", {"text": "apple", "more": "rain"}), GetOp(HOME, "a"),
        SearchOp((), query="apple", refresh_ttl=False), ListNamespacesOp(),
    ),
    "get that lets live": batch(GetOp(HOME, "b")),
    "search that lets live": batch(SearchOp((), query="rain")),
    "reads that let live, and puts": batch(SearchOp(()), PutOp(HOME, "new", {"text": "rain"}), PutOp(HOME, "b", None)),
    "sweep": lambda keep: keep.sweep(),
}  # fmt: skip
FIRST_COMMIT = {
    "reads that let live, and puts": batch(
        SearchOp((), refresh_ttl=False), PutOp(HOME, "new", {"text": "rain"}), PutOp(HOME, "b", None)
    )
}
"""The state after the first commit of verbs with two: reads restart a TTL only after the requested change is stored."""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def new_crashing_storage(
    request: pytest.FixtureRequest, tmp_path: Path, clock: list[int]
) -> Iterator[Callable[[], CrashingStorage]]:
    made: list[CrashingStorage] = []

    def make() -> CrashingStorage:
        made.append(CrashingStorage(*location_of(request.param, tmp_path / f"{len(made)}.db"), clock))
        return made[-1]

    yield make
    clock[0] += 1000 * MINUTE
    for crashing in made:
        crashing.transport.crash_at(NEVER, after=False)
        crashing.keep.sweep()  # the schema is shared
        crashing.close()


def tale_after(crashing: CrashingStorage, verb: Callable[[Keep], Any] | None) -> Any:
    if verb is not None:
        verb(crashing.keep)
    return crashing.read_contents()


@pytest.mark.parametrize("name", VERBS)
def test_a_crash_at_any_request_leaves_everything_as_before_or_as_after(
    new_crashing_storage: Callable[[], CrashingStorage], name: str
) -> None:
    verb, crashes = VERBS[name], 0
    expected_contents = [tale_after(new_crashing_storage(), each) for each in (None, FIRST_COMMIT.get(name), verb)]
    for k, after in itertools.product(range(1, 20), (False, True)):
        crashing = new_crashing_storage()
        crashing.transport.crash_at(k, after=after)
        try:
            verb(crashing.keep)
        except Unavailable:
            crashes += 1
        else:
            assert not crashing.transport.crashed, "a crash was taken for a success"
            assert crashing.read_contents() == expected_contents[-1]
            break
        assert crashing.read_contents() in expected_contents
        if k % 2:
            crashing.start()
        assert tale_after(crashing, verb) == expected_contents[-1]
    assert 0 < crashes < 20


@pytest.mark.parametrize("new_crashing_storage", ["valkey"], indirect=True)
@pytest.mark.parametrize("name", ["put with fewer vectors", "many", "sweep"])
def test_the_same_on_valkey_for_some_verbs(new_crashing_storage: Callable[[], CrashingStorage], name: str) -> None:
    """Reading everything takes long, because all partitions are queried."""
    test_a_crash_at_any_request_leaves_everything_as_before_or_as_after(new_crashing_storage, name)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_between_the_commits_of_a_sweep_leaves_whole_memories(
    new_crashing_storage: Callable[[], CrashingStorage], after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plans, "_SWEEP_BATCH", 1)
    for k in range(1, 4):
        crashing = new_crashing_storage()
        before = crashing.read_contents()
        crashing.transport.crash_at(k, after=after)
        with pytest.raises(Unavailable):
            crashing.keep.sweep()
        assert crashing.read_contents()[0] == before[0]
        crashing.keep.sweep()
        assert crashing.read_contents()[0] == before[0]
        assert {place.key for place in crashing.rows()} <= {"a", "b", "c", "d"}


# --- failing embeddings

WRONG: dict[str, Callable[[Sequence[str]], Any]] = {
    "raises": lambda texts: 1 / 0,
    "too few": lambda texts: embed(texts)[1:],
    "too many": lambda texts: embed([*texts, "one more"]),
    "other dimensions": lambda texts: [vector[1:] for vector in embed(texts)],
    "nan": lambda texts: [[float("nan")] * DIMS for _ in texts],
    "infinite": lambda texts: [[float("inf")] * DIMS for _ in texts],
    "nothing": lambda texts: None,
}
CHANGES = [
    PutOp(HOME, "a", {"text": "rain"}),
    PutOp(AWAY, "new", {"text": "apple", "more": "plum"}),
    PutOp(HOME, "b", None),
    GetOp(AWAY, "c"),
    PutOp(AWAY, "d", {"text": "no vector"}, index=False),
]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("wrong", WRONG)
def test_an_embedding_that_fails_changes_nothing(
    new_crashing_storage: Callable[[], CrashingStorage], wrong: str, is_async: bool
) -> None:
    crashing = new_crashing_storage()
    before = crashing.read_contents()
    with crashing.opened(crashing.reach(), {**INDEX, "embed": WRONG[wrong]}) as keep:
        with pytest.raises((ValueError, ZeroDivisionError)):
            asyncio.run(keep.store.abatch(CHANGES)) if is_async else keep.store.batch(CHANGES)
        with pytest.raises((ValueError, ZeroDivisionError)):
            keep.store.search(HOME, query="apple") if wrong not in ("too many", "too few") else 1 / 0
    assert crashing.read_contents() == before


# --- killed processes

KILLED = """
import sys, threadkeep
from memory_batches import INDEX, replacing_batch
store, n = threadkeep.open(sys.argv[1], index=INDEX).store, int(sys.argv[2])
while True:
    n += 1
    store.batch(replacing_batch(n))
    print(n, flush=True)
"""


def check_file(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.execute("INSERT INTO tk_words (tk_words) VALUES ('integrity-check')")


@pytest.fixture
def named(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'keep.db'}"
    name = fresh_name()
    return postgres_servers.shared().url(schema=name, application_name=name)


def application(url: str) -> str:
    """Return the name of the schema, and of the connections."""
    return url.partition("application_name=")[2]


@pytest.mark.parametrize("named", ["sqlite", "postgres"], indirect=True)
def test_a_process_that_is_killed_leaves_whole_batches(named: str) -> None:
    chance, n = random.Random(3), 0
    for _ in range(3):
        child = start(KILLED, named, n)
        assert child.stdout is not None
        output = child.stdout.readline().decode()
        time.sleep(chance.uniform(0, 0.25))
        output += kill(child)
        if named.startswith("postgres"):
            assert postgres_servers.wait_until(
                lambda: not connections(postgres_servers.shared(), application(named)), 10
            )
        last = check_batch(named)
        assert last in (acknowledged := int(output.split()[-1]), acknowledged + 1)
        n = last
    if named.startswith("sqlite"):
        check_file(Path(named.removeprefix("sqlite:///")))


# --- PostgreSQL: terminated connections, cancelled statements


@pytest.mark.parametrize("named", ["postgres"], indirect=True)
def test_connections_that_are_ended_all_the_time_leave_whole_batches(named: str) -> None:
    with threadkeep.open(named, index=INDEX) as keep:
        keep.setup()
        with again_and_again(lambda: end_backends(postgres_servers.shared(), application(named))) as ended:
            for n in range(1, 10_000):
                keep.store.batch(replacing_batch(n))
                assert {item.value["n"] for item in keep.store.search((), limit=100)} == {n}
                if sum(ended) > 10:
                    break
    assert check_batch(named) == n


class Waiting:
    """A writer that has stored a batch's memories and waits before their vectors; others cannot see it yet."""

    def __init__(self, url: str) -> None:
        self.schema = application(url)
        self.keep = threadkeep.open(url, index=INDEX)
        self.keep.store.batch(replacing_batch(1))
        self.outcome: Any = None
        self._holder = psycopg.connect(url.partition("?")[0])
        self._holder.execute(f"SELECT 1 FROM {self.schema}.tk_parts FOR UPDATE".encode())
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        assert postgres_servers.wait_until(lambda: blocked(self.schema) == 1, 10)

    def _work(self) -> None:
        self.outcome = try_call(lambda: self.keep.store.batch(replacing_batch(2)))

    def go_on(self) -> Any:
        """Let the writer continue, and return how it ends."""
        self._holder.close()
        self._thread.join(30)
        return self.outcome


@pytest.mark.parametrize("named", ["postgres"], indirect=True)
def test_a_connection_that_is_ended_in_the_middle_of_a_batch_costs_nothing(named: str) -> None:
    waiting = Waiting(named)
    assert check_batch(named) == 1
    end_backends(postgres_servers.shared(), application(named))
    assert check_batch(named) == 1
    assert isinstance(waiting.go_on(), Reply)
    assert check_batch(named) == 2
    waiting.keep.close()


@pytest.mark.parametrize("named", ["postgres"], indirect=True)
def test_a_batch_that_is_cancelled_in_the_middle_is_not_there_and_the_next_is(named: str) -> None:
    waiting = Waiting(named)
    execute(f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = '{waiting.schema}'")
    outcome = waiting.go_on()
    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, Unavailable)
    assert check_batch(named) == 1
    waiting.keep.store.batch(replacing_batch(2))
    waiting.keep.close()
    assert check_batch(named) == 2
