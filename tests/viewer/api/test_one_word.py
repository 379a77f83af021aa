"""What a job said, every surface says: of one scene on the spot, elsewhere and a week later."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from support.processes import ROOT, clean_environ, companions, wait_until

READER = Path(__file__).with_name("surfaces.py")
ELSEWHERE = ("unshare", "--pid", "--fork", "--mount-proc", "--uts", "sh", "-c")
"""Another namespace of pids, and another name of the host."""
STANDS, WAITS = "34", "42"
"""Lines of slow_loader.py: where rank 1 is, and where rank 0 waits for it."""
needs_namespaces = pytest.mark.skipif(
    shutil.which("unshare") is None or os.geteuid() != 0, reason="only root makes namespaces"
)


@dataclass
class Scene:
    """A job that hangs, and whoever reads its journals."""

    folder: Path
    launcher: subprocess.Popen[str]
    said: Path

    def read(self, *days: float, elsewhere: bool = False) -> list[dict[str, Any]]:
        """What every surface says, read so many days later."""
        command = [sys.executable, str(READER), str(self.folder), *map(str, days)]
        if elsewhere:
            command = [*ELSEWHERE, 'hostname other; exec "$@"', "sh", *command]
        env = clean_environ()
        env["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'tests'}"
        found = subprocess.run(command, env=env, capture_output=True, timeout=100)
        assert found.returncode == 0, found.stderr.decode()
        values: list[dict[str, Any]] = orjson.loads(found.stdout)
        return values

    def end(self) -> None:
        """Kill all ranks, and before them the companion, which might note that they have gone."""
        for pid in companions(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in self.folder.rglob("*.defs.jsonl"):
            os.kill(int(path.name.split("-")[-2]), signal.SIGKILL)
        self.launcher.wait(30)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Two ranks, of which the last one stays in its loader."""
    folder = tmp_path_factory.mktemp("scene")
    said = folder.with_name("said.txt")
    program = ["faults/launch.py", "--world", "2", "faults/slow_loader.py", "--culprit", "1"]
    env = clean_environ(DISTTRACE="1", DISTTRACE_DIR=str(folder), DISTTRACE_STALL="1")
    with said.open("w") as out:
        launcher = subprocess.Popen(
            [sys.executable, *program], cwd=ROOT / "examples", env=env, stdout=out,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    try:
        wait_until(lambda: "Rank 1 never joined all_reduce #3" in said.read_text(), 120)
        time.sleep(2)  # until rank 1 has noted where it stands
        yield Scene(folder, launcher, said)
    finally:
        launcher.terminate()
        launcher.wait(30)


def check(found: dict[str, Any], state: str) -> None:
    """Every rank is in one state, on every surface, and the same lines are named."""
    ranks = {"0": state, "1": state}
    assert found["states"] == dict.fromkeys(("diagnose", "notebook", "top", "page"), ranks)
    for surface, told in found["texts"].items():
        assert told["lines"] == [STANDS, WAITS], (surface, told["text"])
    assert WAITS in found["stats"]


def test_it_runs_wherever_it_is_read(scene: Scene) -> None:
    """On the spot the kernel tells, elsewhere signs of life do."""
    said = scene.said.read_text()
    assert "stalled: Rank 1 never joined all_reduce #3" in said
    assert f"slow_loader.py:{WAITS}" in said
    (here,) = scene.read(0)
    check(here, "running")
    assert (here["live"], here["ended"]) == (True, {})
    assert "2 running" in here["texts"]["view"]["text"]
    for surface in ("diagnose", "view", "notebook"):
        assert "Said by the job itself at" in here["texts"][surface]["text"], surface


@needs_namespaces
def test_elsewhere_signs_of_life_tell(scene: Scene) -> None:
    """Elsewhere nobody can be asked."""
    (there,) = scene.read(0, elsewhere=True)
    check(there, "running")
    assert (there["live"], there["ended"]) == (True, {})
    assert "2 running" in there["texts"]["view"]["text"]


def unknown(found: dict[str, Any]) -> None:
    """Nobody can tell whether anybody lives."""
    check(found, "unknown")
    assert (found["live"], found["ended"]) == (False, dict.fromkeys("01", "unknown"))
    for surface in ("diagnose", "view", "top", "notebook"):
        text = found["texts"][surface]["text"]
        assert "running" not in text, surface
        assert "ended without" not in text, surface
        assert "silent for 7 days" in text, surface
    assert "nothing here can tell whether it runs" in found["texts"]["top"]["text"]


def test_the_dead_are_dead(scene: Scene) -> None:
    """Where the kernel can be asked, also a week later."""
    scene.end()
    (found,) = scene.read(7)
    check(found, "killed")
    assert (found["live"], found["ended"]) == (False, dict.fromkeys("01", "killed"))
    assert "running" not in found["texts"]["view"]["text"]


@needs_namespaces
def test_no_clock_runs_for_them(scene: Scene) -> None:
    """Elsewhere, a week later and a day after that: only how long they have been silent grows."""
    week, day_after = scene.read(7, 8, elsewhere=True)
    unknown(week)
    told = [found["texts"]["top"]["text"] for found in (week, day_after)]
    assert told[1].replace("8 days", "7 days") == told[0]
