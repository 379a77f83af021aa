"""Stacks as text: of ``py-spy dump``, ``faulthandler``, pystack, gdb's ``py-bt`` and Python 3.15's
``profiling.sampling dump``, of one process or of several in one file, with prefixes or without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from disttrace_viewer.load.foreign.lines import Prefixes
from disttrace_viewer.trace.plain_text import whole

_BEGIN = re.compile(
    r"Process (?P<process>\d{1,18}): .*?(?:--local[-_]rank[= ](?P<local>\d{1,7})\b.*)?"
    r"|Thread (?P<py_spy>\w{1,40}) \([^)]{0,40}\)(?P<name>: .*)?"
    r"|(?P<fault>Current thread|Thread) 0x\w{1,20}\b.{0,200}?most recent call first.*"
    r"|Traceback for thread (?P<pystack>\d{1,18}) .{0,200}?\(most recent call last\):"
    r"|Stack dump(?: for PID (?P<pid>\d{1,18}))?(?:, thread (?P<sampled>\d{1,18}))?"
    r" \((?P<status>.{0,200}?)most recent call last\):"
    r"|Thread \d{1,6} \(Thread 0x\w{1,20} \(LWP (?P<lwp>\d{1,18})\).{0,100}"
    r"|(?P<gdb>Traceback \(most recent call first\):)"
    r"|(?P<again>Timeout \(.{1,40}\)!|Fatal Python error: .*)"
    r"|(?:Attaching to process|\[New process) (?P<attached>\d{1,18}).{0,100}"
)
_VARIABLE = re.compile(r"            (?P<name>\w+): (?P<repr>.*)")
_LAUNCHER = re.compile(
    r"torch[/\\]distributed[/\\](elastic[/\\]agent|launcher|run\.py|launch\.py)"
    r"|torch[/\\]multiprocessing[/\\]spawn\.py|torch[/\\]utils[/\\]data[/\\]_utils[/\\]worker\.py"
    r"|multiprocessing[/\\](resource_tracker|forkserver)\.py|_inductor[/\\]compile_worker"
)
"""Of what is no rank: a launcher, a worker of a loader, a helper."""


@dataclass(slots=True)
class Process:
    """The threads of a process, as ``py-spy dump --json`` has them; ``rank`` where a prefix tells
    it. The pid is ``number`` where nothing tells it.
    """

    pid: int
    rank: int | None = None
    threads: list[dict[str, Any]] = field(default_factory=list)

    @property
    def main(self) -> dict[str, Any]:
        """The main thread: by its number or name, else the last one."""
        found = [one for one in self.threads if one["frames"]]
        own = [one for one in found if one.get("os_thread_id") == self.pid]
        named = [one for one in found if one.get("main")]
        return (own or named or found)[-1]

    @property
    def is_rank(self) -> bool:
        """Whether it is no launcher, nor a helper of a rank."""
        files = [str(frame["filename"]) for frame in self.main["frames"]]
        spawned = any(frame["name"] == "_wrap" for frame in self.main["frames"])
        return spawned or is_of_rank(files)


def is_of_rank(files: Sequence[str]) -> bool:
    """Whether none of a stack's files is a launcher's, or a helper's."""
    return bool(files) and not any(_LAUNCHER.search(one) for one in files)


