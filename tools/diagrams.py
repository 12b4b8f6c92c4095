"""Draws the diagrams of the explanations as SVG files in docs/images: `make generate`.

Each has a background of its own, light or dark as the reader's system is, so it can be read on any page.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import pairwise

STYLE = """
  text { font: 13px -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: #1f2933; }
  .page { fill: #ffffff; stroke: #d0d7de; }
  .title { font-size: 16px; font-weight: 600; }
  .name { font-size: 14px; font-weight: 600; }
  .note { font-size: 12px; fill: #57606a; }
  .code { font: 12px ui-monospace, "SF Mono", Menlo, Consolas, monospace; white-space: pre; }
  .box { fill: #f6f8fa; stroke: #8c959f; }
  .new { fill: #d8f3e6; stroke: #2da077; }
  .fork { fill: #ddd6f6; stroke: #8470c8; }
  .edit { fill: #fdecc8; stroke: #bf8700; }
  .bar.new, .bar.fork, .bar.edit { fill-opacity: 0.9; }
  .line { stroke: #57606a; stroke-width: 1.5; fill: none; }
  .dash { stroke: #8c959f; stroke-width: 1.2; stroke-dasharray: 4 4; fill: none; }
  .tip { fill: #57606a; }
  .relaxed { fill: #bf8700; } .strict { fill: #1a7f5a; }
  .flag { fill: #ffffff; font-size: 12px; font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .page { fill: #161b22; stroke: #30363d; }
    .note { fill: #9da7b3; }
    .box { fill: #21262d; stroke: #6e7681; }
    .new { fill: #12402f; stroke: #2da077; }
    .fork { fill: #352b63; stroke: #8470c8; }
    .edit { fill: #4a3a12; stroke: #d4a72c; }
    .line { stroke: #9da7b3; } .dash { stroke: #6e7681; } .tip { fill: #9da7b3; }
    .relaxed { fill: #8a6400; } .strict { fill: #14734f; } .flag { fill: #ffffff; }
  }
"""
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
)
TIP += '<path d="M0,0 L8,4 L0,8 z" class="tip"/></marker>'


def picture(width: int, height: int, description: str, parts: Iterable[str]) -> str:
    """Return an SVG file."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    page = f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" class="page"/>'
    title = f' role="img">\n<title>{escape(description)}</title>'
    return "\n".join([head + title, f"<style>{STYLE}</style>", f"<defs>{TIP}</defs>", page, *parts, "</svg>"]) + "\n"


def label(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """Return a rectangle."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" class="{kind}"/>'


def named_box(x: float, y: float, width: float, height: float, lines: Iterable[str], kind: str = "box") -> str:
    """Return a rectangle with lines of text in its middle, the first one in bold."""
    words = list(lines)
    top = y + height / 2 - 9 * (len(words) - 1) + 4.5
    texts = [
        label(x + width / 2, top + 18 * number, line, "note" if number else "name", "middle")
        for number, line in enumerate(words)
    ]
    return "\n".join([box(x, y, width, height, kind), *texts])


def arrow(x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> str:
    """Return an arrow."""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}" marker-end="url(#tip)"/>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> str:
    """Return a line."""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}"/>'


# --- the item log

ITEMS = ("hello", "hi!", "tea?", "green", "and?", "black", "no:", "rooibos", "hello!")
CELL = 62
LEFT = 168
CHECKPOINTS: tuple[tuple[str, str, str, tuple[tuple[int, int], ...]], ...] = (
    ("step 1", "new", "4:0+2", ((0, 2),)),
    ("step 4", "new", "4:0+4", ((0, 4),)),
    ("step 7", "new", "4:0+6", ((0, 6),)),
    ("fork of step 4", "fork", "4:0+4  4:6+2", ((0, 4), (6, 2))),
    ("message 0 edited", "edit", "4:8  4:1+5", ((8, 1), (1, 5))),
)
"""Name, colour, how the ranges are written, and the ranges (start, length) of each checkpoint."""


def item_log() -> str:
    """Draw the log of items and the ranges of five checkpoints."""
    parts = [
        label(20, 34, "One thread: items, and checkpoints that refer to them", "title"),
        label(
            20,
            56,
            "A message is one item, stored once. A checkpoint is a short row with ranges of items.",
            "note",
        ),
        label(20, 104, "items of the channel"),
        label(20, 122, "messages", "code"),
    ]
    for number, word in enumerate(ITEMS):
        kind = "fork" if number in (6, 7) else "edit" if number == 8 else "new"
        x = LEFT + CELL * number
        parts += [
            box(x, 84, CELL - 6, 44, kind),
            label(x + (CELL - 6) / 2, 103, f"4:{number}", "code", "middle"),
            label(x + (CELL - 6) / 2, 120, word, "note", "middle"),
        ]
    parts.append(label(20, 160, "checkpoints", ""))
    for row, (name, kind, written, ranges) in enumerate(CHECKPOINTS):
        parts += _checkpoint(186 + 40 * row, name, kind, written, ranges)
    parts += [
        label(
            20,
            404,
            "The fork shares the beginning and adds two items; the edit adds one. Nothing is copied, nothing overwritten.",
            "note",
        ),
        label(20, 424, "The official savers store the whole list again in each of these five checkpoints.", "note"),
    ]
    return picture(900, 444, "Items of a thread in a row; below, each checkpoint as ranges over them", parts)


def _checkpoint(y: float, name: str, kind: str, written: str, ranges: tuple[tuple[int, int], ...]) -> list[str]:
    parts = [label(20, y + 14, name), label(LEFT + CELL * len(ITEMS) + 14, y + 15, written, "code")]
    ordered = sorted(ranges)
    for (start, length), (following, _) in pairwise(ordered):
        end = LEFT + CELL * (start + length) - 6
        parts.append(line(end, y + 10, LEFT + CELL * following, y + 10, "dash"))
    parts += [box(LEFT + CELL * start, y, CELL * length - 6, 20, f"bar {kind}") for start, length in ranges]
    return parts


# --- plans

STATIONS = (
    ("adapter", "KeepSaver.put", "translates"),
    ("plan", "engine/: no I/O", "decides"),
    ("runner", "drivers/", "drives the plan"),
    ("transport", "transports/", "executes"),
    ("database", "SQLite, PostgreSQL,", "Valkey, memory"),
)


def plans() -> str:
    """Draw the way of a call: adapter, plan, runner, transport with its backend, database."""
    width, gap, top = 138, 42, 96
    xs = [22 + number * (width + gap) for number in range(len(STATIONS))]
    parts = [
        label(20, 34, "A call, from the graph to the database", "title"),
        label(
            20,
            56,
            "Only the transport does I/O. Everything that decides is a computation, the same for sync and async callers.",
            "note",
        ),
        *(
            named_box(x, top, width, 84, words, "new" if n == 1 else "box")
            for n, (x, words) in enumerate(zip(xs, STATIONS, strict=True))
        ),
        arrow(xs[0] + width, top + 42, xs[1] - 2, top + 42),
        arrow(xs[1] + width, top + 28, xs[2] - 2, top + 28),
        arrow(xs[2] - 2, top + 58, xs[1] + width + 2, top + 58),
        arrow(xs[2] + width, top + 28, xs[3] - 2, top + 28),
        arrow(xs[3] - 2, top + 58, xs[2] + width + 2, top + 58),
        arrow(xs[3] + width, top + 28, xs[4] - 2, top + 28),
        arrow(xs[4] - 2, top + 58, xs[3] + width + 2, top + 58),
        label((xs[1] + width + xs[2]) / 2, top - 8, "request", "note", "middle"),
        label((xs[1] + width + xs[2]) / 2, top + 104, "reply", "note", "middle"),
        label((xs[3] + width + xs[4]) / 2, top - 8, "statements", "note", "middle"),
        label((xs[3] + width + xs[4]) / 2, top + 104, "rows", "note", "middle"),
        named_box(xs[3], top + 132, width, 62, ("backend", "request → SQL or Lua")),
        line(xs[3] + width / 2, top + 84, xs[3] + width / 2, top + 132, "dash"),
        label(xs[0], top + 150, "a put, as requests:", ""),
        label(xs[0], top + 172, "await LoadCheckpoints(…)   # only if the thread is not cached", "code"),
        label(xs[0], top + 192, "await Commit(batch)        # Conflict? read, decide, send again", "code"),
        label(
            20,
            330,
            "One await is one round trip. A test that fails the k-th request, for every k, covers every moment of a crash.",
            "note",
        ),
    ]
    return picture(
        904, 350, "Adapter, plan, runner, transport with backend, and database, with requests and replies", parts
    )


# --- durability

COMMITS: tuple[tuple[str, tuple[tuple[str, str], ...], int, int, str], ...] = (
    (
        "SQLite",
        (("process", "sends the commit"), ("operating system", "has it in the WAL"), ("disk", "WAL is synced")),
        1,
        2,
        "a killed process loses nothing in either; a power loss may take the last relaxed commits",
    ),
    (
        "PostgreSQL",
        (
            ("process", "sends the commit"),
            ("server", "commit is visible"),
            ("its disk", "WAL is flushed"),
            ("standbys", "if it waits for them"),
        ),
        1,
        2,
        "strict follows synchronous_commit of the server: with synchronous standbys it waits for them, too",
    ),
    (
        "Valkey",
        (
            ("process", "sends the script"),
            ("primary", "in memory"),
            ("a replica", "in memory (WAIT 1)"),
            ("disks", "append-only file, later"),
        ),
        1,
        2,
        "a dead primary loses nothing that a replica has, if that replica is elected; strict is no fsync",
    ),
)
"""Database, its stations, at which one a relaxed and a strict commit return, and what that means."""


def durability() -> str:
    """Draw for each database where a relaxed and a strict commit return."""
    parts = [
        label(20, 34, "What a commit waits for before the call returns", "title"),
        label(20, 56, "Further to the right, more failures are survived and each call takes longer.", "note"),
    ]
    for row, (name, stations, relaxed, strict, meaning) in enumerate(COMMITS):
        parts += _commit(84 + 152 * row, name, stations, relaxed, strict, meaning)
    return picture(904, 544, "For SQLite, PostgreSQL and Valkey, where relaxed and strict commits return", parts)


def _commit(
    y: float, name: str, stations: tuple[tuple[str, str], ...], relaxed: int, strict: int, meaning: str
) -> list[str]:
    width, gap, left = 160, 26, 140
    xs = [left + number * (width + gap) for number in range(len(stations))]
    return [
        label(20, y + 40, name, "title"),
        *(named_box(x, y, width, 62, words) for x, words in zip(xs, stations, strict=True)),
        *(arrow(x + width, y + 31, x + width + gap - 2, y + 31) for x in xs[:-1]),
        *_flag(xs[relaxed] + width / 2, y + 62, "relaxed"),
        *_flag(xs[strict] + width / 2, y + 62, "strict"),
        label(left, y + 116, meaning, "note"),
    ]


def _flag(x: float, y: float, words: str) -> list[str]:
    return [
        f'<rect x="{x - 62}" y="{y + 6}" width="124" height="22" rx="11" class="{words}"/>',
        label(x, y + 21, f"{words} returns", "flag", "middle"),
    ]


DIAGRAMS = {
    "docs/images/item-log.svg": item_log,
    "docs/images/plans.svg": plans,
    "docs/images/durability.svg": durability,
}
