"""The public conformance suites, run as users run them: on threadkeep's savers, and on backends that deviate.

What `threadkeep.conformance` finds in other backends is listed here test by test: a listed deviation that no longer
fails, or a new one, is a failure. They run in a separate pytest without asyncio plugins.
threadkeep's store is tested in test_store_conformance.py and its CubeLoop checkpointer in test_cube_conformance.py,
because the suites share names and a file can import only one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import psycopg
import pytest
from cubeloop.checkpointer.memory import MemoryCheckpointer
from cubeloop.checkpointer.postgres import cubeloop_metadata
from cubeloop.checkpointer.postgres.alembic_helpers import write_schema_version_op
from cubeloop.checkpointer.sqlite import SQLiteCheckpointer
from langgraph.store.base import BaseStore, GetOp
from langgraph.store.memory import InMemoryStore
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

import postgres_servers
import threadkeep
from threadkeep.conformance import cube_suite, saver_suite, store_suite
from threadkeep.conformance.cube.calls import Checkpointer

# --- threadkeep's savers: the suite uses the fixture `saver` of conftest.py, which has every backend
from threadkeep.conformance.saver_suite import *  # noqa: F403
from threadkeep.conformance.sync_async import open_caller, open_on_loop

SOURCE = Path(threadkeep.__file__).resolve().parents[1]
TIMEOUT = 240


def run_suite(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a test file in a separate pytest, in a project without asyncio plugins that allows no unknown marks."""
    (folder / "test_it.py").write_text(text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "--tb=short", "--strict-markers", "-p", "no:cacheprovider"]
    command += ["test_it.py", *options]
    env = os.environ | {"PYTHONPATH": str(SOURCE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=env, timeout=TIMEOUT, check=False, capture_output=True, text=True)


def assert_as_listed(run: subprocess.CompletedProcess[str]) -> None:
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr


STORE = """
import pytest
from threadkeep.conformance.store_suite import *
{imported}

@pytest.fixture
def store():
    return {maker}()

@pytest.fixture
def ttl_store():
    return {maker}(ttl={{"refresh_on_read": True, "omit_expired": True}})

@pytest.fixture
def embedding_store(index):
    return {maker}(index=index)

@pytest.fixture
def capabilities():
    return Capabilities({lacking})

@pytest.fixture
def deviations():
    return {deviations}
"""
SAVER = """
import pytest
from threadkeep.conformance.saver_suite import *
from langgraph.checkpoint.memory import InMemorySaver

@pytest.fixture
def saver():
    return InMemorySaver()

@pytest.fixture
def capabilities():
    return Capabilities({lacking})

@pytest.fixture
def deviations():
    return {deviations}
"""
CUBE = """
import pytest
from threadkeep.conformance.cube_suite import *
{imported}

@pytest.fixture
def cube({fixtures}):
    return {maker}

@pytest.fixture
def capabilities():
    return Capabilities({lacking})

@pytest.fixture
def deviations():
    return {deviations}
"""

# --- InMemoryStore

OF_IN_MEMORY_STORE = {
    # values are stored without a copy or a check
    "test_changing_a_value_after_its_put_changes_nothing": "a shallow copy is stored",
    "test_changing_a_value_from_get_changes_nothing": "the stored item itself is returned",
    "test_changing_a_value_from_search_changes_nothing": "the stored value itself is returned",
    "test_a_value_that_is_not_json_is_refused": "any object is stored",
    "test_an_error_names_the_path_of_the_refused_value": "any object is stored",
    "test_a_batch_with_a_wrong_op_changes_nothing[value]": "any object is stored",
    "test_a_batch_with_a_wrong_op_changes_nothing[namespace]": "the namespaces of ops are not checked",
    "test_an_op_that_reads_what_base_store_refuses_is_an_invalid_namespace_error": "the namespaces of ops are not checked",
    "test_a_text_in_place_of_a_namespace_is_an_error": "it becomes a namespace of letters",
    "test_a_text_as_the_path_of_a_match_condition_is_one_label": "it becomes a namespace of letters",
    "test_a_negative_number_is_a_value_error": "it counts from the end",
    # times and namespaces
    "test_an_overwrite_keeps_created_at": "an overwrite is a new item",
    "test_a_namespace_is_listed_only_while_it_has_items": "empty namespaces are listed",
    "test_a_read_makes_no_namespace": "a read makes a namespace",
    # filters
    "test_a_bool_is_no_number": "True equals 1",
    "test_integers_beyond_float_precision_are_distinct": "ranges compare as floats",
    "test_a_text_of_digits_is_no_number": "ranges convert texts to floats",
    "test_texts_compare_as_texts": "ranges convert texts to floats",
    "test_a_range_finds_no_other_type_and_does_not_fail_on_it": "it fails on values that are not numbers",
    # vectors
    "test_an_item_that_is_not_indexed_is_not_found_by_a_query": "a page is filled up with items that have no vectors",
    "test_an_item_without_the_fields_is_not_found_by_a_query": "a page is filled up with items that have no vectors",
    "test_a_put_may_name_the_whole_value": "$ means nothing in index=",
    "test_items_of_a_batch_may_have_the_same_text": "the same text twice in a batch is a ValueError",
    "test_fields_of_an_item_may_have_the_same_text": "the same text twice in a batch is a ValueError",
    "test_an_overwrite_with_fewer_texts_leaves_none_of_the_old": "old vectors stay",
    "test_an_overwrite_that_is_not_indexed_is_not_found_any_more": "old vectors stay",
    "test_an_item_that_is_put_again_has_nothing_of_the_deleted": "items that have no vectors are returned",
}


def test_in_memory_store_deviates_where_the_list_says(tmp_path: Path) -> None:
    text = STORE.format(
        imported="from langgraph.store.memory import InMemoryStore",
        maker="InMemoryStore",
        lacking="ttl=False, text=False, ranks_by_words=False, newest_first=False, more_operators=False,"
        "dotted_paths=False",
        deviations=OF_IN_MEMORY_STORE,
    )
    assert_as_listed(run_suite(tmp_path, text))


# --- SqliteStore

OF_SQLITE_STORE = {
    # times are text in whole seconds without a time zone, and an overwrite is a new row
    "test_times_know_their_zone": "times have no zone",
    "test_an_overwrite_keeps_created_at": "an overwrite is a new item",
    "test_an_overwrite_moves_updated_at": "times are whole seconds",
    "test_an_item_that_was_deleted_and_put_again_is_new": "times are whole seconds",
    "test_what_was_updated_last_comes_first": "times are whole seconds",
    "test_items_with_equal_times_are_ordered_by_namespace_and_key": "items with equal times have no order",
    # expired items stay until a sweep
    "test_an_expired_item_is_not_returned_by_get": "it is returned until a sweep",
    "test_an_expired_item_is_not_found_by_search": "it is found until a sweep",
    "test_a_namespace_of_expired_items_is_not_listed": "it is listed until a sweep",
    "test_an_expired_item_that_is_put_again_is_new": "times are whole seconds",
    "test_an_item_exists_until_it_expires": "it is found until a sweep",
    "test_an_item_without_ttl_does_not_expire": "others are found until a sweep",
    "test_a_read_restarts_the_ttl": "it is returned until a sweep",
    "test_a_read_without_refresh_does_not_restart_the_ttl": "it is returned until a sweep",
    "test_an_overwrite_restarts_the_ttl": "it is returned until a sweep",
    # namespaces and pages
    "test_namespaces_are_in_the_order_of_their_segments": "they are ordered by their joined text",
    "test_a_text_in_place_of_a_namespace_is_an_error": "it becomes a namespace of letters",
    "test_a_text_as_the_path_of_a_match_condition_is_one_label": "it becomes a namespace of letters",
    "test_a_negative_number_is_a_value_error": "no limit, or no offset",
    # filters
    "test_a_bool_is_no_number": "JSON's true is SQLite's 1",
    "test_integers_beyond_float_precision_are_distinct": "numbers compare as floats",
    "test_a_text_of_digits_is_no_number": "ranges convert texts to numbers",
    "test_texts_compare_as_texts": "a number is less than any text",
    "test_a_range_finds_no_other_type_and_does_not_fail_on_it": "ranges convert everything to numbers",
    "test_what_is_missing_is_not_equal_to_a_value": "$ne does not find missing values",
    "test_a_dict_finds_what_has_at_least_its_entries": "a nested dict is a ValueError",
    "test_an_operator_works_within_a_dict": "a nested dict is a ValueError",
    "test_a_key_is_literal": "a key with characters other than letters, digits and _.- is a ValueError",
    # values
    "test_a_value_comes_back_exactly[ints of 64 bits and more]": "a TypeError",
    "test_a_value_comes_back_exactly[ints of a hundred digits]": "a TypeError",
    "test_a_value_that_json_dislikes_comes_back_exactly_or_is_refused[infinity]": "it comes back as None",
    "test_a_value_that_json_dislikes_comes_back_exactly_or_is_refused[NaN]": "it comes back as None",
    "test_a_value_that_is_not_json_is_refused[datetime]": "it comes back as a text",
    "test_an_error_names_the_path_of_the_refused_value": "it only names the type",
    "test_a_batch_with_a_wrong_op_changes_nothing[op]": "objects that are not ops are ignored",
}
SQLITE_LACKS = (  # few Pythons load sqlite-vec
    "text=False, ranks_by_words=False, vectors=False, more_operators=False, dotted_paths=False"
)


@pytest.mark.long
def test_sqlite_store_deviates_where_the_list_says(tmp_path: Path) -> None:
    text = STORE.format(
        imported="from functools import partial\nfrom langgraph.store.sqlite import SqliteStore",
        maker="partial(SqliteStore.from_conn_string, ':memory:')",
        lacking=f"async_verbs=False, {SQLITE_LACKS}",
        deviations=OF_SQLITE_STORE,
    )
    assert_as_listed(run_suite(tmp_path, text))


@pytest.mark.long
def test_a_store_that_is_bound_to_its_loop_is_tested_sync_and_async(tmp_path: Path) -> None:
    text = STORE.format(
        imported="from functools import partial\nfrom langgraph.store.sqlite.aio import AsyncSqliteStore",
        maker="partial(AsyncSqliteStore.from_conn_string, ':memory:')",
        lacking=f"ttl=False, {SQLITE_LACKS}",
        deviations={"test_times_know_their_zone": "times have no zone"},
    )
    run = run_suite(tmp_path, text, "-k", "at_once or comes_back_as_it_was_put or know_their_zone or graph_remembers")
    assert_as_listed(run)
    assert "14 passed" in run.stdout
    assert "2 xfailed" in run.stdout


# --- InMemorySaver

OF_IN_MEMORY_SAVER = {
    "test_a_filter_tells_json_types_apart": "True equals 1",
    # values are stored by channel and version, not by checkpoint
    "test_a_channel_that_is_left_out_has_the_value_of_its_own_branch": "it has the value that was put last",
    "test_a_channel_that_is_left_out_is_taken_from_the_parent_only": "any checkpoint's value is found",
    "test_a_delta_channel_is_not_taken_from_the_parent": "any channel is found by its version",
}


def test_in_memory_saver_deviates_where_the_list_says(tmp_path: Path) -> None:
    lacking = "list_in_order=False, copy_thread=False, prune=False, delete_for_runs=False"
    assert_as_listed(run_suite(tmp_path, SAVER.format(lacking=lacking, deviations=OF_IN_MEMORY_SAVER)))


@pytest.mark.long
def test_in_memory_saver_lacks_what_it_is_declared_to_lack(tmp_path: Path) -> None:
    run = run_suite(tmp_path, SAVER.format(lacking="", deviations={}), "-k", "copy or prune or for_runs or all_threads")
    assert run.returncode == 1
    assert "passed" not in run.stdout.splitlines()[-1]


# --- MemoryCheckpointer

OF_MEMORY_CHECKPOINTER = {
    # messages and values are stored and returned without a copy
    "test_changing_a_message_after_its_append_changes_nothing": "the message itself is stored",
    "test_changing_a_loaded_message_changes_nothing": "the stored message itself is returned",
    "test_changing_extra_after_it_was_saved_changes_nothing": "the value itself is stored",
    "test_changing_loaded_extra_changes_nothing": "the stored extra itself is returned",
    "test_changing_a_request_after_it_was_saved_changes_nothing": "the request itself is stored",
    "test_changing_a_loaded_request_changes_nothing": "the stored request itself is returned",
    "test_a_value_in_extra_that_is_not_json_is_refused_and_changes_nothing": "any object is stored",
    "test_models_in_details_come_back_as_dicts": "models are stored as they are",
    "test_a_model_comes_back_as_a_dict": "models are stored as they are",
    "test_models_within_an_answer_come_back_as_dicts": "models are stored as they are",
    "test_an_append_of_nothing_makes_no_thread": "it creates one",
}
MEMORY = "from cubeloop.checkpointer.memory import MemoryCheckpointer"


def cube_text(
    maker: str, deviations: dict[str, str], *, imported: str = MEMORY, fixtures: str = "", lacking: str
) -> str:
    return CUBE.format(imported=imported, fixtures=fixtures, maker=maker, lacking=lacking, deviations=deviations)


@pytest.mark.long
def test_memory_checkpointer_deviates_where_the_list_says(tmp_path: Path) -> None:
    lacking = "dedup=False, other_handles=False"
    assert_as_listed(run_suite(tmp_path, cube_text("MemoryCheckpointer()", OF_MEMORY_CHECKPOINTER, lacking=lacking)))


@pytest.mark.long
def test_memory_checkpointer_lacks_what_it_is_declared_to_lack(tmp_path: Path) -> None:
    text = cube_text("MemoryCheckpointer()", {}, lacking="other_handles=False")
    run = run_suite(tmp_path, text, "-k", "stored_once or keeps_the_first_version")
    assert run.returncode == 1
    assert "4 failed" in run.stdout.splitlines()[-1]
    assert "passed" not in run.stdout.splitlines()[-1]


# --- SQLiteCheckpointer

OF_SQLITE_CHECKPOINTER = {
    "test_a_cancelled_call_leaves_the_handle_usable[append]": "the transaction stays open forever",
    "test_a_cancelled_call_leaves_the_handle_usable[save_extra]": "the transaction stays open forever",
    "test_a_cancelled_append_is_stored_as_a_whole_or_not_at_all": "the transaction stays open forever",
    "test_a_snapshot_of_an_unknown_thread_is_an_error": "it is a RunNotCompletedError",
}
SQLITE = "from cubeloop.checkpointer.sqlite import SQLiteCheckpointer"


def test_sqlite_checkpointer_deviates_where_the_list_says(tmp_path: Path) -> None:
    text = cube_text(
        "SQLiteCheckpointer(':memory:')",
        OF_SQLITE_CHECKPOINTER,
        imported=SQLITE,
        lacking="dedup=False, other_handles=False",
    )
    assert_as_listed(run_suite(tmp_path, text))


@pytest.mark.long
def test_two_handles_of_sqlite_checkpointer_are_tested(tmp_path: Path) -> None:
    maker = "SQLiteCheckpointer(str(tmp_path / 'threads.db'))"
    text = cube_text(maker, {}, imported=SQLITE, fixtures="tmp_path", lacking="dedup=False")
    text += f"\n@pytest.fixture\ndef other_cube(tmp_path):\n    return {maker}\n"
    run = run_suite(tmp_path, text, "-k", "handle and not usable")
    assert_as_listed(run)
    assert "8 passed" in run.stdout


# --- PostgresCheckpointer

OF_POSTGRES_CHECKPOINTER = {
    # extra and metadata are jsonb, payloads are msgpack
    "test_a_value_in_extra_comes_back_exactly[numbers]": "1e300 becomes an integer",
    "test_a_value_in_extra_comes_back_exactly[minus zero]": "-0.0 becomes 0.0",
    "test_a_value_in_extra_that_json_dislikes_comes_back_exactly_or_is_refused": "a driver error",
    "test_a_value_in_a_message_comes_back_exactly[numbers]": "1e300 becomes an integer",
    "test_a_value_in_a_message_comes_back_exactly[minus zero]": "-0.0 becomes 0.0",
    "test_a_value_in_a_message_comes_back_exactly[ints of 64 bits and more]": "an OverflowError",
    "test_a_value_in_a_message_comes_back_exactly[ints of a hundred digits]": "an OverflowError",
    **{
        f"test_a_value_in_a_message_that_json_dislikes_comes_back_exactly_or_is_refused[{case}]": "a driver error"
        for case in ("NUL", "NUL in a name", "infinity", "NaN")
    },
    "test_a_thread_id_that_databases_dislike_is_kept_or_refused[NUL]": "a driver error",
    "test_a_thread_id_that_databases_dislike_is_kept_or_refused[lone surrogate]": "a driver error",
}
FLAKY = "test_a_load_is_a_consistent_snapshot"
"""`load` reads messages and extra one after the other, so this test fails, but not every time."""


def cubeloop_database() -> str:
    """Create a database with CubeLoop's tables. One partition is enough for tests."""
    server, name = postgres_servers.shared(), f"cube_{uuid.uuid4().hex}"
    server.execute(f"CREATE DATABASE {name}")
    make_store = [
        str(CreateTable(table).compile(dialect=postgresql.dialect())) for table in cubeloop_metadata.sorted_tables
    ]
    make_store += [
        f"CREATE TABLE {table}_all PARTITION OF {table} FOR VALUES WITH (modulus 1, remainder 0)"
        for table in ("cubepi_messages", "cubepi_runs")
    ]
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        for statement in [*make_store, write_schema_version_op()]:
            connection.execute(statement.encode())
    return server.url(name)


@pytest.mark.long
def test_postgres_checkpointer_deviates_where_the_list_says(tmp_path: Path) -> None:
    url = cubeloop_database()
    text = cube_text(
        f"PostgresCheckpointer({url!r}, max_pool_size=4)",
        OF_POSTGRES_CHECKPOINTER,
        imported="import psycopg\nfrom cubeloop.checkpointer.postgres import PostgresCheckpointer",
        fixtures="emptied",
        lacking="dedup=False",
    )
    text += f"""
@pytest.fixture
def other_cube():
    return PostgresCheckpointer({url!r}, max_pool_size=4)

@pytest.fixture
def emptied():
    with psycopg.connect({url!r}) as connection:
        connection.execute("DELETE FROM cubepi_threads")
"""
    assert_as_listed(run_suite(tmp_path, text, "--deselect", f"test_it.py::{FLAKY}"))


# --- a checkpointer of CubeLoop's first release

THREE_VERBS = """
import json
from cubeloop.checkpointer.base import CheckpointData
from cubeloop.providers.base import AssistantMessage, ToolResultMessage, UserMessage

CLASSES = {"user": UserMessage, "assistant": AssistantMessage, "tool_result": ToolResultMessage}

class Three:
    def __init__(self):
        self.threads = {}

    async def load(self, thread_id):
        if thread_id not in self.threads:
            return None
        messages, extra = self.threads[thread_id]
        plain = [json.loads(each) for each in messages]
        return CheckpointData([CLASSES[each["role"]].model_validate(each) for each in plain], json.loads(extra))

    async def append(self, thread_id, messages):
        given = [json.dumps(each.model_dump()) for each in messages]
        if given:
            self.threads.setdefault(thread_id, ([], "{}"))[0].extend(given)

    async def save_extra(self, thread_id, extra):
        messages, before = self.threads.get(thread_id, ([], "{}"))
        self.threads[thread_id] = (messages, json.dumps(json.loads(before) | extra))
"""


def test_a_checkpointer_that_has_three_verbs_is_tested_on_them(tmp_path: Path) -> None:
    lacking = "runs=False, forks=False, pending=False, answers=False, dedup=False, other_handles=False"
    run = run_suite(tmp_path, cube_text("Three", {}, imported=THREE_VERBS, lacking=lacking))
    assert_as_listed(run)
    for name in ("runs", "forks", "pending", "answers", "dedup", "other_handles"):
        assert f"the capability {name!r} is declared absent" in run.stdout


# --- declarations


def test_a_test_of_an_absent_capability_is_skipped_and_says_so(tmp_path: Path) -> None:
    run = run_suite(tmp_path, SAVER.format(lacking="prune=False, async_verbs=False", deviations={}), "-k", "prune_may")
    assert "the capability 'prune' is declared absent" in run.stdout
    assert "the capability 'async_verbs' is declared absent" in run.stdout
    assert "2 skipped" in run.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_an_unknown_thread_or_checkpoint_gives_none", "2 failed"),
        ("test_an_unknown_thread_or_checkpoint_gives_none[sync]", "1 failed, 1 passed"),
        ("test_no_such_test", "deviations names tests that do not exist: test_no_such_test"),
    ],
)
def test_a_deviation_that_passes_is_a_failure(tmp_path: Path, name: str, message: str) -> None:
    run = run_suite(
        tmp_path, SAVER.format(lacking="", deviations={name: "so they say"}), "-k", "unknown_thread_or_checkpoint"
    )
    assert run.returncode == 1
    assert message in run.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_a_message_comes_back_with_its_class_and_all_fields", "5 failed"),
        ("test_a_message_comes_back_with_its_class_and_all_fields[tool result]", "1 failed, 4 passed"),
    ],
)
def test_a_deviation_of_the_cube_suite_that_passes_is_a_failure(tmp_path: Path, name: str, message: str) -> None:
    text = cube_text("MemoryCheckpointer()", {name: "so they say"}, lacking="")
    run = run_suite(tmp_path, text, "-k", "with_its_class_and_all_fields")
    assert run.returncode == 1
    assert message in run.stdout


