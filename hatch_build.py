"""Compiles what is C where a wheel is built, or an editable install made.

Without a C compiler, or with one that fails, the wheel is the pure one: the plain core records
then, and `disttrace info` says so. `DISTTRACE_COMPILED=0` asks for that wheel. As a program it
compiles in place: `python hatch_build.py`. Each `disttrace/**/_NAME.c` is one module; so is each
`_NAME.cpp`, which is left out by itself where the compiler knows no C++.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # where nobody builds a wheel, hatchling need not be there
    Interface: Any = object
else:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface as Interface

_OFF = frozenset({"0", "off", "false", "no"})
_SECONDS = 300
MANUAL = "disttrace.1"


class CustomBuildHook(Interface):
    """Adds what was compiled to the wheel, which then bears this interpreter's tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before the wheel is put together."""
        if self.target_name != "wheel":
            return
        self._folder = None if version == "editable" else tempfile.TemporaryDirectory()
        into = None if self._folder is None else Path(self._folder.name)
        if into is not None and (text := _manual(self.root)) is not None:
            (into / MANUAL).write_text(text, encoding="utf-8")
            build_data["shared_data"][str(into / MANUAL)] = f"share/man/man1/{MANUAL}"
        made, why = compiled(Path(self.root), into)
        if not made:
            self.app.display_info(f"disttrace: without its compiled parts, {why}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if into is None:
            build_data["artifacts"] += [f"/{m.relative_to(self.root).as_posix()}" for m in made]
            return
        for one in made:
            build_data["force_include"][str(one)] = one.relative_to(into).as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the wheel is there."""
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()


def _manual(root: str) -> str | None:
    """The manual page; None where nothing is at hand to write it."""
    sys.path.insert(0, root)
    try:
        import hatch_manual

        return hatch_manual.page()
    finally:
        sys.path.remove(root)


def compiled(root: Path, into: Path | None = None) -> tuple[list[Path], str]:
    """All that was compiled of what lies below ``root``, or nothing of C and the reason.

    It lies beside its source, as an editable install needs it, or in the same folders below
    ``into``: a wheel that is built leaves nothing in the checkout.
    """
    made = _targets(root, into, "disttrace/**/_*.c")
    further = _targets(root, into, "disttrace/**/_*.cpp")
    reason = _refused()
    for source, target in (made | further).items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # one of another source, or another compiler
        if source in made:
            reason = reason or _fails(source, target)
    if reason is not None:
        for target in made.values():  # all or nothing: the parts were tried together
            target.unlink(missing_ok=True)
        return [], reason
    built = [target for source, target in further.items() if not _refuses(source, target, ())]
    return [*made.values(), *built], "built"


def _targets(root: Path, into: Path | None, pattern: str) -> dict[Path, Path]:
    """What is made of each source."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    found = {}
    for source in sorted(root.glob(pattern)):
        place = source if into is None else into / source.relative_to(root)
        found[source] = place.with_name(place.stem + suffix)
    return found


def _fails(source: Path, target: Path) -> str | None:
    """Compile one module; why it fails."""
    as_interpreter = shlex.split(sysconfig.get_config_var("CFLAGS") or "")
    reason = _refuses(source, target, as_interpreter)
    if reason and as_interpreter:  # another compiler's than that of today, which may know them not
        return _refuses(source, target, ())
    return reason


def _refuses(source: Path, target: Path, further: Sequence[str]) -> str | None:
    """What the compiler says against one module with these ``further`` flags."""
    cxx = source.suffix == ".cpp"
    command = [
        *shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"),
        *further,
        *("-O3", "-fPIC", "-fwrapv", "-DNDEBUG", "-Wall", "-Wextra", "-shared"),
        *("-Wno-missing-field-initializers", "-Wno-cast-function-type"),
        *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()),
        f"-I{sysconfig.get_path('include')}",
        f"-DDISTTRACE_SOURCE={zlib.crc32(source.read_bytes()) & 0x7FFFFFFF}",
        *shlex.split(os.environ.get("CXXFLAGS" if cxx else "CFLAGS", "")),
        str(source),
        *(("-lc++" if sys.platform == "darwin" else "-lstdc++",) if cxx else ()),
        *("-o", str(target)),
        *shlex.split(os.environ.get("LDFLAGS", "")),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return f"there is no C compiler ({type(error).__name__}: {error})"
    if done.returncode != 0:
        return f"{command[0]} fails: {done.stderr.strip()[-400:]}"
    return None


def _refused() -> str | None:
    """Why this interpreter gets none, without asking a compiler."""
    if os.environ.get("DISTTRACE_COMPILED", "").lower() in _OFF:
        return "asked for by DISTTRACE_COMPILED"
    if platform.python_implementation() != "CPython":
        return f"it is for CPython, not for {platform.python_implementation()}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it is not for an interpreter without the GIL"
    if sys.platform == "win32":
        return "disttrace does not run on Windows"
    return None


if __name__ == "__main__":
    found, said = compiled(Path(__file__).resolve().parent)
    said = "\n".join(f"{one} is built" for one in found) or f"nothing is compiled: {said}"
    print(said)  # noqa: T201 - a program
    raise SystemExit(not found)
