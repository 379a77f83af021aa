"""Whose code a file holds: the program's, a library's, or generated, by its path alone.

Both halves ask this: the recorder of the frames that it writes, the viewer on another machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_STANDARD = re.compile(r"/lib(?:64)?/python3[^/]*/(?!(site|dist)-packages/)")
_PACKAGES = re.compile(r"/(?:site|dist)-packages/(.+)")
_GENERATED = re.compile(
    r"^<eval_with_key>|^<frozen |^<__array_function__ |/torchinductor_[^/]*/|/c[a-z2-7]{51}\.py$"
)
"""Made by torch.compile (files are named by hashes) or the interpreter, not the program."""
_STARTER = re.compile(r"/bin/[^/.]+$")
"""A script that pip made to call a package."""

BUILT_IN = "<frozen built-in>"
"""In place of a file, of what is written in C and called by a program's line."""
LOOP = "<frozen loop>"
"""The same, of a loop that changes nothing, and calls what looks only: it waits for a change."""
TYPED = "<string>"
"""The text of ``python -c``, or what a library handed to ``exec``: it cannot be known."""


_FOR_INPUT = {
    "socket": ("accept", "readinto"),
    "ssl": ("read", "recv", "recv_into", "do_handshake"),
    "selectors": ("select",),
    "threading": ("wait", "wait_for"),
    "queue": ("get",),
    "signal": ("sigwait",),
    "connection": ("_recv", "_poll", "poll", "recv", "recv_bytes", "accept"),
    "queues": ("get",),
    "synchronize": ("wait", "wait_for"),
    "sched": ("run",),
    "cmd": ("cmdloop",),
    "code": ("raw_input",),
    "runners": ("run",),  # of asyncio, above an event loop in C, such as uvloop's
    "hub": ("run",),  # of gevent
}
"""Functions by the names of libraries' files, which wait for a descriptor, queue or condition."""

_CARRIERS = ("torch/", "disttrace/", "typing_extensions.py")


def is_generated(file: str) -> bool:
    """Whether the code was made while the program ran."""
    return bool(_GENERATED.search(file))


def in_package(file: str) -> str | None:
    """The path of an installed package's file below the folder of packages, else None."""
    found = _PACKAGES.search(file)
    return None if found is None else found[1]


def is_library(file: str) -> bool:
    """Whether a file is Python's, the standard library's, a package's, or generated."""
    return bool(
        _STANDARD.search(file)
        or _PACKAGES.search(file)
        or _GENERATED.search(file)
        or _STARTER.search(file)
    )


def public(file: str) -> str:
    """What of a path is public: its name, and of a library also that it is one."""
    standard, inside, name = _STANDARD.search(file), in_package(file), file.rpartition("/")[2]
    if standard is not None or inside is None:
        return standard[0] + name if standard else name
    return f"/site-packages/{inside if inside.startswith(_CARRIERS) else name}"


def waits_for_input(file: str, function: str) -> bool:
    """Whether this innermost function waits for the outside: in C, or in a library."""
    name = file.rpartition("/")[2].removesuffix(".py")
    known = file == BUILT_IN or "/zmq/" in file or function in _FOR_INPUT.get(name, ())
    return known and is_library(file)


def is_program(file: str) -> bool:
    """Whether a source file is surely of the program itself."""
    return file != TYPED and not is_library(file)


def programs_frame(files: Sequence[str]) -> int | None:
    """Which frame of a stack, given by its files from the innermost on, is the program's own.

    Else that of ``python -c``. A program may itself be an installed package, so where no frame lies
    outside of those, the innermost one counts that is neither torch's nor of the standard library;
    else the innermost. The interpreter's own start (``<frozen runpy>``) is no place in anybody's
    program.
    """
    shown = [(at, file) for at, file in enumerate(files) if not file.startswith("<frozen ")]
    for own in (is_program, TYPED.__eq__, _is_package):
        found = next((at for at, file in shown if own(file)), None)
        if found is not None:
            return found
    return shown[0][0] if shown else None


def _is_package(file: str) -> bool:
    inside_package = in_package(file)
    return inside_package is not None and not inside_package.startswith(_CARRIERS)
