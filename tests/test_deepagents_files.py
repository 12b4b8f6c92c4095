"""The files of deep agents on a Keep: they agree with deepagents' own StoreBackend, read less, and lose no edit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import StoreBackend
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

import processes
import threadkeep
from encrypted_keeps import KEYS
from hypothesis_profiles import examples
from sync_async import Caller
from test_store_langgraph import Actor
from threadkeep.adapters.deepagents_files import KeepFiles
from threadkeep.engine.memories.requests import GetMemories, GetMemoriesByNumber, ListMemories

BINARY = bytes(range(256))
TEXTS = {
    "/readme.md": "# Title\nblue moon over the (wide) sea\n",
    "/src/app/main.py": "import os\n\ndef main(args):\n    return os.getcwd()\n",
    "/src/app/util.py": "def helper(x):\n    return x\n",
    "/src/.hidden/conf.yml": "key: (wide) value\n",
    "/src/a.b/c*d/e%2E.txt": "odd names\r\nsecond line",
    "/src.txt": "not in src\n",
    "/empty.txt": "",
    "/lang/grüße 🦜.txt": "Grüße (WIDE) 🦜\n",
}


@pytest.fixture
def keep(url: str) -> Iterator[threadkeep.Keep]:
    with threadkeep.open(url) as opened:
        yield opened


@pytest.fixture
def files(keep: threadkeep.Keep) -> KeepFiles:
    return keep.files


def other() -> StoreBackend:
    """Return deepagents' own backend."""
    return StoreBackend(store=InMemoryStore(), namespace=lambda _: ("filesystem",))


def fill(backend: Any) -> None:
    for path, text in TEXTS.items():
        assert backend.write(path, text).error is None
    assert backend.upload_files([("/images/x.png", BINARY)])[0].error is None


def plain(result: Any) -> Any:
    """Return a result without times, and with its entries in order."""
    found = dict(vars(result))
    for name in ("entries", "matches"):
        if found.get(name):
            kept = [{key: value for key, value in each.items() if key != "modified_at"} for each in found[name]]
            found[name] = sorted(kept, key=lambda each: (each["path"], each.get("line", 0)))
    if found.get("file_data"):
        found["file_data"] = {key: found["file_data"][key] for key in ("content", "encoding")}
    return found


READS: list[tuple[Any, ...]] = [
    *[("ls", path) for path in ("/", "/src", "/src/", "/src/app", "/src/a.b", "/readme.md", "/none", "/src/a.b/c*d")],
    *[("glob", *each) for each in (("*.py",), ("**/*.py",), ("/*.md",), ("src/**/*.py", "/"), ("*.py", "/src/app"))],
    *[("glob", *each) for each in (("*",), ("*.yml",), ("**/*.yml",), ("main.py", "/src/app/main.py"), ("../x",))],
    *[("grep", *each) for each in (("wide",), ("(wide)",), ("def ", "/src"), ("x", None, "*.py"), ("moon", "/readme.md"))],
    *[("grep", *each) for each in (("nothing",), ("e", "/src/app"), ("\r",), ("second line", "/src/a.b"), ("ß",))],
    *[("read", path) for path in (*TEXTS, "/none", "/src", "/images/x.png")],
    ("read", "/src/app/main.py", 1, 2), ("read", "/src/app/main.py", 99), ("read", "/readme.md", -1, 0),
]  # fmt: skip


async def test_reads_agree_with_the_store_backend(keep: threadkeep.Keep, call: Caller) -> None:
    expected = other()
    fill(expected)
    await asyncio.to_thread(fill, keep.files)
    for verb, *arguments in READS:
        found = await call(keep.files, verb, *arguments)
        assert plain(found) == plain(getattr(expected, verb)(*arguments)), (verb, arguments)
    paths = [*TEXTS, "/images/x.png", "/none", "/src"]
    found = await call(keep.files, "download_files", paths)
    assert found == expected.download_files(paths)
    assert found[len(TEXTS)].content == BINARY


