"""The commands `export`, into a portable file, and `convert`, from one storage to another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import threadkeep
from threadkeep.cli.app import NO, DryRun, Json, Tenant, Url, app, as_url, opened, saying
from threadkeep.cli.output import answer, bar, counted, left_alone, line, size
from threadkeep.cli.transfer import result_lines

_Prefix = Annotated[str, typer.Option("--prefix", help="Only threads whose id starts with PREFIX.")]
_Kind = Annotated[str | None, typer.Option("--kind", help="Only graph (LangGraph) or cube (CubeLoop).")]
_Memories = Annotated[
    bool | None,
    typer.Option("--memories/--no-memories", help="Include memories, or not.", show_default="only with all threads"),
]


@app.command()
def export(
    threads: Annotated[
        list[str] | None, typer.Argument(metavar="THREAD", help="Ids of threads; all by default.")
    ] = None,
    *,
    output: Annotated[str, typer.Option("--output", "-o", help="The file; - for the standard output.")],
    prefix: _Prefix = "",
    kind: _Kind = None,
    memories: _Memories = None,
    redact: Annotated[bool, typer.Option("--redact", help="Replace what people wrote: for bug reports.")] = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Write threads and memories into a portable file, compressed unless its name ends in .jsonl.

    Damaged threads that are not named are left out, and the exit code is 1.
    """
    where = sys.stdout.buffer if output == "-" else output
    if json and output == "-":
        raise ValueError("--json and --output - both write to the standard output: choose one")
    gone = "nothing was written" if output != "-" else "what was written is not complete"
    with opened(url, tenant, read_only=True) as keep, saying(gone), bar("exporting") as tell:
        done = keep.export(
            where, thread_id=threads or None, prefix=prefix, kind=kind, memories=memories, redact=redact,
            on_progress=tell,
        )  # fmt: skip
    code = NO if done.skipped else 0
    if output == "-":
        return code
    told = f"exported {counted(done.threads, 'thread')} and {counted(done.memories, 'memory', 'memories')} to {output}"
    more = f"{done.checkpoints:,} checkpoints, {done.writes:,} writes; {size(done.bytes)} before compression"
    note = ["texts, numbers and names were replaced; read the file before you send it"] if redact else []
    answer(done, [line(told), more, *note, *left_alone(done.skipped)], as_json=json)
    return code


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The source: a URL, or an SQLite file.")],
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help="The target; it may be new.")] = None,
    *,
    thread: Annotated[list[str] | None, typer.Option("--thread", help="Only this thread; may be repeated.")] = None,
    prefix: _Prefix = "",
    kind: _Kind = None,
    memories: _Memories = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Read both sides again and compare.")] = True,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Copy threads and memories from one storage to another, as they are stored.

    With one argument only, it is the target, and --url is the source. Repeat the command to continue after an
    interruption, or to copy what is new. Exit code 1 if both sides differ in the end.
    """
    there, here = (source, target) if target is not None else (url, source)
    with (
        opened(there, tenant, read_only=True) as one,
        _target(here, tenant, dry_run=dry_run) as other,
        saying("what was copied stays; the same command continues"),
        bar("converting") as tell,
    ):
        done = threadkeep.convert(
            one, other, thread_id=thread or None, prefix=prefix, kind=kind, memories=memories, verify=verify,
            dry_run=dry_run, on_progress=tell,
        )  # fmt: skip
    answer(done, map(line, result_lines(done, "convert", "converted")), as_json=json)
    return 0 if done.is_equal else NO


@contextmanager
def _target(url: str | None, tenant: str, *, dry_run: bool) -> Iterator[threadkeep.Keep]:
    """The target. A dry run does not create a file: if there is none yet, the target is empty."""
    file = as_url(url).removeprefix("sqlite:///")
    is_new = "://" not in file and not Path(file).exists()
    if dry_run and is_new:
        url = "memory://"
    with opened(url, tenant, read_only=dry_run, may_be_new=not dry_run) as keep:
        yield keep
