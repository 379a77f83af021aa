"""Proof that no patch of ours stayed: a picture of what could be patched, before and after."""

from __future__ import annotations

import os
import sys
import threading
from types import FunctionType

import disttrace

OURS = os.path.dirname(os.path.abspath(disttrace.__file__)) + os.sep
MODULE = "torch.distributed.distributed_c10d"
CLASSES = (
    "ProcessGroup", "Backend", "Store", "Work", "FakeWork", "TCPStore", "PrefixStore", "FileStore",
    "HashStore", "ProcessGroupGloo",
)  # fmt: skip
MODULES = (MODULE, "torch.distributed.rendezvous", "torch.distributed.elastic.rendezvous.api")
ALL = ("torch.distributed.", "torch._C._distributed_c10d", "multiprocessing.")


def picture(*, whole: bool = False) -> dict[str, object]:
    """Each class's entries and each function's code, by name, to compare by `is`; or empty.

    ``whole``: of all classes and functions that could be patched, which takes its time.
    """
    seen: dict[str, object] = {}
    bindings = sys.modules.get("torch._C._distributed_c10d")
    if bindings is None or MODULE not in sys.modules:
        return seen
    classes: dict[str, object] = {name: getattr(bindings, name, object) for name in CLASSES}
    modules: dict[str, object] = {name: sys.modules.get(name, object) for name in MODULES}
    if whole:
        # Not sys.excepthook: init_process_group puts a new one of torch's over what stands there.
        seen = {"os._exit": os._exit, "threading.excepthook": threading.excepthook}
        modules = {name: one for name, one in sys.modules.items() if name.startswith(ALL)}
        for module, one in modules.items():
            found = {f"{module}.{name}": value for name, value in list(vars(one).items())}
            classes |= {name: value for name, value in found.items() if isinstance(value, type)}
    for name, one in classes.items():
        for attribute, value in list(vars(one).items()):
            seen[f"{name}.{attribute}"] = value
            if whole and type(value) is FunctionType:
                seen |= _codes(f"{name}.{attribute}", value)
    for name, one in modules.items():
        for attribute, value in list(vars(one).items()):
            if type(value) is FunctionType:  # isinstance would wake torch's deprecated objects
                seen[f"{name}.{attribute}"] = value
                seen |= _codes(f"{name}.{attribute}", value)
    return seen


def _codes(name: str, function: FunctionType) -> dict[str, object]:
    """The code of a function and of all that its decorators wrap, outermost first."""
    codes: dict[str, object] = {}
    inner: object = function
    while type(inner) is FunctionType:
        name += ".__code__" if not codes else ".inner"
        codes[name] = inner.__code__
        inner = vars(inner).get("__wrapped__")
    return codes


def differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names whose object is another one, or which came or went; none if torch came in between."""
    if not before:
        return [name for name, value in after.items() if _is_ours(value)]
    missing = object()
    return [
        name
        for name in sorted(before.keys() | after.keys())
        if before.get(name, missing) is not after.get(name, missing)
        and not _came_late(name, before, after)
    ]


def leftovers(environ: dict[str, str]) -> list[str]:
    """What else of ours could stay: variables, threads, import hooks."""
    found = [
        f"os.environ[{name!r}]"
        for name in sorted({*os.environ, *environ})
        if name.startswith("DISTTRACE") and os.environ.get(name) != environ.get(name)
    ]
    background = sys.modules.get("disttrace.recording.background")
    running = getattr(background, "running", {})
    found += [f"thread {name}" for name, count in running.items() if count]
    return found + [f"sys.meta_path entry {one!r}" for one in sys.meta_path if _module(one) != ""]


def _module(finder: object) -> str:
    kind = finder if isinstance(finder, type) else type(finder)
    return kind.__module__ if kind.__module__.startswith("disttrace") else ""


def _is_ours(value: object) -> bool:
    code = getattr(value, "__code__", value)
    return str(getattr(code, "co_filename", "")).startswith(OURS)


def _came_late(name: str, before: dict[str, object], after: dict[str, object]) -> bool:
    """Whether a module was imported, or a function defined by torch itself, in between."""
    return name not in before and not _is_ours(after[name])
