"""The version of threadkeep."""

from __future__ import annotations

VERSION = "0.2.0"
