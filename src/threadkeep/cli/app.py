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
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import threadkeep
from threadkeep.cli import pager, settings
from threadkeep.cli.groups import CommandGroup
from threadkeep.cli.options import Json, KeysFile, KindName, NoPager, Tenant, Timeout, Url
from threadkeep.cli.output import escape
from threadkeep.cli.settings import as_url, read_keys
from threadkeep.errors import Missing, ThreadkeepError
from threadkeep.urls import SQLITE

_COMMANDS = {
    "demo": "demo",
    "show": "threads show tree log diff blame",
    "inspect": "inspect",
    "describe": "describe",
    "search": "search",
    "memories": "memories",
    "waiting": "waiting",
    "audit": "trace flow activity sizes stats types",
    "usage": "usage",
    "copy_and_delete": "copy delete",
    "rollback": "rollback fork",
    "branches": "branches",
    "retention": "prune sweep tag",
    "erase": "erase",
    "health": "verify repair doctor compact",
    "transfer": "import export convert",
    "backup": "backup restore migrate setup",
    "encryption": "encrypt rotate reencrypt",
    "lease": "lease",
    "tenants": "tenants",
}
"""The modules that hold commands, and their commands, in the order of --help. Only that of the command that is run is
imported: all of them take longer than most commands."""
_MODULES = {command: module for module, commands in _COMMANDS.items() for command in commands.split()}
_DEFAULT_TIMEOUT = 30.0
_DESCRIPTION = "Inspect, roll back, prune, check and move the threads and memories of AI agents."
_USAGE_ERROR: Any = typer.BadParameter.__mro__[2]
"""Click's ClickException. Newer releases of Typer have their own copy of Click, so it cannot be imported."""
_timeout: ContextVar[float] = ContextVar("timeout", default=_DEFAULT_TIMEOUT)
_keys: ContextVar[str | None] = ContextVar("keys", default=None)
_origin: ContextVar[tuple[str | None, str]] = ContextVar("origin", default=(None, ""))
"""The URL that the command did not get as an option, and where it comes from."""
_SECOND_STORAGES = {"backup": "file", "restore": "target", "convert": "target", "inspect": "storage"}
"""Commands with a storage as an argument, and the argument that is given if --url is not used at all."""
WITHOUT_STORAGE = {"demo"}
"""Commands that open no storage of the user, and do not have the options that say how."""
_SHARED_OPTIONS = {"--url": 2, "--tenant": 2, "--keys": 2, "--timeout": 2, "--json": 1, "--no-pager": 1}
"""The options of all commands, which may stand before the command too, and the number of words each takes."""
NEGATIVE, USAGE, STORAGE, INTERRUPTED = 1, 2, 3, 130
"""The exit codes; see the package's docstring."""


class InterruptedWork(Exception):
    """A command was interrupted; the message says what state that leaves."""


