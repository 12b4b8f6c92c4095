"""CubeLoop's own agents on `Keep.cube`: they continue in other Keeps, ask people, fork, and are listed with graphs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cubeloop import Agent, AgentToolResult, tool
from cubeloop.checkpointer.base import Checkpointer
from cubeloop.checkpointer.exceptions import (
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotClaimedError,
    RunNotCompletedError,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
)
from cubeloop.hitl import (
    ApprovalPolicyMiddleware,
    ApproveAnswer,
    AskUser,
    CheckpointedChannel,
    ConfirmRequest,
    HitlNoPendingRequest,
    HitlRequest,
    HitlStaleAnswer,
    ask_user_tool,
)
from cubeloop.middleware import Middleware
from cubeloop.providers.base import AssistantMessage, ImageContent, TextContent, ToolResultMessage, UserMessage
from cubeloop.providers.faux import FauxProvider, faux_assistant_message, faux_tool_call

import threadkeep
from checkpoint_chains import Chain, config
from row_invariants import find_problems
from sync_async import Caller
from threadkeep import Keep
from threadkeep.adapters import cubeloop as adapter
from threadkeep.backends.in_memory.backend import InMemoryBackend
from threadkeep.session import Caches, Session
from threadkeep.tenants.transport import TenantTransport
from threadkeep.transports.direct import Direct


def wrong_with(url: str) -> list[str]:
    """Return problems of the stored rows, where they can be read."""
    if url.startswith("sqlite"):
        return find_problems(Path(url.removeprefix("sqlite:///")))
    return find_problems(url) if url.startswith("postgres") else []


class Storage:
    """A storage that any number of Keeps may open, each as another process would."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._memory = InMemoryBackend()
        self._keeps: list[Keep] = []

    def open(self, *, claim_timeout: float | None = None) -> Keep:
        if self.url.startswith("memory"):
            session = Session(TenantTransport(Direct(self._memory), ""), tenant="", caches=Caches(1 << 26))
            self._keeps.append(Keep(session, None, claim_timeout=claim_timeout))
        else:
            self._keeps.append(threadkeep.open(self.url, claim_timeout=claim_timeout))
        return self._keeps[-1]

    async def close(self) -> None:
        for keep in self._keeps:
            await keep.aclose()
        assert await asyncio.to_thread(wrong_with, self.url) == []


