"""Two torchrun jobs of two workers each, whose children meet in one store.

    python examples/two_jobs_launcher.py
    python examples/two_jobs_launcher.py --wrong-prefix      (the children never meet; ends in 10 s)

With DISTTRACE=1 in front, `disttrace view` shows two linked jobs: two agents, four workers, two
children, and one all-reduce of eight float32 that spans both jobs, in a group of two whose members
come from different jobs. With `--wrong-prefix`, `disttrace diagnose` says that the two children
look for each other under different prefixes.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("two_jobs.py")


def torchrun(replica_id: int, port: int, prefix: str, timeout: float) -> subprocess.Popen[bytes]:
    """Start one replica as a torchrun job of its own, on a rendezvous port of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(PROGRAM), f"--replica-id={replica_id}", f"--port={port}"]
    command += [f"--prefix={prefix}", f"--timeout={timeout}"]
    return subprocess.Popen(command)


def main() -> int:
    """Start both replicas, wait for both, and return the worse of their exit codes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="of the meeting; 0 takes a free one")
    parser.add_argument("--wrong-prefix", action="store_true")
    options = parser.parse_args()
    port = options.port
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
    prefixes = ("replicas", "replica" if options.wrong_prefix else "replicas")
    timeout = 10.0 if options.wrong_prefix else 60.0
    jobs = [torchrun(number, port, prefix, timeout) for number, prefix in enumerate(prefixes)]
    try:
        codes = [job.wait() for job in jobs]
    finally:
        for job in jobs:
            if job.poll() is None:
                job.terminate()
                job.wait()
    return max(abs(code) for code in codes)


if __name__ == "__main__":
    raise SystemExit(main())
