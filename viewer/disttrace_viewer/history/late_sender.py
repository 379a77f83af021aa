"""Someone keeps receivers waiting for messages, again and again, before the same line."""

from __future__ import annotations

from collections.abc import Iterator

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.timing import delays
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, Finding
from disttrace_viewer.history.straggler import finding_of, worth_telling


def find(case: Case, exchanges: Exchanges) -> Iterator[Finding]:
    """One warning per process and line; only where nothing is broken."""
    if any(f.severity == ERROR for f in case.findings):
        return
    for delay in delays.late_senders(exchanges):
        if worth_telling(exchanges.trace, delay):
            yield finding_of(exchanges.trace, delay, "late_sender")
