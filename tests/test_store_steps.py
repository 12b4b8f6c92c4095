"""The store in few steps: how many Python calls its verbs make, and changes that the transport makes in one call.

Calls are counted by `sys.setprofile`, so these numbers do not depend on the machine. Comprehensions are calls in
Python 3.11 only, so later versions make fewer.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from langgraph.store.base import GetOp, InvalidNamespaceError, PutOp

import stored_memories
import threadkeep
from memory_batches import HOME, INDEX, NEAR, check_vectors, keys, location
from test_postgres import execute, schema_of
from threadkeep.backends.sql.memories import MEMORY_COLUMNS, memory_columns
from threadkeep.backends.sqlite import memories as sqlite_memories
from threadkeep.engine.identity import to_bytes
from threadkeep.engine.memories.checksums import memory_checksum, sum_of_times
from threadkeep.engine.memories.json_text import dump, load, load_all
from threadkeep.engine.memories.namespaces import MemoryKey, encode, memory_number, partition_number
from threadkeep.engine.memories.requests import MemoryRow, NewMemory, WriteMemories
from threadkeep.engine.memories.words import words_check
from threadkeep.errors import Closed, ReadOnly, ThreadkeepError

NO_INDEX: Any = {"search": "off"}
VALUE = {"text": "hello world", "n": 3, "tags": ["a", "b"]}


def count_calls(work: Callable[[], object]) -> int:
    """Return the number of Python functions that are called in this thread."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.fixture
def store(tmp_path: Path) -> Iterator[threadkeep.KeepStore]:
    """A store on SQLite with forty memories, in which everything was called once."""
    with threadkeep.open(f"sqlite:///{tmp_path}/steps.db") as keep:
        store = keep.store
        for n in range(40):
            store.put(("u", "1"), f"k{n}", VALUE | {"n": n})
        store.get(("u", "1"), "k1")
        store.search(("u", "1"), filter={"n": {"$gt": 4}})
        store.delete(("u", "1"), "k0")
        yield store


def test_a_put_makes_few_calls(store: threadkeep.KeepStore) -> None:
    assert count_calls(lambda: store.put(("u", "1"), "new", VALUE)) <= 40
    assert count_calls(lambda: store.put(("u", "1"), "k2", VALUE)) <= 40


def test_a_delete_makes_few_calls(store: threadkeep.KeepStore) -> None:
    assert count_calls(lambda: store.delete(("u", "1"), "k3")) <= 24


def test_a_batch_makes_few_calls_for_each_put(store: threadkeep.KeepStore) -> None:
    few, many = ([PutOp(("u", "1"), f"b{n}", VALUE, index=False) for n in range(count)] for count in (50, 100))
    store.batch(few)
    store.batch(many)
    assert count_calls(lambda: store.batch(many)) - count_calls(lambda: store.batch(few)) <= 50 * 5


def test_a_get_makes_few_calls(store: threadkeep.KeepStore) -> None:
    assert count_calls(lambda: store.get(("u", "1"), "k4")) <= 30


def test_a_batch_of_gets_makes_one_call_for_each(store: threadkeep.KeepStore) -> None:
    """It is LangGraph's constructor."""
    few, many = ([GetOp(("u", "1"), f"k{n}") for n in range(1, count)] for count in (11, 31))
    assert [item.key for item in store.batch(many)] == [op.key for op in many]  # type: ignore[union-attr]
    assert count_calls(lambda: store.batch(many)) - count_calls(lambda: store.batch(few)) <= 20 * 1


def test_a_batch_of_gets_returns_what_single_gets_return(lasting_url: str) -> None:
    """In their order, each as often as it is asked for, None for what is missing, and it restarts a ttl."""
    with threadkeep.open(lasting_url, ttl={"default_ttl": 10}) as keep:
        for n in range(3):
            keep.store.put(HOME, f"k{n}", VALUE | {"n": n})
        ops = [GetOp(HOME, key, refresh_ttl=False) for key in ("k2", "none", "k0", "k2", "k1")]
        expected = [keep.store.get(op.namespace, op.key, refresh_ttl=False) for op in ops]
        assert keep.store.batch(ops) == expected
        assert keep.store.batch([GetOp(list(HOME), "k0", refresh_ttl=False)]) == [expected[2]]  # type: ignore[arg-type]
        assert keep.store.batch([]) == []
        with pytest.raises(InvalidNamespaceError):
            keep.store.batch([GetOp(HOME, "k0"), GetOp(("a.b",), "k0")])

    async def get_all() -> object:
        async with threadkeep.open(lasting_url) as keep:
            return await keep.store.abatch(ops)

    assert asyncio.run(get_all()) == expected


def test_a_search_makes_few_calls(store: threadkeep.KeepStore) -> None:
    """The filter has a shape that was used before, with another operand."""
    assert count_calls(lambda: store.search(("u", "1"), filter={"n": {"$gt": 5}})) <= 110


def test_rows_are_read_without_a_call_for_each(store: threadkeep.KeepStore) -> None:
    """Two calls for each memory remain: LangGraph's constructors."""
    few, many = (lambda: store.search(("u",), limit=10)), (lambda: store.search(("u",), limit=30))
    few()
    assert count_calls(many) - count_calls(few) <= 20 * 2


