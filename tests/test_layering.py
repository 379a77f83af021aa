"""Imports point one way, and importing brings no more than it must."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import ROOT, python

# A module may import from its own layer and from those above it in this table.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("journal",),
    ("config", "guard", "identity", "importhook", "platforms"),
    ("definitions", "operation", "recorder"),
    ("capture",),
    ("ending", "exporter", "live"),
    ("install",),
    ("startup", "instrumentor", "commands", "cli", "__main__"),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
KNOWS_TORCH = frozenset({"capture", "install"})
SHARED = "disttrace.journal.format"


def sources(folder: Path) -> list[Path]:
    """Every Python file below `folder`, of which there must be some."""
    found = sorted(folder.rglob("*.py"))
    assert found
    return found


def imports(path: Path, package: Path, *, top_only: bool = False) -> Iterator[str]:
    """Full names of the modules that the file imports, inside functions too.

    `from package import name` counts as `package.name` where that is a module.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            assert node.module is not None
            for alias in node.names:
                inner = package.parent.joinpath(*node.module.split("."), alias.name)
                is_module = inner.is_dir() or inner.with_suffix(".py").exists()
                yield f"{node.module}.{alias.name}" if is_module else node.module


def part(module: str) -> str:
    """The part of the recorder that a module belongs to: `disttrace.capture.stores` -> capture."""
    return module.split(".")[1]


RECORDER = ROOT / "disttrace"
VIEWER = ROOT / "viewer" / "disttrace_viewer"


@pytest.mark.parametrize(
    "path", sources(RECORDER), ids=lambda path: str(path.relative_to(RECORDER))
)
def test_the_recorder_imports_downwards(path: Path) -> None:
    """Each part knows only those below it, and torch only those that deal with it."""
    own = path.relative_to(RECORDER).with_suffix("").parts[0]
    top_only = own == "__init__"  # the face reaches everything, but only when it is called
    modules = set(imports(path, RECORDER, top_only=top_only))
    level = -1 if own == "__init__" else LEVEL[own]
    upwards = [
        name for name in modules if name.startswith("disttrace.") and LEVEL[part(name)] > level
    ]
    assert upwards == []
    assert not [name for name in modules if name.startswith("disttrace_viewer")]
    if own not in KNOWS_TORCH:
        assert not [name for name in modules if name.split(".")[0] == "torch"]


@pytest.mark.parametrize("path", sources(VIEWER), ids=lambda path: str(path.relative_to(VIEWER)))
def test_the_viewer_shares_only_the_format(path: Path) -> None:
    """The reader imports no torch, and of disttrace only what both halves know."""
    for name in imports(path, VIEWER):
        root = name.split(".")[0]
        assert root != "torch"
        assert root != "disttrace" or name == SHARED


def test_importing_the_viewer_loads_only_the_format() -> None:
    """What the viewer really loads of disttrace is the format and the packages around it."""
    pytest.importorskip("polars")
    code = (
        "import sys, pkgutil, importlib, disttrace_viewer as viewer\n"
        "for module in pkgutil.walk_packages(viewer.__path__, 'disttrace_viewer.'):\n"
        "    importlib.import_module(module.name)\n"
        "print([n for n in sorted(sys.modules) if n.split('.')[0] in ('disttrace', 'torch')])"
    )
    outcome = python("-c", code).check()
    assert outcome.stdout == "['disttrace', 'disttrace.journal', 'disttrace.journal.format']\n"


def test_importing_what_installs_loads_no_torch() -> None:
    """The recorder waits for the program to import torch."""
    code = "import sys, disttrace.install; print('torch' in sys.modules)"
    assert python("-c", code).check().stdout == "False\n"


def test_installing_loads_no_torch(tmp_path: Path) -> None:
    """Neither does switching tracing on and off again, and it leaves no file."""
    code = (
        "import sys, disttrace; disttrace.install(); disttrace.uninstall()\n"
        "print('torch' in sys.modules)"
    )
    assert python("-c", code, DISTTRACE_DIR=str(tmp_path / "out")).check().stdout == "False\n"
    assert not (tmp_path / "out").exists()
