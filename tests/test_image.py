"""The steps of `Dockerfile`, without an engine: its two installations, and its command offline."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from support.journals import S
from support.processes import ROOT, clean_environ, run_program
from support.scenes import hang_without

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def step(pattern: str) -> str:
    (found,) = re.findall(pattern, TEXT.replace("\\\n", " "), re.MULTILINE)
    return str(found)


@pytest.mark.long
def test_the_steps_of_the_image(tmp_path: Path) -> None:
    """It needs no network, compiler or source; mounts and users are an engine's to try."""
    environ = clean_environ()
    del environ["PYTHONPATH"]
    run_program([sys.executable, "-m", "venv", tmp_path / "env"], environ, 120).check()
    programs, wheels = tmp_path / "env" / "bin", str(tmp_path / "wheels")
    environ["PATH"] = f"{programs}{os.pathsep}{environ['PATH']}"
    build = step(r"^RUN (CC=.*)$").replace("/wheels", shlex.quote(wheels))
    run_program(["sh", "-c", build], environ, 170, cwd=ROOT).check()
    assert list(Path(wheels).glob("disttrace-*-py3-none-any.whl"))
    install = step(r"^RUN --mount=\S+ +(pip install .*)$").replace("/wheels", shlex.quote(wheels))
    run_program(["sh", "-c", install], environ, 170, cwd=tmp_path).check()

    for journal, _ in hang_without(tmp_path / "journals", 2, 1):
        journal.stand(3 * S, "/src/loader.py", 9, "load")
    variables = dict(word.split("=", 1) for word in step(r"^ENV (.*)$").split())
    assert variables.pop("DISTTRACE_DIR") == "/journals"
    words = json.loads(step(r"^ENTRYPOINT (.*)$")) + json.loads(step(r"^CMD (.*)$"))
    offline = ["unshare", "--user", "--map-current-user", "--net", programs / words[0], *words[1:]]
    environ.update(variables, DISTTRACE_DIR=str(tmp_path / "journals"))
    done = run_program(offline, environ, 60, cwd=tmp_path)
    assert done.code == 1, str(done)
    assert "Rank 1 never joined all_reduce #3" in done.stdout
