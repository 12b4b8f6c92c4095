"""The inbox: threads that wait for a person, each with its question and the answers that it offers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from threadkeep import AnswerOption, WaitingThread
from threadkeep.engine.history.answer_options import question_text
from threadkeep.inspector.inspected import Inspected
from threadkeep.inspector.json_tree import JsonNode, nodes
from threadkeep.inspector.query import QueryParameters

_MOST = 25


class ShownQuestion(NamedTuple):
    """What a thread waits for: the text of its question, if it has one, all of it as a tree, and the answers."""

    waiting: WaitingThread
    text: str | None
    value: JsonNode | None
    answers: tuple[ShownAnswer, ...]


class ShownAnswer(NamedTuple):
    """An answer that a question offers, and what to resume with as JSON."""

    option: AnswerOption
    value: str


async def page(shown: Inspected, query: QueryParameters) -> dict[str, Any]:
    """List what waits, the longest first. Round trips as `Keep.waiting`."""
    if shown.foreign is not None:
        await shown.foreign.start()
    most, paused = query.number("most", _MOST), query.flag("paused")
    found = await shown.keep.awaiting(limit=most + 1, paused=paused)
    return {
        "waiting": [_shown(shown, each) for each in found[:most]],
        "paused": paused,
        "more": most + _MOST if len(found) > most else None,
        "snippet": shown.snippet("waiting"),
    }


def _shown(shown: Inspected, waiting: WaitingThread) -> ShownQuestion:
    question = shown.redaction.value(waiting.question)
    tree = nodes(question, ())._replace(is_open=False) if isinstance(question, (Mapping, list)) else None
    answers = (ShownAnswer(option, json.dumps(option.value, ensure_ascii=False)) for option in waiting.options)
    return ShownQuestion(waiting, question_text(question), tree, tuple(answers))
