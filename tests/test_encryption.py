"""Keeps with keys: wrong keys in every call and command, keys of threads, sealed files, and what encryption costs."""

from __future__ import annotations

import asyncio
import io
import random
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import cli_reference
import processes
import sample_keep
import threadkeep
from checkpoint_chains import Chain, config, values_of
from encrypted_keeps import (
    FIRST,
    KEYS,
    NEXT,
    SAME_ID,
    CrashingTransport,
    check,
    fill_little,
    is_all_sealed,
    new_storage,
    stored_of,
)
from rich_threads import user_message
from sample_keep import contents
from threadkeep import errors
from threadkeep.cli.app import run
from threadkeep.encryption.data_key import UNREADABLE
from threadkeep.encryption.tenant_key import TenantKey
from threadkeep.encryption.thread_rows import ThreadCipher, owner_of
from threadkeep.engine.health.requests import InspectThread
from threadkeep.engine.identity import GRAPH, ThreadKey
from threadkeep.engine.requests import Commit, CopyThread
from threadkeep.engine.tenants.requests import LoadTenant

OTHERS = {
    "no keys": (None, "is encrypted: open it with keys="),
    "another key": (NEXT, "with the key 'k1'; the keys that were given are 'k2'"),
    "another key of the same id": (SAME_ID, "the key 'k1' is not the one"),
    "those of a service": (threadkeep.Keys.from_kms("s", wrap=bytes, unwrap=bytes), "with the key 'k1', not with 's'"),
}
LAST = threadkeep.Policy(keep_last=1)
NEXT_KEY = bytes(range(100, 132))


@cache
def exported() -> bytes:
    """A portable file with a thread, in clear text."""
    with threadkeep.open("memory://") as keep:
        Chain(keep.checkpointer, "moved").put({"x": 1})
        out = io.BytesIO()
        keep.export(out)
        return out.getvalue()


def foreign_saver() -> InMemorySaver:
    """A saver of LangGraph with a thread."""
    saver = InMemorySaver()
    Chain(saver, "moved").put({"x": 1})
    return saver


# --- wrong keys

VERBS: dict[str, Any] = {
    "activity": (), "blame": ("t", "name"), "branches": ("t",), "break_lease": ("t",), "build_search_index": (), "compact": (),
    "compare_branches": ("t", "latest", "latest"), "copy": ("t", "u2"), "delete": ("t",), "delete_branch": ("t", "latest"),
    "delete_memories": (("users",),), "describe": {"thread_id": "t", "title": "A"}, "diff": ("t", "latest~1", "latest"), "distribute": (), "doctor": (), "drop_search_index": (), "drop_tenant": ("acme",),
    "encrypt": (), "erase": {"thread_id": "t"}, "export": lambda: (io.BytesIO(),), "find": ("t",), "flow": ("t",), "fork": {"thread_id": "t", "to": "f"},
    "import_from": lambda: (foreign_saver(),), "import_portable": lambda: (io.BytesIO(exported()),), "lease_info": ("t",),
    "log": ("t",), "migrate": (), "name_branch": ("t", "latest", "main"),
    "prune": {"policy": LAST}, "reencrypt": {"wait": False}, "repair": ("t",), "rollback": ("t", "latest~1"),
    "rotate": (), "search": ("x",), "show": ("t",), "sizes": (), "stats": (), "sweep": (), "switch_branch": ("t", "latest"), "tag": ("t", "latest", "kept"),
    "tenants": (), "thread": ("t",), "threads": (), "trace": ("t",), "tree": ("t",), "types": (), "usage": (), "verify": (), "waiting": (),
}  # fmt: skip
"""Every verb of a Keep, with its arguments, or a function that makes them."""
NEED_NO_KEYS = {"distribute", "doctor", "drop_tenant", "migrate", "setup", "tenants"}
"""Verbs about the storage as a whole. They show no data."""
NEED_ANY_KEYS = {"encrypt", "reencrypt", "rotate"}
"""Verbs that raise ValueError without any keys."""
NEED_PLAIN = {"build_search_index"}
"""Verbs that raise ValueError with any keys."""