CHANGES: list[tuple[Any, ...]] = [
    ("edit", "/readme.md", "moon", "sun"),
    ("edit", "/readme.md", "nothing", "sun"),
    ("edit", "/readme.md", "e", "E"),
    ("edit", "/readme.md", "e", "E", True),
    ("edit", "/none", "a", "b"),
    ("edit", "/images/x.png", "a", "b"),
    ("edit", "/empty.txt", "", "b"),
    ("write", "/src/app/main.py", "new\n"),
    ("write", "/images/x.png", "text now"),
    ("delete", "/src/app"),
    ("delete", "/src.txt"),
    ("delete", "/none"),
    ("delete", "/src/"),
    ("write", "/src/again.py", "x"),
]


async def test_changes_agree_with_the_store_backend(keep: threadkeep.Keep, call: Caller) -> None:
    expected = other()
    fill(expected)
    await asyncio.to_thread(fill, keep.files)
    for verb, *arguments in CHANGES:
        found = await call(keep.files, verb, *arguments)
        assert plain(found) == plain(getattr(expected, verb)(*arguments)), (verb, arguments)
        assert plain(await call(keep.files, "glob", "*")) == plain(expected.glob("*")), (verb, arguments)
    uploaded = await call(keep.files, "upload_files", [("/a.txt", "é".encode()), ("/b.bin", BINARY)])
    assert uploaded == expected.upload_files([("/a.txt", "é".encode()), ("/b.bin", BINARY)])
    for path in ("/readme.md", "/src/again.py", "/a.txt", "/b.bin", "/images/x.png"):
        assert plain(await call(keep.files, "read", path)) == plain(expected.read(path))


names = st.sampled_from(["a", "b.txt", ".c", "%2E", "*", "d e"])
paths = st.lists(names, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
texts = st.sampled_from(["", "a (b) c", "b b\nb", "c\r\nd", "a" * 50])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), paths, texts),
        st.tuples(st.just("edit"), paths, st.sampled_from("abc"), st.sampled_from(["x", "(y)"]), st.booleans()),
        st.tuples(st.just("delete"), paths),
        st.tuples(st.just("ls"), paths),
        st.tuples(st.just("glob"), st.sampled_from(["*", "*.txt", "a/*", "**/b.txt"]), st.none() | paths),
        st.tuples(st.just("grep"), st.sampled_from(["b", "(b)", " (b) "]), st.none() | paths),
    ),
    max_size=12,
)


@settings(max_examples=examples(30), deadline=None)
@given(steps)
def test_any_sequence_of_calls_agrees_with_the_store_backend(steps: list[tuple[Any, ...]]) -> None:
    expected = other()
    with threadkeep.open("memory://") as keep:
        for verb, *arguments in steps:
            assert plain(getattr(keep.files, verb)(*arguments)) == plain(getattr(expected, verb)(*arguments))


def test_times_of_creation_stay_and_times_of_changes_move(files: KeepFiles) -> None:
    files.write("/a.txt", "one")
    first = files.read("/a.txt").file_data
    files.edit("/a.txt", "one", "two")
    files.write("/a.txt", "three")
    then = files.read("/a.txt").file_data
    assert first is not None
    assert then is not None
    assert first["created_at"] == first["modified_at"] == then["created_at"]
    assert then["modified_at"] > first["modified_at"]
    assert files.glob("*").matches == [
        {"path": "/a.txt", "is_dir": False, "size": 5, "modified_at": then["modified_at"]}
    ]


@pytest.mark.parametrize("path", ["a.txt", "", "/", "/a//b", "/a/", "/a/../b", "/./a"])
def test_a_path_that_is_not_absolute_and_plain_is_refused(path: str) -> None:
    with threadkeep.open("memory://") as keep:
        assert "no absolute path" in str(keep.files.write(path, "x").error)
        assert keep.files.upload_files([(path, b"x")])[0].error == "invalid_path"
        assert "not found" in str(keep.files.read(path).error)
        assert "not found" in str(keep.files.edit(path, "x", "y").error)
        assert keep.files.download_files([path])[0].error == "file_not_found"
        assert keep.store.search(()) == []


