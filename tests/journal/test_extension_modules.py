"""Compiled modules that we need, beside modules of the program that bear their names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.processes import clean_environ, run_program

PROGRAM = """
import sys
{before}
from disttrace.journal.compiled import orjson, resource
print(orjson.dumps([1]), resource.RLIMIT_FSIZE > 0)
print([name for name in ("orjson", "resource") if name in sys.modules])
import orjson, resource
print(orjson.mine, resource.mine)
"""


@pytest.mark.parametrize("imported_before", [False, True])
@pytest.mark.parametrize("package", [False, True])
def test_the_programs_own_are_kept(tmp_path: Path, *, imported_before: bool, package: bool) -> None:
    """They are executed when the program imports them, and stay what its names mean."""
    for name in ("orjson", "resource"):
        file = tmp_path / name / "__init__.py" if package else tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("print('executed', __name__)\nmine = True\n")
    before = "import orjson, resource" if imported_before else ""
    (tmp_path / "program.py").write_text(PROGRAM.format(before=before))
    found = run_program([sys.executable, str(tmp_path / "program.py")], clean_environ(), 60)
    mine = ["executed orjson", "executed resource"]
    ours = ["b'[1]' True", str(["orjson", "resource"] if imported_before else [])]
    assert found.stdout.splitlines() == [
        *(mine if imported_before else []), *ours, *([] if imported_before else mine), "True True",
    ]  # fmt: skip


def test_there_is_one_where_nothing_hides_it() -> None:
    """Then the module is that which everybody imports."""
    import resource

    import orjson

    from disttrace.journal import compiled

    assert compiled.orjson is orjson
    assert compiled.resource is resource
