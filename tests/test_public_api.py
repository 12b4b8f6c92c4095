"""No public name, parameter, default or field changes by accident."""

from __future__ import annotations

import public_api


def test_the_public_names_and_signatures_are_those_that_were_recorded() -> None:
    recorded, now = public_api.FILE.read_text("utf-8").splitlines(), public_api.public_api().splitlines()
    gone, new = sorted({*recorded} - {*now}), sorted({*now} - {*recorded})
    assert (gone, new) == ([], []), (
        "if this change of the public interface is meant: make api, and a line in CHANGELOG.md"
    )
    assert recorded == now
