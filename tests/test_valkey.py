"""Valkey only: slots, commands, URLs, one server and clusters, moving slots, expiry, large values, failing servers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from cubeloop.providers.base import TextContent, UserMessage
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from redis.crc import key_slot

import threadkeep
import valkey_servers
from checkpoint_chains import Chain, config, list_ids, values_of
from concurrent_writers import Writers
from processes import run, run_forked
from sync_async import Caller
from threadkeep import errors
from threadkeep.backends.valkey.backend import ValkeyBackend
from threadkeep.backends.valkey.memories import ValkeyMemories
from threadkeep.conformance.store.embedder import DIMS, embed
from threadkeep.engine.identity import ThreadKey
from threadkeep.transports import valkey
from threadkeep.transports.valkey import ValkeyServer
from threadkeep.urls import ServerOptions, Settings, transport_for
from verbs import every_async_verb, every_verb

NEAR = {"dims": DIMS, "embed": embed, "fields": ["text"]}
TIMEOUT = 30


@pytest.fixture
def url() -> str:
    """In this file, a URL is always one of Valkey."""
    return valkey_servers.shared().url()


@pytest.fixture
def server() -> Iterator[valkey_servers.Server]:
    """A server that tests may freeze and kill."""
    made = valkey_servers.start()
    yield made
    made.stop()


def url_of(server: valkey_servers.Server, **options: Any) -> str:
    return valkey_servers.Cluster([server]).url(**options)


def reached(url: str, **options: Any) -> ValkeyServer:
    """Return the transport of a URL, not connected."""
    chosen: Any = {"durability": "strict", "timeout": 30, "read_only": False} | options
    transport = transport_for(url, Settings(**chosen), ServerOptions())
    assert isinstance(transport, ValkeyServer)
    return transport


# --- slots

texts = st.text(st.characters(), max_size=12) | st.sampled_from(["{", "}", "{a}b", "}{", "{}", "\x00", "\ud83d", ""])


@settings(max_examples=300, deadline=None)
@given(texts, st.sampled_from(["graph", "cube"]), texts, texts)
def test_all_keys_of_a_thread_and_of_its_partitions_indexes_are_in_one_slot(
    tenant: str, kind: str, id: str, prefix: str
) -> None:
    backend = ValkeyBackend(prefix.replace("{", "").replace("}", "") or "tk")
    names = backend.thread_keys(ThreadKey(tenant, kind, id))
    assert len(set(names.keys)) == len(names.keys)
    assert len(set(map(key_slot, names.keys))) == 1


@settings(max_examples=300, deadline=None)
@given(texts, texts)
def test_all_keys_of_a_partition_of_memories_are_in_one_slot(tenant: str, first: str) -> None:
    part = ValkeyMemories(b"tk")._part(tenant, first)
    assert len(set(part.keys)) == len(part.keys)
    assert len(set(map(key_slot, part.keys))) == 1


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(texts, st.sampled_from(["graph", "cube"]), texts), min_size=2, max_size=2, unique=True))
def test_two_threads_share_no_key_of_their_own(two: list[tuple[str, str, str]]) -> None:
    one, other = (set(ValkeyBackend("tk").thread_keys(ThreadKey(*each)).keys[:2]) for each in two)
    assert not one & other


# --- commands that are sent

CONNECTING = {"INFO", "DBSIZE", "CLUSTER", "CLIENT", "COMMAND", "HELLO", "AUTH", "READONLY", "PING"}
OURS = {
    "EVAL",
    "EVALSHA",
    "WAIT",
    "ASKING",
    "EXISTS",
    "HGET",
    "HSET",
    "HMGET",
    "ZRANGE",
    "ZRANGEBYLEX",
    "ZREVRANGEBYLEX",
    "ZRANGEBYSCORE",
    "ZREVRANGEBYSCORE",
    "ZMSCORE",
    "ZSCORE",
    "HLEN",
    "ZCOUNT",
    "ZADD",
    "ZREM",
    "UNLINK",
    "HGETALL",
}
IN_SCRIPTS = {
    "EXISTS", "HDEL", "HEXISTS", "HGET", "HINCRBY", "HKEYS", "HLEN", "HMGET", "HSET", "HSTRLEN", "PERSIST", "PEXPIRE",
    "RENAME", "UNLINK", "ZADD", "ZRANGE", "ZRANGEBYLEX", "ZREM", "ZREVRANGEBYLEX", "ZRANGEBYSCORE", "ZSCORE", "ZCARD",
    "HSETNX", "HGETALL",
}  # fmt: skip
MANY_KEYS = {"UNLINK", "RENAME", "EXISTS"}


def do_everything(url: str) -> None:
    """Call every verb of every adapter."""
    with threadkeep.open(url, index=NEAR) as keep:
        Chain(keep.checkpointer, "runs", run="r").put({"x": 1})
        for verb in every_verb(keep).values():
            verb()
        Chain(keep.checkpointer).put({"messages": [HumanMessage(f"{n}") for n in range(600)]})
        keep.checkpointer.copy_thread("t", "long")
        keep.rollback("t", "latest")
        keep.fork("t", to="forked")
        keep.tag("t", "latest", "kept")
        keep.prune(policy=threadkeep.Policy(keep_last=1), dry_run=True)
        for order in ("id", "updated", "created", "bytes"):
            keep.threads(order=order)
        store = keep.store
        for n in range(20):
            store.put(("a", f"{n % 3}"), f"{n}", {"text": "apple", "n": n}, ttl=0.0001 if n % 5 == 0 else 10)
        store.put(("a",), "0", {"text": "rain"})
        store.get(("a", "1"), "1")
        store.search(("a",), query="apple", filter={"n": {"$gt": 3}})
        store.search(())
        store.search(("a", "1"))
        store.list_namespaces()
        store.delete(("a", "1"), "1")
        keep.sweep()
        asyncio.run(_talk(keep))
    with threadkeep.open(url) as keep:
        keep.store.put(("a",), "tea", {"text": "tea"}, ttl=10)
        keep.store.put(("a",), "hidden", {"text": "tea"}, index=False)
        keep.store.search((), query="green tea")
        keep.store.delete(("a",), "tea")
        keep.erase(namespace=("a",))


async def _talk(keep: threadkeep.Keep) -> None:
    cube = keep.cube
    await cube.claim_run("talk", "r")
    await cube.append("talk", [UserMessage(content=[TextContent(text="hi")], run_id="r")])
    await cube.save_extra("talk", {"a": 1})
    await cube.mark_run_complete("talk", "r")
    await cube.fork("talk", "other", after_run_id="r")
    await cube.load("other")
    await keep.aprune("talk")
    await keep.adelete("other")


def test_only_declared_keys_and_commands_of_managed_servers_are_used() -> None:
    server = valkey_servers.shared_one()
    prefix = valkey_servers.fresh_prefix()
    with valkey_servers.record_commands([server]) as commands:
        do_everything(url_of(server, prefix=prefix))
    assert len(commands) > 1000
    declared: set[str] = set()
    scripts = 0
    for who, name, *words in commands:
        if who == "lua":
            assert name.upper() in IN_SCRIPTS, name
            used = words if name.upper() in MANY_KEYS else words[:1]
            assert declared.issuperset(used), (name, used)
        elif name in ("EVAL", "EVALSHA"):
            declared, scripts = set(words[2 : 2 + int(words[1])]), scripts + 1
            assert declared and all(key.startswith(prefix + "{") for key in declared)
        else:
            declared = set()
            assert name.upper() in OURS | CONNECTING, name
            assert name not in OURS - {"WAIT"} or words[0].startswith(prefix + "{")
    assert scripts > 30


def test_scripts_name_no_key_but_those_that_they_are_given() -> None:
    """The test above sees one branch of each script; this one reads all of them."""
    for path in files("threadkeep.backends.valkey").joinpath("lua").iterdir():
        text = re.sub(r"--.*", "", path.read_text())
        given = {
            name.strip() for names in re.findall(r"local ([\w, ]+) = [^\n]*KEYS", text) for name in names.split(",")
        }
        given |= set(re.findall(r"local function \w+\((\w+)", text))
        for command, key in re.findall(r"redis\.call\(\s*'(\w+)',\s*(?:unpack\()?([^,)]+)", text):
            assert command in IN_SCRIPTS, (path.name, command)
            assert key.startswith("KEYS") or key in given, (path.name, key)
        if path.name != "read_clock.lua":  # it changes nothing, so replicas need not repeat it
            assert not re.search(r"redis\.pcall|loadstring|\bTIME\b|math\.random", text)


async def test_no_verb_blocks_the_event_loop(url: str) -> None:
    async with threadkeep.open(url) as keep:
        for verb in every_async_verb(keep).values():
            if asyncio.iscoroutine(asked := verb()):
                await asked
        await keep.store.aput(("a",), "k", {"x": 1})
        assert [item.key for item in await keep.store.asearch(())] == ["k"]
        await _talk(keep)


# --- URLs


def test_a_url_says_hosts_user_password_and_options() -> None:
    options = reached(
        "valkey://us%40er:p%3A%2F%40%25ss@one:7000,two,[::1]:7002/0?prefix=my%20app&replicas=2&socket_keepalive=true"
    )._options
    assert options.hosts == (("one", 7000), ("two", 6379), ("::1", 7002))
    assert (options.settings["username"], options.settings["password"]) == ("us@er", "p:/@%ss")
    assert options.settings["socket_keepalive"] is True
    assert options.replicas == 2


@pytest.mark.parametrize(
    ("durability", "query", "replicas"),
    [("strict", "", None), ("relaxed", "", 0), ("relaxed", "?replicas=2", 2), ("strict", "?replicas=0", 0)],
)
def test_relaxed_waits_for_no_replica_unless_configured(durability: str, query: str, replicas: int | None) -> None:
    assert reached(f"valkey://localhost/{query}", durability=durability)._options.replicas == replicas


@pytest.mark.parametrize(
    ("scheme", "secure"), [("valkey", False), ("redis", False), ("valkeys", True), ("rediss", True)]
)
def test_an_s_at_the_end_of_the_scheme_is_tls(scheme: str, secure: bool) -> None:
    assert reached(f"{scheme}://localhost/")._options.settings.get("ssl", False) is secure


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("valkey://localhost/1", "no database but 0"),
        ("valkey://localhost/?db=1", "db"),
        ("valkey://me:secret@localhost/1", "no database but 0"),
        ("valkey://localhost/?prefix=a{b", "braces"),
        ("valkey://localhost/?prefix=a%7Db", "braces"),
        ("valkey://localhost/?prefix=", "prefix"),
        ("valkey://localhost/?replicas=-1", "replicas=-1"),
        ("valkey://localhost/?replicas=some", "replicas=some"),
        ("valkey://localhost/?thread_ttl=never", "thread_ttl=never"),
        ("valkey://localhost/?thread_ttl=0", "thread_ttl"),
        ("valkey://localhost/?thread_ttl=99999999999999999", "thread_ttl"),
        ("valkey://localhost/?replicas=1&replicas=2", "given twice"),
        ("valkey://localhost/?replica=1", "replica"),
        ("valkey://localhost:port/", "port"),
        ("valkey://localhost:99999/", "99999|range"),
    ],
)
def test_what_is_wrong_in_a_url_is_a_value_error_that_names_it(wrong: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){says}") as told:
        threadkeep.open(wrong)
    assert "secret" not in str(told.value)


def test_options_of_postgres_are_refused() -> None:
    with pytest.raises(ValueError, match="schema"):
        threadkeep.open("valkey://localhost/", schema="a")


def test_a_missing_driver_is_an_error_with_the_pip_command() -> None:
    script = """
