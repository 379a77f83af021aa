"""The scenarios of the proof on torch's own process groups of NCCL, without a device.

    python tests/gpu/imitated.py --torch 2.15.0 [--only missing,order] [--counter] [--write PAGE]
    python tests/gpu/imitated.py --torch 2.15.0 --program PROGRAM [its options]

torch and what it needs are installed from packages into an environment of their own, some
gigabytes; in front of CUDA's runtime and driver, cuBLAS and NCCL stands the library that
``tests/support/imitation`` is compiled to. So torch's code issues, watches, records and aborts
as on a device, and nothing of ours knows that there is none. What is left goes to ``prove.py``, or
to a program that is given.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "support" / "imitation"
BESIDE = ("numpy", "orjson", "polars")
"""What disttrace and its viewer need beside torch."""
_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
_UNDEFINED = re.compile(r" U ((?:__)?(?:cuda|nccl|cublas)\w*)(?:@(\S+))?")
_FAILS = "index_kernel_impl:710,take_kernel:700"
"""Kernels that only the scenarios of failing devices launch, and with what they lose the context:
an assertion, an illegal address.
"""
_ANSWERS = {"cublas": 0, "nccl": 5, "cuda": 801, "__cuda": 801}
"""Of what nobody wrote: done; invalid usage; not supported."""


def environment(torch: str) -> Path:
    """Where a version of torch is, with CUDA; made at first."""
    folder = ROOT / "build" / "imitated" / torch
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, f"torch==={torch}", *BESIDE], check=True)
        (folder / "installed").touch()
    return folder


def library(folder: Path) -> Path:
    """The imitation for the torch in an environment, compiled anew."""
    site = next((folder / "lib").glob("python*/site-packages"))
    types = next(site.glob("nvidia/*/include/driver_types.h")).parent
    nccl = next(site.glob("nvidia/*/include/nccl.h")).parent
    said = re.search(r"CUDART_VERSION +(\d+)", (types / "cuda_runtime_api.h").read_text())
    assert said is not None
    number, made = int(said[1]), folder / "imitation"
    made.mkdir(exist_ok=True)
    objects = []
    for name in ("device", "nccl", "driver"):
        objects.append(made / f"{name}.o")
        include = [f"-I{SOURCE / 'include'}", f"-I{types}", f"-I{nccl}"]
        flags = ["-std=c++17", "-O2", "-g", "-Wall", "-fPIC", f"-DIMITATED_CUDA={number}", *include]
        source = SOURCE / f"{name}.cpp"
        subprocess.run(["c++", *flags, "-c", source, "-o", objects[-1]], check=True)
    asked = _asked(site)
    there = {*" ".join(_symbols("--defined-only", one) for one in objects).split()}
    rest, versions = made / "rest.c", made / "versions"
    rest.write_text("".join(_stub(name) for name in sorted(asked.keys() - there)))
    # It has the name of the runtime, in whose place it is taken, and the versions of all that it
    # stands for; the driver, which torch opens by its name, is the same file.
    runtime = f"libcudart.so.{number // 1000}"
    versions.write_text(_nodes({**dict.fromkeys(_ours(there), runtime), **asked}))
    linked = ["-shared", "-fPIC", f"-Wl,-soname,{runtime}", f"-Wl,--version-script,{versions}"]
    found = made / "libcuda.so.1"
    subprocess.run(
        ["c++", *linked, *objects, "-x", "c", rest, "-o", found, "-lpthread"], check=True
    )
    return found


def _asked(site: Path) -> dict[str, str]:
    """What libraries ask for by names that are ours, each with its version, if it has one."""
    asking = [*site.glob("torch/lib/*.so*"), *site.glob("nvidia/**/*.so*")]
    return {name: of for one in asking for name, of in _UNDEFINED.findall(_symbols("-u", one))}


def _ours(names: Iterable[str]) -> list[str]:
    return [name for name in names if re.match(r"(__)?cuda[A-Z]", name)]


def _nodes(versions: Mapping[str, str]) -> str:
    """A script for the linker; what has no version stands in none."""
    named = sorted({of for of in versions.values() if of})
    lists = {of: "; ".join(sorted(n for n, v in versions.items() if v == of)) for of in named}
    return "".join(f"{of} {{ global: {names}; }};\n" for of, names in lists.items())


def _symbols(which: str, of: Path) -> str:
    dynamic = () if of.suffix == ".o" else ("-D",)
    return subprocess.run(["nm", *dynamic, which, of], capture_output=True, text=True).stdout


def _stub(name: str) -> str:
    answer = next(code for begins, code in _ANSWERS.items() if name.startswith(begins))
    return f"int {name}(void) {{ return {answer}; }}\n"


def main() -> int:
    """What ``prove.py``, or a program, says on that torch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--torch", default="2.15.0")
    parser.add_argument("--program", type=Path)
    options, rest = parser.parse_known_args()
    folder = environment(options.torch)
    imitation = library(folder)
    prove = (ROOT / "tests" / "gpu" / "proof" / "prove.py", "--out", ROOT / "build/proof")
    run = prove if options.program is None else (options.program,)
    command = map(str, (folder / "bin" / "python", *run, *rest))
    with tempfile.TemporaryDirectory(prefix="imitated-", dir=_MEMORY) as shared:
        environ = {
            **os.environ,
            "LD_PRELOAD": str(imitation),
            "LD_LIBRARY_PATH": str(imitation.parent),
            "IMITATED_FOLDER": shared,  # ranks that are killed leave files there
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "viewer"))),
            "IMITATED_DEVICES": "4",  # one job uses them; else ranks share the first
            "IMITATED_FAILS": _FAILS,
            "KIT_IMITATED": "1",
        }
        return subprocess.run([*command], env=environ).returncode


if __name__ == "__main__":
    raise SystemExit(main())
