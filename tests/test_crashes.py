"""Crashes at every request of every verb, before or after its execution (the reply got lost): no partial change.

Each verb is repeated, crashing one request later each time, until it succeeds. After each crash, every thread is as it
was before the verb or as it is after it, and repeating the verb ends in the same state as an undisturbed one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

import shared_pool
from model import checkpoint_config
from row_invariants import find_problems
from threadkeep.backends.in_memory.backend import InMemoryBackend
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.drivers.runner import Transport
from threadkeep.engine.requests import Batch
from threadkeep.errors import Unavailable
from threadkeep.keep import Keep
from threadkeep.plan import Outcome, Request
from threadkeep.session import Caches, Session
from threadkeep.tenants.transport import Tenant
from threadkeep.transports.direct import Direct
from threadkeep.transports.sqlite import SqliteFile

NEVER = 1 << 30
LONG = "long " * 120_000

serde = JsonPlusSerializer()


class Crashing:
    """A transport that fails once, at its k-th request."""

    writers = 1
    commits_at_once = True

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._left = NEVER
        self._executes = False
        self.crashed = False

    def crash_at(self, k: int, *, after: bool) -> None:
        self._left, self._executes, self.crashed = k, after, False

    def _guarded(self, execute: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left:
            return execute()
        self.crashed = True
        if self._executes:
            execute()
        raise Unavailable("the connection was lost")

    def read(self, request: Request[Any]) -> Any:
        return self._guarded(lambda: self._inner.read(request))

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        return self._guarded(lambda: self._inner.write(requests))

    def try_commit(self, batch: Batch) -> bool:
        return self._guarded(lambda: self._inner.try_commit(batch))

    def write_at_once(self, _: Any) -> bool:
        return False  # all changes go through `write`

    def try_drop(self, key: Any) -> bool:
        return self._guarded(lambda: self._inner.try_drop(key))

    def tenant(self, name: str) -> Tenant:
        return Tenant(name, None, hide_ids=None)

    def setup(self) -> None:
        self._inner.setup()

    def close(self) -> None:
        self._inner.close()

    def abandon(self) -> None:
        self._inner.abandon()


def new_transport(path: Path | str | None, memory: InMemoryBackend) -> Transport:
    """Return a new transport to a file, to a shared URL, or to rows in memory."""
    if isinstance(path, str):
        return shared_pool.transport(url=path)
    if path is None:
        return Direct(memory)
    return SqliteFile(path, SqliteDialect(), durability="relaxed", timeout=5)


class CrashingStorage:
    """A storage, and how to reopen it after a crash."""

    def __init__(self, path: Path | str | None, tenant: str = "") -> None:
        self.path = path
        self.tenant = tenant
        self._memory = InMemoryBackend()
        self._keeps: list[Keep] = []
        self.start()

    def start(self) -> None:
        """Open a Keep without caches, as a new process would."""
        self.transport = Crashing(self.reach())
        self._keeps.append(Keep(Session(self.transport, tenant=self.tenant, caches=Caches(1 << 26)), None))

    def reach(self) -> Transport:
        """Return a new transport to the same rows."""
        return new_transport(self.path, self._memory)

    @property
    def keep(self) -> Keep:
        return self._keeps[-1]

    def do(self, verb: str, *args: Any, **kwargs: Any) -> None:
        getattr(self.keep.checkpointer, verb)(*args, **kwargs)

    def read_contents(self) -> dict[str, Any]:
        """Read everything in every thread with a new Keep; check row invariants where possible."""
        self.check()
        reader = Keep(Session(self.reach(), tenant=self.tenant, caches=Caches(0)), None)
        read_contents = {info.id: [(info.checkpoints, info.writes, info.status)] for info in reader.threads()}
        for found in reader.checkpointer.list(None):
            by_id = reader.checkpointer.get_tuple(found.config)
            assert by_id == found
            read_contents[found.config["configurable"]["thread_id"]].append(dump_tuple(found))
        reader.close()
        return read_contents

    def check(self) -> None:
        if self.path is not None:
            assert find_problems(self.path, self.tenant) == []

    def close(self) -> None:
        for keep in self._keeps:
            keep.close()


def location_of(backend: str, file: Path) -> tuple[Path | str | None, str]:
    """Return where a storage is, and its tenant. Storages on servers share a schema or prefix."""
    shared = {"postgres": shared_pool.schema, "valkey": shared_pool.cluster}
    if backend in shared:
        return shared[backend](), shared_pool.fresh_tenant()
    return file if backend == "sqlite" else None, ""


def dump_tuple(found: Any) -> Any:
    parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
    return (
        found.config["configurable"], parent, found.metadata, serde.dumps_typed(found.checkpoint),
        serde.dumps_typed(found.pending_writes),
    )  # fmt: skip


def put(thread: str, id: str, parent: str | None, *, ns: str = "", run: str = "run", **values: Any) -> tuple[Any, ...]:
    versions = {channel: int(id) for channel in values}
    checkpoint = {
        "v": 4,
        "ts": "2026-01-01T00:00:00+00:00",
        "id": id,
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {"node": versions},
        "updated_channels": None,
    }
    config = {
        "configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": parent},
        "metadata": {"run_id": run},
    }
    new_metadata = {"source": "loop", "step": int(id), "parents": {"": "4"} if ns else {}, "thread_id": thread}
    return ("put", config, checkpoint, new_metadata, versions)


def write(thread: str, id: str, *writes: Any, task: str = "task", run: str = "run") -> tuple[Any, ...]:
    config = checkpoint_config(thread, "", id) | {"metadata": {"run_id": run}}
    return ("put_writes", config, list(writes), task, "~path")


def message_list(length: int) -> list[str]:
    return [f"message {n} " * 10 for n in range(length)]


PAST = [
    put("t", "1", None, messages=message_list(1), run="first"),
    write("t", "1", ("messages", message_list(2)[-1]), run="first"),
    put("t", "2", "1", messages=message_list(2), files={f"f{n}": "content " * 40 for n in range(5)}, run="first"),
    write("t", "2", ("messages", "left by the second run"), task="other", run="second"),
    put("t", "3", "2", messages=[*message_list(2), LONG], run="second"),
    write("t", "3", ("messages", "b"), (INTERRUPT, "really?"), run="second"),
    put("t", "4", "3", messages=message_list(3), run="third"),
    put("t", "1", None, ns="child:1", messages=["inner"] * 50, run="third"),
    put("t", "2", "1", ns="child:1", messages=["inner"] * 60, run="third"),
    write("t", "4", ("messages", "c"), (ERROR, "first error"), run="third"),
    put("u", "2", None, messages=["of u"], run="first"),
    write("u", "2", ("messages", "of u, too"), run="second"),
    put("u", "5", "2", messages=["of u", "again"], run="second"),
]
VERBS: dict[str, tuple[Any, ...]] = {
    "put": put("t", "5", "4", messages=message_list(6), note="x" * 600),
    "put a long value": put("t", "5", "4", messages=[*message_list(3), LONG + "!"]),
    "put a first checkpoint": put("new", "1", None, messages=message_list(2)),
    "put again": put("t", "3", "2", messages=["another"], note="y" * 400),
    "put the latest again": put("t", "4", "3", messages=message_list(7)),
    "put a fork": put("t", "5", "2", messages=[*message_list(2), "another way"]),
    "put_writes": write("t", "4", ("messages", message_list(9)[-1]), ("note", LONG), task="new"),
    "put_writes again": write("t", "3", ("messages", "other"), (INTERRUPT, "really?")),
    "put_writes again and more": write("t", "3", ("messages", "other"), ("messages", "more"), ("note", "z" * 900)),
    "put_writes with special channels": write("t", "4", (ERROR, "second error"), (RESUME, ["yes"]), ("note", "n")),
    "put_writes before the checkpoint": write("t", "9", ("messages", "early")),
    "put_writes before the thread": write("new", "9", ("messages", "early")),
    "delete_thread": ("delete_thread", "t"),
    "delete_thread of none": ("delete_thread", "nowhere"),
    "keep_latest": ("prune", ["t", "u"]),
    "delete": ("prune", ["t", "u"], {"strategy": "delete"}),
    "delete_all": ("prune", ["t", "u"], {"strategy": "delete_all"}),
    "delete_for_runs": ("delete_for_runs", ["second"]),
    "delete_for_runs of all": ("delete_for_runs", ["first", "second", "third"]),
    "copy_thread": ("copy_thread", "t", "new"),
    "copy_thread onto another": ("copy_thread", "t", "u"),
}


def do(crashing: CrashingStorage, verb: tuple[Any, ...]) -> None:
    options = verb[-1] if verb[0] == "prune" and isinstance(verb[-1], dict) else {}
    crashing.do(verb[0], *(verb[1:-1] if options else verb[1:]), **options)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def new_crashing_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made: list[CrashingStorage] = []

    def make() -> CrashingStorage:
        crashing = CrashingStorage(*location_of(request.param, tmp_path / f"{len(made)}.db"))
        made.append(crashing)
        for step in PAST:
            do(crashing, step)
        return crashing

    yield make
    for crashing in made:
        crashing.close()


WAYS = {
    "warm before, cold after": [(True, False), (False, True)],
    "warm after, cold before": [(True, True), (False, False)],
}
"""Whether the Keep has the thread cached, and whether the crashing request was executed."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("name", VERBS)
def test_a_crash_at_any_request_leaves_each_thread_as_before_or_as_after(
    new_crashing_storage: Callable[[], CrashingStorage], name: str, ways: list[tuple[bool, bool]]
) -> None:
    undisturbed = new_crashing_storage()
    before = undisturbed.read_contents()
    do(undisturbed, VERBS[name])
    final = undisturbed.read_contents()
    for remembers, after in ways:
        assert 0 < crashes(new_crashing_storage, name, before, final, after=after, remembers=remembers) < 20


