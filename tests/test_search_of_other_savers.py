"""`threadkeep search` in databases of other savers, which it reads without an import and does not change."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

import threadkeep
from foreign_savers import Database
from threadkeep.cli.app import run


def fill(saver: Any) -> None:
    """Let two threads of a real graph say something."""
    builder = StateGraph(MessagesState).add_node("echo", lambda state: {"messages": [("ai", "Our policy is simple.")]})
    graph = builder.add_edge(START, "echo").compile(checkpointer=saver)
    for thread, text in (("shop/1", "What is your refund policy?"), ("desk/1", "A refund policy, please.")):
        graph.invoke({"messages": [HumanMessage(text, id="h1")]}, {"configurable": {"thread_id": thread}})


def hits(capsys: pytest.CaptureFixture[str], *args: str) -> list[tuple[str, str, str]]:
    assert run(["search", "refund", "policy", "--json", *args]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["complete"]
    return [(hit["thread"], hit["checkpoint"], hit["place"]) for hit in found["hits"]]


def test_the_file_of_the_official_saver_gives_the_hits_that_it_would_give_after_an_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours = tmp_path / "theirs.db", tmp_path / "ours.db"
    with closing(sqlite3.connect(theirs, check_same_thread=False)) as connection:
        fill(SqliteSaver(connection))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = hashlib.sha256(theirs.read_bytes()).hexdigest()
    found = hits(capsys, "--url", str(theirs))
    assert {(thread, place) for thread, _, place in found} == {
        ("shop/1", "messages[0].content"), ("desk/1", "messages[0].content"),
    }  # fmt: skip
    assert hits(capsys, "--url", str(theirs), "--prefix", "shop/") == [hit for hit in found if hit[0] == "shop/1"]
    assert hashlib.sha256(theirs.read_bytes()).hexdigest() == before
    with threadkeep.open(ours) as keep:
        keep.import_from(str(theirs))
    assert hits(capsys, "--url", str(ours)) == found


def test_the_output_says_why_threads_were_scanned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        fill(SqliteSaver(connection))
    assert run(["search", "refund", "--url", str(path)]) == 0
    assert "scanned 2 threads: this is the database of another saver" in capsys.readouterr().out


def test_no_index_is_built_in_the_database_of_another_saver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        fill(SqliteSaver(connection))
    assert run(["search", "--build", "--url", str(path)]) != 0
    assert "no threadkeep tables" in capsys.readouterr().err


def test_the_database_of_the_official_saver_on_postgres_is_searched(capsys: pytest.CaptureFixture[str]) -> None:
    database = Database()
    with PostgresSaver.from_conn_string(database.libpq) as saver:
        saver.setup()
        fill(saver)
    assert {thread for thread, _, _ in hits(capsys, "--url", database.libpq)} == {"shop/1", "desk/1"}
