"""Which files and functions of ours a `diagnose` enters, and where a layer calls one above it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from types import FrameType
from typing import Any

import orjson

import disttrace.lifecycle.rendezvous_folder  # noqa: F401 - what an import runs, a reader does not enter
from test_layers import RECORDER, VIEWER, VIEWER_ROOMS, room


def _room(path: str) -> str | None:
    """The room of a file of the viewer; None of any other."""
    if not path.startswith(f"{VIEWER}{os.sep}"):
        return None
    return room(".".join(("_", *path[len(str(VIEWER)) + 1 : -3].split(os.sep))), VIEWER)


def main(folder: str) -> None:
    """Diagnose the folder; print as JSON what was entered, is imported, and climbs a room."""
    entered: set[tuple[str, str]] = set()
    climbs: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        path, caller = code.co_filename, frame.f_back
        if event != "call" or code.co_name == "<module>" or not path.startswith(ours):
            return
        entered.add((path, str(code.co_firstlineno)))
        there, here = _room(path), None if caller is None else _room(caller.f_code.co_filename)
        if there is None or here is None or caller is None:
            return
        lazy = code.co_name.startswith("<")  # a generator runs where it is read
        if not lazy and VIEWER_ROOMS.index(there) > VIEWER_ROOMS.index(here):
            climbs.add((f"{here}:{caller.f_code.co_name}", f"{there}:{code.co_name}"))

    ours = (f"{RECORDER}{os.sep}", f"{VIEWER}{os.sep}")
    from disttrace.cli import main as command

    with contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(note)
        code = command(["diagnose", folder])
        sys.setprofile(None)
    modules = [name for name in sys.modules if name.split(".")[0].startswith("disttrace")]
    found = {
        "code": code, "files": len({path for path, _ in entered}), "functions": len(entered),
        "modules": len(modules), "climbs": sorted(climbs),
    }  # fmt: skip
    print(orjson.dumps(found).decode())


if __name__ == "__main__":
    main(sys.argv[1])
