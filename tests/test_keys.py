"""`threadkeep.Keys`: where master keys come from, what is refused, and that no key is ever shown."""

from __future__ import annotations

import os
import pickle
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import threadkeep
from checkpoint_chains import Chain, config
from threadkeep import Keys
from threadkeep.errors import WrongKey

ONE, TWO = b"Kq7zVw0pXb3mJt9rLc5nHd1fGs8yTe2u", b"Zx4QvB6oWk2Rj8Mh0Np5Cg7Df3Ls9AyU"
TEXT, OTHER_TEXT = b64encode(ONE).decode(), b64encode(TWO).decode()
CONTEXT = b"tenant"


def shows_key(text: str) -> bool:
    """Whether a text has a part of a key, in any of the forms in which Python or a file would write it."""
    forms = [form for key in (ONE, TWO) for form in (repr(key)[2:-1], key.hex(), b64encode(key).decode())]
    return any(form[at : at + 8] in text for form in forms for at in range(len(form) - 8))


@contextmanager
def refused(kind: type[BaseException], says: str) -> Iterator[None]:
    """Expect an error that says this. Neither it nor those behind it, in a traceback, show a key."""
    with pytest.raises(kind, match=says) as raised:
        yield
    messages: list[str] = []
    error: BaseException | None = raised.value
    while error is not None:
        messages += traceback.format_exception_only(error) + [repr(error)]
        error = error.__cause__ or error.__context__
    assert not shows_key("".join(messages)), messages


def key_file(path: Path, text: str | bytes) -> Path:
    file = path / "keys.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def opens(writer: Keys, reader: Keys) -> bool:
    """Whether one unwraps what the other wrapped."""
    id, wrapped = writer.wrap(bytes(32), CONTEXT)
    return reader.unwrap(id, wrapped, CONTEXT) == bytes(32)


# --- given by the program


def test_the_primary_key_wraps_and_every_key_unwraps() -> None:
    both = Keys({"k1": ONE, "k2": TWO}, primary="k2")
    assert opens(both, Keys({"k2": TWO}, primary="k2"))
    assert opens(Keys({"k1": ONE}, primary="k1"), both)


def test_a_key_may_be_a_bytearray_which_the_program_clears_afterwards() -> None:
    given = bytearray(ONE)
    keys = Keys({"k1": given}, primary="k1")
    given[:] = bytes(32)
    assert opens(keys, Keys({"k1": ONE}, primary="k1"))


@pytest.mark.parametrize(
    ("keys", "primary", "kind", "says"),
    [
        ({"k1": ONE[:31]}, "k1", ValueError, "'k1' must have 32 bytes, not 31"),
        ({"k1": ONE + b"!"}, "k1", ValueError, "'k1' must have 32 bytes, not 33"),
        ({"k1": b""}, "k1", ValueError, "openssl rand"),
        ({"k1": TEXT}, "k1", TypeError, "must be bytes, not str"),
        ({TEXT: "k1"}, "k1", TypeError, "must be bytes, not str"),
        ({"k1": None}, "k1", TypeError, "must be bytes, not NoneType"),
        ({ONE: "k1"}, "k1", TypeError, "must be a str, not bytes"),
        ({1: ONE}, 1, TypeError, "must be a str, not int"),
        ({"": ONE}, "", ValueError, "1 to 200 printable characters"),
        ({"k\n": ONE}, "k\n", ValueError, "1 to 200 printable characters"),
        ({"k" * 201: ONE}, "k" * 201, ValueError, "1 to 200 printable characters"),
        ({"k1": ONE}, "k2", ValueError, "the id of one of the keys: k1"),
        ({"k1": ONE}, TEXT, ValueError, "the id of one of the keys: k1"),
        ({"k1": ONE}, ONE, TypeError, "must be a str, not bytes"),
        ({"k1": ONE}, None, TypeError, "must be a str, not NoneType"),
        ({}, "k1", ValueError, "there are none"),
        ([("k1", ONE)], "k1", TypeError, "must be a mapping of ids to 32 bytes, not list"),
        (ONE, "k1", TypeError, "must be a mapping of ids to 32 bytes, not bytes"),
    ],
)
def test_a_key_or_id_that_is_not_valid_is_refused_without_being_shown(
    keys: Any, primary: Any, kind: type[Exception], says: str
) -> None:
    with refused(kind, says):
        Keys(keys, primary=primary)


