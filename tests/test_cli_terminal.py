"""What people see: commands run in a real terminal of 80 and of 140 columns, on a thread of 300 messages."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from rich.cells import cell_len

import fork_server
import threadkeep
from checkpoint_chains import Chain
from threadkeep.cli.app import run

WIDTHS = (80, 140)
MAIN = "from threadkeep.cli import main; main()"
THREAD = "support-7f3a9c1e-4d2b-4b6e-9a55"
HOSTILE = "evil \x1b[2Jred\x07\nnew\u202e"
WIDE = "東京-予約 🎉"
UUIDS = ["0d5f8a52-3c1e-4b7a-9a55-7f3a9c1e4d2b", "1b0c6a11-80f2-4d0e-8f0b-2a6b1c9d7e34"]
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
TOPICS = ("order 4711", "東京のホテルを予約してください 🏨", "why nobody answered me for three weeks, " * 4)
ANSWER = (
    "Here is what I found.\n\n1. It was shipped on Monday, and the carrier says that it is in Basel now, 🎉 tomorrow."
)


class State(MessagesState, total=False):
    user: dict[str, Any]
    todos: list[str]


def support(saver: Any) -> Any:
    """Build an agent that calls a tool for each question, and asks a person at every 80th message."""

    def agent(state: State) -> dict[str, Any]:
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage(ANSWER)], "todos": ["answer"]}
        args = {"query": state["messages"][-1].content, "filters": {"status": ["open", "shipped"], "since": "2026"}}
        call = {"name": "lookup", "args": args, "id": f"c{len(state['messages'])}"}
        return {"messages": [AIMessage("Let me look.", tool_calls=[call])], "user": {"name": "Ann"}}

    def tool(state: State) -> dict[str, Any]:
        call = state["messages"][-1].tool_calls[0]["id"]  # type: ignore[union-attr]
        return {"messages": [ToolMessage('{"order": 4711}', tool_call_id=call, name="lookup")]}

    def ask(state: State) -> dict[str, Any]:
        return {"todos": [interrupt("May I refund?")]} if len(state["messages"]) % 80 == 0 else {}

    builder = StateGraph(State).add_node("agent", agent).add_node("tool", tool).add_node("ask", ask)
    builder.add_edge(START, "agent").add_edge("tool", "agent").add_edge("ask", END)
    builder.add_conditional_edges("agent", lambda state: "tool" if state["messages"][-1].tool_calls else "ask")
    return builder.compile(checkpointer=saver)


class Place(NamedTuple):
    """The file of the example, and checkpoints of its long thread."""

    url: str
    folder: Path
    latest: str
    tagged: str
    interrupted: list[str]
    count: int


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("terminal")
    url = f"sqlite:///{folder / 'agent.db'}"
    with threadkeep.open(url) as keep:
        graph, config = support(keep.checkpointer), {"configurable": {"thread_id": THREAD}}
        for n in range(75):
            if "__interrupt__" in graph.invoke({"messages": [HumanMessage(TOPICS[n % 3])]}, config):
                graph.invoke(Command(resume="yes"), config)
        log = keep.log(THREAD)
        keep.tag(THREAD, log[4].id, "before refund")
        for todo in ("one", "two"):
            graph.update_state(log[9].config, {"todos": [todo]})
        keep.rollback(THREAD, log[0].id)
        graph.invoke({"messages": [HumanMessage("one more")]}, config)
        for id in (HOSTILE, WIDE, *(f"chat-{n:02}" for n in range(60))):
            Chain(keep.checkpointer, id).put({"messages": [HumanMessage(id)]}, source="loop", who=id)
        keep.store.put(("users", "東京"), HOSTILE, {"likes": "寿司 🍣 " * 20, "evil": HOSTILE})
        log = keep.log(THREAD)
        tagged = next(each.id for each in log if each.tag)
        return Place(url, folder, log[0].id, tagged, [each.id for each in log if each.interrupted], len(log))


class Screen(NamedTuple):
    """What a command printed to a terminal."""

    code: int
    text: str

    @property
    def plain(self) -> str:
        return COLOURS.sub("", self.text)

    @property
    def lines(self) -> list[str]:
        return self.plain.split("\n")[:-1]


Terminal = Callable[..., Screen]


@pytest.fixture
def terminal(place: Place, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Runs the program in a terminal of its own, through the fork server."""
    monkeypatch.chdir(place.folder)
    clean = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR", "LESS")}
    ours = {"THREADKEEP_URL": place.url, "TERM": "xterm-256color", "PAGER": "cat"}

    def run_program(*args: str, width: int = 80, height: int = 24, progress: bool = True, **environment: str) -> Screen:
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        script = f"import os; os.environ.clear(); os.environ.update({clean | ours | environment!r}); {MAIN}"
        ends = [os.dup(follower), os.dup(follower), os.dup(follower) if progress else os.open(os.devnull, os.O_WRONLY)]
        os.close(follower)
        with fork_server.Forked([script, *args], stdin=ends[0], stdout=ends[1], stderr=ends[2]) as process:
            printed = b"".join(read_all(leader))
            code = process.wait(timeout=120)
        os.close(leader)
        return Screen(code, printed.decode().replace("\r\n", "\n"))

    return run_program


