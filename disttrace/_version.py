"""The version: what `pyproject.toml`, the journals and `disttrace info` give."""

__version__ = "0.2.0"