import sys
sys.modules["redis"] = sys.modules["redis.connection"] = None
import threadkeep
try:
    threadkeep.open("valkey://localhost/")
except ImportError as error:
    print(error)
"""
    assert 'pip install "threadkeep[valkey]"' in run(script)


def test_two_prefixes_on_one_cluster_do_not_see_each_other() -> None:
    one, other = (valkey_servers.shared().url() for _ in range(2))
    with threadkeep.open(one) as keep, threadkeep.open(other) as stranger:
        Chain(keep.checkpointer, run="r").put({"x": 1})
        keep.store.put(("a",), "k", {"x": 1})
        assert stranger.checkpointer.get_tuple(config("t")) is None
        assert (list_ids(stranger.checkpointer, None), stranger.threads(), stranger.store.search(())) == ([], [], [])
        assert stranger.store.get(("a",), "k") is None
        assert stranger.store.list_namespaces() == []
        stranger.checkpointer.delete_thread("t")
        stranger.checkpointer.delete_for_runs(["r"])
        stranger.store.delete(("a",), "k")
        assert values_of(keep.checkpointer) == {"x": 1}
        assert keep.store.get(("a",), "k") is not None


# --- one server


@pytest.mark.parametrize("scheme", ["valkey", "redis"])
def test_a_single_server_is_enough(scheme: str) -> None:
    url = url_of(valkey_servers.shared_one()).replace("valkey:", f"{scheme}:")
    do_everything(url)
    with threadkeep.open(url) as keep:
        assert {info.id for info in keep.threads(order="id")} >= {"long", "t", "talk", "u"}


def test_the_first_host_that_answers_is_enough() -> None:
    place = f"127.0.0.1:1,127.0.0.1:{valkey_servers.shared_one().port}"
    with threadkeep.open(f"valkey://{place}/?prefix={valkey_servers.fresh_prefix()}") as keep:
        Chain(keep.checkpointer).put({"x": 1})
        assert values_of(keep.checkpointer) == {"x": 1}


def test_one_host_of_a_cluster_is_enough() -> None:
    cluster = valkey_servers.shared()
    replica = valkey_servers.Cluster(cluster.servers[-1:]).url()
    with threadkeep.open(replica) as keep:
        for n in range(20):
            Chain(keep.checkpointer, f"{n}").put({"x": n})
        assert len(keep.threads()) == 20


def test_scripts_that_a_server_has_lost_are_sent_again() -> None:
    server = valkey_servers.shared_one()
    with threadkeep.open(url_of(server)) as keep:
        chain = Chain(keep.checkpointer)
        for n in range(3):
            server.client.script_flush()
            chain.put({"n": n})
            server.client.script_flush()
            assert values_of(keep.checkpointer) == {"n": n}
            server.client.script_flush()
            assert list_ids(keep.checkpointer) == [f"{each:08}" for each in range(n, -1, -1)]


def test_data_of_others_on_the_server_stays() -> None:
    server = valkey_servers.shared_one()
    prefix = valkey_servers.fresh_prefix()
    theirs = {f"{prefix}:own", f"{prefix}{{000}}", "plain"}
    for key in theirs:
        server.client.set(key, "theirs")
    do_everything(url_of(server, prefix=prefix))
    assert all(server.client.get(key) == b"theirs" for key in theirs)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server of Debian's is installed")
def test_redis_7_works() -> None:
    server = valkey_servers.start(Path(shutil.which("redis-server") or ""))
    try:
        do_everything(url_of(server))
    finally:
        server.stop()


# --- moving slots


@pytest.fixture(scope="module")
def moving() -> Iterator[valkey_servers.Cluster]:
    """Two primaries between which slots are moved."""
    made = valkey_servers.fresh_cluster(primaries=2, replicas=0)
    yield made
    made.stop()


def slot_of(url: str, thread: str) -> int:
    return key_slot(reached(url)._backend.thread_keys(ThreadKey("", "graph", thread)).keys[0])


async def test_a_slot_may_move_between_two_calls(moving: valkey_servers.Cluster, call: Caller) -> None:
    url = moving.url()
    slot = slot_of(url, "t")
    async with threadkeep.open(url) as keep, threadkeep.open(url) as reader:
        chain = Chain(keep.checkpointer)
        for n in range(4):
            await call(keep.checkpointer, "put", *chain.next({"n": n}))
            await asyncio.to_thread(moving.migrate, slot)
            found = await call(reader.checkpointer, "get_tuple", config("t"))
            assert found.checkpoint["channel_values"] == {"n": n}
            assert [info.id for info in await call(reader, "threads")] == ["t"]


def test_writers_and_readers_continue_while_their_slots_move(moving: valkey_servers.Cluster) -> None:
    """Keys move slowly, one by one: scripts get MOVED, ASK and TRYAGAIN."""
    url = moving.url()
    with threadkeep.open(url) as keep, threadkeep.open(url) as reader:
        with Writers(keep, threads=2, tasks=2) as writers:
            writers.wait_for(8)
            slots = {slot_of(url, name) for name in writers.acknowledged}
            with reading(reader, list(writers.acknowledged), writers) as seen:
                for slot in slots:
                    moving.migrate(slot, pause=0.03)
                writers.wait_for(20)
        assert all(seen.values())
    writers.check(url)


@contextlib.contextmanager
def reading(keep: threadkeep.Keep, names: list[str], writers: Writers) -> Iterator[dict[str, int]]:
    """Meanwhile, a reader finds everything that was acknowledged before, whole."""
    stop, seen, failed = threading.Event(), dict.fromkeys(names, 0), list[BaseException]()

    def read() -> None:
        try:
            while not stop.is_set():
                for name in names:
                    told = writers.acknowledged[name][-1]
                    found = keep.checkpointer.get_tuple(config(name))
                    assert found is not None and found.checkpoint["id"] >= told
                    assert keep.checkpointer.get_tuple(config(name, told)) is not None
                    seen[name] += 1
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join(TIMEOUT)
    if failed:
        raise failed[0]


# --- threads that expire


def test_an_idle_thread_expires_and_a_busy_one_does_not() -> None:
    url = url_of(valkey_servers.shared_one(), thread_ttl=2)
    with threadkeep.open(url) as keep, threadkeep.open(url) as other:
        busy = Chain(keep.checkpointer, "busy", run="r")
        idle = Chain(keep.checkpointer, "idle", run="r")
        idle.put({"x": 1})
        asyncio.run(_talk(keep))
        for n in range(4):
            busy.put({"n": n})
            time.sleep(0.6)
        for each in (keep, other):
            saver = each.checkpointer
            busy.put({"n": busy.number})
            assert saver.get_tuple(config("idle")) is None
            assert saver.get_tuple(config("idle", "00000000")) is None
            assert list_ids(saver, "idle") == []
            assert asyncio.run(each.cube.load("talk")) is None
            assert set(list_ids(saver, None)) == {f"{n:08}" for n in range(busy.number)}
            for order in ("id", "updated", "created", "bytes"):
                assert [info.id for info in each.threads(order=order)] == ["busy"]
            assert len(list_ids(saver, "busy")) == busy.number
        keep.checkpointer.delete_for_runs(["r"])
        assert list_ids(keep.checkpointer, None) == []


def test_an_expired_thread_starts_again() -> None:
    url = url_of(valkey_servers.shared_one(), thread_ttl=1)
    with threadkeep.open(url) as keep:
        chain = Chain(keep.checkpointer, run="r")
        chain.put({"log": ["a" * 900]}, id="5")
        time.sleep(1.2)
        chain.put({"log": ["a" * 900, "b"]}, id="4")
        for saver in (keep.checkpointer, threadkeep.open(url).checkpointer):
            assert list_ids(saver) == list_ids(saver, None) == ["4"]
            assert values_of(saver) == {"log": ["a" * 900, "b"]}
        assert [(info.id, info.checkpoints) for info in keep.threads()] == [("t", 1)]


def test_threads_that_expired_leave_nothing_in_the_server() -> None:
    server = valkey_servers.shared_one()
    url = url_of(server, prefix=(prefix := valkey_servers.fresh_prefix()), thread_ttl=1)
    with threadkeep.open(url) as keep:
        for n in range(5):
            Chain(keep.checkpointer, f"{n}", run="r").put({"x": 1})
        time.sleep(1.2)
        assert (keep.threads(), list_ids(keep.checkpointer, None)) == ([], [])
        for order in ("id", "updated", "created", "bytes"):
            keep.threads(order=order)
        keep.checkpointer.delete_for_runs(["r"])
    assert list(server.client.scan_iter(f"{prefix}{{*", count=10_000)) == [f"{prefix}{{000}}:schema:".encode()]


# --- large values


def test_a_message_of_twenty_megabytes_comes_back_and_is_stored_in_pieces() -> None:
    server = valkey_servers.shared_one()
    prefix = valkey_servers.fresh_prefix()
    long = "".join(f"{n:07} word " for n in range(1_700_000))
    with threadkeep.open(url_of(server, prefix=prefix), cache_bytes=0) as keep:
        Chain(keep.checkpointer).put({"messages": ["short", long, b"\x00" * 3_000_000]})
        assert values_of(keep.checkpointer) == {"messages": ["short", long, b"\x00" * 3_000_000]}
    (key,) = server.client.scan_iter(f"{prefix}{{*}}:t:*", count=10_000)
    assert max(server.client.hstrlen(key, field) for field in server.client.hkeys(key)) <= 1 << 20


def test_five_thousand_messages_are_read_in_slices(url: str) -> None:
    messages = [HumanMessage(f"message {n}") for n in range(5000)]
    with threadkeep.open(url, cache_bytes=0) as keep:
        chain = Chain(keep.checkpointer)
        for end in (2500, 5000):
            chain.put({"messages": messages[:end]})
        with valkey_servers.record_commands(valkey_servers.shared().living_primaries()) as commands:
            assert values_of(keep.checkpointer) == {"messages": messages}
        asked = [len(words) for who, name, *words in commands if name == "EVALSHA" and who != "lua"]
        assert len(asked) >= 3
        assert max(asked) < 600
        keep.checkpointer.copy_thread("t", "u")
        assert values_of(keep.checkpointer, "u") == {"messages": messages}


def test_a_memory_of_several_megabytes_comes_back(url: str) -> None:
    with threadkeep.open(url) as keep:
        keep.store.put(("a",), "k", {"text": "long " * 1_000_000})
        assert keep.store.get(("a",), "k").value == {"text": "long " * 1_000_000}
        assert len(keep.store.search(("a",))[0].value["text"]) == 5_000_000


# --- servers that refuse, are gone, or do not answer

QUESTIONS: dict[str, Callable[[threadkeep.Keep], Any]] = {
    "get_tuple": lambda keep: keep.checkpointer.get_tuple(config("t")),
    "list": lambda keep: list(keep.checkpointer.list(None)),
    "threads": lambda keep: keep.threads(),
    "put": lambda keep: Chain(keep.checkpointer).put({"x": 1}),
    "store.get": lambda keep: keep.store.get(("a",), "k"),
    "search": lambda keep: keep.store.search(()),
    "load": lambda keep: asyncio.run(keep.cube.load("t")),
    "setup": lambda keep: keep.setup(),
}


@cache
def guarded() -> valkey_servers.Server:
    """A server with a password, and a user who may only read."""
    server = valkey_servers.start()
    server.client.execute_command("ACL", "SETUSER", "app", "on", ">s3:c/r@t", "~*", "+@all")
    server.client.execute_command("ACL", "SETUSER", "viewer", "on", ">see", "~*", "+@read", "+@connection", "+info")
    server.client.execute_command("ACL", "SETUSER", "default", "off")
    return server


def guarded_url(who: str) -> str:
    port = guarded().port
    return f"valkey://{who}127.0.0.1:{port}/?prefix={valkey_servers.fresh_prefix()}"


def test_a_user_and_a_password_may_be_in_the_url() -> None:
    with threadkeep.open(guarded_url("app:s3%3Ac%2Fr%40t@")) as keep:
        Chain(keep.checkpointer).put({"x": 1})
        assert values_of(keep.checkpointer) == {"x": 1}


def test_a_user_with_few_permissions_is_enough() -> None:
    may = [
        "~agents{*",
        "+@read",
        "+@write",
        "+eval",
        "+evalsha",
        "+@connection",
        "+wait",
        "+info",
        "+cluster|slots",
        "-keys",
        "-scan",
    ]
    server = valkey_servers.start()
    server.client.execute_command("ACL", "SETUSER", "agent", "on", ">s3cret", *may)
    do_everything(f"valkey://agent:s3cret@127.0.0.1:{server.port}/?prefix=agents")
    server.stop()


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("who", ["app:wrong@", "", "nobody:x@"])
def test_a_refused_login_is_reported_at_once(who: str, question: str) -> None:
    began = time.monotonic()
    with threadkeep.open(guarded_url(who), timeout=20) as keep:
        with pytest.raises(errors.Unavailable, match="(?i)password|auth|user") as told:
            QUESTIONS[question](keep)
    assert "in time" not in str(told.value)
    assert time.monotonic() - began < TIMEOUT


def test_a_user_who_may_not_write_gets_an_error() -> None:
    with threadkeep.open(guarded_url("viewer:see@")) as keep:
        with pytest.raises(errors.Unavailable, match="(?i)permission"):
            Chain(keep.checkpointer).put({"x": 1})


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_port_where_nobody_listens_is_unavailable_in_time(question: str) -> None:
    began = time.monotonic()
    with threadkeep.open("valkey://127.0.0.1:1,127.0.0.1:2/", timeout=0.5) as keep:
        with pytest.raises(errors.Unavailable):
            QUESTIONS[question](keep)
    assert time.monotonic() - began < TIMEOUT


@pytest.mark.parametrize("before", [True, False], ids=["from the start", "later"])
def test_a_frozen_server_is_unavailable_in_time_and_works_when_it_answers(
    server: valkey_servers.Server, before: bool
) -> None:
    with threadkeep.open(url_of(server), timeout=1) as keep:
        if not before:
            Chain(keep.checkpointer).put({"x": 1})
        server.freeze()
        for question in ("get_tuple", "put", "search"):
            began = time.monotonic()
            with pytest.raises(errors.Unavailable):
                QUESTIONS[question](keep)
            assert time.monotonic() - began < TIMEOUT
        server.thaw()
        Chain(keep.checkpointer).put({"x": 2})
        assert values_of(keep.checkpointer) == {"x": 2}


def test_a_server_that_is_gone_is_never_an_empty_thread(server: valkey_servers.Server) -> None:
    with threadkeep.open(url_of(server), timeout=0.5) as keep:
        Chain(keep.checkpointer).put({"x": 1})
        keep.store.put(("a",), "k", {"x": 1})
        server.kill()
        for question in QUESTIONS.values():
            with pytest.raises(errors.Unavailable):
                question(keep)


def test_too_few_replicas_are_an_error_in_time() -> None:
    url = url_of(valkey_servers.shared_one(), replicas=1)
    began = time.monotonic()
    with threadkeep.open(url, timeout=1) as keep:
        with pytest.raises(errors.Unavailable, match="0 of 1 replicas"):
            Chain(keep.checkpointer).put({"x": 1})
        with pytest.raises(errors.Unavailable, match="0 of 1 replicas"):
            keep.store.put(("a",), "k", {"x": 1})
    assert time.monotonic() - began < TIMEOUT


def test_strict_waits_for_a_replica_where_there_is_one_and_relaxed_does_not() -> None:
    waited = {}
    for durability in ("strict", "relaxed"):
        with threadkeep.open(valkey_servers.shared().url(), durability=durability) as keep:
            Chain(keep.checkpointer).put({"x": 1}, id="1")  # now the servers have the scripts
            keep.store.put(("a",), "k", {"x": 1})
            with valkey_servers.record_commands(valkey_servers.shared().living_primaries()) as commands:
                Chain(keep.checkpointer).put({"x": 2}, id="2")
                keep.store.put(("a",), "k", {"x": 2})
        waited[durability] = sum(name == "WAIT" for _, name, *_ in commands)
    assert waited == {"strict": 2, "relaxed": 0}


def waits(servers: list[valkey_servers.Server], change: Callable[[], object]) -> int:
    """How often the servers are told to WAIT during a change."""
    with valkey_servers.record_commands(servers) as heard:
        change()
    return sum(name == "WAIT" for _, name, *_ in heard)


def test_strict_waits_for_a_replica_that_comes_later(server: valkey_servers.Server) -> None:
    replica = valkey_servers.start()
    try:
        with threadkeep.open(url_of(server)) as keep:
            chain = Chain(keep.checkpointer)
            assert waits([server], lambda: chain.put({"x": 1})) == 0
            replica.client.replicaof("127.0.0.1", str(server.port))  # type: ignore[no-untyped-call]
            info: Callable[[], Any] = lambda: server.client.info("replication")
            valkey_servers.wait_for(lambda: "online" in str(info().get("slave0")), "a replica")
            time.sleep(valkey._REPLICA_CHECK_SECONDS)
            assert waits([server], lambda: chain.put({"x": 2})) == 1
            assert waits([server], lambda: chain.put({"x": 3})) == 1
    finally:
        replica.stop()


def test_strict_waits_for_the_replica_of_a_slot_that_has_moved() -> None:
    """redis-py then knows the new primary of the slot, but none of its replicas."""
    cluster = valkey_servers.fresh_cluster(primaries=2, replicas=1)
    try:
        url = cluster.url()
        with threadkeep.open(url) as keep:
            chain = Chain(keep.checkpointer)
            chain.put({"x": 1})
            cluster.migrate(slot_of(url, "t"))
            owner = cluster.primary_of(slot_of(url, "t"))
            assert waits([owner], lambda: chain.put({"x": 2})) > 0  # twice, if it is sent the script first
            assert waits([owner], lambda: chain.put({"x": 3})) == 1
    finally:
        cluster.stop()


def refuse_groups(keep: threadkeep.Keep) -> Any:
    """Let every change fail that is not made at once, in the calling thread. Return the transport."""
    transport: Any = keep._session.transport

    def refuse(requests: Any) -> Any:
        raise AssertionError(requests)

    transport.write = refuse
    return transport


def test_a_connection_that_the_server_has_closed_is_replaced_before_its_next_use() -> None:
    server = valkey_servers.shared_one()
    with threadkeep.open(url_of(server)) as keep:
        chain = Chain(keep.checkpointer)
        chain.put({"n": 0})
        keep.store.put(("a",), "k", {"n": 0})
        refuse_groups(keep)
        for n in range(1, 4):
            server.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            time.sleep(0.05)
            chain.put({"n": n})
            keep.store.put(("a",), "k", {"n": n})
            assert values_of(keep.checkpointer) == {"n": n}


def test_a_change_at_once_that_too_few_replicas_confirm_is_an_error(server: valkey_servers.Server) -> None:
    replica = valkey_servers.start()
    try:
        replica.client.replicaof("127.0.0.1", str(server.port))  # type: ignore[no-untyped-call]
        info: Callable[[], Any] = lambda: server.client.info("replication")
        valkey_servers.wait_for(lambda: "online" in str(info().get("slave0")), "a replica")
        with threadkeep.open(url_of(server, replicas=1), timeout=2) as keep:
            chain = Chain(keep.checkpointer)
            chain.put({"n": 0})
            refuse_groups(keep)
            assert waits([server], lambda: chain.put({"n": 1})) == 1
            replica.kill()
            with pytest.raises(errors.Unavailable, match="written, but 0 of 1 replicas"):
                chain.put({"n": 2})
    finally:
        replica.stop()


def test_a_thread_is_deleted_at_once() -> None:
    with threadkeep.open(valkey_servers.shared().url()) as keep:
        Chain(keep.checkpointer).put({"n": 0})
        keep.checkpointer.delete_thread("t")  # now the server has the script
        Chain(keep.checkpointer).put({"n": 1})
        refuse_groups(keep)
        assert waits(valkey_servers.shared().living_primaries(), lambda: keep.checkpointer.delete_thread("t")) == 1
        assert keep.checkpointer.get_tuple(config("t")) is None


def test_a_read_waits_for_no_replica() -> None:
    with threadkeep.open(valkey_servers.shared().url(replicas=2)) as keep:
        Chain(keep.checkpointer).put({"x": 1})
        with valkey_servers.record_commands(valkey_servers.shared().living_primaries()) as commands:
            for question in ("get_tuple", "list", "threads", "search", "load"):
                QUESTIONS[question](keep)
        assert "WAIT" not in {name for _, name, *_ in commands}


def test_a_server_that_is_full_is_unavailable_and_what_was_there_stays(server: valkey_servers.Server) -> None:
    """A script that would need more memory is refused before it starts."""
    with threadkeep.open(url_of(server), timeout=2) as keep:
        Chain(keep.checkpointer).put({"x": 1})
        server.client.config_set("maxmemory", "1")
        with pytest.raises(errors.Unavailable, match="OOM|memory"):
            Chain(keep.checkpointer, "u").put({"x": 2})
        assert values_of(keep.checkpointer) == {"x": 1}
        assert [info.id for info in keep.threads()] == ["t"]
        server.client.config_set("maxmemory", "0")
        Chain(keep.checkpointer, "u").put({"x": 2})
        assert [info.id for info in keep.threads(order="id")] == ["t", "u"]


def test_threads_of_an_older_version_can_be_read_and_deleted_on_a_full_server(server: valkey_servers.Server) -> None:
    """The schema version cannot be stored; it is stored when there is memory again."""
    url = url_of(server)
    with threadkeep.open(url) as keep:
        Chain(keep.checkpointer).put({"x": 1})
    (schema,) = server.client.scan_iter("*{000}:schema:")
    server.client.delete(schema)
    server.client.config_set("maxmemory", "1")
    with threadkeep.open(url, timeout=2) as keep:
        assert values_of(keep.checkpointer) == {"x": 1}
        keep.delete("t")
        assert keep.threads() == []
        assert not server.client.exists(schema)
        server.client.config_set("maxmemory", "0")
        assert keep.threads() == []
        assert server.client.exists(schema)


# --- fork

FORK = """
import os, sys, threading
import threadkeep
from checkpoint_chains import Chain, list_ids
keep = threadkeep.open(sys.argv[1])
chain = Chain(keep.checkpointer, "parent")
chain.put({"x": 0})
stop = threading.Event()
def write():
    while not stop.is_set():
        chain.put({"x": chain.number})
