"""Chapter 7: what the operator sees."""

import threadkeep

from .stage import Stage, grid, size

THREADS = {"chat", "order", "refund", "refund-2", "trip"}


def play(stage: Stage) -> None:
    """List the threads that the other chapters left in the database."""
    stage.chapter("What is kept", "[cyan]keep.threads()[/] lists the threads of this demo, the last used first:")
    with threadkeep.open(stage.url) as keep:
        threads = keep.threads(order="updated")
    stage.show(
        grid(
            "thread", "kind", "status", "checkpoints", "writes", "step", "source", "stored",
            rows=[
                (f"[bold]{t.id}[/]", t.kind, t.status, str(t.checkpoints), str(t.writes), str(t.step), t.source, size(t.bytes))
                for t in threads
            ],
            right=("checkpoints", "writes", "step", "stored"),
        )
    )  # fmt: skip
    stage.claim({t.id for t in threads} == THREADS, "all threads of this demo are in one file")
