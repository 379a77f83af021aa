"""The page about OTLP names every attribute and metric that is sent."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("opentelemetry.sdk")

from pathlib import Path

from support.processes import ROOT

PAGE = (ROOT / "docs" / "otlp.md").read_text(encoding="utf-8")
SOURCES = sorted((ROOT / "viewer" / "disttrace_viewer" / "otlp").rglob("*.py"))
NAME = re.compile(r'"(disttrace\.[a-z_.]+[a-z])"')
# Roots of names that are put together, and the word on links.
PARTS = frozenset({"disttrace.link"})


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_every_name_is_documented(source: Path) -> None:
    """A name in the code is in backticks on the page."""
    names = set(NAME.findall(source.read_text(encoding="utf-8"))) - PARTS
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []


def test_no_name_is_the_namespace_of_another() -> None:
    """OpenTelemetry's rule; a backend that nests attributes loses one of the two (Phoenix does)."""
    names = set(NAME.findall(PAGE.replace("`", '"')))
    assert len(names) > 40
    assert [name for name in sorted(names) if any(o.startswith(f"{name}.") for o in names)] == []
