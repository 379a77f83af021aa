"""The recipes of docs/alerts.md do what the page says, as they stand there, in jobs that hang."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.processes import ROOT, clean_environ, running, wait_until

PAGE = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
FAULTS = ROOT / "examples" / "faults"
BLOCKS = re.findall(r"```(?:python|sh)\n(.*?)```", PAGE, re.DOTALL)
FILES = {m[1]: block for block in BLOCKS if (m := re.match(r"# (\S+)\n", block))}
COMMANDS = re.findall(r'^export DISTTRACE_ON_STALL="(.*)"$', PAGE, re.MULTILINE)
FAKE = """#!/bin/sh
echo "$0 $*" >> "$CALLS"
case "$0" in *kubectl) cat > "$CALLS.event" ;; esac
echo "a stack"
"""


class Slack(BaseHTTPRequestHandler):
    """Keeps what is posted."""

    posted: list[Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append((self.path, self.headers["Content-Type"], json.loads(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nobody reads it."""


@pytest.fixture
def slack() -> Iterator[tuple[str, list[Any]]]:
    handler = type("Handler", (Slack,), {"posted": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/services/T/B/x", handler.posted  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A shell in which the files of the page lie, with stand-ins for what a cluster has."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name in ("scontrol", "kubectl", "py-spy"):
        (binaries / name).write_text(FAKE)
    (binaries / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (binaries / "torchrun").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    )
    for one in binaries.iterdir():
        one.chmod(0o755)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text(
        f"import runpy, sys\nsys.path.insert(0, {str(FAULTS)!r})\n"
        "sys.argv += ['--culprit', '1']\n"
        f"runpy.run_path({str(FAULTS / 'slow_loader.py')!r}, run_name='__main__')\n"
    )
    return clean_environ(
        PATH=f"{binaries}{os.pathsep}{os.environ['PATH']}", CALLS=str(tmp_path / "calls"),
        DISTTRACE_STALL="2", OMP_NUM_THREADS="1", SLURM_JOB_ID="77", SLURM_RESTART_COUNT="1",
        POD_NAME="train-0", POD_NAMESPACE="ml",
    )  # fmt: skip


def calls(tmp_path: Path) -> list[str]:
    """What the stand-ins were called with."""
    path = tmp_path / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.rpartition("/bin/")[2] for line in lines]


def test_each_recipe_does_what_it_says(
    tmp_path: Path, environ: dict[str, str], slack: tuple[str, list[Any]]
) -> None:
    """All commands of the page on one stall; the last one is two of them."""
    address, posted = slack
    assert sorted(FILES) == ["event.py", "requeue.py", "slack.py", "stacks.py", "train.sh"]
    *single, several = COMMANDS
    assert len(single) == 4
    each = "".join(f"({one}) < said.json; " for one in single)
    environ |= {"DISTTRACE": "1", "SLACK_WEBHOOK_URL": address}
    environ["DISTTRACE_ON_STALL"] = f"cat > said.json; {each}({several}) < said.json; : > done"
    command = ["torchrun", "--standalone", "--nproc-per-node=2", "train.py"]
    with running(command, tmp_path, environ, cwd=tmp_path):
        wait_until((tmp_path / "done").exists, timeout=90)
    said = json.loads((tmp_path / "said.json").read_text())
    assert list(said) == [
        *("disttrace", "kind", "at", "certainty", "summary", "culprit_ranks", "finding"),
        *("also", "job", "directory", "processes", "report"),
    ]
    assert all(f"`{key}`" in PAGE for key in said)
    assert (said["kind"], said["certainty"], said["culprit_ranks"]) == ("stalled", "certain", [1])
    assert said["finding"]["summary"] == said["summary"]
    assert said["summary"] in said["report"]
    culprit, waiting = said["processes"]
    assert (culprit["rank"], culprit["culprit"], culprit["here"]) == (1, True, True)
    assert (waiting["rank"], waiting["culprit"], waiting["here"]) == (0, False, True)
    assert [path for path, _, _ in posted] == ["/services/T/B/x"] * 2
    assert said["summary"] in posted[0][2]["text"]
    dump = f"py-spy dump --native --pid {culprit['pid']}"
    assert calls(tmp_path) == [dump, "scontrol requeue 77", "kubectl create -f -", dump]
    assert (tmp_path / "disttrace-out" / "rank-1.stack.txt").read_text() == "a stack\n"
    event = json.loads((tmp_path / "calls.event").read_text())
    assert (event["involvedObject"]["name"], event["message"]) == ("train-0", said["summary"])


def test_a_job_that_is_ended_is_queued_again(tmp_path: Path, environ: dict[str, str]) -> None:
    """By the exit code of ``abort``, and by no other."""
    with running(["sh", "train.sh"], tmp_path, environ, cwd=tmp_path) as process:
        assert process.wait(90) == 75
    assert calls(tmp_path) == ["scontrol requeue 77"]
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    with running(["sh", "train.sh"], tmp_path, environ, cwd=tmp_path) as process:
        assert process.wait(90) == 1
    assert calls(tmp_path) == ["scontrol requeue 77"]
