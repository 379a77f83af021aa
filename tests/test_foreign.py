"""What the program made is touched by slots of C alone, and in one file of ours."""

from __future__ import annotations

import ast
import ctypes
import functools
import pstats
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrace import foreign
from disttrace.recording import background
from support.cores import EACH_CORE
from support.preloaded import to_its_end
from support.processes import ROOT, python

PROGRAM = Path(__file__).parent / "capture" / "programs" / "foreign.py"
SOURCES = ROOT / "disttrace"
# What runs in a process or a test of its own, or before anything is traced.
OTHERS = (
    *("foreign.py", "cli.py", "commands", "testing", "completion.py", "config.py", "api.py"),
    *("startup.py", "project.py", "journal/compiled.py", "journal/proc.py"),
    "lifecycle/detached.py",
)
TEXTS = frozenset({"str", "repr", "format", "ascii", "print", "hash", "vars", "dir"})
ASKING = frozenset({"isinstance", "getattr", "setattr", "hasattr", "delattr"})
EXCEPTIONS = ("BaseException", "Exception", "SystemExit")
GIVING = ("exc_info", "context_of", "cause_of", "members_of")


def _names(function: ast.AST) -> set[str]:
    """Names that hold an exception in a function: caught, given, or taken from `sys.exc_info`."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.arg) and node.annotation is not None:
            told = ast.unparse(node.annotation).replace('"', "").split(" | ")
            if any(one in EXCEPTIONS or one.endswith("Error") for one in told):
                found.add(node.arg)
    for _ in range(3):  # under other names, too
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=targets, value=value):
                    pass
                case (
                    ast.AnnAssign(target=one, value=value) | ast.NamedExpr(target=one, value=value)
                ):
                    targets = [one]
                case ast.For(target=one, iter=value) | ast.comprehension(target=one, iter=value):
                    targets = [one]
                case _:
                    continue
            if _gives(value, found):
                found |= {name.id for target in targets for name in _plain_names(target)}
    return found


def _plain_names(target: ast.expr) -> list[ast.Name]:
    several = target.elts if isinstance(target, ast.Tuple) else [target]
    return [one for one in several if isinstance(one, ast.Name)]


def _gives(value: ast.expr | None, names: set[str]) -> bool:
    """Whether ``value`` is an exception, or several, as those of these names are."""
    match value:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr=name):
            return name in ("last_value", "last_exc")
        case ast.Call(func=function):
            return ast.unparse(function).rpartition(".")[2] in GIVING
        case ast.Subscript(value=one) | ast.NamedExpr(value=one):
            return _gives(one, names)
        case ast.IfExp(body=one, orelse=other):
            return _gives(one, names) or _gives(other, names)
        case ast.BoolOp(values=several) | ast.Tuple(elts=several):
            return any(_gives(one, names) for one in several)
    return False


def _is(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _touches(tree: ast.AST) -> Iterator[str]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            names = _names(function)
            for node in ast.walk(function):
                if any(_is(one, names) for one in _touched(node)):
                    yield f"{function.name}: {ast.unparse(node)}"


def _touched(node: ast.AST) -> list[ast.expr]:
    """What a piece of code asks by itself."""
    match node:
        case ast.Attribute(value=one) | ast.FormattedValue(value=one):
            return [one]
        case ast.BinOp(op=ast.Mod(), right=ast.Tuple(elts=several)):
            return several
        case ast.BinOp(op=ast.Mod(), right=one):
            return [one]
        case ast.Compare(left=one, ops=ops, comparators=others):
            same = all(isinstance(op, (ast.Is, ast.IsNot)) for op in ops)
            return [] if same else [one, *others]
        case ast.Call(func=ast.Name(id=name), args=[one, *_]) if name in TEXTS | ASKING:
            return [one]
    return []


@pytest.mark.parametrize(
    ("line", "touches"),
    [
        ("str(error)", True), ("f'{error}'", True), ("'%s' % error", True), ("error.args", True),
        ("error.__traceback__ = None", True), ("isinstance(error, OSError)", True),
        ("error == other", True), ("error is other", False), ("foreign.text_of(error)", False),
        ("raise error", False), ("other = error or None; str(other)", True),
        ("[repr(one) for one in foreign.members_of(error)]", True),
        ("if (last := foreign.context_of(error)): last.args", True),
    ],
)  # fmt: skip
def test_the_lint_sees(line: str, touches: bool) -> None:
    """Each way of touching an exception, and no other use of one."""
    caught = f"def f():\n try: g()\n except Exception as error:\n  {line}"
    given = f"def f(error: BaseException | None):\n {line}"
    for source in (caught, given):
        assert bool(list(_touches(ast.parse(source)))) == touches


def test_no_other_file_touches_an_exception() -> None:
    """Not its text, its attributes, its class as it tells it, nor whether it equals another."""
    found = {
        f"{path.relative_to(SOURCES)}:{touch}"
        for path in sorted(SOURCES.rglob("*.py"))
        if not path.relative_to(SOURCES).as_posix().startswith(OTHERS)
        for touch in _touches(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert sorted(found) == []


# Where exceptions are taken whoever raised them: in threads of ours, where no other's strikes.
OURS = (
    *("capture/devices/asker.py:_run", "lifecycle/exit_hooks.py:_quietly"),
    *("lifecycle/heartbeat.py:_run", "lifecycle/listeners.py:_tell_of"),
    "lifecycle/listeners.py:receive",
)  # fmt: skip
# Before anything of a program runs, and in processes of ours.
BEFORE = (
    *("cli.py", "commands", "testing", "completion.py", "startup.py", "project.py", "waiting.py"),
    *("identity.py", "instrumentor.py", "integrations", "journal/compiled.py", "api.py"),
    "journal/standard_library.py",
)
GUARDS = frozenset({"is_ours", "fail", "failing", "_on_error", "_not_put"})
SCARCE = frozenset({"SCARCE", "RecursionError"})  # then too little is left to find out whose it is


def _swallowing(tree: ast.AST, own: frozenset[str], within: str = "") -> Iterator[str]:
    """Functions that take any exception without a question; our ``own`` nobody else raises."""
    for node in ast.iter_child_nodes(tree):
        function = node.name if isinstance(node, ast.FunctionDef) else within
        if _taken(node) - own - SCARCE:
            yield function
        yield from _swallowing(node, own, function)


def _taken(node: ast.AST) -> frozenset[str]:
    inner = [node] if isinstance(node, ast.Call) else list(ast.walk(node))
    calls = [one for one in inner if isinstance(one, ast.Call)]
    called = {ast.unparse(one.func).rpartition(".")[2] for one in calls}
    match node:
        case ast.Call(args=several) if "suppress" in called:
            pass
        case ast.ExceptHandler() if not (
            (called & GUARDS) or any(isinstance(one, ast.Raise) and not one.exc for one in inner)
        ):
            if isinstance(node.type, ast.Call) and ast.unparse(node.type.func).endswith("ours"):
                return frozenset()
            kind = node.type or ast.Name("BaseException")
            several = kind.elts if isinstance(kind, ast.Tuple) else [kind]
        case _:
            return frozenset()
    return frozenset(ast.unparse(one).rpartition(".")[2] for one in several)


def test_nobody_else_swallows_what_may_be_the_programs() -> None:
    """What another thread or a signal handler has raised here no handler of ours swallows."""
    trees = {
        path.relative_to(SOURCES).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCES.rglob("*.py"))
    }
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    own = frozenset(node.name for node in nodes if isinstance(node, ast.ClassDef))
    found = {
        f"{path}:{function}"
        for path, tree in trees.items()
        if not path.startswith(BEFORE)
        for function in _swallowing(tree, own)
    }
    assert sorted(found) == sorted(OURS)


@functools.cache
def untraced(name: str) -> str:
    """What the program prints without us, for every core."""
    return to_its_end("-W", "ignore", PROGRAM, name, "", "").check().stdout


@pytest.mark.parametrize("name", ["passes", "ends", "named", "shapes", "strikes", "asked", "kept"])
@EACH_CORE
def test_as_untraced(tmp_path: Path, name: str, core: str) -> None:
    """The same exceptions with all that they bear; none is lost, and none kept costs more."""
    outcome = to_its_end("-W", "ignore", PROGRAM, name, core, tmp_path).check()
    assert untraced(name)
    assert outcome.stdout == untraced(name)
    assert outcome.stderr == ""


def test_no_thread_of_ours_gets_what_is_raised_in_the_programs() -> None:
    """Not even just after its start, while the program's thread goes on without a pause."""
    me, interval = ctypes.c_ulong(threading.get_ident()), sys.getswitchinterval()
    sys.setswitchinterval(5)
    try:
        with pytest.raises(TimeoutError):  # noqa: PT012 - raised by the loop
            assert background.Thread(lambda: None, "disttrace-test").start()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(me, ctypes.py_object(TimeoutError))
            for _ in range(3):
                pass
    finally:
        sys.setswitchinterval(interval)


def test_code_of_ours_is_known_in_place() -> None:
    """By its last constant: its file and its name are plain texts, which go wherever texts may."""
    code = compile("", "theirs.py", "exec")
    ours = code.replace(co_consts=(foreign.InPlace(print, print),))
    assert [foreign.is_our_code(one) for one in (code, ours)] == [False, True]


def test_a_profile_of_a_program_can_be_written(tmp_path: Path) -> None:
    """With the names of all that ran, by `marshal`, which takes plain texts only."""
    program, written = tmp_path / "program.py", tmp_path / "written"
    program.write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.broadcast_object_list([1], 0)\n"
        "dist.destroy_process_group()\n"
    )
    options = ("-m", "cProfile", "-o", written, program)
    python(*options, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path)).check()
    assert pstats.Stats(str(written)).stats  # type: ignore[attr-defined]
    assert [*tmp_path.glob("*.defs.jsonl")]
