"""The exporter's parts: reading what is being written (as whole files are read), ids, the lock,
bandwidth, the queue to a collector; spans of what is over; stalls as events.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

import disttrace
from disttrace.journal import proc
from disttrace_viewer.companion.export import Export
from disttrace_viewer.companion.service import CompanionLog, JournalRegistry
from disttrace_viewer.load import ids
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.load.tail import Tail
from disttrace_viewer.otlp.journal import JournalReader
from disttrace_viewer.otlp.sending import Sender
from disttrace_viewer.otlp.target import target
from disttrace_viewer.trace.operation import on_bus
from support.both_readers import batch, differences, streaming
from support.collector import SERVE, Collector
from support.journals import MS, S, workers
from support.orders import order
from support.processes import wait_until
from support.scenes import steps


def test_a_tail_gives_each_line_once(tmp_path: Path) -> None:
    """A line is there when its newline is, however it was written or long; also of a segment that
    is dropped while it is being read.
    """
    path = tmp_path / "segment"
    path.write_bytes(b"one\ntw")
    tail = Tail(str(path))
    assert tail.lines() == [b"one"]
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"o\nthree\n" + b"x" * 3_000_000 + b"\nshort\n")
    path.unlink()
    assert tail.lines() == [b"two", b"three"]
    assert [len(line) for line in tail.lines()] == [3_000_000, 5]
    tail.close()


def test_reserved_space_is_no_line(tmp_path: Path) -> None:
    """NULs are room for what comes; of a process that is gone such a hole is skipped, with the torn
    line around it, and a torn last line stays unread.
    """
    path = tmp_path / "segment"
    path.write_bytes(b"one\nt\0o\n" + bytes(100))
    tail = Tail(str(path))
    assert tail.lines() == [b"one"]
    with path.open("r+b") as file:
        file.seek(5)
        file.write(b"w")
    assert tail.lines() == [b"two"]
    tail.close()
    path.write_bytes(b"one\nt\0\0\nthree\nfo")
    tail = Tail(str(path))
    assert tail.lines() == [b"one"]
    assert tail.lines(final=True) == [b"three"]
    assert tail.lines(final=True) == []
    tail.close()


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (f"00-{'a' * 32}-{'b' * 16}-01", ids.Context("a" * 32, "b" * 16, True)),
        (f"00-{'A' * 32}-{'b' * 16}-02", ids.Context("a" * 32, "b" * 16, False)),
        (f"cc-{'a' * 32}-{'b' * 16}-01-more", ids.Context("a" * 32, "b" * 16, True)),
        (f"ff-{'a' * 32}-{'b' * 16}-01", None), (f"00-{'0' * 32}-{'b' * 16}-01", None),
        (f"00-{'a' * 32}-{'0' * 16}-01", None), ("nonsense", None), (None, None),
    ],
)  # fmt: skip
def test_traceparent(header: str | None, found: ids.Context | None) -> None:
    """As W3C Trace Context defines it."""
    assert ids.parse_traceparent(header) == found


def test_group_ids_tell_apart_what_is_apart() -> None:
    """Place, prefix, n-th creation, members and attempt are all part of it; host names are not."""
    group = {"name": "1", "ranks": [0, 1], "nth": 1}
    store = {"prefix": ["default_pg", "1/"]}
    base = {"type": "TCPStore", "host": "localhost", "port": 29500}

    def found(**changes: object) -> str:
        return ids.group_id(
            {**group, **{k: v for k, v in changes.items() if k in group}},
            {"prefix": changes.get("prefix", store["prefix"])},
            {**base, **{k: v for k, v in changes.items() if k in base}}, process="p",
            attempt=0 if changes.get("attempt") is None else 1, like_named=1,
        )  # fmt: skip

    assert found() == found(host="node-7") == found(name="other")
    different = [
        found(), found(port=29501), found(prefix=["default_pg", "2/"]), found(nth=2),
        found(ranks=[2, 3]), found(attempt=1),
    ]  # fmt: skip
    assert len(set(different)) == len(different)


def locked(path: Path) -> int:
    """The registry as the process that starts an exporter opens it; it names one journal."""
    path.with_name("base.defs.jsonl").touch()
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def test_the_registry_goes_with_its_exporter(tmp_path: Path) -> None:
    """When nobody came meanwhile; else it goes on with the one that found the lock taken."""
    path = tmp_path / "job.otlp"
    registry = JournalRegistry(str(path), locked(path))
    path.write_text("1 2 base\n")
    assert registry.poll() == [proc.Entry(1, "2", "base")]
    assert registry.release()
    assert not path.exists()
    registry = JournalRegistry(str(path), locked(path))
    with path.open("a") as file:
        file.write("1 2 base\n")
    assert not registry.release()
    assert [entry.base for entry in registry.poll()] == ["base"]


def test_a_late_registration_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look and the unlocking: it takes the lock again, on a new file."""
    path = tmp_path / "job.otlp"
    registry = JournalRegistry(str(path), locked(path))
    late = os.open(path, os.O_RDWR | os.O_APPEND)
    unlock = fcntl.flock

    def register_first(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_UN:
            os.write(late, b"1 2 base\n")
        unlock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", register_first)
    assert not registry.release()
    os.close(late)
    assert [entry.base for entry in registry.poll()] == ["base"]
    with pytest.raises(BlockingIOError):
        locked(path)


@pytest.mark.parametrize("kind", ["outside", "parent", "link", "hard link", "pipe", "foreign"])
def test_what_a_stranger_registers_is_neither_read_nor_deleted(tmp_path: Path, kind: str) -> None:
    """A name that leads out of the folder, or to what is not a journal of this user."""
    folder, victim = tmp_path / "out", tmp_path / "victim"
    folder.mkdir()
    victim.mkdir()
    old = victim / "old.defs.jsonl"
    old.write_text('{"def":"process"}\n')
    planted = folder / "x.defs.jsonl"
    base = "x"
    if kind == "outside":
        base = "../victim/old"
    elif kind == "parent":
        base = ".."
    elif kind == "link":
        planted.symlink_to(old)
    elif kind == "hard link":
        planted.hardlink_to(old)
    elif kind == "pipe":
        os.mkfifo(planted)
    else:
        planted.touch()
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(planted, 65534, 65534)
    path = folder / "job.otlp"
    registry = JournalRegistry(str(path), locked(path))
    with path.open("a") as file:
        file.write(f"999999 1 {base}\n1 2 base\n")
    assert [entry.base for entry in registry.poll()] == ["base"]
    assert registry.refused == [base]
    # Even if it were followed: what is not ours stays.
    reader = JournalReader(str(folder), base, owner=os.geteuid())
    list(reader.poll(final=True))
    assert not reader.definitions.process
    reader.delete()
    assert old.exists()
    assert kind not in ("link", "hard link", "pipe", "foreign") or os.path.lexists(planted)


def test_the_exporters_own_journals_are_deleted(tmp_path: Path) -> None:
    """Definitions and segments of this user, and nothing beside them."""
    names = ["x.defs.jsonl", "x.000001.ops.jsonl", "x.000002.ops.jsonl", "y.defs.jsonl"]
    for name in names:
        (tmp_path / name).touch()
    reader = JournalReader(str(tmp_path), "x", owner=os.geteuid())
    list(reader.poll(final=True))
    reader.close()
    reader.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["y.defs.jsonl"]


def test_the_log_keeps_what_is_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users in the collector's address, and headers, which OpenTelemetry quotes in its warnings."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:hunter2@collector:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter3,hunter4")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-key=hunter5")
    path = tmp_path / "log"
    log = CompanionLog(os.open(path, os.O_CREAT | os.O_WRONLY))
    log.write(f"the collector at {(target('TRACES') or '')[1]} does not take spans")
    texts = ("bad: authorization=Bearer%20hunter3,hunter4", "401 for Bearer hunter3", "hunter5")

    def quoting() -> Any:
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        for text in texts:
            logging.getLogger("opentelemetry").warning(text)
        return InMemorySpanExporter()

    quoted: list[str] = []
    Sender(quoting, "", quoted.append).finish()
    assert quoted == ["bad: authorization=***,***", "401 for ***", "***"]
    log.write("cannot resolve http://user:hunter2@collector:4317")
    said = path.read_text()
    assert "hunter" not in said
    assert "http://***@collector:4317" in said


def test_a_process_is_its_pid_and_its_start() -> None:
    """A later process with the same pid is another one."""
    stat = proc.stat("self")
    assert proc.Entry(os.getpid(), proc.mark(stat), "base").lives
    assert not proc.Entry(os.getpid(), proc.mark(stat._replace(ticks=stat.ticks + 1)), "base").lives
    assert not proc.Entry(os.getpid(), f"{stat.ticks}@an earlier boot", "base").lives


@pytest.mark.parametrize(
    ("op", "root", "scale", "factor"),
    [
        ("all_reduce", False, 1, 1.5), ("all_gather_into_tensor", False, 4, 0.75),
        ("reduce_scatter_tensor", False, 1, 0.75), ("all_to_all_single", False, 1, 0.75),
        ("broadcast", False, 1, 1.0), ("scatter", True, 1, 0.75), ("scatter", False, 4, 0.75),
    ],
)  # fmt: skip
def test_bandwidth_of_the_bus(op: str, root: bool, scale: int, factor: float) -> None:
    """For four ranks: size and factor by doc/PERFORMANCE.md of nccl-tests."""
    assert on_bus(op, 4, root=root) == (scale, factor)


NAME = "the collector at here"


class Scripted(SpanExporter):
    """Answers as told, and counts what came."""

    def __init__(self, answer: Callable[[], SpanExportResult]) -> None:
        self.answer = answer
        self.sizes: list[int] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.sizes.append(len(spans))
        return self.answer()


def feed(target: Sender, count: int) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(target)
    tracer = provider.get_tracer("test")
    for _ in range(count):
        tracer.start_span("span").end()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten spans wait at most, five go at once, and little patience at the end."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_BSP_EXPORT_TIMEOUT", "500")


