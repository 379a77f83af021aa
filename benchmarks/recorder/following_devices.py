"""What following a device costs while operations are issued at a steady rate.

    python benchmarks/recorder/following_devices.py [--rounds 5] [--seconds 20] [--rates 1000,5000]

No device is needed: gloo is taken for a backend that only enqueues, and its flight recorder, whose
code is NCCL's, is asked as NCCL's is. Each round runs every rate with DISTTRACE_DEVICE=off, then
`auto`, in processes of their own; processor time counts, so other programs disturb little:

* of the issuing thread per operation: what a note takes it (`add`);
* of disttrace's own threads as a share of a core: asking, reading, matching, and what they do
  besides; and of the whole process, in which gloo's threads vary by more than that;
* the longest stop of another Python thread, and the longest call of the thread that issues, which
  shares a mutex of the recorder with whoever asks (the least of all rounds: others only make it
  longer).
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.recorder.child import measure  # noqa: E402
from disttrace.journal import format as fmt  # noqa: E402

TICK_S = 0.0005
SLICE_S = 0.01
Figures = dict[str, float]


def take_gloo_for_a_device() -> None:
    """Its operations are over when its flight recorder says so: that they are retired, which NCCL's
    calls completed. To ask for the rest alone costs nothing here: gloo's has all it holds for not
    completed, NCCL's only what runs."""
    from torch._C._distributed_c10d import _dump_fr_trace

    from disttrace.capture.devices import flight_recorder

    told: Any = flight_recorder.named_json("gloo") or flight_recorder.named_json(None)

    def dump(active: bool) -> bytes:
        if active:
            return b""
        text: bytes = told(False)
        return text.replace(b'"state":"scheduled"', b'"state":"completed"')

    free = flight_recorder.FreeOfGil(dump, _dump_fr_trace)
    changed: Any = fmt
    changed._ON_HOST, changed.ON_DEVICE = fmt._ON_HOST - {"gloo"}, fmt.ON_DEVICE | {"gloo"}
    changed = flight_recorder
    changed._RECORDERS = {**flight_recorder._RECORDERS, "ProcessGroupGloo": "gloo"}
    changed.source = lambda name: free


def issued(rate: int, seconds: float) -> Figures:
    """Figures of one process that issues so many operations a second."""
    import torch
    import torch.distributed as dist

    import disttrace

    take_gloo_for_a_device()
    with tempfile.TemporaryDirectory(prefix="following-") as folder:
        disttrace.install(dir=folder, quiet=True)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(4)
        stops: list[float] = []
        over = threading.Event()
        ticking = threading.Thread(target=_tick, args=(stops, over))
        ticking.start()
        _issue(dist, x, rate, 1.0)
        gc.collect()  # torch's import leaves a full one due, which some thousand objects more meet
        stops.clear()
        others = {threading.get_native_id(), ticking.native_id or 0}
        background = _background_s(others)
        used, own, begin = time.process_time(), time.thread_time(), time.perf_counter()
        calls = _issue(dist, x, rate, seconds)
        wall = time.perf_counter() - begin
        own, used = time.thread_time() - own, time.process_time() - used
        background = _background_s(others) - background
        longest = max(stops)
        over.set()
        ticking.join()
        time.sleep(0.5)
        disttrace.uninstall()
        told = _told(Path(folder))
    return {
        "own_us": own / len(calls) * 1e6,
        "share": used / wall,
        "background": background / wall,
        "stop_ms": longest * 1e3,
        "call_ms": max(calls) * 1e3,
        "rate": len(calls) / wall,
        "told": told,
    }


def note_us(repeats: int = 40, number: int = 2_000) -> float:
    """Microseconds that ``add`` takes of the issuing thread; the least of all repeats."""
    from support.device import Device

    device = Device()
    device.issue()
    operations = [device.begin() for _ in range(number)]
    found: list[float] = []
    for _ in range(repeats):
        add = device.operations.add
        begin = time.thread_time()
        for each in operations:
            add(each, None, None)
        found.append((time.thread_time() - begin) / number * 1e6)
        device.operations._inbox.take()
    return min(found)


def _told(folder: Path) -> float:
    """The share of operations that were seen finished."""
    lines = [x for file in folder.glob("*.ops.jsonl") for x in file.read_bytes().splitlines()]
    over, begun = (sum(x.startswith(key) for x in lines) for key in (b'{"c"', b'{"i"'))
    return over / begun


def _background_s(others: set[int]) -> float:
    """Processor time of all threads but gloo's and ``others``, in seconds."""
    used = 0
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) not in others and "gloo" not in (task / "comm").read_text():
            used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9


def _tick(stops: list[float], over: threading.Event) -> None:
    last = time.perf_counter()
    while not over.is_set():
        time.sleep(TICK_S)
        now = time.perf_counter()
        stops.append(now - last)
        last = now


def _issue(dist: object, x: object, rate: int, seconds: float) -> list[float]:
    calls: list[float] = []
    begin = time.perf_counter()
    for number in range(int(seconds / SLICE_S)):
        for _ in range(int(rate * SLICE_S)):
            before = time.perf_counter()
            dist.all_reduce(x)  # type: ignore[attr-defined]
            calls.append(time.perf_counter() - before)
        time.sleep(max(0.0, begin + number * SLICE_S - time.perf_counter()))
    return calls


def rows(off: list[Figures], auto: list[Figures]) -> list[str]:
    """In Markdown: medians; stops and calls are the least of all rounds."""

    def mid(key: str) -> list[float]:
        return [median(one[key] for one in each) for each in (off, auto)]

    def least(key: str) -> list[float]:
        return [min(one[key] for one in each) for each in (off, auto)]

    shares, own, background = mid("share"), mid("own_us"), mid("background")
    stops, calls = least("stop_ms"), least("call_ms")
    return [
        f"| issued a second | {mid('rate')[0]:,.0f} | {mid('rate')[1]:,.0f} |",
        f"| seen finished | | {mid('told')[1]:.1%} |",
        f"| disttrace's threads, share of a core | {background[0]:.1%} | {background[1]:.1%} |",
        f"| all threads, share of a core | {shares[0]:.1%} | {shares[1]:.1%} |",
        f"| issuing thread, us per operation | {own[0]:.1f} | {own[1]:.1f} |",
        f"| longest stop of another thread, ms | {stops[0]:.1f} | {stops[1]:.1f} |",
        f"| longest call of the issuing thread, ms | {calls[0]:.1f} | {calls[1]:.1f} |",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rates", default="1000,5000")
    chosen = parser.parse_args()
    print(f"a note takes the issuing thread {note_us():.2f} us\n")
    for rate in map(int, chosen.rates.split(",")):
        found: dict[str, list[Figures]] = {"off": [], "auto": []}
        for _ in range(chosen.rounds):
            for how, figures in found.items():
                arguments = {"rate": rate, "seconds": chosen.seconds}
                variables = {"DISTTRACE_DEVICE": how, "TORCH_FR_BUFFER_SIZE": "2000"}
                module = "benchmarks.recorder.following_devices"
                figures += measure(module, "issued", arguments, variables=variables)
        print(f"| {rate:,} operations a second | off | followed |\n| - | -: | -: |")
        print("\n".join(rows(found["off"], found["auto"])), flush=True)
    print(f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
