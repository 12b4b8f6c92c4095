"""Build the packages and use them as a stranger would: `make package`.

The source distribution must build the same wheel as the checkout, with every file of src/threadkeep and nothing else.
Then, in an empty environment and folder: the install lines of the README and the code below them, `threadkeep demo`, and
every module that needs no extra. With --extras, everything is installed and every module imported.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "threadkeep"
FOR_OURSELVES = {"bench", "dev"}
"""Extras that users do not install."""
MOST_BYTES = 2_000_000
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"^(?:threadkeep|\.)(\[[\w,]+\])?$")
WITH_EXTRAS = (
    "conformance", "inspector", "agent_server", "deepagents_files", "observability.otel",
    "transports.postgres", "transports.valkey", "sources.postgres_server",
)  # fmt: skip
"""Parts of module names that need an extra, or what tests need."""
IMPORT_ALL = """
import importlib, pkgutil, sys, threadkeep
skipped = sys.argv[1:]
names = [each.name for each in pkgutil.walk_packages(threadkeep.__path__, "threadkeep.")
         if not each.name.endswith("__main__") and not any(part in each.name for part in skipped)]
for name in names:
    importlib.import_module(name)
if not skipped:
    for name in threadkeep.PUBLIC_NAMES:
        getattr(threadkeep, name)
print(len(names), "modules")
"""


def build(folder: Path) -> Path:
    """Build both packages into a folder and return the wheel."""
    _run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT)
    sdist, wheel = next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))
    with tarfile.open(sdist) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    unpacked = next((folder / "unpacked").iterdir())
    again = folder / "again"
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(again)], cwd=unpacked)
    check(_contents(next(again.glob("*.whl"))) == _contents(wheel), "the source distribution builds the same wheel")
    return wheel


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def check_contents(wheel: Path) -> None:
    """Check that the wheel has every file of the source, and nothing but these and its metadata."""
    files = {path.relative_to(SOURCE.parent).as_posix() for path in SOURCE.rglob("*") if path.is_file()}
    expected = {name for name in files if "__pycache__" not in name}
    packed = {name for name in _contents(wheel) if ".dist-info/" not in name}
    check(packed == expected, f"the wheel has all {len(expected)} files of the source, and no others")
    size = wheel.stat().st_size
    check(size < MOST_BYTES, f"the wheel has {size / 1e6:.1f} MB")


def first_steps() -> tuple[list[str], str]:
    """Return the `pip install` lines above the first piece of Python in the README, and that piece."""
    commands: list[str] = []
    for language, text in FENCE.findall((ROOT / "README.md").read_text("utf-8")):
        if language == "python":
            return commands, text
        commands += [line for line in text.splitlines() if line.startswith("pip install ")]
    raise SystemExit("README.md has no Python")


class Environment:
    """An empty virtual environment, in which `threadkeep` is the wheel that was built."""

    def __init__(self, folder: Path, wheel: Path, python: str) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"
        _run([python, "-m", "venv", str(folder / "venv")])
        own = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "THREADKEEP"))}
        self.env = own | {"PATH": f"{self.bin}:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self._wheel = wheel
        self.work = folder / "work"
        self.work.mkdir()

    def run(self, *command: str) -> str:
        """Run a command in the folder of the user, and return what it printed."""
        return _run(command, cwd=self.work, env=self.env)

    def install(self, command: str) -> None:
        """Run a `pip install` line; for `threadkeep`, or the checkout, it installs the wheel."""
        self.run(*(OURS.sub(rf"{self._wheel}\1", word) for word in shlex.split(command)), "--quiet")

    def megabytes(self) -> float:
        """Return what all installed packages take."""
        return sum(path.stat().st_size for path in (self.folder / "venv" / "lib").rglob("*") if path.is_file()) / 1e6


def check_first_steps(at: Environment) -> None:
    """Follow the README up to its first piece of Python, twice, then take the tour."""
    commands, code = first_steps()
    check(bool(commands), "the README has install lines above its first piece of Python")
    empty = at.megabytes()
    for command in commands:
        at.install(command)
    _say(f"{' && '.join(commands)}: {at.megabytes() - empty:.0f} MB")
    (at.work / "first.py").write_text(code, "utf-8")
    check(at.run("python", "first.py") != at.run("python", "first.py"), "the README's code runs, and continues")
    (at.work / "first.py").unlink()
    listed = at.run("threadkeep", "threads", "--url", "agent.db")
    check("t1" in listed, "the command lists its thread")
    left = {path.name for path in at.work.iterdir()}
    check("Every claim held" in at.run("threadkeep", "demo"), "threadkeep demo runs")
    check({path.name for path in at.work.iterdir()} == left, "threadkeep demo leaves nothing behind")
    _say(at.run("python", "-c", IMPORT_ALL, *WITH_EXTRAS).strip())


def check_extras(at: Environment) -> None:
    """Install everything and import every module."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    at.install(f"pip install threadkeep[{','.join(sorted(listed.keys() - FOR_OURSELVES))}] pytest")
    _say(f"{at.run('python', '-c', IMPORT_ALL).strip()} with all extras: {at.megabytes():.0f} MB")
    _say(at.run("python", "-m", "pip", "check").strip())


def _run(command: Sequence[str], **options: object) -> str:
    done = subprocess.run(command, text=True, capture_output=True, check=False, **options)  # type: ignore[call-overload]  # noqa: S603
    if done.returncode:
        raise SystemExit(f"✗ {' '.join(command)[:200]}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return str(done.stdout)


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


def check(holds: bool, claim: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Print a claim that holds, or stop."""
    if not holds:
        raise SystemExit(f"✗ this does not hold: {claim}")
    print(f"✓ {claim}", flush=True)


def main() -> None:
    """Check the packages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter that uses the wheel")
    parser.add_argument("--extras", action="store_true", help="also install all extras")
    parser.add_argument("--keep", metavar="FOLDER", help="copy the packages there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="threadkeep-package-") as name:
        folder = Path(name)
        wheel = build(folder / "dist")
        check_contents(wheel)
        at = Environment(folder, wheel, options.python)
        check_first_steps(at)
        if options.extras:
            check_extras(at)
        if options.keep:
            Path(options.keep).mkdir(parents=True, exist_ok=True)
            for package in (folder / "dist").glob("threadkeep-*.*"):
                shutil.copy(package, options.keep)
                _say(f"{options.keep}/{package.name}")


if __name__ == "__main__":
    main()
