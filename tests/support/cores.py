"""The cores that can be tested here, as parameters."""

from __future__ import annotations

import pytest

from disttrace.recording import core as cores

CORES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(cores.choose(name)[0] != name, reason="the core was not built"),
    )
    for name in cores.NAMES
]
EACH_CORE = pytest.mark.parametrize("core", CORES)
