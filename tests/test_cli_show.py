"""The commands threads, show, tree, log, diff, blame and memories: they print what the verbs return, safely."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

import example_threads
import threadkeep
from checkpoint_chains import Chain
from threadkeep.cli import chat
from threadkeep.cli.app import run
from threadkeep.cli.memories import format_namespace, parse_namespace
from threadkeep.cli.output import as_plain
from threadkeep.engine.history.tree_rows import ASCII, UNICODE, tree_rows

SOURCE = Path(threadkeep.__file__).resolve().parents[1]
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@dataclass(frozen=True)
class CommandOutput:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., CommandOutput]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs commands in this process, on the last URL given."""
    monkeypatch.setenv("COLUMNS", "100")

    def run_command(*args: str, url: str | None = None) -> CommandOutput:
        if url is not None:
            monkeypatch.setenv("THREADKEEP_URL", url)
        code = run(list(args))
        return CommandOutput(code, *capsys.readouterr())

    return run_command


def populate(url: str) -> None:
    with threadkeep.open(url) as keep:
        example_threads.write_threads(keep)
        asyncio.run(example_threads.write_cube_threads(keep.cube))
        keep.store.put(("users", "ann"), "food", {"likes": "pizza", "n": 1})
        keep.store.put(("users", "bob"), "food", {"likes": "soup", "n": 2})
        keep.store.put(("a/b", "c\\d"), "k", {"x": [1, "1"]})


def test_a_thread_without_checkpoints_is_said_to_have_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with threadkeep.open(url) as keep:
        keep.describe("t", title="Not run yet")
    for name, code in (("tree", 0), ("log", 0), ("branches", 0), ("show", 1), ("trace", 1), ("blame", 1)):
        assert run([name, "t", *(["x"] if name == "blame" else []), "--url", url]) == code
        printed = capsys.readouterr()
        assert "no checkpoints" in printed.out + printed.err, name


def test_commands_say_what_the_verbs_say(lasting_url: str, command: Command) -> None:
    populate(lasting_url)
    command("--version", url=lasting_url)
    with threadkeep.open(lasting_url, read_only=True) as keep:
        log = keep.log("chat")
        expected = {
            ("threads",): keep.threads(),
            ("threads", "--order", "id", "--limit", "2"): keep.threads(order="id", limit=2),
            ("threads", "--order", "id", "--after", "chat"): keep.threads(order="id", after="chat"),
            ("threads", "--contains", "TAL"): keep.threads(contains="tal"),
            ("threads", "--prefix", "b", "--status", "error"): keep.threads(prefix="b"),
            ("threads", "--kind", "cube", "--metadata", "parent_thread_id=talk"): [keep.thread("talk2")],
            ("threads", "--metadata", "step=5"): [keep.thread("chat")],
            ("threads", "--metadata", "step=5", "--metadata", "source=input"): [],
            ("log", "fan"): keep.log("fan"),
            ("log", "fan", "--ns", "", "--limit", "1"): keep.log("fan", ns="", limit=1),
            ("show", "chat"): keep.show("chat"),
            ("show", "chat", log[3].id): keep.show("chat", log[3].id),
            ("show", "chat", "latest~2"): keep.show("chat", log[2].id),
            ("show", "fan", "--ns", keep.log("fan")[1].ns): keep.show("fan", ns=keep.log("fan")[1].ns),
            ("show", "chat", "--writes"): keep.show("chat").writes,
            ("show", "chat", "--state"): keep.show("chat").state,
            ("show", "chat", "--channel", "user"): keep.show("chat").values["user"],
            ("tree", "chat"): keep.tree("chat"),
            ("tree", "talk", "--kind", "cube"): keep.tree("talk"),
            ("blame", "chat", "messages[-1].content"): keep.blame("chat", "messages[-1].content"),
            ("blame", "chat", "user.name", "--checkpoint", log[4].id): keep.blame(
                "chat", "user.name", checkpoint_id=log[4].id
            ),
        }
        for args, value in expected.items():
            run_command = command(*args, "--json")
            assert (run_command.code, run_command.err) == (0, ""), args
            assert run_command.json == json.loads(json.dumps(as_plain(value))), args
        deep = json.loads(json.dumps(as_plain(keep.diff("chat", log[4].id, log[2].id))))
    for args in (
        ("chat", log[4].id, log[2].id), (f"chat@{log[4].id[-8:]}", "chat@latest~2"), (log[4].id, log[2].id),
        (log[4].id, "chat@latest~2"), ("chat", "latest~3", "latest~2"),
    ):  # fmt: skip
        run_command = command("diff", *args, "--json")
        assert (run_command.code, run_command.json) == (0, deep), args
    inner = [step for step in command("log", "fan", "--json").json if step["ns"]]
    for args, code in (
        (("show", "fan", inner[1]["id"][-8:]), 0),
        (("blame", "fan", "done[0]", "--checkpoint", inner[1]["id"][-8:]), 0),
        (("diff", "fan", inner[1]["id"], inner[0]["id"]), 0),
        (("diff", f"fan@{inner[1]['id'][-8:]}", inner[0]["id"]), 0),
    ):
        assert command(*args).code == code, args
    same = command("diff", "chat", "chat")
    assert (same.code, "no differences" in same.out) == (0, True)
    assert command("diff", "talk", "talk2").code == 0
    assert command("diff", "talk", "talk2", "--exit-code").code == 1
    memories_are_listed(command)
    wrong_input_is_said(command, log)
    what_is_said_to_people(command, log)


