"""Commands that let go of what is old: prune, sweep; and tag, so that something stays."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

import threadkeep
from threadkeep import Policy, PruneResult, SweepResult
from threadkeep.cli.app import (
    CHECKPOINT,
    DURATION,
    DryRun,
    Json,
    Kind,
    Namespace,
    Tenant,
    Url,
    Yes,
    app,
    opened,
    space,
    sure,
)
from threadkeep.cli.look import pair
from threadkeep.cli.output import answer, bar, counted, left_alone, line, size, table
from threadkeep.engine.threads import retention
from threadkeep.errors import Missing
from threadkeep.jobs.policies import read

_Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A threadkeep.toml with [[retention]] tables.")
]
_SHOWN = 200
_Selecting = tuple[str, str | None, Sequence[str], str | None]


@app.command()
def prune(
    threads: Annotated[list[str] | None, typer.Argument(metavar="THREAD", help="Ids of threads; all, if none.")] = None,
    *,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", metavar="N", help="Keep the last N checkpoints of each namespace.")
    ] = None,
    keep_for: Annotated[
        str | None,
        typer.Option("--keep-for", metavar="DURATION", help=f"Keep checkpoints younger than this: {DURATION}."),
    ] = None,
    drop_idle: Annotated[
        str | None,
        typer.Option("--drop-idle", metavar="DURATION", help="Delete threads idle for longer than DURATION."),
    ] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="Only threads whose ids begin so.")] = "",
    ns: Annotated[
        str | None, typer.Option("--ns", help="Only this namespace; the root's is empty.", show_default=False)
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Only threads with this metadata.")
    ] = None,
    config: _Config = None,
    kind: Kind = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Remove checkpoints that a policy does not keep. Of threads that are named, without a policy: all but the latest.

    What is tagged or waits for an answer stays, and so do branch points, where branches begin and end, and the latest.
    """
    rules = (keep_last, keep_for, drop_idle)
    policies = _policies(config, rules, (prefix, ns, metadata or [], kind))
    if policies is None and not threads:
        raise ValueError("say which threads, or what to keep: --keep-last, --keep-for, --drop-idle or --config")
    threads = list(dict.fromkeys(threads or ()))
    with opened(url, tenant, read_only=dry_run) as keep:
        _check_there(keep, threads, kind)
        pruning = partial(_pruned, keep, threads, policies, kind, quiet=json)
        if not (dry_run or yes) and (would := pruning(dry_run=True)).threads:
            sure(f"Remove {_what(would)}?", yes=yes)
        done = pruning(dry_run=dry_run)
    answer(done, _pruned_lines(done), as_json=json)


def _policies(
    config: Path | None, rules: tuple[int | None, str | None, str | None], selecting: _Selecting
) -> list[Policy] | None:
    """What the options say; None if they say nothing."""
    prefix, ns, metadata, kind = selecting
    if config is not None:
        if any(each is not None for each in rules) or prefix or ns is not None or metadata:
            raise ValueError("--config has the policies: leave out the other options that say what to keep")
        return list(read(config))
    keep_last, keep_for, drop_idle = rules
    if not any(each is not None for each in rules):
        if prefix or ns is not None or metadata:
            raise ValueError("say what to keep: --keep-last, --keep-for or --drop-idle")
        return None
    return [
        Policy(
            prefix=prefix, ns=ns, metadata=dict(map(pair, metadata)) or None, kind=kind, keep_last=keep_last, keep_for=keep_for,
            drop_idle=drop_idle,
        )
    ]  # fmt: skip


def _check_there(keep: threadkeep.Keep, threads: Iterable[str], kind: str | None) -> None:
    """Missing if a thread is not there, before anything of the others goes."""
    for id in threads:
        if keep.thread(id, kind=kind) is None:
            raise Missing(f"there is no thread {id!r}")


