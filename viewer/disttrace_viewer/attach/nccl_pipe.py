"""NCCL's pipe: whoever writes to it has torch dump its Flight Recorder to a file.

It exists where the job was started with ``TORCH_NCCL_DEBUG_INFO_PIPE_FILE``. torch's monitor looks
at it once a second (``TORCH_NCCL_COORD_CHECK_MILSEC``), and takes stacks as well.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping

from disttrace.journal.proc import has_open
from disttrace_viewer.attach.processes import Found, environment, path_in
from disttrace_viewer.load import files
from disttrace_viewer.load.foreign.dumps.dump import MOST_BYTES

VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
LIMIT_S = 6.0
_ENDS = b"."
_POLL_S = 0.1


def pipe(one: Found) -> str | None:
    """The pipe of a process; None unless it is one, and that process has it open."""
    stem = environment(one.pid).get(VARIABLE)
    if not stem or one.rank is None:
        return None
    path = path_in(one.pid, f"{stem}{one.rank}.pipe")
    try:
        found = os.lstat(path)
    except OSError:
        return None
    ours = found.st_uid == os.geteuid() or not os.geteuid()
    return path if ours and stat.S_ISFIFO(found.st_mode) and has_open(one.pid, found) else None


def dump(one: Found, path: str) -> bytes | None:
    """What is dumped when it is asked for; None where nothing comes in time."""
    names = _files(one, environment(one.pid))
    before = {name: _state(name) for name in names}
    if not _write(path):
        return None
    until, last = time.monotonic() + LIMIT_S, before
    while time.monotonic() < until:
        time.sleep(_POLL_S)
        now = {name: _state(name) for name in names}
        for name in names:
            if now[name] is not None and now[name] == last[name] != before[name]:
                data = _read(name)
                if data.endswith(_ENDS):  # as every pickle that was written to its end
                    return data
        last = now
    return None


def _files(one: Found, env: Mapping[str, str]) -> list[str]:
    """Where torch may write it, by what it was told, or by its defaults."""
    stems = [env[name] for name in FILES if env.get(name)]
    if not stems:
        cache = env.get("XDG_CACHE_HOME") or f"{env.get('HOME', '')}/.cache"
        stems = [f"{cache}/torch/{name}_trace_rank_" for name in ("comm_lib", "nccl")]
        stems.append("/tmp/nccl_trace_rank_")
    return [path_in(one.pid, f"{stem}{one.rank}") for stem in stems]


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: str) -> bytes:
    try:
        return files.read(path, MOST_BYTES)[0]
    except OSError:
        return b""


def _write(path: str) -> bool:
    """Ask for a dump; what nobody reads, or what is full, is left alone."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and os.write(descriptor, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(descriptor)
