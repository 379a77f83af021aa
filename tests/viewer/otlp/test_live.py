"""A job that runs with DISTTRACE_EXPORT=otlp is in the collector, whole, soon after its end."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace_viewer.api import load
from support.collector import SERVE, Collector, Received, exporting, serve_grpc
from support.preloaded import torchrun
from support.processes import clean_environ, companions, launcher, python, running, wait_until

PROGRAMS = Path(__file__).parent / "programs"
RANKS = 4


def settings(directory: Path, collector: Collector, protocol: str, **more: str) -> dict[str, Any]:
    """Variables that send a job to ``collector``."""
    more["OTEL_EXPORTER_OTLP_PROTOCOL"] = protocol
    return exporting(directory, collector, "json,otlp", **more)


def over(directory: Path, timeout: float = 30.0) -> None:
    """Wait until the exporter of ``directory`` has ended."""
    wait_until(lambda: not companions(directory), timeout)


def journalled(directory: Path) -> set[str]:
    found = set()
    for path in directory.glob("*.ops.jsonl"):
        process = path.name.split(".")[0].rpartition("-")[2][:8]
        for line in path.read_bytes().splitlines():
            if line.startswith(b'{"b":'):
                found.add(f"{process}.{orjson.loads(line)['b']}")
    return found


def certificate(directory: Path) -> tuple[Path, Path]:
    key, found = directory / "key.pem", directory / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(found), "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return key, found


PROTOCOLS = [
    pytest.param("grpc", id="grpc"),
    # That everything arrives is the same code; how is held by the hang below.
    pytest.param("http/protobuf", id="http", marks=pytest.mark.long),
]


@pytest.fixture(scope="module", params=PROTOCOLS)
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Collector, Path]]:
    """A 4-rank job sent over TLS with headers, by each protocol."""
    folder = tmp_path_factory.mktemp("job")
    key, found = certificate(folder)
    out = folder / "out"
    with SERVE[request.param](Collector(), (key, found)) as collector:
        variables = settings(
            out, collector, request.param, OTEL_EXPORTER_OTLP_CERTIFICATE=str(found),
            OTEL_EXPORTER_OTLP_HEADERS="x-team=alpha",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
            OTEL_SERVICE_NAME="trainer",
        )  # fmt: skip
        torchrun(PROGRAMS / "everything.py", RANKS, **variables).check()
        over(out)
        yield collector, out


def test_every_operation_is_one_span(job: tuple[Collector, Path]) -> None:
    """The operations in the journals and the final spans of operations are the same."""
    collector, out = job
    operations = [span.attributes["disttrace.operation.id"] for span in collector.operations()]
    assert sorted(operations) == sorted(journalled(out))
    # Agent and ranks are in one trace, every id is unique, and every parent is there.
    ids = [span.span for span in collector.spans]
    assert len({span.trace for span in collector.spans}) == 1
    assert len(ids) == len(set(ids))
    assert [s.name for s in collector.spans if s.parent and s.parent not in ids] == []


def test_every_receive_links_to_its_send(job: tuple[Collector, Path]) -> None:
    """Also the one from any source: the link leads to a send towards this rank."""
    collector, _ = job
    spans = {span.span: span for span in collector.spans}
    receives = [s for s in collector.operations() if s.attributes["disttrace.op"] == "recv"]
    assert len(receives) == 4
    for receive in receives:
        ((_, sent, _),) = [link for link in receive.links if link[2] == "send"]
        send = spans[sent]
        assert send.attributes["disttrace.op"] == "send"
        assert send.attributes["disttrace.peer.rank"] == receive.resource["disttrace.rank"]
        assert send.attributes["disttrace.seq"] == receive.attributes["disttrace.seq"]


def test_members_of_a_collective_link_to_its_first(job: tuple[Collector, Path]) -> None:
    """To the span of group rank 0, which all other members can tell."""
    collector, _ = job
    spans = {span.span: span for span in collector.operations()}
    sizes: Counter[str] = Counter()
    for span in spans.values():
        for _, target, meaning in span.links:
            if meaning == "exchange":
                first = spans[target]
                assert first.attributes["disttrace.group.rank"] == 0
                for name in ("op", "seq", "group.id"):
                    key = f"disttrace.{name}"
                    assert first.attributes[key] == span.attributes[key]
                sizes[target] += 1
    reduces = sorted(n + 1 for target, n in sizes.items() if spans[target].name == "all_reduce")
    assert reduces == [2, 2, 4, 4, 4, 4, 4]


def test_a_group_has_one_id_everywhere(job: tuple[Collector, Path]) -> None:
    """In spans, in the journals as they are read for ``jsonl`` and for findings."""
    collector, out = job
    spans = {s.attributes.get("disttrace.group.id") for s in collector.operations()} - {None}
    assert spans == {*load(out).groups["group"]}


def test_the_tree_is_agent_ranks_operations(job: tuple[Collector, Path]) -> None:
    """Ranks stand under the agent, operations under ranks or what is composed around them."""
    collector, _ = job
    roots = {span.name: span for span in collector.of("process")}
    assert sorted(roots) == ["agent", "rank 0", "rank 1", "rank 2", "rank 3"]
    assert {roots[f"rank {r}"].parent for r in range(RANKS)} == {roots["agent"].span}
    epochs = [s for s in collector.operations() if s.name == "epoch"]
    assert len(epochs) == RANKS
    for epoch in epochs:
        inner = [s for s in collector.operations() if s.parent == epoch.span]
        assert [s.name for s in inner] == ["all_reduce"] * 4
    ends = {s.name: s.attributes["disttrace.process.state"] for s in collector.of("end")}
    assert set(ends.values()) == {"exited"}


def test_the_environment_is_honoured(job: tuple[Collector, Path]) -> None:
    """Headers, service name and resource attributes come from the standard variables."""
    collector, _ = job
    assert {headers.get("x-team") for headers in collector.headers} == {"alpha"}
    for span in collector.spans:
        assert span.resource["service.name"] == "trainer"
        assert span.resource["deployment.environment.name"] == "test"
    ranks = {s.resource.get("disttrace.rank") for s in collector.spans}
    assert ranks == {None, 0, 1, 2, 3}
    assert {s.resource["disttrace.world_size"] for s in collector.of("process") if s.parent} == {4}


def test_metrics_count_what_spans_show(job: tuple[Collector, Path]) -> None:
    """The newest counter values add up to the number of operations."""
    collector, _ = job
    newest = {}
    for point in collector.metrics["disttrace.operations"]:
        key = tuple(sorted((a.key, str(a.value)) for a in point.attributes))
        newest[key] = point.as_int
    assert sum(newest.values()) == len(collector.operations())
    assert "disttrace.operation.duration" in collector.metrics


def test_afterwards_gives_the_same_spans(job: tuple[Collector, Path], tmp_path: Path) -> None:
    """``disttrace export --format otlp`` has the ids, parents and links of the live export."""
    collector, out = job
    target = tmp_path / "spans.jsonl"
    python("-m", "disttrace", "export", str(out), "--format", "otlp", "-o", target).check()
    spans = [
        span
        for line in target.read_bytes().splitlines()
        for group in orjson.loads(line)["resourceSpans"]
        for scope in group["scopeSpans"]
        for span in scope["spans"]
    ]
    live = {
        (s.trace, s.span, s.parent, s.name, tuple(sorted(link[1] for link in s.links)))
        for s in collector.spans
    }
    later = {
        (
            s["traceId"], s["spanId"], s.get("parentSpanId", ""), s["name"],
            tuple(sorted(link["spanId"] for link in s.get("links", ()))),
        )
        for s in spans
    }  # fmt: skip
    assert later == live
    # Without ``-o`` the spans go to the collector that the variables name.
    with serve_grpc(Collector()) as second:
        command = ("-m", "disttrace", "export", str(out), "--format", "otlp")
        outcome = python(*command, OTEL_EXPORTER_OTLP_ENDPOINT=second.endpoint).check()
        assert f"{len(collector.spans)} spans sent" in outcome.stderr
        assert {s.span for s in second.spans} == {s.span for s in collector.spans}


@pytest.mark.parametrize(
    "protocol", [pytest.param("grpc", marks=pytest.mark.long), "http/protobuf"]
)
def test_a_hang_is_visible_while_it_hangs(protocol: str, tmp_path: Path) -> None:
    """The pending spans of a hung collective arrive before the job is killed, the final after."""
    out = tmp_path / "out"
    with SERVE[protocol](Collector()) as collector:
        variables = settings(out, collector, protocol, DISTTRACE_PENDING="0.5")
        command = [sys.executable, *launcher(PROGRAMS / "hang.py", 2)]
        with running(command, tmp_path / "said", clean_environ(**variables)) as process:
            wait_until(lambda: named(collector.pending(), "all_reduce (pending)"), 40)
            process.terminate()
            process.wait(30)
        (pending,) = named(collector.pending(), "all_reduce (pending)")
        assert pending.resource["disttrace.rank"] == 0
        assert pending.end - pending.start >= 500_000_000
        (around,) = named(collector.pending(), "train_step (pending)")
        assert pending.parent == around.span
        assert around.parent in {s.span for s in collector.of("process")}
        over(out)
        (final,) = named(collector.operations(), "all_reduce")
        assert pending.attributes["disttrace.replaced_by"] == final.span
        assert (final.attributes["disttrace.status"], final.status) == ("in_flight", 2)


def named(spans: list[Received], name: str) -> list[Received]:
    return [span for span in spans if span.name == name]


def test_a_restart_stays_in_the_trace(tmp_path: Path) -> None:
    """Both attempts of a job are in one trace, told apart by their resource, with no id twice."""
    program = tmp_path / "restart.py"
    program.write_text(
        "import os, torch, torch.distributed as dist\n"
        # A prefix per attempt: torch 2.13 alone meets the addresses of the attempt before.
        "attempt, port = os.environ['TORCHELASTIC_RESTART_COUNT'], int(os.environ['MASTER_PORT'])\n"
        "store = dist.PrefixStore(attempt, dist.TCPStore('127.0.0.1', port, 2, False))\n"
        "rank = int(os.environ['RANK'])\n"
        "dist.init_process_group('gloo', store=store, rank=rank, world_size=2)\n"
        "dist.all_reduce(torch.ones(1))\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and dist.get_rank() == 0:\n"
        "    raise SystemExit(3)\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    out = tmp_path / "out"
    with serve_grpc(Collector()) as collector:
        variables = settings(out, collector, "grpc")
        torchrun(program, 2, options=("--max-restarts", "1"), **variables).check()
        over(out)
    ids = [span.span for span in collector.spans]
    assert len(ids) == len(set(ids))
    assert len({span.trace for span in collector.spans}) == 1
    reduces = named(collector.operations(), "all_reduce")
    assert sorted(s.resource["disttrace.attempt"] for s in reduces) == [0, 0, 1, 1]
    links = [link for span in reduces for link in span.links if link[2] == "exchange"]
    assert len(links) == 2
    assert {target for _, target, _ in links} < {*ids}
