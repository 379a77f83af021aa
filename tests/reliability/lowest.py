"""A slice of the suite on the wheel, with the lowest version of everything that it depends on.

    python tests/reliability/lowest.py [--python 3.10] [--newest] [--pure] [--torch FOLDER]

For each Python from 3.10 to 3.15 that is here (or the one that ``--python`` names), it builds the
wheel, installs it with its extras into an environment of its own by uv (which pip
brings), at the lower bounds of ``pyproject.toml`` (``--newest``: the newest there are), and runs
tests of the reader, the commands and OTLP from a copy of ``tests``, without our source beside it.
``--pure`` builds as where there is no compiler; ``--torch`` names the site-packages of another
environment of the same Python, whose torch then runs what ``make demo`` runs; with ``--native``
the core has to be the native one; ``--wheel`` takes that one and builds none. At the end it prints
what was tried. ``make lowest`` and ``make newest`` run it; the release with ``--newest --native``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.campaigns import options

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("viewer", "otlp")
BESIDE = ("pytest>=9", "hypothesis>=6.100", "jsonschema>=4.20")
"""What the tests themselves need."""
SLICE = (
    "tests/viewer/load/test_load.py", "tests/viewer/merge",
    "tests/viewer/findings/test_collectives.py", "tests/viewer/api/test_stats.py",
    "tests/viewer/views/test_jsonl.py", "tests/viewer/otlp/test_parts.py",
    "tests/test_failure.py",
)  # fmt: skip
CORE = "from disttrace.recording.core import choose; name, why = choose(None); print(name, why); "
ASSERT_NATIVE = "assert name == 'c', why"
ASSERT_PURE = "assert name == 'python', why"


def run(
    *words: str | Path, cwd: Path = ROOT, fine: Sequence[int] = (0,),
    environ: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """A step; CalledProcessError ends everything."""
    print("$", *words, flush=True)
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **(environ or {})})
    if done.returncode not in fine:
        done.check_returncode()


def demo(binaries: Path, folder: Path) -> None:
    """What ``make demo`` runs: two ranks traced, then diagnosed and viewed."""
    traced = {"OMP_NUM_THREADS": "1", "DISTTRACE": "1", "DISTTRACE_DIR": str(folder / "demo")}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    program = ROOT / "examples" / "pingpong_allreduce.py"
    run(binaries / "python", *launcher, program, cwd=folder, environ=traced)
    # 1 is a finding, such as a slow machine.
    run(binaries / "disttrace", "diagnose", folder / "demo", cwd=folder, fine=(0, 1))
    run(binaries / "disttrace", "view", folder / "demo", cwd=folder)


def main() -> int:
    """Exit code 1 where any test failed."""
    chosen = options(
        __doc__, python="", newest=False, native=False, pure=False, torch=Path, wheel=Path
    )
    one = chosen.python or (sys.executable if chosen.wheel else "")  # a wheel is of one Python
    pythons = {one: one} if one else _here()
    codes = {name: tried(path, chosen) for name, path in pythons.items() if path}
    versions = "newest" if chosen.newest else "lowest"
    for name, path in pythons.items():
        result = "not here" if not path else "failed" if codes[name] else "passed"
        print(f"{name}, {versions} versions: {result}")
    return int(any(codes.values()))


def _here() -> dict[str, str]:
    """Interpreters by name, on the path or of pyenv; empty where there is none."""
    names = [f"python3.{minor}" for minor in range(10, 16)]
    own = {name: [*Path.home().glob(f".pyenv/versions/*/bin/{name}")] for name in names}
    return {name: str(own[name][0]) if own[name] else shutil.which(name) or "" for name in names}


def tried(interpreter: str, chosen: Any) -> int:
    """The exit code of pytest, with an environment of this interpreter's."""
    with tempfile.TemporaryDirectory(prefix="disttrace-lowest-") as name:
        folder = Path(name)
        tools, python = folder / "tools", folder / "env" / "bin" / "python"
        run(sys.executable, "-m", "venv", tools)
        run(tools / "bin" / "pip", "install", "--quiet", "uv")
        uv = tools / "bin" / "uv"
        run(uv, "venv", "--quiet", "--python", interpreter, folder / "env")
        wheel = chosen.wheel
        if wheel is None:
            made = ("--python", interpreter, "--out-dir", folder / "dist")
            compiler = {"CC": "/nonexistent/cc"} if chosen.pure else {}
            run(uv, "build", "--quiet", "--wheel", *made, ROOT, environ=compiler)
            (wheel,) = (folder / "dist").glob("*.whl")
        how = "highest" if chosen.newest else "lowest-direct"
        install: list[str | Path] = [
            uv, "pip", "install", "--quiet", "--python", python, "--resolution", how,
        ]  # fmt: skip
        # Named directly, for the bounds of what a wheel asks for are no direct ones to uv.
        # A version without a wheel for this Python is none that anybody would install there.
        install += ["--only-binary", ":all:"]
        install += ["-r", ROOT / "pyproject.toml", *(f"--extra={extra}" for extra in EXTRAS)]
        run(*install, wheel.resolve(), *BESIDE)
        run(uv, "pip", "list", "--python", python)
        core = CORE + (ASSERT_NATIVE if chosen.native else ASSERT_PURE if chosen.pure else "")
        run(python, "-c", core, cwd=folder)
        if chosen.torch is not None:
            (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
            (packages / "torch_beside.pth").write_text(f"{chosen.torch.resolve()}\n")
            demo(python.parent, folder)
        for part in ("tests", "docs", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, folder / part)
        words = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SLICE)
        return subprocess.run(words, cwd=folder).returncode


if __name__ == "__main__":
    raise SystemExit(main())
