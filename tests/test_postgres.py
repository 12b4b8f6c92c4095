"""PostgreSQL only: URLs, schemas, pools, roles, values, connections, round trips, durability and query plans."""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import quote

import psycopg
import psycopg_pool
import pytest
from psycopg.rows import dict_row

import postgres_servers
import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from old_schemas import use_version
from processes import run, run_concurrently, run_forked
from test_concurrency import in_loop, in_threads
from threadkeep import errors
from threadkeep.engine.schema_versions import steps_after
from verbs import every_async_verb, every_verb

HELLO = {"greeting": "hello " * 20}
NOISE = random.Random(7)


@pytest.fixture
def url() -> str:
    """In this file, a URL is always one of PostgreSQL."""
    return postgres_servers.fresh_schema(postgres_servers.shared())


def fresh_name() -> str:
    return f"t_{uuid.uuid4().hex}"


def schema_of(url: str) -> str:
    return url.partition("schema=")[2].partition("&")[0]


def noise(length: int) -> str:
    """Return incompressible text."""
    return "".join(chr(NOISE.randrange(0x4E00, 0x9F00)) for _ in range(length))


def execute(sql: str) -> list[tuple[Any, ...]]:
    return postgres_servers.shared().execute(sql)


def tables(schema: str) -> list[str]:
    found = execute(f"select tablename from pg_tables where schemaname = $${schema}$$ order by 1")
    return [table for (table,) in found]


def put_and_read(where: Any, **options: Any) -> dict[str, Any]:
    with threadkeep.open(where, **options) as keep:
        Chain(keep.checkpointer).put(HELLO)
        return values_of(keep.checkpointer)


# --- URLs


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_both_spellings_of_the_scheme_are_accepted(url: str, scheme: str) -> None:
    assert put_and_read(url.replace("postgresql", scheme, 1)) == HELLO


def test_a_unix_socket_may_be_in_the_query() -> None:
    server, schema = postgres_servers.shared(), fresh_name()
    if server.execute("show unix_socket_directories") == [("",)]:
        pytest.skip(f"{server.folder} is too long a name for a socket")
    where = f"postgresql:///postgres?host={quote(str(server.folder), safe='')}&port={server.port}&user=postgres"
    with threadkeep.open(f"{where}&application_name={schema}", schema=schema) as keep:
        Chain(keep.checkpointer).put(HELLO)
        assert execute(f"select distinct client_addr from pg_stat_activity where application_name = '{schema}'") == [
            (None,)
        ]
        assert values_of(keep.checkpointer) == HELLO


@pytest.mark.parametrize("attributes", ["", "&target_session_attrs=read-write", "&target_session_attrs=primary"])
def test_one_of_several_hosts_that_answers_is_enough(attributes: str) -> None:
    hosts = f"127.0.0.1:{postgres_servers.free_port()},127.0.0.1:{postgres_servers.shared().port}"
    assert put_and_read(f"postgresql://postgres@{hosts}/postgres?schema={fresh_name()}{attributes}") == HELLO


def test_no_host_of_the_wanted_kind_is_unavailable(url: str) -> None:
    with threadkeep.open(url + "&target_session_attrs=standby", timeout=0.3) as keep:
        with pytest.raises(errors.Unavailable, match="standby"):
            keep.checkpointer.get_tuple(config("t"))


def test_our_options_are_taken_out_of_the_query_and_the_rest_reaches_libpq() -> None:
    ours, theirs = fresh_name(), fresh_name()
    options = f"schema={ours}&min_size=3&max_size=3&prepare=false&group=thread"
    libpq = (
        f"application_name={ours}&options=-csearch_path%3D{theirs}&connect_timeout=7&sslmode=disable&gssencmode=disable"
    )
    with threadkeep.open(postgres_servers.shared().url() + f"?{libpq}&{options}") as keep:
        Chain(keep.checkpointer).put(HELLO)
        assert "tk_items" in tables(ours)
        assert postgres_servers.wait_until(lambda: len(connections(ours)) == 3, 10)
    execute(f"create schema {theirs}")
    assert put_and_read(postgres_servers.shared().url() + f"?{libpq}") == HELLO
    assert "tk_items" in tables(theirs)


@pytest.mark.parametrize(
    ("asked", "seen"), [({}, "threadkeep"), ({"application_name": "my 'app' = 1"}, "my 'app' = 1")]
)
def test_administrators_see_the_application_name(asked: dict[str, str], seen: str) -> None:
    schema = fresh_name()
    with threadkeep.open(postgres_servers.shared().url(), schema=schema, **asked) as keep:
        Chain(keep.checkpointer).put(HELLO)
        names = execute(f"select application_name from pg_stat_activity where query like '%{schema}%'")
        assert (seen,) in names