def test_async_calls_make_few_more(tmp_path: Path) -> None:
    """Those of the event loop and of the worker count too."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    async def count_all(work: Callable[[], Awaitable[object]], limit: int) -> int:
        """Return the fewest calls of some times: on a busy machine the worker may still not be idle."""
        counted = [await count_once(work)]
        while min(counted) > limit and len(counted) < 50:
            counted.append(await count_once(work))
        return min(counted)

    async def count_once(work: Callable[[], Awaitable[object]]) -> int:
        nonlocal calls
        await work()
        await asyncio.sleep(0.2)  # until the worker is idle; else another one is started
        calls = 0
        sys.setprofile(count)
        try:
            await work()
        finally:
            sys.setprofile(None)
        return calls

    async def put_and_get() -> tuple[int, int]:
        async with threadkeep.open(f"sqlite:///{tmp_path}/async.db") as keep:
            await keep.store.aput(HOME, "a", VALUE)
            put = await count_all(lambda: keep.store.aput(HOME, "a", VALUE), 28 + 60)
            return put, await count_all(lambda: keep.store.aget(HOME, "a"), 24 + 60)

    threading.setprofile(count)  # for the workers, which start later
    try:
        put, get = asyncio.run(put_and_get())
    finally:
        threading.setprofile(None)
    assert put <= 28 + 60
    assert get <= 24 + 60


def test_a_row_has_the_number_and_the_checksums_that_the_engine_expects() -> None:
    for namespace, key, ttl, expires, words in [
        (("a",), "b", None, None, ""),
        (("ü", "x\ud800"), "k\udfff\x00", 1.5, 99, "tea\ue001"),
        (("a", "b"), "", -0.0, 5, "a\ue002 b\ue001"),
    ]:
        row = MemoryRow(namespace, key, dump({"a": 1}), 7, 8, expires, ttl)
        values = dict(zip(MEMORY_COLUMNS, memory_columns("t", NewMemory(row, (b"1234",), words)), strict=True))
        number, space, name = memory_number("t", MemoryKey(namespace, key)), encode(namespace), to_bytes(key)
        assert values == {
            "memory": number, "part": partition_number("t", namespace[0]), "tenant": b"t", "space": space, "key": name,
            "created": 7, "updated": 8, "expires": expires, "ttl": ttl, "value": row.value, "vectors": 1,
            "checksum": memory_checksum(number, "t", space, name, ttl, 1, row.value.encode()),
            "times": sum_of_times(7, 8, expires), "words_check": words_check(words),
        }  # fmt: skip


def test_many_texts_are_loaded_as_each_is() -> None:
    texts = ['{"a": 1}', '{"a":[1,{"b":null}]} ', dump({"a": "\x00\x01\ud800"}), "{}"]
    assert load_all(texts) == [load(text) for text in texts]
    for text in ("", "[]", "nul", '{"a":1}x', " {}"):
        with pytest.raises(ValueError, match=r".") as expected:
            load(text)
        with pytest.raises(ValueError, match=r".") as found:
            load_all(["{}", text])
        assert str(found.value) == str(expected.value)


# --- changes in one call


@pytest.mark.parametrize("count", [*range(1, 30), 99, 100, 101, 499, 500, 501])
def test_a_batch_of_any_size_is_stored(tmp_path: Path, count: int) -> None:
    for name, index in (("words", None), ("off", NO_INDEX)):
        with threadkeep.open(f"sqlite:///{tmp_path}/{name}.db", index=index) as keep:
            keep.store.put(HOME, "0", {"n": -1, "text": "old"})
            made = keep.store.batch([GetOp(HOME, "0")])[0]
            keep.store.batch([PutOp(HOME, str(n), {"n": n, "text": f"word{n}"}) for n in range(count)])
            found = keep.store.search(HOME, limit=1000)
            assert {item.key: item.value["n"] for item in found} == {str(n): n for n in range(count)}
            first = keep.store.get(HOME, "0")
            assert isinstance(made, type(first)) and first is not None and first.created_at == made.created_at
            assert name == "off" or keep.store.search(HOME, query=f"word{count - 1}")[0].key == str(count - 1)
            assert keep.verify().ok


def test_changes_in_one_call_replace_words_and_vectors(tables_url: str) -> None:
    """A store without an index replaces and deletes what stores with words and with vectors have stored."""
    text = {"text": "apple", "more": "pear plum"}
    for change in (
        lambda store: store.put(HOME, "a", {"text": "rain"}),
        lambda store: store.batch([PutOp(HOME, key, {"text": "rain"}) for key in "abcd"]),
        lambda store: store.delete(HOME, "a"),
        lambda store: store.batch([PutOp(HOME, key, None) for key in "ab"]),
    ):
        for before in (INDEX, None, NO_INDEX):
            with threadkeep.open(tables_url, index=before) as keep:
                keep.store.batch([PutOp(HOME, key, text) for key in "abc"])
            for after in (NO_INDEX, None):
                with threadkeep.open(tables_url, index=after) as keep:
                    change(keep.store)
                    assert "a" not in keys(keep.store.search(HOME, filter={"text": "apple"}))
                    assert keep.verify().ok
    with threadkeep.open(tables_url, index=INDEX) as keep:
        keep.store.batch([PutOp(HOME, key, text) for key in "abcd"])
        check_vectors(tables_url, keep.store)


def test_a_memory_with_the_number_of_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is where the change takes more than one call."""
    path = tmp_path / "same.db"
    with threadkeep.open(f"sqlite:///{path}", index=NO_INDEX) as keep:
        keep.store.put(HOME, "a", {"n": 1})
        keep.store.put(HOME, "b", {"n": 2})
        connection = apsw.Connection(str(path))
        stored = connection.execute("SELECT memory FROM tk_memories WHERE key = ?", (b"b",)).fetchall()[0][0]
        connection.execute("DELETE FROM tk_memories WHERE key = ?", (b"b",))
        connection.execute("UPDATE tk_memories SET memory = ? WHERE key = ?", (stored, b"a"))
        errors = []
        for script in (sqlite_memories.write_script, lambda *_: None):  # as it is, and never
            monkeypatch.setattr("threadkeep.backends.sqlite.memories.write_script", script)
            with pytest.raises(ThreadkeepError) as caught:
                keep.store.put(HOME, "b", {"n": 3})
            errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]
        assert connection.execute("SELECT count(*) FROM tk_memories").fetchall() == [(1,)]
        connection.close()


