"""install, uninstall and trace: any time, twice, and afterwards every attribute is the original."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import disttrace
from disttrace.session import installed
from support.cores import EACH_CORE
from support.patches import differences, picture
from support.preloaded import preloaded
from support.processes import ROOT, python

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


# -- `with disttrace.trace(dir)`, and as a decorator


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


# -- after `uninstall` every patched attribute is the original object again


EVERYWHERE = """
import multiprocessing.popen_forkserver, sys
sys.path.insert(0, sys.argv[1])
import torch, torch.distributed as dist, torch.distributed.run, torch.multiprocessing.spawn
from torch.distributed import all_gather_object, batch_isend_irecv, init_process_group
from torch.testing._internal.distributed.fake_pg import FakeStore
from support.patches import OURS, differences, picture
import disttrace

class Early(dist.Store):  # there before tracing
    def set(self, key, value): ...

before = picture(whole=True)
disttrace.install()
from torch.distributed import gather_object
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
dist.all_reduce(torch.ones(2), async_op=True).wait()
dist.all_gather_object([None, None], 1)
Early().set("k", "v")
dist.destroy_process_group()
print(len(differences(before, picture(whole=True))) > 100)
disttrace.uninstall()
names = (all_gather_object, batch_isend_irecv, init_process_group, gather_object)
print([one for one in names if one.__code__.co_filename.startswith(OURS)])
print(differences(before, picture(whole=True)), sys.meta_path[0].__class__.__module__)
"""


def test_nothing_stays_patched(tmp_path: Path) -> None:
    """Classes of C++ and Python, functions, names imported before tracing and in between."""
    words = ("-W", "ignore", "-c", EVERYWHERE, ROOT / "tests")
    patched, still, rest = python(*words, DISTTRACE_DIR=str(tmp_path)).check().stdout.splitlines()
    assert (patched, still, rest[:3]) == ("True", "[]", "[] ")
    assert "disttrace" not in rest


ANEW = """
import sys
sys.path.insert(0, sys.argv[2])
import torch, torch.distributed as dist
from unittest import mock
from support.patches import differences, picture

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
untraced = picture()
import disttrace
disttrace.install()
dist.all_reduce(torch.ones(1))
kept = mock.patch.object(dist.ProcessGroup, "allreduce", autospec=True)
if sys.argv[1] == "mock":
    kept.start()
    disttrace.uninstall()
    kept.stop()  # puts back what it found
    print(differences(untraced, picture()))
else:
    assert len(differences(untraced, picture())) > 60
    for name in [name for name in sys.modules if name.partition(".")[0] == "disttrace"]:
        del sys.modules[name]
    if sys.argv[1] != "former":
        import disttrace
    if sys.argv[1] == "anew":
        disttrace.install()
        dist.all_reduce(torch.ones(1))
    assert disttrace.is_installed()
    disttrace.uninstall()
    print(differences(untraced, picture()))
tensor = torch.full((2,), 3.0)
dist.all_reduce(tensor)
print(tensor.tolist(), disttrace.is_installed())
"""


@EACH_CORE
@pytest.mark.parametrize("how", ["former", "imported", "anew", "mock"])
def test_patches_of_another_copy_are_taken_off(tmp_path: Path, core: str, how: str) -> None:
    """Whichever copy is asked; what a mock puts back later passes on, and records nothing."""
    words = ("-c", ANEW, how, ROOT / "tests")
    done = preloaded(*words, DISTTRACE_CORE=core, DISTTRACE_DIR=str(tmp_path)).check()
    left = "['ProcessGroup.allreduce']" if how == "mock" else "[]"
    assert done.stdout == f"{left}\n[3.0, 3.0] False\n"
    journals = [*tmp_path.glob("*.defs.jsonl")]
    assert len(journals) == (2 if how == "anew" else 1)
    assert all(b"uninstalled" in path.read_bytes() for path in journals)
