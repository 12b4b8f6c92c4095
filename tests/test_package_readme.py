"""The description that a package index shows has no broken link."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import package_readme

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
TARGET = re.compile(r"\]\(([^)\s]+)\)")


def test_the_metadata_has_the_readme_without_relative_links_and_names_pages_of_the_source_distribution() -> None:
    readme = ProjectMetadata(str(ROOT), PluginManager()).core.readme
    assert readme.startswith("# threadkeep\n")
    assert [target for target in TARGET.findall(readme) if "://" not in target] == []
    assert {name for name in re.findall(r"\(`([\w./-]+)`\)", readme) if not (ROOT / name).exists()} == set()


def test_with_the_address_of_the_pages_each_link_and_picture_is_absolute() -> None:
    text = package_readme.for_index(README, "https://pages.example/threadkeep/")
    linked, relative = TARGET.findall(text), TARGET.findall(README)
    assert linked == [to if "://" in to else f"https://pages.example/threadkeep/{to}" for to in relative]
    assert "https://pages.example/threadkeep/docs/images/inspector-thread-light.png" in linked


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("See [how](docs/a.md#part).", "See how (`docs/a.md`)."),
        ("See [it](https://x.example/y).", "See [it](https://x.example/y)."),
        ("Before\n\n![A picture](docs/a.png)\n\nafter", "Before\n\nafter"),
    ],
)
def test_without_an_address_a_link_is_text_and_a_picture_is_left_out(written: str, shown: str) -> None:
    assert package_readme.for_index(written, "") == shown
