"""The commands that move threads and memories: import, export, convert."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

import threadkeep
from threadkeep.cli.app import NEGATIVE, app, interruption_message, open_keep, sqlite_file_is_missing
from threadkeep.cli.options import DryRun, Json, KindFilter, Prefix, Salvage, TargetKeys, Tenant, Threads, Url, Verify
from threadkeep.cli.output import damage_lines, format_size, one_line, print_result, progress_bar
from threadkeep.cli.settings import as_url
from threadkeep.plural import plural
from threadkeep.transfer.portable.files import is_portable
from threadkeep.transfer.result import OWN_EXPORT
from threadkeep.transfer.sources.detect import KINDS
from threadkeep.transfer.sources.value_cipher import read_serializer

_Memories = Annotated[
    bool | None,
    typer.Option("--memories/--no-memories", help="Include memories, or not.", show_default="only with all threads"),
]
_OUTCOMES = ("created", "unchanged", "updated", "merged", "conflicting")
_COUNTS = ("checkpoints", "writes", "messages", "memories", "already_there", "expired")


@app.command("import", epilog="Example: threadkeep import langgraph.db --url agent.db")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A file, a postgresql:// URL, optionally with ?schema=NAME, or a mysql:// URL."
        ),
    ],
    *,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help=f"Kind of source: {', '.join(KINDS[:-1])}. Default: detect it."),
    ] = None,
    thread: Annotated[str | None, typer.Option("--thread", metavar="THREAD", help="Only this thread.")] = None,
    source_key: Annotated[
        Path | None,
        typer.Option(
            "--source-key",
            metavar="FILE",
            help="File with the AES key of LangGraph's EncryptedSerializer that the source was written with.",
            show_default="LANGGRAPH_AES_KEY, if the source is encrypted",
        ),
    ] = None,
    prefix: Prefix = "",
    verify: Verify = True,
    memories: Annotated[
        bool | None,
        typer.Option(
            "--memories/--no-memories",
            help="Include the memories of a portable file, or not.",
            show_default="only with all threads",
        ),
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Accept a portable file that is truncated.")] = False,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Import from other savers and stores, or from a portable file.

    The other savers and stores are LangGraph's and CubeLoop's own. The source is only read, and nothing in the target
    is overwritten. Repeat the command to continue after an interruption. Exit code 1 if both sides differ in the end.
    """
    with (
        open_keep(target_url(url, dry_run=dry_run), tenant, read_only=dry_run, create=True) as keep,
        interruption_message("imported threads stay; the same command continues"),
        progress_bar("importing", hidden=json) as on_progress,
    ):
        if kind in (None, OWN_EXPORT) and is_portable(source):
            if source_key is not None:
                raise ValueError("--source-key is for other savers: a portable file is opened with --keys")
            result = keep.import_portable(
                source,
                thread_id=thread,
                prefix=prefix,
                memories=memories,
                partial=partial,
                verify=verify,
                dry_run=dry_run,
                on_progress=on_progress,
            )
        else:
            if memories is not None:
                raise ValueError("--memories and --no-memories are for portable files: leave them out")
            result = keep.import_from(
                source,
                kind=kind,
                serde=read_serializer(source_key) if source_key is not None else None,
                thread_id=thread,
                prefix=prefix,
                verify=verify,
                dry_run=dry_run,
                on_progress=on_progress,
            )
    print_result(result, map(one_line, result_lines(result, "import")), as_json=json)
    return 0 if result.is_equal else NEGATIVE


