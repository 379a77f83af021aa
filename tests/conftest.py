"""Every test leaves torch, the environment, the threads and the import system as they were."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support import compiled, longer
from support.browser import chromium as chromium  # a fixture
from support.patches import differences, leftovers, picture
from support.processes import free_port

os.environ.pop("COLUMNS", None)  # xdist sets it: a test that means a width says so

LONGEST = (
    "test_matrix.py", "test_last_word.py", "test_exit_hooks.py", "test_one_word.py",
    "test_trouble.py", "test_bad_collectors.py", "test_packaging.py", "test_plugin.py",
    "test_failing.py", "test_live.py", "test_html.py", "test_gil_free_stacks.py", "test_losses.py",
    "test_ecosystem.py", "test_foreign.py", "test_stall_verdict.py", "test_ddp.py",
    "test_recorders.py", "test_activation.py", "test_folders.py", "test_odd_calls.py",
    "test_slice.py", "test_detached.py", "test_diverged.py",
)  # fmt: skip
"""Files with which a run over several processes begins, so that none is alone at its end: one that
waits beside one that computes.
"""


@pytest.hookimpl(tryfirst=True)  # marks are chosen by pytest's own, after this
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and leave out what needs C where nothing was compiled."""
    if names := longer.gone([item.nodeid for item in items]):
        raise pytest.UsageError(f"tests/support/longer.py names what is no test: {names}")
    for item in items:
        if longer.is_longer(item.nodeid):
            item.add_marker(pytest.mark.long)
    if compiled.is_missing():
        for item in items:
            if compiled.needs_it(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=compiled.REASON))
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


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
