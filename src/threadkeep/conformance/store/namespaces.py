"""Tests of namespaces: prefixes of whole segments, any text in them, what is refused, and `list_namespaces`."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchOp,
)

from threadkeep.conformance.store.contents import keys, put_one_in_each, value
from threadkeep.conformance.sync_async import Caller

SEGMENTS = [
    "a", "A", "ab", "a b", "a%b", "a_b", "axb", "a*b", "*", "a?b", "[ab]", "%", "_", "a'b", 'a"b', "a`b",
    "a;b--", "a/b",
    "a:b", "a|b", "a,b", "a\\b", "a\\", "{a}", "(a)", "a\tb", "a\nb", " ", " a", "$", "\u00e9", "e\u0301", "\u00df",
    "SS", "\U0001f99c", "\u4e2d\u6587", "\u05d0", "\ufffd", "1", "01", "None", "\x7f", "a" * 200,
]  # fmt: skip
DOUBTFUL = {"NUL": "a\0b", "lone surrogate": "a\ud800b", "very long": "a" * 5000}
REFUSED: dict[str, Any] = {
    "no segment": (),
    "empty segment": ("a", ""),
    "dot": ("a.b",),
    "only a dot": ("a", "."),
    "langgraph": ("langgraph", "a"),
    "number": ("a", 1),
    "none": ("a", None),
}


def find_namespaces(store: Caller, prefix: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Return the namespaces of the items that a search finds."""
    return {item.namespace for item in store.search(prefix, limit=1000)}


