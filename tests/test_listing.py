"""`list`: which checkpoints, in which order, with which filters; and the metadata that filters compare."""

from __future__ import annotations

import asyncio
import math
import random
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import apsw
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver

import threadkeep
from checkpoint_chains import Chain, config, list_ids
from sync_async import Caller
from verbs import every

AUTH = {"langgraph_auth_user": "secret", "langgraph_auth_user_id": "u", "langgraph_auth_permissions": "p"}


def put(saver: Any, id: str, metadata: dict[str, Any], *, thread: str = "t", ns: str = "", **more: Any) -> None:
    """Put a checkpoint without state and with exactly this metadata."""
    saver.put(config(thread, None, ns) | more, empty_checkpoint() | {"id": id}, metadata, {})


def list_keys(saver: Any, config_given: Any, **options: Any) -> list[tuple[str, str, str]]:
    found = (each.config["configurable"] for each in saver.list(config_given, **options))
    return [(each["checkpoint_id"], each["thread_id"], each["checkpoint_ns"]) for each in found]


# --- selection and order


@pytest.fixture(scope="module")
def forest(module_keep: Callable[[], threadkeep.Keep]) -> threadkeep.KeepSaver:
    """Write three threads of three namespaces; some ids occur in several of them."""
    saver, chance = module_keep().checkpointer, random.Random(5)
    for thread in ("a", "b", "a b"):
        for ns in ("", "child:1", "child:1|deep:2"):
            for number in chance.sample(range(30), 8):
                put(saver, f"{number:03}", {"step": number, "source": "loop"}, thread=thread, ns=ns)
    return saver


def in_order(found: list[tuple[str, str, str]]) -> bool:
    """By id, newest first; then by thread and namespace."""
    return found == sorted(
        sorted(found, key=lambda each_key: each_key[1:]), key=lambda each_key: each_key[0], reverse=True
    )


def test_all_threads_and_namespaces_are_listed_newest_id_first(forest: threadkeep.KeepSaver) -> None:
    found = list_keys(forest, None)
    assert len(found) == len(set(found)) == 72
    assert in_order(found)


