"""What a question asks, and what a person may answer to it, as far as the question says so.

LangChain's HumanInTheLoopMiddleware    {"action_requests": […], "review_configs": [{"allowed_decisions": […]}]}
HumanInterrupt, or a list of them       {"action_request": …, "config": {"allow_accept": True, …}}
CubeLoop's requests                     {"kind": "confirm" | "approve" | "ask", …}
any other                               {"options": [value, or {"value": …, "label": …}]}
a schema of the answer                  interrupt(…, response_schema=…), stored as JSON Schema
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from threadkeep.short_repr import short_repr

_DECISIONS = {"allow_accept": "accept", "allow_edit": "edit", "allow_respond": "response", "allow_ignore": "ignore"}
"""The types of a HumanResponse, by what allows them."""
_APPROVALS = ("approve", "deny", "edit")
_TEXTS = ("question", "prompt", "description", "message", "text")
_SEVERAL = ("action_requests", "questions")
"""The fields of LangChain's middleware and of CubeLoop that have several questions."""
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class AnswerOption:
    """An answer that a question offers. `subject` is the tool or question it answers, if there are several of them."""

    value: Any
    label: str
    subject: str | None = None
    description: str | None = None

    __repr__ = short_repr


def question_text(question: Any) -> str | None:
    """Return the text of a question: the question itself, or the first field of it or of its parts that is named so.

    The texts of several questions are joined, one a line. None if there is none, or only in parts that are nested deep.
    """
    return _question_text(question, 0)


def _question_text(question: Any, depth: int) -> str | None:
    if depth > _MAX_DEPTH:
        return None
    if isinstance(question, list):
        texts = (_question_text(each, depth + 1) for each in question if isinstance(each, Mapping))
        return "\n".join(filter(None, texts)) or None
    if not isinstance(question, Mapping):
        return _text(question)
    own = next((text for name in _TEXTS if (text := _text(question.get(name)))), None)
    lists = (question[name] for name in _SEVERAL if isinstance(question.get(name), list))
    parts = (*lists, *(inner for inner in question.values() if isinstance(inner, Mapping)))
    return own or next((text for inner in parts if (text := _question_text(inner, depth + 1))), None)


def options_of(question: Any, schema: Any = None) -> tuple[AnswerOption, ...]:
    """Return what a question, as plain data, offers as answers; empty if it does not say. `schema` is a JSON Schema."""
    found = list(_of_question(question)) or list(_of_schema(schema, schema, 0))
    return tuple(each for n, each in enumerate(found) if each not in found[:n])


def _of_question(question: Any) -> Iterator[AnswerOption]:
    if isinstance(question, list):
        for each in question:
            if isinstance(each, Mapping):
                yield from _of_question(each)
    elif isinstance(question, Mapping):
        for read in (_of_middleware, _of_human_interrupt, _of_cube_request, _of_options):
            yield from read(question)


def _of_middleware(question: Mapping[str, Any]) -> Iterator[AnswerOption]:
    requests, configs = question.get("action_requests"), question.get("review_configs")
    if not (isinstance(requests, list) and isinstance(configs, list)):
        return
    for config in configs:
        decisions = config.get("allowed_decisions") if isinstance(config, Mapping) else None
        for decision in decisions if isinstance(decisions, list) else ():
            yield AnswerOption(decision, str(decision), _text(config.get("action_name")))


def _of_human_interrupt(question: Mapping[str, Any]) -> Iterator[AnswerOption]:
    config, request = question.get("config"), question.get("action_request")
    if isinstance(config, Mapping) and isinstance(request, Mapping):
        for name, decision in _DECISIONS.items():
            if config.get(name) is True:
                yield AnswerOption(decision, decision, _text(request.get("action")))


def _of_cube_request(question: Mapping[str, Any]) -> Iterator[AnswerOption]:
    kind = question.get("kind")
    if kind == "confirm" and "prompt" in question:
        yield from (AnswerOption(value=True, label="yes"), AnswerOption(value=False, label="no"))
    elif kind == "approve" and "tool_name" in question:
        yield from (AnswerOption(each, each, _text(question["tool_name"])) for each in _APPROVALS)
    elif kind == "ask" and isinstance(question.get("questions"), list):
        for each in question["questions"]:
            if isinstance(each, Mapping):
                yield from _of_options(each, _text(each.get("key")))


def _of_options(question: Mapping[str, Any], subject: str | None = None) -> Iterator[AnswerOption]:
    options = question.get("options")
    for each in options if isinstance(options, list) else ():
        if not isinstance(each, Mapping):
            yield AnswerOption(each, str(each), subject)
        elif "value" in each or "label" in each:
            value = each.get("value", each.get("label"))
            yield AnswerOption(value, str(each.get("label", value)), subject, _text(each.get("description")))


def _of_schema(schema: Any, whole: Any, depth: int) -> Iterator[AnswerOption]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    if isinstance(schema.get("$ref"), str):
        yield from _of_schema(_referred(whole, schema["$ref"]), whole, depth + 1)
    elif "const" in schema:
        yield AnswerOption(schema["const"], str(schema["const"]))
    elif isinstance(schema.get("enum"), list):
        yield from (AnswerOption(each, str(each)) for each in schema["enum"])
    elif schema.get("type") == "boolean":
        yield from (AnswerOption(value=True, label="yes"), AnswerOption(value=False, label="no"))
    elif isinstance(schema.get("properties"), Mapping):
        kind = schema["properties"].get("type")
        if isinstance(kind, Mapping) and ("const" in kind or "enum" in kind):
            yield from _of_schema(kind, whole, depth + 1)
    for name in ("oneOf", "anyOf"):
        for each in schema[name] if isinstance(schema.get(name), list) else ():
            yield from _of_schema(each, whole, depth + 1)


def _referred(whole: Any, ref: str) -> Any:
    found = whole
    for part in ref.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
