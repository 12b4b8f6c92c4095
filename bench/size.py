"""Compares bytes on disk after the conversation: threadkeep and the official saver of the same database.

    python bench/size.py                        # SQLite, 200 turns; the official file takes 0.9 GB of temporary space
    python bench/size.py --postgres             # PostgreSQL; the official tables take 0.35 GB, and their WAL more
    python bench/size.py --only threadkeep      # takes seconds and little disk

Fails if threadkeep needs more than its limit for 200 turns.
If growth is linear, the last quarter adds as much as the first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import workload
from contenders import THREADKEEP, Contender
from storages import ROLES, Storage, open_storage

LIMIT_TURNS = 200


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes in the database after each turn, and of each file or table after closing."""

    name: str
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


def measure(storage: Storage, contender: Contender, turns: int, nameless: Container[str]) -> Growth:
    url = storage.new_url(contender.name)
    with contender.open(url, "relaxed") as saver:
        after_turn = [storage.size(contender, url) for _ in workload.steps(saver, turns, nameless=nameless)]
    return Growth(contender.name, after_turn, storage.disk_usage(contender, url), storage.vacuum(url))


def report(console: Console, turns: int, grown: list[Growth]) -> None:
    table = Table(title=f"{turns} turns", title_justify="left")
    table.add_column("saver")
    for heading in ("MB on disk", "ratio", "KB a turn, first quarter", "last quarter"):
        table.add_column(heading, justify="right")
    largest = max(one.on_disk for one in grown)
    for one in grown:
        first, last = one.per_turn(0, 0.25), one.per_turn(0.75, 1)
        row = (
            f"{one.on_disk / 1e6:,.2f}",
            f"{largest / one.on_disk:,.0f}x fewer" if one.on_disk < largest else "",
            f"{first / 1e3:,.1f}",
            f"{last / 1e3:,.1f}",
        )
        table.add_row(one.name, *row)
    console.print(table)


def report_tables(console: Console, grown: list[Growth]) -> None:
    """Print the size of each table, and of all after a VACUUM."""
    table = Table("saver", "table")
    table.add_column("KB", justify="right")
    for one in grown:
        for part, size in one.parts.items():
            table.add_row(one.name, part, f"{size / 1e3:,.1f}")
        if one.vacuum is not None:
            table.add_row(one.name, "all, after VACUUM", f"{one.vacuum / 1e3:,.1f}")
    console.print(table)


def verdict(turns: int, grown: list[Growth], limit: int) -> str | None:
    """Return why the run fails, or None. Only a conversation of LIMIT_TURNS is checked."""
    judged = [one for one in grown if one.name == THREADKEEP.name and turns == LIMIT_TURNS and one.on_disk > limit]
    return f"threadkeep needs {judged[0].on_disk:,} bytes; the limit is {limit:,}" if judged else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare bytes on disk after the conversation.")
    parser.add_argument("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    parser.add_argument("--turns", type=int, default=LIMIT_TURNS)
    parser.add_argument("--only", choices=ROLES)
    parser.add_argument(
        "--nameless", choices=("human", "tool", "ai"), nargs="*", default=[], help="messages without ids"
    )
    options = parser.parse_args()
    console = Console()
    with open_storage(postgres=options.postgres) as storage:
        chosen = storage.contenders(options.only)
        grown = [measure(storage, contender, options.turns, options.nameless) for contender in chosen]
        report(console, options.turns, grown)
        if options.postgres:
            report_tables(console, grown)
        sys.exit(verdict(options.turns, grown, storage.size_limit) if not options.nameless else None)


if __name__ == "__main__":
    main()