def calls(keep: threadkeep.Keep, *, is_async: bool) -> dict[str, Callable[[], Any]]:
    """Return every call of a Keep, its checkpointer, its store and its CubeLoop checkpointer that uses data."""
    saver, store, cube = keep.checkpointer, keep.store, keep.cube
    prefix = "a" if is_async else ""
    found: dict[str, Callable[[], Any]] = {}

    def add(name: str, target: Any, verb: str, *args: Any, **options: Any) -> None:
        def call() -> Any:
            result = getattr(target, prefix + verb)(*args, **options)
            if verb == "list":
                return asyncio.run(collected(result)) if is_async else list(result)
            return asyncio.run(result) if is_async else result

        found[name] = call

    for verb, given in VERBS.items():
        if verb not in NEED_NO_KEYS | (NEED_ANY_KEYS if keep._session.keys is None else NEED_PLAIN):
            args, options = ((), given) if isinstance(given, dict) else (given() if callable(given) else given, {})
            add(f"keep.{verb}", keep, verb, *args, **options)
    at, chain = config("t", "00000002"), Chain(saver, "new")
    add("put", saver, "put", *chain.next({"x": 1}))
    add("put after", saver, "put", *Chain(saver, "t").next({"x": 1}, id="9"))
    add("put_writes", saver, "put_writes", at, [("x", 1)], "new task")
    add("get_tuple", saver, "get_tuple", config("t"))
    add("get_tuple of none", saver, "get_tuple", config("none"))
    add("get", saver, "get", at)
    add("list", saver, "list", config("t"))
    add("list of none", saver, "list", config("none"))
    add("list all", saver, "list", None, filter={"plan": "free"})
    add("delta history", saver, "get_delta_channel_history", config=at, channels=["messages"])
    add("delete_thread", saver, "delete_thread", "t")
    add("delete_for_runs", saver, "delete_for_runs", ["r"])
    add("copy_thread", saver, "copy_thread", "t", "u2")
    add("prune", saver, "prune", ["t"])
    add("store.put", store, "put", ("n",), "k", {})
    add("store.get", store, "get", ("notes",), "n")
    add("store.get of none", store, "get", ("none",), "n")
    add("store.delete", store, "delete", ("notes",), "n")
    add("store.search", store, "search", ())
    add("store.search by words", store, "search", ("users",), query="moon")
    add("store.search by filter", store, "search", ("users",), filter={"text": "blue moon 1"})
    add("store.list_namespaces", store, "list_namespaces")
    if not is_async:
        for each in (keep, saver, store):
            found[f"setup of {type(each).__name__}"] = each.setup
        found["store.sweep_ttl"] = store.sweep_ttl
        found["keep.tenant"] = keep.tenant("acme").threads
        return found
    for name, make in {
        "append": lambda: cube.append("c", [user_message("x")]), "load": lambda: cube.load("c"),
        "load of none": lambda: cube.load("none"), "claim_run": lambda: cube.claim_run("c", "r9"),
        "save_extra": lambda: cube.save_extra("c", {}), "load_pending": lambda: cube.load_pending("c"),
        "snapshot": lambda: cube.snapshot("c", after_run_id="run-é"), "fork": lambda: cube.fork("c", "d", after_run_id="run-é"),
    }.items():  # fmt: skip
        found[f"cube.{name}"] = lambda make=make: asyncio.run(make())
    return found


async def collected(listing: Any) -> list[Any]:
    return [each async for each in listing]


def test_the_table_of_verbs_has_all_of_them() -> None:
    names = {name for name in dir(threadkeep.Keep) if not name.startswith("_")}
    assert VERBS.keys() == {name for name in names if f"a{name}" in names} - {"close"}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("others", OTHERS)
