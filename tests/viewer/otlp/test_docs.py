"""The page about OTLP names every attribute and metric that is sent."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("opentelemetry.sdk")

from pathlib import Path
from typing import Any

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


def test_what_is_called_stable_is_stable() -> None:
    """By the packages of the conventions themselves."""
    import importlib
    import pkgutil

    import opentelemetry.semconv._incubating.attributes as incubating
    import opentelemetry.semconv.attributes as stable

    def keys(package: Any) -> set[str]:
        names = (module.name for module in pkgutil.iter_modules(package.__path__))
        modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
        return {v for m in modules for v in vars(m).values() if isinstance(v, str)}

    (said,) = re.findall(r"stable they are(.*?)are stable there;(.*?)are in", PAGE, re.DOTALL)
    known, later = (re.findall(r"`([a-z.]+)(?:\.\*)?`", part) for part in said)
    for name in re.findall(r"`((?:code|error|server|host|process|thread)\.[a-z_.]+)`", PAGE):
        if name in keys(incubating) | keys(stable):
            root = name.split(".")[0]
            assert (root in later) == (name not in keys(stable)), name
    assert {"code", "server"} <= set(known)
