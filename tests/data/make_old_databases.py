"""Makes the databases of old releases that tests/test_importing.py imports. Run it with a Python that has them:

    python -m venv old && old/bin/pip install langgraph==0.2.4 langgraph-checkpoint==1.0.3 \
        langgraph-checkpoint-sqlite==1.0.0 langgraph-checkpoint-postgres==1.0.3 'psycopg[binary]' aiosqlite
    old/bin/python tests/data/make_old_databases.py FOLDER NAME [postgresql://…]

It writes NAME.sqlite.gz, a SqliteSaver's file, NAME-store.sqlite.gz if there is a store, and, given an empty database,
NAME.postgres.json.gz, the rows of a PostgresSaver. With cubepi instead of LangGraph it writes NAME.sqlite.gz.

    a     langgraph 0.2.4, checkpoint 1.0.3, -sqlite 1.0.0, -postgres 1.0.3: JSON blobs, version 1, sends apart
    b     langgraph 0.2.60, checkpoint 2.0.9, -sqlite 2.0.1, -postgres 2.0.9
    c     langgraph 0.4.7, checkpoint 2.0.26, -sqlite 2.0.8, -postgres 2.0.21
    d     langgraph 1.0.1, checkpoint 3.0.0, -sqlite 3.0.0, -postgres 3.0.0
    p5    cubepi 0.5.0
    p13   cubepi 0.13.6
"""

import asyncio
import base64
import gzip
import json
import operator
import os
import sqlite3
import sys
import tempfile
from datetime import datetime
from typing import Annotated, Any

TypedDict = __import__("typing_extensions").TypedDict


def graphs():
    """A talk, a thread that stopped before two sends, and one that stopped inside of a subgraph."""
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import END, START, StateGraph
    from langgraph.graph.message import add_messages

    try:
        from langgraph.types import Send
    except ImportError:
        from langgraph.constants import Send

    class State(TypedDict):
        messages: Annotated[list, add_messages]
        done: Annotated[list, operator.add]
        table: dict

    class Piece(TypedDict):
        n: int

    def answer(state: Any) -> Any:
        count = len(state["messages"])
        return {
            "messages": [AIMessage(f"answer {count}", id=f"a{count}")],
            "table": {"when": datetime(2024, 1, 2), "of": count},
        }

    def fan(state: Any) -> Any:
        return [Send("work", {"n": n}) for n in (1, 2)]

    def work(piece: Any) -> Any:
        return {"done": [piece["n"] * 10]}

    talk = StateGraph(State)
    talk.add_node("answer", answer)
    talk.add_edge(START, "answer")
    talk.add_edge("answer", END)

    sends = StateGraph(State)
    sends.add_node("answer", answer)
    sends.add_node("work", work)
    sends.add_edge(START, "answer")
    sends.add_conditional_edges("answer", fan, ["work"])
    sends.add_edge("work", END)

    inner = StateGraph(State)
    inner.add_node("first", answer)
    inner.add_node("second", answer)
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    inner.add_edge("second", END)
    outer = StateGraph(State)
    outer.add_node("inner", inner.compile(interrupt_before=["second"]))
    outer.add_edge(START, "inner")
    outer.add_edge("inner", END)

    def question(text: str) -> Any:
        return {"messages": [HumanMessage(text, id=text)]}

    return {
        "talk": (talk, {}, [question("one"), question("two"), question("three")]),
        "sends": (sends, {"interrupt_before": ["work"]}, [question("go")]),
        "nested": (outer, {}, [question("in")]),
    }


def play(saver: Any) -> None:
    for thread, (builder, options, inputs) in graphs().items():
        graph = builder.compile(checkpointer=saver, **options)
        for given in inputs:
            graph.invoke(given, {"configurable": {"thread_id": thread, "user": "u1"}, "metadata": {"team": "x"}})


async def aplay(saver: Any) -> None:
    for thread, (builder, options, inputs) in graphs().items():
        graph = builder.compile(checkpointer=saver, **options)
        for given in inputs[:1]:
            await graph.ainvoke(given, {"configurable": {"thread_id": f"a{thread}"}})


