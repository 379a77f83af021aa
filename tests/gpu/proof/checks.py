"""What a run of a scenario has to show: each check gives what is right, and the words for it.

``plain`` is the same run without tracing, for scenarios that have a baseline.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

from gpu.proof.what_is_left import Run, brief, serious

Said = tuple["bool | None", str]  # None: only reported
Check = Callable[[Run, "Run | None"], list[Said]]


def verdict(*kinds: str, culprits: tuple[list[int], ...]) -> Check:
    """One of these findings, live and afterwards, and nobody else is blamed."""

    def check(run: Run, plain: Run | None) -> list[Said]:
        found: list[Said] = []
        named = {r for c in culprits for r in c}
        for when, report in (("live", run.live), ("dead", run.dead)):
            good = any(
                f["kind"] in kinds and sorted(f["culprit_ranks"]) in list(culprits)
                for f in serious(report)
            )
            blamed = {r for f in serious(report) for r in f["culprit_ranks"]} - named
            if when == "dead" or run.live is not None or run.problems:
                found.append((good and not blamed, f"{when}: {brief(report)}"))
        return found

    return check


def quiet(run: Run, plain: Run | None) -> list[Said]:
    """Nothing is wrong, and nothing was said on stderr while it ran. Who is late on a busy machine
    is late: that is told rightly."""
    wrong = [f for f in serious(run.dead) if f["kind"] not in ("late_sender", "straggler")]
    alarms = [t for text in run.stderr for t in text.splitlines() if "disttrace: stalled" in t]
    return [
        (not wrong and run.dead is not None, f"verdict: {brief(run.dead)}"),
        (not alarms, "no alarm" if not alarms else f"alarm: {alarms[0][:90]}"),
    ]


def alarmed(run: Run, plain: Run | None) -> list[Said]:
    told = [t for text in run.stderr for t in text.splitlines() if "disttrace: stalled" in t]
    return [(bool(told), told[0][:90] if told else "no alarm")]


def advised(*words: str) -> Check:
    def check(run: Run, plain: Run | None) -> list[Said]:
        hints = [f["hint"] or "" for f in serious(run.dead)]
        good = any(all(word in hint for word in words) for hint in hints)
        return [(good, f"to do: {hints[0][:90] if hints else 'nothing'}")]

    return check


def told_as_start(run: Run, plain: Run | None) -> list[Said]:
    """Communicators that take long are a start and no stall."""
    text = "".join(run.stderr)
    return [("disttrace: starting:" in text, "told as a start")]


def all_over(run: Run, plain: Run | None) -> list[Said]:
    """Every operation of every rank has ended."""
    found: list[Said] = []
    for j in run.journals:
        total, left = len(j.operations()), j.open()
        words = f"rank {j.rank}: {total - len(left)}/{total} over"
        found.append((total > 0 and not left, words + (f", not {left[:4]}" if left else "")))
    return found or [(False, "no journals")]


def one_open(op: str) -> Check:
    """Exactly one operation of rank 0 is in flight at the end, and it is of that name."""

    def check(run: Run, plain: Run | None) -> list[Said]:
        j = run.journal(0)
        left = j.open() if j else None
        good = left is not None and len(left) == 1 and left[0][1].startswith(op)
        return [(good, f"in flight on rank 0: {left}")]

    return check


def still_open(run: Run, plain: Run | None) -> list[Said]:
    """Something of rank 0 is in flight at the end."""
    j = run.journal(0)
    return [(bool(j and j.open()), f"in flight on rank 0: {j and j.open()}")]


def never_complete(run: Run, plain: Run | None) -> list[Said]:
    """The hung operation, the last that rank 0 began, is in flight, failed or unknown."""
    j = run.journal(0)
    if j is None or not j.operations():
        return [(False, "no journal")]
    n, op = j.operations()[-1]
    ends = j.ends.get(n, [])
    good = not any("c" in r or ("e" in r and "x" not in r) for r in ends)
    return [(good, f"the end of {op} {n}: {ends or 'none'}")]


def returned_at_once(run: Run, plain: Run | None) -> list[Said]:
    """The call of the operation that hangs was issued within a second: the device hangs, not it."""
    j = run.journal(0)
    took = [j.issued.get(n) for n, _ in j.open()] if j else []
    good = bool(took) and all(t is not None and t < 1e9 for t in took)
    return [(good, f"issued after {[t and round(t / 1e6, 1) for t in took]} ms")]


def no_note(run: Run, plain: Run | None) -> list[Said]:
    """Nothing of ours went wrong."""
    notes = [n for j in run.journals for n in j.notes]
    return [(not notes, "no notes" if not notes else f"note: {notes[0][:90]}")]


def noted(*words: str) -> Check:
    """Each rank's journal says so, once."""

    def check(run: Run, plain: Run | None) -> list[Said]:
        notes = [[n for n in j.notes if any(w in n for w in words)] for j in run.journals]
        return [(bool(notes) and all(len(n) == 1 for n in notes), f"notes: {notes}")]

    return check


