"""What a job said, every later command says: two scenes here, all of them with ``-m long``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reliability.matrix import SCENES, Launchers, faults, started

OFTEN = ("ctrl-c", "desync")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, Launchers]]]:
    """By scene the folder and the launchers: those of every run start together, and wait."""
    made: dict[str, tuple[Path, Launchers]] = {}
    for name in OFTEN:
        folder = tmp_path_factory.mktemp(name)
        made[name] = folder, started(SCENES[name], folder)
    yield made
    for launcher in (one for _, launchers in made.values() for one in launchers):
        launcher.kill()
        launcher.wait()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in OFTEN else pytest.mark.long) for n in SCENES]
)
def test_every_surface_says_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    name: str,
) -> None:
    """Rank, line, certainty, zero and exit code, from stderr to `serve` and an archive."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    if name in OFTEN:
        folder, launchers = request.getfixturevalue("jobs")[name]
    else:
        folder, launchers = tmp_path, started(SCENES[name], tmp_path)
    assert faults(SCENES[name], folder, launchers) == []
