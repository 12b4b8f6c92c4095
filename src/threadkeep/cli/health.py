"""Commands about health: verify, repair, doctor, compact."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from threadkeep.cli.app import NO, DryRun, Json, Kind, Tenant, Url, Yes, app, opened
from threadkeep.cli.output import answer, bar, counted, left_alone, size, table
from threadkeep.engine.health.repair import RepairResult
from threadkeep.engine.health.thread_scan import Problem
from threadkeep.engine.health.verify import VerifyResult
from threadkeep.jobs.compact import CompactResult
from threadkeep.jobs.doctor import PROBLEM, Finding

_VERDICTS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}
_SHOWN = 200
_LOOKED_AT = {
    "thread": "threads",
    "checkpoint": "checkpoints",
    "write": "writes",
    "item": "items",
    "memory": "memories",
}


@app.command()
def verify(
    thread: Annotated[
        str | None, typer.Argument(metavar="THREAD", help="A thread's id; all of them otherwise.")
    ] = None,
    *,
    prefix: Annotated[str, typer.Option("--prefix", help="Only threads whose ids begin so.")] = "",
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Check every checksum, reference, parent, value and count; nothing is changed. Exit code 1 if something is wrong.

    Without a thread, a prefix or a kind, memories and the storage itself are checked too.
    """
    with opened(url, tenant, read_only=True) as keep, bar("verify", hidden=json) as tell:
        verified = keep.verify(thread, prefix=prefix, kind=kind, on_progress=tell)
    answer(verified, _verified(verified), as_json=json)
    return NO if verified.problems else 0


def _verified(verified: VerifyResult) -> Iterator[RenderableType]:
    if verified.problems:
        yield table(("problem", "where", "what"), map(_problem_row, verified.problems[:_SHOWN]))
        if len(verified.problems) > _SHOWN:
            yield f"… and {len(verified.problems) - _SHOWN:,} more: --json shows all"
        yield ""
    looked = ", ".join(counted(getattr(verified, many), one, many) for one, many in _LOOKED_AT.items())
    found = counted(len(verified.problems), "problem") if verified.problems else "all is well"
    yield Text(f"{found}: {looked}, {size(verified.bytes)}", style="red" if verified.problems else "green")


def _problem_row(problem: Problem) -> tuple[Any, ...]:
    place = [f"{problem.thread}"] if problem.thread is not None else []
    place += [problem.ns] if problem.ns else []
    place += [problem.checkpoint] if problem.checkpoint else []
    return Text(problem.problem, style="red"), _printable(" ".join(place)), _printable(problem.message)


def _printable(text: str) -> str:
    """Text without what a terminal would obey."""
    return "".join(
        each if each.isprintable() or each == " " else each.encode("unicode_escape").decode() for each in text
    )


@app.command()
def repair(
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="A thread's id.")],
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="CHECKPOINT",
            help="Its id, how it begins or ends, latest or latest~2; the newest, if it is damaged, otherwise.",
        ),
    ] = None,
    *,
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph", metavar="MODULE:ATTRIBUTE", help="The compiled graph, whose reducers merge the writes."
        ),
    ] = None,
    ns: Annotated[str, typer.Option("--ns", help="The namespace of a subgraph; the root's is empty.")] = "",
    kind: Kind = None,
    dry_run: DryRun = False,
    yes: Yes = False,  # noqa: ARG001 - nothing is destroyed, so nothing is asked; accepted for scripts
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Rebuild a damaged checkpoint from what is left of it, its ancestors and the stored writes, as a new branch.

    Nothing is overwritten or removed, and what had to be assumed is said.
    """
    with opened(url, tenant, read_only=dry_run) as keep:
        loaded = _graph(graph) if graph else None
        repaired = keep.repair(thread, checkpoint, ns=ns, graph=loaded, dry_run=dry_run, kind=kind)
    answer(repaired, _repaired(repaired, dry_run=dry_run), as_json=json)


def _graph(spelled: str) -> Any:
    """A compiled graph, or what a function without arguments gives, as `module:attribute` names it."""
    module, separator, attribute = spelled.partition(":")
    if not separator or not module or not attribute:
        raise ValueError(f"--graph is module:attribute, such as agent:graph, not {spelled!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), attribute)
    except AttributeError as error:
        raise ValueError(f"--graph {spelled}: {error}") from error
    finally:
        sys.path.pop(0)
    return found if hasattr(found, "channels") or not callable(found) else found()


def _repaired(repaired: RepairResult, *, dry_run: bool) -> Iterator[RenderableType]:
    if repaired.damaged is None:
        yield "nothing to repair"
    elif dry_run:
        yield f"would repair {repaired.damaged}"
    else:
        yield f"repaired {repaired.damaged}: go on from {repaired.checkpoint}"
    if repaired.channels:
        yield ""
        yield table(
            ("channel", "how it was obtained"), ((_printable(name), how) for name, how in repaired.channels.items())
        )
    for title, said in (("assumed", repaired.assumptions), ("damaged too", repaired.affected)):
        if said:
            yield ""
            yield f"{title}:"
            yield from (Text(_printable(f"- {each}")) for each in said)


@app.command()
def doctor(*, url: Url = None, tenant: Tenant = "", json: Json = False) -> int:
    """Say what is to know of the storage, and what should be changed. Exit code 1 if something is a problem."""
    with opened(url, tenant, read_only=True) as keep:
        findings = [each for each in keep.doctor() if each.name != "read only"]  # which is this command's own doing
    answer(findings, [table(("", "fact", "value", "advice"), map(_finding_row, findings))], as_json=json)
    return NO if any(finding.verdict == PROBLEM for finding in findings) else 0


def _finding_row(finding: Finding) -> tuple[Any, ...]:
    return (
        Text(finding.verdict, style=_VERDICTS[finding.verdict]),
        finding.name,
        _printable(finding.value),
        finding.advice,
    )


@app.command()
def compact(*, url: Url = None, tenant: Tenant = "", json: Json = False) -> None:
    """Free what nothing refers to, and have the storage give its space back. Safe beside running agents."""
    with opened(url, tenant) as keep, bar("compact", hidden=json) as tell:
        compacted = keep.compact(on_progress=tell)
    answer(compacted, _compacted(compacted), as_json=json)


def _compacted(compacted: CompactResult) -> Iterator[RenderableType]:
    yield f"freed {counted(compacted.items, 'item')} of {counted(compacted.threads, 'thread')}"
    yield f"{size(compacted.bytes_before)} before, {size(compacted.bytes_after)} after"
    yield from left_alone(compacted.skipped)
