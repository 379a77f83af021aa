"""A folder is a layer: imports point one way, and importing brings no more than it must."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from support.processes import ROOT, python

# Rooms from the ground up: a folder, or a module that lies in the package's root. A file may import
# from its own room and from rooms that stand before it here.
RECORDER_ROOMS = (
    "_version",
    "foreign",
    "redact",
    "project",
    "config",
    "identity",
    "journal",
    "errors",
    "recording",
    "dynamo",
    "patching",
    "waiting",
    "capture/objects",
    "capture/calls",
    "capture/wrapping",
    "capture/instrumentation",
    "capture/devices",
    "capture/native",
    "capture/before_2_15",
    "capture",
    "lifecycle",
    "session",
    "startup",
    "api",
    "instrumentor",
    "testing",
    "integrations",
    "commands/shell",
    "commands",
    "cli",
    "completion",
    "__main__",
)
VIEWER_ROOMS = (
    "trace",
    "load",
    "load/foreign",
    "merge",
    "collect",
    "analysis",
    "states",
    "evidence",
    "wording",
    "findings",
    "findings/rules",
    "diagnosis",
    "replay",
    "views",
    "views/timeline",
    "views/terminal",
    "attach",
    "otlp",
    "api",
    "companion",
    "commands",
)
KNOWS_TORCH = ("capture", "session", "testing")
SHARED = (
    "disttrace.foreign",
    "disttrace.journal.code_files",
    "disttrace.journal.descriptors",
    "disttrace.journal.format",
    "disttrace.journal.proc",
    "disttrace.journal.standard_library",
    "disttrace.lifecycle.rendezvous_folder",
    "disttrace.recording.shown",
    "disttrace.redact",
    "disttrace.redact.short_options",
)
PEERS = frozenset({"findings/rules", "commands"})  # folders of equals may hold any number of files
MOST_FILES = 30  # coverage.py has 44 without a folder, and is walked in an hour

RECORDER = ROOT / "disttrace"
VIEWER = ROOT / "viewer" / "disttrace_viewer"


def sources(folder: Path) -> list[Path]:
    """Every Python file below `folder`, of which there must be some."""
    found = sorted(folder.rglob("*.py"))
    assert found
    return found


def imports(path: Path, package: Path, *, top_only: bool = False) -> tuple[str, ...]:
    """Modules that a file imports, inside functions too; `package.name` where that is a module."""
    return tuple(_imports(path, package, top_only=top_only))


@functools.cache
def _tree(path: Path) -> tuple[list[ast.stmt], list[ast.AST]]:
    tree = ast.parse(path.read_bytes())
    nodes = ast.walk(tree)
    return tree.body, [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


def _imports(path: Path, package: Path, *, top_only: bool) -> Iterator[str]:
    body, everywhere = _tree(path)
    for node in body if top_only else everywhere:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            assert node.module is not None
            for alias in node.names:
                inner = package.parent.joinpath(*node.module.split("."), alias.name)
                is_module = inner.is_dir() or inner.with_suffix(".py").exists()
                yield f"{node.module}.{alias.name}" if is_module else node.module


def room(module: str, package: Path) -> str:
    """The room of a module: its folder, or itself where it lies in the package's root."""
    parts = module.split(".")[1:]
    if not package.joinpath(*parts).is_dir():
        parts = parts[:-1] or parts
    return "/".join(parts)


def climbs(path: Path, package: Path, rooms: tuple[str, ...]) -> list[str]:
    """The imports of a file that lead to a room above its own."""
    inside = path.relative_to(package).with_suffix("").parts
    lazy = inside in (("__init__",), ("api",))  # it reaches the rest only when it is called
    own = "/".join(inside[:-1]) or inside[0]
    level = 0 if lazy else rooms.index(own)
    return [
        name
        for name in imports(path, package, top_only=lazy)
        if name.startswith(f"{package.name}.") and rooms.index(room(name, package)) > level
    ]


