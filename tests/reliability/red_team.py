"""Runs programs that look for us, untraced and traced, and compares what came of them.

python tests/reliability/red_team.py                     all of them, on both cores
python tests/reliability/red_team.py --match children    those of a theme, or one
python tests/reliability/red_team.py --core python --show

Each program (tests/reliability/attacks/) runs twice without disttrace, so that what differs by
itself is not compared, then traced with a short limit for stalls. What it prints, its exit code and
the files in its folder must be the same. ``--show``: what disttrace reports on stderr.
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from reliability.attacks import ROWS  # noqa: E402
from support.campaigns import beside, options  # noqa: E402
from support.processes import clean_environ, companions, run_program  # noqa: E402

ATTACKS = Path(__file__).with_name("attacks")
LONGEST_S = 150.0
LEFT_S = 20.0
CORES = ("c", "python")
# By attack, the cores on which it sees us, as SECURITY.md and docs/limits.md say.
KNOWN = {
    "children.usage_of_children": CORES, "children.listed_children": CORES,
    "surroundings.callers_of_the_program": CORES, "surroundings.code_of_functions": CORES,
    "surroundings.shown_to_people": CORES, "tools.profiled_calls": ("python",),
    "waits.interrupted_anywhere": ("python",), "rows.builtins_that_count": CORES,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a program: facts by name, and what disttrace said."""

    facts: dict[str, str]
    said: tuple[str, ...]


def attacks() -> Iterator[str]:
    """``theme.name`` of each."""
    for path in sorted(ATTACKS.glob("[!_]*.py")):
        for node in ast.parse(path.read_text()).body:
            if (
                path.stem != "ground"
                and isinstance(node, ast.FunctionDef)
                and not node.name.startswith("_")
            ):
                yield f"{path.stem}.{node.name}"
    yield from ROWS


def run(attack: str, stall_s: float, **variables: str) -> Run:
    """One run in a folder of its own; what is left of us afterwards is a fact, too."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "work").mkdir()
        env = clean_environ(OMP_NUM_THREADS="1", ATTACK_STALL=str(stall_s), **variables)
        env["PYTHONPATH"] = os.pathsep.join((env["PYTHONPATH"], str(TESTS)))
        env["DISTTRACE_STALL"] = str(stall_s)
        env["DISTTRACE_DIR"] = str(folder / "journals")
        env.pop("PYTHONFAULTHANDLER", None)
        line = [sys.executable, "-m", "reliability.attacks", attack]
        done = run_program(line, env, LONGEST_S, cwd=folder / "work")
        facts = {f"line {n}": text for n, text in enumerate(done.stdout.splitlines())}
        errors = done.stderr.splitlines()
        facts["exit code"] = "it hung" if done.hung else str(done.code)
        facts["errors"] = " / ".join(x for x in errors if _is_error(x))
        facts["files"] = " ".join(
            sorted(p.name for p in (folder / "work").iterdir() if p.name != "disttrace-out")
        )
        until = time.monotonic() + LEFT_S
        while companions(folder) and time.monotonic() < until:
            time.sleep(0.2)
        facts["processes left"] = str(len(companions(folder)))
        return Run(facts, tuple(x for x in errors if x.startswith("disttrace")))


def _is_error(line: str) -> bool:
    """A last line of a traceback, or the interpreter's own."""
    head = line.split(":")[0]
    return line.startswith("Fatal Python") or (head.isidentifier() and head.endswith("Error"))


def judged(attack: str, stall_s: float, cores: Sequence[str]) -> dict[str, list[str]]:
    """By core: what differs from the runs without us, and what was said."""
    first, second = (run(attack, stall_s, DISTTRACE="0") for _ in range(2))
    steady = {k: v for k, v in first.facts.items() if second.facts.get(k) == v}
    odd = set(first.facts) ^ set(second.facts) | {
        k for k in first.facts if second.facts.get(k) != first.facts[k]
    }
    found: dict[str, list[str]] = {"": [f"differs by itself: {k}" for k in sorted(odd)]}
    if not any(name.startswith("line") for name in steady):
        found["untraced"] = [f"says nothing that stays: {first.facts.get('errors')}"]
    for core in cores:
        traced = run(attack, stall_s, DISTTRACE="1", DISTTRACE_CORE=core)
        names = (steady.keys() | traced.facts.keys()) - odd
        found[core] = [
            f"{name}: {steady.get(name)} -> {traced.facts.get(name)}"
            for name in sorted(names)
            if steady.get(name) != traced.facts.get(name)
        ]
        found[""] += [f"{core}: {line}" for line in traced.said]
    return found


def main() -> int:
    """The exit code: 1 where tracing changed a program."""
    chosen = options(__doc__, match="", core=[*CORES], stall=2.0, jobs=2, show=False)
    names = [name for name in attacks() if chosen.match in name]
    wrong = known = 0
    results = beside(lambda one: judged(one, chosen.stall, chosen.core), names, chosen.jobs)
    for name, found in zip(names, results, strict=True):
        bad = {core: what for core, what in found.items() if core and what}
        changed = set(bad) - set(KNOWN.get(name, ()))
        wrong += bool(changed)
        known += bool(bad and not changed)
        print(f"{'CHANGED' if changed else 'known' if bad else 'same':8} {name}", flush=True)
        for core, what in bad.items():
            for line in what:
                print(f"         {core}: {line}"[:400], flush=True)
        for line in found[""] if chosen.show else ():
            print(f"         ({line})"[:300], flush=True)
    print(f"{len(names)} attacks, {wrong} changed a program, {known} as SECURITY.md and limits say")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
