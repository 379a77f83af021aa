"""Every scenario of the proof: a row says what runs, how it ends, and what has to be seen."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu.proof.about import docstrings
from gpu.proof.checks import (
    Check,
    advised,
    alarmed,
    alive,
    all_over,
    blamed_only_hung,
    ends_once,
    facts_of,
    late_by_three,
    never_complete,
    no_context_by_asking,
    no_note,
    noted,
    one_open,
    quiet,
    returned_at_once,
    still_open,
    told_as_start,
    verdict,
)
from gpu.proof.checks_against_plain import (
    captures,
    costs,
    gpu_0_memory,
    raised,
    same_block,
    same_end,
    same_words,
    shares,
)


@dataclass(frozen=True)
class Scenario:
    """``hangs``: it is observed, and then ended from outside; else it ends by itself.

    ``fault``: whether its program has a fault in it; the counter-test runs it the other way round
    (no fault, or one that the checks must see). ``needs``: what there has to be: ``cuda``, ``gpus``
    (two), ``nccl2``, ``shrink``, ``kernels`` that compute, ``device_errors``. ``cuda_checks`` are
    not for the stand-in.
    """

    name: str
    checks: tuple[Check, ...]
    program: str = ""  # of programs/; its name where nothing else is said
    hangs: bool = False
    fault: bool | None = None  # None: as it hangs
    world: int = 2
    needs: str = ""
    cuda_checks: tuple[Check, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    standin: dict[str, str] = field(default_factory=dict)  # variables there
    by_env: bool = False  # its fault is in its variables: the counter-test runs without
    timeout: float = 1800.0  # of its groups, in seconds
    observe: float = 7.0
    baseline: bool = False
    alone: bool = False  # timings: nothing else runs meanwhile
    first_ends: bool = False  # the others are ended when rank 0 has
    any_code: bool = False

    @property
    def about(self) -> str:
        return " ".join((docstrings().get(self.program or self.name) or "").split()).split(". ")[0]

    @property
    def faulty(self) -> bool:
        """Whether its program has a fault in it."""
        return self.hangs if self.fault is None else self.fault


MISSING = verdict("missing_participant", culprits=([1],))
HEALTHY = (quiet, all_over)
_MODE = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_QUICK = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "200", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
_SMALL = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "50", "TORCH_FR_BUFFER_SIZE": "50"}
_OFF = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_BUFFER_SIZE": "0"}
_NCCL2 = {"STANDIN_TORCH": "2.15"}
_CUDA = {"STANDIN_DEVICE": "1"}
_IMPATIENT = {"DISTTRACE_STALL": "3"}


def _slow(how: str) -> dict[str, str]:
    return {"STANDIN_CREATION_S": "6", "STANDIN_COMMUNICATORS": how}


def _aborted(name: str, mode: int, *checks: Check, **more: object) -> Scenario:
    """The group's time-out, or a broken connection, in one of the watchdog's modes."""
    row = {
        "program": "watchdog", "fault": True, "timeout": 6.0, "baseline": True, "first_ends": True,
        "any_code": True, **more,
    }  # fmt: skip
    env = {**_QUICK, _MODE: str(mode)}
    return Scenario(name, checks, env=env, **row)  # type: ignore[arg-type]


MEASURED = (
    Scenario("probe", (facts_of("torch", "backend_type", "dump", "dump_ms"),), world=1,
             needs="cuda", cuda_checks=(no_context_by_asking,), alone=True),
    Scenario("behind", (quiet, shares, all_over, no_note), world=1, needs="cuda", baseline=True,
             alone=True),
    Scenario("rate_1000", (*HEALTHY, costs(0, 0, judged=False)), program="rate", world=1,
             cuda_checks=(costs(0.03, 5),), baseline=True, alone=True,
             env={"KIT_RATE": "1000"}),
    Scenario("rate_5000", (*HEALTHY, costs(0, 0, judged=False)), program="rate", world=1,
             cuda_checks=(costs(0.06, 5),), baseline=True, alone=True,
             env={"KIT_RATE": "5000"}, standin={"KIT_RATE": "2000"}),
    Scenario("one_f_one_b", (*HEALTHY, costs(0, 0, judged=False)), cuda_checks=(costs(0.06, 5),),
             baseline=True, alone=True),
)  # fmt: skip
HEALTHY_JOBS = (
    Scenario("healthy", (*HEALTHY, ends_once, no_note)),
    Scenario("healthy_nccl2", (*HEALTHY, ends_once, no_note), program="healthy", needs="nccl2",
             standin=_NCCL2),
    Scenario("uneven", HEALTHY),
    Scenario("ddp", (*HEALTHY, ends_once)),
    Scenario("fsdp1", HEALTHY),
    Scenario("fsdp2", HEALTHY),
    Scenario("tensor_parallel", HEALTHY),
    Scenario("mesh", HEALTHY, world=4),
    Scenario("pipeline", HEALTHY),
    Scenario("late", (all_over, late_by_three), fault=True),
    Scenario("timing", (all_over, late_by_three), program="late", fault=True,
             env={"TORCH_NCCL_ENABLE_TIMING": "1"}),
    Scenario("detail", HEALTHY, program="healthy", needs="cuda",
             env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    Scenario("quiet", HEALTHY, cuda_checks=(gpu_0_memory,), alone=True),
    Scenario("graph", (captures, all_over), baseline=True, needs="cuda", any_code=True),
    Scenario("foreign", (*HEALTHY, no_note), standin=_CUDA),
    Scenario("replays", HEALTHY, standin=_CUDA),
    Scenario("reduce_overhead", HEALTHY, needs="kernels"),
    Scenario("live_graph", (same_block, verdict("no_progress", culprits=([],)), advised("reset()")),
             needs="cuda", baseline=True, hangs=True, observe=12.0),
    Scenario("recorder_off", (quiet, noted("flight recorder is off")), program="healthy",
             env=_OFF, by_env=True),
    # Communicators that take long, each way of making them.
    Scenario("slow_lazy", (quiet, all_over), program="communicators", env=_IMPATIENT,
             standin=_slow("lazy")),
    Scenario("slow_told", (told_as_start,), program="communicators", env=_IMPATIENT, needs="standin",
             standin=_slow("lazy")),
    Scenario("slow_two_minutes", (*HEALTHY, told_as_start), program="first_call", needs="standin",
             standin={"STANDIN_CREATION_S": "120"}),
    Scenario("slow_eager", (quiet, all_over), program="communicators",
             env={**_IMPATIENT, "KIT_COMMUNICATORS": "eager"}, standin=_slow("eager")),
    Scenario("slow_nonblocking", (quiet, all_over), program="communicators",
             env={**_IMPATIENT, "TORCH_NCCL_USE_COMM_NONBLOCKING": "1"},
             standin=_slow("nonblocking")),
    Scenario("split", (quiet, all_over), needs="cuda",
             env={**_IMPATIENT, "KIT_COMMUNICATORS": "eager"}),
)  # fmt: skip
HANGS = (
    Scenario("missing", (MISSING, alive, returned_at_once, one_open("all_reduce")), hangs=True,
             baseline=True),
    Scenario("missing_nccl2", (MISSING, one_open("all_reduce")), program="missing", hangs=True,
             needs="nccl2", standin=_NCCL2),
    Scenario("missing_2_5", (MISSING, one_open("all_reduce")), program="missing", hangs=True,
             needs="standin", standin={"STANDIN_TORCH": "2.5"}),
    Scenario("missing_sync", (MISSING, alive, returned_at_once), needs="cuda", hangs=True,
             baseline=True),
    Scenario("missing_free", (MISSING, alive, returned_at_once), needs="cuda", hangs=True,
             baseline=True),
    Scenario("told", (alarmed, MISSING), program="missing", hangs=True, env=_IMPATIENT,
             observe=9.0),
    Scenario("gpus", (MISSING,), program="missing", hangs=True, world=4, needs="gpus"),
    Scenario("desync", (MISSING, one_open("all_reduce")), program="missing", hangs=True,
             env={"TORCH_NCCL_DESYNC_DEBUG": "1"}),
    Scenario("order", (verdict("deadlock", culprits=([],)),), hangs=True),
    Scenario("other_op", (verdict("op_mismatch", culprits=([],)),), hangs=True),
    Scenario("never_waited", (still_open, verdict("missing_participant", "unwaited_work",
             culprits=([1], [0]))), hangs=True),
    Scenario("send", (verdict("unmatched_send", culprits=([1], [])), one_open("send")), hangs=True),
    Scenario("batch", (verdict("missing_participant", "unmatched_send", "unmatched_recv",
             culprits=([1], [])), still_open), hangs=True),
    Scenario("batch_nccl2", (verdict("missing_participant", "unmatched_send", "unmatched_recv",
             culprits=([1], [])), still_open), program="batch", hangs=True, needs="nccl2",
             standin=_NCCL2),
    Scenario("replay_hangs", (MISSING, one_open("graph_replay")), program="replays", hangs=True,
             standin=_CUDA),
    Scenario("never_came", (MISSING, alarmed), program="communicators", hangs=True,
             env=_IMPATIENT, standin=_slow("lazy"), observe=10.0),
    Scenario("never_came_ten", (MISSING, alarmed), program="communicators", hangs=True,
             standin=_slow("lazy"), observe=16.0),
    Scenario("killed", (verdict("process_failed", culprits=([1],)),), hangs=True, observe=9.0),
    Scenario("evicted", (still_open, MISSING), hangs=True, observe=5.0, env=_SMALL),
    Scenario("threads", (blamed_only_hung,), hangs=True, needs="cuda", observe=4.0),
)  # fmt: skip
ABORTS = (
    _aborted("mode_0", 0, MISSING, never_complete, hangs=True, observe=9.0, first_ends=False,
             baseline=False),
    _aborted("mode_1", 1, same_end, never_complete),
    _aborted("mode_2", 2, same_end, never_complete),
    _aborted("mode_3", 3, same_end, never_complete),
    _aborted("mode_2_without_errors", 2, never_complete, needs="standin", baseline=False,
             standin={"STANDIN_TORCH": "2.5"}),
    _aborted("peer_killed", 2, never_complete, program="peer_killed", timeout=60.0,
             standin={"STANDIN_NOTICES": "1"}, baseline=False),
    _aborted("peer_killed_mode_1", 1, same_end, never_complete, program="peer_killed",
             timeout=60.0, standin={"STANDIN_NOTICES": "1"}),
    Scenario("blocking", (raised, same_end, ends_once), fault=True, timeout=6.0, baseline=True,
             first_ends=True, any_code=True, env={"TORCH_NCCL_BLOCKING_WAIT": "1"}),
    Scenario("abort", (never_complete,), fault=True, any_code=True, first_ends=True),
    Scenario("shrink", (never_complete,), fault=True, any_code=True, first_ends=True,
             needs="shrink"),
    Scenario("device_assert", (same_end, same_words), fault=True, baseline=True, any_code=True,
             first_ends=True, world=1, env=_QUICK, standin=_CUDA, needs="device_errors"),
    Scenario("illegal_access", (same_end, same_words), fault=True, baseline=True, any_code=True,
             first_ends=True, world=1, env=_QUICK, standin=_CUDA, needs="device_errors"),
)  # fmt: skip
SCENARIOS = (*MEASURED, *HEALTHY_JOBS, *HANGS, *ABORTS)