# --- where the files are


def test_each_namespace_has_files_of_its_own(keep: threadkeep.Keep) -> None:
    users = {"name": "kim"}
    kim, both = KeepFiles(keep.store, ("users", "kim")), KeepFiles(keep.store, lambda _: ("users", users["name"]))
    kim.write("/a.txt", "of kim")
    users["name"] = "lee"
    both.write("/a.txt", "of lee")
    assert [match["text"] for match in both.grep("of").matches or ()] == ["of lee"]
    assert [match["text"] for match in kim.grep("of").matches or ()] == ["of kim"]
    assert (keep.files.ls("/").entries, keep.tenant("t").files.ls("/").entries) == ([], [])
    both.delete("/")
    assert kim.read("/a.txt").error is None


@pytest.mark.parametrize(("namespace", "error"), [("text", TypeError), ((1,), TypeError), ((), ValueError),
                                                  (("a.b",), ValueError), (("langgraph",), ValueError)])  # fmt: skip
def test_a_wrong_namespace_is_refused(namespace: Any, error: type[Exception]) -> None:
    with threadkeep.open("memory://") as keep:
        with pytest.raises(error):
            KeepFiles(keep.store, namespace)
        with pytest.raises(error):
            KeepFiles(keep.store, lambda _: namespace).ls("/")


@pytest.mark.parametrize("options", [{}, {"hide_ids": True}])
def test_files_of_an_encrypted_keep_are_found(fresh_url: Callable[[], str], options: Any) -> None:
    with threadkeep.open(fresh_url(), keys=KEYS, **options) as keep:
        expected = other()
        for backend in (keep.files, expected):
            fill(backend)
            for n in range(60):
                backend.write(f"/many/{n}.txt", f"number {n} of (sixty) lines" if n % 20 == 0 else f"number {n}")
        for arguments in (("ls", "/"), ("glob", "1*.txt"), ("grep", "of (sixty) l"), ("grep", "(sixty)", "/many")):
            verb, *rest = arguments
            assert plain(getattr(keep.files, verb)(*rest)) == plain(getattr(expected, verb)(*rest))


# --- what is read


