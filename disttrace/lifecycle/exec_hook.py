"""Before a process becomes another program (``os.exec*``) it says so: it runs on, under another id.

All of ``os.exec*`` end in two functions. Where one of them raises the process stays what it was,
and says that, too: ``os.execvp`` tries each folder of PATH.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from disttrace import errors
from disttrace.patching.patcher import Engine

_FUNCTIONS = ("execv", "execve")


def install(
    engine: Engine, part: str, becomes: Callable[[], None], stays: Callable[[], None]
) -> None:
    """Call ``becomes`` before each attempt, and ``stays`` after one that failed."""
    for name in _FUNCTIONS:
        original = getattr(os, name)
        wrapper = engine.value(part, os, name, _wrapper(original, becomes, stays))
        if original in os.supports_fd:
            os.supports_fd.add(wrapper)
            engine.on_undo(part, "os.supports_fd", lambda one=wrapper: os.supports_fd.discard(one))  # type: ignore[misc]


def _wrapper(
    original: Callable[..., Any], becomes: Callable[[], None], stays: Callable[[], None]
) -> Callable[..., Any]:
    def execute(*args: Any, **kwargs: Any) -> Any:
        becomes()
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            stays()
            errors.take_off(error)
            raise

    execute.__name__ = execute.__qualname__ = original.__name__
    return execute
