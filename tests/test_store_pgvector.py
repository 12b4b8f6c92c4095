"""Vectors on PostgreSQL with pgvector: who ranks them, that the index finds the nearest, and what happens without it.

The thresholds are low, so that some thousand vectors are many: `FEW` are compared one by one, a client caches `MOST`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import postgres_servers
import processes
import stored_memories
import threadkeep
from threadkeep.backends.postgres import pgvector
from vector_stores import Document, QueryPlans, VectorStore, around, clustered, put_documents, search

FEW, MOST, EVERY = 200, 300, 1_000_000
COUNT, QUERIES = 3_000, 20
NOTES = [Document(("notes", f"user-{n % 4}"), f"k{n}", (n,), kind=n % 3) for n in range(COUNT - 100)]
OTHERS = [Document(("others", "user-1"), f"k{n}", (n,), kind=n % 3) for n in range(COUNT - 100, COUNT)]
BOOKS = NOTES + OTHERS
KIND = {"kind": 1}
PREFIXES = {"the partition": ("notes",), "a deeper prefix": ("notes", "user-2"), "everything": ()}
MEASURES = ["cosine", "inner_product", "l2"]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgvector, "_FEW", FEW)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> QueryPlans:
    return QueryPlans(monkeypatch)


def filled(vector_store: VectorStore, documents: list[Document]) -> VectorStore:
    with vector_store.open(EVERY) as keep:
        put_documents(keep, documents)
    return vector_store


def indexed(vector_store: VectorStore, documents: list[Document]) -> VectorStore:
    """Fill a store, and let a Keep find that it is large."""
    filled(vector_store, documents)
    with vector_store.open(1) as keep:
        search(keep, documents[0].namespace[:1], 0)
        vector_store.wait_for_index()
    return vector_store


@pytest.fixture(scope="module")
def library() -> VectorStore:
    return indexed(VectorStore(clustered(COUNT + QUERIES)), BOOKS)


@pytest.fixture
def keep(library: VectorStore) -> Iterator[threadkeep.Keep]:
    with library.open(MOST) as opened:
        yield opened


def singles(
    rows: int, *, start: int = 0, namespace: tuple[str, ...] = ("a",), ttl: float | None = None
) -> list[Document]:
    return [Document(namespace, f"k{n}", (n,), ttl=ttl) for n in range(start, start + rows)]


def recall(
    keep: threadkeep.Keep, vector_store: VectorStore, prefix: tuple[str, ...], documents: list[Document], **options: Any
) -> float:
    """Return the recall of the ten nearest, over all questions."""
    questions = range(len(vector_store.rows) - QUERIES, len(vector_store.rows))
    hits = [vector_store.nearest(n, documents).keys() & search(keep, prefix, n, **options).keys() for n in questions]
    return sum(map(len, hits)) / (10 * QUERIES)


# --- who ranks


def test_a_small_partition_is_ranked_by_the_client_and_has_no_index(watched: QueryPlans) -> None:
    vector_store = VectorStore(clustered(400))
    documents = singles(MOST)
    with vector_store.open(MOST) as keep:
        put_documents(keep, documents)
        assert search(keep, ("a",), 350).keys() == vector_store.nearest(350, documents).keys()
    assert watched.plans == []
    assert vector_store.indexes() == []


def test_a_large_partition_is_ranked_by_the_database_and_gets_an_index(watched: QueryPlans) -> None:
    vector_store = VectorStore(clustered(400))
    documents = singles(MOST + 1)
    with vector_store.open(MOST) as keep:
        put_documents(keep, documents)
        assert search(keep, ("a",), 350).keys() == vector_store.nearest(350, documents).keys()
        vector_store.wait_for_index()
    assert watched.plans


def test_a_partition_that_grows_goes_over_to_the_database(watched: QueryPlans) -> None:
    vector_store = VectorStore(clustered(2000))
    with vector_store.open(MOST) as keep:
        put_documents(keep, singles(MOST))
        search(keep, ("a",), 1999)
        put_documents(keep, singles(1500, start=MOST))
        for _ in range(3):
            near = search(keep, ("a",), 1999)
        assert near.keys() == vector_store.nearest(1999, singles(1500 + MOST)).keys()
        assert watched.plans
        vector_store.wait_for_index()


def test_the_index_is_used_with_and_without_statistics(watched: QueryPlans) -> None:
    vector_store = VectorStore(clustered(1620))
    with vector_store.open(MOST) as keep:
        keep.store.setup()
        vector_store.execute("ALTER TABLE {schema}.tk_vectors SET (autovacuum_enabled = false)")
        put_documents(keep, NOTES[:1600])
        search(keep, ("notes",), 1600)
        vector_store.wait_for_index()
        watched.plans.clear()
        for _ in range(2):
            for prefix in PREFIXES.values():
                search(keep, prefix, 1600)
                assert watched.by_index(vector_store.index)
            vector_store.execute("ANALYZE {schema}.tk_vectors")


# --- what is found


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES.keys())
@pytest.mark.parametrize("filter", [None, KIND], ids=["all", "a filter"])
def test_the_index_finds_what_is_nearest(
    library: VectorStore, keep: threadkeep.Keep, watched: QueryPlans, prefix: tuple[str, ...], filter: Any
) -> None:
    documents = [b for b in BOOKS if b.namespace[: len(prefix)] == prefix and (filter is None or b.kind == 1)]
    assert recall(keep, library, prefix, documents, filter=filter) >= 0.95
    assert watched.by_index(library.index)


def test_what_few_match_is_compared_one_by_one(
    library: VectorStore, keep: threadkeep.Keep, watched: QueryPlans
) -> None:
    assert search(keep, ("notes",), COUNT, filter={"rows": ["7"]}).keys() == {"k7"}
    assert watched.plans
    assert not watched.by_index(library.index)


def test_a_small_partition_next_to_a_large_one_is_ranked_by_the_client(
    library: VectorStore, keep: threadkeep.Keep, watched: QueryPlans
) -> None:
    search(keep, ("notes",), COUNT)
    watched.plans.clear()
    assert recall(keep, library, ("others",), OTHERS) == 1.0
    assert watched.plans == []


@pytest.mark.parametrize("filter", [None, KIND], ids=["all", "a filter"])
def test_pages_have_no_duplicates_and_no_gaps(library: VectorStore, keep: threadkeep.Keep, filter: Any) -> None:
    documents = [document for document in NOTES if filter is None or document.kind == 1]
    pages = [search(keep, ("notes",), COUNT, limit=20, offset=20 * n, filter=filter) for n in range(15)]
    keys = [key for page in pages for key in page]
    assert len(keys) == len(set(keys)) == 300
    nearest = library.nearest(COUNT, documents, 300)
    assert len(nearest.keys() & set(keys)) >= 0.95 * 300
    scores = [score for page in pages for score in page.values()]
    assert scores == sorted(scores, reverse=True)


def test_the_last_page_ends_with_the_last_memory(library: VectorStore, keep: threadkeep.Keep) -> None:
    assert len(search(keep, ("notes",), COUNT, limit=COUNT)) == len(NOTES)
    assert len(search(keep, ("notes",), COUNT, limit=100, offset=len(NOTES) - 30)) == 30
    assert search(keep, ("notes",), COUNT, limit=100, offset=len(NOTES)) == {}


def test_the_best_of_several_vectors_of_a_memory_counts() -> None:
    rows = clustered(1800 + QUERIES)
    documents = [Document(("a",), f"k{n}", tuple(range(3 * n, 3 * n + 3))) for n in range(600)]
    vector_store = indexed(VectorStore(rows), documents)
    with vector_store.open(MOST) as keep:
        assert recall(keep, vector_store, ("a",), documents) >= 0.95
        scores = vector_store.nearest(1800, documents, len(documents))
        for key, score in search(keep, ("a",), 1800).items():
            assert score == pytest.approx(scores[key], abs=1e-5)


LENGTHS = [*((measure, 48, 1000) for measure in MEASURES), ("cosine", 2100, 300)]


@pytest.mark.parametrize(("measure", "dims", "count"), LENGTHS)
def test_each_distance_type_has_its_index(watched: QueryPlans, measure: str, dims: int, count: int) -> None:
    documents = singles(count)
    vector_store = indexed(VectorStore(clustered(count + QUERIES, dims), measure), documents)
    with vector_store.open(1) as keep:
        watched.plans.clear()
        assert recall(keep, vector_store, ("a",), documents) >= 0.95
        assert watched.by_index(vector_store.index)
        near = search(keep, ("a",), count)
    scores = vector_store.nearest(count, documents, count)
    assert_same({key: scores[key] for key in near}, near)


# --- the same results as elsewhere


@pytest.mark.parametrize(("measure", "dims"), [*((each, 32) for each in MEASURES), ("inner_product", 2100)])
def test_what_is_exact_is_the_same_as_in_sqlite(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measure: str, dims: int
) -> None:
    monkeypatch.setattr(pgvector, "_FEW", 10_000)
    rows = clustered(250, dims)
    documents = [Document(("a", f"b{n % 2}"), f"k{n}", (2 * n, 2 * n + 1), kind=n % 3) for n in range(120)]
    vector_store = VectorStore(rows, measure)
    with (
        vector_store.open(EVERY, url=f"sqlite:///{tmp_path / 'keep.db'}") as sqlite,
        vector_store.open(EVERY) as client,
        vector_store.open(1) as database,
    ):
        put_documents(sqlite, documents), put_documents(client, documents)
        for prefix in [("a",), ("a", "b1"), ()]:
            for options in [{"limit": 30}, {"limit": 20, "offset": 10}, {"limit": 20, "filter": KIND}]:
                said = search(sqlite, prefix, 245, **options)
                for other in (client, database):
                    assert_same(said, search(other, prefix, 245, **options))


def assert_same(one: dict[str, float], other: dict[str, float]) -> None:
    assert list(one) == list(other)
    assert other == pytest.approx(one, abs=1e-5 * max(1, *map(abs, one.values())))


# --- without pgvector, or with it in another schema


def works_in_the_client(vector_store: VectorStore, watched: QueryPlans) -> None:
    documents = singles(500)
    with vector_store.open(MOST) as keep:
        put_documents(keep, documents)
        assert search(keep, ("a",), 600).keys() == vector_store.nearest(600, documents).keys()
        assert search(keep, (), 600, filter={"kind": 0}).keys() == vector_store.nearest(600, documents).keys()
    assert watched.plans == []
    assert vector_store.indexes() == []


def works_by_an_index(vector_store: VectorStore, watched: QueryPlans, documents: list[Document]) -> None:
    with vector_store.open(MOST) as keep:
        search(keep, ("a",), 600)
        vector_store.wait_for_index()
        watched.plans.clear()
        assert len(search(keep, ("a",), 600).keys() & vector_store.nearest(600, documents).keys()) >= 9
    assert watched.by_index(vector_store.index)


@pytest.fixture
def bare() -> Iterator[VectorStore]:
    """A store in a database without pgvector."""
    vector_store = VectorStore(clustered(700))
    vector_store.fresh_database()
    yield vector_store
    vector_store.server.execute(f"DROP DATABASE {vector_store.database} WITH (FORCE)")


def test_without_the_right_to_create_extensions_the_client_ranks(bare: VectorStore, watched: QueryPlans) -> None:
    bare.ordinary_role()
    works_in_the_client(bare, watched)


@pytest.mark.skipif(postgres_servers.oldest() is None, reason="no PostgreSQL 15")
def test_without_pgvector_the_client_ranks(watched: QueryPlans) -> None:
    works_in_the_client(VectorStore(clustered(700), server=postgres_servers.shared(postgres_servers.oldest())), watched)


def test_with_the_right_to_create_extensions_pgvector_is_installed(bare: VectorStore, watched: QueryPlans) -> None:
    works_by_an_index(filled(bare, singles(500)), watched, singles(500))


@pytest.mark.parametrize("path", ["", "nowhere"])
def test_a_search_path_where_no_extension_can_be_made_does_no_harm(
    bare: VectorStore, watched: QueryPlans, path: str
) -> None:
    bare.options["options"] = f"-csearch_path={path}"
    documents = singles(500)
    with bare.open(MOST) as keep:
        put_documents(keep, documents)
        assert search(keep, ("a",), 600).keys() == bare.nearest(600, documents).keys()


@pytest.mark.parametrize("path", ["public", ""])
def test_pgvector_may_be_in_a_schema_that_is_not_in_the_search_path(
    bare: VectorStore, watched: QueryPlans, path: str
) -> None:
    bare.execute('CREATE SCHEMA "Odd one"')
    bare.execute('CREATE EXTENSION vector SCHEMA "Odd one"')
    bare.options["options"] = f"-csearch_path={path}"
    works_by_an_index(filled(bare, singles(500)), watched, singles(500))


def test_pgvector_that_we_may_not_use_counts_as_none(bare: VectorStore, watched: QueryPlans) -> None:
    bare.execute("CREATE SCHEMA closed")
    bare.execute("CREATE EXTENSION vector SCHEMA closed")
    bare.ordinary_role()
    works_in_the_client(bare, watched)


def test_pgvector_may_come_after_the_vectors(bare: VectorStore, watched: QueryPlans) -> None:
    bare.ordinary_role()
    works_in_the_client(bare, watched)
    bare.execute("CREATE EXTENSION vector")
    works_by_an_index(bare, watched, singles(500))


def test_a_read_only_keep_lets_the_database_rank_and_creates_nothing(
    watched: QueryPlans, caplog: pytest.LogCaptureFixture
) -> None:
    vector_store, documents = VectorStore(clustered(700)), singles(500)
    filled(vector_store, documents)
    with caplog.at_level(logging.WARNING), vector_store.open(MOST, read_only=True) as keep:
        assert search(keep, ("a",), 600).keys() == vector_store.nearest(600, documents).keys()
    assert watched.plans
    assert vector_store.indexes() == []
    assert caplog.records == []


# --- one index


MEETING = """
import vector_stores
vector_store = vector_stores.VectorStore(vector_stores.clustered(2000), schema=sys.argv[1])
with vector_store.open(300) as keep:
    keep.store.get(("a",), "k0")
    wait_for_others()
    print(len(vector_stores.search(keep, ("a",), 1999)))
    vector_store.wait_for_index()
