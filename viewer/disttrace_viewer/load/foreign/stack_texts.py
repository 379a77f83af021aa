"""Stacks as text: what ``py-spy dump`` prints, and what Python's ``faulthandler`` does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

PY_SPY = re.compile(r"\s*Process (\d+): .*?\nPython v", re.ASCII | re.DOTALL)
"""How it begins; a command may be of several lines."""
_THREAD = re.compile(
    r"Thread (?P<native>\w+) \([^)]*\)(: .*)?"
    r"|(Current thread|Thread) 0x\w+.*most recent call first.*"
)
_FRAME = re.compile(
    r"    (?P<name>\S.*) \((?P<file>.+):(?P<line>\d+)\)"
    r'|  File "(?P<its_file>.+)", line (?P<its_line>\d+) in (?P<its_name>.+)'
)
_VARIABLE = re.compile(r"            (?P<name>\w+): (?P<repr>.*)")


def threads(text: str, number: int) -> list[dict[str, Any]]:
    """The threads of a process in the form of ``py-spy dump --json``, in their order. The last one
    of ``faulthandler`` is the main thread; it does not tell the pid: ``number`` stands for that.
    Raises ValueError where there is none.
    """
    process = PY_SPY.match(text)
    pid = int(process[1]) if process is not None else number
    found = [thread for thread in _threads(text, pid) if thread["frames"]]
    if not found:
        raise ValueError("no thread with a frame")
    return found


def _threads(text: str, pid: int) -> Iterator[dict[str, Any]]:
    thread: dict[str, Any] | None = None
    for line in text.splitlines():
        if (begin := _THREAD.fullmatch(line)) is not None:
            if thread is not None:
                yield thread
            native = begin["native"] or ""
            number = int(native) if native.isdigit() else None
            thread = {"pid": pid, "os_thread_id": number, "frames": []}
        elif thread is None:
            continue
        elif (frame := _FRAME.fullmatch(line)) is not None:
            thread["frames"].append(
                {
                    "filename": frame["file"] or frame["its_file"],
                    "line": frame["line"] or frame["its_line"],
                    "name": frame["name"] or frame["its_name"],
                    "locals": [],
                }
            )
        elif thread["frames"] and (variable := _VARIABLE.fullmatch(line)) is not None:
            thread["frames"][-1]["locals"].append(variable.groupdict())
    if thread is not None:
        yield thread
