"""What a query can find of a memory: the texts that are embedded, and the words that are indexed.

The index is configured by LangGraph's IndexConfig plus `search`, which says what a query is compared with:

    vector    embeddings; the default with `embed`
    text      words; the default without `embed`
    hybrid    both, by reciprocal rank fusion
    off       nothing: a query is ignored, and storing costs least

Without any config, words rank but do not filter: memories without them follow those that have some.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from langchain_core.embeddings import Embeddings
from langgraph.store.base import IndexConfig, ensure_embeddings, get_text_at_path, tokenize_path
from langgraph.store.base.embed import EmbeddingsLambda

from threadkeep.engine.memories.vectors import COSINE, METRICS, check_numpy, pack_vector
from threadkeep.engine.memories.words import count_words, index_words, leaf_texts, texts_in_json

_KEYS = {"dims", "embed", "fields", "search", "distance_type", "ann_index_config"}
Search: TypeAlias = Literal["vector", "text", "hybrid", "off"]
Distance: TypeAlias = Literal["cosine", "inner_product", "l2"]
_SEARCHES: tuple[Search, ...] = get_args(Search)
_BY_VECTOR = ("vector", "hybrid")
_WHOLE_VALUE = "$"
_WHOLE = (_WHOLE_VALUE,)
_STARTS_OF_JSON = ("[", "{")


class IndexOptions(IndexConfig, total=False):
    """The option `index` of `threadkeep.open`: LangGraph's IndexConfig, and what a query is compared with."""

    search: Search
    distance_type: Distance
    ann_index_config: Any


class EmbeddedTexts(NamedTuple):
    """The packed vectors of texts and of queries."""

    texts: Mapping[str, bytes]
    queries: Mapping[str, bytes]


NO_VECTORS = EmbeddedTexts({}, {})


RunCoroutine: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, EmbeddedTexts]]], EmbeddedTexts]
"""Runs a coroutine for a blocking caller, because an embedding function may be async only."""


def stores_vectors(config: Any) -> bool:
    """Whether a store with this index config stores vectors. TypeError or ValueError if the config is invalid."""
    return _search_mode(_check_config(config)) in _BY_VECTOR


def _search_mode(checked: Mapping[str, Any]) -> str:
    return checked.get("search") or ("vector" if checked.get("embed") is not None else "text")


class QueryIndex:
    """The index of a store: what is embedded and indexed.

    `only_ranks` says whether a query finds every memory, those with its words first.
    """

    def __init__(self, config: Any, *, run: RunCoroutine) -> None:
        checked = _check_config(config)
        self._run = run
        self.search = _search_mode(checked)
        self.only_ranks = not checked
        has_vectors = self.search in _BY_VECTOR
        self.dims: int | None = checked.get("dims") if has_vectors else None
        self.metric = checked.get("distance_type") or COSINE
        if has_vectors:
            check_numpy()
        self.embeddings = ensure_embeddings(checked["embed"]) if has_vectors else None
        self.has_words = self.search in ("text", "hybrid")
        self._fields = tuple(checked.get("fields") or (_WHOLE_VALUE,))

    def texts(self, value: Mapping[str, Any], fields: Sequence[str] | None) -> tuple[str, ...]:
        """Return the texts of a value to embed: those in `fields`, or in the fields of the index."""
        if self.embeddings is None:
            return ()
        return tuple(dict.fromkeys(text for path in self._paths(fields) for text in _texts_at(value, path)))

    def words(self, value: Mapping[str, Any], fields: Sequence[str] | None) -> str:
        """Return the words of a value to index: those in `fields`, or in the fields of the index.

        A text that several fields contain counts once.
        """
        if not self.has_words:
            return ""
        paths = self._paths(fields)
        if paths == _WHOLE:
            return index_words(leaf_texts(value))
        if len(paths) == 1 and paths[0] != _WHOLE_VALUE:
            return index_words(_leaf_texts_at(value, paths[0]))
        texts = (leaf_texts(value) if path == _WHOLE_VALUE else _leaf_texts_at(value, path) for path in paths)
        return index_words(chain.from_iterable(texts), count_words(value) if len(paths) > 1 else None)

    def _paths(self, fields: Sequence[str] | None) -> tuple[str, ...]:
        return self._fields if fields is None else tuple(fields)

    def embed(self, texts: Iterable[str], queries: Iterable[str]) -> EmbeddedTexts:
        """Embed texts and queries, each distinct one once.

        All texts take one call of the model. Each query takes one, or all together if `embed` is a plain function.
        """
        unique_texts, unique_queries = list(dict.fromkeys(texts)), list(dict.fromkeys(queries))
        model = self.embeddings
        if model is None or not (unique_texts or unique_queries):
            return NO_VECTORS
        if isinstance(model, EmbeddingsLambda):
            if getattr(model, "func", None) is None:
                return self._run(lambda: self.aembed(unique_texts, unique_queries))
            query_vectors = model.embed_documents(unique_queries) if unique_queries else []
        else:
            query_vectors = [model.embed_query(query) for query in unique_queries]
        text_vectors = model.embed_documents(unique_texts) if unique_texts else []
        return self._pack(unique_texts, text_vectors, unique_queries, query_vectors)

    async def aembed(self, texts: Iterable[str], queries: Iterable[str]) -> EmbeddedTexts:
        """Async version of `embed`."""
        unique_texts, unique_queries = list(dict.fromkeys(texts)), list(dict.fromkeys(queries))
        model = self.embeddings
        if model is None or not (unique_texts or unique_queries):
            return NO_VECTORS
        if isinstance(model, EmbeddingsLambda):
            query_vectors = await model.aembed_documents(unique_queries) if unique_queries else []
        else:
            query_vectors = [await model.aembed_query(query) for query in unique_queries]
        text_vectors = await model.aembed_documents(unique_texts) if unique_texts else []
        return self._pack(unique_texts, text_vectors, unique_queries, query_vectors)

    def _pack(self, texts: list[str], text_vectors: Any, queries: list[str], query_vectors: Any) -> EmbeddedTexts:
        assert self.dims is not None
        return EmbeddedTexts(
            _pack_vectors(texts, text_vectors, self.dims), _pack_vectors(queries, query_vectors, self.dims)
        )


