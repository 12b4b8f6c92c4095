"""No plain text is left in files: a byte scan of what databases store finds no word of encrypted state or memories.

All that is stored contains words that occur nowhere else. The same scan of a storage without keys finds every one.
"""

from __future__ import annotations

import asyncio
import operator
import random
import re
import string
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict
from urllib.parse import parse_qs, urlsplit

import apsw
import psycopg
import pytest
from cubeloop.hitl.types import ConfirmRequest, HitlRequest
from cubeloop.providers.base import TextContent, UserMessage
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import postgres_servers
import threadkeep
import valkey_servers
from checkpoint_trees import put

KEYS = threadkeep.Keys({"k1": b"\x01" * 32}, primary="k1")
IDS = {"thread", "namespace", "key", "path", "cubethread"}
"""What contains words only if ids are hidden."""
KINDS = {
    "message", "reply", "channel", "node", "subnode", "metakey", "metavalue", "run", "tag", "interrupt", "resume",
    "error", "writtenchannel", "written", "large", "overwritten", "pruned", "deletedthread",
    "cachednode", "cachekey", "file", "title", "label", "branch",
    "value", "valuekey", "overwrittenmemory", "deletedmemory", "largememory",
    "cubemessage", "cuberun", "cubemetadata", "question", "answer", "extra",
}  # fmt: skip
"""What contains words in any case."""


