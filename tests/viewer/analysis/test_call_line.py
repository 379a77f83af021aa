"""The user's line of a call, and which calls are the same, where others' code lies between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from disttrace.journal.code_files import is_library, is_program
from disttrace_viewer.analysis.sample import innermost, site
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording.names import file_name
from disttrace_viewer.wording.sentences import place

if TYPE_CHECKING:
    from disttrace_viewer.trace.model import Call

PACKAGES = "/env/lib/python3.11/site-packages"
DDP = Frame(f"{PACKAGES}/lightning/pytorch/strategies/ddp.py", 303, "barrier")
MINE = Frame("/src/train.py", 42, "step")
INDUCTOR = "c" + "a7" * 25 + "b.py"


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/src/train.py", "program"),
        ("<cell 3>", "program"),
        ("/home/me/python3-work/train.py", "program"),
        ("/usr/lib64/python3.11/queue.py", "library"),
        ("/env/lib/python3.11/multiprocessing/process.py", "library"),
        (f"{PACKAGES}/lightning/fabric.py", "library"),
        ("/env/bin/accelerate", "library"),
        ("/home/me/bin/train.py", "program"),
        ("<eval_with_key>.7", "library"),
        ("/tmp/torchinductor_me/ab/x.py", "library"),
        (f"/scratch/cache/a7/{INDUCTOR}", "library"),
        ("<frozen runpy>", "library"),
        ("<string>", "nobody knows"),
    ],
)
def test_whose_a_file_is(file: str, owner: str) -> None:
    assert (is_program(file), is_library(file)) == (owner == "program", owner == "library")


def test_the_programs_line_comes_before_a_packages() -> None:
    """However far out; and the text of ``python -c`` before a package's."""
    typed = Frame("<string>", 2, "<module>")
    assert innermost((DDP, typed, MINE)) == MINE
    assert innermost((DDP, typed)) == typed
    assert innermost((DDP,)) == DDP


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (DDP.file, "lightning/.../ddp.py"),
        (f"{PACKAGES}/accelerate/data.py", "accelerate/data.py"),
        (f"{PACKAGES}/typing_extensions.py", "typing_extensions.py"),
        (MINE.file, "train.py"),
    ],
)
def test_a_file_of_a_package_is_named_by_it(file: str, name: str) -> None:
    assert file_name(file) == name
    assert place(Frame(file, 7, "f")) == f"{name}:7"


def test_calls_from_generated_code_are_compared_by_the_users_line() -> None:
    """Each rank numbers and lays out the code that it generates by itself."""
    stacks = (
        (Frame("<eval_with_key>.3", 10, "forward"), MINE),
        (Frame("<eval_with_key>.5", 12, "forward"), MINE),
        (Frame("<eval_with_key>.5", 12, "forward"), Frame("/src/train.py", 43, "step")),
        (MINE, Frame("<frozen runpy>", 88, "_run_code")),
    )
    first, second, third, last = (
        cast("Call", SimpleNamespace(op="all_reduce", stack=stack)) for stack in stacks
    )
    assert site(first) == site(second) == ("all_reduce", MINE)
    assert site(third) != site(second)
    assert site(last) == ("all_reduce", stacks[3])
