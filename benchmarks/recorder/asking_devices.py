"""How long other Python threads stand still while torch's flight recorder is asked.

    python benchmarks/recorder/asking_devices.py [--rounds 7]

Fills a real recorder, gloo's (its code is that of NCCL's), to its 2,000 entries. A second thread
sleeps half a millisecond at a time and keeps its longest stop: beside nothing, beside disttrace's
way of asking (C++ without the GIL, parsed in steps), and beside torch's own binding. The least of
all rounds is told beside the median: other programs on the machine only make stops longer.
"""

from __future__ import annotations

import argparse
import functools
import pickle
import threading
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

from disttrace.capture.devices import flight_recorder
from disttrace.capture.devices.flight_recorder import Question

ENTRIES = 2_000
TICK_S = 0.0005


def longest_stop(beside: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds that a Python thread stood still at most, and that one call took."""
    stops: list[float] = []
    over = threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not over.is_set():
            time.sleep(TICK_S)
            now = time.perf_counter()
            stops.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.02)
    stops.clear()
    begin = time.perf_counter()
    beside()
    took = time.perf_counter() - begin
    over.set()
    thread.join()
    return max(stops, default=0.0) * 1e3, took * 1e3


def measured(rounds: int) -> dict[str, tuple[float, float, float]]:
    """Longest stop (median and least over rounds) and duration (median), in milliseconds, by what
    was done beside.
    """
    fill()
    newest = Question(True, ())
    free = flight_recorder.named_json("gloo") or flight_recorder.named_json(None)
    ways: dict[str, Callable[[], object]] = {"nothing": lambda: time.sleep(0.05)}
    if free is not None:
        ask = functools.partial(flight_recorder.from_json, free)
        ways["disttrace, all entries"] = lambda: ask(flight_recorder.EVERYTHING)
        ways["disttrace, what is new"] = lambda: ask(newest)
    ways["torch's binding"] = lambda: pickle.loads(
        _dump_fr_trace(includeCollectives=True, includeStackTraces=False, onlyActive=False)
    )
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(longest_stop(way))
    return {
        name: (
            median(stop for stop, _ in each),
            min(stop for stop, _ in each),
            median(took for _, took in each),
        )
        for name, each in found.items()
    }


def fill() -> None:
    """As many operations as the recorder holds, and more."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(4)
    for _ in range(ENTRIES + 100):
        dist.all_reduce(x)


def table(figures: dict[str, tuple[float, float, float]]) -> str:
    """In Markdown."""
    rows = [
        "| beside | longest stop of another thread, ms (least) | one call, ms |",
        "| ------ | -----------------------------------------: | -----------: |",
    ]
    rows += [
        f"| {name} | {stop:.1f} ({least:.1f}) | {took:.1f} |"
        for name, (stop, least, took) in figures.items()
    ]
    return "\n".join(rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    print(table(measured(parser.parse_args().rounds)))


if __name__ == "__main__":
    main()
