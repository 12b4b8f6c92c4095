"""Measures what threadkeep's database takes after the conversation: per turn, per file or table.

    python bench/size.py                            # SQLite, 200 turns; some seconds
    python bench/size.py --postgres
    python bench/size.py --nameless human tool ai   # messages without ids

Fails if threadkeep needs more than its limit for 200 turns. If growth is linear, the last quarter adds as much as the
first. `make bench` compares the size with the official savers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import workload
from contenders import THREADKEEP
from storages import Storage, open_storage

LIMIT_TURNS = 200


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes in the database after each turn, and of each file or table after closing."""

    after_turn: list[int]
    parts: Mapping[str, int]
    vacuum: int | None

    @property
    def on_disk(self) -> int:
        return sum(self.parts.values())

    def per_turn(self, start: float, stop: float) -> float:
        """Return the mean bytes that a turn added between two fractions of the conversation."""
        first, last = (round((len(self.after_turn) - 1) * part) for part in (start, stop))
        return (self.after_turn[last] - self.after_turn[first]) / max(1, last - first)


def measure(storage: Storage, turns: int, nameless: Container[str]) -> Growth:
    url = storage.new_url("size")
    with THREADKEEP.open(url, "relaxed") as saver:
        after_turn = [storage.size(THREADKEEP, url) for _ in workload.steps(saver, turns, nameless=nameless)]
    return Growth(after_turn, storage.disk_usage(THREADKEEP, url), storage.vacuum(url))


def report(console: Console, turns: int, grown: Growth) -> None:
    table = Table("", title=f"{turns} turns", title_justify="left")
    table.add_column("KB", justify="right")
    table.add_row("on disk", f"{grown.on_disk / 1e3:,.1f}")
    for part, size in grown.parts.items():
        table.add_row(f"  {part}", f"{size / 1e3:,.1f}")
    if grown.vacuum is not None:
        table.add_row("after VACUUM", f"{grown.vacuum / 1e3:,.1f}")
    table.add_row("a turn, first quarter", f"{grown.per_turn(0, 0.25) / 1e3:,.1f}")
    table.add_row("a turn, last quarter", f"{grown.per_turn(0.75, 1) / 1e3:,.1f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the bytes of threadkeep's database after the conversation.")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    parser.add_argument("--turns", type=int, default=LIMIT_TURNS)
    parser.add_argument(
        "--nameless", choices=("human", "tool", "ai"), nargs="*", default=[], help="messages without ids"
    )
    options = parser.parse_args()
    with open_storage(postgres=options.postgres) as storage:
        grown = measure(storage, options.turns, options.nameless)
        report(Console(), options.turns, grown)
        judged = options.turns == LIMIT_TURNS and not options.nameless
        if judged and grown.on_disk > storage.size_limit:
            sys.exit(f"threadkeep needs {grown.on_disk:,} bytes; the limit is {storage.size_limit:,}")


if __name__ == "__main__":
    main()
