"""The commands as a whole: their groups, examples, options and settings files."""

from __future__ import annotations

import inspect
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

import cli_reference
import threadkeep
from checkpoint_chains import Chain
from threadkeep import Keep, inspector
from threadkeep.adapters.langgraph_store import KeepStore
from threadkeep.cli import groups, settings
from threadkeep.cli.app import WITHOUT_STORAGE, run
from threadkeep.jobs import policies

COMMANDS = {name: command for name, command in cli_reference.commands().items() if name not in WITHOUT_STORAGE}
COMMON = {"url", "tenant", "json", "keys", "timeout", "no_pager"}
OUTPUT = {"ids", "full_ids", "last"}
"""Options that only say how a result is printed."""
ASKING = {"yes"}
NAMES = {
    "thread": "thread_id",
    "threads": "thread_id",
    "checkpoint": "checkpoint_id",
    "label": "labels",
    "column": "columns",
}
"""What commands call parameters that have another name in Python."""
VERBS: dict[str, list[Callable[..., Any]]] = {
    "backup": [threadkeep.backup],
    "branches": [Keep.branches, Keep.name_branch, Keep.compare_branches, Keep.switch_branch, Keep.delete_branch],
    "convert": [threadkeep.convert],
    "import": [Keep.import_from, Keep.import_portable],
    "inspect": [inspector.app],
    "lease": [Keep.lease_info, Keep.break_lease],
    "memories": [KeepStore.search_stored],
    "restore": [threadkeep.restore],
    "search": [Keep.search, Keep.build_search_index, Keep.drop_search_index],
    "setup": [Keep.migrate, Keep.distribute],
    "tenants": [Keep.tenants, Keep.drop_tenant],
    "delete": [Keep.delete, Keep.delete_memories],
}
"""The verbs of a command, if it is not the method of Keep with its name."""
DIFFERENCES: dict[str, tuple[set[str], set[str]]] = {
    "threads": ({"after_kind"}, {"titles"}),  # in Python, `after` takes the ThreadInfo; titles are always shown
    "show": ({"state", "channel", "writes"}, set()),  # parts of the CheckpointView
    "log": ({"metadata"}, set()),  # a field of the CheckpointInfo
    "diff": ({"c", "exit_code"}, {"thread_id", "other_thread", "other_kind", "other_ns"}),  # A and B also name threads
    "describe": ({"no_title", "no_labels", "no_label"}, {"add_labels", "remove_labels"}),
    "flow": ({"mermaid"}, set()),  # a form of the Flow
    "usage": ({"thread_id"}, {"thread_ids"}),
    "search": ({"words", "build", "drop"}, {"query", "rebuild"}),  # drop and build anew
    "branches": ({"compare", "switch", "delete"}, {"branch", "a", "b"}),
    "memories": ({"namespace"}, {"namespace_prefix"}),
    "activity": ({"by"}, set()),  # which table of the result
    "sizes": ({"by"}, set()),
    "copy": ({"thread_id", "target"}, {"source_thread_id", "target_thread_id"}),
    "prune": ({"config", "keep_last", "keep_for", "drop_idle", "prefix", "ns", "metadata", "match"}, {"policy"}),
    "sweep": ({"config", "every"}, set()),  # options of `open` and of `start_sweeping`
    "tag": ({"remove"}, set()),  # in Python, the name is None
    "erase": (set(), {"partly"}),  # the command asks
    "import": ({"source_key"}, {"file", "serde"}),  # SOURCE; the key makes the serde
    "export": ({"output"}, {"file"}),
    "convert": (set(), {"source_keys"}),  # --keys
    "encrypt": ({"hide_ids"}, set()),  # an option of `open`
    "inspect": (
        {"storage", "port", "host", "graph", "redact", "no_browser", "user_key"},
        {"keep", "authorize", "allowed_hosts", "user_keys"},
    ),
    "lease": ({"action"}, set()),
    "setup": ({"citus"}, set()),  # which of its verbs
    "tenants": ({"action"}, set()),
}
"""By command: what only the command has, and what only its verb has."""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_a_command_are_the_parameters_of_its_verb(name: str) -> None:
    ours = {NAMES.get(param.name, param.name) for param in COMMANDS[name].params} - COMMON - OUTPUT - ASKING - {"help"}
    verbs = VERBS.get(name) or [getattr(Keep, name)]
    theirs = {parameter for verb in verbs for parameter in inspect.signature(verb).parameters}
    theirs -= COMMON | {"self", "on_progress"}
    assert (ours - theirs, theirs - ours) == DIFFERENCES.get(name, (set(), set()))


# --- help


