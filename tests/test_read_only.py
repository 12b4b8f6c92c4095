"""read_only=True: everything can be read, nothing is changed or created; on every backend, sync and async."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import postgres_servers
import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from processes import run
from sync_async import Caller
from test_opening import public_folder  # noqa: F401 - a fixture
from threadkeep import errors
from verbs import every_async_verb, every_verb

AT = config("t", "00000001")
CHANGES: dict[str, tuple[Any, ...]] = {
    "put": Chain(None).next({"x": 1}),
    "put_writes": (AT, [("x", 1)], "another task"),
    "delete_thread": ("t",),
    "prune": (["t"],),
    "copy_thread": ("t", "u"),
    "delete_for_runs": (["r"],),
}


@pytest.fixture
def written(lasting_url: str) -> str:
    """A URL with a thread of two checkpoints and a write."""
    with threadkeep.open(lasting_url) as keep:
        chain = Chain(keep.checkpointer, run="r")
        chain.put({"x": "y" * 100})
        chain.put({"x": "z" * 100})
        keep.checkpointer.put_writes(AT, [("x", 1)], "task")
    return lasting_url


def read_all(keep: threadkeep.Keep) -> list[Any]:
    saver = keep.checkpointer
    latest = saver.get_tuple(config("t"))
    history = saver.get_delta_channel_history(config=AT, channels=["x"])
    filtered = list_ids(saver, None, filter={"source": "loop"})
    return [
        latest,
        list(saver.list(None)),
        list_ids(saver),
        filtered,
        history,
        keep.threads(),
        keep.threads(metadata={"step": 1}),
    ]


def test_everything_can_be_read(written: str) -> None:
    with threadkeep.open(written) as keep:
        expected = read_all(keep)
    with threadkeep.open(written, read_only=True) as keep:
        keep.setup()
        assert read_all(keep) == expected
        assert values_of(keep.checkpointer) == {"x": "z" * 100}


@pytest.mark.parametrize("verb", list(CHANGES))
async def test_every_change_is_refused_and_changes_nothing(written: str, call: Caller, verb: str) -> None:
    async with threadkeep.open(written, read_only=True) as keep:
        saver = keep.checkpointer
        before = await call(keep, "threads")
        for _ in range(2):
            with pytest.raises(errors.ReadOnly):
                await call(saver, verb, *CHANGES[verb])
        assert await call(keep, "threads") == before
        found = await call(saver, "get_tuple", config("t"))
        assert found.checkpoint["channel_values"] == {"x": "z" * 100}
        assert found.pending_writes == [("task", "x", 1)]


def test_a_reader_sees_what_a_writer_does_meanwhile(written: str) -> None:
    with threadkeep.open(written) as writer, threadkeep.open(written, read_only=True) as reader:
        for n in range(5):
            Chain(writer.checkpointer).put({"n": n}, id=f"1{n}")
            assert values_of(reader.checkpointer) == {"n": n}
        writer.checkpointer.delete_thread("t")
        assert reader.checkpointer.get_tuple(config("t")) is None


def test_a_database_without_our_tables_is_unavailable_and_stays_so(tables_url: str) -> None:
    with threadkeep.open(tables_url, read_only=True) as keep:
        for _ in range(2):
            for ask in every_verb(keep).values():
                with pytest.raises((errors.Unavailable, errors.ReadOnly)):
                    ask()
            with pytest.raises(errors.Unavailable):
                keep.setup()
        with threadkeep.open(tables_url) as writer:
            Chain(writer.checkpointer).put({"x": 1})
        assert values_of(keep.checkpointer) == {"x": 1}


async def test_a_database_without_our_tables_is_unavailable_for_async_callers(tables_url: str) -> None:
    async with threadkeep.open(tables_url, read_only=True) as keep:
        for ask in every_async_verb(keep).values():
            with pytest.raises((errors.Unavailable, errors.ReadOnly)):
                await ask()


def test_a_newer_schema_is_refused_by_readers_too(tmp_path: Path) -> None:
    import apsw

    with threadkeep.open(f"sqlite:///{tmp_path / 'a.db'}") as keep:
        keep.setup()
    apsw.Connection(str(tmp_path / "a.db")).execute(
        "UPDATE tk_schema SET version = 999, readable = 999, writable = 999"
    )
    url = postgres_servers.fresh_schema(postgres_servers.shared())
    with threadkeep.open(url) as keep:
        keep.setup()
    postgres_servers.shared().execute(f"insert into {url.partition('schema=')[2]}.tk_schema values (999)")
    for newer in (f"sqlite:///{tmp_path / 'a.db'}", url):
        with threadkeep.open(newer, read_only=True) as keep, pytest.raises(errors.SchemaTooNew, match="999"):
            keep.threads()


@pytest.mark.parametrize("wrong", [None, 1, "yes"])
def test_anything_but_true_and_false_is_a_type_error(url: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match="read_only"):
        threadkeep.open(url, read_only=wrong)


# --- memory


def test_a_memory_keep_that_is_read_only_is_empty_for_ever() -> None:
    with threadkeep.open("memory://", read_only=True) as keep:
        keep.setup()
        with pytest.raises(errors.ReadOnly):
            Chain(keep.checkpointer).put({"x": 1})
        assert (keep.checkpointer.get_tuple(config("t")), keep.threads(), list_ids(keep.checkpointer, None)) == (
            None,
            [],
            [],
        )


# --- SQLite


@pytest.mark.parametrize("there", ["nothing", "an empty file"])
def test_no_file_is_made_or_changed(tmp_path: Path, there: str) -> None:
    path = tmp_path / "agent.db"
    if there == "an empty file":
        path.touch()
    before = [(each.name, each.stat().st_size) for each in tmp_path.iterdir()]
    with threadkeep.open(f"sqlite:///{path}", read_only=True) as keep:
        for ask in (keep.setup, keep.threads, lambda: keep.checkpointer.get_tuple(config("t"))):
            with pytest.raises(errors.Unavailable) as raised:
                ask()
            assert str(path) in str(raised.value)
        with pytest.raises((errors.Unavailable, errors.ReadOnly)):
            Chain(keep.checkpointer).put({"x": 1})
    assert [(each.name, each.stat().st_size) for each in tmp_path.iterdir()] == before


def test_a_file_is_the_same_after_it_was_read(tmp_path: Path) -> None:
    """SQLite may leave -wal and -shm files: a reader is not allowed to remove them."""
    path = tmp_path / "agent.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        Chain(keep.checkpointer).put({"x": 1})
    before = path.read_bytes()
    with threadkeep.open(f"sqlite:///{path}", read_only=True) as keep:
        assert values_of(keep.checkpointer) == {"x": 1}
    assert path.read_bytes() == before
    assert not any(each.stat().st_size for each in tmp_path.glob("*-wal"))


READER = """
import sys
import threadkeep
from checkpoint_chains import Chain, values_of
from rights import drop_rights
saver = threadkeep.open(sys.argv[1], read_only=True).checkpointer
drop_rights()
assert values_of(saver) == {"x": 1}
try:
    Chain(saver).put({"x": 2})
    raise SystemExit("it was written")