@pytest.mark.usefixtures("quick")
def test_a_collector_that_works_gets_all_in_batches() -> None:
    said: list[str] = []
    exporter = Scripted(lambda: SpanExportResult.SUCCESS)
    target = Sender(lambda: exporter, NAME, said.append)
    feed(target, 23)
    assert target.finish()
    assert (target.sent, target.dropped, said) == (23, 0, [])
    assert sum(exporter.sizes) == 23
    assert max(exporter.sizes) <= 5


@pytest.mark.usefixtures("quick")
def test_beyond_the_bound_spans_are_dropped_counted_and_said_once() -> None:
    """A collector that refuses, then sleeps: the caller goes on, and the sum is what it gave."""
    said: list[str] = []
    answers = threading.Event()
    answers.set()

    def refuse() -> SpanExportResult:
        answers.wait(10)
        return SpanExportResult.FAILURE

    before = threading.active_count()
    target = Sender(lambda: Scripted(refuse), NAME, said.append)
    feed(target, 5)
    wait_until(lambda: target.dropped == 5, 10)
    answers.clear()
    feed(target, 195)
    assert target.dropped >= 200 - 10 - 5
    answers.set()
    wait_until(lambda: target.dropped == 200, 10)
    assert not target.finish()
    assert (target.sent, target.dropped) == (0, 200)
    assert said.count(f"spans are dropped, {NAME} did not take them in time") == 1
    assert said[-1] == f"200 of 200 spans did not reach {NAME}: no answer in time"
    assert len(said) == len(set(said)) <= 3
    wait_until(lambda: threading.active_count() <= before, 10)