def test_a_failed_assert_is_explained(tmp_path: Path) -> None:
    text = SAVER.format(lacking="", deviations={})
    run = run_suite(tmp_path, text, "-k", "json_types_apart and not async", "-vv")
    assert "{'1': ['2', '1']} != {'1': ['1']}" in run.stdout


def test_a_missing_embedding_store_is_a_failure_that_says_what_to_do(tmp_path: Path) -> None:
    text = "from threadkeep.conformance.store_suite import *\nfrom langgraph.store.memory import InMemoryStore\n"
    text += "import pytest\n@pytest.fixture\ndef store():\n    return InMemoryStore()\n"
    run = run_suite(tmp_path, text, "-k", "nearest_comes_first")
    assert "define the fixture `embedding_store(index)`, or declare Capabilities(vectors=False)" in run.stdout


def test_a_missing_other_cube_is_a_failure_that_says_what_to_do(tmp_path: Path) -> None:
    run = run_suite(tmp_path, cube_text("MemoryCheckpointer()", {}, lacking=""), "-k", "another_handle_sees_a_fork")
    assert "define the fixture `other_cube`, or declare Capabilities(other_handles=False)" in run.stdout


# --- what a fixture may return


@contextlib.contextmanager
def managed() -> Iterator[BaseStore]:
    yield InMemoryStore()


