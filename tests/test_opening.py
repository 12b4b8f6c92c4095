"""Opening and closing: valid URLs and options, set-up, errors and their messages, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

import threadkeep
from checkpoint_chains import Chain, config, list_ids, values_of
from conftest import BACKENDS, Backend
from processes import run, run_concurrently
from threadkeep import errors
from threadkeep.transports.sqlite import SqliteFile
from verbs import every_async_verb, every_verb

HELLO = {"greeting": "hello " * 20}


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


# --- URLs and options


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "sqlite",
        "sqlite:",
        "sqlite:agent.db",
        "sqlite:/agent.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:////",
        "sqlite:///folder/",
        "sqlite://agent.db",
        "sqlite://host/agent.db",
        "sqlite:///:memory:",
        "sqlite:///agent.db?mode=ro",
        "sqlite:///agent\0.db",
        " sqlite:///agent.db",
        "file:///agent.db",
        "mysql://host/agents",
        "memory",
        "memory:",
        "memory:/",
        "memory://name",
        "memory:///",
        "localhost:6379",
        "C++:agent.db",
        "host=localhost dbname=agents",
        "dbname=agents",
        "folder/",
        "~/",
        ":memory:",
        "agent.db?mode=ro",
        Path("sqlite:///agent.db"),
        Path("postgresql://host/agents"),
        Path("agent.db?mode=ro"),
    ],
    ids=str,
)
def test_a_bad_url_is_a_value_error_that_says_what_is_accepted(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"accepted|memory://"):
        threadkeep.open(wrong)
    with (
        pytest.raises(ValueError, match=r"accepted|memory://"),
        threadkeep.KeepSaver.from_conn_string(wrong),
    ):
        pass


@pytest.mark.parametrize(
    "wrong",
    [
        "postgresql:ann:hunter2@host/agents",
        Path("postgresql://ann:hunter2@host/agents"),
        "host=localhost password=hunter2",
        "user=ann password = 'hunter2 and more'",
    ],
    ids=str,
)
def test_what_is_refused_is_named_without_its_password(wrong: Any) -> None:
    with pytest.raises(ValueError, match="accepted are") as raised:
        threadkeep.open(wrong)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("wrong", [None, 5, b"memory://", b"agent.db", ["memory://"]])
def test_a_url_that_is_neither_a_str_nor_a_path_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="str"):
        threadkeep.open(wrong)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"durability": "fast"}, "strict"),
        ({"durability": "STRICT"}, "strict"),
        ({"durability": ""}, "strict"),
        ({"durability": None}, "strict"),
        ({"durability": 1}, "strict"),
        ({"timeout": 0}, "seconds"),
        ({"timeout": -1.0}, "seconds"),
        ({"timeout": float("nan")}, "seconds"),
        ({"timeout": float("inf")}, "seconds"),
        ({"timeout": "1"}, "seconds"),
        ({"timeout": None}, "seconds"),
        ({"timeout": True}, "seconds"),
        ({"cache_bytes": -1}, "cache_bytes"),
        ({"serde": JsonPlusSerializer(), "allowed_types": [dict]}, "allowed_types"),
    ],
)
def test_a_bad_option_is_a_value_error_that_names_it(url: str, option: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        threadkeep.open(url, **option)
    with pytest.raises(ValueError, match=says), threadkeep.KeepSaver.from_conn_string(url, **option):
        pass


@pytest.mark.parametrize(
    "option",
    [
        {"cache_bytes": 1.5},
        {"cache_bytes": "1"},
        {"cache_bytes": None},
        {"cache_bytes": True},
        {"tenant": None},
        {"tenant": b"a"},
        {"tenant": ["a"]},
        {"unheard_of": 1},
    ],
    ids=str,
)
def test_an_option_of_another_type_is_a_type_error(url: str, option: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        threadkeep.open(url, **option)


@pytest.mark.parametrize("wrong", [5, "msgpack", ["msgpack"], len], ids=str)
def test_a_serde_that_cannot_serialize_is_refused_when_the_keep_is_opened(url: str, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="serde"):
        threadkeep.open(url, serde=wrong)


def test_options_are_keyword_only(url: str) -> None:
    with pytest.raises(TypeError):
        threadkeep.open(url, None)  # type: ignore[misc]


def test_a_relative_path_is_relative_to_the_folder_at_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one" / "deep").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    plain, deep = threadkeep.open("sqlite:///a.db"), threadkeep.open("sqlite:///deep/../deep/b.db")
    monkeypatch.chdir(tmp_path / "two")
    with plain, deep:
        Chain(plain.checkpointer).put(HELLO)
        Chain(deep.checkpointer).put(HELLO)
    assert (tmp_path / "one" / "a.db").exists()
    assert (tmp_path / "one" / "deep" / "b.db").exists()
    assert os.listdir(tmp_path / "two") == []


@pytest.mark.parametrize(
    ("named", "file"),
    [
        ("a.db", "a.db"),
        (Path("a.db"), "a.db"),
        (Path("deep", "..", "deep", "a.db"), "deep/a.db"),
        ("./no:scheme.db", "no:scheme.db"),
        (Path("no:scheme.db"), "no:scheme.db"),
        ("C:a.db", "C:a.db"),
        ("sqlite.db", "sqlite.db"),
        ("a=b.db", "a=b.db"),
        ("~a.db", "~a.db"),
        ("~/a.db", "home/a.db"),
        (Path("~/a.db"), "home/a.db"),
    ],
    ids=str,
)
def test_a_path_is_a_file_of_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | Path, file: str
) -> None:
    for folder in ("home", "deep"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with threadkeep.open(named) as keep:
        Chain(keep.checkpointer).put(HELLO)
    assert [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()] == [file]
    with threadkeep.KeepSaver.from_conn_string(named, read_only=True) as saver:
        assert values_of(saver) == HELLO


def test_an_absolute_path_is_a_file_of_sqlite(tmp_path: Path) -> None:
    with threadkeep.open(tmp_path / "a.db") as keep:
        Chain(keep.checkpointer).put(HELLO)
    with threadkeep.open(str(tmp_path / "a.db")) as keep:
        assert values_of(keep.checkpointer) == HELLO
    assert threadkeep.convert(tmp_path / "a.db", tmp_path / "b.db").threads == 1
    assert threadkeep.backup(tmp_path / "b.db", tmp_path / "c.db").threads == 1
    assert (tmp_path / "c.db").is_file()


@pytest.mark.parametrize(
    "name", ["a b.db", "100%25.db", "a#b.db", "a'b\"c.db", "🦜.db", "file:x.db", "no-suffix", ".hidden"]
)
def test_a_file_has_exactly_the_name_that_the_url_says(tmp_path: Path, name: str) -> None:
    with threadkeep.open(f"sqlite:////{str(tmp_path).lstrip('/')}/{name}") as keep:
        Chain(keep.checkpointer).put(HELLO)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("durability", ["strict", "relaxed"])
def test_what_was_put_is_there_for_the_next_keep(lasting_url: str, durability: str) -> None:
    with threadkeep.open(lasting_url, durability=durability) as keep:
        Chain(keep.checkpointer).put(HELLO)
    with threadkeep.open(lasting_url) as keep:
        assert values_of(keep.checkpointer) == HELLO


def test_every_memory_keep_is_private_and_empty() -> None:
    with threadkeep.open("memory://") as one, threadkeep.open("memory://") as other:
        Chain(one.checkpointer).put(HELLO)
        assert other.checkpointer.get_tuple(config("t")) is None
        assert other.threads() == []
        assert list(other.checkpointer.list(None)) == []


def test_tenants_do_not_see_each_other(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, tenant="a") as a, threadkeep.open(lasting_url, tenant="b") as b:
        Chain(a.checkpointer).put({"x": "a"})
        assert (b.checkpointer.get_tuple(config("t")), b.threads(), list_ids(b.checkpointer, None)) == (None, [], [])
        Chain(b.checkpointer).put({"x": "b"})
        b.checkpointer.copy_thread("t", "u")
        b.checkpointer.delete_thread("t")
        assert values_of(a.checkpointer) == {"x": "a"}
        assert [info.id for info in a.threads()] == ["t"]
        assert [info.id for info in b.threads()] == ["u"]


# --- set-up


def test_nothing_is_created_before_the_first_use(tmp_path: Path) -> None:
    with threadkeep.open(url_of(tmp_path / "agent.db")) as keep:
        assert keep.checkpointer is keep.checkpointer
        assert os.listdir(tmp_path) == []
    assert os.listdir(tmp_path) == []


def test_reading_first_finds_nothing_and_then_writing_works(saver: threadkeep.KeepSaver, keep: threadkeep.Keep) -> None:
    assert saver.get_tuple(config("t")) is None
    assert list(saver.list(config("t"))) == []
    assert list(saver.list(None)) == []
    assert keep.threads() == []
    saver.delete_thread("t")
    saver.prune(["t"])
    saver.copy_thread("t", "u")
    saver.delete_for_runs(["r"])
    Chain(saver).put(HELLO)
    assert values_of(saver) == HELLO


def test_setup_creates_the_file_at_once_and_may_be_repeated(tmp_path: Path) -> None:
    with threadkeep.open(url_of(tmp_path / "agent.db")) as keep:
        keep.checkpointer.setup()
        assert (tmp_path / "agent.db").stat().st_size > 0
        keep.setup()
        Chain(keep.checkpointer).put(HELLO)
        keep.checkpointer.setup()
        assert values_of(keep.checkpointer) == HELLO


async def test_setup_may_be_awaited(tmp_path: Path) -> None:
    async with threadkeep.open(url_of(tmp_path / "agent.db")) as keep:
        await keep.checkpointer.setup()
        assert await asyncio.to_thread((tmp_path / "agent.db").exists)
        await keep.setup()
        await Chain(keep.checkpointer).aput(HELLO)


def test_what_setup_gave_without_a_loop_may_be_awaited_later(keep: threadkeep.Keep) -> None:
    done = keep.setup()

    async def wait() -> None:
        await done

    asyncio.run(wait())


def test_setup_reports_what_is_wrong(tmp_path: Path) -> None:
    url = url_of(tmp_path / "missing" / "agent.db")
    with threadkeep.open(url) as keep:
        with pytest.raises(errors.Unavailable):
            keep.setup()

        async def awaited() -> None:
            await keep.setup()

        with pytest.raises(errors.Unavailable):
            asyncio.run(awaited())


OPEN_AND_PUT = """
import sys
import threadkeep
from checkpoint_chains import Chain
url, name = sys.argv[1:]
keep = threadkeep.open(url)
chain = Chain(keep.checkpointer, name)
wait_for_others()
chain.put({"who": name})
Chain(keep.checkpointer, "shared").put({"who": name}, id=name)
"""


def test_sixteen_processes_open_an_empty_file_at_once(lasting_url: str) -> None:
    names = [f"p{n:02}" for n in range(16)]
    run_concurrently(OPEN_AND_PUT, [(lasting_url, name) for name in names])
    with threadkeep.open(lasting_url) as keep:
        assert [info.id for info in keep.threads(order="id")] == [*names, "shared"]
        assert list_ids(keep.checkpointer, "shared") == names[::-1]
        assert [values_of(keep.checkpointer, name)["who"] for name in names] == names


def test_many_threads_and_keeps_open_an_empty_file_at_once(lasting_url: str) -> None:
    keeps = [threadkeep.open(lasting_url) for _ in range(8)]
    start = threading.Barrier(16)
    failed: list[BaseException] = []

    def use(number: int) -> None:
        start.wait()
        try:
            Chain(keeps[number % 8].checkpointer, f"t{number}").put(HELLO)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=use, args=[number]) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(keeps[0].threads()) == 16
    for keep in keeps:
        keep.close()


# --- from_conn_string


def test_from_conn_string_serves_with(url: str) -> None:
    with threadkeep.KeepSaver.from_conn_string(url) as saver:
        assert isinstance(saver, threadkeep.KeepSaver)
        Chain(saver).put(HELLO)
        assert values_of(saver) == HELLO
    with pytest.raises(errors.Closed):
        saver.get_tuple(config("t"))


async def test_from_conn_string_serves_async_with(url: str) -> None:
    async with threadkeep.KeepSaver.from_conn_string(url, durability="relaxed", timeout=5) as saver:
        await saver.setup()
        await Chain(saver).aput(HELLO)
        assert await saver.aget_tuple(config("t")) is not None
    with pytest.raises(errors.Closed):
        await saver.aget_tuple(config("t"))


async def test_an_error_inside_with_closes_and_is_raised(url: str) -> None:
    class Ours(Exception):
        pass

    with pytest.raises(Ours):
        async with threadkeep.KeepSaver.from_conn_string(url) as saver:
            await Chain(saver).aput(HELLO)
            raise Ours
    with pytest.raises(errors.Closed):
        await saver.aget_tuple(config("t"))


# --- closing


@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
@pytest.mark.parametrize("verb", list(every_verb(threadkeep.open("memory://"))))
def test_a_verb_after_close_is_closed(url: str, verb: str, used: bool) -> None:
    keep = threadkeep.open(url)
    if used:
        Chain(keep.checkpointer).put(HELLO)
    keep.close()
    with pytest.raises(errors.Closed, match="open"):
        every_verb(keep)[verb]()


@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
@pytest.mark.parametrize("verb", list(every_async_verb(threadkeep.open("memory://"))))
async def test_an_async_verb_after_close_is_closed(url: str, verb: str, used: bool) -> None:
    keep = threadkeep.open(url)
    if used:
        await Chain(keep.checkpointer).aput(HELLO)
    await keep.aclose()
    with pytest.raises(errors.Closed, match="open"):
        await every_async_verb(keep)[verb]()


def test_closing_closes_every_adapter_and_clone(url: str) -> None:
    keep = threadkeep.open(url)
    clone = keep.checkpointer.with_allowlist([("decimal", "Decimal")])
    keep.close()
    with pytest.raises(errors.Closed):
        clone.get_tuple(config("t"))


def test_closing_twice_is_harmless(url: str) -> None:
    keep = threadkeep.open(url)
    Chain(keep.checkpointer).put(HELLO)
    keep.close()
    keep.close()
    asyncio.run(keep.aclose())
    with keep:
        pass


async def test_aclose_may_be_called_twice_and_at_once(url: str) -> None:
    keep = threadkeep.open(url)
    await Chain(keep.checkpointer).aput(HELLO)
    await asyncio.gather(keep.aclose(), keep.aclose(), keep.aclose())
    await keep.aclose()


def test_a_listing_that_is_under_way_ends_with_closed(url: str) -> None:
    keep = threadkeep.open(url)
    chain = Chain(keep.checkpointer)
    for n in range(60):
        chain.put({"n": n})
    listing = keep.checkpointer.list(config("t"))
    next(listing)
    keep.close()
    with pytest.raises(errors.Closed):
        list(listing)


def test_close_waits_for_what_is_under_way_and_loses_nothing(lasting_url: str) -> None:
    """Callers see either their put done or Closed, at whatever point they are."""
    for _ in range(5):
        keep = threadkeep.open(lasting_url)
        keep.setup()
        done: list[str] = []
        seen: list[BaseException] = []
        busy = threading.Barrier(13)

        def use(number: int, keep: threadkeep.Keep = keep, busy: threading.Barrier = busy) -> None:
            chain = Chain(keep.checkpointer, f"t{number % 8}")
            busy.wait()
            try:
                while True:
                    name = f"{number:02}-{time.monotonic_ns()}"
                    if number < 8:
                        chain.put({"n": number}, id=name)
                    else:
                        asyncio.run(chain.aput({"n": number}, id=name))
                    done.append(name)
            except BaseException as error:
                seen.append(error)

        threads = [threading.Thread(target=use, args=[number], daemon=True) for number in range(12)]
        for thread in threads:
            thread.start()
        busy.wait()
        while len(done) < 20:
            time.sleep(0.001)
        keep.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert {type(error) for error in seen} == {errors.Closed}
        with threadkeep.open(lasting_url) as again:
            assert set(done) <= set(list_ids(again.checkpointer, None))
            for name in {info.id for info in again.threads()}:
                again.checkpointer.delete_thread(name)


def test_close_finishes_changes_that_wait_for_their_turn(url: str) -> None:
    """Only sync callers so far: there is no worker yet that could take over their commits."""
    keep = threadkeep.open(url)
    keep.setup()
    transport = keep.checkpointer._session.transport
    write, writing, go_on = transport.write, threading.Event(), threading.Event()

    def slow(requests: Any) -> Any:
        writing.set()
        go_on.wait()
        return write(requests)

    transport.write, transport.commits_at_once = slow, False  # type: ignore[method-assign]
    seen: dict[str, Any] = {}

    def use(name: str) -> None:
        try:
            seen[name] = Chain(keep.checkpointer, name).put(HELLO)["configurable"]["thread_id"]
        except BaseException as error:
            seen[name] = error

    first = threading.Thread(target=use, args=["a"], daemon=True)
    first.start()
    assert writing.wait(60)
    names = [f"b{n}" for n in range(transport.writers + 2)]
    others = [threading.Thread(target=use, args=[name], daemon=True) for name in names]
    for other in others:
        other.start()
    deadline = time.monotonic() + 60
    while len(keep.checkpointer._session.runner._state.commits) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    closing = threading.Thread(target=keep.close, daemon=True)
    closing.start()
    while not keep.checkpointer._session.runner._closed:
        time.sleep(0.001)
    go_on.set()
    for each in (first, *others, closing):
        each.join(30)
    assert seen == {name: name for name in ("a", *names)}
    assert not closing.is_alive()


def test_an_adapter_keeps_its_keep_alive(url: str) -> None:
    saver = threadkeep.open(url).checkpointer
    gc.collect()
    Chain(saver).put(HELLO)
    gc.collect()
    assert values_of(saver) == HELLO
    clone = saver.with_allowlist([("decimal", "Decimal")])
    del saver
    gc.collect()
    assert values_of(clone) == HELLO


# --- nothing is left behind


BEFORE: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def threads_before() -> None:
    """Other tests of this process may have left a shared pool."""
    BEFORE.clear()
    BEFORE.update(threading.enumerate())


def ours() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("threadkeep") and t not in BEFORE]


def left_after(moment: float) -> list[threading.Thread]:
    """Return our threads that do not end within this many seconds."""
    for thread in ours():
        thread.join(moment)
    return ours()


def test_no_thread_is_left_after_close(url: str) -> None:
    before = set(threading.enumerate())
    keep = threadkeep.open(url)
    chain = Chain(keep.checkpointer)
    chain.put(HELLO)

    async def use() -> None:
        await asyncio.gather(*(keep.checkpointer.aget_tuple(config("t")) for _ in range(20)))
        await chain.aput({"x": 1})

    asyncio.run(use())
    keep.close()
    assert set(threading.enumerate()) <= before


async def test_no_thread_is_left_after_aclose(url: str) -> None:
    keep = threadkeep.open(url)
    await asyncio.gather(*(keep.checkpointer.aget_tuple(config("t")) for _ in range(20)))
    await keep.aclose()
    assert await asyncio.to_thread(left_after, 30) == []


@pytest.mark.parametrize(
    "backends", [BACKENDS[:3], pytest.param(BACKENDS[3:], marks=pytest.mark.long)], ids=["", "more"]
)
def test_a_forgotten_keep_leaves_no_thread(backends: list[Backend], tmp_path: Path) -> None:
    """All backends at once, because workers wait some seconds before they end."""
    for number, backend in enumerate(backends):
        asyncio.run(Chain(threadkeep.open(backend.fresh(tmp_path, number)).checkpointer).aput(HELLO))
    gc.collect()
    assert left_after(30) == []


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


def test_no_file_is_left_open_after_close(lasting_url: str) -> None:
    def use() -> None:
        with threadkeep.open(lasting_url) as keep:
            Chain(keep.checkpointer).put(HELLO)
            threads = [threading.Thread(target=values_of, args=[keep.checkpointer]) for _ in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    use()
    before = open_files()
    for _ in range(5):
        use()
    assert open_files() == before


def test_a_forgotten_keep_leaves_no_file_open(lasting_url: str) -> None:
    Chain(threadkeep.open(lasting_url).checkpointer).put(HELLO)
    gc.collect()
    before = open_files()
    for _ in range(5):
        Chain(threadkeep.open(lasting_url).checkpointer).put(HELLO)
    gc.collect()
    assert open_files() == before


def test_a_closed_database_is_one_file(tmp_path: Path) -> None:
    with threadkeep.open(url_of(tmp_path / "agent.db")) as keep:
        Chain(keep.checkpointer).put(HELLO)
        values_of(keep.checkpointer)
    assert os.listdir(tmp_path) == ["agent.db"]


ENDS = {
    "sync": "chain.put(hello); values_of(saver)",
    "async": "asyncio.run(chain.aput(hello))",
    "an async listing that is not finished": """
