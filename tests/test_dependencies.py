"""Every dependency in pyproject.toml is imported by the code that it is declared for."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def packages(requirement: str) -> set[str]:
    """Return the packages that a distribution installs; if it is not installed, their usual name."""
    name = re.match(r"[\w.-]+", requirement)[0]
    try:
        return {file.parts[0] for file in files(name) or () if file.suffix == ".py"}
    except PackageNotFoundError:
        return {name.replace("-", "_")}


def imported(folder: str) -> set[str]:
    """Return the top-level names of every import in a folder, also inside functions."""
    nodes = [node for file in (ROOT / folder).rglob("*.py") for node in ast.walk(ast.parse(file.read_text("utf-8")))]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    origins = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in plain | origins}


def unused(requirements: list[str], folder: str) -> list[str]:
    used = imported(folder)
    named = [requirement for requirement in requirements if not requirement.startswith("threadkeep[")]
    return [requirement for requirement in named if not packages(requirement) & used]


def test_the_source_imports_every_dependency_and_those_of_every_extra() -> None:
    extras = [requirement for extra in EXTRAS.keys() - {"dev", "bench"} for requirement in EXTRAS[extra]]
    assert unused([*PROJECT["dependencies"], *extras], "src") == []


def test_the_benchmarks_import_every_dependency_of_their_extra() -> None:
    assert unused(EXTRAS["bench"], "bench") == []
