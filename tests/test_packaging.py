"""The wheel, the sdist, an editable install, the image: what arrives, starts once, and leaves."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import disttrace
from disttrace.cli import COMMANDS, parser_of
from disttrace.config import SETTINGS
from support.journals import S
from support.processes import ROOT, Outcome, clean_environ, run_program
from support.scenes import hang_without

LOADED = "import sys; print([name for name in sys.modules if name.startswith('disttrace')])"
HOOKS = (
    "import sys; from disttrace.session import installed\n"
    "print(installed(), sum(getattr(finder, '__module__', '').startswith('disttrace')"
    " or type(finder).__module__.startswith('disttrace') for finder in sys.meta_path))"
)


@dataclass(frozen=True, slots=True)
class Built:
    """The two files that a release consists of."""

    wheel: Path
    sdist: Path


@dataclass(frozen=True, slots=True)
class Environment:
    """A scratch environment that sees this one's packages, and holds nothing of its own yet."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *args: str, **variables: str) -> Outcome:
        """Run its interpreter outside the repository, with nothing on PYTHONPATH."""
        environ = clean_environ(**variables)
        del environ["PYTHONPATH"]
        return run_program([self.python, *args], environ, 120, cwd=self.folder)

    def pip(self, *args: str) -> Outcome:
        """Run this environment's pip on it, without a network."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        pip += ["--python", str(self.python)]
        environ = clean_environ(PIP_NO_INDEX="1", PIP_NO_INPUT="1")
        return run_program([*pip, *args], environ, 240, cwd=self.folder).check()

    def files(self) -> list[str]:
        """Every file but compiled ones; pip leaves empty folders of what it took away."""
        paths = (path for path in self.folder.rglob("*") if not path.is_dir())
        names = (str(path.relative_to(self.folder)) for path in paths)
        return sorted(name for name in names if "__pycache__" not in name)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build sdist, and the wheel from the sdist, as a release does."""
    folder = tmp_path_factory.mktemp("dist")
    options = ["--no-isolation", "--skip-dependency-check", "--outdir", str(folder)]
    build = [sys.executable, "-m", "build", *options, str(ROOT)]
    run_program(build, clean_environ(), 240).check()
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An empty virtual environment whose path file leads to the packages that we depend on."""
    folder = tmp_path / "env"
    venv.create(folder, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    there = filter(os.path.isdir, site.getsitepackages())
    (packages / "a_dependencies.pth").write_text("\n".join(there) + "\n")
    return Environment(folder)


def prove_that_it_works(environment: Environment) -> None:
    """What a user relies on after any kind of installation."""
    names = environment.run("-c", "import disttrace, disttrace_viewer; print('both')").check()
    assert (names.stdout, names.stderr) == ("both\n", "")
    for variables in ({}, {"DISTTRACE": "0"}):
        unset = environment.run("-c", LOADED, **variables).check()
        start = ["disttrace", "disttrace.startup"] if sys.version_info >= (3, 15) else []
        assert (unset.stdout, unset.stderr) == (f"{start}\n", "")
    hooks = environment.run("-c", HOOKS, DISTTRACE="1", DISTTRACE_DIR="out").check()
    assert (hooks.stdout, hooks.stderr) == ("True 1\n", "")
    assert not (environment.folder / "out").exists()
    script = environment.folder / "bin" / "disttrace"
    told = run_program([script, "--version"], clean_environ(), 60).check()
    assert told.stdout == f"disttrace {disttrace.__version__}\n"


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack our own archive; Python before 3.11.4 knows no filter, later ones warn without."""
    kind = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(folder, **kind)  # type: ignore[arg-type]


def test_the_wheel_holds_both_packages_and_the_start_up_files(built: Built) -> None:
    """Start-up files lie at the root, where the interpreter looks, and nowhere else."""
    names = zipfile.ZipFile(built.wheel).namelist()
    assert {name.split("/")[0] for name in names} - {f"disttrace-{disttrace.__version__}.data"} == {
        "disttrace", "disttrace_viewer", "disttrace.pth", "disttrace.start",
        f"disttrace-{disttrace.__version__}.dist-info",
    }  # fmt: skip
    assert {"disttrace/py.typed", "disttrace_viewer/py.typed"} <= set(names)
    assert "disttrace/commands/shell/sitecustomize.py" in names
    starts = [name for name in names if name.endswith((".pth", ".start"))]
    assert starts == ["disttrace.pth", "disttrace.start"]


