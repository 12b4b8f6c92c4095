"""Runs Python scripts in other processes, and fails if they fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import fork_server

TIMEOUT = 120
"""Seconds after which a process counts as hanging."""


def start(script: str, *args: Any, flags: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start a script with this interpreter and this import path."""
    return subprocess.Popen(
        [sys.executable, *flags, "-c", script, *map(str, args)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(fork_server.paths())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def fork(script: str, *args: Any) -> subprocess.Popen[str]:
    """Start a script quickly, through the fork server. Not for tests of imports or of interpreter start and exit."""
    pipe = subprocess.PIPE
    return fork_server.Forked([script, *map(str, args)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str], *, timeout: float = TIMEOUT) -> str:
    """Return what a process printed. Fail if it hangs, fails, or writes to stderr."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children too: they hold its pipes
        out, err = process.communicate()
        raise AssertionError(f"the process hangs; stdout {out!r}, stderr {err[-4000:]}") from None
    if process.returncode or err:
        raise AssertionError(f"the process exited with {process.returncode}; stdout {out!r}, stderr {err[-4000:]}")
    return out


def run(script: str, *args: Any, flags: tuple[str, ...] = ()) -> str:
    """Run a script in a new interpreter and return what it printed."""
    return finish(start(script, *args, flags=flags))


def run_forked(script: str, *args: Any) -> str:
    """Run a script through the fork server and return what it printed."""
    return finish(fork(script, *args))


def run_concurrently(script: str, arguments: list[tuple[Any, ...]]) -> list[str]:
    """Run one process for each set of arguments, all starting at the same moment.

    The script calls `wait_for_others()` when it is ready.
    """
    wait = "import sys\ndef wait_for_others():\n    print('ready', flush=True)\n    sys.stdin.readline()\n"
    running = [fork(wait + script, *each) for each in arguments]
    for process in running:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            finish(process)
    for process in running:  # all are ready
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [finish(process) for process in running]
