"""Whose a journal is, by the name of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace.identity import Identity, file_part
from disttrace.journal import format as fmt
from disttrace_viewer.companion.reading import of_job
from support.journals import training


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("x-host-17-0123456789ab.defs.jsonl", True),
        ("x-host-17-0123456789ab.000001.ops.jsonl", True),
        ("x-1-host-17-0123456789ab.defs.jsonl", False),
        ("x_1-host-17-0123456789ab.defs.jsonl", False),
        ("xy-host-17-0123456789ab.defs.jsonl", False),
        ("x-notes.defs.jsonl", False),
    ],
)
def test_a_journal_is_of_the_job_that_its_name_begins_with(name: str, is_one: bool) -> None:
    """Of that name as a whole: another job may be called like the beginning of a longer one."""
    assert fmt.is_of_job(name, "x") is is_one


def test_names_of_a_job_with_hyphens_are_its_own() -> None:
    """The recorder's own names, whatever the job is called."""
    for job in ("x-1", "x", "a b/c", "-", "x" * 90):
        known = Identity({}, job=job)
        assert fmt.is_of_job(f"{known.base_name()}{fmt.DEFS_SUFFIX}", file_part(job))


def test_a_companion_reads_no_other_jobs_journals(tmp_path: Path) -> None:
    """Neither of one whose name begins with its own: a thousand of them took it 40 s."""
    ours = training(tmp_path)
    assert [one.job for one in ours] == ["job"] * len(ours)
    for other in ("job-1", "job_1", "jobs"):
        training(tmp_path / other)
        for path in (tmp_path / other).iterdir():
            path.rename(tmp_path / path.name.replace("job-", f"{other}-", 1))
    found = {path for one in ours for path in (one.definitions, *one.segments)}
    read = {Path(path) for one in of_job(str(tmp_path), "job") for path in one.paths}
    assert read == found