writer = threading.Thread(target=write)
writer.start()
children = []
for n in range(4):
    pid = os.fork()
    if not pid:
        for number in range(5):
            Chain(keep.checkpointer, f"child {n}").put({"x": number}, id=f"{number}")
        assert len(list_ids(keep.checkpointer, f"child {n}")) == 5
        assert len(keep.threads()) >= 2
        os._exit(0)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
stop.set()
writer.join()
assert codes == [0] * 4, codes
assert len(list_ids(keep.checkpointer, "parent")) == chain.number
assert [len(list_ids(keep.checkpointer, f"child {n}")) for n in range(4)] == [5] * 4
keep.close()
"""


def test_children_of_a_fork_make_connections_of_their_own(url: str) -> None:
    run_forked("import warnings; warnings.simplefilter('ignore')\n" + FORK, url)


# --- Ctrl-C

INTERRUPTED_NUMBER = """
import sys
import threadkeep
from checkpoint_chains import Chain, list_ids
from threadkeep.backends.valkey.calls import Call
class Interrupted(float):
    def __str__(self):
        raise KeyboardInterrupt
    __repr__ = __str__
keep = threadkeep.open(sys.argv[1])
Chain(keep.checkpointer).put({"x": 0}, id="1")
try:
    keep._session.transport.send([Call("ZCOUNT", (b"key",), ("-inf", Interrupted(1.5)))], durable=False)
