"""Measures an import of a SqliteSaver's file: time, memory, and whether both sides are equal afterwards.

    python bench/import_from.py                      # 100,000 checkpoints, three shapes; a few minutes
    python bench/import_from.py --checkpoints 5000   # faster

The sources are written with plain SQL and contain real messages. Each is imported by a separate process, whose maximum
resident memory counts; then `--sample` checkpoints are read by the official saver and by ours, and compared.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from rich.console import Console
from rich.table import Table

import threadkeep

LIMIT_MB = 300
LAST_MESSAGES = 20
SERDE = JsonPlusSerializer()


class Shape(NamedTuple):
    """Number of threads, and of checkpoints in each. `whole`: lists only grow; else only the last messages are kept."""

    threads: int
    each: int
    whole: bool


def messages(count: int) -> Iterator[Any]:
    for n in range(count):
        text = f"message {n}: " + " ".join(
            random.choices(["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"], k=40)
        )
        yield (AIMessage if n % 2 else HumanMessage)(text, id=str(n))


def rows(thread: str, shape: Shape) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Yield a checkpoint and a write on it, each as a row."""
    parent, kept = None, list[Any]()
    for n, message in enumerate(messages(shape.each)):
        id = str(uuid6(clock_seq=n))
        kept = [*kept, message] if shape.whole else [*kept[-LAST_MESSAGES:], message]
        version = f"{n + 1:032}.{0.5:016}"
        checkpoint = {
            "v": 4, "ts": f"2026-01-01T00:00:{n % 60:02}+00:00", "id": id, "channel_values": {"messages": kept},
            "channel_versions": {"messages": version}, "versions_seen": {"model": {"messages": version}},
            "updated_channels": ["messages"],
        }  # fmt: skip
        metadata = json.dumps({"source": "loop", "step": n, "parents": {}, "thread_id": thread}).encode()
        write = SERDE.dumps_typed([message])
        yield (
            (thread, "", id, parent, *SERDE.dumps_typed(checkpoint), metadata),
            (thread, "", id, "task", "~pull", 0, "messages", *write),
        )
        parent = id


def make(path: Path, shape: Shape) -> None:
    """Write a SqliteSaver's file."""
    connection = sqlite3.connect(path)
    SqliteSaver(connection).setup()
    connection.execute("PRAGMA synchronous = OFF")
    for n in range(shape.threads):
        for checkpoint, write in rows(f"thread-{n}", shape):
            connection.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", checkpoint)
            connection.execute(
                "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type,"
                " value) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                write,
            )
        connection.commit()
    connection.close()


def import_here(source: str, target: str) -> None:
    """Import in this process, and print the figures as JSON."""
    before = time.perf_counter()
    with threadkeep.open(target, durability="relaxed") as keep:
        found = keep.import_from(source)
        again = time.perf_counter()
        keep.import_from(source, verify=False)
    figures = {
        "seconds": again - before, "again": time.perf_counter() - again,
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "checkpoints": found.checkpoints, "writes": found.writes, "differences": len(found.differences),
    }  # fmt: skip
    print(json.dumps(figures))


def count_unequal(source: Path, target: str, shape: Shape, sample: int) -> int:
    """Return how many of a sample of checkpoints the official saver and ours read differently."""
    wrong = 0
    with SqliteSaver.from_conn_string(str(source)) as theirs, threadkeep.open(target) as keep:
        for _ in range(sample):
            thread: Any = {
                "configurable": {"thread_id": f"thread-{random.randrange(shape.threads)}", "checkpoint_ns": ""}
            }
            row = theirs.conn.execute(
                "SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? LIMIT 1 OFFSET ?",
                (thread["configurable"]["thread_id"], random.randrange(shape.each)),
            ).fetchone()
            thread["configurable"]["checkpoint_id"] = row[0]
            wrong += theirs.get_tuple(thread) != keep.checkpointer.get_tuple(thread)
    return wrong


def measure(name: str, shape: Shape, sample: int, table: Table) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source.db"), f"sqlite:///{folder}/target.db"
        make(source, shape)
        run = subprocess.run(  # noqa: S603 - this file
            [sys.executable, __file__, "--import", str(source), target], capture_output=True, text=True, check=True
        )
        figures = json.loads(run.stdout)
        wrong = count_unequal(source, target, shape, sample) + figures["differences"]
        size = Path(folder, "target.db").stat().st_size
        table.add_row(
            name,
            f"{figures['checkpoints']:,}",
            f"{source.stat().st_size / 1e6:,.1f} MB",
            f"{size / 1e6:,.1f} MB",
            f"{figures['seconds']:.1f} s",
            f"{figures['again']:.1f} s",
            f"{figures['mb']:.0f} MB",
            "yes" if not wrong else f"{wrong} differ",
        )
    return figures["mb"] < LIMIT_MB and not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--checkpoints", type=int, default=100_000)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--import", nargs=2, dest="imported", metavar=("SOURCE", "TARGET"))
    options = parser.parse_args()
    if options.imported:
        import_here(*options.imported)
        return
    count = options.checkpoints
    shapes = {
        "threads of 100": Shape(max(count // 100, 1), 100, whole=True),
        "one thread": Shape(1, count, whole=False),
        "one thread, whole lists": Shape(1, max(count // 50, 10), whole=True),
    }
    table = Table(title="Importing a SqliteSaver's file")
    for column in ("source", "checkpoints", "its size", "ours", "import", "again", "largest memory", "equal"):
        table.add_column(column, justify="left" if column == "source" else "right")
    good = [measure(name, shape, options.sample, table) for name, shape in shapes.items()]
    Console().print(table)
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
