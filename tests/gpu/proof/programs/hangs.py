"""Jobs that hang, each for one reason; without its fault each goes on."""

from __future__ import annotations

import os
import signal
import threading
import time

from gpu.proof.rank import Rank, Ticker, say


def missing(rank: Rank) -> None:
    """Rank 1 never comes, and the host blocks in `.item()`."""
    Ticker()
    if rank.absent():
        rank.never_come()  # <- SLEEP
    rank.dist.all_reduce(rank.x)  # <- REDUCE
    say(returned=True)
    rank.block()


def missing_sync(rank: Rank) -> None:
    """The host blocks in synchronize."""
    Ticker()
    if rank.absent():
        rank.never_come()
    rank.dist.all_reduce(rank.x)
    say(returned=True, blocks="synchronize")
    rank.torch.cuda.synchronize()


def missing_free(rank: Rank) -> None:
    """The host blocks in cudaFree, which holds the driver's lock."""
    Ticker()
    big = rank.torch.empty(256 << 20, dtype=rank.torch.uint8, device=rank.device)
    if rank.absent():
        rank.never_come()
    rank.dist.all_reduce(rank.x)
    del big
    say(returned=True, blocks="empty_cache")
    rank.torch.cuda.empty_cache()
    say(freed=True)
    rank.block()


def order(rank: Rank) -> None:
    """Two groups in opposite order."""
    groups = [rank.dist.new_group([0, 1]) for _ in range(2)]
    for group in groups:
        rank.dist.all_reduce(rank.x, group=group)
    rank.sync()
    first, second = groups[::-1] if rank.absent() else groups
    rank.dist.all_reduce(rank.x, group=first)
    rank.block()
    rank.dist.all_reduce(rank.x, group=second)


def other_op(rank: Rank) -> None:
    """Rank 1 calls another collective."""
    if rank.absent():
        rank.dist.all_gather([rank.torch.zeros_like(rank.x) for _ in range(2)], rank.x)
    else:
        rank.dist.all_reduce(rank.x)
    rank.block()


def never_waited(rank: Rank) -> None:
    """Asynchronous, never waited for, on a group of its own; the host goes on with its life."""
    group = rank.dist.new_group([0, 1])
    rank.dist.all_reduce(rank.x, group=group)
    rank.sync()
    if rank.absent():
        rank.never_come()
    kept = rank.dist.all_reduce(rank.x.clone(), group=group, async_op=True)
    say(returned=True)
    y = rank.torch.ones(256, 256, device=rank.device)
    while not kept.is_completed() or rank.fault:
        (y @ y).sum()
        time.sleep(0.01)


def send(rank: Rank) -> None:
    """A warm pair, then a send that nobody receives."""
    big = rank.torch.ones(1 << 22, device=rank.device)
    if rank.rank == 0:
        rank.dist.send(rank.x, 1)
        rank.sync()
        rank.dist.send(big, 1)
        say(returned=True)
        rank.block()
        rank.sync()
    else:
        rank.dist.recv(rank.x, 0)
        rank.sync()
        if rank.fault:
            rank.never_come()
        rank.dist.recv(big, 0)
        rank.sync()


def batch(rank: Rank) -> None:
    """1F1B, and rank 1 leaves one batch out."""
    dist = rank.dist
    for step in range(3):
        if rank.absent() and step == 2:
            rank.never_come()
        into = rank.torch.empty_like(rank.x)
        both = [dist.P2POp(dist.isend, rank.x, rank.peer), dist.P2POp(dist.irecv, into, rank.peer)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        if step == 2:
            say(returned=True)
        into.sum().item()


def killed(rank: Rank) -> None:
    """Rank 1 is killed; rank 0 waits for it."""
    if rank.rank == 1:
        time.sleep(1)
        if rank.fault:
            os.kill(os.getpid(), signal.SIGKILL)
    rank.dist.all_reduce(rank.x)
    say(returned=True)
    rank.block()


def evicted(rank: Rank) -> None:
    """A hung operation, and more newer entries than the flight recorder keeps (50 here)."""
    group, other = rank.dist.new_group([0, 1]), rank.dist.new_group([0, 1])
    for one in (group, other):
        rank.dist.all_reduce(rank.x, group=one)
    rank.sync()
    y = rank.x.clone()
    if rank.rank == 0 or not rank.fault:
        kept = rank.dist.all_reduce(rank.x, group=group, async_op=True)
        say(hung=True, kept=repr(type(kept)))
    for _ in range(120):
        rank.dist.all_reduce(y, group=other, async_op=True)
        time.sleep(0.01)
    say(looked=True)
    if rank.fault:
        rank.never_come()


def threads(rank: Rank) -> None:
    """A thread's hung operation begins during the long first call of another, which ends well."""
    hung, fresh = (rank.dist.new_group([0, 1]) for _ in range(2))
    rank.dist.all_reduce(rank.x, group=hung)
    rank.sync()
    y = rank.x.clone()

    def hang() -> None:
        rank.torch.cuda.set_device(rank.device)
        time.sleep(0.05)
        rank.kept = rank.dist.all_reduce(y, group=hung, async_op=True)

    if rank.rank == 0 or not rank.fault:
        threading.Thread(target=hang).start()
    begin = time.perf_counter()
    side = rank.torch.cuda.Stream()
    with rank.torch.cuda.stream(side):
        rank.dist.all_reduce(rank.x, group=fresh)  # makes its communicator: takes long
        took = time.perf_counter() - begin
        side.synchronize()
    say(first_call_s=took, looked=True)
    rank.never_come()