async def use():
    for n in range(50):
        await chain.aput({"n": n})
    async for found in saver.alist(config("t")):
        break
asyncio.run(use())
""",
    "a generator that is not finished": (
        "[chain.put({'n': n}) for n in range(50)]; kept = saver.list(config('t')); next(kept)"
    ),
    "a loop that is closed in the middle": """
async def use():
    for n in range(20):
        asyncio.ensure_future(chain.aput({"n": n}))
    await asyncio.sleep(0)
asyncio.run(use())
""",
    "a task that nobody awaits": """
loop = asyncio.new_event_loop()
async def use():
    kept.append(asyncio.ensure_future(chain.aput(hello)))
    await kept[0]
kept = []
loop.run_until_complete(use())
loop.close()
""",
    "daemon threads in the middle": """
import threading, time
def work(name):
    own = Chain(saver, name)
    while True:
        own.put(hello)
        values_of(saver, name)
for n in range(6):
    threading.Thread(target=work, args=[f"t{n}"], daemon=True).start()
time.sleep(0.3)
""",
    "threads that go on after the main thread": """
import threading
def work(name):
    own = Chain(saver, name)
    for n in range(40):
        own.put({"n": n})
    assert values_of(saver, name) == {"n": 39}
for n in range(8):
    threading.Thread(target=work, args=[f"t{n % 4}-{n}"]).start()
