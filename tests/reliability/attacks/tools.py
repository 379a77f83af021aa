"""Tools that look at or into a program: profilers, hooks, policies, debuggers, picklers."""

from __future__ import annotations

import builtins
import contextlib
import copy
import gc
import inspect
import io
import logging
import logging.config
import os
import pickle
import subprocess
import sys
import threading
import traceback
import tracemalloc
import types
import warnings
from collections import Counter
from typing import Any

from reliability.attacks.ground import code_of, command, forked, group, ran, reduce, say, stall


def profiled_calls(dist: Any) -> None:
    """sys.setprofile sees the same calls of C from the program's own lines."""
    seen: list[tuple[str, str]] = []

    def profile(frame: types.FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_filename == __file__:
            seen.append((event, getattr(arg, "__name__", "") if event[:2] == "c_" else ""))

    def work() -> None:
        store = dist.HashStore()
        store.set("a", "b")
        store.get("a")
        reduce(dist, 3)

    sys.setprofile(profile)
    work()
    sys.setprofile(None)
    say(seen=seen)


def profiled_threads() -> None:
    """threading.setprofile and settrace see the program's threads only."""
    names: set[str] = set()

    def look(*_: Any) -> None:
        names.add(threading.current_thread().name)

    threading.setprofile(look)
    threading.settrace(look)
    dist = group()
    thread = threading.Thread(target=reduce, args=(dist, 5), name="mine")
    thread.start()
    thread.join()
    stall(2)
    code_of(forked(0))
    stall(1)
    say(names=sorted(names))


def monitored() -> None:
    """sys.monitoring's tools are free, and see as many calls of the program."""
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None:
        say(monitoring=None)
        return
    dist = group()
    say(taken=[n for n in range(6) if monitoring.get_tool(n)])
    lines: Counter[int] = Counter()
    monitoring.use_tool_id(0, "mine")

    def begins(code: types.CodeType, _: int) -> None:
        lines.update([code.co_firstlineno] * (code.co_filename == __file__))

    monitoring.register_callback(0, monitoring.events.PY_START, begins)
    monitoring.set_events(0, monitoring.events.PY_START)
    reduce(dist, 20)
    monitoring.set_events(0, 0)
    say(lines=sorted(lines.items()))


def policy_of_audits(dist: Any) -> None:
    """An audit hook that forbids files, processes, sockets and code on the main thread."""
    main, armed = threading.get_ident(), [False]

    refused = {"open", "os.listdir", "subprocess.Popen", "socket.connect", "exec", "compile",
               "import", "os.remove", "os.putenv", "ctypes.dlopen", "os.fork", "os.kill",
               "os.posix_spawn"}  # fmt: skip

    def policy(event: str, _: Any) -> None:
        if armed[0] and event in refused and threading.get_ident() == main:
            raise PermissionError(f"not {event}")

    sys.addaudithook(policy)
    armed[0] = True
    try:
        reduced = [reduce(dist, 200) for _ in range(3)]
        dist.HashStore().set("a", "b")
    finally:
        armed[0] = False
    stall(2)
    say(reduced=reduced, again=reduce(dist))


def policy_everywhere(dist: Any) -> None:
    """One that forbids the same on every thread from now on, for ever."""

    def policy(event: str, _: Any) -> None:
        if event in ("open", "os.listdir", "subprocess.Popen", "os.remove", "socket.__new__"):
            raise PermissionError(f"not {event}")

    sys.addaudithook(policy)
    reduced = reduce(dist, 40_000) > 0
    stall(3)
    say(reduced=reduced, again=reduce(dist) > 0)


def imports_that_are_refused(dist: Any) -> None:
    """A finder that refuses what it does not know, an empty path, a counting ``__import__``."""
    import random

    random.random()
    main, names = threading.get_ident(), Counter[str]()
    original = builtins.__import__

    def counting(name: str, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == main:
            is_new = name not in sys.modules
            names[name] += is_new and "/disttrace/" in sys._getframe(1).f_code.co_filename
        return original(name, *args, **kwargs)

    class Refuses:
        def find_spec(self, name: str, *_: Any) -> None:
            raise ImportError(f"no {name} here")

    kept, sys.path[:] = list(sys.path), []
    sys.meta_path.insert(0, Refuses())
    builtins.__import__ = counting
    try:
        reduced = reduce(dist, 2000)
        for n in range(50):
            dist.HashStore().set(str(n), "b")
        stall(3)
    finally:
        builtins.__import__ = original
        sys.path[:] = kept
        del sys.meta_path[0]
    say(names=sorted(k for k, v in names.items() if v), reduced=reduced)


def garbage(dist: Any) -> None:
    """As many objects are garbage, and uncollectable, after the same work; frozen ones stay."""
    store = dist.HashStore()
    asks: Any = store
    for _ in range(3):
        gc.collect()
    gc.disable()
    for n in range(500):
        reduce(dist)
        store.set(str(n % 5), "x")
        with contextlib.suppress(Exception):
            asks.get("never", 1)
    found = gc.collect()
    gc.freeze()
    frozen = gc.get_freeze_count() > 1000
    gc.unfreeze()
    say(found=found, garbage=len(gc.garbage), frozen=frozen, callbacks=len(gc.callbacks))


def traced_memory(dist: Any) -> None:
    """tracemalloc: ten thousand operations leave nothing behind but a bounded rest."""
    store = dist.HashStore()
    tracemalloc.start(5)
    reduce(dist, 500)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for n in range(10_000):
        reduce(dist)
        store.set(f"{n % 7}", "x")
    gc.collect()
    say(grown=tracemalloc.get_traced_memory()[0] - before > 200_000)


def picklers() -> None:
    """Functions that programs hand to other processes are pickled by name, and copied."""
    import multiprocessing
    from multiprocessing import reduction

    import torch.distributed as dist

    group()
    functions: list[Any] = [
        sys.exit, os._exit, os.execv, os.execve, os.fork, exit, quit, sys.excepthook,
        threading.excepthook, dist.all_reduce, dist.barrier, dist.new_group, dist.HashStore,
        dist.ProcessGroup, dist.ReduceOp.SUM, dist.Work,
    ]  # fmt: skip
    for one in functions:
        name = getattr(one, "__name__", str(one))
        try:
            data = reduction.ForkingPickler.dumps(one)
            say(name=name, data=bytes(data)[:60], same=pickle.loads(data) is one)
        except Exception as error:
            say(name=name, error=f"{type(error).__name__}: {error}"[:90], data="")
        say(copied=copy.copy(one) is one)
    context: Any = multiprocessing.get_context("spawn")
    for function, code in ((sys.exit, 3), (os._exit, 4)):
        process = context.Process(target=function, args=(code,))
        process.start()
        process.join(60)
        say(code=process.exitcode)


def looked_at_functions() -> None:
    """Kinds, signatures, modules and names of what is wrapped in the interpreter and in torch."""
    import torch.distributed as dist

    group()
    functions: list[Any] = [sys.exit, os._exit, os.execv, os.execve, sys.excepthook,
                            threading.excepthook, dist.init_process_group,
                            dist.all_gather_object, dist.new_group]  # fmt: skip
    for one in functions:
        try:
            signature = str(inspect.signature(one))[:60]
        except ValueError as error:
            signature = str(error)[:60]
        say(name=one.__name__, qualname=one.__qualname__, module=one.__module__)
        say(signature=signature, doc=(one.__doc__ or "")[:30], callable=callable(one))
    say(fd=os.execve in os.supports_fd)


def console() -> None:
    """code.interact prints what is wrong where it did, and goes on."""
    import code

    group()
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown):
        console = code.InteractiveConsole()
        console.push("1 / 0")
        try:
            console.push("sys.exit(5)")
        except SystemExit as error:
            say(code=error.code)
    say(shown=[x for x in shown.getvalue().splitlines() if not x.startswith("disttrace")])


def exits_that_are_caught() -> None:
    """A SystemExit that is caught has its arguments, frames and attributes (but for our mark)."""
    group()
    asks: tuple[Any, ...] = (sys.exit, exit, quit, lambda: sys.exit("text"))
    for ask in asks:
        try:
            ask()
        except SystemExit as error:
            names = sorted(name for name in vars(error) if not name.startswith("_disttrace"))
            again = pickle.loads(pickle.dumps(error))
            say(args=error.args, code=error.code, names=names, again=again.args)
            frames = [one.name for one in traceback.extract_tb(error.__traceback__)]
            say(frames=frames if sys.version_info >= (3, 11) else "", context=error.__context__)
    import argparse

    for _ in range(3):
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                argparse.ArgumentParser(prog="x").parse_args(["--no"])
            except SystemExit as error:
                say(code=error.code)


def hooks_of_the_program() -> None:
    """excepthooks of the program's are called once, with what was raised; last_value is kept."""
    for kind in ("main", "thread", "printed", "handled"):
        ran(command(f"tools._hook_{kind}"))


def _hook_main() -> None:
    sys.excepthook = lambda kind, error, _: print("hook", kind.__name__, error)
    group()
    raise ValueError("mine")


def _hook_thread() -> None:
    group()
    threading.excepthook = lambda args: print("hook", args.exc_type.__name__, args.exc_value)

    def fails() -> None:
        raise ValueError("mine")

    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()


def _hook_printed() -> None:
    group()
    error = ValueError("printed only")
    sys.excepthook(ValueError, error, None)
    print(hasattr(sys, "last_value"))


def _prints_itself(kind: Any, error: Any, where: Any) -> None:
    print("set")
    sys.__excepthook__(kind, error, where)


def _hook_handled() -> None:
    group()
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _prints_itself
    raise KeyError("mine")


def logging_of_the_program() -> None:
    """Configurations that disable, capture, raise and replace: no record and no handler of ours."""
    records: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.name)
            if record.name.startswith("disttrace"):
                raise RuntimeError("who is that?")

    logging.raiseExceptions = True
    logging.captureWarnings(True)
    logging.setLogRecordFactory(logging.LogRecord)
    dist = group()
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
    logging.basicConfig(handlers=[Keeps()], level=1, force=True)
    reduce(dist, 50)
    stall(2.5)
    warnings.warn("mine", stacklevel=1)
    say(records=sorted(set(records)), handlers=len(logging.root.handlers))


