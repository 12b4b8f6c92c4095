"""Verbs of a Keep: each is written once, and called sync or async.

`tree, atree = verb(look.tree)` in the class makes both. They have the body's parameters, docstring and result, for
type checkers and for `help`; how they are driven is the only difference.
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
    """Make the methods of a Keep from a function of its Session that returns a Work, or from a plan that only reads."""
    return _both(body, attrgetter("_session"))


def keep_verb(body: Callable[Concatenate[K, P], Work[T]]) -> tuple[SyncVerb[P, T], AsyncVerb[P, T]]:
    """The same from a method of the Keep, for what needs more of it than its Session."""
    return _both(body, lambda keep: keep)


def blocking_verb(body: Callable[P, T]) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Make both from a function that blocks, on files for example. For async callers it runs in a thread of its own.

    If such a caller is cancelled, the thread still finishes.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return body(*args, **kwargs)

    async def acall(*args: P.args, **kwargs: P.kwargs) -> T:
        return await run_in_thread(partial(body, *args, **kwargs))

    in_class = next(iter(inspect.signature(body).parameters), "") == "self"
    return _named(call, body, "", in_class=in_class), _named(acall, body, "a", in_class=in_class)


def _both(
    body: Callable[..., Any], first: Callable[[Any], Any]
) -> tuple[Callable[..., Any], Callable[..., Coroutine[Any, Any, Any]]]:
    work = _reading(body) if inspect.iscoroutinefunction(body) else body

    def call(keep: Any, *args: Any, **kwargs: Any) -> Any:
        return keep._session.work(work(first(keep), *args, **kwargs))  # noqa: SLF001 - of the same package

    async def acall(keep: Any, *args: Any, **kwargs: Any) -> Any:
        return await keep._session.awork(work(first(keep), *args, **kwargs))  # noqa: SLF001 - of the same package

    return _named(call, body, "", in_class=True), _named(acall, body, "a", in_class=True)


def _reading(plan: Callable[..., Plan[T]]) -> Callable[..., Work[T]]:
    return lambda *args, **kwargs: read(partial(plan, *args, **kwargs))


def _named(made: F, body: Callable[..., Any], prefix: str, *, in_class: bool) -> F:
    """Give what was made its name, and the docstring and signature of the body; in a class, `self` is the first."""
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
    made.__signature__ = signature.replace(parameters=parameters, return_annotation=result)  # type: ignore[attr-defined]
    return made
