"""A real MariaDB server for the tests, started without root: the machine's own, or Debian's packages below the checkout.

All files of a server are in one temporary folder. It ends with the process that started it. Linux only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pymysql

from postgres_servers import free_port
from tls_servers import Certificates, certificates

FOLDER = Path(__file__).resolve().parents[1] / ".mysql"
TIMEOUT = 60
"""Seconds after which a server counts as hanging."""
_SECONDS_TO_FETCH = 300
_PACKAGE = "mariadb-server-core"
_NOT_NEEDED = {"libc6", "mariadb-common"}
_SQL = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
_DEATH_SIGNAL = 1


class Installation(NamedTuple):
    """Where a MariaDB is: its program, its other files, and the libraries that the system does not have."""

    program: Path
    share: Path
    libraries: tuple[Path, ...] = ()


@cache
def installation() -> Installation:
    """Return a MariaDB. RuntimeError if there is none and none can be fetched."""
    own = next(
        (Path(path) for path in (shutil.which("mariadbd"), "/usr/sbin/mariadbd") if path and Path(path).exists()), None
    )
    share = Path("/usr/share/mysql")
    if own is not None and (share / _SQL[0]).exists():
        return Installation(own, share)
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:  # other processes of a test run wait for the first
        fcntl.flock(lock, fcntl.LOCK_EX)
        root = FOLDER / "root"
        if not root.exists():
            _fetch_packages(root)
    libraries = {path.parent for path in root.rglob("*.so*")}
    return Installation(root / "usr/sbin/mariadbd", root / "usr/share/mysql", tuple(sorted(libraries)))


def _fetch_packages(root: Path) -> None:
    """Unpack Debian's packages into a folder. apt keeps its state in our folder, so this needs no rights."""
    state = [
        "-o",
        f"Dir::State::lists={FOLDER / 'lists'}",
        "-o",
        f"Dir::Cache={FOLDER / 'cache'}",
        "-o",
        "APT::Sandbox::User=",
    ]
    try:
        _run(["apt-get", *state, "update"])
        found = _run(["apt-cache", *state, "depends", "--important", _PACKAGE])
        names = {line.split()[-1] for line in found.splitlines() if line.strip().startswith("Depends:")} - _NOT_NEEDED
        packages = FOLDER / "packages"
        packages.mkdir(exist_ok=True)
        _run(["apt-get", *state, "download", _PACKAGE, *sorted(name for name in names if "<" not in name)], packages)
        for package in packages.glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(root.with_suffix(".new"))])
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(
            f"no MariaDB for the tests: install mariadb-server-core, or make apt-get work ({error})"
        ) from error
    root.with_suffix(".new").rename(root)
    for name in ("lists", "cache", "packages"):
        shutil.rmtree(FOLDER / name)


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    for name in ("lists/partial", "cache/archives/partial"):
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        command,
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=_SECONDS_TO_FETCH,
        stdin=subprocess.DEVNULL,
    ).stdout


class Server:
    """A running server."""

    def __init__(self, folder: Path, port: int) -> None:
        self.socket, self.port = folder / "socket", port
        self.certificates: Certificates = certificates(folder / "tls")
        """Those of its TLS, which a client may use."""
        self._databases = 0

    def execute(self, sql: str, database: str | None = None) -> list[Any]:
        """Execute a statement and return its rows."""
        with pymysql.connect(
            unix_socket=str(self.socket), user="root", database=database, autocommit=True
        ) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            return list(cursor.fetchall())

    def fresh_database(self) -> str:
        """Return the name of a new database."""
        self._databases += 1
        name = f"db{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def url(self, database: str, *, user: str = "tester:a%2Fb") -> str:
        return f"mysql://{user}@127.0.0.1:{self.port}/{database}"


@contextmanager
def server() -> Iterator[Server]:
    """Run a server. Its user `tester` has the password `a/b`."""
    found = installation()
    folder = Path(tempfile.mkdtemp(prefix="mysql-"))
    try:
        (folder / "data/mysql").mkdir(parents=True)
        _bootstrap(found, folder)
        running = Server(folder, free_port())
        process = _start(found, folder, running)
        try:
            _wait_for(running, process, folder)
            running.execute("CREATE USER tester@'%' IDENTIFIED BY 'a/b'")
            running.execute("GRANT ALL ON *.* TO tester@'%'")
            yield running
        finally:
            process.kill()
            process.wait(TIMEOUT)
    finally:
        shutil.rmtree(folder)


def _command(found: Installation, folder: Path) -> list[str]:
    return [
        str(found.program), "--no-defaults", f"--basedir={found.share.parents[1]}", f"--lc-messages-dir={found.share}",
        f"--character-sets-dir={found.share / 'charsets'}", f"--datadir={folder / 'data'}", "--innodb-use-native-aio=0",
        "--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=0", "--character-set-server=utf8mb4", *(["--user=root"] if os.geteuid() == 0 else []),
    ]  # fmt: skip


def _environment(found: Installation) -> dict[str, str]:
    return (
        {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, found.libraries))}
        if found.libraries
        else dict(os.environ)
    )


def _bootstrap(found: Installation, folder: Path) -> None:
    sql = "USE mysql;\nSET @auth_root_socket = NULL;\n" + "".join(
        (found.share / name).read_text("utf-8") for name in _SQL
    )
    subprocess.run(
        [*_command(found, folder), "--bootstrap", "--skip-networking"],
        input=sql.encode(), env=_environment(found), check=True, capture_output=True, timeout=TIMEOUT,
    )  # fmt: skip


def _start(found: Installation, folder: Path, running: Server) -> subprocess.Popen[bytes]:
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [
                *_command(found, folder), f"--socket={running.socket}", f"--port={running.port}", "--bind-address=127.0.0.1",
                f"--ssl-cert={running.certificates.certificate}", f"--ssl-key={running.certificates.key}",
            ],
            env=_environment(found), stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_die_with_parent,
        )  # fmt: skip


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _wait_for(running: Server, process: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + TIMEOUT
    while True:
        try:
            running.execute("SELECT 1")
        except pymysql.Error as error:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"MariaDB does not start: {(folder / 'log').read_text('utf-8')[-2000:]}") from error
            time.sleep(0.02)
        else:
            return