def test_a_thread_is_listed_with_all_its_namespaces_unless_one_is_named(forest: threadkeep.KeepSaver) -> None:
    everything = list_keys(forest, None)
    for thread in ("a", "b", "a b", "nobody"):
        config_given: dict[str, Any] = {"configurable": {"thread_id": thread}}
        assert list_keys(forest, config_given) == [each_key for each_key in everything if each_key[1] == thread]
        for ns in ("", "child:1", "child:1|deep:2", "child", "child:"):
            config_given = {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
            assert list_keys(forest, config_given) == [
                each_key for each_key in everything if each_key[1:] == (thread, ns)
            ]


def test_a_config_with_a_checkpoint_id_lists_that_one(forest: threadkeep.KeepSaver) -> None:
    for id, thread, ns in list_keys(forest, None)[::7]:
        assert list_keys(forest, config(thread, id, ns)) == [(id, thread, ns)]
        without_ns = {"configurable": {"thread_id": thread, "checkpoint_id": id}}
        assert (id, thread, ns) in list_keys(forest, without_ns)
        assert {each_key[:2] for each_key in list_keys(forest, without_ns)} == {(id, thread)}


@pytest.mark.parametrize(
    "shape",
    [
        lambda id: {"configurable": {"thread_id": "a", "checkpoint_ns": "", "checkpoint_id": id}},
        lambda id: {"configurable": {"checkpoint_id": id}},
        lambda id: {"checkpoint_id": id},
        lambda id: empty_checkpoint() | {"id": id},
    ],
    ids=["config", "lean config", "bare", "checkpoint"],
)
def test_before_leaves_out_its_checkpoint_and_later_ones(forest: threadkeep.KeepSaver, shape: Any) -> None:
    everything = list_keys(forest, None)
    of_a = [each_key for each_key in everything if each_key[1:] == ("a", "")]
    for id in ("000", "007", "0075", "015", "029", "zzz", ""):
        assert list_keys(forest, None, before=shape(id)) == [
            each_key for each_key in everything if not id or each_key[0] < id
        ]
        assert list_keys(forest, config("a"), before=shape(id)) == [
            each_key for each_key in of_a if not id or each_key[0] < id
        ]


@pytest.mark.parametrize("limit", [0, 1, 2, 15, 16, 17, 33, 71, 72, 73, 100_000, 2**70, None])
def test_limit_cuts_the_list(forest: threadkeep.KeepSaver, limit: int | None) -> None:
    everything = list_keys(forest, None)
    assert list_keys(forest, None, limit=limit) == everything[:limit]
    assert list_keys(forest, config("a"), limit=limit) == [p for p in everything if p[1:] == ("a", "")][:limit]
    odd = [each_key for each_key in everything if int(each_key[0]) % 5 == 0]
    for wanted in {each_key[0] for each_key in odd}:
        expected = [each_key for each_key in everything if each_key[0] == wanted][:limit]
        assert list_keys(forest, None, filter={"step": int(wanted)}, limit=limit) == expected


@pytest.mark.parametrize("seed", range(5))
def test_any_query_gives_what_a_full_scan_gives(forest: threadkeep.KeepSaver, seed: int) -> None:
    chance = random.Random(seed)
    everything = list_keys(forest, None)
    for _ in range(40):
        thread, ns = chance.choice(["a", "b", None]), chance.choice(["", "child:1", None])
        before = chance.choice([None, f"{chance.randrange(30):03}"])
        limit = chance.choice([None, 0, 1, 5, 20])
        step = chance.choice([None, chance.randrange(30)])
        config_given = None if thread is None else {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}
        expected = [
            (i, t, n) for i, t, n in everything
            if (thread is None or (t == thread and ns in (None, n)))
            and (before is None or i < before) and (step is None or int(i) == step)
        ][:limit]  # fmt: skip
        found = list_keys(
            forest, config_given, before=config("x", before) if before else None, limit=limit,
            filter={"step": step} if step is not None else None,
        )  # fmt: skip
        assert found == expected


async def test_alist_gives_what_list_gives(saver: threadkeep.KeepSaver, call: Caller) -> None:
    def fill() -> None:
        for n in range(40):
            put(saver, f"{n:02}", {"step": n % 3}, thread=f"t{n % 2}")

    await asyncio.to_thread(fill)
    for options in ({}, {"limit": 3}, {"filter": {"step": 1}}, {"before": config("x", "20")}):
        found = await call.every(saver, "list", None, **options)
        again = await every(saver.alist(None, **options))
        assert found == again
        assert found


@pytest.mark.parametrize("limit", [-1, -(2**70)])
async def test_a_negative_limit_is_a_value_error(saver: threadkeep.KeepSaver, call: Caller, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        await call.every(saver, "list", None, limit=limit)


@pytest.mark.parametrize(
    "options",
    [
        {"limit": "1"}, {"limit": 1.0}, {"limit": True}, {"limit": [1]},
        {"filter": [("step", 1)]}, {"filter": "step"}, {"filter": 1}, {"filter": {5: 1}}, {"filter": {"key": len}},
        {"before": "001"}, {"before": 1},
    ],
    ids=str,
)  # fmt: skip
async def test_an_argument_of_another_type_is_a_type_error(
    saver: threadkeep.KeepSaver, call: Caller, options: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        await call.every(saver, "list", config("t"), **options)


@pytest.mark.parametrize("wrong", [{}, {"configurable": {}}, {"configurable": {"checkpoint_id": "1"}}], ids=str)
async def test_a_config_without_a_thread_is_a_value_error(
    saver: threadkeep.KeepSaver, call: Caller, wrong: dict[str, Any]
) -> None:
    """It must not list the threads of all users."""
    with pytest.raises(ValueError, match="thread_id"):
        await call.every(saver, "list", wrong)


# --- filters

NOTHING = object()
VALUES: dict[str, Any] = {
    "missing": NOTHING,
    "null": None,
    "one": 1,
    "one float": 1.0,
    "true": True,
    "one text": "1",
    "zero": 0,
    "minus zero": -0.0,
    "false": False,
    "empty text": "",
    "big": 2**53 + 1,
    "big float": float(2**53),
    "huge float": 1e300,
    "half": 0.5,
    "text": "loop",
    "percent": "a%b",
    "underscore": "a_b",
    "quotes": "a'b\"c",
    "emoji": "🦜",
    "composed": "é",
    "decomposed": "e\u0301",
    "upper": "LOOP",
    "list": [1, 2],
    "list of floats": [1.0, 2.0],
    "list of bools": [True, 2],
    "other order": [2, 1],
    "empty list": [],
    "dict": {"a": 1, "b": [1, {"c": None}]},
    "dict in another order": {"b": [1, {"c": None}], "a": 1.0},
    "smaller dict": {"a": 1},
    "dict with a null": {"a": 1, "b": None},
    "empty dict": {},
}
SAME = [
    {"missing", "null"},
    {"one", "one float"},
    {"zero", "minus zero"},
    {"list", "list of floats"},
    {"dict", "dict in another order"},
]


def same(name: str) -> set[str]:
    return next((group for group in SAME if name in group), {name})


@pytest.fixture(scope="module")
def valued(module_keep: Callable[[], threadkeep.Keep]) -> threadkeep.KeepSaver:
    saver = module_keep().checkpointer
    for name, value in VALUES.items():
        put(saver, name, {"key": value} if value is not NOTHING else {})
    return saver


@pytest.mark.parametrize("name", [name for name in VALUES if name != "missing"])
def test_a_filter_finds_equal_values_of_the_same_json_type(valued: threadkeep.KeepSaver, name: str) -> None:
    assert set(list_ids(valued, "t", filter={"key": VALUES[name]})) == same(name)
    assert set(list_ids(valued, None, filter={"key": VALUES[name], "another": None})) == same(name)
    assert list_ids(valued, "t", filter={"key": VALUES[name], "another": 1}) == []


KEYS = [
    "a.b", "a", "$.a", "$", "a$b", "a'b", 'a"b', "a%b", "a_b", "a[0]", "a\\b", "a b", "", "🦜", "é", "e\u0301", "A",
    "a\nb", "a:b", "a/b", "__proto__", "k" * 500, "thread", "tags", "labels", "writes", "parents",
]  # fmt: skip


def test_a_key_of_a_filter_is_literal(saver: threadkeep.KeepSaver) -> None:
    for number, key in enumerate(KEYS):
        put(saver, f"{number:03}", {key: "here", "a": "plain"} if key != "a" else {"a": "here"})
    put(saver, "nested", {"a": {"b": "here"}})
    for number, key in enumerate(KEYS):
        assert list_ids(saver, "t", filter={key: "here"}) == [f"{number:03}"], key


def test_an_unknown_key_finds_nothing_and_with_none_everything(saver: threadkeep.KeepSaver) -> None:
    for n in range(20):
        put(saver, f"{n:02}", {"step": n})
    assert list_ids(saver, "t", filter={"unheard": 1}) == []
    assert len(list_ids(saver, "t", filter={"unheard": None})) == 20
    assert len(list_ids(saver, "t", filter={})) == 20
    assert len(list_ids(saver, "t", filter=None)) == 20


ODD = {
    "step": [3, -1, 0, 2**62, 2**63, 3.0, 3.5, True, "3", None, [3], {"n": 3}],
    "source": ["loop", "input", "", "Loop", "é", "a\tb", 3, True, None, ["loop"], {"loop": 1}],
    "run_id": ["r", "6f1a-x", "00000000-0000-0000-0000-000000000001", "", 5, 5.0, True, None, ["r"]],
    "parents": [{"": "1"}, {"": "2", "child:1": "3"}, {}, None],
    "writes": [{"node": {"x": 1}}, {"node": None}, {}, None],
}


@pytest.mark.parametrize("key", list(ODD))
def test_special_keys_of_odd_types_come_back_and_are_found(saver: threadkeep.KeepSaver, key: str) -> None:
    for number, value in enumerate(ODD[key]):
        put(saver, f"{number:03}", {key: value, "other": "x"})
    put(saver, "zzz", {"other": "x"})
    stored = {found.checkpoint["id"]: found.metadata for found in saver.list(config("t"))}
    for number, value in enumerate(ODD[key]):
        assert repr(stored[f"{number:03}"].get(key)) == repr(value)
        found = list_ids(saver, "t", filter={key: value})
        expected = [id for id, metadata in stored.items() if json_equal(metadata.get(key), value)]
        assert found == expected, value
        assert f"{number:03}" in found
        assert list_ids(saver, "t", filter={key: value, "other": "x"}) == expected
        assert list_ids(saver, "t", filter={key: value, "other": "y"}) == []


def json_equal(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return bool(one == other)


def test_values_that_are_not_json_are_found_too(saver: threadkeep.KeepSaver) -> None:
    odd = {"uuid": uuid.UUID(int=5), "decimal": Decimal("1.50"), "bytes": b"abc", "inf": math.inf, "set": {1}}
    for name, value in odd.items():
        put(saver, name, {"key": value})
    for name, value in odd.items():
        assert list_ids(saver, "t", filter={"key": value}) == [name]
    assert list_ids(saver, "t", filter={"key": "abc"}) == []


def test_filters_agree_with_in_memory_saver_on_what_a_graph_stores(saver: threadkeep.KeepSaver) -> None:
    official = InMemorySaver()
    for one in (saver, official):
        chain = Chain(one, run="r1")
        for n in range(12):
            chain.put({"x": n}, source=("input", "loop", "update")[n % 3], step=n - 1, user="ada" if n % 2 else "bob")
    for filter in (
        {"source": "loop"}, {"step": 3}, {"step": -1}, {"user": "ada", "source": "loop"}, {"run_id": "r1"},
        {"run_id": "r2"}, {"user": None}, {"source": "loop", "step": 4}, {"source": "loop", "step": 3}, {},
    ):  # fmt: skip
        assert list_ids(saver, "t", filter=filter) == list_ids(official, "t", filter=filter), filter


# --- metadata


def metadata_of(saver: Any, id: str) -> dict[str, Any]:
    found = saver.get_tuple(config("t", id))
    assert found is not None
    (listed,) = saver.list(config("t", id))
    assert found.metadata == listed.metadata
    return dict(found.metadata)


def test_scalars_of_the_config_are_added_where_metadata_lacks_them(saver: threadkeep.KeepSaver) -> None:
    given = config("t", "parent", "") | {
        "metadata": {
            "user": "ada",
            "step": 99,
            "count": 3,
            "ratio": 0.5,
            "flag": True,
            "none": None,
            "list": [1],
            "dict": {"a": 1},
            "__private": "x",
            "thread_id": "x",
            "checkpoint_ns": "x",
            "langgraph_step": 1,
            "langgraph_node": "n",
            "langgraph_path": "p",
            "langgraph_triggers": "t",
            "langgraph_checkpoint_ns": "c",
            "nul": "a\0b",
            "both": "metadata",
            "langgraph_request_id": "q",
        }
        | AUTH,
    }
    given["configurable"] |= {
        "model": "m", "__pregel_x": "y", "both": "configurable", "langgraph_request_id": "q", "checkpoint_map": "z",
        "callable": len, "nul2": "\0",
    } | AUTH  # fmt: skip
    saver.put(
        given,
        empty_checkpoint() | {"id": "1"},
        {"source": "loop", "step": 1, "own\0key": "v\0w", "nested": {"a": "b\0c"}},
        {},
    )
    assert metadata_of(saver, "1") == {
        "source": "loop", "step": 1, "own\0key": "vw", "nested": {"a": "b\0c"}, "user": "ada", "count": 3, "ratio": 0.5,
        "flag": True, "nul": "ab", "both": "metadata", "model": "m", "nul2": "",
    }  # fmt: skip
    assert list_ids(saver, "t", filter={"user": "ada", "model": "m", "nul": "ab"}) == ["1"]
    assert list_ids(saver, "t", filter={"nul": "a\0b"}) == []


def test_the_merged_metadata_is_that_of_in_memory_saver_but_for_credentials(saver: threadkeep.KeepSaver) -> None:
    official = InMemorySaver()
    given = config("t") | {"metadata": {"user": "ada", "run_id": "r", "n": 1, "x\0": "\0y"}}
    given["configurable"] |= {"assistant_id": "a", "__x": 1, "user": "bob", "f": 2.5}
    given_metadata = {
        "source": "input",
        "step": -1,
        "parents": {},
        "deep": {"list": [1, (2, 3)], "none": None},
        "t": (1, 2),
    }
    for one in (saver, official):
        one.put(given, empty_checkpoint() | {"id": "1"}, given_metadata, {})
    assert metadata_of(saver, "1") == metadata_of(official, "1")


def test_credentials_given_in_the_metadata_itself_are_not_stored_either(saver: threadkeep.KeepSaver) -> None:
    put(saver, "1", {"step": 1, **AUTH, "langgraph_request_id": "q"})
    assert metadata_of(saver, "1") == {"step": 1}


def test_nested_metadata_comes_back_as_it_was(saver: threadkeep.KeepSaver) -> None:
    given_metadata = {
        "dict": {"a": {"b": {"c": [1, 2.5, None, True, "x"]}}, "": {"": ""}},
        "list": [[], [[]], {}, [{"a": []}]],
        "text": "x" * 10_000,
        "numbers": [0, -1, 2**40, 1e-300, -0.0],
        "int keys": {1: "a", 2: {3: "b"}},
        "bytes": b"\0\xff",
        "many": {f"k{n}": n for n in range(300)},
    }
    put(saver, "1", given_metadata)
    assert metadata_of(saver, "1") == given_metadata
    assert repr(metadata_of(saver, "1")["numbers"]) == repr(given_metadata["numbers"])


def test_the_caller_may_change_what_it_gave_and_what_it_got(saver: threadkeep.KeepSaver) -> None:
    given_metadata: dict[str, Any] = {"tags": ["a"], "deep": {"x": [1]}}
    put(saver, "1", given_metadata)
    given_metadata["tags"].append("b")
    given_metadata["deep"]["x"].append(2)
    assert metadata_of(saver, "1") == {"tags": ["a"], "deep": {"x": [1]}}
    metadata_of(saver, "1")["deep"]["x"].append(3)
    assert metadata_of(saver, "1") == {"tags": ["a"], "deep": {"x": [1]}}


def test_replaced_metadata_is_found_and_the_old_is_not(saver: threadkeep.KeepSaver) -> None:
    put(saver, "1", {"user": "ada", "step": 1})
    put(saver, "1", {"user": "bob", "step": 2})
    assert list_ids(saver, "t", filter={"user": "ada"}) == list_ids(saver, "t", filter={"step": 1}) == []
    assert list_ids(saver, "t", filter={"user": "bob", "step": 2}) == ["1"]


# --- long listings

LONG = 2000


@pytest.fixture
def long(url: str) -> Iterator[threadkeep.KeepSaver]:
    """Write 2,000 checkpoints on two threads; every tenth belongs to a run that can be deleted."""
    with threadkeep.open(url, durability="relaxed") as keep:
        chains = [Chain(keep.checkpointer, thread) for thread in "ab"]
        for n in range(LONG):
            chain = chains[n % 2]
            chain.run = "doomed" if n % 10 == 0 else "stays"
            chain.put({"log": [f"line {k}" for k in range(n % 7)], "n": n}, id=f"5-{n:05}")
        yield keep.checkpointer


def test_a_long_listing_is_complete_and_in_order(long: threadkeep.KeepSaver) -> None:
    assert list_ids(long, None) == [f"5-{n:05}" for n in reversed(range(LONG))]
    assert list_ids(long, "b") == [f"5-{n:05}" for n in reversed(range(LONG)) if n % 2]
    assert list_ids(long, None, filter={"run_id": "doomed"}) == [f"5-{n:05}" for n in reversed(range(0, LONG, 10))]
    assert list_ids(long, None, filter={"step": 3}, limit=10) == ["5-00007", "5-00006"]


def test_a_long_listing_continues_while_checkpoints_come_and_go(long: threadkeep.KeepSaver) -> None:
    """What existed all the time is listed once; what was added or deleted in between at most once."""
    seen = []
    for number, found in enumerate(long.list(None)):
        seen.append(found.checkpoint["id"])
        if seen[-1].startswith("5-"):
            n = int(seen[-1][2:])
            assert found.checkpoint["channel_values"] == {"log": [f"line {k}" for k in range(n % 7)], "n": n}
        if number % 100 == 50:
            put(long, f"9-{number:05}", {"step": 1}, thread="a")
            put(long, f"1-{number:05}", {"step": 1}, thread="new")
        if number == 700:
            long.delete_for_runs(["doomed"])
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == len(set(seen))
    assert {f"5-{n:05}" for n in range(LONG) if n % 10} <= set(seen)
    assert not any(id.startswith("9-") for id in seen)
    assert not [id for id in seen if int(id[2:]) < LONG - 1700 and id.startswith("5-") and int(id[2:]) % 10 == 0]


async def test_a_long_async_listing_continues_while_others_write(long: threadkeep.KeepSaver) -> None:
    over = asyncio.Event()

    async def disturb() -> None:
        chain = Chain(long, "c")
        while not over.is_set():
            await chain.aput({"n": [1] * 10})
            await long.aprune(["c"])

    others = [asyncio.create_task(disturb()) for _ in range(2)]
    seen = [found.checkpoint["id"] async for found in long.alist({"configurable": {"thread_id": "a"}})]
    over.set()
    await asyncio.gather(*others)
    assert seen == [f"5-{n:05}" for n in reversed(range(LONG)) if n % 2 == 0]


def test_no_connection_to_sqlite_prepares_a_statement_again_because_of_its_values(tmp_path: Path) -> None:
    with threadkeep.open(f"sqlite:///{tmp_path / 'a.db'}") as keep:
        put(keep.checkpointer, "1", {})
        put(keep.checkpointer, "2", {})
        assert len(list_ids(keep.checkpointer)) == 2
        file: Any = keep.checkpointer._session.transport
        connections = [file._writer, file._at_once.connection, *(reader.connection for reader in file._readers)]
        assert len(connections) >= 3
        assert all(each.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) for each in connections)


# --- what a list reads


def requests_of(keep: threadkeep.Keep, work: Callable[[], Any]) -> tuple[list[str], Any]:
    """Return the names of the requests that some reads make, and what they return."""
    transport: Any = keep.checkpointer._session.transport
    read, names = transport.read, list[str]()

    def counted(request: Any) -> Any:
        names.append(type(request).__name__)
        return read(request)

    transport.read = counted
    try:
        return names, work()
    finally:
        del transport.read


@pytest.fixture
def two_keeps(lasting_url: str) -> Iterator[tuple[threadkeep.Keep, threadkeep.Keep]]:
    with threadkeep.open(lasting_url) as first, threadkeep.open(lasting_url) as second:
        yield first, second


def test_a_list_of_cached_checkpoints_without_writes_is_one_request(tables_url: str) -> None:
    with threadkeep.open(tables_url) as keep:
        saver = keep.checkpointer
        chains = [Chain(saver, thread) for thread in ("t", "u", "v")]
        for n in range(4):
            for chain in chains:
                chain.put({"n": n, "list": [n, "x" * 2000]}, user="me" if chain.thread != "v" else "you")
        for config_given, wanted in (
            (None, {"user": "me"}),
            (None, {"step": 2}),
            (config("t"), {"step": 2}),
            (None, {}),
        ):

            def find(config_given: Any = config_given, wanted: Any = wanted) -> Any:
                return list(saver.list(config_given, filter=wanted, limit=3))

            first = find()
            assert requests_of(keep, find) == (["ScanCheckpoints"], first)
        saver.put_writes(config("t", chains[0].last), [("n", 5)], "task")
        names, found = requests_of(keep, lambda: list(saver.list(config("t"), filter={"step": 3})))
        assert names == ["ScanCheckpoints", "LoadCheckpoints"]
        assert found[0].pending_writes == [("task", "n", 5)]


@pytest.mark.parametrize("change", ["write", "names", "labels", "prune", "replace", "delete", "recreate"])
def test_a_list_sees_what_another_process_changed(
    two_keeps: tuple[threadkeep.Keep, threadkeep.Keep], change: str
) -> None:
    ours, theirs = (keep.checkpointer for keep in two_keeps)
    chain = Chain(ours)
    for n in range(3):
        chain.put({"n": n, "text": f"{n}" * 2000}, user="me")
    before = list(ours.list(config("t"), filter={"user": "me"}))
    assert len(before) == 3
    chain.saver = theirs
    if change == "write":
        theirs.put_writes(config("t", chain.last), [("n", 5)], "task")
    elif change == "names":
        chain.put({"n": 3, "text": "3" * 2000, "new": "name"}, user="me")
    elif change == "labels":
        chain.put({"n": 3, "text": "3" * 2000}, user="me", more="labels")
    elif change == "prune":
        theirs.prune(["t"])
    elif change == "replace":
        theirs.put(config("t", "00000001"), before[0].checkpoint, before[0].metadata | {"user": "you"}, {})
    else:
        theirs.delete_thread("t")
        if change == "recreate":
            for n in range(3):
                Chain(theirs).put({"n": -n, "text": "other" * 500}, user="me")
    found = list(ours.list(config("t"), filter={"user": "me"}))
    assert found == list(theirs.list(config("t"), filter={"user": "me"}))
    assert found != before


def test_states_of_a_list_share_nothing(saver: threadkeep.KeepSaver) -> None:
    put(saver, "1", {"user": ["me"], "step": 1})
    for _ in range(2):
        (found,) = saver.list(config("t"), filter={"step": 1})
        cast("Any", found.metadata)["user"].append("you")
        found.checkpoint["channel_versions"]["x"] = 1
        found.checkpoint["versions_seen"]["x"] = {}
    (found,) = saver.list(config("t"), filter={"user": ["me"]})
    assert (found.metadata, found.checkpoint["channel_versions"]) == ({"user": ["me"], "step": 1}, {})
