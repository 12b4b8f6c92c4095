"""`threadkeep demo` runs anywhere, leaves nothing behind, and says what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEMO = "from threadkeep.cli.app import run; raise SystemExit(run(['demo']))"


def demo(folder: Path, *, without: str = "") -> subprocess.CompletedProcess[str]:
    """Run the demo in a folder, as if some modules were not installed."""
    missing = "".join(f"sys.modules[{name!r}] = None; " for name in without.split())
    env = os.environ | {"TMPDIR": str(folder / "tmp"), "COLUMNS": "100"}
    (folder / "tmp").mkdir()
    (folder / "work").mkdir()
    return subprocess.run(
        [sys.executable, "-c", f"import sys; {missing}{DEMO}"],
        cwd=folder / "work", env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_demo_keeps_its_claims_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Every claim held" in done.stdout
    assert "threadkeep needs less than 1/20 of the disk" in done.stdout
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_without_the_official_saver_the_demo_says_how_to_compare(tmp_path: Path) -> None:
    done = demo(tmp_path, without="langgraph.checkpoint.sqlite")
    assert (done.returncode, done.stderr) == (0, "")
    assert 'pip install "threadkeep[demo]"' in done.stdout
    assert "Every claim held" in done.stdout


def test_without_langgraph_the_demo_says_what_to_install(tmp_path: Path) -> None:
    done = demo(tmp_path, without="langgraph.graph")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'error: the demo needs LangGraph: pip install "threadkeep[demo]"\n'
