"""Activation by DISTTRACE=1: nothing when unset, once when set, and never an exception; and where
disttrace does not run.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from disttrace import waiting
from disttrace.startup import refusal
from support.processes import ROOT, Outcome, clean_environ, python, run_program

LINE = (ROOT / "disttrace" / "startup.pth").read_text()
_OURS = f"3.{sys.version_info.minor}."
_OTHERS = Path.home().glob(".pyenv/versions/3.1*/bin/python")
INTERPRETERS = [sys.executable, *sorted(str(one) for one in _OTHERS if _OURS not in str(one))]
LOADED = "print(sorted(name for name in sys.modules if name.split('.')[0] == 'disttrace'))"
STAND_IN = """
import os, sys
calls = 0
def install(**settings):
    global calls
    calls += 1
    if os.environ.get("SLOW"):
        import time
        time.sleep(20)
    if os.environ.get("FAIL"):
        raise RuntimeError("no disk")
"""


def start(code: str = LOADED, *, times: int = 1, **variables: str) -> Outcome:
    """Run the start-up line `times` times, then `code`; session and torch are stand-ins."""
    program = (
        "import sys, types\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name in ('disttrace.session', 'torch'):\n"
        "            from importlib.machinery import ModuleSpec\n"
        "            return ModuleSpec(name, Finder)\n"
        "    create_module = staticmethod(lambda spec: None)\n"
        "    @staticmethod\n"
        "    def exec_module(module):\n"
        f"        if module.__name__ != 'torch': exec({STAND_IN!r}, vars(module))\n"
        "sys.meta_path.insert(0, Finder)\n"
        f"for _ in range({times}): exec({LINE!r})\n"
    )
    # -S: an installed disttrace would have started already
    args = [sys.executable, "-S", "-c", program + code]
    return run_program(args, clean_environ(**variables), 60)


def test_the_file_is_one_line_of_import() -> None:
    """The interpreter executes only lines that start with `import`, each by itself."""
    assert LINE.count("\n") == 1
    assert LINE.startswith("import ")
    compile(LINE, "disttrace.pth", "exec")


def test_without_the_switch_the_line_costs_nothing() -> None:
    """Compiled and run, the line takes far less than starting an interpreter varies by."""
    code = f"import time; begin = time.process_time()\nfor _ in range(200): exec({LINE!r})\n"
    seconds = float(start(code + "print((time.process_time() - begin) / 200)").check().stdout)
    assert seconds < 0.001  # 0.000015 measured


@pytest.mark.parametrize("switch", [None, "", "0"])
def test_without_the_switch_nothing_is_imported(switch: str | None) -> None:
    """Unset, empty and 0 import no module of disttrace."""
    outcome = (start() if switch is None else start(DISTTRACE=switch)).check()
    assert (outcome.stdout, outcome.stderr) == ("[]\n", "")


def test_two_readings_of_the_file_install_once() -> None:
    """A virtual environment reads the file twice; tracing starts once."""
    code = "import torch; print(sys.modules['disttrace.session'].calls)"
    outcome = start(code, times=2, DISTTRACE="1").check()
    assert (outcome.stdout, outcome.stderr) == ("1\n", "")


@pytest.mark.parametrize(
    ("switch", "said"),
    [("off", ""), ("yess", "disttrace: DISTTRACE is 'yess'; allowed is 1 or 0; not tracing.\n")],
)
def test_what_is_not_on_does_not_install(switch: str, said: str) -> None:
    """Words for off are understood; what is neither is named, and the program runs on."""
    code = "import torch; print('disttrace.session' in sys.modules)"
    outcome = start(code, DISTTRACE=switch).check()
    assert (outcome.stdout, outcome.stderr) == ("False\n", said)


def test_a_long_wrong_switch_is_cut() -> None:
    """Whatever stands in the variable, the sentence stays one."""
    stderr = start("", DISTTRACE="x" * 100_000).check().stderr
    assert stderr.startswith("disttrace: DISTTRACE is 'xxx")
    assert stderr.endswith("xxx...; allowed is 1 or 0; not tracing.\n")
    assert len(stderr) < 200


def test_a_failure_is_one_sentence_and_the_program_runs() -> None:
    """An exception in starting leaves the program as it was."""
    outcome = start("import torch; print('ran')", times=2, DISTTRACE="1", FAIL="1").check()
    said = "disttrace: tracing is off, starting it failed: RuntimeError: no disk\n"
    assert (outcome.stdout, outcome.stderr) == ("ran\n", said)


_STRUCK = """
import os, signal, time
def struck(number, frame): raise error
signal.signal(signal.SIGALRM, struck)
for error in (TimeoutError("of a handler"), SystemExit(7), KeyboardInterrupt()):
    if not os.fork():
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            import torch
            time.sleep(20)
        except BaseException as what:
            os.write(1, f"{what is error} {what!r}\\n".encode())
        os._exit(0)
    os.wait()
