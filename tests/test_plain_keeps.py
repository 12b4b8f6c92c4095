"""A Keep without keys that was open before its tenant was encrypted: every verb raises WrongKey.

None of them returns less, or nothing, and none changes anything: the encrypted Keep has the same contents afterwards.
"""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cubeloop.providers.base import TextContent, UserMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.base import GetOp, PutOp

import shared_pool
import threadkeep
from checkpoint_chains import Chain, config
from encrypted_keeps import KEYS, Storage, fill_little, new_storage
from sample_keep import contents
from threadkeep.encryption.opening import start_encryption
from threadkeep.errors import ThreadkeepError, WrongKey
from threadkeep.keep import Keep

BACKENDS = ["memory", "sqlite", "postgres", "valkey"]
AT = config("t", "00000002")
MESSAGE = UserMessage(content=[TextContent(text="once more")], id="m9", run_id="run-é")
SPACE = ("users", "kim")
POLICY = threadkeep.Policy(keep_last=1, keep_branches=False)


class Verb(NamedTuple):
    """A verb of a Keep, or of one of its faces, with arguments."""

    face: str
    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}

    def call(self, keep: Keep, *, is_async: bool) -> Any:
        target: Any = getattr(keep, self.face) if self.face else keep
        method = getattr(target, f"a{self.name}" if is_async else self.name)
        found = method(*self.args, **self.kwargs)
        if inspect.isasyncgen(found):
            return asyncio.run(_list(found))
        if inspect.isawaitable(found):
            return asyncio.run(_await(found))
        return list(found) if isinstance(found, Iterator) else found

    def has_twin(self, keep: Keep) -> bool:
        target: Any = getattr(keep, self.face) if self.face else keep
        return hasattr(target, f"a{self.name}")


async def _list(found: Any) -> list[Any]:
    return [each async for each in found]


async def _await(found: Any) -> Any:
    return await found


def _of_thread(*names: str, args: tuple[Any, ...] = (), **kwargs: Any) -> Iterator[Verb]:
    """Yield verbs of a Keep whose first argument is a thread."""
    thread = "c" if kwargs.get("kind") == "cube" else "t"
    for name in names:
        yield Verb("", name, (thread, *args), kwargs)


