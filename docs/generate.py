"""Writes docs/init-flow.md from real runs of the examples; `make docs` calls it.

Ports, process ids, host names, run ids, folders and times differ from run to run, so they are
taken out or numbered in the order in which they appear: the page changes with initialization only.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from disttrace_viewer.merge.reader import load
from disttrace_viewer.views.terminal.init_phase import Initialization
from disttrace_viewer.views.terminal.paint.console import paper
from disttrace_viewer.views.terminal.paint.init_phase import paint_full
from disttrace_viewer.views.terminal.report import report_of
from disttrace_viewer.views.terminal.rows import LocalRow, Row

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "init-flow.md"
WIDTH = 96
RUN_LIMIT_S = 120


@dataclass(frozen=True)
class Flow:
    """A section: how the program is started, and what a reader should notice."""

    title: str
    command: tuple[str, ...]
    text: str


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
FLOWS = (
    Flow(
        "torchrun, and `env://` under it",
        (*TORCHRUN, "examples/init_env.py"),
        "The agent opens two stores: one for its own rendezvous, where it leaves `MASTER_ADDR` and"
        " `MASTER_PORT` and hands out ranks, and one for the workers, whose server it stays. The"
        " workers read both variables from their environment and are clients only.",
    ),
    Flow(
        "`env://` without an agent",
        ("examples/faults/launch.py", "--world", "2", "examples/init_env.py"),
        "The same variables set by hand: now rank 0 itself listens, the others connect to it.",
    ),
    Flow(
        "`tcp://`",
        ("examples/init_tcp.py",),
        "The address stands in the program. Rank 0 listens there, and nothing is read from the"
        " environment.",
    ),
    Flow(
        "`file://`",
        ("examples/init_file.py",),
        "Nobody listens: all write to and poll one file, which every host must see.",
    ),
    Flow(
        "`new_group`",
        (*TORCHRUN[:-1], "3", "examples/allreduce_subgroup.py"),
        "A further group meets in the same store under a prefix of its own. All ranks call"
        " `new_group`; only members construct a backend.",
    ),
)

HEAD = """# Initialization

How processes become a group: who listens and who connects, on which address, under which prefixes,
and by which keys, until the group is ready. Every drawing below is `disttrace view --phase init` of
a real run of an example (torch {torch}, gloo, CPU), written by `make docs`. Ports and process ids
are numbered anew, times are left out; steps stand in the order of each process's program.

A row is one step; `●` marks who takes it, and an indented step happens inside the one above. A `*`
stands for what differs between the ranks of a row.
"""


def main() -> None:
    """Run every flow and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=PAGE)
    output = parser.parse_args().output
    sections = [section(flow) for flow in FLOWS]
    torch = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__.split('+')[0])"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "DISTTRACE": "0"},
    ).stdout.strip()
    output.write_text("\n".join([HEAD.format(torch=torch), *sections]))


def section(flow: Flow) -> str:
    """One flow: run it traced, and draw its initialization."""
    with tempfile.TemporaryDirectory() as folder:
        raw, clean = Path(folder, "raw"), Path(folder, "clean")
        environ = {**os.environ, "DISTTRACE": "1", "DISTTRACE_DIR": str(raw)}
        done = subprocess.run(
            [sys.executable, *flow.command],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_S,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(flow.command)} failed:\n{done.stderr}")
        normalise(raw, clean)
        drawing = draw(clean)
    command = " ".join(["python", *flow.command]).replace(
        "python -m torch.distributed.run", "torchrun"
    )
    text = textwrap.fill(flow.text, 100, break_on_hyphens=False)
    return f"## {flow.title}\n\n{text}\n\n    DISTTRACE=1 {command}\n\n```\n{drawing}\n```\n"


def draw(folder: Path) -> str:
    """Initialization without times, in program order."""
    report = report_of(load([str(folder)]), init=True)
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    paint_full(
        ordered(report.initialization), report.names, paper(file, width=WIDTH), timeless=True
    )
    file.seek(0)
    return file.read().strip("\n")