""",
    "a loop that goes on in another thread": """
import threading
async def use():
    for n in range(40):
        try:
            await chain.aput({"n": n})
        except RuntimeError as error:  # Python starts no worker once the main thread is gone, asyncio.to_thread neither
            assert "shutdown" in str(error)
            break
threading.Thread(target=lambda: asyncio.run(use())).start()
""",
}
PREPARED = """
import asyncio, sys
import threadkeep
from checkpoint_chains import Chain, config, values_of
saver = threadkeep.open(sys.argv[1]).checkpointer
chain = Chain(saver)
hello = {"greeting": "hello " * 20}
"""


@pytest.mark.parametrize("end", list(ENDS))
def test_the_interpreter_ends_cleanly_without_close(url: str, end: str) -> None:
    run(PREPARED + ENDS[end], url, flags=("-W", "always::ResourceWarning", "-W", "always::RuntimeWarning"))


# --- unusable files


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with threadkeep.open(url_of(path)) as keep:
        Chain(keep.checkpointer).put(HELLO)
    database = apsw.Connection(str(path))
    database.execute("UPDATE tk_schema SET version = 999, readable = 999, writable = 999")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    before = path.read_bytes()
    for verb in every_verb(threadkeep.open("memory://")):
        with threadkeep.open(url_of(path)) as keep, pytest.raises(errors.SchemaTooNew, match="999") as raised:
            every_verb(keep)[verb]()
        assert str(path) in str(raised.value)
    assert path.read_bytes() == before


async def test_a_newer_schema_is_refused_by_async_verbs_too(tmp_path: Path) -> None:
    def prepare() -> str:
        with threadkeep.open(url_of(tmp_path / "agent.db")) as keep:
            keep.setup()
        database = apsw.Connection(str(tmp_path / "agent.db"))
        database.execute("UPDATE tk_schema SET version = 999, readable = 999, writable = 999")
        database.close()
        return url_of(tmp_path / "agent.db")

    async with threadkeep.open(await asyncio.to_thread(prepare)) as keep:
        for ask in every_async_verb(keep).values():
            with pytest.raises(errors.SchemaTooNew, match="999"):
                await ask()


def test_a_file_that_is_no_database_is_corrupt_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    path.write_bytes(b"This is a shopping list. " * 400)
    with threadkeep.open(url_of(path)) as keep:
        for ask in every_verb(keep).values():
            with pytest.raises(errors.Corrupt) as raised:
                ask()
            assert str(path) in str(raised.value)
    assert path.read_bytes() == b"This is a shopping list. " * 400
    assert os.listdir(tmp_path) == ["agent.db"]


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "agent.db").touch()
    with threadkeep.open(url_of(tmp_path / "agent.db")) as keep:
        Chain(keep.checkpointer).put(HELLO)
        assert values_of(keep.checkpointer) == HELLO


def test_a_database_that_was_cut_off_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with threadkeep.open(url_of(path)) as keep:
        chain = Chain(keep.checkpointer)
        for n in range(200):
            chain.put({"text": f"{n} " * 500})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 // 4096 * 4096])
    with threadkeep.open(url_of(path)) as keep, pytest.raises(errors.Corrupt):
        for id in (f"{n:08}" for n in range(200)):
            assert keep.checkpointer.get_tuple(config("t", id)) is not None


def test_a_missing_folder_is_unavailable_until_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "agent.db"
    with threadkeep.open(url_of(path)) as keep:
        for ask in every_verb(keep).values():
            with pytest.raises(errors.Unavailable) as raised:
                ask()
            assert str(raised.value) == f"{path}: the folder {path.parent} does not exist"
        path.parent.mkdir()
        Chain(keep.checkpointer).put(HELLO)
        assert values_of(keep.checkpointer) == HELLO


def test_a_folder_in_place_of_the_file_is_unavailable(tmp_path: Path) -> None:
    with threadkeep.open(url_of(tmp_path)) as keep, pytest.raises(errors.Unavailable) as raised:
        Chain(keep.checkpointer).put(HELLO)
    assert str(raised.value) == f"{tmp_path}: this is a folder, not a file"


def test_a_file_in_place_of_the_folder_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with threadkeep.open(tmp_path / "file" / "agent.db") as keep, pytest.raises(errors.Unavailable) as raised:
        Chain(keep.checkpointer).put(HELLO)
    assert str(raised.value) == f"{tmp_path / 'file' / 'agent.db'}: {tmp_path / 'file'} is not a folder"


def test_an_impossible_file_name_is_unavailable(tmp_path: Path) -> None:
    with threadkeep.open(url_of(tmp_path / ("x" * 300))) as keep:
        for ask in every_verb(keep).values():
            with pytest.raises(errors.Unavailable) as raised:
                ask()
            assert str(tmp_path) in str(raised.value)


UNPRIVILEGED = """
import sys
import threadkeep
from checkpoint_chains import Chain, config
from rights import drop_rights
url = sys.argv[1]
saver = threadkeep.open(url, timeout=0.2).checkpointer
drop_rights()
try:
    Chain(saver).put({"x": 1})
    raise SystemExit("it was written")