@contextlib.asynccontextmanager
async def managed_async() -> AsyncIterator[BaseStore]:
    yield InMemoryStore()


async def make_store() -> BaseStore:
    return InMemoryStore()


FIXTURE_RESULTS: dict[str, Callable[[], Any]] = {
    "a store": InMemoryStore,
    "a class": lambda: InMemoryStore,
    "a function": lambda: lambda: InMemoryStore(),
    "an async function": lambda: make_store,
    "a context manager": managed,
    "an async context manager": managed_async,
    "a function of a context manager": lambda: managed,
    "a function of an async one": lambda: managed_async,
}


@pytest.mark.parametrize("source", FIXTURE_RESULTS.values(), ids=FIXTURE_RESULTS.keys())
@pytest.mark.parametrize("sync_or_async", ["sync", "async"])
def test_a_fixture_may_return(source: Callable[[], Any], sync_or_async: str) -> None:
    with open_caller(source(), BaseStore, sync_or_async) as store:
        store.put(("a",), "k", {"n": 1})
        assert store.get(("a",), "k").value == {"n": 1}
        assert store.call_concurrently("batch", [([GetOp(("a",), "k")],)] * 3)[2][0].key == "k"
        assert isinstance(store.target, InMemoryStore)


def test_anything_else_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="return a BaseStore"), open_caller("a text", BaseStore, "sync"):
        pass


