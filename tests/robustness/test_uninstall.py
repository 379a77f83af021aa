"""After `uninstall` every patched attribute is the original object again."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cores import EACH_CORE
from support.preloaded import preloaded
from support.processes import ROOT, python

PROGRAM = Path(__file__).with_name("unpatched.py")


def test_nothing_stays_patched(tmp_path: Path) -> None:
    """Classes of C++ and Python, functions, names imported before tracing and in between."""
    outcome = python("-W", "ignore", PROGRAM, DISTTRACE_DIR=str(tmp_path)).check()
    first, rest = outcome.stdout.strip().split(" ", 1)
    assert first == "True"
    assert rest.startswith("[] []")
    assert "disttrace" not in rest


ANEW = """
import sys
sys.path.insert(0, sys.argv[2])
import torch, torch.distributed as dist
from unittest import mock
from support.patches import differences, picture

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
untraced = picture()
import disttrace
disttrace.install()
dist.all_reduce(torch.ones(1))
kept = mock.patch.object(dist.ProcessGroup, "allreduce", autospec=True)
if sys.argv[1] == "mock":
    kept.start()
    disttrace.uninstall()
    kept.stop()  # puts back what it found
    print(differences(untraced, picture()))
else:
    assert len(differences(untraced, picture())) > 60
    for name in [name for name in sys.modules if name.partition(".")[0] == "disttrace"]:
        del sys.modules[name]
    if sys.argv[1] != "former":
        import disttrace
    if sys.argv[1] == "anew":
        disttrace.install()
        dist.all_reduce(torch.ones(1))
    assert disttrace.is_installed()
    disttrace.uninstall()
    print(differences(untraced, picture()))
tensor = torch.full((2,), 3.0)
dist.all_reduce(tensor)
print(tensor.tolist(), disttrace.is_installed())
"""


@EACH_CORE
@pytest.mark.parametrize("how", ["former", "imported", "anew", "mock"])
def test_patches_of_another_copy_are_taken_off(tmp_path: Path, core: str, how: str) -> None:
    """Whichever copy is asked; what a mock puts back later passes on, and records nothing."""
    words = ("-c", ANEW, how, ROOT / "tests")
    done = preloaded(*words, DISTTRACE_CORE=core, DISTTRACE_DIR=str(tmp_path)).check()
    left = "['ProcessGroup.allreduce']" if how == "mock" else "[]"
    assert done.stdout == f"{left}\n[3.0, 3.0] False\n"
    journals = [*tmp_path.glob("*.defs.jsonl")]
    assert len(journals) == (2 if how == "anew" else 1)
    assert all(b"uninstalled" in path.read_bytes() for path in journals)
