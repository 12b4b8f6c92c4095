"""The Typer application: open the storage, run a command, and turn errors into messages and exit codes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import threadkeep
from threadkeep.cli.options import KeysFile, Timeout
from threadkeep.cli.output import escape
from threadkeep.errors import Missing, ThreadkeepError

_COMMANDS = {
    "show": "threads show tree log diff blame",
    "search": "search",
    "memories": "memories",
    "audit": "trace activity sizes stats types",
    "branches": "copy delete rollback fork",
    "retention": "prune sweep tag",
    "erase": "erase",
    "health": "verify repair doctor compact",
    "transfer": "import export convert",
    "backup": "backup restore migrate",
    "encryption": "encrypt rotate reencrypt",
    "lease": "lease",
    "tenants": "tenants",
}
"""The modules that hold commands, and their commands, in the order of --help. Only that of the command that is run is
imported: all of them take longer than most commands."""
_MODULES = {command: module for module, commands in _COMMANDS.items() for command in commands.split()}
_SQLITE = "sqlite:///"
_DESCRIPTION = "Inspect, roll back, prune, check and move the threads and memories of AI agents."
_USAGE_ERROR: Any = typer.BadParameter.__mro__[2]
"""Click's ClickException. Newer releases of Typer have their own copy of Click, so it cannot be imported."""
_timeout: ContextVar[float] = ContextVar("timeout")
_keys: ContextVar[str | None] = ContextVar("keys", default=None)
NEGATIVE, USAGE, STORAGE, INTERRUPTED = 1, 2, 3, 130
"""The exit codes; see the package's docstring."""


class InterruptedWork(Exception):
    """A command was interrupted; the message says what state that leaves."""


app = typer.Typer(
    name="threadkeep",
    help=_DESCRIPTION,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@contextmanager
def open_keep(
    url: str | None,
    tenant: str,
    *,
    read_only: bool = False,
    create: bool = False,
    migrate: bool = True,
    retention: Sequence[threadkeep.Policy] = (),
    keys: str | None = None,
    hide_ids: bool | None = None,
) -> Iterator[threadkeep.Keep]:
    """Open the storage of a command; commands that change nothing pass `read_only`.

    `keys` is a file of keys, instead of that of --keys. An SQLite file, and threadkeep's tables in an existing one, are
    created only with `create`.
    """
    url = as_url(url)
    if url.startswith(_SQLITE):
        _check_file(url.removeprefix(_SQLITE), needs_tables=not create and not read_only, create=create)
    with threadkeep.open(
        url,
        tenant=tenant,
        keys=_read_keys(keys or _keys.get()),
        hide_ids=hide_ids,
        read_only=read_only,
        migrate=migrate,
        retention=retention,
        timeout=_timeout.get(),
    ) as keep:
        yield keep


def _read_keys(file: str | None) -> threadkeep.Keys | None:
    """Return the keys of a file, or else those of THREADKEEP_KEYS. None if there are none, or if `file` is "none"."""
    if file == "none":
        return None
    if file is not None:
        return threadkeep.Keys.from_file(file)
    return threadkeep.Keys.from_env("THREADKEEP_KEYS") if os.environ.get("THREADKEEP_KEYS") else None


def _check_file(path: str, *, needs_tables: bool, create: bool) -> None:
    """Check a file before it is opened: a mistyped path must not create a file or change that of another program."""
    if Path(path).is_dir():
        raise ValueError(f"{path} is a directory, not a file")
    if not Path(path).exists():
        if not create:
            raise ValueError(f"file {path} not found")
        return
    if needs_tables and _is_foreign(path):
        raise ValueError(f"{path} has no threadkeep tables; import and convert create them")


def _is_foreign(path: str) -> bool:
    from threadkeep.transports.sqlite import is_foreign_database  # noqa: PLC0415 - imports the driver

    return is_foreign_database(path)


def as_url(url: str | None) -> str:
    """Return a URL unchanged, and the path of an SQLite file as a URL."""
    if not url:
        raise ValueError("no storage given: pass --url or set THREADKEEP_URL")
    return url if "://" in url else _SQLITE + url


def sqlite_file_is_missing(url: str) -> bool:
    """Return whether a URL names an SQLite file that does not exist yet."""
    return url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).exists()