def begins(text: str) -> bool:
    """Whether a file whose first lines these are begins with a stack."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = [Prefixes(lines[:50], 1970).strip(line).text.rstrip() for line in lines[:1]]
    return any(_BEGIN.fullmatch(line) for line in found)


def processes(data: bytes, number: int = 0, first: int | None = 0) -> list[Process]:
    """The processes of a file, in their order; ``first``: the rank of the first one of its host.
    Raises ValueError where it has no stack.
    """
    found = _of_json(data) or [*_of_text(data.decode(errors="replace"), number, first)]
    found = [one for one in found if any(thread["frames"] for thread in one.threads)]
    if not found:
        raise ValueError("no thread with a frame")
    return found


def _of_json(data: bytes) -> list[Process]:
    """Lists of threads: one, or one a line, with prefixes or without."""
    if b'"frames"' not in data:
        return []
    if data.lstrip().startswith((b"[", b"{")):
        try:
            return _by_pid(orjson.loads(data), None)
        except orjson.JSONDecodeError:
            pass
    lines = data.decode(errors="replace").splitlines()
    prefixes, found = Prefixes(lines[:50], 1970), []
    for raw in lines:
        line = prefixes.strip(raw)
        start = line.text.find("[{")
        if start >= 0:
            found += _by_pid(orjson.loads(line.text[start:]), line.rank)
    return found


def _by_pid(threads: Sequence[dict[str, Any]], rank: int | None) -> list[Process]:
    found: dict[int, Process] = {}
    for thread in threads:
        pid = int(thread["pid"])
        found.setdefault(pid, Process(pid, rank)).threads.append(thread)
    return [*found.values()]


def _of_text(text: str, number: int, first: int | None) -> Iterator[Process]:
    lines = text.splitlines()
    prefixes = Prefixes(lines[:200], 1970)
    found: dict[object, list[Process]] = {}
    reversed_ = set[int]()
    native: dict[object, int] = {}
    for raw in lines:
        line = prefixes.strip(raw)
        rank = line.rank
        if rank is None and line.local is not None and first is not None:
            rank = first + line.local
        key: object = (line.by, line.local) if rank is None else rank
        own = found.setdefault(key, [])
        text = line.text
        begin = _BEGIN.fullmatch(text.rstrip())
        if begin is None:
            if own and own[-1].threads:
                _within(own[-1].threads[-1], text)
            continue
        pid = begin["process"] or begin["pid"] or begin["attached"]
        if pid is not None:
            told = begin["local"] if rank is None and first is not None else None
            own.append(Process(int(pid), rank if told is None else (first or 0) + int(told)))
        elif not own or begin["again"]:
            if begin["again"] and own and own[-1].threads:
                own.pop()  # the newest of several looks
            own.append(Process(number, rank))
        if begin["lwp"]:
            native[key] = int(begin["lwp"])
        elif not (begin["process"] or begin["attached"] or begin["again"]):
            number_of = begin["py_spy"] or begin["pystack"] or begin["sampled"]
            thread: dict[str, Any] = {
                "pid": own[-1].pid,
                "os_thread_id": whole(number_of) if number_of else native.get(key),
                "main": (begin["name"] or "").endswith('"MainThread"')
                or "main thread" in (begin["status"] or ""),
                "frames": [],
            }
            own[-1].threads.append(thread)
            if begin["pystack"] or begin["status"] is not None:
                reversed_.add(id(thread))
            if begin["pystack"] and own[-1].pid == number:
                lowest = min(one["os_thread_id"] or 0 for one in own[-1].threads)
                own[-1].threads[-1]["lowest"] = lowest
    for several in found.values():
        for one in several:
            lowest = [thread["lowest"] for thread in one.threads if "lowest" in thread]
            one.pid = lowest[-1] if lowest else one.pid  # a main thread is a process's first
            for thread in one.threads:
                if id(thread) in reversed_:
                    thread["frames"].reverse()
            yield one


def _within(thread: dict[str, Any], line: str) -> None:
    """A frame, or a local variable of the last one."""
    if (frame := _frame(line)) is not None:
        thread["frames"].append(frame)
    elif thread["frames"] and (variable := _VARIABLE.fullmatch(line)) is not None:
        thread["frames"][-1]["locals"].append(variable.groupdict())


def _frame(line: str) -> dict[str, Any] | None:
    """``    name (file:line)`` of py-spy, ``  File "file", line line in name`` of the others."""
    text = line.removeprefix("    (Python) ").lstrip() if "File " in line else line
    if text.startswith('File "') and line[:1] == " ":
        file, _, rest = text.removeprefix('File "').rpartition('", line ')
        number, _, name = rest.partition(" in ")
        number = number.removesuffix(",")
        name = name.partition("  opcode=")[0]
    elif line.startswith("    ") and line[4:5].strip() and line.endswith(")"):
        rest, _, number = line[4:-1].rpartition(":")
        name, _, file = rest.rpartition(" (")
    else:
        return None
    if not (file and name and number.isascii() and number.isdecimal()):
        return None
    return {"filename": file, "line": number, "name": name, "locals": []}
