"""Values: immutable objects with named fields, as frozen and slotted dataclasses are, but quick to define.

    class CheckpointRef(Value):
        ns: str
        id: str | None
        items: bool = True

Defining such a dataclass takes 0.3 ms, because it compiles its methods, and opening a Keep defined 35 of them: 11 ms at
the start of every process. Defining a Value takes 0.01 ms. Making one takes 0.1 to 0.2 us longer.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform

T = TypeVar("T")


class _Made:
    """A default that is made anew for each object."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def field(*, default_factory: Callable[[], T]) -> T:
    """Declare that a field's default is made by a call, for each object."""
    return cast("T", _Made(default_factory))


_MISSING = object()
"""Stands for the default of a field that has none."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class _ValueType(type):
    """Makes a slot of each annotated name, except those that are annotated as ClassVar."""

    _fields: tuple[str, ...]

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _ValueType:
        annotations = namespace.get("__annotations__", {})
        own = tuple(each for each, kind in annotations.items() if not str(kind).startswith("ClassVar"))
        defaults = {each: namespace.pop(each) for each in own if each in namespace}
        made = super().__new__(cls, name, bases, {**namespace, "__slots__": own}, **options)
        made._fields = (*getattr(made, "_fields", ()), *own)
        made._defaults = {**getattr(made, "_defaults", {}), **defaults}  # type: ignore[attr-defined]
        made._setters = tuple([getattr(made, each).__set__ for each in made._fields])  # type: ignore[attr-defined]
        made._set_defaults()  # type: ignore[attr-defined]
        return made


class Value(metaclass=_ValueType):
    """The base of values. Two of them are equal if they are of the same class and all fields are equal."""

    _fields: ClassVar[tuple[str, ...]]
    _defaults: ClassVar[dict[str, Any]]
    _setters: ClassVar[tuple[Callable[[Any, Any], None], ...]]
    _row: ClassVar[tuple[Any, ...]]
    """The default of each field."""
    _least: ClassVar[int]
    """How many fields there are, up to the last one whose default must be made or that has none."""

    def __init__(self, *values: Any, **named: Any) -> None:
        """Set all fields. Makes no Python call if they are given by position, except for defaults that are made."""
        setters = self._setters
        if named or len(values) != len(setters):
            if named or not self._least <= len(values) <= len(setters):
                values = _complete(type(self), values, named)
            else:
                values += self._row[len(values) :]
        for set_field, value in zip(setters, values):  # noqa: B905 - they are as many, and `strict` takes as long as two
            set_field(self, value)

    @classmethod
    def _set_defaults(cls) -> None:
        cls._row = tuple([cls._defaults.get(name, _MISSING) for name in cls._fields])
        plain = [value is not _MISSING and type(value) is not _Made for value in cls._row]
        cls._least = len(plain) - (plain[::-1].index(False) if False in plain else len(plain))

    def _replace(self, **changes: Any) -> Self:
        """Return a value with other values in some fields."""
        values = dict(zip(self._fields, map(getattr, repeat(self), self._fields), strict=True)) | changes
        return type(self)(*values.values())

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot change {name}: a {type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"cannot delete {name}: a {type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    def __hash__(self) -> int:
        return hash(tuple([getattr(self, name) for name in self._fields]))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__qualname__}({fields})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self._fields)


def _complete(cls: type[Value], given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values of all fields: those that were given, by position or by name, and defaults."""
    fields, defaults = cls._fields, cls._defaults
    unknown = named.keys() - fields[len(given) :]
    if len(given) > len(fields) or unknown:
        raise TypeError(
            f"{cls.__name__} has no such field, or it is given twice: {', '.join(sorted(unknown)) or given}"
        )
    values = [*given]
    for name in fields[len(given) :]:
        value = named[name] if name in named else defaults.get(name, _MISSING)
        if value is _MISSING:
            raise TypeError(f"{cls.__name__} needs a value for {name}")
        values.append(value.make() if type(value) is _Made else value)
    return tuple(values)
