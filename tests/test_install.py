"""install and uninstall: any time, twice, and afterwards every attribute is the original object."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import disttrace
from disttrace.session import installed
from support.patches import differences, picture

dist = pytest.importorskip("torch.distributed")


def test_uninstall_puts_every_original_back(tmp_path: Path) -> None:
    """Twice installed, used, and uninstalled: classes, functions and variables are as before."""
    environ = dict(os.environ)
    before = picture()
    assert len(before) > 400
    for _ in range(2):
        disttrace.install(dir=tmp_path)
        disttrace.install(dir=tmp_path)
        assert installed()
        patched = differences(before, picture())
        assert "Store.set" in patched
        assert [name for name in patched if "all_gather_object.__code__" in name]
        dist.HashStore().set("key", "value")
        disttrace.uninstall()
        disttrace.uninstall()
        assert not installed()
        assert differences(before, picture()) == []
        assert dict(os.environ) == environ


def test_help_shows_what_it_showed(tmp_path: Path) -> None:
    """Names, documentation and modules of whatever is replaced in c10d's classes and functions."""

    def shown() -> dict[str, tuple[object, ...]]:
        owners = [dist, dist.Store, dist.TCPStore, dist.ProcessGroup, dist.Work, dist.PrefixStore]
        values = {f"{o.__name__}.{n}": getattr(o, n, None) for o in owners for n in dir(o)}
        named = {name: value for name, value in values.items() if callable(value)}
        keys = ("__name__", "__doc__", "__module__")
        return {n: tuple(getattr(v, k, None) for k in keys) for n, v in named.items()}

    before = shown()
    disttrace.install(dir=tmp_path)
    try:
        after = shown()
    finally:
        disttrace.uninstall()
    assert len(before) > 200
    changed = {name for name in before if before[name] != after.get(name)}
    assert {name for name in changed if not name.endswith("__init_subclass__")} == set()


def test_settings_reach_children_and_leave_with_us(tmp_path: Path) -> None:
    """Arguments are in the environment while tracing is on, and what was there comes back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTTRACE_STALL", "3")
        disttrace.install(dir=tmp_path, stall=7.5)
        inside = {k: v for k, v in os.environ.items() if k in ("DISTTRACE", "DISTTRACE_STALL")}
        folder = os.environ["DISTTRACE_DIR"]
        disttrace.uninstall()
        after = {k: v for k, v in os.environ.items() if k.startswith("DISTTRACE")}
    assert inside == {"DISTTRACE": "1", "DISTTRACE_STALL": "7.5"}
    assert folder == str(tmp_path)
    assert after == {"DISTTRACE_STALL": "3"}


def test_an_unknown_setting_installs_nothing() -> None:
    """A misspelt keyword raises, and tracing stays off."""
    with pytest.raises(TypeError, match="did you mean 'stall'"):
        disttrace.install(stal=1)  # type: ignore[arg-type]
    assert not installed()
