"""Fills a Keep with one of everything: threads of real graphs, CubeLoop threads, memories. Reads all of it back."""

from __future__ import annotations

import asyncio
import sys
import types
from dataclasses import make_dataclass
from typing import Any

from cubeloop.hitl.types import ConfirmRequest, HitlRequest
from cubeloop.providers.base import AssistantMessage, TextContent, ToolCall, ToolResultMessage, UserMessage
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Command

import threadkeep
from checkpoint_trees import Put, PutWrites, put_steps
from graph_scenarios import chat, fan, nested, two_questions
from test_delta_graphs import build as delta_graph
from threadkeep.engine.identity import GRAPH
from threadkeep.engine.threads import damaged_rows

SECRETS = [
    "Kilimanjaro", "password-1234", "ana@example.org", "Grüße 🦜", "customer_email", "4929-0000-1111", "blue moon",
    "Zanzibar", "secret-user", "favourite-colour", "weather_in_oslo_argument", "private-thread",
]  # fmt: skip
"""Words of users, in texts and names. None may be left in a redacted file."""
CONTINUED = {"configurable": {"thread_id": "chat"}}


def _answers(state: Any) -> dict[str, Any]:
    n = len(state["messages"])
    call = {
        "name": "weather",
        "args": {"customer_email": "ana@example.org", "q": "weather_in_oslo_argument"},
        "id": f"c{n}",
    }
    return {
        "messages": [
            AIMessage(f"answer {n} about Kilimanjaro", id=f"ai{n}", tool_calls=[call]),
            ToolMessage("Zanzibar", tool_call_id=f"c{n}", name="weather", id=f"tool{n}"),
        ]
    }


CHAT = chat(_answers)
NESTED = nested()


def fill(keep: threadkeep.Keep) -> None:
    """Put one of everything into a Keep."""
    saver = keep.checkpointer
    named = {"customer_email": "ana@example.org"}
    for n, text in enumerate(["Grüße 🦜", "blue moon " * 300, "again"]):
        CHAT(saver).invoke(
            {"messages": [HumanMessage(text, id=f"h{n}")]},
            {**CONTINUED, "metadata": {**named, "rank": 70_000 + n}, "run_id": None},
        )
    old = list(CHAT(saver).get_state_history(CONTINUED))[3]
    CHAT(saver).invoke({"messages": [HumanMessage("a fork", id="f")]}, {**old.config, "metadata": named})
    NESTED(saver).invoke({"said": ["Kilimanjaro"]}, thread("nested"))
    two_questions(saver).invoke({"said": []}, thread("questions"))
    two_questions(saver).invoke(Command(resume={_first(saver): "password-1234"}), thread("questions"))
    fan(lambda task: {"done": [task["n"]]})(saver).invoke({"items": [3, 1, 2]}, thread("fan"))
    _deltas(saver)
    _by_hand(saver)
    asyncio.run(_write_cube_threads(keep.cube))
    _write_memories(keep.store)


