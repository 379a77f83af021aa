"""The rules in their order of precedence: an earlier one explains what a later one would blame.

Those about what is over come after them all (``history/past.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.findings.rules import (
    argument_mismatch,
    communicator_creation,
    deadlock,
    divergence,
    duplicate_rank,
    ended_unseen,
    group_mismatch,
    interrupted,
    missing_participant,
    no_progress,
    nodes_incomplete,
    not_in_group,
    orphaned,
    process_failed,
    rendezvous_incomplete,
    rendezvous_unreachable,
    reported,
    size_mismatch,
    store_key_missing,
    stuck_device,
    unexplained,
    unmatched,
    value_divergence,
    world_size,
)

Rule = Callable[[Case], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    reported.find,
    duplicate_rank.find,
    world_size.find,
    rendezvous_unreachable.find,
    argument_mismatch.find,
    size_mismatch.find,
    group_mismatch.find,
    not_in_group.find,
    interrupted.find,
    orphaned.find,
    ended_unseen.find,
    process_failed.find,
    rendezvous_incomplete.find,
    nodes_incomplete.find,
    communicator_creation.find,
    stuck_device.find,
    deadlock.find,
    missing_participant.find,
    unmatched.find,
    store_key_missing.find,
    no_progress.find,
    unexplained.find,
    divergence.find,
    value_divergence.find,
)
