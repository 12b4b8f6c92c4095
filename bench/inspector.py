"""Measures pages of the inspector beside the commands that show the same, with many threads and with a long one.

    python bench/inspector.py [--threads 100000] [--checkpoints 10000]

Both run in this process, on SQLite: a page through ASGI to the last byte of HTML, a command to its last line. The figures
are CPU time of the process, which other work on the machine hardly changes. The first page of a Keep reads what the next
ones find in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from time import process_time

import httpx
from rich.console import Console
from rich.table import Table

import threadkeep
from catalogue import make_file
from threadkeep.cli import app as cli
from threadkeep.inspector.application import app

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=100_000)
    parser.add_argument("--checkpoints", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        many = make_file(Path(folder) / "many.db", options.threads, 1)
        long = make_file(Path(folder) / "long.db", 1, options.checkpoints)
        compare(many, options.threads, long, options.checkpoints)


def compare(many: str, threads: int, long: str, checkpoints: int) -> None:
    """Print the figures of all pages beside their commands."""
    page_of_threads = ["threads", "--limit", "50"]
    table = Table("ms of CPU", "first page", "again", "command", "first page / command")
    for name, url, path, command in (
        (f"the first of {threads:,} threads", many, "/", page_of_threads),
        ("the largest of them", many, "/?order=bytes", [*page_of_threads, "--order", "bytes"]),
        ("a search among them", many, "/?q=t777", [*page_of_threads, "--contains", "t777"]),
        ("those that wait", many, "/?status=interrupted", [*page_of_threads, "--status", "interrupted"]),
        (f"the tree of {checkpoints:,} checkpoints", long, "/thread?thread=t", ["tree", "t"]),
        ("its end", long, f"/thread?thread=t&from={checkpoints - 100}", ["tree", "t"]),
        ("its timeline", long, "/thread?thread=t&view=timeline", ["tree", "t"]),
        ("places in the slider", long, f"/play?thread=t&at={checkpoints // 20}{{n}}", ["tree", "t"]),
        (
            "its first and last compared",
            long,
            f"/diff?thread=t&a=latest~{checkpoints - 1}",
            ["diff", "t", f"latest~{checkpoints - 1}", "latest"],
        ),
        ("its latest checkpoint", long, "/checkpoint?thread=t", ["show", "t"]),
    ):
        with threadkeep.open(url, read_only=True) as keep:
            page, line = page_of(keep, path), partial(run, [*command, "--url", url])
            (first, *again), lines = zip(*[(cpu_ms(page), cpu_ms(line)) for _ in range(ROUNDS)], strict=True)
        figures = first, median(again), median(lines)
        table.add_row(name, *(f"{figure:.0f}" for figure in figures), f"{first / median(lines):.1f}x")
    Console().print(table)


def cpu_ms(work: Callable[[], object]) -> float:
    """Return the CPU time that this process takes for something, in milliseconds."""
    start = process_time()
    work()
    return (process_time() - start) * 1000


def page_of(keep: threadkeep.Keep, path: str) -> Callable[[], None]:
    """Return a function that gets a page. `{n}` in its path is another number each time."""
    numbers = count()
    transport = httpx.ASGITransport(app(keep, authorize=lambda _: True, allowed_hosts=["bench"]))

    async def get() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://bench") as client:
            (await client.get(path.format(n=next(numbers)))).raise_for_status()

    return lambda: asyncio.run(get())


def run(command: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        cli.run(command)


if __name__ == "__main__":
    main()
