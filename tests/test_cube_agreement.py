"""All backends agree on cube threads: each random operation is applied to all of them and to a model.

Memory, SQLite and PostgreSQL, and Valkey in fewer examples, each with two Keeps that write the same storage in turn
(the second has a small cache, and claims runs again that were idle for ten seconds) and a third that only reads. The
clock stands still unless it is moved. `THREADKEEP_HYPOTHESIS=prove` searches longer.

Then each verb crashes at each of its requests, before or after its execution: the thread is as it was before the verb
or as it is after it, and repeating the verb ends in the same state as an undisturbed one. A transport may also report a
Conflict for a change that was made but whose reply was lost: it is made once.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cubeloop.hitl.types import ApproveRequest, ConfirmRequest, HitlRequest
from cubeloop.providers.base import AssistantMessage, Message, TextContent, ToolCall, ToolResultMessage, UserMessage
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import shared_pool
from hypothesis_profiles import PROVING, machine_settings
from row_invariants import find_problems, unused_items
from test_crashes import NEVER, WAYS, Crashing, location_of
from test_crashes import CrashingStorage as BaseCrashingStorage
from threadkeep import Problem
from threadkeep.adapters import cubeloop as adapter
from threadkeep.backends.in_memory.backend import InMemoryBackend
from threadkeep.backends.sqlite.dialect import SqliteDialect
from threadkeep.drivers.runner import Transport
from threadkeep.engine.requests import Batch
from threadkeep.errors import Conflict, Unavailable
from threadkeep.keep import Keep
from threadkeep.plan import Failure, Outcome, Reply, Request
from threadkeep.session import Caches, Session
from threadkeep.transports.direct import Direct
from threadkeep.transports.sqlite import SqliteFile

THREADS = ["t", "t", "u", "v"]
RUNS = ["r0", "r1", "r2"]
QUESTIONS = ["q0", "q1"]
IDS = ["", "", *(f"m{n}" for n in range(12))]
CACHES = [1 << 26, 20_000, 1 << 26]
TIMEOUTS = [None, 10.0, None]
TEXTS = ["", "hi", "é\x00\u2028😀", "word " * 300, "long " * 30_000]
JSON = [
    None,
    True,
    0,
    -1.5,
    1 << 70,
    "x",
    "y" * 2000,
    [],
    {},
    [1, [None, {"a": "b"}]],
    {"k": {"deep": [1.0, 2]}, "": 0},
]

runs = st.sampled_from([None, *RUNS])
texts = st.integers(0, 16).map(lambda n: TEXTS[n % 4 if n < 16 else 4])
values = st.integers(0, len(JSON) - 1).map(JSON.__getitem__)
extras = st.dictionaries(st.sampled_from(["a", "b", "fork", "é"]), values, max_size=3)
contents = texts.map(lambda text: [TextContent(text=text)])
messages = st.one_of(
    st.builds(UserMessage, content=contents, id=st.sampled_from(IDS), run_id=runs, metadata=extras),
    st.builds(AssistantMessage, content=contents, id=st.sampled_from(IDS), run_id=runs, timestamp=st.just(1.25)),
    st.builds(
        AssistantMessage,
        content=st.just([ToolCall(id="c", name="n", arguments={"a": [1]})]),
        id=st.sampled_from(IDS),
        run_id=runs,
    ),
    st.builds(
        ToolResultMessage,
        content=contents,
        tool_call_id=st.just("c"),
        tool_name=st.just("n"),
        details=values,
        id=st.sampled_from(IDS),
        run_id=runs,
    ),
)
questions = st.builds(
    HitlRequest,
    question_id=st.sampled_from(QUESTIONS),
    thread_id=st.sampled_from(["t", None]),
    payload=st.one_of(
        st.builds(ConfirmRequest, prompt=texts),
        st.builds(ApproveRequest, tool_name=st.just("n"), tool_call_id=st.just("c"), args=extras),
    ),
    created_at=st.just(2.5),
)


# --- the model


class Refused(Exception):
    """What must be raised: one of these errors, by name."""

    def __init__(self, *names: str) -> None:
        self.names = names


@dataclass
class CubeThread:
    """The contents of a thread. `claimed` and `completed` are in order; `touched` is when a run was last active."""

    messages: list[Message] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    pending: tuple[HitlRequest, str | None] | None = None
    answers: dict[tuple[str | None, str], Any] = field(default_factory=dict)
    claimed: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    touched: dict[str, int] = field(default_factory=dict)

    @property
    def status(self) -> str:
        if self.pending is not None:
            return "interrupted"
        return "pending" if set(self.claimed) - set(self.completed) else "idle"

    def until(self, run: str) -> list[Message]:
        """Return the messages of no run and of the runs that were completed up to this one."""
        done = self.completed[: self.completed.index(run) + 1]
        return [each for each in self.messages if each.run_id is None or each.run_id in done]


class Model:
    """Cube threads as dicts and lists. Each verb is one of KeepCube's, or of Keep's."""

    def __init__(self) -> None:
        self.threads_by_id: dict[str, CubeThread] = {}
        self.now = 1_800_000_000_000

    def _new(self, thread: str) -> CubeThread:
        return self.threads_by_id.setdefault(thread, CubeThread())

    def _there(self, thread: str) -> CubeThread:
        return self.threads_by_id.get(thread, CubeThread())

    def load(self, thread: str) -> Any:
        cube_thread = self.threads_by_id.get(thread)
        return (cube_thread.messages, cube_thread.extra, cube_thread.parent) if cube_thread else None

    def append(self, thread: str, given: list[Message]) -> None:
        cube_thread = self._there(thread)
        fresh: list[Message] = []
        for each in given:
            if not each.id or each.id not in {known.id for known in (*cube_thread.messages, *fresh)}:
                fresh.append(each)
        if any(each.run_id in cube_thread.completed for each in fresh):
            raise Refused("RunAlreadyCompletedError")
        if fresh:
            self._new(thread).messages += fresh
            self.threads_by_id[thread].touched |= {each.run_id: self.now for each in fresh if each.run_id is not None}

    def save_extra(self, thread: str, extra: dict[str, Any]) -> None:
        self._new(thread).extra.update(extra)

    def save_pending_request(self, thread: str, request: HitlRequest | None, *, run_id: str | None = None) -> None:
        if request is not None:
            self._new(thread).pending = (request, run_id)
        elif thread in self.threads_by_id:
            self.threads_by_id[thread].pending = None

    def load_pending(self, thread: str) -> Any:
        return self._there(thread).pending

    def load_pending_request(self, thread: str) -> Any:
        pending = self._there(thread).pending
        return pending[0] if pending else None

    def clear_pending_request_if_matches(self, thread: str, *, question_id: str, run_id: str) -> bool:
        pending = self._there(thread).pending
        if pending is None or (pending[0].question_id, pending[1]) != (question_id, run_id):
            return False
        self.threads_by_id[thread].pending = None
        return True

    def save_hitl_answer(self, thread: str, question: str, answer: Any, *, run_id: str | None = None) -> None:
        self._new(thread).answers[run_id, question] = answer

    def load_hitl_answer(self, thread: str, question: str, *, run_id: str | None = None) -> Any:
        return self._there(thread).answers.get((run_id, question))

    def clear_hitl_answers(self, thread: str, questions: Any = None, *, run_id: str | None = None) -> None:
        for run, question in list(self._there(thread).answers):
            if run == run_id and (questions is None or question in questions):
                del self.threads_by_id[thread].answers[run, question]

    def claim_run(self, thread: str, run: str, *, timeout: float | None) -> None:
        cube_thread = self._there(thread)
        if run in cube_thread.completed:
            raise Refused("RunAlreadyCompletedError")
        if run in cube_thread.claimed and (timeout is None or self.now - cube_thread.touched[run] < timeout * 1000):
            raise Refused("RunAlreadyClaimedError")
        cube_thread = self._new(thread)
        cube_thread.claimed.append(run)
        cube_thread.touched[run] = self.now

    def mark_run_complete(self, thread: str, run: str) -> None:
        cube_thread = self._there(thread)
        if run in cube_thread.completed:
            return
        if run not in cube_thread.claimed:
            raise Refused("RunNotClaimedError")
        cube_thread.completed.append(run)

    def snapshot(self, thread: str, *, after_run_id: str) -> list[Message]:
        self._check(after_run_id, thread)
        return self.threads_by_id[thread].until(after_run_id)

    def fork(self, source: str, target: str, *, after_run_id: str, metadata: Any = None) -> None:
        self._check(after_run_id, source, *(["ThreadAlreadyExistsError"] if target in self.threads_by_id else []))
        cube_thread = self.threads_by_id[source]
        done = cube_thread.completed[: cube_thread.completed.index(after_run_id) + 1]
        extra = deepcopy(cube_thread.extra) | ({"fork": metadata} if metadata is not None else {})
        self.threads_by_id[target] = CubeThread(
            cube_thread.until(after_run_id), extra, source, claimed=list(done), completed=list(done)
        )

    def _check(self, run: str, source: str, *wrong: str) -> None:
        """Raise if something is wrong; if several things are, any of them may be raised."""
        if source not in self.threads_by_id:
            wrong += ("ThreadNotFoundError",)
        elif run not in self.threads_by_id[source].completed:
            wrong += ("RunNotCompletedError",)
        if wrong:
            raise Refused(*wrong)

    def adelete(self, thread: str) -> bool:
        return self.threads_by_id.pop(thread, None) is not None

    def aprune(self, thread: str) -> int:
        return int(thread in self.threads_by_id)

    def acopy(self, source: str, target: str) -> bool:
        if source in self.threads_by_id and target in self.threads_by_id and source != target:
            raise Refused("ValueError")
        if source in self.threads_by_id and source != target:
            self.threads_by_id[target] = deepcopy(self.threads_by_id[source])
        return source in self.threads_by_id

    def catalogue(self) -> dict[str, Any]:
        return {
            thread: (cube_thread.status, len(cube_thread.messages))
            for thread, cube_thread in self.threads_by_id.items()
        }


# --- stores to compare


@dataclass
class Store:
    """One storage and the Keeps on it."""

    name: str
    open: Callable[[int], Keep]
    location: Path | str | None
    tenant: str = ""

    def __post_init__(self) -> None:
        self.keeps = [self.open(which) for which in range(3)]

    def reopen(self, which: int) -> None:
        self.keeps[which].close()
        self.keeps[which] = self.open(which)

    async def do(self, which: int, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Return a verb's result in the model's form, or the name of its error."""
        keep = self.keeps[which]
        face: Any = keep.cube if hasattr(keep.cube, verb) else keep
        try:
            found = await getattr(face, verb)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - compared by name
            return type(error).__name__
        if verb == "aprune":
            return found.examined
        return (found.messages, found.extra, found.parent_thread_id) if verb == "load" and found else found

    async def catalogue(self) -> dict[str, Any]:
        return {info.id: (info.status, info.step or 0) for info in await self.keeps[2].athreads()}

    def problems(self) -> list[Problem]:
        """Return what verify finds; in `make test` in memory only."""
        return self.keeps[2].verify().problems if PROVING or self.name.startswith("memory") else []

    def close(self) -> None:
        for keep in self.keeps:
            keep.close()

    def check_rows(self, pruned: str | None = None) -> None:
        """Check for dangling references, and for unused items in a thread that was just pruned."""
        if self.location is None or (isinstance(self.location, Path) and not self.location.exists()):
            return
        assert find_problems(self.location, self.tenant) == [], self.name
        if pruned is not None:
            assert unused_items(self.location, pruned, self.tenant) == set(), self.name


