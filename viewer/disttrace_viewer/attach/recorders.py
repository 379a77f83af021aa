"""Flight Recorder's dumps of ranks that run: asked for once, of all at the same time."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from disttrace.journal.proc import has_open
from disttrace_viewer.attach import control_plane
from disttrace_viewer.attach.processes import Found, environment, path_in
from disttrace_viewer.load import files
from disttrace_viewer.load.foreign.dumps.dump import MOST_BYTES, Dump, empty, read
from disttrace_viewer.load.foreign.dumps.dump_set import in_flight
from disttrace_viewer.load.problems import Problems

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


@dataclass(frozen=True, slots=True)
class Asked:
    """The dumps by pid, as of one moment; none unless there is one of each process."""

    dumps: Mapping[int, Dump] = field(default_factory=dict)
    at_ns: int = 0
    trouble: str | None = None


NOTHING = Asked()


def ask(found: Sequence[Found]) -> Asked:
    """What the recorders of these processes hold that have a way to be asked."""
    at_ns = time.time_ns()
    with ThreadPoolExecutor(max_workers=64) as pool:
        answers = dict(zip((o.pid for o in found), pool.map(_ask, found), strict=True))
    if all(one is None for one in answers.values()):
        return NOTHING
    alone = "so the verdict is by stacks alone, without sequence numbers"
    for pid, answer in answers.items():
        if isinstance(answer, str):
            return Asked(trouble=f"process {pid} {answer}, {alone}.")
    mute = [pid for pid, answer in answers.items() if answer is None]
    if mute:
        some = f"process{'es' * (len(mute) > 1)} {', '.join(map(str, mute[:8]))}"
        return Asked(trouble=f"other ranks have a worker server of torch, but not {some}, {alone}.")
    return _chosen({pid: a for pid, a in answers.items() if isinstance(a, list)}, at_ns, alone)


def _ask(one: Found) -> list[bytes | None] | str | None:
    """What the recorders of a process hold, NCCL's first; a clause where it does not tell, None
    where it has no way to.
    """
    where = control_plane.address(one.pid)
    if where is not None:
        try:
            return control_plane.dumps(where, one.pid)
        except control_plane.NoAnswer as error:
            return f"has a worker server of torch, which {error}"
    path = pipe(one)
    if path is None:
        return None
    data = dump(one, path)
    return "has been asked for a dump by NCCL's pipe and wrote none" if data is None else [data]


def _chosen(answers: Mapping[int, list[bytes | None]], at_ns: int, alone: str) -> Asked:
    """The dumps of the recorder that holds what has been in flight for longest: that of NCCL and
    that of gloo have numbers of their own, also in a group that has both. None where nothing is in
    flight: what is waited for is in no recorder.
    """
    problems = Problems()
    best: tuple[int, dict[int, Dump]] | None = None
    for number in range(max(map(len, answers.values()))):
        dumps = {}
        for pid, said in answers.items():
            data = said[number] if number < len(said) else None
            dumps[pid] = _dump(pid, data, at_ns, problems)
        since = min(
            (e.created_ns for d in dumps.values() for e in d.entries if in_flight(d, e)),
            default=None,
        )
        if since is not None and (best is None or since < best[0]):
            best = since, dumps
    lost = next((p.sentence for p in problems.found() if p.kind != "foreign"), None)
    if lost is not None:
        return Asked(trouble=f"{lost.removesuffix('.')}, {alone}.")
    return Asked(best[1], at_ns) if best is not None else NOTHING


def _dump(pid: int, data: bytes | None, at_ns: int, problems: Problems) -> Dump:
    """A process's dump as of a moment: what it enqueued later, others may have as well."""
    path = f"the Flight Recorder of process {pid}"
    files.hold(path, data or b"", at_ns)
    dump = read(path, problems) if data else None
    if dump is None:
        return empty(path, at_ns)
    if dump.lost is not None:  # the newest operations may be what is lost
        problems.add(path, "torn", dump.lost)
    return replace(dump, entries=[one for one in dump.entries if one.created_ns <= at_ns])
