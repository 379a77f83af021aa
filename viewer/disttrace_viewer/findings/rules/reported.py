"""What lines of a log report outright: of ranks that are missing, watchdogs that are stuck, the end
that a launcher reports first, and what the job reported itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from disttrace_viewer.analysis.liveness import signal_name
from disttrace_viewer.analysis.process_ends import FROM_OUTSIDE
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import (
    CERTAIN,
    ERROR,
    KINDS,
    NOTE,
    WARNING,
    RuleFinding,
    Scope,
)
from disttrace_viewer.findings.rules.process_failed import look_for
from disttrace_viewer.trace.plain_text import numbers
from disttrace_viewer.trace.values import together
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.names import clock_time

Report = Mapping[str, Any]
Ranks = Sequence[int]


def find(case: Case) -> Iterator[RuleFinding]:
    """One finding per kind of line; what the job reported itself comes first."""
    of_kind = together((row["kind"], row) for one in case.trace.processes for row in one.reports)
    for kind, make in _MAKERS.items():
        if kind in of_kind:
            yield from make(case, of_kind[kind])


def _found(
    case: Case, kind: str, summary: str, *, ranks: Ranks = (), waiting: Ranks = (), **more: Any
) -> RuleFinding:
    """A finding that blames ``ranks``; it explains what ``waiting`` wait for, and their ends."""
    index = {p.rank: p.index for p in case.trace.processes if p.rank is not None}
    return RuleFinding(
        kind,
        sentences.capital(summary),
        **{"because": (sentences.OTHER_TOOLS,), **more},
        culprits=tuple(index[rank] for rank in ranks if rank in index),
        absent_ranks=tuple(rank for rank in ranks if rank not in index),
        waiting=tuple(index[rank] for rank in waiting if rank in index),
        scope=Scope.of(
            members=(index[rank] for rank in (*waiting, *ranks) if rank in index),
            absent=(rank for rank in ranks if rank not in index),
        ),
    )


_LED = re.compile(
    r"Ranks? (\d[\d, -]{0,200}?)(?: and (\d{1,7}))? (?:never|failed|did not|was|were)\b"
)
_SEVERITY = {"slow": WARNING, "waiting": NOTE, "starting": NOTE, "going on": NOTE}
_KIND_OF = {"diverged": "divergence", "slow": "straggler", "failed": "process_failed"}


def _announced(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    for one in {row["said"]["summary"]: row["said"] for row in rows}.values():
        own = one.get("finding") if isinstance(one.get("finding"), dict) else {}
        led = _LED.match(one["summary"])
        listed = one.get("culprit_ranks")
        ranks = [r for r in (listed if type(listed) is list else ()) if type(r) is int]
        if led is not None and not own:
            ranks = [*numbers(led[1]), *([int(led[2])] if led[2] else [])]
        kind = own.get("kind") if own.get("kind") in KINDS else _KIND_OF.get(one["kind"])
        never = "never joined" in one["summary"]
        severity = own.get("severity") if own.get("severity") in (WARNING, NOTE) else ERROR
        if one.get("over"):
            severity = NOTE  # it went on after that
        yield _found(
            case,
            kind or ("missing_participant" if never else "no_progress"),
            one["summary"],
            ranks=[] if one.get("over") else ranks,
            severity=_SEVERITY.get(one["kind"], severity),
            because=() if one.get("certainty") == CERTAIN else (sentences.OTHER_TOOLS,),
            hint="The job reported this while it ran; its journals hold more.",
        )


def _absent(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """Ranks that an error names as missing."""
    for op in dict.fromkeys(row["op"] for row in rows):
        ranks = sorted({rank for row in rows if row["op"] == op for rank in row["ranks"]})
        seen = [p.rank for p in case.trace.processes if p.rank not in (None, *ranks)]
        summary = (
            f"{sentences.ranks(ranks)} did not come to {op}: the error of another rank names"
            f" {'it' if len(ranks) == 1 else 'them'}."
            if op != "ncclUniqueId"
            else f"{sentences.ranks(ranks)} did not share the id of a new NCCL communicator in"
            " time: others waited for it at the store."
        )
        yield _found(
            case, "missing_participant", summary, ranks=ranks,
            waiting=[rank for rank in seen if rank is not None], op=op, hint=LOOK_THERE,
        )  # fmt: skip


def _reached(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """Ranks that came to a monitored barrier and were let down by rank 0, which knows why."""
    if any(found.op == "monitored_barrier" for found in case.findings):
        return
    ranks = sorted({r for row in rows for r in row.get("ranks") or [row["rank"]]})
    unnamed = any("ranks" in row for row in rows)
    which = "the error of rank 0 names it, but is not here"
    summary = (
        f"{sentences.ranks(ranks)} came to monitored_barrier, and some rank did"
        f" not: {'the lines do not name it' if unnamed else which}."
    )
    yield _found(
        case, "missing_participant", summary, waiting=ranks, op="monitored_barrier",
        hint=LOOK_THERE if unnamed else "Read the log of rank 0.",
    )  # fmt: skip


def _barrier(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """How many have come to a barrier by the store, of how many."""
    world = max(row["world"] for row in rows)
    count = max(row["count"] for row in rows)
    ranks = sorted({row["rank"] for row in rows if "rank" in row})
    of = f"{count:,} of {world:,}"
    if count > world:
        summary = (
            f"{count:,} workers came to a barrier by the store of {world:,}: an earlier launch used"
            " this store too, or the ranks disagree on how many they are."
        )
        fresh = "Start with a port, or a folder, that no earlier launch has used."
        yield _found(case, "rendezvous_incomplete", summary, waiting=ranks, hint=fresh)
    elif count < world:
        missing = [rank for rank in range(world) if rank not in ranks]
        alone = f": {sentences.ranks(missing)}" * (len(ranks) == count)
        summary = (
            f"{of} ranks came to the creation of a group by the store"
            f"{f', {sentences.ranks(ranks)} among them' if ranks else ''}; the others did"
            f" not{alone or ', and no line tells which they are'}."
        )
        yield _found(
            case, "rendezvous_incomplete", summary, ranks=missing if alone else (), waiting=ranks,
            hint=LOOK_THERE,
        )  # fmt: skip


def _begun(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """Ranks that began to create a communicator, by NCCL's lines, and none that was through."""
    for row in rows:
        missing, came = row["missing"], row["came"]
        rest = f"{sentences.ranks(missing)} did not begin"
        summary = (
            f"{len(came):,} of {row['world']:,} ranks began to create an NCCL communicator,"
            f" {sentences.ranks(came)}, and none reports its end:"
            f" {rest if missing else 'the others did not begin, or their lines are not here'}."
        )
        yield _found(
            case, "rendezvous_incomplete", summary, ranks=missing, waiting=came, hint=LOOK_THERE
        )


