"""Messages are encoded once; but one that was changed in place, however little, is encoded again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import threadkeep
from chains import Chain, config
from threadkeep.engine import memo
from threadkeep.engine.codec import Codec
from threadkeep.engine.gate import KeepSerializer
from threadkeep.engine.memo import Memo


def talk() -> list[BaseMessage]:
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
    codec, messages = Codec(KeepSerializer()), talk()
    first = codec.encode(messages)
    assert codec.encode(messages) == first
    CHANGES[change](messages)
    data = b"".join(codec.encode(messages).parts)
    assert data == JsonPlusSerializer().dumps_typed(messages)[1][1:]


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "a field that is gone"])
def test_a_change_is_seen_by_the_next_put(saver: threadkeep.KeepSaver, change: str) -> None:
    chain, messages = Chain(saver), talk()
    chain.put({"messages": messages})
    CHANGES[change](messages)
    chain._values.clear()  # the channel has a new version, though it is the same list
    chain.put({"messages": messages})
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"] == messages


def test_a_message_that_did_not_change_is_not_encoded_again() -> None:
    class Counting(Codec):
        count = 0

    codec, messages = Counting(KeepSerializer()), talk()[:2]
    encode = codec._serde.dumps_typed

    def counted(value: Any) -> Any:
        Counting.count += 1
        return encode(value)

    codec._serde.dumps_typed = counted
    for _ in range(5):
        codec.encode(messages)
    assert Counting.count == 2


def test_a_message_with_something_unknown_inside_is_never_remembered() -> None:
    kept = Memo()
    message = ToolMessage("x", tool_call_id="1", artifact=object())
    kept.remember(message, b"part")
    assert kept.get(message) is None


def test_a_subclass_is_never_remembered() -> None:
    class Mine(HumanMessage):
        pass

    codec, message = Codec(KeepSerializer()), Mine("x")
    codec.encode([message])
    assert codec._memo.get(message) is None


def test_the_memo_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "_GENERATION", 10_000)
    kept = Memo()
    messages = [HumanMessage(f"{n}" * 100) for n in range(200)]
    for message in messages:
        kept.remember(message, message.content.encode())
    assert kept.get(messages[0]) is None
    assert kept.get(messages[-1]) == messages[-1].content.encode()
    assert len(kept._young) + len(kept._old) < 60
