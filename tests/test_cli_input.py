"""The program with wrong or strange input: nothing is lost, nothing is misunderstood."""

from __future__ import annotations

import asyncio
import io
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import threadkeep
from threadkeep.cli.app import run


def chat(keep: threadkeep.Keep, *ids: str) -> None:
    """Write a thread of three checkpoints for each id."""
    builder = StateGraph(MessagesState).add_node("reply", lambda _: {"messages": [("ai", "hello")]})
    graph = builder.add_edge(START, "reply").compile(checkpointer=keep.checkpointer)
    for id in ids:
        graph.invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": id}})


def write_cube_thread(keep: threadkeep.Keep, id: str) -> None:
    asyncio.run(keep.cube.save_extra(id, {"mood": "good"}))


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THREADKEEP_URL", "agent.db")
    with threadkeep.open("sqlite:///agent.db") as opened:
        yield opened


def test_a_thread_that_is_named_twice_is_deleted_once_and_ids_stay_on_their_line(keep: Any, capsys: Any) -> None:
    chat(keep, "t", "u\nv")
    assert run(["copy", "t", "w\nx"]) == 0
    assert run(["delete", "t", "t", "u\nv", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines() == ["copied t to w\\nx", "deleted t", "deleted u\\nv"]


def test_pages_lose_no_thread_where_both_kinds_have_one_id(keep: Any, capsys: Any) -> None:
    chat(keep, "a b", "-c", "twin")
    write_cube_thread(keep, "twin")
    seen, more = [], ""
    while len(seen) < 9:
        assert run(["threads", "--order", "updated", "--limit", "1", *shlex.split(more)]) == 0
        output = capsys.readouterr().out.splitlines()
        if output == ["no threads"]:
            break
        seen.append(output[-2].split("  ")[0])
        more = output[-1].removeprefix("next page: ")
    assert sorted(seen) == ["-c", "a b", "twin", "twin"]
    assert run(["threads", "--after", "twin"]) == 2
    assert run(["threads", "--after", "nobody"]) == 1
    with pytest.raises(ValueError, match="two threads have this id"):
        keep.threads(after="twin")
    assert [info.id for info in keep.threads(after="twin", kind="graph", order="id")] == []


@pytest.mark.parametrize("command", ["compact", "copy a b", "delete a --yes", "rollback a latest", "sweep", "threads"])
def test_no_tables_are_created_in_a_mistyped_file(keep: Any, capsys: Any, command: str) -> None:
    with sqlite3.connect("other.db") as other:
        other.execute("CREATE TABLE mine (a)")
    other.close()
    before = Path("other.db").read_bytes()
    assert run([*command.split(), "--url", "other.db"]) in (2, 3)
    assert "other.db has no" in capsys.readouterr().err
    assert Path("other.db").read_bytes() == before
    assert run([*command.split(), "--url", "."]) == 2
    assert ". is a directory" in capsys.readouterr().err


def test_a_checkpoint_that_tree_shows_is_found_in_its_namespace_by_every_command(keep: Any, capsys: Any) -> None:
    inner = StateGraph(MessagesState).add_node("ask", lambda _: {"messages": [("ai", interrupt("?"))]})
    outer = StateGraph(MessagesState).add_node("inner", inner.add_edge(START, "ask").compile()).add_edge(START, "inner")
    outer.compile(checkpointer=keep.checkpointer).invoke({"messages": []}, {"configurable": {"thread_id": "t"}})
    step = next(each for each in keep.log("t") if each.ns)
    for command in ("show t {}", "trace t {}", "tag t {} kept", "rollback t {} --dry-run", "fork t {}"):
        assert run([*command.format(step.id[-8:]).split(), "--json"]) == 0, command
        assert step.ns in capsys.readouterr().out or command.startswith("trace")
    before = len(keep.log("t"))
    for command in (["show", "t", ""], ["rollback", "t", ""], ["fork", "t", ""], ["tag", "t", "", "kept"]):
        assert run(command) == 2
        assert "CHECKPOINT is empty" in capsys.readouterr().err
    assert len(keep.log("t")) == before


def test_nothing_is_pruned_if_one_of_the_threads_is_not_there(keep: Any, capsys: Any) -> None:
    chat(keep, "t")
    assert run(["prune", "t", "nobody", "--yes"]) == 1
    assert len(keep.log("t")) == 3
    assert run(["prune", "t", "--keep-last", "1", "--metadata", "=x", "--yes"]) == 2
    assert run(["prune", "t", "t", "--yes"]) == 0
    assert "removed 2 checkpoints of 1 thread" in capsys.readouterr().out


def test_a_chat_that_is_only_on_one_side_of_a_diff_is_shown_as_a_chat(keep: Any, capsys: Any) -> None:
    chat(keep, "t")
    assert run(["diff", "t", "latest~2", "latest"]) == 0
    assert "  + messages:\n    human: hi\n    ai: hello\n" in capsys.readouterr().out
    assert run(["activity", "--until", "1d"]) == 0
    assert capsys.readouterr().out == "no writes in 1 thread and 3 checkpoints\n"


def test_a_damaged_thread_does_not_keep_the_others_from_being_pruned_and_counted(keep: Any, capsys: Any) -> None:
    chat(keep, "a", "b", "c")
    keep.close()
    with sqlite3.connect("agent.db") as database:
        database.execute(
            "UPDATE tk_checkpoints SET body = zeroblob(9) WHERE thread = (SELECT thread FROM tk_threads WHERE id = ?)",
            [b"b"],
        )
        assert database.total_changes == 3
    database.close()
    for command in (
        ["activity"],
        ["sizes"],
        ["prune", "--keep-last", "1", "--dry-run"],
        ["prune", "--keep-last", "1", "--yes"],
    ):
        assert run(command) == 0, command
        assert "thread b is damaged in part" in capsys.readouterr().out
    with threadkeep.open("sqlite:///agent.db", retention=threadkeep.Policy(keep_last=1)) as again:
        assert [info.checkpoints for info in again.threads(order="id")] == [1, 3, 1]
        assert [*again.sweep().pruned.damaged, *again.compact().damaged, *again.prune("b").damaged] == ["b", "b", "b"]
    assert run(["export", "b", "-o", "b.tk"]) == 1
    assert run(["export", "-o", "all.tk"]) == 1
    assert "skipped damaged thread b" in capsys.readouterr().out
    with threadkeep.open("memory://") as fresh:
        assert fresh.import_portable("all.tk").threads == 2
        assert [info.id for info in fresh.threads(order="id")] == ["a", "c"]


class Terminal(io.StringIO):
    """A user who types."""

    def isatty(self) -> bool:
        return True


def test_no_is_an_answer(keep: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chat(keep, "t")
    for command in (["delete", "t"], ["prune", "--keep-last", "1"]):
        monkeypatch.setattr("sys.stdin", Terminal("n\n"))
        assert run(command) == 1
        assert "nothing was changed" in capsys.readouterr().err
        assert len(keep.log("t")) == 3
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert run(["delete", "t"]) == 0
    assert keep.thread("t") is None


def test_a_file_that_is_compressed_but_no_export_is_refused(keep: Any, capsys: Any) -> None:
    Path("x.tk").write_bytes(b"\x28\xb5\x2f\xfd and more")
    assert run(["import", "x.tk", "--url", "new.db"]) == 2
    assert "compressed, but it is not an export" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["threads"], ["import", "agent.db"]], ids=lambda command: command[0])
def test_a_missing_folder_is_named(keep: Any, tmp_path: Path, capsys: Any, command: list[str]) -> None:
    keep.setup()
    file = tmp_path / "missing" / "new.db"
    assert run([*command, "--url", str(file)]) == 2
    assert capsys.readouterr().err == f"error: file {file} not found: the folder {file.parent} does not exist\n"


def test_the_missing_folder_of_an_export_is_named(keep: Any, tmp_path: Path, capsys: Any) -> None:
    chat(keep, "t")
    assert run(["export", "--output", "missing/t.tk"]) == 2
    assert "error: there is no directory " + str(tmp_path / "missing") in capsys.readouterr().err


def test_a_backup_without_a_file_says_that_the_file_is_missing(keep: Any, capsys: Any) -> None:
    chat(keep, "t")
    assert run(["backup"]) == 2
    assert "error: name the FILE to write" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["encrypt", "rotate", "reencrypt"])
def test_a_command_that_needs_keys_names_its_option(keep: Any, capsys: Any, command: str) -> None:
    chat(keep, "t")
    assert run([command]) == 2
    assert "--keys FILE" in capsys.readouterr().err


def test_a_source_that_is_a_database_of_threadkeep_is_called_so(keep: Any, capsys: Any) -> None:
    chat(keep, "t")
    assert run(["import", "agent.db", "--url", "new.db"]) == 2
    assert "agent.db is threadkeep's own database: use threadkeep.convert" in capsys.readouterr().err