def memories_are_listed(command: Command) -> None:
    shown_out = command("memories", "users", "--query", "pizza", "--json")
    assert [(each["value"]["n"], each["score"] > 0) for each in shown_out.json] == [(1, True)]
    assert "score" in command("memories", "--query", "pizza").out
    spaces = command("memories", "--json").json
    assert spaces == [
        {"namespace": ["a/b", "c\\d"], "memories": 1}, {"namespace": ["users", "ann"], "memories": 1},
        {"namespace": ["users", "bob"], "memories": 1},
    ]  # fmt: skip
    assert [each["namespace"] for each in command("memories", "--json", "--limit", "1", "--offset", "1").json] == [
        ["users", "ann"]
    ]
    found = command("memories", "users", "--json").json
    assert {each["key"]: each["value"]["likes"] for each in found} and len(found) == 2
    assert [each["value"]["n"] for each in command("memories", "users/bob", "--json").json] == [2]
    for filters in (("likes=soup",), ("n=2",), ('{"n": {"$gt": 1}}',), ("n=2", "likes=soup")):
        options = [word for each in filters for word in ("--filter", each)]
        assert [each["value"]["n"] for each in command("memories", "users", *options, "--json").json] == [2]
    assert command("memories", "users", "--filter", "n=2", "--filter", "likes=pizza").out == "no memories\n"
    assert command("memories", "a\\/b/c\\\\d", "--json").json[0]["value"] == {"x": [1, "1"]}
    shown = command("memories")
    assert "a\\/b/c\\\\d" in shown.out and "users/ann" in shown.out
    assert '{"likes": "soup", "n": 2}' in command("memories", "users").out
    assert command("memories", "nobody").out == "no memories\n"


