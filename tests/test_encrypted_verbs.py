"""Every verb returns the same with `keys=`, and with hidden ids, as without: no verb returns less.

A plain Keep is filled with one of everything and converted into an encrypted one, so that ids and times are the same.
Then each verb of a Keep, its checkpointer, its store and its cube is called on both, and the results are compared.
Sizes in bytes differ, since encryption adds to each row; everything else must be equal. The verbs that change something
are called on both too, and everything is compared again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cubeloop.providers.base import TextContent, UserMessage

import shared_pool
import threadkeep
from checkpoint_chains import Chain, config
from damage import rows_opener
from rich_threads import write_thread
from sample_keep import contents, fill
from sealed_storages import KEYS
from threadkeep import clock
from threadkeep.adapters import langgraph_saver
from threadkeep.conformance.store.embedder import DIMS, embed
from threadkeep.engine.identity import GRAPH

INDEX: Any = {"dims": DIMS, "embed": embed, "fields": ["text", "is"], "search": "hybrid"}
HIDING = pytest.mark.parametrize(
    "hide_ids", [True, pytest.param(False, marks=pytest.mark.long)], ids=["ids hidden", "ids visible"]
)
IN_BYTES = {"bytes", "stored", "saved", "by_kind", "storage", "logical"}
"""Fields whose values are sizes as stored."""
LABELS: dict[str, Any] = {
    "one": 1, "one as a float": 1.0, "true": True, "text": "1", "none": None, "list": [1, {"b": None}],
}  # fmt: skip
FILTERS: list[dict[str, Any]] = [
    *({"label": value} for value in LABELS.values()), {"label": 0}, {"label": [1.0, {"b": None}]}, {"nothing": None},
    {"customer_email": "ana@example.org"}, {"customer_email": None}, {"rank": 70_001}, {"rank": 70_001.0},
    {"customer_email": "ana@example.org", "rank": 70_002}, {"plan": "free"}, {"plan": "Free"}, {"source": "input"},
    {"source": None}, {"step": 0}, {"step": -1}, {"step": 1.0}, {"step": True}, {"run_id": "run-2"}, {"run_id": None},
    {"label": 1, "source": "loop"},
]  # fmt: skip
"""Filters on metadata, with values that Python takes for equal, absent values, and what has columns of its own."""
MEMORY_FILTERS: list[dict[str, Any]] = [
    {"n": 1}, {"n": 1.0}, {"n": True}, {"n": None}, {"n": {"$ne": 1}}, {"n": {"$gt": 67}}, {"n": {"$gte": 3, "$lt": 5}},
    {"n": {"$in": [1, 2]}}, {"n": {"$nin": [1, None]}}, {"n": {"$exists": False}}, {"text": {"$contains": "Kili"}},
    {"text": "Kilimanjaro"}, {"is": "blue moon"}, {"deep.customer_email": {"$contains": 2.5}},
    {"$or": [{"n": 1}, {"is": {"$exists": True}}]}, {"$not": {"n": {"$exists": True}}}, {"$and": [{"n": 1}, {"n": 2}]},
]  # fmt: skip
YEAR = datetime(2025, 1, 1, tzinfo=UTC)
"""A time after that of some threads and before that of others."""
PREFIXES = ["", "c", "p", "private", "private-thread", "tie", "tie 1", "zz"]
SPACES: list[tuple[str, ...]] = [
    (),
    ("users",),
    ("users", "secret-user"),
    ("notes",),
    ("notes", "1"),
    ("no",),
    ("note",),
]


def fill_everything(keep: threadkeep.Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put one of everything into a Keep: also threads and memories of the same time, and all kinds of metadata."""
    fill(keep)
    write_thread(keep, "rich", plan="free")
    for name, label in LABELS.items():
        Chain(keep.checkpointer, f"label {name}").put({"a": name}, label=label)
    mixed = Chain(keep.checkpointer, "labels")
    for name, label in LABELS.items():
        mixed.put({"a": name}, label=label)
    with monkeypatch.context() as patched:
        patched.setattr(langgraph_saver, "now_ms", lambda: 1_700_000_000_000)
        for n in range(12):
            Chain(keep.checkpointer, f"tie {n}", run="run-1").put({"a": n}, id="same")
            Chain(keep.checkpointer, f"tie {n}", ns="child:1", run="run-2").put({"a": n}, id="same")
    keep.store.batch(
        [
            _put(("users", f"u{n % 5}"), f"tie {n}", {"text": "apple rain" if n % 2 else "apple", "n": n})
            for n in range(40)
        ]
    )
    keep.describe("chat", title="About Thread 7", labels=["billing", "urgent"])
    keep.describe("talk", labels=["billing"], archived=True)
    keep.describe("only described", title="Nothing yet")
    keep.store.put(("users", "u1"), "to be forgotten", {"text": "rain and snow"}, ttl=1e6)


