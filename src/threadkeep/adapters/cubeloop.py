"""CubeLoop's checkpointer, on a Keep."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from threadkeep.adapters.cubeloop_types import Framework, framework
from threadkeep.clock import nonce, now_ms
from threadkeep.engine.cube import ops, plans
from threadkeep.engine.cube.json_types import copy_plain_json, is_plain_json
from threadkeep.engine.identity import CUBE, ThreadKey, as_id, as_ids
from threadkeep.errors import Corrupt, Unavailable, reason
from threadkeep.plan import Plan
from threadkeep.session import Session

if TYPE_CHECKING:
    from cubeloop.checkpointer.base import CheckpointData
    from cubeloop.hitl.types import HitlRequest
    from cubeloop.providers.base import Message
    from cubeloop.types import JsonObject, StructuredValue

T = TypeVar("T")
_OURS = (ops.Refused, Corrupt, Unavailable)
_encode_json = json.JSONEncoder().encode
"""As json.dumps, which would make one call more."""


class KeepCube:
    """The `Checkpointer` of CubeLoop and of CubePi, its former name. Get one from `Keep.cube`.

    A worker thread copies arguments before a call returns: do not change them until then. Results are never shared.
    Several agents, tasks, threads and processes may use a thread at the same time; nothing that they add is lost.
    An open run can be claimed again after `claim_timeout` seconds without activity; never if it is None.
    """

    def __init__(self, session: Session, *, claim_timeout: float | None = None) -> None:
        self._session = session
        self._claim_timeout_ms = None if claim_timeout is None else claim_timeout * 1000
        self._types = framework()

    async def load(self, thread_id: str) -> CheckpointData | None:
        """Return the messages and extra of a thread, as of one moment; None if it does not exist. One round trip."""
        state = await self._read(thread_id, lambda key: plans.load(self._session.heads, key, self._build_messages))
        if state is None:
            return None
        parent = {"parent_thread_id": state.parent} if self._types.knows_parents else {}
        data: CheckpointData = self._types.data(messages=state.messages, extra=state.extra, **parent)
        return data

    async def append(self, thread_id: str, messages: list[Message]) -> None:
        """Append messages. One with an id that the thread already has is skipped."""
        if not messages:
            return

        def make() -> ops.AppendMessages:
            encoded = [ops.encode_message(_dump_message(message, self._types)) for message in messages]
            return ops.AppendMessages(encoded, time=now_ms(), nonce=nonce())

        await self._commit(thread_id, make)

    async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
        """Merge entries into the thread's extra. Entries with other names stay."""
        if not isinstance(extra, Mapping):
            raise TypeError(f"extra must be a dict, not {type(extra).__name__}")
        await self._commit(thread_id, lambda: ops.MergeExtra(_json_copy(dict(extra)), time=now_ms(), nonce=nonce()))

    async def save_pending_request(
        self, thread_id: str, request: HitlRequest | None, *, run_id: str | None = None
    ) -> None:
        """Set the pending request, replacing any other; None removes it."""
        if request is not None and not hasattr(request, "model_dump"):
            raise TypeError(f"request must be a HitlRequest or None, not {type(request).__name__}")
        run = _optional_id(run_id)

        def make() -> ops.SetPendingRequest:
            pending = (_json_copy(_dump_model(request)), run) if request is not None else None
            return ops.SetPendingRequest(pending, time=now_ms(), nonce=nonce())

        await self._commit(thread_id, make)

    async def load_pending_request(self, thread_id: str) -> HitlRequest | None:
        """Return the pending request, or None."""
        pending = await self.load_pending(thread_id)
        return pending[0] if pending is not None else None

    async def load_pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None:
        """Return the pending request and its run, or None. One or two round trips."""
        pending = await self._read(thread_id, lambda key: plans.pending(self._session.heads, key))
        if pending is None:
            return None
        request: HitlRequest = self._types.request(pending[0])
        return request, pending[1]

    async def clear_pending_request_if_matches(self, thread_id: str, *, question_id: str, run_id: str) -> bool:
        """Remove the pending request if it has this question id and run. Return whether it had."""
        question, run = as_id(question_id, "question_id"), as_id(run_id, "run_id")
        return bool(
            await self._commit(thread_id, lambda: ops.ClearPendingRequest(question, run, time=now_ms(), nonce=nonce()))
        )

    async def save_hitl_answer(
        self, thread_id: str, question_id: str, answer: StructuredValue, *, run_id: str | None = None
    ) -> None:
        """Store the answer to a question, for when the run continues."""
        run, question = _optional_id(run_id) or "", as_id(question_id, "question_id")
        await self._commit(
            thread_id, lambda: ops.SaveAnswer(run, question, _json_copy(answer), time=now_ms(), nonce=nonce())
        )

    async def load_hitl_answer(
        self, thread_id: str, question_id: str, *, run_id: str | None = None
    ) -> StructuredValue | None:
        """Return the answer to a question, or None. One or two round trips."""
        run, question = _optional_id(run_id) or "", as_id(question_id, "question_id")
        return await self._read(thread_id, lambda key: plans.answer(self._session.heads, key, run, question))

    async def clear_hitl_answers(
        self, thread_id: str, question_ids: Iterable[str] | None = None, *, run_id: str | None = None
    ) -> None:
        """Remove the answers of a run: those to these questions, or all."""
        questions = None if question_ids is None else as_ids(question_ids, "question_ids")
        run = _optional_id(run_id) or ""
        await self._commit(thread_id, lambda: ops.ClearAnswers(run, questions, time=now_ms(), nonce=nonce()))

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        """Start a run. RunAlreadyClaimedError or RunAlreadyCompletedError if it was started before."""
        run = as_id(run_id, "run_id")
        await self._commit(thread_id, lambda: ops.ClaimRun(run, self._claim_timeout_ms, time=now_ms(), nonce=nonce()))

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        """Complete a run; harmless when repeated. RunNotClaimedError if it was not claimed."""
        run = as_id(run_id, "run_id")
        await self._commit(thread_id, lambda: ops.CompleteRun(run, time=now_ms(), nonce=nonce()))

    async def snapshot(self, thread_id: str, *, after_run_id: str) -> list[Message]:
        """Return the messages without a run and those of the runs completed up to this one. One round trip.

        ThreadNotFoundError if the thread does not exist, RunNotCompletedError if the run is not completed.
        """
        run = as_id(after_run_id, "after_run_id")
        return await self._read(
            thread_id, lambda key: plans.snapshot(self._session.heads, key, run, self._build_messages)
        )

    async def fork(
        self, src_thread_id: str, new_thread_id: str, *, after_run_id: str, metadata: JsonObject | None = None
    ) -> None:
        """Create a thread with the messages of `snapshot`, their runs, and the extra. Four round trips.

        `metadata` becomes the entry `fork` of its extra. Messages are copied inside the database and not read. The new
        thread does not depend on the old one. Errors as for `snapshot`; ThreadAlreadyExistsError if the id is taken.
        """
        source, target = self._key(src_thread_id, "src_thread_id"), self._key(new_thread_id, "new_thread_id")
        run, fork_extra = as_id(after_run_id, "after_run_id"), _json_copy(metadata)

        def plan() -> Plan[None]:
            return plans.fork(self._session.heads, source, target, run, fork_extra, time=now_ms(), nonce=nonce())

        try:
            await self._session.aexclusive(target, plan)
        except _OURS as error:
            raise self._theirs(source, error) from _cause(error)

    def _key(self, thread_id: str, name: str = "thread_id") -> ThreadKey:
        return self._session.key(CUBE, as_id(thread_id, name))

    async def _commit(self, thread_id: str, make: Callable[[], ops.AnyOp]) -> Any:
        """Commit an op. A worker thread makes it: dumping and packing large messages would block the event loop."""
        key = self._key(thread_id)
        try:
            return await self._session.achange(key, make)
        except _OURS as error:
            raise self._theirs(key, error) from _cause(error)

    async def _read(self, thread_id: str, plan: Callable[[ThreadKey], Plan[T]]) -> T:
        key = self._key(thread_id)
        try:
            return await self._session.runner.arun(lambda: plan(key))
        except _OURS as error:
            raise self._theirs(key, error) from _cause(error)

    def _theirs(self, key: ThreadKey, error: Exception) -> Exception:
        """Return the framework's error in place of ours."""
        if isinstance(error, ops.Refused):
            return self._types.errors[error.reason](str(error))
        return self._types.corrupt(key.id, error) if isinstance(error, Corrupt) else self._types.unavailable(str(error))

    def _build_messages(self, dumped: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Build the framework's messages from plain data."""
        classes = self._types.messages
        try:
            return [classes[each["role"]](each) for each in dumped]
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"a stored message cannot be decoded: {reason(error)}") from error


