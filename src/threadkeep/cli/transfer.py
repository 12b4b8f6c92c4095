"""Commands that bring threads and memories from one place to another: import."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import threadkeep
from threadkeep.cli.app import DryRun, Json, Tenant, Url, app, as_url, opened, saying
from threadkeep.cli.output import answer, bar, counted, line, size
from threadkeep.transfer.portable.format import is_portable
from threadkeep.transfer.sources.detect import KINDS, OWN_EXPORT
from threadkeep.transfer.result import Imported


@app.command("import")
def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A file, or a postgresql:// URL (schema= may stand in its query).")
    ],
    *,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help=f"What the source is, if it is not to be recognised: {', '.join(KINDS[:-1])}."),
    ] = None,
    thread: Annotated[str | None, typer.Option("--thread", help="Only this thread.")] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Only threads whose ids begin so.")] = "",
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Read both sides again and compare.")] = True,
    partial: Annotated[
        bool, typer.Option("--partial", help="Of an exported file: take it though it is cut off.")
    ] = False,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Bring in what LangGraph's and CubeLoop's own savers kept, or an exported file. Exit code 1 if both sides differ.

    The source is only read, and nothing that is here is overwritten. If it is interrupted, the same command goes on.
    """  # fmt: skip
    with (
        opened(_target(url, dry_run=dry_run), tenant, read_only=dry_run, may_be_new=True) as keep,
        saying("what was brought in stays; the same command goes on from there"),
        bar("import", hidden=json) as tell,
    ):
        if kind in (None, OWN_EXPORT) and is_portable(source):
            if dry_run:
                raise ValueError("--dry-run is not for an exported file")
            return _brought(
                keep.import_portable(source, thread_id=thread, prefix=prefix, partial=partial, on_progress=tell),
                as_json=json,
            )
        found = keep.import_from(
            source, kind=kind, thread_id=thread, prefix=prefix, verify=verify, dry_run=dry_run, on_progress=tell
        )
    answer(found, _told(found, dry_run=dry_run, verify=verify), as_json=json)
    return 0 if found.is_equal else 1


def _brought(found: threadkeep.Brought, *, as_json: bool) -> int:
    """What became of an exported file."""
    told = {
        "new": found.made, "here already": found.same, "made anew": found.renewed,
        "merged with what is here": found.merged, "memories": found.memories,
    }  # fmt: skip
    lines = [f"imported from {OWN_EXPORT}: {counted(found.threads, 'thread')}"]
    lines += [f"  {count:,} {what}" for what, count in told.items() if count]
    lines += [f"differs: {each}" for each in found.differing]
    answer(found, map(line, lines), as_json=as_json)
    return 1 if found.differing else 0


def _target(url: str | None, *, dry_run: bool) -> str:
    """Where things go; what is only counted goes nowhere if there is no file yet."""
    where = as_url(url)
    is_new = where.startswith("sqlite:///") and not Path(where.removeprefix("sqlite:///")).exists()
    return "memory://" if dry_run and is_new else where


def _told(found: Imported, *, dry_run: bool, verify: bool) -> Iterator[str]:
    yield f"{'would import' if dry_run else 'imported'} from {', '.join(found.kinds)}:"
    for name in ("threads", "checkpoints", "writes", "messages", "memories"):
        if count := getattr(found, name):
            yield f"  {name:<12}{count:>12,}"
    if found.skipped:
        yield f"  {'here already':<12}{found.skipped:>12,}"
    if found.bytes:
        yield f"  {'new values':<12}{size(found.bytes):>12}"
    yield from (line(f"differs: {what}") for what in found.differences)
    if not dry_run and verify and found.is_equal:
        yield "both sides are equal"