def test_the_wheel_brings_a_manual_page(built: Built) -> None:
    """Every command, each of its options, each setting; man reads it without a complaint."""
    pytest.importorskip("argparse_manpage")
    name = f"disttrace-{disttrace.__version__}.data/data/share/man/man1/disttrace.1"
    page = zipfile.ZipFile(built.wheel).read(name).decode()
    assert page.startswith('.TH DISTTRACE "1"')
    plain = page.replace("\\-", "-")
    for row in COMMANDS:
        assert f"disttrace {row.name}" in plain
        for action in parser_of(row)._actions:
            if action.dest != "help":
                assert all(option in plain for option in action.option_strings), row.name
    assert [row.variable for row in SETTINGS if f".B {row.variable}\n" not in plain] == []
    if (groff := shutil.which("groff")) is not None:
        done = subprocess.run(
            [groff, "-man", "-ww", "-Tutf8"], input=page, capture_output=True, text=True, check=True
        )
        assert "What happened, in order, across ranks." in done.stdout


def test_without_a_compiler_the_wheel_is_the_pure_one(built: Built, tmp_path: Path) -> None:
    """Any Python can install it, and nothing in it was compiled."""
    with tarfile.open(built.sdist) as archive:
        _extract(archive, tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path)]
    run_program([*build, str(source)], clean_environ(CC="/nonexistent/cc"), 240).check()
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith(".so")]
    assert "disttrace/recording/core.py" in names


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_with_a_compiler_the_wheel_has_every_part_in_c(built: Built) -> None:
    """Objects for one interpreter, which the wheel's tag says."""
    assert not built.wheel.name.endswith("-any.whl")
    names = zipfile.ZipFile(built.wheel).namelist()
    made = {name.split(".")[0] for name in names if name.endswith(".so")}
    kinds = ("c", "cpp") if shutil.which("c++") else ("c",)
    found = [path for kind in kinds for path in ROOT.glob(f"disttrace/**/_*.{kind}")]
    sources = {path.relative_to(ROOT).with_suffix("") for path in found}
    assert made == {source.as_posix() for source in sources} != set()


def test_a_wheel_leaves_nothing_in_the_checkout(built: Built, tmp_path: Path) -> None:
    """`pip install .` compiles elsewhere: an object of one interpreter is not the next one's."""
    with tarfile.open(built.sdist) as archive:
        _extract(archive, tmp_path)
    (source,) = tmp_path.iterdir()
    before = sorted(source.rglob("*"))
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel"]
    build += ["--outdir", str(tmp_path / "dist"), str(source)]
    run_program(build, clean_environ(CFLAGS="-O0"), 240)
    assert list((tmp_path / "dist").glob("*.whl"))
    left = [path for path in source.rglob("*") if path not in before]
    assert [path for path in left if "__pycache__" not in path.parts] == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_a_compiler_need_not_know_the_flags_of_the_interpreters(tmp_path: Path) -> None:
    """Today's compiler may be another, or older, than that which made the interpreter."""
    of_interpreter = shlex.split(sysconfig.get_config_var("CFLAGS") or "") or ["-Wthat"]
    flag = next(each for each in of_interpreter if each not in ("-O3", "-fPIC", "-fwrapv", "-Wall"))
    compiler, source = tmp_path / "refusing", tmp_path / "disttrace" / "lifecycle" / "_frames.c"
    compiler.write_text(
        f'#!/bin/sh\nfor a; do [ "$a" != {shlex.quote(flag)} ] || exit 1; done\nexec cc "$@"\n'
    )
    compiler.chmod(0o755)
    source.parent.mkdir(parents=True)
    for path in (source.relative_to(tmp_path), "hatch_build.py"):
        shutil.copy(ROOT / path, tmp_path / path)
    build = [sys.executable, str(tmp_path / "hatch_build.py")]
    flags = sysconfig.get_config_var("CFLAGS") or flag
    for environ, made in ({}, 1), ({"CFLAGS": flags}, 0):  # what is asked for is not left out
        outcome = run_program(build, clean_environ(CC=str(compiler), **environ), 240)
        assert (outcome.code == 0) == bool(made), outcome.stdout
        assert len(list(source.parent.glob("*.so"))) == made


