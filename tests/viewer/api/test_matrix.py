"""Thirteen scenes by every surface, from stderr to `serve` and an archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliability.matrix import SCENES, faults, started


@pytest.mark.parametrize("name", SCENES)
def test_every_surface_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Rank, line, certainty, zero and exit code."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    assert faults(SCENES[name], tmp_path, started(SCENES[name], tmp_path)) == []
