"""Which of the two cores a process gets; needs nothing but the standard library."""

from __future__ import annotations

import importlib
import os
import zlib
from typing import Any

NATIVE, PLAIN = "c", "python"
NAMES = (NATIVE, PLAIN)

_MODULE = "disttrace.recording._fast"
_SOURCE = os.path.join(os.path.dirname(__file__), "_fast.c")


def native() -> Any:
    """The module of the native core. Raises ImportError where it was not built, or not for this
    interpreter, or from another source."""
    module: Any = importlib.import_module(_MODULE)
    source = checksum()
    if source is not None and getattr(module, "SOURCE", None) != source:
        raise ImportError("it was built from another source: python hatch_build.py builds it")
    return module


def checksum() -> int | None:
    """The checksum of the source beside us: an editable install may keep what was compiled from
    an older one. The build hook works it out alike."""
    try:
        with open(_SOURCE, "rb") as source:
            return zlib.crc32(source.read()) & 0x7FFFFFFF
    except OSError:
        return None  # somebody installed the core without its source


def choose(name: str | None) -> tuple[str, str]:
    """Which core a process gets that asks for ``name`` (None: the faster), and why."""
    if name == PLAIN:
        return PLAIN, "asked for"
    try:
        native()
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        return PLAIN, "the native one was not built" if missing else f"it cannot be loaded: {error}"
    return NATIVE, "asked for" if name == NATIVE else "built"