def replaced_streams(dist: Any) -> None:
    """stderr replaced at the level of descriptors and of objects, closed, and put back."""
    kept, kept_object = os.dup(2), sys.stderr
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    sys.stderr = io.TextIOWrapper(io.BytesIO(), write_through=True)
    sys.stderr.close()
    stall(2.5)
    sys.stderr = kept_object
    os.dup2(kept, 2)
    os.set_blocking(reader, False)
    try:
        said = os.read(reader, 65536).decode().splitlines()
    except BlockingIOError:
        said = []
    say(said=[x for x in said if x and not x.startswith("disttrace")], reduced=reduce(dist))


def stepped_through() -> None:
    """pdb steps over a collective and shows the program's lines."""
    script = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "t = torch.ones(2)\n"
        "dist.all_reduce(t)\n"
        "dist.all_gather_object([None], t)\n"
        "print(t)\n"
    )
    with open("stepped.py", "w") as file:
        file.write(script)
    done = subprocess.run(
        [sys.executable, "-m", "pdb", "stepped.py"], input="n\nn\nn\nn\nn\nn\nwhere\nq\n",
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    lines = [x for x in done.stdout.splitlines() if "disttrace" not in x]
    say(code=done.returncode, lines=[x for x in lines if "stepped" in x or x.startswith("->")])
    os.unlink("stepped.py")
