"""A DataLoader that forks its workers in a process with work in flight."""

from __future__ import annotations

from pathlib import Path

from support.preloaded import preloaded
from support.raw import read_journals

PROGRAM = """
import sys
import disttrace
disttrace.install(dir=sys.argv[1])
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
functional, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
x = torch.ones(2)
kept = dist.all_reduce(x, async_op=True)
pending = functional.all_reduce(x, "sum", name)
loader = torch.utils.data.DataLoader(
    list(range(8)), batch_size=2, num_workers=2, multiprocessing_context="fork"
)
seen = []
for batch in loader:
    seen += batch.tolist()
    dist.all_reduce(torch.ones(1))
kept.wait()
functional.wait_tensor(pending)
print(seen)
dist.destroy_process_group()
"""


def test_forked_workers(tmp_path: Path) -> None:
    """All samples come, every operation is over, and workers that use no c10d leave no journal."""
    outcome = preloaded("-W", "ignore", "-c", PROGRAM, str(tmp_path)).check()
    assert outcome.stdout == "[0, 1, 2, 3, 4, 5, 6, 7]\n"
    assert "disttrace:" not in outcome.stderr
    (journal,) = read_journals(tmp_path)
    reduces = [(seq, over) for op, seq, over in journal.operations() if op == "all_reduce"]
    assert reduces == [(seq, True) for seq in range(1, 7)]
