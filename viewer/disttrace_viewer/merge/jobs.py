"""What is one launch, which launches met, and which folders and which job a command means."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from disttrace_viewer.load.discover import opened
from disttrace_viewer.load.journals import in_name
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.merge.launches import Union, families, launches, same
from disttrace_viewer.merge.store_servers import Life
from disttrace_viewer.trace.model import Group, LaunchedJob, Place
from disttrace_viewer.trace.plain_text import plain
from disttrace_viewer.trace.process import Problem, Process
from disttrace_viewer.trace.values import replace

TOGETHER_NS = 60_000_000_000
"""Processes started one by one, as by a shell loop, are one launch within this time."""
OWN_SOURCES = ("drawn", "parent", "", None)
"""Values of ``job_source`` that hold no more than descent does."""


def by_launch(processes: Sequence[Process], lives: Sequence[Life]) -> list[Life]:
    """The lives, each with the launch that it is of, where the job has a name."""
    roots = families(processes).all()
    found = list(lives)
    # The id that a scheduler, torchrun or the user gave.
    ids = same(processes, lambda p: None if p.job_source in OWN_SOURCES else p.job)
    for name, together in ids.items():
        for number, launch in enumerate(launches(processes, roots, lives, together)):
            attempts = _attempts([processes[i] for i in launch], roots)
            for index in launch:
                found[index] = replace(lives[index], launch=(name, number), attempt=attempts[index])
    return found


def _attempts(launch: Sequence[Process], roots: Sequence[int]) -> dict[int, int | None]:
    """Which attempt of a launch each process is of: the n-th of each launcher are one, where all
    made as many."""
    counted: dict[int, set[int]] = {}
    for process in launch:
        if not process.is_agent:
            counted.setdefault(roots[process.index], set()).add(process.attempt or 0)
    orders = {root: sorted(found) for root, found in counted.items()}
    alike = len({len(order) for order in orders.values()}) < 2
    found: dict[int, int | None] = dict.fromkeys((p.index for p in launch if p.is_agent), None)
    for p in (one for one in launch if not one.is_agent):
        found[p.index] = orders[roots[p.index]].index(p.attempt or 0) if alike else -1
    return found


def ties(
    processes: Sequence[Process], places: Sequence[Place], groups: Sequence[Group]
) -> list[int]:
    """Per process the set of those that a store, a group or one launch joins: one traced parent
    (unless it sends them to several addresses), or one address to meet at. A name joins none."""
    union = Union(len(processes))
    index = {p.id: p.index for p in processes}
    for parent, of in same(processes, lambda p: None if p.is_agent else p.parent).items():
        if len({_address(processes[i]) for i in of} - {None}) < 2:
            union.join([*of, *([index[parent]] if parent in index else [])])
    for together in (
        *same(processes, _address).values(),
        *(place.processes for place in places),
        *([member.process for member in group.members] for group in groups),
    ):
        union.join(together)
    return union.all()


def _address(process: Process) -> tuple[str | None, ...] | None:
    """Where a rank was sent to meet the others; None where nothing tells."""
    env = process.env
    found = (env.get("MASTER_ADDR"), env.get("MASTER_PORT"), env.get("WORLD_SIZE"))
    return found if None not in found and "RANK" in env else None


def circles(processes: Sequence[Process], places: Sequence[Place]) -> list[int]:
    """Per process the circle of those that met, descend from one another or name one job."""
    union = families(processes)
    for place in places:
        union.join(place.processes)
    for named in same(processes, lambda p: p.job).values():
        union.join(named)
    return union.all()


def jobs_of(
    processes: Sequence[Process],
    places: Sequence[Place],
    groups: Sequence[Group],
    lives: Sequence[Life],
    orphans: Collection[int],
    modified_ns: Sequence[int],
    called: Mapping[str, str],
) -> tuple[LaunchedJob, ...]:
    """The jobs, oldest first. A job is a launch: who descends from one traced process; who bears
    one scheduler or run id at one time; the members of one default group that were launched with
    ranks; and, of those that met no other, who was started with one program and world size within
    a minute. Jobs whose processes met in one place are linked and stay two. Of a launch that no
    more than a name or a program joins, what has all ranks of its world is a job by itself.

    ``orphans`` are processes that nothing but the names of their files describes: they belong to
    the launch of that name whose files were written at about the same time (``modified_ns``).
    ``called``: of a part of more, the ids that jobs bear in the whole, by process: the second
    launch of a name stays the second where the first one was left out.
    """
    union, tied = families(processes), ties(processes, places, groups)
    for members in _launches(processes, groups, lives):
        for part in _apart(members, processes, tied):
            union.join(part)
    for pair in _assigned(processes, orphans, modified_ns).items():
        union.join(pair)
    roots = union.all()
    ordered = sorted(
        same(processes, lambda p: roots[p.index]).values(),
        key=lambda m: (min(processes[i].start_ns for i in m), processes[m[0]].id),
    )
    names = _names([_dated(members, orphans) for members in ordered], processes, called)
    of_process = {i: number for number, members in enumerate(ordered) for i in members}
    linked: list[set[int]] = [set() for _ in ordered]
    for place in places:
        met = {of_process[i] for i in place.processes}
        for number in met:
            linked[number] |= met - {number}
    return tuple(
        LaunchedJob(
            id=names[number], index=number, processes=tuple(members),
            start_ns=min(processes[i].start_ns for i in _dated(members, orphans)),
            last_ns=max(processes[i].last_ns for i in members),
            linked=tuple(names[other] for other in sorted(linked[number])),
            known=any(i not in orphans for i in members),
            names=tuple(sorted({processes[i].job for i in members})),
        )
        for number, members in enumerate(ordered)
    )  # fmt: skip


def closure(jobs: Sequence[LaunchedJob], chosen: Iterable[str]) -> tuple[LaunchedJob, ...]:
    """The chosen jobs and all that are linked to them, directly or through others."""
    by_id = {job.id: job for job in jobs}
    pending, found = list(chosen), set[str]()
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(by_id[name].linked)
    return tuple(job for job in jobs if job.id in found)


def newest(jobs: Sequence[LaunchedJob]) -> LaunchedJob:
    """The job that was launched last, of those of which more than names of files is known."""
    return max(jobs, key=lambda job: (job.known, job.start_ns, job.index))


def _launches(
    processes: Sequence[Process], groups: Sequence[Group], lives: Sequence[Life]
) -> Iterator[list[int]]:
    yield from same(processes, lambda p: lives[p.index].launch).values()
    for group in groups:
        if group.default and group.place is not None:
            yield [m.process for m in group.members if _claims(processes[m.process])]
    roots = families(processes).all()
    for together in same(processes, _program).values():
        together.sort(key=lambda i: processes[i].start_ns)
        runs: list[list[int]] = [[]]
        for index in together:
            run = runs[-1]
            if run and processes[index].start_ns - processes[run[-1]].start_ns > TOGETHER_NS:
                runs.append([])
            runs[-1].append(index)
        for run in runs:
            yield from launches(processes, roots, lives, run)


def _apart(
    launch: Sequence[int], processes: Sequence[Process], tied: Sequence[int]
) -> Iterator[Sequence[int]]:
    """The parts of a launch that nothing joins and that wait for none: all ranks are there. The
    rest may belong together and not have met yet; what has no rank belongs to the only such part.
    """
    parts = same([processes[i] for i in launch], lambda p: tied[p.index])
    ranks: dict[Hashable, set[int | None]] = {root: set() for root in parts}
    worlds: dict[Hashable, int] = {}
    for one in processes:
        root = tied[one.index]
        if one.is_rank and root in parts:
            ranks[root].add(one.rank)
            worlds[root] = max(worlds.get(root, 0), one.world_size or 0)
    whole = [root for root in parts if 0 < worlds.get(root, 0) <= len(ranks[root])]
    rest = [i for root, members in parts.items() if root not in whole for i in members]
    if len(whole) == 1 and not any(ranks[root] for root in parts if root not in whole):
        yield launch
        return
    yield from (parts[root] for root in whole)
    yield rest


def _dated(members: Sequence[int], orphans: Collection[int]) -> Sequence[int]:
    """Those of a launch that say of themselves when they started, and how it is called."""
    return [i for i in members if i not in orphans] or members


def _assigned(
    processes: Sequence[Process], orphans: Collection[int], modified_ns: Sequence[int]
) -> dict[int, int]:
    """The process that each orphan goes with: of its job by name, and last written at its time."""
    named = same([p for p in processes if p.index not in orphans], lambda p: in_name(p.job))
    found = {}
    for orphan in sorted(orphans):
        name = in_name(processes[orphan].job)
        # Where none is known of that name the first orphan stands for the job.
        others = named.setdefault(name, [orphan])
        at = modified_ns[orphan]
        found[orphan] = min(others, key=lambda i: (abs(modified_ns[i] - at), i))
    return found


def _claims(process: Process) -> bool:
    return process.role == "worker" and "WORLD_SIZE" in process.env and "RANK" in process.env


def _program(process: Process) -> Hashable:
    """What processes have in common that were started one by one with a rank each."""
    if process.parent is not None or not _claims(process):
        return None
    script = next((a for a in process.argv[1:] if not a.startswith("-")), None)
    return (script, process.env["WORLD_SIZE"], process.cwd)


def _names(
    ordered: Sequence[Sequence[int]], processes: Sequence[Process], called: Mapping[str, str]
) -> list[str]:
    """The recorder's job id of the oldest member, numbered where several launches share it."""
    names: list[str] = []
    for members in ordered:
        oldest = min((processes[i] for i in members), key=lambda one: (one.start_ns, one.id))
        name, number = called.get(oldest.id, oldest.job), 1
        while (f"{name}.{number}" if number > 1 else name) in names:
            number += 1
        names.append(f"{name}.{number}" if number > 1 else name)
    return names


