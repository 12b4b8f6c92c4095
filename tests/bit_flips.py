"""Flip single bits of a SQLite file that contains everything, run every read verb, and judge the answers.

An answer is a dict of rows. A row that a verb returns must be right, or the verb must raise, or mark it as damaged. A row
may be missing, or a list may be in another order, if `verify` then reports damage. Some answers are made of many rows:
they may lack what another row would have added, if `verify` reports that rows of this thread are missing or damaged.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

import threadkeep
from sample_keep import fill, thread
from threadkeep.engine.identity import GRAPH
from threadkeep.errors import Missing, ThreadkeepError

Answer = dict[Any, str]
"""Rows as text, by what identifies them, in the order of the answer."""

Read = Callable[[threadkeep.Keep], Answer]
_INDEX: Any = {"dims": 4, "embed": lambda texts: [[len(t) % 7, len(t) % 5, t.count("o"), 1.0] for t in texts]}
_NAMESPACES = [("users", "secret-user"), ("users",), *(("notes", str(n)) for n in range(3))]
_DECLARED = re.compile(
    r"damaged=(?!None|False|0|\[\]|\{\}|\(\))|skipped=[\[{(](?![\]})])|status='damaged'|'damaged': [1-9]"
)
"""What an answer contains if it says that some of it is damaged."""
_SCORE = re.compile(r"score=[0-9.]+")
"""The score of a memory in a hybrid search depends on which others were found."""
_FROM_MANY_ROWS = re.compile(r"(?:\w+ (?P<thread>.*): )?(?:tree|log|show.*|blame .*|diff|flow|sizes|activity|stats)")
"""Verbs whose answers are made of many rows."""
_ROWS_MISSING = {"counter", "missing parent", "missing item", "catalogue", "database", "checksum", "undecodable"}
"""What `verify` reports if rows are missing. If the key of a row is damaged, nobody knows whose row it is."""


def open_keep(path: Path) -> threadkeep.Keep:
    """Open a file with a store that has words and vectors."""
    return threadkeep.open(f"sqlite:///{path}", index={**_INDEX, "search": "hybrid"}, allowed_types=[])


def make_file(path: Path) -> None:
    """Make a file that contains one of everything."""
    with open_keep(path) as keep:
        fill(keep)


def flip_bit(source: Path, target: Path, seed: int) -> str:
    """Copy a file with one bit flipped. Return which one."""
    data = bytearray(source.read_bytes())
    draw = random.Random(seed)  # noqa: S311 - not a secret
    at, bit = draw.randrange(len(data)), draw.randrange(8)
    data[at] ^= 1 << bit
    target.write_bytes(data)
    return f"seed {seed}: bit {bit} of byte {at} (page {at // 4096 + 1})"


def reads(keep: threadkeep.Keep) -> dict[str, Read]:
    """Return calls of every read verb, on everything that this intact Keep contains."""
    calls: dict[str, Read] = {}
    for info in keep.threads(order="id", limit=1000):
        calls |= _reads_of_thread(keep, info.kind, info.id)
    for order in ("updated", "created", "bytes", "id"):
        calls[f"threads by {order}"] = rows(lambda keep, order=order: keep.threads(order=order), _thread_id)
    user = {"customer_email": "ana@example.org"}
    calls["threads of a user"] = rows(lambda keep: keep.threads(metadata=user), _thread_id)
    calls["activity"] = one(lambda keep: keep.activity())
    calls["sizes"] = one(lambda keep: keep.sizes())
    calls["stats"] = one(lambda keep: keep.stats())
    calls["list everything"] = rows(lambda keep: keep.checkpointer.list(None), _checkpoint_id)
    looped = {"source": "loop", "step": 1}
    calls["list by metadata"] = rows(lambda keep: keep.checkpointer.list(None, filter=looped), _checkpoint_id)
    return calls | _reads_of_store(keep.store)


def _reads_of_thread(keep: threadkeep.Keep, kind: str, id: str) -> dict[str, Read]:
    calls = {
        "thread": one(lambda keep: keep.thread(id, kind=kind)),
        "tree": one(lambda keep: keep.tree(id, kind=kind)),
        "log": rows(lambda keep: keep.log(id, kind=kind), lambda info: (info.ns, info.id)),
        "show": one(lambda keep: keep.show(id, kind=kind)),
        "sizes": one(lambda keep: keep.sizes(thread_id=id, kind=kind)),
        "flow": one(lambda keep: keep.flow(id, kind=kind)),
    } | (_reads_of_graph(keep, id) if kind == GRAPH else _reads_of_cube(id))
    return {f"{kind} {id}: {name}": call for name, call in calls.items()}


def _reads_of_graph(keep: threadkeep.Keep, id: str) -> dict[str, Read]:
    configs: list[Any] = [found.config for found in keep.checkpointer.list(thread(id))]
    channels = ["messages", "log", "a"]
    calls = {
        "latest": one(lambda keep: keep.checkpointer.get_tuple(thread(id))),
        "list": rows(lambda keep: keep.checkpointer.list(thread(id)), _checkpoint_id),
        "deltas": one(lambda keep: keep.checkpointer.get_delta_channel_history(config=configs[0], channels=channels)),
    }
    latest: Any = keep.checkpointer.get(thread(id))
    for channel in list(latest["channel_values"])[:2]:
        calls[f"blame {channel}"] = one(lambda keep, channel=channel: keep.blame(id, channel))
    if len(configs) > 1:
        calls["diff"] = one(lambda keep: keep.diff(id, "latest~1", "latest"))
    for config in configs[:: max(1, len(configs) // 4)]:
        ns, at = config["configurable"]["checkpoint_ns"], config["configurable"]["checkpoint_id"]
        calls[f"get {ns} {at}"] = one(lambda keep, config=config: keep.checkpointer.get_tuple(config))
        calls[f"show {ns} {at}"] = one(lambda keep, ns=ns, at=at: keep.show(id, at, ns=ns))
    return calls


def _reads_of_cube(id: str) -> dict[str, Read]:
    return {
        "load": one(lambda keep: asyncio.run(keep.cube.load(id))),
        "pending": one(lambda keep: asyncio.run(keep.cube.load_pending(id))),
        "answer": one(lambda keep: asyncio.run(keep.cube.load_hitl_answer(id, "q0", run_id="run-é"))),
        "snapshot": one(lambda keep: asyncio.run(keep.cube.snapshot(id, after_run_id="run-é"))),
    }


def _reads_of_store(store: Any) -> dict[str, Read]:
    calls: dict[str, Read] = {}
    for item in store.search((), limit=1000):
        calls[f"memory {item.namespace} {item.key}"] = one(
            lambda keep, item=item: keep.store.get(item.namespace, item.key)
        )
    for prefix in [(), *_NAMESPACES]:
        calls[f"memories {prefix}"] = rows(
            lambda keep, prefix=prefix: keep.store.search(prefix, limit=1000), _memory_id
        )
    large = {"n": {"$gte": 40}}
    calls["memories by filter"] = rows(lambda keep: keep.store.search(("notes",), filter=large, limit=1000), _memory_id)
    for query in ("blue moon", "Kilimanjaro", "7"):
        calls[f"memories like {query}"] = rows(
            lambda keep, query=query: keep.store.search((), query=query, limit=1000), _memory_id
        )
    calls["namespaces"] = rows(lambda keep: keep.store.list_namespaces(limit=1000), lambda namespace: namespace)
    return calls


def one(call: Callable[[threadkeep.Keep], Any]) -> Read:
    """Make a read whose answer is one row; None is no row."""

    def read(keep: threadkeep.Keep) -> Answer:
        found = call(keep)
        return {} if found is None else dict(_rows("", found))

    return read


def rows(call: Callable[[threadkeep.Keep], Iterable[Any]], id_of: Callable[[Any], Any]) -> Read:
    """Make a read whose answer is a list of rows."""

    def read(keep: threadkeep.Keep) -> Answer:
        return {key: text for row in call(keep) for key, text in _rows(id_of(row), row)}

    return read


def _rows(key: Any, found: Any) -> Iterator[tuple[Any, str]]:
    """Yield a row as text. What is stored apart from it is a row of its own.

    That is true of the writes of each task on a checkpoint, and of the message that gives a thread its title.
    """
    if isinstance(found, CheckpointTuple):
        for task, *write in found.pending_writes or ():
            yield (key, task, *write[:1]), repr(write)
        found = found._replace(pending_writes=None)
    elif isinstance(found, threadkeep.ThreadInfo) and found.title is not None and not found.titled:
        yield (key, "title"), found.title
        found = replace(found, title=None)
    elif isinstance(found, dict) and "messages" in found:  # the history of delta channels
        for channel, history in found.items():
            counts = Counter[str]()
            for write in history["writes"]:
                counts[write[0]] += 1
                yield (key, channel, write[0], counts[write[0]]), repr(write)
            yield from (((key, channel, name), repr(each)) for name, each in history.items() if name != "writes")
        return
    yield key, _SCORE.sub("score", repr(found))


def _thread_id(info: Any) -> tuple[str, str]:
    return info.kind, info.id


def _checkpoint_id(found: Any) -> tuple[str, ...]:
    named = found.config["configurable"]
    return named["thread_id"], named["checkpoint_ns"], named["checkpoint_id"]


def _memory_id(item: Any) -> tuple[tuple[str, ...], str]:
    return item.namespace, item.key


@dataclass
class Judgement:
    """How many answers were right, raised, or missed rows that verify reports; and which must not be.

    `errors` has the types of what was raised.
    """

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def judge(path: Path, what: str, calls: dict[str, Read], expected: dict[str, Answer], judgement: Judgement) -> None:
    """Run every read verb on a damaged file, and compare the answers with those of the intact one."""
    try:
        keep = open_keep(path)
        keep.threads(limit=1)
    except ThreadkeepError:
        judgement.counts["raised"] += len(expected)
        return
    with keep:
        judge_keep(keep, what, calls, expected, judgement)


def judge_keep(
    keep: threadkeep.Keep, what: str, calls: dict[str, Read], expected: dict[str, Answer], judgement: Judgement
) -> None:
    """Run reads on a Keep of a damaged storage, and compare the answers with those of the intact one."""
    missing = []
    reported = cache(partial(_reported, keep))
    for name, call in calls.items():
        outcome = _judge_call(partial(call, keep), expected[name])
        if outcome.startswith("wrong") and _lacks_rows(name, reported):
            outcome = "missing"
        verdict, _, detail = outcome.partition(": ")
        verdict = "missing" if detail == Missing.__name__ else verdict
        judgement.counts[verdict] += 1
        if verdict == "missing":
            missing.append(name)
        elif verdict == "raised":
            judgement.errors[detail] += 1
        elif verdict in ("wrong", "leaked"):
            judgement.failures.append(f"{what}: {name}: {outcome}")
    if missing and not reported():
        judgement.failures.append(f"{what}: missing, and verify reports nothing: {missing}")


def _judge_call(call: Callable[[], Answer], expected: Answer) -> str:
    try:
        found = call()
    except ThreadkeepError as error:
        return f"raised: {type(error).__name__}"
    except Exception as error:  # noqa: BLE001 - any other error is a leak, which the test reports
        return f"leaked: {error!r}"
    if found == expected:
        return "right" if list(found) == list(expected) else "missing"
    wrong = [key for key, text in found.items() if key not in expected or text != expected[key]]
    undeclared = [key for key in wrong if not _DECLARED.search(found[key])]
    if undeclared:
        return (
            f"wrong: {undeclared[0]}: {found[undeclared[0]][:300]} instead of {expected.get(undeclared[0], '')[:300]}"
        )
    return "raised: declared" if wrong else "missing"


def _reported(keep: threadkeep.Keep) -> set[tuple[str, str | None]]:
    """Return the kinds of problems that `verify` reports, each with its thread."""
    try:
        return {(problem.problem, problem.thread) for problem in keep.verify().problems}
    except ThreadkeepError:
        return {("database", None)}


def _lacks_rows(name: str, reported: Callable[[], set[tuple[str, str | None]]]) -> bool:
    """Return whether an answer is made of many rows, and `verify` reports that some of these are missing or damaged."""
    verb = _FROM_MANY_ROWS.fullmatch(name)
    if verb is None:
        return False
    lacking = {thread for problem, thread in reported() if problem in _ROWS_MISSING}
    return bool(lacking) if verb["thread"] is None else not lacking.isdisjoint({verb["thread"], None})
