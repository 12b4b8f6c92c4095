"""The page docs/reference/cli.md, made of the commands themselves: `python tests/cli_reference.py` writes it anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from threadkeep.cli import app as cli

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
COMMON = ("--url", "--tenant", "--json")
HEAD = """# The command `threadkeep`

The operator's verbs of a [Keep](api.md) in a terminal. `python -m threadkeep` is the same program. This page is made of the commands' own `--help`; `tests/test_cli.py` compares them.

Every command takes:

| | |
|---|---|
| `--url URL` | the storage: a URL as for `threadkeep.open`, or the path of an SQLite file. Or the environment variable `THREADKEEP_URL` |
| `--tenant TENANT` | whose threads; or `THREADKEEP_TENANT`. The default tenant is empty |
| `--json` | print JSON instead of text: the whole answer of the verb |
| `-h`, `--help` | the command's options |

A `CHECKPOINT` is an id, a beginning (or an end) of one that no other has, or `latest`; with `~2` behind it, the second one before that. `DURATION` and `TIME` are as [in Python](api.md#durations-and-times). Commands that only look open the storage read-only and make no database; beside an SQLite file, reading may leave an empty `-wal` and a `-shm`. Ids that begin with `-` stand after `--`.

| exit code | |
|---|---|
| 0 | done |
| 1 | the answer is no: there is no such thread, problems were found, both sides differ, you said no |
| 2 | the command was not understood, or something that it names is wrong |
| 3 | the storage cannot be reached, is too new, is damaged, or refuses |
| 130 | interrupted; what was done stays done, and the same command goes on |

What destroys something asks first; `--yes` answers, and without a terminal it is needed. `--dry-run` says what would happen and changes nothing.
"""


def commands() -> dict[str, Any]:
    """Every command by name."""
    cli.register()
    found: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    return found


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(name, command) for name, command in commands().items())])


def section(name: str, command: Any) -> str:
    """One command."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.opts[0] not in (*COMMON, "--help")]
    lines = [f"## `{name}`", "", f"`threadkeep {' '.join([name, *map(usage, arguments)])} [OPTIONS]`", ""]
    lines += [*paragraphs(command.help or ""), ""]
    rows = [(f"`{usage(argument)}`", argument.help or "") for argument in arguments]
    rows += [(spelled(option), option.help or "") for option in options]
    if rows:
        lines += ["| | |", "|---|---|", *(f"| {left} | {cell(right)} |" for left, right in rows), ""]
    return "\n".join(lines)


def usage(argument: Any) -> str:
    word = (argument.metavar or argument.name.upper()).strip("[]")
    return word if argument.required else f"[{word}]"


def spelled(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names[:-1]} {option.metavar or option.name.upper()}`"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def paragraphs(text: str) -> Iterator[str]:
    for number, part in enumerate(text.strip().split("\n\n")):
        if number:
            yield ""
        yield " ".join(part.split())


if __name__ == "__main__":
    PAGE.write_text(page())