class Words:
    """Makes words that occur nowhere else, and finds out which ones are in stored bytes."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)  # noqa: S311 - not a secret
        self._draw = draw
        self._start = "".join(draw.choices(string.ascii_lowercase, k=9))
        self._end = self._start[::-1]
        self._made: set[str] = set()
        self._vector = [draw.randrange(1000, 1 << 17) + 0.5 for _ in range(4)]
        self.index: Any = {"dims": 4, "embed": lambda texts: [self._vector for _ in texts], "search": "hybrid"}

    def __call__(self, kind: str) -> str:
        """Return the word of a kind. It ends with a letter that JSON may escape."""
        self._made.add(kind)
        return f"{self._start}{kind}{self._end}ö"

    @property
    def made(self) -> set[str]:
        """The kinds of words that were made, and `vector`."""
        return {*self._made, "vector"}

    def filler(self, size: int) -> str:
        """Return text that cannot be compressed much."""
        return "".join(self._draw.choices(string.ascii_letters + string.digits, k=size))

    def found(self, pieces: Iterable[bytes]) -> set[str]:
        """Return the kinds of words in bytes; part of a word is enough."""
        found: set[str] = set()
        for data in pieces:
            for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
                found.update(self._found_in(data, encoding))
            one, other = self._vector[:2]
            numbers = f"{one},{other}".encode(), struct.pack("<2f", one, other), struct.pack(">2f", one, other)
            found |= {"vector"} if any(each in data for each in numbers) else set()
        return found

    def _found_in(self, data: bytes, encoding: str) -> Iterator[str]:
        for part, is_end in ((self._start, False), (self._end, True)):
            pattern = part.encode(encoding)
            at = data.find(pattern)
            while at >= 0:
                around = data[max(0, at - 60) : at] if is_end else data[at + len(pattern) : at + len(pattern) + 60]
                text = around.decode(encoding, "replace")
                fitting = [kind for kind in self._made if (text.endswith(kind) if is_end else text.startswith(kind))]
                yield max(fitting, key=len, default=f"part of a word: {text!r}")
                at = data.find(pattern, at + 1)


# --- the content


def fill(keep: threadkeep.Keep, words: Words, *, hides_ids: bool = True) -> None:
    """Store words in all that can be stored. Overwrite, delete and prune some of it."""
    id_of: Callable[[str], str] = words if hides_ids else (lambda kind: kind)
    saver = keep.checkpointer
    config: Any = {"configurable": {"thread_id": id_of("thread")}, "metadata": {words("metakey"): words("metavalue")}}
    graph = _graph(words)(saver)
    graph.invoke({words("channel"): [HumanMessage(words("message"))]}, config)
    graph.invoke(Command(resume=words("resume")), config)
    keep.tag(id_of("thread"), "latest", words("tag"))
    keep.name_branch(id_of("thread"), "latest", words("branch"))
    keep.describe(id_of("thread"), title=words("title"), labels=[words("label")])
    with pytest.raises(ValueError, match=words("error")):
        graph.invoke({words("channel"): [HumanMessage("fail")]}, config)

    for n, kind in enumerate(("pruned", "overwritten", "large")):
        value = {"text": words(kind), "more": words.filler(300_000 if kind == "large" else 20)}
        at = put(saver, {"a": value}, thread="by hand", id=f"c{n}", run_id=words("run"))
    saver.put_writes(at, [(words("writtenchannel"), words("written"))], "task", "~__pregel_pull, reply")
    saver.prune(["by hand"])
    put(saver, {"a": words("deletedthread")}, thread="deleted")
    saver.delete_thread("deleted")

    where = (id_of("namespace"), "u1")
    keep.store.put(where, id_of("key"), {"text": words("overwrittenmemory")})
    keep.store.put(where, id_of("key"), {"text": words("value"), words("valuekey"): 1})
    keep.store.put(where, "deleted", {"text": words("deletedmemory")})
    keep.store.delete(where, "deleted")
    keep.store.put(where, "large", {"text": words("largememory"), "more": words.filler(100_000)}, index=["text"])
    keep.cache.set({((words("cachednode"), "b"), words("cachekey")): (1, None)})
    keep.files.write(f"/{id_of('path')}", words("file"))
    asyncio.run(_fill_cube(keep.cube, words, id_of("cubethread")))


def _graph(words: Words) -> Callable[[Any], Any]:
    state: Any = TypedDict("State", {words("channel"): Annotated[list[Any], operator.add]})  # type: ignore[operator]

    def ask(values: Any) -> Any:
        if values[words("channel")][-1].content == "fail":
            raise ValueError(words("error"))
        return {words("channel"): [AIMessage(words("reply") + interrupt(words("interrupt")))]}

    inner = StateGraph(state)
    inner.add_node(words("subnode"), ask)
    inner.add_edge(START, words("subnode"))
    builder = StateGraph(state)
    builder.add_node(words("node"), inner.compile())
    builder.add_edge(START, words("node"))
    return lambda saver: builder.compile(checkpointer=saver)


async def _fill_cube(cube: Any, words: Words, id: str) -> None:
    run = words("cuberun")
    await cube.claim_run(id, run)
    text = TextContent(text=words("cubemessage"))
    await cube.append(id, [UserMessage(content=[text], run_id=run, metadata={words("cubemetadata"): 1})])
    await cube.save_extra(id, {"a": words("extra")})
    await cube.save_hitl_answer(id, "q0", {"answer": words("answer")}, run_id=run)
    ask = HitlRequest(
        question_id="q1",
        thread_id=id,
        payload=ConfirmRequest(prompt=words("question"), details={}),
        created_at=1_700_000_000.5,
        timeout_seconds=None,
    )
    await cube.save_pending_request(id, ask, run_id=run)


# --- what databases store


def files_of(path: Path) -> list[bytes]:
    """Return a SQLite file, its write-ahead log and its shared memory."""
    found = [Path(f"{path}{end}") for end in ("", "-wal", "-shm")]
    return [each.read_bytes() for each in found if each.exists()]


def _sqlite(url: str, keep: threadkeep.Keep) -> Iterator[bytes]:
    path = Path(url.removeprefix("sqlite:///"))
    yield from files_of(path)  # with a write-ahead log, because it is open
    keep.close()
    yield from files_of(path)
    with apsw.Connection(str(path)) as connection:
        yield from _views(lambda sql: connection.execute(sql).fetchall())


def _postgres(server: postgres_servers.Server, url: str, _: threadkeep.Keep) -> Iterator[bytes]:
    schema = parse_qs(urlsplit(url).query)["schema"][0]
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f'SET search_path = "{schema}"')
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema]).fetchall()
        for (table,) in tables:
            with connection.cursor().copy(f"COPY {table} TO STDOUT") as copy:
                yield b"".join(map(bytes, copy))
        yield from _views(lambda sql: connection.execute(sql.encode()).fetchall())
    server.execute("CHECKPOINT")
    for folder in ("base", "pg_wal"):
        for path in (server.data / folder).rglob("*"):
            if path.is_file():
                yield path.read_bytes()
    yield server.log.read_bytes()


def _views(query: Callable[[str], Any]) -> Iterator[bytes]:
    for view in ("threads", "checkpoints", "sizes", "writes", "activity"):
        yield repr(query(f"SELECT * FROM tk_v_{view}")).encode()
    assert query("SELECT * FROM tk_v_sizes")


def _valkey(url: str, _: threadkeep.Keep) -> Iterator[bytes]:
    """Yield all that is stored, and the files of snapshots, which are not compressed."""
    for key, value in valkey_servers.read_all(url).items():
        yield key
        for each in value.items():
            yield from (part for part in each if isinstance(part, bytes))
    for server in valkey_servers.shared().living_primaries():
        server.client.config_set("rdbcompression", "no")
        server.client.save()
        yield from (path.read_bytes() for path in server.folder.rglob("*.rdb"))


Opened = tuple[threadkeep.Keep, Callable[[], Iterator[bytes]]]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres_servers.Server]:
    """Return a PostgreSQL server whose files have nothing else."""
    with postgres_servers.fresh_server() as started:
        yield started


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return a kind of storage that has files."""
    name: str = request.param
    return name


