"""Rows about graphs whose messages are in a DeltaChannel: theirs with one against ours with one, and ours without.

Here real graphs run, and the saver's share is the time of a run less that of the same graph on a saver that stores
nothing. Timing the saver's calls would not do: LangGraph makes them in other threads, where they wait for the
interpreter's lock while the graph goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import workload
from benchmark import Benchmark, Installation
from measuring import Spent, rotate
from recording import LatestCheckpoint
from workload import Conversation, DeltaState, Saver, State

OURS_WITHOUT = "threadkeep without a DeltaChannel"
NOTHING_STORED = "a graph that stores nothing"


def deltas(benchmark: Benchmark) -> None:
    turns = benchmark.scale.turns
    official, ours = benchmark.storage.contenders
    kinds: dict[str, tuple[Any, type[State]]] = {
        official.name: (official, DeltaState),
        OURS_WITHOUT: (ours, State),
        ours.name: (ours, DeltaState),
    }
    for _ in benchmark.repetitions(f"DeltaChannel, {turns} turns"):
        with benchmark.databases("delta", len(kinds)) as urls:
            installed = {
                name: Installation(contender, "strict", url)
                for (name, (contender, _)), url in zip(kinds.items(), urls, strict=True)
            }
            with ExitStack() as stack:
                savers = {name: stack.enter_context(one.opened()) for name, one in installed.items()}
                spent = run(savers, {name: state for name, (_, state) in kinds.items()}, turns)
            sizes = {name: benchmark.megabytes([one])[one.name] for name, one in installed.items()}
            add(benchmark, spent, sizes, f"DeltaChannel in both, {turns} turns", "delta, both", ours.name)
            add(benchmark, spent, sizes, f"DeltaChannel in theirs only, {turns} turns", "delta", OURS_WITHOUT)


def run(savers: Mapping[str, Saver], states: Mapping[str, type[State]], turns: int) -> Spent:
    """Run the conversation on each saver, turn by turn, and check that all end with the same messages."""
    graphs, given = {}, {}
    for name, saver in [*savers.items(), (NOTHING_STORED, LatestCheckpoint())]:
        conversation = Conversation(1)
        graphs[name] = workload.chat(conversation, saver, states.get(name, State))
        given[name] = workload.inputs(conversation, turns)
    spent = Spent(list(graphs))
    for turn in range(turns):
        for name in rotate(spent.names, turn):
            question = next(given[name])
            with spent.by(name):
                graphs[name].invoke(question, workload.config("w1"), durability="sync")
    found = [graph.get_state(workload.config("w1")).values for graph in graphs.values()]
    assert all(state == found[0] for state in found[1:])
    assert len(found[0]["messages"]) == 4 * turns
    return spent


def add(benchmark: Benchmark, spent: Spent, sizes: Mapping[str, float], label: str, key: str, contender: str) -> None:
    """Add the rows of one pair: whole runs, the saver's share of them, and bytes."""
    official, ours = benchmark.names
    pair = {official: official, ours: contender}
    wall, cpu = ({name: figures[each] for name, each in pair.items()} for figures in spent.totals())
    shares = [
        {name: figures[each] - figures[NOTHING_STORED] for name, each in pair.items()} for figures in spent.totals()
    ]
    benchmark.rows.add(f"{key}, run", f"runs of a graph, {label}", "s", wall, cpu)
    benchmark.rows.add(f"{key}, time", f"saver time, {label}", "s", *shares)
    benchmark.rows.add(f"{key}, bytes", f"bytes on disk, {label}", "MB", {n: sizes[each] for n, each in pair.items()})
