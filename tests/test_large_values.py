"""Large lists and dicts: they come back, an append or an edit stores little, and storing them takes few calls."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import threadkeep
from checkpoint_chains import Chain, config, values_of
from strict_equality import same

CHANCE = random.Random(7)
NUMBERS = [CHANCE.randrange(1 << 40) for _ in range(40_000)]
ENTRIES = {f"key {n}": value for n, value in enumerate(NUMBERS[:20_000])}
ONE_CHUNK = 70_000


def edited(values: list[Any]) -> list[Any]:
    return [*values[:20_000], "edited", *values[20_001:]]


CHANGES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "append one": lambda values: [*values, 1],
    "append many": lambda values: [*values, *range(500)],
    "edit the first": lambda values: ["edited", *values[1:]],
    "edit the middle": edited,
    "edit the last": lambda values: [*values[:-1], "edited"],
    "insert at the front": lambda values: [1, 2, 3, *values],
    "insert in the middle": lambda values: [*values[:20_000], *range(500), *values[20_000:]],
    "remove the first": lambda values: values[1:],
    "remove from the middle": lambda values: values[:20_000] + values[20_500:],
    "nothing": list,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_large_list_stores_little_of_it_again(keep: threadkeep.Keep, change: str) -> None:
    chain = Chain(keep.checkpointer)
    chain.put({"list": NUMBERS})
    (before,) = keep.threads()
    changed = CHANGES[change](NUMBERS)
    chain.put({"list": changed, "other": 1})
    (after,) = keep.threads()
    assert same(values_of(keep.checkpointer), {"list": changed, "other": 1})
    assert same(values_of(keep.checkpointer, id="00000000"), {"list": NUMBERS})
    assert after.bytes - before.bytes < (ONE_CHUNK if change.startswith(("edit", "insert", "remove")) else 3_000)
    assert keep.verify().ok


def test_a_large_dict_stores_only_what_changed(keep: threadkeep.Keep) -> None:
    chain, sizes = Chain(keep.checkpointer), []
    longer = ENTRIES | {"new": "entry"}
    states = [ENTRIES, longer, longer | {"key 10000": "edited"}, {k: v for k, v in longer.items() if k != "key 7"}]
    for state in states:
        chain.put({"dict": state})
        sizes.append(keep.threads()[0].bytes)
    for n, state in enumerate(states):
        assert same(values_of(keep.checkpointer, id=f"{n:08}"), {"dict": state})
    assert sizes[1] - sizes[0] < 1_000
    assert sizes[2] - sizes[1] < ONE_CHUNK
    assert sizes[3] - sizes[2] < ONE_CHUNK
    assert keep.verify().ok


def test_a_list_that_grows_by_one_stores_each_element_once(keep: threadkeep.Keep) -> None:
    chain, values = Chain(keep.checkpointer), list[int]()
    for n in range(200):
        values = [*values, n * 1_000_003]
        last = chain.put({"list": values})
        keep.checkpointer.put_writes(last, [("list", [(n + 1) * 1_000_003])], f"task {n}")
    assert values_of(keep.checkpointer)["list"] == values
    (thread,) = keep.threads()
    assert thread.bytes / 200 < 300  # most of it the rows of the checkpoint and of its writes


def test_a_write_and_the_channel_that_it_becomes_share_their_chunks(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    at = chain.put({})
    keep.checkpointer.put_writes(at, [("list", NUMBERS)], "task")
    before = keep.threads()[0].bytes
    at = chain.put({"list": NUMBERS})
    keep.checkpointer.put_writes(at, [("list", edited(NUMBERS))], "task")
    chain.put({"list": edited(NUMBERS)})
    assert keep.threads()[0].bytes - before < ONE_CHUNK
    assert values_of(keep.checkpointer)["list"] == edited(NUMBERS)


def test_large_values_survive_a_fork_a_prune_and_a_file(keep: threadkeep.Keep, tmp_path: Path) -> None:
    chain = Chain(keep.checkpointer)
    chain.put({"list": NUMBERS, "dict": ENTRIES})
    chain.put({"list": edited(NUMBERS), "dict": ENTRIES | {"new": 1}})
    keep.fork("t", "00000000", to="copy")
    keep.checkpointer.prune(["t"])
    assert values_of(keep.checkpointer) == {"list": edited(NUMBERS), "dict": ENTRIES | {"new": 1}}
    assert values_of(keep.checkpointer, "copy") == {"list": NUMBERS, "dict": ENTRIES}
    keep.export(tmp_path / "file.jsonl")
    with threadkeep.open("memory://") as other:
        other.import_portable(tmp_path / "file.jsonl")
        assert values_of(other.checkpointer) == values_of(keep.checkpointer)
        assert values_of(other.checkpointer, "copy") == {"list": NUMBERS, "dict": ENTRIES}
        assert other.verify().ok
    keep.export(tmp_path / "redacted.jsonl", redact=True)
    with threadkeep.open("memory://") as other:
        other.import_portable(tmp_path / "redacted.jsonl")
        (thread,) = [each.id for each in other.threads() if each.checkpoints == 1][:1]
        assert len(values_of(other.checkpointer, thread)["list"]) == len(NUMBERS)
        assert other.verify().ok


@dataclass
class Holder:
    entries: dict[str, Any] = field(default_factory=dict)


# --- the cost of a put


def count_calls(work: Callable[[], Any]) -> int:
    """Return how many Python functions are called in all threads while this runs."""
    calls = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call"

    threading.setprofile_all_threads(count) if sys.version_info >= (3, 12) else threading.setprofile(count)
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile_all_threads(None) if sys.version_info >= (3, 12) else threading.setprofile(None)  # type: ignore[arg-type]
    return calls


@pytest.mark.parametrize(
    "value",
    [
        list(range(100_000)),
        {f"key {n}": n for n in range(100_000)},
        [f"text {n}" for n in range(100_000)],
        [{"a": n, "b": [n]} for n in range(50_000)],
        {"in a dict": list(range(100_000))},
        {"a": list(range(100_000)), "b": {"c": list(range(100_000))}},
    ],
    ids=["list", "dict", "texts", "list of dicts", "list in a dict", "lists in a dict"],
)
def test_a_put_of_a_large_value_does_not_call_a_function_for_each_element(tmp_path: Path, value: Any) -> None:
    def put() -> None:
        with threadkeep.open(f"sqlite:///{tmp_path}/k.db") as keep:
            chain = Chain(keep.checkpointer)
            chain.put({"value": value})
            chain.put({"value": value, "next": 1})
            assert values_of(keep.checkpointer)["value"] == value

    small = count_calls(lambda: Chain(threadkeep.open("memory://").checkpointer).put({"value": 1}))
    assert count_calls(put) < small + 12_000


# --- values that are changed while they are stored


@contextmanager
def changing(change: Callable[[int], None]) -> Iterator[None]:
    """Call `change` again and again in another thread."""
    stop, switch = threading.Event(), sys.getswitchinterval()

    def run() -> None:
        n = 0
        while not stop.is_set():
            change(n)
            n += 1

    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(switch)


def grow_and_shrink(entries: dict[str, Any]) -> Callable[[int], None]:
    def change(n: int) -> None:
        if n % 200 < 100:
            entries[f"new {n % 200}"] = n
        else:
            entries.pop(f"new {n % 200 - 100}", None)

    return change


LONG = "a long text that makes an entry of its own, " * 8


@pytest.mark.parametrize("large", [False, True], ids=["small entries", "large entries"])
@pytest.mark.parametrize(
    "place", ["alone", "in a list", "in a dataclass", "in a message", "beside objects", "metadata"]
)
def test_a_dict_may_be_changed_while_it_is_stored(saver: threadkeep.KeepSaver, place: str, large: bool) -> None:  # noqa: FBT001
    entries: dict[str, Any] = {f"key {n}": LONG if large else n for n in range(400 if large else 3_000)}
    values: dict[str, Any] = {
        "alone": entries,
        "in a list": [entries, 1],
        "in a dataclass": Holder(entries),
        "in a message": [HumanMessage("m", id="1", additional_kwargs={"entries": entries})],
        "beside objects": [Holder(), entries, Holder(), {"deeper": [entries, Holder()]}],
    }
    with changing(grow_and_shrink(entries)):
        for n in range(8):
            checkpoint = empty_checkpoint()
            if place != "metadata":
                checkpoint |= {"channel_values": {"c": values[place]}, "channel_versions": {"c": n + 1}}
            metadata = {"labels": entries, "writes": {"w": entries}} if place == "metadata" else {}
            at = saver.put(config("t"), checkpoint, metadata, checkpoint["channel_versions"])
            saver.put_writes(at, [("c", values.get(place, entries))], "task")
            found = saver.get_tuple(at)
            assert found is not None and "key 399" in str(found)


def test_bytes_are_those_of_the_official_serializer() -> None:
    from threadkeep.engine.log.codec import Codec  # noqa: PLC0415
    from threadkeep.engine.log.type_gate import KeepSerializer  # noqa: PLC0415

    for value in (NUMBERS, ENTRIES, [ENTRIES, Holder(ENTRIES)], [str(n) for n in NUMBERS]):
        assert Codec(KeepSerializer()).encode(value).data == JsonPlusSerializer().dumps_typed(value)[1]
