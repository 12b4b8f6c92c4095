"""The command `inspect`: open the inspector of a storage in the browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated

import typer

import threadkeep
from threadkeep.cli.app import app, open_keep
from threadkeep.cli.foreign import is_foreign
from threadkeep.cli.options import Json, Tenant, Url
from threadkeep.cli.output import as_json_text, one_line
from threadkeep.cli.settings import as_url
from threadkeep.errors import without_passwords

if TYPE_CHECKING:
    from threadkeep.inspector.foreign import ForeignStorage


@app.command(epilog="Example: threadkeep inspect agent.db")
def inspect(
    storage: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            show_default=False,
            help="Storage: a URL as for threadkeep.open, or the path of an SQLite file. Also a database of "
            "SqliteSaver, PostgresSaver, PyMySQLSaver, their stores, or CubeLoop. Default: --url.",
        ),
    ] = None,
    *,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Port. Default: any free one.", show_default=False
        ),
    ] = 0,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="A loopback address.")] = "127.0.0.1",
    write: Annotated[bool, typer.Option("--write", help="Also offer to change threads.")] = False,
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="MODULE:ATTRIBUTE",
            help="With --write: a graph to continue threads with.",
        ),
    ] = None,
    redact: Annotated[
        str | None, typer.Option("--redact", metavar="PATTERN", help="Hide what matches this regular expression.")
    ] = None,
    user_key: Annotated[
        list[str] | None,
        typer.Option(
            "--user-key",
            metavar="KEY",
            help="Metadata key that names a thread's user. May be repeated. Default: user_id, user.",
            show_default=False,
        ),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the link.")] = False,
    url: Url = None,
    tenant: Tenant = "",
    json: Json = False,
) -> None:
    """Open a storage in the browser: threads, checkpoints, memories, sizes. Read-only unless --write is given."""
    if not _is_loopback(host):
        raise ValueError(
            f"--host must be a loopback address such as 127.0.0.1, not {host}: mount the inspector instead"
        )
    if graph is not None and not write:
        raise ValueError("--graph needs --write")
    try:
        from threadkeep.inspector.graphs import load_graph  # noqa: PLC0415 - the inspector is an extra
        from threadkeep.inspector.inspected import USER_KEYS, Inspected  # noqa: PLC0415
        from threadkeep.inspector.redaction import HiddenPattern  # noqa: PLC0415
        from threadkeep.inspector.serve import listen  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(f'inspect needs {error.name}: pip install "threadkeep[inspect]"') from error
    url = as_url(storage or url)
    redaction = HiddenPattern(redact)
    with _opened(url, tenant, write=write) as (keep, foreign):
        shown = Inspected(
            keep,
            url=url,
            write=write and foreign is None,
            redaction=redaction,
            graph=load_graph(graph, keep) if graph is not None else None,
            foreign=foreign,
            user_keys=tuple(user_key or USER_KEYS),
        )
        mode = "changes allowed" if shown.write else "read-only"
        with listen(shown, host=host, port=port) as server:
            told = {"storage": without_passwords(url), "mode": mode, "link": server.link}
            text = f"{told['storage']} ({mode}), until Ctrl-C: {server.link}"
            typer.echo(as_json_text(told) if json else one_line(text))
            if not no_browser:
                webbrowser.open(server.link)
            with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
                server.run()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _opened(url: str, tenant: str, *, write: bool) -> Iterator[tuple[threadkeep.Keep, ForeignStorage | None]]:
    """Open a storage of ours, or one of another saver by way of a Keep in memory."""
    if is_foreign(url):
        from threadkeep.inspector.foreign import ForeignStorage  # noqa: PLC0415 - on use

        if write:
            raise ValueError("--write is for threadkeep's own storages: import the database first")
        with threadkeep.open("memory://") as keep:
            yield keep, ForeignStorage(url, keep)
    else:
        with open_keep(url, tenant, read_only=not write) as keep:
            keep.threads(limit=1, titles=False)  # what cannot be read at all ends the command, instead of each page
            yield keep, None
