"""Thirteen scenes by every surface: the same fault, rank, line, certainty, zero and exit code.

    python tests/reliability/matrix.py [--only SCENE ...] [--keep FOLDER]

Each scene is a real job. What `diagnose --json` finds is compared with what the scene is known to
be; all other surfaces are compared with that report. Exit code 1 where any differs.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from disttrace import load  # noqa: E402
from disttrace.cli import main  # noqa: E402
from support.browser import PATH, browser  # noqa: E402
from support.campaigns import options  # noqa: E402
from support.processes import clean_environ, free_port, run_program  # noqa: E402
from viewer.views.test_html import data  # noqa: E402

HEAD = """\
import os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
ones = torch.ones(4)
"""
STEPS = "for step in range(6):\n    dist.all_reduce(ones)\n"
HANG = HEAD + STEPS + "if rank == 1:\n    time.sleep(600)  # HERE\ndist.all_reduce(ones)\n"
CAUGHT = (
    HEAD
    + STEPS
    + """
try:
    if rank == 1:
        time.sleep(600)  # HERE
    dist.all_reduce(ones)
except KeyboardInterrupt:
    sys.exit(1)
"""
)
HANDLER = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n" + HANG
DDP = """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(4, 4))
def batches():
    for step in range(100):
        if rank == 1 and step == 6:
            time.sleep(600)  # HERE
        yield torch.ones(2, 4)
for batch in batches():
    model(batch).sum().backward()
"""
DESYNC = """
for step in range(40):
    if not (rank == 1 and step == 30):
        dist.broadcast(ones, 0)
    dist.all_reduce(ones)
    time.sleep(0.02)
"""
CRASH = HEAD + STEPS + "if rank == 1:\n    raise ValueError('bad')  # HERE\ndist.all_reduce(ones)\n"
_KILLED = "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(ones)\n"
KILL = HEAD + STEPS + _KILLED
SLOW = (
    HEAD
    + "for step in range(60):\n    if rank == 1:\n        time.sleep(0.06)\n"
    + "    dist.all_reduce(ones)  # HERE\n"
)
SIZES = HEAD + STEPS + "dist.all_reduce(torch.ones(4 + (rank == 1)))  # HERE\n"
SERVER = """
import queue, threading
inbox = queue.Queue()
def clients():
    for request in range(6):
        time.sleep(1)
        inbox.put(request)
threading.Thread(target=clients, daemon=True).start()
while True:
    batch = [None]
    if rank == 0:
        batch = [inbox.get()]  # HERE
    dist.broadcast_object_list(batch, src=0)
