"""The pages on gunicorn and serverless functions are true: their programs run here as real processes, on real storages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import postgres_servers
import processes
import threadkeep
from test_docs import ROOT, SOURCE, blocks, script

THREADS = [f"t{number}" for number in range(8)]
TIMEOUT = 60
MANY = 300


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chat.db"
    return postgres_servers.fresh_schema(postgres_servers.shared())


def environ(url: str) -> dict[str, str]:
    return os.environ | {"THREADKEEP_URL": url, "PYTHONPATH": str(SOURCE)}


@contextmanager
def gunicorn(folder: Path, url: str) -> Iterator[httpx.Client]:
    """Run the program of the page on gunicorn, with the page's settings, on a socket in this folder."""
    app, settings = [block.text for block in blocks(ROOT / "docs/howto/gunicorn.md") if block.language == "python"]
    (folder / "app.py").write_text(app, "utf-8")
    (folder / "gunicorn.conf.py").write_text(settings, "utf-8")
    command = [sys.executable, "-m", "gunicorn", "--bind", "unix:http", "app:app"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, cwd=folder, env=environ(url), stderr=log) as server,
    ):
        try:
            limits = httpx.Limits(max_keepalive_connections=0)  # a killed worker resets connections that it keeps
            transport = httpx.HTTPTransport(uds=str(folder / "http"), limits=limits)
            with httpx.Client(transport=transport, base_url="http://test", timeout=TIMEOUT) as client:
                wait_until_ready(client, folder, server)
                yield client
        finally:
            server.terminate()
    assert server.returncode == 0, (folder / "log").read_text()


def wait_until_ready(client: httpx.Client, folder: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            client.get("/first")
        except httpx.TransportError:
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.02)
        else:
            return


def ask_all(client: httpx.Client) -> tuple[set[str], set[int]]:
    """Send a message to each thread, all at once; return the replies and the workers that answered."""
    with ThreadPoolExecutor(len(THREADS)) as callers:
        answers = [answer.json() for answer in callers.map(lambda name: client.get(f"/{name}?hello"), THREADS)]
    return {answer["reply"] for answer in answers}, {answer["worker"] for answer in answers}


def counted_turns(client: httpx.Client) -> Iterator[set[int]]:
    """Yield the workers that answered a turn of all threads. Each thread must have had all turns before, and no other."""
    for turn in range(MANY):
        replies, workers = ask_all(client)
        assert replies == {f"That was message {2 * turn + 1}."}
        yield workers


def answered_by(turns: Iterator[set[int]], count: int) -> set[int]:
    """Take turns until so many workers have answered, and return them."""
    workers: set[int] = set()
    for answered in turns:
        workers |= answered
        if len(workers) == count:
            return workers
    raise AssertionError(f"only {workers} answered")


def test_workers_of_gunicorn_share_a_keep_that_was_opened_before_the_fork(tmp_path: Path, url: str) -> None:
    with gunicorn(tmp_path, url) as client:
        turns = counted_turns(client)
        killed = min(answered_by(turns, 2))
        os.kill(killed, signal.SIGKILL)
        assert postgres_servers.wait_until(lambda: not Path(f"/proc/{killed}").exists(), TIMEOUT)
        assert killed not in answered_by(turns, 2)
    with threadkeep.open(url) as keep:
        assert {info.id for info in keep.threads()} == {*THREADS, "first"}
        assert keep.verify().problems == []


def test_copies_of_a_function_share_threads_and_need_two_connections_each(monkeypatch: pytest.MonkeyPatch) -> None:
    server = postgres_servers.shared()
    name = f"function_{uuid.uuid4().hex}"
    monkeypatch.setenv("THREADKEEP_URL", server.url(schema=name, application_name=name, max_size="2", prepare="false"))
    function = script(ROOT / "docs/howto/serverless.md") + "\nprint('frozen', flush=True); input()\n"
    copies = [processes.fork(function)]
    assert printed(copies[0]) == [1, 3, 1]
    copies.append(processes.fork(function))
    assert printed(copies[1]) == [5, 7, 3]
    [(connections,)] = server.execute(f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'")
    assert 0 < connections <= 2 * len(copies)
    for copy in copies:
        copy.communicate("go on\n", timeout=TIMEOUT)
        assert copy.returncode == 0


def printed(copy: subprocess.Popen[str]) -> list[int]:
    """Return the numbers of the messages that a copy of the function has replied to, once it has called itself."""
    lines = list(iter(copy.stdout.readline, "frozen\n")) if copy.stdout else []
    return [int(number) for number in re.findall(r"message (\d+)", "".join(lines))]
