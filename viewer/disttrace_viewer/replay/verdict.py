"""Whether a job would have hung, had nothing been let pass: judged by the rules for journals.

The journals are cut, in memory, where a replay stands, as they would be had the job stood there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import orjson

from disttrace_viewer.analysis import liveness
from disttrace_viewer.diagnosis import job
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.findings.finding import ERROR, Finding
from disttrace_viewer.load import files
from disttrace_viewer.load import text as texts
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.journals import Journal, gather
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.load.schema import json_object
from disttrace_viewer.replay.sequences import Script, lines, script
from disttrace_viewer.replay.strict import Replay, Standing
from disttrace_viewer.trace.process import Process
from disttrace_viewer.wording.sentences import REPLAYED

KIND = "would_hang"
_ENDS = ("exit", "failure", "handling", "rendezvous")
_LATER_NS = 3_600_000_000_000
"""So long everybody has stood: nobody is on the way any more."""
_ROOTED = ("broadcast", "reduce", "gather", "scatter", "gather_into_tensor")

_LASTING = re.compile(r",? for \d[\d.]* (?:ms|s|min|h)(?: \d+ (?:s|min|h))?\b")
"""In a replay nobody waits for any time."""


def strictly(
    found: Verdict, paths: Sequence[str | Files], *, streams: bool = False, stall_ns: int
) -> Verdict:
    """The verdict, and before it what would hang, if every operation waited for all who take part.

    Where something is broken already, that is the verdict. ``streams``: as if it had run on a
    device. Raises ViewerError where there are no journals.
    """
    processes = found.case.evidence.trace.processes
    if any(one.severity == ERROR for one in found.findings):
        return found
    problems = Problems()
    wanted = {process.id for process in processes}
    journals = [one for one in gather(evidence(paths, problems), problems) if one.id in wanted]
    scripts = [script(index, one, streams=streams) for index, one in enumerate(journals)]
    standing = Replay(scripts).run()
    if not standing:
        return found
    told = _would_hang(scripts, standing, processes, stall_ns=stall_ns)
    return replace(found, findings=(*told, *found.findings))


def _would_hang(
    scripts: Sequence[Script],
    standing: Mapping[int, Standing],
    processes: Sequence[Process],
    *,
    stall_ns: int,
) -> tuple[Finding, ...]:
    """The errors of the journals that are cut; processes have their numbers in ``processes``."""
    journals, alive = _cut(scripts, standing)

    def look(process: Process) -> liveness.Seen:
        return liveness.Seen(True) if process.id in alive else liveness.GONE

    found = job.judged(
        journals, choose=lambda jobs: [one.id for one in jobs], stall_ns=stall_ns, look=look
    )
    index = {process.id: process.index for process in processes}
    at = [index[one.id] for one in found.case.evidence.trace.processes]
    ops = [step.action for stands in standing.values() for step in stands.at.values()]
    ops += [action for stands in standing.values() for action in stands.awaited]
    why = _hint(
        {(one.call.get("op") or "", one.call.get("backend")) for one in ops},
        on_device=any(one.stream is not None for one in ops),
    )
    return tuple(
        replace(
            one,
            kind=KIND,
            because=(REPLAYED,),
            summary=_summary(one.summary),
            hint=f"{why} {one.hint}" if one.hint else why,
            culprits=tuple(at[i] for i in one.culprits),
            waiting=tuple(at[i] for i in one.waiting),
            cycle=one.cycle and tuple((at[a], what, at[b]) for a, what, b in one.cycle),
            locations=tuple(replace(place, process=at[place.process]) for place in one.locations),
        )
        for one in found.findings
        if one.severity == ERROR
    )


def _cut(
    scripts: Sequence[Script], standing: Mapping[int, Standing]
) -> tuple[list[Files], set[str]]:
    """The journals, in memory, and the ids of those processes that stand or wait for such."""
    stuck = {scripts[index].journal.id for index in standing}
    parents = {one.journal.id: one.journal.definitions.process.get("parent") for one in scripts}
    above = {parent for one in stuck for parent in _above(one, parents)}
    at_ns = _LATER_NS + max(one.last_ns for one in scripts)
    found = []
    for one in scripts:
        if one.journal.id in stuck or one.journal.id in above:
            found.append(_held(one.journal, _shortened(one, standing, at_ns)))
        else:
            found.append(one.journal.files)
    return found, stuck | above


def _above(process: str, parents: Mapping[str, str | None]) -> list[str]:
    found: list[str] = []
    while (one := parents.get(process)) is not None and one in parents and one not in found:
        found.append(one)
        process = one
    return found


def _shortened(
    issued: Script, standing: Mapping[int, Standing], at_ns: int
) -> dict[int, list[bytes]]:
    """The lines of each segment up to where the process stands, and a sign of life after them."""
    stands = standing.get(issued.index, Standing({}, frozenset()))
    limits = {thread: step.place for thread, step in stands.at.items()}
    found: dict[int, list[bytes]] = {number: [] for number in issued.journal.files.segments}
    threads: dict[int, int] = {}
    begun: dict[int, int] = {}
    newest = max(found, default=1)
    for segment, place, line in lines(issued.journal, Problems()):
        record = json_object(line)
        if record is None or "hb" in record:
            continue
        number, thread = _of(record, threads)
        limit = limits.get(thread)
        if limit is not None and place > limit and "seg" not in record:
            continue
        if "b" in record:
            begun.setdefault(number, record["t"])
        if number >= 0 and (number not in begun or number in stands.queued):
            continue
        if number in stands.pending and not {"b", "i", "w"} & record.keys():
            continue
        found[segment].append(line)
    at = at_ns - (issued.journal.definitions.process.get("unix_ns") or 0)
    for action in stands.awaited:
        found[newest].append(
            orjson.dumps({"w": action.number, "d": at - _LATER_NS - begun[action.number]})
        )
    found.setdefault(newest, []).append(orjson.dumps({"hb": at}))
    return found


def _of(record: Mapping[str, Any], threads: dict[int, int]) -> tuple[int, int]:
    """The operation and the thread of a record; -1 for what is of none."""
    if "b" in record:
        threads[record["b"]] = record.get("h", 0)
        return record["b"], record.get("h", 0)
    if "at" in record:
        return -1, record.get("h", 0)
    number = next((record[key] for key in ("e", "i", "w", "c", "o", "l") if key in record), -1)
    return number, threads.get(number, -1)


def _held(journal: Journal, segments: Mapping[int, list[bytes]]) -> Files:
    """A journal in memory, with the definitions of what has not ended."""
    base = f"{journal.files.base}#replayed"
    definitions = []
    if journal.files.definitions is not None:
        data = texts.read(journal.files.definitions, Problems()).data
        for line in data.splitlines():
            record = json_object(line) or {}
            kind = record.get("def")
            if kind in _ENDS or (kind == "worker" and record.get("event") != "started"):
                continue
            definitions.append(line)
    found = Files(base, f"{base}.definitions")
    files.hold(found.definitions or "", b"\n".join((*definitions, b"")), journal.modified_ns)
    for number, kept in segments.items():
        path = f"{base}.{number}"
        files.hold(path, b"\n".join((*kept, b"")), journal.modified_ns)
        found.segments[number] = path
    return found


def _summary(what: str) -> str:
    """The sentence of the rule that judged the replay."""
    return f"Would hang: {_LASTING.sub('', what)}"


def _hint(ops: Set[tuple[str, str | None]], *, on_device: bool) -> str:
    """Why it went well; ``ops`` are those that somebody stands in, with their backends."""
    names = {op for op, _ in ops}
    backend = next((name for _, name in sorted(ops, key=repr) if name), "the backend")
    rooted = sorted(names & {*_ROOTED})
    if rooted:
        return f"{backend} let it pass since in {rooted[0]} not everybody waits for everybody."
    if on_device:
        return "It may go well as long as messages are small: a device runs them one by one."
    if "send" in names:
        return f"{backend} let it pass since the message was small, or nobody waited for it."
    return f"{backend} let it pass."
