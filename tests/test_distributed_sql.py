"""PostgreSQL's SQL avoids what distributed databases lack, checked in every block; and group="thread" works."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import PutOp

import postgres_servers
import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from distributed_rules import problems
from graph_scenarios import SCENARIOS, assert_same, describe_thread
from sync_async import AsyncCaller, SyncCaller
from test_conformance import SyncSide, assert_complete, report_on
from test_postgres import StatementLog, blocked
from threadkeep import backends
from threadkeep.backends.postgres.dialect import DISTRIBUTED
from threadkeep.backends.sql.blocks import read_blocks
from verbs import every_verb

BLOCKS = read_blocks("sql/common.sql", "postgres/blocks.sql")
OF_TENANTS = read_blocks("sql/tenants.sql", "postgres/tenants.sql")
BACKENDS = Path(backends.__path__[0])
ONE_STATEMENT = ("load-", "commit")
"""How blocks start that put a whole request into one statement. A test checks that group="thread" sends none."""
BY_THREAD = {name: sql for name, sql in BLOCKS.items() if not name.startswith(ONE_STATEMENT)}

# Constructs that Citus, CockroachDB, YugabyteDB or Aurora DSQL lacks.
LACKING = {
    "foreign keys": r"\bREFERENCES\b|\bFOREIGN\s+KEY\b",
    "sequences": r"\bSEQUENCE\b|\b(SMALL|BIG)?SERIAL\b|\bIDENTITY\b|\bnextval\b|\bcurrval\b",
    "triggers": r"\bTRIGGER\b",
    "functions of our own": r"\bFUNCTION\b|\bPROCEDURE\b|\bLANGUAGE\b|\bDO\s+\$|\bCALL\b|\$\$",
    "savepoints": r"\bSAVEPOINT\b|\bROLLBACK\s+TO\b|\bRELEASE\b",
    "listening": r"\bLISTEN\b|\bNOTIFY\b|pg_notify",
    "advisory locks": r"advisory",
    "locks of tables": r"\bLOCK\s+TABLE\b|\bLOCK\s+tk_",
    "jsonb": r"\bjsonb?\b|->>?|#>",
    "truncation": r"\bTRUNCATE\b",
    "temporary tables": r"\bTEMP(ORARY)?\b|\bUNLOGGED\b",
    "views, rules and extensions": r"\bVIEW\b|\bRULE\b|\bEXTENSION\b|\bENUM\b|\bDOMAIN\b",
    "cursors": r"\bDECLARE\b|\bFETCH\b",
    "places of rows": r"\bctid\b|\boid\b|\bxmin\b",
    "indexes of expressions, or not of trees": r"\bUSING\s+(gin|gist|brin|hash|spgist)\b|CREATE\s+INDEX[^;]*\([^;]*\(",
    "exclusion": r"\bEXCLUDE\b",
    "merging": r"\bMERGE\b",
}


def statements(blocks: Mapping[str, str]) -> list[str]:
    return [statement.strip() for sql in blocks.values() for statement in sql.split(";") if statement.strip()]


@pytest.mark.parametrize("what", list(LACKING))
def test_no_block_has(what: str) -> None:
    every = {**BLOCKS, **OF_TENANTS}
    found = {name: re.search(LACKING[what], sql, re.IGNORECASE) for name, sql in every.items()}
    assert {name: match[0] for name, match in found.items() if match} == {}


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("foreign keys", "thread bigint REFERENCES tk_threads"),
        ("sequences", "id bigserial PRIMARY KEY"),
        ("sequences", "id bigint GENERATED ALWAYS AS IDENTITY"),
        ("functions of our own", "DO $$ BEGIN END $$"),
        ("savepoints", "savepoint one"),
        ("advisory locks", "SELECT pg_advisory_xact_lock(1)"),
        ("locks of tables", "LOCK TABLE tk_threads"),
        ("jsonb", "labels jsonb NOT NULL"),
        ("jsonb", "labels ->> 'user'"),
        ("temporary tables", "CREATE TEMP TABLE x (n int)"),
        ("indexes of expressions, or not of trees", "CREATE INDEX x ON tk_runs (lower(run))"),
    ],
)
def test_the_forbidden_constructs_would_be_found(what: str, wrong: str) -> None:
    assert re.search(LACKING[what], wrong, re.IGNORECASE)


# --- what group="thread" uses


def test_every_key_begins_with_the_thread() -> None:
    made = [statement for statement in statements(BLOCKS) if statement.startswith("CREATE TABLE tk_")]
    assert len(made) == 6
    for statement in made:
        (columns,) = re.findall(r"PRIMARY KEY \(([^)]+)\)|^\s+(\w+) \w+ PRIMARY KEY", statement, re.MULTILINE)
        assert re.match(r"thread\b", "".join(columns)), statement
        assert not re.search(r"\bUNIQUE\b", statement), statement
    assert not [statement for statement in statements(BLOCKS) if re.match(r"CREATE UNIQUE", statement)]


def test_conflicts_are_looked_for_by_keys_that_begin_with_the_thread() -> None:
    named = [columns for sql in BLOCKS.values() for columns in re.findall(r"ON CONFLICT \(([^)]*)\)", sql)]
    assert named
    assert {columns.split(",")[0] for columns in named} == {"thread"}


def test_every_join_is_by_thread_first() -> None:
    whole = " ".join(sql for name, sql in BY_THREAD.items() if name != "join-in-order")
    joins = re.findall(r"\bJOIN tk_\w+ (\w+) ON (\w+)\.(\w+) = (\S+)", whole)
    assert len(joins) == len(re.findall(r"\bJOIN\b", whole)) > 0
    for alias, left, column, right in joins:
        assert (left, column) == (alias, "thread")
        assert re.match(r"\w+\.thread\b|:thread\b", right)
    assert not re.search(r"\bFROM tk_\w+( \w+)?, ", whole), "a join without ON"


def test_every_subselect_is_joined_by_thread_first() -> None:
    # The page of a list is a subselect with a limit: it is planned separately, and only its few rows are joined.
    whole = " ".join(sql for name, sql in BY_THREAD.items() if name not in ("list-threads", "scan-checkpoints"))
    inner = re.findall(r"\(SELECT 1 FROM tk_\w+ (\w+) WHERE (\w+)\.(\w+) = [\w{}]+\.(\w+)", whole)
    assert len(inner) == len(re.findall(r"\(\s*SELECT\b", whole)) > 0
    assert all((left, column, right) == (alias, "thread", "thread") for alias, left, column, right in inner)


def depends_on_a_row(sql: str) -> str | None:
    """A set-returning function over columns, or what calls one for each row."""
    found = re.search(r"\bLATERAL\b|\bgenerate_series\b|\brange_agg\b|\bregexp_\w+|\bCROSS JOIN\b", sql, re.IGNORECASE)
    found = found or re.search(r"\bunnest\([^)]*\b[a-z]\.\w+", sql)
    return found[0] if found else None


def test_no_set_returning_function_depends_on_a_row() -> None:
    assert {name: found for name, sql in BY_THREAD.items() if (found := depends_on_a_row(sql))} == {}
    assert depends_on_a_row(BLOCKS["load-checkpoints"])


def test_every_change_names_its_thread_first() -> None:
    alone = {name: sql for name, sql in BY_THREAD.items() if not name.startswith("schema-")}  # migrations change all
    changes = [statement for statement in statements(alone) if re.match(r"(UPDATE|DELETE) ", statement)]
    assert len(changes) > 10
    for statement in changes:
        assert re.search(r"WHERE (t\.)?thread = :\w+", statement), statement


def test_every_table_of_a_deletion_is_of_one_thread() -> None:
    whole = BLOCKS["drop-all"]
    assert (
        len(re.findall(r"\bDELETE FROM tk_\w+ WHERE thread = :thread\b", whole))
        == len(re.findall(r"\bDELETE\b", whole))
        == 6
    )


def test_keys_and_changes_of_tenants_name_the_tenant_first() -> None:
    for statement in statements(OF_TENANTS):
        if statement.startswith("CREATE TABLE"):
            assert re.search(r"tenant bytea PRIMARY KEY|PRIMARY KEY \(tenant, ", statement), statement
        if re.match(r"(UPDATE|DELETE) ", statement):
            assert re.search(r"WHERE tenant = :tenant\b", statement), statement


# --- group="thread" in use


@pytest.fixture
def fresh_url() -> Callable[[], str]:
    return lambda: postgres_servers.fresh_schema(postgres_servers.shared()) + "&group=thread"


async def test_the_async_side_passes_the_official_suite(fresh_url: Callable[[], str]) -> None:
    assert_complete(await report_on(fresh_url, lambda saver: saver))


def test_the_sync_side_passes_the_official_suite(fresh_url: Callable[[], str]) -> None:
    assert_complete(asyncio.run(report_on(fresh_url, SyncSide)))


@pytest.mark.parametrize("name", ["messages edited and removed", "large dict", "fan-out", "subgraphs", "functional"])
async def test_a_graph_has_the_history_that_in_memory_saver_has(fresh_url: Callable[[], str], name: str) -> None:
    play = SCENARIOS[name]
    for call in (SyncCaller(), AsyncCaller()):
        async with threadkeep.open(fresh_url()) as keep:
            graph, peer = play.build(keep.checkpointer), play.build(InMemorySaver())
            await play.run(call, graph)
            await play.run(call, peer)
            assert_same(await describe_thread(call, graph), await describe_thread(call, peer))


def test_no_verb_sends_more_than_these_blocks() -> None:
    log = StatementLog()
    with threadkeep.open(log.url, group="thread", max_size=1) as keep:
        keep.setup()

        def use() -> None:
            chain = Chain(keep.checkpointer, run="r")
            for n in range(5):
                at = chain.put({"log": [f"{k} " * 100 for k in range(n, 2 * n)], "large": "x" * 2_000_000}, user=n)
                keep.checkpointer.put_writes(at, [("log", n)], "task")
            for _ in range(2):
                for name, ask in every_verb(keep).items():
                    if name != "stats":  # also reads memories, which are spread by partition
                        ask()

        logged = log.during(use)
    assert len(logged) > 100
    assert {found for each in logged if (found := depends_on_a_row(each.partition("\nParameters")[0]))} == set()


# --- what is sent with group="thread", to distributed tables


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("SET LOCAL plan_cache_mode = force_generic_plan", "a setting for a transaction"),
        ("SELECT set_config('plan_cache_mode', 'force_generic_plan', true)", "a plan for all values"),
        ("WITH RECURSIVE found (space) AS (SELECT 1) SELECT 1 FROM tk_memories m", "a recursive query"),
        (
            "DELETE FROM tk_vectors v USING unnest($1::bigint[]) AS g (part) WHERE v.part = g.part",
            "a change of tk_vectors on several nodes",
        ),
        ("DELETE FROM tk_items WHERE lane = $1", "a change of tk_items on several nodes"),
        ('UPDATE "s".tk_threads SET rev = $1 WHERE tenant = $2', "a change of tk_threads on several nodes"),
        ("UPDATE tk_parts SET seq = nextval('s') WHERE part = $1", "a change of tk_parts with a volatile function"),
        ("SELECT 1 FROM tk_memories m WHERE m.memory = ANY ($1) FOR UPDATE", "a lock of rows of tk_memories on several nodes"),
        ("SELECT 1 FROM tk_memories m JOIN tk_vectors v ON v.memory = m.memory", "a join with tk_vectors without its part"),
        ("INSERT INTO tk_vectors (memory) VALUES ($1)", "a row of tk_vectors without its part"),
        ("INSERT INTO tk_keys (tenant) VALUES ((SELECT 1))", "a new row of tk_keys with a subselect"),
        ("INSERT INTO tk_vectors (part) SELECT g.part FROM unnest($1) AS g (part)", "new rows of tk_vectors from arrays"),
        ("SELECT 1 FROM tk_threads t, LATERAL (SELECT 1) l", "a function for each row"),
    ],
)  # fmt: skip
def test_what_citus_refuses_would_be_found(sql: str, problem: str) -> None:
    assert problem in problems(sql)


def test_the_blocks_for_distributed_tables_have_nothing_that_citus_refuses() -> None:
    files = ("sql/memories.sql", "sql/tenants.sql", "postgres/memories.sql", "postgres/tenants.sql", DISTRIBUTED)
    names = re.findall(r"^-- ([a-z-]+): ", (BACKENDS / DISTRIBUTED).read_text("utf-8"), re.MULTILINE)
    blocks = read_blocks(*files)
    assert len(names) > 15
    found = {name: problems(statement) for name in names for statement in statements({name: blocks[name]})}
    assert {name: each for name, each in found.items() if each} == {}


def use_memories(keep: threadkeep.Keep) -> None:
    """Store, find, refresh, move and delete memories, with vectors and words, in two partitions."""
    store = keep.store
    for n in range(3):
        store.put(("users", f"u{n}"), "food", {"text": f"likes pizza {n}"}, ttl=10)
        store.put(("notes", f"u{n}"), "food", {"text": f"likes salt {n}"})
    store.batch([PutOp(("users", "u9"), f"k{n}", {"text": "x"}) for n in range(5)])
    store.put(("users", "u9"), "new", {"text": "y"}, if_version=0)
    store.get(("users", "u0"), "food", refresh_ttl=True)
    for prefix in ((), ("users",)):
        store.search(prefix, query="pizza")
        store.search(prefix, filter={"text": "x"})
        store.list_namespaces(prefix=prefix)
    store.delete(("users", "u9"), "k2")
    store.put(("users", "u9"), "k3", {"text": "z"}, ttl=0.000001)
    keep.sweep()
    keep.delete_memories(("notes",))


VECTORS = {"dims": 2, "embed": lambda texts: [[1.0, float(len(text))] for text in texts]}
KEYS = threadkeep.Keys({"a": bytes(32)}, "a")


@pytest.mark.parametrize(
    ("index", "keys"),
    [(VECTORS, None), ({"search": "text"}, None), (VECTORS, KEYS)],
    ids=["vectors", "words", "encrypted"],
)
def test_no_verb_sends_what_citus_refuses(index: Any, keys: threadkeep.Keys | None) -> None:
    log = StatementLog()
    options: dict[str, Any] = {"group": "thread", "max_size": 2, "durability": "relaxed"}
    with threadkeep.open(log.url, index=index, keys=keys, **options) as keep:
        keep.setup()

        def use() -> None:
            chain = Chain(keep.checkpointer, run="r")
            for n in range(3):
                at = chain.put({"log": [f"{k} " * 100 for k in range(n, 2 * n)]}, user=n)
                keep.checkpointer.put_writes(at, [("log", n)], "task")
            for name, ask in every_verb(keep).items():
                if name != "search":  # its index is not for distributed tables
                    ask()
            use_memories(keep)
            keep.verify()
            keep.doctor()
            keep.tenants()
            keep.erase(thread_id="t")
            if keys is not None:
                keep.rotate()
                keep.reencrypt()

        logged = log.during(use)
    sent = {re.sub(r"\s+", " ", each.partition("\nParameters")[0]).strip() for each in logged}
    assert sum("tk_memories" in each for each in sent) > 10
    assert sum("tk_vectors" in each for each in sent) >= 4
    assert any("tk_memories" in each and "FOR UPDATE" in each for each in sent)
    assert {each: found for each in sent if (found := problems(each))} == {}


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.get(("u1", "food"), "pizza"),
        lambda store: store.put(("u1", "food"), "pizza", {"good": True}),
        lambda store: store.put(("u1", "food"), "salt", {"good": True}, if_version=0),
        lambda store: store.delete(("u1", "food"), "pizza"),
        lambda store: store.search(("u1",), filter={"good": True}),
        lambda store: store.search(("u1", "food")),
    ],
    ids=["get", "put", "put if new", "delete", "search by filter", "search"],
)
def test_what_concerns_one_partition_names_it(use: Callable[[threadkeep.KeepStore], Any]) -> None:
    log = StatementLog()
    with threadkeep.open(log.url, group="thread", max_size=1) as keep:
        keep.store.put(("u1", "food"), "pizza", {"good": False})
        sent = [re.sub(r"\s+", " ", each) for each in log.during(lambda: use(keep.store))]
    about = [each for each in sent if re.search(r"\btk_(memories|vectors|parts)\b", each)]
    assert about
    assert [each for each in about if not re.search(r"\bpart = |\(memory, part, ", each)] == []


def use_many_threads(keep: threadkeep.Keep, name: str) -> None:
    """Change and read twenty threads concurrently; a lock makes their commits wait for each other."""
    saver = keep.checkpointer

    async def use(thread: str) -> None:
        chain = Chain(saver, thread, run="r")
        chain.number, chain.last = 1, "00000000"
        at = await chain.aput({"log": ["a", "b" * 500]}, user="ada")
        await saver.aput_writes(at, [("log", ["c"])], "task")
        await saver.aget_tuple(config(thread))
        await saver.aprune([thread])

    async def all_of_them() -> None:
        using = asyncio.gather(*(use(f"t{n}") for n in range(20)))
        with lock_of_others(name):
            await asyncio.to_thread(postgres_servers.wait_until, lambda: blocked(name) >= 2, 10)
            await asyncio.sleep(0.2)
        await using

    asyncio.run(all_of_them())


def lock_of_others(schema: str) -> psycopg.Connection[Any]:
    """Block all changes of threads until this connection is closed."""
    connection = psycopg.connect(postgres_servers.shared().url())
    connection.execute(f"lock table {schema}.tk_threads in exclusive mode")
    return connection


@pytest.mark.parametrize("group", ["all", "thread"])
def test_a_statement_concerns_one_thread_with_group_thread(group: str) -> None:
    log = StatementLog()
    with threadkeep.open(log.url, group=group) as keep:
        for n in range(20):
            Chain(keep.checkpointer, f"t{n}").put({"log": ["a"]})
        numbers = [str(n) for (n,) in postgres_servers.shared().execute(f"select thread from {log.name}.tk_threads")]
        logged = log.during(lambda: use_many_threads(keep, log.name))
        assert len(numbers) == 20
        threads_of_statements = [
            {number for number in numbers if re.search(rf"(?<![\d-]){number}\b", each)} for each in logged
        ]
        assert set().union(*threads_of_statements) == set(numbers)
        assert (
            max(map(len, threads_of_statements)) == 1 if group == "thread" else max(map(len, threads_of_statements)) > 1
        )
        for n in range(20):
            assert list_ids(keep.checkpointer, f"t{n}") == ["00000001"]
            assert values_of(keep.checkpointer, f"t{n}") == {"log": ["a", "b" * 500]}
