"""Databases of other savers to import from, with threads in every state that a graph can leave."""

from __future__ import annotations

import base64
import gzip
import json
import operator
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypedDict
from urllib.parse import quote

import psycopg
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

import postgres_servers

DATA = Path(__file__).parent / "data"
APP = "app_that_is_gone"


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[
        list[str], DeltaChannel(lambda state, writes: [*state, *(x for w in writes for x in w)], snapshot_frequency=3)
    ]
    done: Annotated[list[int], operator.add]
    count: int
    table: dict[str, Any]
    note: Any
    picture: bytes
    answer: str


@contextmanager
def application() -> Iterator[type]:
    """Provide a class of a module that exists only inside `with`."""
    module = ModuleType(APP)
    note = make_dataclass("Note", [("text", str), ("stars", int)], namespace={"__module__": APP})
    module.Note = note  # type: ignore[attr-defined]
    sys.modules[APP] = module
    try:
        yield note
    finally:
        del sys.modules[APP]


def answer(state: Any) -> dict[str, Any]:
    n = len(state["messages"])
    note = getattr(sys.modules.get(APP), "Note", None)
    return {
        "messages": [AIMessage(f"answer {n} " + "of some length " * 20, id=f"ai{n}")],
        "log": [f"answered {n}"], "count": n, "table": {f"row {k}": f"{n} " * 30 for k in range(20)},
        "note": note(f"note {n}", n) if note else None, "picture": bytes(range(256)),
    }  # fmt: skip


def ask(state: Any) -> dict[str, Any]:
    return {"answer": interrupt({"question": "go on?"})}


def work(piece: Any) -> dict[str, Any]:
    return {"done": [piece["n"] * 10]}


def chat(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("respond", answer)
    builder.add_node("work", work)
    builder.add_edge(START, "respond")
    builder.add_conditional_edges("respond", lambda state: [Send("work", {"n": n}) for n in (1, 2)], ["work"])
    return builder.compile(checkpointer=saver, interrupt_before=["work"])


def asking(saver: Any) -> Any:
    inner = StateGraph(State)
    inner.add_node("respond", answer)
    inner.add_node("ask", ask)
    inner.add_edge(START, "respond")
    inner.add_edge("respond", "ask")
    builder = StateGraph(State)
    builder.add_node("inner", inner.compile())
    builder.add_node("after", answer)
    builder.add_edge(START, "inner")
    builder.add_edge("inner", "after")
    return builder.compile(checkpointer=saver)


def config_of(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}, "metadata": {"user": "u1"}}


def question(n: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(f"question {n}", id=f"q{n}")]}


def fill_saver(saver: Any, *, turns: int = 3) -> None:
    """Write three threads: stopped before its sends, interrupted in a subgraph, and answered."""
    with application():
        for n in range(turns):
            chat(saver).invoke(question(n), config_of("chat"))
            if n < turns - 1:
                chat(saver).invoke(None, config_of("chat"))
        asking(saver).invoke(question(0), config_of("asked"))
        asking(saver).invoke(question(0), config_of("answered"))
        asking(saver).invoke(Command(resume="yes"), config_of("answered"))


async def afill_saver(saver: Any) -> None:
    with application():
        await chat(saver).ainvoke(question(0), config_of("achat"))
        await asking(saver).ainvoke(question(0), config_of("aasked"))


def finish_thread(saver: Any, thread: str) -> Any:
    """Continue a thread to its end; return its values and what comes next."""
    graph, given = (chat(saver), None) if "chat" in thread else (asking(saver), Command(resume="yes"))
    values = graph.invoke(given, config_of(thread))
    return {name: value for name, value in values.items() if name != "note"}, graph.get_state(config_of(thread)).next


def read_thread(saver: Any, thread: str) -> list[Any]:
    """Return all checkpoints of a thread that a saver lists."""
    found = saver.list({"configurable": {"thread_id": thread}})
    return sorted(found, key=lambda each: (each.checkpoint["id"], each.config["configurable"]["checkpoint_ns"]))


def assert_same(ours: Any, theirs: Any, threads: list[str]) -> None:
    for thread in threads:
        expected = read_thread(theirs, thread)
        assert expected, f"there is no thread {thread}"
        assert read_thread(ours, thread) == expected
        for each in expected:
            found = ours.get_tuple(each.config)
            assert found == each
            assert repr(_sorted(found.checkpoint)) == repr(_sorted(each.checkpoint))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=repr)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


# --- databases


class Database:
    """An empty schema, with its URL for threadkeep and for libpq."""

    def __init__(self) -> None:
        self.url = postgres_servers.fresh_schema(postgres_servers.shared())
        self.schema = re.search(r"schema=([^&]+)", self.url)[1]  # type: ignore[index]
        self.libpq = self.url.replace(
            f"schema={self.schema}", "options=" + quote(f"-csearch_path={self.schema},public")
        )
        self.execute(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"')

    def execute(self, sql: Any, values: Any = None) -> list[Any]:
        with psycopg.connect(self.libpq, autocommit=True) as connection:
            found = connection.execute(sql, values)
            return found.fetchall() if found.description else []

    def restored(self, name: str) -> Database:
        """Restore the rows that an old release wrote."""
        for table, held in json.loads(gzip.decompress((DATA / f"{name}.postgres.json.gz").read_bytes())).items():
            self.execute(f"CREATE TABLE {table} (" + ", ".join(map(" ".join, held["columns"])) + ")")
            for row in held["rows"]:
                values = [base64.b64decode(each["base64"]) if isinstance(each, dict) else each for each in row]
                self.execute(f"INSERT INTO {table} VALUES (" + ", ".join(["%s"] * len(row)) + ")", values)
        return self


def old_file(name: str, folder: Path) -> Path:
    """Restore a file that an old release wrote."""
    path = folder / f"{name}.db"
    path.write_bytes(gzip.decompress((DATA / f"{name}.sqlite.gz").read_bytes()))
    return path
