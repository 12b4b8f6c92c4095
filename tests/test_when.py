"""Durations and points in time as users write them: one grammar in verbs, policies, files and commands."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import threadkeep
from threadkeep import Policy
from threadkeep.cli.app import run
from threadkeep.engine.when import as_time

NOW = datetime(2026, 4, 8, 12, tzinfo=UTC)
DURATIONS = {
    "7d": timedelta(days=7),
    "1d12h": timedelta(hours=36),
    "1.5d": timedelta(hours=36),
    "90m": timedelta(minutes=90),
    "1.5h30m": timedelta(hours=2),
    "2w": timedelta(days=14),
    "10s": timedelta(seconds=10),
    "0s": timedelta(),
    " 7d ": timedelta(days=7),
}
NO_DURATIONS = ["", "7", "d", "7 days", "1d 12h", "-7d", "7D", "1e3d", ".5d", "1.d", "٧d", "9" * 30 + "w", "long"]


@pytest.mark.parametrize("text", DURATIONS)
def test_a_duration_means_the_same_everywhere(text: str, tmp_path: Path, capsys: Any) -> None:
    meant = DURATIONS[text]
    file = tmp_path / "threadkeep.toml"
    file.write_text(f'[[retention]]\nkeep_for = "{text}"\n')
    url = f"sqlite:///{tmp_path}/keep.db"
    with threadkeep.open(url, retention=file) as keep:
        keep.setup()
        assert keep.activity(since=text).since is not None
    assert Policy(keep_for=text, drop_idle=text) == Policy(keep_for=meant, drop_idle=meant)
    assert milliseconds(text) == milliseconds(meant) == milliseconds(NOW - meant)
    for words in (["activity", "--since", text], ["prune", "--keep-for", text, "--dry-run"]):
        assert run([*words, "--url", url, "--json"]) == 0
        assert isinstance(json.loads(capsys.readouterr().out), dict)


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_an_invalid_duration_is_refused_everywhere(text: str, tmp_path: Path, capsys: Any) -> None:
    for name in ("keep_for", "drop_idle"):
        with pytest.raises(ValueError, match=name):
            Policy(**{name: text})
    with threadkeep.open("memory://") as keep, pytest.raises(ValueError, match="since"):
        keep.activity(since=text)
    url = f"sqlite:///{tmp_path}/keep.db"
    with threadkeep.open(url) as keep:
        keep.setup()
    for option, words in (("since", ["activity", "--since"]), ("keep_for", ["prune", "--dry-run", "--keep-for"])):
        assert run([*words, text, "--url", url]) == 2
        assert option in capsys.readouterr().err


def milliseconds(value: Any) -> int | None:
    return as_time(value, "since", round(NOW.timestamp() * 1000))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-04-01", datetime(2026, 4, 1, tzinfo=UTC)),
        ("2026-04-01T10:00", datetime(2026, 4, 1, 10, tzinfo=UTC)),
        ("2026-04-01T10:00+02:00", datetime(2026, 4, 1, 8, tzinfo=UTC)),
        ("2026-04-01T10:00Z", datetime(2026, 4, 1, 10, tzinfo=UTC)),
    ],
)
def test_a_time_is_iso_8601_and_in_utc_unless_it_names_a_zone(text: str, meant: datetime) -> None:
    assert milliseconds(text) == milliseconds(meant)