"""


def test_concurrent_processes_create_one_index_of_a_large_partition() -> None:
    vector_store = filled(VectorStore(clustered(2000)), singles(1900))
    assert processes.run_concurrently(MEETING, [(vector_store.schema,)] * 8) == ["10\n"] * 8
    assert vector_store.indexes() == [True]


def test_what_is_left_of_an_index_that_was_not_finished_is_replaced() -> None:
    vector_store = indexed(VectorStore(clustered(700)), singles(500))
    which = f"'{vector_store.schema}.{vector_store.index}'::regclass"
    vector_store.execute(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = {which}")
    assert vector_store.indexes() == [False]
    with vector_store.open(MOST) as keep:
        search(keep, ("a",), 600)
        vector_store.wait_for_index()


# --- changes


def test_overwritten_or_deleted_memories_are_not_found() -> None:
    rows = clustered(1200)
    vector_store = indexed(VectorStore(rows), singles(1000))
    with vector_store.open(MOST) as keep:
        nearest = list(vector_store.nearest(1100, singles(1000), 60))
        deleted, moved, dying = set(nearest[:20]), set(nearest[20:40]), set(nearest[40:60])
        far = int(np.argmin(vector_store.scores(1100)))
        keep.store.batch([Document(("a",), key, (far,)).put for key in moved])
        keep.store.batch([Document(("a",), key, (int(key[1:]),), ttl=0.0001).put for key in dying])
        keep.store.batch([Document(("a",), key, ()).put._replace(value=None) for key in deleted])
        living = [document for document in singles(1000) if document.key not in deleted | moved | dying]
        time.sleep(0.02)  # until they have expired
        assert len(search(keep, ("a",), 1100, limit=30).keys() & vector_store.nearest(1100, living, 30).keys()) >= 29
        assert keep.store.sweep_ttl() == 20
        assert len(search(keep, ("a",), 1100, limit=30).keys() & vector_store.nearest(1100, living, 30).keys()) >= 29
        assert moved <= search(keep, ("a",), far, limit=40).keys()
    assert stored_memories.find_leftovers(vector_store.url) == []
    assert sum(map(len, stored_memories.read_memories(vector_store.url).vectors.values())) == 960


def test_a_memory_that_is_stored_is_found_at_once() -> None:
    vector_store = indexed(VectorStore(clustered(1200)), singles(1000))
    with vector_store.open(MOST) as keep:
        search(keep, ("a",), 1100)
        put_documents(keep, [Document(("a",), "new", (1100,))])
        assert next(iter(search(keep, ("a",), 1100))) == "new"


# --- cases in which an index alone would find too little


ONES = np.ones(32)
CROWD = np.concatenate([around(ONES, 900), around(-ONES, 300), around(ONES, 1)])


def crowd(with_index: bool, near: dict[str, Any], far: dict[str, Any], **options: str) -> VectorStore:
    """900 memories are near the last row, 300 far from it."""
    documents = [Document(**{"namespace": ("a", "near"), "key": f"k{n}", "rows": (n,)} | near) for n in range(900)]
    documents += [Document(**{"namespace": ("a", "far"), "key": f"k{n}", "rows": (n,)} | far) for n in range(900, 1200)]
    return (indexed if with_index else filled)(VectorStore(CROWD, options=options), documents)


@pytest.mark.parametrize(("with_index", "few"), [(False, FEW), (True, FEW), (True, 10_000)])
def test_what_has_expired_leaves_room_for_what_lives(
    monkeypatch: pytest.MonkeyPatch, with_index: bool, few: int
) -> None:
    monkeypatch.setattr(pgvector, "_FEW", few)
    vector_store = crowd(with_index, {"ttl": 0.0001}, {})
    with vector_store.open(MOST) as keep:
        assert len(search(keep, ("a",), 1200)) == 10
        assert len(search(keep, ("a",), 1200, limit=100, offset=250)) == 50


@pytest.mark.parametrize("with_index", [False, True])
def test_a_filter_that_the_database_cannot_answer_is_answered(with_index: bool) -> None:
    vector_store = crowd(with_index, {"kind": 0}, {"kind": 1})
    with vector_store.open(MOST) as keep:
        assert len(search(keep, ("a",), 1200, filter={"deep.b.c.d.e": 1})) == 10


@pytest.mark.parametrize("options", [{}, {"options": "-chnsw.max_scan_tuples=300"}], ids=["as it is", "a short scan"])
def test_what_is_far_from_the_query_is_found_if_it_is_all_there_is(options: dict[str, str]) -> None:
    """An index is searched outward from the query, but not to the end: 300 stand for the 20,000 rows it looks at."""
    vector_store = crowd(True, {"kind": 0}, {"kind": 1}, **options)
    with vector_store.open(MOST) as keep:
        assert len(search(keep, ("a",), 1200, filter=KIND)) == 10
        assert len(search(keep, ("a", "far"), 1200)) == 10


# --- precision


@pytest.mark.parametrize("measure", MEASURES)
def test_vectors_of_no_length_are_found_and_may_be_asked_for(measure: str) -> None:
    rows = clustered(502)
    rows[:5] = 0
    rows[501] = 0
    documents = singles(500)
    vector_store = indexed(VectorStore(rows, measure), documents)
    with vector_store.open(EVERY) as exact, vector_store.open(MOST) as keep:
        assert search(keep, ("a",), 500, limit=600).keys() == search(exact, ("a",), 500, limit=600).keys()
        assert len(search(keep, ("a",), 501)) == 10
        scores = search(keep, ("a",), 500, limit=600)
        zero = -float(np.linalg.norm(rows[500])) if measure == "l2" else 0.0
        assert [scores[f"k{n}"] for n in range(5)] == pytest.approx([zero] * 5, rel=1e-5)


@pytest.mark.parametrize(
    ("size", "measure"), [(1e-18, "cosine"), (1e18, "cosine"), (1e18, "l2"), (1e-18, "inner_product")]
)
def test_large_and_small_numbers_are_compared_like_others(size: float, measure: str) -> None:
    rows = (clustered(502).astype(np.float64) * size).astype(np.float32)
    vector_store, documents = VectorStore(rows, measure), singles(500)
    indexed(vector_store, documents)
    with vector_store.open(EVERY) as exact, vector_store.open(MOST) as keep:
        near = vector_store.nearest(501, documents)
        assert search(exact, ("a",), 501).keys() == near.keys()
        assert len(search(keep, ("a",), 501).keys() & near.keys()) >= 9


@pytest.mark.parametrize(("measure", "with_index"), [*((each, False) for each in MEASURES), ("cosine", True)])
def test_numbers_beyond_half_precision_are_stored_and_found(measure: str, with_index: bool) -> None:
    rows = clustered(120, 2100)
    rows[110, 0] = 70_000
    vector_store = (indexed if with_index else filled)(VectorStore(rows, measure), singles(110))
    with vector_store.open(1) as keep:
        put_documents(keep, [Document(("a",), "large", (110,))])
        assert "large" in search(keep, ("a",), 110)
        assert len(search(keep, ("a",), 115)) == 10


@pytest.mark.parametrize("dims", [4001, 16_001])
def test_vectors_longer_than_an_index_takes_are_found_without_one(dims: int) -> None:
    vector_store, documents = VectorStore(clustered(60, dims)), singles(50)
    filled(vector_store, documents)
    with vector_store.open(10) as keep:
        assert search(keep, ("a",), 55).keys() == vector_store.nearest(55, documents).keys()
    assert vector_store.indexes() == []
