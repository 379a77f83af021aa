"""Loads our compiled modules, each beside its source.

Any may be absent: nothing was compiled, or not for this interpreter.
"""

from __future__ import annotations

import importlib
import os
import zlib
from typing import Any

from disttrace.journal.standard_library import StandardLibrary

_ROOT = os.path.dirname(os.path.dirname(__file__))


def load(name: str) -> Any:
    """The compiled module ``disttrace.NAME``. Raises ImportError where it was not built, or not for
    this interpreter, or from another source."""
    with StandardLibrary():  # what it imports it does not check
        module: Any = importlib.import_module(f"disttrace.{name}")
    source = checksum(name)
    if source is not None and getattr(module, "SOURCE", None) != source:
        raise ImportError("it was built from another source: python hatch_build.py builds it")
    return module


def missing(name: str) -> str | None:
    """Why ``load`` raises; None: it does not."""
    try:
        load(name)
    except ImportError as error:
        return str(error)
    return None


def checksum(name: str) -> int | None:
    """Of the source beside us: what an editable install has compiled may be older."""
    for suffix in (".c", ".cpp"):
        try:
            with open(os.path.join(_ROOT, *name.split(".")) + suffix, "rb") as source:
                return zlib.crc32(source.read()) & 0x7FFFFFFF
        except OSError:
            continue
    return None  # the module was installed without its source
