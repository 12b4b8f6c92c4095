"""Upcasters: what objects of old classes become when they are read, as the user of a Keep decided.

An upcaster is a class, the name of one, or a function that gets the stored data. Giving one is an explicit permission:
the class is imported if it is given by its name, and called. Nothing else of a row is used: not the method that it
names, and no name that has no upcaster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from threadkeep.engine.log.msgpack import KEYWORDS, POSITIONAL, PYDANTIC_1, PYDANTIC_2
from threadkeep.engine.log.type_gate import Name, import_class, type_name
from threadkeep.errors import UpcastFailed

Upcaster: TypeAlias = type | str | tuple[str, ...] | Callable[[Any], Any]
_FIELDS = (KEYWORDS, PYDANTIC_1, PYDANTIC_2)


def as_upcasters(given: Mapping[Any, Upcaster] | None) -> dict[Name, Upcaster]:
    """Return upcasters by (module, name); those that are names of classes become (module, name), too.

    TypeError or ValueError if one is not valid.
    """
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"upcasters must be a dict of old names and new classes or functions, not {given!r}")
    found: dict[Name, Upcaster] = {}
    for old, new in (given or {}).items():
        name = type_name(old, "the keys of upcasters are classes")
        if isinstance(new, (str, tuple)):
            found[name] = type_name(new, "upcasters are classes, functions")
        elif callable(new):
            found[name] = new
        else:
            raise TypeError(f"the upcaster of {'.'.join(name)} must be a class, its name or a function, not {new!r}")
    return {name: _last(found, name) for name in found}


def _last(upcasters: Mapping[Name, Upcaster], name: Name) -> Upcaster:
    """Return the upcaster of a name, or that of the class which it becomes if that has one, and so on."""
    seen, last = {name}, upcasters[name]
    while isinstance(last, (tuple, type)):
        new: Any = type_name(last, "classes")
        if new not in upcasters or new in seen:
            return last if new != name else upcasters[name]  # two classes may have exchanged their names
        seen.add(new)
        last = upcasters[new]
    return last


def upcast(name: Name, upcaster: Upcaster, code: int, stored: Any) -> Any:
    """Return what stored data becomes. UpcastFailed if the upcaster cannot be imported, or raises."""
    try:
        build: Any = import_class(upcaster) if isinstance(upcaster, tuple) else upcaster
        if not isinstance(build, type):
            return build(stored)
        if code in _FIELDS:
            return build(**_fields_for(build, stored))
        return build(*stored) if code == POSITIONAL else build(stored)
    except Exception as error:
        message = f"the upcaster of {'.'.join(name)} raised {type(error).__name__}; the stored data is intact"
        raise UpcastFailed(message) from error


def _fields_for(cls: Any, stored: Any) -> Any:
    """Return stored fields as the class takes them: a pydantic model may take a field by its alias only."""
    known, config = getattr(cls, "model_fields", None), getattr(cls, "model_config", None) or {}
    if not isinstance(known, dict) or config.get("populate_by_name") or config.get("validate_by_name"):
        return stored
    aliases = {name: getattr(field, "validation_alias", None) for name, field in known.items()}
    return {alias if isinstance(alias := aliases.get(key), str) else key: value for key, value in stored.items()}