except threadkeep.errors.ReadOnly:
    pass
assert values_of(saver) == {"x": 1}
"""


@pytest.mark.parametrize("what", ["file", "file and folder"])
def test_a_file_that_may_not_be_written_can_be_read(public_folder: Path, what: str) -> None:  # noqa: F811
    path = public_folder / "agent.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        Chain(keep.checkpointer).put({"x": 1})
    path.chmod(0o444)
    public_folder.chmod(0o555 if what == "file and folder" else 0o777)
    run(READER, f"sqlite:///{path}")


PROTECTED = """
import os, sys
from pathlib import Path
import threadkeep
from checkpoint_chains import Chain, values_of
from rights import NOBODY, drop_rights
path, reads_only, by_root = Path(sys.argv[1]), sys.argv[2] == "True", sys.argv[3] == "True"

def give_away():
    if os.geteuid() == 0:
        os.chown(path.parent, NOBODY, NOBODY)
        os.chown(path, NOBODY, NOBODY)
    drop_rights()

if not by_root:
    give_away()
path.chmod(0o444)
with threadkeep.open(f"sqlite:///{path}", read_only=reads_only) as keep:
    assert values_of(keep.checkpointer) == {"x": 1}
    if not by_root:
        try:
            Chain(keep.checkpointer).put({"x": 2})
            raise SystemExit("it was written")
        except threadkeep.errors.ThreadkeepError:
            pass