def test_a_prefix_is_one_of_whole_segments(my_store: Caller) -> None:
    put_one_in_each(my_store, [("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("ab", "c"), ("b", "a")])
    assert find_namespaces(my_store, ("a",)) == {("a",), ("a", "b"), ("a", "b", "c")}
    assert find_namespaces(my_store, ("a", "b")) == {("a", "b"), ("a", "b", "c")}
    assert find_namespaces(my_store, ("a", "b", "c", "d")) == set()


def test_an_empty_prefix_finds_everything(my_store: Caller) -> None:
    put_one_in_each(my_store, [("a",), ("b", "c")])
    assert find_namespaces(my_store, ()) == {("a",), ("b", "c")}


def test_segments_are_case_sensitive(my_store: Caller) -> None:
    put_one_in_each(my_store, [("User", "x"), ("user", "x")])
    assert find_namespaces(my_store, ("user",)) == {("user", "x")}
    assert my_store.get(("USER", "x"), "key") is None
    assert my_store.list_namespaces(prefix=("User",)) == [("User", "x")]


def test_any_text_may_be_a_segment_and_means_itself(my_store: Caller) -> None:
    namespaces = [(segment,) for segment in SEGMENTS]
    put_one_in_each(my_store, namespaces)
    assert {namespace: my_store.get(namespace, "key").namespace for namespace in namespaces} == {
        namespace: namespace for namespace in namespaces
    }
    assert {namespace: find_namespaces(my_store, namespace) for namespace in namespaces} == {
        namespace: {namespace} for namespace in namespaces
    }
    assert sorted(my_store.list_namespaces(limit=1000)) == sorted(namespaces)


def test_any_text_may_be_a_segment_within_others(my_store: Caller) -> None:
    namespaces = [("top", segment, "end") for segment in SEGMENTS]
    put_one_in_each(my_store, namespaces)
    assert {namespace: find_namespaces(my_store, namespace[:2]) for namespace in namespaces} == {
        namespace: {namespace} for namespace in namespaces
    }


def test_namespaces_that_look_alike_when_joined_are_different(my_store: Caller) -> None:
    alike = [
        ("a", "b"),
        ("a/b",),
        ("a:b",),
        ("a|b",),
        ("a,b",),
        ("a b",),
        ("ab",),
        ("a\x1fb",),
        ("a", "b", "c"),
        ("a", "b/c"),
    ]
    put_one_in_each(my_store, alike)
    assert [value(my_store, "key", namespace)["in"] for namespace in alike] == [list(namespace) for namespace in alike]
    assert sorted(my_store.list_namespaces()) == sorted(alike)


@pytest.mark.parametrize("segment", DOUBTFUL.values(), ids=DOUBTFUL.keys())
def test_a_segment_that_databases_dislike_is_kept_or_refused(my_store: Caller, segment: str) -> None:
    put_one_in_each(my_store, [("ab",), ("a",)])
    try:
        my_store.put((segment,), "key", {"mine": True})
    except (ValueError, TypeError):
        assert find_namespaces(my_store, ()) == {("ab",), ("a",)}
    else:
        assert my_store.get((segment,), "key").namespace == (segment,)
        assert find_namespaces(my_store, (segment,)) == {(segment,)}


# --- what is refused


@pytest.mark.parametrize("namespace", REFUSED.values(), ids=REFUSED.keys())
def test_a_put_into_what_base_store_refuses_is_an_invalid_namespace_error(my_store: Caller, namespace: Any) -> None:
    with pytest.raises(InvalidNamespaceError):
        my_store.put(namespace, "key", {})
    assert my_store.search(()) == []


INVALID_LABELS = pytest.mark.parametrize(
    "namespace", [("a", ""), ("a.b",), ("a", 1)], ids=["empty segment", "dot", "number"]
)


@INVALID_LABELS
def test_a_read_of_what_base_store_refuses_is_an_invalid_namespace_error(my_store: Caller, namespace: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: my_store.get(namespace, "key"),
        lambda: my_store.delete(namespace, "key"),
        lambda: my_store.search(namespace),
        lambda: my_store.list_namespaces(prefix=namespace),
        lambda: my_store.list_namespaces(suffix=namespace),
    ]
    for call in calls:
        with pytest.raises(InvalidNamespaceError):
            call()


@INVALID_LABELS
def test_an_op_that_reads_what_base_store_refuses_is_an_invalid_namespace_error(
    my_store: Caller, namespace: Any
) -> None:
    """Ops that are passed to `batch` skip the checks of `get` and `search`."""
    put_one_in_each(my_store, [("a", "b")])
    batches: list[list[Op]] = [
        [GetOp(namespace, "key")],
        [SearchOp(namespace)],
        [ListNamespacesOp((MatchCondition("prefix", namespace),))],
        [ListNamespacesOp((MatchCondition("suffix", namespace),))],
        [PutOp(("a", "b"), "key", {"new": True}), GetOp(namespace, "key")],
    ]
    for batch in batches:
        with pytest.raises(InvalidNamespaceError):
            my_store.batch(batch)
    assert value(my_store, "key", ("a", "b")) == {"in": ["a", "b"]}


def test_ops_with_an_empty_prefix_or_a_wildcard_are_valid(my_store: Caller) -> None:
    put_one_in_each(my_store, [("a", "b"), ("*",)])
    wildcard = ListNamespacesOp((MatchCondition("prefix", ("*", "b")),))
    found = my_store.batch([SearchOp(()), SearchOp(("*",)), ListNamespacesOp(), wildcard])
    assert {item.namespace for item in found[0]} == {("a", "b"), ("*",)}
    assert [item.namespace for item in found[1]] == [("*",)]
    assert found[2:] == [[("*",), ("a", "b")], [("a", "b")]]


CALLS_WITH_STR: dict[str, Callable[[Caller], Any]] = {
    "put": lambda store: store.put("ab", "key", {}),
    "get": lambda store: store.get("ab", "key"),
    "delete": lambda store: store.delete("ab", "key"),
    "search": lambda store: store.search("ab"),
    "list_namespaces by prefix": lambda store: store.list_namespaces(prefix="ab"),
    "list_namespaces by suffix": lambda store: store.list_namespaces(suffix="ab"),
    "get in a batch": lambda store: store.batch([GetOp("ab", "key")]),  # type: ignore[arg-type]
    "search in a batch": lambda store: store.batch([SearchOp("ab")]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", CALLS_WITH_STR.values(), ids=CALLS_WITH_STR.keys())
def test_a_text_in_place_of_a_namespace_is_an_error(my_store: Caller, call: Callable[[Caller], Any]) -> None:
    """Python would iterate over its letters."""
    with pytest.raises((ValueError, TypeError)):
        call(my_store)


def test_a_text_as_the_path_of_a_match_condition_is_one_label(my_store: Caller) -> None:
    """LangGraph's own tests pass one."""
    put_one_in_each(my_store, [("ab", "c"), ("a", "b"), ("c", "ab")])
    conditions = [MatchCondition("prefix", "ab"), MatchCondition("suffix", "ab")]  # type: ignore[arg-type]
    assert my_store.batch([ListNamespacesOp((each,)) for each in conditions]) == [[("ab", "c")], [("c", "ab")]]
    for path in ("a.b", ""):
        with pytest.raises(InvalidNamespaceError):
            my_store.batch([ListNamespacesOp((MatchCondition("prefix", path),))])  # type: ignore[arg-type]


def test_an_op_with_a_dot_never_meets_another_namespace(my_store: Caller) -> None:
    """Ops that are passed to `batch` skip the checks of `put` and `get`."""
    put_one_in_each(my_store, [("a", "b")])
    try:
        assert my_store.batch([GetOp(("a.b",), "key")]) == [None]
        my_store.batch([PutOp(("a.b",), "key", {"mine": True})])
    except InvalidNamespaceError:
        pass
    assert value(my_store, "key", ("a", "b")) == {"in": ["a", "b"]}


# --- list_namespaces

TREE = [("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "d", "e"), ("a", "x", "c"), ("b", "c"), ("c",)]


LISTINGS: dict[str, list[tuple[dict[str, Any], list[tuple[str, ...]]]]] = {
    "all": [({}, TREE)],
    "prefix": [
        ({"prefix": ("a",)}, TREE[:5]),
        ({"prefix": ("a", "b")}, TREE[1:4]),
        ({"prefix": ("c", "a")}, []),
    ],
    "suffix": [
        ({"suffix": ("c",)}, [("a", "b", "c"), ("a", "x", "c"), ("b", "c"), ("c",)]),
        ({"suffix": ("x", "c")}, [("a", "x", "c")]),
    ],
    "prefix and suffix": [
        ({"prefix": ("a",), "suffix": ("c",)}, [("a", "b", "c"), ("a", "x", "c")]),
        ({"prefix": ("c",), "suffix": ("c",)}, [("c",)]),
    ],
    "wildcards": [
        ({"prefix": ("*",)}, TREE),
        ({"prefix": ("*", "b")}, TREE[1:4]),
        ({"prefix": ("a", "*")}, TREE[1:5]),
        ({"prefix": ("a", "*", "c")}, [("a", "b", "c"), ("a", "x", "c")]),
        ({"suffix": ("*",)}, TREE),
        ({"suffix": ("*", "c")}, [("a", "b", "c"), ("a", "x", "c"), ("b", "c")]),
        ({"suffix": ("a", "*", "c")}, [("a", "b", "c"), ("a", "x", "c")]),
        ({"suffix": ("d", "*")}, [("a", "b", "d", "e")]),
    ],
    "max_depth": [
        ({"max_depth": 1}, [("a",), ("b",), ("c",)]),
        ({"max_depth": 2}, [("a",), ("a", "b"), ("a", "x"), ("b", "c"), ("c",)]),
        ({"max_depth": 9}, TREE),
        ({"prefix": ("a", "b"), "max_depth": 3}, [("a", "b"), ("a", "b", "c"), ("a", "b", "d")]),
        ({"suffix": ("c",), "max_depth": 1}, [("a",), ("b",), ("c",)]),
    ],
    "limit and offset": [
        ({"limit": 2}, TREE[:2]),
        ({"offset": 5}, TREE[5:]),
        ({"limit": 3, "offset": 2}, TREE[2:5]),
        ({"max_depth": 2, "limit": 2, "offset": 1}, [("a", "b"), ("a", "x")]),
        ({"limit": 0}, []),
        ({"offset": 99}, []),
    ],
}


@pytest.mark.parametrize("cases", LISTINGS.values(), ids=LISTINGS.keys())
def test_list_namespaces_by(my_store: Caller, cases: list[tuple[dict[str, Any], list[tuple[str, ...]]]]) -> None:
    put_one_in_each(my_store, reversed(TREE))
    answers = [(options, my_store.list_namespaces(**options)) for options, _ in cases]
    assert answers == cases


def test_namespaces_are_tuples_and_each_is_listed_once(my_store: Caller) -> None:
    my_store.batch([PutOp(("a", "b"), f"key {n}", {}) for n in range(5)])
    listed = my_store.list_namespaces()
    assert listed == [("a", "b")]
    assert isinstance(listed[0], tuple)


def test_namespaces_are_in_the_order_of_their_segments(my_store: Caller) -> None:
    namespaces = [("a",), ("a", "b"), ("a!",), ("a!", "b"), ("a-b",), ("b",), ("\u00e9",), ("\uffee",), ("\U0001f99c",)]
    put_one_in_each(my_store, reversed(namespaces))
    assert my_store.list_namespaces() == sorted(namespaces)


def test_a_namespace_is_listed_only_while_it_has_items(my_store: Caller) -> None:
    put_one_in_each(my_store, [("a",), ("b",)])
    my_store.delete(("a",), "key")
    my_store.delete(("c",), "key")
    assert my_store.list_namespaces() == [("b",)]


def test_a_read_makes_no_namespace(my_store: Caller) -> None:
    assert my_store.get(("a",), "key") is None
    assert my_store.search(("b",)) == []
    assert my_store.list_namespaces() == []


def test_a_star_in_a_search_prefix_is_literal(my_store: Caller) -> None:
    put_one_in_each(my_store, [("*",), ("a",), ("a*",)])
    assert find_namespaces(my_store, ("*",)) == {("*",)}
    assert keys(my_store.search(("a*",))) == ["key"]
