"""Every call is shown at the line that made it, also where code comes and goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cores import EACH_CORE
from support.preloaded import TRACED, preloaded, recorded
from support.raw import read_journals

CELLS = """
store = dist.HashStore()

def step():
    store.set("step", "1")

for number in range(300):  # as in a notebook: every cell is compiled, run once and let go
    code = "step(); store.set('step', '2')"
    exec(compile(code, f"<cell {number}>", "exec"), {"step": step, "store": store})
"""


@EACH_CORE
def test_cells_of_a_notebook(tmp_path: Path, core: str) -> None:
    """Each is another place, though its code lies where that of the last one lay."""
    _, journal = recorded(TRACED + CELLS, tmp_path, core)
    files, stacks = journal.strings(), journal.stacks()
    sets = [stacks[c["stack"]] for c in journal.called() if c["op"] == "store.set"]
    cells = [f"<cell {number}>" for number in range(300)]
    assert [files[stack[1][0]] for stack in sets[::2]] == cells
    assert [files[stack[0][0]] for stack in sets[1::2]] == cells


HANDLED = """
import signal
import torch.multiprocessing

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
store = dist.HashStore()

def step(rank):
    store.set("step", "1")

# As in a rank that mp.spawn starts.
sys.modules["torch.multiprocessing.spawn"]._wrap(step, 0, (), "/dev/null")
"""


@EACH_CORE
def test_a_program_with_a_handler_below_mp_spawn(tmp_path: Path, core: str) -> None:
    """Frames are compared with the handler's; mp.spawn's is a function that runs code of ours."""
    ran, journal = recorded(TRACED + HANDLED, tmp_path, core)
    assert "no longer traced" not in ran.stderr
    assert [call["op"] for call in journal.calls().values()].count("store.set") == 1


COMPARED = """
import signal, sys
import torch.distributed as dist
if sys.argv[2]:
    import disttrace
    disttrace.install(dir=sys.argv[1], core=sys.argv[2])

class Handler:
    compared = 0

    def __call__(self, *_):
        pass

    def __eq__(self, other):
        Handler.compared += 1
        raise ValueError("not to be compared")

    __hash__ = None

signal.signal(signal.SIGTERM, Handler())
dist.HashStore().set("step", "1")
print(Handler.compared)
"""


@EACH_CORE
def test_a_handler_of_the_programs_own_class_is_not_compared(tmp_path: Path, core: str) -> None:
    words = ("-W", "ignore", "-c", COMPARED, str(tmp_path))
    bare, traced = (preloaded(*words, one).check() for one in ("", core))
    assert bare.stdout  # Python itself may compare it
    assert traced.stdout == bare.stdout
    assert "no longer" not in traced.stderr


FRAMEWORK = """
def outermost(action, first=True):
    inner(action, 5) if first else other(action)

def other(action):
    inner(action, 5)

def inner(action, depth):
    if depth:
        return inner(action, depth - 1)
    action()
"""
PROGRAM = """
import sys
import disttrace
folder, core, framework, depth = sys.argv[1:]
disttrace.install(dir=folder, core=core, stack_depth=int(depth))
sys.path.insert(0, framework)
import torch.distributed as dist
from fakeframework.loops import outermost, inner

store = dist.HashStore()

calls = "def inner_set():\\n    store.set('step', '1')\\n"
exec(compile(calls, framework + "/fakeframework/calls.py", "exec"))

for turn in range(3):
    outermost(inner_set)
    outermost(inner_set)
    outermost(inner_set, False)  # one line, and a stack that differs between the two ends only
    inner(inner_set, 61 if turn else 62)  # as far as is looked, and one further
    store.set("mine", "1")
"""


@pytest.fixture
def framework(tmp_path: Path) -> Path:
    """A folder of packages with one framework, whose calls are six frames deep."""
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "fakeframework"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "loops.py").write_text(FRAMEWORK)
    return package.parent


@EACH_CORE
@pytest.mark.parametrize("depth", [1, 2, 4, 9, 0])
def test_line_behind_a_framework(tmp_path: Path, framework: Path, core: str, depth: int) -> None:
    """One stack for each line of the program that called, found anew each time."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    arguments = str(tmp_path / "out"), core, str(framework), str(depth)
    preloaded("-W", "ignore", str(program), *arguments).check()
    (journal,) = read_journals(tmp_path / "out")
    files = journal.strings()
    stacks = {
        number: [(files[file], line) for file, line, _ in frames]
        for number, frames in journal.stacks().items()
    }
    sets = [call for call in journal.called() if call["op"] == "store.set"]
    if depth == 0:
        assert not any("stack" in call for call in sets)
        return
    code = PROGRAM.splitlines()
    told = [stacks[call["stack"]] for call in sets]
    lines = [
        [
            (line, code[line - 1].split("#")[0].strip())
            for file, line in stack
            if file == str(program)
        ]
        for stack in told
    ]
    far = "inner(inner_set, 61 if turn else 62)"
    for turn in range(3):
        first, second, third, fourth, own = lines[5 * turn : 5 * turn + 5]
        assert [text for _, text in (*first, *second)] == ["outermost(inner_set)"] * 2
        assert first != second
        assert [text for _, text in third] == ["outermost(inner_set, False)"]
        assert [text for _, text in fourth] == ([far] if turn else [])
        assert [text for _, text in own][:1] == ['store.set("mine", "1")']
    assert all(len(stack) <= depth + 1 for stack in told)
    assert lines[5:10] == lines[10:15]  # known by then
