"""Which of the two cores a process gets; needs nothing but the standard library."""

from __future__ import annotations

from typing import Any

from disttrace.foreign import ours
from disttrace.journal import compiled

NATIVE, PLAIN = "c", "python"
NAMES = (NATIVE, PLAIN)


def native() -> Any:
    """The module of the native core. Raises ImportError where there is none that fits."""
    return compiled.load("recording._fast")


def choose(name: str | None) -> tuple[str, str]:
    """Which core a process gets that asks for ``name`` (None: the faster), and why."""
    if name == PLAIN:
        return PLAIN, "asked for"
    try:
        native()
    except ours(ImportError) as error:
        missing = isinstance(error, ModuleNotFoundError)
        return PLAIN, "the native one was not built" if missing else f"it cannot be loaded: {error}"
    return NATIVE, "asked for" if name == NATIVE else "built"
