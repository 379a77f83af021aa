"""What people paste: logs, stacks and torchrun's folder, with the right answer of each; what logs
of jobs on NCCL tell, with whatever stands before their lines.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from disttrace_viewer.api.attached import from_files
from disttrace_viewer.api.report import Report
from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.findings.rules.reported import _MAKERS
from disttrace_viewer.load.foreign import logs
from disttrace_viewer.load.foreign.evidence import troubles
from disttrace_viewer.load.foreign.forms import _REPORTED
from disttrace_viewer.load.foreign.lines import LogLine
from disttrace_viewer.load.problems import ViewerError
from support.log_corpus import CORPUS, Excerpt

HERE = Path(__file__).parent / "evidence"
ALL = "All members have joined"


@dataclass(frozen=True)
class Piece:
    """Evidence: its first finding's kind, whom all blame, words; None: nothing is certain."""

    name: str
    kind: str | None
    culprits: tuple[int, ...] = ()
    says: tuple[str, ...] = ()
    says_not: tuple[str, ...] = ()


CASES = (
    Piece("stuck_watchdog", "no_progress", (),
          ("rank 0 (EXPERT_TENSOR_AND_MODEL", "rank 4 (EXPERT_MODEL", "480 s", "GIL")),
    Piece("summary_only", "process_failed", (1,),
          ("Rank 1 failed first, with exit code 1", "06:21:10", "ended after it")),
    Piece("detail_mismatch", "op_mismatch", (), ("#485", "train.py:91", "train.py:44"), ("first",)),
    Piece("monitored", "missing_participant", (3,), ("monitored_barrier",)),
    Piece("sync_is_a_wait", "no_progress", (), ("train.py:99", "train.py:88"), (" for 1",)),
    Piece("one_file_of_all", "missing_participant", (2,), ("data.py:31", "train.py:77"),
          (" for ",)),
    Piece("what_line", "no_progress", (), ("all_gather #1", "may have more members")),
    Piece("stack_in_the_log", "missing_participant", (0,), ("broadcast #77", "runner.py:484")),
    Piece("nccl_info", "op_mismatch", (3,), ("Rank 3 left out all_gather_into_tensor #644",)),
    Piece("error_files", "process_failed", (1,), ("ValueError: shard 7 is empty (train.py:33)",)),
)  # fmt: skip


C10D = "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def interrupted(rank: int, line: int, *, waits: bool) -> str:
    """A traceback of SIGINT, with the label of srun."""
    inner = [f'  File "{C10D}", line 3252, in all_reduce'] if waits else []
    rows = ["Traceback (most recent call last):", f'  File "/srv/e/train.py", line {line}, in step']
    return "\n".join(f"{rank}: {row}" for row in [*rows, *inner, "KeyboardInterrupt"])


MISMATCH = "RuntimeError: Detected mismatch between collectives on ranks. Rank"
OLD_SUMMARY = """Root Cause:
[0]:
  time: 2021-07-11_09:12:31
  rank: 2 (local_rank: 2)
  exitcode: 1 (pid: 2041)
Other Failures:
[1]:
  time: 2021-07-11_09:12:31
  rank: 0 (local_rank: 0)
  exitcode: 1 (pid: 2039)
"""
GATHER = (
    "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7,"
    " OpType=_ALLGATHER_BASE, NumelIn=4096, NumelOut=32768, Timeout(ms)=600000) ran for 600100"
    " milliseconds before timing out."
)
PAIR = "[/build/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:4107"
RECORD = "/opt/env/lib/python3.11/site-packages/torch/distributed/elastic/errors/__init__.py"
GATHERS = f'  File "{C10D}", line 3252, in all_reduce'


def raised(rank: int, error: str, *inner: str) -> str:
    """A traceback of a program below torchrun's ``record``, with both prefixes of two hosts."""
    frames = [f'  File "{RECORD}", line 367, in wrapper',
              '  File "/srv/e/train.py", line 44, in main', *inner]  # fmt: skip
    lines = ["Traceback (most recent call last):", *frames, error]
    return "\n".join(f"[default{rank % 2}]:[rank{rank}]: {line}" for line in lines)


