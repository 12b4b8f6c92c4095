"""SIGKILL at many random moments, and several processes that contend for one thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from killed_writers import kill_while_setting_up, kill_while_writing, write_and_prune_side_by_side


@pytest.mark.parametrize("seed", range(6))
def test_what_was_acknowledged_survives_a_kill_and_nothing_half_written_is_seen(tmp_path: Path, seed: int) -> None:
    kill_while_writing(tmp_path / "keep.db", kills=25, seed=seed, longest=1.0)


def test_a_file_whose_set_up_was_killed_opens(tmp_path: Path) -> None:
    kill_while_setting_up(tmp_path, kills=40, seed=1)


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_that_write_and_prune_one_thread_leave_whole_checkpoints(tmp_path: Path, processes: int) -> None:
    write_and_prune_side_by_side(tmp_path / "keep.db", processes=processes, seconds=20)
