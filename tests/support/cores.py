"""The cores that can be tested here, as parameters, and a recorder without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace.journal.writer import JournalWriter
from disttrace.recording import core as cores
from disttrace.recording.recorder import Recorder

CORES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(cores.choose(name)[0] != name, reason="the core was not built"),
    )
    for name in cores.NAMES
]
EACH_CORE = pytest.mark.parametrize("core", CORES)


def recorder(
    folder: Path, core: str = cores.choose(None)[0], failures: list[BaseException] | None = None,
    *, max_bytes: int = 1 << 20,
) -> Recorder:  # fmt: skip
    """One that writes into a folder; it fails the test where there is no list for its failures."""

    def fail(error: BaseException) -> None:
        if failures is None:
            pytest.fail(str(error))
        failures.append(error)

    return Recorder(
        t0=0, process=lambda: "p",
        open_journal=lambda: JournalWriter(str(folder), "j", max_bytes=max_bytes),
        opening=lambda: [{"def": "process", "process": "p"}], on_failure=fail, core=core,
    )  # fmt: skip
