"""The portable file: export and import; truncated, forged and redacted files; the reader in the documentation."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import re
import subprocess
import sys
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
import zstandard
from cubeloop.providers.base import TextContent, UserMessage
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.types import Command

import sample_keep
import threadkeep
from checkpoint_trees import Put, PutWrites, put_steps, random_trees
from concurrent_writers import prune_at_read
from conftest import BACKENDS, Backend
from row_invariants import find_problems
from sample_keep import thread
from threadkeep.cli.app import run
from threadkeep.engine.commit import commit_once
from threadkeep.engine.requests import CopyThread
from threadkeep.transfer.compare import read_thread_row
from threadkeep.transfer.portable import files

ROOT = Path(__file__).resolve().parents[1]


@cache
def sample() -> threadkeep.Keep:
    keep = threadkeep.open("memory://")
    sample_keep.fill(keep)
    return keep


@cache
def exported(*, redact: bool = False) -> bytes:
    """The portable file of the sample Keep."""
    out = io.BytesIO()
    sample().export(out, redact=redact)
    return out.getvalue()


def file_of(keep: threadkeep.Keep) -> bytes:
    out = io.BytesIO()
    keep.export(out)
    return out.getvalue()


def new() -> threadkeep.Keep:
    return threadkeep.open("memory://")


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in plain(data).splitlines()]


def plain(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()


def written(records: list[dict[str, Any]]) -> io.BytesIO:
    """Return lines without checksums."""
    rows = [{key: value for key, value in each.items() if key != "crc"} for each in records]
    return io.BytesIO(b"".join(json.dumps(row).encode() + b"\n" for row in rows))


@pytest.mark.parametrize("target", BACKENDS, ids=lambda backend: f"to-{backend.name}")
@pytest.mark.parametrize("source", BACKENDS, ids=lambda backend: backend.name)
def test_a_file_of_one_backend_is_the_same_on_another_and_continues_there(
    source: Backend, target: Backend, tmp_path: Path
) -> None:
    url = target.fresh(tmp_path, 1)
    with threadkeep.open(source.fresh(tmp_path, 0)) as one, threadkeep.open(url) as other:
        one.import_portable(io.BytesIO(exported()))
        done = one.export(tmp_path / "file.tk")
        assert (done.threads, done.memories, done.redacted) == (11, 72, False)
        assert files.is_portable(tmp_path / "file.tk")
        done = other.import_portable(tmp_path / "file.tk")
        assert (done.threads, done.created, done.memories, done.differences) == (11, 11, 72, ())
        assert sample_keep.contents(other) == sample_keep.contents(sample())
        again = other.import_portable(str(tmp_path / "file.tk"))
        assert (again.created, again.unchanged, again.memories, again.differences, again.complete) == (
            0,
            11,
            0,
            (),
            True,
        )
        answered = sample_keep.NESTED(other.checkpointer).invoke(Command(resume="Ana"), thread("nested"))
        assert answered["said"][-1] == "heard Ana"
        talked = sample_keep.CHAT(other.checkpointer).invoke({"messages": [HumanMessage("on")]}, sample_keep.CONTINUED)
        done = other.import_portable(tmp_path / "file.tk")
        assert (done.unchanged, done.merged, done.differences) == (9, 2, ())
        assert sample_keep.CHAT(other.checkpointer).get_state(sample_keep.CONTINUED).values == talked
    if target.lasting:
        assert find_problems(Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else url) == []


def test_a_file_is_as_small_as_what_it_holds() -> None:
    keep = new()
    messages: list[Any] = []
    chance = random.Random(1)
    for n in range(200):
        messages = [*messages, {"id": f"m{n}", "text": chance.randbytes(200).hex()}]
        put_steps(keep.checkpointer, "t", [Put(f"c{n:03}", f"c{n - 1:03}" if n else None, {"messages": messages})])
    out = io.BytesIO()
    result = keep.export(out)
    assert result.items == 200
    assert len(out.getvalue()) < 2 * 200 * 200 + 40_000
    assert result.bytes < 500_000


def test_a_path_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    keep = new()
    put_steps(keep.checkpointer, "t", [Put("c0", None, {"a": 1})])
    new().export(tmp_path / "a.jsonl")
    old = (tmp_path / "a.jsonl").read_bytes()

    def fail(*_: Any) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        keep.export(tmp_path / "a.jsonl", on_progress=fail)
    assert (tmp_path / "a.jsonl").read_bytes() == old
    keep.export(tmp_path / "a.jsonl")
    keep.export(tmp_path / "a.tk")
    result = (tmp_path / "a.jsonl").read_bytes()
    assert re.sub(rb'"made":"[^"]*"|"crc":"\w*"', b"", plain((tmp_path / "a.tk").read_bytes())) == re.sub(
        rb'"made":"[^"]*"|"crc":"\w*"', b"", result
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "a.tk"]
    assert new().import_portable(tmp_path / "a.jsonl").created == 1
    assert not files.is_portable(tmp_path / "none")
    assert not files.is_portable(Path(__file__))


def test_a_link_stays_a_link_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    keep = threadkeep.open("memory://")
    keep.store.put(("n",), "k", {"v": 1})
    (tmp_path / "real.tk").touch()
    (tmp_path / "link.tk").symlink_to("real.tk")
    keep.export(tmp_path / "link.tk")
    assert (tmp_path / "link.tk").is_symlink()
    assert files.is_portable(tmp_path / "real.tk")
    os.mkfifo(tmp_path / "pipe")
    reading = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    keep.export(tmp_path / "pipe")
    result, _ = reading.communicate(timeout=60)
    assert (tmp_path / "pipe").is_fifo()
    assert threadkeep.open("memory://").import_portable(io.BytesIO(result)).memories == 1


def test_some_threads_only_out_of_a_keep_or_out_of_a_file() -> None:
    def out(**options: Any) -> tuple[list[str], int]:
        file = io.BytesIO()
        sample().export(file, **options)
        records = lines(file.getvalue())
        return [each["id"] for each in records if each["type"] == "thread"], sum(
            each["type"] == "memory" for each in records
        )

    assert out(thread_id="fan") == (["fan"], 0)
    assert out(thread_id=["talk", "fan"], memories=True) == (["talk", "fan"], 72)
    assert out(prefix="p", kind="graph") == (["private-thread", "pruned"], 0)
    assert out(memories=False)[1] == 0
    keep = new()
    done = keep.import_portable(io.BytesIO(exported()), prefix="f")
    assert (done.threads, done.memories, done.complete) == (2, 0, True)
    assert [info.id for info in keep.threads(order="id")] == ["fan", "forked"]
    with pytest.raises(threadkeep.errors.Missing, match="nobody"):
        sample().export(io.BytesIO(), thread_id="nobody")
    with pytest.raises(threadkeep.errors.Missing, match="nobody"):
        new().import_portable(io.BytesIO(exported()), thread_id=["fan", "nobody"])
    with pytest.raises(TypeError, match="thread_id"):
        sample().export(io.BytesIO(), thread_id=1.5)


def test_an_existing_thread_stays_and_gets_what_it_lacks() -> None:
    one, other = new(), new()
    put_steps(one.checkpointer, "t", [Put("c0", None, {"a": ["x"]}), PutWrites("c0", "task", (("a", "w"),))])
    asyncio.run(one.cube.append("talk", [UserMessage(content=[TextContent(text="a")])]))
    put_steps(other.checkpointer, "t", [Put("c0", None, {"a": ["mine"]}), Put("c9", "c0", {"a": ["mine"]})])
    asyncio.run(other.cube.append("talk", [UserMessage(content=[TextContent(text="b")])]))
    put_steps(one.checkpointer, "t", [Put("c1", "c0", {"a": ["y"]})])
    file = io.BytesIO()
    one.export(file)
    for _ in range(2):
        done = other.import_portable(io.BytesIO(file.getvalue()))
        assert (done.threads, done.merged, len(done.differences)) == (2, 1, 1)
        values = {
            each.checkpoint["id"]: each.checkpoint["channel_values"]["a"] for each in other.checkpointer.list(None)
        }
        assert values == {"c9": ["mine"], "c1": ["y"], "c0": ["mine"]}
        assert asyncio.run(other.cube.load("talk")).messages[0].content[0].text == "b"
    assert [info.id for info in other.threads(order="id", limit=10)] == ["t", "talk"]
    third = new()
    third.import_portable(io.BytesIO(file.getvalue()))
    asyncio.run(one.cube.append("talk", [UserMessage(content=[TextContent(text="later")])]))
    newer = io.BytesIO()
    one.export(newer)
    assert third.import_portable(io.BytesIO(newer.getvalue())).updated == 1
    assert len(asyncio.run(third.cube.load("talk")).messages) == 2
    older = third.import_portable(io.BytesIO(file.getvalue()))  # a cube thread cannot go back
    assert (older.updated, len(older.differences)) == (0, 1)
    assert len(asyncio.run(third.cube.load("talk")).messages) == 2


def test_a_dry_run_of_a_file_counts_what_an_import_writes() -> None:
    keep = new()
    would = keep.import_portable(io.BytesIO(exported()), dry_run=True)
    assert (would.dry_run, would.verified, keep.threads(), keep.store.search(())) == (True, False, [], [])
    done = keep.import_portable(io.BytesIO(exported()))
    assert replace(would, dry_run=False, verified=True, bytes=done.bytes) == done
    assert done.bytes > 0


def test_a_memory_that_is_newer_here_stays() -> None:
    one, other = new(), new()
    one.store.put(("n",), "k", {"v": "old"})
    file = io.BytesIO()
    one.export(file)
    other.store.put(("n",), "k", {"v": "new"})
    assert other.import_portable(io.BytesIO(file.getvalue())).memories == 0
    assert other.store.get(("n",), "k").value == {"v": "new"}


def test_a_thread_that_is_pruned_while_it_is_exported_is_written_again() -> None:
    keep = new()
    chance = random.Random(4)
    put_steps(keep.checkpointer, "t", [Put(f"c{n:02}", None, {"a": [chance.randbytes(300_000)]}) for n in range(40)])
    prune_at_read(keep, "t", number=5)
    file = io.BytesIO()
    result = keep.export(file)
    kinds = [each["type"] for each in lines(file.getvalue())]
    assert (result.threads, result.checkpoints, kinds.count("thread-void"), kinds.count("thread")) == (1, 1, 1, 2)
    other = new()
    assert other.import_portable(io.BytesIO(file.getvalue())).created == 1
    assert sample_keep.contents(other) == sample_keep.contents(keep)


# --- truncated and forged files


def test_a_truncated_file_is_detected_and_its_whole_threads_are_imported() -> None:
    data = plain(exported())
    ends = [found.end() for found in re.finditer(rb"\n", data)]
    chance = random.Random(3)
    for cut in [ends[0], ends[-2], *(chance.randrange(len(data) - 1) for _ in range(6))]:
        keep = new()
        with pytest.raises(ValueError, match="cut off|not a portable file"):
            keep.import_portable(io.BytesIO(data[:cut]))
        whole = data[:cut].count(b'{"type":"thread-end"')
        there = {info.id for info in keep.threads(limit=100) if info.checkpoints}
        assert len(there) in (whole, whole - 1)
        if cut > ends[0]:
            done = new().import_portable(io.BytesIO(data[:cut]), partial=True)
            assert (done.complete, done.threads) == (False, len(there))
    for cut in (40, len(exported()) // 2, len(exported()) - 5):
        with pytest.raises(ValueError, match="cut off|not a portable file|decompressed"):
            new().import_portable(io.BytesIO(exported()[:cut]))


@pytest.mark.parametrize("target", BACKENDS, ids=lambda backend: backend.name)
def test_a_file_that_is_cut_off_leaves_the_older_state_of_the_thread_that_it_updates(
    target: Backend, tmp_path: Path
) -> None:
    url = target.fresh(tmp_path, 0)
    source = new()
    put_steps(source.checkpointer, "t", [Put("c0", None, {"a": ["x"]}), PutWrites("c0", "task", (("a", "w"),))])
    asyncio.run(source.cube.append("u", [UserMessage(content=[TextContent(text="a")])]))
    older = file_of(source)
    put_steps(source.checkpointer, "t", [Put("c1", "c0", {"a": ["x", "y"]})])
    asyncio.run(source.cube.append("u", [UserMessage(content=[TextContent(text="b")])]))
    data = plain(file_of(source))
    first, second = (found.start() for found in re.finditer(rb'{"type":"thread-end"', data))
    with threadkeep.open(url) as keep:
        keep.import_portable(io.BytesIO(older))
        before = lines(file_of(keep))[1:]
        for cut in (first, first - 20):  # inside the first thread
            with pytest.raises(ValueError, match="cut off|line"):
                keep.import_portable(io.BytesIO(data[:cut]))
            assert lines(file_of(keep))[1:] == before
        done = keep.import_portable(io.BytesIO(data[:second]), partial=True)  # inside the second
        assert (done.threads, done.updated, done.differences) == (1, 1, ())
        done = keep.import_portable(io.BytesIO(data))
        assert (done.threads, done.updated, done.unchanged, done.differences) == (2, 1, 1, ())
        assert lines(file_of(keep))[1:] == lines(file_of(source))[1:]
        session = keep._session
        row = session.work(read_thread_row(session.key("graph", "t")))
        new_row, wrong = row._replace(epoch=row.epoch + 1), (row.epoch, row.rev + 1)
        copied = CopyThread(row.key, (row.epoch, row.rev), new_row, replaces=wrong)
        with pytest.raises(threadkeep.errors.Conflict):
            session.exclusive(row.key, lambda: commit_once(session.heads, copied))
    if target.lasting:
        assert find_problems(Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else url) == []


def test_a_changed_byte_is_detected() -> None:
    data = bytearray(plain(exported()))
    chance = random.Random(5)
    for _ in range(25):
        at = chance.randrange(len(data))
        damaged = bytearray(data)
        damaged[at] ^= 1 << chance.randrange(7)
        keep = new()
        with pytest.raises(ValueError, match=r"line \d+|cut off"):
            keep.import_portable(io.BytesIO(bytes(damaged)))
        assert all(info.checkpoints or info.writes for info in keep.threads(limit=100))
    packed = bytearray(exported())
    packed[len(packed) // 2] ^= 1
    with pytest.raises(ValueError, match=r"line \d+|cut off"):
        new().import_portable(io.BytesIO(bytes(packed)))


def small() -> list[dict[str, Any]]:
    keep = new()
    put_steps(
        keep.checkpointer, "t", [Put("c0", None, {"a": ["x" * 300]}), PutWrites("c0", "task", (("a", "y" * 300),))]
    )
    keep.store.put(("n",), "k", {"v": 1})
    file = io.BytesIO()
    keep.export(file)
    return lines(file.getvalue())


FORGED: dict[str, tuple[str, dict[str, Any]]] = {
    "no such kind": ("thread", {"kind": "other"}),
    "no id": ("thread", {"id": 5}),
    "a status": ("thread", {"status": "well"}),
    "a time": ("thread", {"created": 1 << 70}),
    "a time that is true": ("thread", {"created": True}),
    "data that is no bytes": ("item", {"data": "\u0100"}),
    "a number of an item": ("item", {"n": -1}),
    "many elements": ("item", {"elements": 1 << 30}),
    "a large item": ("item", {"data": "x" * 600_000}),
    "a run that is not there": (
        "checkpoint",
        {"values": {"a": {"tag": "msgpack", "of": "list", "elements": 1, "runs": ["a", 0, 9]}}},
    ),
    "a lane that is not there": (
        "checkpoint",
        {"values": {"a": {"tag": "msgpack", "of": "list", "elements": 1, "runs": ["z", 0, 1]}}},
    ),
    "an endless run": (
        "checkpoint",
        {"values": {"a": {"tag": "msgpack", "of": "list", "elements": 1, "runs": ["a", 0, 1 << 40]}}},
    ),
    "half a run": ("checkpoint", {"values": {"a": {"tag": "msgpack", "of": "list", "elements": 1, "runs": ["a", 0]}}}),
    "a list that is not there": (
        "checkpoint",
        {"values": {"a": {"tag": "msgpack", "of": "list", "elements": 1, "lists": [0]}}},
    ),
    "of what": ("checkpoint", {"values": {"a": {"tag": "msgpack", "of": "set", "runs": []}}}),
    "no value": ("checkpoint", {"values": {"a": 5}}),
    "no versions": ("checkpoint", {"versions": [1]}),
    "versions that are lists": ("checkpoint", {"versions": {"a": [1]}}),
    "bad msgpack": ("checkpoint", {"metadata": {"a": {"$msgpack": "\xc1"}}}),
    "a step": ("checkpoint", {"step": 1 << 80}),
    "no task": ("writes", {"task": None}),
    "no entries": ("writes", {"entries": []}),
    "a namespace": ("memory", {"namespace": "n"}),
    "an empty namespace": ("memory", {"namespace": []}),
    "a memory that is none": ("memory", {"value": [1]}),
    "a ttl": ("memory", {"ttl": -1}),
    "too few": ("thread-end", {"items": 77}),
    "too many": ("end", {"threads": 3}),
    "another version": ("header", {"version": 2}),
    "another format": ("header", {"format": "else"}),
    "a kind of line": ("thread-end", {"type": "party"}),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_line_is_refused_by_its_number_and_leaves_no_thread(forgery: str) -> None:
    kind, change = FORGED[forgery]
    records = small()
    number = next(n for n, each in enumerate(records, 1) if each["type"] == kind)
    records[number - 1] |= change
    keep = new()
    with pytest.raises(ValueError, match=rf"line {number if forgery != 'a status' else 2} of the file"):
        keep.import_portable(written(records))
    if kind not in ("memory", "end"):
        assert keep.threads() == []


def test_lines_in_a_wrong_order_or_twice_are_refused() -> None:
    records = small()
    kinds = [each["type"] for each in records]
    for name in ("item", "checkpoint", "writes"):
        at = kinds.index(name)
        with pytest.raises(ValueError, match=f"line {at + 2}"):
            new().import_portable(written([*records[: at + 1], *records[at:]]))
    first = kinds.index("item")
    with pytest.raises(ValueError, match="line"):
        new().import_portable(written([*records[:first], *records[first + 1 : -3], records[first], *records[-3:]]))
    with pytest.raises(ValueError, match="after the end"):
        new().import_portable(written([*records, records[1]]))


def test_a_hostile_file_takes_no_memory_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 100_000)
    head = json.dumps(small()[0]).encode() + b"\n"
    for body, why in [
        (b'{"type":"' + b"x" * 10_000_000, "longer than"),
        (b"[" * 90_000 + b"\n", "line 2"),
        (b'{"a":' * 15_000 + b"1" + b"}" * 15_000 + b"\n", "line 2"),
        (b'{"type":"thread","n":' + b"9" * 50_000 + b"}\n", "line 2"),
        (b"\xff\xfe\n", "line 2"),
        (b"5\n", "line 2"),
    ]:
        bomb = zstandard.ZstdCompressor().compress(head + body)
        with pytest.raises(ValueError, match=why):
            new().import_portable(io.BytesIO(bomb))
    records = small()
    evil = ormsgpack.packb(ormsgpack.Ext(1, ormsgpack.packb(["os", "mkdir", [str(tmp_path / "made")]])))
    at = next(each for each in records if each["type"] == "checkpoint")
    at["values"] = {"a": {"tag": "msgpack", "data": evil.decode("latin-1")}}
    at["metadata"] = {"m": {"$msgpack": ormsgpack.packb([ormsgpack.Ext(1, evil[3:])]).decode("latin-1")}}
    keep = new()
    keep.import_portable(written(records))
    keep.checkpointer.get_tuple(thread("t"))
    assert not (tmp_path / "made").exists()


# --- redacted files


def test_nothing_that_people_wrote_is_in_a_redacted_file_and_it_can_be_loaded() -> None:
    text = plain(exported(redact=True)).decode()
    everything = plain(exported()).decode()
    for secret in sample_keep.SECRETS:
        spellings = {secret, secret.encode().decode("latin-1"), json.dumps(secret)[1:-1]}
        assert any(each in everything for each in spellings), secret
        assert not any(each in text for each in spellings), secret
    keep = new()
    done = keep.import_portable(io.BytesIO(exported(redact=True)))
    assert (done.threads, done.created, done.memories, done.differences) == (11, 11, 72, ())
    shapes = {info.checkpoints for info in keep.threads(limit=100)}
    assert shapes == {info.checkpoints for info in sample().threads(limit=100)}
    chat = next(info for info in keep.threads(limit=100) if info.checkpoints == sample().thread("chat").checkpoints)
    state = sample_keep.CHAT(keep.checkpointer).get_state(thread(chat.id))
    first = sample_keep.CHAT(sample().checkpointer).get_state(sample_keep.CONTINUED)
    for found, old in zip(state.values["messages"], first.values["messages"], strict=True):
        assert type(found) is type(old)
        assert len(found.content.encode()) == len(old.content.encode())
        assert set(found.content) == {"x"}
    ai, tool = state.values["messages"][1:3]
    assert ai.tool_calls[0]["name"] == tool.name == "weather"
    assert ai.tool_calls[0]["id"] == tool.tool_call_id != first.values["messages"][2].tool_call_id
    assert list(ai.tool_calls[0]["args"]) != ["customer_email", "q"]
    assert state.config["configurable"]["checkpoint_id"] == first.config["configurable"]["checkpoint_id"]
    assert keep.threads(metadata={"customer_email": "ana@example.org"}) == []
    sample_keep.CHAT(keep.checkpointer).invoke({"messages": [HumanMessage("on")]}, thread(chat.id))


def test_names_are_the_same_within_a_redacted_file_and_others_in_the_next() -> None:
    records = lines(exported(redact=True))
    runs = {each["run"] for each in records if each["type"] == "checkpoint" and each["run"]}
    old = {each["run"] for each in lines(exported()) if each["type"] == "checkpoint" and each["run"]}
    assert len(runs) == len(old)
    assert not runs & old
    keep = new()
    keep.import_portable(io.BytesIO(exported(redact=True)))
    talk = next(info for info in keep.threads(kind="cube") if info.status == "interrupted")
    data = asyncio.run(keep.cube.load(talk.id))
    assert [message.role for message in data.messages] == ["user", "assistant", "tool_result", "user"]
    ask, run = asyncio.run(keep.cube.load_pending(talk.id))
    assert re.fullmatch(r"[0-9a-f-]{36}", run)
    assert run in {each["run"] for each in records if each["type"] == "checkpoint"}
    assert set(ask.payload.prompt) == {"x"}
    done = next(message.run_id for message in data.messages)
    assert len(asyncio.run(keep.cube.snapshot(talk.id, after_run_id=done))) == 4  # the last one belongs to no run
    again = io.BytesIO()
    sample().export(again, redact=True)
    names = [
        {each["id"] for each in lines(data) if each["type"] == "thread"}
        for data in (exported(redact=True), again.getvalue())
    ]
    assert not names[0] & names[1]


def test_special_values_stay_what_they_are_when_redacted() -> None:
    import datetime as dt
    import decimal
    import ipaddress
    import uuid

    import numpy as np

    values = {
        "when": dt.datetime(2024, 5, 17, 13, 14, 15, 678, tzinfo=dt.UTC), "day": dt.date(1987, 6, 5),
        "long": dt.timedelta(days=900, seconds=5000), "who": uuid.UUID(int=5 << 90), "much": decimal.Decimal("12.75"),
        "where": ipaddress.ip_address("10.20.130.4"), "set": {"Zanzibar"}, "array": np.arange(5.0), "raw": b"Zanzibar",
        "n": 4711, "small": 7, "f": 1.5, "yes": True, "none": None, "text": "2024-05-17T13:14:15Z",
        "keys": {1000: 1, 2000: 1, "Zanzibar": 1, "Kampala!": 1},
    }  # fmt: skip
    keep, other = new(), new()
    put_steps(keep.checkpointer, "t", [Put("c0", None, values)])
    file = io.BytesIO()
    keep.export(file, redact=True)
    other.import_portable(io.BytesIO(file.getvalue()))
    (found,) = other.checkpointer.list(None)
    got = found.checkpoint["channel_values"]
    assert {name: type(value) for name, value in got.items()} == {name: type(value) for name, value in values.items()}
    kept = {"small", "yes", "none"}
    assert {name for name in values if name != "array" and got[name] == values[name]} == kept
    assert got["when"].year == got["day"].year == 2000
    assert list(got["array"]) == [0.0] * 5
    assert len(got["keys"]) == 4
    assert not set(got["keys"]) & set(values["keys"])


# --- the documentation, the command


def test_the_reader_in_the_documents_reads_every_file(tmp_path: Path) -> None:
    page = (ROOT / "docs/reference/portable-file.md").read_text("utf-8")
    code = next(
        block for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "def read" in block
    )
    space: dict[str, Any] = {}
    exec(code, space)  # noqa: S102 - our own page
    (tmp_path / "a.tk").write_bytes(exported())
    threads, memories = space["read"](tmp_path / "a.tk")
    assert len(threads) == 11
    assert len(memories) == 72
    for info in sample().threads(limit=100, kind="graph"):
        result = threads[("graph", info.id)]
        for each in sample().checkpointer.list(thread(info.id)):
            at = (each.config["configurable"]["checkpoint_ns"], each.checkpoint["id"])
            values = result["checkpoints"][at]["values"]
            assert values.keys() == each.checkpoint["channel_values"].keys()
            for name, value in each.checkpoint["channel_values"].items():
                if isinstance(value, (int, str)) or value is None:
                    assert values[name] == value
    chat = max(threads[("graph", "chat")]["checkpoints"].items())[1]
    assert "Kilimanjaro" in repr(chat["values"]["messages"])


def test_the_command_exports_to_a_file_and_to_the_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    threadkeep.convert(sample(), url)
    assert run(["export", "--url", url, "--output", str(tmp_path / "all.tk")]) == 0
    assert capsys.readouterr().out.startswith(f"exported 11 threads and 72 memories to {tmp_path / 'all.tk'}\n")
    assert run(["export", "fan", "talk", "--url", url, "-o", str(tmp_path / "two.jsonl"), "--redact", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["threads"], result["memories"], result["redacted"]) == (2, 0, True)
    assert b"Kilimanjaro" not in (tmp_path / "two.jsonl").read_bytes()
    assert run(["export", "--url", url, "-o", str(tmp_path / "c.tk"), "--kind", "cube", "--no-memories"]) == 0
    assert "2 threads and 0 memories" in capsys.readouterr().out
    assert run(["export", "none", "--url", url, "-o", str(tmp_path / "none.tk")]) == 1
    assert run(["export", "--url", url, "-o", "-", "--json"]) == 2
    assert not (tmp_path / "none.tk").exists()
    capsys.readouterr()
    assert run(["export", "--url", url, "-o", str(tmp_path / "a.db")]) == 2, "the database itself"
    assert "is not an export" in capsys.readouterr().err
    assert run(["verify", "--url", url]) == 0
    command = [sys.executable, "-m", "threadkeep", "export", "fan", "--url", url, "--output", "-"]
    piped = subprocess.run(command, capture_output=True, check=True)
    assert [each["type"] for each in lines(piped.stdout)][:2] == ["header", "thread"]
    assert piped.stderr == b""


def test_checksums_are_those_of_the_documentation() -> None:
    for line in plain(exported()).splitlines()[:200]:
        body, crc = line.rsplit(b',"crc":"', 1)
        assert crc == b'%08x"}' % zlib.crc32(body)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(steps=random_trees(), prunes=st.booleans())
def test_any_tree_of_checkpoints_is_the_same_after_a_file(steps: list[Any], prunes: bool) -> None:
    keep, other, third = new(), new(), new()
    put_steps(keep.checkpointer, "t", steps)
    if prunes:
        keep.checkpointer.prune(["t"])
    file, redacted = io.BytesIO(), io.BytesIO()
    keep.export(file)
    assert other.import_portable(io.BytesIO(file.getvalue())).differences == ()
    assert sample_keep.contents(other) == sample_keep.contents(keep)
    keep.export(redacted, redact=True)
    assert third.import_portable(io.BytesIO(redacted.getvalue())).differences == ()
    (one,), (found,) = keep.threads(), third.threads()
    assert (found.checkpoints, found.writes, found.status) == (one.checkpoints, one.writes, one.status)
    assert [each.checkpoint["id"] for each in third.checkpointer.list(None)] == [
        each.checkpoint["id"] for each in keep.checkpointer.list(None)
    ]
