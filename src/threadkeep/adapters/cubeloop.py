"""CubeLoop's checkpointer on a Keep."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep.adapters.cubeloop_types import Framework, framework
from threadkeep.clock import nonce, now_ms
from threadkeep.engine.cube import ops, plans
from threadkeep.engine.identity import CUBE, ThreadKey, as_id, as_ids
from threadkeep.errors import Corrupt, Unavailable
from threadkeep.plan import Plan
from threadkeep.session import Session

if TYPE_CHECKING:
    from cubeloop.checkpointer.base import CheckpointData
    from cubeloop.hitl.types import HitlRequest
    from cubeloop.providers.base import Message
    from cubeloop.types import JsonObject, StructuredValue

T = TypeVar("T")


class KeepCube:
    """CubeLoop's `Checkpointer`, and that of old CubePi. Made by `Keep.cube`.

    A worker copies what is given before the call returns: do not change it meanwhile. Results are never shared. Several
    agents, tasks, threads and processes may use a thread at the same time: nothing that they add is lost.
    A claimed run may be claimed again after `claim_timeout` seconds without activity; never if it is None.
    """

    def __init__(self, session: Session, *, claim_timeout: float | None = None) -> None:
        self._session = session
        self._patience = None if claim_timeout is None else claim_timeout * 1000
        self._types = framework()

    async def load(self, thread_id: str) -> CheckpointData | None:
        """Messages and extra of one moment; None if there is no such thread. One round trip."""
        talk = await self._reading(thread_id, lambda key: plans.load(self._session.heads, key, self._messages))
        if talk is None:
            return None
        parent = {"parent_thread_id": talk.parent} if self._types.knows_parents else {}
        found: CheckpointData = self._types.data(messages=talk.messages, extra=talk.extra, **parent)
        return found

    async def append(self, thread_id: str, messages: list[Message]) -> None:
        """Add messages, in order; one whose id is not empty and in the thread already is left out."""
        if not messages:
            return

        def make() -> ops.AppendMessages:
            given = [ops.message(_dump_message(message, self._types)) for message in messages]
            return ops.AppendMessages(given, time=now_ms(), nonce=nonce())

        await self._changing(thread_id, make)

    async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
        """Put entries into the thread's extra; those that it has under other names stay."""
        if not isinstance(extra, Mapping):
            raise TypeError(f"extra must be a dict, not {type(extra).__name__}")
        await self._changing(thread_id, lambda: ops.MergeExtra(_json_copy(dict(extra)), time=now_ms(), nonce=nonce()))

    async def save_pending_request(
        self, thread_id: str, request: HitlRequest | None, *, run_id: str | None = None
    ) -> None:
        """Let a question wait for a person's answer, instead of another that may wait; None: let none wait."""
        if request is not None and not hasattr(request, "model_dump"):
            raise TypeError(f"request must be a HitlRequest or None, not {type(request).__name__}")
        run = _optional_id(run_id)

        def make() -> ops.SetPendingRequest:
            pending = (_json_copy(_dump_model(request)), run) if request is not None else None
            return ops.SetPendingRequest(pending, time=now_ms(), nonce=nonce())

        await self._changing(thread_id, make)

    async def load_pending_request(self, thread_id: str) -> HitlRequest | None:
        """The question that waits, or None."""
        pending = await self.load_pending(thread_id)
        return pending[0] if pending is not None else None

    async def load_pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None:
        """The question that waits and its run, or None."""
        found = await self._reading(thread_id, lambda key: plans.pending(self._session.heads, key))
        if found is None:
            return None
        request: HitlRequest = self._types.request(found[0])
        return request, found[1]

    async def clear_pending_request_if_matches(self, thread_id: str, *, question_id: str, run_id: str) -> bool:
        """Let no question wait, if the one that does has this id and run; whether it had."""
        question, run = as_id(question_id, "question_id"), as_id(run_id, "run_id")
        return bool(
            await self._changing(
                thread_id, lambda: ops.ClearPendingRequest(question, run, time=now_ms(), nonce=nonce())
            )
        )

    async def save_hitl_answer(
        self, thread_id: str, question_id: str, answer: StructuredValue, *, run_id: str | None = None
    ) -> None:
        """Keep the answer to a question, for when the run goes on."""
        run, question = _optional_id(run_id) or "", as_id(question_id, "question_id")
        await self._changing(
            thread_id, lambda: ops.SaveAnswer(run, question, _json_copy(answer), time=now_ms(), nonce=nonce())
        )

    async def load_hitl_answer(
        self, thread_id: str, question_id: str, *, run_id: str | None = None
    ) -> StructuredValue | None:
        """The answer to a question, or None."""
        run, question = _optional_id(run_id) or "", as_id(question_id, "question_id")
        return await self._reading(thread_id, lambda key: plans.answer(self._session.heads, key, run, question))

    async def clear_hitl_answers(
        self, thread_id: str, question_ids: Iterable[str] | None = None, *, run_id: str | None = None
    ) -> None:
        """Drop the answers of a run: to these questions, or to all."""
        questions = None if question_ids is None else as_ids(question_ids, "question_ids")
        run = _optional_id(run_id) or ""
        await self._changing(thread_id, lambda: ops.ClearAnswers(run, questions, time=now_ms(), nonce=nonce()))

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        """Begin a run; RunAlreadyClaimedError or RunAlreadyCompletedError if it was begun before."""
        run = as_id(run_id, "run_id")
        await self._changing(thread_id, lambda: ops.ClaimRun(run, self._patience, time=now_ms(), nonce=nonce()))

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        """End a run, once or again; RunNotClaimedError if it was not begun."""
        run = as_id(run_id, "run_id")
        await self._changing(thread_id, lambda: ops.CompleteRun(run, time=now_ms(), nonce=nonce()))

    async def snapshot(self, thread_id: str, *, after_run_id: str) -> list[Message]:
        """The messages of no run, and of the runs that were completed up to this one. One round trip."""
        run = as_id(after_run_id, "after_run_id")
        return await self._reading(thread_id, lambda key: plans.snapshot(self._session.heads, key, run, self._messages))

    async def fork(
        self, src_thread_id: str, new_thread_id: str, *, after_run_id: str, metadata: JsonObject | None = None
    ) -> None:
        """A new thread with the messages of no run, of the runs that were completed up to this one, and these runs.

        It takes the extra along, with `metadata` as its `fork`. Messages are copied inside the database, not read; the
        new thread survives the old one.
        """
        source, target = self._key(src_thread_id, "src_thread_id"), self._key(new_thread_id, "new_thread_id")
        run, about = as_id(after_run_id, "after_run_id"), _json_copy(metadata)

        def plan() -> Plan[None]:
            return plans.fork(self._session.heads, source, target, run, about, time=now_ms(), nonce=nonce())

        await self._translated(source, self._session.aexclusive(target, plan))

    def _key(self, thread_id: str, name: str = "thread_id") -> ThreadKey:
        return self._session.key(CUBE, as_id(thread_id, name))

    async def _changing(self, thread_id: str, make: Callable[[], ops.AnyOp]) -> Any:
        """Commit an op. A worker makes it: dumping and packing large messages would block the event loop."""
        key = self._key(thread_id)
        return await self._translated(key, self._session.achange(key, make))

    async def _reading(self, thread_id: str, plan: Callable[[ThreadKey], Plan[T]]) -> T:
        key = self._key(thread_id)
        return await self._translated(key, self._session.runner.arun(lambda: plan(key)))

    async def _translated(self, key: ThreadKey, work: Awaitable[T]) -> T:
        """What some work gives, or the framework's own error."""
        try:
            return await work
        except ops.Refused as refused:
            raise self._types.errors[refused.reason](str(refused)) from None
        except Corrupt as error:
            raise self._types.corrupt(key.id, error) from error
        except Unavailable as error:
            raise self._types.unavailable(str(error)) from error

    def _messages(self, dumped: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Messages of their plain forms."""
        classes = self._types.messages
        try:
            return [classes[each["role"]](each) for each in dumped]
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"a message does not make sense: {error}") from error


def _dump_message(message: Any, types: Framework) -> dict[str, Any]:
    """The plain form of a message."""
    dumped = _dump_model(message) if hasattr(message, "model_dump") else message
    if not isinstance(dumped, Mapping):
        raise TypeError(f"messages must be CubeLoop's, not {type(message).__name__}")
    if dumped.get("role") not in types.messages:
        raise ValueError(
            f"the role of a message must be one of {', '.join(types.messages)}, not {dumped.get('role')!r}"
        )
    return dict(dumped)


def _optional_id(run_id: Any) -> str | None:
    return as_id(run_id, "run_id") if run_id is not None else None


def _dump_model(model: Any) -> Any:
    """A model as a dict of JSON values. Pydantic's own JSON mode makes None of some infinite numbers."""
    dumped = model.model_dump()
    try:
        json.dumps(dumped)
    except (TypeError, ValueError):
        return model.model_dump(mode="json")
    return dumped


def _json_copy(value: Any) -> Any:
    """A JSON value of its own, as it will come back; models become dicts."""
    return json.loads(json.dumps(value, default=_json_default))


def _json_default(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return _dump_model(value)
    raise TypeError(f"{type(value).__name__} is not JSON: {value!r}")
