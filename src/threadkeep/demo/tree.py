"""Chapter 5: the branches of a thread, drawn from `list` and `parent_config` alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from langgraph.checkpoint.base import CheckpointTuple
from rich.tree import Tree

import threadkeep
from threadkeep.demo.stage import Stage, checkpoint_id, short, spoken
from threadkeep.demo.travel import TRIP

Family: TypeAlias = Mapping[str | None, Sequence[CheckpointTuple]]


def play(stage: Stage) -> None:
    """Draw the thread of the chapter before."""
    stage.chapter(
        "One thread, three branches",
        """The same thread as a tree, drawn from [cyan]checkpointer.list(config)[/] and each checkpoint's
        [cyan]parent_config[/]. A branch shares everything before it; only what is new was stored.""",
    )
    with threadkeep.open(stage.url) as keep:
        checkpoints = list(keep.checkpointer.list(TRIP))
    family = by_parent(checkpoints)
    tree = Tree("[bold]thread trip[/]", guide_style="blue")
    grow(tree, family)
    stage.show(tree)
    ends = [here for here in checkpoints if checkpoint_id(here.config) not in family]
    stage.claim(len(family[None]) == 1, "one root")
    stage.claim(len(ends) == 3, "three ends: the run, its replay and its fork")


def by_parent(checkpoints: Sequence[CheckpointTuple]) -> Family:
    """Group checkpoints by their parent's id, oldest first. The root's is None."""
    family = defaultdict[str | None, list[CheckpointTuple]](list)
    for here in reversed(checkpoints):
        family[checkpoint_id(here.parent_config)].append(here)
    return dict(family)


def grow(tree: Tree, family: Family, parent: str | None = None) -> None:
    """Add the children of a checkpoint to the tree, recursively."""
    for child in family.get(parent, ()):
        grow(tree.add(label(child)), family, checkpoint_id(child.config))


def label(here: CheckpointTuple) -> str:
    """Describe a checkpoint in one line: its step, its source, its last message."""
    source, step = here.metadata.get("source", ""), here.metadata.get("step", 0)
    messages = here.checkpoint["channel_values"].get("messages") or []
    colour = {"fork": "yellow", "update": "magenta"}.get(source, "cyan")
    last = f"{messages[-1].type}: {spoken(messages[-1])}" if messages else "[dim](no messages yet)[/]"
    return f"[dim]{short(here.config)}[/] [{colour}]{source:<6} {step:>2}[/]  {last}"
