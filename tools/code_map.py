"""Generates the maps of the code: the tree of src/threadkeep with the first sentence of each docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from sentences import first_sentence, shortened

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "threadkeep"
CLOSED = {PACKAGE / "conformance"}
"""Folders whose files the map omits."""
SUFFIXES = (".py", ".sql", ".lua")
NAMES, WIDTH = 28, 132
INTRODUCTION = """# Map of the code

Each file and the first sentence of its docstring, written by `make generate`. The folders alone are in
[CONTRIBUTING](../../CONTRIBUTING.md#the-code); [where do I change](where-to-change.md) goes from a change to its files.
"""


def page() -> str:
    """Return the page with a line for each file."""
    return f"{INTRODUCTION}\n{_fenced(_folder(PACKAGE, 0))}\n"


def folders() -> str:
    """Return a line for each folder that has Python, as a fenced block."""
    return _fenced(_folder(PACKAGE, 0, files=False))


def _fenced(lines: Iterator[str]) -> str:
    return "\n".join(("```text", *lines, "```"))


def _folder(folder: Path, depth: int, *, files: bool = True) -> Iterator[str]:
    yield _line(f"{'src/' if depth == 0 else ''}{folder.name}/", _purpose(folder / "__init__.py"), depth)
    if folder in CLOSED:
        return
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(("__pycache__", ".")))
    for file in entries:
        if files and file.suffix in SUFFIXES and file.name != "__init__.py":
            yield _line(file.name, _purpose(file), depth + 1)
    for inner in entries:
        if inner.is_dir() and (files or (inner / "__init__.py").exists()):
            yield from _folder(inner, depth + 1, files=files)


def _line(name: str, purpose: str, depth: int) -> str:
    start = f"{'  ' * depth}{name}"
    start += " " * (NAMES - len(start))
    return f"{start} {shortened(purpose, WIDTH - len(start) - 1)}".rstrip()


def _purpose(file: Path) -> str:
    """Return what a file says about itself: the docstring of a module, the first comment of a script."""
    if not file.exists():
        return ""
    text = file.read_text("utf-8")
    if file.suffix == ".py":
        return first_sentence(ast.get_docstring(ast.parse(text)))
    comment = takewhile(lambda line: line.startswith("--"), text.splitlines())
    return first_sentence("\n".join(line.removeprefix("--") for line in comment))
