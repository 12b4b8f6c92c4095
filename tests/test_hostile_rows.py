"""Rows that an attacker wrote: reading them runs no code, ends with a value or with Corrupt, and harms no other thread.

`test_type_gate.py` has the classes that a payload may name. Here are payloads that are damaged on purpose, that lie
about their size or their depth, and the attacks that savers and stores of LangGraph are known for, on every backend.
"""

from __future__ import annotations

import io
import json
import pickle
import resource
import sqlite3
import struct
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ormsgpack
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.checkpoint.sqlite import SqliteSaver

import threadkeep
from checkpoint_chains import config
from forged_values import Forged, ext, ext_bytes, packed, store, store_forged
from threadkeep.cli.app import run
from threadkeep.engine.log import plain
from threadkeep.engine.log.type_gate import KeepSerializer
from threadkeep.errors import Corrupt

CODES = range(8)
ODD_ARGUMENTS: list[Any] = [
    None, -1, 1 << 63, float("nan"), "", "9" * 5000, "1e999999999", "../../etc/passwd", "\0", b"\xff", [], [[1]],
    [1 << 62, 1, 1], {}, {1: 2}, {"self": 1}, {"content": {}}, {"hour": 99, "tzinfo": 5},
]  # fmt: skip
REGEXES = ["(" * 3000, "(a+)+$", "(((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}", "a{999999999}", "(?P<a>"]


def deep(levels: int, arrays: int, code: int) -> bytes:
    """Return objects inside objects, with arrays between them; ormsgpack limits the depth of each payload only."""
    data = b"\xc0"
    for _ in range(levels):
        inner = b"\x91" * arrays + data
        names = b"\x93" + packed("os") + packed("system") if code < 6 else b"\x92\xa1k" if code == 101 else b""
        data = ext_bytes(code, names + inner)
    return data


HUGE = {
    "an array of 4 billion": b"\xdd\xff\xff\xff\xff",
    "a map of 4 billion": b"\xdf\xff\xff\xff\xff",
    "a text of 4 GB": b"\xdb\xff\xff\xff\xff",
    "bytes of 4 GB": b"\xc6\xff\xff\xff\xff",
    "an object of 4 GB": b"\xc9\xff\xff\xff\xff\x01",
    "arrays of 4 billion in each other": b"\xdd\xff\xff\xff\xff" * 1000,
    "an object with an array of 4 billion": ext_bytes(2, b"\xdd\xff\xff\xff\xff"),
    "no msgpack": b"\xc1",
    "nothing": b"",
    "text that is not UTF-8": b"\xa2\xff\xfe",
    "our text that is not UTF-8": ext_bytes(100, b"\xff"),
    "our dict with half an entry": ext_bytes(101, b"\x91\xa1k"),
    "our dict that is a number": ext_bytes(101, b"\x05"),
    "our dict with a key that cannot be one": ext_bytes(101, b"\x92\x90\x05"),
}
DEEP = {
    f"{levels} objects of code {code} with {arrays} arrays each": deep(levels, arrays, code)
    for code in (0, 2, 5, 7, 101)
    for levels, arrays in ((30, 1000), (450, 1000), (3000, 0))
}
UNREADABLE_JSON = {"deep": b"[" * 100_000, "a large integer": b"9" * 100_000, "no UTF-8": b"\xff\xfe", "cut off": b"{"}


# --- what a payload may hold


@pytest.mark.parametrize("name", sorted(SAFE_MSGPACK_TYPES), ids=".".join)
def test_a_safe_type_with_any_argument_is_a_value(name: tuple[str, str]) -> None:
    """LangGraph's own list of types is called with what a row holds: whatever that is, there is no error."""
    serde = KeepSerializer()
    odd = [*ODD_ARGUMENTS, *([[pattern, 0] for pattern in REGEXES] if name == ("re", "compile") else [])]
    for code in CODES:
        for argument in odd:
            for more in ([], ["model_validate_json"], ["fromisoformat"], [[1]], [{}]):
                serde.loads_typed(("msgpack", packed(ext(code, *name, argument, *more))))
                plain.plain("msgpack", packed(ext(code, *name, argument, *more)))


