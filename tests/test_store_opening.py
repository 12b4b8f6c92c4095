"""Opening, setting up, sweeping and closing a store; read-only; wrong options; tenants; files of an older schema."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from typing import Any

import apsw
import numpy as np
import psycopg
import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp

import postgres_servers
import stored_memories
import threadkeep
from checkpoint_chains import Chain, values_of
from memory_batches import HOME, INDEX, NEAR, keys, location
from old_schemas import todays_columns, use_version
from processes import run, run_concurrently
from sync_async import AsyncCaller, Caller
from test_postgres import execute, schema_of
from threadkeep import KeepStore
from threadkeep.backends.sql.memories import memory_id_values
from threadkeep.conformance.store.embedder import DIMS, embed
from threadkeep.engine.memories import json_text
from threadkeep.engine.memories.namespaces import MemoryKey, encode
from threadkeep.engine.memories.words import words
from threadkeep.engine.schema_versions import SCHEMA_VERSION
from threadkeep.errors import Closed, ReadOnly, SchemaTooNew, SchemaTooOld, Unavailable

MINUTE = 60_000_000
SOON = 0.0005
"""Minutes."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock whose only number is the time."""
    now = [1_800_000_000_000_000]
    monkeypatch.setattr("threadkeep.clock.now_us", lambda: now[0])
    return now


def sweepers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "threadkeep-sweeper"]


# --- from_conn_string and setup


def test_from_conn_string_serves_with(lasting_url: str) -> None:
    with KeepStore.from_conn_string(lasting_url, index=INDEX, ttl={"default_ttl": 5}) as store:
        assert isinstance(store, KeepStore)
        assert store.ttl_config == {"default_ttl": 5}
        store.setup()
        store.put(HOME, "k", {"text": "apple"})
        assert keys(store.search(HOME, query="apple")) == ["k"]
    with pytest.raises(Closed):
        store.get(HOME, "k")
    with KeepStore.from_conn_string(lasting_url) as store:
        assert keys(store.search(HOME)) == ["k"]


async def test_from_conn_string_serves_async_with(lasting_url: str) -> None:
    async with KeepStore.from_conn_string(lasting_url, index=INDEX) as store:
        await store.setup()
        await store.aput(HOME, "k", {"text": "apple"})
        assert keys(await store.asearch(HOME, query="apple")) == ["k"]
    with pytest.raises(Closed):
        await store.aget(HOME, "k")
    async with KeepStore.from_conn_string(lasting_url) as store:
        assert keys(await store.asearch(HOME)) == ["k"]


def test_an_error_inside_with_closes_and_is_raised(url: str) -> None:
    with pytest.raises(ZeroDivisionError), KeepStore.from_conn_string(url) as store:
        store.put(HOME, "k", {})
        1 / 0
    with pytest.raises(Closed):
        store.get(HOME, "k")


def test_an_unknown_option_is_a_type_error(url: str) -> None:
    with pytest.raises(TypeError, match="pool_config"):
        KeepStore.from_conn_string(url, pool_config={})  # type: ignore[call-arg]