def _put(namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> Any:
    from langgraph.store.base import PutOp

    return PutOp(namespace, key, value)


# --- what is compared


OTHERS = {
    "close", "setup", "tenant", "drop_tenant", "start_sweeping", "stop_sweeping", "encrypt", "rotate", "reencrypt",
    "import_from", "import_portable", "lease", "lease_info", "break_lease", "metrics", "build_search_index",
    "drop_search_index", "distribute",
}  # fmt: skip
"""What is tested elsewhere: it opens or closes, works without keys, or is only there for keys or other storages."""


class Called:
    """A Keep, or one of its faces, which notes the names of the verbs that are called."""

    def __init__(self, target: Any, names: set[str]) -> None:
        self._target, self._names = target, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        self._names.add(f"{type(self._target).__name__}.{name}")
        is_face = name in ("checkpointer", "store", "cube")
        return Called(found, self._names) if is_face else found


def verbs(*owners: type) -> set[str]:
    """Return the sync verbs of classes, and those of CubeLoop's checkpointer, which are async."""
    return {
        f"{owner.__name__}.{name}"
        for owner in owners
        for name, value in vars(owner).items()
        if name[0] != "_" and callable(value) and not (name[0] == "a" and hasattr(owner, name[1:]))
    }


class Named:
    """Names for ids that differ because they were made anew on each side."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def add(self, id: str) -> None:
        self.names.setdefault(id, f"new {len(self.names)}")

    def comparable(self, found: Any) -> Any:
        """Return a result as plain data without sizes in bytes, with the same names for new ids."""
        if isinstance(found, threadkeep.Branch):
            self.add(found.id)
        if dataclasses.is_dataclass(found) and not isinstance(found, type):
            fields = {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}
            if isinstance(found, threadkeep.Sizes):  # they are sorted by size
                fields["by_thread"] = sorted(found.by_thread, key=lambda each: (each.id, each.kind))
                fields["by_channel"] = sorted(found.by_channel, key=lambda each: each.channel)
            return type(found).__name__, {
                name: self.comparable(value) for name, value in fields.items() if name not in IN_BYTES
            }
        if isinstance(found, Mapping):
            return {self.comparable(key): self.comparable(value) for key, value in found.items()}
        if isinstance(found, (list, tuple)):
            return [self.comparable(each) for each in found]
        if isinstance(found, (int, float, bytes, datetime, type(None))):
            return type(found).__name__, found
        text = found if isinstance(found, str) else repr(found)
        for id, name in self.names.items():
            text = text.replace(id, name)
        return text


def outcome(call: Callable[[], Any], named: Named) -> Any:
    """Return what a call returns, or the error that it raises."""
    try:
        return named.comparable(call())
    except Exception as error:  # noqa: BLE001 - compared
        return type(error).__name__, named.comparable(str(error))


def reads(keep: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls of verbs that change nothing."""
    yield from _reads_of_threads(keep)
    yield from _reads_of_each_thread(keep)
    yield from _reads_of_the_checkpointer(keep.checkpointer)
    yield from _reads_of_the_store(keep.store)
    yield "cube", lambda: asyncio.run(_read_cube(keep.cube))
    yield "verify", lambda: keep.verify()
    yield "verify prefix", lambda: keep.verify(prefix="t")
    yield "repair", lambda: keep.repair("chat", dry_run=True)
    yield "export", lambda: _exported(keep)
    yield "tenants", lambda: [(info.threads, info.memories) for info in keep.tenants()]


def reads_again(keep: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield fewer calls, which show all that was changed."""
    yield "threads", lambda: [keep.threads(order=order, limit=1000) for order in ("id", "created", "updated")]
    yield "log", lambda: [keep.log(info.id, kind=info.kind) for info in keep.threads(order="id", limit=1000)]
    yield "list", lambda: [list(keep.checkpointer.list(None, filter=wanted)) for wanted in (None, {"label": True})]
    yield "stats", lambda: keep.stats()
    for query in ("hello", "one", '"go on"', "nothing"):
        yield f"search {query}", lambda query=query: keep.search(query, scan=True, limit=1000)
    yield (
        "memories",
        lambda: [keep.store.search((), limit=1000), _found(keep.store.search((), query="rain", limit=1000))],
    )
    yield "list_namespaces", lambda: keep.store.list_namespaces()
    yield "cube", lambda: asyncio.run(_read_cube(keep.cube))
    yield "verify", lambda: keep.verify()


def _reads_of_threads(keep: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    for order in ("id", "created", "updated"):
        yield f"threads by {order}", lambda order=order: keep.threads(order=order, limit=1000)
        yield f"pages by {order}", lambda order=order: _pages(keep, order=order)
        for prefix in PREFIXES:
            yield (
                f"threads {prefix!r} by {order}",
                lambda prefix=prefix, order=order: [
                    keep.threads(prefix=prefix, order=order),
                    _pages(keep, prefix=prefix, order=order),
                ],
            )
    yield "threads by bytes", lambda: sorted(info.id for info in keep.threads(order="bytes", limit=1000))
    yield "pages by bytes", lambda: sorted(info.id for info in _pages(keep, order="bytes"))
    for status in ("idle", "pending", "interrupted", "error"):
        yield status, lambda status=status: keep.threads(status=status, limit=1000)
        yield f"{status} t", lambda status=status: keep.threads(status=status, prefix="t", order="id")
    for kind in ("graph", "cube"):
        yield kind, lambda kind=kind: keep.threads(kind=kind, limit=1000)
    yield "columns", lambda: keep.threads(columns=["plan", "customer_email", "rank", "label"], limit=1000)
    yield "contains", lambda: keep.threads(contains="THREAD", limit=1000)
    for chosen in ({"labels": ["billing"]}, {"labels": ["billing", "urgent"]}, {"archived": True}, {"archived": False}):
        yield f"threads {chosen}", lambda chosen=chosen: [keep.threads(limit=1000, **chosen), _pages(keep, **chosen)]
    for wanted in FILTERS:
        for match in ("latest", "any"):
            yield (
                f"threads {wanted} {match}",
                lambda wanted=wanted, match=match: [
                    keep.threads(metadata=wanted, match=match, limit=1000),
                    keep.threads(metadata=wanted, match=match, limit=2),
                    keep.threads(metadata=wanted, match=match, prefix="l", order="id"),
                    keep.delete(metadata=wanted, match=match, dry_run=True),
                ],
            )
    yield "thread", lambda: [keep.thread("chat"), keep.thread("nothing"), keep.thread("talk", kind="graph")]
    yield "find", lambda: [keep.find("chat"), keep.find("chat@latest~2"), keep.find("9-by-hand"), keep.find("talk")]
    for since, until in ((None, None), (YEAR, None), (None, YEAR)):
        yield f"activity {since} {until}", lambda since=since, until=until: keep.activity(since=since, until=until)
    yield "activity ns", lambda: [keep.activity(ns=""), keep.activity(ns="sub"), keep.activity(prefix="p")]
    yield "activity of metadata", lambda: keep.activity(metadata={"plan": "free"}, match="any")
    yield "sizes", lambda: keep.sizes(limit=1000)
    yield "stats", lambda: keep.stats()
    yield "usage", lambda: [keep.usage(by=["node", "model"]), keep.usage(all_branches=True, until=YEAR)]
    yield "waiting", lambda: [keep.waiting(), keep.waiting(metadata={"label": 1})]
    yield "types", lambda: [(each.name, each.status, each.objects, each.threads) for each in keep.types().types]
    yield "doctor", lambda: [(each.name, each.verdict) for each in keep.doctor() if each.name != "encryption"]
    yield "erase", lambda: _receipt(keep.erase(prefix="t", namespace=["users"], dry_run=True))
    yield "erase partly", lambda: _receipt(keep.erase(metadata={"label": 1}, dry_run=True))
    yield "delete_memories", lambda: keep.delete_memories(("users",), dry_run=True)
    yield "prune", lambda: keep.prune(policy=threadkeep.Policy(keep_last=2), dry_run=True)
    yield "prune some", lambda: keep.prune(policy=threadkeep.Policy(metadata={"label": 1}, keep_last=1), dry_run=True)
    yield "prune one", lambda: keep.prune("chat", dry_run=True)
    yield "sweep", lambda: keep.sweep(dry_run=True)


def _pages(keep: Any, **chosen: Any) -> list[Any]:
    """Return all threads by pages, the next one after the id or the info of the last thread in turn."""
    found: list[Any] = []
    while page := keep.threads(
        limit=5, after=found[-1 if len(found) % 2 else len(found) - 1] if found else None, **chosen
    ):
        found += page
        assert len(found) == len({(info.kind, info.id) for info in found})
    return found


def _receipt(receipt: Any) -> Any:
    return dataclasses.replace(receipt, erased_at="", remains=(), tenant="")


def _reads_of_each_thread(keep: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    for info in keep.threads(order="id", limit=1000):
        if info.id.startswith("tie") and info.id != "tie 7":
            continue
        id, options = info.id, {"kind": info.kind}
        yield (
            f"contents of {id}",
            lambda id=id, options=options: [
                keep.log(id, **options),
                keep.log(id, limit=2, **options),
                keep.log(id, ns="", **options),
                keep.tree(id, **options),
                keep.branches(id, **options),
                keep.sizes(thread_id=id, **options),
                keep.sizes(thread_id=id, checkpoint_id="latest", **options),
                keep.flow(id, **options),
                keep.verify(id, **options),
            ],
        )
        for ns, ref in sorted({(each.ns, each.id) for each in keep.log(id, **options)})[-5:]:
            at = options | {"ns": ns}
            yield (
                f"{id} {ns} {ref}",
                lambda id=id, ref=ref, at=at: [
                    keep.show(id, ref, **at),
                    keep.trace(id, ref, values=True, **at),
                    keep.diff(id, ref, **at),
                    keep.diff(id, ref, other_thread="fan", kind="graph"),
                ],
            )
    for path in ("messages[0].content", "messages[-1].id", "messages[id=h1].content", "nothing"):
        yield f"blame {path}", lambda path=path: [keep.blame("chat", path)]
    yield "blame a cube thread", lambda: [keep.blame("talk", "messages[0].content")]
    yield (
        "blame in a subgraph",
        lambda: [keep.blame("rich", "log[0]", ns=keep.log("rich")[-1].ns), keep.blame("rich", "big")],
    )


def _reads_of_the_checkpointer(saver: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    listed = saver.list(None)
    befores = [None, *list(listed)[::60]]
    for before in befores:
        for limit in (None, 7):
            at = before and config("any", before.config["configurable"]["checkpoint_id"])
            yield f"list before {at} {limit}", lambda at=at, limit=limit: list(saver.list(None, before=at, limit=limit))
    for wanted in FILTERS:
        yield (
            f"list {wanted}",
            lambda wanted=wanted: [
                list(saver.list(None, filter=wanted)),
                list(saver.list(None, filter=wanted, limit=2)),
                list(saver.list(config("labels"), filter=wanted)),
                list(saver.list({"configurable": {"thread_id": "rich"}}, filter=wanted)),
            ],
        )
    for ns in ("", "child:1", "sub"):
        yield (
            f"list {ns}",
            lambda ns=ns: [list(saver.list(config("tie 3", ns=ns))), list(saver.list(config("rich", ns=ns)))],
        )
    yield "get_tuple", lambda: [saver.get_tuple(config("tie 3", "same", "child:1")), saver.get_tuple(config("no"))]
    yield "get", lambda: [saver.get(config("chat")), saver.get(config("chat", "no such"))]
    yield (
        "get_delta_channel_history",
        lambda: [
            saver.get_delta_channel_history(config=each.config, channels=["messages", "log", "a"])
            for id in ("delta", "pruned", "chat")
            for each in saver.list(config(id), limit=4)
        ],
    )


def _reads_of_the_store(store: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    for space in SPACES:
        yield (
            f"memories {space}",
            lambda space=space: [
                store.search(space, limit=1000),
                [store.search(space, limit=7, offset=offset) for offset in range(0, 120, 7)],
            ],
        )
        for query in ("apple", "rain snow", "Kilimanjaro", "moon", "2"):
            yield (
                f"{query} in {space}",
                lambda space=space, query=query: [
                    _found(store.search(space, query=query, limit=1000)),
                    _found(store.search(space, query=query, filter={"n": {"$lt": 20}}, limit=1000)),
                ],
            )
        yield (
            f"list_namespaces {space}",
            lambda space=space: [
                store.list_namespaces(prefix=space or None, limit=1000),
                store.list_namespaces(prefix=space or None, limit=2, offset=1),
                store.list_namespaces(prefix=space or None, max_depth=1),
                store.list_namespaces(suffix=space or None),
                store.list_namespaces(prefix=("*", *space)),
            ],
        )
    for wanted in MEMORY_FILTERS:
        yield (
            f"memories {wanted}",
            lambda wanted=wanted: [
                store.search((), filter=wanted, limit=1000),
                store.search(("users",), filter=wanted, limit=3, offset=1),
            ],
        )
    yield "get a memory", lambda: [
        store.get(("users",), "short"), store.get(("users",), "Short"), store.get(("users", "u1"), "tie 1")
    ]  # fmt: skip


def _found(items: list[Any]) -> Any:
    """Return what a search by words and vectors found: those of equal rank may be in any order."""
    return sorted((item.namespace, item.key, repr(item.value)) for item in items)


async def _read_cube(cube: Any) -> Any:
    found: list[Any] = []
    for id in ("talk", "forked", "no such thread", "chat"):
        found += [await cube.load(id), await cube.load_pending(id), await cube.load_pending_request(id)]
        found += [await cube.load_hitl_answer(id, "q0", run_id="run-é"), await cube.load_hitl_answer(id, "q0")]
    return [*found, await cube.snapshot("talk", after_run_id="run-é")]


def _exported(keep: Any) -> Any:
    """Return the lines of an unencrypted export without its header."""
    file = BytesIO()
    done = keep.export(file, plain=True)
    lines = file.getvalue().splitlines() if not file.getvalue().startswith(b"\x28\xb5\x2f\xfd") else []
    return done, sorted(lines[1:-1])


def changes(keep: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls of verbs that change something, and of those that return what they changed."""
    yield "tag", lambda: [keep.tag("chat", "latest~2", "kept"), keep.tag("rich", "latest", "kept")]
    yield "describe", lambda: [keep.describe("rich", title="Rich"), keep.describe("chat", labels=[])]
    yield "rollback", lambda: [keep.rollback("chat", "latest~2"), keep.rollback("talk", "run-é")]
    yield (
        "fork",
        lambda: [keep.fork("rich", "latest~1"), keep.fork("chat", to="chat, forked"), keep.fork("delta", to="d")],
    )
    yield "fork a cube thread", lambda: keep.fork("talk", "run-é", to="talk, forked")
    yield "name_branch", lambda: [keep.name_branch("chat", "latest", "main"), keep.name_branch("talk", "latest", "x")]
    yield "compare_branches", lambda: keep.compare_branches("chat", "main", keep.branches("chat")[-1].head)
    yield "switch_branch", lambda: keep.switch_branch("chat", keep.branches("chat")[-1].head)
    yield "delete_branch", lambda: [keep.delete_branch("chat", "main"), keep.delete_branch("talk", "latest")]
    yield "fork onto", lambda: keep.fork("chat", to="rich")
    yield "copy", lambda: [keep.copy("rich", "rich, copied"), keep.copy("talk", "talk, copied"), keep.copy("no", "x")]
    yield "copy onto", lambda: keep.copy("rich", "chat")
    yield "copy_thread", lambda: [keep.checkpointer.copy_thread("many runs", "many copies")] * 2
    yield "prune", lambda: keep.prune(policy=threadkeep.Policy(prefix="r", keep_last=2, keep_branches=False))
    yield "prune one", lambda: keep.prune("fan", policy=threadkeep.Policy(keep_last=1))
    yield "prune delta", lambda: keep.checkpointer.prune(["delta", "nested"])
    yield "delete_for_runs", lambda: keep.checkpointer.delete_for_runs(["run-1"])
    yield "delete many", lambda: keep.delete(prefix="tie 1")
    yield "delete by metadata", lambda: keep.delete(metadata={"label": 1})
    yield "delete", lambda: [keep.delete("label none"), keep.delete("label none"), keep.delete("forked", kind="graph")]
    yield "delete_thread", lambda: keep.checkpointer.delete_thread("label text")
    yield "erase", lambda: _receipt(keep.erase(thread_id="questions", namespace=[("users", "secret-user"), ("no",)]))
    yield "erase partly", lambda: _receipt(keep.erase(metadata={"label": True}))
    yield (
        "delete_memories",
        lambda: [keep.delete_memories(("notes", "1")), keep.delete_memories(("users",), key="short")],
    )
    yield "store", lambda: keep.store.batch([_put(("new",), "k", {"text": "rain"}), _put(("notes", "2"), "n2", None)])
    yield "cube", lambda: asyncio.run(_change_cube(keep.cube))
    yield "files", lambda: _use_files(keep.files)
    yield "cache", lambda: _use_cache(keep.cache)
    yield "sweep", lambda: keep.sweep()
    yield "compact", lambda: type(keep.compact())
    yield "migrate", lambda: keep.migrate()


def _use_files(files: Any) -> list[Any]:
    done = [
        files.write("/notes/a.txt", "blue moon\nred sun"), files.write("/notes/deep/ü.txt", "moon"),
        files.write("/z%_*.txt", "x"), files.edit("/notes/a.txt", "blue", "green"), files.edit("/none", "a", "b"),
    ]  # fmt: skip
    found = [files.ls(path) for path in ("/", "/notes", "/note", "/none")]
    found += [files.glob("**/*.txt"), files.glob("z%_*.txt"), files.grep("moon"), files.grep("%")]
    found += [files.read("/notes/a.txt"), files.read("/none"), files.download_files(["/z%_*.txt", "/none"])]
    return [*done, *found, files.delete("/notes/a.txt"), files.ls("/notes")]


def _use_cache(cache: Any) -> list[Any]:
    keys = [(("node", "a"), "k"), (("node",), "k"), (("nod",), "k"), (("node", "a"), "none")]
    cache.set({key: ([n, "value"], 60) for n, key in enumerate(keys[:3])})
    found = [cache.get(keys)]
    cache.clear([("node",)])
    found.append(cache.get(keys))
    cache.clear()
    return [*found, cache.get(keys)]


async def _change_cube(cube: Any) -> Any:
    await cube.append("talk", [UserMessage(content=[TextContent(text="again")], id="m9", run_id="run-9")])
    await cube.save_extra("new talk", {"a": 1})
    cleared = await cube.clear_pending_request_if_matches("talk", question_id="q", run_id="r")
    return cleared, await _read_cube(cube)


# --- the tests


class Pair:
    """A plain Keep and an encrypted one with the same data."""

    def __init__(self, plain: threadkeep.Keep, encrypted: threadkeep.Keep) -> None:
        self.plain, self.encrypted = plain, encrypted
        self.named = Named(), Named()
        self.names: set[str] = set()
        self._now = time.time_ns()

    def time_ns(self) -> int:
        """Return a time that is the same for the same call on both."""
        return self._now

    def agree(self, calls: Callable[[Any], Iterator[tuple[str, Callable[[], Any]]]]) -> None:
        """Raise AssertionError if some calls do not return the same."""
        found = self.differences(calls)
        if found:
            raise AssertionError(f"{len(found)} calls differ:\n" + "\n".join(found))

    def differences(self, calls: Callable[[Any], Iterator[tuple[str, Callable[[], Any]]]]) -> list[str]:
        """Return how the results of some calls differ."""
        found = []
        for (name, call), (_, other) in zip(calls(self._called(self.plain)), calls(self.encrypted), strict=True):
            self._now += 10**9
            expected, answer = outcome(call, self.named[0]), outcome(other, self.named[1])
            if answer != expected:
                found.append(f"{name}: {_where(answer, expected)}")
        return found

    def _called(self, keep: threadkeep.Keep) -> Any:
        return Called(keep, self.names)


def _where(found: Any, expected: Any, path: str = "") -> str:
    if isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)) and len(found) == len(expected):
        return "; ".join(
            _where(one, other, f"{path}[{n}]")
            for n, (one, other) in enumerate(zip(found, expected, strict=True))
            if one != other
        )[:900]
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        return "; ".join(
            _where(found[key], expected[key], f"{path}.{key}") for key in found if found[key] != expected[key]
        )[:900]
    return f"{path} is {found!r:.700} instead of {expected!r:.700}"


