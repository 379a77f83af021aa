"""Every test leaves torch, the environment, the threads and the import system as they were."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.patches import differences, leftovers, picture
from support.processes import free_port

os.environ.pop("COLUMNS", None)  # xdist sets it: a test that means a width says so


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    """Fail the test that leaves a patch, a variable, a thread or an import hook."""
    environ = dict(os.environ)
    before = picture()
    yield
    assert differences(before, picture()) == []
    assert leftovers(environ) == []


@pytest.fixture
def port() -> int:
    """A free TCP port of the loopback interface."""
    return free_port()
