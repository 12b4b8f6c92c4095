"""The type gate: what a stored row may become. Reading a row never runs code that the row chose.

A stored object names its class; whoever can write a row can name any callable. So a name is followed only if it is

1. on LangGraph's own safe list (messages, datetimes, sets, Send, Interrupt ...), or
2. given by the user, exactly (`allowed_types=`, LangGraph's allowlists), or
3. a data carrier whose module is already imported: a dataclass, an enum, a named tuple, or a pydantic model that is
   no Runnable. LangGraph's strict mode and `with_allowlist` switch this third rule off.

Nothing is imported because a row says so, and anything else comes back as the plain data it was stored from.
What is not guarded: the constructors and validators of the data carriers themselves do run.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal, TypeAlias

import ormsgpack
from langgraph.checkpoint.serde import _msgpack
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.event_hooks import emit_serde_event
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.engine.log.messages import quick_builder

Name: TypeAlias = tuple[str, ...]
AllowedType: TypeAlias = type | str | tuple[str, ...]
Build: TypeAlias = Callable[[Any], Any]

_SAFE: frozenset[Name] = _msgpack.SAFE_MSGPACK_TYPES | {
    ("pydantic.types", "SecretStr"),
    ("pydantic.types", "SecretBytes"),
}
_SINGLE, _POSITIONAL, _KEYWORDS, _METHOD, _PYDANTIC_1, _PYDANTIC_2, _NUMPY, _SNAPSHOT = range(8)
_log = logging.getLogger(__name__)


class KeepSerializer(JsonPlusSerializer):
    """LangGraph's serializer behind the gate: it writes the same bytes and reads no more than it may."""

    def __init__(
        self,
        *,
        allowed_types: Iterable[AllowedType] = (),
        pickle_fallback: bool = False,
        strict: bool = _msgpack.STRICT_MSGPACK_ENABLED,
        allowed_json_modules: Iterable[Name] | Literal[True] | None = None,
    ) -> None:
        self.allowed = frozenset(map(type_name, allowed_types))
        self.strict = strict
        self._warned: set[Name] = set()
        super().__init__(
            pickle_fallback=pickle_fallback,
            allowed_json_modules=allowed_json_modules,
            allowed_msgpack_modules=self.allowed or None,
            __unpack_ext_hook__=self._revive,
        )

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[Name | type]) -> KeepSerializer:
        """Narrow to the safe list and exact names: those allowed before and these."""
        return KeepSerializer(
            allowed_types=self.allowed | set(map(type_name, extra_allowlist)),
            pickle_fallback=self.pickle_fallback,
            strict=True,
            allowed_json_modules=self._allowed_json_modules,
        )

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The stored value; `json` and `msgpack` go through the gate, `pickle` only where it was asked for."""
        if data[0] == "msgpack":
            return self._unpack(data[1])
        if data[0] == "json":
            return json.loads(data[1], object_hook=self._revive_json)
        return super().loads_typed(data)

    def _unpack(self, data: bytes) -> Any:
        return ormsgpack.unpackb(data, ext_hook=self._revive, option=ormsgpack.OPT_NON_STR_KEYS)

    def _revive(self, code: int, data: bytes) -> Any:
        """An extension value of msgpack: the object, or its plain data where the gate is shut or the class fails."""
        value = ormsgpack.unpackb(data, ext_hook=self._revive, option=ormsgpack.OPT_NON_STR_KEYS)
        if code >= _NUMPY:
            return _DeltaSnapshot(value) if code == _SNAPSHOT else _numpy_array(value) if code == _NUMPY else None
        if not _names_a_class(value):
            return None
        name = (value[0], value[1])
        build = _safe_builder(code, name) if name in _SAFE and code != _METHOD else self._builder(code, name, value)
        if build is None:
            self._refused(value[0], value[1])
            return value[2]
        try:
            return build(value[2])
        except Exception as error:  # noqa: BLE001 - as LangGraph does: a class that changed must not lose the data
            self._tell((value[0], value[1]), "Could not rebuild %s.%s (%s); its stored data is returned", error)
            return value[2]

    def _builder(self, code: int, name: Name, value: list[Any]) -> Build | None:
        if code == _METHOD:
            known = len(value) > 3 and (*name, value[3]) in _msgpack.SAFE_MSGPACK_METHODS
            return getattr(_named(name), value[3]) if known else None
        if name in self.allowed:
            return _calling(code, _named(name))
        return None if self.strict else _carrier(code, _imported(name))

    def _revive_json(self, value: dict[str, Any]) -> Any:
        """A JSON object written by old savers: `lc` 1 and 2 name a class; secrets are never looked up."""
        name = _json_name(value)
        if name is None:
            return value
        cls = self._json_class(name)
        if cls is None:
            self._refused(".".join(name[:-1]), name[-1])
            return value
        known = (".".join(name[:-1]), name[-1], value.get("method"))
        build = getattr(cls, known[2]) if known in _msgpack.SAFE_MSGPACK_METHODS else cls
        try:
            return build(*(value.get("args") or ()), **(value.get("kwargs") or {}))
        except Exception as error:  # noqa: BLE001 - as above
            self._tell(name, "Could not rebuild %s.%s (%s); its stored data is returned", error)
            return value

    def _json_class(self, name: Name) -> Any:
        flat = (".".join(name[:-1]), name[-1])
        listed = self._allowed_json_modules
        if flat in _SAFE or flat in self.allowed or listed is True or (listed and name in listed):
            return _named(flat)
        found = None if self.strict else _imported(flat)
        return found if found is not None and _carrier_kind(found) is not None else None

    def _refused(self, module: str, name: str) -> None:
        emit_serde_event({"kind": "msgpack_blocked", "module": module, "name": name})
        self._tell(
            (module, name),
            "Blocked deserialization of %s.%s: the type is not allowed. A blocked type is returned as its stored data. "
            "Import its module first, or add the type to allowed_types=",
        )

    def _tell(self, name: Name, text: str, *details: object) -> None:
        if name not in self._warned and len(self._warned) < 1000:
            self._warned.add(name)
            _log.warning(text, ".".join(name[:-1]), name[-1], *details)


def gated(serde: Any) -> Any:
    """The same serializer with the gate where LangGraph's own has none. A foreign serializer stays as it is."""
    if type(serde) is JsonPlusSerializer and not serde._custom_unpack_ext_hook:  # noqa: SLF001 - no public way
        allowed = serde._allowed_msgpack_modules  # noqa: SLF001
        return KeepSerializer(
            allowed_types=() if allowed is True else allowed or (),
            pickle_fallback=serde.pickle_fallback,
            strict=allowed is not True,
            allowed_json_modules=serde._allowed_json_modules,  # noqa: SLF001
        )
    if type(serde) is EncryptedSerializer:
        return EncryptedSerializer(serde.cipher, gated(serde.serde))
    return serde


