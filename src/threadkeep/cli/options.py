"""The arguments and options that several commands share, each declared once."""

from __future__ import annotations

import json as jsons
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from threadkeep.cli.completion import complete_from, complete_thread

if TYPE_CHECKING:
    from threadkeep.engine import identity
    from threadkeep.engine.log import records
    from threadkeep.engine.threads import catalogue
    from threadkeep.engine.threads import metadata as checkpoint_metadata

    KindName: TypeAlias = identity.Kind
    StatusName: TypeAlias = records.Status
    OrderName: TypeAlias = catalogue.Order
    MatchName: TypeAlias = checkpoint_metadata.Match
else:
    KindName = StatusName = OrderName = MatchName = str  # Typer passes any text on, and the verb says what is wrong

DURATION = "30d, 1.5h or 1d12h (units: w, d, h, m, s)"
TIME = f"a date or time such as 2026-04-01 (UTC), or how long ago: {DURATION}"
CHECKPOINT_HELP = "Checkpoint id, its first or last characters, or latest. Append ~N for its Nth ancestor."
_KINDS = "graph (LangGraph) or cube (CubeLoop)"
_complete_kind = complete_from("graph", "cube")

Thread: TypeAlias = Annotated[str, typer.Argument(metavar="THREAD", help="Thread id.", autocompletion=complete_thread)]
OneThread: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="THREAD", help="Thread id. Default: all threads.", autocompletion=complete_thread),
]
ThreadIds: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="THREAD", help="Thread ids.", autocompletion=complete_thread)
]
Threads: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="THREAD", help="Thread ids. Default: all threads.", autocompletion=complete_thread),
]
Checkpoint: TypeAlias = Annotated[str, typer.Argument(metavar="CHECKPOINT", help=CHECKPOINT_HELP)]
LatestCheckpoint: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="CHECKPOINT", help=CHECKPOINT_HELP, show_default="latest")
]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--ns",
        metavar="NAMESPACE",
        help="Subgraph namespace; '' is the root. Not needed with a checkpoint id.",
        show_default=False,
    ),
]
Kind: TypeAlias = Annotated[
    KindName | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help=f"{_KINDS}. Only needed if both have a thread with this id.",
        autocompletion=_complete_kind,
    ),
]
KindFilter: TypeAlias = Annotated[
    KindName | None,
    typer.Option("--kind", metavar="KIND", help=f"Only threads of this kind: {_KINDS}.", autocompletion=_complete_kind),
]
Prefix: TypeAlias = Annotated[
    str, typer.Option("--prefix", metavar="PREFIX", help="Only threads whose id starts with PREFIX.")
]
Metadata: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="KEY=VALUE", help="Only threads with this metadata. May be repeated."),
]
Match: TypeAlias = Annotated[
    MatchName,
    typer.Option(
        "--match",
        metavar="WHICH",
        help="Compare --metadata with any checkpoint of a thread, or only with the latest: any or latest.",
        autocompletion=complete_from("any", "latest"),
    ),
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A threadkeep.toml with [[retention]] tables.")
]
Verify: TypeAlias = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Compare both sides after the transfer, or not.")
]
Salvage: TypeAlias = Annotated[
    bool, typer.Option("--salvage", help="Of damaged threads, take the part that is intact.")
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Print what would happen; change nothing.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Also threads that somebody holds a lease of.")]
Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="THREADKEEP_URL",
        show_default=False,
        help="Storage: a URL as for threadkeep.open, or the path of an SQLite file.",
    ),
]
Tenant: TypeAlias = Annotated[
    str,
    typer.Option(
        "--tenant", metavar="TENANT", envvar="THREADKEEP_TENANT", help="Tenant that owns the threads and memories."
    ),
]
KeysFile: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--keys",
        metavar="FILE",
        help="File with the keys of an encrypted storage. Default: THREADKEEP_KEYS; none ignores that.",
        show_default=False,
    ),
]
TargetKeys: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--target-keys", metavar="FILE", help="File with the keys of the target. Default: --keys.", show_default=False
    ),
]
Timeout: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        show_default="30",
        help="How long to wait for a storage that is unreachable, locked or does not answer.",
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
NoPager: TypeAlias = Annotated[
    bool, typer.Option("--no-pager", help="Print long output at once, not page by page in PAGER.")
]
Ids: TypeAlias = Annotated[
    bool, typer.Option("--ids", help="Print only ids, one on each line; without --limit, all of them.")
]
FullIds: TypeAlias = Annotated[
    bool, typer.Option("--full-ids", help="Do not shorten ids to the characters that make them unique.")
]


def key_value(text: str) -> tuple[str, Any]:
    """Parse KEY=VALUE. The value is JSON if it parses as JSON, and text otherwise."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} is not of the form KEY=VALUE")
    try:
        return key, jsons.loads(value)
    except ValueError:
        return key, value
