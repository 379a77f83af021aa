"""Runs a callback before or after a module is executed, without importing it.

Start-up uses this, so it imports nothing that the bare interpreter has not loaded.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import importlib.machinery
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    Callback = Callable[[ModuleType], None]


class ImportHook:
    """A finder that finds nothing itself: it watches for names and runs what waits for them."""

    def __init__(self, on_error: "Callable[[BaseException], None]") -> None:
        """``on_error`` gets what a callback raises: it is not the importing program's."""
        self._on_error = on_error
        self._before: dict[str, list[Callable[[], None]]] = {}
        self._after: dict[str, list[Callback]] = {}

    def before_import(self, name: str, callback: "Callable[[], None]") -> None:
        """Call ``callback()`` when ``name``, not imported so far, is about to be executed.

        Looking for it (``importlib.util.find_spec``) is not enough.
        """
        self._before.setdefault(name, []).append(callback)
        self._watch_imports()

    def when_imported(self, name: str, callback: "Callback") -> None:
        """Call ``callback(module)`` after ``name`` was executed; at once if it already was."""
        module = sys.modules.get(name)
        if module is not None and not _initializing(module):
            self._call(callback, module)
            return
        self._after.setdefault(name, []).append(callback)
        self._watch_imports()

    def is_waiting(self) -> bool:
        """Whether something waits for an import."""
        return bool(self._before or self._after)

    def rest(self) -> None:
        """Stop watching, and stay: other threads may walk the list of finders just now."""
        self._before.clear()
        self._after.clear()

    def remove(self) -> None:
        """Stop watching, when tracing is taken off."""
        self.rest()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "importlib.machinery.ModuleSpec | None":
        """Let the other finders find ``name``, and hear of it when it is executed."""
        if name not in self._after and name not in self._before:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if finder is not self and find is not None else None
            if spec is not None:
                self._watch(spec)
                return spec  # type: ignore[no-any-return]
        return None

    def _watch_imports(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def _call(self, callback: "Callable[..., None]", *args: object) -> None:
        try:
            callback(*args)
        except BaseException as error:
            self._on_error(error)

    def _watch(self, spec: "importlib.machinery.ModuleSpec") -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        own = vars(loader).get("exec_module") if hasattr(loader, "__dict__") else None

        def exec_module(module: "ModuleType") -> None:
            if own is not None:  # a loader that is a class
                loader.exec_module = own
            else:
                del loader.exec_module
            for callback in self._before.pop(spec.name, ()):
                self._call(callback)
            execute(module)
            for each in self._after.pop(spec.name, ()):
                self._call(each, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader without instance attributes: not a Python source file
            return


def _initializing(module: object) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
