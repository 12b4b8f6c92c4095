"""The command as a program: how it starts, what it answers, how it ends; and that all of it is documented."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import cli_reference
from threadkeep.cli.app import run

COMMANDS = cli_reference.commands()


def program(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real program, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "threadkeep", *args],
        env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_page_says_what_the_commands_say() -> None:
    assert cli_reference.PAGE.read_text() == cli_reference.page(), "run: python tests/cli_reference.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_common_options_and_says_what_each_option_does(name: str) -> None:
    options = {opt: param for param in COMMANDS[name].params for opt in param.opts}
    assert set(cli_reference.COMMON) <= options.keys()
    assert all(getattr(param, "help", None) for opt, param in options.items() if opt != "--help")
    assert COMMANDS[name].help


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"threadkeep {name}" in shown
    assert "--json" in shown