def test_an_error_on_opening_or_closing_reaches_the_test() -> None:
    @contextlib.asynccontextmanager
    async def broken(*, late: bool) -> AsyncIterator[BaseStore]:
        if not late:
            raise OSError("no disk")
        yield InMemoryStore()
        raise OSError("no disk any more")

    with pytest.raises(OSError, match="no disk$"), open_caller(broken(late=False), BaseStore, "sync"):
        pass
    with pytest.raises(OSError, match="any more"), open_caller(broken(late=True), BaseStore, "async"):
        pass


@contextlib.asynccontextmanager
async def managed_checkpointer() -> AsyncIterator[SQLiteCheckpointer]:
    async with SQLiteCheckpointer(":memory:") as checkpointer:
        yield checkpointer


CUBES: dict[str, Callable[[], Any]] = {
    "a checkpointer": MemoryCheckpointer,
    "a class": lambda: MemoryCheckpointer,
    "one that is its own context manager": lambda: SQLiteCheckpointer(":memory:"),
    "a function that returns it": lambda: lambda: SQLiteCheckpointer(":memory:"),
    "a context manager of it": managed_checkpointer,
}


@pytest.mark.parametrize("source", CUBES.values(), ids=CUBES.keys())
def test_a_fixture_of_the_cube_suite_may_return(source: Callable[[], Any]) -> None:
    with open_on_loop(source(), Checkpointer, enter=True) as loop:
        loop.wait(loop.target.save_extra("t", {"n": 1}))
        assert loop.wait(loop.target.load("t")).extra == {"n": 1}


