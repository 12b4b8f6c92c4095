"""What a Keep and its results look like at a prompt, in a log and in a notebook: short, escaped, without secrets."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from typing import Any

import pytest

import browsers
import demo_storage
import threadkeep
from checkpoint_chains import Chain
from encrypted_keeps import KEYS
from threadkeep.engine.history.notebook import MOST_ROWS
from threadkeep.short_repr import short_repr

RESULTS = [
    each
    for name in threadkeep.PUBLIC_NAMES
    if dataclasses.is_dataclass(each := getattr(threadkeep, name)) and isinstance(each, type)
]


@pytest.fixture(scope="module")
def filled() -> Any:
    with threadkeep.open("memory://") as keep:
        demo_storage.fill(keep)
        yield keep


@pytest.mark.parametrize("result", RESULTS, ids=lambda each: each.__name__)
def test_every_result_has_the_short_repr(result: type) -> None:
    assert result.__repr__ is short_repr


def test_the_repr_of_a_result_stays_short_whatever_it_contains() -> None:
    with threadkeep.open("memory://") as keep:
        chain = Chain(keep.checkpointer)
        chain.put({"secret": "x" * 100_000, **{f"channel-{n}": n for n in range(100)}}, metadata={"long": "y" * 10_000})
        found = [keep.threads()[0], keep.show("t"), keep.tree("t"), keep.log("t")[0], keep.sizes(), keep.trace("t")]
        assert [len(repr(each)) < 500 for each in found] == [True] * len(found)
        assert "xxx" not in repr(keep.show("t"))
        assert (
            repr(keep.tree("t"))
            == "Tree(thread='t', kind='graph', checkpoints=(1 item), roots={1 item}, children={1 item})"
        )


def test_the_repr_of_a_policy_can_be_read() -> None:
    assert repr(threadkeep.Policy(prefix="a", keep_last=3)).startswith("Policy(prefix='a', match='any', keep_last=3, ")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://", "<Keep memory://>"),
        ("agent.db", "<Keep sqlite:///agent.db>"),
        (
            "postgresql://ann:hunter2@host/agents?connect_timeout=1",
            "<Keep postgresql://ann:…@host/agents?connect_timeout=1>",
        ),
        ("postgresql://host/agents?user=ann&password=hunter2", "<Keep postgresql://host/agents?user=ann&password=…>"),
        ("valkey://:hunter2@host:6379,other:6379/", "<Keep valkey://:…@host:6379,other:6379/>"),
    ],
)
def test_the_repr_of_a_keep_names_its_storage_without_the_password(url: str, shown: str) -> None:
    keep = threadkeep.open(url)
    assert repr(keep) == shown
    keep.close()
    assert repr(keep) == f"{shown[:-1]}, closed>"


def test_the_repr_of_a_keep_says_whose_it_is_and_what_it_may_do() -> None:
    with threadkeep.open("memory://", keys=KEYS, read_only=True, tenant="acme") as keep:
        assert repr(keep) == "<Keep memory://, tenant='acme', encrypted, read-only>"
    with threadkeep.open("memory://") as keep:
        tenant = keep.tenant("acme")
        assert repr(tenant) == "<Keep memory://, tenant='acme'>"
        tenant.close()
        assert (repr(tenant), repr(keep)) == ("<Keep memory://, tenant='acme', closed>", "<Keep memory://>")


class Tags(HTMLParser):
    """The tags, attributes and text of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_shows_threads_as_a_table_with_all_text_escaped(filled: threadkeep.Keep) -> None:
    shown = Tags(filled.threads()._repr_html_())
    assert shown.tags == {"div", "table", "thead", "tbody", "tr", "th", "td", "b", "span"}
    assert shown.attributes == {"style"}
    for thread in filled.threads():
        assert thread.id in shown.text
    assert "<script>" in shown.text
    assert filled.threads() == list(filled.threads())


def test_a_notebook_shows_a_tree_with_its_branches_and_all_text_escaped(filled: threadkeep.Keep) -> None:
    for thread in filled.threads():
        tree = filled.tree(thread.id)
        shown = Tags(tree._repr_html_())
        assert shown.tags <= {"p", "b", "pre", "span"}
        assert shown.attributes <= {"style", "title"}
        assert shown.text.count("●") == len(tree.checkpoints)
        assert thread.id in shown.text
    assert "├─╯" in Tags(filled.tree("support/ada")._repr_html_()).text


def test_a_notebook_shows_the_newest_of_many_checkpoints() -> None:
    with threadkeep.open("memory://") as keep:
        chain = Chain(keep.checkpointer, "a\x1b[31m\ud800")
        for n in range(MOST_ROWS + 2):
            chain.put({"n": n})
        text = Tags(keep.tree("a\x1b[31m\ud800")._repr_html_()).text
        assert text.count("●") == MOST_ROWS
        assert "and 2 more checkpoints" in text
        assert "\x1b" not in text
        assert text.encode()


def test_no_threads_are_shown_as_such() -> None:
    with threadkeep.open("memory://") as keep:
        assert keep.threads()._repr_html_() == "<p>No threads.</p>"


def test_a_browser_runs_nothing_of_what_a_notebook_shows(filled: threadkeep.Keep) -> None:
    shown = filled.threads()._repr_html_() + "".join(filled.tree(each.id)._repr_html_() for each in filled.threads())
    with browsers.browser() as browser:
        page = browser.new_page()
        page.set_content(f"<!doctype html><title>notebook</title>{shown}")
        assert page.title() == "notebook"
        assert page.locator("script, img, a, i").count() == 0
        assert page.get_by_text("hostile <b>id</b>").count() >= 1