def test_setup_makes_the_tables_at_once_and_may_be_repeated(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        keep.store.setup()
        keep.store.setup()
        assert stored_memories.read_memories(location(lasting_url)) == ({}, {}, set())


def test_the_store_of_a_keep_is_one_object_and_closes_with_it(url: str) -> None:
    keep = threadkeep.open(url)
    assert keep.store is keep.store
    keep.close()
    for verb in (lambda: keep.store.get(HOME, "k"), lambda: keep.store.put(HOME, "k", {}), keep.sweep):
        with pytest.raises(Closed):
            verb()


def test_a_store_keeps_its_keep_alive(url: str) -> None:
    store = threadkeep.open(url).store
    gc.collect()
    store.put(HOME, "k", {})
    assert keys(store.search(HOME)) == ["k"]


# --- options

WRONG_OPTIONS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an index that is no dict": ({"index": [1]}, TypeError, "index"),
    "an index with an unknown key": ({"index": {"dimensions": 3}}, ValueError, "dimensions"),
    "an embedder without dimensions": ({"index": {"embed": embed}}, ValueError, "dims"),
    "dimensions that are no number": ({"index": {"embed": embed, "dims": "8"}}, ValueError, "dims"),
    "no dimensions": ({"index": {"embed": embed, "dims": 0}}, ValueError, "dims"),
    "dimensions that are a bool": ({"index": {"embed": embed, "dims": True}}, ValueError, "dims"),
    "dimensions without an embedder": ({"index": {"dims": 8}}, ValueError, "embed"),
    "an embedder that is none": ({"index": {"embed": 5, "dims": 8}}, TypeError, "embed"),
    "vectors without an embedder": ({"index": {"search": "vector"}}, ValueError, "embed"),
    "hybrid without an embedder": ({"index": {"search": "hybrid"}}, ValueError, "embed"),
    "an unknown search": ({"index": {"search": "magic"}}, ValueError, "search"),
    "an unknown distance": ({"index": {**NEAR, "distance_type": "far"}}, ValueError, "distance_type"),
    "a distance that is none": ({"index": {**NEAR, "distance_type": []}}, ValueError, "distance_type"),
    "fields that are a str": ({"index": {**NEAR, "fields": "text"}}, TypeError, "fields"),
    "fields that are a number": ({"index": {**NEAR, "fields": 5}}, TypeError, "fields"),
    "fields with a number": ({"index": {**NEAR, "fields": [5]}}, TypeError, "fields"),
    "a ttl that is a number": ({"ttl": 5}, TypeError, "ttl"),
    "a ttl that is a list": ({"ttl": ["default_ttl"]}, TypeError, "ttl"),
    "a ttl with an unknown key": ({"ttl": {"minutes": 5}}, ValueError, "minutes"),
    "a negative default": ({"ttl": {"default_ttl": -1}}, ValueError, "default_ttl"),
    "a default that is a str": ({"ttl": {"default_ttl": "5"}}, TypeError, "default_ttl"),
    "a default that is nan": ({"ttl": {"default_ttl": float("nan")}}, ValueError, "default_ttl"),
    "an interval that is a str": ({"ttl": {"sweep_interval_minutes": "5"}}, TypeError, "sweep_interval_minutes"),
    "a negative interval": ({"ttl": {"sweep_interval_minutes": -5}}, ValueError, "sweep_interval_minutes"),
    "a refresh that is a str": ({"ttl": {"refresh_on_read": "no"}}, TypeError, "refresh_on_read"),
}


@pytest.mark.parametrize("wrong", WRONG_OPTIONS)
def test_a_wrong_option_is_an_error_when_the_keep_is_opened(wrong: str) -> None:
    options, error, name = WRONG_OPTIONS[wrong]
    with pytest.raises(error, match=name):
        threadkeep.open("memory://", **options)


def test_the_options_of_the_official_stores_are_accepted(url: str) -> None:
    ttl: Any = {"default_ttl": 10, "refresh_on_read": False, "sweep_interval_minutes": 5, "omit_expired": True}
    with threadkeep.open(url, index={**NEAR, "ann_index_config": {"kind": "hnsw"}}, ttl=ttl) as keep:
        keep.store.put(HOME, "k", {"text": "apple"})
        assert keys(keep.store.search(HOME, query="apple")) == ["k"]


@pytest.mark.parametrize("measure", ["cosine", "inner_product", "l2"])
def test_every_distance_type_puts_the_nearest_first(url: str, measure: str) -> None:
    with threadkeep.open(url, index={**NEAR, "distance_type": measure}) as keep:
        for text in ("apple", "rain", "apple rain"):
            keep.store.put(HOME, text, {"text": text})
        found = keep.store.search(HOME, query="apple")
        assert found[-1].key == "rain"
        assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)


