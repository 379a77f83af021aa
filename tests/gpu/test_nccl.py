"""NCCL: an operation is over when the device has finished it, not when its call returned."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.processes import clean_environ, run_program

PROVE = Path(__file__).parent / "proof" / "prove.py"


@pytest.mark.gpu
@pytest.mark.parametrize("scenario", ["healthy", "graph", "late", "behind", "mode_1"])
def test_a_scenario_of_the_proof(tmp_path: Path, scenario: str) -> None:
    """All is seen finished; a late device is waited for and the host is not held up; a watchdog
    ends its process as without tracing, with the operation in flight on record.
    """
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        pytest.skip("needs a CUDA device and a torch with NCCL")
    command = [sys.executable, str(PROVE), "--only", scenario, "--out", str(tmp_path / "proof")]
    assert run_program(command, clean_environ(), 400).code == 0
