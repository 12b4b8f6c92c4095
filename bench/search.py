"""Measures a search among 10,000 threads of 40 messages, beside the database's own full-text query over the same texts.

    python bench/search.py [--threads 10000] [--postgres]      (make bench-search)

Both take turns. The database's own query is what one would write by hand: a table of messages with an index by FTS5 or
tsvector, the twenty best by bm25 or ts_rank, each with its snippet or headline. Ours also finds out, at each search,
whether anything was committed. Words are random, their frequencies follow Zipf's law.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import apsw
import psycopg
from langchain_core.messages import AIMessage, HumanMessage
from rich.console import Console
from rich.table import Table

import threadkeep
from measuring import medians

sys.path.append(str(Path(__file__).parents[1] / "tests"))
MESSAGES, PER_CHECKPOINT, WORDS, ROUNDS, HITS, CHANGED = 40, 10, 20_000, 21, 20, 10
RANKS = {"one rare word": (9_000,), "one word": (300,), "one frequent word": (10,), "two words": (40, 60),
         "two frequent words": (10, 12), "three words": (10, 20, 30)}  # fmt: skip
"""What is searched for: words by their place in the order of frequency."""

Query = Callable[[list[str]], Any]


def word(rank: int) -> str:
    """Return a word that no other one starts with."""
    return "".join("bdfgklmnprstvz"[rank // 14**n % 14] + "aeiou"[(rank + n) % 5] for n in range(4))


def texts(threads: int) -> Iterator[list[str]]:
    """Yield the messages of each thread."""
    source, ranks = random.Random(1), range(1, WORDS + 1)
    weights = list(accumulate(1 / rank for rank in ranks))
    for _ in range(threads):
        lengths = [source.randint(5, 60) for _ in range(MESSAGES)]
        chosen = iter(source.choices(ranks, cum_weights=weights, k=sum(lengths)))
        yield [" ".join(word(next(chosen)) for _ in range(length)) for length in lengths]


def fill(keep: threadkeep.Keep, threads: int) -> None:
    chains = importlib.import_module("checkpoint_chains")
    for n, said in enumerate(texts(threads)):
        chain, messages = chains.Chain(keep.checkpointer, f"t{n:05}"), list[Any]()
        for at, text in enumerate(said, start=1):
            messages = [*messages, (AIMessage if at % 2 else HumanMessage)(text, id=f"m{at}")]
            if at % PER_CHECKPOINT == 0:
                chain.put({"messages": messages})


def change(keep: threadkeep.Keep) -> None:
    chains = importlib.import_module("checkpoint_chains")
    for n in range(CHANGED):
        chain = chains.Chain(keep.checkpointer, f"t{n:05}")
        chain.put({"messages": [HumanMessage("something else", id="new")]}, id="99999999")


@contextmanager
def sqlite(threads: int) -> Iterator[tuple[str, Query]]:
    with tempfile.TemporaryDirectory() as folder:
        own = apsw.Connection(f"{folder}/own.db")
        own.execute(
            "PRAGMA journal_mode = WAL; CREATE VIRTUAL TABLE messages USING fts5(thread UNINDEXED, text)"
        ).fetchall()
        with own:
            for n, said in enumerate(texts(threads)):
                own.executemany("INSERT INTO messages VALUES (?, ?)", [(f"t{n:05}", text) for text in said])
        own.execute("INSERT INTO messages (messages) VALUES ('optimize')")
        sql = """
            SELECT thread, snippet(messages, 1, '[', ']', '…', 20), rank FROM messages WHERE messages MATCH ?
            ORDER BY rank LIMIT ?
        """
        yield f"sqlite:///{folder}/keep.db", lambda words: own.execute(sql, (" AND ".join(words), HITS)).fetchall()


@contextmanager
def postgres(threads: int) -> Iterator[tuple[str, Query]]:
    servers = importlib.import_module("postgres_servers")
    with servers.fresh_server(servers.DURABLE) as server:
        url = servers.fresh_schema(server)
        with psycopg.connect(url.partition("?")[0], autocommit=True) as own:
            own.execute(
                "CREATE TABLE messages (thread text, text text, words tsvector GENERATED ALWAYS AS "
                "(to_tsvector('simple', text)) STORED)"
            )
            with own.cursor().copy("COPY messages (thread, text) FROM STDIN") as copy:
                for n, said in enumerate(texts(threads)):
                    for text in said:
                        copy.write_row((f"t{n:05}", text))
            own.execute("CREATE INDEX ON messages USING gin (words)")
            own.execute("VACUUM (ANALYZE) messages")
            sql = """
                SELECT thread, ts_headline('simple', text, query), rank FROM (
                    SELECT thread, text, query, ts_rank(words, query) AS rank
                    FROM messages, to_tsquery('simple', %s) AS query WHERE words @@ query ORDER BY rank DESC LIMIT %s
                ) AS best
            """
            yield url, lambda words: own.execute(sql, (" & ".join(words), HITS)).fetchall()


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    value = run()
    return value, time.perf_counter() - start


def measure(console: Console, name: str, url: str, query: Query, threads: int) -> None:
    with threadkeep.open(url) as keep:
        _, filled = timed(lambda: fill(keep, threads))
        before = keep.stats().storage
        built, building = timed(keep.build_search_index)
        after = keep.stats().storage
        assert (built.threads, built.documents) == (threads, threads * MESSAGES)
        assert before is not None
        assert after is not None
        console.print(
            f"{name}: {threads:,} threads were written in {filled:.0f} s and indexed in {building:.0f} s; the storage "
            f"had {before.bytes / 1e6:.0f} MB without the index and has {after.bytes / 1e6:.0f} MB with it"
        )
        compare(console, keep, query)
        change(keep)
        updated, updating = timed(keep.build_search_index)
        assert updated.threads == CHANGED
        console.print(f"{CHANGED} threads changed: {updated.threads} were read, in {updating * 1000:.0f} ms")
        _, scanning = timed(lambda: keep.search(word(300), scan=True, scan_limit=500))
        console.print(f"a scan reads {500 / scanning:,.0f} threads a second")


def compare(console: Console, keep: threadkeep.Keep, query: Query) -> None:
    """Search in turns: in threadkeep, whose index is current, and by the database's own query."""
    table = Table("search for", "matches", "ours, ms", "the database's, ms", "ratio")
    for what, ranks in RANKS.items():
        words = [word(rank) for rank in ranks]
        found = keep.search(" ".join(words), limit=10_000_000)
        contenders = {
            "ours": partial(keep.search, " ".join(words), limit=HITS),
            "theirs": partial(query, words),
        }
        ours, theirs = medians(contenders, ROUNDS).values()
        table.add_row(what, f"{len(found):,}", f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.2f}x")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=10_000)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    console = Console()
    for name, storage in [("SQLite", sqlite)] + [("PostgreSQL", postgres)] * options.postgres:
        with storage(options.threads) as (url, query):
            measure(console, name, url, query, options.threads)


if __name__ == "__main__":
    main()
