"""Records what every verb costs on every backend in tests/budgets.toml: `make budgets`.

    python tools/record_budgets.py              # all backends
    python tools/record_budgets.py sqlite       # some

Prints what has changed. Commit the file together with the change that made the difference.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))
budgets: Any = importlib.import_module("budgets")


def main() -> None:
    """Measure, print the differences, and write the file."""
    chosen = sys.argv[1:] or list(budgets.BACKENDS)
    recorded = budgets.load()[1] if budgets.FILE.exists() else {backend: {} for backend in budgets.BACKENDS}
    measured = budgets.measure_all(chosen)
    for backend, costs in measured.items():
        for verb, cost in costs.items():
            before = recorded.get(backend, {}).get(verb, {})
            changes = [
                f"{name} {before.get(name, 0):g} -> {value:g}"
                for name, value in cost.items()
                if value != before.get(name, 0)
            ]
            if changes:
                print(f"{backend}, {verb}: {', '.join(changes)}")
    budgets.save(recorded | measured)


if __name__ == "__main__":
    main()