@pytest.mark.usefixtures("quick")
def test_a_slow_collector_makes_the_caller_wait_instead() -> None:
    """Nothing is dropped while it takes spans at all."""
    said: list[str] = []
    pause = threading.Event()

    def slowly() -> SpanExportResult:
        pause.wait(0.05)
        return SpanExportResult.SUCCESS

    target = Sender(lambda: Scripted(slowly), NAME, said.append)
    feed(target, 60)
    assert target.finish()
    assert (target.sent, target.dropped, said) == (60, 0, [])


def test_settings_that_the_sdk_refuses_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry's variables are read by the SDK."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "20")
    with pytest.raises(ViewerError, match=r"OTEL_BSP_\*: max_export_batch_size"):
        Sender(lambda: Scripted(lambda: SpanExportResult.SUCCESS), NAME, lambda _: None)


def test_findings_are_events_of_ends(tmp_path: Path) -> None:
    """Of the rank that failed, and of the one that waited for it; not of the third, which left."""
    for journal, group in steps(tmp_path / "job", 3):
        if journal.rank == 1:
            journal.fail(3 * S, "ValueError", "bad batch")
        elif journal.rank == 0:
            journal.begin(journal.collective(group), 200 * MS, q=3)
            journal.define("exit", t=4 * S, how="normal", code=1)
        else:
            journal.define("exit", t=S, how="normal", code=0)
    trace = disttrace.load(tmp_path / "job")
    trace.export(tmp_path / "spans.jsonl", "otlp")
    (told,) = [found for found in trace.findings if found.severity == "error"]
    ids = {process["process"]: process["rank"] for process in trace.processes.to_dicts()}
    concerned = {ids[process] for process in (*told.culprits, *told.waiting)}
    assert 1 in concerned
    ends: dict[str, Any] = {}
    for line in (tmp_path / "spans.jsonl").read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            spans = [one for scope in resource["scopeSpans"] for one in scope["spans"]]
            ends.update({s["name"]: s for s in spans if s["name"].startswith("end of ")})
    assert sorted(ends) == ["end of rank 0", "end of rank 1", "end of rank 2"]
    for rank in range(3):
        events = ends[f"end of rank {rank}"].get("events", [])
        said = [
            {each["key"]: each["value"]["stringValue"] for each in event["attributes"]}
            for event in events
            if event["name"] == "disttrace.verdict"
        ]
        wanted = {
            "disttrace.finding": told.kind, "disttrace.severity": "error",
            "disttrace.certainty": told.certainty, "disttrace.summary": told.summary,
        }  # fmt: skip
        assert said == ([wanted] if rank in concerned else []), rank


