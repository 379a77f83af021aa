"""A stall, told to a collector: an event on the spans of who waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disttrace_viewer.companion.export import Export
from disttrace_viewer.companion.service import CompanionLog
from support.collector import SERVE, Collector
from support.journals import MS
from support.orders import order
from support.scenes import steps

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