def type_name(allowed: AllowedType) -> Name:
    """(module, name) of a class, of 'module.Name', of 'module:Name' or of a (module, name) pair."""
    if isinstance(allowed, type):
        return (allowed.__module__, allowed.__name__)
    if isinstance(allowed, tuple) and len(allowed) == 2 and all(isinstance(part, str) for part in allowed):
        return allowed
    if isinstance(allowed, str):
        module, _, name = allowed.replace(":", ".").rpartition(".")
        if module and name:
            return (module, name)
    raise ValueError(f"allowed_types takes classes, 'module.Name' or ('module', 'Name'), not {allowed!r}")


def _names_a_class(value: Any) -> bool:
    return type(value) is list and len(value) >= 3 and type(value[0]) is str and type(value[1]) is str


def _named(name: Name) -> Any:
    """What an allowed name stands for. Only names from a list come here, so importing is the lister's wish."""
    return getattr(importlib.import_module(name[0]), name[1])


def _imported(name: Name) -> type | None:
    """A class of a module that is imported already, looked up without triggering module-level __getattr__."""
    module = sys.modules.get(name[0])
    found = vars(module).get(name[1]) if isinstance(module, ModuleType) else None
    if isinstance(found, type) and found.__module__ == name[0] and found.__name__ == name[1]:
        return found
    return None


