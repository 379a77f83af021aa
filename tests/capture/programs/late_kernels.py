"""What brings the kernels of operations issued by C++ into a process, and what does not.

    python late_kernels.py FOLDER

Prints one line per case: its name, whether kernels stood on the operators of c10d before it and
after it, and what it issued, to be compared with the journal in FOLDER/NAME.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives
import torch.profiler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import disttrace

THREADS = 4
F = torch.ops._c10d_functional


def name() -> str:
    return str(dist.group.WORLD.group_name)


def ones() -> torch.Tensor:
    return torch.ones(4)


def nothing() -> dict[str, int]:
    """Imports alone, and Python's own calls."""
    dist.all_reduce(ones())
    return {"all_reduce": 1}


def profiler() -> dict[str, int]:
    """torch.profiler imports functional collectives."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        dist.all_reduce(ones())
    return {"all_reduce": 1}


def functional() -> dict[str, int]:
    """A functional collective is recorded though it is the first."""
    F.wait_tensor(F.all_reduce(ones(), "sum", name()))
    return {"all_reduce": 1}


def out_argument() -> dict[str, int]:
    """One with an argument by name only."""
    F.wait_tensor(F.all_gather_into_tensor_out(ones(), 2, name(), out=torch.ones(8)))
    return {"all_gather_into_tensor": 1}


def coalesced() -> dict[str, int]:
    for tensor in F.all_reduce_coalesced_([ones(), ones()], "sum", name()):
        F.wait_tensor(tensor)
    return {"all_reduce": 1}


def inference() -> dict[str, int]:
    with torch.inference_mode():
        F.wait_tensor(F.reduce_scatter_tensor(torch.ones(8), "sum", 2, name()))
    return {"reduce_scatter_tensor": 1}


class Passing(TorchDispatchMode):
    """Passes on what it is given."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Named(torch.Tensor):
    """A subclass that leaves all to torch."""


def taken() -> dict[str, int]:
    """What a mode or subclass takes is recorded where it runs, and nothing that is only traced."""

    def reduce(x: torch.Tensor) -> torch.Tensor:
        reduced: torch.Tensor = F.wait_tensor(F.all_reduce(x, "sum", name()))
        return reduced

    fake = FakeTensorMode()
    for x in (ones(), ones(), ones(), ones().as_subclass(Named), torch.nn.Parameter(ones())):
        with torch.no_grad():
            reduce(x)
        with fake:
            reduce(torch.ones(4))
        reduce(fake.from_tensor(ones()))
    with Passing():
        reduce(ones())
    with Passing(), Passing(), torch.device("cpu"):
        reduce(ones())
    return {"all_reduce": 7}


def autograd() -> dict[str, int]:
    """The operators of autograd issue by themselves forwards and, in its thread, backwards."""
    x = torch.ones(4, requires_grad=True)
    torch.ops._c10d_functional_autograd.all_gather_into_tensor(x, 2, name()).sum().backward()
    return {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 1}


def threads() -> dict[str, int]:
    """Several threads issue their first at once: none passes between half of the kernels."""
    start = threading.Barrier(THREADS)

    def issue() -> None:
        x = ones()
        start.wait()
        F.wait_tensor(F.all_reduce(x, "sum", name()))

    workers = [threading.Thread(target=issue) for _ in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"all_reduce": THREADS}


def looked_up() -> dict[str, int]:
    """The operators of c10d, called from Python."""
    torch.ops.c10d.broadcast_([ones()], dist.group.WORLD.boxed(), 0, 0, True, -1)
    del torch.ops.c10d
    return {"broadcast": 1}


def library() -> dict[str, int]:
    """Compiled models call entry points of C, which pass no operator of functional collectives."""
    try:
        torch._C._aoti.AOTIModelContainerRunnerCpu("no such file", 1)
    except RuntimeError:
        pass
    cpu = ctypes.CDLL(f"{os.path.dirname(torch.__file__)}/lib/libtorch_cpu.so")
    if not hasattr(cpu, "aoti_torch_cpu__c10d_functional_all_reduce_"):
        dist.all_reduce(ones())  # this torch has no such entry point
        return {"all_reduce": 1}
    x = ones()
    capsule = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(x)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    entry, result = cpu.aoti_torch_cpu__c10d_functional_all_reduce_, ctypes.c_void_p()
    entry.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
    assert entry(pointer(capsule, None), b"sum", name().encode(), ctypes.byref(result)) == 0
    return {"all_reduce": 1}


def reducer() -> dict[str, int]:
    """What DDP's constructor does first goes to the others."""
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    return {}


CASES: tuple[Callable[[], dict[str, int]], ...] = (
    nothing, profiler, functional, out_argument, coalesced, inference, taken, autograd, threads,
    looked_up, library, reducer,
)  # fmt: skip


def kernels(namespace: str) -> list[str]:
    """Operators of a namespace that Python runs first."""
    found = []
    for operator in torch._C._dispatch_get_all_op_names():
        if operator.startswith(f"{namespace}::") and "." not in operator:
            table = torch._C._dispatch_dump_table(operator).splitlines()
            (line,) = (line for line in table if line.startswith("BackendSelect"))
            if "fallthrough" not in line:
                found.append(operator.partition("::")[2])
    return sorted(found)


def classes() -> dict[str, type]:
    objects = {}
    for namespace in (F, torch.ops._c10d_functional_autograd):
        for name in dir(namespace):
            packet = getattr(namespace, name)
            if isinstance(packet, torch._ops.OpOverloadPacket):
                objects[f"{namespace.name}.{name}"] = type(packet)
                objects[f"{namespace.name}.{name}.default"] = type(packet.default)
    return objects


def main(folder: str) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    for operator in torch._C._dispatch_get_all_op_names():  # dir() tells those that were used
        namespace, _, found = operator.partition("::")
        if namespace.startswith("_c10d_functional") and "." not in found:
            getattr(getattr(torch.ops, namespace), found)
    plain = classes()
    for case in CASES:
        disttrace.install(dir=f"{folder}/{case.__name__}")
        said: dict[str, Any] = {"name": case.__name__, "before": bool(kernels("c10d"))}
        said["hooks"] = hasattr(dist.ProcessGroup, "register_pre_hook")
        said["issued"] = case()
        said["after"] = bool(kernels("c10d"))
        said["functional"] = kernels("_c10d_functional")
        said["watched"] = [name for name, one in classes().items() if plain.get(name, one) != one]
        disttrace.uninstall()
        said["left"] = kernels("c10d") + kernels("_c10d_functional")
        said["left"] += [name for name, kind in classes().items() if plain.get(name, kind) != kind]
        print(json.dumps(said), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