def test_a_checkpointer_is_entered_once_and_left() -> None:
    entered: list[str] = []

    class Counting(MemoryCheckpointer):
        async def __aenter__(self) -> Self:
            entered.append("in")
            return self

        async def __aexit__(self, *_: object) -> None:
            entered.append("out")

    with open_on_loop(Counting(), Checkpointer, enter=True):
        assert entered == ["in"]
    assert entered == ["in", "out"]


# --- the package


def test_the_suites_export_their_tests_and_fixtures_and_no_more() -> None:
    for suite in (store_suite, saver_suite):
        exported = {name for name in suite.__all__ if not name.startswith("test_")}
        assert {"Capabilities", "capabilities", "deviations", "sync_or_async"} <= exported
        assert_complete(suite)
    exported = {name for name in cube_suite.__all__ if not name.startswith("test_")}
    assert exported == {
        "Capabilities",
        "capabilities",
        "declarations",
        "deviations",
        "my_cube",
        "my_other_cube",
        "other_cube",
    }
    assert_complete(cube_suite)


def assert_complete(suite: ModuleType) -> None:
    exported = {name for name in suite.__all__ if not name.startswith("test_")}
    assert len(suite.TESTS) > 50
    assert set(suite.__all__) == exported | set(suite.TESTS)
    assert "pytest" not in exported


def run_without(module: str, code: str) -> subprocess.CompletedProcess[str]:
    hide = f"""
import importlib.util, sys
sys.modules[{module!r}] = None
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == {module!r} else found(name, package)
"""
    command = [sys.executable, "-c", hide + code]
    env = os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.run(command, env=env, timeout=TIMEOUT, check=False, capture_output=True, text=True)


def test_threadkeep_does_not_need_pytest() -> None:
    run = run_without("pytest", "import threadkeep; threadkeep.open('memory://').checkpointer")
    assert run.returncode == 0, run.stderr


def test_the_suites_say_that_pytest_is_missing() -> None:
    run = run_without("pytest", "import threadkeep.conformance.store_suite")
    assert "ImportError: threadkeep.conformance needs pytest" in run.stderr


def test_the_other_suites_do_not_need_cubeloop() -> None:
    run = run_without("cubeloop", "import threadkeep.conformance.store_suite, threadkeep.conformance.saver_suite")
    assert run.returncode == 0, run.stderr


def test_the_cube_suite_says_that_cubeloop_is_missing() -> None:
    run = run_without("cubeloop", "import threadkeep.conformance.cube_suite")
    assert "ImportError: threadkeep.conformance.cube_suite needs CubeLoop" in run.stderr
