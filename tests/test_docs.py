"""The documentation is true: its code runs, its commands, links and tests exist, and no public name is missing.

All ```python blocks of a page form one script, run in a separate process and folder; its line numbers are the page's.
An ```output block must have been printed by it. Code that must not run is in a ```text block.
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
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import cli_reference
import fork_server
import generate_docs
import request_table
import threadkeep
from threadkeep import urls
from threadkeep.adapters.cubeloop import KeepCube
from threadkeep.backends.sql.blocks import read_blocks
from threadkeep.engine.schema_versions import STEPS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path(threadkeep.__file__).resolve().parents[1]
PROJECT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "RELEASING.md", "SECURITY.md")
PAGES = [ROOT / name for name in PROJECT] + sorted((ROOT / "docs").rglob("*.md"))
LANGUAGES = {"python", "output", "sh", "sql", "text"}
TIMEOUT = 120

FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
COLUMN = re.compile(r"^    ([a-z_]+) [A-Z]", re.MULTILINE)
TABLE = re.compile(r"CREATE TABLE (\w+) \((.*?)\n\)", re.DOTALL)
ADDED_COLUMN = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (\w+)")
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
    """Return the page's python blocks as one script, each on its lines in the page."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python":
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


AS_A_FILE = (
    "import sys; del sys.argv[0]; __file__ = sys.argv[0]; exec(compile(open(__file__).read(), __file__, 'exec'))"
)


