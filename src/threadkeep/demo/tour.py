"""Play the chapters in a temporary folder, up to the first claim that does not hold."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rich.console import Console

from threadkeep.demo import approval, catalogue, chat, cost, crash, travel, tree
from threadkeep.demo.stage import WIDTH, NotTrueError, Stage

CHAPTERS = (chat, crash, approval, travel, tree, cost, catalogue)


def play() -> bool:
    """Play every chapter and return whether every claim held."""
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
            return False
    console.print(
        f"\n[bold green]Every claim held.[/] [dim]{time.monotonic() - began:.1f} s, nothing left behind.[/]\n"
    )
    return True
