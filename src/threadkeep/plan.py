"""Plans: logic that is written once and runs for sync and async callers alike.

A plan is an `async def` that awaits nothing but `Request`s:

    async def thread_row(key: ThreadKey) -> ThreadRow | None:
        loaded = await LoadItems(key, ())
        return loaded.thread

A plan does no I/O and knows no event loop. Its driver executes each request against the storage, in this thread or in
another, and resumes the plan with the reply. So one `await` is one round trip, a test can feed replies by hand, and
failing the k-th request for every k covers every point where a process can die.

`threadkeep.engine.requests` has the requests, `threadkeep.drivers.runner` the driver that a Keep uses.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from threadkeep.value import Value

T = TypeVar("T")
S = TypeVar("S")


class Access(NamedTuple):
    """How a request uses the storage. Transports decide by this how to execute it."""

    writes: bool = False
    one_statement: bool = False
    """In SQL it is a single statement, which is consistent without a transaction around it."""
    repeatable: bool = True
    """It may be sent again if the reply was lost: executing it twice has the effect of once."""
    subject: str = "threads"
    """What it is about: `threads`, `memories`, or the `storage` as a whole, its files and settings. Code for the other
    two is imported when the first such request comes."""


READ = Access()
READ_ONE_STATEMENT = Access(one_statement=True)
WRITE = Access(writes=True, repeatable=False)
IDEMPOTENT_WRITE = Access(writes=True)
NO_ACCESS = Access()
"""For requests that do not use the storage, such as Pause."""


class Request(Value, Generic[T]):
    """Something that the driver of a plan must do; its reply is a T. Each class of requests declares its access."""

    access: ClassVar[Access]
    is_refused: ClassVar[bool] = False
    """Of a change: whether the storage refuses it if the tenant is encrypted and the caller does not know.

    Also true if there is nothing to refuse.
    """

    def says_nothing(self, reply: Any) -> bool:
        """Whether all that this reply could say may be there, but encrypted, for a caller without keys."""
        return not reply

    def __await__(self) -> Generator[Request[T], T, T]:
        """Pass the request to the driver and return its reply."""
        return (yield self)


Plan: TypeAlias = Coroutine[Request[Any], Any, T]
Execute: TypeAlias = Callable[[Request[Any]], Any]


class Reply(Value):
    """The value that a request, a plan or an op returned."""

    value: Any = None


class Failure(Value):
    """The exception that a request, a plan or an op raised."""

    error: BaseException


Outcome: TypeAlias = Reply | Failure


async def send(request: Request[T]) -> T:
    """Make one request and return its reply, as a plan."""
    return await request


def resume(plan: Generator[S, Any, Any] | Coroutine[S, Any, Any], outcome: Outcome) -> S | Outcome:
    """Run a plan, or a `Work`, up to its next request, and return that; at its end, return its outcome.

    `outcome` is that of the request before. Start with `Reply()`.
    """
    try:
        if isinstance(outcome, Failure):
            return plan.throw(outcome.error)
        return plan.send(outcome.value)
    except StopIteration as end:
        return Reply(end.value)
    except BaseException as error:  # noqa: BLE001 - the caller of the plan decides, not the driver
        return Failure(error)


def try_call(work: Callable[[], Any]) -> Outcome:
    """Call a function and return its outcome."""
    try:
        return Reply(work())
    except BaseException as error:  # noqa: BLE001 - whoever gets the outcome may know what to do
        return Failure(error)


def try_execute(execute: Execute, request: Request[Any]) -> Outcome:
    """Execute one request and return its outcome."""
    return try_call(lambda: execute(request))


def result(outcome: Outcome) -> Any:
    """Return the value of an outcome, or raise its exception."""
    if isinstance(outcome, Failure):
        raise outcome.error
    return outcome.value


def drive(plan: Plan[T], execute: Execute) -> T:
    """Run a plan to its end in this thread. Costs half a microsecond per request."""
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
