"""Retention: what policies keep and delete, exact dry runs, and that concurrent writers lose nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cubeloop.providers.base import TextContent, UserMessage
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from langgraph.types import Command

import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from concurrent_writers import Writers, _log
from graph_scenarios import THREAD, chat, nested, replies
from sync_async import Caller
from test_branches import at, check
from test_delta_graphs import build as delta_graph
from threadkeep import Policy
from threadkeep.adapters import langgraph_saver as adapter
from threadkeep.cli.app import run
from threadkeep.errors import Missing, ReadOnly
from threadkeep.jobs import prune

DAY = 24 * 60 * 60 * 1000


def wrote(keep: threadkeep.Keep, count: int, thread: str = "t", **metadata: Any) -> Chain:
    """Write a chain of checkpoints with a write on each."""
    chain = Chain(keep.checkpointer, thread)
    for n in range(count):
        stored = chain.put({"log": [f"line {m} " * 30 for m in range(max(0, n - 3), n + 1)]}, **metadata)
        keep.checkpointer.put_writes(stored, [("log", f"line {n + 1} " * 30)], "task")
    return chain


def left(keep: threadkeep.Keep, thread: str = "t", ns: str = "") -> list[int]:
    return sorted(int(found.checkpoint["id"]) for found in keep.checkpointer.list(config(thread, ns=ns)))


# --- policies


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"keep_last": 0}, ValueError, "at least 1"),
        ({"keep_last": True}, ValueError, "at least 1"),
        ({"keep_last": "3"}, TypeError, "keep_last"),
        ({"keep_for": "30 days"}, ValueError, "such as 30d"),
        ({"keep_for": ""}, ValueError, "keep_for"),
        ({"keep_for": 30}, TypeError, "timedelta"),
        ({"drop_idle": timedelta(-1)}, ValueError, "negative"),
        ({"drop_idle": "1d", "ns": ""}, ValueError, "namespace"),
        ({"prefix": None}, TypeError, "prefix"),
        ({"metadata": {1: 2}}, TypeError, "str keys"),
        ({"metadata": ["a"]}, TypeError, "metadata"),
        ({"kind": "graphs"}, ValueError, "kind"),
        ({"keep_tagged": None}, TypeError, "keep_tagged"),
    ],
)
def test_an_invalid_policy_is_refused(wrong: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Policy(**wrong)


def test_durations_may_be_spelled() -> None:
    assert Policy(keep_for="1d12h").keep_for == timedelta(days=1, hours=12)
    assert Policy(drop_idle="2w").drop_idle == timedelta(weeks=2)
    assert Policy(keep_for="90s") == Policy(keep_for=timedelta(seconds=90))


FILES = {
    "[[retention]]\nkeep_lst = 3": "[[retention]] 1: unknown key 'keep_lst'",
    "[[retention]]\nkeep_last = 3\n[[retention]]\nkeep_for = 'long'": "[[retention]] 2: keep_for",
    "[[retention]]\nkeep_last = 'x'": "[[retention]] 1: keep_last",
    "[retention]\nkeep_last = 3": "must be an array of tables",
    "retention = 3": "must be an array of tables",
    "[[retentoin]]\nkeep_last = 3": "unknown key 'retentoin'",
    "[[retention": "Expected",
}


def test_an_invalid_policy_file_is_refused_when_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "threadkeep.toml"
    for text, says in FILES.items():
        file.write_text(text)
        with pytest.raises(ValueError, match="threadkeep.toml") as error:
            threadkeep.open("memory://", retention=file)
        assert says in str(error.value)
    with pytest.raises(TypeError, match="Policy"):
        threadkeep.open("memory://", retention=[{"keep_last": 3}])  # type: ignore[list-item]
    with pytest.raises(FileNotFoundError):
        threadkeep.open("memory://", retention=tmp_path / "none.toml")


# --- what a policy keeps


def test_the_last_checkpoints_stay_and_so_do_those_that_are_always_kept(url: str) -> None:
    with threadkeep.open(url) as keep:
        saver = keep.checkpointer
        chain = wrote(keep, 4)
        saver.put_writes(config("t", "00000001"), [(INTERRUPT, "?"), (RESUME, "!")], "answered")
        for n, about in ((4, {"keep": True}), (5, {"tags": ["a"]}), (6, {"tag": ""}), (7, {})):
            chain.put({"x": n}, **about)
        side = Chain(saver)
        side.last = "00000002"
        for n in (20, 21):
            side.put({"x": n}, id=f"{n:08}")
        saver.put_writes(config("t", "00000021"), [(INTERRUPT, "?")], "asks")
        for n in range(30, 40):
            chain.last = f"{n - 1:08}" if n > 30 else "00000007"
            chain.put({"x": n}, id=f"{n:08}")
        keep.tag("t", "00000031", "release")
        kept = {2, 3, 4, 5, 20, 21, 31, 38, 39}
        would = keep.prune("t", policy=Policy(keep_last=2), dry_run=True)
        assert len(left(keep)) == 20
        done = keep.prune("t", policy=Policy(keep_last=2))
        assert (done.threads, done.bytes) == (would.threads, would.bytes)
        assert set(left(keep)) == kept, "2 is a branch point, where 3 and 20 begin; 21 is an end; 4, 5 and 31 have tags"
        assert {int(id) for _, id in done.threads[0].checkpoints} == {*range(8), 20, 21, *range(30, 40)} - kept
        assert not keep.prune("t", policy=Policy(keep_last=2)).threads, "nothing more to do"
        everything_off = Policy(keep_last=2, keep_tagged=False, keep_branches=False)
        assert keep.prune("t", policy=everything_off).checkpoints == 6
        assert left(keep) == [21, 38, 39], "21 waits for its answer"
        keep.prune("t", policy=Policy(keep_last=1, keep_branches=False, keep_interrupted=False))
        assert left(keep) == [39]
        check(url)


def test_a_branch_point_is_one_at_every_prune() -> None:
    """Also if only the end of a branch is left: the values it started with must stay."""
    with threadkeep.open("memory://") as keep:
        chain = wrote(keep, 3)
        chain.last = keep.rollback("t", "00000001").id
        chain.number = 4
        for n in range(4, 8):
            chain.put({"x": n})
        kept = []
        for _ in range(3):
            keep.prune("t", policy=Policy(keep_last=1))
            kept.append(left(keep))
        assert kept == [[1, 2, 3, 7]] * 3


def test_young_checkpoints_stay_and_idle_threads_are_deleted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = int(time.time() * 1000)
    with threadkeep.open(url) as keep:
        for days in range(4):
            monkeypatch.setattr(adapter, "now_ms", lambda days=days: start + days * DAY)
            wrote_on(keep, "t", 3)
            wrote_on(keep, f"day{days}", 2)
            if days == 0:
                keep.checkpointer.put_writes(config("day0", "00000001"), [(INTERRUPT, "?")], "asks")
        keep.tag("day1", "latest", "kept")
        monkeypatch.setattr(prune, "now_ms", lambda: start + 4 * DAY)
        keep.prune(policy=Policy(prefix="t", keep_for="50h"))
        assert left(keep) == list(range(6, 12))
        keep.prune("t", policy=Policy(keep_for=timedelta(days=1, hours=1), keep_last=4))
        assert left(keep) == list(range(8, 12)), "what one rule keeps, stays"
        would = keep.prune(policy=Policy(prefix="day", drop_idle="36h"), dry_run=True)
        assert {each.id: each.dropped for each in would.threads} == {"day2": True}
        sizes = {info.id: info.bytes for info in keep.threads()}
        done = keep.prune(policy=Policy(prefix="day", drop_idle="36h", keep_interrupted=False, keep_tagged=False))
        assert sorted(each.id for each in done.threads if each.dropped) == ["day0", "day1", "day2"]
        assert done.bytes == sum(sizes[f"day{n}"] for n in range(3))
        assert sorted(info.id for info in keep.threads()) == ["day3", "t"]
        check(url)


def wrote_on(keep: threadkeep.Keep, thread: str, count: int) -> None:
    start = len(list_ids(keep.checkpointer, thread))
    chain = Chain(keep.checkpointer, thread)
    chain.number, chain.last = start, f"{start - 1:08}" if start else None
    for n in range(count):
        chain.put({"log": [f"line {start + n} " * 20]})


def test_a_policy_is_for_some_threads_and_namespaces_and_the_first_that_fits_counts(url: str) -> None:
    with threadkeep.open(url) as keep:
        saver = keep.checkpointer
        for thread in ("a1", "a2", "b1"):
            wrote(keep, 4, thread, user="ann" if thread == "a2" else "bob")
        for ns in ("inner", "inner:1|deep:2", "other"):
            chain = Chain(saver, "b1", ns=ns)
            for n in range(4):
                chain.put({"x": n}, parents={"": "00000003"})
        keep.prune(policy=[Policy(prefix="a", metadata={"user": "ann"}), Policy(prefix="a", keep_last=2)])
        assert [left(keep, each) for each in ("a1", "a2", "b1")] == [[2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
        keep.prune(
            policy=[Policy(ns="inner", keep_last=1), Policy(ns="inner|deep", keep_last=2), Policy(ns="", keep_last=3)]
        )
        kept_ids = [left(keep, "b1", ns) for ns in ("", "inner", "inner:1|deep:2", "other")]
        assert kept_ids == [[1, 2, 3], [3], [2, 3], [0, 1, 2, 3]]
        nothing = (
            Policy(tenant="another", keep_last=1),
            Policy(kind="cube", keep_last=1),
            Policy(metadata={"user": "eve"}, keep_last=1),
        )
        for policy in nothing:
            assert not keep.prune(policy=policy).threads
        assert not keep.prune("a2", policy=Policy(prefix="b", keep_last=1)).threads
        assert keep.prune(policy=Policy(tenant="", kind="graph", keep_last=1)).checkpoints == 1 + 2 + (2 + 1 + 3)
        check(url)


async def test_a_subgraphs_checkpoints_are_deleted_with_their_root_and_the_graph_continues(
    url: str, call: Caller
) -> None:
    async with threadkeep.open(url) as keep:
        graph = nested()(keep.checkpointer)
        for n in range(3):
            await call(graph, "invoke", {"said": ["go"]}, THREAD)
            if n < 2:
                await call(graph, "invoke", Command(resume=f"{n}"), THREAD)
        await call(keep, "prune", policy=Policy(keep_last=2))
        found = await call.every(keep.checkpointer, "list", THREAD)
        roots = {each.checkpoint["id"] for each in found if each.config["configurable"]["checkpoint_ns"] == ""}
        owners = {each.metadata["parents"][""] for each in found if each.config["configurable"]["checkpoint_ns"]}
        assert len(roots) == 2
        assert owners <= roots
        done = await call(graph, "invoke", Command(resume="last"), THREAD)
        assert done["said"][-1] == "heard last"
        check(url)


def test_a_cube_thread_is_pruned_by_policy_too(url: str) -> None:
    import asyncio  # noqa: PLC0415

    async def write_cube_thread(keep: threadkeep.Keep) -> None:
        for n in range(5):
            await keep.cube.claim_run("talk", f"r{n}")
            await keep.cube.append("talk", [UserMessage(content=[TextContent(text=f"m{n}")], run_id=f"r{n}")])
            await keep.cube.mark_run_complete("talk", f"r{n}")

    with threadkeep.open(url) as keep:
        asyncio.run(write_cube_thread(keep))
        keep.tag("talk", "0000000001", "first")
        would = keep.prune(policy=Policy(keep_last=2), dry_run=True)
        before = keep.thread("talk")
        done = keep.prune(policy=Policy(keep_last=2))
        after = keep.thread("talk")
        assert before is not None
        assert after is not None
        assert would.threads == done.threads
        assert done.bytes == before.bytes - after.bytes
        assert [id for _, id in done.threads[0].checkpoints] == ["0000000002", "0000000003"]
        assert (after.status, after.step, after.checkpoints) == ("idle", 5, 3)
        check(url)


# --- exact counts


def test_a_dry_run_reports_exactly_what_is_deleted_and_how_many_bytes_are_freed(url: str) -> None:
    with threadkeep.open(url) as keep:
        graphs = {"delta": delta_graph(keep.checkpointer, frequency=3), "chat": chat(replies)(keep.checkpointer)}
        for name, graph in graphs.items():
            for n in range(4):
                graph.invoke({"messages": [HumanMessage(f"q{n} " * 99, id=f"h{n}")]}, at(name))
            keep.rollback(name, "latest~5")
            graph.invoke({"messages": [HumanMessage("on " * 99, id="on")]}, at(name))
        nested()(keep.checkpointer).invoke({"said": ["go"]}, at("nested"))
        wrote(keep, 6, "long")
        for policy in (Policy(keep_last=4), Policy(keep_last=2, keep_branches=False), None):
            for name in ("delta", "chat", "nested", "long"):
                before, listed = keep.thread(name), places(keep, name)
                would = keep.prune(name, policy=policy, dry_run=True)
                assert (keep.thread(name), places(keep, name)) == (before, listed)
                state = values_of(keep.checkpointer, name)
                done = keep.prune(name, policy=policy)
                after = keep.thread(name)
                assert before is not None
                assert after is not None
                assert (would.threads, would.bytes) == (done.threads, done.bytes)
                assert done.bytes == before.bytes - after.bytes
                assert done.writes == before.writes - after.writes
                for each in done.threads:
                    assert not set(each.checkpoints) & places(keep, name)
                    assert listed - places(keep, name) <= {*each.checkpoints, *each.hidden}
                assert values_of(keep.checkpointer, name) == state
        for name, graph in graphs.items():
            done = graph.invoke({"messages": [HumanMessage("more", id="more")]}, at(name))
            assert [each.id for each in done["messages"]][-2:-1] == ["more"]
        check(url)


def places(keep: threadkeep.Keep, thread: str) -> set[tuple[str, str]]:
    return {
        (found.config["configurable"]["checkpoint_ns"], found.checkpoint["id"])
        for found in keep.checkpointer.list(at(thread))
    }


def test_a_missing_thread_counts_as_none_looked_at_and_prune_needs_a_thread_or_a_policy(url: str) -> None:
    with threadkeep.open(url) as keep:
        wrote(keep, 3)
        for dry_run in (True, False):
            for policy in (None, Policy(keep_last=1)):
                pruned = keep.prune("nobody", policy=policy, dry_run=dry_run)
                assert (pruned.examined, pruned.threads, pruned.dry_run) == (0, (), dry_run)
        with pytest.raises(ValueError, match="a thread_id or a policy"):
            keep.prune()
        with pytest.raises(TypeError):
            keep.prune("t", policy=3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="kind"):
            keep.prune("t", kind="graphs")
        assert left(keep) == [0, 1, 2]
        steps: list[Any] = []
        keep.prune(policy=Policy(keep_last=1), on_progress=lambda *step: steps.append(step))
        assert steps == [(1, None, "t")]


def test_a_tag_is_found_moved_and_taken_away(url: str) -> None:
    with threadkeep.open(url) as keep:
        wrote(keep, 3, user="ann")
        before = [found.checkpoint for found in keep.checkpointer.list(config("t"))]
        keep.tag("t", "00000001", "good")
        keep.tag("t", "latest", "best")
        assert list_ids(keep.checkpointer, filter={"tag": "good", "user": "ann"}) == ["00000001"]
        assert [info.id for info in keep.threads(metadata={"tag": "best"})] == ["t"]
        keep.tag("t", "00000001", "better")
        keep.tag("t", "latest", None)
        assert list_ids(keep.checkpointer, filter={"tag": "good"}) == []
        assert keep.threads(metadata={"tag": "best"}) == []
        assert [found.checkpoint for found in keep.checkpointer.list(config("t"))] == before
        with pytest.raises(Missing):
            keep.tag("t", "9", "x")
        with pytest.raises(TypeError):
            keep.tag("t", "latest", "")
        check(url)


# --- with concurrent agents


def test_a_subgraph_whose_root_checkpoint_is_still_on_its_way_is_not_pruned(url: str) -> None:
    """In LangGraph's async mode, a subgraph's checkpoint may be stored before its root's."""
    with threadkeep.open(url) as keep:
        wrote(keep, 3)
        for root in ("00000001", "00000003"):
            Chain(keep.checkpointer, ns=f"inner:{root}").put({"x": root}, parents={"": root})
        keep.prune("t", policy=Policy(keep_last=1))
        keep.checkpointer.prune(["t"])
        assert places(keep, "t") == {("", "00000002"), ("inner:00000003", "00000000")}


