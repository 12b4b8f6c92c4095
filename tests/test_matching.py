"""Threads by metadata: of any checkpoint or of the latest, in the catalogue, in policies, and in delete."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import damage
import threadkeep
from checkpoint_chains import Chain, config
from checkpoint_trees import put_steps
from sync_async import Caller
from test_branches import three_runs
from test_delta_upkeep import DELTA
from threadkeep import DeleteResult, MatchedThread, Policy
from threadkeep.cli.app import run
from threadkeep.engine.requests import ListThreads, ScanCheckpoints
from threadkeep.engine.threads import matching


def write(keep: threadkeep.Keep, thread: str, *owners: str | None, ns: str = "") -> None:
    """Write a chain with a checkpoint for each owner; None is a checkpoint without one."""
    chain = Chain(keep.checkpointer, thread, ns=ns)
    for owner in owners:
        chain.put({"n": [owner] * 20}, **({"owner": owner} if owner else {}))


def write_threads(keep: threadkeep.Keep) -> None:
    """Write threads whose checkpoints are of u1: all, the older, the newest, none, one in a subgraph."""
    write(keep, "all", "u1", "u1", "u1")
    write(keep, "older", "u1", "u1", "u1", "u1", None)
    write(keep, "newest", None, "u2", "u1")
    write(keep, "none", "u2", "u2", None)
    write(keep, "within", "u2")
    write(keep, "within", "u1", "u1", ns="child:1")


U1 = {"owner": "u1"}
COUNTS = {"all": (3, 3), "newest": (1, 3), "older": (4, 5), "within": (2, 3)}


def names(found: list[threadkeep.ThreadInfo]) -> list[str]:
    return [info.id for info in found]


def counts(threads: tuple[MatchedThread, ...]) -> dict[str, tuple[int | None, int]]:
    return {each.id: (each.matching, each.checkpoints) for each in threads}


@pytest.fixture
def filled(keep: threadkeep.Keep) -> threadkeep.Keep:
    write_threads(keep)
    return keep


# --- the catalogue


async def test_any_checkpoint_of_a_thread_may_match(filled: threadkeep.Keep, call: Caller) -> None:
    assert names(await call(filled, "threads", metadata=U1, order="id")) == ["all", "newest"]
    assert names(await call(filled, "threads", metadata=U1, order="id", match="latest")) == ["all", "newest"]
    assert names(await call(filled, "threads", metadata=U1, order="id", match="any")) == list(COUNTS)
    assert len(await call(filled, "threads", metadata={}, match="any")) == 5


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", ["updated", "created", "bytes", "id"])
def test_threads_that_match_are_listed_page_by_page(keep: threadkeep.Keep, order: str) -> None:
    write_threads(keep)
    found = keep.threads(metadata=U1, match="any", order=order)
    pages, after = [], None
    while page := keep.threads(metadata=U1, match="any", order=order, limit=1, after=after):
        pages += page
        after = page[-1]
    assert pages == found
    assert sorted(names(found)) == list(COUNTS)
    assert names(keep.threads(metadata=U1, match="any", prefix="o")) == ["older"]


def test_one_checkpoint_must_have_all_of_the_metadata(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer)
    chain.put({}, a=1, b=1)
    chain.put({}, a=2, b=2, c=3)
    for wanted, found in (({"a": 1, "b": 1}, 1), ({"a": 1, "b": 2}, 0), ({"a": 2, "b": 2, "c": 3}, 1), ({"d": 1}, 0)):
        assert len(keep.threads(metadata=wanted, match="any")) == found, wanted


def test_metadata_outside_of_the_index_may_match(keep: threadkeep.Keep) -> None:
    chain = Chain(keep.checkpointer, run="r1")
    chain.put({}, source="input", step=-1, parents={"": "x"}, writes={"a": 1}, note=None)
    chain.put({}, source="loop", step=0, writes=None, note="set", more="set")
    for wanted in (
        {"source": "input"}, {"step": -1}, {"run_id": "r1"}, {"parents": {"": "x"}}, {"writes": {"a": 1}}, {"note": None},
        {"source": "input", "step": -1, "more": None}, {"note": "set", "step": 0},
    ):  # fmt: skip
        assert names(keep.threads(metadata=wanted, match="any")) == ["t"], wanted
    for wanted in ({"source": "fork"}, {"step": 7}, {"run_id": "r2"}, {"note": "set", "step": -1}):
        assert keep.threads(metadata=wanted, match="any") == [], wanted


def test_a_hidden_checkpoint_may_match(keep: threadkeep.Keep) -> None:
    """It holds data, so whoever deletes by metadata means it too."""
    put_steps(keep.checkpointer, "t", DELTA)
    keep.checkpointer.prune(["t"])
    result = keep.delete(metadata={"step": 7}, dry_run=True)
    assert isinstance(result, DeleteResult)
    assert counts(result.threads) == {"t": (1, 4)}
    assert keep.threads(metadata={"step": 7}) == []
    assert names(keep.threads(metadata={"step": 7}, match="any")) == ["t"]
    assert keep.threads(metadata={"step": 1}, match="any") == []


def test_removed_checkpoints_do_not_match(keep: threadkeep.Keep) -> None:
    write(keep, "t", "u1", "u1", None)
    keep.checkpointer.prune(["t"])
    assert keep.threads(metadata=U1, match="any") == []


async def test_cube_threads_match(url: str) -> None:
    async with threadkeep.open(url) as keep:
        await three_runs(keep)
        await keep.atag("t", "0000000001", "first")
        await keep.afork("t", to="u")
        await Chain(keep.checkpointer, "graph").aput({}, tag="other")
        assert names(await keep.athreads(metadata={"tag": "first"}, match="any")) == ["t"]
        assert await keep.athreads(metadata={"tag": "first"}) == []
        assert names(await keep.athreads(metadata={"run_id": "r1"}, match="any", kind="cube")) == ["t"]
        result = await keep.adelete(metadata={"tag": "first"}, dry_run=True)
        assert isinstance(result, DeleteResult)
        assert counts(result.threads)["t"][0] == 1
        await keep.atag("t", "latest", "last")
        assert names(await keep.athreads(metadata={"tag": "last"})) == ["t"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_long_threads_are_compared_in_slices(keep: threadkeep.Keep, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(matching, "_SLICE", size)
    write_threads(keep)
    for ns in ("child:1", "child:2"):  # the same ids in several namespaces
        write(keep, "older", None, "u1", ns=ns)
    assert names(keep.threads(metadata=U1, match="any", order="id")) == list(COUNTS)
    result = keep.delete(metadata=U1, dry_run=True)
    assert isinstance(result, DeleteResult)
    assert counts(result.threads) == COUNTS | {"older": (6, 9)}


def test_threads_that_cannot_match_are_not_read(tables_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQL databases have an index of metadata."""
    asked: list[Any] = []
    with threadkeep.open(tables_url) as keep:
        for n in range(20):
            write(keep, f"other {n}", "u2", None)
        write(keep, "older", "u1", None)
        transport: Any = keep._session.transport
        answer = transport.read
        monkeypatch.setattr(transport, "read", lambda request, *rest: asked.append(request) or answer(request, *rest))
        assert names(keep.threads(metadata=U1, match="any", titles=False)) == ["older"]
        assert [type(request) for request in asked] == [ListThreads, ScanCheckpoints]