def summed(*ends: tuple[int, int]) -> str:
    """torchrun's summary of a host: ranks and codes, the root cause last."""
    rows = [
        f"[{n}]:\n  time      : 2026-01-02_10:00:0{9 - n}\n  rank      : {rank} (local_rank:"
        f" {rank % 2})\n  exitcode  : {code} (pid: 70{rank})\n  error_file: <N/A>"
        for n, (rank, code) in enumerate(ends)
    ]
    return "\n".join(["Failures:", *rows[:-1], "Root Cause (first observed failure):", rows[-1]])


def dumped(rank: int, line: int, *, waits: bool) -> str:
    """A stack by ``faulthandler.dump_traceback_later``, with the local rank of two hosts."""
    inner = [f'  File "{C10D}", line 3252 in all_reduce'] if waits else []
    rows = ["Timeout (0:30:00)!", "Thread 0x00007f0a (most recent call first):", *inner,
            f'  File "/srv/e/train.py", line {line} in step']  # fmt: skip
    return "\n".join(f"[default{rank % 2}]:{row}" for row in rows)


RESTATED = {
    # pytorch/pytorch#54531, #131781, rwth-i6/returnn#1484
    "stacks of faulthandler in a log": (
        "\n".join(["step 812"] * 300 + [dumped(r, 30 + r, waits=r > 0) for r in (0, 1)]),
        Piece("", "missing_participant", (0,), ("train.py:30",), (" for 1",)),
    ),
    # After the wordings of pytorch/pytorch#100207, #79724, #80197, nccl#849, metaseq#52,
    # DEIM#105 and yolov5#4574, in other words and numbers.
    "numbers that were never set": (
        (
            f"{MISMATCH} 26 is running collective: CollectiveFingerPrint(SequenceNumber=68305,"
            " OpType=BROADCAST, TensorShape=[1], TensorDtypes=Long), but Rank 1 is running"
            " collective: CollectiveFingerPrint(SequenceNumber=51387OpType=BROADCAST)."
        ),
        Piece("", "op_mismatch", (), ("ranks 1, 26",), ("#51387",)),
    ),
    "tracebacks of an interrupt": (
        "\n".join(interrupted(r, 30 if r == 2 else 44, waits=r != 2) for r in range(4)),
        Piece("", "missing_participant", (2,), ("train.py:30", "train.py:44"), (" for 1",)),
    ),
    "a log that was cut at its begin while it was written":
        ("\0" * 9000 + raised(2, "OSError: x"), Piece("", "process_failed", (2,), ("n.py:44",))),
    "local ranks of a node that is not the first": (
        f"[default1]: what(): [PG ID 0 PG GUID 0(default_pg) Rank 3] It ends: {GATHER.format(3)}",
        Piece("", "missing_participant", (), ("Rank 3 has been waiting",), ("Rank 1",)),
    ),
    "an old summary":
        (OLD_SUMMARY, Piece("", "process_failed", (2,), ("Rank 2 failed first",), ("after it",))),
}  # fmt: skip


@pytest.mark.parametrize("name", RESTATED)
def test_wordings_of_public_reports(tmp_path: Path, name: str) -> None:
    text, piece = RESTATED[name]
    (tmp_path / "job.log").write_text(f"{text}\n")
    check(diagnose(tmp_path / "job.log"), piece)


PUBLIC = (HERE.parent / "public_reports.txt").read_text()


def reports() -> dict[str, tuple[str, str, str]]:
    """By name the truth, words of the answer, and the text."""
    found = {}
    for one in re.split(r"^%% (?=.*\n%% source: )", PUBLIC, flags=re.MULTILINE)[1:]:
        name, _, truth, says, text = one.split("\n", 4)
        found[name] = (truth[10:], says[9:], text)
    return found


@pytest.mark.parametrize("name", reports())
def test_public_reports(tmp_path: Path, name: str) -> None:
    truth, says, text = reports()[name]
    kind, *ranks = truth.split()
    words = tuple(one for one in says.split("|") if one)
    (tmp_path / "job.log").write_text(text)
    if kind == "silent":
        with pytest.raises(ViewerError) as refused:
            print(diagnose(tmp_path / "job.log"))
        assert all(one in str(refused.value) for one in words)
    else:
        found = None if kind == "undecided" else kind
        not_said = tuple(one[1:] for one in words if one.startswith("-"))
        said = tuple(one for one in words if not one.startswith("-"))
        piece = Piece("", found, tuple(map(int, ranks)), said, not_said)
        check(diagnose(tmp_path / "job.log"), piece)