def _dump_message(message: Any, types: Framework) -> dict[str, Any]:
    """Dump a message to plain data. TypeError or ValueError if it is not one of the framework's."""
    dumped = _dump_model(message) if hasattr(message, "model_dump") else message
    if type(dumped) is not dict:
        if not isinstance(dumped, Mapping):
            raise TypeError(f"messages must be CubeLoop messages, not {type(message).__name__}")
        dumped = dict(dumped)
    if dumped.get("role") not in types.messages:
        raise ValueError(f"a message's role must be one of {', '.join(types.messages)}, not {dumped.get('role')!r}")
    return dumped


def _cause(error: Exception) -> Exception | None:
    """Return the cause that a user should see: none if a call was refused."""
    return None if isinstance(error, ops.Refused) else error


def _optional_id(run_id: Any) -> str | None:
    return as_id(run_id, "run_id") if run_id is not None else None


def _dump_model(model: Any) -> Any:
    """Dump a model to JSON values. Pydantic's JSON mode is the fallback: it makes some infinite numbers None."""
    dumped = model.model_dump()
    if not is_plain_json(dumped):
        try:
            _encode_json(dumped)
        except (TypeError, ValueError):
            return model.model_dump(mode="json")
    return dumped


def _json_copy(value: Any) -> Any:
    """Return a copy of a JSON value, equal to what will be read back; models become dicts."""
    try:
        return copy_plain_json(value)
    except TypeError:
        pass
    try:
        return json.loads(json.dumps(value, default=_json_default))
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None


def _json_default(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return _dump_model(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")
