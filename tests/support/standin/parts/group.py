"""The operations of a group, by what its members send each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from .enqueuing import Enqueues
from .wire import wire

Given = list[Any]  # of each member
REDUCE = {
    "SUM": lambda a, b: a + b, "AVG": lambda a, b: a + b, "PRODUCT": lambda a, b: a * b,
    "MAX": torch.maximum, "MIN": torch.minimum,
}  # fmt: skip


class StandIn(Enqueues):
    """Named after the class of torch's that it stands for."""

    # Collectives.
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._reduce("all_reduce", tensors, opts, None)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._reduce("reduce", tensors, opts, opts.rootRank)

    def _reduce(self, name: str, tensors: Any, opts: Any, root: int | None) -> Any:
        given_op = getattr(opts, "reduceOp", c10d.ReduceOp.SUM)
        how = next(each for each in REDUCE if given_op == getattr(c10d.ReduceOp, each))

        def write(all_given: Given) -> None:
            if root is not None and root != self._rank:
                return
            for index, tensor in enumerate(tensors):
                total = all_given[0][index]
                for given in all_given[1:]:
                    total = REDUCE[how](total, given[index])
                tensor.copy_(total / self._size if how == "AVG" else total)

        return self._issue(name, tensors, write, opts, same=[t.numel() for t in tensors])

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self._reduce("allreduce_coalesced", tensors, opts, None)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        root = opts.rootRank

        def write(all_given: Given) -> None:
            for tensor, given in zip(tensors, all_given[root], strict=True):
                tensor.copy_(given)

        return self._issue(
            "broadcast", tensors, write, opts, same=[root, *(t.numel() for t in tensors)]
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def write(all_given: Given) -> None:
            for output, given in zip(outputs[0], all_given, strict=True):
                output.copy_(given[0])

        sizes = [output.numel() for output in outputs[0]]
        return self._issue("all_gather", inputs, write, opts, same=sizes)

    def _allgather_base(self, output: Any, given: Any, opts: Any = None) -> Any:
        def write(all_given: Given) -> None:
            output.copy_(torch.cat([each[0].flatten() for each in all_given]).view_as(output))

        return self._issue("_all_gather_base", [given], write, opts, same=given.numel())

    def _reduce_scatter_base(self, output: Any, given: Any, opts: Any = None) -> Any:
        def write(all_given: Given) -> None:
            total = sum(each[0].flatten() for each in all_given)
            output.copy_(total.chunk(self._size)[self._rank].view_as(output))

        return self._issue("_reduce_scatter_base", [given], write, opts, same=given.numel())

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def write(all_given: Given) -> None:
            outputs[0].copy_(sum(each[self._rank] for each in all_given))

        sizes = [each.numel() for each in inputs[0]]
        return self._issue("reduce_scatter", inputs[0], write, opts, same=sizes)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def write(all_given: Given) -> None:
            if self._rank == opts.rootRank:
                for output, given in zip(outputs[0], all_given, strict=True):
                    output.copy_(given[0])

        return self._issue("gather", inputs, write, opts, same=opts.rootRank)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def write(all_given: Given) -> None:
            outputs[0].copy_(all_given[opts.rootRank][self._rank])

        mine = inputs[0] if inputs else []
        return self._issue("scatter", mine, write, opts, same=opts.rootRank)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def write(all_given: Given) -> None:
            for output, given in zip(outputs, all_given, strict=True):
                output.copy_(given[self._rank])

        return self._issue("all_to_all", inputs, write, opts)

    def alltoall_base(
        self, output: Any, given: Any, out_splits: Any, in_splits: Any, opts: Any = None
    ) -> Any:
        def write(all_given: Given) -> None:
            output.copy_(torch.cat([each[self._rank] for each in all_given]))

        parts = given.split(list(in_splits)) if in_splits else given.chunk(self._size)
        return self._issue("all_to_all", list(parts), write, opts)

    # The names that torch calls from 2.13 on: by its own it would take None for a Work.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> Any:
        """An all-reduce of one element; a synchronous one blocks the host."""
        work = self._issue("barrier", [torch.zeros(1)], lambda _: None, opts, same=[1])
        if not getattr(opts, "asyncOp", False) and self._last is not None:
            self._last.done.wait()
        return work

    # P2P operations.
    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        def run(key: Any, sent: list[Any]) -> None:
            wire().send(self.members[peer], (*key, "data"), sent)
            wire().receive((*key, "taken"))

        route = ("p2p", self._rank, peer)
        return self.enqueue(f"send {self._rank}->{peer}", ("to", peer), run, tensors, route=route)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        def run(key: Any, _: list[Any]) -> None:
            given = wire().receive((*key, "data"))
            for tensor, each in zip(tensors, given, strict=True):
                if tensor.numel() != each.numel():
                    threading.Event().wait()  # as a kernel that waits for more
                tensor.copy_(each)
            wire().send(self.members[peer], (*key, "taken"), True)

        route = ("p2p", peer, self._rank)
        name = f"recv {self._rank}<-{peer}"
        return self.enqueue(name, ("from", peer), run, tensors, route=route)

    def _issue(
        self, name: str, given: Any, write: Callable[[Given], None], opts: Any, *, same: Any = None
    ) -> Any:
        """All members tell each other what they have, and write what comes of it."""

        def run(key: Any, sent: list[Any]) -> None:
            for rank, member in enumerate(self.members):
                if rank != self._rank:
                    wire().send(member, (*key, self._rank), (name, same, sent))
            told = [
                (name, same, sent) if rank == self._rank else wire().receive((*key, rank))
                for rank in range(self._size)
            ]
            if any(each[:2] != told[0][:2] for each in told):
                threading.Event().wait()  # kernels that wait for what the others do not send
            write([each[2] for each in told])

        asynchronous = bool(getattr(opts, "asyncOp", True))
        return self.enqueue(name, "collective", run, given, asynchronous=asynchronous)
