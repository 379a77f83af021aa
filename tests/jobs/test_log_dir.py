"""Journals beside what torchrun writes of each rank: one folder for both, as the docs say."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace import cli
from support.processes import ROOT, torchrun


@pytest.mark.long
def test_journals_beside_the_logs_of_torchrun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``diagnose`` takes the whole folder, and minds no file that is none of a journal."""
    logs = tmp_path / "logs"
    outcome = torchrun(
        ROOT / "examples" / "pingpong_allreduce.py",
        2,
        options=("--log-dir", str(logs), "--redirects=3"),
        timeout=170,
        DISTTRACE="1",
        DISTTRACE_DIR=str(logs / "disttrace"),
    )
    assert outcome.code == 0, outcome.stderr
    assert list(logs.rglob("stdout.log"))
    assert cli.main(["diagnose", str(logs)]) in (0, 1)  # 1: one was slow on a busy machine
    told = capsys.readouterr().out
    assert "Read: 3 journals" in told
    assert "stdout.log" not in told
