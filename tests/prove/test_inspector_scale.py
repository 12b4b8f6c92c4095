"""The inspector in a real browser: 100,000 threads, and a thread of 10,000 checkpoints."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import browsers
import threadkeep
from checkpoint_chains import Chain
from screenshots import serving
from threadkeep.inspector.inspected import Inspected

sys.path.append(str(Path(__file__).parents[2] / "bench"))

catalogue: Any = importlib.import_module("catalogue")
THREADS, CHECKPOINTS = 100_000, 10_000
_MOST_NODES, _MOST_HEAP = 15_000, 60 << 20
"""What a page may take: nodes of the document, and bytes of JavaScript's heap."""
_MOST_MS = 120_000
"""How long is waited for a page at most: the machine may be busy."""


@pytest.fixture(scope="module")
def long_thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The link of an inspector with a thread whose messages and counter grow, and which has a second branch."""
    url = f"sqlite:///{tmp_path_factory.mktemp('long')}/long.db"
    with threadkeep.open(url) as keep:
        chain, said = Chain(keep.checkpointer, "long"), []
        for n in range(CHECKPOINTS - 1):
            if n % 20 == 0:
                said = [*said, {"role": "user", "content": f"message {n}"}]
            chain.put({"n": n, "messages": said})
        keep.rollback("long", f"{CHECKPOINTS // 2:08}")
    with threadkeep.open(url, read_only=True) as keep, serving(Inspected(keep, url=url)) as link:
        yield link


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=_MOST_MS)
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


def weight(page: Page) -> tuple[int, int]:
    """Return how many nodes a page has, and how many bytes its scripts hold."""
    protocol = page.context.new_cdp_session(page)
    protocol.send("HeapProfiler.collectGarbage")
    held = protocol.send("Runtime.getHeapUsage")["usedSize"]
    protocol.detach()
    return page.evaluate("document.querySelectorAll('*').length"), int(held)


def assert_light(page: Page) -> None:
    nodes, held = weight(page)
    assert nodes < _MOST_NODES
    assert held < _MOST_HEAP


@pytest.mark.parametrize("view", ["compact", "timeline", "full"])
def test_ten_thousand_checkpoints_are_scrolled_from_end_to_end(browser: Browser, long_thread: str, view: str) -> None:
    page = opened(browser, long_thread)
    page.goto(page.evaluate("location.origin") + f"/thread?thread=long&view={view}")
    rows, loading = page.locator("#rows > [data-row]"), page.locator("#rows > .loading")
    expect(rows.first).to_have_attribute("aria-setsize", str(CHECKPOINTS))
    for _ in range(2):
        page.keyboard.press("End")
        expect(rows.last).to_have_attribute("aria-posinset", str(CHECKPOINTS))
        expect(rows.last).to_be_in_viewport()
        page.keyboard.press("Home")
        expect(rows.first).to_have_attribute("aria-posinset", "1")
    height = page.evaluate("document.documentElement.scrollHeight")
    for part in range(1, 12):
        page.evaluate("top => scrollTo(0, top)", height * part / 12)
        page.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        expect(loading).to_have_count(0)
        assert page.evaluate("document.querySelectorAll('#rows > [data-row]').length") < 600
    positions = rows.evaluate_all("all => all.map(row => Number(row.getAttribute('aria-posinset')))")
    assert positions == list(range(positions[0], positions[0] + len(positions))), "no row is missing or there twice"
    assert_light(page)
    page.close()


def test_a_checkpoint_among_ten_thousand_is_chosen_compared_and_found_again(browser: Browser, long_thread: str) -> None:
    page = opened(browser, long_thread)
    page.goto(page.evaluate("location.origin") + "/thread?thread=long&id=00002500")
    chosen, panel = page.locator("#rows > [aria-current]"), page.locator("#panel")
    expect(chosen).to_be_in_viewport()
    expect(panel).to_contain_text("step 2500")
    panel.locator("[data-compare]").click()
    for _ in range(60):
        page.keyboard.press("j")
    expect(panel).to_contain_text("step 2440")
    expect(chosen).to_be_in_viewport()
    page.reload()
    expect(panel).to_contain_text("step 2440")
    expect(chosen).to_be_in_viewport()
    panel.locator("[data-compare]").click()
    page.wait_for_url("**/diff?*")
    expect(page.locator("main")).to_contain_text("2500")
    expect(page.locator("main")).to_contain_text("2440")
    page.close()


def test_the_slider_plays_ten_thousand_checkpoints(browser: Browser, long_thread: str) -> None:
    page = opened(browser, long_thread)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/play?" in request.url else None)
    page.goto(page.evaluate("location.origin") + "/play?thread=long&id=00009998")
    slider, place = page.get_by_role("slider"), page.locator("output")
    slider.fill("5000")
    expect(place).to_have_text("5001 of 9999")
    expect(page.locator("#stage")).to_contain_text("step 5000")
    page.get_by_label("Speed").select_option("20")
    asked.clear()
    page.locator("[data-toggle]").click()
    expect(place).to_have_text(re.compile(r"50[2-9]\d of 9999"))
    page.locator("[data-toggle]").click()
    expect(page.locator("[data-toggle]")).to_have_text("Play")
    at = int(slider.input_value())
    expect(page.locator("#stage")).to_contain_text(f"step {at}")
    assert len(asked) == len(set(asked)) <= at - 5000 + 2, "each place is asked for once, at the most two in advance"
    assert_light(page)
    page.close()
