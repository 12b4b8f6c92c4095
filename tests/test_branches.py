"""rollback and fork: one new row with the target's contents, from which a graph or cube thread continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cubeloop.hitl.types import ConfirmRequest, HitlRequest
from cubeloop.providers.base import TextContent, UserMessage
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.types import Command

import shared_pool
import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from graph_scenarios import THREAD, chat, nested, replies, two_questions
from row_invariants import find_problems
from sync_async import Caller
from test_crashes import PAST, CrashingStorage, location_of, message_list
from test_crashes import do as act
from test_crashes import put as put_args
from test_delta_graphs import build as delta_graph
from test_delta_graphs import turns as delta_turns
from test_plans import KEY, Bench, put, writes
from threadkeep.engine.requests import Commit, LoadThreadRows, Pause
from threadkeep.engine.threads import rollback as engine_rollback
from threadkeep.engine.threads.rollback import BranchStamp, new_checkpoint_id
from threadkeep.errors import Conflict, Missing, Unavailable
from threadkeep.jobs import rollback as rollback_job
from threadkeep.plan import Request

SHORT = put_args("t", "3", "2", messages=message_list(3), run="second")
"""Replaces a long value, whose handling takes long."""
SEED = [f"ckpt_{n:03}" for n in range(1, 7)]


def location(url: str) -> Path | str | None:
    return None if url == "memory://" else Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else url


def check(url: str) -> None:
    if location(url) is not None:
        assert find_problems(location(url)) == []  # type: ignore[arg-type]


def at(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def id_of(state: Any) -> str:
    id: str = state.config["configurable"]["checkpoint_id"]
    return id


async def run_turns(call: Caller, graph: Any, count: int, *, start: int = 0, thread: str = "1") -> None:
    for n in range(start, start + count):
        await call(graph, "invoke", {"messages": [HumanMessage(f"q{n}", id=f"h{n}")]}, at(thread))


# --- LangGraph's threads


def test_a_rollback_is_one_row_and_stores_no_value_again(url: str) -> None:
    """ckpt_004 -> 005 -> 006, back to 005: ckpt_007 with 005 as its parent; 006 stays."""
    with threadkeep.open(url) as keep:
        chain = Chain(keep.checkpointer, run="run")
        for n, id in enumerate(SEED):
            chain.put(
                {"messages": [f"message {m} " * 40 for m in range(n + 1)], "files": {"f": "x" * 900}}, id=id, user="u"
            )
        before = keep.thread("t")
        branches = keep.rollback("t", "ckpt_005")
        assert (branches.id, branches.parent, branches.forked_from) == ("ckpt_007", "ckpt_005", "ckpt_005")
        assert list_ids(keep.checkpointer) == ["ckpt_007", *reversed(SEED)]
        found = keep.checkpointer.get_tuple(config("t"))
        target = keep.checkpointer.get_tuple(config("t", "ckpt_005"))
        assert found is not None
        assert target is not None
        assert found.config == branches.config
        assert found.metadata == target.metadata | {"source": "fork", "step": 5, "forked_from": "ckpt_005"}
        for key in ("channel_values", "channel_versions", "versions_seen", "v"):
            assert found.checkpoint[key] == target.checkpoint[key]  # type: ignore[literal-required]
        assert found.checkpoint["ts"] > target.checkpoint["ts"]
        after = keep.thread("t")
        assert before is not None
        assert after is not None
        assert after.bytes - before.bytes < 500
        assert (after.checkpoints, after.step, after.source, after.status) == (7, 5, "fork", "idle")
        assert [info.id for info in keep.threads(metadata={"forked_from": "ckpt_005"})] == ["t"]
        check(url)


def test_a_tag_stays_with_the_checkpoint_that_it_was_given_to() -> None:
    with threadkeep.open("memory://") as keep:
        chain = Chain(keep.checkpointer)
        for n in range(2):
            chain.put({"x": n}, user="u")
        keep.tag("t", "00000000", "release")
        for branches in (keep.rollback("t", "00000000"), keep.fork("t", "00000000")):
            found = keep.checkpointer.get_tuple(branches.config)
            assert found is not None
            assert ("tag" in found.metadata, found.metadata["user"]) == (False, "u")


async def test_a_conversation_continues_from_where_it_was_rolled_back_to(url: str, call: Caller) -> None:
    async with threadkeep.open(url) as keep:
        graph = chat(replies)(keep.checkpointer)
        await run_turns(call, graph, 3)
        history = await call.every(graph, "get_state_history", THREAD)
        for target in history:
            branches = await call(keep, "rollback", "1", id_of(target))
            state = await call(graph, "get_state", THREAD)
            assert (state.values, state.next) == (target.values, target.next)
            assert id_of(state) == branches.id > max(map(id_of, history))
            assert state.parent_config == target.config
        first = next(state for state in reversed(history) if not state.next)
        await call(keep, "rollback", "1", id_of(first))
        await run_turns(call, graph, 1, start=7)
        found = (await call(graph, "get_state", THREAD)).values["messages"]
        assert [message.content for message in found] == ["q0", "answer 1 🦜", "q7", "answer 3 🦜"]
        assert (await call(graph, "get_state", history[0].config)) == history[0], "the old branch is still there"
        check(url)


async def test_a_question_is_asked_and_answered_again_after_a_rollback(url: str, call: Caller) -> None:
    async with threadkeep.open(url) as keep:
        graph = two_questions(keep.checkpointer)
        asked = await call(graph, "invoke", {"said": ["go"]}, THREAD)
        waiting = await call(graph, "get_state", THREAD)
        await call(graph, "invoke", Command(resume={each.id: "A" for each in asked["__interrupt__"]}), THREAD)
        await call(keep, "rollback", "1", id_of(waiting))
        info = await call(keep, "thread", "1")
        assert (info.status, (await call(graph, "get_state", THREAD)).next) == ("pending", ("left", "right"))
        again = await call(graph, "invoke", None, THREAD)
        assert [each.value for each in again["__interrupt__"]] == ["left?", "right?"]
        done = await call(graph, "invoke", Command(resume={each.id: "B" for each in again["__interrupt__"]}), THREAD)
        assert done["said"] == ["go", "left B", "right B", "after"]


async def test_a_question_that_waits_can_be_answered_in_a_fork_and_in_its_thread(url: str, call: Caller) -> None:
    async with threadkeep.open(url) as keep:
        for name, build in {"two": two_questions, "nested": nested()}.items():
            graph = build(keep.checkpointer)
            await call(graph, "invoke", {"said": ["go"]}, at(name))
            branches = await call(keep, "fork", name, to=f"{name}'s fork")
            assert (await call(keep, "thread", branches.thread)).status == "interrupted"
            outcomes = {}
            for thread in (branches.thread, name):
                asked = (await call(graph, "get_state", at(thread))).interrupts
                done = await call(graph, "invoke", Command(resume={each.id: "yes" for each in asked}), at(thread))
                outcomes[thread] = done["said"]
            assert outcomes[name] == outcomes[branches.thread]
            assert "__interrupt__" not in outcomes
        check(url)


async def test_a_fork_in_the_middle_leaves_out_what_came_after(url: str, call: Caller) -> None:
    """The later step's answers are writes on the target: they belong to its child."""
    async with threadkeep.open(url) as keep:
        graph = nested()(keep.checkpointer)
        await call(graph, "invoke", {"said": ["go"]}, THREAD)
        waiting = await call(graph, "get_state", THREAD)
        await call(graph, "invoke", Command(resume="first"), THREAD)
        await call(keep, "fork", "1", id_of(waiting), to="2")
        await call(keep, "delete", "1")
        state = await call(graph, "get_state", at("2"))
        assert (state.values, state.next, state.interrupts) == (waiting.values, waiting.next, ())
        assert len(await call.every(keep.checkpointer, "list", at("2"))) == 2
        await call(graph, "invoke", None, at("2"))
        done = await call(graph, "invoke", Command(resume="second"), at("2"))
        assert done["said"][-1] == "heard second"
        check(url)