READS = [
    *(Verb("", name) for name in ("threads", "waiting", "types", "activity", "sizes", "stats", "usage", "verify")),
    *_of_thread("thread", "log", "show", "tree", "find", "trace", "flow", "branches", "verify", "lease_info"),
    Verb("", "sizes", (), {"thread_id": "t"}),
    *_of_thread("thread", "log", "find", kind="cube"),
    *_of_thread("diff", args=("latest",)),
    *_of_thread("blame", args=("messages[0]",)),
    *_of_thread("compare_branches", args=("latest", "latest")),
    Verb("", "thread", ("no such thread",)),
    Verb("", "threads", (), {"metadata": {"plan": "free"}}),
    Verb("", "threads", (), {"metadata": {"plan": "free"}, "match": "any"}),
    Verb("", "threads", (), {"metadata": {"plan": "none has it"}}),
    Verb("", "threads", (), {"prefix": "t"}),
    Verb("", "threads", (), {"status": "pending"}),
    Verb("", "threads", (), {"labels": ["billing"]}),
    Verb("", "threads", (), {"contains": "t"}),
    Verb("", "waiting", (), {"metadata": {"plan": "free"}}),
    Verb("", "activity", (), {"metadata": {"plan": "free"}}),
    Verb("", "search", ("message",)),
    Verb("", "search", ("message",), {"scan": True}),
    Verb("", "prune", (), {"policy": POLICY, "dry_run": True}),
    Verb("", "delete", (), {"metadata": {"plan": "free"}, "dry_run": True}),
    Verb("", "erase", (), {"thread_id": "t", "dry_run": True}),
    Verb("", "delete_memories", (SPACE,), {"dry_run": True}),
    Verb("", "repair", ("t",), {"dry_run": True}),
    Verb("", "export", (BytesIO(),)),
    Verb("", "export", (BytesIO(),), {"prefix": "none has it"}),
    Verb("checkpointer", "get_tuple", (config("t"),)),
    Verb("checkpointer", "get_tuple", (config("no such thread"),)),
    Verb("checkpointer", "get_tuple", (config("t", ns="node:1"),)),
    Verb("checkpointer", "get", (AT,)),
    Verb("checkpointer", "list", (None,)),
    Verb("checkpointer", "list", (config("t"),)),
    Verb("checkpointer", "list", (None,), {"filter": {"plan": "free"}}),
    Verb("checkpointer", "list", (None,), {"filter": {"source": "loop"}}),
    Verb("checkpointer", "list", (None,), {"filter": {"plan": "none has it"}, "limit": 1}),
    Verb("checkpointer", "get_delta_channel_history", (), {"config": AT, "channels": ["messages"]}),
    Verb("store", "get", (SPACE, "k1")),
    Verb("store", "get", (SPACE, "no such key")),
    Verb("store", "search", ((),)),
    Verb("store", "search", (("no such namespace",),)),
    Verb("store", "search", (SPACE,), {"filter": {"text": "blue moon 1"}}),
    Verb("store", "search", (SPACE,), {"filter": {"n": {"$gt": 7}}}),
    Verb("store", "search", (SPACE,), {"query": "moon"}),
    Verb("store", "search", (("notes",),), {"query": "moon"}),
    Verb("store", "search_stored", (SPACE,)),
    Verb("store", "list_namespaces"),
    Verb("cube", "load", ("c",)),
    Verb("cube", "load", ("no such thread",)),
    Verb("cube", "load_pending", ("c",)),
    Verb("cube", "load_pending_request", ("c",)),
    Verb("cube", "load_hitl_answer", ("c", "q0")),
    Verb("cube", "snapshot", ("c",), {"after_run_id": "run-é"}),
    Verb("cache", "get", ([(("node",), "entry")],)),
    Verb("files", "ls", ("/",)),
    Verb("files", "read", ("/a.txt",)),
    Verb("files", "grep", ("blue",)),
    Verb("files", "glob", ("*.txt",)),
    Verb("files", "download_files", (["/a.txt"],)),
]
CHANGES = [
    Verb("", "erase", (), {"thread_id": "t"}),
    *_of_thread("delete", "break_lease", "fork", "repair"),
    *_of_thread("delete", kind="cube"),
    *_of_thread("describe", title="A title"),
    *_of_thread("copy", args=("u",)),
    *_of_thread("tag", args=("latest", "kept")),
    *_of_thread("name_branch", args=("latest", "main")),
    *_of_thread("switch_branch", "delete_branch", args=("latest",)),
    *_of_thread("rollback", args=("latest~1",)),
    Verb("", "delete", (), {"metadata": {"plan": "free"}}),
    Verb("", "delete", (), {"prefix": "t"}),
    Verb("", "erase", (), {"metadata": {"plan": "free"}}),
    Verb("", "erase", (), {"namespace": ["users"]}),
    Verb("", "delete_memories", (SPACE,)),
    Verb("", "delete_memories", (SPACE,), {"key": "k1"}),
    Verb("", "prune", (), {"policy": POLICY}),
    Verb("", "prune", ("t",), {"policy": POLICY}),
    Verb("", "sweep"),
    Verb("", "compact"),
    Verb("", "build_search_index"),
    Verb("", "drop_search_index"),
    Verb("", "setup"),
    Verb("checkpointer", "setup"),
    Verb("checkpointer", "put", Chain(None).next({"x": 1})),
    Verb("checkpointer", "put_writes", (AT, [("x", 1)], "task")),
    Verb("checkpointer", "delete_thread", ("t",)),
    Verb("checkpointer", "delete_thread", ("no such thread",)),
    Verb("checkpointer", "delete_for_runs", (["r"],)),
    Verb("checkpointer", "copy_thread", ("t", "copy")),
    Verb("checkpointer", "prune", (["t"],)),
    Verb("checkpointer", "prune", (["t"],), {"strategy": "delete"}),
    Verb("store", "setup"),
    Verb("store", "put", (SPACE, "k1", {"text": "new"})),
    Verb("store", "put", (SPACE, "k1", {"text": "new"}), {"if_version": 0}),
    Verb("store", "delete", (SPACE, "k1")),
    Verb("store", "delete", (SPACE, "no such key")),
    Verb("store", "batch", ([GetOp(SPACE, "k1"), PutOp(SPACE, "k1", None)],)),
    Verb("store", "sweep_ttl"),
    Verb("cube", "append", ("c", [MESSAGE])),
    Verb("cube", "save_extra", ("c", {"a": 1})),
    Verb("cube", "clear_pending_request_if_matches", ("c",), {"question_id": "q", "run_id": "r"}),
    Verb("cube", "save_hitl_answer", ("c", "q0", {"a": 1}), {"run_id": "run-é"}),
    Verb("cube", "clear_hitl_answers", ("c",)),
    Verb("cube", "claim_run", ("c", "run-2")),
    Verb("cube", "mark_run_complete", ("c", "run-é")),
    Verb("cube", "save_pending_request", ("c", None)),
    Verb("cube", "fork", ("c", "forked"), {"after_run_id": "run-é"}),
    Verb("cache", "set", ({(("node",), "entry"): ("new", None)},)),
    Verb("cache", "clear"),
    Verb("cache", "clear", ([("node",)],)),
    Verb("files", "write", ("/new.txt", "new")),
    Verb("files", "edit", ("/a.txt", "blue", "red")),
    Verb("files", "delete", ("/a.txt",)),
    Verb("files", "upload_files", ([("/b.txt", b"new")],)),
]
OTHERS = {
    "close", "tenant", "metrics", "start_sweeping", "stop_sweeping", "start_ttl_sweeper", "stop_ttl_sweeper",
    "from_conn_string", "get_next_version", "with_allowlist", "version_of", "supports_ttl", "serde", "config_specs",
    "ttl_config", "index_config", "embeddings", "checkpointer", "store", "cache", "files", "cube",
}  # fmt: skip
"""What asks the storage for nothing."""
OF_THE_STORAGE = {"tenants", "drop_tenant", "doctor", "migrate", "distribute"}
"""What is about the whole storage and needs no keys."""
WITH_KEYS = {"encrypt", "rotate", "reencrypt"}
"""ValueError without keys."""
TESTED_BELOW = {"lease", "import_from", "import_portable"}