@pytest.mark.parametrize("match", ["all", "", None, 1, ["any"]])
def test_any_other_match_is_refused(match: Any) -> None:
    with threadkeep.open("memory://") as keep:
        for call in (
            lambda: keep.threads(metadata=U1, match=match),
            lambda: keep.delete(metadata=U1, match=match),
            lambda: keep.activity(metadata=U1, match=match),
            lambda: Policy(metadata=U1, match=match),
        ):
            with pytest.raises(ValueError, match="any or latest"):
                call()


def test_activity_may_count_threads_by_any_checkpoint(keep: threadkeep.Keep) -> None:
    write_threads(keep)
    assert keep.activity(metadata=U1).threads == 2
    assert keep.activity(metadata=U1, match="any").threads == 4


# --- policies


def test_a_policy_applies_if_any_checkpoint_matches(keep: threadkeep.Keep) -> None:
    write_threads(keep)
    dry = keep.prune(policy=Policy(metadata=U1, keep_last=1), dry_run=True)
    assert {each.id: (each.matching, each.total) for each in dry.threads} == COUNTS
    assert keep.prune(policy=Policy(metadata=U1, keep_last=1)) == _done(dry)
    left = {info.id: info.checkpoints for info in keep.threads()}
    assert left == {"all": 1, "older": 1, "newest": 1, "none": 3, "within": 2}


def _done(dry: threadkeep.PruneResult) -> threadkeep.PruneResult:
    fields = {name: getattr(dry, name) for name in dry.__slots__}
    return threadkeep.PruneResult(**fields | {"dry_run": False})


def test_a_policy_may_look_at_the_latest_checkpoint_only(keep: threadkeep.Keep) -> None:
    write_threads(keep)
    dry = keep.prune(policy=Policy(metadata=U1, match="latest", keep_last=1), dry_run=True)
    assert {each.id: (each.matching, each.total) for each in dry.threads} == {"all": (3, 3), "newest": (1, 3)}


