"""The thread catalogue: its fields, in every order, page by page, and after every kind of change."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import apsw
import pytest
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import threadkeep
from checkpoint_chains import Chain, config, list_ids
from sync_async import AsyncCaller, Caller
from threadkeep import ThreadInfo
from threadkeep.backends.sqlite.dialect import SqliteDialect

ORDERS = ("updated", "created", "bytes", "id")


async def threads(call: Caller, keep: threadkeep.Keep, **options: Any) -> list[ThreadInfo]:
    found: list[ThreadInfo] = await call(keep, "threads", **options)
    return found


def one(keep: threadkeep.Keep, id: str = "t") -> ThreadInfo:
    (info,) = [each for each in keep.threads(limit=1000) if each.id == id]
    return info


def names(found: list[ThreadInfo]) -> list[str]:
    return [info.id for info in found]


# --- the fields


def test_every_field_describes_the_thread(keep: threadkeep.Keep) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    chain = Chain(keep.checkpointer)
    chain.put({"x": "y" * 100}, source="input", step=-1)
    first = one(keep)
    time.sleep(0.005)
    at = chain.put({"x": "z" * 100}, source="loop", step=0)
    keep.checkpointer.put_writes(at, [("x", 1), ("y", 2)], "task")
    info = one(keep)
    after = datetime.now(UTC) + timedelta(milliseconds=2)
    assert isinstance(info, ThreadInfo)
    assert (info.id, info.kind, info.checkpoints, info.writes) == ("t", "graph", 2, 2)
    assert (info.step, info.source, info.status) == (0, "loop", "pending")
    assert before <= info.created == first.created == first.updated < info.updated <= after
    assert info.created.tzinfo is not None
    assert 0 < first.bytes < info.bytes
    assert (first.checkpoints, first.writes, first.step, first.source) == (1, 0, -1, "input")


def test_infos_are_values(keep: threadkeep.Keep) -> None:
    Chain(keep.checkpointer).put({"x": 1})
    assert one(keep) == one(keep)
    assert len({one(keep), one(keep)}) == 1
    with pytest.raises(AttributeError):
        one(keep).step = 5  # type: ignore[misc]


def test_step_and_source_are_those_of_the_newest_root_checkpoint(keep: threadkeep.Keep) -> None:
    Chain(keep.checkpointer).put({}, id="5", step=5, source="loop")
    Chain(keep.checkpointer).put({}, id="3", step=3, source="update")
    Chain(keep.checkpointer, ns="child:1").put({}, id="9", step=9, source="fork")
    assert (one(keep).step, one(keep).source, one(keep).checkpoints) == (5, "loop", 3)


@pytest.mark.parametrize(
    ("given", "step", "source"),
    [
        ({"step": None, "source": None}, None, None),
        ({"step": "7", "source": 7}, None, None),
        ({"step": 2**63}, None, "loop"),
    ],
)
def test_step_and_source_of_other_types_are_not_shown(
    keep: threadkeep.Keep, given: Any, step: Any, source: Any
) -> None:
    Chain(keep.checkpointer).put({}, **given)
    assert (one(keep).step, one(keep).source) == (step, source)


def test_a_thread_of_a_subgraph_alone_is_listed(keep: threadkeep.Keep) -> None:
    Chain(keep.checkpointer, ns="child:1").put({"x": 1})
    assert (one(keep).checkpoints, one(keep).step, one(keep).status) == (1, None, "idle")


def test_writes_before_any_checkpoint_make_a_thread(keep: threadkeep.Keep) -> None:
    keep.checkpointer.put_writes(config("t", "1"), [("x", 1), ("y", 2)], "task")
    assert (one(keep).checkpoints, one(keep).writes, one(keep).step, one(keep).source) == (0, 2, None, None)


# --- orders and pages


@pytest.fixture(scope="module")
def many(module_keep: Callable[[], threadkeep.Keep]) -> threadkeep.Keep:
    return filled(module_keep())


def filled(keep: threadkeep.Keep) -> threadkeep.Keep:
    """Write threads whose orders all differ, some of them at the same time."""
    chains = [Chain(keep.checkpointer, id) for id in ("m", "z", "A", "🦜", "a%", "a_", "b", "é", "aa", "a")]
    for number, chain in enumerate(chains):
        chain.put({"x": "y" * (number * 7919 % 1000)})
        if number % 3:
            time.sleep(0.002)
    for number in (4, 0, 7):
        time.sleep(0.002)
        chains[number].put({"x": "z" * (number * 104729 % 3000)})
    return keep


def expected(found: list[ThreadInfo], order: str) -> list[ThreadInfo]:
    by_id = sorted(found, key=lambda info: info.id.encode())
    return by_id if order == "id" else sorted(by_id, key=operator.attrgetter(order), reverse=True)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_the_order_of_its_field(many: threadkeep.Keep, order: str) -> None:
    found = many.threads(order=order)
    assert len(found) == 10
    assert found == expected(found, order)


def test_the_last_changed_thread_comes_first_unless_asked_otherwise(many: threadkeep.Keep) -> None:
    assert many.threads() == many.threads(order="updated")
    assert many.threads()[0].id == "é"


@pytest.mark.parametrize("by", ["info", "id"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 2, 3, 9, 10, 11])
def test_pages_add_up_to_the_whole(many: threadkeep.Keep, order: str, size: int, by: str) -> None:
    whole = many.threads(order=order)
    paged: list[ThreadInfo] = []
    after: Any = None
    while page := many.threads(order=order, limit=size, after=after):
        assert len(page) <= size
        paged += page
        after = page[-1] if by == "info" else page[-1].id
    assert paged == whole


@pytest.mark.parametrize("order", ORDERS)
def test_pages_of_a_filter_add_up_to_the_filtered_whole(keep: threadkeep.Keep, order: str) -> None:
    for n in range(30):
        Chain(keep.checkpointer, f"t{n:02}").put({"x": "y" * n}, team="red" if n % 3 else "blue", step=n % 4)
    for options in ({"metadata": {"team": "red"}}, {"metadata": {"step": 2}}, {"prefix": "t1"}, {"status": "idle"}):
        whole = keep.threads(order=order, **options)
        assert whole
        paged: list[ThreadInfo] = []
        while page := keep.threads(order=order, limit=4, after=paged[-1] if paged else None, **options):
            paged += page
        assert paged == whole


def test_a_page_continues_after_a_thread_that_is_gone(keep: threadkeep.Keep) -> None:
    many = filled(keep)
    whole = many.threads(order="id")
    many.checkpointer.delete_thread(whole[3].id)
    assert many.threads(order="id", after=whole[3]) == whole[4:]
    with pytest.raises(ValueError, match="after"):
        many.threads(order="id", after=whole[3].id)


def test_a_page_of_the_last_changed_threads_reads_an_index(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/many.db"
    with threadkeep.open(url) as keep:
        keep.setup()
    sql = SqliteDialect().sql
    page = sql["list-threads"].replace("{conditions}", f"{sql['where-tenant']} AND {sql['after-updated']}")
    values = {"tenant": b"", "value": 10**12, "after_kind": "", "after_id": b"", "limit": 50}
    with closing(apsw.Connection(f"{tmp_path}/many.db")) as file:
        explained = file.execute("EXPLAIN QUERY PLAN " + page.replace("{order}", sql["order-updated"]), values)
        plan = [row[3] for row in explained]
    assert "SEARCH t USING INDEX tk_threads_tick (tenant=? AND tick<?)" in plan
    assert "USE TEMP B-TREE FOR LAST 3 TERMS OF ORDER BY" in plan, "the first term comes sorted from the index"


def test_a_change_in_the_same_tick_does_not_write_the_index_by_time(tmp_path: Path) -> None:
    with threadkeep.open(f"sqlite:///{tmp_path}/ticks.db") as keep:
        Chain(keep.checkpointer, "t").put({})
    with closing(apsw.Connection(f"{tmp_path}/ticks.db")) as file:
        ((updated, tick),) = file.execute("SELECT updated, tick FROM tk_threads").fetchall()
        assert tick == updated >> 12
        for later, writes in ((tick << 12, 1), ((tick << 12) + 4095, 1), ((tick + 1) << 12, 2), (0, 2)):
            before = file.total_changes()
            file.execute("UPDATE tk_threads SET updated = ?", (later,))
            assert file.total_changes() - before == writes
            assert file.execute("SELECT updated, tick FROM tk_threads").fetchall() == [(later, later >> 12)]


def test_limit_is_fifty_unless_asked_otherwise(keep: threadkeep.Keep) -> None:
    for n in range(55):
        keep.checkpointer.put_writes(config(f"t{n}", "1"), [("x", 1)], "task")
    assert len(keep.threads()) == 50
    assert len(keep.threads(limit=1000)) == 55
    assert len(keep.threads(limit=10**18)) == 55
    assert keep.threads(limit=0) == []


def test_kind_selects_graphs_or_others(keep: threadkeep.Keep) -> None:
    Chain(keep.checkpointer).put({"x": 1})
    assert names(keep.threads(kind="graph")) == ["t"]
    assert keep.threads(kind="cube") == []


async def test_athreads_gives_what_threads_gives(keep: threadkeep.Keep, call: Caller) -> None:
    for n in range(5):
        await Chain(keep.checkpointer, f"t{n}").aput({"x": 1}, team=n % 2)
    for options in (
        {},
        {"order": "id"},
        {"limit": 2},
        {"prefix": "t3"},
        {"metadata": {"team": 1}},
        {"status": "idle"},
        {"kind": "graph"},
        {"order": "id", "after": "t2"},
    ):
        assert await threads(call, keep, **options) == await threads(AsyncCaller(), keep, **options)
    assert names(await threads(call, keep, order="id", after="t2")) == ["t3", "t4"]


# --- filters

IDS = [
    "a",
    "a%",
    "a%b",
    "a_",
    "a_b",
    "axb",
    "A",
    "a\0",
    "a\0b",
    "a\0c",
    "a\x01",
    "🦜",
    "🦜1",
    "🦜🦜",
    "é",
    "e\u0301",
    "a*",
    "a[b]",
    "a'b",
    'a"b',
    "a\\b",
    " a",
    "a\n",
]


@pytest.fixture(scope="module")
def named(module_keep: Callable[[], threadkeep.Keep]) -> threadkeep.Keep:
    keep = module_keep()
    for id in IDS:
        keep.checkpointer.put_writes(config(id, "1"), [("x", 1)], "task")
    return keep


@pytest.mark.parametrize("prefix", ["", *IDS, "zzz", "\0", "a%%", "__"])
def test_a_prefix_is_literal(named: threadkeep.Keep, prefix: str) -> None:
    assert names(named.threads(prefix=prefix, order="id")) == sorted(id for id in IDS if id.startswith(prefix))


METADATA: dict[str, dict[str, Any]] = {
    "missing": {},
    "null": {"key": None},
    "one": {"key": 1},
    "one float": {"key": 1.0},
    "true": {"key": True},
    "text": {"key": "1"},
    "list": {"key": [1, 2]},
    "dict": {"key": {"a": 1, "b": [None]}},
    "small dict": {"key": {"a": 1}},
    "dotted": {"key.a": 1},
}
FOUND: dict[str, tuple[Any, set[str]]] = {
    "none": (None, {"missing", "null", "dotted"}),
    "one": (1, {"one", "one float"}),
    "float": (1.0, {"one", "one float"}),
    "true": (True, {"true"}),
    "text": ("1", {"text"}),
    "list": ([1.0, 2], {"list"}),
    "dict": ({"b": [None], "a": 1}, {"dict"}),
    "small dict": ({"a": 1.0}, {"small dict"}),
    "empty dict": ({}, set()),
    "false": (False, set()),
}


@pytest.fixture(scope="module")
def described(module_keep: Callable[[], threadkeep.Keep]) -> threadkeep.Keep:
    keep = module_keep()
    for thread, given in METADATA.items():
        Chain(keep.checkpointer, thread).put({}, **given)
    return keep


@pytest.mark.parametrize("name", list(FOUND))
def test_a_metadata_filter_compares_by_json_type(described: threadkeep.Keep, name: str) -> None:
    keep = described
    wanted, found = FOUND[name]
    assert set(names(keep.threads(metadata={"key": wanted}))) == found
    assert set(names(keep.threads(metadata={"key": wanted, "source": "loop", "step": 0}))) == found
    assert keep.threads(metadata={"key": wanted, "source": "input"}) == []
    assert len(keep.threads(metadata={})) == len(METADATA)


def test_a_metadata_filter_looks_at_the_newest_root_checkpoint_only(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer, run="run 1")
    chain.put({}, user="ada", step=1)
    chain.run = "run 2"
    chain.put({}, user="bob", step=2)
    Chain(keep.checkpointer, ns="child:1").put({}, id="9", user="eve", step=9)
    for wanted in ({"user": "bob"}, {"step": 2}, {"run_id": "run 2"}, {"user": "bob", "run_id": "run 2", "step": 2}):
        assert names(keep.threads(metadata=wanted)) == ["t"], wanted
    for wanted in ({"user": "ada"}, {"user": "eve"}, {"step": 1}, {"run_id": "run 1"}, {"user": "bob", "step": 1}):
        assert keep.threads(metadata=wanted) == [], wanted


def test_a_list_shows_metadata_of_the_newest_root_checkpoint(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    chain.put({}, user="ada", tags=["x"])
    chain.put({}, user="bob", tags=["y"])
    Chain(keep.checkpointer, "large").put({}, user="u" * 600_000)
    Chain(keep.checkpointer, "other").put({})
    listed = {each.id: each for each in keep.threads(columns=["user", "tags", "nothing"])}
    assert listed["t"].metadata == {"user": "bob", "tags": ["y"]}
    assert listed["large"].metadata == listed["other"].metadata == {}
    assert keep.threads() == keep.threads(columns=["user"]), "it is no part of what makes threads equal"
    listed["t"].metadata["tags"].append("z")
    assert keep.threads(columns=["tags"], prefix="t")[0].metadata == {"tags": ["y"]}
    with pytest.raises(TypeError, match="columns"):
        keep.threads(columns="user")


def test_a_metadata_filter_sees_parents_as_it_does_in_list(keep: threadkeep.Keep) -> None:
    Chain(keep.checkpointer).put({}, parents={"": "1"})
    assert list_ids(keep.checkpointer, "t", filter={"parents": {"": "1"}}) == ["00000000"]
    assert names(keep.threads(metadata={"parents": {"": "1"}})) == ["t"]


def test_a_replaced_checkpoint_is_found_by_its_new_metadata(keep: threadkeep.Keep) -> None:
    Chain(keep.checkpointer).put({}, user="ada")
    Chain(keep.checkpointer).put({}, user="bob")
    assert keep.threads(metadata={"user": "ada"}) == []
    assert names(keep.threads(metadata={"user": "bob"})) == ["t"]


# --- status


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def graph(saver: Any, node: Callable[[State], Any], **options: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"log": ["first"]})
    builder.add_node("second", node)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder.compile(checkpointer=saver, **options)


def fine(state: State) -> dict[str, Any]:
    return {"log": ["second"]}


def asks(state: State) -> dict[str, Any]:
    return {"log": [interrupt("what next?")]}


def at_first_fails() -> Callable[[State], dict[str, Any]]:
    calls: list[None] = []

    def node(state: State) -> dict[str, Any]:
        calls.append(None)
        if len(calls) == 1:
            raise RuntimeError("no luck")
        return fine(state)

    return node


THREAD = config("t")
DURABILITIES = ("sync", "async", "exit")


def assert_status(keep: threadkeep.Keep, status: str) -> None:
    assert one(keep).status == status
    for each in ("idle", "pending", "interrupted", "error"):
        assert names(keep.threads(status=each)) == (["t"] if each == status else [])


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_finished_run_is_idle(keep: threadkeep.Keep, call: Caller, durability: str) -> None:
    await call(graph(keep.checkpointer, fine), "invoke", {"log": ["hi"]}, THREAD, durability=durability)
    assert [info.status for info in await threads(call, keep)] == ["idle"]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_run_that_waits_for_an_answer_is_interrupted_until_it_is_answered(
    keep: threadkeep.Keep, durability: Any
) -> None:
    run = graph(keep.checkpointer, asks)
    run.invoke({"log": ["hi"]}, THREAD, durability=durability)
    assert_status(keep, "interrupted")
    run.invoke(Command(resume="this"), THREAD, durability=durability)
    assert_status(keep, "idle")
    run.invoke({"log": ["again"]}, THREAD, durability=durability)
    assert_status(keep, "interrupted")


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_failed_run_is_an_error_until_it_is_taken_up_again(keep: threadkeep.Keep, durability: Any) -> None:
    run = graph(keep.checkpointer, at_first_fails())
    with pytest.raises(RuntimeError):
        run.invoke({"log": ["hi"]}, THREAD, durability=durability)
    assert_status(keep, "error")
    run.invoke(None, THREAD, durability=durability)
    assert_status(keep, "idle")


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("where", [{"interrupt_before": ["second"]}, {"interrupt_after": ["first"]}], ids=str)
def test_a_run_that_stopped_between_two_steps_is_pending(
    keep: threadkeep.Keep, where: dict[str, Any], durability: Any
) -> None:
    run = graph(keep.checkpointer, fine, **where)
    run.invoke({"log": ["hi"]}, THREAD, durability=durability)
    assert_status(keep, "pending")
    run.invoke(None, THREAD, durability=durability)
    assert_status(keep, "idle")


def test_a_run_that_is_stopped_by_its_caller_is_pending(keep: threadkeep.Keep) -> None:
    stream = graph(keep.checkpointer, fine).stream({"log": ["hi"]}, THREAD, stream_mode="updates", durability="sync")
    next(stream)
    stream.close()
    assert_status(keep, "pending")


def test_an_edited_state_is_pending_where_a_node_is_next(keep: threadkeep.Keep) -> None:
    run = graph(keep.checkpointer, fine)
    run.update_state(THREAD, {"log": ["edited"]}, as_node="first")
    assert_status(keep, "pending")
    run.update_state(THREAD, {"log": ["edited"]}, as_node="second")
    assert_status(keep, "idle")


def test_an_interrupt_of_a_subgraph_shows_at_the_root(keep: threadkeep.Keep) -> None:
    inner = graph(None, asks)
    builder = StateGraph(State)
    builder.add_node("sub", inner)
    builder.add_edge(START, "sub")
    run = builder.compile(checkpointer=keep.checkpointer)
    run.invoke({"log": ["hi"]}, THREAD)
    assert_status(keep, "interrupted")
    run.invoke(Command(resume="this"), THREAD)
    assert_status(keep, "idle")


def test_the_status_counts_every_checkpoint_of_a_fork(keep: threadkeep.Keep) -> None:
    """Continuing from an old checkpoint makes a newer one, whose status counts."""
    run = graph(keep.checkpointer, asks)
    run.invoke({"log": ["hi"]}, THREAD)
    run.invoke(Command(resume="this"), THREAD)
    before = [state.config for state in run.get_state_history(THREAD) if state.next == ("second",)]
    run.invoke(None, before[0])
    assert_status(keep, "interrupted")


@pytest.mark.parametrize(
    ("channel", "status"), [(INTERRUPT, "interrupted"), (ERROR, "error"), ("x", "pending")], ids=str
)
def test_writes_that_come_before_their_checkpoint_count_when_it_comes(
    keep: threadkeep.Keep, channel: str, status: str
) -> None:
    chain = Chain(keep.checkpointer)
    chain.put({"x": 1})
    keep.checkpointer.put_writes(config("t", "00000001"), [(channel, "value")], "task")
    chain.put({"x": 2})
    assert_status(keep, status)
    chain.put({"x": 3})
    assert_status(keep, "idle")


@pytest.mark.parametrize(
    ("channel", "status"), [(INTERRUPT, "interrupted"), (ERROR, "error"), ("x", "pending")], ids=str
)
def test_the_worst_write_on_the_newest_checkpoint_counts(keep: threadkeep.Keep, channel: str, status: str) -> None:
    chain = Chain(keep.checkpointer)
    chain.put({"x": 1})
    newest = chain.put({"x": 2})
    keep.checkpointer.put_writes(config("t", "00000000"), [(ERROR, "old")], "task")
    assert_status(keep, "idle")
    keep.checkpointer.put_writes(newest, [(channel, "value")], "task 1")
    keep.checkpointer.put_writes(newest, [("y", "value")], "task 2")
    keep.checkpointer.put_writes(
        newest | {"configurable": newest["configurable"] | {"checkpoint_ns": "child:1"}},
        [(ERROR, "in a subgraph")],
        "task 3",
    )
    assert_status(keep, status)


def test_replacing_the_newest_checkpoint_keeps_what_its_writes_say(keep: threadkeep.Keep) -> None:
    Chain(keep.checkpointer).put({"x": 1})
    keep.checkpointer.put_writes(config("t", "00000000"), [(INTERRUPT, "?")], "task")
    Chain(keep.checkpointer).put({"x": 2})
    assert_status(keep, "interrupted")


def test_the_status_follows_deleted_runs_prunes_and_copies(keep: threadkeep.Keep) -> None:
    saver = keep.checkpointer
    chain = Chain(saver, run="good")
    at = chain.put({"x": 1})
    saver.put_writes(at | {"metadata": {"run_id": "bad"}}, [(ERROR, "oh")], "task")
    assert_status(keep, "error")
    saver.copy_thread("t", "copy")
    assert one(keep, "copy").status == "error"
    saver.delete_thread("copy")
    saver.prune(["t"])
    assert_status(keep, "error")
    saver.delete_for_runs(["bad"])
    assert_status(keep, "idle")
    chain.run = "bad"
    chain.put({"x": 2}, step=7)
    saver.put_writes(config("t", "00000001"), [(INTERRUPT, "?")], "task")
    assert_status(keep, "interrupted")
    saver.delete_for_runs(["bad"])
    assert_status(keep, "idle")
    assert (one(keep).step, one(keep).checkpoints, one(keep).writes) == (0, 1, 0)


# --- counts


def assert_counted(keep: threadkeep.Keep, id: str = "t") -> None:
    """The row has the same counts as a scan."""
    found = list(keep.checkpointer.list({"configurable": {"thread_id": id}}))
    info = one(keep, id)
    assert (info.checkpoints, info.writes) == (len(found), sum(len(each.pending_writes or []) for each in found))


def test_counts_are_right_after_every_change(keep: threadkeep.Keep) -> None:
    saver = keep.checkpointer

    def grow(thread: str) -> None:
        chain = Chain(saver, thread)
        for n in range(9):
            chain.run = f"run {n // 3}"
            at = chain.put({"x": [f"line {k}" for k in range(n)]}) | {"metadata": {"run_id": chain.run}}
            saver.put_writes(at, [("x", n), ("y", n), (INTERRUPT, n)], f"task {n}")
            assert_counted(keep, thread)
        Chain(saver, thread, ns="child:1").put({"x": 1})
        assert_counted(keep, thread)

    grow("t")
    for change in (
        lambda: Chain(saver).put({"x": "again"}, id="00000003"),
        lambda: saver.put_writes(config("t", "00000003"), [("x", "again"), ("y", "again")], "task 3"),
        lambda: saver.put_writes(config("t", "00000003"), [("x", 0), ("y", 0), ("z", 0), ("z", 1)], "task 3"),
        lambda: saver.put_writes(config("t", "00000003"), [(INTERRUPT, "again")], "task 3"),
        lambda: saver.put_writes(config("t", "00000003"), [], "nothing"),
        lambda: saver.copy_thread("t", "copy"),
        lambda: saver.delete_for_runs(["run 1"]),
        lambda: saver.delete_for_runs(["unheard of"]),
        lambda: saver.copy_thread("copy", "t"),
        lambda: saver.copy_thread("copy", "t"),
        lambda: saver.prune(["t"]),
        lambda: saver.prune(["t"]),
        lambda: saver.put_writes(config("t", "00000008"), [("x", 1)], "late"),
        lambda: saver.delete_for_runs(["run 2"]),
    ):
        change()
        for thread in names(keep.threads()):
            assert_counted(keep, thread)
    saver.delete_thread("copy")
    assert "copy" not in names(keep.threads())
    grow("u")
    saver.prune(["u"], strategy="delete")
    assert "u" not in names(keep.threads())


def test_a_thread_that_is_made_again_starts_anew(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    for n in range(5):
        chain.put({"x": "y" * 1000 + str(n)}, user="ada")
    keep.checkpointer.put_writes(config("t", "00000004"), [(ERROR, "oh")], "task")
    old = one(keep)
    keep.checkpointer.delete_thread("t")
    assert keep.threads() == []
    time.sleep(0.002)
    Chain(keep.checkpointer).put({"x": 1})
    new = one(keep)
    assert (new.checkpoints, new.writes, new.status, new.step) == (1, 0, "idle", 0)
    assert new.bytes < old.bytes
    assert new.created > old.created
    assert keep.threads(metadata={"user": "ada"}) == []


# --- bytes


def noise(n: int, size: int = 400) -> str:
    """Return text that compresses badly."""
    return "".join(chr(33 + (n * 7919 + k * k * 104729 + k * n) % 90) for k in range(size))


def test_bytes_grow_with_what_is_stored_and_shrink_with_what_is_freed(keep: threadkeep.Keep) -> None:
    saver = keep.checkpointer
    chain, seen = Chain(saver, run="r1"), [0]
    for n in range(20):
        chain.put({"x": noise(n)})
        seen.append(one(keep).bytes)
    assert seen == sorted(set(seen))
    saver.put_writes(config("t", "00000019"), [("x", noise(77))], "task")
    assert one(keep).bytes > seen[-1]
    saver.copy_thread("t", "copy")
    assert one(keep, "copy").bytes == pytest.approx(one(keep).bytes, rel=0.05)
    saver.prune(["t"])
    assert one(keep).bytes < seen[4]
    assert one(keep, "copy").bytes > seen[-1] * 0.95
    before = one(keep, "copy").bytes
    saver.put_writes(config("copy", "00000000") | {"metadata": {"run_id": "r2"}}, [("x", noise(88))], "task")
    saver.delete_for_runs(["r2"])
    assert one(keep, "copy").bytes == pytest.approx(before, abs=150)
    saver.delete_for_runs(["r1"])
    assert all(info.bytes < 400 for info in keep.threads())


STORED = """
SELECT (SELECT coalesce(sum(length(payload)), 0) FROM tk_items WHERE thread = t.thread)
     + (SELECT coalesce(sum(length(body) + length(refs)), 0) FROM tk_checkpoints WHERE thread = t.thread)
     + (SELECT coalesce(sum(length(body) + length(refs)), 0) FROM tk_writes WHERE thread = t.thread),
       (SELECT count(*) FROM tk_checkpoints WHERE thread = t.thread)
     + (SELECT count(*) FROM tk_writes WHERE thread = t.thread)