@pytest.mark.sampled(2)
@HIDING
def test_every_verb_returns_the_same_as_without_keys(
    fresh_url: Callable[[], str], hide_ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as closing:
        plain = closing.enter_context(shared_pool.open_keep(fresh_url(), index=INDEX))
        encrypted = closing.enter_context(shared_pool.open_keep(fresh_url(), index=INDEX, keys=KEYS, hide_ids=hide_ids))
        fill_everything(plain, monkeypatch)
        done = threadkeep.convert(plain, encrypted)
        assert not done.differences
        assert not done.skipped
        pair = Pair(plain, encrypted)
        assert contents(encrypted) == contents(plain)
        pair.agree(reads)
        monkeypatch.setattr(clock, "time", SimpleNamespace(time_ns=pair.time_ns))
        pair.agree(changes)
        pair.agree(reads_again)
        assert encrypted.verify().ok
        assert verbs(threadkeep.Keep) - {f"Keep.{name}" for name in OTHERS} <= pair.names
        assert {f"KeepStore.{name}" for name in ("get", "search", "list_namespaces", "batch")} <= pair.names


# --- other ways to open the same data


def _compared(keep: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the reads of some threads and all memories, in a few calls."""
    yield "contents", lambda: contents(keep)
    yield "threads", lambda: [keep.threads(order=order, limit=1000) for order in ("id", "created")]
    yield "list", lambda: [list(keep.checkpointer.list(None, filter=wanted)) for wanted in (None, {"label": 1})]
    yield "search", lambda: _found(keep.store.search((), query="apple rain", limit=1000))
    yield "verify", lambda: keep.verify()


@HIDING
def test_reopened_keeps_and_tenants_read_the_same_as_without_keys(
    lasting_url: str, hide_ids: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Keep that caches nothing, a second one beside it, a tenant, and a forked child."""
    options: Any = {"index": INDEX, "keys": KEYS, "hide_ids": hide_ids}
    with threadkeep.open("memory://", index=INDEX) as plain:
        fill_everything(plain, monkeypatch)
        with threadkeep.open(lasting_url, **options) as first:
            assert not threadkeep.convert(plain, first).differences
            assert not threadkeep.convert(plain, first.tenant("x")).differences
        with (
            threadkeep.open(lasting_url, cache_bytes=0, **options) as uncached,
            threadkeep.open(lasting_url, **options | {"hide_ids": None}) as second,
            threadkeep.open(lasting_url, tenant="x", **options) as tenant,
        ):
            for keep in (uncached, second, tenant, second.tenant("x")):
                Pair(plain, keep).agree(_compared)
            reads_in_child(lambda: Pair(plain, second).agree(_compared))
            Pair(plain, second).agree(_compared)
            Chain(second.checkpointer, "chat").put({"a": "later"}, id="z")
            assert uncached.checkpointer.get(config("chat"))["channel_values"] == {"a": "later"}
            assert tenant.checkpointer.get(config("chat"))["channel_values"] != {"a": "later"}


def reads_in_child(read: Callable[[], None]) -> None:
    """Call a function in a forked child. Raise if it raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            read()
            os.write(writer, b"ok")
        except BaseException:  # noqa: BLE001 - the parent reports it
            os.write(writer, traceback.format_exc()[-4000:].encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read().decode() == "ok"
    os.waitpid(child, 0)


@HIDING
def test_pages_of_threads_go_on_after_one_that_cannot_be_decrypted(lasting_url: str, hide_ids: bool) -> None:
    """The next page starts where the database sorted the damaged thread: by the column of the order."""
    with threadkeep.open(lasting_url, keys=KEYS, hide_ids=hide_ids) as keep:
        for n in range(6):
            Chain(keep.checkpointer, f"t{n}").put({"a": n})
            time.sleep(0.002)
        for n in (3, 1, 5, 0, 2, 4):
            keep.checkpointer.put_writes(config(f"t{n}", "00000000"), [("a", n)], "task")
            time.sleep(0.002)
        stored = keep._session.transport.opened("").threads.stored_key(keep._session.key(GRAPH, "t3"))
        rows_opener(lasting_url)(keep, stored.id).spoil_thread(sealed=bytes(100))
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        for order in ("id", "created", "updated", "bytes"):
            found, after = list[str](), None
            while page := keep.threads(order=order, limit=1, after=after):
                after = page[-1]
                found += [info.id for info in page]
                assert len(found) <= 6
            assert sorted(found) == [f"t{n}" for n in range(6)], order
