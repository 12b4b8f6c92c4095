"""How answers look: tables and text for people, JSON for programs, a bar while long work is under way."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from threadkeep.engine.log.plain import jsonable
from threadkeep.jobs.doctor import in_words as size
from threadkeep.work import Tell

__all__ = [
    "STATUS_STYLES",
    "answer",
    "as_json_text",
    "as_plain",
    "bar",
    "brief",
    "clean",
    "console",
    "counted",
    "left_alone",
    "line",
    "moment",
    "size",
    "table",
    "text",
]
STATUS_STYLES = {"idle": "green", "pending": "yellow", "interrupted": "magenta", "error": "red"}
_WIDE = 10_000
"""The width of what is not a terminal: what reads it wants whole lines."""
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal may obey instead of showing it, or cannot show: control characters but newline and tab, changes of
direction, lone surrogates."""


def console() -> Console:
    """Where answers go. Text of users is never taken for markup."""
    is_terminal = sys.stdout.isatty()
    width = None if is_terminal or "COLUMNS" in os.environ else _WIDE
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=not is_terminal, width=width)


def clean(text: str) -> str:
    """Text of users as a terminal may have it: what it would obey is escaped, newlines and tabs stay."""
    return _UNSAFE.sub(_escaped, text)


def line(text: str) -> str:
    """The same on one line."""
    return clean(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def answer(value: Any, shown: Iterable[RenderableType], *, as_json: bool) -> None:
    """Give an answer: as JSON, or line by line (text, tables) for people. A generator is only asked for the latter."""
    if as_json:
        sys.stdout.write(as_json_text(value, indent=2) + "\n")
        sys.stdout.flush()
        return
    out = console()
    for part in shown:
        out.print(clean(part) if isinstance(part, str) else part)


def as_json_text(value: Any, *, indent: int | None = None) -> str:
    """An answer as JSON; what a terminal would obey is escaped there too, and means the same."""
    text = json.dumps(as_plain(value), indent=indent, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), whole: Sequence[str] = ()
) -> Table:
    """A table without lines; columns named in `right` stand on the right, as numbers do, those in `whole` are not broken."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in columns:
        justify: JustifyMethod = "right" if name in right else "left"
        made.add_column(name, justify=justify, overflow="fold", no_wrap=name in whole)
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(text(cell)) for cell in row))
    return made


def text(cell: Any) -> str:
    """What stands in a cell."""
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return moment(cell)
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else line(str(cell))


def moment(time: datetime) -> str:
    """A time, in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def counted(count: int, one: str, many: str = "") -> str:
    """How many of something: 1 thread, 2 threads."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def left_alone(skipped: Iterable[str]) -> Iterator[Text]:
    """Damaged threads that something was not done with."""
    return (Text(line(f"left alone, because it is damaged: {id} (see verify)"), "yellow") for id in skipped)


def brief(value: Any, width: int = 80) -> str:
    """A value in one line, cut."""
    said = value if isinstance(value, str) else json.dumps(as_plain(value), ensure_ascii=False)
    said = clean(" ".join(said.split()))
    return said if len(said) <= width else said[: width - 1] + "…"


@contextmanager
def bar(title: str, *, hidden: bool = False) -> Iterator[Tell]:
    """A progress bar on stderr, and the function that moves it. Where there is no terminal, nothing is drawn."""
    stderr = Console(stderr=True)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", markup=False), console=stderr, transient=True, disable=hidden or not stderr.is_terminal,
    ) as drawn:  # fmt: skip
        task = drawn.add_task(title, total=None, what="")
        yield lambda done, total, what: drawn.update(task, completed=done, total=total, what=line(what))
