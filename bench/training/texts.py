"""Prose and code of installed third-party packages, for the text of training messages.

Never the standard library's: the benchmark's conversation uses it, and a dictionary trained on it would flatter us.
Only packages under permissive licences are used, because phrases of theirs end up in the shipped dictionary.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import pathlib
import random
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

Kind = Literal["prose", "code"]

TRAINING = (
    *("anyio", "execnet", "h11", "httpcore", "idna"),
    *("langchain", "langchain_core", "langgraph", "langgraph_sdk", "langsmith", "markdown_it", "msgpack"),
    *("mypy", "numpy", "packaging", "pathspec", "pluggy", "pygments", "requests"),
    *("sortedcontainers", "tenacity", "truststore", "typer", "urllib3", "websockets", "yaml"),
    "_pytest",
)
HELD_OUT = ("httpx", "pydantic", "requests_toolbelt", "rich", "xdist")

LONG_LINE = 40
BORROWED_LIMIT = 0.05


class Texts:
    """Text taken in order from shuffled passages, so that two samples rarely contain the same words.

    The same packages and the same seed give the same text.
    """

    def __init__(self, packages: Iterable[str], *, seed: int, foreign: frozenset[int]) -> None:
        self.random = random.Random(seed)
        passages: dict[Kind, list[str]] = {"prose": [], "code": []}
        for package in sorted(packages):
            own = [source for source in _sources(package) if _borrowed_share(source, foreign) <= BORROWED_LIMIT]
            passages["code"] += own
            passages["prose"] += [*_descriptions(package), *chain.from_iterable(map(_docstrings, own))]
        self._text = {kind: self._shuffled(parts) for kind, parts in passages.items()}
        self._at: dict[Kind, int] = {"prose": 0, "code": 0}

    def take(self, kind: Kind, size: int) -> str:
        """Return the next `size` characters. Starts over at the end of the text."""
        text, start = self._text[kind], self._at[kind]
        if start + size > len(text):
            start = 0
        self._at[kind] = start + size
        return text[start : start + size]

    def _shuffled(self, passages: list[str]) -> str:
        self.random.shuffle(passages)
        return "\n\n".join(passages)


def standard_library_lines() -> frozenset[int]:
    """Return hashes of the standard library's long lines, to find sources that copy it (backports, for one)."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    paths = (path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    return frozenset(hash(line) for path in paths for line in _long_lines(path.read_text("utf-8", "replace")))


def _borrowed_share(source: str, foreign: frozenset[int]) -> float:
    lines = list(_long_lines(source))
    return sum(hash(line) in foreign for line in lines) / max(1, len(lines))


def _long_lines(text: str) -> Iterator[str]:
    return (line for raw in text.splitlines() if len(line := raw.strip()) >= LONG_LINE)


def _sources(package: str) -> Iterator[str]:
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"the dictionary is trained on text of {package!r}: install it first")
    for root in spec.submodule_search_locations or ():
        for path in sorted(pathlib.Path(root).rglob("*.py")):
            if "_vendor" not in path.parts:
                yield path.read_text("utf-8", "replace")


def _docstrings(source: str) -> list[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    owners = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [text for node in owners if (text := ast.get_docstring(node)) and len(text) > 150]


def _descriptions(package: str) -> list[str]:
    """Return the README of each distribution of this package, from its METADATA."""
    names = sorted(set(importlib.metadata.packages_distributions().get(package, ())))
    return [text for name in names if (text := importlib.metadata.metadata(name)["Description"])]
