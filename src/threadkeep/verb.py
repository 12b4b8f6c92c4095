"""Make the sync and the async method of a Keep from one function: `tree, atree = verb(history.tree)`.

Both methods have the function's parameters, docstring and result type, for type checkers and for `help`. They differ
only in how they run it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, overload

from threadkeep.drivers.loops import run_in_thread
from threadkeep.plan import Plan
from threadkeep.session import Session
from threadkeep.work import Work, read

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
F = TypeVar("F", bound=Callable[..., Any])
SyncVerb: TypeAlias = Callable[Concatenate[Any, P], T]
AsyncVerb: TypeAlias = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


@overload
def verb(body: Callable[Concatenate[Session, P], Work[T]]) -> tuple[SyncVerb[P, T], AsyncVerb[P, T]]: ...
@overload
def verb(body: Callable[Concatenate[Session, P], Plan[T]]) -> tuple[SyncVerb[P, T], AsyncVerb[P, T]]: ...
def verb(body: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make both methods from a function of the Session that returns a Work, or from a plan that only reads."""
    return _make_both(body, attrgetter("_session"))


def keep_verb(body: Callable[Concatenate[K, P], Work[T]]) -> tuple[SyncVerb[P, T], AsyncVerb[P, T]]:
    """Make both methods from a method of the Keep that returns a Work, if it needs more than the Session."""
    return _make_both(body, lambda keep: keep)


def blocking_verb(body: Callable[P, T]) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Make both from a function that blocks, for example on files. For async callers it runs in a thread.

    If the async caller is cancelled, the thread still runs to its end.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return body(*args, **kwargs)

    async def acall(*args: P.args, **kwargs: P.kwargs) -> T:
        return await run_in_thread(partial(body, *args, **kwargs))

    in_class = next(iter(inspect.signature(body).parameters), "") == "self"
    return _like_body(call, body, "", in_class=in_class), _like_body(acall, body, "a", in_class=in_class)


def _make_both(
    body: Callable[..., Any], first_argument: Callable[[Any], Any]
) -> tuple[Callable[..., Any], Callable[..., Coroutine[Any, Any, Any]]]:
    work = _as_work(body) if inspect.iscoroutinefunction(body) else body

    def call(keep: Any, *args: Any, **kwargs: Any) -> Any:
        return keep._session.work(work(first_argument(keep), *args, **kwargs))  # noqa: SLF001 - the same package

    async def acall(keep: Any, *args: Any, **kwargs: Any) -> Any:
        return await keep._session.awork(work(first_argument(keep), *args, **kwargs))  # noqa: SLF001 - the same package

    return _like_body(call, body, "", in_class=True), _like_body(acall, body, "a", in_class=True)


def _as_work(plan: Callable[..., Plan[T]]) -> Callable[..., Work[T]]:
    return lambda *args, **kwargs: read(partial(plan, *args, **kwargs))


def _like_body(made: F, body: Callable[..., Any], prefix: str, *, in_class: bool) -> F:
    """Give a function its name, and the docstring and signature of the body. A method's first parameter is self."""
    wraps(body)(made)
    name = prefix + body.__name__.lstrip("_")
    signature = inspect.signature(body)
    parameters = list(signature.parameters.values())
    if in_class:
        parameters[0] = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    result = str(signature.return_annotation)
    result = result[len("Work[") : -1] if result.startswith("Work[") else result
    made.__name__, made.__qualname__ = name, f"Keep.{name}" if in_class else name
    made.__annotations__ = {each.name: each.annotation for each in parameters[in_class:]} | {"return": result}
    shown = signature.replace(parameters=parameters, return_annotation=result)
    made.__signature__ = shown  # type: ignore[attr-defined]
    return made