def open_warm(storage: Storage) -> Keep:
    """Open a Keep without keys and read everything with it, so that its caches have it."""
    keep = storage.open()
    for verb in READS:
        with suppress(ThreadkeepError, LookupError, ValueError):  # such as that there is no such thread
            verb.call(keep, is_async=False)
    return keep


def fill_all(keep: Keep) -> None:
    fill_little(keep)
    keep.files.write("/a.txt", "blue moon")
    keep.cache.set({(("node",), "entry"): ("cached", None)})
    keep.describe("t", title="Title", labels=["billing"])


def outcome(verb: Verb, keep: Keep, *, is_async: bool) -> str | None:
    """Return what a call did instead of raising WrongKey; None if it raised that."""
    try:
        returned = verb.call(keep, is_async=is_async)
    except WrongKey:
        return None
    except Exception as error:  # noqa: BLE001 - reported
        return f"raised {error!r}"
    return f"returned {returned!r}"


def test_every_verb_is_in_the_table() -> None:
    with threadkeep.open("memory://") as keep:
        faces = {
            "": keep,
            **{name: getattr(keep, name) for name in ("checkpointer", "store", "cube", "cache", "files")},
        }
        verbs = {(face, name) for face, target in faces.items() for name in dir(target) if name[0] != "_"}
        twins = {(face, name) for face, name in verbs if name[0] == "a" and (face, name[1:]) in verbs}
        called = {(verb.face, verb.name) for verb in (*READS, *CHANGES)}
        missing = {
            (face, name)
            for face, name in verbs - twins - called
            if name not in OTHERS | OF_THE_STORAGE | WITH_KEYS | TESTED_BELOW
        }
        assert not missing


