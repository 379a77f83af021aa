"""The rules in their order of precedence: an earlier one explains what a later one would blame."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding
from disttrace_viewer.findings.rules import (
    argument_mismatch,
    claims,
    communicator_creation,
    deadlock,
    divergence,
    ended_unseen,
    group_mismatch,
    interrupted,
    missing_participant,
    no_progress,
    not_in_group,
    process_failed,
    rendezvous_incomplete,
    rendezvous_unreachable,
    reported,
    store_key_missing,
    straggler,
    unexplained,
    unmatched,
)

Rule = Callable[[Case], Iterator[RuleFinding]]

RULES: tuple[Rule, ...] = (
    reported.find,
    claims.find_duplicates,
    claims.find_world_sizes,
    rendezvous_unreachable.find,
    argument_mismatch.find,
    argument_mismatch.find_messages,
    group_mismatch.find,
    not_in_group.find,
    interrupted.find,
    interrupted.find_orphaned,
    ended_unseen.find,
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
    unexplained.find,
    divergence.find,
    divergence.find_values,
    divergence.find_unreduced,
    straggler.find_unwaited,
    straggler.find,
)
