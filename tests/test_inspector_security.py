"""Who may use the inspector: hosts, tokens, methods, forms, headers, tenants; and where it may be mounted."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount

import demo_storage
import threadkeep
from checkpoint_chains import Chain, config
from encrypted_keeps import KEYS, NEXT
from inspectors import HOST, always, client, page
from threadkeep.engine.history.paths import format_path
from threadkeep.errors import Missing
from threadkeep.inspector import app
from threadkeep.inspector.application import PAGES, inspector
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.link_token import LinkToken
from threadkeep.inspector.redaction import HIDDEN, HiddenPattern

ADA = {"thread": "support/ada", "kind": "graph"}
MUST_HAVE = {
    "content-security-policy": "default-src 'none'; script-src 'self'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


@pytest.fixture
def conversation() -> Any:
    """A Keep with one thread, which waits."""
    with threadkeep.open("memory://") as keep:
        graph = demo_storage.support().compile(checkpointer=keep.checkpointer)
        graph.invoke({"messages": [("human", "My lamp is broken")]}, demo_storage.config("support/ada", "ada"))
        yield keep


@pytest.fixture
def readable(conversation: threadkeep.Keep) -> Any:
    return app(conversation, authorize=always, allowed_hosts=[HOST])


@pytest.fixture
def writable(conversation: threadkeep.Keep) -> Any:
    return app(conversation, authorize=always, allowed_hosts=[HOST], write=True)


async def test_a_mounted_app_without_authorize_refuses_every_request_and_says_why(
    conversation: threadkeep.Keep,
) -> None:
    for path in ("", "static/style.css", "thread"):
        refused = await page(await asyncio.to_thread(app, conversation, allowed_hosts=[HOST]), path, 403)
        assert "authorize=" in refused
        assert "support/ada" not in refused
    with pytest.raises(ValueError, match="needs authorize="):
        app(conversation, write=True)


async def test_only_true_lets_a_request_pass_also_from_an_async_function(conversation: threadkeep.Keep) -> None:
    async def of_ada(request: Any) -> bool:
        return request.headers.get("x-user") == "ada"

    site = await asyncio.to_thread(app, conversation, authorize=of_ada, allowed_hosts=[HOST])
    async with client(site) as http:
        assert (await http.get("/")).status_code == 403
        assert (await http.get("/", headers={"x-user": "ada"})).status_code == 200
    truthy = await asyncio.to_thread(app, conversation, authorize=lambda _: "yes", allowed_hosts=[HOST])
    assert "not authorized" in await page(truthy, "", 403)


async def test_other_hosts_get_nothing(conversation: threadkeep.Keep) -> None:
    site = await asyncio.to_thread(app, conversation, authorize=always)
    for host, status in (
        ("127.0.0.1:8000", 200), ("localhost", 200), ("[::1]:9", 200), ("LOCALHOST:1", 200), ("evil.example", 421),
        ("127.0.0.1.evil.example", 421), ("", 421),
    ):  # fmt: skip
        async with client(site, headers={"host": host}) as http:
            assert (await http.get("/")).status_code == status, host


async def test_hosts_are_a_list_of_names_with_or_without_a_port(conversation: threadkeep.Keep) -> None:
    with pytest.raises(TypeError, match="list of names"):
        await asyncio.to_thread(app, conversation, authorize=always, allowed_hosts=HOST)
    site = await asyncio.to_thread(app, conversation, authorize=always, allowed_hosts=[f"{HOST.upper()}:8000"])
    await page(site, "")


async def test_nothing_is_shown_if_authorize_fails(conversation: threadkeep.Keep) -> None:
    def fails(_request: Any) -> bool:
        raise HTTPException(401, "log in first")

    site = await asyncio.to_thread(app, conversation, authorize=fails, allowed_hosts=[HOST])
    outer = Starlette(routes=[Mount("/threads", app=site)])
    assert await page(outer, "threads/", 401) == "log in first", "the outer application answers"
    async with client(site) as http:
        alone = await http.get("/")
    assert alone.status_code == 500
    assert "support/ada" not in alone.text


@pytest.mark.parametrize("path", ["/", "/thread?thread=support/ada", "/nowhere", "/static/script.js"])
async def test_every_answer_has_the_headers_that_keep_a_page_to_itself(readable: Any, path: str) -> None:
    async with client(readable) as http:
        headers = (await http.get(path)).headers
    for name, value in MUST_HAVE.items():
        assert headers[name].startswith(value)
    assert "unsafe" not in headers["content-security-policy"]


async def test_no_page_has_inline_scripts_or_styles_or_addresses_elsewhere(readable: Any) -> None:
    for path, query in (("", {}), ("thread", ADA), ("checkpoint", ADA), ("sizes", {"measure": 1}), ("memories", {})):
        text = await page(readable, path, **query)
        assert not re.search(r"<script(?!(?: type=\"module\")? src=\"/static/)|<style|\sstyle=|\son\w+=", text)
        assert not re.search(r"(?:src|href|action)=\"(?!/|data:image/png)", text.replace('href="#main"', ""))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_read_only_means_get_and_head(readable: Any, method: str) -> None:
    async with client(readable) as http:
        for path in ("/", "/change"):
            answer = await http.request(method, path)
            assert answer.status_code == 405
            assert "read-only" in answer.text
        assert (await http.head("/")).status_code == 200
        assert (await http.get("/change", params={"action": "delete", **ADA})).status_code == 404


async def test_the_token_of_the_link_becomes_a_cookie_and_leaves_the_address(conversation: threadkeep.Keep) -> None:
    token = LinkToken(8123)
    shown = Inspected(conversation)
    site = await asyncio.to_thread(inspector, shown, authorize=token, allowed_hosts=[HOST])
    async with client(site) as http:
        assert (await http.get("/")).status_code == 401
        assert (await http.get("/", params={"token": "x"})).status_code == 401
        entered = await http.get("/thread", params={"token": token.token, **ADA})
        assert entered.status_code == 303
        assert "token" not in entered.headers["location"]
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert token.token not in cookie
        assert (await http.get(entered.headers["location"])).status_code == 200
        elsewhere = await http.get(f"http://{HOST}//evil.example/x", params={"token": token.token})
        assert elsewhere.headers["location"] == "/evil.example/x"
    async with client(site, cookies={"threadkeep-8123": token.token}) as http:
        assert (await http.get("/")).status_code == 401, "the token itself is not the cookie"


async def send(http: httpx.AsyncClient, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    """Open the form of a change, and send it with these fields."""
    asked = await http.get("/change", params={**ADA, **fields})
    assert asked.status_code == 200, asked.text
    token = re.search(r'name="csrf" value="(\w+)"', asked.text)[1]
    return await http.post("/change", data={"csrf": token, **ADA, **fields}, headers=headers)


async def test_a_form_needs_the_token_and_the_cookie_of_one_of_our_pages(
    writable: Any, conversation: threadkeep.Keep
) -> None:
    async with client(writable) as http:
        assert (await http.post("/change", data={**ADA, "action": "delete"})).status_code == 403
        evil = await send(http, action="delete", headers={"origin": "http://evil.example"})
        assert "another site" in evil.text
        hidden = await send(http, action="delete", headers={"origin": "null", "sec-fetch-site": "cross-site"})
        assert "another site" in hidden.text
        assert (await http.post("/", data={})).status_code == 405
        assert (await http.put("/")).text == "PUT is not allowed.\n"
        assert (await http.post("/change", content=b"x" * 2_000_000)).status_code == 413
    async with client(writable) as first, client(writable) as other:
        form = (await first.get("/change", params={**ADA, "action": "delete"})).text
        token = re.search(r'name="csrf" value="(\w+)"', form)[1]
        await other.get("/change", params={**ADA, "action": "delete"})
        stolen = await other.post("/change", data={"csrf": token, **ADA, "action": "delete"})
        assert stolen.status_code == 403
    assert await conversation.athread("support/ada") is not None


async def test_every_change_is_asked_about_and_then_made(writable: Any, conversation: threadkeep.Keep) -> None:
    async with client(writable) as http:
        await send(http, action="describe", title="A lamp", labels="a, b", archived="1")
        described = await conversation.athread("support/ada")
        assert (described.title, described.labels, described.archived) == ("A lamp", ("a", "b"), True)
        form = (await http.get("/change", params={**ADA, "action": "describe"})).text
        assert 'value="A lamp"' in form
        assert (await send(http, action="tag", id="latest~1", tag="gold")).status_code == 303
        assert (await conversation.alog("support/ada"))[1].metadata["tag"] == "gold"
        assert (await send(http, action="copy", to="copy")).headers["location"].startswith("/thread?thread=copy")
        assert await conversation.athread("copy") is not None
        assert (await send(http, action="fork", id="latest~2", to="forked")).status_code == 303
        assert await conversation.athread("forked") is not None
        await send(http, action="rollback", id="latest~2")
        branches = await conversation.abranches("support/ada")
        await send(http, action="name_branch", id=branches[1].head, name="first try")
        assert "first try" in (await http.get("/branches", params=ADA)).text
        asked = await http.get("/change", params={**ADA, "action": "delete_branch", "id": branches[1].head})
        assert "1 checkpoint would be removed" in asked.text, "the other one of its own is tagged"
        await send(http, action="delete_branch", id=branches[1].head)
        assert branches[1].head not in [each.id for each in await conversation.alog("support/ada")]
        await send(http, action="rollback", id="latest~2")
        assert (await conversation.alog("support/ada"))[0].forked_from is not None
        asked = await http.get("/change", params={**ADA, "action": "prune"})
        assert "would be removed" in asked.text
        before = (await conversation.athread("support/ada")).checkpoints
        await send(http, action="prune")
        assert (await conversation.athread("support/ada")).checkpoints < before
        gone = await send(http, action="delete")
        assert (gone.status_code, gone.headers["location"]) == (303, "/?done=delete")
        assert "the thread is deleted" in (await http.get(gone.headers["location"])).text
        assert "surprise" not in (await http.get("/?done=surprise")).text
    with pytest.raises(Missing):
        await conversation.atree("support/ada")


async def test_a_graph_answers_an_interrupt_and_updates_the_state(conversation: threadkeep.Keep) -> None:
    graph = demo_storage.support().compile(checkpointer=conversation.checkpointer)
    shown = Inspected(conversation, write=True, graph=graph)
    site = await asyncio.to_thread(inspector, shown, authorize=always, allowed_hosts=[HOST])
    async with client(site) as http:
        assert "Answer" in (await http.get("/waiting")).text
        assert "Answer…" in (await http.get("/checkpoint", params=ADA)).text
        assert "Answer…" not in (await http.get("/checkpoint", params={**ADA, "id": "latest~1"})).text
        asked = await http.get("/change", params={**ADA, "action": "answer"})
        assert "Refund $129.00 for order A-1041?" in asked.text, "the question is there when one answers it"
        answered = await send(http, action="answer", value="yes")
        assert answered.status_code == 303, answered.text
        assert (await conversation.ashow("support/ada")).values["refund"]["approved"] == "yes"
        assert "Nothing waits" in (await http.get("/change", params={**ADA, "action": "answer"})).text
        await send(http, action="update", value='{"customer": {"name": "Eve"}}', node="agent")
        assert (await conversation.ashow("support/ada")).values["customer"] == {"name": "Eve"}


async def test_what_is_hidden_in_a_form_stays_as_it_is_when_the_form_comes_back(conversation: threadkeep.Keep) -> None:
    await conversation.adescribe("support/ada", title="Key sk-1", labels=["sk-2", "open", "sk-3"])
    shown = Inspected(conversation, write=True, redaction=HiddenPattern(r"sk-\d"))
    site = await asyncio.to_thread(inspector, shown, authorize=always, allowed_hosts=[HOST])
    async with client(site) as http:
        form = (await http.get("/change", params={**ADA, "action": "describe"})).text
        title, labels = (re.search(rf'name="{name}" value="([^"]*)"', form)[1] for name in ("title", "labels"))
        assert (title, labels) == (f"Key {HIDDEN}", f"open, {HIDDEN}, {HIDDEN}")
        assert (await send(http, action="describe", title=title, labels=labels, archived="1")).status_code == 303
        described = await conversation.athread("support/ada")
        assert (described.title, described.labels, described.archived) == ("Key sk-1", ("open", "sk-2", "sk-3"), True)


async def test_without_the_graph_its_changes_say_what_they_need(writable: Any) -> None:
    assert "--graph" in await page(writable, "change", 400, action="answer", **ADA)
    assert "must be one of" in await page(writable, "change", 400, action="explode", **ADA)


async def test_it_can_be_mounted_below_a_path(readable: Any) -> None:
    outer = Starlette(routes=[Mount("/admin/threads", app=readable)])
    text = await page(outer, "admin/threads/")
    assert 'href="/admin/threads/static/style.css' in text
    (row,) = re.findall(r'class="id" href="([^"]*)"', text)
    assert row.startswith("/admin/threads/thread?")
    assert "support/ada" in await page(outer, "admin/threads/thread", **ADA)


async def test_only_the_tenant_of_the_keep_is_shown() -> None:
    def write() -> tuple[threadkeep.Keep, Any]:
        keep = threadkeep.open("memory://")
        for tenant in (keep.tenant("one"), keep.tenant("two")):
            graph = demo_storage.research().compile(checkpointer=tenant.checkpointer)
            graph.invoke({"topic": "x"}, demo_storage.config(f"of {tenant._session.tenant}", "u"))
        return keep, app(keep.tenant("one"), authorize=always, allowed_hosts=[HOST])

    keep, site = await asyncio.to_thread(write)
    everything = await page(site, "")
    assert "of one" in everything
    assert "of two" not in everything
    await page(site, "thread", 404, thread="of two")
    assert "all tenants" not in await page(site, "health", verify=1)
    assert "storage as a whole" not in await page(site, "sizes")
    await keep.aclose()


def test_the_password_of_a_url_is_not_shown(conversation: threadkeep.Keep) -> None:
    for url in (
        "postgresql://ann:secret@host:5432/db?x=1",
        "postgresql://host/db?user=ann&password=secret",
        "valkey://ann:secret@host",
        "postgresql://ann@host/db?sslpassword=secret",
        "valkeys://ann@host:1?ssl_Password=secret",
    ):
        name = Inspected(conversation, url=url).name
        assert "secret" not in name
        assert "ann" in name


async def test_behind_https_the_cookie_of_forms_is_secure(writable: Any) -> None:
    async with client(writable) as http:
        for scheme, is_secure in (("http", False), ("https", True)):
            answer = await http.get(f"{scheme}://{HOST}/change", params={**ADA, "action": "delete"})
            assert ("Secure" in answer.headers["set-cookie"]) is is_secure


HOSTILE = "\"'><script>alert(1)</script><x onmouseover=alert(1)>{{7*7}}\r\n</title></textarea>&amp;"


class _Markup(HTMLParser):
    """Collects what of a page could run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in ("x", "iframe", "object", "base") or (tag == "script" and "/static/" not in (given.get("src") or "")):
            self.found.append((tag, given))
        self.found += [(tag, name) for name in given if name.startswith("on") or name in ("style", "srcdoc")]
        self.found += [
            (tag, url) for url in (given.get("href"), given.get("src")) if url and url.startswith("javascript")
        ]


