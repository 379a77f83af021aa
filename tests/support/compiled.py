"""What cannot be where nothing was compiled, as README says: its tests are skipped there, aloud."""

from __future__ import annotations

from disttrace.recording import core as cores

REASON = "nothing was compiled here: no companion, no mapped journal, no stack without the GIL"

_REPORTED = ("hang", "ddp", "desync", "slow", "nodes", "bare", "ctrl-c", "sigterm", "server")
_MATRIX = "viewer/api/test_matrix.py::test_every_surface_says_the_same"
# Files of tests, or beginnings of tests' names in one.
_OF_C = (
    "jobs/test_activation.py::test_agent_and_workers_have_a_journal_each",
    "journal/test_segment.py::test_a_full_disk_is_an_oserror[MappedSegment",
    "journal/test_segment.py::test_holds_exactly_what_was_put[MappedSegment",
    "journal/test_segment.py::test_is_full_at_its_limit[MappedSegment",
    "journal/test_shortened.py",
    "lifecycle/test_detached.py",
    "lifecycle/test_gil_free_stacks.py",
    "lifecycle/test_stall_verdict.py",
    "lifecycle/test_left_over.py",
    "lifecycle/test_thread_lines.py::test_deep_stacks[reader",
    "test_benchmarks.py::test_segment_lines",
    "test_hang_page.py::test_live",
    *(f"{_MATRIX}[{scene}]" for scene in _REPORTED),
    "viewer/api/test_one_word.py::test_it_runs_wherever_it_is_read",
    "viewer/otlp/test_bad_collectors.py",
    "viewer/otlp/test_ecosystem.py",
    "viewer/otlp/test_faults.py",
    "viewer/otlp/test_live.py",
)


def is_missing() -> bool:
    """Whether nothing was compiled here; all of it is, or nothing (`hatch_build.py`)."""
    return cores.choose(None)[0] == cores.PLAIN


def needs_it(name: str) -> bool:
    """Whether a test of this name (`tests/FILE::TEST`) is about what only C can do."""
    return name.removeprefix("tests/").startswith(_OF_C)
