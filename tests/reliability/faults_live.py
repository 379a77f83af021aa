"""Runs the hangs of the fault table and waits for the verdict on the job's own stderr.

python tests/reliability/faults_live.py                    all hangs, with the default limit
python tests/reliability/faults_live.py --stall 3 --rows 2,4 --jobs 2
python tests/reliability/faults_live.py --apart            with a folder per rank
python tests/reliability/faults_live.py --hosts                    over two network namespaces
python tests/reliability/faults_live.py --write docs/dev/live.md       these rows of this way's part

The program is started with DISTTRACE=1. What it reports must be a finding of `diagnose` on the same
journals at that moment. Time counts from when the last rank that will come began to wait.
"""

from __future__ import annotations

import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.expectation import NODES, Row
from faults.harness import diagnose, started
from faults.judge import judge
from faults.table import ROWS
from reliability.faults import SELECTED, chosen
from support import networks
from support.campaigns import beside, options
from support.networks import Host

STALLED = re.compile(r"disttrace: stalled( \(likely\))?: ")
TIME = re.compile(r" \(\d\d:\d\d:\d\d\)$")
MAY_BE = "may be missing there"
"""Said where the journal of whoever is missing is out of reach: who waits, and no accusation."""
LONGEST_S = 150.0
LATE_ARRIVAL, GIVES_UP_S = 23, 6.0
OVER = threading.Event()
"""We were told to end: no program and no network is left behind."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a program's stderr said of its hang, and when."""

    row: Row
    summary: str | None
    lines: int
    seconds: float | None
    problems: tuple[str, ...]


def live(row: Row, folder: Path, stall_s: float, *, apart: bool, hosts: Sequence[Host]) -> Told:
    """One row: until its stderr tells, or for two and a half minutes beyond the limit."""
    variables = {} if stall_s == 10 else {"DISTTRACE_STALL": f"{stall_s:g}"}
    if hosts:
        variables["DISTTRACE_SECRET"] = "of the fault table"
    stderr = folder / "stderr"
    with started(row, folder, variables, apart=apart, hosts=hosts) as process:
        deadline = time.monotonic() + LONGEST_S + stall_s
        at = 0
        while time.monotonic() < deadline and process.poll() is None and not OVER.is_set():
            at = time.time_ns()
            if STALLED.search(stderr.read_text(errors="replace")):
                break
            time.sleep(0.1)
        time.sleep(0.3)  # the rest of the lines
        code_of_end = process.poll()
        text = stderr.read_text(errors="replace")
        report, code, _ = diagnose(folder / "journals")
    said = [line for line in text.splitlines() if line.startswith("disttrace: ")]
    verdicts = (TIME.sub("", STALLED.sub("", line)) for line in said if STALLED.match(line))
    summary = next(verdicts, None)
    if summary is None or report is None:
        if code_of_end is not None:
            print(text[-2000:], file=sys.stderr)
            return Told(row, None, 0, None, (f"it ended with {code_of_end} and did not hang",))
        return Told(row, summary, len(said), None, ("nothing was said",))
    # A process that is alone and frozen has nobody who could ask it where it is.
    named_only = MAY_BE in summary and bool(apart or hosts)
    problems = [] if named_only else list(judge(row, report, code))
    sentences = [found["summary"] for found in report["findings"]]
    plain = partial(_plain, hashed="~" in summary)
    if plain(summary) not in map(plain, sentences) and not (
        MAY_BE in summary and (apart or hosts or _never_started(report))
    ):
        problems.append(f"said: {summary} diagnose says: {' '.join(sentences[:1])}")
    waiting = {one for found in report["findings"] for one in found["waiting"]}
    last = {p["id"]: p["last"] for p in report["processes"] if p["last"]}
    exchanges = {_exchange(last[one]) for one in waiting if one in last}
    # Of all who came, also when the others had given up.
    begins = [
        one["begin_ns"]
        for one in last.values()
        if _exchange(one) in exchanges
        or (one["seq"] is None and any(_exchange({**one, "seq": e[2]}) == e for e in exchanges))
    ]
    seconds = (at - max(begins)) / 1e9 if begins else None
    return Told(row, summary, len(said), seconds, tuple(problems))


