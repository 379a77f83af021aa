"""`disttrace run`: the command is itself, only traced, and the user's own start-up still runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from disttrace.commands import CommandError
from disttrace.commands.run import SHELL, environment, unreachable
from disttrace.config import SETTINGS
from support.processes import Outcome, clean_environ, run_program, wait_until

PROBE = (
    "import sys, os\n"
    "from disttrace.session import installed\n"
    "print(installed(), [entry for entry in sys.path if entry.endswith('shell')],"
    " getattr(sys.modules.get('sitecustomize'), '__file__', None))"
)


ALLOWED = "a number of seconds from 0.001 to a billion"


def run(*args: str, cwd: Path | None = None, **variables: str) -> Outcome:
    command = [sys.executable, "-m", "disttrace", "run", *args]
    return run_program(command, clean_environ(**variables), 60, cwd=cwd)


def test_settings_become_variables(tmp_path: Path) -> None:
    """Each option reaches the command as its variable; the folder is absolute."""
    code = "import os; print(os.environ['DISTTRACE_DIR'], os.environ['DISTTRACE_STALL'])"
    options = ["--dir", "sub", "--stall", "2.5"]
    outcome = run(*options, "--", sys.executable, "-S", "-c", code, cwd=tmp_path)
    assert outcome.stdout == f"{tmp_path}/sub 2.5\n"


def test_every_setting_is_an_option() -> None:
    stdout = run("--help").check().stdout
    for row in SETTINGS:
        assert f"--{row.keyword.replace('_', '-')} {row.name}" in stdout


def test_an_option_may_look_like_the_commands_own() -> None:
    """What stands after the command belongs to the command, with or without `--`."""
    assert run("echo", "--dir", "x", "--", "y").check().stdout == "--dir x -- y\n"
    assert run("--", "echo", "--stall", "1").check().stdout == "--stall 1\n"


def test_the_commands_signals_are_the_defaults() -> None:
    """SIGPIPE, which the interpreter ignores for itself, ends the command as usual."""
    command = f"{sys.executable} -m disttrace run -- yes | head -n 1; echo ${{PIPESTATUS[0]}}"
    outcome = run_program(["bash", "-c", command], clean_environ(), 60)
    assert (outcome.stdout, outcome.stderr) == ("y\n141\n", "")


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        ([], 2, "nothing to run; usage: disttrace run [options] -- COMMAND ..."),
        (["--", "no.py"], 127,
         "cannot run 'no.py': No such file or directory; did you mean `python no.py`?"),
        (["--", "/"], 126, "cannot run '/': Permission denied"),
        (["--stall", "soon", "--", "true"], 2,
         f"The argument stall (DISTTRACE_STALL) is 'soon'; allowed is {ALLOWED}; using 10."),
    ],
)  # fmt: skip
def test_mistakes_are_sentences(args: list[str], code: int, sentence: str) -> None:
    """A mistake is one sentence on stderr and the code a shell would give."""
    outcome = run(*args)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (code, "", f"disttrace: {sentence}\n")


def test_the_environment_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Our folder comes first and once; a wrong variable is told once and corrected; an option
    that was typed here and now is refused, not replaced.
    """
    once = environment({}, {"PYTHONPATH": "/a:/b"})
    assert once["PYTHONPATH"].split(os.pathsep)[:3] == [SHELL, "/a", "/b"]
    assert environment({}, once)["PYTHONPATH"] == once["PYTHONPATH"]
    assert once["DISTTRACE"] == "1"
    assert environment({}, {"DISTTRACE_MAX_MB": "much"})["DISTTRACE_MAX_MB"] == "256"
    assert capsys.readouterr().err.startswith("disttrace: DISTTRACE_MAX_MB is 'much'; allowed is")
    with pytest.raises(CommandError, match="The argument export"):
        environment({"export": "csv"}, {})


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python -S x.py", "-S reads"), ("/usr/bin/python3.12 -uI x.py", "-I and -E ignore"),
        ("python3 -E -m mod", "-I and -E ignore"), ("python3 x.py -S", ""),
        ("python3 -c pass -S", ""), ("python3 -mSomething", ""),
        ("python3 -Xdev -Werror x.py", ""), ("torchrun -S", ""),
    ],
)  # fmt: skip
def test_flags_that_keep_us_away_are_told(command: str, said: str) -> None:
    """The limits of the mechanism are told where they can be seen."""
    sentences = unreachable(command.split())
    assert (len(sentences), said in "".join(sentences)) == (bool(said), True)


def test_a_python_below_is_traced_and_its_path_is_clean(tmp_path: Path) -> None:
    """Tracing is on, although nothing is installed, and our folder is off `sys.path`."""
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {PROBE!r}])"
    outcome = run("--dir", str(tmp_path), "--", sys.executable, "-c", code).check()
    assert outcome.stdout.startswith("True [] ")


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    """The user's module is executed, and is what the name means afterwards."""
    own = tmp_path / "sitecustomize.py"
    own.write_text("import sys; sys.stdout.write('mine\\n')")
    options = ["--dir", str(tmp_path), "--", sys.executable, "-c", PROBE]
    path = clean_environ()["PYTHONPATH"]
    outcome = run(*options, PYTHONPATH=f"{path}{os.pathsep}{tmp_path}")
    assert outcome.check().stdout.splitlines()[-2:] == ["mine", f"True [] {own}"]


def test_the_users_broken_sitecustomize_is_reported_as_ever(tmp_path: Path) -> None:
    """An error in the user's module is told by the interpreter, with and without us."""
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('broken')")
    path = f"{clean_environ()['PYTHONPATH']}{os.pathsep}{tmp_path}"
    options = ["--dir", str(tmp_path), "--", sys.executable, "-c", "print('ran')"]
    outcome = run(*options, PYTHONPATH=path).check()
    assert outcome.stdout == "ran\n"
    assert "ValueError: broken" in outcome.stderr


def test_nothing_waits_behind_the_command() -> None:
    """The process becomes the command: there is no parent of ours left."""
    with subprocess.Popen(
        [sys.executable, "-m", "disttrace", "run", "--", "sleep", "60"], env=clean_environ()
    ) as process:
        cmdline = Path("/proc", str(process.pid), "cmdline")
        wait_until(lambda: cmdline.read_bytes() == b"sleep\x0060\x00", 30)
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
