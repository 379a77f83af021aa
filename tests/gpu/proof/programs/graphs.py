"""CUDA graphs: captured beside operations in flight, by others, with collectives, compiled."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpu.proof.rank import Rank, say


def graph(rank: Rank) -> None:
    """Captures while operations are in flight, in the strictest mode; then captured collectives."""
    torch, dist = rank.torch, rank.dist
    y, side = torch.ones(16, device=rank.device), torch.cuda.Stream()
    _message(rank)  # communicators cannot be made while a graph is captured
    with dist._coalescing_manager():
        dist.all_reduce(rank.x)
        dist.all_reduce(y)
    with torch.cuda.stream(side):
        y.add_(1)
    rank.sync()
    failed = 0
    if rank.fault and rank.traced:  # what a tracer must not do
        threading.Thread(target=_query, args=(rank,), daemon=True).start()
    for _ in range(3):
        torch.cuda._sleep(2_000_000_000)
        dist.all_reduce(rank.x)  # in flight behind about a second of sleep
        for _ in range(20):
            failed += not _captures(rank, y, side)
        rank.sync()
    say(captures_failed=failed)
    for how in ("single", "coalesced", "send"):
        made = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(made):
                _issue(rank, how, y)
            for _ in range(3):
                made.replay()
            rank.sync()
            say(captured=how)
        except RuntimeError as error:
            say(not_captured=how, error=str(error)[:300])
    time.sleep(2)  # what is not over by now never is
    say(looked=True)
    os._exit(0)  # destroying a group with live graphs is another matter


def _query(rank: Rank) -> None:
    event = rank.torch.cuda.Event()
    event.record()
    while True:
        event.query()
        time.sleep(0.001)


def _captures(rank: Rank, y: Any, side: Any) -> bool:
    made = rank.torch.cuda.CUDAGraph()
    try:
        with rank.torch.cuda.stream(side):
            made.capture_begin()
            for _ in range(50):
                y.add_(1)
                time.sleep(0.0002)  # lets other Python threads run within the capture
            made.capture_end()
    except RuntimeError as error:
        say(capture_failed=str(error)[:300])
        return False
    return True


def _issue(rank: Rank, how: str, y: Any) -> None:
    if how == "single":
        rank.dist.all_reduce(rank.x)
    elif how == "coalesced":
        with rank.dist._coalescing_manager():
            rank.dist.all_reduce(rank.x)
            rank.dist.all_reduce(y)
    else:
        _message(rank)


def _message(rank: Rank) -> None:
    if rank.rank == 0:
        rank.dist.send(rank.x, 1)
    else:
        rank.dist.recv(rank.x, 0)


def live_graph(rank: Rank) -> None:
    """The groups are destroyed while a graph holds a collective: NCCL waits for the graph."""
    made = rank.graph()
    with rank.captured(made):
        rank.dist.all_reduce(rank.x)
    made.replay()
    rank.sync()
    if not rank.fault:
        del made
    say(blocks="destroy_process_group")
    rank.dist.destroy_process_group()
    say(ended=True)


def replays(rank: Rank) -> None:
    """A graph with two collectives is replayed; the fault: rank 1 replays it once less."""
    for _ in range(2):
        rank.dist.all_reduce(rank.x)
    rank.sync()
    made = rank.graph()
    with rank.captured(made):
        rank.dist.all_reduce(rank.x)
        rank.dist.all_reduce(rank.x)
    for step in range(4):
        if rank.absent() and step == 3:
            rank.never_come()
        made.replay()
    say(returned=True)
    rank.block()
    del made  # NCCL waits for it
    rank.end()


def foreign(rank: Rank) -> None:
    """A capture that no method of torch's began, beside operations in flight."""
    for _ in range(5):
        rank.dist.all_reduce(rank.x)
        with _captured_by_others(rank):
            rank.dist.all_reduce(rank.x)
        rank.dist.all_reduce(rank.x)
    rank.leave()


@contextmanager
def _captured_by_others(rank: Rank) -> Iterator[None]:
    if not rank.cuda:
        with sys.modules["torch._standin.graphs"].Foreign():
            yield
        return
    torch = rank.torch
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
    made = ctypes.c_void_p()
    with torch.cuda.stream(torch.cuda.Stream()):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert runtime.cudaStreamBeginCapture(stream, 1) == 0  # thread-local
        yield
        assert runtime.cudaStreamEndCapture(stream, ctypes.byref(made)) == 0


def reduce_overhead(rank: Rank) -> None:
    """torch.compile with graphs of CUDA, a collective in it."""
    from torch.distributed import _functional_collectives as functional

    def step(x: Any) -> Any:
        return functional.all_reduce(x * 2, "sum", rank.dist.group.WORLD) + 1

    step = rank.torch.compile(step, mode="reduce-overhead")
    for _ in range(6):
        step(rank.x)
    rank.leave()
