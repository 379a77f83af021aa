"""Surroundings: how a program is started, stubbed, looked at, and what lies around it."""

from __future__ import annotations

import contextlib
import copy
import datetime
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
import typing
import warnings
import zipapp
from pathlib import Path
from typing import Any

from reliability.attacks.ground import (
    SCRIPT,
    STALL_S,
    group,
    ran,
    reduce,
    say,
)

_SCRIPT = SCRIPT + "print(t.tolist(), __name__)\n"


def options_of_the_interpreter() -> None:
    """Every option that checks, isolates or slows: the same output, and no further warning."""
    odd: list[tuple[list[str], dict[str, str]]] = [
        (["-bb", "-W", "error"], {}), (["-X", "warn_default_encoding", "-W", "error"], {}),
        (["-I"], {}), (["-E", "-s"], {}), (["-X", "dev", "-X", "tracemalloc=5"], {}),
        (["-X", "int_max_str_digits=640"], {}), (["-X", "frozen_modules=off"], {}),
        ([], {"PYTHONMALLOC": "debug", "PYTHONHASHSEED": "0"}), ([], {"PYTHONMALLOC": "malloc"}),
        (["-OO", "-X", "no_debug_ranges"], {}), (["-u", "-W", "error::ResourceWarning"], {}),
        (["-O"], {}), (["-B", "-P"], {}), (["-X", "utf8"], {}),
    ]  # fmt: skip
    for options, variables in odd:
        ran([sys.executable, *options, "-c", _SCRIPT], env={**os.environ, **variables})


def ways_to_start() -> None:
    """From standard input, as a folder, an archive, a module, by runpy twice, and interactively."""
    folder = Path(tempfile.mkdtemp())
    (folder / "app").mkdir()
    (folder / "app" / "__main__.py").write_text(_SCRIPT)
    (folder / "app" / "__init__.py").write_text("")
    zipapp.create_archive(folder / "app", folder / "app.pyz")
    twice = f"import runpy\nfor _ in 'ab':\n try: runpy.run_path({str(folder / 'app')!r})\n"
    twice += " except Exception as error: print(type(error).__name__, error)\n"
    for line, given in (
        (["-"], _SCRIPT), ([str(folder / "app")], ""), ([str(folder / "app.pyz")], ""),
        (["-m", "app"], ""), (["-c", twice], ""), (["-i", "-q"], _SCRIPT + "exit(3)\n"),
        (["-i", "-q", "-c", "x = 1"], "import torch\nraise KeyError(x)\nprint(x)\n"),
    ):  # fmt: skip
        ran([sys.executable, *line], input=given, cwd=folder)


def torch_that_is_none() -> None:
    """Programs that put a stub, a mock or nothing in the place of torch."""
    stubs = ("types.ModuleType('torch')", "mock.MagicMock()", "None", "object()", "Stub('torch')")
    for stub in stubs:
        script = (
            "import sys, types, threading, os\nfrom unittest import mock\n"
            "class Stub(types.ModuleType):\n"
            "    def __getattr__(self, name): raise RuntimeError('asked for ' + name)\n"
            f"sys.modules['torch'] = {stub}\n"
            "try:\n    import torch\nexcept ImportError as error: print('ImportError', error)\n"
            "import json, wave, multiprocessing.process, concurrent.futures\n"
            "threading.Thread(target=print, args=('thread',)).start()\n"
            "if os.fork() == 0: os._exit(0)\nos.wait()\n"
            "import colorsys\nprint('end')\n"
        )
        ran([sys.executable, "-c", script])
    script = (
        "import sys\nfrom unittest import mock\n"
        "with mock.patch.dict(sys.modules, {'torch': mock.MagicMock()}):\n"
        "    import torch, json, wave\n    torch.distributed.all_reduce(1)\nimport chunk\n"
        + _SCRIPT.replace("print(t.tolist()", "print(type(t), t.tolist()")
    )
    ran([sys.executable, "-W", "ignore", "-c", script])