except threadkeep.errors.Unavailable as error:
    assert url.removeprefix("sqlite:///") in str(error), error
try:
    found = saver.get_tuple(config("t"))
    assert found.checkpoint["channel_values"] == {"greeting": "hello " * 20}, found
except threadkeep.errors.Unavailable:
    pass
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may enter. pytest's own is private, and root may write everywhere."""
    import tempfile

    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["file", "folder", "nothing there yet", "a folder that may not be entered"])
def test_a_file_without_write_permission_is_unavailable(public_folder: Path, what: str) -> None:
    path = public_folder / "agent.db"
    if what != "nothing there yet":
        with threadkeep.open(url_of(path)) as keep:
            Chain(keep.checkpointer).put(HELLO)
        path.chmod(0o444)
    public_folder.chmod({"file": 0o777, "a folder that may not be entered": 0o000}.get(what, 0o555))
    run(UNPRIVILEGED, url_of(path))


FULL_DISK = """
import resource, sys
import threadkeep
from checkpoint_chains import Chain, list_ids, values_of
keep = threadkeep.open(sys.argv[1])
chain, other = Chain(keep.checkpointer), Chain(keep.checkpointer, "other")
keep.setup()
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
done = []
try:
    for n in range(10_000):
        done.append(chain.put({"noise": f"{n * 7919 ** 20:x}" * 50})["configurable"]["checkpoint_id"])
    raise SystemExit("the disk did not get full")
except threadkeep.errors.Unavailable as error:
    assert sys.argv[1].removeprefix("sqlite:///") in str(error), error
assert list_ids(keep.checkpointer) == done[::-1]
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
other.put({"x": 1})
assert values_of(keep.checkpointer, "other") == {"x": 1}
assert list_ids(keep.checkpointer) == done[::-1]
for id in done:
    assert values_of(keep.checkpointer, "t", id)["noise"]
assert done
"""


