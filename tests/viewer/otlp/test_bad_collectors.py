"""A collector that is down, slow, refusing or rude changes nothing for the program."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.collector import Collector, exporting, serve_grpc, serve_http
from support.preloaded import preloaded, torchrun
from support.processes import ROOT, Outcome, companions, python, wait_until

PROGRAMS = Path(__file__).parent / "programs"
BOUND = 45.0
"""Seconds after which the exporter has given up a collector that never takes anything."""
SOON: dict[str, Any] = {"OTEL_BSP_EXPORT_TIMEOUT": "1000", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
"""Give up after two seconds."""


@contextlib.contextmanager
def down(protocol: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{probe.getsockname()[1]}"


@contextlib.contextmanager
def silent(protocol: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def refusing(protocol: str) -> Iterator[str]:
    serve = serve_grpc if protocol == "grpc" else serve_http
    with serve(Collector(refuse=True)) as collector:
        yield collector.endpoint


BAD: dict[str, Callable[[str], Any]] = {
    "down": down, "silent": silent, "refusing": refusing,
}  # fmt: skip


def loader(out: Path, protocol: str, endpoint: str, **more: Any) -> Outcome:
    """The DataLoader program with two ranks, exported to ``endpoint``."""
    return torchrun(
        PROGRAMS / "loader.py", 2, DISTTRACE="1", DISTTRACE_DIR=str(out), DISTTRACE_EXPORT="otlp",
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **more,
    )  # fmt: skip


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("kind", sorted(BAD))
def test_a_program_does_not_notice(kind: str, protocol: str, tmp_path: Path) -> None:
    """Forking DataLoader included: same output, exit code 0; the loss is counted, in one place."""
    with BAD[kind](protocol) as endpoint:
        outcome = loader(tmp_path, protocol, endpoint, **SOON).check()
        assert outcome.stdout.splitlines() == ["total 112.0"] * 2
        wait_until(lambda: not companions(tmp_path), BOUND)
    (log,) = tmp_path.iterdir()
    sentences = log.read_text().splitlines()
    dropped = [s for s in sentences if "spans did not reach the collector at" in s]
    assert len(dropped) == 1
    count, total = dropped[0].split(" spans")[0].split(" of ")
    assert count == total
    assert int(total) > 30
    assert len(sentences) == len(set(sentences)) <= 3


def test_exit_is_not_delayed(tmp_path: Path) -> None:
    """The shortest of several counts: a delay that is ours is in all of them."""
    program = tmp_path / "exit.py"
    program.write_text(
        "import atexit, time, torch.distributed as dist\n"
        "store = dist.HashStore()\n"
        "for i in range(100): store.set(str(i), 'x')\n"
        "import os; os.write(1, str(time.time()).encode())\n"
    )

    def ending(export: str) -> float:
        with silent("grpc") as endpoint:
            outcome = preloaded(
                program, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / "out"),
                DISTTRACE_EXPORT=export, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **SOON,
            ).check()  # fmt: skip
            return time.time() - float(outcome.stdout)

    plain, exported = [ending("json")], [ending("json,otlp")]
    while min(exported) - min(plain) >= 0.2 and len(exported) < 10:
        plain.append(ending("json"))
        exported.append(ending("json,otlp"))
    assert min(exported) - min(plain) < 0.2
    wait_until(lambda: not companions(tmp_path / "out"), BOUND)


def test_the_exporter_is_nobodys_child(tmp_path: Path) -> None:
    """``waitpid(-1)`` finds no child, nothing of OpenTelemetry is imported."""
    with serve_grpc(Collector()) as collector:
        variables = exporting(tmp_path, collector, "otlp")
        outcome = python(PROGRAMS / "children.py", **variables).check()
        assert outcome.stdout.splitlines() == ["no child", "own child True", "imported []"]
        wait_until(lambda: not companions(tmp_path), BOUND)
        assert len(collector.of("end")) == 1


def test_a_missing_package_is_one_sentence(tmp_path: Path) -> None:
    """Without the extra the program runs on, the journal stays, and a sentence names the extra."""
    hidden = tmp_path / "path" / "opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("")
    out = tmp_path / "out"
    outcome = python(
        PROGRAMS / "children.py", DISTTRACE="1", DISTTRACE_DIR=str(out), DISTTRACE_EXPORT="otlp",
        PYTHONPATH=os.pathsep.join((str(hidden.parent), str(ROOT), str(ROOT / "viewer"))),
    ).check()  # fmt: skip
    wait_until(lambda: not companions(out), BOUND)
    assert "own child True" in outcome.stdout
    (log,) = out.glob("*.log")
    assert "pip install 'disttrace[otlp]'" in log.read_text()
    assert list(out.glob("*.defs.jsonl"))