def stores(folder: Path) -> list[Store]:
    tenant, memory = shared_pool.fresh_tenant(), InMemoryBackend()

    def file() -> Transport:
        return SqliteFile(folder / "keep.db", SqliteDialect(), durability="relaxed", timeout=5)

    return [
        Store("memory", on(lambda: Direct(memory)), None),
        Store("sqlite", on(file), folder / "keep.db"),
        Store("postgres", on(shared_pool.transport, tenant), shared_pool.schema(), tenant),
    ]


def on(reach: Callable[[], Any], tenant: str = "") -> Callable[[int], Keep]:
    return lambda which: Keep(
        Session(reach(), tenant=tenant, caches=Caches(CACHES[which])), None, claim_timeout=TIMEOUTS[which]
    )


def on_valkey(folder: Path) -> list[Store]:
    tenant = shared_pool.fresh_tenant()
    return [
        Store(
            "valkey",
            on(lambda: shared_pool.transport(url=shared_pool.cluster()), tenant),
            shared_pool.cluster(),
            tenant,
        )
    ]


keeps = st.sampled_from([0, 0, 1])
threads = st.sampled_from(THREADS)


class Agreement(RuleBasedStateMachine):
    """All operations on cube threads, in any order."""

    stores_in = staticmethod(stores)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stores = self.stores_in(self.folder)
        self.model = Model()
        self.runner = asyncio.Runner()
        self.clock = patch.object(adapter, "now_ms", lambda: self.model.now)
        self.clock.start()
        self.touched: set[str] = set()
        self.failed = False

    def do(self, which: int, verb: str, *args: Any, model: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Apply the same change to all, and compare the results."""
        expected = self.expected(verb, *args, **kwargs, **(model or {}))
        for store in self.stores:
            self.compare(store, (verb, args, kwargs), self.runner.run(store.do(which, verb, *args, **kwargs)), expected)

    def expected(self, verb: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the model's result; any of these is allowed."""
        try:
            return [getattr(self.model, verb)(*deepcopy(args), **deepcopy(kwargs))]
        except Refused as refused:
            return list(refused.names)

    def compare(self, store: Store, call: Any, found: Any, expected: list[Any]) -> None:
        if found not in expected:
            self.failed = True
            raise AssertionError(f"{store.name}: {call} gives {found!r:.2000}, not {expected!r:.2000}")

    def ask_at_once(self, which: int, calls: Sequence[tuple[Any, ...]]) -> None:
        """Apply several changes to all concurrently."""
        expected = [self.expected(verb, *args, **kwargs) for verb, args, kwargs in calls]

        async def question_ids(store: Store) -> list[Any]:
            return await asyncio.gather(*(store.do(which, verb, *args, **kwargs) for verb, args, kwargs in calls))

        for store in self.stores:
            for call, found, wanted in zip(calls, self.runner.run(question_ids(store)), expected, strict=True):
                self.compare(store, call, found, wanted)

    def change(self, which: int, verb: str, thread: str, *args: Any, **kwargs: Any) -> None:
        self.do(which, verb, thread, *args, **kwargs)
        self.touched.add(thread)

    # --- changes

    @rule(which=keeps, thread=threads, given=st.lists(messages, max_size=4))
    def append(self, which: int, thread: str, given: list[Message]) -> None:
        self.change(which, "append", thread, given)

    @rule(which=keeps, thread=threads, count=st.integers(30, 80), run=runs)
    def append_one_by_one(self, which: int, thread: str, count: int, run: str | None) -> None:
        for n in range(count if PROVING else count // 10):
            self.change(which, "append", thread, [UserMessage(content=[TextContent(text=f"{n}")], run_id=run)])

    @rule(which=keeps, thread=threads, extra=extras)
    def save_extra(self, which: int, thread: str, extra: dict[str, Any]) -> None:
        self.change(which, "save_extra", thread, extra)

    @rule(which=keeps, thread=threads, question=st.one_of(st.none(), questions, questions), run=runs)
    def save_pending_request(self, which: int, thread: str, question: HitlRequest | None, run: str | None) -> None:
        self.change(which, "save_pending_request", thread, question, run_id=run)

    @rule(which=keeps, thread=threads, question=st.sampled_from(QUESTIONS), run=st.sampled_from(RUNS))
    def settle(self, which: int, thread: str, question: str, run: str) -> None:
        pending = self.model.load_pending(thread)
        if pending is not None and pending[1] is not None:
            question, run = pending[0].question_id, pending[1] if run != "r2" else run
        self.change(which, "clear_pending_request_if_matches", thread, question_id=question, run_id=run)

    @rule(which=keeps, thread=threads, question=st.sampled_from(QUESTIONS), answer=values, run=runs)
    def save_hitl_answer(self, which: int, thread: str, question: str, answer: Any, run: str | None) -> None:
        self.change(which, "save_hitl_answer", thread, question, answer, run_id=run)

    @rule(
        which=keeps, thread=threads, question_ids=st.one_of(st.none(), st.lists(st.sampled_from(QUESTIONS))), run=runs
    )
    def clear_hitl_answers(self, which: int, thread: str, question_ids: Any, run: str | None) -> None:
        self.change(which, "clear_hitl_answers", thread, question_ids, run_id=run)

    @rule(which=keeps, thread=threads, run=st.sampled_from(RUNS))
    def claim_run(self, which: int, thread: str, run: str) -> None:
        self.change(which, "claim_run", thread, run, model={"timeout": TIMEOUTS[which]})

    @rule(which=keeps, thread=threads, run=st.sampled_from(RUNS))
    def mark_run_complete(self, which: int, thread: str, run: str) -> None:
        self.change(which, "mark_run_complete", thread, run)

    @rule(which=keeps, thread=threads, run=st.sampled_from(RUNS), given=st.lists(messages, min_size=1, max_size=3))
    def a_whole_run(self, which: int, thread: str, run: str, given: list[Message]) -> None:
        self.change(which, "claim_run", thread, run, model={"timeout": TIMEOUTS[which]})
        self.change(which, "append", thread, [each.model_copy(update={"run_id": run}) for each in given])
        self.change(which, "mark_run_complete", thread, run)

    @rule(
        which=keeps,
        source=threads,
        onto=threads,
        run=st.sampled_from(RUNS),
        fork_metadata=st.sampled_from([None, {}, {"a": 1}]),
    )
    def fork(self, which: int, source: str, onto: str, run: str, fork_metadata: Any) -> None:
        done = self.model._there(source).completed
        self.touched.add(onto)
        self.change(
            which, "fork", source, onto, after_run_id=done[0] if done and run == "r0" else run, metadata=fork_metadata
        )

    @rule(which=keeps, source=threads, onto=threads)
    def copy(self, which: int, source: str, onto: str) -> None:
        self.touched.add(onto)
        self.change(which, "acopy", source, onto)

    @rule(which=keeps, thread=threads)
    def prune(self, which: int, thread: str) -> None:
        self.change(which, "aprune", thread)
        for store in self.stores:
            store.check_rows(pruned=thread)

    @rule(which=keeps, thread=threads)
    def delete(self, which: int, thread: str) -> None:
        self.change(which, "adelete", thread)

    @rule(which=keeps, thread=threads, count=st.integers(2, 8))
    def many_at_once(self, which: int, thread: str, count: int) -> None:
        """The final state is the same for every order."""
        given = [UserMessage(content=[TextContent(text="one of many")])] * count
        for n, each in enumerate(given):
            self.model.append(thread, [each])
            self.model.save_extra(thread, {f"many {n}": n})

        async def together(store: Store) -> None:
            cube = store.keeps[which].cube
            appends = [cube.append(thread, [each]) for each in given]
            await asyncio.gather(*appends, *(cube.save_extra(thread, {f"many {n}": n}) for n in range(count)))

        for store in self.stores:
            self.runner.run(together(store))
        self.touched.add(thread)

    @rule(which=st.integers(0, 2))
    def reopen(self, which: int) -> None:
        for store in self.stores:
            store.reopen(which)

    @rule(seconds=st.sampled_from([1, 5, 10]))
    def let_time_pass(self, seconds: int) -> None:
        self.model.now += seconds * 1000

    # --- reads

    @rule(which=st.integers(0, 2), thread=threads, run=st.sampled_from(RUNS))
    def snapshot(self, which: int, thread: str, run: str) -> None:
        self.do(which, "snapshot", thread, after_run_id=run)

    @rule(which=st.integers(0, 2), thread=threads)
    def load(self, which: int, thread: str) -> None:
        self.do(which, "load", thread)

    @invariant()
    def changed_talks_read_the_same(self) -> None:
        for thread in sorted(self.touched):
            self.reads_the_same(thread)
        self.touched.clear()

    def reads_the_same(self, thread: str, *, snapshots: bool = False) -> None:
        calls: list[Any] = [(verb, (thread,), {}) for verb in ("load", "load_pending", "load_pending_request")]
        for run, question in itertools.product([None, *RUNS[:2]], QUESTIONS):
            calls.append(("load_hitl_answer", (thread, question), {"run_id": run}))
        calls += [("snapshot", (thread,), {"after_run_id": run}) for run in RUNS if snapshots]
        self.ask_at_once(2, calls)

    def teardown(self) -> None:
        try:
            if not self.failed:
                self.everything_reads_the_same()
        finally:
            for store in self.stores:
                store.close()
            self.clock.stop()
            self.runner.close()
            shutil.rmtree(self.folder)

    def everything_reads_the_same(self) -> None:
        for thread in dict.fromkeys(THREADS):
            self.reads_the_same(thread, snapshots=True)
        for store in self.stores:
            assert self.runner.run(store.catalogue()) == self.model.catalogue(), store.name
            assert store.problems() == [], store.name
            store.close()
            store.check_rows()


class ValkeyAgreement(Agreement):
    """The same on Valkey."""

    stores_in = staticmethod(on_valkey)


TestAgreement = Agreement.TestCase
TestAgreement.settings = machine_settings(few=15, many=400)
TestValkeyAgreement = ValkeyAgreement.TestCase
TestValkeyAgreement.settings = machine_settings(few=8, many=150)


# --- crashes

ASKED = HitlRequest(question_id="q", thread_id="t", payload=ConfirmRequest(prompt="sure?"), created_at=2.5)


def user_message(text: str, id: str = "", run: str | None = None) -> UserMessage:
    return UserMessage(content=[TextContent(text=text)], id=id, run_id=run)


async def past(keep: Keep) -> None:
    cube = keep.cube
    await cube.append("t", [user_message("before", "1"), *(user_message(f"{n} " * 50, f"n{n}") for n in range(40))])
    await cube.claim_run("t", "r1")
    await cube.append("t", [user_message("first", "2", "r1"), user_message("without an id", run="r1")])
    await cube.mark_run_complete("t", "r1")
    await cube.save_extra("t", {"a": "x" * 2000, "b": [1]})
    await cube.claim_run("t", "r2")
    await cube.append("t", [user_message("second", "3", "r2")])
    await cube.save_hitl_answer("t", "q", {"k": "v"}, run_id="r2")
    await cube.save_pending_request("t", ASKED, run_id="r2")


VERBS: dict[str, Callable[[Keep], Awaitable[Any]]] = {
    "append": lambda keep: keep.cube.append("t", [user_message("new", "4", "r2"), user_message("long " * 60_000, "5")]),
    "append to a new thread": lambda keep: keep.cube.append("new", [user_message("new", "4")]),
    "save_extra": lambda keep: keep.cube.save_extra("t", {"b": [2], "c": "y" * 3000}),
    "save_pending_request": lambda keep: keep.cube.save_pending_request("t", None),
    "settle": lambda keep: keep.cube.clear_pending_request_if_matches("t", question_id="q", run_id="r2"),
    "save_hitl_answer": lambda keep: keep.cube.save_hitl_answer("t", "q2", ["z" * 900], run_id="r2"),
    "clear_hitl_answers": lambda keep: keep.cube.clear_hitl_answers("t", run_id="r2"),
    "claim_run": lambda keep: keep.cube.claim_run("t", "r3"),
    "mark_run_complete": lambda keep: keep.cube.mark_run_complete("t", "r2"),
    "fork": lambda keep: keep.cube.fork("t", "new", after_run_id="r1", metadata={"why": 1}),
    "prune": lambda keep: keep.aprune("t"),
    "roll back to a run": lambda keep: keep.arollback("t", "r1"),
    "roll back to a checkpoint": lambda keep: keep.arollback("t", "0000000001"),
    "fork from a checkpoint": lambda keep: keep.afork("t", "0000000001", to="new"),
    "copy": lambda keep: keep.acopy("t", "new"),
    "delete": lambda keep: keep.adelete("t"),
}
ONCE = {
    "claim_run": "RunAlreadyClaimedError", "fork": "ThreadAlreadyExistsError", "copy": "ValueError",
    "fork from a checkpoint": "ValueError",
}  # fmt: skip
"""What these raise if a caller repeats them because the reply was lost."""

REPEATED = {"prune", "delete"}
"""These may be repeated."""


class CrashingStorage(BaseCrashingStorage):
    """A storage with a cube thread, and how to reopen it after a crash."""

    def do(self, verb: Callable[[Keep], Awaitable[Any]]) -> Any:
        async def work() -> Any:
            return await verb(self.keep)

        return asyncio.run(work())

    def read_contents(self) -> dict[str, Any]:
        """Read everything in every cube thread with a new Keep; check row invariants where possible."""
        self.check()
        with Keep(Session(self.reach(), tenant=self.tenant, caches=Caches(0)), None) as reader:
            return asyncio.run(_tale(reader))


async def _tale(keep: Keep) -> dict[str, Any]:
    all_contents = {}
    for info in await keep.athreads():
        answers = [await keep.cube.load_hitl_answer(info.id, each, run_id="r2") for each in ("q", "q2")]
        snapshots = []
        for run in ("r1", "r2", "r3"):
            try:
                snapshots.append(len(await keep.cube.snapshot(info.id, after_run_id=run)))
            except adapter.framework().errors["not completed"]:
                snapshots.append(-1)
        fork_metadata = (info.status, info.step, info.checkpoints)
        all_contents[info.id] = (
            fork_metadata,
            await keep.cube.load(info.id),
            await keep.cube.load_pending(info.id),
            answers,
            snapshots,
        )
    return all_contents


@pytest.fixture(params=["memory", "sqlite", "postgres", "valkey"])
def new_crashing_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], CrashingStorage]]:
    made: list[CrashingStorage] = []

    def make() -> CrashingStorage:
        made.append(CrashingStorage(*location_of(request.param, tmp_path / f"{len(made)}.db")))
        made[-1].do(past)
        return made[-1]

    yield make
    for crashing in made:
        crashing.transport.crash_at(NEVER, after=False)
        crashing.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("name", VERBS)
