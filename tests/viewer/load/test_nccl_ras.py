"""Outputs of ``ncclras``: who launched fewer collectives, once it is known that nobody gets on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.api.report import Report
from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.load.problems import ViewerError

HEAD = """\
NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

"""
ISSUE_1911 = """\
Warnings
========

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
  Rank 13 -- GPU 5 managed by process 323033 on node 10.137.190.124
"""
"""As somebody posted it in NVIDIA/nccl#1911."""
OF_DOCS = """\
Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  31 ranks have launched up to operation 6650
  Rank 7 has launched up to operation 6649 -- GPU 7 managed by process 483079 on node 172.16.64.210
"""
DEAD = """\
DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

"""
AT_S = 1_800_000_000


def told(folder: Path, *texts: str, apart_s: float = 30.0) -> Report:
    for number, text in enumerate(texts):
        path = folder / f"ras{number}"
        path.write_text(text)
        at_ns = int((AT_S + number * apart_s) * 1e9)
        os.utime(path, ns=(at_ns, at_ns))
    return diagnose(folder)


def test_who_launched_less_has_not_come(tmp_path: Path) -> None:
    (found,) = told(tmp_path, *[HEAD + OF_DOCS] * 2).findings
    assert (found.kind, found.certainty) == ("missing_participant", "likely")
    assert (found.culprit_ranks, found.seq) == ((7,), 6650)
    assert "for 30.0 s" in found.summary


def test_many_are_not_blamed_by_counts_alone(tmp_path: Path) -> None:
    """One of them may be in a message that another one waits for."""
    (found,) = told(tmp_path, *[HEAD + ISSUE_1911] * 2).findings
    assert (found.kind, found.culprit_ranks) == ("missing_participant", ())
    assert "Ranks 0-11, 14-31 never joined all_gather_into_tensor #641" in found.summary


BEFORE = OF_DOCS.replace("50", "49").replace("6649 --", "6648 --")


@pytest.mark.parametrize(
    ("texts", "apart_s"), [([OF_DOCS], 30.0), ([BEFORE, OF_DOCS], 30.0), ([OF_DOCS] * 2, 0.1)]
)
def test_a_moment_is_no_fault(tmp_path: Path, texts: list[str], apart_s: float) -> None:
    """Of a job that gets on; and copies that were made together have no times."""
    (found,) = told(tmp_path, *(HEAD + text for text in texts), apart_s=apart_s).findings
    assert (found.severity, "had not come" in found.summary) == ("note", True)


def test_whom_nobody_reaches_is_named(tmp_path: Path) -> None:
    text = HEAD + DEAD + OF_DOCS.replace("31 ranks", "30 ranks")
    report = told(tmp_path, text, text)
    (found,) = report.findings
    assert found.culprit_ranks == (7,)
    assert any("NCCL could not reach" in one for one in (*report.incomplete, found.summary))


def test_a_job_in_which_nobody_is_behind_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ViewerError, match="no rank is behind"):
        told(tmp_path, HEAD.replace("MISMATCH", "OK"))


def as_json(counts: list[dict[str, int]], stamp: str) -> str:
    ranks: list[dict[str, Any]] = [
        {"rank": rank, "host": "10.0.0.1", "pid": 40 + rank, "collective_counts": of}
        for rank, of in enumerate(counts)
    ]
    small = {"hash": "0x2", "size": 1, "ranks": ranks[:1], "missing_ranks": []}
    world = {"hash": "0x1", "size": len(counts) + 1, "ranks": ranks}
    missing = [{"rank": len(counts), "status": {"unresponsive": True, "considered_dead": False}}]
    communicators = [small, {**world, "missing_ranks": missing}]
    return json.dumps({"nccl_version": "2", "timestamp": stamp, "communicators": communicators})


def test_json_has_everybody_s_counts(tmp_path: Path) -> None:
    """By its own times; one rank launched another kind of collective than the others."""
    counts = [{"AllReduce": 8, "AllGather": 2}] * 3 + [{"AllReduce": 7, "AllGather": 3}]
    report = told(tmp_path, *[as_json(counts, f"2025-12-19 13:0{n}:53") for n in (6, 7)])
    found = report.findings[0]
    assert (found.kind, found.certainty) == ("op_mismatch", "likely")
    assert found.culprit_ranks == (3,)
    assert "all_gather_into_tensor" in found.summary
    same = [{"AllReduce": 8}] * 4
    with pytest.raises(ViewerError, match="no rank is behind"):
        told(tmp_path, *[as_json(same, f"2025-12-19 13:0{n}:53") for n in (6, 7)])


@pytest.mark.parametrize("step", [7, 31])
def test_damaged_outputs_are_a_sentence(tmp_path: Path, step: int) -> None:
    counts = [{"AllReduce": 8}] * 3 + [{"AllReduce": 7}]
    for text in (HEAD + DEAD + OF_DOCS, as_json(counts, "2025-12-19 13:06:53")):
        for cut in range(200, len(text), step * 11):
            torn = text[:cut] + text[cut + step :]
            try:
                told(tmp_path, torn)
            except ViewerError:
                continue
