"""Programs that look for us: each runs untraced and traced, and has to print and end the same.

A file is a theme. In one of Python a public function is an attack, whose docstring says what a
program may count on. Programs that need nothing but a group of one follow on ``HEAD`` and are in
files of text, each below ``== NAME: promise``. What an attack prints is compared line by line, as
are its exit code and what it leaves in its folder.
"""

from __future__ import annotations

from pathlib import Path

HEAD = '''
import contextvars, datetime, gc, os, sys, threading, time, weakref
import torch, torch.distributed as dist
from reliability.attacks.ground import *
group()
x, log, store = torch.ones(4), [], dist.HashStore()

START = """import os, sys, time, torch, torch.distributed as d
d.init_process_group("gloo", store=d.HashStore(), rank=0, world_size=1); d.all_reduce(torch.ones(1))
"""

def program(code, **given):
    import subprocess
    line = [sys.executable, "-c", START + code]
    return subprocess.run(line, **{"stdout": -1, "stderr": -1, "timeout": 100, **given})

def of(call):
    try:
        return type(call()).__name__
    except BaseException as error:
        chain = [type(one).__name__ for one in (error.__cause__, error.__context__)]
        return type(error).__name__, str(error).partition(" at 0x")[0].partition("\\n")[0], chain
'''


def _rows() -> dict[str, str]:
    """By ``theme.name`` what follows on ``HEAD``."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.txt")):
        for part in f"\n{path.read_text(encoding='utf-8')}".split("\n== ")[1:]:
            title, _, code = part.partition("\n")
            found[f"{path.stem}.{title.partition(':')[0]}"] = code
    return found


ROWS = _rows()
