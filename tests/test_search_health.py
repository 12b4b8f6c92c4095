"""verify of the search index: on every backend, whole and damaged; and what a search does with a damaged index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import apsw
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from redis.cluster import RedisCluster

import threadkeep
import valkey_servers
from checkpoint_chains import Chain
from conftest import BACKENDS
from damaged_memories import sql_executor
from encrypted_keeps import KEYS
from rich_threads import write_cube_thread, write_thread
from sync_async import Ask
from threadkeep import Keep
from threadkeep.backends.sqlite import dialect
from threadkeep.engine.health.verify_search import SEARCH
from threadkeep.engine.search.requests import IndexThreads
from threadkeep.jobs import verify as verify_job


def say(keep: Keep, thread: str, *texts: str) -> Chain:
    chain, messages = Chain(keep.checkpointer, thread), list[Any]()
    for n, text in enumerate(texts):
        messages = [*messages, (AIMessage if n % 2 else HumanMessage)(text, id=f"m{n}")]
        chain.put({"messages": messages})
    return chain


def fill(keep: Keep) -> None:
    say(keep, "t", "a word", "another word, and a word more", "the last word")
    say(keep, "u", "word")
    keep.build_search_index()


def found(keep: Keep) -> list[str]:
    """Return what `verify` says about the index. Nothing else is wrong."""
    problems = keep.verify().problems
    assert {problem.problem for problem in problems} <= {SEARCH}
    assert all("threadkeep search --drop" in problem.message for problem in problems)
    return [problem.message for problem in problems]


def check_search(keep: Keep) -> None:
    """A search returns no hit that is not there."""
    for query in ("word", "bogus", "another"):
        scanned = keep.search(query, scan=True)
        assert set(keep.search(query).hits) <= set(scanned.hits)


def check_repair(keep: Keep) -> None:
    keep.drop_search_index()
    assert found(keep) == []
    keep.build_search_index()
    assert found(keep) == []
    assert keep.search("word").hits == keep.search("word", scan=True).hits


# --- an index that is whole


@pytest.fixture(params=["whole", "a page each"])
def pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the index in few parts, or in many."""
    if request.param != "whole":
        monkeypatch.setattr(verify_job, "_INDEXED_THREADS", 1)
        monkeypatch.setattr(dialect, "_TERM_ROWS", 3)


@pytest.mark.usefixtures("pages")
def test_a_whole_index_has_no_problems(keep: Keep, ask: Ask) -> None:
    write_thread(keep, "rich")
    write_cube_thread(keep, "talk")
    say(keep, "t", "Straße, déjà vu: \U0001f99c 東京", "word " * 300, "\ud800 and 0")
    assert ask(keep, "verify").problems == []
    keep.build_search_index()
    assert ask(keep, "verify").problems == []
    say(keep, "not indexed yet", "a word")
    keep.prune("rich", policy=threadkeep.Policy(keep_last=1))
    keep.delete("talk")
    assert ask(keep, "verify").problems == []


def test_the_indexes_of_two_tenants_are_checked(fresh_url: Callable[[], str]) -> None:
    with threadkeep.open(fresh_url()) as keep:
        for each in (keep, keep.tenant("other")):
            say(each, "t", "a word")
            each.build_search_index()
        assert keep.verify().problems == keep.tenant("other").verify().problems == []


def test_an_encrypted_storage_has_no_index_to_check(fresh_url: Callable[[], str]) -> None:
    with threadkeep.open(fresh_url(), keys=KEYS) as keep:
        say(keep, "t", "a word")
        assert len(keep.search("word")) == 1
        assert keep.verify().problems == []


