"""Tools that look at or into a program: profilers, hooks, policies, debuggers, picklers."""

from __future__ import annotations

import logging
import logging.config
import os
import subprocess
import sys
import threading
import types
import warnings
from collections import Counter
from typing import Any

from reliability.attacks.ground import SCRIPT, code_of, forked, group, ran, reduce, say, stall


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


def hooks_of_the_program() -> None:
    """excepthooks of the program's are called once, with what was raised; last_value is kept."""
    prints = "lambda kind, error, *_: print('hook', kind.__name__, error)"
    of_threads = f"threading.excepthook = lambda args: ({prints})(args.exc_type, args.exc_value)"
    thread = "thread = threading.Thread(target=int, args=('mine',))\nthread.start()\nthread.join()"
    prints_itself = "def hook(*args):\n    print('set')\n    sys.__excepthook__(*args)\n"
    handled = "if sys.excepthook is sys.__excepthook__:\n    sys.excepthook = hook"
    for script in (
        f"import sys\nsys.excepthook = {prints}\n{SCRIPT}\nraise ValueError('mine')",
        f"{SCRIPT}\n{of_threads}\n{thread}",
        f"{SCRIPT}\nsys.excepthook(OSError, OSError(1), None)\nprint(hasattr(sys, 'last_value'))",
        f"{SCRIPT}\n{prints_itself}\n{handled}\nraise KeyError('mine')",
    ):
        ran([sys.executable, "-c", script])


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
    loggers = [name for name in logging.root.manager.loggerDict if "disttrace" in name]
    say(records=sorted(set(records)), handlers=len(logging.root.handlers), loggers=loggers)


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