def _pruned(
    keep: threadkeep.Keep,
    threads: list[str],
    policies: list[Policy] | None,
    kind: str | None,
    *,
    dry_run: bool,
    quiet: bool,
) -> PruneResult:
    title = "looking" if dry_run else "pruning"
    with bar(title, hidden=quiet) as tell:
        if not threads:
            return keep.prune(policy=policies, kind=kind, dry_run=dry_run, on_progress=tell)
        found = [keep.prune(id, policy=policies, kind=kind, dry_run=dry_run) for id in threads]
    threads_pruned = (one for each in found for one in each.threads)
    return retention.pruned(threads_pruned, looked_at=sum(each.examined for each in found), dry_run=dry_run)


def _what(pruned: PruneResult) -> str:
    """What goes, in words."""
    whole = f", {counted(pruned.dropped, 'whole thread')}" if pruned.dropped else ""
    where = counted(len(pruned.threads), "thread")
    return f"{counted(pruned.checkpoints, 'checkpoint')} of {where}{whole}: {size(pruned.bytes)}"


def _pruned_lines(pruned: PruneResult) -> Iterable[RenderableType]:
    if pruned.threads:
        columns = ("thread", "kind", "", "checkpoints", "hidden", "writes", "bytes")
        rows = [
            (line(each.id), each.kind, "dropped" if each.dropped else "", len(each.checkpoints), len(each.hidden), each.writes, size(each.bytes))
            for each in pruned.threads[:_SHOWN]
        ]  # fmt: skip
        yield table(columns, rows, right=("checkpoints", "hidden", "writes", "bytes"))
        if len(pruned.threads) > _SHOWN:
            yield f"… and {len(pruned.threads) - _SHOWN:,} more: --json shows all"
    verb = "would remove" if pruned.dry_run else "removed"
    looked = f"looked at {counted(pruned.examined, 'thread')}; "
    yield looked + (f"{verb} {_what(pruned)}" if pruned.threads else "nothing to remove")
    yield from left_alone(pruned.skipped)


@app.command()
def sweep(
    config: _Config = None,
    *,
    every: Annotated[
        float | None, typer.Option("--every", metavar="MINUTES", help="Sweep again and again, until interrupted.")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Remove memories that have expired, of all tenants, and what the policies of a file do not keep of threads."""
    if every is not None and not every > 0:
        raise ValueError(f"--every must be above 0, not {every}")
    policies = read(config) if config is not None else ()
    with opened(url, tenant, read_only=dry_run, retention=policies) as keep:
        if policies and not dry_run:
            sure(f"Sweep by the policies of {config}?", yes=yes)
        while True:
            with bar("sweeping", hidden=json) as tell:
                swept = keep.sweep(dry_run=dry_run, on_progress=tell)
            answer(swept, _swept_lines(swept), as_json=json)
            if every is None:
                return
            time.sleep(every * 60)


def _swept_lines(swept: SweepResult) -> Iterable[RenderableType]:
    if swept.memories is not None:
        yield f"removed {counted(swept.memories, 'expired memory', 'expired memories')}"
    if swept.pruned.examined:
        yield from _pruned_lines(swept.pruned)
    elif swept.memories is None:
        yield "no policies: nothing to remove (a dry run does not count expired memories)"


@app.command()
def tag(
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="A thread's id.")],
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help=CHECKPOINT)],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The tag.")] = None,
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Take its tag away.")] = False,
    ns: Namespace = None,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Tag a checkpoint, so that no policy removes it."""
    if (name is None) != remove:
        raise ValueError("say a NAME, or --remove")
    with opened(url, tenant) as keep:
        ns = space(keep, thread, checkpoint, ns, kind)
        id = keep.tag(thread, checkpoint, name, ns=ns, kind=kind)
    said = f"tagged {line(id)} {line(name)}" if name is not None else f"{line(id)} has no tag"
    answer({"thread": thread, "ns": ns, "id": id, "tag": name}, [said], as_json=json)
