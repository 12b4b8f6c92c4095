"""Writes the parts of the documentation that are generated from the code: `make generate`.

A page is generated as a whole, or between the lines `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
tests/test_docs.py fails if a page on disk differs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cli_reference
import code_map
import docstrings
from diagrams import DIAGRAMS
from public_names import public_names
from request_table import request_table

ROOT = Path(__file__).parent.parent
SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "CONTRIBUTING.md": ("folders", code_map.folders),
    "docs/explanation/plans.md": ("requests", request_table),
    "docs/reference/api.md": ("public names", public_names),
}
WHOLE: dict[str, Callable[[], str]] = {
    "docs/contributing/code-map.md": code_map.page,
    "docs/reference/cli.md": cli_reference.page,
    "docs/reference/docstrings.md": docstrings.page,
    **DIAGRAMS,
}
PAGES = (*WHOLE, *SECTIONS)


def generated(page: str) -> str:
    """Return the text that a page should have."""
    if page in WHOLE:
        return WHOLE[page]()
    name, render = SECTIONS[page]
    start, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
    before, opening, rest = (ROOT / page).read_text("utf-8").partition(start)
    _, closing, after = rest.partition(end)
    if not (opening and closing):
        raise ValueError(f"{page} has no section between {start} and {end}")
    return f"{before}{start}\n\n{render()}\n\n{end}{after}"


def main() -> None:
    """Write every page that differs and print its name."""
    for page in PAGES:
        text, file = generated(page), ROOT / page
        if not file.exists() or text != file.read_text("utf-8"):
            file.write_text(text, "utf-8")
            print(page)


if __name__ == "__main__":
    main()