async def test_hostile_names_stay_texts_on_every_page() -> None:
    def write() -> threadkeep.Keep:
        keep = threadkeep.open("memory://")
        for ns in ("", HOSTILE):
            chain = Chain(keep.checkpointer, HOSTILE, ns=ns)
            for n in range(2):
                chain.put({HOSTILE: {HOSTILE: [n, HOSTILE]}}, **{HOSTILE: HOSTILE, "user": HOSTILE})
            path = f"~__pregel_pull, {HOSTILE}"
            at = config(HOSTILE, chain.last, ns)
            keep.checkpointer.put_writes(at, [(HOSTILE, HOSTILE), ("__interrupt__", HOSTILE)], HOSTILE, path)
        line = HOSTILE.replace("\r\n", "")
        keep.describe(HOSTILE, title=line, labels=[line])
        keep.tag(HOSTILE, "latest", HOSTILE)
        keep.store.put((HOSTILE.replace(".", ""),), HOSTILE, {HOSTILE: HOSTILE})
        return keep

    keep = await asyncio.to_thread(write)
    site = await asyncio.to_thread(app, keep, authorize=always, allowed_hosts=[HOST], write=True)
    thread = {"thread": HOSTILE, "kind": "graph"}
    for path, query in (
        ("", {}), ("", {"q": HOSTILE}), ("", {"metadata": json.dumps({HOSTILE: HOSTILE})}), ("waiting", {}), ("memories", {}),
        ("memories", {"q": HOSTILE}), ("search", {"q": HOSTILE}), ("sizes", {"measure": 1}), ("health", {"verify": 1}),
        *(("thread", {**thread, "view": view}) for view in ("compact", "timeline", "full")),
        *((name, thread) for name in ("checkpoint", "play", "flow", "branches", "usage", "sizes")),
        ("checkpoint", {**thread, "ns": HOSTILE}), ("play", {**thread, "ns": HOSTILE, "at": 1}), ("usage", {"by": "metadata", "key": HOSTILE}),
        ("diff", {**thread, "a": "latest~1"}), ("blame", {**thread, "path": format_path([HOSTILE])}), ("value", {**thread, "path": format_path([HOSTILE])}),
        *(("change", {**thread, "action": action}) for action in ("describe", "tag", "rollback", "delete", "prune")),
    ):  # fmt: skip
        text = await page(site, path, **query)
        markup = _Markup()
        markup.feed(text)
        assert markup.found == [], (path, query)
        assert "{{7*7}}" in text or "alert" not in text, "it was not evaluated either"
    for path, query in (
        ("thread", {"thread": HOSTILE + "x"}),
        ("thread", {**thread, "view": HOSTILE}),
        ("", {"metadata": HOSTILE}),
    ):
        async with client(site) as http:
            text = (await http.get(f"/{path}", params=query)).text
        markup = _Markup()
        markup.feed(text)
        assert markup.found == []
    await keep.aclose()


@pytest.mark.parametrize("keys", [None, NEXT], ids=["no keys", "other keys"])
def test_no_page_of_an_encrypted_storage_shows_anything_without_its_keys(tmp_path: Path, keys: Any) -> None:
    url = f"sqlite:///{tmp_path}/keep.db"
    with threadkeep.open(url, keys=KEYS, hide_ids=True) as keep:
        Chain(keep.checkpointer, "secret thread").put({"name": "Kim"})
    chosen = {"thread": "secret thread", "kind": "graph", "checkpoint": "00000000", "q": "Kim", "path": "name"}
    chosen |= dict.fromkeys("ab", "00000000")

    with threadkeep.open(url, keys=keys) as keep:
        site = app(keep, authorize=always, allowed_hosts=[HOST])
        for path in PAGES.keys() - {"health"}:
            assert "encrypted" in asyncio.run(page(site, path, 409, **chosen)), path
        assert "Kim" not in asyncio.run(page(site, "health", 200, **chosen))
    with threadkeep.open(url, keys=KEYS) as keep:
        site = app(keep, authorize=always, allowed_hosts=[HOST])
        assert "secret thread" in asyncio.run(page(site, ""))
        assert "Kim" in asyncio.run(page(site, "checkpoint", 200, **chosen))
