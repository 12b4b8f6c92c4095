"""The command `branches`: list the branches of a thread, name, compare or delete one, or make it the latest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

import threadkeep
from threadkeep import BranchComparison, BranchInfo, DeletedBranch
from threadkeep.cli.app import app, confirm, open_keep
from threadkeep.cli.differences import difference_lines
from threadkeep.cli.options import DryRun, FullIds, Json, Kind, KindName, Tenant, Thread, Url, Yes
from threadkeep.cli.output import (
    NARROW,
    STATUS_STYLES,
    Hanging,
    as_plain,
    console,
    format_size,
    id_names,
    is_terminal,
    one_line,
    print_ids,
    print_result,
    table,
)
from threadkeep.plural import plural

_INDENT = Text("  ")
_ALWAYS = ("", "checkpoints", "step")
"""Columns that are shown even if nothing is in them."""
_FOLDED = ("name", "next", "tags")
"""Columns that are broken into lines in a narrow terminal."""

_WIDE_ONLY = ("checkpoints", "step")
"""Columns that a narrow terminal does not show."""


@app.command(epilog="Example: threadkeep branches trip --compare latest 1f17")
def branches(
    thread: Thread,
    *,
    name: Annotated[
        tuple[str, str] | None,
        typer.Option("--name", metavar="BRANCH NAME", help="Name a branch; an empty NAME removes its name."),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", metavar="A B", help="Compare two branches and their states."),
    ] = None,
    switch: Annotated[
        str | None, typer.Option("--switch", metavar="BRANCH", help="Make a branch the latest, as rollback does.")
    ] = None,
    delete: Annotated[
        str | None,
        typer.Option("--delete", metavar="BRANCH", help="Delete what only this branch has; not the latest branch."),
    ] = None,
    ns: Annotated[str, typer.Option("--ns", metavar="NAMESPACE", help="Subgraph namespace; '' is the root.")] = "",
    kind: Kind = None,
    force: Annotated[
        bool, typer.Option("--force", help="Delete even if somebody holds a lease of the thread.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    ids: Annotated[bool, typer.Option("--ids", help="Print only the ids of heads, one on each line.")] = False,
    full_ids: FullIds = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """List the branches of a thread, newest first; or name, compare, switch to, or delete one.

    Branches are given by name, by head, or by another checkpoint that only they have.
    """
    if [name, compare, switch, delete].count(None) < 3:
        raise ValueError("pass only one of --name, --compare, --switch and --delete")
    if ids and (name or compare or switch or delete) is not None:
        raise ValueError("--ids is for the list: leave out --name, --compare, --switch and --delete")
    changes = (name or switch or delete) is not None
    with open_keep(url, tenant, read_only=dry_run or not changes) as keep:
        if name is not None:
            _name(keep, thread, name, ns, kind, dry_run=dry_run, json=json)
        elif compare is not None:
            compared = keep.compare_branches(thread, *compare, ns=ns, kind=kind)
            print_result(compared, _compared_lines(compared, full_ids=full_ids), as_json=json)
        elif switch is not None:
            branch = keep.switch_branch(thread, switch, ns=ns, kind=kind, dry_run=dry_run)
            verb = "would switch" if dry_run else "switched"
            lines = [f"{verb} {one_line(thread)} to {one_line(switch)}", f"  checkpoint  {one_line(branch.id)}"]
            print_result({**as_plain(branch), "dry_run": dry_run}, lines, as_json=json)
        elif delete is not None:
            if not dry_run and not yes:
                preview = keep.delete_branch(thread, delete, ns=ns, kind=kind, dry_run=True, force=force)
                confirm(f"Delete {_deleted_text(preview)}?", yes=yes)
            deleted = keep.delete_branch(thread, delete, ns=ns, kind=kind, dry_run=dry_run, force=force)
            print_result(deleted, _deleted_lines(deleted), as_json=json)
        else:
            found = keep.branches(thread, ns=ns, kind=kind)
            if ids:
                print_ids((each.head for each in found), as_json=json)
                return
            print_result(found, _branch_lines(found, full_ids=full_ids), as_json=json)


def _name(
    keep: threadkeep.Keep,
    thread: str,
    given: tuple[str, str],
    ns: str,
    kind: KindName | None,
    *,
    dry_run: bool,
    json: bool,
) -> None:
    if dry_run:
        raise ValueError("--dry-run is for --switch and --delete")
    branch, name = given
    named = keep.name_branch(thread, branch, name or None, ns=ns, kind=kind)
    text = (
        f"the branch of {named.head} is named {named.name}" if named.name else f"the branch of {named.head} has no name"
    )
    print_result(named, [one_line(text)], as_json=json)


def _branch_lines(branches: list[BranchInfo], *, full_ids: bool) -> Iterator[RenderableType]:
    if not branches:
        yield "no branches: the namespace has no checkpoints"
        return
    ids = {id for each in branches for id in (each.head, each.fork_point) if id is not None}
    names = id_names(ids, full_ids=full_ids)
    columns = ["", "head", "name", "forks at", "checkpoints", "step", "status", "next", "updated", "tags"]
    rows = [
        [
            "*" if each.is_latest else "",
            names[each.head],
            each.name,
            names[each.fork_point] if each.fork_point is not None else None,
            each.checkpoints,
            each.step,
            Text(each.status, STATUS_STYLES.get(each.status, "")),
            ", ".join(each.next),
            each.updated,
            ", ".join(each.tags),
        ]
        for each in branches
    ]
    left_out = _WIDE_ONLY if is_terminal() and console().width < NARROW else ()
    shown = [n for n, name in enumerate(columns) if name not in left_out]
    used = [n for n in shown if columns[n] in _ALWAYS or any(row[n] for row in rows)]
    columns, rows = [columns[n] for n in used], [[row[n] for n in used] for row in rows]
    no_wrap = [name for name in columns if name not in _FOLDED]
    yield table(columns, rows, right=("checkpoints", "step"), no_wrap=no_wrap)
    if left_out:
        yield Text(f"a wider terminal also shows: {', '.join(left_out)}", "dim")


def _compared_lines(found: BranchComparison, *, full_ids: bool) -> Iterator[RenderableType]:
    known = {found.a.head, found.b.head, *([found.common] if found.common is not None else ())}
    names = id_names(known, full_ids=full_ids)
    a, b = (each.name or names[each.head] for each in (found.a, found.b))
    common = f"part after {names[found.common]}" if found.common is not None else "have no checkpoint in common"
    yield Hanging(Text(), Text(one_line(f"{a} and {b} {common}")), _INDENT)
    for sign, name, only in (("-", a, found.only_a), ("+", b, found.only_b)):
        yield Hanging(Text(f"{sign} "), Text(one_line(f"only {name}: {plural(len(only), 'checkpoint')}")))
    yield from difference_lines(found.diff)


def _deleted_text(deleted: DeletedBranch) -> str:
    count = plural(len(deleted.checkpoints), "checkpoint")
    return one_line(f"{count} of branch {deleted.name or deleted.head} ({format_size(deleted.bytes)})")


def _deleted_lines(deleted: DeletedBranch) -> Iterator[RenderableType]:
    yield f"{'would delete' if deleted.dry_run else 'deleted'} {_deleted_text(deleted)}"
    if deleted.hidden:
        yield f"{plural(len(deleted.hidden), 'checkpoint')} hidden: delta channels of others need them"
    for id in deleted.kept:
        yield one_line(f"kept {id}: it is tagged")
