"""Redacting: a file that shows what happened, but not what people wrote.

Structure stays: types, lengths, checkpoint ids, versions, times of rows, names of channels, nodes, tools and classes, and
what a message is. Texts become x, as long as they were; numbers beyond a byte and all binary data become 0. What things
are called by (ids of threads, runs and messages, namespaces and keys of memories, keys of people's dicts, values of
metadata) gets another name, the same one wherever it stands in this file; no other file has the same ones.

Values are changed as bytes, without decoding any object: each string stays exactly as long as it was, so items, which
are pieces of values, stay pieces of the changed ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b, shake_256
from typing import Any, NamedTuple, TypeAlias

from threadkeep.engine.codec import MSGPACK
from threadkeep.engine.identity import CUBE, from_bytes, pack_id, to_bytes, unpack_id
from threadkeep.engine.itemlog import Item
from threadkeep.engine.metadata import OWN
from threadkeep.engine.talks import form
from threadkeep.engine.wire import MAP
from threadkeep.transfer.portable import format as lines
from threadkeep.transfer.portable.export import ValueForm
from threadkeep.transfer.portable.msgpack import Span, children, spans

Change: TypeAlias = Callable[[str], str]
_TOOLS = frozenset({"tool", "tool_call", "tool_use", "tool_result", "tool_call_chunk", "invalid_tool_call", "function",
                    "server_tool_use", "approve"})  # fmt: skip
_WORDS = _TOOLS | frozenset({
    "human", "ai", "system", "developer", "user", "assistant", "remove", "chat", "HumanMessageChunk", "AIMessageChunk",
    "SystemMessageChunk", "ToolMessageChunk", "FunctionMessageChunk", "ChatMessageChunk", "constructor", "text", "image",
    "image_url", "input_text", "output_text", "audio", "input_audio", "video", "file", "document", "thinking", "reasoning",
    "redacted_thinking", "refusal", "json", "object", "success", "error", "stop", "length", "end_turn", "max_tokens",
    "stop_sequence", "tool_calls", "aborted", "content_filter", "ask", "confirm", "base64", "url", "image/png",
    "image/jpeg", "image/gif", "image/webp", "application/pdf",
})  # fmt: skip
"""What things are, said by frameworks and providers: no person wrote it."""
_WORD_KEYS = frozenset({"type", "role", "status", "stop_reason", "finish_reason", "kind", "media_type", "mime_type",
                        "source_type", "object"})  # fmt: skip
_ID_KEYS = frozenset({"id", "run_id", "tool_call_id", "tool_use_id", "call_id", "message_id", "response_id",
                      "question_id", "parent_id", "request_id"})  # fmt: skip
_NAME_KEYS = frozenset({"name", "tool_name"})
_KNOWN_KEYS = _WORD_KEYS | _ID_KEYS | _NAME_KEYS | frozenset({
    "content", "text", "additional_kwargs", "response_metadata", "usage_metadata", "tool_calls", "invalid_tool_calls",
    "tool_call_chunks", "args", "arguments", "input", "kwargs", "lc", "artifact", "example", "index", "messages",
    "message", "thread_id", "metadata", "details", "is_error", "usage", "timestamp", "provider_id", "model_id",
    "model_name", "model", "error_message", "error_type", "error_code", "status_code", "retry_after", "tokens_in",
    "context_window", "input_tokens", "output_tokens", "total_tokens", "cache_read_tokens", "cache_write_tokens",
    "input_token_details", "output_token_details", "cache_read", "cache_creation", "thinking", "signature", "source",
    "data", "url", "image_url", "detail", "payload", "created_at", "timeout_seconds", "questions", "key", "prompt",
    "options", "multi_select", "required", "label", "value", "description", "allow_input", "decision", "edited_args",
    "reason", "node", "arg", "ns", "when", "resumable", "interrupts", "output", "result", "extras", "annotations",
    "fork",
})  # fmt: skip
"""Fields of messages, tool calls and questions. Other keys are taken for people's own."""
_OF_LANGGRAPH = frozenset({*OWN, "source", "step", "run_id", "thread_id", "parent_thread_id", "checkpoint_ns",
                           "checkpoint_id", "langgraph_version", "created_by", "forked_from", "graph_id", "assistant_id",
                           "run_attempt", "user_id", "langgraph_node", "langgraph_step"})  # fmt: skip
