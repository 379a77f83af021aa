"""Which of the two cores a process gets; needs nothing but the standard library."""

from __future__ import annotations

import importlib
from typing import Any

NATIVE, PLAIN = "c", "python"
NAMES = (NATIVE, PLAIN)

_MODULE = "disttrace.recording._fast"
# What Python expects of the native core. It changes with it, for an editable install may keep what
# was compiled from an older source.
INTERFACE = 4


def native() -> Any:
    """The module of the native core. Raises ImportError where it was not built, or not for this
    interpreter, or from another source."""
    module: Any = importlib.import_module(_MODULE)
    if getattr(module, "INTERFACE", None) != INTERFACE:
        raise ImportError("it was built from another version: python hatch_build.py builds it")
    return module


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