def read_all(leader: int) -> Iterator[bytes]:
    """Yield what is written to a terminal until its last process ends."""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:  # Linux's way to say that it ended
            return
        if not data:
            return
        yield data


def piped(place: Place, *args: str, **environment: str) -> str:
    """Run the program with a pipe as its output."""
    clean = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    script = f"import os; os.environ.clear(); os.environ.update({clean | environment!r}); {MAIN}"
    pipe = subprocess.PIPE
    command = [script, *args, "--url", place.url]
    with fork_server.Forked(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        printed, complaint = process.communicate(timeout=120)
    assert (process.returncode, complaint) == (0, "")
    return str(printed)


# --- widths and hostile text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "args",
    [
        ("show", THREAD),
        ("show", THREAD, "latest~9", "--writes"),
        ("log", THREAD, "--metadata", "--last", "40"),
        ("tree", THREAD, "--full-ids"),
        ("diff", THREAD, "latest~6", "latest"),
        ("blame", THREAD, "messages[4].content"),
        ("trace", THREAD, "latest~3", "--values"),
        ("threads",),
        ("threads", "--order", "id"),
        ("memories", "users"),
        ("sizes",),
        ("types",),
        ("doctor",),
        ("search", "order", "--limit", "9"),
        ("search", "evil", "--full-ids"),
        ("usage", "--by", "thread", "--by", "node", "--by", "metadata:who"),
        ("branches", THREAD),
        ("branches", THREAD, "--full-ids"),
        ("branches", THREAD, "--compare", "latest", "latest~4", "--full-ids"),
        ("branches", HOSTILE),
        ("waiting",),
        ("flow", THREAD),
        ("flow", HOSTILE),
        ("show", HOSTILE),
        ("log", WIDE, "--metadata"),
    ],
    ids=" ".join,
)
def test_every_line_fits_the_terminal_and_cannot_control_it(
    terminal: Terminal, args: tuple[str, ...], width: int
) -> None:
    screen = terminal(*args, width=width, progress=False)
    assert screen.code == 0, screen.plain
    assert [line for line in screen.lines if cell_len(line) > width] == []
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", screen.plain)


@pytest.mark.parametrize("width", WIDTHS)
def test_columns_of_wide_characters_are_aligned(terminal: Terminal, width: int) -> None:
    lines = terminal("threads", "--limit", "0", "--contains", "予", width=width).lines
    assert lines == ["no threads"]
    header, _, *rows = terminal("threads", "--order", "id", "--limit", "80", width=width).lines
    start = header.index("status")
    ids = ("chat-", "evil", WIDE)
    for row in (row for row in rows if row.startswith(ids)):
        at = next(n for n in range(len(row)) if cell_len(row[:n]) == start)
        assert row[at:].startswith("idle"), row


@pytest.mark.parametrize("width", WIDTHS)
def test_wrapped_lines_of_messages_keep_their_column(terminal: Terminal, width: int) -> None:
    screen = terminal("show", THREAD, "--last", "8", width=width)
    lines = screen.lines[screen.lines.index("") + 2 :]
    chat = lines[: next(n for n, line in enumerate(lines) if line.startswith(("user:", "todos:"))) - 1]
    firsts = [line for line in chat if line.startswith("[")]
    assert len(firsts) == 8
    assert all(line.startswith(" " * 8) or not line for line in chat if line not in firsts)
    assert any(line.startswith("        calls lookup") for line in chat)
    wrapped = " ".join(" ".join(chat).split())
    assert " ".join(ANSWER.split()) in wrapped


