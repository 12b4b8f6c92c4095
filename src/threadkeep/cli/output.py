"""How answers look: tables and text for people, JSON for programs, a bar while long work is under way."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from unicodedata import category

from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from threadkeep.engine.plain import jsonable
from threadkeep.work import Tell

STATUS_STYLES = {"idle": "green", "pending": "yellow", "interrupted": "magenta", "error": "red"}
_OBEYED = ("Cc", "Cs")
_TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""What lets text run in the other direction."""
_UNITS = ("B", "kB", "MB", "GB", "TB")


def console() -> Console:
    """Where answers go. Text of users is never taken for markup."""
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def answer(value: Any, shown: Iterable[RenderableType], *, as_json: bool) -> None:
    """Give an answer: as JSON, or line by line (text, tables) for people. A generator is only asked for the latter."""
    if as_json:
        sys.stdout.write(json.dumps(as_plain(value), indent=2, ensure_ascii=False) + "\n")
        sys.stdout.flush()
        return
    out = console()
    for part in shown:
        out.print(part)


def as_plain(value: Any) -> Any:
    """An answer of the verbs as JSON has it: dataclasses and named tuples are dicts, times are ISO 8601."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: as_plain(inner) for name, inner in value._asdict().items()}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: as_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_plain(inner) for inner in value]
    return jsonable(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> Table:
    """A table without lines; columns named in `right` stand on the right, as numbers do."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(text(cell)) for cell in row))
    return made


def text(cell: Any) -> str:
    """What stands in a cell."""
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return moment(cell)
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else visible(str(cell))


def visible(said: str) -> str:
    """Text of users with what a terminal would obey, or cannot show, escaped: controls, lone surrogates."""
    return "".join(c.encode("unicode_escape").decode() if category(c) in _OBEYED or c in _TURNS else c for c in said)


def moment(time: datetime) -> str:
    """A time, in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def size(count: float) -> str:
    """Bytes for people: 1.5 MB."""
    for unit in _UNITS[:-1]:
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"


def brief(value: Any, width: int = 80) -> str:
    """A value in one line, cut."""
    line = value if isinstance(value, str) else json.dumps(as_plain(value), ensure_ascii=False)
    line = " ".join(line.split())
    return line if len(line) <= width else line[: width - 1] + "…"


@contextmanager
def bar(title: str, *, hidden: bool = False) -> Iterator[Tell]:
    """A progress bar on stderr, and the function that moves it. Where there is no terminal, nothing is drawn."""
    stderr = Console(stderr=True)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", markup=False), console=stderr, transient=True, disable=hidden or not stderr.is_terminal,
    ) as drawn:  # fmt: skip
        task = drawn.add_task(title, total=None, what="")
        yield lambda done, total, what: drawn.update(task, completed=done, total=total, what=visible(what))