def forked(file: Path) -> subprocess.Popen[str]:
    """Run a file in its folder, through the fork server."""
    pipe = subprocess.PIPE
    return fork_server.Forked([AS_A_FILE, file.name], cwd=file.parent, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def started(file: Path) -> subprocess.Popen[str]:
    """Run a file in its folder, in a new interpreter."""
    pipe, env = subprocess.PIPE, os.environ | {"PYTHONPATH": str(SOURCE)}
    return subprocess.Popen([sys.executable, file.name], cwd=file.parent, env=env, stdout=pipe, stderr=pipe, text=True)


TRIES = {"stored-form.md": 4}
"""LangGraph puts a checkpoint and its writes concurrently; a busy machine may change the order that a page shows."""


@pytest.mark.parametrize("start", [forked, pytest.param(started, marks=pytest.mark.long)])
@pytest.mark.parametrize("page", having("python"))
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(
    page: Path, start: Callable[[Path], subprocess.Popen[str]], tmp_path: Path
) -> None:
    outputs = [block for block in blocks(page) if block.language == "output"]
    output = ""
    for number in range(TRIES.get(page.name, 1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = folder / f"page_{page.stem}.py"
        file.write_text(script(page), "utf-8")
        with start(file) as process:
            output, complaint = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, complaint
        if all(block.text in output for block in outputs):
            return
    wrong = [f"{page.name}:{block.line}" for block in outputs if block.text not in output]
    raise AssertionError(f"{', '.join(wrong)} says otherwise:\n{output}")


BASE = {"threadkeep", "langgraph", "langchain_core", "pydantic", *sys.stdlib_module_names} | {
    "apsw", "cryptography", "ormsgpack", "zstandard",
}  # fmt: skip
"""What the install line of the quickstart brings along."""
EXTRA_OF = {"cubeloop": "cube", "deepagents": "deepagents", "numpy": "vectors", "starlette": "inspect"} | {
    "opentelemetry.metrics": "otel", "opentelemetry.trace": "otel", "psycopg": "postgres", "psycopg_pool": "postgres",
}  # fmt: skip
PACKAGE_OF = {
    "langgraph.checkpoint.sqlite": "langgraph-checkpoint-sqlite",
    "langgraph.checkpoint.serde.encrypted": "pycryptodome",
    "threadkeep.conformance": "pytest",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.prometheus": "opentelemetry-exporter-prometheus",
}


def imported(block: Block) -> set[str]:
    """Return the modules that a block imports, each by all its names: a, a.b, a.b.c."""
    nodes = [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    parts = [module.split(".") for module in modules]
    return {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)}


def needed(module: str) -> str | None:
    """Return what `pip install` must name before a module can be imported; None if the quickstart's line is enough."""
    if module in EXTRA_OF:
        return f"threadkeep[{EXTRA_OF[module]}]"
    outside = "." not in module and module not in BASE and module != "opentelemetry"
    return PACKAGE_OF.get(module, module if outside else None)


@pytest.mark.parametrize("page", having("python"))
def test_what_a_page_imports_is_installed_by_a_line_above_it(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    for block in blocks(page):
        if block.language != "python":
            continue
        installed = " ".join(line for line in lines[: block.line] if "pip install" in line)
        missing = {name for module in imported(block) if (name := needed(module)) is not None and name not in installed}
        assert missing == set(), f"{page.name}:{block.line}"


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
    """Assert that a command of threadkeep with these options exists."""
    options = {opt for param in cli_reference.commands()[name].params for opt in (*param.opts, *param.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options, (name, *words)


@pytest.mark.parametrize("page", having("sh"))
def test_a_command_names_a_make_target_or_a_file_that_exists(page: Path) -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text("utf-8")))
    for program, *words in commands(page):
        if program == "make":
            named_targets = {word for word in words if "=" not in word}
            assert named_targets, words
            assert named_targets <= targets, words
        elif program == "threadkeep":
            assert_command(*words)
        elif program != "export":
            assert any((ROOT / word).exists() for word in (program, *words)), (program, *words)


@pytest.mark.parametrize("page", named(PAGES))
def test_make_targets_named_in_the_text_exist(page: Path) -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text("utf-8")))
    assert set(re.findall(r"`make ([a-z-]+)", prose(page))) <= targets


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
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


@pytest.mark.parametrize("page", generate_docs.PAGES)
def test_a_generated_page_is_what_the_code_says(page: str) -> None:
    assert (ROOT / page).read_text("utf-8") == generate_docs.generated(page), "run: make generate"


PLANS = ROOT / "docs/explanation/plans.md"


@pytest.mark.parametrize("heading", ["Round trips", "In PostgreSQL"])
def test_the_tables_of_plans_name_only_requests_that_exist(heading: str) -> None:
    exist = {request.__name__ for request in request_table.requests()} | {"Conflict", "CubeLoop"}
    column = {"Round trips": 1, "In PostgreSQL": 0}[heading]
    named = {name for row in rows(section(PLANS, heading)) for name in re.findall(r"\b[A-Z][A-Za-z]+", row[column])}
    assert "LoadCheckpoints" in named
    assert named - exist == set()


def section(page: Path, heading: str, level: int = 2) -> str:
    """Return the text under a heading, up to the next one of the same level."""
    mark = "#" * level
    found = re.search(rf"^{mark} {re.escape(heading)}\n(.*?)(?=^{mark} |\Z)", prose(page), re.MULTILINE | re.DOTALL)
    assert found, f"{page.name} has no heading {heading}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Yield the cells of all table rows, without headers."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    headers = {number for number, line in enumerate(lines[1:]) if line.startswith("|---")}
    cells = [re.split(r"(?<!\\) ?\| ?", line.strip("| ")) for line in lines]
    return [row for number, row in enumerate(cells) if number not in headers and number - 1 not in headers]


API = ROOT / "docs/reference/api.md"
OWNERS = {value.__name__: value for value in (threadkeep.Keep, threadkeep.KeepSaver, threadkeep.KeepStore, KeepCube)}


def own_names(owner: type) -> set[str]:
    """Return the public names that our classes define, not those inherited from LangGraph."""
    ours = [base for base in owner.__mro__ if base.__module__.startswith("threadkeep")]
    return {name for base in ours for name in vars(base) if not name.startswith("_")}


def first_names(text: str) -> Counter[str]:
    """Return the names at the start of tables' first cells, each `name(arguments)` or `name`."""
    spans = [span for row in rows(text) for span in re.findall(r"`([^`]+)`", row[0])]
    return Counter(found[1] for span in spans if (found := re.match(r"(?:threadkeep\.)?(\w+)", span)))


@pytest.mark.parametrize("owner", OWNERS)
def test_every_member_is_in_the_reference_exactly_once(owner: str) -> None:
    output = first_names(section(API, owner))
    assert {name: output[name] for name in own_names(OWNERS[owner]) if output[name] != 1} == {}


@pytest.mark.parametrize("owner", OWNERS)
def test_every_member_has_its_docstring_in_the_reference(owner: str) -> None:
    headings = re.findall(r"^### (.+)$", section(ROOT / "docs/reference/docstrings.md", owner), re.MULTILINE)
    flags = {name for name in own_names(OWNERS[owner]) if isinstance(getattr(OWNERS[owner], name), bool)}
    assert set(re.findall(r"`(\w+)`", " ".join(headings))) == own_names(OWNERS[owner]) - flags


@pytest.mark.parametrize("page", named(PAGES))
def test_no_table_has_two_rows_for_one_file(page: Path) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", prose(page), re.MULTILINE):
        output = Counter(file for row in rows(table) for file in TEST.findall(row[0]))
        assert {file: count for file, count in output.items() if count > 1} == {}


URLS = re.findall(r"(\w+)://", urls.ACCEPTED)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_every_kind_of_url_is_on_the_pages_for_newcomers(page: str) -> None:
    assert {scheme for scheme in URLS if f"{scheme}://" not in (ROOT / page).read_text("utf-8")} == set()


def test_every_kind_of_url_is_in_the_docstring_of_open_and_in_the_reference() -> None:
    assert {scheme for scheme in URLS if f"{scheme}://" not in (threadkeep.open.__doc__ or "")} == set()
    assert {scheme for scheme in urls._SCHEMES if f"{scheme}://" not in section(API, "URLs")} == set()


PUBLIC = {
    "threadkeep": threadkeep.PUBLIC_NAMES,
    "threadkeep.open": list(inspect.signature(threadkeep.open).parameters),
    "Keep.threads": [name for name in inspect.signature(threadkeep.Keep.threads).parameters if name != "self"],
    **{
        name: [field.name for field in dataclasses.fields(value)]
        for name in threadkeep.PUBLIC_NAMES
        if dataclasses.is_dataclass(value := getattr(threadkeep, name))
    },
    "errors": [name for name, value in vars(threadkeep.errors).items() if inspect.isclass(value)],
}


@pytest.mark.parametrize("owner", PUBLIC)
def test_every_public_name_is_in_the_reference(owner: str) -> None:
    output = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", prose(API)))))
    assert set(PUBLIC[owner]) - output == set()


def test_every_public_name_has_its_docstring_in_the_reference() -> None:
    headings = re.findall(r"^##+ (.+)$", (ROOT / "docs/reference/docstrings.md").read_text("utf-8"), re.MULTILINE)
    found = {name for heading in headings for name in re.findall(r"\w+", heading.replace("threadkeep.", "").lower())}
    assert {name for name in PUBLIC["threadkeep"] if name.lower() not in found} == set()


MIGRATIONS = "\n".join(
    sql for name, sql in read_blocks("sql/common.sql", "sqlite/blocks.sql").items() if name.startswith("schema-")
)
SCHEMA = {
    name: [*COLUMN.findall(body), *(column for table, column in ADDED_COLUMN.findall(MIGRATIONS) if table == name)]
    for name, body in TABLE.findall(MIGRATIONS)
}


@pytest.mark.parametrize("table", SCHEMA)
def test_every_table_and_column_is_in_the_reference(table: str) -> None:
    page = (ROOT / "docs/reference/schema.md").read_text("utf-8")
    section = page.partition(f"## {table}\n")[2].partition("\n## ")[0]
    assert section, f"no section {table}"
    assert len(SCHEMA[table]) >= 2
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == set(SCHEMA[table])


def own_files() -> list[Path]:
    """Return the files that git has or would add; without git, the source files."""
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


def test_the_reference_lists_every_schema_version_and_no_other_page_repeats_the_number() -> None:
    versions = rows(section(ROOT / "docs/reference/schema.md", "Versions"))
    assert [row[0] for row in versions] == list(map(str, STEPS))
    sql = read_blocks("sqlite/blocks.sql", "sqlite/views.sql")
    assert [row[0] for row in versions if "views" in row[1]] == [
        number for number in map(str, STEPS) if "CREATE VIEW" in sql[f"schema-{number}"]
    ]
    numbered = re.compile(r"schema (?:version )?\d", re.IGNORECASE)
    assert {page.name for page in PAGES if numbered.search(prose(page))} <= {"CHANGELOG.md"}
