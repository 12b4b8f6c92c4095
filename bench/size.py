"""Bytes on disk after the conversation, threadkeep beside the official SqliteSaver.

    python bench/size.py                        # 200 turns; the official file takes 0.9 GB of temporary space
    python bench/size.py --only threadkeep      # seconds, and nearly no disk

Fails if threadkeep needs more than LIMIT bytes for 200 turns.
A linear store adds as much to its file in the last quarter as in the first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Container
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import workload
from contenders import CONTENDERS, THREADKEEP, Contender

LIMIT, LIMIT_TURNS = 1_200_000, 200


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes in the database after each turn, and in all of its files once it is closed."""

    name: str
    after_turn: list[int]
    on_disk: int

    def per_turn(self, start: float, stop: float) -> float:
        """Mean bytes that a turn added between two parts of the conversation."""
        first, last = (round((len(self.after_turn) - 1) * part) for part in (start, stop))
        return (self.after_turn[last] - self.after_turn[first]) / max(1, last - first)


def measure(contender: Contender, turns: int, nameless: Container[str]) -> Growth:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bench.db")
        with contender.open(path, "relaxed") as saver:
            after_turn = [database_bytes(contender, path) for _ in workload.steps(saver, turns, nameless=nameless)]
        return Growth(contender.name, after_turn, disk_bytes(contender, path))


def database_bytes(contender: Contender, path: Path) -> int:
    """Size of the database as a reader sees it now, pages in the WAL included once."""
    with closing(contender.connect(str(path))) as connection:
        (count,), (size,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    return int(count) * int(size)


def disk_bytes(contender: Contender, path: Path) -> int:
    with closing(contender.connect(str(path))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return sum(part.stat().st_size for part in path.parent.glob(path.name + "*"))


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


def verdict(turns: int, grown: list[Growth]) -> str | None:
    """Why the run fails, if it does. Only a conversation of LIMIT_TURNS is judged."""
    judged = [one for one in grown if one.name == THREADKEEP.name and turns == LIMIT_TURNS and one.on_disk > LIMIT]
    return f"threadkeep needs {judged[0].on_disk:,} bytes; the limit is {LIMIT:,}" if judged else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes on disk after the conversation.")
    parser.add_argument("--turns", type=int, default=LIMIT_TURNS)
    parser.add_argument("--only", choices=CONTENDERS)
    parser.add_argument(
        "--nameless", choices=("human", "tool", "ai"), nargs="*", default=[], help="messages without ids"
    )
    options = parser.parse_args()
    chosen = [CONTENDERS[options.only]] if options.only else list(CONTENDERS.values())
    grown = [measure(contender, options.turns, options.nameless) for contender in chosen]
    report(Console(), options.turns, grown)
    sys.exit(verdict(options.turns, grown) if not options.nameless else None)


if __name__ == "__main__":
    main()