def wrong_input_is_said(command: Command, log: list[threadkeep.CheckpointInfo]) -> None:
    for code, *args in (
        (1, "show", "nobody"),
        (1, "log", "nobody"),
        (1, "tree", "nobody"),
        (1, "blame", "nobody", "x"),
        (1, "show", "chat", "nothing"),
        (1, "show", "chat", "--channel", "nothing"),
        (1, "diff", "chat", "nobody"),
        (1, "blame", "chat", "user.age"),
        (1, "diff", "chat", "latest~1", "nothing"),
        (1, "log", "chat", "--kind", "cube"),
        (2, "blame", "chat", "user..age"),
        (2, "show", "chat", log[0].id[:4]),
        (2, "show", "chat", "--state", "--writes"),
        (2, "threads", "--order", "colour"),
        (2, "threads", "--status", "happy"),
        (2, "threads", "--metadata", "step"),
        (2, "threads", "--metadata", "=1"),
        (2, "threads", "--limit", "-1"),
        (1, "threads", "--after", "nobody"),
        (2, "threads", "--kind", "tree"),
        (2, "log", "chat", "--limit", "x"),
        (2, "diff", "chat"),
        (2, "show"),
        (2, "diff", "chat", "fan", "--ns", "x"),
        (2, "memories", "a//b"),
        (2, "memories", "a\\"),
        (2, "memories", "a", "--filter", "{x"),
        (2, "memories", "a", "--filter", "x"),
        (2, "nonsense"),
    ):
        run_command = command(*args)
        assert (run_command.code, run_command.out) == (code, ""), args
        assert run_command.err, args
        assert "Traceback" not in run_command.err


def what_is_said_to_people(command: Command, log: list[threadkeep.CheckpointInfo]) -> None:
    chat = command("show", "chat").out.splitlines()
    assert chat[0] == "chat  interrupted  next: agent  latest"
    assert chat[1].startswith(f"  {log[0].id}  step 5  loop")
    assert chat[3:6] == ["[0] ai: Edited.", "[1] tool weather: 21 degrees", "[2] human: please approve"]
    assert 'note: {"$type": "gone_app.Note", "text": "hi", "pages": [3]}' in chat
    assert chat[-1] == 'interrupt in agent: {"question": "really?"}'
    shown_out = command("show", "chat", "latest~3").out
    assert '[1] ai: Let me look.\n      calls weather {"city": "Oslo"}\n[2] tool weather: 21 degrees' in shown_out
    assert "no such city" in command("show", "broken").out
    tree = command("tree", "chat").out.splitlines()
    short = [step.id[-8:] for step in log]
    assert [line.split("  ")[0].strip() for line in tree][2:6] == ["●", "│ ● " + short[3], "├─╯", "●"]
    assert [each for line in tree for each in short if each in line] == short
    assert "team:" in command("tree", "fan").out
    assert command("log", "chat", "--limit", "1").out.strip().endswith("→ agent  messages")
    assert '"source": "loop"' in command("log", "chat", "--limit", "1", "--metadata").out
    diff = command("diff", "chat", "latest~3", "latest").out
    assert '  ~ user.address.city: "Oslo" → "Bergen"' in diff and "  + messages[2]: human: please approve" in diff
    blame = command("blame", "chat", "messages[1].content").out
    assert "node        tool" in blame and log[4].id in blame and "first path  messages[2].content" in blame
    assert "update_state" in command("blame", "chat", "user.address.city").out
    listed = command("threads", "--limit", "1", "--order", "id").out
    assert "error" in listed and "--after broken" in listed
    assert "work" in command("show", "fan", "latest~2", "--writes").out


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ({"role": "user", "content": "hi"}, ["user: hi"]),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b"}]},
            ["assistant: a\nb"],
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_call", "name": "f", "arguments": {"x": 1}}]},
            ["assistant:", '  calls f {"x": 1}'],
        ),
        ({"role": "tool_result", "tool_name": "f", "content": [], "is_error": True}, ["tool_result f failed:"]),
        (
            {
                "$type": "x.AIMessage",
                "content": [{"type": "tool_use", "name": "f", "input": {}}],
                "tool_calls": [{"name": "f", "args": {"y": 2}}],
            },
            ["ai:", '  calls f {"y": 2}'],
        ),
        (
            {"$type": "x.ToolMessage", "type": "tool", "name": "f", "status": "error", "content": "no"},
            ["tool f failed: no"],
        ),
        ({"$type": "x.HumanMessageChunk", "content": {"odd": 1}}, ['human: {"odd": 1}']),
        ({"$type": "x.AIMessage", "content": None, "tool_calls": "odd"}, ["ai:"]),
        ({"role": 5, "content": 5}, ["?: 5"]),
    ],
)
def test_messages_of_all_kinds_are_shown(message: dict[str, Any], lines: list[str]) -> None:
    assert [text.plain for text in chat.message_lines(message)] == lines


