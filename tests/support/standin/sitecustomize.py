"""Makes `gloo` mean the stand-in for NCCL in every process that has this folder on its path.

A program runs unchanged: ``Backend("gloo")`` gives the stand-in's name. The stand-in's code is
compiled as a package of torch's, for where torch's C++ blocks there is no frame of Python either.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_AFTER = "torch.distributed.distributed_c10d"
_PACKAGE = "torch._standin"
_PARTS = Path(__file__).with_name("parts")


class _Part(importlib.abc.Loader):
    """A file of the stand-in, compiled as if it lay in torch's folder."""

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__.removeprefix(_PACKAGE).lstrip(".") or "__init__"
        home = os.path.dirname(sys.modules["torch"].__file__ or "")
        file = os.path.join(home, "_standin", f"{name}.py")
        exec(compile((_PARTS / f"{name}.py").read_text(), file, "exec"), module.__dict__)


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._real.exec_module(module)
        importlib.import_module(f"{_PACKAGE}.install").install(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == _PACKAGE or name.startswith(_PACKAGE + "."):
            return importlib.machinery.ModuleSpec(name, _Part(), is_package=name == _PACKAGE)
        if name != _AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if "STANDIN" in os.environ:
    sys.meta_path.insert(0, _Finder())
