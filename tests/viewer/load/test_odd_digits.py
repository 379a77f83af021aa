"""Texts that look like numbers: signs that `int` refuses, other scripts, thousands of digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace import cli
from disttrace.identity import Identity
from disttrace_viewer.companion.reading import unknown_ranks
from disttrace_viewer.merge.reader import load
from disttrace_viewer.trace.plain_text import whole
from support.journals import MS, Journal

OUT = ("json", "html", "jsonl")
ODD = ["\u00b2", "\u0664\u0662", "9" * 25, "9" * 900, "", "-1", "1e3", "\u2468"]


def test_an_odd_text_is_no_number() -> None:
    assert [whole(text) for text in ODD] == [None] * len(ODD)
    assert [whole(text) for text in ("0", "007", "9" * 18)] == [0, 7, 10**18 - 1]


def odd_job(folder: Path, digits: str) -> None:
    """Two ranks; every address, variable, key and error holds the digits where a number stands."""
    for rank in range(2):
        env = {"RANK": str(rank), "WORLD_SIZE": digits, "MASTER_PORT": digits, "MASTER_ADDR": "h"}
        journal = Journal(folder, pid=10 + rank, rank=rank, world_size=2, keys={"env": env})
        address = f"127.0.0.1:{digits}"
        base = journal.tcp_store(29500, server=rank == 0, address=address)
        store = journal.prefix_store(base, "default_pg", "0/")
        group = journal.group(store, desc=f"mesh:{digits}")
        journal.run(journal.collective(group), 20 * MS, MS, q=1)
        stack = journal.stack(("train.py", 30, "main"))
        get = journal.call("store.get", kind="store", store=store, stack=stack)
        names = [f"cpu//{digits}", f"cuda//{digits}:{digits}", f"step/{digits}/rank/1"]
        for place, key in enumerate((*names, *(f"step/{n}/rank/1" for n in range(3)))):
            journal.run(get, (30 + 2 * place) * MS, MS, k=f"default_pg/0//{key}")
        journal.begin(get, 60 * MS, k=f"default_pg/0//{names[0]}")
        text = f"Global rank {digits} is not part of group, peer [127.0.0.1]:{digits} is gone"
        journal.define("failure", t=70 * MS, type="ValueError", text=text, stack=stack)
        journal.define("exit", t=80 * MS, code=1)


@pytest.mark.parametrize("digits", ODD)
def test_odd_digits_break_no_command(
    digits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything is shown of such journals, by every command."""
    odd_job(tmp_path / "in", digits)
    where = str(tmp_path / "in")
    for words in (
        ["view", where], ["diagnose", where, "--json"], ["stats", where],
        *(["export", where, "-o", str(tmp_path / f"out.{form}")] for form in OUT),
        ["reduce", where, "-o", str(tmp_path / "states")], ["diagnose", str(tmp_path / "states")],
    ):  # fmt: skip
        code = cli.main(words)
        told = capsys.readouterr()
        assert code in (0, 1, 2), (words, told.err)
        assert "has no option" not in told.err
    trace = load([where])
    assert len(unknown_ranks(trace)) == 0


