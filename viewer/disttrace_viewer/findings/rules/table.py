"""The rules in their order of precedence: an earlier one explains what a later one would blame."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.findings.rules import (
    argument_mismatch,
    deadlock,
    missing_participant,
    no_progress,
    process_failed,
    size_mismatch,
    store_key_missing,
    unmatched,
)

Rule = Callable[[Case], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    argument_mismatch.find,
    size_mismatch.find,
    process_failed.find,
    deadlock.find,
    missing_participant.find,
    unmatched.find,
    store_key_missing.find,
    no_progress.find,
)
