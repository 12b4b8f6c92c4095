"""Make the sync and the async method of a Keep from one function: `tree, atree = verb(lambda: jobs.history.tree)`.

Both methods have the function's parameters, docstring and result type, for type checkers and for `help`. They differ
only in how they run it. They are made when one of them is first used: until then, the module of the function is not
imported. So opening a Keep does not import the modules of all its verbs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, overload

from threadkeep.drivers.loops import run_in_thread
from threadkeep.plan import Plan
from threadkeep.session import Session

if TYPE_CHECKING:
    from threadkeep.work import Work

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K")
F = TypeVar("F", bound=Callable[..., Any])
SyncVerb: TypeAlias = Callable[Concatenate[Any, P], T]
AsyncVerb: TypeAlias = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


@overload
def verb(
    find: Callable[[], Callable[Concatenate[Session, P], Work[T]]],
) -> tuple[SyncVerb[P, T], AsyncVerb[P, T]]: ...
@overload
def verb(
    find: Callable[[], Callable[Concatenate[Session, P], Plan[T]]],
) -> tuple[SyncVerb[P, T], AsyncVerb[P, T]]: ...
def verb(find: Callable[[], Callable[..., Any]]) -> tuple[Any, Any]:
    """Make both methods from a function of the Session that returns a Work, or from a plan that only reads."""
    return _methods(lambda: _make_both(find(), attrgetter("_session")))


def keep_verb(find: Callable[[], Callable[Concatenate[K, P], Work[T]]]) -> tuple[SyncVerb[P, T], AsyncVerb[P, T]]:
    """Make both methods from a function of the Keep that returns a Work, if it needs more than the Session."""
    return _methods(lambda: _make_both(find(), lambda keep: keep))


def blocking_keep_verb(find: Callable[[], Callable[Concatenate[K, P], T]]) -> tuple[SyncVerb[P, T], AsyncVerb[P, T]]:
    """Make both methods from a function of the Keep that blocks, for example on files.

    For async callers it runs in a thread. If the async caller is cancelled, the thread still runs to its end.
    """
    return _methods(lambda: _make_both_blocking(find(), in_class=True))


def blocking_verb(body: Callable[P, T]) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Make a sync and an async function, not methods, from one that blocks."""
    return _make_both_blocking(body, in_class=False)


class _Method:
    """A method that replaces itself by the real one when it is first used."""

    def __init__(self, make: Callable[[], tuple[Callable[..., Any], ...]]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: Any, owner: type) -> Any:
        for method in self._make():
            setattr(self._owner, method.__name__, method)
        return getattr(owner if instance is None else instance, self._name)


def _methods(make: Callable[[], tuple[Callable[..., Any], Callable[..., Any]]]) -> tuple[Any, Any]:
    return _Method(make), _Method(make)


def _make_both_blocking(
    body: Callable[..., Any], *, in_class: bool
) -> tuple[Callable[..., Any], Callable[..., Coroutine[Any, Any, Any]]]:
    name = f"keep.{body.__name__.lstrip('_')}"

    def measured(args: tuple[Any, ...]) -> AbstractContextManager[None]:
        session: Session | None = args[0]._session if in_class else None  # noqa: SLF001 - the same package
        return session.measure(name) if session is not None else nullcontext()

    def call(*args: Any, **kwargs: Any) -> Any:
        with measured(args):
            return body(*args, **kwargs)

    async def acall(*args: Any, **kwargs: Any) -> Any:
        with measured(args):
            return await run_in_thread(partial(body, *args, **kwargs))

    return _like_body(call, body, "", in_class=in_class), _like_body(acall, body, "a", in_class=in_class)


def _make_both(
    body: Callable[..., Any], first_argument: Callable[[Any], Any]
) -> tuple[Callable[..., Any], Callable[..., Coroutine[Any, Any, Any]]]:
    work = _as_work(body) if inspect.iscoroutinefunction(body) else body
    name = f"keep.{body.__name__.lstrip('_')}"

    def call(keep: Any, *args: Any, **kwargs: Any) -> Any:
        session: Session = keep._session  # noqa: SLF001 - the same package
        with session.measure(name):
            return session.work(work(first_argument(keep), *args, **kwargs))

    async def acall(keep: Any, *args: Any, **kwargs: Any) -> Any:
        session: Session = keep._session  # noqa: SLF001 - the same package
        with session.measure(name):
            return await session.awork(work(first_argument(keep), *args, **kwargs))

    return _like_body(call, body, "", in_class=True), _like_body(acall, body, "a", in_class=True)


def _as_work(plan: Callable[..., Plan[T]]) -> Callable[..., Work[T]]:
    from threadkeep.work import read  # noqa: PLC0415 - a Keep that only opens adapters does not need it

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
