"""The rules about what is over, in order: they ask tables of all operations, and need Polars."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.findings.rules import late_sender, straggler, unwaited_work

RuleOfHistory = Callable[[Case, Exchanges], Iterator[Finding]]

RULES_OF_HISTORY: tuple[RuleOfHistory, ...] = (
    unwaited_work.find,
    straggler.find,
    late_sender.find,
)
