"""Older versions of threadkeep, from this repository's history, to run beside today's."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import fork_server

ROOT = Path(__file__).parents[2]
RELEASED = "d5b10674e85e"
"""Version 0.1.0: the last commit with schema 4. What came after it was in development only."""


def source_of(commit: str) -> Path:
    """Return the folder of an older version's package, unpacked on first use below `.cache`. Needs git's history."""
    folder = ROOT / ".cache" / "versions" / commit
    if not (folder / "src").exists():
        packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
    return folder / "src"


def start(commit: str, script: str, *args: Any) -> subprocess.Popen[str]:
    """Run a script with an older version."""
    path = [str(source_of(commit)), *fork_server.paths()]
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Wait until a process ends. It must succeed; what old versions write to stderr when they close is no failure."""
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-4000:]
