"""Programs that use OpenTelemetry themselves: their spans, their provider, its command."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from support.collector import Collector, exporting, serve_grpc
from support.preloaded import preloaded, torchrun
from support.processes import (
    ROOT,
    clean_environ,
    companions,
    free_port,
    launcher,
    run_program,
    wait_until,
)

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("joins", [True, False])
def test_the_users_span_is_the_parent(joins: bool, tmp_path: Path) -> None:
    """In the job's trace when the program continues it, in the program's own trace otherwise."""
    with serve_grpc(Collector()) as collector:
        arguments = ["join"] if joins else []
        outcome = torchrun(
            PROGRAMS / "train_step.py", 2, *arguments, **exporting(tmp_path, collector, "otlp")
        ).check()
        wait_until(lambda: not companions(tmp_path), 40)
    steps = {int(r): (t, s) for r, t, s in map(str.split, outcome.stdout.splitlines())}
    ours = {span.span: span for span in collector.spans}
    operations = collector.operations()
    job = collector.of("process")[0].trace
    for rank, (trace, step) in steps.items():
        own = [s for s in operations if s.resource.get("disttrace.rank") == rank]
        under = sorted(s.name for s in own if (s.trace, s.parent) == (trace, step))
        assert under == ["inner", "send" if rank == 0 else "recv"]
        (inner,) = [s for s in own if s.name == "inner"]
        reduces = [s for s in own if s.name == "all_reduce"]
        assert sorted((s.trace, s.parent) for s in reduces) == sorted(
            [(trace, inner.span), (job, inner.links[0][1])]
        )
        assert (trace == job) is joins
    (receive,) = [s for s in operations if s.name == "recv"]
    ((trace, sent, _),) = [link for link in receive.links if link[2] == "send"]
    assert (ours[sent].name, ours[sent].trace) == ("send", trace)


def test_traceparent_of_the_environment_is_continued(tmp_path: Path) -> None:
    """The whole job is in the caller's trace, under the caller's span."""
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with serve_grpc(Collector()) as collector:
        more = exporting(tmp_path, collector, "otlp", TRACEPARENT=f"00-{trace}-{span}-01")
        torchrun(ROOT / "examples" / "pingpong.py", 2, **more).check()
        wait_until(lambda: not companions(tmp_path), 40)
    assert {s.trace for s in collector.spans} == {trace}
    (agent,) = [s for s in collector.of("process") if s.name == "agent"]
    assert agent.parent == span


def sent(tmp_path: Path, **variables: str) -> Collector:
    """What a collector has got of a program, when that is over."""
    with serve_grpc(Collector()) as collector:
        more = exporting(tmp_path, collector, "otlp", **variables)
        preloaded(PROGRAMS / "children.py", **more).check()
        wait_until(lambda: not companions(tmp_path), 40)
    return collector


def test_an_unsampled_trace_is_not_sent(tmp_path: Path) -> None:
    """The caller's decision holds for the job."""
    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    collector = sent(tmp_path, TRACEPARENT=header)
    assert collector.spans == []
    assert collector.metrics["disttrace.operations"]


@pytest.mark.parametrize(
    ("sampler", "argument", "is_sent"), [("always_off", "", False), ("traceidratio", "1.0", True)]
)
def test_the_sampler_decides(sampler: str, argument: str, is_sent: bool, tmp_path: Path) -> None:
    """For whole traces; metrics count everything, sampled or not."""
    collector = sent(tmp_path, OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument)
    assert bool(collector.spans) is is_sent
    assert bool(collector.operations()) is is_sent
    counted = sum(point.as_int for point in collector.metrics["disttrace.operations"])
    assert counted > 0
    assert list(tmp_path.iterdir()) == []


def test_opentelemetry_instrument_torchrun(tmp_path: Path) -> None:
    """OpenTelemetry's own command switches tracing on, for the agent and every worker."""
    pytest.importorskip("opentelemetry.distro")
    instrumentors = metadata.entry_points(group="opentelemetry_instrumentor")
    if not any(entry.name == "disttrace" for entry in instrumentors):
        pytest.skip("the installed disttrace has no opentelemetry_instrumentor entry point")
    instrument = Path(sys.executable).parent / "opentelemetry-instrument"
    job = launcher(ROOT / "examples" / "pingpong.py", 2)
    with serve_grpc(Collector()) as collector:
        variables = {
            "DISTTRACE_DIR": str(tmp_path), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_SERVICE_NAME": "trainer", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        run_program([instrument, sys.executable, *job], clean_environ(**variables), 120).check()
        wait_until(lambda: not companions(tmp_path), 40)
    names = sorted(s.name for s in collector.of("process"))
    assert names == ["agent", "rank 0", "rank 1"]
    assert {s.resource["service.name"] for s in collector.operations()} == {"trainer"}


def test_off_is_off(tmp_path: Path) -> None:
    """With OTEL_SDK_DISABLED nothing is sent, and the journals still go."""
    collector = sent(tmp_path, OTEL_SDK_DISABLED="true")
    assert (collector.spans, collector.metrics) == ([], {})
    assert os.listdir(tmp_path) == []


def test_hosts_without_a_shared_id_are_told_what_to_set(tmp_path: Path) -> None:
    """Two agents that share nothing are two traces; with DISTTRACE_JOB they are one."""
    for job, traces in ((None, 2), ("nightly-7", 1)):
        out = tmp_path / str(job)
        with serve_grpc(Collector()) as collector:
            more = exporting(out, collector, "json,otlp", OMP_NUM_THREADS="1")
            if job is not None:
                more["DISTTRACE_JOB"] = job
            port = str(free_port())
            agents = [two_hosts(node, port, more) for node in (0, 1)]
            for agent in agents:
                assert agent.wait(90) == 0
            wait_until(lambda: not companions(out), 40)  # noqa: B023
        assert len({s.trace for s in collector.spans}) == traces
        members = [s for s in collector.operations() if "disttrace.group.id" in s.attributes]
        assert {s.resource["disttrace.rank"] for s in members} == {0, 1}
        assert len({s.attributes["disttrace.group.id"] for s in members}) == 1
        logs = [path.read_text() for path in out.glob("*.log")]
        assert all("set DISTTRACE_JOB" in text for text in logs)
        assert len(logs) == (2 if job is None else 0)


def two_hosts(node: int, port: str, variables: dict[str, Any]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    command += ["--node-rank", str(node), "--nproc-per-node", "1", "--master-port", port]
    command += ["--master-addr", "127.0.0.1", str(ROOT / "examples" / "pingpong.py")]
    return subprocess.Popen(command, env=clean_environ(**variables), stderr=subprocess.DEVNULL)