async def test_a_branch_of_a_delta_graph_has_only_its_own_past(url: str, call: Caller) -> None:
    async with threadkeep.open(url) as keep:
        graph = delta_graph(keep.checkpointer, frequency=2)
        await delta_turns(call, graph, 3)
        history = await call.every(graph, "get_state_history", THREAD)
        for n, target in enumerate(history[::4]):
            branches = await call(keep, "rollback", "1", id_of(target))
            assert branches.parent == (target.parent_config and id_of_config(target.parent_config))
            await call(keep, "fork", "1", id_of(target), to=f"f{n}")
            question = None if target.next else {"messages": [HumanMessage("more", id="more")]}
            if target.next:
                await call(graph, "invoke", None, target.config)  # writes on the target again
            ends = []
            for thread in (branches.config, at(f"f{n}")):
                state = await call(graph, "get_state", thread)
                assert (state.values, state.next) == (target.values, target.next)
                ends.append(await call(graph, "invoke", question, thread))
            assert ends[0] == ends[1]
        check(url)


def id_of_config(config: Any) -> str:
    id: str = config["configurable"]["checkpoint_id"]
    return id


async def test_string_versions_continue_as_strings_after_a_rollback(url: str, call: Caller) -> None:
    peer = InMemorySaver()
    await run_turns(call, chat(replies)(peer), 2)
    async with threadkeep.open(url) as keep:
        for found in reversed(list(peer.list(THREAD))):
            versions = found.checkpoint["channel_versions"]
            before = found.parent_config or {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
            stored = await call(keep.checkpointer, "put", before, found.checkpoint, found.metadata, versions)
            for n, (task, channel, value) in enumerate(found.pending_writes or ()):
                await call(keep.checkpointer, "put_writes", stored, [(channel, value)], f"{task}{n}")
        graph = chat(replies)(keep.checkpointer)
        history = await call.every(graph, "get_state_history", THREAD)
        target = next(state for state in history if state.next == ("rest",))
        await call(keep, "rollback", "1", id_of(target))
        done = await call(graph, "invoke", None, THREAD)
        assert done["asked"] == len(target.values["messages"])
        found = await call(keep.checkpointer, "get_tuple", THREAD)
        assert {type(version) for version in found.checkpoint["channel_versions"].values()} == {str}


async def test_a_fork_is_one_more_branch_each_time_and_a_rollback_the_same_until_it_is_used(
    url: str, call: Caller
) -> None:
    async with threadkeep.open(url) as keep:
        graph = chat(replies)(keep.checkpointer)
        await run_turns(call, graph, 2)
        back = await call(keep, "rollback", "1", "latest~2")
        assert await call(keep, "rollback", "1", back.forked_from) == back
        forks = [await call(keep, "fork", "1", back.forked_from) for _ in range(3)]
        assert len({each.id for each in (back, *forks)}) == 4
        for n, each in enumerate(forks):
            done = await call(graph, "invoke", {"messages": [AIMessage(f"fork {n}", id="x")]}, each.config)
            assert done["messages"][-2].content == f"fork {n}"
        assert (await call(keep, "rollback", "1", back.forked_from)).id > max(each.id for each in forks)
        assert (await call(keep, "fork", "1")).forked_from != back.forked_from, "from the latest, if nothing is said"
        check(url)


def test_a_new_thread_has_the_lineage_only_and_is_found_by_its_own_name(url: str) -> None:
    with threadkeep.open(url) as keep:
        saver = keep.checkpointer
        main, side = Chain(saver), Chain(saver)
        for n in range(4):
            at_n = main.put({"log": [f"line {m} " * 30 for m in range(n + 1)]}, thread_id="t", user="ann")
            saver.put_writes(at_n, [("log", f"line {n + 1}")], f"task{n}")
        side.last = "00000001"
        side.put({"log": ["another way " * 30]}, id="00000009", thread_id="t", user="bob")
        saver.put_writes(config("t", "00000099"), [("log", "early")], "early")
        branches = keep.fork("t", "00000003", to="u")
        assert (branches.thread, branches.id, branches.parent) == ("u", "00000003", "00000002")
        assert list_ids(saver, "u") == ["00000003", "00000002", "00000001", "00000000"]
        assert values_of(saver, "u") == values_of(saver, "t", "00000003")
        assert [found.pending_writes for found in saver.list(config("u"))] == [
            found.pending_writes for found in saver.list(config("t")) if found.checkpoint["id"] in list_ids(saver, "u")
        ]
        assert list_ids(saver, None, filter={"thread_id": "u"}) == list_ids(saver, "u")
        assert list_ids(saver, "u", filter={"user": "bob"}) == []
        info = keep.thread("u")
        assert info is not None
        assert (info.checkpoints, info.writes, info.step, info.status) == (4, 4, 3, "pending")
        keep.delete("t")
        Chain(saver, "u").put({"log": ["more"]}, id="00000010")
        assert [info.id for info in keep.threads(metadata={"thread_id": "u"})] == []
        check(url)


UUIDS = ("1f0a0000-0000-6000-8000-000000000000", "1fffffff-ffff-6fff-bfff-ffffffffffff")


@pytest.mark.parametrize(
    ("greatest", "expected"),
    [
        ("ckpt_006", "ckpt_007"), ("ckpt_099", "ckpt_100"), ("ckpt_999", "ckpt_9990"), ("00000009", "00000010"),
        ("last", "last0"), ("", "0"), ("x٣", "x٣0"), (UUIDS[1], "20000000-0000-6000-8000-000000000000"),
        ("f" * 8 + "-ffff-ffff-ffff-ffffffffffff", "f" * 8 + "-ffff-ffff-ffff-ffffffffffff0"),
    ],
)  # fmt: skip
def test_a_new_id_is_greater_than_all_and_of_their_kind(greatest: str, expected: str) -> None:
    made = new_checkpoint_id(greatest, BranchStamp(0, (1 << 62) - 1))
    assert made > greatest
    if greatest != UUIDS[1]:
        assert made == expected
    assert new_checkpoint_id(UUIDS[0], BranchStamp(1_800_000_000_000_000, 5)) > UUIDS[0]
    assert new_checkpoint_id(UUIDS[0], BranchStamp(1_800_000_000_000_000, 5)).endswith("-6000-8000-000000000005")


async def test_a_clock_that_went_back_changes_nothing(url: str, call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback_job, "now_us", lambda: 1_000_000)
    async with threadkeep.open(url) as keep:
        graph = chat(replies)(keep.checkpointer)
        await run_turns(call, graph, 2)
        target = (await call.every(graph, "get_state_history", THREAD))[4]
        await call(keep, "rollback", "1", id_of(target))
        state = await call(graph, "get_state", THREAD)
        assert (state.values, state.metadata["forked_from"]) == (target.values, id_of(target))
        await run_turns(call, graph, 1, start=5)
        assert (await call(graph, "get_state", THREAD)).values["messages"][-2].content == "q5"


def test_writes_that_wait_for_a_checkpoint_do_not_become_the_branchs(url: str) -> None:
    with threadkeep.open(url) as keep:
        Chain(keep.checkpointer).put({"x": 1}, id="1")
        keep.checkpointer.put_writes(config("t", "2"), [(INTERRUPT, "?")], "task")
        assert keep.rollback("t", "1").id == "3"
        found = keep.checkpointer.get_tuple(config("t"))
        assert found is not None
        assert found.pending_writes == []
        info = keep.thread("t")
        assert info is not None
        assert info.status == "idle"


def test_an_unknown_checkpoint_is_missing_and_a_wrong_argument_is_reported(url: str) -> None:
    with threadkeep.open(url) as keep:
        graph = delta_graph(keep.checkpointer)
        for n in range(3):
            graph.invoke({"messages": [HumanMessage(f"{n}", id=f"{n}")]}, at("delta"))
        keep.prune("delta")
        hidden = graph.get_state(at("delta")).parent_config["configurable"]["checkpoint_id"]
        for wrong in (("nobody", "1"), ("delta", "nothing"), ("delta", hidden), ("delta", "latest~99")):
            with pytest.raises(Missing):
                keep.rollback(*wrong)
            with pytest.raises(Missing):
                keep.fork(*wrong, to="new")
        with pytest.raises(TypeError):
            keep.rollback("delta", None)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="root namespace"):
            keep.fork("delta", ns="inner", to="new")
        with pytest.raises(ValueError, match="already"):
            keep.fork("delta", to="delta")
        assert [info.id for info in keep.threads()] == ["delta"]