AROUND: dict[str, Callable[[str], str]] = {
    "html": html.escape,
    "quoted": lambda one: f"> {one}",
    "in a list": lambda one: f"       {one}",
    "docker": lambda one: json.dumps({"log": f"{one}\n", "stream": "stderr", "time": "now"}),
    "cri": lambda one: f"2026-01-01T10:00:00.123456789Z stderr F {one}",
    "syslog": lambda one: f"Jan  1 10:00:00 node-a7 torchrun[2117]: {one}",
    "compose": lambda one: f"trainer-1  | {one}",
    "pdsh": lambda one: f"10.0.0.5: {one}",
    "hydra": lambda one: f"[2026-01-01 10:00:00,123][train][INFO] - {one}",
    "loguru": lambda one: f"2026-01-01 10:00:00.123 | ERROR    | app:run:12 - {one}",
    # vllm-project/vllm#20226, #17756; hiyouga/LlamaFactory#8261; horovod/horovod#2907;
    # mlcommons/training#758
    "vllm": lambda one: f"(EngineCore pid=2117) ERROR 01-01 10:00:00 [core.py:9] {one}",
    "vllm of a rank": lambda one: (
        f"(VllmWorker rank=2 pid=7) ERROR 01-01 10:00:00 [a/b.py:9] {one}"
    ),
    "numbers in brackets": lambda one: f"[80746] {one}",
    "horovod": lambda one: f"[2]<stderr>:{one}",
    "torchx": lambda one: f"train/0 [2026-01-01 10:00:00,123] {one}",
    "epoch": lambda one: f"1767225600.123456 {one}",
    "progress": lambda one: f" 12%|#2        | 12/100 [00:01<00:09,  9.1it/s]{one}",
}


@pytest.mark.parametrize("name", AROUND)
def test_what_stands_around_lines(tmp_path: Path, name: str) -> None:
    text = "\n".join([raised(2, "ValueError: shard 9 is empty"), summed((3, -15), (2, 1))])
    lines = ["It fails:", "", *map(AROUND[name], text.splitlines()), "", "Any idea?"]
    (tmp_path / "job.log").write_text("\n".join(lines[2 * (name == "docker") :]))
    told = Piece("", "process_failed", (2,), ("shard 9 is empty (train.py:44)",))
    check(diagnose(tmp_path / "job.log"), told)


def check(report: Report, piece: Piece) -> None:
    text = str(report)
    bad = [one for one in report.findings if one.severity != "note"]
    assert next((one.kind for one in bad), None) == piece.kind, text
    assert {rank for one in bad for rank in one.culprit_ranks} == {*piece.culprits}, text
    for words in piece.says:
        assert words in text, text
    for words in (ALL, "journal", *piece.says_not):
        assert words not in text, text
    assert bool(bad) or report.incomplete, text
    # As docs/compare.md has it: certain is that calls differ, and never who is missing or failed.
    certain = [one.kind for one in bad if one.certainty == "certain"]
    assert {*certain} <= {"op_mismatch", "shape_mismatch"}, text


@pytest.mark.parametrize("piece", CASES, ids=lambda one: one.name)
def test_pieces_with_a_known_truth(piece: Piece) -> None:
    folder = HERE / piece.name
    stacks = sorted(map(str, folder.glob("*.txt")))
    report = from_files(stacks).report if stacks else diagnose(folder)
    assert report is not None
    check(report, piece)


ANALYZED = (
    # pytorch/pytorch#140969, #134528, #140879
    "Not all ranks joining collective: sequence number: 8\nmissing ranks: {1, 2}",
    "Collective sequence number: 12 has errors\ninternal record id: 11\ngroup info: 3:dp",
    "built groups, memberships\nNo errors found. All collectives match",
)