def test_a_crash_at_any_request_leaves_a_cube_thread_as_before_or_as_after(
    new_crashing_storage: Callable[[], CrashingStorage], name: str, ways: list[tuple[bool, bool]]
) -> None:
    verb, undisturbed, crashes = VERBS[name], new_crashing_storage(), 0
    if undisturbed.path == shared_pool.cluster():
        ways = ways[-1:]  # the others take long and test nothing that is specific to Valkey
    before = undisturbed.read_contents()
    undisturbed.do(verb)
    final = undisturbed.read_contents()
    for remembers, after in ways:
        for k in range(1, 20):
            crashing = new_crashing_storage()
            if not remembers:
                crashing.start()
            crashing.transport.crash_at(k, after=after)
            try:
                crashing.do(verb)
            except Unavailable:
                crashes += 1
            else:
                assert not crashing.transport.crashed, "a crash was taken for a success"
                assert crashing.read_contents() == final
                break
            seen = crashing.read_contents()
            assert seen in (before, final)
            if k % 2:
                crashing.start()
            try:
                crashing.do(verb)
            except Exception as error:
                if seen != final or type(error).__name__ != ONCE.get(name):
                    raise
            assert crashing.read_contents() == final
        else:
            raise AssertionError("it never gets through")
    assert crashes >= len(ways)


