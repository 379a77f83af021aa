"""What the flight recorder of this torch says and costs."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable

from gpu.proof.rank import Rank, say


def probe(rank: Rank) -> None:
    """What the flight recorder of this torch says and costs, and what asking it does to a thread."""
    import ctypes
    import pickle

    import torch._C._distributed_c10d as c10d

    torch, dist = rank.torch, rank.dist
    version = torch.cuda.nccl.version() if rank.cuda else None
    say(torch=torch.__version__, nccl=version, python=sys.version.split()[0])
    backend = rank.dist.group.WORLD._get_backend(rank.device)
    say(backend_type=type(backend).__name__)
    dumps = {n: getattr(c10d, n) for n in dir(c10d) if n in ("_dump_nccl_trace", "_dump_fr_trace")}
    for name, dump in dumps.items():
        variants: list[dict[str, str]] = [{}]
        if name == "_dump_fr_trace" and "backend" in (dump.__doc__ or ""):
            variants = [{"backend": b} for b in ("gloo", "nccl", "nccl2", "nccl-lazy")]
        for more in variants:
            told = pickle.loads(
                dump(includeCollectives=True, includeStackTraces=False, onlyActive=False, **more)
            )
            entries = told.get("entries", [])
            say(
                dump=name, **more, version=told.get("version"), entries=len(entries),
                last={k: str(v) for k, v in entries[-1].items()} if entries else None,
            )  # fmt: skip
    dump = dumps.get("_dump_nccl_trace") or dumps["_dump_fr_trace"]
    for _ in range(2100):
        dist.all_reduce(rank.x)
    rank.sync()
    time.sleep(0.5)
    for active in (False, True):
        ticker_gap, took = _gap(
            functools.partial(
                dump, includeCollectives=True, includeStackTraces=False, onlyActive=active
            )
        )
        say(
            only_active=active,
            dump_ms=round(took * 1e3, 2),
            other_thread_gap_ms=round(ticker_gap * 1e3, 2),
        )
    if rank.cuda:
        torch.cuda._sleep(4_000_000_000)
        dist.all_reduce(rank.x)
        found: list[object] = []

        def ask() -> None:
            cuda = ctypes.CDLL("libcuda.so.1")
            context = ctypes.c_void_p()
            cuda.cuCtxGetCurrent(ctypes.byref(context))
            before = context.value
            begin = time.perf_counter()
            dump(includeCollectives=True, includeStackTraces=False, onlyActive=True)
            took = time.perf_counter() - begin
            cuda.cuCtxGetCurrent(ctypes.byref(context))
            found.extend([before is not None, context.value is not None, round(took * 1e3, 2)])

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        say(context_before=found[0], context_after=found[1], ask_in_flight_ms=found[2])
    rank.end()


def _gap(call: Callable[[], object]) -> tuple[float, float]:
    gap, stop = [0.0], [False]

    def spin() -> None:
        last = time.perf_counter()
        while not stop[0]:
            now = time.perf_counter()
            gap[0] = max(gap[0], now - last)
            last = now

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread = threading.Thread(target=spin)
    thread.start()
    time.sleep(0.05)
    gap[0] = 0.0
    begin = time.perf_counter()
    for _ in range(5):
        call()
    took = (time.perf_counter() - begin) / 5
    stop[0] = True
    thread.join()
    sys.setswitchinterval(before)
    return gap[0], took