"""


def test_what_strikes_while_it_starts_is_the_programs() -> None:
    """It starts in the midst of `import torch`, where a signal's handler may raise as well."""
    bare, traced = (start(_STRUCK, DISTTRACE=on, SLOW="1").check() for on in "01")
    assert bare.stdout.split("\n") == [
        "True TimeoutError('of a handler')", "True SystemExit(7)", "True KeyboardInterrupt()", "",
    ]  # fmt: skip
    assert (traced.stdout, traced.stderr) == (bare.stdout, "")


def test_a_missing_package_is_one_sentence(tmp_path: Path) -> None:
    """A start-up file left behind by hand stops no interpreter, with a stderr or without."""
    environ = clean_environ(DISTTRACE="1", PYTHONPATH=str(tmp_path))
    said = "disttrace: not started: ModuleNotFoundError: No module named 'disttrace'\n"
    for first, stderr in (("", said), ("import sys; sys.stderr = None\n", "")):
        words = [sys.executable, "-S", "-c", f"{first}exec({LINE!r}); print('ran')"]
        outcome = run_program(words, environ, 60, cwd=tmp_path).check()
        assert (outcome.stdout, outcome.stderr) == ("ran\n", stderr)


def test_the_face_imports_nothing_heavy_and_stays_a_function() -> None:
    """Nor does `uninstall` alone import what it would undo, but for the hook it is found by."""
    code = (
        "before = set(sys.modules); import disttrace; print(sorted(set(sys.modules) - before))\n"
        f"disttrace.uninstall(); {LOADED}\n"
        "import importlib; importlib.import_module('disttrace.session'); disttrace.install()\n"
        "print(sys.modules['disttrace.session'].calls)"
    )
    own = ["disttrace", *(f"disttrace.{one}" for one in ("_version", "api", "identity", "waiting"))]
    assert start(code).check().stdout == f"['disttrace']\n{own}\n1\n"


@pytest.mark.parametrize("python", INTERPRETERS)
def test_start_up_imports_nothing_a_program_may_have_named(python: str, tmp_path: Path) -> None:
    """Before torch comes, only what the bare interpreter holds, modules of C, and ours."""
    code = (
        "import sys\n"
        "print(sorted(n for n, m in list(sys.modules.items())"
        " if getattr(getattr(m, '__spec__', None), 'origin', '') not in ('built-in', 'frozen')))"
    )
    shell = ROOT / "disttrace" / "commands" / "shell"
    path = os.pathsep.join((str(shell), str(ROOT)))

    def loaded(**variables: str) -> set[str]:
        environ = clean_environ(**variables, PYTHONPATH=path)
        found = run_program([python, "-c", code], environ, 60, cwd=tmp_path).check()
        assert found.stderr == ""
        return set(ast.literal_eval(found.stdout))

    bare = loaded()
    assert loaded(DISTTRACE="0") == bare
    ours = loaded(DISTTRACE="1") - bare
    assert "disttrace.waiting" in ours
    assert {name.partition(".")[0] for name in ours} == {"disttrace"}


def test_looking_for_torch_is_not_importing_it() -> None:
    """Libraries ask whether torch is there; tracing waits for its import."""
    code = (
        "import importlib.util; print(importlib.util.find_spec('torch') is not None,"
        " 'disttrace.session' in sys.modules)"
    )
    assert start(code, DISTTRACE="1").check().stdout == "True False\n"


def test_children_started_before_torch_comes_know_their_parent(tmp_path: Path) -> None:
    """The id, and the folder as it was where the program began."""
    code = (
        "import os; os.chdir('/'); print(os.environ['DISTTRACE_DIR']);"
        "parent = os.environ['DISTTRACE_PARENT']; print(parent.split(',')[1])\n"
        "pid = os.fork()\n"
        "if not pid: print(os.environ['DISTTRACE_PARENT'] != parent, flush=True); os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "import disttrace; disttrace.uninstall(); print('DISTTRACE_PARENT' in os.environ)\n"
    )
    program = f"exec({LINE!r})\n{code}"
    outcome = run_program(
        [sys.executable, "-S", "-u", "-c", program], clean_environ(DISTTRACE="1"), 60, cwd=tmp_path
    ).check()
    assert outcome.stdout.split() == [f"{tmp_path}/disttrace-out", "main", "True", "False"]


