"""Generates the page docs/reference/cli.md from the commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from threadkeep.cli import app as cli

COMMON = ("--url", "--tenant", "--json", "--keys", "--timeout", "--no-pager")
EXAMPLE = "Example: "
"""How the epilog of each command begins."""
HEAD = """# The command `threadkeep`

The verbs of a [Keep](api.md) for the terminal; [how to use it](../howto/command-line.md). `python -m threadkeep` is the same program. This page is generated from the `--help` texts (`make generate`).

Options of every command. They may stand before the command too:

| | |
|---|---|
| `--url URL` | the storage: a URL as for `threadkeep.open`, or the path of an SQLite file. Default: the environment variable `THREADKEEP_URL`, otherwise a [settings file](../howto/command-line.md#name-the-storage) |
| `--tenant TENANT` | the tenant. Default: the environment variable `THREADKEEP_TENANT`, otherwise the empty tenant |
| `--json` | print the complete result as JSON instead of text |
| `--keys FILE` | file with the keys of an encrypted storage. Default: the environment variable `THREADKEEP_KEYS`; `none` ignores that |
| `--timeout SECONDS` | how long to wait for a storage that is unreachable, locked or does not answer. Default: 30 |
| `--no-pager` | print long output at once, not page by page in `PAGER` |
| `-h`, `--help` | the command's options |

- A `CHECKPOINT` is an id, the first or last characters of an id if only one matches, or `latest`. `~N` after it means its Nth ancestor: `latest~2`.
- `DURATION` and `TIME` are the same as [in Python](api.md#durations-and-times).
- Write ids that start with `-` after `--`.
- Commands that change nothing open the storage read-only and never create a database. SQLite may leave an empty `-wal` and a `-shm` file beside a file that is read.

| exit code | |
|---|---|
| 0 | success |
| 1 | a negative result: not found, problems found, both sides differ, or you answered no |
| 2 | invalid usage: an unknown option or a wrong argument |
| 3 | the storage cannot be reached, has a newer schema, is damaged, or refuses access |
| 130 | interrupted; finished work stays, and the same command continues it |

Commands that delete data ask for confirmation. `--yes` confirms in advance; it is required if there is no terminal. \
`--dry-run` prints what would happen and changes nothing.
"""


def commands() -> dict[str, Any]:
    """Return every command by name."""
    cli.register()
    found: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    return found


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(section(name, command) for name, command in commands().items())])


def section(name: str, command: Any) -> str:
    """Return the section of one command."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.opts[0] not in (*COMMON, "--help")]
    lines = [f"## `{name}`", "", f"`threadkeep {' '.join([name, *map(usage, arguments)])} [OPTIONS]`", ""]
    lines += [*paragraphs(command.help or ""), ""]
    if command.epilog:
        lines += [f"Example: `{command.epilog.removeprefix(EXAMPLE)}`", ""]
    rows = [(f"`{usage(argument)}`", argument.help or "") for argument in arguments]
    rows += [(option_names(option), option.help or "") for option in options]
    if rows:
        lines += ["| | |", "|---|---|", *(f"| {left} | {cell(right)} |" for left, right in rows), ""]
    return "\n".join(lines)


def usage(argument: Any) -> str:
    """Return how an argument is written in the usage line."""
    word = (argument.metavar or argument.name.upper()).strip("[]") + ("..." if argument.nargs == -1 else "")
    return word if argument.required else f"[{word}]"


def option_names(option: Any) -> str:
    """Return the names of an option, with its value if it takes one."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names[:-1]} {option.metavar or option.name.upper()}`"


def cell(text: str) -> str:
    """Return a text as a table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a help text, each paragraph on one line."""
    for number, part in enumerate(text.strip().split("\n\n")):
        if number:
            yield ""
        yield " ".join(part.split())
