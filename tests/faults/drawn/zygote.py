"""Starts ranks without paying for the import of torch each time: it imports, then forks.

It reads one JSON object per line from stdin: {"program": path, "folder": path, "environ": {...}},
forks a process that is traced into ``folder`` and runs the program as ``__main__``, and answers
with its process id. When stdin ends, all that bears its mark ends with it.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from pathlib import Path


def main() -> None:
    """Serve until stdin ends; in a child, run the program and end as any interpreter does."""
    import torch.distributed.fsdp
    import torch.multiprocessing  # noqa: F401  # programs use them

    import disttrace

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: no zombies
    print("ready", flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        pid = os.fork()
        if not pid:
            break
        print(pid, flush=True)
    else:
        sys.path.insert(0, str(Path(__file__).parents[2]))  # not for the programs
        from support import marked

        marked.end(os.environ[marked.VARIABLE], but=os.getpid())
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.update(wanted["environ"])
    output = os.open(wanted["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [wanted["program"]]
    disttrace.install(dir=wanted["folder"])
    runpy.run_path(wanted["program"], run_name="__main__")


if __name__ == "__main__":
    main()
