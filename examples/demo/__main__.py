"""Runs the chapters in a temporary folder; exits with 1 at the first claim that does not hold."""

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from . import approval, catalogue, chat, cost, crash, travel, tree
from .stage import WIDTH, NotTrueError, Stage

CHAPTERS = (chat, crash, approval, travel, tree, cost, catalogue)


def main() -> int:
    """Run every chapter and return the exit code."""
    console = Console(highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    console.print("\n[bold]threadkeep[/]: keep every step of every thread of your agents", justify="center")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="threadkeep-demo-") as folder:
        stage = Stage(Path(folder), console)
        try:
            for chapter in CHAPTERS:
                chapter.play(stage)
        except NotTrueError as broken:
            console.print(f"\n[bold red]✗ This does not hold:[/] {broken}\n")
            return 1
    console.print(
        f"\n[bold green]Every claim held.[/] [dim]{time.monotonic() - began:.1f} s, nothing left behind.[/]\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
