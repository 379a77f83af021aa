"""The table of faults is complete and refers to what is there."""

from __future__ import annotations

import re
from collections import Counter

from faults.expectation import EXAMPLES, marked_lines
from faults.table import ROWS

FAULTS = range(1, 22)
PROGRAMS = sorted((EXAMPLES / "faults").glob("*.py"))
HELPERS = {"common.py", "launch.py", "nodes.py"}
REPEATED = "faults/restarted.py"


def test_each_marker_is_in_its_program() -> None:
    """A line that is expected is marked in the program, so that editing it moves both."""
    for row in ROWS:
        lines = [markers for expected in row.expected for markers in expected.lines.values()]
        wanted = {marker for markers in lines for marker in markers}
        assert wanted <= set(marked_lines(row.path)), row.name


def test_each_fault_has_a_program_and_two_variants() -> None:
    """Three rows at least for each fault of the list."""
    rows = Counter(row.number for row in ROWS)
    assert [number for number in FAULTS if rows[number] < 3] == []


def test_no_run_is_there_twice() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))


def test_each_program_is_run() -> None:
    """A program without a row would rot."""
    run = {row.path for row in ROWS}
    programs = [path for path in PROGRAMS if path.name not in HELPERS]
    programs += (EXAMPLES / "healthy").glob("*.py")
    assert [path.name for path in programs if path not in run] == []


def test_healthy_rows_expect_nothing_and_faulty_ones_something() -> None:
    """Silence: healthy programs, clocks wrong by themselves, an attempt repeated with success."""
    silent = [
        row.name
        for row in ROWS
        if row.number not in (0, 15) and not row.expected and row.program != REPEATED
    ]
    talking = [row.name for row in ROWS if row.number == 0 and row.expected]
    assert (silent, talking) == ([], [])


def test_examples_are_ordinary_programs() -> None:
    """No example imports disttrace: what is said about it could be said about anybody's."""
    imports = re.compile(r"^\s*(?:import\b.*\bdisttrace|from +disttrace)", re.MULTILINE)
    programs = sorted(EXAMPLES.rglob("*.py"))
    assert len(programs) > 50
    assert [path.name for path in programs if imports.search(path.read_text())] == []