app = typer.Typer(
    name="threadkeep",
    cls=CommandGroup,
    help=_DESCRIPTION,
    no_args_is_help=True,
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
    named, url = url, as_url(url)
    with _url_origin_in_errors(named, Exception):
        if url.startswith(SQLITE):
            _check_file(url.removeprefix(SQLITE), needs_tables=not create and not read_only, create=create)
        opened = threadkeep.open(
            url,
            tenant=tenant,
            keys=read_keys(keys or _keys.get()),
            hide_ids=hide_ids,
            read_only=read_only,
            migrate=migrate,
            retention=retention,
            timeout=_timeout.get(),
        )
    with opened as keep, _url_origin_in_errors(named, ThreadkeepError):
        yield keep


def has_keys() -> bool:
    """Return whether the command opens its storage with keys."""
    return read_keys(_keys.get()) is not None


@contextmanager
def _url_origin_in_errors(url: str | None, kind: type[Exception]) -> Iterator[None]:
    """Add to errors where the URL comes from, unless it stands in the command."""
    try:
        yield
    except kind as error:
        found, origin = _origin.get()
        if origin and url == found and not hasattr(error, "__notes__"):
            error.add_note(f"the url is from {origin}")
        raise


def _check_file(path: str, *, needs_tables: bool, create: bool) -> None:
    """Check a file before it is opened: a mistyped path must not create a file or change that of another program."""
    if Path(path).is_dir():
        raise ValueError(f"{path} is a directory, not a file")
    if not Path(path).exists():
        if not Path(path).parent.exists():
            raise ValueError(f"file {path} not found: the folder {Path(path).parent} does not exist")
        if not create:
            raise ValueError(f"file {path} not found")
        return
    if needs_tables and is_foreign_file(SQLITE + path):
        raise ValueError(f"{path} has no threadkeep tables; import and convert create them")


def is_foreign_file(url: str) -> bool:
    """Return whether a URL names an SQLite file without tables of threadkeep."""
    if not url.startswith(SQLITE) or sqlite_file_is_missing(url):
        return False
    from threadkeep.transports.sqlite import is_foreign_database  # noqa: PLC0415 - imports the driver

    return is_foreign_database(url.removeprefix(SQLITE))


def sqlite_file_is_missing(url: str) -> bool:
    """Return whether a URL names an SQLite file that does not exist yet."""
    return url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists()


def resolve_namespace(
    keep: threadkeep.Keep, thread: str, checkpoint: str | None, ns: str | None, kind: KindName | None
) -> str:
    """Return the namespace that was given, or else the only one that has this checkpoint; the root if there is none.

    So the short ids that `tree` prints can be used without --ns. ValueError if several namespaces have one.
    """
    if checkpoint == "":
        raise ValueError("CHECKPOINT is empty: pass an id or latest, or leave it out")
    if ns is not None or checkpoint is None:
        return ns or ""
    from threadkeep.engine.threads.thread_rows import ambiguous, matches_short_id  # noqa: PLC0415 - imports LangChain

    short = checkpoint.partition("~")[0]
    found = [(each.ns, each.id) for each in keep.log(thread, kind=kind) if matches_short_id(short, each.id)]
    exact = {namespace for namespace, id in found if id == short}
    namespaces = exact or {namespace for namespace, _ in found}
    if len(namespaces) > 1:
        names = [f"{id} in namespace {namespace!r}" if namespace else id for namespace, id in reversed(found)]
        raise ValueError(f"{ambiguous(short, names, f'thread {thread!r}')}, or pass --ns")
    return namespaces.pop() if namespaces else ""


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
        if command.callback is None or command.callback.__name__ in WITHOUT_STORAGE:
            continue
        if not hasattr(command.callback, "__wrapped__"):  # not at a second call
            command.callback = _with_shared_options(command.callback)
    app.registered_commands.sort(key=lambda command: place.get(getattr(command.callback, "__module__", ""), len(place)))


def _shared_options_last(args: Sequence[str]) -> list[str]:
    """Move the options of all commands that stand before the command behind it, where each command declares them."""
    end = 0
    while end < len(args) and (words := _SHARED_OPTIONS.get(args[end].partition("=")[0])) is not None:
        end += 1 if "=" in args[end] else words
    if args[end : end + 1] and args[end] in _MODULES:
        return [args[end], *args[:end], *args[end + 1 :]]
    return list(args)


def run(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = _shared_options_last(sys.argv[1:] if args is None else args)
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
        if file := _misplaced_file(args):
            stderr.print(f"The storage is an option: --url {file}")
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


def _misplaced_file(args: Sequence[str]) -> str | None:
    """Return the first argument that is a file if no storage is named: `threadkeep threads agent.db`.

    What follows an option may be its value, such as a file of keys.
    """
    named = any(arg.partition("=")[0] == "--url" for arg in args)
    files = (arg for before, arg in pairwise(args) if not before.startswith("-") and Path(arg).is_file())
    return None if named else next(files, None)


def _error_text(error: Exception) -> str:
    is_of_file = isinstance(error, OSError) and error.filename and error.strerror
    text = f"{error.filename}: {error.strerror}" if is_of_file else str(error)  # type: ignore[attr-defined]
    return text + "".join(f" ({note})" for note in getattr(error, "__notes__", ()))


def _exit_code(error: Exception) -> int:
    if isinstance(error, Missing):
        return NEGATIVE
    return STORAGE if isinstance(error, ThreadkeepError) else USAGE


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - Typer's signature
    if wanted:
        typer.echo(f"threadkeep {threadkeep.__version__}")
        raise typer.Exit


def _with_shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --keys, --timeout and --no-pager to a command, and take what is not given from a settings file.

    All commands have them, and `open_keep` reads them.
    """

    @wraps(command)
    def with_options(
        *args: Any, context: typer.Context, timeout: float | None, keys: str | None, no_pager: bool, **options: Any
    ) -> Any:
        pager.use(wanted=not no_pager)
        found = _settings(context)
        if found is not None:
            options["url"] = found.url
            if "tenant" in options and _source(context, "tenant") == "DEFAULT":
                options["tenant"] = found.tenant or ""
            timeout = found.timeout if timeout is None else timeout
        _origin.set(_url_origin(context, found))
        _timeout.set(_DEFAULT_TIMEOUT if timeout is None else timeout)
        _keys.set(settings.keys_file(keys, found))
        return command(*args, **options)

    own = signature(command, eval_str=True)
    added = [
        Parameter("keys", Parameter.KEYWORD_ONLY, default=None, annotation=KeysFile),
        Parameter("timeout", Parameter.KEYWORD_ONLY, default=None, annotation=Timeout),
        Parameter("no_pager", Parameter.KEYWORD_ONLY, default=False, annotation=NoPager),
        Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context),
    ]
    parameters = [*own.parameters.values(), *added]
    with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def _settings(context: typer.Context) -> settings.FileSettings | None:
    """Return the settings of a file, if the command names its storage in no other way."""
    has_storages = context.params.get(_SECOND_STORAGES.get(context.info_name or "", "")) is not None
    if "url" not in context.params or context.params["url"] is not None or has_storages:
        return None
    return settings.find(Path.cwd())


def _url_origin(context: typer.Context, found: settings.FileSettings | None) -> tuple[str | None, str]:
    if found is not None:
        return found.url, str(found.file)
    return context.params.get("url"), "THREADKEEP_URL" if _source(context, "url") == "ENVIRONMENT" else ""


def _source(context: typer.Context, option: str) -> str:
    """Return where the value of an option comes from: COMMANDLINE, ENVIRONMENT or DEFAULT."""
    source: Any = context.get_parameter_source(option)
    return source.name if source is not None else "DEFAULT"


@app.callback(help=_DESCRIPTION, epilog="Example: threadkeep threads --url agent.db")
def _main_options(
    *,
    url: Url = None,
    tenant: Tenant = "",
    keys: KeysFile = None,
    timeout: Timeout = None,
    json: Json = False,
    no_pager: NoPager = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Declare the options of `threadkeep` itself, for its help."""
