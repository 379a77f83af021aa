"""Runs a callback once a module has been imported, now or later, without importing it."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class ImportHook:
    """A finder that finds nothing itself: it watches for names and runs what waits for them."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        """``on_error`` gets what a callback raises: it is not the importing program's."""
        self._on_error = on_error
        self._waiting: dict[str, list[Callback]] = {}

    def when_imported(self, name: str, callback: Callback) -> None:
        """Call ``callback(module)`` after ``name`` was executed; at once if it already was."""
        module = sys.modules.get(name)
        if module is not None and not _initializing(module):
            self._call(callback, module)
            return
        self._waiting.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop watching."""
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Let the other finders find ``name`` and have us told when it is executed."""
        if name not in self._waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if finder is not self and find is not None else None
            if spec is not None:
                self._watch(spec)
                return spec  # type: ignore[no-any-return]
        return None

    def _call(self, callback: Callback, module: ModuleType) -> None:
        try:
            callback(module)
        except BaseException as error:
            self._on_error(error)

    def _watch(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            try:
                del loader.exec_module
            except AttributeError:
                pass
            execute(module)
            for callback in self._waiting.pop(spec.name, ()):
                self._call(callback, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader without instance attributes: not a Python source file
            return


def _initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
