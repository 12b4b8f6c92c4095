"""Generates docs/reference/docstrings.md: every public name with its signature and its docstring."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import threadkeep
from threadkeep import errors
from threadkeep.adapters.cubeloop import KeepCube
from threadkeep.adapters.deepagents_files import KeepFiles

WIDTH = 110
"""A signature that is longer has one parameter on each line."""
HEAD = """# Docstrings

What `help()` says: the contract of every public name, with its signature, in the words of the source. The [API page](api.md) has the same names in tables, with links to the guides. This page is generated (`make generate`).

An async method has the parameters and the contract of the sync one, so both share an entry.
"""
MODULE = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z_])")
STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
OBJECTS: tuple[type, ...] = (
    threadkeep.Keep,
    threadkeep.KeepSaver,
    threadkeep.KeepStore,
    threadkeep.KeepCache,
    KeepCube,
    KeepFiles,
    threadkeep.Lease,
    threadkeep.Keys,
    threadkeep.Policy,
    threadkeep.Metrics,
)
"""The classes whose objects a program uses. All others in `threadkeep.PUBLIC_NAMES` are results of verbs."""


def page() -> str:
    """Return the whole page."""
    public = {name: getattr(threadkeep, name) for name in threadkeep.PUBLIC_NAMES}
    functions = {name: value for name, value in public.items() if inspect.isfunction(value)}
    results = [value for value in public.values() if inspect.isclass(value) and value not in OBJECTS]
    raised = [value for value in vars(errors).values() if inspect.isclass(value)]
    return (
        "\n\n".join(
            [
                HEAD.rstrip(),
                "## Functions",
                *_members(functions, prefix="threadkeep."),
                *(part for owner in OBJECTS for part in _class(owner, "##")),
                "## Results",
                *(part for result in results for part in _class(result, "###")),
                "## Errors",
                text(errors),
                *(part for error in raised for part in (f"### {error.__name__}", text(error))),
            ]
        )
        + "\n"
    )


def _class(owner: type, heading: str) -> Iterator[str]:
    yield f"{heading} {owner.__name__}"
    if dataclasses.is_dataclass(owner) or owner in (threadkeep.Keys, threadkeep.Policy):
        yield _code(_signature(owner.__name__, owner))
    yield text(owner)
    yield from _members(_own_members(owner), prefix="", heading=heading + "#")


def _own_members(owner: type) -> dict[str, Any]:
    """Return the public methods and properties that this class and its bases in threadkeep define, as they are found."""
    ours = [base for base in owner.__mro__ if base.__module__.startswith("threadkeep")]
    names = dict.fromkeys(name for base in ours for name in vars(base) if not name.startswith("_"))
    fields = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    found = {name: inspect.getattr_static(owner, name) for name in names if name not in fields}
    return {
        name: member if isinstance(member, property | cached_property) else getattr(owner, name)
        for name, member in found.items()
        if isinstance(member, property | cached_property) or callable(getattr(owner, name, None))
    }


def _members(members: Mapping[str, Any], *, prefix: str, heading: str = "###") -> Iterator[str]:
    """Yield the entries of some members. The async form of one has no entry of its own."""
    twins = {f"a{name}": name for name in members if f"a{name}" in members}
    for name, member in members.items():
        if name in twins:
            continue
        also = f", `{prefix}a{name}`" if f"a{name}" in twins else ""
        yield f"{heading} `{prefix}{name}`{also}"
        if not isinstance(member, property | cached_property):
            yield _code(_signature(prefix + name, member))
        yield text(member)


def _code(signature: str) -> str:
    return f"```text\n{signature}\n```"


def _signature(name: str, value: Callable[..., Any]) -> str:
    """Return a signature as it is written in the source, without `self`."""
    signature = inspect.signature(value)
    parameters = list(_parameters(signature))
    returned = "" if inspect.isclass(value) else _annotation(signature.return_annotation)
    gives = "" if returned in ("", "None") else f" -> {returned}"
    line = f"{name}({', '.join(parameters)}){gives}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){gives}"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    is_positional = True
    for name, parameter in signature.parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and is_positional:
            is_positional = False
            yield "*"
        annotation = _annotation(parameter.annotation)
        stars = STARS.get(parameter.kind, "")
        default = _default(parameter.default)
        equals = (" = " if annotation else "=") if default else ""
        yield f"{stars}{name}{f': {annotation}' if annotation else ''}{equals}{default}"


def _default(value: Any) -> str:
    """Return a default as it is written in the source; "" if there is none, "..." if it is made anew for each object."""
    if value is inspect.Parameter.empty:
        return ""
    written = repr(value)
    return "..." if written.startswith("<") else written


def _annotation(annotation: Any) -> str:
    """Return an annotation without the names of modules; "" if there is none."""
    if annotation is inspect.Parameter.empty:
        return ""
    written = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return MODULE.sub("", written)


def text(value: Any) -> str:
    """Return a docstring as Markdown; ValueError if there is none."""
    found = inspect.getdoc(value)
    if not found:
        raise ValueError(f"{value} has no docstring")
    return found.strip()