def ends_once(run: Run, plain: Run | None) -> list[Said]:
    """No operation has two ends."""
    twice = {j.rank: j.twice() for j in run.journals if j.twice()}
    return [(not twice, "each operation ended once" if not twice else f"ended twice: {twice}")]


def alive(run: Run, plain: Run | None) -> list[Said]:
    """Python and the heartbeat went on while the host was blocked in CUDA."""
    gap, base = run.fact(0, "gap"), plain.fact(0, "gap") if plain else None
    # The untraced gap says how long CUDA itself kept the GIL; tracing must not add half a second.
    good = gap is not None and gap < (base or 0) + 0.5
    j = run.journal(0)
    beats = j.heartbeats() if j else []
    widest = max((b - a for a, b in itertools.pairwise(beats)), default=0.0)
    return [
        (good, f"longest silence of a Python thread {gap} s (untraced {base} s)"),
        (len(beats) >= 3 and widest < 5, f"{len(beats)} heartbeats, widest gap {widest:.1f} s"),
    ]


def late_by_three(run: Run, plain: Run | None) -> list[Said]:
    """One operation took the device three seconds, and the host none."""
    j = run.journal(0)
    ends = [(n, e) for n, all_of in j.ends.items() for e in all_of] if j else []
    waits = [
        (round(e["d"] / 1e9, 2), round(j.issued.get(n, 0) / 1e9, 4))
        for n, e in ends
        if j and "c" in e and e["d"] > 2e9
    ]
    good = len(waits) == 1 and 2.0 < waits[0][0] < 6.0 and waits[0][1] < 0.5
    return [(good, f"device took, host took (s): {waits}")]


def facts_of(*keys: str) -> Check:
    """Only reports what rank 0 said."""

    def check(run: Run, plain: Run | None) -> list[Said]:
        return [(None, json.dumps(f)) for f in run.facts[0] if any(key in f for key in keys)]

    return check


def no_context_by_asking(run: Run, plain: Run | None) -> list[Said]:
    """A context that becomes current in a fresh thread is that of device 0: on rank 3 of a host it
    would be made there, half a gigabyte of GPU 0 for every rank."""
    found = [f for f in run.facts[0] if "context_after" in f]
    return [
        (not f["context_after"] or f["context_before"], f"asking binds a CUDA context: {f}")
        for f in found
    ] or [(False, "not asked")]


def blamed_only_hung(run: Run, plain: Run | None) -> list[Said]:
    """Of two threads' operations only the hung one is in flight."""
    took, journal = run.fact(0, "first_call_s"), run.journal(0)
    left = journal.open() if journal else None
    return [
        (None, f"the first call on a new group took {took and round(took, 2)} s"),
        (left is not None and len(left) == 1, f"in flight on rank 0: {left} (one thread's only)"),
    ]
