"""Hostile arguments: every call comes back with a value, ValueError or TypeError, and the storage is as it was before.

Never a driver's error, a RecursionError, another thread's data, or a payload or password in a message. Ids that must
round-trip are in `test_identities.py`; here are the ones that nobody should pass.
"""

from __future__ import annotations

import ast
import asyncio
import io
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

import threadkeep
from checkpoint_chains import config
from forged_values import Forged, store, store_forged
from threadkeep.cli.app import run
from threadkeep.errors import Corrupt, Unavailable

SOURCES = Path(threadkeep.__file__).parent
WRONG_TYPES: list[Any] = [None, b"x", [], {}, 1.5, object(), ("a",), True, {"a"}, float("nan"), -1]
WRONG_NUMBERS: list[Any] = [-1, 1 << 31, 1 << 63, 1 << 100, 1.5, "3", True, float("nan"), float("inf"), [], b"1"]
SECRET = "s3cret-value"


def nested(depth: int, *, as_dict: bool = False) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if as_dict else [value]
    return value


def nested_filter(depth: int, operator: str) -> dict[str, Any]:
    wanted: dict[str, Any] = {"a": 1}
    for _ in range(depth):
        wanted = {"$not": wanted} if operator == "$not" else {operator: [wanted]}
    return wanted


@pytest.fixture
def filled(keep: threadkeep.Keep) -> threadkeep.Keep:
    """A Keep with a thread of each kind and a memory, which no call may change."""
    store(keep.checkpointer, "fine", thread="honest")
    asyncio.run(keep.cube.save_extra("honest", {"mood": "good"}))
    keep.store.put(("honest",), "k", {"a": 1})
    return keep


