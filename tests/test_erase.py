"""Erase: what belongs to a person is gone from tables, indexes and files, and the receipt says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from cubeloop.providers.base import TextContent, UserMessage

import threadkeep
from checkpoint_chains import Chain
from threadkeep.cli.app import run

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
            assert SECRET.encode() not in b" ".join(_as_bytes(value) for value in row), table
    with closing(apsw.Connection(str(file))) as connection:
        words = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE sql LIKE '%USING fts5(%'")
        ]
        for table in words:
            connection.execute(f"CREATE VIRTUAL TABLE temp.terms_{table} USING fts5vocab(main, {table}, instance)")
            assert SECRET not in {term for (term,) in connection.execute(f"SELECT term FROM temp.terms_{table}")}
    assert words


def _rows(file: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(apsw.Connection(str(file))) as connection:
        return connection.execute(sql, values).fetchall()


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


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
    [{}, {"namespace": ()}, {"namespace": "users"}, {"namespace": [()]}, {"prefix": "", "metadata": {}}],
    ids=str,
)
def test_an_empty_selection_is_refused(options: Any) -> None:
    with threadkeep.open("memory://") as keep, pytest.raises(ValueError, match=r"namespace|erase needs"):
        keep.erase(**options)


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
