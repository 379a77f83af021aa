"""`export --format otlp`: requests as OTLP has them, and findings on the ends of processes."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

import disttrace
from support.journals import MS, S
from support.scenes import steps


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
        inner = ids.sub(lambda m: f'{m[1]}"{base64.b64encode(bytes.fromhex(m[2])).decode()}"', line)
        ParseDict(json.loads(inner), ExportTraceServiceRequest())
    assert {len(one["traceId"]) for one in spans.values()} == {32}
    assert len({one["traceId"] for one in spans.values()}) == 1
    reduces = [one for one in spans.values() if one["name"] == "all_reduce"]
    assert len(reduces) == 4  # two steps of two ranks
    assert sum(len(one.get("links", ())) for one in reduces) == 2  # to rank 0's
    assert {link["spanId"] for one in reduces for link in one.get("links", ())} <= spans.keys()
    assert {one["parentSpanId"] for one in reduces} <= spans.keys()
