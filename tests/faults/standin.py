"""The table of faults on a backend that only enqueues: which rows make sense there, and how."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from faults.expectation import Row

FOLDER = Path(__file__).resolve().parents[1] / "support" / "standin"

# Programs that are about gloo, or about what comes before any group is there; a receive from any
# source, which NCCL has not; tags, which it does not look at; time-outs, after which its watchdog
# ends the process: the stand-in has no watchdog.
_NOT = (
    "any_source",
    "late_arrival",
    "store_polling",  # leaves without destroying its group, with work on the device
    "--timeout",
    "nccl.py",
    "no_destroy",  # which the stand-in's own thread aborts at the end
    "nodes", "rendezvous.py", "tags_out_of_order", "--missing tag",
    "--how leave --op key",  # takes its part in what the device still has before it with it
    "--then late",  # by less than calls that return at once tell of the clocks of two hosts
    "two_threads",  # two groups in no order on one stream, which kernels there may wait for
    "--what listener",  # whose receive stands before all that comes on the stream of its threads
    "uneven_store",
)  # fmt: skip

# Faults that harm nobody where making a group waits for nobody.
_HARMLESS = ("faults/new_group_wrong.py --how skipped --step 0", "faults/store_server.py")


def makes_sense(row: Row) -> bool:
    """Whether the row's program says something about an enqueuing backend."""
    if row.needs is not None or row.program in _HARMLESS:
        return False
    return not any(each in row.program for each in _NOT)


def adapted(row: Row) -> Row:
    """A rank that ends pulls nobody with it there: what ends on gloo may hang for ever.

    No connection tells of a sudden end either, so all others are killed long after it. A rank that
    is frozen has issued as much as the others, and all of them wait; once it is dead nobody can
    tell that it was frozen before.
    """
    if not row.number:
        return row
    if row.number == 24:
        frozen = ("missing_participant", "no_progress", "process_failed")
        expected = tuple(replace(o, kinds=frozen, waiting=None, lines={}) for o in row.expected)
        return replace(row, expected=expected)
    return replace(row, ends="either", settled_s=12.0 if row.number == 11 else row.settled_s)


@contextmanager
def environment(semantics: str) -> Iterator[dict[str, str]]:
    """Variables for the processes of one run; ``semantics``: of which torch's NCCL."""
    with tempfile.TemporaryDirectory(prefix="standin-") as sockets:
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(FOLDER))))
        yield {
            "STANDIN": sockets, "STANDIN_TORCH": semantics, "PYTHONPATH": path,
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        }  # fmt: skip
