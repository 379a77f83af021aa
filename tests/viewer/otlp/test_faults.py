"""Jobs that end badly: they end as they did, and the collector learns how each process ended."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from support.collector import Collector, serve_grpc
from support.processes import ROOT, Outcome, clean_environ, companions, run_program, wait_until

LAUNCH = ROOT / "examples" / "faults" / "launch.py"
FAULT = ROOT / "examples" / "faults" / "sudden_end.py"
HOW = ("raise", "sys_exit", "abort", "segfault")
STATES = {"raise": "failed", "abort": "killed"}
"""What the end span of rank 1 says."""


def fault(out: Path, how: str, export: str, endpoint: str) -> Outcome:
    """The row of the faults in which rank 1 ends by ``how``."""
    command: list[str | Path] = [sys.executable, LAUNCH, "--world", "3", FAULT, "--how", how]
    environ = clean_environ(
        DISTTRACE="1", DISTTRACE_DIR=str(out), DISTTRACE_EXPORT=export,
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OMP_NUM_THREADS="1",
    )  # fmt: skip
    return run_program(command, environ, 90)


def errors(outcome: Outcome) -> list[str]:
    """The types of exceptions that were shown, by rank."""
    return sorted(set(re.findall(r"(?:\[rank\d\]: )?\b\w*Error\b(?=:)", outcome.stderr)))


@pytest.mark.parametrize("how", sorted(STATES))
def test_every_end_is_told(how: str, tmp_path: Path) -> None:
    """Also of a process that was killed, whose operation in flight becomes a span that failed."""
    with serve_grpc(Collector()) as collector:
        outcome = fault(tmp_path, how, "otlp", collector.endpoint)
        assert (outcome.code != 0, outcome.hung) == (True, False)
        wait_until(lambda: not companions(tmp_path), 40)
    ends = {s.resource.get("disttrace.rank"): s for s in collector.of("end")}
    assert ends[1].attributes["disttrace.process.state"] == STATES[how]
    assert ends[1].status == 2
    if how == "raise":
        assert ends[1].description == "ValueError: the loss is not a number"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.faults
@pytest.mark.parametrize("how", sorted(HOW))
def test_a_dead_collector_changes_no_outcome(how: str, tmp_path: Path) -> None:
    """Exit code and exceptions are those of a run that only writes journals."""
    plain = fault(tmp_path / "json", how, "json", "")
    exported = fault(tmp_path / "otlp", how, "json,otlp", "http://127.0.0.1:9")
    assert (exported.code, exported.hung) == (plain.code, plain.hung)
    assert errors(exported) == errors(plain)
    wait_until(lambda: not companions(tmp_path / "otlp"), 60)
    (log,) = (tmp_path / "otlp").glob("*.log")
    assert "spans did not reach the collector at http://127.0.0.1:9" in log.read_text()
