"""Make the screenshots of the inspector in docs/images: every view, light and dark, and some as on a phone.

    .venv/bin/python tools/screenshots.py [VIEW …]

They show the storage that `demo_storage.py` writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import NamedTuple
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page

import browsers
import demo_storage
import threadkeep
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.serve import listen

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
LAPTOP, SHORT, PHONE = {"width": 1140, "height": 740}, {"width": 1140, "height": 600}, {"width": 390, "height": 740}
ADA = {"thread": "support/ada", "kind": "graph"}


class View(NamedTuple):
    """A page to show: its path, the file's name, the size of the window, and what is awaited before the picture."""

    name: str
    path: str
    query: Mapping[str, str | int] = {}
    size: dict[str, int] = LAPTOP
    awaited: str = "main"


VIEWS = (
    View("threads", ""),
    View("threads-phone", "", {}, PHONE),
    View("waiting", "waiting"),
    View("search", "search", {"q": "money back"}),
    View("thread", "thread", ADA, awaited="#panel .heading"),
    View("thread-full", "thread", {**ADA, "view": "full"}, awaited="#panel .heading"),
    View(
        "thread-timeline",
        "thread",
        {"thread": "research/tides", "kind": "graph", "view": "timeline"},
        awaited="#panel .heading",
    ),
    View("thread-phone", "thread", ADA, PHONE),
    View("checkpoint", "checkpoint", ADA),
    View("checkpoint-phone", "checkpoint", ADA, PHONE),
    View("flow", "flow", ADA),
    View("branches", "branches", ADA),
    View("usage", "usage", {"by": "thread"}),
    View("diff", "diff", {**ADA, "a": "latest~5"}),
    View("blame", "blame", {**ADA, "path": "customer.plan"}),
    View("play", "play", {**ADA, "at": 4}),
    View("sizes", "sizes", {"measure": 1, "keep_last": 3}),
    View("health", "health", {"verify": 1}, SHORT),
    View("memories", "memories", {"q": "lamp tea"}),
    View("change", "change", {**ADA, "action": "rollback", "id": "latest~3"}),
)


@contextmanager
def serving(shown: Inspected) -> Iterator[str]:
    """Serve an inspector in a thread; yield the link with its token."""
    with listen(shown) as server:
        thread = Thread(target=server.run)
        thread.start()
        try:
            yield server.link
        finally:
            server.stop()
            thread.join()


def main(names: list[str]) -> None:
    """Make the pictures, all or those that are named."""
    IMAGES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder, threadkeep.open(f"sqlite:///{folder}/agents.db") as keep:
        demo_storage.fill(keep)
        with browsers.browser() as browser:
            for write in (False, True):
                with serving(Inspected(keep, url="sqlite:///agents.db", write=write)) as link:
                    for view in VIEWS:
                        if (view.path == "change") is write and (not names or view.name in names):
                            _picture(browser, link, view)


def _picture(browser: Browser, link: str, view: View) -> None:
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport=view.size, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        _open(page, link, view)
        page.screenshot(path=IMAGES / f"inspector-{view.name}-{scheme}.png")
        context.close()


def _open(page: Page, link: str, view: View) -> None:
    page.goto(link)
    page.goto(f"{link.partition('?')[0]}{view.path}?{urlencode(view.query)}")
    page.wait_for_selector(view.awaited)
    page.wait_for_load_state("networkidle")


if __name__ == "__main__":
    main(sys.argv[1:])
