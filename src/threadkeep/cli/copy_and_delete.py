"""The commands that copy and delete whole threads, or delete memories: copy, delete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import RenderableType

import threadkeep
from threadkeep import DeleteResult, MatchedThread
from threadkeep.cli.app import NEGATIVE, app, confirm, open_keep
from threadkeep.cli.memories import delete_memories, parse_namespace
from threadkeep.cli.options import (
    DryRun,
    Force,
    Json,
    Kind,
    KindName,
    Match,
    MatchName,
    Metadata,
    Prefix,
    Salvage,
    Tenant,
    Thread,
    ThreadIds,
    Url,
    Yes,
    key_value,
)
from threadkeep.cli.output import (
    as_plain,
    damage_lines,
    format_size,
    leased_lines,
    one_line,
    print_result,
    progress_bar,
    skipped_lines,
    table,
)
from threadkeep.errors import Corrupt, Missing
from threadkeep.jobs.catalogue import copy_thread
from threadkeep.plural import plural

_MOST_ROWS = 200


@app.command(epilog="Example: threadkeep copy trip trip-copy")
def copy(
    thread: Thread,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Id of the copy.")],
    *,
    kind: Kind = None,
    salvage: Salvage = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Copy a thread with all its checkpoints. Checkpoints that TARGET already has stay unchanged.

    A damaged thread is not copied, and the exit code is 1.
    """
    skipped: list[str] = []
    damage: tuple[str, ...] | None
    with open_keep(url, tenant) as keep:
        session = keep._session  # noqa: SLF001 - the public verb does not return what was left out
        try:
            damage = session.work(copy_thread(session, thread, target, kind=kind, salvage=salvage))
        except Corrupt as error:
            skipped, damage = [thread], (str(error),)
    if damage is None:
        raise Missing(f"thread {thread!r} not found")
    result = {"thread": thread, "target": target, "skipped": skipped, "damage": list(damage)}
    lines = [] if skipped else [one_line(f"copied {'the intact part of ' * bool(damage)}{thread} to {target}")]
    print_result(result, [*lines, *damage_lines(skipped, damage)], as_json=json)
    return NEGATIVE if damage else 0


@app.command(epilog="Example: threadkeep delete --prefix test- --dry-run")
def delete(
    threads: ThreadIds = None,
    *,
    prefix: Prefix = "",
    metadata: Metadata = None,
    match: Match = "any",
    kind: Kind = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            metavar="NAMESPACE",
            help="Memories instead of threads: those of this namespace and below it. Segments are joined with , or /.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only the memory with this key in NAMESPACE itself.")
    ] = None,
    force: Force = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Delete threads with everything they hold: by id, or by --prefix and --metadata. Or delete memories.

    Exit code 1 if a thread is not found, or is skipped because it is damaged or leased.
    """
    ids = list(dict.fromkeys(threads or ()))  # an id that is given twice would be missing the second time
    wanted = dict(map(key_value, metadata or ()))
    if [bool(ids), bool(prefix or wanted), namespace is not None].count(True) != 1:
        raise ValueError("pass either thread ids, or --prefix and --metadata, or --namespace")
    if key is not None and namespace is None:
        raise ValueError("--key needs --namespace")
    with open_keep(url, tenant, read_only=dry_run) as keep:
        if namespace is not None:
            return delete_memories(keep, parse_namespace(namespace), key, yes=yes, dry_run=dry_run, json=json)
        if ids:
            return _delete_by_id(keep, ids, kind, force=force, yes=yes, dry_run=dry_run, json=json)
        run = partial(_delete_selected, keep, prefix, wanted, match, kind, force=force, hide_progress=json)
        if not (dry_run or yes) and (preview := run(dry_run=True)).threads:
            confirm(f"Delete {_selected_text(preview)}?", yes=yes)
        result = run(dry_run=dry_run)
    plain = {"deleted": [each.id for each in result.threads], "missing": [], **as_plain(result)}
    print_result(plain, _selected_lines(result), as_json=json)
    return NEGATIVE if result.skipped or result.leased else 0


def _delete_by_id(
    keep: threadkeep.Keep, ids: list[str], kind: KindName | None, *, force: bool, yes: bool, dry_run: bool, json: bool
) -> int:
    found = {id: keep.thread(id, kind=kind) is not None for id in ids}
    if not dry_run and any(found.values()):
        confirm(f"Delete {', '.join(one_line(id) for id in ids if found[id])}?", yes=yes)
        found = {id: bool(keep.delete(id, kind=kind, force=force)) for id in ids}
    result = {
        "deleted": [id for id in ids if found[id]],
        "missing": [id for id in ids if not found[id]],
        "dry_run": dry_run,
    }
    verb = "would delete" if dry_run else "deleted"
    lines = [f"{verb} {id}" if found[id] else f"thread {id} not found" for id in ids]
    print_result(result, map(one_line, lines), as_json=json)
    return 0 if all(found.values()) else NEGATIVE


def _delete_selected(
    keep: threadkeep.Keep,
    prefix: str,
    metadata: dict[str, Any],
    match: MatchName,
    kind: KindName | None,
    *,
    dry_run: bool,
    force: bool,
    hide_progress: bool,
) -> DeleteResult:
    with progress_bar("examining" if dry_run else "deleting", hidden=hide_progress) as on_progress:
        result = keep.delete(
            prefix=prefix,
            metadata=metadata,
            match=match,
            kind=kind,
            dry_run=dry_run,
            force=force,
            on_progress=on_progress,
        )
    assert isinstance(result, DeleteResult)
    return result


def _selected_text(result: DeleteResult) -> str:
    """Return what is deleted, in words."""
    some = sum(each.matching is not None and each.matching < each.checkpoints for each in result.threads)
    only = f"; in {plural(some, 'thread')} only some checkpoints match" if some else ""
    threads, checkpoints = plural(len(result.threads), "thread"), plural(result.checkpoints, "checkpoint")
    return f"{threads} with {checkpoints} ({format_size(result.bytes)}{only})"


def matched_threads_table(threads: Sequence[MatchedThread]) -> Iterator[RenderableType]:
    """Yield a table of threads, with the number of matching checkpoints if metadata was wanted."""
    if not threads:
        return
    columns = ("thread", "kind", "checkpoints", "size", "matching")
    shown = len(columns) if any(each.matching is not None for each in threads) else -1
    yield table(columns[:shown], (_matched_row(each)[:shown] for each in threads[:_MOST_ROWS]), right=columns[2:])
    if len(threads) > _MOST_ROWS:
        yield f"… and {len(threads) - _MOST_ROWS:,} more: --json prints all"


def _selected_lines(result: DeleteResult) -> Iterator[RenderableType]:
    yield from matched_threads_table(result.threads)
    verb = "would delete" if result.dry_run else "deleted"
    yield f"{verb} {_selected_text(result)}" if result.threads else "no thread matches"
    yield from skipped_lines(result.skipped)
    yield from leased_lines(result.leased)


def _matched_row(thread: MatchedThread) -> tuple[Any, ...]:
    matching = f"{thread.matching} of {thread.checkpoints}" if thread.matching is not None else ""
    return (thread.id, thread.kind, thread.checkpoints, format_size(thread.bytes), matching)
