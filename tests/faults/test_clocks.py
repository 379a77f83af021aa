"""Journals rewritten as from hosts with other clocks keep all that no clock decides."""

from __future__ import annotations

import json
from pathlib import Path

from faults.clocks import shift_clocks

PROCESS = {
    "def": "process", "process": "ab", "host": "h", "boot_id": "b", "env": {"RANK": "1"},
    "t0": 1_000_000_000, "unix_ns": 5_000_000_000, "start_ns": 4_000_000_000,
}  # fmt: skip
BEGIN = {"b": 1, "t": 2_000_000, "s": 3, "q": 1}
END = {"e": 1, "d": 1_000_000, "u": 500_000}


def write(folder: Path, tail: bytes) -> None:
    """A journal of one process and one operation, and what a killed process leaves behind it."""
    folder.mkdir()
    (folder / "j.defs.jsonl").write_text(json.dumps(PROCESS) + "\n")
    operations = f"{json.dumps(BEGIN)}\n{json.dumps(END)}\n".encode()
    (folder / "j.000001.ops.jsonl").write_bytes(operations + tail)


def read(folder: Path) -> list[dict[str, object]]:
    """All records of the journal."""
    text = (folder / "j.defs.jsonl").read_text() + (folder / "j.000001.ops.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_offset_and_drift_move_every_time(tmp_path: Path) -> None:
    """A second late and 1000 ppm fast: anchors move, durations grow, host and boot are others."""
    write(tmp_path / "in", b'{"b":2,"t":3' + b"\0" * 100)
    shift_clocks(tmp_path / "in", tmp_path / "out", {1: (1.0, 1000.0)})
    assert read(tmp_path / "out") == [
        {
            **PROCESS, "t0": 1_001_000_000, "unix_ns": 6_000_000_000, "start_ns": 4_999_000_000,
            "host": "host-1000000000", "boot_id": "boot-1000000000-1.001",
        },
        {**BEGIN, "t": 2_002_000},
        {**END, "d": 1_001_000, "u": 500_500},
    ]  # fmt: skip


def test_other_ranks_stay_on_one_host(tmp_path: Path) -> None:
    """Ranks without a clock of their own share the host of offset nought."""
    write(tmp_path / "in", b"")
    shift_clocks(tmp_path / "in", tmp_path / "out", {2: (1.0, 0.0)})
    first = read(tmp_path / "out")[0]
    assert (first["unix_ns"], first["host"]) == (5_000_000_000, "host-0")


def test_hosts_do_not_meet_at_a_loopback_address(tmp_path: Path) -> None:
    """Otherwise the reader would rightly take them for two jobs with a store each."""
    write(tmp_path / "in", b'{"def":"store","n":1,"name":"tcp://127.0.0.1:5"}\n')
    shift_clocks(tmp_path / "in", tmp_path / "out", {1: (0.0, 0.0)})
    assert read(tmp_path / "out")[-1] == {"def": "store", "n": 1, "name": "tcp://10.0.0.1:5"}
