"""What a job said itself is kept beside its journals, and shown by whoever reads them."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

import disttrace
from disttrace.cli import main
from disttrace.journal import format as fmt
from disttrace_viewer.companion.log import Log
from disttrace_viewer.companion.service import Order
from disttrace_viewer.companion.watch import Watch, _objects
from disttrace_viewer.load.said import path_of
from support.states import hang

TOLD: dict[str, object] = {
    "certainty": "certain",
    "summary": "Rank 3 never came",
    "culprit_ranks": [3],
    "finding": {},
}


def keep(folder: Path, *said: dict[str, object]) -> None:
    """As a companion of the job keeps it."""
    registry = folder / "job-host-1.otlp"
    order = Order(
        directory=str(folder), registry=str(registry), job="job", in_names="job-", exports=False,
        pending_s=1.0, keep=True, watches=True, stall_s=1.0, quiet_since=None,
    )  # fmt: skip
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
    watch = Watch(order, Log(log))
    for one in said:
        watch._keep(_objects("stalled", [one]))
    os.close(log)


def test_it_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The newest in the text, all of it in the JSON; a torn line and a stranger's are left out."""
    hang(tmp_path)
    keep(tmp_path, TOLD, {**TOLD, "summary": "Rank 3 is \x1b[31mstill not there"})
    path = Path(path_of(str(tmp_path), "job"))
    with path.open("a") as file:
        file.write('{"disttrace": 1, "at": "noon", "summary": 4}\n["other"]\n{"torn')
    assert main(["diagnose", str(tmp_path)]) == 1
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("Said by")]
    assert [line.partition(": ")[2] for line in said] == [
        "Rank 3 never came", "Rank 3 is \\x1b[31mstill not there",
    ]  # fmt: skip
    assert main(["diagnose", str(tmp_path), "--json"]) == 1
    told = orjson.loads(capfd.readouterr().out)["said"]
    assert [(one["kind"], one["culprit_ranks"]) for one in told] == [("stalled", [3])] * 2
    assert main(["view", str(tmp_path)]) == 0
    assert "Rank 3 never came" in capfd.readouterr().out
    assert disttrace.load(tmp_path).problems == ()


def test_nobody_else_may_read_it_and_no_link_is_followed(tmp_path: Path) -> None:
    """A name that anybody can foretell, in a folder where others may write."""
    keep(tmp_path, TOLD)
    path = Path(path_of(str(tmp_path), "job"))
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    elsewhere = tmp_path / "precious"
    elsewhere.write_text("mine")
    os.symlink(elsewhere, path)
    keep(tmp_path, TOLD)
    assert elsewhere.read_text() == "mine"
    assert fmt.VERDICTS_SUFFIX in path.name
