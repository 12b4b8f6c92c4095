"""The requests of each verb, one by one: plans driven by hand, without transport, thread or event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import INTERRUPT

from threadkeep.backends.in_memory.backend import InMemoryBackend
from threadkeep.engine import commit
from threadkeep.engine.health.requests import InspectThread
from threadkeep.engine.identity import GRAPH, ThreadKey
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.type_gate import KeepSerializer
from threadkeep.engine.requests import (
    Commit,
    CopyThread,
    DropThread,
    FindThreadsOfRuns,
    ListThreads,
    LoadAncestors,
    LoadCheckpoints,
    LoadItems,
    LoadThreadRows,
    Pause,
    ScanCheckpoints,
)
from threadkeep.engine.threads import checkpoints, copy, listing, prune
from threadkeep.engine.threads.delta_history import delta_history
from threadkeep.engine.threads.heads import Heads
from threadkeep.engine.threads.ops import Put, PutWrites
from threadkeep.errors import Conflict, Unavailable
from threadkeep.plan import Failure, Plan, Reply, Request, drive, result, resume, try_execute

KEY, OTHER = ThreadKey("", GRAPH, "t"), ThreadKey("", GRAPH, "other")
CODEC = Codec(KeepSerializer())


class Bench:
    """A backend, the caches of one process, and the requests that were made."""

    def __init__(self, backend: InMemoryBackend | None = None) -> None:
        self.backend = backend or InMemoryBackend()
        self.heads = Heads(1 << 26)
        self.made_requests: list[type] = []

    def drive(self, plan: Plan[Any], *, before: Callable[[Request[Any]], None] = lambda request: None) -> Any:
        """Step a plan to its end. `before` is called before each request, and may change something or fail."""
        self.made_requests = []
        step = resume(plan, Reply())
        while isinstance(step, Request):
            request = step
            self.made_requests.append(type(request))
            step = resume(plan, try_execute(lambda r: self._execute(r, before), request))
        return result(step)

    def _execute(self, request: Request[Any], before: Callable[[Request[Any]], None]) -> Any:
        before(request)
        return None if isinstance(request, Pause) else self.backend.answer(request)

    def write(self, *ops: Put | PutWrites, key: ThreadKey = KEY, **how: Any) -> None:
        for outcome in self.drive(checkpoints.write(self.heads, key, ops), **how):
            result(outcome)

    def get(self, id: str | None = None, key: ThreadKey = KEY) -> checkpoints.CheckpointState | None:
        return self.drive(checkpoints.get(self.heads, CODEC, key, "", id))

    def status(self) -> str:
        return self.backend.answer(ListThreads("", "id", 1))[0].row.status

    def forget(self) -> None:
        self.heads.clear()


def put(id: str, parent: str | None = None, values: dict[str, Any] | None = None, **metadata: Any) -> Put:
    channel_values = {"messages": ["message " * 10 + id]} if values is None else values
    versions = dict.fromkeys(channel_values, int(id))
    checkpoint = {"v": 4, "id": id, "channel_values": channel_values, "channel_versions": versions, "versions_seen": {}}
    return Put(CODEC, "", parent, checkpoint, {"source": "loop", "step": int(id), **metadata}, versions, 1000, 77)


def writes(checkpoint: str, task: str = "task", *values: Any, run: str | None = None) -> PutWrites:
    encoded = [(idx, "messages", CODEC.encode(value)) for idx, value in enumerate(values or ("a value",))]
    return PutWrites("", checkpoint, task, "", run, encoded, 1000, 77)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def warm(bench: Bench) -> Bench:
    """Write three checkpoints, each with a write; this process has them cached."""
    for n in (1, 2, 3):
        bench.write(put(str(n), str(n - 1) if n > 1 else None, run_id=f"run-{n}"))
        bench.write(writes(str(n), run=f"run-{n}"))
    return bench


# --- put


def test_the_first_put_of_a_thread_takes_two_requests(bench: Bench) -> None:
    bench.write(put("1"))
    assert bench.made_requests == [LoadCheckpoints, Commit]


def test_a_warm_put_takes_one_request(warm: Bench) -> None:
    warm.write(put("4", "3"))
    assert warm.made_requests == [Commit]


def test_a_cold_put_takes_two_requests(warm: Bench) -> None:
    warm.forget()
    warm.write(put("4", "3"))
    assert warm.made_requests == [LoadCheckpoints, Commit]


def test_a_put_after_a_get_takes_one_request(warm: Bench) -> None:
    warm.forget()
    warm.get()
    warm.write(put("4", "3"))
    assert warm.made_requests == [Commit]


def test_a_fork_from_a_checkpoint_that_is_not_cached_takes_two_requests(warm: Bench) -> None:
    for n in range(4, 60):
        warm.write(put(str(n), str(n - 1)))
    warm.write(put("60", "2"))
    assert warm.made_requests == [LoadCheckpoints, Commit]


def test_warm_put_writes_take_one_request_before_and_after_their_checkpoint(warm: Bench) -> None:
    warm.write(writes("3", "another task"))
    assert warm.made_requests == [Commit]
    warm.write(writes("4", "early"))
    assert warm.made_requests == [Commit]


def test_cold_put_writes_take_two_requests(warm: Bench) -> None:
    warm.forget()
    warm.write(writes("3", "another task"))
    assert warm.made_requests == [LoadCheckpoints, Commit]


def test_a_stored_write_is_not_committed_again(warm: Bench) -> None:
    warm.forget()
    warm.write(writes("3", "task", "another value"))
    assert warm.made_requests == [LoadCheckpoints]
    found = warm.get("3")
    assert found is not None
    assert found.writes == [("task", "messages", "a value")]


@pytest.mark.parametrize("count", [2, 40])
def test_many_ops_of_one_thread_take_one_commit(warm: Bench, count: int) -> None:
    ops: list[Put | PutWrites] = [put(str(n), str(n - 1)) for n in range(4, 4 + count)]
    ops += [writes("3", f"task {n}") for n in range(count)]
    warm.write(*ops)
    assert warm.made_requests == [Commit]
    found = warm.get("3")
    assert found is not None
    assert len(found.writes) == 1 + count


def test_an_op_that_cannot_be_encoded_fails_alone(warm: Bench) -> None:
    bad = put("4", "3")
    bad.values, bad.encoded = {"messages": object.__new__(_Unserializable)}, {}
    outcomes = warm.drive(checkpoints.write(warm.heads, KEY, [put("5", "3"), bad, writes("3", "x")]))
    assert [type(outcome) for outcome in outcomes] == [Reply, Failure, Reply]
    assert warm.made_requests == [Commit]
    assert warm.get("5") is not None
    assert warm.get("4") is None


class _Unserializable:
    def __reduce__(self) -> Any:
        raise TypeError("not this one")


@pytest.mark.parametrize(
    "odd",
    [
        {"ts": "0001-01-01T00:00:00+01:00"},
        {"ts": "9999-12-31T23:59:59-01:00"},
        {"versions_seen": {"node": {1: 1}}},
        {"channel_versions": {"messages": [1]}},
        {"updated_channels": ["messages", "\ud800"]},
        {"v": 2**70},
        {"id": "\0\ud800"},
    ],
    ids=ascii,
)
def test_an_odd_checkpoint_is_refused_alone_or_does_not_affect_others(warm: Bench, odd: Any) -> None:
    checkpoint = {"v": 4, "id": "4", "channel_values": {}, "channel_versions": {}, "versions_seen": {}, **odd}
    try:
        op = Put(CODEC, "", "3", checkpoint, {}, {}, 1000, 77)
    except (TypeError, ValueError):
        return
    outcomes = warm.drive(checkpoints.write(warm.heads, KEY, [put("5", "3"), op, put("6", "5")]))
    assert [type(outcomes[n]) for n in (0, 2)] == [Reply, Reply]
    assert warm.get("5") is not None
    assert warm.get("6") is not None


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 1, 0)], ids=str)
def test_the_status_counts_writes_of_the_same_commit_in_any_order(warm: Bench, order: Sequence[int]) -> None:
    interrupted = PutWrites("", "4", "task", "", None, [(-3, INTERRUPT, CODEC.encode("?"))], 1000, 77)
    ops = [put("4", "3"), interrupted, writes("5")]
    warm.write(*(ops[n] for n in order))
    assert warm.status() == "interrupted"


def test_the_status_counts_writes_that_came_just_before_their_checkpoint_was_put_again(warm: Bench) -> None:
    warm.write(PutWrites("", "3", "new", "", None, [(-3, INTERRUPT, CODEC.encode("?"))], 1000, 77), put("3", "2"))
    assert warm.status() == "interrupted"


# --- concurrent writers


def test_a_conflict_is_one_more_load_and_commit(warm: Bench) -> None:
    Bench(warm.backend).write(put("4", "3"))
    warm.write(put("5", "3"))
    assert warm.made_requests == [Commit, LoadCheckpoints, Commit]
    assert [id for id in ("4", "5") if warm.get(id) is None] == []


def test_another_writer_between_load_and_commit_costs_one_more_round(warm: Bench) -> None:
    warm.forget()
    others = iter([put("4", "3"), put("5", "3")])

    def interfere(request: Request[Any]) -> None:
        if isinstance(request, Commit) and (op := next(others, None)):
            Bench(warm.backend).write(op)

    warm.write(put("6", "3"), before=interfere)
    assert warm.made_requests == [LoadCheckpoints, Commit, LoadCheckpoints, Commit, Pause, LoadCheckpoints, Commit]
    assert [id for id in ("4", "5", "6") if warm.get(id) is None] == []


def test_endless_conflicts_end_as_conflict_and_leave_nothing(warm: Bench) -> None:
    def refuse(request: Request[Any]) -> None:
        if isinstance(request, Commit):
            raise Conflict

    with pytest.raises(Conflict, match="'t'"):
        warm.write(put("4", "3"), before=refuse)
    assert warm.made_requests.count(Commit) == commit.TRIES
    assert warm.get("4") is None


def test_after_a_commit_of_unknown_outcome_the_thread_is_read_again(warm: Bench) -> None:
    def lose(request: Request[Any]) -> None:
        warm.backend.answer(request)
        raise Unavailable

    with pytest.raises(Unavailable):
        warm.write(put("4", "3"), before=lose)
    warm.write(put("4", "3"))
    assert warm.made_requests == [LoadCheckpoints, Commit]


def test_a_thread_that_was_deleted_and_made_again_is_not_taken_for_the_old_one(warm: Bench) -> None:
    other = Bench(warm.backend)
    other.drive(prune.delete(other.heads, KEY))
    assert other.made_requests == [DropThread]
    remade = [put(str(n), str(n - 1) if n > 1 else None, {"messages": ["other"] * n}) for n in (1, 2, 3)]
    for op in remade:
        op.nonce = 78
        other.write(op)
        other.write(writes(op.id))
    warm.write(put("4", "3", {"messages": ["other"] * 3 + ["new"]}))
    assert warm.made_requests == [Commit, LoadCheckpoints, Commit]
    for n in (1, 2, 3):
        found = warm.get(str(n))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"messages": ["other"] * n}


# --- get


@pytest.mark.parametrize("id", [None, "1", "3", "unknown"])
@pytest.mark.parametrize("cold", [True, False])
def test_a_get_takes_one_request(warm: Bench, id: str | None, cold: bool) -> None:
    if cold:
        warm.forget()
    warm.get(id)
    assert warm.made_requests == [LoadCheckpoints]


def test_a_page_of_a_thread_takes_two_requests(warm: Bench) -> None:
    warm.forget()
    query = listing.query("", GRAPH, thread="t", ns=None, id=None, before=None, filter={}, limit=None)
    page = warm.drive(listing.page(warm.heads, CODEC, query))
    assert warm.made_requests == [ScanCheckpoints, LoadCheckpoints]
    assert [state.id for state in page.states] == ["3", "2", "1"]
    assert page.rest is None


def test_an_empty_page_takes_one_request_and_a_limit_of_none_takes_none(warm: Bench) -> None:
    for limit, asked in ((None, [ScanCheckpoints]), (0, [])):
        query = listing.query("", GRAPH, thread="t", ns="nowhere", id=None, before=None, filter={}, limit=limit)
        warm.drive(listing.page(warm.heads, CODEC, query))
        assert warm.made_requests == asked


def test_a_page_of_what_is_cached_takes_one_request_unless_the_heads_were_cleared_meanwhile(warm: Bench) -> None:
    warm.write(put("4", "3"))
    query = listing.query("", GRAPH, thread="t", ns=None, id=None, before=None, filter={"step": 4}, limit=None)
    first = warm.drive(listing.page(warm.heads, CODEC, query))
    assert [state.id for state in first.states] == ["4"]
    assert warm.drive(listing.page(warm.heads, CODEC, query)) == first
    assert warm.made_requests == [ScanCheckpoints]

    def clear_and_read_again() -> None:  # what is cached then may be of another server than the scan
        warm.heads.clear()
        drive(checkpoints.get(warm.heads, CODEC, KEY, "", "4"), warm.backend.answer)

    again = once(ScanCheckpoints, clear_and_read_again)
    assert warm.drive(listing.page(warm.heads, CODEC, query), before=again) == first
    assert warm.made_requests == [ScanCheckpoints, LoadCheckpoints]


def test_what_is_removed_between_the_scan_and_the_load_of_a_page_is_left_out(warm: Bench) -> None:
    other = Bench(warm.backend)
    pruned = once(LoadCheckpoints, lambda: other.drive(prune.prune(other.heads, KEY, "keep_latest", 99)))
    query = listing.query("", GRAPH, thread="t", ns=None, id=None, before=None, filter={}, limit=None)
    page = warm.drive(listing.page(warm.heads, CODEC, query), before=pruned)
    assert [state.id for state in page.states] == ["3"]


def test_a_long_list_takes_two_requests_a_page_and_pages_grow(bench: Bench) -> None:
    bench.write(*(put(f"{n:04}", f"{n - 1:04}", {"n": n}) for n in range(300)))
    query = listing.query("", GRAPH, thread="t", ns="", id=None, before=None, filter={}, limit=None)
    sizes, asked = [], []
    while query is not None:
        page = bench.drive(listing.page(bench.heads, CODEC, query))
        query = page.rest
        sizes.append(len(page.states))
        asked += bench.made_requests
    assert sum(sizes) == 300
    assert sizes[:-1] == sorted(sizes[:-1])
    assert len(asked) <= 2 * len(sizes)
    assert len(sizes) <= 6


@pytest.mark.parametrize("length", [2, 50, 500])
def test_the_history_of_a_delta_channel_takes_at_most_three_requests_however_long(bench: Bench, length: int) -> None:
    ids = [f"{n:04}" for n in range(1, length + 1)]
    bench.write(put(ids[0], None, {"messages": ["seed " * 20]}))
    bench.write(*(put(id, parent, {}) for parent, id in pairwise(ids)))
    bench.write(*(writes(id, "task", f"value {id} " * 20) for id in ids))
    bench.forget()
    found = bench.drive(delta_history(bench.heads, CODEC, KEY, "", ids[-1], ["messages"]))
    assert len(bench.made_requests) <= 3
    assert set(bench.made_requests) <= {LoadAncestors, LoadItems}
    assert [value for _, _, value in found["messages"].writes] == [f"value {id} " * 20 for id in ids[:-1]]
    assert found["messages"].seeds == [["seed " * 20]]


def test_a_prune_while_the_history_of_a_delta_channel_is_read_makes_it_read_again(bench: Bench) -> None:
    bench.write(put("1", None, {"messages": ["seed " * 20]}))
    for n in (2, 3, 4):
        bench.write(writes(str(n - 1), "task", f"value {n} " * 20))
        bench.write(put(str(n), str(n - 1), {}, counters_since_delta_snapshot={"messages": [n, n]}))
    bench.forget()
    pruned = []

    def interfere(request: Request[Any]) -> None:
        if isinstance(request, LoadItems) and not pruned:
            other = Bench(bench.backend)
            pruned.append(other.drive(prune.prune(other.heads, KEY, "keep_latest", 99)))

    found = bench.drive(delta_history(bench.heads, CODEC, KEY, "", "4", ["messages"]), before=interfere)
    assert bench.made_requests == [LoadAncestors, LoadItems, LoadAncestors, LoadItems]
    assert len(found["messages"].writes) == 3
    assert found["messages"].seeds == [["seed " * 20]]


# --- upkeep


def test_prune_takes_a_survey_and_a_commit(warm: Bench) -> None:
    warm.drive(prune.prune(warm.heads, KEY, "keep_latest", 78))
    assert warm.made_requests == [LoadThreadRows, Commit]
    assert [id for id in "123" if warm.get(id)] == ["3"]


def test_a_prune_that_changes_nothing_commits_nothing(warm: Bench) -> None:
    warm.drive(prune.prune(warm.heads, KEY, "keep_latest", 78))
    warm.drive(prune.prune(warm.heads, KEY, "keep_latest", 79))
    assert warm.made_requests == [LoadThreadRows]


@pytest.mark.parametrize("strategy", ["delete", "delete_all"])
def test_pruning_all_takes_one_request(warm: Bench, strategy: str) -> None:
    warm.drive(prune.prune(warm.heads, KEY, strategy, 78))
    assert warm.made_requests == [DropThread]
    assert warm.get() is None


def test_a_prune_that_another_writer_interrupts_reads_again(warm: Bench) -> None:
    others = iter([put("4", "3")])

    def interfere(request: Request[Any]) -> None:
        if isinstance(request, Commit) and (op := next(others, None)):
            Bench(warm.backend).write(op)

    warm.drive(prune.prune(warm.heads, KEY, "keep_latest", 78), before=interfere)
    assert warm.made_requests == [LoadThreadRows, Commit, LoadThreadRows, Commit]
    assert [id for id in "1234" if warm.get(id)] == ["4"]


def test_deleting_a_run_takes_a_survey_and_a_commit_in_its_threads_only(warm: Bench) -> None:
    warm.write(put("1"), key=OTHER)
    assert warm.drive(prune.threads_of_runs("", GRAPH, ["run-2"])) == (KEY,)
    assert warm.made_requests == [FindThreadsOfRuns]
    warm.drive(prune.delete_runs(warm.heads, KEY, frozenset(["run-2"]), 78))
    assert warm.made_requests == [LoadThreadRows, Commit]
    assert [id for id in "123" if warm.get(id)] == ["1", "3"]
    assert warm.drive(prune.threads_of_runs("", GRAPH, ["run-2"])) == ()


def test_a_copy_onto_a_new_thread_takes_three_requests_and_one_to_check_the_items(warm: Bench) -> None:
    warm.drive(copy.copy(warm.heads, KEY, OTHER, 2000, 78))
    assert warm.made_requests == [LoadThreadRows, InspectThread, LoadItems, CopyThread]
    assert [id for id in "123" if warm.get(id, OTHER)] == ["1", "2", "3"]


def test_a_copy_onto_a_thread_that_exists_adds_its_items_in_one_commit_and_notes_its_source(warm: Bench) -> None:
    warm.write(put("0"), key=OTHER)
    warm.drive(copy.copy(warm.heads, KEY, OTHER, 2000, 78))
    assert warm.made_requests[:3] == [LoadThreadRows, InspectThread, LoadItems]
    assert warm.made_requests[-2:] == [LoadThreadRows, Commit]
    assert warm.made_requests.count(Commit) == 2
    assert len(warm.made_requests) <= 7
    assert [id for id in "0123" if warm.get(id, OTHER)] == ["0", "1", "2", "3"]


def once(kind: type, act: Callable[[], Any]) -> Callable[[Request[Any]], None]:
    """Do something before the first request of a kind."""
    left = [act]
    return lambda request: left.pop()() if isinstance(request, kind) and left else None


def test_a_copy_whose_source_changes_under_way_is_made_of_what_the_source_has_then(warm: Bench) -> None:
    change = once(CopyThread, lambda: Bench(warm.backend).write(put("4", "3")))
    warm.drive(copy.copy(warm.heads, KEY, OTHER, 2000, 78), before=change)
    assert warm.made_requests == [LoadThreadRows, InspectThread, LoadItems, CopyThread] * 2
    assert [id for id in "1234" if warm.get(id, OTHER)] == ["1", "2", "3", "4"]


def test_a_copy_whose_target_appears_under_way_is_added_to_it(warm: Bench) -> None:
    change = once(CopyThread, lambda: Bench(warm.backend).write(put("2", None, {"messages": ["its own"]}), key=OTHER))
    warm.drive(copy.copy(warm.heads, KEY, OTHER, 2000, 78), before=change)
    assert [id for id in "123" if warm.get(id, OTHER)] == ["1", "2", "3"]
    assert warm.get("2", OTHER).checkpoint["channel_values"] == {"messages": ["its own"]}


@pytest.mark.parametrize("moment", [LoadItems, LoadCheckpoints, Commit])
def test_a_checkpoint_that_the_target_gets_while_it_is_copied_onto_stays(warm: Bench, moment: type) -> None:
    Bench(warm.backend).write(put("0"), key=OTHER)
    mine = [put("2", None, {"messages": ["its own"]}), writes("2", "task", "its own")]
    change = once(moment, lambda: Bench(warm.backend).write(*mine, key=OTHER))
    warm.drive(copy.copy(warm.heads, KEY, OTHER, 2000, 78), before=change)
    assert [id for id in "0123" if warm.get(id, OTHER)] == ["0", "1", "2", "3"]
    found = warm.get("2", OTHER)
    assert found.checkpoint["channel_values"] == {"messages": ["its own"]}
    assert found.writes == [("task", "messages", "its own")]


def test_a_source_that_is_deleted_while_it_is_copied_leaves_the_target_alone(warm: Bench) -> None:
    warm.write(put("0"), key=OTHER)
    gone = once(LoadItems, lambda: warm.backend.answer(DropThread(KEY)))
    warm.drive(copy.copy(warm.heads, KEY, OTHER, 2000, 78), before=gone)
    assert [id for id in "0123" if warm.get(id, OTHER)] == ["0"]


def test_a_copy_of_nothing_asks_and_changes_nothing(bench: Bench) -> None:
    bench.drive(copy.copy(bench.heads, KEY, KEY, 2000, 78))
    assert bench.made_requests == []
    bench.drive(copy.copy(bench.heads, KEY, OTHER, 2000, 78))
    assert set(bench.made_requests) == {LoadThreadRows, InspectThread}
    assert bench.get(key=OTHER) is None
