"""The commands that remove old data: prune, sweep; and tag, which protects a checkpoint from them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import RenderableType

import threadkeep
from threadkeep import Policy, PruneResult, SweepResult
from threadkeep.cli.app import app, confirm, open_keep, resolve_namespace
from threadkeep.cli.options import (
    DURATION,
    Checkpoint,
    Config,
    DryRun,
    Force,
    Json,
    Kind,
    KindName,
    Match,
    Metadata,
    Namespace,
    Prefix,
    Tenant,
    Thread,
    Threads,
    Url,
    Yes,
    key_value,
)
from threadkeep.cli.output import (
    damaged_lines,
    format_size,
    leased_lines,
    one_line,
    print_result,
    progress_bar,
    skipped_lines,
    table,
)
from threadkeep.engine.threads import retention
from threadkeep.engine.threads.retention import PrunedThread
from threadkeep.errors import Missing
from threadkeep.jobs.policies import read
from threadkeep.plural import plural

_MOST_ROWS = 200


class _PolicyOptions(NamedTuple):
    """The options of `prune` that make a policy: which threads it is for, and what it keeps."""

    prefix: str
    ns: str | None
    metadata: Sequence[str]
    match: str
    keep_last: int | None
    keep_for: str | None
    drop_idle: str | None

    @property
    def has_rules(self) -> bool:
        return any(rule is not None for rule in (self.keep_last, self.keep_for, self.drop_idle))

    @property
    def has_selection(self) -> bool:
        return bool(self.prefix or self.ns is not None or self.metadata or self.match != "any")


@app.command(epilog="Example: threadkeep prune --keep-last 20 --keep-for 30d --dry-run")
def prune(
    threads: Threads = None,
    *,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", metavar="N", help="Keep the last N checkpoints of each namespace.")
    ] = None,
    keep_for: Annotated[
        str | None,
        typer.Option("--keep-for", metavar="DURATION", help=f"Keep checkpoints younger than DURATION: {DURATION}."),
    ] = None,
    drop_idle: Annotated[
        str | None,
        typer.Option("--drop-idle", metavar="DURATION", help="Delete threads idle for longer than DURATION."),
    ] = None,
    prefix: Prefix = "",
    ns: Annotated[
        str | None,
        typer.Option("--ns", metavar="NAMESPACE", help="Only this namespace; '' is the root.", show_default=False),
    ] = None,
    metadata: Metadata = None,
    match: Match = "any",
    config: Config = None,
    kind: Kind = None,
    force: Force = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Remove checkpoints that a policy does not keep. Without a policy, keep only the latest of the threads given.

    A policy always keeps the latest checkpoint, tagged checkpoints, checkpoints with an unanswered interrupt, and the
    checkpoints where branches start and end.
    """
    options = _PolicyOptions(prefix, ns, metadata or (), match, keep_last, keep_for, drop_idle)
    policies = _policies(config, options, kind)
    if policies is None and not threads:
        raise ValueError("nothing to prune by: name threads, or pass --keep-last, --keep-for, --drop-idle or --config")
    ids = list(dict.fromkeys(threads or ()))
    with open_keep(url, tenant, read_only=dry_run) as keep:
        _check_threads_exist(keep, ids, kind)
        run = partial(_prune, keep, ids, policies, kind, force=force, hide_progress=json)
        if not (dry_run or yes) and (preview := run(dry_run=True)).threads:
            confirm(f"Remove {_removed_text(preview)}?", yes=yes)
        result = run(dry_run=dry_run)
    print_result(result, _prune_lines(result), as_json=json)


def _policies(config: Path | None, options: _PolicyOptions, kind: KindName | None) -> list[Policy] | None:
    """Return the policies that the options give; None if they give none."""
    if config is not None:
        if options.has_rules or options.has_selection:
            raise ValueError("--config replaces the other policy options: leave them out")
        return list(read(config))
    if options.has_rules:
        fields = options._asdict() | {"metadata": dict(map(key_value, options.metadata)) or None}
        return [Policy(**fields, kind=kind)]
    if options.has_selection:
        raise ValueError("no rule given: pass --keep-last, --keep-for or --drop-idle")
    return None


def _check_threads_exist(keep: threadkeep.Keep, ids: Iterable[str], kind: KindName | None) -> None:
    """Raise Missing if a thread does not exist, before any other is pruned."""
    for id in ids:
        if keep.thread(id, kind=kind) is None:
            raise Missing(f"thread {id!r} not found")


