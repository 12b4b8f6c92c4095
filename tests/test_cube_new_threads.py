"""The first change of a CubeLoop thread creates it without reading; what callers pass is stored as JSON values."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import pytest
from cubeloop.checkpointer.exceptions import RunAlreadyClaimedError, RunNotClaimedError
from cubeloop.providers.base import Message, TextContent, UserMessage
from pydantic import BaseModel

import threadkeep
from strict_equality import same
from threadkeep.adapters import cubeloop
from threadkeep.engine.cube.channels import pack_json
from threadkeep.engine.log import itemlog
from threadkeep.engine.log.itemlog import Item, ItemId
from threadkeep.engine.threads.heads import Head


def message(text: str, id: str = "", run: str | None = None) -> Message:
    return UserMessage(content=[TextContent(text=text)], id=id, run_id=run)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[threadkeep.Keep], list[Any]]:
    """Return a function that records the requests with which a Keep reads."""

    def record(keep: threadkeep.Keep) -> list[Any]:
        requests: list[Any] = []
        transport = keep._session.transport
        read = transport.read

        def recorded(request: Any) -> Any:
            requests.append(request)
            return read(request)

        monkeypatch.setattr(transport, "read", recorded)
        return requests

    return record


async def test_the_first_change_of_a_thread_reads_nothing(
    url: str, reads: Callable[[threadkeep.Keep], list[Any]]
) -> None:
    async with threadkeep.open(url) as keep:
        await keep.setup()
        requests = reads(keep)
        await keep.cube.append("appended", [message("hi", "1", "r")])
        await keep.cube.claim_run("claimed", "r")
        await keep.cube.save_extra("extra", {"a": 1})
        await asyncio.gather(*(keep.cube.append(f"t{n}", [message("hi", "1")]) for n in range(20)))
        assert requests == []
        for thread in ("appended", "claimed", "extra", *(f"t{n}" for n in range(20))):
            assert await keep.cube.load(thread) is not None


async def test_a_thread_that_others_created_is_read_and_keeps_what_it_has(lasting_url: str) -> None:
    async with threadkeep.open(lasting_url) as keep:
        await keep.cube.claim_run("t", "r")
        await keep.cube.append("t", [message("one", "1", "r")])
    for number, text in enumerate(("two", "three"), 2):
        async with threadkeep.open(lasting_url) as keep:
            await keep.cube.append("t", [message("one", "1", "r"), message(text, str(number), "r")])
    async with threadkeep.open(lasting_url) as keep:
        with pytest.raises(RunAlreadyClaimedError):
            await keep.cube.claim_run("t", "r")
    async with threadkeep.open(lasting_url) as keep:
        with pytest.raises(RunNotClaimedError):
            await keep.cube.mark_run_complete("t", "another")
    async with threadkeep.open(lasting_url) as keep:
        await keep.cube.mark_run_complete("t", "r")
        found = await keep.cube.load("t")
        assert found is not None
        assert [each.content[0].text for each in found.messages] == ["one", "two", "three"]
        assert (await keep.averify()).ok


async def test_a_failed_creation_is_not_tried_again(lasting_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with threadkeep.open(lasting_url) as keep:
        await keep.cube.append("t", [message("one", "1")])
    async with threadkeep.open(lasting_url) as keep:
        await keep.cube.load("another")  # sets the connections up
        await keep.cube.append("another", [message("one", "1")])
        transport, creations = keep._session.transport, list[str]()
        write, try_commit = transport.write, transport.try_commit

        def recorded_write(requests: Any) -> Any:
            creations.extend("write" for each in requests if each.batch.expect is None)
            return write(requests)

        def recorded_try(batch: Any) -> bool:
            creations.extend(["at once"] * (batch.expect is None))
            return try_commit(batch)

        monkeypatch.setattr(transport, "write", recorded_write)
        monkeypatch.setattr(transport, "try_commit", recorded_try)
        await keep.cube.append("t", [message("two", "2")])
        assert len(creations) == 1
        found = await keep.cube.load("t")
        assert found is not None
        assert len(found.messages) == 2


class Colour(Enum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


@dataclass
class Point:
    x: int = 1


class Model(BaseModel):
    value: Any = None


VALUES = [
    1, -0.0, 1.5, math.inf, math.nan, "x", "\ud800", 2**70, -(2**63), 2**64 - 1, b"x", None, True, (1, [2, (3,)]),
    UUID(int=1), Colour.RED, Number.ONE, Text("x"), Point(), Model(value=2), datetime(2026, 1, 1, tzinfo=UTC), {1: 2},
    {None: 1}, {True: 1}, {Number.ONE: 1}, {Text("k"): 1}, {"a": {"b": [{}]}}, {1, 2}, bytearray(b"x"), 1j, object(),
]  # fmt: skip


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (TypeError, ValueError) as error:
        return type(error)


def dump_by_json(model: BaseModel) -> Any:
    dumped = model.model_dump()
    try:
        json.dumps(dumped)
    except (TypeError, ValueError):
        return model.model_dump(mode="json")
    return dumped


@pytest.mark.parametrize("number", range(len(VALUES)))
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: {"k": value}])
def test_values_are_copied_and_dumped_as_the_json_module_does(number: int, wrap: Callable[[Any], Any]) -> None:
    value = wrap(VALUES[number])
    copied = outcome(lambda: json.loads(json.dumps(value, default=cubeloop._json_default)))
    assert same(outcome(lambda: cubeloop._json_copy(value)), copied)
    dumped = outcome(lambda: pack_json(dump_by_json(Model(value=value))))
    assert outcome(lambda: pack_json(cubeloop._dump_model(Model(value=value)))) == dumped


@pytest.mark.parametrize("size", [0, 127, 128, 4096, 4097, 100_000])
def test_items_that_are_compressed_quickly_are_read_as_all_others(size: int) -> None:
    at, item = ItemId(3, 7), Item((b"some words and some more " * 4000)[:size])
    ((_, quick),) = itemlog.seal_items([(at, item)], 5, quick=True)
    ((_, usual),) = itemlog.seal_items([(at, item)], 5)
    assert itemlog.unseal_item(at, quick, "here", 5) == item
    assert itemlog.unseal_items({at: quick}, {}, "here", 5) == [(at, item.data, 1)]
    assert quick[0] == usual[0]
    assert (quick == usual) or 128 <= size <= 4096


async def test_a_cached_checkpoint_is_used_only_for_the_row_that_it_was_decoded_from(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with threadkeep.open(lasting_url) as keep, threadkeep.open(lasting_url) as another:
        await keep.cube.append("t", [message("one", "1", "r")])
        await keep.cube.load("t")
        decoded: list[str] = []
        decode = Head.checkpoint
        monkeypatch.setattr(Head, "checkpoint", lambda head, row: (decoded.append(row.id), decode(head, row))[1])
        await keep.cube.load("t")
        assert decoded == []
        await another.cube.append("t", [message("two", "2", "r")])
        decoded.clear()
        found = await keep.cube.load("t")
        assert found is not None
        assert [each.id for each in found.messages] == ["1", "2"]
        assert len(decoded) == 1
