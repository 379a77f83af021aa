"""From the start of an interpreter to its first import of torch: which process this is, and a hook
that waits for imports.

What cannot be found out later is settled here: the process's id and clock, and the folder of the
journals, which is relative to where the program starts. Children started meanwhile inherit both.
As start-up calls this, nothing is imported that the bare interpreter has not loaded (see
``startup``).
"""

import atexit
import os
import sys
from _thread import get_ident

from disttrace.identity import JOB_VARIABLE, PARENT_VARIABLE, Identity

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
        self.uninstall: Callable[[], None] | None = None
        """Ends the tracing for which this hook is here: so another copy of this package finds it,
        once this one was taken out of `sys.modules`."""
        self._before: dict[str, list[Callable[[], None]]] = {}
        self._after: dict[str, list[Callback]] = {}
        self._looked_for: set[tuple[int, str]] = set()  # thread and name

    def before_import(self, name: str, callback: "Callable[[], None]") -> None:
        """Call ``callback()`` when ``name`` is about to be executed, not when it is looked for."""
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
        return bool(self._before or self._after)

    def rest(self) -> None:
        """Stop watching, and stay: other threads may walk the list of finders just now."""
        self._before.clear()
        self._after.clear()

    def remove(self) -> None:
        """Stop watching, when tracing is taken off."""
        self.uninstall = None
        self.rest()
        at = self._at(sys.meta_path)
        if at >= 0:
            del sys.meta_path[at]

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "importlib.machinery.ModuleSpec | None":
        """Let the finders behind this one find ``name``, and hear of its execution. One of them may
        ask all, this one too."""
        self.catch_up()
        looks = (get_ident(), name)
        if (name not in self._after and name not in self._before) or looks in self._looked_for:
            return None
        finders = list(sys.meta_path)
        self._looked_for.add(looks)
        try:
            for finder in finders[self._at(finders) + 1 :]:
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None else None
                if spec is not None:
                    self._watch(spec)
                    return spec  # type: ignore[no-any-return]
        finally:
            self._looked_for.discard(looks)
        return None

    def catch_up(self) -> bool:
        """Run what waits for modules that came past this hook: another finder was tried first, or
        `sys.meta_path` was filled anew. Whether that comes late for one that is waited for before.
        """
        came = [name for name in (*self._before, *self._after) if self._may_call(name)]
        late = False
        # The second looks at each module: not at each import of a package that is being executed.
        if not came or _is_in_the_middle():
            return late
        for name in came:
            module = sys.modules.get(name)
            for callback in self._before.pop(name, ()):
                late = late or not _initializing(module)
                self._call(callback)
            for each in () if _initializing(module) else self._after.pop(name, ()):
                self._call(each, module)
        return late

    def _may_call(self, name: str) -> bool:
        module = sys.modules.get(name)
        return _is_there(module) and (name in self._before or not _initializing(module))

    def missed(self, name: str) -> bool:
        """Whether ``name`` came past this hook, and something still waits for it."""
        waits = name in self._before or name in self._after
        return waits and _is_there(sys.modules.get(name))

    def _watch_imports(self) -> None:
        if self._at(sys.meta_path) < 0:
            sys.meta_path.insert(0, self)

    def _at(self, finders: "Sequence[Any]") -> int:
        """Where this one is among finders, which are not compared: they are the program's."""
        return next((at for at, finder in enumerate(finders) if finder is self), -1)

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
            callbacks = self._before.pop(spec.name, ())
            if own is not None:  # a loader that is a class
                loader.exec_module = own
            else:
                del loader.exec_module
            for callback in callbacks:
                self._call(callback)
            execute(module)
            for each in self._after.pop(spec.name, ()):
                self._call(each, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader without instance attributes: not a Python source file
            return


def hooks() -> "list[Any]":
    """Those in `sys.meta_path` for which tracing is on, of any copy of this package."""
    named = (f for f in list(sys.meta_path) if type(f).__module__ == __name__)
    return [hook for hook in named if getattr(hook, "uninstall", None) is not None]


def _initializing(module: object) -> bool:
    return bool(_of_import(module, "_initializing"))


def _is_there(module: object) -> bool:
    """Whether it is, or was, executed unheard. To read an attribute of a lazy one executes it."""
    loader = _of_import(module, "loader")
    lazy = type(module).__module__ == "importlib.util"
    return module is not None and not lazy and "exec_module" not in getattr(loader, "__dict__", ())


def _of_import(module: object, name: str) -> object:
    """What an import wrote into the specification of a module; else anything may be there."""
    spec = _DICT.__get__(module).get("__spec__") if issubclass(type(module), type(sys)) else None
    return vars(spec).get(name) if issubclass(type(spec), _SPEC) else None


_DICT, _SPEC = vars(type(sys))["__dict__"], type(sys.__spec__)


def _is_in_the_middle() -> bool:
    """Whether a module is being executed, on any thread, that callbacks may need as a whole."""
    return any(
        name.partition(".")[0] in sys.stdlib_module_names and _initializing(module)
        for name, module in list(sys.modules.items())
    )


DIR_VARIABLE = "DISTTRACE_DIR"

PAST = (
    "torch's import bypassed disttrace's hook (another finder in sys.meta_path came first, or the "
    "list was replaced)."
)

_state: "_BeforeTorch | None" = None
_watching_forks = False
_without: "str | None" = None  # the folder in which a program started that held no project


class HandedDown:
    """Variables that were put into the environment for children, and their values before."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def put(self, name: str, value: str) -> None:
        self._before.setdefault(name, os.environ.get(name))
        os.environ[name] = value

    def take_back(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _BeforeTorch:
    """What there is to take back, or to hand over to the session."""

    def __init__(
        self, identity: Identity, hook: ImportHook, report: "Callable[[str], None]"
    ) -> None:
        self.identity = identity
        self.hook = hook
        self.report = report
        self.environment = HandedDown()

    def hand_down(self) -> None:
        self.environment.put(PARENT_VARIABLE, self.identity.handed_down())
        named = _of_project("dir")  # looked for in any case: later the file is the program's own
        folder = os.environ.get(DIR_VARIABLE) or named or "disttrace-out"
        if folder.strip() and not os.path.isabs(folder):
            try:
                self.environment.put(DIR_VARIABLE, os.path.abspath(os.path.expanduser(folder)))
            except OSError:
                pass  # the current directory was deleted: the journal reports it

    def end(self) -> None:
        self.hook.remove()
        self.environment.take_back()


def begin(
    arrived: "Callable[[], None]",
    on_error: "Callable[[BaseException], None]",
    report: "Callable[[str], None]",
) -> None:
    """Call ``arrived`` just before torch is executed; ``report`` a sentence if it came past us."""
    global _state, _watching_forks
    if _state is not None:
        return
    hook = ImportHook(on_error)
    hook.uninstall = cancel
    _state = _BeforeTorch(Identity(os.environ, job=_job()), hook, report)
    atexit.register(_at_exit)
    if not _watching_forks:
        _watching_forks = True
        os.register_at_fork(after_in_parent=_catch_up, after_in_child=_forked)
    _state.hand_down()
    if "torch" in sys.modules:
        arrived()
    else:
        hook.before_import("torch", arrived)


def without_project() -> str | None:
    """The folder where the program started, if it had no project file then."""
    return _without


def is_waiting() -> bool:
    """Whether tracing will begin with torch."""
    return _state is not None


def take() -> Identity | None:
    """Tracing begins: who this process is, if it waited; ``cancel`` takes variables back."""
    if _state is None:
        return None
    _state.hook.rest()
    atexit.unregister(_at_exit)
    return _state.identity


def cancel() -> None:
    """End the waiting, and take back what children would inherit."""
    global _state
    state, _state = _state, None
    if state is not None:
        atexit.unregister(_at_exit)
        state.end()


def _forked() -> None:
    state = _state
    if state is not None and state.hook.is_waiting():
        state.identity = Identity(os.environ, job=_job(), forked_from=state.identity)
        state.hand_down()
        _catch_up()


def _catch_up() -> None:
    """Begin now if torch came past the hook, which nothing may ask any more."""
    if _state is not None and _state.hook.catch_up():
        _state.report(f"recorded from here on only: {PAST}")


def _at_exit() -> None:
    if _state is not None and _state.hook.missed("torch"):
        _state.report(f"nothing was recorded: {PAST}")


def _job() -> str | None:
    job = os.environ.get(JOB_VARIABLE, "").strip() or (_of_project("job") or "").strip()
    return job if job.isprintable() else None


def _of_project(keyword: str) -> str | None:
    """What the project has for a setting. Few programs start where a project's file is."""
    global _without
    if not os.path.exists("pyproject.toml"):
        try:
            _without = os.getcwd()
        except OSError:
            pass  # the directory is gone
        return None
    from disttrace import project

    return project.text(keyword)
