"""Tests of messages: order, classes and fields, no changes from outside, and duplicates."""
# ruff: noqa: D103 - a test's name says what it checks

from __future__ import annotations

from typing import Any

import pytest
from cubeloop.providers.base import (
    AssistantMessage,
    ImageContent,
    Message,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from pydantic import BaseModel

from threadkeep.conformance.cube.calls import Cube
from threadkeep.conformance.cube.samples import assistant, dump_thread, load, load_texts, user
from threadkeep.conformance.declarations import needs
from threadkeep.conformance.json_values import EXACT, EXACT_OR_REFUSED, exact

NESTED = {"a": [1, 2.5, None, {"b": [True, [], {}]}], "c": {"d": {"e": "f"}}}
USER = UserMessage(
    content=[TextContent(text="look"), ImageContent(source="aGVsbG8=", media_type="image/png"), TextContent(text="")],
    id="m-1",
    timestamp=1_700_000_000.123456,
    metadata={"synthetic": True, "nested": NESTED},
    run_id="r",
)
ASSISTANT = AssistantMessage(
    content=[
        ThinkingContent(thinking="hm"),
        TextContent(text="yes"),
        ToolCall(id="c-1", name="search", arguments={"query": "x", "nested": NESTED}),
        ImageContent(source="https://example.com/a.png", media_type="image/png"),
    ],
    id="m-2",
    stop_reason="tool_use",
    usage=Usage(input_tokens=10, output_tokens=20, cache_read_tokens=30, cache_write_tokens=40),
    timestamp=1_700_000_001.0,
    provider_id="anthropic",
    model_id="large",
    response_id="resp-1",
    metadata={"nested": NESTED},
    run_id="r",
)
FAILED = AssistantMessage(
    content=[],
    id="m-3",
    stop_reason="error",
    error_message="too many",
    error_type="RateLimit",
    error_code="429",
    status_code=429,
    retry_after=1.5,
    tokens_in=7,
    context_window=200_000,
    run_id="r",
)
RESULT = ToolResultMessage(
    tool_call_id="c-1",
    tool_name="search",
    content=[TextContent(text="found"), ImageContent(source="aGVsbG8=", media_type="image/png")],
    details=NESTED,
    is_error=True,
    id="m-4",
    timestamp=1_700_000_002.5,
    metadata={"nested": NESTED},
    run_id="r",
)
BARE = UserMessage(content=[])
MESSAGES: dict[str, Message] = {
    "user": USER,
    "assistant": ASSISTANT,
    "failed": FAILED,
    "tool result": RESULT,
    "bare": BARE,
}
TEXTS = [
    "", " \n\t\r ", "' \" \\ ` %s {} $1 ?", "a\0b\0", "\u00e9 e\u0301 \u4e2d\u6587 \u202e", "\ufeff\uffff\x7f\x1b\x01",
    "\U0001f99c \U0001f469\u200d\U0001f4bb", '{"role": "user"}', "\\u0000", "null",
]  # fmt: skip


class ToolDetails(BaseModel):
    """A model that a tool may return as details."""

    title: str
    places: list[int]


def load_results(cube: Cube) -> list[ToolResultMessage]:
    """Load the messages of a thread that has tool results only."""
    found = load(cube).messages
    assert {type(message) for message in found} == {ToolResultMessage}
    return [message for message in found if isinstance(message, ToolResultMessage)]


def same_message(found: Message, given: Message) -> bool:
    """Return whether two messages have the same class and are equal in every field, number types included."""
    return type(found) is type(given) and exact(found.model_dump()) == exact(given.model_dump())


# --- order


def test_messages_come_back_in_the_order_of_their_appends(my_cube: Cube) -> None:
    for n in range(120):
        my_cube.append("t", [user(f"{n}"), assistant(f"{n} again")] if n % 3 else [user(f"{n}")])
    assert load_texts(my_cube) == [text for n in range(120) for text in ([f"{n}", f"{n} again"] if n % 3 else [f"{n}"])]


def test_many_messages_may_be_appended_at_once(my_cube: Cube) -> None:
    my_cube.append("t", [user(f"{n}") if n % 2 else assistant(f"{n}") for n in range(2000)])
    my_cube.append("t", [user("last")])
    found = load(my_cube).messages
    assert [message.role for message in found[:4]] == ["assistant", "user", "assistant", "user"]
    assert load_texts(my_cube) == [*(f"{n}" for n in range(2000)), "last"]


def test_the_same_message_may_be_there_twice(my_cube: Cube) -> None:
    my_cube.append("t", [user("again"), user("again")])
    my_cube.append("t", [user("again")])
    assert load_texts(my_cube) == ["again"] * 3


def test_threads_do_not_mix(my_cube: Cube) -> None:
    for n in range(6):
        my_cube.append(f"thread {n % 2}", [user(f"{n}")])
    assert [load_texts(my_cube, "thread 0"), load_texts(my_cube, "thread 1")] == [["0", "2", "4"], ["1", "3", "5"]]


def test_a_load_changes_nothing(my_cube: Cube) -> None:
    my_cube.append("t", list(MESSAGES.values()))
    my_cube.save_extra("t", {"a": [1]})
    first = dump_thread(my_cube)
    assert dump_thread(my_cube) == first
    my_cube.append("t", [user("more")])
    assert dump_thread(my_cube)["messages"][:-1] == first["messages"]


# --- contents of a message


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_comes_back_with_its_class_and_all_fields(my_cube: Cube, kind: str) -> None:
    my_cube.append("t", [MESSAGES[kind].model_copy(deep=True)])
    (found,) = load(my_cube).messages
    assert same_message(found, MESSAGES[kind]), found


def test_contents_come_back_as_their_classes(my_cube: Cube) -> None:
    my_cube.append("t", [ASSISTANT.model_copy(deep=True)])
    (found,) = load(my_cube).messages
    assert [type(content) for content in found.content] == [ThinkingContent, TextContent, ToolCall, ImageContent]


def test_details_may_be_any_json(my_cube: Cube) -> None:
    given: list[Any] = [None, False, 0, 0.0, "", [], {}, "text", 1.5, [[1], {"a": None}]]
    my_cube.append("t", [RESULT.model_copy(update={"details": details, "id": ""}) for details in given])
    assert [exact(message.details) for message in load_results(my_cube)] == [exact(details) for details in given]


def test_models_in_details_come_back_as_dicts(my_cube: Cube) -> None:
    model = ToolDetails(title="a", places=[1, 2])
    my_cube.append("t", [RESULT.model_copy(update={"details": {"best": model, "all": [model]}})])
    (found,) = load_results(my_cube)
    plain = {"title": "a", "places": [1, 2]}
    assert found.details == {"best": plain, "all": [plain]}


def test_texts_come_back_exactly(my_cube: Cube) -> None:
    given: list[Message] = [user(text) for text in TEXTS]
    given += [ASSISTANT.model_copy(update={"content": [ThinkingContent(thinking=text)], "id": ""}) for text in TEXTS]
    my_cube.append("t", given)
    found = load(my_cube).messages
    assert [message.model_dump() for message in found] == [message.model_dump() for message in given]


def test_texts_of_several_megabytes_come_back_exactly(my_cube: Cube) -> None:
    long = "".join(f"line {n} of a long text\n" for n in range(200_000))
    image = ImageContent(source="0123456789abcdef" * 200_000, media_type="image/png")
    given: list[Message] = [user(long), UserMessage(content=[image]), user("short")]
    my_cube.append("t", given)
    found = load(my_cube).messages
    assert len(found) == 3
    assert all(map(same_message, found, given))


@pytest.mark.parametrize("given", EXACT.values(), ids=EXACT.keys())
def test_a_value_in_a_message_comes_back_exactly(my_cube: Cube, given: Any) -> None:
    messages = messages_with(given)
    my_cube.append("t", messages)
    assert all(map(same_message, load(my_cube).messages, messages))


@pytest.mark.parametrize("given", EXACT_OR_REFUSED.values(), ids=EXACT_OR_REFUSED.keys())
def test_a_value_in_a_message_that_json_dislikes_comes_back_exactly_or_is_refused(my_cube: Cube, given: Any) -> None:
    my_cube.append("t", [user("before")])
    try:
        messages = messages_with(given)
        my_cube.append("t", messages)
    except (ValueError, TypeError):
        assert load_texts(my_cube) == ["before"]
    else:
        assert all(map(same_message, load(my_cube).messages[1:], messages))


def messages_with(value: Any) -> list[Message]:
    """Return messages with this value in every field that may hold one."""
    call = ToolCall(id="c", name="n", arguments={"held": value})
    return [
        user("a", metadata={"held": value}),
        AssistantMessage(content=[call], metadata={"held": value}),
        RESULT.model_copy(update={"details": {"held": value}, "metadata": {"held": value}}),
    ]


# --- messages are copied on the way in and out


def test_changing_a_message_after_its_append_changes_nothing(my_cube: Cube) -> None:
    given: list[Message] = [USER.model_copy(deep=True), RESULT.model_copy(deep=True)]
    my_cube.append("t", given)
    change_messages(given)
    assert dump_thread(my_cube)["messages"] == [USER.model_dump(), RESULT.model_dump()]


def test_changing_a_loaded_message_changes_nothing(my_cube: Cube) -> None:
    my_cube.append("t", [USER.model_copy(deep=True), RESULT.model_copy(deep=True)])
    change_messages(load(my_cube).messages)
    assert dump_thread(my_cube)["messages"] == [USER.model_dump(), RESULT.model_dump()]


def change_messages(messages: list[Message]) -> None:
    """Change everything that can be changed in these messages."""
    for message in messages:
        message.content.clear()
        message.metadata["nested"]["a"].append("changed")  # type: ignore[index, union-attr, call-overload]
        message.metadata["new"] = 1
        if isinstance(message, ToolResultMessage) and isinstance(message.details, dict):
            message.details["new"] = 1
    messages.append(user("new"))


# --- messages that are sent again


@needs("dedup")
def test_a_message_that_is_sent_again_is_stored_once(my_cube: Cube) -> None:
    my_cube.append("t", [user("a", id="1"), user("b", id="2")])
    my_cube.append("t", [user("a", id="1"), user("b", id="2"), user("c", id="3")])
    assert load_texts(my_cube) == ["a", "b", "c"]


@needs("dedup")
def test_a_message_that_is_sent_again_keeps_the_first_version(my_cube: Cube) -> None:
    my_cube.append("t", [user("first", id="1")])
    my_cube.append("t", [assistant("second", id="1")])
    assert load_texts(my_cube) == ["first"]


@needs("dedup")
def test_a_message_that_is_twice_in_an_append_is_stored_once(my_cube: Cube) -> None:
    my_cube.append("t", [user("a", id="1"), user("b", id="2"), user("a", id="1")])
    assert load_texts(my_cube) == ["a", "b"]


@needs("dedup")
def test_a_message_that_many_tasks_send_is_stored_once(my_cube: Cube) -> None:
    my_cube.call_concurrently("append", [("t", [user("a", id="1"), user("b", id="2")])] * 20)
    assert load_texts(my_cube) == ["a", "b"]


@needs("dedup")
def test_another_handle_knows_what_was_sent(my_cube: Cube, my_other_cube: Cube) -> None:
    my_cube.append("t", [user("a", id="1")])
    my_other_cube.append("t", [user("a", id="1"), user("b", id="2")])
    my_cube.append("t", [user("b", id="2"), user("c", id="3")])
    assert load_texts(my_cube) == load_texts(my_other_cube) == ["a", "b", "c"]


@needs("dedup")
def test_the_same_id_in_another_thread_is_another_message(my_cube: Cube) -> None:
    for thread in ("t", "other"):
        my_cube.append(thread, [user("a", id="1")])
    assert load_texts(my_cube) == load_texts(my_cube, "other") == ["a"]


def test_messages_without_an_id_are_all_kept(my_cube: Cube) -> None:
    my_cube.append("t", [user("a", id=""), user("a", id="")])
    my_cube.append("t", [user("a", id=""), user("b", id="1")])
    my_cube.append("t", [user("a", id="")])
    assert load_texts(my_cube) == ["a", "a", "a", "b", "a"]


@needs("dedup", "runs", "forks")
def test_a_fork_knows_the_ids_of_its_inherited_messages(my_cube: Cube) -> None:
    my_cube.claim_run("t", "r")
    my_cube.append("t", [user("a", id="1"), user("b", "r", id="2")])
    my_cube.mark_run_complete("t", "r")
    my_cube.claim_run("t", "late")
    my_cube.append("t", [user("late", "late", id="3")])
    my_cube.fork("t", "new", after_run_id="r")
    my_cube.append("new", [user("a", id="1"), user("c", id="3")])
    assert load_texts(my_cube, "new") == ["a", "b", "c"]
