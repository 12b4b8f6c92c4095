"""convert: the target has everything that the source has, for every pair of backends; interrupted, killed, repeated."""

from __future__ import annotations

import asyncio
import io
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import apsw
import pytest
from cubeloop.providers.base import TextContent, UserMessage
from langchain_core.messages import HumanMessage
from langgraph.types import Command

import sample_keep
import threadkeep
from checkpoint_trees import Put, PutWrites, put_steps
from concurrent_writers import prune_at_read
from conftest import BACKENDS, Backend
from processes import finish, start
from row_invariants import find_problems
from threadkeep.cli.app import run
from threadkeep.errors import Missing, ReadOnly
from threadkeep.transfer.convert import _read_vectors


@cache
def sample() -> threadkeep.Keep:
    """A Keep with one of everything, which tests only read."""
    keep = threadkeep.open("memory://")
    sample_keep.fill(keep)
    return keep


@cache
def sample_contents() -> dict[str, Any]:
    return sample_keep.contents(sample())


@pytest.fixture
def open_on(tmp_path: Path) -> Iterator[Callable[[Backend], threadkeep.Keep]]:
    opened: list[threadkeep.Keep] = []

    def opening(backend: Backend) -> threadkeep.Keep:
        opened.append(threadkeep.open(backend.fresh(tmp_path, len(opened))))
        return opened[-1]

    yield opening
    for keep in opened:
        keep.close()


def new() -> threadkeep.Keep:
    return threadkeep.open("memory://")


@pytest.mark.parametrize("target", BACKENDS, ids=lambda backend: f"to-{backend.name}")
@pytest.mark.parametrize("source", BACKENDS, ids=lambda backend: backend.name)
def test_everything_is_the_same_on_another_backend_and_continues_there(
    source: Backend, target: Backend, open_on: Callable[[Backend], threadkeep.Keep]
) -> None:
    one, other = open_on(source), open_on(target)
    threadkeep.convert(sample(), one)
    done = threadkeep.convert(one, other)
    assert (done.threads, done.created, done.memories, done.differences) == (11, 11, 72, ())
    assert sample_keep.contents(other) == sample_contents()
    again = threadkeep.convert(one, other)
    assert (again.unchanged, again.created, again.updated, again.memories, again.differences) == (11, 0, 0, 0, ())
    asyncio.run(one.cube.append("talk", [UserMessage(content=[TextContent(text="more")])]))
    assert threadkeep.convert(one, other, kind="cube").updated == 1
    assert asyncio.run(other.cube.load("talk")) == asyncio.run(one.cube.load("talk"))
    answered = sample_keep.NESTED(other.checkpointer).invoke(Command(resume="Ana"), sample_keep.thread("nested"))
    assert answered["said"][-1] == "heard Ana"
    talked = sample_keep.CHAT(other.checkpointer).invoke({"messages": [HumanMessage("on")]}, sample_keep.CONTINUED)
    assert talked["messages"][-3].content == "on"
    done = threadkeep.convert(one, other)
    assert (done.unchanged, done.merged, done.differences) == (9, 2, ())
    assert sample_keep.CHAT(other.checkpointer).get_state(sample_keep.CONTINUED).values == talked


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each.lasting], ids=lambda backend: backend.name)
def test_rows_items_and_index_are_sound_after_a_conversion(backend: Backend, tmp_path: Path) -> None:
    url = backend.fresh(tmp_path, 1)
    threadkeep.convert(sample(), url)
    assert find_problems(Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else url) == []
    with threadkeep.open(url) as keep:
        found = keep.threads(metadata={"customer_email": "ana@example.org"})
        assert [info.id for info in found] == ["chat"]
        keep.checkpointer.delete_for_runs(["run-2"])  # run ids are known
        assert [each.checkpoint["id"] for each in keep.checkpointer.list(sample_keep.thread("private-thread"))] == [
            "c2",
            "c0",
        ]


