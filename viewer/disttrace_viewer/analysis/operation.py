"""The line of the program behind an operation, or where a thread is."""

from __future__ import annotations

import re

from disttrace_viewer.trace.model import Frame, Stack, Trace
from disttrace_viewer.trace.operation import Op, ops

__all__ = ["Op", "frame", "innermost", "ops"]

_STANDARD = re.compile(r"/python3[^/]*/(?!(site|dist)-packages/)")
_PACKAGES = re.compile(r"/(site|dist)-packages/")
_GENERATED = re.compile(r"^<eval_with_key>|/torchinductor_[^/]*/")
"""Code that torch.compile wrote: no line of it is in anybody's program."""
_CARRIERS = re.compile(r"/(torch|disttrace|typing_extensions\.py$)")


def is_library(file: str) -> bool:
    """Whether a source file is of the interpreter, its standard library or an installed package, or
    was generated.
    """
    return bool(_STANDARD.search(file) or _PACKAGES.search(file) or _GENERATED.search(file))


def innermost(stack: Stack) -> Frame | None:
    """The innermost frame of the user's program.

    A program may itself be an installed package, so where no frame lies outside of those, the
    innermost one counts that is neither torch's nor of the standard library; else the innermost.
    The interpreter's own start (``<frozen runpy>``) is no place in anybody's program.
    """
    shown = [one for one in stack if not one.file.startswith("<frozen ")]
    for own in (_is_program, _is_package):
        found = next((one for one in shown if own(one.file)), None)
        if found is not None:
            return found
    return next(iter(shown), None)


def inside(stack: Stack) -> Frame | None:
    """The innermost frame, where that is not the user's own: what it called."""
    first = next((one for one in stack if not one.file.startswith("<frozen ")), None)
    return None if first is None or first == innermost(stack) else first


def _is_program(file: str) -> bool:
    return not is_library(file)


def _is_package(file: str) -> bool:
    found = _PACKAGES.search(file)
    return found is not None and not _CARRIERS.match(file, found.end() - 1)


def frame(trace: Trace, op: Op) -> Frame | None:
    """The user's line that called; None where Python had no frame."""
    return innermost(trace.stack(op.call.index))