def test_a_method_is_called_only_if_its_name_is_a_safe_one() -> None:
    serde = KeepSerializer()
    for module, name, method in SAFE_MSGPACK_METHODS:
        for other in ([method], {"a": method}, None, 5, f"{method}\0", "__class__", "__init_subclass__"):
            assert serde.loads_typed(("msgpack", packed(ext(3, module, name, "x", other)))) == "x"
    stated = {"lc": 2, "type": "constructor", "id": ["uuid", "UUID"], "method": ["hex"], "args": 5, "kwargs": 6}
    assert serde.loads_typed(("json", json.dumps(stated).encode())) == stated


@pytest.mark.parametrize(
    "dtype",
    ["O", ",", "((((", "(" * 5000, "(1000000,1000000)i1", "S99999999999", "9999999999999999999i4", "(-1,)i4", "V0", "",
     [["a"]], [["a", "O"]], {"names": [1]}, 5, None],
    ids=lambda each: str(each)[:20],
)  # fmt: skip
@pytest.mark.parametrize("shape", [[1], [-1], [1 << 63], [1 << 40, 1 << 40], [0], "x", None, [1] * 100], ids=str)
def test_an_array_that_lies_about_itself_is_no_array(dtype: Any, shape: Any) -> None:
    for order in ("C", "Z", None, 5):
        for buffer in (b"\1" * 8, b"", 5):
            found = KeepSerializer().loads_typed(("msgpack", packed(ext(6, dtype, shape, order, buffer))))
            assert found is None or (isinstance(found, np.ndarray) and found.nbytes <= 8 and not found.dtype.hasobject)


def test_a_regex_is_never_run() -> None:
    """Only compiled: what takes exponential time to match is a value like any other."""
    found = KeepSerializer().loads_typed(("msgpack", packed(ext(1, "re", "compile", ["(a+)+$", 0]))))
    assert found.pattern == "(a+)+$"