@pytest.mark.parametrize("text", ANALYZED)
def test_an_output_of_torch_s_analyzer(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.log").write_text(f"{text}\n")
    with pytest.raises(ViewerError, match="analyzer of Flight Recorder dumps"):
        diagnose(tmp_path / "job.log")


def test_most_lines_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word of a form, or like one that told nothing; its rank is known all the same."""
    taken: list[str] = []
    take = logs._LogReader.take

    def counted(reader: logs._LogReader, line: LogLine) -> bool:
        taken.append(line.text)
        return take(reader, line)

    monkeypatch.setattr(logs._LogReader, "take", counted)
    words = [f"{chr(97 + n % 26) * (n // 26 + 1)} warning" for n in range(2000)]
    lines = [
        *OLD_SUMMARY.splitlines()[:1],
        *(f"[rank{n % 4}]: step {n:04} {word}" for n, word in enumerate(words)),
        *(f"[rank{n % 4}]: rank {n % 4} step {n:04} Error 0.{n % 7}" for n in range(4000)),
    ]
    (tmp_path / "job.log").write_text("\n".join([*lines, GATHER.format(0)]))
    (found,) = diagnose(tmp_path / "job.log").findings
    assert "of ranks 1-7 the log has no such line" in found.summary
    assert len(taken) < 600


@pytest.mark.parametrize("around", [str, lambda one: f"\x1b[31m{one[:40]}\x1b[0m{one[40:]}"])
def test_a_line_found_in_very_long_ones(tmp_path: Path, around: Callable[[str], str]) -> None:
    """Long lines are cut; colours are gone before words are looked for."""
    noise = "a tensor of words " * 20_000
    (tmp_path / "job.log").write_text(f"{noise}\n{around(GATHER.format(0))}\n{noise}")
    (found,) = diagnose(tmp_path / "job.log").findings
    assert "of ranks 1-7 the log has no such line" in found.summary


def test_folders_of_two_hosts(tmp_path: Path) -> None:
    """torchrun numbers them by local rank; lines tell the rank, else it is not known."""
    for host, first in (("a", 0), ("b", 2)):
        for local in (0, 1):
            folder = tmp_path / host / "attempt_0" / str(local)
            folder.mkdir(parents=True)
            failed = first + local == 2
            error = "ValueError: shard 9 is empty" if failed else f"RuntimeError: {PAIR}"
            (folder / "stderr.log").write_text(raised(first + local, error))
            if failed:
                (folder / "error.json").write_text(f'{{"message": {{"message": "{error}"}}}}')
    check(diagnose(tmp_path), Piece("", "process_failed", (2,), ("shard 9 is empty",)))
    for path in tmp_path.rglob("stderr.log"):
        path.unlink()
    (tmp_path / "a" / "attempt_0" / "1" / "error.json").write_text('{"message": "SystemExit: 1"}')
    check(diagnose(tmp_path), Piece("", "process_failed", (), ("shard 9 is empty",)))


def test_stacks_that_tell_no_rank(tmp_path: Path) -> None:
    """The same look in two forms is of one process, and pids that stand for ranks are told."""
    for pid, waits in ((71, True), (72, False), (75, True)):
        inner = f"    all_reduce ({C10D}:3252)\n" if waits else ""
        head = f"Process {pid}: python train.py\nPython v3.11.7\n\n"
        text = f'{head}Thread {pid} (idle): "MainThread"\n{inner}    step (/srv/train.py:30)\n'
        for name in (f"{pid}.txt", f"again-{pid}.txt"):
            (tmp_path / name).write_text(text)
    report = diagnose(tmp_path)
    (found,) = report.findings
    assert (found.culprit_ranks, found.waiting_ranks) == ((1,), (0, 2))
    assert any("numbered by process id" in one for one in found.because)
    (problem,) = troubles([str(tmp_path)])
    assert "rank 1 is process 72" in problem.sentence


def test_a_crash_in_a_folder_that_tells_no_rank(tmp_path: Path) -> None:
    crash = "Fatal Python error: Segmentation fault"
    for host, rank, text in (
        ("a", 1, f"{crash}\n\nCurrent thread 0x7f (most recent call first):\n{GATHERS}"),
        ("b", 0, raised(2, f"RuntimeError: {PAIR}")), ("b", 1, raised(3, f"RuntimeError: {PAIR}")),
    ):  # fmt: skip
        folder = tmp_path / host / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
    check(diagnose(tmp_path), Piece("", "process_failed", (), ("Segmentation fault",)))


def test_ranks_by_names_of_files(tmp_path: Path) -> None:
    for rank, error in ((0, f"RuntimeError: {PAIR}"), (3, "ValueError: shard 9 is empty")):
        lines = [one.partition("]: ")[2] for one in raised(rank, error).splitlines()]
        (tmp_path / f"train-rank{rank}.log").write_text("\n".join(lines))
    check(diagnose(tmp_path), Piece("", "process_failed", (3,), ("shard 9 is empty",)))


def test_stacks_of_two_hosts_with_local_ranks_in_one_log(tmp_path: Path) -> None:
    """Local ranks 0 and 1 of four ranks are of any host: no two stacks are of one rank."""
    stacks = [dumped(local, 30 + n, waits=n != 0) for n, local in enumerate((0, 1, 0, 1))]
    (tmp_path / "job.log").write_text("\n".join(["[default0]:world size 4", *stacks]))
    report = diagnose(tmp_path)
    assert "train.py:30" in report.findings[0].summary
    assert any("numbered by process id" in one for one in report.findings[0].because)


PREFIXES = ("", "(RayWorkerWrapper pid=489968) ", "node3 [stderr] ", "\x1b[31m", "100%|##|\r")


def caught(rank: int, seq: int) -> str:
    return (
        f"[rank{rank}]:[E626 16:48:25.440 ProcessGroupNCCL.cpp:670] [Rank {rank}] Watchdog caught"
        f" collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=8652160,"
        " NumelOut=8652160, Timeout(ms)=1800000) ran for 1800068 milliseconds before timing out."
    )


COUNTS = (
    "[rank2]:[E626 16:48:26.440 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 2]"
    " failure detected by watchdog at work sequence id: 120048 PG status: last enqueued work:"
    " 120048, last completed work: 120048"
)


def told(folder: Path, *lines: str) -> Report:
    path = folder / "job.log"
    path.write_text("starting\n" + "noise\n" * 2000 + "\n".join(lines) + "\n")
    return diagnose(path)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_who_enqueued_less_has_not_come(tmp_path: Path, prefix: str) -> None:
    lines = [caught(r, 120049) for r in (0, 1, 3)] + [COUNTS]
    (found,) = told(tmp_path, *(prefix + line for line in lines)).findings
    assert (found.kind, found.certainty) == ("missing_participant", "likely")
    assert (found.culprit_ranks, found.seq) == ((2,), 120049)


def test_counts_that_were_never_set_are_none(tmp_path: Path) -> None:
    old = (
        "[PG 1 Rank 1] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL"
        " work: 93459313471793."
    )
    assert "93459313471793" not in str(told(tmp_path, caught(0, 1), caught(1, 1), old))


@pytest.mark.parametrize("one", CORPUS, ids=[one.name for one in CORPUS])
def test_logs_as_versions_of_torch_print_them(tmp_path: Path, one: Excerpt) -> None:
    """Who, which operation and which number; and nobody is named without cause."""
    report = told(tmp_path, *one.lines)
    bad = [found for found in report.findings if found.severity != "note"]
    assert {rank for found in bad for rank in found.culprit_ranks} == {*one.culprits}, str(report)
    assert next((found.kind for found in bad), None) == one.kind, str(report)
    if bad and one.op is not None:
        assert bad[0].op == one.op
    if bad and one.seq is not None:
        assert bad[0].seq == one.seq
    assert one.says in str(report)


def test_a_log_through_a_pipe(tmp_path: Path) -> None:
    text = "\n".join(caught(r, 7) for r in range(2))
    done = subprocess.run(
        [sys.executable, "-m", "disttrace", "diagnose", "-"],
        input=text, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "all_reduce #7" in done.stdout


def test_a_pipe_without_a_log_is_named_as_one() -> None:
    """Nobody knows the file under which it is held."""
    words = [sys.executable, "-m", "disttrace", "diagnose", "-"]
    done = subprocess.run(words, input="hello", capture_output=True, text=True, timeout=60)
    told = "disttrace: the standard input has no line of a watchdog, and no exception.\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_every_kind_of_report_has_its_sentence() -> None:
    """But for output of torch's analyzer, which ``diagnose`` refuses."""
    assert {kind for kind, *_ in _REPORTED} - _MAKERS.keys() == {"analyzer"}
