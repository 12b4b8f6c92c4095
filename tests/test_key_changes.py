"""encrypt, rotate and reencrypt: while others read and write, interrupted at any request, and killed.

Each is interrupted at its k-th request, executed or not, and then called again: contents are as before, and the keys
are as after an undisturbed call.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import apsw
import pytest

import threadkeep
from checkpoint_chains import Chain, config, values_of
from conftest import EVERYTHING
from encrypted_keeps import (
    BOTH,
    FIRST,
    KEYS,
    NEXT,
    SECOND,
    Storage,
    check,
    crashing_at,
    fill_little,
    is_all_sealed,
    new_storage,
    stored_of,
)
from killed_writers import kill, start
from sample_keep import contents, fill
from stored_memories import find_leftovers
from threadkeep.errors import Corrupt, ThreadkeepError, Unavailable, WrongKey

STRIDES = {"memory": 5, "sqlite": 11, "postgres": 19, "valkey": 19}
"""How many requests later a verb is interrupted the next time."""
if EVERYTHING:
    STRIDES = {"memory": 1, "sqlite": 2, "postgres": 5, "valkey": 13}
BACKENDS = ["memory", "sqlite", "postgres", "valkey"]


def call(keep: threadkeep.Keep, verb: str, *, is_async: bool, **options: Any) -> Any:
    return asyncio.run(getattr(keep, f"a{verb}")(**options)) if is_async else getattr(keep, verb)(**options)


# --- encrypt


@pytest.mark.parametrize(
    ("hide_ids", "is_async"), [(False, True), (True, False)], ids=["visible ids, async", "hidden ids, sync"]
)
def test_a_storage_is_encrypted_once_with_equal_contents(lasting_url: str, *, hide_ids: bool, is_async: bool) -> None:
    with threadkeep.open(lasting_url) as keep:
        fill(keep)
        before = contents(keep)
        threads, memories = len(keep.threads(limit=100)), keep.stats().memories
    for done in ((threads, memories), (0, 0)):
        with threadkeep.open(lasting_url, keys=KEYS, hide_ids=hide_ids) as keep:
            reports: list[Any] = []
            result = call(keep, "encrypt", is_async=is_async, on_progress=lambda *report: reports.append(report))
            assert (result.threads, result.memories) == done
            assert any("backups" in text for text in result.remains)
            assert is_all_sealed(stored_of(keep))
            assert reports
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        check(keep, before)


def test_encrypt_and_rotate_of_the_default_tenant_name_the_tenants_that_are_left(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        for name in ("", "plain", "its own keys"):
            own = NEXT if name == "its own keys" else None
            Chain((keep.tenant(name, keys=own) if name else keep).checkpointer).put({"a": name})
        keep.tenant("empty").store.get(("n",), "k")
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        remains = keep.encrypt().remains
        assert [text for text in remains if "tenants" in text] == [
            "not encrypted are tenants 'plain': run `threadkeep encrypt --tenant NAME` for each"
        ]
        with pytest.raises(WrongKey, match="tenant 'plain' has data that is not .*`threadkeep encrypt --tenant plain`"):
            keep.tenant("plain").threads()
        assert not any("tenants" in text for text in keep.tenant("plain").encrypt().remains)
        assert not any("tenants" in text for text in keep.encrypt().remains)
        assert keep.rotate().remains == ()
    with threadkeep.open(lasting_url, keys=BOTH) as keep:
        left = "the keys before are still needed by tenants 'plain': run `threadkeep rotate --tenant NAME` for each"
        assert keep.rotate().remains == (left,)
        assert keep.tenant("plain").rotate().remains == ()
        assert keep.rotate().remains == ()


def test_only_encrypt_accepts_a_plain_storage_and_nothing_else_changes_it(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        fill_little(keep)
        before = contents(keep)
        stored = stored_of(keep)
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        saver, store = keep.checkpointer, keep.store
        for refused in (
            keep.setup, saver.setup, keep.threads, keep.verify, lambda: list(saver.list(None)),
            lambda: saver.get_tuple(config("t")), lambda: Chain(saver, "new").put({"x": 1}), lambda: store.get(("n",), "n"),
            lambda: store.put(("n",), "n", {}), lambda: keep.delete("t"), keep.rotate, lambda: keep.reencrypt(wait=False),
            lambda: asyncio.run(keep.cube.load("c")), lambda: keep.export(Path("nowhere.tk")),
        ):  # fmt: skip
            with pytest.raises(WrongKey, match="threadkeep encrypt"):
                refused()
    with threadkeep.open(lasting_url) as keep:
        assert stored_of(keep) == stored
        check(keep, before)
        with pytest.raises(ValueError, match="open it with keys="):
            keep.encrypt()


class Agents:
    """Callers that use a storage in between, with keys and without."""

    def __init__(
        self,
        open_keyed: Callable[[], threadkeep.Keep],
        plain: threadkeep.Keep | None = None,
        *,
        hide_ids: bool = False,
        every: int = 1,
    ) -> None:
        self.rounds, self._every = 0, every
        self._open, self._plain, self._hides_ids = open_keyed, plain, hide_ids
        self._keyed: threadkeep.Keep | None = None
        self._opened: list[threadkeep.Keep] = []

    def work(self, *_: Any) -> None:
        """Read and write with keys, in a Keep that was open before and in a new one; fail to write without keys."""
        self.rounds += 1
        if self.rounds % self._every:
            return
        if self._keyed is None:
            self._keyed = self._open()
            self._opened.append(self._keyed)
        with self._open() as new:
            for name, keep in (("open", self._keyed), ("new", new)):
                self._read_and_write(keep, f"{name}{self.rounds}")
        if self._plain is not None:
            self._fail_to_write(self._plain)
            if not self._hides_ids:
                self._find_no_empty_thread(self._plain)

    def _read_and_write(self, keep: threadkeep.Keep, name: str) -> None:
        saver, store, text = keep.checkpointer, keep.store, name * 20
        assert values_of(saver, "t", "00000001")["name"] == "Kim"
        assert values_of(saver, "t", "00000000", "node:1") == {"messages": ["inner"]}
        last = saver.get_tuple(config("w"))
        chain = Chain(saver, "w")
        chain.last = last and last.config["configurable"]["checkpoint_id"]
        chain.put({"log": [text]}, id=f"{time.time_ns()}")
        assert values_of(saver, "w") == {"log": [text]}
        saver.put_writes(config("t", "00000002"), [("name", text)], name)
        writes = saver.get_tuple(config("t", "00000002")).pending_writes
        assert [value for task, _, value in writes if task == name] == [text]
        Chain(saver, f"made by {name}").put({"x": text})
        assert {info.id for info in keep.threads(limit=1000)} >= {"t", "u", "c", "w", f"made by {name}"}
        assert {each.config["configurable"]["thread_id"] for each in saver.list(None, filter={"plan": "free"})} == {"t"}
        store.put(("users", "kim"), "k0", {"text": text})
        store.put((f"of {name}",), "k", {"text": text})
        found = {item.key: item.value["text"] for item in store.search(("users",), limit=100)}
        assert found == {"k0": text, "k1": "blue moon 1", "k2": "blue moon 2"}
        assert {item.namespace for item in store.search((), limit=1000)} >= {("notes",), (f"of {name}",)}
        assert len(asyncio.run(keep.cube.load("c")).messages) == 2

    @staticmethod
    def _fail_to_write(keep: threadkeep.Keep) -> None:
        saver, store = keep.checkpointer, keep.store
        for write in (
            lambda: Chain(saver, "t").put({"x": "plain"}, id="9"), lambda: Chain(saver, "made plain").put({"x": 1}),
            lambda: saver.put_writes(config("t", "00000002"), [("x", "plain")], "plain task"),
            lambda: saver.put_writes(config("made plain", "0"), [("x", "plain")], "plain task"),
            lambda: store.put(("users", "kim"), "plain", {"text": "plain"}), lambda: store.put(("plain",), "k", {}),
            lambda: asyncio.run(saver.aput(*Chain(saver, "made plain").next({"x": 1}))),
            lambda: asyncio.run(store.aput(("plain",), "k", {})),
        ):  # fmt: skip
            with pytest.raises(WrongKey):
                write()

    @staticmethod
    def _find_no_empty_thread(keep: threadkeep.Keep) -> None:
        saver = keep.checkpointer
        for read in (lambda: saver.get_tuple(config("t")), lambda: list(saver.list(config("t")))):
            with suppress(ThreadkeepError):
                assert read(), "an encrypted thread looks empty"

    def close(self) -> None:
        for keep in self._opened:
            keep.close()


def rounds_of(url: str) -> int:
    """Return at which reports of progress agents work: lists over a cluster are slow."""
    return 5 if url.startswith("valkey:") else 1


def test_a_keep_without_keys_that_was_open_before_never_shows_encrypted_data(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as plain:
        fill_little(plain)
        with threadkeep.open(lasting_url, keys=KEYS) as keep:
            keep.encrypt()
        calls: dict[str, Callable[[], Any]] = {
            "get_tuple": lambda: plain.checkpointer.get_tuple(config("t")),
            "threads": plain.threads,
            "thread": lambda: plain.thread("t"),
            "stats": plain.stats,
            "export": lambda: plain.export(BytesIO()),
            "erase": lambda: plain.erase(thread_id="t", dry_run=True),
            "store.get": lambda: plain.store.get(("users", "kim"), "k1"),
            "store.search": lambda: plain.store.search(()),
            "store.search by words": lambda: plain.store.search((), query="n"),
            "store.put": lambda: plain.store.put(("users", "kim"), "k9", {"a": 1}),
            "cache.set": lambda: plain.cache.set({(("n",), "k"): (1, None)}),
            "lease": lambda: plain.lease("u", wait=0).__enter__(),
            "delete_for_runs": lambda: plain.checkpointer.delete_for_runs(["unheard of"]),
            "adelete_for_runs": lambda: asyncio.run(plain.checkpointer.adelete_for_runs(["unheard of"])),
            "waiting": plain.waiting,
        }
        for name, each in calls.items():
            with pytest.raises(WrongKey, match="encrypted"):
                pytest.fail(f"{name}: {each()}")


def test_a_lease_that_was_taken_before_encrypt_ends_without_damage(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as plain:
        fill_little(plain)
        before = contents(plain)
        with plain.lease("t", ttl=600), threadkeep.open(lasting_url, keys=KEYS) as keep:
            keep.encrypt()
            assert keep.lease_info("t") is not None
    with threadkeep.open(lasting_url, keys=KEYS) as keep:  # who has no keys cannot release it
        assert keep.break_lease("t")
        check(keep, before)


@pytest.mark.parametrize("hide_ids", [False, True], ids=["visible ids", "hidden ids"])
def test_agents_with_keys_go_on_while_a_storage_is_encrypted_and_others_cannot_write(
    lasting_url: str, *, hide_ids: bool
) -> None:
    with ExitStack() as stack:
        plain = stack.enter_context(threadkeep.open(lasting_url))
        fill_little(plain)
        keep = stack.enter_context(threadkeep.open(lasting_url, keys=KEYS, hide_ids=hide_ids))
        agents = stack.enter_context(
            closing(
                Agents(
                    lambda: threadkeep.open(lasting_url, keys=KEYS),
                    plain,
                    hide_ids=hide_ids,
                    every=rounds_of(lasting_url),
                )
            )
        )
        keep.encrypt(on_progress=agents.work)
        assert agents.rounds > 3
        agents.work()
        assert is_all_sealed(stored_of(keep))
        before = contents(keep)
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        check(keep, before)
        assert "made plain" not in {info.id for info in keep.threads(limit=1000)}
        assert not keep.store.search(("plain",))


# --- interrupted

Check = Callable[[Storage, dict[str, Any]], None]
"""What is checked of a storage, given its contents before."""


def interrupt(
    verb: str, backend: str, folder: Path, interrupted: Check, continued: Check, *, keys: threadkeep.Keys | None,
    hide_ids: bool, new_keys: threadkeep.Keys,
) -> None:  # fmt: skip
    """Interrupt a verb at its k-th request, before and after its execution by turns, for growing k.

    `keys` are those of the storage before, `new_keys` those of the Keep that does it.
    """
    hidden = hide_ids if keys is not None else None
    full = new_storage(backend, folder)
    with closing(full.open(keys, hide_ids=hidden)) as keep:
        fill_little(keep)
    k, arguments = 1 + random.randrange(STRIDES[backend]), {"wait": False} if verb == "reencrypt" else {}
    for number in range(1000):
        copy = full.copy(number)
        storage = copy or new_storage(backend, folder)
        with closing(storage.open(keys, hide_ids=hidden)) as keep:
            if copy is None:
                fill_little(keep)
            before = contents(keep)
        with crashing_at(storage, k, after=number % 2 == 0, keys=new_keys, hide_ids=hide_ids) as (keep, crashing):
            try:
                getattr(keep, verb)(**arguments)
            except Unavailable:
                assert crashing.crashed
            else:
                assert not crashing.crashed, "a crash was taken for a success"
                assert number > 0
                return
        interrupted(storage, before)
        continued(storage, before)
        k += STRIDES[backend]
    raise AssertionError("it never gets through")


def check_leftovers(storage: Storage) -> None:
    """Check that no vectors and no words are left of memories that are gone."""
    where = storage.path or storage.url
    if where is not None:
        assert find_leftovers(where, storage.tenant) == []


HIDDEN = pytest.mark.parametrize("hide_ids", [False, True], ids=["visible ids", "hidden ids"])
ON_EACH = pytest.mark.parametrize("backend", BACKENDS)


@HIDDEN
@ON_EACH
def test_an_interrupted_encrypt_loses_nothing_and_is_continued(backend: str, tmp_path: Path, *, hide_ids: bool) -> None:
    def interrupted(storage: Storage, before: dict[str, Any]) -> None:
        with closing(storage.open(KEYS)) as keep:
            try:
                check(keep, before)
            except WrongKey:  # it had not begun
                with closing(storage.open()) as plain:
                    check(plain, before)

    def continued(storage: Storage, before: dict[str, Any]) -> None:
        with closing(storage.open(KEYS, hide_ids=hide_ids)) as keep:
            keep.encrypt()
            check(keep, before)
            assert is_all_sealed(stored_of(keep))
            again = keep.encrypt()
            assert (again.threads, again.memories) == (0, 0)
        check_leftovers(storage)

    interrupt("encrypt", backend, tmp_path, interrupted, continued, keys=None, hide_ids=hide_ids, new_keys=KEYS)


@ON_EACH
def test_an_interrupted_rotate_is_continued_and_then_the_old_key_opens_nothing(backend: str, tmp_path: Path) -> None:
    def interrupted(storage: Storage, before: dict[str, Any]) -> None:
        with closing(storage.open(BOTH)) as keep:
            check(keep, before)

    def continued(storage: Storage, before: dict[str, Any]) -> None:
        with closing(storage.open(BOTH)) as keep:
            assert keep.rotate().primary == "k2"
        with closing(storage.open(NEXT)) as keep:
            check(keep, before)
        with closing(storage.open(KEYS)) as keep, pytest.raises(WrongKey, match="with the key 'k2'"):
            keep.threads()

    interrupt("rotate", backend, tmp_path, interrupted, continued, keys=KEYS, hide_ids=False, new_keys=BOTH)


@HIDDEN
@ON_EACH
def test_an_interrupted_reencrypt_stops_everything_else_until_it_is_continued(
    backend: str, tmp_path: Path, *, hide_ids: bool
) -> None:
    def interrupted(storage: Storage, before: dict[str, Any]) -> None:
        with closing(storage.open(KEYS)) as keep:
            try:
                check(keep, before)  # it had not begun
            except Unavailable as error:
                assert "threadkeep reencrypt" in str(error)  # noqa: PT017 - it may not be raised
                assert_unavailable(keep)

    def continued(storage: Storage, before: dict[str, Any]) -> None:
        with closing(storage.open(KEYS)) as keep:
            keep.reencrypt(wait=False)
            check(keep, before)
        check_leftovers(storage)

    interrupt("reencrypt", backend, tmp_path, interrupted, continued, keys=KEYS, hide_ids=hide_ids, new_keys=KEYS)


def assert_unavailable(keep: threadkeep.Keep) -> None:
    saver, store = keep.checkpointer, keep.store
    for refused in (
        keep.setup, keep.threads, keep.verify, keep.rotate, lambda: saver.get_tuple(config("t")),
        lambda: list(saver.list(None)), lambda: Chain(saver, "new").put({"x": 1}), lambda: store.get(("n",), "n"),
        lambda: store.put(("n",), "n", {}), lambda: store.search(()), lambda: keep.delete("t"),
        lambda: saver.delete_thread("t"), lambda: asyncio.run(keep.cube.load("c")),
        lambda: asyncio.run(saver.aget_tuple(config("t"))), lambda: asyncio.run(store.aput(("n",), "n", {})),
    ):  # fmt: skip
        with pytest.raises(Unavailable, match="encrypted anew"):
            refused()


# --- killed

ENCRYPTER = """
import os, sys
import threadkeep
url, verb, *keys = sys.argv[1:]
keys = threadkeep.Keys({id: bytes.fromhex(key) for id, key in (each.split(":") for each in keys)}, primary=keys[0][:2])
keep = threadkeep.open(url, keys=keys)
os.write(1, b"ready\\n")
os.read(0, 1)
getattr(keep, verb)(**({"wait": False} if verb == "reencrypt" else {}))
os.write(1, b"done\\n")
"""
ARGUMENTS = {"encrypt": ["k1"], "rotate": ["k2", "k1"], "reencrypt": ["k2", "k1"]}


def kill_until_done(url: str, verb: str, *, longest: float, growth: float) -> int:
    """Start a verb in a process and kill it, again and again, until it is done. Return how often it was killed.

    `growth` is the share by which it gets more time after each kill.
    """
    keys = [f"{id}:{ {'k1': FIRST, 'k2': SECOND}[id].hex() }" for id in ARGUMENTS[verb]]
    chance = random.Random(verb)
    for kills in range(200):
        child = start(ENCRYPTER, url, verb, *keys)
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == b"ready\n"
        child.stdin.write(b"g")
        child.stdin.flush()
        time.sleep(chance.uniform(0, longest) * (1 + growth * kills))
        if "done" in kill(child):
            return kills
    raise AssertionError("it never gets through")


@pytest.mark.parametrize(("longest", "growth"), [(0.2, 1), pytest.param(0.05, 0.1, marks=pytest.mark.long)])
def test_a_storage_whose_encrypt_rotate_and_reencrypt_are_killed_has_what_it_had(
    lasting_url: str, longest: float, growth: float
) -> None:
    with threadkeep.open(lasting_url) as keep:
        fill(keep)
        before = contents(keep)
    for verb, keys in (("encrypt", KEYS), ("rotate", NEXT), ("reencrypt", NEXT)):
        kill_until_done(lasting_url, verb, longest=longest, growth=growth)
        with threadkeep.open(lasting_url, keys=keys) as keep:
            check(keep, before)
            assert is_all_sealed(stored_of(keep))


# --- rotate


def test_agents_go_on_while_and_after_keys_are_rotated_even_twice_in_a_minute(lasting_url: str) -> None:
    with ExitStack() as stack:
        keep = stack.enter_context(threadkeep.open(lasting_url, keys=KEYS))
        fill_little(keep)
        agents = stack.enter_context(
            closing(Agents(lambda: threadkeep.open(lasting_url, keys=BOTH), every=rounds_of(lasting_url)))
        )
        agents.work()
        rotating = stack.enter_context(threadkeep.open(lasting_url, keys=BOTH))
        before = stored_of(keep)
        for _ in range(3):
            assert rotating.rotate(on_progress=agents.work).primary == "k2"
            agents.work()
        after = stored_of(rotating)
        everything = contents(rotating)
    assert {id: after.keys[id] for id in before.keys} != before.keys
    assert not {*after.keys.values(), *after.partition_keys.values()} & {
        *before.keys.values(),
        *before.partition_keys.values(),
    }
    assert before.items["u"].items() <= after.items["u"].items(), "data is not encrypted again"
    with threadkeep.open(lasting_url, keys=NEXT) as keep:
        check(keep, everything)


def test_what_a_keep_writes_that_has_not_noticed_two_rotates_can_be_read(lasting_url: str) -> None:
    with (
        threadkeep.open(lasting_url, keys=BOTH) as unaware,
        threadkeep.open(lasting_url, keys=BOTH) as rotating,
    ):
        fill_little(rotating)
        assert unaware.checkpointer.get_tuple(config("none")) is None
        for _ in range(2):
            rotating.rotate()
        Chain(unaware.checkpointer, "new").put({"x": "new"})
        unaware.store.put(("new",), "k", {"text": "new"})
        unaware.store.put(("users", "kim"), "new", {"text": "new"})
        Chain(unaware.checkpointer, "u").put({"x": "changed"}, id="9")
    with threadkeep.open(lasting_url, keys=NEXT) as keep:
        assert (values_of(keep.checkpointer, "new"), values_of(keep.checkpointer, "u")) == (
            {"x": "new"},
            {"x": "changed"},
        )
        assert len(keep.store.search((), limit=100)) == 6
        assert keep.verify().problems == []
        keep.rotate()
        assert values_of(keep.checkpointer, "new") == {"x": "new"}


def test_a_rotate_costs_two_requests_a_thread(tmp_path: Path) -> None:
    storage = new_storage("memory", tmp_path)

    def cost() -> int:
        with crashing_at(storage, 1 << 30, after=False, keys=KEYS) as (keep, counting):
            keep.rotate()
            return (1 << 30) - counting._left

    with closing(storage.open(KEYS)) as keep:
        Chain(keep.checkpointer, "one").put({"x": 1})
        one = cost()
        for n in range(10):
            Chain(keep.checkpointer, f"t{n}").put({"x": 1})
    assert cost() - one == 20


# --- reencrypt


@HIDDEN
def test_after_a_reencrypt_no_key_and_no_sealed_byte_is_what_it_was(lasting_url: str, *, hide_ids: bool) -> None:
    with threadkeep.open(lasting_url, keys=KEYS, hide_ids=hide_ids) as keep:
        fill_little(keep)
        expected, before = contents(keep), stored_of(keep)
        result = keep.reencrypt(wait=False)
        assert (result.threads, result.memories) == (len(before.keys), len(before.memories))
        after = stored_of(keep)
        check(keep, expected)
    assert not set(before.keys.values()) & set(after.keys.values())
    assert not before.partition_keys.items() & after.partition_keys.items()
    assert len(after.partition_keys) == len(before.partition_keys)
    assert not before.sealed_bytes() & after.sealed_bytes()
    assert not set(before.memories.values()) & set(after.memories.values())
    if hide_ids:
        assert not before.keys.keys() & after.keys.keys(), "the index key is another one"
    before_hidden = {row.source for rows in before.rows.values() for row in rows if getattr(row, "source", None)}
    after_hidden = {row.source for rows in after.rows.values() for row in rows if getattr(row, "source", None)}
    assert before_hidden
    assert not before_hidden & after_hidden, "the index key is another one"
    with threadkeep.open(lasting_url, keys=KEYS) as keep:
        check(keep, expected)


def test_while_a_storage_is_encrypted_anew_every_other_call_is_unavailable(lasting_url: str) -> None:
    with ExitStack() as stack:
        keep = stack.enter_context(threadkeep.open(lasting_url, keys=KEYS))
        fill_little(keep)
        expected, rounds = contents(keep), 0

        def look(*_: Any) -> None:
            nonlocal rounds
            if rounds < 2:
                with threadkeep.open(lasting_url, keys=KEYS) as other:
                    assert_unavailable(other)
                assert_unavailable(keep)
            rounds += 1

        keep.reencrypt(wait=False, on_progress=look)
        assert rounds > 2
        check(keep, expected)


# --- afterwards

TABLES = ("tk_threads", "tk_items", "tk_checkpoints", "tk_writes", "tk_memories")


@pytest.mark.parametrize("is_open", [False, True], ids=["a new Keep", "one that was open while it was encrypted"])
def test_a_plain_row_that_comes_back_after_encrypt_is_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    url, copy = f"sqlite:///{tmp_path / 'keep.db'}", tmp_path / "plain.db"
    with threadkeep.open(url) as keep:
        fill_little(keep)
        threadkeep.backup(keep, copy)
    with ExitStack() as stack:
        opened: list[threadkeep.Keep] = []

        def open_and_read(*_: Any) -> None:
            if not opened:
                opened.append(stack.enter_context(threadkeep.open(url, keys=KEYS)))
                opened[0].threads()

        with threadkeep.open(url, keys=KEYS) as keep:
            keep.encrypt(on_progress=open_and_read)
        replace_rows(tmp_path / "keep.db", copy)
        if is_open:
            monkeypatch.setattr("threadkeep.tenants.transport._REFRESH_SECONDS", 0)
            opened[0]._session.transport.tenant("").refresh_at = 0.0  # a minute later
            reader = opened[0]
        else:
            reader = stack.enter_context(threadkeep.open(url, keys=KEYS))
        for read in (
            lambda: reader.checkpointer.get_tuple(config("u")),
            lambda: reader.store.get(("notes",), "n"), lambda: reader.store.search(()),
            lambda: asyncio.run(reader.cube.load("c")), lambda: Chain(reader.checkpointer, "u").put({"x": 2}, id="9"),
        ):  # fmt: skip
            with pytest.raises(Corrupt):
                read()
        assert len(reader.verify().problems) >= 3


def replace_rows(file: Path, plain: Path) -> None:
    """Write plain rows over encrypted ones, as somebody may who can write the file."""
    with closing(apsw.Connection(str(file))) as connection:
        for (trigger,) in list(
            connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%encrypted%'")
        ):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("ATTACH ? AS plain", (str(plain),))
        for table in TABLES:
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            connection.execute(f"DELETE FROM main.{table}")
            connection.execute(
                f"INSERT INTO main.{table} ({', '.join(names)}) SELECT {', '.join(names)} FROM plain.{table}"
            )