@pytest.mark.parametrize("data", [*HUGE.values(), *DEEP.values()], ids=[*HUGE, *DEEP])
def test_a_payload_that_lies_about_its_size_or_depth_is_corrupt(data: bytes) -> None:
    """Not a crash: each level takes a part of the stack that ormsgpack does not count."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for what in (data, b"\x91" + data):
        with pytest.raises(ValueError):  # noqa: PT011 - msgpack's, which the codec makes Corrupt
            KeepSerializer().loads_typed(("msgpack", what))
        with pytest.raises(Corrupt):
            plain.plain("msgpack", what)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kilobytes"


def test_objects_are_nested_as_deeply_as_they_can_be_encoded() -> None:
    data = packed("end")
    for _ in range(200):
        data = ext_bytes(7, b"\x91" * 10 + data)
    found = KeepSerializer().loads_typed(("msgpack", data))
    for _ in range(200):
        found = found.value
        for _ in range(10):
            (found,) = found
    assert found == "end"


# --- on every backend


FORGED_VALUES = {
    **{name: Forged("msgpack", HUGE[name]) for name in ("an array of 4 billion", "no msgpack", "our text that is not UTF-8")},
    **{name: Forged("msgpack", data) for name, data in DEEP.items() if name.startswith("450")},
    **{f"JSON, {name}": Forged("json", data) for name, data in UNREADABLE_JSON.items()},
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("forged", FORGED_VALUES.values(), ids=FORGED_VALUES)
def test_a_forged_value_is_corrupt_and_named_and_other_threads_are_read(keep: threadkeep.Keep, forged: Forged) -> None:
    saver = keep.checkpointer
    at = store_forged(saver, forged)
    other = store(saver, "fine", thread="other")
    with pytest.raises(Corrupt, match="'t'"):
        saver.get_tuple(at)
    assert list(saver.list(config("t"))) == [], "a damaged checkpoint is left out, with a warning"
    assert "damage" in repr(keep.show("t")) or keep.show("t").checkpoint.id == at["configurable"]["checkpoint_id"]
    saver.get_delta_channel_history(config=at, channels=["a", "w"])
    found = saver.get_tuple(other)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": "fine", "b": "honest"}
    assert {info.id for info in keep.threads()} == {"t", "other"}
    assert [each.id for each in keep.log("t")] == [at["configurable"]["checkpoint_id"]]
    saver.delete_thread("t")
    assert saver.get_tuple(at) is None


def test_forged_values_are_copied_exported_and_shown_without_being_built(
    keep: threadkeep.Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "made"
    forged = [ext(code, "os", "mkdir", argument, "x") for code, argument in enumerate(
        [str(mark), [str(mark)], {"path": str(mark)}, str(mark), {"path": str(mark)}, {"path": str(mark)}]
    )]  # fmt: skip
    store_forged(keep.checkpointer, Forged("msgpack", packed([*forged, {"k": forged}])))
    keep.checkpointer.copy_thread("t", "copy")
    file = tmp_path / "all.tk"
    keep.export(file)
    for verb in (keep.show, keep.log, keep.tree, keep.trace, keep.thread):
        verb("copy")
    keep.fork("t", "latest", to="branch")
    with threadkeep.open("memory://") as fresh:
        assert fresh.import_portable(file).threads == 2
        found = fresh.checkpointer.get_tuple(config("copy"))
        assert found is not None
        assert found.checkpoint["channel_values"]["a"][0] == str(mark)
    monkeypatch.setenv("THREADKEEP_URL", f"sqlite:///{tmp_path / 'cli.db'}")
    assert run(["import", str(file)]) == 0
    for command in (
        ["show", "t"],
        ["log", "t"],
        ["tree", "t"],
        ["trace", "t"],
        ["verify"],
        ["diff", "t", "latest", "copy"],
    ):
        run([*command, "--json"] if command != ["verify"] else command)
    assert not mark.exists()


@pytest.mark.parametrize("parents", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "a"}], ids=len)
def test_parents_that_form_a_circle_end(keep: threadkeep.Keep, parents: dict[str, str]) -> None:
    saver = keep.checkpointer
    for id, parent in parents.items():
        saver.put(
            config("t", parent), empty_checkpoint() | {"id": id, "channel_versions": {"d": 1}},
            {"source": "loop", "step": 1, "counters_since_delta_snapshot": {"d": [1, 1]}}, {},
        )  # fmt: skip
    saver.get_delta_channel_history(config=config("t", "a"), channels=["d"])
    assert {each.checkpoint["id"] for each in saver.list(config("t"))} == set(parents)
    for verb in (keep.tree, keep.log, keep.show, keep.trace, partial(keep.blame, path="d")):
        with suppress(Corrupt):
            verb("t")
    keep.export(io.BytesIO())
    saver.copy_thread("t", "copy")
    saver.prune(["copy"])
    keep.verify()


# --- known attacks on LangGraph's savers and stores


INJECTIONS = [
    "x') = 1 OR 1=1 --",
    "x' OR '1'='1",
    "source') OR 1=1 UNION SELECT thread_id, checkpoint FROM checkpoints --",
    'x" : 1} OR 1=1 --',
    "$.x' , '$') IS NOT NULL OR '1'='1",
    "x'; DROP TABLE tk_threads; --",
    "*", "?", "[a-z]*", "t*", "%", "_", "{t}", "@thread:{*}", "*) | (@a:*", "-@a:{x}", "a|b", "\\", "\x00",
    "]] return redis.call('FLUSHALL') --",
]  # fmt: skip
each_injection = pytest.mark.parametrize("text", INJECTIONS)


@pytest.mark.sampled(3)
@each_injection
def test_a_filter_on_checkpoints_is_never_code(keep: threadkeep.Keep, text: str) -> None:
    """CVE-2025-67644: SqliteSaver.list pasted the keys of a filter into SQL. CVE-2026-27022: the Redis saver, values."""
    saver = keep.checkpointer
    store(saver, 1, thread="secret")
    store(saver, 2, thread="other")
    for wanted in ({text: 1}, {text: text}, {"source": text}, {"step": text}, {text: {"$gt": text}}):
        assert list(saver.list(None, filter=wanted)) == []
        assert keep.threads(metadata=wanted) == []
    at = saver.put(config("own"), empty_checkpoint(), {text: 7, "source": "loop"}, {})
    (found,) = saver.list(None, filter={text: 7})
    assert found.config == at
    assert found.metadata[text] == 7  # type: ignore[typeddict-item]
    assert {info.id for info in keep.threads()} == {"secret", "other", "own"}


@pytest.mark.sampled(3)
@each_injection
def test_a_filter_on_memories_is_never_code(keep: threadkeep.Keep, text: str) -> None:
    """CVE-2025-8709 and CVE-2025-64104: SqliteStore pasted keys, operators and values of a filter into SQL."""
    store = keep.store
    store.put(("secret",), "k", {"a": "s3cret"})
    store.put(("own",), "k", {"a": 1})
    for wanted in ({text: 1}, {text: text}, {"a": text}, {"a": {"$eq": text}}, {f"a.{text}": 1}, {text: {"$gt": 0}}):
        assert store.search(("own",), filter=wanted) == []
        assert store.search((), filter=wanted) == []
    with suppress(ValueError):  # an operator that does not exist, or the key of a dict
        assert store.search(("own",), filter={"a": {f"$eq{text}": 1}}) == []
    store.put(("own",), text, {text: text})
    assert [each.key for each in store.search(("own",), filter={text: text})] == [text]
    assert [each.key for each in store.search(("own",), query=text) if each.namespace != ("own",)] == []
    if text != "*":  # which is a wildcard of LangGraph's
        with suppress(ValueError):  # a segment that LangGraph does not allow
            assert store.list_namespaces(prefix=(text,)) == []


@pytest.mark.sampled(3)
@each_injection
def test_an_id_is_never_a_pattern(keep: threadkeep.Keep, text: str) -> None:
    """GHSA of langgraph-checkpoint-redis: ids became patterns of KEYS and SCAN, and so named threads of others."""
    saver = keep.checkpointer
    at = store(saver, "secret", thread="t1")
    for target in (config(text), config("t1", ns=text), config("t1", text)):
        assert saver.get_tuple(target) is None
        assert list(saver.list(target)) == []
    saver.delete_thread(text)
    saver.delete_for_runs([text])
    saver.prune([text], strategy="delete")
    assert keep.threads(prefix=text) == []
    assert keep.erase(thread_id=text).missing == (text,)
    found = saver.get_tuple(at)
    assert found is not None
    assert found.checkpoint["channel_values"]["a"] == "secret"
    assert found.pending_writes == [("task", "w", "secret")]


def test_neither_json_nor_msgpack_nor_pickle_of_a_row_runs_code(keep: threadkeep.Keep, tmp_path: Path) -> None:
    """CVE-2025-64439 (json), CVE-2026-28277 (msgpack) and CVE-2026-27794 (pickle)."""
    mark = tmp_path / "made"
    lc = {"lc": 2, "type": "constructor", "id": ["os", "mkdir"], "args": [str(mark)]}

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.mkdir, (mark,))

    for n, forged in enumerate(
        [
            Forged("json", json.dumps([lc, {"lc": 1, "type": "secret", "id": ["PATH"]}]).encode()),
            Forged("msgpack", packed(ext(0, "os", "mkdir", str(mark)))),
            Forged("pickle", pickle.dumps(Bomb())),
        ]
    ):
        at = store_forged(keep.checkpointer, forged, thread=f"t{n}")
        if forged.type == "pickle":
            with pytest.raises(NotImplementedError):
                keep.checkpointer.get_tuple(at)
        else:
            assert keep.checkpointer.get_tuple(at) is not None
        keep.show(f"t{n}")
    assert not mark.exists()


# --- what others wrote


def foreign_database(path: Path, *, thread: str, metadata: str, data: bytes, parent: str | None = None) -> Path:
    with SqliteSaver.from_conn_string(str(path)) as theirs:
        theirs.setup()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO checkpoints VALUES (?, '', 'c', ?, 'msgpack', ?, ?)", (thread, parent, data, metadata)
        )
    connection.close()
    return path


def foreign_checkpoint(value: bytes = b"\xc0") -> bytes:
    plain_keys = {"v": 4, "id": "c", "ts": "?", "channel_versions": {"a": 1}, "versions_seen": {}}
    return b"\x86" + packed(plain_keys)[1:] + packed("channel_values") + b"\x81" + packed("a") + value


@pytest.mark.parametrize("value", DEEP.values(), ids=DEEP)
def test_a_deep_value_of_another_saver_is_carried_over_or_left_out_but_never_built(
    tmp_path: Path, value: bytes
) -> None:
    path = foreign_database(tmp_path / "their.db", thread="t", metadata="{}", data=foreign_checkpoint(value))
    with threadkeep.open("memory://") as keep:
        if keep.import_from(path).differences:
            assert keep.threads() == []
            return
        with pytest.raises(Corrupt):
            keep.checkpointer.get_tuple(config("t"))


@pytest.mark.parametrize(
    "metadata", ["[" * 100_000, "9" * 100_000, "{", '{"a":' * 50_000, "[1]", '"x"'], ids=lambda m: m[:3]
)
def test_metadata_of_another_saver_that_cannot_be_read_is_a_difference(tmp_path: Path, metadata: str) -> None:
    path = foreign_database(tmp_path / "their.db", thread="t", metadata=metadata, data=foreign_checkpoint())
    with threadkeep.open("memory://") as keep:
        assert len(keep.import_from(path).differences) == 1
        assert keep.threads() == []


PRIVATE = {"langgraph_auth_user": "s3cret", "langgraph_auth_permissions": ["s3cret"], "langgraph_request_id": "s3cret"}


def test_credentials_are_stored_from_no_side(keep: threadkeep.Keep, tmp_path: Path) -> None:
    scalars = dict.fromkeys([*PRIVATE, "__run"], "s3cret")  # LangGraph drops __* from configs, not from metadata
    given: Any = {
        "configurable": {"thread_id": "put", "checkpoint_ns": "", **scalars},
        "metadata": scalars,
    }
    keep.checkpointer.put(given, empty_checkpoint(), {"source": "loop", "user": "kept", **PRIVATE}, {})  # type: ignore[typeddict-unknown-key]
    metadata = json.dumps({"source": "loop", "user": "kept", **PRIVATE})
    keep.import_from(
        foreign_database(tmp_path / "a.db", thread="imported", metadata=metadata, data=foreign_checkpoint())
    )
    for thread in ("put", "imported"):
        found = keep.checkpointer.get_tuple(config(thread))
        assert found is not None
        assert found.metadata == {"source": "loop", "user": "kept"}
    file = io.BytesIO()
    keep.export(file)
    assert b"s3cret" not in file.getvalue()
    assert keep.threads(metadata={"langgraph_request_id": "s3cret"}) == []


def test_numbers_of_a_header_are_not_trusted() -> None:
    """A list of 2**31 elements that needs 5 bytes takes no memory for the other elements."""
    data = struct.pack(">BI", 0xDD, 1 << 31) + b"\xc0"
    with pytest.raises(ormsgpack.MsgpackDecodeError):
        KeepSerializer().loads_typed(("msgpack", data))
