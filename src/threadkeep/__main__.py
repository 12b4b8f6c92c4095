"""`python -m threadkeep` runs the command `threadkeep`."""

from __future__ import annotations

from threadkeep.cli import main

if __name__ == "__main__":
    main()
