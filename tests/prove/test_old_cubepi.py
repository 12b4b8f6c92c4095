"""CubePi, CubeLoop's former name: its own agents on `Keep.cube`, each release in an environment without CubeLoop.

Needs a package index.
"""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

AGENTS = """
import asyncio, inspect, sys
import cubepi, threadkeep
from cubepi import Agent, AgentTool, AgentToolResult, Model, TextContent, ToolResultMessage
from cubepi.checkpointer.base import Checkpointer
from cubepi.middleware import Middleware
from cubepi.providers.faux import FauxProvider, faux_assistant_message, faux_tool_call
from pydantic import BaseModel

url, restarted = sys.argv[1], sys.argv[2] == "again"

class Where(BaseModel):
    where: str

async def look(call, args, *, signal=None, on_update=None):
    return AgentToolResult(content=[TextContent(text=f"at {args.where}")], details={"seen": [1, None, args.where]})

class Counting(Middleware):
    async def after_tool_call(self, ctx, *, signal=None):
        extra = ctx.context.extra
        extra["looked"] = extra.get("looked", 0) + 1

def agent(keep, *answers, thread="t"):
    provider = FauxProvider()
    provider.set_responses(list(answers))
    known = inspect.signature(Agent.__init__).parameters
    old = {"provider": provider, "model": Model(id="m", provider="faux")}
    model = old if "provider" in known else {"model": provider.model("m")}
    tool = AgentTool(name="look", description="Look somewhere.", parameters=Where, execute=look)
    return Agent(**model, tools=[tool], middleware=[Counting()], checkpointer=keep.cube, thread_id=thread)

def says(text):
    return faux_assistant_message(text)

def calls(where):
    return faux_assistant_message(faux_tool_call("look", {"where": where}, id=where), stop_reason="tool_use")

async def turn(keep, n):
    before = await keep.cube.load("t")
    one = agent(keep, calls(f"place {n}"), says(f"answer {n}"))
    await one.prompt(f"question {n}")
    found = await keep.cube.load("t")
    assert found.messages == one.state.messages, (found.messages, one.state.messages)
    assert found.messages[: 4 * n] == (before.messages if before else [])
    assert [each.role for each in found.messages] == ["user", "assistant", "tool_result", "assistant"] * (n + 1)
    result = found.messages[-2]
    assert isinstance(result, ToolResultMessage)
    assert (result.tool_call_id, result.content[0].text) == (f"place {n}", f"at place {n}")
    assert result.details == {"seen": [1, None, f"place {n}"]}
    assert found.extra == {"looked": n + 1}, found.extra

async def forks(keep):
    if not hasattr(Agent, "fork"):
        return
    from cubepi.checkpointer.exceptions import RunAlreadyCompletedError, ThreadAlreadyExistsError
    one = agent(keep, says("one"), says("two"), thread="runs")
    await one.prompt("1", run_id="r1")
    await one.prompt("2", run_id="r2")
    await one.fork("runs", "fork", after_run_id="r1", metadata={"why": "try"})
    found = await keep.cube.load("fork")
    assert found.messages == one.state.messages[:2]
    assert (found.extra["fork"], found.parent_thread_id) == ({"why": "try"}, "runs")
    assert await keep.cube.snapshot("runs", after_run_id="r2") == one.state.messages
    for error, again in (RunAlreadyCompletedError, one.prompt("1", run_id="r1")), (
        ThreadAlreadyExistsError, one.fork("runs", "fork", after_run_id="r1")):
        try:
            await again
        except error:
            continue
        raise AssertionError(f"no {error.__name__}")

async def main():
    async with threadkeep.open(url) as keep:
        assert isinstance(keep.cube, Checkpointer)
        if url.startswith("memory") or not restarted:
            assert await keep.cube.load("t") is None
            await turn(keep, 0)
            await turn(keep, 1)
            await forks(keep)
        else:
            await turn(keep, 2)
            await turn(keep, 3)
            assert await keep.adelete("t")
            assert await keep.cube.load("t") is None
    print("fine", cubepi.__version__)

asyncio.run(main())
"""

TOMBSTONE = """
import threadkeep
keep = threadkeep.open("memory://")
keep.checkpointer
try:
    keep.cube
except ImportError as error:
    print(error)
"""


class Environment:
    """Create a virtual environment with threadkeep and one release of CubePi."""

    def __init__(self, folder: Path, release: str) -> None:
        venv.create(folder, with_pip=True)
        self._python = folder / "bin" / "python"
        quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
        self._call("-m", "pip", "install", *quiet, str(CHECKOUT), f"cubepi=={release}")

    def run(self, script: str, *args: str) -> str:
        return self._call("-W", "error::RuntimeWarning", "-c", script, *args)

    def _call(self, *args: str) -> str:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([self._python, *args], env=env, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout


@pytest.mark.parametrize("release", ["0.13.6", "0.5.0"])
def test_agents_of_an_old_cubepi_continue_after_a_restart(tmp_path: Path, release: str) -> None:
    old = Environment(tmp_path / "venv", release)
    assert old.run(AGENTS, "memory://", "once") == f"fine {release}\n"
    file = f"sqlite:///{tmp_path / 'keep.db'}"
    assert old.run(AGENTS, file, "once") == f"fine {release}\n"
    assert old.run(AGENTS, file, "again") == f"fine {release}\n"


def test_an_empty_cubepi_is_an_import_error_that_names_cubeloop(tmp_path: Path) -> None:
    assert "cubeloop" in Environment(tmp_path / "venv", "0.15.3").run(TOMBSTONE).lower()