def wrong(paths: Iterable[Path], unwanted: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """The imports that are not wanted, by file."""
    return {str(path.relative_to(ROOT)): found for path in paths if (found := unwanted(path))}


def test_the_recorder_imports_downwards() -> None:
    """Each room knows only those below it, and torch only those that deal with it."""

    def unwanted(path: Path) -> list[str]:
        found, modules = climbs(path, RECORDER, RECORDER_ROOMS), imports(path, RECORDER)
        inside = path.relative_to(RECORDER)
        if inside.parts[0] != "api.py":
            found += [name for name in modules if name.startswith("disttrace_viewer")]
        if inside.with_suffix("").parts[0] not in KNOWS_TORCH:
            found += [name for name in modules if name.split(".")[0] == "torch"]
        return found

    assert wrong(sources(RECORDER), unwanted) == {}


def test_the_viewer_imports_downwards() -> None:
    """Each room knows those below it, no torch, and of disttrace only what both halves know."""

    def unwanted(path: Path) -> list[str]:
        others = [name for name in imports(path, VIEWER) if name not in SHARED]
        tops = ("torch", "disttrace")
        found = climbs(path, VIEWER, VIEWER_ROOMS)
        return found + [name for name in others if name.split(".")[0] in tops]

    assert wrong(sources(VIEWER), unwanted) == {}


def test_a_command_uses_the_api_and_nothing_below_it() -> None:
    """What a command can do, a notebook can; help needs no extra."""
    everywhere = ("disttrace_viewer.api", "disttrace_viewer.commands", "disttrace_viewer.collect")

    def unwanted(path: Path) -> list[str]:
        found = []
        for top_only, allowed in ((False, everywhere), (True, ("disttrace_viewer.commands",))):
            names = imports(path, VIEWER, top_only=top_only)
            ours = [name for name in names if name.startswith("disttrace_viewer.")]
            found += [name for name in ours if not name.startswith(allowed)]
        return found

    assert wrong(sources(VIEWER / "commands"), unwanted) == {}


@pytest.mark.parametrize("start", ["diagnosis.job", "api.verdict", "companion.verdict"])
def test_a_verdict_loads_no_polars(start: str) -> None:
    """Whatever is loaded with it, found along the imports that are not inside functions."""
    seen: set[str] = set()
    left = [f"disttrace_viewer.{start}"]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        path = VIEWER.parent.joinpath(*name.split("."))
        module = path.with_suffix(".py")
        source = module if module.exists() else path / "__init__.py"
        found = list(imports(source, VIEWER, top_only=True))
        assert not [n for n in found if n.split(".")[0] in ("polars", "rich")], name
        left += [n for n in found if n.startswith("disttrace_viewer.")]
    assert "disttrace_viewer.findings.rules.table" in seen


def test_the_judge_knows_no_polars() -> None:
    """Nor do rules and evidence, inside functions either: what tables tell is put before it."""
    tables = ("disttrace_viewer.analysis.history", "disttrace_viewer.analysis.exchanges")

    def unwanted(path: Path) -> list[str]:
        names = imports(path, VIEWER)
        found = [name for name in names if name.split(".")[0] in ("polars", "rich")]
        if path.name != "job.py":  # it puts them before the judge, where they were read
            found += [name for name in names if name.startswith(tables)]
        return found

    for room in ("evidence", "findings", "diagnosis", "states", "replay"):
        assert wrong(sources(VIEWER / room), unwanted) == {}


def test_nothing_but_the_judge_asks_the_rules() -> None:
    """A surface that asked them by itself would have an opinion of its own."""
    asking = {
        path.relative_to(VIEWER).as_posix()
        for path in sources(VIEWER)
        if "disttrace_viewer.findings.rules.table" in imports(path, VIEWER)
    }
    assert asking == {"diagnosis/verdict.py"}


def _on_the_map(picture: str) -> list[str]:
    """Files and folders in the left column of a picture of docs/dev/architecture.md, from above."""
    found: list[str] = []
    room = ""
    for line in picture.splitlines()[1:]:
        names = line[:30].split()
        inner = line.startswith("    ")
        room = names[0] if names and not inner else room
        found += [room + name if inner else name for name in names]
    return found


@pytest.mark.parametrize(
    ("root", "rooms", "unseen"),
    [
        (RECORDER, RECORDER_ROOMS, {"_version", "completion", "__main__", "commands/shell"}),
        (VIEWER, VIEWER_ROOMS, set()),
    ],
    ids=["recorder", "viewer"],
)
def test_the_map_is_true(root: Path, rooms: tuple[str, ...], unseen: set[str]) -> None:
    """Every room is in the picture, above those that use it; what the picture names exists."""
    page = (ROOT / "docs" / "dev" / "architecture.md").read_text()
    (picture,) = re.findall(rf"\n({root.relative_to(ROOT)}/ (?:  .+\n)+)", page)
    drawn = _on_the_map(picture)
    assert [name for name in drawn if not (root / name).exists()] == []
    assert [name for name in re.findall(r"\w+\.py", picture) if not [*root.rglob(name)]] == []
    shown = [name.removesuffix(".py").rstrip("/") for name in drawn]
    assert set(rooms) - set(shown) == unseen
    inner = {room.rpartition("/")[0] for room in rooms}  # stand above their folders in the picture
    order = [room for room in rooms if room not in unseen | inner]
    assert [name for name in shown if name in order] == order


def test_tests_that_are_named_exist() -> None:
    """By scripts, the Makefile, workflows, and pages for developers."""
    files = [ROOT / "Makefile", *ROOT.glob("tests/reliability/*.py"), *ROOT.glob("docs/dev/*.md")]
    texts = (path.read_text() for path in [*files, *ROOT.glob(".github/workflows/*")])
    named = {one for text in texts for one in re.findall(r"(?:\w+/)+test_\w+\.py", text)}
    below = {one.removeprefix("tests/") for one in named}
    assert [one for one in sorted(below) if not any(ROOT.glob(f"tests/**/{one}"))] == []


@pytest.mark.parametrize("package", [RECORDER, VIEWER], ids=lambda path: path.name)
def test_no_room_is_crowded(package: Path) -> None:
    """What a folder holds can be taken in at a glance."""
    crowded = {}
    for folder in {path.parent for path in sources(package)}:
        name = folder.relative_to(package).as_posix()
        files = [f for f in folder.glob("*.py") if f.name != "__init__.py"]
        if len(files) > MOST_FILES and name not in PEERS:
            crowded[name] = len(files)
    assert crowded == {}


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
    rooms = {one.rpartition(".")[0] for one in SHARED} | {"disttrace.lifecycle"}
    at_start = ("disttrace.startup",) if sys.version_info >= (3, 15) else ()
    shared = sorted({"disttrace", *rooms, *SHARED, *at_start})
    assert outcome.stdout == f"{shared}\n"


def test_installing_loads_no_torch(tmp_path: Path) -> None:
    """Neither does switching tracing on and off again, and it leaves no file."""
    code = (
        "import sys, disttrace; disttrace.install(); disttrace.uninstall()\n"
        "print('torch' in sys.modules)"
    )
    assert python("-c", code, DISTTRACE_DIR=str(tmp_path / "out")).check().stdout == "False\n"
    assert not (tmp_path / "out").exists()
