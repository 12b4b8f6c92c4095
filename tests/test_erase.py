"""Erase: what belongs to a person is gone from tables, indexes and files, and the receipt says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import apsw
import pytest
from cubeloop.providers.base import TextContent, UserMessage

import threadkeep
from checkpoint_chains import Chain
from damage import rows_opener
from damaged_memories import damages, sql_executor
from stored_bytes import as_bytes, everything_stored
from threadkeep.cli.app import run
from threadkeep.engine.memories.namespaces import MemoryKey, memory_number

SECRET = "zanzibarine"
OTHER = "ordinary"
_EMBED: Any = {"dims": 2, "embed": lambda texts: [[float(len(text)), 1.0] for text in texts], "search": "hybrid"}


def fill(keep: threadkeep.Keep) -> None:
    """Put threads of both kinds and memories of two people. One's data contains SECRET, even in ids and labels."""
    for user, word in (("u1", SECRET), ("u2", OTHER)):
        for n in range(3):
            chain = Chain(keep.checkpointer, f"{word}-{n}")
            for step in range(5):
                chain.put({"messages": [f"{word} {step} {n}" * 20], word: word}, user=user, note=word)
        asyncio.run(keep.cube.append(f"{word}-cube", [UserMessage(content=[TextContent(text=f"{word} said")])]))
        for n in range(30):
            keep.store.put(("users", user, word), f"{word}{n}", {"text": f"{word} likes {n}", word: [word]})
        keep.store.put((word,), "alone", {"text": word})
    for n in range(10):  # earlier edits and deletes, whose bytes must not stay either
        keep.store.put(("users", "u1", SECRET), f"{SECRET}{n}", {"text": f"{SECRET} changed {n}"})
        keep.store.delete(("users", "u1", SECRET), f"{SECRET}{n + 10}")
    keep.prune(policy=threadkeep.Policy(keep_last=3))