@pytest.mark.parametrize(
    ("query", "options", "says"),
    [
        ("?min_size=few", {}, "min_size"),
        ("?max_size=-1", {}, "max_size"),
        ("?max_size=0", {}, "max_size"),
        ("?prepare=perhaps", {}, "prepare"),
        ("?group=all-of-them", {}, "group"),
        ("?schema=", {}, "schema"),
        ("?schema=" + "x" * 64, {}, "schema"),
        ("?schema=a%00b", {}, "schema"),
        ("?unheard_of=1", {}, "unheard_of"),
        ("?unheard_of=1", {"application_name": "mine"}, "unheard_of"),
        ("?application_name", {}, "application_name"),
        ("", {"min_size": -1}, "min_size"),
        ("", {"min_size": True}, "min_size"),
        ("", {"max_size": 1.5}, "max_size"),
        ("", {"min_size": 3, "max_size": 2}, "min_size"),
        ("?min_size=3", {"max_size": 2}, "min_size"),
        ("", {"group": "threads"}, "group"),
        ("", {"schema": ""}, "schema"),
        ("", {"schema": "a\0b"}, "schema"),
        ("", {"schema": "\ud800"}, "schema"),
        ("", {"application_name": "a\0b"}, "application_name"),
        ("", {"application_name": "\ud800"}, "application_name"),
        # given twice
        ("?schema=a", {"schema": "b"}, "schema"),
        ("?schema=a&schema=b", {}, "schema"),
        ("?max_size=3", {"max_size": 4}, "max_size"),
        ("?prepare=on", {"prepare": False}, "prepare"),
        ("?group=all", {"group": "thread"}, "group"),
        ("?application_name=a", {"application_name": "b"}, "application_name"),
    ],
    ids=str,
)
def test_a_bad_option_is_a_value_error_that_names_it(query: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        threadkeep.open(postgres_servers.shared().url() + query, **options)


@pytest.mark.parametrize(
    "options", [{"prepare": "no"}, {"prepare": 0}, {"schema": 5}, {"schema": b"a"}, {"application_name": 5}], ids=str
)
def test_an_option_of_another_type_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        threadkeep.open(postgres_servers.shared().url(), **options)


def test_an_option_may_be_given_twice_with_the_same_value(url: str) -> None:
    assert put_and_read(url + "&max_size=2&max_size=2", schema=schema_of(url), max_size=2) == HELLO


@pytest.mark.parametrize("wrong", ["postgresql://[::1/x", "postgresql://h/%zz", "postgres://h/\0"])
def test_a_url_that_libpq_does_not_take_is_a_value_error(wrong: str) -> None:
    with pytest.raises(ValueError):
        threadkeep.open(wrong)


@pytest.mark.parametrize("option", [{"schema": "s"}, {"max_size": 3}, {"prepare": False}, {"group": "thread"}], ids=str)
@pytest.mark.parametrize("other", ["memory://", "sqlite:///a.db"])
def test_options_of_a_server_are_refused_elsewhere(other: str, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        threadkeep.open(other, **option)


# --- schemas


@pytest.mark.parametrize(
    "name",
    [
        "UPPER",
        "a b",
        "it's",
        'say "hi"',
        "100%",
        "%s",
        "%(x)s",
        "a%%b",
        "a:b",
        "::x",
        "a;b",
        "{done}",
        "{schema}",
        "tk_items",
    ]
    + ["select", "$1", "a\\b", "--", "/*", "a.b", "é" * 31, "🦜", "表"],
)
def test_a_schema_has_exactly_the_name_that_was_given(name: str) -> None:
    def use(where: str, **options: Any) -> None:
        with threadkeep.open(where, **options) as keep:
            saver = keep.checkpointer
            Chain(saver).put(HELLO)
            saver.copy_thread("t", "u")
            saver.prune(["t", "u"])
            saver.delete_thread("t")
            assert [info.id for info in keep.threads(metadata={"source": "loop"})] == ["u"]
            assert list_ids(saver, "u") == ["00000000"]

    use(postgres_servers.shared().url(), schema=name)
    use(postgres_servers.shared().url() + f"?schema={quote(name)}")
    quoted = name.replace("'", "''")
    assert execute(f"select count(*) from pg_tables where schemaname = '{quoted}' and tablename like 'tk_%'") == [(12,)]


def test_keeps_in_two_schemas_do_not_see_each_other(url: str) -> None:
    other = postgres_servers.fresh_schema(postgres_servers.shared())
    with threadkeep.open(url) as one, threadkeep.open(other) as two:
        Chain(one.checkpointer).put({"x": 1})
        assert (two.checkpointer.get_tuple(config("t")), two.threads()) == (None, [])
        Chain(two.checkpointer).put({"x": 2})
        two.checkpointer.prune(["t"], strategy="delete")
        assert values_of(one.checkpointer) == {"x": 1}


def test_without_a_schema_the_servers_search_path_decides() -> None:
    schema = fresh_name()
    execute(f"create schema {schema}")
    assert put_and_read(postgres_servers.shared().url(options=f"-csearch_path={schema}")) == HELLO
    assert "tk_threads" in tables(schema)


def test_nothing_is_made_before_the_first_use(url: str) -> None:
    with threadkeep.open(url) as keep:
        assert keep.checkpointer is keep.checkpointer
    assert execute(f"select 1 from pg_namespace where nspname = '{schema_of(url)}'") == []


def test_tables_of_others_in_the_same_schema_stay_as_they_are(url: str) -> None:
    schema = schema_of(url)
    execute(
        f"create schema {schema}; create table {schema}.threads (id text); insert into {schema}.threads values ('t')"
    )
    with threadkeep.open(url) as keep:
        Chain(keep.checkpointer).put(HELLO)
        keep.checkpointer.delete_thread("t")
    assert execute(f"select * from {schema}.threads") == [("t",)]


def test_a_newer_schema_is_refused_and_left_alone(url: str) -> None:
    put_and_read(url)
    execute(f"insert into {schema_of(url)}.tk_schema values (999)")
    with threadkeep.open(url) as keep:
        for ask in every_verb(keep).values():
            with pytest.raises(errors.SchemaTooNew, match="999"):
                ask()
    assert execute(f"select count(*) from {schema_of(url)}.tk_threads") == [(1,)]


VERSIONS = [(version,) for version in steps_after(0)]


def test_a_migration_is_recorded_once(url: str) -> None:
    for _ in range(2):
        put_and_read(url)
    assert execute(f"select version from {schema_of(url)}.tk_schema") == VERSIONS


def test_a_database_from_before_ticks_is_listed_in_order(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        use_version(patch, 2)
        with threadkeep.open(url) as keep:
            keep.setup()
    row = "epoch, rev, created, updated, hour, checkpoints, writes, bytes, tenant, kind, id, nexts, status"
    for n in (2, 3, 1):
        values = f"1, 1, {n}, {n * 1000}, 0, 1, 0, 10, '', 'graph', convert_to('t{n}', 'UTF8'), '', 'idle'"
        execute(f"insert into {schema_of(url)}.tk_threads (thread, {row}, run) values ({n}, {values}, '')")
    with threadkeep.open(url) as keep:
        assert [each.id for each in keep.threads()] == ["t3", "t2", "t1"]
    assert execute(f"select tick from {schema_of(url)}.tk_threads order by 1") == [(3,), (7,), (11,)]


SET_UP = """
import sys
import threadkeep
keep = threadkeep.open(sys.argv[1])
wait_for_others()
keep.setup()
print(keep.threads())
"""


def test_sixteen_processes_set_an_empty_database_up_at_once() -> None:
    database = fresh_name()
    execute(f"create database {database} template template0 strategy file_copy")
    empty, missing = postgres_servers.shared().url(database), postgres_servers.shared().url(database, schema="missing")
    assert run_concurrently(SET_UP, [(empty,), (missing,)] * 8) == ["[]\n"] * 16
    with psycopg.connect(empty) as connection:
        for table in ("public.tk_schema", "missing.tk_schema"):
            assert connection.execute(f"select version from {table}").fetchall() == VERSIONS


# --- pools


@contextmanager
def pool_of(kind: Any = psycopg_pool.ConnectionPool, **kwargs: Any) -> Iterator[Any]:
    low = {} if issubclass(kind, psycopg_pool.NullConnectionPool) else {"min_size": 1}
    with kind(postgres_servers.shared().url(), kwargs=kwargs, max_size=1, open=True, **low) as pool:
        yield pool


def use_every_verb(pool: Any, **options: Any) -> None:
    """Call all verbs, sync and async, and a change that fails."""
    with threadkeep.open(pool, schema=fresh_name(), timeout=10, **options) as keep:
        for ask in every_verb(keep).values():
            ask()

        async def use_async() -> None:
            for ask in every_async_verb(keep).values():
                await ask()

        asyncio.run(use_async())
        with pytest.raises(ValueError):
            Chain(keep.checkpointer, noise(10_000)).put(HELLO)
        Chain(keep.checkpointer).put(HELLO)
        assert values_of(keep.checkpointer) == HELLO


class OwnPool(psycopg_pool.ConnectionPool[Any]):
    pass


@pytest.mark.parametrize(
    "kwargs",
    [
        {"row_factory": dict_row},
        {"row_factory": dict_row, "autocommit": True},
        {"cursor_factory": psycopg.ClientCursor},
        {"cursor_factory": psycopg.RawCursor},
    ],
    ids=["dict_row", "autocommit", "client cursors", "raw cursors"],
)
@pytest.mark.parametrize("kind", [psycopg_pool.ConnectionPool, psycopg_pool.NullConnectionPool, OwnPool])
def test_a_pool_is_used_and_left_as_it_was(kind: Any, kwargs: dict[str, Any]) -> None:
    with pool_of(kind, **kwargs) as pool:
        use_every_verb(pool)
        assert not pool.closed
        with pool.connection() as connection:
            assert connection.autocommit is kwargs.get("autocommit", False)
            assert connection.cursor_factory is kwargs.get("cursor_factory", psycopg.Cursor)
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            row = connection.execute("select 1 as one").fetchone()
            assert row == ({"one": 1} if "row_factory" in kwargs else (1,))


@pytest.mark.parametrize("group", ["all", "thread"])
@pytest.mark.parametrize("threshold", [0, 5])
def test_prepare_false_leaves_no_prepared_statement_on_a_lent_connection(group: str, threshold: int) -> None:
    with pool_of(prepare_threshold=threshold) as pool:
        for _ in range(3):
            use_every_verb(pool, prepare=False, group=group)
        with pool.connection() as connection:
            found = connection.execute("select statement from pg_prepared_statements", prepare=False).fetchall()
            assert [statement for (statement,) in found if "tk_" in statement] == []


def test_statements_are_prepared_unless_asked_otherwise() -> None:
    with pool_of() as pool:
        for _ in range(3):
            use_every_verb(pool)
        with pool.connection() as connection:
            found = connection.execute("select statement from pg_prepared_statements").fetchall()
            assert [statement for (statement,) in found if "tk_" in statement] != []


def test_a_user_and_a_keep_share_a_pool(url: str) -> None:
    with pool_of() as pool, threadkeep.open(pool, schema=schema_of(url)) as keep:

        def ours() -> None:
            chain = Chain(keep.checkpointer)
            for n in range(20):
                chain.put({"n": n})

        def theirs() -> None:
            for _ in range(20):
                with pool.connection() as connection:
                    connection.execute("create temporary table mine (n int)")
                    connection.rollback()

        in_threads(ours, theirs)
        assert values_of(keep.checkpointer) == {"n": 19}


def test_an_async_pool_is_a_type_error_that_names_the_other() -> None:
    pool = psycopg_pool.AsyncConnectionPool(postgres_servers.shared().url(), open=False)
    with pytest.raises(TypeError, match="ConnectionPool"):
        threadkeep.open(pool)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", [{"min_size": 1}, {"max_size": 1}, {"application_name": "x"}], ids=str)
def test_options_of_the_pool_itself_are_a_value_error(option: dict[str, Any]) -> None:
    with pool_of() as pool, pytest.raises(ValueError, match=next(iter(option))):
        threadkeep.open(pool, **option)


@pytest.mark.parametrize("opened", [True, False])
def test_a_pool_that_is_not_open_is_unavailable(opened: bool) -> None:
    pool = psycopg_pool.ConnectionPool(postgres_servers.shared().url(), open=opened)
    pool.close()
    with threadkeep.open(pool, timeout=0.3) as keep, pytest.raises(errors.Unavailable, match="closed|not open"):
        keep.checkpointer.get_tuple(config("t"))


def test_a_pool_that_is_used_up_is_unavailable_until_it_is_not(url: str) -> None:
    with pool_of() as pool, threadkeep.open(pool, schema=schema_of(url), timeout=0.3) as keep:
        keep.setup()
        with pool.connection(), pytest.raises(errors.Unavailable):
            keep.checkpointer.get_tuple(config("t"))
        assert keep.checkpointer.get_tuple(config("t")) is None


WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
import threadkeep
for url in ("postgresql://localhost/x", "postgres://localhost/x"):
    try:
        threadkeep.open(url)
        raise SystemExit("it was opened")
    except ImportError as error:
        assert 'pip install "threadkeep[postgres]"' in str(error), error
threadkeep.open("memory://").setup()
"""


@pytest.mark.parametrize("driver", ["psycopg", "psycopg_pool"])
def test_a_missing_driver_is_an_error_with_the_pip_command(driver: str) -> None:
    run(WITHOUT, driver)


def test_the_driver_is_imported_only_by_those_who_need_it() -> None:
    run("import sys, threadkeep; threadkeep.open('memory://').setup(); assert 'psycopg' not in sys.modules")


# --- roles and servers that refuse


def new_role(*rights: str) -> str:
    """Create a role that may log in and nothing else, except these rights; {role} is its name."""
    role = fresh_name()
    execute(f"create role {role} login nosuperuser nocreatedb nocreaterole")
    for right in rights:
        execute(right.format(role=role))
    return role


def as_role(role: str, url: str) -> str:
    return url.replace("postgres@", f"{role}@", 1)


def test_an_ordinary_role_works_in_a_schema_of_its_own(url: str) -> None:
    role = new_role(f"create schema {schema_of(url)} authorization {{role}}")
    assert execute(f"select has_database_privilege('{role}', 'postgres', 'create')") == [(False,)]
    with threadkeep.open(as_role(role, url)) as keep:
        for ask in every_verb(keep).values():
            ask()
        Chain(keep.checkpointer).put(HELLO)
        assert values_of(keep.checkpointer) == HELLO


def test_a_role_that_may_not_create_the_schema_gets_an_error(url: str) -> None:
    with (
        threadkeep.open(as_role(new_role(), url)) as keep,
        pytest.raises(errors.Unavailable, match="permission denied"),
    ):
        keep.setup()
    assert execute(f"select 1 from pg_namespace where nspname = '{schema_of(url)}'") == []


def test_a_role_that_may_only_read_gets_an_error_when_it_writes(url: str) -> None:
    put_and_read(url)
    schema = schema_of(url)
    role = new_role(
        f"grant usage on schema {schema} to {{role}}", f"grant select on all tables in schema {schema} to {{role}}"
    )
    with threadkeep.open(as_role(role, url)) as keep:
        assert values_of(keep.checkpointer) == HELLO
        with pytest.raises(errors.Unavailable, match="permission denied"):
            Chain(keep.checkpointer, "u").put(HELLO)
        assert [info.id for info in keep.threads()] == ["t"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[postgres_servers.Server]:
    """A server that requires passwords of ordinary roles."""
    with postgres_servers.fresh_server() as server:
        server.execute("create role ada login password 'right'")
        server.execute("create schema ada authorization ada")
        rules = "host all postgres all trust\nhost postgres all all scram-sha-256\nlocal all all trust\n"
        (server.data / "pg_hba.conf").write_text(rules)
        server.execute("select pg_reload_conf()")
        with psycopg.connect(server.url(), autocommit=True) as connection:
            assert postgres_servers.wait_until(
                lambda: connection.execute("select count(*) from pg_hba_file_rules").fetchone() == (3,), 10
            )
        yield server


def test_a_password_may_be_in_the_url(guarded: postgres_servers.Server) -> None:
    assert put_and_read(f"postgresql://ada:right@127.0.0.1:{guarded.port}/postgres?schema=ada") == HELLO


@pytest.mark.parametrize(
    ("who", "database", "says"),
    [
        ("ada:wrong", "postgres", "password"),
        ("ada", "postgres", "password"),
        ("nobody:right", "postgres", "password"),
        ("postgres", "missing", 'database "missing" does not exist'),
        ("nobody", "missing", "pg_hba.conf"),
    ],
)
def test_a_permanent_refusal_is_reported_at_once(
    guarded: postgres_servers.Server, who: str, database: str, says: str
) -> None:
    where = f"postgresql://{who}@127.0.0.1:{guarded.port}/{database}"
    with threadkeep.open(where, timeout=600) as keep:
        for ask in (
            keep.setup,
            lambda: keep.checkpointer.get_tuple(config("t")),
            lambda: Chain(keep.checkpointer).put(HELLO),
        ):
            with pytest.raises(errors.Unavailable, match=says) as raised:
                ask()
            assert "wrong" not in str(raised.value)


def test_a_port_where_nobody_listens_is_unavailable() -> None:
    where = f"postgresql://postgres@127.0.0.1:{postgres_servers.free_port()}/postgres"
    with threadkeep.open(where, timeout=0.5) as keep:
        for ask in (keep.setup, keep.threads, lambda: Chain(keep.checkpointer).put(HELLO)):
            with pytest.raises(errors.Unavailable, match="refused"):
                ask()


DAMAGE = {
    "a table is gone": "drop table {s}.tk_items cascade",
    "all tables are gone": "drop schema {s} cascade",
    "a column is gone": "alter table {s}.tk_threads drop column rev",
    "a column has another type": (
        "drop view {s}.tk_v_checkpoints; alter table {s}.tk_checkpoints alter column step type text"
    ),
    "a column has a rule of its own": "alter table {s}.tk_writes add check (false) not valid",
    "a table may not be read": (
        "alter table {s}.tk_threads owner to {role}; set role {role}; revoke all on {s}.tk_threads from {role}"
    ),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_no_driver_exception_is_raised(url: str, damage: str) -> None:
    schema = schema_of(url)
    role = new_role(f"create schema {schema} authorization {{role}}")
    with threadkeep.open(as_role(role, url)) as keep:
        Chain(keep.checkpointer, "u").put(HELLO)
        execute(DAMAGE[damage].format(s=schema, role=role))

        async def all_async() -> list[BaseException | None]:
            asked = every_async_verb(keep).values()
            return [(await asyncio.gather(ask(), return_exceptions=True))[0] for ask in asked]

        raised = [error for error in asyncio.run(all_async()) if isinstance(error, BaseException)]
        for ask in every_verb(keep).values():
            try:
                ask()
            except Exception as error:
                raised.append(error)
        assert {type(error) for error in raised} <= {
            errors.Unavailable,
            errors.Corrupt,
            errors.Conflict,
            errors.Missing,
        }
        assert {type(error) for error in raised} - {errors.Missing}


def test_two_threads_that_had_one_number_would_not_be_mixed_up(url: str) -> None:
    """Threads are numbered by a 64-bit hash. Here another thread has the same number."""
    with threadkeep.open(url) as keep:
        Chain(keep.checkpointer).put({"secret": 1})
        execute(f"update {schema_of(url)}.tk_threads set id = 'another'")
    with threadkeep.open(url) as keep:
        saver = keep.checkpointer
        assert saver.get_tuple(config("t")) is None
        assert list_ids(saver) == []
        saver.copy_thread("t", "u")
        saver.delete_thread("t")
        saver.prune(["t"])
        assert [(info.id, info.checkpoints) for info in keep.threads()] == [("another", 1)]
    assert execute(f"select count(*) from {schema_of(url)}.tk_checkpoints") == [(1,)]


FORKED = """
import os, sys
import psycopg_pool, threadkeep
from checkpoint_chains import Chain, values_of
with psycopg_pool.ConnectionPool(sys.argv[1], min_size=1, open=True) as pool:
    keep = threadkeep.open(pool, schema=sys.argv[2], timeout=5)
    Chain(keep.checkpointer).put({"x": 1})
    child = os.fork()
    if not child:
        try:
            values_of(keep.checkpointer)
            os._exit(1)
        except threadkeep.errors.Unavailable as error:
            os._exit(0 if "fork" in str(error) else 2)
    assert os.waitpid(child, 0)[1] == 0
    assert values_of(keep.checkpointer) == {"x": 1}
    keep.close()
"""


def test_a_lent_pool_is_not_used_in_a_forked_child() -> None:
    run_forked(FORKED, postgres_servers.shared().url(), fresh_name())


# --- values that PostgreSQL cannot store, and values that it can


def test_ids_of_a_thousand_characters_and_odd_ones_come_back(url: str) -> None:
    plain = ["\0", "a\0b", "'", '"', "''; --", "\\", "%s", "%(x)b", ":x", "{ns}", "x" * 1000, "🦜" * 1000, noise(700)]
    odd = [*plain, "\ud800", "\udfff\0", "".join(NOISE.choices("0123456789abcdef", k=1000))]
    for tenant in ("", "a\0\ud800'"):
        with threadkeep.open(url, tenant=tenant) as keep:
            saver = keep.checkpointer
            for n, id in enumerate(odd):
                at = Chain(saver, id).put({"n": n}, id="1")
                Chain(saver, "by id").put({"n": n}, id=id)
                Chain(saver, "by namespace", ns=id).put({"n": n})
                saver.put_writes(at, [("n", n)], id, id)
            for n, id in enumerate(plain):
                Chain(saver, f"plain {n}", run=id).put({id: id}, user=id, **{id: n})
        with threadkeep.open(url, tenant=tenant) as keep:
            saver = keep.checkpointer
            for n, id in enumerate(odd):
                assert values_of(saver, id) == {"n": n}
                assert values_of(saver, "by id", id) == {"n": n}
                assert values_of(saver, "by namespace", ns=id) == {"n": n}
                assert saver.get_tuple(config(id)).pending_writes == [(id, "n", n)]
                assert [info.id for info in keep.threads(prefix=id, limit=1, order="id")] == [id]
            assert list_ids(saver, "by id") == sorted(odd, reverse=True)
            for n, id in enumerate(plain):
                assert values_of(saver, f"plain {n}") == {id: id}
                assert list_ids(saver, f"plain {n}", filter={id: n}) == ["00000000"]
            saver.delete_for_runs([id.replace("\0", "") for id in plain])  # as they are in LangGraph's metadata
            assert {info.id for info in keep.threads()} == {*odd, "by id", "by namespace"}


LONG = noise(5000)
ODD_VALUES = ["a\0b", "\0", math.inf, -math.inf, 2**63, 2**64 - 1, -(2**63), 1e308, "x" * 5000, LONG, True, None]


@pytest.mark.parametrize("key", ["user", "source", "step", "run_id", "a\0b", "parents"])
def test_metadata_that_no_column_holds_stays_filterable(url: str, key: str) -> None:
    with threadkeep.open(url) as keep:
        saver = keep.checkpointer
        odds = ODD_VALUES if key != "run_id" else [odd for odd in ODD_VALUES if odd != LONG]  # a run is an id
        for n, odd in enumerate(odds):
            Chain(saver, f"t{n:02}").put({}, **{key: {"deep": [odd]} if key == "parents" else odd})
        for n, odd in enumerate(odds):
            found = saver.get_tuple(config(f"t{n:02}")).metadata[key]
            listed = [each.config["configurable"]["thread_id"] for each in saver.list(None, filter={key: found})]
            assert listed == [f"t{n:02}"], odd
            assert [info.id for info in keep.threads(metadata={key: found})] == [f"t{n:02}"], odd


def test_nan_in_metadata_comes_back(url: str) -> None:
    with threadkeep.open(url) as keep:
        Chain(keep.checkpointer).put({}, ratio=math.nan, user="ada")
        (found,) = keep.checkpointer.list(None, filter={"user": "ada"})
        assert math.isnan(found.metadata["ratio"])


@pytest.mark.parametrize(
    "ask",
    [
        lambda saver, id: Chain(saver, id).put(HELLO),
        lambda saver, id: Chain(saver).put(HELLO, id=id),
        lambda saver, id: Chain(saver, ns=id).put(HELLO),
        lambda saver, id: Chain(saver, run=id).put(HELLO),
        lambda saver, id: saver.put_writes(config("t", "00000000"), [("x", 1)], id),
        lambda saver, id: saver.put_writes(config("t", id), [("x", 1)], "task"),
        lambda saver, id: saver.copy_thread("there", id),
    ],
    ids=["thread", "checkpoint", "namespace", "run", "task", "checkpoint of a write", "copy"],
)
def test_an_id_that_fits_no_index_is_a_value_error_and_nothing_else_happens(url: str, ask: Callable[..., Any]) -> None:
    with threadkeep.open(url) as keep:
        saver = keep.checkpointer
        Chain(saver, "there").put(HELLO)
        before = keep.threads()
        for _ in range(2):
            with pytest.raises(ValueError, match="too long"):
                ask(saver, noise(10_000))
        assert keep.threads() == before
        chain = Chain(saver)
        chain.put(HELLO)
        chain.put({"x": 1})
        assert list_ids(saver) == ["00000001", "00000000"]


async def test_an_id_that_fits_no_index_does_not_fail_others_of_its_group(url: str) -> None:
    async with threadkeep.open(url) as keep:
        await keep.setup()
        for n in range(3):
            names = [f"{n} {k}" for k in range(30)]
            names[10:10] = names[20:20] = [noise(10_000)]
            done = await asyncio.gather(
                *(Chain(keep.checkpointer, name).aput(HELLO) for name in names), return_exceptions=True
            )
            assert [type(outcome) for outcome in done if isinstance(outcome, Exception)] == [ValueError] * 2
        assert len(await keep.athreads(limit=1000)) == 90


def rows_below(schema: str, bytes: int) -> bool:
    queries = [
        f"select max(octet_length(payload)) from {schema}.tk_items",
        (
            f"select max(octet_length(body) + octet_length(refs) + "
            f"octet_length(id) + octet_length(ns)) from {schema}.tk_checkpoints"
        ),
        f"select max(octet_length(body) + octet_length(refs) + octet_length(entries)) from {schema}.tk_writes",
        f"select max(octet_length(nexts)) from {schema}.tk_threads",
    ]
    return all((execute(query)[0][0] or 0) < bytes for query in queries)


def test_no_row_holds_a_mebibyte(url: str) -> None:
    large = NOISE.randbytes(3 * 1024 * 1024 + 7)
    state = {
        "one": large,
        "list": [large[1:], "small", large[2:]],
        "dict": {f"k{n}": large[n : n + 300_000] for n in range(12)},
        "text": noise(800_000),
    }
    with threadkeep.open(url) as keep:
        at = Chain(keep.checkpointer).put(state, notes=noise(300_000))
        keep.checkpointer.put_writes(at, [("one", large[3:]), ("list", [large[4:]])], "task")
    assert rows_below(schema_of(url), 1024 * 1024)
    with threadkeep.open(url) as keep:
        found = keep.checkpointer.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == state
        assert found.pending_writes == [("task", "one", large[3:]), ("task", "list", [large[4:]])]


@pytest.mark.parametrize("notes", [noise(400_000), "x" * 3_000_000], ids=["noise", "one character"])
def test_metadata_of_more_than_a_mebibyte_is_refused_or_kept(url: str, notes: str) -> None:
    with threadkeep.open(url) as keep:
        chain = Chain(keep.checkpointer)
        chain.put(HELLO)
        try:
            chain.put({"x": 1}, notes=notes)
            kept = True
        except ValueError:
            kept = False
        Chain(keep.checkpointer, "u").put(HELLO)
    with threadkeep.open(url) as keep:
        assert values_of(keep.checkpointer, "u") == HELLO
        assert list_ids(keep.checkpointer) == (["00000001", "00000000"] if kept else ["00000000"])
        found = keep.checkpointer.get_tuple(config("t"))
        assert found is not None
        assert found.metadata.get("notes") == (notes if kept else None)
    assert rows_below(schema_of(url), 1024 * 1024)


def test_what_is_compressed_already_is_not_compressed_again(url: str) -> None:
    with threadkeep.open(url) as keep:
        keep.setup()
    columns = execute(f"""
        select c.relname, a.attname, a.attstorage from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.relnamespace = '{schema_of(url)}'::regnamespace and c.relkind = 'r' and attname in ('payload', 'body')
        order by 1""")
    assert columns == [("tk_checkpoints", "body", "e"), ("tk_items", "payload", "e"), ("tk_writes", "body", "e")]


# --- connections


def connections(name: str) -> list[str]:
    """Return the state of each connection with this application name."""
    return [state for (state,) in execute(f"select state from pg_stat_activity where application_name = '{name}'")]


class Counter:
    """Polls for the maximum number of connections of an application name."""

    def __init__(self, name: str) -> None:
        self.most, self._name, self._stop = 0, name, threading.Event()
        self._thread = threading.Thread(target=self._count)

    def _count(self) -> None:
        with psycopg.connect(postgres_servers.shared().url(), autocommit=True) as connection:
            while not self._stop.wait(0.005):
                asked = "select count(*) from pg_stat_activity where application_name = %s"
                self.most = max(self.most, connection.execute(asked, [self._name]).fetchone()[0])  # type: ignore[index]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def named() -> tuple[str, str]:
    """Return an application name, and a URL with it."""
    name = fresh_name()
    return name, postgres_servers.shared().url(schema=name, application_name=name)


def settled(keep: threadkeep.Keep, name: str, size: int) -> None:
    """Wait until the Keep is set up and the connection for set-up is closed."""
    keep.setup()
    assert postgres_servers.wait_until(lambda: len(connections(name)) <= size, 10)


def test_sixteen_threads_and_several_loops_and_two_hundred_tasks_share_a_few_connections(
    named: tuple[str, str],
) -> None:
    name, url = named
    with threadkeep.open(url, max_size=3) as keep:
        saver = keep.checkpointer
        settled(keep, name, 3)

        def in_a_thread(thread: str) -> Callable[[], None]:
            def work() -> None:
                chain = Chain(saver, thread)
                for n in range(5):
                    chain.put({"n": n})
                    assert values_of(saver, thread) == {"n": n}

            return work

        def many_tasks(loop: str, tasks: int) -> Callable[[], None]:
            async def one(thread: str) -> None:
                chain = Chain(saver, thread)
                for n in range(2):
                    await chain.aput({"n": n})
                found = await saver.aget_tuple(config(thread))
                assert found is not None and found.checkpoint["channel_values"] == {"n": 1}

            async def work() -> None:
                await asyncio.gather(*(one(f"{loop} {n}") for n in range(tasks)))

            return in_loop(work)

        with Counter(name) as counter:
            in_threads(
                *(in_a_thread(f"t{n}") for n in range(16)),
                many_tasks("a", 200),
                many_tasks("b", 20),
                many_tasks("c", 20),
            )
        assert 1 < counter.most <= 3
        assert len(keep.threads(limit=1000)) == 16 + 240
        assert set(connections(name)) == {"idle"}
    assert postgres_servers.wait_until(lambda: connections(name) == [], 10)


def test_reads_and_writes_of_several_threads_are_under_way_at_once(named: tuple[str, str]) -> None:
    """While a writer waits for a server lock, others read and write."""
    name, url = named
    with threadkeep.open(url) as keep:
        for thread in "ab":
            Chain(keep.checkpointer, thread).put(HELLO)
        with psycopg.connect(postgres_servers.shared().url()) as other:
            other.execute(f"select 1 from {name}.tk_threads where id = 'a' for update")
            waiting = threading.Thread(target=Chain(keep.checkpointer, "a").put, args=[{"x": 1}], kwargs={"id": "1"})
            waiting.start()
            assert postgres_servers.wait_until(lambda: blocked(name) == 1, 10)
            Chain(keep.checkpointer, "b").put({"x": 2}, id="1")
            assert values_of(keep.checkpointer, "b") == {"x": 2}
            assert values_of(keep.checkpointer, "a") == HELLO
            assert waiting.is_alive()
        waiting.join(30)
        assert values_of(keep.checkpointer, "a") == {"x": 1}


def blocked(name: str) -> int:
    """Return how many connections of this name wait for a lock."""
    return execute(
        f"select count(*) from pg_stat_activity where application_name = '{name}' and wait_event_type = 'Lock'"
    )[0][0]


async def test_cancelled_tasks_leave_no_connection_behind(named: tuple[str, str]) -> None:
    name, url = named
    async with threadkeep.open(url, max_size=2) as keep:
        saver = keep.checkpointer
        await Chain(saver).aput(HELLO)
        for n in range(10):
            tasks = [asyncio.ensure_future(Chain(saver, f"{n} {k}").aput(HELLO)) for k in range(10)]
            tasks += [asyncio.ensure_future(saver.aget_tuple(config("t"))) for _ in range(10)]
            tasks += [
                asyncio.ensure_future(saver.aprune(["t"])),
                asyncio.ensure_future(saver.acopy_thread("t", f"c{n}")),
            ]
            await asyncio.sleep(0.002 * n)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(saver.aget_tuple(config("t")) for _ in range(10)))
        await Chain(saver, "after").aput(HELLO)
        assert await asyncio.to_thread(postgres_servers.wait_until, lambda: set(connections(name)) == {"idle"}, 10)
        assert len(await asyncio.to_thread(connections, name)) <= 2
    assert await asyncio.to_thread(postgres_servers.wait_until, lambda: connections(name) == [], 10)


# --- round trips


class StatementLog:
    """Reads the statements of one application name from the server's log."""

    def __init__(self) -> None:
        self.name = fresh_name()
        self.url = postgres_servers.shared().url(
            schema=self.name, application_name=self.name, options="-clog_statement=all"
        )

    def during(self, work: Callable[[], Any]) -> list[str]:
        """Return the statements that a function sends, each with its parameters."""
        log = postgres_servers.shared().log
        start = log.stat().st_size
        work()
        ours = {
            str(pid) for (pid,) in execute(f"select pid from pg_stat_activity where application_name = '{self.name}'")
        }
        with log.open(errors="replace") as file:
            file.seek(start)
            entries = re.split(r"^(?=\d{4}-\d\d-\d\d )", file.read(), flags=re.MULTILINE)
        return list(_statements(entries, ours))


def _statements(entries: list[str], pids: set[str]) -> Iterator[str]:
    """Yield the statements of some processes from log entries, each with its details."""
    quoted = None
    for entry in entries:
        found = re.match(r"\S+ \S+ \S+ \[(\d+)\] (LOG:  (?:statement|execute [^:]+)|DETAIL): +(.*)", entry, re.DOTALL)
        if found is None or found[1] not in pids:
            continue
        if found[2] == "DETAIL":
            quoted = f"{quoted}\n{found[3]}"
            continue
        if quoted is not None:
            yield quoted
        quoted = found[3]
    if quoted is not None:
        yield quoted


@pytest.mark.parametrize("prepare", [True, False])
def test_the_verbs_of_a_superstep_are_one_statement_each(prepare: bool) -> None:
    statements_log = StatementLog()

    def count(work: Callable[[], Any]) -> int:
        """Count statements, without the one that changes a connection's setting when it first prepares one."""
        return len([sql for sql in statements_log.during(work) if "plan_cache_mode" not in sql])

    with threadkeep.open(statements_log.url, max_size=1, prepare=prepare) as keep:
        saver = keep.checkpointer
        keep.setup()
        chain, log = Chain(saver), ["first"]
        # A thread that is not cached is loaded first; if it does not exist, its tenant might be encrypted.
        assert count(lambda: chain.put({"log": log, "n": 0})) == 3
        for n in range(1, 12):
            log = [*log, f"message {n} " * 50]
            assert count(lambda: chain.put({"log": log, "n": n}, user="ada")) == 1
            assert count(lambda: saver.put_writes(config("t", chain.last), [("log", [log[-1]]), ("n", n)], "task")) == 1
            assert count(lambda: saver.get_tuple(config("t"))) == 1
            assert count(lambda: saver.get_tuple(config("t", chain.last))) == 1
        assert count(lambda: asyncio.run(chain.aput({"log": log, "n": 12}))) == 1
        assert count(lambda: list(saver.list(config("t"), limit=2))) <= 2
        assert count(lambda: keep.threads(titles=False)) == 1
    statements_log.url += "&max_size=1"
    with threadkeep.open(statements_log.url, prepare=prepare) as keep:
        keep.setup()
        assert count(lambda: keep.checkpointer.get_tuple(config("t"))) == 1
        assert count(lambda: keep.checkpointer.get_tuple(config("nobody"))) == 2  # is its tenant encrypted?
    with threadkeep.open(statements_log.url, prepare=prepare, cache_bytes=0) as keep:
        keep.setup()
        for _ in range(3):
            assert count(lambda: keep.checkpointer.get_tuple(config("t"))) == 1
        quoted = statements_log.during(
            lambda: keep.checkpointer.put_writes(config("t", "00000000"), [("x", 1)], "late")
        )
        assert len(quoted) == 2
        assert not any(re.match("BEGIN|COMMIT", each) for each in quoted)


def test_callers_that_come_together_share_statements() -> None:
    statements_log = StatementLog()
    with threadkeep.open(statements_log.url) as keep:
        chains = [Chain(keep.checkpointer, f"t{n}") for n in range(32)]
        for chain in chains:
            chain.put({"n": 0})

        def all_at_once() -> None:
            with psycopg.connect(postgres_servers.shared().url()) as other:
                other.execute(f"lock table {statements_log.name}.tk_threads in exclusive mode")
                callers = [threading.Thread(target=chain.put, args=[{"n": 1}]) for chain in chains]
                for caller in callers:
                    caller.start()
                assert postgres_servers.wait_until(lambda: blocked(statements_log.name) >= 2, 10)
                threading.Event().wait(0.3)
            for caller in callers:
                caller.join()

        quoted = [each for each in statements_log.during(all_at_once) if "tk_threads" in each]
        assert 0 < len(quoted) < 16
        assert [values_of(keep.checkpointer, chain.thread) for chain in chains] == [{"n": 1}] * 32


# --- durability


@pytest.fixture(scope="module")
def lazy() -> Iterator[postgres_servers.Server]:
    """A server that flushes its WAL only when a commit requests it, not in the background."""
    with postgres_servers.fresh_server(
        {**postgres_servers.QUICK, "autovacuum": "off", "checkpoint_timeout": "1h"}
    ) as server:
        query = "select pid from pg_stat_activity where backend_type = 'walwriter'"
        assert postgres_servers.wait_until(lambda: bool(server.execute(query)), postgres_servers.TIMEOUT)
        ((writer,),) = server.execute(query)
        os.kill(writer, signal.SIGSTOP)
        yield server
        os.kill(writer, signal.SIGCONT)


@pytest.mark.parametrize("group", ["all", "thread"])
@pytest.mark.parametrize("default", ["on", "off", "local"])
@pytest.mark.parametrize("durability", ["strict", "relaxed"])
def test_strict_commits_are_flushed_and_relaxed_ones_are_not(
    lazy: postgres_servers.Server, durability: str, default: str, group: str
) -> None:
    where = lazy.url(schema=fresh_name(), options=f"-csynchronous_commit={default}", group=group)
    with threadkeep.open(where, durability=durability) as keep, psycopg.connect(lazy.url(), autocommit=True) as other:
        saver = keep.checkpointer
        keep.setup()

        def flushed(work: Callable[[], Any]) -> bool:
            """Return whether the WAL of a function's changes was flushed when it returned."""
            before = other.execute("select pg_current_wal_insert_lsn()").fetchone()
            work()
            return other.execute("select pg_current_wal_flush_lsn() > %s::pg_lsn", before).fetchone() == (True,)

        chain = Chain(saver)
        done = [
            flushed(lambda: chain.put({"x": 1})),
            flushed(lambda: chain.put({"x": 2})),
            flushed(lambda: saver.put_writes(config("t", "00000001"), [("x", 1)], "task")),
            flushed(lambda: saver.copy_thread("t", "u")),
            flushed(lambda: saver.prune(["t"])),
            flushed(lambda: saver.delete_thread("u")),
            flushed(lambda: asyncio.run(chain.aput({"x": 3}))),
        ]
        assert done == [durability == "strict"] * 7


# --- query plans


MANY = 20_000
_MULTIPLY = """
insert into {s}.tk_threads select thread + n, epoch, rev, created + n * 1000, updated + n * 1000,
    checkpoints, writes, bytes, step, labels, tenant, kind, convert_to('t' || n, 'UTF8'), nexts, top, run, source,
    status, early, early_status, lease, (updated + n * 1000) >> 8
from {s}.tk_threads, generate_series(1, {many}) n;
insert into {s}.tk_checkpoints select thread + n, time, step, labels, hidden, ns, id, parent, run, source, body, refs
from {s}.tk_checkpoints, generate_series(1, {many}) n;
insert into {s}.tk_items select thread + m, lane, n, payload from {s}.tk_items, generate_series(1, {many}) m;
insert into {s}.tk_tags select thread + n, labels, tag from {s}.tk_tags, generate_series(1, {many}) n;
insert into {s}.tk_runs select thread + n, convert_to('sr' || n, 'UTF8') from {s}.tk_runs, generate_series(1, {many}) n;
analyze {s}.tk_threads, {s}.tk_checkpoints, {s}.tk_items, {s}.tk_tags, {s}.tk_runs;
"""


@pytest.fixture(scope="module")
def crowd() -> Iterator[tuple[threadkeep.Keep, Callable[[Callable[[], Any]], list[str]]]]:
    """A Keep with very many threads, and a function that returns the query plans of some work."""
    statements_log = StatementLog()
    options = "-csession_preload_libraries=auto_explain -cauto_explain.log_min_duration=0 -cauto_explain.log_analyze=on"
    where = (
        postgres_servers.shared().url(schema=statements_log.name, application_name=statements_log.name)
        + f"&options={quote(options)}"
    )
    with threadkeep.open(where, max_size=1) as keep:
        Chain(keep.checkpointer, run="r").put(HELLO, user="ada")
        execute(_MULTIPLY.format(s=statements_log.name, many=MANY))

        def plans(work: Callable[[], Any]) -> list[str]:
            log = postgres_servers.shared().log
            start = log.stat().st_size
            work()
            ((pid,),) = execute(f"select pid from pg_stat_activity where application_name = '{statements_log.name}'")
            with log.open(errors="replace") as file:
                file.seek(start)
                entries = re.split(r"^(?=\d{4}-\d\d-\d\d )", file.read(), flags=re.MULTILINE)
            return [entry for entry in entries if f" [{pid}] LOG:  duration:" in entry and " plan:" in entry]

        yield keep, plans


@pytest.mark.parametrize(
    "ask",
    [
        lambda keep: keep.threads(limit=10),
        lambda keep: keep.threads(limit=10, after=keep.threads(limit=10)[-1]),
        lambda keep: keep.threads(limit=10, order="created"),
        lambda keep: keep.threads(limit=10, order="created", after=keep.threads(limit=10, order="created")[-1]),
        lambda keep: keep.threads(limit=10, order="id"),
        lambda keep: keep.threads(limit=10, order="id", after="t19"),
        lambda keep: keep.threads(limit=10, prefix="t1999"),
        lambda keep: keep.checkpointer.get_tuple(config("t77")),
        lambda keep: list(keep.checkpointer.list(config("t77"))),
        lambda keep: list(keep.checkpointer.list({"configurable": {"thread_id": "t77"}}, limit=1)),
        lambda keep: list(keep.checkpointer.list(config("t77"), filter={"user": "ada", "source": "loop"})),
        lambda keep: Chain(keep.checkpointer, "t78").put({"x": 1}, id="1"),
        lambda keep: keep.checkpointer.put_writes(config("t78", "00000000"), [("x", 1)], "task"),
        lambda keep: keep.checkpointer.prune(["t78"]),
        lambda keep: keep.checkpointer.delete_thread("t79"),
        lambda keep: keep.checkpointer.copy_thread("t77", f"copy {fresh_name()}"),
        lambda keep: keep.checkpointer.delete_for_runs(["r80"]),
    ],
    ids=[
        "threads",
        "threads after",
        "threads by created",
        "threads by created after",
        "threads by id",
        "threads by id after",
        "threads by prefix",
        "get_tuple",
        "list",
        "list all namespaces",
        "list filtered",
        "put",
        "put_writes",
        "prune",
        "delete_thread",
        "copy_thread",
        "delete_for_runs",
    ],
)
def test_no_table_is_read_as_a_whole(
    crowd: tuple[threadkeep.Keep, Callable[[Callable[[], Any]], list[str]]], ask: Callable[[threadkeep.Keep], Any]
) -> None:
    keep, plans = crowd
    made = plans(lambda: ask(keep))
    assert made
    for plan in made:
        assert not re.search(r"Seq Scan on tk_(threads|checkpoints|items|tags|runs)", plan), plan
        rows = [int(rows) for rows in re.findall(r"Scan[^\n]* on tk_\w+[^\n]*actual time=\S+ rows=(\d+)", plan)]
        assert max(rows, default=0) < MANY / 4, plan
