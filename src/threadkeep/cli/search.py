"""The command `search`: find what was said in threads, and build or drop the search index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from threadkeep import SearchHit, SearchIndexResult, SearchResult
from threadkeep.cli.app import app, has_keys, open_keep
from threadkeep.cli.chat import ROLE_STYLES
from threadkeep.cli.completion import complete_from
from threadkeep.cli.foreign import is_foreign, read_foreign
from threadkeep.cli.options import TIME, FullIds, Json, KindFilter, Match, Metadata, Prefix, Tenant, Url, key_value
from threadkeep.cli.output import (
    Hanging,
    format_time,
    id_names,
    one_line,
    print_ids,
    print_result,
    progress_bar,
    skipped_lines,
)
from threadkeep.cli.settings import as_url
from threadkeep.plural import plural

_INDENT = Text("  ")
_NOT_INDEXED = "not in the search index, or changed since (see --build)"


@app.command(epilog="Example: threadkeep search refund policy --role human --since 30d")
def search(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORDS",
            help="Find texts that have all these words, in any order; '\"two words\"' in quotation marks as they are.",
            show_default=False,
        ),
    ] = None,
    *,
    prefix: Prefix = "",
    metadata: Metadata = None,
    match: Match = "latest",
    kind: KindFilter = None,
    role: Annotated[
        str | None,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="Only messages of this role: human, ai, tool, system or another.",
            autocompletion=complete_from("human", "ai", "tool", "system"),
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help=f"Only texts of TIME or later: {TIME}.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only texts before TIME.")] = None,
    all_branches: Annotated[
        bool,
        typer.Option(
            "--all-branches/--latest",
            help="Texts of all checkpoints, or only those that the latest checkpoint of a thread still has.",
        ),
    ] = True,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Print at most N hits.")] = 20,
    build: Annotated[
        bool, typer.Option("--build", help="Create the search index, or bring it up to date; then search, if asked to.")
    ] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Delete the search index.")] = False,
    scan: Annotated[bool, typer.Option("--scan", help="Read the threads, even if there is an index.")] = False,
    scan_limit: Annotated[
        int | None, typer.Option("--scan-limit", metavar="N", min=0, help="Read at most N threads.")
    ] = None,
    ids: Annotated[
        bool, typer.Option("--ids", help="Print only the ids of threads with hits, one on each line, best first.")
    ] = False,
    full_ids: FullIds = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Find what was said: messages and other text in the state of threads, best match first.

    Without an index, or where threads changed since it was built, the threads are read, and the command says so. The
    databases of LangGraph's and CubeLoop's own savers are searched without an import: they are read into memory.
    """
    if drop and (build or words):
        raise ValueError("--drop deletes the index: pass neither --build nor words with it")
    if ids and not words:
        raise ValueError("--ids prints the threads that a search finds: pass words with it")
    if not (drop or build or words):
        raise ValueError("search needs words, --build or --drop")
    foreign = not (build or drop) and is_foreign(as_url(url))
    with ExitStack() as stack:
        on_progress = stack.enter_context(progress_bar("threads", hidden=json or ids))
        keep = stack.enter_context(
            read_foreign(as_url(url), prefix=prefix, on_progress=on_progress)
            if foreign
            else open_keep(url, tenant, read_only=not (build or drop))
        )
        if drop:
            dropped = keep.drop_search_index()
            lines = ["dropped the search index" if dropped else "there is no search index"]
            print_result({"dropped": dropped}, lines, as_json=json)
            return
        if build:
            built = keep.build_search_index(on_progress=on_progress)
            if not words:
                print_result(built, _built_lines(built), as_json=json)
                return
        found = keep.search(
            " ".join(words or ()),
            limit=limit,
            prefix=prefix,
            kind=kind,
            metadata=dict(map(key_value, metadata or ())),
            match=match,
            role=role,
            since=since,
            until=until,
            all_branches=all_branches,
            scan=scan or foreign,
            scan_limit=scan_limit,
            on_progress=on_progress,
        )
    if ids:
        print_ids(dict.fromkeys(hit.thread for hit in found), as_json=json)
        if not found.complete:
            typer.echo("not all threads were read: see the output without --ids", err=True)
    else:
        print_result(
            found, _lines(found, why=_why_scanned(scan=scan, foreign=foreign), full_ids=full_ids), as_json=json
        )


def _built_lines(built: SearchIndexResult) -> Iterator[Text | str]:
    texts = plural(built.documents, "text")
    yield f"read {plural(built.threads, 'changed thread')} with {texts}: the search index is up to date"
    yield from skipped_lines(built.skipped)


def _lines(found: SearchResult, *, why: str, full_ids: bool) -> Iterator[RenderableType]:
    names = id_names({hit.checkpoint for hit in found}, full_ids=full_ids)
    for hit in found:
        yield Hanging(Text(), _heading(hit, names[hit.checkpoint]), _INDENT)
        yield Hanging(_INDENT, _snippet(hit))
    if not found.hits:
        yield "nothing found"
    if found.scanned:
        yield Text(f"scanned {plural(found.scanned, 'thread')}{why}", "dim")
    if not found.complete and not found.skipped:
        yield Text("not all threads were read: raise --scan-limit", "yellow")
    yield from skipped_lines(found.skipped)


def _why_scanned(*, scan: bool, foreign: bool) -> str:
    """Return why threads were scanned, unless the user asked for it."""
    if foreign:
        return ": this is the database of another saver"
    if scan:
        return ""
    return f": {'an encrypted storage has no search index' if has_keys() else _NOT_INDEXED}"


def _heading(hit: SearchHit, checkpoint: str) -> Text:
    text = Text(one_line(hit.thread), "bold")
    text.append(f"  {one_line(checkpoint)}", "not bold yellow")
    text.append(f"  {one_line(hit.ns)}" if hit.ns else "", "not bold")
    text.append(f"  {format_time(hit.time)}", "not bold dim")
    if hit.role is not None:
        text.append(f"  {one_line(hit.role)}", f"not bold {ROLE_STYLES.get(hit.role, 'white')}")
    return text.append(f"  {one_line(hit.place)}", "not bold")


def _snippet(hit: SearchHit) -> Text:
    """Return the snippet with its matches marked. Parts are escaped one by one, because that moves what follows."""
    text, end = Text(), 0
    for start, stop in hit.marks:
        text.append(one_line(hit.snippet[end:start]))
        text.append(one_line(hit.snippet[start:stop]), "bold")
        end = stop
    return text.append(one_line(hit.snippet[end:]))