@pytest.fixture
def open_keep(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Opened]]:
    """Return a function that opens an empty Keep. It returns the Keep, and a function for all that is stored.

    Nothing is compressed, so that words are hidden by encryption alone.
    """
    with ExitStack() as closing:

        def open_new(words: Words, **options: Any) -> Opened:
            if kind == "sqlite":
                url, read = f"sqlite:///{tmp_path / 'a.db'}", _sqlite
            elif kind == "postgres":
                started = request.getfixturevalue("server")
                url, read = postgres_servers.fresh_schema(started), partial(_postgres, started)
            else:
                url, read = valkey_servers.shared().url(), _valkey
            keep = threadkeep.open(url, index=words.index, compress=False, **options)
            closing.enter_context(keep)
            return keep, partial(read, url, keep)

        yield open_new


# --- the tests


def test_no_word_of_encrypted_data_is_left_in_files(open_keep: Callable[..., Opened]) -> None:
    words = Words(1)
    keep, stored = open_keep(words, keys=KEYS, hide_ids=True)
    fill(keep, words)
    assert words.made == KINDS | IDS | {"vector"}
    assert keep.store.search((), query=words("value"))[0].value == {"text": words("value"), words("valuekey"): 1}
    assert words.found(stored()) == set()


def test_the_scan_finds_every_word_of_plain_data(kind: str, open_keep: Callable[..., Opened]) -> None:
    words = Words(2)
    keep, stored = open_keep(words)
    fill(keep, words)
    # A database of rows leaves old versions in its files. A snapshot has none.
    gone = (
        {"overwritten", "pruned", "deletedthread", "overwrittenmemory", "deletedmemory"} if kind == "valkey" else set()
    )
    assert words.made - gone - words.found(stored()) == set()  # it may find pieces of others, which pages cut in two


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_with_visible_ids_no_other_word_is_left_in_files(open_keep: Callable[..., Opened]) -> None:
    words = Words(3)
    keep, stored = open_keep(words, keys=KEYS)
    fill(keep, words, hides_ids=False)
    assert words.made == KINDS | {"vector"}
    assert words.found(stored()) == set()


@pytest.mark.parametrize("hide_ids", [False, True])
def test_after_encrypt_no_word_is_left_in_a_file_that_was_plain(tmp_path: Path, *, hide_ids: bool) -> None:
    words, path = Words(4), tmp_path / "a.db"
    with threadkeep.open(f"sqlite:///{path}", index=words.index, compress=False) as keep:
        fill(keep, words, hides_ids=hide_ids)
        assert words.found(files_of(path)) == words.made
    with threadkeep.open(f"sqlite:///{path}", index=words.index, keys=KEYS, hide_ids=hide_ids, compress=False) as keep:
        done = keep.encrypt()
        assert (done.threads, done.memories) == (3, 4)
        assert words.found(files_of(path)) == set()
        assert keep.store.search((), query=words("value"))[0].value == {"text": words("value"), words("valuekey"): 1}
        assert keep.verify().problems == []
    assert words.found(files_of(path)) == set()


def test_after_encrypt_and_compact_no_word_is_left_in_the_statistics_of_postgres(
    server: postgres_servers.Server,
) -> None:
    words, url = Words(5), postgres_servers.fresh_schema(server)
    schema = parse_qs(urlsplit(url).query)["schema"][0]
    with threadkeep.open(url, compress=False) as keep:
        for n in range(20):
            put(keep.checkpointer, {"a": f"{words('value')} {n}"}, thread=f"{words('thread')} {n}", id=f"c{n}")
        keep.compact()
    samples = partial(_samples, server, schema)
    assert words.found(samples()) == {"value", "thread"}
    with threadkeep.open(url, keys=KEYS, hide_ids=True, compress=False) as keep:
        assert any("planner statistics" in each for each in keep.encrypt().remains)
        keep.compact()
    assert words.found(samples()) == set()


def _samples(server: postgres_servers.Server, schema: str) -> Iterator[bytes]:
    """Yield what the planner's statistics contain; samples of bytes are in hexadecimal digits."""
    with psycopg.connect(server.url()) as connection:
        query = "SELECT most_common_vals::text, histogram_bounds::text FROM pg_stats WHERE schemaname = %s"
        for text in chain.from_iterable(connection.execute(query, [schema]).fetchall()):
            yield (text or "").encode()
            yield from (bytes.fromhex(digits) for digits in re.findall(r"\\x((?:[0-9a-f]{2})+)", text or ""))


def test_ids_times_and_names_of_tenants_are_visible_as_the_guide_says(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with threadkeep.open(f"sqlite:///{path}", keys=KEYS, tenant="the-tenant") as keep:
        at = put(keep.checkpointer, {"a": 1}, thread="the-thread", id="the-checkpoint")
        keep.checkpointer.put_writes(at, [("a", 2)], "the-task")
        keep.store.put(("the-namespace",), "the-key", {"a": 1}, ttl=5)
    (stored,) = files_of(path)
    ids = (b"the-tenant", b"the-thread", b"the-checkpoint", b"the-task", b"the-namespace", b"the-key", b"graph", b"k1")
    assert [each for each in ids if each not in stored] == []
