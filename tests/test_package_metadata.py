"""The description and the links that a package index shows are not broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import package_metadata
from threadkeep.version import VERSION

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
TARGET = re.compile(r"\]\(([^)\s]+)\)")
AT = "https://pages.example/owner/threadkeep"


def metadata(repository: str) -> ProjectMetadata:
    """Return the metadata of the package, built with this address of the repository."""
    project = ProjectMetadata(str(ROOT), PluginManager())
    project.hatch.metadata.hook_config["custom"]["repository"] = repository
    return project


def test_without_an_address_the_readme_has_no_relative_link_and_names_pages_of_the_source_distribution() -> None:
    core = metadata("").core
    assert core.readme.startswith("# threadkeep\n")
    assert [target for target in TARGET.findall(core.readme) if "://" not in target] == []
    assert {name for name in re.findall(r"\(`([\w./-]+)`\)", core.readme) if not (ROOT / name).exists()} == set()
    assert core.urls == {}


def test_with_an_address_each_link_leads_to_the_tag_of_the_version_and_each_picture_to_its_file() -> None:
    core = metadata(AT).core
    linked, relative = TARGET.findall(core.readme), TARGET.findall(README)
    kind = {name: "raw" if name.endswith(".png") else "blob" for name in relative}
    assert linked == [to if "://" in to else f"{AT}/{kind[to]}/v{VERSION}/{to}" for to in relative]
    assert f"{AT}/raw/v{VERSION}/docs/images/inspector-thread-light.png" in linked


def test_with_an_address_the_index_lists_pages_that_exist() -> None:
    core = metadata(AT).core
    start = f"{AT}/blob/v{VERSION}/"
    assert list(core.urls) == ["Homepage", "Documentation", "Changelog", "Issues"]
    assert all((ROOT / url.removeprefix(start)).is_file() for url in core.urls.values() if url.startswith(start))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("See [how](docs/a.md#part).", "See how (`docs/a.md`)."),
        ("See [it](https://x.example/y).", "See [it](https://x.example/y)."),
        ("Before\n\n![A picture](docs/a.png)\n\nafter", "Before\n\nafter"),
    ],
)
def test_without_an_address_a_link_is_text_and_a_picture_is_left_out(written: str, shown: str) -> None:
    assert package_metadata.for_index(written, "", "v1") == shown
