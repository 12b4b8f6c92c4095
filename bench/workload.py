"""The conversation behind our size and speed figures: a chat graph that calls one tool per turn.

    python bench/workload.py --turns 200        # print the size of the conversation

Every turn adds four messages (question, tool call, tool result, answer) with the metadata that model APIs send, and
makes five puts and four put_writes. A `files` channel of 20 KB, a profile and a summary never change after the first
turn, so a saver that stores them again pays for it. The texts are the standard library's docstrings and code, read in
order from shuffled passages, so that they rarely repeat, as in a real conversation.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import json
import pathlib
import random
import sysconfig
import uuid
from collections.abc import Container, Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.graph.state import CompiledStateGraph

Saver = BaseCheckpointSaver[Any]
Kind = Literal["prose", "code"]
M = TypeVar("M", bound=BaseMessage)

FILES, FILE_CHARS = 8, 2_420
SUMMARY_CHARS = 600
QUESTION = (100, 300)
CALL = (500, 1_500, 700)
ANSWER = (500, 3_000, 1_200)
RESULT_LIMITS = (1_000, 20_000)
ROWS_SHARE = 0.3
TOOLS = ("find_symbol", "open_file", "run_snippet", "sql_query")


class Corpus(NamedTuple):
    prose: str
    code: str


@functools.cache
def corpus() -> Corpus:
    """Return docstrings and sources of the running Python's standard library. Tests count as code only."""
    prose: list[str] = []
    code: list[str] = []
    for path in _library_files():
        try:
            source = path.read_text("utf-8")
            tree = ast.parse(source)
        except (UnicodeDecodeError, SyntaxError, ValueError):
            continue
        code.append(source)
        if "test" not in path.parts:
            prose += _docstrings(tree)
    shuffle = random.Random(41).shuffle
    shuffle(prose)
    shuffle(code)
    return Corpus("\n\n".join(prose), "\n".join(code))


def _library_files() -> list[pathlib.Path]:
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return [path for path in sorted(root.rglob("*.py")) if not {"site-packages", "lib2to3"}.intersection(path.parts)]


def _docstrings(tree: ast.Module) -> list[str]:
    owners = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [text for node in owners if (text := ast.get_docstring(node)) and len(text) > 120]


