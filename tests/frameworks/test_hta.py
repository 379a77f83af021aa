"""HTA and `disttrace stats` take the same folder of profiles, as ``docs/compare.md`` says."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from disttrace_viewer.api.statistics import stats
from frameworks.libraries import environment
from support.processes import clean_environ, run_program, torchrun
from support.profiled import PROGRAM

pytestmark = pytest.mark.long

ASKED = """
import json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
names = analysis.t.symbol_table.sym_table
calls = {}
for rank in analysis.t.get_ranks():
    of = [names[n] for n in analysis.t.get_trace(rank)["name"]]
    calls[rank] = [of.count("c10d::allreduce_"), of.count("c10d::broadcast_")]
kernels, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
overlap = analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"]
answer = {"calls": calls, "kernels": len(kernels), "overlap": int(overlap.count())}
print("ANSWER", json.dumps(answer))
"""


def test_both_read_one_folder(tmp_path: Path) -> None:
    """The same ranks and calls; without a device's kernels HTA has no times, disttrace has."""
    made = tmp_path / "made"
    made.mkdir()
    for name, text in (("profiled.py", PROGRAM), ("asked.py", ASKED)):
        (tmp_path / name).write_text(text)
    torchrun(tmp_path / "profiled.py", 2, str(made), ".gz").check()
    hta = environment("HolisticTraceAnalysis==0.5.0") / "python"
    outcome = run_program([hta, tmp_path / "asked.py", made], clean_environ(), 120.0).check()
    (answer,) = (line for line in outcome.stdout.splitlines() if line.startswith("ANSWER "))
    assert orjson.loads(answer.removeprefix("ANSWER ")) == {
        "calls": {"0": [6, 6], "1": [6, 6]}, "kernels": 0, "overlap": 0,
    }  # fmt: skip
    found = stats(made)
    assert {row["op"]: row["calls"] for row in found.operations.to_dicts()} == {
        "all_reduce": 12,
        "broadcast": 12,
    }
    waited = {row["rank"]: row["waiting_ns"] for row in found.ranks.to_dicts()}
    assert sorted(waited) == [0, 1]
    assert waited[0] > 0.3e9
