"""Loads compiled modules: our own, each beside its source, and orjson and the like, also where the
program has a module of the same name.

Any of ours may be absent: nothing was compiled, or not for this interpreter. A program with an
`orjson.py` or a `resource.py` of its own means that one, everywhere and first: it is not executed
because of us, and ours is then loaded under a private name. What torch imports by itself is not
looked after here: a program that hides it cannot import torch either.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zlib
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

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


if TYPE_CHECKING:
    import resource as resource

    import orjson as orjson


def __getattr__(name: str) -> ModuleType:
    """`from disttrace.journal.compiled import orjson`: each only where it is needed."""
    if name not in ("orjson", "resource"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = globals()[name] = load_extension(name)
    return module


def load_extension(name: str) -> ModuleType:
    """The compiled module or package called `name`, else whichever bears it. Raises ImportError.
    What C imports by name it does not check: it gets the standard library's."""
    with StandardLibrary():
        return _load(name)


def _load(name: str) -> ModuleType:
    known = sys.modules.get(name)
    spec = None if known is None else getattr(known, "__spec__", None)
    if known is not None and spec is not None and _is_compiled(spec):
        return known
    first = importlib.util.find_spec(name) if known is None else None
    if first is not None and _is_compiled(first):
        return importlib.import_module(name)
    for entry in sys.path:
        found = PathFinder.find_spec(name, [entry])
        if found is not None and found.origin is not None and _is_compiled(found):
            return _privately(name, found)
    return importlib.import_module(name)  # other interpreters have some of them in Python


def _is_compiled(spec: ModuleSpec) -> bool:
    compiled = tuple(EXTENSION_SUFFIXES)
    if spec.submodule_search_locations is None:
        return spec.origin == "built-in" or (spec.origin or "").endswith(compiled)
    for folder in spec.submodule_search_locations:
        try:
            if any(name.endswith(compiled) for name in os.listdir(folder)):
                return True
        except OSError:
            continue
    return False


def _privately(name: str, found: ModuleSpec) -> ModuleType:
    assert found.origin is not None
    private = f"_disttrace_{name}"
    # An extension's function of initialization is named after the last part of the module's name.
    private = private if found.submodule_search_locations else f"{private}.{name}"
    if private in sys.modules:
        return sys.modules[private]
    spec = importlib.util.spec_from_file_location(
        private, found.origin, submodule_search_locations=found.submodule_search_locations
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[private]
        raise
    return module
