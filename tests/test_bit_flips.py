"""A flipped bit in a SQLite file: every answer is right, or the call raises, or `verify` reports what is missing.

`make prove-long` runs 520 copies; `make test` runs a sample of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bit_flips import Answer, Judgement, Read, flip_bit, judge, make_file, open_keep, reads

COPIES = 520
_PER_TEST = 13


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Read], dict[str, Answer]]:
    """Return a file with everything, the reads, and their answers."""
    path = tmp_path_factory.mktemp("flips") / "intact.db"
    make_file(path)
    with open_keep(path) as keep:
        calls = reads(keep)
        return path, calls, {name: call(keep) for name, call in calls.items()}


@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=[pytest.mark.long] if n else []) for n in range(0, COPIES, _PER_TEST)]
)
def test_a_flipped_bit_is_never_served(
    first: int, intact: tuple[Path, dict[str, Read], dict[str, Answer]], tmp_path: Path
) -> None:
    path, calls, expected = intact
    judgement = Judgement()
    for seed in range(first, first + _PER_TEST):
        copy = tmp_path / f"{seed}.db"
        judge(copy, flip_bit(path, copy, seed), calls, expected, judgement)
    print(dict(judgement.counts))
    assert judgement.failures == []
