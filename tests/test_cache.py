"""The cache of a Keep beside everything else: what does not see it, tenants, encryption, quotas, sweeps, damage."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy

import processes
import threadkeep
from encrypted_keeps import BOTH, KEYS, NEXT
from forged_values import Forged, Forger, ext, packed
from threadkeep import errors
from threadkeep.engine.cache import cache_tenant
from threadkeep.engine.health.requests import InspectedMemory, InspectMemories
from threadkeep.engine.identity import CACHE, RESERVED_TENANTS
from threadkeep.engine.memories.requests import NewMemory, WriteMemories
from threadkeep.engine.tenants.requests import ListDataKeys, LoadTenant

ENTRY = (("node", "square"), "key")
SECRET = "Kilimanjaro"
TTL = 600


@pytest.fixture
def keep(url: str) -> Iterator[threadkeep.Keep]:
    """A Keep of the default tenant, on a storage of its own."""
    with threadkeep.open(url) as opened:
        yield opened


def stored_entries(keep: threadkeep.Keep, tenant: str = "") -> tuple[InspectedMemory, ...]:
    """Return the entries of a tenant's cache as they are stored, expired ones too."""
    found: list[InspectedMemory] = []
    after = None
    while True:
        page = keep._session.transport.execute(InspectMemories(cache_tenant(tenant), 1000, after))
        found += page.memories
        after = page.cursor
        if after is None:
            return tuple(found)


# --- what does not see it


def test_no_verb_of_the_store_or_the_keep_sees_an_entry(keep: threadkeep.Keep, tmp_path: Path) -> None:
    keep.cache.set({ENTRY: ({"text": SECRET}, None)})
    keep.store.put(("users",), "kim", {"text": "hello"})
    assert [item.key for item in keep.store.search((), limit=100)] == ["kim"]
    assert [item.key for item in keep.store.search((), query=SECRET, limit=100)] == ["kim"]
    assert [item.key for item in keep.store.search_stored((), query=SECRET, limit=100)] == ["kim"]
    assert keep.store.list_namespaces() == [("users",)]
    assert (keep.stats().memories, keep.stats().namespaces) == (1, 1)
    assert keep.verify().memories == 1
    assert [(each.name, each.memories) for each in keep.tenants()] == [("", 1)]
    assert keep.export(tmp_path / "all.tk").memories == 1
    with threadkeep.open("memory://") as other:
        other.import_portable(tmp_path / "all.tk")
        assert stored_entries(other) == ()
    assert keep.cache.get([ENTRY]) == {ENTRY: {"text": SECRET}}


def test_an_entry_is_in_no_index_of_words(keep: threadkeep.Keep) -> None:
    keep.cache.set({ENTRY: ({"text": SECRET}, None)})
    (entry,) = keep._session.transport.execute(InspectMemories(cache_tenant(""), 10, with_words=True)).memories
    assert not entry.words
    assert entry.vectors == {}


@pytest.mark.parametrize("prefix", RESERVED_TENANTS)
def test_no_keep_can_be_opened_for_a_reserved_tenant(prefix: str) -> None:
    with pytest.raises(ValueError, match="reserved"):
        threadkeep.open("memory://", tenant=prefix + "x")
    with threadkeep.open("memory://") as keep:
        with pytest.raises(ValueError, match="reserved"):
            keep.tenant(prefix)
        with pytest.raises(ValueError, match="reserved"):
            keep.drop_tenant(prefix + "x")


def test_the_namespaces_of_entries_are_refused_by_the_store(keep: threadkeep.Keep) -> None:
    keep.cache.set({ENTRY: (1, None)})
    (entry,) = stored_entries(keep)
    assert entry.key is not None
    with pytest.raises(ValueError, match="Namespace labels"):
        keep.store.put(entry.key.namespace, entry.key.key, {})


# --- tenants and quotas


def test_each_tenant_has_a_cache_of_its_own(keep: threadkeep.Keep) -> None:
    one, two = keep.tenant("one"), keep.tenant("two")
    for n, each in enumerate((keep, one, two)):
        each.cache.set({ENTRY: (n, None)})
    two.cache.clear()
    assert [each.cache.get([ENTRY]) for each in (keep, one, two)] == [{ENTRY: 0}, {ENTRY: 1}, {}]


def test_a_dropped_tenant_leaves_no_entries(keep: threadkeep.Keep) -> None:
    one = keep.tenant("one", keys=KEYS)
    one.cache.set({ENTRY: (SECRET, None)})
    one.store.put(("users",), "kim", {})
    keep.drop_tenant("one")
    assert stored_entries(keep, "one") == ()
    assert keep._session.transport.execute(LoadTenant(CACHE + "one")) is None
    assert keep.tenants() == []
    one.cache.set({ENTRY: ("new", None)})
    assert one.cache.get([ENTRY]) == {ENTRY: "new"}


def test_a_tenant_that_has_only_entries_can_be_dropped(keep: threadkeep.Keep) -> None:
    keep.tenant("one").cache.set({ENTRY: (SECRET, None)})
    assert keep.drop_tenant("one").memories == 0
    assert stored_entries(keep, "one") == ()
    with pytest.raises(errors.Missing):
        keep.drop_tenant("one")


