"""Forged values: bytes that a serializer would never write, stored where an attacker could put them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ormsgpack
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import threadkeep
from checkpoint_chains import config


def packed(value: Any) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


def ext(code: int, *parts: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, packed(parts))


def ext_bytes(code: int, payload: bytes) -> bytes:
    """Return an extension object whose payload need not be msgpack."""
    return b"\xc9" + len(payload).to_bytes(4) + bytes([code]) + payload


@dataclass(frozen=True)
class Forged:
    type: str
    data: bytes


class Forger:
    """A serializer that stores a `Forged` as its bytes, and everything else as LangGraph does."""

    def __init__(self) -> None:
        self.honest = JsonPlusSerializer()

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        return (value.type, value.data) if isinstance(value, Forged) else self.honest.dumps_typed(value)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return self.honest.loads_typed(data)


def store(saver: threadkeep.KeepSaver, value: Any, *, thread: str = "t") -> dict[str, Any]:
    """Put a value as a channel and as a write."""
    checkpoint = empty_checkpoint() | {
        "channel_values": {"a": value, "b": "honest"},
        "channel_versions": {"a": 1, "b": 1},
    }
    at: dict[str, Any] = saver.put(config(thread), checkpoint, {"source": "loop", "step": 1}, {"a": 1, "b": 1})
    saver.put_writes(at, [("w", value)], "task")
    return at


def store_forged(saver: threadkeep.KeepSaver, forged: Forged, *, thread: str = "t") -> dict[str, Any]:
    """Put forged bytes as a channel and as a write; the saver reads them with its own serializer."""
    honest = saver.serde
    saver.serde = Forger()
    at = store(saver, forged, thread=thread)
    saver.serde = honest
    return at