def ordered(way: Initialization) -> Initialization:
    """Steps in the order of each process's program: agents first, then whoever listens."""
    place: dict[int, int] = {}
    keyed: list[tuple[tuple[bool, int, bool, list[int], str], Row]] = []
    started = False
    for row in way.steps:
        lanes = [lane for lane, _ in row.marks]
        depth = 1 + max((place.get(lane, 0) for lane in lanes), default=0)
        place.update(dict.fromkeys(lanes, depth))
        agent = bool(lanes) and way.lanes[lanes[0]].label.endswith("ag")
        if agent and started:
            continue  # it asks the store every second: how often is a matter of time
        assert isinstance(row, LocalRow)
        started = started or row.op == "start_workers"
        keyed.append(((not agent, depth, "listens" not in row.what, lanes, row.what), row))
    keyed.sort(key=lambda pair: pair[0])
    return dataclasses.replace(
        way,
        steps=tuple(row for _, row in keyed),
        keys=tuple(sorted(way.keys, key=lambda use: (use.place, use.key))),
    )


# -- what differs from run to run ------------------------------------------------------------


@dataclass
class Stable:
    """Replacements, numbered in the order in which things appear."""

    ports: dict[int, int] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    host: str = ""

    def port(self, port: int) -> int:
        """29501, 29502, ...; 0 stays."""
        return self.ports.setdefault(port, 29501 + len(self.ports)) if port else 0

    def pid(self, pid: int) -> int:
        """101, 102, ..."""
        return self.pids.setdefault(pid, 101 + len(self.pids))

    def text(self, text: str) -> str:
        """Ports, run ids, host names and temporary folders inside a string."""
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "RUN-ID", text)
        text = re.sub(
            r"(?<=[\w\]]):(\d{4,5})\b", lambda m: f":{self.port(int(m[1]))}", text, flags=re.ASCII
        )
        text = re.sub(re.escape(tempfile.gettempdir()) + r"/tmp\w+", "/shared", text)
        return re.sub(rf"\b{re.escape(self.host)}\b", "host", text) if self.host else text

    def value(self, name: str, value: object) -> object:
        """Any value of a record, by its key."""
        if isinstance(value, Mapping):
            return {key: self.value(key, inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(name, inner) for inner in value]
        if isinstance(value, str):
            return str(self.port(int(value))) if name == "MASTER_PORT" else self.text(value)
        if isinstance(value, int) and not isinstance(value, bool):
            rules: Mapping[str, Callable[[int], int]] = {
                "port": self.port,
                "pid": self.pid,
                "ppid": self.pid,
                "native": self.pid,
            }
            return rules[name](value) if name in rules else value
        return value


def normalise(raw: Path, clean: Path) -> None:
    """Copy journals with everything replaced that differs from run to run."""
    clean.mkdir()
    heads = {path: _head(path) for path in raw.glob("*.defs.jsonl")}
    stable = Stable()
    for path, head in sorted(heads.items(), key=lambda pair: _rank(pair[1])):
        stable.host = str(head.get("host") or "")
        stem = path.name.removesuffix(".defs.jsonl")
        for file in sorted(raw.glob(f"{stem}.*"), key=lambda p: (".ops." in p.name, p.name)):
            lines = file.read_bytes().rstrip(b"\0").decode().splitlines()
            records = [stable.value("", json.loads(line)) for line in lines if line.strip("\0")]
            text = "".join(json.dumps(record) + "\n" for record in records)
            (clean / file.name).write_text(text)


def _head(path: Path) -> Mapping[str, object]:
    record: Mapping[str, object] = json.loads(path.read_text().split("\n", 1)[0])
    return record


def _rank(head: Mapping[str, object]) -> tuple[bool, str, int]:
    """Agents first, then ranks, then by start."""
    env = head.get("env")
    rank = env.get("RANK", "") if isinstance(env, Mapping) else ""
    return (head.get("role") != "agent", str(rank), int(str(head.get("start_ns") or 0)))


if __name__ == "__main__":
    main()
