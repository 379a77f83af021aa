"""Tracing for torch.distributed: what every rank did, in what order, and who waits for whom."""

from __future__ import annotations

import sys

from disttrace._version import __version__

TYPE_CHECKING = False  # as type checkers read it; importing typing would cost milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

    class Annotation(Protocol):
        """A context manager that can also decorate a function."""

        def __enter__(self) -> Any: ...
        def __exit__(self, kind: Any, error: Any, trace: Any, /) -> bool | None: ...
        def __call__(self, function: Function, /) -> Function: ...


__all__ = ["__version__", "annotate", "install", "uninstall"]


def install(**settings: object) -> None:
    """Trace this process, and the processes that it starts from now on.

    May be called at any time, before or after `import torch`, and again without effect. The
    keywords are the settings of `disttrace.config.SETTINGS` (`dir="...", export="json,otlp"`, ...)
    and win over the variables `DISTTRACE_*`. What children need to know is put into `os.environ`.
    Where disttrace does not run (Windows, Python without the GIL) it says so and does nothing.

    Raises:
        TypeError: for a keyword that is no setting.
    """
    from disttrace.platforms import refusal

    refused = refusal()
    if refused is not None:
        from disttrace.errors import Reporter

        Reporter().say("platform", refused)
        return
    from disttrace.session import install as start

    start(**settings)


def uninstall() -> None:
    """End tracing in this process: every patched attribute is the original object again.

    Processes started afterwards are not traced. Without a preceding `install` it does nothing.
    """
    if "disttrace.session" in sys.modules:
        from disttrace.session import uninstall as stop

        stop()


def annotate(name: str) -> Annotation:
    """Name a part of the program: a context manager, and a decorator for functions.

    The part becomes an operation `annotate` with this name, and the parent of the operations
    issued in it. Without tracing it does nothing.
    """
    from disttrace.capture import annotate as mark

    return mark(name)
