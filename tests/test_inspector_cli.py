"""`threadkeep inspect`: the link that it prints works, other savers' databases open, and what it refuses."""

from __future__ import annotations

import asyncio
import builtins
import html
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

import demo_storage
import foreign_savers
import postgres_servers
import threadkeep
from inspectors import HOST, always, page
from screenshots import serving
from threadkeep.cli.app import run
from threadkeep.cli.foreign import is_foreign
from threadkeep.cli.settings import as_url
from threadkeep.inspector import foreign
from threadkeep.inspector.application import inspector
from threadkeep.inspector.foreign import ForeignStorage
from threadkeep.inspector.inspected import Inspected


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_the_command_serves_the_link_that_it_prints_until_it_is_interrupted(tmp_path: Path, options: list[str]) -> None:
    file = tmp_path / "agents.db"
    with threadkeep.open(f"sqlite:///{file}") as keep:
        graph = demo_storage.support().compile(checkpointer=keep.checkpointer)
        graph.invoke({"messages": [("human", "hello")]}, demo_storage.config("t", "u"))
    command = [sys.executable, "-m", "threadkeep", "inspect", str(file), "--no-browser", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        link = re.search(r"read-only.*(http://127\.0\.0\.1:\d+/\?token=[\w-]+)", line)[1]
        assert not options or json.loads(line)["link"] == link
        with httpx.Client(follow_redirects=True) as browser:
            answer = browser.get(link)
        assert (answer.status_code, "token" in str(answer.url)) == (200, False)
        assert ">t</a>" in answer.text
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_the_server_ends_while_an_answer_takes_long(capfd: pytest.CaptureFixture[str]) -> None:
    began = threading.Event()

    async def think(_state: Any) -> Any:
        interrupt("Go on?")
        began.set()
        await asyncio.sleep(60)

    builder: Any = StateGraph(demo_storage.Research)
    builder.add_node("think", think)
    builder.add_edge(START, "think")
    with threadkeep.open("memory://") as keep, httpx.Client(follow_redirects=True, timeout=30) as browser:
        graph = builder.compile(checkpointer=keep.checkpointer)
        asyncio.run(graph.ainvoke({"topic": "x"}, {"configurable": {"thread_id": "t"}}))
        with ThreadPoolExecutor(1) as threads, serving(Inspected(keep, write=True, graph=graph)) as link:
            change = f"{link.partition('?')[0]}change"
            browser.get(link)
            form = browser.get(change, params={"thread": "t", "action": "answer"}).text
            fields = {
                "csrf": re.search(r'name="csrf" value="(\w+)"', form)[1],
                "thread": "t",
                "action": "answer",
                "value": "yes",
            }
            answer = threads.submit(browser.post, change, data=fields)
            assert began.wait(30)
        assert answer.result().status_code == 503
    assert capfd.readouterr().err == ""


async def test_what_a_page_shows_as_code_can_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    url, thread = f"sqlite:///{tmp_path}/agents.db", "-ada's thread"

    def fill() -> threadkeep.Keep:
        keep = threadkeep.open(url, tenant="acme")
        graph = demo_storage.support().compile(checkpointer=keep.checkpointer)
        graph.invoke({"messages": [("human", "hello lamp")]}, demo_storage.config(thread, "7"))
        keep.describe(thread, labels=["a b"])
        return keep

    keep = await asyncio.to_thread(fill)
    shown = await asyncio.to_thread(inspector, Inspected(keep, url=url), authorize=always, allowed_hosts=[HOST])
    everything = {
        "q": "ADA",
        "metadata": 'user="7"',
        "label": "a b",
        "archived": "hide",
        "order": "bytes",
        "kind": "graph",
    }
    one = {"thread": thread}
    for path, query in (
        ("", everything), ("search", {"q": "lamp"}), ("waiting", {}), ("thread", one), ("checkpoint", one), ("flow", one),
        ("diff", {**one, "a": "latest~1"}), ("blame", {**one, "path": "messages"}), ("branches", one), ("usage", one),
        ("sizes", {}), ("health", {**one, "kind": "graph"}),
    ):  # fmt: skip
        text = await page(shown, path, **query)
        snippet = text[text.index("Get this in code") :]
        python, command, *_ = map(html.unescape, re.findall(r"<pre[^>]*><code>([^<]*)", snippet))
        assert await asyncio.to_thread(run, shlex.split(command)[1:]) == 0, command
        printed = capsys.readouterr().out
        assert path or thread in printed
        await asyncio.to_thread(exec, python, {})
        assert capsys.readouterr().out
    await keep.aclose()


async def test_an_export_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with threadkeep.open("memory://") as keep:
        site = await asyncio.to_thread(inspector, Inspected(keep), authorize=always, allowed_hosts=[HOST])
        await page(site, "export", 404, thread="nobody")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--host", "0.0.0.0"], "loopback"),
        (["--host", "example.org"], "loopback"),
        (["--graph", "a:b"], "--graph needs --write"),
        (["--redact", "("], "not a regular expression"),
        (["--write", "--graph", "json:loads"], "not a graph"),
        (["--write", "--graph", "json"], "module:attribute"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], why: str, tmp_path: Path, capsys: Any) -> None:
    threadkeep.open(f"sqlite:///{tmp_path}/a.db").setup()
    assert run(["inspect", f"{tmp_path}/a.db", "--no-browser", *options]) == 2
    assert why in capsys.readouterr().err