# --- trees


def drawn(keep: threadkeep.Keep, glyphs: Any = UNICODE) -> list[str]:
    return [
        "".join(row.cells).rstrip() + (f" {row.checkpoint.id}" if row.checkpoint else "")
        for row in tree_rows(keep.tree("t"), glyphs)
    ]


@pytest.fixture
def memory() -> Iterator[threadkeep.Keep]:
    with threadkeep.open("memory://") as keep:
        yield keep


def put(keep: threadkeep.Keep, id: str, parent: str | None = None, ns: str = "", **metadata: Any) -> None:
    chain = Chain(keep.checkpointer, ns=ns)
    chain.last = parent
    chain.put({"x": id}, id=id, **metadata)


def test_branches_are_lanes(memory: threadkeep.Keep) -> None:
    for id, parent in (("1", None), ("2", "1"), ("3", "2"), ("4", "1"), ("5", "2"), ("6", "1"), ("7", "4")):
        put(memory, id, parent)
    assert drawn(memory) == [
        "● 7",
        "│ ● 6",
        "│ │ ● 5",
        "● │ │ 4",
        "│ │ │ ● 3",
        "│ │ ├─╯",
        "│ │ ● 2",
        "├─┴─╯",
        "● 1",
    ]
    assert drawn(memory, ASCII)[5:] == ["| | |-'", "| | * 2", "|-'-'", "* 1"]


def test_lanes_cross_and_roots_are_separate(memory: threadkeep.Keep) -> None:
    for id, parent in (("1", None), ("2", None), ("3", "2"), ("4", "1"), ("5", "2"), ("6", None), ("7", "gone")):
        put(memory, id, parent)
    put(memory, "8", "9")  # a parent with a greater id is not drawn as a parent
    put(memory, "9", None)
    apart = ["● 9", "", "● 8", "", "● 7", "", "● 6", ""]
    assert drawn(memory) == [*apart, "● 5", "│ ● 4", "│ │ ● 3", "├─│─╯", "● │ 2", "  ● 1"]


def test_subgraphs_hang_on_the_checkpoint_that_called_them(memory: threadkeep.Keep) -> None:
    put(memory, "1")
    put(memory, "2", None, "a:x", parents={"": "1"})
    put(memory, "3", None, "a:x|b:y", parents={"": "1", "a:x": "2"})
    put(memory, "4", "3", "a:x|b:y", parents={"": "1", "a:x": "2"})
    put(memory, "5", "2", "a:x", parents={"": "1"})
    put(memory, "6", "1", parents={"": ["odd"]})
    put(memory, "7", None, "c:z", parents="odd")
    assert drawn(memory) == ["● 7", "", "● 6", "│ ● 5", "│ │ ● 4", "│ │ ● 3", "│ ├─╯", "│ ● 2", "├─╯", "● 1"]


# --- users' text


HOSTILE = {
    "escape": "red \x1b[31m and \x9b31m \x07",
    "markup": "[red]not red[/red] [link=x]y[/] :smile:",
    "newline": "one\ntwo\r\tthree",
    "direction": "abc\u202edcba\u2066",
    "nul": "a\x00b",
    "surrogate": "a\ud83db",
    "long": "x" * 10_000,
    "option": "--json",
    "empty": "",
    "at": "a@b@c",
}


