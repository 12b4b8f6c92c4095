"""A process that serves many conversations for long holds no more memory, files, connections and threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soak
from fault_log import Findings
from fault_matrix import Matrix, size
from fault_storages import BACKENDS, shared_url

import processes
import threadkeep

THREADS, TURNS = size(30, 1000), size(6, 20)
WARM = TURNS // 2
"""After so many turns, what a process holds must not grow any more."""
MOST_FILES = 48
"""Files and connections: of the interpreter, of two event loops, and of a Keep that is used by all callers at once."""
MEGABYTE = 1 << 20
SCRIPT = "import sys; from soak import main; main(*sys.argv[1:])"


@pytest.mark.fault("soak")
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_process_holds_stays_flat(backend: str, tmp_path: Path, matrix: Matrix) -> None:
    url = shared_url(backend, tmp_path)
    printed = processes.finish(processes.start(SCRIPT, url, THREADS, TURNS), timeout=3600)
    samples = [json.loads(line) for line in printed.splitlines()]
    assert len(samples) == TURNS
    warm, last = samples[WARM - 1], samples[-1]
    assert last["bytes"] < warm["bytes"] * 1.1 + 16 * MEGABYTE, samples
    assert last["objects"] < warm["objects"] * 1.05 + 5_000, samples
    assert max(each["files"] for each in samples) <= MOST_FILES, samples
    assert max(each["threads"] for each in samples) <= 2 * soak.CALLERS, samples
    assert {each["tasks"] for each in samples} == {1}
    matrix.add(TURNS, check_conversations(url))


def check_conversations(url: str) -> Findings:
    """Compare each conversation with the turns that it had. Each turn was acknowledged."""
    lost, doubled = list[str](), list[str]()
    with threadkeep.open(url) as keep:
        graph = soak.conversation(keep.checkpointer)
        for n in range(THREADS):
            messages = graph.get_state(soak.config(n)).values["messages"]
            asked = [message.content for message in messages if message.type == "human"]
            expected = [soak.turn_of(number)["messages"][0].content for number in range(TURNS)]
            lost += [f"t{n}: {text[:12]}" for text in expected if text not in asked]
            doubled += [f"t{n}: {text[:12]}" for text in set(asked) if asked.count(text) > 1]
            assert len(messages) == 2 * len(asked)
        problems = tuple(map(str, keep.verify().problems))
    return Findings(THREADS * TURNS, tuple(lost), tuple(doubled), (), problems)
