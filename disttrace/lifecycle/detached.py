"""Starts a process of ours beside the program, which sees nothing of it.

No child that ``wait`` could find or SIGCHLD announce, no descriptor, no working directory, no
signal that is ignored or blocked. How is the compiled part's (``_detached.c``); without it there is
no such process, for the program would see it.
"""

from __future__ import annotations

import _frozen_importlib_external
import atexit
import functools
import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disttrace import foreign
from disttrace.identity import PARENT_VARIABLE, PREFIXES, file_part, working_directory
from disttrace.journal import compiled, proc
from disttrace.journal.descriptors import attempt
from disttrace.journal.format import opened_own
from disttrace.journal.standard_library import bare_command
from disttrace.lifecycle.rendezvous_folder import namespace, records_in
from disttrace.project import absolute

_AUTO_INSTRUMENTATION = os.path.join("opentelemetry", "instrumentation", "auto_instrumentation")
_PATHS = ("PYTHONHOME", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE", "TMPDIR")
_FILES = ("_CERTIFICATE", "_CLIENT_KEY", "CERT_FILE", "CERT_DIR", "CA_BUNDLE")
"""How names of variables end that name files, OpenTelemetry's and those of TLS."""


def start(
    command: Sequence[str], environ: Mapping[str, str], *, out: int, err: int, kept: bool
) -> int:
    """Run ``command``, with ``out`` and ``err`` as its outputs and none of our descriptors. Raises
    OSError, also where nothing was compiled. ``kept``: its parent is no adopter of orphans, but a
    process that this one cannot see either, whose pid is returned (else 0) and which is to be
    reaped."""
    native = _native()
    variables = [os.fsencode(f"{name}={value}") for name, value in environ.items()]
    pid: int = native.start([os.fsencode(word) for word in command], variables, out, err, kept)
    return pid


def start_ours(
    module: str,
    order: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    out: int,
    err: int,
    kept: bool,
) -> int:
    """``start`` an interpreter; ``main`` of our module gets ``order`` as JSON. Raises OSError."""
    command = bare_command(interpreter(), _path(), module, json.dumps(order))
    return start(command, environment(environ), out=out, err=err, kept=kept)


def interpreter() -> str:
    """The file that the kernel runs, where that is the interpreter of an installed Python: a frozen
    program does what it always does, and ``sys.executable`` may be anything. Raises OSError."""
    running = os.stat("/proc/self/exe")
    version = "python{}.{}".format(*sys.version_info)
    names = (f"{version}{sys.abiflags}", version, "python3", "python")
    for prefix, name in itertools.product(PREFIXES, names):
        path = os.path.join(prefix, "bin", name)
        found = attempt(os.stat, path)
        if found is not None and os.path.samestat(found, running):
            return path
    raise OSError(
        "this program's executable is not the one of an installed Python, and starting "
        "it could run the program twice"
    )


def _path() -> list[str]:
    """Where to look for packages: where ours are, then wherever the program looks, but for the
    folder of its script and the current one, where a module may bear any name."""
    paths = list(sys.path)
    find = _frozen_importlib_external.PathFinder.find_spec
    found = [find(name, paths) for name in ("disttrace_viewer", "orjson")]
    files = [foreign.HOME, *(spec.origin for spec in found if spec is not None and spec.origin)]
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    own = {"", os.path.dirname(os.path.realpath(str(main))), working_directory()}
    packages = [os.path.dirname(os.path.dirname(file)) for file in files]
    return [*packages, *(absolute(path) for path in paths if path not in own)]


def adopts() -> bool:
    """Whether orphans become its children: pid 1 of a namespace (container), or a subreaper."""
    native = attempt(_native)
    return native is not None and bool(native.adopts())


def reap(pid: int) -> bool:
    """Whether the keeper that ``start`` returned is gone; no zombie stays of it."""
    try:
        return os.waitpid(pid, os.WNOHANG | _WCLONE)[0] == pid
    except foreign.ours(ChildProcessError):
        return True  # of our parent, before a fork


_WCLONE = -0x80000000  # __WCLONE of <sys/wait.h>, as an int


def refusal() -> str | None:
    """Why no process can be started here; None where one can."""
    try:
        _native()
    except foreign.ours(OSError) as error:
        return str(error)
    return None


@functools.cache  # adopts() asks each second, and to load it reads its source
def _native() -> Any:
    try:
        native = compiled.load("lifecycle._detached")
    except foreign.ours(ImportError):
        raise OSError("the part that starts it was not compiled here") from None
    if not hasattr(native, "start"):
        raise OSError(f"there is no way on {sys.platform} to start it that a program cannot see")
    return native


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Not traced, not instrumented, with absolute paths, for it runs in another directory."""
    kept = {k: v for k, v in environ.items() if k != PARENT_VARIABLE}
    kept["DISTTRACE"] = "0"
    folders = kept.get("PYTHONPATH", "").split(os.pathsep)
    others = [f for f in folders if f and not f.rstrip(os.sep).endswith(_AUTO_INSTRUMENTATION)]
    kept["PYTHONPATH"] = os.pathsep.join(map(absolute, others))
    for name, value in kept.items():
        if value and name in ("PATH", "LD_LIBRARY_PATH"):
            kept[name] = os.pathsep.join(map(absolute, value.split(os.pathsep)))
        elif value and (name in _PATHS or name.endswith(_FILES)):
            kept[name] = absolute(value)
    return kept


SUFFIX = ".adopts"
_LONGEST = 64 << 10
_DEEPEST = 1000  # ancestors


class Adopter:
    """This process, where orphans become its children: the first of its pid namespace (often
    torchrun, in a container), or a subreaper.

    Such a program may wait until it has no child, and the companion until the program ends. The
    kernel names adopters to no other process, so each traced one makes a file,
    ``HOST-NAMESPACE-PID.adopts``: its start time, and below it the orders for companions, which it
    starts with a keeper between. Of several the first gets the order: when another ends, what it
    kept would be the first one's.
    """

    def __init__(self, folder: str) -> None:
        """``folder``: of the journals; nothing is made in it before the first ``look``."""
        self._folder = folder
        self._path: str | None = None
        self._position = 0
        self._over = False
        self._keepers: list[int] = []

    def look(self, owner: Callable[[], int]) -> list[dict[str, Any]]:
        """Orders; first its file is made. ``owner``: this user on that disk. Raises OSError."""
        self._keepers = [pid for pid in self._keepers if not reap(pid)]
        if self._path is None:
            if not self._over and adopts():
                self._announce(owner())
            return []
        try:
            if os.stat(self._path).st_size <= self._position:
                return []
        except foreign.ours(OSError):
            self._path = None  # the folder was emptied: it is made again
            return []
        with opened_own(self._path, os.O_RDONLY, owner()) as file:
            data = os.pread(file, _LONGEST, self._position)
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return list(records_in(whole))

    def keeps(self, keeper: int) -> None:
        """To be reaped when it ends; 0 is none."""
        if keeper:
            self._keepers.append(keeper)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        path, self._path, self._over = self._path, None, True
        if path is not None:
            attempt(os.unlink, path)  # the folder may be gone

    def forked(self) -> None:
        """In a forked child: all of this is the parent's."""
        atexit.unregister(self.stop)
        self._path, self._over, self._keepers = None, False, []

    def _announce(self, owner: int) -> None:
        path = _file_of(self._folder, os.getpid())
        line = f"{proc.mark(proc.stat('self'))}\n".encode()
        with opened_own(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, owner) as file:
            os.write(file, line)
        self._path, self._position = path, len(line)
        atexit.register(self.stop)


def first_adopter(folder: str, owner: int) -> int | None:
    """The outermost traced adopter from here up; None: none. Raises OSError or ValueError."""
    found = os.getpid() if adopts() else None
    pid = os.getpid()
    for _ in range(_DEEPEST):
        pid = proc.stat(pid).parent
        if pid == 0:  # beyond the namespace
            return found
        try:
            with opened_own(_file_of(folder, pid), os.O_RDONLY, owner) as file:
                start_mark = os.pread(file, 100, 0).partition(b"\n")[0]
        except foreign.ours(OSError):
            continue
        if start_mark == proc.mark(proc.stat(pid)).encode():
            found = pid
    return found


def ask_adopter(folder: str, pid: int, order: dict[str, Any], owner: int) -> None:
    """Have the adopter ``pid`` start the companion. Raises OSError."""
    with opened_own(_file_of(folder, pid), os.O_WRONLY | os.O_APPEND, owner) as file:
        os.write(file, json.dumps(order).encode() + b"\n")


def _file_of(folder: str, pid: int) -> str:
    parts = (os.uname().nodename, namespace(), str(pid))
    return os.path.join(folder, "-".join(map(file_part, parts)) + SUFFIX)
