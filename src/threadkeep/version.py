"""The version of threadkeep, for every module that reports it."""

from __future__ import annotations

VERSION = "0.1.0"
