"""The head of the report: what ran where, what was recorded, what is missing; initialization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl
from rich.text import Text

from disttrace.journal.format import STOPPED
from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.process_ends import EXITED, FAILED, KILLED, RUNNING, UNKNOWN
from disttrace_viewer.findings.case import Case
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import Group, JobTrace, LaunchedJob, Member, Place, lead_of
from disttrace_viewer.trace.process import Process
from disttrace_viewer.trace.values import together
from disttrace_viewer.views.terminal import BAD, DIM, GOOD, HEAD, WAIT
from disttrace_viewer.views.terminal.diagnosis import Line, elsewhere, lacking
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.names import Names, clock_time, duration, few, number, spans

ROLES = (("agent", None), ("worker", None), ("child", "children"), ("main", "main processes"))
GROUPS, SENTENCES = 8, 6
"""Groups and sentences shown before the rest is counted."""
_STATE_STYLES = {
    FAILED: BAD,
    KILLED: BAD,
    STOPPED: WAIT,
    RUNNING: WAIT,
    UNKNOWN: WAIT,
    EXITED: GOOD,
}

HeadLine = tuple[str | None, Text]
"""What stands beside a line (None: nothing, it is a title), and the line."""


def header_of(case: Case, exchanges: Exchanges, names: Names) -> Iterator[HeadLine]:
    """All that stands above the first line of the sequence."""
    for job in names.trace.jobs:
        yield from _job(case, names, job)
    yield from _groups(exchanges, names)
    yield from _recorded(case, names)


def _program(process: Process) -> str:
    """The command without interpreter and folders: ``torchrun --nproc-per-node 2 train.py``."""
    words = list(process.argv)
    if len(words) > 1 and words[0].rsplit("/", 1)[-1].startswith(("python", "pypy")):
        words = words[1:]
        while len(words) > 1 and words[0] in ("-u", "-m", "-X", "faulthandler"):
            words = words[1:]
    words = [word.rsplit("/", 1)[-1] if "/" in word and "=" not in word else word for word in words]
    if words and words[0] in ("run.py", "torch.distributed.run", "__main__.py"):
        words[0] = "torchrun"
    return " ".join(words)


def _job(case: Case, names: Names, job: LaunchedJob) -> Iterator[HeadLine]:
    trace = names.trace
    processes = [trace.processes[i] for i in job.processes]
    oldest = min(processes, key=lambda p: (p.parent in trace.by_id, not p.is_agent, p.start_ns))
    letter = names.letters.get(job.id)
    of = f"job {letter}  " if letter else ""
    yield None, Text(f"{of}{_program(oldest) or job.id}", HEAD)
    when = f"{clock_time(job.start_ns)}, {duration(job.last_ns - job.start_ns)}"
    hosts = sorted({p.host for p in processes})
    where = f"  on {number(len(hosts), 'host')} ({few(hosts, 4)})  {job.id}"
    yield "ran", Text.assemble(when, (where, DIM))
    yield (
        "processes",
        Text.assemble(_who(processes), _attempts(processes), "; ", _states(case, job)),
    )
    if job.linked:
        met = few([names.letters.get(other, other) for other in job.linked], 6)
        yield "met", Text(f"job {met} in a store")
    torch = sorted({str(p.versions["torch"]) for p in processes if "torch" in p.versions})
    if torch:
        yield "torch", Text(few(torch, 3), DIM)


def _who(processes: Sequence[Process]) -> str:
    roles, plural = Counter(p.role for p in processes), dict(ROLES)
    known = [role for role in (*plural, *sorted(set(roles) - set(plural))) if role in roles]
    text = ", ".join(number(roles[role], role, plural.get(role)) for role in known)
    ranks = {p.rank for p in processes if p.rank is not None}
    if ranks:
        text += f"; {sentences.ranks(ranks)}"
        if size := max(p.world_size or 0 for p in processes):
            text += f" of {size}"
    return text


def _attempts(processes: Sequence[Process]) -> Text:
    attempts = 1 + max(p.attempt or 0 for p in processes)
    return Text(f"; {attempts} attempts" if attempts > 1 else "", WAIT)


def _states(case: Case, job: LaunchedJob) -> Text:
    states = Counter(case.ends[i].state for i in job.processes)
    if [*states] == [EXITED]:
        return Text("all exited", GOOD)
    counted = (Text(f"{n} {state}", _STATE_STYLES[state]) for state, n in states.most_common())
    return Text(", ").join(counted)


def _groups(exchanges: Exchanges, names: Names) -> Iterator[HeadLine]:
    groups = names.trace.groups
    collectives, messages = (
        Counter(dict(frame.group_by("group").len().iter_rows()))
        for frame in (exchanges.collectives, exchanges.messages)
    )
    busiest = sorted(groups, key=lambda g: -(collectives[g.index] + messages[g.index]))
    shown = {group.index for group in busiest[:GROUPS]}
    for place, group in enumerate(g for g in groups if g.index in shown):
        counted = ((collectives[group.index], "collective"), (messages[group.index], "message"))
        traffic = ", ".join(number(count, noun) for count, noun in counted if count)
        members = names.processes(m.process for m in group.members)
        if group.ranks is not None:
            members = sentences.ranks(group.ranks)
        # Of a group made by hand: ``gloo`` for ProcessGroupGloo.
        kind = (group.type or "").removeprefix("ProcessGroup").lower() or "?"
        backends = ", ".join(dict.fromkeys(group.backends.values())) or kind
        what = f"{names.group(group.index)}: {f'{members}, ' if members else ''}{backends}"
        missing = f"; no journal of {spans(group.missing)}" if group.missing else ""
        words = Text.assemble(what, (f"  {traffic or 'unused'}", DIM), (missing, WAIT))
        yield "" if place else "groups", words
    if more := len(groups) - len(shown):
        yield "", Text(f"and {number(more, 'more group')}", DIM)


def _recorded(case: Case, names: Names) -> Iterator[HeadLine]:
    trace = names.trace
    operations = number(trace.operations.height, "operation")
    read = f"{operations} in {number(len(trace.processes), 'journal')}"
    if len(trace.clocks) > 1:
        worst = max(clock.error_ns for clock in trace.clocks)
        read += f"; {len(trace.clocks)} clocks, aligned to within {duration(worst)}"
    notes = together((note, process.index) for process in trace.processes for note in process.notes)
    problems = [
        *(Line(sentence) for sentence in case.incomplete),
        *lacking(case),
        *(Line(f"{names.processes(who)}: {text}") for text, who in notes.items()),
    ]
    if not problems:
        read += "; nothing missing, damaged or dropped"
    yield "recorded", Text(read)
    for line in problems[:SENTENCES]:
        yield "", Text.assemble(("! ", WAIT), line.text)
    if (more := len(problems) - SENTENCES) > 0:
        yield "", Text.assemble(("! ", WAIT), f"and {number(more, 'more sentence')} like these")
    for line in elsewhere(case):
        yield "also here", Text(line.text, DIM)


_MAKERS = ("init_process_group", "new_group", "new_subgroups", "split_group", "shrink_group")
"""What a group is shown to be made by."""
_JOINING = (*_MAKERS, "new_subgroups_by_enumeration", "rendezvous")
"""Composed operations that make groups, with all that they issue in stores."""
_LISTENING = ("tcp", "file")
"""Kinds of stores in which several processes can meet."""

Operation = Mapping[str, Any]


class Phase(NamedTuple):
    """One line; ``at_ns`` counts from the start of the job."""

    name: str
    what: str
    at_ns: int
    took_ns: int | None
    """None: not over yet, or failed."""


def initialization_of(trace: JobTrace) -> pl.DataFrame:
    """Agents' operations, constructors, and what makes groups with everything inside it except
    collectives and messages; with ``op``, ``kind``, ``origin`` and ``store`` of their calls."""
    calls = trace.calls.lazy().with_row_index("call")
    ours = trace.operations.lazy().join(
        calls.select("call", "op", "kind", "origin", "store"), on="call"
    )
    agents = pl.col("process").is_in([p.index for p in trace.processes if p.is_agent])
    talk = pl.col("kind").is_in(["collective", "message"])
    inner = ours.filter(pl.col("parent").is_not_null() & ~talk).collect()
    roots = ours.filter(
        pl.col("op").is_in(_JOINING)
        | (pl.col("kind") == "constructor")
        | (agents & ~talk)
        | ((pl.col("kind") == "store") & (pl.col("origin") == "c++"))
    ).collect()
    found = level = roots
    while level.height:
        above = level.select("process", pl.col("number").alias("parent"))
        level = inner.join(above, on=["process", "parent"], how="semi")
        found = pl.concat([found, level])
    return found.unique(["process", "number"]).sort("begin_ns", "process", "number")


def initialization(names: Names, inside: pl.DataFrame) -> tuple[Phase, ...]:
    """``inside``: what ``initialization_of`` found."""
    trace = names.trace
    rows = inside.filter(pl.col("kind").is_in(["composed", "constructor"])).to_dicts()
    made = together(
        (row["process"], row)
        for row in rows
        if row["op"] in _MAKERS or row["op"].startswith("ProcessGroup")
    )
    busy = set(inside.filter(IN_FLIGHT)["process"].to_list())
    members = {member.process for group in trace.groups for member in group.members}
    found = [
        *_launches(names, busy),
        *(_group(names, group, made) for group in trace.groups),
        *_other_stores(names, rows),
    ]
    for row in rows:
        if row["op"] == "init_process_group" and row["process"] not in members:
            how = "failed in" if row["error"] is not None else "is still in"
            what = f"{names.process(row['process'])} {how} {row['op']}"
            found.append(Phase("not ready", what, row["begin_ns"], None))
    found.sort(key=lambda phase: phase.at_ns)
    return tuple(phase._replace(at_ns=phase.at_ns - trace.launch_ns) for phase in found)


def _launches(names: Names, busy: set[int]) -> Iterator[Phase]:
    """Of each launcher what it serves and starts."""
    for process in names.trace.processes:
        if not process.is_agent:
            continue
        workers = [p for p in names.trace.processes if p.parent == process.id]
        first = min((p.start_ns for p in workers), default=process.last_ns)
        served = [place.name for place in names.trace.places if place.server == process.index]
        what = names.process(process.index)
        what += f" serves {' and '.join(served)}" if served else ""
        what += f", starts {number(len(workers), 'worker')}" if workers else ""
        waiting = process.index in busy and not workers
        took_ns = None if waiting else first - process.start_ns
        yield Phase("launch", what, process.start_ns, took_ns)


def _group(names: Names, group: Group, made: Mapping[int, Sequence[Operation]]) -> Phase:
    """Who joined by which call, in which store; until the last of them is ready."""
    makers = [_maker(member, made.get(member.process, ())) for member in group.members]
    by = next((_called(names.trace, one) for one in makers if one), None) or group.type or "?"
    joined, begins, ends = [], [], []
    for member, maker in zip(group.members, makers, strict=True):
        begin, end = member.t_ns, member.t_ns
        if maker is not None:
            begin, end = maker["begin_ns"], None if maker["error"] else maker["end_ns"]
        if begin is not None:
            joined.append(member.process)
            begins.append(begin)
            ends += [] if end is None else [end]
    what = f"{names.processes(joined)} by {by}"
    if group.missing:
        what += f" ({len(joined)} of {len(joined) + len(group.missing)} seen)"
    place = names.trace.place_by_id.get(group.place or "")
    if place is not None:
        what += f" in {_served(names, place)}"
        if group.prefix and not by.startswith(_MAKERS):  # else it is torch's own
            what += f" under {lead_of(group.prefix)}"
    begin = min(begins, default=names.trace.launch_ns)
    over = ends and len(ends) == len(joined) and not group.missing
    name = names.group(group.index)
    return Phase(name, what, begin, max(ends) - begin if over else None)


def _maker(member: Member, rows: Sequence[Operation]) -> Operation | None:
    """The outermost operation inside which a process came to hold a group."""
    at = member.t_ns
    if at is None:
        return None
    near = 1_000_000
    around = (row for row in rows if row["begin_ns"] - near <= at <= (row["end_ns"] or at) + near)
    return min(
        around, key=lambda row: (row["op"] not in _MAKERS, abs(row["begin_ns"] - at)), default=None
    )


def _called(trace: JobTrace, maker: Operation) -> str:
    op = str(maker["op"])
    if op != "init_process_group":
        return op
    given = trace.call(maker["call"]).args.get("init_method")
    return f"{op}, {str(given).split('://')[0] if given else 'env'}://"


def _served(names: Names, place: Place) -> str:
    return place.name + (f" of {names.process(place.server)}" if place.server is not None else "")


def _other_stores(names: Names, rows: Sequence[Operation]) -> Iterator[Phase]:
    """Stores that no launcher serves and in which no group met: their servers and clients."""
    trace = names.trace
    met = {group.place for group in trace.groups}
    made = together(
        (trace.stores[row["store"]].place, row)
        for row in rows
        if row["kind"] == "constructor" and row["store"] is not None
    )
    for place in trace.places:
        opened = made.get(place.id)
        launched = place.server is not None and trace.processes[place.server].is_agent
        if not opened or launched or place.id in met or place.kind not in _LISTENING:
            continue
        clients = dict.fromkeys(row["process"] for row in opened if row["process"] != place.server)
        joined = names.processes(clients) if clients else "none"
        what = f"{_served(names, place)}, joined by {joined}"
        begin = min(row["begin_ns"] for row in opened)
        over = all(row["end_ns"] is not None and row["error"] is None for row in opened)
        took_ns = max(row["end_ns"] for row in opened) - begin if over else None
        yield Phase("store", what, begin, took_ns)