"""Keys of metadata that frameworks give."""
_KEPT_METADATA = frozenset({"parents", "counters_since_delta_snapshot", "delta_writes_versioned", "checkpoint_ns",
                            "checkpoint_id", "langgraph_version", "langgraph_node", "langgraph_step", "forked_from"})  # fmt: skip
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([T ][\d:.,]+(Z|[+-][\d:]+)?)?|\d\d:\d\d(:[\d.]+)?([+-][\d:]+)?")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEX = re.compile(r"[0-9a-f]{32}")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_SHORT = 8
_LEAST, _GREATEST = -32, 127
"""Numbers between these stay: they take one byte."""
_READABLE = (MSGPACK, "null", "bytes", "bytearray", "json")
_MODULE, _STORED = ("datetime", "decimal", "ipaddress", "uuid"), 2


class _Around(NamedTuple):
    """Where a value stands: below which key, in something about a tool, in an object of which class."""

    key: str = ""
    tool: bool = False
    module: str = ""
    keeps: bool = False
    """Its strings are the framework's own."""
    fields: bool = False
    """It has the fields of a class: their names stay."""


_NOWHERE = _Around()


class Redaction:
    """Makes lines, and items, that nobody can be recognised by. `salt` is random."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._kind = ""
        self._names: frozenset[str] = frozenset()
        self._short: dict[str, str] = {}
        self._taken: set[str] = set()

    # -- names

    def begin(self, names: Iterable[str]) -> None:
        """The names of channels and nodes of the thread that comes: they stay, as keys too."""
        self._names = frozenset(names)

    def name(self, text: str) -> str:
        """Another name for something, that need not be as long."""
        if _UUID.fullmatch(text) or _HEX.fullmatch(text) or not text:
            return self.called(text)
        return "r" + blake2b(to_bytes(text), key=self._salt, digest_size=8).hexdigest()

    def called(self, text: str) -> str:
        """Another name that takes as many bytes; a UUID stays one."""
        data = to_bytes(text)
        if _UUID.fullmatch(text) or _HEX.fullmatch(text):
            digits = blake2b(data, key=self._salt, digest_size=16).hexdigest()
            parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
            return "-".join(parts) if "-" in text else digits
        if len(data) >= _SHORT or not data:
            return self._drawn(data, 0)
        if text not in self._short:
            tries = (self._drawn(data, n) for n in range(1, 1000))
            found = next((each for each in tries if each not in self._taken), None) or self._drawn(data, 0)
            self._taken.add(found)
            self._short[text] = found
        return self._short[text]

    def _drawn(self, data: bytes, n: int) -> str:
        drawn = shake_256(self._salt + b"%d:" % n + data).digest(len(data))
        return "".join(_LETTERS[byte % len(_LETTERS)] for byte in drawn)

    # -- lines

    def line(self, said: dict[str, Any]) -> dict[str, Any]:
        """A line of anything but an item."""
        kind = said["type"]
        if kind == lines.THREAD:
            self._kind = said["kind"]
            return said | {"id": self.name(said["id"])}
        if kind == lines.CHECKPOINT:
            return self._checkpoint(said)
        if kind == lines.WRITES:
            return said | {"entries": [self._entry(entry) for entry in said["entries"]]}
        if kind == lines.MEMORY:
            space = [self.name(segment) for segment in said["namespace"]]
            return said | {"namespace": space, "key": self.name(said["key"]), "value": self.tree(said["value"])}
        return said

    def _checkpoint(self, said: dict[str, Any]) -> dict[str, Any]:
        changed = said | {
            "run": self._maybe(said["run"]),
            "metadata": {self._label(key): self._metadata(key, value) for key, value in said["metadata"].items()},
            "values": {name: self._value(name, value) for name, value in said["values"].items()},
        }
        if said.get("rest"):
            changed["rest"] = self._value("", said["rest"], _Around(fields=True))
        return changed

    def _entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        value = self._value(entry["channel"], entry["value"])
        return entry | {"run": self._maybe(entry["run"]), "value": value}

    def _maybe(self, id: str | None) -> str | None:
        return self.called(id) if id is not None else None

    def _label(self, key: str) -> str:
        return key if key in _OF_LANGGRAPH else self.name(key)

    def _metadata(self, key: str, value: Any) -> Any:
        if key in _KEPT_METADATA:
            return value
        if isinstance(value, str):
            return self.called(value) if key == "run_id" else self.name(value)
        if isinstance(value, dict) and "$msgpack" in value:
            return {"$msgpack": lines.chars(self._walked(value["$msgpack"].encode("latin-1"), 1, _NOWHERE))}
        return self.tree(value)

    def _value(self, channel: str, value: dict[str, Any], around: _Around = _NOWHERE) -> dict[str, Any]:
        if value["tag"] not in _READABLE:
            return {"tag": "null", "data": ""}  # pickle, or another serializer's: nobody could read what was left of it
        if "data" not in value:
            return value
        data = self._bytes(channel, value["tag"], 0, value["data"].encode("latin-1"), around)
        return value | {"data": lines.chars(data)}

    # -- items

    def items(self, form: ValueForm, items: list[Item]) -> list[Item]:
        """Items, each as long as it was."""
        data = self._bytes(form.channel, form.tag, form.kind, b"".join(item.data for item in items))
        changed, at = [], 0
        for item in items:
            changed.append(item._replace(data=data[at : at + len(item.data)]))
            at += len(item.data)
        return changed

    def _bytes(self, channel: str, tag: str, kind: int, data: bytes, around: _Around = _NOWHERE) -> bytes:
        """A stored value, or some elements of one: as many bytes."""
        if tag == "json":
            return self._json_text(data)
        if tag != MSGPACK:
            return bytes(len(data))
        try:
            if self._kind == CUBE:
                return self._of_talk(channel, kind, data)
            return self._entries(data, around) if kind == MAP else self._walked(data, None, around)
        except (ValueError, IndexError):
            return bytes(len(data))  # no msgpack, whatever its tag says

    def _of_talk(self, channel: str, kind: int, data: bytes) -> bytes:
        """The same of a talk: its ledger names runs and messages; a value may be a JSON text."""
        if channel == form.EVENTS:
            return self._events(data)
        out = bytearray(data)
        for span in spans(data):
            if span.is_text:
                out[span.start : span.end] = self._json_text(data[span.start : span.end])
            elif channel == form.PENDING:
                self._pending(out, data, span)
            elif kind != MAP:
                self._walk(out, data, span, _NOWHERE)
        return self._entries(data, _NOWHERE) if kind == MAP else bytes(out)

    def _pending(self, out: bytearray, data: bytes, span: Span) -> None:
        """The question, and the run that asked it."""
        for inner in children(data, span):
            self._walk(out, data, inner, _Around(key="id"))

    def _events(self, data: bytes) -> bytes:
        """Events: every binary string in them is the packed id of a run or of a message."""
        out = bytearray(data)

        def visit(span: Span) -> None:
            if span.is_binary and span.end > span.start:
                out[span.start : span.end] = pack_id(self.called(unpack_id(data[span.start : span.end])))
            for inner in children(data, span):
                visit(inner)

        for span in spans(data):
            visit(span)
        return bytes(out)

    def _entries(self, data: bytes, around: _Around) -> bytes:
        """The entries of a dict, without its header."""
        out = bytearray(data)
        self._walk_entries(out, data, list(spans(data)), around)
        return bytes(out)

    def _walked(self, data: bytes, count: int | None, around: _Around) -> bytes:
        out = bytearray(data)
        for span in list(spans(data))[:count]:
            self._walk(out, data, span, around)
        return bytes(out)

    def _walk(self, out: bytearray, data: bytes, span: Span, around: _Around) -> None:
        """Change one object in place."""
        if span.is_text:
            text = from_bytes(data[span.start : span.end])
            out[span.start : span.end] = to_bytes(self._text(text, around))
        elif span.is_binary:
            out[span.start : span.end] = bytes(span.end - span.start)
        elif span.is_number:
            self._number(out, span, around)
        elif span.code is not None:
            self._object(out, data, span, around)
        elif span.is_map:
            self._walk_entries(out, data, children(data, span), around)
        else:
            for inner in children(data, span):
                self._walk(out, data, inner, around)

    @staticmethod
    def _number(out: bytearray, span: Span, around: _Around) -> None:
        """A number of more than a byte becomes 0, where it stands; in a date, 2000."""
        width = span.end - span.start
        said = (
            (2000).to_bytes(width) if around.module == "datetime" and width > 1 and not span.is_float else bytes(width)
        )
        out[span.start : span.end] = said

    def _walk_entries(self, out: bytearray, data: bytes, flat: list[Span], around: _Around) -> None:
        keys = [from_bytes(data[key.start : key.end]) if key.is_text else None for key in flat[::2]]
        told = {
            key: data[value.start : value.end] for key, value in zip(keys, flat[1::2], strict=True) if value.is_text
        }
        words = {told[key].decode("latin-1") for key in ("type", "role", "kind") if key in told}
        is_lc = told.get("type") == b"constructor" and "lc" in keys
        tool = around.tool or bool(words & _TOOLS) or "tool_call_id" in keys
        for key, at, value in zip(keys, flat[::2], flat[1::2], strict=True):
            if key is None and at.is_number:
                out[at.start : at.end] = shake_256(self._salt + data[at.start : at.end]).digest(at.end - at.start)
            elif key is None:
                self._walk(out, data, at, _NOWHERE)
            elif not self._stays(key, around):
                out[at.start : at.end] = to_bytes(self.called(key))
            inner = _Around(key or "", self._about_tool(key, around, tool=tool), around.module, is_lc and key == "id")
            self._walk(out, data, value, inner)

    @staticmethod
    def _about_tool(key: str | None, around: _Around, *, tool: bool) -> bool:
        if key in ("args", "arguments", "input", "content", "details", "artifact"):
            return False  # what a tool is given, and gives, is people's
        return key in ("tool_calls", "invalid_tool_calls", "tool_call_chunks") or tool or around.tool

    def _stays(self, key: str, around: _Around) -> bool:
        return around.fields or key in _KNOWN_KEYS or key in self._names

    def _object(self, out: bytearray, data: bytes, span: Span, around: _Around) -> None:
        """An extension: module, class and method stay; of what is stored, what a class needs to be made of."""
        inner = children(data, span)
        if span.code == _NUMPY:
            for each in inner[3:]:
                self._walk(out, data, each, around)
            return
        if span.code not in _CLASSES:
            for each in inner or ():
                self._walk(out, data, each, around)
            return
        module, name = (from_bytes(data[each.start : each.end]) for each in inner[:2])
        for stored in inner[_STORED : _STORED + 1]:
            self._stored(out, data, stored, module, name, around)

    def _stored(self, out: bytearray, data: bytes, stored: Span, module: str, name: str, around: _Around) -> None:
        parts = children(data, stored)
        if (module, name) == ("langgraph.types", "Send"):
            for each in parts[1:]:
                self._walk(out, data, each, _NOWHERE)
            return
        if (module, name) == ("langgraph.types", "Interrupt"):
            for each in parts[:1] if not stored.is_map else parts[1:2]:
                self._walk(out, data, each, _NOWHERE)
            return
        tool = name.startswith("Tool") or around.tool
        known = module if module in _MODULE else ""
        self._walk(out, data, stored, _Around(around.key, tool, known, keeps=name == "ZoneInfo", fields=True))

    # -- texts and trees

    def _text(self, text: str, around: _Around) -> str:
        """A text as long as it was, in bytes."""
        key = around.key
        if around.keeps or (key in _WORD_KEYS and text in _WORDS):
            return text
        if around.module == "uuid" or (key in _ID_KEYS and not around.fields):
            return self.called(text)
        if key in _NAME_KEYS and around.tool:
            return text
        if around.module == "ipaddress":
            return re.sub(r"[0-9a-f]", "1", text)
        if around.module == "decimal":
            return re.sub(r"\d", "0", text)
        if _MOMENT.fullmatch(text):
            return _some_time(text)
        return "x" * len(to_bytes(text))

    def tree(self, value: Any, around: _Around = _NOWHERE) -> Any:
        """A JSON value, by the same rules."""
        if isinstance(value, str):
            return self._text(value, around)
        if isinstance(value, float):
            return 0.0
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int):
            return value if _LEAST <= value <= _GREATEST else 0
        if isinstance(value, Mapping):
            return self._tree_of_entries(value, around)
        return [self.tree(each, around) for each in value]

    def _tree_of_entries(self, value: Mapping[str, Any], around: _Around) -> dict[str, Any]:
        words = {value[key] for key in ("type", "role", "kind") if isinstance(value.get(key), str)}
        is_lc = "constructor" in words and "lc" in value
        tool = around.tool or bool(words & _TOOLS) or "tool_call_id" in value
        return {
            (key if self._stays(key, around) else self.called(key)): self.tree(
                inner, _Around(key, self._about_tool(key, around, tool=tool), "", is_lc and key == "id")
            )
            for key, inner in value.items()
        }

    def _json_text(self, data: bytes) -> bytes:
        """A JSON text as long as it was: it is never longer, and JSON does not mind spaces."""
        try:
            changed = json.dumps(self.tree(json.loads(data)), separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            changed = b""
        if not changed or len(changed) > len(data):
            changed = b"0" if data else b""
        return changed.ljust(len(data))


_NUMPY = 6
_CLASSES = (0, 1, 2, 3, 4, 5)
"""Extension codes whose payload names a class."""


def _some_time(text: str) -> str:
    """Another time, written in the same way."""
    zeros = re.sub(r"\d", "0", text)
    return "2000-01-01" + zeros[10:] if zeros.startswith("0000-00-00") else zeros