def test_a_full_disk_is_unavailable_and_what_was_put_stays(tmp_path: Path) -> None:
    run(FULL_DISK, url_of(tmp_path / "agent.db"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process is writing."""
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


def test_a_database_that_stays_locked_is_unavailable_for_writing_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with threadkeep.open(url_of(path), timeout=0.2) as keep:
        saver = keep.checkpointer
        chain = Chain(saver)
        chain.put(HELLO)
        with locked(path):
            for change in (
                lambda: chain.put({"x": 1}),
                lambda: saver.put_writes(config("t", "00000000"), [("x", 1)], "task"),
                lambda: saver.delete_thread("t"),
                lambda: saver.copy_thread("t", "u"),
                lambda: saver.prune(["t"], strategy="delete"),
            ):
                with pytest.raises(errors.Unavailable, match="locked") as raised:
                    change()
                assert str(path) in str(raised.value)
            assert values_of(saver) == HELLO
            assert list_ids(saver) == ["00000000"]
            assert [info.id for info in keep.threads()] == ["t"]
            with threadkeep.open(url_of(path), timeout=0.2) as late:
                assert values_of(late.checkpointer) == HELLO
        chain.put({"x": 2})
        assert values_of(saver) == {"x": 2}


async def test_a_database_that_stays_locked_is_unavailable_for_async_writers(tmp_path: Path) -> None:
    async with threadkeep.open(url_of(tmp_path / "agent.db"), timeout=0.2) as keep:
        chain = Chain(keep.checkpointer)
        await chain.aput(HELLO)
        lock = locked(tmp_path / "agent.db")
        await asyncio.to_thread(lock.__enter__)
        asked = [Chain(keep.checkpointer, f"t{n}").aput(HELLO) for n in range(4)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [errors.Unavailable] * 4
        assert await keep.checkpointer.aget_tuple(config("t")) is not None
        await asyncio.to_thread(lock.__exit__, None, None, None)
        await chain.aput({"x": 1})


def test_an_empty_database_that_stays_locked_is_unavailable(tmp_path: Path) -> None:
    with threadkeep.open(url_of(tmp_path / "agent.db"), timeout=0.2) as keep:
        with locked(tmp_path / "agent.db"):
            with pytest.raises(errors.Unavailable):
                keep.setup()
            with pytest.raises(errors.Unavailable):
                Chain(keep.checkpointer).put(HELLO)
        Chain(keep.checkpointer).put(HELLO)


def test_a_lock_that_is_released_in_time_is_only_waited_for(tmp_path: Path) -> None:
    with threadkeep.open(url_of(tmp_path / "agent.db")) as keep:
        chain = Chain(keep.checkpointer)
        chain.put(HELLO)
        with locked(tmp_path / "agent.db"):
            waiting = threading.Thread(target=chain.put, args=[{"x": 1}])
            waiting.start()
            waiting.join(0.2)
            assert waiting.is_alive()
        waiting.join(60)
        assert values_of(keep.checkpointer) == {"x": 1}


# --- a database that other programs use too


def test_tables_of_the_user_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    database = apsw.Connection(str(path))
    database.execute("""
        PRAGMA user_version = 7;
        CREATE TABLE threads (id TEXT PRIMARY KEY, title TEXT);
        INSERT INTO threads VALUES ('t', 'my title');
        CREATE VIEW items AS SELECT title FROM threads;
    """)
    with threadkeep.open(url_of(path)) as keep:
        Chain(keep.checkpointer).put(HELLO)
        keep.checkpointer.delete_thread("t")
        Chain(keep.checkpointer).put(HELLO)
        assert database.execute("SELECT * FROM threads, items").fetchall() == [("t", "my title", "my title")]
        assert database.execute("PRAGMA user_version").fetchall() == [(7,)]
        database.execute("INSERT INTO threads VALUES ('u', 'another')")
        assert values_of(keep.checkpointer) == HELLO
    database.close()


def test_the_official_saver_may_live_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with SqliteSaver.from_conn_string(str(path)) as official:
        theirs = Chain(official)
        theirs.put({"whose": "theirs"})
        with threadkeep.open(url_of(path)) as keep:
            assert keep.checkpointer.get_tuple(config("t")) is None
            Chain(keep.checkpointer).put({"whose": "ours"})
            theirs.put({"whose": "theirs again"})
            assert values_of(keep.checkpointer) == {"whose": "ours"}
            keep.checkpointer.delete_thread("t")
            assert len(list(official.list(config("t")))) == 2
        assert values_of(official) == {"whose": "theirs again"}


def test_in_memory_saver_and_a_memory_keep_agree(url: str) -> None:
    with threadkeep.open(url) as keep:
        ours, theirs = Chain(keep.checkpointer), Chain(InMemorySaver())
        for n in range(5):
            given = {"n": n, "list": list(range(n))}
            assert ours.put(given) == theirs.put(given)
        assert list_ids(ours.saver) == list_ids(theirs.saver)
        assert values_of(ours.saver) == values_of(theirs.saver)


def test_a_read_after_setup_uses_the_connection_that_set_the_file_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    connect = SqliteFile._connect
    monkeypatch.setattr(SqliteFile, "_connect", lambda self: (opened.append("connection"), connect(self))[1])
    with threadkeep.open(f"sqlite:///{tmp_path}/a.db") as keep:
        _ = keep.setup()
        _ = keep.setup()
        assert keep.checkpointer.get_tuple({"configurable": {"thread_id": "t"}}) is None
    assert opened == ["connection"]
