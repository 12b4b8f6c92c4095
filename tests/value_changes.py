"""Hypothesis strategies for how channel values change between checkpoints: reducers, nodes, careless user code.

Each function takes the previous value, an object that others may still reference, and returns the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

from threadkeep.engine.log.itemlog import CHUNK

Draw = Callable[[st.SearchStrategy[Any]], Any]
_HEADER = 5
LONG = [
    CHUNK - _HEADER - 1,
    CHUNK - _HEADER,
    CHUNK - _HEADER + 1,
    2 * CHUNK - _HEADER,
    2 * CHUNK - _HEADER + 1,
    620_000,
]
"""Lengths of texts that exactly fill one item or two, or are a little longer; those are stored in chunks."""

_numbers = st.sampled_from([0, 1, True, False, 1.0, 0.0, -0.0, -1, 2**40, None])
_messages = st.builds(
    lambda kind, id, length: kind("m" * length + id, id=id),
    st.sampled_from([HumanMessage, AIMessage]),
    st.sampled_from("abcdef"),
    st.sampled_from([0, 5, 300]),
)
_notes = st.builds(lambda n, length: {"n": n, "text": "x" * length}, _numbers, st.sampled_from([0, 20, 400, 1500]))
elements = st.one_of(
    _numbers, _messages, _notes, st.text(max_size=6), st.binary(max_size=300), st.lists(_numbers, max_size=3)
)
values = st.one_of(
    _numbers,
    st.sampled_from([[], {}, b"", "", (), set(), [[]], [{}], {"a": {}}]),
    st.binary(min_size=10, max_size=60),
    st.builds(bytearray, st.binary(max_size=40)),
    st.builds(lambda n: "large " * n, st.sampled_from([4, 6, 50, 300])),
    st.builds(lambda n: {"deep": {"er": [n] * 40}}, _numbers),
)
long_values = st.builds(lambda letter, length: letter * length, st.sampled_from("pq"), st.sampled_from(LONG))


def evolve_list(draw: Draw, old: Any) -> Any:
    """Draw the next value of a list channel."""
    change = draw(st.sampled_from(_LIST_CHANGES))
    return change(draw, old if isinstance(old, list) else [])


def _append(draw: Draw, old: list[Any]) -> list[Any]:
    return [*old, *draw(st.lists(elements, min_size=1, max_size=3))]


def _edit(draw: Draw, old: list[Any]) -> list[Any]:
    at = draw(st.integers(0, len(old)))
    return [*old[:at], draw(elements), *old[at + 1 :]]


def _remove(draw: Draw, old: list[Any]) -> list[Any]:
    at = draw(st.integers(0, len(old)))
    return old[:at] + old[at + 1 :]


def _insert(draw: Draw, old: list[Any]) -> list[Any]:
    at = draw(st.integers(0, len(old)))
    return [*old[:at], draw(elements), *old[at:]]


def _overwrite(draw: Draw, old: list[Any]) -> list[Any]:
    return draw(st.lists(elements, max_size=4))


def _trim(draw: Draw, old: list[Any]) -> list[Any]:
    return old[draw(st.integers(0, len(old))) :]


def _cut(draw: Draw, old: list[Any]) -> list[Any]:
    return old[: draw(st.integers(0, len(old)))]


def _reorder(draw: Draw, old: list[Any]) -> list[Any]:
    return old[::-1] if draw(st.booleans()) else sorted(old, key=repr)


def _duplicate(draw: Draw, old: list[Any]) -> list[Any]:
    return old + old[-2:] if len(old) < 30 else old[:10]


def _append_in_place(draw: Draw, old: list[Any]) -> list[Any]:
    old.append(draw(elements))
    return old


def _edit_in_place(draw: Draw, old: list[Any]) -> list[Any]:
    """Change the elements and keep the same list object."""
    for element in old:
        if isinstance(element, HumanMessage | AIMessage):
            element.content += "!"
        elif isinstance(element, dict):
            element["seen"] = element.get("seen", 0) + 1
    return old


def _many_tiny(draw: Draw, old: list[Any]) -> list[Any]:
    start = draw(st.integers(0, 3))
    return [*old[:20], *range(start, start + draw(st.sampled_from([5, 40, 300])))]


def _long_element(draw: Draw, old: list[Any]) -> list[Any]:
    return [*old[:5], draw(long_values)]


_LIST_CHANGES = [
    _append, _append, _append, _edit, _remove, _insert, _overwrite, _trim, _cut, _reorder, _duplicate,
    _append_in_place, _edit_in_place, _many_tiny,
]  # fmt: skip


def evolve_notes(draw: Draw, old: Any) -> Any:
    """Draw the next value of a long list in which so many elements change that its ranges do not fit into a row."""
    stamp = draw(st.integers(0, 99))
    fresh = [f"{stamp} {n} " + "z" * 260 for n in range(120)]
    if not isinstance(old, list):
        return fresh
    change = draw(st.sampled_from(["spread", "spread", "append", "trim", "edit", "reverse", "other half"]))
    return {
        "spread": [new if n % 2 else kept for n, (kept, new) in enumerate(zip(old, fresh, strict=False))],
        "append": old + fresh[:2],
        "trim": old[stamp // 2 :],
        "edit": [*old[: stamp // 2], "edited", *old[stamp // 2 + 1 :]],
        "reverse": old[::-1],
        "other half": [*old[: len(old) // 2], *fresh[60:]],
    }[change]


def evolve_dict(draw: Draw, old: Any) -> Any:
    """Draw the next value of a dict channel, mostly large enough to be stored entry by entry."""
    was = old if isinstance(old, dict) else {f"f{n}": "content " * 30 for n in range(8)}
    change = draw(st.sampled_from(["set", "set", "remove", "replace", "reverse", "clear", "in place"]))
    key = draw(st.sampled_from([*(f"f{n}" for n in range(10)), 7, True]))
    if change == "in place":
        was[key] = draw(elements)
        return was
    if change == "set":
        return {**was, key: draw(st.one_of(elements, st.just("content " * 30)))}
    if change == "remove":
        return {k: v for k, v in was.items() if k != key}
    if change == "replace":
        return {k: draw(elements) if k == key else v for k, v in was.items()}
    return {} if change == "clear" else dict(reversed(was.items()))


def evolve_any(draw: Draw, old: Any) -> Any:
    """Draw the next value of a channel of any type."""
    return draw(values)


def evolve_long(draw: Draw, old: Any) -> Any:
    """Draw the next value of a channel of very long texts."""
    return (
        draw(st.one_of(long_values, st.just("short")))
        if old is None
        else _long_element(draw, old if isinstance(old, list) else [])
    )


CHANNELS: dict[str, Callable[[Draw, Any], Any]] = {
    "messages": evolve_list,
    "files": evolve_dict,
    "notes": evolve_notes,
    "count": evolve_any,
    "branch": evolve_any,
}
