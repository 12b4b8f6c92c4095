"""The command `import`, and how the result of a transfer is printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import threadkeep
from threadkeep.cli.app import NO, DryRun, Json, Tenant, Url, app, as_url, opened, saying
from threadkeep.cli.output import answer, bar, counted, line, size
from threadkeep.transfer.portable.files import is_portable
from threadkeep.transfer.result import OWN_EXPORT
from threadkeep.transfer.sources.detect import KINDS


@app.command("import")
def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A file, or a postgresql:// URL (which may have ?schema=NAME).")
    ],
    *,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help=f"The kind of the source, if it is not to be detected: {', '.join(KINDS[:-1])}."),
    ] = None,
    thread: Annotated[str | None, typer.Option("--thread", help="Only this thread.")] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Only threads whose id starts with PREFIX.")] = "",
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Read both sides again and compare.")] = True,
    partial: Annotated[bool, typer.Option("--partial", help="Accept an exported file that is cut off.")] = False,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Import what LangGraph's and CubeLoop's own savers hold, or an exported file. Exit code 1 if both sides differ.

    The source is only read, and nothing in the target is overwritten. Repeat the command after an interruption.
    """
    with (
        opened(_target(url, dry_run=dry_run), tenant, read_only=dry_run, may_be_new=True) as keep,
        saying("what was imported stays; the same command continues"),
        bar("import", hidden=json) as tell,
    ):
        if kind in (None, OWN_EXPORT) and is_portable(source):
            done = keep.import_portable(
                source, thread_id=thread, prefix=prefix, partial=partial, verify=verify, dry_run=dry_run,
                on_progress=tell,
            )  # fmt: skip
        else:
            done = keep.import_from(
                source, kind=kind, thread_id=thread, prefix=prefix, verify=verify, dry_run=dry_run, on_progress=tell
            )
    answer(done, map(line, result_lines(done, "import", "imported")), as_json=json)
    return 0 if done.is_equal else NO


def _target(url: str | None, *, dry_run: bool) -> str:
    """The URL of the target. A dry run does not create a file: if there is none yet, the target is empty."""
    where = as_url(url)
    is_new = where.startswith("sqlite:///") and not Path(where.removeprefix("sqlite:///")).exists()
    return "memory://" if dry_run and is_new else where


def result_lines(done: threadkeep.TransferResult, verb: str, past: str) -> Iterator[str]:
    """What a transfer did, line by line."""
    outcomes = ("created", "unchanged", "updated", "merged", "conflicting")
    found = [f"{count:,} {name}" for name in outcomes if (count := getattr(done, name))]
    verb = f"would {verb}" if done.dry_run else past
    threads = f"{verb} {counted(done.threads, 'thread')} from {', '.join(done.kinds)}"
    yield threads + (f": {', '.join(found)}" if found else "")
    for name in ("checkpoints", "writes", "messages", "memories", "already_there", "expired"):
        if count := getattr(done, name):
            yield f"  {name.replace('_', ' '):<15}{count:>12,}"
    if done.bytes:
        yield f"  {'size':<15}{size(done.bytes):>12}"
    yield from (f"differs: {each}" for each in done.differences)
    if not done.complete:
        yield "the file is cut off: its last thread or memories are missing"
    if done.verified and done.is_equal:
        yield "both sides are equal"
