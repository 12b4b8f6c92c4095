"""The documentation is true: its code runs, its commands, links and tests exist, and it leaves out no public name.

All ```python blocks of a page are one script, run in a process and a folder of its own; its line numbers are the
page's. What stands in an ```output block must have been printed by it. Code that must not run stands in a ```text block.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import cli_reference
import nursery
import threadkeep
from threadkeep.adapters.cube import KeepCube
from threadkeep.backends.blocks import read_blocks

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path(threadkeep.__file__).resolve().parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
LANGUAGES = {"python", "output", "sh", "sql", "text"}
PATIENCE = 120

FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
COLUMN = re.compile(r"^    ([a-z_]+) [A-Z]", re.MULTILINE)
TABLE = re.compile(r"CREATE TABLE (\w+) \((.*?)\n\)", re.DOTALL)
HOME = re.compile(r"(?<![\w.~-])/(?:home|root|Users|work|builds|workspace)/(?!user/)[\w.-]+")


class Block(NamedTuple):
    """A fenced block; `line` is that of its opening fence."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in FENCE.finditer(text)]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


def named(pages: list[Path]) -> list[pytest.param]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


def having(*languages: str) -> list[pytest.param]:
    return named([page for page in PAGES if any(block.language in languages for block in blocks(page))])


def script(page: Path) -> str:
    """The page's python blocks, each on the lines where it stands in the page."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python":
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


AS_A_FILE = (
    "import sys; del sys.argv[0]; __file__ = sys.argv[0]; exec(compile(open(__file__).read(), __file__, 'exec'))"
)


def forked(file: Path) -> subprocess.Popen[str]:
    """Run a file in its folder, by an interpreter that has its imports done."""
    pipe = subprocess.PIPE
    return nursery.Forked([AS_A_FILE, file.name], cwd=file.parent, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def started(file: Path) -> subprocess.Popen[str]:
    """Run a file in its folder, by an interpreter of its own."""
    pipe, env = subprocess.PIPE, os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.Popen([sys.executable, file.name], cwd=file.parent, env=env, stdout=pipe, stderr=pipe, text=True)


TRIES = {"stored-form.md": 4}
"""LangGraph puts a checkpoint and the writes on it side by side; the page shows the usual order, a busy machine may not."""


@pytest.mark.parametrize("start", [forked, pytest.param(started, marks=pytest.mark.long)])
@pytest.mark.parametrize("page", having("python"))
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(
    page: Path, start: Callable[[Path], subprocess.Popen[str]], tmp_path: Path
) -> None:
    outputs = [block for block in blocks(page) if block.language == "output"]
    told = ""
    for number in range(TRIES.get(page.name, 1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = folder / f"page_{page.stem}.py"
        file.write_text(script(page), "utf-8")
        with start(file) as process:
            told, complaint = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, complaint
        if all(block.text in told for block in outputs):
            return
    wrong = [f"{page.name}:{block.line}" for block in outputs if block.text not in told]
    raise AssertionError(f"{', '.join(wrong)} says otherwise:\n{told}")


@pytest.mark.parametrize("page", named(PAGES))
def test_a_page_has_only_blocks_that_are_checked_or_plain_text(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES
    assert page.read_text("utf-8").count("```") == 2 * len(blocks(page)), "a fence is not closed"


def commands(page: Path) -> Iterator[list[str]]:
    for block in blocks(page):
        if block.language == "sh":
            for line in block.text.splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield words


def assert_command(name: str, *words: str) -> None:
    """There is such a command of threadkeep, with these options."""
    options = {opt for param in cli_reference.commands()[name].params for opt in (*param.opts, *param.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options, (name, *words)


@pytest.mark.parametrize("page", having("sh"))
def test_a_command_names_a_make_target_or_a_file_that_exists(page: Path) -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text("utf-8")))
    for program, *words in commands(page):
        if program == "make":
            asked = {word for word in words if "=" not in word}
            assert asked, words
            assert asked <= targets, words
        elif program == "threadkeep":
            assert_command(*words)
        elif program != "export":
            assert any((ROOT / word).exists() for word in (program, *words)), (program, *words)


@pytest.mark.parametrize("page", named(PAGES))
def test_make_targets_named_in_the_text_exist(page: Path) -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text("utf-8")))
    assert set(re.findall(r"`make ([a-z-]+)", prose(page))) <= targets


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", named(PAGES))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_reached_from_the_index() -> None:
    reached, waiting = set(), [ROOT / "docs/index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(prose(page)) if "://" not in link)
        waiting += [(page.parent / link).resolve() for link in links if link]
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} <= reached


def functions(file: Path) -> set[str]:
    defined = ast.walk(ast.parse(file.read_text("utf-8")))
    return {node.name for node in defined if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("page", named(PAGES))
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    for file, name in TEST.findall(prose(page)):
        assert (ROOT / file).is_file(), file
        assert not name or name in functions(ROOT / file), f"{file}::{name}"


API = ROOT / "docs/reference/api.md"
PUBLIC = {
    "threadkeep": threadkeep.__all__,
    "threadkeep.open": list(inspect.signature(threadkeep.open).parameters),
    "Keep": [name for name in vars(threadkeep.Keep) if not name.startswith("_")],
    "Keep.threads": [name for name in inspect.signature(threadkeep.Keep.threads).parameters if name != "self"],
    "KeepSaver": [name for name in vars(threadkeep.KeepSaver) if not name.startswith("_")],
    "KeepStore": [name for name in vars(threadkeep.KeepStore) if not name.startswith("_")],
    "KeepCube": [name for name in vars(KeepCube) if not name.startswith("_")],
    **{
        name: [field.name for field in dataclasses.fields(held)]
        for name in threadkeep.__all__
        if dataclasses.is_dataclass(held := getattr(threadkeep, name))
    },
    "errors": [name for name, held in vars(threadkeep.errors).items() if inspect.isclass(held)],
}


@pytest.mark.parametrize("owner", PUBLIC)
def test_every_public_name_is_in_the_reference(owner: str) -> None:
    told = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", prose(API)))))
    assert set(PUBLIC[owner]) - told == set()


SCHEMA = {
    name: COLUMN.findall(body)
    for block, sql in read_blocks("common.sql", "sqlite.sql").items()
    if block.startswith("schema-")
    for name, body in TABLE.findall(sql)
}


@pytest.mark.parametrize("table", SCHEMA)
def test_every_table_and_column_is_in_the_reference(table: str) -> None:
    page = (ROOT / "docs/reference/schema.md").read_text("utf-8")
    section = page.partition(f"## {table}\n")[2].partition("\n## ")[0]
    assert section, f"no section {table}"
    assert len(SCHEMA[table]) >= 2
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == set(SCHEMA[table])


def own_files() -> list[Path]:
    """What git has or would have; without git, the source."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    named = [ROOT / name for name in listed] or [*(ROOT / "src").rglob("*"), *(ROOT / "docs").rglob("*")]
    return [file for file in named if file.is_file() and file != Path(__file__).resolve()]


def test_no_file_names_a_folder_of_the_machine_that_it_was_written_on() -> None:
    texts = {file: file.read_bytes() for file in own_files()}
    found = {
        str(file.relative_to(ROOT)): HOME.findall(data.decode("utf-8", "replace"))
        for file, data in texts.items()
        if b"\0" not in data
    }
    assert {name: paths for name, paths in found.items() if paths} == {}
