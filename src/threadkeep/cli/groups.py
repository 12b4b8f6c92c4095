"""The commands by purpose, as `threadkeep --help` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperGroup

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Find": ("threads", "search", "waiting", "memories"),
    "Look": ("show", "log", "tree", "branches", "diff", "blame", "trace", "flow", "inspect"),
    "Count": ("stats", "sizes", "usage", "activity", "types"),
    "Change": ("describe", "tag", "rollback", "fork", "copy"),
    "Keep tidy": ("prune", "sweep", "delete", "erase", "compact"),
    "Move": ("import", "export", "convert"),
    "Protect": ("backup", "restore", "encrypt", "rotate", "reencrypt", "tenants", "lease"),
    "Check": ("verify", "repair", "doctor", "migrate", "setup"),
    "Learn": ("demo",),
}
"""Each command is in one group. A name without a command is skipped; tests fail for a command without a group."""
_OTHERS = "Others"
_SUMMARY = 200
"""The longest summary: none is cut, they are wrapped."""


class CommandGroup(TyperGroup):
    """The command `threadkeep`, whose help lists its commands by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rest = tuple(name for name in commands if not any(name in names for names in GROUPS.values()))
        width = max(map(len, commands), default=0)  # the same in all sections
        for title, names in (*GROUPS.items(), (_OTHERS, rest)):
            rows = [
                (name.ljust(width), command.get_short_help_str(limit=_SUMMARY))
                for name in names
                if (command := commands.get(name)) is not None and not command.hidden
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
