"""The command `usage`: count the tokens that messages took, and what they cost."""

from __future__ import annotations

import json as jsons
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from threadkeep import TokenUsage, TokenUsageRow
from threadkeep.cli.app import app, open_keep
from threadkeep.cli.completion import complete_from
from threadkeep.cli.options import (
    TIME,
    Json,
    KindFilter,
    Match,
    Metadata,
    Prefix,
    Tenant,
    Threads,
    Url,
    key_value,
)
from threadkeep.cli.output import damaged_lines, print_result, progress_bar, skipped_lines, table
from threadkeep.plural import plural

_UNKNOWN = "-"


@app.command(epilog="Example: threadkeep usage --by model --since 30d --prices prices.toml")
def usage(
    threads: Threads = None,
    *,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="GROUP",
            autocompletion=complete_from("thread", "model", "node", "metadata:"),
            help="thread, model, node or metadata:KEY. May be repeated.",
            show_default="thread",
        ),
    ] = None,
    prefix: Prefix = "",
    metadata: Metadata = None,
    match: Match = "latest",
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help=f"Only messages stored at or after TIME: {TIME}.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Only messages stored before TIME.")
    ] = None,
    kind: KindFilter = None,
    all_branches: Annotated[
        bool, typer.Option("--all-branches", help="Also removed messages, and those of abandoned branches.")
    ] = False,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", metavar="FILE", help="TOML or JSON: a table of prices per million tokens by model."),
    ] = None,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Count the tokens of messages by thread, model, node or metadata. With --prices also what they cost."""
    with open_keep(url, tenant, read_only=True) as keep, progress_bar("threads", hidden=json) as on_progress:
        result = keep.usage(
            threads or None,
            prefix=prefix,
            metadata=dict(map(key_value, metadata or ())),
            match=match,
            kind=kind,
            since=since,
            until=until,
            by=by or "thread",
            all_branches=all_branches,
            prices=prices,
            on_progress=on_progress,
        )
    print_result(result, _lines(result, priced=prices is not None), as_json=json)


def _lines(result: TokenUsage, *, priced: bool) -> Iterator[RenderableType]:
    names = [name for row in result.rows[:1] for name in row.key]
    numbers = ["messages", "input", "cached", "output", "total", *(["cost"] if priced else [])]
    if result.rows:
        rows = [
            [*map(_text, row.key.values()), *_numbers(row, priced=priced)]
            for row in (*result.rows, *([result.total] if len(result.rows) > 1 else []))
        ]
        if len(result.rows) > 1:
            rows[-1] = ["all", *[""] * (len(names) - 1), *rows[-1]]
        yield table([*names, *numbers], rows, right=numbers)
        yield Text()
    yield Text(f"{plural(result.total.messages, 'message')} in {plural(result.threads, 'thread')}")
    if result.total.unpriced:
        yield Text(f"without a price: {', '.join(map(_text, result.total.unpriced))}", "yellow")
    yield from damaged_lines(result.damaged)
    yield from skipped_lines(result.skipped)


def _numbers(row: TokenUsageRow, *, priced: bool) -> list[Any]:
    cached = row.input_details.get("cache_read", 0)
    cost = [f"{row.cost:,.4f}" if row.cost is not None else _UNKNOWN] if priced else []
    return [row.messages, row.input_tokens, cached, row.output_tokens, row.total_tokens, *cost]


def _text(value: Any) -> str:
    if value is None:
        return _UNKNOWN
    return value if isinstance(value, str) else jsons.dumps(value, ensure_ascii=False)