def test_entries_do_not_count_for_the_quota(keep: threadkeep.Keep) -> None:
    small = keep.tenant("small", quota_bytes=2000)
    small.cache.set({ENTRY: ("x" * 100_000, None)})
    assert small.cache.get([ENTRY]) == {ENTRY: "x" * 100_000}
    small.store.put(("users",), "kim", {})
    (info,) = keep.tenants()
    assert (info.name, info.memories) == ("small", 1)
    assert info.bytes < 100
    with pytest.raises(errors.QuotaExceeded):
        small.store.put(("users",), "large", {"text": "x" * 100_000})


# --- sweeps


def test_a_sweep_removes_what_has_expired(keep: threadkeep.Keep) -> None:
    keep.cache.set({ENTRY: ("old", 0), (("node",), "other"): ("new", TTL)})
    keep.tenant("other").cache.set({ENTRY: ("old", 0)})
    assert keep.cache.get([ENTRY]) == {}
    assert len(stored_entries(keep)) == 2
    assert keep.sweep(dry_run=True).memories is None
    assert keep.sweep().memories == 1
    assert (len(stored_entries(keep)), len(stored_entries(keep, "other"))) == (1, 1)
    assert keep.sweep().memories == 0


# --- encryption


@pytest.mark.parametrize("hide_ids", [False, True])
def test_entries_of_an_encrypted_keep_are_encrypted(fresh_url: Callable[[], str], hide_ids: bool) -> None:  # noqa: FBT001
    with threadkeep.open(fresh_url(), keys=KEYS, hide_ids=hide_ids) as keep:
        entries = {((f"node {n % 3}",), f"key {n}"): (f"{SECRET} {n}", None) for n in range(250)}
        keep.cache.set(entries)
        keep.cache.set({ENTRY: (SECRET, None)})
        assert keep.cache.get(list(entries)) == {key: value for key, (value, _) in entries.items()}
        stored = stored_entries(keep)
        assert len(stored) == 251
        assert not any('"tag"' in each.row.value for each in stored if each.row is not None)
        assert not any(each.key is None or "node 1" in each.key.namespace for each in stored)
        keep.cache.clear([("node 1",)])
        assert {namespace for namespace, _ in keep.cache.get([*entries, ENTRY])} == {
            ("node 0",),
            ("node 2",),
            ENTRY[0],
        }
        assert keep.store.search((), limit=10) == []
        keep.cache.clear()
        assert stored_entries(keep) == ()


