"""An interpreter that has imported torch, and forks for each program (see ``preloaded``).

    python preloaded_interpreter.py DESCRIPTOR

An order comes over the socket DESCRIPTOR with a socket for answers and the standard streams that
it is for; the answers are the pid of the fork and, when that has ended, its status. A fork returns
from ``serve`` and runs its program at the top of this file, so that it ends as interpreters do. One
that ends well, and is not asked for its whole end, is spared the teardown of torch, which takes
longer than most programs: after all that is registered for its exit.
"""

import atexit
import faulthandler
import gc
import json
import os
import signal
import socket
import sys
import types
import warnings
from posix import _exit

is_spared = False


@atexit.register  # before torch is imported: the last that runs
def spare() -> None:
    """End at once, with all that was printed."""
    if is_spared:
        sys.stdout.flush()
        sys.stderr.flush()
        _exit(0)


import torch._dynamo  # noqa: E402 - DistributedDataParallel imports it
import torch.distributed  # noqa: E402

LONGEST_ORDER = 1 << 17


def serve(control: socket.socket) -> "dict[str, object]":
    """Fork for every order; returns in the fork, with its order."""
    gc.freeze()  # what is there is not traversed again in each fork
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, LONGEST_ORDER, 4)
        if not data:
            os._exit(0)  # the tests are over
        if os.fork() == 0:
            control.close()
            if program(*descriptors):
                order: dict[str, object] = json.loads(data)
                return order
        for descriptor in descriptors:
            os.close(descriptor)


def program(answers: int, *streams: int) -> bool:
    """True in a fork with these standard streams; the process that waits for it ends here."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for descriptor in (answers, *streams):
            os.close(descriptor)
        return True
    for stream in streams:
        os.close(stream)
    os.write(answers, b"%d" % child)
    os.write(answers, b"%d" % os.waitpid(child, 0)[1])
    os._exit(0)


def become(args: "list[str]", env: "dict[str, str]", cwd: str) -> "tuple[types.ModuleType, str]":
    """This process as an interpreter that was started so: its new ``__main__``, and the source."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    torch.distributed.set_debug_level_from_env()  # as its import does
    if not env.get("PYTHONFAULTHANDLER"):
        faulthandler.disable()
    if args[:2] == ["-W", "ignore"]:
        del args[:2]
        warnings.simplefilter("ignore")
    if "triton" in sys.modules:
        gc.unfreeze()  # its nanobind calls leaked what nobody collects at exit, and says so
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.orig_argv = [sys.executable, *args]
    if args[0] == "-m":
        source = f"import runpy; runpy.run_module({args[1]!r}, run_name='__main__', alter_sys=True)"
        sys.path[0], sys.argv[:] = "", args[1:]
    elif args[0] == "-c":
        source = args[1]
        sys.path[0], sys.argv[:] = "", ["-c", *args[2:]]
    else:
        with open(args[0], encoding="utf-8") as file:
            source = file.read()
        main.__file__ = args[0]
        sys.path[0], sys.argv[:] = os.path.dirname(os.path.abspath(args[0])), args
    if env.get("DISTTRACE", "0") not in ("", "0"):
        from disttrace import startup

        startup._called = False  # Python 3.15 has called it, while tracing was off
        startup.main()  # as disttrace.pth does
    return main, source


if __name__ == "__main__":
    _order = serve(socket.socket(fileno=int(sys.argv[1])))
    _whole = _order.pop("whole")
    _main, _source = become(**_order)  # type: ignore[arg-type]
    exec(compile(_source, getattr(_main, "__file__", "<string>"), "exec"), _main.__dict__)
    is_spared = not _whole
