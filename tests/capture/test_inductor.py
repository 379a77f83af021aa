"""What inductor compiles untraced it compiles traced, and its collectives are recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.preloaded import preloaded
from support.raw import read_journals

PROGRAM = Path(__file__).parent / "programs" / "inductor.py"
TO_THE_LETTER = """
import torch, torch.distributed as dist
from torch._ops import OpOverload
import torch.distributed._functional_collectives
operators = torch.ops._c10d_functional
known = operators.all_reduce_.default, operators.wait_tensor.default
def unchanged():
    return all(type(one) is OpOverload for one in known)
before = unchanged()
import torch._inductor.ir
print(before, unchanged())
"""


def test_inductor_meets_operators_of_torchs_own_class(tmp_path: Path) -> None:
    """It asks by ``type(...) is``, which no class of ours can pass."""
    traced = preloaded("-c", TO_THE_LETTER, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / "out"))
    assert traced.check().stdout == "False True\n"


@pytest.mark.long
def test_a_compiled_collective(tmp_path: Path) -> None:
    """The traced program prints what its untraced twin does; both calls are on record."""
    printed = [
        preloaded(
            "-W",
            "ignore",
            PROGRAM,
            timeout=200,
            DISTTRACE=traced,
            DISTTRACE_DIR=str(tmp_path / "out"),
            TORCHINDUCTOR_CACHE_DIR=str(tmp_path / f"cache{traced}"),
        )
        .check()
        .stdout
        for traced in "01"
    ]
    assert printed[0] == printed[1] == "[1.0, 1.0]\n" * 2
    (journal,) = read_journals(tmp_path / "out")
    calls = journal.calls()
    found = [calls[each["s"]]["op"] for each in journal.records if "b" in each]
    assert found.count("all_reduce") == 2
