"""The table of faults: every run, and what must be said about it.

Rows of the same number are variants: another world size, another culprit, a subgroup, a later step,
a deeper call stack. Markers are comments in the programs (`# <- L1`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from faults.expectation import NOBODY, NODES, Expected, Row


def row(number: int, program: str, *expected: Expected, **keys: Any) -> Row:
    """A run; a program of a fault lies below ``faults/``."""
    below = "" if number == 0 or "/" in program.split()[0] else "faults/"
    return Row(number=number, program=below + program, expected=expected, **keys)


def said(
    kinds: str, culprits: tuple[int, ...], lines: str | Mapping[int, tuple[str, ...]] = "",
    *words: str, waiting: tuple[int, ...] | None = None, or_else: tuple[int, ...] | None = None,
) -> Expected:  # fmt: skip
    """A finding of one of the kinds (``a|b``), with markers by rank: ``0:L1 1:L2a|L2b``."""
    if isinstance(lines, str):
        marks = (one.split(":") for one in lines.split())
        lines = {int(rank): tuple(names.split("|")) for rank, names in marks}
    sets = (culprits,) if or_else is None else (culprits, or_else)
    of, said = tuple(kinds.split("|")), {"waiting": waiting, "lines": lines, "words": words}
    return Expected(kinds=of, culprits=sets, **said)  # type: ignore[arg-type]


# Everybody else is only ever a consequence: no row tolerates another finding without saying why.
EXTRA_COLLECTIVE = (
    row(1, "extra_collective.py", said("op_mismatch", (0,), "0:L1 1:L2 2:L2"), fixed_slice=True),
    row(1, "extra_collective.py --extra barrier --step 0",
        said("op_mismatch", NOBODY, "0:L1w 1:L2"), world=2),
    row(1, "extra_collective.py --culprit 3 --group 1,2,3 --extra broadcast --deep 6",
        said("op_mismatch", (3,), "3:L1b 1:L2 2:L2"), world=4),
    row(1, "extra_collective.py --extra all_reduce",
        said("missing_participant", NOBODY, "0:L2 1:L3 2:L3", "one more call", waiting=(0,))),
    row(1, "extra_collective.py --extra all_reduce --then end",
        said("missing_participant", NOBODY, "0:L2", "one more call"), ends="either"),
)  # fmt: skip

SLOW_LOADER = (
    row(2, "slow_loader.py",
        said("missing_participant", (2,), "2:L1 0:L2 1:L2", waiting=(0, 1)), fixed_slice=True),
    row(2, "slow_loader.py --culprit 0 --op broadcast --step 3",
        said("missing_participant", (0,), "0:L1 1:L2b", waiting=(1,)), world=2),
    row(2, "slow_loader.py --culprit 2 --group 1,2,3 --op async --deep 5",
        said("missing_participant", (2,), "2:L1 1:L2i|L2a 3:L2i|L2a"), world=4),
    # both lines are of the loop
    row(2, "slow_loader.py --where loop --culprit 1 --op barrier",
        said("missing_participant", (1,), "1:L1b|L1c 0:L2w", waiting=(0, 2))),
    row(2, "slow_loader.py --where exit", said("missing_participant", (2,), "0:L2"), ends="either"),
    row(2, "slow_loader.py --op unwaited",
        said("missing_participant", (2,), "2:L1 0:L2u", waiting=(0, 1))),
    # gloo may close the connections then
    row(2, "slow_loader.py --where destroy --op all_gather",
        said("missing_participant", (2,), "2:L1d 0:L2g"), ends="either"),
    row(2, "slow_loader.py --culprit 1",
        said("missing_participant", (1,), "1:L1 0:L2 2:L2", waiting=(0, 2)), torchrun=True),
)  # fmt: skip

SERVER = tuple(
    row(2, f"server.py --waits queue --broken {broken}",
        said("missing_participant", (culprit,), f"{culprit}:{marker}"))
    for broken, culprit, marker in (("line", 0, "line"), ("lock", 0, "lock"), ("others", 2, "away"))
)  # fmt: skip
UNEVEN_BATCHES = (
    row(3, "uneven_batches.py",
        said("missing_participant", (1,), "1:L1 0:L2 2:L2", "join", waiting=(0, 2))),
    row(3, "uneven_batches.py --then end --culprit 0",
        said("missing_participant", (0,), "1:L2"), ends="either"),
    row(3, "uneven_batches.py --then barrier --group 1,2,3",
        said("op_mismatch", (1,), "1:L1w 2:L2"), world=4),
    row(3, "uneven_batches.py --then barrier", said("op_mismatch", NOBODY, "1:L1w 0:L2"), world=2),
)  # fmt: skip

RING_DEADLOCK = (
    row(4, "ring_deadlock.py",
        said("deadlock", NOBODY, "0:L1 1:L1 2:L1", waiting=(0, 1, 2)), fixed_slice=True),
    row(4, "ring_deadlock.py --first send --step 0",
        said("deadlock", NOBODY, "0:L2 1:L2", waiting=(0, 1)), world=2),
    row(4, "ring_deadlock.py --group 1,2,3 --deep 5",
        said("deadlock", NOBODY, "1:L1 2:L1 3:L1"), world=4),
)  # fmt: skip

ONE_SIDED_BATCH = (
    row(5, "one_sided_batch.py",
        said("unmatched_recv", (1,), "0:L0|L1 1:L3", waiting=(0,)), world=2),
    row(5, "one_sided_batch.py --missing recv --pair 2,0",
        said("unmatched_send", (0,), "2:L0|L1 0:L3")),
    row(5, "one_sided_batch.py --missing tag --step 0",
        said("unmatched_recv|unmatched_send", NOBODY, "0:L0|L1", "tag", "5"), world=2),
    row(5, "one_sided_batch.py --then barrier", said("deadlock", NOBODY, "0:L0|L1 1:L4"), world=2),
)  # fmt: skip

OPPOSITE_ORDER = (
    row(6, "opposite_order.py", said("deadlock", NOBODY, "0:L1 1:L1", waiting=(0, 1)), world=2),
    row(6, "opposite_order.py --ring --step 0",
        said("deadlock", NOBODY, "0:L1 1:L1 2:L1", waiting=(0, 1, 2))),
    row(6, "opposite_order.py --pair 1,2 --deep 5", said("deadlock", NOBODY, "1:L1 2:L1")),
    row(6, "opposite_order.py --short --pair 0,2",
        said("deadlock", NOBODY, "0:L4 2:L3",
             "Rank 2 is one call short in group [0, 2]", "(3 against 4 of rank 0)"),
        world=4),
)  # fmt: skip

OTHER_SIZE = (
    row(7, "other_size.py",
        said("shape_mismatch", (0,), "0:L1 1:L1 2:L1"), ends="either", fixed_slice=True),
    row(7, "other_size.py --elements 4 --culprit 2 --group 1,2,3",
        said("shape_mismatch", (2,), "2:L1"), world=4, ends="either"),
    row(7, "other_size.py --step 0",
        said("shape_mismatch", NOBODY, "0:L1 1:L1"), world=2, ends="either"),
    row(7, "other_size.py --op all_gather --culprit 1 --deep 5",
        said("shape_mismatch", (1,), "1:L1g"), ends="either"),
)  # fmt: skip

OTHER_ARGUMENTS = (
    row(8, "other_arguments.py --what reduce_op",
        said("reduce_op_mismatch", (1,), "1:L1 0:L1"), ends="ends"),
    row(8, "other_arguments.py --what reduce_op --step 0",
        said("reduce_op_mismatch", NOBODY, "0:L1 1:L1"), world=2, ends="ends"),
    row(8, "other_arguments.py --what root",
        said("root_mismatch", (1,), "1:L2 0:L2"), ends="either"),
    row(8, "other_arguments.py --what dtype --culprit 2",
        said("dtype_mismatch", (2,), "2:L3"), ends="either"),
    row(8, "other_arguments.py --what same_size_dtype --group 1,2,3 --deep 5",
        said("dtype_mismatch", (1,), "1:L3"), world=4, ends="ends"),
    row(8, "other_arguments.py --what message",
        said("size_mismatch", NOBODY, "0:L4 1:L5"), world=2, ends="either"),
)  # fmt: skip

RENDEZVOUS = (
    row(9, "rendezvous.py", said("rendezvous_incomplete", (2,), "0:L1 1:L1"), launch="--ranks 0,1"),
    row(9, "rendezvous.py --timeout 8",
        said("rendezvous_incomplete", (1,), "0:L1"), world=2, launch="--ranks 0", ends="either"),
    row(9, "rendezvous.py",
        said("rendezvous_unreachable", (0,), "1:L1 2:L1"), launch="--ranks 1,2"),
    row(9, "rendezvous.py",
        said("duplicate_rank", (0,)), launch="--ranks 0,1,0 --pause 3", ends="either"),
    row(9, "rendezvous.py",
        said("rendezvous_unreachable", (1,), "1:L1"), launch="--set 1:MASTER_PORT={free}"),
    row(9, "rendezvous.py", said("group_mismatch", (1,), "1:L1"), launch="--set 1:WORLD_SIZE=4"),
    row(9, "rendezvous.py", said("process_failed", (0,), "0:L1"), launch="--taken"),
)  # fmt: skip

STORE_KEY = (
    row(10, "store_key.py", said("process_failed", (1,), "1:L2", "ValueError"), world=2),
    row(10, "store_key.py --culprit 2 --timeout 6 --deep 5",
        said("process_failed", (2,), "2:L2"), ends="either"),
    # Rank 1 waits in the barrier for rank 2, which is true as well.
    row(10, "store_key.py --how sleep --culprit 2",
        said("store_key_missing", NOBODY, "0:L1", "app/ready/2", or_else=(2,)),
        tolerated=("missing_participant",)),
    row(10, "store_key.py --how other_key",
        said("store_key_missing", NOBODY, "0:L1", "app/Ready/1"), world=2),
    row(10, "store_key.py --how order",
        said("store_key_missing", NOBODY, "0:L1 1:L4", "rank 1 in barrier",
             "before the call in which its setter waits"),
        world=2),
    row(10, "store_key.py --how queue",
        said("store_key_missing", NOBODY, "0:L5", "app/work", "pushed (2"), needs="queue_pop"),
)  # fmt: skip


def _sudden_end(how: str, marker: str | None, *words: str) -> Row:
    """A rank that ends in one of many ways; where C ends it, no line can be known for sure."""
    return row(
        11, f"sudden_end.py --how {how}",
        said("process_failed", (1,), {1: (marker,)} if marker else {}, *words), ends="either",
    )  # fmt: skip


SUDDEN_END = (
    row(11, "sudden_end.py", said("process_failed", (1,), "1:L1", "ValueError"), ends="either"),
    row(11, "sudden_end.py --how sys_exit",
        said("process_failed", (1,), "1:L1x", "exit code 3"), ends="either"),
    row(11, "sudden_end.py --how sys_exit --culprit 2",
        said("process_failed", (2,), "", "3"), torchrun=True, ends="ends"),
    _sudden_end("os_exit", None, "4"),
    _sudden_end("sigkill", None),
    _sudden_end("segfault", None),
    _sudden_end("abort", None),
    _sudden_end("memory", "L1m", "RuntimeError"),
    row(11, "sudden_end.py --op recv --culprit 2",
        said("process_failed", (2,), "2:L1"), world=4, ends="either"),
    row(11, "sudden_end.py --also 2 --deep 5",
        said("process_failed", (1, 2), "1:L1 2:L1"), world=4, ends="either"),
    row(11, "sudden_end.py --group 1,2,3 --culprit 3",
        said("process_failed", (3,), "3:L1"), world=4, ends="either"),
    row(11, "sudden_end.py", said("process_failed", (1,), "1:L1"), torchrun=True, ends="ends"),
)  # fmt: skip

NEW_GROUP_WRONG = (
    row(12, "new_group_wrong.py",
        said("group_mismatch", NOBODY, "0:L1 2:L2"), world=4, ends="either"),
    row(12, "new_group_wrong.py --how own_ranks",
        said("group_mismatch", NOBODY, "0:L3 1:L3 2:L3"), ends="either"),
    row(12, "new_group_wrong.py --how skipped --step 0",
        said("group_mismatch", (1,), "0:L4"), ends="either"),
    # Where making a group waits for nobody, the others wait in what comes next.
    row(12, "new_group_wrong.py --how asleep", said("missing_participant", (1,), "1:L6 0:L4|L5")),
    row(12, "new_group_wrong.py --how order --deep 5",
        said("group_mismatch", (1,), "1:L7 0:L7"), ends="either"),
)  # fmt: skip

NOT_IN_GROUP = (
    row(13, "not_in_group.py",
        said("not_in_group", (2, 3), "2:L1 3:L1", "[2, 3]", "global rank"), world=4, ends="either"),
    row(13, "not_in_group.py --culprit 2 --step 0",
        said("not_in_group", (2,), "2:L1"), world=3, ends="either"),
    row(13, "not_in_group.py --op message --group 1,3 --culprit 1 --deep 5",
        said("not_in_group", (1,), "1:L1s"), world=4, ends="either"),
    row(13, "not_in_group.py --op itself --culprit 1",
        said("not_in_group", (1,), "1:L1i", "sends to itself", "both ends"), ends="either"),
)  # fmt: skip

LATE = (
    row(14, "late.py", said("straggler", (1,), "1:L1"), ends="ends"),
    row(14, "late.py --pattern ddp --ms 40 --culprit 0",
        said("straggler", (0,), "0:L1d"), world=2, ends="ends"),
    row(14, "late.py --group 1,2,3 --culprit 3",
        said("straggler", (3,), "3:L1"), world=4, ends="ends"),
    row(14, "late.py --pattern pingpong --ms 20",
        said("late_sender", (1,), "1:L1p"), world=2, ends="ends"),
)  # fmt: skip

CLOCKS = {2: (3.7, 40.0), 3: (3.7, 40.0)}

TWO_HOSTS = (
    row(15, "two_hosts.py", world=4, ends="ends", clocks=CLOCKS),
    row(15, "two_hosts.py --then sleep",
        said("missing_participant", (1,), "1:L1 0:L2", waiting=(0, 2, 3)), world=4, clocks=CLOCKS),
    row(15, "two_hosts.py --then late --culprit 3",
        said("straggler", (3,), "3:L3"), world=4, ends="ends",
        clocks={2: (-5.0, -80.0), 3: (-5.0, -80.0)}),
)  # fmt: skip


def _two_faults(program: str, world: int, first: int, second: int) -> Row:
    """A reduce-op difference by one rank, later a rank that is missing."""
    return row(
        16, program, said("reduce_op_mismatch", (first,), {first: ("L1",)}),
        said("missing_participant", (second,), {second: ("L2",)}), world=world,
    )  # fmt: skip


TWO_FAULTS = (
    _two_faults("faults/two_faults.py", 3, 1, 2),
    _two_faults("faults/two_faults.py --culprit 0 --missing 1", 4, 0, 1),
    _two_faults("faults/two_faults.py --group 1,2,3 --culprit 3 --missing 2 --deep 5", 4, 3, 2),
)

NCCL = (
    row(17, "nccl.py --how missing",
        said("missing_participant", (1,), "1:L3 0:L2|L1", waiting=(0,)), world=2, needs="cuda"),
    row(17, "nccl.py --how opposite", said("deadlock", NOBODY), world=2, needs="cuda"),
    row(17, "nccl.py --how other_op --block synchronize",
        said("op_mismatch", NOBODY, "1:L6 0:L2o"), world=2, needs="cuda"),
)  # fmt: skip


def _nodes(launch: str, *words: str, slice_: bool = False) -> Row:
    """Agents that do not find together; no rank exists yet, so there is nobody to name."""
    return row(
        18, "nodes_rendezvous.py", said("rendezvous_incomplete", NOBODY, "", *words, waiting=()),
        launcher=NODES, launch=launch, fixed_slice=slice_,
    )  # fmt: skip


NODES_RENDEZVOUS = (
    _nodes("--nnodes 2 --start 1", "1 of 2 nodes came", slice_=True),
    _nodes("--nnodes 3 --start 2", "2 of 3 nodes came"),
    _nodes("--nnodes 2 --set 1:rdzv-id=other", "under the id", "same --rdzv-id"),
    _nodes("--nnodes 2 --start 1 --backend static", "no process of node 1 was seen"),
)


def _any_source(program: str, world: int, *, ends: str = "hang") -> Row:
    """Nobody sends any more: each of them could have, so nobody is named."""
    wanted = said("unmatched_recv", NOBODY, "0:L1", waiting=(0,))
    return row(19, program, wanted, world=world, ends=ends)


ANY_SOURCE = (
    _any_source("faults/any_source.py", 3),
    _any_source("faults/any_source.py", 2),
    _any_source("faults/any_source.py --then end", 3, ends="either"),
)


def _two_threads(program: str, world: int) -> Row:
    """The order is chance, so nobody is odd."""
    return row(
        20, program, said("op_mismatch", NOBODY, "0:L1|L2 1:L1|L2", "threads"), world=world,
        ends="either",
    )  # fmt: skip


TWO_THREADS = (
    _two_threads("faults/two_threads.py", 3),
    _two_threads("faults/two_threads.py --culprit 1", 2),
    _two_threads("faults/two_threads.py --culprit 2", 4),
)


def _own_error(
    options: str, culprits: tuple[int, ...], marker: str, *, ends: str = "ends", **keys: Any
) -> Row:
    """Whoever failed by itself is named, and nobody who lost it."""
    return row(
        22, f"own_errors.py {options}",
        said("process_failed", culprits, dict.fromkeys(culprits, (marker,))), ends=ends, **keys,
    )  # fmt: skip


OWN_ERRORS = (
    _own_error("--how loader", (1,), "L1"),
    _own_error("--how worker --culprit 2", (2,), "L1", torchrun=True),
    _own_error("--how reset --also 0,2", (0, 1, 2), "L2"),
    _own_error("--how upload --group 1,2,3 --culprit 2 --survivors chain", (2,), "L3", world=4),
    _own_error("--how raise --survivors save", (1,), "L4"),
    _own_error("--how raise --survivors exit", (1,), "L4"),
    _own_error("--how raise --survivors os_exit --culprit 0", (0,), "L4"),
    _own_error("--how raise --keep", (1,), "L4", ends="hang"),
)


def _late_arrival(
    options: str, marker: str, kind: str = "missing_participant", ends: str = "ends", **keys: Any
) -> Row:
    """Who came too late is missing, told where it was; the network is not suspected."""
    lines = {0: (marker,)} | ({} if "init" in options else {1: ("L1",)})
    word = "later" if kind.startswith("unmatched") else "had given up"
    found = said(kind, (1,), lines, word)
    return row(23, f"late_arrival.py {options}", found, ends=ends, **keys)


LATE_ARRIVAL = (
    _late_arrival("", "L2"),
    _late_arrival("--then go", "L2", ends="hang", settled_s=15.0),
    _late_arrival("--op barrier --then leave", "L2w"),
    # the agent ends the culprit before it arrives
    row(23, "late_arrival.py --op broadcast",
        said("missing_participant", (1,), "0:L2b"), torchrun=True, ends="ends"),
    _late_arrival("--op monitored", "L2m"),
    _late_arrival("--op new_group", "L2n"),
    _late_arrival("--op recv", "L2r", "unmatched_recv"),
    _late_arrival("--op send --then leave", "L2s", "unmatched_send"),
    _late_arrival("--op init", "L4", "rendezvous_incomplete"),
)  # fmt: skip


def _frozen(how: str, lines: str, *words: str) -> Row:
    """Settled for so long that whoever ends it does so long after the last sign of life."""
    found = said("missing_participant", (1,), lines, *words, waiting=(0, 2))
    return row(24, f"frozen.py --how {how}", found, settled_s=12.0)


FROZEN = (
    _frozen("gil", "0:L3"),
    _frozen("regex", "0:L3 1:L4"),
    _frozen("stop", "0:L3", "suspends jobs"),
    row(24, "frozen.py --how stop --inside",
        said("no_progress", (1,), "0:L3", "suspends jobs", waiting=(0, 2)), settled_s=12.0),
)  # fmt: skip


def _wrong_peer(options: str, kinds: tuple[str, ...], *words: str) -> Row:
    """Whoever is at the end of the chain was addressed by mistake."""
    return row(25, f"wrong_peer.py {options}", said("|".join(kinds), NOBODY, "", *words))


WRONG_PEER = (
    _wrong_peer("--how to", ("deadlock",), "is the destination right"),
    _wrong_peer("--how to --busy", ("unmatched_send",), "is the destination right"),
    _wrong_peer("--how from --busy", ("unmatched_recv",), "is the source right"),
    _wrong_peer("--how group", ("missing_participant",), "is the group right"),
)


def _store_server(options: str, culprits: tuple[int, ...], *words: str) -> Row:
    """Over a failed process nobody says that nothing is wrong."""
    return row(
        26, f"store_server.py {options}".strip(), said("process_failed", culprits, "", *words),
        ends="ends",
    )  # fmt: skip


STORE_SERVER = (
    _store_server("", NOBODY, "served by rank 0"),
    _store_server("--how leave --op key", NOBODY, "served by rank 0"),
    _store_server("--how raise", (0,), "nothing left to serve"),
)

_POLLING = said("missing_participant", (1,), "1:L1 2:L2")

STORE_POLLING = (
    row(27, "store_polling.py --how poll", _POLLING),
    row(27, "store_polling.py --how thread", _POLLING),
    row(27, "store_polling.py --how shared",
        said("store_key_missing", NOBODY, "0:L4 1:L4 2:L4",
             "/shutdown", "one call at a time", "ProcessGroupGloo of ranks 0-2")),
    row(0, "faults/store_polling.py --how poll --healthy", ends="ends"),
    row(0, "faults/store_polling.py --how thread --healthy", ends="ends"),
)  # fmt: skip

_DETAIL = " ".join(f"--set {rank}:TORCH_DISTRIBUTED_DEBUG=DETAIL" for rank in range(3))

DETAIL = (
    row(1, "extra_collective.py",
        said("op_mismatch", (0,), "0:L1 1:L2"), launch=_DETAIL, ends="ends"),
    row(23, "late_arrival.py --op monitored",
        said("missing_participant", (1,)), launch=_DETAIL, ends="ends"),
)  # fmt: skip

_TWO_AT_ONCE = row(
    11, "sudden_end.py --how sigkill --also 2", said("process_failed", (1, 2)), world=4, ends="ends"
)

_TWO_FILES = row(
    9, "rendezvous.py --file", said("rendezvous_incomplete", (1,), "", "file://"),
    launch="--set 1:INIT_SUFFIX=b",
)  # fmt: skip


_RESTART = "--nnodes 1 --start 1 --per-node {} --set 0:max-restarts=1"
_FIRST_ATTEMPT = said("process_failed", (1,), "1:L1", "first attempt")

RESTARTED = (
    # well: the first attempt is a note
    row(21, "restarted.py", launcher=NODES, launch=_RESTART.format(2), ends="ends"),
    # until the second attempt hangs
    row(21, "restarted.py --then sleep", _FIRST_ATTEMPT,
        said("missing_participant", (0,), "0:L2 1:L3", waiting=(1,)), launcher=NODES,
        settled_s=40.0, launch=_RESTART.format(2)),
    # until the second attempt hangs
    row(21, "restarted.py --then sleep", _FIRST_ATTEMPT,
        said("missing_participant", (0, 2), "0:L2 2:L2"), launcher=NODES, settled_s=40.0,
        launch=_RESTART.format(3)),
)  # fmt: skip


SWALLOWED = (
    row(28, "swallowed.py",
        said("op_mismatch", (1,), "0:L1 1:L1 2:L1", "raised on rank 1", "pickle")),
    row(28, "swallowed.py --what scatter --culprit 0 --step 0",
        said("op_mismatch", (0,), "0:L1s 1:L1s", "raised on rank 0", "list size"), world=2),
    row(28, "swallowed.py --group 1,2,3 --culprit 2 --then sleep --deep 5",
        said("missing_participant", (2,), "1:L1 2:L3 3:L1", "raised on rank 2", "pickle"), world=4),
    row(28, "swallowed.py --what batch --then handler",
        said("op_mismatch", (1,), "0:L1 1:L4 2:L1", "Rank 1 handles ValueError: bad batch")),
    row(28, "swallowed.py --group 1,2,3 --culprit 2 --what batch --then sleep --deep 5",
        said("missing_participant", (2,), "1:L1 2:L3 3:L1", "Rank 2 handles ValueError: bad batch"),
        world=4),
)  # fmt: skip


def _healthy(program: str, world: int, *, torchrun: bool = False, slice_: bool = False) -> Row:
    return row(0, program, world=world, torchrun=torchrun, ends="ends", fixed_slice=slice_)


HEALTHY = (
    _healthy("ddp.py", 2, torchrun=True),
    _healthy("fsdp2.py", 2, torchrun=True),
    _healthy("pingpong_allreduce.py", 3, torchrun=True),
    _healthy("healthy/pipeline.py", 3),
    _healthy("healthy/any_source.py", 3),
    _healthy("healthy/tags_out_of_order.py", 2, slice_=True),
    _healthy("healthy/uneven_store.py", 3),
    _healthy("healthy/some_use_groups.py", 4),
    _healthy("healthy/waited_late.py", 3),
    _healthy("healthy/no_destroy.py", 2),
    _healthy("healthy/members_only.py", 4),
    _healthy("healthy/scatter_gather.py", 3),
    _healthy("healthy/non_member.py", 3),
    _healthy("healthy/one_off_wait.py", 3),
    _healthy("healthy/jitter.py", 3),
    _healthy("healthy/slow_steps.py --what checkpoint --seconds 4", 3),
    _healthy("healthy/slow_steps.py --what listener --seconds 7", 3),
    _healthy("faults/dropped_work.py", 3),
    _healthy("healthy/two_threads.py", 2),
    _healthy("healthy/forking_loader.py", 2),
    row(0, "faults/nodes_rendezvous.py --then slow", launcher=NODES, launch="--nnodes 2",
        ends="ends"),
    row(0, "faults/nodes_rendezvous.py --then sleep --seconds 5", launcher=NODES,
        launch="--nnodes 1:2 --start 1 --set 0:rdzv-conf=last_call_timeout=8", ends="ends"),
)  # fmt: skip


def _both_ways(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Rows under torchrun run with --standalone and without; sudden ends without in the slice."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        if row.torchrun:
            quick = row.ends == "ends" and row in SUDDEN_END
            found.append(replace(row, standalone=False, fixed_slice=quick))
    return tuple(found)


_ONE_WAY: tuple[Row, ...] = (
    *EXTRA_COLLECTIVE, *SLOW_LOADER, *SERVER, *UNEVEN_BATCHES, *RING_DEADLOCK, *ONE_SIDED_BATCH,
    *OPPOSITE_ORDER, *OTHER_SIZE, *OTHER_ARGUMENTS, *RENDEZVOUS, *STORE_KEY, *SUDDEN_END,
    *NEW_GROUP_WRONG, *NOT_IN_GROUP, *LATE, *TWO_HOSTS, *TWO_FAULTS, *NCCL, *NODES_RENDEZVOUS,
    *ANY_SOURCE, *TWO_THREADS, *RESTARTED, *OWN_ERRORS, *LATE_ARRIVAL, *FROZEN, *WRONG_PEER,
    *STORE_SERVER, *STORE_POLLING, *SWALLOWED, *DETAIL, _TWO_AT_ONCE, _TWO_FILES, *HEALTHY,
)  # fmt: skip

ROWS = _both_ways(_ONE_WAY)