def test_a_locked_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "locked.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        keep.store.put(HOME, "a", VALUE)
        connection = apsw.Connection(str(path))
        connection.execute("BEGIN IMMEDIATE")
        unlock = threading.Timer(0.2, lambda: connection.execute("COMMIT"))
        unlock.start()
        keep.store.put(HOME, "b", VALUE)
        unlock.join()
        connection.close()
        assert sorted(keys(keep.store.search(HOME))) == ["a", "b"]


def test_threads_put_at_the_same_time(tables_url: str) -> None:
    with threadkeep.open(tables_url) as keep:

        def put(name: int) -> None:
            for n in range(20):
                keep.store.put(HOME, f"{name}-{n}", VALUE)

        threads = [threading.Thread(target=put, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(keep.store.search(HOME, limit=1000)) == 120
        assert keep.verify().ok


def test_a_closed_or_read_only_store_refuses_changes(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        keep.store.put(HOME, "a", VALUE)
    with pytest.raises(Closed):
        keep.store.put(HOME, "a", VALUE)
    with pytest.raises(Closed):
        keep.store.get(HOME, "a")
    with threadkeep.open(lasting_url, read_only=True) as keep:
        with pytest.raises(ReadOnly):
            keep.store.put(HOME, "b", VALUE)
        with pytest.raises(ReadOnly):
            keep.store.delete(HOME, "a")
        assert keys(keep.store.search(HOME)) == ["a"]


def test_a_change_with_vectors_is_no_script() -> None:
    row = MemoryRow(HOME, "a", "{}", 1, 1, None, None)
    request = WriteMemories("", (NewMemory(row, (b"1234",)),), (), 1)
    assert sqlite_memories.write_script({}, request) is None


def test_a_memory_with_vectors_is_deleted_in_one_statement(tables_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Keep, which has cached the vectors, notices it. On SQLite it takes a request."""
    with threadkeep.open(tables_url, index=NEAR) as keep, threadkeep.open(tables_url, index=NEAR) as other:
        keep.store.batch([PutOp(HOME, key, {"text": "apple", "more": "pear plum"}) for key in "abc"])
        assert sorted(keys(other.store.search(HOME, query="apple"))) == ["a", "b", "c"]
        with monkeypatch.context() as patch:
            if tables_url.startswith("postgres"):
                patch.setattr(keep.store._session.transport, "write", pytest.fail)
            keep.store.delete(HOME, "a")
            keep.store.delete(HOME, "a")
            keep.store.delete(HOME, "none")
        for each in (keep, other):
            assert sorted(keys(each.store.search(HOME, query="apple"))) == ["b", "c"]
        check_vectors(tables_url, keep.store)
        assert keep.verify().ok


def test_vectors_that_a_delete_did_not_see_are_deleted_too(tables_url: str) -> None:
    """A row of vectors is missing, or one too many: the statement fails, and a request deletes what is there."""
    for change in ("DELETE FROM {}tk_vectors WHERE field = 1", "UPDATE {}tk_memories SET vectors = 5"):
        with threadkeep.open(tables_url, index=NEAR) as keep:
            keep.store.put(HOME, "a", {"text": "apple", "more": "pear plum"})
            if tables_url.startswith("postgres"):
                execute(change.format(f"{schema_of(tables_url)}."))
            else:
                apsw.Connection(str(location(tables_url))).execute(change.format(""))
            keep.store.delete(HOME, "a")
            assert keep.store.get(HOME, "a") is None
            assert stored_memories.find_leftovers(location(tables_url)) == []
