"""Read prices of tokens, given in Python or in a TOML or JSON file.

    ["gpt-5*"]
    input = 1.25
    output = 10
    cache_read = 0.125

Each table is a model, or a pattern of models with `*` and `?`, with prices per million tokens. Tokens of a detail that
has no price cost as much as input or output. The currency is yours.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threadkeep.engine.history.token_counts import Prices

_SIDES = ("input", "output")


def prices(given: Any) -> Prices | None:
    """Return the given prices, or those of the file with this path. None stays None.

    Raise TypeError for anything else, ValueError for prices that are no numbers, or a file that is wrong.
    """
    if given is None:
        return None
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        return _checked(_read(path), f"{path}: ")
    if not isinstance(given, Mapping):
        raise TypeError(f"prices must be a dict by model, or the path of a file, not {given!r}")
    return _checked(dict(given), "")


def _read(path: Path) -> dict[Any, Any]:
    try:
        text = path.read_text("utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of either parser, or not UTF-8
        raise ValueError(f"{path}: {error}") from error
    if isinstance(found, dict):
        return found
    raise ValueError(f"{path}: there must be a table for each model")


def _checked(given: dict[Any, Any], where: str) -> Prices:
    for model, table in given.items():
        is_table = isinstance(model, str) and isinstance(table, Mapping)
        if not is_table:
            raise ValueError(f"{where}{model!r} must be a model with a table of its prices")
        missing = [side for side in _SIDES if side not in table]
        if missing:
            raise ValueError(f"{where}{model!r} has no price of {missing[0]}")
        for name, price in table.items():
            if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 <= price < math.inf:
                raise ValueError(f"{where}the price of {name} of {model!r} must be a number, 0 or more, not {price!r}")
    return {model: dict(table) for model, table in given.items()}
