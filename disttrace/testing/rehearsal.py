"""A rank of ``disttrace check``: the program as ``__main__``, with gloo and the CPU for a device.

What is replaced is replaced in ranks that ``check`` forked, and nowhere else. A device that the
program names (``torch.device("cuda", rank)``) keeps that name; what it makes there is on the CPU.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import inspect
import mmap
import os
import re
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from disttrace import session
from disttrace.journal.code_files import is_library

_HOST = ("gloo", "mpi", "fake", "cpu:gloo", "undefined")
_UNSEEN = "<frozen disttrace.testing.rehearsal>"
"""Frames of code in such a file are of no program, so the line shown is the program's own."""
_RUNPY = ("<frozen runpy>", runpy.__file__)
_NO_DEVICE = re.compile(
    r"not compiled with CUDA|NVIDIA driver|CUDA error|no CUDA GPUs|invalid device ordinal|CUDA_HOME"
    r"|cuda runtime|'cuda' backend|flash.?attn|flash attention|triton|needs? a GPU|requires? CUDA"
    r"|not implemented for 'cpu'|0 active drivers|is not currently supported on.{0,200} cpu",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Program:
    """``target`` is a script, or with ``module`` the name of a module."""

    target: str
    args: tuple[str, ...]
    module: bool = False


class Notes:
    """What a rank reports while it runs, and when it cannot go on: memory shared with ``check``."""

    CANNOT, DEVICE = 1, 2
    """Places of a sentence: that it cannot go on, which device it wanted."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._memory = mmap.mmap(-1, mmap.PAGESIZE * ranks)
        self._steps = memoryview(self._memory).cast("q")[:: mmap.PAGESIZE // 8]

    def step(self, rank: int) -> int:
        """Count a step of an optimizer; how many there were."""
        self._steps[rank] += 1
        return self._steps[rank]

    def tell(self, rank: int, what: str, place: int) -> None:
        data = what.encode("utf-8", "replace")[:1000]
        start = rank * mmap.PAGESIZE + 1024 * place
        self._memory[start : start + 1024] = data.ljust(1024, b"\0")

    def sentences(self, place: int) -> list[str]:
        starts = (rank * mmap.PAGESIZE + 1024 * place for rank in range(self._ranks))
        found = (self._memory[start : start + 1024].rstrip(b"\0") for start in starts)
        return [data.decode("utf-8", "replace") for data in found if data]

    @property
    def steps(self) -> int:
        """Steps that all ranks have done."""
        return min(self._steps)


def rehearse(
    program: Program, rank: int, notes: Notes, *, steps: int | None, map_device: bool
) -> int:
    """Run the program in this process, which is a rank; its exit code."""
    import torch

    import disttrace

    torch.set_num_threads(1)
    disttrace.install()
    _use_gloo(lambda name: notes.tell(rank, name, Notes.DEVICE))
    _count_steps(rank, notes, steps)
    with _on_cpu(rank) if map_device else contextlib.nullcontext():
        code = _run(program, rank, notes)
    threading._shutdown()  # type: ignore[attr-defined]  # as an interpreter ends
    atexit._run_exitfuncs()
    return code


def _run(program: Program, rank: int, notes: Notes) -> int:
    sys.argv = [program.target, *program.args]
    try:
        if program.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program.target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program.target).resolve().parent))
            runpy.run_path(program.target, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException as error:
        where = cannot(error)
        if where is not None:
            notes.tell(rank, where, Notes.CANNOT)
        outer = error.__traceback__
        while outer is not None and outer.tb_frame.f_code.co_filename in (__file__, *_RUNPY):
            outer = outer.tb_next
        error = error.with_traceback(outer)  # as it looks without us
        sys.excepthook(type(error), error, outer)
        session.failed(error)
        return 1
    return 0


def cannot(error: BaseException) -> str | None:
    """The line of the program that needs a device, and its text; None for other errors."""
    frames = traceback.extract_tb(error.__traceback__)
    text = str(error).strip().partition("\n")[0]
    lazy = any(frame.filename.endswith("torch/cuda/__init__.py") for frame in frames)
    if not lazy and not (isinstance(error, Exception) and _NO_DEVICE.search(str(error))):
        return None
    own = [
        frame for frame in frames if not is_library(frame.filename) and frame.filename != __file__
    ]
    line = f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else "?"
    return f"{line}: {type(error).__name__}: {text}"


def _unseen(function: Any) -> Any:
    """The function, whose frame no recorded stack shows as the program's."""
    function.__code__ = function.__code__.replace(co_filename=_UNSEEN)
    return function


def _count_steps(rank: int, notes: Notes, most: int | None) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def stepped(*_: object) -> None:
        if notes.step(rank) == most:
            raise SystemExit(0)

    register_optimizer_step_post_hook(stepped)


# -- gloo ------------------------------------------------------------------------------------------


def _use_gloo(wanted_device: Callable[[str], None]) -> None:
    """Make every group one of gloo; ``wanted_device`` gets the name of a backend of devices."""
    dist: Any = importlib.import_module("torch.distributed")
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    original = c10d._new_process_group_helper
    names = inspect.signature(original)

    def helper(*args: Any, **kwargs: Any) -> Any:
        given = names.bind(*args, **kwargs).arguments
        wanted = str(given.get("backend") or "undefined").lower()
        if wanted not in _HOST:
            wanted_device(wanted)
        if wanted != "fake":
            given["backend"] = c10d.Backend("gloo")
        for name in ("device_id", "backend_options", "pg_options"):
            if name in given:
                given[name] = None
        return original(**given)

    c10d._new_process_group_helper = _unseen(helper)
    for name in ("all_reduce", "reduce_scatter_tensor", "reduce_scatter", "reduce"):
        _average(dist, c10d, name)
    parallel = importlib.import_module("torch.nn.parallel.distributed").DistributedDataParallel
    init = parallel.__init__

    @functools.wraps(init)
    def on_cpu(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if all(one.device.type == "cpu" for one in module.parameters()):
            kwargs.update(dict.fromkeys(("device_ids", "output_device")))
            args = (None, None, *args[2:]) if args else args
            if args:
                for name in ("device_ids", "output_device"):
                    kwargs.pop(name)
        init(self, module, *args, **kwargs)

    parallel.__init__ = on_cpu
    mesh: Any = importlib.import_module("torch.distributed.device_mesh")
    make = mesh.init_device_mesh

    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return make("cpu" if device_type != "meta" else device_type, *args, **kwargs)

    for module in (mesh, dist):
        module.init_device_mesh = _unseen(init_device_mesh)


def _average(dist: Any, c10d: Any, name: str) -> None:
    """Have AVG, which gloo lacks, be a sum that is divided."""
    original = getattr(c10d, name)
    names = inspect.signature(original)

    def averaged(*args: Any, **kwargs: Any) -> Any:
        given = names.bind(*args, **kwargs).arguments
        if given.get("op") != c10d.ReduceOp.AVG:
            return original(*args, **kwargs)
        given["op"] = c10d.ReduceOp.SUM
        work = original(**given)
        if work is not None:
            work.wait()  # it is over earlier than the program asks, and divided by then
        result = given.get("tensor", given.get("output"))
        if result is not None:
            result.div_(c10d.get_world_size(given.get("group")))
        return work

    for module in (dist, c10d):
        setattr(module, name, _unseen(functools.wraps(original)(averaged)))


# -- the device ------------------------------------------------------------------------------------


class _Harmless:
    """A stream, an event or what else of a device there is to wait for: nothing to do."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> _Harmless:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: {"elapsed_time": 0.0, "query": True}.get(name)


def _of_program(frame: FrameType) -> bool:
    """Whether a function was called by the program itself: libraries use the CPU by themselves."""
    caller = frame.f_back
    return caller is not None and not is_library(caller.f_code.co_filename)


def _on_cpu(rank: int) -> contextlib.AbstractContextManager[Any]:
    """Have functions of ``torch.cuda`` do no harm, and tensors for a device be made on the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    cuda: Any = torch.cuda
    world = int(os.environ["LOCAL_WORLD_SIZE"])
    cuda.is_available = lambda: _of_program(sys._getframe())
    cuda.device_count = lambda: world if _of_program(sys._getframe()) else 0
    cuda.current_device = lambda: rank
    nothing: dict[str, Any] = dict.fromkeys(
        ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "ipc_collect")
    )
    zero = dict.fromkeys(
        ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0
    )
    for name, value in {**nothing, **zero, "mem_get_info": (1 << 34, 1 << 34)}.items():
        setattr(cuda, name, functools.partial(lambda value, *_, **__: value, value))
    cuda.get_device_name = lambda *_: "rehearsed on the CPU"
    for name in ("Stream", "Event", "stream", "device"):
        setattr(cuda, name, _Harmless)
    cuda.current_stream = cuda.default_stream = _Harmless

    def cpu(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        return "cpu" if isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value) else value

    own = (torch.Tensor.cuda, torch.Tensor.pin_memory, torch.Tensor.record_stream)

    class OnCpu(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
        ) -> Any:
            if func in own:
                return args[0]
            given = {name: cpu(value) for name, value in (kwargs or {}).items()}
            return func(*map(cpu, args), **given)

    return OnCpu()
