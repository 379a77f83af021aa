"""Settings in ``pyproject.toml``: below argument and environment, and never somebody else's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from disttrace import project
from disttrace.config import resolve, to_environ
from support.preloaded import preloaded
from support.processes import python

needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is of Python 3.11")


def written(folder: Path, text: str) -> project.Table:
    (folder / "pyproject.toml").write_text(text)
    return project.read(str(folder))


@needs_toml
def test_precedence_is_argument_environment_project_default(tmp_path: Path) -> None:
    """Each source is told, lists and numbers are TOML's, and children get what holds."""
    text = 'stall = 3.5\nmax_mb = 7\nquiet = true\nexport = ["json", "otlp"]\n'
    table = written(tmp_path, f"[tool.disttrace]\n{text}")
    config, complaints = resolve({"stall": 1.5}, {"DISTTRACE_MAX_MB": "9"}, table)
    assert complaints == []
    assert (config.stall, config.max_mb, config.quiet) == (1.5, 9, True)
    assert config.export == frozenset({"json", "otlp"})
    assert [config.sources[name] for name in ("stall", "max_mb", "quiet", "job")] == [
        "argument", "environment", "pyproject.toml", "default",
    ]  # fmt: skip
    assert to_environ(config, {})["DISTTRACE_QUIET"] == "on"


@needs_toml
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[tool.disttrace]\nstal = 3\n", "did you mean stall?"),
        ("[tool.disttrace]\nstall = 'soon'\n", "stall in [tool.disttrace] of pyproject.toml is"),
        ("[tool.disttrace]\nmax_mb = []\n", "allowed is a whole number"),
        ("[tool.disttrace\n", "could not be read"),
        ("[tool.disttrace]\nx = " + 100_000 * "[", "could not be read: its lists"),
        ("[tool]\n'disttrace' = 3 # tool.disttrace\n", "is no table"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    """The file, the key, what is allowed; the default holds."""
    config, complaints = resolve({}, {}, written(tmp_path, text))
    assert len(complaints) == 1
    assert sentence in complaints[0]
    assert config.stall == 10.0


def test_a_file_that_does_not_mention_us_is_not_parsed(tmp_path: Path) -> None:
    """Whatever else is wrong with it is not for us to say; a FIFO would wait for a writer."""
    assert not project.read(str(tmp_path)).values
    for text in ("", "[project]\nname = 'x'\n", "not TOML at all ["):
        table = written(tmp_path, text)
        assert (table.values, table.complaints) == ({}, ())
    (tmp_path / "pyproject.toml").unlink()
    os.mkfifo(tmp_path / "pyproject.toml")
    assert not project.read(str(tmp_path)).values


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_decides_nothing(tmp_path: Path) -> None:
    """``on_stall`` is a command: in /tmp it would be anybody's."""
    (tmp_path / "pyproject.toml").write_text("[tool.disttrace]\non_stall = 'evil'\n")
    os.chown(tmp_path / "pyproject.toml", 12345, 12345)
    config, complaints = resolve({}, {}, project.read(str(tmp_path)))
    assert config.on_stall is None
    assert "belongs to another user" in complaints[0]


@pytest.mark.parametrize("there", [True, False])
def test_what_a_program_does_to_the_file_is_its_own_affair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Read or missed at the start: nobody opens it later, as who holds a lease would notice."""
    file = tmp_path / "pyproject.toml"
    if there:
        file.write_text("")
    program = (
        "import os; open('pyproject.toml', 'w').write('[tool.disttrace]\\nquiet = 5\\n')\n"
        "os.utime('pyproject.toml', ns=(1, 1))\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.barrier(); print(os.stat('pyproject.toml').st_atime_ns)\n"
        "dist.destroy_process_group()\n"
    )
    monkeypatch.chdir(tmp_path)
    done = preloaded("-c", program, DISTTRACE="1", DISTTRACE_DIR="there", DISTTRACE_JOB="mine")
    assert (done.code, done.stdout) == (0, "1\n")
    assert "quiet" not in done.stderr


@needs_toml
def test_programs_and_commands_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traced program writes where the project says, and ``diagnose`` reads there."""
    (tmp_path / "pyproject.toml").write_text("[tool.disttrace]\ndir = 'traces'\nquiet = true\n")
    program = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.barrier()\ndist.destroy_process_group()\n"
    )
    monkeypatch.chdir(tmp_path)
    done = preloaded("-c", program, DISTTRACE="1")
    assert (done.code, done.stderr) == (0, "")
    assert [*(tmp_path / "traces").glob("*.defs.jsonl")]
    told = python("-m", "disttrace", "diagnose")
    assert (told.code, told.stderr) == (0, "")
