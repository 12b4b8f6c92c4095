"""Build LangChain messages from stored fields without pydantic's validation, if it would not change them.

A stored message is the dump of a valid one. Validating it takes 9 us and mostly changes nothing; setting its fields
takes 2 us. The checks below decide whether validation would change nothing. A message that does not pass them (mutated
to something unusual, stored by another version, with extra fields) is validated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Fields = dict[str, Any]
Build = Callable[[Fields], Any]

_COMMON_FIELDS = ("content", "additional_kwargs", "response_metadata", "type", "name", "id")
_TOOL_CALL = {"name", "args", "id", "type"}
_USAGE = {"input_tokens", "output_tokens", "total_tokens"}
_USAGE_DETAILS = {"input_token_details", "output_token_details"}
_DETAILS = {"audio", "cache_creation", "cache_read", "reasoning"}


def _is_plain_ai(given: Fields) -> bool:
    calls, usage = given["tool_calls"], given["usage_metadata"]
    return (
        type(calls) is list
        and (all(map(_is_call, calls)) if calls else "tool_calls" not in given["additional_kwargs"])
        and given["invalid_tool_calls"] == []
        and (usage is None or _is_usage(usage))
    )


def _is_plain_tool(given: Fields) -> bool:
    return type(given["tool_call_id"]) is str and given["status"] in ("success", "error")


def _are_blocks(value: Any) -> bool:
    return type(value) is list and all(type(part) in (str, dict) for part in value)


def _is_call(call: Any) -> bool:
    return (
        type(call) is dict
        and call.keys() == _TOOL_CALL
        and call["type"] == "tool_call"
        and type(call["name"]) is str
        and type(call["args"]) is dict
        and all(type(key) is str for key in call["args"])
        and (call["id"] is None or type(call["id"]) is str)
    )


def _is_usage(value: Any) -> bool:
    if type(value) is not dict or not all(map(value.__contains__, _USAGE)):
        return False
    for key, each in value.items():
        is_plain = type(each) is int if key in _USAGE else key in _USAGE_DETAILS and _are_details(each)
        if not is_plain:
            return False
    return True


def _are_details(value: Any) -> bool:
    if type(value) is not dict:
        return False
    for key, count in value.items():  # noqa: SIM110 - this runs for every message that is read
        if key not in _DETAILS or type(count) is not int:
            return False
    return True


_KNOWN: dict[str, tuple[tuple[str, ...], Callable[[Fields], bool] | None]] = {
    "HumanMessage": (_COMMON_FIELDS, None),
    "SystemMessage": (_COMMON_FIELDS, None),
    "AIMessage": ((*_COMMON_FIELDS, "tool_calls", "invalid_tool_calls", "usage_metadata"), _is_plain_ai),
    "ToolMessage": ((*_COMMON_FIELDS, "tool_call_id", "artifact", "status"), _is_plain_tool),
}
"""The fields of each class, and the check of those that not all of them have."""


def quick_builder(cls: Any, usual: Build) -> Build:
    """Return a builder for a message class that skips validation where it can; `usual` if the class is not known."""
    known, is_plain = _KNOWN.get(cls.__name__, ((), None))
    fields = getattr(cls, "model_fields", {})
    if not cls.__module__.startswith("langchain_core.messages.") or set(known) != fields.keys():
        return usual  # another class, or a LangChain that these checks were not written for
    names, kind = set(known), fields["type"].default
    set_fields, set_names, set_extra, set_private = setters(cls)

    def build(given: Fields) -> Any:
        """Build one message: one call, two to six for those of a model."""
        if type(given) is not dict or given.keys() != names or given["type"] != kind:
            return usual(given)
        content, name, id = given["content"], given["name"], given["id"]
        if (
            (type(content) is not str and not _are_blocks(content))
            or type(given["additional_kwargs"]) is not dict
            or type(given["response_metadata"]) is not dict
            or (name is not None and type(name) is not str)
            or (id is not None and type(id) is not str)
            or (is_plain is not None and not is_plain(given))
        ):
            return usual(given)
        message = cls.__new__(cls)
        set_fields(message, given)
        set_names(message, names.copy())
        set_extra(message, {})
        set_private(message, None)
        return message

    return build


def setters(cls: Any) -> tuple[Callable[[Any, Any], None], ...]:
    """Return the functions that make a message of a new object. They take half the time of object.__setattr__.

    They set its fields, the names of those that pydantic regards as set, extra fields ({}) and private ones (None).
    """
    slots = next(vars(base) for base in reversed(cls.__mro__) if "__pydantic_fields_set__" in vars(base))
    names = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
    return tuple(slots[name].__set__ for name in names)
