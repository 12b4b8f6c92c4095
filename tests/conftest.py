"""What every test shares: the table of backends, a Keep on each of them, both colours of a call, and a loop that must not be blocked.

A new backend is one line in `BACKENDS`. Nothing here stands in for a database: each fixture gives the real thing.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import apsw
import psycopg
import psycopg_pool
import pytest
from blockbuster import BlockBusterFunction, blockbuster_ctx

import postgres_servers
import shared_pool
import threadkeep
import valkey_servers
from sync_async import Async, Colour, Sync

pytest.register_assert_rewrite("graph_scenarios", "strict_equality", "checkpoint_trees")


@dataclass(frozen=True, slots=True)
class Backend:
    """How to get a fresh, empty URL of one backend; whether its data outlives the Keep that wrote it; what it has."""

    name: str
    fresh: Callable[[Path, int], str]
    lasting: bool
    words: bool = True
    tables: bool = True


BACKENDS = [
    Backend("memory", lambda folder, n: "memory://", lasting=False, tables=False),
    Backend("sqlite", lambda folder, n: f"sqlite:///{folder / f'keep{n}.db'}", lasting=True),
    Backend("postgres", lambda folder, n: postgres_servers.fresh_schema(postgres_servers.shared()), lasting=True),
    Backend("valkey", lambda folder, n: valkey_servers.shared().url(), lasting=True, words=False, tables=False),
]

# The cluster is the slowest. `make test` runs on it what is its own, the suites and the models; `make prove` everything.
ON_THE_CLUSTER = {
    "test_agreement.py", "test_audit.py", "test_cli.py", "test_conformance.py", "test_cube_conformance.py",
    "test_doctor.py", "test_repair.py", "test_store_agreement.py", "test_store_conformance.py", "test_valkey.py",
    "test_verify.py",
}  # fmt: skip
EVERYTHING = os.environ.get("THREADKEEP_EVERYTHING") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, and count, what only `make prove` runs."""
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
    on_the_cluster = "valkey" in item.name.partition("[")[2] or "Valkey" in item.nodeid
    return on_the_cluster and item.path.name not in ON_THE_CLUSTER


def _is_beyond_the_sample(item: pytest.Item) -> bool:
    """Of a test that is `sampled(n)`, memory has all combinations of parameters, any other backend every n-th.

    Those of two backends are not the same ones: what n parameters or colours multiply is tried somewhere.
    """
    marker, called = item.get_closest_marker("sampled"), getattr(item, "callspec", None)
    if marker is None or called is None:
        return False
    given = [value.name if isinstance(value, Backend) else value for value in called.params.values()]
    return "memory" not in given and sum(called.indices.values()) % marker.args[0] != 0


# What blockbuster does not know: the calls of our drivers that wait for a disk or a server.
DRIVER_CALLS = [
    (apsw.Connection, "execute"),
    (apsw.Connection, "executemany"),
    (apsw.Cursor, "execute"),
    (apsw.Cursor, "executemany"),
    (psycopg.waiting, "wait"),
    (psycopg.waiting, "wait_conn"),  # not Connection.connect: a class method that is put back belongs to one class only
    (psycopg_pool.ConnectionPool, "getconn"),
]


def _fresh_urls(backend: Backend, folder: Path) -> Callable[[], str]:
    made = iter(range(1_000_000))
    return lambda: backend.fresh(folder, next(made))


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def fresh_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Gives another empty URL at each call, on each backend."""
    return _fresh_urls(request.param, tmp_path)


@pytest.fixture
def url(fresh_url: Callable[[], str]) -> str:
    return fresh_url()


@pytest.fixture(params=[backend for backend in BACKENDS if backend.lasting], ids=lambda backend: backend.name)
def lasting_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL that may be opened again, on each backend whose data outlives the Keep."""
    return _fresh_urls(request.param, tmp_path)()


@pytest.fixture(params=[backend for backend in BACKENDS if backend.words], ids=lambda backend: backend.name)
def worded_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL where memories are found by their words."""
    return _fresh_urls(request.param, tmp_path)()


@pytest.fixture(params=[backend for backend in BACKENDS if backend.tables], ids=lambda backend: backend.name)
def tables_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL where nothing can be read before tables are made."""
    return _fresh_urls(request.param, tmp_path)()


@pytest.fixture
def keep(request: pytest.FixtureRequest, url: str) -> Iterator[threadkeep.Keep]:
    """A Keep that sees nothing of other tests. A test that asks for the URL too finds there what it holds."""
    asked = inspect.signature(request.function).parameters.keys() & {"url", "fresh_url"}
    with threadkeep.open(url) if asked else shared_pool.opened(url) as opened:
        yield opened


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: backend.name)
def standing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], threadkeep.Keep]]:
    """Gives an empty Keep at each call, for what many tests of a file read and none of them changes."""
    urls = _fresh_urls(request.param, tmp_path_factory.mktemp("standing"))
    with ExitStack() as closing:
        yield lambda: closing.enter_context(shared_pool.opened(urls()))


@pytest.fixture
def saver(keep: threadkeep.Keep) -> threadkeep.KeepSaver:
    return keep.checkpointer


@pytest.fixture(params=[Sync(), Async()], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Colour:
    """`await call(saver, "put", …)` and `await call.every(saver, "list", …)`, in each colour; graphs spell their verbs the same way."""
    colour: Colour = request.param
    return colour


@pytest.fixture(autouse=True)
def unblocked_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """In an async test, a call of threadkeep that would block the event loop raises BlockingError."""
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        yield
        return
    with blockbuster_ctx(scanned_modules=["threadkeep"]) as guard:
        for owner, method in DRIVER_CALLS:
            guard.functions[f"{owner.__name__}.{method}"] = BlockBusterFunction(
                owner, method, scanned_modules=["threadkeep"]
            ).activate()
        yield
