"""The inspector in a real browser: a person opens, searches, walks, compares, plays; and nothing leaves the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from playwright.sync_api import Browser, BrowserContext, Page, expect

import browsers
import demo_storage
import foreign_savers
import threadkeep
from checkpoint_chains import Chain
from conftest import BACKENDS
from screenshots import serving
from threadkeep.inspector.foreign import ForeignStorage
from threadkeep.inspector.inspected import Inspected

SQLITE = pytest.mark.parametrize("filled", ["sqlite"], indirect=True)
"""For a test of pages, to which the backend does not matter."""
ADA = "/thread?thread=support%2Fada&kind=graph"
MOVED = """new Promise(done => {
  let moved = 0;
  new PerformanceObserver(list => { for (const each of list.getEntries()) moved += each.value; })
    .observe({ type: "layout-shift", buffered: true });
  requestAnimationFrame(() => requestAnimationFrame(() => done(moved)));
})"""
"""How much of the page has moved since it was drawn first, as browsers measure it: 0.1 and more disturbs readers."""


def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call something in a thread: Playwright has a running loop in this one, where sync calls are refused."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function, *args).result()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=15_000)
    with browsers.browser() as running:
        yield running


@contextmanager
def demo(url: str) -> Iterator[threadkeep.Keep]:
    keep = threadkeep.open(url)
    in_thread(demo_storage.fill, keep)
    yield keep
    in_thread(keep.close)


@pytest.fixture(scope="module", params=[each.name for each in BACKENDS if each.lasting])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[threadkeep.Keep]:
    """The demonstration on each backend that lasts, written once."""
    backend = next(each for each in BACKENDS if each.name == request.param)
    with demo(backend.fresh(tmp_path_factory.mktemp("browser"), 0)) as keep:
        yield keep


@pytest.fixture(scope="module")
def site(filled: threadkeep.Keep) -> Iterator[str]:
    with serving(Inspected(filled, url="sqlite:///agents.db")) as link:
        yield link


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """Opens a link in a window of its own. At the end, no request has left this machine and no error was logged."""
    contexts: list[BrowserContext] = []
    requests: list[str] = []
    complaints: list[str] = []

    def open_link(link: str) -> Page:
        context = browser.new_context(viewport={"width": 1200, "height": 800})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(link)
        return page

    yield open_link
    for context in contexts:
        context.close()
    elsewhere = [url for url in requests if not url.startswith(("http://127.0.0.1:", "data:"))]
    assert (elsewhere, complaints) == ([], [])


@contextmanager
def shown(opened: Callable[[str], Page], inspected: Inspected) -> Iterator[Page]:
    """Serve an inspector of its own, and open it. The page is closed before the server: it may still load something."""
    with serving(inspected) as link:
        page = opened(link)
        yield page
        page.close()


def go(page: Page, path: str) -> None:
    page.goto(page.evaluate("location.origin") + path)


def test_a_person_searches_opens_and_walks_a_thread(opened: Any, site: str) -> None:
    page = opened(site)
    assert "token" not in page.url
    page.keyboard.press("/")
    page.keyboard.type("SUPPORT/A")
    expect(page.locator("#threads [data-row]")).to_have_count(1)
    assert "q=SUPPORT" in page.url, "the search is in the address"
    page.get_by_role("link", name="support/ada").click()
    expect(page.locator("#rows > [data-row]")).to_have_count(10)
    panel = page.locator("#panel")
    expect(panel.get_by_text("I am afraid")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("#rows > [data-row]").nth(2)).to_have_attribute("aria-current", "true")
    expect(panel.locator(".stop")).to_contain_text("Refund $129.00")
    page.reload()
    expect(page.locator("#rows > [data-row]").nth(2)).to_have_attribute("aria-current", "true")
    expect(panel.locator(".stop")).to_contain_text("Refund $129.00")


def test_two_checkpoints_are_chosen_for_a_comparison_by_clicking(opened: Any, site: str) -> None:
    page = opened(site)
    go(page, ADA)
    page.locator("#panel [data-compare]").click()
    expect(page.locator(".compare-bar")).to_contain_text("support/ada")
    page.locator("#rows > [data-row]").nth(4).click()
    expect(page.locator("#panel")).to_contain_text("step 4")
    page.locator("#panel [data-compare]").click()
    page.wait_for_url("**/diff?*")
    expect(page.locator("main")).to_contain_text("customer.plan")


def test_a_value_is_blamed_by_clicking_it(opened: Any, site: str) -> None:
    page = opened(site)
    go(page, "/checkpoint?thread=support%2Flinus")
    leaf = page.locator(".leaf", has_text="approved").last
    leaf.hover()
    leaf.locator("a.blame").click()
    expect(page.locator(".answer")).to_contain_text("approve")


def test_the_slider_plays_the_state_forward(opened: Any, site: str) -> None:
    page = opened(site)
    go(page, "/play?thread=support%2Fada")
    slider = page.get_by_role("slider")
    assert slider.input_value() == "0"
    assert page.evaluate(MOVED) < 0.05, "nothing moves when the scripts have come"
    slider.fill("3")
    expect(page.locator("output")).to_have_text("4 of 8")
    expect(page.locator("#stage")).to_contain_text("Let me look at your order.")
    page.get_by_label("Speed").select_option("20")
    page.locator("[data-toggle]").click()
    expect(page.locator("output")).to_have_text("8 of 8")
    expect(page.locator("#stage")).to_contain_text("I am afraid")
    expect(page.locator("[data-toggle]")).to_have_text("Play")
    page.locator("body").press("ArrowLeft")
    expect(page.locator("output")).to_have_text("7 of 8")
    assert "at=6" in page.url, "the place is in the address"


def test_the_inbox_leads_to_the_thread_that_waits(opened: Any, site: str) -> None:
    page = opened(site)
    page.get_by_role("link", name="Waiting").click()
    question = page.locator("article, .card", has_text="Refund $129.00").first
    expect(question).to_be_visible()
    question.get_by_role("link", name="support/grace").click()
    expect(page.locator("#panel .stop")).to_contain_text("Refund $129.00")


def test_a_hostile_message_stays_a_text(opened: Any, site: str) -> None:
    page = opened(site)
    for path in (
        "/thread?thread=hostile+%3Cb%3Eid%3C%2Fb%3E",
        "/waiting",
        "/search?q=order",
        "/checkpoint?thread=hostile+%3Cb%3Eid%3C%2Fb%3E",
    ):
        go(page, path)
        page.wait_for_load_state("networkidle")
        assert "taken over" not in page.title()
        assert page.locator("img[src='x']").count() == 0
    expect(page.get_by_text("<script>")).to_be_visible()
    assert page.locator("img.picture").evaluate("picture => picture.naturalWidth") == 96


PAGES = (
    "/", "/search?q=money+back", "/waiting", ADA, ADA + "&view=timeline", ADA + "&view=full",
    "/thread?thread=research%2Ftides&view=timeline", "/checkpoint?thread=support%2Fgrace", "/memories", "/usage?by=thread",
    "/checkpoint?thread=hostile+%3Cb%3Eid%3C%2Fb%3E", "/sizes?measure=1", "/sizes?thread=support%2Fada&id=latest",
    "/health?verify=1", "/play?thread=support%2Fada&at=3", "/flow?thread=support%2Fada", "/branches?thread=support%2Fada",
    "/diff?thread=support%2Fada&a=latest~3", "/blame?thread=support%2Fada&path=customer.plan",
)  # fmt: skip


@SQLITE
def test_a_reader_is_told_when_the_inspector_does_not_answer(browser: Browser, site: str) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.goto(site)
    go(page, ADA)
    expect(page.locator("#panel .heading")).to_be_visible()
    page.route("**/checkpoint?*", lambda route: route.abort())
    page.keyboard.press("j")
    expect(page.locator(".toast")).to_contain_text("does not answer")
    page.unroute("**/checkpoint?*")
    page.context.clear_cookies()
    page.keyboard.press("j")
    expect(page.locator(".toast")).to_contain_text("Open the link")
    page.goto(site)
    go(page, ADA)
    expect(page.locator("#panel .heading")).to_be_visible()
    expect(page.locator(".toast")).to_have_count(0)
    page.close()


TO_WRITE = (
    ADA, "/checkpoint?thread=support%2Fgrace", "/waiting", "/branches?thread=support%2Fada",
    *(f"/change?thread=support%2Fgrace&kind=graph&action={name}" for name in ("describe", "prune", "delete", "answer")),
)  # fmt: skip


@contextmanager
def serving_both(keep: threadkeep.Keep) -> Iterator[list[tuple[str, tuple[str, ...]]]]:
    """Serve a storage read-only and in write mode. Yield the link of each, and the pages to look at."""
    graph = demo_storage.support().compile(checkpointer=keep.checkpointer)
    with serving(Inspected(keep)) as read, serving(Inspected(keep, write=True, graph=graph)) as write:
        yield [(read, (*PAGES, "/thread?thread=nobody", "/search?q=nowhere")), (write, TO_WRITE)]


@SQLITE
def test_no_page_is_wider_than_a_phone(browser: Browser, filled: threadkeep.Keep) -> None:
    long = "l" * 300
    in_thread(Chain(filled.checkpointer, long).put, {long: {long: long}})
    in_thread(filled.store.put, (long,), long, {long: long})
    wide = []
    with serving_both(filled) as both:
        for link, paths in both:
            page = browser.new_page(viewport={"width": 390, "height": 800})
            page.goto(link)
            for path in (*paths, f"/thread?thread={long}", f"/checkpoint?thread={long}", f"/sizes?thread={long}"):
                go(page, path)
                if page.evaluate("document.documentElement.scrollWidth") > 390:
                    wide.append(path)
            page.close()
    in_thread(filled.delete, long)
    in_thread(filled.store.delete, (long,), long)
    assert wide == []


@SQLITE
def test_axe_finds_no_serious_violations(browser: Browser, filled: threadkeep.Keep) -> None:
    axe = browsers.axe()
    if axe is None:
        pytest.skip("npm cannot get axe-core")
    found = []
    with serving_both(filled) as both:
        for link, paths in both:
            page = browser.new_page(viewport={"width": 1200, "height": 800}, reduced_motion="reduce")
            page.goto(link)
            for path in paths:
                go(page, path)
                if path.startswith(ADA):
                    page.wait_for_selector("#panel .heading")
                page.evaluate(axe.read_text("utf-8"))
                for scheme, rules in (("light", ["wcag2a", "wcag2aa"]), ("dark", ["color-contrast"])):
                    page.emulate_media(color_scheme=scheme)
                    found += [(scheme, path, *each) for each in serious_violations(page, rules)]
            page.close()
    assert found == []


def serious_violations(page: Page, rules: list[str]) -> list[tuple[str, str, str]]:
    violations = page.evaluate("rules => axe.run({runOnly: rules}).then(result => result.violations)", rules)
    return [
        (each["id"], each["nodes"][0]["html"][:200], each["nodes"][0].get("failureSummary", "")[:300])
        for each in violations
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("server", [False, True], ids=["SqliteSaver", "PostgresSaver"])
def test_a_database_of_another_saver_opens_without_an_import(opened: Any, tmp_path: Path, server: bool) -> None:
    url = foreign_savers.Database().libpq if server else str(tmp_path / "theirs.db")
    with (PostgresSaver if server else SqliteSaver).from_conn_string(url) as saver:
        saver.setup()
        in_thread(foreign_savers.fill_saver, saver)
    before = None if server else Path(url).read_bytes()
    keep = threadkeep.open("memory://")
    with shown(opened, Inspected(keep, url=url, foreign=ForeignStorage(url, keep))) as page:
        expect(page.locator(".banner.foreign")).to_contain_text("threadkeep import")
        expect(page.locator("#threads [data-row]")).to_have_count(3)
        page.get_by_role("link", name="asked").click()
        expect(page.locator("#panel")).to_contain_text("question 0")
    in_thread(keep.close)
    assert server or Path(url).read_bytes() == before


def test_changes_are_asked_about_in_a_form(opened: Any, filled: threadkeep.Keep) -> None:
    in_thread(filled.copy, "support/grace", "to change")
    with shown(opened, Inspected(filled, write=True)) as page:
        expect(page.locator(".banner.write")).to_be_visible()
        go(page, "/thread?thread=to+change&kind=graph")
        page.locator("#panel").get_by_role("link", name="Tag…", exact=True).click()
        page.get_by_label("Tag", exact=True).fill("golden")
        page.get_by_role("button", name="Tag", exact=True).click()
        expect(page.locator("#rows .tag")).to_have_text("golden")
        page.get_by_role("link", name="Delete…").click()
        expect(page.locator("form.ask")).to_contain_text("5 checkpoints")
        page.get_by_role("button", name="Delete the thread").click()
        expect(page.locator(".banner.done")).to_contain_text("deleted")
    assert in_thread(filled.thread, "to change") is None


def test_long_lists_are_fetched_while_one_scrolls(opened: Any, tmp_path: Path) -> None:
    def write() -> threadkeep.Keep:
        keep = threadkeep.open(f"sqlite:///{tmp_path}/long.db")
        chain = Chain(keep.checkpointer, "long")
        for n in range(450):
            chain.put({"n": n})
        for n in range(120):
            Chain(keep.checkpointer, f"t{n:03}").put({"n": n})
        return keep

    keep = in_thread(write)
    with shown(opened, Inspected(keep)) as page:
        expect(page.locator("#threads [data-row]")).to_have_count(50)
        page.keyboard.press("End")
        expect(page.locator("#threads [data-row]")).to_have_count(100)
        page.get_by_label("Live").check()
        in_thread(Chain(keep.checkpointer, "a new one").put, {"n": 0})
        expect(page.locator("#threads [data-row]").first).to_contain_text("a new one")
        expect(page.locator("#threads [data-row]")).to_have_count(101)
        page.get_by_label("Live").uncheck()
        page.wait_for_load_state("networkidle")
        go(page, "/thread?thread=long")
        rows = page.locator("#rows > [data-row]")
        expect(rows.first).to_have_attribute("aria-posinset", "1")
        page.keyboard.press("End")
        expect(rows.last).to_have_attribute("aria-posinset", "450")
        expect(page.locator("#rows > .loading")).to_have_count(0)
        assert rows.count() < 450, "only what is near the window is in the page"
        page.keyboard.press("Home")
        expect(rows.first).to_have_attribute("aria-posinset", "1")
        page.wait_for_load_state("networkidle")
    in_thread(keep.close)
