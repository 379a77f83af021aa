"""The rules in their order of precedence: an earlier one explains what a later one would blame."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding
from disttrace_viewer.findings.rules import (
    argument_mismatch,
    communicator_creation,
    deadlock,
    divergence,
    ends,
    groups,
    missing_participant,
    no_progress,
    process_failed,
    rendezvous_claims,
    rendezvous_incomplete,
    reported,
    store_key_missing,
    straggler,
    unmatched,
)

RULES: tuple[Callable[[Case], Iterator[RuleFinding]], ...] = (
    reported.find,
    rendezvous_claims.find_duplicates,
    rendezvous_claims.find_world_sizes,
    rendezvous_claims.find_unreachable,
    argument_mismatch.find,
    argument_mismatch.find_messages,
    groups.find_mismatch,
    groups.find_no_member,
    ends.find_interrupted,
    ends.find_orphaned,
    ends.find_unseen,
    divergence.find_nonfinite,
    process_failed.find,
    rendezvous_incomplete.find,
    rendezvous_incomplete.find_nodes,
    communicator_creation.find,
    no_progress.find_stuck_device,
    deadlock.find,
    missing_participant.find,
    unmatched.find,
    store_key_missing.find,
    no_progress.find,
    ends.find_unexplained,
    divergence.find,
    divergence.find_values,
    divergence.find_unreduced,
    straggler.find_unwaited,
    straggler.find,
)
