"""The commands that keep a storage safe across accidents and upgrades: backup, restore, migrate, setup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

import threadkeep
from threadkeep.cli.app import NEGATIVE, app, interruption_message, open_keep, sqlite_file_is_missing
from threadkeep.cli.options import DryRun, Json, Tenant, Url, Verify
from threadkeep.cli.output import format_size, one_line, print_result, progress_bar, skipped_lines
from threadkeep.cli.settings import as_url
from threadkeep.cli.transfer import result_lines, target_url
from threadkeep.plural import plural
from threadkeep.transfer.backup import is_sqlite_file

_MOST_PROBLEMS = 20


@app.command(epilog="Example: threadkeep backup agent.db backup.db")
def backup(
    source: Annotated[str | None, typer.Argument(metavar="URL", help="Storage. Default: --url.")] = None,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="File to write. It must not exist.")] = None,
    *,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Check every checksum of the copy, or not.")
    ] = True,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Write a storage into a file while agents run. Exit code 1 if something is damaged.

    A SQLite file is copied as of one moment, with all tenants. Any other storage becomes a portable file of one tenant.
    """
    from_url, to_file = (source, file) if file is not None else (url, source)
    if to_file is None:
        raise ValueError("name the FILE to write")
    with (
        open_keep(from_url, tenant, read_only=True) as keep,
        interruption_message("nothing was written"),
        progress_bar("backing up", hidden=json) as on_progress,
    ):
        result = threadkeep.backup(keep, to_file, verify=verify, on_progress=on_progress)
    print_result(result, _backup_lines(result), as_json=json)
    return 0 if result.is_complete else NEGATIVE


def _backup_lines(result: threadkeep.BackupResult) -> Iterator[RenderableType]:
    kind = "SQLite" if result.kind == "sqlite" else "portable"
    held = "everything"
    if result.threads is not None and result.memories is not None:
        held = f"{plural(result.threads, 'thread')} and {plural(result.memories, 'memory', 'memories')}"
    yield one_line(f"backed up {held} to {result.file}")
    yield f"{kind} file, {format_size(result.bytes)}"
    yield from (one_line(f"damaged: {each}") for each in result.problems[:_MOST_PROBLEMS])
    if len(result.problems) > _MOST_PROBLEMS:
        yield f"… and {len(result.problems) - _MOST_PROBLEMS:,} more: run `threadkeep verify` on the copy"
    yield from skipped_lines(result.skipped)


@app.command(epilog="Example: threadkeep restore backup.db new.db")
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A backup, or a portable file.")],
    target: Annotated[
        str | None, typer.Argument(metavar="URL", help="Target storage. Default: --url.", show_default=False)
    ] = None,
    *,
    verify: Verify = True,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Bring the threads and memories of a backup into a storage. Nothing is overwritten.

    If both are SQLite and the target does not exist, the file is copied as it is, with all tenants. Otherwise threads
    and memories of one tenant are added. Exit code 1 if both sides differ in the end.
    """
    to_url = as_url(target or url)
    if not dry_run and sqlite_file_is_missing(to_url) and is_sqlite_file(file):
        return _copy_back(file, to_url, tenant, verify=verify, json=json)
    with (
        open_keep(target_url(to_url, dry_run=dry_run), tenant, read_only=dry_run, create=True) as keep,
        interruption_message("restored threads stay; the same command continues"),
        progress_bar("restoring", hidden=json) as on_progress,
    ):
        result = threadkeep.restore(file, keep, verify=verify, dry_run=dry_run, on_progress=on_progress)
    print_result(result, map(one_line, result_lines(result, "restore")), as_json=json)
    return 0 if result.is_equal else NEGATIVE


def _copy_back(file: str, to_url: str, tenant: str, *, verify: bool, json: bool) -> int:
    path = Path(to_url.removeprefix("sqlite:///"))
    with (
        open_keep(file, tenant, read_only=True) as keep,
        interruption_message("nothing was written"),
        progress_bar("restoring", hidden=json) as on_progress,
    ):
        result = threadkeep.backup(keep, path, verify=verify, on_progress=on_progress)
    print_result(result, _restored_lines(result), as_json=json)
    return 0 if result.is_complete else NEGATIVE


def _restored_lines(result: threadkeep.BackupResult) -> Iterator[RenderableType]:
    first, *others = _backup_lines(result)
    yield str(first).replace("backed up", "restored", 1)
    yield from others


@app.command(epilog="Example: threadkeep migrate --dry-run")
def migrate(*, dry_run: DryRun = False, url: Url = None, tenant: Tenant = "", json: Json = False) -> None:
    """Bring the tables of a storage to the version of this threadkeep. Back up first; there is no way back.

    A migration is one transaction. Stop agents with an older threadkeep before it.
    """
    with open_keep(url, tenant, migrate=False, create=True) as keep:
        result = keep.migrate(dry_run=dry_run)
    print_result(result, [_migration_line(result)], as_json=json)


def _migration_line(result: threadkeep.MigrateResult) -> str:
    if not result.needed:
        return f"schema version {result.found}: nothing to migrate"
    would = "migrated" if result.migrated else "would migrate"
    if not result.found:
        would = "created" if result.migrated else "would create"
        return f"{would} the tables of schema version {result.current}"
    return f"{would} from schema version {result.found} to {result.current}"


@app.command(epilog="Example: threadkeep setup --citus")
def setup(
    *,
    citus: Annotated[
        bool,
        typer.Option("--citus", help="Also distribute the tables over the machines of Citus. Needs ?group=thread."),
    ] = False,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Create the tables of a storage, or migrate them, and with --citus distribute them over several machines.

    Repeat it whenever you like: what is done stays as it is. Connect to the coordinator of Citus.
    """
    with open_keep(url, tenant, migrate=False, create=True) as keep:
        if citus:
            done = keep.distribute(dry_run=dry_run)
            print_result(done, _distribution_lines(done), as_json=json)
        else:
            result = keep.migrate(dry_run=dry_run)
            print_result(result, [_migration_line(result)], as_json=json)


def _distribution_lines(result: threadkeep.DistributeResult) -> Iterator[RenderableType]:
    if not result.distributed:
        yield "all tables are distributed"
    for table in result.distributed:
        how = result.tables[table]
        would = "would distribute" if result.dry_run else "distributed"
        yield f"{would} {table} " + ("to each machine" if how == "reference" else f"by {how}")