def test_keys_are_replaced_and_a_wrong_key_is_an_error(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        keep.cache.set({ENTRY: (SECRET, None)})
    with threadkeep.open(lasting_url, keys=BOTH) as keep:
        keep.rotate()
    with threadkeep.open(lasting_url, keys=NEXT) as keep:
        assert keep.cache.get([ENTRY]) == {ENTRY: SECRET}
        keep.reencrypt(wait=False)
        assert keep.cache.get([ENTRY]) == {}
        assert stored_entries(keep) == ()
        keep.cache.set({ENTRY: (SECRET, None)})
        assert len(keep._session.transport.execute(ListDataKeys("", None, 10))) == 1
        assert keep.cache.get([ENTRY]) == {ENTRY: SECRET}
    with threadkeep.open(lasting_url) as keep, pytest.raises(errors.WrongKey):
        keep.cache.get([ENTRY])


def test_encrypt_clears_plain_entries_and_refuses_new_ones(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as before:
        before.cache.set({ENTRY: (SECRET, None)})
        before.store.put(("users",), "kim", {})
        with threadkeep.open(lasting_url, keys=KEYS) as keep:
            keep.encrypt()
            assert keep.cache.get([ENTRY]) == {}
            with pytest.raises(errors.WrongKey):
                before.cache.set({ENTRY: (SECRET, None)})
            assert stored_entries(keep) == ()


def test_a_process_without_keys_cannot_store_entries_for_an_encrypted_tenant(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as early:
        assert early.cache.get([ENTRY]) == {}
        with threadkeep.open(lasting_url, keys=KEYS) as keep:
            keep.cache.set({ENTRY: (SECRET, None)})
            with pytest.raises(errors.WrongKey):
                early.cache.set({ENTRY: ("plain", None)})
            assert keep.cache.get([ENTRY]) == {ENTRY: SECRET}


def test_a_memory_cannot_take_the_place_of_an_entry() -> None:
    with threadkeep.open("memory://", keys=KEYS) as keep:
        keep.cache.set({ENTRY: (SECRET, None)})
        keep.store.put(ENTRY[0], ENTRY[1], {"tag": "msgpack", "data": []})
        (entry,) = stored_entries(keep)
        (memory,) = keep._session.transport.execute(InspectMemories("", 10)).memories
        assert entry.row is not None
        forged = NewMemory(entry.row._replace(value=memory.row.value))
        keep._session.transport.execute(WriteMemories(cache_tenant(""), (forged,), (), 0, sealed=True))
        with pytest.raises(errors.Corrupt):
            keep.cache.get([ENTRY])


# --- decoding


@dataclass
class Answer:
    n: int


def test_entries_are_decoded_behind_the_type_gate(keep: threadkeep.Keep) -> None:
    forged = Forged("msgpack", packed([ext(0, "os", "system", "echo hello"), ext(0, "this", "s", "x")]))
    honest, keep.cache.serde = keep.cache.serde, Forger()
    keep.cache.set({ENTRY: (forged, None), (("node",), "pickle"): (Forged("pickle", b"cos\nsystem\n."), None)})
    keep.cache.serde = honest
    assert keep.cache.get([ENTRY]) == {ENTRY: ["echo hello", "x"]}
    with pytest.raises(NotImplementedError):
        keep.cache.get([(("node",), "pickle")])


def test_entries_are_upcast(lasting_url: str) -> None:
    old = make_dataclass("Old", ["n"], namespace={"__module__": "gone_module"})
    with threadkeep.open(lasting_url) as keep:
        keep.cache.set({ENTRY: ([old(1)], None)})
        assert keep.cache.get([ENTRY]) == {ENTRY: [{"n": 1}]}
    with threadkeep.open(lasting_url, upcasters={"gone_module.Old": Answer}) as keep:
        assert keep.cache.get([ENTRY]) == {ENTRY: [Answer(1)]}


def test_a_damaged_entry_is_an_error_until_it_is_cleared(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        keep.cache.set({ENTRY: ("intact", None)})
        (entry,) = stored_entries(keep)
        assert entry.row is not None
        spoiled = NewMemory(entry.row._replace(value='{"tag":"msgpack","data":["AAAA"]}'))
        keep._session.transport.execute(WriteMemories(cache_tenant(""), (spoiled,), (), 0))
        with pytest.raises(errors.Corrupt, match="key"):
            keep.cache.get([ENTRY])
        keep.cache.clear([ENTRY[0]])
        assert keep.cache.get([ENTRY]) == {}


@pytest.mark.parametrize("ttl", [1e18, 10**30, float("inf"), float("-inf"), float("nan")])
def test_a_ttl_that_no_clock_reaches_is_refused(ttl: Any) -> None:
    with threadkeep.open("memory://") as keep, pytest.raises(ValueError, match="ttl must be"):
        keep.cache.set({ENTRY: (1, ttl)})


@pytest.mark.parametrize(
    ("keys", "error"),
    [("text", TypeError), ([("text", "key")], TypeError), ([((1,), "key")], TypeError), ([(("a",), None)], TypeError)],
)
def test_wrong_keys_are_refused(keys: Any, error: type[Exception]) -> None:
    with threadkeep.open("memory://") as keep:
        with pytest.raises(error):
            keep.cache.get(keys)
        with pytest.raises(TypeError):
            keep.cache.clear("text")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            keep.cache.set({ENTRY: (1, "60")})  # type: ignore[dict-item]


def test_a_read_only_keep_reads_the_cache_and_stores_nothing(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        keep.cache.set({ENTRY: (1, None)})
    with threadkeep.open(lasting_url, read_only=True) as keep:
        assert keep.cache.get([ENTRY]) == {ENTRY: 1}
        with pytest.raises(errors.ReadOnly):
            keep.cache.set({ENTRY: (2, None)})
        with pytest.raises(errors.ReadOnly):
            keep.cache.clear()


# --- graphs

GRAPH = """
import sys, operator
from typing import Annotated, TypedDict
import threadkeep
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy

class State(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]

def slow(state):
    print("runs", state["n"])
    return {"log": [f"slow {state['n']}"]}

builder = StateGraph(State)
builder.add_node("slow", slow, cache_policy=CachePolicy(ttl=600))
builder.add_edge(START, "slow")
with threadkeep.open(sys.argv[1]) as keep:
    graph = builder.compile(checkpointer=keep.checkpointer, store=keep.store, cache=keep.cache)
    for thread in ("a", "b"):
        at = {"configurable": {"thread_id": sys.argv[2] + thread}}
        print(graph.invoke({"n": 3}, at)["log"])
"""


def test_another_process_uses_what_a_node_returned(lasting_url: str) -> None:
    assert processes.run_forked(GRAPH, lasting_url, "1") == "runs 3\n['slow 3']\n['slow 3']\n"
    assert processes.run_forked(GRAPH, lasting_url, "2") == "['slow 3']\n['slow 3']\n"


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[Any], operator.add]


async def test_a_graph_on_a_tenant_uses_the_cache_of_that_tenant(url: str) -> None:
    calls: list[int] = []

    async def node(state: State) -> State:
        calls.append(state["n"])
        return {"log": [Answer(state["n"])]}

    builder = StateGraph(State)
    builder.add_node("node", node, cache_policy=CachePolicy())
    builder.add_edge(START, "node")
    async with threadkeep.open(url) as keep:
        for tenant in ("one", "two"):
            graph = builder.compile(cache=keep.tenant(tenant).cache)
            for _ in range(2):
                assert (await graph.ainvoke({"n": 1}))["log"] == [Answer(1)]
        assert calls == [1, 1]
        await graph.aclear_cache()
        await graph.ainvoke({"n": 1})
        assert calls == [1, 1, 1]
