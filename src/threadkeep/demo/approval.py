"""Chapter 3: a graph waits for a person, and the answer may come much later."""

from __future__ import annotations

from typing import Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import threadkeep
from threadkeep.demo.stage import Stage, grid, thread

REFUND = thread("refund")
UNANSWERED = thread("refund-2")


class Refund(TypedDict, total=False):
    """A refund and what became of it."""

    amount: int
    approved: int
    outcome: str


def approve(state: Refund) -> Refund:
    """Ask a person. `interrupt` returns their answer."""
    answer = interrupt(f"The customer asks for {state['amount']} €. How much do we pay back?")
    return {"approved": answer}


def pay(state: Refund) -> Refund:
    """Pay what was approved."""
    return {"outcome": f"{state['approved']} € of {state['amount']} € paid back"}


def refund_graph(saver: BaseCheckpointSaver[Any]) -> Any:
    """Compile `approve -> pay`."""
    builder = StateGraph(Refund)
    builder.add_node("approve", approve)
    builder.add_node("pay", pay)
    builder.add_edge(START, "approve")
    builder.add_edge("approve", "pay")
    builder.add_edge("pay", END)
    return builder.compile(checkpointer=saver)


def play(stage: Stage) -> None:
    """Stop at the question, close the database, open it again, answer."""
    stage.chapter(
        "A person in the loop",
        """A node calls [cyan]interrupt(…)[/]. The run ends, the question is kept with the thread, and
        nothing has to stay in memory while the person thinks.""",
    )
    with threadkeep.open(stage.url) as keep:
        refund_graph(keep.checkpointer).invoke({"amount": 80}, REFUND)
        refund_graph(keep.checkpointer).invoke({"amount": 900}, UNANSWERED)
    with threadkeep.open(stage.url) as keep:
        graph = refund_graph(keep.checkpointer)
        waiting = graph.get_state(REFUND)
        final = graph.invoke(Command(resume=50), REFUND)
    stage.show(
        grid(
            "",
            "",
            rows=[
                ("waits at", f"[cyan]{waiting.next[0]}[/]"),
                ("asks", waiting.interrupts[0].value),
                ("Command(resume=…)", "50"),
                ("outcome", f"[green]{final['outcome']}[/]"),
            ],
        )
    )
    stage.claim(waiting.next == ("approve",), "the question was still waiting after the file was opened again")
    stage.claim(final["outcome"] == "50 € of 80 € paid back", "the graph continued with the person's answer")