def crashes(
    new_crashing_storage: Callable[[], CrashingStorage],
    name: str,
    before: Any,
    final: Any,
    *,
    after: bool,
    remembers: bool,
) -> int:
    """Return how often the verb crashed, one request later each time, before it succeeded."""
    for k in range(1, 50):
        crashing = new_crashing_storage()
        if not remembers:
            crashing.start()
        crashing.transport.crash_at(k, after=after)
        try:
            do(crashing, VERBS[name])
        except Unavailable:
            pass
        else:
            assert not crashing.transport.crashed, "a crash was taken for a success"
            assert crashing.read_contents() == final
            return k - 1
        seen = crashing.read_contents()
        assert {
            thread: seen.get(thread) in (before.get(thread), final.get(thread)) for thread in before | final
        } == dict.fromkeys(before | final, True)
        if k % 2:
            crashing.start()
        do(crashing, VERBS[name])
        assert crashing.read_contents() == final
    raise AssertionError("it never gets through")


@pytest.mark.parametrize("new_crashing_storage", ["valkey"], indirect=True)
@pytest.mark.parametrize("name", VERBS)
def test_the_same_on_valkey_without_a_cache_and_with_lost_replies(
    new_crashing_storage: Callable[[], CrashingStorage], name: str
) -> None:
    test_a_crash_at_any_request_leaves_each_thread_as_before_or_as_after(new_crashing_storage, name, [(False, True)])
