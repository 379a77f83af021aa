"""`disttrace info`: versions, settings and where each came from, what can be captured here."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import disttrace
from disttrace import project
from disttrace._version import __version__
from disttrace.config import SETTINGS, Config, resolve, to_text
from disttrace.errors import plain
from disttrace.project import SWITCH, is_on
from disttrace.startup import refusal

# Package, and the extra of ours that brings it ("" : always there).
PACKAGES: tuple[tuple[str, str], ...] = (
    ("orjson", ""),
    ("torch", "torch"),
    ("polars", "viewer"),
    ("rich", "viewer"),
    ("opentelemetry-sdk", "otlp"),
    ("opentelemetry-exporter-otlp", "otlp"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The one option."""
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def execute(arguments: argparse.Namespace) -> int:
    """Write the report to stdout; always 0."""
    report = collect()
    text = json.dumps(report, indent=2) if arguments.json else "\n".join(_lines(report))
    sys.stdout.write(text + "\n")
    return 0


def collect() -> dict[str, Any]:
    """The report as plain data; the text is made from nothing else."""
    from disttrace.journal import compiled
    from disttrace.journal.segment import filesystem, mechanism
    from disttrace.lifecycle import detached
    from disttrace.recording.core import choose

    config, complaints = resolve({}, os.environ, project.read())
    try:
        enabled = is_on(os.environ.get(SWITCH))
    except ValueError as error:
        enabled = False
        complaints.insert(0, str(error))
    kind, reason = mechanism(config.dir)
    name, why = choose(config.core)
    return {
        "disttrace": {"version": __version__, "folder": os.path.dirname(disttrace.__file__)},
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "system": {"name": platform.system(), "release": platform.release()},
        "packages": [
            {"name": name, "version": _installed(name), "extra": extra or None}
            for name, extra in PACKAGES
        ],
        "enabled": enabled,
        "core": {"name": name, "reason": why},
        "settings": _settings(config),
        "complaints": complaints,
        "journal": {
            "dir": config.dir,
            "filesystem": filesystem(config.dir),
            "mechanism": kind,
            "reason": reason,
            "stacks_without_gil": compiled.missing("lifecycle._answers") is None,
        },
        "companion": {"problem": detached.refusal()},
        "capture": _capture(queried=config.device != "off"),
    }


def _settings(config: Config) -> list[dict[str, Any]]:
    return [
        {
            "variable": row.variable,
            "value": to_text(getattr(config, row.keyword)) or None,
            "source": config.sources[row.keyword],
            "help": row.help,
        }
        for row in SETTINGS
    ]


def _capture(*, queried: bool) -> dict[str, Any]:
    """What tracing sees with the torch of this environment; `problem` where that is unknown."""
    nothing: dict[str, Any] = {"parts": [], "not_captured": [], "devices": []}
    refused = refusal()
    if refused is not None:
        return {**nothing, "problem": refused}
    if _installed("torch") is None:
        return {**nothing, "problem": "torch is not installed here; nothing can be traced."}
    try:
        from disttrace import capture

        if not capture.has_distributed():
            why = "this torch was built without torch.distributed: there is nothing to trace"
            return {**nothing, "not_captured": [why], "problem": None}
        from disttrace.capture import parts
        from disttrace.capture.devices import flight_recorder

        seen = list(flight_recorder.statements())
    except Exception as error:  # a broken torch is what this command is for
        problem = f"torch cannot be examined: {type(error).__name__}: {error}"
        return {**nothing, "problem": problem}
    return {
        "parts": [name for name, _ in parts.parts()],
        "not_captured": parts.not_captured(),
        "devices": _devices(seen, queried=queried),
        "problem": None,
    }


def _devices(seen: list[tuple[str, str, str]], *, queried: bool) -> list[dict[str, Any]]:
    off = {"completion": "unknown, for DISTTRACE_DEVICE is off", "set": "set DISTTRACE_DEVICE=auto"}
    return [
        {"backend": backend, **({"completion": how, "set": advice or None} if queried else off)}
        for backend, how, advice in seen
    ]


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield "versions"
    yield from _table(
        [
            ("disttrace", report["disttrace"]["version"], report["disttrace"]["folder"]),
            ("python", report["python"]["version"], report["python"]["executable"]),
        ]
        + [
            (row["name"], row["version"] or "missing", _how_to_get(row))
            for row in report["packages"]
        ]
    )
    yield ""
    yield f"settings (tracing is {'on' if report['enabled'] else 'off'}: {SWITCH})"
    yield from _table(
        [
            (row["variable"], plain(row["value"] or "none"), row["source"])
            for row in report["settings"]
        ]
    )
    yield from (f"  ! {plain(sentence)}" for sentence in report["complaints"])
    yield ""
    yield "journals"
    journal, core = report["journal"], report["core"]
    yield f"  {plain(journal['dir'])}"
    native = "native (c)" if core["name"] == "c" else "plain (python)"
    yield f"  the {native} core writes them: {core['reason']}"
    yield f"  records are {journal['mechanism']}: {plain(journal['reason'])}"
    problem = report["companion"]["problem"]
    lost = f"cannot be started, so no stall is reported and nothing exported by otlp: {problem}"
    yield f"  the companion process {lost if problem else 'is available'}"
    if not journal["stacks_without_gil"]:
        yield "  no stacks of threads that hold the GIL, or at SIGTERM: that was not compiled"
    yield ""
    yield "capture"
    capture = report["capture"]
    if capture["problem"]:
        yield f"  ! {capture['problem']}"
    yield from (f"  {part}" for part in capture["parts"])
    for one in capture["devices"]:
        advice = f" ({one['set']})" if one["set"] else ""
        yield f"  completion of {one['backend']}: {one['completion']}{advice}"
    yield from (f"  not captured: {sentence}" for sentence in capture["not_captured"])


def _how_to_get(row: dict[str, Any]) -> str:
    if row["version"] is not None:
        return ""
    return (
        f"pip install 'disttrace[{row['extra']}]'" if row["extra"] else f"pip install {row['name']}"
    )


def _table(rows: list[tuple[str, str, str]]) -> Iterator[str]:
    first = max((len(row[0]) for row in rows), default=0)
    second = max((len(row[1]) for row in rows if row[2]), default=0)
    for name, value, rest in rows:
        yield f"  {name:<{first}}  {value:<{second}}  {rest}".rstrip()


def _installed(package: str) -> str | None:
    """The version that is installed, None where none is."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
