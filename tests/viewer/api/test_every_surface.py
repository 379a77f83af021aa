"""What a job said, every later command says: three scenes here, all of them with ``-m long``."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliability.matrix import SCENES, faults

OFTEN = {"bare", "ctrl-c", "desync"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in OFTEN else pytest.mark.long) for n in SCENES]
)
def test_every_surface_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Rank, line, certainty, zero and exit code, from stderr to `serve` and an archive."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    assert faults(name, SCENES[name], tmp_path) == []
