"""Chapter 6: the disk space of a longer conversation, compared with LangGraph's SQLite checkpointer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from langchain_core.messages import AnyMessage
from langgraph.checkpoint.base import BaseCheckpointSaver

import threadkeep
from threadkeep.demo.agent import agent, ask, messages
from threadkeep.demo.stage import Stage, grid, size, thread

TURNS = 40
FEWER = 20  # it was 46 when this was written
LONG = thread("long")
WORDS = """account after agent answer any because before better between both branch change city clear common
could data different during each early enough every file first follow found from general given great group
hold human idea important into item keep large last later light list little local long look make many matter
memory message might model more most must need never next number often only open order other part people
place plan point problem program question read reason right same second set should show side simple since
small some state step still store system table than their there thing think thread through time tool turn
under until use value very want water way week well when where which while word work world would write year"""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished conversation: its messages, its number of checkpoints, its bytes on disk."""

    said: Sequence[AnyMessage]
    checkpoints: int
    stored: int


def passage(subject: str) -> str:
    """Return 40 to 160 random words, always the same for a subject."""
    dice = random.Random(subject)  # noqa: S311 - no secret
    return f"on {subject}, " + " ".join(dice.choices(WORDS.split(), k=dice.randint(40, 160)))


def converse(saver: BaseCheckpointSaver[Any]) -> tuple[Sequence[AnyMessage], int]:
    """Hold the conversation, and return its messages and the number of checkpoints."""
    graph = agent(saver, passage)
    for turn in range(TURNS):
        ask(graph, f"What do the files say about subject-{turn}?", LONG)
    return messages(graph.get_state(LONG).values), sum(1 for _ in saver.list(LONG))


def on_threadkeep(folder: Path) -> Run:
    """Hold the conversation on threadkeep."""
    folder.mkdir()
    with threadkeep.open(f"sqlite:///{folder / 'long.db'}") as keep:
        said, checkpoints = converse(keep.checkpointer)
    return Run(said, checkpoints, on_disk(folder))


def on_sqlite_saver(folder: Path) -> Run:
    """Hold the same conversation on LangGraph's SqliteSaver."""
    from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - `play` looks whether it is installed

    folder.mkdir()
    with SqliteSaver.from_conn_string(str(folder / "long.db")) as saver:
        said, checkpoints = converse(saver)
    return Run(said, checkpoints, on_disk(folder))


def on_disk(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.iterdir())


def play(stage: Stage) -> None:
    """Hold the conversation, if possible also on LangGraph's SqliteSaver, and compare."""
    stage.chapter(
        "What it costs",
        f"""The same agent talks for {TURNS} turns, on threadkeep and on LangGraph's own
        [cyan]SqliteSaver[/], with the same words. Both keep every checkpoint. Measured with the
        databases closed.""",
    )
    ours = on_threadkeep(stage.folder / "ours")
    official = on_sqlite_saver(stage.folder / "official") if has_sqlite_saver() else None
    show_sizes(stage, ours, official)
    if official is None:
        stage.say(r'[yellow]SqliteSaver is not installed:[/] pip install "threadkeep\[demo]" compares with it.')
        return
    same = [message.text for message in ours.said] == [message.text for message in official.said]
    stage.claim(same and ours.checkpoints == official.checkpoints, "both hold the same messages and checkpoints")
    stage.claim(official.stored / ours.stored >= FEWER, f"threadkeep needs less than 1/{FEWER} of the disk")


def has_sqlite_saver() -> bool:
    """Whether LangGraph's SqliteSaver is installed: its namespace package exists without it."""
    return find_spec("langgraph.checkpoint.sqlite") is not None


def show_sizes(stage: Stage, ours: Run, official: Run | None) -> None:
    """Show what was stored, and the text alone beside it."""
    text = sum(len(message.text.encode()) for message in ours.said)
    rows = [("[dim]the text alone[/]", str(len(ours.said)), "", size(text), size(text / TURNS), "")]
    if official is not None:
        rows.append(("SqliteSaver", *counts(official), f"{official.stored / ours.stored:.1f} x"))
    rows.append(("[bold green]threadkeep[/]", *counts(ours), "[bold green]1.0 x[/]"))
    right = ("messages", "checkpoints", "on disk", "a turn", "ratio")
    stage.show(grid("", *right, rows=rows, right=right))


def counts(run: Run) -> tuple[str, str, str, str]:
    """Write a run's numbers for the table."""
    return str(len(run.said)), str(run.checkpoints), size(run.stored), size(run.stored / TURNS)
