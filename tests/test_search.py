"""Search what was said: by an index and by reading threads, the hits are the same, and those that a model expects."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import apsw
import psycopg
import pytest
from cubeloop.providers.base import AssistantMessage, TextContent, UserMessage
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from redis.cluster import RedisCluster

import postgres_servers
import processes
import threadkeep
import valkey_servers
from checkpoint_chains import Chain, config
from conftest import BACKENDS, Backend
from damaged_memories import sql_executor
from hypothesis_profiles import machine_settings
from storage_counts import PostgresProbe, Probe, SqliteProbe, ValkeyProbe, shared_postgres_url
from stored_bytes import everything_stored
from sync_async import Caller
from threadkeep import Keep, SearchHit, SearchResult, errors
from threadkeep.adapters import langgraph_saver
from threadkeep.cli.app import run
from threadkeep.engine.search.query import Query, join_words, parse_query, rank, snippet
from threadkeep.engine.search.requests import FindChangedThreads, SearchIndex
from threadkeep.plan import Request

KEYS = threadkeep.Keys({"k": b"k" * 32}, primary="k")
HOUR = 3_600_000


def say(keep: Keep, thread: str, *texts: str, **metadata: Any) -> Chain:
    """Put a checkpoint for each text, each with one message more."""
    chain, messages = Chain(keep.checkpointer, thread), list[Any]()
    for n, text in enumerate(texts):
        make = AIMessage if n % 2 else HumanMessage
        messages = [*messages, make(text, id=f"m{n}")]
        chain.put({"messages": messages}, **metadata)
    return chain


def say_in_cube(keep: Keep, thread: str, *texts: str) -> None:
    messages: list[Any] = [
        AssistantMessage(content=[TextContent(text=text)], id=f"c{n}")
        if n % 2
        else UserMessage(content=[TextContent(text=text)], id=f"c{n}")
        for n, text in enumerate(texts)
    ]
    asyncio.run(keep.cube.append(thread, messages))


def fill(keep: Keep) -> None:
    say(keep, "shop/1", "What is your refund policy?", "We refund everything. The policy is simple.", user="ada")
    say(keep, "shop/2", "Hello", "The Café opens at nine; déjà vu", "no refund", user="bob")
    chain = Chain(keep.checkpointer, "plan")
    chain.put({"plan": {"steps": ["Ask for a refund", "wait"], "note": "policy"}, "count": 3, "title": "Refund Policy"})
    say_in_cube(keep, "cube/1", "my REFUND please", "your refund is on its way")


def places(found: Sequence[SearchHit]) -> list[tuple[str, str]]:
    return [(hit.thread, hit.place) for hit in found]


def both(keep: Keep, query: str, **options: Any) -> tuple[SearchHit, ...]:
    """Search with the index and without. The hits are the same, in the same order."""
    indexed, scanned = keep.search(query, **options), keep.search(query, scan=True, **options)
    assert indexed.hits == scanned.hits
    assert indexed.complete
    assert scanned.complete
    assert indexed.scanned == 0
    return indexed.hits


# --- words, ranks and snippets


def test_a_query_has_words_and_phrases_without_case_and_accents() -> None:
    assert parse_query('Café "Refund  Policy" refund') == Query(("cafe", "refund", "policy"), (" refund  policy ",))
    assert parse_query('"one"') == Query(("one",))
    assert parse_query('an "open quotation') == Query(("an", "open", "quotation"))


@pytest.mark.parametrize("query", ["", " ", '""', "?!", " ".join(map(str, range(33)))])
def test_a_query_needs_some_words_and_not_too_many(query: str) -> None:
    with pytest.raises(ValueError, match=r"no words|at most 32"):
        parse_query(query)


def ranks(query: str, *texts: str) -> list[int | None]:
    return [rank(parse_query(query), join_words(text.split()), len(text.split())) for text in texts]


def test_a_text_ranks_higher_the_more_often_it_has_the_words_and_the_shorter_it_is() -> None:
    often, short, once, long = ranks("refund", "refund refund now", "refund", "refund is here", "refund " + "x " * 50)
    assert often is not None
    assert short is not None
    assert once is not None
    assert long is not None
    assert often > short > once > long > 0


def test_all_words_and_phrases_must_be_there() -> None:
    assert ranks("a b", "a", "b", "c", "ab") == [None] * 4
    assert ranks('"a b"', "b a", "a x b", "ab") == [None] * 3
    assert None not in ranks('"a b" c', "c a b", "a b a b c")


@pytest.mark.parametrize(
    ("query", "text", "shown"),
    [
        ("refund", "We refund.", "We [refund]."),
        ("cafe", "The Café\nopens", "The [Café] opens"),
        ("cafe", "The Cafe\u0301 opens", "The [Cafe\u0301] opens"),
        ('"refund policy" your', "your refund policy", "[your] [refund] [policy]"),
        ("東", "東京", "[東]京"),
        ("strasse", "Große Straße", "Große [Straße]"),
        ("x", f"{'a ' * 200}x{' b' * 200}", f"…{'a ' * 19}[x]{' b' * 60}…"),
        ("x", "b" * 500, f"{'b' * 160}…"),
    ],
)
def test_a_snippet_shows_the_matches(query: str, text: str, shown: str) -> None:
    found = snippet(parse_query(query), text)
    marked = found.text
    for start, end in reversed(found.marks):
        marked = f"{marked[:start]}[{marked[start:end]}]{marked[end:]}"
    assert marked.replace(" …", "…") == shown


def test_a_snippet_is_where_most_words_are() -> None:
    found = snippet(parse_query("one two"), f"one {'x ' * 200} one two {'x ' * 200}")
    assert [found.text[start:end] for start, end in found.marks] == ["one", "two"]


# --- what is found


async def test_messages_and_string_values_are_found_sync_and_async(keep: Keep, call: Caller) -> None:
    await asyncio.to_thread(fill, keep)
    found = await call(keep, "search", "Refund")
    assert isinstance(found, SearchResult)
    assert set(places(found)) == {
        ("shop/1", "messages[0].content"),
        ("shop/1", "messages[1].content"),
        ("shop/2", "messages[2].content"),
        ("plan", "plan.steps[0]"),
        ("plan", "title"),
        ("cube/1", "messages[0].content"),
        ("cube/1", "messages[1].content"),
    }
    assert (found.scanned, found.complete, found.skipped) == (0, True, ())
    assert len(found) == 7
    assert found[0] == found.hits[0]
    scanned = await call(keep, "search", "Refund", scan=True)
    assert scanned.hits == found.hits
    assert scanned.scanned == 4


def test_a_hit_says_where_it_is(keep: Keep) -> None:
    fill(keep)
    (hit,) = both(keep, "everything")
    checkpoint = keep.log("shop/1")[0]
    assert (hit.thread, hit.kind, hit.ns, hit.checkpoint) == ("shop/1", "graph", "", checkpoint.id)
    assert (hit.time, hit.role, hit.message_id) == (checkpoint.time, "ai", "m1")
    assert hit.snippet == "We refund everything. The policy is simple."
    assert [hit.snippet[start:end] for start, end in hit.marks] == ["everything"]
    shown = keep.show("shop/1", hit.checkpoint).values["messages"][1]["content"]
    assert hit.snippet == shown


@pytest.mark.parametrize(
    ("query", "options", "expected"),
    [
        ("refund policy", {}, {"shop/1", "plan"}),
        ('"refund policy"', {}, {"shop/1", "plan"}),
        ('"policy refund"', {}, set()),
        ("cafe DEJA", {}, {"shop/2"}),
        ("refund", {"prefix": "shop/"}, {"shop/1", "shop/2"}),
        ("refund", {"kind": "cube"}, {"cube/1"}),
        ("refund", {"kind": "graph"}, {"shop/1", "shop/2", "plan"}),
        ("refund", {"role": "user"}, {"shop/1", "shop/2", "cube/1"}),
        ("refund", {"role": "human", "prefix": "cube"}, {"cube/1"}),
        ("refund", {"role": "ai"}, {"shop/1", "cube/1"}),
        ("refund", {"role": "assistant"}, {"shop/1", "cube/1"}),
        ("refund", {"role": "tool"}, set()),
        ("refund", {"metadata": {"user": "ada"}}, {"shop/1"}),
        ("refund", {"metadata": {"user": "bob"}, "match": "any"}, {"shop/2"}),
        ("refund", {"metadata": {"user": "nobody"}}, set()),
        ("refund", {"limit": 0}, set()),
        ("nothing", {}, set()),
    ],
)
def test_threads_and_hits_are_selected(keep: Keep, query: str, options: dict[str, Any], expected: set[str]) -> None:
    fill(keep)
    assert {hit.thread for hit in both(keep, query, **options)} == expected


def test_the_best_match_comes_first_and_the_newest_among_equals(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    for n, thread in enumerate(["b", "a", "c"]):
        monkeypatch.setattr(langgraph_saver, "now_ms", lambda n=n: 1_700_000_000_000 + n * HOUR)
        say(keep, thread, "same words here")
    say(keep, "d", "words")
    say(keep, "e", "words words but more of them " + "and more " * 50)
    assert [hit.thread for hit in both(keep, "words")] == ["d", "c", "a", "b", "e"]
    assert [hit.thread for hit in both(keep, "words", limit=2)] == ["d", "c"]
    found = both(keep, "words", limit=5)
    assert [hit.rank for hit in found] == sorted((hit.rank for hit in found), reverse=True)


def test_since_and_until_are_compared_with_the_checkpoint_where_a_text_is_first(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = 1_700_000_000_000
    chain, messages = Chain(keep.checkpointer), list[Any]()
    for n in range(4):
        monkeypatch.setattr(langgraph_saver, "now_ms", lambda n=n: start + n * HOUR)
        messages = [*messages, HumanMessage(f"word {n}", id=str(n))]
        chain.put({"messages": messages})
    times = [datetime.fromtimestamp((start + n * HOUR) / 1000, UTC) for n in range(4)]
    assert {hit.message_id for hit in both(keep, "word", since=times[2])} == {"2", "3"}
    assert {hit.message_id for hit in both(keep, "word", until=times[2])} == {"0", "1"}
    assert {hit.message_id for hit in both(keep, "word", since=times[1], until=times[2])} == {"1"}
    assert both(keep, "word", since=timedelta(hours=1)) == ()


def test_a_removed_or_edited_message_is_found_where_it_was(keep: Keep) -> None:
    chain = Chain(keep.checkpointer)
    chain.put({"messages": [HumanMessage("first draft", id="a"), HumanMessage("draft stays", id="b")]})
    chain.put({"messages": [HumanMessage("second draft", id="a"), HumanMessage("draft stays", id="b")]})
    chain.put({"messages": [HumanMessage("draft stays", id="b")]})
    found = {hit.snippet: (hit.checkpoint, hit.place) for hit in both(keep, "draft")}
    assert found == {
        "first draft": ("00000000", "messages[0].content"),
        "second draft": ("00000001", "messages[0].content"),
        "draft stays": ("00000000", "messages[1].content"),
    }
    assert [hit.snippet for hit in both(keep, "draft", all_branches=False)] == ["draft stays"]


def test_a_text_that_several_checkpoints_have_is_found_once_in_the_oldest_that_is_left(keep: Keep) -> None:
    say(keep, "t", "find me", "and more", "and more of it")
    assert [hit.checkpoint for hit in both(keep, "find")] == ["00000000"]
    keep.prune("t", policy=threadkeep.Policy(keep_last=1, keep_branches=False))
    assert [hit.checkpoint for hit in both(keep, "find")] == ["00000002"]


def test_what_only_pruned_checkpoints_said_is_not_found(keep: Keep) -> None:
    chain = Chain(keep.checkpointer)
    chain.put({"note": "secret plan"})
    chain.put({"note": "public plan"})
    assert len(both(keep, "plan")) == 2
    keep.prune("t", policy=threadkeep.Policy(keep_last=1, keep_branches=False))
    assert [hit.snippet for hit in both(keep, "plan")] == ["public plan"]


def test_blocks_tools_and_nested_values_are_read(keep: Keep) -> None:
    blocks: Any = [
        {"type": "text", "text": "one block"},
        {"type": "image", "data": "blob"},
        {"type": "text", "text": "two"},
    ]
    chain = Chain(keep.checkpointer)
    chain.put(
        {
            "messages": [AIMessage(blocks, id="a"), ToolMessage("tool result", tool_call_id="t", id="b")],
            "dicts": [{"role": "user", "content": "as dict"}, {"deep": [{"er": "nested text"}]}],
            "words": ["alpha", "beta", "alpha"],
            "branch:to:x": "internal",
        }
    )
    assert places(both(keep, "block two")) == [("t", "messages[0].content")]
    assert [hit.role for hit in both(keep, "result")] == ["tool"]
    assert [(hit.place, hit.role) for hit in both(keep, "dict")] == [("dicts[0].content", "human")]
    assert places(both(keep, "nested")) == [("t", "dicts[1].deep[0].er")]
    assert places(both(keep, "alpha")) == [("t", "words[0]")]
    assert both(keep, "blob") == ()
    assert both(keep, "internal") == ()


@pytest.mark.parametrize(
    "text", ["nul\x00word", "lone \ud800 surrogate word", "😀 word", "wörd 'word' \"word\" \\ word", "word % _ & | !"]
)
def test_any_text_can_be_indexed(keep: Keep, text: str) -> None:
    chain = Chain(keep.checkpointer, "id ' \" \\ %")
    chain.put({"messages": [{"role": text, "content": text, "id": text}], text: text})
    assert len(both(keep, "word")) == 2
    assert len(both(keep, "word", role=text)) == 1


def test_a_long_text_is_found_by_its_first_sixteen_thousand_words(keep: Keep) -> None:
    many = " ".join(f"w{n}" for n in range(20_000))
    Chain(keep.checkpointer).put({"long": many, "wide": "x" * 3_000_000})
    assert len(both(keep, "w15999")) == 1
    assert both(keep, "w16000") == ()
    assert len(both(keep, "x" * 200)) == 1


def test_namespaces_of_subgraphs_are_searched(keep: Keep) -> None:
    Chain(keep.checkpointer).put({"x": "outer word"})
    Chain(keep.checkpointer, ns="sub:1").put({"x": "inner word"})
    assert {(hit.ns, hit.snippet) for hit in both(keep, "word")} == {("", "outer word"), ("sub:1", "inner word")}


def test_wrong_arguments_are_refused(keep: Keep) -> None:
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (TypeError, {"query": 1}), (ValueError, {"query": "?"}), (TypeError, {"role": 1}), (ValueError, {"limit": -1}),
        (ValueError, {"match": "x"}), (ValueError, {"kind": "x"}), (ValueError, {"since": "x"}),
        (ValueError, {"scan_limit": -1}),
    ]  # fmt: skip
    for error, options in wrong:
        with pytest.raises(error):
            keep.search(**({"query": "x"} | options))


# --- the index


def test_only_changed_threads_are_read(keep: Keep) -> None:
    fill(keep)
    steps: list[tuple[int, int | None, str]] = []
    built = keep.build_search_index(on_progress=lambda *step: steps.append(step))
    assert (built.threads, built.documents, built.skipped) == (4, 11, ())
    assert steps == [(n, 4, id) for n, id in enumerate(["cube/1", "plan", "shop/1", "shop/2"], start=1)]
    assert keep.build_search_index().threads == 0
    say(keep, "new", "hello again")
    keep.delete("plan")
    say_in_cube(keep, "cube/1", "one more")
    assert {hit.thread for hit in both(keep, "hello")} == {"new", "shop/2"}
    say(keep, "new 2", "hello again")
    assert keep.build_search_index().threads == 1
    assert keep.build_search_index(rebuild=True).threads == 5


def test_the_index_is_off_until_it_is_used_and_after_it_was_dropped(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        say(keep, "t", "PECULIAR")  # in the index, it is written small
        assert keep.search("peculiar", scan=True).scanned == 1
        assert b"peculiar" not in everything_stored(lasting_url)
        assert keep.drop_search_index() is False
        assert len(keep.search("peculiar")) == 1
        assert b"peculiar" in everything_stored(lasting_url)
        assert keep.verify().problems == []
        assert keep.drop_search_index() is True
        assert keep.drop_search_index() is False
        keep.erase(prefix="nothing")  # SQLite rewrites the file
        assert b"peculiar" not in everything_stored(lasting_url)
        assert len(keep.search("peculiar")) == 1


def test_what_another_process_wrote_is_found_whatever_its_clock_says(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with threadkeep.open(lasting_url) as keep, threadkeep.open(lasting_url) as other:
        chain = say(other, "t", "first words")
        say(other, "u", "first words")
        assert len(both(keep, "words")) == 2
        now = langgraph_saver.now_ms()
        monkeypatch.setattr(langgraph_saver, "now_ms", lambda: now - HOUR)
        chain.put({"messages": [HumanMessage("late words", id="m0")]})
        say(other, "v", "late words")
        assert keep.build_search_index().threads == 2
        assert {hit.snippet for hit in both(keep, "late words")} == {"late words"}
        other.delete("u")
        assert {hit.thread for hit in both(keep, "words")} == {"t", "v"}


def test_a_deleted_thread_that_was_made_again_says_something_else(keep: Keep) -> None:
    say(keep, "t", "old words", "more")
    assert len(both(keep, "words")) == 1
    keep.delete("t")
    assert both(keep, "words") == ()
    say(keep, "t", "new words", "more")
    assert [hit.snippet for hit in both(keep, "words")] == ["new words"]


def test_deleting_leaves_no_word_in_the_index(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        for thread in ("one", "two", "three", "four"):
            say(keep, thread, "zanzibarine", "ordinary")
        say_in_cube(keep, "cube", "zanzibarine")
        say(keep, "five", "ordinary")
        assert len(keep.search("zanzibarine")) == 5
        assert b"zanzibarine" in everything_stored(lasting_url)
        keep.delete("one")
        keep.checkpointer.delete_thread("two")
        keep.checkpointer.prune(["three"], strategy="delete_all")
        keep.delete("cube")
        receipt = keep.erase(thread_id="four")
        assert receipt.ok
        left = everything_stored(lasting_url)
        assert b"zanzibarine" not in left
        assert b"ordinary" in left


def test_several_keeps_may_bring_the_index_up_to_date_at_once(lasting_url: str) -> None:
    with ExitStack() as stack:
        keeps = [stack.enter_context(threadkeep.open(lasting_url)) for _ in range(4)]
        for n in range(30):
            say(keeps[0], f"t{n}", f"word {n}", "more")

        async def search_all() -> list[SearchResult]:
            return await asyncio.gather(*(keep.asearch("word", limit=100) for keep in keeps))

        found = asyncio.run(search_all())
        assert [len(each) for each in found] == [30] * 4
        assert keeps[0].build_search_index().threads == 0
        assert len(both(keeps[1], "word", limit=100)) == 30


@contextmanager
def counted(backend: str, folder: Path) -> Iterator[tuple[str, Probe]]:
    """Yield a new URL, and what counts statements and bytes there."""
    probe: Any
    if backend == "postgres":
        probe = PostgresProbe(shared_postgres_url())
        url = probe.url
    else:
        probe = SqliteProbe() if backend == "sqlite" else ValkeyProbe()
        url = f"sqlite:///{folder / 'a.db'}" if backend == "sqlite" else valkey_servers.shared().url()
    with probe.installed():
        yield url, probe


@pytest.mark.parametrize("backend", ["sqlite", "postgres", "valkey"])
def test_a_put_costs_the_same_with_an_index_and_without(backend: str, tmp_path: Path) -> None:
    """The same statements, commits, round trips, changed rows and bytes."""
    with counted(backend, tmp_path) as (url, probe), threadkeep.open(url) as keep:
        say(keep, "warm up", "some", "words")
        probe.prepare()

        def cost(thread: str) -> dict[str, float]:
            chain = say(keep, thread, "some", "words")
            before = dict(probe.totals())
            chain.put({"messages": [HumanMessage("some words", id="x")]})
            keep.checkpointer.put_writes(config(thread, chain.last), [("messages", "word")], "task")  # type: ignore[arg-type]
            after = probe.totals()
            return {name: after[name] - before[name] for name in after}

        for n in range(4):
            cost(f"warm up {n}")  # connections prepare their statements
        without = cost("t1")
        assert len(keep.search("words")) == 11
        assert cost("t2") == pytest.approx(without, rel=0.01)  # numbers have more digits or fewer
        assert len(keep.search("words", limit=100)) == 13


# --- an index that is current


@pytest.mark.parametrize(("backend", "counted_as"), [("sqlite", "statements"), ("postgres", "round_trips")])
def test_versions_are_not_compared_while_nothing_is_committed(backend: str, counted_as: str, tmp_path: Path) -> None:
    """One statement looks whether anything was, one searches."""
    with counted(backend, tmp_path) as (url, probe), threadkeep.open(url) as keep:
        say(keep, "t", "some words")
        probe.prepare()
        for _ in range(4):  # connections prepare their statements
            keep.search("words")
        before = probe.totals()[counted_as]
        assert len(keep.search("words")) == 1
        assert probe.totals()[counted_as] - before == 2


OTHER_PROCESS = """
import sys
import threadkeep
from checkpoint_chains import Chain

