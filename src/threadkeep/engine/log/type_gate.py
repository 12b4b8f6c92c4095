"""The type gate: which classes a stored value may become. Reading a row never runs code that the row chose.

A stored object names its class, so whoever can write a row can name any callable. A name is used only if it is

1. on LangGraph's own safe list (messages, datetimes, sets, Send, Interrupt ...), or
2. allowed by the user, exactly (`allowed_types=`, LangGraph's allowlists, `upcasters=`), or
3. a data class whose module is already imported: a dataclass, an enum, a named tuple, or a pydantic model that is not
   a Runnable. LangGraph's strict mode and `with_allowlist` switch this third rule off.

Nothing is imported because a row names it. An object of any other class is returned as the plain data that was stored.
Not guarded: the constructors and validators of these data classes do run.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from enum import Enum
from functools import lru_cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import ormsgpack
from langgraph.checkpoint.serde import _msgpack
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.event_hooks import emit_serde_event
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from threadkeep.engine.log import encoder
from threadkeep.engine.log.messages import quick_builder
from threadkeep.engine.log.msgpack import (
    INSIDE_AN_OBJECT,
    JSON,
    KEYWORDS,
    METHOD,
    NUMPY,
    OPAQUE,
    POSITIONAL,
    PYDANTIC_1,
    PYDANTIC_2,
    SINGLE,
    SNAPSHOT,
    hook_inside,
)
from threadkeep.errors import UpcastFailed

if TYPE_CHECKING:
    from threadkeep.engine.log.type_names import StoredClass
    from threadkeep.engine.log.upcasters import Upcaster

Name: TypeAlias = tuple[str, ...]
AllowedType: TypeAlias = type | str | tuple[str, ...]
Build: TypeAlias = Callable[[Any], Any]

_SAFE: frozenset[Name] = _msgpack.SAFE_MSGPACK_TYPES | {
    ("pydantic.types", "SecretStr"),
    ("pydantic.types", "SecretBytes"),
}
_log = logging.getLogger(__name__)
_BLOCKED = (
    "Blocked deserialization of %s.%s: the type is not allowed. A blocked type is returned as its stored data. "
    "Import its module first, or add the type to allowed_types="
)
# The error is named only: its text may contain the data.
_NOT_REBUILT = "Could not rebuild %s.%s (%s); its stored data is returned"
_raised: ContextVar[UpcastFailed | ImportError | None] = ContextVar("raised", default=None)
"""What an upcaster raised, or that numpy is missing. ormsgpack does not pass on the exceptions of its hook."""


SAFE, ALLOWED, UPCAST, IMPORTED = "safe", "allowed", "upcast", "imported"
"""Verdicts on a stored class that is rebuilt: LangGraph's list, `allowed_types`, `upcasters`, imported data classes."""
NOT_IMPORTED, NO_CLASS, NOT_DATA, OTHER_FORM, NOT_ALLOWED = (
    "not imported",
    "no such class",
    "not a data class",
    "stored in another form",
    "not allowed",
)
"""Verdicts on a stored class whose objects are read as plain data, and why."""


