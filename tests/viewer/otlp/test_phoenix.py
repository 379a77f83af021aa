"""A real backend: ``phoenix serve`` somewhere, and DISTTRACE_TEST_PHOENIX=http://localhost:6006."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.collector import exporters
from support.processes import clean_environ, torchrun, wait_until

WHERE = os.environ.get("DISTTRACE_TEST_PHOENIX", "")
GRPC = os.environ.get("DISTTRACE_TEST_PHOENIX_GRPC", "http://localhost:4317")
PROGRAMS = Path(__file__).parent / "programs"

pytestmark = pytest.mark.skipif(not WHERE, reason="DISTTRACE_TEST_PHOENIX names no backend")


def spans(project: str) -> list[dict[str, Any]]:
    """What Phoenix holds of a project."""
    query = (
        "{projects{edges{node{name spans(first:1000){edges{node"
        "{name spanId parentId attributes trace{traceId}}}}}}}}"
    )
    request = urllib.request.Request(
        f"{WHERE}/graphql",
        json.dumps({"query": query}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found = json.load(answer)
    for edge in found["data"]["projects"]["edges"]:
        if edge["node"]["name"] == project:
            return [item["node"] for item in edge["node"]["spans"]["edges"]]
    return []


def settings(directory: Path, protocol: str, project: str) -> dict[str, Any]:
    """Variables that send a job to a project of Phoenix, which takes no metrics."""
    return {
        "DISTTRACE": "1", "DISTTRACE_DIR": str(directory), "DISTTRACE_EXPORT": "json,otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_ENDPOINT": GRPC if protocol == "grpc" else WHERE,
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={project}",
    }  # fmt: skip


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_phoenix_holds_the_whole_trace(protocol: str, tmp_path: Path) -> None:
    """Every operation of a 4-rank job is there once, in one trace, in a connected tree."""
    project = uuid.uuid4().hex
    torchrun(PROGRAMS / "everything.py", 4, **settings(tmp_path, protocol, project)).check()
    wait_until(lambda: not exporters(tmp_path), 60)
    operations = sum(
        line.startswith(b'{"b":')
        for path in tmp_path.glob("*.ops.jsonl")
        for line in path.read_bytes().splitlines()
    )
    wait_until(lambda: len(spans(project)) > operations, 60)
    found = spans(project)
    kinds = Counter(json.loads(span["attributes"])["disttrace"]["type"] for span in found)
    assert kinds["operation"] == operations
    assert (kinds["process"], kinds["end"]) == (5, 5)
    assert len({span["trace"]["traceId"] for span in found}) == 1
    ids = {span["spanId"] for span in found}
    assert [one["name"] for one in found if one["parentId"] and one["parentId"] not in ids] == []


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_phoenix_shows_a_hang_while_it_hangs(protocol: str, tmp_path: Path) -> None:
    """The three ranks that wait are pending there while the job runs, under pending steps."""
    project = uuid.uuid4().hex
    variables = settings(tmp_path, protocol, project) | {"DISTTRACE_PENDING": "1"}
    command = [sys.executable, "-m", "torch.distributed.run"]
    command += ["--standalone", "--nproc-per-node", "4", str(PROGRAMS / "hang.py")]
    environ = clean_environ(**variables, OMP_NUM_THREADS="1")
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: len(waiting(project)) == 3, 60)
            assert process.poll() is None
        finally:
            process.terminate()
            process.wait(30)
    wait_until(lambda: not exporters(tmp_path), 60)
    found = {span["spanId"]: span for span in spans(project)}
    for span in waiting(project):
        assert found[span["parentId"]]["name"] == "train_step (pending)"
        final = json.loads(span["attributes"])["disttrace"]["replaced_by"]
        assert found[final]["name"] == "all_reduce"


def waiting(project: str) -> list[dict[str, Any]]:
    """Pending spans of members of the collective."""
    return [one for one in spans(project) if one["name"] == "all_reduce (pending)"]
