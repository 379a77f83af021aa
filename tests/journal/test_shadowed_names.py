"""Programs with modules of their own that are called as those which the recorder imports."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from disttrace.recording import core as cores
from support.processes import Outcome, clean_environ, python, run_program

# Standard modules that the recorder imports, with all that comes with them.
ASKED = """
import sys
before = set(sys.modules)
import disttrace.session
found = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(found & sys.stdlib_module_names))
"""
OFTEN = (
    "contextlib", "dataclasses", "datetime", "enum", "functools", "json", "resource", "types",
    "secrets", "queue", "uuid", "hmac", "select",
)  # fmt: skip

PROGRAM = """
import sys
when, folder, core, *names = sys.argv[1:]

def meet():
    for name in names:
        try:
            module = __import__(name)
        except Exception as error:
            print(name, "raised", type(error), error)
        else:
            print(name, getattr(module, "mine", None), vars(module).get("__file__"))

if when == "before":
    meet()
standing = dict(sys.modules)
if core:
    import disttrace
    disttrace.install(dir=folder, core=core)
    from disttrace.journal import encoding, own_file
    from disttrace.recording import core as cores
    cores.choose("c")
    assert encoding.encode({"a": [1, None]}) == b'{"a":[1,null]}'
    assert own_file.allow(0) > 0
print(all(sys.modules.get(each) is module for each, module in standing.items()))
meet()
"""

BUILT = [name for name in cores.NAMES if cores.choose(name)[0] == name]
KINDS = {
    "module": ("{name}.py", "print('executed', __name__)\nmine = True\n"),
    "broken": ("{name}.py", "print('executed', __name__)\nraise RuntimeError('mine')\n"),
    "package": ("{name}/__init__.py", "print('executed', __name__)\nmine = True\n"),
}


@functools.cache
def asked_for() -> list[str]:
    # Without `site`, which imports some of them itself.
    path = ":".join(entry for entry in sys.path if entry)
    return python("-S", "-c", ASKED, PYTHONPATH=path).check().stdout.split()


def outcomes(folder: Path, kind: str, when: str, *names: str) -> list[Outcome]:
    """A program with modules of these names, without tracing and with it, on each core."""
    file, text = KINDS[kind]
    for name in names:
        own = folder / file.format(name=name)
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(text)
    program = folder / "program.py"
    program.write_text(PROGRAM)
    return [
        run_program([sys.executable, program, when, folder / "out", each, *names], clean_environ())
        for each in ("", *BUILT)
    ]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_keeps_all_of_its_own(tmp_path: Path, kind: str, when: str) -> None:
    """Whether it imports them before or after tracing begins, and whether they work."""
    bare, *traced = outcomes(tmp_path, kind, when, *OFTEN)
    assert bare.check().stdout.count("executed") >= 5
    assert traced == [bare] * len(BUILT)


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_keeps_each(tmp_path: Path, kind: str, when: str) -> None:
    """One at a time, and of all that any module imports on the way."""
    for name in asked_for():
        bare, *traced = outcomes(tmp_path / name, kind, when, name)
        if "Fatal Python error" not in bare.stderr:  # the interpreter does not start beside it
            assert traced == [bare] * len(BUILT), name