def test_every_command_is_in_one_group() -> None:
    listed = [name for names in groups.GROUPS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert COMMANDS.keys() <= set(listed)


def test_the_help_lists_each_group_with_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    parts = capsys.readouterr().out.split("\n\n")
    for title, names in groups.GROUPS.items():
        (part,) = [part for part in parts if part.startswith(f"{title}:\n")]
        rows = [line.split()[0] for line in part.splitlines()[1:] if line[2] != " "]
        assert rows == [name for name in names if name in {*COMMANDS, *WITHOUT_STORAGE}], title
    assert not any(part.startswith("Others:") for part in parts)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_parses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run([name, "--help"])
    example = capsys.readouterr().out.strip().splitlines()[-1].strip()
    assert example == COMMANDS[name].epilog, "it does not fit on a line of 80 columns"
    program, command, *args = shlex.split(example.removeprefix(cli_reference.EXAMPLE))
    assert (program, command) == ("threadkeep", name)
    COMMANDS[name].make_context(name, args)


# --- options before the command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two storages: `ours` with the thread `t`, for tenant acme the thread `a`; `theirs` with `u`."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("THREADKEEP_URL", "THREADKEEP_TENANT", "THREADKEEP_KEYS"):
        monkeypatch.delenv(name, raising=False)
    for file, tenant, thread in (("ours.db", "", "t"), ("ours.db", "acme", "a"), ("theirs.db", "", "u")):
        with threadkeep.open(f"sqlite:///{folder / file}", tenant=tenant) as keep:
            Chain(keep.checkpointer, thread).put({"messages": [HumanMessage("hi")]})
    return folder


Ids = Callable[..., str]


@pytest.fixture
def ids(capsys: pytest.CaptureFixture[str]) -> Ids:
    """Runs `threads --ids` and returns what it printed, or its error."""

    def run_threads(*before: str, after: tuple[str, ...] = ()) -> str:
        run([*before, "threads", "--ids", *after])
        return "".join(capsys.readouterr()).strip()

    return run_threads


def test_shared_options_may_stand_before_the_command(here: Path, ids: Ids) -> None:
    assert ids("--url", "ours.db") == ids(after=("--url", "ours.db")) == "t"
    assert ids("--url=ours.db", "--tenant", "acme") == ids("--tenant=acme", after=("--url", "ours.db")) == "a"
    assert ids("--url", "ours.db", "--json", "--no-pager", "--timeout", "3", "--keys", "none") == '["t"]'
    assert ids("--url", "theirs.db", after=("--url", "ours.db")) == "t"
    assert "Missing command" in subprocess_error("--url", "ours.db")


def subprocess_error(*args: str) -> str:
    command = [sys.executable, "-m", "threadkeep", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


# --- settings files


def test_the_storage_comes_from_the_option_else_the_environment_else_a_file(
    here: Path, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "name the url in a threadkeep.toml" in ids()
    Path("threadkeep.toml").write_text('url = "ours.db"\n')
    assert ids() == "t"
    monkeypatch.setenv("THREADKEEP_URL", "theirs.db")
    assert ids() == "u"
    assert ids("--url", "ours.db") == "t"


def test_the_file_of_a_parent_folder_names_paths_relative_to_itself(
    here: Path, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("threadkeep.toml").write_text('url = "sqlite:///ours.db"\ntenant = "acme"\n')
    Path("deep/deeper").mkdir(parents=True)
    monkeypatch.chdir("deep/deeper")
    assert ids() == "a"
    assert ids("--tenant", "") == "t"
    monkeypatch.setenv("THREADKEEP_TENANT", "acme")
    assert ids() == "a"
    monkeypatch.delenv("THREADKEEP_TENANT")
    assert ids("--url", str(here / "ours.db")) == "t", "the tenant of a file belongs to its url"
    Path("../pyproject.toml").write_text('[tool.threadkeep]\nurl = "../theirs.db"\n')
    assert ids() == "u", "the nearest file counts"
    Path("pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert ids() == "u"


def test_retention_and_the_storage_may_be_in_one_file(here: Path, ids: Ids) -> None:
    assert settings.KEYS.keys() == policies.COMMAND_KEYS
    Path("threadkeep.toml").write_text('url = "ours.db"\n[[retention]]\nkeep_last = 1\n')
    assert ids() == "t"
    assert run(["sweep", "--config", "threadkeep.toml", "--dry-run"]) == 0
    Path("threadkeep.toml").write_text("[[retention]]\nkeep_last = 1\n")
    assert "no storage given" in ids()


def test_a_command_with_both_storages_as_arguments_uses_no_file(here: Path) -> None:
    Path("threadkeep.toml").write_text('url = "theirs.db"\ntenant = "acme"\n')
    assert run(["convert", "ours.db", "new.db"]) == 0
    with threadkeep.open("sqlite:///new.db", read_only=True) as keep:
        assert [info.id for info in keep.threads()] == ["t"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("url = ", "threadkeep.toml"),
        ('urk = "x"', "unknown key 'urk'"),
        ('tenant = "acme"', "no url"),
        ('url = "ours.db"\ntimeout = true', "timeout must be a int or float"),
        ('url = "ours.db"\n[keys]\nk1 = "c2VjcmV0"', "keys must be a str"),
        ('url = "gone.db"', "gone.db not found (the url is from"),
        ('url = "ours.db"\nkeys = "nokeys"', "nokeys"),
    ],
)
def test_a_wrong_settings_file_is_an_error_that_names_it(here: Path, ids: Ids, text: str, says: str) -> None:
    Path("threadkeep.toml").write_text(text)
    error = ids()
    assert says in error
    assert "c2VjcmV0" not in error


def test_an_error_says_where_the_url_comes_from(here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("threadkeep.toml").write_text('url = "ours.db"\n')
    run(["show", "nobody"])
    assert capsys.readouterr().err == f"error: thread 'nobody' not found (the url is from {here}/threadkeep.toml)\n"
    monkeypatch.setenv("THREADKEEP_URL", "ours.db")
    run(["show", "nobody"])
    assert capsys.readouterr().err == "error: thread 'nobody' not found (the url is from THREADKEEP_URL)\n"
    run(["show", "nobody", "--url", "ours.db"])
    assert capsys.readouterr().err == "error: thread 'nobody' not found\n"


def test_the_file_of_another_user_is_not_used(here: Path, ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("threadkeep.toml").write_text('url = "ours.db"\n')
    owner = Path("threadkeep.toml").stat().st_uid
    if owner == 0:
        os.chown("threadkeep.toml", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert "belongs to another user" in ids()
    assert ids("--url", "ours.db") == "t"


# --- completion


def completed(words: str, shell: str = "bash", **environment: str) -> list[str]:
    given = {"_THREADKEEP_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "_TYPER_COMPLETE_ARGS": words}
    count = {"COMP_CWORD": str(len(words.split(" ")) - 1)}
    command = [sys.executable, "-m", "threadkeep"]
    ended = subprocess.run(command, env=os.environ | given | count | environment, capture_output=True, text=True)
    assert ended.stderr == ""
    return ended.stdout.split("\n")


def test_commands_options_and_threads_are_completed_and_nothing_a_shell_would_run(here: Path) -> None:
    hostile = ["$(touch x)", "`x`", "a b", "a;b", "a'b", "*", "\x1b[31m", "a\nb", "user:1"]
    with threadkeep.open("sqlite:///ours.db") as keep:
        for id in ("trip", "東京", *hostile):
            Chain(keep.checkpointer, id).put({})
    assert "threads" in completed("threadkeep th")
    assert "--full-ids" in completed("threadkeep log t --fu")
    url = {"THREADKEEP_URL": "ours.db"}
    assert sorted(filter(None, completed("threadkeep show ", **url))) == ["t", "trip", "東京"]
    assert "trip" in completed("threadkeep --url ours.db show tr")
    assert "user" in "".join(completed("threadkeep show u", "zsh", **url))
    assert list(filter(None, completed("threadkeep show ", THREADKEEP_URL="gone.db"))) == []
    assert not Path("gone.db").exists()
    Path("threadkeep.toml").write_text('url = "theirs.db"\n')
    assert "u" in completed("threadkeep show ")


@pytest.mark.parametrize(
    ("command", "option", "given", "expected"),
    [
        ("search", "kind", "", ["graph", "cube"]),
        ("show", "kind", "c", ["cube"]),
        ("search", "role", "h", ["human"]),
        ("threads", "status", "i", ["idle", "interrupted"]),
        ("threads", "order", "b", ["bytes"]),
        ("waiting", "match", "", ["any", "latest"]),
        ("usage", "by", "m", ["model", "metadata:"]),
        ("sizes", "by", "k", ["kind"]),
    ],
)
def test_the_values_of_options_are_completed(command: str, option: str, given: str, expected: list[str]) -> None:
    (found,) = [param for param in COMMANDS[command].params if param.name == option]
    context = COMMANDS[command].make_context(command, [], resilient_parsing=True)
    assert [item.value for item in found.shell_complete(context, given)] == expected


def test_completion_can_be_printed_and_installed(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    shown = capsys.readouterr().out
    assert "--install-completion" in shown and "--show-completion" in shown