def test_a_thread_of_another_source_is_never_taken_for_a_newer_one() -> None:
    """Two sources may each have a thread `1`: the one that came first stays."""
    sources, by_conversion, by_file = [new(), new()], new(), new()
    for n, one in enumerate(sources):
        time.sleep(0.005)  # created at another time
        put_steps(one.checkpointer, "1", [Put(f"c{n}", None, {"a": [n]})])
        asyncio.run(one.cube.append("talk", [UserMessage(content=[TextContent(text=f"{n}")])]))
        converted = threadkeep.convert(one, by_conversion)
        one.export(file := io.BytesIO())
        imported = by_file.import_portable(io.BytesIO(file.getvalue()))
        for done in (converted, imported):
            assert (done.updated, done.conflicting, len(done.differences)) == (0, n, n), "a cube thread is not merged"
    for keep in (by_conversion, by_file):
        assert {each.checkpoint["id"] for each in keep.checkpointer.list(sample_keep.thread("1"))} == {"c0", "c1"}
        assert asyncio.run(keep.cube.load("talk")).messages[0].content[0].text == "0"


def test_what_changed_in_the_source_is_copied_by_the_next_conversion() -> None:
    one, other = new(), new()
    threadkeep.convert(sample(), one)
    threadkeep.convert(one, other)
    asyncio.run(one.cube.append("talk", [UserMessage(content=[TextContent(text="later")])]))
    one.checkpointer.prune(["chat"])
    one.store.put(("users",), "short", {"text": "newer"})
    done = threadkeep.convert(one, other)
    assert (done.updated, done.unchanged, done.memories, done.differences) == (2, 9, 1, ())
    assert sample_keep.contents(other) == sample_keep.contents(one)


def test_a_thread_that_went_on_in_the_target_gets_what_it_lacks_and_keeps_its_own() -> None:
    one, other = new(), new()
    put_steps(one.checkpointer, "t", [Put("c0", None, {"a": ["first"]}), Put("c1", "c0", {"a": ["first", "second"]})])
    threadkeep.convert(one, other)
    put_steps(
        other.checkpointer, "t", [Put("c2", "c1", {"a": ["the target's"]}), PutWrites("c1", "mine", (("a", "kept"),))]
    )
    put_steps(one.checkpointer, "t", [Put("c2", "c1", {"a": ["the source's"]}), Put("c3", "c2", {"a": ["new"]})])
    times = {each.id: each.time for each in _checkpoints(one)}
    done = threadkeep.convert(one, other)
    assert (done.merged, done.differences) == (1, ())
    values = {each.checkpoint["id"]: each.checkpoint["channel_values"]["a"] for each in other.checkpointer.list(None)}
    assert values == {"c3": ["new"], "c2": ["the target's"], "c1": ["first", "second"], "c0": ["first"]}
    assert {each.id: each.time for each in _checkpoints(other)}["c3"] == times["c3"]
    assert other.checkpointer.get_tuple(trees_config("c1")).pending_writes == [("mine", "a", "kept")]


def _checkpoints(keep: threadkeep.Keep) -> list[Any]:
    from threadkeep.engine.threads import damaged_rows

    whole = keep._session.runner.run(
        damaged_rows.load_thread_rows(keep._session.heads, keep._session.key("graph", "t"))
    )
    return [record.row for record in whole.records.values()]