def test_a_port_that_is_in_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threadkeep.open(f"sqlite:///{tmp_path}/a.db").setup()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["inspect", f"{tmp_path}/a.db", "--no-browser", "--host", "localhost", "--port", str(port)]) == 2
    assert f"port {port} is in use: choose another one with --port" in capsys.readouterr().err


def test_without_the_extra_the_error_names_the_line_to_install_it(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.startswith(("threadkeep.inspector", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without_uvicorn(name: str, *args: Any) -> Any:
        if name == "uvicorn":
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_uvicorn)
    assert run(["inspect", f"{tmp_path}/a.db", "--no-browser"]) == 2
    assert 'inspect needs uvicorn: pip install "threadkeep[inspect]"' in capsys.readouterr().err


def test_databases_of_other_savers_are_told_from_ours(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(f"{tmp_path}/theirs.db") as saver:
        saver.setup()
    with threadkeep.open(f"sqlite:///{tmp_path}/ours.db") as keep:
        keep.setup()
    assert is_foreign(f"sqlite:///{tmp_path}/theirs.db")
    assert not is_foreign(f"sqlite:///{tmp_path}/ours.db")
    assert not is_foreign(f"sqlite:///{tmp_path}/missing.db")
    assert not is_foreign("memory://")


@pytest.fixture(params=["sqlite", "postgres"])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that an official saver wrote, by path or URL."""
    if request.param == "sqlite":
        path = f"{tmp_path}/theirs.db"
        with SqliteSaver.from_conn_string(path) as saver:
            foreign_savers.fill_saver(saver)
        return path
    return _postgres(postgres_servers.shared())


def _postgres(server: Any) -> str:
    name = f"theirs_{uuid.uuid4().hex}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = re.sub(r"/[^/?]*(\?|$)", rf"/{name}\1", server.url())
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        foreign_savers.fill_saver(saver)
    return url


def opened(source: str) -> tuple[threadkeep.Keep, Any]:
    keep = threadkeep.open("memory://")
    shown = Inspected(keep, url=source, foreign=ForeignStorage(source, keep))
    return keep, inspector(shown, authorize=always, allowed_hosts=[HOST])


async def test_a_database_of_another_saver_is_shown_whole(theirs: str) -> None:
    assert await asyncio.to_thread(is_foreign, as_url(theirs))
    keep, site = await asyncio.to_thread(opened, theirs)
    first = await page(site, "")
    assert "Database of another saver" in first
    assert "Get this in code" not in first, "our verbs would create tables in it"
    assert "Open a thread by its id" not in first, "all are there"
    assert re.findall(r'class="id" href="[^"]*">(\w+)</a>', await page(site, "", order="id")) == [
        "answered",
        "asked",
        "chat",
    ]
    assert "answer 1" in await page(site, "checkpoint", thread="chat")
    assert "question" in await page(site, "waiting")
    await page(site, "thread", 404, thread="nobody")
    await keep.aclose()


async def test_of_a_database_that_is_too_large_only_threads_that_are_opened_are_read(
    theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "MOST_CHECKPOINTS", 3)
    keep, site = await asyncio.to_thread(opened, theirs)
    first = await page(site, "")
    assert "too many to read them all" in first
    assert "Open a thread by its id" in first
    assert await keep.athreads() == []
    assert "answer 1" in await page(site, "checkpoint", thread="chat")
    assert [each.id for each in await keep.athreads()] == ["chat"]
    await keep.aclose()


async def test_a_source_that_cannot_be_read_says_why() -> None:
    keep, site = await asyncio.to_thread(opened, "/nowhere/theirs.db")
    assert "theirs.db" in (text := await page(site, ""))
    assert "No such file" in text
    await keep.aclose()
