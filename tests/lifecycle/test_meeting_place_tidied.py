"""What killed jobs left at the meeting place is taken away; what is of the living stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

from disttrace.journal import proc
from disttrace.lifecycle.meeting import namespace
from disttrace_viewer.companion.service import SETTLED_S, sweep


def roll(folder: Path, job: str, *lines: str, age_s: float = 2 * SETTLED_S, ns: str = "") -> Path:
    path = folder / f"fe00.1-{job}-vm-{ns or namespace()}.roll"
    path.write_text("".join(f"{line}\n" for line in lines))
    os.chmod(path, 0o600)
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def shown(folder: Path, base: str) -> Path:
    path = folder / f"fe00.1-{base}.calls"
    path.write_bytes(bytes(64))
    return path


def test_only_what_nobody_living_wrote_is_taken(tmp_path: Path) -> None:
    """With the pages that it names, and nothing that its lines could lead to elsewhere."""
    me = f"{os.getppid()} {proc.mark(proc.stat(os.getppid()))}"
    outside = tmp_path / "outside.calls"
    outside.touch()
    folder = tmp_path / "place"
    folder.mkdir()
    dead = roll(folder, "dead", "4194000 1 dead-vm-1-a", "4194001 2 ../outside", "no line")
    pages = shown(folder, "dead-vm-1-a")
    kept = [
        roll(folder, "living", "4194000 1 gone-vm-2-a", f"{me} living-vm-3-a"),
        roll(folder, "young", "4194000 1 young-vm-4-a", age_s=1.0),
        roll(folder, "elsewhere", "4194000 1 other-vm-5-a", ns="1"),
        shown(folder, "living-vm-3-a"),
        shown(folder, "young-vm-4-a"),
    ]
    assert sweep(os.fspath(folder)) == 1
    assert not dead.exists()
    assert not pages.exists()
    assert all(path.exists() for path in (*kept, outside))
    assert sweep(os.fspath(tmp_path / "none")) == 0