def trees_config(id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": id}}


def test_a_cube_thread_that_went_on_in_the_target_is_left_alone_and_reported() -> None:
    one, other = new(), new()
    asyncio.run(one.cube.append("t", [UserMessage(content=[TextContent(text="a")])]))
    put_steps(one.checkpointer, "graph", [Put("c0", None, {"a": 1})])
    asyncio.run(other.cube.append("t", [UserMessage(content=[TextContent(text="b")])]))
    done = threadkeep.convert(one, other)
    assert (done.threads, done.created) == (2, 1)
    assert [each.partition(":")[0] for each in done.differences] == ["cube thread 't'"]
    assert asyncio.run(other.cube.load("t")).messages[0].content[0].text == "b"


def test_a_memory_that_is_newer_in_the_target_stays_and_is_no_difference() -> None:
    one, other = new(), new()
    one.store.put(("n",), "old", {"v": "source"})
    one.store.put(("n",), "k", {"v": "source"})
    threadkeep.convert(one, other)
    other.store.put(("n",), "old", {"v": "target"})
    one.store.put(("n",), "k", {"v": "source, later"})
    done = threadkeep.convert(one, other)
    assert (done.memories, done.already_there, done.differences) == (1, 1, ())
    assert [other.store.get(("n",), key).value["v"] for key in ("old", "k")] == ["target", "source, later"]


def test_some_threads_are_converted_with_memories_or_without() -> None:
    def moved(**options: Any) -> tuple[list[str], int]:
        other = new()
        done = threadkeep.convert(sample(), other, **options)
        assert done.memories == len(other.store.search((), limit=1000))
        return [info.id for info in other.threads(order="id")], done.memories

    assert moved(thread_id="fan") == (["fan"], 0)
    assert moved(thread_id=["talk", "fan"], memories=True) == (["fan", "talk"], 72)
    assert moved(prefix="p") == (["private-thread", "pruned"], 0)
    assert moved(kind="cube") == (["forked", "talk"], 0)
    other = new()
    would = threadkeep.convert(sample(), other, dry_run=True)
    assert (would.created, would.memories, would.dry_run, other.threads()) == (11, 72, True, [])
    with pytest.raises(Missing, match="nobody"):
        threadkeep.convert(sample(), other, thread_id="nobody")
    with pytest.raises(ValueError, match="not both"):
        threadkeep.convert(sample(), other, thread_id="a", prefix="b")
    with pytest.raises(ValueError, match="kind"):
        threadkeep.convert(sample(), other, kind="other")
    with pytest.raises(ValueError, match="same Keep"):
        threadkeep.convert(other, other)


def test_tenants_stay_separate(tmp_path: Path) -> None:
    url, target = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    for tenant in ("", "x"):
        with threadkeep.open(url, tenant=tenant) as keep:
            put_steps(keep.checkpointer, f"of {tenant}", [Put("c0", None, {"a": 1})])
    assert threadkeep.convert(url, target, tenant="x").threads == 1
    with threadkeep.open(target) as ours, threadkeep.open(target, tenant="x") as theirs:
        assert (ours.threads(), [info.id for info in theirs.threads()]) == ([], ["of x"])
        moved = threadkeep.convert(theirs, ours)  # from one tenant to another
        assert (moved.created, [info.id for info in ours.threads()]) == (1, ["of x"])


KEYS = {name: threadkeep.Keys({name: bytes([n]) * 32}, primary=name) for n, name in enumerate(("one", "other"))}


@pytest.mark.parametrize(("source", "target"), [("one", "other"), ("one", None), (None, "one"), ("one", "one")])
def test_a_thread_is_encrypted_with_the_keys_of_the_target_and_with_no_others(
    source: str | None, target: str | None, tmp_path: Path
) -> None:
    one, other = (f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "other"))
    with threadkeep.open(one, keys=KEYS.get(source or "")) as keep:
        sample_keep.fill(keep)
        expected = sample_keep.contents(keep)
    keys = {"source_keys": KEYS.get(source or ""), "target_keys": KEYS.get(target or "")}
    done = threadkeep.convert(one, other, **keys)
    assert done.differences == ()
    assert done.created > 0
    assert threadkeep.convert(one, other, **keys, verify=False).unchanged == done.created
    with threadkeep.open(other, keys=KEYS.get(target or "")) as keep:
        assert sample_keep.contents(keep) == expected
        assert keep.verify().ok
    rows = list(apsw.Connection(f"{tmp_path}/other.db").execute("SELECT sealed IS NOT NULL FROM tk_threads"))
    assert {bool(sealed) for (sealed,) in rows} == {target is not None}


def test_vectors_are_copied_if_the_target_has_no_embedder_and_recomputed_if_it_has(
    tmp_path: Path, lasting_url: str
) -> None:
    embedded_texts: list[str] = []

    def embed(texts: list[str]) -> list[list[float]]:
        embedded_texts.extend(texts)
        return [[float(len(text)), 1.0] for text in texts]

    index = {"dims": 2, "embed": embed, "fields": ["text"]}
    source = f"sqlite:///{tmp_path / 'a.db'}"
    with threadkeep.open(source, index=index) as keep:
        keep.store.put(("n",), "long", {"text": "x" * 50})
        keep.store.put(("n",), "short", {"text": "x"})
    embedded_texts.clear()
    assert threadkeep.convert(source, lasting_url).memories == 2
    assert embedded_texts == []
    with threadkeep.open(lasting_url, index=index) as keep:
        assert [item.key for item in keep.store.search(("n",), query="x" * 50)] == ["long", "short"]
    embedded_texts.clear()
    with threadkeep.open("memory://", index=index) as keep:
        threadkeep.convert(lasting_url, keep)
        assert sorted(embedded_texts) == ["x", "x" * 50]
        assert [item.key for item in keep.store.search(("n",), query="x" * 50)] == ["long", "short"]
    with threadkeep.open("memory://") as bare, threadkeep.open("memory://", index=index) as keep:
        threadkeep.convert(lasting_url, bare)
        kept = bare._session.runner.run(_read_vectors("", "n"))
        threadkeep.convert(bare, keep)
        assert sorted(kept.values()) == sorted(keep._session.runner.run(_read_vectors("", "n")).values())


