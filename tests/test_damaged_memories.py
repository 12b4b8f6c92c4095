"""A damaged memory, vector or index entry is never served: a read raises Corrupt, or verify reports what is missing."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

import threadkeep
from damage import flip_byte
from damaged_memories import damages, sql_executor
from test_upgrades import SQL_STORAGES
from threadkeep.conformance.store.embedder import DIMS, embed
from threadkeep.engine.memories.namespaces import MemoryKey
from threadkeep.errors import Corrupt

INDEX: Any = {"dims": DIMS, "embed": embed, "fields": ["text", "more"], "search": "vector"}
HOME, AWAY = ("users", "ada"), ("users", "bob")
TEXTS = ("apple", "pear", "plum", "rain", "snow")
DAMAGED = MemoryKey(HOME, "pear")


def seed(keep: threadkeep.Keep, count: int = 1) -> None:
    """Store memories in two namespaces, with two vectors each. Some have a ttl."""
    for n in range(count):
        for word in TEXTS:
            value = {"text": f"{word} wind", "more": f"{word} sea {n}", "n": len(word)}
            keep.store.put(HOME, word if not n else f"{word}{n}", value, ttl=60 if word in ("pear", "rain") else None)
        keep.store.put(AWAY, f"k{n}", {"text": "apple pear"})


def as_plain(found: Any) -> Any:
    """Return memories as values that can be compared."""
    if not isinstance(found, list):
        return found if found is None else (found.value, found.created_at, found.updated_at)
    return [(each.namespace, each.key, each.value, each.created_at, each.updated_at, each.score) for each in found]


Reads = dict[str, Callable[[threadkeep.Keep], Any]]
READS: Reads = {
    **{
        f"get {word}": lambda keep, word=word: as_plain(keep.store.get(HOME, word, refresh_ttl=False)) for word in TEXTS
    },
    "list": lambda keep: as_plain(keep.store.search((), limit=1000, refresh_ttl=False)),
    "list below": lambda keep: as_plain(keep.store.search(HOME, limit=1000, refresh_ttl=False)),
    "filter": lambda keep: as_plain(keep.store.search(HOME, filter={"n": 4}, limit=1000, refresh_ttl=False)),
    "vectors": lambda keep: as_plain(keep.store.search(HOME, query="pear", limit=1000, refresh_ttl=False)),
    "all vectors": lambda keep: as_plain(keep.store.search((), query="pear", limit=1000, refresh_ttl=False)),
    "namespaces": lambda keep: keep.store.list_namespaces(),
}


class Outcome:
    """What reads gave after damage, compared with the answers before."""

    def __init__(self, keep: threadkeep.Keep, before: dict[str, Any]) -> None:
        vectors = keep._session.vectors
        assert vectors is not None
        vectors.clear()
        self.wrong: list[tuple[str, Any]] = []
        self.raised: list[str] = []
        self.missing: list[str] = []
        for name, read in READS.items():
            try:
                found = read(keep)
            except Corrupt as error:
                self.raised.append(f"{name}: {error}")
                continue
            if found != before[name]:
                is_part = found is None or (isinstance(found, list) and _is_sublist(found, before[name]))
                self.missing.append(name) if is_part else self.wrong.append((name, found))


def _is_sublist(part: list[Any], whole: list[Any]) -> bool:
    rest = iter(whole)
    return all(each in rest for each in part)


def answers(keep: threadkeep.Keep) -> dict[str, Any]:
    return {name: read(keep) for name, read in READS.items()}


def test_a_memory_with_any_column_changed_is_refused_or_reported(url: str) -> None:
    with threadkeep.open(url, index=INDEX, durability="relaxed") as keep:
        seed(keep)
        before = answers(keep)
        assert keep.verify().problems == []
        ways = damages(keep, url, DAMAGED)
        assert len(ways) > 15
        named = 0
        for name, damage in ways.items():
            with damage():
                outcome, problems = Outcome(keep, before), keep.verify().problems
            assert not outcome.wrong, name
            assert problems, (name, outcome.raised)
            assert all(problem.problem in ("memory", "database") for problem in problems), name
            named += any("'pear'" in each for each in outcome.raised)
        assert named > len(ways) / 4
        assert Outcome(keep, before).raised == []
        assert answers(keep) == before
        assert keep.verify().problems == []


VALUE = ("tk_memories.value 0", "row.value 0", "memory value")
CREATED = ("tk_memories.created 0", "row.created 0", "memory created")


@pytest.mark.parametrize("names", [VALUE, CREATED], ids=["value", "created"])
def test_a_damaged_memory_can_be_deleted_or_put_again(url: str, names: Sequence[str]) -> None:
    with threadkeep.open(url, index=INDEX, durability="relaxed") as keep:
        for remedy in (lambda: keep.store.delete(HOME, "pear"), lambda: None):
            seed(keep)
            ways = damages(keep, url, DAMAGED)
            next(ways[name] for name in names if name in ways)().__enter__()
            for read in (READS["get pear"], READS["list"], READS["vectors"]):
                with pytest.raises(Corrupt, match="memory .* is damaged"):
                    read(keep)
            remedy()
            keep.store.put(HOME, "pear", {"text": "pear again"})
            found = keep.store.get(HOME, "pear")
            assert found is not None
            assert found.value == {"text": "pear again"}
            assert keep.verify().problems == []


def test_a_put_over_a_memory_with_a_damaged_key_says_so_and_a_delete_removes_it(tables_url: str) -> None:
    with threadkeep.open(tables_url, index=INDEX) as keep:
        seed(keep)
        sql_executor(tables_url)("UPDATE tk_memories SET key = :new WHERE key = :old", {"new": b"bear", "old": b"pear"})
        with pytest.raises(Corrupt, match="'bear' in users/ada"):
            keep.store.put(HOME, "pear", {"text": "pear"})
        with pytest.raises(Corrupt, match="'bear' in users/ada"):
            keep.store.get(HOME, "pear")
        keep.store.delete(HOME, "pear")
        keep.store.put(HOME, "pear", {"text": "pear"})
        assert keep.verify().problems == []


def test_a_sweep_leaves_a_memory_whose_expiry_is_damaged(tables_url: str) -> None:
    with threadkeep.open(tables_url, index=INDEX) as keep:
        seed(keep)
        sql_executor(tables_url)("UPDATE tk_memories SET expires = 1 WHERE expires IS NOT NULL", {})
        assert keep.sweep().memories == 0
        assert len(keep.verify().problems) == 2
        keep.store.put(HOME, "gone", {"text": "rain"}, ttl=0)
        assert keep.sweep().memories == 1


@pytest.mark.parametrize("storage", SQL_STORAGES)
def test_memories_of_an_older_schema_get_checksums_when_they_are_written(storage: str, tmp_path: Path) -> None:
    url = SQL_STORAGES[storage]("own4", tmp_path)
    with threadkeep.open(url, index=INDEX) as keep:
        memories = keep.store.search((), limit=1000, refresh_ttl=False)
        checked = lambda: sql_executor(url)("SELECT count(*) FROM tk_memories WHERE checksum IS NOT NULL", {})[0][0]
        assert memories
        assert checked() == 0
        first = memories[0]
        keep.store.put(first.namespace, first.key, {"text": "pear", "more": "plum"})
        assert checked() == 1
        assert sql_executor(url)("SELECT count(*) FROM tk_vectors WHERE checksum IS NOT NULL", {}) == [(2,)]
        assert keep.store.search(first.namespace, query="pear", limit=1)[0].key == first.key
        assert len(keep.store.search((), limit=1000)) == len(memories)
        assert keep.verify().problems == []


TABLES = ("tk_memories", "tk_vectors", "tk_parts")


def memory_pages(path: Path) -> list[int]:
    """Return the numbers of the pages of the tables of memories and of their indexes."""
    connection = apsw.Connection(str(path))
    names = ", ".join(f"'{name}'" for name in TABLES)
    tables = f"SELECT name FROM sqlite_schema WHERE tbl_name IN ({names})"
    pages = [row[0] for row in connection.execute(f"SELECT pageno FROM dbstat WHERE name IN ({tables})")]
    connection.close()
    return pages


def flip_copies(tmp_path: Path, copies: int, chance: random.Random) -> dict[str, int]:
    """Flip a bit of the memories' pages in copies of a file. Return how many were right, raised, and were missing."""
    original, damaged = tmp_path / "original.db", tmp_path / "damaged.db"
    with threadkeep.open(f"sqlite:///{original}", index=INDEX, durability="relaxed") as keep:
        seed(keep, 20)
        before = answers(keep)
    pages, data, counts = memory_pages(original), original.read_bytes(), {"right": 0, "raised": 0, "missing": 0}
    size = int.from_bytes(data[16:18], "big")
    for n in range(copies):
        shutil.copy(original, damaged)
        at = (chance.choice(pages) - 1) * size + chance.randrange(size)
        damaged.write_bytes(data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :])
        with threadkeep.open(f"sqlite:///{damaged}", index=INDEX, read_only=True) as keep:
            outcome, problems = Outcome(keep, before), keep.verify().problems
        assert not outcome.wrong, (n, at, outcome.wrong)
        assert problems or not outcome.missing, (n, at, outcome.missing)
        assert problems or not outcome.raised, (n, at, outcome.raised)
        counts["raised" if outcome.raised else "missing" if outcome.missing else "right"] += 1
    return counts