assert [each.name for each in path.parent.iterdir()] == [path.name]
give_away()
path.chmod(0o644)
with threadkeep.open(f"sqlite:///{path}") as keep:
    Chain(keep.checkpointer).put({"x": 3})
    assert values_of(keep.checkpointer) == {"x": 3}
"""


@pytest.mark.parametrize("reads_only", [True, False])
@pytest.mark.parametrize("by_root", [True, False])
def test_a_protected_file_that_was_read_can_be_written_when_it_may_be(
    public_folder: Path,  # noqa: F811
    reads_only: bool,  # noqa: FBT001
    by_root: bool,  # noqa: FBT001
) -> None:
    path = public_folder / "agent.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        Chain(keep.checkpointer).put({"x": 1})
    run(PROTECTED, str(path), str(reads_only), str(by_root))


def test_a_reader_of_a_protected_file_sees_what_was_written_since(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with threadkeep.open(f"sqlite:///{path}") as keep:
        Chain(keep.checkpointer).put({"x": 1})
    path.chmod(0o444)
    with threadkeep.open(f"sqlite:///{path}", read_only=True) as reader:
        assert values_of(reader.checkpointer) == {"x": 1}
        path.chmod(0o644)
        with threadkeep.open(f"sqlite:///{path}") as keep:
            for n in range(3):
                Chain(keep.checkpointer).put({"x": n}, id=f"1{n}")
                assert values_of(reader.checkpointer) == {"x": n}
        assert values_of(reader.checkpointer) == {"x": 2}


# --- PostgreSQL


def test_a_role_that_may_only_read_is_enough() -> None:
    server = postgres_servers.shared()
    url = postgres_servers.fresh_schema(server)
    schema, role = url.partition("schema=")[2], f"r_{uuid.uuid4().hex}"
    with threadkeep.open(url) as keep:
        Chain(keep.checkpointer, run="r").put({"x": "y" * 100})
        Chain(keep.checkpointer, run="r").put({"x": "z" * 100}, id="00000001")
        expected = read_all(keep)
    server.execute(f"create role {role} login nosuperuser; grant usage on schema {schema} to {role}")
    server.execute(f"grant select on all tables in schema {schema} to {role}")
    with threadkeep.open(url.replace("postgres@", f"{role}@", 1), read_only=True) as keep:
        keep.setup()
        assert read_all(keep) == expected
        for verb, arguments in CHANGES.items():
            with pytest.raises(errors.ReadOnly):
                getattr(keep.checkpointer, verb)(*arguments)


def test_no_schema_or_table_is_made() -> None:
    server = postgres_servers.shared()
    url = postgres_servers.fresh_schema(server)
    schema = url.partition("schema=")[2]
    for _ in range(2):
        with threadkeep.open(url, read_only=True) as keep:
            for ask in (keep.setup, keep.threads, lambda: keep.checkpointer.get_tuple(config("t"))):
                with pytest.raises(errors.Unavailable, match="read_only"):
                    ask()
        made = server.execute(f"select relname from pg_class where relnamespace::regnamespace::text = '{schema}'")
        assert made == []
        server.execute(f"create schema if not exists {schema}")


def test_a_hot_standby_can_be_read() -> None:
    with postgres_servers.fresh_server() as primary:
        url = primary.url(schema="k")
        with threadkeep.open(url) as keep:
            Chain(keep.checkpointer).put({"x": 1})
        standby = primary.standby(postgres_servers.fresh_folder(), postgres_servers.free_port(), "s1")
        standby.start()
        try:
            hosts = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
            with threadkeep.open(f"{hosts}?schema=k&target_session_attrs=standby", read_only=True) as keep:
                assert values_of(keep.checkpointer) == {"x": 1}
                assert [info.id for info in keep.threads()] == ["t"]
                with pytest.raises(errors.ReadOnly):
                    Chain(keep.checkpointer).put({"x": 2})
        finally:
            standby.remove()