def test_the_first_policy_that_matches_any_checkpoint_decides(keep: threadkeep.Keep) -> None:
    write_threads(keep)
    policies = [Policy(metadata=U1, keep_last=2), Policy(metadata={"owner": "u2"}, keep_last=1), Policy(keep_last=1)]
    dry = keep.prune(policy=policies, dry_run=True)
    assert {each.id: (len(each.checkpoints), each.matching) for each in dry.threads} == {
        "all": (1, 3), "newest": (1, 1), "older": (3, 4), "none": (2, 2),
    }  # fmt: skip
    plain = keep.prune(policy=Policy(keep_last=1), dry_run=True)
    assert {each.matching for each in plain.threads} == {None}


def test_one_fork_without_metadata_does_not_hide_a_thread_from_retention(keep: threadkeep.Keep) -> None:
    write(keep, "t", *["u1"] * 30, None)
    time.sleep(0.005)  # so that it is idle
    policy = Policy(metadata=U1, drop_idle=timedelta(0))
    (dry,) = keep.prune(policy=policy, dry_run=True).threads
    assert (dry.dropped, dry.matching, dry.total) == (True, 30, 31)
    assert keep.prune(policy=policy).dropped == 1
    assert keep.thread("t") is None


def test_a_sweep_matches_any_checkpoint_and_a_file_may_say_otherwise(url: str, tmp_path: Path) -> None:
    file = tmp_path / "threadkeep.toml"
    file.write_text('[[retention]]\nmetadata = {owner = "u1"}\nmatch = "latest"\nkeep_last = 1\n')
    with threadkeep.open(url, retention=Policy(metadata=U1, keep_last=1)) as keep:
        write_threads(keep)
        swept = keep.sweep(dry_run=True).pruned
        assert {each.id: (each.matching, each.total) for each in swept.threads} == COUNTS
        assert [each.id for each in keep.prune(policy=file, dry_run=True).threads] == ["all", "newest"]
        file.write_text('[[retention]]\nmatch = "newest"\n')
        with pytest.raises(ValueError, match="any or latest"):
            keep.prune(policy=file)


# --- delete


async def test_threads_are_deleted_by_metadata(filled: threadkeep.Keep, call: Caller) -> None:
    dry = await call(filled, "delete", metadata=U1, dry_run=True)
    assert (dry.dry_run, counts(dry.threads), dry.checkpoints, dry.skipped) == (True, COUNTS, 14, ())
    assert len(await call(filled, "threads")) == 5
    done = await call(filled, "delete", metadata=U1)
    assert (done.dry_run, done.threads, done.bytes) == (False, dry.threads, dry.bytes)
    assert names(await call(filled, "threads")) == ["none"]
    assert await call(filled.checkpointer, "get_tuple", config("older")) is None
    assert (await call(filled, "delete", metadata=U1)).threads == ()


async def test_threads_are_deleted_by_prefix_and_latest_checkpoint(filled: threadkeep.Keep, call: Caller) -> None:
    done = await call(filled, "delete", prefix="n")
    assert counts(done.threads) == {"newest": (None, 3), "none": (None, 3)}
    assert (await call(filled, "delete", prefix="o", metadata=U1, match="latest")).threads == ()
    assert names(await call(filled, "threads", order="id")) == ["all", "older", "within"]
    assert counts((await call(filled, "delete", metadata=U1, match="latest")).threads) == {"all": (3, 3)}
    assert names(await call(filled, "threads", order="id")) == ["older", "within"]


async def test_delete_of_one_thread_returns_whether_it_existed(filled: threadkeep.Keep, call: Caller) -> None:
    assert await call(filled, "delete", "all", dry_run=True) is True
    assert await call(filled, "delete", "all") is True
    assert await call(filled, "delete", "all") is False


def test_delete_needs_either_a_thread_or_a_selection(keep: threadkeep.Keep) -> None:
    write(keep, "t", "u1")
    for options in ({}, {"prefix": ""}, {"metadata": {}}, {"metadata": None}, {"match": "any"}):
        with pytest.raises(ValueError, match="every thread"):
            keep.delete(**options)
    for options in ({"prefix": "t"}, {"metadata": U1}):
        with pytest.raises(ValueError, match="not both"):
            keep.delete("t", **options)
    with pytest.raises(TypeError, match="str keys"):
        keep.delete(metadata={1: 2})  # type: ignore[dict-item]
    assert names(keep.threads()) == ["t"]