@pytest.mark.parametrize("width", WIDTHS)
def test_wrapped_lines_of_hits_keep_their_column(terminal: Terminal, width: int) -> None:
    lines = terminal("search", "shipped", "carrier", "--limit", "4", "--full-ids", width=width, progress=False).lines
    *hits, scanned = lines
    assert sum(line.startswith(THREAD) for line in hits) == 4
    assert all(line.startswith("  ") for line in hits if not line.startswith(THREAD))
    assert any(line.startswith("  Monday") or "shipped on Monday" in line for line in hits)
    assert scanned.startswith("scanned 63 threads")


def test_lanes_of_a_tree_go_on_below_a_wrapped_line(terminal: Terminal) -> None:
    screen = terminal("tree", THREAD, "--last", "25", width=72)
    (at,) = [n for n, line in enumerate(screen.lines) if "tag:" in line]
    assert screen.lines[at].startswith("● │ │ ")
    assert screen.lines[at + 1].startswith("│ │ │   ")


# --- long threads


def test_a_terminal_shows_the_last_messages_and_says_how_to_see_the_others(terminal: Terminal, place: Place) -> None:
    shown = terminal("show", THREAD).plain
    assert "\n… 284 earlier messages: --last 304 prints all\n[284] human: " in shown
    assert "\n[303] ai: Here is what I found.\n" in shown
    everything = terminal("show", THREAD, "--last", "304").plain
    assert "…" not in everything.split("\nuser:")[0]
    assert "\n  [0] human: order 4711\n" in everything
    in_pipe = piped(place, "show", THREAD)
    assert re.findall(r"^ *\[(\d+)\] ", in_pipe, re.MULTILINE) == [str(n) for n in range(304)]
    assert "… 302 earlier messages" in piped(place, "show", THREAD, "--last", "2")


def test_the_number_of_a_message_is_the_one_that_blame_takes(place: Place, terminal: Terminal) -> None:
    for number, role in re.findall(r"^\[(\d+)\] (\w+)", terminal("show", THREAD, "--last", "4").plain, re.MULTILINE):
        blamed = terminal("blame", THREAD, f"messages[{number}]").plain
        assert blamed.startswith(f"messages[{number}]: {role}")


def test_tree_and_log_print_the_last_checkpoints_and_say_how_many_are_not_drawn(
    terminal: Terminal, place: Place
) -> None:
    lines = terminal("tree", THREAD, "--last", "12").lines
    assert len([line for line in lines if "●" in line]) == 12
    assert lines[-1] == f"… {place.count - 12} earlier checkpoints: --last {place.count} prints all"
    assert len([line for line in terminal("tree", THREAD).lines if "●" in line]) == place.count
    assert len(terminal("log", THREAD, "--last", "12").lines) == 12
    assert len(piped(place, "log", THREAD).splitlines()) == place.count


def test_the_latest_tags_and_interrupts_are_marked_and_nothing_else(terminal: Terminal, place: Place) -> None:
    assert len(place.interrupted) == 3
    for command in ("tree", "log"):
        lines = terminal(command, THREAD).lines
        for mark, ids in (
            ("  latest", [place.latest]),
            ("  tag: before refund", [place.tagged]),
            ("  interrupt", place.interrupted),
        ):
            marked = [line for line in lines if mark in line]
            assert len(marked) == len(ids), mark
            assert all(id[-8:] in line for id, line in zip(ids, marked, strict=True))
    assert terminal("show", THREAD).lines[0].endswith("  latest")
    assert terminal("show", THREAD, place.latest).lines[0].endswith("  latest")
    assert terminal("show", THREAD, place.tagged).lines[0].endswith("  tag: before refund")


def test_ids_are_short_unless_asked_and_every_short_id_names_its_checkpoint(terminal: Terminal, place: Place) -> None:
    short = [line.split()[0] for line in terminal("log", THREAD, "--last", "3").lines]
    lines = terminal("log", THREAD, "--last", "3", "--full-ids").lines
    full = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert piped(place, "log", THREAD, "--last", "3", "--ids").split() == full
    assert all(len(one) < len(other) and other.endswith(one) for one, other in zip(short, full, strict=True))
    assert full[1] in terminal("show", THREAD, short[1]).plain
    assert full[0] in terminal("tree", THREAD, "--last", "1", "--full-ids").plain


