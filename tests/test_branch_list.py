"""branches, name_branch, compare_branches, switch_branch and delete_branch: what continues from where, on every backend."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from cubeloop.providers.base import TextContent, UserMessage
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

import threadkeep
from checkpoint_chains import Chain, config, values_of
from checkpoint_trees import Put, Step, base_walk, put_steps, random_trees
from encrypted_keeps import KEYS
from graph_scenarios import THREAD, chat, nested, replies
from hypothesis_profiles import examples
from sync_async import Ask
from test_branches import check, id_of
from test_delta_graphs import build as delta_graph
from threadkeep.cli.app import run
from threadkeep.errors import Corrupt, Leased, Missing, ReadOnly

TREE: list[Step] = [
    Put("c1", None, {"a": 1}),
    Put("c2", "c1", {"a": 2}),
    Put("c3", "c2", {"a": 3}),
    Put("c4", "c2", {"a": 4}),
    Put("c5", "c4", {"a": 5}),
    Put("c6", "c1", {"a": 6}),
]
"""Three branches: c3, c5 and c6. The last is the latest."""


@pytest.fixture
def tree(keep: threadkeep.Keep) -> threadkeep.Keep:
    put_steps(keep.checkpointer, "t", TREE)
    return keep


def run_turns(ask: Ask, graph: Any, count: int, *, start: int = 0) -> None:
    for n in range(start, start + count):
        ask(graph, "invoke", {"messages": [HumanMessage(f"q{n}", id=f"h{n}")]}, THREAD)


def test_each_checkpoint_without_a_child_is_the_head_of_a_branch(tree: threadkeep.Keep, ask: Ask) -> None:
    found = ask(tree, "branches", "t")
    assert [(each.head, each.fork_point, each.checkpoints, each.is_latest) for each in found] == [
        ("c6", "c1", 1, True),
        ("c5", "c2", 2, False),
        ("c3", "c2", 1, False),
    ]
    assert [each.step for each in found] == [6, 5, 3]
    assert all(each.started <= each.updated and each.kind == "graph" and each.ns == "" for each in found)


def test_a_thread_without_forks_is_one_branch(keep: threadkeep.Keep, ask: Ask) -> None:
    chain = Chain(keep.checkpointer)
    for n in range(3):
        chain.put({"a": n})
    (only,) = ask(keep, "branches", "t")
    assert (only.head, only.fork_point, only.checkpoints, only.is_latest) == ("00000002", None, 3, True)
    assert ask(keep, "branches", "t", ns="nowhere") == []
    with pytest.raises(Missing):
        ask(keep, "branches", "nobody")


def test_replays_forks_and_updates_of_a_graph_are_branches(keep: threadkeep.Keep, ask: Ask) -> None:
    graph = chat(replies)(keep.checkpointer)
    run_turns(ask, graph, 2)
    history = ask.every(graph, "get_state_history", THREAD)
    first = history[-1]
    updated = ask(graph, "update_state", history[3].config, {"asked": "otherwise"})
    ask(graph, "invoke", None, history[5].config)
    keep.rollback("1", id_of(history[2]))
    found = ask(keep, "branches", "1")
    heads = {each.head for each in found}
    parents = {(each.parent, each.forked_from) for each in keep.log("1")}
    assert heads == {each.id for each in keep.log("1")} - {id for pair in parents for id in pair}
    assert updated["configurable"]["checkpoint_id"] in heads
    assert id_of(history[0]) in heads
    assert [each.is_latest for each in found] == [True] + [False] * (len(found) - 1)
    assert len(found) == 4
    assert all(each.fork_point is not None and each.fork_point >= id_of(first) for each in found)


def test_the_status_and_the_next_nodes_are_those_of_the_head(keep: threadkeep.Keep, ask: Ask) -> None:
    graph = nested()(keep.checkpointer)
    ask(graph, "invoke", {"said": ["go"]}, THREAD)
    (only,) = ask(keep, "branches", "1")
    assert (only.status, only.next) == ("interrupted", ("middle",))
    subgraph = next(each.ns for each in keep.log("1") if each.ns)
    (inner,) = ask(keep, "branches", "1", ns=subgraph)
    assert (inner.ns, inner.fork_point, inner.head) == (subgraph, None, keep.log("1", ns=subgraph)[0].id)


def test_a_name_stays_with_its_branch_when_that_grows(tree: threadkeep.Keep, ask: Ask) -> None:
    named = ask(tree, "name_branch", "t", "c5", "cheap")
    assert (named.name, named.head) == ("cheap", "c5")
    assert ask(tree, "name_branch", "t", "c4", "cheap") == named
    put_steps(tree.checkpointer, "t", [Put("c7", "c5", {"a": 7})])
    assert [(each.head, each.name) for each in tree.branches("t")] == [("c7", "cheap"), ("c6", None), ("c3", None)]
    with pytest.raises(ValueError, match="named 'cheap'"):
        ask(tree, "name_branch", "t", "c3", "cheap")
    renamed = ask(tree, "name_branch", "t", "cheap", "dear")
    assert (renamed.head, renamed.name) == ("c7", "dear")
    ask(tree, "name_branch", "t", "dear", None)
    ask(tree, "name_branch", "t", "c7", None)
    assert {each.name for each in tree.branches("t")} == {None}


@pytest.mark.parametrize(
    "name", ["a\0b", "two\nlines", "\x1b[31mred", "\ud800", " ", "x" * 101, "latest", "latest~2", "c3"]
)
def test_what_is_no_line_of_text_or_names_a_checkpoint_is_no_name(tree: threadkeep.Keep, ask: Ask, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        ask(tree, "name_branch", "t", "c5", name)
    assert {each.name for each in tree.branches("t")} == {None}


def test_a_name_that_an_agent_stored_does_not_hide_a_checkpoint(keep: threadkeep.Keep, ask: Ask) -> None:
    chain = Chain(keep.checkpointer)
    root = chain.put({"a": 0})
    for id, name in (("1", "latest"), ("2", "3"), ("3", "fine")):
        keep.checkpointer.put(
            root, {**empty_checkpoint(), "id": id}, {"source": "loop", "step": 1, "branch_name": name}, {}
        )
    heads = {ref: ask(keep, "compare_branches", "t", ref, "1").a.head for ref in ("latest", "3", "fine")}
    assert heads == {"latest": "3", "3": "3", "fine": "3"}


def test_a_name_is_no_tag_and_a_tag_is_no_name(tree: threadkeep.Keep, ask: Ask) -> None:
    ask(tree, "name_branch", "t", "c5", "cheap")
    tree.tag("t", "c4", "checked")
    found = {each.head: (each.name, each.tags) for each in tree.branches("t")}
    assert found == {"c6": (None, ()), "c5": ("cheap", ("checked",)), "c3": (None, ())}
    branch = tree.fork("t", "c5")
    assert "branch_name" not in tree.show("t", branch.id).checkpoint.metadata


@pytest.mark.parametrize("ref", ["c1", "c2", "c"])
def test_what_several_branches_have_names_none(tree: threadkeep.Keep, ask: Ask, ref: str) -> None:
    for verb, others in (("name_branch", ("x",)), ("switch_branch", ()), ("delete_branch", ())):
        with pytest.raises(ValueError, match="branches have|begin or end"):
            ask(tree, verb, "t", ref, *others)
    with pytest.raises(Missing):
        ask(tree, "switch_branch", "t", "nonsense")
    with pytest.raises(Missing):
        ask(tree, "delete_branch", "nobody", "c5")
    with pytest.raises(TypeError):
        ask(tree, "name_branch", "t", "c5", "")


def test_two_branches_are_compared_from_where_they_part(tree: threadkeep.Keep, ask: Ask) -> None:
    tree.name_branch("t", "c3", "short")
    found = ask(tree, "compare_branches", "t", "short", "c5")
    assert found.common == "c2"
    assert [each.id for each in found.only_a] == ["c3"]
    assert [each.id for each in found.only_b] == ["c5", "c4"]
    assert found.diff == tree.diff("t", "c3", "c5")
    assert (found.a, found.b) == (tree.branches("t")[2], tree.branches("t")[1])
    same = ask(tree, "compare_branches", "t", "c5", "c5")
    assert (same.common, same.only_a, same.only_b, same.diff.channels) == ("c5", (), (), ())


def test_a_switch_makes_a_branch_the_latest_with_one_row(tree: threadkeep.Keep, ask: Ask, url: str) -> None:
    tree.name_branch("t", "c5", "cheap")
    dry = ask(tree, "switch_branch", "t", "cheap", dry_run=True)
    assert tree.thread("t").checkpoints == 6
    branch = ask(tree, "switch_branch", "t", "cheap")
    assert (branch.id, branch.forked_from) == (dry.id, "c5") == ("c7", "c5")
    assert values_of(tree.checkpointer) == {"a": 5}
    latest = tree.branches("t")[0]
    assert (latest.head, latest.name, latest.is_latest, latest.checkpoints) == ("c7", "cheap", True, 3)
    again = ask(tree, "switch_branch", "t", "cheap")
    assert (again.id, tree.thread("t").checkpoints) == ("c7", 7)
    check(url)


def test_a_graph_continues_from_the_branch_it_was_switched_to(keep: threadkeep.Keep, ask: Ask) -> None:
    graph = chat(replies)(keep.checkpointer)
    run_turns(ask, graph, 2)
    first = keep.branches("1")[0].head
    keep.rollback("1", "latest~3")
    run_turns(ask, graph, 1, start=7)
    ask(keep, "switch_branch", "1", first)
    run_turns(ask, graph, 1, start=8)
    told = [each.content for each in (ask(graph, "get_state", THREAD)).values["messages"]]
    assert [text for text in told if text.startswith("q")] == ["q0", "q1", "q8"]


def test_a_deletion_removes_what_only_this_branch_has(tree: threadkeep.Keep, ask: Ask, url: str) -> None:
    tree.checkpointer.put_writes(config("t", "c5"), [("a", 9)], "task")
    dry = ask(tree, "delete_branch", "t", "c5", dry_run=True)
    assert [each.head for each in tree.branches("t")] == ["c6", "c5", "c3"]
    done = ask(tree, "delete_branch", "t", "c5")
    assert (dry.dry_run, done.dry_run) == (True, False)
    assert (dry.checkpoints, dry.hidden, dry.writes, dry.bytes) == (done.checkpoints, done.hidden, 1, done.bytes)
    assert (done.checkpoints, done.kept, done.hidden) == ((("", "c4"), ("", "c5")), (), ())
    assert [each.head for each in tree.branches("t")] == ["c6", "c3"]
    assert [each.id for each in tree.log("t")] == ["c6", "c3", "c2", "c1"]
    check(url)


def test_the_latest_branch_is_not_deleted(tree: threadkeep.Keep, ask: Ask) -> None:
    with pytest.raises(ValueError, match="is the latest: switch"):
        ask(tree, "delete_branch", "t", "c6", dry_run=True)
    tree.switch_branch("t", "c3")
    ask(tree, "delete_branch", "t", "c6")
    ask(tree, "delete_branch", "t", "c5")
    with pytest.raises(ValueError, match="is the latest: delete the thread"):
        ask(tree, "delete_branch", "t", "latest")
    assert [each.id for each in tree.log("t")] == ["c7", "c3", "c2", "c1"]


def test_a_tagged_checkpoint_stays(tree: threadkeep.Keep, ask: Ask) -> None:
    tree.name_branch("t", "c5", "cheap")
    tree.tag("t", "c4", "kept")
    done = ask(tree, "delete_branch", "t", "cheap")
    assert (done.checkpoints, done.kept, done.name) == ((("", "c5"),), ("c4",), "cheap")
    assert [each.head for each in tree.branches("t")] == ["c6", "c4", "c3"]
    again = ask(tree, "delete_branch", "t", "c4")
    assert (again.checkpoints, again.kept, again.bytes) == ((), ("c4",), 0)
    assert values_of(tree.checkpointer, id="c4") == {"a": 4}


def test_what_subgraphs_left_in_a_branch_goes_with_it(keep: threadkeep.Keep, ask: Ask, url: str) -> None:
    graph = nested()(keep.checkpointer)
    ask(graph, "invoke", {"said": ["one"]}, THREAD)
    first = keep.log("1", ns="")[-1].id
    ask(graph, "update_state", THREAD, {"said": ["changed"]})  # another branch
    lost = keep.branches("1")[-1] if len(keep.branches("1")) > 1 else None
    keep.rollback("1", first)
    ask(graph, "invoke", {"said": ["two"]}, THREAD)
    old = next(each for each in keep.branches("1") if not each.is_latest)
    called = {each.ns for each in keep.log("1") if each.metadata["parents"].get("") in
              {one.id for one in keep.compare_branches("1", old.head, "latest").only_a}}  # fmt: skip
    rest = {(each.ns, each.id) for each in keep.log("1")}
    done = ask(keep, "delete_branch", "1", old.head)
    assert lost is None
    assert called <= {ns for ns, _ in done.checkpoints}
    assert {(each.ns, each.id) for each in keep.log("1")} == rest - set(done.checkpoints)
    state = ask(graph, "get_state", THREAD, subgraphs=True)
    assert state.tasks[0].state.values
    check(url)


def test_what_delta_channels_of_other_branches_need_becomes_hidden(keep: threadkeep.Keep, ask: Ask, url: str) -> None:
    graph = delta_graph(keep.checkpointer, frequency=50)
    for n in range(4):
        ask(graph, "invoke", {"messages": [HumanMessage(f"q{n}", id=f"h{n}")]}, THREAD)
    old = keep.branches("1")[0].head
    keep.rollback("1", "latest~2")
    ask(graph, "invoke", {"messages": [HumanMessage("another", id="other")]}, THREAD)
    before = ask(graph, "get_state", THREAD)
    done = ask(keep, "delete_branch", "1", old)
    assert done.checkpoints
    after = ask(graph, "get_state", THREAD)
    assert after.values == before.values
    assert keep.verify().ok
    check(url)


def test_a_damaged_namespace_is_refused(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "damaged.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        put_steps(keep.checkpointer, "t", TREE)
    apsw.Connection(str(path)).execute("UPDATE tk_checkpoints SET body = x'00' WHERE id = ?", (b"c2",))
    with threadkeep.open(f"sqlite:///{path}") as keep:
        assert [each.head for each in ask(keep, "branches", "t")] == ["c6", "c5", "c3"]
        with pytest.raises(Corrupt, match="repair"):
            ask(keep, "delete_branch", "t", "c5", dry_run=True)


def test_a_leased_thread_is_refused(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as other:
        put_steps(other.checkpointer, "t", TREE)
        lease = other.lease("t", ttl=60)
        lease.__enter__()
        try:
            outcomes = _refusals(lasting_url)
        finally:
            lease.__exit__(None, None, None)
    assert outcomes == [Leased] * 4 + ["c5"]


def _refusals(url: str) -> list[Any]:
    """Do in another context what a lease refuses, and at last what `force` allows."""

    def attempt() -> list[Any]:
        with threadkeep.open(url) as keep:
            outcomes: list[Any] = []
            for change in (
                lambda: keep.name_branch("t", "c5", "x"),
                lambda: keep.switch_branch("t", "c5"),
                lambda: keep.delete_branch("t", "c5", dry_run=True),
                lambda: keep.delete_branch("t", "c5"),
                lambda: keep.delete_branch("t", "c5", force=True).head,
            ):
                try:
                    outcomes.append(change())
                except Leased as error:
                    outcomes.append(type(error))
            return outcomes

    return contextvars.Context().run(attempt)


def test_a_reader_lists_and_compares_and_changes_nothing(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        put_steps(keep.checkpointer, "t", TREE)
        expected = keep.branches("t")
    with threadkeep.open(lasting_url, read_only=True) as keep:
        assert keep.branches("t") == expected
        assert keep.compare_branches("t", "c3", "c5").common == "c2"
        assert keep.delete_branch("t", "c5", dry_run=True).checkpoints == (("", "c4"), ("", "c5"))
        changes: list[Callable[[], Any]] = [
            lambda: keep.name_branch("t", "c5", "x"),
            lambda: keep.switch_branch("t", "c5"),
            lambda: keep.delete_branch("t", "c5"),
        ]
        for change in changes:
            with pytest.raises(ReadOnly):
                change()
        assert keep.branches("t") == expected


@pytest.mark.parametrize("hide_ids", [False, True])
def test_branches_are_the_same_under_keys_and_for_tenants(fresh_url: Callable[[], str], hide_ids: bool) -> None:  # noqa: FBT001
    with threadkeep.open(fresh_url(), keys=KEYS, hide_ids=hide_ids) as keep:
        tenant = keep.tenant("acme")
        put_steps(tenant.checkpointer, "t", TREE)
        put_steps(keep.checkpointer, "t", TREE[:2])
        tenant.name_branch("t", "c5", "cheap")
        assert [(each.head, each.name) for each in tenant.branches("t")] == [
            ("c6", None),
            ("c5", "cheap"),
            ("c3", None),
        ]
        tenant.delete_branch("t", "cheap")
        assert [each.head for each in tenant.branches("t")] == ["c6", "c3"]
        assert [each.head for each in keep.branches("t")] == ["c2"]


def test_copies_and_files_have_the_same_branches(keep: threadkeep.Keep, tmp_path: Path) -> None:
    put_steps(keep.checkpointer, "t", TREE)
    keep.name_branch("t", "c5", "cheap")
    keep.copy("t", "u")
    keep.export(str(tmp_path / "all.tk"))

    def facts(keep: threadkeep.Keep, thread: str) -> list[Any]:
        return [(each.head, each.name, each.fork_point, each.checkpoints) for each in keep.branches(thread)]

    with threadkeep.open("memory://") as other:
        other.import_portable(str(tmp_path / "all.tk"))
        assert facts(other, "t") == facts(keep, "u") == facts(keep, "t")
    branch = keep.fork("t", "c5", to="v")
    assert [(each.head, each.name) for each in keep.branches("v")] == [(branch.id, "cheap")]


def test_branches_of_a_cube_thread(keep: threadkeep.Keep, ask: Ask, url: str) -> None:
    for n in range(4):
        asyncio.run(keep.cube.append("talk", [UserMessage(content=[TextContent(text=f"{n}")], id=f"m{n}")]))
    ask(keep, "rollback", "talk", "latest~2")
    asyncio.run(keep.cube.append("talk", [UserMessage(content=[TextContent(text="else")], id="else")]))
    found = ask(keep, "branches", "talk")
    assert [(each.kind, each.checkpoints, each.is_latest) for each in found] == [("cube", 2, True), ("cube", 2, False)]
    ask(keep, "name_branch", "talk", found[1].head, "long")
    found = ask(keep, "compare_branches", "talk", "latest", "long")
    assert (len(found.only_a), len(found.only_b), found.common) == (2, 2, found.a.fork_point)
    ask(keep, "switch_branch", "talk", "long")
    assert [each.id for each in asyncio.run(keep.cube.load("talk")).messages] == ["m0", "m1", "m2", "m3"]
    ask(keep, "delete_branch", "talk", found.a.head)
    assert [each.name for each in ask(keep, "branches", "talk")] == ["long"]
    assert [each.id for each in asyncio.run(keep.cube.load("talk")).messages] == ["m0", "m1", "m2", "m3"]
    with pytest.raises(ValueError, match="namespaces"):
        ask(keep, "branches", "talk", ns="x")
    check(url)


def test_the_command_does_what_the_verbs_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    monkeypatch.setenv("THREADKEEP_URL", url)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with threadkeep.open(url) as keep:
        put_steps(keep.checkpointer, "t", TREE)

    def result(*args: str, code: int = 0) -> str:
        assert run(["branches", "t", *args]) == code
        shown = capsys.readouterr()
        return shown.out + shown.err

    assert "c5" in result("--name", "c5", "cheap")
    assert [each["name"] for each in json.loads(result("--json"))] == [None, "cheap", None]
    assert "part after c2" in result("--compare", "c3", "cheap")
    assert "~ a: 3 → 5" in result("--compare", "c3", "cheap")
    assert "would delete 2 checkpoints" in result("--delete", "cheap", "--dry-run")
    assert "--yes" in result("--delete", "cheap", code=2)
    assert "is the latest" in result("--delete", "c6", "--yes", code=2)
    assert "would switch" in result("--switch", "cheap", "--dry-run")
    assert "switched t to cheap" in result("--switch", "cheap")
    assert "deleted 1 checkpoint " in result("--delete", "c6", "--yes")
    assert "only one of" in result("--delete", "c6", "--switch", "c3", code=2)
    assert "no name" in result("--name", "cheap", "")
    assert result().count("c3") == 1
    heads = [each["head"] for each in json.loads(result("--json"))]
    assert result("--ids").split() == heads
    assert json.loads(result("--ids", "--json")) == heads
    assert "--ids is for the list" in result("--ids", "--switch", "c3", code=2)
    assert "branch or checkpoint 'gone' not found" in result("--switch", "gone", code=1)


# --- any tree


@settings(max_examples=examples(100), deadline=None)
@given(
    random_trees(), st.sets(st.integers(0, 7)), st.none() | st.integers(0, 7), st.lists(st.integers(0, 7), min_size=8)
)
def test_a_deletion_changes_nothing_that_another_branch_reads(
    steps: list[Step], tagged: set[int], target: int | None, choices: list[int]
) -> None:
    with threadkeep.open("memory://") as keep:
        put_steps(keep.checkpointer, "t", steps)
        ids = [each.id for each in keep.log("t")]
        for n in tagged:
            keep.tag("t", ids[n % len(ids)], "kept")
        if target is not None:
            keep.rollback("t", ids[target % len(ids)])
        for choice in choices:
            latest, *others = keep.branches("t")
            if not others:
                return
            chosen = others[choice % len(others)]
            left = {id for each in (latest, *others) if each is not chosen for id in _lineage(keep, each.head)}
            before = {id: _reads(keep, id) for id in left}
            dry = keep.delete_branch("t", chosen.head, dry_run=True)
            assert keep.delete_branch("t", chosen.head) == replace(dry, dry_run=False)
            assert {id: _reads(keep, id) for id in left} == before
            assert keep.verify().ok


def _lineage(keep: threadkeep.Keep, head: str) -> list[str]:
    tree = keep.tree("t")
    infos = {each.id: each for each in tree.checkpoints}
    found = [head]
    while (before := tree.before(infos[found[-1]])) is not None:
        found.append(before)
    return found


def _reads(keep: threadkeep.Keep, id: str) -> Any:
    """What LangGraph reads of a checkpoint: its state, its writes, and the history of its delta channels."""
    at = config("t", id)
    return repr(keep.checkpointer.get_tuple(at)), base_walk(keep.checkpointer, at, ["a", "b"])