def _stuck(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """Watchdogs that do not get on themselves."""
    of = [one for row in rows for one in row["of"]]
    parts = []
    for one in of:
        more = [f"{one['pending']:,} pending"] if "pending" in one else []
        named = [one["group"]] if one["group"] else []
        inside = f" ({', '.join(named + more)})" if named + more else ""
        parts.append(f"rank {one['rank']}{inside}")
    seconds = max((one.get("seconds", 0) for one in of), default=0)
    summary = (
        f"NCCL's watchdog got stuck itself{f' for {seconds} s' * bool(seconds)} on"
        f" {sentences.listed(parts)}: a call of CUDA or NCCL does not return there, or a thread"
        " holds the GIL in one. That does not tell which rank the others wait for."
    )
    yield _found(
        case, "no_progress", summary, waiting=[one["rank"] for one in of], hint=WATCHDOG,
        severity=NOTE if any(row["beside"] for row in rows) else ERROR,
    )  # fmt: skip


def _root(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """What torchrun calls the root cause."""
    one, rank, code = rows[0], rows[0]["rank"], rows[0]["code"]
    at = f" at {clock_time(one['at_ns'])}" if one["at_ns"] else ""
    after = [f"rank {other} ({_code(its)})" for other, its, _ in one["others"]]
    times = [apart for _, _, apart in one["others"] if apart is not None]
    timed = len(times) == len(after) and all(apart > 0 for apart in times)
    rest = f"; {sentences.listed(after)} ended {'after it' if timed else 'too'}" if after else ""
    # A check aborts a rank that waits: a watchdog, gloo's of sizes.
    outside = code == -6 or (code in FROM_OUTSIDE and code != -9)
    summary = (
        f"Rank {rank} failed first, with {_code(code)}{at}, as its launcher reports{rest}."
        " The summary does not tell why."
    )
    yield _found(
        case, "process_failed", summary, ranks=[] if outside else [rank],
        waiting=[other for other, _, _ in one["others"]], hint=_hint(code),
    )  # fmt: skip


def _ends(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """Ends of which none is known to have been the first."""
    one = rows[0]
    name = "local rank" if one["kind"] == "local" else "rank"
    ends = [
        f"{'a rank' if rank is None else f'{name} {rank}'} ({_code(code)})"
        for rank, code in one["ends"]
    ]
    order = ", in an order that it does not give" if len(ends) > 1 else ""
    summary = f"The log reports the end{'s' * bool(order)} of {sentences.listed(ends)}{order}."
    ranks = [rank for rank, _ in one["ends"]] if name == "rank" else []
    yield _found(
        case, "process_failed", summary, waiting=ranks, hint=_hint(one["ends"][0][1])
    )  # fmt: skip


def _code(code: int | None) -> str:
    if code is None:
        return "no code"
    return signal_name(code) if code < 0 else f"exit code {code}"


def _hint(code: int | None) -> str:
    if code == -6:
        return "An abort is mostly the watchdog's: look for a time-out in the log of this rank."
    if code is not None and code < 0:
        return f"{look_for(code)}."
    return "Read the exception in the log of this rank (torchrun --log-dir DIR -t 3; @record)."


def _failed(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """Exceptions of which no line tells the rank."""
    for row in rows[:8]:
        where = next((f"{f[0].rpartition('/')[2]}:{f[1]}" for f in row["frames"]
                      if "-packages/" not in f[0] and "/lib/python" not in f[0]), None)  # fmt: skip
        text = row["text"].partition("\n")[0][:200]
        summary = (
            f"A rank failed, the log does not tell which: {row['type']}"
            f"{f': {text}' if text else ''}{f' ({where})' if where else ''}."
        )
        hint = "Read this exception first; what ranks report of lost connections follows from it."
        yield _found(case, "process_failed", summary, hint=hint, waiting=_all(case))


def _lost(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """Ranks that lost a connection, and no line of the one that ended."""
    ranks = sorted({rank for row in rows for rank in row["ranks"]})
    who = sentences.ranks(ranks) if ranks else "a rank"
    peers = sorted({peer for row in rows for peer in row.get("peers", ())})
    named = f"; its address is given as {sentences.listed(peers)}" if peers else ""
    if "text" in rows[0]:
        summary = (
            f"{who} gave up; the log does not show because of which rank{named}:"
            f" {rows[0]['text'].rstrip('.')}."
        )
        yield _found(case, "process_failed", summary, waiting=ranks, hint=OTHERS)
        return
    ended = [rank for row in rows for rank in row["ended"]]
    which = f"the log does not show which one, and why{named}"
    if ended:
        which = f"{sentences.ranks(ended)}, of which the log has no error, so not why"
    summary = f"{who} lost a connection to a rank that had ended: {which}."
    yield _found(case, "process_failed", summary, ranks=ended, waiting=ranks, hint=OTHERS)


def _sizes(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """NCCL's or gloo's word of messages whose ends differ in size."""
    one = rows[0]
    summary = (
        f"Two ranks brought sizes that differ to one collective: {one['local']:,} and"
        f" {one['remote']:,} bytes of one message. The line does not name the ranks."
    )
    yield _found(case, "shape_mismatch", summary, waiting=_all(case), hint=NCCL_COLL)


def _members(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """Ranks that Lightning reports before it creates groups, and nothing after that."""
    ranks, world = sorted({row["rank"] for row in rows}), max(row["world"] for row in rows)
    others = ": the others did not come, or their lines are not here" * (len(ranks) < world)
    summary = (
        f"{len(ranks):,} of {world:,} ranks came to the creation of groups,"
        f" {sentences.ranks(ranks)}, and no line tells of its end{others}."
    )
    hint, kind = LOOK_THERE, "rendezvous_incomplete"
    yield _found(case, kind, summary, severity=WARNING, waiting=ranks, hint=hint)


def _shared(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """Ranks that took one device: NCCL refuses that."""
    for device in dict.fromkeys(row["device"] for row in rows):
        ranks = sorted({rank for row in rows if row["device"] == device for rank in row["ranks"]})
        summary = f"{sentences.ranks(ranks)} use one device ({device}), which NCCL refuses."
        yield _found(case, "process_failed", summary, waiting=ranks, hint=OWN_DEVICE)


def _around(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """NCCL's own check of what was enqueued."""
    ranks = sorted({row["rank"] for row in rows})
    summary = (
        "NCCL found that ranks called different collectives, at and around"
        f" {sentences.ranks(ranks)}; it does not show which side is at fault."
    )
    yield _found(case, "op_mismatch", summary, waiting=_all(case), hint=NCCL_COLL)


def _left_out(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """A rank whose calls are those of the others without one."""
    for one in rows:
        summary = (
            f"Rank {one['rank']} left out {one['op']} #{one['seq']} ({one['elements']:,} elements):"
            f" its next call, {one['next']}, is the one that the others made after that."
        )
        yield _found(case, "op_mismatch", summary, severity=NOTE, hint=None)


def _differ(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """Calls that torch found to differ, in what the line does not tell."""
    one = rows[0]
    shapes = sentences.listed([f"shape {shape} by rank {rank}" for rank, shape in one["shapes"]])
    summary = (
        f"Torch found that {sentences.ranks(one['ranks'])} called different collectives:"
        f" {shapes or 'the lines do not show how they differ'} ({one['op']})."
    )
    kind = "shape_mismatch" if shapes else "op_mismatch"
    yield _found(case, kind, summary, waiting=one["ranks"], hint=NCCL_COLL)


def _no_grad(case: Case, rows: Sequence[Report]) -> Iterator[RuleFinding]:
    """Parameters that DDP missed a gradient of."""
    for one in rows:
        summary = f"Rank {one['rank']} had no gradient of these parameters: {one['names']}."
        failed = any(
            end.failure is not None and case.trace.processes[i].rank == one["rank"]
            for i, end in enumerate(case.ends)
        )
        yield _found(
            case, "process_failed", summary, ranks=() if failed else [one["rank"]],
            severity=NOTE if failed else ERROR, hint=None,
        )  # fmt: skip


def _all(case: Case) -> list[int]:
    return [p.rank for p in case.trace.processes if p.rank is not None]


_MAKERS: dict[str, Callable[[Case, Sequence[Report]], Iterator[RuleFinding]]] = {
    "said": _announced, "absent": _absent, "reached": _reached, "barrier": _barrier,
    "clients": _barrier, "failed": _failed, "root": _root, "ends": _ends, "local": _ends,
    "lost": _lost, "shared": _shared, "sizes": _sizes, "around": _around, "members": _members,
    "differ": _differ, "no_grad": _no_grad, "left_out": _left_out, "stuck": _stuck,
    "begun": _begun,
}  # fmt: skip
LOOK_THERE = "Look at what the missing do there, and whether they were started: disttrace attach."
WATCHDOG = (
    "Look at the stacks of these ranks, native ones too (py-spy dump --native): a destructor of"
    " CUDA objects, a synchronize, a fork, a debugger."
)
OTHERS = "Read the logs of the other ranks and hosts: one of them ended first."
OWN_DEVICE = (
    "Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective, and"
    " look at CUDA_VISIBLE_DEVICES of each rank."
)
NCCL_COLL = "Run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL, and diagnose that log."
