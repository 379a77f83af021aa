"""`disttrace mcp`: programs ask over standard input and output, and get what the API says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import disttrace
from disttrace.cli import main
from frameworks.libraries import environment
from support.journals import S
from support.processes import ROOT, clean_environ, run_program
from support.scenes import hang_without

TOOLS = ["diagnose", "stats", "view", "jobs", "diff", "attach", "collect"]


@pytest.fixture
def job(tmp_path: Path) -> str:
    """Rank 1 stands in its loader while rank 0 waits."""
    for journal, _ in hang_without(tmp_path, 2, 1):
        journal.stand(3 * S, "/src/loader.py", 9, "load")
    return str(tmp_path)


def said(*lines: str) -> list[dict[str, Any]]:
    """What a server answers to lines on its standard input, of which it says nothing else."""
    done = subprocess.run(
        [sys.executable, "-m", "disttrace", "mcp"], input="".join(f"{line}\n" for line in lines),
        capture_output=True, text=True, timeout=60, env=clean_environ(),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def request(number: int, method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def call(number: int, name: str, **arguments: Any) -> str:
    return request(number, "tools/call", name=name, arguments=arguments)


def test_a_session_from_its_beginning_to_its_end(job: str) -> None:
    """Notifications get no answer; each request gets one, in order."""
    answers = said(
        request(1, "initialize", protocolVersion="2025-06-18", capabilities={}),
        '{"jsonrpc": "2.0", "method": "notifications/initialized"}',
        request(2, "tools/list"), call(3, "diagnose", path=job), call(4, "view", path=job, last=1),
        call(5, "stats", path=job, without="rank=1"), call(6, "jobs", path=job),
        call(7, "diff", a=job, b=job), request(8, "ping"),
    )  # fmt: skip
    assert [(one["jsonrpc"], one["id"]) for one in answers] == [("2.0", n) for n in range(1, 9)]
    results = [one["result"] for one in answers]
    hello, listed, diagnosed, viewed, stats, jobs, differences, pong = results
    assert hello["protocolVersion"] == "2025-06-18"
    assert hello["serverInfo"] == {"name": "disttrace", "version": disttrace.__version__}
    assert [tool["name"] for tool in listed["tools"]] == TOOLS
    report = disttrace.diagnose(job)
    assert diagnosed["content"] == [{"type": "text", "text": str(report)}]
    assert diagnosed["structuredContent"] == json.loads(json.dumps(report.to_dict(full=False)))
    assert diagnosed["structuredContent"]["findings"][0]["culprit_ranks"] == [1]
    assert "all_reduce" in viewed["content"][0]["text"]
    assert stats["structuredContent"]["what_if"][0]["without"] == {"rank": 1}
    assert len(jobs["structuredContent"]["jobs"]) == 1
    assert differences["content"][0]["text"].startswith("Both runs communicate alike")
    assert not any(one.get("isError") for one in (diagnosed, viewed, stats, jobs, differences))
    assert pong == {}


def test_what_lies_here_is_packed_and_what_runs_here_is_looked_at(job: str, tmp_path: Path) -> None:
    """The one tool that writes says so; of a job that does not run here a sentence tells."""
    target = tmp_path / "packed" / "job.tar.gz"
    target.parent.mkdir()
    answers = said(
        request(1, "tools/list"), call(2, "collect", path=job, output=str(target)),
        call(3, "collect", path=job, output=str(tmp_path / "job.zip")),
        call(4, "attach", job="of no name"),
    )  # fmt: skip
    listed, packed, refused, attached = (one["result"] for one in answers)
    writes = [t["name"] for t in listed["tools"] if not t["annotations"]["readOnlyHint"]]
    assert writes == ["collect"]
    assert packed["structuredContent"]["journals"] == 2
    folder = target.parent / "unpacked"
    assert main(["collect", str(target), "-o", str(folder)]) == 0
    assert disttrace.load(folder).diagnose().findings[0].culprit_ranks == (1,)
    assert refused["isError"]
    assert attached["content"][0]["text"].endswith(".")
    assert "structuredContent" not in attached


def test_what_is_wrong_is_an_answer_and_ends_nothing(tmp_path: Path) -> None:
    """Of the protocol as an error, of a tool as a result that a model can read."""
    empty = str(tmp_path)
    answers = said(
        "{", "[]", "", request(1, "server/discover"),
        request(2, "initialize", protocolVersion="2031-01-01"),
        call(3, "rm", path="/"), call(4, "diagnose", path=empty), call(5, "diagnose", path=7),
        call(6, "diagnose", folder=empty), call(7, "diff", a=empty),
        json.dumps({"jsonrpc": "2.0", "id": 8, "method": "ping", "params": [1]}),
    )  # fmt: skip
    errors = {one["id"]: one["error"]["code"] for one in answers if "error" in one}
    assert [one["error"]["code"] for one in answers[:2]] == [-32700, -32600]
    assert errors == {None: -32600, 1: -32601, 3: -32602, 8: -32602}
    results = {one["id"]: one["result"] for one in answers if "result" in one}
    assert results[2]["protocolVersion"] == "2025-11-25"
    texts = {n: results[n]["content"][0]["text"] for n in (4, 5, 6, 7)}
    assert all(results[n]["isError"] for n in texts)
    assert texts[4].startswith(f"no journals in {empty}")
    assert texts[5] == "path is to be of type string"
    assert texts[6] == "diagnose: got an unexpected keyword argument 'folder'"
    assert texts[7] == "diff: missing a required argument: 'b'"


@pytest.mark.long
def test_a_client_by_the_protocols_own_library(job: str) -> None:
    """Installed from packages; it asks for a later revision first."""
    program = ROOT / "tests" / "frameworks" / "programs" / "mcp_client.py"
    client = environment("mcp") / "python"
    done = run_program([client, program, sys.executable, job], timeout=120).check()
    tools, found, nothing = json.loads(done.stdout)
    assert (tools, nothing) == (TOOLS, True)
    assert found["findings"][0]["culprit_ranks"] == [1]
