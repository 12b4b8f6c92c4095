"""A log of what writers tried and what was acknowledged to them, apart from the storage, and a check of the storage.

Each line is one `write` to a file: it is there even if the process is killed at the next instruction.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import threadkeep
from checkpoint_chains import config

SAVER, WRITES, CUBE, STORE = "s", "w", "c", "m"
"""The first letter of a writer's name says what it writes: checkpoints, writes on them, messages, memories."""


class FaultLog:
    """The log of some writers, by name. What a writer writes is numbered, and made from its number."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tried(self, writer: str, n: int) -> None:
        os.write(self._file, f"? {writer} {n}\n".encode())

    def acknowledged(self, writer: str, n: int) -> None:
        os.write(self._file, f"! {writer} {n}\n".encode())

    def close(self) -> None:
        os.close(self._file)

    def _lines(self) -> Iterator[tuple[str, str, int]]:
        for line in self.path.read_text().splitlines():
            what, writer, n = line.split()
            yield what, writer, int(n)

    def read(self, what: str) -> dict[str, list[int]]:
        """Return the numbers of each writer: `?` those that it tried, `!` those that were acknowledged."""
        found: dict[str, list[int]] = {}
        for kind, writer, n in self._lines():
            numbers = found.setdefault(writer, [])
            if kind == what:
                numbers.append(n)
        return found

    def count(self) -> int:
        """Return how many writes were acknowledged."""
        return sum(what == "!" for what, _, _ in self._lines())


class Findings(NamedTuple):
    """What a storage has, compared with the log of those who wrote it."""

    acknowledged: int = 0
    lost: tuple[str, ...] = ()
    """What was acknowledged and is not there."""
    doubled: tuple[str, ...] = ()
    """What is there more than once."""
    wrong: tuple[str, ...] = ()
    """What is there and is not what was written, or nobody tried to write."""
    problems: tuple[str, ...] = ()
    """What `verify` reports."""

    def __add__(self, other: Any) -> Findings:
        return Findings(*(mine + its for mine, its in zip(self, other, strict=True)))

    def check(self) -> None:
        """Fail unless everything that was acknowledged is there once, and all is whole."""
        assert not any(self[1:]), {name: part[:5] for name, part in self._asdict().items() if name != "acknowledged"}
        assert self.acknowledged, "nothing was acknowledged"


def text(n: int) -> str:
    """Return a text that is long now and then."""
    return f"{n} " * (400 if n % 10 == 0 else 5)


def state(n: int) -> dict[str, Any]:
    """Return the state of the n-th checkpoint: the last ten entries of a list that grows, and a number."""
    return {"log": [text(each) for each in range(max(0, n - 9), n + 1)], "n": n}


def audit(url: str, log: FaultLog, **options: Any) -> Findings:
    """Compare a storage with a log, through a Keep of its own."""
    tried, acknowledged = log.read("?"), log.read("!")
    total = Findings()
    with threadkeep.open(url, **options) as keep:
        for writer, numbers in tried.items():
            stored = list(_READERS[writer[0]](keep, writer))
            total += _compare(writer, stored, set(acknowledged[writer]), set(numbers))
        total += Findings(wrong=tuple(sorted(_names(keep) - tried.keys())))
        problems = tuple(map(str, keep.verify().problems))
    return total._replace(problems=problems)


def _compare(writer: str, stored: list[tuple[int, bool]], acknowledged: set[int], tried: set[int]) -> Findings:
    counts = Counter(n for n, _ in stored)
    return Findings(
        len(acknowledged),
        tuple(f"{writer} {n}" for n in sorted(acknowledged - counts.keys())),
        tuple(f"{writer} {n}" for n, count in counts.items() if count > 1),
        tuple(f"{writer} {n}" for n, is_right in stored if not is_right or n not in tried),
    )


def _names(keep: threadkeep.Keep) -> set[str]:
    """Return the names of all writers that left something in a storage."""
    return {each.id for each in keep.threads(limit=10_000)} | {space[0] for space in keep.store.list_namespaces()}


def _read_saver(keep: threadkeep.Keep, writer: str) -> Iterator[tuple[int, bool]]:
    for found in keep.checkpointer.list(config(writer)):
        n = int(found.checkpoint["id"])
        yield n, (found.checkpoint["channel_values"], found.metadata.get("step")) == (state(n), n)


def _read_writes(keep: threadkeep.Keep, writer: str) -> Iterator[tuple[int, bool]]:
    for found in keep.checkpointer.list(config(writer.replace(WRITES, SAVER, 1))):
        n = int(found.checkpoint["id"])
        for write in found.pending_writes or []:
            yield n, write == ("task", "log", text(n))


def _read_cube(keep: threadkeep.Keep, writer: str) -> Iterator[tuple[int, bool]]:
    thread = asyncio.run(keep.cube.load(writer))
    for message in thread.messages if thread else ():
        n = int(message.id)
        yield n, message.content[0].text == text(n)


def _read_store(keep: threadkeep.Keep, writer: str) -> Iterator[tuple[int, bool]]:
    for item in keep.store.search((writer,), limit=1_000_000):
        yield int(item.key), item.value == {"text": text(int(item.key))}


_READERS = {SAVER: _read_saver, WRITES: _read_writes, CUBE: _read_cube, STORE: _read_store}
