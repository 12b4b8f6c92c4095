"""Async changes of memories that wait together are made together, and each caller gets its own outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import threadkeep
from memory_batches import HOME, NEAR, keys
from threadkeep.drivers.waiting_writes import WaitingWrites
from threadkeep.engine.memories.merging import merge_puts
from threadkeep.engine.memories.namespaces import MemoryKey
from threadkeep.engine.memories.requests import MemoryRow, NewMemory, WriteMemories
from threadkeep.errors import Closed


def put(*names: str, words: str = "", vectors: tuple[bytes, ...] = (), now: int = 1) -> WriteMemories:
    rows = [MemoryRow(HOME, name, "{}", now, now, None, None) for name in names]
    return WriteMemories("", tuple(NewMemory(row, vectors, words) for row in rows), (), now)


def merged_keys(*requests: WriteMemories) -> list[str]:
    """Return the keys that each merged request stores. Each must come from the requests that it says."""
    found = list(merge_puts(requests))
    assert [part for _, parts in found for part in parts] == list(requests)
    for merged, parts in found:
        assert merged.puts == tuple(memory for part in parts for memory in part.puts)
        assert merged.now == max(part.now for part in parts)
    return ["".join(memory.row.key for memory in merged.puts) for merged, _ in found]


def test_puts_are_merged_in_their_order() -> None:
    assert merged_keys() == []
    assert merged_keys(put("a"), put("b", "c", now=2), put("d")) == ["abcd"]
    assert merged_keys(put("a", words="x"), put("b", words="y"), put("c")) == ["ab", "c"]


def test_a_memory_is_not_stored_twice_by_one_request() -> None:
    assert merged_keys(put("a"), put("b"), put("a"), put("c")) == ["ab", "ac"]


def test_vectors_and_deletes_are_not_merged() -> None:
    gone = WriteMemories("", (), (MemoryKey(HOME, "b"),), 1)
    assert merged_keys(put("a"), gone, put("b"), put("c", vectors=(b"1234",)), put("d")) == ["a", "", "b", "c", "d"]


def test_a_request_has_a_limited_number_of_puts() -> None:
    many = [put(*(f"{n}-{m} " for m in range(100))) for n in range(7)]
    assert [len(merged.puts) for merged, _ in merge_puts(many)] == [500, 200]


class Writes:
    """A queue whose worker waits, in its first write, until it may go on."""

    def __init__(self, *, possible: Callable[[WriteMemories], bool] = lambda _: True) -> None:
        self.written: list[str] = []
        self._possible = possible
        self.may_go_on = threading.Event()
        self.queue = WaitingWrites[WriteMemories](self._start, self, merge_puts)

    def _start(self, job: Callable[[], None]) -> None:
        threading.Thread(target=job).start()

    def write_at_once(self, request: WriteMemories) -> bool:
        self.may_go_on.wait(10)
        self.written.append("".join(memory.row.key for memory in request.puts))
        return self._possible(request)

    async def all(self, *makes: Callable[[], WriteMemories]) -> list[Any]:
        """Return the outcome of each change. All but the first one wait for it."""
        first = asyncio.ensure_future(self.queue.change(makes[0]))
        await asyncio.sleep(0.05)
        others = [asyncio.ensure_future(self.queue.change(make)) for make in makes[1:]]
        await asyncio.sleep(0.05)
        self.may_go_on.set()
        return await asyncio.gather(first, *others, return_exceptions=True)


def test_changes_that_wait_are_made_together() -> None:
    async def twice() -> tuple[list[Any], list[str]]:
        writes = Writes()
        found = await writes.all(*[lambda name=name: put(name) for name in "abcd"])
        return found + [await writes.queue.change(lambda: put("e"))], writes.written

    assert asyncio.run(twice()) == ([None] * 5, ["a", "bcd", "e"])


def test_each_caller_gets_its_own_outcome() -> None:
    def fail() -> WriteMemories:
        raise ValueError("mine")

    def possible(request: WriteMemories) -> bool:
        if request.puts[0].row.key == "x":
            raise OSError("x")
        return len(request.puts) < 2

    writes = Writes(possible=possible)
    b, c = put("b"), put("c")
    found = asyncio.run(writes.all(lambda: put("a"), lambda: b, fail, lambda: c))
    assert found[0] is None
    assert found[1] is b  # the caller makes it in another way
    assert isinstance(found[2], ValueError)
    assert found[3] is c
    assert isinstance(asyncio.run(writes.all(lambda: put("x")))[0], OSError)
    assert writes.written == ["a", "bc", "x"]


def test_a_change_that_no_worker_takes_does_not_wait() -> None:
    def refuse(_: object) -> None:
        raise Closed

    queue = WaitingWrites[WriteMemories](refuse, Writes(), merge_puts)
    for _ in range(2):
        with pytest.raises(Closed):
            asyncio.run(queue.change(lambda: put("a")))


@pytest.mark.parametrize("index", [None, {"search": "off"}, NEAR], ids=["words", "off", "vectors"])
def test_many_callers_put_and_delete(url: str, index: Any) -> None:
    async def change() -> None:
        async with threadkeep.open(url, index=index) as keep:
            store = keep.store
            await asyncio.gather(*[store.aput(HOME, f"k{n}", {"text": f"tea {n}"}) for n in range(60)])
            await asyncio.gather(
                *[store.aput(HOME, f"k{n % 7}", {"text": f"new {n}"}) for n in range(20)],
                *[store.adelete(HOME, f"k{n}") for n in range(30, 40)],
                *[store.aput((*HOME, "in"), f"k{n}", {"n": n}, index=False) for n in range(10)],
            )
            found = await store.asearch(HOME, limit=100)
            assert len(found) == 60 and not {f"k{n}" for n in range(30, 40)} & set(keys(await store.asearch(HOME)))
            assert {item.value["text"] for item in found if item.key == "k0" and len(item.namespace) == 1} <= {
                f"new {n}" for n in (0, 7, 14)
            }
            assert (await keep.averify()).ok

    asyncio.run(change())
