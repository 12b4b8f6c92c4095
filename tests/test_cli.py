"""The program `threadkeep`: every command on every backend, its exit codes, and that all of it is documented."""

from __future__ import annotations

import io
import json
import operator
import os
import secrets
import signal
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import cli_reference
import fork_server
import threadkeep
from threadkeep.cli import app as cli
from threadkeep.cli.app import run

COMMANDS = cli_reference.commands()


def program(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the real program in a new process."""
    return subprocess.run(
        [sys.executable, "-m", "threadkeep", *args],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def forked(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it through the fork server, because imports are most of the time that a command takes."""
    script = f"import os; os.environ.update({environment!r}); from threadkeep.cli import main; main()"
    pipe = subprocess.PIPE
    with fork_server.Forked([script, *args], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        result, complaint = process.communicate(timeout=120)
    return subprocess.CompletedProcess(args, process.returncode, result, complaint)


# --- documented


def test_the_table_of_commands_has_all_of_them_in_the_order_of_help() -> None:
    """Only the module that the table names for a command is imported to run it."""
    listed = [(name, f"threadkeep.cli.{module}") for name, module in cli._MODULES.items()]
    assert sorted(listed) == sorted((name, command.callback.__module__) for name, command in COMMANDS.items())
    assert list(cli._MODULES) == list(COMMANDS)


def test_a_command_imports_no_module_of_other_commands(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with threadkeep.open(url) as keep:
        keep.setup()
    code = "import sys; from threadkeep.cli.app import run; run(sys.argv[1:]); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code, "threads", "--url", url], capture_output=True, text=True)
    imported = set(ended.stdout.split())
    assert "threadkeep.cli.show" in imported
    assert not {"threadkeep.cli.transfer", "threadkeep.cli.health", "threadkeep.transfer"} & imported


@pytest.mark.parametrize("args", [["--version"], ["--timeout", "5", "--version"]], ids=["alone", "with another option"])
def test_the_version_is_printed(args: list[str]) -> None:
    assert forked(*args).stdout == f"threadkeep {threadkeep.__version__}\n"


def test_the_version_needs_neither_typer_nor_langchain() -> None:
    code = (
        "import sys, atexit; from threadkeep.cli import main;"
        "atexit.register(lambda: print('typer' in sys.modules, 'langchain_core' in sys.modules)); main(['--version'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == f"threadkeep {threadkeep.__version__}\nFalse False\n"


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - cli.WITHOUT_STORAGE))
def test_every_command_has_the_common_options_and_says_what_each_option_does(name: str) -> None:
    options = {opt: param for param in COMMANDS[name].params for opt in param.opts}
    common = set(cli_reference.COMMON) - ({"--tenant"} if name == "tenants" else set())
    assert common <= options.keys()
    assert all(getattr(param, "help", None) for opt, param in options.items() if opt != "--help")
    assert COMMANDS[name].help


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - cli.WITHOUT_STORAGE))
def test_every_command_shows_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"threadkeep {name}" in shown
    assert "--json" in shown


# --- every command, on every backend, as a process


class State(TypedDict):
    items: Annotated[list[str], operator.add]
    user: dict[str, Any]


def graph(saver: Any) -> Any:
    def greet(state: State) -> dict[str, Any]:
        return {"items": ["greeted"], "user": {"city": "Bern"}}

    def ask(state: State) -> dict[str, Any]:
        return {"items": [interrupt("go on?")], "user": {"city": "Basel"}}

    builder = StateGraph(State).add_node("greet", greet).add_node("ask", ask)
    return builder.add_edge(START, "greet").add_edge("greet", "ask").compile(checkpointer=saver)


