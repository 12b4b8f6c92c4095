"""Optimistic commits: when a verb retries, and that it recognizes its own commit if the reply was lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from test_plans import KEY, Bench, put, writes
from threadkeep.engine.commit import TRIES, Decision, Seen, commit, commit_once, fill_cache, read_consistently
from threadkeep.engine.cube import plans, rollback
from threadkeep.engine.cube.ops import AppendMessages, ClaimRun, CompleteRun, encode_message
from threadkeep.engine.health import repair
from threadkeep.engine.identity import CUBE
from threadkeep.engine.log.records import ThreadRow, thread_checksum
from threadkeep.engine.requests import Commit, CopyThread, ForkThread, LoadItems, LoadThreadRows, Pause
from threadkeep.engine.threads import copy, prune
from threadkeep.engine.threads.rollback import BranchStamp
from threadkeep.errors import Conflict, Unavailable
from threadkeep.plan import Request, result

TALK, NEW = KEY._replace(kind=CUBE), KEY._replace(id="new")


def with_checksum(row: ThreadRow) -> ThreadRow:
    return row._replace(bytes_check=row.bytes, checksum=thread_checksum(row))


def keeps_conflicting(request: Request[Any]) -> None:
    if not isinstance(request, Pause):
        raise Conflict


@pytest.fixture
def bench() -> Bench:
    return made()


def made(*, damaged: bool = False) -> Bench:
    """Write a graph thread of three checkpoints with an unused item, and a cube thread of one completed run."""
    bench = Bench()
    for n in (1, 2, 3):
        bench.write(put(str(n), str(n - 1) if n > 1 else None, run_id=f"run {n}"))
        bench.write(writes(str(n)))
    bench.write(put("3", "2", {"messages": ["replaced " * 10]}))
    if damaged:
        rows = bench.backend._threads[KEY].checkpoints
        body = rows[("", "3")].body
        rows[("", "3")] = rows[("", "3")]._replace(body=body[:-1] + bytes([body[-1] ^ 1]))
    say(bench, "hello")
    ops = [ClaimRun("run", time=1000, nonce=11), CompleteRun("run", time=1000, nonce=12)]
    for outcome in bench.drive(plans.write(bench.heads, TALK, ops)):
        result(outcome)
    return bench


def say(bench: Bench, text: str) -> None:
    op = AppendMessages([encode_message({"role": "user", "content": text, "id": text})], time=1000, nonce=10)
    for outcome in bench.drive(plans.write(bench.heads, TALK, [op])):
        result(outcome)


def test_the_first_retry_comes_at_once_and_each_later_one_after_a_longer_pause(bench: Bench) -> None:
    pauses: list[int] = []

    def fail(request: Request[Any]) -> None:
        pauses.extend([request.attempt] if isinstance(request, Pause) else [])
        keeps_conflicting(request)

    with pytest.raises(Conflict, match="thread 't' was changed by others at each of 40 tries"):
        bench.drive(prune.prune(bench.heads, KEY, prune.KEEP_LATEST, 5), before=fail)
    assert bench.made_requests.count(LoadThreadRows) == TRIES
    assert pauses == list(range(1, TRIES - 1))


def test_a_read_that_is_always_interrupted_by_a_prune_ends_as_conflict(bench: Bench) -> None:
    async def read() -> None:
        await LoadThreadRows(KEY)

    with pytest.raises(Conflict, match="thread 't' was pruned by others at each of 3 tries"):
        bench.drive(read_consistently(KEY, read, tries=3), before=keeps_conflicting)
    assert bench.made_requests == [LoadThreadRows, LoadThreadRows, Pause, LoadThreadRows]


def test_a_change_that_loses_its_connection_at_each_read_is_unavailable_and_no_conflict(bench: Bench) -> None:
    def lose(request: Request[Any]) -> None:
        if isinstance(request, LoadItems):
            bench.forget()

    bench.forget()
    op = AppendMessages([encode_message({"role": "user", "content": "x", "id": "x"})], time=1000, nonce=13)
    with pytest.raises(Unavailable, match="the connection was lost while .* was read; this was the last of 40 tries"):
        bench.drive(plans.write(bench.heads, TALK, [op]), before=lose)


def test_items_of_a_thread_that_was_pruned_meanwhile_are_a_conflict(bench: Bench) -> None:
    thread = bench.backend._threads[KEY]
    head = bench.heads.head_from(KEY, bench.backend.answer(LoadThreadRows(KEY)), None)
    wanted = thread.checkpoints[("", "3")].refs
    for requests in ([LoadItems], []):
        bench.drive(fill_cache(bench.heads, head, wanted))
        assert bench.made_requests == requests
    assert not head.cache.lacking(wanted)
    head = bench.heads.head_from(KEY, bench.backend.answer(LoadThreadRows(KEY)), None)
    thread.row = with_checksum(thread.row._replace(epoch=thread.row.epoch + 1))
    with pytest.raises(Conflict, match="thread 't' was pruned while it was read"):
        bench.drive(fill_cache(bench.heads, head, wanted))


@pytest.mark.parametrize("is_lost", [False, True], ids=["", "the reply is lost"])
def test_a_copy_takes_the_place_of_a_thread_that_is_as_expected(bench: Bench, is_lost: bool) -> None:
    bench.drive(copy.copy(bench.heads, KEY, NEW, 2000, 6))
    bench.write(put("4", "3"))
    source, target = (bench.backend._threads[key].row for key in (KEY, NEW))
    replaced = with_checksum(source._replace(key=NEW, epoch=7, rev=0))

    def copied(rev: int) -> CopyThread:
        return CopyThread(KEY, (source.epoch, source.rev), replaced, replaces=(target.epoch, rev))

    with pytest.raises(Conflict):
        bench.drive(commit_once(bench.heads, copied(target.rev + 1)))
    assert bench.backend._threads[NEW].row == target

    def lose(request: Request[Any]) -> None:
        if is_lost and isinstance(request, CopyThread):
            bench.backend.answer(request)
            raise Conflict

    bench.drive(commit_once(bench.heads, copied(target.rev)), before=lose)
    assert bench.backend._threads[NEW].row == replaced
    assert bench.backend._threads[NEW].checkpoints == bench.backend._threads[KEY].checkpoints


def test_a_verb_that_has_nothing_to_do_keeps_the_cached_head(bench: Bench) -> None:
    async def read() -> Seen[None]:
        return Seen(None, None)

    remembered = bench.heads.get(KEY)
    assert remembered is not None
    assert bench.drive(commit(bench.heads, KEY, read, lambda *_: Decision("nothing"))) == "nothing"
    assert bench.heads.get(KEY) is remembered


def repair_options() -> repair.RepairOptions:
    return repair.RepairOptions("3", "", BranchStamp(2_000_000, 6))


VERBS: dict[str, Callable[[Bench], Any]] = {
    "copy": lambda b: copy.copy(b.heads, KEY, NEW, 2000, 6),
    "free": lambda b: prune.free_unused_items(b.heads, KEY, 6),
    "delete runs": lambda b: prune.delete_runs(b.heads, KEY, frozenset({"run 2"}), 6),
    "repair": lambda b: repair.repair(b.heads, KEY, repair_options(), None),
    "cube rollback": lambda b: rollback.rollback(b.heads, TALK, "0000000001", BranchStamp(5000, 6)),
    "cube fork": lambda b: rollback.fork(b.heads, TALK, "0000000001", BranchStamp(5000, 6)),
    "cube fork to": lambda b: rollback.fork_to(b.heads, TALK, "run", TALK._replace(id="new"), BranchStamp(5000, 6)),
    "CubeLoop's fork": lambda b: plans.fork(b.heads, TALK, TALK._replace(id="new"), "run", None, time=5, nonce=6),
}


@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside others"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_change_whose_answer_was_lost_is_made_once_and_has_its_result(verb: str, others: bool) -> None:
    bench = made(damaged=verb == "repair")
    lost: list[Any] = []

    def lose(request: Request[Any]) -> None:
        if isinstance(request, (Commit, ForkThread, CopyThread)) and not lost:
            lost.append(request)
            bench.backend.answer(request)
            if others:
                other = Bench(bench.backend)
                other.write(put("8", "2"))
                say(other, "others go on")
            raise Conflict

    undisturbed = made(damaged=verb == "repair")
    expected = undisturbed.drive(VERBS[verb](undisturbed))
    found = bench.drive(VERBS[verb](bench), before=lose)
    assert sum(issubclass(asked, (Commit, ForkThread, CopyThread)) for asked in bench.made_requests) == len(lost) == 1
    assert found == (expected._replace(after=found.after) if verb == "free" else expected)
    assert not isinstance(found, prune.Freed) or found.items == 1
