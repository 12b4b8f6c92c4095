"""Older versions of threadkeep, to run beside today's: version 0.1.0, as it was released."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import fork_server

ROOT = Path(__file__).parents[2]
RELEASED = "threadkeep-0.1.0-py3-none-any.whl"
"""The wheel of the last release. Add that of each release to `tests/data`, and use it here."""


def source_of(wheel: str) -> Path:
    """Return the folder of an older version's package, unpacked on first use below `.cache`."""
    folder = ROOT / ".cache" / "versions" / wheel.removesuffix(".whl")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unpacked = tempfile.mkdtemp(dir=folder.parent)
        with zipfile.ZipFile(ROOT / "tests" / "data" / wheel) as archive:
            archive.extractall(unpacked)
        try:
            os.rename(unpacked, folder)
        except OSError:  # another process was faster
            shutil.rmtree(unpacked)
    return folder


def start(wheel: str, script: str, *args: Any) -> subprocess.Popen[str]:
    """Run a script with an older version."""
    path = [str(source_of(wheel)), *fork_server.paths()]
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
