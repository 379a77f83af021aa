"""Every command reads journals by job and host, or under names of bytes, as it reads flat ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import orjson
import pytest

from disttrace.cli import main
from disttrace_viewer.views import prometheus
from support.journals import training
from support.processes import python
from support.states import hang

COMMANDS = (
    "diagnose DIR", "view DIR --width 120", "stats DIR --width 120", "jobs DIR", "top DIR --once",
    "export DIR -o OUT/ops.jsonl", "collect DIR -o OUT/job.tar.gz", "reduce DIR -o OUT/states",
    "diagnose OUT/states",
)  # fmt: skip


def by_host(folder: Path, which: str = "*") -> None:
    """Move the journals of a flat folder, by what their names say."""
    for path in sorted(folder.glob(f"{which}-*.jsonl")):
        job, host, *_ = path.name.split("-")
        own = folder / job / host
        own.mkdir(parents=True, exist_ok=True)
        path.rename(own / path.name)


def said(asked: Path, out: Path, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What each command says of a folder, without its name."""
    out.mkdir()
    found = []
    for command in COMMANDS:
        words = command.replace("DIR", str(asked)).replace("OUT", str(out)).split()
        code = main(words)
        text = capfd.readouterr()
        found.append(f"{code} {text.out}{text.err}".replace(str(asked), "").replace(str(out), ""))
    found.append((out / "ops.jsonl").read_text())
    return found


@pytest.mark.parametrize("layout", ["by host", "mixed"])
def test_commands_agree(tmp_path: Path, layout: str, capfd: pytest.CaptureFixture[str]) -> None:
    flat, other = tmp_path / "flat", tmp_path / "other"
    hang(flat)
    shutil.copytree(flat, other)
    by_host(other, "*" if layout == "by host" else "job-host-4000")
    known = said(flat, tmp_path / "out0", capfd)
    assert "missing_participant" in known[0]
    assert said(other, tmp_path / "out1", capfd) == known
    if layout == "by host":
        assert said(other / "job", tmp_path / "out2", capfd) == known
        assert said(other / "job" / "host", tmp_path / "out3", capfd) == known


def test_scrapes_find_what_lies_by_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where companions have no place but the folder of the journals."""
    monkeypatch.setattr(prometheus, "own_folder", lambda: None)
    own = tmp_path / "job" / "host"
    own.mkdir(parents=True)
    for path in (tmp_path / "a.live", own / "b.live"):
        path.touch()
    assert {Path(path).name for path in prometheus._files(str(tmp_path))} == {"a.live", "b.live"}


PROGRAM = """
import sys
from disttrace.cli import main
folder, out = sys.argv[1:]
for command in (
    ["diagnose", folder], ["diagnose", folder, "--json"], ["view", folder], ["stats", folder],
    ["top", folder, "--once"], ["export", folder, "--format", "html", "-o", f"{out}.html"],
    ["reduce", folder, "-o", f"{out}.states"], ["diagnose", f"{out}.states", "--json"],
):
    code = main(command)
    assert code == 0, (command, code)
"""


@pytest.mark.parametrize("named", ["folder", "journals"])
def test_every_command_reads_it(tmp_path: Path, named: str) -> None:
    """As it reads the same journals under other names; states of them travel, too."""
    folder = tmp_path / (os.fsdecode(b"caf\xe9") if named == "folder" else "plain")
    training(folder)
    for path in list(folder.iterdir()) if named == "journals" else ():
        path.rename(folder / path.name.replace("job-", os.fsdecode(b"j\xf6b-"), 1))
    done = python("-c", PROGRAM, folder, tmp_path / "out", LC_ALL="C.UTF-8").check()
    assert orjson.loads(done.stdout[done.stdout.rindex("\n{") :])["healthy"] is True
