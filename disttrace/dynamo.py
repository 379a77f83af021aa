"""Keeps torch.compile away from our frames.

Dynamo compiles every Python function it meets after a graph break. It must not compile ours: the
result was a crash of the user's program (torch 2.5 and 2.13) or the recompile limit (2.15).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

# What stands in a class beside its methods, most of it.
_PLAIN = (str, bytes, int, float, tuple, dict, type(None), types.MemberDescriptorType)


def _find() -> Callable[[types.CodeType], None] | None:
    """torch's way to skip a code object; None before torch is there. Imports neither."""
    eval_frame: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if eval_frame is None:
        return None
    if hasattr(eval_frame, "set_code_exec_strategy"):
        strategy = eval_frame._FrameExecStrategy(
            eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        )
        return lambda code: eval_frame.set_code_exec_strategy(code, strategy)
    if hasattr(eval_frame, "skip_code"):
        return lambda code: eval_frame.skip_code(code)
    return None


def skip(code: types.CodeType) -> None:
    """Have dynamo run ``code`` as it is: a copy, which ``skip_module`` cannot find."""
    mark = _find()
    if mark is not None:
        mark(code)


def skip_module(*modules: types.ModuleType) -> None:
    """Mark every function and method defined in ``modules``."""
    mark = _find()
    if mark is None:
        return
    for module in modules:
        for value in list(vars(module).values()):
            for code in _codes(value, module.__name__):
                mark(code)


def call_unseen(function: Callable[..., object], /, *args: Any) -> None:
    """Have dynamo look at no frame of this call; no context manager, for its frames count too."""
    eval_frame: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if eval_frame is None:
        function(*args)
        return
    callback = eval_frame.set_eval_frame(None)
    try:
        function(*args)
    finally:
        eval_frame.set_eval_frame(callback)


def _codes(value: object, module: str) -> list[types.CodeType]:
    if isinstance(value, types.FunctionType):  # nearly all: so the others cost a start nothing
        made = _functions(value) if value.__module__ == module else []
    elif getattr(value, "__module__", None) != module:
        made = []
    elif isinstance(value, type):
        made = [code for each in list(vars(value).values()) for code in _functions(each)]
    else:
        made = _functions(value)
    return [code for each in made for code in _nested(each)]


def _functions(value: object) -> list[types.CodeType]:
    """Code of a function, property or cache; not contextlib's, which the program shares."""
    if isinstance(value, types.FunctionType):
        behind = [value, vars(value).get("__wrapped__")]
    elif isinstance(value, _PLAIN):
        return []
    else:
        names = ("__wrapped__", "__func__", "fget", "fset")
        behind = [getattr(value, name, None) for name in names]
    whole = (f for f in behind if isinstance(f, types.FunctionType))
    return [f.__code__ for f in whole if f.__globals__.get("__name__") != "contextlib"]


def _nested(code: types.CodeType) -> list[types.CodeType]:
    """``code`` and the code of everything defined inside it: closures share these objects."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [code, *(deep for c in inner for deep in _nested(c))]
