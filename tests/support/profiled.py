"""A program of which torch.profiler writes a profile for each rank."""

from __future__ import annotations

PROGRAM = """
import sys, time, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
dist.init_process_group("gloo")
rank = dist.get_rank()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
    for step in range(6):
        time.sleep(0.1 * rank)
        dist.all_reduce(torch.ones(8))
        dist.broadcast(torch.ones(4), 0)
p.export_chrome_trace(f"{sys.argv[1]}/rank{rank}.json" + "".join(sys.argv[2:]))
"""
"""With the folder, and what is to stand behind ``.json``."""