def _prune(
    keep: threadkeep.Keep,
    ids: list[str],
    policies: list[Policy] | None,
    kind: KindName | None,
    *,
    dry_run: bool,
    force: bool,
    hide_progress: bool,
) -> PruneResult:
    title = "examining" if dry_run else "pruning"
    with progress_bar(title, hidden=hide_progress) as on_progress:
        if not ids:
            return keep.prune(policy=policies, kind=kind, dry_run=dry_run, force=force, on_progress=on_progress)
        results = [keep.prune(id, policy=policies, kind=kind, dry_run=dry_run, force=force) for id in ids]
    pruned_threads = (thread for result in results for thread in result.threads)
    return retention.prune_result(
        pruned_threads,
        examined=sum(each.examined for each in results),
        dry_run=dry_run,
        damaged=[id for result in results for id in result.damaged],
        leased=[id for result in results for id in result.leased],
    )


def _removed_text(result: PruneResult) -> str:
    """Return what is removed, in words."""
    whole = f", including {plural(result.dropped, 'whole thread')}" if result.dropped else ""
    threads = plural(len(result.threads), "thread")
    return f"{plural(result.checkpoints, 'checkpoint')} of {threads}{whole} ({format_size(result.bytes)})"


def _prune_lines(result: PruneResult) -> Iterable[RenderableType]:
    if result.threads:
        columns = ("thread", "kind", "dropped", "checkpoints", "hidden", "writes", "size", "matching")
        shown = len(columns) if any(each.matching is not None for each in result.threads) else -1
        rows = (_prune_row(each)[:shown] for each in result.threads[:_MOST_ROWS])
        yield table(columns[:shown], rows, right=columns[3:])
        if len(result.threads) > _MOST_ROWS:
            yield f"… and {len(result.threads) - _MOST_ROWS:,} more: --json prints all"
    verb = "would remove" if result.dry_run else "removed"
    removed = f"{verb} {_removed_text(result)}" if result.threads else "nothing to remove"
    yield f"examined {plural(result.examined, 'thread')}; {removed}"
    yield from damaged_lines(result.damaged)
    yield from skipped_lines(result.skipped)
    yield from leased_lines(result.leased)


def _prune_row(thread: PrunedThread) -> tuple[Any, ...]:
    dropped = "yes" if thread.dropped else ""
    counts = (len(thread.checkpoints), len(thread.hidden), thread.writes)
    matching = "" if thread.matching is None else f"{thread.matching:,} of {thread.total:,}"
    return (thread.id, thread.kind, dropped, *counts, format_size(thread.bytes), matching)


@app.command(epilog="Example: threadkeep sweep --config threadkeep.toml --every 60 --yes")
def sweep(
    config: Config = None,
    *,
    every: Annotated[
        float | None,
        typer.Option("--every", metavar="MINUTES", help="Repeat every MINUTES minutes until interrupted."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Remove expired memories. With --config, also remove checkpoints and threads by policy."""
    if every is not None and not every > 0:
        raise ValueError(f"--every must be greater than 0, not {every}")
    policies = read(config) if config is not None else ()
    with open_keep(url, tenant, read_only=dry_run, retention=policies) as keep:
        if policies and not dry_run:
            confirm(f"Sweep with the policies in {config}?", yes=yes)
        while True:
            with progress_bar("sweeping", hidden=json) as on_progress:
                result = keep.sweep(dry_run=dry_run, on_progress=on_progress)
            print_result(result, _sweep_lines(result), as_json=json, paged=every is None)
            if every is None:
                return
            time.sleep(every * 60)


def _sweep_lines(result: SweepResult) -> Iterable[RenderableType]:
    if result.memories is not None:
        yield f"removed {plural(result.memories, 'expired memory', 'expired memories')}"
    if result.pruned.examined:
        yield from _prune_lines(result.pruned)
    elif result.memories is None:
        yield "nothing to remove from threads (a dry run does not count expired memories)"


@app.command(epilog="Example: threadkeep tag trip latest~3 before-refund")
def tag(
    thread: Thread,
    checkpoint: Checkpoint,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The tag.")] = None,
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the tag.")] = False,
    ns: Namespace = None,
    kind: Kind = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Tag a checkpoint, so that policies do not remove it."""
    if (name is None) != remove:
        raise ValueError("pass either NAME or --remove")
    with open_keep(url, tenant) as keep:
        ns = resolve_namespace(keep, thread, checkpoint, ns, kind)
        id = keep.tag(thread, checkpoint, name, ns=ns, kind=kind)
    text = f"removed the tag of {one_line(id)}" if name is None else f"tagged {one_line(id)} as {one_line(name)}"
    print_result({"thread": thread, "ns": ns, "id": id, "tag": name}, [text], as_json=json)
