"""Print results: tables and text for people, JSON for programs, a progress bar for long work."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from threadkeep.cli import pager
from threadkeep.jobs.byte_counts import format_bytes as format_size

if TYPE_CHECKING:
    from threadkeep.work import OnProgress

__all__ = [
    "NARROW",
    "STATUS_STYLES",
    "Hanging",
    "as_json_text",
    "as_plain",
    "console",
    "escape",
    "format_size",
    "format_time",
    "id_names",
    "is_terminal",
    "one_line",
    "print_ids",
    "print_result",
    "progress_bar",
    "shorten",
    "skipped_lines",
    "table",
    "times_in_table",
]
STATUS_STYLES = {"idle": "green", "pending": "yellow", "interrupted": "magenta", "error": "red", "damaged": "red"}
NARROW = 100
"""A terminal with fewer columns shows fewer columns of wide tables."""
_NARROWEST = 20
"""A text that has fewer columns beside its prefix starts on the next line."""
_UNLIMITED_WIDTH = 10_000
"""The width if the output is not a terminal: programs want unbroken lines."""
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal may act on or cannot print: control characters except newline and tab, changes of text
direction, and lone surrogates."""


def is_terminal() -> bool:
    """Return whether people read the output, rather than programs."""
    return sys.stdout.isatty()


def console() -> Console:
    """Return the console for results. It never interprets stored text as markup."""
    width = None if is_terminal() or "COLUMNS" in os.environ else _UNLIMITED_WIDTH
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=not is_terminal(), width=width)


def escape(text: str) -> str:
    """Escape the characters that a terminal may act on. Newlines and tabs stay."""
    return _UNSAFE.sub(_escape_character, text)


