"""The command line: the table, mistakes as sentences, and exit codes."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from disttrace import __version__, cli
from disttrace.config import SETTINGS
from support.preloaded import preloaded
from support.processes import clean_environ, python


def disttrace(*args: str, **variables: str) -> tuple[int, str, str]:
    """Run the command line in a process of its own: code, stdout, stderr."""
    # `info` imports torch.
    run = preloaded if args[:1] == ("info",) else python
    outcome = run("-m", "disttrace", *args, timeout=60, **variables)
    return outcome.code, outcome.stdout, outcome.stderr


def test_help_names_every_command_and_imports_none() -> None:
    """The overview is the table, and costs no import of a command."""
    code = (
        "import sys; from disttrace.cli import main; main(['--help'])\n"
        "print([n for n in sys.modules"
        " if n.startswith(('disttrace.commands.', 'disttrace_viewer', 'torch'))])"
    )
    outcome = python("-c", code).check()
    *overview, modules = outcome.stdout.splitlines()
    assert modules == "[]"
    for row in cli.COMMANDS:
        assert f"  {row.name:<10} {row.help}" in overview


def test_no_command_a_mistyped_one_and_the_version() -> None:
    """Without a command the overview is shown, and code 2 says that nothing was done."""
    code, stdout, _ = disttrace()
    assert (code, stdout.startswith("usage: disttrace COMMAND")) == (2, True)
    assert disttrace("--version") == (0, f"disttrace {__version__}\n", "")
    said = "disttrace: 'diagnos' is not a command; did you mean 'diagnose'?\n"
    assert disttrace("diagnos") == (2, "", said)


HELPS = """
import sys
from disttrace.cli import main
for name in sys.argv[1:]:
    try:
        main(["help", name])
    except SystemExit as ended:
        assert not ended.code, name
"""


def test_every_command_explains_itself() -> None:
    """Each row leads to a module that builds its own help, also without any package."""
    names = [row.name for row in cli.COMMANDS]
    outcome = python("-S", "-c", HELPS, *names).check()
    assert "docs/" not in outcome.stdout, "no wheel brings these files"
    assert outcome.stderr == ""
    assert re.findall(r"^usage: disttrace (\S+)", outcome.stdout, re.MULTILINE) == names


HELP = "`disttrace diagnose --help`"
WRONG = [
    ("view --wdith 80", "`disttrace view` has no option --wdith; did you mean --width?"),
    ("diagnose --xyz=1", f"`disttrace diagnose` has no option --xyz; see {HELP}."),
    ("stats --by lien", "--by lien: did you mean line?"),
    ("export --format csv", "--format csv: allowed are html, jsonl, otlp, parquet, perfetto."),
    ("diagnose --stall -1", "--stall: '-1' is not a number of seconds above 0, up to a billion."),
    ("view --width 5", "--width: '5' is not a number of columns of 40 or more."),
    ("view --last 0", "--last: '0' is not a whole number of 1 or more."),
    ("view --job", "--job: expected one argument."),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_a_wrong_option_is_a_sentence(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In our style, with what may have been meant, and code 2."""
    assert cli.main(words.split()) == 2
    assert capsys.readouterr().err == f"disttrace: {sentence}\n"


def test_completion_knows_every_command_and_option() -> None:
    """The script for bash completes commands, options and their values."""
    script = disttrace("completion", "bash")[1]
    lines = [
        "COMP_CWORD=1 COMP_WORDS=(disttrace dia); _disttrace; echo ${COMPREPLY[@]}",
        "COMP_CWORD=2 COMP_WORDS=(disttrace stats --j); _disttrace; echo ${COMPREPLY[@]}",
        "COMP_CWORD=3 COMP_WORDS=(disttrace stats --by l); _disttrace; echo ${COMPREPLY[@]}",
    ]
    told = subprocess.run(
        ["bash", "-c", "\n".join([script, *lines])], capture_output=True, text=True, timeout=60
    )
    assert (told.stdout, told.stderr) == ("diagnose\n--job --json\nline\n", "")
    for shell in ("zsh", "fish"):
        assert "diagnose" in disttrace("completion", shell)[1]


def test_a_missing_extra_is_a_sentence(tmp_path: Path) -> None:
    """Where no package is installed, the viewer's commands say how to get what they need."""
    outcome = python("-S", "-m", "disttrace", "view", str(tmp_path))
    assert (outcome.code, outcome.stdout) == (2, "")
    assert re.fullmatch(
        r"disttrace: (polars|rich) is not installed; get it by pip install 'disttrace\[viewer\]'\n",
        outcome.stderr,
    )