def recorded(keep: threadkeep.Keep, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets every request for memories and its reply."""
    found: list[Any] = []
    read = keep._session.transport.read

    def record(request: Any) -> Any:
        reply = read(request)
        if isinstance(request, (GetMemories, GetMemoriesByNumber, ListMemories)):
            rows = reply.values() if isinstance(reply, dict) else reply
            found.extend(row for row in rows if row is not None)
        return reply

    monkeypatch.setattr(keep._session.transport, "read", record)
    return found


def test_listings_read_no_contents_and_no_other_directories(keep: threadkeep.Keep, monkeypatch: Any) -> None:
    for n in range(30):
        keep.files.write(f"/src/d{n % 3}/{n}.py", f"file {n}")
    keep.files.write("/top.py", "top")
    read = recorded(keep, monkeypatch)
    assert [entry["path"] for entry in keep.files.ls("/src").entries or ()] == [f"/src/d{n}/" for n in range(3)]
    assert read == []
    assert len(keep.files.ls("/src/d1").entries or ()) == 10
    assert len(read) == 10
    assert len(keep.files.glob("*.py").matches or ()) == 31
    assert not any("content" in row.value.replace("contents", "") for row in read)


def test_grep_reads_only_files_that_have_the_words(keep: threadkeep.Keep, monkeypatch: Any) -> None:
    for n in range(120):
        keep.files.write(f"/{n}.py", f"def f{n}(x):\n    return thread_{n}" if n != 7 else "return the (Needle) now")
    long = " ".join(f"word{n}" for n in range(20_000)) + " the (Needle) of a long file"
    keep.files.write("/long.txt", long)
    read = recorded(keep, monkeypatch)
    found = keep.files.grep("the (Needle) ")
    assert sorted(match["path"] for match in found.matches or ()) == ["/7.py", "/long.txt"]
    assert {row.key for row in read if '"content"' in row.value} == {"7.py", "long.txt"}
    assert [match["path"] for match in keep.files.grep("hread_119").matches or ()] == ["/119.py"]
    assert len(keep.files.grep("def f").matches or ()) == 119
    some = keep.files.grep("def f", max_count=3)
    assert (len(some.matches or ()), some.truncated) == (3, True)


def test_grep_finds_a_word_that_is_longer_than_those_of_the_index(keep: threadkeep.Keep) -> None:
    for n in range(60):
        keep.files.write(f"/{n}.txt", f'"{n:0200}"')
    assert [match["path"] for match in keep.files.grep(f'"{7:0200}"').matches or ()] == ["/7.txt"]


@pytest.mark.parametrize("index", [{"search": "off"}, {"search": "text", "fields": ["other"]}])
def test_grep_reads_all_selected_files_without_an_index_of_their_words(index: Any) -> None:
    with threadkeep.open("memory://", index=index) as keep:
        for n in range(60):
            keep.files.write(f"/{n}.txt", f"the (needle) {n}")
        assert len(keep.files.grep("the (needle) 1").matches or ()) == 11


# --- edits at the same time

EDIT = """
import sys
import threadkeep
url, name = sys.argv[1:]
with threadkeep.open(url) as keep:
    keep.files.read("/list.txt")
    wait_for_others()
    for n in range(12):
        assert keep.files.edit("/list.txt", "end", f"{name} {n}\\nend").error is None
"""


def test_edits_of_several_processes_lose_nothing(lasting_url: str) -> None:
    with threadkeep.open(lasting_url) as keep:
        keep.files.write("/list.txt", "end")
        processes.run_concurrently(EDIT, [(lasting_url, name) for name in "abc"])
        data = keep.files.read("/list.txt").file_data
        assert data is not None
        assert sorted(data["content"].split("\n")) == sorted(["end", *(f"{p} {n}" for p in "abc" for n in range(12))])


def test_edits_of_several_threads_lose_nothing(files: KeepFiles) -> None:
    files.write("/list.txt", "end")

    def edit(name: str) -> None:
        for n in range(8):
            assert files.edit("/list.txt", "end", f"{name} {n}\nend").error is None

    threads = [threading.Thread(target=edit, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = files.read("/list.txt").file_data
    assert data is not None
    assert sorted(data["content"].split("\n")) == sorted(["end", *(f"{t} {n}" for t in "abcd" for n in range(8))])


async def test_edits_of_several_tasks_lose_nothing(url: str) -> None:
    async with threadkeep.open(url) as keep:
        await keep.files.awrite("/list.txt", "end")
        await asyncio.gather(*(keep.files.aedit("/list.txt", "end", f"{n}\nend") for n in range(20)))
        data = (await keep.files.aread("/list.txt")).file_data
        assert data is not None
        assert sorted(data["content"].split("\n")) == sorted(["end", *map(str, range(20))])


# --- in an agent


def test_a_deep_agent_uses_the_files_across_threads(keep: threadkeep.Keep) -> None:
    def call_of(name: str, **args: Any) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}])

    def run(thread: str, *calls: AIMessage) -> list[str]:
        model = Actor(lines=[*calls, AIMessage("done")])
        agent = create_deep_agent(model=model, backend=keep.files, checkpointer=InMemorySaver())
        state = agent.invoke({"messages": [("user", "go")]}, {"configurable": {"thread_id": thread}})
        return [str(message.content) for message in state["messages"] if message.type == "tool"]

    run("one", call_of("write_file", file_path="/notes/plan.md", content="first (draft) of it"))
    edited, listed, found = run(
        "two",
        call_of("edit_file", file_path="/notes/plan.md", old_string="first", new_string="second"),
        call_of("ls", path="/notes"),
        call_of("grep", pattern="second"),
    )
    assert "plan.md" in edited
    assert "/notes/plan.md" in listed
    assert "/notes/plan.md" in found
    data = keep.files.read("/notes/plan.md").file_data
    assert data is not None
    assert data["content"] == "second (draft) of it"
