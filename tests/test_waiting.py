"""waiting: which threads wait for a person, with their open questions and what these offer; on every backend."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from cubeloop.hitl.types import ApproveRequest, AskRequest, ConfirmRequest, HitlRequest, Option, Question
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

import threadkeep
from encrypted_keeps import KEYS
from graph_scenarios import Asked, nested, two_questions, workflow
from rich_threads import user_message
from sync_async import Ask
from threadkeep import AnswerOption
from threadkeep.cli.app import run
from threadkeep.engine.history.answer_options import question_text


def at(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def asking(question: Any, **options: Any) -> Any:
    """Return a function that builds a graph with one question."""

    def build(saver: Any) -> Any:
        builder = StateGraph(Asked)
        builder.add_node("ask", lambda state: {"said": [str(interrupt(question, **options))]})
        builder.add_edge(START, "ask")
        return builder.compile(checkpointer=saver)

    return build


def start(keep: threadkeep.Keep, build: Any, thread: str = "t") -> Any:
    graph = build(keep.checkpointer)
    graph.invoke({"said": []}, at(thread))
    return graph


# --- LangGraph's interrupts


def test_an_open_question_is_listed_until_it_is_answered(keep: threadkeep.Keep, ask: Ask) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    graph = start(keep, asking({"really": ["delete", 3]}))
    start(keep, asking("other"), "u")
    graph.invoke(Command(resume="yes"), at("t"))
    (found,) = ask(keep, "waiting")
    assert found.since > before
    assert (found.thread, found.kind, found.reason, found.question) == ("u", "graph", "interrupt", "other")
    assert (found.node, found.next, found.ns, found.options) == ("ask", ("ask",), "", ())
    assert found.checkpoint == keep.log("u")[0].id
    asking("other")(keep.checkpointer).invoke(Command(resume={found.id: "yes"}), found.config)
    assert ask(keep, "waiting") == []


def test_questions_that_are_open_at_once_are_listed_one_by_one(keep: threadkeep.Keep, ask: Ask) -> None:
    graph = start(keep, two_questions)
    found = ask(keep, "waiting")
    assert {(each.question, each.node) for each in found} == {("left?", "left"), ("right?", "right")}
    left = next(each for each in found if each.node == "left")
    graph.invoke(Command(resume={left.id: "1"}), at("t"))
    (right,) = ask(keep, "waiting")
    assert (right.question, right.next) == ("right?", ("right",))
    graph.invoke(Command(resume={right.id: "2"}), at("t"))
    assert ask(keep, "waiting") == []
    assert graph.get_state(at("t")).values["said"] == ["left 1", "right 2", "after"]


@pytest.mark.parametrize("inner_saver", [None, True])
def test_a_question_of_a_subgraph_is_listed_once_with_its_namespace(
    keep: threadkeep.Keep, ask: Ask, inner_saver: bool | None
) -> None:
    graph = start(keep, nested(inner_saver=inner_saver))
    (found,) = ask(keep, "waiting")
    assert (found.question, found.node, found.next) == ("name?", "ask", ("middle",))
    deepest = max({each.ns for each in keep.log("t")}, key=len)
    assert (found.ns, found.checkpoint) == (deepest, keep.log("t", ns=deepest)[0].id)
    graph.invoke(Command(resume="me"), at("t"))
    assert ask(keep, "waiting") == []
    graph.invoke({"said": ["again"]}, at("t"))
    assert len(ask(keep, "waiting")) == 1


def test_a_subgraph_may_have_several_questions(keep: threadkeep.Keep, ask: Ask) -> None:
    def build(saver: Any) -> Any:
        builder = StateGraph(Asked)
        builder.add_node("both", two_questions(None))
        builder.add_edge(START, "both")
        return builder.compile(checkpointer=saver)

    graph = start(keep, build)
    found = ask(keep, "waiting")
    assert sorted(each.question for each in found) == ["left?", "right?"]
    assert len({each.ns for each in found}) == 1
    assert found[0].ns.startswith("both:")
    graph.invoke(Command(resume={found[0].id: "x"}), at("t"))
    (left,) = ask(keep, "waiting")
    assert left.question == found[1].question


def test_the_second_question_of_a_node_takes_the_place_of_the_first(keep: threadkeep.Keep, ask: Ask) -> None:
    def build(saver: Any) -> Any:
        builder = StateGraph(Asked)
        builder.add_node("ask", lambda state: {"said": [interrupt("first?"), interrupt("second?")]})
        builder.add_edge(START, "ask")
        return builder.compile(checkpointer=saver)

    graph = start(keep, build)
    assert [each.question for each in ask(keep, "waiting")] == ["first?"]
    graph.invoke(Command(resume="1"), at("t"))
    assert [each.question for each in ask(keep, "waiting")] == ["second?"]
    graph.invoke(Command(resume="2"), at("t"))
    assert ask(keep, "waiting") == []


def test_a_question_that_was_answered_before_its_node_failed_is_not_open(keep: threadkeep.Keep, ask: Ask) -> None:
    def build(saver: Any) -> Any:
        def node(state: Asked) -> Any:
            raise RuntimeError(interrupt("why?"))

        builder = StateGraph(Asked)
        builder.add_node("ask", node)
        builder.add_edge(START, "ask")
        return builder.compile(checkpointer=saver)

    graph = start(keep, build)
    assert len(ask(keep, "waiting")) == 1
    with pytest.raises(RuntimeError):
        graph.invoke(Command(resume="so"), at("t"))
    assert keep.thread("t").status == "error"
    assert ask(keep, "waiting") == []


def test_a_node_that_fails_beside_a_question_does_not_hide_it(keep: threadkeep.Keep, ask: Ask) -> None:
    graph = start(keep, asking("open?"))
    found = keep.checkpointer.get_tuple(at("t"))
    keep.checkpointer.put_writes(found.config, [("__error__", "RuntimeError()")], "another task")
    assert keep.thread("t").status == "error"
    assert [each.question for each in ask(keep, "waiting")] == ["open?"]
    graph.invoke({"said": ["something else"]}, at("t"))
    assert len(ask(keep, "waiting")) == 1  # the question of the new run


def test_the_functional_api_asks_too(keep: threadkeep.Keep, ask: Ask) -> None:
    total = workflow(keep.checkpointer)
    total.invoke([10], at("t"))
    assert [each.question for each in ask(keep, "waiting")] == ["bonus?"]
    total.invoke(Command(resume=5), at("t"))
    assert ask(keep, "waiting") == []


# --- static interrupts


def stopping(saver: Any) -> Any:
    builder = StateGraph(Asked)
    builder.add_node("one", lambda state: {"said": ["one"]})
    builder.add_node("two", lambda state: {"said": ["two"]})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    return builder.compile(checkpointer=saver, interrupt_before=["two"])


def test_a_thread_that_stopped_before_a_node_is_paused(keep: threadkeep.Keep, ask: Ask) -> None:
    graph = start(keep, stopping)
    (found,) = ask(keep, "waiting")
    assert (found.reason, found.question, found.id, found.next, found.options) == ("paused", None, None, ("two",), ())
    assert (found.ns, found.checkpoint) == ("", keep.log("t")[0].id)
    assert ask(keep, "waiting", paused=False) == []
    graph.invoke(None, at("t"))
    assert ask(keep, "waiting") == []


def test_a_thread_that_somebody_works_on_is_not_paused(keep: threadkeep.Keep, ask: Ask) -> None:
    start(keep, stopping)
    with keep.lease("t"):
        assert ask(keep, "waiting") == []
    assert len(ask(keep, "waiting")) == 1


# --- what questions offer


class Decision(BaseModel):
    """The answer to a question."""

    approved: bool


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({"options": ["yes", "no"]}, [("yes", "yes", None), ("no", "no", None)]),
        ({"options": [{"value": 1, "label": "one"}, {"label": "two"}, None, {}]},
         [(1, "one", None), ("two", "two", None), (None, "None", None)]),
        ([{"action_request": {"action": "pay", "args": {}},
           "config": {"allow_ignore": True, "allow_respond": True, "allow_edit": False, "allow_accept": True},
           "description": "?"}],
         [("accept", "accept", "pay"), ("response", "response", "pay"), ("ignore", "ignore", "pay")]),
        ({"action_requests": [{"name": "pay", "args": {}}, {"name": "mail", "args": {}}],
          "review_configs": [{"action_name": "pay", "allowed_decisions": ["approve", "reject"]},
                             {"action_name": "mail", "allowed_decisions": ["edit"]}]},
         [("approve", "approve", "pay"), ("reject", "reject", "pay"), ("edit", "edit", "mail")]),
        ("which?", []),
        ({"options": "none", "config": 3, "review_configs": [1], "action_requests": [], "kind": "ask"}, []),
        ({"kind": "ask", "questions": [1, {"options": [[]]}]}, [([], "[]", None)]),
    ],
    ids=["options", "labels", "human interrupt", "middleware", "text", "odd", "odd questions"],
)  # fmt: skip
def test_the_options_of_a_question(question: Any, expected: list[Any]) -> None:
    with threadkeep.open("memory://") as keep:
        start(keep, asking(question))
        (found,) = keep.waiting()
        assert [(each.value, each.label, each.subject) for each in found.options] == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("which?", "which?"),
        ({"question": "pay?", "options": [{"description": "now"}]}, "pay?"),
        ({"kind": "confirm", "prompt": "sure?", "details": None}, "sure?"),
        ({"kind": "ask", "questions": [{"prompt": "red?"}, {"prompt": "blue?"}, 1]}, "red?\nblue?"),
        ({"action_requests": [{"name": "pay", "description": "Pay 3?"}], "review_configs": []}, "Pay 3?"),
        ([{"action_request": {"action": "pay"}, "description": "Pay 4?"}, "x"], "Pay 4?"),
        ({"amount": 3, "inner": {"text": "how many?"}}, "how many?"),
        ({"options": [{"description": "now"}], "amount": 3}, None),
        ("", None),
        ([], None),
        (3, None),
    ],
)
def test_the_text_of_a_question(question: Any, expected: str | None) -> None:
    assert question_text(question) == expected


def test_the_options_of_a_schema() -> None:
    with threadkeep.open("memory://") as keep:
        start(keep, asking("sure?", response_schema={"type": "boolean"}), "bool")
        start(keep, asking("which?", response_schema={"enum": ["a", "b"]}), "enum")
        refers = {
            "$defs": {"A": {"properties": {"type": {"const": "ok"}}}},
            "oneOf": [{"$ref": "#/$defs/A"}, 3, {"$ref": "#"}],
        }
        start(keep, asking("how?", response_schema=refers), "union")
        found = {each.thread: [option.value for option in each.options] for each in keep.waiting()}
        assert found == {"bool": [True, False], "enum": ["a", "b"], "union": ["ok"]}


@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_the_middleware_of_langchain_asks_with_options(keep: threadkeep.Keep, ask: Ask, mode: Any) -> None:
    def send_mail(to: str) -> str:
        """Send a mail."""
        return f"sent to {to}"

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

    call = {"name": "send_mail", "args": {"to": "ana"}, "id": "c1", "type": "tool_call"}
    agent = create_agent(
        Model(messages=iter([AIMessage("", tool_calls=[call])])),
        [send_mail],
        middleware=[
            HumanInTheLoopMiddleware({"send_mail": {"allowed_decisions": ["approve", "reject"]}}, interrupt_mode=mode)
        ],
        checkpointer=keep.checkpointer,
    )
    agent.invoke({"messages": [("human", "mail her")]}, at("t"))
    (found,) = ask(keep, "waiting")
    assert [each.value for each in found.options] == ["approve", "reject"]
    assert "send_mail" in str(found.question)


# --- CubeLoop's requests


def request(payload: Any, id: str = "q1") -> HitlRequest:
    return HitlRequest(question_id=id, thread_id="talk", payload=payload, created_at=1_700_000_000.5)


async def _ask_in_cube(keep: threadkeep.Keep, payload: Any, thread: str = "talk") -> None:
    await keep.cube.claim_run(thread, "run-1")
    await keep.cube.save_pending_request(thread, request(payload), run_id="run-1")


def test_a_request_of_a_cube_agent_is_listed_until_it_is_answered(keep: threadkeep.Keep, ask: Ask) -> None:
    asyncio.run(_ask_in_cube(keep, ConfirmRequest(prompt="sure?", details={"n": 1})))
    (found,) = ask(keep, "waiting")
    assert (found.thread, found.kind, found.reason, found.id, found.run) == ("talk", "cube", "request", "q1", "run-1")
    assert found.question == {"kind": "confirm", "prompt": "sure?", "details": {"n": 1}}
    assert found.since == datetime.fromtimestamp(1_700_000_000.5, UTC)
    assert [each.label for each in found.options] == ["yes", "no"]
    asyncio.run(keep.cube.save_hitl_answer("talk", "q1", True, run_id="run-1"))
    assert ask(keep, "waiting") == []
    asyncio.run(keep.cube.save_pending_request("talk", None, run_id="run-1"))
    assert ask(keep, "waiting") == []


@pytest.mark.parametrize(
    ("details", "options"),
    [({"n": 1}, {}), ({"long": "x" * 5000}, {"keys": KEYS, "hide_ids": True}), ({"large": 1 << 70}, {})],
    ids=["short", "long, with keys", "large number"],
)
def test_checkpoints_with_a_request_of_a_cube_agent_are_marked(
    fresh_url: Callable[[], str], ask: Ask, details: Any, options: Any
) -> None:
    """Where it waits, and where it was answered; not where nobody was asked."""

    async def run(number: int, *, asks: bool) -> None:
        name = f"run-{number}"
        await keep.cube.claim_run("talk", name)
        await keep.cube.append("talk", [user_message(name, name)])
        if asks:
            payload = ConfirmRequest(prompt="sure?", details=details)
            await keep.cube.save_pending_request("talk", request(payload), run_id=name)

    def marked() -> list[tuple[str | None, bool]]:
        log, tree = ask(keep, "log", "talk"), ask(keep, "tree", "talk")
        assert [each.interrupted for each in tree.checkpoints] == [each.interrupted for each in log]
        return [(each.run, each.interrupted) for each in reversed(log)]

    with threadkeep.open(fresh_url(), **options) as keep:
        asyncio.run(run(1, asks=False))
        asyncio.run(run(2, asks=True))
        assert marked() == [("run-1", False), ("run-2", True)]
        asyncio.run(run(3, asks=False))
        assert marked() == [("run-1", False), ("run-2", True), ("run-3", True)], "it still waits"
        asyncio.run(keep.cube.clear_pending_request_if_matches("talk", question_id="q1", run_id="run-2"))
        assert marked() == [("run-1", False), ("run-2", True), ("run-3", False)], "it was asked before"
        asyncio.run(run(4, asks=True))
        asyncio.run(keep.cube.clear_pending_request_if_matches("talk", question_id="q1", run_id="run-4"))
        asyncio.run(run(5, asks=False))
        assert [interrupted for _, interrupted in marked()] == [False, True, False, True, False]
        assert ask(keep, "waiting") == []


def test_the_options_of_cube_requests(keep: threadkeep.Keep, ask: Ask) -> None:
    approve = ApproveRequest(tool_name="pay", tool_call_id="c", args={})
    options = [Option(label="Red", value="r", description="warm"), Option(label="Blue", value="b")]
    questions = AskRequest(
        questions=[Question(key="colour", prompt="?", options=options), Question(key="x", prompt="?")]
    )
    asyncio.run(_ask_in_cube(keep, approve, "a"))
    asyncio.run(_ask_in_cube(keep, questions, "b"))
    first, second = ask(keep, "waiting")
    assert [(each.value, each.subject) for each in first.options] == [
        ("approve", "pay"),
        ("deny", "pay"),
        ("edit", "pay"),
    ]
    assert second.options == (AnswerOption("r", "Red", "colour", "warm"), AnswerOption("b", "Blue", "colour"))


# --- which threads


def test_threads_are_selected_and_sorted_by_how_long_they_wait(keep: threadkeep.Keep, ask: Ask) -> None:
    graph = asking("?")(keep.checkpointer)
    for thread, user in (("b", "ada"), ("a", "bob"), ("c", "ada")):
        graph.invoke({"said": []}, {**at(thread), "metadata": {"user": user}})
    asyncio.run(_ask_in_cube(keep, ConfirmRequest(prompt="?")))

    def threads(**options: Any) -> list[str]:
        return [each.thread for each in ask(keep, "waiting", **options)]

    assert threads() == ["talk", "b", "a", "c"]
    assert threads(limit=2) == ["talk", "b"]
    assert threads(limit=0) == []
    assert threads(prefix="a") == ["a"]
    assert threads(metadata={"user": "ada"}) == ["b", "c"]
    assert threads(kind="cube") == ["talk"]
    assert threads(before="1h") == ["talk"]
    with pytest.raises(ValueError, match="match"):
        threads(match="some")


def test_copies_forks_files_keys_tenants_and_readers_show_the_same(lasting_url: str, tmp_path: Path, ask: Ask) -> None:
    def facts(keep: threadkeep.Keep) -> list[Any]:
        return sorted((each.thread, each.question, each.node, each.ns) for each in ask(keep, "waiting"))

    with threadkeep.open(lasting_url) as keep:
        start(keep, nested())
        keep.copy("t", "copied")
        keep.fork("t", to="forked")
        expected = facts(keep)
        assert [each[0] for each in expected] == ["copied", "forked", "t"]
        assert len({each[1:] for each in expected}) == 1
        keep.export(str(tmp_path / "all.tk"))
        asking_graph = nested()(keep.checkpointer)
        asking_graph.invoke(Command(resume="me"), at("forked"))
        assert [each[0] for each in facts(keep)] == ["copied", "t"]
    with threadkeep.open(lasting_url, read_only=True) as keep:
        assert [each[0] for each in facts(keep)] == ["copied", "t"]
    with threadkeep.open(f"sqlite:///{tmp_path / 'sealed.db'}", keys=KEYS, hide_ids=True) as keep:
        tenant = keep.tenant("acme")
        tenant.import_portable(str(tmp_path / "all.tk"))
        assert (facts(tenant), facts(keep)) == (expected, [])
    threadkeep.convert(lasting_url, f"sqlite:///{tmp_path / 'converted.db'}")
    with threadkeep.open(f"sqlite:///{tmp_path / 'converted.db'}") as keep:
        assert [each[0] for each in facts(keep)] == ["copied", "t"]


def test_a_rollback_and_a_new_branch_leave_the_question_behind(keep: threadkeep.Keep, ask: Ask) -> None:
    graph = start(keep, asking("?"))
    keep.rollback("t", "latest~1")
    assert [each.reason for each in ask(keep, "waiting")] == ["paused"]
    graph.invoke(None, at("t"))
    assert [each.reason for each in ask(keep, "waiting")] == ["interrupt"]


def test_the_command_shows_the_text_of_a_question_and_all_of_one_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with threadkeep.open(url) as keep:
        start(keep, asking({"question": "Pay?", "options": ["yes", "no"]}), "t")
        start(keep, asking({"amount": 3}), "u")
    assert run(["waiting", "--url", url]) == 0
    shown = capsys.readouterr().out
    assert "Pay?" in shown and "yes | no" in shown and '{"amount": 3}' in shown
    assert '"question"' not in shown


def test_a_question_that_is_nested_deep_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question: Any = {"note": 1}
    for _ in range(240):
        question = {"inner": question}
    url = f"sqlite:///{tmp_path}/keep.db"
    with threadkeep.open(url) as keep:
        start(keep, asking(question))
    assert question_text(question) is None
    assert run(["waiting", "--ids", "--url", url]) == 0
    assert run(["waiting", "--url", url]) == 0
    assert "inner" in capsys.readouterr().out


def test_a_damaged_thread_is_left_out_with_a_warning(
    tmp_path: Path, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "damaged.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        start(keep, asking("lost?"), "t")
        start(keep, asking("kept?"), "u")
    apsw.Connection(str(path)).execute(
        "UPDATE tk_writes SET body = x'00' WHERE thread = (SELECT min(thread) FROM tk_writes)"
    )
    with threadkeep.open(f"sqlite:///{path}") as keep, caplog.at_level(logging.WARNING, "threadkeep.damage"):
        assert [each.question for each in ask(keep, "waiting")] == ["kept?"]
    assert "'t'" in caplog.text