def one_line(text: str) -> str:
    """Escape a text, including newlines and tabs."""
    return escape(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def print_result(value: Any, lines: Iterable[RenderableType], *, as_json: bool, paged: bool = True) -> None:
    """Print a result: `value` as JSON, or else `lines`, which are strings, texts and tables.

    Lines that do not fit the screen of a terminal are shown in a pager, if `paged`.
    """
    if as_json:
        sys.stdout.write(as_json_text(value, indent=2) + "\n")
        sys.stdout.flush()
        return
    out = console()
    command = pager.program() if paged else []
    with out.capture() if command else nullcontext() as captured:
        for line in lines:
            out.print(escape(line) if isinstance(line, str) else line)
    if captured is not None:
        _print_page(captured.get(), command, out)


def _print_page(text: str, command: list[str], out: Console) -> None:
    if text.count("\n") >= out.height:
        pager.page(text, command)
    else:
        sys.stdout.write(text)
        sys.stdout.flush()


def print_ids(ids: Iterable[str | tuple[str, ...]], *, as_json: bool) -> None:
    """Print each id on a line, for programs, the parts of one between tabs; or all as JSON.

    Characters that would end a part or a line are escaped.
    """
    found = list(ids)
    if as_json:
        sys.stdout.write(as_json_text(found) + "\n")
    for id in () if as_json else found:
        sys.stdout.write("\t".join(map(one_line, (id,) if isinstance(id, str) else id)) + "\n")
    sys.stdout.flush()


class Hanging:
    """A text whose first line starts with a prefix, and whose further lines keep its column below `rest`."""

    def __init__(self, prefix: Text, body: Text, rest: Text | None = None) -> None:
        self._prefix = prefix
        self._body = body
        self._rest = Text(" " * prefix.cell_len) if rest is None else rest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines: in a terminal as wide as it is, in a pipe unbroken."""
        first, rest = self._prefix, self._rest
        own_lines = self._body.split(allow_blank=True) or [Text()]
        if not options.no_wrap:
            room = options.max_width - max(first.cell_len, rest.cell_len)
            if room < _NARROWEST and self._body.cell_len > room:  # the text has lines of its own, as wide as needed
                yield first
                first = rest = rest[: options.max_width // 4]
                room = options.max_width - rest.cell_len
            own_lines = [part for line in own_lines for part in _wrap(console, line, max(room, 1))]
        for n, line in enumerate(own_lines):
            text = Text.assemble(rest if n else first, line)
            text.rstrip()
            yield text


def _wrap(console: Console, line: Text, width: int) -> Iterator[Text]:
    """Wrap a line; the further lines keep its indentation."""
    indent = min(len(line.plain) - len(line.plain.lstrip(" ")), width // 2)
    yield from (Text.assemble(line[:indent], part) for part in line[indent:].wrap(console, width - indent, tab_size=4))


def id_names(ids: Iterable[str], *, full_ids: bool) -> dict[str, str]:
    """Return what to print for each id: as many of its last characters as make it unique among these, or all."""
    from threadkeep.engine.history.show import short_ids  # noqa: PLC0415 - imports LangChain

    return {id: id for id in ids} if full_ids else short_ids(ids)


def as_json_text(value: Any, *, indent: int | None = None) -> str:
    r"""Return a result as JSON. Characters that a terminal may act on become \uXXXX, which JSON reads as the same."""
    text = json.dumps(as_plain(value), indent=indent, ensure_ascii=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def as_plain(value: Any) -> Any:
    """Return a result as JSON types: dataclasses and named tuples become dicts, times become ISO 8601."""
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
    from threadkeep.engine.log.plain import jsonable  # noqa: PLC0415 - imports LangChain

    return jsonable(value)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = (), no_wrap: Sequence[str] = ()
) -> Table:
    """Return a table. Columns named in `right` are aligned right; those in `no_wrap` are not broken into lines."""
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in columns:
        justify: JustifyMethod = "right" if name in right else "left"
        result.add_column(name, justify=justify, overflow="fold", no_wrap=name in no_wrap)
    for row in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(_cell_text(cell)) for cell in row))
    return result


def _cell_text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return format_time(cell)
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else one_line(str(cell))


def format_time(time: datetime) -> str:
    """Return a time in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def times_in_table(times: Sequence[datetime]) -> tuple[str | None, list[str]]:
    """Return what to print of times below each other: their day, if it is one, and each time."""
    days = {f"{time:%Y-%m-%d}" for time in times}
    if len(days) > 1:
        return None, [format_time(time) for time in times]
    return (days.pop() if days else None), [f"{time:%H:%M:%S}.{time.microsecond // 1000:03}" for time in times]


def skipped_lines(skipped: Iterable[str], what: str = "damaged thread") -> Iterator[Text]:
    """Return a line for each damaged thread, or what else it is, that a command skipped."""
    return (Text(one_line(f"skipped {what} {id}: see threadkeep verify"), "yellow") for id in skipped)


def leased_lines(leased: Iterable[str]) -> Iterator[Text]:
    """Return a line for each thread that a command skipped because somebody holds a lease of it."""
    return (
        Text(one_line(f"skipped thread {id}: somebody holds a lease of it; see --force"), "yellow") for id in leased
    )


def damage_lines(skipped: Iterable[str], damage: Iterable[str]) -> Iterator[Text]:
    """Return a line for each damaged thread that was not copied, and one for each thing that is damaged."""
    yield from skipped_lines(skipped)
    yield from (Text(one_line(f"damaged: {each}"), "yellow") for each in damage)


def damaged_lines(damaged: Iterable[str]) -> Iterator[Text]:
    """Return a line for each thread with damaged rows, which a command left as they are."""
    return (Text(one_line(f"thread {id} is damaged in part: see threadkeep verify"), "yellow") for id in damaged)


def shorten(value: Any, width: int = 80) -> str:
    """Return a value on one line of at most `width` characters."""
    text = value if isinstance(value, str) else json.dumps(as_plain(value), ensure_ascii=False)
    text = escape(" ".join(text.split()))
    return text if len(text) <= width else text[: width - 1] + "…"


@contextmanager
def progress_bar(title: str, *, hidden: bool = False) -> Iterator[OnProgress]:
    """Draw a progress bar on stderr, if that is a terminal; yield the function that moves it."""
    stderr = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    )
    with Progress(*columns, console=stderr, transient=True, disable=hidden or not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=None, what="")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, what=one_line(what))