@app.command(epilog="Example: threadkeep export trip --output trip.tk")
def export(
    threads: Threads = None,
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="File to write; - is the standard output.")
    ],
    prefix: Prefix = "",
    kind: KindFilter = None,
    memories: _Memories = None,
    redact: Annotated[bool, typer.Option("--redact", help="Replace what people wrote, for a bug report.")] = False,
    salvage: Salvage = False,
    plain: Annotated[bool, typer.Option("--plain", help="Do not encrypt the file of an encrypted storage.")] = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Export threads and memories to a portable file. It is compressed unless its name ends in .jsonl.

    Damaged threads and memories are skipped and named, and the exit code is 1.
    """
    if json and output == "-":
        raise ValueError("--json and --output - both write to the standard output: pass only one")
    interrupted = "the output is incomplete" if output == "-" else "nothing was written"
    with (
        open_keep(url, tenant, read_only=True) as keep,
        interruption_message(interrupted),
        progress_bar("exporting") as on_progress,
    ):
        result = keep.export(
            sys.stdout.buffer if output == "-" else output,
            thread_id=threads or None,
            prefix=prefix,
            kind=kind,
            memories=memories,
            redact=redact,
            salvage=salvage,
            plain=plain,
            on_progress=on_progress,
        )
    if output != "-":
        print_result(result, _export_lines(result, output, redact=redact), as_json=json)
    else:
        for line in damage_lines(result.skipped, result.damage):
            typer.echo(line.plain, err=True)
    return NEGATIVE if result.skipped or result.damage else 0


def _export_lines(result: threadkeep.ExportResult, output: str, *, redact: bool) -> Iterator[RenderableType]:
    memories = plural(result.memories, "memory", "memories")
    yield one_line(f"exported {plural(result.threads, 'thread')} and {memories} to {output}")
    checkpoints, writes = plural(result.checkpoints, "checkpoint"), plural(result.writes, "write")
    yield f"{checkpoints}, {writes}; {format_size(result.bytes)} before compression"
    if redact:
        yield "texts, numbers and names were replaced; read the file before you send it"
    yield from damage_lines(result.skipped, result.damage)


@app.command(epilog="Example: threadkeep convert agent.db postgresql://db.example/agents")
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Source storage: a URL or an SQLite file.")],
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="Target storage. An SQLite file is created if needed.")
    ] = None,
    *,
    thread: Annotated[
        list[str] | None, typer.Option("--thread", metavar="THREAD", help="Only this thread. May be repeated.")
    ] = None,
    prefix: Prefix = "",
    kind: KindFilter = None,
    memories: _Memories = None,
    salvage: Salvage = False,
    verify: Verify = True,
    dry_run: DryRun = False,
    target_keys: TargetKeys = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Copy threads and memories from one storage to another.

    A single argument is the target; the source is then --url. Repeat the command to continue after an interruption, or
    to copy what is new. Damaged threads and memories are skipped and named. Exit code 1 if something was skipped, or if
    both sides differ in the end.
    """
    from_url, to_url = (source, target) if target is not None else (url, source)
    with (
        open_keep(from_url, tenant, read_only=True) as from_keep,
        open_keep(
            target_url(to_url, dry_run=dry_run), tenant, read_only=dry_run, create=not dry_run, keys=target_keys
        ) as to_keep,
        interruption_message("copied threads stay; the same command continues"),
        progress_bar("converting") as on_progress,
    ):
        result = threadkeep.convert(
            from_keep,
            to_keep,
            thread_id=thread or None,
            prefix=prefix,
            kind=kind,
            memories=memories,
            salvage=salvage,
            verify=verify,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    print_result(result, map(one_line, result_lines(result, "convert")), as_json=json)
    return 0 if result.is_equal else NEGATIVE


def target_url(url: str | None, *, dry_run: bool) -> str:
    """Return the URL of the target. A dry run creates no file: it compares with an empty storage instead."""
    url = as_url(url)
    return "memory://" if dry_run and sqlite_file_is_missing(url) else url


def result_lines(result: threadkeep.TransferResult, verb: str) -> Iterator[str]:
    """Yield what was transferred, and what differs."""
    verb = f"would {verb}" if result.dry_run else f"{verb.removesuffix('e')}ed"
    outcomes = [f"{count:,} {name}" for name in _OUTCOMES if (count := getattr(result, name))]
    threads = f"{verb} {plural(result.threads, 'thread')} from {', '.join(result.kinds)}"
    yield threads + (f": {', '.join(outcomes)}" if outcomes else "")
    for name in _COUNTS:
        if count := getattr(result, name):
            yield f"  {name.replace('_', ' '):<15}{count:>12,}"
    if result.bytes:
        yield f"  {'size':<15}{format_size(result.bytes):>12}"
    yield from (f"differs: {each}" for each in result.differences)
    yield from (each.plain for each in damage_lines(result.skipped, result.damage))
    if not result.complete:
        yield "the file is truncated: its last thread or memories are missing"
    if result.verified and result.is_equal:
        yield "both sides are equal"
