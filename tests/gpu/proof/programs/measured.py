"""What tracing costs: issuing behind a kernel, at a steady rate, and in 1F1B."""

from __future__ import annotations

import os
import time

from gpu.proof.rank import Rank, Ticker, exchange, say


def _seconds(rank: Rank) -> float:
    return float(os.environ.get("KIT_SECONDS") or (60.0 if rank.cuda else 6.0))


def behind(rank: Rank) -> None:
    """Issuing behind a long kernel: whoever synchronises gets a share near one."""
    torch, dist, x = rank.torch, rank.dist, rank.x
    cycles = int(10_000_000 * 2.0 / _slept(rank, 10_000_000))
    shares = []
    for _ in range(4):
        rank.sync()
        begin = time.perf_counter()
        torch.cuda._sleep(cycles)
        for _ in range(20):
            dist.all_reduce(x)
            dist.all_reduce(x, async_op=True).wait()
            if rank.fault and rank.traced:
                rank.sync()
        issued = time.perf_counter() - begin
        rank.sync()
        shares.append(round(issued / (time.perf_counter() - begin), 5))
    say(shares=shares, issued_ms=round(issued * 1e3, 2))
    each = []
    for _ in range(5):
        rank.sync()
        begin = time.perf_counter()
        for _ in range(200):
            dist.all_reduce(x)
        each.append((time.perf_counter() - begin) / 200 * 1e6)
    say(call_us=round(sorted(each)[2], 2))
    rank.end()


def _slept(rank: Rank, cycles: int) -> float:
    rank.torch.cuda._sleep(cycles)
    rank.sync()
    begin = time.perf_counter()
    rank.torch.cuda._sleep(cycles)
    rank.sync()
    return time.perf_counter() - begin


def rate(rank: Rank) -> None:
    """So many asynchronous operations a second, in slices of a hundredth of one."""
    per_slice = int(os.environ["KIT_RATE"]) // 100

    def one_slice() -> None:
        for _ in range(per_slice):
            rank.dist.all_reduce(rank.x, async_op=True)
        if rank.fault and rank.traced:
            _burn()

    _steadily(rank, 0.01, one_slice)


def one_f_one_b(rank: Rank) -> None:
    """A batch with the neighbour every ten milliseconds."""

    def one_step() -> None:
        exchange(rank)
        if rank.fault and rank.traced:
            _burn()

    _steadily(rank, 0.01, one_step)


def _burn() -> None:
    """What the counter-test adds: five milliseconds of a core."""
    until = time.thread_time() + 0.005
    while time.thread_time() < until:
        pass


def _steadily(rank: Rank, period_s: float, step: object) -> None:
    ticker = Ticker()
    time.sleep(0.5)
    ticker.gap = 0.0
    begin, used = time.perf_counter(), time.process_time()
    for number in range(int(_seconds(rank) / period_s)):
        step()  # type: ignore[operator]
        time.sleep(max(0.0, begin + number * period_s - time.perf_counter()))
    wall = time.perf_counter() - begin
    say(cpu_share=(time.process_time() - used) / wall, longest_stop_ms=ticker.gap * 1e3, wall=wall)
    rank.end_well()
