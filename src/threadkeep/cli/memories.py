"""The command that looks into the store: its namespaces, and the memories below one."""

from __future__ import annotations

import json as jsons
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer
from rich.console import RenderableType

import threadkeep
from threadkeep.cli.app import Json, Tenant, Url, app, opened
from threadkeep.cli.look import pair
from threadkeep.cli.output import answer, brief, table

_PAGE = 1000
_WIDTH = 200


@app.command()
def memories(
    namespace: Annotated[
        str | None,
        typer.Argument(metavar="NAMESPACE", help="Its segments with / between them; a / or \\ inside one as \\/ and \\\\."),
    ] = None,
    *,
    query: Annotated[str | None, typer.Option("--query", help="What to search for by words.")] = None,
    filter: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="KEY=VALUE", help="What values must have; or a filter as JSON. May be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="How many.")] = 50,
    offset: Annotated[int, typer.Option("--offset", min=0, help="How many to leave out before.")] = 0,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:  # fmt: skip
    """List the namespaces of the store and how many memories each has; or the memories in and below one."""
    wanted = _filter(filter or ())
    with opened(url, tenant, read_only=True) as keep:
        if namespace is None and query is None and not wanted:
            counted = _counted(keep, limit, offset)
            answer(counted, _spaces(counted), as_json=json)
            return
        found = _found(keep, segments(namespace or ""), query, wanted, limit, offset)
    answer(found, _table(found), as_json=json)


def segments(text: str) -> tuple[str, ...]:
    """A namespace from its text: segments with / between them; a backslash takes the next character as it is."""
    parts, escaped = [""], False
    for character in text:
        if escaped or character not in "/\\":
            parts[-1] += character
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            parts.append("")
    if escaped:
        raise ValueError(f"{text!r} ends with a backslash that escapes nothing")
    if text and "" in parts:
        raise ValueError(f"{text!r} has an empty segment")
    return tuple(parts) if text else ()


def joined(namespace: Iterable[str]) -> str:
    """The text of a namespace."""
    return "/".join(segment.replace("\\", "\\\\").replace("/", "\\/") for segment in namespace)


def _filter(given: Iterable[str]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for text in given:
        if text.lstrip().startswith("{"):
            wanted |= _object(text)
        else:
            key, value = pair(text)
            wanted[key] = value
    return wanted


def _object(text: str) -> dict[str, Any]:
    try:
        return dict(jsons.loads(text))
    except ValueError as error:
        raise ValueError(f"the filter {text!r} is no JSON: {error}") from error


def _found(
    keep: threadkeep.Keep, prefix: tuple[str, ...], query: str | None, wanted: dict[str, Any], limit: int, offset: int
) -> list[dict[str, Any]]:
    try:
        hits = keep.store.search(
            prefix, query=query, filter=wanted or None, limit=limit, offset=offset, refresh_ttl=False
        )
    except NotImplementedError as error:
        raise ValueError(f"--query: {error}") from error
    return [
        {"namespace": list(hit.namespace), "key": hit.key, "value": hit.value, "created": hit.created_at,
         "updated": hit.updated_at} | ({} if hit.score is None else {"score": hit.score})
        for hit in hits
    ]  # fmt: skip


def _counted(keep: threadkeep.Keep, limit: int, offset: int) -> list[dict[str, Any]]:
    spaces = keep.store.list_namespaces(limit=limit, offset=offset)
    return [{"namespace": list(space), "memories": _count(keep, tuple(space))} for space in spaces]


def _count(keep: threadkeep.Keep, space: tuple[str, ...]) -> int:
    count = offset = 0
    while True:
        hits = keep.store.search(space, limit=_PAGE, offset=offset, refresh_ttl=False)
        count += sum(tuple(hit.namespace) == space for hit in hits)
        offset += _PAGE
        if len(hits) < _PAGE:
            return count


def _spaces(counted: list[dict[str, Any]]) -> Iterator[RenderableType]:
    if not counted:
        yield "no memories"
        return
    cells = ((joined(each["namespace"]), each["memories"]) for each in counted)
    yield table(("namespace", "memories"), cells, right=("memories",))


def _table(found: list[dict[str, Any]]) -> Iterator[RenderableType]:
    if not found:
        yield "no memories"
        return
    scored = "score" in found[0]
    cells = (
        [joined(each["namespace"]), each["key"], brief(each["value"], _WIDTH), each["updated"]]
        + ([f"{each['score']:.3f}"] if scored else [])
        for each in found
    )
    yield table(["namespace", "key", "value", "updated", *(["score"] if scored else [])], cells, right=("score",))