async def test_an_event_loop_is_not_blocked_by_a_conversion_an_export_or_an_import(tmp_path: Path) -> None:
    source, target = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    async with threadkeep.open(source) as one, threadkeep.open(target) as other:
        await one.cube.append("t", [UserMessage(content=[TextContent(text="a")])])
        assert (await threadkeep.aconvert(one, other)).created == 1
        assert (await one.aexport(tmp_path / "file.tk")).threads == 1
        assert (await other.aimport_portable(tmp_path / "file.tk")).differences == ()


def test_the_source_is_only_read_and_a_read_only_target_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    threadkeep.convert(sample(), url, thread_id="fan")
    before = (tmp_path / "a.db").read_bytes()
    threadkeep.convert(url, new())
    assert (tmp_path / "a.db").read_bytes() == before
    with threadkeep.open(url, read_only=True) as keep, pytest.raises(ReadOnly):
        threadkeep.convert(sample(), keep, thread_id="chat")


# --- interrupted

_LARGE = 5_000_000


def _fill(path: Path) -> None:
    """Write many threads, and one that takes several commits."""
    chance = random.Random(1)
    with threadkeep.open(f"sqlite:///{path}", durability="relaxed") as keep:
        put_steps(
            keep.checkpointer, "m large", [Put(f"c{n}", None, {"a": [chance.randbytes(_LARGE)]}) for n in range(2)]
        )
        for n in range(40):
            put_steps(keep.checkpointer, f"t{n:02}", [Put("c0", None, {"a": [chance.randbytes(500), n]})])
            put_steps(keep.checkpointer, f"a{n:02}", [Put("c0", None, {"a": n})])


def test_a_conversion_that_is_killed_or_interrupted_is_ended_by_the_same_command(tmp_path: Path) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    _fill(source)
    command = [sys.executable, "-m", "threadkeep", "convert", str(source), str(target)]
    chance = random.Random(2)
    for sign in (signal.SIGKILL, signal.SIGINT):
        before = _count(target)
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while child.poll() is None and _count(target) == before:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.15))
        child.send_signal(sign)
        _, err = child.communicate()
        assert find_problems(target) == []
        if child.returncode:  # if Ctrl-C comes while the process is exiting, the signal itself ends it
            assert child.returncode in ((-sign,) if sign == signal.SIGKILL else (130, -sign)), err
        if child.returncode == 130:
            assert b"the same command continues" in err
    assert finish(start("from threadkeep.cli import main; main()", *command[3:])).endswith("both sides are equal\n")
    assert find_problems(target) == []
    with threadkeep.open(f"sqlite:///{source}") as one, threadkeep.open(f"sqlite:///{target}") as other:
        assert len(other.threads(limit=1000)) == 81
        assert sample_keep.contents(other) == sample_keep.contents(one)


def _count(path: Path) -> int:
    """Return how many threads a file has now."""
    try:
        found = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY).execute("SELECT count(*) FROM tk_threads")
        return int(found.get)
    except apsw.Error:
        return 0


def test_a_partly_copied_thread_is_not_visible_to_a_graph_and_is_copied_again() -> None:
    one, other = new(), new()
    chance = random.Random(3)
    put_steps(one.checkpointer, "t", [Put("c0", None, {"a": [chance.randbytes(400_000) for _ in range(30)]})])
    seen = []

    def stop(*progress: Any) -> None:
        seen.append(progress)

    transport = other._session.transport
    write = transport.write

    def fail_third(requests: Any) -> Any:
        fail_third.count += 1
        if fail_third.count >= 3:
            raise KeyboardInterrupt
        return write(requests)

    fail_third.count = 0
    transport.write = fail_third
    with pytest.raises(KeyboardInterrupt):
        threadkeep.convert(one, other, on_progress=stop)
    transport.write = write
    assert [(info.id, info.checkpoints) for info in other.threads()] == [("t", 0)]
    assert other.checkpointer.get_tuple(sample_keep.thread("t")) is None
    third, file = new(), io.BytesIO()
    assert threadkeep.convert(other, third).created == other.export(file).threads == 0  # not a thread yet
    assert threadkeep.convert(one, other).created == 1
    assert sample_keep.contents(other) == sample_keep.contents(one)
    assert seen[0] == (0, 1, "t")