def test_a_store_without_vectors_and_words_ignores_a_query(url: str) -> None:
    with threadkeep.open(url, index={"search": "off"}) as keep:
        keep.store.put(HOME, "k", {"text": "apple"})
        keep.store.put(HOME, "other", {"text": "pear"})
        found = keep.store.search(HOME, query="apple")
        assert [(item.key, item.score) for item in found] == [("other", None), ("k", None)]
        assert keys(keep.store.search(HOME, query="pear", filter={"text": "apple"})) == ["k"]


WRONG_VECTORS: dict[str, tuple[Any, str]] = {
    "no vector": ([], "0 vectors for 1"),
    "too many": ([[0.0] * DIMS] * 2, "2 vectors for 1"),
    "other dimensions": ([[0.0] * 3], f"3 dimensions.* {DIMS}"),
    "nan": ([[float("nan")] * DIMS], "not finite"),
    "infinite": ([[float("inf")] * DIMS], "not finite"),
    "too great": ([[1e300] * DIMS], "not finite"),
    "nothing": (None, "None for 1"),
}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("wrong", WRONG_VECTORS)
async def test_a_wrong_result_of_an_embedder_is_an_error(call: Caller, wrong: str) -> None:
    given, said = WRONG_VECTORS[wrong]
    async with threadkeep.open("memory://", index={**NEAR, "embed": lambda texts: given}) as keep:
        with pytest.raises(ValueError, match=said):
            await call(keep.store, "put", HOME, "k", {"text": "apple"})
        assert await call(keep.store, "get", HOME, "k") is None


@pytest.mark.parametrize("given", [None, [], 5])
async def test_no_vector_for_a_query_is_an_error(call: Caller, given: Any) -> None:
    async with threadkeep.open("memory://", index={**NEAR, "embed": lambda texts: given}) as keep:
        with pytest.raises(ValueError, match="embedding function"):
            await call(keep.store, "search", HOME, query="apple")


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import threadkeep
store = threadkeep.open(sys.argv[1]).store
store.put(("a",), "k", {"text": "an apple"})
assert [item.key for item in store.search(("a",), query="apple")] == ["k"]
assert [item.key for item in store.search(("a",), filter={"text": {"$contains": "an"}})] == ["k"]
try:
    threadkeep.open(sys.argv[1], index={"dims": 2, "embed": lambda texts: [[1.0, 2.0] for _ in texts]})
except ImportError as error:
    assert str(error) == 'vector search needs numpy: pip install "threadkeep[vectors]"', error
else:
    raise AssertionError("no error")
"""


def test_without_numpy_words_are_found_and_vectors_say_what_is_missing(url: str) -> None:
    run(WITHOUT_NUMPY, url)


READ_AN_ARRAY_WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import threadkeep
config = {"configurable": {"thread_id": "t"}}
with threadkeep.open(sys.argv[1]) as keep:
    try:
        keep.checkpointer.get_tuple(config)
    except ImportError as error:
        assert str(error).endswith("it contains a numpy array, which needs numpy: pip install numpy"), error
        assert "channel 'x' of checkpoint" in str(error), error
    else:
        raise AssertionError("no error")
    assert keep.show("t").state["x"]["value"] == ["<i8", [3]], keep.show("t").state
"""


