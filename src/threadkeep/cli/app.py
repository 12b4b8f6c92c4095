"""The application, the options that every command has, and what becomes of errors."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console

import threadkeep
from threadkeep.cli.output import clean
from threadkeep.engine.threads.thread_rows import matches_short_id
from threadkeep.errors import Missing, ThreadkeepError
from threadkeep.transports.sqlite import is_of_others

_SUBJECTS = ("look", "memories", "audit", "time", "retention", "health", "transfer", "exporting")
"""The files with commands, in the order of --help."""
_FILE = "sqlite:///"
_NOT_UNDERSTOOD: Any = typer.BadParameter.__mro__[2]
"""Click's ClickException: newer Typers have a Click of their own."""
NO, WRONG, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130


class InterruptedWork(Exception):
    """Somebody interrupted a command; it says what that leaves behind."""


app = typer.Typer(
    name="threadkeep",
    help="Look into the threads and memories of AI agents, go back in time, prune, check and move them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Url: TypeAlias = Annotated[
    str | None,
    typer.Option("--url", envvar="THREADKEEP_URL", show_default=False, help="The storage: a URL as for threadkeep.open, or an SQLite file."),
]  # fmt: skip
Tenant: TypeAlias = Annotated[str, typer.Option("--tenant", envvar="THREADKEEP_TENANT", help="Whose threads.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")]
Kind: TypeAlias = Annotated[
    str | None,
    typer.Option("--kind", help="graph (LangGraph) or cube (CubeLoop), where both have a thread of that id."),
]
CHECKPOINT = "An id, its beginning or its end, or latest; ~2 after it: two before."
DURATION = "30d, 1.5h or 1d12h (units: w, d, h, m, s)"
TIME = f"a date or time such as 2026-04-01 (UTC), or how long ago: {DURATION}"
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option("--ns", help="The namespace of a subgraph; the root's is empty. Not needed for a checkpoint's id."),
]


@contextmanager
def opened(
    url: str | None,
    tenant: str,
    *,
    read_only: bool = False,
    may_be_new: bool = False,
    retention: Sequence[threadkeep.Policy] = (),
) -> Iterator[threadkeep.Keep]:
    """The Keep that a command works on: read-only where it only looks.

    An SQLite file, and tables in one, are made only if it `may_be_new`.
    """
    where = as_url(url)
    if where.startswith(_FILE):
        _check_file(where.removeprefix(_FILE), must_be_ours=not may_be_new and not read_only, may_be_new=may_be_new)
    with threadkeep.open(where, tenant=tenant, read_only=read_only, retention=retention) as keep:
        yield keep


def _check_file(path: str, *, must_be_ours: bool, may_be_new: bool) -> None:
    """What can be said of a file before it is opened, so that nothing is made in one that somebody did not mean."""
    if Path(path).is_dir():
        raise ValueError(f"{path} is a directory, not a file")
    if not Path(path).exists():
        if not may_be_new:
            raise ValueError(f"there is no file {path}")
        return
    if must_be_ours and is_of_others(path):
        raise ValueError(f"{path} has no tables of threadkeep; import and convert make them")


def as_url(url: str | None) -> str:
    """A URL, or the path of an SQLite file as one."""
    if not url:
        raise ValueError("say which storage: --url URL, or the environment variable THREADKEEP_URL")
    return url if "://" in url else _FILE + url


def space(keep: threadkeep.Keep, thread: str, checkpoint: str | None, ns: str | None, kind: str | None) -> str:
    """The namespace that was said; else the only one with such a checkpoint: what `tree` shows may be typed in."""
    if checkpoint == "":
        raise ValueError("an empty CHECKPOINT names none: say latest, or leave it out")
    if ns is not None or checkpoint is None:
        return ns or ""
    short = checkpoint.partition("~")[0]
    spaces = {step.ns for step in keep.log(thread, kind=kind) if matches_short_id(short, step.id)}
    return spaces.pop() if len(spaces) == 1 else ""


def sure(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed, unless --yes was said; without a terminal that is needed. No ends the command."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError(f"{question} Say --yes, or --dry-run to see what would happen.")
    if not typer.confirm(clean(question), err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(NO)


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Say what an interruption leaves behind."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedWork(what) from None


def main(args: Sequence[str] | None = None) -> None:
    """Run the command and end the process with its exit code."""
    sys.exit(run(args))


def register() -> None:
    """Have all commands known to the application."""
    for subject in _SUBJECTS:
        import_module(f"threadkeep.cli.{subject}")


def run(args: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    register()
    logging.getLogger("psycopg").addHandler(logging.NullHandler())  # what its pool reports, the error says once
    errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    try:
        code = int(app(args=args, prog_name="threadkeep", standalone_mode=False) or 0)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except InterruptedWork as left:
        errors.print(f"interrupted; {left}")
        return INTERRUPTED
    except _NOT_UNDERSTOOD as error:
        error.show()
        return WRONG
    except (BrokenPipeError, SystemExit) as error:  # rich and Typer make one of the other
        if not isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read, has read enough
        return 0
    except Missing as error:
        errors.print(clean(f"error: {error}"))
        return NO
    except ThreadkeepError as error:
        errors.print(clean(f"error: {error}"))
        return UNREACHABLE
    except (ValueError, TypeError, OSError, ImportError) as error:
        errors.print(clean(f"error: {error}"))
        return WRONG
    if code == INTERRUPTED:
        errors.print("interrupted; what was done stays done")
    return code


def _version(wanted: bool) -> None:  # noqa: FBT001 - Typer's signature
    if wanted:
        typer.echo(f"threadkeep {threadkeep.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Look into the threads and memories of AI agents, go back in time, prune, check and move them."""
