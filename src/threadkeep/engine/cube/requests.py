"""The request that a CubeLoop thread waits for, read from plain data: what its state holds, and what was answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class OpenRequest(NamedTuple):
    """A question that nobody has answered yet. `created_at` is what the request says of itself, if it does."""

    question: Any
    id: str | None
    run: str | None
    created_at: Any


def open_request(pending: Any, answers: Any) -> OpenRequest | None:
    """Return the open request of a state, from its channels of requests and answers. None if there is none."""
    if not isinstance(pending, Mapping):
        return None
    request, run = pending["request"], pending["run"]
    fields = request if isinstance(request, Mapping) else {}
    id = fields.get("question_id")
    if any(id in of_run for name, of_run in (answers or {}).items() if run in (None, name)):
        return None
    return OpenRequest(
        fields.get("payload", request),
        id if isinstance(id, str) else None,
        run if isinstance(run, str) else None,
        fields.get("created_at"),
    )
