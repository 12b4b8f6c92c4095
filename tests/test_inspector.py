"""The inspector's pages, over HTTP, on every backend: what they show, and that nothing stored becomes markup."""

from __future__ import annotations

import asyncio
import html
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import pytest

import checkpoint_chains
import damage
import demo_storage
import sample_keep
import threadkeep
from inspectors import HOST, always, client, page
from threadkeep.inspector import app, time_axis
from threadkeep.inspector.application import inspector
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.redaction import HIDDEN, HiddenPattern

ADA = {"thread": "support/ada", "kind": "graph"}


@pytest.fixture(scope="module")
def filled(module_keep: Any) -> threadkeep.Keep:
    keep = module_keep()
    demo_storage.fill(keep)
    return keep


@pytest.fixture(scope="module")
def site(filled: threadkeep.Keep) -> Any:
    return app(filled, authorize=always, allowed_hosts=[HOST])


def shown_ids(text: str) -> list[str]:
    return [html.unescape(id) for id in re.findall(r'<a class="id" href="[^"]*thread\?[^"]*">([^<]*)</a>', text)]


async def test_the_first_page_lists_threads_of_both_kinds_and_filters_them(site: Any) -> None:
    everything = shown_ids(await page(site, ""))
    assert {"support/ada", "cleanup", "research/tides", "hostile <b>id</b>"} <= set(everything)
    assert shown_ids(await page(site, "", q="SUPPORT", order="id")) == ["support/ada", "support/grace", "support/linus"]
    assert shown_ids(await page(site, "", status="error")) == ["research/comets"]
    assert shown_ids(await page(site, "", kind="cube")) == ["cleanup"]
    assert shown_ids(await page(site, "", metadata="user=grace")) == ["support/grace"]
    assert shown_ids(await page(site, "", q="broken LAMP: refund")) == ["support/ada"], "by its title"
    assert set(shown_ids(await page(site, "", label="refund"))) == {"support/ada", "support/linus"}
    assert shown_ids(await page(site, "", archived="only")) == []
    assert "No threads match" in await page(site, "", q="nothing like it")
    assert 'title="Only threads of this user">grace</a>' in await page(site, "")
    assert shown_ids(await page(site, "", metadata='{"user": "grace"}')) == ["support/grace"], "the link of a user"
    assert "KEY=VALUE" in await page(site, "", 400, metadata="grace")


async def test_the_keys_that_name_a_user_can_be_chosen(filled: threadkeep.Keep) -> None:
    site = await asyncio.to_thread(
        app, filled, authorize=always, allowed_hosts=[HOST], user_keys=["nothing", "thread_id"]
    )
    text = await page(site, "")
    assert "Only threads of this user" not in text
    assert '<th scope="col">User</th>' not in text
    with pytest.raises(TypeError, match="metadata keys"):
        app(filled, user_keys="user")


async def test_words_are_found_in_all_threads_and_marked(site: Any) -> None:
    text = await page(site, "search", q="money back")
    assert {"support/ada", "support/grace"} <= set(re.findall(r"<strong>([^<]*)</strong></a>", text))
    assert "<mark>money</mark>" in text
    assert "Nothing has these words" in await page(site, "search", q="nothing like it")
    assert "<script>document" not in await page(site, "search", q="document title")
    assert "Find what was said" in await page(site, "search")


async def test_the_inbox_shows_who_waits_and_what_is_asked(site: Any) -> None:
    waiting = await page(site, "waiting")
    assert {"support/grace", "cleanup"} <= set(re.findall(r"<strong>([^<]*)</strong></a>", waiting))
    assert '<span class="chip" title="&#34;yes&#34;">yes</span>' in waiting, "the answers that it offers"
    assert "Refund $129.00 for order A-1041?" in waiting
    assert "Delete 42 files?" in waiting


async def test_a_checkpoint_of_a_cube_thread_shows_what_its_agent_asks(site: Any) -> None:
    text = await page(site, "checkpoint", thread="cleanup", kind="cube")
    (stop,) = re.findall(r'<section class="stop interrupted">(.*?)</section>', text, re.DOTALL)
    assert "Delete 42 files?" in stop


