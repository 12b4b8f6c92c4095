"""`threadkeep.backup` and `threadkeep.restore`: a storage as one file, and back.

A SQLite file is copied as of one moment, with everything in it. Any other storage becomes a portable file with the
threads and memories of one tenant; each thread is as of one moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadkeep.engine.health.verify import VerifyResult
from threadkeep.engine.tenants.requests import LoadTenant
from threadkeep.errors import SchemaTooOld
from threadkeep.keep import Keep
from threadkeep.short_repr import short_repr
from threadkeep.transfer.convert import convert, opened
from threadkeep.transfer.portable.files import is_portable
from threadkeep.transfer.result import TransferResult
from threadkeep.urls import StorageUrl
from threadkeep.verb import blocking_verb
from threadkeep.work import OnProgress

if TYPE_CHECKING:
    from threadkeep.encryption.keys import Keys
    from threadkeep.session import Session

SQLITE, PORTABLE = "sqlite", "portable"
_SQLITE_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class BackupResult:
    """What a backup holds. `kind` is "sqlite" (a database file) or "portable" (a portable file), `bytes` its size.

    `problems` is what is damaged: what `verify` found in the copy of a SQLite file, or what a portable file lacks.
    `skipped` lists damaged threads that a portable file lacks. `threads` and `memories` are None for a file of an older
    version, which is copied without being read.
    """

    file: str
    kind: str
    bytes: int
    threads: int | None
    memories: int | None
    problems: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    __repr__ = short_repr

    @property
    def is_complete(self) -> bool:
        """Whether the backup holds everything, intact."""
        return not self.problems and not self.skipped


def _backup(
    source: StorageUrl | Keep,
    file: str | os.PathLike[str],
    *,
    verify: bool = True,
    tenant: str = "",
    keys: Keys | None = None,
    on_progress: OnProgress | None = None,
) -> BackupResult:
    """Write a Keep, or the storage that a URL names, into a new file. Agents may go on meanwhile.

    SQLite: a database file, a copy of everything as of one moment, which is then checked unless `verify` is False.
    PostgreSQL, Valkey and memory: a portable file of the Keep's tenant. The file is written completely or not at all.
    An encrypted storage becomes an encrypted file; `keys` are those of a URL. Raise FileExistsError if it exists.
    """
    path = Path(file).absolute()
    if path.exists():
        raise FileExistsError(f"{path} exists: it was not replaced")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {path.parent}")
    with opened(source, tenant, keys, read_only=True) as keep:
        transport = keep._session.transport  # noqa: SLF001 - the same package
        with _new_file(path) as part:
            is_copied = transport.copy_to_file(part, partial(_report_pages, on_progress))
        if is_copied:
            return _describe_copy(path, keep, verify=verify)
        made = keep.export(path, on_progress=on_progress)
        size = path.stat().st_size
        return BackupResult(
            str(path), PORTABLE, size, made.threads, made.memories, problems=made.damage, skipped=made.skipped
        )


def _report_pages(on_progress: OnProgress | None, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(done, total, "pages")


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Give a path to write to. If a file was written there, rename it to `path`; after an error, delete it."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        if part.exists():
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise


def _describe_copy(path: Path, original: Keep, *, verify: bool) -> BackupResult:
    """Open the copy, count what it holds, and check it."""
    session = original._session  # noqa: SLF001 - the same package
    with opened(f"sqlite:///{path}", session.tenant, session.keys, read_only=True) as copy:
        try:
            stats = copy.stats()
        except SchemaTooOld:
            return BackupResult(str(path), SQLITE, path.stat().st_size, None, None)
        problems = _problem_lines(copy.verify()) if verify else ()
    return BackupResult(str(path), SQLITE, path.stat().st_size, stats.threads, stats.memories, problems=problems)


def _problem_lines(result: VerifyResult) -> tuple[str, ...]:
    return tuple(f"{each.thread}: {each.message}" if each.thread else each.message for each in result.problems)


backup, abackup = blocking_verb(_backup)


def _restore(
    file: str | os.PathLike[str],
    target: StorageUrl | Keep,
    *,
    verify: bool = True,
    dry_run: bool = False,
    tenant: str = "",
    keys: Keys | None = None,
    on_progress: OnProgress | None = None,
) -> TransferResult:
    """Bring the threads and memories of a backup, of either kind, into a Keep or the storage that a URL names.

    Nothing that exists is overwritten; threads get the checkpoints that they lack. `verify` compares both sides.
    Repeat an interrupted restore to continue it. `keys` are those of a target that is a URL; an encrypted backup must
    have the same master keys. Raise ValueError if the file is not a backup.
    """
    path = Path(file).absolute()
    with opened(target, tenant, keys, read_only=dry_run) as keep:
        if is_portable(path):
            return keep.import_portable(path, verify=verify, dry_run=dry_run, on_progress=on_progress)
        if not is_sqlite_file(path):
            raise ValueError(f"{path} is not a backup: neither a SQLite database nor a portable file")
        session = keep._session  # noqa: SLF001 - the same package
        with _opened_copy(path, session) as source:
            return convert(source, keep, verify=verify, dry_run=dry_run, on_progress=on_progress)


@contextmanager
def _opened_copy(path: Path, target: Session) -> Iterator[Keep]:
    """Open a SQLite file that was copied; with the keys of the target if it is encrypted."""
    url, tenant = f"sqlite:///{path}", target.tenant
    with opened(url, tenant, None, read_only=True) as plain:
        row = plain._session.transport.execute(LoadTenant(tenant))  # noqa: SLF001 - the same package
    with opened(url, tenant, target.keys if row is not None and row.sealed else None, read_only=True) as source:
        yield source


restore, arestore = blocking_verb(_restore)


def is_sqlite_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a SQLite database. FileNotFoundError if it does not exist."""
    with Path(path).open("rb") as file:
        start: Any = file.read(len(_SQLITE_MAGIC))
    return bool(start == _SQLITE_MAGIC)