"""


@dataclass(frozen=True)
class Scene:
    """A program in three ranks, what is done to it, and what is true of it."""

    program: str
    kind: str | None
    culprits: tuple[int, ...] = ()
    """Ranks that are at fault; a finding names these or none."""
    named: bool = True
    """That they have to be named."""
    until: str = ""
    """What its stderr says before it is ended; nothing: it ends by itself."""
    end: signal.Signals = signal.SIGKILL
    nodes: int = 1
    bare: bool = False
    """Its ranks are started by hand."""
    change: Callable[[Path], None] | None = None
    """What is done to the journals afterwards."""
    code: int = 1
    """Of `diagnose`."""

    @property
    def is_a_test(self) -> bool:
        """Whether a test in ranks of one host can end as it does (docs/dev/expected.md)."""
        own = self.nodes == 1 and not self.bare and self.change is None
        return own and self.kind != "straggler" and self.code == 1 and self.end not in _ASKED

    @property
    def here(self) -> int | None:
        lines = self.program.splitlines()
        return next((number for number, line in enumerate(lines, 1) if "# HERE" in line), None)


def newer(folder: Path) -> None:
    """The journals as of a release to come."""
    for path in folder.rglob("*.defs.jsonl"):
        path.write_bytes(re.sub(rb'"format":\d+', b'"format":99', path.read_bytes(), count=1))


STALLED = "disttrace: stalled"
_ASKED = (signal.SIGINT, signal.SIGTERM)
SCENES = {
    "hang": Scene(HANG, "missing_participant", (1,), until=STALLED),
    "ddp": Scene(HEAD + DDP, "missing_participant", (1,), until=STALLED),
    "desync": Scene(HEAD + DESYNC, None, (1,), until=STALLED),
    "crash": Scene(CRASH, "process_failed", (1,)),
    "kill": Scene(KILL, "process_failed", (1,)),
    "slow": Scene(SLOW, "straggler", (1,)),
    "nodes": Scene(HANG, "missing_participant", (1,), until=STALLED, nodes=3),
    "bare": Scene(HANG, "missing_participant", (1,), until=STALLED, bare=True),
    "ctrl-c": Scene(CAUGHT, "missing_participant", (1,), until=STALLED, end=signal.SIGINT),
    "sigterm": Scene(HANDLER, "missing_participant", (1,), until=STALLED, end=signal.SIGTERM),
    "sizes": Scene(SIZES, "shape_mismatch", (1,), until="disttrace: failed"),
    "newer": Scene(CRASH, None, change=newer, code=2),
    "server": Scene(HEAD + SERVER, None, until="SLEEP 20", code=0),
}


Launchers = list[subprocess.Popen[bytes]]


def started(scene: Scene, folder: Path) -> Launchers:
    """The job's launchers, whose stderr is in files of the folder."""
    program = folder / "program.py"
    program.write_text(scene.program)
    launchers = []
    port = str(free_port())
    for node in range(3 if scene.bare else scene.nodes):
        command = [sys.executable, "-m", "torch.distributed.run"]
        own = {}
        if scene.bare:
            command = [sys.executable]
            own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3"}
            own["RANK"] = str(node)
        elif scene.nodes == 1:
            command += ["--standalone", "--nproc-per-node", "3"]
        else:
            command += [f"--nnodes={scene.nodes}", f"--node-rank={node}", "--nproc-per-node=1"]
            command += ["--master-addr=127.0.0.1", f"--master-port={port}"]
        env = clean_environ(
            DISTTRACE="1", DISTTRACE_DIR=str(folder / f"out{0 if scene.bare else node}"),
            DISTTRACE_STALL="3", DISTTRACE_QUIET="0", OMP_NUM_THREADS="1", **own,
        )  # fmt: skip
        with (folder / f"node{node}.err").open("w") as stream:
            launchers.append(
                subprocess.Popen([*command, str(program)], env=env, stdout=stream, stderr=stream)
            )
    return launchers


def ended(scene: Scene, folder: Path, launchers: Launchers) -> tuple[str, str]:
    """What the launchers wrote on stderr, and what `serve` said before the job was ended."""
    outs = sorted(folder.glob("node*.err"))
    deadline = time.monotonic() + 90
    if scene.until.startswith("SLEEP"):
        time.sleep(float(scene.until.split()[1]))
    while time.monotonic() < deadline:
        if all(launcher.poll() is not None for launcher in launchers):
            break
        if scene.until.startswith("SLEEP") or (
            scene.until and any(scene.until in out.read_text() for out in outs)
        ):
            time.sleep(2)
            break
        time.sleep(0.1)
    before = "".join(out.read_text() for out in outs)
    served = disttrace("serve", "--prometheus", "--once").stdout
    jobs = {f'job="{path.name.split("-")[0]}' for path in folder.rglob("*.defs.jsonl")}
    until = time.monotonic() + 30  # what `serve` reads is written from some ten seconds on
    while scene.until == STALLED and jobs and time.monotonic() < until:
        if any(job in one for one in served.splitlines() if "verdict_info{" in one for job in jobs):
            break
        time.sleep(0.5)
        served = disttrace("serve", "--prometheus", "--once").stdout
    for launcher in launchers:
        if launcher.poll() is None:
            if scene.end is signal.SIGKILL:
                for path in folder.rglob("*.defs.jsonl"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(path.name.split("-")[-2]), signal.SIGKILL)
            else:
                launcher.send_signal(scene.end)
    for launcher in launchers:
        try:
            launcher.wait(60)
        except subprocess.TimeoutExpired:
            launcher.kill()
    if scene.change is not None:
        for node in range(scene.nodes):
            scene.change(folder / f"out{node}")
    return before, served


def disttrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, as from a shell, in this process: an interpreter for each would take minutes."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*arguments])
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return subprocess.CompletedProcess(arguments, code, *texts)


