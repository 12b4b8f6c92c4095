"""A server process that has done all imports and forks children, because imports take longer than most tests.

Run as a script, this file is the server; `Forked` starts a process through it. A child has its own session and becomes
a child of the process that requested it, which can wait for it as usual. Linux only: it relies on subreapers.
"""

from __future__ import annotations

import atexit
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
from typing import Any, NoReturn

SOURCE = Path(__file__).parents[1] / "src" / "threadkeep"
_IMPORTED = (
    "apsw",
    "asyncio",
    "checkpoint_chains",
    "cubeloop",
    "langchain_core.messages",
    "langgraph.graph",
    "langgraph.prebuilt",
    "langgraph.store.memory",
    "multiprocessing",
    "numpy",
    "psycopg_pool",
    "rich.progress",
    "rich.table",
    "threadkeep.adapters.cubeloop",
    "threadkeep.adapters.langgraph_saver",
    "threadkeep.adapters.langgraph_store",
    *(f"threadkeep.cli.{file.stem}" for file in sorted((SOURCE / "cli").glob("[a-z]*.py"))),
    "threadkeep.transports.postgres",
    "threadkeep.transports.sqlite",
    "threadkeep.transports.valkey",
)
_MAX_MESSAGE = 1 << 17
_SUBREAPER = 36
_lock = threading.Lock()


class Forked(subprocess.Popen[Any]):
    """A script with its arguments, run as `python -c` would run it."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        """Replace the fork and exec of Popen. `rest` are its other arguments, among them the pipe ends."""
        cwd, ends = rest[4], (rest[9], rest[12], rest[14])
        script, *given = args
        where = str(cwd or Path.cwd())
        request = {"script": script, "args": given, "environ": dict(os.environ), "path": paths(), "cwd": where}
        standard = [2 if end == -1 else end for end in ends]
        self.pid = _fork(json.dumps(request).encode(), standard)
        self._child_created = True
        for end in ends:
            if end != -1:
                os.close(end)


def paths() -> list[str]:
    """Return the import path of child processes: these tests, and the path of this interpreter."""
    return [str(Path(__file__).parent), *(path for path in sys.path if path)]


def _fork(request: bytes, standard: list[int]) -> int:
    with _lock:
        server = _server(os.getpid())
        socket.send_fds(server, [request], standard)
        return int(server.recv(_MAX_MESSAGE))


@functools.cache
def _server(owner: int) -> socket.socket:
    """Start the fork server of this process. It ends when this process does."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths())}
    with theirs:
        subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environ,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    return ours


def _serve_until_forked(connection: socket.socket) -> dict[str, Any]:
    """Fork on every request. Returns only in the children, with the request."""
    while True:
        message, standard, _, _ = socket.recv_fds(connection, _MAX_MESSAGE, 3)
        if not message:
            os._exit(0)  # the owner is gone
        child_id_reader, child_id_writer = os.pipe()
        if middle := os.fork():
            os.close(child_id_writer)
            os.waitpid(middle, 0)  # now the child is an orphan: its new parent may learn its id
            connection.send(os.read(child_id_reader, 100))
            for each in (child_id_reader, *standard):
                os.close(each)
        elif child := os.fork():
            os.write(child_id_writer, str(child).encode())
            os._exit(0)
        else:
            for number, each in enumerate(standard):
                os.dup2(each, number)
            for each in (child_id_reader, child_id_writer, *standard):
                os.close(each)
            connection.close()
            os.setsid()
            request: dict[str, Any] = json.loads(message)
            return request


def _become(request: dict[str, Any]) -> dict[str, Any]:
    """Look like a new interpreter to the script. Return the namespace of its `__main__`."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"], PYTHONPATH=os.pathsep.join(request["path"]))
    sys.argv[:] = ["-c", *request["args"]]
    sys.path[:] = ["", *request["path"]]
    sys.modules["__main__"] = type(sys)("__main__")
    return vars(sys.modules["__main__"])


def _end(code: Any) -> NoReturn:
    """End as an interpreter does, but leave its modules to the system: deleting them takes longer than most scripts."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:
        print("cannot flush stdout:", error, file=sys.stderr)
        code = 120
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    import gc
    import importlib

    for name in _IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1, "threads would be lost"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()
    request = _serve_until_forked(socket.socket(fileno=int(sys.argv[1])))
    try:
        exec(compile(request["script"], "<string>", "exec"), _become(request))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except SystemExit as end:
        _end(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        _end(1)
    _end(0)
