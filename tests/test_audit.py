"""trace, activity, sizes and stats: compared with LangGraph's own state, and with what is stored."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send

import threadkeep
from checkpoint_chains import Chain
from conftest import BACKENDS
from rich_threads import CUBE_TEXTS, LONG, config, write_cube_thread, write_thread
from test_plans import KEY, Bench, put
from threadkeep import Keep, errors
from threadkeep.cli.app import run
from threadkeep.cli.output import as_plain
from threadkeep.engine.history import sizes
from threadkeep.engine.log.plain import jsonable
from threadkeep.engine.requests import LoadThreadRows, MeasureItems
from threadkeep.engine.threads import prune
from threadkeep.engine.threads.thread_rows import node_of_task

SERDE = JsonPlusSerializer()


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: backend.name)
def living(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Keep, Any]]:
    """A Keep that no test changes, with the threads `fan`, `fan 2`, `talk` and `other`; and the graph of the first."""
    with threadkeep.open(request.param.fresh(tmp_path_factory.mktemp("audit"), 0)) as keep:
        yield keep, populated(keep)


def populated(keep: Keep) -> Any:
    write_cube_thread(keep, "talk")
    Chain(keep.checkpointer, "other").put({"log": ["a"]}, user="ada")
    write_thread(keep, "fan 2")
    return write_thread(keep, "fan", user="eva")


@pytest.fixture
def seen(living: tuple[Keep, Any]) -> Keep:
    return living[0]


def tuples(keep: Keep, thread: str) -> list[Any]:
    return list(keep.checkpointer.list(config(thread)))


def encoded(value: Any) -> int:
    """Return the bytes of a write; of a list, those of its elements."""
    return whole(value) - isinstance(value, list)


def whole(value: Any) -> int:
    return len(SERDE.dumps_typed(value)[1])


# --- trace


def test_a_trace_has_every_write_that_langgraph_is_given_with_the_node_that_it_names(living: tuple[Keep, Any]) -> None:
    keep, world = living
    nodes = {task.id: task.name for state in world.get_state_history(config("fan")) for task in state.tasks}
    met: Counter[str | None] = Counter()
    for found in tuples(keep, "fan"):
        at = found.config["configurable"]
        result = keep.trace("fan", at["checkpoint_id"], ns=at["checkpoint_ns"], values=True)
        assert sorted((each.task, each.channel, each.size) for each in result) == sorted(
            (task, channel, encoded(value) if value is not None else 0) for task, channel, value in found.pending_writes
        )
        assert sorted(json.dumps(each.value) for each in result if each.channel == "log") == sorted(
            json.dumps(jsonable(value)) for _, channel, value in found.pending_writes if channel == "log"
        )
        assert result == sorted(result, key=lambda each: (each.time, each.path, each.task, each.idx))
        assert [each.value for each in keep.trace("fan", at["checkpoint_id"], ns=at["checkpoint_ns"])] == [None] * len(
            result
        )
        if at["checkpoint_ns"] == "":
            assert {each.task: each.node for each in result if each.node} == {
                each.task: nodes[each.task] for each in result if each.task in nodes
            }
        met.update(each.node for each in result)
    assert set(met) == {None, "__start__", "left", "right", "one", "two, too", "sub", "inner", "ask"}
    assert met["one"] == 4  # two sends, each with a value and an edge


def test_a_checkpoint_is_named_as_people_name_it(seen: Keep) -> None:
    root = [found.config["configurable"]["checkpoint_id"] for found in seen.checkpointer.list(
        {"configurable": {"thread_id": "fan", "checkpoint_ns": ""}})]  # fmt: skip
    assert seen.trace("fan") == seen.trace("fan", "latest") == seen.trace("fan", root[0]) == []
    assert seen.trace("fan", "latest~2") == seen.trace("fan", root[2]) == seen.trace("fan", root[2][:-1]) != []
    for wrong in ("nonsense", "latest~99"):
        with pytest.raises(errors.Missing):
            seen.trace("fan", wrong)
    with pytest.raises(errors.Missing, match="nobody"):
        seen.trace("nobody")
    with pytest.raises(errors.Missing):
        seen.trace("fan", ns="nowhere")
    with pytest.raises(ValueError, match="give more"):
        seen.trace("fan", root[0][:2])


def test_writes_that_wait_for_their_checkpoint_are_traced_by_its_id(keep: Keep) -> None:
    saver = keep.checkpointer
    at = Chain(saver, "early").put({"log": ["a"]})
    later = {"configurable": {**at["configurable"], "checkpoint_id": "99999999"}}
    saver.put_writes(later, [("log", "b")], "task", "~__pregel_pull, node")
    (found,) = keep.trace("early", "99999999", values=True)
    assert (found.task, found.node, found.channel, found.value) == ("task", "node", "log", "b")
    with pytest.raises(errors.Missing):
        keep.trace("early", "9999")


def test_sends_of_old_checkpoints_name_their_nodes(keep: Keep) -> None:
    sends = [Send("first", 1), Send("second", {"a": "b" * 300})]
    saved = empty_checkpoint() | {"id": "00000001", "v": 3, "pending_sends": sends}
    at = keep.checkpointer.put({"configurable": {"thread_id": "old", "checkpoint_ns": ""}}, saved, {"step": 0}, {})
    for n in range(3):
        keep.checkpointer.put_writes(at, [("log", n)], f"task {n}", f"~__pregel_push, {n:010}")
    assert {each.task: each.node for each in keep.trace("old")} == {
        "task 0": "first",
        "task 1": "second",
        "task 2": None,
    }
    assert {one.node for one in keep.activity().by_node} == {"first", "second", None}


def test_a_trace_of_a_cube_thread_has_the_messages_of_each_run(seen: Keep) -> None:
    second, first = seen.trace("talk", values=True), seen.trace("talk", "latest~1", values=True)
    assert [each.value["content"][0]["text"] for each in [*first, *second]] == [*CUBE_TEXTS["r1"], *CUBE_TEXTS["r2"]]
    assert [(each.run, each.task, each.idx, each.channel, each.node) for each in [*first, *second]] == [
        ("r1", "r1", 0, "messages", None), ("r1", "r1", 1, "messages", None), ("r2", "r2", 2, "messages", None),
    ]  # fmt: skip
    assert first[0].size > len(CUBE_TEXTS["r1"][0])


@pytest.mark.parametrize(
    ("path", "node"),
    [
        ("~__pregel_pull, a, b", "a, b"),
        ("~__pregel_push, 0000000001, 0000000000", "second"),
        ("~__pregel_push, 0000000007", None),
        ("~__pregel_push, ~__pregel_pull, flow, 0000000000", None),
        ("~__interrupt__, 0000000000", None),
        ("", None),
    ],
)
def test_the_path_of_a_task_names_its_node(path: str, node: str | None) -> None:
    assert node_of_task(path, [{"node": "first"}, {"node": "second"}]) == node


# --- activity


def every_write(keep: Keep, thread: str) -> Iterator[Any]:
    for found in tuples(keep, thread):
        at = found.config["configurable"]
        yield from (
            (at["checkpoint_ns"], each) for each in keep.trace(thread, at["checkpoint_id"], ns=at["checkpoint_ns"])
        )


def test_activity_adds_up_every_write(seen: Keep) -> None:
    expected = [each for thread in ("fan", "fan 2") for each in every_write(seen, thread)]
    progress: list[Any] = []
    result = seen.activity(kind="graph", on_progress=lambda *step: progress.append(step))
    assert (result.threads, result.checkpoints) == (3, sum(info.checkpoints for info in seen.threads(kind="graph")))
    assert (result.writes, result.bytes) == (len(expected), sum(each.size for _, each in expected))
    assert progress == [(1, None, "fan"), (2, None, "fan 2"), (3, None, "other")]
    for shares, of in (
        (result.by_node, lambda each: (each.node, None)),
        (result.by_channel, lambda each: (None, each.channel)),
        (result.by_node_and_channel, lambda each: (each.node, each.channel)),
    ):
        writes = Counter(of(each) for _, each in expected)
        size: Counter[Any] = Counter()
        for _, each in expected:
            size[of(each)] += each.size
        assert {(one.node, one.channel): (one.writes, one.bytes) for one in shares} == {
            pair: (count, size[pair]) for pair, count in writes.items()
        }
        assert all(one.average == one.bytes / one.writes for one in shares)
        assert [one.writes for one in shares] == sorted((one.writes for one in shares), reverse=True)


def test_activity_is_limited_to_the_threads_and_times_given(seen: Keep) -> None:
    written = list(every_write(seen, "fan"))
    root = [each for ns, each in written if ns == ""]
    assert seen.activity(prefix="fan", metadata={"user": "eva"}, ns="").writes == len(root)
    inner = seen.activity(prefix="fan", metadata={"user": "eva"}, ns="sub")
    assert inner.writes == sum(ns.startswith("sub:") for ns, _ in written) > 0
    assert {share.node for share in inner.by_node} == {"__start__", "inner"}
    exact = next(ns for ns, _ in written if ns)
    assert seen.activity(prefix="fan", metadata={"user": "eva"}, ns=exact).by_node == inner.by_node
    assert seen.activity(prefix="fan", metadata={"user": "eva"}, ns="su").writes == 0
    middle = sorted(each.time for _, each in written)[len(written) // 2]
    early, late = (
        seen.activity(prefix="fan", metadata={"user": "eva"}, until=middle),
        seen.activity(prefix="fan", metadata={"user": "eva"}, since=middle),
    )
    assert early.writes == sum(each.time < middle for _, each in written) > 0
    assert early.writes + late.writes == len(written)
    assert (early.since, early.until, late.since) == (None, middle, middle)
    assert seen.activity(metadata={"user": "eva"}).threads == 1
    assert seen.activity(metadata={"user": "nobody"}) == seen.activity(prefix="zzz")


def test_activity_of_cube_threads_counts_messages(seen: Keep) -> None:
    result = seen.activity(kind="cube")
    messages = [each for n in (0, 1) for each in seen.trace("talk", f"latest~{n}")]
    assert [(one.node, one.writes, one.bytes) for one in result.by_node] == [
        (None, 3, sum(each.size for each in messages))
    ]
    assert [one.channel for one in result.by_channel] == ["messages"]
    assert seen.activity(kind="cube", ns="sub").writes == seen.activity(kind="cube", until="1d").writes == 0


def test_threads_that_did_not_change_since_are_not_read(seen: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    read, surveyed = seen._session.transport.read, []

    def listening(request: Any) -> Any:
        surveyed.extend([request.key.id] if isinstance(request, LoadThreadRows) else [])
        return read(request)

    monkeypatch.setattr(seen._session.transport, "read", listening)
    last = seen.thread("fan").updated
    assert seen.activity(since=last).threads == len(surveyed) == 1
    assert seen.activity(since=last + timedelta(milliseconds=1)).threads == 0
    assert seen.activity(since="1h").threads == 4
    assert surveyed == ["fan", "fan", "fan 2", "other", "talk"]


WRONG: list[tuple[type, dict[str, Any]]] = [
    (ValueError, {"since": "tomorrow"}),
    (ValueError, {"until": "7 days"}),
    (ValueError, {"since": datetime(2026, 4, 1)}),  # noqa: DTZ001
    (ValueError, {"since": "9" * 30 + "w"}),
    (TypeError, {"since": 7}),
    (TypeError, {"until": b"7d"}),
    (TypeError, {"prefix": 1.5}),
    (TypeError, {"metadata": ["user"]}),
    (ValueError, {"kind": "other"}),
    (TypeError, {"ns": 1.5}),
]


def test_invalid_arguments_are_refused() -> None:
    with threadkeep.open("memory://") as keep:
        for wrong, options in WRONG:
            with pytest.raises(wrong):
                keep.activity(**options)
        for wrong, options in (
            (TypeError, {"limit": "3"}), (ValueError, {"limit": -1}), (ValueError, {"kind": "other"}),
            (ValueError, {"thread_id": "a", "prefix": "b"}), (TypeError, {"thread_id": b"a"}),
        ):  # fmt: skip
            with pytest.raises(wrong):
                keep.sizes(**options)
        with pytest.raises(TypeError):
            keep.trace(b"t")
        with pytest.raises(TypeError):
            keep.trace("t", 1.5)
        with pytest.raises(errors.Missing):
            keep.sizes(thread_id="nobody")


# --- sizes


def check_sums(keep: Keep) -> threadkeep.Sizes:
    result = keep.sizes(limit=100)
    infos = {(info.kind, info.id): info.bytes for info in keep.threads()}
    assert {(each.kind, each.id): each.stored for each in result.by_thread} == infos
    assert all(sum(each.by_kind.values()) == each.stored for each in result.by_thread)
    assert result.stored == sum(result.by_kind.values()) == sum(infos.values())
    held = sum(result.by_kind[kind] for kind in ("state", "writes", "unused"))
    assert sum(each.stored for each in result.by_channel) == held
    assert result.logical == result.written + result.state == sum(each.logical for each in result.by_thread)
    assert result.saved == result.logical - result.stored
    return result


def test_sizes_add_up_to_the_byte_whatever_was_done(keep: Keep) -> None:
    populated(keep)
    saver = keep.checkpointer
    chain = Chain(saver, "long", run="r1")
    chain.put({"log": [f"{n} " * 100 for n in range(700)], "blob": "ü" * 700_000})
    at = chain.put({"log": [f"{n} " * 100 for n in range(0, 700, 2)], "blob": "ü" * 700_000})
    saver.put_writes(at, [("log", ["only written " * 100]), ("note", 1)], "task")
    before = check_sums(keep)
    assert before.by_kind["writes"] > 0 < before.by_kind["write_rows"]
    assert [each.stored for each in before.by_thread] == sorted((e.stored for e in before.by_thread), reverse=True)
    saver.delete_for_runs(["r1"])
    keep.copy("fan", "copy")
    keep.copy("talk", "talk 2")
    asyncio.run(keep.cube.fork("talk", "talk 3", after_run_id="r1"))
    check_sums(keep)
    keep.prune("fan")
    keep.prune("talk")
    after = check_sums(keep)
    assert keep.sizes(limit=1).by_thread == after.by_thread[:1]
    assert keep.sizes(limit=0).by_thread == []
    one = keep.sizes(thread_id="copy")
    assert (one.threads, one.by_thread) == (1, keep.sizes(prefix="copy").by_thread)
    assert keep.sizes(kind="cube").threads == 3


def test_logical_bytes_are_those_of_every_value_and_write_as_it_was_encoded(seen: Keep) -> None:
    found = tuples(seen, "fan")
    result = {each.channel: each for each in seen.sizes(thread_id="fan").by_channel}
    for channel in ("log", "big"):
        values = [each.checkpoint["channel_values"] for each in found]
        assert result[channel].state == sum(whole(value[channel]) for value in values if channel in value)
        written = [value for each in found for _, name, value in each.pending_writes if name == channel]
        assert (result[channel].writes, result[channel].written) == (len(written), sum(map(encoded, written)))
        newest = max(
            (each for each in found if not each.config["configurable"]["checkpoint_ns"]),
            key=lambda e: e.config["configurable"]["checkpoint_id"],
        )
        assert result[channel].latest == whole(newest.checkpoint["channel_values"][channel])
    assert result["big"].stored < len(LONG) < result["big"].written


def test_a_thread_that_is_pruned_while_it_is_measured_has_its_new_size() -> None:
    bench = Bench()
    bench.write(put("1", values={"messages": ["a" * 300]}))
    bench.write(put("2", "1", values={"messages": ["b" * 300]}))
    pruned: list[bool] = []

    def interfere(request: Any) -> None:
        if isinstance(request, MeasureItems) and not pruned:
            pruned.append(True)
            made_requests = bench.made_requests
            bench.drive(prune.prune(bench.heads, KEY, prune.KEEP_LATEST, 7))
            bench.made_requests = made_requests

    result = bench.drive(sizes.measure_thread(bench.heads, KEY), before=interfere)
    assert [each.__name__ for each in bench.made_requests] == ["LoadThreadRows", "MeasureItems"] * 2
    assert result == bench.drive(sizes.measure_thread(bench.heads, KEY))
    assert result.thread.by_kind["unused"] == 0


# --- stats


def test_stats_count_threads_memories_and_what_the_storage_takes(url: str) -> None:
    with threadkeep.open(url) as keep:
        empty = keep.stats()
        assert (empty.threads, empty.oldest, empty.newest, empty.memories, empty.namespaces) == (0, None, None, 0, 0)
        write_thread(keep, "fan")
        write_cube_thread(keep, "talk")
        for n in range(3):
            keep.store.put(("a", str(n % 2)), f"k{n}", {"n": n})
        keep.store.put(("gone",), "k", {"n": 1}, ttl=1e-9)
        result, infos = keep.stats(), keep.threads()
        assert (result.threads, result.by_kind) == (2, {"graph": 1, "cube": 1})
        assert result.by_status == {"idle": 2, "pending": 0, "interrupted": 0, "error": 0}
        assert result.checkpoints == sum(info.checkpoints for info in infos)
        assert result.writes == sum(info.writes for info in infos)
        assert result.bytes == sum(info.bytes for info in infos)
        assert (result.oldest, result.newest) == (min(i.created for i in infos), max(i.updated for i in infos))
        assert (result.memories, result.namespaces) == (3, 2)
        check_storage(url, result.storage)
    if not url.startswith("memory"):
        with threadkeep.open(url, tenant="another") as keep:
            result = keep.stats()
            assert (result.threads, result.memories, result.namespaces) == (0, 0, 0)
            assert keep.activity().threads == keep.sizes().threads == 0


def check_storage(url: str, result: threadkeep.StorageSize | None) -> None:
    scheme = url.partition(":")[0]
    if scheme == "memory":
        assert result is None
        return
    assert result is not None
    assert (result.kind, result.bytes) == (scheme, sum(result.parts.values()))
    if scheme == "sqlite":
        path = Path(url.removeprefix("sqlite:///"))
        assert result.parts == {"file": path.stat().st_size, "wal": Path(f"{path}-wal").stat().st_size}
        with closing(apsw.Connection(str(path))) as connection:
            assert result.free == connection.pragma("freelist_count") * connection.pragma("page_size")
    elif scheme == "postgresql":
        assert len(result.parts) == 12
        assert result.parts["tk_items"] > 0
    else:
        assert len(result.parts) == 3
        assert result.keys is not None
        assert result.keys >= 2


def test_sync_and_async_verbs_agree(seen: Keep) -> None:
    async def run_json() -> list[Any]:
        return [
            await seen.atrace("fan", "latest~2", values=True),
            await seen.aactivity(prefix="fan"),
            await seen.asizes(limit=2),
            (await seen.astats()).bytes,
        ]

    assert asyncio.run(run_json()) == [
        seen.trace("fan", "latest~2", values=True),
        seen.activity(prefix="fan"),
        seen.sizes(limit=2),
        seen.stats().bytes,
    ]


@pytest.mark.parametrize("verb", ["activity", "sizes"])
def test_a_thread_that_is_deleted_meanwhile_is_skipped_and_no_lock_is_held(verb: str) -> None:
    with threadkeep.open("memory://") as keep:
        for thread in "abc":
            Chain(keep.checkpointer, thread).put({"log": [thread]})
        result = getattr(keep, verb)(on_progress=lambda done, *_: keep.delete("b") if done == 1 else None)
        assert result.threads == 2

        def interrupt(done: int, total: int | None, what: str) -> None:
            raise KeyboardInterrupt(done, total, what)

        with pytest.raises(KeyboardInterrupt) as raised:
            getattr(keep, verb)(on_progress=interrupt)
        assert raised.value.args == (1, None, "a")
        assert getattr(keep, verb)().threads == 2


# --- commands


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_commands_say_what_the_verbs_say(lasting_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with threadkeep.open(lasting_url) as keep:
        write_thread(keep, "fan")
        write_cube_thread(keep, "talk")
        url = ("--url", lasting_url)
        traced = keep.trace("fan", "latest~2", values=True)
        assert run_json(capsys, "trace", "fan", "latest~2", "--values", *url) == as_plain(traced)
        assert "value" not in run_json(capsys, "trace", "fan", "latest~2", *url)[0]
        assert run_json(capsys, "activity", "--prefix", "f", "--ns", "", *url) == as_plain(
            keep.activity(prefix="f", ns="")
        )
        assert run_json(capsys, "sizes", "--limit", "1", *url) == as_plain(keep.sizes(limit=1))
        assert run_json(capsys, "sizes", "fan", *url) == as_plain(keep.sizes(thread_id="fan"))
        assert run_json(capsys, "stats", *url)["by_kind"] == {"graph": 1, "cube": 1}
        assert [
            run([*words, *url]) for words in (["trace", "fan", "zzz"], ["trace", "nobody"], ["sizes", "nobody"])
        ] == [1, 1, 1]
        assert [
            run([*words, *url])
            for words in (["activity", "--since", "x"], ["activity", "--by", "x"], ["sizes", "fan", "--prefix", "f"])
        ] == [2, 2, 2]


def test_tables_show_nodes_channels_and_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = ("--url", str(tmp_path / "keep.db"))
    odd = "red \x1b[31m\ud800 [bold]"
    with threadkeep.open(f"sqlite:///{tmp_path / 'keep.db'}") as keep:
        write_thread(keep, "fan")
        Chain(keep.checkpointer, odd).put({"log": ["a"]})

    def shown(*words: str) -> str:
        assert run([*words, *url]) == 0
        return capsys.readouterr().out

    text = shown("trace", "fan", "latest~2", "--values")
    assert [word in text for word in ("ask", "__interrupt__", '["yes"]', "times in UTC")] == [True] * 4
    assert "no writes on this checkpoint" in shown("trace", "fan")
    assert "two, too" in shown("activity", "--since", "1d")
    assert "__interrupt__" in shown("activity", "--by", "channel")
    both = shown("activity", "--by", "both").splitlines()
    assert any(line.split()[:2] == ["ask", "__interrupt__"] for line in both)
    text = shown("sizes")
    assert r"red \x1b[31m\ud800 [bold]" in text
    assert "\x1b" not in text
    assert "values of writes only" in shown("sizes", "fan", "--by", "kind")
    assert "values of writes only" not in shown("sizes", "--by", "thread")
    assert "storage (sqlite)" in shown("stats")


def test_the_program_reads_a_file(tmp_path: Path) -> None:
    with threadkeep.open(f"sqlite:///{tmp_path / 'keep.db'}") as keep:
        write_thread(keep, "fan")
    done = subprocess.run(
        [sys.executable, "-m", "threadkeep", "activity", "--since", "7d", "--by", "node"], check=False, timeout=60,
        env=os.environ | {"THREADKEEP_URL": str(tmp_path / "keep.db")}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "two, too" in done.stdout