class KeepSerializer(JsonPlusSerializer):
    """LangGraph's serializer with the type gate: it writes the same bytes, and builds only allowed classes.

    Other than LangGraph's, it keeps lone surrogates (see `encoder`).
    """

    def __init__(
        self,
        *,
        allowed_types: Iterable[AllowedType] = (),
        pickle_fallback: bool = False,
        strict: bool = _msgpack.STRICT_MSGPACK_ENABLED,
        allowed_json_modules: Iterable[Name] | Literal[True] | None = None,
        upcasters: Mapping[Any, Upcaster] | None = None,
    ) -> None:
        self.allowed = frozenset(map(type_name, allowed_types))
        self.upcasters: dict[Name, Upcaster] = {}
        if upcasters:
            from threadkeep.engine.log.upcasters import as_upcasters, upcast  # noqa: PLC0415 - few programs have any

            self.upcasters, self._upcast = as_upcasters(upcasters), upcast
        self.strict = strict
        self._warned: set[Name] = set()
        self.unpack: Callable[..., Any] = partial(
            ormsgpack.unpackb, ext_hook=self._revive, option=ormsgpack.OPT_NON_STR_KEYS
        )
        """Decodes msgpack through the gate. A partial makes no call of its own."""
        self._unpack_object: Callable[[bytes], Any] = partial(
            self.unpack, ext_hook=partial(self._revive, depth=INSIDE_AN_OBJECT)
        )
        super().__init__(
            pickle_fallback=pickle_fallback,
            allowed_json_modules=allowed_json_modules,
            allowed_msgpack_modules=self.allowed or None,
            __unpack_ext_hook__=self._revive,
        )

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[Name | type]) -> KeepSerializer:
        """Return a strict serializer: it allows the safe list, the types and upcasters of before, and these types."""
        return self._copy(allowed_types=self.allowed | set(map(type_name, extra_allowlist)), strict=True)

    def with_upcasters(self, upcasters: Mapping[Name, Upcaster]) -> KeepSerializer:
        """Return this serializer with other upcasters."""
        return self._copy(upcasters=upcasters) if upcasters != self.upcasters else self

    def _copy(self, **changes: Any) -> KeepSerializer:
        options: dict[str, Any] = {
            "allowed_types": self.allowed,
            "pickle_fallback": self.pickle_fallback,
            "strict": self.strict,
            "allowed_json_modules": self._allowed_json_modules,
            "upcasters": self.upcasters,
        }
        return KeepSerializer(**(options | changes))

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Encode a value as LangGraph's serializer does."""
        if obj is None or isinstance(obj, bytes | bytearray):
            return super().dumps_typed(obj)
        try:
            return "msgpack", encoder.encode(obj)
        except ormsgpack.MsgpackEncodeError:
            if not self.pickle_fallback:
                raise
        return "pickle", pickle.dumps(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Decode a stored value. json and msgpack pass the gate; pickle needs `pickle_fallback`.

        UpcastFailed if an upcaster raises. ImportError if there is a numpy array in it and numpy is missing.
        """
        if data[0] == "msgpack":
            if self.upcasters:
                _raised.set(None)
            try:
                return self.unpack(data[1])
            except ValueError:
                _raise_own()
                raise
        if data[0] == "json":
            return json.loads(data[1], object_hook=self._revive_json)
        return super().loads_typed(data)

    def verdict(self, stored: StoredClass) -> str:
        """Return what happens to objects of a stored class when they are read, without importing anything."""
        name, code = (stored.module, stored.name), stored.code
        if code == OPAQUE:
            return ALLOWED if stored.name == "pickle" and self.pickle_fallback else NOT_ALLOWED
        if name in self.upcasters and code != METHOD:
            return UPCAST
        if name in _SAFE or code == NUMPY:
            return SAFE
        if name in self.allowed:
            return ALLOWED
        if code == METHOD or self.strict:
            return NOT_ALLOWED
        if name[0] not in sys.modules:
            return NOT_IMPORTED
        cls = _imported_class(name)
        if cls is None:
            return NO_CLASS
        kind = _data_class_code(cls)
        return NOT_DATA if kind is None else IMPORTED if code in (kind, JSON) else OTHER_FORM

    def _revive(self, code: int, data: bytes, *, depth: int = 0) -> Any:
        """Decode a msgpack extension: the object, or its plain data if the class is not allowed or raises."""
        if code > SNAPSHOT:
            return encoder.decode_extension(code, data, partial(self._unpack_payload, depth=depth))
        if depth:  # not through _unpack_payload: objects may be nested as deeply as they can be encoded
            hook = hook_inside(data, self._revive, depth)
            value = ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
        else:
            value = self._unpack_object(data)
        if code >= NUMPY:
            return _DeltaSnapshot(value) if code == SNAPSHOT else _numpy_array(value) if code == NUMPY else None
        if type(value) is not list or len(value) < 3 or type(value[0]) is not str or type(value[1]) is not str:
            return None
        name = (value[0], value[1])
        if self.upcasters and name in self.upcasters and code != METHOD:
            try:
                return self._upcast(name, self.upcasters[name], code, value[2])
            except UpcastFailed as error:
                _raised.set(error)
                raise
        build = _safe_builder(code, name) if name in _SAFE and code != METHOD else self._builder(code, name, value)
        if build is None:
            self._report_blocked(value[0], value[1])
            return value[2]
        try:
            return build(value[2])
        except Exception as error:  # noqa: BLE001 - as LangGraph does: a class that changed must not lose the data
            self._warn((value[0], value[1]), _NOT_REBUILT, type(error).__name__)
            return value[2]

    def _unpack_payload(self, data: bytes, *, depth: int) -> Any:
        hook = hook_inside(data, self._revive, depth or INSIDE_AN_OBJECT)
        return self.unpack(data, ext_hook=hook)

    def _builder(self, code: int, name: Name, value: list[Any]) -> Build | None:
        if code == METHOD:
            is_safe = len(value) > 3 and type(value[3]) is str and (*name, value[3]) in _msgpack.SAFE_MSGPACK_METHODS
            return getattr(import_class(name), value[3]) if is_safe else None
        if name in self.allowed:
            return _builder_of(code, import_class(name))
        return None if self.strict else _data_class_builder(code, _imported_class(name))

    def _revive_json(self, value: dict[str, Any]) -> Any:
        """Decode a JSON object that an old saver wrote: `lc` 1 and 2 name a class. Secrets are never looked up."""
        name = _json_name(value)
        if name is None:
            return value
        flat = (".".join(name[:-1]), name[-1])
        if flat in self.upcasters:
            fields = value.get("kwargs")
            return self._upcast(
                flat, self.upcasters[flat], KEYWORDS if fields else POSITIONAL, fields or value.get("args")
            )
        cls = self._json_class(name)
        if cls is None:
            self._report_blocked(".".join(name[:-1]), name[-1])
            return value
        method = (".".join(name[:-1]), name[-1], str(value.get("method")))
        build = getattr(cls, method[2]) if method in _msgpack.SAFE_MSGPACK_METHODS else cls
        try:
            return build(*(value.get("args") or ()), **(value.get("kwargs") or {}))
        except Exception as error:  # noqa: BLE001 - as above
            self._warn(name, _NOT_REBUILT, type(error).__name__)
            return value

    def _json_class(self, name: Name) -> Any:
        flat = (".".join(name[:-1]), name[-1])
        listed = self._allowed_json_modules
        if flat in _SAFE or flat in self.allowed or listed is True or (listed and name in listed):
            try:
                return import_class(flat)
            except (ImportError, AttributeError):  # listed for other versions of Python or LangChain
                return None
        cls = None if self.strict else _imported_class(flat)
        return cls if cls is not None and _data_class_code(cls) is not None else None

    def _report_blocked(self, module: str, name: str) -> None:
        emit_serde_event({"kind": "msgpack_blocked", "module": module, "name": name})
        self._warn((module, name), _BLOCKED)

    def _warn(self, name: Name, text: str, *details: object) -> None:
        """Log a warning, once for each class, and for at most 1000 classes."""
        if name not in self._warned and len(self._warned) < 1000:
            self._warned.add(name)
            _log.warning(text, ".".join(name[:-1]), name[-1], *details)


def inner_serializer(serde: Any) -> Any:
    """Return the serializer that LangGraph's EncryptedSerializer wraps; any other one as it is."""
    return serde.serde if type(serde) is EncryptedSerializer else serde


def with_type_gate(serde: Any, upcasters: Mapping[Name, Upcaster] | None = None) -> Any:
    """Return LangGraph's serializer with the type gate added, and with upcasters if any are given.

    Any other serializer is returned unchanged; ValueError if there are upcasters for it.
    """
    if upcasters and type(serde) is KeepSerializer:
        return serde.with_upcasters(upcasters)
    if type(serde) is JsonPlusSerializer and not serde._custom_unpack_ext_hook:  # noqa: SLF001 - not public
        allowed = serde._allowed_msgpack_modules  # noqa: SLF001
        return KeepSerializer(
            allowed_types=() if allowed is True else allowed or (),
            pickle_fallback=serde.pickle_fallback,
            strict=allowed is not True,
            allowed_json_modules=serde._allowed_json_modules,  # noqa: SLF001
            upcasters=upcasters,
        )
    if type(serde) is EncryptedSerializer:
        return EncryptedSerializer(serde.cipher, with_type_gate(serde.serde, upcasters))
    if upcasters:
        raise ValueError(f"upcasters need LangGraph's serializer, and serde is a {type(serde).__name__}")
    return serde


def type_name(given: AllowedType, what: str = "allowed_types takes classes") -> Name:
    """Return (module, name) of a class, of 'module.Name', of 'module:Name' or of a (module, name) pair."""
    if isinstance(given, type):
        return (given.__module__, given.__name__)
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, str) for part in given):
        return given
    if isinstance(given, str):
        module, _, name = given.replace(":", ".").rpartition(".")
        if module and name:
            return (module, name)
    raise ValueError(f"{what}, 'module.Name' or ('module', 'Name'), not {given!r}")


