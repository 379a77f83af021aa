"""Which jobs are judged besides the newest, and what is told of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

import disttrace
from disttrace.cli import main
from disttrace_viewer.diagnosis import job as judging
from disttrace_viewer.diagnosis.verdict import Verdict, verdict
from disttrace_viewer.merge.jobs import beside
from disttrace_viewer.states import folder
from disttrace_viewer.states.state import Merged
from support.journals import MS, T0, Journal, S


def job(
    where: Path, name: str, start_s: int, end_s: int, *, hangs: bool = False, killed: bool = False,
    ranks: int = 2, **keys: object,
) -> list[Journal]:  # fmt: skip
    """A job that lived between two seconds; where it hangs its last rank stays away."""
    found = []
    keys["keys"] = {"argv": ["python", f"{name}.py"]}
    for rank in range(ranks):
        pid = 100 * (1 + len(list(where.glob("*.defs.jsonl")))) + rank
        journal = Journal(where, pid=pid, rank=rank, world_size=ranks, job=name,
                          t0=T0 + start_s * S, **keys)  # type: ignore[arg-type] # fmt: skip
        call = journal.collective(journal.world(29500 + start_s))
        journal.run(call, t=20 * MS, d=MS, q=1)
        if hangs and rank < ranks - 1:
            journal.begin(call, 30 * MS, q=2)
        if hangs or killed:
            for second in range(0, end_s - start_s + 1, 2):
                journal.record(hb=second * S)
        else:
            journal.leave((end_s - start_s) * S)
        found.append(journal)
    return found


def besides(where: Path, *alive: int) -> list[tuple[str, ...]]:
    """Ids of jobs that are judged too; of processes with these numbers it is known they live."""
    found = folder.of_journals([str(where)]).survey
    return beside(found.jobs, found.processes, lambda process: process.pid in alive)


def test_only_who_lived_while_the_newest_did_is_judged_too(tmp_path: Path) -> None:
    """Killed before, ended before, and still there at its begin: by its newest sign of life."""
    job(tmp_path, "ended", 0, 50)
    killed = job(tmp_path, "killed", 10, 60, killed=True)
    job(tmp_path, "long", 5, 101)
    job(tmp_path, "newest", 100, 200)
    assert besides(tmp_path) == [("long",)]
    # Nothing was heard of it since, but it is there: it was stopped.
    assert besides(tmp_path, killed[1].pid) == [("killed",), ("long",)]
    assert besides(tmp_path, 100, 101) == [("long",)]  # a number that was used again


@pytest.mark.parametrize("command", ["view", "stats", "top"])
def test_every_surface_says_which_others_lived_meanwhile(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    """A line each, with what is wrong first; not where a job was asked for. It is no verdict: 0."""
    job(tmp_path, "hung", 0, 100, hangs=True)
    job(tmp_path, "before", 1, 20)
    job(tmp_path, "meanwhile", 10, 60)
    job(tmp_path, "newest", 50, 90)
    assert main([command, str(tmp_path), "--width", "400"]) == 0
    out = capfd.readouterr().out
    assert "Job hung lived meanwhile (2 processes): error missing_participant: Rank 1 " in out
    assert "Job meanwhile lived meanwhile (2 processes), with nothing wrong." in out
    assert "Job before lived" not in out
    assert main([command, str(tmp_path), "--job", "newest"]) == 0
    assert "lived meanwhile" not in capfd.readouterr().out
    if command != "view":
        assert main([command, str(tmp_path), "--json"]) == 0
        others = orjson.loads(capfd.readouterr().out)["others"]
        assert [(one["id"], one["healthy"], one["kind"]) for one in others] == [
            ("meanwhile", True, None),
            ("hung", False, "missing_participant"),
        ]


def test_no_hang_is_hidden_by_a_well_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each under its heading; one report for programs, which says of which job each finding is."""
    job(tmp_path, "hung", 0, 100, hangs=True)
    job(tmp_path, "before", 1, 20)
    job(tmp_path, "meanwhile", 10, 60)
    job(tmp_path, "newest", 50, 90)
    assert main(["diagnose", str(tmp_path)]) == 1
    out = capfd.readouterr().out
    headings = [line for line in out.splitlines() if line.startswith("== ")]
    assert [line.split(",")[0] for line in headings] == ["== Job newest", "== Job hung"]
    assert out.index("Nothing is wrong") < out.index("== Job hung") < out.index("ERROR")
    assert out.splitlines()[-1] == "Ran at the same time, with nothing wrong: job meanwhile."
    assert "Other jobs here: before (" in out

    assert main(["diagnose", str(tmp_path), "--json"]) == 1
    found = orjson.loads(capfd.readouterr().out)
    assert (found["healthy"], found["coverage"]["other_jobs"]) == (False, ["before"])
    assert [(f["kind"], f["job"]) for f in found["findings"]] == [("missing_participant", "hung")]
    jobs = {one["id"]: one["healthy"] for one in found["jobs"]}
    assert list(jobs.items()) == [("newest", True), ("meanwhile", True), ("hung", False)]
    assert {one["job"] for one in found["processes"]} == set(jobs)

    report = disttrace.diagnose(tmp_path)
    assert [one.healthy for one in (report, *report.others)] == [False, True, False]
    assert [(f.kind, f.job) for f in report.findings] == [("missing_participant", "hung")]
    assert report.findings == report.others[1].findings
    assert str(report).splitlines() == [line.rstrip() for line in out.splitlines()]

    assert main(["diagnose", str(tmp_path), "--format", "junit"]) == 1
    xml = capfd.readouterr().out
    assert [f'"disttrace {name}"' in xml for name in jobs] == [True] * 3

    for name, code in (("newest", 0), ("hung", 1), ("meanwhile", 0), ("before", 0)):
        assert main(["diagnose", str(tmp_path), "--job", name]) == code
        assert "== " not in capfd.readouterr().out


def test_states_say_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Files of states, and a retry whose first try was still hanging: it keeps its number."""
    journals = tmp_path / "journals"
    job(journals, "hung", 0, 100, hangs=True)
    job(journals, "newest", 50, 90)
    assert main(["reduce", str(journals), "-o", str(tmp_path / "states")]) == 0
    capfd.readouterr()
    assert main(["diagnose", str(tmp_path / "states"), "--json"]) == 1
    found = orjson.loads(capfd.readouterr().out)
    assert [(f["kind"], f["job"]) for f in found["findings"]] == [("missing_participant", "hung")]


def test_of_many_old_jobs_none_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost what they did: their definitions are read, and no more."""
    for number in range(40):
        job(tmp_path, f"old{number}", 10 * number, 10 * number + 5, ranks=1)
    job(tmp_path, "hung", 300, 700, hangs=True)
    job(tmp_path, "newest", 600, 650)
    asked: list[int] = []

    def counted(merged: Merged, **keys: Any) -> Verdict:
        asked.append(len(merged.states))
        return verdict(merged, **keys)

    monkeypatch.setattr(judging, "verdict", counted)
    report = disttrace.diagnose(tmp_path)
    assert [one.case.evidence.trace.jobs[0].id for one in report.others] == ["hung"]
    assert asked[0] == 44
    assert set(asked[1:]) == {2}