def resolve_namespace(
    keep: threadkeep.Keep, thread: str, checkpoint: str | None, ns: str | None, kind: str | None
) -> str:
    """Return the namespace that was given, or else the only one that has this checkpoint; the root if there is none.

    So the short ids that `tree` prints can be used without --ns.
    """
    if checkpoint == "":
        raise ValueError("CHECKPOINT is empty: pass an id or latest, or leave it out")
    if ns is not None or checkpoint is None:
        return ns or ""
    from threadkeep.engine.threads.thread_rows import matches_short_id  # noqa: PLC0415 - imports LangChain

    short = checkpoint.partition("~")[0]
    namespaces = {each.ns for each in keep.log(thread, kind=kind) if matches_short_id(short, each.id)}
    return namespaces.pop() if len(namespaces) == 1 else ""


def confirm(question: str, *, yes: bool) -> None:
    """Ask before data is destroyed, unless --yes was given, which is required without a terminal. A no ends it."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError(f"{question} Pass --yes to confirm, or --dry-run to see what would happen.")
    if not typer.confirm(escape(question), err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(NEGATIVE)


@contextmanager
def interruption_message(text: str) -> Iterator[None]:
    """Print this text if the user interrupts the block."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedWork(text) from None


def register(*names: str) -> None:
    """Import some command modules, or all, which adds their commands to the application; list them in this order."""
    for name in names or _COMMANDS:
        import_module(f"threadkeep.cli.{name}")
    place = {f"threadkeep.cli.{name}": n for n, name in enumerate(_COMMANDS)}
    for command in app.registered_commands:
        if command.callback is not None and not hasattr(command.callback, "__wrapped__"):  # not at a second call
            command.callback = _with_shared_options(command.callback)
    app.registered_commands.sort(key=lambda command: place.get(getattr(command.callback, "__module__", ""), len(place)))


def run(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = sys.argv[1:] if args is None else args
    register(*(_MODULES[command] for command in args[:1] if command in _MODULES))
    logging.getLogger("psycopg").addHandler(logging.NullHandler())  # the pool logs what the error says once more
    stderr = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    try:
        code = int(app(args=args, prog_name="threadkeep", standalone_mode=False) or 0)
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except InterruptedWork as message:
        stderr.print(f"interrupted; {message}")
        return INTERRUPTED
    except _USAGE_ERROR as error:
        error.show()
        return USAGE
    except (BrokenPipeError, SystemExit) as error:  # rich and Typer turn the first into the second
        if not isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader, such as head, has read enough
        return 0
    except (ThreadkeepError, ValueError, TypeError, OSError, ImportError) as error:
        stderr.print(escape(f"error: {_error_text(error)}"))
        return _exit_code(error)
    if code == INTERRUPTED:
        stderr.print("interrupted; finished work stays")
    return code


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _exit_code(error: Exception) -> int:
    if isinstance(error, Missing):
        return NEGATIVE
    return STORAGE if isinstance(error, ThreadkeepError) else USAGE


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - Typer's signature
    if wanted:
        typer.echo(f"threadkeep {threadkeep.__version__}")
        raise typer.Exit


def _with_shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --timeout and --keys to a command. All commands have them, and `open_keep` reads them."""

    @wraps(command)
    def with_options(*args: Any, timeout: float | None, keys: str | None, **options: Any) -> Any:
        if timeout is not None:
            _timeout.set(timeout)
        _keys.set(keys)
        return command(*args, **options)

    own = signature(command, eval_str=True)
    added = [
        Parameter("keys", Parameter.KEYWORD_ONLY, default=None, annotation=KeysFile),
        Parameter("timeout", Parameter.KEYWORD_ONLY, default=None, annotation=Timeout),
    ]
    parameters = [*own.parameters.values(), *added]
    with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


@app.callback(help=_DESCRIPTION)
def _main_options(
    *,
    timeout: Timeout = None,
    version: Annotated[  # noqa: ARG001 - its callback did it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Read the options of `threadkeep` itself."""
    _timeout.set(30.0 if timeout is None else timeout)