def loader_of_many() -> None:
    """One loader for all modules, which is asked for one of torch's and loads another."""

    class One(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        loaded: typing.ClassVar[list[str]] = []

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name.startswith("mine") or name in ("deepspeed", "accelerate", "lightning"):
                return importlib.machinery.ModuleSpec(name, self)
            return None

        def exec_module(self, module: types.ModuleType) -> None:
            self.loaded.append(module.__name__)
            module.__dict__["made"] = module.__name__

    one = One()
    sys.meta_path.append(one)
    dist = group()
    for name in ("deepspeed", "accelerate", "lightning"):
        say(found=importlib.util.find_spec(name) is not None)
        say(made=importlib.import_module(f"mine_{name}").made)
    say(loaded=one.loaded, own=sorted(vars(one)), reduced=reduce(dist))


def callers_of_the_program() -> None:
    """A method that the program defines in a subclass sees who called it: warnings, log records,
    frames."""
    import torch.distributed as dist

    records: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(f"{record.funcName} {Path(record.pathname).name}")

    log = logging.getLogger("mine")
    log.addHandler(Keeps())
    log.propagate = False

    class Mine(dist.HashStore):
        def get(self, key: str) -> bytes:
            warnings.warn("old", DeprecationWarning, stacklevel=2)
            log.warning("asked", stacklevel=2)
            records.append(sys._getframe(1).f_code.co_name)
            records.append(inspect.stack()[1].function)
            return b"mine"

    def caller() -> bytes:
        return store.get("a")  # type: ignore[no-any-return]

    store: Any = Mine()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            caller()
    say(records=records, files=[Path(one.filename).name for one in caught])


def errors_handed_on(dist: Any) -> None:
    """Exceptions of collectives and stores are pickled, copied and printed with their locals."""
    import torch

    store = dist.HashStore()
    store.set_timeout(datetime.timedelta(milliseconds=30))
    asks: Any = dist
    for call in (
        lambda: dist.broadcast(torch.ones(2), 7), lambda: store.get("never"),
        lambda: asks.all_reduce("x"), lambda: dist.new_group([9]),
        lambda: dist.all_gather_object([None], lambda: 1), lambda: asks.init_process_group("gloo"),
    ):  # fmt: skip
        try:
            call()  # type: ignore[no-untyped-call]
        except Exception as error:
            try:
                again = pickle.loads(pickle.dumps(error))
                say(again=type(again) is type(error), args=str(again.args)[:60])
            except Exception as other:
                say(other=type(other).__name__)
            say(copied=str(copy.deepcopy(error))[:60] if not error.args[1:] else "")
            shown = traceback.TracebackException.from_exception(error, capture_locals=True)
            lines = "".join(shown.format()).splitlines()
            say(frames=[x.strip().split(",")[-1] for x in lines if x.startswith("  File")])
            own = (x for x in lines if x.startswith("    ") and " = " in x)
            say(locals=sorted(x.split("=")[0].strip() for x in own))


def place_of_meeting(dist: Any) -> None:
    """What processes of a host leave for each other is replaced by pipes, links, folders and
    files of a terabyte."""
    shared = Path(f"/tmp/disttrace-{os.geteuid()}")
    done = 0
    with contextlib.suppress(OSError):
        found = os.stat(os.environ["DISTTRACE_DIR"])
        mark = f"{found.st_dev:x}.{found.st_ino:x}-"
        until = time.monotonic() + 4 * STALL_S
        while time.monotonic() < until:
            for path in list(shared.glob(mark + "*")):
                with contextlib.suppress(OSError):
                    path.unlink()
                    (os.mkfifo, lambda p: os.symlink("/dev/zero", p), os.mkdir, _terabyte)[
                        done % 4
                    ](path)
                    done += 1
            reduce(dist, 10)
            time.sleep(0.3)
        for path in list(shared.glob(mark + "*")):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    say(reduced=reduce(dist, 100))


def _terabyte(path: Any) -> None:
    with open(path, "wb") as file:
        file.write(b"{" * 100_000 + b"\n")
        file.truncate(1 << 40)


def jumping_clock() -> None:
    """A library that was loaded first makes every clock jump back and forth by hours."""
    folder = Path(tempfile.mkdtemp())
    (folder / "clock.c").write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <time.h>\nstatic int n;\n"
        "int clock_gettime(clockid_t id, struct timespec *t) {\n"
        "  static int (*real)(clockid_t, struct timespec *);\n"
        '  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");\n'
        "  int r = real(id, t);\n"
        "  if (id == CLOCK_REALTIME || (id == CLOCK_MONOTONIC && t->tv_nsec % 1000 < 40))\n"
        "    t->tv_sec += (__sync_fetch_and_add(&n, 1) % 3 - 1) * 3000;\n"
        "  return r; }\n"
    )
    library = folder / "clock.so"
    made = subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", library, folder / "clock.c", "-ldl"], check=False
    )
    script = _SCRIPT + "s = dist.HashStore()\nfor n in range(3000):\n"
    script += "    dist.all_reduce(t); s.set('a', 'b')\nprint('end')\n"
    env = {**os.environ, **({} if made.returncode else {"LD_PRELOAD": str(library)})}
    ran([sys.executable, "-c", script], env=env)


def loaders_of_data(dist: Any) -> None:
    """DataLoaders with workers, epoch after epoch, by fork and spawn, one that fails and one that
    is killed."""
    import torch
    from torch.utils.data import DataLoader

    for method, count, epochs in (("fork", 4, 5), ("spawn", 2, 1)):
        loader: Any = DataLoader(_Data(), num_workers=count, multiprocessing_context=method)
        total = sum(float(x.sum()) for _ in range(epochs) for x in loader)
        say(method=method, total=total, reduced=reduce(dist))
    for bad in (3, 4):
        data = _Data()
        data.bad = bad
        try:
            for one in DataLoader(data, num_workers=2):
                torch.ones(1).add_(one.sum())
        except Exception as error:
            lines = [x for x in str(error).splitlines() if "0x" not in x and "pid" not in x]
            say(kind=type(error).__name__, lines=lines[:1] + lines[-1:], count=len(lines))


class _Data:
    bad = -1

    def __len__(self) -> int:
        return 24

    def __getitem__(self, n: int) -> Any:
        import torch

        if self.bad == 3 and n == 7:
            raise LookupError("mine")
        if self.bad == 4 and n == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(2) * n
