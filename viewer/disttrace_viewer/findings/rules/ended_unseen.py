"""A worker failed before it used torch.distributed: only its launcher knows that it was there."""

from __future__ import annotations

from collections.abc import Iterator

from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, LIKELY, Finding, Scope
from disttrace_viewer.findings.rules.unseen_workers import FAILED, Unseen, unseen_workers
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[Finding]:
    """One finding per attempt and way to end, by time."""
    alike: dict[tuple[int | None, int | None, bool], list[Unseen]] = {}
    for (attempt, _), one in unseen_workers(case.evidence.trace).items():
        if one.worker.event == FAILED:
            alike.setdefault((attempt, one.worker.code, one.sure), []).append(one)
    for found in sorted(alike.values(), key=lambda each: min(one.worker.t_ns for one in each)):
        yield _finding(case, found)


def _finding(case: Case, found: list[Unseen]) -> Finding:
    ranks = sorted({one.rank for one in found})
    attempt = found[0].worker.attempt
    errors = {one.worker.error.partition("\n")[0] for one in found if one.worker.error}
    error = f": {errors.pop()}" if len(errors) == 1 else ""
    sure = found[0].sure
    text = found[0].words if len(found) == 1 else found[0].words.replace("before it", "before they")
    text = text if len(found) == 1 else text.replace("journal of it", "journal of them")
    trace = case.evidence.trace
    stopped = {
        p.index
        for p in trace.processes
        if p.attempt == attempt and p.told is not None and p.told.event == "killed"
    }
    return Finding(
        kind="process_failed",
        summary=f"{sentences.capital(sentences.ranks(ranks))} {text}{error}.",
        certainty=CERTAIN if sure else LIKELY,
        hint=_hint(found[0]),
        absent_ranks=tuple(ranks),
        at_ns=min(one.worker.t_ns for one in found),
        scope=Scope(
            absent=frozenset((None, rank) for rank in ranks),
            members=frozenset(one.launcher for one in found) | stopped,
        ),
        settles=() if sure else (f"collect the journals of {sentences.ranks(ranks)}",),
    )


def _hint(one: Unseen) -> str:
    if (one.worker.code or 0) < 0:
        return (
            "Look for the kernel's out-of-memory killer (dmesg), a scheduler's limit, or a crash in"
            " native code, and at what it wrote on stderr, which is not recorded."
        )
    if not one.sure:
        return "Read what it wrote on stderr, and collect its journal if there is one."
    return (
        "Read what it wrote on stderr, which is not recorded: nothing is traced before torch is"
        " imported."
    )