def test_threads_that_are_written_while_they_are_pruned_lose_nothing(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep, threadkeep.open(lasting_url) as pruner:
        writers = Writers(keep, threads=2, tasks=2)
        pruned = 0
        with writers:
            for _ in range(3):
                writers.wait_for(12)
                pruned += keep.prune(policy=[Policy(prefix="w", keep_last=4)]).checkpoints
                pruned += pruner.prune(policy=Policy(keep_last=3)).checkpoints
        assert not writers.failed
        assert pruned > 20
        for name, kept_ids in writers.acknowledged.items():
            found = list(pruner.checkpointer.list(config(name)))[::-1]
            assert [each.checkpoint["id"] for each in found] == kept_ids[-len(found) :]
            assert len(found) >= 3
            numbers = range(len(kept_ids) - len(found), len(kept_ids))
            assert [each.checkpoint["channel_values"]["log"] for each in found] == list(map(_log, numbers))
            assert [each.pending_writes for each in found] == [[("task", "log", n + 1)] for n in numbers]
    check(lasting_url)


# --- sweep


def test_a_sweep_does_both_and_a_keep_sweeps_in_the_background_until_it_is_closed(
    lasting_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "threadkeep.toml"
    file.write_text('[[retention]]\nprefix = "keep-"\n\n[[retention]]\nkeep_last = 2\nmetadata = {user = "ann"}\n')
    with threadkeep.open(lasting_url, retention=str(file)) as keep:
        for thread, user in (("keep-all", "ann"), ("t", "ann"), ("u", "bob")):
            wrote(keep, 5, thread, user=user)
        keep.store.put(("a",), "b", {"c": 1}, ttl=0)
        would = keep.sweep(dry_run=True)
        assert (would.memories, would.checkpoints, would.pruned.examined) == (None, 3, 3)
        swept = keep.sweep()
        assert (swept.memories, swept.threads, swept.checkpoints, swept.bytes) == (1, 0, 3, would.bytes)
        assert [left(keep, each) for each in ("keep-all", "t", "u")] == [[*range(5)], [3, 4], [*range(5)]]
        assert keep.store.sweep_ttl() == 0
    with threadkeep.open(lasting_url, retention=[Policy(keep_last=1)]) as keep:
        sweeping = keep.start_sweeping(minutes=0.001)
        assert keep.start_sweeping() is sweeping, "once is enough"
        until(lambda: left(keep, "u") == [4])
        assert keep.stop_sweeping()
        assert sweeping.done()
        keep.start_sweeping(minutes=0.001)
        with pytest.raises(ValueError, match="greater than 0"):
            keep.start_sweeping(minutes=0)
    assert "threadkeep-sweeper" not in {thread.name for thread in threading.enumerate()}
    with threadkeep.open(lasting_url, read_only=True) as keep, pytest.raises(ReadOnly):
        keep.start_sweeping()


def until(condition: Any) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it does not come")


async def test_async_callers_sweep_too(url: str) -> None:
    async with threadkeep.open(url, retention=Policy(keep_last=1)) as keep:
        chain = Chain(keep.checkpointer)
        for n in range(3):
            await chain.aput({"x": n})
        assert (await keep.asweep(dry_run=True)).checkpoints == 2
        assert (await keep.asweep()).checkpoints == 2
        keep.start_sweeping(minutes=10)
        assert await keep.stop_sweeping()


async def test_async_callers_prune_by_a_file(url: str, tmp_path: Path) -> None:
    """The fixture `unblocked_loop` raises if the event loop reads it."""
    file = tmp_path / "threadkeep.toml"
    await asyncio.to_thread(file.write_text, "[[retention]]\nkeep_last = 1\n")
    async with threadkeep.open(url) as keep:
        chain = Chain(keep.checkpointer)
        for n in range(3):
            await chain.aput({"x": n})
        assert (await keep.aprune(policy=file)).checkpoints == 2


@pytest.mark.parametrize("verb", ["prune", "sweep"])
def test_results_are_plain_values_and_not_numbers(url: str, verb: str) -> None:
    with threadkeep.open(url) as keep:
        empty = keep.prune(policy=Policy(keep_last=1)) if verb == "prune" else keep.sweep()
        assert bool(empty)
        assert empty != 0
        assert empty == replace(empty)
        with pytest.raises(TypeError):
            int(empty)  # type: ignore[call-overload]


# --- commands


def test_a_dry_run_on_an_empty_store_prunes_nothing(lasting_url: str, capsys: Any) -> None:
    with threadkeep.open(lasting_url) as keep:
        keep.setup()
    assert run(["prune", "--keep-last", "5", "--dry-run", "--json", "--url", lasting_url]) == 0
    assert json.loads(capsys.readouterr().out)["dry_run"] is True


def test_the_commands_say_and_do_what_the_verbs_do(lasting_url: str, tmp_path: Path, capsys: Any) -> None:
    with threadkeep.open(lasting_url) as keep:
        wrote(keep, 6)
        wrote(keep, 6, "odd\x1b[31m[bold]")

    def command(*words: str) -> tuple[int, Any]:
        code = run([*words, "--url", lasting_url, "--json"])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    def spoken(*words: str) -> tuple[int, str]:
        code = run([*words, "--url", lasting_url])
        kept_ids = capsys.readouterr()
        return code, kept_ids.out + kept_ids.err

    assert command("rollback", "t", "latest~1", "--dry-run")[1]["id"] == "00000006"
    assert command("rollback", "t", "00000004")[1] == {
        "thread": "t", "kind": "graph", "ns": "", "id": "00000006", "parent": "00000004", "forked_from": "00000004",
        "dry_run": False,
    }  # fmt: skip
    assert command("fork", "t", "00000002", "--to", "u")[1]["thread"] == "u"
    assert command("fork", "t", "00000002")[1]["id"] == "00000007"
    assert command("tag", "t", "00000001", "first") == (0, {"thread": "t", "ns": "", "id": "00000001", "tag": "first"})
    assert "rolled back u to 00000003" in spoken("rollback", "u", "latest")[1].replace("00000002", "00000003")
    for words, code, says in [
        (("rollback", "t", "nothing"), 1, "checkpoint 'nothing' not found"),
        (("rollback", "nobody", "latest"), 1, "thread 'nobody' not found"),
        (("fork", "t", "--to", "u"), 2, "already"),
        (("prune",), 2, "name threads"),
        (("prune", "--prefix", "t"), 2, "no rule given"),
        (("prune", "--keep-last", "x"), 2, "keep-last"),
        (("prune", "--keep-for", "long"), 2, "30d"),
        (("prune", "--keep-last", "2"), 2, "--yes"),
        (("prune", "--keep-last", "2", "--metadata", "user"), 2, "KEY=VALUE"),
        (("prune", "nobody", "--yes"), 1, "not found"),
        (("sweep", "--every", "0"), 2, "--every"),
        (("tag", "t", "latest"), 2, "--remove"),
    ]:
        found = spoken(*words)
        assert (found[0], says in found[1]) == (code, True), (words, found)
    code, kept_ids = spoken("prune", "--keep-last", "2", "--dry-run")
    assert (code, "would remove" in kept_ids, "\x1b" in kept_ids, r"odd\x1b[31m[bold]" in kept_ids) == (
        0,
        True,
        False,
        True,
    )
    latest = ("--metadata", "step=5", "--match", "latest")
    code, would = command("prune", "--keep-last", "2", "--dry-run", *latest, "--kind", "graph")
    assert [each["id"] for each in would["threads"]] == ["odd\x1b[31m[bold]"]
    code, done = command("prune", "t", "u", "--keep-last", "2", "--yes")
    assert (code, done["examined"], [each["id"] for each in done["threads"]]) == (0, 2, ["t", "u"])
    file = tmp_path / "threadkeep.toml"
    file.write_text('[[retention]]\nprefix = "odd"\ndrop_idle = "0s"\nkeep_interrupted = false\n')
    assert command("sweep", "--config", str(file), "--dry-run")[1]["threads"] == 1
    assert command("prune", "--config", str(file), "--keep-last", "3")[0] == 2
    assert "1 whole thread" in spoken("sweep", "--config", str(file), "--yes")[1]
    assert command("sweep")[1]["memories"] == 0
    with threadkeep.open(lasting_url) as keep:
        assert sorted(info.id for info in keep.threads()) == ["t", "u"]
    check(lasting_url)


def test_sweep_every_continues_until_it_is_interrupted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url) as keep:
        wrote(keep, 3)
    command = [sys.executable, "-m", "threadkeep", "sweep", "--every", "0.001", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        kept_ids = [process.stdout.readline() for _ in range(2)]
        process.send_signal(2)
        assert process.wait(30) == 130
    assert kept_ids == ["removed 0 expired memories\n"] * 2