NEWEST, ALL = "newest", "all"
Lives = Callable[[Process], bool | None]
"""Whether a process runs, as far as this host can tell."""


def folders(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> list[str]:
    """The folders that are meant; of an archive of ``collect`` one that goes with this process."""
    if path is None or isinstance(path, (str, os.PathLike)):
        path = [(os.environ.get("DISTTRACE_DIR") or "disttrace-out") if path is None else path]
    return [opened(os.fspath(one)) for one in path] or folders(None)


def nothing(where: Sequence[str], problems: Sequence[Problem]) -> ViewerError:
    """The error for folders without a journal."""
    names = [plain(one) or "''" for one in where]
    if problems and all(problem.kind == "silent" for problem in problems):
        of = [
            (plain(one.path), one.sentence.removeprefix(f"{plain(one.path)}: ")) for one in problems
        ]
        return ViewerError("\n".join(f"{path}: it {why}" for path, why in of))
    if [problem.path for problem in problems] == list(where) and len(where) == 1:
        why = problems[0].sentence.removeprefix(f"{plain(where[0])}: ")
        it = "" if why[:1].isdecimal() else "it "  # what is in a folder is counted
        return ViewerError(f"no journals in {names[0]}: {it}{why}")
    reasons = "".join(f"\n  {problem.sentence}" for problem in problems)
    return ViewerError(
        f"no journals in {', '.join(names)}: run the program with DISTTRACE=1 and give the"
        f" folder that DISTTRACE_DIR names.{reasons}"
    )


def chooser(job: str | None) -> Callable[[Sequence[LaunchedJob]], Sequence[str]]:
    """What picks the ids of the jobs that ``job`` stands for."""
    wanted = job or NEWEST

    def choose(found: Sequence[LaunchedJob]) -> Sequence[str]:
        if wanted == ALL:
            return [job.id for job in found]
        if wanted == NEWEST:
            return [job.id for job in closure(found, [newest(found).id])]
        exact = [job.id for job in found if job.id == wanted]
        fits = exact or [job.id for job in found if job.id.startswith(wanted)]
        if len(fits) != 1:
            names = ", ".join(job.id for job in found)
            state = "is no job here" if not fits else f"stands for {len(fits)} jobs"
            raise ViewerError(f"--job {wanted} {state}; there are: {names}")
        return fits

    return choose


def beside(
    jobs: Sequence[LaunchedJob], processes: Sequence[Process], lives: Lives
) -> list[tuple[str, ...]]:
    """The jobs that lived while the newest one did, newest first, each with those that it met.

    A job that was killed lived to its newest sign of life; one of which a process runs still
    (``lives``) lives.
    """
    if not jobs:
        return []
    first = newest(jobs)
    seen = {job.id for job in closure(jobs, [first.id])}
    found = []
    for job in sorted(jobs, key=lambda job: (job.start_ns, job.index), reverse=True):
        if job.id in seen or not job.known:
            continue
        if _until(job, first, processes, lives):
            met = tuple(one.id for one in closure(jobs, [job.id]))
            # The one itself comes first: it gives all of them their name.
            found.append((job.id, *(one for one in met if one != job.id)))
            seen.update(met)
    return found


def _until(
    job: LaunchedJob, first: LaunchedJob, processes: Sequence[Process], lives: Lives
) -> bool:
    """Whether a job that was launched before another one lived while that one did."""
    if job.last_ns >= first.start_ns:
        return job.start_ns <= first.last_ns
    members = (processes[i] for i in job.processes)
    return any(p.exit is None and lives(p) for p in members)
