"""A few kills, and a short contention over one thread. `tests/prove` has many more."""

from __future__ import annotations

from pathlib import Path

from killed_writers import kill_while_setting_up, kill_while_writing, write_and_prune_side_by_side


def test_what_was_acknowledged_survives_a_kill_and_nothing_half_written_is_seen(tmp_path: Path) -> None:
    kill_while_writing(tmp_path / "keep.db", kills=3, seed=1, longest=0.3)


def test_a_file_whose_set_up_was_killed_opens(tmp_path: Path) -> None:
    kill_while_setting_up(tmp_path, kills=1, seed=1)


def test_processes_that_write_and_prune_one_thread_leave_whole_checkpoints(tmp_path: Path) -> None:
    write_and_prune_side_by_side(tmp_path / "keep.db", processes=2, seconds=1.5)