def test_users_text_cannot_control_the_terminal(tmp_path: Path, command: Command) -> None:
    file = f"sqlite:///{tmp_path / 'keep.db'}"
    with threadkeep.open(file) as keep:
        for id in HOSTILE.values():
            text = id.encode("utf-8", "replace").decode()  # a value with a lone surrogate cannot be stored
            calls = [{"name": text, "args": {text: text}, "id": "1"}]
            run_command = [
                HumanMessage(text, id="1"),
                AIMessage([{"type": "text", "text": text}, {"type": text}], tool_calls=calls, name=text),
            ]
            chain = Chain(keep.checkpointer, id)
            chain.put(
                {"messages": run_command, text or "none": {text: [text]}}, id=text or "none", source="loop", who=text
            )
            at = chain.put(
                {"messages": run_command[1:], text or "none": {text: text + "!"}},
                id=f"{text or 'none'}!",
                forked_from=text,
            )
            keep.checkpointer.put_writes(at, [(text, text), ("__error__", text)], text, f"~__pregel_pull, {text}")
        keep.store.put(("users", "\x1b[31m"), "\x1b]0;x\x07", {"\x1b": "\x9b31m[red]"})
    command("--version", url=file)
    for text in HOSTILE.values():
        words = [
            ("show", "--", text),
            ("show", "--writes", "--", text),
            ("log", "--metadata", "--", text),
            ("tree", "--", text),
            ("diff", "--", text, "latest~1", "latest"),
            ("blame", "--", text, f"[{json.dumps(text or 'none')}]"),
            ("threads", "--contains", text),
            ("show", "--", f"{text}nobody"),
            ("blame", "--", text, text),
        ]
        if "\ud83d" in text or "\x00" in text:  # such an argument cannot be passed to a process
            words = [("threads",), ("threads", "--json"), ("log", "--json", "--", text)]
        for args in words:
            run_command = command(*args)
            assert run_command.code in (0, 1, 2), args
            assert not UNSAFE.search(run_command.out), args
            assert not UNSAFE.search(run_command.err), args
        if "\ud83d" not in text and "\x00" not in text:
            lines = command("show", "--json", "--", text)
            assert not UNSAFE.search(lines.out)
            assert lines.json["checkpoint"]["thread"] == text
            assert lines.json["values"]["messages"][0]["content"][0]["text"] == text
    assert "[red]not red[/red] [link=x]y[/] :smile:" in command("show", "--", HOSTILE["markup"]).out
    assert "red \\x1b[31m and \\x9b31m \\x07" in command("show", "--", HOSTILE["escape"]).out
    for args in (("threads",), ("memories",), ("memories", "users"), ("memories", "--json")):
        run_command = command(*args)
        assert run_command.code == 0 and not UNSAFE.search(run_command.out)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("a", ("a",)),
        ("a/b", ("a", "b")),
        ("a\\/b/c", ("a/b", "c")),
        ("a\\\\/b", ("a\\", "b")),
        ("a.b", ("a.b",)),
    ],
)
def test_namespaces_are_segments(text: str, parts: tuple[str, ...]) -> None:
    assert parse_namespace(text) == parts
    assert parse_namespace(format_namespace(parts)) == parts


# --- the program


def test_the_command_is_a_program(tmp_path: Path) -> None:
    file = tmp_path / "keep.db"
    populate(f"sqlite:///{file}")
    # lines of this page would be wrapped in a terminal of 80 columns; a pipe gets whole lines
    clean = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "THREADKEEP_URL")}

    def program(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "threadkeep", *args]
        return subprocess.run(
            command, env=clean | {"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=False, timeout=120
        )

    shown = program("show", "chat", "--url", str(file))
    assert shown.returncode == 0 and "human: please approve" in shown.stdout, shown.stderr
    assert program("diff", "chat", "latest~1", "latest", "--url", str(file), "--exit-code").returncode == 1
    gone = program("threads", "--url", str(file) + "x")
    assert (gone.returncode, gone.stdout) == (2, "") and "not found" in gone.stderr
    assert not Path(f"{file}x").exists()
