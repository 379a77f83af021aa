"""Runs ranks that are at work and ranks that are stuck while others wait; judges what is reported.

python tests/reliability/working.py                    all 48, two at a time
python tests/reliability/working.py --match stuck --jobs 4
python tests/reliability/working.py --limits            when a time limit strikes, to the second
python tests/reliability/working.py --load 20           beside so many processes that compute

Rank 0 does what its program says, rank 1 waits for it in `all_reduce`. Right is `waiting:` and the
state `moves` of one at work, and `stalled:` and no `moves` of one that is stuck. A framework that
is not installed is passed over. With `--limits` a wait ends by its limit, and the program prints
when.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.campaigns import beside, options
from support.processes import busy, clean_environ, ending

STALL_S, PATIENCE_S = 10.0, 150.0
LATER_S = {"gil held, computing": 90.0}
"""Once one has been reported, until it is judged: it might be a long call."""
HEAD = """
import ctypes, datetime, fcntl, gzip, hashlib, multiprocessing, os, pickle, queue, random, re
import select, shutil, signal, socket, sqlite3, subprocess, sys, threading, time, urllib.request
from concurrent.futures import ThreadPoolExecutor
import torch, torch.distributed as dist
RANK, FOLDER, URL = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]
SOON = datetime.timedelta(seconds=24)
def start(seconds=1800):
    dist.init_process_group("gloo", store=dist.FileStore(FOLDER + "/store", 2), rank=RANK,
                            world_size=2, timeout=datetime.timedelta(seconds=seconds))
    dist.barrier()
def computed(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))
def count():
    while True:
        sum(n * n for n in range(1000))
def square(n):
    for _ in range(2000):
        sum(range(1000))
    return n
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        computed(3)
        return index
class Stuck(Slow):
    def __getitem__(self, index):
        threading.Event().wait()
"""
TAIL = """
if __name__ == "__main__":
    start()
    if RANK == 0:
        work()
    dist.all_reduce(torch.ones(1))
"""
WORK = {
    "map": """
def tokenize(line):
    return [hash(word) % 50_000 for word in line.split()]
while True:
    [tokenize("the quick brown fox jumps over " * 50) for _ in range(100)]
""",
    "regular expressions": """
word, kept = re.compile(r"\\w+|[^\\w\\s]"), {}
for number in range(10**9):
    for one in word.findall("the quick, brown fox; jumps over. " * 20):
        kept[one] = number
""",
    "save": """
state = {str(n): torch.ones(4 << 20) for n in range(8)}
while True:
    torch.save(state, FOLDER + "/model.pt")
""",
    "save slowly": """
with open(FOLDER + "/model.bin", "wb") as file:
    while True:
        file.write(bytes(256 << 10))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        time.sleep(0.3)
""",
    "compile": """
for n in range(1000):
    torch._dynamo.reset()
    layers = [torch.nn.Linear(8 + n, 8 + n) for _ in range(6)]
    torch.compile(torch.nn.Sequential(*layers, torch.nn.GELU()))(torch.ones(4, 8 + n))
""",
    "evaluate": """
model = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True).eval()
with torch.no_grad():
    while True:
        loss = model(torch.ones(8, 128, 256)).sum()
        assert loss == loss
""",
    "download": "data = urllib.request.urlopen(URL).read()",
    "download pieces": "answer = urllib.request.urlopen(URL)\nwhile answer.read(4096): pass",
    "loader": "for _ in torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=2): pass",
    "subprocess": 'subprocess.run([sys.executable, "-c", "while True: sum(range(1000))"])',
    "many subprocesses": """
while True:
    subprocess.run([sys.executable, "-c", "for _ in range(3000): sum(range(1000))"])
""",
    "pool": 'multiprocessing.get_context("fork").Pool(2).map(square, range(10**5))',
    "compress": """
with gzip.open(FOLDER + "/data.gz", "wb") as file:
    while True:
        file.write(os.urandom(1 << 20))
""",
    "sort": "while True: sorted([random.random() for _ in range(10**6)])",
    "pickle": """
