"""Journals in object stores: their definitions are fetched, and the end of their newest segment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disttrace.cli import main
from disttrace_viewer.diagnosis import job
from disttrace_viewer.states import folder
from support.splits import findings
from support.states import hang

fsspec = pytest.importorskip("fsspec")
URL = "memory://bucket/job"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """An object store with the journals of a hang, which are also below ``tmp_path``."""
    hang(tmp_path, count=400)
    system = fsspec.filesystem("memory")
    for path in tmp_path.iterdir():
        system.pipe_file(f"/bucket/job/{path.name}", path.read_bytes())
    yield system
    system.rm("/bucket", recursive=True)


def test_the_findings_are_those_of_a_folder(store: Any, tmp_path: Path) -> None:
    """Read in full."""
    found = folder.of_journals([URL])
    assert findings(found) == findings(folder.of_journals([str(tmp_path)]))


def test_only_ranges_are_fetched(
    store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of segments the head and the end; those of the suspects as a whole."""
    monkeypatch.setattr(job, "WINDOW", 4_000)
    monkeypatch.setattr(job, "MOST_SUSPECTS", 0)
    fetched: dict[str, int] = {}
    cat_file = type(store).cat_file

    def counted(self: Any, path: str, start: int | None = None, end: int | None = None) -> Any:
        found = cat_file(self, path, start=start, end=end)
        fetched[path] = fetched.get(path, 0) + len(found)
        return found

    monkeypatch.setattr(type(store), "cat_file", counted)
    monkeypatch.setattr(sys.modules["disttrace_viewer.states.reduce"], "HEAD", 2_000)
    assert main(["diagnose", URL]) == 1
    assert capsys.readouterr().out.startswith("1. ERROR missing_participant, likely: Rank 3")
    segments = [path for path in fetched if path.endswith("ops.jsonl")]
    assert len(segments) == 4
    for path in segments:
        assert fetched[path] <= 1_024 + 2_000 + 4_000 < store.info(path)["size"]


def test_states_in_a_store(store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Are diagnosed where they are."""
    assert main(["reduce", URL, "-o", str(tmp_path / "states")]) == 0
    for path in (tmp_path / "states").iterdir():
        store.pipe_file(f"/bucket/states/{path.name}", path.read_bytes())
    assert main(["diagnose", "memory://bucket/states"]) == 1
    assert "Rank 3 never joined" in capsys.readouterr().out


@pytest.mark.parametrize("url", ["nosuch://bucket/job", "memory://bucket/nothing"])
def test_what_is_unread_is_told(store: Any, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And exit code 2."""
    assert main(["diagnose", url]) == 2
    said = capsys.readouterr().err
    assert url.partition("/bucket")[0] in said
    assert len(said.splitlines()) == 1


def test_an_object_that_fails_is_named(
    store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever exceptions a store has: the others are read."""
    cat_file = type(store).cat_file

    def fails(self: Any, path: str, start: int | None = None, end: int | None = None) -> Any:
        if path.endswith("defs.jsonl") and path == sorted(store.find("/bucket/job"))[1]:
            raise RuntimeError("slow down\nplease")
        return cat_file(self, path, start=start, end=end)

    monkeypatch.setattr(type(store), "cat_file", fails)
    main(["diagnose", URL])
    assert "cannot be read (slow down)" in capsys.readouterr().out