class Conversation:
    """Generates the messages of a conversation, determined by the seed alone.

    `nameless` are the types of messages that have no id; LangGraph gives them one later.
    """

    def __init__(self, seed: int, *, nameless: Container[str] = ()) -> None:
        self._nameless = nameless
        self._random = random.Random(seed)
        self._at = {kind: self._random.randrange(len(getattr(corpus(), kind)) // 2) for kind in Corpus._fields}

    def opening(self) -> dict[str, Any]:
        """Return the first turn's input: the question, and everything that never changes again."""
        return {
            "messages": [self.question()],
            "turn": 0,
            "summary": self._text("prose", SUMMARY_CHARS),
            "files": {f"/srv/checkout/pkg/part_{number}.py": self._file() for number in range(FILES)},
            "profile": {
                "user_id": self._uuid(),
                "plan": "team",
                "locale": "de-DE",
                "prefs": {"tone": "brief", "tz": "Europe/Rome"},
            },
        }

    def question(self) -> HumanMessage:
        return self._without_id_if_nameless(
            HumanMessage(self._text("prose", self._random.randint(*QUESTION)), id=self._uuid())
        )

    def call(self) -> AIMessage:
        size = int(self._random.triangular(*CALL))
        arguments = {
            "query": self._text("prose", self._random.randint(40, 200)),
            "path": f"/srv/checkout/{self._hex(8)}.py",
            "limit": self._random.randint(1, 50),
        }
        call = ToolCall(name=self._random.choice(TOOLS), args=arguments, id="call_" + self._hex(24), type="tool_call")
        message = AIMessage(self._text("prose", size - 300), tool_calls=[call], **self._envelope(size, "tool_calls"))
        return self._without_id_if_nameless(message)

    def result(self, call: ToolCall) -> ToolMessage:
        low, high = RESULT_LIMITS
        size = int(min(high, max(low, self._random.lognormvariate(8.0, 0.75))))
        text = self._rows(size) if self._random.random() < ROWS_SHARE else self._text("code", size)
        message = ToolMessage(text, tool_call_id=call["id"], name=call["name"], id=self._uuid(), status="success")
        return self._without_id_if_nameless(message)

    def answer(self) -> AIMessage:
        size = int(self._random.triangular(*ANSWER))
        return self._without_id_if_nameless(AIMessage(self._text("prose", size), **self._envelope(size, "stop")))

    def _without_id_if_nameless(self, message: M) -> M:
        if message.type in self._nameless:
            message.id = None
        return message

    def _text(self, kind: Kind, size: int) -> str:
        text: str = getattr(corpus(), kind)
        start = self._at[kind] if self._at[kind] + size <= len(text) else 0
        self._at[kind] = start + size
        return text[start : start + size]

    def _rows(self, size: int) -> str:
        rows: list[dict[str, Any]] = []
        left = size
        while left > 0:
            text = self._text("prose", self._random.randint(120, 400))
            link = "https://kb.example.org/" + self._hex(13)
            rows.append(
                {
                    "id": self._uuid(),
                    "rank": round(self._random.random(), 6),
                    "heading": text[:40],
                    "body": text,
                    "link": link,
                }
            )
            left -= len(text) + 170
        return json.dumps(rows)

    def _file(self) -> dict[str, str]:
        return {
            "content": self._text("code", FILE_CHARS),
            "created_at": "2025-02-03T08:00:00Z",
            "modified_at": "2025-02-03T09:30:00Z",
        }

    def _envelope(self, size: int, finish: str) -> dict[str, Any]:
        """Return the fields of a chat completion besides its text."""
        given, made = self._random.randint(500, 60_000), size // 4
        cached, thought = self._random.randint(0, given), self._random.randint(0, 400)
        return {
            "id": "run-" + self._uuid(),
            "additional_kwargs": {"refusal": None},
            "response_metadata": self._response(given, made, cached, thought)
            | {"finish_reason": finish, "logprobs": None},
            "usage_metadata": {
                "input_tokens": given,
                "output_tokens": made,
                "total_tokens": given + made,
                "input_token_details": {"audio": 0, "cache_read": cached},
                "output_token_details": {"audio": 0, "reasoning": thought},
            },
        }

    def _response(self, given: int, made: int, cached: int, thought: int) -> dict[str, Any]:
        outcome = {
            "accepted_prediction_tokens": 0,
            "audio_tokens": 0,
            "reasoning_tokens": thought,
            "rejected_prediction_tokens": 0,
        }
        usage = {
            "completion_tokens": made,
            "prompt_tokens": given,
            "total_tokens": given + made,
            "completion_tokens_details": outcome,
            "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": cached},
        }
        return {
            "token_usage": usage,
            "model_provider": "openai",
            "model_name": "gpt-4o-2024-11-20",
            "system_fingerprint": "fp_" + self._hex(10),
            "id": "chatcmpl-" + self._hex(29),
            "service_tier": "default",
        }

    def _hex(self, digits: int) -> str:
        return f"{self._random.getrandbits(4 * digits):0{digits}x}"

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    turn: int
    status: str
    summary: str
    profile: dict[str, Any]
    files: dict[str, Any]


class DeltaState(State, total=False):
    """The same state, whose messages are stored as the writes that made them, with a snapshot now and then."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def chat(
    conversation: Conversation, checkpointer: Saver, schema: type[State] = State
) -> CompiledStateGraph[State, None, State, State]:
    """Compile the graph agent -> tools -> respond, whose nodes add the conversation's next messages."""

    def agent(state: State) -> State:  # noqa: ARG001  # LangGraph requires the parameter
        return {"messages": [conversation.call()], "status": "calling_tool"}

    def tools(state: State) -> State:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        return {"messages": [conversation.result(last.tool_calls[0])], "status": "tool_done"}

    def respond(state: State) -> State:
        return {"messages": [conversation.answer()], "status": "idle", "turn": state.get("turn", 0) + 1}

    builder = StateGraph(schema)
    builder.add_node("agent", agent, input_schema=schema)
    builder.add_node("tools", tools, input_schema=schema)
    builder.add_node("respond", respond, input_schema=schema)
    for source, target in itertools.pairwise((START, "agent", "tools", "respond", END)):
        builder.add_edge(source, target)
    return builder.compile(checkpointer=checkpointer)


def inputs(conversation: Conversation, turns: int) -> Iterator[Any]:
    for turn in range(turns):
        yield {"messages": [conversation.question()]} if turn else conversation.opening()


def config(thread: str) -> RunnableConfig:
    return {
        "configurable": {"thread_id": thread},
        "metadata": {"user_id": "user-7", "assistant_id": "assistant-2", "env": "bench"},
    }


def steps(
    checkpointer: Saver,
    turns: int,
    *,
    seed: int = 1,
    thread: str = "w1",
    history: int = 0,
    nameless: Container[str] = (),
) -> Iterator[int]:
    """Run the conversation, and yield the number of each turn.

    The first input also contains the messages of `history` earlier turns, which makes a long thread quickly.
    """
    conversation = Conversation(seed, nameless=nameless)
    graph = chat(conversation, checkpointer)
    earlier = list(messages(history, seed=seed + 1))
    for turn, given in enumerate(inputs(conversation, turns)):
        if turn == 0:
            given["messages"] = [*earlier, *given["messages"]]
        graph.invoke(given, config(thread), durability="sync")
        yield turn


def run(checkpointer: Saver, turns: int, *, seed: int = 1, thread: str = "w1") -> None:
    for _ in steps(checkpointer, turns, seed=seed, thread=thread):
        pass


async def arun(checkpointer: Saver, turns: int, *, seed: int = 1, thread: str = "w1") -> None:
    conversation = Conversation(seed)
    graph = chat(conversation, checkpointer)
    for given in inputs(conversation, turns):
        await graph.ainvoke(given, config(thread), durability="sync")


def messages(turns: int, *, seed: int = 1) -> Iterator[AnyMessage]:
    """Yield the messages of the same conversation without a graph."""
    conversation = Conversation(seed)
    for given in inputs(conversation, turns):
        yield from given["messages"]
        call = conversation.call()
        yield from (call, conversation.result(call.tool_calls[0]), conversation.answer())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    serde = JsonPlusSerializer()
    sizes = [len(serde.dumps_typed(message)[1]) for message in messages(options.turns, seed=options.seed)]
    print(f"{options.turns} turns: {len(sizes)} messages, {sum(sizes) / 1e6:.2f} MB of new data")


if __name__ == "__main__":
    main()
