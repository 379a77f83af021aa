"""Settings: precedence, wrong values as sentences, what children inherit, those of a project."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path

import pytest

import disttrace
from disttrace import project
from disttrace.config import PRIVATE, SETTINGS, resolve, to_environ, to_text
from support.preloaded import preloaded
from support.processes import ROOT, python


def test_the_settings_are_the_keywords_of_install() -> None:
    """In the same order; a new setting is a keyword too."""
    given = inspect.signature(disttrace.install).parameters
    names = [name for name, one in given.items() if one.kind is one.KEYWORD_ONLY]
    assert names == [row.keyword for row in SETTINGS]


@pytest.mark.parametrize(
    ("variable", "text", "attribute", "value"),
    [
        ("DISTTRACE_DIR", "/a/../b", "dir", "/b"),
        ("DISTTRACE_EXPORT", " json, OTLP,", "export", frozenset({"json", "otlp"})),
        ("DISTTRACE_MAX_MB", "1", "max_mb", 1),
        ("DISTTRACE_STALL", "0.25", "stall", 0.25),
        ("DISTTRACE_LOG", "json", "log", "json"),
        ("DISTTRACE_STACK_DEPTH", "0", "stack_depth", 0),
        ("DISTTRACE_JOB", " nightly ", "job", "nightly"),
        ("DISTTRACE_STORE_TRACE", "gloo,nccl", "store_trace", frozenset({"gloo", "nccl"})),
        ("DISTTRACE_STORE_TRACE", "none", "store_trace", frozenset()),
        ("DISTTRACE_DEVICE", "OFF", "device", "off"),
        ("DISTTRACE_HEARTBEAT", "OFF", "heartbeat", False),
        ("DISTTRACE_MASK", "0", "mask", False),
        ("DISTTRACE_FILE_MODE", "0640", "file_mode", "640"),
        ("DISTTRACE_REDACT", "acme-[0-9]{2,},x", "redact", "acme-[0-9]{2,},x"),
        ("DISTTRACE_PENDING", "0", "pending", 0.0),
    ],
)
def test_text_becomes_typed_value(variable: str, text: str, attribute: str, value: object) -> None:
    """Each variable's text is parsed into the type that the config promises."""
    config, complaints = resolve({}, {variable: text})
    assert complaints == []
    assert getattr(config, attribute) == value
    assert config.sources[attribute] == "environment"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("DISTTRACE_EXPORT", "csv"), ("DISTTRACE_EXPORT", ","), ("DISTTRACE_MAX_MB", "0"),
        ("DISTTRACE_MAX_MB", "2.5"), ("DISTTRACE_STALL", "soon"), ("DISTTRACE_STALL", "nan"),
        ("DISTTRACE_STALL", "1e308"), ("DISTTRACE_PENDING", "1e10"), ("DISTTRACE_LOG", "xml"),
        ("DISTTRACE_STACK_DEPTH", "65"), ("DISTTRACE_JOB", "a\nb"),
        ("DISTTRACE_STORE_TRACE", "none,gloo"), ("DISTTRACE_DEVICE", "on"),
        ("DISTTRACE_HEARTBEAT", "maybe"), ("DISTTRACE_MASK", "2"), ("DISTTRACE_FILE_MODE", "644x"),
        ("DISTTRACE_REDACT", "fine,(never closed"), ("DISTTRACE_FILE_MODE", "755"),
        ("DISTTRACE_FILE_MODE", "040"), ("DISTTRACE_PENDING", "-1"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_sentence_and_the_default_holds(variable: str, text: str) -> None:
    """The sentence names the variable, the value and what is allowed."""
    row = next(row for row in SETTINGS if row.variable == variable)
    config, complaints = resolve({}, {variable: text})
    assert getattr(config, row.keyword) == row.default
    assert config.sources[row.keyword] == "default"
    fallback = to_text(row.default) or "no value"
    allowed = row.kind.allowed
    assert complaints == [f"{variable} is {text!r}; allowed is {allowed}; using {fallback}."]


def test_arguments_need_not_be_text() -> None:
    """Of a wrong type they are a sentence with keyword and variable, not an exception."""
    config, complaints = resolve(
        {"dir": Path("/x"), "export": ["otlp"], "heartbeat": False, "stall": 3, "job": None}, {}
    )
    assert complaints == []
    assert (config.dir, config.export, config.heartbeat) == ("/x", frozenset({"otlp"}), False)
    assert (config.stall, config.job) == (3.0, None)
    config, complaints = resolve({"max_mb": True}, {"DISTTRACE_MAX_MB": "5"})
    assert config.max_mb == 256
    allowed = "allowed is a whole number from 1 to 1048576; using 256."
    assert complaints == [f"The argument max_mb (DISTTRACE_MAX_MB) is True; {allowed}"]


def test_an_unknown_name_is_told_with_a_proposal() -> None:
    """A keyword raises as in Python; a variable is a sentence, but for our private ones."""
    with pytest.raises(TypeError, match=r"keyword argument 'stal'; did you mean 'stall'\?"):
        resolve({"stal": 1}, {})
    environ = {"DISTTRACE": "1", "DISTTRACE_STAL": "1", "DISTTRACE_QQQ": ""}
    _, complaints = resolve({}, environ | dict.fromkeys(PRIVATE, "x"))
    assert complaints == [
        "DISTTRACE_QQQ is no setting of disttrace; `disttrace info` lists the settings.",
        "DISTTRACE_STAL is no setting of disttrace; did you mean DISTTRACE_STALL?",
    ]


def test_children_resolve_to_the_same_values() -> None:
    """Handing down overrides what lost or was wrong, so children neither differ nor repeat it."""
    environ = {"DISTTRACE_STALL": "3", "DISTTRACE_MAX_MB": "many"}
    config, complaints = resolve({"stall": 10, "store_trace": "none"}, environ)
    assert len(complaints) == 1
    handed = to_environ(config, environ)
    assert os.path.isabs(handed["DISTTRACE_DIR"])
    assert "DISTTRACE_LOG" not in handed, "what is as it is by default"
    child, repeated = resolve({}, environ | handed)
    assert repeated == []
    assert [getattr(child, row.keyword) for row in SETTINGS] == [
        getattr(config, row.keyword) for row in SETTINGS
    ]


def test_every_setting_is_read_somewhere() -> None:
    """A row that nobody asks for is a promise that nobody keeps."""
    packages = (ROOT / "disttrace", ROOT / "viewer" / "disttrace_viewer")
    config = ROOT / "disttrace" / "config.py"
    files = [path for package in packages for path in package.rglob("*.py") if path != config]
    sources = [path.read_text() for path in files]
    for row in SETTINGS:
        read = re.compile(rf"(?:config|settings)\.{row.keyword}\b|[\"']{row.variable}[\"']")
        assert any(read.search(text) for text in sources), f"{row.variable} is never read"


# -- in ``pyproject.toml``: below argument and environment, and never somebody else's


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
