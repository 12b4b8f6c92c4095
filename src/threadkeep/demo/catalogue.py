"""Chapter 7: the list of threads that an operator sees."""

from __future__ import annotations

import threadkeep
from threadkeep.demo.stage import Stage, grid, size

THREADS = {"chat", "order", "refund", "refund-2", "trip"}


def play(stage: Stage) -> None:
    """List the threads that the other chapters left in the database."""
    stage.chapter("What is kept", "[cyan]keep.threads()[/] lists the threads of this demo, the last used first:")
    with threadkeep.open(stage.url) as keep:
        threads = keep.threads(order="updated")
    stage.show(
        grid(
            "thread", "kind", "status", "checkpoints", "writes", "step", "source", "stored",
            rows=[row(info) for info in threads],
            right=("checkpoints", "writes", "step", "stored"),
        )
    )  # fmt: skip
    stage.claim({info.id for info in threads} == THREADS, "all threads of this demo are in one file")
    waiting = [info.id for info in threads if info.status == "interrupted"]
    stage.claim(waiting == ["refund-2"], "one of them waits for its answer")


def row(info: threadkeep.ThreadInfo) -> tuple[str, ...]:
    """Return a thread's row of the table."""
    status = f"[yellow]{info.status}[/]" if info.status == "interrupted" else info.status
    numbers = (str(info.checkpoints), str(info.writes), str(info.step))
    return f"[bold]{info.id}[/]", info.kind, status, *numbers, info.source or "", size(info.bytes)