@pytest.mark.parametrize("digits", [*ODD, "9" * 5000])
def test_odd_digits_of_an_option_are_a_sentence(
    digits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd_job(tmp_path, "7")
    for option in ("--width", "--last", "--rank"):
        assert cli.main(["view", str(tmp_path), f"{option}={digits}"]) == 2
        assert capsys.readouterr().err.startswith("disttrace: ")


def test_odd_digits_of_a_launcher_are_no_rank() -> None:
    """What goes into the journal fits its format."""
    for digits in (*ODD[:4], "9" * 5000):
        known = Identity({"RANK": digits, "WORLD_SIZE": "2"}, job="job")
        assert known.rank in (None, 42)


LONG = "9" * 5000
WATCHDOG = "[rank0]:[E1129 10:00:00.123 ProcessGroupNCCL.cpp:607] [PG ID 0 PG GUID 0(d) Rank 0] "
LOGS = (
    f"[rank{LONG}]: [Rank {LONG}] WorkNCCL(SeqNum={LONG}, OpType=X) ran for {LONG} m",
    f"{WATCHDOG}WorkNCCL(SeqNum={LONG}, OpType=X, NumelIn=1) ran for {LONG} milliseconds",
    f"{WATCHDOG}at work: {LONG}, last enqueued NCCL work: {LONG}, last completed NCCL work: 1.",
    f"[default{LONG}]: watchdog\nRoot Cause (first observed failure):\n  rank      : {LONG}\n",
    f'[rank0]: Traceback (most recent call last):\n[rank0]:   File "a.py", line {LONG}, in f\n',
)
FAILED = f"Root Cause (first observed failure):\n  rank      : 1\n  exitcode  : {LONG}\n".encode()
NO_EVIDENCE = [
    ("a.log", b""), ("a.log", b"\n \n\t\n"), ("a.log", bytes(range(256)) * 99),
    ("a.log", "step 1\nstep 2\n".encode("utf-16")), ("a.log", b"10%\r" * 9999),
    ("a.log", b'{"disttrace":' + b"[" * 5000 + b"\n"),
    ("a.log", b'{"disttrace": 1, "kind": [1], "summary": "x", "culprit_ranks": 5}\n'),
    ("attempt_0/0/error.json", b'{"message": 5}'),
    ("attempt_0/0/error.json", b'{"message": {"message": []}}'),
    ("attempt_0/0/error.json", b'{"message": ' + b"[" * 5000),
    ("a.json", b'[{"frames": "thread_id", "a": ' + b"[" * 100_000),
    ("a.json", b'[{"pid": 1, "thread_id": 1, "thread_name": "MainThread", "frames": []}]'),
    ("a.json", b'[{"thread_id":1, "pid":1e308, "frames":[{"filename":1,"line":1e308,"name":2}]}]'),
    ("a.json", b'[{"thread_id":1, "pid":1, "frames":[{"filename":"a","line":1,"name":"f"}]}, 7]'),
    ("a.json", b'[7, {"thread_id": 1, "pid": 1, "frames": 5}]'),
    ("a.json", b'[{"thread_id": 1, "pid": {}, "frames": [null]}, {"pid": []}]'),
    *(("a.log", f"{text}\n".encode()) for text in LOGS),
    ("trace_rank_0", b""), ("trace_rank_0", b"\x80\x02}q\x00(X\x07\x00\x00\x00entries"),
    ("trace_rank_0", b'{"entries": 5, "version": [], "pg_config": "x"}'),
    ("trace_rank_0", b'{"version": "2.10", "entries": [1, null, []]}'),
    ("trace_rank_0", b'{"version": "2.10", "entries": ' + b"[" * 100_000),
    ("ras.json", b'{"nccl_version": 1, "communicators": 5, "timestamp": []}'),
    ("a.json", b'{"traceEvents": 5, "distributedInfo": []}'),
    ("a.json", b'{"schemaVersion": 1, "distributedInfo": {"rank": "x"}, "traceEvents": [1, {}]}'),
    ("a.log", b"x" * 20_000_000),
    ("a.log", f"  time      : {LONG}\n  rank      : {LONG}\n".encode()),
    ("a.log", f"WorkNCCL(SeqNum={LONG}, Timeout(ms)={LONG}) ran for {LONG} ms\n".encode()),
    ("attempt_0/0/error.json",
     f'{{"message": {{"message": "E: x", "extraInfo": {{"timestamp": "{LONG}"}}}}}}'.encode()),
    *(("a.json", f'[{{"pid": {pid}, "thread_id": 1, "thread_name": "MainThread", "frames": '
       f'[{{"filename": {file}, "name": "f", "line": {line}}}]}}]'.encode())
      for pid, file, line in ((1, '"a.py"', LONG), (LONG, '"a.py"', 3), ('"x"', 3, '"y"'))),
    ("a.txt", f'Process {LONG}: python\nThread {LONG} (idle): "MainThread"\n    f (a.py:{LONG})\n'
     .encode()),
    ("trace_rank_0", b'{"version": "2.10", "pg_config": {}, "entries": [{"profiling_name": '
     b'"nccl:all_reduce", "collective_seq_id": %b, "time_created_ns": %b}]}'
     % (LONG.encode(), LONG.encode())),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "data", "code"), [*((*one, 2) for one in NO_EVIDENCE), ("a.log", FAILED, 1)]
)
def test_odd_numbers_of_other_tools_are_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, data: bytes, code: int
) -> None:
    """Of thousands of digits, or of another type: what holds them is left out, and nothing ends."""
    (file := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    assert cli.main(["diagnose", str(tmp_path)]) == code
    told = capsys.readouterr()
    assert (told.out + told.err).strip()
    assert len(told.err) < 2000