def test_a_line_is_a_request_of_otlp(tmp_path: Path) -> None:
    """Ids in hexadecimal, all else as protobuf's own reader of JSON takes it; links find spans."""
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    for journal, _ in steps(tmp_path / "job", 2):
        journal.define("exit", t=S, how="normal", code=0)
    disttrace.load(tmp_path / "job").export(tmp_path / "spans.jsonl", "otlp")
    spans: dict[str, Any] = {}
    for line in (tmp_path / "spans.jsonl").read_text().splitlines():
        request = json.loads(line)
        for resource in request["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                spans |= {span["spanId"]: span for span in scope["spans"]}
        ids = re.compile(r'("(?:traceId|spanId|parentSpanId)": ?)"([0-9a-f]+)"')
        inner = ids.sub(
            lambda m: f'{m[1]}"{urlsafe_b64encode(bytes.fromhex(m[2])).decode()}"', line
        )
        ParseDict(json.loads(inner), ExportTraceServiceRequest())
    assert {len(one["traceId"]) for one in spans.values()} == {32}
    assert len({one["traceId"] for one in spans.values()}) == 1
    reduces = [one for one in spans.values() if one["name"] == "all_reduce"]
    assert len(reduces) == 4  # two steps of two ranks
    assert sum(len(one.get("links", ())) for one in reduces) == 2  # to rank 0's
    assert {link["spanId"] for one in reduces for link in one.get("links", ())} <= spans.keys()
    assert {one["parentSpanId"] for one in reduces} <= spans.keys()


def test_each_kind_of_record_is_read_alike(tmp_path: Path) -> None:
    """Issued, waits, completions, ends, losses, overrides, errors, sources, nesting, segments."""
    rank, other = workers(tmp_path, 2)
    group = rank.world()
    reduce = rank.collective(group)
    later = rank.collective(group, asynchronous=True)
    device = rank.collective(group, asynchronous=True, backend="nccl", device="cuda")
    anywhere = rank.message(group, "recv", None)
    towards = rank.message(group, "send", 1, **{"async": False})
    store = rank.prefix_store(1, "p", "q")
    get = rank.call("store.get", kind="store", store=store, origin="python", **{"async": False})
    many = rank.call("store.wait", kind="store", store=store, origin="c++", **{"async": False})
    step = rank.call("annotate", kind="composed", name="step", **{"async": False})
    kernel = rank.call("all_gather", kind="collective", group=group, backend="gloo", args={"n": 1})
    string = rank.string("RuntimeError: no peer")
    thread = rank.numbered("thread", native=7, name="loader")

    around = rank.begin(step, 1 * MS)
    rank.run(reduce, 2 * MS, 1000, q=1, p=around)
    waited = rank.begin(reduce, 3 * MS, q=2, h=thread, a={"shapes": [[8]], "bytes": 32})
    rank.end(waited, 5000, u=10, v=20)
    rank.end(around, 6 * MS, u=6 * MS)
    issued = rank.issue(later, 7 * MS, q=3, d=5)
    rank.record(w=issued, d=10)
    rank.end(issued, 4000)
    polled = rank.issue(later, 8 * MS, q=4, d=5)
    rank.record(c=polled, d=700)
    then_waited = rank.issue(later, 9 * MS, q=5, d=5)
    rank.record(c=then_waited, d=600)
    rank.record(w=then_waited, d=800)
    rank.end(then_waited, 900)
    on_device = rank.issue(device, 10 * MS, q=1, d=5)
    rank.record(w=on_device, d=9)
    rank.record(c=on_device, d=4000, g=50, z=300)
    dropped = rank.issue(later, 11 * MS, q=6, d=5)
    rank.record(l=dropped, d=100)
    asked = rank.begin(later, 12 * MS, q=7)
    rank.record(l=asked, d=100, o=1)
    seen_then_lost = rank.begin(later, 13 * MS, q=8)
    rank.record(c=seen_then_lost, d=50)
    rank.record(l=seen_then_lost, d=100)
    source = rank.begin(anywhere, 14 * MS)
    rank.record(e=source, d=100, u=5, y=1, q=1, n=16)
    rank.run(towards, 15 * MS, 50, q=1)
    rank.end(rank.begin(reduce, 16 * MS, q=9), 100, u=5, x=string)
    rank.end(rank.begin(reduce, 17 * MS, q=10), 100, x=0, f=1)  # a text that none defined
    rank.record(e=rank.begin(get, 18 * MS, k="key"), d=100, u=10, n=5)
    rank.run(many, 19 * MS, 100, k=["one", "two"])
    rank.run(kernel, 20 * MS, 100, q=1, a={"args": {"more": 2}})
    for last in (False, True):
        again = rank.begin(later, 20 * MS + 1000, q=11)
        rank.record(w=again, d=10)
        rank.record(e=again, d=2000, x=string, r=1)
        rank.record(w=again, d=3000)
        rank.record(e=again, d=4000, **({"x": string, "r": 1} if last else {}))
    pending = {"b": rank.begin(later, 21 * MS, q=11), "t": 21 * MS, "s": later, "q": 11}
    rank.segment(22 * MS, [pending])
    rank.record(i=pending["b"], d=2 * MS)
    rank.begin(999, 23 * MS)  # of a call that nobody defined
    rank.begin(reduce, 24 * MS, q=12)
    other.run(other.collective(other.world()), 2 * MS, 1000, q=1)
    followed, whole = streaming(tmp_path), batch(tmp_path)
    assert len(followed) == 23
    assert differences(followed, whole) == []


SUMMARY = "stalled: Rank 1 never joined all_reduce #3"


@pytest.mark.parametrize("protocol", sorted(SERVE))
@pytest.mark.parametrize("sent", [False, True], ids=["", "sent before"])
def test_a_stall_is_an_event(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sent: bool
) -> None:
    """The pending span has it also where it was sent before."""
    (waits, group), _ = steps(tmp_path, 2, 2)
    waits.begin(waits.collective(group), 200 * MS, q=3)
    with SERVE[protocol](Collector()) as collector:
        for name in [name for name in os.environ if name.startswith("OTEL_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        log = CompanionLog(os.open(os.devnull, os.O_WRONLY))
        sends = order(tmp_path, exports=True, pending_s=0.0 if sent else 1e9)
        export = Export(sends, log, owner=os.getuid())
        export.follow(waits.base.name)
        export.turn()
        (number,) = (operation.number for operation, _ in export.pipeline.in_flight())
        export.stalled(SUMMARY, [[waits.process, number], ["another", 7]])
        export.finish()
    told = [span for span in collector.pending() if span.events]
    event = ("disttrace.stalled", {"disttrace.summary": SUMMARY})
    assert [span.events for span in told] == [(event,)]
    assert len({span.span for span in collector.pending()}) == 1 + sent
