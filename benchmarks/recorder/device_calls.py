"""What a call on NCCL costs the thread that makes it, with disttrace and without.

    python benchmarks/recorder/device_calls.py [--rounds 5]
    python tests/gpu/imitated.py --torch 2.15.0 --program benchmarks/recorder/device_calls.py

The first needs a GPU, the second none: torch's own process groups call an imitation of CUDA and
NCCL there, so that what the host does is real, and nothing else. One rank makes calls in bursts of
fifty, a hundredth of a second apart; processor time of its thread counts, and of the bursts of a
round the lower quarter: what else runs makes them longer only. Each round has every way in a
process of its own, one after another, and of the rounds the median is told. Where torch has hooks
(2.15) empty ones show what of it is torch's, which calls them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.recorder.child import measure  # noqa: E402

BURST, BURSTS = 50, 300
UNTRACED, EMPTY, TRACED = "untraced", "hooks that do nothing", "traced"
WAYS = [(how, recorder) for recorder in ("off", "on") for how in (UNTRACED, EMPTY, TRACED)]
_ENTRIES = {"off": "0", "on": "2000"}
KINDS = ("synchronous", "asynchronous, and its wait")


def calls(*, how: str, folder: str) -> dict[str, float]:
    """Microseconds of a call of each kind, in this process."""
    if how == TRACED:
        import disttrace

        disttrace.install(dir=folder)
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    device = torch.device("cuda:0")
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    tensor = torch.ones(4, device=device)
    if how == EMPTY:
        group: Any = dist.group.WORLD
        group.register_pre_hook(1, lambda told: None)
        group.register_post_hook(1, lambda told: None)

    def synchronous() -> None:
        dist.all_reduce(tensor)

    def asynchronous() -> None:
        dist.all_reduce(tensor, async_op=True).wait()

    both = zip(KINDS, (synchronous, asynchronous), strict=True)
    return {kind: _microseconds(call) for kind, call in both}


def _microseconds(call: Callable[[], None]) -> float:
    import torch

    for _ in range(10 * BURST):
        call()
    torch.cuda.synchronize()
    took = []
    for _ in range(BURSTS):
        begin = time.thread_time_ns()
        for _ in range(BURST):
            call()
        took.append((time.thread_time_ns() - begin) / BURST / 1e3)
        time.sleep(0.01)
    return quantiles(took, n=4)[0]


def _has_hooks() -> bool:
    return tuple(int(part) for part in version("torch").split(".")[:2]) >= (2, 15)


def main() -> int:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ways = [way for way in WAYS if way[0] != EMPTY or _has_hooks()]
    found: dict[tuple[str, str], list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(options.rounds):
        for way in ways:
            with tempfile.TemporaryDirectory() as folder:
                found[way] += measure(
                    "benchmarks.recorder.device_calls",
                    "calls",
                    {"how": way[0], "folder": folder},
                    variables={"TORCH_NCCL_TRACE_BUFFER_SIZE": _ENTRIES[way[1]]},
                )
    print(f"torch {version('torch')}, us a call, {options.rounds} rounds\n")
    print(f"| | {' | '.join(KINDS)} |\n| - | -: | -: |")
    for (how, recorder), rounds in found.items():
        figures = " | ".join(f"{median(one[kind] for one in rounds):.1f}" for kind in KINDS)
        print(f"| {how}, recorder {recorder} | {figures} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
