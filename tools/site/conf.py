"""The site of the documentation, built by Sphinx: `make docs`.

Its source is the checkout itself, so a link between pages works on the site as it does in the repository. Nothing in a
page is written for Sphinx. The navigation is made from docs/index.md: a section for each heading, an entry for each page.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

project = "threadkeep"
author = "the authors of threadkeep"
copyright = f"{author}. Apache-2.0"

extensions = ["myst_parser"]
include_patterns = ["docs/**.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md"]
exclude_patterns = [".*", "**/.*", "build", "dist", "**/__pycache__"]
root_doc = "docs/index"
highlight_language = "text"
myst_heading_anchors = 6

html_theme = "furo"
html_title = "threadkeep"
html_favicon = html_logo = "../../src/threadkeep/inspector/static/icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["extra"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
PAGE = re.compile(r"\]\(([\w./-]+)\.md\)")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)


def add_navigation(_: Sphinx, page: str, source: list[str]) -> None:
    """Add a hidden toctree for each section of the index to it."""
    if page == root_doc:
        titles, sections = HEADING.findall(source[0]), HEADING.split(source[0])[2::2]
        source[0] += "".join(map(toctree, titles, sections))


def toctree(caption: str, section: str) -> str:
    """Return a toctree of the pages that a section of the index links, each once."""
    pages = "\n".join(dict.fromkeys(PAGE.findall(section)))
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n" if pages else ""