class Losing(Crashing):
    """A transport that loses the reply to its k-th change, after which others may change something too."""

    def __init__(self, inner: Transport, meanwhile: Callable[[], None]) -> None:
        super().__init__(inner)
        self.left = NEVER
        self._meanwhile = meanwhile

    def write(self, requests: Sequence[Request[Any]]) -> list[Outcome]:
        outcomes = super().write(requests)
        self.left -= 1
        if self.left:
            return outcomes
        self._meanwhile()
        return [Failure(Conflict("the connection was lost")) if isinstance(each, Reply) else each for each in outcomes]

    def try_commit(self, batch: Batch) -> bool:
        is_made = super().try_commit(batch)
        self.left -= is_made
        if self.left or not is_made:
            return is_made
        self._meanwhile()
        return False  # the outcome is not known


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside others"])
@pytest.mark.parametrize("name", [*(name for name in VERBS if name not in REPEATED), "append without ids"])
def test_a_change_whose_reply_was_lost_is_made_once(
    new_crashing_storage: Callable[[], CrashingStorage], name: str, others: bool
) -> None:
    crashing, expected = new_crashing_storage(), new_crashing_storage()
    verb = VERBS.get(
        name, lambda keep: keep.cube.append("t", [user_message("no id"), user_message("of a run", run="r2")])
    )

    def meanwhile() -> None:
        if others:
            rival = Keep(Session(crashing.reach(), tenant=crashing.tenant, caches=Caches(0)), None)
            asyncio.run(rival.cube.append("t", [user_message("of another", "other")]))
            rival.close()

    answer = expected.do(verb)
    if others:
        expected.do(lambda keep: keep.cube.append("t", [user_message("of another", "other")]))
    losing = Losing(crashing.reach(), meanwhile)
    with Keep(Session(losing, tenant=crashing.tenant, caches=Caches(1 << 26)), None) as keep:
        asyncio.run(_loaded(keep))
        losing.left = 1
        assert asyncio.run(_done(verb, keep)) == answer
        assert losing.left < 1
    assert crashing.read_contents() == expected.read_contents()


async def _loaded(keep: Keep) -> None:
    await keep.cube.load("t")


async def _done(verb: Callable[[Keep], Awaitable[Any]], keep: Keep) -> Any:
    return await verb(keep)