def test_the_ids_of_hits_are_short_unless_asked_and_name_their_checkpoints(terminal: Terminal, place: Place) -> None:
    for width in WIDTHS:
        heading = terminal("search", "order", "--limit", "1", width=width, progress=False).lines[0].split()
        full = terminal("search", "order", "--limit", "1", "--full-ids", width=width, progress=False).lines[0].split()
        assert heading[0] == full[0] == THREAD
        assert full[1].endswith(heading[1])
        assert len(heading[1]) < len(full[1])
        assert full[1] in terminal("show", THREAD, heading[1]).plain


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_of_branches_has_no_broken_words_and_no_empty_columns(terminal: Terminal, width: int) -> None:
    lines = terminal("branches", THREAD, width=width).lines
    columns = [name.strip() for name in lines[0].split("  ") if name.strip()]
    wide = ["checkpoints", "step"] if width == max(WIDTHS) else []
    assert columns == ["head", "forks at", *wide, "status", "next", "updated", "tags"]
    assert ("a wider terminal also shows: checkpoints, step" in lines) is not bool(wide)


def test_the_threads_of_a_terminal_are_a_page_and_those_of_a_pipe_all(terminal: Terminal, place: Place) -> None:
    shown = terminal("threads", "--order", "id").lines
    assert shown[-1].startswith("next page: --after ")
    assert shown[-2] == "a wider terminal also shows: kind"
    assert len(shown) == 2 + 50 + 2
    assert len(piped(place, "threads").splitlines()) == 2 + 63
    ids = piped(place, "threads", "--ids").splitlines()
    assert len(ids) == 63 and WIDE in ids
    assert "evil \\x1b[2Jred\\x07\\nnew\\u202e" in ids
    assert piped(place, "search", "order", "--ids").splitlines() == [THREAD]
    assert piped(place, "waiting", "--ids").splitlines() in ([], [THREAD])
    assert piped(place, "memories", "--ids") == "users/東京\n"
    assert piped(place, "memories", "users", "--ids").startswith("users/東京\tevil \\x1b")