@pytest.mark.parametrize("view", ["compact", "timeline", "full"])
async def test_a_thread_is_drawn_with_a_row_for_each_checkpoint(site: Any, filled: threadkeep.Keep, view: str) -> None:
    for thread in ("support/ada", "research/tides"):
        tree = await filled.atree(thread)
        text = await page(site, "thread", thread=thread, view=view)
        assert len(re.findall("<li data-row", text)) == len(tree.checkpoints)
        assert text.count('class="chip latest"') == 1
    assert "before the refund" in await page(site, "thread", **ADA, view=view)
    assert 'class="dot error' in await page(site, "thread", thread="research/comets", view=view)


async def test_the_bars_of_a_timeline_end_when_tasks_ended(site: Any, filled: threadkeep.Keep) -> None:
    tree = await filled.atree("research/tides")
    fans_out = next(each for each in tree.checkpoints if each.nodes == ("search",))
    assert len(fans_out.ended) == 3
    assert list(fans_out.ended) == sorted(fans_out.ended)
    assert fans_out.ended[0] > fans_out.time
    (bar,) = [bar for bar, info in zip(bars_of(tree), tree.checkpoints, strict=True) if info == fans_out]
    assert bar.seconds == (fans_out.ended[-1] - fans_out.time).total_seconds()
    waits = await filled.atree("support/ada")
    asked = next(each for each in waits.checkpoints if each.interrupted and not each.tag)
    assert asked.ended
    assert 'class="span' in await page(site, "thread", thread="research/tides", view="timeline")


def bars_of(tree: Any) -> list[time_axis.Bar]:
    return time_axis.bars(tree, [SimpleNamespace(info=info) for info in tree.checkpoints])


async def test_a_checkpoint_shows_its_chat_with_results_in_their_calls_and_everything_else(site: Any) -> None:
    text = await page(site, "checkpoint", **ADA)
    assert "<strong>broken</strong>" in text, "Markdown is rendered"
    call = text[text.index('<details class="call"') : text.index("</details>", text.index('<details class="call"'))]
    assert "find_order" in call
    assert "LAMP-2" in call, "the result is in the call"
    for part in ("customer", "344 → 31 tokens", "threadkeep show support/ada", "threadkeep.open(", "thread_id"):
        assert part in html.unescape(text)
    interrupted = await page(site, "checkpoint", thread="support/grace")
    assert "Refund $129.00" in interrupted
    assert "TimeoutError" in await page(site, "checkpoint", thread="research/comets")


