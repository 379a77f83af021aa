"""What tracing adds to whole steps of programs of two ranks, beside other tracers and beside noise.

python benchmarks/steps/whole_steps.py            everything (half an hour on two cores)
python benchmarks/steps/whole_steps.py --programs "TP;FSDP2" --rounds 9
python benchmarks/steps/whole_steps.py --variants disttrace    beside ``bare`` and ``bare again``
python benchmarks/steps/whole_steps.py --write [SECTION]  puts the table into docs/dev/benchmarks.md

A job of each variant stands ready, and they take turns of a quarter of a second. A turn is compared
with that of ``bare`` in the same round; ``bare again`` shows what of it is noise. Where the
quartiles of what ours adds to the main threads are not below 3 %, each round gets further turns, at
most sixteen in all, and its mean counts.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0:1] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.recorder.child import MeasurementFailed  # noqa: E402
from benchmarks.recorder.journalled import origins  # noqa: E402
from benchmarks.recorder.series import BARE, Spread, relative, spread  # noqa: E402
from benchmarks.recorder.tracers import DETAIL, OURS, available  # noqa: E402
from benchmarks.report import Table, markdown, replaced  # noqa: E402
from benchmarks.steps.jobs import (  # noqa: E402
    AGAIN,
    NO_RECORDER,
    VARIANTS,
    Job,
    Taken,
    start_and_exit,
)
from benchmarks.steps.programs import PROGRAMS  # noqa: E402

PAGE = ROOT / "docs" / "dev" / "benchmarks.md"
START, EXIT = "start", "exit"
_TURN = 0.25e9
_WARM = 5
_ROUNDS = 15
_MOST, _NARROW = 16, 0.03
Samples = dict[str, list[Taken]]


def measured(program: str, variants: Sequence[str], rounds: int) -> tuple[Samples, float]:
    """What a step took by variant, and the operations that our journal holds for each; nothing
    where this torch cannot run the program.
    """
    jobs: dict[str, Job] = {}
    found: Samples = {}
    try:
        for variant in variants:  # one after the other: what starts at once disturbs itself
            jobs[variant] = Job(program, variant)
            try:
                jobs[variant].turn(_WARM)
            except MeasurementFailed:
                if variant == OURS:
                    raise
                print(f"{program}: {variant} fails, and is left out", file=sys.stderr)
                jobs[variant].kill()
                if variant == BARE:
                    return {}, 0.0
                jobs.pop(variant).close()
        steps = max(1, round(_TURN / (jobs[BARE].turn(_WARM).wall / _WARM)))
        done = {variant: _WARM + (_WARM if variant == BARE else 0) for variant in jobs}
        for number in range(-1, _MOST * rounds):  # the first round is not kept
            whole = number >= rounds and number % rounds == 0
            if whole and (OURS not in found or _is_narrow(_of_rounds(found, rounds))):
                break
            for variant in _turned(list(jobs), number):
                taken = jobs[variant].turn(steps)
                done[variant] += steps
                if number >= 0:
                    per_step = Taken(*(ns / steps for ns in astuple(taken)))
                    found.setdefault(variant, []).append(per_step)
        begins = sum(origins(jobs[OURS].journal).values()) / done[OURS] if OURS in jobs else 0.0
    finally:
        for job in jobs.values():
            job.close()
    return _of_rounds(found, rounds), begins


def _of_rounds(found: Samples, rounds: int) -> Samples:
    """The means of so many rounds, of turns that follow one another."""
    return {
        variant: [
            Taken(*map(statistics.fmean, zip(*map(astuple, turns), strict=True)))
            for turns in _runs(taken, len(taken) // rounds)
        ]
        for variant, taken in found.items()
    }


def _runs(taken: list[Taken], length: int) -> list[list[Taken]]:
    return [taken[at : at + length] for at in range(0, len(taken), length)]


def _is_narrow(found: Samples) -> bool:
    main = relative({name: [t.main for t in ts] for name, ts in found.items()}, OURS)
    return main.high - main.median < _NARROW and main.median - main.low < _NARROW


def launched(variants: Sequence[str], rounds: int) -> tuple[Samples, Samples]:
    """The same of starts and of exits; what is entered later than a start has neither."""
    set_before = [name for name in variants if name in (BARE, AGAIN, OURS, DETAIL, NO_RECORDER)]
    starts: Samples = {}
    exits: Samples = {}
    for number in range(rounds):
        for variant in _turned(set_before, number):
            start, end = start_and_exit(variant)
            starts.setdefault(variant, []).append(start)
            exits.setdefault(variant, []).append(end)
    return starts, exits


def _turned(names: list[str], number: int) -> list[str]:
    turn = max(number, 0) % len(names)
    return names[turn:] + names[:turn]


def row(name: str, samples: Samples, begins: float, variants: Sequence[str]) -> tuple[str, ...]:
    """A line of the table."""
    bare = spread([taken.cpu for taken in samples[BARE]]).median
    return (
        name,
        f"{begins:.1f}" if begins else "",
        f"{bare / 1e6:.3f}",
        *(
            _cell(samples, other) if other in samples else "-"
            for other in variants
            if other != BARE
        ),
    )


def _cell(samples: Samples, variant: str) -> str:
    def added(what: str) -> Spread:
        of = {name: [getattr(t, what) for t in taken] for name, taken in samples.items()}
        return relative(of, variant)

    text = _quartiles(added("cpu"))
    if not samples[BARE][0].wall:
        return text
    return f"{text}, main {_quartiles(added('main'))}, wall {added('wall').median:+.1%}"


def _quartiles(of: Spread) -> str:
    return f"{of.median:+.1%} ({of.low:+.1%} to {of.high:+.1%})"


def table(rows: Sequence[tuple[str, ...]], variants: Sequence[str], rounds: int) -> Table:
    """The one table."""
    return Table(
        f"Whole steps (gloo, two processes, torch {version('torch')})",
        ("step", "recorded", "bare, CPU ms", *(name for name in variants if name != BARE)),
        tuple(rows),
        "CPU time of both ranks with all their threads and reaped children, that of their main "
        f"threads, and wall time: medians of {rounds} rounds (quartiles), as what is added "
        "to `bare` in the same round. `recorded`: begins of both ranks in our journal "
        "for each step, with those that set it up. `-`: not for this step, or torch fails there "
        "without us (DDP under DETAIL). The flight recorder is on by default in gloo from torch "
        "2.13 on. "
        f"Python {platform.python_version()}, torch {version('torch')}, "
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}.",
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*PROGRAMS, "start and exit"]
    parser.add_argument("--programs", type=_chosen(names), default=names)
    parser.add_argument("--variants", type=_chosen(list(VARIANTS)), default=list(VARIANTS))
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument(
        "--write", nargs="?", const="steps", metavar="SECTION", help="put the table into the docs"
    )
    return parser.parse_args()


def _chosen(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Those whose name holds one of the words between the semicolons."""

    def choose(text: str) -> list[str]:
        found = [name for name in names if any(word in name for word in text.split(";"))]
        if not found:
            raise argparse.ArgumentTypeError(f"none of {', '.join(names)}")
        return found

    return choose


def main() -> int:
    """Measure, print, and write if asked."""
    options = arguments()
    beside = [name for name in options.variants if name not in (BARE, AGAIN, DETAIL, NO_RECORDER)]
    there = {BARE, AGAIN, DETAIL, NO_RECORDER, *available(*beside)}
    wanted = {BARE, AGAIN, *options.variants} & there
    variants = [name for name in VARIANTS if name in wanted]
    rows = []
    for program in options.programs:
        if program in PROGRAMS:
            samples, begins = measured(program, variants, options.rounds)
            if not samples:
                continue
            rows.append(row(program, samples, begins, variants))
        else:
            starts, exits = launched(variants, options.rounds)
            rows.append(row(START, starts, 0.0, variants))
            rows.append(row(EXIT, exits, 0.0, variants))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    text = markdown(table(rows, variants, options.rounds))
    print(text)
    if options.write:
        PAGE.write_text(replaced(PAGE.read_text(), text, options.write))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