except KeyboardInterrupt:
    print("interrupted")
Chain(keep.checkpointer).put({"x": 1}, id="2")
assert list_ids(keep.checkpointer) == ["2", "1"]
keep.close()
"""


def test_ctrl_c_while_a_number_becomes_text_does_not_end_the_process(url: str) -> None:
    """Python looks for signals when it makes the text of a number; hiredis would use the text that it did not get."""
    assert run_forked(INTERRUPTED_NUMBER, url) == "interrupted\n"


INTERRUPTED_CONNECTING = """
import sys, warnings
import threadkeep
from checkpoint_chains import Chain, values_of
warnings.filterwarnings("ignore", "coroutine .* was never awaited")
keep = threadkeep.open(sys.argv[1])
saver = keep.checkpointer
chain = Chain(saver)
chain.put({"n": 0}, id="0000")
def destroys(frame):  # Python reports what a destructor raises and goes on
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
def interrupt_call(number):
    left = [number]
    def trace(frame, event, argument):
        if "/redis/" in frame.f_code.co_filename and not destroys(frame):
            left[0] -= 1
            if left[0] < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
    return trace
number = interrupted = 0
while True:
    keep._session.transport._servers._node.connections.lend()  # another thread uses it, so that a new one is needed
    id = f"{number + 1:04}"
    try:
        sys.settrace(interrupt_call(number))
        chain.put({"n": number}, id=id)
        sys.settrace(None)
        break
    except KeyboardInterrupt:
        interrupted += 1
    Chain(saver).put({"n": -number}, id=id + "x")
    assert values_of(saver) == {"n": -number}
    number += 1
print(interrupted > 20)
keep.close()
"""


def test_ctrl_c_at_any_moment_of_connecting_leaves_no_half_open_connection() -> None:
    """A greeting that was sent but not read would be taken for the reply to the next call."""
    server = valkey_servers.start()
    try:
        assert run_forked(INTERRUPTED_CONNECTING, f"valkey://127.0.0.1:{server.port}") == "True\n"
    finally:
        server.stop()
