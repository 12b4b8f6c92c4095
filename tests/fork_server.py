"""A process that has imported everything and forks others, which need not: imports take longer than most of them live.

This file as a script is the nursery; `Forked` starts a process in it. A child has a session of its own, and becomes a
child of the process that asked for it, who can wait for it as for any other. Linux only: orphans go to a subreaper.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_IMPORTED = (
    "apsw", "asyncio", "checkpoint_chains", "cubeloop", "langchain_core.messages", "langgraph.graph", "langgraph.prebuilt",
    "langgraph.store.memory", "multiprocessing", "numpy", "psycopg_pool", "threadkeep.adapters.cubeloop",
    "threadkeep.adapters.langgraph_saver", "threadkeep.adapters.langgraph_store", "threadkeep.transports.postgres",
    "threadkeep.transports.sqlite", "threadkeep.transports.valkey",
)  # fmt: skip
_MOST = 1 << 17
_SUBREAPER = 36
_turn = threading.Lock()


class Forked(subprocess.Popen[Any]):
    """A script with its arguments, run as `python -c` would run it."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        """What Popen does where it forks and executes; `rest` is its, with the ends of the pipes in the middle."""
        cwd, ends = rest[4], (rest[9], rest[12], rest[14])
        script, *given = args
        where = str(cwd or Path.cwd())
        wanted = {"script": script, "args": given, "environ": dict(os.environ), "path": paths(), "cwd": where}
        standard = [2 if end == -1 else end for end in ends]
        self.pid = _fork(json.dumps(wanted).encode(), standard)
        self._child_created = True
        for end in ends:
            if end != -1:
                os.close(end)


def paths() -> list[str]:
    """Where a process of ours finds modules: these tests, and what this interpreter imports."""
    return [str(Path(__file__).parent), *(path for path in sys.path if path)]


def _fork(wanted: bytes, standard: list[int]) -> int:
    with _turn:
        nursery = _nursery(os.getpid())
        socket.send_fds(nursery, [wanted], standard)
        return int(nursery.recv(_MOST))


@functools.cache
def _nursery(owner: int) -> socket.socket:
    """The nursery of this process; it ends when we do."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths())}
    with theirs:
        subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environ,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    return ours


def _wanted(door: socket.socket) -> dict[str, Any]:
    """Fork whenever somebody asks; returns in the children only."""
    while True:
        asked, standard, _, _ = socket.recv_fds(door, _MOST, 3)
        if not asked:
            os._exit(0)  # nobody is left who could ask
        heard, tell = os.pipe()
        if middle := os.fork():
            os.close(tell)
            os.waitpid(middle, 0)  # now the child is an orphan, and its new parent may hear of it
            door.send(os.read(heard, 100))
            for each in (heard, *standard):
                os.close(each)
        elif child := os.fork():
            os.write(tell, str(child).encode())
            os._exit(0)
        else:
            for number, each in enumerate(standard):
                os.dup2(each, number)
            for each in (heard, tell, *standard):
                os.close(each)
            door.close()
            os.setsid()
            wanted: dict[str, Any] = json.loads(asked)
            return wanted


def _become(wanted: dict[str, Any]) -> dict[str, Any]:
    """Be a new interpreter as far as a script can tell; the names of its `__main__`."""
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["environ"], PYTHONPATH=os.pathsep.join(wanted["path"]))
    sys.argv[:] = ["-c", *wanted["args"]]
    sys.path[:] = ["", *wanted["path"]]
    sys.modules["__main__"] = type(sys)("__main__")
    return vars(sys.modules["__main__"])


if __name__ == "__main__":
    import gc
    import importlib

    for name in _IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "threads would be lost"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()
    told = _wanted(socket.socket(fileno=int(sys.argv[1])))
    exec(compile(told["script"], "<string>", "exec"), _become(told))
