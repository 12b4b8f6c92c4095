"""Rows about one conversation: writing it, its size, reading it, reading it in a new process, deleting it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig

from benchmark import Benchmark, Installation
from contenders import Durability
from equality import check_equal
from measuring import Figures, Spent, exponent, measure, rotate, rotations
from recording import Call, record, replay
from workload import Saver

THREAD = "w1"
DURABILITIES: tuple[Durability, ...] = ("strict", "relaxed")
WRITES = ("put", "put_writes")
GETS, PAGES, NEW_PROCESSES = 15, 5, 3
LONG_TURNS = 4
NEW_PROCESS_ROWS = {
    "open and get": ("get in a new process", "open and get_tuple in a new process, {label}"),
    "all": ("start of a process", "imports, open and get_tuple, {label}"),
    "imports": ("imports", "of these, imports of the saver"),
}
"""What cold_read.py prints, and the rows that it becomes."""
Savers = Sequence[tuple[Installation, Saver]]


def config_of(thread: str = THREAD) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def conversation(benchmark: Benchmark) -> None:
    """Measure all writes of a conversation, then reads of the finished thread, its bytes, and its removal."""
    rows, turns = benchmark.rows, benchmark.scale.turns
    for number in benchmark.repetitions(f"conversation of {turns} turns"):
        with benchmark.installations("talk", *DURABILITIES) as installations:
            strict = [one for one in installations if one.durability == "strict"]
            with ExitStack() as stack:
                savers = [(one, stack.enter_context(one.opened())) for one in installations]
                spent = replay_all(benchmark, savers, record(turns))
                for durability in DURABILITIES:
                    add_writes(benchmark, [one for one in installations if one.durability == durability], turns)
                written = {one.name: spent.written[key_of(one)] / 1e6 for one in strict}
                rows.add("bytes written", f"bytes written by {turns} turns, strict", "MB", written)
                check_equal([saver for _, saver in savers], config_of())
                reads(benchmark, {one.name: saver for one, saver in savers if one in strict}, f"{turns} turns", "")
            rows.add("bytes", f"bytes on disk after {turns} turns", "MB", benchmark.megabytes(strict))
            new_processes(benchmark, strict, f"{turns} turns", "")
            removals(benchmark, installations, number)


def key_of(one: Installation) -> str:
    return f"{one.name}, {one.durability}"


def replay_all(benchmark: Benchmark, savers: Savers, stream: Iterable[list[Call]]) -> Spent:
    """Replay each turn on every saver; the first one changes. Return what they have written."""
    spent = Spent([key_of(one) for one, _ in savers], benchmark.storage.written)
    for number, calls in enumerate(stream):
        for one, saver in rotate(savers, number):
            with spent.by(key_of(one)):
                replay(saver, calls, thread=THREAD, watch=one.watch)
    return spent


def add_writes(benchmark: Benchmark, installations: Sequence[Installation], turns: int) -> None:
    durability = installations[0].durability
    wall = {one.name: one.watch.total(*WRITES) for one in installations}
    cpu = {one.name: one.watch.total_cpu(*WRITES) for one in installations}
    benchmark.rows.add(f"saver time, {durability}", f"put and put_writes, {turns} turns, {durability}", "s", wall, cpu)


def reads(benchmark: Benchmark, savers: dict[str, Saver], label: str, key: str) -> None:
    rows = benchmark.rows
    latest = measure(savers, lambda saver, _: saver.get_tuple(config_of()), GETS)
    rows.add_timed(f"get{key}", f"get_tuple, latest, warm, {label}", latest)
    by_thread: RunnableConfig = {"configurable": {"thread_id": THREAD}}
    page = measure(savers, lambda saver, _: list(saver.list(by_thread, limit=10)), PAGES)
    rows.add_timed(f"list(10){key}", f"list(limit=10) of the thread, {label}", page)
    if not key:
        page = measure(savers, lambda saver, _: list(saver.list(config_of(), limit=10)), PAGES)
        rows.add_timed("list(10), root", f"list(limit=10) of its root namespace, {label}", page)


def new_processes(benchmark: Benchmark, installations: Sequence[Installation], label: str, key: str) -> None:
    """Measure the first read in a new process: cold_read.py says what counts."""
    taken: dict[str, list[dict[str, float]]] = {}
    # The first run of each may write bytecode files. It also says what is imported late.
    late = {one.name: read_in_new_process(one)["late"] for one in installations}
    for one in rotations(installations, NEW_PROCESSES):
        taken.setdefault(one.name, []).append(read_in_new_process(one, *late[one.name])["taken"])
    for part, (row_key, what) in NEW_PROCESS_ROWS.items():
        if part == "open and get" or not key:
            wall, cpu = (
                {one.name: median_of(taken[one.name], f"{part}{kind}") for one in installations}
                for kind in ("", ", CPU")
            )
            compared = part != "imports"
            benchmark.rows.add(f"{row_key}{key}", what.format(label=label), "ms", wall, cpu, compared=compared)


def median_of(taken: Sequence[dict[str, float]], part: str) -> float:
    return sorted(each[part] for each in taken)[len(taken) // 2]


def read_in_new_process(one: Installation, *modules: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("cold_read.py")), one.name, one.url, THREAD, *modules]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    output = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout  # noqa: S603 - ours
    found: dict[str, Any] = json.loads(output)
    return found


def removals(benchmark: Benchmark, installations: Sequence[Installation], number: int) -> None:
    """Measure deleting the thread, by a saver that has just read it. Where both can prune, prune the relaxed copies."""
    label = f"{benchmark.scale.turns} turns"
    relaxed = [one for one in installations if one.durability == "relaxed"]
    strict = [one for one in installations if one.durability == "strict"]
    delete = removal(benchmark, strict, number, lambda saver: saver.delete_thread(THREAD))
    benchmark.rows.add_timed("delete a long thread", f"delete_thread, {label}", delete)
    if benchmark.storage.official_prunes:
        prune = removal(benchmark, relaxed, number, lambda saver: saver.prune([THREAD]))
        benchmark.rows.add_timed("prune a long thread", f"prune(keep_latest), {label}, relaxed", prune)


def removal(
    benchmark: Benchmark, installations: Sequence[Installation], number: int, remove: Callable[[Saver], None]
) -> tuple[Figures, Figures]:
    spent = Spent(benchmark.names)
    for one in rotate(installations, number):
        with one.opened() as saver:
            assert saver.get_tuple(config_of()) is not None
            with spent.by(one.name):
                remove(saver)
            assert len(list(saver.list(config_of()))) <= 1
    return spent.per_call()


def long_thread(benchmark: Benchmark) -> None:
    """Measure a put and reads when the list is already long."""
    label = f"{4 * benchmark.scale.history:,} messages"
    for _ in benchmark.repetitions(f"a thread of {label}"):
        with benchmark.installations("long", "strict") as installations:
            with ExitStack() as stack:
                savers = [(one, stack.enter_context(one.opened())) for one in installations]
                replay_all(benchmark, savers, record(LONG_TURNS, history=benchmark.scale.history))
                wall = {one.name: one.watch.median("put") * 1e3 for one in installations}
                puts = len(installations[0].watch.taken["put"])
                cpu = {one.name: one.watch.total_cpu("put") * 1e3 / puts for one in installations}
                benchmark.rows.add("put, long", f"put, {label}", "ms", wall, cpu)
                check_equal([saver for _, saver in savers], config_of(), limit=2)
                reads(benchmark, {one.name: saver for one, saver in savers}, label, ", long")
            new_processes(benchmark, installations, label, ", long")


# --- growth


def growth(benchmark: Benchmark) -> None:
    """Fit how total time and bytes grow with the conversation. The peer stops after the usual number of turns."""
    scale = benchmark.scale
    until = dict(zip(benchmark.names, (scale.turns, scale.growth), strict=True))
    benchmark.say(f"growth up to {4 * scale.growth:,} messages")
    points: dict[str, list[tuple[float, float, float]]] = {name: [] for name in benchmark.names}
    with benchmark.installations("growth", "strict") as installations, ExitStack() as stack:
        savers = [(one, stack.enter_context(one.opened())) for one in installations]
        for turn, calls in enumerate(record(scale.growth), 1):
            for one, saver in rotate([each for each in savers if turn <= until[each[0].name]], turn):
                replay(saver, calls, thread=THREAD, watch=one.watch)
                if is_measured(turn, until[one.name]):
                    size = benchmark.storage.size(one.contender, one.url)
                    points[one.name].append((4 * turn, one.watch.total(), size))
    for part, what in ((1, "time"), (2, "bytes")):
        fitted: Figures = {
            name: exponent([each[0] for each in found], [each[part] for each in found])
            for name, found in points.items()
        }
        reach = " and ".join(f"{4 * turns:,}" for turns in until.values())
        label = f"growth of total {what}: exponent, up to {reach} messages"
        benchmark.rows.add(f"growth, {part}", label, "", fitted, compared=False)
    benchmark.rows.add_points("growth, 1", points)


def is_measured(turn: int, last: int) -> bool:
    """Return whether a turn is one of five that each double the one before."""
    return turn in {last // 2**power for power in range(5)}
