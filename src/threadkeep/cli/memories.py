"""The command `memories`: list the namespaces of the store, or search the memories of one."""

from __future__ import annotations

import json as jsons
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, TypeVar

import typer
from rich.console import RenderableType
from rich.text import Text

import threadkeep
from threadkeep.cli.app import NEGATIVE, app, confirm, open_keep
from threadkeep.cli.options import Json, Tenant, Url, key_value
from threadkeep.cli.output import is_terminal, one_line, print_ids, print_result, shorten, table
from threadkeep.plural import plural

T = TypeVar("T")
_PAGE, _SCREENFUL = 1000, 50
_WIDTH = 200


@app.command(epilog="Example: threadkeep memories users/ann --query food")
def memories(
    namespace: Annotated[
        str | None,
        typer.Argument(
            metavar="NAMESPACE",
            help="Segments joined with / or a comma, such as users/u7. A backslash escapes these inside a segment.",
        ),
    ] = None,
    *,
    query: Annotated[
        str | None, typer.Option("--query", metavar="TEXT", help="Only memories with these words, best match first.")
    ] = None,
    filter: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="KEY=VALUE",
            help="Only memories whose value matches: KEY=VALUE, or a filter as JSON. May be repeated.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=0, help="Print at most N rows. Default: 50 in a terminal, otherwise all."
        ),
    ] = None,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Skip the first N rows.")] = 0,
    ids: Annotated[
        bool, typer.Option("--ids", help="Print only namespaces; or namespace, tab and key, one on each line.")
    ] = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """List the namespaces of memories, or the memories of one. Those of namespaces below it are included."""
    conditions = _parse_filters(filter or ())
    if limit is None and is_terminal() and not (ids or json):
        limit = _SCREENFUL
    with open_keep(url, tenant, read_only=True) as keep:
        if namespace is None and query is None and not conditions:
            found = _list_namespaces(keep, limit, offset, counted=not ids)
            lines = _namespace_lines(found)
        else:
            found = _search(keep, parse_namespace(namespace or ""), query, conditions, limit, offset)
            lines = _memory_lines(found)
    if ids:
        print_ids(map(_id, found), as_json=json)
        return
    more = [Text(f"next page: --offset {offset + limit}", "dim")] if limit and len(found) == limit else []
    print_result(found, chain(lines, more), as_json=json)


def _id(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the namespace of a row, and the key if it is a memory."""
    return (format_namespace(row["namespace"]), *([row["key"]] if "key" in row else []))


def _all_rows(read: Callable[[int, int], list[T]], limit: int | None, offset: int) -> list[T]:
    """Return this number of rows, or all, page by page; `read` takes a limit and an offset."""
    found: list[T] = []
    while True:
        size = _PAGE if limit is None else min(limit - len(found), _PAGE)
        page = read(size, offset + len(found))
        found += page
        if len(page) < size or len(found) == limit:
            return found


def parse_namespace(text: str) -> tuple[str, ...]:
    """Return the segments of a namespace. They are joined with / or a comma; a backslash escapes the next character."""
    segments, is_escaped = [""], False
    for character in text:
        if is_escaped or character not in "/,\\":
            segments[-1] += character
            is_escaped = False
        elif character == "\\":
            is_escaped = True
        else:
            segments.append("")
    if is_escaped:
        raise ValueError(f"namespace {text!r} ends with a backslash that escapes nothing")
    if text and "" in segments:
        raise ValueError(f"namespace {text!r} has an empty segment")
    return tuple(segments) if text else ()


def format_namespace(namespace: Iterable[str]) -> str:
    """Return the text of a namespace; `parse_namespace` reads it back."""
    return "/".join(re.sub(r"[/,\\]", r"\\\g<0>", segment) for segment in namespace)


def _parse_filters(texts: Iterable[str]) -> dict[str, Any]:
    conditions: dict[str, Any] = {}
    for text in texts:
        conditions.update(_parse_json_filter(text) if text.lstrip().startswith("{") else [key_value(text)])
    return conditions


def _parse_json_filter(text: str) -> dict[str, Any]:
    try:
        return dict(jsons.loads(text))
    except ValueError as error:
        raise ValueError(f"--filter {text!r} is not valid JSON: {error}") from error


def _search(
    keep: threadkeep.Keep,
    prefix: tuple[str, ...],
    query: str | None,
    conditions: dict[str, Any],
    limit: int | None,
    offset: int,
) -> list[dict[str, Any]]:
    def read(size: int, start: int) -> list[Any]:
        return keep.store.search_stored(prefix, query=query, filter=conditions or None, limit=size, offset=start)

    found = _all_rows(read, limit, offset)
    return [_as_dict(memory) for memory in found if query is None or memory.score is not None]


def _as_dict(memory: Any) -> dict[str, Any]:
    fields = {
        "namespace": list(memory.namespace),
        "key": memory.key,
        "value": memory.value,
        "created": memory.created_at,
        "updated": memory.updated_at,
    }
    return fields if memory.score is None else fields | {"score": memory.score}


def _list_namespaces(keep: threadkeep.Keep, limit: int | None, offset: int, *, counted: bool) -> list[dict[str, Any]]:
    def read(size: int, start: int) -> list[tuple[str, ...]]:
        return keep.store.list_namespaces(limit=size, offset=start)

    namespaces = _all_rows(read, limit, offset)
    return [
        {"namespace": list(each), **({"memories": _count(keep, tuple(each))} if counted else {})} for each in namespaces
    ]


def _count(keep: threadkeep.Keep, namespace: tuple[str, ...]) -> int:
    def read(size: int, start: int) -> list[Any]:
        return keep.store.search_stored(namespace, limit=size, offset=start)

    return sum(tuple(memory.namespace) == namespace for memory in _all_rows(read, None, 0))


def _namespace_lines(counts: list[dict[str, Any]]) -> Iterator[RenderableType]:
    if not counts:
        yield "no memories"
        return
    rows = ((format_namespace(each["namespace"]), each["memories"]) for each in counts)
    yield table(("namespace", "memories"), rows, right=("memories",))


def _memory_lines(found: list[dict[str, Any]]) -> Iterator[RenderableType]:
    if not found:
        yield "no memories"
        return
    has_scores = "score" in found[0]
    rows = (
        [format_namespace(each["namespace"]), each["key"], shorten(each["value"], _WIDTH), each["updated"]]
        + ([f"{each['score']:.3f}"] if has_scores else [])
        for each in found
    )
    yield table(["namespace", "key", "value", "updated", *(["score"] if has_scores else [])], rows, right=("score",))


def delete_memories(
    keep: threadkeep.Keep, namespace: tuple[str, ...], key: str | None, *, yes: bool, dry_run: bool, json: bool
) -> int:
    """Delete one memory, or all below a namespace, after asking. Return the exit code: 1 if there is none."""
    where = f"{format_namespace(namespace)} {key}" if key is not None else f"below {format_namespace(namespace)}"
    count = keep.delete_memories(namespace, key=key, dry_run=True)
    if count and not dry_run:
        confirm(f"Delete {plural(count, 'memory', 'memories')} {where}?", yes=yes)
        count = keep.delete_memories(namespace, key=key)
    verb = "would delete" if dry_run else "deleted"
    lines = [one_line(f"{verb} {plural(count, 'memory', 'memories')} {where}")]
    print_result({"deleted": count, "namespace": list(namespace), "key": key, "dry_run": dry_run}, lines, as_json=json)
    return 0 if count else NEGATIVE