@pytest.mark.parametrize("wrong", [ONE, TEXT, {"k1": ONE}, 1])
def test_a_keep_takes_nothing_else_for_its_keys(wrong: Any) -> None:
    with refused(TypeError, "must be a threadkeep.Keys"):
        threadkeep.open("memory://", keys=wrong)
    with threadkeep.open("memory://") as keep, refused(TypeError, "must be a threadkeep.Keys"):
        keep.tenant("acme", keys=wrong)


def test_hidden_ids_need_keys() -> None:
    with pytest.raises(ValueError, match="hide_ids=True needs keys="):
        threadkeep.open("memory://", hide_ids=True)


# --- never shown


def test_a_repr_names_the_keys_the_primary_first() -> None:
    keys = Keys({"k1": ONE, "k2": TWO}, primary="k2")
    assert repr(keys) == str(keys) == "Keys(k2, k1)"


def test_neither_keys_nor_an_open_keep_show_a_key(tmp_path: Path) -> None:
    keys = Keys({"k1": ONE, "k2": TWO}, primary="k1")
    with threadkeep.open(f"sqlite:///{tmp_path / 'a.db'}", keys=keys) as keep:
        keep.setup()
        objects = [keys, keep, keep._session.transport, keep._session.transport.opened("").key]
        assert not any(shows_key(repr(each) + repr(vars(each))) for each in objects[:1])
        assert not any(shows_key(repr(each)) for each in objects)


def test_keys_cannot_be_pickled() -> None:
    """So they do not end up in a queue or in a file by accident."""
    with refused(TypeError, "pickle"):
        pickle.dumps(Keys({"k1": ONE}, primary="k1"))


# --- from the environment and from a file

LINES = f"\n# made on a Monday\n  k2 : {OTHER_TEXT}  \n\n   # {OTHER_TEXT}\nk1:{TEXT}\n"


def test_the_first_key_of_a_file_is_the_primary_one(tmp_path: Path) -> None:
    for path in (key_file(tmp_path, LINES), str(key_file(tmp_path, LINES.replace("\n", "\r\n")))):
        keys = Keys.from_file(path)
        assert repr(keys) == "Keys(k2, k1)"
        assert opens(keys, Keys({"k2": TWO}, primary="k2"))


