"""What must hold of every command and reader for whatever lies in a folder."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from disttrace import cli
from disttrace_viewer.otlp.pipeline import Pipeline
from disttrace_viewer.otlp.sdk import Meters, Tracers
from disttrace_viewer.otlp.spans import Span
from fuzz.mutations import rich

OBEYED = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\x8f\xa8-\xae]")
"""Signs that a terminal, or who reads there, takes for something else than text."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "view": ("view", "--width", "120", "--last", "99999"),
    "diagnose": ("diagnose", "--stall", "1"), "diagnose json": ("diagnose", "--json"),
    "top": ("top", "--once"), "stats": ("stats",), "stats json": ("stats", "--json"),
    "jobs": ("jobs",), "jsonl": ("export", "--format", "jsonl"),
    "perfetto": ("export", "--format", "perfetto"),
    "html": ("export", "--format", "html"),
    "otlp": ("export", "--format", "otlp", "-o", "-"),
}  # fmt: skip
CODES = (0, 1, 2)


class _Stream(io.TextIOWrapper):
    """Standard output in memory, with a buffer as the real one has."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", errors="surrogateescape", write_through=True)

    def content(self) -> bytes:
        self.flush()
        buffer: Any = self.buffer
        found: bytes = buffer.getvalue()
        return found


def run(name: str, folder: Path) -> tuple[int, bytes]:
    """Exit code of a command, and all that it wrote."""
    out, err = _Stream(), _Stream()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([*COMMANDS[name], str(folder)])
    return code, out.content() + err.content()


def command(name: str, folder: Path) -> None:
    """No exception, a known exit code, nothing that a terminal obeys."""
    code, text = run(name, folder)
    assert code in CODES, (name, code)
    assert b"Traceback" not in text, text
    if name != "html":
        found = OBEYED.search(text)
        assert found is None, (name, text[max(0, found.start() - 80) : found.end() + 20])


def neighbours(folder: Path) -> None:
    """The journal that nobody touched is exported whole."""
    code, text = run("jsonl", folder)
    assert code == 0, text
    lines = [orjson.loads(line) for line in text.splitlines() if line.startswith(b"{")]
    whole = sum(1 for line in lines if line["pid"] == 4001)
    assert whole == _whole(), (whole, _whole())


def exporter(folder: Path) -> None:
    """What the live exporter makes of it: all that is in the other journal, and no exception."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import SpanProcessor

    said: list[str] = []
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    emit = Tracers(SpanProcessor()).emit
    spans: list[str] = []

    def both(span: Span) -> None:
        emit(span)
        if span.process.base.startswith("job-host-4001"):
            spans.append(str(span.attributes.get("disttrace.type")))

    pipeline = Pipeline(both, pending_ns=1, say=said.append)
    pipeline.use(Meters(provider.get_meter("fuzz"), pipeline.in_flight))
    for path in sorted(folder.glob("*.defs.jsonl")):
        pipeline.follow(str(folder), path.name.removesuffix(".defs.jsonl"))
    for _ in range(2):
        pipeline.poll()
    pipeline.finish()
    reader.collect()
    provider.shutdown()
    assert spans.count("operation") >= _whole(), spans
    assert not any("any further" in sentence for sentence in said), said
    assert all(sentence.isprintable() for sentence in said), said


_WHOLE: list[int] = []


def _whole() -> int:
    """Operations of the journal that is left alone."""
    if not _WHOLE:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            other = rich(Path(folder))[1]
            _WHOLE.append(other.segments[0].read_bytes().count(b'{"b":'))
    return _WHOLE[0]


CHECKS: dict[str, Callable[[Path], None]] = {
    **{name: (lambda folder, name=name: command(name, folder)) for name in COMMANDS},  # type: ignore[misc]
    "neighbours": neighbours,
    "exporter": exporter,
}


@contextlib.contextmanager
def quiet_environment() -> Iterator[None]:
    """No collector, no colours, no default folder of the caller's."""
    before = dict(os.environ)
    os.environ.update(NO_COLOR="1", COLUMNS="120")
    for name in [n for n in os.environ if n.startswith(("OTEL_", "DISTTRACE_"))]:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
