"""The ranks that run on this host, by what the kernel shows of their programs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from disttrace.journal.proc import ROOT, known, stat, status
from disttrace_viewer.trace.plain_text import whole
from disttrace_viewer.trace.values import dataclass, replace

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Who sets the first of them may itself have been started with another one."""
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Beside them the number of ranks."""
_OF_GROUPS = (b"pt_gloo", b"gloo_", b"pt_nccl", b"pt_ucc")
"""How threads of a process group are named, from torch 2.6 on."""
_RUNS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Found:
    """A process that has torch. ``rank`` is that of the environment at its start: children by
    fork or spawn have none of their own there. ``of``: which of the variables it is from.
    """

    pid: int
    rank: int | None
    of: int
    run: frozenset[str]
    started: int
    world: int | None = None
    """Number of ranks, by the variable of the same launcher."""


def ranks(below: Iterable[int] = (), job: str | None = None) -> list[Found]:
    """The processes of this user that may be ranks, below some pids or all, of one job."""
    wanted = set(below)
    seen = {int(name): known(name) for name in os.listdir(ROOT) if name.isdecimal()}
    everybody = {pid: 0 if found is None else found.parent for pid, found in seen.items()}
    found = [
        one
        for pid in everybody
        if (not wanted or not wanted.isdisjoint(_upwards(pid, everybody)))
        and (one := _look(pid)) is not None
        and (job is None or job in one.run)
    ]
    found = _that_communicate([one for one in found if one.rank is not None] or found, everybody)
    newest = max(found, key=lambda one: one.started, default=None)
    if newest is None or job is not None or wanted:
        return sorted(found, key=lambda one: one.pid)
    return sorted((o for o in found if o.run == newest.run), key=lambda one: one.pid)


def _look(pid: int) -> Found | None:
    if pid == os.getpid():
        return None
    try:
        if os.stat(f"{ROOT}/{pid}").st_uid != os.geteuid() and os.geteuid():
            return None
        with open(f"{ROOT}/{pid}/maps", "rb") as file:
            if b"libtorch" not in file.read():
                return None
        env = environment(pid)
        started = stat(pid).ticks
    except (OSError, ValueError):
        return None
    numbers = [whole(env.get(key, "")) for key in _RANKS]
    of = next((n for n, rank in enumerate(numbers) if rank is not None), len(_RANKS))
    rank = numbers[of] if of < len(_RANKS) else None
    run = frozenset(env[key] for key in _RUNS if key in env)
    world = whole(env.get(_SIZES[of], "")) if rank is not None else None
    return Found(pid, rank, of, run, started, world)


def environment(pid: int) -> dict[str, str]:
    """The variables with which a process was started. Raises OSError."""
    with open(f"{ROOT}/{pid}/environ", "rb") as file:
        pairs = [text.partition(b"=") for text in file.read().split(b"\0")]
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def path_in(pid: int, path: str) -> str:
    """A path as a process means it: of its root, or from where it is."""
    return f"{ROOT}/{pid}/{f'root{path}' if os.path.isabs(path) else f'cwd/{path}'}"


def of_threads(pid: int, name: str) -> Iterator[tuple[str, bytes]]:
    """The threads of a process, and what ``/proc`` has of each in a file; none that has ended."""
    threads: list[str] = []
    with suppress(OSError):
        threads = os.listdir(f"{ROOT}/{pid}/task")
    for thread in threads:
        with suppress(OSError), open(f"{ROOT}/{pid}/task/{thread}/{name}", "rb") as file:
            yield thread, file.read()


def thread_names(pid: int) -> list[bytes]:
    """How the kernel calls the threads of a process."""
    return [name.strip() for _, name in of_threads(pid, "comm")]


def _that_communicate(found: Sequence[Found], parents: Mapping[int, int]) -> list[Found]:
    """Of a process and one below it, which has its variables, the one that is the rank: a rank
    starts the workers of a loader, and a launcher starts ranks. What several have tells none apart.
    """
    pids, others = {one.pid: one for one in found}, set[int]()
    for child in found:
        above = _upwards(parents.get(child.pid, 0), parents)
        parent = next((pids[pid] for pid in above if pid in pids), None)
        if parent is None:
            continue
        if parent.of > child.of:
            others.add(parent.pid)
        elif parent.rank == child.rank:
            of_parent, of_child = _threads(parent.pid), _threads(child.pid)
            launches = of_parent < of_child or (of_parent == of_child and child.rank is None)
            others.add(parent.pid if launches else child.pid)
    left = [one for one in found if one.pid not in others]
    several = Counter((one.run, one.rank) for one in left)
    return [replace(one, rank=None) if several[one.run, one.rank] > 1 else one for one in left]


def _threads(pid: int) -> tuple[bool, int]:
    """Whether threads of a group are there, and how many threads: a fork has one."""
    names = thread_names(pid)
    return any(name.startswith(_OF_GROUPS) for name in names), len(names)


def _upwards(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """A process and all from which it descends."""
    while pid > 1:
        yield pid
        pid = parents.get(pid, 0)


def switches(pid: int) -> int:
    """How often the main thread of a process has waited and gone on."""
    return int(status(f"{pid}/task/{pid}").get("voluntary_ctxt_switches", "0"))


def busy_s(pid: int) -> float:
    """How much processor time the main thread of a process has taken."""
    found = known(f"{pid}/task/{pid}")
    return 0.0 if found is None else found.cpu_ticks / os.sysconf("SC_CLK_TCK")
