"""What a program sees of functions, hooks and threads where ours were put in: what it saw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.processes import clean_environ

_LOOKS = """
import copy, gc, inspect, json, os, pickle, sys, threading, time, traceback
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
swapped = [dist.all_reduce, dist.send, dist.init_process_group, dist.new_group, dist.Store.set,
           dist.Work.wait, sys.exit, os._exit, os.execv, os.execve, os.execvpe, os.abort]
def pickled(function):
    return pickle.loads(pickle.dumps(function)) is function

def copied(function):
    return copy.deepcopy(function) is function

def asked(function):
    for question in (inspect.getsource, inspect.signature, inspect.getmodule, inspect.getdoc,
                     pickled, copied):
        try:
            yield str(question(function))
        except Exception as error:
            yield type(error).__name__

seen = {number: list(asked(function)) for number, function in enumerate(swapped)}
class Borrowing:  # a builtin is no method of its class, a function is one
    leave, run, told = sys.exit, os.execv, os._exit

def called(function, *args):
    try:
        return function(*args)
    except BaseException as error:
        return type(error).__name__ + str(error)

seen["borrowed"] = [called(Borrowing().leave, 3), called(Borrowing().run, "/none", ["none"]),
                    called(Borrowing().leave, 1, 2), called(Borrowing().told, "no number")]
import torch.distributed._functional_collectives as functional

def raised(*args):
    try:
        functional.all_reduce(*args, dist.group.WORLD)
    except Exception as error:
        return [frame.name for frame in traceback.extract_tb(error.__traceback__)]

seen["raised"] = [raised(torch.ones(1), "none"), raised("no tensor", "sum"), raised(None, "sum")]
seen["kind"] = [inspect.isbuiltin(sys.exit), inspect.isbuiltin(os.execve), repr(os._exit)]
seen["hooks"] = [sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__,
                 threading.excepthook is threading.__excepthook__, sys.displayhook.__name__]
time.sleep(0.3)
seen["threads"] = sorted(thread.name for thread in threading.enumerate())
seen["count"] = threading.active_count()
seen["traced"] = "disttrace.session" in sys.modules
print(json.dumps({str(name): told for name, told in seen.items()}))
"""


def test_functions_hooks_and_threads(tmp_path: Path) -> None:
    """Pickles, source, signatures, module, hooks and `threading.enumerate()`."""
    seen = {}
    for traced in ("0", "1"):
        env = clean_environ(DISTTRACE=traced, DISTTRACE_DIR=str(tmp_path / traced))
        done = subprocess.run(
            [sys.executable, "-c", _LOOKS], env=env, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stderr
        seen[traced] = json.loads(done.stdout)
    assert (seen["0"].pop("traced"), seen["1"].pop("traced")) == (False, True)
    assert seen["1"] == seen["0"]