FROM tk_threads t WHERE t.id = CAST(? AS BLOB)
"""


def test_bytes_are_the_payloads_bodies_and_references_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    database = apsw.Connection(str(path))

    with threadkeep.open(f"sqlite:///{path}") as keep:
        saver = keep.checkpointer

        def check(*threads: str) -> None:
            for thread in threads:
                ((stored, rows),) = database.execute(STORED, (thread,)).fetchall()
                assert stored <= one(keep, thread).bytes <= stored + 40 * rows, thread

        chain = Chain(saver, run="r0")
        for n in range(30):
            chain.run = f"r{n % 3}"
            at = chain.put(
                {"log": [noise(k) for k in range(n // 2, n)], "static": noise(0, 5000), "n": n}, user=noise(n % 2, 50)
            )
            saver.put_writes(at | {"metadata": {"run_id": chain.run}}, [("log", noise(n)), ("n", n)], f"task {n}")
        check("t")
        Chain(saver).put({"log": [noise(500)]}, id="00000010")
        saver.put_writes(config("t", "00000010"), [("a", 1), ("b", noise(1)), ("c", noise(501))], "task 10")
        saver.put_writes(config("t", "00000010"), [(INTERRUPT, noise(502))], "task 10")
        saver.put_writes(config("t", "00000010"), [(INTERRUPT, noise(503, 2000))], "task 10")
        check("t")
        saver.copy_thread("t", "c")
        check("t", "c")
        saver.delete_for_runs(["r1"])
        check("t", "c")
        saver.copy_thread("t", "c")
        Chain(saver, "d").put({"x": noise(7)})
        saver.copy_thread("t", "d")
        check("t", "c", "d")
        saver.prune(["t", "c"])
        check("t", "c", "d")
        chain.put({"log": [noise(k) for k in range(60)]})
        check("t", "c", "d")
    database.close()


def test_bytes_stay_right_in_a_copy_whose_metadata_names_it(tmp_path: Path) -> None:
    """A copy's metadata names the copy as its thread, which may be longer or shorter than the source's id."""
    path, long = tmp_path / "agent.db", "long name " * 200
    database = apsw.Connection(str(path))
    with threadkeep.open(f"sqlite:///{path}") as keep:
        for source, target in (("t", long), (long, "short")):
            if source == "t":
                Chain(keep.checkpointer, source).put({"x": 1}, thread_id=source)
            keep.checkpointer.copy_thread(source, target)
            ((stored, rows),) = database.execute(STORED, (target,)).fetchall()
            assert stored <= one(keep, target).bytes <= stored + 40 * rows
            keep.checkpointer.prune([target])
            assert one(keep, target).bytes > 0
    database.close()


def test_the_catalogue_reads_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        for thread in "abc":
            chain = Chain(keep.checkpointer, thread)
            for n in range(5):
                chain.put({"x": n}, user="ada")
        before = keep.threads()
        database = apsw.Connection(str(path))
        database.execute("DELETE FROM tk_checkpoints; DELETE FROM tk_writes")
        database.close()
        for order in ORDERS:
            assert set(keep.threads(order=order)) == set(before)
        assert keep.threads(metadata={"user": "ada"}) == before


# --- wrong arguments


@pytest.mark.parametrize(
    "options",
    [
        {"limit": -1}, {"order": "name"}, {"order": ""}, {"order": None}, {"order": "ID"}, {"order": ["id"]},
        {"status": "busy"}, {"status": ""}, {"status": "IDLE"}, {"status": ["idle"]}, {"kind": "thing"}, {"kind": ""},
        {"after": "nobody"}, {"after": ""},
    ],
    ids=str,
)  # fmt: skip
async def test_a_wrong_value_is_a_value_error(keep: threadkeep.Keep, call: Caller, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        await threads(call, keep, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"limit": None}, {"limit": "5"}, {"limit": 5.0}, {"limit": True}, {"prefix": None}, {"prefix": b"a"},
        {"prefix": ["a"]}, {"after": b"t"}, {"after": len}, {"after": ["t"]}, {"metadata": "user"},
        {"metadata": [("user", "ada")]}, {"metadata": 5}, {"metadata": {5: "ada"}}, {"metadata": {"user": len}},
        {"page": 1},
    ],
    ids=str,
)  # fmt: skip
async def test_a_wrong_type_is_a_type_error(keep: threadkeep.Keep, call: Caller, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        await threads(call, keep, **options)


def test_a_limit_beyond_any_database_is_no_limit(keep: threadkeep.Keep) -> None:
    Chain(keep.checkpointer).put({"x": 1}, user="ada")
    for limit in (2**31, 2**63 - 1, 2**63, 2**70):
        assert names(keep.threads(limit=limit)) == ["t"]
        assert names(keep.threads(limit=limit, metadata={"user": "ada"})) == ["t"]
