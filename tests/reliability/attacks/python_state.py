"""The interpreter: modules, hooks, frames, clocks and random numbers are the program's."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

from reliability.attacks.ground import child, command, group, ran, reduce, say, stall


def hooks_of_the_interpreter() -> None:
    """Hooks that nobody set are the interpreter's own."""
    group()
    say(
        excepthook=sys.excepthook is sys.__excepthook__,
        unraisable=sys.unraisablehook is sys.__unraisablehook__,
        threads=threading.excepthook is threading.__excepthook__, profile=sys.getprofile(),
        trace=sys.gettrace(), callbacks=len(gc.callbacks),
        display=sys.displayhook is sys.__displayhook__, filters=len(warnings.filters),
        switch=sys.getswitchinterval(), limit=sys.getrecursionlimit(), collector=gc.get_threshold(),
    )  # fmt: skip


def threads_of_the_program() -> None:
    """active_count and enumerate are of the program's own threads."""
    group()
    stall(1.5)
    say(threads=sorted(t.name for t in threading.enumerate()), count=threading.active_count())
    say(dummies=sum(type(t).__name__ == "_DummyThread" for t in threading.enumerate()))


def random_numbers() -> None:
    """Seeded generators of Python and torch give the same numbers, from before the start."""
    import torch

    random.seed(1)
    torch.manual_seed(1)
    dist = group()
    reduce(dist, 100)
    stall(1.5)
    say(python=random.random(), torch=torch.rand(2).tolist())


def frozen_clocks(dist: Any) -> None:
    """A test that stops every clock of Python, and lets sleeps pass, is as fast as it was."""
    used = time.process_time()
    began = time.perf_counter()
    names = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
    with contextlib.ExitStack() as stopped:
        for name in names:
            stopped.enter_context(mock.patch.object(time, name, return_value=0))
        stopped.enter_context(mock.patch("time.sleep"))
        reduce(dist, 200)
        threading.Event().wait(3)
        reduce(dist, 200)
    busy = (time.process_time() - used) / (time.perf_counter() - began)
    say(spins=busy > 0.5, reduced=reduce(dist))


def replaced_functions(dist: Any) -> None:
    """A test that counts calls of os and json counts its own."""
    with mock.patch("os.write", wraps=os.write), mock.patch("os.fork", side_effect=OSError):
        reduced = reduce(dist, 10)
    say(reduced=reduced)


def functions_that_raise(dist: Any) -> None:
    """A test in which files, sockets, clocks and threads raise: collectives go on."""
    names = ("os.open", "os.stat", "os.write", "os.lstat", "os.listdir", "builtins.open",
             "socket.socket", "time.sleep", "threading.Thread.start", "os.posix_spawn",
             "os.fstat", "os.path.exists", "json.loads", "json.dumps", "time.time_ns")  # fmt: skip
    for name in names:
        with mock.patch(name, side_effect=RuntimeError("not in tests")):
            reduced = reduce(dist, 50)
            threading.Event().wait(1.2)
    say(reduced=reduced)


def modules_looked_through(dist: Any) -> None:
    """A program that touches every attribute of every module, as inspect and doctest do."""
    import inspect

    for module in list(sys.modules.values()):
        getattr(module, "__file__", None)
        getattr(module, "__warningregistry__", None)
    here = inspect.getmodule(inspect.currentframe())
    say(here=here is sys.modules[__name__], reduced=reduce(dist))


def functions_looked_at(dist: Any) -> None:
    """Signature, source, documentation and place of torch's functions are torch's."""
    import inspect

    names = ("all_reduce", "batch_isend_irecv", "init_process_group", "new_group", "barrier",
             "all_gather_object", "destroy_process_group", "send", "monitored_barrier")  # fmt: skip
    for name in names:
        function: Any = getattr(dist, name)
        source = inspect.getsource(function)
        file = Path(inspect.getsourcefile(function) or "").name
        say(
            name=name, signature=inspect.signature(function),
            doc=hash(function.__doc__ or "") == hash(inspect.unwrap(function).__doc__ or ""),
            source=source.splitlines()[0], file=file,
            place=(function.__module__, function.__qualname__),
        )  # fmt: skip
    for method in (dist.ProcessGroup.allreduce, dist.Store.set, dist.Work.wait):
        say(method=method.__name__, doc=(method.__doc__ or "")[:60])


def pickled_and_copied(dist: Any) -> None:
    """Functions of torch are pickled by name; reduce ops and options are copied."""
    import copy
    import pickle

    for name in ("all_reduce", "all_gather_object", "broadcast", "init_process_group"):
        data = pickle.dumps(getattr(dist, name))
        say(name=name, size=len(data), same=pickle.loads(data) is getattr(dist, name))
    say(op=copy.deepcopy(dist.ReduceOp.SUM) == dist.ReduceOp.SUM)
    for odd in (dist.group.WORLD, dist.HashStore()):
        try:
            pickle.dumps(odd)
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}"[:100])


