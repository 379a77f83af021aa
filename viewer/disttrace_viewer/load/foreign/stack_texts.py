"""Stacks as text: what ``py-spy dump`` prints, and what Python's ``faulthandler`` does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from disttrace_viewer.trace.plain_text import whole

PY_SPY = re.compile(r"\A\s*Process (\d{1,18}): .*?\nPython v", re.ASCII | re.DOTALL)
"""How it begins; a command may be of several lines."""
_THREAD = re.compile(
    r"Thread (?P<native>\w{1,40}) \([^)]{0,40}\)(: .*)?"
    r"|(Current thread|Thread) 0x\w{1,20}\b.{0,200}?most recent call first.*"
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
            thread = {"pid": pid, "os_thread_id": whole(native), "frames": []}
        elif thread is None:
            continue
        elif (frame := _frame(line)) is not None:
            thread["frames"].append(frame)
        elif thread["frames"] and (variable := _VARIABLE.fullmatch(line)) is not None:
            thread["frames"][-1]["locals"].append(variable.groupdict())
    if thread is not None:
        yield thread


def _frame(line: str) -> dict[str, Any] | None:
    """``    name (file:line)`` of py-spy, ``  File "file", line line in name`` of faulthandler."""
    if line.startswith('  File "'):
        file, _, rest = line.removeprefix('  File "').rpartition('", line ')
        number, _, name = rest.partition(" in ")
    elif line.startswith("    ") and line[4:5].strip() and line.endswith(")"):
        rest, _, number = line[4:-1].rpartition(":")
        name, _, file = rest.rpartition(" (")
    else:
        return None
    if not (file and name and number.isascii() and number.isdecimal()):
        return None
    return {"filename": file, "line": number, "name": name, "locals": []}
