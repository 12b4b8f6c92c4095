"""Chapter 2: a process is killed in the middle of a step, and no finished work is done again.

This module is also the victim: `python -m threadkeep.demo.crash URL LOG` runs the order and dies.
"""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from rich.table import Table

import threadkeep
from threadkeep.demo.stage import NotTrueError, Stage, grid, thread

ORDER = thread("order")
CHARGED = ["card charged 120 €"]
TIMEOUT = 30.0


class Order(TypedDict):
    """The steps of the order that are done."""

    done: Annotated[list[str], operator.add]


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A node that logs its call, works, and returns its result."""

    log: Path
    name: str
    result: list[str]
    work: Callable[[], None] = nothing

    def __call__(self, state: Order) -> Order:  # noqa: ARG002 (LangGraph passes it by name)
        """Run the node."""
        note(self.log, self.name)
        self.work()
        return {"done": self.result}


def order_graph(saver: BaseCheckpointSaver[Any], log: Path, courier: Callable[[], None]) -> Any:
    """Compile `check -> (charge_card | book_courier) -> receipt`; each node logs that it ran."""
    builder = StateGraph(Order)
    builder.add_node("check", Worker(log, "check", ["order checked"]))
    builder.add_node("charge_card", Worker(log, "charge_card", CHARGED))
    builder.add_node("book_courier", Worker(log, "book_courier", ["courier booked"], courier))
    builder.add_node("receipt", Worker(log, "receipt", ["receipt sent"]))
    builder.add_edge(START, "check")
    builder.add_edge("check", "charge_card")
    builder.add_edge("check", "book_courier")
    builder.add_edge(["charge_card", "book_courier"], "receipt")
    builder.add_edge("receipt", END)
    return builder.compile(checkpointer=saver)


def note(log: Path, name: str) -> None:
    """Leave a side effect that survives the process: one line for each call of a node."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{name} {os.getpid()}\n")


def die_once_charged(url: str) -> None:
    """Wait until another connection can read the sibling's result in the database, then die."""
    deadline = time.monotonic() + TIMEOUT
    with threadkeep.open(url) as witness:
        while time.monotonic() < deadline:
            found = witness.checkpointer.get_tuple(ORDER)
            if found and any(value == CHARGED for _, _, value in found.pending_writes or ()):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.005)
    raise NotTrueError("the write of a finished node reaches the disk while its sibling still runs")


def victim(url: str, log: Path) -> None:
    """Run the order in a process that kills itself while the courier is being booked."""
    with threadkeep.open(url) as keep:
        graph = order_graph(keep.checkpointer, log, lambda: die_once_charged(url))
        graph.invoke({"done": []}, ORDER)


def play(stage: Stage) -> None:
    """Let the victim die, look at what is left, resume."""
    stage.chapter(
        "Crash and resume",
        """A child process runs [cyan]check → (charge_card ‖ book_courier) → receipt[/]. The two in
        the middle run in parallel. When the card is charged and while the courier is still being
        booked, the child sends itself [red]SIGKILL[/]: no cleanup, no goodbye.""",
    )
    log = stage.folder / "calls.log"
    child = subprocess.run([sys.executable, "-m", __spec__.name, stage.url, str(log)], check=False)  # noqa: S603 - this module
    stage.claim(child.returncode == -signal.SIGKILL, "the child was killed by SIGKILL")
    with threadkeep.open(stage.url) as keep:
        graph = order_graph(keep.checkpointer, log, nothing)
        stage.say("What the dead child left in the database:")
        left = {task.name: task.result for task in graph.get_state(ORDER).tasks}
        stage.show(tasks_left(left))
        stage.claim(
            left == {"charge_card": {"done": CHARGED}, "book_courier": None},
            "the finished result is on disk, although its step never ended",
        )
        final = graph.invoke(None, ORDER)["done"]
    calls = [line.split() for line in log.read_text("utf-8").splitlines()]
    stage.say("The parent calls [cyan]graph.invoke(None, config)[/]. The log of side effects, from both processes:")
    stage.show(calls_made(calls))
    ran = [name for name, _ in calls]
    stage.claim(ran.count("charge_card") == 1, "the card was charged once: the finished node did not run again")
    stage.claim(ran.count("book_courier") == 2, "only the interrupted node ran again")
    stage.claim(len(final) == 4, "the order is complete: " + ", ".join(final))


def tasks_left(left: dict[str, Any]) -> Table:
    """Show the tasks of the interrupted step."""
    rows = [(name, f"[green]{result['done'][0]}[/]" if result else "[red]nothing[/]") for name, result in left.items()]
    return grid("task of the interrupted step", "on disk", rows=rows)


def calls_made(calls: list[list[str]]) -> Table:
    """Show which process called which node."""
    rows = [(name, "parent" if int(pid) == os.getpid() else "[red]child[/]", f"[dim]{pid}[/]") for name, pid in calls]
    return grid("node", "called by", "process", rows=rows, right=("process",))


if __name__ == "__main__":
    victim(sys.argv[1], Path(sys.argv[2]))