def test_a_source_that_changes_while_it_is_read_is_read_again() -> None:
    one, other = new(), new()
    chance = random.Random(4)
    put_steps(one.checkpointer, "t", [Put(f"c{n}", None, {"a": [chance.randbytes(300_000)]}) for n in range(40)])
    reads = prune_at_read(one, "t", number=6)
    done = threadkeep.convert(one, other)
    assert (len(reads), done.created + done.updated, done.differences) == (6, 1, ())
    assert sample_keep.contents(other) == sample_keep.contents(one)


# --- the command


def test_the_command_converts_and_reports_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = tmp_path / "a.db", tmp_path / "b.db"
    threadkeep.convert(sample(), f"sqlite:///{one}")
    assert run(["convert", str(one), str(other), "--dry-run"]) == 0
    assert "would convert 11 threads from threadkeep: 11 created" in capsys.readouterr().out
    assert not other.exists()
    assert run(["convert", str(one), str(other), "--prefix", "p", "--no-verify"]) == 0
    assert capsys.readouterr().out.startswith("converted 2 threads from threadkeep: 2 created\n")
    assert run(["convert", str(other), "--url", str(one), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["threads"], result["created"], result["unchanged"], result["memories"], result["verified"]) == (
        11,
        9,
        2,
        72,
        True,
    )
    with threadkeep.open(f"sqlite:///{other}") as keep:
        asyncio.run(keep.cube.append("talk", [UserMessage(content=[TextContent(text="on")])]))
    assert run(["convert", str(one), str(other)]) == 1
    assert "differs: cube thread 'talk': the target has another CubeLoop thread" in capsys.readouterr().out
    assert run(["convert", str(tmp_path / "none.db"), str(other)]) == 2
    assert run(["convert", str(one), str(other), "--thread", "none"]) == 1
    assert "thread 'none' not found" in capsys.readouterr().err


# --- large

_HEAVY = r"""
import io, re, sys
from pathlib import Path
import threadkeep
sys.path.insert(0, {tests!r})
from checkpoint_trees import Put, put_steps

verb, source, target = sys.argv[1:]
def peak():  # not ru_maxrss: a child begins with its parent's
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024

with threadkeep.open("memory://") as small:
    put_steps(small.checkpointer, "t", [Put("c0", None, {{"a": [1]}})])
    threadkeep.convert(small, "memory://")
    small.export(io.BytesIO())
before = peak()
if verb == "convert":
    print(threadkeep.convert("sqlite:///" + source, "sqlite:///" + target).differences)
elif verb == "export":
    threadkeep.open("sqlite:///" + source).export(target)
else:
    print(threadkeep.open("sqlite:///" + target).import_portable(source).differences)
print(peak() - before)
"""


@pytest.mark.long
def test_a_large_thread_takes_little_memory(tmp_path: Path) -> None:
    chance = random.Random(5)
    source = tmp_path / "a.db"
    with threadkeep.open(f"sqlite:///{source}", durability="relaxed") as keep:
        for n in range(50):
            values = {"a": [chance.randbytes(100_000) for _ in range(10)], "b": list(range(n))}
            put_steps(keep.checkpointer, "t", [Put(f"c{n:02}", f"c{n - 1:02}" if n else None, values)])
    assert source.stat().st_size > 50_000_000
    script = _HEAVY.format(tests=str(Path(__file__).parent))
    steps = [("convert", source, "b.db"), ("export", source, "c.tk"), ("import", tmp_path / "c.tk", "d.db")]
    for verb, where, target in steps:
        *result, grown = finish(start(script, verb, where, tmp_path / target)).splitlines()
        assert set(result) <= {"()"}
        assert 0 < int(grown) < 100, verb
    with threadkeep.open(f"sqlite:///{tmp_path / 'd.db'}") as keep, threadkeep.open(f"sqlite:///{source}") as first:
        assert len(list(keep.checkpointer.list(None))) == 50
        last = sample_keep.thread("t")
        assert keep.checkpointer.get_tuple(last) == first.checkpointer.get_tuple(last)