def refused_or_answered(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the error that it may raise. Any other error fails the test."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        return error


# (name, call): each call takes a Keep and something that it should not be given
ANYTHING: dict[str, Callable[[threadkeep.Keep, Any], Any]] = {
    "get_tuple": lambda keep, odd: keep.checkpointer.get_tuple(config(odd)),
    "a namespace": lambda keep, odd: keep.checkpointer.get_tuple(config("t", ns=odd)),
    "a checkpoint id": lambda keep, odd: keep.checkpointer.get_tuple(config("t", odd)),
    "a config": lambda keep, odd: keep.checkpointer.get_tuple(odd),
    "configurable": lambda keep, odd: keep.checkpointer.get_tuple({"configurable": odd}),
    "a filter": lambda keep, odd: list(keep.checkpointer.list(config("none"), filter=odd)),
    "a key of a filter": lambda keep, odd: list(keep.checkpointer.list(config("none"), filter=_dict(odd))),
    "a value of a filter": lambda keep, odd: list(keep.checkpointer.list(config("none"), filter={"a": odd})),
    "before": lambda keep, odd: list(keep.checkpointer.list(config("none"), before=odd)),
    "a task": lambda keep, odd: keep.checkpointer.put_writes(_place(), [("a", 1)], odd),
    "a task path": lambda keep, odd: keep.checkpointer.put_writes(_place(), [("a", 1)], "task", odd),
    "a channel": lambda keep, odd: keep.checkpointer.put_writes(_place(), [(odd, 1)], "task"),
    "writes": lambda keep, odd: keep.checkpointer.put_writes(_place(), odd, "task"),
    "delete_thread": lambda keep, odd: keep.checkpointer.delete_thread(odd),
    "delete_for_runs": lambda keep, odd: keep.checkpointer.delete_for_runs([odd]),
    "copy_thread": lambda keep, odd: keep.checkpointer.copy_thread("no such thread", odd),
    "prune": lambda keep, odd: keep.checkpointer.prune([odd]),
    "a strategy": lambda keep, odd: keep.checkpointer.prune([], strategy=odd),
    "a checkpoint": lambda keep, odd: keep.checkpointer.put(config("new"), odd, {}, {}),
    "metadata": lambda keep, odd: keep.checkpointer.put(config(odd), empty_checkpoint(), odd, {}),
    "a memory's key": lambda keep, odd: keep.store.get(("honest",), odd),
    "a memory's segment": lambda keep, odd: keep.store.get((odd,), "k"),
    "a memory's namespace": lambda keep, odd: keep.store.get(odd, "k"),
    "a memory's value": lambda keep, odd: keep.store.put(("",), "k", odd),
    "a query": lambda keep, odd: keep.store.search(("none",), query=odd),
    "a memory filter": lambda keep, odd: keep.store.search(("none",), filter=odd),
    "an operand": lambda keep, odd: [keep.store.search(("none",), filter={"a": {op: odd}}) for op in ("$eq", "$gt")],
    "a list operand": lambda keep, odd: keep.store.search(("none",), filter={"a": {"$in": odd}}),
    "$and": lambda keep, odd: keep.store.search(("none",), filter={"$and": odd}),
    "cube.load": lambda keep, odd: asyncio.run(keep.cube.load(odd)),
    "a cube run": lambda keep, odd: asyncio.run(keep.cube.claim_run("new", odd)),
    "threads": lambda keep, odd: keep.threads(prefix=odd),
    "threads by metadata": lambda keep, odd: keep.threads(metadata=odd),
    "threads in order": lambda keep, odd: keep.threads(order=odd),
    "threads after": lambda keep, odd: keep.threads(after=odd),
    "thread": lambda keep, odd: keep.thread(odd),
    "erase": lambda keep, odd: keep.erase(thread_id=odd if odd is not None else b""),
}  # fmt: skip
NUMBERS: dict[str, Callable[[threadkeep.Keep, Any], Any]] = {
    "list": lambda keep, n: list(keep.checkpointer.list(config("honest"), limit=n)),
    "search": lambda keep, n: keep.store.search(("honest",), limit=n),
    "search, offset": lambda keep, n: keep.store.search(("honest",), offset=n),
    "search, query": lambda keep, n: keep.store.search(("honest",), query="a", limit=n, offset=n),
    "list_namespaces": lambda keep, n: keep.store.list_namespaces(limit=n),
    "list_namespaces, offset": lambda keep, n: keep.store.list_namespaces(offset=n),
    "list_namespaces, depth": lambda keep, n: keep.store.list_namespaces(max_depth=n),
    "threads": lambda keep, n: keep.threads(limit=n),
    "log": lambda keep, n: keep.log("honest", limit=n),
    "a ttl": lambda keep, n: keep.store.put(("",), "k", {"a": 1}, ttl=n),
}


def _place() -> Any:
    """A checkpoint of a thread that does not exist, whose writes are refused for another reason."""
    return {"configurable": {"thread_id": "new", "checkpoint_ns": "", "checkpoint_id": "c"}}


def _dict(key: Any) -> Any:
    try:
        return {key: 1}
    except TypeError:
        return key


def what_is_honest(keep: threadkeep.Keep) -> Any:
    found = keep.checkpointer.get_tuple(config("honest"))
    return found, asyncio.run(keep.cube.load("honest")), keep.store.get(("honest",), "k")


def test_an_argument_of_any_type_is_taken_or_refused_and_changes_nothing(filled: threadkeep.Keep) -> None:
    before = what_is_honest(filled)
    for name, call in ANYTHING.items():
        for odd in WRONG_TYPES:
            found = refused_or_answered(lambda call=call, odd=odd: call(filled, odd))  # type: ignore[misc]
            assert "fine" not in repr(found), (name, odd)
    assert what_is_honest(filled) == before
    assert {info.id for info in filled.threads(limit=100)} <= {"honest", "new", "-1"}
    assert filled.verify().ok


@pytest.mark.parametrize("name", NUMBERS)
def test_a_limit_is_a_natural_number_or_refused(filled: threadkeep.Keep, name: str) -> None:
    for number in WRONG_NUMBERS:
        found = refused_or_answered(lambda number=number: NUMBERS[name](filled, number))  # type: ignore[misc]
        if isinstance(number, (str, list, bytes)) or (isinstance(number, (int, float)) and number < 0):
            assert isinstance(found, (ValueError, TypeError)), number
    assert filled.store.get(("honest",), "k") is not None


@pytest.mark.parametrize("as_dict", [False, True], ids=["lists", "dicts"])
@pytest.mark.parametrize("depth", [600, 1100, 20_000])
def test_a_value_that_is_nested_deeply_is_stored_or_refused(
    filled: threadkeep.Keep, depth: int, *, as_dict: bool
) -> None:
    value = nested(depth, as_dict=as_dict)
    saver = filled.checkpointer
    at = next(saver.list(config("honest"))).config
    checkpoint = empty_checkpoint() | {"channel_values": {"a": value}, "channel_versions": {"a": 1}}
    for call in (
        lambda: saver.put(config("deep"), checkpoint, {}, {"a": 1}),
        lambda: saver.put_writes(at, [("w", value)], "deep"),
        lambda: saver.put(config("deep"), empty_checkpoint(), {"x": value}, {}),
        lambda: list(saver.list(None, filter={"x": value})),
        lambda: filled.threads(metadata={"x": value}),
        lambda: filled.store.put(("deep",), "k", {"v": value}),
        lambda: filled.store.search(("honest",), filter={"a": value}),
        lambda: filled.store.search(("honest",), filter={"a": {"$in": [value]}}),
        lambda: asyncio.run(filled.cube.save_extra("deep", {"v": value})),
    ):
        found = refused_or_answered(call)
        assert depth < 1100 or isinstance(found, (ValueError, TypeError)) or found == []
    if depth >= 1100:
        assert filled.thread("deep") is None
        assert filled.store.get(("deep",), "k") is None
        assert len(next(saver.list(config("honest"))).pending_writes or ()) == 1
    assert filled.verify().ok


@pytest.mark.parametrize("operator", ["$and", "$or", "$not"])
@pytest.mark.parametrize("depth", [50, 2000, 50_000])
def test_a_filter_that_is_nested_deeply_is_answered_or_refused(
    filled: threadkeep.Keep, depth: int, operator: str
) -> None:
    found = refused_or_answered(lambda: filled.store.search(("honest",), filter=nested_filter(depth, operator)))
    assert isinstance(found, ValueError if depth > 50 else (list, ValueError))


def test_sizes_beyond_reason_are_stored_or_refused(filled: threadkeep.Keep) -> None:
    long, saver = "x" * 300_000, filled.checkpointer
    for call in (
        lambda: saver.put(config(long), empty_checkpoint(), {}, {}),
        lambda: saver.put(config("t", ns=long), empty_checkpoint(), {}, {}),
        lambda: saver.put(config("t"), empty_checkpoint() | {"id": long}, {}, {}),
        lambda: saver.put(config("t"), empty_checkpoint(), {long: long, "run_id": long}, {}),
        lambda: saver.put_writes(_place(), [(long, 1)], long, long),
        lambda: filled.store.put((long,), long, {long: long}),
        lambda: filled.store.put(tuple("n" * 2000), "k", {"a": 1}),
        lambda: filled.store.search(("honest",), query="word " * 50_000),
        lambda: filled.store.search(("honest",), filter={"a": {"$in": list(range(50_000))}}),
        lambda: filled.store.search(("honest",), filter={".".join("a" * 5000): 1}),
        lambda: filled.store.put(("big",), "k", {"a": 10**5000}),
        lambda: filled.store.search(("honest",), filter={"a": {"$gt": 10**400}}),
        lambda: list(saver.list(None, filter={f"k{n}": n for n in range(5000)})),
        lambda: asyncio.run(filled.cube.save_extra(long, {long: 1})),
    ):
        refused_or_answered(call)
    assert filled.verify().ok
    assert filled.thread("honest", kind="graph") is not None


# --- messages and logs


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[BaseException], str]:
    """Return all that a user, or who reads the logs, sees of an error: its own text and that of its causes."""
    caplog.set_level(logging.DEBUG, logger="threadkeep")

    def text(error: BaseException | None) -> str:
        shown = []
        while error is not None:
            shown.append(f"{error!r} {error}")
            error = error.__cause__
        return "\n".join([*shown, caplog.text])

    return text