@pytest.fixture(scope="module")
def long_ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with threads that have a UUID as their id, and long titles, also in wide characters."""
    file = tmp_path_factory.mktemp("long-ids") / "agent.db"
    with threadkeep.open(f"sqlite:///{file}") as keep:
        for id, topic in zip(UUIDS, (TOPICS[1] * 2, TOPICS[2]), strict=True):
            Chain(keep.checkpointer, id).put({"messages": [HumanMessage(topic)]}, source="loop", who=TOPICS[2])
        keep.describe(UUIDS[1], labels=["new"])
    return file


@pytest.mark.parametrize("order", ["id", "bytes"])
@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_a_thread_is_one_line_with_its_whole_id(terminal: Terminal, long_ids: Path, width: int, order: str) -> None:
    lines = terminal("threads", "--url", str(long_ids), "--order", order, width=width).lines
    assert sorted(line.split()[0] for line in lines[2:4]) == sorted(UUIDS)
    assert all(cell_len(line) <= width for line in lines)
    assert ("size" if order == "bytes" else "updated") in lines[0] or width == 60
    assert any(line.rstrip().endswith("[new]") for line in lines)
    assert " ".join(lines[4:]).startswith("a wider terminal also shows: kind" if width < 160 else "")
    assert len(lines) > 4 or width == 160


def test_a_title_and_metadata_are_folded_before_an_id(terminal: Terminal, long_ids: Path) -> None:
    lines = terminal("threads", "--url", str(long_ids), "--column", "who").lines
    assert [line.split()[0] for line in lines if line.startswith(("0", "1"))] == UUIDS[::-1]
    narrow = terminal("threads", "--url", str(long_ids), "--ids", width=40).lines
    assert sorted(narrow) == sorted(UUIDS)


# --- the pager


def test_long_output_is_paged_in_a_terminal_only(terminal: Terminal, place: Place) -> None:
    pager = {"PAGER": "sed 's/^/paged /'"}
    assert all(line.startswith("paged ") for line in terminal("log", THREAD, **pager).lines)
    assert "paged" not in terminal("log", THREAD, "--last", "20", **pager).plain, "it fits the screen"
    assert "paged" in terminal("log", THREAD, "--last", "20", height=10, **pager).plain
    assert "paged" not in terminal("--no-pager", "log", THREAD, **pager).plain
    assert "paged" not in terminal("log", THREAD, "--no-pager", **pager).plain
    assert "paged" not in terminal("log", THREAD, "--json", **pager).plain
    assert "paged" not in terminal("log", THREAD, TERM="dumb", **pager).plain
    assert "paged" not in piped(place, "log", THREAD, **pager)


@pytest.mark.parametrize("pager", ["", "cat"])
def test_without_a_pager_everything_is_printed(terminal: Terminal, place: Place, pager: str) -> None:
    assert len(terminal("log", THREAD, PAGER=pager).lines) == place.count


def test_a_pager_that_is_left_early_is_no_error(terminal: Terminal) -> None:
    screen = terminal("tree", THREAD, PAGER="head -n 1")
    assert (screen.code, len(screen.lines)) == (0, 1)


def test_a_pager_that_is_missing_is_an_error_that_names_it(terminal: Terminal) -> None:
    screen = terminal("log", THREAD, PAGER="no-such-pager -x")
    assert (screen.code, "no-such-pager" in screen.plain, "--no-pager" in screen.plain) == (2, True, True)


# --- colours and pipes


def test_colours_are_for_terminals_unless_the_environment_says_otherwise(terminal: Terminal, place: Place) -> None:
    assert "\x1b[" in terminal("log", THREAD, "--last", "3").text
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", terminal("log", THREAD, "--last", "3", NO_COLOR="1").text)
    assert "\x1b[" not in piped(place, "log", THREAD, "--last", "3")
    coloured = piped(place, "log", THREAD, "--last", "3", FORCE_COLOR="1")
    assert COLOURS.sub("", coloured) == piped(place, "log", THREAD, "--last", "3") != coloured


@pytest.mark.parametrize("command", ["threads", "threads --ids", f"log {THREAD}", f"tree {THREAD}", f"show {THREAD}"])
def test_a_reader_that_has_read_enough_ends_the_command_quietly(place: Place, command: str) -> None:
    script = f"{sys.executable} -m threadkeep {command} --url {place.url} | head -1"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr, len(ended.stdout.splitlines())) == (0, "", 1)


# --- references to checkpoints


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread whose ids begin differently, two of them alike."""
    monkeypatch.setenv("THREADKEEP_URL", f"sqlite:///{tmp_path / 'chain.db'}")
    with threadkeep.open(f"sqlite:///{tmp_path / 'chain.db'}") as keep:
        chain = Chain(keep.checkpointer, "t")
        for id in ("1aaa-first-checkpoint-x", "2bbb-second-checkpoint-y", "2bcc-third-checkpoint-z"):
            chain.put({"name": id}, id=id, source="loop", step=1)
        inner = Chain(keep.checkpointer, "t", ns="sub:1")
        inner.put({"name": "in"}, id="2cdd-inner-checkpoint-w", source="loop", step=1)


COMMANDS = ("show t {}", "trace t {}", "blame t name --checkpoint {}", "diff t {} latest", "diff t@{} t",
            "rollback t {} --dry-run", "fork t {} --to f", "tag t {} kept", "repair t {} --dry-run")  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_unique_beginning_of_an_id(chain: None, capsys: Any, command: str) -> None:
    assert run(command.format("1a").split()) == 0
    assert "1aaa-first-checkpoint-x" in capsys.readouterr().out or command.startswith(("trace", "blame", "repair"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_beginning_of_several_ids_is_an_error_that_lists_them(chain: None, capsys: Any, command: str) -> None:
    assert run(command.format("2b").split()) == 2
    error = capsys.readouterr().err
    assert "2 checkpoints" in error
    assert "2bcc-third-checkpoint-z, 2bbb-second-checkpoint-y" in error


def test_ids_of_several_namespaces_are_listed_with_them(chain: None, capsys: Any) -> None:
    assert run(["show", "t", "2"]) == 2
    error = capsys.readouterr().err
    assert "3 checkpoints" in error and "2cdd-inner-checkpoint-w in namespace 'sub:1'" in error and "--ns" in error
    assert run(["show", "t", "2", "--ns", "sub:1"]) == 0
    assert run(["show", "t", "2c"]) == 0
