"""The description of the package for a package index, made from README.md when the package is built.

The README links pages and pictures of the repository by relative paths, which an index cannot follow. If pyproject.toml
names the address where the repository can be read (`pages` of this hook), they become absolute. Otherwise a link becomes
its text and the name of the page, which the source distribution has, and a picture is left out: no link is broken.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[[^\]]*\]\((?!\w+:)([^)\s]+)\)\n*")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:)([^)\s]+)\)")


class PackageReadme(MetadataHookInterface):
    """The hook that Hatchling calls."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the readme to the metadata."""
        written = (Path(self.root) / "README.md").read_text("utf-8")
        text = for_index(written, self.config.get("pages", ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def for_index(text: str, pages: str) -> str:
    """Return a README in which every link works, or is none. `pages` is an address that ends with a slash, or ""."""
    if pages:
        return LINK.sub(rf"[\1]({pages}\2)", PICTURE.sub(lambda found: found[0].replace("](", f"]({pages}"), text))
    return LINK.sub(lambda found: f"{found[1]} (`{found[2].partition('#')[0]}`)", PICTURE.sub("", text))
