"""Messages are rebuilt quickly, and exactly as LangGraph's serializer rebuilds them, unusual ones too."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep.engine.log import messages
from threadkeep.engine.log.type_gate import KeepSerializer

logging.getLogger("langgraph.checkpoint.serde.jsonplus").setLevel(logging.ERROR)

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
OFFICIAL, OURS = JsonPlusSerializer(), KeepSerializer()
texts, numbers = st.text(max_size=8), st.integers(-(2**63), 2**63 - 1)
odd = st.one_of(st.none(), numbers, st.booleans(), texts, st.lists(numbers, max_size=2))
json_dicts = st.dictionaries(texts, st.one_of(texts, numbers, st.none()), max_size=3)
content = st.one_of(texts, st.lists(st.one_of(texts, json_dicts), max_size=3))
calls = st.lists(
    st.fixed_dictionaries({"name": texts, "args": json_dicts, "id": st.one_of(st.none(), texts)}), max_size=2
)
usage = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9), "total_tokens": st.integers(0, 18)},
        optional={
            "input_token_details": st.dictionaries(st.sampled_from(["audio", "cache_read", "new"]), st.integers(0, 9)),
            "output_token_details": st.dictionaries(st.sampled_from(["audio", "reasoning"]), st.integers(0, 9)),
        },
    ),
)
common = {"content": content, "id": st.one_of(st.none(), texts), "name": st.one_of(st.none(), texts)}
details = {"additional_kwargs": json_dicts, "response_metadata": json_dicts}
valid = st.one_of(
    st.builds(HumanMessage, **common, **details),
    st.builds(SystemMessage, **common, **details),
    st.builds(AIMessage, **common, **details, tool_calls=calls, usage_metadata=usage),
    st.builds(
        ToolMessage, **common, **details, tool_call_id=texts, artifact=odd, status=st.sampled_from(["success", "error"])
    ),
)


def loaded(serde: JsonPlusSerializer, message: BaseMessage) -> Any:
    return serde.loads_typed(serde.dumps_typed(message))


def all_of(message: Any) -> Any:
    """Return everything in a pydantic object, with types and order."""
    if not isinstance(message, BaseMessage):
        return repr(message)
    inner = (message.__pydantic_extra__, message.__pydantic_private__, sorted(message.__pydantic_fields_set__))
    return type(message), repr(message.__dict__), inner


@given(valid)
@settings(deadline=None, max_examples=300)
def test_a_valid_message_comes_back_as_the_official_serializer_gives_it(message: BaseMessage) -> None:
    assert all_of(loaded(OURS, message)) == all_of(loaded(OFFICIAL, message))


@given(
    valid,
    st.sampled_from(
        [
            "content",
            "id",
            "name",
            "additional_kwargs",
            "response_metadata",
            "type",
            "tool_calls",
            "invalid_tool_calls",
            "usage_metadata",
            "tool_call_id",
            "status",
            "unheard_of",
        ]
    ),
    odd,
)
@settings(deadline=None, max_examples=600)
def test_a_message_mutated_to_something_odd_comes_back_as_the_official_serializer_gives_it(
    message: BaseMessage, field: str, value: Any
) -> None:
    message.__dict__[field] = value
    assert all_of(loaded(OURS, message)) == all_of(loaded(OFFICIAL, message))


@given(calls)
@settings(deadline=None, max_examples=50)
def test_tool_calls_in_the_form_of_old_apis_are_still_parsed(called: list[dict[str, Any]]) -> None:
    raw = [{"function": {"name": c["name"], "arguments": "{}"}, "id": c["id"], "type": "function"} for c in called]
    message = AIMessage("x", tool_calls=[])
    message.additional_kwargs["tool_calls"] = raw
    assert all_of(loaded(OURS, message)) == all_of(loaded(OFFICIAL, message))


def test_the_fast_path_is_used_for_ordinary_messages() -> None:
    """If LangChain changes its fields, the fast path turns itself off; this test then reports it."""
    for message in (HumanMessage("x"), SystemMessage("x"), AIMessage("x"), ToolMessage("x", tool_call_id="1")):
        slow: list[Any] = []
        build = messages.quick_builder(type(message), lambda fields, slow=slow: slow.append(fields))
        build(message.model_dump())
        assert slow == []