def test_a_dry_run_reports_the_result_and_changes_nothing(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        chain = Chain(keep.checkpointer)
        for n in range(3):
            chain.put({"x": n})
        before = keep.threads()
    with threadkeep.open(lasting_url, read_only=True) as keep:
        branches = keep.rollback("t", "latest~1", dry_run=True)
        assert (branches.id, branches.parent) == ("00000003", "00000001")
        assert keep.threads() == before


def test_a_namespace_is_rolled_back_by_itself(url: str) -> None:
    with threadkeep.open(url) as keep:
        for n in range(3):
            Chain(keep.checkpointer, ns="inner").put({"x": n}, id=f"i{n}")
            Chain(keep.checkpointer).put({"x": n}, id=f"r{n}")
        branches = keep.rollback("t", "i0", ns="inner")
        assert (branches.id, branches.ns) == ("i3", "inner")
        assert values_of(keep.checkpointer, ns="inner") == {"x": 0}
        assert values_of(keep.checkpointer) == {"x": 2}
        check(url)


# --- concurrent writers, and lost replies


def test_a_rollback_with_a_concurrent_writer_has_the_greatest_id(warm: Bench) -> None:
    others = iter([put("4", "3"), put("5", "4")])

    def interfere(request: Request[Any]) -> None:
        if isinstance(request, Commit) and (op := next(others, None)):
            Bench(warm.backend).write(op)

    branches = warm.drive(engine_rollback.rollback(warm.heads, KEY, "2", "", BranchStamp(5, 6)), before=interfere)
    assert warm.made_requests == [LoadThreadRows, Commit, LoadThreadRows, Commit, Pause, LoadThreadRows, Commit]
    assert (branches.id, branches.parent) == ("6", "2")
    state = warm.get()
    assert state is not None
    assert (state.id, state.metadata["forked_from"]) == ("6", "2")


@pytest.fixture
def warm() -> Bench:
    bench = Bench()
    for n in (1, 2, 3):
        bench.write(put(str(n), str(n - 1) if n > 1 else None))
        bench.write(writes(str(n)))
    return bench


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside others"])
@pytest.mark.parametrize("verb", ["rollback", "fork", "fork to", "prune"])
def test_a_change_whose_reply_was_lost_is_made_once(warm: Bench, verb: str, others: bool) -> None:
    from threadkeep.engine.requests import ForkThread  # noqa: PLC0415
    from threadkeep.engine.threads import prune  # noqa: PLC0415 - the verbs as plans

    moment, new = BranchStamp(5, 6), KEY._replace(id="new")
    plans: dict[str, Any] = {
        "rollback": lambda: engine_rollback.rollback(warm.heads, KEY, "latest~1", "", moment),
        "fork": lambda: engine_rollback.fork(warm.heads, KEY, "latest~1", "", moment),
        "fork to": lambda: engine_rollback.fork_to(warm.heads, KEY, "latest~1", new, moment),
        "prune": lambda: prune.prune_thread(warm.heads, KEY, prune.keep_latest, 6),
    }
    lost: list[Any] = []

    def lose(request: Request[Any]) -> None:
        if isinstance(request, (Commit, ForkThread)) and not lost:
            lost.append(request)
            warm.backend.answer(request)
            if others:
                Bench(warm.backend).write(put("8", "3"))
            raise Conflict

    outcomes = warm.drive(plans[verb](), before=lose)
    assert len(warm.made_requests) > 2
    left = {id for id in "123456789" if warm.get(id)}
    assert left == {
        "rollback": {"1", "2", "3", "4"}, "fork": {"1", "2", "3", "4"}, "fork to": {"1", "2", "3"}, "prune": {"3"}
    }[verb] | ({"8"} if others else set())  # fmt: skip
    if verb == "prune":
        assert outcomes.checkpoints == (("", "1"), ("", "2"))
    else:
        assert outcomes.forked_from == "2"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def new_crashing_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], CrashingStorage]]:
    made: list[CrashingStorage] = []

    def make() -> CrashingStorage:
        crashing = CrashingStorage(*location_of(request.param, tmp_path / f"{len(made)}.db"))
        made.append(crashing)
        for step in (*PAST[:4], SHORT, *PAST[5:]):
            act(crashing, step)
        return crashing

    yield make
    for crashing in made:
        crashing.close()


