"""Environments with a framework each: what runs the tests, and beside it what pip brings."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

from support.processes import ROOT

_MADE = ROOT / "build" / "frameworks"


def environment(*packages: str) -> Path:
    """The programs' folder of an environment with ``packages``; or CalledProcessError."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = _MADE / version / "-".join(packages).replace("[", "-").replace("]", "")
    programs, made = folder / "bin", folder / "installed"
    if made.exists():
        return programs
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    beside = folder / "lib" / version / "site-packages" / "a_beside.pth"
    ours = sysconfig.get_path("purelib")
    assert ours in site.getsitepackages()
    # Not a bare path: start-up files in that folder, ours among them, are to run here too.
    beside.write_text(f"import site; site.addsitedir({ours!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", os.fspath(programs / "python")]
    subprocess.run([*pip, "install", "--quiet", *packages], check=True)
    made.touch()
    return programs
