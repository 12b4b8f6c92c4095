"""Prints the chapters, and checks their claims: the demo fails if one is not true."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

WIDTH = 100
SPEAKERS = {"human": ("you", "bold cyan"), "ai": ("agent", "bold green"), "tool": ("tool", "bold yellow")}
UNIT = 1024


class NotTrueError(Exception):
    """A claim of the demo does not hold."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A screen of at most 100 columns and a folder that the chapters may write into."""

    folder: Path
    console: Console
    numbers: count[int] = field(default_factory=lambda: count(1))

    @property
    def url(self) -> str:
        """The database that all chapters share."""
        return f"sqlite:///{self.folder / 'agent.db'}"

    def chapter(self, title: str, text: str) -> None:
        """Start the next numbered chapter."""
        self.console.print()
        self.console.rule(f"[bold]{next(self.numbers)}. {title}", align="left", style="blue")
        self.say(text)

    def say(self, text: str) -> None:
        """Print a paragraph, which may use rich's markup."""
        self.console.print()
        self.console.print(" ".join(text.split()))
        self.console.print()

    def show(self, what: RenderableType) -> None:
        """Print a table, a tree or a line, indented."""
        self.console.print(Padding(what, (0, 0, 1, 2)))

    def claim(self, holds: bool, text: str) -> None:  # noqa: FBT001 (reads as a sentence)
        """Print a claim that holds, or stop the demo."""
        if not holds:
            raise NotTrueError(text)
        self.console.print(f"  [bold green]✓[/] {text}")


def thread(thread_id: str) -> RunnableConfig:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread_id}}


def checkpoint_id(config: RunnableConfig | None) -> str | None:
    """Return the checkpoint id of a config, or None."""
    return config["configurable"]["checkpoint_id"] if config else None


def short(config: RunnableConfig) -> str:
    """Shorten a checkpoint's id to the part that differs within a run."""
    return (checkpoint_id(config) or "")[9:18]


def grid(*headings: str, rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """Return rows as a table. The columns named in `right` are right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, show_header=any(headings))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    for row in rows:
        table.add_row(*row)
    return table


def transcript(messages: Iterable[AnyMessage]) -> Table:
    """Return messages as a conversation."""
    table = Table.grid(padding=(0, 2))
    for message in messages:
        name, style = SPEAKERS[message.type]
        table.add_row(f"[{style}]{name}[/]", spoken(message))
    return table


def spoken(message: AnyMessage) -> str:
    """Return a message as text: its content, or its tool calls."""
    if isinstance(message, AIMessage) and message.tool_calls:
        return "[dim]calls[/] " + ", ".join(
            f"{call['name']}({', '.join(repr(value) for value in call['args'].values())})"
            for call in message.tool_calls
        )
    return escape(message.text)


def size(number: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KiB", "MiB"):
        if number < UNIT:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= UNIT
    return f"{number:,.1f} GiB"