VERBS: dict[str, Callable[[threadkeep.Keep], Any]] = {
    "rollback": lambda keep: keep.rollback("t", "3"),
    "rollback of a namespace": lambda keep: keep.rollback("t", "1", ns="child:1"),
    "fork to": lambda keep: keep.fork("t", to="new"),
    "fork of an earlier one": lambda keep: keep.fork("t", "3", to="new"),
    "tag": lambda keep: keep.tag("t", "2", "good"),
    "prune by policy": lambda keep: keep.prune("t", policy=threadkeep.Policy(keep_last=2)),
    "drop": lambda keep: keep.prune(policy=threadkeep.Policy(drop_idle="0s", keep_interrupted=False)),
}
ON_DISK = {"rollback", "fork of an earlier one", "prune by policy"}
ONCE = {"fork to": ValueError, "fork of an earlier one": ValueError}


@pytest.mark.parametrize("name", VERBS)
def test_a_crash_at_any_request_leaves_each_thread_as_before_or_as_after(
    new_crashing_storage: Callable[[], CrashingStorage], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_job, "now_us", lambda: 1_000_000)
    monkeypatch.setattr("threadkeep.jobs.prune.now_ms", lambda: 1 << 42)
    undisturbed, crashes = new_crashing_storage(), 0
    ways = [(False, True), (True, False)]
    if undisturbed.path is not None:  # the others take long and test nothing that is specific to a database
        ways = [(True, False)] if name in ON_DISK else []
    before = undisturbed.read_contents()
    VERBS[name](undisturbed.keep)
    final = undisturbed.read_contents()
    assert final != before
    for after, remembers in ways:
        for k in range(1, 20):
            crashing = new_crashing_storage()
            if not remembers:
                crashing.start()
            crashing.transport.crash_at(k, after=after)
            try:
                VERBS[name](crashing.keep)
            except Unavailable:
                crashes += 1
            else:
                assert not crashing.transport.crashed, "a crash was taken for a success"
                assert crashing.read_contents() == final
                break
            seen = crashing.read_contents()
            for thread in before | final:
                assert seen.get(thread) in (before.get(thread), final.get(thread))
            if seen == final and name in ONCE:
                with pytest.raises(ONCE[name]):
                    VERBS[name](crashing.keep)
            else:
                VERBS[name](crashing.keep)
            assert crashing.read_contents() == final
    assert crashes >= 3 * len(ways)