big = [{"a": n, "b": str(n)} for n in range(300_000)]
while True:
    with open(FOLDER + "/big", "wb") as file:
        pickle.dump(big, file)
""",
    "database": """
base = sqlite3.connect(FOLDER + "/base")
base.execute("create table t (a, b)")
while True:
    base.executemany("insert into t values (?, ?)", [(n, "x" * 50) for n in range(5000)])
    base.commit()
""",
    "copy": """
with open(FOLDER + "/from", "wb") as file:
    file.write(os.urandom(64 << 20))
while True:
    shutil.copyfile(FOLDER + "/from", FOLDER + "/to")
""",
    "checksum": """
with open(FOLDER + "/from", "wb") as file:
    file.write(os.urandom(32 << 20))
while True:
    with open(FOLDER + "/from", "rb") as file:
        hashlib.sha256(file.read())
""",
    "dcp": """
import torch.distributed.checkpoint as dcp
state = {str(n): torch.ones(1 << 20) for n in range(16)}
for n in range(10**6):
    dcp.save(state, checkpoint_id=f"{FOLDER}/dcp{n % 2}", no_dist=True)
""",
    "executor": "ThreadPoolExecutor(1).submit(count).result()",
    "thread, looked at": """
one = threading.Thread(target=count, daemon=True)
one.start()
while one.is_alive():
    time.sleep(0.01)
""",
    "gil held": "while True: sum(range(10**9))",
    "accelerate": """
import accelerate
os.environ["MASTER_ADDR"] = "127.0.0.1"
with accelerate.PartialState(cpu=True).main_process_first():
    while True:
        {n: str(n) for n in range(10_000)}
""",
    "lightning": """
import lightning
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(512, 512)
    def validation_step(self, batch, index):
        for _ in range(200):
            batch = self.layer(batch)
    def training_step(self, batch, index):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
data = torch.utils.data.DataLoader(torch.ones(10**5, 512), batch_size=64)
lightning.Trainer(accelerator="cpu", devices=1, num_sanity_val_steps=-1, logger=False,
                  enable_checkpointing=False, max_epochs=1).fit(Model(), data, data)
""",
    "transformers": """
import transformers
model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=8))
while True:
    model.save_pretrained(FOLDER + "/bert")
""",
}
STUCK = {
    "lock": "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "recv": "one, other = socket.socketpair()\none.recv(1)",
    "silent server": 'urllib.request.urlopen(URL + "silent").read()',
    "accept": 'socket.create_server(("127.0.0.1", 0)).accept()',
    "select": "one, other = socket.socketpair()\nselect.select([one], [], [])",
    "fifo open": 'os.mkfifo(FOLDER + "/fifo")\nopen(FOLDER + "/fifo")',
    "fifo read": 'os.mkfifo(FOLDER + "/fifo")\nos.read(os.open(FOLDER + "/fifo", os.O_RDWR), 1)',
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "gil held": "ctypes.PyDLL(None).sleep(600)",
    "gil held, computing": 're.match(r"(a+)+$", "a" * 60 + "b")',
    "turns": "while True: pass",
    "turns, looking": "one = threading.Event()\nwhile not one.is_set(): pass",
    "turns, with pauses": "one = queue.Queue()\nwhile one.empty(): time.sleep(0.001)",
    "queue": "queue.Queue().get()",
    "queue of processes": 'multiprocessing.get_context("spawn").Queue().get()',
    "condition": "with (one := threading.Condition()): one.wait()",
    "event, again and again": "one = threading.Event()\nwhile not one.wait(1): pass",
    "file lock": """
first = open(FOLDER + "/lock", "w")
if (child := os.fork()) == 0:
    held = open(FOLDER + "/lock")  # a lock ends with its file
    fcntl.flock(held, fcntl.LOCK_EX)
    time.sleep(600)
time.sleep(0.5)
fcntl.flock(first, fcntl.LOCK_EX)
""",
    "child": 'subprocess.run(["sleep", "600"])',
    "loader": "for _ in torch.utils.data.DataLoader(Stuck(), num_workers=2): pass",
    "poll": 'while not os.path.exists(FOLDER + "/ready"): time.sleep(0.25)',
    "thread": """
thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
thread.join()
""",
}
STORE = 'start()\nstore = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)\n'
LATER = "work = dist.all_reduce(torch.ones(4), async_op=True); time.sleep(4); work.wait()"
LIMITS = {
    "all_reduce, 22 s": ("start(22)", "dist.all_reduce(torch.ones(4))"),
    "barrier, 27 s": ("start(27)", "dist.barrier()"),
    "broadcast, 31 s": ("start(31)", "dist.broadcast(torch.ones(4), 1)"),
    "all_gather, 25 s": ("start(25)", "dist.all_gather([torch.ones(4)] * 2, torch.ones(4))"),
    "reduce, 23 s": ("start(23)", "dist.reduce(torch.ones(4), 0)"),
    "gather, 24 s": ("start(24)", "dist.gather(torch.ones(4), [torch.ones(4)] * 2)"),
    "scatter, 26 s": ("start(26)", "dist.scatter(torch.ones(4), None, 1)"),
    "all_to_all_single, 28 s":
        ("start(28)", "dist.all_to_all_single(torch.ones(4), torch.ones(4))"),
    "recv, 29 s": ("start(29)", "dist.recv(torch.ones(4), 1)"),
    "objects, 30 s": ("start(30)", "dist.all_gather_object([None] * 2, 4)"),
    "asynchronous, 21 s": ("start(21)", "dist.all_reduce(torch.ones(4), async_op=True).wait()"),
    "asynchronous, later, 33 s": ("start(33)", LATER),
    "a group's own": (
        "start()\ngroup = dist.new_group(timeout=datetime.timedelta(seconds=25))",
        "dist.all_reduce(torch.ones(4), group=group)",
    ),
    "changed": (
        "start(900)\ndist.distributed_c10d._set_pg_timeout(SOON)",
        "dist.all_reduce(torch.ones(4))",
    ),
    "allowed":
        ("import disttrace\nstart(12)\ndisttrace.allow(0.25)", "dist.all_reduce(torch.ones(4))"),
    "monitored_barrier":
        ("start()", "dist.monitored_barrier(timeout=datetime.timedelta(seconds=23))"),
    "store.wait": (STORE, 'store.wait(["key"], datetime.timedelta(seconds=22))'),
    "store.get": (f"{STORE}store.set_timeout(datetime.timedelta(seconds=25))", 'store.get("key")'),
    "a prefix store": (
        f'{STORE}store = dist.PrefixStore("a", store)\nstore.set_timeout(SOON)',
        'store.get("key")',
    ),
    "workers of a store":
        ("", 'dist.TCPStore("127.0.0.1", 0, 2, True, datetime.timedelta(seconds=26))'),
}  # fmt: skip
"""What all do first, and the wait of rank 0 that has a limit."""
ENDS = """
import atexit
{}
if RANK: time.sleep(90)
atexit.register(lambda: print("ended at", time.time(), flush=True))
{}
"""


class _Slow(http.server.BaseHTTPRequestHandler):
    """Sends 20 kB in a second for ever, or nothing."""

    def do_GET(self) -> None:
        with contextlib.suppress(OSError):
            while self.path.endswith("silent"):
                time.sleep(1)
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(bytes(4096))
                time.sleep(0.2)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Slow) as one:
        one.daemon_threads = True
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{one.server_port}/"
        one.shutdown()


def said(text: str) -> list[dict[str, Any]]:
    lines = (line for line in text.splitlines() if line.startswith('{"disttrace"'))
    return [json.loads(line) for line in lines]


@contextlib.contextmanager
def ranks(name: str, code: str, url: str) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Both of them, with a folder; ended with all that they started."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        program = Path(folder) / f"p_{name.replace(' ', '_').replace(',', '')}.py"
        program.write_text(code)
        started = []
        for rank in (0, 1):
            environ = clean_environ(
                DISTTRACE="1", DISTTRACE_DIR=f"{folder}/traced", DISTTRACE_LOG="json",
                DISTTRACE_STALL=str(STALL_S), DISTTRACE_JOB="working", OMP_NUM_THREADS="1",
                RANK=str(rank), WORLD_SIZE="2", PYTHONPATH=os.environ.get("PYTHONPATH", ""),
            )  # fmt: skip
            with (
                open(f"{folder}/out{rank}", "wb") as out,
                open(f"{folder}/err{rank}", "wb") as err,
            ):
                command = [sys.executable, str(program), folder, url]
                started.append(
                    subprocess.Popen(command, env=environ, stdout=out, stderr=err,
                                     stdin=subprocess.DEVNULL, start_new_session=True)
                )  # fmt: skip
        with ending(*started):
            yield Path(folder), started[0]


def heard(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """What both have said so far of these kinds, by time."""
    texts = [(folder / f"err{rank}").read_text(errors="replace") for rank in (0, 1)]
    found = [one for text in texts for one in said(text) if one["kind"] in kinds]
    return sorted(found, key=lambda one: one["at"])


def judged(name: str, code: str, url: str, *, works: bool) -> str:
    """Empty where all is right."""
    with ranks(name, f"{HEAD}def work():\n{indent(code, '    ')}{TAIL}", url) as (folder, process):
        until = time.monotonic() + PATIENCE_S
        while not (found := heard(folder, "waiting", "stalled")):
            error = (folder / "err0").read_text(errors="replace")
            if "ModuleNotFoundError" in error:
                return "not installed"
            if process.poll() is not None or time.monotonic() > until:
                return f"nothing was said: {error[-300:]}"
            time.sleep(0.2)
        time.sleep(LATER_S.get(name, 2 * STALL_S))  # it stays so
        found = heard(folder, "waiting", "stalled")
    kinds = [one["kind"] for one in found]
    did = [one["state"] for one in found[-1]["finding"]["activity"]]
    right = kinds[-1] == ("waiting" if works else "stalled") and (did == ["moves"]) == works
    if works and "stalled" in kinds:
        right = False
    if right and did != ["unknown"]:
        return ""
    return f"{kinds}, {did}: {found[-1]['summary']}"


def struck(name: str, url: str) -> str:
    """Empty where the limit struck when it was told to, to the second."""
    with ranks(name, HEAD + ENDS.format(*LIMITS[name]), url) as (folder, process):
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            return "it did not end"
        found = heard(folder, "starting", "waiting", "stalled")
        words = (folder / "out0").read_text().split()
        if not found or "ended" not in words:
            return f"{len(found)} said; {(folder / 'err0').read_text(errors='replace')[-300:]}"
        ended = float(words[-1])
    told = [one["finding"]["deadline"] for one in found]
    if None in told:
        return f"no deadline: {found[0]['summary']}"
    off = max(abs(one["at"] - ended) for one in told)
    return "" if off < 1 else f"{off:.1f} s off ({told[0]['whose']}, {told[0]['limit_s']:g} s)"


def main() -> int:
    """Run them, print a line for each that is wrong, and how many were right."""
    asked = options(__doc__, jobs=2, match="", limits=False, load=0)
    kinds: dict[str, Iterable[str]] = {"work": WORK, "stuck": STUCK}
    kinds = {"limit": LIMITS} if asked.limits else kinds
    rows = [(kind, name) for kind, table in kinds.items() for name in table]
    rows = [row for row in rows if asked.match in " ".join(row)]
    right, out = 0, 0

    def one(row: tuple[str, str]) -> str:
        what, name = row
        if what == "limit":
            return struck(name, url)
        works = what == "work"
        return judged(name, WORK[name] if works else STUCK[name], url, works=works)

    with busy(asked.load), server() as url:
        for (what, name), wrong in zip(rows, beside(one, rows, asked.jobs), strict=True):
            out += wrong == "not installed"
            right += not wrong
            print(f"{'WRONG' if wrong else 'right'}  {what} {name}  {wrong}", flush=True)
    print(f"{right} of {len(rows) - out} right, {out} passed over")
    return 0 if right == len(rows) - out else 1


if __name__ == "__main__":
    sys.exit(main())