def test_a_refused_value_is_not_printed(keep: threadkeep.Keep, messages: Callable[[BaseException], str]) -> None:
    class Mine:
        def __repr__(self) -> str:
            return SECRET

    saver, at = keep.checkpointer, _place()
    checkpoint = empty_checkpoint() | {"channel_values": {"a": Mine()}, "channel_versions": {"a": 1}}
    for call in (
        lambda: saver.put(config("t"), checkpoint, {}, {"a": 1}),
        lambda: saver.put(config("t"), empty_checkpoint(), {"a": Mine()}, {}),  # type: ignore[typeddict-unknown-key]
        lambda: saver.put_writes(at, [("a", Mine())], "task"),
        lambda: list(saver.list(None, filter=[SECRET])),  # type: ignore[arg-type]
        lambda: keep.threads(metadata=[SECRET]),
        lambda: keep.store.put(("n",), "k", {"a": Mine()}),
        lambda: keep.store.search(("n",), filter={"a": {"$in": SECRET}}),
        lambda: keep.store.search(("n",), filter={"a": {"$exists": SECRET}}),
        lambda: keep.store.search(("n",), filter={"$and": SECRET}),
        lambda: asyncio.run(keep.cube.save_extra("t", {"a": Mine()})),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert SECRET not in messages(caught.value)


def test_a_value_that_cannot_be_read_is_not_printed(
    keep: threadkeep.Keep, messages: Callable[[BaseException], str]
) -> None:
    secret = SECRET.encode()
    for data in (
        Forged("msgpack", b"\xc1" + secret),
        Forged("msgpack", b"\xdb\xff\xff\xff\xff" + secret),
        Forged("msgpack", bytes([0xA1 + len(secret)]) + secret + b"\xff"),
        Forged("json", b'{"a": "' + secret),
        Forged("json", b'"' + secret + b'\xff"'),
    ):
        at = store_forged(keep.checkpointer, data)
        with pytest.raises(Corrupt) as caught:
            keep.checkpointer.get_tuple(at)
        assert SECRET not in f"{caught.value!r} {caught.value}"
        list(keep.checkpointer.list(config("t")))
        keep.show("t")
        assert SECRET not in "\n".join(problem.message for problem in keep.verify().problems)
        keep.checkpointer.delete_thread("t")
    message = {"lc": 2, "type": "constructor", "id": ["uuid", "UUID"], "kwargs": {"hex": SECRET}}
    keep.checkpointer.serde.loads_typed(("json", repr(message).replace("'", '"').encode()))
    assert SECRET not in messages(ValueError())


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{SECRET}@127.0.0.1:1/db",
        f"postgresql://127.0.0.1:1/db?user=u&password={SECRET}",
        f"valkey://user:{SECRET}@127.0.0.1:1",
        f"postgresql://user:{SECRET}@[bad/db",
        f"valkey://user:{SECRET}@host:notaport",
        f"mysql://user:{SECRET}@host/db",
        f"postgresql://user:{SECRET}@host/db?no_such_option=1",
        f"valkey://user:{SECRET}@host?no_such_option=1",
    ],
    ids=lambda url: url.replace(SECRET, "***"),
)
def test_a_password_of_a_url_is_not_printed(
    url: str, messages: Callable[[BaseException], str], capsys: pytest.CaptureFixture[str]
) -> None:
    def use() -> None:
        with threadkeep.open(url, timeout=0.3) as keep:
            assert SECRET not in repr(keep)
            keep.threads()

    with pytest.raises((Unavailable, ValueError)) as caught:
        use()
    assert SECRET not in messages(caught.value)
    with threadkeep.open("memory://") as keep, pytest.raises((Unavailable, ValueError)) as caught:
        keep.import_from(url)
    assert SECRET not in messages(caught.value)
    assert run(["threads", "--url", url]) != 0
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err


