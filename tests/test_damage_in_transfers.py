"""copy, convert and export never carry damage over: a damaged thread is left out and named, or its intact part goes."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from cubeloop.providers.base import TextContent, UserMessage
from langchain_core.messages import HumanMessage

import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from damage import StoredRows, flip_byte, rows_opener
from sync_async import Caller
from test_damaged_rows import (
    AFTER,
    ALL,
    BEFORE,
    NEWEST,
    OLDEST,
    TARGET,
    WAYS,
    put_chain,
    row_of,
    spoil_body,
    spoil_text,
    spoil_writes,
    text_of,
)
from test_delta_graphs import build as delta_graph
from test_verify import DAMAGES as ALL_DAMAGES
from test_verify import SEED, seeded
from threadkeep.cli.app import run
from threadkeep.engine.identity import CUBE
from threadkeep.engine.log.itemlog import NAMES, unseal_item
from threadkeep.errors import Corrupt

WITHOUT_TARGET = [id for id in ALL if id != TARGET]


def lose_text(rows: StoredRows) -> None:
    before = rows.items()
    spoil_text(rows, TARGET)
    rows.set_item(next(at for at, stored in rows.items().items() if before[at] != stored), None)


def lose_writes(rows: StoredRows) -> None:
    rows.set_writes(next(row for row in rows.writes() if row.checkpoint == TARGET), None)


def spoil_name(rows: StoredRows) -> None:
    stored = rows.items()
    at = next(
        at
        for at in stored
        if at.lane == NAMES and unseal_item(at, stored[at], "", rows.thread().family).data == b"extra"
    )
    rows.set_item(at, flip_byte(stored[at]))


def lose_checkpoint(id: str) -> Callable[[StoredRows], None]:
    return lambda rows: rows.set_checkpoint(row_of(rows, id), None)


DAMAGE: dict[str, tuple[Callable[[StoredRows], None], list[str]]] = {
    **{way: (lambda rows, way=way: WAYS[way](rows, TARGET), WITHOUT_TARGET) for way in WAYS},
    "a value": (lambda rows: spoil_text(rows, TARGET), WITHOUT_TARGET),
    "a value is gone": (lose_text, WITHOUT_TARGET),
    "writes": (lambda rows: spoil_writes(rows, TARGET), ALL),
    "writes are gone": (lose_writes, ALL),
    "a name": (spoil_name, WITHOUT_TARGET),
    "it is gone": (lose_checkpoint(TARGET), WITHOUT_TARGET),
    "the newest is gone": (lose_checkpoint(NEWEST), [id for id in ALL if id != NEWEST]),
    "a counter of the thread": (lambda rows: rows.set_thread(rows.thread()._replace(checkpoints=99)), ALL),
    "the newest of the thread": (lambda rows: rows.set_thread(rows.thread()._replace(top=AFTER)), ALL),
}
"""Each kind of damage, and the checkpoints that are intact in spite of it."""
damages = pytest.mark.parametrize("way", DAMAGE)


def put_damaged(keep: threadkeep.Keep, url: str, way: str) -> None:
    """Put an intact thread and a damaged one."""
    Chain(keep.checkpointer, "whole").put({"text": "whole"})
    put_chain(keep.checkpointer)
    DAMAGE[way][0](rows_opener(url)(keep, "t"))
    keep._session.heads.clear()


def new() -> threadkeep.Keep:
    return threadkeep.open("memory://")


def ids_of(keep: threadkeep.Keep) -> list[str]:
    return sorted(info.id for info in keep.threads())


def assert_intact(keep: threadkeep.Keep, way: str, thread: str = "t") -> None:
    """Check that a thread has what is intact of the damaged one, and is intact itself."""
    left = DAMAGE[way][1]
    assert list_ids(keep.checkpointer, thread) == left
    for id in left:
        found = keep.checkpointer.get_tuple(config(thread, id))
        assert found is not None
        assert found.checkpoint["channel_values"]["text"] == text_of(id)
        assert found.checkpoint["channel_values"]["log"] == [text_of(each) for each in ALL[::-1] if each <= id]
        lost = id == TARGET and way.startswith("writes")
        assert found.pending_writes == ([] if lost else [("task", "log", text_of(id) + "written")])
    assert [each.message for each in keep.verify(thread).problems] == []


# --- every kind of damage at once


def checkpoints_of(keep: threadkeep.Keep, thread: str) -> dict[str, Any]:
    return {
        each.checkpoint["id"]: (each.checkpoint, each.pending_writes) for each in keep.checkpointer.list(config(thread))
    }


def test_no_damage_that_verify_finds_is_carried_over(keep: threadkeep.Keep, url: str) -> None:
    seeded(keep)
    names = {name: f"damaged {n:02}" for n, name in enumerate(ALL_DAMAGES)}
    for id in names.values():
        keep.copy(SEED, id)
    whole = checkpoints_of(keep, SEED)
    for name, (damage, _) in ALL_DAMAGES.items():
        damage(rows_opener(url)(keep, names[name]))
    keep._session.heads.clear()
    index = names.pop("indexes forgot it")  # a conversion and an import build indexes anew
    file, part = io.BytesIO(), io.BytesIO()
    with new() as other, new() as third, new() as fourth, new() as fifth:
        done, exported = threadkeep.convert(keep, other), keep.export(file)
        assert done.skipped == exported.skipped == tuple(names.values())
        salvaged = threadkeep.convert(keep, third, salvage=True)
        lost = {id for name, id in names.items() if id in salvaged.skipped}
        # All checkpoints may need these. Of the two items, one is the input, which all have: in __start__ or as a message.
        assert lost <= {names[name] for name in names if name.startswith(("a name", "labels", "two items"))}
        assert all(f"nothing of thread {id!r} is intact" in str(salvaged.damage) for id in lost)
        assert salvaged.differences == ()
        assert salvaged.damage == keep.export(part, salvage=True).damage
        assert all(f"graph thread {id!r}: " in str(salvaged.damage) for id in names.values())
        for target, content in ((fourth, file), (fifth, part)):
            content.seek(0)
            assert target.import_portable(content).is_equal
        for target in (other, third, fourth, fifth):
            assert target.verify().problems == []
        assert ids_of(other) == ids_of(fourth) == [index, SEED]
        assert ids_of(third) == ids_of(fifth) == [*sorted({index, *names.values()} - lost), SEED]
        for target in (third, fifth):
            for name, id in names.items():
                for each, (checkpoint, writes) in checkpoints_of(target, id).items():
                    assert checkpoint == whole[each][0], name
                    if writes != whole[each][1]:
                        assert [write for write in whole[each][1] if write in writes] == writes
                        assert f"on checkpoint {each!r}" in str(salvaged.damage) or name == "writes are gone"


# --- convert


@damages
@pytest.mark.sampled(6)
async def test_a_conversion_leaves_a_damaged_thread_out_or_takes_its_intact_part(
    keep: threadkeep.Keep, url: str, way: str, call: Caller
) -> None:
    await asyncio.to_thread(put_damaged, keep, url, way)
    with new() as other, new() as third:
        for id in (None, ["t", "whole"]):
            done = await call(threadkeep, "convert", keep, other, thread_id=id)
            assert (done.skipped, done.threads, done.differences, done.is_equal) == (("t",), 1, (), False)
            assert all(each.startswith("graph thread 't': ") for each in done.damage)
            assert done.damage
        assert ids_of(other) == ["whole"]
        would = await call(threadkeep, "convert", keep, third, dry_run=True)
        assert (would.skipped, would.created) == (("t",), 1)
        done = await call(threadkeep, "convert", keep, third, salvage=True)
        assert (done.skipped, done.created, done.differences, done.is_equal) == ((), 2, (), False)
        assert any("left out" in each for each in done.damage) == (way not in WHOLE)
        await asyncio.to_thread(assert_intact, third, way)
        again = await call(threadkeep, "convert", keep, third, salvage=True)
        assert (again.unchanged, again.damage, again.differences) == (2, done.damage, ())


WHOLE = ("writes are gone", "it is gone", "the newest is gone", "a counter of the thread", "the newest of the thread")
"""Damage after which everything that is left is intact."""


def test_salvage_never_replaces_what_was_copied_before_the_damage(keep: threadkeep.Keep, url: str) -> None:
    put_chain(keep.checkpointer)
    with new() as other:
        threadkeep.convert(keep, other)
        DAMAGE["its body"][0](rows_opener(url)(keep, "t"))
        keep._session.heads.clear()
        done = threadkeep.convert(keep, other, salvage=True)
        assert (done.merged, done.differences, done.is_equal) == (1, (), False)
        assert list_ids(other.checkpointer) == ALL
        assert values_of(other.checkpointer, id=TARGET)["extra"] == 1
        assert other.verify().ok


def test_a_damaged_thread_in_the_target_is_a_difference_and_the_others_are_converted(
    keep: threadkeep.Keep, url: str
) -> None:
    with new() as source:
        put_chain(source.checkpointer)
        Chain(source.checkpointer, "whole").put({"text": "whole"})
        threadkeep.convert(source, keep, thread_id="t")
        Chain(keep.checkpointer, "t", run="its own").put({"text": "on"}, id="9")
        spoil_text(rows_opener(url)(keep, "t"), TARGET)
        keep._session.heads.clear()
        done = threadkeep.convert(source, keep)
        assert (done.created, done.skipped) == (1, ())
        assert any(each.startswith("graph thread 't': ") for each in done.differences)
        file = io.BytesIO()
        source.export(file)
        file.seek(0)
        assert any(each.startswith("graph thread 't': ") for each in keep.import_portable(file).differences)


def test_a_checkpoint_whose_delta_channels_need_damage_is_not_intact(keep: threadkeep.Keep, url: str) -> None:
    graph = delta_graph(keep.checkpointer)
    thread: Any = {"configurable": {"thread_id": "t"}}
    for n in range(4):
        graph.invoke({"messages": [HumanMessage(f"input {n}", id=f"human{n}")]}, thread)
    states = {each.config["configurable"]["checkpoint_id"]: each.values for each in graph.get_state_history(thread)}
    rows = rows_opener(url)(keep, "t")
    damaged = rows.root()[5]
    rows.set_checkpoint(damaged, damaged._replace(body=flip_byte(damaged.body)))
    keep._session.heads.clear()
    with new() as other:
        done = threadkeep.convert(keep, other, salvage=True)
        assert damaged.id in str(done.damage)
        copied = delta_graph(other.checkpointer)
        left = list_ids(other.checkpointer)
        assert left == [id for id in sorted(states, reverse=True) if id in left]
        assert 5 <= len(left) < len(states) - 1  # at least those before it
        for id in left:
            at: Any = {"configurable": {"thread_id": "t", "checkpoint_id": id}}
            assert copied.get_state(at).values == states[id]
        assert other.verify().problems == []


def test_a_cube_thread_is_salvaged_up_to_the_damage(keep: threadkeep.Keep, url: str) -> None:
    for n in range(4):
        asyncio.run(keep.cube.append("talk", [UserMessage(content=[TextContent(text=f"message {n} " * 40)])]))
    rows = rows_opener(url)(keep, "talk", CUBE)
    newest = rows.root()[-1]
    rows.set_checkpoint(newest, newest._replace(body=flip_byte(newest.body)))
    keep._session.heads.clear()
    with new() as other:
        assert threadkeep.convert(keep, other).skipped == ("talk",)
        done = threadkeep.convert(keep, other, salvage=True)
        left = len(rows.root()) - 1
        assert (done.created, len(done.skipped)) == ((1, 0) if left else (0, 1))
        assert other.verify().problems == []


# --- export


@damages
@pytest.mark.sampled(6)
async def test_an_export_leaves_a_damaged_thread_out_or_takes_its_intact_part(
    keep: threadkeep.Keep, url: str, way: str, call: Caller
) -> None:
    await asyncio.to_thread(put_damaged, keep, url, way)
    file, part = io.BytesIO(), io.BytesIO()
    done = await call(keep, "export", file)
    assert (done.skipped, done.threads, done.checkpoints) == (("t",), 1, 1)
    assert all(each.startswith("graph thread 't': ") for each in done.damage)
    assert (await call(keep, "export", io.BytesIO(), thread_id="t")).skipped == ("t",)
    done = await call(keep, "export", part, salvage=True)
    assert (done.skipped, done.threads, done.checkpoints) == ((), 2, 1 + len(DAMAGE[way][1]))
    assert done.damage
    with new() as other, new() as third:
        imported = await call(other, "import_portable", io.BytesIO(file.getvalue()))
        assert (imported.created, imported.is_equal, ids_of(other)) == (1, True, ["whole"])
        imported = await call(third, "import_portable", io.BytesIO(part.getvalue()))
        assert (imported.created, imported.is_equal) == (2, True)
        await asyncio.to_thread(assert_intact, third, way)


def test_a_redacted_export_can_be_salvaged(keep: threadkeep.Keep, url: str) -> None:
    put_damaged(keep, url, "a value")
    file = io.BytesIO()
    assert keep.export(file, redact=True, salvage=True).checkpoints == 5
    file.seek(0)
    with new() as other:
        assert other.import_portable(file).is_equal
        assert other.verify().ok


# --- copy


@damages
@pytest.mark.sampled(6)
async def test_a_damaged_thread_is_not_copied_but_its_intact_part_may_be(
    keep: threadkeep.Keep, url: str, way: str, call: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(put_damaged, keep, url, way)
    chain = Chain(keep.checkpointer, "existing")
    await asyncio.to_thread(chain.put, {"text": text_of(OLDEST), "log": [text_of(OLDEST)]})
    for target in ("copy", "existing"):
        with pytest.raises(Corrupt):
            await call(keep, "copy", "t", target)
    with pytest.raises(Corrupt):
        await call(keep.checkpointer, "copy_thread", "t", "copy")
    assert await asyncio.to_thread(ids_of, keep) == ["existing", "t", "whole"]
    assert (await call(keep, "thread", "existing")).checkpoints == 1
    for target in ("copy", "existing"):
        with caplog.at_level(logging.WARNING, "threadkeep.damage"):
            assert await call(keep, "copy", "t", target, salvage=True) is True
        assert "thread 't'" in caplog.text
        caplog.clear()
        await asyncio.to_thread(assert_intact, keep, way, target)
    assert await call(keep, "copy", "whole", "another", salvage=True) is True
    assert not caplog.records
    assert await call(keep, "copy", "nothing", "another", salvage=True) is False


def test_a_copy_does_not_carry_a_damaged_index_over(keep: threadkeep.Keep, url: str) -> None:
    put_chain(keep.checkpointer)
    rows_opener(url)(keep, "t").delete_index_entries()
    with new() as other:
        assert threadkeep.convert(keep, other).is_equal  # which builds the indexes anew
        assert other.verify().ok
    if not url.startswith("valkey"):  # which makes entries of its own for a copy
        with pytest.raises(Corrupt, match="index"):
            keep.copy("t", "copy")
    keep.copy("t", "copy", salvage=True)
    assert list_ids(keep.checkpointer, "copy") == ALL
    assert keep.verify("copy").ok


# --- nothing is intact


def test_a_thread_of_which_nothing_is_intact_is_left_out_even_with_salvage(keep: threadkeep.Keep, url: str) -> None:
    Chain(keep.checkpointer, "whole").put({"text": "whole"})
    Chain(keep.checkpointer).put({"text": "all of it"})
    spoil_body(rows_opener(url)(keep, "t"), OLDEST)
    keep._session.heads.clear()
    with new() as other:
        assert threadkeep.convert(keep, other, salvage=True).skipped == ("t",)
        assert keep.export(io.BytesIO(), salvage=True).skipped == ("t",)
        assert ids_of(other) == ["whole"]
    with pytest.raises(Corrupt, match="nothing"):
        keep.copy("t", "copy", salvage=True)


def test_a_thread_whose_row_cannot_be_read_is_named_and_the_others_are_converted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with threadkeep.open(url) as keep, new() as other:
        put_chain(keep.checkpointer)
        Chain(keep.checkpointer, "whole").put({"text": "whole"})
        apsw.Connection(str(tmp_path / "agent.db")).execute(
            "UPDATE tk_threads SET nexts = x'ff' WHERE id = CAST('t' AS BLOB)"
        )
        for options in ({}, {"salvage": True}, {"thread_id": ["t", "whole"]}):
            done = threadkeep.convert(keep, other, **options)
            assert (done.skipped, done.threads) == (("t",), 1)
            assert "the row of thread 't' cannot be read" in done.damage[0]
            exported = keep.export(io.BytesIO(), **options)
            assert (exported.skipped, exported.threads) == (("t",), 1)
        assert ids_of(other) == ["whole"]


# --- memories


@pytest.mark.parametrize("name", ["k 1", "k 2"])  # early and late in the order of their numbers, or the reverse
def test_a_damaged_memory_is_left_out_and_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "agent.db"
    with threadkeep.open(f"sqlite:///{path}") as keep, new() as other:
        for n in range(150):
            keep.store.put(("users", f"u{n % 3}"), f"k{n}", {"n": n})
        keep.store.put(("users", "u1"), name, {"text": "it"})
        keep.store.put(("zoo",), "last", {"n": 0})
        apsw.Connection(str(path)).execute(
            "UPDATE tk_memories SET value = substr(value, 1, 9) WHERE key = CAST(? AS BLOB)", (name,)
        )
        done = threadkeep.convert(keep, other)
        assert (done.memories, done.skipped, len(done.damage), done.is_equal) == (151, (), 1, False)
        assert f"memory {name!r} in users/u1" in done.damage[0]
        file = io.BytesIO()
        exported = keep.export(file)
        assert (exported.memories, exported.damage) == (151, done.damage)
        file.seek(0)
        with new() as third:
            assert third.import_portable(file).memories == 151
            assert third.store.get(("users", "u1"), name) is None
            assert len(third.store.search((), limit=1000)) == 151


# --- the commands


def test_the_commands_name_what_is_damaged_and_exit_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "sqlite:///agent.db"
    monkeypatch.setenv("THREADKEEP_URL", url)
    with threadkeep.open(url) as keep:
        put_damaged(keep, url, "its body")
    commands = {
        "convert": ["convert", "other.db"],
        "export": ["export", "-o", "all.tk"],
        "export of it": ["export", "t", "-o", "one.tk"],
        "copy": ["copy", "t", "copy"],
    }
    for name, command in commands.items():
        assert run(command) == 1, name
        printed = capsys.readouterr().out
        assert "skipped damaged thread t" in printed
        assert "does not match its checksum" in printed
        assert "equal" not in printed
        assert run([*command, "--salvage"]) == 1, name
        printed = capsys.readouterr().out
        assert "skipped" not in printed
        assert f"checkpoint '{TARGET}' was left out" in printed
        assert "equal" not in printed
    assert run(["copy", "t", "third", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["skipped"], len(printed["damage"])) == (["t"], 1)
    assert run(["copy", "whole", "fourth"]) == 0
    with threadkeep.open(url) as keep, threadkeep.open("sqlite:///other.db") as other:
        assert ids_of(keep) == ["copy", "fourth", "t", "whole"]
        assert_intact(keep, "its body", "copy")
        assert ids_of(other) == ["t", "whole"]
        assert_intact(other, "its body")
        assert [info.checkpoints for info in other.threads(prefix="t")] == [len([AFTER, BEFORE, NEWEST, OLDEST])]


def test_an_export_to_the_standard_output_names_damage_on_the_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    with threadkeep.open("sqlite:///agent.db") as keep:
        put_damaged(keep, "sqlite:///agent.db", "its body")
    assert run(["export", "-o", "-", "--url", "sqlite:///agent.db"]) == 1
    assert b"skipped damaged thread t" in capfdbinary.readouterr().err