def test_a_read_only_keep_checks_the_index(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        fill(keep)
    with threadkeep.open(lasting_url, read_only=True) as keep:
        assert found(keep) == []


def test_a_thread_that_changes_while_it_is_compared_is_no_problem(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(keep)
    compare = verify_job.verify_indexed_thread

    async def change_and_compare(*args: Any) -> Any:
        say(keep, "u", "word")
        Chain(keep.checkpointer, "t").put({"messages": [HumanMessage("later", id="later")]}, id="99999999")
        return await compare(*args)

    monkeypatch.setattr(verify_job, "verify_indexed_thread", change_and_compare)
    assert keep.verify().problems == []


# --- a damaged index, in SQL

SOMEWHERE = "(SELECT min(doc) FROM tk_search_texts WHERE words LIKE '%another%')"
DAMAGES = {
    "a document is missing": ("DELETE FROM tk_search WHERE n = 1", "does not have 1 texts of thread 't'"),
    "its text is missing": ("DELETE FROM tk_search_texts WHERE words LIKE '%another%'", "checksum"),
    "its number is another one": ("UPDATE tk_search SET n = 9 WHERE n = 1", "checksum"),
    "its text is garbled": ("UPDATE tk_search_texts SET body = CAST('x' AS {blob})", "checksum"),
    "its words are garbled": ("UPDATE tk_search_texts SET words = ' word  bogus '", "checksum"),
    "its length is wrong": ("UPDATE tk_search SET length = 7", "checksum"),
    "it belongs to another thread": (
        "UPDATE tk_search SET thread = (SELECT thread FROM tk_threads WHERE id = CAST('u' AS {blob})) WHERE n = 2",
        "checksum",
    ),
}
SQLITE_DAMAGES = {
    "no word leads to it": (
        f"""
        INSERT INTO tk_search_words (tk_search_words, rowid, terms)
        SELECT 'delete', doc, words || repeated FROM tk_search_texts WHERE doc = {SOMEWHERE}
        """,
        "does not find messages[1].content by its words",
    ),
    "another word leads to it": (
        f"INSERT INTO tk_search_words (rowid, terms) VALUES ({SOMEWHERE}, ' bogus ')",
        "words of 1 texts that do not have them",
    ),
    "a word leads to nothing": (
        "INSERT INTO tk_search_words (rowid, terms) VALUES (999, ' bogus ')",
        "words of 1 texts that do not have them",
    ),
    "its repeated words are wrong": (
        "UPDATE tk_search_texts SET repeated = 'x' WHERE words LIKE '%another%'",
        "more than once are wrong",
    ),
    "its text was left": (
        "DROP TRIGGER tk_search_removed; DELETE FROM tk_search WHERE n = 1",
        "1 texts of the search index belong to nothing",
    ),
    "it was left": (
        "DROP TRIGGER tk_search_forgotten; DELETE FROM tk_search_threads",
        "4 documents of the search index belong to nothing",
    ),
    "the index of words is garbled": (
        "UPDATE tk_search_words_data SET block = zeroblob(20) WHERE id > 10",
        "the search index cannot be read",
    ),
}
POSTGRES_DAMAGES = {
    "other words lead to it": (
        "UPDATE tk_search SET terms = array_to_tsvector(ARRAY['bogus']) WHERE n = 1",
        "does not find messages[1].content by its words",
    ),
}


def fresh(name: str, folder: Path) -> str:
    (backend,) = (each for each in BACKENDS if each.name == name)
    return backend.fresh(folder, 0)


def cases() -> Iterator[Any]:
    for backend, own in (("sqlite", SQLITE_DAMAGES), ("postgres", POSTGRES_DAMAGES)):
        for name, damage in {**DAMAGES, **own}.items():
            yield pytest.param(backend, *damage, id=f"{backend}: {name}")


def break_index(url: str, sql: str) -> None:
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        connection.execute(sql.format(blob="BLOB"))
        connection.close()
    else:
        sql_executor(url)(sql.format(blob="bytea").replace("%", "%%"), {})


@pytest.mark.parametrize(("backend", "sql", "message"), list(cases()))
def test_damage_is_found_and_no_search_returns_it(
    backend: str, sql: str, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    url = fresh(backend, tmp_path)
    with threadkeep.open(url) as keep:
        fill(keep)
    break_index(url, sql)
    with threadkeep.open(url) as keep:
        assert message in " ".join(found(keep))
        check_search(keep)
        check_repair(keep)


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_version_that_the_index_does_not_have_is_found(backend: str, tmp_path: Path) -> None:
    url = fresh(backend, tmp_path)
    with threadkeep.open(url) as keep:
        fill(keep)
        say(keep, "new", "a word")
        later = [HumanMessage(text, id=f"m{n}") for n, text in enumerate(["a word", "a later word"])]
        Chain(keep.checkpointer, "u").put({"messages": later}, id="99999999")
        break_index(
            url,
            "UPDATE tk_search_threads "
            "SET rev = (SELECT t.rev FROM tk_threads t WHERE t.thread = tk_search_threads.thread)",
        )
        assert "of thread 'u', the first at messages[" in " ".join(found(keep))
        check_search(keep)
        check_repair(keep)


def test_a_thread_that_does_not_exist_is_found_in_the_index(tmp_path: Path) -> None:
    url = fresh("sqlite", tmp_path)
    with threadkeep.open(url) as keep:
        fill(keep)
        break_index(url, "DROP TRIGGER tk_search_dropped")
        keep.delete("u")
        assert "which does not exist" in " ".join(found(keep))
        check_search(keep)
        check_repair(keep)


# --- a damaged index, elsewhere


VALKEY_DAMAGES: dict[str, tuple[Callable[[Any, Callable[[str], Any]], object], str]] = {
    "nothing that a thread says": (lambda server, key: server.delete(key("fd")), "nothing that thread"),
    "no words": (lambda server, key: server.delete(key("fw")), "does not find thread"),
    "another word": (
        lambda server, key: server.zadd(key("fw"), {b"bogus\0" + next(iter(server.hkeys(key("fd")))): 0}),
        "1 words that lead to nothing",
    ),
    "texts of no thread": (lambda server, key: server.hset(key("fd"), b"x", b"y"), "texts of 1 threads"),
    "no versions": (lambda server, key: server.delete(key("fv")), "texts of 1 threads"),
    "an unknown thread": (
        lambda server, key: server.hset(key("fv"), next(iter(server.hkeys(key("fv")))) + b"x", b"1:1"),
        "which does not exist",
    ),
    "the texts of another thread": (
        lambda server, key: server.hset(key("fd"), next(iter(server.hkeys(key("fd")))), b"word\n00000000[]"),
        "does not match its checksum",
    ),
}


@pytest.mark.parametrize(("damage", "message"), VALKEY_DAMAGES.values(), ids=VALKEY_DAMAGES)
def test_damage_is_found_on_valkey(damage: Callable[..., object], message: str) -> None:
    url = valkey_servers.shared().url()
    hosts, _, query = url.partition("://")[2].partition("/?")
    host, _, port = hosts.split(",")[0].partition(":")
    server: Any = RedisCluster(host=host, port=int(port))
    prefix = parse_qs(query)["prefix"][0]
    with threadkeep.open(url) as keep:
        fill(keep)
        keys = {what: sorted(server.scan_iter(f"{prefix}*:{what}:*", target_nodes=RedisCluster.PRIMARIES))
                for what in ("fv", "fd", "fw")}  # fmt: skip
        damage(server, lambda what: keys[what][0])
        assert message in " ".join(found(keep))
        check_search(keep)
        check_repair(keep)


def test_damage_is_found_in_memory() -> None:
    with threadkeep.open("memory://") as keep:
        fill(keep)
        transport: Any = keep._session.transport
        index = transport._backend._search._indexes[""]
        (key,) = (key for key in index.threads if key.id == "t")
        said = index.threads[key]
        transport.write([IndexThreads("", (said._replace(documents=said.documents[1:]),))])
        assert "does not have 1 texts" in " ".join(found(keep))
        index.by_word["bogus"] = {key}
        index.by_word["last"].discard(key)
        messages = " ".join(found(keep))
        assert "by 1 of its words" in messages
        check_repair(keep)
