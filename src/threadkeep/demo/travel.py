"""Chapter 4: go back to an earlier checkpoint, replay from it, and fork from it."""

from __future__ import annotations

from langgraph.types import StateSnapshot
from rich.table import Table

import threadkeep
from threadkeep.demo.agent import Agent, agent, ask, asks_for, messages, weather
from threadkeep.demo.stage import Stage, grid, short, thread, transcript

TRIP = thread("trip")


def play(stage: Stage) -> None:
    """Run once, then replay from the middle and fork from the middle."""
    looked_up: list[str] = []

    def look_up(subject: str) -> str:
        looked_up.append(subject)
        return weather(subject)

    with threadkeep.open(stage.url) as keep:
        graph = agent(keep.checkpointer, look_up)
        ask(graph, "What is the weather in Lisbon?", TRIP)
        past = list(graph.get_state_history(TRIP))
        read(stage, past)
        replay(stage, graph, before("respond", past))
        stage.claim(looked_up == ["Lisbon"], "the replay did not call the tool: its result came from the checkpoint")
        fork(stage, graph, before("tools", past))
        stage.claim(looked_up == ["Lisbon", "Oslo"], "the fork continued from the edited call")
        stage.claim(kept(graph) == 10, "nothing was overwritten: the thread now has 10 checkpoints")


def read(stage: Stage, past: list[StateSnapshot]) -> None:
    """Show every state that the thread went through."""
    stage.chapter(
        "Time travel",
        "Every step is a checkpoint. [cyan]graph.get_state_history(config)[/] reads them, newest first:",
    )
    stage.show(timeline(past))
    stage.claim(len(past) == 5, "5 checkpoints: the input, the start, and one for each of the 3 nodes")


def replay(stage: Stage, graph: Agent, point: StateSnapshot) -> None:
    """Run again from an earlier checkpoint, with nothing changed."""
    stage.say(
        "[bold]Replay.[/] [cyan]graph.invoke(None, checkpoint.config)[/] runs again from the checkpoint before respond."
    )
    stage.show(transcript(messages(graph.invoke(None, point.config))[-1:]))


def fork(stage: Stage, graph: Agent, point: StateSnapshot) -> None:
    """Change the state at an earlier checkpoint, and continue from there."""
    stage.say(
        """[bold]Fork.[/] At the checkpoint before tools, [cyan]graph.update_state(…)[/] edits what the
        model asked for: Oslo, not Lisbon. The graph continues from there."""
    )
    edited = asks_for("Oslo", message_id=messages(point.values)[-1].id)
    branch = graph.update_state(point.config, {"messages": [edited]})
    stage.show(transcript(messages(graph.invoke(None, branch))[1:]))


def before(node: str, past: list[StateSnapshot]) -> StateSnapshot:
    """Find the checkpoint from which this node runs next."""
    return next(snapshot for snapshot in past if snapshot.next == (node,))


def kept(graph: Agent) -> int:
    """Count the checkpoints of the thread, on all its branches."""
    return sum(1 for _ in graph.get_state_history(TRIP))


def timeline(past: list[StateSnapshot]) -> Table:
    """Return the states as a table, one per row."""
    rows = [
        (
            str((snapshot.metadata or {}).get("step")),
            str((snapshot.metadata or {}).get("source")),
            str(len(messages(snapshot.values))),
            ", ".join(snapshot.next) or "[dim]end[/]",
            f"[dim]{short(snapshot.config)}[/]",
        )
        for snapshot in past
    ]
    return grid("step", "source", "messages", "next", "checkpoint", rows=rows, right=("step", "messages"))
