"""Pack values as LangGraph's serializer does, byte for byte, and also what it cannot pack: text with lone surrogates.

LangGraph's msgpack replaces a lone surrogate by `?`, and refuses one in a key. Here such a text is an extension object
with its bytes, and a dict with such a key an extension object with its keys and values. Integers of more than 64 bits
are packed too where the caller asks for it (metadata, which the official savers store as JSON).

A value may be changed by another thread while it is packed. Plain data is packed in one call that holds the GIL. If
there are objects in it, Python code runs in between: then its containers are copied first, each in one step.
"""

from __future__ import annotations

from functools import lru_cache
from types import FunctionType
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde import jsonplus

from threadkeep.engine.log.msgpack import ENTRIES, INTEGER, LARGE, POSITIONAL, TEXT
from threadkeep.value import Value

try:
    OPTIONS = jsonplus._option & ~ormsgpack.OPT_REPLACE_SURROGATES  # noqa: SLF001 - not public
    _OFFICIAL_DEFAULT = jsonplus._msgpack_default.__code__  # noqa: SLF001
except AttributeError as error:
    raise ImportError(
        f"this threadkeep does not know the serializer of the installed langgraph-checkpoint ({error}): upgrade "
        "threadkeep, or install an earlier langgraph-checkpoint"
    ) from error
_LEAVES = frozenset((bool, int, float, str, bytes, type(None)))


class LargeValue(Value):
    """Stands for a value of metadata that is stored outside of its row: the tag and a digest of it, and its size."""

    tag: bytes
    digest: bytes
    size: int

    def __str__(self) -> str:
        return f"{self.size:,} bytes"


def encode(value: Any) -> bytes:
    """Return a value as msgpack. TypeError, as from LangGraph's serializer, if it cannot be packed."""
    try:
        return ormsgpack.packb(value, option=OPTIONS)
    except ormsgpack.MsgpackEncodeError as error:
        if "Recursion" in str(error):
            raise
    copy = copy_containers(value)
    try:
        return ormsgpack.packb(copy, default=_default, option=OPTIONS)
    except ormsgpack.MsgpackEncodeError as error:
        if "surrogates" not in str(error):
            raise
    return ormsgpack.packb(_escape(copy), default=_default, option=OPTIONS)


def encode_message(message: Any) -> bytes:
    """Return a message as msgpack: what `encode` returns, in fewer steps. It is no container of others."""
    try:
        return ormsgpack.packb(message, default=_default, option=OPTIONS)
    except ormsgpack.MsgpackEncodeError:
        return encode(message)


def encode_metadata(value: Any) -> bytes:
    """Return a value as msgpack, with integers of any size."""
    try:
        return encode(value)
    except ormsgpack.MsgpackEncodeError as error:
        if "64-bit" not in str(error):
            raise
    return encode(_escape_integers(value))


_official_default = FunctionType(_OFFICIAL_DEFAULT, {**vars(jsonplus), "_msgpack_enc": encode})
"""LangGraph's function for objects, with this module's `encode` for what is in them.

LangGraph looks its own encoder up as a global and has no parameter for another. Without this, text in messages and
models would lose its lone surrogates; the conformance tests of values notice it if LangGraph changes.
"""


def _default(value: Any) -> Any:
    kind: Any = type(value)
    if kind is LargeValue:
        return ormsgpack.Ext(LARGE, value.tag + value.digest + value.size.to_bytes(4))
    if _is_send(kind) and value.timeout is None:
        return ormsgpack.Ext(POSITIONAL, encode((kind.__module__, kind.__name__, (value.node, value.arg))))
    return _official_default(value)


@lru_cache(maxsize=1024)
def _is_send(kind: Any) -> bool:
    """Whether this is LangGraph's `Send`, and packed as above.

    LangGraph compares a `Send` with many other types and protocols first, which takes twenty times as long. A graph
    with a hundred parallel tasks packs two hundred.
    """
    if (kind.__module__, kind.__name__) != ("langgraph.types", "Send"):
        return False
    ours = ormsgpack.Ext(POSITIONAL, encode((kind.__module__, kind.__name__, ("node", 1))))
    return bool(ormsgpack.packb(_official_default(kind("node", 1))) == ormsgpack.packb(ours))


def copy_containers(value: Any) -> Any:
    """Copy a value's lists, tuples and dicts; each is read in one step, so it has the elements of one moment."""
    if isinstance(value, list) or type(value) is tuple:
        value = list(value)
        if not _LEAVES.issuperset(map(type, value)):
            for n, each in enumerate(value):
                if type(each) not in _LEAVES:
                    value[n] = copy_containers(each)
    elif isinstance(value, dict):
        value = dict.copy(value)
        if not _LEAVES.issuperset(map(type, value.values())):
            for key, each in value.items():
                if type(each) not in _LEAVES:
                    value[key] = copy_containers(each)
    return value


def _escape(value: Any) -> Any:
    """Replace text with lone surrogates, and dicts with such keys, by extension objects."""
    if isinstance(value, str):
        return value if _is_unicode(value) else ormsgpack.Ext(TEXT, value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list):
        return [_escape(each) for each in value]
    if not isinstance(value, dict):
        return value
    if all(not isinstance(key, str) or _is_unicode(key) for key in value):
        return {key: _escape(each) for key, each in value.items()}
    return ormsgpack.Ext(ENTRIES, encode([each for entry in value.items() for each in entry]))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _escape_integers(value: Any) -> Any:
    kind = type(value)
    if kind is int and not -(1 << 63) <= value < 1 << 64:
        return ormsgpack.Ext(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, signed=True))
    if kind is list or kind is tuple:
        return [_escape_integers(each) for each in list(value)]
    return {key: _escape_integers(each) for key, each in value.copy().items()} if kind is dict else value


def decode_extension(code: int, data: bytes, unpack: Any) -> Any:
    """Return the value of one of this module's extension objects; None if the code is another one."""
    if code == TEXT:
        return data.decode("utf-8", "surrogatepass")
    if code == INTEGER:
        return int.from_bytes(data, signed=True)
    if code == LARGE:
        return LargeValue(data[:8], data[8:24], int.from_bytes(data[24:]))
    if code == ENTRIES:
        flat = iter(unpack(data))
        return dict(zip(flat, flat, strict=True))
    return None
