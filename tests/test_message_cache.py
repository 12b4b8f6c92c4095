"""Messages are encoded once, but one that was changed in place, however little, is encoded again."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import threadkeep
from checkpoint_chains import Chain, config
from threadkeep.engine.log.codec import Codec
from threadkeep.engine.log.message_cache import MessageCache
from threadkeep.engine.log.message_copies import BLOCK, TemplateBlock
from threadkeep.engine.log.msgpack import read_header
from threadkeep.engine.log.type_gate import KeepSerializer


def conversation() -> list[BaseMessage]:
    call = {"name": "look", "args": {"deep": {"n": 1, "list": [1, 2]}}, "id": "c1", "type": "tool_call"}
    return [
        HumanMessage("hello", id="1", extra_field={"a": 1}),
        AIMessage("", id="2", tool_calls=[call], additional_kwargs={"zero": 0}, response_metadata={"x": {"y": [1]}}),
        ToolMessage("result", id="3", tool_call_id="c1", artifact={"rows": [1, 2]}),
        AIMessage([{"type": "text", "text": "done"}], id="4"),
    ]


CHANGES: dict[str, Callable[[list[Any]], Any]] = {
    "content": lambda m: setattr(m[0], "content", "bye"),
    "the same content": lambda m: setattr(m[0], "content", "hello!"[:-1]),
    "a block of content": lambda m: m[3].content[0].update(text="not done"),
    "another block": lambda m: m[3].content.append({"type": "text", "text": "more"}),
    "an argument of a call": lambda m: m[1].tool_calls[0]["args"]["deep"]["list"].append(3),
    "a number that becomes a truth": lambda m: m[1].additional_kwargs.update(zero=False),
    "a number that becomes another": lambda m: m[1].additional_kwargs.update(zero=0.0),
    "a sign": lambda m: m[1].additional_kwargs.update(zero=-0.0),
    "response metadata": lambda m: m[1].response_metadata["x"]["y"].clear(),
    "an extra field": lambda m: m[0].__pydantic_extra__["extra_field"].update(a=2),
    "one more extra field": lambda m: setattr(m[0], "more", 1),
    "an artifact": lambda m: m[2].artifact["rows"].append(3),
    "a name": lambda m: setattr(m[2], "name", "tool"),
    "an id": lambda m: setattr(m[2], "id", None),
    "a field that is gone": lambda m: m[3].__dict__.pop("usage_metadata"),
    "another object": lambda m: m.__setitem__(2, ToolMessage("else", id="3", tool_call_id="c1")),
    "another order": lambda m: m.reverse(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_message_that_changed_is_encoded_again(change: str) -> None:
    codec, messages = Codec(KeepSerializer()), conversation()
    first = codec.encode(messages)
    assert codec.encode(messages) == first
    CHANGES[change](messages)
    data = b"".join(codec.encode(messages).parts)
    assert data == JsonPlusSerializer().dumps_typed(messages)[1][1:]


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "a field that is gone"])
def test_a_change_is_seen_by_the_next_put(saver: threadkeep.KeepSaver, change: str) -> None:
    chain, messages = Chain(saver), conversation()
    chain.put({"messages": messages})
    CHANGES[change](messages)
    chain._values.clear()  # the channel has a new version, but it is the same list
    chain.put({"messages": messages})
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"] == messages


class Counted:
    """A codec that counts how often it encodes an element, and how many elements of lists it decodes."""

    def __init__(self) -> None:
        self.codec = Codec(KeepSerializer())
        self.dumps = self.loads = 0
        serde = self.codec._serde
        encode, unpack = self.codec._encode_element, serde.unpack

        def counted_encode(value: Any) -> Any:
            self.dumps += 1
            return encode(value)

        def counted_unpack(data: bytes) -> Any:
            self.loads += read_header(data, 0)[1]
            return unpack(data)

        self.codec._encode_element, self.codec.unpack = counted_encode, counted_unpack


def test_a_message_that_did_not_change_is_not_encoded_again() -> None:
    counted, messages = Counted(), conversation()[1:]
    for _ in range(5):
        counted.codec.encode(messages)
        messages = copy.deepcopy(messages)
    assert counted.dumps == 3


def test_a_message_that_was_read_is_not_encoded_again() -> None:
    counted, messages = Counted(), conversation()[1:]
    parts = Codec(KeepSerializer()).encode(messages).parts
    found = counted.codec.decode_list(parts, "it")
    assert found == messages
    assert counted.codec.encode(found).parts == parts
    assert counted.dumps == 0


def test_messages_that_are_read_often_are_copied() -> None:
    counted, messages = Counted(), conversation()
    parts = Codec(KeepSerializer()).encode(messages).parts
    for _ in range(5):
        found = counted.codec.decode_list(parts, "it")
        assert found == messages
        assert list(map(repr, found)) == list(map(repr, messages))
        for one, other in zip(found, messages, strict=True):
            assert one.model_dump() == other.model_dump()
            assert one.model_fields_set >= other.model_fields_set
    assert counted.loads == 2 * 3 + 5  # the first one has an extra field


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_read_may_be_changed_and_the_next_reader_does_not_see_it(change: str) -> None:
    codec, messages = Codec(KeepSerializer()), conversation()
    parts = codec.encode(messages).parts
    for _ in range(5):
        found = codec.decode_list(parts, "it")
        assert found == messages
        CHANGES[change](found)


def long_conversation() -> list[BaseMessage]:
    """Return more messages than two blocks, with nested dicts and lists."""
    messages: list[BaseMessage] = []
    for n in range(24):
        _, answer, result, last = copy.deepcopy(conversation())
        answer.usage_metadata = {"input_tokens": n, "output_tokens": 1, "total_tokens": n + 1}  # type: ignore[attr-defined]
        messages += [answer, result, last]
    for n, message in enumerate(messages):
        message.id = f"id {n}"
    return messages


def containers_in(value: Any) -> Iterator[int]:
    """Yield the identities of everything in a value that can be changed in place."""
    if isinstance(value, BaseMessage):
        yield from (id(value), id(value.__pydantic_fields_set__), id(value.__pydantic_extra__))
        yield from containers_in(value.__dict__)
    elif isinstance(value, (dict, list)):
        yield id(value)
        for each in value.values() if isinstance(value, dict) else value:
            yield from containers_in(each)


def test_blocks_of_messages_are_copied_and_share_nothing() -> None:
    codec, messages = Codec(KeepSerializer()), long_conversation()
    parts = list(codec.encode(messages).parts)
    reads: list[Any] = [codec.decode_list(parts, "it") for _ in range(6)]
    assert {type(block) for block in codec._messages._blocks.young.values()} == {TemplateBlock}
    assert len(codec._messages._blocks.young) == len(messages) // BLOCK
    for found in reads:
        assert found == messages
        assert list(map(repr, found)) == list(map(repr, messages))
        assert [each.model_fields_set for each in found] == [each.model_fields_set for each in reads[0]]
        assert [each.model_dump() for each in found] == [each.model_dump() for each in messages]
    seen = [each for found in reads for message in found for each in containers_in(message)]
    assert len(seen) == len(set(seen)) > 6 * 5 * len(messages)
    templates = codec._messages._templates.young.values()
    assert set(seen).isdisjoint(each for one in templates for each in containers_in(list(one)))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", CHANGES)
def test_a_block_that_was_changed_is_not_seen_by_the_next_reader(change: str) -> None:
    codec, messages = Codec(KeepSerializer()), [*conversation()[1:], *long_conversation()]
    parts = codec.encode(messages).parts
    for _ in range(6):
        found: Any = codec.decode_list(parts, "it")
        assert found == messages
        changed = [HumanMessage("hello", id="1", extra_field={"a": 1}), *found]
        CHANGES[change](changed)


def test_a_block_is_only_used_for_the_same_messages() -> None:
    codec, messages = Codec(KeepSerializer()), long_conversation()
    for _ in range(4):
        assert codec.decode_list(codec.encode(messages).parts, "it") == messages
    others = [*messages[:5], *messages[6:], messages[5]]
    for count in (len(others), BLOCK, BLOCK - 1, BLOCK + 1, 1):
        for some in (others[:count], others[7 : 7 + count], messages[:count]):
            for _ in range(3):
                assert codec.decode_list(codec.encode(some).parts, "it") == some


def test_messages_are_copied_over_reads_of_a_saver(saver: threadkeep.KeepSaver) -> None:
    """Messages without ids, short messages that are stored together, and one that is stored in several items."""
    chain, messages = Chain(saver), [HumanMessage("no id"), *conversation(), HumanMessage("y" * 1_200_000, id="long")]
    saver.put_writes(chain.put({}), [("messages", messages[:1])], "task")
    for count in (2, 4, 6):
        chain.put({"messages": messages[:count]})
        for _ in range(4):
            found = saver.get_tuple(config("t"))
            assert found is not None
            values = found.checkpoint["channel_values"]["messages"]
            assert values == messages[:count]
            values[1].content = "mine"
            values[1].additional_kwargs["a"] = "b"
            values.pop()


def test_a_message_with_something_unknown_inside_is_encoded_each_time() -> None:
    kept = MessageCache()
    message = ToolMessage("x", id="x", tool_call_id="1", artifact=object())
    kept.encoded(message, b"part")
    assert kept.part(message) is None


def test_a_subclass_is_encoded_each_time() -> None:
    class Mine(HumanMessage):
        pass

    counted, message = Counted(), Mine("x", id="x")
    for _ in range(3):
        counted.codec.encode([message])
    assert counted.dumps == 3


def test_two_messages_with_one_id_are_distinguished() -> None:
    codec = Codec(KeepSerializer())
    one, other = HumanMessage("one", id="1"), AIMessage("one", id="1")
    for _ in range(3):
        parts = codec.encode([one, other]).parts
        assert b"".join(parts) == JsonPlusSerializer().dumps_typed([one, other])[1][1:]


def test_the_cache_drops_old_messages() -> None:
    codec = Codec(KeepSerializer(), cache_bytes=80_000)
    messages = [HumanMessage(f"{n}" * 100, id=f"{n}") for n in range(200)]
    codec.encode(messages)
    assert codec._messages.part(messages[0]) is None
    assert codec._messages.part(messages[-1]) is not None
    assert len(codec._messages._parts.young) + len(codec._messages._parts.old) < 100


def test_a_keep_with_cache_bytes_0_keeps_nothing(lasting_url: str) -> None:
    secret = "a text that is nowhere else " * 20
    with threadkeep.open(lasting_url, cache_bytes=0) as keep:
        chain = Chain(keep.checkpointer)
        for n in range(3):
            chain.put({"messages": [HumanMessage(f"{secret} {k}", id=str(k)) for k in range(20 + n)], "text": secret})
            found = keep.checkpointer.get_tuple(config("t"))
            assert found is not None and len(found.checkpoint["channel_values"]["messages"]) == 20 + n
        del found, chain
        gc.collect()
        held = [each for each in _everything() if isinstance(each, bytes | HumanMessage) and secret in _text(each)]
        assert held == []


def _everything() -> Iterator[Any]:
    """What the containers of this process hold."""
    for each in gc.get_objects():
        if isinstance(each, dict):
            yield from [*each, *each.values()]
        elif isinstance(each, list | tuple | set):
            yield from list(each)
        else:
            yield each


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value.content)
