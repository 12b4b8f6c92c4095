"""Batches of memories that concurrent or killed processes store, and checks of what they leave behind.

Cheap to import, because other processes do so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from langgraph.store.base import PutOp

import stored_memories
import threadkeep
from threadkeep.conformance.store.embedder import DIMS, embed
from threadkeep.engine.memories.namespaces import MemoryKey

FIELDS = ["text", "more"]
INDEX: Any = {"dims": DIMS, "embed": embed, "fields": FIELDS, "search": "hybrid"}
NEAR: Any = {**INDEX, "search": "vector"}
WORDS: Any = {"search": "text", "fields": FIELDS}
HOME = ("home",)


TEXTS = ["apple", "pear plum", "rain", "snow and wind", "sea"]
PARTS = 4


def keys(found: Any) -> list[str]:
    return [item.key for item in found]


def location(url: str) -> Path | str:
    """Return a URL's storage as `stored_memories` takes it: a path for SQLite, else the URL."""
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else url


def check_vectors(url: str, store: threadkeep.KeepStore) -> None:
    """Check that each memory has exactly the vectors of its own texts."""
    if url.startswith("memory"):
        return
    there = stored_memories.read_memories(location(url))
    assert stored_memories.find_leftovers(location(url)) == []
    found = store.search((), limit=10_000)
    assert {MemoryKey(item.namespace, item.key) for item in found} == set(there.memory_keys.values())
    for item in found:
        texts = dict.fromkeys(item.value[name] for name in FIELDS if name in item.value)
        expected = embed(list(texts)) if item.value.get("indexed", True) else []
        assert there.of(MemoryKey(item.namespace, item.key)) == expected, item


# --- many writers, on their own keys and on shared ones


def mixed_batches(name: str, rounds: int) -> Iterator[list[PutOp]]:
    """Yield batches on the writer's own keys, which come and go, and on shared keys, in two partitions."""
    for n in range(rounds):
        text = f"{TEXTS[n % len(TEXTS)]} {name}"
        yield [
            PutOp(HOME, f"{name} {n}", {"text": text, "n": n}),
            PutOp(("other", name), "last", {"text": text, "more": f"{text} more", "n": n}),
            PutOp(HOME, f"{name} {n - 2}", None),
            PutOp(("other", "all"), "fought for", {"text": text, "n": n} | ({"more": "plum"} if n % 3 else {})),
            PutOp(HOME, "now and then", {"text": text} if n % 2 else None),
            PutOp(HOME, "not found", {"text": text, "indexed": False}, index=False),
        ]


def check_mixed_batches(url: str, store: threadkeep.KeepStore, names: Sequence[str], rounds: int) -> None:
    for name in names:
        own = [item.value["n"] for item in store.search(HOME, limit=1000) if item.key.startswith(f"{name} ")]
        assert sorted(own) == [rounds - 2, rounds - 1]
        last = store.get(("other", name), "last")
        assert last is not None
        assert last.value["n"] == rounds - 1
        assert f"{name} {rounds - 1}" in keys(store.search(HOME, query=name, limit=100))
    check_vectors(url, store)


# --- one writer whose batches replace each other


def atomic_namespaces(url: str) -> list[tuple[str, ...]]:
    """Return namespaces that a batch changes atomically: in several partitions, but on Valkey in one."""
    return [("part", f"{k}") if url.startswith("valkey:") else (f"part {k}",) for k in range(PARTS)]


def replacing_batch(n: int, url: str = "") -> list[PutOp]:
    """Return overwrites in several namespaces, with more vectors or fewer; one memory is added, one deleted."""
    more = {"more": f"plum {n}"} if n % 2 else {}
    first, *_ = spaces = atomic_namespaces(url)
    over = [PutOp(space, "k", {"text": f"apple w{n}", "n": n, **more}) for space in spaces]
    ops = [*over, PutOp(first, f"k{n}", {"text": f"rain w{n}", "n": n}), PutOp(first, f"k{n - 1}", None)]
    return ops if n % 2 else ops[::-1]


def check_batch(url: str) -> int:
    """Return the number of the stored batch, after checking that it is whole, with exactly its vectors and words."""
    with threadkeep.open(url, index=INDEX) as keep:
        found = keep.store.search((), limit=100)
        (n,) = {item.value["n"] for item in found}
        expected = {(op.namespace, op.key): op.value for op in replacing_batch(n) if op.value is not None}
        assert {(item.namespace, item.key): item.value for item in found} == expected
        assert len(keep.store.search((), query=f"w{n}", limit=100)) == len(expected)
        check_vectors(url, keep.store)
    assert len(stored_memories.read_memories(location(url)).words) == len(expected)
    return int(n)