def test_delete_leaves_other_tenants_alone(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, tenant="a") as ours, threadkeep.open(lasting_url, tenant="b") as theirs:
        for keep in (ours, theirs):
            write(keep, "t", "u1", None)
        assert keep_counts(ours.delete(metadata=U1)) == {"t": (1, 2)}
        assert (names(ours.threads()), names(theirs.threads())) == ([], ["t"])


def keep_counts(result: bool | DeleteResult) -> dict[str, tuple[int | None, int]]:
    assert isinstance(result, DeleteResult)
    return counts(result.threads)


def test_a_damaged_checkpoint_hides_no_other_that_matches(url: str) -> None:
    with threadkeep.open(url) as keep:
        write(keep, "match", "u1", "u1", None)
        write(keep, "unknown", None, "u1", None)
        rows = damage.rows_opener(url)
        for thread, n in (("match", 0), ("unknown", 1)):
            stored = rows(keep, thread)
            row = stored.root()[n]
            stored.set_checkpoint(row, row._replace(body=damage.flip_byte(row.body)))
        result = keep.delete(metadata=U1)
        assert isinstance(result, DeleteResult)
        assert counts(result.threads) == {"match": (1, 3)}
        assert result.skipped == ("unknown",)
        assert names(keep.threads()) == ["unknown"]


# --- the command line


@pytest.fixture
def command(lasting_url: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Run a command on threads as above and return its exit code and its JSON, or its text with `text=True`."""
    with threadkeep.open(lasting_url) as keep:
        write_threads(keep)

    def call(*args: str, text: bool = False) -> tuple[int, Any]:
        capsys.readouterr()
        code = run([*args, "--url", lasting_url, *(() if text else ("--json",))])
        printed = capsys.readouterr()
        return code, (printed.out + printed.err if text else json.loads(printed.out))

    return call


def test_commands_match_as_the_verbs_do(command: Callable[..., tuple[int, Any]]) -> None:
    option = ("--metadata", "owner=u1")
    code, found = command("threads", *option, "--order", "id")
    assert (code, [each["id"] for each in found]) == (0, ["all", "newest"])
    code, found = command("threads", *option, "--order", "id", "--match", "any")
    assert (code, [each["id"] for each in found]) == (0, list(COUNTS))
    code, found = command("prune", *option, "--keep-last", "1", "--dry-run")
    assert (code, {each["id"]: (each["matching"], each["total"]) for each in found["threads"]}) == (0, COUNTS)
    code, found = command("prune", *option, "--keep-last", "1", "--dry-run", "--match", "latest")
    assert (code, [each["id"] for each in found["threads"]]) == (0, ["all", "newest"])
    code, shown = command("prune", *option, "--keep-last", "1", "--dry-run", text=True)
    assert code == 0
    assert "matching" in shown and "4 of 5" in shown
    assert "matching" not in command("prune", "--keep-last", "1", "--dry-run", text=True)[1]
    assert command("threads", *option, "--match", "newest", text=True)[0] == 2


def test_the_command_delete_takes_a_selection(command: Callable[..., tuple[int, Any]]) -> None:
    option = ("--metadata", "owner=u1")
    code, shown = command("delete", *option, text=True)
    assert code == 2
    assert "Delete 4 threads with 14 checkpoints" in shown and "--yes" in shown
    assert "in 3 threads only some checkpoints match" in shown
    code, shown = command("delete", *option, "--dry-run", text=True)
    assert code == 0
    assert "4 of 5" in shown and "would delete 4 threads" in shown
    code, result = command("delete", *option, "--dry-run")
    found = {each["id"]: (each["matching"], each["checkpoints"]) for each in result["threads"]}
    assert (code, found, result["dry_run"], result["deleted"]) == (0, COUNTS, True, list(COUNTS))
    code, result = command("delete", *option, "--match", "latest", "--prefix", "n", "--yes")
    assert (code, result["deleted"], result["missing"]) == (0, ["newest"], [])
    code, result = command("delete", *option, "--yes")
    assert (code, result["deleted"]) == (0, ["all", "older", "within"])
    assert command("delete", *option, "--yes", text=True) == (0, "no thread matches\n")
    assert [each["id"] for each in command("threads")[1]] == ["none"]


@pytest.mark.parametrize("args", [(), ("none", "--prefix", "n"), ("none", "--metadata", "owner=u1")])
def test_the_command_delete_takes_either_ids_or_a_selection(
    command: Callable[..., tuple[int, Any]], args: tuple[str, ...]
) -> None:
    code, shown = command("delete", *args, "--yes", text=True)
    assert (code, "pass either thread ids" in shown) == (2, True)
    assert len(command("threads")[1]) == 5