def thread(id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": id}}


def _first(saver: Any) -> str:
    return two_questions(saver).get_state(thread("questions")).tasks[0].interrupts[0].id


def _deltas(saver: Any) -> None:
    graph = delta_graph(saver, frequency=3)
    for n in range(5):
        graph.invoke({"messages": [HumanMessage(f"Zanzibar {n}", id=f"human{n}")]}, thread("delta"))
    saver.copy_thread("delta", "pruned")
    saver.prune(["pruned"])  # leaves hidden rows


def _by_hand(saver: Any) -> None:
    """Put what graphs rarely do: string versions, unknown keys, early writes, odd metadata, classes that are gone."""
    module = types.ModuleType("gone_module")
    gone = make_dataclass("Gone", ["wish"], namespace={"__module__": "gone_module"})
    module.Gone = gone
    sys.modules["gone_module"] = module
    versions = {"a": "00000000000000000000000000000003.0.5", "b": 7}
    checkpoint = {
        "v": 4,
        "id": "9-by-hand",
        "ts": "2026-01-01T00:00:00+00:00",
        "updated_channels": ["a"],
        "pending_sends": [],
        "channel_values": {
            "a": gone("secret-user"),
            "b": {"customer_email": "blue moon " * 60_000, "n": {1: b"bytes", (1, 2): 5.5}},
        },
        "channel_versions": versions,
        "versions_seen": {"node": {"a": versions["a"]}},
        "unknown": {"k": ["blue moon"]},
    }
    config = {"configurable": {"thread_id": "by hand", "checkpoint_ns": ""}}
    metadata = {"source": "update", "step": -1, "odd": b"\x00\xff", "note": "password-1234", "tags": ["a", 1.5, None]}
    saver.put(config, checkpoint, metadata, versions)
    del sys.modules["gone_module"]
    early = {"configurable": {"thread_id": "by hand", "checkpoint_ns": "", "checkpoint_id": "A-is-to-come"}}
    saver.put_writes(
        early, [("a", "Kilimanjaro"), ("__interrupt__", ["4929-0000-1111"])], "task", "~__pregel_pull, node"
    )
    tree = [
        Put("c0", None, {"a": list(range(300))}, run="run-1"),
        PutWrites("c0", "t", (("b", 1),), run="run-2"),
        Put("c1", "c0", {"a": [*range(5), *range(100, 300)]}, run="run-2"),
        Put("c2", "c0", {"b": "z"}),
    ]
    put_steps(saver, "private-thread", tree)
    messages = [{"id": f"m{n}", "text": f"{n} " * 200} for n in range(120)]
    for n in range(6):  # many ranges, which go into range lists
        put_steps(saver, "many runs", [Put(f"c{n}", f"c{n - 1}" if n else None, {"a": messages[n :: 2 + n % 3]})])


async def _write_cube_threads(cube: Any) -> None:
    await cube.claim_run("talk", "run-é")
    said = UserMessage(
        content=[TextContent(text="Kilimanjaro " * 100)], run_id="run-é", id="m1", metadata={"customer_email": 1}
    )
    call = ToolCall(id="c1", name="weather", arguments={"q": "weather_in_oslo_argument"})
    await cube.append("talk", [said, AssistantMessage(content=[call], run_id="run-é", id="m2")])
    result = ToolResultMessage(
        tool_call_id="c1", tool_name="weather", content=[TextContent(text="Zanzibar")], run_id="run-é"
    )
    await cube.append("talk", [result])
    await cube.mark_run_complete("talk", "run-é")
    await cube.save_extra("talk", {"customer_email": "ana@example.org", "large": 2**70, "lone": "\ud800 blue moon"})
    await cube.claim_run("talk", "6f1c2d1e-2b7a-4c3d-9e8f-0a1b2c3d4e5f")
    await cube.append(
        "talk", [UserMessage(content=[TextContent(text="more")], metadata={"lone": "\ud800", "n": 2**70})]
    )
    ask = HitlRequest(
        question_id="q1",
        thread_id="talk",
        payload=ConfirmRequest(prompt="blue moon?", details={"favourite-colour": 1}),
        created_at=1_700_000_000.5,
        timeout_seconds=None,
    )
    await cube.save_pending_request("talk", ask, run_id="6f1c2d1e-2b7a-4c3d-9e8f-0a1b2c3d4e5f")
    await cube.save_hitl_answer("talk", "q0", {"favourite-colour": "Zanzibar"}, run_id="run-é")
    await cube.fork("talk", "forked", after_run_id="run-é")


def _write_memories(store: Any) -> None:
    store.put(
        ("users", "secret-user"), "favourite-colour", {"is": "blue moon", "deep": {"customer_email": [1, 2.5, "x"]}}
    )
    store.put(("users", "secret-user"), "favourite-colour", {"is": "blue moon", "times": 70_001})
    store.put(("users",), "short", {"text": "Kilimanjaro", "nul": "\0 and \ud800"}, ttl=600)
    for n in range(70):
        store.put(("notes", str(n % 3)), f"n{n}", {"n": n})


def contents(keep: threadkeep.Keep) -> dict[str, Any]:
    """Read everything in a Keep, times and hidden rows too."""
    found: dict[str, Any] = {}
    for info in keep.threads(order="id", limit=1000):
        found[f"{info.kind} {info.id}"] = {
            "info": (info.checkpoints, info.writes, info.created, info.updated, info.step, info.source, info.status),
            "rows": _rows(keep, info),
            "state": _graph(keep, info.id)
            if info.kind == GRAPH
            else asyncio.run(_read_cube_thread(keep.cube, info.id)),
        }
    items = keep.store.search((), limit=1000)
    found["memories"] = [(i.namespace, i.key, i.value, i.created_at, i.updated_at) for i in items]
    return found


def _rows(keep: threadkeep.Keep, info: Any) -> Any:
    session = keep._session
    whole = session.runner.run(damaged_rows.load_thread_rows(session.heads, session.key(info.kind, info.id)))
    rows = {p: (r.row.parent, r.row.run, r.row.time, r.row.hidden, r.row.step) for p, r in whole.records.items()}
    tasks = [(t.row.ns, t.row.checkpoint, t.row.task, i, e.channel, e.origin, e.size)
             for each in whole.tasks.values() for t in each for i, e in t.entries.items()]  # fmt: skip
    return rows, sorted(tasks)


def _graph(keep: threadkeep.Keep, id: str) -> Any:
    saver = keep.checkpointer
    listed = [repr(each) for each in saver.list(thread(id))]
    by_id = [saver.get_tuple(each.config) for each in saver.list(thread(id), limit=2)]
    deltas = [
        saver.get_delta_channel_history(config=each.config, channels=["messages", "log", "a"])
        for each in saver.list(thread(id), limit=3)
    ]
    return listed, list(map(repr, by_id)), repr(deltas)


async def _read_cube_thread(cube: Any, id: str) -> Any:
    data = await cube.load(id)
    answers = await cube.load_hitl_answer(id, "q0", run_id="run-é")
    snapshot = await cube.snapshot(id, after_run_id="run-é")
    return repr(data), await cube.load_pending(id), answers, repr(snapshot)
