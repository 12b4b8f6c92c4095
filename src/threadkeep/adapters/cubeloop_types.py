"""The classes of the installed agent framework: CubeLoop, or CubePi, its former name.

CubePi 0.14 and later are empty packages and count as not installed. Older versions lack some features, such as runs and
their errors, and do not call for them; error classes that are missing are defined here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from threadkeep.engine.cube import ops
from threadkeep.errors import Corrupt, ThreadkeepError, Unavailable

_FRAMEWORKS = ("cubeloop", "cubepi")
_ERROR_NAMES = {
    ops.CLAIMED_ALREADY: "RunAlreadyClaimedError",
    ops.COMPLETED_ALREADY: "RunAlreadyCompletedError",
    ops.NOT_CLAIMED: "RunNotClaimedError",
    ops.NOT_COMPLETED: "RunNotCompletedError",
    ops.NO_THREAD: "ThreadNotFoundError",
    ops.THREAD_EXISTS: "ThreadAlreadyExistsError",
}


@dataclass(frozen=True, slots=True)
class Framework:
    """The classes that a checkpointer returns and raises: data, messages by role, requests, and errors by reason."""

    data: Callable[..., Any]
    knows_parents: bool
    messages: Mapping[str, Callable[[Any], Any]]
    request: Callable[[Any], Any]
    errors: Mapping[str, type[Exception]]
    unavailable: type[Exception]
    corrupt: Callable[[str, BaseException], Exception]


@cache
def framework() -> Framework:
    """Return the installed framework; ImportError if there is none."""
    for name in _FRAMEWORKS:
        base, providers = _import_optional(f"{name}.checkpointer.base"), _import_optional(f"{name}.providers.base")
        if base is not None and providers is not None:
            return _framework(name, base, providers)
    raise ImportError('keep.cube needs CubeLoop: pip install "threadkeep[cube]" (or cubepi before 0.14)')


def _import_optional(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise
    except ImportError:
        if name.startswith("cubepi."):  # 0.14 and later only raise an error that names the new package
            return None
        raise


def _framework(name: str, base: ModuleType, providers: ModuleType) -> Framework:
    classes = (providers.UserMessage, providers.AssistantMessage, providers.ToolResultMessage)
    hitl = _import_optional(f"{name}.hitl.types")
    errors = _import_optional(f"{name}.checkpointer.exceptions")
    root = _error_class(errors, "CheckpointerError", ThreadkeepError)
    return Framework(
        data=base.CheckpointData,
        knows_parents="parent_thread_id" in base.CheckpointData.__dataclass_fields__,
        # What `model_validate` calls, in a fifth of the steps.
        messages={each.model_fields["role"].default: each.__pydantic_validator__.validate_python for each in classes},
        request=hitl.HitlRequest.model_validate if hitl is not None else dict,
        errors={reason: _error_class(errors, error, root) for reason, error in _ERROR_NAMES.items()},
        unavailable=_combine_errors(_error_class(errors, "CheckpointerLockTimeoutError", root), Unavailable),
        corrupt=_corruption_error(errors, root),
    )


def _error_class(errors: ModuleType | None, name: str, base: type[Exception]) -> type[Exception]:
    found: type[Exception] = getattr(errors, name, None) or type(name, (base,), {"__doc__": None})
    return found


def _combine_errors(theirs: type[Exception], ours: type[Exception]) -> type[Exception]:
    """Return an error class that is caught as the framework's and as ours."""
    return type(theirs.__name__, (theirs, ours), {"__doc__": ours.__doc__}) if not issubclass(theirs, ours) else theirs


def _corruption_error(errors: ModuleType | None, root: type[Exception]) -> Callable[[str, BaseException], Exception]:
    found = getattr(errors, "CheckpointCorruptionError", None)
    if found is None:
        return lambda _, cause: _combine_errors(root, Corrupt)(str(cause))
    both: Callable[..., Exception] = _combine_errors(found, Corrupt)
    return lambda thread, cause: both(thread_id=thread, backend="threadkeep", row_ref=str(cause), cause=cause)