def plain(text: str) -> str:
    """Without line breaks and markup: summaries are wrapped differently everywhere."""
    for a, b in (("&#x27;", "'"), ("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(a, b)
    return re.sub(r"\s+", "", re.sub(r"<[^>]*>", "", text))


def surfaces(folder: str, work: Path) -> dict[str, str]:
    found = {"diagnose": disttrace("diagnose", folder, "--width", "200").stdout}
    found["view"] = disttrace("view", folder, "--width", "200").stdout
    found["top"] = disttrace("top", "--once", folder, "--width", "200").stdout
    found["junit"] = disttrace("diagnose", folder, "--format", "junit").stdout
    marks = disttrace("diagnose", folder, "--format", "github").stdout
    found["github"] = marks.replace("%0A", "").replace("%25", "%")
    found["notebook"] = load(folder).diagnose()._repr_html_()
    page = work / "page.html"
    disttrace("export", folder, "-o", str(page))
    if page.exists():
        found["page"] = drawn(page, work / "profile")
    spans = work / "spans.json"
    disttrace("export", folder, "--format", "otlp", "-o", str(spans))
    if spans.exists():
        found["otlp"] = spans.read_text()
    archive, unpacked = work / "job.tar.gz", work / "unpacked"
    disttrace("collect", folder, "-o", str(archive))
    disttrace("collect", str(archive), "-o", str(unpacked))
    found["collected"] = disttrace("diagnose", str(unpacked), "--width", "200").stdout
    return found


def drawn(page: Path, profile: Path) -> str:
    """What a browser shows of a page; where there is none, what the page holds."""
    if PATH is None:
        return orjson.dumps(data(page.read_text()).get("findings", [])).decode()
    with browser(profile) as chromium:
        chromium.open(page.as_uri())
        chromium.settle()
        return "\n".join([*chromium.complaints, chromium.run("document.body.innerText")])


def tested(scene: Scene, folder: Path, first: Mapping[str, Any]) -> list[str]:
    """What the pytest plugin says otherwise of the same program, as a test in three ranks."""
    text = """
import runpy, pytest
@pytest.mark.distributed(3, init=False)
def test_it():
    runpy.run_path("program.py", run_name="__main__")
"""
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"]
    command += ["--dist-stall=3", "--junitxml=junit.xml"]
    environ = clean_environ(OMP_NUM_THREADS="1", COLUMNS="200")
    told = run_program(command, environ, 120, cwd=folder)
    shown, report = plain(told.stdout), (folder / "junit.xml").read_text()
    wanted = [f"rank{scene.culprits[0]}"]
    if scene.here is not None:
        wanted.append(f"program.py:{scene.here}")
    if first["kind"] != "process_failed":
        wanted.append(plain(first["summary"]).split("(")[0][:40])
        if f'<property name="disttrace" value="{first["kind"]}"' not in report:
            return ["the plugin's JUnit file has no property of the kind"]
        if ("likely" in shown) != (first["certainty"] == "likely"):
            return ["certainty: the plugin differs"]
    lacks = [one for one in wanted if one.lower() not in shown.lower()]
    return [f"the plugin lacks {lacks} (exit code {told.code})"] if lacks else []


def faults(scene: Scene, folder: Path, launchers: Launchers) -> list[str]:
    said, served = ended(scene, folder, launchers)
    (folder / "said.txt").write_text(said)
    wrong = []
    where = str(folder / "out0") if scene.nodes == 1 else str(folder)
    outcome = disttrace("diagnose", where, "--json")
    if outcome.returncode != scene.code:
        wrong.append(f"diagnose exits with {outcome.returncode}, not {scene.code}")
    if not outcome.stdout:
        return [*wrong, outcome.stderr.strip()[-300:]]
    report = orjson.loads(outcome.stdout)
    findings = [one for one in report["findings"] if one["severity"] != "note"]
    text = surfaces(where, folder)
    for surface, shown in text.items():
        if not shown.strip():
            wrong.append(f"{surface} shows nothing")
    if scene.code != 1:
        if findings and not findings[0].get("said_at"):
            wrong.append(f"found: {findings[0]['summary']}")
        if scene.code == 0 and STALLED in said:
            wrong.append("stalled is said of a healthy job")
        return wrong
    if not findings:
        return [*wrong, "nothing is found"]
    first = findings[0]
    if scene.kind and first["kind"] != scene.kind:
        wrong.append(f"{first['kind']}, not {scene.kind}")
    if set(first["culprit_ranks"]) - set(scene.culprits) or (
        scene.named and not first["culprit_ranks"]
    ):
        wrong.append(f"culprits {first['culprit_ranks']}, not {list(scene.culprits)}")
    lines = {one["line"] for one in first["locations"]}
    if (
        scene.here is not None
        and scene.here not in lines
        and f":{scene.here}" not in first["summary"]
    ):
        wrong.append(f"line {scene.here} is in no location: {sorted(lines)}")
    summary = plain(first["summary"])
    for surface, shown in text.items():
        if surface == "otlp" or not shown.strip():
            continue
        if summary not in plain(shown.replace('\\"', '"')):
            wrong.append(f"{surface} lacks the summary")
        likely = "likely" in shown
        if first["certainty"] == "likely" and not likely and surface not in ("view",):
            wrong.append(f"{surface} hides that it is likely")
    live = [line for line in said.splitlines() if line.startswith("disttrace: ")]
    kinds = "stalled|failed|diverged|slow|waiting|starting"
    spoken = [line for line in live if re.match(rf"disttrace: ({kinds})( \(likely\))?: ", line)]
    if not spoken and scene.kind != "straggler":
        wrong.append("the job says nothing")
    elif scene.until == STALLED:
        last = plain(spoken[-1])
        head = summary.rstrip(".").split("(")[0][:40]
        if head not in last:
            wrong.append(f"the job says {spoken[-1][:160]!r}, the report {summary[:120]!r}")
        if ("(likely)" in spoken[-1]) != (first["certainty"] == "likely"):
            wrong.append(f"certainty: the job {spoken[-1][:60]!r}, the report {first['certainty']}")
    if scene.until == STALLED and not any(_serves(one, first) for one in served.splitlines()):
        wrong.append(f"serve: {[one for one in served.splitlines() if 'verdict_info{' in one]}")
    top = orjson.loads(disttrace("top", where, "--json").stdout)["verdict"]
    if (top["kind"], top["certainty"]) != (first["kind"], first["certainty"]):
        wrong.append(f"top: {top}")
    stats = orjson.loads(disttrace("stats", where, "--json").stdout)
    origins = stats["origins"]
    if scene.until == STALLED and origins and origins[0]["rank"] != first["culprit_ranks"][0]:
        wrong.append(f"stats begins with {origins[0]}")
    if stats["critical_path"] and scene.until == STALLED:
        longest = max(stats["critical_path"], key=lambda one: one["time_ns"])
        if longest["rank"] not in (None, *scene.culprits):
            wrong.append(f"the critical path is long in {longest}")
    if scene.is_a_test:
        wrong += tested(scene, folder, first)
    return wrong + zeros(where, folder)


def _serves(line: str, first: Mapping[str, Any]) -> bool:
    """Whether a line of `serve` is the verdict: of other jobs of this host there are lines, too."""
    culprits = ",".join(map(str, first["culprit_ranks"]))
    known = {"kind": first["kind"], "culprit": culprits, "certainty": first["certainty"]}
    return line.startswith("disttrace_verdict_info{") and all(
        f'{name}="{value}"' in line for name, value in known.items()
    )


def zeros(where: str, folder: Path) -> list[str]:
    """One begin of one operation in view, page, Perfetto, by one zero."""
    rows = disttrace("export", where).stdout.splitlines()
    ones = [orjson.loads(row) for row in rows]
    mine = [one for one in ones if one["op"] == "all_reduce" and one["rank"] == 0]
    if not mine:
        return []
    perfetto = folder / "trace.json"
    disttrace("export", where, "-o", str(perfetto))
    raw = perfetto.read_bytes()
    trace = orjson.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    events = [e for e in trace["traceEvents"] if e.get("ph") in "Xb" and "all_reduce" in e["name"]]
    view = disttrace("view", where, "--width", "200").stdout
    times = re.findall(r"\+(\d+\.\d+)", view)
    begun = min(e["ts"] for e in events) / 1e6 if events else None
    shown = [float(one) for one in times]
    if begun is not None and not any(abs(begun - one) < 0.0015 for one in shown):
        drawn = f"Perfetto's first all_reduce is at +{begun:.3f}"
        return [f"{drawn}, which view does not show: {shown[:8]}"]
    return []


def compare() -> int:
    """A line per scene, and below it what is wrong."""
    chosen = options(__doc__, only=list(SCENES), keep=Path)
    os.environ.update(NO_COLOR="1", COLUMNS="200")
    bad = 0
    for name in chosen.only:
        folder = Path(tempfile.mkdtemp()) if chosen.keep is None else chosen.keep / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        wrong = faults(SCENES[name], folder, started(SCENES[name], folder))
        bad += bool(wrong)
        print(f"{name:8} {'as it has to be' if not wrong else ''}", flush=True)
        for line in wrong:
            print(f"         {line}", flush=True)
        if chosen.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(chosen.only)} scenes, {bad} with differences")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(compare())
