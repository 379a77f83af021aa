"""`with disttrace.trace(dir)`: tracing of a part of a program, also as a decorator."""

from __future__ import annotations

from pathlib import Path

import pytest

import disttrace
from support.patches import differences, picture

dist = pytest.importorskip("torch.distributed")


def keys(folder: Path) -> list[str]:
    """Keys of the store operations that were recorded in a folder."""
    pytest.importorskip("polars")
    found: list[str] = disttrace.load(folder, "all").operations["key"].drop_nulls().to_list()
    return found


def test_a_block_is_traced_and_nothing_after_it(tmp_path: Path) -> None:
    """Twice, each into a folder of its own; afterwards every attribute is the original."""
    before = picture()
    store = dist.HashStore()
    assert not disttrace.is_installed()
    for name in ("a", "b"):
        with disttrace.trace(tmp_path / name, stack_depth=2):
            assert disttrace.is_installed()
            store.set(name, "value")
        store.set("outside", "value")
        assert not disttrace.is_installed()
    assert differences(before, picture()) == []
    assert (keys(tmp_path / "a"), keys(tmp_path / "b")) == (["a"], ["b"])


def test_a_function_is_traced_while_it_runs(tmp_path: Path) -> None:
    """Its result, its exceptions and its name stay; recursion changes nothing."""

    @disttrace.trace(tmp_path)
    def count(n: int) -> int:
        """Count down."""
        dist.HashStore().set(str(n), "value")
        if n < 0:
            raise ValueError(n)
        return count(n - 1) + 1 if n else 0

    assert (count.__name__, count.__doc__) == ("count", "Count down.")
    assert count(2) == 2
    with pytest.raises(ValueError, match="-1"):
        count(-1)
    assert not disttrace.is_installed()
    assert sorted(keys(tmp_path)) == ["-1", "0", "1", "2"]


def test_inside_of_a_traced_program_it_changes_nothing(tmp_path: Path) -> None:
    """What was on stays on, and goes on into its own folder."""
    disttrace.install(dir=tmp_path / "outer")
    try:
        with disttrace.trace(tmp_path / "inner"):
            dist.HashStore().set("k", "value")
        assert disttrace.is_installed()
    finally:
        disttrace.uninstall()
    assert keys(tmp_path / "outer") == ["k"]
    assert not (tmp_path / "inner").exists()