def erase(keep: threadkeep.Keep, **options: Any) -> threadkeep.EraseReceipt:
    return keep.erase(
        thread_id=f"{SECRET}-cube",
        metadata={"user": "u1"},
        namespace=[("users", "u1"), (SECRET,)],
        **options,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    with threadkeep.open(f"sqlite:///{path}", index=_EMBED) as keep:
        fill(keep)
    return path


def test_everything_of_a_person_is_erased_and_nothing_else(fresh_url: Callable[[], str]) -> None:
    with threadkeep.open(fresh_url()) as keep:
        fill(keep)
        before = {info.id for info in keep.threads()}
        preview = erase(keep, dry_run=True)
        assert {info.id for info in keep.threads()} == before
        receipt = erase(keep)
        assert receipt.ok
        assert (preview.threads, preview.namespaces) == (receipt.threads, receipt.namespaces)
        assert {each.id for each in receipt.threads} == {id for id in before if SECRET in id}
        assert {each.kind for each in receipt.threads} == {"graph", "cube"}
        assert receipt.memories == 21
        assert {info.id for info in keep.threads()} == {id for id in before if SECRET not in id}
        assert {item.namespace[0] for item in keep.store.search((), limit=100)} == {"users", OTHER}
        assert len(keep.store.search(("users", "u2"), limit=100)) == 30
        assert keep.verify().problems == []
        assert erase(keep).threads == ()


def test_no_byte_is_left_in_a_sqlite_file(file: Path) -> None:
    with threadkeep.open(f"sqlite:///{file}", index=_EMBED) as keep:
        receipt = erase(keep)
        assert receipt.files_clean is True
        left = b"".join(path.read_bytes() for path in file.parent.iterdir())
        assert SECRET.encode() not in left
        assert OTHER.encode() in left
        assert keep.verify().problems == []


def test_no_table_and_no_word_list_has_a_trace(file: Path) -> None:
    with threadkeep.open(f"sqlite:///{file}", index=_EMBED) as keep:
        numbers = {row[0] for row in _rows(file, "SELECT thread FROM tk_threads WHERE instr(id, ?)", SECRET.encode())}
        erase(keep)
    tables = {name for (name,) in _rows(file, "SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert tables >= {"tk_threads", "tk_items", "tk_checkpoints", "tk_writes", "tk_memories", "tk_vectors", "tk_words"}
    for table in tables:
        columns = [row[1] for row in _rows(file, f"PRAGMA table_info({table})")]
        if "thread" in columns:
            assert numbers & {row[0] for row in _rows(file, f"SELECT thread FROM {table}")} == set(), table
        for row in _rows(file, f"SELECT * FROM {table}"):
            assert SECRET.encode() not in b" ".join(as_bytes(value) for value in row), table
    with closing(apsw.Connection(str(file))) as connection:
        words = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE sql LIKE '%USING fts5(%'")
        ]
        for table in words:
            connection.execute(f"CREATE VIRTUAL TABLE temp.terms_{table} USING fts5vocab(main, {table}, instance)")
            terms = [str(term) for (term,) in connection.execute(f"SELECT term FROM temp.terms_{table}")]
            assert {term[:-1] for term in terms} == {OTHER, "likes", *map(str, range(30))}  # each with a mark
    assert words


def test_the_word_that_merges_the_index_is_not_found(file: Path) -> None:
    with threadkeep.open(f"sqlite:///{file}") as keep:
        erase(keep)
        assert {item.score for item in keep.store.search((), query="threadkeep", limit=100)} == {None}
        assert keep.verify().problems == []


def test_no_row_and_no_key_has_a_trace(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, index=_EMBED) as keep:
        fill(keep)
        assert SECRET.encode() in everything_stored(lasting_url)
        erase(keep)
        left = everything_stored(lasting_url)
        assert SECRET.encode() not in left
        assert OTHER.encode() in left
        assert keep.verify().problems == []


UP_AND_DOWN: Any = {
    "dims": 2, "embed": lambda texts: [[1.0, 0.0] if text == "up" else [0.0, 1.0] for text in texts],
    "fields": ["one", "other"], "search": "vector",
}  # fmt: skip


@pytest.mark.parametrize("looks", [False, True], ids=["unseen", "seen empty"])
@pytest.mark.parametrize("prefix", [("u1",), ()], ids=["one partition", "all"])
def test_a_partition_that_is_filled_again_is_not_taken_for_the_erased_one(
    fresh_url: Callable[[], str], prefix: tuple[str, ...], looks: bool
) -> None:
    url = fresh_url()
    with ExitStack() as stack:
        reader = stack.enter_context(threadkeep.open(url, index=UP_AND_DOWN))
        is_memory = url.startswith("memory")
        writer = reader if is_memory else stack.enter_context(threadkeep.open(url, index=UP_AND_DOWN))

        def scores(query: str) -> dict[str, float]:
            found = reader.store.search(prefix, query=query, limit=100)
            return {item.key: round(item.score or 0, 3) for item in found}

        for key in "abc":
            writer.store.put(("u1", "x"), key, {"one": "up", "other": "down"})
        assert scores("up") == {"a": 1, "b": 1, "c": 1}
        assert writer.erase(namespace=("u1",)).memories == 3
        assert not looks or scores("up") == {}
        for key in "abd":  # as many changes as before
            writer.store.put(("u1", "x"), key, {"one": "down"})
        assert scores("up") == {"a": 0, "b": 0, "d": 0}
        assert scores("down") == {"a": 1, "b": 1, "d": 1}
        writer.store.delete(("u1", "x"), "a")
        assert scores("down") == {"b": 1, "d": 1}
        assert writer.verify().problems == []


@pytest.mark.parametrize("what", ["value", "created"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_damaged_memory_is_erased_with_its_namespace(fresh_url: Callable[[], str], what: str, dry_run: bool) -> None:
    with threadkeep.open(url := fresh_url(), index=UP_AND_DOWN) as keep:
        for key in "abc":
            keep.store.put(("u1", "x"), key, {"one": "up", "other": "down"}, ttl=60)
        keep.store.put(("u2",), "kept", {"one": "up"})
        ways = damages(keep, url, MemoryKey(("u1", "x"), "b"))
        names = {f"row.{what} 0", f"tk_memories.{what} 0", f"memory {what}"}
        ways[next(name for name in ways if name in names)]().__enter__()
        with pytest.raises(threadkeep.errors.Corrupt):
            keep.store.search(("u1",))
        receipt = keep.erase(namespace=("u1",), dry_run=dry_run)
        assert receipt.ok
        assert receipt.namespaces == (threadkeep.ErasedNamespace(("u1", "x"), 3),)
        assert [item.key for item in keep.store.search(("u2",))] == ["kept"]
        if not dry_run:
            assert keep.store.search(("u1",)) == []
            assert keep.verify().problems == []


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_thread_whose_row_is_damaged_is_erased_by_its_id(keep: threadkeep.Keep, url: str, dry_run: bool) -> None:
    for id in ("damaged", "intact"):
        Chain(keep.checkpointer, id).put({"a": "x" * 100})
    rows_opener(url)(keep, "damaged").spoil_thread(step=99)
    assert keep.erase(prefix="damaged", dry_run=True).skipped == ("damaged",)
    receipt = keep.erase(thread_id="damaged", dry_run=dry_run)
    assert [(thread.id, thread.checkpoints) for thread in receipt.threads] == [("damaged", 1)]
    assert (receipt.skipped, receipt.missing) == ((), ())
    assert [info.id for info in keep.threads(order="id")] == ["damaged", "intact"][not dry_run :]


def test_a_memory_whose_key_cannot_be_read_is_skipped_and_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with threadkeep.open(url) as keep:
        for key in "abc":
            keep.store.put(("u1",), key, {"x": 1})
        sql_executor(url)("UPDATE tk_memories SET key = x'ff' WHERE key = x'62'", {})
        number = memory_number("", MemoryKey(("u1",), "b"))
        receipt = keep.erase(namespace=("u1",))
        assert (receipt.memories, receipt.ok) == (2, False)
        assert [each for each in receipt.skipped if str(number) in each] == list(receipt.skipped) != []
        with pytest.raises(threadkeep.errors.Corrupt, match=str(number)):
            keep.delete_memories(("u1",))
    assert run(["erase", "--url", url, "--namespace", "u1", "--yes"]) == 1


def test_a_damaged_memory_is_deleted_by_its_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with threadkeep.open(url) as keep:
        keep.store.put(("u1",), "a", {"x": 1})
        sql_executor(url)("UPDATE tk_memories SET created = 1", {})
        assert keep.delete_memories(("u1",), key="a", dry_run=True) == 1
        assert keep.delete_memories(("u1",), key="a") == 1
        assert keep.delete_memories(("u1",), key="a") == 0


def _rows(file: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(apsw.Connection(str(file))) as connection:
        return connection.execute(sql, values).fetchall()


def test_a_reader_in_the_way_is_reported_and_the_step_can_be_repeated(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["erase", "--url", str(file), "--metadata", "user=u1", "--namespace", "users,u1", "--yes", "--json"]
    with closing(apsw.Connection(str(file))) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM tk_items").fetchall()
        assert run([*command, "--timeout", "1"]) == 1
        receipt = json.loads(capsys.readouterr().out)
        assert receipt["files_clean"] is False
        assert "threadkeep compact" in receipt["remains"][0]
    assert run(["compact", "--url", str(file)]) == 0
    assert run([*command]) == 0
    assert b"zanzibarine0" not in b"".join(path.read_bytes() for path in file.parent.iterdir())


def test_the_command_needs_no_namespace(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["erase", "--url", str(file), "--metadata", "user=u1", "--yes", "--json"]) == 0
    receipt = json.loads(capsys.readouterr().out)
    assert (len(receipt["threads"]), receipt["memories"]) == (3, 0)
    assert run(["erase", "--url", str(file), "--yes"]) == 2
    assert "erase needs" in capsys.readouterr().err


def test_the_receipt_of_a_server_says_what_remains(fresh_url: Callable[[], str]) -> None:
    url = fresh_url()
    with threadkeep.open(url) as keep:
        Chain(keep.checkpointer).put({"x": 1})
        receipt = keep.erase(prefix="t")
    expected = {"memory": [], "sqlite": ["backups"], "postgresql": ["dead rows", "log"], "valkey": ["RDB", "AOF"]}
    for word in expected[url.partition(":")[0]]:
        assert any(word in each for each in receipt.remains)
    assert receipt.files_clean is (True if url.startswith(("memory", "sqlite")) else None)


def test_expired_memories_are_erased_too(fresh_url: Callable[[], str]) -> None:
    with threadkeep.open(fresh_url()) as keep:
        keep.store.put(("u",), "k", {"text": SECRET}, ttl=1 / 60_000)
        while keep.store.get(("u",), "k") is not None:
            pass
        assert keep.erase(namespace=("u",)).memories == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"namespace": ()},
        {"namespace": []},
        {"namespace": "users"},
        {"namespace": 5},
        {"namespace": (1,)},
        {"namespace": [()]},
        {"prefix": "", "metadata": {}},
    ],
    ids=str,
)
def test_an_empty_selection_is_refused(options: Any) -> None:
    with threadkeep.open("memory://") as keep, pytest.raises(ValueError, match=r"namespace|erase needs"):
        keep.erase(**options)


def test_a_single_thread_may_be_named_by_a_number() -> None:
    with threadkeep.open("memory://") as keep:
        Chain(keep.checkpointer, "5").put({"x": 1})
        assert [each.id for each in keep.erase(thread_id=cast("str", 5)).threads] == ["5"]
        with pytest.raises(TypeError, match="thread_id must be a str"):
            keep.erase(thread_id=cast("str", b"5"))


def test_threads_of_which_only_some_checkpoints_match_can_be_left_alone(fresh_url: Callable[[], str]) -> None:
    with threadkeep.open(fresh_url()) as keep:
        chain = Chain(keep.checkpointer, "mixed")
        chain.put({"x": 1}, user="u1")
        chain.put({"x": 2}, user="u2")
        Chain(keep.checkpointer, "whole").put({"x": 1}, user="u1")
        found = keep.erase(metadata={"user": "u1"}, dry_run=True).threads
        assert [(each.id, each.matching, each.checkpoints) for each in found] == [("mixed", 1, 2), ("whole", 1, 1)]
        assert [each.id for each in keep.erase(metadata={"user": "u1"}, partly=False).threads] == ["whole"]
        assert [each.id for each in keep.erase(metadata={"user": "u1"}).threads] == ["mixed"]


def test_memories_are_deleted_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with threadkeep.open(url) as keep:
        for namespace in (("users", "u1"), ("users", "u1", "deep"), ("users", "u2")):
            keep.store.put(namespace, "k", {"x": 1})
    assert run(["delete", "--url", url, "--namespace", "users,u1", "--key", "nothing", "--yes"]) == 1
    assert run(["delete", "--url", url, "--namespace", "users/u1", "--dry-run"]) == 0
    assert "would delete 2 memories" in capsys.readouterr().out
    assert run(["delete", "--url", url, "--namespace", "users,u1", "--key", "k", "--yes"]) == 0
    assert run(["delete", "--url", url, "--namespace", "users,u1"]) == 2  # nobody can be asked
    assert run(["delete", "--url", url, "--namespace", "users,u1", "--yes"]) == 0
    with threadkeep.open(url) as keep:
        assert [item.namespace for item in keep.store.search(())] == [("users", "u2")]


def test_an_id_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with threadkeep.open(f"sqlite:///{tmp_path}/a.db") as keep:
        Chain(keep.checkpointer).put({"x": 1})
    assert run(["erase", "t", "typo", "--url", str(tmp_path / "a.db"), "--yes", "--json"]) == 1
    receipt = json.loads(capsys.readouterr().out)
    assert ([each["id"] for each in receipt["threads"]], receipt["missing"]) == (["t"], ["typo"])