@pytest.fixture
async def storage(url: str) -> AsyncIterator[Storage]:
    made = Storage(url)
    yield made
    await made.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock whose only number is the time in milliseconds."""
    now = [1_800_000_000_000]
    monkeypatch.setattr(adapter, "now_ms", lambda: now[0])
    return now


def says(text: str) -> AssistantMessage:
    return faux_assistant_message(text)


def calls(name: str, id: str = "call", /, **arguments: Any) -> AssistantMessage:
    return faux_assistant_message(faux_tool_call(name, arguments, id=id), stop_reason="tool_use")


def agent_on(keep: Keep, *answers: AssistantMessage, thread: str = "t", **options: Any) -> Agent[Any]:
    """Return an agent whose model gives these answers."""
    provider = FauxProvider()
    provider.set_responses(list(answers))
    return Agent(model=provider.model("m"), checkpointer=keep.cube, thread_id=thread, **options)


def user(text: str, id: str = "", run: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], id=id, run_id=run)


def roles_and_texts(messages: Any) -> list[tuple[str, str]]:
    """Return roles and texts."""
    return [(each.role, "".join(getattr(part, "text", "") for part in each.content)) for each in messages]


async def messages_of(keep: Keep, thread: str = "t") -> Any:
    found = await keep.cube.load(thread)
    assert found is not None
    return found.messages


async def statuses(keep: Keep) -> dict[str, str]:
    return {info.id: info.status for info in await keep.athreads(kind="cube")}


# --- agents


async def test_a_fresh_agent_continues_with_the_history(storage: Storage) -> None:
    keep = storage.open()
    assert isinstance(keep.cube, Checkpointer)
    first = agent_on(keep, says("hello"))
    await first.prompt("hi")
    second = agent_on(keep, says("hello again"))
    await second.prompt("hi again")
    assert len(second.state.messages) == 4
    assert await messages_of(keep) == second.state.messages
    assert second.state.messages[:2] == first.state.messages


async def test_a_fresh_agent_on_another_keep_continues_with_the_history(storage: Storage) -> None:
    said = []
    for turn in range(5):
        agent = agent_on(storage.open(), says(f"answer {turn}"))
        await agent.prompt(f"question {turn}")
        said += [("user", f"question {turn}"), ("assistant", f"answer {turn}")]
        assert roles_and_texts(agent.state.messages) == said
    assert await messages_of(storage.open()) == agent.state.messages


async def test_two_agents_on_two_threads_know_nothing_of_each_other(storage: Storage) -> None:
    keep = storage.open()
    await asyncio.gather(*(agent_on(keep, says(f"to {n}"), thread=f"t{n}").prompt(f"of {n}") for n in range(8)))
    for n in range(8):
        assert roles_and_texts(await messages_of(keep, f"t{n}")) == [("user", f"of {n}"), ("assistant", f"to {n}")]


async def test_tool_calls_and_their_results_come_back_as_they_were(storage: Storage) -> None:
    @tool
    async def look(where: str) -> AgentToolResult:
        """Look somewhere."""
        if where == "nowhere":
            raise ValueError("there is nothing")
        content = [TextContent(text=f"at {where}"), ImageContent(source="data:…", media_type="image/png")]
        return AgentToolResult(content=content, details={"seen": [1, 2.5, None, {"deep": where}], "big": 1 << 70})

    both = [faux_tool_call("look", {"where": each}, id=each) for each in ("home", "nowhere")]
    answers = [
        faux_assistant_message(list(both), stop_reason="tool_use"),
        calls("look", "c", where="é\x00\u2028"),
        says("seen"),
    ]
    agent = agent_on(storage.open(), *answers, tools=[look])
    await agent.prompt("look around")
    found = await messages_of(storage.open())
    assert found == agent.state.messages
    results = {each.tool_call_id: each for each in found if isinstance(each, ToolResultMessage)}
    assert results.keys() == {"home", "nowhere", "c"}
    assert results["home"].details == {"seen": [1, 2.5, None, {"deep": "home"}], "big": 1 << 70}
    assert results["nowhere"].is_error
    later = agent_on(storage.open(), says("yes"), tools=[look])
    await later.prompt("sure?")
    assert later.state.messages[:-2] == found


async def test_extra_that_middleware_sets_is_there_for_the_next_agent(storage: Storage) -> None:
    class Counting(Middleware):
        async def transform_context(self, messages: Any, *, ctx: Any, signal: Any = None) -> Any:
            ctx.extra["asked"] = ctx.extra.get("asked", 0) + 1
            ctx.extra["last"] = {"messages": len(messages)}
            return messages

    for turn in range(3):
        agent = agent_on(storage.open(), says("fine"), middleware=[Counting()])
        await agent.prompt("count")
        assert agent.state.extra == {"asked": turn + 1, "last": {"messages": 2 * turn + 1}}
        found = await storage.open().cube.load("t")
        assert found is not None
        assert found.extra == agent.state.extra


async def test_a_prompt_that_is_cancelled_leaves_a_thread_that_continues(storage: Storage) -> None:
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    task = asyncio.create_task(agent_on(storage.open(), calls("wait"), tools=[wait]).prompt("wait"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    agent = agent_on(storage.open(), says("well"), tools=[wait])
    await agent.prompt("and now?")
    assert [each.role for each in agent.state.messages] == ["user", "assistant", "tool_result", "user", "assistant"]
    assert await messages_of(storage.open()) == agent.state.messages


async def test_a_model_that_fails_leaves_a_thread_that_continues(storage: Storage) -> None:
    await agent_on(storage.open()).prompt("hi")  # the model has no answer
    agent = agent_on(storage.open(), says("hello"))
    await agent.prompt("hi again")
    assert roles_and_texts(agent.state.messages)[-2:] == [("user", "hi again"), ("assistant", "hello")]
    assert await messages_of(storage.open()) == agent.state.messages


# --- runs


async def test_a_prompt_claims_its_run_and_completes_it(storage: Storage) -> None:
    keep, other = storage.open(), storage.open()
    seen: list[Any] = []

    @tool
    async def claim() -> str:
        """Claim the run that is in progress."""
        with pytest.raises(RunAlreadyClaimedError):
            await other.cube.claim_run("t", "r")
        seen.append(await statuses(other))
        return "refused"

    await agent_on(keep, calls("claim"), says("done"), tools=[claim]).prompt("go", run_id="r")
    assert seen == [{"t": "pending"}]
    assert await statuses(other) == {"t": "idle"}
    for each in (keep, other, storage.open()):
        with pytest.raises(RunAlreadyCompletedError):
            await agent_on(each, says("again")).prompt("go", run_id="r")
        with pytest.raises(RunAlreadyCompletedError):
            await each.cube.append("t", [user("late", run="r")])
        await each.cube.mark_run_complete("t", "r")
    assert len(await messages_of(keep)) == 4


async def test_a_run_that_nobody_claimed_cannot_be_completed(storage: Storage) -> None:
    keep = storage.open()
    with pytest.raises(RunNotClaimedError):
        await keep.cube.mark_run_complete("t", "r")
    assert await keep.athreads() == []
    await keep.cube.append("t", [user("hi", run="r")])
    with pytest.raises(RunNotClaimedError):
        await keep.cube.mark_run_complete("t", "r")
    await keep.cube.claim_run("t", "r")
    await keep.cube.mark_run_complete("t", "r")


async def test_a_run_that_was_interrupted_can_be_claimed_after_the_timeout_and_not_before(
    storage: Storage, clock: list[int]
) -> None:
    await storage.open().cube.claim_run("t", "r")
    keep = storage.open(claim_timeout=10)
    clock[0] += 9_999
    with pytest.raises(RunAlreadyClaimedError):
        await keep.cube.claim_run("t", "r")
    clock[0] += 1
    await keep.cube.claim_run("t", "r")
    with pytest.raises(RunAlreadyClaimedError):
        await storage.open(claim_timeout=10).cube.claim_run("t", "r")
    clock[0] += 1_000_000
    with pytest.raises(RunAlreadyClaimedError):
        await storage.open().cube.claim_run("t", "r")
    await keep.cube.mark_run_complete("t", "r")
    clock[0] += 1_000_000
    with pytest.raises(RunAlreadyCompletedError):
        await storage.open(claim_timeout=10).cube.claim_run("t", "r")


async def test_a_message_is_a_sign_of_life_of_its_run(storage: Storage, clock: list[int]) -> None:
    keep, other = storage.open(), storage.open(claim_timeout=10)
    await keep.cube.claim_run("t", "r")
    for n in range(3):
        clock[0] += 9_000
        await keep.cube.append("t", [user(f"{n}", f"{n}", "r")])
        await keep.cube.append("t", [user(f"of another {n}", f"o{n}", "another")])
        with pytest.raises(RunAlreadyClaimedError):
            await other.cube.claim_run("t", "r")
    clock[0] += 9_000
    await keep.cube.append("t", [user("of another", "o", "another")])
    clock[0] += 1_000
    await other.cube.claim_run("t", "r")
    assert len(await messages_of(other)) == 7


async def test_an_agent_that_crashed_is_followed_by_one_that_claims_its_run(storage: Storage, clock: list[int]) -> None:
    crashed = storage.open()
    await crashed.cube.claim_run("t", "r")
    await crashed.cube.append("t", [user("go", "1", "r")])
    agent = agent_on(storage.open(claim_timeout=10), says("done"))
    with pytest.raises(RunAlreadyClaimedError):
        await agent.prompt("go", run_id="r")
    clock[0] += 10_000
    await agent.prompt("go on", run_id="r")
    assert roles_and_texts(await messages_of(storage.open())) == [
        ("user", "go"),
        ("user", "go on"),
        ("assistant", "done"),
    ]
    assert await statuses(storage.open()) == {"t": "idle"}


# --- questions


def asking(keep: Keep, *answers: AssistantMessage, run: str = "r", **options: Any) -> Agent[Any]:
    """Return an agent that may ask people."""
    channel = CheckpointedChannel(checkpointer=keep.cube, thread_id="t", run_id=run)
    return agent_on(keep, *answers, tools=[ask_user_tool(channel)], channel=channel, **options)


def asks(text: str, id: str = "call") -> AssistantMessage:
    return calls("ask_user", id, questions=[{"key": "k", "prompt": text}])


async def until_it_asks(agent: Agent[Any], work: Any) -> HitlRequest:
    """Let an agent work until it asks a question, and leave it there."""
    assert agent.channel is not None
    asked, done = asyncio.ensure_future(anext(agent.channel.subscribe())), asyncio.ensure_future(work)
    await asyncio.wait([asked, done], return_when=asyncio.FIRST_COMPLETED)
    await agent.detach()
    await done
    assert agent.state.last_outcome == "suspended"
    return asked.result()


async def test_a_question_is_answered_in_another_keep_and_the_run_continues_there(storage: Storage) -> None:
    first = asking(storage.open(), asks("which colour?"))
    asked = await until_it_asks(first, first.prompt("paint", run_id="r"))
    keep = storage.open()
    assert await statuses(keep) == {"t": "interrupted"}
    assert await keep.cube.load_pending("t") == (asked, "r")
    assert await keep.cube.load_pending_request("t") == asked
    second = asking(keep, says("red it is"))
    with pytest.raises(HitlStaleAnswer):
        await second.respond(question_id="another", answer={"k": "blue"})
    await second.respond(question_id=asked.question_id, answer={"k": "red"})
    assert [each.role for each in second.state.messages] == ["user", "assistant", "tool_result", "assistant"]
    assert '"red"' in roles_and_texts(second.state.messages)[2][1]
    other = storage.open()
    assert await messages_of(other) == second.state.messages
    assert await other.cube.load_pending("t") is None
    assert await other.cube.load_hitl_answer("t", asked.question_id, run_id="r") is None
    assert await statuses(other) == {"t": "idle"}
    with pytest.raises(RunAlreadyCompletedError):
        await other.cube.claim_run("t", "r")
    with pytest.raises(HitlNoPendingRequest):
        await asking(other).respond(answer={"k": "green"})


async def test_one_question_after_the_other_is_answered_in_keep_after_keep(storage: Storage) -> None:
    agent = asking(storage.open(), asks("first?", "1"))
    work = agent.prompt("go", run_id="r")
    for turn in range(3):
        await until_it_asks(agent, work)
        agent = asking(storage.open(), asks(f"next, after {turn}?", f"{turn + 2}") if turn < 2 else says("done"))
        work = agent.respond(answer={"k": f"answer {turn}"})
    await work
    assert [each.role for each in agent.state.messages] == ["user", *["assistant", "tool_result"] * 3, "assistant"]
    assert await messages_of(storage.open()) == agent.state.messages


async def test_answers_are_kept_for_a_tool_that_asks_again_from_its_beginning(storage: Storage) -> None:
    def confirming(keep: Keep, *answers: AssistantMessage) -> Agent[Any]:
        channel = CheckpointedChannel(checkpointer=keep.cube, thread_id="t", run_id="r", allow_inside_custom_tool=True)

        @tool
        async def launch() -> str:
            """Launch, if confirmed twice."""
            return f"{[await channel.confirm(f'{each}?') for each in ('sure', 'really', 'really')]}"

        return agent_on(keep, *answers, tools=[launch], channel=channel)

    agent = confirming(storage.open(), calls("launch"))
    asked = [await until_it_asks(agent, agent.prompt("launch", run_id="r"))]
    for answer in (True, False):
        agent = confirming(storage.open())
        asked.append(await until_it_asks(agent, agent.respond(answer=answer)))
    assert [each.payload.prompt for each in asked if isinstance(each.payload, ConfirmRequest)] == [
        "sure?",
        "really?",
        "really?",
    ]
    cube = storage.open().cube
    ids = [each.question_id for each in asked]
    assert [await cube.load_hitl_answer("t", each, run_id="r") for each in ids] == [True, False, None]
    agent = confirming(storage.open(), says("launched"))
    await agent.respond(answer=True)
    assert roles_and_texts(agent.state.messages)[2:] == [
        ("tool_result", "[True, False, True]"),
        ("assistant", "launched"),
    ]
    assert [await cube.load_hitl_answer("t", each, run_id="r") for each in ids] == [None] * 3


@pytest.mark.parametrize("decision", ["approve", "edit", "deny"])
async def test_a_tool_call_is_approved_in_another_keep(storage: Storage, decision: Any) -> None:
    @tool
    async def remove(name: str) -> str:
        """Remove something."""
        return f"removed {name}"

    def careful(keep: Keep, *answers: AssistantMessage) -> Agent[Any]:
        channel = CheckpointedChannel(checkpointer=keep.cube, thread_id="t", run_id="r")
        policy = ApprovalPolicyMiddleware(channel, lambda _: AskUser())
        return agent_on(keep, *answers, tools=[remove], middleware=[policy], channel=channel)

    agent = careful(storage.open(), calls("remove", name="all"))
    asked = await until_it_asks(agent, agent.prompt("clean up", run_id="r"))
    assert asked.question_id == "call"
    agent = careful(storage.open(), says("done"))
    edited = {"name": "some"} if decision == "edit" else None
    await agent.respond(answer=ApproveAnswer(decision=decision, edited_args=edited, reason="why not"))
    result = (await messages_of(storage.open()))[2]
    assert result.is_error == (decision == "deny")
    if decision != "deny":
        assert roles_and_texts([result]) == [("tool_result", f"removed {'some' if edited else 'all'}")]


async def test_a_question_is_dropped_in_another_keep_and_the_cube_thread_is_closed(storage: Storage) -> None:
    first = asking(storage.open(), asks("which colour?"))
    asked = await until_it_asks(first, first.prompt("paint", run_id="r"))
    keep = storage.open()
    await keep.cube.save_hitl_answer("t", asked.question_id, {"k": "red"}, run_id="r")
    await asking(keep).abort_pending("too late")
    other = storage.open()
    found = await messages_of(other)
    assert [each.role for each in found] == ["user", "assistant", "tool_result", "assistant"]
    assert found[2].is_error
    assert found[3].stop_reason == "aborted"
    assert await other.cube.load_pending("t") is None
    assert await other.cube.load_hitl_answer("t", asked.question_id, run_id="r") is None
    assert await statuses(other) == {"t": "pending"}  # the run was claimed and is not complete
    agent = agent_on(storage.open(), says("hello"))
    await agent.prompt("again")
    assert agent.state.messages[:4] == found


async def test_a_question_is_settled_by_its_id_and_run_only(storage: Storage) -> None:
    agent = asking(storage.open(), asks("which colour?"))
    asked = await until_it_asks(agent, agent.prompt("paint", run_id="r"))
    cube = storage.open().cube
    settle = cube.clear_pending_request_if_matches
    assert not await settle("t", question_id="another", run_id="r")
    assert not await settle("t", question_id=asked.question_id, run_id="another")
    assert not await settle("u", question_id=asked.question_id, run_id="r")
    assert await cube.load_pending("t") == (asked, "r")
    assert await settle("t", question_id=asked.question_id, run_id="r")
    assert not await settle("t", question_id=asked.question_id, run_id="r")
    assert await storage.open().cube.load_pending("t") is None
    assert [info.id for info in await storage.open().athreads()] == ["t"]


# --- forks


async def three_runs(keep: Keep) -> Agent[Any]:
    """Write a thread with a message of no run, two completed runs, and one that was aborted."""
    await keep.cube.append("t", [user("before", "0")])
    agent = agent_on(keep, says("one"), says("two"))
    await agent.prompt("1", run_id="r1")
    await agent.prompt("2", run_id="r2")
    await keep.cube.claim_run("t", "r3")
    await keep.cube.append("t", [user("3", "broken", "r3")])
    await keep.cube.save_extra("t", {"note": {"a": 1}})
    return agent


UP_TO = {"r1": ["before", "1", "one"], "r2": ["before", "1", "one", "2", "two"]}


@pytest.mark.parametrize("run", UP_TO)
async def test_a_fork_has_the_messages_up_to_a_run_and_continues_independently(
    storage: Storage, run: str, call: Caller
) -> None:
    keep = storage.open()
    agent = await three_runs(keep)
    await agent.fork("t", "f", after_run_id=run, metadata={"why": "try"})
    found = await storage.open().cube.load("f")
    assert found is not None
    assert [text for _, text in roles_and_texts(found.messages)] == UP_TO[run]
    assert found.messages == agent.state.messages[: len(UP_TO[run])]
    assert (found.extra, found.parent_thread_id) == ({"note": {"a": 1}, "fork": {"why": "try"}}, "t")
    assert await call(keep, "delete", "t")
    other = agent_on(storage.open(), says("otherwise"), thread="f")
    await other.prompt("and now?", run_id="r3")
    assert [text for _, text in roles_and_texts(await messages_of(keep, "f"))] == [*UP_TO[run], "and now?", "otherwise"]
    with pytest.raises(RunAlreadyCompletedError):
        await keep.cube.claim_run("f", run)
    await keep.cube.append("f", [user("before", "0")])  # it already exists
    assert len(await messages_of(keep, "f")) == len(UP_TO[run]) + 2
    await agent_on(keep, thread="f").fork("f", "g", after_run_id="r3")
    assert await messages_of(storage.open(), "g") == await messages_of(keep, "f")


@pytest.mark.parametrize("run", UP_TO)
async def test_a_probe_has_the_messages_up_to_a_run_and_leaves_no_trace(storage: Storage, run: str) -> None:
    await three_runs(storage.open())
    keep = storage.open()
    before = await keep.cube.load("t")
    seen: list[Any] = []

    def look(messages: Any, *_: Any) -> AssistantMessage:
        seen.extend(roles_and_texts(messages))
        return says("probed")

    result = await agent_on(keep, look).fork_once("t", "what if?", after_run_id=run)  # type: ignore[arg-type]
    assert result.text == "probed"
    assert [text for _, text in seen] == [*UP_TO[run], "what if?"]
    assert [text for _, text in roles_and_texts(await keep.cube.snapshot("t", after_run_id=run))] == UP_TO[run]
    assert await storage.open().cube.load("t") == before
    assert [info.id for info in await keep.athreads()] == ["t"]


async def test_a_fork_needs_a_completed_run_a_source_and_a_new_thread(storage: Storage) -> None:
    keep = storage.open()
    agent = await three_runs(keep)
    await keep.cube.append("taken", [user("mine")])
    for run in ("r3", "unknown"):
        with pytest.raises(RunNotCompletedError):
            await agent.fork("t", "f", after_run_id=run)
        with pytest.raises(RunNotCompletedError):
            await keep.cube.snapshot("t", after_run_id=run)
    with pytest.raises(ThreadNotFoundError):
        await agent.fork("nowhere", "f", after_run_id="r1")
    with pytest.raises(ThreadNotFoundError):
        await keep.cube.snapshot("nowhere", after_run_id="r1")
    for target in ("taken", "t"):
        with pytest.raises(ThreadAlreadyExistsError):
            await agent.fork("t", target, after_run_id="r1")
    assert {info.id for info in await keep.athreads()} == {"t", "taken"}
    assert roles_and_texts(await messages_of(keep, "taken")) == [("user", "mine")]


# --- both kinds of thread


async def both(storage: Storage) -> Keep:
    """Write a graph thread and a cube thread with the same id."""
    keep = storage.open()
    chain = Chain(keep.checkpointer, run="r")
    for n in range(3):
        await chain.aput({"messages": [f"message {each}" for each in range(n + 1)]})
    await agent_on(keep, says("hello")).prompt("hi", run_id="r")
    return keep


async def test_the_catalogue_lists_threads_of_both_kinds_under_one_id(storage: Storage) -> None:
    await both(storage)
    keep = storage.open()
    assert {(info.id, info.kind) for info in await keep.athreads()} == {("t", "graph"), ("t", "cube")}
    for kind in ("graph", "cube"):
        assert [info.kind for info in await keep.athreads(kind=kind)] == [kind]
        assert [info.kind for info in await keep.athreads(kind=kind, prefix="t", order="id")] == [kind]
    assert roles_and_texts(await messages_of(keep)) == [("user", "hi"), ("assistant", "hello")]
    found = await keep.checkpointer.aget_tuple(config("t"))
    assert found is not None


@pytest.mark.parametrize("kind", ["graph", "cube"])
async def test_deleting_a_thread_of_one_kind_leaves_the_other(storage: Storage, call: Caller, kind: str) -> None:
    keep = await both(storage)
    assert await call(keep, "delete", "t", kind=kind)
    other = "cube" if kind == "graph" else "graph"
    assert [info.kind for info in await storage.open().athreads()] == [other]
    assert (await keep.cube.load("t") is None) == (kind == "cube")
    assert (await keep.checkpointer.aget_tuple(config("t")) is None) == (kind == "graph")
    assert not await call(keep, "delete", "t", kind=kind)
    assert await call(keep, "delete", "t")
    assert await storage.open().athreads() == []


async def test_deleting_a_graphs_thread_through_its_saver_leaves_the_cube_thread(
    storage: Storage, call: Caller
) -> None:
    keep = await both(storage)
    before = await keep.cube.load("t")
    await call(keep.checkpointer, "prune", ["t"])
    await call(keep.checkpointer, "copy_thread", "t", "copy")
    await call(keep.checkpointer, "delete_thread", "t")
    assert await storage.open().cube.load("t") == before
    assert await storage.open().cube.load("copy") is None
    assert {(info.id, info.kind) for info in await keep.athreads()} == {("t", "cube"), ("copy", "graph")}
    await call(keep.checkpointer, "delete_for_runs", ["r"])
    assert await storage.open().cube.load("t") == before
    assert [(info.id, info.kind) for info in await keep.athreads()] == [("t", "cube")]


@pytest.mark.parametrize("verb", ["delete", "prune", "copy"])
async def test_an_id_of_both_kinds_needs_its_kind(storage: Storage, call: Caller, verb: str) -> None:
    keep = await both(storage)
    more = ["copy"] if verb == "copy" else []
    with pytest.raises(ValueError, match="kind"):
        await call(keep, verb, "t", *more)
    with pytest.raises(ValueError, match="kind"):
        await call(keep, verb, "t", *more, kind="another")
    assert len(await keep.athreads()) == 2
    assert was_there(await call(keep, verb, "t", *more, kind="cube"))
    assert not was_there(await call(keep, verb, "nowhere", *more))


def was_there(answer: bool | threadkeep.PruneResult) -> bool:
    return answer.examined == 1 if isinstance(answer, threadkeep.PruneResult) else answer


# --- upkeep


async def a_full_talk(storage: Storage) -> HitlRequest:
    """Write messages with and without runs, extra, a pending question, an answer, completed and open runs."""
    keep = storage.open()
    await three_runs(keep)
    agent = asking(keep, asks("which colour?"), run="r4")
    asked = await until_it_asks(agent, agent.prompt("paint", run_id="r4"))
    await keep.cube.save_hitl_answer("t", "q", {"k": ["v"]}, run_id="r4")
    await keep.cube.save_hitl_answer("t", "q", False)
    return asked


async def all_of(keep: Keep, thread: str) -> Any:
    """Return everything in a cube thread, except its runs."""
    cube = keep.cube
    answers = [await cube.load_hitl_answer(thread, "q", run_id=run) for run in ("r4", None, "r1")]
    snapshots = [await cube.snapshot(thread, after_run_id=run) for run in UP_TO]
    return await cube.load(thread), await cube.load_pending(thread), answers, snapshots


async def check_runs(keep: Keep, thread: str) -> None:
    for run, error in {"r1": RunAlreadyCompletedError, "r2": RunAlreadyCompletedError, "r3": RunAlreadyClaimedError,
                       "r4": RunAlreadyClaimedError}.items():  # fmt: skip
        with pytest.raises(error):
            await keep.cube.claim_run(thread, run)
    before = await messages_of(keep, thread)
    await keep.cube.append(thread, [user("again", each.id, each.run_id) for each in before])
    assert await messages_of(keep, thread) == before
    await keep.cube.mark_run_complete(thread, "r3")
    assert len(await keep.cube.snapshot(thread, after_run_id="r3")) == 6


async def test_pruning_a_cube_thread_keeps_everything_that_load_returns(storage: Storage, call: Caller) -> None:
    asked = await a_full_talk(storage)
    keep = storage.open()
    before = await all_of(keep, "t")
    assert before[1] == (asked, "r4")
    assert [len(each) for each in before[3]] == [3, 5]
    info = (await keep.athreads())[0]
    assert info.checkpoints > 1
    assert was_there(await call(keep, "prune", "t"))
    pruned = (await keep.athreads())[0]
    assert pruned.checkpoints == 1
    assert pruned.bytes <= info.bytes
    assert pruned.status == info.status == "interrupted"
    for each in (keep, storage.open()):
        assert await all_of(each, "t") == before
    assert was_there(await call(keep, "prune", "t"))
    assert await all_of(keep, "t") == before
    await check_runs(keep, "t")
    second = asking(storage.open(), says("red"), run="r4")
    await second.respond(answer={"k": "red"})
    assert await messages_of(storage.open()) == second.state.messages


async def test_a_copy_of_a_cube_thread_has_everything_and_survives_its_source(storage: Storage, call: Caller) -> None:
    await a_full_talk(storage)
    keep = storage.open()
    before = await all_of(keep, "t")
    assert await call(keep, "copy", "t", "copy")
    await check_runs(keep, "t")
    assert await all_of(storage.open(), "copy") == before
    assert await statuses(keep) == {"t": "interrupted", "copy": "interrupted"}
    assert await call(keep, "delete", "t")
    for each in (keep, storage.open()):
        assert await all_of(each, "copy") == before
    await check_runs(storage.open(), "copy")
    with pytest.raises(RunAlreadyClaimedError):
        await keep.cube.claim_run("copy", "r4")


async def test_a_cube_thread_is_not_copied_onto_another(storage: Storage, call: Caller) -> None:
    await a_full_talk(storage)
    keep = storage.open()
    await keep.cube.append("other", [user("mine")])
    before = await all_of(keep, "t")
    with pytest.raises(ValueError, match="other"):
        await call(keep, "copy", "t", "other")
    assert await call(keep, "copy", "t", "t")
    assert await all_of(keep, "t") == before
    assert roles_and_texts(await messages_of(keep, "other")) == [("user", "mine")]
    await check_runs(keep, "t")


async def test_a_deleted_cube_thread_can_start_again(storage: Storage, call: Caller) -> None:
    await a_full_talk(storage)
    keep, other = storage.open(), storage.open()
    assert len(await messages_of(other)) == 8
    assert await call(keep, "delete", "t")
    for each in (keep, other):
        assert await each.cube.load("t") is None
        assert await each.cube.load_pending("t") is None
        assert await each.cube.load_hitl_answer("t", "q") is None
    agent = agent_on(other, says("hello"))
    await agent.prompt("hi", run_id="r1")
    assert roles_and_texts(await messages_of(keep)) == [("user", "hi"), ("assistant", "hello")]


async def test_upkeep_of_an_unknown_cube_thread_is_an_error(storage: Storage, call: Caller) -> None:
    keep = storage.open()
    assert not await call(keep, "delete", "t", kind="cube")
    assert not was_there(await call(keep, "prune", "t", kind="cube"))
    assert not await call(keep, "copy", "t", "u", kind="cube")
    assert await keep.athreads() == []


async def test_the_status_of_a_cube_thread_follows_its_runs_and_questions(storage: Storage) -> None:
    keep, other = storage.open(), storage.open()
    cube = keep.cube
    asked = HitlRequest(question_id="q", thread_id="t", payload=ConfirmRequest(prompt="?"), created_at=1.5)
    steps: list[tuple[Callable[[], Any], str]] = [
        (lambda: cube.append("t", [user("hi")]), "idle"),
        (lambda: cube.claim_run("t", "r"), "pending"),
        (lambda: cube.append("t", [user("hi", run="r")]), "pending"),
        (lambda: cube.save_extra("t", {"a": 1}), "pending"),
        (lambda: cube.save_pending_request("t", asked, run_id="r"), "interrupted"),
        (lambda: cube.save_extra("t", {"a": 2}), "interrupted"),
        (lambda: cube.claim_run("t", "s"), "interrupted"),
        (lambda: other.cube.save_hitl_answer("t", "q", answer=True), "interrupted"),
        (lambda: other.cube.save_pending_request("t", None), "pending"),
        (lambda: cube.mark_run_complete("t", "r"), "pending"),
        (lambda: other.cube.mark_run_complete("t", "s"), "idle"),
        (lambda: cube.save_pending_request("t", asked, run_id="s"), "interrupted"),
        (lambda: cube.clear_pending_request_if_matches("t", question_id="q", run_id="s"), "idle"),
    ]
    for step, status in steps:
        await step()
        assert await statuses(other) == {"t": status}
        assert [info.id for info in await keep.athreads(status=status)] == ["t"]


# --- changes by other Keeps


def sure(id: str = "q") -> HitlRequest:
    return HitlRequest(question_id=id, thread_id="t", payload=ConfirmRequest(prompt="?"), created_at=1.5)


async def completed(keep: Keep, run: str) -> None:
    await keep.cube.claim_run("t", run)
    await keep.cube.mark_run_complete("t", run)


async def parents(keep: Keep, *threads: str) -> list[str | None]:
    return [found.parent_thread_id if (found := await keep.cube.load(each)) else "not there" for each in threads]


UNSEEN: dict[str, tuple[Callable[[Keep], Any], Callable[[Keep], Any], Callable[[Keep], Any], Any]] = {
    "a question is withdrawn": (
        lambda other: other.cube.save_pending_request("t", sure(), run_id="r"),
        lambda keep: keep.cube.save_pending_request("t", None),
        lambda other: other.cube.load_pending("t"),
        None,
    ),
    "a question is settled": (
        lambda other: other.cube.save_pending_request("t", sure(), run_id="r"),
        lambda keep: keep.cube.clear_pending_request_if_matches("t", question_id="q", run_id="r"),
        lambda other: other.cube.load_pending("t"),
        None,
    ),
    "a run is completed": (
        lambda other: other.cube.claim_run("t", "r"),
        lambda keep: keep.cube.mark_run_complete("t", "r"),
        statuses,
        {"t": "idle"},
    ),
    "answers are dropped": (
        lambda other: other.cube.save_hitl_answer("t", "q", answer=True),
        lambda keep: keep.cube.clear_hitl_answers("t"),
        lambda other: other.cube.load_hitl_answer("t", "q"),
        None,
    ),
    "a message is added again": (
        lambda other: other.adelete("t"),
        lambda keep: keep.cube.append("t", [user("again", "1")]),
        lambda other: messages_of(other),
        [user("again", "1")],
    ),
    "a run is claimed again": (
        lambda other: other.adelete("t"),
        lambda keep: keep.cube.claim_run("t", "open"),
        statuses,
        {"t": "pending"},
    ),
    "a run is forked": (
        lambda other: completed(other, "r"),
        lambda keep: keep.cube.fork("t", "f", after_run_id="r"),
        lambda other: parents(other, "t", "f"),
        [None, "t"],
    ),
}
"""What another Keep does unseen, what this one does next, and what is read afterwards."""


@pytest.mark.parametrize("name", UNSEEN)
async def test_what_another_keep_did_meanwhile_counts(storage: Storage, name: str) -> None:
    unseen, then, seen, expected = UNSEEN[name]
    keep, other = storage.open(), storage.open()
    await keep.cube.claim_run("t", "open")
    await keep.cube.append("t", [user("hi", "1")])
    if "completed" in name:
        await keep.cube.mark_run_complete("t", "open")
    await unseen(other)
    assert await then(keep) in (None, True)
    assert await seen(other) == expected
    assert await seen(keep) == expected


# --- ids that are not valid text


async def test_a_question_that_is_named_by_a_number_is_answered_by_it_and_by_its_text(url: str) -> None:
    async with threadkeep.open(url) as keep:
        await keep.cube.save_hitl_answer("t", 5, "yes", run_id=7)  # type: ignore[arg-type]
        assert await keep.cube.load_hitl_answer("t", 5, run_id=7) == "yes"  # type: ignore[arg-type]
        assert await keep.cube.load_hitl_answer("t", "5", run_id="7") == "yes"
        await keep.cube.clear_hitl_answers("t", [5], run_id=7)  # type: ignore[list-item, arg-type]
        assert await keep.cube.load_hitl_answer("t", "5", run_id="7") is None
        with pytest.raises(TypeError, match="question_ids"):
            await keep.cube.clear_hitl_answers("t", "5")
        with pytest.raises(TypeError, match="question_id"):
            await keep.cube.save_hitl_answer("t", None, "yes")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="HitlRequest"):
            await keep.cube.save_pending_request("t", {"question_id": "q"})  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1, "1", True, float("nan")])
def test_a_claim_timeout_that_is_no_time_is_refused(seconds: object) -> None:
    with pytest.raises(ValueError, match="claim_timeout"):
        threadkeep.open("memory://", claim_timeout=seconds)  # type: ignore[arg-type]
