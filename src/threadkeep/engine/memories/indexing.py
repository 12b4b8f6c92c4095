"""What of a memory a query can find: the texts that are embedded, and the words.

The index is LangGraph's IndexConfig, with `search` added, which says what a query compares:

    vector    embeddings, the default where there is an `embed`
    text      words, the default where there is none
    hybrid    both, by reciprocal rank fusion
    off       nothing: a query is NotImplementedError, and storing costs the least
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from langchain_core.embeddings import Embeddings
from langgraph.store.base import ensure_embeddings, get_text_at_path, tokenize_path
from langgraph.store.base.embed import EmbeddingsLambda

from threadkeep.engine.memories.vectors import COSINE, METRICS, packed
from threadkeep.engine.memories.words import index_words, leaf_texts

_KEYS = {"dims", "embed", "fields", "search", "distance_type", "ann_index_config"}
_SEARCHES = ("vector", "text", "hybrid", "off")
_BY_VECTOR = ("vector", "hybrid")
_WHOLE_VALUE = "$"


class EmbeddedTexts(NamedTuple):
    """Texts and queries as packed vectors."""

    texts: Mapping[str, bytes]
    queries: Mapping[str, bytes]


_NO_VECTORS = EmbeddedTexts({}, {})


RunCoroutine: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, EmbeddedTexts]]], EmbeddedTexts]
"""Runs a coroutine to its end for a blocking caller: an embedding function may be async only."""


def stores_vectors(config: Any) -> bool:
    """Whether a store with this index stores vectors. What is wrong with the index is an error."""
    return _search_mode(_check_config(config)) in _BY_VECTOR


def _search_mode(checked: Mapping[str, Any]) -> str:
    return checked.get("search") or ("vector" if checked.get("embed") is not None else "text")


class QueryIndex:
    """How values are found by queries. `has_words` says whether the storage has full text."""

    def __init__(self, config: Any, *, run: RunCoroutine, has_words: bool = True) -> None:
        given = _check_config(config)
        self._run = run
        self.search = _search_mode(given)
        if self.search in ("text", "hybrid") and not has_words:
            if given.get("search"):
                raise NotImplementedError(
                    f"search={self.search!r}: there is no full text on this storage, only vectors"
                )
            self.search = "off"
        has_vectors = self.search in _BY_VECTOR
        self.dims: int | None = given.get("dims") if has_vectors else None
        self.metric = given.get("distance_type") or COSINE
        self.embeddings = ensure_embeddings(given["embed"]) if has_vectors else None
        self.has_words = self.search in ("text", "hybrid")
        self._fields = tuple(given.get("fields") or (_WHOLE_VALUE,))

    def can_be_asked(self) -> None:
        """A query where there is nothing to compare it with is an error."""
        if self.search == "off":
            raise NotImplementedError(
                "this store has neither vectors nor words to compare a query with: give it an embed, or, where the"
                " storage has full text, index={'search': 'text'}"
            )

    def texts(self, value: Mapping[str, Any], fields: Sequence[str] | None) -> tuple[str, ...]:
        """What of a value is embedded, by these fields or by those of the index."""
        if self.embeddings is None:
            return ()
        return tuple(dict.fromkeys(text for path in self._paths(fields) for text in _texts_at(value, path)))

    def words(self, value: Mapping[str, Any], fields: Sequence[str] | None) -> str:
        """The words of a value, likewise."""
        if not self.has_words:
            return ""
        found = (
            leaf_texts(value) if path == _WHOLE_VALUE else _leaf_texts_at(value, path) for path in self._paths(fields)
        )
        return index_words(chain.from_iterable(found))

    def _paths(self, fields: Sequence[str] | None) -> tuple[str, ...]:
        return self._fields if fields is None else tuple(fields)

    def embed(self, texts: Iterable[str], queries: Iterable[str]) -> EmbeddedTexts:
        """All these as vectors, asking the model once for each kind."""
        wanted, asked = list(dict.fromkeys(texts)), list(dict.fromkeys(queries))
        model = self.embeddings
        if model is None or not (wanted or asked):
            return _NO_VECTORS
        if isinstance(model, EmbeddingsLambda):
            if getattr(model, "func", None) is None:
                return self._run(lambda: self.aembed(wanted, asked))
            found = model.embed_documents(asked) if asked else []
        else:
            found = [model.embed_query(query) for query in asked]
        return self._embedded(wanted, model.embed_documents(wanted) if wanted else [], asked, found)

    async def aembed(self, texts: Iterable[str], queries: Iterable[str]) -> EmbeddedTexts:
        """The same for async callers."""
        wanted, asked = list(dict.fromkeys(texts)), list(dict.fromkeys(queries))
        model = self.embeddings
        if model is None or not (wanted or asked):
            return _NO_VECTORS
        if isinstance(model, EmbeddingsLambda):
            found = await model.aembed_documents(asked) if asked else []
        else:
            found = [await model.aembed_query(query) for query in asked]
        return self._embedded(wanted, await model.aembed_documents(wanted) if wanted else [], asked, found)

    def _embedded(self, texts: list[str], vectors: Any, asked: list[str], queries: Any) -> EmbeddedTexts:
        assert self.dims is not None
        return EmbeddedTexts(_pack_vectors(texts, vectors, self.dims), _pack_vectors(asked, queries, self.dims))


def _pack_vectors(texts: Sequence[str], vectors: Any, dims: int) -> dict[str, bytes]:
    """Texts and their vectors; ValueError if a function did not give one for each."""
    if not hasattr(vectors, "__len__") or len(vectors) != len(texts):
        what = f"{len(vectors)} vectors" if hasattr(vectors, "__len__") else repr(vectors)
        raise ValueError(f"the embedding function gave {what} for {len(texts)} texts")
    return {text: packed(vector, dims) for text, vector in zip(texts, vectors, strict=True)}


def _texts_at(value: Mapping[str, Any], path: str) -> list[str]:
    return get_text_at_path(value, path if path == _WHOLE_VALUE else tokenize_path(path))


def _leaf_texts_at(value: Mapping[str, Any], path: str) -> Iterable[str]:
    """The words of what is at a path; of lists and dicts, those of their leaves."""
    for text in _texts_at(value, path):
        if text[:1] in "[{":
            try:
                yield from leaf_texts(json.loads(text))
                continue
            except ValueError:
                pass
        yield text


def _check_config(config: Any) -> Mapping[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise TypeError(f"index must be a dict, not {type(config).__name__}")
    if not config.keys() <= _KEYS:
        raise ValueError(f"index takes {', '.join(sorted(_KEYS))}, not {', '.join(sorted(config.keys() - _KEYS))}")
    search, embed, dims = config.get("search"), config.get("embed"), config.get("dims")
    if search is not None and search not in _SEARCHES:
        raise ValueError(f"index['search'] must be one of {', '.join(_SEARCHES)}, not {search!r}")
    if (embed is not None and search is None) or search in _BY_VECTOR:
        _check_vectors(embed, dims)
    if embed is None and dims is not None:
        raise ValueError("index['dims'] needs an index['embed'] beside it")
    if config.get("distance_type", COSINE) not in METRICS:
        raise ValueError(f"index['distance_type'] must be one of {', '.join(METRICS)}")
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
