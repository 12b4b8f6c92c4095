"""Indexing a value: it is checked and copied first, and its words are the same in every database."""

from __future__ import annotations

import asyncio
import hashlib
import random
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from langgraph.store.base import PutOp

import postgres_servers
import threadkeep
from memory_batches import HOME, INDEX, NEAR, WORDS, keys
from threadkeep.conformance.store.embedder import embed
from threadkeep.engine.memories.words import words

ALL_WORDS: Any = {"search": "text"}
LETTERS = [chr(code) for code in range(0x80, 0x30000) if chr(code).isalnum()]


# --- values are checked before their texts


def itself() -> dict[str, Any]:
    value: dict[str, Any] = {"text": "apple"}
    value["more"] = {"again": value}
    return value


def nested(deep: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(deep):
        value = {"more": value}
    return value


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "itself": (itself(), ValueError, "contains itself"),
    "too deep": (nested(5000), ValueError, "nested deeper"),
    "an object": ({"text": "apple", "more": {"x": object()}}, TypeError, r"\['more'\]\['x'\]"),
    "bytes": ({"text": b"apple"}, TypeError, r"\['text'\]"),
    "nan": ({"text": "apple", "more": float("nan")}, ValueError, r"\['more'\]"),
    "a key that is no str": ({"text": "apple", "more": {1: 2}}, TypeError, r"\['more'\]"),
}


@pytest.mark.parametrize(
    "index",
    [None, WORDS, NEAR, {**NEAR, "fields": ["$"]}, INDEX],
    ids=["default", "words", "vectors", "whole", "hybrid"],
)
@pytest.mark.parametrize("wrong", REFUSED)
def test_a_value_that_is_refused_is_not_embedded_and_says_where(wrong: str, index: Any) -> None:
    embedded_texts: list[Any] = []

    def asking(texts: Sequence[str]) -> list[list[float]]:
        embedded_texts.extend(texts)
        return embed(texts)

    value, error, said = REFUSED[wrong]
    index = index and ({**index, "embed": asking} if "embed" in index else index)
    with threadkeep.open("memory://", index=index) as keep:
        with pytest.raises(error, match=said):
            keep.store.batch([PutOp(HOME, "good", {"text": "rain"}), PutOp(HOME, "bad", value)])
        assert embedded_texts == []
        assert keep.store.search(HOME) == []


async def test_changing_a_value_while_it_is_embedded_changes_nothing(url: str) -> None:
    embedding, go_on = asyncio.Event(), asyncio.Event()

    async def slow(texts: Sequence[str]) -> list[list[float]]:
        if "apple" in texts:
            embedding.set()
            await go_on.wait()
        return embed(texts)

    async with threadkeep.open(url, index={**NEAR, "embed": slow}) as keep:
        value = {"text": "apple", "list": [1]}
        put = asyncio.ensure_future(keep.store.aput(HOME, "k", value))
        await embedding.wait()
        value["text"], value["list"] = "rain", [2]
        go_on.set()
        await put
        found = await keep.store.asearch(HOME, query="plum")
        assert [item.value for item in found] == [{"text": "apple", "list": [1]}]


# --- limits of words


def test_a_value_of_very_many_different_words_is_stored_and_found(url: str) -> None:
    many = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(20_000)]
    with threadkeep.open(url, index=ALL_WORDS) as keep:
        keep.store.put(HOME, "k", {"text": " ".join(many)})
        keep.store.put(HOME, "l", {"text": "x" * 5000})
        assert keys(keep.store.search(HOME, query=many[0])) == ["k"]
        assert keys(keep.store.search(HOME, query=many[1000])) == ["k"]
        assert keys(keep.store.search(HOME, query="x" * 5000)) == ["l"]
        found = keep.store.get(HOME, "k")
        assert found is not None
        assert found.value["text"] == " ".join(many)


def test_many_texts_that_together_have_very_many_words_are_stored_and_found(url: str) -> None:
    """No single text exceeds a database's limit; all of them together do."""
    value = {
        f"leaf {n}": " ".join(hashlib.sha256(f"{n}.{m}".encode()).hexdigest() for m in range(800)) for n in range(40)
    }
    with threadkeep.open(url, index=ALL_WORDS) as keep:
        keep.store.put(HOME, "one", value)
        assert keep.store.get(HOME, "one").value == value
        assert keys(keep.store.search(HOME, query=hashlib.sha256(b"0.7").hexdigest())) == ["one"]


def test_a_query_of_very_many_words_is_answered(url: str) -> None:
    with threadkeep.open(url, index=ALL_WORDS) as keep:
        keep.store.put(HOME, "k", {"text": "apple"})
        for count in (1000, 30_000):
            text = " ".join(["apple", *(f"w{n}" for n in range(count))])
            assert keys(keep.store.search(HOME, query=text)) == ["k"]


@pytest.mark.parametrize("text", ["𝐀pple", "🄰pple", "ＡＰＰＬＥ", "Äpple", "Ａｐｐｌｅ"])
def test_a_letter_is_found_however_it_is_spelled(url: str, text: str) -> None:
    with threadkeep.open(url, index=ALL_WORDS) as keep:
        keep.store.put(HOME, "k", {"text": text})
        for query in ("apple", "APPLE", text):
            assert keys(keep.store.search(HOME, query=query)) == ["k"]


DATABASES = {
    "locale C": "LOCALE 'C'",
    "locale C.UTF-8": "LOCALE 'C.UTF-8'",
    "builtin": "LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'",
}


@pytest.fixture(params=["memory", "sqlite", *DATABASES])
def anywhere(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[str]:
    """Every backend, and PostgreSQL with other locales' idea of a letter."""
    if request.param not in DATABASES:
        yield "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'keep.db'}"
        return
    server, name = postgres_servers.shared(), f"d_{uuid.uuid4().hex}"
    server.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' {DATABASES[request.param]}")
    yield server.url(name)
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_words_of_any_letters_are_found_by_the_same_words_everywhere(anywhere: str) -> None:
    chance = random.Random(5)
    letters = chance.sample(LETTERS, 300)
    texts = [f"x{letter}y {letter}{letter}" for letter in letters]
    having: dict[str, set[str]] = {}
    for n, text in enumerate(texts):
        for word in words(text):
            having.setdefault(word, set()).add(str(n))
    with threadkeep.open(anywhere, index=ALL_WORDS) as keep:
        keep.store.batch([PutOp(HOME, str(n), {"text": text}) for n, text in enumerate(texts)])
        for text in chance.sample(texts, 100):
            expected = set().union(*(having[word] for word in words(text)))
            assert set(keys(keep.store.search(HOME, query=text, limit=1000))) == expected, ascii(text)
