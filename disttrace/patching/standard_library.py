"""The recorder's imports find the standard library, and hide no module of the program.

A program's folder comes first on ``sys.path``, and may hold a ``queue.py`` or ``uuid.py`` of its
own. What the recorder needs must not execute that, let alone use it; and what the recorder loads
in its place must not stay in ``sys.modules``, where the program would get it instead of its own.

Start-up uses this, so it imports nothing that the bare interpreter has not loaded.
"""

import _frozen_importlib_external
import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_PathFinder = _frozen_importlib_external.PathFinder


class StandardLibrary:
    """A context in which this thread's imports of standard names find the standard library."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._folders = _folders()
        self._hiding: list[str] = []

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        sys.meta_path.remove(self)
        for name in self._hiding:
            inside = [each for each in sys.modules if each.startswith(name + ".")]
            for each in (name, *inside):
                sys.modules.pop(each, None)

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The standard module ``name``; None where another finder has to look."""
        if path is not None or name not in sys.stdlib_module_names or get_ident() != self._thread:
            return None
        if not _is_found_by_path(name):
            return None  # no file of the program can stand in its way
        standard = _PathFinder.find_spec(name, self._folders)
        if standard is None:
            return None
        found = _PathFinder.find_spec(name)
        if found is not None and found.origin != standard.origin:
            self._hiding.append(name)
        return standard


def _is_found_by_path(name: str) -> bool:
    """Whether finders for built-in and frozen modules leave this one to ``sys.path``."""
    import _imp

    return name not in sys.builtin_module_names and not _imp.is_frozen(name)


def _folders() -> list[str]:
    """Entries of ``sys.path`` that hold the standard library."""
    home = os.path.dirname(os.__file__)
    return [
        entry
        for entry in sys.path
        if entry == home
        or os.path.basename(entry) in ("lib-dynload", os.path.basename(home) + ".zip")
    ]
