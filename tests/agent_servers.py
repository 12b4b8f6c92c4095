"""Starts LangGraph's Agent Server as a developer does, with `langgraph dev`, on a port of loopback.

It needs no network, no API key and no licence: without an API key the server sends nothing to anybody, and variables
turn off tracing, its check for a newer version and the analytics of its command line.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

import fork_server

APP = Path(__file__).with_name("served_graphs.py")
SECONDS = 90
"""After so many seconds without an answer, a server counts as broken."""
_OFFLINE = {
    "LANGSMITH_TRACING": "false",
    "LANGGRAPH_NO_VERSION_CHECK": "true",
    "LANGGRAPH_CLI_NO_ANALYTICS": "1",
}
_DEATH_SIGNAL = 1
_COLOR = re.compile(r"\x1b\[\d+m")


class Server:
    """A folder with a langgraph.json, and the server that runs there. `start` and `kill` may be called repeatedly."""

    def __init__(self, folder: Path, config: dict[str, Any], **environment: str) -> None:
        self.folder, self._environment = folder, environment
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], **config}), "utf-8")
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self, *, jobs: int = 4) -> None:
        """Start with a new log, and wait until it answers."""
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        given = {name: value for name, value in os.environ.items() if not name.startswith(("LANGSMITH_", "LANGCHAIN_"))}
        paths = os.pathsep.join(fork_server.paths())
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload",
                 "--host", "127.0.0.1", "--port", str(port), "--n-jobs-per-worker", str(jobs)],
                cwd=self.folder, env={**given, **_OFFLINE, "PYTHONPATH": paths, **self._environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=_end_with_parent,
            )  # fmt: skip
        deadline = time.monotonic() + SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"langgraph dev does not start:\n{self.text()[-4000:]}")
            time.sleep(0.1)

    def client(self, user: str = "user-1") -> SyncLangGraphClient:
        """Return a client that says who it is."""
        return get_sync_client(url=self.url, api_key=None, headers={"Authorization": user}, timeout=SECONDS)

    def stop(self) -> int:
        """Stop it as Ctrl-C does, and return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(SECONDS)

    def kill(self) -> None:
        """Kill it and whatever it has started, if it is running."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def text(self) -> str:
        """Return what it has logged, without colors."""
        return _COLOR.sub("", self.log.read_text("utf-8", "replace"))

    def complaints(self) -> list[str]:
        """Return its log lines about errors."""
        return [line for line in self.text().splitlines() if "[error" in line or "Error" in line]

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/ok", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def config(store: dict[str, Any] | None = None, checkpointer: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the contents of a langgraph.json with the graphs and the auth handler of `served_graphs.py`."""
    return {
        "graphs": {"steps": f"{APP}:steps"},
        "auth": {"path": f"{APP}:auth"},
        "checkpointer": {"path": "threadkeep.agent_server.checkpointer", **(checkpointer or {})},
        "store": {"path": "threadkeep.agent_server.store", **(store or {})},
    }


def _end_with_parent() -> None:
    """Let the kernel kill the server if this process is killed, so that none is left behind."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