# --- cube threads


def user_message(text: str, id: str, run: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], id=id, run_id=run)


async def texts(keep: threadkeep.Keep, thread: str = "t") -> list[str]:
    data = await keep.cube.load(thread)
    assert data is not None
    return [message.content[0].text for message in data.messages]


async def three_runs(keep: threadkeep.Keep) -> None:
    for n in (1, 2, 3):
        await keep.cube.claim_run("t", f"r{n}")
        await keep.cube.append("t", [user_message(f"m{n}", f"{n}", f"r{n}")])
        await keep.cube.save_extra("t", {"last": n})
        if n == 2:
            question = HitlRequest(question_id="q", thread_id="t", payload=ConfirmRequest(prompt="?"), created_at=1.5)
            await keep.cube.save_pending_request("t", question, run_id="r2")
        else:
            await keep.cube.mark_run_complete("t", f"r{n}")


async def test_a_cube_thread_continues_from_a_checkpoint_with_its_runs_and_its_question(url: str, call: Caller) -> None:
    async with threadkeep.open(url) as keep:
        await three_runs(keep)
        branches = await call(keep, "rollback", "t", "0000000002")
        assert (branches.id, branches.parent, branches.kind) == ("0000000004", "0000000002", "cube")
        assert await call(keep, "rollback", "t", "0000000002") == branches
        info = await call(keep, "thread", "t")
        assert (info.status, info.step, info.checkpoints, info.source) == ("interrupted", 2, 4, "fork")
        assert await texts(keep) == ["m1", "m2"]
        assert (await keep.cube.load("t")).extra == {"last": 2}  # type: ignore[union-attr]
        assert (await keep.cube.load_pending("t"))[1] == "r2"  # type: ignore[index]
        await keep.cube.clear_pending_request_if_matches("t", question_id="q", run_id="r2")
        await keep.cube.append("t", [user_message("other m2", "2b", "r2")])
        await keep.cube.mark_run_complete("t", "r2")
        await keep.cube.claim_run("t", "r3")
        await keep.cube.append("t", [user_message("other m3", "3", "r3")])
        await keep.cube.mark_run_complete("t", "r3")
        assert await texts(keep) == ["m1", "m2", "other m2", "other m3"]
        assert len(await keep.cube.snapshot("t", after_run_id="r2")) == 3
        assert (await call(keep, "thread", "t")).status == "idle"
        check(url)