def test_a_flipped_bit_in_a_file_of_memories_is_never_served(tmp_path: Path) -> None:
    counts = flip_copies(tmp_path, 40, random.Random(14))
    assert counts["raised"] > 5


@pytest.mark.long
def test_many_flipped_bits_in_files_of_memories_are_never_served(tmp_path: Path) -> None:
    counts = flip_copies(tmp_path, 520, random.Random(15))
    assert counts["raised"] > 100


def test_a_flipped_byte_of_a_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keep.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        keep.store.put(HOME, "k", {"text": "naïve", "n": 1})
        connection = apsw.Connection(str(path))
        (value,) = connection.execute("SELECT CAST(value AS BLOB) FROM tk_memories").fetchall()[0]
        for bad in (b"\xff\xfe", flip_byte(value, 0.5), b"[]", b""):
            connection.execute("UPDATE tk_memories SET value = CAST(? AS TEXT)", (bad,))
            for read in (
                lambda: keep.store.get(HOME, "k"),
                lambda: keep.store.search(HOME),
                lambda: keep.store.search((), filter={"n": {"$exists": True}}) or keep.store.search(()),
            ):
                with pytest.raises(Corrupt, match="'k' in users/ada"):
                    read()
            assert any("'k' in users/ada" in problem.message for problem in keep.verify().problems)
        connection.close()
