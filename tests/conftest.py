"""Shared fixtures: the table of backends, a Keep on each, sync and async calls, a check that the loop is not blocked.

A new backend is one line in `BACKENDS`. Nothing here is a mock: each fixture uses a real database.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import apsw
import psycopg
import psycopg_pool
import pytest
from blockbuster import BlockBusterFunction, blockbuster_ctx
from fault_matrix import log, matrix  # noqa: F401 - fixtures of the tests of faults

import postgres_servers
import shared_pool
import threadkeep
import valkey_servers
from moved_clock import MovedClock
from sync_async import Ask, AsyncCaller, Caller, SyncCaller
from threadkeep.transports.postgres_own_pool import OwnPool

pytest.register_assert_rewrite("graph_scenarios", "strict_equality", "checkpoint_trees")


@dataclass(frozen=True, slots=True)
class Backend:
    """How to get a new, empty URL of a backend, and what the backend supports.

    `lasting`: data outlives the Keep. `tables`: reads need a set-up first.
    """

    name: str
    fresh: Callable[[Path, int], str]
    lasting: bool
    tables: bool = True


BACKENDS = [
    Backend("memory", lambda folder, n: "memory://", lasting=False, tables=False),
    Backend("sqlite", lambda folder, n: f"sqlite:///{folder / f'keep{n}.db'}", lasting=True),
    Backend("postgres", lambda folder, n: postgres_servers.fresh_schema(postgres_servers.shared()), lasting=True),
    Backend("valkey", lambda folder, n: valkey_servers.shared().url(), lasting=True, tables=False),
]

# The Valkey cluster is slow. `make test` runs only its own tests, the suites and the models; `make prove-long` runs all.
ON_THE_CLUSTER = {
    "test_agent_server.py", "test_agreement.py", "test_at_once.py", "test_audit.py", "test_budgets.py", "test_cli.py", "test_conformance.py", "test_copied_values.py", "test_cube_conformance.py",
    "test_damaged_memories.py", "test_damaged_threads.py", "test_describe.py", "test_doctor.py", "test_flow.py", "test_repair.py", "test_store_agreement.py",
    "test_store_conformance.py", "test_tenant_rows.py", "test_tenants.py", "test_valkey.py",
    "test_verify.py",
    "test_encrypted_agreement.py", "test_encrypted_conformance.py", "test_encrypted_damage.py",
    "test_encrypted_files.py", "test_erase.py", "test_inspector_browser.py", "test_kept_rows.py",
    "test_plain_keeps.py", "test_search.py",
}  # fmt: skip
EVERYTHING = os.environ.get("THREADKEEP_EVERYTHING") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that only `make prove-long` runs."""
    if EVERYTHING:
        return
    left = [
        item
        for item in items
        if item.get_closest_marker("long") or _is_left_to_prove(item) or _is_beyond_the_sample(item)
    ]
    config.hook.pytest_deselected(items=left)
    gone = set(left)
    items[:] = [item for item in items if item not in gone]


def _is_left_to_prove(item: pytest.Item) -> bool:
    parameters = re.split(r"[\[\]-]", item.name)[1:]  # a page or a URL that names valkey needs no cluster
    on_the_cluster = "valkey" in parameters or "Valkey" in item.nodeid
    return on_the_cluster and item.path.name not in ON_THE_CLUSTER and item.path.parent.name != "faults"


def _is_beyond_the_sample(item: pytest.Item) -> bool:
    """Return whether a `sampled(n)` test is left out: memory runs all combinations of parameters, others every n-th.

    Two backends run different combinations, so that every combination is tried somewhere.
    """
    marker, call = item.get_closest_marker("sampled"), getattr(item, "callspec", None)
    if marker is None or call is None:
        return False
    values = [value.name if isinstance(value, Backend) else value for value in call.params.values()]
    return "memory" not in values and sum(call.indices.values()) % marker.args[0] != 0


# Blocking calls of our drivers, which blockbuster does not know.
DRIVER_CALLS = [
    (apsw.Connection, "execute"),
    (apsw.Connection, "executemany"),
    (apsw.Cursor, "execute"),
    (apsw.Cursor, "executemany"),
    (psycopg.waiting, "wait"),
    (
        psycopg.waiting,
        "wait_conn",
    ),  # not Connection.connect: patching a class method and restoring it breaks its subclasses
    (psycopg_pool.ConnectionPool, "getconn"),
    (OwnPool, "getconn"),
]


def _fresh_urls(backend: Backend, folder: Path) -> Callable[[], str]:
    numbers = iter(range(1_000_000))
    return lambda: backend.fresh(folder, next(numbers))


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def fresh_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Return another empty URL at each call, on each backend."""
    return _fresh_urls(request.param, tmp_path)


@pytest.fixture
def url(fresh_url: Callable[[], str]) -> str:
    return fresh_url()


@pytest.fixture(params=[backend for backend in BACKENDS if backend.lasting], ids=lambda backend: backend.name)
def lasting_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL that can be opened again, on each backend whose data outlives the Keep."""
    return _fresh_urls(request.param, tmp_path)()


@pytest.fixture(params=[backend for backend in BACKENDS if backend.tables], ids=lambda backend: backend.name)
def tables_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL of each backend where nothing can be read before tables are created."""
    return _fresh_urls(request.param, tmp_path)()


@pytest.fixture
def keep(request: pytest.FixtureRequest, url: str) -> Iterator[threadkeep.Keep]:
    """A Keep that is isolated from other tests. If the test also uses `url`, the Keep is at that URL."""
    uses_url = inspect.signature(request.function).parameters.keys() & {"url", "fresh_url"}
    with threadkeep.open(url) if uses_url else shared_pool.open_keep(url) as opened:
        yield opened


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: backend.name)
def module_keep(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], threadkeep.Keep]]:
    """Return an empty Keep at each call, for data that many tests of a file read and none changes."""
    urls = _fresh_urls(request.param, tmp_path_factory.mktemp("module_keep"))
    with ExitStack() as closing:
        yield lambda: closing.enter_context(shared_pool.open_keep(urls()))


@pytest.fixture
def saver(keep: threadkeep.Keep) -> threadkeep.KeepSaver:
    return keep.checkpointer


@pytest.fixture(params=[SyncCaller(), AsyncCaller()], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Caller:
    """`await call(saver, "put", …)` and `await call.every(saver, "list", …)`, sync and async; on graphs too."""
    caller: Caller = request.param
    return caller


@pytest.fixture
def ask(call: Caller) -> Ask:
    """`ask(keep, "branches", …)`, sync and async, for a sync test."""
    return Ask(call)


@pytest.fixture
def moved_clock(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    """A clock whose `sleep` moves the time of threadkeep ahead instead of waiting."""
    return MovedClock(monkeypatch)


@pytest.fixture(autouse=True)
def unblocked_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """In an async test, raise BlockingError if threadkeep blocks the event loop."""
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        yield
        return
    with blockbuster_ctx(scanned_modules=["threadkeep"]) as guard:
        for owner, method in DRIVER_CALLS:
            guard.functions[f"{owner.__name__}.{method}"] = BlockBusterFunction(
                owner, method, scanned_modules=["threadkeep"]
            ).activate()
        yield