_WAITS = """
import os, sys
from disttrace import waiting
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
asked = []
class All:  # the ordinary kind of a second hook: it finds what any other finder finds
    def find_spec(self, name, path=None, target=None):
        asked.append(name)
        others = [finder for finder in sys.meta_path if finder is not self]
        return next(filter(None, (f.find_spec(name, path, target) for f in others)), None)
class Own:  # finds by itself
    find_spec = staticmethod(lambda name, path=None, target=None:
        PathFinder.find_spec(name, path) if name == "torch" else None)
if sys.argv[1] == "traced":
    say = lambda *words: os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece
    waiting.begin(lambda: say("arrived", "part" in vars(sys.modules.get("torch", sys))),
                  lambda error: say("error", error),
                  lambda said: say("said", said.partition(":")[0].removesuffix(" only")))
"""
_LAZY = """
import importlib.util as util
spec = util.find_spec("torch")
loader = spec.loader = util.LazyLoader(spec.loader)
made = sys.modules["torch"] = util.module_from_spec(spec)
loader.exec_module(made)
import colorsys; print("torch.within" in sys.modules)
"""
_ANEW = "sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]\n"
_PLACES = {
    "first": ("sys.meta_path.insert(0, All())\n", ["arrived False\n"]),
    "second": ("sys.meta_path.insert(1, All())\n", ["arrived False\n"]),
    "before": ("sys.meta_path.insert(0, Own)\n", ["arrived False\n"]),
    "anew": (_ANEW, ["said nothing was recorded\n"]),
    "forks": (
        f"{_ANEW}import torch\nif not os.fork(): os._exit(0)\nos.wait()\n",
        ["arrived True\n", "said recorded from here on\n"] * 2,
    ),
    "lazy": (_LAZY, ["arrived False\n"]),
}


def test_a_package_that_is_awaited_does_not_make_its_imports_dear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would have all modules looked at while the package is executed."""
    monkeypatch.syspath_prepend(tmp_path)
    inner = [f"awaited_with_{n}" for n in range(20)]
    (tmp_path / "awaited.py").write_text("".join(f"import {one}\n" for one in inner))
    for one in inner:
        (tmp_path / f"{one}.py").touch()
    came: list[ModuleType] = []
    monkeypatch.setattr(waiting, "_is_in_the_middle", lambda: pytest.fail("looks at all modules"))
    hook = waiting.ImportHook(lambda error: pytest.fail(str(error)))
    hook.when_imported("awaited", came.append)
    try:
        module = importlib.import_module("awaited")
    finally:
        hook.remove()
        for one in ("awaited", *inner):
            sys.modules.pop(one, None)
    assert came == [module]


@pytest.mark.parametrize("python", INTERPRETERS)
@pytest.mark.parametrize("place", _PLACES)
def test_other_finders_stand_where_they_like(python: str, place: str, tmp_path: Path) -> None:
    """torch is imported as untraced, each finder asked once, and tracing begins or it is told."""
    code, ours = _PLACES[place]
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import torch.within\npart = 1\n")
    (tmp_path / "torch" / "within.py").write_text("")
    program = tmp_path / "program.py"
    program.write_text(f"{_WAITS}{code}import torch; print(torch.part, asked.count('torch'))\n")

    def printed(how: str) -> list[str]:
        command = [python, "-S", "-u", str(program), how]
        outcome = run_program(command, clean_environ(DISTTRACE_DIR=str(tmp_path)), 60).check()
        assert outcome.stderr == ""
        return outcome.stdout.splitlines(keepends=True)

    untraced, traced = printed("plain"), printed("traced")
    assert sorted(set(traced) - set(untraced)) == sorted(set(ours))
    assert [line for line in traced if line not in ours] == untraced


# -- where disttrace does not run it says so in one sentence, imports nothing else, and stays away


# Interpreters like these are not at hand: what they say of themselves is.
FREE_THREADED = "import sys; sys._is_gil_enabled = lambda: False; "
WINDOWS = "import sys; sys.platform = 'win32'; "
INSTALL = "import disttrace; disttrace.install(); "
ACTIVATE = "from disttrace import startup; startup._called = False; startup.main(); "
NOTHING = (
    "unwanted = 'disttrace.session', 'disttrace.recording.recorder', 'orjson'; "
    "print([n for n in unwanted if n in sys.modules])"
)


def test_this_interpreter_is_traced() -> None:
    """Else nothing of this suite would mean anything."""
    assert refusal() is None


@pytest.mark.parametrize(("place", "word"), [(FREE_THREADED, "GIL"), (WINDOWS, "Linux")])
@pytest.mark.parametrize(("begin", "on"), [(INSTALL, "0"), (ACTIVATE, "1")])
def test_it_refuses(place: str, word: str, begin: str, on: str) -> None:
    """The program goes on, without an extension module that could switch the GIL on."""
    outcome = python("-S", "-c", f"{place}{begin}{NOTHING}", DISTTRACE=on).check()
    assert outcome.stdout == "[]\n"
    (sentence,) = outcome.stderr.splitlines()
    assert sentence.startswith("disttrace: not tracing: ")
    assert word in sentence


def test_info_says_so() -> None:
    """In the part that tells what can be captured."""
    code = f"{FREE_THREADED}from disttrace.cli import main; main(['info', '--json'])"
    outcome = python("-c", code).check()
    capture = json.loads(outcome.stdout)["capture"]
    assert "GIL" in capture["problem"]
    assert capture["parts"] == []


@pytest.mark.skipif(not hasattr(sys, "_is_gil_enabled"), reason="this Python has always a GIL")
def test_an_interpreter_with_a_gil_says_that_it_has_one() -> None:
    """What the refusal asks exists under this name."""
    assert sys._is_gil_enabled() is True  # type: ignore[attr-defined]
