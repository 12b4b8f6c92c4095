"""Redaction: a portable file that shows what happened, but not what people wrote.

Structure stays: types, lengths, checkpoint ids, versions, times of rows, the types of messages, and the names of
channels, nodes, tools and classes. Texts become x and keep their length. Numbers that take more than one byte and all
binary data become 0. Names (ids of threads, runs and messages, namespaces and keys of memories, keys of people's dicts,
values of metadata) are replaced by pseudonyms. A name has the same pseudonym everywhere in a file, and others in other
files.

Values are changed as bytes, without decoding any object. Each string keeps its exact length, so items, which are pieces
of values, stay pieces of the changed values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b, shake_256
from typing import Any, NamedTuple

from threadkeep.engine.cube import channels
from threadkeep.engine.identity import CUBE, from_bytes, pack_id, to_bytes, unpack_id
from threadkeep.engine.log.codec import MSGPACK
from threadkeep.engine.log.itemlog import Item
from threadkeep.engine.log.msgpack import INTEGER, LARGE, MAP, TEXT
from threadkeep.engine.threads.metadata import OWN
from threadkeep.transfer.portable import format as lines
from threadkeep.transfer.portable.msgpack import Span, children, spans


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TOOLS = _words(
    "tool tool_call tool_use tool_result tool_call_chunk invalid_tool_call function server_tool_use approve"
)
_WORDS = _TOOLS | _words(
    """
    human ai system developer user assistant remove chat HumanMessageChunk AIMessageChunk SystemMessageChunk
    ToolMessageChunk FunctionMessageChunk ChatMessageChunk constructor text image image_url input_text output_text
    audio input_audio video file document thinking reasoning redacted_thinking refusal json object success error
    stop length end_turn max_tokens stop_sequence tool_calls aborted content_filter ask confirm base64 url
    image/png image/jpeg image/gif image/webp application/pdf
    """
)
"""Words of frameworks and providers, which no person wrote."""
_WORD_KEYS = _words("type role status stop_reason finish_reason kind media_type mime_type source_type object")
_ID_KEYS = _words("id run_id tool_call_id tool_use_id call_id message_id response_id question_id parent_id request_id")
_NAME_KEYS = _words("name tool_name")
_KNOWN_KEYS = (
    _WORD_KEYS
    | _ID_KEYS
    | _NAME_KEYS
    | _words(
        """
    content text additional_kwargs response_metadata usage_metadata tool_calls invalid_tool_calls tool_call_chunks
    args arguments input kwargs lc artifact example index messages message thread_id metadata details is_error
    usage timestamp provider_id model_id model_name model error_message error_type error_code status_code
    retry_after tokens_in context_window input_tokens output_tokens total_tokens cache_read_tokens
    cache_write_tokens input_token_details output_token_details cache_read cache_creation thinking signature
    source data url image_url detail payload created_at timeout_seconds questions key prompt options multi_select
    required label value description allow_input decision edited_args reason node arg ns when resumable interrupts
    output result extras annotations fork
    """
    )
)
"""Fields of messages, tool calls and questions. All other keys may have been written by people."""
_OF_LANGGRAPH = frozenset(OWN) | _words(
    """
    source step run_id thread_id parent_thread_id checkpoint_ns checkpoint_id langgraph_version created_by
    forked_from graph_id assistant_id run_attempt user_id langgraph_node langgraph_step
    """
)
"""Keys of metadata that frameworks set."""
_KEPT_METADATA = _words(
    """
    parents counters_since_delta_snapshot delta_writes_versioned checkpoint_ns checkpoint_id langgraph_version
    langgraph_node langgraph_step forked_from
    """
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ][\d:.,]+(Z|[+-][\d:]+)?)?|\d\d:\d\d(:[\d.]+)?([+-][\d:]+)?")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEX = re.compile(r"[0-9a-f]{32}")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_SHORT = 8
_LEAST, _GREATEST = -32, 127
"""Numbers in this range stay: they take one byte."""
_READABLE = (MSGPACK, "null", "bytes", "bytearray", "json")
_MODULE, _STORED = ("datetime", "decimal", "ipaddress", "uuid"), 2


class ValueForm(NamedTuple):
    """The form of the value that some items belong to: its channel, tag and kind."""

    channel: str
    tag: str
    kind: int


class _Context(NamedTuple):
    """Where a value is: under which key, in something about a tool, in an object of which module."""

    key: str = ""
    tool: bool = False
    module: str = ""
    keeps: bool = False
    """Its strings were written by the framework."""
    fields: bool = False
    """It holds the fields of a class, whose names stay."""


_NOWHERE = _Context()


class Redaction:
    """Replaces what people wrote in lines and items. Pseudonyms are derived from `salt`, which is random."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._kind = ""
        self._names: frozenset[str] = frozenset()
        self._short: dict[str, str] = {}
        self._taken: set[str] = set()

    # -- pseudonyms

    def begin(self, names: Iterable[str]) -> None:
        """Begin a thread. The names of its channels and nodes stay, also as keys."""
        self._names = frozenset(names)

    def name(self, text: str) -> str:
        """Return a pseudonym, which may have another length."""
        if _UUID.fullmatch(text) or _HEX.fullmatch(text) or not text:
            return self.same_length_name(text)
        return "r" + blake2b(to_bytes(text), key=self._salt, digest_size=8).hexdigest()

    def same_length_name(self, text: str) -> str:
        """Return a pseudonym of the same length in bytes. That of a UUID is a UUID."""
        data = to_bytes(text)
        if _UUID.fullmatch(text) or _HEX.fullmatch(text):
            digits = blake2b(data, key=self._salt, digest_size=16).hexdigest()
            parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
            return "-".join(parts) if "-" in text else digits
        if len(data) >= _SHORT or not data:
            return self._random_letters(data, 0)
        if text not in self._short:
            tries = (self._random_letters(data, n) for n in range(1, 1000))
            found = next((each for each in tries if each not in self._taken), None) or self._random_letters(data, 0)
            self._taken.add(found)
            self._short[text] = found
        return self._short[text]

    def _random_letters(self, data: bytes, n: int) -> str:
        drawn = shake_256(self._salt + b"%d:" % n + data).digest(len(data))
        return "".join(_LETTERS[byte % len(_LETTERS)] for byte in drawn)

    # -- lines

    def line(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Redact a line that is not an item."""
        kind = fields["type"]
        if kind == lines.THREAD:
            self._kind = fields["kind"]
            described = {name: self._description(fields[name]) for name in ("description",) if name in fields}
            origins = {name: list(map(self._origin, fields[name])) for name in ("origins",) if name in fields}
            return fields | described | origins | {"id": self.name(fields["id"])}
        if kind == lines.CHECKPOINT:
            return self._checkpoint(fields)
        if kind == lines.WRITES:
            return fields | {"entries": [self._entry(entry) for entry in fields["entries"]]}
        if kind == lines.MEMORY:
            space = [self.name(segment) for segment in fields["namespace"]]
            return fields | {
                "namespace": space,
                "key": self.name(fields["key"]),
                "value": self.json_value(fields["value"]),
            }
        return fields

    def _description(self, said: dict[str, Any]) -> dict[str, Any]:
        """Redact what people said about a thread: its title and labels."""
        texts = {"title": self.name(said["title"])} if "title" in said else {}
        labels = {"labels": [self.name(each) for each in said["labels"]]} if "labels" in said else {}
        return said | texts | labels

    def _origin(self, origin: dict[str, Any]) -> dict[str, Any]:
        return origin | {"thread": self.name(origin["thread"])}

    def _checkpoint(self, fields: dict[str, Any]) -> dict[str, Any]:
        changed = fields | {
            "run": self._optional_name(fields["run"]),
            "metadata": {self._label(key): self._metadata(key, value) for key, value in fields["metadata"].items()},
            "values": {name: self._value(name, value) for name, value in fields["values"].items()},
        }
        if fields.get("rest"):
            changed["rest"] = self._value("", fields["rest"], _Context(fields=True))
        return changed

    def _entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        value = self._value(entry["channel"], entry["value"])
        return entry | {"run": self._optional_name(entry["run"]), "value": value}

    def _optional_name(self, id: str | None) -> str | None:
        return self.same_length_name(id) if id is not None else None

    def _label(self, key: str) -> str:
        return key if key in _OF_LANGGRAPH else self.name(key)

    def _metadata(self, key: str, value: Any) -> Any:
        if key in _KEPT_METADATA:
            return value
        if isinstance(value, str):
            return self.same_length_name(value) if key == "run_id" else self.name(value)
        if isinstance(value, dict) and "$msgpack" in value:
            return {"$msgpack": lines.chars(self._redacted(value["$msgpack"].encode("latin-1"), 1, _NOWHERE))}
        return self.json_value(value)

    def _value(self, channel: str, value: dict[str, Any], context: _Context = _NOWHERE) -> dict[str, Any]:
        if value["tag"] not in _READABLE:
            return {"tag": "null", "data": ""}  # pickle, or another serializer: it could not be read after redaction
        if "data" not in value:
            return value
        data = self._bytes(channel, value["tag"], 0, value["data"].encode("latin-1"), context)
        return value | {"data": lines.chars(data)}

    # -- items

    def items(self, form: ValueForm, items: list[Item]) -> list[Item]:
        """Redact items. Each keeps its length."""
        data = self._bytes(form.channel, form.tag, form.kind, b"".join(item.data for item in items))
        changed, at = [], 0
        for item in items:
            changed.append(item._replace(data=data[at : at + len(item.data)]))
            at += len(item.data)
        return changed

    def _bytes(self, channel: str, tag: str, kind: int, data: bytes, context: _Context = _NOWHERE) -> bytes:
        """Redact a stored value, or some of its elements. The length stays."""
        if tag == "json":
            return self._json_text(data)
        if tag != MSGPACK:
            return bytes(len(data))
        try:
            if self._kind == CUBE:
                return self._cube_value(channel, kind, data)
            return self._entries(data, context) if kind == MAP else self._redacted(data, None, context)
        except (ValueError, IndexError):
            return bytes(len(data))  # not msgpack, whatever its tag says

    def _cube_value(self, channel: str, kind: int, data: bytes) -> bytes:
        """The same for a CubeLoop thread: its events name runs and messages, and a value may be a JSON text."""
        if channel == channels.EVENTS:
            return self._events(data)
        out = bytearray(data)
        for span in spans(data):
            if span.is_text:
                out[span.start : span.end] = self._json_text(data[span.start : span.end])
            elif channel == channels.PENDING:
                self._pending(out, data, span)
            elif kind != MAP:
                self._redact_object(out, data, span, _NOWHERE)
        return self._entries(data, _NOWHERE) if kind == MAP else bytes(out)

    def _pending(self, out: bytearray, data: bytes, span: Span) -> None:
        """Redact the pending request, and the run that made it."""
        for inner in children(data, span):
            self._redact_object(out, data, inner, _Context(key="id"))

    def _events(self, data: bytes) -> bytes:
        """Redact events. Every binary string in them is the packed id of a run or a message."""
        out = bytearray(data)

        def visit(span: Span) -> None:
            if span.is_binary and span.end > span.start:
                out[span.start : span.end] = pack_id(self.same_length_name(unpack_id(data[span.start : span.end])))
            for inner in children(data, span):
                visit(inner)

        for span in spans(data):
            visit(span)
        return bytes(out)

    def _entries(self, data: bytes, context: _Context) -> bytes:
        """Redact the entries of a dict, which come without its header."""
        out = bytearray(data)
        self._redact_entries(out, data, list(spans(data)), context)
        return bytes(out)

    def _redacted(self, data: bytes, count: int | None, context: _Context) -> bytes:
        out = bytearray(data)
        for span in list(spans(data))[:count]:
            self._redact_object(out, data, span, context)
        return bytes(out)

    def _redact_object(self, out: bytearray, data: bytes, span: Span, context: _Context) -> None:
        """Redact one object in place."""
        if span.is_text:
            text = from_bytes(data[span.start : span.end])
            out[span.start : span.end] = to_bytes(self._text(text, context))
        elif span.is_binary:
            out[span.start : span.end] = bytes(span.end - span.start)
        elif span.is_number:
            self._number(out, span, context)
        elif span.code is not None:
            self._extension(out, data, span, context)
        elif span.is_map:
            self._redact_entries(out, data, children(data, span), context)
        else:
            for inner in children(data, span):
                self._redact_object(out, data, inner, context)

    @staticmethod
    def _number(out: bytearray, span: Span, context: _Context) -> None:
        """Set a number that takes more than one byte to 0; in a date, to 2000."""
        width = span.end - span.start
        is_year = context.module == "datetime" and width > 1 and not span.is_float
        out[span.start : span.end] = (2000).to_bytes(width) if is_year else bytes(width)

    def _redact_entries(self, out: bytearray, data: bytes, flat: list[Span], context: _Context) -> None:
        keys = [from_bytes(data[key.start : key.end]) if key.is_text else None for key in flat[::2]]
        texts = {
            key: data[value.start : value.end] for key, value in zip(keys, flat[1::2], strict=True) if value.is_text
        }
        words = {texts[key].decode("latin-1") for key in ("type", "role", "kind") if key in texts}
        is_lc = texts.get("type") == b"constructor" and "lc" in keys
        tool = context.tool or bool(words & _TOOLS) or "tool_call_id" in keys
        for key, at, value in zip(keys, flat[::2], flat[1::2], strict=True):
            if key is None and at.is_number:
                out[at.start : at.end] = shake_256(self._salt + data[at.start : at.end]).digest(at.end - at.start)
            elif key is None:
                self._redact_object(out, data, at, _NOWHERE)
            elif not self._stays(key, context):
                out[at.start : at.end] = to_bytes(self.same_length_name(key))
            inner = _Context(
                key or "", self._about_tool(key, context, tool=tool), context.module, is_lc and key == "id"
            )
            self._redact_object(out, data, value, inner)

    @staticmethod
    def _about_tool(key: str | None, context: _Context, *, tool: bool) -> bool:
        if key in ("args", "arguments", "input", "content", "details", "artifact"):
            return False  # arguments and results of a tool may have been written by people
        return key in ("tool_calls", "invalid_tool_calls", "tool_call_chunks") or tool or context.tool

    def _stays(self, key: str, context: _Context) -> bool:
        return context.fields or key in _KNOWN_KEYS or key in self._names

    def _extension(self, out: bytearray, data: bytes, span: Span, context: _Context) -> None:
        """Redact an extension. Module, class and method stay, and of its data what the class needs to be rebuilt."""
        if span.code == TEXT:
            out[span.start : span.end] = b"x" * (span.end - span.start)
            return
        if span.code in (INTEGER, LARGE):
            out[span.start : span.end] = bytes(span.end - span.start)
            return
        inner = children(data, span)
        if span.code == _NUMPY:
            for each in inner[3:]:
                self._redact_object(out, data, each, context)
            return
        if span.code not in _CLASSES:
            for each in inner or ():
                self._redact_object(out, data, each, context)
            return
        module, name = (from_bytes(data[each.start : each.end]) for each in inner[:2])
        for stored in inner[_STORED : _STORED + 1]:
            self._stored(out, data, stored, module, name, context)

    def _stored(self, out: bytearray, data: bytes, stored: Span, module: str, name: str, context: _Context) -> None:
        parts = children(data, stored)
        if (module, name) == ("langgraph.types", "Send"):
            for each in parts[1:]:
                self._redact_object(out, data, each, _NOWHERE)
            return
        if (module, name) == ("langgraph.types", "Interrupt"):
            for each in parts[:1] if not stored.is_map else parts[1:2]:
                self._redact_object(out, data, each, _NOWHERE)
            return
        tool = name.startswith("Tool") or context.tool
        known = module if module in _MODULE else ""
        self._redact_object(
            out, data, stored, _Context(context.key, tool, known, keeps=name == "ZoneInfo", fields=True)
        )

    # -- texts and JSON

    def _text(self, text: str, context: _Context) -> str:
        """Redact a text. Its length in bytes stays."""
        key = context.key
        if context.keeps or (key in _WORD_KEYS and text in _WORDS):
            return text
        if context.module == "uuid" or (key in _ID_KEYS and not context.fields):
            return self.same_length_name(text)
        if key in _NAME_KEYS and context.tool:
            return text
        if context.module == "ipaddress":
            return re.sub(r"[0-9a-f]", "1", text)
        if context.module == "decimal":
            return re.sub(r"\d", "0", text)
        if _TIME.fullmatch(text):
            return _other_time(text)
        return "x" * len(to_bytes(text))

    def json_value(self, value: Any, context: _Context = _NOWHERE) -> Any:
        """Redact a JSON value by the same rules."""
        if isinstance(value, str):
            return self._text(value, context)
        if isinstance(value, float):
            return 0.0
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int):
            return value if _LEAST <= value <= _GREATEST else 0
        if isinstance(value, Mapping):
            return self._json_entries(value, context)
        return [self.json_value(each, context) for each in value]

    def _json_entries(self, value: Mapping[str, Any], context: _Context) -> dict[str, Any]:
        words = {value[key] for key in ("type", "role", "kind") if isinstance(value.get(key), str)}
        is_lc = "constructor" in words and "lc" in value
        tool = context.tool or bool(words & _TOOLS) or "tool_call_id" in value
        return {
            (key if self._stays(key, context) else self.same_length_name(key)): self.json_value(
                inner, _Context(key, self._about_tool(key, context, tool=tool), "", is_lc and key == "id")
            )
            for key, inner in value.items()
        }

    def _json_text(self, data: bytes) -> bytes:
        """Redact a JSON text. It never gets longer, and is filled with spaces to its length."""
        try:
            changed = json.dumps(self.json_value(json.loads(data)), separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            changed = b""
        if not changed or len(changed) > len(data):
            changed = b"0" if data else b""
        return changed.ljust(len(data))


_NUMPY = 6
_CLASSES = (0, 1, 2, 3, 4, 5)
"""Extension codes whose payload names a class."""


def _other_time(text: str) -> str:
    """Return another time in the same notation."""
    zeros = re.sub(r"\d", "0", text)
    return "2000-01-01" + zeros[10:] if zeros.startswith("0000-00-00") else zeros
