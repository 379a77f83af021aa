"""What a passing test in four ranks costs: with the plug-in, and with a harness of `mp.spawn`, as
people write it by hand.

    python benchmarks/testing/passing_tests.py [--tests 10]

Each is pytest on a file of one test and of `--tests` more; the difference is what the others cost,
without the start of pytest and of torch. The import of torch in each rank is part of a spawned one.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BY_PLUGIN = """
import os, pytest, torch, torch.distributed as dist

@pytest.mark.parametrize("n", range(int(os.environ["TESTS"])))
@pytest.mark.distributed(4)
def test_sums(n):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 4
"""
BY_HAND = """
import os, socket, pytest, torch, torch.distributed as dist, torch.multiprocessing as mp

def body(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=4
    )
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 4
    dist.destroy_process_group()

@pytest.mark.parametrize("n", range(int(os.environ["TESTS"])))
def test_sums(n):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    mp.spawn(body, (port,), nprocs=4)
"""


def taken(folder: Path, tests: int) -> tuple[float, float]:
    """Seconds of wall and of processor time that pytest takes for so many passing tests."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=folder,
        env={**os.environ, "TESTS": str(tests)},
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if f"{tests} passed" not in done.stdout:
        raise SystemExit(done.stdout + done.stderr)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu


def main() -> None:
    """Both harnesses, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", type=int, default=10, metavar="N")
    tests = parser.parse_args().tests
    for name, text in (("plug-in", BY_PLUGIN), ("mp.spawn", BY_HAND)):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "test_it.py").write_text(text)
            one, more = taken(Path(folder), 1), taken(Path(folder), 1 + tests)
        wall, cpu = ((m - o) / tests for m, o in zip(more, one, strict=True))
        print(f"{name}: {wall:.2f} s a test of four ranks, {cpu:.2f} s of processor time")


if __name__ == "__main__":
    main()
