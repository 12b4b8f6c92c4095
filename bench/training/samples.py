"""Items like those that agents store, for training and measuring the compression dictionary.

An item is the msgpack of one list element or of one dict entry, without the container's header, as JsonPlusSerializer
encodes it. The envelopes follow what the providers' LangChain integrations return; the text comes from `Texts`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolCall, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from training.providers import Fields, envelope
from training.texts import Texts
from training.writer import Writer

Blocks = list[str | dict[Any, Any]]

_SERDE = JsonPlusSerializer()


def list_item(element: object) -> bytes:
    return _SERDE.dumps_typed([element])[1][1:]


def entry_item(key: str, value: object) -> bytes:
    return _SERDE.dumps_typed({key: value})[1][1:]


def items(texts: Texts, count: int) -> Iterator[bytes]:
    """Yield items in the mix of a typical agent: mostly messages, some files, profiles and plain values."""
    makers, weights = zip(*_MIX.items(), strict=True)
    writer = Writer(texts)
    for maker in texts.random.choices(makers, weights, k=count):
        yield maker(writer)


def human(w: Writer) -> BaseMessage:
    return HumanMessage(w.prose(20, 600), id=w.uid(), name=w.random.choice([None, None, None, "user"]))


def system(w: Writer) -> BaseMessage:
    opening = w.pick(
        "You are a helpful assistant. ",
        "You are an expert software engineer. ",
        "## Instructions\n\n- Answer in the user's language.\n",
        "",
    )
    return SystemMessage(opening + w.prose(300, 4_000), id=w.uid())


def answer(w: Writer) -> BaseMessage:
    text = w.prose(200, 3_500)
    if w.random.random() < 0.3:
        text += "\n\n```python\n" + w.code(100, 1_200) + "\n```\n"
    content: str | Blocks = _blocks(w, text) if w.random.random() < 0.2 else text
    return AIMessage(content, **envelope(w, calls=[]))


def calling(w: Writer) -> BaseMessage:
    calls = [_call(w) for _ in range(w.random.choice([1, 1, 1, 2]))]
    text = w.prose(0, 900)
    content: str | Blocks = text
    if w.random.random() < 0.25:
        content = [*_blocks(w, text), *map(_tool_use, calls)]
    return AIMessage(content, tool_calls=calls, **envelope(w, calls=calls))


def result(w: Writer) -> BaseMessage:
    text = w.random.choice([_file_text, _file_text, _numbered, _hits, _rows, _shell, _failure])(w)
    return ToolMessage(
        text,
        name=_tool_name(w),
        tool_call_id=_call_id(w),
        id=w.uid(),
        status="error" if text.startswith("Error") else "success",
    )


def _blocks(w: Writer, text: str) -> Blocks:
    if w.random.random() < 0.5:
        return [{"text": text, "type": "text"}]
    return [{"type": "text", "text": text, "annotations": [], "id": f"msg_{w.random.getrandbits(192):048x}"}]


def _tool_use(call: ToolCall) -> Fields:
    return {"id": call["id"], "input": call["args"], "name": call["name"], "type": "tool_use"}


def _call(w: Writer) -> ToolCall:
    return ToolCall(name=_tool_name(w), args=_arguments(w), id=_call_id(w), type="tool_call")


def _call_id(w: Writer) -> str:
    return w.random.choice(["call_" + w.token(24), "call_" + w.token(24), "toolu_01" + w.token(22), w.uid()])


def _tool_name(w: Writer) -> str:
    return w.pick(
        *(
            "search",
            "web_search",
            "tavily_search",
            "read_file",
            "write_file",
            "edit_file",
            "list_files",
            "ls",
            "grep",
            "execute",
            "run_python",
        ),
        *(
            "python_repl",
            "bash",
            "query_db",
            "sql_db_query",
            "retrieve",
            "search_docs",
            "fetch_url",
            "get_weather",
            "write_todos",
            "task",
        ),
    )


def _arguments(w: Writer) -> Fields:
    return w.random.choice(
        [
            {"query": w.prose(10, 200)},
            {"query": w.prose(10, 200), "limit": w.random.randint(1, 50)},
            {"query": w.prose(10, 200), "max_results": w.random.randint(1, 10), "topic": "general"},
            {"path": w.path(), "limit": w.random.randint(1, 500), "offset": 0},
            {"file_path": w.path(), "content": w.code(100, 1_500)},
            {"file_path": w.path(), "old_string": w.code(40, 300), "new_string": w.code(40, 300)},
            {"pattern": w.prose(5, 30), "path": w.path(), "output_mode": "files_with_matches"},
            {"command": "python -m pytest -q " + w.path(), "timeout": 120},
            {"code": w.code(80, 900)},
            {"url": "https://" + w.token(9).lower() + ".com/" + w.path()},
            {"description": w.prose(60, 400), "subagent_type": "general-purpose"},
            {
                "todos": [
                    {"content": w.prose(20, 90), "status": w.pick("pending", "in_progress", "completed")}
                    for _ in range(4)
                ]
            },
        ],
    )


# --- what tools return


def _file_text(w: Writer) -> str:
    return w.code(400, 9_000)


def _numbered(w: Writer) -> str:
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(w.code(400, 5_000).splitlines(), 1))


def _hits(w: Writer) -> str:
    found = [
        {
            "title": w.prose(15, 70),
            "url": "https://www." + w.token(8).lower() + ".org/" + w.path(),
            "content": w.prose(150, 700),
            "score": w.random.random(),
        }
        for _ in range(5)
    ]
    return json.dumps(
        {
            "query": w.prose(10, 90),
            "follow_up_questions": None,
            "answer": None,
            "images": [],
            "results": found,
            "response_time": 1.27,
        }
    )


def _rows(w: Writer) -> str:
    keys = w.random.choice(
        [
            ("id", "title", "snippet", "url", "score"),
            ("id", "name", "description", "created_at"),
            ("page_content", "source", "id"),
            ("id", "text", "score"),
        ]
    )
    makers: dict[str, Callable[[], object]] = {
        "id": w.uid,
        "score": lambda: round(w.random.random(), 6),
        "url": lambda: "https://" + w.token(7).lower() + ".io/" + w.token(12),
        "created_at": w.moment,
        "source": w.path,
        "title": lambda: w.prose(10, 60),
        "name": lambda: w.prose(6, 24),
    }
    rows = [{key: makers.get(key, lambda: w.prose(80, 500))() for key in keys} for _ in range(w.random.randint(1, 12))]
    return json.dumps(rows, indent=w.random.choice([None, None, 2]))


def _shell(w: Writer) -> str:
    lines = [
        f"-rw-r--r-- 1 user user {w.random.randint(90, 90_000):6} {w.moment()[5:10]} {w.path()}"
        for _ in range(w.random.randint(3, 30))
    ]
    return "\n".join(lines)


def _failure(w: Writer) -> str:
    head = f"Error: {w.prose(20, 120)}\nTraceback (most recent call last):\n"
    frame = f'  File "{w.path()}", line {w.random.randint(1, 900)}, in main\n    {w.code(30, 80)}\n'
    return head + frame + " Please fix your mistakes."


# --- values that are not messages


def _file(w: Writer) -> bytes:
    text = w.code(200, 6_000)
    content = text.splitlines() if w.random.random() < 0.5 else text
    return entry_item(w.path(), {"content": content, "created_at": w.moment(), "modified_at": w.moment()})


def _profile(w: Writer) -> bytes:
    prefs = {
        "language": w.pick("en", "de", "fr"),
        "theme": w.pick("dark", "light"),
        "timezone": w.pick("UTC", "America/New_York", "Asia/Tokyo"),
    }
    return entry_item(
        w.pick("profile", "user", "context"),
        {
            "user_id": w.uid(),
            "email": None,
            "plan": w.pick("free", "pro", "team"),
            "preferences": prefs,
            "created_at": w.moment(),
        },
    )


def _text(w: Writer) -> bytes:
    return list_item(w.prose(40, 1_500))


def _record(w: Writer) -> bytes:
    return list_item(
        {
            "id": w.uid(),
            "type": w.pick("event", "document", "step"),
            "name": w.prose(6, 30),
            "content": w.prose(40, 900),
            "metadata": {"source": w.path()},
            "score": w.random.random(),
        }
    )


_MIX: dict[Callable[[Writer], bytes], int] = {
    lambda w: list_item(human(w)): 20,
    lambda w: list_item(calling(w)): 20,
    lambda w: list_item(result(w)): 20,
    lambda w: list_item(answer(w)): 20,
    lambda w: list_item(system(w)): 2,
    _file: 6,
    _profile: 3,
    _text: 5,
    _record: 4,
}
