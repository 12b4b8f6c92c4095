"""The description and the links of the package on an index, made when the package is built.

The README links pages and pictures of the repository by relative paths, which an index cannot follow. If pyproject.toml
names the repository (`repository` of this hook), links become absolute and lead to the tag of the version, and the index
lists the repository, the documentation, the changelog and the issues. Otherwise a link becomes its text and the name of
the page, which the source distribution has, and a picture is left out: no link is broken.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[[^\]]*\]\((?!\w+:)([^)\s]+)\)\n*")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:)([^)\s]+)\)")


class PackageMetadata(MetadataHookInterface):
    """The hook that Hatchling calls."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the readme and the links to the metadata."""
        written = (Path(self.root) / "README.md").read_text("utf-8")
        repository, tag = self.config.get("repository", ""), f"v{metadata['version']}"
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(written, repository, tag)}
        metadata["urls"] = links(repository, tag)


def for_index(text: str, repository: str, tag: str) -> str:
    """Return a README in which every link works, or is none. `repository` is an address as GitHub has them, or ""."""
    if repository:
        pictured = PICTURE.sub(lambda found: found[0].replace("](", f"]({repository}/raw/{tag}/"), text)
        return LINK.sub(rf"[\1]({repository}/blob/{tag}/\2)", pictured)
    return LINK.sub(lambda found: f"{found[1]} (`{found[2].partition('#')[0]}`)", PICTURE.sub("", text))


def links(repository: str, tag: str) -> dict[str, str]:
    """Return the links that an index lists beside the description; none without a repository."""
    if not repository:
        return {}
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/index.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