def reloaded_modules() -> None:
    """Modules of torch.distributed are reloaded, or deleted and imported again, and work."""
    import torch
    import torch.distributed as dist

    group().destroy_process_group()
    again = importlib.reload(sys.modules["torch.distributed.distributed_c10d"])
    say(same=again.all_reduce is dist.all_reduce, initialized=again.is_initialized())
    again.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(2)
    again.all_reduce(tensor)
    del sys.modules["torch.distributed.rendezvous"]
    importlib.invalidate_caches()
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    say(sum=float(tensor.sum()), same=rendezvous.rendezvous is dist.rendezvous)
    again.destroy_process_group()


def warnings_and_their_lines(dist: Any) -> None:
    """Warnings of torch name the line that they named, once."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tensor = torch.ones(2)
        out = torch.empty(2)
        dist._all_gather_base(out, tensor)
        dist._reduce_scatter_base(out, tensor)
        dist.all_gather_into_tensor(out, tensor)
    for one in caught:
        say(line=one.lineno, file=Path(one.filename).name, text=str(one.message)[:80])


def warnings_as_errors() -> None:
    """With -W error, development mode and all checks of the interpreter on, it runs as before."""
    options = (["-W", "error"], ["-X", "dev"], ["-O"], ["-OO"], ["-B", "-P"], ["-X", "utf8"])
    for option in options:
        ran([sys.executable, *option, *command("python_state._plain")[1:]], last=3)


def _plain(dist: Any) -> None:
    say(reduced=reduce(dist, 100))
    dist.destroy_process_group()


def tracebacks_of_failures(dist: Any) -> None:
    """What a failing collective raises shows the frames of the program and of torch."""
    import torch

    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    failing: tuple[Any, ...] = (
        lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND),
        lambda: dist.broadcast(torch.ones(2), src=5), lambda: dist.all_reduce("no tensor"),
        lambda: dist.send(torch.ones(1), 0), lambda: store.set(1, 2),
        lambda: store.wait(["x"], __import__("datetime").timedelta(milliseconds=50)), store.get,
    )  # fmt: skip
    for call in failing:
        try:
            call()
        except Exception as error:
            frames = [f.name for f in traceback.extract_tb(error.__traceback__)]
            text = str(error).splitlines()[0][:60] if str(error) else ""
            say(kind=type(error).__name__, frames=frames, chain=repr(error.__context__), text=text)


def trace_functions(dist: Any) -> None:
    """A trace function sees the program's own lines as often as without us."""
    lines: list[int] = []

    def tracer(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != __file__:
            return None
        if event == "line":
            lines.append(frame.f_lineno - frame.f_code.co_firstlineno)
        return tracer

    def traced() -> None:
        for _ in range(3):
            reduce(dist)

    sys.settrace(tracer)
    traced()
    sys.settrace(None)
    say(lines=lines, same=sys.gettrace() is None)


def environment_of_children() -> None:
    """The environment differs by variables of our own name only."""
    group()
    code = (
        "import os; print(sorted(k for k in os.environ "
        "if not k.startswith(('DISTTRACE', 'ATTACK'))))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    say(mine=[k for k in sorted(os.environ) if not k.startswith("DISTTRACE")] == sorted(
        eval(done.stdout) + [k for k in os.environ if k.startswith("ATTACK")]))  # fmt: skip


def modules_of_the_program() -> None:
    """A program whose files are called as ours and as Python's finds its own ones."""
    names = ("config", "identity", "errors", "journal", "session", "redact", "recording",
             "startup", "patching", "viewer", "lifecycle", "capture", "commands")  # fmt: skip
    folder = Path(tempfile.mkdtemp())
    for name in names:
        (folder / f"{name}.py").write_text(f"mine = {name!r}\nprint('executed', {name!r})\n")
    (folder / "main.py").write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "import torch, time\ndist.all_reduce(torch.ones(2))\n"
        "import config, identity, errors, journal, session, redact, recording, startup, patching\n"
        "print(config.mine, identity.mine, journal.mine, recording.mine)\n"
    )
    ran([sys.executable, str(folder / "main.py")])


def finalized_with_threads() -> None:
    """Daemon threads at work while the interpreter ends: the code is 0, each time."""
    say(codes=[child("python_state._daemons", stderr=-3).returncode for _ in range(5)])


def _daemons() -> None:
    import torch.distributed as dist

    store = dist.HashStore()

    def work(n: int) -> None:
        while True:
            store.set(str(n), "x")

    for n in range(4):
        threading.Thread(target=work, args=(n,), daemon=True).start()
    time.sleep(0.5)


def exits_of_all_kinds() -> None:
    """Codes of sys.exit, os._exit, an exception, one in atexit, and a thread's SystemExit."""
    for kind in range(1, 7):
        ran(command("python_state._exits", kind), last=1)


def _exits(kind: int) -> None:
    import atexit

    if kind == 4:
        atexit.register(lambda: [].pop())
    group()
    if kind == 1:
        sys.exit("a text")
    if kind == 2:
        os._exit(77)
    if kind == 3:
        raise ValueError("mine")
    if kind == 5:
        thread = threading.Thread(target=sys.exit, args=(5,))
        thread.start()
        thread.join()
        sys.exit(256 + 4)
    if kind == 6:
        stall(2)
        raise KeyboardInterrupt