async def aplay_file(path: str) -> None:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        if not hasattr(saver.conn, "is_alive"):  # aiosqlite of today
            saver.conn.is_alive = lambda: True
        await aplay(saver)


def pressed(path: str, target: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("VACUUM INTO ?", (path + ".copy",))
    connection.close()
    with open(path + ".copy", "rb") as file, open(target, "wb") as out:
        out.write(gzip.compress(file.read(), 9, mtime=0))


def sqlite_file(folder: str, name: str) -> None:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "old.db")
        with SqliteSaver.from_conn_string(path) as saver:
            play(saver)
        asyncio.run(aplay_file(path))
        pressed(path, os.path.join(folder, f"{name}.sqlite.gz"))


def sqlite_store(folder: str, name: str) -> None:
    try:
        from langgraph.store.sqlite import SqliteStore
    except ImportError:
        return
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "old.db")
        with SqliteStore.from_conn_string(path) as store:
            store.setup()
            store.put(("users", "u1"), "likes", {"food": "pizza", "n": 1})
            store.put(("users", "u2"), "likes", {"food": "ramen", "deep": {"list": [1, 2.5, None]}})
            store.delete(("users", "u1"), "nothing")
        pressed(path, os.path.join(folder, f"{name}-store.sqlite.gz"))


def plain(value: Any) -> Any:
    if isinstance(value, (bytes, memoryview)):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    return value


def postgres_rows(folder: str, name: str, url: str) -> None:
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        play(saver)
    told: dict = {}
    with psycopg.connect(url) as connection:
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_migrations"):
            columns = connection.execute(
                "SELECT column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = current_schema AND table_name = %s ORDER BY ordinal_position",
                (table,),
            ).fetchall()
            named = ", ".join(f'"{column}"' + ("::text" if kind == "jsonb" else "") for column, kind in columns)
            rows = connection.execute(f"SELECT {named} FROM {table}").fetchall()  # noqa: S608
            told[table] = {"columns": columns, "rows": [[plain(value) for value in row] for row in rows]}
    with open(os.path.join(folder, f"{name}.postgres.json.gz"), "wb") as out:
        out.write(gzip.compress(json.dumps(told).encode(), 9, mtime=0))


async def cubepi_file(folder: str, name: str) -> None:
    from cubepi.checkpointer.sqlite import SQLiteCheckpointer
    from cubepi.providers.base import AssistantMessage, TextContent, UserMessage

    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "old.db")
        async with SQLiteCheckpointer(path) as saver:
            for turn in range(3):
                run = f"run-{turn}" if hasattr(saver, "claim_run") else None
                if run is not None:
                    await saver.claim_run("talk", run)
                await saver.append("talk", [
                    UserMessage(content=[TextContent(text=f"question {turn}")], **({"run_id": run} if run else {})),
                    AssistantMessage(content=[TextContent(text=f"answer {turn}")], **({"run_id": run} if run else {})),
                ])  # fmt: skip
                if run is not None and turn < 2:
                    await saver.mark_run_complete("talk", run)
            await saver.save_extra("talk", {"mood": "good", "n": 3})
            await saver.save_extra("empty", {"a": 1})
            if hasattr(saver, "fork"):
                await saver.fork("talk", "fork", after_run_id="run-0", metadata={"why": "test"})
            if hasattr(saver, "save_hitl_answer"):
                await saver.save_hitl_answer("talk", "q1", {"ok": True}, run_id="run-2")
        pressed(path, os.path.join(folder, f"{name}.sqlite.gz"))


def main(folder: str, name: str, url: str = "") -> None:
    if name.startswith("p"):
        asyncio.run(cubepi_file(folder, name))
        return
    sqlite_file(folder, name)
    sqlite_store(folder, name)
    if url:
        postgres_rows(folder, name, url)


if __name__ == "__main__":
    main(*sys.argv[1:])
