"""Remote calls of every form in one process, traced where a folder is given; prints what they gave,
and whether torch's functions for them are as they were."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed.rpc as rpc
from torch.distributed.rpc import api, internal

import disttrace


def add(x: int, y: int = 1) -> int:
    """Runs on the worker that is asked."""
    return x + y


def fail(x: int) -> None:
    """Raises there."""
    raise ValueError(f"no {x}")


FUNCTIONS = (
    api.rpc_sync.__wrapped__, api.shutdown.__wrapped__, internal._run_function, rpc.init_rpc,
)  # fmt: skip


def main() -> None:
    """Call, wait, fetch, fail, and end."""
    before = [function.__code__ for function in FUNCTIONS]
    classes = [(rpc.PyRRef, "to_here"), (torch._C.Future, "wait")]
    methods = [owner.__dict__[name] for owner, name in classes]
    if sys.argv[2]:
        disttrace.install(dir=sys.argv[2])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
    rpc.init_rpc("worker0", rank=0, world_size=1)
    print(rpc.rpc_sync("worker0", add, args=(1,)), rpc.rpc_sync(to=0, func=add, kwargs={"x": 2}))
    print(rpc.rpc_async("worker0", add, args=(3,)).wait(), torch.futures.Future().done())
    print(rpc.remote("worker0", add, args=(4,)).to_here())
    try:
        rpc.rpc_sync("worker0", fail, args=(5,))
    except ValueError as error:
        print(str(error).splitlines()[1])
    rpc.shutdown()
    same = [function.__code__ for function in FUNCTIONS] == before
    print(same and [owner.__dict__[name] for owner, name in classes] == methods)


if __name__ == "__main__":
    main()