def test_without_numpy_a_stored_array_says_what_is_missing_and_can_be_shown(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        Chain(keep.checkpointer).put({"x": np.arange(3)})
    run(READ_AN_ARRAY_WITHOUT_NUMPY, lasting_url)


# --- expiry and the sweeper


async def test_sweep_ttl_counts_what_it_removes(lasting_url: str, call: Caller, clock: list[int]) -> None:
    async with threadkeep.open(lasting_url, index=INDEX, ttl={"default_ttl": 5}) as keep:
        store = keep.store
        for n in range(10):
            await call(store, "put", HOME, f"k{n}", {"text": "apple"}, **({"ttl": None} if n % 2 else {}))
        clock[0] += 5 * MINUTE
        assert len(await call(store, "search", HOME)) == 5
        swept = store.sweep_ttl() if isinstance(call, AsyncCaller) else asyncio.to_thread(store.sweep_ttl)
        assert await swept == 5
        assert (await call(keep, "sweep")).memories == 0
    assert len(stored_memories.read_memories(location(lasting_url)).memory_keys) == 5
    assert stored_memories.find_leftovers(location(lasting_url)) == []


def test_a_sweep_of_very_many_goes_in_small_commits(lasting_url: str, clock: list[int]) -> None:
    with threadkeep.open(lasting_url, index={"search": "off"}) as keep:
        keep.store.batch([PutOp(HOME, f"k{n}", {}, ttl=1) for n in range(2500)])
        clock[0] += 2 * MINUTE
        assert keep.sweep().memories == 2500
    assert stored_memories.read_memories(location(lasting_url)).memory_keys == {}


def test_the_sweeper_runs_only_when_asked_and_until_it_is_stopped(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, index=INDEX, ttl={"default_ttl": SOON, "sweep_interval_minutes": SOON}) as keep:
        store = keep.store
        store.put(HOME, "k", {"text": "apple"})
        assert sweepers() == []
        sweeping = store.start_ttl_sweeper()
        assert store.start_ttl_sweeper() is sweeping
        assert len(sweepers()) == 1
        assert postgres_servers.wait_until(
            lambda: not stored_memories.read_memories(location(lasting_url)).memory_keys, 10
        )
        assert stored_memories.find_leftovers(location(lasting_url)) == []
        assert not sweeping.done()
        assert store.stop_ttl_sweeper(timeout=5) is True
        assert sweeping.done()
        assert sweepers() == []
        assert store.stop_ttl_sweeper() is True


async def test_the_sweeper_of_async_callers(lasting_url: str) -> None:
    async with threadkeep.open(lasting_url, ttl={"sweep_interval_minutes": SOON}) as keep:
        await keep.store.aput(HOME, "k", {}, ttl=SOON)
        sweeping = await keep.store.start_ttl_sweeper()
        gone = lambda: not stored_memories.read_memories(location(lasting_url)).memory_keys
        assert await asyncio.to_thread(postgres_servers.wait_until, gone, 10)
        assert await keep.store.stop_ttl_sweeper(timeout=5) is True
        assert sweeping.done()
        assert sweepers() == []


@pytest.mark.parametrize("how", ["close", "aclose", "cancel", "forget"])
def test_the_sweeper_ends(url: str, how: str) -> None:
    keep = threadkeep.open(url)
    sweeping = keep.store.start_ttl_sweeper(SOON)
    time.sleep(0.1)
    if how == "close":
        keep.close()
    elif how == "aclose":
        asyncio.run(keep.aclose())
    elif how == "cancel":
        sweeping.cancel()
    else:
        del keep
        gc.collect()
    assert postgres_servers.wait_until(lambda: sweepers() == [], postgres_servers.TIMEOUT)
    assert sweeping.done()


def test_a_sweeper_may_be_started_again(url: str) -> None:
    with threadkeep.open(url) as keep:
        first = keep.store.start_ttl_sweeper(SOON)
        keep.store.stop_ttl_sweeper()
        second = keep.store.start_ttl_sweeper(SOON)
        assert (first.done(), second.done()) == (True, False)
        assert len(sweepers()) == 1


def test_a_sweep_that_fails_is_logged_and_the_next_one_comes(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with threadkeep.open(url) as keep:
        keep.store.put(HOME, "k", {}, ttl=0)
        transport = keep._session.transport
        write, failed = transport.write, threading.Event()

        def fail_once(requests: Any) -> Any:
            if not failed.is_set():
                failed.set()
                raise Unavailable("no disk")
            return write(requests)

        monkeypatch.setattr(transport, "write", fail_once)
        with caplog.at_level(logging.CRITICAL, "threadkeep.drivers.background"):
            keep.store.start_ttl_sweeper(SOON)
            assert failed.wait(postgres_servers.TIMEOUT)
            time.sleep(0.1)
        assert keep.sweep().memories == 0, "the second sweep had it"


def test_no_sweeper_starts_on_a_closed_keep(url: str) -> None:
    keep = threadkeep.open(url)
    keep.close()
    with pytest.raises(Closed):
        keep.store.start_ttl_sweeper(SOON)
    assert sweepers() == []


@pytest.mark.parametrize(("wrong", "error"), [(-1, ValueError), ("5", TypeError), (float("nan"), ValueError)])
def test_a_wrong_interval_is_an_error_at_once(wrong: Any, error: type[Exception]) -> None:
    with threadkeep.open("memory://") as keep, pytest.raises(error, match="sweep_interval_minutes"):
        keep.store.start_ttl_sweeper(wrong)


def test_reading_restarts_the_ttl_unless_the_store_is_set_otherwise(url: str, clock: list[int]) -> None:
    for refresh in (True, False):
        with threadkeep.open(url, ttl={"refresh_on_read": refresh}) as keep:
            store = keep.store
            store.put(HOME, "got", {}, ttl=10)
            store.put(HOME, "found", {"x": 1}, ttl=10)
            clock[0] += 6 * MINUTE
            assert store.get(HOME, "got") is not None
            assert len(store.search(HOME, filter={"x": 1})) == 1
            clock[0] += 6 * MINUTE
            assert len(store.search(HOME, refresh_ttl=False)) == (2 if refresh else 0)


# --- read only


@pytest.fixture
def written(lasting_url: str, clock: list[int]) -> str:
    with threadkeep.open(lasting_url, index=INDEX) as keep:
        keep.store.put(HOME, "k", {"text": "apple"}, ttl=10)
        keep.store.put(HOME, "over", {"text": "apple"}, ttl=1)
    clock[0] += 5 * MINUTE
    return lasting_url


async def test_a_read_only_store_reads_everything_and_changes_nothing(
    written: str, call: Caller, clock: list[int]
) -> None:
    before = stored_memories.read_memories(location(written))
    async with threadkeep.open(written, read_only=True, index=INDEX) as keep:
        store = keep.store
        assert (await call(store, "get", HOME, "k")).value == {"text": "apple"}
        assert keys(await call(store, "search", HOME)) == ["k"]
        assert keys(await call(store, "search", HOME, query="apple")) == ["k"]
        assert await call(store, "list_namespaces") == [HOME]
        got = await call(store, "batch", [GetOp(HOME, "k"), SearchOp(HOME, query="apple"), ListNamespacesOp()])
        assert got[0] is not None
        for ops in ([PutOp(HOME, "new", {})], [PutOp(HOME, "k", None)], [GetOp(HOME, "k"), PutOp(HOME, "k", {})]):
            with pytest.raises(ReadOnly):
                await call(store, "batch", ops)
        with pytest.raises(ReadOnly):
            await call(keep, "sweep")
        clock[0] += 6 * MINUTE
        assert await call(store, "get", HOME, "k") is None, "reading did not let it live"
    assert stored_memories.read_memories(location(written)) == before


def test_a_read_only_store_starts_no_sweeper(written: str) -> None:
    with threadkeep.open(written, read_only=True) as keep:
        with pytest.raises(ReadOnly):
            keep.store.start_ttl_sweeper(SOON)
        assert sweepers() == []


# --- tenants


def test_tenants_do_not_see_each_other(lasting_url: str, clock: list[int]) -> None:
    texts = {"one": "apple", "two": "rain", "": "sea"}
    keeps = {tenant: threadkeep.open(lasting_url, tenant=tenant, index=INDEX) for tenant in texts}
    for tenant, text in texts.items():
        keeps[tenant].store.put(HOME, "k", {"text": text})
        keeps[tenant].store.put((f"only {tenant}",), "k", {"text": text}, ttl=1)
    for tenant, text in texts.items():
        store = keeps[tenant].store
        assert store.get(HOME, "k").value == {"text": text}
        assert {item.value["text"] for item in store.search((), limit=100)} == {text}
        assert store.list_namespaces() == [HOME, (f"only {tenant}",)]
        for query in texts.values():
            assert {item.value["text"] for item in store.search((), query=query, limit=100)} == {text}
    keeps["one"].store.delete(HOME, "k")
    assert keeps["two"].store.get(HOME, "k") is not None
    clock[0] += 2 * MINUTE
    assert [keeps[tenant].sweep().memories for tenant in texts] == [1] * len(texts), "each sweeps its own"
    for tenant in texts:
        assert stored_memories.find_leftovers(location(lasting_url), tenant) == []
        keeps[tenant].close()


# --- databases of the schema version before memories


@pytest.fixture
def old_url(tables_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database made with the first block of the schema only, and used."""
    with monkeypatch.context() as patch:
        use_version(patch, 1)
        with threadkeep.open(tables_url) as keep:
            keep.setup()
            with todays_columns(tables_url, 1):
                Chain(keep.checkpointer).put({"log": ["before"]})
    assert version(tables_url) == 1
    return tables_url


def version(url: str) -> int:
    if url.startswith("postgres"):
        return int(execute(f"SELECT max(version) FROM {schema_of(url)}.tk_schema")[0][0])
    connection = apsw.Connection(str(location(url)))
    (found,) = connection.execute("SELECT version FROM tk_schema").fetchall()
    connection.close()
    return int(str(found[0]))


@pytest.mark.parametrize("first", ["the store", "the checkpointer", "setup"])
def test_an_older_database_gets_memories_and_keeps_its_threads(old_url: str, first: str) -> None:
    with threadkeep.open(old_url, index=INDEX) as keep:
        if first == "the store":
            assert keep.store.search(HOME, query="apple") == []
        elif first == "the checkpointer":
            assert values_of(keep.checkpointer) == {"log": ["before"]}
        else:
            keep.setup()
        keep.store.put(HOME, "k", {"text": "apple"})
        assert keys(keep.store.search(HOME, query="apple")) == ["k"]
        assert values_of(keep.checkpointer) == {"log": ["before"]}
    assert version(old_url) == SCHEMA_VERSION
    with threadkeep.open(old_url, read_only=True, index=INDEX) as keep:
        assert keys(keep.store.search(HOME, query="apple")) == ["k"]


def test_words_of_an_older_database_are_ranked_by_their_counts(
    tables_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"often": "tea and tea, tea", "both": "green tea", "other": "water"}
    with monkeypatch.context() as patch, threadkeep.open(tables_url) as keep:
        use_version(patch, 4)
        keep.setup()
    for n, (key, text) in enumerate(texts.items()):
        _put_as_version_4(tables_url, key, text, n)
    with threadkeep.open(tables_url) as keep:
        found = [(item.key, item.score) for item in keep.store.search(HOME, query="green tea")]
        assert found == [("both", 2 + 2 / 3), ("often", 1.75), ("other", None)]
        assert keep.verify().ok
        keep.store.put(HOME, "other", {"text": "green tea"})
        keep.store.delete(HOME, "both")
        assert keys(keep.store.search(HOME, query="green tea")) == ["other", "often"]
        assert keep.verify().ok
    assert version(tables_url) == SCHEMA_VERSION


def test_memories_of_version_4_are_found_after_the_migration(tables_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, threadkeep.open(tables_url) as keep:
        use_version(patch, 4)
        keep.setup()
    _put_as_version_4(tables_url, "a", "green tea", 0)
    _put_as_version_4(tables_url, "none", "water", 1)
    before = _columns_of_index(tables_url)
    with threadkeep.open(tables_url) as keep:
        keep.store.put(HOME, "b", {"text": "tea, tea"})
        assert keys(keep.store.search(HOME, query="tea")) == ["b", "a", "none"]
        assert keys(keep.store.search(HOME[:1], filter={"text": "water"})) == ["none"]
        assert keep.store.list_namespaces() == [HOME]
        assert keep.verify().ok
    assert version(tables_url) == SCHEMA_VERSION
    smaller = ["tenant", "space"]
    assert _columns_of_index(tables_url) == (smaller if tables_url.startswith("postgres") else before)


def _columns_of_index(url: str) -> list[str]:
    """Return the columns of the index of memories by namespace."""
    if url.startswith("postgres"):
        name = f"{schema_of(url)}.tk_memories_space"
        sql = f"SELECT attname FROM pg_attribute WHERE attrelid = '{name}'::regclass ORDER BY attnum"
        return [str(row[0]) for row in execute(sql)]
    connection = apsw.Connection(str(location(url)))
    found = connection.execute("SELECT name FROM pragma_index_info('tk_memories_space')").fetchall()
    connection.close()
    return [str(row[0]) for row in found]


def _put_as_version_4(url: str, key: str, text: str, updated: int) -> None:
    """Store a memory as the code for schema 4 did: each word at its position in the text."""
    values = memory_id_values("", MemoryKey(HOME, key)) | {
        "space": encode(HOME), "key": key.encode(), "updated": updated, "value": json_text.dump({"text": text})
    }  # fmt: skip
    names = list(values)
    if url.startswith("sqlite"):
        connection = apsw.Connection(str(location(url)))
        marks = ", ".join(f":{name}" for name in names)
        connection.execute(f"INSERT INTO tk_memories ({', '.join(names)}, created) VALUES ({marks}, 0)", values)
        connection.execute(
            "INSERT INTO tk_words (rowid, words) VALUES (last_insert_rowid(), ?)", (" ".join(words(text)),)
        )
        connection.close()
        return
    positions: dict[str, list[str]] = {}
    for n, word in enumerate(words(text), 1):
        positions.setdefault(word, []).append(str(n))
    lexemes = " ".join(f"{word}:{','.join(each)}" for word, each in positions.items())
    marks = ", ".join(f"%({name})s" for name in names)
    with psycopg.connect(url.partition("?")[0]) as connected:
        connected.execute(
            f"INSERT INTO {schema_of(url)}.tk_memories ({', '.join(names)}, created, words)"
            f" VALUES ({marks}, 0, '{lexemes}')".encode(),
            values,
        )


UPGRADE = """
import threadkeep
from memory_batches import HOME, INDEX, keys
keep = threadkeep.open(sys.argv[1], index=INDEX)
wait_for_others()
keep.store.put(HOME, sys.argv[2], {"text": "apple"})
assert sys.argv[2] in keys(keep.store.search(HOME, query="apple", limit=100))
keep.close()
"""


def test_an_older_database_is_upgraded_by_many_processes_at_once(old_url: str) -> None:
    names = ["a", "b", "c", "d"]
    run_concurrently(UPGRADE, [(old_url, name) for name in names])
    with threadkeep.open(old_url, index=INDEX) as keep:
        assert sorted(keys(keep.store.search(HOME))) == names
        assert values_of(keep.checkpointer) == {"log": ["before"]}
    assert version(old_url) == SCHEMA_VERSION


def test_an_older_database_that_may_only_be_read_is_refused_and_left_alone(old_url: str) -> None:
    with threadkeep.open(old_url, read_only=True) as keep, pytest.raises(SchemaTooOld, match="threadkeep migrate"):
        keep.store.get(HOME, "k")
    assert version(old_url) == 1


def test_a_database_that_was_upgraded_is_refused_by_the_code_before(
    old_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with threadkeep.open(old_url) as keep:
        keep.setup()
    use_version(monkeypatch, 1)
    with threadkeep.open(old_url) as keep, pytest.raises(SchemaTooNew):
        values_of(keep.checkpointer)