async def test_every_checkpoint_of_a_keep_with_one_of_everything_has_a_page(keep: threadkeep.Keep) -> None:
    await asyncio.to_thread(sample_keep.fill, keep)
    site = await asyncio.to_thread(app, keep, authorize=always, allowed_hosts=[HOST])
    for thread in await keep.athreads(limit=100):
        tree = await keep.atree(thread.id, kind=thread.kind)
        place = {"thread": thread.id, "kind": thread.kind}
        for info in tree.checkpoints[:: max(len(tree.checkpoints) // 4, 1)]:
            assert info.id in await page(site, "checkpoint", **place, ns=info.ns, id=info.id)
        assert "1 of" in await page(site, "play", **place)


async def test_a_comparison_shows_messages_and_values_on_both_sides(site: Any) -> None:
    text = await page(site, "diff", **ADA, a="latest~3", b="latest")
    assert "Swap sides" in text
    assert "customer.plan" in text
    other = await page(site, "diff", **ADA, a="latest", other="support/linus")
    assert "support/linus" in other
    assert "No differences" in await page(site, "diff", **ADA, a="latest", b="latest")


async def test_blame_names_the_node_that_set_a_value(site: Any) -> None:
    assert "<strong>find_order</strong>" in await page(site, "blame", **ADA, path="messages[2].content")
    assert "update" in await page(site, "blame", **ADA, path="customer.plan"), "it was set by update_state"
    assert "not found" in await page(site, "blame", 404, **ADA, path="customer.nothing")


async def test_the_slider_shows_each_state_on_the_way_and_what_changed(site: Any) -> None:
    first, last = await page(site, "play", **ADA), await page(site, "play", **ADA, at=10_000)
    assert "first checkpoint" in first
    assert "I am afraid" in last
    assert "I am afraid" not in first


async def test_tokens_are_counted_by_model_thread_node_or_metadata(site: Any) -> None:
    for by, found in (("model", "not known"), ("thread", "support/ada"), ("node", "agent")):
        assert found in await page(site, "usage", by=by)
    assert "grace" in await page(site, "usage", by="metadata", key="user")
    assert "<dd>1,156</dd>" in await page(site, "usage", thread="support/ada"), (
        "of one thread, those of its latest branch"
    )


async def test_branches_are_listed_and_compared_with_the_latest(site: Any) -> None:
    text = await page(site, "branches", **ADA)
    assert text.count("<tr data-row>") == 2
    assert text.count("Compare with the latest") == 1


async def test_the_flow_names_every_node_and_channel_and_draws_a_line_for_each_write(site: Any) -> None:
    text = await page(site, "flow", thread="research/tides")
    for name in ("plan", "search", "draft", "notes"):
        assert f">{name}</text>" in text
    assert text.count('class="edge send"') == 1
    assert "messages" in await page(site, "flow", thread="cleanup")


async def test_sizes_and_health_show_what_the_verbs_say(site: Any, filled: threadkeep.Keep) -> None:
    totals = await filled.astats()
    assert f"<dd>{totals.checkpoints}</dd>" in await page(site, "sizes")
    measured = await page(site, "sizes", measure=1, keep_last=1)
    assert "messages" in measured
    assert "Nothing was changed" in measured
    assert (await filled.astats()).checkpoints == totals.checkpoints, "a preview of a policy changes nothing"
    assert "No problems" in await page(site, "health", verify=1)


async def test_a_single_memory_is_counted_as_one_memory(keep: threadkeep.Keep) -> None:
    def store_a_memory() -> Any:
        keep.store.put(("notes",), "one", {"text": "a"})
        return app(keep, authorize=always, allowed_hosts=[HOST])

    assert "0 items and 1 memory (" in await page(await asyncio.to_thread(store_a_memory), "health", verify=1)


async def test_a_checkpoint_is_measured_by_channel_and_write(site: Any, filled: threadkeep.Keep) -> None:
    checkpoint = (await filled.asizes(thread_id="support/ada", checkpoint_id="latest~1")).checkpoint
    text = await page(site, "sizes", **ADA, id="latest~1")
    for each in checkpoint.by_channel:
        assert f'class="id">{each.channel}</th>' in text
    assert "new in this checkpoint" in text
    assert "close" in text, "what wrote on it"
    assert "retention policy" not in text
    assert f"/sizes?id={checkpoint.id}&amp;thread=support%2Fada" in await page(site, "checkpoint", **ADA, id="latest~1")


async def test_memories_are_shown_by_namespace_search_and_filter_with_their_time_to_live(site: Any) -> None:
    everything = await page(site, "memories")
    assert "1 h left" in everything or "2 h left" in everything
    assert "London" in everything
    of_ada = await page(site, "memories", ns=["users", "ada"])
    assert "London" in of_ada
    assert "LAMP-2" not in of_ada
    assert "every step" in await page(site, "memories", q="explained")
    assert "LAMP-2" not in await page(site, "memories", filter="kind=fact")


async def test_nothing_that_is_stored_becomes_markup(site: Any) -> None:
    thread = "hostile <b>id</b>"
    for path, query in (("", {}), ("thread", {}), ("checkpoint", {}), ("play", {"at": 1}), ("waiting", {})):
        text = await page(site, path, **({"thread": thread} if query or path not in ("", "waiting") else {}), **query)
        assert "<script>" not in text
        assert "<b>id</b>" not in text
        assert 'onerror="' not in text
    checkpoint = await page(site, "checkpoint", thread=thread)
    assert "&lt;script&gt;" in checkpoint, "it is shown as text"
    assert 'src="data:image/png;base64,' in checkpoint, "a picture in the message itself is shown"


async def test_ids_are_taken_exactly_as_they_are_stored() -> None:
    ids = [
        " spaces ",
        "-rf",
        "a\r\nX: y",
        "../../etc",
        "//elsewhere",
        "a b+c%2f&x=1#f",
        "lone \ud800",
        "{{7*7}}",
        "l" * 3000,
    ]

    def write() -> threadkeep.Keep:
        keep = threadkeep.open("memory://")
        for id in ids:
            checkpoint_chains.Chain(keep.checkpointer, id).put({"n": 1})
        return keep

    keep = await asyncio.to_thread(write)
    site = await asyncio.to_thread(app, keep, authorize=always, allowed_hosts=[HOST])
    links = re.findall(r'<a class="id" href="/thread([^"]*)"', await page(site, "", order="id"))
    assert len(links) == len(ids)
    async with client(site) as http:
        for link in map(html.unescape, links):
            for path in ("thread", "checkpoint", "play", "flow", "branches", "usage", "sizes", "health", "export"):
                assert (await http.get(f"/{path}{link}")).status_code == 200, (path, link)
    await page(site, "thread", 404, thread=b"\xff")
    await keep.aclose()


async def test_characters_that_nobody_sees_are_shown_as_escapes() -> None:
    id = "invoice\u202egpj.exe\x1b"

    def write() -> threadkeep.Keep:
        keep = threadkeep.open("memory://")
        checkpoint_chains.Chain(keep.checkpointer, id).put(
            {"channel\u2066": {"key\u202d": "value\u202e"}}, user="user\u202e"
        )
        keep.describe(id, title="title\u202e", labels=["label\u202e"])
        return keep

    keep = await asyncio.to_thread(write)
    site = await asyncio.to_thread(app, keep, authorize=always, allowed_hosts=[HOST])
    for path, query in (
        ("", {}),
        ("thread", {"thread": id}),
        ("checkpoint", {"thread": id}),
        ("sizes", {"thread": id}),
    ):
        text = await page(site, path, **query)
        assert r"invoice\u202egpj.exe\x1b" in text
        assert id not in re.sub(r'data-(copy|thread)="[^"]*"|value="[^"]*"', "", text), (
            "only what is copied or sent has it"
        )
        assert not re.search("(?:channel|key|value|user|title|label)[\u202a-\u202e\u2066]", text)
    await keep.aclose()


async def test_errors_are_pages_that_say_what_is_wrong(site: Any) -> None:
    assert "not found" in await page(site, "thread", 404, thread="nobody")
    assert "needs" in await page(site, "thread", 400)
    assert "must be one of" in await page(site, "thread", 400, **ADA, view="huge")
    assert "must be a number" in await page(site, "play", 400, **ADA, at="-1")
    assert "Not found" in await page(site, "nowhere", 404)


async def test_a_damaged_thread_is_shown_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/damaged.db"

    def prepare() -> threadkeep.Keep:
        with threadkeep.open(url) as keep:
            checkpoint_chains.Chain(keep.checkpointer, "t").put({"log": ["a text " * 50]})
            rows = damage.rows_opener(url)(keep, "t")
            at = max(rows.items())
            rows.set_item(at, damage.flip_byte(rows.items()[at]))
        return threadkeep.open(url)

    keep = await asyncio.to_thread(prepare)
    site = await asyncio.to_thread(app, keep, authorize=always, allowed_hosts=[HOST])
    assert "is damaged" in html.unescape(await page(site, "checkpoint", thread="t"))
    assert "problems" in await page(site, "health", verify=1)
    await keep.aclose()


async def test_a_large_value_and_a_long_thread_are_sent_in_slices(keep: threadkeep.Keep) -> None:
    def write() -> Any:
        chain = checkpoint_chains.Chain(keep.checkpointer, "long")
        for _ in range(250):
            chain.put({"numbers": [1]})
        chain.put({"numbers": list(range(5_000)), "text": "x" * 50_000})
        return app(keep, authorize=always, allowed_hosts=[HOST])

    site = await asyncio.to_thread(write)
    first, second = (
        await page(site, "thread", thread="long"),
        await page(site, "thread", thread="long", **{"from": 200}),
    )
    assert len(re.findall("<li data-row", first)) == 100
    assert len(re.findall("<li data-row", second)) == 51
    assert len(await page(site, "checkpoint", thread="long")) < 100_000
    assert ">4999<" in await page(site, "value", thread="long", path="numbers", **{"from": 4_950})
    assert "x" * 50_000 in await page(site, "value", thread="long", path="text")


async def test_a_value_that_is_nested_deeply_is_opened_level_by_level() -> None:
    def write() -> threadkeep.Keep:
        keep = threadkeep.open("memory://")
        value: Any = "the bottom"
        for _ in range(120):
            value = {"inner": [value]}
        checkpoint_chains.Chain(keep.checkpointer, "deep").put({"value": value})
        return keep

    keep = await asyncio.to_thread(write)
    site = await asyncio.to_thread(app, keep, authorize=always, allowed_hosts=[HOST])
    text = await page(site, "checkpoint", thread="deep")
    opened = 0
    while "the bottom" not in text:
        further = re.search(r'data-load="/value\?([^"]*)"', text)
        assert further is not None
        text = await page(site, "value", **dict(parse_qsl(html.unescape(further[1]))))
        opened += 1
    assert 2 < opened < 10
    await page(site, "play", thread="deep")
    await keep.aclose()


async def test_a_tree_is_read_again_when_its_thread_has_changed(keep: threadkeep.Keep) -> None:
    chain = checkpoint_chains.Chain(keep.checkpointer, "grows")
    await asyncio.to_thread(chain.put, {"n": 1})
    site = await asyncio.to_thread(app, keep, authorize=always, allowed_hosts=[HOST])
    assert len(re.findall("<li data-row", await page(site, "thread", thread="grows"))) == 1
    await asyncio.to_thread(chain.put, {"n": 2})
    assert len(re.findall("<li data-row", await page(site, "thread", thread="grows"))) == 2
    await keep.atag("grows", "latest", "golden")
    assert "golden" in await page(site, "thread", thread="grows")
    await keep.adelete("grows")
    await page(site, "thread", 404, thread="grows")


async def test_what_matches_the_pattern_is_hidden_everywhere(filled: threadkeep.Keep) -> None:
    shown = Inspected(filled, redaction=HiddenPattern(r"sk-demo-\w+|LAMP-\d|Ada"))
    site = await asyncio.to_thread(inspector, shown, authorize=always, allowed_hosts=[HOST])
    linus = {"thread": "support/linus", "kind": "graph"}
    for path, query in (
        ("checkpoint", ADA), ("checkpoint", linus), ("value", {**linus, "path": "messages"}), ("memories", {}),
        ("search", {"q": "sk-demo-4f9a2b"}), ("diff", {**linus, "a": "latest~3"}), ("play", {**linus, "at": 9}), ("blame", {**ADA, "path": "customer.name"}),
    ):  # fmt: skip
        text = await page(site, path, **query)
        assert not re.search(r"sk-demo|LAMP-2|Ada", text), path
        assert HIDDEN in text


async def test_addresses_in_forms_are_not_redacted_so_they_work(filled: threadkeep.Keep) -> None:
    shown = Inspected(filled, redaction=HiddenPattern("ada"))
    site = await asyncio.to_thread(inspector, shown, authorize=always, allowed_hosts=[HOST])
    for path in ("play", "sizes", "usage"):
        text = await page(site, path, **ADA)
        assert 'name="thread" value="support/ada"' in text
        assert f">support/{HIDDEN}</a></h1>" in text
    assert 'data-thread="support/ada"' in await page(site, "checkpoint", **ADA)


async def test_a_redacted_export_has_the_thread_without_its_words(site: Any, tmp_path: Path) -> None:
    async with client(site) as http:
        answer = await http.get("/export", params=ADA)
    assert answer.status_code == 200, answer.text
    file = tmp_path / "thread.jsonl.zst"
    file.write_bytes(answer.content)
    async with threadkeep.open("memory://") as target:
        await target.aimport_portable(file)
        (thread,) = await target.athreads()
        assert thread.checkpoints == 10
        assert "lamp" not in str((await target.ashow(thread.id)).values)