def _exchange(operation: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(str(operation[name]) for name in ("op", "group", "seq", "key"))


def _never_started(report: Mapping[str, Any]) -> bool:
    """Whether no process is known of those who are missing: they might be on another host."""
    known = {process["rank"] for process in report["processes"]}
    return bool(report["findings"]) and not known & {*report["findings"][0]["culprit_ranks"]}


def _plain(sentence: str, *, hashed: bool) -> str:
    """Without what differs from moment to moment: ages, the line of a loop that was sampled, and
    what those are at who are missing (behind a semicolon); and without texts of exceptions and,
    where they are ``hashed``, names of keys, which stay on their host.
    """
    sentence = re.sub(r"'[^']*'", "''", sentence) if hashed else sentence
    sentence = re.sub(r"(?<=Error): [^()]*?(?= \(|\.$)", "", sentence)
    return re.sub(r"[\d.,]+ (ns|µs|ms|s|min|h)\b|(?<=\.py):\d+|;.*", "", sentence)


def line(one: Told) -> str:
    seconds = "-" if one.seconds is None else f"{one.seconds:.1f} s"
    what = one.summary if not one.problems else f"WRONG {'; '.join(one.problems)}"
    return f"| `{one.row.name}` | {seconds} | {one.lines} | {what} |"


def figures(rows: Iterable[str], stall_s: float) -> str:
    """What the rows of a table say together."""
    cells = [row.strip("| ").split(" | ", 3) for row in rows]
    right = sum(not what.startswith("WRONG") for *_, what in cells)
    times = sorted(float(said.removesuffix(" s")) for _, said, *_ in cells if said != "-")
    text = "no times"
    if times:
        median, worst = statistics.median(times), times[-1]
        text = f"median {median:.1f} s, worst {worst:.1f} s after the last rank began to wait"
    less = sum(MAY_BE in what for *_, what in cells)
    if less:
        text += f"; {less} of them name only the waiting ranks, since a journal is out of reach"
    of = f"{right} of {len(cells)} hangs"
    return f"{of} reported correctly on stderr (limit {stall_s:g} s): {text}."


COLUMNS = ("| program | printed after | lines | what |", "|---|---|---|---|")
HEAD = """# Verdicts on stderr

Generated by `make faults-live` from real runs: each hang of the fault table is started with
`DISTTRACE=1` and nothing else, and what it prints is judged like the output of `diagnose`.

Without a common folder, the waiting ranks are named and none is blamed where the process that
served the job's store has ended (never under torchrun, whose agent serves it), or where the
missing rank is alone on its host and nothing runs in it. Nothing is printed where all others have
failed, the store went with them, and the last rank waits for no other (`--where destroy`).
A rank that computes for ever (`--where loop`) is at work: `waiting:`, and no stall.

Ranks or nodes that are missing in a rendezvous may still come: that is `starting:` at the
limit, and a stall after a minute, or after six limits if these are less. Lines counted include
those of `diverged:`, which report different calls of ranks within a second or two.
"""


def _hang(row: Row) -> str | None:
    """The name of a row that hangs, wherever it is run."""
    hangs = row.ends == "hang" and row.number and row.needs is None and not row.clocks
    hangs = hangs and "--where loop" not in row.name
    return row.name if hangs else None


def page(before: str, title: str, command: str, rows: Mapping[str, str], stall_s: float) -> str:
    """The page with these rows in the part of this title, in the place of older ones of theirs."""
    parts = dict(re.findall(r"^## (.*)\n\n((?:(?!## ).*\n)*)", before, re.MULTILINE))
    older = re.findall(r"^(?=\| `(.*?)` \|)(.*)$", parts.get(title, ""), re.MULTILINE)
    found: dict[str, str] = {**dict(older), **rows}
    told = [found[name] for name in dict.fromkeys(map(_hang, ROWS)) if name and name in found]
    heads = [f"`{command}`", "", figures(told, stall_s), "", *COLUMNS]
    parts[title] = "\n".join([*heads, *told])
    return HEAD + "".join(f"\n## {name}\n\n{part.rstrip()}\n" for name, part in parts.items())


def main() -> int:
    """Run them; exit code 1 if anything was said wrongly, or not at all."""
    given = options(__doc__, **SELECTED, stall=10.0, apart=False, hosts=False, write=Path)
    rows = [
        row
        for row in chosen(given)
        if _hang(row)
        and not ((given.apart or given.hosts) and row.launcher == NODES)
        and not (given.hosts and (row.torchrun or "--taken" in row.launch))
        # Its ranks give up after six seconds: before that another verdict is right.
        and not (given.stall < GIVES_UP_S and row.number == LATE_ARRIVAL)
    ]

    signal.signal(signal.SIGTERM, lambda *_: OVER.set())

    def run(row: Row) -> Told:
        if OVER.is_set():
            return Told(row, None, 0, None, ("not run",))
        with tempfile.TemporaryDirectory(prefix="disttrace-live-") as folder:
            return live(row, Path(folder), given.stall, apart=given.apart, hosts=hosts)

    told = []
    with networks.hosts(2) if given.hosts else nullcontext(()) as hosts:
        for one in beside(run, rows, given.jobs):
            told.append(one)
            print(line(one), flush=True)
    print(figures(map(line, told), given.stall))
    if given.write:
        way = "A folder per rank" if given.apart else "One folder"
        title = f"{'Two hosts' if given.hosts else way}, limit {given.stall:g} s"
        way = " --hosts" if given.hosts else " --apart" if given.apart else ""
        way += "" if given.stall == 10 else f" --stall {given.stall:g}"
        command = f"python tests/reliability/faults_live.py --jobs {given.jobs}{way}"
        before = given.write.read_text() if given.write.exists() else ""
        rows_told = {one.row.name: line(one) for one in told}
        given.write.write_text(page(before, title, command, rows_told, given.stall))
    return 0 if all(not one.problems for one in told) else 1


if __name__ == "__main__":
    raise SystemExit(main())