def test_the_sdist_holds_what_a_build_needs(built: Built) -> None:
    """The start-up files survive the way through the sdist, and nothing of a workplace is in it."""
    with tarfile.open(built.sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"disttrace/startup.pth", "disttrace/startup.start", "LICENSE", "Makefile"} <= names
    assert not [name for name in names if name.startswith((".venv", "build/", "disttrace-out"))]


def test_the_core_needs_one_small_library(built: Built) -> None:
    """Everything but orjson is behind an extra."""
    archive = zipfile.ZipFile(built.wheel)
    metadata = archive.read(f"disttrace-{disttrace.__version__}.dist-info/METADATA").decode()
    needs = [
        line.removeprefix("Requires-Dist: ")
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    assert [need for need in needs if "extra ==" not in need] == ["orjson>=3.8"]


def test_the_wheel_installs_starts_once_and_leaves(built: Built, environment: Environment) -> None:
    """Install the wheel, use it, uninstall it: the files are the same as before."""
    before = environment.files()
    environment.pip("install", "--no-deps", str(built.wheel))
    prove_that_it_works(environment)
    environment.pip("uninstall", "--yes", "disttrace")
    assert environment.files() == before


def test_an_editable_starts_once(built: Built, environment: Environment, tmp_path: Path) -> None:
    """The same for an editable install, made from the sdist so that this checkout stays clean."""
    with tarfile.open(built.sdist) as archive:
        _extract(archive, tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    before = environment.files()
    environment.pip("install", "--no-deps", "--no-build-isolation", "--editable", str(source))
    prove_that_it_works(environment)
    where = environment.run("-c", "import disttrace; print(disttrace.__file__)").check()
    assert where.stdout == f"{source}{os.sep}disttrace{os.sep}__init__.py\n"
    environment.pip("uninstall", "--yes", "disttrace")
    assert environment.files() == before


# -- the steps of `Dockerfile`, without an engine: its two installations, and its command offline


TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def step(pattern: str) -> str:
    (found,) = re.findall(pattern, TEXT.replace("\\\n", " "), re.MULTILINE)
    return str(found)


@pytest.mark.long
def test_the_steps_of_the_image(tmp_path: Path) -> None:
    """It needs no network, compiler or source; mounts and users are an engine's to try."""
    environ = clean_environ()
    del environ["PYTHONPATH"]
    run_program([sys.executable, "-m", "venv", tmp_path / "env"], environ, 120).check()
    programs, wheels = tmp_path / "env" / "bin", str(tmp_path / "wheels")
    environ["PATH"] = f"{programs}{os.pathsep}{environ['PATH']}"
    build = step(r"^RUN (CC=.*)$").replace("/wheels", shlex.quote(wheels))
    run_program(["sh", "-c", build], environ, 170, cwd=ROOT).check()
    assert list(Path(wheels).glob("disttrace-*-py3-none-any.whl"))
    install = step(r"^RUN --mount=\S+ +(pip install .*)$").replace("/wheels", shlex.quote(wheels))
    run_program(["sh", "-c", install], environ, 170, cwd=tmp_path).check()

    for journal, _ in hang_without(tmp_path / "journals", 2, 1):
        journal.stand(3 * S, "/src/loader.py", 9, "load")
    variables = dict(word.split("=", 1) for word in step(r"^ENV (.*)$").split())
    assert variables.pop("DISTTRACE_DIR") == "/journals"
    words = json.loads(step(r"^ENTRYPOINT (.*)$")) + json.loads(step(r"^CMD (.*)$"))
    offline = ["unshare", "--user", "--map-current-user", "--net", programs / words[0], *words[1:]]
    environ.update(variables, DISTTRACE_DIR=str(tmp_path / "journals"))
    done = run_program(offline, environ, 60, cwd=tmp_path)
    assert done.code == 1, str(done)
    assert "Rank 1 never joined all_reduce #3" in done.stdout