def test_every_call_with_wrong_keys_is_refused_and_changes_nothing(
    lasting_url: str, others: str, *, is_async: bool
) -> None:
    keys, says = OTHERS[others]
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        fill_little(keep)
        Chain(keep.tenant("acme").checkpointer).put({"x": 1})
        stored = stored_of(keep)
    with threadkeep.open(lasting_url, keys=keys) as keep:
        every = calls(keep, is_async=is_async)
        for name, call in every.items():
            with pytest.raises(errors.WrongKey, match=says):
                pytest.fail(f"{name} returned {call()!r}")
    for name in list(every)[::9]:  # each as the first call of a Keep
        with threadkeep.open(lasting_url, keys=keys) as keep, pytest.raises(errors.WrongKey, match=says):
            pytest.fail(f"{name} returned {calls(keep, is_async=is_async)[name]()!r}")
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        assert stored_of(keep) == stored


def test_keys_of_a_tenant_are_its_own(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        Chain(keep.checkpointer).put({"x": "plain"})
        Chain(keep.tenant("acme", keys=KEYS).checkpointer).put({"x": "of acme"})
        Chain(keep.tenant("globex", keys=NEXT).checkpointer).put({"x": "of globex"})
    with threadkeep.open(lasting_url) as keep:
        assert values_of(keep.checkpointer) == {"x": "plain"}
        assert values_of(keep.tenant("acme", keys=KEYS).checkpointer) == {"x": "of acme"}
        for name, keys in (("globex", None), ("globex", KEYS), ("globex", SAME_ID)):
            with pytest.raises(errors.WrongKey):
                keep.tenant(name, keys=keys).threads()
        assert values_of(keep.tenant("globex", keys=NEXT).checkpointer) == {"x": "of globex"}
        assert values_of(keep.checkpointer) == {"x": "plain"}


def test_wrong_keys_of_a_tenant_do_not_disturb_those_who_have_it_open(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        acme = keep.tenant("acme")
        Chain(acme.checkpointer).put({"x": 1})
        with pytest.raises(errors.WrongKey):
            keep.tenant("acme", keys=NEXT).threads()
        with threadkeep.open(lasting_url, keys=KEYS) as other:
            assert values_of(other.tenant("acme").checkpointer) == {"x": 1}


COMMANDS: dict[str, list[str]] = {
    "activity": [], "backup": ["URL", "FILE"], "blame": ["t", "name"], "branches": ["t"], "compact": [], "convert": ["URL", "TARGET"],
    "copy": ["t", "u2"], "delete": ["t", "--yes"], "describe": ["t", "--title", "A"], "diff": ["t", "latest~1", "latest"], "doctor": [],
    "encrypt": [], "erase": ["t", "--yes"], "export": ["--output", "FILE"], "flow": ["t"], "fork": ["t", "--to", "f"],
    "import": ["EXPORTED"], "inspect": ["--no-browser"], "lease": ["show", "t"], "log": ["t"], "memories": ["users"], "migrate": [], "prune": ["t", "--yes"],
    "reencrypt": ["--no-wait"], "repair": ["t"], "restore": ["EXPORTED", "URL"], "rollback": ["t", "latest~1"],
    "rotate": [], "search": ["x"], "setup": [], "show": ["t"], "sizes": [], "stats": [], "sweep": ["--yes"], "tag": ["t", "latest", "kept"],
    "tenants": [], "threads": [], "trace": ["t"], "tree": ["t"], "types": [], "usage": [], "verify": [], "waiting": [],
}  # fmt: skip
NO_STORAGE_OPTION = {"backup", "restore"}


def test_every_command_with_wrong_keys_says_so_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert COMMANDS.keys() == cli_reference.commands().keys() - {"demo"}  # it has a storage of its own
    url = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(url, keys=KEYS) as keep:
        fill_little(keep)
        keep.export(tmp_path / "exported.tk")
        stored = stored_of(keep)
    files = sorted(path.name for path in tmp_path.iterdir())
    for id, key in (("k1", NEXT_KEY), ("k2", NEXT_KEY)):
        (tmp_path / id).write_text(f"{id}:{b64encode(key).decode()}\n")
    given = {"URL": url, "TARGET": f"sqlite:///{tmp_path / 'target.db'}", "EXPORTED": str(tmp_path / "exported.tk")}
    monkeypatch.delenv("THREADKEEP_KEYS", raising=False)
    monkeypatch.setenv("THREADKEEP_URL", url)
    for command, args in COMMANDS.items():
        for keys in ([], ["--keys", str(tmp_path / "k1")], ["--keys", str(tmp_path / "k2")]):
            filled = [given.get(arg, str(tmp_path / "file") if arg == "FILE" else arg) for arg in args]
            code = run([command, *filled, *keys])
            shown = capsys.readouterr()
            if command in NEED_NO_KEYS:
                assert code in (0, 1), (command, shown.err)
            elif command in NEED_ANY_KEYS and not keys:
                assert (code, "open it with keys=" in shown.err) == (2, True), (command, shown)
            else:
                assert (code, shown.out) == (3, ""), (command, keys, shown)
                assert "encrypted" in shown.err, (command, shown.err)
    (tmp_path / "target.db").unlink(missing_ok=True)
    with threadkeep.open(url, keys=KEYS) as keep:
        assert stored_of(keep) == stored
    left = {path.name for path in tmp_path.iterdir()} - {"k1", "k2"}
    assert left == set(files)


# --- the data key of a thread


def wrapped_keys(keep: threadkeep.Keep) -> dict[str, bytes]:
    return stored_of(keep).keys


def test_without_its_row_nothing_of_a_deleted_thread_can_be_opened(lasting_url: str) -> None:
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        fill_little(keep)
        execute = keep._session.transport.execute  # type: ignore[union-attr]
        key, row = ThreadKey("", GRAPH, "t"), execute(LoadTenant(""))
        before, thread = stored_of(keep), execute(InspectThread(key))
        keep.checkpointer.delete_thread("t")
        after = stored_of(keep)
    tenant = TenantKey.from_row(row, KEYS)

    def opened(wrapped: bytes, owner: bytes) -> int:
        """Return how many rows and items of the thread are opened with a data key."""
        cipher = ThreadCipher(tenant, tenant.data_key(wrapped, owner), owner_of(key))
        items = [cipher.open_item(at, stored) for at, stored in before.items["t"].items()]
        bodies = [cipher.open_checkpoint(each).body for each in thread.checkpoints]
        bodies += [cipher.open_write(each).body for each in thread.writes]
        return sum(each != UNREADABLE for each in (*items, *bodies))

    assert opened(before.keys["t"], owner_of(key)) == len(before.items["t"]) + 4 + 1
    left = [
        (wrapped, owner_of(ThreadKey("", kind, id)))
        for id, kind in (("u", GRAPH), ("c", "cube"))
        for wrapped in [after.keys[id]]
    ]
    left += [(wrapped, b"memories " + name) for name, wrapped in after.partition_keys.items()]
    assert len(left) == len({*after.keys.values(), *after.partition_keys.values()}) == 4
    assert [opened(*each) for each in left] == [0] * 4
    with pytest.raises(errors.Corrupt, match="belongs to something else"):
        tenant.data_key(after.keys["u"], owner_of(key))


@pytest.mark.parametrize("hide_ids", [False, True], ids=["visible ids", "hidden ids"])
def test_every_thread_that_is_made_of_another_has_a_data_key_of_its_own(
    fresh_url: Callable[[], str], *, hide_ids: bool
) -> None:
    with ExitStack() as stack:
        opened = lambda: stack.enter_context(threadkeep.open(fresh_url(), keys=KEYS, hide_ids=hide_ids))
        keep, other, third = opened(), opened(), opened()
        fill_little(keep)
        keep.copy("t", "copied")
        keep.fork("t", to="forked")
        asyncio.run(keep.cube.fork("c", "cube fork", after_run_id="run-é"))
        assert threadkeep.convert(keep, other).is_equal
        file = io.BytesIO()
        keep.export(file)
        file.seek(0)
        assert third.import_portable(file).is_equal
        everything = [stored_of(each) for each in (keep, other, third)]
        keys = [key for each in everything for key in each.keys.values()]
        assert len(set(keys)) == len(keys) == 18
        items = [
            stored
            for each in everything
            for items in each.items.values()
            for stored in items.values()
            if stored[:1] == b"\x80"
        ]
        assert len(set(items)) == len(items) > 30
        assert (
            values_of(keep.checkpointer, "copied")
            == values_of(keep.checkpointer, "forked")
            == values_of(other.checkpointer)
        )
        for each in (keep, other, third):
            assert each.verify().problems == []
            assert is_all_sealed(stored_of(each))


class Recording(CrashingTransport):
    """A transport that keeps the batches of commits."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.batches: list[Any] = []
        self.others: list[Any] = []

    def write(self, requests: Any) -> Any:
        for request in requests:
            (self.batches if isinstance(request, Commit) else self.others).append(getattr(request, "batch", request))
        return super().write(requests)

    def try_commit(self, batch: Any) -> bool:
        self.batches.append(batch)
        return super().try_commit(batch)


def written(keep: threadkeep.Keep, recording: Recording, verb: Callable[[], Any]) -> list[Any]:
    """Return how much of each kind a verb wrote."""
    del recording.batches[:], recording.others[:]
    verb()
    assert not [each for each in recording.others if isinstance(each, CopyThread)]
    return [
        {name: len(each) for name, each in batch._asdict().items() if isinstance(each, tuple) and name != "expect"}
        for batch in recording.batches
    ]


def test_a_change_of_a_thread_seals_the_new_rows_only(tmp_path: Path) -> None:
    counts: list[Any] = []
    for keys in (None, KEYS):
        storage = new_storage("memory", tmp_path)
        recording = Recording(storage.transport())
        with closing(storage.open(keys, inner=recording)) as keep:
            fill_little(keep)
            saver, chain = keep.checkpointer, Chain(keep.checkpointer, "t")
            chain.last = "00000002"
            verbs: list[Callable[[], Any]] = [
                lambda: keep.rollback("t", "00000001"), lambda: keep.fork("t", "00000000"), lambda: keep.tag("t", "latest", "kept"),
                lambda: chain.put({"messages": ["new"], "name": "Kim"}, id="9"),
                lambda: saver.put_writes(config("t", "9"), [("x", 1)], "task"), lambda: keep.prune(policy=LAST),
            ]  # fmt: skip
            counts.append([written(keep, recording, verb) for verb in verbs])
    assert counts[0] == counts[1]
    assert [max(batch["new_checkpoints"] for batch in batches) for batches in counts[1][:5]] == [1, 1, 0, 1, 0]
    assert max(batch["new_writes"] for batch in counts[1][4]) == 1


# --- files


def test_an_export_is_sealed_unless_it_shall_be_plain(tmp_path: Path) -> None:
    names = ("sealed.tk", "sealed.jsonl", "plain.jsonl", "redacted.jsonl")
    with threadkeep.open("memory://", keys=KEYS) as keep:
        fill_little(keep)
        before = contents(keep)
        keep.export(tmp_path / "sealed.tk")
        keep.export(tmp_path / "sealed.jsonl")
        keep.export(tmp_path / "plain.jsonl", plain=True)
        keep.export(tmp_path / "redacted.jsonl", redact=True)
    texts = {name: (tmp_path / name).read_bytes() for name in names}
    assert {name: b"blue moon" in text for name, text in texts.items()} == dict.fromkeys(names, False) | {
        "plain.jsonl": True
    }
    assert {name: b'"thread"' in text for name, text in texts.items()} == dict.fromkeys(names, True) | dict.fromkeys(
        names[:2], False
    )
    for name, keys in (("sealed.tk", KEYS), ("sealed.jsonl", KEYS), ("plain.jsonl", None), ("plain.jsonl", NEXT)):
        with threadkeep.open("memory://", keys=keys) as keep:
            assert keep.import_portable(tmp_path / name).is_equal
            assert contents(keep).keys() == before.keys()


@pytest.mark.parametrize("others", OTHERS)
def test_a_sealed_file_is_opened_by_its_keys_only(others: str, tmp_path: Path) -> None:
    with threadkeep.open("memory://", keys=KEYS) as keep:
        fill_little(keep)
        keep.export(tmp_path / "sealed.tk")
    with threadkeep.open("memory://", keys=None if others == "those of a service" else OTHERS[others][0]) as keep:
        with pytest.raises(errors.WrongKey):
            keep.import_portable(tmp_path / "sealed.tk")
        assert (keep.threads(), keep.stats().memories) == ([], 0)


def chunks_of(data: bytes) -> list[bytes]:
    """Return the head of a sealed file, and its chunks."""
    at = 20
    pieces = [data[: at + 4 + int.from_bytes(data[at : at + 4])]]
    at = len(pieces[0])
    while at < len(data):
        length = 4 + (int.from_bytes(data[at : at + 4]) & 0x7FFFFFFF)
        pieces.append(data[at : at + length])
        at += length
    return pieces


@pytest.fixture(scope="module")
def sealed_file() -> list[bytes]:
    """The chunks of a sealed file that has several, and as the last one the first chunk of another file."""
    with threadkeep.open("memory://", keys=KEYS) as keep:
        chain = Chain(keep.checkpointer)
        for n in range(4):
            chain.put({"x": random.Random(n).randbytes(70_000)})
        files = [io.BytesIO(), io.BytesIO()]
        for file in files:
            keep.export(file)
    one, other = (chunks_of(file.getvalue()) for file in files)
    assert len(one) >= 6
    return [*one, other[1]]


FORGERIES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "reordered": lambda chunks: [chunks[0], chunks[2], chunks[1], *chunks[3:-1]],
    "one left out": lambda chunks: [*chunks[:2], *chunks[3:-1]],
    "one given twice": lambda chunks: [*chunks[:2], chunks[1], *chunks[2:-1]],
    "the last left out": lambda chunks: chunks[:-2],
    "only the last": lambda chunks: [chunks[0], chunks[-2]],
    "only the head": lambda chunks: chunks[:1],
    "one of another file": lambda chunks: [chunks[0], chunks[-1], *chunks[2:-1]],
    "an earlier one marked as the last": lambda chunks: [*chunks[:2], bytes([chunks[2][0] | 0x80]) + chunks[2][1:]],
    "the last not marked": lambda chunks: [*chunks[:-2], bytes([chunks[-2][0] & 0x7F]) + chunks[-2][1:]],
    "cut in a chunk": lambda chunks: [*chunks[:2], chunks[2][:-1]],
    "cut in a length": lambda chunks: [*chunks[:2], chunks[2][:2]],
    "cut in the head": lambda chunks: [chunks[0][:-5]],
    "an empty chunk": lambda chunks: [*chunks[:2], bytes(4), *chunks[2:-1]],
    "a huge chunk": lambda chunks: [*chunks[:2], b"\x7f\xff\xff\xff", *chunks[2:-1]],
    "a huge head": lambda chunks: [chunks[0][:20] + b"\xff\xff\xff\xff"],
    "a head that is no msgpack": lambda chunks: [chunks[0][:20] + (3).to_bytes(4) + b"\xc1\xc1\xc1", *chunks[1:-1]],
    "a head of other types": lambda chunks: [chunks[0][:20] + (3).to_bytes(4) + b"\x92\x01\x02", *chunks[1:-1]],
}


def import_forged(data: bytes) -> None:
    with threadkeep.open("memory://", keys=KEYS) as keep:
        with pytest.raises((ValueError, errors.WrongKey)):
            keep.import_portable(io.BytesIO(data))
        assert keep.threads() == []


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_sealed_file_that_was_changed_reordered_or_cut_off_is_refused(forgery: str, sealed_file: list[bytes]) -> None:
    import_forged(b"".join(FORGERIES[forgery](sealed_file)))


def test_a_sealed_file_with_a_changed_byte_is_refused_wherever_that_is(sealed_file: list[bytes]) -> None:
    data = b"".join(sealed_file[:-1])
    chance, head = random.Random(1), len(sealed_file[0])
    places = {*range(20, head + 8), *(chance.randrange(head, len(data)) for _ in range(40)), len(data) - 1}
    for at in places:
        import_forged(data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :])


def test_a_backup_is_sealed_and_is_restored_with_its_keys_only(lasting_url: str, tmp_path: Path) -> None:
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        fill_little(keep)
        before = contents(keep)
        threadkeep.backup(keep, tmp_path / "backup")
    assert not any(word in (tmp_path / "backup").read_bytes() for word in (b"blue moon", b"Kim", b"message 1"))
    for number, (keys, _) in enumerate(OTHERS.values()):
        with pytest.raises(errors.WrongKey):
            threadkeep.restore(tmp_path / "backup", f"sqlite:///{tmp_path}/wrong{number}.db", keys=keys)
    target = f"sqlite:///{tmp_path}/restored.db"
    assert threadkeep.restore(tmp_path / "backup", target, keys=KEYS).is_equal
    with threadkeep.open(target, keys=KEYS) as keep:
        check(keep, before)


@pytest.mark.parametrize(("source_keys", "target_keys"), [(None, KEYS), (KEYS, None), (KEYS, NEXT)], ids=repr)
def test_a_storage_is_converted_between_any_keys(
    lasting_url: str, source_keys: threadkeep.Keys | None, target_keys: threadkeep.Keys | None, tmp_path: Path
) -> None:
    source, target = f"sqlite:///{tmp_path / 'source.db'}", lasting_url
    with threadkeep.open(source, keys=source_keys) as keep:
        fill_little(keep)
        before = contents(keep)
    assert threadkeep.convert(source, target, source_keys=source_keys, target_keys=target_keys).is_equal
    with threadkeep.open(target, keys=target_keys) as keep:
        check(keep, before)
        assert is_all_sealed(stored_of(keep)) == (target_keys is not None)


# --- several processes

FIRST_USE = """
import os, sys
import threadkeep
from checkpoint_chains import Chain, values_of
url, id, key, name, hide = sys.argv[1:]
keep = threadkeep.open(url, keys=threadkeep.Keys({id: bytes.fromhex(key)}, primary=id), hide_ids=bool(hide))
wait_for_others()
try:
    for n in range(5):
        Chain(keep.checkpointer, f"{name}{n}").put({"x": name})
        keep.store.put(("shared",), f"{name}{n}", {"of": name})
    print("stored")
except threadkeep.errors.WrongKey as error:
    print("WrongKey", error)
"""


@pytest.mark.parametrize("hide", ["", "hidden"])
def test_processes_that_first_use_a_storage_at_once_agree_on_its_keys(lasting_url: str, hide: str) -> None:
    arguments = [(lasting_url, "k1", FIRST.hex(), name, hide) for name in ("a", "b", "c")]
    assert processes.run_concurrently(FIRST_USE, arguments) == ["stored\n"] * 3
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        assert len(keep.threads(limit=100)) == len(keep.store.search(("shared",), limit=100)) == 15
        assert all(values_of(keep.checkpointer, f"{name}{n}") == {"x": name} for name in "abc" for n in range(5))
        assert keep.verify().problems == []
        plain = keep._session.transport.opened("").key.state  # type: ignore[union-attr]
        assert plain.state == "sealed", "plain data is refused"


def test_of_two_processes_with_other_keys_one_gets_the_storage(lasting_url: str) -> None:
    arguments = [(lasting_url, "k1", FIRST.hex(), "a", ""), (lasting_url, "k2", NEXT_KEY.hex(), "b", "")]
    first, second = processes.run_concurrently(FIRST_USE, arguments)
    assert sorted((first[:6], second[:6])) == ["WrongK", "stored"]
    winner = KEYS if first == "stored\n" else NEXT
    with threadkeep.open(lasting_url, keys=winner) as keep:
        assert len(keep.threads(limit=100)) == len(keep.store.search((), limit=100)) == 5


def test_a_storage_whose_first_use_was_interrupted_can_be_used(tmp_path: Path) -> None:
    for backend in ("memory", "sqlite", "postgres"):
        for after in (False, True):
            for k in range(1, 12):
                storage = new_storage(backend, tmp_path / f"{k}{after}.db" if backend == "sqlite" else tmp_path)
                if storage.path is not None:
                    storage.path.parent.mkdir()
                crashing = CrashingTransport(storage.transport())
                with closing(storage.open(KEYS, inner=crashing)) as keep:
                    crashing.crash_at(k, after=after)
                    with suppress(errors.Unavailable):
                        keep.store.put(("n",), "k", {"v": 1})
                    if not crashing.crashed:
                        break
                with closing(storage.open(KEYS)) as keep:
                    keep.store.put(("n",), "k", {"v": 1})
                    assert keep._session.transport.opened(storage.tenant).key.state.state == "sealed"  # type: ignore[union-attr]
            assert k > 3


@pytest.mark.parametrize("hide_ids", [False, True], ids=["visible ids", "hidden ids"])
def test_a_reader_that_came_before_the_first_writer_sees_what_that_writes(lasting_url: str, *, hide_ids: bool) -> None:
    with threadkeep.open(lasting_url) as keep:
        keep.setup()
    with threadkeep.open(lasting_url, keys=KEYS, read_only=True) as reader:
        assert (reader.threads(), reader.checkpointer.get_tuple(config("t"))) == ([], None)
        with threadkeep.open(lasting_url, keys=KEYS, hide_ids=hide_ids) as keep:
            fill_little(keep)
            before = contents(keep)
        assert reader.checkpointer.get_tuple(config("t")) is not None
        check(reader, before)
        with pytest.raises(errors.ReadOnly):
            reader.store.put(("n",), "k", {})
        with pytest.raises(errors.ReadOnly):
            reader.rotate()


FORKS = """
import os, sys
import threadkeep
from checkpoint_chains import Chain, values_of
from encrypted_keeps import KEYS
keep = threadkeep.open(sys.argv[1], keys=KEYS)
Chain(keep.checkpointer, "before").put({"x": "before"})
keep.store.put(("shared",), "before", {})
pid = os.fork()
name = "parent" if pid else "child"
for n in range(3):
    Chain(keep.checkpointer, f"{name}{n}").put({"x": name})
    keep.store.put(("shared", name), f"{n}", {})
    Chain(keep.checkpointer, "before").put({"x": name}, id=f"{name}{n}")
    assert values_of(keep.checkpointer, f"{name}{n}") == {"x": name}
if not pid:
    keep.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
keep.close()
"""


def test_both_sides_of_a_fork_go_on_with_their_keys(lasting_url: str) -> None:
    processes.run_forked("import warnings; warnings.simplefilter('ignore')\n" + FORKS, lasting_url)
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        names = {f"{name}{n}" for name in ("parent", "child") for n in range(3)}
        assert {info.id for info in keep.threads()} == {"before", *names}
        assert len(list(keep.checkpointer.list(config("before")))) == 7
        assert len(keep.store.search(("shared",))) == 7
        assert keep.verify().problems == []


def test_memory_with_keys_holds_everything_sealed() -> None:
    with threadkeep.open("memory://", keys=KEYS, hide_ids=True) as keep:
        sample_keep.fill(keep)
        stored = stored_of(keep)
        assert is_all_sealed(stored)
        everything = repr(stored).encode("utf-8", "surrogatepass")
        assert not [word for word in sample_keep.SECRETS if word.encode() in everything]
        before = contents(keep)
        keep.rotate()
        keep.reencrypt(wait=False)
        check(keep, before)
