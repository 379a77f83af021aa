"""The table of faults: every run, and what must be said about it.

Rows of the same number are variants: another world size, another culprit, a subgroup, a later step,
a deeper call stack. Markers are comments in the programs (`# <- L1`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from faults.expectation import NOBODY, NODES, Expected, Row

# Everybody else is only ever a consequence: no row tolerates another finding without saying why.
EXTRA_COLLECTIVE = (
    Row(
        number=1,
        program="faults/extra_collective.py",
        expected=(
            Expected(
                kinds=("op_mismatch",),
                culprits=((0,),),
                lines={0: ("L1",), 1: ("L2",), 2: ("L2",)},
            ),
        ),
        fixed_slice=True,
    ),
    Row(
        number=1,
        program="faults/extra_collective.py --extra barrier --step 0",
        world=2,
        expected=(
            Expected(kinds=("op_mismatch",), culprits=(NOBODY,), lines={0: ("L1w",), 1: ("L2",)}),
        ),
    ),
    Row(
        number=1,
        program="faults/extra_collective.py --culprit 3 --group 1,2,3 --extra broadcast --deep 6",
        world=4,
        expected=(
            Expected(
                kinds=("op_mismatch",),
                culprits=((3,),),
                lines={3: ("L1b",), 1: ("L2",), 2: ("L2",)},
            ),
        ),
    ),
    Row(
        number=1,
        program="faults/extra_collective.py --extra all_reduce",
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=(NOBODY,),
                waiting=(0,),
                lines={0: ("L2",), 1: ("L3",), 2: ("L3",)},
                words=("one more call",),
            ),
        ),
    ),
    Row(
        number=1,
        program="faults/extra_collective.py --extra all_reduce --then end",
        ends="either",
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=(NOBODY,),
                lines={0: ("L2",)},
                words=("one more call",),
            ),
        ),
    ),
)

SLOW_LOADER = (
    Row(
        number=2,
        program="faults/slow_loader.py",
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((2,),),
                waiting=(0, 1),
                lines={2: ("L1",), 0: ("L2",), 1: ("L2",)},
            ),
        ),
        fixed_slice=True,
    ),
    Row(
        number=2,
        program="faults/slow_loader.py --culprit 0 --op broadcast --step 3",
        world=2,
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((0,),),
                waiting=(1,),
                lines={0: ("L1",), 1: ("L2b",)},
            ),
        ),
    ),
    Row(
        number=2,
        program="faults/slow_loader.py --culprit 2 --group 1,2,3 --op async --deep 5",
        world=4,
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((2,),),
                lines={2: ("L1",), 1: ("L2i", "L2a"), 3: ("L2i", "L2a")},
            ),
        ),
    ),
    Row(
        number=2,
        program="faults/slow_loader.py --where loop --culprit 1 --op barrier",
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((1,),),
                waiting=(0, 2),
                lines={1: ("L1b", "L1c"), 0: ("L2w",)},  # both lines are of the loop
            ),
        ),
    ),
    Row(
        number=2,
        program="faults/slow_loader.py --where exit",
        ends="either",
        expected=(Expected(kinds=("missing_participant",), culprits=((2,),), lines={0: ("L2",)}),),
    ),
    Row(
        number=2,
        program="faults/slow_loader.py --op unwaited",
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((2,),),
                waiting=(0, 1),
                lines={2: ("L1",), 0: ("L2u",)},
            ),
        ),
    ),
    Row(
        number=2,
        program="faults/slow_loader.py --where destroy --op all_gather",
        ends="either",  # gloo may close the connections then
        expected=(
            Expected(
                kinds=("missing_participant",), culprits=((2,),), lines={2: ("L1d",), 0: ("L2g",)}
            ),
        ),
    ),
    Row(
        number=2,
        program="faults/slow_loader.py --culprit 1",
        torchrun=True,
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((1,),),
                waiting=(0, 2),
                lines={1: ("L1",), 0: ("L2",), 2: ("L2",)},
            ),
        ),
    ),
)

SERVER = tuple(
    Row(
        number=2,
        program=f"faults/server.py --waits queue --broken {broken}",
        expected=(
            Expected(
                kinds=("missing_participant",), culprits=((culprit,),), lines={culprit: (marker,)}
            ),
        ),
    )
    for broken, culprit, marker in (("line", 0, "line"), ("lock", 0, "lock"), ("others", 2, "away"))
)
UNEVEN_BATCHES = (
    Row(
        number=3,
        program="faults/uneven_batches.py",
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((1,),),
                waiting=(0, 2),
                lines={1: ("L1",), 0: ("L2",), 2: ("L2",)},
                words=("join",),
            ),
        ),
    ),
    Row(
        number=3,
        program="faults/uneven_batches.py --then end --culprit 0",
        ends="either",
        expected=(Expected(kinds=("missing_participant",), culprits=((0,),), lines={1: ("L2",)}),),
    ),
    Row(
        number=3,
        program="faults/uneven_batches.py --then barrier --group 1,2,3",
        world=4,
        expected=(
            Expected(kinds=("op_mismatch",), culprits=((1,),), lines={1: ("L1w",), 2: ("L2",)}),
        ),
    ),
    Row(
        number=3,
        program="faults/uneven_batches.py --then barrier",
        world=2,
        expected=(
            Expected(kinds=("op_mismatch",), culprits=(NOBODY,), lines={1: ("L1w",), 0: ("L2",)}),
        ),
    ),
)

RING_DEADLOCK = (
    Row(
        number=4,
        program="faults/ring_deadlock.py",
        expected=(
            Expected(
                kinds=("deadlock",),
                culprits=(NOBODY,),
                waiting=(0, 1, 2),
                lines={0: ("L1",), 1: ("L1",), 2: ("L1",)},
            ),
        ),
        fixed_slice=True,
    ),
    Row(
        number=4,
        program="faults/ring_deadlock.py --first send --step 0",
        world=2,
        expected=(
            Expected(
                kinds=("deadlock",),
                culprits=(NOBODY,),
                waiting=(0, 1),
                lines={0: ("L2",), 1: ("L2",)},
            ),
        ),
    ),
    Row(
        number=4,
        program="faults/ring_deadlock.py --group 1,2,3 --deep 5",
        world=4,
        expected=(
            Expected(
                kinds=("deadlock",),
                culprits=(NOBODY,),
                lines={1: ("L1",), 2: ("L1",), 3: ("L1",)},
            ),
        ),
    ),
)

ONE_SIDED_BATCH = (
    Row(
        number=5,
        program="faults/one_sided_batch.py",
        world=2,
        expected=(
            Expected(
                kinds=("unmatched_recv",),
                culprits=((1,),),
                waiting=(0,),
                lines={0: ("L0", "L1"), 1: ("L3",)},
            ),
        ),
    ),
    Row(
        number=5,
        program="faults/one_sided_batch.py --missing recv --pair 2,0",
        expected=(
            Expected(
                kinds=("unmatched_send",),
                culprits=((0,),),
                lines={2: ("L0", "L1"), 0: ("L3",)},
            ),
        ),
    ),
    Row(
        number=5,
        program="faults/one_sided_batch.py --missing tag --step 0",
        world=2,
        expected=(
            Expected(
                kinds=("unmatched_recv", "unmatched_send"),
                culprits=(NOBODY,),
                lines={0: ("L0", "L1")},
                words=("tag", "5"),
            ),
        ),
    ),
    Row(
        number=5,
        program="faults/one_sided_batch.py --then barrier",
        world=2,
        expected=(
            Expected(
                kinds=("deadlock",),
                culprits=(NOBODY,),
                lines={0: ("L0", "L1"), 1: ("L4",)},
            ),
        ),
    ),
)

OPPOSITE_ORDER = (
    Row(
        number=6,
        program="faults/opposite_order.py",
        world=2,
        expected=(
            Expected(
                kinds=("deadlock",),
                culprits=(NOBODY,),
                waiting=(0, 1),
                lines={0: ("L1",), 1: ("L1",)},
            ),
        ),
    ),
    Row(
        number=6,
        program="faults/opposite_order.py --ring --step 0",
        expected=(
            Expected(
                kinds=("deadlock",),
                culprits=(NOBODY,),
                waiting=(0, 1, 2),
                lines={0: ("L1",), 1: ("L1",), 2: ("L1",)},
            ),
        ),
    ),
    Row(
        number=6,
        program="faults/opposite_order.py --pair 1,2 --deep 5",
        expected=(
            Expected(
                kinds=("deadlock",),
                culprits=(NOBODY,),
                lines={1: ("L1",), 2: ("L1",)},
            ),
        ),
    ),
    Row(
        number=6,
        program="faults/opposite_order.py --short --pair 0,2",
        world=4,
        expected=(
            Expected(
                kinds=("deadlock",),
                culprits=(NOBODY,),
                lines={0: ("L4",), 2: ("L3",)},
                words=("Rank 2 is one call short in group [0, 2]", "(3 against 4 of rank 0)"),
            ),
        ),
    ),
)

OTHER_SIZE = (
    Row(
        number=7,
        program="faults/other_size.py",
        ends="either",
        expected=(
            Expected(
                kinds=("shape_mismatch",),
                culprits=((0,),),
                lines={0: ("L1",), 1: ("L1",), 2: ("L1",)},
            ),
        ),
        fixed_slice=True,
    ),
    Row(
        number=7,
        program="faults/other_size.py --elements 4 --culprit 2 --group 1,2,3",
        world=4,
        ends="either",
        expected=(Expected(kinds=("shape_mismatch",), culprits=((2,),), lines={2: ("L1",)}),),
    ),
    Row(
        number=7,
        program="faults/other_size.py --step 0",
        world=2,
        ends="either",
        expected=(
            Expected(kinds=("shape_mismatch",), culprits=(NOBODY,), lines={0: ("L1",), 1: ("L1",)}),
        ),
    ),
    Row(
        number=7,
        program="faults/other_size.py --op all_gather --culprit 1 --deep 5",
        ends="either",
        expected=(Expected(kinds=("shape_mismatch",), culprits=((1,),), lines={1: ("L1g",)}),),
    ),
)

OTHER_ARGUMENTS = (
    Row(
        number=8,
        program="faults/other_arguments.py --what reduce_op",
        ends="ends",
        expected=(
            Expected(
                kinds=("reduce_op_mismatch",), culprits=((1,),), lines={1: ("L1",), 0: ("L1",)}
            ),
        ),
    ),
    Row(
        number=8,
        program="faults/other_arguments.py --what reduce_op --step 0",
        world=2,
        ends="ends",
        expected=(
            Expected(
                kinds=("reduce_op_mismatch",), culprits=(NOBODY,), lines={0: ("L1",), 1: ("L1",)}
            ),
        ),
    ),
    Row(
        number=8,
        program="faults/other_arguments.py --what root",
        ends="either",
        expected=(
            Expected(kinds=("root_mismatch",), culprits=((1,),), lines={1: ("L2",), 0: ("L2",)}),
        ),
    ),
    Row(
        number=8,
        program="faults/other_arguments.py --what dtype --culprit 2",
        ends="either",
        expected=(Expected(kinds=("dtype_mismatch",), culprits=((2,),), lines={2: ("L3",)}),),
    ),
    Row(
        number=8,
        program="faults/other_arguments.py --what same_size_dtype --group 1,2,3 --deep 5",
        world=4,
        ends="ends",
        expected=(Expected(kinds=("dtype_mismatch",), culprits=((1,),), lines={1: ("L3",)}),),
    ),
    Row(
        number=8,
        program="faults/other_arguments.py --what message",
        world=2,
        ends="either",
        expected=(
            Expected(kinds=("size_mismatch",), culprits=(NOBODY,), lines={0: ("L4",), 1: ("L5",)}),
        ),
    ),
)

RENDEZVOUS = (
    Row(
        number=9,
        program="faults/rendezvous.py",
        launch="--ranks 0,1",
        expected=(
            Expected(
                kinds=("rendezvous_incomplete",),
                culprits=((2,),),
                lines={0: ("L1",), 1: ("L1",)},
            ),
        ),
    ),
    Row(
        number=9,
        program="faults/rendezvous.py --timeout 8",
        world=2,
        launch="--ranks 0",
        ends="either",
        expected=(
            Expected(kinds=("rendezvous_incomplete",), culprits=((1,),), lines={0: ("L1",)}),
        ),
    ),
    Row(
        number=9,
        program="faults/rendezvous.py",
        launch="--ranks 1,2",
        expected=(
            Expected(
                kinds=("rendezvous_unreachable",),
                culprits=((0,),),
                lines={1: ("L1",), 2: ("L1",)},
            ),
        ),
    ),
    Row(
        number=9,
        program="faults/rendezvous.py",
        launch="--ranks 0,1,0 --pause 3",
        ends="either",
        expected=(Expected(kinds=("duplicate_rank",), culprits=((0,),)),),
    ),
    Row(
        number=9,
        program="faults/rendezvous.py",
        launch="--set 1:MASTER_PORT={free}",
        expected=(
            Expected(kinds=("rendezvous_unreachable",), culprits=((1,),), lines={1: ("L1",)}),
        ),
    ),
    Row(
        number=9,
        program="faults/rendezvous.py",
        launch="--set 1:WORLD_SIZE=4",
        expected=(Expected(kinds=("group_mismatch",), culprits=((1,),), lines={1: ("L1",)}),),
    ),
    Row(
        number=9,
        program="faults/rendezvous.py",
        launch="--taken",
        expected=(Expected(kinds=("process_failed",), culprits=((0,),), lines={0: ("L1",)}),),
    ),
)

STORE_KEY = (
    Row(
        number=10,
        program="faults/store_key.py",
        world=2,
        expected=(
            Expected(
                kinds=("process_failed",),
                culprits=((1,),),
                lines={1: ("L2",)},
                words=("ValueError",),
            ),
        ),
    ),
    Row(
        number=10,
        program="faults/store_key.py --culprit 2 --timeout 6 --deep 5",
        ends="either",
        expected=(Expected(kinds=("process_failed",), culprits=((2,),), lines={2: ("L2",)}),),
    ),
    Row(
        number=10,
        program="faults/store_key.py --how sleep --culprit 2",
        # Rank 1 waits in the barrier for rank 2, which is true as well.
        tolerated=("missing_participant",),
        expected=(
            Expected(
                kinds=("store_key_missing",),
                culprits=(NOBODY, (2,)),
                lines={0: ("L1",)},
                words=("app/ready/2",),
            ),
        ),
    ),
    Row(
        number=10,
        program="faults/store_key.py --how other_key",
        world=2,
        expected=(
            Expected(
                kinds=("store_key_missing",),
                culprits=(NOBODY,),
                lines={0: ("L1",)},
                words=("app/Ready/1",),
            ),
        ),
    ),
    Row(
        number=10,
        program="faults/store_key.py --how order",
        world=2,
        expected=(
            Expected(
                kinds=("store_key_missing",),
                culprits=(NOBODY,),
                lines={0: ("L1",), 1: ("L4",)},
                words=("rank 1 in barrier", "before the call in which its setter waits"),
            ),
        ),
    ),
    Row(
        number=10,
        program="faults/store_key.py --how queue",
        needs="queue_pop",
        expected=(
            Expected(
                kinds=("store_key_missing",),
                culprits=(NOBODY,),
                lines={0: ("L5",)},
                words=("app/work", "pushed (2"),
            ),
        ),
    ),
)


def _sudden_end(how: str, marker: str | None, *words: str) -> Row:
    """A rank that ends in one of many ways; where C ends it, no line can be known for sure."""
    return Row(
        number=11,
        program=f"faults/sudden_end.py --how {how}",
        ends="either",
        expected=(
            Expected(
                kinds=("process_failed",),
                culprits=((1,),),
                lines={1: (marker,)} if marker else {},
                words=words,
            ),
        ),
    )


SUDDEN_END = (
    Row(
        number=11,
        program="faults/sudden_end.py",
        ends="either",
        expected=(
            Expected(
                kinds=("process_failed",),
                culprits=((1,),),
                lines={1: ("L1",)},
                words=("ValueError",),
            ),
        ),
    ),
    Row(
        number=11,
        program="faults/sudden_end.py --how sys_exit",
        ends="either",
        expected=(
            Expected(
                kinds=("process_failed",),
                culprits=((1,),),
                lines={1: ("L1x",)},
                words=("exit code 3",),
            ),
        ),
    ),
    Row(
        number=11,
        program="faults/sudden_end.py --how sys_exit --culprit 2",
        torchrun=True,
        ends="ends",
        expected=(Expected(kinds=("process_failed",), culprits=((2,),), words=("3",)),),
    ),
    _sudden_end("os_exit", None, "4"),
    _sudden_end("sigkill", None),
    _sudden_end("segfault", None),
    _sudden_end("abort", None),
    _sudden_end("memory", "L1m", "RuntimeError"),
    Row(
        number=11,
        program="faults/sudden_end.py --op recv --culprit 2",
        world=4,
        ends="either",
        expected=(Expected(kinds=("process_failed",), culprits=((2,),), lines={2: ("L1",)}),),
    ),
    Row(
        number=11,
        program="faults/sudden_end.py --also 2 --deep 5",
        world=4,
        ends="either",
        expected=(
            Expected(kinds=("process_failed",), culprits=((1, 2),), lines={1: ("L1",), 2: ("L1",)}),
        ),
    ),
    Row(
        number=11,
        program="faults/sudden_end.py --group 1,2,3 --culprit 3",
        world=4,
        ends="either",
        expected=(Expected(kinds=("process_failed",), culprits=((3,),), lines={3: ("L1",)}),),
    ),
    Row(
        number=11,
        program="faults/sudden_end.py",
        torchrun=True,
        ends="ends",
        expected=(Expected(kinds=("process_failed",), culprits=((1,),), lines={1: ("L1",)}),),
    ),
)

NEW_GROUP_WRONG = (
    Row(
        number=12,
        program="faults/new_group_wrong.py",
        world=4,
        ends="either",
        expected=(
            Expected(
                kinds=("group_mismatch",),
                culprits=(NOBODY,),
                lines={0: ("L1",), 2: ("L2",)},
            ),
        ),
    ),
    Row(
        number=12,
        program="faults/new_group_wrong.py --how own_ranks",
        ends="either",
        expected=(
            Expected(
                kinds=("group_mismatch",),
                culprits=(NOBODY,),
                lines={0: ("L3",), 1: ("L3",), 2: ("L3",)},
            ),
        ),
    ),
    Row(
        number=12,
        program="faults/new_group_wrong.py --how skipped --step 0",
        ends="either",
        expected=(Expected(kinds=("group_mismatch",), culprits=((1,),), lines={0: ("L4",)}),),
    ),
    Row(
        number=12,
        program="faults/new_group_wrong.py --how asleep",
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((1,),),
                # Where making a group waits for nobody, the others wait in what comes next.
                lines={1: ("L6",), 0: ("L4", "L5")},
            ),
        ),
    ),
    Row(
        number=12,
        program="faults/new_group_wrong.py --how order --deep 5",
        ends="either",
        expected=(
            Expected(kinds=("group_mismatch",), culprits=((1,),), lines={1: ("L7",), 0: ("L7",)}),
        ),
    ),
)

NOT_IN_GROUP = (
    Row(
        number=13,
        program="faults/not_in_group.py",
        world=4,
        ends="either",
        expected=(
            Expected(
                kinds=("not_in_group",),
                culprits=((2, 3),),
                lines={2: ("L1",), 3: ("L1",)},
                words=("[2, 3]", "global rank"),
            ),
        ),
    ),
    Row(
        number=13,
        program="faults/not_in_group.py --culprit 2 --step 0",
        world=3,
        ends="either",
        expected=(Expected(kinds=("not_in_group",), culprits=((2,),), lines={2: ("L1",)}),),
    ),
    Row(
        number=13,
        program="faults/not_in_group.py --op message --group 1,3 --culprit 1 --deep 5",
        world=4,
        ends="either",
        expected=(Expected(kinds=("not_in_group",), culprits=((1,),), lines={1: ("L1s",)}),),
    ),
    Row(
        number=13,
        program="faults/not_in_group.py --op itself --culprit 1",
        ends="either",
        expected=(
            Expected(
                kinds=("not_in_group",),
                culprits=((1,),),
                lines={1: ("L1i",)},
                words=("sends to itself", "both ends"),
            ),
        ),
    ),
)

LATE = (
    Row(
        number=14,
        program="faults/late.py",
        ends="ends",
        expected=(Expected(kinds=("straggler",), culprits=((1,),), lines={1: ("L1",)}),),
    ),
    Row(
        number=14,
        program="faults/late.py --pattern ddp --ms 40 --culprit 0",
        world=2,
        ends="ends",
        expected=(Expected(kinds=("straggler",), culprits=((0,),), lines={0: ("L1d",)}),),
    ),
    Row(
        number=14,
        program="faults/late.py --group 1,2,3 --culprit 3",
        world=4,
        ends="ends",
        expected=(Expected(kinds=("straggler",), culprits=((3,),), lines={3: ("L1",)}),),
    ),
    Row(
        number=14,
        program="faults/late.py --pattern pingpong --ms 20",
        world=2,
        ends="ends",
        expected=(Expected(kinds=("late_sender",), culprits=((1,),), lines={1: ("L1p",)}),),
    ),
)

CLOCKS = {2: (3.7, 40.0), 3: (3.7, 40.0)}

TWO_HOSTS = (
    Row(
        number=15,
        program="faults/two_hosts.py",
        world=4,
        ends="ends",
        clocks=CLOCKS,
    ),
    Row(
        number=15,
        program="faults/two_hosts.py --then sleep",
        world=4,
        clocks=CLOCKS,
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((1,),),
                waiting=(0, 2, 3),
                lines={1: ("L1",), 0: ("L2",)},
            ),
        ),
    ),
    Row(
        number=15,
        program="faults/two_hosts.py --then late --culprit 3",
        world=4,
        ends="ends",
        clocks={2: (-5.0, -80.0), 3: (-5.0, -80.0)},
        expected=(Expected(kinds=("straggler",), culprits=((3,),), lines={3: ("L3",)}),),
    ),
)


def _two_faults(program: str, world: int, first: int, second: int) -> Row:
    """A reduce-op difference by one rank, later a rank that is missing."""
    return Row(
        number=16,
        program=program,
        world=world,
        expected=(
            Expected(kinds=("reduce_op_mismatch",), culprits=((first,),), lines={first: ("L1",)}),
            Expected(
                kinds=("missing_participant",), culprits=((second,),), lines={second: ("L2",)}
            ),
        ),
    )


TWO_FAULTS = (
    _two_faults("faults/two_faults.py", 3, 1, 2),
    _two_faults("faults/two_faults.py --culprit 0 --missing 1", 4, 0, 1),
    _two_faults("faults/two_faults.py --group 1,2,3 --culprit 3 --missing 2 --deep 5", 4, 3, 2),
)

NCCL = (
    Row(
        number=17,
        program="faults/nccl.py --how missing",
        world=2,
        needs="cuda",
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((1,),),
                waiting=(0,),
                lines={1: ("L3",), 0: ("L2", "L1")},
            ),
        ),
    ),
    Row(
        number=17,
        program="faults/nccl.py --how opposite",
        world=2,
        needs="cuda",
        expected=(Expected(kinds=("deadlock",), culprits=(NOBODY,)),),
    ),
    Row(
        number=17,
        program="faults/nccl.py --how other_op --block synchronize",
        world=2,
        needs="cuda",
        expected=(
            Expected(kinds=("op_mismatch",), culprits=(NOBODY,), lines={1: ("L6",), 0: ("L2o",)}),
        ),
    ),
)


def _nodes(launch: str, *words: str, slice_: bool = False) -> Row:
    """Agents that do not find together; no rank exists yet, so there is nobody to name."""
    return Row(
        number=18,
        program="faults/nodes_rendezvous.py",
        launcher=NODES,
        launch=launch,
        expected=(
            Expected(kinds=("rendezvous_incomplete",), culprits=(NOBODY,), waiting=(), words=words),
        ),
        fixed_slice=slice_,
    )


NODES_RENDEZVOUS = (
    _nodes("--nnodes 2 --start 1", "1 of 2 nodes came", slice_=True),
    _nodes("--nnodes 3 --start 2", "2 of 3 nodes came"),
    _nodes("--nnodes 2 --set 1:rdzv-id=other", "under the id", "same --rdzv-id"),
    _nodes("--nnodes 2 --start 1 --backend static", "no process of node 1 was seen"),
)


def _any_source(program: str, world: int, *, ends: str = "hang") -> Row:
    """Nobody sends any more: each of them could have, so nobody is named."""
    return Row(
        number=19,
        program=program,
        world=world,
        ends=ends,
        expected=(
            Expected(
                kinds=("unmatched_recv",), culprits=(NOBODY,), waiting=(0,), lines={0: ("L1",)}
            ),
        ),
    )


ANY_SOURCE = (
    _any_source("faults/any_source.py", 3),
    _any_source("faults/any_source.py", 2),
    _any_source("faults/any_source.py --then end", 3, ends="either"),
)


def _two_threads(program: str, world: int) -> Row:
    """The order is chance, so nobody is odd."""
    return Row(
        number=20,
        program=program,
        world=world,
        ends="either",
        expected=(
            Expected(
                kinds=("op_mismatch",),
                culprits=(NOBODY,),
                lines={0: ("L1", "L2"), 1: ("L1", "L2")},
                words=("threads",),
            ),
        ),
    )


TWO_THREADS = (
    _two_threads("faults/two_threads.py", 3),
    _two_threads("faults/two_threads.py --culprit 1", 2),
    _two_threads("faults/two_threads.py --culprit 2", 4),
)


def _own_error(
    options: str, culprits: tuple[int, ...], marker: str, *, ends: str = "ends", **keys: Any
) -> Row:
    """Whoever failed by itself is named, and nobody who lost it."""
    return Row(
        number=22,
        program=f"faults/own_errors.py {options}",
        ends=ends,
        expected=(
            Expected(
                kinds=("process_failed",),
                culprits=(culprits,),
                lines=dict.fromkeys(culprits, (marker,)),
            ),
        ),
        **keys,
    )


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


def _late_arrival(options: str, marker: str, kind: str = "missing_participant", **keys: Any) -> Row:
    """Who came when the others had given up is missing, told where it was until then, and the
    network is not suspected.
    """
    return Row(
        number=23,
        program=f"faults/late_arrival.py {options}",
        ends=keys.pop("ends", "ends"),
        expected=(
            Expected(
                kinds=(kind,),
                culprits=((1,),),
                lines={0: (marker,), **({} if "init" in options else {1: ("L1",)})},
                words=("later" if kind.startswith("unmatched") else "had given up",),
            ),
        ),
        **keys,
    )


LATE_ARRIVAL = (
    _late_arrival("", "L2"),
    _late_arrival("--then go", "L2", ends="hang", settled_s=15.0),
    _late_arrival("--op barrier --then leave", "L2w"),
    Row(  # the agent ends the culprit before it arrives
        number=23,
        program="faults/late_arrival.py --op broadcast",
        torchrun=True,
        ends="ends",
        expected=(Expected(kinds=("missing_participant",), culprits=((1,),), lines={0: ("L2b",)}),),
    ),
    _late_arrival("--op monitored", "L2m"),
    _late_arrival("--op new_group", "L2n"),
    _late_arrival("--op recv", "L2r", "unmatched_recv"),
    _late_arrival("--op send --then leave", "L2s", "unmatched_send"),
    _late_arrival("--op init", "L4", "rendezvous_incomplete"),
)


FROZEN = (
    *(
        Row(
            number=24,
            program=f"faults/frozen.py --how {how}",
            settled_s=12.0,  # so that whoever ends it does so long after the last sign of life
            expected=(
                Expected(
                    kinds=("missing_participant",),
                    culprits=((1,),),
                    waiting=(0, 2),
                    lines={0: ("L3",), **({1: ("L4",)} if how == "regex" else {})},
                    words=("suspends jobs",) if how == "stop" else (),
                ),
            ),
        )
        for how in ("gil", "regex", "stop")
    ),
    Row(
        number=24,
        program="faults/frozen.py --how stop --inside",
        settled_s=12.0,
        expected=(
            Expected(
                kinds=("no_progress",),
                culprits=((1,),),
                waiting=(0, 2),
                lines={0: ("L3",)},
                words=("suspends jobs",),
            ),
        ),
    ),
)


def _wrong_peer(options: str, kinds: tuple[str, ...], *words: str) -> Row:
    """Whoever is at the end of the chain was addressed by mistake."""
    return Row(
        number=25,
        program=f"faults/wrong_peer.py {options}",
        expected=(Expected(kinds=kinds, culprits=(NOBODY,), words=words),),
    )


WRONG_PEER = (
    _wrong_peer("--how to", ("deadlock",), "is the destination right"),
    _wrong_peer("--how to --busy", ("unmatched_send",), "is the destination right"),
    _wrong_peer("--how from --busy", ("unmatched_recv",), "is the source right"),
    _wrong_peer("--how group", ("missing_participant",), "is the group right"),
)


def _store_server(options: str, culprits: tuple[int, ...], *words: str) -> Row:
    """Over a failed process nobody says that nothing is wrong."""
    return Row(
        number=26,
        program=f"faults/store_server.py {options}".strip(),
        ends="ends",
        expected=(Expected(kinds=("process_failed",), culprits=(culprits,), words=words),),
    )


STORE_SERVER = (
    _store_server("", NOBODY, "served by rank 0"),
    _store_server("--how leave --op key", NOBODY, "served by rank 0"),
    _store_server("--how raise", (0,), "nothing left to serve"),
)

_POLLING = Expected(
    kinds=("missing_participant",), culprits=((1,),), lines={1: ("L1",), 2: ("L2",)}
)

STORE_POLLING = (
    Row(number=27, program="faults/store_polling.py --how poll", expected=(_POLLING,)),
    Row(number=27, program="faults/store_polling.py --how thread", expected=(_POLLING,)),
    Row(
        number=27,
        program="faults/store_polling.py --how shared",
        expected=(
            Expected(
                kinds=("store_key_missing",),
                culprits=(NOBODY,),
                lines=dict.fromkeys(range(3), ("L4",)),
                words=("/shutdown", "one call at a time", "ProcessGroupGloo of ranks 0-2"),
            ),
        ),
    ),
    Row(number=0, program="faults/store_polling.py --how poll --healthy", ends="ends"),
    Row(number=0, program="faults/store_polling.py --how thread --healthy", ends="ends"),
)

_DETAIL = " ".join(f"--set {rank}:TORCH_DISTRIBUTED_DEBUG=DETAIL" for rank in range(3))

DETAIL = (
    Row(
        number=1,
        program="faults/extra_collective.py",
        launch=_DETAIL,
        ends="ends",
        expected=(
            Expected(kinds=("op_mismatch",), culprits=((0,),), lines={0: ("L1",), 1: ("L2",)}),
        ),
    ),
    Row(
        number=23,
        program="faults/late_arrival.py --op monitored",
        launch=_DETAIL,
        ends="ends",
        expected=(Expected(kinds=("missing_participant",), culprits=((1,),)),),
    ),
)

_TWO_AT_ONCE = Row(
    number=11,
    program="faults/sudden_end.py --how sigkill --also 2",
    world=4,
    ends="ends",
    expected=(Expected(kinds=("process_failed",), culprits=((1, 2),)),),
)

_TWO_FILES = Row(
    number=9,
    program="faults/rendezvous.py --file",
    launch="--set 1:INIT_SUFFIX=b",
    expected=(Expected(kinds=("rendezvous_incomplete",), culprits=((1,),), words=("file://",)),),
)


_RESTART = "--nnodes 1 --start 1 --per-node {} --set 0:max-restarts=1"
_FIRST_ATTEMPT = Expected(
    kinds=("process_failed",), culprits=((1,),), lines={1: ("L1",)}, words=("first attempt",)
)

RESTARTED = (
    Row(
        number=21,
        program="faults/restarted.py",
        launcher=NODES,
        launch=_RESTART.format(2),
        ends="ends",  # well: the first attempt is a note
    ),
    Row(
        number=21,
        program="faults/restarted.py --then sleep",
        launcher=NODES,
        settled_s=40.0,  # until the second attempt hangs
        launch=_RESTART.format(2),
        expected=(
            _FIRST_ATTEMPT,
            Expected(
                kinds=("missing_participant",),
                culprits=((0,),),
                waiting=(1,),
                lines={0: ("L2",), 1: ("L3",)},
            ),
        ),
    ),
    Row(
        number=21,
        program="faults/restarted.py --then sleep",
        launcher=NODES,
        settled_s=40.0,  # until the second attempt hangs
        launch=_RESTART.format(3),
        expected=(
            _FIRST_ATTEMPT,
            Expected(
                kinds=("missing_participant",), culprits=((0, 2),), lines={0: ("L2",), 2: ("L2",)}
            ),
        ),
    ),
)


SWALLOWED = (
    Row(
        number=28,
        program="faults/swallowed.py",
        expected=(
            Expected(
                kinds=("op_mismatch",),
                culprits=((1,),),
                lines={0: ("L1",), 1: ("L1",), 2: ("L1",)},
                words=("raised on rank 1", "pickle"),
            ),
        ),
    ),
    Row(
        number=28,
        program="faults/swallowed.py --what scatter --culprit 0 --step 0",
        world=2,
        expected=(
            Expected(
                kinds=("op_mismatch",),
                culprits=((0,),),
                lines={0: ("L1s",), 1: ("L1s",)},
                words=("raised on rank 0", "list size"),
            ),
        ),
    ),
    Row(
        number=28,
        program="faults/swallowed.py --group 1,2,3 --culprit 2 --then sleep --deep 5",
        world=4,
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((2,),),
                lines={1: ("L1",), 2: ("L3",), 3: ("L1",)},
                words=("raised on rank 2", "pickle"),
            ),
        ),
    ),
    Row(
        number=28,
        program="faults/swallowed.py --what batch --then handler",
        expected=(
            Expected(
                kinds=("op_mismatch",),
                culprits=((1,),),
                lines={0: ("L1",), 1: ("L4",), 2: ("L1",)},
                words=("Rank 1 handles ValueError: bad batch",),
            ),
        ),
    ),
    Row(
        number=28,
        program="faults/swallowed.py --group 1,2,3 --culprit 2 --what batch --then sleep --deep 5",
        world=4,
        expected=(
            Expected(
                kinds=("missing_participant",),
                culprits=((2,),),
                lines={1: ("L1",), 2: ("L3",), 3: ("L1",)},
                words=("Rank 2 handles ValueError: bad batch",),
            ),
        ),
    ),
)


def _healthy(program: str, world: int, *, torchrun: bool = False, slice_: bool = False) -> Row:
    """A program about which nothing may be said."""
    return Row(
        number=0,
        program=program,
        world=world,
        torchrun=torchrun,
        ends="ends",
        fixed_slice=slice_,
    )


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
    Row(
        number=0,
        program="faults/nodes_rendezvous.py --then slow",
        launcher=NODES,
        launch="--nnodes 2",
        ends="ends",
    ),
    Row(
        number=0,
        program="faults/nodes_rendezvous.py --then sleep --seconds 5",
        launcher=NODES,
        launch="--nnodes 1:2 --start 1 --set 0:rdzv-conf=last_call_timeout=8",
        ends="ends",
    ),
)


def _both_ways(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Rows under torchrun run twice: with --standalone and, as most people start, without.

    Sudden ends without it are in the slice: they are quick, and it is the case in which an agent
    was once taken for a member.
    """
    found: list[Row] = []
    for row in rows:
        found.append(row)
        if row.torchrun:
            quick = row.ends == "ends" and row in SUDDEN_END
            found.append(replace(row, standalone=False, fixed_slice=quick))
    return tuple(found)


_ONE_WAY: tuple[Row, ...] = (
    *EXTRA_COLLECTIVE,
    *SLOW_LOADER,
    *SERVER,
    *UNEVEN_BATCHES,
    *RING_DEADLOCK,
    *ONE_SIDED_BATCH,
    *OPPOSITE_ORDER,
    *OTHER_SIZE,
    *OTHER_ARGUMENTS,
    *RENDEZVOUS,
    *STORE_KEY,
    *SUDDEN_END,
    *NEW_GROUP_WRONG,
    *NOT_IN_GROUP,
    *LATE,
    *TWO_HOSTS,
    *TWO_FAULTS,
    *NCCL,
    *NODES_RENDEZVOUS,
    *ANY_SOURCE,
    *TWO_THREADS,
    *RESTARTED,
    *OWN_ERRORS,
    *LATE_ARRIVAL,
    *FROZEN,
    *WRONG_PEER,
    *STORE_SERVER,
    *STORE_POLLING,
    *SWALLOWED,
    *DETAIL,
    _TWO_AT_ONCE,
    _TWO_FILES,
    *HEALTHY,
)

ROWS = _both_ways(_ONE_WAY)
