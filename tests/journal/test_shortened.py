"""Whatever happens to a journal's files while they are mapped, the program goes on as untraced."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import pytest

from disttrace.journal.segment import Guard, uncompiled
from disttrace_viewer.api import load
from support.preloaded import preloaded
from support.processes import Outcome, python

PROGRAM = Path(__file__).with_name("shortened.py")
WAYS = ("emptied", "halved", "replaced", "emptied", "deleted")

# A segment of ours, and a mapping of the program's own whose file ends under it.
HEAD = """
import ctypes, faulthandler, mmap, os, signal, sys, threading
from disttrace.journal import segment as segments
folder, traced = sys.argv[1], sys.argv[2] == "traced"
def opened(name="segment"):
    return segments.open_segment(f"{folder}/{name}", limit=10**6) if traced else None
def shorten(segment, name="segment"):
    if traced:
        os.truncate(f"{folder}/{name}", 0)
        for _ in range(3):
            segment.put(b"x" * 5000 + b"\\n")  # more than a page
        try:
            segment.check()
        except segments.SegmentLost:
            pass
        else:
            raise AssertionError("nobody saw it")
    print("survived", flush=True)
def own():
    path = f"{folder}/own"
    open(path, "wb").write(b"x" * 8192)
    file = open(path, "r+b")
    mapping = mmap.mmap(file.fileno(), 8192)
    os.truncate(path, 0)
    mapping[0] = 1
Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
@Handler
def handler(number):
    os.write(1, b"theirs\\n")
    os._exit(9)
libc = ctypes.CDLL(None)
libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
libc.signal.restype = ctypes.c_void_p
faulthandler.disable()
"""
PROGRAMS = {
    "by default": "s = opened(); shorten(s); own()",
    "sent": "s = opened(); shorten(s); os.kill(os.getpid(), signal.SIGBUS)",
    "a handler before": "libc.signal(7, handler); s = opened(); shorten(s); own()",
    "a handler after": "s = opened(); libc.signal(7, handler); s and s.check(); shorten(s); own()",
    "faulthandler before": "faulthandler.enable(); s = opened(); shorten(s); own()",
    "faulthandler after": "s = opened(); faulthandler.enable(); s and s.check(); shorten(s); own()",
    "faulthandler, sent": """
s = opened(); faulthandler.enable(); s and s.check(); shorten(s)
os.kill(os.getpid(), signal.SIGBUS)""",
    "faulthandler again and again": """
s = opened()
for _ in range(50):
    faulthandler.enable(); s and s.check()
    faulthandler.disable(); s and s.check()
faulthandler.enable(); s and s.check(); shorten(s); own()""",
    "ignored": """
libc.signal(7, 1); s = opened(); s and s.put(b"x\\n"); os.kill(os.getpid(), signal.SIGBUS)
print(os.popen("grep SigIgn /proc/self/status").read())""",
    "blocked": """
signal.pthread_sigmask(signal.SIG_BLOCK, [7]); s = opened(); s and s.put(b"x\\n")
if traced:
    os.truncate(f"{folder}/segment", 0); s.put(b"x\\n")
own()""",
    "Python's handler": """
signal.signal(7, lambda *_: (print("theirs"), sys.exit(5)))
s = opened(); shorten(s); os.kill(os.getpid(), 7); input()""",
    "put back": """
for n in range(40):
    s = opened(str(n)); shorten(s, str(n)); s and s.close()
libc.signal.restype = ctypes.c_void_p
print(libc.signal(7, None), signal.getsignal(7)); own()""",
    "forked by a library": """
s = opened()
s and s.put(b"before\\n")
fork = ctypes.PyDLL(None).fork
pid = fork()
if pid == 0:
    s and s.put(b"of the child's\\n")
    own()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
if traced:
    s.put(b"after\\n"); s.close()
    assert open(f"{folder}/segment").read() == "before\\nafter\\n"
""",
}


def run(folder: Path, program: str, *, traced: bool) -> Outcome:
    (folder / str(traced)).mkdir()
    file = folder / "program.py"
    file.write_text(HEAD + program)
    return python(file, folder / str(traced), "traced" if traced else "untraced", timeout=60)


def faults(outcome: Outcome) -> list[str]:
    """What was said, without what is another in each process: addresses, and modules of ours."""
    lines = re.sub("0x[0-9a-f]+", "", outcome.stderr).splitlines()
    return [line for line in lines if line and not line.startswith("Extension modules: ")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bus_error_of_the_programs_own_is_as_untraced(tmp_path: Path, name: str) -> None:
    """One in a window of ours is survived first."""
    traced, untraced = (run(tmp_path, PROGRAMS[name], traced=t) for t in (True, False))
    assert (traced.code, traced.stdout) == (untraced.code, untraced.stdout), str(traced)
    assert faults(traced) == faults(untraced)
    assert traced.code in (0, 5, 9, -7)


BLOCKS = """
import glob, os, signal, sys, threading
import disttrace
from disttrace import session
disttrace.install(quiet=True, heartbeat=False, dir=sys.argv[1], core=sys.argv[2])
recorder = session._session.recorder
recorder.open()
def work():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGBUS])
    recorder.threads.state
    for path in glob.glob(sys.argv[1] + "/*.ops.jsonl"):
        os.truncate(path, 0)
    recorder.core.record(b"x" * 5000 + b"\\n")
    print("survived")
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(len(glob.glob(sys.argv[1] + "/*.ops.jsonl")))
"""


@pytest.mark.parametrize("core", ["c", "python"])
def test_a_thread_that_blocks_the_signal_stores_into_no_mapping(tmp_path: Path, core: str) -> None:
    """The kernel would end the process, whatever handler there is."""
    done = preloaded("-c", BLOCKS, tmp_path / "out", core).check()
    assert done.stdout == "survived\n2\n"


@pytest.mark.parametrize("core", ["c", "python"])
def test_a_journal_goes_on_after_its_files_were_shortened(tmp_path: Path, core: str) -> None:
    """While three threads record; the program notices nothing, and is told once."""
    folder = tmp_path / "out"
    environ = {"DISTTRACE": "1", "DISTTRACE_DIR": str(folder), "DISTTRACE_CORE": core}
    traced = preloaded(PROGRAM, folder, *WAYS, timeout=60, **environ).check()
    untraced = preloaded(PROGRAM, tmp_path / "none", *WAYS, timeout=60).check()
    assert traced.stdout == untraced.stdout
    assert untraced.stderr == ""
    (said,) = traced.stderr.splitlines()
    assert said.endswith("(it was shortened or deleted from outside); it goes on in the next one")
    trace = load(folder)
    (process,) = trace.model.processes
    assert process.exit is not None
    newest = max(folder.glob("*.ops.jsonl"), key=lambda path: int(path.name.split(".")[-3]))
    assert newest.read_bytes().count(b"the last one") == 2


@pytest.mark.skipif(uncompiled() is not None, reason="nothing was compiled")
def test_a_guard_that_is_dropped_is_let_go() -> None:
    """A handler's exception may strike where nobody has it yet: 32 of these, and none was left."""
    with mmap.mmap(-1, mmap.PAGESIZE) as mapping:
        for _ in range(100):
            Guard(mapping)
        released = Guard(mapping)
        released.release()
        held = [Guard(mapping) for _ in range(20)]
        del released
        while True:
            try:
                held.append(Guard(mapping))
            except OSError:
                break
        assert 20 < len(held) <= 32
        for guard in held:
            guard.release()
