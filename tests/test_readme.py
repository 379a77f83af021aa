"""The README and the page of settings tell the truth about settings, commands and pages."""

from __future__ import annotations

import re

import pytest

from disttrace.cli import COMMANDS
from disttrace.config import SETTINGS, to_text
from support.processes import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_of_settings_is_the_tables() -> None:
    """Each row: variable, default and the sentence of the table in config.py."""
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(DISTTRACE_\w+)` \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    defaults = {row.variable: to_text(row.default) or "none" for row in SETTINGS}
    assert rows == [
        (row.variable, default if default == "none" else f"`{default}`", row.help)
        for row, default in zip(SETTINGS, defaults.values(), strict=True)
    ]


def test_the_quick_start_is_two_commands() -> None:
    """A newcomer types these and nothing else."""
    (block,) = re.findall(r"## Quick start.*?```sh\n(.*?)```", README, re.DOTALL)
    assert [line.split("#")[0].strip() for line in block.splitlines()] == ["make demo", "make test"]


def test_a_newcomer_meets_the_install_line_first_and_few_words() -> None:
    """Below 900 words, and the first block of commands begins with the installation."""
    assert len(README.split()) < 900
    assert README.partition("```sh\n")[2].startswith("pip install")


def test_every_command_exists() -> None:
    """No command is named that the command line does not have."""
    named = set(re.findall(r"^disttrace (\w+)|`disttrace (\w+)", README, re.MULTILINE))
    assert {a or b for a, b in named} <= {command.name for command in COMMANDS}


@pytest.mark.parametrize("page", sorted(set(re.findall(r"`((?:docs|examples)/[\w/.-]*)`", README))))
def test_every_page_exists(page: str) -> None:
    assert (ROOT / page).exists()


@pytest.mark.parametrize("page", ["README.md", "docs/faq.md"])
def test_the_cost_that_is_named_was_measured(page: str) -> None:
    """The figures of README and FAQ are those of the page of figures, rounded."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    figures = (ROOT / "docs" / "dev" / "benchmarks.md").read_text(encoding="utf-8")
    fake = figures.partition("<!-- fake: begin -->")[2].partition("<!-- fake: end -->")[0]
    added = r"^\| all_reduce +\| [^|]+\| ([\d.]+) [^|]+\| ([\d.]+) "
    (one, plain), (other, _) = re.findall(added, fake, re.MULTILINE)
    least, most = sorted((float(one), float(other)))
    steps = figures.partition("<!-- steps: begin -->")[2].partition("<!-- steps: end -->")[0]
    share = r"([+-][\d.]+)% \(([+-][\d.]+)% to ([+-][\d.]+)%\)[^|]+"
    row = rf"^\| DDP, medium +\| [^|]+\| +([\d.]+) +\| +{share}\| +{share}\|"
    medium = re.search(row, steps, re.MULTILINE)
    assert medium
    bare, again, low, high, ours, least_ours, most_ours = medium.groups()
    assert f"{least:.2f} to {most:.2f} µs" in text
    assert re.search(rf"\b{float(plain):.0f} µs by the plain core", text)
    step = f"DDP step of {float(bare):.0f} ms of CPU time"
    assert f"{step} in two processes took {ours.lstrip('+')} % more" in text
    assert f"(quartiles {least_ours} to {most_ours} %)" in text
    assert f"differed by {again} % ({low} to {high} %)" in text


def test_links_hold_on_an_index_page() -> None:
    """It shows this file without the repository around it."""
    links = re.findall(r"\]\(([^)#]\S*)\)", README)
    assert len(links) >= 4
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [link.partition("/main/")[2].partition("#")[0] for link in links if "/main/" in link]
    assert [path for path in ours if not (ROOT / path).exists()] == []


def test_users_pages_are_short() -> None:
    """Below 25,000 words in all: what maintainers need stands in docs/dev."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    assert len(pages) > 20
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) < 25_000