@pytest.mark.parametrize("hide_ids", [True, False], ids=["ids hidden", "ids visible"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_verb_of_a_keep_from_before_encrypt_raises_wrong_key(
    backend: str, tmp_path: Path, *, hide_ids: bool
) -> None:
    storage = new_storage(backend, tmp_path)
    with ExitStack() as closings:
        with closing(storage.open()) as first:
            fill_all(first)
        old = [closings.enter_context(closing(open_warm(storage))) for _ in range(2)]
        keep = closings.enter_context(closing(storage.open(KEYS, hide_ids=hide_ids)))
        keep.encrypt()
        before = contents(keep), keep.stats().threads
        calls = [(verb, is_async) for verb in (*READS, *CHANGES) for is_async in (False, True)]
        calls = [(verb, is_async) for verb, is_async in calls if not is_async or verb.has_twin(old[0])]
        wrong = [
            f"{'a' * is_async}{verb.name} of {verb.face or 'Keep'} {verb.args!r:.80} {verb.kwargs}: {found}"
            for of_keep, keep_before in zip((calls, calls[::-1]), old, strict=True)
            for verb, is_async in of_keep
            if (found := outcome(verb, keep_before, is_async=is_async)) is not None
        ]
        assert not wrong, "\n".join(wrong)
        assert (contents(keep), keep.stats().threads) == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lease_and_imports_of_a_keep_from_before_encrypt_raise_wrong_key(backend: str, tmp_path: Path) -> None:
    storage = new_storage(backend, tmp_path)
    with closing(storage.open()) as old:
        fill_all(old)
        file = BytesIO()
        old.export(file)
        with closing(storage.open(KEYS, hide_ids=True)) as keep:
            keep.encrypt()
        with pytest.raises(WrongKey), old.lease("t"):
            pass
        file.seek(0)
        with pytest.raises(WrongKey):
            old.import_portable(file)
        with closing(sqlite3.connect(tmp_path / "theirs.db", check_same_thread=False)) as connection:
            Chain(SqliteSaver(connection)).put({"x": 1})
        with pytest.raises(WrongKey):
            old.import_from(f"sqlite:///{tmp_path}/theirs.db")


@pytest.mark.parametrize("hide_ids", [True, False], ids=["ids hidden", "ids visible"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_search_by_vectors_of_a_keep_from_before_encrypt_raises_wrong_key(
    backend: str, tmp_path: Path, *, hide_ids: bool
) -> None:
    """Also below a prefix that had no vectors when this Keep loaded those of the partition, or none any more."""
    storage = new_storage(backend, tmp_path)
    index: Any = {"dims": 1, "embed": lambda texts: [[1.0] for _ in texts], "search": "vector"}
    new = ("users", "new"), ("deleted", "new")
    with closing(storage.open(index=index)) as old:
        for namespace in (("users", "kim"), ("deleted", "kim")):
            old.store.put(namespace, "k", {"text": "moon"})
            assert old.store.search(namespace, query="moon")
        old.store.delete(("deleted", "kim"), "k")
        assert [old.store.search(namespace, query="moon") for namespace in new] == [[], []]
        with closing(storage.open(KEYS, hide_ids=hide_ids, index=index)) as keep:
            keep.encrypt()
            keep.store.put(("users", "new"), "k", {"text": "moon"})
            keep.store.put(("deleted", "new"), "k", {"text": "moon"}, index=False)
        for prefix in (*new, *new, ("users",), ("deleted",), ()):
            with pytest.raises(WrongKey):
                pytest.fail(f"{prefix} returned {old.store.search(prefix, query='moon')}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tenant_from_before_encrypt_raises_wrong_key_and_the_others_go_on(backend: str, tmp_path: Path) -> None:
    storage = new_storage(backend, tmp_path)._replace(tenant="")
    names = shared_pool.fresh_tenant(), shared_pool.fresh_tenant()
    with closing(storage.open()) as old, closing(storage.open()) as other:
        encrypted, plain = map(old.tenant, names)
        fill_little(encrypted)
        fill_little(plain)
        other.tenant(names[0], keys=KEYS).encrypt()
        with pytest.raises(WrongKey):
            encrypted.threads(metadata={"plan": "none has it"})
        with pytest.raises(WrongKey):
            encrypted.delete("t")
        assert plain.threads(metadata={"plan": "none has it"}) == []
        assert plain.delete("t")


@pytest.mark.parametrize("backend", BACKENDS)
def test_while_encrypt_is_under_way_nothing_is_deleted_without_keys(backend: str, tmp_path: Path) -> None:
    storage = new_storage(backend, tmp_path)
    with closing(storage.open()) as old:
        fill_all(old)
        start_encryption(old._session.transport.execute, KEYS, storage.tenant, hide_ids=True)  # type: ignore[attr-defined]
        for delete in (
            lambda: old.delete("t"),
            lambda: old.checkpointer.delete_thread("u"),
            lambda: old.store.delete(SPACE, "k1"),
            lambda: old.store.batch([PutOp(SPACE, "k1", None), PutOp(SPACE, "k2", None)]),
            lambda: old.erase(thread_id="t"),
        ):
            with pytest.raises(WrongKey):
                delete()
        with closing(storage.open(KEYS)) as keep:
            keep.encrypt()
            assert {info.id for info in keep.threads()} == {"t", "u", "c"}
            assert len(keep.store.search(SPACE)) == 3


def test_a_keep_without_keys_asks_only_after_replies_that_say_nothing(tmp_path: Path) -> None:
    storage = new_storage("sqlite", tmp_path)
    requests: list[str] = []
    inner = storage.transport()

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def read(self, request: Any) -> Any:
            requests.append(type(request).__name__)
            return inner.read(request)

    with closing(storage.open(inner=Counting())) as keep:
        fill_all(keep)
        requests.clear()
        assert keep.checkpointer.get_tuple(config("t")) is not None
        assert keep.store.get(SPACE, "k1") is not None
        assert keep.store.search(SPACE, filter={"text": "blue moon 1"})
        assert keep.cache.get([(("node",), "entry")])
        assert keep.threads(limit=1)
        keep.checkpointer.delete_thread("t")
        keep.store.delete(SPACE, "k1")
        assert "LoadTenant" not in requests
        assert keep.store.get(SPACE, "k1") is None
        assert keep.checkpointer.get_tuple(config("t")) is None
        assert requests.count("LoadTenant") == 2
