"""The operations that are measured, each a loop in a function of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from benchmarks.recorder.interleave import Case


def python_issued(group: Any) -> list[Case]:
    """Collectives by the public API, of four floats, on ``group``."""
    tensor = torch.ones(4)
    gathered = torch.ones(4 * dist.get_world_size(group))

    def all_reduce(n: int) -> None:
        for _ in range(n):
            dist.all_reduce(tensor, group=group)

    def all_reduce_async(n: int) -> None:
        for _ in range(n):
            dist.all_reduce(tensor, group=group, async_op=True).wait()

    def broadcast(n: int) -> None:
        for _ in range(n):
            dist.broadcast(tensor, 0, group=group)

    def all_gather_single(n: int) -> None:
        for _ in range(n):
            dist.all_gather_single(gathered, tensor, group=group)

    def all_gather_into_tensor(n: int) -> None:
        for _ in range(n):
            dist.all_gather_into_tensor(gathered, tensor, group=group)

    def barrier(n: int) -> None:
        for _ in range(n):
            dist.barrier(group=group)

    # Newer torches warn at each call of the old name, which costs more than the call.
    newer = hasattr(dist, "all_gather_single")
    return [
        Case("all_reduce", all_reduce),
        Case("all_reduce, async and wait", all_reduce_async),
        Case("broadcast", broadcast),
        Case("all_gather_into_tensor", all_gather_single if newer else all_gather_into_tensor),
        Case("barrier", barrier),
    ]


def messages(peer: int) -> list[Case]:
    """Sends and receives that nobody answers: only a backend without traffic returns."""
    tensor = torch.ones(4)

    def send(n: int) -> None:
        for _ in range(n):
            dist.send(tensor, peer)

    def recv(n: int) -> None:
        for _ in range(n):
            dist.recv(tensor, peer)

    def isend(n: int) -> None:
        for _ in range(n):
            dist.isend(tensor, peer).wait()

    return [Case("send", send), Case("recv", recv), Case("isend and wait", isend)]


def ping_pong(group: Any) -> list[Case]:
    """A message there and one back, between the two members of ``group``."""
    tensor = torch.ones(4)
    rank = dist.get_rank()

    def ping(n: int) -> None:
        for _ in range(n):
            dist.send(tensor, 1, group=group)
            dist.recv(tensor, 1, group=group)

    def pong(n: int) -> None:
        for _ in range(n):
            dist.recv(tensor, 0, group=group)
            dist.send(tensor, 0, group=group)

    return [Case("send and recv", pong if rank else ping, operations=2)]


def functional(group: Any) -> list[Case]:
    """A functional collective and its wait: issued by C++, without Python's methods."""
    import torch.distributed._functional_collectives

    tensor, name = torch.ones(4), group.group_name
    reduce, wait = torch.ops._c10d_functional.all_reduce, torch.ops._c10d_functional.wait_tensor

    def functional_all_reduce(n: int) -> None:
        for _ in range(n):
            wait(reduce(tensor, "sum", name))

    return [Case("functional all_reduce and wait", functional_all_reduce)]


def composed(group: Any) -> list[Case]:
    """Calls that issue several operations, and those of libraries of tensors."""
    import torch.distributed._functional_collectives as functional
    from torch.distributed.tensor import DTensor, Partial, Replicate

    tensor, objects = torch.ones(4), [{"step": 1}, None]
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(group),))
    partial = DTensor.from_local(tensor, mesh, [Partial()])

    def batch(size: int) -> Any:
        kinds = (dist.isend, dist.irecv) * (size // 2)
        messages = [dist.P2POp(kind, tensor, 1) for kind in kinds]

        def batch_isend_irecv(n: int) -> None:
            for _ in range(n):
                for work in dist.batch_isend_irecv(messages):
                    work.wait()

        return batch_isend_irecv

    def all_gather(n: int) -> None:
        gathered = [torch.ones(4), torch.ones(4)]
        for _ in range(n):
            dist.all_gather(gathered, tensor, group=group)

    def isend_and_irecv(n: int) -> None:
        for _ in range(n):
            sent, received = dist.isend(tensor, 1), dist.irecv(tensor, 1)
            sent.wait()
            received.wait()

    def coalescing_manager(n: int) -> None:
        for _ in range(n):
            with dist.distributed_c10d._coalescing_manager(group):
                dist.all_reduce(tensor, group=group)
                dist.all_reduce(tensor, group=group)

    def all_gather_object(n: int) -> None:
        for _ in range(n):
            dist.all_gather_object([None, None], objects)

    def broadcast_object_list(n: int) -> None:
        for _ in range(n):
            dist.broadcast_object_list(objects, 0)

    def functional_all_reduce(n: int) -> None:
        for _ in range(n):
            functional.wait_tensor(functional.all_reduce(tensor, "sum", group))

    def redistribute(n: int) -> None:
        for _ in range(n):
            partial.redistribute(mesh, [Replicate()]).to_local()

    return [
        Case("all_gather", all_gather),
        Case("isend, irecv and waits", isend_and_irecv),
        Case("coalescing manager of 2", coalescing_manager),
        Case("batch_isend_irecv of 2", batch(2)),
        Case("batch_isend_irecv of 8", batch(8)),
        Case("all_gather_object", all_gather_object),
        Case("broadcast_object_list", broadcast_object_list),
        Case("functional.all_reduce and wait", functional_all_reduce),
        Case("DTensor.redistribute", redistribute),
    ]


def store_operations(hash_store: Any, tcp_store: Any) -> list[Case]:
    """Set and get on a store in this process, and on one behind a socket."""

    def hash_set(n: int) -> None:
        for _ in range(n):
            hash_store.set("step/17", "ready")

    def hash_get(n: int) -> None:
        for _ in range(n):
            hash_store.get("step/17")

    def tcp_set(n: int) -> None:
        for _ in range(n):
            tcp_store.set("step/17", "ready")

    def tcp_get(n: int) -> None:
        for _ in range(n):
            tcp_store.get("step/17")

    return [
        Case("HashStore.set", hash_set),
        Case("HashStore.get", hash_get),
        Case("TCPStore.set", tcp_set),
        Case("TCPStore.get", tcp_get),
    ]