def test_info_says_what_is_missing_and_how_to_get_it() -> None:
    """Without any package there is still a report, with a remedy for each."""
    outcome = python("-S", "-m", "disttrace", "info").check()
    assert outcome.stderr == ""
    remedies = [line.split("missing")[1].strip() for line in outcome.stdout.splitlines()[3:9]]
    assert remedies == [
        "pip install orjson", "pip install 'disttrace[torch]'", "pip install 'disttrace[viewer]'",
        "pip install 'disttrace[viewer]'", "pip install 'disttrace[otlp]'",
        "pip install 'disttrace[otlp]'",
    ]  # fmt: skip
    assert "torch is not installed here; nothing can be traced." in outcome.stdout


def test_an_exception_with_a_code_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command's error reaches the shell as text and code, whoever defined its class."""

    class Refused(Exception):  # noqa: N818 - as a viewer's would be named
        exit_code = 7

    def refuse(argv: list[str]) -> int:
        raise Refused(f"no {argv[0]}")

    monkeypatch.setattr(cli, "_dispatch", refuse)
    assert cli.main(["view"]) == 7
    assert capsys.readouterr().err == "disttrace: no view\n"


def test_a_closed_pipe_is_silent() -> None:
    """`disttrace info | true` ends without a traceback."""
    command = [sys.executable, "-u", "-m", "disttrace", "info", "--json"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, env=clean_environ(), text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("words", "code"), [("run -- sh -c 'exit 3'", 3), ("--version", 0), ("diagnose /none", 2)]
)
def test_streams_that_are_closed_change_no_exit_code(closed: str, words: str, code: int) -> None:
    """Where a daemon or a scheduler starts it: 1 would be a fault that was found."""
    line = f"'{sys.executable}' -m disttrace {words} {closed}"
    command = ["sh", "-c", line]
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


def test_a_command_started_by_run_gets_the_streams_as_they_are() -> None:
    """What stands in for a closed one is for us alone."""
    look = "import sys; sys.exit(sys.stdout is None)"
    line = f"'{sys.executable}' -m disttrace run -- '{sys.executable}' -c '{look}' >&-"
    done = subprocess.run(["sh", "-c", line], env=clean_environ(), timeout=60, check=False)
    assert done.returncode == 1


def test_info_tells_every_setting_and_its_source_and_what_is_captured(tmp_path: Path) -> None:
    """By JSON: a row per setting, what was wrong, and with a torch that works parts in a state."""
    variables = {"DISTTRACE_DIR": str(tmp_path), "DISTTRACE_STALL": "2", "DISTTRACE_MAX_MB": "x"}
    code, stdout, stderr = disttrace("info", "--json", **variables)
    assert (code, stderr) == (0, "")
    report = json.loads(stdout)
    rows = {row["variable"]: (row["value"], row["source"]) for row in report["settings"]}
    assert list(rows) == [row.variable for row in SETTINGS]
    assert rows["DISTTRACE_DIR"] == (str(tmp_path), "environment")
    assert rows["DISTTRACE_STALL"] == ("2", "environment")
    assert rows["DISTTRACE_MAX_MB"] == ("256", "default")
    assert rows["DISTTRACE_JOB"] == (None, "default")
    assert report["complaints"] == [
        "DISTTRACE_MAX_MB is 'x'; allowed is a whole number from 1 to 1048576; using 256."
    ]
    assert report["disttrace"]["version"] == __version__
    assert report["enabled"] is False
    assert report["journal"]["dir"] == str(tmp_path)
    assert report["journal"]["mechanism"] in ("mapped", "written")
    if importlib.util.find_spec("torch"):
        capture = report["capture"]
        assert (capture["problem"], bool(capture["parts"])) == (None, True)
        assert all(capture["parts"])


@pytest.mark.parametrize(
    ("value", "enabled", "told"),
    [
        ("off", False, ""), ("No", False, ""), ("on", True, ""),
        ("yess", False, "DISTTRACE is 'yess'; allowed is 1 or 0; not tracing."),
    ],
)  # fmt: skip
def test_info_and_start_up_agree_on_what_is_on(value: str, enabled: bool, told: str) -> None:
    """One function reads DISTTRACE for both."""
    _, stdout, _ = disttrace("info", "--json", DISTTRACE=value)
    report = json.loads(stdout)
    assert report["enabled"] is enabled
    assert report["complaints"] == ([told] if told else [])
