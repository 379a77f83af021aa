"""The recorder's imports find the standard library, and hide no module of the program.

A program's folder comes first on ``sys.path``, and may hold a ``queue.py`` or ``uuid.py`` of its
own. What the recorder needs must not execute that, let alone use it, also where the program has
imported it already: code in C imports by name too, and crashes where it finds something else. And
what the recorder loads in its place must not stay in ``sys.modules``, where the program would get
it instead of its own.

Start-up uses this, so it imports nothing that the bare interpreter has not loaded.
"""

import _frozen_importlib_external
import gc
import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_PathFinder = _frozen_importlib_external.PathFinder

# Of names that mean modules of the program: the standard ones that we have loaded.
_loaded: "dict[str, ModuleType]" = {}
_inside: "dict[int, StandardLibrary]" = {}  # by thread
# What was found to be the standard library's: the same module need not be looked at again.
_standard: "dict[str, ModuleType]" = {}


class StandardLibrary:
    """In it this thread's imports find the standard library; nested it does nothing."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._folders = _folders()
        self._hiding: set[str] = set()
        self._theirs: dict[str, ModuleType] = {}
        self._entered = False

    def __enter__(self) -> None:
        if self._thread in _inside:
            return
        self._entered = True
        self._hiding = {name.partition(".")[0] for name in _loaded}
        # By the names that there are: a program may have ten thousand modules of others.
        self._hiding.update(name for name in sys.stdlib_module_names if self._is_theirs(name))
        self._theirs = self._take_out()
        sys.modules.update(_loaded)
        _inside[self._thread] = self
        if all(finder is not _FINDER for finder in sys.meta_path):  # others compare as they like
            sys.meta_path.insert(0, _FINDER)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if not self._entered:
            return
        self._entered = False
        del _inside[self._thread]
        if not _stays and not _inside:
            _take_out_finder()
        _loaded.update(self._take_out())
        sys.modules.update(self._theirs)

    def find(self, name: str) -> "ModuleSpec | None":
        """The standard module ``name``; None where another finder has to look."""
        if name not in sys.stdlib_module_names:
            return None
        if not _is_found_by_path(name):
            return None  # no file of the program can stand in its way
        standard = _PathFinder.find_spec(name, self._folders)
        if standard is None:
            return None
        found = _PathFinder.find_spec(name)
        if found is not None and found.origin != standard.origin:
            self._hiding.add(name)
        return standard

    def _is_theirs(self, name: str) -> bool:
        """Whether the program has imported its own module of a standard name."""
        if name not in sys.modules:
            return False
        module = sys.modules.get(name)
        if module is not None and _standard.get(name) is module:
            return False
        theirs = _is_found_by_path(name) and self._is_from_elsewhere(name, module)
        if module is not None and not theirs:
            _standard[name] = module
        return theirs

    def _is_from_elsewhere(self, name: str, module: "ModuleType | None") -> bool:
        """Whether this is not the module that the standard folders have of that name."""
        names = _DICT.__get__(module) if issubclass(type(module), type(sys)) else {}
        spec = names.get("__spec__")  # else anything may be there
        origin = str(vars(spec).get("origin")) if issubclass(type(spec), _SPEC) else ""
        for folder in self._folders:
            within = os.path.join(folder, name)
            if origin.startswith((within + ".", within + os.sep)):
                return False
        # An interpreter that is packed in one file may have its library elsewhere.
        standard = _PathFinder.find_spec(name, self._folders)
        return standard is not None and standard.origin != origin

    def _take_out(self) -> "dict[str, ModuleType]":
        """Modules whose names mean others inside than outside, out of ``sys.modules``."""
        if not self._hiding:
            return {}
        names = [name for name in list(sys.modules) if name.partition(".")[0] in self._hiding]
        return {name: sys.modules.pop(name) for name in names}


_DICT, _SPEC = vars(type(sys))["__dict__"], type(sys.__spec__)


class _Finder:
    """Finds only for threads within a context. In a traced process it stays: taking a finder out
    while another thread walks the list makes that leave out another one."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """What the context of the calling thread finds."""
        context = _inside.get(get_ident())
        return None if context is None or path is not None else context.find(name)


_FINDER = _Finder()
_stays = False


def bare_command(python: str, path: "Iterable[str]", module: str, *arguments: str) -> list[str]:
    """What calls ``main`` of a module of ours with ``arguments`` in a process of its own. It
    imports from the standard library, then from ``path``, without `site` (and `sitecustomize`,
    lines of `.pth` files) and PYTHON* variables, but for where byte code may be written."""
    flags = ["-B"] if sys.dont_write_bytecode else []
    if sys.pycache_prefix is not None:
        flags += ["-X", f"pycache_prefix={os.path.abspath(sys.pycache_prefix)}"]
    folders = "\n".join(entry for entry in dict.fromkeys(path) if entry and "\n" not in entry)
    return [python, "-I", "-S", *flags, "-c", _BEGIN, folders, module, *arguments]


_BEGIN = (
    "import sys; sys.path += [p for p in sys.argv.pop(1).split('\\n') if p not in sys.path]; "
    "import importlib; importlib.import_module(sys.argv.pop(1)).main(sys.argv[1:])"
)


def stay() -> bool:
    """Keep the finder once it is there, for tracing begins; whether it was kept before."""
    global _stays
    before, _stays = _stays, True
    return before


def leave() -> None:
    """Take the finder out, now that tracing is taken off."""
    global _stays
    _stays = False
    _take_out_finder()


def _take_out_finder() -> None:
    try:
        for at in range(len(sys.meta_path) - 1, -1, -1):
            if sys.meta_path[at] is _FINDER:
                del sys.meta_path[at]
    except IndexError:
        return  # another thread was first


def _is_found_by_path(name: str) -> bool:
    """Whether finders for built-in and frozen modules leave this one to ``sys.path``."""
    import _imp

    return name not in sys.builtin_module_names and not _imp.is_frozen(name)


def _folders() -> list[str]:
    """Where the standard library is, whatever the program has done to ``sys.path``."""
    home = os.path.dirname(os.__file__)
    archive = os.path.basename(home) + ".zip"
    found = [entry for entry in sys.path if os.path.basename(entry) in ("lib-dynload", archive)]
    return list(dict.fromkeys([*found, home, os.path.join(home, "lib-dynload")]))


_NEVER = 2**30 + 1
"""A threshold that no program reaches, nor would choose: another one is the program's and stays."""


class Paused:
    """Within it no garbage collection begins by itself: putting the recorder in place would bring
    on one of all that torch has made. By the threshold, for what another thread sets meanwhile
    stays; `gc.disable` could not tell that."""

    def __enter__(self) -> None:
        self._before = gc.get_threshold()
        gc.set_threshold(_NEVER, *self._before[1:])

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if gc.get_threshold()[0] == _NEVER:
            gc.set_threshold(*self._before)
