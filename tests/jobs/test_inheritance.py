"""Tracing reaches the processes that a traced one starts, and is silent where nothing happens."""

from __future__ import annotations

import sys
from pathlib import Path

from disttrace.commands.run import environment
from support.processes import clean_environ, run_program

CHILDREN = """
import multiprocessing, sys
def child(queue):
    from disttrace.session import installed
    queue.put((installed(), "torch" in sys.modules))
if __name__ == "__main__":
    {first}
    for kind in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(kind)
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(kind, *queue.get())
        process.join()
        print(process.exitcode)
"""
ALL = "spawn True False\n0\nfork True False\n0\nforkserver True False\n0\n"


def program(folder: Path, first: str) -> Path:
    """The program above in a file, with a first statement of its own."""
    path = folder / "children.py"
    path.write_text(CHILDREN.format(first=first))
    return path


def shell(folder: Path) -> dict[str, str]:
    """An environment in which interpreters start tracing, installed or not."""
    return environment({"dir": str(folder / "out")}, clean_environ())


def test_children_of_every_kind_are_traced(tmp_path: Path) -> None:
    """With DISTTRACE=1, in spawned, forked and forkserver children, without loading torch."""
    environ = shell(tmp_path)
    outcome = run_program([sys.executable, program(tmp_path, "pass")], environ, 120).check()
    assert (outcome.stdout, outcome.stderr) == (ALL, "")
    assert not (tmp_path / "out").exists()  # nobody used c10d: nobody wrote


def test_a_processs_own_threads_and_folder_stay_as_they_were(tmp_path: Path) -> None:
    """A program that never touches torch runs with the same modules, threads and directory."""
    environ = shell(tmp_path)
    code = (
        "import os, sys, threading\n"
        "print(os.getcwd(), threading.active_count(), 'torch' in sys.modules)"
    )
    outcome = run_program([sys.executable, "-c", code], environ, 60, cwd=tmp_path).check()
    assert (outcome.stdout, outcome.stderr) == (f"{tmp_path} 1 False\n", "")
