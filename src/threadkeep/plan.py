"""Plans: logic written once, for sync and async callers alike.

A plan is an `async def` that awaits only `Request`s. It touches no event loop: whoever drives it executes each
request and sends the reply back, so one `await` is one round trip, a test can feed replies by hand, and failing
the k-th request for every k enumerates every crash point.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Access(NamedTuple):
    """What executing a request means for a storage."""

    writes: bool = False
    one_statement: bool = False
    """In SQL it is one statement, which sees one moment without a transaction around it."""
    repeatable: bool = True
    """It may be executed again if nobody knows whether it was: twice is the same as once."""


READ = Access()
READ_ONE_STATEMENT = Access(one_statement=True)
WRITE = Access(writes=True, repeatable=False)
IDEMPOTENT_WRITE = Access(writes=True)
NO_ACCESS = Access()
"""The storage is not asked."""


class Request(Generic[T]):
    """Something that only the outside can do; its reply is a T. Each kind of request declares its access."""

    __slots__ = ()
    access: ClassVar[Access]

    def __await__(self) -> Generator[Request[T], T, T]:
        """Hand the request to the driver and come back with its reply."""
        return (yield self)


Plan: TypeAlias = Coroutine[Request[Any], Any, T]
Execute: TypeAlias = Callable[[Request[Any]], Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request gave."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Failure:
    """What a request, or a whole plan, raised."""

    error: BaseException


Outcome: TypeAlias = Reply | Failure


async def ask(request: Request[T]) -> T:
    """The plan that makes one request and returns its reply."""
    return await request


def resume(plan: Generator[S, Any, Any] | Coroutine[S, Any, Any], outcome: Outcome) -> S | Outcome:
    """Step a plan, or other work, once: what it asks for next, or how it ended. It is started with `Reply()`."""
    try:
        if isinstance(outcome, Failure):
            return plan.throw(outcome.error)
        return plan.send(outcome.value)
    except StopIteration as end:
        return Reply(end.value)
    except BaseException as error:  # noqa: BLE001 - the caller of the plan decides, not the driver
        return Failure(error)


def attempt(work: Callable[[], Any]) -> Outcome:
    """What some work gives or raises."""
    try:
        return Reply(work())
    except BaseException as error:  # noqa: BLE001 - whoever gets the outcome may know what to do
        return Failure(error)


def answer(execute: Execute, request: Request[Any]) -> Outcome:
    """Execute one request."""
    return attempt(lambda: execute(request))


def result(outcome: Outcome) -> Any:
    """The value of an outcome, or its exception raised."""
    if isinstance(outcome, Failure):
        raise outcome.error
    return outcome.value


def drive(plan: Plan[T], execute: Execute) -> T:
    """Run a plan to its end in this thread. Costs half a microsecond a request."""
    try:
        request = plan.send(None)
        while True:
            try:
                reply = execute(request)
            except BaseException as error:  # noqa: BLE001 - the plan decides, not the driver
                request = plan.throw(error)
            else:
                request = plan.send(reply)
    except StopIteration as end:
        value: T = end.value
        return value
