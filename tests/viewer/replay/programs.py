"""Programs that end well here; the first kind would hang where nothing is let pass.

Each is run in real ranks, forked from one interpreter. ``fake`` lets every message pass, as
networks do with small ones; gloo lets ranks leave rooted collectives early; and what is ordered on
a device is not ordered here, so those are judged as if they had run there (``device``).
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg

import disttrace
import disttrace.capture.parts
import disttrace.session


@dataclass(frozen=True)
class Program:
    """``stuck``: the ranks that are told to wait; none of a healthy one."""

    run: Callable[[int, int], None]
    world: int
    backend: str
    stuck: tuple[int, ...]
    device: bool


PROGRAMS: dict[str, Program] = {}
T = torch.ones(4)


def program(
    world: int = 2, *stuck: int, backend: str = "gloo", device: bool = False
) -> Callable[[Callable[[int, int], None]], None]:
    def take(run: Callable[[int, int], None]) -> None:
        PROGRAMS[run.__name__] = Program(run, world, backend, stuck, device)

    return take


def other() -> torch.Tensor:
    return torch.zeros(4)


# -- every send waits for its receive --------------------------------------------------------------


@program(2, 0, 1, backend="fake")
def both_send_first(r: int, n: int) -> None:
    dist.send(T, 1 - r)
    dist.recv(other(), 1 - r)


@program(2, 0, 1, backend="fake")
def batches_one_by_one(r: int, n: int) -> None:
    for one in (dist.P2POp(dist.isend, T, 1 - r), dist.P2POp(dist.irecv, other(), 1 - r)):
        for work in dist.batch_isend_irecv([one]):
            work.wait()


@program(2, 0, 1, backend="fake")
def send_before_a_collective(r: int, n: int) -> None:
    if r == 0:
        dist.send(T, 1)
    dist.all_reduce(T.clone())
    if r == 1:
        dist.recv(other(), 0)


@program(2, 0, 1, backend="fake")
def tags_in_other_order(r: int, n: int) -> None:
    for tag in (1, 2) if r == 0 else (2, 1):
        dist.send(T, 1, tag=tag) if r == 0 else dist.recv(other(), 0, tag=tag)


@program(2, 0, 1, backend="fake")
def groups_in_other_order(r: int, n: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups if r == 0 else groups[::-1]:
        dist.send(T, 1, group=group) if r == 0 else dist.recv(other(), 0, group=group)


@program(2, 1, backend="fake")
def told_by_the_store(r: int, n: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if r == 0:
        dist.send(T, 1)
        store.set("go", b"1")
    else:
        store.get("go")
        dist.recv(other(), 0)


@program(3, 0, 1, 2, backend="fake")
def triangle(r: int, n: int) -> None:
    dist.barrier()
    if r == 2:
        dist.recv(other(), 1)
        dist.recv(other(), 0)
    else:
        dist.send(T, 2) if r == 0 else None
        dist.recv(other(), 0) if r == 1 else dist.send(T, 1)
        dist.send(T, 2) if r == 1 else None


@program(2, 0, backend="fake")
def send_that_nobody_receives(r: int, n: int) -> None:
    if r == 0:
        dist.send(T, 1)


# -- gloo lets ranks leave rooted collectives, and forgets messages --------------------------------


@program(3, 1, 2)
def gather_then_send(r: int, n: int) -> None:
    if r == 2:
        dist.recv(other(), 1)
    dist.gather(T, [other() for _ in range(n)] if r == 0 else None, 0)
    if r == 1:
        dist.send(T, 2)


@program(4, 0, 3)
def broadcast_then_send(r: int, n: int) -> None:
    if r == 3:
        dist.recv(other(), 0)
    dist.broadcast(T.clone(), 0)
    if r == 0:
        dist.send(T, 3)


@program(2, 0)
def isend_never_waited(r: int, n: int) -> None:
    if r == 0:
        dist.isend(T, 1)
    dist.barrier()


# -- a device runs what is of one stream in its order ----------------------------------------------


@program(2, 0, 1, device=True)
def irecv_first_on_both_sides(r: int, n: int) -> None:
    works = [dist.irecv(other(), 1 - r), dist.isend(T, 1 - r)]
    for work in works:
        work.wait()


@program(2, 0, 1, device=True)
def batch_before_a_collective(r: int, n: int) -> None:
    op = dist.P2POp(dist.isend, T, 1) if r == 0 else dist.P2POp(dist.irecv, other(), 0)
    if r == 0:
        works = [*dist.batch_isend_irecv([op]), dist.all_reduce(T.clone(), async_op=True)]
    else:
        works = [dist.all_reduce(T.clone(), async_op=True), *dist.batch_isend_irecv([op])]
    for work in works:
        assert work is not None
        work.wait()


# -- healthy ---------------------------------------------------------------------------------------


@program(2, device=True)
def ping_pong(r: int, n: int) -> None:
    for _ in range(5):
        dist.send(T, 1) if r == 0 else dist.recv(other(), 0)
        dist.recv(other(), 1) if r == 0 else dist.send(T, 0)
        dist.all_reduce(T.clone())


@program(3, device=True)
def ring_by_batches(r: int, n: int) -> None:
    for _ in range(4):
        ops = [dist.P2POp(dist.isend, T, (r + 1) % n), dist.P2POp(dist.irecv, other(), (r - 1) % n)]
        for work in dist.batch_isend_irecv(ops if r else ops[::-1]):
            work.wait()


@program(2)
def async_sends_waited_in_the_end(r: int, n: int) -> None:
    works = [dist.isend(T, 1 - r) for _ in range(3)]
    for _ in range(3):
        dist.recv(other(), 1 - r)
    for work in works:
        work.wait()
    dist.all_reduce(T.clone())


@program(4, device=True)
def one_forward_one_backward(r: int, n: int) -> None:
    """Warm-up, steady state and cool-down of four stages, as Megatron issues them."""

    def talk(*ops: tuple[Callable[..., object], int]) -> None:
        found = [dist.P2POp(op, T if op is dist.isend else other(), peer) for op, peer in ops]
        for work in dist.batch_isend_irecv(found) if found else ():
            work.wait()

    send, recv = dist.isend, dist.irecv
    up, down, last, first = r + 1, r - 1, r == n - 1, r == 0
    microbatches = 6
    warm = min(n - r - 1, microbatches)
    for _ in range(warm):
        talk(*([] if first else [(recv, down)]))
        talk(*([] if last else [(send, up)]))
    steady = microbatches - warm
    if steady:
        talk(*([] if first else [(recv, down)]))
    for i in range(steady):
        talk(*([] if last else [(send, up), (recv, up)]))
        if i + 1 < steady:
            talk(*([] if first else [(send, down), (recv, down)]))
        else:
            talk(*([] if first else [(send, down)]))
    for _ in range(warm):
        talk(*([] if last else [(recv, up)]))
        talk(*([] if first else [(send, down)]))
    dist.barrier()


@program(3)
def from_any_source(r: int, n: int) -> None:
    if r == 0:
        for _ in range(2 * (n - 1)):
            dist.recv(other())
    else:
        dist.send(T, 0)
        dist.send(T, 0)


@program(2)
def two_threads(r: int, n: int) -> None:
    groups = [dist.new_group([0, 1]) for _ in range(2)]

    def go(group: dist.ProcessGroup, first: bool) -> None:
        for _ in range(3):
            dist.send(T, 1 - r, group=group) if first else dist.recv(other(), 1 - r, group=group)
            dist.recv(other(), 1 - r, group=group) if first else dist.send(T, 1 - r, group=group)

    threads = [threading.Thread(target=go, args=(g, r == i)) for i, g in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@program(2)
def asked_of_the_store(r: int, n: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    for step in range(3):
        if r == 0:
            store.set(f"go{step}", b"1")
            dist.send(T, 1)
        else:
            store.wait([f"go{step}"])
            dist.recv(other(), 0)
    dist.barrier()


@program(4, device=True)
def groups_and_objects(r: int, n: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = groups[r // 2]
    found: list[object] = [None] * n
    dist.all_gather_object(found, r)
    for _ in range(3):
        work = dist.all_reduce(T.clone(), group=own, async_op=True)
        dist.broadcast(T.clone(), 0)
        assert work is not None
        work.wait()
    dist.broadcast_object_list(found, src=2)
    dist.barrier(own)


@program(2, device=True)
def data_parallel(r: int, n: int) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()


# -- running them ----------------------------------------------------------------------------------


def rank(name: str, r: int, folder: str) -> None:
    one = PROGRAMS[name]
    os.environ.update(RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(one.world))
    disttrace.install(dir=folder)
    torch.set_num_threads(1)
    os.makedirs(folder, exist_ok=True)
    store = dist.FileStore(f"{folder}/store", one.world)
    dist.init_process_group(one.backend, store=store, rank=r, world_size=one.world)
    dist.barrier()  # whoever ends before all are connected breaks their start
    one.run(r, one.world)
    dist.destroy_process_group()


def main(folder: str, names: list[str]) -> None:
    """Run some programs, a few at a time; 1 at the end where a rank did not end well."""
    code = 0
    expected = {name: (PROGRAMS[name].stuck, PROGRAMS[name].device) for name in names}
    Path(folder, "expected.json").write_text(json.dumps(expected))
    for first in range(0, len(names), 4):
        pids = []
        for name in names[first : first + 4]:
            for r in range(PROGRAMS[name].world):
                pid = os.fork()
                if not pid:
                    rank(name, r, f"{folder}/{name}")
                    os._exit(0)  # to take the interpreter down costs more than the program
                pids.append(pid)
        code |= max(os.waitpid(pid, 0)[1] for pid in pids)
    sys.exit(int(code != 0))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or [*PROGRAMS])
