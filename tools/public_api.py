"""Everything public in threadkeep, with signatures, as text: `tests/data/public_api.txt`, which `make api` writes.

A test compares, so that no name, parameter, default or field changes by accident.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

FILE = Path(__file__).resolve().parents[1] / "tests" / "data" / "public_api.txt"
MODULES = {
    "threadkeep": "PUBLIC_NAMES",
    "threadkeep.errors": None,
    "threadkeep.agent_server": "checkpointer store",
    "threadkeep.inspector": "app",
    "threadkeep.adapters.deepagents_files": "KeepFiles",
}
"""The public modules, and their names: given here, or by a variable of the module; None stands for all own classes."""
OPTIONS = {
    "Kind": "engine.identity",
    "Match": "engine.threads.metadata",
    "Order": "engine.threads.catalogue",
    "Status": "engine.log.records",
    "Durability": "urls",
    "Group": "urls",
    "Search": "engine.memories.indexing",
    "Distance": "engine.memories.indexing",
}
"""The names in signatures that stand for a few texts, and the modules that define them."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def public_api() -> str:
    """Return a line for each public name, and for each public attribute of the classes among them."""
    options = [f"{name} = {_option(name, module)}" for name, module in OPTIONS.items()]
    names = [line for module, names in MODULES.items() for line in _module_lines(module, names)]
    return "".join(f"{line}\n" for line in [*options, *names])


def _option(name: str, module: str) -> str:
    return " | ".join(map(repr, get_args(getattr(import_module(f"threadkeep.{module}"), name))))


def _module_lines(module_name: str, names: str | None) -> Iterator[str]:
    module = import_module(module_name)
    if names is None:
        listed = sorted(name for name, value in vars(module).items() if _is_own_class(value, module_name))
    else:
        listed = list(getattr(module, names)) if names.isupper() else names.split()
    for name in listed:
        yield from _lines(f"{module_name}.{name}", getattr(module, name))


def _is_own_class(value: Any, module: str) -> bool:
    return isinstance(value, type) and value.__module__ == module


def _lines(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield from _class_lines(path, value)
    elif callable(value):
        yield f"{path}{_signature(value)}"
    else:
        yield path


def _class_lines(path: str, cls: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"{path}({bases})" if bases else path
    if dataclasses.is_dataclass(cls):
        yield from (f"{path}.{_parameter(each)}" for each in inspect.signature(cls).parameters.values())
        fields = {each.name for each in dataclasses.fields(cls)}
    else:
        fields = set[str]()
        if "__init__" in vars(cls):
            yield f"{path}.__init__{_signature(vars(cls)['__init__'])}"
        if "__annotations__" in vars(cls) and issubclass(cls, dict):
            yield from (f"{path}.{name}: {kind}" for name, kind in sorted(cls.__annotations__.items()))
    for name in sorted(name for name in vars(cls) if not name.startswith("_") and name not in fields):
        yield _attribute(f"{path}.{name}", cls, name)


def _attribute(path: str, cls: type, name: str) -> str:
    stored = inspect.getattr_static(cls, name)
    if isinstance(stored, property):
        return f"{path}: {inspect.signature(stored.fget).return_annotation}" if stored.fget is not None else path
    value = getattr(cls, name)  # makes the methods of verbs
    return f"{path}{_signature(value)}" if callable(value) else path


def _signature(value: Any) -> str:
    signature = inspect.signature(value)
    shown, star = [], False
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not star:
            shown.append("*")
        star = star or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        shown.append(_parameter(each))
    result = "" if signature.return_annotation is signature.empty else f" -> {_kind(signature.return_annotation)}"
    return f"({', '.join(shown)}){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = (
        "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    )
    kind = "" if parameter.annotation is parameter.empty else f": {_kind(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {_ADDRESS.sub('', repr(parameter.default))}"
    return f"{stars}{parameter.name}{kind}{default}"


def _kind(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def main() -> None:
    """Print the public names and signatures, or record them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="write them to the file that the test compares with")
    if parser.parse_args().write:
        FILE.write_text(public_api(), "utf-8")
    else:
        print(public_api(), end="")


if __name__ == "__main__":
    main()
