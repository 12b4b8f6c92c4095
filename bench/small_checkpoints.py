"""Rows about many small checkpoints: putting them one by one, finding some by a filter, deleting a small thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint

from benchmark import Benchmark
from conversations import config_of
from equality import check_same
from measuring import Spent, measure, rotate
from workload import Saver

STEPS = 20
"""Checkpoints of a thread."""
USERS = 50
SLICE = 50
PAGES, DELETIONS, PRUNES = 7, 10, 9

Put = tuple[RunnableConfig, Checkpoint, CheckpointMetadata, dict[str, str | int | float]]


def small_checkpoints(benchmark: Benchmark) -> None:
    count = benchmark.scale.checkpoints
    for _ in benchmark.repetitions(f"{count:,} small checkpoints"):
        with benchmark.installations("small", "strict") as installations, ExitStack() as stack:
            savers = {one.name: stack.enter_context(one.opened()) for one in installations}
            put_all(benchmark, savers, count)
            for one in installations:
                benchmark.storage.vacuum(one.url)
            filtered_lists(benchmark, savers, count)
            deletions(benchmark, savers)


def put_all(benchmark: Benchmark, savers: Mapping[str, Saver], count: int) -> None:
    """Put the same checkpoints with every saver, in small slices."""
    spent, waiting = Spent(list(savers)), []
    for number, put in enumerate(puts(count), 1):
        waiting.append(put)
        if number % SLICE == 0:
            for name in rotate(list(savers), number // SLICE):
                saver = savers[name]
                with spent.by(name):
                    for each in waiting:
                        saver.put(*each)
            waiting = []
    benchmark.rows.add("small checkpoints", f"put of {count:,} small checkpoints, one by one", "s", *spent.totals())


def puts(count: int) -> Iterator[Put]:
    """Yield puts of many threads in turn, the users of each in turn too."""
    threads = max(1, count // STEPS)
    parents: dict[int, str] = {}
    for number in range(count):
        step, thread = divmod(number, threads)
        checkpoint: Any = empty_checkpoint()
        checkpoint |= {"channel_values": {"step": step}, "channel_versions": {"step": step + 1}}
        config = config_of(f"thread-{thread}")
        if thread in parents:
            config["configurable"]["checkpoint_id"] = parents[thread]
        parents[thread] = checkpoint["id"]
        config["metadata"] = {"user_id": f"user-{thread % USERS}"}
        yield config, checkpoint, {"source": "loop", "step": step}, {"step": step + 1}


def filtered_lists(benchmark: Benchmark, savers: Mapping[str, Saver], count: int) -> None:
    thread: RunnableConfig = {"configurable": {"thread_id": "thread-7"}}
    lists: dict[str, Callable[[Saver], Any]] = {
        "across threads, by metadata": lambda saver: saver.list(None, filter={"user_id": "user-7"}, limit=10),
        "across threads, by step": lambda saver: saver.list(None, filter={"step": 7}, limit=10),
        "within a thread": lambda saver: saver.list(thread, filter={"step": 7}, limit=10),
    }
    for how, find in lists.items():
        check_same([[*find(saver), *find(saver)] for saver in savers.values()])
        page = measure({name: partial(find, saver) for name, saver in savers.items()}, read_all, PAGES)
        benchmark.rows.add_timed(f"list(filter), {how}", f"list(filter) among {count:,}, {how}", page)


def read_all(find: Callable[[], Iterable[Any]], _: int) -> None:
    assert list(find())


def deletions(benchmark: Benchmark, savers: Mapping[str, Saver]) -> None:
    """Measure deleting and pruning threads of a few checkpoints that nobody has read lately."""
    assert benchmark.scale.checkpoints // STEPS >= 20 + DELETIONS
    delete = measure(savers, lambda saver, number: saver.delete_thread(f"thread-{20 + number}"), DELETIONS)
    benchmark.rows.add_timed("delete a small thread", f"delete_thread, {STEPS} small checkpoints", delete)
    if benchmark.storage.official_prunes:
        prune = measure(savers, lambda saver, number: saver.prune([f"thread-{10 + number}"]), PRUNES)
        benchmark.rows.add_timed("prune a small thread", f"prune(keep_latest), {STEPS} small checkpoints", prune)
    for saver in savers.values():
        assert saver.get_tuple(config_of("thread-20")) is None
        assert saver.get_tuple(config_of("thread-19")) is not None
