"""Chapter 1: an agent that remembers, because its thread is stored."""

from __future__ import annotations

import threadkeep
from threadkeep.demo.agent import agent, ask
from threadkeep.demo.stage import Stage, thread, transcript

CHAT = thread("chat")


def play(stage: Stage) -> None:
    """Ask twice, with the database closed and opened between the questions."""
    stage.chapter(
        "An agent with a memory",
        """The graph is [cyan]model → tools → respond[/]. Its checkpointer is one line:
        [cyan]threadkeep.open("sqlite:///agent.db").checkpointer[/]. Between the two questions the
        file is closed and opened again, as after a restart.""",
    )
    with threadkeep.open(stage.url) as keep:
        ask(agent(keep.checkpointer), "What is the weather in Lisbon?", CHAT)
    with threadkeep.open(stage.url) as keep:
        said = ask(agent(keep.checkpointer), "And in Oslo?", CHAT)
    stage.show(transcript(said))
    stage.claim(len(said) == 8, "the second run continued the first: 8 messages in one thread")
    stage.claim("24 °C" in said[3].text and "-3 °C" in said[7].text, "both answers came from the tool")