# --- statements are constants


_STATEMENT = re.compile(
    r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|ALTER|ATTACH|WHERE|VACUUM|SET|DROP|redis\.call)\b"
)
INSERTED = {
    "backends/postgres/commits.py": {"_THREAD_PARTS[part]"},
    "transfer/sources/cubeloop_postgres.py": {"', '.join(names)", "run", "_PAGE", "where"},
    "transfer/sources/cubeloop_sqlite.py": {"run", "_PAGE", "name", "parent", "where"},
    "transfer/sources/langgraph_mysql.py": {
        "_NS",
        "_PAGE",
        "_THREAD",
        "columns",
        "data",
        "namespaces.column",
        "table",
        "query",
        "self._data('checkpoint_writes')",
        "self._id",
        "self._parent",
        "self._path",
        "self._version",
        "where",
    },
    "transfer/sources/langgraph_postgres.py": {
        "columns",
        "self._id",
        "self._parent",
        "self._version",
        "self._path",
        "where",
        "table",
        "_PAGE",
        "_SAMPLES",
    },
    "transfer/sources/langgraph_sqlite.py": {"self._path", "_PAGE", "where"},
    "transports/postgres_health.py": {"table"},
    "transports/sqlite.py": {"_SYNCHRONOUS[self._durability]", "_CACHE_KB", "_PAGES_PER_SHRINK", "name"},
    "transports/sqlite_health.py": {"name", "_MAX_PROBLEMS"},
}
"""All that is put into the text of statements: names of columns and tables, and numbers, that are constants of ours.

If this test fails, bind what you inserted as a parameter. Add it here only if no caller and no row can choose it.
"""


def test_no_statement_is_built_from_input() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        if "conformance" in path.parts or "cli" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                fixed = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
                inserted = {ast.unparse(part.value) for part in node.values if isinstance(part, ast.FormattedValue)}
                if _STATEMENT.search(fixed) and inserted:
                    found.setdefault(path.relative_to(SOURCES).as_posix(), set()).update(inserted)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
                assert not (isinstance(node.func.value, ast.Constant) and _STATEMENT.search(str(node.func.value.value)))
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
                assert not _STATEMENT.search(str(node.left.value)), path
    assert found == INSERTED


def test_no_script_of_valkey_is_built_from_input() -> None:
    """A script gets keys and arguments only; none loads or formats code."""
    scripts = sorted((SOURCES / "backends/valkey/lua").glob("*.lua"))
    assert scripts
    for path in scripts:
        assert not re.search(
            r"\bload(string)?\s*\(|\bdofile\b|\bredis\.(p?)call\s*\(\s*(?!['\"a-z_])", path.read_text()
        ), path


def test_the_result_of_a_hostile_call_is_not_written_to_a_file(filled: threadkeep.Keep) -> None:
    """An export of a Keep that saw all of the above holds only what was stored."""
    for name, call in ANYTHING.items():
        if name not in ("metadata", "a memory's value"):
            refused_or_answered(lambda call=call: call(filled, b"\xff" + SECRET.encode()))  # type: ignore[misc]
    file = io.BytesIO()
    filled.export(file)
    assert SECRET.encode() not in file.getvalue()
