"""The commands that check and maintain the storage: verify, repair, doctor, compact."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from threadkeep.cli.app import NEGATIVE, app, confirm, open_keep
from threadkeep.cli.options import CHECKPOINT_HELP, DryRun, Json, Kind, OneThread, Prefix, Tenant, Thread, Url, Yes
from threadkeep.cli.output import (
    damaged_lines,
    format_size,
    one_line,
    print_result,
    progress_bar,
    skipped_lines,
    table,
)
from threadkeep.engine.health.repair import RepairResult
from threadkeep.engine.health.thread_scan import Problem
from threadkeep.engine.health.verify import VerifyResult
from threadkeep.jobs.compact import CompactResult
from threadkeep.jobs.doctor import PROBLEM, Finding
from threadkeep.plural import plural

_VERDICT_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}
_MOST_ROWS = 200
_MOST_IDS = 5
_CHECKED = {
    "thread": "threads",
    "checkpoint": "checkpoints",
    "write": "writes",
    "item": "items",
    "memory": "memories",
}
"""What `verify` counts: the noun, and its plural, which is also the field of the result."""


@app.command(epilog="Example: threadkeep verify --prefix chat-")
def verify(
    thread: OneThread = None,
    *,
    prefix: Prefix = "",
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Check every checksum, reference, parent, value and counter. Change nothing. Exit code 1 if there are problems.

    Without THREAD, --prefix and --kind, memories and the database itself are checked too.
    """
    with open_keep(url, tenant, read_only=True) as keep, progress_bar("verifying", hidden=json) as on_progress:
        result = keep.verify(thread, prefix=prefix, kind=kind, on_progress=on_progress)
    print_result(result, _verify_lines(result), as_json=json)
    return NEGATIVE if result.problems else 0


def _verify_lines(result: VerifyResult) -> Iterator[RenderableType]:
    if result.problems:
        yield table(("problem", "where", "message"), map(_problem_row, result.problems[:_MOST_ROWS]))
        if len(result.problems) > _MOST_ROWS:
            yield f"… and {len(result.problems) - _MOST_ROWS:,} more: --json prints all"
        yield ""
    checked = ", ".join(plural(getattr(result, many), one, many) for one, many in _CHECKED.items())
    found = plural(len(result.problems), "problem") if result.problems else "no problems"
    style = "red" if result.problems else "green"
    yield Text(f"{found}: checked {checked}, {format_size(result.bytes)}", style=style)


def _problem_row(problem: Problem) -> tuple[Any, ...]:
    where = [] if problem.thread is None else [problem.thread]
    where += [part for part in (problem.ns, problem.checkpoint) if part]
    return Text(problem.problem, style="red"), " ".join(where), problem.message


