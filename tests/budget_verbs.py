"""The verbs whose cost has a budget: calls them on one backend and prints what each call cost, as JSON.

    python tests/budget_verbs.py sqlite
    python tests/budget_verbs.py sqlite "get_tuple, third"      # which Python functions a verb calls, and how often

It runs in a process of its own, so that nothing is cached or imported that a new process does not have. Every verb is
called `REPEATS` times after one call that does not count, on an equal state each time: on another thread, or on one that
a read does not change. Messages, ids, times and random numbers are the same in every run and on every version of Python:
the clock of threadkeep goes on by a second whenever it is read. So SQLite splits the same pages in every run.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import random
import re
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from cubeloop.providers.base import TextContent, UserMessage
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.store.base import PutOp

import call_counts
import storage_counts
import threadkeep
import valkey_servers
from storage_counts import NoProbe, PostgresProbe, Probe, SqliteProbe, ValkeyProbe, shared_postgres_url
from threadkeep import clock

REPEATS = 5
MESSAGES, LONG_MESSAGES, TASKS = 50, 70, 20
USERS, THREADS = 4, 12
MEMORIES, BATCH = 40, 100
SECOND = 10**9
FIRST_MOMENT = 1_795_000_000 * SECOND
OWN = frozenset({__file__, call_counts.__file__, storage_counts.__file__})
TEXT = (
    "the agent reads a file finds the symbol that was renamed and asks whether other callers exist before it changes "
    "their imports then runs tests again until nothing fails except one that needs a network which is not there"
)
WORDS = TEXT.split()

Samples = dict[str, list[dict[str, float]]]


# --- what is stored


class Talk:
    """Messages with ids and with the metadata that model APIs send, the same in every run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def turn(self) -> list[AnyMessage]:
        """Return a question, a tool call, its result and an answer."""
        call = {"name": "find_symbol", "args": {"query": self._text(8), "limit": 20}, "id": f"call_{self._hex(24)}"}
        return [
            self.question(),
            AIMessage(self._text(30), tool_calls=[call], **self._envelope("tool_calls")),
            ToolMessage(self._text(200), tool_call_id=call["id"], name=call["name"], id=self._hex(32)),
            self.answer(),
        ]

    def question(self) -> AnyMessage:
        return HumanMessage(self._text(20), id=self._hex(32))

    def answer(self) -> AnyMessage:
        return AIMessage(self._text(100), **self._envelope("stop"))

    def messages(self, count: int) -> list[AnyMessage]:
        return [message for _ in range(-(-count // 4)) for message in self.turn()][:count]

    def cube_message(self) -> UserMessage:
        return UserMessage(content=[TextContent(text=self._text(60))], id=self._hex(32), timestamp=1.7e9)

    def _envelope(self, finish: str) -> dict[str, Any]:
        given, made = self._random.randrange(500, 60_000), self._random.randrange(20, 800)
        return {
            "id": f"run-{self._hex(32)}",
            "response_metadata": {
                "token_usage": {"completion_tokens": made, "prompt_tokens": given, "total_tokens": given + made},
                "model_name": "gpt-4o-2024-11-20",
                "id": f"chatcmpl-{self._hex(29)}",
                "finish_reason": finish,
            },
            "usage_metadata": {"input_tokens": given, "output_tokens": made, "total_tokens": given + made},
        }

    def _text(self, words: int) -> str:
        return " ".join(self._random.choice(WORDS) for _ in range(words))

    def _hex(self, digits: int) -> str:
        return f"{self._random.getrandbits(4 * digits):0{digits}x}"


class Thread:
    """A thread of the usual graph, and the arguments of its next calls."""

    def __init__(self, name: str, seed: int, user: str = "user-1") -> None:
        self.name, self.talk = name, Talk(seed)
        self.messages: list[AnyMessage] = []
        self._user, self._step, self._parent = user, 0, None

    def config(self, **named: Any) -> dict[str, Any]:
        configurable = {"thread_id": self.name, "checkpoint_ns": "", **named}
        return {"configurable": configurable, "metadata": {"user_id": self._user, "assistant_id": "assistant-2"}}

    def put(self) -> tuple[dict[str, Any], Checkpoint, CheckpointMetadata, dict[str, int]]:
        """Return the arguments of the next put, whose state has the messages so far."""
        self._step += 1
        step, id = self._step, f"1f0c2a44-{self._step:04x}-6c3a-8000-{self.talk._hex(12)}"
        versions = dict.fromkeys(("messages", "status", "turn", "branch:to:agent"), step)
        checkpoint = empty_checkpoint() | {
            "id": id,
            "ts": f"2026-11-18T00:{step:02}:00.123456+00:00",
            "channel_values": {
                "messages": list(self.messages),
                "status": "calling",
                "turn": step,
                "branch:to:agent": None,
            },
            "channel_versions": {**versions, "__start__": 1},
            "versions_seen": {
                "__input__": {},
                "agent": {"branch:to:agent": step - 1},
                "tools": {"branch:to:tools": step},
            },
            "updated_channels": ["branch:to:agent", "messages", "status"],
        }
        config = self.config(checkpoint_id=self._parent) if self._parent else self.config()
        self._parent = id
        return config, checkpoint, {"source": "loop", "step": step, "parents": {}}, versions

    def writes(self) -> tuple[dict[str, Any], list[tuple[str, Any]], str]:
        """Return the arguments of a task's put_writes for the latest checkpoint."""
        given = [("messages", [self.talk.answer()]), ("status", "done"), ("branch:to:tools", None)]
        return self.config(checkpoint_id=self._parent), given, self.talk._hex(32)

    def play(self, saver: Any, messages: int) -> None:
        """Store the thread turn by turn until it has this many messages."""
        while len(self.messages) < messages:
            self.messages += self.talk.turn()[: messages - len(self.messages)]
            saver.put(*self.put())
            saver.put_writes(*self.writes())


def memory(number: int) -> tuple[tuple[str, ...], str, dict[str, Any]]:
    return ("notes", "user-1"), f"note-{number}", {"text": " ".join(WORDS[:12]), "number": number, "tags": ["a", "b"]}


# --- the verbs


class Meter:
    """Calls verbs and keeps what each call cost."""

    def __init__(self, calls: call_counts.CallCounts, probe: Probe) -> None:
        self.samples: Samples = {}
        self.functions: dict[str, Counter[str]] = {}
        """What the last call of each verb called."""
        self._calls, self._probe = calls, probe

    def repeat(self, verb: str, prepare: Callable[[int], Callable[[], object]]) -> None:
        """Measure what `prepare` returns, for several numbers; what it does itself does not count."""
        for number in range(1 + REPEATS):
            action = prepare(number)
            before = self._begin()
            action()
            self._end(verb, before, counts=number > 0)

    async def arepeat(self, verb: str, prepare: Callable[[int], Callable[[], Awaitable[object]]]) -> None:
        for number in range(1 + REPEATS):
            action = prepare(number)
            before = self._begin()
            await action()
            self._end(verb, before, counts=number > 0)

    def _begin(self) -> storage_counts.Totals:
        before = self._probe.totals()
        gc.collect()
        gc.disable()  # finalizers would count where the collector happens to run
        self._calls.start()
        return before

    def _end(self, verb: str, before: storage_counts.Totals, *, counts: bool) -> None:
        called = self._calls.stop()
        gc.enable()
        after = self._probe.totals()
        self.functions[verb] = Counter(self._calls.functions)
        if counts:
            cost = called | {name: after[name] - before[name] for name in after}
            self.samples.setdefault(verb, []).append(cost)


def measure(keep: threadkeep.Keep, meter: Meter) -> None:
    measure_saver(keep.checkpointer, meter)
    measure_store(keep.store, meter)
    asyncio.run(measure_async(keep, meter))


def measure_saver(saver: Any, meter: Meter) -> None:
    threads = [Thread(f"talk-{n}", n) for n in range(1 + REPEATS)]
    for thread in threads:
        thread.play(saver, MESSAGES - 1)
    meter.repeat("put", lambda n: next_put(saver, threads[n]))
    meter.repeat("put_writes", lambda n: functools.partial(saver.put_writes, *threads[n].writes()))
    for thread in threads:
        grow(saver, thread)
    read = lambda n: functools.partial(saver.get_tuple, threads[n].config())
    meter.repeat("get_tuple", read)
    meter.repeat("get_tuple, second", read)
    meter.repeat("get_tuple, third", read)
    page = lambda n: lambda: list(saver.list(threads[n].config(), limit=10))
    meter.repeat("list(10)", page)
    delta = lambda n: functools.partial(
        saver.get_delta_channel_history, config=threads[n].config(), channels=["messages"]
    )
    meter.repeat("get_delta_channel_history", delta)
    for n in range(THREADS):
        Thread(f"small-{n}", 100 + n, user=f"user-{n % USERS}").play(saver, 12)
    meter.repeat("list(filter)", lambda _: lambda: list(saver.list(None, filter={"user_id": "user-3"}, limit=10)))
    meter.repeat("delete_thread", lambda n: functools.partial(saver.delete_thread, f"small-{n}"))


def next_put(saver: Any, thread: Thread) -> Callable[[], object]:
    thread.messages.append(thread.talk.question())
    assert len(thread.messages) == MESSAGES
    return functools.partial(saver.put, *thread.put())


def grow(saver: Any, thread: Thread) -> None:
    """Store the long state, and the writes of many tasks on it."""
    thread.play(saver, LONG_MESSAGES)
    saver.put(*thread.put())
    for _ in range(TASKS):
        saver.put_writes(*thread.writes())


def measure_store(store: Any, meter: Meter) -> None:
    for n in range(MEMORIES):
        store.put(*memory(n))
    new = iter(range(1_000, 100_000))
    meter.repeat("store.put", lambda _: functools.partial(store.put, *memory(next(new))))
    meter.repeat("store.get", lambda n: functools.partial(store.get, *memory(n)[:2]))
    search = functools.partial(store.search, ("notes", "user-1"), filter={"number": {"$gt": 5}}, limit=10)
    meter.repeat("store.search(filter)", lambda _: search)
    ops = lambda _: [PutOp(*memory(next(new))) for _ in range(BATCH)]
    meter.repeat("store.batch(100 puts)", lambda n: functools.partial(store.batch, ops(n)))


async def measure_async(keep: threadkeep.Keep, meter: Meter) -> None:
    saver, store, cube = keep.checkpointer, keep.store, keep.cube
    threads = [Thread(f"async-{n}", 200 + n) for n in range(1 + REPEATS)]
    for thread in threads:
        await asyncio.to_thread(thread.play, saver, MESSAGES - 1)

    def aput(n: int) -> Callable[[], Awaitable[object]]:
        threads[n].messages.append(threads[n].talk.question())
        return functools.partial(saver.aput, *threads[n].put())

    await meter.arepeat("aput", aput)
    await meter.arepeat("aput_writes", lambda n: functools.partial(saver.aput_writes, *threads[n].writes()))
    for thread in threads:
        await asyncio.to_thread(grow, saver, thread)
    await meter.arepeat("aget_tuple", lambda n: functools.partial(saver.aget_tuple, threads[n].config()))
    await meter.arepeat("store.aput", lambda n: functools.partial(store.aput, *memory(500 + n)))
    talk = Talk(300)
    for n in range(1 + REPEATS):
        await cube.append(f"cube-{n}", [talk.cube_message() for _ in range(MESSAGES)])
        await cube.append(f"cube-{n}", [talk.cube_message()])
    await meter.arepeat("cube.append", lambda n: functools.partial(cube.append, f"cube-{n}", [talk.cube_message()]))


def measure_opening(url: str, meter: Meter) -> None:
    """Measure a new Keep up to its first state. Modules are imported already; closing does not count."""
    with ExitStack() as closing:

        def first_get() -> None:
            keep = closing.enter_context(threadkeep.open(url))
            assert keep.checkpointer.get_tuple(Thread("talk-1", 1).config()) is not None

        meter.repeat("open and first get", lambda _: first_get)


# --- one backend


def backends(folder: str) -> dict[str, Callable[[], tuple[str, Any]]]:
    """Return how to make the URL and the probe of each backend."""

    def postgres() -> tuple[str, Any]:
        probe = PostgresProbe(shared_postgres_url())
        return probe.url, probe

    return {
        "memory": lambda: ("memory://", NoProbe()),
        "sqlite": lambda: (f"sqlite:///{folder}/keep.db", SqliteProbe()),
        "postgres": postgres,
        "valkey": lambda: (valkey_servers.shared().url(), ValkeyProbe()),
    }


def set_clock() -> None:
    """Let time and random numbers of threadkeep be the same in every run. Reading the clock stays one call of C code."""
    moments = deque(range(FIRST_MOMENT, FIRST_MOMENT + 1_000_000 * SECOND, SECOND))
    clock.time = SimpleNamespace(time_ns=moments.popleft)
    clock._random.seed(7)
    assert clock.now_ms() + 1000 == clock.now_ms()


def metered(backend: str) -> Meter:
    """Call every verb on a new storage, and return what each call cost."""
    set_clock()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        url, probe = backends(folder)[backend]()
        calls = call_counts.CallCounts(OWN)
        stack.enter_context(probe.installed() if hasattr(probe, "installed") else ExitStack())
        stack.enter_context(calls.installed())
        meter = Meter(calls, probe)
        with threadkeep.open(url) as keep:
            keep.checkpointer.setup()
            probe.prepare()
            measure(keep, meter)
        if backend != "memory":
            measure_opening(url, meter)
        return meter


def show_functions(meter: Meter, verb: str) -> None:
    for function, count in meter.functions[verb].most_common():
        print(f"{count:6} {re.sub(r'.*/(?=threadkeep/|site-packages/|python3)', '', function)}")


if __name__ == "__main__":
    found = metered(sys.argv[1])
    if sys.argv[2:]:
        show_functions(found, sys.argv[2])
    else:
        json.dump(found.samples, sys.stdout)