def test_the_first_key_of_a_variable_is_the_primary_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADKEEP_KEYS", f"k2:{OTHER_TEXT}, k1:{TEXT},")
    monkeypatch.setenv("OURS", f"k1:{TEXT}")
    assert repr(Keys.from_env()) == "Keys(k2, k1)"
    assert opens(Keys.from_env("OURS"), Keys.from_env())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no keys|is not set"),
        ("\n \n", "has no keys|is not set"),
        (TEXT, "entry 1 is not `id:` and 32 bytes in base64"),
        (f":{TEXT}", "entry 1 is not"),
        (f"{TEXT}:k1", "entry 1 is not"),
        (f"k1:{TEXT[:-4]}", "entry 1 is not"),
        (f"k1:{TEXT[:20]} {TEXT[20:]}", "entry 1 is not"),
        (f"k1:{TEXT[:-2]}", "entry 1 is not"),
        (f"k1:{ONE.hex()}", "entry 1 is not"),
        (f"k1:{ONE.decode()}", "entry 1 is not"),
        (f"k1:{TEXT}\nk2;{OTHER_TEXT}", "entry 2 is not"),
        (f"k1:{TEXT}\nk1:{OTHER_TEXT}", "key 'k1' is given twice"),
        (f"k\t1:{TEXT}", "1 to 200 printable characters"),
    ],
)
def test_an_entry_that_is_not_valid_is_refused_without_being_shown(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused(ValueError, says):
        Keys.from_file(key_file(tmp_path, text))
    monkeypatch.setenv("OURS", text.replace("\n", ","))
    with refused(ValueError, says):
        Keys.from_env("OURS")


def test_a_file_with_the_bytes_of_a_key_is_refused_without_being_shown(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"keys\.txt is not text: .*openssl rand") as raised:
        Keys.from_file(key_file(tmp_path, b"\xff\xfe" + ONE))
    assert not isinstance(raised.value, UnicodeError)
    assert raised.value.__context__ is None, "UnicodeDecodeError has the bytes"


def test_a_missing_file_or_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.txt"):
        Keys.from_file(tmp_path / "nowhere.txt")
    monkeypatch.delenv("NOWHERE", raising=False)
    with pytest.raises(ValueError, match="the environment variable NOWHERE is not set"):
        Keys.from_env("NOWHERE")


# --- unwrapping


def test_another_key_of_the_same_id_and_a_changed_wrapped_key_are_wrong_keys() -> None:
    keys = Keys({"k1": ONE}, primary="k1")
    id, wrapped = keys.wrap(TWO, CONTEXT)
    with refused(WrongKey, "'k1' is not the one"):
        Keys({"k1": TWO}, primary="k1").unwrap(id, wrapped, CONTEXT)
    with refused(WrongKey, "with the key 'k1'; the keys that were given are 'k2'"):
        Keys({"k2": TWO}, primary="k2").unwrap(id, wrapped, CONTEXT)
    for changed in (wrapped[:-1], wrapped[:12], b"", bytes([wrapped[0] ^ 1]) + wrapped[1:]):
        with refused(WrongKey, "'k1' is not the one"):
            keys.unwrap(id, changed, CONTEXT)
    with refused(WrongKey, "'k1' is not the one"):
        keys.unwrap(id, wrapped, b"another tenant")


# --- a key management service


class Service:
    """A key management service that keeps what it wrapped, and fails on request."""

    def __init__(self) -> None:
        self.wrapped: dict[bytes, bytes] = {}
        self.unwraps = 0
        self.answer: Callable[[bytes], Any] = self.wrapped.__getitem__

    def wrap(self, key: bytes) -> bytes:
        name = os.urandom(16)
        self.wrapped[name] = key
        return name

    def unwrap(self, wrapped: bytes) -> Any:
        self.unwraps += 1
        return self.answer(wrapped)

    def keys(self, id: str = "service-1") -> Keys:
        return Keys.from_kms(id, wrap=self.wrap, unwrap=self.unwrap)


def use(keep: threadkeep.Keep, thread: str) -> None:
    Chain(keep.checkpointer, thread).put({"x": "y"})
    keep.store.put(("users", thread), "k", {"v": 1})
    assert keep.checkpointer.get_tuple(config(thread)) is not None
    assert [info.id for info in keep.threads()] == [thread]


def test_a_service_unwraps_once_for_each_tenant_and_keep_and_wraps_only_keys_of_tenants(url: str) -> None:
    service = Service()
    with threadkeep.open(url, keys=service.keys()) as keep:
        for tenant in (keep, keep.tenant("acme")):
            use(tenant, "t")
        assert len(set(service.wrapped.values())) == 2, "only keys of tenants"
        assert service.unwraps == 0, "this process made them"
        if url == "memory://":
            return
    with threadkeep.open(url, keys=service.keys()) as keep:
        for number, tenant in enumerate((keep, keep.tenant("acme")), 1):
            use(tenant, "t")
            tenant.verify()
            assert service.unwraps == number
    assert len(set(service.wrapped.values())) == 2


def test_a_service_that_fails_is_the_cause_of_a_wrong_key_until_it_is_there_again(tmp_path: Path) -> None:
    service, url = Service(), f"sqlite:///{tmp_path / 'a.db'}"
    with threadkeep.open(url, keys=service.keys()) as keep:
        use(keep, "t")

    def fail(_: bytes) -> bytes:
        raise ConnectionError("the service is away")

    with threadkeep.open(url, keys=service.keys()) as keep:
        service.answer = fail
        for call in (keep.threads, keep.setup, lambda: use(keep, "t")):
            with pytest.raises(WrongKey, match="did not unwrap a key with 'service-1'") as raised:
                call()
            assert isinstance(raised.value.__cause__, ConnectionError)
        service.answer = service.wrapped.__getitem__
        use(keep, "t")


@pytest.mark.parametrize("answer", [None, "text", b"", ONE[:31], ONE + ONE, bytearray(ONE)], ids=repr)
def test_a_service_that_returns_nonsense_is_a_wrong_key(answer: Any, tmp_path: Path) -> None:
    service, url = Service(), f"sqlite:///{tmp_path / 'a.db'}"
    with threadkeep.open(url, keys=service.keys()) as keep:
        use(keep, "t")
    service.answer = lambda _: answer
    with threadkeep.open(url, keys=service.keys()) as keep, refused(WrongKey, "something else than a key of 32 bytes"):
        keep.threads()


def test_a_service_that_returns_another_key_damages_nothing(tmp_path: Path) -> None:
    service, url = Service(), f"sqlite:///{tmp_path / 'a.db'}"
    with threadkeep.open(url, keys=service.keys()) as keep:
        use(keep, "t")
    service.answer = lambda _: ONE
    with (
        threadkeep.open(url, keys=service.keys()) as keep,
        refused(threadkeep.errors.ThreadkeepError, "keys of tenant"),
    ):
        keep.threads()
    service.answer = service.wrapped.__getitem__
    with threadkeep.open(url, keys=service.keys()) as keep:
        use(keep, "t")


def test_a_service_that_does_not_wrap_prevents_the_first_use(tmp_path: Path) -> None:
    service, url = Service(), f"sqlite:///{tmp_path / 'a.db'}"

    def fail(_: bytes) -> bytes:
        raise ConnectionError("the service is away")

    for wrap, kind, says in ((fail, ConnectionError, "away"), (lambda _: "text", TypeError, "bytes, not str")):
        keys = Keys.from_kms("service-1", wrap=wrap, unwrap=service.unwrap)  # type: ignore[arg-type]
        with threadkeep.open(url, keys=keys) as keep, refused(kind, says):
            keep.store.put(("a",), "k", {})
    with threadkeep.open(url) as keep:
        assert keep.stats().memories == 0, "it is still a plain storage"


def test_another_service_key_or_a_master_key_is_a_wrong_key(tmp_path: Path) -> None:
    service, url = Service(), f"sqlite:///{tmp_path / 'a.db'}"
    with threadkeep.open(url, keys=service.keys()) as keep:
        use(keep, "t")
    for keys in (service.keys("service-2"), Keys({"k1": ONE}, primary="k1")):
        with threadkeep.open(url, keys=keys) as keep, refused(WrongKey, "encrypted with the key 'service-1'"):
            keep.threads()


@pytest.mark.parametrize(("wrap", "unwrap"), [(None, bytes), (bytes, None), ("wrap", "unwrap")])
def test_what_is_no_function_is_refused_as_one_of_a_service(wrap: Any, unwrap: Any) -> None:
    with refused(TypeError, "must be functions"):
        Keys.from_kms("service-1", wrap=wrap, unwrap=unwrap)
    with refused(ValueError, "printable"):
        Keys.from_kms("", wrap=bytes, unwrap=bytes)