def put(thread, *notes):
    chain = Chain(keep.checkpointer, thread)
    for note in notes:
        chain.put({"note": note})

with threadkeep.open(sys.argv[1]) as keep:
    exec(sys.argv[2])
"""
KEEP_LAST = "policy=threadkeep.Policy(keep_last=1, keep_branches=False)"
CHANGES = [
    ("put('a', 'word 1')", {"word 1"}),
    ("put('b', 'word 2', 'word 3')", {"word 1", "word 2", "word 3"}),
    ("keep.build_search_index()", {"word 1", "word 2", "word 3"}),
    (f"keep.prune('b', {KEEP_LAST})", {"word 1", "word 3"}),
    ("keep.drop_search_index()", {"word 1", "word 3"}),
    ("keep.drop_search_index(); put('c', 'word 4'); keep.build_search_index()", {"word 1", "word 3", "word 4"}),
    ("keep.delete('a'); put('a', 'word 5')", {"word 3", "word 4", "word 5"}),
    ("keep.tenant('x').delete('a'); put('d', 'nothing')", {"word 3", "word 4", "word 5"}),
    ("keep.erase(thread_id='c')", {"word 3", "word 5"}),
]


def test_the_next_search_sees_each_change_of_another_process(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep, threadkeep.open(lasting_url, read_only=True) as reader:
        keep.setup()
        for change, expected in CHANGES:
            processes.run_forked(OTHER_PROCESS, lasting_url, change)
            for each in (reader, keep, keep, reader):
                assert {hit.snippet for hit in each.search("word")} == expected, change


def test_the_next_search_sees_each_change_of_its_own_process(keep: Keep) -> None:
    """By several connections at once."""
    for n in range(8):
        say(keep, f"t{n}", f"word {n}")

        async def search_at_once() -> list[SearchResult]:
            return await asyncio.gather(*(keep.asearch("word") for _ in range(6)))

        assert [len(found) for found in asyncio.run(search_at_once())] == [n + 1] * 6
    keep.delete("t0")
    assert len(keep.search("word")) == 7


@pytest.mark.parametrize("request_type", [FindChangedThreads, SearchIndex])
@pytest.mark.parametrize("reads_only", [False, True])
def test_a_commit_during_a_search_is_seen_by_the_next_one(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch, request_type: type[Request[Any]], reads_only: bool
) -> None:
    """Another Keep commits after each such request of a search."""
    with threadkeep.open(lasting_url) as other, threadkeep.open(lasting_url, read_only=reads_only) as keep:
        say(other, "t", "word")
        other.build_search_index()
        read, count = keep._session.transport.read, 0

        def read_and_commit(request: Request[Any]) -> Any:
            nonlocal count
            reply = read(request)
            if isinstance(request, request_type):
                count += 1
                say(other, f"new {count}", "word")
            return reply

        for _ in range(3):
            monkeypatch.setattr(keep._session.transport, "read", read_and_commit)
            keep.search("word")
            monkeypatch.undo()
            assert len(keep.search("word")) == count + 1
            assert len(keep.search("word")) == count + 1
        assert count >= 1


def test_a_file_that_was_replaced_or_restored_is_compared(tmp_path: Path) -> None:
    file, copy = tmp_path / "a.db", tmp_path / "copy.db"
    with threadkeep.open(f"sqlite:///{copy}") as keep:
        say(keep, "copied", "a word")
        keep.build_search_index()
        say(keep, "later", "a word")
    with threadkeep.open(f"sqlite:///{file}") as keep:
        say(keep, "t", "a word")
        assert [hit.thread for hit in both(keep, "word")] == ["t"]
        assert [hit.thread for hit in both(keep, "word")] == ["t"]
        with closing(apsw.Connection(str(file))) as target, closing(apsw.Connection(str(copy))) as source:
            with target.backup("main", source, "main") as backup:
                backup.step()
        assert {hit.thread for hit in both(keep, "word")} == {"copied", "later"}
    file.chmod(0o444)
    with threadkeep.open(f"sqlite:///{file}", read_only=True) as reader:
        assert len(reader.search("word")) == 2
        with threadkeep.open(f"sqlite:///{copy}") as keep:
            say(keep, "much later", "a word")
        copy.chmod(0o444)
        copy.replace(file)
        found = reader.search("word")
        assert {hit.thread for hit in found} == {"copied", "later", "much later"}
        assert reader.search("word") == found


def test_a_transaction_that_began_before_a_search_and_ends_after_it_is_seen() -> None:
    """Others that began later have ended by then."""
    (backend,) = (each for each in BACKENDS if each.name == "postgres")
    url = backend.fresh(Path(), 0)
    server, _, query = url.partition("?")
    schema = parse_qs(query)["schema"][0]
    with threadkeep.open(url) as keep, threadkeep.open(url, read_only=True) as reader:
        say(keep, "t", "a word")
        say(keep, "u", "a word")
        keep.build_search_index()
        with psycopg.connect(server, options=f"-c search_path={schema}") as long, psycopg.connect(server) as short:
            long.execute("UPDATE tk_threads SET rev = rev + 1 WHERE id = 't'")
            short.execute("SELECT pg_current_xact_id()")
            short.commit()
            assert [reader.search("word").scanned for _ in range(3)] == [0] * 3
            long.commit()
        assert [reader.search("word").scanned for _ in range(3)] == [1] * 3


def test_versions_are_compared_on_a_standby() -> None:
    """It does not know which transactions are in progress."""
    with postgres_servers.fresh_server() as primary, ExitStack() as stack:
        keep = stack.enter_context(threadkeep.open(primary.url(schema="k")))
        say(keep, "t", "a word")
        keep.build_search_index()
        standby = primary.standby(postgres_servers.fresh_folder(), postgres_servers.free_port(), "s")
        stack.callback(standby.remove)
        standby.start()
        reader = stack.enter_context(threadkeep.open(standby.url(schema="k"), read_only=True))
        assert [len(reader.search("word")) for _ in range(2)] == [1, 1]
        requests = list[type[Request[Any]]]()
        read = reader._session.transport.read
        stack.callback(setattr, reader._session.transport, "read", read)
        reader._session.transport.read = lambda request: requests.append(type(request)) or read(request)
        reader.search("word")
        assert FindChangedThreads in requests


# --- damage


def damage_sqlite(url: str, sql: str) -> None:
    with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as connection:
        connection.execute(sql)


DAMAGES = {
    "a document is garbled": "UPDATE tk_search_texts SET body = CAST('x' AS {blob})",
    "its words are garbled": "UPDATE tk_search_texts SET words = ' word  extra '",
    "its length is wrong": "UPDATE tk_search SET length = 7",
}


@pytest.fixture(params=["sqlite", "postgres"])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (backend,) = (each for each in BACKENDS if each.name == request.param)
    return backend.fresh(tmp_path, 0)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_index_is_built_anew(sql_url: str, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    with threadkeep.open(sql_url) as keep:
        say(keep, "t", "a word", "another word")
        expected = both(keep, "word")
    blob = "BLOB" if sql_url.startswith("sqlite") else "bytea"
    sql_executor(sql_url)(damage.format(blob=blob), {})
    with threadkeep.open(sql_url, read_only=True) as keep:
        found = keep.search("word")
        assert (found.hits, found.scanned) == (expected, 1)
        assert "`threadkeep search --drop` removes the index" in caplog.text
    with threadkeep.open(sql_url) as keep:
        assert both(keep, "word") == expected
    with threadkeep.open(sql_url, read_only=True) as keep:
        assert keep.search("word").scanned == 0


def test_a_damaged_index_on_valkey_is_built_anew() -> None:
    url = valkey_servers.shared().url()
    hosts, _, query = url.partition("://")[2].partition("/?")
    host, _, port = hosts.split(",")[0].partition(":")
    server: Any = RedisCluster(host=host, port=int(port))
    with threadkeep.open(url) as keep:
        say(keep, "t", "a word", "another word")
        expected = both(keep, "word")
        prefix = parse_qs(query)["prefix"][0]
        (key,) = server.scan_iter(f"{prefix}*:fd:*", target_nodes=RedisCluster.PRIMARIES)
        for member, stored in server.hgetall(key).items():
            server.hset(key, member, stored.replace(b"another", b"anether"))
        assert both(keep, "word") == expected
        server.delete(key)
        assert both(keep, "word") == expected


def test_a_missing_document_is_noticed_on_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with threadkeep.open(url) as keep:
        say(keep, "t", "a word", "another word")
        expected = both(keep, "word")
        damage_sqlite(url, "DROP TRIGGER tk_search_removed; DELETE FROM tk_search WHERE n = 1")
        assert both(keep, "word") == expected


def test_rebuild_finds_what_an_index_has_lost(sql_url: str) -> None:
    with threadkeep.open(sql_url) as keep:
        say(keep, "t", "a word", "another word")
        assert len(keep.search("word")) == 2
        sql_executor(sql_url)("DELETE FROM tk_search WHERE n = 1", {})
        assert len(keep.search("word")) == 1
        assert keep.build_search_index(rebuild=True).documents == 2
        assert len(both(keep, "word")) == 2


def test_a_damaged_thread_is_named_and_the_rest_is_found(sql_url: str) -> None:
    with threadkeep.open(sql_url) as keep:
        say(keep, "bad", "a word", "another word", "a third word")
        say(keep, "good", "a word")
        blob = "BLOB" if sql_url.startswith("sqlite") else "bytea"
        sql_executor(sql_url)(
            f"UPDATE tk_checkpoints SET body = CAST('x' AS {blob}) WHERE id = CAST('00000002' AS {blob})", {}
        )
        for _ in range(2):
            indexed, scanned = keep.search("word"), keep.search("word", scan=True)
            assert indexed.hits == scanned.hits
            assert {hit.thread for hit in indexed} == {"bad", "good"}
            assert (indexed.skipped, indexed.complete) == (scanned.skipped, scanned.complete) == (("bad",), False)


# --- without an index


def test_a_read_only_keep_reads_what_the_index_does_not_have(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep, threadkeep.open(lasting_url, read_only=True) as reader:
        fill(keep)
        unindexed = reader.search("refund")
        assert unindexed.scanned == 4
        keep.build_search_index()
        assert reader.search("refund") == SearchResult(unindexed.hits)
        say(keep, "shop/3", "a refund")
        say(keep, "shop/1", "What is your refund policy?")
        mixed = reader.search("refund")
        assert mixed.scanned == 2
        assert mixed.hits == keep.search("refund", scan=True).hits
        assert reader.search("refund", prefix="shop/3").scanned == 1
        assert reader.search("refund", metadata={"user": "bob"}).scanned == 0
        assert both(keep, "refund") == mixed.hits
        with pytest.raises(errors.ReadOnly):
            reader.drop_search_index()
        say(keep, "shop/4", "a refund")
        with pytest.raises(errors.ReadOnly):
            reader.build_search_index()


def test_a_scan_stops_at_its_limit_and_says_so(keep: Keep) -> None:
    fill(keep)
    steps: list[tuple[int, int | None, str]] = []
    found = keep.search("refund", scan=True, scan_limit=2, on_progress=lambda *step: steps.append(step))
    assert (found.scanned, found.complete) == (2, False)
    assert {hit.thread for hit in found} == {"cube/1", "plan"}
    assert [id for _, _, id in steps] == ["cube/1", "plan"]
    assert keep.search("refund", scan=True, scan_limit=4).complete


@pytest.mark.parametrize("hide_ids", [False, True])
def test_an_encrypted_storage_is_scanned_and_stores_no_word(fresh_url: Callable[[], str], hide_ids: bool) -> None:
    url = fresh_url()
    with threadkeep.open(fresh_url()) as plain, threadkeep.open(url, keys=KEYS, hide_ids=hide_ids) as keep:
        fill(plain)
        fill(keep)
        found = keep.search("refund")
        assert found.scanned == 4
        assert places(found) == places(plain.search("refund"))
        with pytest.raises(ValueError, match="encrypted"):
            keep.build_search_index()
        assert keep.drop_search_index() is False
        if not url.startswith("memory"):
            assert b"refund" not in everything_stored(url)


def test_encrypting_a_storage_drops_its_index(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        say(keep, "t", "zanzibarine")
        keep.build_search_index()
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        keep.encrypt()
        assert b"zanzibarine" not in everything_stored(lasting_url)
        assert keep.search("zanzibarine").scanned == 1
    with threadkeep.open(lasting_url) as keep, pytest.raises(errors.WrongKey):
        keep.search("zanzibarine")


# --- tenants, copies and transfers


def test_verify_and_compact_take_the_index_as_it_is(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        say(keep, "t", "a word")
        say(keep, "gone", "a word")
        assert len(keep.search("word")) == 2
        keep.delete("gone")
        keep.compact()
        assert keep.verify().problems == []
        assert [hit.thread for hit in both(keep, "word")] == ["t"]


def test_tenants_do_not_see_each_other(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        tenants = [keep, keep.tenant("a"), keep.tenant("b")]
        for n, each in enumerate(tenants):
            say(each, "t", f"word of tenant {n}")
        for n, each in enumerate(tenants):
            assert [hit.snippet for hit in both(each, "word")] == [f"word of tenant {n}"]
        assert tenants[1].drop_search_index() is True
        assert tenants[2].build_search_index().threads == 0
        assert len(both(tenants[1], "word")) == 1
        keep.drop_tenant("b")
        keep.erase(prefix="nothing")  # SQLite rewrites the file
        assert b"tenant 2" not in everything_stored(lasting_url)
        assert len(both(keep, "word")) == 1
        assert both(keep.tenant("b"), "word") == ()


def test_copies_and_forks_are_found(keep: Keep) -> None:
    say(keep, "t", "a word", "another word")
    keep.build_search_index()
    keep.copy("t", "copy")
    keep.fork("t", to="fork")
    keep.rollback("t", "latest~1")
    assert {hit.thread for hit in both(keep, "another word")} == {"t", "copy", "fork"}
    assert [hit.thread for hit in both(keep, "another word", all_branches=False)] != []
    assert "t" not in {hit.thread for hit in both(keep, "another word", all_branches=False)}


def test_what_was_moved_is_found(fresh_url: Callable[[], str], tmp_path: Path) -> None:
    with ExitStack() as stack:
        source, imported, converted = (stack.enter_context(threadkeep.open(fresh_url())) for _ in range(3))
        fill(source)
        expected = both(source, "refund")
        for target in (imported, converted):
            target.build_search_index()
        file = tmp_path / "export.jsonl"
        source.export(file)
        imported.import_portable(file)
        assert [hit.snippet for hit in both(imported, "refund")] == [hit.snippet for hit in expected]
        assert set(places(both(imported, "refund"))) == set(places(expected))


def test_what_was_converted_is_found(lasting_url: str, tmp_path: Path) -> None:
    with threadkeep.open(lasting_url) as keep:
        fill(keep)
        expected = both(keep, "refund")
    target = f"sqlite:///{tmp_path / 'target.db'}"
    threadkeep.convert(lasting_url, target)
    with threadkeep.open(target) as keep:
        assert set(places(both(keep, "refund"))) == set(places(expected))


# --- the command


def test_the_command_searches_builds_and_drops(lasting_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*args: str) -> str:
        assert run(["search", *args, "--url", lasting_url]) == 0
        return capsys.readouterr().out

    with threadkeep.open(lasting_url) as keep:
        fill(keep)
    text = command("refund", "everything")
    assert "shop/1" in text
    assert "We refund everything. The policy is simple." in text
    assert "scanned 4 threads" in text
    assert "read 4 changed threads with 11 texts" in command("--build")
    assert "scanned" not in command("refund")
    assert "scanned 4 threads" in command("refund", "--scan")
    assert "nothing found" in command("refund", "--role", "tool")
    found = json.loads(
        command('"refund policy"', "--prefix", "shop", "--metadata", "user=ada", "--limit", "1", "--json")
    )
    assert [hit["place"] for hit in found["hits"]] == ["messages[0].content"]
    assert (found["scanned"], found["complete"]) == (0, True)
    assert "raise --scan-limit" in command("refund", "--scan", "--scan-limit", "1")
    assert "dropped" in command("--drop")
    assert "no search index" in command("--drop")
    assert "shop/2" in command("cafe", "--build")
    assert run(["search", "--url", lasting_url]) == 2
    assert run(["search", "x", "--drop", "--url", lasting_url]) == 2


def test_the_command_says_why_it_has_scanned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"k1:{base64.b64encode(bytes(32)).decode()}\n")
    keys.chmod(0o600)
    for name, options, reason in (
        ("plain.db", [], ": not in the search index, or changed since (see --build)"),
        ("plain.db", ["--scan"], ""),
        ("sealed.db", ["--keys", str(keys)], ": an encrypted storage has no search index"),
    ):
        url = f"sqlite:///{tmp_path / name}"
        with threadkeep.open(url, keys=threadkeep.Keys.from_file(keys) if "--keys" in options else None) as keep:
            say(keep, "t", "a word")
        assert run(["search", "word", *options, "--url", url]) == 0
        assert f"scanned 1 thread{reason}" in capsys.readouterr().out.splitlines()


def test_a_match_is_bold_and_stored_text_is_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with threadkeep.open(url) as keep:
        say(keep, "t", "an \x1b[31m escape and a word")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(["search", "word", "--url", url]) == 0
    out = capsys.readouterr().out
    assert "\x1b[1mword\x1b[0m" in out
    assert "\x1b[31m" not in out
    assert "\\x1b[31m" in out


# --- a model

WORDS = ("red", "green", "blue", "red green", "green red blue")
TEXTS = st.lists(
    st.sampled_from(["red", "green", "blue", "Red.", "GREEN!", "blüe", "x", "y"]), min_size=1, max_size=4
).map(" ".join)
THREADS = ("a", "b")


class SearchMachine(RuleBasedStateMachine):
    """Two Keeps change threads, and each search finds what a plain loop over their checkpoints does."""

    fresh: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        url = self.fresh()
        with threadkeep.open(url) as keep:
            keep.setup()
        self.stack = ExitStack()
        self.keep = self.stack.enter_context(threadkeep.open(url))
        is_memory = url.startswith("memory")
        self.other = self.keep if is_memory else self.stack.enter_context(threadkeep.open(url))
        self.reader = None if is_memory else self.stack.enter_context(threadkeep.open(url, read_only=True))
        self.chains: dict[str, Chain] = {}
        self.states: dict[str, dict[str, list[tuple[str, str]]]] = {}
        """The messages of each checkpoint of each thread, as (id, text)."""
        self.count = 0

    def teardown(self) -> None:
        self.stack.close()

    def put(self, thread: str, messages: list[tuple[str, str]], *, other: bool) -> None:
        chain = self.chains.setdefault(thread, Chain(None, thread))
        chain.saver = (self.other if other else self.keep).checkpointer
        self.count += 1
        id = f"{self.count:08}"
        chain.put({"messages": [HumanMessage(text, id=name) for name, text in messages]}, id=id)
        self.states.setdefault(thread, {})[id] = messages

    def latest(self, thread: str) -> list[tuple[str, str]]:
        states = self.states.get(thread)
        return list(states[max(states)]) if states else []

    @rule(thread=st.sampled_from(THREADS), text=TEXTS, other=st.booleans())
    def add(self, thread: str, text: str, other: bool) -> None:
        self.put(thread, [*self.latest(thread), (f"id{self.count}", text)], other=other)

    @rule(thread=st.sampled_from(THREADS), text=TEXTS, at=st.integers(0, 5), other=st.booleans())
    def edit(self, thread: str, text: str, at: int, other: bool) -> None:
        messages = self.latest(thread)
        if messages:
            messages[at % len(messages)] = (messages[at % len(messages)][0], text)
            self.put(thread, messages, other=other)

    @rule(thread=st.sampled_from(THREADS), at=st.integers(0, 5), other=st.booleans())
    def remove(self, thread: str, at: int, other: bool) -> None:
        messages = self.latest(thread)
        if messages:
            del messages[at % len(messages)]
            self.put(thread, messages, other=other)

    @rule(thread=st.sampled_from(THREADS), keep_last=st.integers(1, 3))
    def prune(self, thread: str, keep_last: int) -> None:
        if thread in self.states:
            self.other.prune(thread, policy=threadkeep.Policy(keep_last=keep_last, keep_branches=False))
            kept = {info.id for info in self.keep.log(thread)}
            self.states[thread] = {id: state for id, state in self.states[thread].items() if id in kept}
            assert len(self.states[thread]) <= keep_last

    @rule(thread=st.sampled_from(THREADS), erases=st.booleans())
    def delete(self, thread: str, erases: bool) -> None:
        if erases:
            self.other.erase(thread_id=thread)
        else:
            self.keep.delete(thread)
        self.states.pop(thread, None)
        self.chains.pop(thread, None)

    @rule()
    def drop_index(self) -> None:
        self.keep.drop_search_index()

    @rule()
    def build_index(self) -> None:
        self.other.build_search_index()

    @rule(query=st.sampled_from(WORDS), limit=st.integers(1, 8), current=st.booleans())
    def search(self, query: str, limit: int, current: bool) -> None:
        options: dict[str, Any] = {"all_branches": not current}
        everything = self.keep.search(query, limit=1000, **options)
        assert everything.hits == self.keep.search(query, limit=1000, scan=True, **options).hits
        assert self.other.search(query, limit=limit, **options).hits == everything.hits[:limit]
        found = {(hit.thread, hit.message_id, hit.checkpoint, hit.place) for hit in everything}
        assert found == set(self.expected(query, current=current))
        assert len(found) == len(everything)

    @precondition(lambda self: self.reader is not None)
    @rule(query=st.sampled_from(WORDS))
    def search_read_only(self, query: str) -> None:
        assert self.reader is not None
        found = self.reader.search(query, limit=1000)
        assert found.hits == self.keep.search(query, limit=1000, scan=True).hits

    def expected(self, query: str, *, current: bool) -> Iterator[tuple[str, str, str, str]]:
        for thread, states in self.states.items():
            seen: set[tuple[str, str]] = set()
            last = states[max(states)]
            for id in sorted(states):
                for n, message in enumerate(states[id]):
                    if message not in seen and (not current or message in last) and _has(message[1], query):
                        yield thread, message[0], id, f"messages[{n}].content"
                    seen.add(message)


def _has(text: str, query: str) -> bool:
    said = {word.strip(".!").lower().replace("ü", "u") for word in text.split()}
    return set(query.split()) <= said


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_searches_find_what_the_model_does(backend: Backend, tmp_path: Path) -> None:
    numbers = iter(range(1_000_000))
    machine = type("Machine", (SearchMachine,), {"fresh": lambda _self: backend.fresh(tmp_path, next(numbers))})
    few = {"memory": 40, "sqlite": 25, "postgres": 10, "valkey": 2}[backend.name]
    settings = machine_settings(few=few, many=10 * few, few_steps=25)
    run_state_machine_as_test(machine, settings=settings)
