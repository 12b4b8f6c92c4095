"""What of a memory a query can find: the texts that are embedded, and the words.

The index is LangGraph's IndexConfig, with `search` added, which says what a query compares:

    vector    embeddings, the default where there is an `embed`
    text      words, the default where there is none
    hybrid    both, by reciprocal rank fusion
    off       nothing: a query is NotImplementedError, and storing costs the least
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.embeddings import Embeddings
from langgraph.store.base import ensure_embeddings, get_text_at_path, tokenize_path

from threadkeep.engine.vectors import COSINE, MEASURES, packed
from threadkeep.engine.words import leaves, words
from threadkeep.keep import run_apart

_KEYS = {"dims", "embed", "fields", "search", "distance_type", "ann_index_config"}
_SEARCHES = ("vector", "text", "hybrid", "off")
_WHOLE = "$"


class Text(NamedTuple):
    """What is found of a value: texts to embed, and words."""

    embedded: tuple[str, ...] = ()
    words: str = ""


class Embedded(NamedTuple):
    """Texts and queries as packed vectors."""

    texts: Mapping[str, bytes]
    queries: Mapping[str, bytes]


_NOTHING = Embedded({}, {})


class Index:
    """How values are found by queries."""

    def __init__(self, config: Any) -> None:
        given = _checked(config)
        self.search = given.get("search") or ("vector" if given.get("embed") is not None else "text")
        has_vectors = self.search in ("vector", "hybrid")
        self.dims: int | None = given.get("dims") if has_vectors else None
        self.measure = given.get("distance_type") or COSINE
        self.embeddings = ensure_embeddings(given["embed"]) if has_vectors else None
        self.has_words = self.search in ("text", "hybrid")
        self._fields = tuple(given.get("fields") or (_WHOLE,))

    def can_be_asked(self) -> None:
        """A query where there is nothing to compare it with is an error."""
        if self.search == "off":
            raise NotImplementedError(
                "this store has neither vectors nor words (index={'search': 'off'}): give an embed, or text"
            )

    def text(self, value: Mapping[str, Any], fields: Sequence[str] | None) -> Text:
        """What is found of a value by these fields, or by those of the index."""
        paths = self._fields if fields is None else tuple(fields)
        told = tuple(each for path in paths for each in _texts(value, path)) if self.embeddings is not None else ()
        return Text(tuple(dict.fromkeys(told)), self._words(value, paths) if self.has_words else "")

    def _words(self, value: Mapping[str, Any], paths: Sequence[str]) -> str:
        texts = (text for path in paths for text in (leaves(value) if path == _WHOLE else _leaves_at(value, path)))
        return " ".join(word for text in texts for word in words(text))

    def embed(self, texts: Iterable[Text], queries: Iterable[str]) -> Embedded:
        """All these as vectors, asking the model once."""
        wanted, asked = _distinct(texts), list(dict.fromkeys(queries))
        if self.embeddings is None or not (wanted or asked):
            return _NOTHING
        if getattr(self.embeddings, "afunc", None) is not None and getattr(self.embeddings, "func", None) is None:
            return run_apart(lambda: self.aembed(texts, asked))
        vectors = self.embeddings.embed_documents(wanted) if wanted else []
        return self._packed(wanted, vectors, asked, [_one(self.embeddings.embed_query, query) for query in asked])

    async def aembed(self, texts: Iterable[Text], queries: Iterable[str]) -> Embedded:
        """The same for async callers."""
        wanted, asked = _distinct(texts), list(dict.fromkeys(queries))
        if self.embeddings is None or not (wanted or asked):
            return _NOTHING
        vectors = await self.embeddings.aembed_documents(wanted) if wanted else []
        return self._packed(
            wanted, vectors, asked, [await _aone(self.embeddings.aembed_query, query) for query in asked]
        )

    def _packed(self, texts: list[str], vectors: Any, asked: list[str], queries: Any) -> Embedded:
        if not hasattr(vectors, "__len__") or len(vectors) != len(texts):
            what = f"{len(vectors)} vectors" if hasattr(vectors, "__len__") else repr(vectors)
            raise ValueError(f"the embedding function gave {what} for {len(texts)} texts")
        dims = self.dims
        assert dims is not None
        return Embedded(
            {text: packed(vector, dims) for text, vector in zip(texts, vectors, strict=True)},
            {query: packed(vector, dims) for query, vector in zip(asked, queries, strict=True)},
        )


def _one(embed: Callable[[str], Any], query: str) -> Any:
    try:
        return embed(query)
    except (IndexError, TypeError) as error:
        raise ValueError("the embedding function gave no vector for a query") from error


async def _aone(embed: Callable[[str], Awaitable[Any]], query: str) -> Any:
    try:
        return await embed(query)
    except (IndexError, TypeError) as error:
        raise ValueError("the embedding function gave no vector for a query") from error


def _distinct(texts: Iterable[Text]) -> list[str]:
    return list(dict.fromkeys(each for text in texts for each in text.embedded))


def _texts(value: Mapping[str, Any], path: str) -> list[str]:
    return get_text_at_path(value, path if path == _WHOLE else tokenize_path(path))


def _leaves_at(value: Mapping[str, Any], path: str) -> Iterable[str]:
    """The words of what is at a path; of lists and dicts, those of their leaves."""
    for text in _texts(value, path):
        if text[:1] in "[{":
            try:
                yield from leaves(json.loads(text))
                continue
            except ValueError:
                pass
        yield text


def _checked(config: Any) -> Mapping[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise TypeError(f"index must be a dict, not {type(config).__name__}")
    if not config.keys() <= _KEYS:
        raise ValueError(f"index takes {', '.join(sorted(_KEYS))}, not {', '.join(sorted(config.keys() - _KEYS))}")
    search, embed, dims = config.get("search"), config.get("embed"), config.get("dims")
    if search is not None and search not in _SEARCHES:
        raise ValueError(f"index['search'] must be one of {', '.join(_SEARCHES)}, not {search!r}")
    if (embed is not None and search is None) or search in ("vector", "hybrid"):
        _check_vectors(embed, dims)
    if embed is None and dims is not None:
        raise ValueError("index['dims'] needs an index['embed'] beside it")
    if config.get("distance_type", COSINE) not in MEASURES:
        raise ValueError(f"index['distance_type'] must be one of {', '.join(MEASURES)}")
    fields = config.get("fields")
    is_list = isinstance(fields, (list, tuple)) and all(isinstance(each, str) for each in fields)
    if fields is not None and not is_list:
        raise TypeError(f"index['fields'] must be a list of paths, not {fields!r}")
    return config


def _check_vectors(embed: Any, dims: Any) -> None:
    if embed is None:
        raise ValueError("index['embed'] is needed for vectors: a function, an Embeddings object or 'provider:model'")
    if not (isinstance(embed, (str, Embeddings)) or callable(embed)):
        raise TypeError(f"index['embed'] must be a function, an Embeddings object or 'provider:model', not {embed!r}")
    if isinstance(dims, bool) or not isinstance(dims, int) or dims < 1:
        raise ValueError(f"index['dims'] must be the number of dimensions that embed gives, not {dims!r}")
