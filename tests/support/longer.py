"""Tests of some seconds that only `make test-all` runs: `make test` stays below 6 minutes.

Each has a sibling that runs every time and goes the same way through the product: another version's
manners, another protocol, the other core, another fault of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGER = (
    "faults/test_standin.py::test_quiet_while_communicators_are_made",
    "faults/test_standin.py::test_what_is_said_where_calls_return_at_once[2.13",
    "faults/test_standin.py::test_what_ddp_issues_through_relays_ends_on_the_device",
    "faults/test_standin.py::test_a_batch_ends_with_its_last[2-2.13]",
    "faults/test_standin.py::test_a_batch_ends_with_its_last[None-",
    "faults/test_slice.py::test_the_right_thing_is_said[faults/ring_deadlock.py",
    "faults/test_slice.py::test_the_right_thing_is_said[faults/slow_loader.py",
    "faults/test_slice.py::test_the_right_thing_is_said[faults/extra_collective.py",
    "faults/test_slice.py::test_the_right_thing_is_said[faults/nodes_rendezvous.py",
    "faults/test_slice.py::test_the_right_thing_is_said[faults/sudden_end.py",
    "faults/test_two_jobs.py::test_a_hang_is_found_behind_the_evaluation",
    "faults/test_drawn.py::test_one_that_fails_is_run_and_told",
    "test_examples.py::test_two_jobs_meet_in_one_all_reduce",
    "test_examples.py::test_fsdp_gathers_and_scatters",
    "test_examples.py::test_an_example_leaves_what_it_promises[four_ranks.py",
    "test_examples.py::test_an_example_leaves_what_it_promises[init_",
    "test_examples.py::test_an_example_leaves_what_it_promises[allreduce_subgroup.py",
    "test_examples.py::test_an_example_leaves_what_it_promises[pingpong.py-plain",
    "test_examples.py::test_an_example_leaves_what_it_promises[ddp.py",
    "viewer/otlp/test_ecosystem.py::test_hosts_without_a_shared_id_are_told_what_to_set",
    "viewer/otlp/test_ecosystem.py::test_the_users_span_is_the_parent[True]",
    "viewer/otlp/test_ecosystem.py::test_the_sampler_decides",
    "viewer/otlp/test_ecosystem.py::test_traceparent_of_the_environment_is_continued",
    "viewer/otlp/test_ecosystem.py::test_opentelemetry_instrument_torchrun",
    "viewer/otlp/test_bad_collectors.py::test_a_program_does_not_notice[",
    "viewer/otlp/test_bad_collectors.py::test_the_exporter_is_nobodys_child",
    "viewer/otlp/test_live.py::test_a_restart_stays_in_the_trace",
    "viewer/otlp/test_faults.py::test_every_end_is_told",
    "lifecycle/test_last_word.py::test_a_stall_that_ends_badly_repeats_its_verdict",
    "lifecycle/test_last_word.py::test_whoever_started_the_ranks_says_it[spawn",
    "lifecycle/test_last_word.py::test_whoever_started_the_ranks_says_it[processes-0]",
    "lifecycle/test_last_word.py::test_whoever_started_the_ranks_says_it[one by one",
    "lifecycle/test_last_word.py::test_the_form_is_that_of_the_settings",
    "lifecycle/test_last_word.py::test_nothing_is_said_where_nobody_wants_to_hear[DISTTRACE_QUIET",
    "lifecycle/test_detached.py::test_a_program_that_waits_for_all_its_children_ends_as_ever[here]",
    "lifecycle/test_exit_hooks.py::test_attempts_stay_apart",
    "lifecycle/test_exit_hooks.py::test_way_out_of_torch_spawn[leaves",
    "lifecycle/test_exit_hooks.py::test_way_out_of_torch_spawn[interrupted",
    "lifecycle/test_exit_hooks.py::test_way_out_of_a_child[spawn-leaves",
    "lifecycle/test_exit_hooks.py::test_way_out_of_a_child[forkserver",
    "lifecycle/test_detached.py::test_what_a_program_becomes_is_told[c]",
    "lifecycle/test_detached.py::test_what_a_program_becomes_is_told[execlpe]",
    "lifecycle/test_gil_free_stacks.py::test_the_program_has_the_signal_if_it_wants_it",
    "viewer/attach/test_recorders.py::test_a_job_that_is_asked_at_a_path_again_and_again_goes_on",
    "viewer/attach/test_recorders.py::test_a_job_that_is_asked_at_a_port_goes_on_to_its_mismatch",
    "viewer/attach/test_attach.py::test_a_job_that_hangs_untraced_is_told_and_goes_on[False]",
    "jobs/test_activation.py::test_children_have_journals_of_their_own[spawn]",
    "jobs/test_activation.py::test_children_have_journals_of_their_own[forkserver]",
    "jobs/test_activation.py::test_a_child_that_imports_torch_itself_is_traced_whole[forkserver]",
    "torch_suite/test_slice.py::test_the_same_outcome_with_and_without_tracing",
    "test_alerts_page.py",
    "test_hang_page.py::test_live",
    "test_foreign.py::test_as_untraced[python-strikes",
    "testing/test_plugin.py::test_the_first_failure_ends_it_where_that_is_wanted",
    "testing/test_check.py::test_a_program_for_cuda_is_rehearsed_on_the_cpu",
    "viewer/states/test_engines.py::test_a_worker_is_killed_in_mid_run[Dask",
    "viewer/states/test_engines.py::test_a_worker_that_reads_for_a_table_is_killed[Dask",
    "test_packaging.py::test_a_wheel_leaves_nothing_in_the_checkout",
    "test_packaging.py::test_an_editable_starts_once",
    "test_benchmarks.py::test_beside_another_version",
    "test_benchmarks.py::test_one_process",
    "test_benchmarks.py::test_a_part[store_operations",
    "test_benchmarks.py::test_a_part[journal_bytes",
    "test_benchmarks.py::test_a_part[peak_memory",
    "test_benchmarks.py::test_a_part[two_processes",
    "test_benchmarks.py::test_the_server_judges_what_clients_send",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[files.background_of_a_terminal]",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[signals.waited_for_by_main]",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[files.started_without_streams]",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[files.errors_into_a_full_pipe]",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[tools.picklers]",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[rows.collector_that_acts]",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[rows.functions_borrowed_and_asked]",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[objects.errors_of_wrong_calls]",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[torch_state.properties_that_raise]",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[rows.finders_and_modules_that_lie]",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[rows.modes_of_torch]",
    "robustness/test_red_team.py::test_a_program_is_what_it_was[children.",
    "robustness/test_trouble.py::test_nothing_is_switched_off_and_nothing_is_lost[written0-python]",
    "lifecycle/test_diverged.py::test_one_flipped_bit_is_told_at_the_next_call_that_is_sampled",
    "capture/test_parity.py::test_compiled_functions_break_where_they_did",
    "capture/test_ddp.py::test_a_pass_that_is_stuck_is_looked_at[python]",
    "capture/test_odd_calls.py::test_arguments_that_raise_whatever_they_are_asked[python]",
    "capture/test_interrupted.py::test_each_try_is_a_wait_of_one_operation[python]",
    "journal/test_shortened.py::test_a_journal_goes_on_after_its_files_were_shortened[python]",
    "viewer/views/test_html.py::test_200000_operations",
    "viewer/views/test_top.py::test_on_a_terminal_it_follows_until_somebody_leaves[raw",
    "viewer/views/test_top.py::test_on_a_terminal_it_follows_until_somebody_leaves[interrupt",
    "viewer/findings/test_losses.py::test_losing_a_file_blames_nobody_else[mismatch",
    "viewer/findings/test_losses.py::test_losing_a_file_blames_nobody_else[ring",
    "viewer/findings/test_losses.py::test_losing_a_file_blames_nobody_else[left_early",
    "viewer/findings/test_drawn.py::test_a_drawn_situation[1",
)
_ALL = 3500
"""Who collects so many tests collects all of them."""


def is_longer(nodeid: str) -> bool:
    """Whether a test is one of these."""
    return nodeid.removeprefix("tests/").startswith(LONGER)


def gone(nodeids: Sequence[str]) -> list[str]:
    """Those of the list that no test bears any more, where all were collected."""
    if len(nodeids) < _ALL:
        return []
    known = [nodeid.removeprefix("tests/") for nodeid in nodeids]
    return [name for name in LONGER if not any(one.startswith(name) for one in known)]
