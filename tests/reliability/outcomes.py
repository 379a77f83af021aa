"""What a person sees of a run of a fault, without what differs from run to run by itself.

Two runs are compared fact by fact. Numbers that name a run (ports, pids, addresses, times, places
of temporary files) become words; everything else must be equal.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence

_SAME = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x"),
    (re.compile(r"/tmp/[^\s'\",)]+"), "FILE"),
    (re.compile(r"\d{4}-\d\d-\d\d[T_ ]\d\d:\d\d:\d\d(\.\d+)?"), "TIME"),
    (re.compile(r"(\[[\w.:%-]+\]|[\w.-]+):\d{4,5}\b"), "ADDRESS"),
    (re.compile(r"\((localhost|HOST|[\d.]+|[\da-f:]*::[\da-f:]*), \d{4,5}\)"), "(ADDRESS)"),
    (re.compile(r"\b(pid(?:\(s\))?|process|port)([ :=]+)\d+", re.IGNORECASE), r"\1\2N"),
    (re.compile(r"\b\d+(\.\d+)?( ?)(ms|milliseconds|s|seconds|us)\b"), r"N\2\3"),
    # A peer that ended: which of them TCP reports depends on whether it had read everything.
    (
        re.compile(
            r"\[[^\]]*pair\.cc:\d+\] .*(?:Connection (?:closed|reset) by peer|Broken pipe).*"
        ),
        "the connection to a peer was lost",
    ),
)
_PREFIX = re.compile(r"\[rank(\d+)\]: ?(.*)")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
_ABORT = re.compile(r"terminate called|\s+what\(\):|Fatal Python error")

Facts = Mapping[str, str]
"""What is compared, by name: a difference in one is told by its name."""


def normal(line: str) -> str:
    """``line`` without what names this run."""
    line = line.replace(socket.gethostname(), "HOST").rstrip()
    for pattern, word in _SAME:
        line = pattern.sub(word, line)
    return line


def exceptions(stderr: str) -> dict[str, set[str]]:
    """Type and first line of every uncaught exception, and aborts of C++, by rank ("" unknown)."""
    found: dict[str, set[str]] = {}
    inside: dict[str, bool] = {}
    for raw in stderr.splitlines():
        match = _PREFIX.match(raw)
        rank, line = (match[1], match[2]) if match else ("", raw)
        if line.startswith("Traceback (most recent call last)"):
            inside[rank] = True
        elif _ABORT.match(line):
            found.setdefault(rank, set()).add(normal(line).strip())
        elif inside.get(rank) and _EXCEPTION.match(line):
            inside[rank] = False
            found.setdefault(rank, set()).add(normal(line))
    return found


def differences(now: Facts, before: Sequence[Facts]) -> list[str]:
    """Facts of ``now`` that no run of ``before`` had: some programs end in more ways than one."""
    found = []
    for name in sorted(set(now).union(*before)):
        seen = [one.get(name, "") for one in before]
        if now.get(name, "") not in seen:
            found.append(f"{name}: {' or '.join(sorted(set(seen)))} -> {now.get(name, '')}")
    return found
