"""Situations drawn at random: each gets a verdict, and the same one whatever processes are called.

The id of a process decides its number in a trace, and nothing else may hang on that.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.analysis.exchanges import align
from disttrace_viewer.analysis.liveness import GONE, UNKNOWN, Look, Observation
from disttrace_viewer.companion.endpoint import PeerReply
from disttrace_viewer.companion.reports import MOST_WHOLE, packed, unpacked
from disttrace_viewer.diagnosis.job import judged, verdict_on
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.merge.reader import load
from disttrace_viewer.states.reduce import reduce
from disttrace_viewer.states.state import merge, pack, unpack
from disttrace_viewer.trace.process import Process
from support.journals import MS, PEER_GONE, Journal, S
from support.scenes import OF_HISTORY, steps

SPAN = re.compile(r"[\d.]+ (h|min|s|ms|us)\b")


def live(process: Process) -> Observation:
    """What a kernel says, where one can be asked: of each rank something else."""
    return (UNKNOWN, GONE, Observation(True), Observation(False, -9), Observation(False, 3))[
        (process.rank or 0) % 5
    ]


def job(folder: Path, seed: int, host: str, apart_ns: int | None = None) -> None:
    """Two to eight ranks do up to three things and end, or hang; ``apart_ns``: of two hosts."""
    drawn = random.Random(seed)
    size = drawn.choice([2, 3, 4, 5, 8])
    halves = [list(range(0, size, 2)), list(range(1, size, 2))]
    count = drawn.choice([1, 2])
    for journal, group in steps(folder, size, count, host=host, apart_ns=apart_ns):
        rank = journal.rank or 0
        half = halves[rank % 2]
        groups = {group: count}
        if len(half) > 1 and seed % 2:
            name = f"half{rank % 2}"
            groups[journal.group(name=name, ranks=half, size=len(half), default=False)] = 0
        act(journal, drawn, groups, size)


def act(journal: Journal, drawn: random.Random, done: dict[int, int], size: int) -> None:
    """What one rank does; ``done``: how many collectives in each group."""
    now, open_ = S, False
    for _ in range(drawn.choice([0, 1, 1, 2, 3])):
        now += drawn.randrange(1, 300) * MS
        number = begin(journal, drawn, [*done], size, now, done)
        open_ = drawn.random() < 0.5
        if open_:
            if drawn.random() < 0.15:
                journal.end(number, 2 * S, x=journal.string(PEER_GONE), f=1)
                journal.fail(now + 3 * S, "RuntimeError", PEER_GONE)
                return
            break
        journal.end(number, 50 * MS)
    how = drawn.choice(["alive"] * 5 + ["fail", "leave", "silent", "stand", "exit"])
    if how == "fail":
        journal.fail(now + S, "ValueError", "bad batch", line=drawn.choice([30, 31]))
    elif how == "leave" and not open_:
        journal.leave(now + S)
    elif how == "exit":
        journal.define("exit", t=now + S, how="exit", code=3)
    elif how == "stand":
        journal.stand(now + S, "/src/train.py", 99, "save")
    journal.beat({"silent": drawn.choice([4, 8, 14]), "alive": 20, "stand": 20}.get(how, 2))


def begin(
    journal: Journal, drawn: random.Random, groups: list[int], size: int, now: int,
    done: dict[int, int],
) -> int:  # fmt: skip
    """Begin a collective, a message or a store operation; the operation's number."""
    kind = drawn.choice(["collective", "collective", "message", "key"])
    if kind == "collective":
        group = drawn.choice(groups)
        done[group] += 1
        op = drawn.choice(["all_reduce", "all_reduce", "all_gather"])
        return journal.begin(journal.collective(group, op), now, q=done[group])
    if kind == "message":
        others = [p for p in range(size) if p != journal.rank]
        op, tag = drawn.choice(["send", "recv"]), drawn.choice([0, 0, 7])
        call = journal.message(groups[0], op, drawn.choice(others), tag=tag)
        return journal.begin(call, now, q=1)
    op, line = drawn.choice(["get", "set", "wait", "add"]), drawn.choice([50, 51])
    key = drawn.choice(["go", f"ready/{drawn.randrange(size)}"])
    return journal.begin(journal.store_call(op, line), now, k=key)


def told(case: Case, found: Sequence[RuleFinding]) -> list[tuple[object, ...]]:
    """What is said, processes by their ranks, in an order of its own."""
    rank = [p.rank or 0 for p in case.evidence.trace.processes]
    return sorted(
        (
            *(finding.kind, finding.severity, finding.certainty),
            sorted(rank[p] for p in finding.culprits),
            sorted(rank[p] for p in finding.waiting),
            SPAN.sub("#", finding.summary),
            sorted(SPAN.sub("#", text) for text in finding.consequences),
            finding.hint or "",
        )
        for finding in found
    )


def by_table(folder: Path, look: Look) -> list[tuple[object, ...]]:
    """The verdict from a table of all operations, but for what needs the history."""
    found = verdict_on(align(load([str(folder)])), look=look)
    return told(found.case, [one for one in found.findings if one.kind not in OF_HISTORY])


def by_states(folder: Path, look: Look, **ways: Any) -> list[tuple[object, ...]]:
    choose = lambda jobs: [job.id for job in jobs]  # noqa: E731
    found = judged([str(folder)], choose=choose, look=look, **ways)
    return told(found.case, found.findings)


def ways(folder: Path, look: Look) -> dict[str, list[tuple[object, ...]]]:
    """By the table, ends of journals, whole ones, states of two hosts, and companions' messages."""
    files = evidence([str(folder)], Problems())
    whole = [state for one in files if (state := reduce(one, history=True))]
    ours = merge(whole[::2])
    halves = (ours, merge(unpack(pack(whole[1::2]))))
    theirs = unpacked([PeerReply("b", packed(merge(whole[1::2]), look, most=MOST_WHOLE))], ours)
    return {
        "table": by_table(folder, look),
        "ends": by_states(folder, look),
        "whole": by_states(folder, look, local=merge(whole)),
        "hosts": by_states(folder, look, local=merge(halves)),
        "sent": by_states(folder, look, local=ours, others=theirs.merged),
    }


def blamed(found: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Without words: a host reads those of another one only where it has the same."""
    return [one[:5] for one in found]


@pytest.mark.parametrize("seed", range(16))
def test_a_drawn_situation(tmp_path: Path, seed: int) -> None:
    """By journals read on another machine, and by those whose kernels can be asked."""
    for host in ("a", "b", "c"):
        job(tmp_path / host, seed, host)
    for look in (lambda _: UNKNOWN, live):
        first, *others = (by_table(tmp_path / host, look) for host in ("a", "b", "c"))
        assert others == [first, first]


APART_S = (0, 0.02, 0.2, 3, 20)
"""By how much the clocks of two hosts are apart."""


@pytest.mark.parametrize("apart_s", [None, *APART_S])
@pytest.mark.parametrize("seed", range(100, 103))
def test_every_way_finds_the_same(tmp_path: Path, seed: int, apart_s: float | None) -> None:
    """``tests/reliability/judged.py`` has them all."""
    job(tmp_path, seed, "a", None if apart_s is None else round(apart_s * S))
    found = ways(tmp_path, lambda _: UNKNOWN)
    assert blamed(found.pop("sent")) == blamed(found["table"])
    assert found == dict.fromkeys(found, found["table"])