def _calling(code: int, target: Any) -> Build | None:
    if code in (_PYDANTIC_1, _PYDANTIC_2):
        return lambda fields: _model(target, fields)
    if code == _POSITIONAL:
        return lambda args: _positional(target, args)
    if code == _KEYWORDS:
        return lambda fields: target(**fields)
    return target if code == _SINGLE else None


@lru_cache(maxsize=256)
def _safe_builder(code: int, name: Name) -> Build | None:
    """How to rebuild a type of the safe list; messages, of which there are many, the quick way."""
    target = _named(name)
    usual = _calling(code, target)
    return quick_builder(target, usual) if code == _PYDANTIC_2 and usual is not None else usual


def _carrier(code: int, cls: type | None) -> Build | None:
    """How to rebuild a data carrier, if that is what the class is and the code is the one it is stored under."""
    if cls is None or _carrier_kind(cls) != code:
        return None
    return _calling(code, cls)


@lru_cache(maxsize=4096)
def _carrier_kind(cls: type) -> int | None:
    """The extension code that this class is stored under if it is a data carrier."""
    runnable = getattr(sys.modules.get("langchain_core.runnables.base"), "Runnable", None)
    if runnable is not None and issubclass(cls, runnable):
        return None
    if issubclass(cls, Enum):
        return _SINGLE
    if hasattr(cls, "model_fields") and hasattr(cls, "model_construct") and hasattr(cls, "model_dump"):
        return _PYDANTIC_2
    if hasattr(cls, "__fields__") and hasattr(cls, "construct"):
        return _PYDANTIC_1
    if dataclasses.is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return _KEYWORDS
    return None


def _model(cls: Any, fields: dict[str, Any]) -> Any:
    """A pydantic model; one whose validation fails today is rebuilt without validation, as LangGraph does."""
    try:
        return cls(**fields)
    except Exception:  # noqa: BLE001 - any validator may raise anything
        return (cls.model_construct if hasattr(cls, "model_construct") else cls.construct)(**fields)


def _positional(target: Any, args: list[Any]) -> Any:
    if len(args) == 3 and (target.__module__, getattr(target, "__name__", "")) == ("langgraph.types", "Send"):
        return target(args[0], args[1], timeout=args[2])
    return target(*args)


def _numpy_array(value: Any) -> Any:
    import numpy as np  # noqa: PLC0415 - 100 ms that most processes never need

    try:
        dtype, shape, order, buffer = value
        return np.frombuffer(buffer, dtype=np.dtype(dtype)).reshape(shape, order=order)
    except (TypeError, ValueError):
        return None


_MOVED: dict[Name, Name] = {("langgraph", "constants", "Send"): ("langgraph", "types", "Send")}
"""Where old JSON rows name a class that is elsewhere today."""


def _json_name(value: dict[str, Any]) -> Name | None:
    path = value.get("id")
    if value.get("type") != "constructor" or value.get("lc") not in (1, 2) or not isinstance(path, list):
        return None
    if len(path) < 2 or not all(isinstance(part, str) for part in path):
        return None
    return _MOVED.get(tuple(path), tuple(path)) if value["lc"] == 2 else _current_name(tuple(path))


def _current_name(path: Name) -> Name:
    """LangChain's own names of the past, as they are today."""
    from langchain_core.load.mapping import (  # noqa: PLC0415 - only old JSON rows need it
        OLD_CORE_NAMESPACES_MAPPING,
        SERIALIZABLE_MAPPING,
    )

    return SERIALIZABLE_MAPPING.get(path) or OLD_CORE_NAMESPACES_MAPPING.get(path) or path
