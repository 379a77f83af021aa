"""Calls torch's dump of a flight recorder in C++, so that other Python threads go on meanwhile.

The Python bindings keep the GIL for the whole dump: with 2,000 entries some twenty milliseconds
quiet, a tenth of a second on a busy machine. Here it is let go of (``_dump.cpp``). The functions
are found by their mangled names, which state their arguments; where a name is missing (another
torch, another compiler), or nothing was compiled, the binding has to do.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Callable

from disttrace.journal import compiled

_STRING = "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
# Where the devices' half of torch is; the one of ROCm bears another name.
_DEVICE_LIBRARIES = ("libtorch_cuda.so", "libtorch_hip.so")

# onlyActive -> JSON; raises RuntimeError for what C++ throws
Json = Callable[[bool], bytes]


def nccl_json() -> Json | None:
    """The native recorder of NCCL: ``dump(active)`` gives JSON. None where it is not found."""
    # The tag says that the result is a std::string of the layout that we are compiled for.
    symbol = "_ZN4c10d20dump_nccl_trace_jsonB5cxx11Ebb"
    found = (_json(library, symbol, None) for library in _DEVICE_LIBRARIES)
    return next((each for each in found if each is not None), None)


def named_json(backend: str | None) -> Json | None:
    """The recorder of torch's hook for ``backend``; None: the only one before 2.15, gloo's."""
    arguments = "B5cxx11Ebb" if backend is None else f"Ebb{_STRING}"
    return _json("libtorch_cpu.so", f"_ZN4c10d18dump_fr_trace_json{arguments}", backend)


def _json(library: str, symbol: str, backend: str | None) -> Json | None:
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        return None  # it was tried nowhere else
    import torch

    path = os.path.join(os.path.dirname(torch.__file__), "lib", library)
    try:
        ask = compiled.load("capture.devices._dump").ask
        loaded = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        address = ctypes.cast(loaded[symbol], ctypes.c_void_p).value
    except (ImportError, OSError, AttributeError):  # not built, not loaded, no such function
        return None
    return functools.partial(_asked, ask, address, backend)


def _asked(
    ask: Callable[..., bytes], address: int | None, backend: str | None, active: bool
) -> bytes:
    return ask(address, active, backend)