def import_class(name: Name) -> Any:
    """Import a class. Only names that LangGraph or the user listed may be passed."""
    return getattr(importlib.import_module(name[0]), name[1])


def _imported_class(name: Name) -> type | None:
    """Return a class of a module that is imported already, without triggering a module-level __getattr__."""
    module = sys.modules.get(name[0])
    found = vars(module).get(name[1]) if isinstance(module, ModuleType) else None
    if isinstance(found, type) and found.__module__ == name[0] and found.__name__ == name[1]:
        return found
    return None


def _builder_of(code: int, target: Any) -> Build | None:
    """Return a function that builds an object of the class from data that is stored under this extension code."""
    if code in (PYDANTIC_1, PYDANTIC_2):
        return lambda fields: _build_model(target, fields)
    if code == POSITIONAL:
        return lambda args: _call_positional(target, args)
    if code == KEYWORDS:
        return lambda fields: target(**fields)
    return target if code == SINGLE else None


@lru_cache(maxsize=256)
def _safe_builder(code: int, name: Name) -> Build | None:
    """Return the builder of a class of the safe list. Messages have a fast one, because there are many."""
    try:
        target = import_class(name)
    except (ImportError, AttributeError):  # listed for other versions of Python or LangChain
        return None
    usual = _builder_of(code, target)
    return quick_builder(target, usual) if code == PYDANTIC_2 and usual is not None else usual