async def test_a_cube_thread_continues_from_a_completed_run_here_or_elsewhere(url: str, call: Caller) -> None:
    async with threadkeep.open(url) as keep:
        await three_runs(keep)
        assert (await call(keep, "fork", "t", "r1", to="new")).thread == "new"
        assert (await call(keep, "fork", "t", "0000000002", to="with its question")).forked_from == "0000000002"
        assert (await call(keep, "fork", "t", to="now")).forked_from == "0000000003"
        assert [await texts(keep, each) for each in ("new", "with its question", "now")] == [
            ["m1"], ["m1", "m2"], ["m1", "m2", "m3"],
        ]  # fmt: skip
        statuses = {info.id: info.status for info in await call(keep, "threads")}
        assert (statuses["new"], statuses["with its question"]) == ("idle", "interrupted")
        back = await call(keep, "rollback", "t", "r1")
        assert await call(keep, "rollback", "t", "r1") == back
        assert (await call(keep, "thread", "t")).status == "idle"
        assert (back.forked_from, await texts(keep)) == ("0000000001", ["m1"])
        await keep.cube.claim_run("t", "r2")
        await keep.cube.append("t", [user_message("again", "2", "r2")])
        await call(keep, "prune", "t")
        assert await texts(keep) == ["m1", "again"]
        for wrong in (("t", "r9"), ("t", "0000000099"), ("nobody", "r1")):
            with pytest.raises(Missing):
                await call(keep, "rollback", *wrong)
        with pytest.raises(ValueError, match="no namespaces"):
            await call(keep, "rollback", "t", "latest", ns="x")
        with pytest.raises(ValueError, match="already"):
            await call(keep, "fork", "t", to="new")
        check(url)


def test_a_keep_with_a_cached_thread_continues_from_anothers_rollback(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as one, threadkeep.open(lasting_url) as two:
        graph = chat(replies)(one.checkpointer)
        for n in range(2):
            graph.invoke({"messages": [HumanMessage(f"q{n}", id=f"h{n}")]}, THREAD)
        two.rollback("1", "latest~4")
        done = graph.invoke({"messages": [HumanMessage("q5", id="h5")]}, THREAD)
        assert [message.id for message in done["messages"]] == ["h0", "ai1", "h5", "ai3"]
        check(lasting_url)


def test_tenants_do_not_see_each_others_threads() -> None:
    keeps = [shared_pool.keep(shared_pool.fresh_tenant()) for _ in range(2)]
    Chain(keeps[0].checkpointer).put({"x": 1})
    with pytest.raises(Missing):
        keeps[1].fork("t", to="u")
