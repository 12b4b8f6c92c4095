"""Other processes: Python scripts that are run to their end and must end well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import fork_server

PATIENCE = 120
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
    """The same from the nursery, at once: for scripts that are not about imports, or how an interpreter begins and ends."""
    pipe = subprocess.PIPE
    return fork_server.Forked([script, *map(str, args)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """What it printed. Fails if it hangs, fails, or says anything on stderr."""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children too: they hold its pipes
        out, err = process.communicate()
        raise AssertionError(f"it does not end; it said {out!r} and {err[-4000:]}") from None
    if process.returncode or err:
        raise AssertionError(f"it ended with {process.returncode} and said {out!r} and {err[-4000:]}")
    return out


def run(script: str, *args: Any, flags: tuple[str, ...] = ()) -> str:
    """What the script printed."""
    return finish(start(script, *args, flags=flags))


def run_forked(script: str, *args: Any) -> str:
    """The same from the nursery."""
    return finish(fork(script, *args))


def run_together(script: str, arguments: list[tuple[Any, ...]]) -> list[str]:
    """Run one process for each set of arguments; all have imported everything before any of them goes on.

    The script calls `together()` where it is ready.
    """
    wait = "import sys\ndef together():\n    print('ready', flush=True)\n    sys.stdin.readline()\n"
    running = [fork(wait + script, *each) for each in arguments]
    for process in running:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            finish(process)
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [finish(process) for process in running]