def _data_class_builder(code: int, cls: type | None) -> Build | None:
    """Return the builder of a data class; None if it is not one, or is stored under another code."""
    if cls is None or _data_class_code(cls) != code:
        return None
    return _builder_of(code, cls)


@lru_cache(maxsize=4096)
def _data_class_code(cls: type) -> int | None:
    """Return the extension code that a data class is stored under; None if the class is not one."""
    runnable = getattr(sys.modules.get("langchain_core.runnables.base"), "Runnable", None)
    if runnable is not None and issubclass(cls, runnable):
        return None
    if issubclass(cls, Enum):
        return SINGLE
    if hasattr(cls, "model_fields") and hasattr(cls, "model_construct") and hasattr(cls, "model_dump"):
        return PYDANTIC_2
    if hasattr(cls, "__fields__") and hasattr(cls, "construct"):
        return PYDANTIC_1
    if dataclasses.is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return KEYWORDS
    return None


def _build_model(cls: Any, fields: dict[str, Any]) -> Any:
    """Build a pydantic model; without validation if that fails, as LangGraph does."""
    try:
        return cls(**fields)
    except Exception:  # noqa: BLE001 - any validator may raise anything
        return (cls.model_construct if hasattr(cls, "model_construct") else cls.construct)(**fields)


def _call_positional(target: Any, args: list[Any]) -> Any:
    if len(args) == 3 and (target.__module__, getattr(target, "__name__", "")) == ("langgraph.types", "Send"):
        return target(args[0], args[1], timeout=args[2])
    return target(*args)


def _raise_own() -> None:
    """Raise what our hook raised, instead of what ormsgpack makes of it."""
    error = _raised.get()
    _raised.set(None)
    if error is not None:
        raise error from error.__cause__


def _numpy_array(value: Any) -> Any:
    try:
        import numpy as np  # noqa: PLC0415 - importing it takes 100 ms, and most processes do not need it
    except ModuleNotFoundError as error:
        missing = ImportError("it contains a numpy array, which needs numpy: pip install numpy")
        _raised.set(missing)
        raise missing from error
    try:
        dtype, shape, order, buffer = value
        return np.frombuffer(buffer, dtype=np.dtype(dtype)).reshape(shape, order=order)
    except Exception:  # noqa: BLE001 - as LangGraph does; numpy parses texts, with a SyntaxError among others
        return None


_MOVED: dict[Name, Name] = {("langgraph", "constants", "Send"): ("langgraph", "types", "Send")}
"""Classes that moved since old JSON rows were written: old and current name."""


def _json_name(value: dict[str, Any]) -> Name | None:
    path = value.get("id")
    if value.get("type") != "constructor" or value.get("lc") not in (1, 2) or not isinstance(path, list):
        return None
    if len(path) < 2 or not all(isinstance(part, str) for part in path):
        return None
    return _MOVED.get(tuple(path), tuple(path)) if value["lc"] == 2 else _current_name(tuple(path))


def _current_name(path: Name) -> Name:
    """Return the current name of a class of LangChain that was moved or renamed."""
    from langchain_core.load.mapping import (  # noqa: PLC0415 - only old JSON rows need it
        OLD_CORE_NAMESPACES_MAPPING,
        SERIALIZABLE_MAPPING,
    )

    return SERIALIZABLE_MAPPING.get(path) or OLD_CORE_NAMESPACES_MAPPING.get(path) or path