def at(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def filled(url: str, folder: Path) -> None:
    """Write an interrupted thread, memories, and a SqliteSaver's file to import."""
    with threadkeep.open(url) as keep:
        graph(keep.checkpointer).invoke({"items": ["hello"]}, at("t"))
        keep.store.put(("users", "u7"), "food", {"likes": "pizza"})
        keep.lease("leased", ttl=600).__enter__()  # of a process that dies
    (folder / "keys").write_text(f"k1:{b64encode(bytes(32)).decode()}\n")
    with SqliteSaver.from_conn_string(str(folder / "theirs.db")) as theirs:
        graph(theirs).invoke({"items": ["from elsewhere"]}, at("moved"))


def steps(folder: Path) -> list[tuple[tuple[str, ...], Any]]:
    """Commands in a realistic order, each with what its JSON must contain."""
    there = f"sqlite:///{folder / 'there.db'}"
    return [
        (("describe", "leased", "--title", "A", "--label", "b"), lambda result: result["labels"] == ["b"]),
        (("threads", "--label", "b", "--not-archived"), lambda result: [each["title"] for each in result] == ["A"]),
        (("describe", "leased", "--no-title", "--no-labels"), lambda result: result["title"] is None),
        (("lease", "show", "leased"), lambda result: result["seconds"] > 0),
        (("lease", "break", "leased", "--yes"), lambda result: result["thread"] == "leased"),
        (("threads",), lambda result: [each["id"] for each in result] == ["t"]),
        (
            ("threads", "--metadata", "source=input", "--match", "any"),
            lambda result: [each["id"] for each in result] == ["t"],
        ),
        (("show", "t"), lambda result: result["values"]["items"] == ["hello", "greeted"]),
        (("log", "t"), lambda result: [each["step"] for each in result] == [1, 0, -1]),
        (("tree", "t"), lambda result: "greet" in json.dumps(result)),
        (("diff", "t", "latest~1", "latest"), lambda result: "greeted" in json.dumps(result)),
        (("blame", "t", "user.city"), lambda result: result["write"]["node"] == "greet"),
        (("memories", "users"), lambda result: "pizza" in json.dumps(result)),
        (("trace", "t"), lambda result: [each["node"] for each in result] == ["ask"]),
        (("flow", "t"), lambda result: "greet" in [each["name"] for each in result["nodes"]]),
        (("activity", "--since", "1d"), lambda result: "greet" in json.dumps(result)),
        (("sizes", "t"), lambda result: "items" in json.dumps(result)),
        (("sizes", "t", "--checkpoint", "latest"), lambda result: result["checkpoint"]["state"] > 0),
        (("stats",), lambda result: "interrupted" in json.dumps(result)),
        (("usage", "--by", "model"), lambda result: (result["threads"], result["total"]["messages"]) == (1, 0)),
        (("waiting",), lambda result: [each["question"] for each in result] == ["go on?"]),
        (("search", "greeted"), lambda result: [each["thread"] for each in result["hits"]] == ["t"]),
        (("types",), lambda result: [each["name"] for each in result["types"]] == ["langgraph.types.Interrupt"]),
        (("rollback", "t", "latest~1"), lambda result: result["parent"] == result["forked_from"]),
        (("branches", "t"), lambda result: [each["is_latest"] for each in result] == [True, False]),
        (("fork", "t", "--to", "f"), lambda result: result["thread"] == "f"),
        (("copy", "t", "c"), lambda result: result["target"] == "c"),
        (("tag", "c", "latest", "kept"), lambda result: result["tag"] == "kept"),
        (("verify",), lambda result: result["problems"] == [] and result["threads"] == 3),
        (("doctor",), lambda result: any(each["name"] for each in result)),
        (("repair", "t"), lambda result: result is not None),
        (("export", "--output", str(folder / "all.tk")), lambda result: result["threads"] == 3),
        (("convert", "--url", there, "SOURCE", there), lambda result: result["threads"] == 3),
        (("import", str(folder / "theirs.db")), lambda result: result["threads"] == 1),
        (("prune", "t", "--yes"), lambda result: result["checkpoints"] == 3),
        (("sweep", "--yes"), lambda result: "memories" in result),
        (("compact",), lambda result: result is not None),
        (("delete", "--metadata", "source=input", "--dry-run"), lambda result: "c" in result["deleted"]),
        (("delete", "c", "f", "--yes"), lambda result: result["deleted"] == ["c", "f"]),
        (("migrate",), lambda result: not result["needed"] and result["found"] == result["current"]),
        (("setup",), lambda result: not result["needed"] and result["found"] == result["current"]),
        (("backup", str(folder / "backup")), lambda result: (result["threads"], result["memories"]) == (2, 1)),
        (("restore", str(folder / "backup"), str(folder / "new.db")), lambda result: result["threads"] == 2),
        (
            ("erase", "t", "--namespace", "users", "--yes"),
            lambda result: ([each["id"] for each in result["threads"]], result["memories"]) == (["t"], 1),
        ),
        (("encrypt", "--keys", str(folder / "keys")), lambda result: (result["threads"], result["memories"]) == (1, 0)),
        (
            ("rotate", "--keys", str(folder / "keys")),
            lambda result: (result["threads"], result["primary"]) == (1, "k1"),
        ),
        (
            ("reencrypt", "--no-wait", "--keys", str(folder / "keys")),
            lambda result: (result["threads"], result["memories"]) == (1, 0),
        ),
        (("tenants", "--keys", str(folder / "keys")), lambda result: [each["encrypted"] for each in result] == [True]),
    ]


def test_every_command_works_as_a_program(lasting_url: str, tmp_path: Path) -> None:
    filled(lasting_url, tmp_path)
    all_steps = steps(tmp_path)
    assert {args[0] for args, _ in all_steps} == set(COMMANDS) - {
        "inspect",
        "demo",
    }  # one serves until it is stopped, one has its own test
    for number, (args, is_expected) in enumerate(all_steps):
        start = program if lasting_url.startswith("sqlite") and number % 5 == 0 else forked
        given = [lasting_url if arg == "SOURCE" else arg for arg in args]
        ended = start(*given, "--json", THREADKEEP_URL=lasting_url)
        wrong = args[0] == "doctor" and "postgresql:" in lasting_url  # the tests' server has no fsync
        assert ended.returncode == int(wrong), (args, ended.stderr)
        assert is_expected(json.loads(ended.stdout)), (args, ended.stdout)
    with threadkeep.open(lasting_url, keys=threadkeep.Keys.from_file(tmp_path / "keys")) as keep:
        answered = graph(keep.checkpointer).invoke(Command(resume="yes"), at("moved"))
        assert answered["items"] == ["from elsewhere", "greeted", "yes"]


# --- exit codes


def test_the_installed_program_is_the_module() -> None:
    installed = Path(sys.executable).parent / "threadkeep"
    ended = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout == program("--version").stdout == f"threadkeep {threadkeep.__version__}\n"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ((), 2, "Usage"),
        (("frobnicate",), 2, "No such command"),
        (("threads", "--frobnicate"), 2, "No such option"),
        (("show",), 2, "Missing argument"),
        (("threads", "here.db"), 2, "The storage is an option: --url here.db"),
        (("threads", "--url", ""), 2, "--url"),
        (("threads", "--url", "nowhere.db"), 2, "nowhere.db"),
        (("threads", "--url", "mysql://x"), 2, "sqlite:///"),
        (("threads", "--url", "postgresql://127.0.0.1:1/x?connect_timeout=2"), 3, "error"),
        (("show", "nobody"), 1, "nobody"),
        (("show", "t", "0000"), 1, "0000"),
        (("delete", "t"), 2, "--yes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_an_error_is_one_line_and_an_exit_code(
    args: tuple[str, ...], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THREADKEEP_URL", "sqlite:///here.db")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with threadkeep.open("sqlite:///here.db") as keep:
        graph(keep.checkpointer).invoke({"items": ["hello"]}, at("t"))
    assert run(args) == code
    result = capsys.readouterr()
    assert says in result.err + (result.out if not args else "")
    assert "Traceback" not in result.err
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".db") == ["here.db"]


INTERRUPTED = """
import os, signal
from threadkeep.cli.app import app, run
@app.command()
def wait() -> None:
    os.kill(os.getpid(), signal.SIGINT)
raise SystemExit(run(["wait"]))
"""


def test_an_interrupted_program_says_so() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert ended.returncode == 128 + signal.SIGINT
    assert ended.stderr == "interrupted; finished work stays\n"


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with threadkeep.open(url) as keep:
        graph(keep.checkpointer).invoke({"items": [secrets.token_hex(1_000_000)]}, at("t"))
    for args in ("show t --json", "show t --state", "show t", "export -o -"):
        command = f"{sys.executable} -m threadkeep {args} --url {url} | head -c 10 > {tmp_path / 'read'}"
        ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, ""), args
