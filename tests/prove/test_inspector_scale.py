"""The inspector in a real browser with 100,000 threads."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import browsers
import threadkeep
from screenshots import serving
from threadkeep.inspector.inspected import Inspected

sys.path.append(str(Path(__file__).parents[2] / "bench"))

catalogue: Any = importlib.import_module("catalogue")
THREADS = 100_000
_MOST_MS = 120_000
"""How long is waited for a page at most: the machine may be busy."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.browser() as running:
        yield running


def opened(browser: Browser, link: str) -> Page:
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.set_default_timeout(_MOST_MS)
    page.goto(link)
    return page


def test_a_hundred_thousand_threads_are_listed_searched_and_scrolled(browser: Browser, tmp_path: Path) -> None:
    url = catalogue.make_file(tmp_path / "many.db", THREADS, 1)
    with threadkeep.open(url, read_only=True) as keep, serving(Inspected(keep, url=url)) as link:
        page = opened(browser, link)
        rows = page.locator("#threads [data-row]")
        expect(rows).to_have_count(50)
        page.keyboard.press("End")
        expect(rows).to_have_count(100, timeout=_MOST_MS)
        page.keyboard.press("/")
        page.keyboard.type("t77777")
        expect(rows).to_have_count(1, timeout=_MOST_MS)
        expect(rows.locator("a.id")).to_have_text("t77777")
        page.goto(page.evaluate("location.origin") + "/?status=interrupted")
        expect(page.get_by_text("No threads match.")).to_be_visible()
