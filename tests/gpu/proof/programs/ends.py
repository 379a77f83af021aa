"""Jobs that torch, a device or the program itself ends: watchdogs, aborts, failures of a device."""

from __future__ import annotations

import os
import signal
import sys
import time

from gpu.proof.rank import SLEEP, Rank, say


def _after(rank: Rank) -> None:
    """What the host does once it goes on: it looks, and ends itself."""
    time.sleep(3)
    say(looked=True)
    os._exit(3)


def watchdog(rank: Rank) -> None:
    """The group's time-out strikes, in whichever mode."""
    if rank.absent():
        time.sleep(SLEEP)
    rank.dist.all_reduce(rank.x)
    say(returned=True)
    rank.block()
    _after(rank)


def peer_killed(rank: Rank) -> None:
    """No time-out: the connection to rank 1 breaks."""
    if rank.rank == 1 and rank.fault:
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)
    rank.dist.all_reduce(rank.x)
    say(returned=True)
    rank.block()
    _after(rank)


def blocking(rank: Rank) -> None:
    """TORCH_NCCL_BLOCKING_WAIT=1: the wait raises, here in Python."""
    if rank.absent():
        time.sleep(SLEEP)
    work = rank.dist.all_reduce(rank.x, async_op=True)
    try:
        work.wait()
    except Exception as error:
        say(raised=type(error).__name__, text=str(error)[:200])
    time.sleep(1.5)
    say(looked=True)
    os._exit(3)


def abort(rank: Rank) -> None:
    """The program aborts its groups itself, as torchft and in-process restarts do."""
    if rank.absent():
        time.sleep(SLEEP)
    rank.kept = rank.dist.all_reduce(rank.x, async_op=True)
    time.sleep(2)
    rank.dist.distributed_c10d._abort_process_group()
    _after(rank)


def shrink(rank: Rank) -> None:
    """It goes on without rank 1, and what was in flight with it is aborted."""
    if rank.absent():
        time.sleep(SLEEP)
    rank.kept = rank.dist.all_reduce(rank.x, async_op=True)
    time.sleep(2)
    if rank.cuda:
        rank.dist.shrink_group([1], shrink_flags=1)
    elif rank.fault:
        rank.dist.group.WORLD.shrink([1], 1)
    _after(rank)


def device_assert(rank: Rank) -> None:
    """A kernel's assertion fails; rank 0 finds out where it waits next."""
    if rank.fault:
        if rank.cuda:
            rank.torch.zeros(4, device=rank.device)[rank.torch.tensor([9], device=rank.device)]
        else:
            _fail("device-side assert triggered")
    _use(rank)


def illegal_access(rank: Rank) -> None:
    """A kernel reads where nothing is."""
    if rank.fault:
        if rank.cuda:
            index = rank.torch.full((1 << 20,), 1 << 40, device=rank.device)
            rank.torch.take(rank.x, index)
        else:
            _fail("an illegal memory access was encountered")
    _use(rank)


def _fail(text: str) -> None:
    sys.modules["torch._standin.graphs"].fail(text)


def _use(rank: Rank) -> None:
    rank.kept = [rank.dist.all_reduce(rank.x, async_op=True) for _ in range(5)]
    time.sleep(2)
    rank.sync()
