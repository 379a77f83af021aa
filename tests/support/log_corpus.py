"""Logs of jobs on NCCL as torch 2.0 to 2.13 print them, and what is true of each.

Written after the formats that public reports show: what a line says of its group, which ranks print
one at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

LOOSE = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels,"
    " subsequent GPU operations might run on corrupted/incomplete data."
)


@dataclass(frozen=True)
class Excerpt:
    """A log, and the kind, ranks, operation and number of a finding; None: notes at most."""

    name: str
    lines: Sequence[str]
    kind: str | None = None
    culprits: tuple[int, ...] = ()
    op: str | None = None
    seq: int | None = None
    says: str = ""


def work(seq: int, op: str = "ALLREDUCE", elements: int | None = 1024, s: int = 600) -> str:
    """The operation, as a watchdog names it; before 2.1 without its size."""
    size = "" if elements is None else f", NumelIn={elements}, NumelOut={elements}"
    return (
        f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}{size},"
        f" Timeout(ms)={s}000) ran for {s}042 milliseconds before timing out."
    )


def v20(rank: int, seq: int, op: str = "ALLREDUCE") -> list[str]:
    """2.0: no rank before the line, no size, no group."""
    return [
        f"[E ProcessGroupNCCL.cpp:828] [Rank {rank}] {work(seq, op, None)}",
        f"[E ProcessGroupNCCL.cpp:455] {LOOSE}",
    ]


def v21(rank: int, seq: int, op: str = "ALLREDUCE", elements: int = 1024) -> list[str]:
    return [
        f"[E ProcessGroupNCCL.cpp:474] [Rank {rank}] {work(seq, op, elements)}",
        f"[E ProcessGroupNCCL.cpp:488] {LOOSE}",
    ]


def v22(rank: int, seq: int, op: str = "ALLREDUCE", elements: int = 1024) -> list[str]:
    """2.2: the global rank stands before it."""
    return [f"[rank{rank}]:[E ProcessGroupNCCL.cpp:523] [Rank {rank}] {work(seq, op, elements)}"]


def v23(rank: int, seq: int, *, group: str, inner: int) -> list[str]:
    """2.3: groups by a number of the process; counts that were never set are what stood there."""
    head = f"[rank{rank}]:[E ProcessGroupNCCL.cpp"
    return [
        f"{head}:563] [Rank {inner}] {work(seq)}",
        (
            f"{head}:1537] [PG {group} Rank {inner}] Timeout at NCCL work: {seq}, last enqueued"
            f" NCCL work: {seq}, last completed NCCL work: {seq - 1}."
        ),
        (
            f"{head}:1414] [PG {group} Rank {inner}] Process group watchdog thread terminated with"
            f" exception: [Rank {inner}] {work(seq)}"
        ),
    ]


def v25(
    rank: int, seq: int, op: str = "ALLREDUCE", *, group: str,
    inner: int | None = None, elements: int = 1024, enqueued: int | None = None,
) -> list[str]:  # fmt: skip
    """2.4 to 2.6: a time, and the description; 2.5 has a name that holds in all processes."""
    who = rank if inner is None else inner
    head = f"[rank{rank}]:[E909 09:55:46.99667{rank % 10} ProcessGroupNCCL.cpp"
    last = seq if enqueued is None else enqueued
    return [
        f"{head}:607] [Rank {who}] {work(seq, op, elements)}",
        (
            f"{head}:1664] [PG {group} Rank {who}] Exception (either an error or timeout)"
            f" detected by watchdog at work: {seq}, last enqueued NCCL work: {last}, last"
            f" completed NCCL work: {seq - 1}."
        ),
    ]


def v27(
    rank: int, seq: int, op: str = "ALLREDUCE", *, group: str = "ID 0 PG GUID 0(default_pg)",
    inner: int | None = None, elements: int = 1024, enqueued: int | None = None,
    own: bool = True,
) -> list[str]:  # fmt: skip
    """2.7 and later; ``own``: it timed out itself, else it only heard."""
    who = rank if inner is None else inner
    head = f"[rank{rank}]:[E709 17:05:38.16255585{rank % 10} ProcessGroupNCCL.cpp"
    last = seq if enqueued is None else enqueued
    if not own:
        return [
            (
                f"{head}:1922] [PG {group} Rank {who}] Observed flight recorder dump signal from"
                " another rank via TCPStore."
            ),
            (
                f"{head}:1987] [PG {group} Rank {who}] Received a dump signal due to a collective"
                " timeout from  rank 0 and we will try our best to dump the debug info."
                f" Last enqueued NCCL work: {last}, last"
                f" completed NCCL work: {seq}.This is most likely caused by"
                " incorrect usages of collectives, e.g., wrong sizes used across ranks."
            ),
        ]
    return [
        f"{head}:632] [Rank {who}] {work(seq, op, elements)}",
        (
            f"{head}:2271] [PG {group} Rank {who}]  failure detected by watchdog at work"
            f" sequence id: {seq} PG status: last enqueued work: {last},"
            f" last completed work: {seq - 1}"
        ),
        (
            f"{head}:670] Stack trace of the failed collective not found, potentially because"
            " FlightRecorder is disabled."
        ),
    ]


def cause(rank: int, code: int) -> list[str]:
    return [
        "=" * 60, "train.py FAILED", "Root Cause (first observed failure):", "[0]:",
        "  time      : 2026-05-14_10:33:48", "  host      : node-a",
        f"  rank      : {rank} (local_rank: {rank})", f"  exitcode  : {code} (pid: 4711)",
        "  error_file: <N/A>", "=" * 60,
    ]  # fmt: skip


def of(
    ranks: Sequence[int], one: Callable[..., list[str]], *given: object, **how: object
) -> list[str]:
    """The same lines of several ranks."""
    return [line for rank in ranks for line in one(rank, *given, **how)]


ALL = (0, 1, 2, 3)
TP = "ID 2 PG GUID {}(TENSOR_MODEL_PARALLEL_GROUP)"

CORPUS: tuple[Excerpt, ...] = (
    Excerpt(
        "2.0, several operations of each rank, of groups that it does not name",
        [*v20(0, 96120), *v20(0, 96117), *v20(0, 96125), *v20(1, 64088), *v20(1, 96117)],
        "no_progress",
    ),
    Excerpt(
        "2.1, group ranks of two groups in two operations of one number",
        [*v21(0, 7, "_ALLGATHER_BASE"), *v21(1, 7, "_ALLGATHER_BASE"), *v21(2, 7), *v21(3, 7)],
        "no_progress", (),
    ),
    Excerpt(
        "2.2, two numbers, and no word of groups", [*of((0, 1), v22, 610), *of((2, 3), v22, 608)],
        "no_progress", (),
    ),
    Excerpt(
        "2.3, groups by numbers of processes: two groups have one",
        [
            *v23(0, 610, group="1", inner=0), *v23(1, 610, group="1", inner=1),
            *v23(2, 608, group="1", inner=0), *v23(3, 608, group="1", inner=1),
        ],
        "no_progress", (),
    ),
    Excerpt(
        "2.5, launches of messages: numbers of each rank",
        [
            *v25(
                4, 610, "COALESCED", group="ID 2 PG GUID 9", inner=0, elements=56320, enqueued=616
            ),
            *v25(
                6, 607, "COALESCED", group="ID 2 PG GUID 9", inner=1, elements=76800, enqueued=607
            ),
        ],
        "no_progress", (), "coalesced",
    ),
    Excerpt(
        "2.5, one pair of a tensor parallel job hangs, the other waits behind it",
        [
            *v25(0, 88, "_ALLGATHER_BASE", group=TP.format(22), inner=0),
            *v25(1, 88, "_ALLGATHER_BASE", group=TP.format(22), inner=1),
            *v25(2, 86, "_ALLGATHER_BASE", group=TP.format(23), inner=0),
            *v25(3, 86, "_ALLGATHER_BASE", group=TP.format(23), inner=1),
        ],
        "no_progress", (), "all_gather_into_tensor",
    ),
    Excerpt(
        "2.5, one of a tensor parallel pair has not come",
        [
            *v25(6, 88, "_ALLGATHER_BASE", group=TP.format(25), inner=0),
            (
                "[rank7]:[E909 09:55:46.996671 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID"
                " 25(TENSOR_MODEL_PARALLEL_GROUP) Rank 1] Exception (either an error or timeout)"
                " detected by watchdog at work: 87, last enqueued NCCL work: 87, last completed"
                " NCCL work: 87."
            ),
        ],
        "missing_participant", (), "all_gather_into_tensor", 88,
    ),
    Excerpt(
        "2.8, a hang of a pair; in the default group all are equal",
        [
            *v27(0, 809868, "ALLGATHER", group=TP.format(22), inner=0, enqueued=809948),
            *v27(0, 58, own=False), *of((1, 2, 3), v27, 58, own=False),
        ],
        "no_progress", (), "all_gather", 809868,
    ),
    Excerpt(
        "2.9, nothing was ever enqueued", of(ALL, v27, -1, own=False), None,
        says="this log does not show why the job ended",
    ),
    Excerpt(
        "2.13, receives of a pipeline, and a stage that does not send",
        [
            *v27(1, 17, "RECV", group="ID 3 PG GUID 5(PIPELINE_MODEL_PARALLEL_GROUP)", inner=1),
            *v27(2, 12, "RECV", group="ID 3 PG GUID 5(PIPELINE_MODEL_PARALLEL_GROUP)", inner=2),
        ],
        "no_progress", (), "recv",
    ),
    Excerpt(
        "a rank that was killed, by torchrun's word", [*of((0, 1, 2), v27, 40), *cause(3, -9)],
        "process_failed", (3,), says="SIGKILL",
    ),
    Excerpt(
        "torchrun calls first who aborted at its time-out", [*of(ALL, v27, 40), *cause(1, -6)],
        "no_progress", (), "all_reduce", 40,
    ),
)  # fmt: skip
