"""Calls torch's dump of a flight recorder in C++, so that other Python threads go on meanwhile.

The Python bindings keep the GIL for the whole dump: with 2,000 entries some twenty milliseconds
quiet, a tenth of a second on a busy machine. ctypes lets go of it. The functions are found by
their mangled names, which state their arguments; where a name is missing (another torch, another
compiler) the binding has to do.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable

_STRING = "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_DELETE = "_ZdlPv"
_INLINE = 15  # bytes that a std::string of libstdc++ keeps in itself

# (includeCollectives, onlyActive) -> JSON
Json = Callable[[bool], bytes]


class _String(ctypes.Structure):
    """A std::string of libstdc++ as it is returned: through memory, for it has a destructor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("inline", ctypes.c_char * (_INLINE + 1)),
    )


def nccl_json() -> Json | None:
    """The native recorder of NCCL: ``dump(active)`` gives JSON. None where it is not found."""
    # The tag says that the result is a std::string of the layout above.
    return _json("libtorch_cuda.so", "_ZN4c10d20dump_nccl_trace_jsonB5cxx11Ebb", None)


def named_json(backend: str | None) -> Json | None:
    """The recorder of torch's hook for ``backend``; None: the only one before 2.15, gloo's."""
    arguments = "B5cxx11Ebb" if backend is None else f"Ebb{_STRING}"
    return _json("libtorch_cpu.so", f"_ZN4c10d18dump_fr_trace_json{arguments}", backend)


def _json(library: str, symbol: str, backend: str | None) -> Json | None:
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        return None  # how the result is returned was tried nowhere else
    import torch

    path = os.path.join(os.path.dirname(torch.__file__), "lib", library)
    try:
        loaded = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        dump, free = loaded[symbol], loaded[_DELETE]
    except (OSError, AttributeError):  # not loaded, or without that function
        return None
    free.argtypes, free.restype = [ctypes.c_void_p], None
    named = [] if backend is None else [_borrowed(backend)]
    dump.argtypes = [ctypes.c_bool, ctypes.c_bool, *(ctypes.c_void_p for _ in named)]
    dump.restype = _String

    def ask(active: bool) -> bytes:
        made = dump(True, active, *map(ctypes.addressof, named))
        if made.size <= _INLINE:
            return b""  # no dump is so short
        try:
            return ctypes.string_at(made.data, made.size)
        finally:
            free(made.data)

    return ask


def _borrowed(text: str) -> _String:
    """A std::string with ``text``, short, for a parameter: it points into itself."""
    made = _String()
    made.size = len(text)
    made.inline = text.encode()
    made.data = ctypes.addressof(made) + _String.inline.offset
    return made
