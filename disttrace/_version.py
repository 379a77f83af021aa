"""The version: what `pyproject.toml`, the journals and `disttrace info` give."""

from __future__ import annotations

__version__ = "0.1.0"
