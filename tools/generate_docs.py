"""Writes the parts of the documentation that are generated from the code: `make generate`.

A page is generated as a whole, or between the lines `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
tests/test_docs.py fails if a page on disk differs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cli_reference
from code_map import code_map
from public_names import public_names
from request_table import request_table

ROOT = Path(__file__).parent.parent
SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "CONTRIBUTING.md": ("map of the code", code_map),
    "docs/explanation/plans.md": ("requests", request_table),
    "docs/reference/api.md": ("public names", public_names),
}
PAGES = ("docs/reference/cli.md", *SECTIONS)


def generated(page: str) -> str:
    """Return the text that a page should have."""
    if page not in SECTIONS:
        return cli_reference.page()
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
        text = generated(page)
        if text != (ROOT / page).read_text("utf-8"):
            (ROOT / page).write_text(text, "utf-8")
            print(page)


if __name__ == "__main__":
    main()