def _pack_vectors(texts: Sequence[str], vectors: Any, dims: int) -> dict[str, bytes]:
    """Return the packed vector of each text; ValueError if the embedding function did not return one for each."""
    if not hasattr(vectors, "__len__") or len(vectors) != len(texts):
        what = f"{len(vectors)} vectors" if hasattr(vectors, "__len__") else repr(vectors)
        raise ValueError(f"the embedding function returned {what} for {len(texts)} texts")
    return {text: pack_vector(vector, dims) for text, vector in zip(texts, vectors, strict=True)}


def _texts_at(value: Mapping[str, Any], path: str) -> list[str]:
    return get_text_at_path(value, path if path == _WHOLE_VALUE else tokenize_path(path))


def _leaf_texts_at(value: Mapping[str, Any], path: str) -> Iterable[str]:
    """Return the texts at a path; for lists and dicts, those of their leaves."""
    own = value.get(path) if path.isidentifier() else None  # a key, which is the whole path
    if type(own) is str and own[:1] not in _STARTS_OF_JSON:
        return (own,)
    return chain.from_iterable(map(_leaf_texts_in, _texts_at(value, path)))


def _leaf_texts_in(text: str) -> Iterable[str]:
    inner = texts_in_json(text)
    return (text,) if inner is None else inner


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
        raise ValueError("index['dims'] requires index['embed']")
    if config.get("distance_type", COSINE) not in METRICS:
        raise ValueError(f"index['distance_type'] must be one of {', '.join(METRICS)}")
    fields = config.get("fields")
    is_list = isinstance(fields, (list, tuple)) and all(isinstance(each, str) for each in fields)
    if fields is not None and not is_list:
        raise TypeError(f"index['fields'] must be a list of paths, not {fields!r}")
    return config


def _check_vectors(embed: Any, dims: Any) -> None:
    if embed is None:
        raise ValueError("vector search requires index['embed']: a function, an Embeddings object or 'provider:model'")
    if not (isinstance(embed, (str, Embeddings)) or callable(embed)):
        raise TypeError(f"index['embed'] must be a function, an Embeddings object or 'provider:model', not {embed!r}")
    if isinstance(dims, bool) or not isinstance(dims, int) or dims < 1:
        raise ValueError(f"index['dims'] must be the number of dimensions that index['embed'] returns, not {dims!r}")