@app.command(epilog="Example: threadkeep repair trip --dry-run")
def repair(
    thread: Thread,
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="CHECKPOINT", help=f"{CHECKPOINT_HELP} Default: the newest, if it is damaged."),
    ] = None,
    *,
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="MODULE:ATTRIBUTE",
            help="The compiled graph, or a function that returns it. Its reducers apply the writes.",
        ),
    ] = None,
    ns: Annotated[str, typer.Option("--ns", metavar="NAMESPACE", help="Subgraph namespace; '' is the root.")] = "",
    kind: Kind = None,
    discard: Annotated[
        bool,
        typer.Option(
            "--discard",
            help="Remove the damaged checkpoint instead. Without CHECKPOINT, remove everything damaged in the thread.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Rebuild a damaged checkpoint as a new branch. Without --discard, no checkpoint is overwritten or removed.

    It is rebuilt from its intact parts, its ancestors and the stored writes. The output lists every assumption.
    """
    with open_keep(url, tenant, read_only=dry_run) as keep:
        compiled = _load_graph(graph) if graph else None
        run = partial(keep.repair, thread, checkpoint, ns=ns, graph=compiled, discard=discard, kind=kind)
        if discard and not (dry_run or yes):
            preview = run(dry_run=True)
            if preview.discarded or preview.discarded_writes:
                confirm(f"Remove {_discarded_text(preview)}?", yes=yes)
        result = run(dry_run=dry_run)
    print_result(result, _repair_lines(result, dry_run=dry_run), as_json=json)


def _load_graph(reference: str) -> Any:
    """Import `module:attribute`, also from the current directory. Call it if it is a function and not a graph."""
    module, separator, attribute = reference.partition(":")
    if not separator or not module or not attribute:
        raise ValueError(f"--graph must be MODULE:ATTRIBUTE, such as agent:graph, not {reference!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), attribute)
    except AttributeError as error:
        raise ValueError(f"--graph {reference}: {error}") from error
    finally:
        sys.path.pop(0)
    return found if hasattr(found, "channels") or not callable(found) else found()


def _discarded_text(result: RepairResult) -> str:
    """Return what is removed, in words."""
    checkpoints = [plural(len(result.discarded), "damaged checkpoint")] if result.discarded else []
    tasks = plural(len(result.discarded_writes), "task")
    writes = [f"the damaged writes of {tasks}"] if result.discarded_writes else []
    ids = [id for _, id in result.discarded[:_MOST_IDS]] + ["…"] * (len(result.discarded) > _MOST_IDS)
    named = f" ({one_line(', '.join(ids))})" if ids else ""
    return f"{' and '.join(checkpoints + writes)}{named} of thread {one_line(result.thread)}"


def _repair_lines(result: RepairResult, *, dry_run: bool) -> Iterator[RenderableType]:
    if result.thread_row:
        verb = "would correct" if dry_run else "corrected"
        yield Text(one_line(f"{verb} the thread's row: {', '.join(result.thread_row)}"))
    if result.discarded or result.discarded_writes:
        yield Text(f"{'would remove' if dry_run else 'removed'} {_discarded_text(result)}")
    elif result.damaged is None:
        if not result.thread_row:
            yield "nothing to repair"
    elif dry_run:
        yield f"would repair {result.damaged}"
    else:
        yield f"repaired {result.damaged}: the thread continues from {result.checkpoint}"
    if result.channels:
        yield ""
        yield table(("channel", "value"), result.channels.items())
    for title, texts in (("assumed", result.assumptions), ("also damaged", result.affected)):
        if texts:
            yield ""
            yield f"{title}:"
            yield from (Text(one_line(f"- {each}")) for each in texts)


@app.command(epilog="Example: threadkeep doctor --url agent.db")
def doctor(*, url: Url = None, tenant: Tenant = "", json: Json = False) -> int:
    """Report storage settings and recommend changes. Exit code 1 if there is a problem."""
    with open_keep(url, tenant, read_only=True) as keep:
        findings = [each for each in keep.doctor() if each.name != "read only"]  # it is this command that is read-only
    print_result(findings, [table(("verdict", "name", "value", "advice"), map(_finding_row, findings))], as_json=json)
    return NEGATIVE if any(finding.verdict == PROBLEM for finding in findings) else 0


def _finding_row(finding: Finding) -> tuple[Any, ...]:
    verdict = Text(finding.verdict, style=_VERDICT_STYLES[finding.verdict])
    return verdict, finding.name, finding.value, finding.advice


@app.command(epilog="Example: threadkeep compact --url agent.db")
def compact(*, url: Url = None, tenant: Tenant = "", json: Json = False) -> None:
    """Free unused items and return space to the system. Safe while agents run."""
    with open_keep(url, tenant) as keep, progress_bar("compacting", hidden=json) as on_progress:
        result = keep.compact(on_progress=on_progress)
    print_result(result, _compact_lines(result), as_json=json)


def _compact_lines(result: CompactResult) -> Iterator[RenderableType]:
    yield f"freed {plural(result.items, 'item')} of {plural(result.threads, 'thread')}"
    yield f"{format_size(result.bytes_before)} before, {format_size(result.bytes_after)} after"
    yield from damaged_lines(result.damaged)
    yield from skipped_lines(result.skipped)
